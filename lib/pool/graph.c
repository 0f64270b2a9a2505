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
 */
#include <stdlib.h>

#include "driver/check.h"
#include "pool/graph.h"

/* As many as a block's index of one can tell apart, and 0 is none. */
#define MAX_GRAPHS	UINT16_MAX

/*
 * The part of @id that @s has or had, or one that nobody has; or NULL. What is
 * live in it is of one stream.
 */
static struct graph *graph_of(const struct pool *p, uint64_t id,
			      const struct pool_stream *s)
{
	struct graph *g, *unowned = NULL;

	for (g = p->graphs; g; g = g->next) {
		if (g->id != id)
			continue;
		if (g->from == s->s.serial)
			return g;
		if (!g->serial && !g->live)
			unowned = g;
	}
	return unowned;
}

static bool id_is_captured(const struct pool *p, uint64_t id)
{
	unsigned int i;

	for (i = 1; i < p->order.nr; i++)
		if (stream_at(p, i)->graph && stream_at(p, i)->graph->id == id)
			return true;
	return false;
}

struct pool_stream *hm_block_owner(const struct pool *p, const struct block *b)
{
	struct pool_stream *s = stream_at(p, b->stream);
	uint64_t serial = b->pos;

	if (b->flags & BLOCK_GRAPH)
		serial = hm_graph_at(p, b->right)->from;
	return s->s.serial == serial && s->s.id ? s : stream_at(p, 0);
}

/* The links of a live block: its part's list, in place of a serial. */

static uint32_t live_next(const struct block *b)
{
	return b->pos;
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

		live_link(next, block_id(p, b), live_next(next));
	}
	g->live = block_id(p, b);
}

static void live_unlink(struct pool *p, struct graph *g, struct block *b)
{
	struct block *next = block_at(p, live_next(b));
	struct block *prev = block_at(p, live_prev(b));

	if (live_next(b))
		live_link(next, live_prev(b), live_next(next));
	if (live_prev(b))
		live_link(prev, live_prev(prev), live_next(b));
	else
		g->live = live_next(b);
}

/* A BUSY block of a part nobody has, or NULL. */
static struct block *find_unowned(struct pool *p, uint64_t id,
				  unsigned int zone, uint64_t units)
{
	struct block *best = NULL, *b;
	struct graph *g;

	for (g = p->graphs; g; g = g->next) {
		if (g->id != id || g->serial)
			continue;
		b = hm_arena_best(p, &g->arenas[zone], units);
		if (b && (!best || b->units < best->units))
			best = b;
	}
	if (best)
		hm_block_take(p, best);
	return best;
}

static struct block *find_new(struct pool *p, unsigned int zone,
			      uint64_t units, int *err,
			      struct hm_stream **waited)
{
	CUstreamCaptureMode mode = hm_capture_relaxed(p->res.hm);
	struct block *b;

	b = hm_pool_find(p, stream_at(p, 0), zone, units, err, waited);
	hm_capture_mode(p->res.hm, mode);
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
			    int *err, struct hm_stream **waited)
{
	struct block *b = hm_arena_best(p, &g->arenas[zone], units);

	if (b) {
		hm_block_take(p, b);
		b->right = g->index;
		return b;
	}
	b = g->owner ? NULL : find_unowned(p, g->id, zone, units);
	if (b) {
		keep_rest(p, b, units);
	} else {
		b = find_new(p, zone, units, err, waited);
		if (!b)
			return NULL;
		/* The lock may have been released. */
		if (!g->owner && s->graph != g) {
			hm_block_release(p, b);
			*err = hm_error(-EBUSY, "the capture ended in the meantime");
			return NULL;
		}
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
	else if (s->graph && s->graph->id == g->id)
		g = s->graph;
	b->stream = g->index;
	b->pos = 0;
	if (!(b->flags & BLOCK_USED)) {
		/* Where the free is in the captured work, nobody knows. */
		if (!g->owner && s->graph != g && id_is_captured(p, g->id))
			list_push(p, &g->outside, b);
		else
			hm_block_release(p, b);
		return;
	}
	/* Within a graph nothing tells when another stream is done with it. */
	while (b->left) {
		uint32_t id = b->left;

		b->left = use_at(p, id)->next;
		hm_table_put(&p->uses, id);
	}
	__atomic_store_n(&b->flags, b->flags & ~BLOCK_USED, __ATOMIC_RELEASE);
	list_push(p, &g->parked, b);
}

static int graph_make(struct pool *p, uint64_t id, struct graph **made)
{
	struct graph *g;

	if (!p->graph_at)
		p->graph_at = calloc(MAX_GRAPHS + 1U, sizeof(struct graph *));
	if (p->nr_graphs == MAX_GRAPHS)
		return hm_error(-ENOSPC, "there are %u pairs of id and stream that were not released",
				p->nr_graphs);
	g = p->graph_at ? calloc(1, sizeof(*g)) : NULL;
	if (!g)
		return hm_error(-ENOMEM, "pool: no host memory");
	g->id = id;
	do
		g->index = ++p->next_graph;
	while (!g->index || p->graph_at[g->index]);
	p->graph_at[g->index] = g;
	g->next = p->graphs;
	p->graphs = g;
	p->nr_graphs++;
	*made = g;
	return 0;
}

/* A BUSY block of a graph is one of @s. */
static void graph_give_up(struct pool *p, struct pool_stream *s, uint64_t pos,
			  struct block *b)
{
	hm_check_free(p->res.hm, (void *)(uintptr_t)b->addr, block_bytes(b),
		      hm_stream_handle(&s->s));
	__atomic_store_n(&b->flags, b->flags & ~BLOCK_GRAPH,
			 __ATOMIC_RELEASE);
	b->stream = s->s.index;
	b->pos = pos;
	hm_block_release(p, b);
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
			g->live = live_next(b);
			b->pos = g->from;
			__atomic_store_n(&b->flags, b->flags & ~BLOCK_GRAPH,
					 __ATOMIC_RELEASE);
			if (g->live)
				live_link(block_at(p, g->live), 0,
					  live_next(block_at(p, g->live)));
			continue;
		}
		b = graph_take(p, g);
		if (!b)
			return false;
		graph_give_up(p, s, pos, b);
	}
	return true;
}

