// SPDX-License-Identifier: GPL-2.0
/*
 * Thrash: blocks that go back and forth.
 *
 * Design. A context has a fixed table of slots, made and charged when it is
 * opened; a block of 2 MiB hashes to one slot, and the last block to come
 * owns it. For devices that are registered with hetmem a bounce is a block's
 * change of direction: pages go to the device after pages went to the host,
 * or the other way round.
 *
 * Other drivers announce that they migrate pages, not in which direction, nor
 * whether it works; and one migration can be announced for each page. So a slot
 * has two bitmaps of the block's pages: those of this epoch of 10 ms, and those
 * of earlier epochs. An epoch counts once, and only if it hits a page of an
 * earlier one: that page is migrated for a second time. Then the earlier epochs
 * are forgotten, so that one more progressive migration of the block counts
 * once, and not again with each epoch that it takes. The core announces a
 * migration of a range with holes a second time, from the first hole on: by the
 * same task, to the same end, and soon. That does not count. Announcements for more
 * than HETMEM_THRASH_MAX_BLOCKS are a driver's sweep and left out; so are those
 * that our own MIGRATE causes (notifier.c).
 *
 * A window begins with a slot's first event and ends a set time later. When the
 * count reaches the threshold in it, one event is sent, and a new window
 * begins. The module takes no other action: the owner decides.
 *
 * Locking. hm->lock. A block that does not thrash costs one slot.
 */
#include <linux/hash.h>

#include "range.h"
#include "trace.h"

#define HETMEM_THRASH_BITS	9
#define HETMEM_THRASH_EPOCH	msecs_to_jiffies(10)
#define HETMEM_THRASH_REPEAT	msecs_to_jiffies(20)
#define HETMEM_THRASH_MAX_BLOCKS	64

/* Set by the administrator; see sysfs.c. */
unsigned int hetmem_thrash_count = 8;
unsigned int hetmem_thrash_window_ms = 1000;

/**
 * struct hetmem_thrash_slot - a block that may go back and forth
 * @block: its number
 * @since: jiffies, when the window began
 * @epoch: jiffies, when the epoch began
 * @count: in this window
 * @what: the last direction, of a registered device's; HETMEM_COUNT_NR: none yet
 * @counted: this epoch was counted
 * @told: jiffies, when the last announcement came
 * @by: the task that made it, if the next one may repeat it
 * @from: its first page
 * @to: the one behind its last
 * @now: pages announced in this epoch
 * @earlier: pages announced in earlier epochs
 */
struct hetmem_thrash_slot {
	unsigned long block;
	unsigned long since;
	unsigned long epoch;
	unsigned long told;
	u32 count;
	u8 what;
	bool counted;
	const struct task_struct *by;
	u16 from;
	u16 to;
	DECLARE_BITMAP(now, HETMEM_BLOCK_PAGES);
	DECLARE_BITMAP(earlier, HETMEM_BLOCK_PAGES);
};

const size_t hetmem_thrash_bytes = sizeof(struct hetmem_thrash_slot) << HETMEM_THRASH_BITS;

/* The slot of a block, in a window that is not over. */
static struct hetmem_thrash_slot *thrash_slot(struct hetmem_context *ctx, unsigned long block)
{
	const unsigned int ms = READ_ONCE(hetmem_thrash_window_ms);
	struct hetmem_thrash_slot *slot = &ctx->thrash[hash_long(block, HETMEM_THRASH_BITS)];

	if (slot->block != block) {
		memset(slot, 0, sizeof(*slot));
		slot->block = block;
		slot->what = HETMEM_COUNT_NR;
		slot->since = jiffies;
		slot->epoch = jiffies;
	} else if (time_after(jiffies, slot->since + msecs_to_jiffies(ms))) {
		slot->count = 0;
		slot->since = jiffies;
	}
	return slot;
}

