/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The memory that a program needs if the allocator adds no order between streams.
 *
 * Needed: bytes that are live, and freed bytes that a stream still uses. Least:
 * the bytes that a perfect allocator holds. A stream reuses at once, newest
 * first, the blocks that were freed on it and used on no other stream.
 *
 * Each free records an event, on its stream and on the streams that the block
 * was recorded for. Events are queried only when a sum would be a new peak.
 */
#include <stdlib.h>
#include <string.h>

#include "replay.h"

/* A freed block: @left streams are not done with it. */
struct freed {
	uint64_t bytes;
	unsigned int left;
	bool shared;		/* by several, or not by the stream of the free */
};

struct pending {
	struct pending *next;
	CUevent event;
	struct freed *freed;
	uint64_t number;
};

/* Of the free with this number: bytes that its own stream can have again. */
struct again {
	uint64_t number;
	uint64_t bytes;
};

/* A stream: what is pending in its order; what it can have, at @from to @to. */
struct line {
	struct pending *first;
	struct pending *last;
	struct again *again;
	size_t from;
	size_t to;
	size_t room;
};

/* A stream that a block was recorded for. */
struct use {
	uint32_t next;
	uint16_t stream;
};

/**
 * struct needed - of a pass
 * @lines: of the streams
 * @unused: whose events may be recorded again
 * @on: by block: the stream that it was allocated on
 * @uses_of: by block: index of its last use in @uses, 0: none
 */
struct needed {
	struct replay_world *w;
	struct line *lines;
	struct pending *unused;
	uint16_t *on;
	uint32_t *uses_of;
	struct use *uses;
	size_t nr_uses;
	size_t room;
	uint64_t frees;
	uint64_t live;
	uint64_t pending;	/* all of it */
	uint64_t held;		/* less what was given out again */
	struct replay_needed peak;
	bool failed;
};

static void begin(struct needed *n, struct replay_world *w)
{
	const struct replay_trace *t = w->trace;

	*n = (struct needed){ .w = w, .nr_uses = 1 };
	n->lines = xcalloc(t->streams + 1, sizeof(*n->lines));
	n->on = xcalloc(t->blocks, sizeof(*n->on));
	n->uses_of = xcalloc(t->blocks, sizeof(*n->uses_of));
	memset(n->uses_of, 0, t->blocks * sizeof(*n->uses_of));
}

/* The stream's oldest is done: nothing is to be had again of it. */
static void done(struct needed *n, struct line *l)
{
	struct pending *p = l->first;

	l->first = p->next;
	if (l->from < l->to && l->again[l->from].number == p->number)
		n->held -= l->again[l->from++].bytes;
	else if (p->freed->left == 1 && p->freed->shared)
		n->held -= p->freed->bytes;
	if (!--p->freed->left) {
		n->pending -= p->freed->bytes;
		free(p->freed);
	}
	p->next = n->unused;
	n->unused = p;
}

static void end(struct needed *n)
{
	struct pending *p;
	unsigned int i;

	for (i = 0; i < n->w->trace->streams; i++) {
		while (n->lines[i].first)
			done(n, &n->lines[i]);
		free(n->lines[i].again);
	}
	while ((p = n->unused)) {
		n->unused = p->next;
		n->w->drv->cuEventDestroy(p->event);
		free(p);
	}
	free(n->lines);
	free(n->on);
	free(n->uses_of);
	free(n->uses);
}

static struct pending *new_pending(struct needed *n)
{
	struct pending *p = n->unused;

	if (p) {
		n->unused = p->next;
		return p;
	}
	p = xcalloc(1, sizeof(*p));
	if (!n->w->drv->cuEventCreate(&p->event, CU_EVENT_DISABLE_TIMING))
		return p;
	free(p);
	return NULL;
}

static void add_pending(struct needed *n, struct freed *freed,
			unsigned int stream)
{
	struct line *l = &n->lines[stream];
	struct pending *p;

	if (stream >= n->w->trace->streams)
		return;
	p = new_pending(n);
	if (!p) {
		n->failed = true;
		return;
	}
	n->w->drv->cuEventRecord(p->event, n->w->streams[stream]);
	p->next = NULL;
	p->freed = freed;
	p->number = n->frees;
	freed->left++;
	if (l->first)
		l->last->next = p;
	else
		l->first = p;
	l->last = p;
}

