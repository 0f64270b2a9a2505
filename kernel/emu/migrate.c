// SPDX-License-Identifier: GPL-2.0
/*
 * Moving the pages of an address space: to the device, to the host, and back
 * to the CPU that faulted. All run with mmap_lock held for reading; see emu.h
 * for the locks.
 *
 * A migration that finds no room moves what fits, lets go of every page, has
 * others evicted and goes on. How many pages need room is known only once
 * they are locked (holes count, what is there already does not), and nothing
 * may be evicted then; so only a full device pays for a second round.
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

/* The device page of a CPU fault is one of so many without an allocation. */
#define EMU_FAULT_STACK		16

/* A process that asks for its pages is told of a full host, not killed. */
#define EMU_MOVE_GFP	(GFP_HIGHUSER_MOVABLE | __GFP_RETRY_MAYFAIL | \
			 __GFP_NOWARN)
/* Neighbours of a faulting page are a favour. */
#define EMU_AROUND_GFP	(GFP_HIGHUSER_MOVABLE | __GFP_NORETRY | __GFP_NOWARN)

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

static struct emu_device *emu_page_device(const struct page *page)
{
	return page ? emu_find_pfn(page_to_pfn(page)) : NULL;
}

/* @other: the device that has @from, or NULL; @from is NULL for zeroes. */
static void emu_copy_in(struct emu_device *dev, struct page *to,
			struct emu_device *other, struct page *from)
{
	void *memory = emu_page_memory(dev, page_to_pfn(to));

	if (!from) {
		memset(memory, 0, PAGE_SIZE);
		return;
	}
	if (other)
		memcpy(memory, emu_page_memory(other, page_to_pfn(from)),
		       PAGE_SIZE);
	else
		memcpy_from_page(memory, from, 0, PAGE_SIZE);
}

/*
 * What to do with a collected entry: memory that was never touched, anonymous
 * pages of the host, and pages of our other devices can come; the core gives
 * device pages to nothing else.
 */
static bool emu_wanted(struct emu_device *dev, unsigned long src)
{
	struct page *page = migrate_pfn_to_page(src);

	if (!(src & MIGRATE_PFN_MIGRATE))
		return false;
	if (!page)
		return true;
	return PageAnon(page) && !emu_has_pfn(dev, page_to_pfn(page));
}

/*
 * One round: moves what is not on the device yet as far as @room, which is
 * reserved, goes; uses up @room. Return: how many pages lacked room, or a
 * negative errno.
 */
static long emu_move_in_round(struct emu_device *dev, struct migrate_vma *args,
			      unsigned long *room)
{
	struct emu_report report = { .dev = dev, .dir = HETMEM_TO_DEVICE };
	struct mm_struct *mm = args->vma->vm_mm;
	unsigned long i, addr, moved = 0;
	struct page *page, *from;
	long missed = 0;
	int ret;

	ret = migrate_vma_setup(args);
	if (ret)
		return ret;

	for (i = 0; i < args->npages; i++) {
		if (!emu_wanted(dev, args->src[i]))
			continue;
		if (!*room) {
			missed++;
			continue;
		}
		page = emu_alloc(dev);
		--*room;
		from = migrate_pfn_to_page(args->src[i]);
		emu_copy_in(dev, page, emu_page_device(from), from);
		args->dst[i] = migrate_pfn(page_to_pfn(page));
		if (args->src[i] & MIGRATE_PFN_WRITE)
			args->dst[i] |= MIGRATE_PFN_WRITE;
	}
	migrate_vma_pages(args);
	for (i = 0; i < args->npages; i++) {
		if (!args->dst[i] || !(args->src[i] & MIGRATE_PFN_MIGRATE))
			continue;
		from = migrate_pfn_to_page(args->src[i]);
		if (emu_page_device(from))
			emu_left(emu_page_device(from), page_to_pfn(from));
		addr = args->start + (i << PAGE_SHIFT);
		emu_arrived(dev, migrate_pfn_to_page(args->dst[i]), mm, addr);
		emu_report_add(&report, mm, addr);
		moved++;
	}
	migrate_vma_finalize(args);
	emu_report_flush(&report);
	emu_count(dev, EMU_TO_DEVICE, moved);
	return missed;
}

