// SPDX-License-Identifier: GPL-2.0
/*
 * Moving the pages of an address space to the device and to the host. All run
 * with mmap_lock held for reading; see emu.h for the locks.
 *
 * A migration that finds no room moves what fits, lets go of every page, has
 * others evicted and begins anew, in a bounded number of rounds. How many pages
 * need room is known only once they are locked (holes count, what is there
 * already does not), and nothing may be evicted then; so only a full device pays
 * for a second round.
 *
 * A range that is what one PMD maps is asked for COMPOUND: if one huge page is
 * there, or nothing at all, it comes as a single entry, and moves whole or not
 * at all in that round. Where the other side has no 2 MiB in one piece the next
 * round asks for single pages, and the core splits what it finds. To split it
 * late, by giving pages for a huge entry, is left to a CPU fault, whose page
 * cannot be split early: all 512 must be there then.
 */
#include <linux/gfp.h>
#include <linux/highmem.h>
#include <linux/hugetlb.h>
#include <linux/log2.h>
#include <linux/migrate.h>
#include <linux/nodemask.h>
#include <linux/pagemap.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/userfaultfd_k.h>

#include "emu.h"

/* A process that asks for its pages is told of a full host, not killed. */
#define EMU_MOVE_GFP	(GFP_HIGHUSER_MOVABLE | __GFP_RETRY_MAYFAIL | \
			 __GFP_NOWARN)
/* Neighbours of a faulting page, and huge pages where small ones do: a favour. */
#define EMU_AROUND_GFP	(GFP_HIGHUSER_MOVABLE | __GFP_NORETRY | __GFP_NOWARN)

/* Room for a huge page, of a round that moves one or asks for it. */
#define EMU_HUGE_LACKS		(-EAGAIN)

/*
 * Whether the core migrates pages of @vma, and we may.
 *
 * Memory that KSM may merge stays on the host. migrate_vma_setup() unmaps a
 * page where it finds it and maps it again by its reverse mapping; KSM drops
 * a page's reverse mapping when it comes by while the page is unmapped. So
 * the entry of a merged page can be left behind, for good.
 */
bool emu_can_move(struct vm_area_struct *vma)
{
	if (is_vm_hugetlb_page(vma) || vma_is_dax(vma) ||
	    (vma->vm_flags & (VM_SPECIAL | VM_MERGEABLE)) ||
	    userfaultfd_armed(vma))
		return false;
	/* Private mappings of files have anonymous pages too. */
	return vma_is_anonymous(vma) || !(vma->vm_flags & VM_SHARED);
}

/* Makes @range the huge page of the host that it is in, if @vma has it all. */
void emu_widen(const struct vm_area_struct *vma, struct emu_range *range)
{
	unsigned long start = ALIGN_DOWN(range->start, EMU_HUGE_SIZE);
	unsigned long end = start + EMU_HUGE_SIZE;

	if (!emu_makes_huge() || start < vma->vm_start || end > vma->vm_end)
		return;
	range->start = start;
	range->end = end;
}

static struct emu_device *emu_page_device(const struct page *page)
{
	return page ? emu_find_pfn(page_to_pfn(page)) : NULL;
}

/*
 * @other: the device that has @from, or NULL; @from is NULL for zeroes. The @nr
 * pages are of one folio.
 */
static void emu_copy_in(struct emu_device *dev, struct page *to,
			struct emu_device *other, struct page *from,
			unsigned long nr)
{
	void *memory = emu_page_memory(dev, page_to_pfn(to));
	unsigned long i;

	if (!from) {
		memset(memory, 0, nr << PAGE_SHIFT);
		return;
	}
	if (other) {
		memcpy(memory, emu_page_memory(other, page_to_pfn(from)),
		       nr << PAGE_SHIFT);
		return;
	}
	for (i = 0; i < nr; i++)
		memcpy_from_page(memory + (i << PAGE_SHIFT), from + i, 0,
				 PAGE_SIZE);
}

