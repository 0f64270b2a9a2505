// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver's stream capture. While a stream captures, what it is given
 * goes to a graph (graph.c), with what it depends on: what the stream was given
 * before, and what it has waited for.
 *
 * A stream joins a capture by waiting for an event that was recorded in it,
 * and has come back when a stream of the capture has waited for an event
 * behind its last work; one that was given none never left.
 */
#include <stdlib.h>
#include <string.h>

#include "soft/soft.h"

/**
 * struct soft_capture - one that was begun
 * @thread: that began it
 * @invalid: something illegal was done during it
 */
struct soft_capture {
	struct soft_capture *next;
	struct CUstream_st *origin;
	CUstreamCaptureMode mode;
	unsigned long long thread;
	unsigned long long id;
	bool invalid;
	struct CUgraph_st *graph;
};

static __thread CUstreamCaptureMode thread_mode;

static struct soft_capture *by_id(unsigned long long id)
{
	struct soft_capture *c;

	for (c = hm_soft_world->captures; c; c = c->next)
		if (c->id == id)
			return c;
	return NULL;
}

static void end_capture(struct soft_capture *c)
{
	struct soft_capture **p;
	struct CUstream_st *s;

	for (s = hm_soft_world->streams; s; s = s->next) {
		if (s->capture != c)
			continue;
		s->capture = NULL;
		hm_soft_front_free(&s->front);
	}
	for (p = &hm_soft_world->captures; *p != c; p = &(*p)->next)
		;
	*p = c->next;
	free(c);
}

/* @task depends on the stream's front, and is its front then. */
static bool append(struct CUstream_st *s, struct soft_task *task)
{
	unsigned int *node = malloc(sizeof(*node));

	if (!node)
		return false;
	task->after = s->front;
	hm_soft_graph_append(s->capture->graph, task);
	*node = task->number;
	s->front = (struct soft_front){ 1, node };
	return true;
}

