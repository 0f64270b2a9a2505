// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Stream order.
 *
 * The clock of a stream is its number of frees. Memory that was freed at
 * position p may be reused on the same stream at once. Another stream may
 * reuse it after an event that was recorded at p or later, once that event is
 * complete or the other stream waits for it. An event is recorded when an
 * order is asked for, and sometimes earlier, so that it is complete by then.
 * With a single stream no event is ever recorded. The host waits in
 * hm_order_nap() and hm_stream_sync_lost() only, without the owner's lock.
 *
 * A stream is identified by its id, not by its handle: the driver reuses
 * handles. Each thread caches the ids of the handles it used last, and asks
 * the driver on every use whether they are still the same. It need not ask
 * where streams are retired before they are destroyed.
 *
 * During capture cuStreamGetId() fails and invalidates the capture. So from
 * hm_stream_captured() to the end of the capture a handle is trusted, and
 * before the first cuStreamGetId() of a handle cuStreamIsCapturing() is asked.
 *
 * Index 0 is the host: everything freed there is complete.
 *
 * Locking: the owner's lock protects everything except pos. The caller of
 * every function holds it, with one exception: hm_stream_get() takes it on a
 * miss. pos goes up under a lock of the owner's choice, and may be read at any
 * time.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/nvtx.h"
#include "stream/lookup.h"

/* One set, no entry: its shift leaves one bit of a hash, so that there are two. */
static const struct {
	struct hm_stream_keys head;
	struct hm_stream_key sets[2][HM_STREAM_WAYS];
} no_keys = { .head.shift = 63 };

#define NO_KEYS	((struct hm_stream_keys *)&no_keys.head)

__thread struct hm_stream_front hm_stream_front = {
	.last = no_keys.sets[0], .keys = NO_KEYS,
};

static pthread_once_t keys_once = PTHREAD_ONCE_INIT;
static void make_key(void);

void hm_order_change(struct hm_order *o)
{
	static uint64_t epochs;
	const uint64_t epoch = __atomic_add_fetch(&epochs, 1, __ATOMIC_RELAXED);

	/* Before the lock of a stream, which the caller takes next. */
	__atomic_exchange_n(&o->epoch, epoch, __ATOMIC_ACQ_REL);
}

static int order_error(const struct hm_order *o, const char *call,
		       CUresult res)
{
	return hm_driver_error(&o->hm->driver, call, res);
}

/* A new one, at the end of the table, in which it is not yet; NULL. */
static struct hm_stream *stream_new(struct hm_order *o)
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

/*
 * -EBUSY: @handle is captured, or waits for what is: neither its id may be
 * asked for nor an event be recorded. 0: it is not, or *@res is what the
 * driver said to that question.
 */
static int check_handle(const struct hetmem *hm, hetmem_stream handle,
			CUresult *res)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

	*res = CUDA_SUCCESS;
	if (hm->driver.cuStreamIsCapturing)
		*res = hm->driver.cuStreamIsCapturing(handle, &status);
	if (*res == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
		return hm_error(-EBUSY, "the legacy stream waits for one that is being captured");
	if (*res || status == CU_STREAM_CAPTURE_STATUS_NONE)
		return 0;
	return hm_error(-EBUSY, "stream %p is being captured: hetmem_capture_begin() tells the pool, before it begins",
			handle);
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
	hm_order_change(o);
	pthread_once(&keys_once, make_key);
	o->streams = calloc(HM_MAX_STREAMS, sizeof(*o->streams));
	o->by_id = calloc(2 << HM_STREAM_HASH, sizeof(*o->by_id));
	o->by_handle = o->by_id ? o->by_id + (1 << HM_STREAM_HASH) : NULL;
	if (o->streams)
		o->streams[0] = stream_new(o);
	o->nr = o->streams && o->streams[0];
	if (!o->nr || !o->by_id) {
		hm_order_destroy(o, false);
		return hm_error(-ENOMEM, "pool: no host memory");
	}
	o->streams[0]->handle = HETMEM_STREAM_HOST;
	o->streams[0]->id = UINT64_MAX;
	o->streams[0]->done = UINT64_MAX;
	o->lock = lock;
	return 0;
}

static void destroy_event(struct hm_order *o, CUevent event)
{
	hm_retry_once(o->hm->driver.cuEventDestroy(event));
}

