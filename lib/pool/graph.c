// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The pool, captured work and private pools. Memory that is allocated while a stream is
 * captured belongs to the graphs that come of it, which may be launched again
 * and again: until the id is released only captures with that id reuse it.
 *
 * Branches of a graph run in any order that its edges allow, and nothing tells
 * the pool of the edges. So each captured stream has a part of the id's memory:
 * what it allocates comes from there, and what is freed on it goes there, in
 * the order of the capture. Between captures the parts are nobody's: graphs
 * that share an id are launched in the order of their captures, and the next
 * capture takes any of them.
 *
 * Nothing may be recorded or waited for on a stream that is captured, and
 * other calls of the driver are legal in relaxed mode only: what such a stream
 * gets is complete memory. What was freed on it before the capture is: begin
 * records an event.
 *
 * A private pool is such an id, too, which the caller names at each allocation.
 * Its parts are told by the handle of the stream alone: who captures it is not
 * known, and asking for the id of a stream makes its capture invalid.
 * checkpoint.c lists what is live in one, and makes it so again.
 */
#include <stdlib.h>

#include "core/snapshot.h"
#include "driver/check.h"
#include "pool/graph.h"
#include "pool/hash.h"
#include "pool/source.h"
#include "pool/uses.h"

static unsigned int list_of(uint64_t key)
{
	return key * 0x9e3779b97f4a7c15ULL >> 52;
}

_Static_assert(GRAPH_LISTS == 1 << 12, "what list_of() returns");

struct graph_id *hm_graph_id(const struct pool *p, uint64_t id)
{
	struct graph_id *of = p->graphs ? p->graphs->ids[list_of(id)] : NULL;

	while (of && of->id != id)
		of = of->next;
	return of;
}

/*
 * The part of @of that @s has or had, or one that nobody has; or NULL. What is
 * live in it is of one stream.
 */
static struct graph *graph_of(const struct graph_id *of,
			      const struct pool_stream *s)
{
	struct graph *g, *unowned = NULL;

	for (g = of->parts; g; g = g->next) {
		if (g->from == s->s.serial)
			return g;
		if (!g->serial && !g->live)
			unowned = g;
	}
	return unowned;
}

struct pool_stream *hm_block_owner(const struct pool *p, const struct block *b)
{
	struct pool_stream *s = stream_at(p, b->stream);
	uint64_t serial = b->pos;

	if (b->flags & BLOCK_GRAPH)
		serial = hm_graph_at(p, b->right)->from;
	return s->s.serial == serial && s->s.id ? s : stream_at(p, 0);
}

static uint32_t live_prev(const struct block *b)
{
	return b->pos >> 32;
}

static void live_link(struct block *b, uint32_t prev, uint32_t next)
{
	b->pos = (uint64_t)prev << 32 | next;
}

void hm_graph_give(struct pool *p, struct block *b)
{
	struct graph *g = hm_graph_at(p, b->right);

	live_link(b, 0, g->live);
	if (g->live) {
		struct block *next = block_at(p, g->live);

		live_link(next, block_id(p, b), graph_live_next(next));
	}
	g->live = block_id(p, b);
}

static void live_unlink(struct pool *p, struct graph *g, struct block *b)
{
	struct block *next = block_at(p, graph_live_next(b));
	struct block *prev = block_at(p, live_prev(b));

	if (graph_live_next(b))
		live_link(next, live_prev(b), graph_live_next(next));
	if (live_prev(b))
		live_link(prev, live_prev(prev), graph_live_next(b));
	else
		g->live = graph_live_next(b);
}

/* A BUSY block of a part nobody has, or NULL. */
static struct block *find_unowned(struct pool *p, const struct graph_id *of,
				  unsigned int zone, uint64_t units)
{
	struct block *best = NULL, *b;
	struct graph *g;

	for (g = of->parts; g; g = g->next) {
		if (g->serial)
			continue;
		b = hm_arena_best(p, &g->arenas[zone], units);
		if (b && (!best || b->units < best->units))
			best = b;
	}
	if (best)
		hm_block_take(p, best);
	return best;
}

