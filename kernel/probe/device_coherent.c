// SPDX-License-Identifier: GPL-2.0
/* is_device_coherent_page(): memory of a device that the CPU can access. */
#include <linux/memremap.h>

static bool (* const ask)(const struct page *page) __used = is_device_coherent_page;
