// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver's streams: queues of tasks and the threads that execute
 * them. A thread is started by the first task, blocks all signals, and runs
 * each task without the lock.
 *
 * The legacy stream of a context waits for everything given before to its
 * blocking streams, and they for what was given to it.
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "soft/soft.h"

struct soft_task *hm_soft_task(void)
{
	struct soft_task *task = calloc(1, sizeof(*task));

	if (task)
		task->refs = 1;
	return task;
}

void hm_soft_task_put(struct soft_task *task)
{
	unsigned int i;

	if (!task || --task->refs)
		return;
	for (i = 0; i < task->nr_deps; i++)
		hm_soft_task_put(task->deps[i]);
	hm_soft_node_put(task->node);
	hm_soft_front_free(&task->after);
	free(task->deps);
	free(task->ranges);
	free(task);
}

static bool is_ready(const struct soft_task *task)
{
	unsigned int i;

	for (i = 0; i < task->nr_deps; i++)
		if (!task->deps[i]->done)
			return false;
	return true;
}

/* It is done: drops the queue's reference. */
static void finish(struct soft_task *task)
{
	unsigned int i;

	task->when = hm_now();
	task->done = true;
	for (i = 0; i < task->nr_deps; i++)
		hm_soft_task_put(task->deps[i]);
	task->nr_deps = 0;
	hm_soft_task_put(task);
}

/* Drops the lock while the task runs. */
static void execute(struct soft_world *w, struct CUstream_st *s,
		    struct soft_task *task)
{
	bool run = task->run && (!s->ctx->error || task->always);
	CUresult res = CUDA_SUCCESS;

	pthread_mutex_unlock(&w->lock);
	hm_soft_sleep(task->delay);
	if (run)
		res = task->run(s->ctx, task);
	pthread_mutex_lock(&w->lock);
	if (res && !s->ctx->error)
		s->ctx->error = res;
	s->first = task->next;
	if (!s->first)
		s->last = NULL;
	finish(task);
	pthread_cond_broadcast(&w->changed);
}

