// SPDX-License-Identifier: GPL-2.0
/*
 * Where pages really are: hmm_range_fault() snapshots, decoded.
 *
 * Design. A range is walked in steps. A step lies inside one VMA and one
 * block of 2 MiB, or is a whole hole between VMAs, or a whole VMA that
 * cannot be looked into. The caller's buffer is filled between steps, when
 * nothing is locked, so one call can cover any amount of memory with the two
 * pages of kernel memory that a step needs.
 *
 * Rules of a step, which hetmem_walk_try() follows from top to bottom:
 *  1. mmu_interval_read_begin(), which can sleep, before any lock.
 *  2. mmap_lock for reading across the look at the VMA and
 *     hmm_range_fault(); walk->lock is not held there.
 *  3. mmap_lock dropped, walk->lock taken, mmu_interval_read_retry()
 *     checked. While walk->lock is held no callback for this range can
 *     finish, so the pages of the snapshot cannot go away: this is the only
 *     place where a PFN becomes a struct page.
 *  4. Under walk->lock PFNs are replaced, in place, by pieces that carry a
 *     numbered location. No page and no pgmap is looked at afterwards.
 * The device registry's SRCU is held around 2 to 4, so that a registered
 * pgmap that was compared is still the registered one.
 *
 * The notifier covers the step at work only and is inserted for it: inserting
 * and removing is a spinlock and a tree operation, and an allocation-heavy
 * neighbour thread cannot make us retry. Retrying is bounded all the same.
 *
 * A page table entry that is no page (never touched, swapped, a device page
 * of an owner we do not pass) reads as 0: HETMEM_UNKNOWN. An entry with a PFN
 * that is not VALID is waiting for a NUMA hinting fault: on the host.
 */
#include <linux/hmm.h>
#include <linux/hugetlb.h>
#include <linux/jiffies.h>
#include <linux/magic.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
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
	walk->pfns = kmalloc(bytes, GFP_KERNEL_ACCOUNT);
	walk->more = kmalloc(bytes, GFP_KERNEL_ACCOUNT);
	if (!walk->pfns || !walk->more) {
		hetmem_walk_exit(walk);
		return -ENOMEM;
	}
	return 0;
}

void hetmem_walk_exit(struct hetmem_walk *walk)
{
	kfree(walk->pfns);
	kfree(walk->more);
}

/* What the mapping tells about why its pages stay on the host. */
u32 hetmem_vma_why(struct vm_area_struct *vma)
{
	u32 why = 0;

	/* hugetlb mappings are VM_SPECIAL as well: they may not expand. */
	if (is_vm_hugetlb_page(vma))
		why |= HETMEM_WHY_HUGETLB;
	else if ((vma->vm_flags & VM_SPECIAL) || vma_is_dax(vma))
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
	walk->nr = 1;
}

/* Fills walk->pfns; mmap_lock is held for reading. */
static int hetmem_walk_snapshot(struct hetmem_walk *walk, unsigned long seq)
{
	unsigned long i, nr = (walk->end - walk->start) >> PAGE_SHIFT;
	void *owners[HETMEM_MAX_DEVICES];
	unsigned int nr_owners, o;
	struct hmm_range range = {
		.notifier = &walk->notifier,
		.notifier_seq = seq,
		.start = walk->start,
		.end = walk->end,
		.hmm_pfns = walk->pfns,
	};
	int ret;

	nr_owners = hetmem_device_owners(owners);
	if (nr_owners)
		range.dev_private_owner = owners[0];
	/* Some flags of an entry are input as well. */
	memset(walk->pfns, 0, nr * sizeof(*walk->pfns));
	ret = hmm_range_fault(&range);

	/* An owner's device pages are seen only by a walk with that owner. */
	range.hmm_pfns = walk->more;
	for (o = 1; o < nr_owners && !ret; o++) {
		range.dev_private_owner = owners[o];
		memset(walk->more, 0, nr * sizeof(*walk->more));
		ret = hmm_range_fault(&range);
		for (i = 0; i < nr && !ret; i++) {
			if (!(walk->pfns[i] & HMM_PFN_VALID) &&
			    (walk->more[i] & HMM_PFN_VALID))
				walk->pfns[i] = walk->more[i];
		}
	}
	return ret;
}

