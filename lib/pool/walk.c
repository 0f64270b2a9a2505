// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The walk over the blocks of a pool. It copies what descriptors say, SCANNED of
 * them in one hold of pool->lock, in the order of their names; sorts that by
 * address; and then calls the program without a lock.
 *
 * While the lock is released, blocks are cut, merged and get other descriptors.
 * The descriptor of a live block stays. So a block that is live all the time is
 * copied once, and nothing else can be copied for its addresses. Of other blocks
 * that overlap, the first one by address is reported.
 *
 * The cached path changes blocks without pool->lock, under the lock of their
 * stream. That lock is taken for each live block.
 */
#include <stdlib.h>

#include "core/snapshot.h"
#include "pool/graph.h"
#include "pool/hash.h"
#include "pool/source.h"

/* Descriptors that one hold of the lock looks at. */
#define SCANNED		1024

/* A block is the first of its run, or of the zone of large ones. */
#define COPY_FIRST	1
#define COPY_LARGE	2

/**
 * struct copy - of a descriptor
 * @asked: bytes that were requested; 0: not live
 * @id: private pool or capture
 * @state: enum hetmem_block_state
 */
struct copy {
	uint64_t addr;
	uint64_t bytes;
	uint64_t asked;
	uint64_t id;
	hetmem_stream stream;
	uint8_t state;
	uint8_t flags;
};

struct copies {
	struct copy *copy;
	size_t nr;
	size_t room;
};

/* @s as the caller of the walk can name it. */
static hetmem_stream stream_name(const struct hm_stream *s)
{
	return s->id && !s->retired ? hm_stream_handle(s) :
		HETMEM_STREAM_UNKNOWN;
}

static hetmem_stream part_stream(const struct pool *p, const struct graph *g)
{
	const struct hm_stream *s = p->order.streams[g->from_index];

	if (g->of->private)
		return hm_stream_here(g->handle, g->thread);
	return s->serial == g->from ? stream_name(s) : HETMEM_STREAM_UNKNOWN;
}

/*
 * A live block that is no graph's. Only who holds the lock of its stream makes it
 * live; false: it is not live any more.
 */
static bool copy_live(const struct pool *p, const struct block *b,
		      struct copy *c)
{
	unsigned int i = __atomic_load_n(&b->stream, __ATOMIC_ACQUIRE);
	struct pool_stream *s = stream_at(p, i);
	uint64_t serial;
	uint32_t slack;
	bool live;

	stream_lock(s);
	slack = __atomic_load_n(&b->slack, __ATOMIC_ACQUIRE);
	serial = __atomic_load_n(&b->pos, __ATOMIC_ACQUIRE);
	live = __atomic_load_n(&b->stream, __ATOMIC_ACQUIRE) == i &&
	       block_state(b) == BLOCK_LIVE;
	stream_unlock(s);
	if (!live)
		return false;
	c->state = HETMEM_BLOCK_LIVE;
	c->asked = block_is_sparse(b) ? block_asked(p, b) : c->bytes - slack;
	c->stream = !i ? HETMEM_STREAM_HOST : s->s.serial == serial ?
		stream_name(&s->s) : HETMEM_STREAM_UNKNOWN;
	return true;
}

/* One that is being freed is in the hash until the freeing thread has the lock. */
static void copy_of_graph(const struct pool *p, const struct block *b,
			  struct copy *c)
{
	const bool live = c->state == HETMEM_BLOCK_LIVE ||
		hm_block_find_locked(p, b->addr) == b;
	const struct graph *g = hm_graph_at(p, live ? b->right : b->stream);

	c->id = g->of->id;
	c->stream = part_stream(p, g);
	if (c->state == HETMEM_BLOCK_LIVE)
		c->asked = c->bytes - b->slack;
}

static const uint8_t states[] = {
	[BLOCK_LIVE] = HETMEM_BLOCK_LIVE,
	[BLOCK_CACHED] = HETMEM_BLOCK_CACHED,
	[BLOCK_FREE] = HETMEM_BLOCK_FREE,
	[BLOCK_PENDING] = HETMEM_BLOCK_PENDING,
	[BLOCK_BUSY] = HETMEM_BLOCK_PENDING,
	[BLOCK_HELD] = HETMEM_BLOCK_PENDING,
};

/* A block that is BUSY is another thread's, which may be writing to it. */
static void copy_block(const struct pool *p, const struct block *b,
		       enum block_state state, struct copy *c)
{
	const unsigned int flags = __atomic_load_n(&b->flags, __ATOMIC_RELAXED);
	unsigned int i;

	*c = (struct copy){
		.addr = b->addr,
		.bytes = block_bytes(b),
		.stream = HETMEM_STREAM_UNKNOWN,
		.state = states[state],
		.flags = (b->prev ? 0 : COPY_FIRST) |
			(block_zone(b) ? COPY_LARGE : 0),
	};
	if (flags & BLOCK_GRAPH) {
		copy_of_graph(p, b, c);
	} else if (state == BLOCK_LIVE) {
		if (!copy_live(p, b, c))
			c->state = HETMEM_BLOCK_PENDING;
	} else if (state != BLOCK_BUSY && state != BLOCK_HELD) {
		i = __atomic_load_n(&b->stream, __ATOMIC_ACQUIRE);
		c->stream = i ? stream_name(&stream_at(p, i)->s) :
			HETMEM_STREAM_HOST;
	}
}

/* Room for SCANNED more. Without the lock. */
static int make_room(struct copies *all)
{
	const size_t room = all->room ? 2 * all->room : 2 * SCANNED;
	struct copy *copy;

	if (all->room - all->nr >= SCANNED)
		return 0;
	copy = realloc(all->copy, room * sizeof(*copy));
	if (!copy)
		return hm_error(-ENOMEM, "walk: no host memory for %zu blocks",
				room);
	all->copy = copy;
	all->room = room;
	return 0;
}

