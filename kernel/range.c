// SPDX-License-Identifier: GPL-2.0
/*
 * Tracked ranges, and the MMU notifications that are counted for them.
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
 * Locking. context->lock is a spinlock and protects the tree and all
 * counters. It is the innermost lock of this module. The callback takes it,
 * and so the rules for callbacks are the rules for holding it: no allocation,
 * no sleeping, no mmap_lock, and never across hmm_range_fault(),
 * migrate_vma_*(), mmu_interval_read_begin() or _remove(). Ranges are
 * therefore allocated before it is taken and freed after it was dropped.
 *
 * The callback always succeeds, also when it must not block. It sets the
 * sequence number although nobody reads this notifier's: the core's contract
 * wants it done under the lock that the callback takes.
 */
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>

#include "hetmem.h"

struct hetmem_range {
	struct interval_tree_node node;
	struct hetmem_counters count;
};

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

static struct hetmem_range *hetmem_range_first(struct hetmem_context *ctx,
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
	struct hetmem_range *range;
	int ret = 0;

	range = kmem_cache_zalloc(hetmem_range_cache, GFP_KERNEL_ACCOUNT);
	if (!range)
		return -ENOMEM;
	range->node.start = start;
	range->node.last = end - 1;

	spin_lock(&ctx->lock);
	if (hetmem_range_first(ctx, start, end - 1)) {
		ret = -EEXIST;
	} else if (ctx->nr_ranges >= HETMEM_MAX_RANGES) {
		ret = -ENOSPC;
	} else {
		interval_tree_insert(&range->node, &ctx->ranges);
		ctx->nr_ranges++;
	}
	spin_unlock(&ctx->lock);

	if (ret)
		kmem_cache_free(hetmem_range_cache, range);
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
	} else {
		range = NULL;
	}
	spin_unlock(&ctx->lock);

	if (!range)
		return -ENOENT;
	kmem_cache_free(hetmem_range_cache, range);
	return 0;
}

/* At close, when neither a callback nor a command can come any more. */
void hetmem_range_del_all(struct hetmem_context *ctx)
{
	struct interval_tree_node *node;

	while ((node = interval_tree_iter_first(&ctx->ranges, 0, ULONG_MAX))) {
		interval_tree_remove(node, &ctx->ranges);
		kmem_cache_free(hetmem_range_cache,
				container_of(node, struct hetmem_range, node));
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

static bool hetmem_invalidate(struct mmu_interval_notifier *notifier,
			      const struct mmu_notifier_range *invalidated,
			      unsigned long cur_seq)
{
	struct hetmem_context *ctx =
		container_of(notifier, struct hetmem_context, notifier);
	enum hetmem_notification type = hetmem_notification_of(invalidated);
	unsigned long start = invalidated->start;
	unsigned long last = invalidated->end - 1;
	struct hetmem_range *range;

	spin_lock(&ctx->lock);
	mmu_interval_set_seq(notifier, cur_seq);
	ctx->total.notified[type]++;
	if (type != HETMEM_NOTIFY_RELEASE) {
		for (range = hetmem_range_first(ctx, start, last); range;
		     range = hetmem_range_next(range, start, last))
			range->count.notified[type]++;
	}
	spin_unlock(&ctx->lock);
	return true;
}

const struct mmu_interval_notifier_ops hetmem_notifier_ops = {
	.invalidate = hetmem_invalidate,
};

static void hetmem_counters_add(struct hetmem_counters *count,
				enum hetmem_counter what, u64 nr_pages)
{
	switch (what) {
	case HETMEM_COUNT_TO_DEVICE:
		count->to_device += nr_pages;
		break;
	case HETMEM_COUNT_TO_HOST:
		count->to_host += nr_pages;
		break;
	case HETMEM_COUNT_FAILED:
		count->failed += nr_pages;
		break;
	}
}

/* Counts the pages of [@start, @last], each where it belongs. */
void hetmem_range_count(struct hetmem_context *ctx, unsigned long start,
			unsigned long last, enum hetmem_counter what)
{
	struct hetmem_range *range;

	spin_lock(&ctx->lock);
	hetmem_counters_add(&ctx->total, what, (last - start + 1) >> PAGE_SHIFT);
	for (range = hetmem_range_first(ctx, start, last); range;
	     range = hetmem_range_next(range, start, last)) {
		unsigned long from = max(start, range->node.start);
		unsigned long to = min(last, range->node.last);

		hetmem_counters_add(&range->count, what,
				    (to - from + 1) >> PAGE_SHIFT);
	}
	spin_unlock(&ctx->lock);
}

int hetmem_range_stats(struct hetmem_context *ctx, unsigned long addr,
		       struct hetmem_cmd_stats *stats)
{
	bool whole = stats->flags & HETMEM_STATS_CONTEXT;
	struct hetmem_counters *count = &ctx->total;
	struct hetmem_range *range;
	int ret = 0;

	spin_lock(&ctx->lock);
	if (whole) {
		stats->start = 0;
		stats->end = TASK_SIZE_MAX;
	} else {
		range = hetmem_range_first(ctx, addr, addr);
		if (!range) {
			ret = -ENOENT;
			goto out;
		}
		stats->start = range->node.start;
		stats->end = range->node.last + 1;
		count = &range->count;
	}
	memcpy(stats->notified, count->notified, sizeof(stats->notified));
	stats->notified[HETMEM_NOTIFY_RELEASE] =
		ctx->total.notified[HETMEM_NOTIFY_RELEASE];
	stats->to_device = count->to_device;
	stats->to_host = count->to_host;
	stats->failed = count->failed;
out:
	spin_unlock(&ctx->lock);
	return ret;
}
