// SPDX-License-Identifier: GPL-2.0
/* page->pgmap: the pgmap of a device page was a member of struct page. */
#include <linux/mm.h>

struct dev_pagemap *ask(const struct page *page);

struct dev_pagemap *ask(const struct page *page)
{
	return page->pgmap;
}
