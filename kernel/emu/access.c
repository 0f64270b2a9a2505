// SPDX-License-Identifier: GPL-2.0
/*
 * The device at work: reading, writing and adding to a process's memory by
 * its own addresses, as a GPU with HMM would.
 *
 * An access goes piece by piece. For each the "page table" of the device is
 * made anew: a snapshot of the CPU's by hmm_range_fault() under a notifier
 * that covers just the piece, so that what happens elsewhere in the address
 * space cannot starve it. Pages that the snapshot shows are used at once;
 * otherwise the device faults: with HETMEM_EMU_MIGRATE the piece is moved
 * here first, and what is still missing (or is on another device, or may not
 * be written as it is) is brought in as by a CPU that touches it. Then the
 * snapshot is taken again. See emu.h for the locks.
 */
#include <linux/hmm.h>
#include <linux/hugetlb.h>
#include <linux/mmu_notifier.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/string.h>
#include <linux/uaccess.h>
#include <linux/userfaultfd_k.h>

#include "emu.h"

#define EMU_PIECE_PAGES		16
#define EMU_PIECE_SIZE		(EMU_PIECE_PAGES * PAGE_SIZE)

/* How often memory that keeps changing is looked at again. */
#define EMU_ACCESS_TRIES	1000

/**
 * struct emu_access - one access, at one of its pieces
 * @notifier: over the piece
 * @lock: see emu.h
 * @dev: who accesses
 * @mm: whose memory; the caller has a reference to its users
 * @op: enum hetmem_emu_op
 * @write: @op changes memory
 * @migrate: pages are to be used on the device
 * @value: operand of @op
 * @bounce: EMU_PIECE_SIZE bytes between memory and user buffer
 * @addr: first byte of the piece
 * @length: bytes of the piece
 * @start: page of @addr
 * @end: behind the last page
 * @pfns: of the pages, from hmm_range_fault()
 */
struct emu_access {
	struct mmu_interval_notifier notifier;
	spinlock_t lock;	/* against @notifier */
	struct emu_device *dev;
	struct mm_struct *mm;
	u32 op;
	bool write;
	bool migrate;
	u64 value;
	void *bounce;
	unsigned long addr;
	unsigned long length;
	unsigned long start;
	unsigned long end;
	unsigned long pfns[EMU_PIECE_PAGES];
};

static bool emu_access_invalidate(struct mmu_interval_notifier *notifier,
				  const struct mmu_notifier_range *range,
				  unsigned long seq)
{
	struct emu_access *access = container_of(notifier, struct emu_access,
						 notifier);

	spin_lock(&access->lock);
	mmu_interval_set_seq(notifier, seq);
	spin_unlock(&access->lock);
	return true;
}

static const struct mmu_interval_notifier_ops emu_access_ops = {
	.invalidate = emu_access_invalidate,
};

/*
 * The first notifier of an mm is inserted under all its locks, which gives
 * way to any signal. Done when the file is opened, where the system call can
 * be restarted, it need not be done within an access. Return: 0 or a negative
 * errno, for open().
 */
int emu_access_prepare(struct mm_struct *mm)
{
	struct emu_access access = {};
	int ret;

	spin_lock_init(&access.lock);
	ret = mmu_interval_notifier_insert(&access.notifier, mm, 0, PAGE_SIZE,
					   &emu_access_ops);
	if (!ret)
		mmu_interval_notifier_remove(&access.notifier);
	return ret == -EINTR ? -ERESTARTNOINTR : ret;
}

static void emu_do_op(const struct emu_access *access, void *memory,
		      void *bounce, unsigned long length)
{
	unsigned long i;

	switch (access->op) {
	case HETMEM_EMU_READ:
		memcpy(bounce, memory, length);
		break;
	case HETMEM_EMU_WRITE:
		memcpy(memory, bounce, length);
		break;
	case HETMEM_EMU_FILL:
		memset64(memory, access->value, length / sizeof(u64));
		break;
	case HETMEM_EMU_ADD:
		for (i = 0; i < length; i += sizeof(u64))
			atomic64_add(access->value, memory + i);
		break;
	}
}

/* Under access->lock, with the piece's pages as they are. */
static void emu_copy(struct emu_access *access)
{
	unsigned long addr = access->addr, left = access->length;
	unsigned long offset, length, pfn;
	void *bounce = access->bounce;
	void *mapped;

	for (; left; left -= length, addr += length, bounce += length) {
		offset = offset_in_page(addr);
		length = min(left, PAGE_SIZE - offset);
		pfn = access->pfns[(addr - access->start) >> PAGE_SHIFT];

		mapped = emu_map(access->dev, pfn & ~HMM_PFN_FLAGS);
		emu_do_op(access, mapped + offset, bounce, length);
		emu_unmap(access->dev, pfn & ~HMM_PFN_FLAGS, mapped);
		/*
		 * The CPU's page table entry need not be dirty (MADV_FREE
		 * cleans it), and no hardware sets that bit for us. A page
		 * of the device takes its mark along to the host. It is
		 * mapped, as when the core marks it while unmapping it.
		 */
		if (access->write)
			folio_mark_dirty(page_folio(hmm_pfn_to_page(pfn)));
	}
}

