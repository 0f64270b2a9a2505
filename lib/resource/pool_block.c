// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Blocks: cut, merged, moved between arenas. A block in nobody's arena is
 * BUSY; every function here leaves runs whole: neighbours of one run meet, and
 * its first and last block are known to where runs come from.
 */
#include "resource/pool_impl.h"

static struct arena *arena_of(struct pool *p, const struct block *b)
{
	struct graph *g;

	if (!(b->flags & BLOCK_GRAPH))
		return &stream_at(p, b->stream)->arenas[block_zone(b)];
	for (g = p->graphs; g->index != b->stream; g = g->next)
		;
	return &g->arenas[block_zone(b)];
}

static void edge(struct pool *p, const struct block *b)
{
	if (p->vm && (!b->prev || !b->next))
		hm_vm_edge(p, b);
}

bool hm_block_done(const struct pool *p, const struct block *b)
{
	return !(b->flags & BLOCK_GRAPH) &&
	       b->pos <= p->order.streams[b->stream]->done;
}

void hm_block_take(struct pool *p, struct block *b)
{
	hm_arena_remove(p, arena_of(p, b), b);
	set_state(b, BLOCK_BUSY);
}

static void set_addr(struct block *b, uint64_t addr)
{
	__atomic_store_n(&b->addr, addr, __ATOMIC_RELAXED);
}

struct block *hm_block_new(struct pool *p, uint64_t addr, uint64_t units,
			   unsigned int zone)
{
	uint32_t id = hm_name_get(p, 0);
	struct block *b = block_at(p, id);

	if (!id) {
		hm_error(-ENOMEM, "pool: too many blocks");
		return NULL;
	}
	set_addr(b, addr);
	b->units = units;
	b->slack = 0;
	b->prev = 0;
	b->next = 0;
	b->stream = 0;
	b->pos = 0;
	__atomic_store_n(&b->flags, zone, __ATOMIC_RELAXED);
	set_state(b, BLOCK_BUSY);
	edge(p, b);
	return b;
}

static void put(struct pool *p, struct block *b)
{
	set_state(b, BLOCK_NONE);
	/* Nobody who is led astray in the hash takes it for what it was. */
	set_addr(b, 0);
	hm_name_put(p, block_id(p, b));
}

struct block *hm_block_cut(struct pool *p, struct block *b, uint64_t units)
{
	uint32_t id = hm_name_get(p, 0);
	struct block *rest = block_at(p, id);

	if (!id) {
		hm_error(-ENOMEM, "pool: too many blocks");
		return NULL;
	}
	set_addr(rest, b->addr + (units << UNIT_SHIFT));
	rest->units = b->units - units;
	rest->slack = 0;
	rest->stream = b->stream;
	rest->pos = b->pos;
	__atomic_store_n(&rest->flags, b->flags, __ATOMIC_RELAXED);
	set_state(rest, BLOCK_BUSY);
	rest->prev = block_id(p, b);
	rest->next = b->next;
	if (b->next)
		block_at(p, b->next)->prev = id;
	b->next = id;
	b->units = units;
	edge(p, b);
	edge(p, rest);
	return rest;
}

struct block *hm_block_rehome(struct pool *p, const struct pool_stream *s,
			      struct block *b)
{
	struct block *n;
	uint32_t id;

	if (hm_name_home(p, block_id(p, b)) == s->s.index)
		return b;
	id = hm_name_get(p, s->s.index);
	if (!id)
		return b;
	n = block_at(p, id);
	set_addr(n, b->addr);
	n->units = b->units;
	n->slack = b->slack;
	n->prev = b->prev;
	n->next = b->next;
	n->left = b->left;
	n->right = b->right;
	n->stream = b->stream;
	n->pos = b->pos;
	__atomic_store_n(&n->flags, b->flags, __ATOMIC_RELAXED);
	set_state(n, BLOCK_BUSY);
	if (n->prev)
		block_at(p, n->prev)->next = id;
	if (n->next)
		block_at(p, n->next)->prev = id;
	edge(p, n);
	put(p, b);
	return n;
}

void hm_block_link(struct pool *p, struct block *b, struct block *next)
{
	b->next = block_id(p, next);
	next->prev = block_id(p, b);
}

