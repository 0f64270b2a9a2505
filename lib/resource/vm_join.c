// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The VMM pool: handles that are free in parts, each of another stream. Such
 * parts do not merge, and the handle could not be moved although nothing in
 * it is live. A stream that is about to make memory is ordered behind them
 * instead, and the handle's part of them is its own.
 */
#include "resource/vm.h"

/* At most so many at a time: each may be a wait for another stream. */
#define MAX_JOINS	64

static bool may_join(struct pool *p, const struct pool_stream *s,
		     const struct block *b)
{
	const struct hm_stream *of;

	if (block_state(b) != BLOCK_FREE ||
	    b->flags & (BLOCK_WHOLE | BLOCK_GRAPH))
		return false;
	of = p->order.streams[b->stream];
	return b->pos <= hm_stream_known(&s->s, of) ||
	       (s->s.index && !of->lost);
}

/*
 * The handle that @b ends within, if all of it is free: its first and last
 * block in *@first and *@last.
 */
static struct mapping *straddled(struct pool *p, const struct pool_stream *s,
				 struct block *b, struct block **first,
				 struct block **last)
{
	struct vm *v = p->vm;
	uint64_t end = block_end(b), to;
	struct mapping *m;
	struct handle *h;

	if (!b->next)
		return NULL;
	m = mapping_at(v, v->map[page_of(v, end)]);
	h = handle_at(v, m->handle);
	if (page_addr(v, m->page) == end || h->flags & HANDLE_PINNED)
		return NULL;
	to = page_addr(v, m->page + h->pages);
	for (*first = b; ; *first = block_at(p, (*first)->prev)) {
		if (!may_join(p, s, *first))
			return NULL;
		if ((*first)->addr <= page_addr(v, m->page))
			break;
		if (!(*first)->prev)
			return NULL;
	}
	for (*last = block_at(p, b->next); ;
	     *last = block_at(p, (*last)->next)) {
		if (!may_join(p, s, *last))
			return NULL;
		if (block_end(*last) >= to)
			break;
		if (!(*last)->next)
			return NULL;
	}
	return m;
}

static int wait_all(struct pool *p, struct pool_stream *s, struct block *first,
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
static struct block *part(struct pool *p, struct block *b, uint64_t from,
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

static void join(struct pool *p, struct pool_stream *s, struct block *first,
		 struct block *last, uint64_t from, uint64_t to)
{
	struct block *b, *next;
	uint64_t pos;

	for (b = first; ; b = block_at(p, b->next)) {
		hm_block_take(p, b);
		if (b == last)
			break;
	}
	stream_lock(s);
	pos = s->s.index ? hm_stream_step(&s->s) : 0;
	stream_unlock(s);
	/* All of them are BUSY: parts that are cut off merge outwards only. */
	for (b = first; ; b = next) {
		bool is_last = b == last;

		next = block_at(p, b->next);
		b = part(p, b, from, to);
		b->stream = s->s.index;
		b->pos = pos;
		hm_block_release(p, b);
		if (is_last)
			break;
	}
}

static bool join_one(struct pool *p, struct pool_stream *s, struct arena *a)
{
	struct block *b, *first, *last;
	struct mapping *m;

	for (b = hm_arena_best(p, a, 1); b; b = hm_arena_next(p, a, b)) {
		m = straddled(p, s, b, &first, &last);
		if (!m || wait_all(p, s, first, last))
			continue;
		join(p, s, first, last, page_addr(p->vm, m->page),
		     page_addr(p->vm, m->page +
			       handle_at(p->vm, m->handle)->pages));
		return true;
	}
	return false;
}

void hm_vm_join(struct pool *p, struct pool_stream *s)
{
	unsigned int i, joins = 0;

	for (i = 0; i < p->order.nr * NR_ZONES; i++) {
		struct pool_stream *of = stream_at(p, i / NR_ZONES);

		while (join_one(p, s, &of->arenas[i % NR_ZONES]))
			if (++joins == MAX_JOINS)
				return;
	}
}