/* Whole blocks that one search looks at: a private pool seldom has others beside them. */
#define WHOLE_LOOKS	64

/* The smallest free BLOCK_WHOLE of @g with @units, or NULL. One granule is no larger block's. */
static struct block *best_whole(const struct pool *p, const struct graph *g, uint64_t units)
{
	struct block *b = hm_arena_best(p, &g->arenas[1], units);
	unsigned int i;

	for (i = 0; b && !(b->flags & BLOCK_WHOLE); i++)
		b = i < WHOLE_LOOKS ? hm_arena_next(p, &g->arenas[1], b) : NULL;
	return b && units == WHOLE_LEAST >> UNIT_SHIFT && b->units != units ? NULL : b;
}

/* What an allocation of a whole block lacks. */
struct whole {
	uint64_t units;
	struct block *block;
};

static int whole_attempt(struct pool *p, struct pool_stream *s, void *arg)
{
	struct whole *w = arg;
	int err;

	if (!p->source->grow_whole)
		return hm_error(-EOPNOTSUPP, "this memory has no whole blocks");
	err = p->source->grow_whole(p, s, w->units, &w->block);
	if (err != -ENOMEM)
		return err;
	/* Free memory of the streams may be all that is in the way. */
	hm_pool_flush(p);
	hm_pool_settle_all(p);
	return p->asleep ? hm_pool_asleep() : p->source->grow_whole(p, s, w->units, &w->block);
}

static struct block *find_whole(struct pool *p, struct pool_stream *s, uint64_t units, int *err,
				struct hm_stream **waited)
{
	struct whole w = { .units = units };

	*err = hm_pool_attempt(p, s, units << UNIT_SHIFT, whole_attempt, &w, waited);
	return *err ? NULL : w.block;
}

/* *@made: bytes that were made for it. May release the lock: a capture can have ended. */
static struct block *find_new(struct pool *p, unsigned int zone, uint64_t units, bool whole,
			      int *err, struct hm_stream **waited, uint64_t *made)
{
	CUstreamCaptureMode mode = hm_capture_relaxed(p->res.hm);
	const uint64_t before = hm_pool_made_here();
	struct block *b;

	b = whole && !p->whole ? find_whole(p, stream_at(p, 0), units, err, waited) :
		hm_pool_find(p, stream_at(p, 0), zone, units, err, waited);
	hm_capture_mode(p->res.hm, mode);
	*made = hm_pool_made_here() - before;
	return b;
}

/* What is behind @units of a BUSY block stays where the block was. */
static void keep_rest(struct pool *p, struct block *b, uint64_t units)
{
	struct block *rest;

	if (b->units <= units || b->flags & BLOCK_WHOLE)
		return;
	rest = hm_block_cut(p, b, units);
	if (rest)
		hm_block_release(p, rest);
}

struct block *hm_graph_find(struct pool *p, struct pool_stream *s,
			    struct graph *g, unsigned int zone, uint64_t units,
			    bool whole, int *err, struct hm_stream **waited)
{
	struct block *b = whole && !p->whole ? best_whole(p, g, units) :
		hm_arena_best(p, &g->arenas[zone], units);
	const bool private = g->of->private;
	uint64_t made;

	if (b) {
		hm_block_take(p, b);
		b->right = g->index;
		return b;
	}
	b = private ? NULL : find_unowned(p, g->of, zone, units);
	if (b) {
		keep_rest(p, b, units);
	} else {
		b = find_new(p, zone, units, whole, err, waited, &made);
		if (!b)
			return NULL;
		/* The lock may have been released, and with it @g. */
		if (!private && s->graph != g) {
			hm_block_release(p, b);
			*err = hm_error(-EBUSY, "the capture ended in the meantime");
			return NULL;
		}
		g->of->made += made;
		keep_rest(p, b, units);
		__atomic_store_n(&b->flags, b->flags | BLOCK_GRAPH,
				 __ATOMIC_RELEASE);
		hm_check_alloc(p->res.hm, (void *)(uintptr_t)b->addr,
			       block_bytes(b), HETMEM_STREAM_HOST);
	}
	b->stream = g->index;
	b->pos = 0;
	b->right = g->index;
	return b;
}

