/* SPDX-License-Identifier: GPL-2.0 */
/*
 * hetmem_emu.ko: an emulated device with device-private memory.
 *
 * main.c is the module, its parameters and its devices; file.c the commands
 * of an open file; access.c plays the GPU; migrate.c moves the pages of an
 * address space in and out; fault.c brings back what a CPU touches; evict.c
 * moves pages out whoever they belong to; memory.c owns the device's memory
 * and knows the order in which its pages came.
 *
 * Locking, outermost first:
 *
 *	mmap_lock of the process, for reading (migrate.c, access.c, fault.c);
 *	an evictor only tries it, and may have another one already
 *	  folio locks, tried only, as migrate_vma_*() and migrate_device_*()
 *	  take them
 *	    emu_device.lock (memory.c)
 *	  emu_access.lock (access.c)
 *
 * - emu_device.lock is innermost. It protects which pages are in use, whose
 *   they are and their order; it is also taken when the last reference to a
 *   page goes away, which the core does with page table locks held. Nothing
 *   sleeps, allocates or copies under it.
 * - emu_access.lock is what the device's "page table" of one access hangs on:
 *   pages are looked at and copied under it alone, after
 *   mmu_interval_read_retry() said that nothing has changed. The invalidation
 *   takes it, and so waits for the copy, and nothing else. It is not held
 *   across hmm_range_fault(), mmu_interval_read_begin(), migrate_vma_*() or
 *   mmu_interval_notifier_remove().
 * - Room on the device is made before pages are locked, never after: eviction
 *   starts with no folio lock held and waits for no mmap_lock (its caller may
 *   hold its own, for reading). Evictors take different pages off the order,
 *   so they neither wait for each other nor try the same page.
 * - User memory is copied with none of these held.
 *
 * Huge pages. Where the kernel can (HETMEM_HUGE), what one PMD maps is one folio
 * of the device: it comes, leaves and is evicted whole. The core splits it when
 * only a part of it moves, or when the CPU has mapped it by pages: the memory
 * stays where it is, and emu_folio_split() hears of every piece. A folio's
 * first page stands for all of it in emu_device.order and emu_device.pages.
 *
 * They are not made unless asked for (huge=Y), for the core has a hole: while a
 * huge device page is on its way to the host, its PMD holds a migration entry,
 * and whoever zaps that (MADV_DONTNEED by another thread, the end of a forked
 * process) takes it for the device page's own entry, and drops a mapping and a
 * reference that are gone already. Seen in 7.3, zap_huge_pmd_folio(). By pages
 * it does not happen. So an eviction, which holds back nobody, has the core
 * split a huge page, and for that finds the address space that it came from.
 *
 * Lifetime. Processes hold pages of the device, not the module: unloading
 * takes the device out of hetmem and away from files, brings every page back
 * and waits for the last reference, also of a CPU fault that is at work.
 */
#ifndef _HETMEM_EMU_H
#define _HETMEM_EMU_H

#include <linux/atomic.h>
#include <linux/list.h>
#include <linux/memremap.h>
#include <linux/migrate.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <linux/hetmem_device.h>
#include <uapi/linux/hetmem.h>
#include <uapi/linux/hetmem_emu.h>

#include "emu_compat.h"

#define EMU_MAX_DEVICES		8

/* What one migration moves at most: a block of hetmem, what one PMD maps. */
#define EMU_BATCH		512

/* The pages of a huge page. One that moves whole fills a batch. */
#define EMU_HUGE		EMU_BATCH
#define EMU_HUGE_ORDER		9
#define EMU_HUGE_SIZE		(EMU_HUGE << PAGE_SHIFT)

/*
 * How often who found the device full makes room and tries again. Each round
 * fails only if somebody else was faster.
 */
#define EMU_MOVE_ROUNDS		8

enum emu_stat {
	EMU_TO_DEVICE,
	EMU_TO_HOST,
	EMU_CPU_FAULTS,
	EMU_CPU_FAULT_FAILURES,
	EMU_DEVICE_FAULTS,
	EMU_DEVICE_FAULT_FAILURES,
	EMU_EVICTED,
	EMU_HUGE_TO_DEVICE,
	EMU_HUGE_TO_HOST,
	EMU_HUGE_SPLIT,
	EMU_TO_DEVICE_ROUNDS,
	EMU_CPU_FAULT_ROUNDS,
	EMU_CPU_FAULTS_YIELDED,
	EMU_NR_STATS,
};