/**
 * emu_host_page - a folio of the host
 * @gfp: how much it may cost
 * @order: 0 or EMU_HUGE_ORDER
 * @vma: whose policy says where, or NULL
 * @addr: where it will be mapped there
 * @nid: node that it must be of, or NUMA_NO_NODE
 *
 * Return: its first page, or NULL.
 */
struct page *emu_host_page(gfp_t gfp, unsigned int order,
			   struct vm_area_struct *vma, unsigned long addr,
			   int nid)
{
#if HETMEM_HUGE
	struct folio *folio;

	if (order) {
		if (!READ_ONCE(emu_huge_host))
			return NULL;
		if (nid != NUMA_NO_NODE)
			folio = __folio_alloc_node(gfp | __GFP_THISNODE, order,
						   nid);
		else if (vma)
			folio = vma_alloc_folio(gfp, order, vma, addr);
		else
			folio = folio_alloc(gfp, order);
		return folio ? folio_page(folio, 0) : NULL;
	}
#endif
	if (nid != NUMA_NO_NODE)
		return alloc_pages_node(nid, gfp | __GFP_THISNODE, 0);
	return vma ? alloc_page_vma(gfp, vma, addr) : alloc_page(gfp);
}

/*
 * Fills the @nr pages from @to on, of one fresh folio, with those of the device
 * from @pfn on, and locks it.
 */
void emu_copy_to_host(const struct emu_device *dev, struct page *to,
		      unsigned long pfn, unsigned long nr)
{
	unsigned long i;

	lock_page(to);
	for (i = 0; i < nr; i++)
		memcpy_to_page(to + i, 0, emu_page_memory(dev, pfn + i),
			       PAGE_SIZE);
}

/*
 * What to do with a collected entry: memory that was never touched, anonymous
 * pages of the host, and pages of our other devices can come; the core gives
 * device pages to nothing else. Pages that were merged since somebody looked
 * for that cannot: KSM reads them.
 */
static bool emu_wanted(struct emu_device *dev, unsigned long src)
{
	struct page *page = migrate_pfn_to_page(src);

	if (!(src & MIGRATE_PFN_MIGRATE))
		return false;
	if (!page)
		return true;
	return PageAnon(page) && !folio_test_ksm(page_folio(page)) &&
	       !emu_has_pfn(dev, page_to_pfn(page));
}

/* Memory that was never touched becomes huge only where that was asked for. */
static bool emu_wants_huge(const struct migrate_vma *args)
{
	return migrate_pfn_to_page(args->src[0]) ||
	       (args->vma->vm_flags & VM_HUGEPAGE);
}

/* The device page that entry @i goes to, from what is reserved, or NULL. */
static struct page *emu_in_alloc(struct emu_device *dev,
				 const struct migrate_vma *args,
				 unsigned long i, unsigned long *room)
{
	unsigned long nr = emu_entry_pages(args->src[i]);
	struct page *page;

	if (*room < nr)
		return NULL;
	page = nr > 1 ? emu_alloc_huge(dev) : emu_alloc(dev);
	if (page)
		*room -= nr;
	return page;
}

/*
 * One round: moves what is not on the device yet as far as @room, which is
 * reserved, goes; uses up @room. Return: how many pages lacked room;
 * EMU_HUGE_LACKS if it should be asked for single pages; or a negative errno.
 */
