// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The VMM pool: handles that are free in parts, each of another stream. Such parts do not
 * merge, and the handle could not be moved although nothing in it is live. Before a growth,
 * its stream is ordered behind these parts, and they become its own. All with pool->lock.
 */
#include "vmm/ring.h"

/*
 * Steps of a growth: a look at a block is one, and so are some parts of a handle
 * that are looked at; a part that is joined is several.
 */
#define JOIN_STEPS	96
/* Instructions of a step, and of a look at an arena, about. */
#define JOIN_WORK	400
#define ARENA_WORK	8
#define PART_LOOKS	4
#define PART_STEPS	4
/* A handle of more parts is left as it is. */
#define MAX_PARTS	32

static bool may_join(struct pool *p, const struct pool_stream *s,
		     const struct block *b, bool order)
{
	const struct hm_stream *of;

	if (block_state(b) != BLOCK_FREE ||
	    b->flags & (BLOCK_WHOLE | BLOCK_GRAPH))
		return false;
	of = p->order.streams[b->stream];
	return b->pos <= hm_stream_known(&s->s, of) ||
	       (order && s->s.index && !of->lost);
}

/*
 * The handle that @b ends within, if all of it is free: its first and last
 * block in *@first and *@last. *@parts: blocks that were looked at.
 */
static struct mapping *join_find(struct pool *p, const struct pool_stream *s,
				 struct block *b, bool order,
				 struct block **first, struct block **last,
				 unsigned int *parts)
{
	struct vmm *v = vmm_of(p);
	uint64_t end = block_end(b), to;
	struct mapping *m;
	struct handle *h;

	*parts = 0;
	if (!b->next)
		return NULL;
	m = mapping_at(v, v->map[page_of(v, end)]);
	h = handle_at(v, m->handle);
	if (page_addr(v, m->page) == end || h->flags & HANDLE_PINNED)
		return NULL;
	to = page_addr(v, m->page + h->pages);
	for (*first = b; ; *first = block_at(p, (*first)->prev)) {
		if (++*parts > MAX_PARTS || !may_join(p, s, *first, order))
			return NULL;
		if ((*first)->addr <= page_addr(v, m->page))
			break;
		if (!(*first)->prev)
			return NULL;
	}
	for (*last = block_at(p, b->next); ;
	     *last = block_at(p, (*last)->next)) {
		if (++*parts > MAX_PARTS || !may_join(p, s, *last, order))
			return NULL;
		if (block_end(*last) >= to)
			break;
		if (!(*last)->next)
			return NULL;
	}
	return m;
}

static int join_wait(struct pool *p, struct pool_stream *s, struct block *first,
		     const struct block *last)
{
	struct block *b = first;
	int err;

	for (;;) {
		err = hm_stream_wait(&p->order, &s->s,
				     p->order.streams[b->stream], b->pos);
		if (err || b == last)
			return err;
		b = block_at(p, b->next);
	}
}

/* The part of BUSY @b that is in [@from, @to), the rest is FREE; or NULL. */
static struct block *join_cut(struct pool *p, struct block *b, uint64_t from,
			      uint64_t to)
{
	struct block *rest;

	if (block_end(b) > to) {
		rest = hm_block_cut(p, b, (to - b->addr) >> UNIT_SHIFT);
		if (rest)
			hm_block_release(p, rest);
	}
	if (b->addr < from) {
		rest = hm_block_cut(p, b, (from - b->addr) >> UNIT_SHIFT);
		if (rest)
			hm_block_release(p, b);
		b = rest ? rest : b;
	}
	return b;
}

static void join_handle(struct pool *p, struct pool_stream *s,
			struct block *first,
			struct block *last, uint64_t from, uint64_t to)
{
	struct block *b, *next;
	uint64_t pos;

	for (b = first; ; b = block_at(p, b->next)) {
		hm_block_take(p, b);
		if (b == last)
			break;
	}
	pos = stream_point(s);
	/* All of them are BUSY: parts that are cut off merge outwards only. */
	for (b = first; ; b = next) {
		bool is_last = b == last;

		next = block_at(p, b->next);
		b = join_cut(p, b, from, to);
		b->stream = s->s.index;
		b->pos = pos;
		hm_block_release(p, b);
		if (is_last)
			break;
	}
}

/*
 * At one block after the other of @a; false: @steps did not suffice. @pauses: releases the
 * lock between pieces.
 */
static bool join_arena(struct pool *p, struct pool_stream *s, struct arena *a,
		       bool order, bool pauses, int *steps)
{
	struct vmm *v = vmm_of(p);
	struct block *b, *first, *last;
	struct mapping *m;
	unsigned int parts;
	int before = *steps;

	while (*steps > 0) {
		p->work += (before - *steps) * JOIN_WORK;
		before = *steps;
		if (pauses)
			hm_pool_step(p, 0);
		if (p->asleep)
			return true;
		b = a->units ? hm_arena_walk(p, a, WALK_JOIN) : NULL;
		if (!b)
			return true;
		m = join_find(p, s, b, order, &first, &last, &parts);
		*steps -= 1 + parts / PART_LOOKS;
		if (!m || join_wait(p, s, first, last))
			continue;
		*steps -= parts * PART_STEPS;
		join_handle(p, s, first, last, page_addr(v, m->page),
			    page_addr(v, m->page +
				      handle_at(v, m->handle)->pages));
	}
	return false;
}

static void join_handles(struct pool *p, struct pool_stream *s, bool order, bool pauses)
{
	const unsigned int nr = p->order.nr * NR_ZONES;
	struct vmm *v = vmm_of(p);
	int steps = JOIN_STEPS;
	unsigned int i;

	for (i = 0; i < nr; i++, v->join_next++) {
		struct arena *a;

		if (v->join_next >= nr)
			v->join_next = 0;
		a = &stream_at(p, v->join_next / NR_ZONES)->
			arenas[v->join_next % NR_ZONES];
		if (a->units && !join_arena(p, s, a, order, pauses, &steps)) {
			v->more = true;
			break;
		}
	}
	p->work += i * ARENA_WORK;
}

/* At once, or @pauses between pieces. */
static void prepare(struct pool *p, struct pool_stream *s, bool order, bool pauses)
{
	hm_vmm_reap_others(p);
	if (vmm_of(p)->nr_aliases > VMM_ALIASES)
		hm_vmm_unalias(p, VMM_ALIASES * 3 / 4);
	if (p->order.seen > 1 && !p->opt.comm && !p->whole)
		join_handles(p, s, order, pauses);
}

void hm_vmm_prepare(struct pool *p, struct pool_stream *s, bool order)
{
	prepare(p, s, order, true);
}

void hm_vmm_prepare_at_once(struct pool *p, struct pool_stream *s, bool order)
{
	prepare(p, s, order, false);
}
