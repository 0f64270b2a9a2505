// SPDX-License-Identifier: GPL-2.0
/*
 * REFRESH: looking again at the blocks of a tracked range that notifications
 * have marked.
 *
 * Design. A driver that is not registered with hetmem announces a migration
 * before it begins and never reports the result. So the callback only marks
 * blocks, and the caller of REFRESH looks, in its own context. A block's mark is
 * cleared before the look: a notification during the look marks it again. Until
 * the look is over the block still counts as dirty.
 *
 * A page on its way to or from a device has been taken out of the page table
 * and is not in it again: it reads as if nothing were there, and no
 * notification comes when it arrives. A block with such pages therefore stays
 * dirty while its range was notified of a move less than HETMEM_SETTLE ago,
 * and pages that seem to have left a device are not believed to have.
 *
 * All pages of a block that are on devices count for the device of the last ones.
 *
 * One command looks at HETMEM_REFRESH_BLOCKS blocks at most, and the next one goes on
 * after them: UNTRACK waits for a REFRESH, which another process can make.
 *
 * Locking. context->refresh over the command, which keeps the range: UNTRACK
 * takes it too. hm->lock for the range's bookkeeping, never across a look.
 */
#include <linux/ktime.h>

#include "device.h"
#include "walk.h"

/**
 * struct refresh - a REFRESH command at work
 * @ctx: context
 * @range: tracked range
 * @walk: of one block
 * @block: block that is being looked at
 * @start: of its part of the range
 * @end: of that
 *
 * Found in it:
 * @on_device: pages on devices
 * @location: of the last of them
 * @unknown: there are pages that are nowhere
 * @moving: some could not be looked at, for they changed all the time
 */
struct refresh {
	struct hetmem_context *ctx;
	struct hetmem_range *range;
	struct hetmem_walk walk;
	unsigned long block;
	unsigned long start;
	unsigned long end;
	unsigned int on_device;
	u32 location;
	bool unknown;
	bool moving;
};

/* Takes the next dirty block, from r->block on. Return: whether there is one. */
static bool refresh_take(struct refresh *r)
{
	struct hetmem_range *range = r->range;
	unsigned long start;

	guard(spinlock)(&r->ctx->hm->lock);
	r->block = find_next_bit(range->dirty, range->nr_blocks, r->block);
	range->looking = r->block;
	if (r->block >= range->nr_blocks)
		return false;
	__clear_bit(r->block, range->dirty);
	start = ALIGN_DOWN(range->node.start, HETMEM_BLOCK_SIZE) + (r->block << HETMEM_BLOCK_SHIFT);
	r->start = max(start, range->node.start);
	r->end = min(start + HETMEM_BLOCK_SIZE - 1, range->node.last) + 1;
	return true;
}

static int refresh_look(struct refresh *r)
{
	const struct hetmem_walk *walk = &r->walk;
	struct hetmem_piece piece;
	unsigned long at;
	int ret;

	r->on_device = 0;
	r->location = 0;
	r->unknown = false;
	r->moving = false;
	for (at = r->start; at < r->end; at = walk->end) {
		ret = hetmem_walk_step(&r->walk, at, r->end);
		if (ret)
			return ret;
		r->moving |= walk->why & HETMEM_WHY_MOVING;
		piece = (struct hetmem_piece){};
		while (hetmem_piece_next(walk, &piece)) {
			r->unknown |= HETMEM_LOC_KIND(piece.location) == HETMEM_UNKNOWN;
			if (!hetmem_on_device(piece.location))
				continue;
			r->on_device += hetmem_piece_pages(&piece);
			r->location = piece.location;
		}
	}
	return 0;
}

/* Remembers what was seen, unless @ret is an error. */
static void refresh_put(struct refresh *r, int ret)
{
	struct hetmem_range *range = r->range;
	bool moves;

	guard(spinlock)(&r->ctx->hm->lock);
	range->looking = range->nr_blocks;
	/* Pages that are nowhere may be on their way to a device or from it. */
	moves = r->unknown && (time_before(jiffies, range->moving + HETMEM_SETTLE) ||
			       time_before(jiffies, r->ctx->moving + HETMEM_SETTLE));
	if (ret || r->moving || moves)
		__set_bit(r->block, range->dirty);
	if (!ret && !r->moving && !(moves && r->on_device < range->blocks[r->block].on_device))
		hetmem_range_on_device(r->ctx, range, r->block, r->location, r->on_device);
}

static int refresh_range(struct refresh *r, struct hetmem_cmd_refresh *cmd)
{
	struct hetmem_range *range = r->range;
	const u64 now = ktime_get_ns();
	int ret = 0;

	/* Once: what makes all blocks dirty later is the next REFRESH's. */
	scoped_guard(spinlock, &r->ctx->hm->lock) {
		if (range->clean_as_of != r->ctx->all_dirty)
			bitmap_fill(range->dirty, range->nr_blocks);
		range->clean_as_of = r->ctx->all_dirty;
		r->block = range->next_look;
		if (!r->block)
			range->began = now;
	}
	for (; !ret && cmd->walked_blocks < HETMEM_REFRESH_BLOCKS && refresh_take(r); r->block++) {
		ret = refresh_look(r);
		refresh_put(r, ret);
		cmd->walked_blocks += !ret;
		if (fatal_signal_pending(current))
			ret = -EINTR;
		cond_resched();
	}
	guard(spinlock)(&r->ctx->hm->lock);
	range->next_look = ret || r->block >= range->nr_blocks ? 0 : r->block;
	if (!ret && !range->next_look)
		range->as_of = range->began;
	cmd->as_of = range->as_of;
	cmd->dirty_blocks = hetmem_range_nr_dirty(r->ctx, range);
	cmd->on_device = range->on_device;
	return ret;
}

/* HETMEM_IOC_REFRESH; the caller holds a reference to the users of its mm. */
int hetmem_refresh(struct hetmem_context *ctx, void *arg)
{
	struct hetmem_cmd_refresh *cmd = arg;
	struct refresh r = { .ctx = ctx };
	int ret;

	hetmem_clear_from(cmd, offsetof(typeof(*cmd), dirty_blocks), sizeof(*cmd));
	ret = hetmem_walk_init(&r.walk, ctx->hm);
	if (ret)
		return ret;
	r.walk.skip_gaps = true;
	if (mutex_lock_killable(&ctx->refresh)) {
		ret = -EINTR;
		goto exit_walk;
	}
	scoped_guard(spinlock, &ctx->hm->lock)
		r.range = hetmem_range_first(ctx, cmd->start, cmd->start);
	ret = r.range ? refresh_range(&r, cmd) : -ENOENT;
	mutex_unlock(&ctx->refresh);
exit_walk:
	hetmem_walk_exit(&r.walk);
	return ret;
}