void hm_block_delete(struct pool *p, struct block *b)
{
	struct block *prev = block_at(p, b->prev);
	struct block *next = block_at(p, b->next);

	if (b->prev) {
		prev->next = 0;
		edge(p, prev);
	}
	if (b->next) {
		next->prev = 0;
		edge(p, next);
	}
	put(p, b);
}

/*
 * Whether two free neighbours may have one tag, and whose. What is complete
 * goes with what is not only if that is larger, or there is nobody else who
 * could use it; and not while it is being made for somebody.
 */
static struct block *common_tag(struct pool *p, struct block *b,
				struct block *n)
{
	if ((b->flags ^ n->flags) & (BLOCK_GRAPH | BLOCK_ZONE) ||
	    (b->flags | n->flags) & BLOCK_WHOLE)
		return NULL;
	if (b->stream == n->stream)
		return b->pos > n->pos ? b : n;
	if (b->flags & BLOCK_GRAPH)
		return NULL;
	if (hm_block_done(p, n) &&
	    (p->order.seen <= 1 || n->units <= b->units || hm_block_done(p, b)))
		return b;
	if (hm_block_done(p, b) && !p->growing &&
	    (p->order.seen <= 1 || b->units <= n->units))
		return n;
	return NULL;
}

void hm_block_join(struct pool *p, struct block *b, struct block *n)
{
	b->units += n->units;
	b->next = n->next;
	if (n->next)
		block_at(p, n->next)->prev = block_id(p, b);
	put(p, n);
	edge(p, b);
}

/* @b and the block behind it become one; both are BUSY. */
static struct block *join(struct pool *p, struct block *b, struct block *n,
			  const struct block *tag)
{
	uint16_t stream = tag->stream;
	uint64_t pos = tag->pos;

	hm_block_join(p, b, n);
	b->stream = stream;
	b->pos = pos;
	return b;
}

struct block *hm_block_release(struct pool *p, struct block *b)
{
	struct block *n, *tag;

	n = block_at(p, b->next);
	if (b->next && block_state(n) == BLOCK_FREE &&
	    (uint64_t)b->units + n->units <= UINT32_MAX) {
		tag = common_tag(p, b, n);
		if (tag) {
			hm_block_take(p, n);
			b = join(p, b, n, tag);
		}
	}
	n = block_at(p, b->prev);
	if (b->prev && block_state(n) == BLOCK_FREE &&
	    (uint64_t)b->units + n->units <= UINT32_MAX) {
		tag = common_tag(p, b, n);
		if (tag) {
			hm_block_take(p, n);
			b = join(p, n, b, tag);
		}
	}
	set_state(b, BLOCK_FREE);
	hm_arena_add(p, arena_of(p, b), b);
	return b;
}

/* The blocks of an arena that are complete, one after the other. */
static void settle(struct pool *p, struct arena *a)
{
	struct block *b = hm_arena_best(p, a, 1), *next;

	for (; b; b = next) {
		next = hm_arena_next(p, a, b);
		if (!hm_block_done(p, b))
			continue;
		hm_block_take(p, b);
		b->stream = 0;
		b->pos = 0;
		set_state(b, BLOCK_FREE);
		hm_arena_add(p, arena_of(p, b), b);
	}
}

/* Complete blocks beside each other; the arena changes under the walk. */
static void merge_all(struct pool *p, struct arena *a)
{
	struct block *b = hm_arena_best(p, a, 1), *next;

	for (; b; b = next) {
		struct block *n = block_at(p, b->next);

		next = hm_arena_next(p, a, b);
		if (!b->next || block_state(n) != BLOCK_FREE || n->stream ||
		    n->flags & BLOCK_GRAPH)
			continue;
		hm_block_take(p, b);
		hm_block_release(p, b);
		/* Merged ones are larger and come again. */
		next = hm_arena_best(p, a, 1);
	}
}

void hm_pool_settle(struct pool *p)
{
	struct pool_stream *host = stream_at(p, 0);
	unsigned int i, zone;

	for (zone = 0; zone < NR_ZONES; zone++) {
		for (i = 1; i < p->order.nr; i++)
			settle(p, &stream_at(p, i)->arenas[zone]);
		merge_all(p, &host->arenas[zone]);
	}
}