static long emu_move_in_round(struct emu_device *dev, struct migrate_vma *args,
			      unsigned long *room)
{
	struct emu_report report = { .dev = dev, .dir = HETMEM_TO_DEVICE };
	struct mm_struct *mm = args->vma->vm_mm;
	unsigned long i, addr, nr, moved = 0, huge = 0;
	struct page *page, *from;
	long missed = 0;
	int ret;

	emu_count(dev, EMU_TO_DEVICE_ROUNDS, 1);
	ret = migrate_vma_setup(args);
	if (ret)
		return ret;

	for (i = 0; i < args->npages; i += nr) {
		nr = emu_entry_pages(args->src[i]);
		if (!emu_wanted(dev, args->src[i]))
			continue;
		page = NULL;
		if (nr == 1 || emu_wants_huge(args))
			page = emu_in_alloc(dev, args, i, room);
		if (!page) {
			/* Its room is there, in pieces, or it has no need. */
			if (nr > 1 && (*room >= nr || !emu_wants_huge(args)))
				missed = EMU_HUGE_LACKS;
			else
				missed += nr;
			continue;
		}
		from = migrate_pfn_to_page(args->src[i]);
		emu_copy_in(dev, page, emu_page_device(from), from, nr);
		args->dst[i] = migrate_pfn(page_to_pfn(page)) |
			       (args->src[i] & (HETMEM_PFN_COMPOUND |
						MIGRATE_PFN_WRITE));
	}
	migrate_vma_pages(args);
	for (i = 0; i < args->npages; i += nr) {
		nr = emu_entry_pages(args->src[i]);
		if (!args->dst[i] || !(args->src[i] & MIGRATE_PFN_MIGRATE))
			continue;
		from = migrate_pfn_to_page(args->src[i]);
		if (emu_page_device(from))
			emu_left(emu_page_device(from), page_to_pfn(from));
		addr = args->start + (i << PAGE_SHIFT);
		emu_arrived(dev, migrate_pfn_to_page(args->dst[i]), mm, addr);
		emu_report_add(&report, mm, addr, nr);
		moved += nr;
		huge += nr > 1;
	}
	migrate_vma_finalize(args);
	emu_report_flush(&report);
	emu_count(dev, EMU_TO_DEVICE, moved);
	emu_count(dev, EMU_HUGE_TO_DEVICE, huge);
	return missed;
}

/**
 * emu_move_in - move pages to the device
 * @dev: device
 * @vma: one that emu_can_move() accepts
 * @start: page-aligned
 * @end: page-aligned, at most HETMEM_DEVICE_SPAN behind, inside @vma
 *
 * Return: 0, also if some pages could not move; -ENOSPC if there was no room for
 * some, or others took it EMU_MOVE_ROUNDS times; -ENOMEM; -EINTR on a fatal
 * signal; or what migrate_vma_setup() says.
 */
int emu_move_in(struct emu_device *dev, struct vm_area_struct *vma,
		unsigned long start, unsigned long end)
{
	struct emu_range spare = {
		.mm = vma->vm_mm, .start = start, .end = end,
	};
	struct migrate_vma args = {
		.vma = vma,
		.pgmap_owner = &emu_owner,
		/*
		 * Pages of our other devices come without a detour. With one
		 * device that would collect only what is here already.
		 */
		.flags = MIGRATE_VMA_SELECT_SYSTEM |
			 (emu_nr_devices > 1 ?
			  MIGRATE_VMA_SELECT_DEVICE_PRIVATE : 0),
	};
	unsigned long nr = (end - start) >> PAGE_SHIFT;
	unsigned long room, made, *pfns;
	unsigned int rounds = 0;
	long ret;

	pfns = kvmalloc_array(2 * nr, sizeof(*pfns), GFP_KERNEL);
	if (!pfns)
		return -ENOMEM;
	args.src = pfns;
	args.dst = pfns + nr;

	if (emu_makes_huge() && emu_is_huge_block(start, end))
		args.flags |= HETMEM_SELECT_COMPOUND;
	room = emu_reserve(dev, nr);
	for (;;) {
		args.start = start;
		args.end = end;
		ret = emu_move_in_round(dev, &args, &room);
		if (ret == EMU_HUGE_LACKS) {
			args.flags &= ~HETMEM_SELECT_COMPOUND;
			continue;
		}
		if (ret <= 0)
			break;
		if (fatal_signal_pending(current)) {
			ret = -EINTR;
			break;
		}
		made = emu_make_room(dev, ret - room, &spare);
		room += made;
		if (made && ++rounds < EMU_MOVE_ROUNDS)
			continue;
		if (!room || !(args.flags & HETMEM_SELECT_COMPOUND)) {
			ret = -ENOSPC;
			break;
		}
		/* Less than a huge page needs: what there is, for single ones. */
		args.flags &= ~HETMEM_SELECT_COMPOUND;
	}
	emu_unreserve(dev, room);
	kvfree(pfns);
	return ret;
}

