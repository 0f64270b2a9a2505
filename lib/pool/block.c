// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Blocks: cut, merged, moved between arenas. A block in nobody's arena is
 * BUSY; every function here leaves runs whole: neighbours of one run meet, and
 * its first and last block are known to where runs come from.
 */
#include "pool/graph.h"
#include "pool/source.h"

static struct arena *arena_of(struct pool *p, const struct block *b)
{
	if (b->flags & BLOCK_GRAPH)
		return &hm_graph_at(p, b->stream)->arenas[block_zone(b)];
	return &stream_at(p, b->stream)->arenas[block_zone(b)];
}

static void block_edge(struct pool *p, const struct block *b)
{
	if (p->source->edge && (!b->prev || !b->next))
		p->source->edge(p, b);
}

bool hm_block_done(const struct pool *p, const struct block *b)
{
	return !(b->flags & BLOCK_GRAPH) &&
	       b->pos <= p->order.streams[b->stream]->done;
}

void hm_block_take(struct pool *p, struct block *b)
{
	hm_arena_remove(p, arena_of(p, b), b);
	block_set_state(b, BLOCK_BUSY);
}

static void block_set_addr(struct block *b, uint64_t addr)
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
	block_set_addr(b, addr);
	b->units = units;
	b->slack = 0;
	b->prev = 0;
	b->next = 0;
	b->stream = 0;
	b->pos = 0;
	__atomic_store_n(&b->flags, zone, __ATOMIC_RELAXED);
	block_set_state(b, BLOCK_BUSY);
	block_edge(p, b);
	return b;
}

static void block_put(struct pool *p, struct block *b)
{
	block_set_state(b, BLOCK_NONE);
	/* Nobody who is led astray in the hash takes it for what it was. */
	block_set_addr(b, 0);
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
	block_set_addr(rest, b->addr + (units << UNIT_SHIFT));
	rest->units = b->units - units;
	rest->slack = 0;
	rest->right = b->right;
	rest->stream = b->stream;
	rest->pos = b->pos;
	__atomic_store_n(&rest->flags, b->flags, __ATOMIC_RELAXED);
	block_set_state(rest, BLOCK_BUSY);
	rest->prev = block_id(p, b);
	rest->next = b->next;
	if (b->next)
		block_at(p, b->next)->prev = id;
	b->next = id;
	b->units = units;
	block_edge(p, b);
	block_edge(p, rest);
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
	block_set_addr(n, b->addr);
	n->units = b->units;
	n->slack = b->slack;
	n->prev = b->prev;
	n->next = b->next;
	n->left = b->left;
	n->right = b->right;
	n->stream = b->stream;
	n->pos = b->pos;
	__atomic_store_n(&n->flags, b->flags, __ATOMIC_RELAXED);
	block_set_state(n, BLOCK_BUSY);
	if (n->prev)
		block_at(p, n->prev)->next = id;
	if (n->next)
		block_at(p, n->next)->prev = id;
	block_edge(p, n);
	block_put(p, b);
	return n;
}

void hm_block_link(struct pool *p, struct block *b, struct block *next)
{
	b->next = block_id(p, next);
	next->prev = block_id(p, b);
}

void hm_block_shorten(struct pool *p, struct block *b, uint64_t units)
{
	struct block *next = block_at(p, b->next);

	b->units = units;
	if (b->next) {
		b->next = 0;
		next->prev = 0;
		block_edge(p, next);
	}
	block_edge(p, b);
}

void hm_block_delete(struct pool *p, struct block *b)
{
	struct block *prev = block_at(p, b->prev);
	struct block *next = block_at(p, b->next);

	if (b->prev) {
		prev->next = 0;
		block_edge(p, prev);
	}
	if (b->next) {
		next->prev = 0;
		block_edge(p, next);
	}
	block_put(p, b);
}

/*
 * Whether two free neighbours may have one tag, and whose. What is complete
 * goes with what is not only if that is larger, or there is nobody else who
 * could use it.
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
	if (hm_block_done(p, b) &&
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
	block_put(p, n);
	block_edge(p, b);
}

/* @b and the block behind it become one; both are BUSY. */
static struct block *block_join(struct pool *p, struct block *b,
				struct block *n, const struct block *tag)
{
	uint16_t stream = tag->stream;
	uint64_t pos = tag->pos;

	hm_block_join(p, b, n);
	b->stream = stream;
	b->pos = pos;
	return b;
}

/* BUSY @b merges with the FREE block behind it, @next, or before it; or NULL. */
static struct block *block_merge(struct pool *p, struct block *b, bool next,
				 bool complete)
{
	uint32_t id = next ? b->next : b->prev;
	struct block *n = block_at(p, id), *tag;

	if (!id || block_state(n) != BLOCK_FREE ||
	    (complete && !hm_block_done(p, n)) ||
	    (uint64_t)b->units + n->units > UINT32_MAX)
		return NULL;
	tag = common_tag(p, b, n);
	if (!tag)
		return NULL;
	hm_block_take(p, n);
	return next ? block_join(p, b, n, tag) : block_join(p, n, b, tag);
}