static void *work(void *arg)
{
	struct soft_world *w = hm_soft_world;
	struct CUstream_st *s = arg;

	hm_soft_is_worker = true;
	pthread_mutex_lock(&w->lock);
	while (s->first || (s->live && !s->stop)) {
		if (s->first && is_ready(s->first))
			execute(w, s, s->first);
		else
			pthread_cond_wait(&w->changed, &w->lock);
	}
	s->ended = true;
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

static int start(struct CUstream_st *s)
{
	sigset_t all, old;
	int err;

	sigfillset(&all);
	/* A device's illegal access is the process's own fault, as on a CPU. */
	sigdelset(&all, SIGSEGV);
	sigdelset(&all, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = pthread_create(&s->worker, NULL, work, s);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (!err)
		s->started = true;
	return err;
}

/* Handles are looked up at each call: a list of them all would be long. */
static struct CUstream_st **bucket_of(struct soft_world *w, CUstream handle)
{
	uint64_t h = (uintptr_t)handle * 0x9e3779b97f4a7c15ULL;

	return &w->buckets[(h >> 32) % SOFT_STREAM_BUCKETS];
}

static struct CUstream_st *new_stream(struct CUctx_st *ctx, bool blocking,
				      unsigned long long thread)
{
	struct soft_world *w = hm_soft_world;
	struct CUstream_st *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->ctx = ctx;
	s->id = ++w->next_id;
	s->thread = thread;
	s->live = true;
	s->blocking = blocking;
	s->next = w->streams;
	w->streams = s;
	s->same_bucket = *bucket_of(w, s);
	*bucket_of(w, s) = s;
	hm_check_actor(&s->actor, s->id, 0);
	return s;
}

static void free_stream(struct soft_world *w, struct CUstream_st *s)
{
	struct CUstream_st **p;

	for (p = &w->streams; *p != s; p = &(*p)->next)
		;
	*p = s->next;
	for (p = bucket_of(w, s); *p != s; p = &(*p)->same_bucket)
		;
	*p = s->same_bucket;
	if (s->started)
		pthread_join(s->worker, NULL);
	hm_soft_task_put(s->tail);
	hm_check_join(&s->ctx->gone[s->blocking], &s->actor.clock);
	hm_check_clock_free(&s->actor.clock);
	hm_soft_front_free(&s->front);
	free(s);
}

/* Destroyed streams whose work is done. */
static void reap(struct soft_world *w)
{
	struct CUstream_st *s, *next;

	for (s = w->streams; s; s = next) {
		next = s->next;
		if (!s->live && (s->ended || !s->started))
			free_stream(w, s);
	}
}

static struct CUstream_st *per_thread(struct CUctx_st *ctx)
{
	struct CUstream_st *s;

	for (s = hm_soft_world->streams; s; s = s->next)
		if (s->ctx == ctx && s->thread == hm_thread() && s->live)
			return s;
	return new_stream(ctx, true, hm_thread());
}

struct CUstream_st *hm_soft_stream(CUstream stream, CUresult *res)
{
	struct CUctx_st *ctx = hm_soft_current();
	struct CUstream_st *s;

	*res = CUDA_ERROR_OUT_OF_MEMORY;
	if (!stream || stream == CU_STREAM_LEGACY) {
		if (!ctx) {
			*res = CUDA_ERROR_INVALID_CONTEXT;
			return NULL;
		}
		if (!ctx->legacy)
			ctx->legacy = new_stream(ctx, false, 0);
		return ctx->legacy;
	}
	if (stream == CU_STREAM_PER_THREAD) {
		if (ctx)
			return per_thread(ctx);
		*res = CUDA_ERROR_INVALID_CONTEXT;
		return NULL;
	}
	for (s = *bucket_of(hm_soft_world, stream); s; s = s->same_bucket)
		if (s == stream && s->live)
			return s;
	*res = CUDA_ERROR_INVALID_HANDLE;
	return NULL;
}

static void depend(struct soft_task *task, struct soft_task *on)
{
	if (!on || on->done)
		return;
	on->refs++;
	task->deps[task->nr_deps++] = on;
}

static CUresult add_deps(struct CUstream_st *s, struct soft_task *task,
			 struct soft_task *after)
{
	struct CUstream_st *other;
	unsigned int nr = 2;

	if (s == s->ctx->legacy)
		for (other = hm_soft_world->streams; other;
		     other = other->next)
			nr++;
	task->deps = calloc(nr, sizeof(struct soft_task *));
	if (!task->deps)
		return CUDA_ERROR_OUT_OF_MEMORY;
	depend(task, after);
	if (s->blocking && s->ctx->legacy) {
		depend(task, s->ctx->legacy->tail);
		hm_check_join(&s->actor.clock,
			      &s->ctx->legacy->actor.clock);
	}
	if (s != s->ctx->legacy)
		return CUDA_SUCCESS;
	for (other = hm_soft_world->streams; other; other = other->next) {
		if (other->blocking && other->ctx == s->ctx) {
			depend(task, other->tail);
			hm_check_join(&s->actor.clock, &other->actor.clock);
		}
	}
	hm_check_join(&s->actor.clock, &s->ctx->gone[true]);
	return CUDA_SUCCESS;
}

static void check(struct CUstream_st *s, const struct soft_task *task)
{
	struct soft_actor *a = task->actor ? task->actor : &s->actor;
	unsigned int i;

	hm_check_submit(a);
	if (task->run)
		hm_check_work(&s->actor, task->what);
	if (task->uses_dst)
		hm_check_use(a, task->dst, task->size, task->what, true);
	if (task->uses_src)
		hm_check_use(a, task->src, task->size, task->what, false);
	for (i = 0; i < task->nr_ranges; i++)
		hm_check_use(a, task->ranges[i].ptr, task->ranges[i].size,
			     task->what, task->ranges[i].fill >= 0);
}

CUresult hm_soft_submit(struct CUstream_st *s, struct soft_task *task,
			struct soft_task *after, struct soft_task **point)
{
	CUresult res = task->always ? CUDA_SUCCESS : s->ctx->error;
	bool at_once;	/* a mere point, and everything before is done */

	if (!res && s->capture)
		return hm_soft_capture_task(s, task);
	if (!res)
		res = hm_soft_capture_asked(s);
	if (!res)
		res = add_deps(s, task, after);
	at_once = !res && !task->run && !task->delay && !s->first &&
		  is_ready(task);
	if (!res && !at_once && !s->started && start(s))
		res = CUDA_ERROR_OPERATING_SYSTEM;
	if (res) {
		hm_soft_task_put(task);
		return res;
	}
	check(s, task);
	hm_soft_task_put(s->tail);
	s->tail = task;
	task->refs++;
	if (point) {
		*point = task;
		task->refs++;
	}
	if (at_once) {
		finish(task);
		return CUDA_SUCCESS;
	}
	if (s->last)
		s->last->next = task;
	else
		s->first = task;
	s->last = task;
	pthread_cond_broadcast(&hm_soft_world->changed);
	return CUDA_SUCCESS;
}

CUresult hm_soft_submit_to(CUstream stream, struct soft_task *task)
{
	struct CUstream_st *s;
	CUresult res;

	hm_soft_lock();
	s = hm_soft_stream(stream, &res);
	if (s)
		res = hm_soft_submit(s, task, NULL, NULL);
	else
		hm_soft_task_put(task);
	hm_soft_unlock();
	return res;
}

void hm_soft_wait(struct soft_task *task)
{
	struct soft_world *w = hm_soft_world;

	if (!task)
		return;
	task->refs++;
	/* A call that goes on while the process sleeps would free what is saved. */
	while (!task->done || hm_soft_is_stopped(w))
		pthread_cond_wait(&w->changed, &w->lock);
	hm_soft_task_put(task);
}

/* Also of streams that are destroyed; the list may change while we wait. */
void hm_soft_drain(struct CUctx_st *ctx)
{
	struct soft_world *w = hm_soft_world;
	struct soft_clock clock = { 0 };
	struct CUstream_st *s;
	int i;

	for (i = 0; i < w->nr_devices; i++) {
		if (!ctx || &w->devices[i] == ctx) {
			hm_check_join(&clock, &w->devices[i].gone[false]);
			hm_check_join(&clock, &w->devices[i].gone[true]);
		}
	}
	for (s = w->streams; s; s = s->next)
		if (!ctx || s->ctx == ctx)
			hm_check_join(&clock, &s->actor.clock);
again:
	for (s = w->streams; s; s = s->next) {
		if ((!ctx || s->ctx == ctx) && s->tail && !s->tail->done) {
			hm_soft_wait(s->tail);
			goto again;
		}
	}
	hm_check_host(&clock);
	hm_check_clock_free(&clock);
}

void hm_soft_stop_streams(struct soft_world *w)
{
	struct CUstream_st *s;

	pthread_mutex_lock(&w->lock);
	for (s = w->streams; s; s = s->next) {
		if (w->debug && s->live && s->blocking && !s->thread)
			hm_soft_leak("stream", s->id, 0);
		s->stop = true;
	}
	pthread_cond_broadcast(&w->changed);
	pthread_mutex_unlock(&w->lock);
	while (w->streams) {
		s = w->streams;
		if (s->started)
			pthread_join(s->worker, NULL);
		pthread_mutex_lock(&w->lock);
		s->started = false;
		free_stream(w, s);
		pthread_mutex_unlock(&w->lock);
	}
}

static CUresult stream_create(CUstream *stream, unsigned int flags)
{
	struct CUctx_st *ctx = hm_soft_current();
	struct CUstream_st *s;

	SOFT_ENTER(cuStreamCreate);
	if (!ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	if (flags & ~CU_STREAM_NON_BLOCKING)
		return CUDA_ERROR_INVALID_VALUE;
	hm_soft_lock();
	reap(hm_soft_world);
	s = new_stream(ctx, !(flags & CU_STREAM_NON_BLOCKING), 0);
	hm_soft_unlock();
	*stream = s;
	return s ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult stream_destroy(CUstream stream)
{
	struct CUstream_st *s;
	CUresult res;

	SOFT_ENTER(cuStreamDestroy);
	hm_soft_lock();
	s = hm_soft_stream(stream, &res);
	if (s && (s == s->ctx->legacy || s->thread)) {
		res = CUDA_ERROR_INVALID_HANDLE;
		s = NULL;
	}
	if (s) {
		hm_soft_capture_destroyed(s);
		s->live = false;
		pthread_cond_broadcast(&hm_soft_world->changed);
		reap(hm_soft_world);
		res = CUDA_SUCCESS;
	}
	hm_soft_unlock();
	return res;
}

void hm_soft_sync(struct CUstream_st *s)
{
	struct soft_clock clock = { 0 };

	hm_check_join(&clock, &s->actor.clock);
	hm_soft_wait(s->tail);
	hm_check_host(&clock);
	hm_check_clock_free(&clock);
}

/* Of the stream itself never, of another not while there are captures. */
static CUresult may_ask(struct CUstream_st *s)
{
	CUresult res = hm_soft_capture_asked(s);

	return res ? res : hm_soft_unsafe();
}

static CUresult stream_synchronize(CUstream stream)
{
	struct CUctx_st *ctx;
	struct CUstream_st *s;
	CUresult res;

	SOFT_ENTER(cuStreamSynchronize);
	hm_soft_lock();
	s = hm_soft_stream(stream, &res);
	res = s ? may_ask(s) : res;
	if (s && !res) {
		ctx = s->ctx;
		hm_soft_sync(s);
		res = ctx->error;
	}
	hm_soft_unlock();
	return res;
}

static CUresult stream_query(CUstream stream)
{
	struct CUstream_st *s;
	CUresult res;

	SOFT_ENTER(cuStreamQuery);
	hm_soft_lock();
	s = hm_soft_stream(stream, &res);
	res = s ? may_ask(s) : res;
	if (res) {
		/* Illegal, or no such stream. */
	} else if (s->tail && !s->tail->done) {
		res = CUDA_ERROR_NOT_READY;
	} else {
		hm_check_host(&s->actor.clock);
		res = s->ctx->error;
	}
	hm_soft_unlock();
	return res;
}

static CUresult stream_get_id(CUstream stream, unsigned long long *id)
{
	struct CUstream_st *s;
	CUresult res;

	SOFT_ENTER(cuStreamGetId);
	hm_soft_lock();
	s = hm_soft_stream(stream, &res);
	/* In every mode, but of no other stream. */
	if (s)
		res = hm_soft_capture_asked(s);
	if (s && !res) {
		*id = s->id;
		res = CUDA_SUCCESS;
	}
	hm_soft_unlock();
	return res;
}

static CUresult stream_get_ctx(CUstream stream, CUcontext *ctx)
{
	struct CUstream_st *s;
	CUresult res;

	SOFT_ENTER(cuStreamGetCtx);
	hm_soft_lock();
	s = hm_soft_stream(stream, &res);
	if (s && !s->capture)
		res = hm_soft_capture_asked(s);
	if (s && (s->capture || !res)) {
		*ctx = s->ctx;
		res = CUDA_SUCCESS;
	}
	hm_soft_unlock();
	return res;
}

static CUresult call_host(struct CUctx_st *ctx, struct soft_task *task)
{
	(void)ctx;
	task->fn((void *)task->dst);
	return CUDA_SUCCESS;
}

static CUresult launch_host_func(CUstream stream, CUhostFn fn, void *data)
{
	struct soft_task *task;
	uint64_t delay;

	SOFT_ENTER_WORK(cuLaunchHostFunc, &delay);
	if (!fn)
		return CUDA_ERROR_INVALID_VALUE;
	task = hm_soft_task();
	if (!task)
		return CUDA_ERROR_OUT_OF_MEMORY;
	task->run = call_host;
	task->fn = fn;
	task->dst = (uintptr_t)data;
	task->delay = delay;
	return hm_soft_submit_to(stream, task);
}

/* Events. */

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
		return CUDA_ERROR_INVALID_VALUE;
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
	hm_soft_front_free(&e->front);
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
			hm_check_join(&e->clock, &s->actor.clock);
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
			hm_check_join(&s->actor.clock, &e->clock);
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

void hm_soft_fill_stream(struct hm_api *d)
{
	d->cuStreamCreate = stream_create;
	d->cuStreamDestroy = stream_destroy;
	d->cuStreamSynchronize = stream_synchronize;
	d->cuStreamQuery = stream_query;
	d->cuStreamGetId = stream_get_id;
	d->cuStreamGetCtx = stream_get_ctx;
	d->cuLaunchHostFunc = launch_host_func;
	d->cuEventCreate = event_create;
	d->cuEventDestroy = event_destroy;
	d->cuEventRecord = event_record;
	d->cuEventQuery = event_query;
	d->cuEventSynchronize = event_synchronize;
	d->cuEventElapsedTime = event_elapsed_time;
	d->cuStreamWaitEvent = stream_wait_event;
}
