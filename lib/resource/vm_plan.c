// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The VMM pool: where to grow. An interval of addresses without a live block
 * is made of
 *
 *	free blocks, which stay as they are;
 *	aliases of handles that are wholly free elsewhere: they come back, and
 *		the driver is not asked;
 *	holes, which have to be filled.
 *
 * Of all intervals that are long enough and begin with a free block or an
 * alias, the one with the fewest holes is taken; if there is none, a hole.
 */
#include <stdlib.h>

#include "resource/vm.h"

/* Whole handles, if they are all of one size. */
static uint32_t pages_for(const struct pool *p, uint64_t units)
{
	uint64_t size = p->opt.handle ? p->opt.handle :
		p->provider->granularity;

	return (((units << UNIT_SHIFT) + size - 1) & ~(size - 1)) >>
		p->vm->shift;
}

/* In a walk a block is part of the interval, or its handles are moved. */
#define PART(stamp)	((stamp) * 2)
#define DONOR(stamp)	((stamp) * 2 + 1)

static bool add_piece(struct vm_plan *plan, uint32_t block, uint32_t page,
		      uint32_t pages)
{
	if (plan->nr_pieces == VM_PIECES)
		return false;
	plan->pieces[plan->nr_pieces++] = (struct vm_piece){ block, page, pages };
	return true;
}

/*
 * Walks from @plan->page on until @want units more have addresses, or there
 * is what cannot be had; true: they have. No more than @fresh pages of holes.
 */
static bool walk(struct pool *p, struct vm_plan *plan, uint64_t want,
		 uint32_t stamp, uint32_t fresh)
{
	struct vm *v = p->vm;
	const unsigned int shift = v->shift - UNIT_SHIFT;
	uint32_t at = plan->page;
	uint64_t have = 0;

	while (have < want) {
		uint32_t pages = pages_for(p, want - have), m;
		struct vm_free *f;
		struct mapping *map;
		struct handle *h;
		struct block *b;

		if (at >= v->nr)
			return false;
		m = v->map[at];
		if (!m) {
			pages = hm_vm_holes(v, at, pages);
			plan->fresh += pages;
			if (plan->fresh > fresh ||
			    !add_piece(plan, 0, at, pages))
				return false;
			at += pages;
			have += (uint64_t)pages << shift;
			continue;
		}
		map = mapping_at(v, m);
		h = handle_at(v, map->handle);
		if (map->page != at || !h->candidate)
			return false;
		f = &plan->list[h->candidate - 1];
		b = block_at(p, f->block);
		if (h->mapping != m) {
			if (h->stamp == stamp || b->slack == PART(stamp))
				return false;
			h->stamp = stamp;
			b->slack = DONOR(stamp);
			at += h->pages;
			have += (uint64_t)h->pages << shift;
			continue;
		}
		if (b->addr != page_addr(v, at) || b->slack == DONOR(stamp) ||
		    block_zone(b) != plan->zone ||
		    !add_piece(plan, f->block, 0, 0))
			return false;
		b->slack = PART(stamp);
		have += b->units;
		at = page_of(v, block_end(b) - 1) + 1;
		if (b->next && have < want)
			return false;
	}
	plan->end = at;
	return true;
}

/* An interval that begins with @front, or at @page: better than @best? */
static void consider(struct pool *p, struct vm_plan *plan, struct vm_plan *best,
		     struct block *front, uint32_t page, uint64_t units)
{
	uint32_t stamp = ++p->vm->stamp;

	plan->nr_pieces = 0;
	plan->fresh = 0;
	plan->page = page;
	plan->room = 0;
	if (front) {
		front->slack = PART(stamp);
		add_piece(plan, block_id(p, front), 0, 0);
		plan->page = page_of(p->vm, block_end(front) - 1) + 1;
		plan->room = front->units;
	}
	if (walk(p, plan, units - plan->room, stamp, best->fresh) &&
	    (plan->fresh < best->fresh || plan->room > best->room))
		*best = *plan;
}

/* Behind free blocks that end a run. */
static void consider_blocks(struct pool *p, struct pool_stream *s,
			    uint64_t units, struct vm_plan *plan,
			    struct vm_plan *best)
{
	unsigned int i;
	struct block *b;

