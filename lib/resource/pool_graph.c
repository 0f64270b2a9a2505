// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The pool and captured work: memory that is allocated while a stream is
 * captured belongs to the graphs that come of it, which may be launched again
 * and again. It is used again within the same id, in the order of the capture,
 * and by others when the id is released.
 *
 * Nothing may be recorded or waited for on a stream that is captured, and
 * other calls of the driver are legal in relaxed mode only: what such a stream
 * gets is complete memory.
 */
#include <stdlib.h>

#include "driver/check.h"
#include "resource/pool_impl.h"
#include "resource/region_use.h"

/* As many as a block's index of one can tell apart. */
#define MAX_GRAPHS	(UINT16_MAX + 1U)

static struct graph *by_id(const struct pool *p, uint64_t id)
{
	struct graph *g;

	for (g = p->graphs; g; g = g->next)
		if (g->id == id)
			return g;
	return NULL;
}

struct graph *hm_graph_by_index(const struct pool *p, uint32_t index)
{
	struct graph *g;

	for (g = p->graphs; g; g = g->next)
		if (g->index == index)
			return g;
	return NULL;
}

static struct block *find(struct pool *p, unsigned int zone, uint64_t units,
			  int *err)
{
	CUstreamCaptureMode mode = hm_capture_relaxed(p->res.hm);
	struct block *b;

	b = hm_pool_find_or_grow(p, stream_at(p, 0), zone, units, err);
	hm_capture_mode(p->res.hm, mode);
	return b;
}

struct block *hm_graph_find(struct pool *p, struct pool_stream *s,
			    unsigned int zone, uint64_t units, int *err)
{
	struct graph *g = s->graph;
	struct block *b = hm_arena_best(p, &g->arenas[zone], units);

	if (b) {
		hm_block_take(p, b);
	} else {
		b = find(p, zone, units, err);
		if (!b)
			return NULL;
		/* The rest stays everybody's. */
		if (b->units > units && !(b->flags & BLOCK_WHOLE)) {
			struct block *rest = hm_block_cut(p, b, units);

			if (rest)
				hm_block_release(p, rest);
		}
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

void hm_graph_free(struct pool *p, struct block *b)
{
	struct graph *g = hm_graph_by_index(p, b->right);

	b->stream = g->index;
	b->pos = 0;
	if (!(b->flags & BLOCK_USED)) {
		hm_block_release(p, b);
		return;
	}
	/* Within a graph nothing tells when another stream is done with it. */
	while (b->left) {
		uint32_t id = b->left;

		b->left = ((struct use *)p->uses.base + id)->next;
		hm_table_put(&p->uses, id);
	}
	__atomic_store_n(&b->flags, b->flags & ~BLOCK_USED, __ATOMIC_RELEASE);
	b->right = g->parked;
	g->parked = block_id(p, b);
}

static int make(struct pool *p, uint64_t id, struct graph **made)
{
	struct graph *g;

	if (p->nr_graphs == MAX_GRAPHS)
		return hm_error(-ENOSPC, "capture_begin: there are %u ids that were not released",
				p->nr_graphs);
	g = calloc(1, sizeof(*g));
	if (!g)
		return hm_error(-ENOMEM, "capture_begin: no host memory");
	g->id = id;
	do
		g->index = ++p->next_graph;
	while (hm_graph_by_index(p, g->index));
	g->next = p->graphs;
	p->graphs = g;
	p->nr_graphs++;
	*made = g;
	return 0;
}

/* A BUSY block of a graph is one of @s. */
static void give_up(struct pool *p, struct pool_stream *s, uint64_t pos,
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

static void release(struct pool *p, struct pool_stream *s, struct graph *g)
{
	struct graph **link;
	unsigned int zone;
	struct block *b;
	uint64_t pos;
	uint32_t id;

	stream_lock(s);
	pos = s->s.index ? hm_stream_step(&s->s) : 0;
	stream_unlock(s);
	for (zone = 0; zone < NR_ZONES; zone++) {
		while ((b = hm_arena_best(p, &g->arenas[zone], 1))) {
			hm_block_take(p, b);
			give_up(p, s, pos, b);
		}
		hm_arena_free(&g->arenas[zone]);
	}
	while ((id = g->parked)) {
		g->parked = block_at(p, id)->right;
		give_up(p, s, pos, block_at(p, id));
	}
	/* Live ones are like others from now on. */
	for (id = 1; id < p->blocks.nr; id++) {
		b = block_at(p, id);
		if (block_state(b) == BLOCK_LIVE && b->flags & BLOCK_GRAPH &&
		    b->right == g->index)
			__atomic_store_n(&b->flags, b->flags & ~BLOCK_GRAPH,
					 __ATOMIC_RELEASE);
	}
	for (link = &p->graphs; *link != g; link = &(*link)->next)
		;
	*link = g->next;
	p->nr_graphs--;
	free(g);
}

static bool is_used(const struct pool *p, const struct graph *g)
{
	unsigned int i;

	for (i = 1; i < p->order.nr; i++)
		if (stream_at(p, i)->graph == g)
			return true;
	return false;
}

static void set_graph(struct pool *p, struct pool_stream *s, struct graph *g)
{
	__atomic_store_n(&s->graph, g, __ATOMIC_RELEASE);
	hm_stream_captured(&p->order, &s->s, g);
}

int hm_graph_ctl(struct pool *p, enum hm_ctl op,
		 const struct hm_ctl_capture *arg)
{
	uint64_t epoch = pool_epoch(p);
	struct pool_stream *s;
	struct graph *g;
	int err;

	err = hm_stream_get(&p->order, arg->stream, (struct hm_stream **)&s);
	if (!err)
		err = hm_pool_lock(p, arg->stream, epoch, &s);
	if (err)
		return err;
	g = by_id(p, arg->id);
	switch (op) {
	case HM_CTL_CAPTURE_BEGIN:
		if (s->graph)
			err = hm_error(-EBUSY, "capture_begin: this stream is being captured");
		else if (!s->s.index)
			err = hm_error(-EINVAL, "capture_begin: the host is not captured");
		else if (!g)
			err = make(p, arg->id, &g);
		if (!err)
			set_graph(p, s, g);
		break;
	case HM_CTL_CAPTURE_END:
		if (!g || s->graph != g)
			err = hm_error(-EINVAL, "capture_end: this stream is not being captured with that id");
		else
			set_graph(p, s, NULL);
		break;
	default:
		if (!g)
			err = hm_error(-ENOENT, "capture_release: no such id");
		else if (is_used(p, g))
			err = hm_error(-EBUSY, "capture_release: a stream is being captured with that id");
		else
			release(p, s, g);
	}
	pthread_mutex_unlock(&p->lock);
	return err;
}

void hm_graphs_destroy(struct pool *p)
{
	unsigned int zone;
	struct graph *g;

	while ((g = p->graphs)) {
		p->graphs = g->next;
		for (zone = 0; zone < NR_ZONES; zone++)
			hm_arena_free(&g->arenas[zone]);
		free(g);
	}
}
