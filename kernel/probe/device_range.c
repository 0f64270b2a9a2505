// SPDX-License-Identifier: GPL-2.0
/* migrate_device_range(): a driver can empty its memory. */
#include <linux/migrate.h>

static int (* const ask)(unsigned long *pfns, unsigned long start,
			 unsigned long npages) __used = migrate_device_range;
