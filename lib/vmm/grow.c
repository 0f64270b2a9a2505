// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The VMM pool: growth. A block that no free block holds, a block with room
 * behind it (reserve), and a live block that gets larger (grow) come from one
 * plan: an interval of addresses without a live block. It is made of
 *
 *	free blocks, which stay as they are;
 *	aliases of handles that are wholly free elsewhere: they come back, and
 *		the driver is not asked;
 *	holes, which have to be filled.
 *
 * For a block the plan takes, of all intervals that are long enough and begin
 * with a free block or an alias, the one with the fewest holes; without any, a
 * hole. A reserve begins at a hole, a grow behind its block. Holes are filled by
 * handles that are wholly free elsewhere first, then by new ones, whose size
 * grows with the pool.
 *
 * A plan is carried out in steps: create handles, order the stream behind the
 * last uses, map, and change what the pool knows. Each step before the last one
 * can be undone, and the last one cannot fail.
 */
#include <stdlib.h>

#include "core/nvtx.h"
#include "vmm/grow.h"
#include "vmm/ring.h"
#include "vmm/sparse.h"
#include "vmm/spill.h"

/* The plan: where to grow. */

#define VMM_PIECES	64
/* Runs that a plan may begin behind. Aliases that it may begin with: the oldest, the newest. */
#define FRONT_LOOKS	256
#define OLD_LOOKS	64
#define NEW_LOOKS	192
/* A plan may make this part of the pool, or a page, that another would not. */
#define LEFT_SHARE	256
/* Handles, blocks and holes that all of these walks look at. */
#define WALK_STEPS	512
#define HOLE_STEPS	4

/* Addresses of a plan: a free block, or holes to be filled. */
struct vmm_piece {
	uint32_t block;
	uint32_t page;
	uint32_t pages;
};

/**
 * struct vmm_plan - where to grow: an interval without live blocks
 * @s: for which stream; @wait: memory that @s has to be ordered behind counts
 * @zone: of the blocks
 * @exact: no units more than @want are taken; @returns: the block may give them back
 * @want: units
 * @list, @nr, @size: wholly free handles; then those that are used
 * @pieces: of the interval that are not aliases, in order
 * @page, @end: what of it is whole pages outside of the first block
 * @fresh: pages of holes
 * @pages: of @list; @used: of them, in blocks of the interval and its aliases
 * @room: units of the first block
 * @steps: left of WALK_STEPS
 */
struct vmm_plan {
	struct pool_stream *s;
	bool wait;
	unsigned int zone;
	bool exact, returns;
	uint64_t want;
	struct vmm_free *list;
	size_t nr;
	size_t size;
	struct vmm_piece pieces[VMM_PIECES];
	unsigned int nr_pieces;
	uint32_t page;
	uint32_t end;
	uint32_t fresh;
	uint64_t pages;
	uint64_t used;
	uint64_t room;
	int steps;
};

static uint32_t pages_for_units(const struct vmm *v, uint64_t units)
{
	uint64_t size = 1ULL << v->shift;

	return ((units << UNIT_SHIFT) + size - 1) >> v->shift;
}

/*
 * Whole handles, if they are all of one size. Blocks that grow end anywhere, so
 * that not every hole is of whole ones.
 */
static uint32_t plan_pages(const struct pool *p, const struct vmm_plan *plan,
			   uint64_t units)
{
	uint64_t size = p->opt.handle ? p->opt.handle :
		p->provider->granularity;

	if (plan->exact)
		return pages_for_units(vmm_of(p), units);
	return (((units << UNIT_SHIFT) + size - 1) & ~(size - 1)) >>
		vmm_of(p)->shift;
}

/* Whether the stream can have FREE @b, at once or after an order. */
static bool may_have(const struct pool *p, const struct vmm_plan *plan,
		     const struct block *b)
{
	return source_may_have(p, plan->s, b) ||
	       (plan->wait && plan->s->s.index && !p->order.streams[b->stream]->lost);
}

/* Whether the stream of the plan may have a part of the handles that @b is in. */
static bool may_share(const struct pool *p, const struct vmm_plan *plan, const struct block *b)
{
	return b->stream == plan->s->s.index || !hm_pool_is_apart(p, plan->zone);
}

/* In a walk a block is part of the interval, or its handles are moved. */
#define PART(stamp)	((stamp) * 2)
#define DONOR(stamp)	((stamp) * 2 + 1)

static bool plan_add_piece(struct vmm_plan *plan, uint32_t block, uint32_t page,
			   uint32_t pages)
{
	if (plan->nr_pieces == VMM_PIECES)
		return false;
	plan->pieces[plan->nr_pieces++] =
		(struct vmm_piece){ block, page, pages };
	return true;
}

/*
 * Walks from @plan->page on until @want units more have addresses, or there
 * is what cannot be had; true: they have. No more than @fresh pages of holes.
 */
static bool plan_walk(struct pool *p, struct vmm_plan *plan, uint64_t want,
		      uint32_t stamp, uint32_t fresh)
{
	struct vmm *v = vmm_of(p);
	const unsigned int shift = v->shift - UNIT_SHIFT;
	uint32_t at = plan->page;
	uint64_t have = 0;

	while (have < want) {
		struct vmm_free *f;
		struct mapping *map;
		struct handle *h;
		struct block *b;
		uint32_t m;

		/* What is set aside is another block's, or its own to open first. */
		if ((at >= v->nr) | hm_vmm_is_apart(v, at) | (plan->steps-- <= 0))
			return false;
		m = v->map[at];
		if (!m) {
			const uint32_t pages = hm_vmm_holes(v, at, plan_pages(p, plan, want - have));

			plan->steps -= HOLE_STEPS;
			plan->fresh += pages;
			if (plan->fresh > fresh ||
			    !plan_add_piece(plan, 0, at, pages))
				return false;
			at += pages;
			have += (uint64_t)pages << shift;
			continue;
		}
		map = mapping_at(v, m);
		h = handle_at(v, map->handle);
		if ((map->page != at) | map->half | !h->candidate)
			return false;
		f = &plan->list[h->candidate - 1];
		b = block_at(p, f->block);
		if (h->mapping != m) {
			if ((h->stamp == stamp) | (b->slack == PART(stamp)))
				return false;
			h->stamp = stamp;
			b->slack = DONOR(stamp);
			at += h->pages;
			have += (uint64_t)h->pages << shift;
			plan->used += h->pages;
			continue;
		}
		if (b->addr != page_addr(v, at) || b->slack == DONOR(stamp) ||
		    block_zone(b) != plan->zone ||
		    !plan_add_piece(plan, f->block, 0, 0))
			return false;
		b->slack = PART(stamp);
		have += b->units;
		plan->used += b->units >> shift;
		at = end_page(v, b);
		if (b->next && (have < want || !may_share(p, plan, b)))
			return false;
	}
	plan->end = at;
	return true;
}

