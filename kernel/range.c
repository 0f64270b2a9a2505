// SPDX-License-Identifier: GPL-2.0
/*
 * Tracked ranges, and what notifications and devices' reports do to them.
 *
 * Design. The ranges of a context are in an interval tree and never overlap. A
 * notification (notifier.c) finds the ranges that it touches in O(log n) and
 * then pays for each, up to HETMEM_NOTIFY_MAX of them. Beyond, it makes all
 * ranges of the context dirty at once, by a generation: context->all_dirty
 * grows, and a range with an older clean_as_of is dirty as a whole.
 *
 * A range knows nothing of VMAs: mappings come and go below it. munmap()
 * leaves it, mremap() does not take it along (the kernel tells of the old
 * place and never of the new one, so userspace tracks that).
 *
 * A range remembers, for each block of 2 MiB, how many of its pages were on a
 * device when that was last known; whether it is dirty, notified since; and
 * whether the last notification was EXCLUSIVE. A notification sets the bits of
 * the blocks that it touches, however many: a word of them is 128 MiB, and the
 * quota of a user bounds all bits. Looking again is refresh.c's, in the context of
 * the caller. Devices that are registered with hetmem report themselves what
 * arrives.
 *
 * Locking. hm->lock, see notifier.c. Ranges are allocated before it is taken
 * and freed after it was dropped.
 */
#include "device.h"
#include "range.h"
#include "trace.h"

/* Ranges of a context that one notification, or report, pays for one by one. */
#define HETMEM_NOTIFY_MAX	64

/* Blocks that are forgotten before others get the lock. */
#define HETMEM_FORGET_MAX	512

/**
 * hetmem_range_on_device - remember what of a block is on a device
 * @ctx: context of the range
 * @range: tracked range, in the tree with hm->lock held, or out of it
 * @i: block
 * @location: device; of no matter if @nr_pages is 0
 * @nr_pages: pages
 */
void hetmem_range_on_device(struct hetmem_context *ctx, struct hetmem_range *range, unsigned long i,
			    u32 location, unsigned int nr_pages)
{
	struct hetmem_block *block = &range->blocks[i];

	range->on_device += (long)nr_pages - block->on_device;
	if (!nr_pages)
		location = block->location;
	hetmem_foreign_seen(ctx, block->location, -(long)block->on_device);
	hetmem_foreign_seen(ctx, location, nr_pages);
	block->location = location;
	block->on_device = nr_pages;
}

static struct hetmem_range *range_alloc(struct hetmem_context *ctx, unsigned long start,
					unsigned long end)
{
	unsigned long nr = ((end - 1) >> HETMEM_BLOCK_SHIFT) - (start >> HETMEM_BLOCK_SHIFT) + 1;
	const size_t bits = BITS_TO_LONGS(nr) * sizeof(long);
	struct hetmem_range *range;
	size_t bytes = struct_size(range, blocks, nr) + 2 * bits;

	range = hetmem_alloc(ctx->user, bytes);
	if (IS_ERR(range))
		return range;
	range->bytes = bytes;
	range->node.start = start;
	range->node.last = end - 1;
	range->nr_blocks = nr;
	range->dirty = (void *)&range->blocks[nr];
	range->exclusive = (void *)range->dirty + bits;
	range->looking = nr;
	return range;
}

/* A range that has left the tree. */
static void range_free(struct hetmem_context *ctx, struct hetmem_range *range)
{
	unsigned long i = 0, stop;

	while (range->on_device) {
		scoped_guard(spinlock, &ctx->hm->lock) {
			stop = min(i + HETMEM_FORGET_MAX, range->nr_blocks);
			for (; i < stop; i++)
				hetmem_range_on_device(ctx, range, i, 0, 0);
		}
		cond_resched();
	}
	hetmem_free(ctx->user, range, range->bytes);
	hetmem_total_add(ranges, -1);
}

struct hetmem_range *hetmem_range_first(struct hetmem_context *ctx, unsigned long start,
					unsigned long last)
{
	struct interval_tree_node *node;

	lockdep_assert_held(&ctx->hm->lock);
	node = interval_tree_iter_first(&ctx->ranges, start, last);
	return node ? container_of(node, struct hetmem_range, node) : NULL;
}

