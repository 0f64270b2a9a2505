// SPDX-License-Identifier: GPL-2.0
/*
 * Where pages really are: hmm_range_fault() snapshots, decoded.
 *
 * Design. A range is walked in steps. A step lies inside one VMA and one
 * block of 2 MiB, or is a whole hole between VMAs, or a whole VMA that
 * cannot be looked into. Whoever asked uses a step's result when nothing
 * is locked, so one call can cover any amount of memory with the three
 * pages of kernel memory that a step needs.
 *
 * What one entry of a page table maps is asked for and looked at once: a huge
 * page costs what a page does.
 *
 * Rules of a step, which hetmem_walk_try() follows from top to bottom:
 *  1. mmu_interval_read_begin(), which can sleep, before any lock.
 *  2. mmap_lock for reading across the look at the VMA and
 *     hmm_range_fault(); walk->lock is not held there.
 *  3. mmap_lock dropped, walk->lock taken, mmu_interval_read_retry()
 *     checked. While walk->lock is held no callback for this range can
 *     finish, so the pages of the snapshot cannot go away: this is the only
 *     place where a PFN becomes a struct page.
 *  4. Under walk->lock pieces that carry a numbered location are made of the
 *     PFNs. No page and no pgmap is looked at afterwards.
 * The device registry's SRCU is held around 2 to 4, so that a registered
 * pgmap that was compared is still the registered one.
 *
 * The notifier covers the step at work only and is inserted for it: inserting
 * and removing is a spinlock and a tree operation, and an allocation-heavy
 * neighbour thread cannot make us retry. Retrying is bounded all the same.
 *
 * A page table entry that is no page (never touched, swapped, a device page
 * of an owner we do not pass) reads as 0: HETMEM_UNKNOWN. An entry that is
 * nothing but a PFN is waiting for a NUMA hinting fault: on the host. One that
 * is not VALID and has other flags is no page and no PFN: of a huge page of
 * hugetlb that is absent or on its way the order is told all the same.
 */
#include <linux/hmm.h>
#include <linux/hugetlb.h>
#include <linux/jiffies.h>
#include <linux/magic.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/userfaultfd_k.h>

#include "hetmem.h"

/* For how long the snapshots of a step may be spoilt before we give up. */
#define HETMEM_WALK_PATIENCE	msecs_to_jiffies(HMM_RANGE_DEFAULT_TIMEOUT)

/*
 * Faulting a block spoils the snapshot by its own doing, at least once where
 * pages come from a device.
 */
#define HETMEM_FAULT_TRIES	8

static bool hetmem_walk_invalidate(struct mmu_interval_notifier *notifier,
				   const struct mmu_notifier_range *range,
				   unsigned long cur_seq)
{
	struct hetmem_walk *walk =
		container_of(notifier, struct hetmem_walk, notifier);

	spin_lock(&walk->lock);
	mmu_interval_set_seq(notifier, cur_seq);
	spin_unlock(&walk->lock);
	return true;
}

static const struct mmu_interval_notifier_ops hetmem_walk_ops = {
	.invalidate = hetmem_walk_invalidate,
};

int hetmem_walk_init(struct hetmem_walk *walk, struct mm_struct *mm)
{
	const size_t bytes = HETMEM_BLOCK_PAGES * sizeof(*walk->pfns);

	BUILD_BUG_ON(sizeof(*walk->pieces) > sizeof(*walk->pfns));
	BUILD_BUG_ON(HETMEM_BLOCK_PAGES > U16_MAX);

	memset(walk, 0, sizeof(*walk));
	walk->mm = mm;
	spin_lock_init(&walk->lock);
	/*
	 * Some flags of a PFN are input as well. hmm_range_fault() leaves them
	 * as they are, so clearing once does for all steps.
	 */
	walk->pfns = kzalloc(bytes, GFP_KERNEL_ACCOUNT);
	walk->more = kzalloc(bytes, GFP_KERNEL_ACCOUNT);
	walk->pieces = kmalloc(bytes, GFP_KERNEL_ACCOUNT);
	if (!walk->pfns || !walk->more || !walk->pieces) {
		hetmem_walk_exit(walk);
		return -ENOMEM;
	}
	return 0;
}

