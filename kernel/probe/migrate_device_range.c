// SPDX-License-Identifier: GPL-2.0
/* migrate_device_range(): device pages are evicted by PFN, without a VMA. */
#include <linux/migrate.h>

static int (* const ask)(unsigned long *src, unsigned long start,
			 unsigned long npages) __used = migrate_device_range;