/* HETMEM_IOC_TRACK */
int hetmem_track(struct hetmem_context *ctx, void *arg)
{
	const struct hetmem_cmd_track *cmd = arg;
	struct hetmem_range *range;
	int ret = 0;

	range = range_alloc(ctx, cmd->start, cmd->end);
	if (IS_ERR(range))
		return PTR_ERR(range);

	spin_lock(&ctx->hm->lock);
	if (hetmem_range_first(ctx, cmd->start, cmd->end - 1)) {
		ret = -EEXIST;
	} else {
		/* Nothing is known of it so far. */
		range->clean_as_of = ctx->all_dirty - 1;
		range->moving = jiffies - HETMEM_SETTLE - 1;
		interval_tree_insert(&range->node, &ctx->ranges);
		WRITE_ONCE(ctx->nr_ranges, ctx->nr_ranges + 1);
	}
	spin_unlock(&ctx->hm->lock);

	trace_hetmem_track(ctx, cmd->start, cmd->end, 0, 0, ret);
	if (ret)
		hetmem_free(ctx->user, range, range->bytes);
	else
		hetmem_total_add(ranges, 1);
	return ret;
}

/* HETMEM_IOC_UNTRACK */
int hetmem_untrack(struct hetmem_context *ctx, void *arg)
{
	const struct hetmem_cmd_untrack *cmd = arg;
	struct hetmem_range *range;

	/* One that REFRESH looks at stays. */
	if (mutex_lock_killable(&ctx->refresh))
		return -EINTR;
	spin_lock(&ctx->hm->lock);
	range = hetmem_range_first(ctx, cmd->start, cmd->end - 1);
	if (range && range->node.start == cmd->start && range->node.last == cmd->end - 1) {
		interval_tree_remove(&range->node, &ctx->ranges);
		WRITE_ONCE(ctx->nr_ranges, ctx->nr_ranges - 1);
	} else {
		range = NULL;
	}
	spin_unlock(&ctx->hm->lock);
	mutex_unlock(&ctx->refresh);

	trace_hetmem_untrack(ctx, cmd->start, cmd->end, 0, 0, range ? 0 : -ENOENT);
	if (!range)
		return -ENOENT;
	range_free(ctx, range);
	return 0;
}

/* At close, when neither a notification nor a command can come any more. */
void hetmem_range_del_all(struct hetmem_context *ctx)
{
	struct interval_tree_node *node;
	struct hetmem_range *range;

	while ((node = interval_tree_iter_first(&ctx->ranges, 0, ULONG_MAX))) {
		range = container_of(node, struct hetmem_range, node);
		interval_tree_remove(node, &ctx->ranges);
		range_free(ctx, range);
		cond_resched();
	}
}

/* Where pages are may have changed in @nr blocks from @first on. */
static void range_mark(struct hetmem_range *range, unsigned long first, unsigned long nr,
		       bool exclusive)
{
	bitmap_set(range->dirty, first, nr);
	if (exclusive)
		bitmap_set(range->exclusive, first, nr);
	else if (range->any_exclusive)
		bitmap_clear(range->exclusive, first, nr);
	range->any_exclusive = exclusive || (range->any_exclusive && nr < range->nr_blocks);
}

/* One range, of which [@start, @last] is notified. */
static void range_notify(struct hetmem_context *ctx, struct hetmem_range *range,
			 const struct hetmem_notification *n, unsigned long start,
			 unsigned long last)
{
	unsigned long first = hetmem_range_block(range, start);
	unsigned long nr = hetmem_range_block(range, last) - first + 1;

	range->count.changes[n->change]++;
	/* Eviction by a driver comes as REPLACE, and may fail. */
	if (n->change == HETMEM_CHANGE_MIGRATE ||
	    (n->change == HETMEM_CHANGE_REPLACE && range->on_device))
		range->moving = jiffies;
	if (n->change != HETMEM_CHANGE_PROTECT)
		range_mark(range, first, nr, n->change == HETMEM_CHANGE_EXCLUSIVE);
	if (n->attempt)
		hetmem_thrash_attempt(ctx, range, start, last);
}

/* A notification for a context. hm->lock is held. */
void hetmem_context_notify(struct hetmem_context *ctx, const struct hetmem_notification *n)
{
	struct hetmem_event event = { .type = HETMEM_EVENT_INVALIDATED, .cause = n->change };
	struct hetmem_range *range;
	unsigned int nr = 0;

	ctx->total.changes[n->change]++;
	if (n->change == HETMEM_CHANGE_UNMAP || n->change == HETMEM_CHANGE_EXIT)
		hetmem_pin_unmapped(ctx, n->start, n->last);
	if (n->change == HETMEM_CHANGE_EXIT || !ctx->nr_ranges)
		return;
	for (range = hetmem_range_first(ctx, n->start, n->last); range;
	     range = hetmem_range_first(ctx, range->node.last + 1, n->last)) {
		event.start = max(n->start, range->node.start);
		event.end = min(n->last, range->node.last) + 1;
		if (nr++ == HETMEM_NOTIFY_MAX) {
			ctx->all_dirty++;
			ctx->moving = jiffies;
			event.end = n->last + 1;
			hetmem_ring_add(ctx, &event);
			break;
		}
		range_notify(ctx, range, n, event.start, event.end - 1);
		hetmem_ring_add(ctx, &event);
	}
}