	for (i = 0; i < p->order.nr; i++) {
		struct pool_stream *of = stream_at(p, i);
		struct arena *a = &of->arenas[plan->zone];
		uint64_t known = hm_stream_known(&s->s, &of->s);

		for (b = hm_arena_best(p, a, 1); b; b = hm_arena_next(p, a, b))
			if (!b->next && !(b->flags & BLOCK_WHOLE) &&
			    b->units < units &&
			    (b->pos <= known || hm_block_done(p, b)))
				consider(p, plan, best, b, 0, units);
	}
}

/* From aliases on, where no free block and no other alias is before. */
static void consider_aliases(struct pool *p, uint64_t units,
			     struct vm_plan *plan, struct vm_plan *best)
{
	struct vm *v = p->vm;
	uint32_t m, page;

	for (m = v->first; m; m = mapping_at(v, m)->next) {
		page = mapping_at(v, m)->page;
		if (handle_at(v, mapping_at(v, m)->handle)->candidate &&
		    !(page && v->map[page - 1] &&
		      handle_of_page(v, page - 1)->candidate))
			consider(p, plan, best, NULL, page, units);
	}
}

/* Addresses, at least; if there are none, what is free makes room. */
static int find_addresses(struct pool *p, unsigned int zone, uint32_t want,
			  uint32_t *page)
{
	struct vm *v = p->vm;

	if (hm_vm_find_hole(v, zone, want, page))
		return 0;
	hm_vm_unalias(p, 0, 0);
	if (hm_vm_find_hole(v, zone, want, page))
		return 0;
	hm_vm_trim(p, 0);
	hm_vm_unalias(p, 0, 0);
	if (hm_vm_find_hole(v, zone, want, page))
		return 0;
	return hm_error(-ENOMEM, "pool: no %llu bytes of addresses in one piece, reserve= says how many there are",
			(unsigned long long)want << v->shift);
}

/* The free handles; without those whose addresses are not to change. */
static int collect(struct pool *p, struct pool_stream *s, bool wait,
		   struct vm_plan *plan)
{
	struct vm *v = p->vm;
	ssize_t nr;
	size_t i;

	plan->list = NULL;
	plan->nr = 0;
	if (p->opt.comm)
		return 0;
	if (p->order.seen > 1 && wait)
		hm_vm_join(p, s);
	nr = hm_vm_collect(p, s, wait, &plan->list);
	if (nr < 0)
		return nr;
	plan->nr = nr;
	for (i = 0; i < plan->nr; i++)
		handle_at(v, plan->list[i].handle)->candidate = i + 1;
	return 0;
}

void hm_vm_plan_free(struct pool *p, struct vm_plan *plan)
{
	size_t i;

	for (i = 0; i < plan->nr; i++)
		handle_at(p->vm, plan->list[i].handle)->candidate = 0;
	free(plan->list);
	plan->list = NULL;
	plan->nr = 0;
}

int hm_vm_plan(struct pool *p, struct pool_stream *s, unsigned int zone,
	       uint64_t units, bool wait, struct vm_plan *best)
{
	uint32_t want = pages_for(p, units), page = 0;
	struct vm_plan plan;
	int err;

	best->list = NULL;
	best->nr = 0;
	err = collect(p, s, wait, &plan);
	if (err)
		return err;
	plan.zone = zone;
	best->zone = zone;
	best->nr_pieces = 0;
	best->fresh = want;
	best->room = 0;
	consider_blocks(p, s, units, &plan, best);
	consider_aliases(p, units, &plan, best);
	if (best->nr_pieces || best->fresh < want) {
		best->list = plan.list;
		best->nr = plan.nr;
		return 0;
	}
	/* Making room may change what is free, and where. */
	hm_vm_plan_free(p, &plan);
	err = find_addresses(p, zone, want, &page);
	if (!err)
		err = collect(p, s, wait, best);
	best->page = page;
	best->end = page + want;
	best->fresh = want;
	add_piece(best, 0, page, want);
	return err;
}

