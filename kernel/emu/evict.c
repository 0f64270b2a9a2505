// SPDX-License-Identifier: GPL-2.0
/*
 * Eviction: pages leave the device for the host by their PFN, whoever has
 * them mapped, the least recently migrated ones first. No address space is
 * looked up and no mmap_lock taken; see emu.h for the locks.
 */
#include <linux/cpumask.h>
#include <linux/delay.h>
#include <linux/gfp.h>
#include <linux/highmem.h>
#include <linux/jiffies.h>
#include <linux/migrate.h>
#include <linux/pagemap.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

#include "emu.h"

/* No killer on behalf of an eviction: the page can stay where it is. */
#define EMU_EVICT_GFP	(GFP_HIGHUSER_MOVABLE | __GFP_RETRY_MAYFAIL | \
			 __GFP_NOWARN)

#define EMU_ALL_PAGES	ULONG_MAX

/* How long an unloading waits before it says for what. */
#define EMU_UNLOAD_PATIENCE	(10 * HZ)

/**
 * struct emu_eviction - the work space of an eviction
 * @runs: folios of the device, to evict
 * @src: as migrate_device_*() wants it, for one run of consecutive PFNs; some
 *	write behind the end of the run if a huge page goes on there
 * @dst: likewise
 * @mm: whose page it is
 * @addr: where it is there
 * @no_memory: the host had none
 * @anyhow: also what it takes risks to evict
 */
struct emu_eviction {
	struct emu_run runs[EMU_BATCH];
	unsigned long src[EMU_BATCH + EMU_HUGE];
	unsigned long dst[EMU_BATCH];
	struct mm_struct *mm[EMU_BATCH];
	unsigned long addr[EMU_BATCH];
	bool no_memory;
	bool anyhow;
};

/*
 * Return: the locked copy of a device folio of 1 << @order pages that is locked
 * and unmapped.
 */
static struct page *emu_evict_copy(struct emu_device *dev, unsigned long pfn,
				   unsigned int order)
{
	struct page *page = emu_host_page(EMU_EVICT_GFP, order, NULL, 0,
					  NUMA_NO_NODE);

	if (!page)
		return NULL;
	emu_copy_to_host(dev, page, pfn, 1UL << order);
	return page;
}

/* Evicts @nr consecutive pages. Return: how many went. */
static unsigned long emu_evict_run(struct emu_device *dev,
				   struct emu_eviction *work,
				   unsigned long pfn, unsigned long nr)
{
	struct emu_report report = { .dev = dev, .dir = HETMEM_TO_HOST };
	unsigned long i, pages, moved = 0, huge = 0;
	unsigned long compound;
	struct page *page;

	/* Fails only for single folios, and says so in src. */
	migrate_device_range(work->src, pfn, nr);
	memset(work->dst, 0, nr * sizeof(*work->dst));
	for (i = 0; i < nr; i += emu_entry_pages(work->src[i])) {
		if (!(work->src[i] & MIGRATE_PFN_MIGRATE))
			continue;
		if (!emu_whose(dev, pfn + i, &work->mm[i], &work->addr[i]))
			continue;
		compound = work->src[i] & HETMEM_PFN_COMPOUND;
		page = emu_evict_copy(dev, pfn + i,
				      compound ? EMU_HUGE_ORDER : 0);
		if (!page) {
			work->no_memory = true;
			continue;
		}
		work->dst[i] = migrate_pfn(page_to_pfn(page)) | compound;
	}
	migrate_device_pages(work->src, work->dst, nr);
	for (i = 0; i < nr; i += pages) {
		pages = emu_entry_pages(work->src[i]);
		if (!work->dst[i] || !(work->src[i] & MIGRATE_PFN_MIGRATE))
			continue;
		emu_left(dev, pfn + i);
		emu_report_add(&report, work->mm[i], work->addr[i], pages);
		moved += pages;
		huge += pages > 1;
	}
	migrate_device_finalize(work->src, work->dst, nr);
	emu_report_flush(&report);
	emu_count(dev, EMU_TO_HOST, moved);
	emu_count(dev, EMU_HUGE_TO_HOST, huge);
	return moved;
}

/*
 * A huge page goes in pieces, see emu.h: where it came from it is found again,
 * unless that has moved it. Only a wait for the very last ones (@anyhow) takes
 * it whole from who has it by now: nobody who holds a mapping can help.
 *
 * The caller may hold an mmap_lock, so that this one is only tried.
 */
static unsigned long emu_evict_huge(struct emu_device *dev,
				    struct emu_eviction *work,
				    const struct emu_run *run)
{
	struct vm_area_struct *vma;
	unsigned long moved = 0;

	if (run->mm) {
		if (!mmap_read_trylock(run->mm))
			return 0;
		vma = find_vma(run->mm, run->addr);
		if (vma && vma->vm_start < run->addr + EMU_HUGE_SIZE)
			moved = emu_move_out_split(dev, vma, run->addr,
						   &work->no_memory);
		mmap_read_unlock(run->mm);
	}
	if (!moved && !work->no_memory && work->anyhow)
		moved = emu_evict_run(dev, work, run->pfn, run->nr);
	return moved;
}