void hetmem_walk_exit(struct hetmem_walk *walk)
{
	kfree(walk->pfns);
	kfree(walk->more);
	kfree(walk->pieces);
}

/* What the mapping tells about why its pages stay on the host. */
u32 hetmem_vma_why(struct vm_area_struct *vma)
{
	u32 why = 0;

	/* hugetlb mappings are VM_SPECIAL as well: they may not expand. */
	if (is_vm_hugetlb_page(vma))
		why |= HETMEM_WHY_HUGETLB;
	else if ((vma->vm_flags & VM_SPECIAL) || vma_is_dax(vma) ||
		 hetmem_vma_is_secret(vma))
		why |= HETMEM_WHY_SPECIAL;
	else if (vma->vm_file &&
		 file_inode(vma->vm_file)->i_sb->s_magic == TMPFS_MAGIC)
		why |= HETMEM_WHY_SHMEM;
	else if (vma->vm_file)
		why |= HETMEM_WHY_FILE;

	if (userfaultfd_armed(vma))
		why |= HETMEM_WHY_UFFD;
	if (vma->vm_flags & VM_LOCKED)
		why |= HETMEM_WHY_MLOCKED;
	if (!(vma->vm_flags & VM_READ))
		why |= HETMEM_WHY_NOT_READABLE;
	if (vma->vm_flags & VM_MERGEABLE)
		why |= HETMEM_WHY_MERGEABLE;
	return why;
}

/* hmm_range_fault() answers ERROR for all of such a VMA: need not be asked. */
static bool hetmem_vma_is_opaque(struct vm_area_struct *vma)
{
	return (vma->vm_flags & (VM_IO | VM_PFNMAP)) ||
	       !(vma->vm_flags & VM_READ);
}

static void hetmem_walk_one_piece(struct hetmem_walk *walk, u32 kind)
{
	walk->pieces[0].location = HETMEM_LOC(kind, 0);
	walk->pieces[0].order = 0;
	walk->pieces[0].traits = 0;
	walk->nr = 1;
}

/* VALID, or waiting for a NUMA hinting fault. */
static bool hetmem_pfn_is_page(unsigned long pfn)
{
	return (pfn & HMM_PFN_VALID) || (pfn && !(pfn & HMM_PFN_FLAGS));
}

/* Pages from number @at of the address space on that the entry @pfn maps. */
static unsigned long hetmem_pfn_reach(unsigned long pfn, unsigned long at)
{
	unsigned long nr = 1;

	if (pfn & HMM_PFN_VALID)
		nr <<= hmm_pfn_to_map_order(pfn);
	return nr - (at & (nr - 1));
}

static bool hetmem_walk_has_gaps(const struct hetmem_walk *walk,
				 unsigned long nr)
{
	unsigned long i;

	for (i = 0; i < nr; i++) {
		if (!hetmem_pfn_is_page(walk->pfns[i]))
			return true;
	}
	return false;
}

/*
 * Has the PFNs of [@start, @end), part of the step, put where they belong in
 * @pfns.
 */
static int hetmem_walk_fill(struct hetmem_walk *walk, struct hmm_range *range,
			    unsigned long *pfns, unsigned long start,
			    unsigned long end)
{
	range->start = start;
	range->end = end;
	range->hmm_pfns = pfns + ((start - walk->start) >> PAGE_SHIFT);
	return hmm_range_fault(range);
}

/*
 * Fills walk->pfns; mmap_lock is held for reading. The first page is asked for
 * alone: where its entry maps all of the step, the decoder looks no further.
 */
