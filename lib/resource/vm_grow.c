// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The VMM pool: growth. A request that no free block holds gets an interval of
 * addresses, see vm_plan.c. What goes behind its holes, in this order: handles
 * that are wholly free elsewhere, then new ones, whose size grows with the
 * pool.
 */
#include <stdlib.h>

#include "resource/vm.h"

/* A new handle is at most this part of what the pool has, rounded down. */
#define HANDLE_SHARE	136
/* Or at most this part of what is missing, up to so many bytes. */
#define BLOCK_SHARE	6
#define EARLY_BYTES	((uint64_t)16 << 20)
/* Up to so many of the largest handles are made whole: others will need it. */
#define WHOLE_HANDLES	6
/* Of more, what is made is rounded up to this part of the pool. */
#define GROWTH_SHARE	1024

static uint32_t power_below(uint64_t n)
{
	return n ? 1U << (31 - __builtin_clz(n > UINT32_MAX ? UINT32_MAX :
					     (uint32_t)n)) : 0;
}

static uint32_t at_least_one(uint32_t n)
{
	return n ? n : 1;
}

/*
 * Pages of the next handle, when @want are missing. Large blocks get large
 * ones early, before the pool is large: small ones stay, and are moved one by
 * one ever after.
 */
static uint32_t handle_pages(const struct pool *p, uint32_t want)
{
	const struct vm *v = p->vm;
	uint32_t most, early;

	most = power_below((v->pages + want) / HANDLE_SHARE);
	early = power_below(want / BLOCK_SHARE);
	if (early > EARLY_BYTES >> v->shift)
		early = EARLY_BYTES >> v->shift;
	if (most < early)
		most = early;
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
	const struct vm *v = p->vm;
	uint32_t unit = power_below(v->pages / HANDLE_SHARE);

	if (want > WHOLE_HANDLES * unit)
		unit = at_least_one(power_below(v->pages / GROWTH_SHARE));
	if (p->opt.handle)
		unit = p->opt.handle >> v->shift;
	return (want + unit - 1) & ~(unit - 1);
}

/* Large ones first. */
static int by_size(const void *a, const void *b)
{
	const struct vm_free *x = a, *y = b;

	return x->pages < y->pages ? 1 : x->pages > y->pages ? -1 :
		x->page < y->page ? -1 : 1;
}

/* Those that come back to aliases. */
static void choose_old(struct pool *p, struct vm_plan *plan)
{
	uint32_t page = plan->page;
	struct vm *v = p->vm;
	struct handle *h;

	while (page < plan->end) {
		if (!v->map[page]) {
			page++;
			continue;
		}
		h = handle_of_page(v, page);
		if (h->mapping != v->map[page]) {
			plan->list[h->candidate - 1].to = page;
			plan->list[h->candidate - 1].chosen = true;
		}
		page = mapping_at(v, v->map[page])->page + h->pages;
	}
}

static void choose_one(struct vm_free *f, struct vm_piece *hole)
{
	f->to = hole->page;
	f->chosen = true;
	hole->page += f->pages;
	hole->pages -= f->pages < hole->pages ? f->pages : hole->pages;
}

/*
 * Those for the holes: large ones first; in the last one, the smallest that
 * fills the rest.
 */
static void choose_fresh(struct pool *p, struct vm_plan *plan, struct vm_piece *hole,
			 bool is_last)
{
	struct vm_free *last = NULL;
	size_t i;

	for (i = 0; i < plan->nr && hole->pages; i++) {
		struct vm_free *f = &plan->list[i];

		if (f->chosen || block_state(block_at(p, f->block)) == BLOCK_BUSY)
			continue;
		if (f->pages <= hole->pages)
			choose_one(f, hole);
		else
			last = f;
	}
	if (is_last && hole->pages && last &&
	    hm_vm_holes(p->vm, hole->page, last->pages) == last->pages)
		choose_one(last, hole);
}

/* All of one block's; @s is ordered behind what was done with it. */
static int move_block(struct pool *p, struct pool_stream *s,
		      struct vm_free *list, size_t nr, bool *waits)
{
	struct block *b = block_at(p, list[0].block);
	bool left = true;
	int err = 0;
	size_t i;

	if (!hm_block_done(p, b)) {
		*waits = true;
		err = hm_stream_wait(&p->order, &s->s,
				     p->order.streams[b->stream], b->pos);
	}
	for (i = 0; i < nr && !err; i++) {
		err = hm_vm_remap(p, &list[i], list[i].to, &left);
		list[i].moved = !err;
	}
	if (left)
		hm_block_release(p, b);
	return err;
}

