// SPDX-License-Identifier: GPL-2.0
/* get_dev_pagemap(pfn) */
#include <linux/memremap.h>

static struct dev_pagemap *(* const ask)(unsigned long pfn) __used =
	get_dev_pagemap;
