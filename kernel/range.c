// SPDX-License-Identifier: GPL-2.0
/*
 * Tracked ranges, and the MMU notifications that are counted, marked and told
 * for them.
 *
 * Design. A context has one interval notifier over its whole address space,
 * inserted when it is opened, so that one notification costs one callback
 * whatever the number of ranges. The ranges are in an interval tree of our
 * own; they never overlap. The callback finds the ones that a notification
 * touches in O(log n) and then pays for each of them: never for another
 * process's deeds, since reclaim, KSM, khugepaged and the OOM reaper notify
 * of at most a PMD at a time. The one notification that touches everything,
 * RELEASE, is counted for the context alone and added when somebody asks.
 *
 * A range knows nothing of VMAs: mappings come and go below it. munmap()
 * leaves it, mremap() does not take it along (the kernel tells of the old
 * place and never of the new one, so userspace tracks that).
 *
 * A range remembers, for each block of 2 MiB, how many of its pages were on a
 * device when that was last known, and whether it is dirty: notified since.
 * The callback marks at most HETMEM_MARK_MAX blocks; beyond, the whole range.
 * Looking again is refresh.c's, in the context of who asks. Devices that are
 * registered with hetmem tell themselves what arrives.
 *
 * Locking. context->lock is a spinlock and protects the tree, the ranges and
 * all counters. It is the innermost lock of this module but for the owner and
 * pgmap tables of foreign.c. The callback takes it, and so the rules for
 * callbacks are the rules for holding it: no allocation, no sleeping, no
 * mmap_lock, and never across hmm_range_fault(), migrate_vma_*(),
 * mmu_interval_read_begin() or _remove(). Ranges are therefore allocated
 * before it is taken and freed after it was dropped.
 *
 * The callback always succeeds, also when it must not block. It sets the
 * sequence number although nobody reads this notifier's: the core's contract
 * wants it done under the lock that the callback takes.
 */
#include <linux/bitmap.h>
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "hetmem.h"
#include "trace.h"

/* Blocks of a range that one notification marks one by one. */
#define HETMEM_MARK_MAX		64

/* Ranges that it looks at before it lets others, reclaim say, have the lock. */
#define HETMEM_NOTIFY_MAX	256

static struct kmem_cache *hetmem_range_cache;

int hetmem_range_init(void)
{
	hetmem_range_cache = KMEM_CACHE(hetmem_range, SLAB_ACCOUNT);
	return hetmem_range_cache ? 0 : -ENOMEM;
}

void hetmem_range_exit(void)
{
	kmem_cache_destroy(hetmem_range_cache);
}

/**
 * hetmem_range_on_device - remember what of a block is on a device
 * @ctx: context of the range
 * @range: tracked range, which nobody else looks at or with the lock of its
 *	context held
 * @i: block
 * @location: device; of no matter if @nr_pages is 0
 * @nr_pages: pages
 */
void hetmem_range_on_device(struct hetmem_context *ctx,
			    struct hetmem_range *range, unsigned long i,
			    u32 location, unsigned int nr_pages)
{
	struct hetmem_block *block = &range->blocks[i];
	long more = (long)nr_pages - block->on_device;

	range->on_device += more;
	/* In one go where it stays: who asks for room meanwhile looks. */
	if (nr_pages && location != block->location) {
		hetmem_foreign_seen(ctx->user, block->location,
				    -(long)block->on_device);
		block->location = location;
		more = nr_pages;
	}
	block->on_device = nr_pages;
	hetmem_foreign_seen(ctx->user, block->location, more);
}

static void hetmem_range_free(struct hetmem_context *ctx,
			      struct hetmem_range *range)
{
	unsigned long i;

	for (i = 0; i < range->nr_blocks && range->on_device; i++)
		hetmem_range_on_device(ctx, range, i, 0, 0);
	kvfree(range->blocks);
	kvfree(range->dirty);
	kmem_cache_free(hetmem_range_cache, range);
}

static struct hetmem_range *hetmem_range_alloc(struct hetmem_context *ctx,
					       unsigned long start,
					       unsigned long end)
{
	struct hetmem_range *range;

	range = kmem_cache_zalloc(hetmem_range_cache, GFP_KERNEL_ACCOUNT);
	if (!range)
		return NULL;
	range->node.start = start;
	range->node.last = end - 1;
	range->nr_blocks = hetmem_range_block(range, end - 1) + 1;
	range->blocks = kvcalloc(range->nr_blocks, sizeof(*range->blocks),
				 GFP_KERNEL_ACCOUNT);
	range->dirty = kvcalloc(BITS_TO_LONGS(range->nr_blocks), sizeof(long),
				GFP_KERNEL_ACCOUNT);
	if (!range->blocks || !range->dirty) {
		hetmem_range_free(ctx, range);
		return NULL;
	}
	/* Nothing is known of it so far. */
	range->all_dirty = true;
	range->looking = range->nr_blocks;
	range->moving = jiffies - HETMEM_SETTLE - 1;
	return range;
}

