// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Stream order: who is who, and what a pool knows of the order between
 * streams. stream.h tells how it works.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "resource/stream.h"

__thread struct hm_stream_key hm_stream_keys[HM_STREAM_KEYS];

uint64_t hm_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static int driver_error(const struct hm_order *o, const char *call,
			CUresult res)
{
	return hm_driver_error(&o->hm->driver, call, res);
}

static struct hm_stream *new_stream(struct hm_order *o)
{
	/* Two streams share no cache line: each may be another thread's. */
	const size_t size = (o->size + 63) & ~(size_t)63;
	struct hm_stream *s = aligned_alloc(64, size);

	if (s) {
		memset(s, 0, size);
		s->index = o->nr;
	}
	return s;
}

int hm_order_init(struct hm_order *o, struct hetmem *hm, int device,
		  size_t size, bool retired, bool check,
		  pthread_mutex_t *lock)
{
	static uint64_t serials;
	int err;

	memset(o, 0, sizeof(*o));
	o->hm = hm;
	o->device = device;
	o->size = size;
	o->retired = retired;
	o->check = check;
	if (device >= 0) {
		err = hm_device_context(hm, device, &o->ctx);
		if (err)
			return err;
	}
	o->serial = __atomic_add_fetch(&serials, 1, __ATOMIC_RELAXED);
	o->streams = calloc(HM_MAX_STREAMS, sizeof(*o->streams));
	if (o->streams)
		o->streams[0] = new_stream(o);
	if (!o->streams || !o->streams[0]) {
		free(o->streams);
		return hm_error(-ENOMEM, "pool: no host memory");
	}
	o->streams[0]->handle = HETMEM_STREAM_HOST;
	o->streams[0]->id = UINT64_MAX;
	o->streams[0]->done = UINT64_MAX;
	o->nr = 1;
	o->lock = lock;
	return 0;
}

static void free_events(struct hm_order *o, struct hm_stream *s)
{
	unsigned int i;

	for (i = 0; i < s->nr; i++)
		o->hm->driver.cuEventDestroy(
			s->points[(s->first + i) % s->room].event);
	for (i = 0; i < s->nr_spare; i++)
		o->hm->driver.cuEventDestroy(s->spare[i]);
	s->nr = 0;
	s->nr_spare = 0;
}

void hm_order_destroy(struct hm_order *o, bool forget)
{
	unsigned int i;

	for (i = 0; i < o->nr; i++) {
		struct hm_stream *s = o->streams[i];

		if (!forget)
			free_events(o, s);
		free(s->points);
		free(s->spare);
		free(s->waited);
		free(s);
	}
	free(o->streams);
}

/* Makes @ctx current; the special handles mean a stream of what is. */
static CUresult enter(struct hm_order *o, CUcontext ctx, CUcontext *before)
{
	const struct hm_driver *d = &o->hm->driver;
	CUresult res = d->cuCtxGetCurrent(before);

	if (res || *before == ctx)
		return res;
	return d->cuCtxSetCurrent(ctx);
}

static void leave(struct hm_order *o, CUcontext ctx, CUcontext before)
{
	if (before != ctx)
		o->hm->driver.cuCtxSetCurrent(before);
}

static bool is_special(hetmem_stream handle)
{
	return !handle || handle == HETMEM_STREAM_LEGACY ||
	       handle == HETMEM_STREAM_PER_THREAD;
}

