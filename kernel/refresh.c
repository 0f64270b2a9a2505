// SPDX-License-Identifier: GPL-2.0
/*
 * REFRESH: looking again at the blocks of a tracked range that notifications
 * have marked.
 *
 * Design. A driver that is not registered with hetmem announces a migration
 * before it begins and never says how it went. So the callback only marks,
 * and who wants to know looks, in its own time and context. A block's mark is
 * cleared before the look: what happens meanwhile marks it again. Until the
 * look is over the block still counts as dirty.
 *
 * A page on its way to or from a device has been taken out of the page table
 * and is not in it again: it reads as if nothing were there, and no
 * notification comes when it arrives. A block with such pages therefore stays
 * dirty while its range was notified of a move less than HETMEM_SETTLE ago,
 * and pages that seem to have left a device are not believed to have.
 *
 * Pages that have left a device went to the host only as far as the host has
 * more of the block's than before: the others were unmapped, dropped, or went
 * with mremap(). In a block with pages on several devices the event names one.
 * Devices that are registered with hetmem have told already what moved: for
 * them the counters are put right, and nothing is told.
 *
 * Locking. context->refresh over the command. context->lock for the range's
 * bookkeeping, never across a look. In between the range may have been
 * untracked and another one tracked in its place: it is found again by address
 * and id each time.
 */
#include <linux/bitmap.h>
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>
#include <linux/timekeeping.h>

#include "hetmem.h"

/**
 * struct hetmem_refresh - a REFRESH command at work
 * @ctx: context
 * @cmd: command
 * @walk: of one block
 * @id: of the range, 0 before it was found
 * @next: block to go on from
 * @block: block that is being looked at
 * @known: where its pages on a device were when it was last looked at
 * @start: of that block's part of the range
 * @end: of that
 */
struct hetmem_refresh {
	struct hetmem_context *ctx;
	struct hetmem_cmd_refresh *cmd;
	struct hetmem_walk walk;
	u64 id;
	unsigned long next;
	unsigned long block;
	u32 known;
	unsigned long start;
	unsigned long end;
};

/**
 * struct hetmem_look - what a look at a block found
 * @on_device: pages on devices
 * @stayed: of them, those at the location that was known
 * @on_host: pages on the host
 * @unknown: pages that are nowhere
 * @location: of pages on a device, another one than was known if there is
 */
struct hetmem_look {
	unsigned int on_device;
	unsigned int stayed;
	unsigned int on_host;
	unsigned int unknown;
	u32 location;
};

/* The range, or NULL if it has gone; context->lock is held. */
static struct hetmem_range *hetmem_refresh_range(struct hetmem_refresh *r)
{
	struct hetmem_range *range;

	range = hetmem_range_first(r->ctx, r->cmd->start, r->cmd->start);
	if (range && !r->id)
		r->id = range->id;
	return range && range->id == r->id ? range : NULL;
}

/* Takes the next dirty block. Return: 1, 0 if there is none, or an errno. */
static int hetmem_refresh_take(struct hetmem_refresh *r)
{
	struct hetmem_range *range;
	int ret = 0;

	spin_lock(&r->ctx->lock);
	range = hetmem_refresh_range(r);
	if (!range) {
		ret = -ENOENT;
		goto out;
	}
	if (range->all_dirty) {
		range->all_dirty = false;
		bitmap_fill(range->dirty, range->nr_blocks);
	}
	r->block = find_next_bit(range->dirty, range->nr_blocks, r->next);
	if (r->block >= range->nr_blocks)
		goto out;
	__clear_bit(r->block, range->dirty);
	range->looking = r->block;
	r->known = range->blocks[r->block].location;
	r->start = hetmem_range_block_start(range, r->block);
	r->end = hetmem_range_block_end(range, r->block);
	r->next = r->block + 1;
	ret = 1;
out:
	spin_unlock(&r->ctx->lock);
	return ret;
}

static int hetmem_refresh_look(struct hetmem_refresh *r,
			       struct hetmem_look *look)
{
	const struct hetmem_walk *walk = &r->walk;
	unsigned long at = r->start, end;
	unsigned int i, nr;
	int ret;

	*look = (struct hetmem_look){};
	while (at < r->end) {
		ret = hetmem_walk_step(&r->walk, at, r->end);
		if (ret)
			return ret;
		for (i = 0; i < walk->nr; i++, at = end) {
			u32 location = walk->pieces[i].location;

			end = hetmem_piece_end(walk, i, at);
			nr = (end - at) >> PAGE_SHIFT;
			switch (HETMEM_LOC_KIND(location)) {
			case HETMEM_DEVICE:
			case HETMEM_FOREIGN:
				look->on_device += nr;
				if (location == r->known)
					look->stayed += nr;
				else
					look->location = location;
				break;
			case HETMEM_HOST:
				look->on_host += nr;
				break;
			case HETMEM_UNKNOWN:
				look->unknown += nr;
				break;
			default:
				break;
			}
		}
	}
	if (!look->location && look->on_device)
		look->location = r->known;
	return 0;
}