static uint32_t at_least_one(uint32_t n)
{
	return n ? n : 1;
}

/*
 * Whether free handles elsewhere fill the holes, as far as any plan can have
 * them: of an interval with a large block at its end much may be left over, and
 * that block's handles stay where they are.
 */
static bool plan_is_lean(const struct pool *p, const struct vmm_plan *plan)
{
	const struct vmm *v = vmm_of(p);
	uint64_t want = plan_pages(p, plan, plan->want), least, made = 0, others;

	others = plan->pages > plan->used ? plan->pages - plan->used : 0;
	least = want > plan->pages ? want - plan->pages : 0;
	if (plan->fresh > others)
		made = plan->fresh - others;
	return made <= least + at_least_one(v->pages / LEFT_SHARE);
}

/* An interval that begins with @front, or at @page: better than @best? */
static void plan_consider(struct pool *p, struct vmm_plan *plan,
			  struct vmm_plan *best, struct block *front,
			  uint32_t page)
{
	uint32_t stamp = ++vmm_of(p)->stamp;

	plan->nr_pieces = 0;
	plan->fresh = 0;
	plan->used = 0;
	plan->page = page;
	plan->room = 0;
	if (front) {
		front->slack = PART(stamp);
		plan_add_piece(plan, block_id(p, front), 0, 0);
		plan->page = end_page(vmm_of(p), front);
		plan->room = front->units;
		plan->used = pages_for_units(vmm_of(p), front->units);
	}
	if (plan_walk(p, plan, plan->want - plan->room, stamp, best->fresh) &&
	    (plan->fresh < best->fresh || plan->room > best->room) &&
	    plan_is_lean(p, plan))
		*best = *plan;
}

/* The block of @zone that ends a run with @handle, or NULL. */
static struct block *front_of(const struct pool *p, uint32_t handle,
			      unsigned int zone)
{
	const struct vmm *v = vmm_of(p);
	const struct handle *h = handle_at(v, handle);
	struct block *b;
	uint32_t page;

	if (!h->mapping)
		return NULL;
	page = mapping_at(v, h->mapping)->page + h->pages - 1;
	b = block_at(p, v->tail[page]);
	return (v->tail[page] != 0) & (block_state(b) != BLOCK_NONE) & !b->next &
	       (block_zone(b) == zone) &
	       (block_end(b) == v->base + ((uint64_t)(page + 1) << v->shift)) ? b : NULL;
}

/* Whether a plan may begin with the block that ends a run. */
static bool may_begin(const struct pool *p, const struct vmm_plan *plan,
		      const struct block *b)
{
	return ((block_state(b) == BLOCK_FREE) & !(b->flags & (BLOCK_WHOLE | BLOCK_GRAPH))) &&
	       b->units < plan->want && source_may_have(p, plan->s, b) &&
	       may_share(p, plan, b);
}

/* Behind free blocks that end a run; of many runs, others than last time. */
static void plan_blocks(struct pool *p, struct vmm_plan *plan,
			struct vmm_plan *best)
{
	struct vmm *v = vmm_of(p);
	uint32_t id = v->fronts[plan->zone], next;
	uint32_t nr = v->nr_fronts[plan->zone], i;
	struct block *b;

	for (i = 0; i < nr && i < FRONT_LOOKS; i++, id = next) {
		next = handle_at(v, id)->front_next;
		b = front_of(p, id, plan->zone);
		if (!b)
			hm_vmm_remove_front(v, id);
		else if (may_begin(p, plan, b))
			plan_consider(p, plan, best, b, 0);
	}
	if (i < nr)
		v->fronts[plan->zone] = id;
}

/* From the alias @m on, if no free block and no other alias is before it. */
static void plan_alias(struct pool *p, struct vmm_plan *plan, struct vmm_plan *best, uint32_t m)
{
	const struct vmm *v = vmm_of(p);
	const uint32_t page = mapping_at(v, m)->page;

	/* A hole has mapping and handle 0, which are nobody's. */
	if (handle_at(v, mapping_at(v, m)->handle)->candidate &&
	    !(page && handle_of_page(v, page - 1)->candidate))
		plan_consider(p, plan, best, NULL, page);
}

/*
 * From old and new aliases on: memory that moves in turns comes back to the newest. A plan
 * without holes is the best of these.
 */
static void plan_aliases(struct pool *p, struct vmm_plan *plan, struct vmm_plan *best)
{
	const struct vmm *v = vmm_of(p);
	const uint32_t nr = v->nr_aliases;
	uint32_t m = v->first, i;

	for (i = 0; i < nr && i < OLD_LOOKS && best->fresh; i++, m = mapping_at(v, m)->next)
		plan_alias(p, plan, best, m);
	m = v->last;
	for (; i < nr && i < OLD_LOOKS + NEW_LOOKS && best->fresh; i++, m = mapping_at(v, m)->prev)
		plan_alias(p, plan, best, m);
}

/*
 * Addresses, at least; if there are none, what is free makes room. That releases the
 * lock. -EBUSY: the pool was put to sleep.
 */
static int plan_addresses(struct pool *p, enum vmm_place place, uint32_t want,
			  uint32_t *page)
{
	struct vmm *v = vmm_of(p);

	if (hm_vmm_find_hole(v, place, want, page))
		return 0;
	hm_vmm_unalias_all(p);
	if (!p->asleep && hm_vmm_find_hole(v, place, want, page))
		return 0;
	hm_vmm_trim(p, 0);
	hm_vmm_unalias_all(p);
	if (p->asleep)
		return hm_pool_asleep();
	if (hm_vmm_find_hole(v, place, want, page))
		return 0;
	return hm_error(-ENOMEM, "pool: no %llu bytes of addresses in one piece, of %llu that reserve= can raise",
			(unsigned long long)want << v->shift,
			(unsigned long long)v->nr << v->shift);
}