static int hetmem_walk_snapshot(struct hetmem_walk *walk, unsigned long seq)
{
	unsigned long i, nr = (walk->end - walk->start) >> PAGE_SHIFT;
	unsigned long first = walk->start >> PAGE_SHIFT;
	void *owners[HETMEM_MAX_OWNERS];
	unsigned int nr_owners, o;
	struct hmm_range range = {
		.notifier = &walk->notifier,
		.notifier_seq = seq,
	};
	int ret;

	nr_owners = hetmem_device_owners(owners);
	if (nr_owners)
		range.dev_private_owner = owners[0];
	ret = hetmem_walk_fill(walk, &range, walk->pfns, walk->start,
			       walk->start + PAGE_SIZE);
	if (ret)
		return ret;
	if ((walk->pfns[0] & HMM_PFN_VALID) &&
	    hetmem_pfn_reach(walk->pfns[0], first) >= nr)
		return 0;
	if (nr > 1)
		ret = hetmem_walk_fill(walk, &range, walk->pfns,
				       walk->start + PAGE_SIZE, walk->end);

	/* An owner's device pages are seen only by a walk with that owner. */
	for (o = 1; o < nr_owners && !ret; o++) {
		if (!hetmem_walk_has_gaps(walk, nr))
			break;
		range.dev_private_owner = owners[o];
		ret = hetmem_walk_fill(walk, &range, walk->more, walk->start,
				       walk->end);
		for (i = 0; i < nr && !ret; i++) {
			if (!hetmem_pfn_is_page(walk->pfns[i]) &&
			    (walk->more[i] & HMM_PFN_VALID))
				walk->pfns[i] = walk->more[i];
		}
	}
	return ret;
}

static u32 hetmem_pfn_location(unsigned long pfn)
{
	const struct page *page;

	if (!hetmem_pfn_is_page(pfn))
		return HETMEM_LOC(HETMEM_UNKNOWN, 0);
	page = hmm_pfn_to_page(pfn);
	if (unlikely(is_zone_device_page(page)))
		return hetmem_device_location(page);
	return HETMEM_LOC(HETMEM_HOST, page_to_nid(page));
}

/*
 * How many of the @nr entries from @pfns on map one page each, all at the
 * same location, at least 1. Neighbours mostly are alike, and to see that
 * takes less than to find out where they are: a zone lies on one node, a
 * pgmap belongs to one device.
 */
static unsigned long hetmem_pfns_alike(const unsigned long *pfns,
				       unsigned long nr)
{
	const unsigned long same = HMM_PFN_FLAGS & ~HMM_PFN_WRITE;
	struct page *page, *first = hmm_pfn_to_page(pfns[0]);
	const int zone = page_zone_id(first);
	const struct dev_pagemap *pgmap = NULL;
	unsigned long i;

	if (is_zone_device_page(first))
		pgmap = hetmem_page_pgmap(first);
	for (i = 1; i < nr; i++) {
		if ((pfns[i] ^ pfns[0]) & same)
			break;
		page = hmm_pfn_to_page(pfns[i]);
		if (page_zone_id(page) != zone ||
		    (pgmap && hetmem_page_pgmap(page) != pgmap))
			break;
	}
	return i;
}

/* The same for entries that hold no page. */
static unsigned long hetmem_pfns_repeat(const unsigned long *pfns,
					unsigned long nr)
{
	unsigned long i;

	for (i = 1; i < nr && pfns[i] == pfns[0]; i++)
		;
	return i;
}

/*
 * Whether another address space has the page too, or may have it from swap.
 * What is exclusive becomes shared by fork() only.
 */
static bool hetmem_page_is_shared(struct page *page)
{
	struct folio *folio = page_folio(page);

	if (!PageAnon(page) || PageAnonExclusive(page))
		return false;
	/* One that is locked may be about to be mapped elsewhere again. */
	return folio_test_large(folio) || folio_test_swapcache(folio) ||
	       folio_test_locked(folio) || atomic_read(&folio->_mapcount) > 0;
}

