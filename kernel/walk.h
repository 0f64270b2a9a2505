/* SPDX-License-Identifier: GPL-2.0 */
/* Finding out where pages are, step by step: walk.c. */
#ifndef _HETMEM_WALK_H
#define _HETMEM_WALK_H

#include "device.h"
#include "range.h"

/**
 * struct hetmem_piece - pages of a step that have everything in common
 * @start: of the first
 * @end: of the last; if that was not looked into, beyond the block
 * @location: HETMEM_LOC()
 * @order: of the page table entries that map them
 * @mark: parts of large folios, only if hetmem_walk.look_for_parts; if no page is
 *	visible: swapped out, only if hetmem_walk.tell_swapped
 * @nr: its number in the step, from 1 on
 */
struct hetmem_piece {
	unsigned long start;
	unsigned long end;
	u32 location;
	u8 order;
	bool mark;
	unsigned int nr;
};

/* How a walk keeps it; the last one goes to the end of the step. */
struct hetmem_kept_piece {
	u32 location;
	u16 nr_pages;
	u8 order;
	bool mark;
};

/* Mappings that hetmem leaves alone. */
#define HETMEM_WHY_LEAVE (HETMEM_WHY_HUGETLB | HETMEM_WHY_SPECIAL |	\
			  HETMEM_WHY_UFFD | HETMEM_WHY_NOT_READABLE |	\
			  HETMEM_WHY_UNMAPPED)

/**
 * struct hetmem_walk - a walk through an address space
 * @hm: whose; while a step is looked at the caller holds a reference to the
 *	users of its mm
 * @window: of the step at work
 * @pfns: of one block; clear except for what hmm_range_fault() has written
 * @more: behind it, the same block as another owner of device pages sees it; afterwards
 * @pieces: what the step is made of
 * @start: of the last step
 * @end: of the last step
 * @limit: it does not go beyond
 * @vma_end: of the mapping that the last step looked into
 * @why: HETMEM_WHY_*, of the mapping that the last step looked at
 * @anonymous: that mapping is anonymous
 * @shared: that mapping is shared
 * @gap: the last step has no page tables
 * @look_for_parts: tell parts of large folios from other pages
 * @skip_gaps: memory without page tables can be one step
 * @tell_swapped: tell swapped pages from absent ones
 * @nr: pieces of the last step
 */
struct hetmem_walk {
	struct hetmem_mm *hm;
	struct hetmem_window window;
	unsigned long *pfns;
	union {
		unsigned long *more;
		struct hetmem_kept_piece *pieces;
	};
	unsigned long start;
	unsigned long end;
	unsigned long limit;
	unsigned long vma_end;
	u32 why;
	bool anonymous;
	bool shared;
	bool gap;
	bool look_for_parts;
	bool skip_gaps;
	bool tell_swapped;
	unsigned int nr;
};

int hetmem_walk_init(struct hetmem_walk *walk, struct hetmem_mm *hm);
void hetmem_walk_exit(struct hetmem_walk *walk);
int hetmem_walk_step(struct hetmem_walk *walk, unsigned long start, unsigned long end);
int hetmem_walk_fault(struct hetmem_walk *walk, unsigned long start, unsigned long end);
int hetmem_walk_pull(struct hetmem_walk *walk, unsigned long start, unsigned long end);
u32 hetmem_vma_why(struct vm_area_struct *vma);

static inline u64 hetmem_piece_pages(const struct hetmem_piece *piece)
{
	return (piece->end - piece->start) >> PAGE_SHIFT;
}

/*
 * Advances @piece to the next piece of the last step, or to the first one if it
 * is all zeroes. Return: whether there is one.
 */
static inline bool hetmem_piece_next(const struct hetmem_walk *walk, struct hetmem_piece *piece)
{
	const struct hetmem_kept_piece *kept = &walk->pieces[piece->nr];

	if (piece->nr == walk->nr)
		return false;
	piece->start = piece->nr++ ? piece->end : walk->start;
	piece->end = piece->start + ((unsigned long)kept->nr_pages << PAGE_SHIFT);
	if (piece->nr == walk->nr)
		piece->end = walk->end;
	piece->location = kept->location;
	piece->order = kept->order;
	piece->mark = kept->mark;
	return true;
}

/*
 * HETMEM_WHY_* of @piece of the last step. If it is on no device, that is also why
 * nothing can be seen of it, and that it is held; and it is shortened to what has
 * that in common.
 */
static inline u32 hetmem_piece_why(struct hetmem_context *ctx, const struct hetmem_walk *walk,
				   struct hetmem_piece *piece)
{
	const u32 told = HETMEM_WHY_MOVING | HETMEM_WHY_NOT_READABLE | HETMEM_WHY_SPECIAL;
	const u32 kind = HETMEM_LOC_KIND(piece->location);
	u32 why = walk->why;

	if (hetmem_on_device(piece->location))
		return why;
	if (kind == HETMEM_UNKNOWN && !(why & told))
		why |= HETMEM_WHY_ABSENT | (piece->mark ? HETMEM_WHY_SWAPPED : 0);
	if (kind == HETMEM_UNKNOWN && !walk->gap && hetmem_exclusive_seen(ctx, piece->start))
		why |= HETMEM_WHY_EXCLUSIVE_SEEN;
	/* Nobody asks while pins come and go and expects an exact answer. */
	if (READ_ONCE(ctx->nr_pinned) && hetmem_pin_at(ctx, piece->start, &piece->end))
		why |= HETMEM_WHY_PINNED_BY_US;
	return why;
}

#endif /* _HETMEM_WALK_H */