/* They are no more candidates. */
static void plan_unmark(struct pool *p, struct vmm_plan *plan)
{
	size_t i;

	for (i = 0; i < plan->nr; i++)
		handle_at(vmm_of(p), plan->list[i].handle)->candidate = 0;
}

static void plan_free(struct vmm_plan *plan)
{
	free(plan->list);
	plan->list = NULL;
	plan->nr = 0;
}

/* Parked units that a plan takes at once. */
#define PLAN_PARKED	256

/* Units that sparse blocks do not need, for what free handles leave. */
static int plan_collect_parked(struct pool *p, struct vmm_plan *plan)
{
	const uint64_t want = pages_for_units(vmm_of(p), plan->want);
	struct vmm_free *list;

	if (!hm_sparse_parked(vmm_of(p)) || plan->pages >= want)
		return 0;
	list = realloc(plan->list, (plan->nr + PLAN_PARKED) * sizeof(*list));
	if (!list)
		return hm_error(-ENOMEM, "pool: no host memory");
	plan->list = list;
	plan->size = plan->nr + PLAN_PARKED;
	hm_sparse_collect(p, plan->s, plan->wait, want - plan->pages, list, &plan->nr,
			  plan->size);
	return 0;
}

/* The free handles; without those whose addresses are not to change. */
static int plan_collect(struct pool *p, struct vmm_plan *plan)
{
	struct vmm *v = vmm_of(p);
	ssize_t nr;
	size_t i;

	plan->list = NULL;
	plan->nr = 0;
	if (p->opt.comm)
		return 0;
	nr = hm_vmm_collect(p, plan->s, plan->wait,
			    pages_for_units(v, plan->want), &plan->list);
	if (nr < 0)
		return nr;
	plan->nr = nr;
	plan->size = nr;
	plan->pages = 0;
	for (i = 0; i < plan->nr; i++) {
		handle_at(v, plan->list[i].handle)->candidate = i + 1;
		plan->pages += plan->list[i].pages;
	}
	if (plan_collect_parked(p, plan)) {
		plan_unmark(p, plan);
		plan_free(plan);
		return -ENOMEM;
	}
	for (; i < plan->nr; i++)
		plan->pages += plan->list[i].pages;
	return 0;
}

/*
 * Where a block of @best->want units can be made. @best is to be freed if this
 * returns 0. -ENOMEM: no addresses.
 */
static int plan_make(struct pool *p, struct vmm_plan *best)
{
	const enum vmm_place place = best->zone ? VMM_LARGE : VMM_SMALL;
	uint32_t want = plan_pages(p, best, best->want), page = 0;
	struct vmm_plan plan = *best;
	int err;

	plan.steps = WALK_STEPS;
	err = plan_collect(p, &plan);
	if (err)
		return err;
	*best = plan;
	best->nr_pieces = 0;
	best->fresh = want;
	best->room = 0;
	plan_blocks(p, &plan, best);
	plan_aliases(p, &plan, best);
	if (best->nr_pieces || best->fresh < want)
		return 0;
	if (!hm_vmm_find_hole(vmm_of(p), place, want, &page)) {
		/* Making room may change what is free, and where. */
		plan_unmark(p, &plan);
		plan_free(&plan);
		best->list = NULL;
		best->nr = 0;
		err = plan_addresses(p, place, want, &page);
		if (!err)
			err = plan_collect(p, best);
	}
	best->page = page;
	best->end = page + want;
	best->fresh = want;
	plan_add_piece(best, 0, page, want);
	return err;
}

/* Carrying a plan out. */

/*
 * A new handle is at most this part of what the pool has, rounded down: by
 * default, and with prefer=time.
 */
#define HANDLE_SHARE	135
#define TIME_HANDLE_SHARE	64
/*
 * One of small blocks at most that part, once these have such a share of the
 * pool: a few that stay keep all of their handle. Any SMALL_HANDLE_SHARE from
 * 750 on gives 12,000 blocks of 256 KiB handles of 2 MiB.
 */
#define SMALL_HANDLE_SHARE	1000
#define SMALL_SHARE	16
/* Or at most this part of what is missing, up to so many bytes. Likewise. */
#define BLOCK_SHARE	10
#define TIME_BLOCK_SHARE	3
#define EARLY_BYTES	((uint64_t)16 << 20)
/* Up to so many of the largest handles are made whole: others will need it. */
#define WHOLE_HANDLES	6
/* Of more, what is made is rounded up to this part of the pool. */
#define GROWTH_SHARE	512

/*
 * A transport that cannot open a block copies it through buffers of its own, handle by handle:
 * with handles of 2 MiB UCX sends 16 MiB at a seventh of the rate. Larger handles than these cost
 * memory, see Documentation/ucx.md.
 */
#define COMM_HANDLE	((uint64_t)16 << 20)

/*
 * A block with room that gives its end back keeps the handle that it gives back in part. New
 * handles of it are at most this part of what it grows by. Of one page each, 1 GiB would take
 * 27 ms instead of 3.
 */
#define RETURN_SHARE	64

/*
 * A small block that stays strands its whole handle. Under max= that memory is missing, so
 * from LIMIT_PERCENT of max= on a new handle is at most 1/LIMIT_HANDLES of it, and growth is
 * not rounded up.
 */
#define LIMIT_PERCENT	70
#define LIMIT_HANDLES	600

static bool is_near_limit(const struct pool *p, uint32_t want)
{
	const uint64_t bytes = hm_pool_held(p) + ((uint64_t)want << vmm_of(p)->shift);

	return p->opt.max && bytes > p->opt.max / 100 * LIMIT_PERCENT;
}

static uint32_t power_below(uint64_t n)
{
	return n ? 1U << (31 - __builtin_clz(n > UINT32_MAX ? UINT32_MAX :
					     (uint32_t)n)) : 0;
}

/* Blocks that grow get few and large ones. */
static uint32_t exact_pages(const struct pool *p, uint32_t want)
{
	const uint32_t most = p->opt.handle >> vmm_of(p)->shift;

	want = power_below(want);
	return most && want > most ? most : want;
}