/**
 * struct emu_page - what is remembered of a folio of the device, at its first
 *	page
 * @order: in emu_device.order, or held by an evictor, while it is mapped
 * @mm: of the address space that it came from, NULL while it is not mapped;
 *	the process may be gone, or share the page
 * @addr: where it was there
 * @owner: @mm, with a reference (mmgrab()), until the folio is free: nobody
 *	else's address space gets its place and is told of the page
 * @nr: its pages
 */
struct emu_page {
	struct list_head order;
	struct mm_struct *mm;
	unsigned long addr;
	struct mm_struct *owner;
	unsigned int nr;
};

/**
 * struct emu_device - a device
 * @misc: /dev/hetmem_emuN
 * @name: of that
 * @index: N
 * @registered: with hetmem; NULL before and afterwards
 * @id: that hetmem gave it
 * @memory: its memory; page i of the device is @memory + i * PAGE_SIZE
 * @nr_pages: that it has
 * @first_pfn: of its struct pages
 * @faulting: a bit a page: a CPU fault is bringing it back
 * @lock: protects what follows, to @pages
 * @used_map: a bit a page: in use
 * @next: where the search for a free page starts
 * @used: pages in use
 * @reserved: pages promised to migrations that are about to start
 * @order: pages in use, the least recently migrated one first
 * @pages: nr_pages of them
 * @stats: enum emu_stat
 * @region: of the physical address space, where its struct pages are
 * @pgmap: of its struct pages
 */
struct emu_device {
	struct miscdevice misc;
	char name[24];
	unsigned int index;
	struct hetmem_device __rcu *registered;
	u32 id;

	void *memory;
	unsigned long nr_pages;
	unsigned long first_pfn;
	unsigned long *faulting;

	spinlock_t lock;	/* innermost, see above */
	unsigned long *used_map;
	unsigned long next;
	unsigned long used;
	unsigned long reserved;
	struct list_head order;
	struct emu_page *pages;

	atomic64_t stats[EMU_NR_STATS];
	struct resource *region;
	struct dev_pagemap pgmap;
};

/**
 * struct emu_report - consecutive pages that hetmem is to be told of
 * @dev: where they went or came from
 * @mm: whose, with a reference (mmgrab()): the pages may be free before this
 *	is told
 * @addr: of the first
 * @nr: how many; 0 in an empty report
 * @dir: which way
 */
struct emu_report {
	struct emu_device *dev;
	struct mm_struct *mm;
	unsigned long addr;
	unsigned long nr;
	enum hetmem_direction dir;
};

/**
 * struct emu_range - addresses: what moves, or what an eviction leaves alone
 * @mm: address space, of what is left alone
 * @start: first byte
 * @end: first byte behind it
 */
struct emu_range {
	const struct mm_struct *mm;
	unsigned long start;
	unsigned long end;
};

/**
 * struct emu_run - consecutive pages of the device, or a huge page
 * @pfn: of the first
 * @nr: how many
 * @mm: where a huge page is mapped, with a reference to its users (mmget()), or
 *	NULL
 * @addr: where it is there
 */
struct emu_run {
	unsigned long pfn;
	unsigned long nr;
	struct mm_struct *mm;
	unsigned long addr;
};

/**
 * struct emu_out - moving pages to the host
 * @dev: whose pages
 * @args: of migrate_vma_setup()
 * @nid: node, or NUMA_NO_NODE for what the process's policy says
 * @fault_addr: of the page that a CPU waits for, if args.fault_page is set
 * @moved: pages that went
 */
struct emu_out {
	struct emu_device *dev;
	struct migrate_vma args;
	int nid;
	unsigned long fault_addr;
	unsigned long moved;
};

static inline unsigned long emu_page_index(const struct emu_device *dev,
					   const struct page *page)
{
	return page_to_pfn(page) - dev->first_pfn;
}

static inline void *emu_page_memory(const struct emu_device *dev,
				    unsigned long pfn)
{
	return dev->memory + ((pfn - dev->first_pfn) << PAGE_SHIFT);
}