static void graph_release(struct pool *p, struct pool_stream *s,
			  struct graph *g)
{
	struct graph **link;
	unsigned int zone;
	uint64_t pos;

	/* First out of the list: no capture finds it between pieces. */
	for (link = &p->graphs; *link != g; link = &(*link)->next)
		;
	*link = g->next;
	stream_lock(s);
	pos = s->s.index ? hm_stream_next_pos(&s->s) : 0;
	stream_unlock(s);
	s->pins++;
	while (graph_empty(p, s, pos, g))
		hm_pool_pause(p);
	s->pins--;
	for (zone = 0; zone < NR_ZONES; zone++)
		hm_arena_free(&g->arenas[zone]);
	p->graph_at[g->index] = NULL;
	p->nr_graphs--;
	free(g);
}

/* All parts of @id. -ENOENT: there are none. */
static int release_parts(struct pool *p, struct pool_stream *s, uint64_t id)
{
	struct graph *g;
	int err = -ENOENT;

	do {
		for (g = p->graphs; g && g->id != id; g = g->next)
			;
		if (g) {
			graph_release(p, s, g);
			err = 0;
		}
	} while (g && !id_is_captured(p, id));
	return err;
}

static struct private_pool *private_by_id(const struct pool *p, uint64_t id)
{
	struct private_pool *r;

	for (r = p->privates; r && r->id != id; r = r->next)
		;
	return r;
}

static int id_release(struct pool *p, struct pool_stream *s, uint64_t id)
{
	if (id_is_captured(p, id))
		return hm_error(-EBUSY, "capture_release: a stream is being captured with that id");
	if (private_by_id(p, id) || release_parts(p, s, id))
		return hm_error(-ENOENT, "capture_release: no such id");
	return 0;
}

static void stream_set_graph(struct pool *p, struct pool_stream *s,
			     struct graph *g)
{
	__atomic_store_n(&s->graph, g, __ATOMIC_RELEASE);
	hm_stream_captured(&p->order, &s->s, g);
}

static int capture_begin(struct pool *p, struct pool_stream *s, uint64_t id)
{
	struct graph *g;
	int err = 0;

	if (s->graph)
		return hm_error(-EBUSY, "capture_begin: this stream is being captured");
	if (!s->s.index)
		return hm_error(-EINVAL, "capture_begin: the host is not captured");
	if (private_by_id(p, id))
		return hm_error(-EBUSY, "capture_begin: a private pool has that id");
	g = graph_of(p, id, s);
	if (!g)
		err = graph_make(p, id, &g);
	if (err)
		return err;
	/* What cannot be recorded now is not used by the capture. */
	if (s->arenas[0].units || s->arenas[1].units ||
	    hm_stream_cached(s))
		hm_stream_record(&p->order, &s->s);
	g->serial = s->s.serial;
	g->from = s->s.serial;
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
	struct graph *g;

	if (!s->graph || s->graph->id != id)
		return hm_error(-EINVAL, "capture_end: this stream is not being captured with that id");
	stream_set_graph(p, s, NULL);
	if (id_is_captured(p, id))
		return 0;
	for (g = p->graphs; g; g = g->next)
		if (g->id == id)
			graph_disown(p, g);
	return 0;
}