struct hetmem_range *hetmem_range_first(struct hetmem_context *ctx,
					unsigned long start,
					unsigned long last)
{
	struct interval_tree_node *node;

	lockdep_assert_held(&ctx->lock);
	node = interval_tree_iter_first(&ctx->ranges, start, last);
	return node ? container_of(node, struct hetmem_range, node) : NULL;
}

static struct hetmem_range *hetmem_range_next(struct hetmem_range *range,
					      unsigned long start,
					      unsigned long last)
{
	struct interval_tree_node *node;

	node = interval_tree_iter_next(&range->node, start, last);
	return node ? container_of(node, struct hetmem_range, node) : NULL;
}

int hetmem_range_add(struct hetmem_context *ctx, unsigned long start,
		     unsigned long end)
{
	unsigned long max_blocks = READ_ONCE(hetmem_caps.max_blocks);
	unsigned int max_ranges = READ_ONCE(hetmem_caps.max_ranges);
	struct hetmem_range *range;
	int ret = 0;

	/* A hopeless size must not be allocated first. */
	if ((end - start) >> HETMEM_BLOCK_SHIFT > max_blocks) {
		trace_hetmem_limit_hit("max_blocks", max_blocks);
		return -ENOSPC;
	}
	range = hetmem_range_alloc(ctx, start, end);
	if (!range)
		return -ENOMEM;

	spin_lock(&ctx->lock);
	if (hetmem_range_first(ctx, start, end - 1)) {
		ret = -EEXIST;
	} else if (ctx->nr_ranges >= max_ranges) {
		ret = -ENOSPC;
		trace_hetmem_limit_hit("max_ranges", max_ranges);
	} else if (ctx->nr_blocks + range->nr_blocks > max_blocks) {
		ret = -ENOSPC;
		trace_hetmem_limit_hit("max_blocks", max_blocks);
	} else {
		range->id = ++ctx->last_id;
		interval_tree_insert(&range->node, &ctx->ranges);
		ctx->nr_ranges++;
		ctx->nr_blocks += range->nr_blocks;
		hetmem_total_add(HETMEM_TOTAL_RANGES, 1);
	}
	spin_unlock(&ctx->lock);

	trace_hetmem_track(ctx, start, end, ret);
	if (ret)
		hetmem_range_free(ctx, range);
	return ret;
}

int hetmem_range_del(struct hetmem_context *ctx, unsigned long start,
		     unsigned long end)
{
	struct hetmem_range *range;

	spin_lock(&ctx->lock);
	range = hetmem_range_first(ctx, start, end - 1);
	if (range && range->node.start == start &&
	    range->node.last == end - 1) {
		interval_tree_remove(&range->node, &ctx->ranges);
		ctx->nr_ranges--;
		ctx->nr_blocks -= range->nr_blocks;
	} else {
		range = NULL;
	}
	spin_unlock(&ctx->lock);

	trace_hetmem_untrack(ctx, start, end, range ? 0 : -ENOENT);
	if (!range)
		return -ENOENT;
	hetmem_total_add(HETMEM_TOTAL_RANGES, -1);
	hetmem_range_free(ctx, range);
	return 0;
}

/* At close, when neither a callback nor a command can come any more. */
void hetmem_range_del_all(struct hetmem_context *ctx)
{
	struct interval_tree_node *node;

	while ((node = interval_tree_iter_first(&ctx->ranges, 0, ULONG_MAX))) {
		interval_tree_remove(node, &ctx->ranges);
		hetmem_total_add(HETMEM_TOTAL_RANGES, -1);
		hetmem_range_free(ctx, container_of(node, struct hetmem_range,
						    node));
		cond_resched();
	}
}

static enum hetmem_notification
hetmem_notification_of(const struct mmu_notifier_range *range)
{
	switch (range->event) {
	case MMU_NOTIFY_UNMAP:
		return HETMEM_NOTIFY_UNMAP;
	case MMU_NOTIFY_CLEAR:
		return HETMEM_NOTIFY_CLEAR;
	case MMU_NOTIFY_PROTECTION_VMA:
	case MMU_NOTIFY_PROTECTION_PAGE:
		return HETMEM_NOTIFY_PROTECTION;
	case MMU_NOTIFY_SOFT_DIRTY:
		return HETMEM_NOTIFY_SOFT_DIRTY;
	case MMU_NOTIFY_RELEASE:
		return HETMEM_NOTIFY_RELEASE;
	case MMU_NOTIFY_MIGRATE:
		return HETMEM_NOTIFY_MIGRATE;
	case MMU_NOTIFY_EXCLUSIVE:
		return HETMEM_NOTIFY_EXCLUSIVE;
	default:
		return HETMEM_NOTIFY_OTHER;
	}
}