/* Pages that a new handle has at least, and that a growth is rounded up to. */
static uint32_t least_pages(const struct pool *p)
{
	return p->opt.comm ? COMM_HANDLE >> vmm_of(p)->shift : 0;
}

static uint32_t handle_share(const struct pool *p)
{
	return p->opt.prefer_time ? TIME_HANDLE_SHARE : HANDLE_SHARE;
}

/*
 * Pages of the next handle, when @want are missing. Large blocks get large
 * ones early, before the pool is large: small ones stay, and are moved one by
 * one ever after.
 */
static uint32_t handle_pages(const struct pool *p, unsigned int zone,
			     uint32_t want)
{
	const struct vmm *v = vmm_of(p);
	uint32_t most, early, limit;

	most = power_below((v->pages + want) / handle_share(p));
	early = power_below(want / (p->opt.prefer_time ? TIME_BLOCK_SHARE :
				    BLOCK_SHARE));
	if (early > EARLY_BYTES >> v->shift)
		early = EARLY_BYTES >> v->shift;
	if (most < early)
		most = early;
	if (!zone && v->small >= v->pages / SMALL_SHARE)
		most = power_below((v->pages + want) / SMALL_HANDLE_SHARE);
	if (most < least_pages(p))
		most = least_pages(p);
	limit = power_below((p->opt.max >> v->shift) / LIMIT_HANDLES);
	if (is_near_limit(p, want) && most > limit)
		most = limit;
	/* Not every hole is of whole ones: blocks that grow end anywhere. */
	if (p->opt.handle)
		most = p->opt.handle >> v->shift;
	return want < most ? power_below(want) : at_least_one(most);
}

/*
 * What to grow by, so that a pool does not have thousands of handles: several
 * small requests share one, the end of a large one has handles that fit it.
 */
static uint32_t round_growth(const struct pool *p, uint32_t want)
{
	const struct vmm *v = vmm_of(p);
	uint32_t unit = power_below(v->pages / handle_share(p));

	if (is_near_limit(p, want))
		unit = 1;
	else if (want > WHOLE_HANDLES * unit)
		unit = at_least_one(power_below(v->pages / GROWTH_SHARE));
	if (unit < least_pages(p) && !is_near_limit(p, want))
		unit = least_pages(p);
	if (p->opt.handle)
		unit = p->opt.handle >> v->shift;
	return (want + unit - 1) & ~(unit - 1);
}

/* Those that come back to aliases. Returns their number. */
static size_t choose_old(struct pool *p, struct vmm_plan *plan)
{
	const struct vmm_piece *hole = plan->pieces;
	uint32_t page = plan->page;
	struct vmm *v = vmm_of(p);
	struct handle *h;
	size_t nr = 0;

	while (page < plan->end) {
		if (!v->map[page]) {
			while (hole->block)
				hole++;
			page += hole++->pages;
			continue;
		}
		h = handle_of_page(v, page);
		if (h->mapping != v->map[page]) {
			plan->list[h->candidate - 1].to = page;
			plan->list[h->candidate - 1].chosen = true;
			nr++;
		}
		page = mapping_at(v, v->map[page])->page + h->pages;
	}
	return nr;
}

/* Large ones first. */
static int by_size(const void *a, const void *b)
{
	const struct vmm_free *x = a, *y = b;
	const uint64_t of_x = (uint64_t)~x->pages << 32 | x->page;
	const uint64_t of_y = (uint64_t)~y->pages << 32 | y->page;

	return (of_x > of_y) - (of_x < of_y);
}

static void choose_one(struct vmm_free *f, struct vmm_piece *hole)
{
	f->to = hole->page;
	f->chosen = true;
	hole->page += f->pages;
	hole->pages -= f->pages < hole->pages ? f->pages : hole->pages;
}

/*
 * Those from @from on for the holes: large ones first; in the last one, the smallest that
 * fills the rest.
 */
static void choose_fresh(struct pool *p, struct vmm_plan *plan, size_t from,
			 struct vmm_piece *hole, bool is_last)
{
	struct vmm_free *last = NULL;
	size_t i;

	for (i = from; i < plan->nr && hole->pages; i++) {
		struct vmm_free *f = &plan->list[i];

		if (f->chosen | (block_state(block_at(p, f->block)) == BLOCK_BUSY))
			continue;
		if (f->pages <= hole->pages)
			choose_one(f, hole);
		else
			last = f;
	}
	if (is_last && hole->pages && last && !plan->exact &&
	    hm_vmm_holes(vmm_of(p), hole->page, last->pages) == last->pages)
		choose_one(last, hole);
}

/* Puts what is chosen from @from on there. Returns where the rest begins. */
static size_t chosen_first(struct vmm_plan *plan, size_t from)
{
	size_t i;

	while (from < plan->nr && plan->list[from].chosen)
		from++;
	for (i = from + 1; i < plan->nr; i++)
		if (plan->list[i].chosen) {
			const struct vmm_free f = plan->list[i];

			plan->list[i] = plan->list[from];
			plan->list[from++] = f;
		}
	return from;
}

/*
 * All blocks of the plan are BUSY then: those of the interval, and those whose
 * handles are moved, which are the list, in the order of blocks.
 */
static void plan_choose(struct pool *p, struct vmm_plan *plan)
{
	size_t old, chosen, i;

	old = choose_old(p, plan);
	plan_unmark(p, plan);
	for (i = 0; i < plan->nr_pieces; i++)
		if (plan->pieces[i].block)
			hm_block_take(p, block_at(p, plan->pieces[i].block));
	/* Aliases are chosen by where they are. */
	chosen = old ? chosen_first(plan, 0) : 0;
	if (chosen < plan->nr && plan->fresh) {
		qsort(plan->list + chosen, plan->nr - chosen, sizeof(*plan->list), by_size);
		for (i = 0; i < plan->nr_pieces; i++)
			if (!plan->pieces[i].block)
				choose_fresh(p, plan, chosen, &plan->pieces[i],
					     i + 1 == plan->nr_pieces);
		chosen = chosen_first(plan, chosen);
	}
	plan->nr = chosen;
	for (i = 0; i < chosen && hm_sparse_parked(vmm_of(p)); i++)
		if (plan->list[i].parked)
			handle_at(vmm_of(p), plan->list[i].handle)->flags |= HANDLE_CHOSEN;
	if (chosen)
		qsort(plan->list, chosen, sizeof(*plan->list), hm_vmm_by_block);
	hm_vmm_take_all(p, plan->list, chosen);
}