/*
 * How many of the @nr entries from @pfns on have the same of the traits that
 * @walk looks for, as far as that is seen at a glance, and which. Pages of a
 * device are never merged, and all alike.
 */
static unsigned long hetmem_pfns_traits(struct hetmem_walk *walk,
					const unsigned long *pfns,
					unsigned long nr, u8 *traits)
{
	struct page *page = hmm_pfn_to_page(pfns[0]);
	unsigned long i, alike = 1;
	u8 found = 0;

	if (is_zone_device_page(page))
		alike = hetmem_pfns_alike(pfns, nr);
	else if (PageCompound(page))
		found |= HETMEM_TRAIT_PART;
	if (folio_test_ksm(page_folio(page)))
		found |= HETMEM_TRAIT_MERGED;
	*traits = found & walk->look_for;
	for (i = 0; i < alike && !walk->shared; i++)
		walk->shared = hetmem_page_is_shared(hmm_pfn_to_page(pfns[i]));
	return alike;
}

/*
 * Makes pieces of the PFNs of a step. walk->lock is held and the snapshot is
 * good. What is counted is entries that were looked at for a location.
 */
static void hetmem_walk_decode(struct hetmem_walk *walk)
{
	unsigned long i, step, nr = (walk->end - walk->start) >> PAGE_SHIFT;
	unsigned long first = walk->start >> PAGE_SHIFT;
	struct hetmem_piece *last = NULL;
	unsigned long decodes = 0;

	walk->nr = 0;
	for (i = 0; i < nr; i += step) {
		const unsigned long *pfns = &walk->pfns[i];
		unsigned int order = 0;
		u8 traits = 0;
		u32 location;

		if (pfns[0] & HMM_PFN_VALID)
			order = hmm_pfn_to_map_order(pfns[0]);
		if (order) {
			step = min(hetmem_pfn_reach(pfns[0], first + i),
				   nr - i);
			decodes++;
		} else if (hetmem_pfn_is_page(pfns[0])) {
			if (walk->look_for)
				step = hetmem_pfns_traits(walk, pfns, nr - i,
							  &traits);
			else
				step = hetmem_pfns_alike(pfns, nr - i);
			decodes += step;
		} else {
			step = hetmem_pfns_repeat(pfns, nr - i);
		}

		location = hetmem_pfn_location(pfns[0]);
		if (last && last->location == location &&
		    last->order == order && last->traits == traits) {
			last->nr_pages += step;
			continue;
		}
		last = &walk->pieces[walk->nr++];
		last->location = location;
		last->order = order;
		last->traits = traits;
		last->nr_pages = step;
	}
	hetmem_total_add(HETMEM_TOTAL_DECODES, decodes);
}

static int hetmem_walk_try(struct hetmem_walk *walk, unsigned long start,
			   unsigned long end, unsigned long block_end)
{
	struct vm_area_struct *vma;
	unsigned long seq;
	int ret;

	seq = mmu_interval_read_begin(&walk->notifier);
	if (mmap_read_lock_killable(walk->mm))
		return -EINTR;

	walk->start = start;
	walk->shared = false;
	vma = find_vma(walk->mm, start);
	if (!vma || vma->vm_start > start) {
		walk->end = vma ? min(end, vma->vm_start) : end;
		walk->why = HETMEM_WHY_UNMAPPED;
		hetmem_walk_one_piece(walk, HETMEM_UNMAPPED);
		mmap_read_unlock(walk->mm);
		return 0;
	}

	walk->why = hetmem_vma_why(vma);
	if (hetmem_vma_is_opaque(vma)) {
		walk->end = min(end, vma->vm_end);
		hetmem_walk_one_piece(walk, HETMEM_UNKNOWN);
		mmap_read_unlock(walk->mm);
		return 0;
	}

	walk->end = min(block_end, vma->vm_end);
	walk->vma_end = vma->vm_end;
	ret = hetmem_walk_snapshot(walk, seq);
	mmap_read_unlock(walk->mm);
	if (ret)
		return ret;

	spin_lock(&walk->lock);
	if (mmu_interval_read_retry(&walk->notifier, seq))
		ret = -EBUSY;
	else
		hetmem_walk_decode(walk);
	spin_unlock(&walk->lock);
	return ret;
}

