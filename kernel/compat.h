/* SPDX-License-Identifier: GPL-2.0 */
/*
 * hetmem: what differs between kernels, in one place.
 *
 * kernel/probe/ holds one small file for each question; what compiles becomes
 * a HETMEM_HAVE_* of hetmem_probe.h, which `make module` makes for the kernel
 * it builds against. No version numbers: stable kernels backport.
 */
#ifndef _HETMEM_COMPAT_H
#define _HETMEM_COMPAT_H

#include <linux/eventfd.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/memremap.h>
#include <linux/migrate.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>

#include "hetmem_probe.h"

/*
 * Of two forms of one thing a kernel has exactly one. Both or neither means
 * that a probe no longer asks what it was written to ask.
 */
#if defined(HETMEM_HAVE_PAGE_PGMAP_MEMBER) == \
	defined(HETMEM_HAVE_PAGE_PGMAP_FUNCTION)
#error "no way known to get from a device page to its pgmap"
#endif
#if defined(HETMEM_HAVE_PAGE_FREE) == defined(HETMEM_HAVE_FOLIO_FREE)
#error "no known callback for the last reference to a device page"
#endif
#if defined(HETMEM_HAVE_GET_DEV_PAGEMAP_1) == \
	defined(HETMEM_HAVE_GET_DEV_PAGEMAP_2)
#error "get_dev_pagemap() takes arguments that are not known"
#endif
#if IS_ENABLED(CONFIG_ZONE_DEVICE) && \
	defined(HETMEM_HAVE_PAGE_INIT_1) == defined(HETMEM_HAVE_PAGE_INIT_3)
#error "zone_device_page_init() takes arguments that are not known"
#endif

/* The pgmap of a device page: a member of struct page, now of its folio. */
static inline struct dev_pagemap *hetmem_page_pgmap(const struct page *page)
{
#ifdef HETMEM_HAVE_PAGE_PGMAP_FUNCTION
	return page_pgmap(page);
#else
	return page->pgmap;
#endif
}

/* The argument that was dropped cached the pgmap of the previous lookup. */
static inline struct dev_pagemap *hetmem_get_dev_pagemap(unsigned long pfn)
{
#ifdef HETMEM_HAVE_GET_DEV_PAGEMAP_1
	return get_dev_pagemap(pfn);
#else
	return get_dev_pagemap(pfn, NULL);
#endif
}

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
 * Whether migrate_vma_setup() splits a large folio that is mapped by pages. If
 * not it passes it by, without a word.
 */
#ifdef HETMEM_HAVE_MIGRATE_COMPOUND
#define HETMEM_SPLITS_FOLIOS		1
#else
#define HETMEM_SPLITS_FOLIOS		0
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

#if defined(HETMEM_HAVE_EVENTFD_SIGNAL_1) == \
	defined(HETMEM_HAVE_EVENTFD_SIGNAL_2)
#error "eventfd_signal() takes arguments that are not known"
#endif
static inline void hetmem_eventfd_signal(struct eventfd_ctx *eventfd)
{
#ifdef HETMEM_HAVE_EVENTFD_SIGNAL_1
	eventfd_signal(eventfd);
#else
	eventfd_signal(eventfd, 1);
#endif
}

#ifndef HETMEM_HAVE_VM_FLAGS_SET
static inline void vm_flags_set(struct vm_area_struct *vma, vm_flags_t flags)
{
	vma->vm_flags |= flags;
}

static inline void vm_flags_clear(struct vm_area_struct *vma,
				  vm_flags_t flags)
{
	vma->vm_flags &= ~flags;
}
#endif

/*
 * Memory of memfd_secret(): its pages look like any other's, but the kernel has
 * no mapping of them. vma_is_secretmem() is not for modules; no kernel marks
 * the pages or their address_space in another way yet.
 */
static inline bool hetmem_vma_is_secret(const struct vm_area_struct *vma)
{
	return vma->vm_file &&
	       file_inode(vma->vm_file)->i_sb->s_magic == SECRETMEM_MAGIC;
}

#endif /* _HETMEM_COMPAT_H */