/* A handle of @pages that goes to @to. */
static int plan_add_handle(struct pool *p, struct vmm_plan *plan, uint32_t to,
			   uint32_t pages)
{
	size_t size = plan->size ? 2 * plan->size : 16;
	struct vmm_free *list;
	uint32_t h;
	int err;

	if (plan->nr == plan->size) {
		list = realloc(plan->list, size * sizeof(*list));
		if (!list)
			return hm_error(-ENOMEM, "pool: no host memory");
		plan->list = list;
		plan->size = size;
	}
	err = hm_vmm_make_handle(p, pages, &h);
	if (!err)
		plan->list[plan->nr++] = (struct vmm_free){
			.handle = h, .pages = pages, .to = to, .chosen = true,
		};
	return err;
}

/* Streams that a growth asks about memory that it would give back. */
#define ASKED		8
/* Instructions of a question, about. */
#define ASK_WORK	1024

/* Asks how far @s is. Returns the bytes that are free on it, and not known to be complete. */
static uint64_t ask_stream(struct pool *p, struct pool_stream *s)
{
	p->work += ASK_WORK;
	hm_stream_ask(&p->order, &s->s);
	return s->s.done < hm_stream_pos(&s->s) ?
		(s->arenas[0].units + s->arenas[1].units) << UNIT_SHIFT : 0;
}

/*
 * Asks how far @s is, and other streams with free memory: ASKED of them, each time others.
 * A pool with one stream has recorded no event before. The host does not wait. Returns the
 * bytes likewise.
 */
static uint64_t ask_streams(struct pool *p, struct pool_stream *s)
{
	uint64_t pending = ask_stream(p, s);
	struct vmm *v = vmm_of(p);
	unsigned int i, asked = 0;

	for (i = 1; i < p->order.nr && asked < ASKED; i++) {
		struct pool_stream *of;

		v->ask_next = v->ask_next + 1 < p->order.nr ? v->ask_next + 1 : 1;
		of = stream_at(p, v->ask_next);
		if (of == s || !(of->arenas[0].units || of->arenas[1].units))
			continue;
		pending += ask_stream(p, of);
		asked++;
	}
	return pending;
}

/*
 * A block that grows by small steps cannot use the large handles of others that are free.
 * Before it makes the pool larger than ever, the pool gives @bytes of these back. Memory
 * whose work is not complete cannot be given back; a later step gives back the more.
 */
static void make_up_for(struct pool *p, struct pool_stream *s, uint64_t bytes)
{
	struct vmm *v = vmm_of(p);
	uint64_t pending, given;

	if (p->reserved + bytes <= p->reserved_peak)
		return;
	bytes += v->ahead;
	pending = ask_streams(p, s);
	given = hm_vmm_give_back(p, bytes);
	v->ahead = bytes > given ? bytes - given : 0;
	if (v->ahead > pending)
		v->ahead = pending;
}

/* Handles at [@page, @page + @pages); up to @more pages if that is possible. */
static int create_handles(struct pool *p, struct vmm_plan *plan, uint32_t page,
			  uint32_t pages, uint32_t more)
{
	uint32_t most = UINT32_MAX, done = 0, n;
	const unsigned int shift = vmm_of(p)->shift;
	int err;

	if (plan->returns && !p->opt.handle)
		most = at_least_one(power_below(more / RETURN_SHARE));
	if (plan->exact)
		make_up_for(p, plan->s, (uint64_t)more << shift);
	while (done < more) {
		n = plan->exact ? exact_pages(p, more - done) :
			handle_pages(p, plan->zone, more - done);
		if (n > most)
			n = most;
		err = plan_add_handle(p, plan, page + done, n);
		if (!err) {
			done += n;
			continue;
		}
		if (done >= pages)
			return 0;
		if (err != -ENOMEM)
			return err;
		/* What does not fit, and is free, may be all that is missing. */
		if (n > 1 && (plan->exact || !p->opt.handle))
			most = n / 2;
		else if (hm_vmm_give_back(p, (uint64_t)(pages - done) << shift))
			most = plan->returns && !p->opt.handle ? 1 : UINT32_MAX;
		else
			return err;
	}
	return 0;
}

/* What is left of the holes, the last one generously. */
static int plan_create(struct pool *p, struct vmm_plan *plan)
{
	unsigned int i;
	int err = 0;

	for (i = 0; i < plan->nr_pieces && !err; i++) {
		struct vmm_piece *hole = &plan->pieces[i];
		uint32_t more = 0;

		if (hole->block || !hole->pages)
			continue;
		if (i + 1 == plan->nr_pieces && !plan->exact)
			more = round_growth(p, hole->pages);
		if (hm_vmm_holes(vmm_of(p), hole->page, more) < more || !more)
			more = hole->pages;
		err = create_handles(p, plan, hole->page, hole->pages, more);
	}
	return err;
}

/* Orders the stream behind @b; *@waits: not all of it is complete. */
static int order_block(struct pool *p, struct vmm_plan *plan,
		       const struct block *b, bool *waits)
{
	if (hm_block_done(p, b))
		return 0;
	*waits = true;
	return hm_stream_wait(&p->order, &plan->s->s,
			      p->order.streams[b->stream], b->pos);
}

static int plan_order(struct pool *p, struct vmm_plan *plan, bool *waits)
{
	uint32_t before = 0;
	unsigned int i;
	int err = 0;
	size_t j;

	for (i = 0; i < plan->nr_pieces && !err; i++)
		if (plan->pieces[i].block)
			err = order_block(p, plan,
					  block_at(p, plan->pieces[i].block),
					  waits);
	for (j = 0; j < plan->nr && !err; j++) {
		if (plan->list[j].parked)
			err = hm_sparse_order(p, plan->s, &plan->list[j], waits);
		if (plan->list[j].block && plan->list[j].block != before)
			err = order_block(p, plan,
					  block_at(p, plan->list[j].block),
					  waits);
		before = plan->list[j].block;
	}
	return err;
}

