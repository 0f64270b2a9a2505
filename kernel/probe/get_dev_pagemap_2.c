// SPDX-License-Identifier: GPL-2.0
/* get_dev_pagemap(pfn, pgmap): with the pgmap of the page before. */
#include <linux/memremap.h>

static struct dev_pagemap *(* const ask)(unsigned long pfn,
					 struct dev_pagemap *pgmap) __used =
	get_dev_pagemap;
