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

#include <linux/cleanup.h>
#include <linux/eventfd.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/memremap.h>
#include <linux/migrate.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>

#include "hetmem_probe.h"

#ifdef HETMEM_HAVE_IS_SWAP_PTE
#include <linux/swap.h>
#include <linux/swapops.h>
#else
#include <linux/leafops.h>
#endif

/*
 * Of two forms of one thing a kernel has exactly one. Both or neither means
 * that a probe no longer asks what it was written to ask.
 */
#if defined(HETMEM_HAVE_PAGE_PGMAP_MEMBER) == \
	defined(HETMEM_HAVE_PAGE_PGMAP_FUNCTION)
#error "no way known to get from a device page to its pgmap"
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

/*
 * Whether migrate_vma_setup() splits a large folio that is mapped by pages. If
 * not it passes it by, without a word.
 */
#define HETMEM_SPLITS_FOLIOS	__is_defined(HETMEM_HAVE_MIGRATE_COMPOUND)

#ifndef HETMEM_HAVE_VM_FLAGS_SET
#define vm_flags_set(vma, flags)	((vma)->vm_flags |= (flags))
#define vm_flags_clear(vma, flags)	((vma)->vm_flags &= ~(flags))
#endif

#ifdef HETMEM_HAVE_EVENTFD_SIGNAL_2
#define hetmem_eventfd_signal(ctx)	eventfd_signal(ctx, 1)
#else
#define hetmem_eventfd_signal(ctx)	eventfd_signal(ctx)
#endif

/* Whether a page that is swapped out belongs there. */
static inline bool hetmem_pte_is_swap(pte_t pte)
{
#ifdef HETMEM_HAVE_IS_SWAP_PTE
	return is_swap_pte(pte) && !non_swap_entry(pte_to_swp_entry(pte));
#else
	return softleaf_is_swap(softleaf_from_pte(pte));
#endif
}

/*
 * Memory of memfd_secret(): its pages look like any other's, but the kernel has
 * no mapping of them. vma_is_secretmem() is not for modules; no kernel marks
 * the pages or their address_space in another way yet.
 */
static inline bool hetmem_vma_is_secret(const struct vm_area_struct *vma)
{
	return vma->vm_file && file_inode(vma->vm_file)->i_sb->s_magic == SECRETMEM_MAGIC;
}

#endif /* _HETMEM_COMPAT_H */