static int plan_map(struct pool *p, struct vmm_plan *plan)
{
	struct vmm *v = vmm_of(p);
	size_t i;
	int err;

	for (i = 0; i < plan->nr; i++) {
		struct vmm_free *f = &plan->list[i];

		/* An alias is there already, and whole. */
		if (f->block && v->map[f->to])
			continue;
		err = f->block || f->parked ? hm_vmm_alias(p, f->handle, f->to) :
			hm_vmm_map_handle(p, f->handle, f->to);
		/* Released once it is unmapped. */
		if (err == -EUCLEAN && !f->block && !f->parked)
			f->handle = 0;
		if (err)
			return err == -EUCLEAN ? -EIO : err;
		f->mapped = true;
	}
	return 0;
}

/* Whether @n names of blocks can be had. */
static bool has_names(struct pool *p, uint64_t n)
{
	uint32_t ids = 0, id;
	uint64_t i;

	for (i = 0; i < n && (id = hm_name_get(p, 0)); i++) {
		block_at(p, id)->right = ids;
		ids = id;
	}
	for (; ids; ids = id) {
		id = block_at(p, ids)->right;
		hm_name_put(p, ids);
	}
	return i == n;
}

/* Whether @n uses can be had. */
static bool has_uses(struct pool *p, uint64_t n)
{
	uint32_t ids = 0, id;
	uint64_t i;

	for (i = 0; i < n && (id = hm_table_get(&p->uses)); i++) {
		use_at(p, id)->pos = ids;
		ids = id;
	}
	for (; ids; ids = id) {
		id = use_at(p, ids)->pos;
		hm_table_put(&p->uses, ids);
	}
	return i == n;
}

/* Descriptors that a plan may need beyond those of the blocks that are cut. */
#define SPARE_NAMES	(VMM_PIECES + 2)
/* Tables with so much room that was never used need no further look. */
#define PLENTY		128

int hm_vmm_has_descriptors(struct pool *p, size_t nr)
{
	/* A handle is cut out of its block at both ends, and in a new one. */
	const uint64_t names = 3 * nr + SPARE_NAMES;

	if ((p->blocks.max - p->blocks.nr < names + PLENTY &&
	     !has_names(p, names)) ||
	    (p->uses.max - p->uses.nr < nr && !has_uses(p, nr)))
		return hm_error(-ENOMEM, "pool: too many blocks");
	return 0;
}

struct block *hm_vmm_add_run(struct pool *p, unsigned int zone, uint32_t from, uint32_t to)
{
	struct vmm *v = vmm_of(p);
	struct block *b;
	uint32_t n;

	b = hm_block_new(p, page_addr(v, from),
			 (uint64_t)(to - from) << (v->shift - UNIT_SHIFT),
			 zone);
	n = from ? v->tail[from - 1] : 0;
	if (n && block_zone(block_at(p, n)) == zone)
		hm_block_link(p, block_at(p, n), b);
	n = to < v->nr ? v->head[to] : 0;
	if (n && block_zone(block_at(p, n)) == zone)
		hm_block_link(p, b, block_at(p, n));
	return b;
}

/* @b, or NULL, absorbs @n; what is more than @most is free again. */
static struct block *plan_join(struct pool *p, struct block *b, struct block *n,
			       uint64_t most)
{
	struct block *rest;

	if (b && !b->next)
		hm_block_link(p, b, n);
	most -= b ? b->units : 0;
	if (n->units > most) {
		rest = hm_block_cut(p, n, most);
		hm_block_release(p, rest);
	}
	if (b)
		hm_block_join(p, b, n);
	return b ? b : n;
}

/* The zone of the handles that are chosen is the plan's. Returns where the last one ends. */
static uint32_t plan_end(struct pool *p, const struct vmm_plan *plan)
{
	uint32_t end = plan->end;
	size_t i;

	for (i = 0; i < plan->nr; i++) {
		const struct vmm_free *f = &plan->list[i];

		hm_vmm_set_small(vmm_of(p), f->handle, !plan->zone);
		if (f->to + f->pages > end)
			end = f->to + f->pages;
	}
	return end;
}

/*
 * The interval becomes one block: @front, which is live, or a BUSY one. Pieces are in the
 * order of their addresses. Between blocks, all pages are mapped: each such gap is a run.
 */
static struct block *plan_block(struct pool *p, struct vmm_plan *plan,
				struct block *front)
{
	/* The last piece may be larger than a block can be. */
	uint64_t most = plan->exact ? plan->want : UINT32_MAX;
	const uint32_t end = plan_end(p, plan);
	struct vmm *v = vmm_of(p);
	struct block *b = front, *n;
	uint32_t page = plan->page, next;
	unsigned int i;

	/* Whole pages are more than units. */
	if (plan->exact && plan->end > plan->page)
		most = UINT32_MAX;
	for (i = 0; i <= plan->nr_pieces; i++) {
		n = i < plan->nr_pieces && plan->pieces[i].block ?
			block_at(p, plan->pieces[i].block) : NULL;
		if (i < plan->nr_pieces && !n)
			continue;
		next = n ? first_page(v, n) : end;
		if (next > page)
			b = plan_join(p, b, hm_vmm_add_run(p, plan->zone, page, next), most);
		if (!n)
			break;
		next = end_page(v, n);
		if (next > page)
			page = next;
		b = plan_join(p, b, n, most);
	}
	return b;
}

/* How many of @list from @i on follow each other in a block, from its end on. */
static size_t same_run(const struct vmm_free *list, size_t i, size_t nr)
{
	size_t j;

	for (j = i + 1; j < nr && list[j].block == list[i].block &&
	     list[j].page + list[j].pages == list[j - 1].page; j++)
		;
	return j - i;
}

/* Moves what is chosen; it cannot fail. */
static void plan_move(struct pool *p, struct vmm_plan *plan)
{
	size_t i, j, n;

	for (i = 0; i < plan->nr; i = j) {
		struct vmm_free *f = &plan->list[i];
		bool left = true;

		for (j = i; j < plan->nr && plan->list[j].block == f->block; j += n) {
			n = f->block ? same_run(plan->list, j, plan->nr) : 1;
			if (f->block)
				hm_vmm_move(p, &plan->list[j], n, &left);
			else if (plan->list[j].parked)
				hm_sparse_take(p, &plan->list[j]);
		}
		if (f->block && left)
			hm_block_release(p, block_at(p, f->block));
	}
}