static void hetmem_refresh_tell(struct hetmem_refresh *r, u32 type,
				u32 location, unsigned int nr_pages)
{
	struct hetmem_event event = {
		.type = type,
		.start = r->start,
		.end = r->end,
		.location = location,
		.count = nr_pages,
	};

	if (nr_pages && hetmem_ring_wants(r->ctx, type))
		hetmem_ring_add(r->ctx, &event);
}

/* Tells how a block differs from what was known of it. */
static void hetmem_refresh_compare(struct hetmem_refresh *r,
				   const struct hetmem_look *look,
				   const struct hetmem_block *block)
{
	unsigned int stayed = look->stayed ? block->on_device : 0;
	unsigned int gone, came;

	if (look->on_device > stayed &&
	    HETMEM_LOC_KIND(look->location) == HETMEM_FOREIGN)
		hetmem_refresh_tell(r, HETMEM_EVENT_TO_DEVICE, look->location,
				    look->on_device - stayed);
	if (look->on_device >= block->on_device ||
	    look->on_host <= block->on_host ||
	    HETMEM_LOC_KIND(block->location) != HETMEM_FOREIGN)
		return;
	gone = block->on_device - look->on_device;
	came = look->on_host - block->on_host;
	hetmem_refresh_tell(r, HETMEM_EVENT_TO_HOST,
			    HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY),
			    min(gone, came));
}

/*
 * Remembers what was seen and tells what changed. Without @look the block is as
 * dirty as before.
 */
static int hetmem_refresh_put(struct hetmem_refresh *r,
			      const struct hetmem_look *look)
{
	struct hetmem_range *range;
	struct hetmem_block *block;
	int ret = 0;

	spin_lock(&r->ctx->lock);
	range = hetmem_refresh_range(r);
	if (!range) {
		ret = -ENOENT;
		goto out;
	}
	range->looking = range->nr_blocks;
	block = &range->blocks[r->block];
	if (!look || (look->unknown && time_before(jiffies, range->moving +
							    HETMEM_SETTLE))) {
		__set_bit(r->block, range->dirty);
		if (!look || look->on_device < block->on_device)
			goto out;
	}
	hetmem_refresh_compare(r, look, block);
	hetmem_range_on_device(r->ctx, range, r->block, look->location,
			       look->on_device);
	block->on_host = look->on_host;
out:
	spin_unlock(&r->ctx->lock);
	hetmem_ring_wake(r->ctx);
	return ret;
}

static int hetmem_refresh_end(struct hetmem_refresh *r, u64 as_of, bool all)
{
	struct hetmem_range *range;
	int ret = -ENOENT;

	spin_lock(&r->ctx->lock);
	range = hetmem_refresh_range(r);
	if (range) {
		if (all)
			range->as_of = as_of;
		r->cmd->as_of = range->as_of;
		r->cmd->dirty_blocks = hetmem_range_nr_dirty(range);
		r->cmd->on_device = range->on_device;
		ret = 0;
	}
	spin_unlock(&r->ctx->lock);
	return ret;
}

static int hetmem_refresh_blocks(struct hetmem_refresh *r)
{
	struct hetmem_look look;
	int ret;

	while ((ret = hetmem_refresh_take(r)) > 0) {
		ret = hetmem_refresh_look(r, &look);
		if (ret) {
			hetmem_refresh_put(r, NULL);
			break;
		}
		ret = hetmem_refresh_put(r, &look);
		if (ret)
			break;
		r->cmd->walked_blocks++;
		if (fatal_signal_pending(current))
			return -EINTR;
		cond_resched();
	}
	return ret;
}

/**
 * hetmem_refresh - HETMEM_IOC_REFRESH
 * @ctx: of the caller, who holds a reference to the users of its mm
 * @cmd: validated
 * @partial: set if @cmd goes back to the caller in spite of an error
 */
int hetmem_refresh(struct hetmem_context *ctx, struct hetmem_cmd_refresh *cmd,
		   bool *partial)
{
	struct hetmem_refresh r = { .ctx = ctx, .cmd = cmd };
	u64 began;
	int ret;

	ret = hetmem_walk_init(&r.walk, ctx->mm);
	if (ret)
		return ret;
	if (mutex_lock_killable(&ctx->refresh)) {
		ret = -EINTR;
		goto exit_walk;
	}
	began = ktime_get_ns();
	cmd->walked_blocks = 0;
	ret = hetmem_refresh_blocks(&r);
	if (hetmem_refresh_end(&r, began, !ret))
		ret = -ENOENT;
	*partial = ret == -EBUSY || ret == -EINTR;
	mutex_unlock(&ctx->refresh);
exit_walk:
	hetmem_walk_exit(&r.walk);
	return ret;
}