/* Whose stream is it, and of which context? */
static int identify(struct hm_order *o, hetmem_stream handle, uint64_t *id,
		    CUcontext *ctx)
{
	const struct hm_driver *d = &o->hm->driver;
	bool special = is_special(handle) && o->ctx;
	unsigned long long asked = (uintptr_t)handle;
	CUcontext before = NULL;
	CUresult res = CUDA_SUCCESS;

	*ctx = o->ctx;
	if (special) {
		res = enter(o, o->ctx, &before);
		if (res)
			return driver_error(o, "cuCtxSetCurrent", res);
	}
	if (d->cuStreamGetId)
		res = d->cuStreamGetId(handle, &asked);
	if (!res && d->cuStreamGetCtx)
		res = d->cuStreamGetCtx(handle, ctx);
	else if (!res && !*ctx)
		res = d->cuCtxGetCurrent(ctx);
	if (special)
		leave(o, o->ctx, before);
	if (res)
		return hm_error(-EINVAL, "stream %p is none: %s", handle,
				hm_cuda_name(d, res));
	/* A thread without a context, and a driver that cannot tell. */
	if (!*ctx && o->hm->nr_devices) {
		int err = hm_device_context(o->hm, 0, ctx);

		if (err)
			return err;
	}
	if (o->ctx && *ctx != o->ctx)
		return hm_error(-EINVAL, "stream %p is of another context than the memory of device %d",
				handle, o->device);
	*id = asked;
	return 0;
}

/* With the lock. */
static struct hm_stream *find(const struct hm_order *o, hetmem_stream handle,
			      uint64_t id)
{
	unsigned int i;

	for (i = 1; i < o->nr; i++) {
		struct hm_stream *s = o->streams[i];

		if (s->id == id && !s->retired)
			return s;
		/* The handle is used again: that one was destroyed. */
		if (s->id && s->handle == handle && !s->retired &&
		    !is_special(handle)) {
			s->retired = true;
			s->lost = true;
		}
	}
	return NULL;
}

/* With the lock. */
static struct hm_stream *add(struct hm_order *o)
{
	struct hm_stream *s;
	unsigned int i;

	for (i = 1; i < o->nr; i++)
		if (!o->streams[i]->id)
			return o->streams[i];
	if (o->nr == HM_MAX_STREAMS) {
		hm_error(-EMFILE, "more than %d streams: hetmem_stream_retire() before cuStreamDestroy",
			 HM_MAX_STREAMS - 1);
		return NULL;
	}
	s = new_stream(o);
	if (!s) {
		hm_error(-ENOMEM, "stream: no host memory");
		return NULL;
	}
	o->streams[o->nr] = s;
	__atomic_store_n(&o->nr, o->nr + 1, __ATOMIC_RELEASE);
	return s;
}

int hm_stream_lookup(struct hm_order *o, hetmem_stream handle,
		     struct hm_stream **stream)
{
	struct hm_stream_key *key = hm_stream_key(o, handle);
	struct hm_stream *s;
	uint64_t id = 0, epoch;
	CUcontext ctx;
	int err;

	if (handle == HETMEM_STREAM_HOST) {
		*stream = o->streams[0];
		return 0;
	}
	epoch = __atomic_load_n(&o->epoch, __ATOMIC_ACQUIRE);
	err = identify(o, handle, &id, &ctx);
	if (err)
		return err;
	pthread_mutex_lock(o->lock);
	s = find(o, handle, id);
	if (!s) {
		s = add(o);
		if (!s) {
			pthread_mutex_unlock(o->lock);
			return o->nr == HM_MAX_STREAMS ? -EMFILE : -ENOMEM;
		}
		s->handle = handle;
		s->ctx = ctx;
		s->retired = false;
		s->lost = false;
		s->serial = ++o->next_serial;
		__atomic_store_n(&s->id, id, __ATOMIC_RELEASE);
		__atomic_store_n(&o->seen, o->seen + 1, __ATOMIC_RELAXED);
	}
	pthread_mutex_unlock(o->lock);
	*key = (struct hm_stream_key){
		.order = o->serial, .handle = handle, .id = id,
		.epoch = epoch, .stream = s,
	};
	*stream = s;
	return 0;
}

/*
 * Whether an event may be recorded or waited for. A handle that the driver
 * does not know any more was destroyed behind our back.
 */
static int check_capture(struct hm_order *o, struct hm_stream *s)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

	if (!o->hm->driver.cuStreamIsCapturing)
		return 0;
	o->calls++;
	if (o->hm->driver.cuStreamIsCapturing(s->handle, &status)) {
		s->retired = true;
		s->lost = true;
		return hm_error(-EAGAIN, "stream %p was destroyed without hetmem_stream_retire()",
				s->handle);
	}
	if (status != CU_STREAM_CAPTURE_STATUS_NONE)
		return hm_error(-EBUSY, "stream %p is being captured: hetmem_capture_begin() tells the pool",
				s->handle);
	return 0;
}