CUresult hm_soft_capture_task(struct CUstream_st *s, struct soft_task *task)
{
	if (s->capture->invalid) {
		hm_soft_task_put(task);
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	}
	if (!task->run && !task->node) {
		hm_soft_task_put(task);
	} else if (!append(s, task)) {
		hm_soft_task_put(task);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	s->captured++;
	s->joined = false;
	return CUDA_SUCCESS;
}

struct CUgraph_st *hm_soft_capture_graph(struct CUstream_st *s)
{
	return s->capture->graph;
}

bool hm_soft_capture_broken(const struct CUstream_st *s)
{
	return s->capture->invalid;
}

CUresult hm_soft_capture_event(struct CUevent_st *e)
{
	struct soft_capture *c = by_id(e->capture);

	if (!e->capture)
		return hm_soft_unsafe();
	if (c)
		c->invalid = true;
	return CUDA_ERROR_CAPTURED_EVENT;
}

CUresult hm_soft_capture_record(struct CUstream_st *s, struct CUevent_st *e)
{
	if (s->capture->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	hm_soft_front_free(&e->front);
	if (!hm_soft_front_join(&e->front, &s->front))
		return CUDA_ERROR_OUT_OF_MEMORY;
	e->capture = s->capture->id;
	e->captured_on = s;
	e->captured = s->captured;
	return CUDA_SUCCESS;
}

CUresult hm_soft_capture_wait(struct CUstream_st *s, struct CUevent_st *e)
{
	struct soft_capture *c = by_id(e->capture);
	bool back;

	if (s->capture && s->capture->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (!e->capture && !e->task)
		return CUDA_SUCCESS;
	if (!e->capture) {
		s->capture->invalid = true;
		return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
	}
	if (!c)
		return CUDA_ERROR_INVALID_VALUE;
	if (c->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	if (s->capture && s->capture != c) {
		s->capture->invalid = true;
		c->invalid = true;
		return CUDA_ERROR_STREAM_CAPTURE_MERGE;
	}
	if (!s->capture) {
		s->capture = c;
		s->captured = 0;
		s->joined = true;
	}
	if (!hm_soft_front_join(&s->front, &e->front)) {
		c->invalid = true;
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	/* Behind nothing but what has come back, it still has. */
	back = e->captured_on == c->origin || e->captured_on == s ||
	       e->captured_on->joined;
	s->joined = s->joined && back;
	if (e->captured_on != s && e->captured_on->captured == e->captured)
		e->captured_on->joined = true;
	return CUDA_SUCCESS;
}

CUresult hm_soft_unsafe(void)
{
	CUresult res = CUDA_SUCCESS;
	struct soft_capture *c;

	if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_SUCCESS;
	for (c = hm_soft_world->captures; c; c = c->next) {
		bool mine = c->thread == hm_thread();

		if (c->mode == CU_STREAM_CAPTURE_MODE_RELAXED ||
		    (!mine && (c->mode != CU_STREAM_CAPTURE_MODE_GLOBAL ||
			       thread_mode != CU_STREAM_CAPTURE_MODE_GLOBAL)))
			continue;
		c->invalid = true;
		res = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	return res;
}

CUresult hm_soft_capture_never(struct CUstream_st *s)
{
	if (!s->capture)
		return CUDA_SUCCESS;
	s->capture->invalid = true;
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult hm_soft_capture_none(const struct CUctx_st *ctx)
{
	CUresult res = CUDA_SUCCESS;
	struct CUstream_st *s;

	for (s = hm_soft_world->streams; s; s = s->next)
		if (s->ctx == ctx && s->capture)
			res = hm_soft_capture_never(s);
	return res;
}

/* A captured stream that the legacy stream @s would wait for, or NULL. */
static struct CUstream_st *waits_for(const struct CUstream_st *s)
{
	struct CUstream_st *other;

	if (!hm_soft_world->captures || s != s->ctx->legacy)
		return NULL;
	for (other = hm_soft_world->streams; other; other = other->next)
		if (other->capture && other->blocking && other->ctx == s->ctx)
			return other;
	return NULL;
}

CUresult hm_soft_capture_asked(struct CUstream_st *s)
{
	struct CUstream_st *other;

	if (s->capture)
		return hm_soft_capture_never(s);
	other = waits_for(s);
	if (!other)
		return CUDA_SUCCESS;
	other->capture->invalid = true;
	return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

void hm_soft_capture_destroyed(struct CUstream_st *s)
{
	struct soft_capture *c = s->capture;

	if (!c)
		return;
	c->invalid = true;
	s->capture = NULL;
	hm_soft_front_free(&s->front);
	if (c->origin == s) {
		hm_soft_graph_free(&hm_soft_world->graphs, c->graph);
		end_capture(c);
	}
}

void hm_soft_free_captures(struct soft_world *w)
{
	while (w->captures)
		end_capture(w->captures);
}

static CUresult begin(struct CUstream_st *s, CUstreamCaptureMode mode)
{
	struct soft_world *w = hm_soft_world;
	struct soft_capture *c;

	if (s->capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (s == s->ctx->legacy)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	c = calloc(1, sizeof(*c));
	if (!c)
		return CUDA_ERROR_OUT_OF_MEMORY;
	c->graph = hm_soft_graph_new(&w->graphs);
	if (!c->graph) {
		free(c);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	c->origin = s;
	c->mode = mode;
	c->thread = hm_thread();
	c->id = ++w->next_id;
	c->next = w->captures;
	w->captures = c;
	s->capture = c;
	s->captured = 0;
	return CUDA_SUCCESS;
}

static CUresult stream_begin_capture(CUstream stream, CUstreamCaptureMode mode)
{
	struct CUstream_st *s;
	CUresult res;

	SOFT_ENTER(cuStreamBeginCapture);
	if (mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	hm_soft_lock();
	s = hm_soft_stream(stream, &res);
	if (s)
		res = begin(s, mode);
	hm_soft_unlock();
	return res;
}

static CUresult end(struct CUstream_st *s, CUgraph *graph)
{
	struct soft_capture *c = s->capture;
	struct CUstream_st *other;
	CUresult res = CUDA_SUCCESS;

	*graph = NULL;
	if (!c)
		return CUDA_ERROR_ILLEGAL_STATE;
	if (c->origin != s) {
		c->invalid = true;
		return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
	}
	if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED &&
	    c->thread != hm_thread())
		return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
	if (c->invalid)
		res = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	for (other = hm_soft_world->streams; other && !res; other = other->next)
		if (other->capture == c && other != s && !other->joined)
			res = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	if (res)
		hm_soft_graph_free(&hm_soft_world->graphs, c->graph);
	else
		*graph = c->graph;
	end_capture(c);
	return res;
}

static CUresult stream_end_capture(CUstream stream, CUgraph *graph)
{
	struct CUstream_st *s;
	CUresult res;

	SOFT_ENTER(cuStreamEndCapture);
	hm_soft_lock();
	s = hm_soft_stream(stream, &res);
	if (s)
		res = end(s, graph);
	hm_soft_unlock();
	return res;
}

static CUstreamCaptureStatus status_of(const struct CUstream_st *s)
{
	return !s->capture ? CU_STREAM_CAPTURE_STATUS_NONE :
		s->capture->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED :
		CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

static CUresult stream_is_capturing(CUstream stream,
				    CUstreamCaptureStatus *status)
{
	struct CUstream_st *s;
	CUresult res;

	SOFT_ENTER(cuStreamIsCapturing);
	hm_soft_lock();
	s = hm_soft_stream(stream, &res);
	/* This one may be asked, and leaves the capture as it is. */
	if (s && waits_for(s)) {
		res = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	} else if (s) {
		*status = status_of(s);
		res = CUDA_SUCCESS;
	}
	hm_soft_unlock();
	return res;
}

static CUresult thread_exchange_mode(CUstreamCaptureMode *mode)
{
	CUstreamCaptureMode was = thread_mode;

	SOFT_ENTER(cuThreadExchangeStreamCaptureMode);
	if (*mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	thread_mode = *mode;
	*mode = was;
	return CUDA_SUCCESS;
}

void hm_soft_fill_capture(struct hm_api *d)
{
	d->cuStreamIsCapturing = stream_is_capturing;
	d->cuStreamBeginCapture = stream_begin_capture;
	d->cuStreamEndCapture = stream_end_capture;
	d->cuThreadExchangeStreamCaptureMode = thread_exchange_mode;
}