/* Whether the device can use the page as the snapshot has it. */
static bool emu_usable(const struct emu_access *access, unsigned long pfn)
{
	struct emu_device *dev;

	if (!(pfn & HMM_PFN_VALID) || (pfn & HMM_PFN_ERROR))
		return false;
	if (access->write && !(pfn & HMM_PFN_WRITE))
		return false;
	dev = emu_find_pfn(pfn & ~HMM_PFN_FLAGS);
	return !dev || dev == access->dev;
}

/* Whether every page can be used, and with @here: is on the device. */
static bool emu_complete(const struct emu_access *access, bool here)
{
	unsigned long i, pfn, nr = (access->end - access->start) >> PAGE_SHIFT;

	for (i = 0; i < nr; i++) {
		pfn = access->pfns[i];
		if (!emu_usable(access, pfn) ||
		    (here && !emu_has_pfn(access->dev, pfn & ~HMM_PFN_FLAGS)))
			return false;
	}
	return true;
}

/*
 * Where a huge page of a device is mapped whole, hmm_range_fault() counts its
 * pages from the first one on even if the range begins in its midst. A page of
 * a huge page is as far from its first as its address is.
 */
static void emu_fix_huge(struct emu_access *access)
{
	unsigned long i, nr = (access->end - access->start) >> PAGE_SHIFT;
	unsigned long first = access->start >> PAGE_SHIFT;

	if (!HETMEM_HUGE)
		return;
	for (i = 0; i < nr; i++) {
		unsigned long pfn = access->pfns[i] & ~HMM_PFN_FLAGS;

		if (!(access->pfns[i] & HMM_PFN_VALID) || !emu_find_pfn(pfn) ||
		    hmm_pfn_to_map_order(access->pfns[i]) != EMU_HUGE_ORDER)
			continue;
		access->pfns[i] -= pfn;
		access->pfns[i] += ALIGN_DOWN(pfn, EMU_HUGE) +
				   (first + i) % EMU_HUGE;
	}
}

/*
 * Secret memory has pages like any other, which emu_map() finds no address
 * for. The device does not see them, nor what is behind them in the piece.
 * Return: where that begins; mmap_lock is held.
 */
static unsigned long emu_seen_end(const struct emu_access *access)
{
	struct vm_area_struct *vma;
	unsigned long addr;

	for (addr = access->start; addr < access->end; addr = vma->vm_end) {
		vma = find_vma(access->mm, addr);
		if (!vma)
			break;
		if (hetmem_vma_is_secret(vma))
			return clamp(vma->vm_start, access->start, access->end);
	}
	return access->end;
}

/*
 * Fills access->pfns without faulting anything in. Return: 0 or a negative
 * errno, -EBUSY if the pages are changing.
 */
static int emu_snapshot(struct emu_access *access, unsigned long *seq)
{
	struct hmm_range range = {
		.notifier = &access->notifier,
		.start = access->start,
		.hmm_pfns = access->pfns,
		.dev_private_owner = &emu_owner,
	};
	int ret = 0;

	/* They ask as they answer: for nothing. */
	memset(access->pfns, 0, sizeof(access->pfns));
	*seq = mmu_interval_read_begin(&access->notifier);
	range.notifier_seq = *seq;
	if (mmap_read_lock_killable(access->mm))
		return -EINTR;
	range.end = emu_seen_end(access);
	if (range.end > range.start)
		ret = hmm_range_fault(&range);
	mmap_read_unlock(access->mm);
	if (!ret)
		emu_fix_huge(access);
	return ret;
}

/*
 * Faults @range in. hmm_range_fault() of some kernels has hugetlb's fault take
 * a lock again that its own walk of the page table holds, where a huge page
 * is absent. A piece in hugetlb memory lies in one huge page: it can as well
 * be faulted in by its address.
 */
static int emu_fault_range(struct emu_access *access, struct hmm_range *range)
{
	struct vm_area_struct *vma = vma_lookup(access->mm, access->start);

	if (!vma || !is_vm_hugetlb_page(vma))
		return hmm_range_fault(range);
	return fixup_user_fault(access->mm, access->start,
				access->write ? FAULT_FLAG_WRITE : 0, NULL);
}

/*
 * Whether a page that is to be faulted in is for a userfaultfd handler to
 * bring. It would be waited for with mmap_lock held, which the core refuses.
 */
