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
 * Pages that have left a device count as gone to the host only as far as the
 * host has more pages of the block than before. The others were unmapped,
 * dropped, or moved by mremap(). In a block with pages on several devices the event names one.
 * Devices that are registered with hetmem have told already what moved: for
 * them the counters are put right, and nothing is told.
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
 * @known: where its pages on a device were when it was last looked at
 *
 * Found in it, in pages:
 * @on_device: on devices
 * @stayed: of them, at the location that was known
 * @on_host: on the host
 * @unknown: nowhere
 * @moving: some could not be looked at, for they changed all the time
 * @location: of pages on a device, another one than was known if there is
 */
struct refresh {
	struct hetmem_context *ctx;
	struct hetmem_range *range;
	struct hetmem_walk walk;
	unsigned long block;
	unsigned long start;
	unsigned long end;
	u32 known;
	unsigned int on_device;
	unsigned int stayed;
	unsigned int on_host;
	unsigned int unknown;
	bool moving;
	u32 location;
};

/* Takes the next dirty block, from r->block on. Return: whether there is one. */
static bool refresh_take(struct refresh *r)
{
	struct hetmem_range *range = r->range;
	bool found;

	spin_lock(&r->ctx->hm->lock);
	r->block = find_next_bit(range->dirty, range->nr_blocks, r->block);
	found = r->block < range->nr_blocks;
	if (found) {
		__clear_bit(r->block, range->dirty);
		r->known = range->blocks[r->block].location;
	}
	range->looking = r->block;
	spin_unlock(&r->ctx->hm->lock);
	r->start = hetmem_range_block_start(range, r->block);
	r->end = hetmem_range_block_end(range, r->block);
	return found;
}

static int refresh_look(struct refresh *r)
{
	const struct hetmem_walk *walk = &r->walk;
	struct hetmem_piece piece;
	unsigned long at;
	u64 nr;
	int ret;

	r->on_device = 0;
	r->stayed = 0;
	r->on_host = 0;
	r->unknown = 0;
	r->moving = false;
	r->location = r->known;
	for (at = r->start; at < r->end; at = walk->end) {
		ret = hetmem_walk_step(&r->walk, at, r->end);
		if (ret)
			return ret;
		r->moving |= walk->why & HETMEM_WHY_MOVING;
		piece = (struct hetmem_piece){};
		while (hetmem_piece_next(walk, &piece)) {
			nr = hetmem_piece_pages(&piece);
			switch (HETMEM_LOC_KIND(piece.location)) {
			case HETMEM_DEVICE:
			case HETMEM_FOREIGN:
			case HETMEM_COHERENT:
				r->on_device += nr;
				if (piece.location == r->known)
					r->stayed += nr;
				else
					r->location = piece.location;
				break;
			case HETMEM_HOST:
				r->on_host += nr;
				break;
			case HETMEM_UNKNOWN:
				r->unknown += nr;
				break;
			}
		}
	}
	return 0;
}

static void refresh_tell(struct refresh *r, u32 type, u32 location, u32 count)
{
	struct hetmem_event event = {
		.type = type,
		.start = r->start,
		.end = r->end,
		.location = location,
		.count = count,
	};

	if (count && hetmem_ring_wants(r->ctx, type))
		hetmem_ring_add(r->ctx, &event);
}

/* Tells how a block differs from what was known of it. */
static void refresh_compare(struct refresh *r, const struct hetmem_block *block)
{
	unsigned int stayed = r->stayed ? block->on_device : 0;

	if (r->on_device > stayed && hetmem_is_foreign(r->location))
		refresh_tell(r, HETMEM_EVENT_TO_DEVICE, r->location, r->on_device - stayed);
	if (r->on_device < block->on_device && r->on_host > block->on_host &&
	    hetmem_is_foreign(block->location))
		refresh_tell(r, HETMEM_EVENT_TO_HOST, HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY),
			     min(block->on_device - r->on_device, r->on_host - block->on_host));
}

/* Remembers what was seen, unless @ret is an error, and tells what changed. */
static void refresh_put(struct refresh *r, int ret)
{
	struct hetmem_range *range = r->range;
	struct hetmem_block *block = &range->blocks[r->block];
	bool moves;

	spin_lock(&r->ctx->hm->lock);
	range->looking = range->nr_blocks;
	/* Pages that are nowhere may be on their way to a device or from it. */
	moves = r->unknown && (time_before(jiffies, range->moving + HETMEM_SETTLE) ||
			       time_before(jiffies, r->ctx->moving + HETMEM_SETTLE));
	if (ret || r->moving || moves)
		__set_bit(r->block, range->dirty);
	if (!ret && !r->moving && !(moves && r->on_device < block->on_device)) {
		refresh_compare(r, block);
		hetmem_range_on_device(r->ctx, range, r->block, r->location, r->on_device);
		block->on_host = r->on_host;
	}
	spin_unlock(&r->ctx->hm->lock);
}

static int refresh_range(struct refresh *r, struct hetmem_cmd_refresh *cmd)
{
	struct hetmem_range *range = r->range;
	const u64 now = ktime_get_ns();
	int ret = 0;

	/* Once: what makes all blocks dirty later is the next REFRESH's. */
	spin_lock(&r->ctx->hm->lock);
	hetmem_range_fill_dirty(r->ctx, range);
	r->block = range->next_look;
	if (!r->block)
		range->began = now;
	spin_unlock(&r->ctx->hm->lock);
	for (; !ret && cmd->walked_blocks < HETMEM_REFRESH_BLOCKS && refresh_take(r); r->block++) {
		ret = refresh_look(r);
		refresh_put(r, ret);
		cmd->walked_blocks += !ret;
		if (fatal_signal_pending(current))
			ret = -EINTR;
		cond_resched();
	}
	spin_lock(&r->ctx->hm->lock);
	range->next_look = ret || r->block >= range->nr_blocks ? 0 : r->block;
	if (!ret && !range->next_look)
		range->as_of = range->began;
	cmd->as_of = range->as_of;
	cmd->dirty_blocks = hetmem_range_nr_dirty(r->ctx, range);
	cmd->on_device = range->on_device;
	spin_unlock(&r->ctx->hm->lock);
	return ret;
}

/* HETMEM_IOC_REFRESH; the caller holds a reference to the users of its mm. */
int hetmem_refresh(struct hetmem_context *ctx, void *arg)
{
	struct hetmem_cmd_refresh *cmd = arg;
	struct refresh r = { .ctx = ctx };
	int ret;

	cmd->dirty_blocks = 0;
	cmd->walked_blocks = 0;
	cmd->as_of = 0;
	cmd->on_device = 0;
	ret = hetmem_walk_init(&r.walk, ctx->hm);
	if (ret)
		return ret;
	r.walk.skip_gaps = true;
	if (mutex_lock_killable(&ctx->refresh)) {
		ret = -EINTR;
		goto exit_walk;
	}
	spin_lock(&ctx->hm->lock);
	r.range = hetmem_range_first(ctx, cmd->start, cmd->start);
	spin_unlock(&ctx->hm->lock);
	ret = r.range ? refresh_range(&r, cmd) : -ENOENT;
	mutex_unlock(&ctx->refresh);
exit_walk:
	hetmem_walk_exit(&r.walk);
	return ret;
}