/* All that is chosen. The other blocks are BUSY: nothing merges with them. */
static int move(struct pool *p, struct pool_stream *s, struct vm_free *list,
		size_t nr, bool *waits)
{
	size_t i, j;
	int err = 0;

	if (!nr)
		return 0;
	qsort(list, nr, sizeof(*list), hm_vm_by_block);
	hm_vm_take_all(p, list, nr);
	for (i = 0; i < nr; i = j) {
		for (j = i; j < nr && list[j].block == list[i].block; j++)
			;
		if (!err)
			err = move_block(p, s, list + i, j - i, waits);
		else
			hm_block_release(p, block_at(p, list[i].block));
	}
	return err;
}

static int create(struct pool *p, uint32_t *page, uint32_t end)
{
	uint32_t most = UINT32_MAX, pages;
	int err;

	while (*page < end) {
		pages = handle_pages(p, end - *page);
		if (pages > most)
			pages = most;
		err = hm_vm_create(p, *page, pages);
		if (err == -ENOMEM && pages > 1 && !p->opt.handle) {
			most = pages / 2;
			continue;
		}
		if (err)
			return err;
		*page += pages;
	}
	return 0;
}

/* What is mapped at [@from, @to) is a free block with the tag of @tag. */
static int add_run(struct pool *p, unsigned int zone, uint32_t from,
		   uint32_t to, const struct hm_stream *tag)
{
	struct vm *v = p->vm;
	struct block *b;
	uint32_t n;

	b = hm_block_new(p, page_addr(v, from),
			 (uint64_t)(to - from) << (v->shift - UNIT_SHIFT),
			 zone);
	if (!b)
		return -ENOMEM;
	n = from ? v->tail[from - 1] : 0;
	if (n && block_zone(block_at(p, n)) == zone)
		hm_block_link(p, block_at(p, n), b);
	n = to < v->nr ? v->head[to] : 0;
	if (n && block_zone(block_at(p, n)) == zone)
		hm_block_link(p, b, block_at(p, n));
	if (tag) {
		b->stream = tag->index;
		b->pos = tag->pos;
	}
	hm_block_release(p, b);
	return 0;
}

static int by_place(const void *a, const void *b)
{
	const struct vm_free *x = a, *y = b;

	return x->to < y->to ? -1 : 1;
}

/* What was moved, in as few runs as it is; one, unless something failed. */
static int add_moved(struct pool *p, unsigned int zone, struct vm_free *list,
		     size_t nr, const struct hm_stream *tag)
{
	int err = 0, add;
	size_t i, j;

	if (!nr)
		return 0;
	qsort(list, nr, sizeof(*list), by_place);
	for (i = 0; i < nr; i = j) {
		j = i + 1;
		if (!list[i].moved)
			continue;
		while (j < nr && list[j].moved &&
		       list[j].to == list[j - 1].to + list[j - 1].pages)
			j++;
		add = add_run(p, zone, list[i].to,
			      list[j - 1].to + list[j - 1].pages, tag);
		err = err ? err : add;
	}
	return err;
}

/* The tag of what @s has waited for: a point of its own. */
static const struct hm_stream *tag_of(struct pool_stream *s)
{
	stream_lock(s);
	hm_stream_step(&s->s);
	stream_unlock(s);
	return &s->s;
}

/* Blocks of the interval: BUSY, and FREE again with @tag. */
static void take_parts(struct pool *p, struct vm_plan *plan, bool *waits)
{
	unsigned int i;

	for (i = 0; i < plan->nr_pieces; i++) {
		struct block *b = block_at(p, plan->pieces[i].block);

		if (!plan->pieces[i].block)
			continue;
		hm_block_take(p, b);
		*waits |= !hm_block_done(p, b);
	}
}

static int order_parts(struct pool *p, struct pool_stream *s,
		       struct vm_plan *plan)
{
	unsigned int i;
	int err = 0;

	for (i = 0; i < plan->nr_pieces && !err; i++) {
		struct block *b = block_at(p, plan->pieces[i].block);

		if (plan->pieces[i].block && !hm_block_done(p, b))
			err = hm_stream_wait(&p->order, &s->s,
					     p->order.streams[b->stream],
					     b->pos);
	}
	return err;
}

/* Runs that were made side by side, with room between them that is gone now. */
static void link_parts(struct pool *p, struct vm_plan *plan)
{
	unsigned int i;

	for (i = 1; i < plan->nr_pieces; i++) {
		struct block *b = block_at(p, plan->pieces[i - 1].block);
		struct block *n = block_at(p, plan->pieces[i].block);

		if (plan->pieces[i - 1].block && plan->pieces[i].block &&
		    !b->next && !n->prev && block_end(b) == n->addr)
			hm_block_link(p, b, n);
	}
}