static unsigned long hetmem_block_end(unsigned long start, unsigned long end)
{
	return min(end, ALIGN(start + 1, HETMEM_BLOCK_SIZE));
}

/**
 * hetmem_walk_step - look at the memory from @start on
 * @walk: filled: [@start, walk->end) and its pieces
 * @start: page-aligned
 * @end: page-aligned, above @start; walk->end will not be above it
 *
 * Return: 0; -EBUSY if the memory kept changing; -EINTR on a fatal signal.
 */
int hetmem_walk_step(struct hetmem_walk *walk, unsigned long start,
		     unsigned long end)
{
	unsigned long block_end = hetmem_block_end(start, end);
	unsigned long give_up = jiffies + HETMEM_WALK_PATIENCE;
	int idx, ret;

	ret = mmu_interval_notifier_insert(&walk->notifier, walk->mm, start,
					   block_end - start, &hetmem_walk_ops);
	if (ret)
		return ret;

	for (;;) {
		idx = hetmem_device_lock();
		ret = hetmem_walk_try(walk, start, end, block_end);
		hetmem_device_unlock(idx);
		if (ret != -EBUSY || time_after(jiffies, give_up))
			break;
		if (fatal_signal_pending(current)) {
			ret = -EINTR;
			break;
		}
		cond_resched();
	}

	mmu_interval_notifier_remove(&walk->notifier);
	return ret;
}

/**
 * hetmem_walk_fault - fault memory to the host as the CPU would
 * @walk: its pieces stay as they are
 * @start: page-aligned
 * @end: page-aligned, above @start, in the same block
 *
 * Device pages come back because no owner is given: to whoever's fault
 * handler they belong. What really happened the next step will tell.
 *
 * Return: 0, also if the memory kept changing or is not there any more;
 * -EFAULT if one of the pages cannot be faulted, and others may not have
 * been; -EINTR on a fatal signal.
 */
int hetmem_walk_fault(struct hetmem_walk *walk, unsigned long start,
		      unsigned long end)
{
	struct vm_area_struct *vma;
	struct hmm_range range = {
		.notifier = &walk->notifier,
		.start = start,
		.end = end,
		.hmm_pfns = walk->more,
		.default_flags = HMM_PFN_REQ_FAULT,
	};
	int tries, ret;

	ret = mmu_interval_notifier_insert(&walk->notifier, walk->mm, start,
					   end - start, &hetmem_walk_ops);
	if (ret)
		return ret;

	for (tries = 0; tries < HETMEM_FAULT_TRIES; tries++) {
		range.notifier_seq = mmu_interval_read_begin(&walk->notifier);
		ret = -EINTR;
		if (mmap_read_lock_killable(walk->mm))
			break;
		ret = 0;
		vma = vma_lookup(walk->mm, start);
		/* It need not be the mapping that was looked at. */
		if (vma && end <= vma->vm_end &&
		    !(hetmem_vma_why(vma) & HETMEM_WHY_LEAVE))
			ret = hmm_range_fault(&range);
		mmap_read_unlock(walk->mm);
		if (ret != -EBUSY)
			break;
		if (fatal_signal_pending(current)) {
			ret = -EINTR;
			break;
		}
		cond_resched();
	}

	mmu_interval_notifier_remove(&walk->notifier);
	return ret == -EBUSY ? 0 : ret;
}

/* The first address behind piece @i, which starts at @start. */
unsigned long hetmem_piece_end(const struct hetmem_walk *walk, unsigned int i,
			       unsigned long start)
{
	if (i == walk->nr - 1)
		return walk->end;
	return start + ((unsigned long)walk->pieces[i].nr_pages << PAGE_SHIFT);
}