/* Where pages are may have changed in [@start, @last], part of the range. */
static void hetmem_range_mark(struct hetmem_range *range, unsigned long start,
			      unsigned long last)
{
	unsigned long first = hetmem_range_block(range, start);
	unsigned long nr = hetmem_range_block(range, last) - first + 1;

	if (nr > HETMEM_MARK_MAX)
		range->all_dirty = true;
	else if (!range->all_dirty)
		bitmap_set(range->dirty, first, nr);
}

/* One range and what a notification says of its part [@start, @last]. */
static void hetmem_range_notify(struct hetmem_context *ctx,
				struct hetmem_range *range,
				enum hetmem_notification type, bool attempt,
				unsigned long start, unsigned long last)
{
	u32 told = type == HETMEM_NOTIFY_MIGRATE ? HETMEM_EVENT_MIGRATE_SEEN :
						   HETMEM_EVENT_INVALIDATED;

	range->count.notified[type]++;
	/* Eviction by a driver comes as CLEAR, and may fail. */
	if (type == HETMEM_NOTIFY_MIGRATE ||
	    (type == HETMEM_NOTIFY_CLEAR && range->on_device))
		range->moving = jiffies;
	if (type == HETMEM_NOTIFY_MIGRATE || type == HETMEM_NOTIFY_UNMAP ||
	    type == HETMEM_NOTIFY_CLEAR || type == HETMEM_NOTIFY_OTHER)
		hetmem_range_mark(range, start, last);
	if (attempt)
		hetmem_thrash_seen(ctx, range, start, last, 0, 0, false);
	if (hetmem_ring_wants(ctx, told)) {
		struct hetmem_event event = {
			.type = told,
			.cause = type,
			.start = start,
			.end = last + 1,
		};

		hetmem_ring_add(ctx, &event);
	}
}

/*
 * The ranges that a notification touches, HETMEM_NOTIFY_MAX of them at most;
 * context->lock is held. Return: where to go on, 0 if that was all.
 */
static unsigned long hetmem_ranges_notify(struct hetmem_context *ctx,
					  enum hetmem_notification type,
					  bool attempt, unsigned long start,
					  unsigned long last)
{
	struct hetmem_range *range;
	unsigned int nr = 0;

	for (range = hetmem_range_first(ctx, start, last); range;
	     range = hetmem_range_next(range, start, last)) {
		if (nr++ == HETMEM_NOTIFY_MAX)
			return range->node.start;
		hetmem_range_notify(ctx, range, type, attempt,
				    max(start, range->node.start),
				    min(last, range->node.last));
	}
	return 0;
}

static bool hetmem_invalidate(struct mmu_interval_notifier *notifier,
			      const struct mmu_notifier_range *invalidated,
			      unsigned long cur_seq)
{
	struct hetmem_context *ctx =
		container_of(notifier, struct hetmem_context, notifier);
	enum hetmem_notification type = hetmem_notification_of(invalidated);
	unsigned long start = invalidated->start;
	unsigned long last = invalidated->end - 1;
	bool attempt = false;

	hetmem_total_add(HETMEM_TOTAL_CALLBACKS, 1);
	if (type == HETMEM_NOTIFY_MIGRATE) {
		hetmem_owner_learn(invalidated->owner);
		/* Registered devices tell what arrives. */
		attempt = !hetmem_owner_is_registered(invalidated->owner);
	}
	trace_hetmem_notify(ctx, type, start, invalidated->end);
	if (type == HETMEM_NOTIFY_RELEASE)
		hetmem_hints_fail(ctx);

	spin_lock(&ctx->lock);
	mmu_interval_set_seq(notifier, cur_seq);
	ctx->total.notified[type]++;
	if (type == HETMEM_NOTIFY_UNMAP || type == HETMEM_NOTIFY_RELEASE)
		hetmem_pin_unmapped(ctx, start, last);
	while (type != HETMEM_NOTIFY_RELEASE) {
		start = hetmem_ranges_notify(ctx, type, attempt, start, last);
		if (!start)
			break;
		spin_unlock(&ctx->lock);
		cpu_relax();
		spin_lock(&ctx->lock);
	}
	spin_unlock(&ctx->lock);
	hetmem_ring_wake(ctx);
	return true;
}

const struct mmu_interval_notifier_ops hetmem_notifier_ops = {
	.invalidate = hetmem_invalidate,
};

/*
 * A registered device's word on where pages of a block are now. That pages were
 * dropped it does not tell, and what it tells REFRESH may have seen before: the
 * sum can exceed what there is, until the next look.
 */