static void give_again(struct line *l, uint64_t number, uint64_t bytes)
{
	if (l->to == l->room && l->from > l->room / 2) {
		memmove(l->again, l->again + l->from,
			(l->to - l->from) * sizeof(*l->again));
		l->to -= l->from;
		l->from = 0;
	} else if (l->to == l->room) {
		l->room = l->room ? 2 * l->room : 256;
		l->again = xrealloc_array(l->again, l->room,
					  sizeof(*l->again));
	}
	l->again[l->to++] = (struct again){ number, bytes };
}

static void take_again(struct needed *n, struct line *l, uint64_t bytes)
{
	while (bytes && l->from < l->to) {
		struct again *a = &l->again[l->to - 1];
		uint64_t some = a->bytes < bytes ? a->bytes : bytes;

		a->bytes -= some;
		bytes -= some;
		n->held -= some;
		l->to -= !a->bytes;
	}
}

static void add_use(struct needed *n, const struct replay_step *s)
{
	if (n->nr_uses >= n->room) {
		n->room = n->room ? 2 * n->room : 1024;
		n->uses = xrealloc_array(n->uses, n->room, sizeof(*n->uses));
	}
	n->uses[n->nr_uses] = (struct use){ n->uses_of[s->block], s->stream };
	n->uses_of[s->block] = n->nr_uses++;
}

static void add_free(struct needed *n, const struct replay_step *s)
{
	const unsigned int on = s->stream == REPLAY_STREAM_UNKNOWN ?
		n->on[s->block] : s->stream;
	struct freed *freed = xcalloc(1, sizeof(*freed));
	uint32_t use;

	n->frees++;
	n->live -= s->size;
	*freed = (struct freed){ .bytes = s->size };
	add_pending(n, freed, on);
	for (use = n->uses_of[s->block]; use; use = n->uses[use].next)
		if (n->uses[use].stream != on)
			add_pending(n, freed, n->uses[use].stream);
	if (!freed->left) {
		free(freed);
		return;
	}
	n->pending += s->size;
	n->held += s->size;
	freed->shared = freed->left > 1 || on >= n->w->trace->streams;
	if (!freed->shared && s->size)
		give_again(&n->lines[on], n->frees, s->size);
}

static void add_alloc(struct needed *n, const struct replay_step *s)
{
	unsigned int i;

	struct replay_needed *peak = &n->peak;
	const unsigned int nr = n->w->trace->streams;

	n->on[s->block] = s->stream;
	n->live += s->size;
	if (s->stream < nr)
		take_again(n, &n->lines[s->stream], s->size);
	if (n->live + n->pending <= peak->needed &&
	    n->live + n->held <= peak->least)
		return;
	for (i = 0; i < nr; i++)
		while (n->lines[i].first &&
		       !n->w->drv->cuEventQuery(n->lines[i].first->event))
			done(n, &n->lines[i]);
	if (peak->needed < n->live + n->pending)
		peak->needed = n->live + n->pending;
	if (peak->least < n->live + n->held)
		peak->least = n->live + n->held;
}

bool replay_pass_needed(struct replay_world *w, struct hetmem_resource *res,
			struct replay_needed *peak)
{
	const struct replay_trace *t = w->trace;
	struct needed n;
	size_t i;

	begin(&n, w);
	for (i = 0; i < t->nr && !n.failed; i++) {
		const struct replay_step *s = &t->steps[i];
		const bool live = (s->op == REPLAY_FREE ||
				   s->op == REPLAY_RECORD_STREAM) &&
			w->ptrs[s->block];
		const bool failed = replay_step(w, res, s);

		if (s->op == REPLAY_ALLOC && !failed)
			add_alloc(&n, s);
		else if (s->op == REPLAY_FREE && live)
			add_free(&n, s);
		else if (s->op == REPLAY_RECORD_STREAM && live)
			add_use(&n, s);
	}
	replay_drain(w, res);
	end(&n);
	*peak = n.peak;
	return !n.failed;
}
