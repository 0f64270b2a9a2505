// SPDX-License-Identifier: GPL-2.0
/*
 * A CPU touched a page of the device: it goes back to the host, and some of
 * its neighbours with it. The core calls with mmap_lock held for reading.
 */
#include <linux/log2.h>
#include <linux/migrate.h>
#include <linux/page-flags.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "emu.h"

/* The device page of a CPU fault is one of so many without an allocation. */
#define EMU_FAULT_STACK		16

/* How often one CPU fault tries to bring its page, a jiffy apart. */
#define EMU_FAULT_ROUNDS	8

/*
 * How many pages come back with the one that the CPU waits for: all of its huge
 * page, its neighbours, or, while it is a part of a huge page that is mapped by
 * pages, none. The core splits that one, whose lock it holds, as it collects.
 */
static unsigned long emu_fault_pages(const struct vm_fault *vmf)
{
	if (!PageCompound(vmf->page))
		return emu_fault_around;
	return vmf->pte ? 1 : EMU_HUGE;
}

static void emu_fault_window(struct emu_out *out, unsigned long nr_pages)
{
	struct vm_area_struct *vma = out->args.vma;
	unsigned long size = nr_pages << PAGE_SHIFT;
	unsigned long start = ALIGN_DOWN(out->fault_addr, size);

	out->args.start = max(start, vma->vm_start);
	out->args.end = min(start + size, vma->vm_end);
}

/*
 * Whether a fault tries again: its page is still there. Others had a reference
 * or the lock; they get a jiffy to let go of it.
 */
static bool emu_fault_again(const struct vm_fault *vmf)
{
	return folio_mapped(page_folio(vmf->page)) &&
	       !schedule_timeout_killable(1) && !fatal_signal_pending(current);
}

static int emu_fault_rounds(struct emu_out *out, const struct vm_fault *vmf)
{
	unsigned int round = 0;
	int ret;

	do {
		emu_count(out->dev, EMU_CPU_FAULT_ROUNDS, 1);
		ret = emu_move_out_range(out);
	} while (!ret && ++round < EMU_FAULT_ROUNDS && emu_fault_again(vmf));
	return ret;
}

static int emu_fault(struct emu_out *out, const struct vm_fault *vmf)
{
	unsigned long stack[2 * EMU_FAULT_STACK], *pfns = NULL;
	unsigned long window = emu_fault_pages(vmf);
	gfp_t gfp = GFP_KERNEL;
	int ret;

	/* Half of a huge page cannot come: the core could not split it. */
	if (PageCompound(vmf->page) && !vmf->pte)
		out->args.flags |= HETMEM_SELECT_COMPOUND;
	else
		gfp |= __GFP_NORETRY | __GFP_NOWARN;

	if (window > EMU_FAULT_STACK) {
		pfns = kmalloc_array(2 * window, sizeof(*pfns), gfp);
		if (!pfns && (out->args.flags & HETMEM_SELECT_COMPOUND))
			return -ENOMEM;
	}
	if (!pfns) {
		window = min_t(unsigned long, window, EMU_FAULT_STACK);
		out->args.src = stack;
		out->args.dst = stack + EMU_FAULT_STACK;
	} else {
		out->args.src = pfns;
		out->args.dst = pfns + window;
	}
	emu_fault_window(out, window);
	ret = emu_fault_rounds(out, vmf);
	kfree(pfns);
	return ret;
}

/*
 * A CPU touched a page of the device. The core holds a reference to it, and
 * newer ones its lock; migrate_vma_*() knows, by fault_page.
 *
 * Where it is not locked, several CPUs can come here with one page, and each
 * one's reference keeps the others from moving it. The first one works, in a
 * bounded number of rounds. The others let go and fault again. They must not
 * sleep here: that would keep the reference. One that faults in the kernel
 * gives way even so, because its loop (hmm_range_fault()) may never do.
 *
 * Not bringing a page that is busy is no failure: the CPU faults again.
 */
vm_fault_t emu_migrate_to_ram(struct vm_fault *vmf)
{
	struct emu_device *dev = emu_find_pfn(page_to_pfn(vmf->page));
	unsigned long i = emu_page_index(dev, vmf->page);
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
		emu_count(dev, EMU_CPU_FAULTS_YIELDED, 1);
		if (!(vmf->flags & FAULT_FLAG_USER))
			cond_resched();
		return 0;
	}
	emu_count(dev, EMU_CPU_FAULTS, 1);
	ret = emu_fault(&out, vmf);
	clear_bit_unlock(i, dev->faulting);

	if (!ret)
		return 0;
	emu_count(dev, EMU_CPU_FAULT_FAILURES, 1);
	return ret == -ENOMEM ? VM_FAULT_OOM : VM_FAULT_SIGBUS;
}
