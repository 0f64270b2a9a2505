// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Stream order: what a pool knows of the order between streams. stream.h
 * tells how it works.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "resource/region_use.h"
#include "resource/stream_impl.h"

__thread struct hm_stream_key hm_stream_keys[HM_STREAM_SETS][HM_STREAM_WAYS];

uint64_t hm_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

int hm_order_init(struct hm_order *o, struct hetmem *hm, int device,
		  size_t size, bool retired, pthread_mutex_t *lock)
{
	static uint64_t serials;
	int err;

	memset(o, 0, sizeof(*o));
	o->hm = hm;
	o->device = device;
	o->size = size;
	o->retired = retired;
	if (device >= 0) {
		err = hm_device_context(hm, device, &o->ctx);
		if (err)
			return err;
	}
	o->serial = __atomic_add_fetch(&serials, 1, __ATOMIC_RELAXED);
	o->streams = calloc(HM_MAX_STREAMS, sizeof(*o->streams));
	if (o->streams)
		o->streams[0] = hm_stream_new(o);
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

/* What fails once is tried once more: there is no later. */
static void free_event(struct hm_order *o, CUevent event)
{
	const struct hm_driver *d = &o->hm->driver;

	if (d->cuEventDestroy(event))
		d->cuEventDestroy(event);
}

static void free_events(struct hm_order *o, struct hm_stream *s)
{
	unsigned int i;

	for (i = 0; i < s->nr; i++)
		free_event(o, s->points[(s->first + i) % s->room].event);
	for (i = 0; i < s->nr_spare; i++)
		free_event(o, s->spare[i]);
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

/*
 * What reaches @s from the calling thread, until leave(). Handles that are not
 * special mean the same whatever context is current.
 */
static int enter(struct hm_order *o, const struct hm_stream *s,
		 CUstream *here, CUcontext *before)
{
	CUresult res = CUDA_SUCCESS;

	*here = hm_stream_handle(s);
	*before = s->ctx;
	if (hm_stream_special(s->handle))
		res = hm_current_enter(&o->hm->driver, s->ctx, before);
	return res ? hm_order_error(o, "cuCtxSetCurrent", res) : 0;
}

static void leave(struct hm_order *o, const struct hm_stream *s,
		  CUcontext before)
{
	hm_current_leave(&o->hm->driver, s->ctx, before);
}

/*
 * Whether an event may be recorded or waited for. A handle that the driver
 * does not know any more was destroyed behind our back.
 */
static int check_capture(struct hm_order *o, struct hm_stream *s,
			 CUstream here)
{
	CUresult res;
	int err;

	o->calls++;
	err = hm_stream_check(o->hm, here, &res);
	if (res && !err && hm_stream_special(here))
		return hm_order_error(o, "cuStreamIsCapturing", res);
	if (res && !err) {
		s->retired = true;
		s->lost = true;
		return hm_error(-EAGAIN, "stream %p was destroyed without hetmem_stream_retire()",
				s->handle);
	}
	return err;
}

static int get_event(struct hm_order *o, struct hm_stream *s, CUevent *event)
{
	CUcontext before;
	CUresult res;

	if (s->nr_spare) {
		*event = s->spare[--s->nr_spare];
		return 0;
	}
	res = hm_current_enter(&o->hm->driver, s->ctx, &before);
	if (res)
		return hm_order_error(o, "cuCtxSetCurrent", res);
	o->calls++;
	res = o->hm->driver.cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
	leave(o, s, before);
	return res ? hm_order_error(o, "cuEventCreate", res) : 0;
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

static int record(struct hm_order *o, struct hm_stream *s, CUstream here)
{
	uint64_t pos = hm_stream_pos(s);
	CUevent event;
	CUresult res;
	int err;

	err = check_capture(o, s, here);
	if (!err)
		err = make_room(s);
	if (!err)
		err = get_event(o, s, &event);
	if (err)
		return err;
	o->calls++;
	res = o->hm->driver.cuEventRecord(event, here);
	if (res) {
		s->spare[s->nr_spare++] = event;
		return hm_order_error(o, "cuEventRecord", res);
	}
	s->points[(s->first + s->nr++) % s->room] =
		(struct hm_point){ event, pos };
	s->recorded = pos;
	return 0;
}

int hm_stream_record(struct hm_order *o, struct hm_stream *s)
{
	uint64_t pos = hm_stream_pos(s);
	CUcontext before;
	CUstream here;
	int err;

	if (s->recorded >= pos || s->done >= pos)
		return 0;
	if (s->lost)
		return hm_error(-EAGAIN, "a stream was destroyed without hetmem_stream_retire()");
	err = enter(o, s, &here, &before);
	if (!err) {
		err = record(o, s, here);
		leave(o, s, before);
	}
	return err;
}

static void drop_first(struct hm_stream *s)
{
	struct hm_point *p = &s->points[s->first];

	s->done = p->pos;
	s->spare[s->nr_spare++] = p->event;
	s->first = (s->first + 1) % s->room;
	s->nr--;
}

static bool is_complete(struct hm_order *o, const struct hm_stream *s,
			unsigned int i)
{
	o->calls++;
	return !o->hm->driver.cuEventQuery(
				s->points[(s->first + i) % s->room].event);
}

bool hm_stream_poll(struct hm_order *o, struct hm_stream *s)
{
	uint64_t before = s->done;
	CUstreamCaptureMode mode;

	if (!s->nr)
		return false;
	/* Asking is illegal while anybody captures, of this event as of any. */
	mode = hm_capture_relaxed(o->hm);
	/* Most often all is done: one question then. */
	if (is_complete(o, s, s->nr - 1)) {
		while (s->nr)
			drop_first(s);
	} else {
		while (s->nr > 1 && is_complete(o, s, 0))
			drop_first(s);
	}
	hm_capture_mode(o->hm, mode);
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

/* @of has been recorded at @pos or later. */
static int wait_for(struct hm_order *o, struct hm_stream *s, CUstream here,
		    struct hm_stream *of, uint64_t pos)
{
	struct hm_point *p = NULL;
	unsigned int i;
	CUresult res;
	int err;

	err = check_capture(o, s, here);
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
	res = o->hm->driver.cuStreamWaitEvent(here, p->event, 0);
	if (res)
		return hm_order_error(o, "cuStreamWaitEvent", res);
	return remember_wait(s, of, p->pos);
}

int hm_stream_wait(struct hm_order *o, struct hm_stream *s,
		   struct hm_stream *of, uint64_t pos)
{
	CUcontext before;
	CUstream here;
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
	err = enter(o, s, &here, &before);
	if (!err) {
		err = wait_for(o, s, here, of, pos);
		leave(o, s, before);
	}
	return err;
}

int hm_stream_sync_lost(struct hm_order *o, struct hm_stream *s)
{
	CUcontext before;
	CUresult res;

	res = hm_current_enter(&o->hm->driver, s->ctx, &before);
	if (!res) {
		o->calls++;
		res = o->hm->driver.cuCtxSynchronize();
		leave(o, s, before);
	}
	if (res)
		return hm_order_error(o, "cuCtxSynchronize", res);
	while (s->nr)
		drop_first(s);
	s->done = hm_stream_pos(s);
	s->synced = true;
	return 0;
}

int hm_stream_sync(struct hm_order *o, struct hm_stream *s, uint64_t pos,
		   uint64_t deadline)
{
	const struct timespec nap = { .tv_nsec = 20000 };
	uint64_t start = hm_now();
	CUstreamCaptureMode mode;
	CUresult res;
	int err = 0;

	if (s->done >= pos)
		return 0;
	if (s->recorded < pos && !s->lost) {
		err = hm_stream_record(o, s);
		if (err && !s->lost)
			return err;
	}
	if (s->lost)
		err = hm_stream_sync_lost(o, s);
	while (!err && s->done < pos) {
		if (deadline == UINT64_MAX) {
			o->calls++;
			mode = hm_capture_relaxed(o->hm);
			res = o->hm->driver.cuEventSynchronize(
				s->points[s->first].event);
			hm_capture_mode(o->hm, mode);
			if (res)
				err = hm_order_error(o, "cuEventSynchronize",
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

void hm_stream_recycle(struct hm_order *o, struct hm_stream *s)
{
	free_events(o, s);
	if (s->waited)
		memset(s->waited, 0, s->nr_waited * sizeof(*s->waited));
	s->done = hm_stream_pos(s);
	s->recorded = s->done;
	__atomic_store_n(&s->id, 0, __ATOMIC_RELEASE);
}