static void destroy_events(struct hm_order *o, struct hm_stream *s)
{
	unsigned int i;

	for (i = 0; i < s->nr; i++)
		destroy_event(o, s->points[(s->first + i) % s->room].event);
	for (i = 0; i < s->nr_spare; i++)
		destroy_event(o, s->spare[i]);
	s->nr = 0;
	s->nr_spare = 0;
}

void hm_order_destroy(struct hm_order *o, bool forget)
{
	unsigned int i;

	for (i = 0; i < o->nr; i++) {
		struct hm_stream *s = o->streams[i];

		if (!forget)
			destroy_events(o, s);
		free(s->points);
		free(s->spare);
		free(s->waited);
		free(s);
	}
	free(o->streams);
	free(o->by_id);
	o->streams = NULL;
	o->by_id = NULL;
}

int hm_stream_enter(struct hm_order *o, const struct hm_stream *s,
		    CUstream *here, CUcontext *before)
{
	CUresult res = CUDA_SUCCESS;

	*here = hm_stream_handle(s);
	*before = s->ctx;
	if (hm_stream_special(s->handle))
		res = hm_current_enter(&o->hm->driver, s->ctx, before);
	return res ? order_error(o, "cuCtxSetCurrent", res) : 0;
}

void hm_stream_leave(struct hm_order *o, const struct hm_stream *s,
		     CUcontext before)
{
	hm_current_leave(&o->hm->driver, s->ctx, before);
}

/*
 * -EAGAIN: @s was destroyed without retire: its handle is none, or another
 * stream's. @res: the error of a call with @here, if there was one.
 */
static int check_identity(struct hm_order *o, struct hm_stream *s,
			  CUstream here, CUresult res)
{
	unsigned long long id = s->id;

	if (o->hm->driver.cuStreamGetId) {
		o->calls++;
		res = o->hm->driver.cuStreamGetId(here, &id);
		if (res)
			id = s->id;
	}
	if (id == s->id && res != CUDA_ERROR_INVALID_HANDLE &&
	    res != CUDA_ERROR_INVALID_CONTEXT &&
	    res != CUDA_ERROR_CONTEXT_IS_DESTROYED)
		return res ? order_error(o, "cuStreamGetId", res) : 0;
	s->retired = true;
	s->lost = true;
	return hm_error(-EAGAIN, "stream %p was destroyed without hetmem_stream_retire()",
			s->handle);
}

/*
 * Whether an event may be recorded or waited for. A call that fails is no
 * proof that the stream was destroyed: it is made again, and another one asked.
 */
static int check_capture(struct hm_order *o, struct hm_stream *s,
			 CUstream here)
{
	CUresult res;
	int err;

	o->calls++;
	err = check_handle(o->hm, here, &res);
	if (res && !err) {
		o->calls++;
		err = check_handle(o->hm, here, &res);
	}
	if (!res || err)
		return err;
	if (!hm_stream_special(here))
		err = check_identity(o, s, here, res);
	return err ? err : order_error(o, "cuStreamIsCapturing", res);
}

/* Whether @here, which a thread may have stopped using long ago, is @s still. */
static int check_stream(struct hm_order *o, struct hm_stream *s, CUstream here)
{
	int err = check_capture(o, s, here);

	return err || hm_stream_special(here) ? err :
		check_identity(o, s, here, CUDA_SUCCESS);
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
		return order_error(o, "cuCtxSetCurrent", res);
	o->calls++;
	res = o->hm->driver.cuEventCreate(event, CU_EVENT_DISABLE_TIMING);
	hm_stream_leave(o, s, before);
	return res ? order_error(o, "cuEventCreate", res) : 0;
}

/* Events of a stream that may be incomplete at a time. */
#define MAX_POINTS	1024

/* Drops every second point: the next one covers it. Keeps the last one. */
static void thin_points(struct hm_stream *s)
{
	unsigned int i, nr = 0;

	for (i = 0; i < s->nr; i++) {
		struct hm_point *p = &s->points[(s->first + i) % s->room];

		if ((s->nr - i) % 2)
			s->points[(s->first + nr++) % s->room] = *p;
		else
			s->spare[s->nr_spare++] = p->event;
	}
	s->nr = nr;
}