/**
 * emu_move_in - move pages to the device
 * @dev: device
 * @vma: one that emu_can_move() accepts
 * @start: page-aligned
 * @end: page-aligned, at most EMU_BATCH pages behind, inside @vma
 *
 * Return: 0, also if some pages could not move; -ENOSPC if there was no room
 * for some, -ENOMEM, -EINTR on a fatal signal, or what migrate_vma_setup()
 * says.
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
	unsigned long room, *pfns;
	unsigned int round = 0;
	long ret;

	pfns = kvmalloc_array(2 * nr, sizeof(*pfns), GFP_KERNEL);
	if (!pfns)
		return -ENOMEM;
	args.src = pfns;
	args.dst = pfns + nr;

	room = emu_reserve(dev, nr);
	for (;;) {
		args.start = start;
		args.end = end;
		ret = emu_move_in_round(dev, &args, &room);
		if (ret <= 0)
			break;
		if (fatal_signal_pending(current)) {
			ret = -EINTR;
			break;
		}
		if (++round == EMU_MOVE_ROUNDS) {
			ret = -ENOSPC;
			break;
		}
		room = emu_make_room(dev, ret, &spare);
		if (!room) {
			ret = -ENOSPC;
			break;
		}
	}
	emu_unreserve(dev, room);
	kvfree(pfns);
	return ret;
}

/**
 * struct emu_out - moving pages to the host
 * @dev: whose pages
 * @args: of migrate_vma_setup()
 * @nid: node, or NUMA_NO_NODE for what the process's policy says
 * @fault_addr: of the page that a CPU waits for, if args.fault_page is set
 */
struct emu_out {
	struct emu_device *dev;
	struct migrate_vma args;
	int nid;
	unsigned long fault_addr;
};

static struct page *emu_out_alloc(const struct emu_out *out,
				  unsigned long addr)
{
	struct vm_area_struct *vma = out->args.vma;

	if (out->nid != NUMA_NO_NODE)
		return alloc_pages_node(out->nid, EMU_MOVE_GFP | __GFP_THISNODE,
					0);
	if (!out->args.fault_page)
		return alloc_page_vma(EMU_MOVE_GFP, vma, addr);
	if (addr == out->fault_addr)
		return alloc_page_vma(GFP_HIGHUSER_MOVABLE, vma, addr);
	return alloc_page_vma(EMU_AROUND_GFP, vma, addr);
}

/*
 * Return: 0, -ENOMEM if there was no memory for a page that was asked for
 * (of a fault's pages only one is), or what migrate_vma_setup() says.
 */
static int emu_move_out_range(struct emu_out *out)
{
	struct emu_report report = { .dev = out->dev, .dir = HETMEM_TO_HOST };
	struct migrate_vma *args = &out->args;
	unsigned long i, addr, moved = 0;
	struct page *from, *to;
	int ret;

	ret = migrate_vma_setup(args);
	if (ret)
		return ret;

	for (i = 0; i < args->npages; i++) {
		from = migrate_pfn_to_page(args->src[i]);
		if (!from || !(args->src[i] & MIGRATE_PFN_MIGRATE))
			continue;
		/* The owner is the same for all our devices. */
		if (!emu_has_pfn(out->dev, page_to_pfn(from)))
			continue;
		addr = args->start + (i << PAGE_SHIFT);
		to = emu_out_alloc(out, addr);
		if (!to) {
			if (!args->fault_page || addr == out->fault_addr)
				ret = -ENOMEM;
			continue;
		}
		lock_page(to);
		memcpy_to_page(to, 0, emu_page_memory(out->dev,
						      page_to_pfn(from)),
			       PAGE_SIZE);
		args->dst[i] = migrate_pfn(page_to_pfn(to));
		if (args->src[i] & MIGRATE_PFN_WRITE)
			args->dst[i] |= MIGRATE_PFN_WRITE;
	}
	migrate_vma_pages(args);
	for (i = 0; i < args->npages; i++) {
		if (!args->dst[i] || !(args->src[i] & MIGRATE_PFN_MIGRATE))
			continue;
		from = migrate_pfn_to_page(args->src[i]);
		emu_left(out->dev, page_to_pfn(from));
		emu_report_add(&report, args->vma->vm_mm,
			       args->start + (i << PAGE_SHIFT));
		moved++;
	}
	migrate_vma_finalize(args);
	emu_report_flush(&report);
	emu_count(out->dev, EMU_TO_HOST, moved);
	return ret;
}