static int get_event(struct hm_order *o, struct hm_stream *s, CUevent *event)
{
	CUcontext before;
	CUresult res;

	if (s->nr_spare) {
		*event = s->spare[--s->nr_spare];
		return 0;
	}
	res = enter(o, s->ctx, &before);
	if (res)
		return driver_error(o, "cuCtxSetCurrent", res);
	o->calls++;
	res = o->hm->driver.cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
	leave(o, s->ctx, before);
	return res ? driver_error(o, "cuEventCreate", res) : 0;
}

/* Room for one more point and for every event as a spare one. */
static int make_room(struct hm_stream *s)
{
	unsigned int room = s->room ? 2 * s->room : 8, i;
	struct hm_point *points;
	CUevent *spare;

	if (s->nr < s->room)
		return 0;
	points = malloc(room * sizeof(*points));
	spare = realloc(s->spare, (room + 1) * sizeof(CUevent));
	if (spare)
		s->spare = spare;
	if (!points || !spare) {
		free(points);
		return hm_error(-ENOMEM, "stream: no host memory");
	}
	for (i = 0; i < s->nr; i++)
		points[i] = s->points[(s->first + i) % s->room];
	free(s->points);
	s->points = points;
	s->first = 0;
	s->room = room;
	return 0;
}

int hm_stream_record(struct hm_order *o, struct hm_stream *s)
{
	uint64_t pos = hm_stream_pos(s);
	CUevent event;
	CUresult res;
	int err;

	if (s->recorded >= pos || s->done >= pos)
		return 0;
	if (s->lost)
		return hm_error(-EAGAIN, "a stream was destroyed without hetmem_stream_retire()");
	err = check_capture(o, s);
	if (!err)
		err = make_room(s);
	if (!err)
		err = get_event(o, s, &event);
	if (err)
		return err;
	o->calls++;
	res = o->hm->driver.cuEventRecord(event, s->handle);
	if (res) {
		s->spare[s->nr_spare++] = event;
		return driver_error(o, "cuEventRecord", res);
	}
	s->points[(s->first + s->nr++) % s->room] =
		(struct hm_point){ event, pos };
	s->recorded = pos;
	return 0;
}

static void drop_first(struct hm_stream *s)
{
	struct hm_point *p = &s->points[s->first];

	s->done = p->pos;
	s->spare[s->nr_spare++] = p->event;
	s->first = (s->first + 1) % s->room;
	s->nr--;
}

bool hm_stream_poll(struct hm_order *o, struct hm_stream *s)
{
	const struct hm_driver *d = &o->hm->driver;
	uint64_t before = s->done;

	if (!s->nr)
		return false;
	/* Most often all is done: one question then. */
	o->calls++;
	if (!d->cuEventQuery(s->points[(s->first + s->nr - 1) %
				       s->room].event)) {
		while (s->nr)
			drop_first(s);
		return true;
	}
	while (s->nr > 1) {
		o->calls++;
		if (d->cuEventQuery(s->points[s->first].event))
			break;
		drop_first(s);
	}
	return s->done > before;
}

static int remember_wait(struct hm_stream *s, const struct hm_stream *of,
			 uint64_t pos)
{
	unsigned int nr = of->index + 8;
	uint64_t *waited;

	if (of->index >= s->nr_waited) {
		waited = realloc(s->waited, nr * sizeof(*waited));
		if (!waited)
			return hm_error(-ENOMEM, "stream: no host memory");
		memset(waited + s->nr_waited, 0,
		       (nr - s->nr_waited) * sizeof(*waited));
		s->waited = waited;
		s->nr_waited = nr;
	}
	if (s->waited[of->index] < pos)
		s->waited[of->index] = pos;
	return 0;
}

