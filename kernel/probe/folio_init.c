// SPDX-License-Identifier: GPL-2.0
/* zone_device_folio_init(): takes a large device folio into use. */
#include <linux/memremap.h>

void ask(struct folio *folio, struct dev_pagemap *pgmap);

void ask(struct folio *folio, struct dev_pagemap *pgmap)
{
	zone_device_folio_init(folio, pgmap, 9);
}
