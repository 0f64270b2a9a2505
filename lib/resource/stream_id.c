// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Streams: who is who. stream.h tells how it works.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "resource/stream_impl.h"

struct hm_stream *hm_stream_new(struct hm_order *o)
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

int hm_stream_check(const struct hetmem *hm, hetmem_stream handle,
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

/* Whose stream is it, and of which context? */
static int identify(struct hm_order *o, hetmem_stream handle, uint64_t *id,
		    CUcontext *ctx)
{
	const struct hm_driver *d = &o->hm->driver;
	bool special = hm_stream_special(handle) && o->ctx;
	unsigned long long asked = id_by_handle(handle);
	CUcontext before = NULL;
	CUresult res;
	int err;

	*ctx = o->ctx;
	if (special) {
		res = hm_current_enter(d, o->ctx, &before);
		if (res)
			return hm_order_error(o, "cuCtxSetCurrent", res);
	}
	err = hm_stream_check(o->hm, handle, &res);
	if (!err && !res && d->cuStreamGetId)
		res = d->cuStreamGetId(handle, &asked);
	if (!err && !res && d->cuStreamGetCtx)
		res = d->cuStreamGetCtx(handle, ctx);
	else if (!err && !res && !*ctx)
		res = d->cuCtxGetCurrent(ctx);
	if (special)
		hm_current_leave(d, o->ctx, before);
	if (err)
		return err;
	if (res)
		return hm_error(-EINVAL, "stream %p is none: %s", handle,
				hm_cuda_name(d, res));
	/* A thread without a context, and a driver that cannot tell. */
	if (!*ctx && o->hm->nr_devices) {
		err = hm_device_context(o->hm, 0, ctx);
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
		    !hm_stream_special(handle)) {
			s->retired = true;
			s->lost = true;
		}
	}
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
	__atomic_add_fetch(&o->epoch, 1, __ATOMIC_RELEASE);
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
	s = hm_stream_new(o);
	if (!s) {
		hm_error(-ENOMEM, "stream: no host memory");
		return NULL;
	}
	o->streams[o->nr] = s;
	__atomic_store_n(&o->nr, o->nr + 1, __ATOMIC_RELEASE);
	return s;
}

/* For this thread; of the same set what was looked up longest ago goes. */
static void remember(const struct hm_order *o, const struct hm_stream_key *key)
{
	struct hm_stream_key *set = hm_stream_set(o, key->handle);
	int i = 0;

	while (i < HM_STREAM_WAYS - 1 && !hm_stream_is(&set[i], o, key->handle))
		i++;
	memmove(set + 1, set, i * sizeof(*set));
	set[0] = *key;
}

int hm_stream_lookup(struct hm_order *o, hetmem_stream handle,
		     struct hm_stream **stream)
{
	struct hm_stream *s;
	uint64_t id = 0, epoch;
	CUcontext ctx;
	int err;

	if (handle == HETMEM_STREAM_HOST) {
		*stream = o->streams[0];
		return 0;
	}
	epoch = __atomic_load_n(&o->epoch, __ATOMIC_ACQUIRE);
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
	s = find(o, handle, id);
	if (!s) {
		s = add(o);
		if (!s) {
			pthread_mutex_unlock(o->lock);
			return o->nr == HM_MAX_STREAMS ? -EMFILE : -ENOMEM;
		}
		s->handle = handle;
		s->thread = hm_thread();
		s->ctx = ctx;
		s->retired = false;
		s->lost = false;
		s->synced = false;
		s->serial = ++o->next_serial;
		__atomic_store_n(&s->id, id, __ATOMIC_RELEASE);
		__atomic_store_n(&o->seen, o->seen + 1, __ATOMIC_RELAXED);
	}
	pthread_mutex_unlock(o->lock);
	*stream = s;
	/* What it means may change with the current context, unasked. */
	if (o->retired && !o->ctx && hm_stream_special(handle))
		return 0;
	remember(o, &(struct hm_stream_key){
		.order = o->serial, .handle = handle, .id = id,
		.epoch = epoch, .stream = s,
	});
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
	err = identify(o, handle, &id, &ctx);
	if (err)
		return err;
	*stream = find(o, handle, id);
	if (*stream)
		__atomic_add_fetch(&o->epoch, 1, __ATOMIC_ACQ_REL);
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
