// SPDX-License-Identifier: GPL-2.0
/* dev_pagemap_ops.page_free(page): how the last reference to a device page ends. */
#include <linux/memremap.h>

static void freed(struct page *page)
{
}

static const struct dev_pagemap_ops ops __used = { .page_free = freed };
