// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver's events: names for points in streams.
 */
#include <stdlib.h>

#include "driver/soft.h"

/* With the lock. */
static struct CUevent_st *find_event(CUevent event)
{
	struct CUevent_st *e;

	for (e = hm_soft_world->events; e; e = e->next)
		if (e == event)
			return e;
	return NULL;
}

static CUresult event_create(CUevent *event, unsigned int flags)
{
	struct CUctx_st *ctx = hm_soft_current();
	struct CUevent_st *e;

	SOFT_ENTER(cuEventCreate);
	if (!ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (flags & ~(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING))
		return flags & CU_EVENT_INTERPROCESS ?
			CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_VALUE;
	e = calloc(1, sizeof(*e));
	if (!e)
		return CUDA_ERROR_OUT_OF_MEMORY;
	e->ctx = ctx;
	e->flags = flags;
	hm_soft_lock();
	e->next = hm_soft_world->events;
	hm_soft_world->events = e;
	hm_soft_unlock();
	*event = e;
	return CUDA_SUCCESS;
}

static CUresult event_destroy(CUevent event)
{
	struct CUevent_st **p;
	CUresult res = CUDA_ERROR_INVALID_HANDLE;

	SOFT_ENTER(cuEventDestroy);
	hm_soft_lock();
	for (p = &hm_soft_world->events; *p; p = &(*p)->next) {
		if (*p != event)
			continue;
		*p = event->next;
		hm_soft_task_put(event->task);
		hm_check_clock_free(&event->clock);
		free(event);
		res = CUDA_SUCCESS;
		break;
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

/* With the lock: whether it is legal to ask for it, or to wait. */
static CUresult may_ask(const struct CUevent_st *e)
{
	return e->capture ? CUDA_ERROR_CAPTURED_EVENT : hm_soft_unsafe();
}

static CUresult event_query(CUevent event)
{
	struct CUevent_st *e;
	CUresult res = CUDA_ERROR_INVALID_HANDLE;

	SOFT_ENTER(cuEventQuery);
	hm_soft_lock();
	e = find_event(event);
	if (e)
		res = may_ask(e);
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
		res = may_ask(e);
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
	struct CUevent_st *e;

	while ((e = w->events)) {
		if (w->debug)
			hm_soft_leak("event", (uintptr_t)e, 0);
		w->events = e->next;
		hm_soft_task_put(e->task);
		hm_check_clock_free(&e->clock);
		free(e);
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
