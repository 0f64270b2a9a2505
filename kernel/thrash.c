// SPDX-License-Identifier: GPL-2.0
/*
 * Thrash: blocks that go back and forth.
 *
 * Design. A context has a fixed table of slots, made and charged when it is
 * opened; a block of 2 MiB hashes to one slot, and the last block to come
 * owns it. For devices that are registered with hetmem a bounce is a block's
 * change of direction: pages go to the device after pages went to the host,
 * or the other way round. For other drivers each MMU_NOTIFY_MIGRATE over a
 * block is an attempt; direction and success are not told, and a driver
 * announces the same migration more than once, so attempts are not bounces.
 * A window begins with a slot's first event and ends a set time later; the
 * count that reaches the threshold in it is told, once, and the window begins
 * anew. Telling is all that is done here: the answer is the owner's.
 *
 * Locking. context->lock. A block that does not thrash costs one slot.
 */
#include <linux/hash.h>
#include <linux/jiffies.h>
#include <linux/mm.h>

#include "hetmem.h"
#include "trace.h"

/* Set by the administrator; see sysfs.c. */
unsigned int hetmem_thrash_count = 8;
unsigned int hetmem_thrash_window_ms = 1000;

/* More is a driver's sweep over a range, not a block that thrashes. */
#define HETMEM_THRASH_MAX_BLOCKS	64

static void hetmem_thrash_tell(struct hetmem_context *ctx,
			       struct hetmem_range *range,
			       struct hetmem_thrash_slot *slot)
{
	unsigned long start = slot->block << HETMEM_BLOCK_SHIFT;
	struct hetmem_event event = {
		.type = HETMEM_EVENT_THRASH,
		.start = max(start, range->node.start),
		.end = min(start + HETMEM_BLOCK_SIZE - 1, range->node.last) + 1,
		.location = slot->location,
		.count = slot->count,
	};

	range->thrashed++;
	hetmem_total_add(HETMEM_TOTAL_THRASHED, 1);
	trace_hetmem_thrash(ctx, &event);
	if (hetmem_ring_wants(ctx, event.type))
		hetmem_ring_add(ctx, &event);
}

/* One thing happened to one block; context->lock is held. */
static void hetmem_thrash_block(struct hetmem_context *ctx,
				struct hetmem_range *range,
				unsigned long block, u8 what, u32 location,
				bool bounce)
{
	unsigned int window_ms = READ_ONCE(hetmem_thrash_window_ms);
	unsigned long window = msecs_to_jiffies(window_ms);
	struct hetmem_thrash_slot *slot;

	slot = &ctx->thrash[hash_long(block, HETMEM_THRASH_BITS)];
	if (slot->block != block || time_after(jiffies, slot->since + window)) {
		/* The first direction that is seen is no change of it. */
		slot->count = bounce && slot->block == block &&
			      slot->what != what;
		slot->block = block;
		slot->since = jiffies;
		if (!bounce)
			slot->count = 1;
	} else if (!bounce || slot->what != what) {
		slot->count++;
	}
	slot->what = what;
	slot->location = location;
	if (slot->count < READ_ONCE(hetmem_thrash_count))
		return;
	hetmem_thrash_tell(ctx, range, slot);
	slot->count = 0;
	slot->since = jiffies;
}

/**
 * hetmem_thrash_seen - pages of a range moved, or are about to
 * @ctx: context, its lock held
 * @range: tracked range
 * @start: first byte, in the range
 * @last: last byte, in the range
 * @what: direction for a bounce, anything else for an attempt
 * @location: device; 0 for an attempt, where it is not told
 * @bounce: the device is registered with hetmem and tells directions
 */
void hetmem_thrash_seen(struct hetmem_context *ctx, struct hetmem_range *range,
			unsigned long start, unsigned long last, u8 what,
			u32 location, bool bounce)
{
	unsigned long block = start >> HETMEM_BLOCK_SHIFT;
	unsigned long end = last >> HETMEM_BLOCK_SHIFT;

	if (range->no_thrash || end - block >= HETMEM_THRASH_MAX_BLOCKS)
		return;
	for (; block <= end; block++)
		hetmem_thrash_block(ctx, range, block, what, location, bounce);
}