static u32 hetmem_pfn_location(unsigned long pfn)
{
	const struct page *page;

	if (!pfn || (pfn & HMM_PFN_ERROR))
		return HETMEM_LOC(HETMEM_UNKNOWN, 0);
	page = hmm_pfn_to_page(pfn);
	if (unlikely(is_zone_device_page(page)))
		return hetmem_device_location(page);
	return HETMEM_LOC(HETMEM_HOST, page_to_nid(page));
}

/*
 * Replaces the PFNs of a step by pieces, in place: a piece is never longer
 * than a PFN and there are never more of them than PFNs read so far. An
 * entry that maps many pages is looked at once. walk->lock is held and the
 * snapshot is good.
 */
static void hetmem_walk_decode(struct hetmem_walk *walk)
{
	unsigned long i, step, nr = (walk->end - walk->start) >> PAGE_SHIFT;
	unsigned long first = walk->start >> PAGE_SHIFT;
	struct hetmem_piece *last = NULL;
	unsigned long previous = 0;

	walk->nr = 0;
	for (i = 0; i < nr; i += step) {
		unsigned long pfn = walk->pfns[i];
		unsigned int order = 0;
		u32 location;

		step = 1;
		if (pfn & HMM_PFN_VALID) {
			order = hmm_pfn_to_map_order(pfn);
			step = (1UL << order) -
			       ((first + i) & ((1UL << order) - 1));
			step = min(step, nr - i);
		} else if (last && pfn == previous) {
			last->nr_pages++;
			continue;
		}
		previous = pfn;

		location = hetmem_pfn_location(pfn);
		if (last && last->location == location &&
		    last->order == order) {
			last->nr_pages += step;
			continue;
		}
		last = &walk->pieces[walk->nr++];
		last->location = location;
		last->order = order;
		last->nr_pages = step;
	}
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
		if (vma && end <= vma->vm_end && !hetmem_vma_is_opaque(vma) &&
		    !userfaultfd_armed(vma)) {
			memset(walk->more, 0, ((end - start) >> PAGE_SHIFT) *
			       sizeof(*walk->more));
			ret = hmm_range_fault(&range);
		}
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

/**
 * struct hetmem_report - a RESIDENCY command at work
 * @cmd: the command
 * @run: the run that grows; not yet in the caller's array
 * @have_run: there is one
 * @pages: in finished runs
 * @nr_totals: locations seen
 * @totals: pages seen there
 */
struct hetmem_report {
	struct hetmem_cmd_residency *cmd;
	struct hetmem_run run;
	bool have_run;
	u64 pages;
	unsigned int nr_totals;
	struct hetmem_total totals[HETMEM_MAX_TOTALS];
};

static int hetmem_report_total(struct hetmem_report *report, u32 location,
			       u64 nr_pages)
{
	unsigned int i;

	if (!report->cmd->nr_totals)
		return 0;
	for (i = 0; i < report->nr_totals; i++) {
		if (report->totals[i].location == location)
			goto found;
	}
	if (i == report->cmd->nr_totals)
		return -ENOSPC;
	report->totals[i].location = location;
	report->nr_totals++;
found:
	report->totals[i].pages += nr_pages;
	return 0;
}

/* Hands the finished run to the caller. */
static int hetmem_report_flush(struct hetmem_report *report)
{
	struct hetmem_run __user *runs = u64_to_user_ptr(report->cmd->runs);

	if (!report->have_run)
		return 0;
	if (copy_to_user(&runs[report->cmd->filled_runs], &report->run,
			 sizeof(report->run)))
		return -EFAULT;
	report->cmd->filled_runs++;
	report->pages += (report->run.end - report->run.start) >> PAGE_SHIFT;
	report->have_run = false;
	return 0;
}

/*
 * Adds [start, end) of one piece to the runs. Return: how far the caller's
 * limits allow it, @start if not at all; or a negative errno.
 */
static long hetmem_report_run(struct hetmem_report *report,
			      unsigned long start, unsigned long end,
			      const struct hetmem_piece *piece, u32 why)
{
	struct hetmem_cmd_residency *cmd = report->cmd;
	u32 kind = HETMEM_LOC_KIND(piece->location);
	struct hetmem_run *run = &report->run;
	int ret;

	if (!cmd->nr_runs || (cmd->kinds && !(cmd->kinds & (1U << kind))))
		return end;

	if (kind == HETMEM_DEVICE || kind == HETMEM_FOREIGN)
		why = 0;
	else if (kind == HETMEM_UNKNOWN && !why)
		why = HETMEM_WHY_UNKNOWN_OWNER;

	if (!report->have_run || run->end != start ||
	    run->location != piece->location || run->order != piece->order ||
	    run->why != why) {
		ret = hetmem_report_flush(report);
		if (ret)
			return ret;
		if (cmd->filled_runs == cmd->nr_runs ||
		    (cmd->max_pages && report->pages >= cmd->max_pages))
			return start;
		*run = (struct hetmem_run) {
			.start = start,
			.end = start,
			.location = piece->location,
			.order = piece->order,
			.why = why,
		};
		report->have_run = true;
	}

	if (cmd->max_pages) {
		u64 room = cmd->max_pages - report->pages -
			   ((run->end - run->start) >> PAGE_SHIFT);

		if ((end - start) >> PAGE_SHIFT > room)
			end = start + (room << PAGE_SHIFT);
	}
	run->end = end;
	return end;
}

/* Reports what the last step found. Return: 0, 1 to stop, or an errno. */
static int hetmem_report_step(struct hetmem_report *report,
			      const struct hetmem_walk *walk)
{
	unsigned long start = walk->start, end;
	unsigned int i;
	long reached;
	int ret;

	for (i = 0; i < walk->nr; i++) {
		end = hetmem_piece_end(walk, i, start);
		reached = hetmem_report_run(report, start, end,
					    &walk->pieces[i], walk->why);
		if (reached < 0)
			return reached;
		if (reached != start) {
			ret = hetmem_report_total(report,
						  walk->pieces[i].location,
						  (reached - start) >>
						  PAGE_SHIFT);
			if (ret)
				return ret;
		}
		report->cmd->walk_end = reached;
		if (reached != end)
			return 1;
		start = end;
	}
	return 0;
}

static int hetmem_report_finish(struct hetmem_report *report)
{
	struct hetmem_cmd_residency *cmd = report->cmd;
	int ret;

	ret = hetmem_report_flush(report);
	if (ret)
		return ret;
	if (copy_to_user(u64_to_user_ptr(cmd->totals), report->totals,
			 report->nr_totals * sizeof(report->totals[0])))
		return -EFAULT;
	cmd->filled_totals = report->nr_totals;
	return 0;
}

/**
 * hetmem_residency - HETMEM_IOC_RESIDENCY
 * @mm: whose memory; the caller holds a reference to its users
 * @cmd: validated
 * @partial: set if @cmd goes back to the caller in spite of an error
 */
int hetmem_residency(struct mm_struct *mm, struct hetmem_cmd_residency *cmd,
		     bool *partial)
{
	struct hetmem_report *report;
	struct hetmem_walk walk;
	int ret, err;

	report = kzalloc(sizeof(*report), GFP_KERNEL_ACCOUNT);
	if (!report)
		return -ENOMEM;
	ret = hetmem_walk_init(&walk, mm);
	if (ret)
		goto out;

	report->cmd = cmd;
	cmd->walk_end = cmd->start;
	cmd->filled_runs = 0;
	cmd->filled_totals = 0;
	while (cmd->walk_end < cmd->end) {
		ret = hetmem_walk_step(&walk, cmd->walk_end, cmd->end);
		if (ret)
			break;
		ret = hetmem_report_step(report, &walk);
		if (ret)
			break;
		if (fatal_signal_pending(current)) {
			ret = -EINTR;
			break;
		}
		cond_resched();
	}

	if (ret >= 0 || ret == -EBUSY || ret == -EINTR) {
		*partial = ret < 0;
		err = hetmem_report_finish(report);
		if (err)
			ret = err;
		else if (ret > 0)
			ret = 0;
	}
	hetmem_walk_exit(&walk);
out:
	kfree(report);
	return ret;
}