static void plan_undo(struct pool *p, struct vmm_plan *plan)
{
	uint32_t before = 0;
	unsigned int i;
	size_t j;

	for (j = plan->nr; j--;) {
		struct vmm_free *f = &plan->list[j];

		if (f->mapped)
			hm_vmm_unmap_new(p, f->to);
		else if (!f->block && !f->parked && f->handle)
			hm_vmm_drop_handle(p, f->handle);
		if (f->parked)
			handle_at(vmm_of(p), f->handle)->flags &= ~HANDLE_CHOSEN;
	}
	for (j = 0; j < plan->nr; j++) {
		if (plan->list[j].block && plan->list[j].block != before)
			hm_block_release(p, block_at(p, plan->list[j].block));
		before = plan->list[j].block;
	}
	for (i = 0; i < plan->nr_pieces; i++)
		if (plan->pieces[i].block)
			hm_block_release(p, block_at(p, plan->pieces[i].block));
}

/*
 * The interval of @plan in one block: @front, which is live, gets it; without,
 * it is BUSY, with a tag that its stream can use. After an error all is as it
 * was, but for handles that were given back.
 */
static int carry_out(struct pool *p, struct vmm_plan *plan,
		     struct block *front, struct block **out)
{
	bool waits = false;
	struct block *b;
	int err;

	plan_choose(p, plan);
	err = plan_create(p, plan);
	if (!err)
		err = plan_order(p, plan, &waits);
	if (!err)
		err = hm_vmm_has_descriptors(p, plan->nr);
	if (!err)
		err = plan_map(p, plan);
	if (err) {
		plan_undo(p, plan);
		plan_free(plan);
		return err;
	}
	plan_move(p, plan);
	b = plan_block(p, plan, front);
	if (!front) {
		/* What the stream has waited for: a point of its own. */
		b->stream = waits || hm_pool_is_apart(p, plan->zone) ? plan->s->s.index : 0;
		b->pos = waits ? stream_point(plan->s) : 0;
	}
	plan_free(plan);
	*out = b;
	return 0;
}

static int grow_by_plan(struct pool *p, struct pool_stream *s,
			unsigned int zone, uint64_t units, bool wait,
			struct block **b)
{
	struct vmm_plan plan = {
		.s = s, .wait = wait, .zone = zone, .want = units,
	};
	int err = plan_make(p, &plan);

	return err ? err : carry_out(p, &plan, NULL, b);
}

/* Gives back what is free, finds addresses again. Releases the lock. Errors likewise. */
static int trim_for_whole(struct pool *p, uint32_t pages, uint32_t *page)
{
	hm_vmm_trim(p, 0);
	if (p->asleep)
		return hm_pool_asleep();
	return hm_vmm_find_hole(vmm_of(p), VMM_LARGE, pages, page) ? 0 :
		hm_error(-ENOMEM, "pool: no addresses");
}

/* A block with a handle of its own. */
int hm_vmm_grow_whole(struct pool *p, struct pool_stream *s, uint64_t units, struct block **out)
{
	struct vmm *v = vmm_of(p);
	uint32_t pages = units >> (v->shift - UNIT_SHIFT), page;
	struct block *b;
	int err = 0;

	(void)s;
	if (!hm_vmm_find_hole(v, VMM_LARGE, pages, &page))
		err = trim_for_whole(p, pages, &page);
	if (err)
		return err;
	err = hm_vmm_create(p, page, pages);
	/* Cached handles of other sizes may be all that is in the way. */
	if (err == -ENOMEM) {
		err = trim_for_whole(p, pages, &page);
		if (!err)
			err = hm_vmm_create(p, page, pages);
	}
	if (err)
		return err;
	b = hm_block_new(p, page_addr(v, page), units, 1);
	if (!b) {
		hm_vmm_unmap_new(p, page);
		return -ENOMEM;
	}
	__atomic_store_n(&b->flags, b->flags | BLOCK_WHOLE, __ATOMIC_RELEASE);
	*out = b;
	return 0;
}

bool hm_vmm_retry(struct pool *p)
{
	struct vmm *v = vmm_of(p);

	if (!v->more)
		return false;
	v->more = false;
	hm_vmm_trim(p, 0);
	return true;
}

int hm_vmm_grow(struct pool *p, struct pool_stream *s, unsigned int zone,
		uint64_t units, bool order, struct block **b)
{
	int err;
	HM_RANGE("grow", units << UNIT_SHIFT);

	if (p->whole)
		return hm_vmm_grow_whole(p, s, units, b);
	err = grow_by_plan(p, s, zone, units, order, b);
	/* Another stream that cannot be waited for is in nobody's way. */
	return err == -EAGAIN && order ?
		grow_by_plan(p, s, zone, units, false, b) : err;
}

/*
 * Blocks that get larger where they are. Addresses that are reserved for a block are set
 * aside behind it: its room, which gets shorter from its beginning as the block grows.
 */

/* A block of @pages from @page on, all holes. */
static int reserve_by_plan(struct pool *p, struct pool_stream *s,
			   uint64_t units, uint32_t page, bool wait,
			   struct block **b)
{
	struct vmm_plan plan = {
		.s = s, .wait = wait, .zone = 1, .exact = true, .returns = true,
		.want = units, .page = page,
	};
	uint32_t pages = plan_pages(p, &plan, units);
	int err = plan_collect(p, &plan);

	if (err)
		return err;
	plan.end = page + pages;
	plan.fresh = pages;
	plan_add_piece(&plan, 0, page, pages);
	return carry_out(p, &plan, NULL, b);
}

/* Without success @b is free memory. */
static int map_ring(struct pool *p, struct pool_stream *s, struct block *b)
{
	int err = hm_ring_map(p, b);

	if (!err)
		return 0;
	b->stream = s->s.index;
	b->pos = stream_point(s);
	hm_block_release(p, b);
	return err;
}