/* Copies @b, if it is a block of @id (0: of any). */
static void copy_one(const struct pool *p, uint64_t id, const struct block *b,
		     struct copies *all)
{
	struct copy *c = &all->copy[all->nr];
	enum block_state state = block_state(b);

	/* A sparse block that was freed keeps addresses only. */
	if (state == BLOCK_NONE || (state == BLOCK_BUSY && block_is_sparse(b)))
		return;
	copy_block(p, b, state, c);
	if (!id || c->id == id)
		all->nr++;
}

/* Copies the blocks of @id. Without the lock. */
static int copy_all(struct pool *p, uint64_t id, struct copies *all)
{
	uint32_t next = 1, nr;
	bool more = true;
	int err;

	do {
		err = make_room(all);
		if (err)
			break;
		pthread_mutex_lock(&p->lock);
		nr = p->blocks.nr;
		if (nr > next + SCANNED)
			nr = next + SCANNED;
		for (; next < nr; next++)
			copy_one(p, id, block_at(p, next), all);
		more = nr < p->blocks.nr;
		pthread_mutex_unlock(&p->lock);
	} while (more);
	return err;
}

static int by_address(const void *a, const void *b)
{
	const struct copy *x = a, *y = b;

	return x->addr < y->addr ? -1 : x->addr > y->addr;
}

static bool overlaps(const struct copies *all, size_t nr, const struct copy *c)
{
	return nr && all->copy[nr - 1].addr + all->copy[nr - 1].bytes > c->addr;
}

/* Of blocks that overlap the first one stays, or the first that is live. */
static void leave_out(struct copies *all)
{
	size_t i, nr = 0, before;

	for (i = 0; i < all->nr; i++) {
		const struct copy *c = &all->copy[i];

		before = nr;
		while (c->state == HETMEM_BLOCK_LIVE && overlaps(all, before, c) &&
		       all->copy[before - 1].state != HETMEM_BLOCK_LIVE)
			before--;
		if (overlaps(all, before, c))
			continue;
		all->copy[before] = *c;
		nr = before + 1;
	}
	all->nr = nr;
}

static bool same_segment(const struct copy *a, const struct copy *b)
{
	return a->addr + a->bytes == b->addr && !(b->flags & COPY_FIRST) &&
	       !((a->flags ^ b->flags) & COPY_LARGE) && a->id == b->id;
}

static int tell_block(const struct hetmem_walk *walk,
		      const struct hetmem_walk_segment *segment,
		      const struct copy *c)
{
	const struct hetmem_walk_block block = {
		.size = sizeof(block),
		.ptr = (void *)(uintptr_t)c->addr,
		.bytes = c->bytes,
		.requested = c->asked,
		.stream = c->stream,
		.state = c->state,
	};

	return walk->block(walk->data, segment, &block);
}

/* From @c on, before @end; *@nr: its blocks. */
static int tell_segment(const struct pool *p, const struct hetmem_walk *walk,
			const struct copy *c, const struct copy *end,
			size_t *nr)
{
	struct hetmem_walk_segment segment = {
		.size = sizeof(segment),
		.base = (void *)(uintptr_t)c->addr,
		.bytes = c->bytes,
		.private_pool = c->id,
		.device = p->res.device,
		.small = !(c->flags & COPY_LARGE),
	};
	int result = 0;
	size_t i;

	for (i = 1; c + i < end && same_segment(&c[i - 1], &c[i]); i++)
		segment.bytes += c[i].bytes;
	*nr = i;
	if (walk->segment)
		result = walk->segment(walk->data, &segment);
	for (i = 0; walk->block && !result && i < *nr; i++)
		result = tell_block(walk, &segment, &c[i]);
	return result;
}

static void add_sums(struct pool *p, struct hetmem_sums *sums)
{
	uint64_t small = 0, nr_small = 0;
	unsigned int i, zone;

	pthread_mutex_lock(&p->lock);
	if (p->source->small)
		p->source->small(p, &small, &nr_small);
	/* Memory of handles that are asleep is not held. */
	if (small > p->reserved)
		small = p->reserved;
	sums->made += p->made;
	sums->made_bytes += p->made_bytes;
	sums->given_back += p->given_back;
	sums->given_back_bytes += p->made_bytes - p->reserved;
	sums->held[0] += nr_small;
	sums->held[1] += p->made - p->given_back - nr_small;
	sums->held_bytes[0] += small;
	sums->held_bytes[1] += p->reserved - small;
	for (zone = 0; zone < NR_ZONES; zone++) {
		sums->pending[zone] += p->pending[zone].nr;
		sums->pending_bytes[zone] += p->pending[zone].units << UNIT_SHIFT;
		for (i = 0; i < p->order.nr; i++)
			sums->free[zone] += stream_at(p, i)->arenas[zone].nr;
	}
	pthread_mutex_unlock(&p->lock);
}

int hm_pool_walk(struct pool *p, struct hm_ctl_walk *arg)
{
	struct copies all = { 0 };
	size_t i, nr;
	int err;

	if (arg->sums) {
		add_sums(p, arg->sums);
		return 0;
	}
	if (arg->result)
		return 0;
	err = copy_all(p, arg->walk->private_pool, &all);
	if (!err) {
		qsort(all.copy, all.nr, sizeof(*all.copy), by_address);
		leave_out(&all);
	}
	for (i = 0; !err && !arg->result && i < all.nr; i += nr)
		arg->result = tell_segment(p, arg->walk, &all.copy[i],
					   all.copy + all.nr, &nr);
	free(all.copy);
	return err;
}
