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

/* Before 5.11 vm_insert_page() refuses pages that are charged to a memory cgroup. */
static inline int hetmem_insert_page(struct vm_area_struct *vma, unsigned long addr,
				     struct page *page)
{
#ifdef PG_kmemcg
	return remap_pfn_range(vma, addr, page_to_pfn(page), PAGE_SIZE, vma->vm_page_prot);
#else
	return vm_insert_page(vma, addr, page);
#endif
}

/* The bytes that kmalloc() takes for @bytes. Older kernels do not tell: they take at most this. */
#ifndef HETMEM_HAVE_KMALLOC_SIZE_ROUNDUP
#define kmalloc_size_roundup(bytes)	roundup_pow_of_two(bytes)
#endif

/* Kernels before 6.1 have no coherent device memory. */
#ifndef HETMEM_HAVE_DEVICE_COHERENT
#define is_device_coherent_page(page)	((void)(page), false)
#ifndef FOLL_NOFAULT
#define FOLL_NOFAULT	0
#endif
#endif

/* Kernels before 5.14 have no secret memory. */
#ifndef SECRETMEM_MAGIC
#define SECRETMEM_MAGIC	0
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

#ifndef HETMEM_HAVE_VMA_LOOKUP
static inline struct vm_area_struct *vma_lookup(struct mm_struct *mm, unsigned long addr)
{
	struct vm_area_struct *vma = find_vma(mm, addr);

	return vma && vma->vm_start <= addr ? vma : NULL;
}
#endif

/* Clears an object of @size bytes from byte @from on: memset_startat() begins with 5.16. */
static inline void hetmem_clear_from(void *obj, size_t from, size_t size)
{
	memset(obj + from, 0, size - from);
}

/* Kernels before 5.14: the owner had another name, and no driver takes pages exclusively. */
#ifdef HETMEM_HAVE_NOTIFIER_OWNER
#define hetmem_notifier_owner(range)	((range)->owner)
#else
#define hetmem_notifier_owner(range)	((range)->migrate_pgmap_owner)
#define MMU_NOTIFY_EXCLUSIVE		(MMU_NOTIFY_MIGRATE + 2)
#endif

#endif /* _HETMEM_COMPAT_H */