static void hetmem_block_moved(struct hetmem_context *ctx,
			       struct hetmem_range *range, unsigned long i,
			       enum hetmem_counter what, u32 location,
			       unsigned int nr_pages)
{
	struct hetmem_block *block = &range->blocks[i];
	unsigned int before = block->on_device;
	unsigned int all = (hetmem_range_block_end(range, i) -
			    hetmem_range_block_start(range, i)) >> PAGE_SHIFT;

	if (what == HETMEM_COUNT_TO_DEVICE)
		hetmem_range_on_device(ctx, range, i, location,
				       min(before + nr_pages, all));
	else
		hetmem_range_on_device(ctx, range, i, block->location,
				       before - min(before, nr_pages));
	__set_bit(i, range->dirty);
}

/* Told by hetmem_device_moved(): pages of the range arrived at @location. */
static void hetmem_range_moved(struct hetmem_context *ctx,
			       struct hetmem_range *range,
			       unsigned long start, unsigned long last,
			       enum hetmem_counter what, u32 location)
{
	u32 told = what == HETMEM_COUNT_TO_DEVICE ? HETMEM_EVENT_TO_DEVICE :
						    HETMEM_EVENT_TO_HOST;
	struct hetmem_event event = {
		.type = told,
		.start = start,
		.end = last + 1,
		.location = what == HETMEM_COUNT_TO_DEVICE ? location :
			HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY),
		.count = (last - start + 1) >> PAGE_SHIFT,
	};
	unsigned long at, block_last;

	for (at = start; at <= last; at = block_last + 1) {
		block_last = min(last, at | (HETMEM_BLOCK_SIZE - 1));
		hetmem_block_moved(ctx, range, hetmem_range_block(range, at),
				   what, location,
				   (block_last - at + 1) >> PAGE_SHIFT);
	}
	if (hetmem_ring_wants(ctx, told))
		hetmem_ring_add(ctx, &event);
	hetmem_thrash_seen(ctx, range, start, last, what, location, true);
}

/**
 * hetmem_range_count - count pages, each where it belongs
 * @ctx: context
 * @start: first byte of the pages
 * @last: their last byte
 * @what: happened to them
 * @location: the device that they went to or came from, if they moved
 */
void hetmem_range_count(struct hetmem_context *ctx, unsigned long start,
			unsigned long last, enum hetmem_counter what,
			u32 location)
{
	struct hetmem_range *range;

	spin_lock(&ctx->lock);
	ctx->total.pages[what] += (last - start + 1) >> PAGE_SHIFT;
	for (range = hetmem_range_first(ctx, start, last); range;
	     range = hetmem_range_next(range, start, last)) {
		unsigned long from = max(start, range->node.start);
		unsigned long to = min(last, range->node.last);

		range->count.pages[what] += (to - from + 1) >> PAGE_SHIFT;
		if (what != HETMEM_COUNT_FAILED)
			hetmem_range_moved(ctx, range, from, to, what,
					   location);
	}
	spin_unlock(&ctx->lock);
	hetmem_ring_wake(ctx);
}

u64 hetmem_range_nr_dirty(const struct hetmem_range *range)
{
	u64 nr;

	if (range->all_dirty)
		return range->nr_blocks;
	nr = bitmap_weight(range->dirty, range->nr_blocks);
	if (range->looking < range->nr_blocks &&
	    !test_bit(range->looking, range->dirty))
		nr++;
	return nr;
}

int hetmem_range_stats(struct hetmem_context *ctx,
		       struct hetmem_cmd_stats *stats)
{
	bool whole = stats->flags & HETMEM_STATS_CONTEXT;
	struct hetmem_counters *count = &ctx->total;
	struct hetmem_range *range;
	int ret = 0;

	if (whole && stats->start)
		return -EINVAL;
	stats->on_device = 0;
	stats->dirty_blocks = 0;
	stats->as_of = 0;
	stats->thrashed = 0;
	spin_lock(&ctx->lock);
	if (whole) {
		stats->end = TASK_SIZE_MAX;
	} else {
		range = hetmem_range_first(ctx, stats->start, stats->start);
		if (!range) {
			ret = -ENOENT;
			goto out;
		}
		stats->start = range->node.start;
		stats->end = range->node.last + 1;
		stats->on_device = range->on_device;
		stats->dirty_blocks = hetmem_range_nr_dirty(range);
		stats->as_of = range->as_of;
		stats->thrashed = range->thrashed;
		count = &range->count;
	}
	memcpy(stats->notified, count->notified, sizeof(stats->notified));
	stats->notified[HETMEM_NOTIFY_RELEASE] =
		ctx->total.notified[HETMEM_NOTIFY_RELEASE];
	stats->to_device = count->pages[HETMEM_COUNT_TO_DEVICE];
	stats->to_host = count->pages[HETMEM_COUNT_TO_HOST];
	stats->failed = count->pages[HETMEM_COUNT_FAILED];
out:
	spin_unlock(&ctx->lock);
	return ret;
}