int hm_stream_wait(struct hm_order *o, struct hm_stream *s,
		   struct hm_stream *of, uint64_t pos)
{
	struct hm_point *p = NULL;
	unsigned int i;
	CUresult res;
	int err;

	if (hm_stream_known(s, of) >= pos)
		return 0;
	if (of->recorded < pos) {
		err = hm_stream_record(o, of);
		if (err)
			return err == -EBUSY ? -EAGAIN : err;
	}
	if (!s->index) {
		hm_stream_poll(o, of);
		return of->done >= pos ? 0 : -EAGAIN;
	}
	err = check_capture(o, s);
	if (err)
		return err;
	/* The earliest that covers it; the loop ends: recorded >= pos. */
	for (i = 0; i < of->nr; i++) {
		p = &of->points[(of->first + i) % of->room];
		if (p->pos >= pos)
			break;
	}
	err = remember_wait(s, of, 0);
	if (err)
		return err;
	o->calls++;
	res = o->hm->driver.cuStreamWaitEvent(s->handle, p->event, 0);
	if (res)
		return driver_error(o, "cuStreamWaitEvent", res);
	return remember_wait(s, of, p->pos);
}

/* A context that was synchronized has nothing under way. */
static int sync_lost(struct hm_order *o, struct hm_stream *s)
{
	CUcontext before;
	CUresult res;

	res = enter(o, s->ctx, &before);
	if (!res) {
		o->calls++;
		res = o->hm->driver.cuCtxSynchronize();
		leave(o, s->ctx, before);
	}
	if (res)
		return driver_error(o, "cuCtxSynchronize", res);
	while (s->nr)
		drop_first(s);
	s->done = hm_stream_pos(s);
	return 0;
}

int hm_stream_sync(struct hm_order *o, struct hm_stream *s, uint64_t pos,
		   uint64_t deadline)
{
	const struct timespec nap = { .tv_nsec = 20000 };
	uint64_t start = hm_now();
	CUresult res;
	int err = 0;

	if (s->done >= pos)
		return 0;
	if (s->recorded < pos && !s->lost) {
		err = hm_stream_record(o, s);
		if (err)
			return err;
	}
	if (s->lost)
		err = sync_lost(o, s);
	while (!err && s->done < pos) {
		if (deadline == UINT64_MAX) {
			o->calls++;
			res = o->hm->driver.cuEventSynchronize(
				s->points[s->first].event);
			if (res)
				err = driver_error(o, "cuEventSynchronize",
						   res);
			else
				drop_first(s);
			continue;
		}
		if (hm_stream_poll(o, s))
			continue;
		if (hm_now() >= deadline)
			err = -ETIMEDOUT;
		else
			nanosleep(&nap, NULL);
	}
	o->wait_ns += hm_now() - start;
	return err;
}

int hm_stream_retire(struct hm_order *o, hetmem_stream handle,
		     struct hm_stream **stream)
{
	struct hm_stream *s;
	uint64_t id;
	CUcontext ctx;
	int err;

	*stream = NULL;
	if (handle == HETMEM_STREAM_HOST)
		return hm_error(-EINVAL, "stream_retire: the host's stream stays");
	err = identify(o, handle, &id, &ctx);
	if (err)
		return err;
	s = find(o, handle, id);
	if (!s)
		return 0;
	/*
	 * Uses of blocks that are freed later, on other streams, are the
	 * caller's to order; what was freed here is what the event covers.
	 */
	err = hm_stream_record(o, s);
	if (err)
		return err;
	s->retired = true;
	__atomic_add_fetch(&o->epoch, 1, __ATOMIC_RELEASE);
	*stream = s;
	return 0;
}

void hm_stream_recycle(struct hm_order *o, struct hm_stream *s)
{
	free_events(o, s);
	if (s->waited)
		memset(s->waited, 0, s->nr_waited * sizeof(*s->waited));
	s->done = hm_stream_pos(s);
	s->recorded = s->done;
	__atomic_store_n(&s->id, 0, __ATOMIC_RELEASE);
}