int hm_graph_ctl(struct pool *p, enum hm_ctl op,
		 const struct hm_ctl_capture *arg)
{
	struct pool_stream *s;
	int err;

	err = hm_pool_lock_stream(p, arg->stream, &s);
	if (err)
		return err;
	if (op == HM_CTL_CAPTURE_BEGIN)
		err = capture_begin(p, s, arg->id);
	else if (op == HM_CTL_CAPTURE_END)
		err = capture_end(p, s, arg->id);
	else
		err = id_release(p, s, arg->id);
	pthread_mutex_unlock(&p->lock);
	return err;
}

/* The part of @r for the calling thread's @stream, made if there is none. */
static int private_part(struct pool *p, struct private_pool *r,
			hetmem_stream stream, struct graph **part)
{
	const uint64_t thread = stream == HETMEM_STREAM_PER_THREAD ?
		hm_thread() : 0;
	struct graph *g;
	int err;

	for (g = p->graphs; g; g = g->next) {
		*part = g;
		if (g->owner == r && g->handle == stream && g->thread == thread)
			return 0;
	}
	err = graph_make(p, r->id, part);
	if (err)
		return err;
	(*part)->owner = r;
	(*part)->handle = stream;
	(*part)->thread = thread;
	return 0;
}

int hm_private_alloc(struct pool *p, struct hm_ctl_alloc *arg)
{
	struct private_pool *r;
	struct graph *g;
	int err = 0;

	pthread_mutex_lock(&p->lock);
	r = private_by_id(p, arg->private_pool);
	if (!r)
		err = hm_error(-ENOENT, "alloc_with: private pool %llu is not retained",
			       (unsigned long long)arg->private_pool);
	if (!err)
		err = private_part(p, r, arg->stream, &g);
	if (!err) {
		r->users++;
		err = hm_pool_alloc_slow(p, stream_at(p, 0), g, arg->size,
					 arg->align, &arg->ptr);
		r->users--;
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
		err = private_part(p, from->owner, stream, &to);
		if (err)
			return err;
	}
	*size = asked;
	block_set_state(b, BLOCK_BUSY);
	hm_pool_free_slow(p, stream_at(p, 0), to, b);
	return 0;
}

int hm_private_free(struct pool *p, void *ptr, size_t *size,
		    hetmem_stream stream)
{
	struct block *b;
	int err = -ENOENT;

	pthread_mutex_lock(&p->lock);
	b = hm_block_find_locked(p, (uintptr_t)ptr);
	if (b && block_state(b) == BLOCK_LIVE && b->flags & BLOCK_GRAPH &&
	    hm_graph_at(p, b->right)->owner)
		err = private_free(p, b, size, stream);
	pthread_mutex_unlock(&p->lock);
	return err;
}

static int private_retain(struct pool *p, uint64_t id)
{
	struct private_pool *r;
	struct graph *g;
	int err = 0;

	pthread_mutex_lock(&p->lock);
	r = private_by_id(p, id);
	for (g = p->graphs; !r && g && g->id != id; g = g->next)
		;
	if (r) {
		r->refs++;
	} else if (g) {
		err = hm_error(-EBUSY, "private_retain: a capture has that id");
	} else {
		r = calloc(1, sizeof(*r));
		if (!r)
			err = hm_error(-ENOMEM, "private_retain: no host memory");
	}
	if (!err && !r->refs) {
		*r = (struct private_pool){
			.next = p->privates, .id = id, .refs = 1,
		};
		__atomic_store_n(&p->privates, r, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&p->lock);
	return err;
}

static int private_release(struct pool *p, struct pool_stream *s, uint64_t id)
{
	struct private_pool **link, *r = private_by_id(p, id);

	if (!r)
		return hm_error(-ENOENT, "private_release: %llu is not retained",
				(unsigned long long)id);
	if (r->refs == 1 && r->users)
		return hm_error(-EBUSY, "private_release: an allocation is under way");
	if (--r->refs)
		return 0;
	/* First out of the list: nobody allocates from it between pieces. */
	for (link = &p->privates; *link != r; link = &(*link)->next)
		;
	__atomic_store_n(link, r->next, __ATOMIC_RELEASE);
	release_parts(p, s, id);
	free(r);
	return 0;
}

int hm_private_ctl(struct pool *p, enum hm_ctl op,
		   const struct hm_ctl_capture *arg)
{
	struct pool_stream *s;
	int err;

	if (op == HM_CTL_PRIVATE_RETAIN)
		return private_retain(p, arg->id);
	err = hm_pool_lock_stream(p, arg->stream, &s);
	if (err)
		return err;
	err = private_release(p, s, arg->id);
	pthread_mutex_unlock(&p->lock);
	return err;
}

void hm_graphs_destroy(struct pool *p)
{
	struct private_pool *r;
	unsigned int zone;
	struct graph *g;

	while ((r = p->privates)) {
		p->privates = r->next;
		free(r);
	}

	while ((g = p->graphs)) {
		p->graphs = g->next;
		for (zone = 0; zone < NR_ZONES; zone++)
			hm_arena_free(&g->arenas[zone]);
		free(g);
	}
	free(p->graph_at);
}