static bool emu_awaits_user(const struct emu_access *access)
{
	unsigned long i, nr = (access->end - access->start) >> PAGE_SHIFT;
	struct vm_area_struct *vma;

	for (i = 0; i < nr; i++) {
		if (!access->pfns[i])
			continue;
		vma = vma_lookup(access->mm, access->start + (i << PAGE_SHIFT));
		if (vma && userfaultfd_armed(vma))
			return true;
	}
	return false;
}

/*
 * Touches the pages of access->pfns that cannot be used, as a CPU would. No
 * owner is named: pages of any device come to the host, and are copied on
 * write.
 */
static int emu_fault_in(struct emu_access *access)
{
	unsigned long i, nr = (access->end - access->start) >> PAGE_SHIFT;
	unsigned long flags = HMM_PFN_REQ_FAULT |
			      (access->write ? HMM_PFN_REQ_WRITE : 0);
	struct hmm_range range = {
		.notifier = &access->notifier,
		.start = access->start,
		.end = access->end,
		.hmm_pfns = access->pfns,
		.pfn_flags_mask = HMM_PFN_REQ_FAULT | HMM_PFN_REQ_WRITE,
	};
	int ret;

	for (i = 0; i < nr; i++)
		access->pfns[i] = emu_usable(access, access->pfns[i]) ? 0 :
								flags;

	range.notifier_seq = mmu_interval_read_begin(&access->notifier);
	if (mmap_read_lock_killable(access->mm))
		return -EINTR;
	ret = emu_awaits_user(access) ? -EFAULT :
					emu_fault_range(access, &range);
	mmap_read_unlock(access->mm);
	return ret;
}

static int emu_check_mapping(const struct emu_access *access,
			     const struct vm_area_struct *vma)
{
	if (!vma || (vma->vm_flags & (VM_IO | VM_PFNMAP)) ||
	    hetmem_vma_is_secret(vma))
		return -EFAULT;
	if (!(vma->vm_flags & VM_READ))
		return -EPERM;
	if (access->write && !(vma->vm_flags & VM_WRITE))
		return -EPERM;
	return 0;
}

/*
 * What the piece's mappings say to the access; mmap_lock is held. A piece
 * that may be accessed at first becomes one that ends there.
 */
static int emu_check_mappings(struct emu_access *access)
{
	struct vm_area_struct *vma;
	unsigned long addr;
	int ret;

	for (addr = access->start; addr < access->end; addr = vma->vm_end) {
		vma = vma_lookup(access->mm, addr);
		ret = emu_check_mapping(access, vma);
		if (!ret)
			continue;
		if (addr == access->start)
			return ret;
		access->end = addr;
		access->length = addr - access->addr;
		break;
	}
	return 0;
}

/* Moves the piece here, as far as it is of a kind that can; likewise. */
static int emu_bring(struct emu_access *access)
{
	struct vm_area_struct *vma;
	unsigned long addr, pfn;
	struct emu_range range;
	int ret;

	for (addr = access->start; addr < access->end; addr = range.end) {
		vma = vma_lookup(access->mm, addr);
		pfn = access->pfns[(addr - access->start) >> PAGE_SHIFT];
		range.start = addr;
		range.end = min(access->end, vma->vm_end);
		if (!emu_can_move(vma))
			continue;
		/* Rather all of a huge page than have the core split it. */
		if ((pfn & HMM_PFN_VALID) &&
		    hmm_pfn_to_map_order(pfn) == EMU_HUGE_ORDER)
			emu_widen(vma, &range);
		ret = emu_move_in(access->dev, vma, range.start, range.end);
		/* -ENOSPC: the device is full and could not make room. */
		if (ret)
			return ret == -ENOSPC ? -EBUSY : ret;
	}
	return 0;
}

/* A device fault: what is not as it should be gets closer to it. */
static int emu_device_fault(struct emu_access *access, bool bring)
{
	int ret;

	if (mmap_read_lock_killable(access->mm))
		return -EINTR;
	ret = emu_check_mappings(access);
	if (!ret && bring)
		ret = emu_bring(access);
	mmap_read_unlock(access->mm);
	if (ret || bring)
		return ret;
	return emu_fault_in(access);
}

/* What the device does next about a piece. */
enum emu_step {
	EMU_STEP_COPY,		/* all is there */
	EMU_STEP_BRING,		/* to the device */
	EMU_STEP_FAULT_IN,	/* as a CPU would */
};

/*
 * First to the device, which makes pages there of what was never touched.
 * Then, what is still not usable is faulted in, more than once if need be:
 * a page that this device and two processes share comes to the host and is
 * copied there. What that brought into being goes to the device at last.
 */