static struct page *emu_out_alloc(const struct emu_out *out,
				  unsigned long addr, unsigned int order)
{
	struct vm_area_struct *vma = out->args.vma;
	gfp_t gfp = EMU_MOVE_GFP;

	if (order)
		gfp = EMU_AROUND_GFP;
	else if (out->args.fault_page)
		gfp = addr == out->fault_addr ? GFP_HIGHUSER_MOVABLE :
						EMU_AROUND_GFP;
	return emu_host_page(gfp, order, vma, addr, out->nid);
}

/* One entry of the device's that can move gets a copy. Return: 0, -ENOMEM. */
static int emu_out_copy(struct emu_out *out, unsigned long i)
{
	struct migrate_vma *args = &out->args;
	unsigned long pfn = page_to_pfn(migrate_pfn_to_page(args->src[i]));
	unsigned long nr = emu_entry_pages(args->src[i]);
	struct page *to;

	to = emu_out_alloc(out, args->start + (i << PAGE_SHIFT),
			   nr > 1 ? EMU_HUGE_ORDER : 0);
	if (!to)
		return -ENOMEM;
	emu_copy_to_host(out->dev, to, pfn, nr);
	args->dst[i] = migrate_pfn(page_to_pfn(to)) |
		       (args->src[i] & (HETMEM_PFN_COMPOUND |
					MIGRATE_PFN_WRITE));
	return 0;
}

/*
 * For a huge page that a CPU waits for the host has no 2 MiB in one piece: its
 * copy are 512 pages, and the core splits it. Return: 0, or -ENOMEM with none.
 */
static int emu_out_copy_split(struct emu_out *out)
{
	struct migrate_vma *args = &out->args;
	unsigned long pfn = page_to_pfn(migrate_pfn_to_page(args->src[0]));
	struct page *to;
	unsigned long i;

	for (i = 0; i < EMU_HUGE; i++) {
		to = emu_host_page(EMU_MOVE_GFP, 0, args->vma,
				   args->start + (i << PAGE_SHIFT), out->nid);
		if (!to)
			goto err_free;
		emu_copy_to_host(out->dev, to, pfn + i, 1);
		args->dst[i] = migrate_pfn(page_to_pfn(to)) |
			       (args->src[0] & MIGRATE_PFN_WRITE);
		cond_resched();
	}
	return 0;

err_free:
	while (i--) {
		to = migrate_pfn_to_page(args->dst[i]);
		args->dst[i] = 0;
		unlock_page(to);
		put_page(to);
	}
	return -ENOMEM;
}

/*
 * Return: 0; EMU_HUGE_LACKS if it should be asked for single pages; -ENOMEM if
 * there was no memory for a page that was asked for (of a fault's pages only
 * one is); or what migrate_vma_setup() says.
 */
