/* SPDX-License-Identifier: GPL-2.0 */
/*
 * hetmem_emu: what differs between kernels for a driver with device memory. What
 * hetmem.ko needs as well is in compat.h.
 */
#ifndef _HETMEM_EMU_COMPAT_H
#define _HETMEM_EMU_COMPAT_H

#include "compat.h"

#if defined(HETMEM_HAVE_PAGE_FREE) == defined(HETMEM_HAVE_FOLIO_FREE)
#error "no known callback for the last reference to a device page"
#endif
/* Kernels before 6.1 have no way to empty a device. */
#define HETMEM_EMULATES \
	(IS_ENABLED(CONFIG_DEVICE_PRIVATE) && __is_defined(HETMEM_HAVE_DEVICE_RANGE))
#if HETMEM_EMULATES && defined(HETMEM_HAVE_PAGE_INIT_1) == defined(HETMEM_HAVE_PAGE_INIT_3)
#error "zone_device_page_init() takes arguments that are not known"
#endif

/*
 * Whether a device folio can be as large as what one PMD maps: migrate_vma_*()
 * moves it whole, marked COMPOUND in the arrays at its first page, and
 * folio_split() tells the driver when the core takes it apart.
 */
#if IS_ENABLED(CONFIG_TRANSPARENT_HUGEPAGE) && \
	IS_ENABLED(CONFIG_DEVICE_PRIVATE) && \
	defined(HETMEM_HAVE_MIGRATE_COMPOUND) && \
	defined(HETMEM_HAVE_FOLIO_SPLIT) && defined(HETMEM_HAVE_FOLIO_INIT)
#define HETMEM_HUGE			1
#define HETMEM_SELECT_COMPOUND		MIGRATE_VMA_SELECT_COMPOUND
#define HETMEM_PFN_COMPOUND		MIGRATE_PFN_COMPOUND
#else
#define HETMEM_HUGE			0
#define HETMEM_SELECT_COMPOUND		0
#define HETMEM_PFN_COMPOUND		0UL
#endif

/*
 * Takes a free device page, or 1 << @order of them that are aligned, into use:
 * locked, one reference. Since device folios can be large the page no longer
 * remembers its pgmap while free. Without ZONE_DEVICE there are no device
 * pages to be taken; without HETMEM_HUGE @order is 0.
 */
static inline void hetmem_page_init(struct page *page,
				    struct dev_pagemap *pgmap,
				    unsigned int order)
{
#if HETMEM_HUGE
	zone_device_folio_init((struct folio *)page, pgmap, order);
#elif defined(HETMEM_HAVE_PAGE_INIT_3)
	zone_device_page_init(page, pgmap, order);
#elif defined(HETMEM_HAVE_PAGE_INIT_1)
	zone_device_page_init(page);
#endif
}

/*
 * The last reference to a device page is gone: HETMEM_PAGE_FREE(name) opens
 * the definition of the function that dev_pagemap_ops is given by
 * HETMEM_PAGE_FREE_OP(name). It was handed a page and is now handed a folio;
 * the body is given @page, its first page.
 */
#ifdef HETMEM_HAVE_FOLIO_FREE
#define HETMEM_PAGE_FREE(name)						\
	static void name##_page(struct page *page);			\
	static void name(struct folio *folio)				\
	{								\
		name##_page(folio_page(folio, 0));			\
	}								\
	static void name##_page(struct page *page)
#define HETMEM_PAGE_FREE_OP(name)	.folio_free = name
#else
#define HETMEM_PAGE_FREE(name)						\
	static void name(struct page *page)
#define HETMEM_PAGE_FREE_OP(name)	.page_free = name
#endif

#endif /* _HETMEM_EMU_COMPAT_H */