/* Room for one more point and for every event as a spare one. */
static int make_point_room(struct hm_stream *s)
{
	unsigned int room = s->room ? 2 * s->room : 8, i;
	struct hm_point *points;
	CUevent *spare;

	if (s->nr == MAX_POINTS)
		thin_points(s);
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

/*
 * Who destroys a stream without retire may do so after check_stream(), and its handle may
 * be another stream's before the next call. An id is never reused: if it is @s's after the
 * call, too, the call was about @s.
 */
static int check_again(struct hm_order *o, struct hm_stream *s, CUstream here)
{
	return hm_stream_special(here) || !o->hm->driver.cuStreamGetId ? 0 :
		check_identity(o, s, here, CUDA_SUCCESS);
}

/* After check_stream(). */
static int record_event(struct hm_order *o, struct hm_stream *s, CUstream here)
{
	uint64_t pos = hm_stream_pos(s);
	CUevent event;
	CUresult res;
	int err;

	err = make_point_room(s);
	if (!err)
		err = get_event(o, s, &event);
	if (err)
		return err;
	o->calls++;
	res = o->hm->driver.cuEventRecord(event, here);
	err = res ? order_error(o, "cuEventRecord", res) : check_again(o, s, here);
	if (err) {
		s->spare[s->nr_spare++] = event;
		return err;
	}
	s->points[(s->first + s->nr++) % s->room] =
		(struct hm_point){ event, pos };
	s->recorded = pos;
	return 0;
}

/* An event on @s, or only what would be in its way. */
static int check_and_record(struct hm_order *o, struct hm_stream *s, bool event)
{
	CUcontext before;
	CUstream here;
	int err;

	if (s->lost)
		return hm_error(-EAGAIN, "a stream was destroyed without hetmem_stream_retire()");
	err = hm_stream_enter(o, s, &here, &before);
	if (err)
		return err;
	err = check_stream(o, s, here);
	if (!err && event)
		err = record_event(o, s, here);
	hm_stream_leave(o, s, before);
	return err;
}

int hm_stream_check(struct hm_order *o, struct hm_stream *s)
{
	return check_and_record(o, s, false);
}

int hm_stream_record(struct hm_order *o, struct hm_stream *s)
{
	uint64_t pos = hm_stream_pos(s);

	return s->recorded >= pos || s->done >= pos ? 0 :
		check_and_record(o, s, true);
}

static void drop_first(struct hm_stream *s)
{
	struct hm_point *p = &s->points[s->first];

	s->done = p->pos;
	s->spare[s->nr_spare++] = p->event;
	s->first = (s->first + 1) % s->room;
	s->nr--;
}

static CUresult query_point(struct hm_order *o, const struct hm_stream *s,
			    unsigned int i)
{
	o->calls++;
	return o->hm->driver.cuEventQuery(
				s->points[(s->first + i) % s->room].event);
}

int hm_stream_query(struct hm_order *o, struct hm_stream *s)
{
	uint64_t before = s->done;
	CUstreamCaptureMode mode;
	CUresult res;

	if (!s->nr)
		return 0;
	/* Asking is illegal while anybody captures, of this event as of any. */
	mode = hm_capture_relaxed(o->hm);
	/* Most often all is done: one question then. */
	res = query_point(o, s, s->nr - 1);
	if (!res)
		while (s->nr)
			drop_first(s);
	else
		while (s->nr > 1 && !(res = query_point(o, s, 0)))
			drop_first(s);
	hm_capture_mode(o->hm, mode);
	if (s->done > before)
		return 1;
	return !res || res == CUDA_ERROR_NOT_READY ? 0 :
		order_error(o, "cuEventQuery", res);
}

bool hm_stream_poll(struct hm_order *o, struct hm_stream *s)
{
	return hm_stream_query(o, s) > 0;
}

/*
 * Whether @s is idle: then everything up to @pos, read before, is complete. An
 * event on the legacy stream is behind the work of another thread's own stream;
 * that the legacy stream is idle says nothing of it.
 */
static bool ask_idle(struct hm_order *o, struct hm_stream *s, CUstream here,
		     uint64_t pos)
{
	CUresult res = CUDA_ERROR_NOT_READY;
	CUstreamCaptureMode mode;

	if (check_stream(o, s, here))
		return false;
	if (here == s->handle) {
		o->calls++;
		mode = hm_capture_relaxed(o->hm);
		res = o->hm->driver.cuStreamQuery(here);
		hm_capture_mode(o->hm, mode);
	}
	if (res == CUDA_ERROR_NOT_READY)
		record_event(o, s, here);
	if (res || check_again(o, s, here))
		return false;
	while (s->nr)
		drop_first(s);
	s->done = pos;
	return true;
}

bool hm_stream_ask(struct hm_order *o, struct hm_stream *s)
{
	bool changed = hm_stream_poll(o, s);
	uint64_t pos = hm_stream_pos(s);
	CUcontext before;
	CUstream here;

	/* A retired stream has an event behind everything, or is lost. */
	if (s->done >= pos || s->recorded >= pos || s->retired)
		return changed;
	if (hm_stream_enter(o, s, &here, &before))
		return changed;
	changed |= ask_idle(o, s, here, pos);
	hm_stream_leave(o, s, before);
	return changed;
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

/* The earliest event of @s that covers @pos. The last one does. */
static const struct hm_point *first_point(const struct hm_stream *s, uint64_t pos)
{
	unsigned int from = 0, to = s->nr - 1, middle;

	while (from < to) {
		middle = (from + to) / 2;
		if (s->points[(s->first + middle) % s->room].pos >= pos)
			to = middle;
		else
			from = middle + 1;
	}
	return &s->points[(s->first + from) % s->room];
}

/* @of has been recorded at @pos or later. */
static int wait_for_event(struct hm_order *o, struct hm_stream *s,
			  CUstream here, struct hm_stream *of, uint64_t pos)
{
	const struct hm_point *p;
	CUresult res;
	int err;

	err = check_capture(o, s, here);
	if (err)
		return err;
	p = first_point(of, pos);
	err = remember_wait(s, of, 0);
	if (err)
		return err;
	o->calls++;
	res = o->hm->driver.cuStreamWaitEvent(here, p->event, 0);
	if (res)
		return order_error(o, "cuStreamWaitEvent", res);
	return remember_wait(s, of, p->pos);
}

uint64_t hm_stream_known(const struct hm_stream *s, const struct hm_stream *of)
{
	uint64_t pos = of->done;

	if (s == of || !of->index)
		return UINT64_MAX;
	if (of->index < s->nr_waited && s->waited[of->index] > pos)
		pos = s->waited[of->index];
	return pos;
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
	err = hm_stream_enter(o, s, &here, &before);
	if (!err) {
		err = wait_for_event(o, s, here, of, pos);
		hm_stream_leave(o, s, before);
	}
	return err;
}

void hm_order_nap(struct hm_order *o, unsigned int *naps)
{
	uint64_t start = hm_now();

	hm_nap(o->lock, naps);
	o->wait_ns += hm_now() - start;
}

/* Without the lock. */
static int sync_context(const struct hm_order *o, CUcontext ctx)
{
	const struct hm_driver *d = &o->hm->driver;
	CUcontext before;
	CUresult res;

	res = hm_current_enter(d, ctx, &before);
	if (res)
		return order_error(o, "cuCtxSetCurrent", res);
	res = d->cuCtxSynchronize();
	hm_current_leave(d, ctx, before);
	return res ? order_error(o, "cuCtxSynchronize", res) : 0;
}

int hm_stream_sync_lost(struct hm_order *o, struct hm_stream *s)
{
	const uint64_t serial = s->serial, pos = hm_stream_pos(s);
	uint64_t start = hm_now();
	CUcontext ctx = s->ctx;
	int err;

	/* Synchronizing a context makes its captures invalid. */
	if (o->nr_captured)
		return hm_error(-EBUSY, "a stream is being captured, and work of a stream that was destroyed cannot be waited for");
	o->calls++;
	pthread_mutex_unlock(o->lock);
	err = sync_context(o, ctx);
	pthread_mutex_lock(o->lock);
	o->wait_ns += hm_now() - start;
	if (err || s->serial != serial || !s->id)
		return err;
	while (s->nr)
		drop_first(s);
	if (s->done < pos)
		s->done = pos;
	s->synced = true;
	return 0;
}

int hm_stream_sync(struct hm_order *o, struct hm_stream *s, uint64_t pos)
{
	const uint64_t serial = s->serial;
	CUstreamCaptureMode mode;
	unsigned int naps = 0;
	CUresult res;
	int err = 0;
	HM_RANGE("wait", 0);

	if (s->done < pos && s->recorded < pos && !s->lost)
		err = hm_stream_record(o, s);
	while (s->serial == serial && s->id && s->done < pos) {
		if (s->lost)
			return hm_stream_sync_lost(o, s);
		if (err)
			return err;
		o->calls++;
		mode = hm_capture_relaxed(o->hm);
		res = o->hm->driver.cuEventQuery(s->points[s->first].event);
		hm_capture_mode(o->hm, mode);
		if (!res)
			drop_first(s);
		else if (res == CUDA_ERROR_NOT_READY)
			hm_order_nap(o, &naps);
		else
			return order_error(o, "cuEventQuery", res);
	}
	return 0;
}

/* Who is who: handles, ids, and what each thread remembers of them. */

/*
 * For a driver that tells no ids: NULL is the legacy stream, and each thread's
 * own is another one. 0 is none, and the last one is the host's.
 */
static uint64_t id_by_handle(hetmem_stream handle)
{
	if (handle == HETMEM_STREAM_PER_THREAD)
		return 1ULL << 63 | hm_thread();
	return (uintptr_t)(handle ? handle : HETMEM_STREAM_LEGACY);
}

/*
 * The context of @handle. Special handles are of the order's, else of the
 * thread's, which may have none: then of the device's. -EINVAL.
 */
static int context_of(struct hm_order *o, hetmem_stream handle, CUcontext *ctx)
{
	const struct hm_driver *d = &o->hm->driver;
	CUresult res = CUDA_SUCCESS;
	int err = 0;

	*ctx = o->ctx;
	if (!hm_stream_special(handle) && d->cuStreamGetCtx)
		res = d->cuStreamGetCtx(handle, ctx);
	else if (!*ctx)
		res = d->cuCtxGetCurrent(ctx);
	if (res)
		return hm_error(-EINVAL, "stream %p is none: %s", handle,
				hm_cuda_name(d, res));
	if (!*ctx)
		err = hm_device_context(o->hm, o->device < 0 ? 0 : o->device,
					ctx);
	if (!err && o->ctx && *ctx != o->ctx)
		err = hm_error(-EINVAL, "stream %p is of another context than the memory of device %d",
			       handle, o->device);
	return err;
}

/* Whose stream is it, and of which context? */
static int identify(struct hm_order *o, hetmem_stream handle, uint64_t *id,
		    CUcontext *ctx)
{
	const struct hm_driver *d = &o->hm->driver;
	unsigned long long asked = id_by_handle(handle);
	CUcontext before = NULL;
	CUresult res;
	int err;

	if (!o->hm->nr_devices)
		return hm_error(-EINVAL, "stream %p is none: there is no device",
				handle);
	err = context_of(o, handle, ctx);
	if (err)
		return err;
	if (hm_stream_special(handle)) {
		res = hm_current_enter(d, *ctx, &before);
		if (res)
			return order_error(o, "cuCtxSetCurrent", res);
	}
	err = check_handle(o->hm, handle, &res);
	if (!err && !res && d->cuStreamGetId)
		res = d->cuStreamGetId(handle, &asked);
	if (hm_stream_special(handle))
		hm_current_leave(d, *ctx, before);
	if (!err && res)
		err = hm_error(-EINVAL, "stream %p is none: %s", handle,
			       hm_cuda_name(d, res));
	*id = asked;
	return err;
}

/*
 * Streams in use by id and by handle, except unnamed ones. Each list has the streams of
 * one hash.
 */

static uint16_t *id_list(const struct hm_order *o, uint64_t id)
{
	return &o->by_id[id * 0x9e3779b97f4a7c15ULL >> (64 - HM_STREAM_HASH)];
}

static uint16_t *handle_list(const struct hm_order *o, hetmem_stream handle)
{
	return &o->by_handle[(uintptr_t)handle * 0x9e3779b97f4a7c15ULL >>
			     (64 - HM_STREAM_HASH)];
}

static void list_stream(struct hm_order *o, struct hm_stream *s)
{
	uint16_t *by_id = id_list(o, s->id), *by_handle = handle_list(o, s->handle);

	s->next_id = *by_id;
	*by_id = s->index;
	s->next_handle = *by_handle;
	*by_handle = s->index;
}

static void unlist_stream(struct hm_order *o, struct hm_stream *s)
{
	uint16_t *link;

	for (link = id_list(o, s->id); *link; link = &o->streams[*link]->next_id) {
		if (*link == s->index) {
			*link = s->next_id;
			break;
		}
	}
	for (link = handle_list(o, s->handle); *link; link = &o->streams[*link]->next_handle) {
		if (*link == s->index) {
			*link = s->next_handle;
			break;
		}
	}
}

void hm_stream_recycle(struct hm_order *o, struct hm_stream *s)
{
	destroy_events(o, s);
	if (s->waited)
		memset(s->waited, 0, s->nr_waited * sizeof(*s->waited));
	s->done = hm_stream_pos(s);
	s->recorded = s->done;
	if (!s->unnamed)
		unlist_stream(o, s);
	o->nr_unused++;
	__atomic_store_n(&s->id, 0, __ATOMIC_RELEASE);
}

/* With the lock. The handle of an unknown id is used again: its old streams were destroyed. */
static void lose_streams(struct hm_order *o, hetmem_stream handle)
{
	uint16_t *link = handle_list(o, handle);

	while (*link) {
		struct hm_stream *s = o->streams[*link];

		if (s->handle == handle && !s->retired && !hm_stream_special(handle)) {
			s->retired = true;
			s->lost = true;
		}
		/* Nobody looks for retired streams by handle. */
		if (s->retired)
			*link = s->next_handle;
		else
			link = &s->next_handle;
	}
}

/* With the lock. */
static struct hm_stream *find_by_id(struct hm_order *o, hetmem_stream handle, uint64_t id)
{
	unsigned int i;

	for (i = *id_list(o, id); i; i = o->streams[i]->next_id)
		if (o->streams[i]->id == id && !o->streams[i]->retired)
			return o->streams[i];
	lose_streams(o, handle);
	return NULL;
}

/* With the lock: what is captured, and known by its handle alone. */
static struct hm_stream *find_captured(const struct hm_order *o,
				       hetmem_stream handle)
{
	unsigned int i;

	for (i = 1; i < o->nr; i++) {
		struct hm_stream *s = o->streams[i];

		if (s->captured && s->handle == handle &&
		    hm_stream_here(handle, s->thread) == handle)
			return s;
	}
	return NULL;
}

void hm_stream_captured(struct hm_order *o, struct hm_stream *s,
			bool captured)
{
	s->captured = captured;
	__atomic_store_n(&o->nr_captured,
			 captured ? o->nr_captured + 1 : o->nr_captured - 1,
			 __ATOMIC_RELEASE);
	/* Nobody remembers its id, which is asked for with the handle. */
	hm_order_change(o);
}

/* With the lock: a slot that is not in use. -EMFILE, -ENOMEM. */
static int find_slot(struct hm_order *o, struct hm_stream **slot)
{
	unsigned int i;

	for (i = 1; o->nr_unused && i < o->nr; i++) {
		*slot = o->streams[i];
		if (!(*slot)->id) {
			o->nr_unused--;
			return 0;
		}
	}
	if (o->nr == HM_MAX_STREAMS)
		return hm_error(-EMFILE, "more than %d streams: hetmem_stream_retire() before cuStreamDestroy",
				HM_MAX_STREAMS - 1);
	*slot = stream_new(o);
	if (!*slot)
		return hm_error(-ENOMEM, "stream: no host memory");
	o->streams[o->nr] = *slot;
	__atomic_store_n(&o->nr, o->nr + 1, __ATOMIC_RELEASE);
	return 0;
}

/* With the lock. */
static int add_stream(struct hm_order *o, hetmem_stream handle, uint64_t id,
		      CUcontext ctx, bool unnamed, struct hm_stream **stream)
{
	struct hm_stream *s = NULL;
	int err = find_slot(o, &s);

	if (err)
		return err;
	s->handle = handle;
	s->thread = hm_thread();
	s->ctx = ctx;
	s->retired = unnamed;
	s->lost = unnamed;
	s->unnamed = unnamed;
	s->synced = false;
	s->serial = ++o->next_serial;
	__atomic_store_n(&s->id, id, __ATOMIC_RELEASE);
	if (!unnamed)
		list_stream(o, s);
	__atomic_store_n(&o->seen, o->seen + 1, __ATOMIC_RELAXED);
	*stream = s;
	return 0;
}

int hm_stream_unnamed(struct hm_order *o, hetmem_stream handle,
		      struct hm_stream **stream)
{
	unsigned int i;
	CUcontext ctx;
	int err = context_of(o, handle, &ctx);

	if (err)
		return err;
	pthread_mutex_lock(o->lock);
	for (i = 1; i < o->nr; i++) {
		*stream = o->streams[i];
		if ((*stream)->unnamed && (*stream)->handle == handle &&
		    (*stream)->ctx == ctx)
			return 0;
	}
	err = add_stream(o, handle, UINT64_MAX, ctx, true, stream);
	if (err)
		pthread_mutex_unlock(o->lock);
	return err;
}

/* Sets of a thread's first table, and of its largest, which has 320 KiB: bits. */
#define FIRST_SETS	4
#define MOST_SETS	11
/* A table grows when this part of its sets gave up an entry. */
#define EVICTED_SHARE	8
/*
 * Handles are often as far from one another as an allocator's chunks. The golden ratio puts
 * most of them into different sets, but not those of some distances (448 and 576 bytes): then
 * the largest table tries another factor.
 */
#define FIRST_FACTOR	0x9e3779b97f4a7c15ULL
#define NEXT_FACTOR	0xd1342543de82ef95ULL
#define MOST_FACTORS	16

static pthread_key_t keys_key;

static void set_keys(struct hm_stream_keys *keys)
{
	hm_stream_front = (struct hm_stream_front){ .last = keys->sets[0], .keys = keys };
}

/* At the end of a thread. Destructors of others may still free memory. */
static void forget_keys(void *keys)
{
	set_keys(NO_KEYS);
	free(keys);
}

static void hold_nothing(struct hm_fork *self)
{
	(void)self;
}

/* A forked child finds no stream of its parent's without asking whose the library is. */
static void forget_in_child(struct hm_fork *self, bool child)
{
	struct hm_stream_keys *keys = hm_stream_front.keys;

	(void)self;
	if (!child || keys == NO_KEYS || pthread_setspecific(keys_key, NULL))
		return;
	forget_keys(keys);
}

static void make_key(void)
{
	static struct hm_fork fork = {
		.level = HM_FORK_PUBLISH, .hold = hold_nothing, .let_go = forget_in_child,
	};

	pthread_key_create(&keys_key, forget_keys);
	hm_fork_add(&fork);
}

static void keep_key(struct hm_stream_keys *keys, const struct hm_stream_key *key)
{
	struct hm_stream_key *set = hm_stream_set_of(keys, key->order, key->handle);
	int i = 0;

	while (i < HM_STREAM_WAYS - 1 && set[i].order &&
	       (set[i].handle != key->handle || set[i].order != key->order))
		i++;
	if (set[i].order && (set[i].handle != key->handle || set[i].order != key->order))
		keys->evicted++;
	memmove(set + 1, set, i * sizeof(*set));
	set[0] = *key;
}

/*
 * A table of @bits with the entries of the thread's, in its place. With as many bits as
 * before it has another factor. It may fail.
 */
static void grow_keys(unsigned int bits)
{
	struct hm_stream_keys *old = hm_stream_front.keys, *keys;
	const size_t sets = (size_t)1 << bits;
	size_t i;

	keys = calloc(1, sizeof(*keys) + sets * sizeof(*keys->sets));
	if (!keys)
		return;
	keys->shift = 64 - bits;
	keys->factor = old == NO_KEYS ? FIRST_FACTOR : old->factor;
	keys->factors = old->factors;
	if (keys->shift == old->shift) {
		keys->factor *= NEXT_FACTOR;
		keys->factors++;
	}
	/* The last looked up comes last, and is first in its set then. */
	for (i = old == NO_KEYS ? 0 : (size_t)HM_STREAM_WAYS << (64 - old->shift); i--;) {
		const struct hm_stream_key *key =
			&old->sets[i / HM_STREAM_WAYS][i % HM_STREAM_WAYS];

		if (key->order)
			keep_key(keys, key);
	}
	keys->evicted = 0;
	if (pthread_setspecific(keys_key, keys)) {
		free(keys);
		return;
	}
	set_keys(keys);
	if (old != NO_KEYS)
		free(old);
}

static void remember(const struct hm_stream_key *key)
{
	struct hm_stream_keys *keys = hm_stream_front.keys;
	const unsigned int bits = 64 - keys->shift;

	if (keys == NO_KEYS)
		grow_keys(FIRST_SETS);
	else if (keys->evicted * EVICTED_SHARE >> bits &&
		 (bits < MOST_SETS || keys->factors < MOST_FACTORS))
		grow_keys(bits < MOST_SETS ? bits + 1 : bits);
	if (hm_stream_front.keys != NO_KEYS)
		keep_key(hm_stream_front.keys, key);
}

/* The host's stream is always the same. */
static CUresult get_host_id(CUstream stream, unsigned long long *id)
{
	(void)stream;
	*id = UINT64_MAX;
	return CUDA_SUCCESS;
}

static hm_get_id host_id = get_host_id;

int hm_stream_lookup(struct hm_order *o, hetmem_stream handle,
		     struct hm_stream **stream)
{
	struct hm_stream *s;
	uint64_t id = 0, epoch;
	CUcontext ctx;
	int err;

	/* Without a device nothing is under way: all streams are the host's. */
	epoch = __atomic_load_n(&o->epoch, __ATOMIC_ACQUIRE);
	if (handle == HETMEM_STREAM_HOST ||
	    (!o->hm->nr_devices && hm_stream_special(handle))) {
		*stream = o->streams[0];
		remember(&(struct hm_stream_key){
			.order = o->serial, .handle = handle, .id = UINT64_MAX,
			.get_id = o->retired ? NULL : &host_id,
			.epoch = epoch, .stream = *stream,
		});
		return 0;
	}
	if (__atomic_load_n(&o->nr_captured, __ATOMIC_ACQUIRE)) {
		pthread_mutex_lock(o->lock);
		s = find_captured(o, handle);
		pthread_mutex_unlock(o->lock);
		if (s) {
			*stream = s;
			return 0;
		}
	}
	err = identify(o, handle, &id, &ctx);
	if (err)
		return err;
	pthread_mutex_lock(o->lock);
	s = find_by_id(o, handle, id);
	if (!s)
		err = add_stream(o, handle, id, ctx, false, &s);
	pthread_mutex_unlock(o->lock);
	if (err)
		return err;
	*stream = s;
	/* What it means may change with the current context, unasked; or nobody can be asked. */
	if (o->retired ? !o->ctx && hm_stream_special(handle) : !o->hm->driver.cuStreamGetId)
		return 0;
	remember(&(struct hm_stream_key){
		.order = o->serial, .handle = handle, .id = id,
		.get_id = o->retired ? NULL : &o->hm->driver.cuStreamGetId,
		.epoch = epoch, .stream = s,
	});
	return 0;
}

int hm_order_lock(struct hm_order *o, hetmem_stream handle, uint64_t epoch,
		  struct hm_stream **stream)
{
	int err;

	hm_order_wait_lock(o);
	while (hm_unlikely(epoch != o->epoch)) {
		epoch = o->epoch;
		pthread_mutex_unlock(o->lock);
		err = hm_stream_get(o, handle, stream);
		if (err)
			return err;
		hm_order_wait_lock(o);
	}
	return 0;
}

int hm_stream_end(struct hm_order *o, hetmem_stream handle,
		  struct hm_stream **stream)
{
	uint64_t id;
	CUcontext ctx;
	int err;

	*stream = NULL;
	if (handle == HETMEM_STREAM_HOST)
		return hm_error(-EINVAL, "stream_retire: the host's stream stays");
	if (!o->hm->nr_devices && hm_stream_special(handle))
		return 0;
	err = identify(o, handle, &id, &ctx);
	if (err)
		return err;
	*stream = find_by_id(o, handle, id);
	if (*stream)
		hm_order_change(o);
	return 0;
}

int hm_stream_retire(struct hm_order *o, struct hm_stream *s)
{
	/* What was freed here, and what goes on using it, is before its end. */
	int err = hm_stream_record(o, s);

	if (!err)
		s->retired = true;
	return err;
}
