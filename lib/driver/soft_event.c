// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver's events: names for points in streams.
 */
#include <stdlib.h>

#include "driver/soft.h"

/* With the lock. */
static struct CUevent_st *find_event(CUevent event)
{
	struct hm_range *r = hm_range_find(&hm_soft_world->events,
					   (uintptr_t)event, 1);

	return r && r == &event->self ? event : NULL;
}

static CUresult event_create(CUevent *event, unsigned int flags)
{
	struct CUctx_st *ctx = hm_soft_current();
	struct CUevent_st *e;
	int err;

	SOFT_ENTER(cuEventCreate);
	if (!ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (flags & ~(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING))
		return flags & CU_EVENT_INTERPROCESS ?
			CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
	e = calloc(1, sizeof(*e));
	if (!e)
		return CUDA_ERROR_OUT_OF_MEMORY;
	e->self.start = (uintptr_t)e;
	e->self.end = e->self.start + 1;
	e->ctx = ctx;
	e->flags = flags;
	hm_soft_lock();
	err = hm_range_insert(&hm_soft_world->events, &e->self);
	hm_soft_unlock();
	if (err) {
		free(e);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*event = e;
	return CUDA_SUCCESS;
}

static void free_event(struct soft_world *w, struct CUevent_st *e)
{
	hm_range_erase(&w->events, &e->self);
	hm_soft_task_put(e->task);
	hm_check_clock_free(&e->clock);
	free(e);
}

static CUresult event_destroy(CUevent event)
{
	CUresult res = CUDA_ERROR_INVALID_HANDLE;

	SOFT_ENTER(cuEventDestroy);
	hm_soft_lock();
	if (find_event(event)) {
		free_event(hm_soft_world, event);
		res = CUDA_SUCCESS;
	}
	hm_soft_unlock();
	return res;
}

static CUresult event_record(CUevent event, CUstream stream)
{
	struct soft_task *task, *point;
	struct CUstream_st *s;
	struct CUevent_st *e;
	uint64_t delay;
	CUresult res;

	SOFT_ENTER_WORK(cuEventRecord, &delay);
	task = hm_soft_task();
	if (!task)
		return CUDA_ERROR_OUT_OF_MEMORY;
	task->delay = delay;
	hm_soft_lock();
	e = find_event(event);
	s = hm_soft_stream(stream, &res);
	if (!e || !s || e->ctx != s->ctx) {
		if (s)
			res = CUDA_ERROR_INVALID_HANDLE;
		hm_soft_task_put(task);
	} else if (s->capture) {
		res = hm_soft_capture_record(s, e);
		hm_soft_task_put(task);
	} else {
		res = hm_soft_submit(s, task, NULL, &point);
		if (!res) {
			e->capture = 0;
			hm_soft_task_put(e->task);
			e->task = point;
			hm_check_clock_free(&e->clock);
			hm_check_join(&e->clock, &s->clock);
		}
	}
	hm_soft_unlock();
	return res;
}

static CUresult stream_wait_event(CUstream stream, CUevent event,
				  unsigned int flags)
{
	struct soft_task *task;
	struct CUstream_st *s;
	struct CUevent_st *e;
	uint64_t delay;
	CUresult res;

	SOFT_ENTER_WORK(cuStreamWaitEvent, &delay);
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	task = hm_soft_task();
	if (!task)
		return CUDA_ERROR_OUT_OF_MEMORY;
	task->delay = delay;
	hm_soft_lock();
	e = find_event(event);
	s = hm_soft_stream(stream, &res);
	if (e && s && (s->capture || e->capture)) {
		res = hm_soft_capture_wait(s, e);
		hm_soft_task_put(task);
	} else if (e && s) {
		res = hm_soft_submit(s, task, e->task, NULL);
		if (!res)
			hm_check_behind(s, &e->clock);
	} else {
		if (s)
			res = CUDA_ERROR_INVALID_HANDLE;
		hm_soft_task_put(task);
	}
	hm_soft_unlock();
	return res;
}

static CUresult event_query(CUevent event)
{
	struct CUevent_st *e;
	CUresult res = CUDA_ERROR_INVALID_HANDLE;

	SOFT_ENTER(cuEventQuery);
	hm_soft_lock();
	e = find_event(event);
	if (e)
		res = hm_soft_capture_event(e);
	if (e && res) {
		/* Illegal now. */
	} else if (e && e->task && !e->task->done) {
		res = CUDA_ERROR_NOT_READY;
	} else if (e) {
		hm_check_host(&e->clock);
		res = e->ctx->error;
	}
	hm_soft_unlock();
	return res;
}

static CUresult event_synchronize(CUevent event)
{
	struct soft_clock clock = { 0 };
	struct CUctx_st *ctx;
	struct CUevent_st *e;
	CUresult res = CUDA_ERROR_INVALID_HANDLE;

	SOFT_ENTER(cuEventSynchronize);
	hm_soft_lock();
	e = find_event(event);
	if (e)
		res = hm_soft_capture_event(e);
	if (e && !res) {
		ctx = e->ctx;
		hm_check_join(&clock, &e->clock);
		hm_soft_wait(e->task);
		hm_check_host(&clock);
		hm_check_clock_free(&clock);
		res = ctx->error;
	}
	hm_soft_unlock();
	return res;
}

static CUresult event_elapsed_time(float *ms, CUevent start, CUevent end)
{
	struct CUevent_st *a, *b;
	CUresult res = CUDA_SUCCESS;

	SOFT_ENTER(cuEventElapsedTime);
	hm_soft_lock();
	a = find_event(start);
	b = find_event(end);
	if (!a || !b || !a->task || !b->task ||
	    (a->flags | b->flags) & CU_EVENT_DISABLE_TIMING)
		res = CUDA_ERROR_INVALID_HANDLE;
	else if (!a->task->done || !b->task->done)
		res = CUDA_ERROR_NOT_READY;
	else
		*ms = (float)((double)(int64_t)(b->task->when -
						a->task->when) / 1e6);
	hm_soft_unlock();
	return res;
}

void hm_soft_free_events(struct soft_world *w)
{
	struct hm_range *r;

	while ((r = hm_range_any(&w->events))) {
		if (w->debug)
			hm_soft_leak("event", r->start, 0);
		free_event(w, (struct CUevent_st *)r);
	}
}

void hm_soft_fill_event(struct hm_driver *d)
{
	d->cuEventCreate = event_create;
	d->cuEventDestroy = event_destroy;
	d->cuEventRecord = event_record;
	d->cuEventQuery = event_query;
	d->cuEventSynchronize = event_synchronize;
	d->cuEventElapsedTime = event_elapsed_time;
	d->cuStreamWaitEvent = stream_wait_event;
}