static void release_parts(struct pool *p, struct vm_plan *plan,
			  const struct hm_stream *tag)
{
	unsigned int i;

	link_parts(p, plan);
	for (i = 0; i < plan->nr_pieces; i++) {
		struct block *b = block_at(p, plan->pieces[i].block);

		if (!plan->pieces[i].block)
			continue;
		if (tag) {
			b->stream = tag->index;
			b->pos = tag->pos;
		}
		hm_block_release(p, b);
	}
}

/* Fills what is left of the holes, the last one generously. */
static int fill(struct pool *p, struct vm_plan *plan,
		const struct hm_stream *tag)
{
	int err = 0, add = 0;
	unsigned int i;

	for (i = 0; i < plan->nr_pieces && !err && !add; i++) {
		struct vm_piece *hole = &plan->pieces[i];
		uint32_t at = hole->page, end = at + hole->pages, more = 0;

		if (hole->block || !hole->pages)
			continue;
		if (i + 1 == plan->nr_pieces)
			more = round_growth(p, hole->pages);
		if (hm_vm_holes(p->vm, at, more) < more || !more)
			more = hole->pages;
		err = create(p, &at, at + more);
		if (at >= end)
			err = 0;
		if (at > hole->page)
			add = add_run(p, plan->zone, hole->page, at, tag);
	}
	return err ? err : add;
}

static int carry_out(struct pool *p, struct pool_stream *s, struct vm_plan *plan)
{
	const struct hm_stream *tag = NULL;
	size_t i, chosen = 0;
	bool waits = false;
	int err, add;

	choose_old(p, plan);
	for (i = 0; i < plan->nr; i++)
		handle_at(p->vm, plan->list[i].handle)->candidate = 0;
	take_parts(p, plan, &waits);
	if (plan->nr)
		qsort(plan->list, plan->nr, sizeof(*plan->list), by_size);
	for (i = 0; i < plan->nr_pieces; i++)
		if (!plan->pieces[i].block)
			choose_fresh(p, plan, &plan->pieces[i],
				     i + 1 == plan->nr_pieces);
	for (i = 0; i < plan->nr; i++)
		if (plan->list[i].chosen)
			plan->list[chosen++] = plan->list[i];
	plan->nr = chosen;
	err = order_parts(p, s, plan);
	if (!err)
		err = move(p, s, plan->list, chosen, &waits);
	/* Without an error @s is behind all of it; with one, parts keep theirs. */
	if (waits && !err)
		tag = tag_of(s);
	add = 0;
	if (!err)
		err = fill(p, plan, tag);
	release_parts(p, plan, tag);
	add = add_moved(p, plan->zone, plan->list, chosen,
			waits && !tag ? tag_of(s) : tag);
	return err ? err : add;
}

static int grow(struct pool *p, struct pool_stream *s, unsigned int zone,
		uint64_t units, bool wait)
{
	struct vm_plan plan;
	int err;

	err = hm_vm_plan(p, s, zone, units, wait, &plan);
	if (!err) {
		p->growing = true;
		err = carry_out(p, s, &plan);
		p->growing = false;
	}
	if (err)
		plan.nr = 0;
	hm_vm_plan_free(p, &plan);
	return err;
}

/* A block with a handle of its own. */
static int grow_whole(struct pool *p, uint64_t units)
{
	struct vm *v = p->vm;
	uint32_t pages = units >> (v->shift - UNIT_SHIFT), page;
	struct block *b;
	int err;

	if (!hm_vm_find_hole(v, 1, pages, &page)) {
		hm_vm_trim(p, 0);
		if (!hm_vm_find_hole(v, 1, pages, &page))
			return hm_error(-ENOMEM, "pool: no addresses");
	}
	err = hm_vm_create(p, page, pages);
	/* Cached handles of other sizes may be all that is in the way. */
	if (err == -ENOMEM && hm_vm_trim(p, 0))
		err = hm_vm_create(p, page, pages);
	if (err)
		return err;
	b = hm_block_new(p, page_addr(v, page), units, 1);
	if (!b)
		return -ENOMEM;
	__atomic_store_n(&b->flags, b->flags | BLOCK_WHOLE, __ATOMIC_RELEASE);
	hm_block_release(p, b);
	return 0;
}

int hm_vm_grow(struct pool *p, struct pool_stream *s, unsigned int zone,
	       uint64_t units)
{
	int err;

	if (p->whole)
		return grow_whole(p, units);
	if (p->vm->nr_aliases > VM_ALIASES)
		hm_vm_unalias(p, VM_ALIASES * 3 / 4, 0);
	err = grow(p, s, zone, units, true);
	/* Another stream that cannot be waited for is in nobody's way. */
	return err == -EAGAIN ? grow(p, s, zone, units, false) : err;
}
