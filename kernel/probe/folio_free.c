// SPDX-License-Identifier: GPL-2.0
/* dev_pagemap_ops.folio_free(folio): what page_free() became. */
#include <linux/memremap.h>

static void freed(struct folio *folio)
{
}

static const struct dev_pagemap_ops ops __used = { .folio_free = freed };