static void list_push(struct pool *p, uint32_t *list, struct block *b)
{
	b->right = *list;
	*list = block_id(p, b);
}

void hm_graph_free(struct pool *p, struct pool_stream *s, struct graph *to,
		   struct block *b)
{
	struct graph *g = hm_graph_at(p, b->right);

	live_unlink(p, g, b);
	/* Freed on another branch: that one has it from now on. */
	if (to)
		g = to;
	else if (s->graph && s->graph->of == g->of)
		g = s->graph;
	b->stream = g->index;
	b->pos = 0;
	if (!(b->flags & (BLOCK_USED | BLOCK_EXPORTED))) {
		/* Where the free is in the captured work, nobody knows. */
		if (!g->of->private && s->graph != g && g->of->captured)
			list_push(p, &g->outside, b);
		else
			hm_block_release(p, b);
		return;
	}
	/*
	 * Within a graph nothing tells when another stream, or process, is done. The block
	 * keeps its uses: whoever reuses it after the release is ordered behind them.
	 */
	list_push(p, &g->parked, b);
}

static int make_tables(struct pool *p)
{
	if (!p->graphs)
		p->graphs = calloc(1, sizeof(*p->graphs));
	return p->graphs ? 0 : hm_error(-ENOMEM, "pool: no host memory");
}

/* There is no such id. */
static int id_make(struct pool *p, uint64_t id, struct graph_id **made)
{
	struct graph_id *of;
	int err = make_tables(p);

	if (err)
		return err;
	if (p->graphs->nr_ids == MAX_GRAPHS)
		return hm_error(-ENOSPC, "there are %u ids that were not released",
				p->graphs->nr_ids);
	of = calloc(1, sizeof(*of));
	if (!of)
		return hm_error(-ENOMEM, "pool: no host memory");
	of->id = id;
	of->serial = ++p->graphs->last_serial;
	of->next = p->graphs->ids[list_of(id)];
	p->graphs->ids[list_of(id)] = of;
	p->graphs->nr_ids++;
	*made = of;
	return 0;
}

/* Nobody finds @of from now on. */
static void id_hide(struct pool *p, struct graph_id *of)
{
	struct graph_id **link = &p->graphs->ids[list_of(of->id)];

	while (*link != of)
		link = &(*link)->next;
	*link = of->next;
	p->graphs->nr_ids--;
}

static int graph_make(struct pool *p, struct graph_id *of, struct graph **made)
{
	struct graphs *all = p->graphs;
	struct graph *g;

	if (all->nr == MAX_GRAPHS)
		return hm_error(-ENOSPC, "there are %u pairs of id and stream that were not released",
				all->nr);
	g = calloc(1, sizeof(*g));
	if (!g)
		return hm_error(-ENOMEM, "pool: no host memory");
	g->of = of;
	do
		g->index = ++all->last;
	while (!g->index || all->at[g->index]);
	all->at[g->index] = g;
	g->next = of->parts;
	of->parts = g;
	all->nr++;
	*made = g;
	return 0;
}

/* Clears flags of @b, which is no graph's any more: it is a block like others. */
static void leave_graph(const struct pool *p, struct block *b, unsigned int flags)
{
	flags |= BLOCK_GRAPH | (p->whole ? 0 : BLOCK_WHOLE);
	__atomic_store_n(&b->flags, b->flags & ~flags, __ATOMIC_RELEASE);
}