static unsigned long emu_evict_folios(struct emu_device *dev,
				      struct emu_eviction *work,
				      unsigned long nr)
{
	unsigned long i, moved = 0;
	struct emu_run run;

	for (i = 0; i < nr;) {
		run = work->runs[i++];
		if (run.nr > 1) {
			moved += emu_evict_huge(dev, work, &run);
			if (run.mm)
				mmput_async(run.mm);
			continue;
		}
		while (i < nr && work->runs[i].nr == 1 &&
		       work->runs[i].pfn == run.pfn + run.nr) {
			run.nr++;
			i++;
		}
		moved += emu_evict_run(dev, work, run.pfn, run.nr);
	}
	return moved;
}

static long emu_evict_oldest(struct emu_device *dev, unsigned long nr,
			     const struct emu_range *spare, bool anyhow)
{
	unsigned long found, tried = 0, moved = 0;
	struct emu_eviction *work;
	LIST_HEAD(taken);

	if (!nr)
		return 0;
	work = kvmalloc(sizeof(*work), GFP_KERNEL);
	if (!work)
		return -ENOMEM;
	work->no_memory = false;
	work->anyhow = anyhow;

	/* The bound is for arrivals as fast as the evictions. */
	while (moved < nr && tried < dev->nr_pages) {
		found = emu_take_oldest(dev, &taken, work->runs, nr - moved,
					spare);
		if (!found)
			break;
		moved += emu_evict_folios(dev, work, found);
		tried += found;
		if (work->no_memory || fatal_signal_pending(current))
			break;
		cond_resched();
	}
	/* Only now: what is busy must not be found again and again. */
	emu_put_back(dev, &taken);

	if (!moved && work->no_memory)
		moved = -ENOMEM;
	kvfree(work);
	if ((long)moved > 0)
		emu_count(dev, EMU_EVICTED, moved);
	return moved;
}

/**
 * emu_evict - bring the least recently migrated pages to the host
 * @dev: device
 * @nr: how many
 * @spare: addresses to leave alone, or NULL
 *
 * Every page is tried once at most: one that somebody is at work on stays and
 * the next one goes. Ends early on a fatal signal.
 *
 * Context: may sleep. mmap_lock of the caller's may be held for reading, no
 * folio lock.
 * Return: how many pages went, or, if none did, -ENOMEM where that was the
 * host's fault.
 */
long emu_evict(struct emu_device *dev, unsigned long nr,
	       const struct emu_range *spare)
{
	return emu_evict_oldest(dev, nr, spare, false);
}

static long emu_evict_here(void *dev)
{
	return emu_evict_oldest(dev, EMU_ALL_PAGES, NULL, true);
}

/*
 * A page of mlock()ed memory that was unmapped waits with one reference in a
 * batch of some CPU, until that CPU has more of them. Evicting on that CPU
 * empties its batches.
 */
static bool emu_evict_everywhere(struct emu_device *dev)
{
	unsigned int cpu;
	bool moved = false;

	/* A CPU that goes offline takes its batches along. */
	for_each_online_cpu(cpu) {
		if (work_on_cpu(cpu, emu_evict_here, dev) > 0)
			moved = true;
	}
	return moved;
}

/*
 * Every page goes; the device is registered no more, so none comes. A page
 * that stays is locked by somebody who is about to be done with it, or the
 * host has no memory at the moment.
 */
void emu_evict_all(struct emu_device *dev)
{
	unsigned long warn = jiffies + EMU_UNLOAD_PATIENCE;
	unsigned long used;

	while ((used = READ_ONCE(dev->used))) {
		if (emu_evict(dev, EMU_ALL_PAGES, NULL) > 0 ||
		    emu_evict_everywhere(dev))
			continue;
		if (time_after(jiffies, warn)) {
			pr_warn("hetmem_emu: %s: waiting for %lu pages in use\n",
				dev->name, used);
			warn = jiffies + EMU_UNLOAD_PATIENCE;
		}
		if (READ_ONCE(dev->used))
			msleep(20);
	}
}

/**
 * emu_make_room - reserve pages, evicting others
 * @dev: device
 * @nr: how many
 * @spare: addresses not to evict, or NULL
 *
 * The device never goes beyond its limit, see hetmem_device_limit().
 *
 * Return: how many pages are reserved, at most @nr. Fewer if others take the
 * room as fast as it is made, or if nothing could be evicted.
 */
unsigned long emu_make_room(struct emu_device *dev, unsigned long nr,
			    const struct emu_range *spare)
{
	unsigned long reserved = emu_reserve(dev, nr);
	unsigned long lacking;
	unsigned int round;

	for (round = 0; reserved < nr && round < EMU_MOVE_ROUNDS; round++) {
		if (fatal_signal_pending(current))
			break;
		/* Another task may have made room. */
		lacking = emu_lacking(dev, nr - reserved);
		if (lacking && emu_evict(dev, lacking, spare) <= 0)
			break;
		reserved += emu_reserve(dev, nr - reserved);
	}
	return reserved;
}