/**
 * hetmem_context_count - count pages, each where it belongs
 * @ctx: context, hm->lock held
 * @start: first byte of the pages
 * @last: their last byte
 * @what: happened to them
 * @location: the device that they went to or came from, if they moved
 */
void hetmem_context_count(struct hetmem_context *ctx, unsigned long start, unsigned long last,
			  enum hetmem_counter what, u32 location)
{
	struct hetmem_range *range;
	unsigned int nr = 0;
	unsigned long first;

	ctx->total.pages[what] += (last - start + 1) >> PAGE_SHIFT;
	for (range = hetmem_range_first(ctx, start, last); range;
	     range = hetmem_range_first(ctx, range->node.last + 1, last)) {
		unsigned long from = max(start, range->node.start);
		unsigned long to = min(last, range->node.last);

		if (nr++ == HETMEM_NOTIFY_MAX) {
			ctx->all_dirty++;
			break;
		}
		range->count.pages[what] += (to - from + 1) >> PAGE_SHIFT;
		if (what == HETMEM_COUNT_FAILED)
			continue;
		/* REFRESH finds out what that means for its blocks. */
		first = hetmem_range_block(range, from);
		bitmap_set(range->dirty, first, hetmem_range_block(range, to) - first + 1);
		hetmem_thrash_bounce(ctx, range, from, to, what, location);
	}
}

u64 hetmem_range_nr_dirty(const struct hetmem_context *ctx, const struct hetmem_range *range)
{
	u64 nr;

	if (range->clean_as_of != ctx->all_dirty)
		return range->nr_blocks;
	nr = bitmap_weight(range->dirty, range->nr_blocks);
	if (range->looking < range->nr_blocks && !test_bit(range->looking, range->dirty))
		nr++;
	return nr;
}

/* Whether the last notification of the block of @addr was EXCLUSIVE. */
bool hetmem_exclusive_seen(struct hetmem_context *ctx, unsigned long addr)
{
	struct hetmem_range *range;

	/* Nobody asks while ranges come and go and expects an exact answer. */
	if (!READ_ONCE(ctx->nr_ranges))
		return false;
	guard(spinlock)(&ctx->hm->lock);
	range = hetmem_range_first(ctx, addr, addr);
	return range && range->any_exclusive &&
	       test_bit(hetmem_range_block(range, addr), range->exclusive);
}

/* HETMEM_IOC_STATS */
int hetmem_stats(struct hetmem_context *ctx, void *arg)
{
	struct hetmem_cmd_stats *cmd = arg;
	const bool whole = cmd->flags & HETMEM_STATS_CONTEXT;
	const bool next = cmd->flags & HETMEM_STATS_NEXT;
	struct hetmem_counters *count = &ctx->total;
	struct hetmem_range *range;

	if (whole && (cmd->start || next))
		return -EINVAL;
	hetmem_clear_from(cmd, offsetof(typeof(*cmd), to_device), sizeof(*cmd));
	cmd->end = TASK_SIZE_MAX;
	cmd->nr_changes = HETMEM_CHANGE_NR;
	guard(spinlock)(&ctx->hm->lock);
	if (!whole) {
		range = hetmem_range_first(ctx, cmd->start, next ? ULONG_MAX : cmd->start);
		if (!range)
			return -ENOENT;
		cmd->start = range->node.start;
		cmd->end = range->node.last + 1;
		cmd->on_device = range->on_device;
		cmd->dirty_blocks = hetmem_range_nr_dirty(ctx, range);
		cmd->as_of = range->as_of;
		cmd->thrashed = range->thrashed;
		count = &range->count;
	}
	memcpy(cmd->changes, count->changes, sizeof(cmd->changes));
	cmd->changes[HETMEM_CHANGE_EXIT] = ctx->total.changes[HETMEM_CHANGE_EXIT];
	cmd->to_device = count->pages[HETMEM_COUNT_TO_DEVICE];
	cmd->to_host = count->pages[HETMEM_COUNT_TO_HOST];
	cmd->failed = count->pages[HETMEM_COUNT_FAILED];
	return 0;
}