int emu_move_out_range(struct emu_out *out)
{
	struct emu_report report = { .dev = out->dev, .dir = HETMEM_TO_HOST };
	struct migrate_vma *args = &out->args;
	unsigned long i, addr, nr, moved = 0, huge = 0;
	struct page *from;
	int ret;

	ret = migrate_vma_setup(args);
	if (ret)
		return ret;

	for (i = 0; i < args->npages; i += nr) {
		nr = emu_entry_pages(args->src[i]);
		from = migrate_pfn_to_page(args->src[i]);
		if (!from || !(args->src[i] & MIGRATE_PFN_MIGRATE))
			continue;
		/* The owner is the same for all our devices. */
		if (!emu_has_pfn(out->dev, page_to_pfn(from)))
			continue;
		if (!emu_out_copy(out, i))
			continue;
		addr = args->start + (i << PAGE_SHIFT);
		if (nr > 1)
			ret = args->fault_page ? emu_out_copy_split(out) :
						 EMU_HUGE_LACKS;
		else if (!args->fault_page || addr == out->fault_addr)
			ret = -ENOMEM;
	}
	migrate_vma_pages(args);
	for (i = 0; i < args->npages; i += nr) {
		nr = emu_entry_pages(args->src[i]);
		if (!args->dst[i] || !(args->src[i] & MIGRATE_PFN_MIGRATE))
			continue;
		from = migrate_pfn_to_page(args->src[i]);
		emu_left(out->dev, page_to_pfn(from));
		addr = args->start + (i << PAGE_SHIFT);
		emu_report_add(&report, args->vma->vm_mm, addr, nr);
		moved += nr;
		huge += nr > 1;
	}
	migrate_vma_finalize(args);
	emu_report_flush(&report);
	out->moved += moved;
	emu_count(out->dev, EMU_TO_HOST, moved);
	emu_count(out->dev, EMU_HUGE_TO_HOST, huge);
	return ret;
}

static int emu_move_out_alloc(struct emu_out *out)
{
	unsigned long nr = (out->args.end - out->args.start) >> PAGE_SHIFT;
	unsigned long *pfns;
	int ret;

	pfns = kvmalloc_array(2 * nr, sizeof(*pfns), GFP_KERNEL);
	if (!pfns)
		return -ENOMEM;
	out->args.src = pfns;
	out->args.dst = pfns + nr;
	ret = emu_move_out_range(out);
	kvfree(pfns);
	return ret;
}

/**
 * emu_move_out - move the device's pages to the host
 * @dev: device; pages of others stay
 * @vma: neither hugetlb nor special nor DAX
 * @start: page-aligned
 * @end: page-aligned, at most HETMEM_DEVICE_SPAN behind, inside @vma
 * @nid: node, or NUMA_NO_NODE
 *
 * Return: 0, also if some pages could not move; -ENOMEM if the host, or its
 * node @nid, had no memory for some; -EINVAL no such node.
 */
int emu_move_out(struct emu_device *dev, struct vm_area_struct *vma,
		 unsigned long start, unsigned long end, int nid)
{
	struct emu_out out = {
		.dev = dev,
		.args = {
			.vma = vma,
			.start = start,
			.end = end,
			.pgmap_owner = &emu_owner,
			.flags = MIGRATE_VMA_SELECT_DEVICE_PRIVATE,
		},
		.nid = nid,
	};
	int ret;

	if (nid != NUMA_NO_NODE &&
	    (nid < 0 || nid >= MAX_NUMNODES || !node_state(nid, N_MEMORY)))
		return -EINVAL;

	if (emu_is_huge_block(start, end))
		out.args.flags |= HETMEM_SELECT_COMPOUND;
	ret = emu_move_out_alloc(&out);
	if (ret == EMU_HUGE_LACKS) {
		out.args.flags &= ~HETMEM_SELECT_COMPOUND;
		ret = emu_move_out_alloc(&out);
	}
	return ret;
}

/*
 * Moves the huge page at @addr, as far as it is in @vma, to the host in pieces:
 * the core splits it as it is not asked for it whole. Return: how many pages
 * went.
 */
unsigned long emu_move_out_split(struct emu_device *dev,
				 struct vm_area_struct *vma,
				 unsigned long addr, bool *no_memory)
{
	struct emu_out out = {
		.dev = dev,
		.args = {
			.vma = vma,
			.start = max(addr, vma->vm_start),
			.end = min(addr + EMU_HUGE_SIZE, vma->vm_end),
			.pgmap_owner = &emu_owner,
			.flags = MIGRATE_VMA_SELECT_DEVICE_PRIVATE,
		},
		.nid = NUMA_NO_NODE,
	};

	if (emu_move_out_alloc(&out) == -ENOMEM)
		*no_memory = true;
	return out.moved;
}
