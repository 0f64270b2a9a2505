// SPDX-License-Identifier: GPL-2.0
/* zone_device_page_init(page) */
#include <linux/memremap.h>

static void (* const ask)(struct page *page) __used = zone_device_page_init;
