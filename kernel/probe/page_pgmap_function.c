// SPDX-License-Identifier: GPL-2.0
/* page_pgmap(page): ... and is now reached through its folio. */
#include <linux/mm.h>

struct dev_pagemap *ask(const struct page *page);

struct dev_pagemap *ask(const struct page *page)
{
	return page_pgmap(page);
}
