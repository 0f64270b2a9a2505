// SPDX-License-Identifier: GPL-2.0
/*
 * Where pages really are: hmm_range_fault() snapshots, decoded.
 *
 * Design. A range is walked in steps. A step lies inside one VMA and one
 * block of 2 MiB, or is a whole hole between VMAs, a whole VMA that
 * cannot be looked into, or memory without page tables. The caller uses a
 * step's result when nothing is locked, so one call can cover any amount of
 * memory with the two pages of kernel memory that a step needs. A page table
 * entry is asked for and looked at once, whatever it maps: a huge page costs
 * what a page does.
 *
 * A step is a look in the sense of notifier.c, and walk_look() follows
 * these rules from top to bottom:
 *  1. hetmem_look() begins the try, before any lock.
 *  2. mmap_lock for reading, taken killably, across the look at the VMA and
 *     hmm_range_fault(). No spinlock is held there.
 *  3. mmap_lock dropped, window->lock taken, the window checked. While
 *     window->lock is held the pages of the snapshot cannot go away: this is
 *     the only place where a PFN becomes a struct page.
 *  4. Under window->lock pieces that carry a numbered location are made of the
 *     PFNs. No page and no pgmap is looked at afterwards.
 * Memory without page tables has no pages, and no page of it can go away. So a step
 * can be all memory that has none (walk_gap()), without rules 3 and 4.
 *
 * A step that is spoilt each time is one piece, UNKNOWN, with
 * HETMEM_WHY_MOVING, and the walk goes on. So a step waits for mmap_lock, and
 * for invalidations of its own pages, bounded; faulting pages
 * (hetmem_walk_fault(), hetmem_walk_pull()) also waits for what a fault waits
 * for: migration entries, drivers, file systems. All of it is killable except
 * what a fault waits for inside a driver.
 *
 * A page table entry that is no page (never touched, swapped, device-exclusive,
 * a device page of an owner that is not passed) reads as 0: HETMEM_UNKNOWN.
 * hmm_range_fault() does not tell which; walk_swapped() finds the swapped ones. An
 * entry that is nothing but a PFN is waiting for a NUMA hinting fault: on the
 * host. One that is not VALID and has other flags is no page and no PFN: for a
 * huge page of hugetlb that is absent or moving the order is there all the
 * same.
 */
#include <linux/hmm.h>
#include <linux/hugetlb.h>
#include <linux/magic.h>
#include <linux/pgtable.h>
#include <linux/userfaultfd_k.h>

#include "device.h"
#include "walk.h"

/* Bytes of a step without page tables: at most 2^19 entries are read under mmap_lock. */
#define HETMEM_MAX_GAP	BIT(40)

int hetmem_walk_init(struct hetmem_walk *walk, struct hetmem_mm *hm)
{
	BUILD_BUG_ON(sizeof(*walk->pieces) > sizeof(*walk->more));
	BUILD_BUG_ON(HETMEM_BLOCK_PAGES > U16_MAX);

	memset(walk, 0, sizeof(*walk));
	walk->hm = hm;
	/*
	 * Some flags of a PFN are input as well. hmm_range_fault() leaves them
	 * as they are, so clearing once does for all steps.
	 */
	walk->pfns = kcalloc(2 * HETMEM_BLOCK_PAGES, sizeof(*walk->pfns), HETMEM_GFP);
	walk->more = walk->pfns + HETMEM_BLOCK_PAGES;
	return walk->pfns ? 0 : -ENOMEM;
}

void hetmem_walk_exit(struct hetmem_walk *walk)
{
	kfree(walk->pfns);
}