/* One more. If it is one too many, says so. */
static void thrash_hit(struct hetmem_context *ctx, struct hetmem_range *range,
		       struct hetmem_thrash_slot *slot, u32 location)
{
	unsigned long start = slot->block << HETMEM_BLOCK_SHIFT;
	struct hetmem_event event = {
		.type = HETMEM_EVENT_THRASH,
		.start = max(start, range->node.start),
		.end = min(start + HETMEM_BLOCK_SIZE - 1, range->node.last) + 1,
		.location = location,
		.count = ++slot->count,
	};

	if (slot->count < READ_ONCE(hetmem_thrash_count))
		return;
	slot->count = 0;
	slot->since = jiffies;
	range->thrashed++;
	hetmem_total_add(thrashed, 1);
	trace_hetmem_thrash(ctx, event.start, event.end, location, event.count, 0);
	hetmem_ring_add(ctx, &event);
}

/**
 * hetmem_thrash_bounce - pages of a range moved to or from a registered device
 * @ctx: context, hm->lock held
 * @range: tracked range
 * @start: first byte, in the range
 * @last: last byte, in the range
 * @what: the direction
 * @location: the device
 */
void hetmem_thrash_bounce(struct hetmem_context *ctx, struct hetmem_range *range,
			  unsigned long start, unsigned long last, enum hetmem_counter what,
			  u32 location)
{
	unsigned long block = start >> HETMEM_BLOCK_SHIFT;
	unsigned long end = last >> HETMEM_BLOCK_SHIFT;
	struct hetmem_thrash_slot *slot;

	for (; block <= end; block++) {
		slot = thrash_slot(ctx, block);
		/* The first direction that is seen is no change of it. */
		if (slot->what != HETMEM_COUNT_NR && slot->what != what)
			thrash_hit(ctx, range, slot, location);
		slot->what = what;
	}
}

/* Pages [@first, @first + @nr) of a block are about to be migrated. */
static void thrash_pages(struct hetmem_context *ctx, struct hetmem_range *range,
			 unsigned long block, unsigned int first, unsigned int nr)
{
	struct hetmem_thrash_slot *slot = thrash_slot(ctx, block);
	bool again;

	again = slot->by == current && slot->from <= first && slot->to == first + nr &&
		time_before(jiffies, slot->told + HETMEM_THRASH_REPEAT);
	slot->told = jiffies;
	slot->by = again ? NULL : current;
	slot->from = first;
	slot->to = first + nr;
	if (time_after_eq(jiffies, slot->epoch + HETMEM_THRASH_EPOCH)) {
		bitmap_or(slot->earlier, slot->earlier, slot->now, HETMEM_BLOCK_PAGES);
		bitmap_zero(slot->now, HETMEM_BLOCK_PAGES);
		slot->epoch = jiffies;
		slot->counted = false;
	}
	bitmap_set(slot->now, first, nr);
	if (again || slot->counted || find_next_bit(slot->earlier, first + nr, first) >= first + nr)
		return;
	slot->counted = true;
	bitmap_zero(slot->earlier, HETMEM_BLOCK_PAGES);
	thrash_hit(ctx, range, slot, 0);
}

/**
 * hetmem_thrash_attempt - another driver is about to migrate pages of a range
 * @ctx: context, hm->lock held
 * @range: tracked range
 * @start: first byte, in the range
 * @last: last byte, in the range
 */
void hetmem_thrash_attempt(struct hetmem_context *ctx, struct hetmem_range *range,
			   unsigned long start, unsigned long last)
{
	unsigned long at, block_last;

	if ((last >> HETMEM_BLOCK_SHIFT) - (start >> HETMEM_BLOCK_SHIFT) >=
	    HETMEM_THRASH_MAX_BLOCKS)
		return;
	for (at = start; at <= last; at = block_last + 1) {
		block_last = min(last, at | (HETMEM_BLOCK_SIZE - 1));
		thrash_pages(ctx, range, at >> HETMEM_BLOCK_SHIFT,
			     (at & (HETMEM_BLOCK_SIZE - 1)) >> PAGE_SHIFT,
			     ((block_last - at) >> PAGE_SHIFT) + 1);
	}
}
