// SPDX-License-Identifier: GPL-2.0
/* migrate_device_pfns(): the same for PFNs that are not consecutive. */
#include <linux/migrate.h>

static int (* const ask)(unsigned long *src, unsigned long npages) __used =
	migrate_device_pfns;