/* The reasons in the mapping why its pages stay on the host. */
u32 hetmem_vma_why(struct vm_area_struct *vma)
{
	u32 why = 0;

	/* hugetlb mappings are VM_SPECIAL as well: they may not expand. */
	if (is_vm_hugetlb_page(vma))
		why |= HETMEM_WHY_HUGETLB;
	else if ((vma->vm_flags & VM_SPECIAL) || vma_is_dax(vma) || hetmem_vma_is_secret(vma))
		why |= HETMEM_WHY_SPECIAL;
	else if (vma->vm_file && file_inode(vma->vm_file)->i_sb->s_magic == TMPFS_MAGIC)
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
static bool vma_is_opaque(struct vm_area_struct *vma)
{
	return (vma->vm_flags & (VM_IO | VM_PFNMAP)) || !(vma->vm_flags & VM_READ);
}

#define walk_of(_window)	container_of(_window, struct hetmem_walk, window)

static void walk_one_piece(struct hetmem_walk *walk, u32 kind, unsigned long end)
{
	walk->end = min(end, walk->limit);
	walk->nr = 1;
	walk->pieces[0] = (struct hetmem_kept_piece) {
		.location = HETMEM_LOC(kind, 0),
	};
}

/* In walk->pfns, for a page that is swapped out; no page to hmm_range_fault(). */
#define PFN_SWAPPED	HMM_PFN_WRITE

/* VALID, or waiting for a NUMA hinting fault. */
static bool pfn_is_page(unsigned long pfn)
{
	return (pfn & HMM_PFN_VALID) || (pfn && !(pfn & HMM_PFN_FLAGS));
}

/* Pages from number @at of the address space on that the entry @pfn maps. */
static unsigned long pfn_reach(unsigned long pfn, unsigned long at)
{
	unsigned long nr = 1;

	if (pfn & HMM_PFN_VALID)
		nr <<= hmm_pfn_to_map_order(pfn);
	return nr - (at & (nr - 1));
}

static bool walk_has_gaps(const struct hetmem_walk *walk, unsigned long nr)
{
	unsigned long i;

	for (i = 0; i < nr; i++) {
		if (!pfn_is_page(walk->pfns[i]))
			return true;
	}
	return false;
}

/* Puts the PFNs of pages [@first, @end) of the step into their place. */
static int walk_fill(struct hetmem_walk *walk, void *owner, unsigned long *pfns,
		     unsigned long first, unsigned long end)
{
	struct hmm_range range = {
		.notifier = &walk->window.fake,
		.notifier_seq = walk->window.seq,
		.start = walk->start + (first << PAGE_SHIFT),
		.end = walk->start + (end << PAGE_SHIFT),
		.hmm_pfns = pfns + first,
		.dev_private_owner = owner,
	};

	return hmm_range_fault(&range);
}

/*
 * Fills walk->pfns; mmap_lock is held for reading. The first page is asked for
 * alone: where its entry maps all of the step, the decoder looks no further.
 */
static int walk_snapshot(struct hetmem_walk *walk, struct vm_area_struct *vma)
{
	void *owners[HETMEM_MAX_OWNERS];
	unsigned int nr_owners = hetmem_owners(owners), o;
	unsigned long i, nr;
	int ret;

	walk->end = min(walk->window.end, vma->vm_end);
	walk->vma_end = vma->vm_end;
	walk->anonymous = vma_is_anonymous(vma);
	walk->shared = vma->vm_flags & VM_MAYSHARE;
	nr = (walk->end - walk->start) >> PAGE_SHIFT;
	ret = walk_fill(walk, owners[0], walk->pfns, 0, 1);
	if (ret || ((walk->pfns[0] & HMM_PFN_VALID) &&
		    pfn_reach(walk->pfns[0], walk->start >> PAGE_SHIFT) >= nr))
		return ret;
	if (nr > 1)
		ret = walk_fill(walk, owners[0], walk->pfns, 1, nr);

	/* An owner's device pages are seen only by a walk with that owner. */
	for (o = 1; o < nr_owners && !ret && walk_has_gaps(walk, nr); o++) {
		memset(walk->more, 0, nr * sizeof(*walk->more));
		ret = walk_fill(walk, owners[o], walk->more, 0, nr);
		for (i = 0; i < nr && !ret; i++) {
			if (!pfn_is_page(walk->pfns[i]) && (walk->more[i] & HMM_PFN_VALID))
				walk->pfns[i] = walk->more[i];
		}
	}
	return ret;
}

/* Of an anonymous mapping: the page of zeroes, small or huge. */
static bool page_is_zero(const struct hetmem_walk *walk, struct page *page, unsigned int order)
{
	if (!walk->anonymous)
		return false;
	return order ? !PageAnon(page) : page == ZERO_PAGE(walk->start);
}

static u32 pfn_location(const struct hetmem_walk *walk, unsigned long pfn, unsigned int order)
{
	struct page *page;

	if (!pfn_is_page(pfn))
		return HETMEM_LOC(HETMEM_UNKNOWN, 0);
	page = hmm_pfn_to_page(pfn);
	if (unlikely(is_zone_device_page(page)))
		return hetmem_page_location(page);
	if (unlikely(page_is_zero(walk, page, order)))
		return HETMEM_LOC(HETMEM_ZERO, 0);
	return HETMEM_LOC(HETMEM_HOST, page_to_nid(page));
}

/*
 * Whether @b maps one page at the location of @a, which maps one. Neighbours mostly are
 * alike, and comparing them costs less than finding out where they are: a zone lies on one
 * node, a pgmap belongs to one device. The page of @zero lies nowhere.
 */
static bool pfns_alike(unsigned long a, unsigned long b, const struct page *zero)
{
	struct page *page = hmm_pfn_to_page(a), *other = hmm_pfn_to_page(b);

	return pfn_is_page(b) && !((a ^ b) & HMM_PFN_FLAGS) && page != zero && other != zero &&
	       page_zone_id(page) == page_zone_id(other) &&
	       (!is_zone_device_page(page) || hetmem_page_pgmap(page) == hetmem_page_pgmap(other));
}

/*
 * Makes pieces of the PFNs of a step. window->lock is held and the snapshot is
 * good. What is counted is entries that were looked at for a location.
 */
static void walk_decode(struct hetmem_walk *walk)
{
	unsigned long i, step, nr = (walk->end - walk->start) >> PAGE_SHIFT, decodes = 0;
	const struct page *zero = ZERO_PAGE(walk->start);
	struct hetmem_kept_piece *last = NULL;

	for (i = 0; i < nr; i += step) {
		const unsigned long pfn = walk->pfns[i];
		struct hetmem_kept_piece piece = {};

		step = min(pfn_reach(pfn, (walk->start >> PAGE_SHIFT) + i), nr - i);
		if (pfn & HMM_PFN_VALID)
			piece.order = hmm_pfn_to_map_order(pfn);
		if (piece.order) {
			decodes++;
		} else if (!pfn_is_page(pfn)) {
			piece.mark = pfn == PFN_SWAPPED;
		} else if (walk->look_for_parts) {
			piece.mark = PageCompound(hmm_pfn_to_page(pfn));
			decodes++;
		} else {
			while (i + step < nr && pfns_alike(pfn, walk->pfns[i + step], zero))
				step++;
			decodes += step;
		}
		piece.location = pfn_location(walk, pfn, piece.order);
		if (!last || last->location != piece.location || last->order != piece.order ||
		    last->mark != piece.mark) {
			last = &walk->pieces[walk->nr++];
			*last = piece;
		}
		last->nr_pages += step;
	}
	hetmem_total_add(decodes, decodes);
}

/*
 * The PMD entry of @addr, if there is a table of them. Else NULL: *@end is where the first
 * empty entry ends that maps @addr, or @addr if that entry is not empty.
 */
static pmd_t *pmd_at(struct mm_struct *mm, unsigned long addr, unsigned long *end)
{
	pgd_t *pgd = pgd_offset(mm, addr);
	p4d_t *p4d;
	pud_t *pud;

	/* A level that is folded into the one above has no end of its own. */
	*end = pgd_addr_end(addr, *end);
	if (pgd_none(READ_ONCE(*pgd)))
		return NULL;
	p4d = p4d_offset(pgd, addr);
	*end = p4d_addr_end(addr, *end);
	if (p4d_none(READ_ONCE(*p4d)))
		return NULL;
	pud = pud_offset(p4d, addr);
	*end = pud_addr_end(addr, *end);
	if (pud_none(READ_ONCE(*pud)))
		return NULL;
	if (pud_present(READ_ONCE(*pud)) && !pud_leaf(READ_ONCE(*pud)))
		return pmd_offset(pud, addr);
	*end = addr;
	return NULL;
}

/* Where the first entry above the PTEs ends that maps @addr and is empty; else @addr. */
static unsigned long gap_end(struct mm_struct *mm, unsigned long addr, unsigned long end)
{
	pmd_t *pmd = pmd_at(mm, addr, &end);

	if (!pmd)
		return end;
	for (; addr < end && pmd_none(READ_ONCE(*pmd)); pmd++)
		addr = pmd_addr_end(addr, end);
	return addr;
}

/*
 * Marks the pages of the step that are swapped out. mmap_lock and RCU keep the table of
 * its PTEs.
 */
static void walk_swapped(struct hetmem_walk *walk)
{
	const unsigned long nr = (walk->end - walk->start) >> PAGE_SHIFT;
	unsigned long i = 0, end = walk->end;
	pmd_t *table, pmd;
	pte_t *pte, entry;

	while (i < nr && walk->pfns[i])
		i++;
	if (i == nr)
		return;
	guard(rcu)();
	table = pmd_at(walk->window.fake.mm, walk->start, &end);
	if (!table)
		return;
	pmd = READ_ONCE(*table);
	if (!pmd_present(pmd) || pmd_leaf(pmd))
		return;
	pte = pte_offset_kernel(&pmd, walk->start);
	for (; i < nr; i++) {
		if (walk->pfns[i])
			continue;
		entry = ptep_get(pte + i);
		if (!pte_none(entry) && hetmem_pte_is_swap(entry))
			walk->pfns[i] = PFN_SWAPPED;
	}
}

/*
 * Whether there are no page tables from walk->start on, at least up to the end of
 * its block. Then the step is as much as has none. mmap_lock keeps the tables above
 * the PTEs of a mapping, as walk_page_range() relies on too, except hugetlb's, which
 * processes share.
 */
static bool walk_gap(struct hetmem_walk *walk, struct vm_area_struct *vma)
{
	const unsigned long end = min3(vma->vm_end, walk->limit, walk->start + HETMEM_MAX_GAP);
	unsigned long at = walk->start, next = at;

	if (!walk->skip_gaps || is_vm_hugetlb_page(vma))
		return false;
	do {
		at = next;
		next = gap_end(vma->vm_mm, at, end);
	} while (next != at && next < end);
	walk->gap = next != walk->start;
	if (walk->gap)
		walk_one_piece(walk, HETMEM_UNKNOWN, next);
	return walk->gap;
}

/* Looks at a step of walk->hm from walk->start on; before walk->limit. */
static int walk_look(struct hetmem_window *window)
{
	struct hetmem_walk *walk = walk_of(window);
	struct mm_struct *mm = window->fake.mm;
	struct vm_area_struct *vma;
	int ret = 0;

	if (mmap_read_lock_killable(mm))
		return -EINTR;
	walk->nr = 0;
	vma = find_vma(mm, walk->start);
	if (!vma || vma->vm_start > walk->start) {
		walk->why = HETMEM_WHY_UNMAPPED;
		walk_one_piece(walk, HETMEM_UNMAPPED, vma ? vma->vm_start : walk->limit);
	} else {
		walk->why = hetmem_vma_why(vma);
		if (vma_is_opaque(vma))
			walk_one_piece(walk, HETMEM_UNKNOWN, vma->vm_end);
		else if (!walk_gap(walk, vma))
			ret = walk_snapshot(walk, vma);
		if (!ret && !walk->nr && walk->tell_swapped && !is_vm_hugetlb_page(vma))
			walk_swapped(walk);
	}
	mmap_read_unlock(mm);
	if (ret || walk->nr)
		return ret;

	guard(spinlock)(&window->lock);
	if (window->fake.invalidate_seq != window->seq)
		return -EBUSY;
	walk_decode(walk);
	return 0;
}

/**
 * hetmem_walk_step - look at the memory from @start on
 * @walk: filled: [@start, walk->end) and its pieces
 * @start: page-aligned
 * @end: page-aligned, above @start; walk->end will not be above it
 *
 * Return: 0, or -EINTR on a fatal signal.
 */
int hetmem_walk_step(struct hetmem_walk *walk, unsigned long start, unsigned long end)
{
	unsigned long block_end = min(end, ALIGN(start + 1, HETMEM_BLOCK_SIZE));
	int ret;

	walk->start = start;
	walk->limit = end;
	walk->why = 0;
	walk->gap = false;
	walk->window.mover = NULL;
	ret = hetmem_look(walk->hm, &walk->window, start, block_end, walk_look);
	if (ret == -EBUSY) {
		hetmem_total_add(moving, 1);
		walk->why |= HETMEM_WHY_MOVING;
		walk_one_piece(walk, HETMEM_UNKNOWN, block_end);
		ret = 0;
	}
	return ret;
}

static int walk_fault(struct hetmem_window *window)
{
	struct hmm_range range = {
		.notifier = &window->fake,
		.notifier_seq = window->seq,
		.start = window->start,
		.end = window->end,
		.hmm_pfns = walk_of(window)->pfns,
		.default_flags = HMM_PFN_REQ_FAULT,
	};
	struct mm_struct *mm = window->fake.mm;
	struct vm_area_struct *vma;
	int ret = 0;

	if (mmap_read_lock_killable(mm))
		return -EINTR;
	vma = vma_lookup(mm, range.start);
	/* It need not be the mapping that was looked at. */
	if (vma && range.end <= vma->vm_end && !(hetmem_vma_why(vma) & HETMEM_WHY_LEAVE) &&
	    !(vma->vm_file && (current->flags & PF_KTHREAD)))
		ret = hmm_range_fault(&range);
	mmap_read_unlock(mm);
	return ret;
}

/**
 * hetmem_walk_fault - fault memory to the host as the CPU would
 * @walk: its pieces stay as they are
 * @start: page-aligned
 * @end: page-aligned, above @start, in the same block
 *
 * Device pages come back because no owner is given: whosever fault handler
 * they belong to moves them, and so spoils the look itself. The next step tells
 * what really happened.
 *
 * Return: 0, also if the memory is not there any more; -EFAULT if one of the
 * pages cannot be faulted, and others may not have been; -EBUSY if the memory
 * kept changing; -EINTR on a fatal signal.
 */
int hetmem_walk_fault(struct hetmem_walk *walk, unsigned long start, unsigned long end)
{
	walk->window.mover = current;
	return hetmem_look(walk->hm, &walk->window, start, end, walk_fault);
}

/**
 * hetmem_walk_pull - bring coherent device memory to the host
 * @walk: of current's memory; its pieces stay as they are
 * @start: page-aligned
 * @end: page-aligned, above @start, in the same block
 *
 * The CPU maps such pages, so it never faults on them. But the core migrates
 * pages of any driver's coherent memory away that are to be pinned for long,
 * which they then are, for a moment.
 *
 * Return: 0, also if some did not move; -EINTR on a fatal signal.
 */
int hetmem_walk_pull(struct hetmem_walk *walk, unsigned long start, unsigned long end)
{
	const unsigned int nofault = current->flags & PF_KTHREAD ? FOLL_NOFAULT : 0;
	struct page **pages = (struct page **)walk->pfns;
	int nr;

	for (; start < end; start += (unsigned long)max(nr, 1) << PAGE_SHIFT) {
		if (fatal_signal_pending(current))
			return -EINTR;
		/* A page that cannot be pinned must not stop its neighbours. */
		nr = pin_user_pages_fast(start, (end - start) >> PAGE_SHIFT,
					 FOLL_LONGTERM | nofault, pages);
		if (nr > 0)
			unpin_user_pages(pages, nr);
		cond_resched();
	}
	memset(walk->pfns, 0, HETMEM_BLOCK_PAGES * sizeof(*walk->pfns));
	return 0;
}
