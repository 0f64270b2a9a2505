// SPDX-License-Identifier: GPL-2.0
/* zone_device_page_init(page, pgmap, order) */
#include <linux/memremap.h>

static void (* const ask)(struct page *page, struct dev_pagemap *pgmap,
			  unsigned int order) __used = zone_device_page_init;