/* Whether BUSY @b and its FREE neighbour have one tag: such neighbours merge. */
static bool same_tag(const struct pool *p, const struct block *b, uint32_t id)
{
	const struct block *n = block_at(p, id);

	return id && block_state(n) == BLOCK_FREE && n->stream == b->stream;
}

/*
 * @complete: @b is, and stays so: it merges with neighbours that are, too. One
 * that gets another tag by that may lie beside a block with that tag.
 */
static struct block *block_release(struct pool *p, struct block *b,
				   bool complete)
{
	struct block *merged;

	merged = block_merge(p, b, true, complete);
	b = merged ? merged : b;
	if (merged && same_tag(p, b, b->next)) {
		merged = block_merge(p, b, true, complete);
		b = merged ? merged : b;
	}
	merged = block_merge(p, b, false, complete);
	b = merged ? merged : b;
	if (merged && same_tag(p, b, b->prev)) {
		merged = block_merge(p, b, false, complete);
		b = merged ? merged : b;
	}
	block_set_state(b, BLOCK_FREE);
	hm_arena_add(p, arena_of(p, b), b);
	return b;
}

struct block *hm_block_release(struct pool *p, struct block *b)
{
	return block_release(p, b, false);
}

struct block *hm_block_release_done(struct pool *p, struct block *b)
{
	return block_release(p, b, true);
}

struct block *hm_block_trim(struct pool *p, struct block *b, uint64_t addr,
			    uint64_t units, uint64_t smallest)
{
	uint64_t before = (addr - b->addr) >> UNIT_SHIFT;
	struct block *front = b, *rest;

	if (before) {
		b = hm_block_cut(p, front, before);
		if (!b) {
			hm_block_release(p, front);
			return NULL;
		}
		hm_block_release(p, front);
	}
	if (b->units >= units + smallest && !(b->flags & BLOCK_WHOLE)) {
		rest = hm_block_cut(p, b, units);
		if (!rest) {
			hm_block_release(p, b);
			return NULL;
		}
		hm_block_release(p, rest);
	}
	return b;
}

/*
 * A piece of work is so many steps: a look at a block is one, a move some 1,000
 * instructions and MOVE_STEPS.
 */
#define SETTLE_STEPS	160
#define MOVE_STEPS	4
/* Instructions of a step, about. */
#define SETTLE_WORK	200
/* Arenas that one piece looks at. */
#define SETTLE_ARENAS	512

/* Complete blocks of @a, on its stream; false: @steps did not suffice. */
static bool settle_arena(struct pool *p, const struct hm_stream *s,
			 struct arena *a, int *steps)
{
	struct block *b;

	/* What is before @settled was complete then: nothing came since. */
	if (!a->units || a->settled > s->done)
		return true;
	if (!a->walks[WALK_SETTLE])
		a->settling = s->done + 1;
	while (*steps > 0) {
		b = hm_arena_walk(p, a, WALK_SETTLE);
		if (!b) {
			a->settled = a->settling;
			return a->settled > s->done;
		}
		--*steps;
		if (!hm_block_done(p, b))
			continue;
		*steps -= MOVE_STEPS;
		hm_block_take(p, b);
		b->stream = 0;
		b->pos = 0;
		block_release(p, b, true);
	}
	return false;
}

bool hm_pool_settle(struct pool *p)
{
	const unsigned int nr = p->order.nr * NR_ZONES;
	int steps = SETTLE_STEPS;
	unsigned int i;

	for (i = 0; i < SETTLE_ARENAS && p->nr_settled < nr; i++) {
		struct pool_stream *s;

		if (p->settle_next >= nr)
			p->settle_next = 0;
		s = stream_at(p, p->settle_next / NR_ZONES);
		if (s->s.index &&
		    (s->s.retired || !hm_pool_is_apart(p, p->settle_next % NR_ZONES)) &&
		    !settle_arena(p, &s->s,
				  &s->arenas[p->settle_next % NR_ZONES],
				  &steps)) {
			p->nr_settled = 0;
			break;
		}
		p->nr_settled++;
		p->settle_next++;
	}
	p->work += (SETTLE_STEPS - steps) * SETTLE_WORK + i * 16;
	if (p->nr_settled < nr)
		return true;
	p->nr_settled = 0;
	return false;
}

void hm_pool_settle_all(struct pool *p)
{
	const bool apart = hm_pool_is_apart(p, 1);

	if (apart) {
		/* Memory of all streams merges here: a handle that is free in parts is free. */
		p->mixing = true;
		p->nr_settled = 0;
	}
	while (hm_pool_settle(p))
		hm_pool_pause(p);
	if (apart)
		p->mixing = false;
}