/* A BUSY block of a graph is one of @s. */
static void graph_give_up(struct pool *p, struct pool_stream *s, uint64_t pos,
			  struct block *b)
{
	hm_check_free(p->res.hm, (void *)(uintptr_t)b->addr, block_bytes(b),
		      hm_stream_handle(&s->s));
	leave_graph(p, b, 0);
	b->stream = s->s.index;
	b->pos = pos;
	if (b->flags & BLOCK_USED)
		hm_block_free_used(p, b);
	else
		hm_block_end_uses(p, b);
}

/* Any BUSY block of @g that is not live, or NULL. */
static struct block *graph_take(struct pool *p, struct graph *g)
{
	uint32_t *list = g->parked ? &g->parked : &g->outside, id = *list;
	struct block *b = NULL;
	unsigned int zone;

	if (id) {
		*list = block_at(p, id)->right;
		return block_at(p, id);
	}
	for (zone = 0; zone < NR_ZONES && !b; zone++)
		b = hm_arena_best(p, &g->arenas[zone], 1);
	if (b)
		hm_block_take(p, b);
	return b;
}

/* PIECE blocks at most go to @s, or are like others. Returns whether more are. */
static bool graph_empty(struct pool *p, struct pool_stream *s, uint64_t pos,
			struct graph *g)
{
	struct block *b;
	unsigned int n;
	uint32_t id;

	for (n = 0; n < PIECE; n++) {
		id = g->live;
		if (id) {
			b = block_at(p, id);
			live_unlink(p, g, b);
			b->pos = g->from;
			/* The block was told of as a whole: a free tells of its bytes. */
			if (b->slack)
				hm_check_free(p->res.hm, (void *)(uintptr_t)(block_end(b) - b->slack),
					      b->slack, HETMEM_STREAM_HOST);
			leave_graph(p, b, 0);
			continue;
		}
		b = graph_take(p, g);
		if (!b)
			return false;
		graph_give_up(p, s, pos, b);
	}
	return true;
}

static unsigned int part_list(const struct graph_id *of, hetmem_stream handle,
			      uint64_t thread)
{
	return list_of(of->serial ^ (uintptr_t)handle << 16 ^ thread << 40);
}

/* Frees @g, which has no block. */
static void graph_put(struct pool *p, struct graph *g)
{
	struct graph **link = &g->of->parts;
	unsigned int zone;

	while (*link != g)
		link = &(*link)->next;
	*link = g->next;
	if (g->of->private) {
		link = &p->graphs->parts[part_list(g->of, g->handle, g->thread)];
		while (*link != g)
			link = &(*link)->chain;
		*link = g->chain;
	}
	for (zone = 0; zone < NR_ZONES; zone++)
		hm_arena_free(&g->arenas[zone]);
	p->graphs->at[g->index] = NULL;
	p->graphs->nr--;
	free(g);
}

/*
 * Frees @of. Its memory goes to @s. First nobody finds it: what has the same id
 * from now on is another one.
 */
static void id_release(struct pool *p, struct pool_stream *s,
		       struct graph_id *of)
{
	uint64_t pos;

	id_hide(p, of);
	stream_lock(s);
	pos = s->s.index ? hm_stream_next_pos(&s->s) : 0;
	stream_unlock(s);
	s->pins++;
	while (of->parts) {
		if (graph_empty(p, s, pos, of->parts))
			hm_pool_pause(p);
		else
			graph_put(p, of->parts);
	}
	s->pins--;
	if (of->private)
		__atomic_sub_fetch(&p->nr_privates, 1, __ATOMIC_RELAXED);
	free(of);
}

static int capture_release(struct pool *p, struct pool_stream *s, uint64_t id)
{
	struct graph_id *of = hm_graph_id(p, id);

	if (!of || of->private)
		return hm_error(-ENOENT, "capture_release: no such id");
	if (of->captured)
		return hm_error(-EBUSY, "capture_release: a stream is being captured with that id");
	id_release(p, s, of);
	return 0;
}

static void stream_set_graph(struct pool *p, struct pool_stream *s,
			     struct graph *g)
{
	__atomic_store_n(&s->graph, g, __ATOMIC_RELEASE);
	hm_stream_captured(&p->order, &s->s, g);
	hm_stream_unhit(s);
}

