// SPDX-License-Identifier: GPL-2.0
/* dev_pagemap_ops.folio_split(): device folios may be larger than a page. */
#include <linux/memremap.h>

static void split(struct folio *head, struct folio *tail)
{
}

static const struct dev_pagemap_ops ops __used = { .folio_split = split };