/**
 * emu_move_out - move the device's pages to the host
 * @dev: device; pages of others stay
 * @vma: neither hugetlb nor special nor DAX
 * @start: page-aligned
 * @end: page-aligned, at most EMU_BATCH pages behind, inside @vma
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
	unsigned long nr = (end - start) >> PAGE_SHIFT;
	unsigned long *pfns;
	int ret;

	if (nid != NUMA_NO_NODE &&
	    (nid < 0 || nid >= MAX_NUMNODES || !node_state(nid, N_MEMORY)))
		return -EINVAL;

	pfns = kvmalloc_array(2 * nr, sizeof(*pfns), GFP_KERNEL);
	if (!pfns)
		return -ENOMEM;
	out.args.src = pfns;
	out.args.dst = pfns + nr;
	ret = emu_move_out_range(&out);
	kvfree(pfns);
	return ret;
}

/* The pages that come back with the one at @addr. */
static void emu_fault_window(struct emu_out *out, unsigned long addr,
			     unsigned long nr_pages)
{
	struct vm_area_struct *vma = out->args.vma;
	unsigned long size = nr_pages << PAGE_SHIFT;
	unsigned long start = ALIGN_DOWN(addr, size);

	out->args.start = max(start, vma->vm_start);
	out->args.end = min(start + size, vma->vm_end);
}

/*
 * A CPU touched a page of the device. The core holds a reference to it, and
 * newer ones its lock; migrate_vma_*() knows, by fault_page.
 *
 * Where it is not locked, several CPUs can come here with one page, and each
 * one's reference keeps the others from moving it: the first one works, the
 * others let go and fault again.
 *
 * Not bringing a page that is busy is no failure, for the CPU comes again.
 */
vm_fault_t emu_migrate_to_ram(struct vm_fault *vmf)
{
	struct emu_device *dev = vmf->page->zone_device_data;
	unsigned long i = emu_page_index(dev, vmf->page);
	unsigned long window = emu_fault_around;
	unsigned long stack[2 * EMU_FAULT_STACK];
	unsigned long *pfns = NULL;
	struct emu_out out = {
		.dev = dev,
		.args = {
			.vma = vmf->vma,
			.pgmap_owner = &emu_owner,
			.fault_page = vmf->page,
			.flags = MIGRATE_VMA_SELECT_DEVICE_PRIVATE,
		},
		.nid = NUMA_NO_NODE,
		.fault_addr = vmf->address & PAGE_MASK,
	};
	int ret;

	if (test_and_set_bit_lock(i, dev->faulting)) {
		cond_resched();
		return 0;
	}
	emu_count(dev, EMU_CPU_FAULTS, 1);

	if (window > EMU_FAULT_STACK)
		pfns = kmalloc_array(2 * window, sizeof(*pfns),
				     GFP_KERNEL | __GFP_NORETRY |
				     __GFP_NOWARN);
	if (!pfns) {
		window = min_t(unsigned long, window, EMU_FAULT_STACK);
		out.args.src = stack;
		out.args.dst = stack + EMU_FAULT_STACK;
	} else {
		out.args.src = pfns;
		out.args.dst = pfns + window;
	}
	emu_fault_window(&out, out.fault_addr, window);
	ret = emu_move_out_range(&out);
	kfree(pfns);
	clear_bit_unlock(i, dev->faulting);

	if (!ret)
		return 0;
	emu_count(dev, EMU_CPU_FAULT_FAILURES, 1);
	return ret == -ENOMEM ? VM_FAULT_OOM : VM_FAULT_SIGBUS;
}
