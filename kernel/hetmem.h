/* SPDX-License-Identifier: GPL-2.0 */
/*
 * hetmem.ko: what its files share.
 *
 * Data flows main.c (commands) -> context.c (one open file), range.c (tracked
 * ranges), residency.c (where pages are), migrate.c (moving them) ->
 * device.c (who moves them).
 */
#ifndef _HETMEM_H
#define _HETMEM_H

#include <linux/interval_tree.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/spinlock.h>
#include <linux/types.h>
#include <uapi/linux/hetmem.h>

#include "compat.h"

struct hetmem_device;
struct mm_struct;
struct page;
struct pid_namespace;
struct vm_area_struct;

/* The unit of walking and moving: what one PMD maps. */
#define HETMEM_BLOCK_SHIFT	21
#define HETMEM_BLOCK_SIZE	BIT(HETMEM_BLOCK_SHIFT)
#define HETMEM_BLOCK_PAGES	(HETMEM_BLOCK_SIZE >> PAGE_SHIFT)

/* About 20 MiB of kernel memory, charged to who tracks. */
#define HETMEM_MAX_RANGES	131072

#define HETMEM_MAX_DEVICES	32

/* Counters of a range, or of a whole context. */
struct hetmem_counters {
	u64 notified[HETMEM_NOTIFY_NR];
	u64 to_device;
	u64 to_host;
	u64 failed;
};

enum hetmem_counter {
	HETMEM_COUNT_TO_DEVICE,
	HETMEM_COUNT_TO_HOST,
	HETMEM_COUNT_FAILED,
};

/**
 * struct hetmem_context - an open file of /dev/hetmem
 * @mm: the opener's, held by mmgrab() only
 * @opener: the process, for people to tell contexts apart
 * @notifier: over the whole address space of @mm
 * @lock: protects what follows; see the top of range.c
 * @ranges: tracked ranges, never overlapping
 * @nr_ranges: how many they are
 * @total: counters of all memory of @mm, tracked or not
 * @by_mm: in the table by which device drivers' reports find their context
 */
struct hetmem_context {
	struct mm_struct *mm;
	struct pid *opener;
	struct mmu_interval_notifier notifier;
	spinlock_t lock;	/* innermost */
	struct rb_root_cached ranges;
	unsigned int nr_ranges;
	struct hetmem_counters total;
	struct hlist_node by_mm;
};

/* context.c */
struct hetmem_context *hetmem_context_open(void);
void hetmem_context_close(struct hetmem_context *ctx);
pid_t hetmem_context_pid(const struct hetmem_context *ctx,
			 struct pid_namespace *ns);
void hetmem_mm_count(const struct mm_struct *mm, unsigned long start,
		     unsigned long last, enum hetmem_counter what);

/* range.c */
int hetmem_range_init(void);
void hetmem_range_exit(void);
extern const struct mmu_interval_notifier_ops hetmem_notifier_ops;
int hetmem_range_add(struct hetmem_context *ctx, unsigned long start,
		     unsigned long end);
int hetmem_range_del(struct hetmem_context *ctx, unsigned long start,
		     unsigned long end);
void hetmem_range_del_all(struct hetmem_context *ctx);
int hetmem_range_stats(struct hetmem_context *ctx, unsigned long addr,
		       struct hetmem_cmd_stats *stats);
void hetmem_range_count(struct hetmem_context *ctx, unsigned long start,
			unsigned long last, enum hetmem_counter what);

/**
 * struct hetmem_piece - pages of a step that have everything in common
 * @location: HETMEM_LOC()
 * @order: of the page table entries that map them
 * @nr_pages: how many; not valid for the last piece of a step, which goes
 *	to the step's end (and may be much longer than a block)
 */
struct hetmem_piece {
	u32 location;
	u16 order;
	u16 nr_pages;
};

/**
 * struct hetmem_walk - finding out where pages are, step by step
 * @mm: whose; the caller holds a reference to its users
 * @notifier: over the step at work only, so that what happens elsewhere in
 *	the address space cannot starve the walk
 * @lock: serializes decoding with @notifier's invalidations
 * @pfns: of one block; the pieces are made in place
 * @more: the same block as another owner of device pages sees it
 * @start: of the last step
 * @end: of the last step
 * @why: HETMEM_WHY_*, of the mapping that the last step looked at
 * @nr: pieces of the last step
 */
struct hetmem_walk {
	struct mm_struct *mm;
	struct mmu_interval_notifier notifier;
	spinlock_t lock;	/* innermost */
	union {
		unsigned long *pfns;
		struct hetmem_piece *pieces;
	};
	unsigned long *more;
	unsigned long start;
	unsigned long end;
	u32 why;
	unsigned int nr;
};

/* residency.c */
int hetmem_walk_init(struct hetmem_walk *walk, struct mm_struct *mm);
void hetmem_walk_exit(struct hetmem_walk *walk);
int hetmem_walk_step(struct hetmem_walk *walk, unsigned long start,
		     unsigned long end);
int hetmem_walk_fault(struct hetmem_walk *walk, unsigned long start,
		      unsigned long end);
unsigned long hetmem_piece_end(const struct hetmem_walk *walk, unsigned int i,
			       unsigned long start);
u32 hetmem_vma_why(struct vm_area_struct *vma);
int hetmem_residency(struct mm_struct *mm, struct hetmem_cmd_residency *cmd,
		     bool *partial);

/* migrate.c */
int hetmem_migrate(struct hetmem_context *ctx, struct mm_struct *mm,
		   struct hetmem_cmd_migrate *cmd, bool *partial);

/* device.c */
int hetmem_device_lock(void);
void hetmem_device_unlock(int idx);
struct hetmem_device *hetmem_device_find(u32 id);
u32 hetmem_device_location(const struct page *page);
unsigned int hetmem_device_owners(void **owners);
u32 hetmem_device_caps(const struct hetmem_device *dev);
int hetmem_device_to_device(struct hetmem_device *dev,
			    struct vm_area_struct *vma, unsigned long start,
			    unsigned long end);
int hetmem_device_to_host(struct hetmem_device *dev,
			  struct vm_area_struct *vma, unsigned long start,
			  unsigned long end, int nid);
int hetmem_device_list(struct hetmem_cmd_info *cmd);

#endif /* _HETMEM_H */