int hm_vmm_reserve(struct pool *p, struct pool_stream *s, const struct hm_ctl_alloc *arg,
		   bool order, struct block **out)
{
	const bool ring = arg->flags & HETMEM_ALLOC_RING;
	struct vmm *v = vmm_of(p);
	uint64_t units = units_of(arg->size);
	uint32_t all = pages_for_units(v, units_of(arg->reserve));
	uint32_t pages = pages_for_units(v, units), page;
	struct block *b;
	int err;

	err = ring ? hm_ring_check(p, arg) : 0;
	if (err)
		return err;
	hm_vmm_prepare_at_once(p, s, order);
	err = plan_addresses(p, VMM_ROOM, all, &page);
	if (err)
		return err;
	hm_vmm_set_apart(v, page + pages, all - pages, true);
	err = reserve_by_plan(p, s, units, page, order, &b);
	if (err == -EAGAIN && order)
		err = reserve_by_plan(p, s, units, page, false, &b);
	if (!err && ring)
		err = map_ring(p, s, b);
	if (err) {
		hm_vmm_set_apart(v, page + pages, all - pages, false);
		return err;
	}
	__atomic_store_n(&b->flags, b->flags | BLOCK_RESERVE, __ATOMIC_RELEASE);
	*out = b;
	return 0;
}

void hm_vmm_unreserve(struct pool *p, struct block *b)
{
	struct vmm *v = vmm_of(p);
	const uint32_t page = end_page(v, b);

	/* Only the last block of a run has room: what is set aside behind another is in its neighbour. */
	if (block_is_sparse(b) || hm_is_ring(v, b))
		return;
	if (!b->next)
		hm_vmm_set_apart(v, page, hm_vmm_apart(v, page), false);
	if (hm_vmm_find_apart(v, first_page(v, b), page, true) == page)
		__atomic_store_n(&b->flags, b->flags & ~BLOCK_RESERVE, __ATOMIC_RELEASE);
}

static int in_use(void)
{
	return hm_error(-ENOSPC, "grow: the memory after the block is in use");
}

/*
 * The free blocks after @b in its run become pieces, until @plan->want units are
 * there: @plan->room are. -ENOSPC: there is a live one; -ENOMEM: one that @s
 * cannot have yet.
 */
static int plan_behind(struct pool *p, struct vmm_plan *plan, struct block *b,
		       uint32_t stamp)
{
	for (plan->room = b->units; b->next && plan->room < plan->want;
	     plan->room += b->units) {
		b = block_at(p, b->next);
		if (block_state(b) == BLOCK_PENDING)
			return hm_error(-ENOMEM, "grow: the memory after the block is used by other streams");
		if (block_state(b) != BLOCK_FREE ||
		    b->flags & (BLOCK_GRAPH | BLOCK_WHOLE))
			return in_use();
		if (!may_have(p, plan, b))
			return hm_error(-ENOMEM, "grow: the memory after the block is used by another stream");
		if (!plan_add_piece(plan, block_id(p, b), 0, 0))
			return in_use();
		b->slack = PART(stamp);
	}
	plan->page = end_page(vmm_of(p), b);
	plan->end = plan->page;
	return 0;
}

/* Of a walk that there is no other for. */
static int plan_steps(uint32_t pages)
{
	return pages < INT32_MAX ? (int)pages + 1 : INT32_MAX;
}

/*
 * Addresses behind the run of @b, of which it may have room: *@room pages of that are no
 * longer set aside then.
 */
static int plan_after(struct pool *p, struct vmm_plan *plan,
		      const struct block *b, uint32_t stamp, uint32_t *room)
{
	struct vmm *v = vmm_of(p);
	uint64_t want = plan->want - plan->room;
	uint32_t pages = pages_for_units(v, want), has = 0;
	unsigned int nr = plan->nr_pieces;

	plan->steps = plan_steps(pages);
	if (b->flags & BLOCK_RESERVE && !b->next)
		has = hm_vmm_apart(v, plan->page);
	if (has && has < pages)
		return hm_error(-ENOSPC, "grow: no more addresses were reserved for the block");
	if (has) {
		*room = pages;
		hm_vmm_set_apart(v, plan->page, pages, false);
	}
	if (plan_walk(p, plan, want, stamp, UINT32_MAX))
		return 0;
	/* Stale addresses of others may be in the way. */
	hm_vmm_clear(p, plan->page, pages);
	plan->nr_pieces = nr;
	plan->fresh = 0;
	plan->steps = plan_steps(pages);
	if (plan_walk(p, plan, want, ++v->stamp, UINT32_MAX))
		return 0;
	if (has)
		return hm_error(-ENOMEM, "grow: memory that the block gave back is still in use behind it");
	return hm_error(-ENOSPC, "grow: the addresses after the block are in use");
}

static int enlarge_by_plan(struct pool *p, struct pool_stream *s,
			   struct block *b, uint64_t units, bool wait)
{
	struct vmm_plan plan = {
		.s = s, .wait = wait, .zone = block_zone(b), .exact = true,
		.returns = b->flags & BLOCK_RESERVE, .want = units,
	};
	uint32_t stamp = ++vmm_of(p)->stamp, room = 0, page = 0;
	int err = plan_behind(p, &plan, b, stamp);

	if (!err && plan.room < units) {
		err = plan_collect(p, &plan);
		page = plan.page;
		if (!err)
			err = plan_after(p, &plan, b, stamp, &room);
		if (err) {
			plan_unmark(p, &plan);
			plan_free(&plan);
		}
	}
	if (!err)
		err = carry_out(p, &plan, b, &b);
	if (err)
		hm_vmm_set_apart(vmm_of(p), page, room, true);
	return err;
}

int hm_vmm_enlarge(struct pool *p, struct pool_stream *s, struct block *b,
		   uint64_t units, bool order)
{
	int err;

	if (block_is_sparse(b))
		return hm_error(-EOPNOTSUPP, "grow: a sparse block has the addresses that it was allocated with");
	if (hm_is_ring(vmm_of(p), b))
		return hm_error(-EOPNOTSUPP, "grow: a ring keeps its size");
	hm_vmm_prepare_at_once(p, s, order);
	err = enlarge_by_plan(p, s, b, units, order);
	return err == -EAGAIN && order ?
		enlarge_by_plan(p, s, b, units, false) : err;
}
