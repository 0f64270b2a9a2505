/* SPDX-License-Identifier: GPL-2.0 */
/*
 * One address space (notifier.c), its tracked ranges (range.c), and blocks
 * that go back and forth (thrash.c).
 */
#ifndef _HETMEM_RANGE_H
#define _HETMEM_RANGE_H

#include <linux/interval_tree.h>
#include <linux/mmu_notifier.h>
#include <linux/semaphore.h>

#include "hetmem.h"

/* Invalidations in progress whose ranges are kept; struct hetmem_mm fits in 4 KiB. */
#define HETMEM_BUSY_SLOTS	192

struct hetmem_busy_slot {
	unsigned long start;
	unsigned long end; /* exclusive */
};

/**
 * struct hetmem_busy - invalidations in progress: begun, not ended
 * @nr: used entries of @slots
 * @nr_others: how many there are besides
 * @slots: their ranges
 */
struct hetmem_busy {
	unsigned int nr;
	unsigned int nr_others;
	struct hetmem_busy_slot slots[HETMEM_BUSY_SLOTS];
};

/**
 * struct hetmem_mm - an address space that has contexts
 * @notifier: has its mm_struct; keeps it
 * @node: in the table of address spaces, from the first context on until it is freed
 * @rcu: for readers of that table
 * @tgid: of the process that opened the first context, for tracing
 * @looks: bounds @windows, and with them what a notification looks at
 * @quiet: for the end of an invalidation
 * @idle: drops the reference that outlives the last context
 * @nr_jobs: workers that use the memory, see background.c
 *
 * @lock protects what follows, and its contexts.
 * @contexts: all of them; the first one's user is charged for this struct
 * @nr_contexts: how many they are
 * @ended: the memory is gone
 * @windows: looks in progress
 * @busy: invalidations in progress
 */
struct hetmem_mm {
	struct mmu_notifier notifier;
	struct hlist_node node;
	struct rcu_head rcu;
	pid_t tgid;
	struct semaphore looks;
	wait_queue_head_t quiet;
	struct delayed_work idle;
	atomic_t nr_jobs;
	spinlock_t lock; /* what follows, and contexts */
	struct list_head contexts;
	unsigned int nr_contexts;
	bool ended;
	struct list_head windows;
	struct hetmem_busy busy;
};

/**
 * struct hetmem_window - a look at pages that no invalidation may overtake
 * @node: in hm->windows
 * @start: first byte; at most a block, inside one
 * @end: first byte behind it
 * @fake: never inserted: hmm_range_fault() finds the mm_struct and the sequence
 *	number here
 * @lock: held by the decoder and, inside of hm->lock, by an invalidation that
 *	overlaps; protects fake.invalidate_seq
 * @seq: of the try at work
 * @unmapped: overlapped by the invalidation of an unmapping; by hm->lock
 * @mover: the task whose own MIGRATE this is, or NULL
 */
struct hetmem_window {
	struct list_head node;
	unsigned long start;
	unsigned long end;
	struct mmu_interval_notifier fake;
	spinlock_t lock; /* fake.invalidate_seq */
	unsigned long seq;
	bool unmapped;
	struct task_struct *mover;
};

/* notifier.c */
int hetmem_mm_attach(struct hetmem_context *ctx);
void hetmem_mm_detach(struct hetmem_context *ctx);
void hetmem_mm_put(struct hetmem_mm *hm);
void hetmem_mm_exit(void);
struct hetmem_mm *hetmem_mm_find(const struct mm_struct *mm);
int hetmem_look(struct hetmem_mm *hm, struct hetmem_window *window, unsigned long start,
		unsigned long end, int (*look)(struct hetmem_window *window));

/**
 * struct hetmem_notification - what an MMU notification announces
 * @change: enum hetmem_change
 * @attempt: a driver that is not registered wants to move pages, and not on
 *	behalf of our own MIGRATE
 * @start: first byte
 * @last: last byte
 */
struct hetmem_notification {
	enum hetmem_change change;
	bool attempt;
	unsigned long start;
	unsigned long last;
};

/* State of a block of a tracked range, as last looked at. */
struct hetmem_block {
	u32 location;
	u16 on_device;
};

/**
 * struct hetmem_range - a tracked range
 * @node: where, in context->ranges
 * @bytes: that it takes
 * @count: what happened to it
 * @nr_blocks: that it touches
 * @dirty: a bit for each: notified since
 * @exclusive: a bit for each: that was EXCLUSIVE, and the last
 * @any_exclusive: @exclusive is not empty
 * @clean_as_of: older than context->all_dirty: as if all of @dirty were set
 * @looking: block that REFRESH is looking at, @nr_blocks if none: not clean yet
 * @on_device: sum over @blocks
 * @next_look: block at which the next REFRESH begins
 * @began: ns, when the last REFRESH that began at the first block did
 * @as_of: ns, @began of the last one that reached the last block
 * @moving: jiffies when pages of it were last seen to begin a way between host
 *	and device
 * @thrashed: THRASH events, added to a ring or not
 * @blocks: what was last known of them
 */
struct hetmem_range {
	struct interval_tree_node node;
	size_t bytes;
	struct hetmem_counters count;
	unsigned long nr_blocks;
	unsigned long *dirty;
	unsigned long *exclusive;
	bool any_exclusive;
	u64 clean_as_of;
	unsigned long looking;
	u64 on_device;
	unsigned long next_look;
	u64 began;
	u64 as_of;
	unsigned long moving;
	u64 thrashed;
	struct hetmem_block blocks[];
};

/* The block of a range that @addr, which lies in the range, is in. */
static inline unsigned long hetmem_range_block(const struct hetmem_range *range, unsigned long addr)
{
	return (addr >> HETMEM_BLOCK_SHIFT) - (range->node.start >> HETMEM_BLOCK_SHIFT);
}

/* range.c */
int hetmem_track(struct hetmem_context *ctx, void *cmd);
int hetmem_untrack(struct hetmem_context *ctx, void *cmd);
int hetmem_stats(struct hetmem_context *ctx, void *cmd);
void hetmem_range_del_all(struct hetmem_context *ctx);
void hetmem_context_notify(struct hetmem_context *ctx, const struct hetmem_notification *n);
void hetmem_context_count(struct hetmem_context *ctx, unsigned long start, unsigned long last,
			  enum hetmem_counter what, u32 location);
struct hetmem_range *hetmem_range_first(struct hetmem_context *ctx, unsigned long start,
					unsigned long last);
void hetmem_range_on_device(struct hetmem_context *ctx, struct hetmem_range *range, unsigned long i,
			    u32 location, unsigned int nr_pages);
u64 hetmem_range_nr_dirty(const struct hetmem_context *ctx, const struct hetmem_range *range);
bool hetmem_exclusive_seen(struct hetmem_context *ctx, unsigned long addr);

/* thrash.c */
extern unsigned int hetmem_thrash_count;
extern unsigned int hetmem_thrash_window_ms;
extern const size_t hetmem_thrash_bytes; /* of context->thrash */
void hetmem_thrash_bounce(struct hetmem_context *ctx, struct hetmem_range *range,
			  unsigned long start, unsigned long last, enum hetmem_counter what,
			  u32 location);
void hetmem_thrash_attempt(struct hetmem_context *ctx, struct hetmem_range *range,
			   unsigned long start, unsigned long last);

#endif /* _HETMEM_RANGE_H */