extern bool emu_huge;

static inline bool emu_is_huge_block(unsigned long start, unsigned long end)
{
	return end - start == EMU_HUGE_SIZE && IS_ALIGNED(start, EMU_HUGE_SIZE);
}

static inline bool emu_makes_huge(void)
{
	return HETMEM_HUGE && READ_ONCE(emu_huge);
}

static inline bool emu_has_pfn(const struct emu_device *dev, unsigned long pfn)
{
	return pfn >= dev->first_pfn && pfn - dev->first_pfn < dev->nr_pages;
}

static inline void emu_count(struct emu_device *dev, enum emu_stat stat,
			     unsigned long nr)
{
	atomic64_add(nr, &dev->stats[stat]);
}

/* How many pages an entry of the arrays of migrate_vma_*() stands for. */
static inline unsigned long emu_entry_pages(unsigned long entry)
{
	return entry & HETMEM_PFN_COMPOUND ? EMU_HUGE : 1;
}

/* main.c */
extern char emu_owner;
extern unsigned int emu_nr_devices;
extern bool emu_ready;
extern unsigned int emu_fault_around;
extern bool emu_huge_host;
struct emu_device *emu_find_pfn(unsigned long pfn);
void emu_report_add(struct emu_report *report, struct mm_struct *mm,
		    unsigned long addr, unsigned long nr);
void emu_report_flush(struct emu_report *report);

/* memory.c */
int emu_memory_init(struct emu_device *dev, unsigned long nr_pages);
void emu_memory_exit(struct emu_device *dev);
void *emu_map(const struct emu_device *dev, unsigned long pfn);
void emu_unmap(const struct emu_device *dev, unsigned long pfn, void *mapped);
unsigned long emu_lacking(struct emu_device *dev, unsigned long nr);
unsigned long emu_reserve(struct emu_device *dev, unsigned long nr);
void emu_unreserve(struct emu_device *dev, unsigned long nr);
struct page *emu_alloc(struct emu_device *dev);
struct page *emu_alloc_huge(struct emu_device *dev);
void emu_arrived(struct emu_device *dev, const struct page *page,
		 struct mm_struct *mm, unsigned long addr);
unsigned long emu_take_oldest(struct emu_device *dev, struct list_head *taken,
			      struct emu_run *runs, unsigned long nr,
			      const struct emu_range *spare);
void emu_put_back(struct emu_device *dev, struct list_head *taken);
bool emu_whose(struct emu_device *dev, unsigned long pfn,
	       struct mm_struct **mm, unsigned long *addr);
void emu_left(struct emu_device *dev, unsigned long pfn);

/* evict.c */
long emu_evict(struct emu_device *dev, unsigned long nr,
	       const struct emu_range *spare);
void emu_evict_all(struct emu_device *dev);
unsigned long emu_make_room(struct emu_device *dev, unsigned long nr,
			    const struct emu_range *spare);

/* migrate.c */
bool emu_can_move(struct vm_area_struct *vma);
void emu_widen(const struct vm_area_struct *vma, struct emu_range *range);
int emu_move_in(struct emu_device *dev, struct vm_area_struct *vma,
		unsigned long start, unsigned long end);
int emu_move_out(struct emu_device *dev, struct vm_area_struct *vma,
		 unsigned long start, unsigned long end, int nid);
int emu_move_out_range(struct emu_out *out);
unsigned long emu_move_out_split(struct emu_device *dev,
				 struct vm_area_struct *vma,
				 unsigned long addr, bool *no_memory);
struct page *emu_host_page(gfp_t gfp, unsigned int order,
			   struct vm_area_struct *vma, unsigned long addr,
			   int nid);
void emu_copy_to_host(const struct emu_device *dev, struct page *to,
		      unsigned long pfn, unsigned long nr);

/* fault.c */
vm_fault_t emu_migrate_to_ram(struct vm_fault *vmf);

/* access.c */
int emu_access(struct emu_device *dev, struct mm_struct *mm,
	       struct hetmem_emu_cmd_access *cmd);
int emu_access_prepare(struct mm_struct *mm);

/* file.c */
extern const struct file_operations emu_fops;

#endif /* _HETMEM_EMU_H */