static enum emu_step emu_next_step(const struct emu_access *access,
				   unsigned int brought, bool faulted_in)
{
	bool usable = emu_complete(access, false);

	if (!access->migrate || emu_complete(access, true))
		return usable ? EMU_STEP_COPY : EMU_STEP_FAULT_IN;
	if (!brought)
		return EMU_STEP_BRING;
	if (!usable)
		return EMU_STEP_FAULT_IN;
	return brought == 1 && faulted_in ? EMU_STEP_BRING : EMU_STEP_COPY;
}

/* Return: whether it was copied before the pages changed. */
static bool emu_copy_unless_changed(struct emu_access *access,
				    unsigned long seq)
{
	bool changed;

	spin_lock(&access->lock);
	changed = mmu_interval_read_retry(&access->notifier, seq);
	if (!changed)
		emu_copy(access);
	spin_unlock(&access->lock);
	return !changed;
}

/* Return: 0, or a negative errno with the piece's memory as it was. */
static int emu_access_piece(struct emu_access *access, u64 *faults)
{
	unsigned int tries, brought = 0;
	bool faulted = false, faulted_in = false;
	enum emu_step step;
	unsigned long seq;
	int ret = -EBUSY;

	for (tries = 0; tries < EMU_ACCESS_TRIES; tries++) {
		cond_resched();
		if (fatal_signal_pending(current)) {
			ret = -EINTR;
			break;
		}
		ret = emu_snapshot(access, &seq);
		if (ret == -EBUSY)
			continue;
		if (ret)
			break;

		ret = -EBUSY;
		step = emu_next_step(access, brought, faulted_in);
		if (step == EMU_STEP_COPY) {
			if (emu_copy_unless_changed(access, seq))
				return 0;
			continue;
		}
		if (!faulted) {
			faulted = true;
			++*faults;
			emu_count(access->dev, EMU_DEVICE_FAULTS, 1);
		}
		ret = emu_device_fault(access, step == EMU_STEP_BRING);
		if (step == EMU_STEP_BRING)
			brought++;
		else
			faulted_in = true;
		if (ret && (ret != -EBUSY || step == EMU_STEP_BRING))
			break;
		ret = -EBUSY;
	}
	if (faulted)
		emu_count(access->dev, EMU_DEVICE_FAULT_FAILURES, 1);
	return ret;
}

/* One piece, under a notifier of its own. */
static int emu_access_watched(struct emu_access *access, u64 *faults)
{
	int ret;

	ret = mmu_interval_notifier_insert(&access->notifier, access->mm,
					   access->start,
					   access->end - access->start,
					   &emu_access_ops);
	if (ret)
		return ret;
	ret = emu_access_piece(access, faults);
	mmu_interval_notifier_remove(&access->notifier);
	return ret;
}

static int emu_access_all(struct emu_access *access,
			  struct hetmem_emu_cmd_access *cmd)
{
	void __user *data = u64_to_user_ptr(cmd->data);
	unsigned long stop;
	int ret;

	while (cmd->done < cmd->length) {
		access->addr = cmd->addr + cmd->done;
		access->start = access->addr & PAGE_MASK;
		stop = min_t(u64, cmd->addr + cmd->length,
			     ALIGN(access->addr + 1, EMU_PIECE_SIZE));
		access->length = stop - access->addr;
		access->end = PAGE_ALIGN(stop);

		if (access->op == HETMEM_EMU_WRITE &&
		    copy_from_user(access->bounce, data + cmd->done,
				   access->length))
			return -EFAULT;
		ret = emu_access_watched(access, &cmd->faults);
		if (ret)
			return ret;
		if (access->op == HETMEM_EMU_READ &&
		    copy_to_user(data + cmd->done, access->bounce,
				 access->length))
			return -EFAULT;
		cmd->done += access->length;
	}
	return 0;
}

/**
 * emu_access - HETMEM_EMU_IOC_ACCESS
 * @dev: device
 * @mm: current->mm
 * @cmd: checked; done and faults are filled also if it fails
 *
 * Context: process, no locks held.
 * Return: 0 or a negative errno as the uapi header has it.
 */
int emu_access(struct emu_device *dev, struct mm_struct *mm,
	       struct hetmem_emu_cmd_access *cmd)
{
	struct emu_access access = {
		.dev = dev,
		.mm = mm,
		.op = cmd->op,
		.write = cmd->op != HETMEM_EMU_READ,
		.migrate = cmd->flags & HETMEM_EMU_MIGRATE,
		.value = cmd->value,
	};
	int ret;

	spin_lock_init(&access.lock);
	if (cmd->op == HETMEM_EMU_READ || cmd->op == HETMEM_EMU_WRITE) {
		access.bounce = kvmalloc(EMU_PIECE_SIZE, GFP_KERNEL_ACCOUNT);
		if (!access.bounce)
			return -ENOMEM;
	}
	ret = emu_access_all(&access, cmd);
	kvfree(access.bounce);
	return ret;
}