/* The part of @id that @s captures from now on; made if there is none. */
static int capture_part(struct pool *p, struct pool_stream *s, uint64_t id,
			struct graph **part)
{
	struct graph_id *of = hm_graph_id(p, id);
	int err = of ? 0 : id_make(p, id, &of);

	if (err)
		return err;
	if (of->private)
		return hm_error(-EBUSY, "capture_begin: a private pool has that id");
	*part = graph_of(of, s);
	if (!*part)
		err = graph_make(p, of, part);
	if (err && !of->parts) {
		id_hide(p, of);
		free(of);
	}
	return err;
}

static int capture_begin(struct pool *p, struct pool_stream *s, uint64_t id)
{
	struct graph *g;
	int err;

	if (s->graph)
		return hm_error(-EBUSY, "capture_begin: this stream is being captured");
	if (!s->s.index)
		return hm_error(-EINVAL, "capture_begin: the host is not captured");
	err = capture_part(p, s, id, &g);
	if (err)
		return err;
	/* What cannot be recorded now is not used by the capture. */
	if (s->arenas[0].units || s->arenas[1].units ||
	    hm_stream_cached(s))
		hm_stream_record(&p->order, &s->s);
	g->serial = s->s.serial;
	g->from = s->s.serial;
	g->from_index = s->s.index;
	g->of->captured++;
	stream_set_graph(p, s, g);
	return 0;
}

/* Nobody's, as all parts of an id between captures. */
static void graph_disown(struct pool *p, struct graph *g)
{
	uint32_t id = g->outside, next;

	g->serial = 0;
	g->outside = 0;
	for (; id; id = next) {
		next = block_at(p, id)->right;
		hm_block_release(p, block_at(p, id));
	}
}

static int capture_end(struct pool *p, struct pool_stream *s, uint64_t id)
{
	struct graph_id *of;
	struct graph *g;

	if (!s->graph || s->graph->of->id != id)
		return hm_error(-EINVAL, "capture_end: this stream is not being captured with that id");
	of = s->graph->of;
	stream_set_graph(p, s, NULL);
	if (--of->captured)
		return 0;
	for (g = of->parts; g; g = g->next)
		graph_disown(p, g);
	return 0;
}

/* The part of @of for the calling thread's @stream, made if there is none. */
static int private_part(struct pool *p, struct graph_id *of,
			hetmem_stream stream, struct graph **part)
{
	const uint64_t thread = stream == HETMEM_STREAM_PER_THREAD ?
		hm_thread() : 0;
	struct graph **list = &p->graphs->parts[part_list(of, stream, thread)];
	struct graph *g;
	int err;

	for (g = *list; g; g = g->chain) {
		*part = g;
		if (g->of == of && g->handle == stream && g->thread == thread)
			return 0;
	}
	err = graph_make(p, of, part);
	if (err)
		return err;
	(*part)->handle = stream;
	(*part)->thread = thread;
	(*part)->chain = *list;
	*list = *part;
	return 0;
}

/* Returns the private pool @id when no thread wants it for itself, or NULL. */
static struct graph_id *private_find(struct pool *p, uint64_t id)
{
	struct graph_id *of;
	unsigned int naps = 0;

	while ((of = hm_graph_id(p, id)) && of->taken)
		hm_nap(&p->lock, &naps);
	return of && of->private ? of : NULL;
}

int hm_private_alloc(struct pool *p, struct hm_ctl_alloc *arg)
{
	struct graph_id *of;
	struct graph *g;
	int err = 0;

	pthread_mutex_lock(&p->lock);
	of = private_find(p, arg->private_pool);
	if (!of)
		err = hm_error(-ENOENT, "alloc_with: private pool %llu is not retained",
			       (unsigned long long)arg->private_pool);
	if (!err)
		err = private_part(p, of, arg->stream, &g);
	if (!err) {
		of->users++;
		err = hm_pool_alloc_slow(p, stream_at(p, 0), g, arg, arg->size,
					 arg->align, &arg->ptr);
		of->users--;
	}
	pthread_mutex_unlock(&p->lock);
	return err;
}

/* With the lock: @b, which is LIVE and of a private pool. */
static int private_free(struct pool *p, struct block *b, size_t *size,
			hetmem_stream stream)
{
	struct graph *from = hm_graph_at(p, b->right), *to = from;
	const size_t asked = block_bytes(b) - b->slack;
	int err;

	if (*size && *size != asked)
		return hm_error(-EINVAL, "free: %p has %zu bytes, not %zu",
				(void *)(uintptr_t)b->addr, asked, *size);
	if (stream != HETMEM_STREAM_UNKNOWN) {
		err = private_part(p, from->of, stream, &to);
		if (err)
			return err;
	}
	*size = asked;
	block_set_state(b, BLOCK_BUSY);
	hm_pool_free_slow(p, stream_at(p, 0), to, b);
	return 0;
}

/* The live block at @ptr, if it is of a private pool, or NULL. */
static struct block *private_block(struct pool *p, const void *ptr)
{
	struct block *b = hm_block_find_live(p, (uintptr_t)ptr);

	return b && b->flags & BLOCK_GRAPH && hm_graph_at(p, b->right)->of->private ? b : NULL;
}

int hm_private_free(struct pool *p, void *ptr, size_t *size,
		    hetmem_stream stream)
{
	unsigned int naps = 0;
	struct block *b;
	int err = -ENOENT;

	pthread_mutex_lock(&p->lock);
	while ((b = private_block(p, ptr)) && hm_graph_at(p, b->right)->of->alone)
		hm_nap(&p->lock, &naps);
	if (b)
		err = private_free(p, b, size, stream);
	pthread_mutex_unlock(&p->lock);
	return err;
}

int hm_private_record(struct pool *p, const struct hm_ctl_stream *arg)
{
	struct block *b;
	int err = -ENOENT;

	if (!__atomic_load_n(&p->nr_privates, __ATOMIC_RELAXED) ||
	    arg->stream == HETMEM_STREAM_HOST ||
	    !hm_capture_active(p->res.hm, arg->stream))
		return err;
	pthread_mutex_lock(&p->lock);
	b = private_block(p, arg->ptr);
	/* The block is parked when it is freed, whoever the stream is. */
	if (b && hm_graph_at(p, b->right)->handle == arg->stream)
		err = 0;
	else if (b)
		err = hm_block_use(p, b, stream_at(p, 0));
	else if (!p->order.nr_captured)
		err = hm_error(-EBUSY, "record_stream: the stream is being captured");
	pthread_mutex_unlock(&p->lock);
	return err;
}

static int private_retain(struct pool *p, uint64_t id)
{
	struct graph_id *of = hm_graph_id(p, id);
	int err = of ? 0 : id_make(p, id, &of);

	if (err)
		return err;
	if (of->parts && !of->private)
		return hm_error(-EBUSY, "private_retain: a capture has that id");
	if (!of->private) {
		of->private = true;
		__atomic_add_fetch(&p->nr_privates, 1, __ATOMIC_RELAXED);
	}
	of->refs++;
	return 0;
}

int hm_private_copy(const struct pool *from, struct pool *to)
{
	const struct graph_id *of;
	unsigned int i, refs;
	int err = 0;

	for (i = 0; from->graphs && i < GRAPH_LISTS; i++)
		for (of = from->graphs->ids[i]; of && !err; of = of->next)
			for (refs = of->private ? of->refs : 0; refs && !err; refs--)
				err = private_retain(to, of->id);
	return err;
}

static int private_release(struct pool *p, struct pool_stream *s, uint64_t id)
{
	struct graph_id *of = hm_graph_id(p, id);

	if (!of || !of->private)
		return hm_error(-ENOENT, "private_release: %llu is not retained",
				(unsigned long long)id);
	if (of->refs == 1 && (of->users || of->taken))
		return hm_error(-EBUSY, "private_release: another thread uses it");
	if (!--of->refs)
		id_release(p, s, of);
	return 0;
}

/*
 * A BUSY block of a private pool, whose uses are complete, becomes everybody's. Gives back
 * at most @most bytes of the memory that it is made of. Returns the bytes.
 */
static size_t shed_block(struct pool *p, struct block *b, uint64_t most)
{
	const uint64_t from = b->addr, to = block_end(b);

	hm_check_free(p->res.hm, (void *)(uintptr_t)b->addr, block_bytes(b), HETMEM_STREAM_HOST);
	if (b->flags & BLOCK_USED)
		hm_uses_put(p, b->left);
	b->left = 0;
	leave_graph(p, b, BLOCK_USED);
	b->stream = 0;
	b->pos = 0;
	if (b->flags & BLOCK_DROPPED) {
		hm_block_end_uses(p, b);
		return 0;
	}
	b = hm_block_release_done(p, b);
	return most ? p->source->shed(p, b, from, to, most) : 0;
}

/* What the pool may give back of what was made for @of. */
static uint64_t to_shed(const struct pool *p, const struct graph_id *of)
{
	const uint64_t more = p->reserved > p->opt.min ? p->reserved - p->opt.min : 0;

	if (p->opt.comm)
		return 0;
	return of->made < more ? of->made : more;
}

int hm_private_trim(struct pool *p, struct hm_ctl_private_trim *arg)
{
	struct graph_id *of;
	struct graph *g;
	struct block *b;
	size_t freed;
	int err;

	pthread_mutex_lock(&p->lock);
	p->work = 0;
	err = hm_private_take(p, arg->id, &of);
	if (!err && p->asleep) {
		err = hm_pool_asleep();
		hm_private_let_go(of);
	}
	for (g = err ? NULL : of->parts; g; g = g->next) {
		while ((b = graph_take(p, g))) {
			freed = shed_block(p, b, to_shed(p, of));
			of->made -= freed < of->made ? freed : of->made;
			arg->freed += freed;
			hm_pool_step(p, MOVE_WORK);
		}
	}
	if (!err)
		hm_private_let_go(of);
	pthread_mutex_unlock(&p->lock);
	return err;
}

int hm_graph_ctl(struct pool *p, enum hm_ctl op,
		 const struct hm_ctl_capture *arg)
{
	struct pool_stream *s = NULL;
	int err = 0;

	if (op == HM_CTL_PRIVATE_RETAIN)
		pthread_mutex_lock(&p->lock);
	else
		err = hm_pool_lock_stream(p, arg->stream, &s);
	if (err)
		return err;
	if (op == HM_CTL_CAPTURE_BEGIN)
		err = capture_begin(p, s, arg->id);
	else if (op == HM_CTL_CAPTURE_END)
		err = capture_end(p, s, arg->id);
	else if (op == HM_CTL_CAPTURE_RELEASE)
		err = capture_release(p, s, arg->id);
	else if (op == HM_CTL_PRIVATE_RETAIN)
		err = private_retain(p, arg->id);
	else
		err = private_release(p, s, arg->id);
	pthread_mutex_unlock(&p->lock);
	return err;
}

void hm_graphs_destroy(struct pool *p)
{
	struct graph_id *of;
	unsigned int i, zone;

	for (i = 1; p->graphs && i <= MAX_GRAPHS; i++) {
		struct graph *g = p->graphs->at[i];

		for (zone = 0; g && zone < NR_ZONES; zone++)
			hm_arena_free(&g->arenas[zone]);
		free(g);
	}
	for (i = 0; p->graphs && i < GRAPH_LISTS; i++) {
		while ((of = p->graphs->ids[i])) {
			p->graphs->ids[i] = of->next;
			free(of);
		}
	}
	free(p->graphs);
}
