// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Lists of uses: see uses.h.
 *
 * A free records an event on every stream that used the memory, so that the
 * caller may destroy these streams. An event that cannot be recorded is not the
 * caller's error: polls try again, and a stream that is destroyed before is lost.
 */
#include <errno.h>
#include <stdlib.h>

#include "driver/check.h"
#include "stream/lookup.h"
#include "stream/uses.h"

/* Events of one stream, beyond which a free asks which are complete. */
#define MANY_POINTS	16

static bool is_forked(const struct hm_order *o)
{
	return o->hm->generation != hm_generation();
}

/* 1: @handle must not be asked for its id; an errno: nobody knows. */
static int is_captured(const struct hm_order *o, hetmem_stream handle)
{
	const struct hm_driver *d = &o->hm->driver;
	CUcontext before = o->ctx;
	int captured;

	if (o->ctx && hm_stream_special(handle) &&
	    hm_current_enter(d, o->ctx, &before))
		return 0;
	captured = hm_capture_ask(o->hm, handle);
	hm_current_leave(d, o->ctx, before);
	return captured;
}

/*
 * Slots of streams that ended. @lost: of those that were lost, too, at the price
 * of waiting for their contexts.
 */
static void reclaim(struct hm_order *o, bool lost)
{
	unsigned int i;

	pthread_mutex_lock(o->lock);
	for (i = 1; i < o->nr && lost; i++)
		if (o->streams[i]->id && o->streams[i]->lost)
			hm_stream_sync_lost(o, o->streams[i]);
	hm_order_poll(o);
	pthread_mutex_unlock(o->lock);
}

int hm_order_enter(struct hm_order *o, hetmem_stream handle, bool captured,
		   struct hm_stream **s)
{
	unsigned int tries;
	uint64_t epoch;
	int err = 0;

	if (handle == HETMEM_STREAM_UNKNOWN || is_forked(o)) {
		pthread_mutex_lock(o->lock);
		*s = handle == HETMEM_STREAM_UNKNOWN ? NULL : hm_stream_host(o);
		return 0;
	}
	if (handle != HETMEM_STREAM_HOST)
		err = is_captured(o, handle);
	if (err < 0)
		return err;
	if (err)
		return captured ? hm_stream_unnamed(o, handle, s) :
			hm_error(-EBUSY, "stream %p is being captured, or waits for one that is",
				 handle);
	for (tries = 0; ; tries++) {
		epoch = __atomic_load_n(&o->epoch, __ATOMIC_ACQUIRE);
		err = hm_stream_get(o, handle, s);
		if (err != -EMFILE || tries == 2)
			break;
		reclaim(o, tries);
	}
	return err ? err : hm_order_lock(o, handle, epoch, s);
}

/* The slot of a stream that ended and is complete. */
static void recycle_stream(struct hm_order *o, struct hm_stream *s)
{
	if (!s->retired || s->unnamed ||
	    s->done < hm_stream_pos(s) || (s->lost && !s->synced))
		return;
	/* As hm_stream_end() does, for one that nobody retired. */
	if (s->lost)
		hm_order_change(o);
	hm_stream_recycle(o, s);
}

/* Whether memory waits for @s, which no event covers. */
static bool lacks_event(const struct hm_stream *s)
{
	return !s->lost && s->recorded < hm_stream_pos(s) &&
	       s->done < hm_stream_pos(s);
}

int hm_order_poll(struct hm_order *o)
{
	unsigned int i;
	int err = 0;

	for (i = 1; i < o->nr && !is_forked(o); i++) {
		struct hm_stream *s = o->streams[i];

		if (!s->id)
			continue;
		if (hm_stream_query(o, s) < 0 ||
		    (lacks_event(s) && hm_stream_record(o, s) == -EIO))
			err = -EIO;
		recycle_stream(o, s);
	}
	return err;
}

int hm_order_wait(struct hm_order *o, unsigned int *naps)
{
	struct hm_stream *lost = NULL;
	unsigned int i;

	for (i = 1; i < o->nr; i++) {
		struct hm_stream *s = o->streams[i];

		if (s->nr || lacks_event(s))
			break;
		if (s->lost && s->done < hm_stream_pos(s))
			lost = s;
	}
	if (i == o->nr && lost)
		return hm_stream_sync_lost(o, lost);
	hm_order_nap(o, naps);
	return 0;
}

int hm_order_retire(struct hm_order *o, hetmem_stream handle)
{
	unsigned int naps = 0;
	struct hm_stream *s;
	int err;

	if (handle == HETMEM_STREAM_HOST || handle == HETMEM_STREAM_UNKNOWN ||
	    is_forked(o))
		return 0;
	pthread_mutex_lock(o->lock);
	for (;;) {
		err = hm_stream_end(o, handle, &s);
		if (err || !s || !s->calls)
			break;
		hm_order_nap(o, &naps);
	}
	if (!err && s) {
		/* Memory that is live has no position there yet. */
		hm_stream_step(s);
		err = hm_stream_retire(o, s);
	}
	pthread_mutex_unlock(o->lock);
	return err;
}

static int finish_device(struct hm_order *o, int device)
{
	const struct hm_driver *d = &o->hm->driver;
	struct hm_context saved;
	CUresult res;
	int err;

	err = hm_context_enter(o->hm, device, &saved);
	if (err)
		return err;
	res = d->cuCtxSynchronize();
	hm_context_leave(o->hm, &saved);
	if (res == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED)
		return hm_error(-EBUSY, "a stream is being captured");
	return res ? hm_driver_error(d, "cuCtxSynchronize", res) : 0;
}

int hm_order_finish(struct hm_order *o)
{
	int i, err = 0, one;

	for (i = 0; i < o->hm->nr_devices; i++) {
		one = o->hm->devices[i].ctx ? finish_device(o, i) : 0;
		err = err ? err : one;
	}
	return err;
}

static bool has_ended(const struct hm_use *use)
{
	return use->stream->serial != use->serial || !use->stream->id;
}

static void drop_complete(struct hm_uses *u)
{
	unsigned int i = 0;

	while (i < u->nr) {
		struct hm_use *use = &u->list[i];

		if (has_ended(use) ||
		    (!use->live && use->stream->done >= use->pos))
			*use = u->list[--u->nr];
		else
			i++;
	}
}

/* @more: uses that there shall be room for. */
static int make_room(struct hm_uses *u, unsigned int more)
{
	unsigned int room = 2 * (u->nr + more);
	struct hm_use *list;

	if (u->room >= u->nr + more)
		return 0;
	list = realloc(u->list, room * sizeof(*list));
	if (!list)
		return hm_error(-ENOMEM, "no host memory for uses on streams");
	u->list = list;
	u->room = room;
	return 0;
}

int hm_uses_begin(struct hm_uses *u, struct hm_stream *s)
{
	int err;

	drop_complete(u);
	/* One for the stream that it is freed on, so that a free needs none. */
	err = make_room(u, 1);
	if (err)
		return err;
	u->own = s;
	u->serial = s->serial;
	return 0;
}

struct hm_stream *hm_uses_own(const struct hm_order *o,
			      const struct hm_uses *u)
{
	return u->own->serial == u->serial && u->own->id ? u->own :
		hm_stream_host(o);
}

hetmem_stream hm_uses_handle(const struct hm_uses *u)
{
	const struct hm_stream *s = u->own;

	return s->serial == u->serial && s->id && !s->retired ?
		hm_stream_handle(s) : HETMEM_STREAM_UNKNOWN;
}

int hm_uses_add(struct hm_order *o, struct hm_uses *u, struct hm_stream *s)
{
	unsigned int i;
	int err;

	if (!s->index)
		return 0;
	for (i = 0; i < u->nr; i++)
		if (u->list[i].stream == s && u->list[i].serial == s->serial)
			break;
	if (i == u->nr) {
		if (u->nr + 2 > u->room) {
			hm_order_poll(o);
			drop_complete(u);
		}
		err = make_room(u, 2);
		if (err)
			return err;
		i = u->nr++;
		u->list[i] = (struct hm_use){ .stream = s, .serial = s->serial };
	}
	u->list[i].live = true;
	return 0;
}

/* -EBUSY: @s, which uses memory, is captured. May find out that it is lost. */
static int check_use(struct hm_order *o, struct hm_stream *s)
{
	if (s->unnamed ? is_captured(o, s->handle) :
	    s->index && !s->retired && hm_stream_check(o, s) == -EBUSY)
		return hm_error(-EBUSY, "stream %p, which uses the memory, is being captured",
				s->handle);
	return 0;
}

static void report(struct hm_order *o, const struct hm_stream *s, void *ptr,
		   size_t size)
{
	CUcontext before;
	CUstream here;

	if (!s->index || s->retired) {
		hm_check_free(o->hm, ptr, size, HETMEM_STREAM_HOST);
	} else if (!hm_stream_enter(o, s, &here, &before)) {
		hm_check_free(o->hm, ptr, size, here);
		hm_stream_leave(o, s, before);
	}
}

int hm_uses_end(struct hm_order *o, struct hm_uses *u, struct hm_stream *s,
		void *ptr, size_t size)
{
	unsigned int i;
	int err;

	if (is_forked(o)) {
		report(o, hm_stream_host(o), ptr, size);
		return 0;
	}
	drop_complete(u);
	err = check_use(o, s);
	for (i = 0; i < u->nr && !err; i++)
		if (u->list[i].live)
			err = check_use(o, u->list[i].stream);
	if (!err)
		err = hm_uses_add(o, u, s);
	if (err)
		return err;
	/* Before events are recorded: the owner may give @s more work. */
	if (!s->index || s->retired)
		report(o, s, ptr, size);
	for (i = 0; i < u->nr; i++) {
		struct hm_use *use = &u->list[i];

		if (!use->live)
			continue;
		if (!use->stream->retired)
			report(o, use->stream, ptr, size);
		use->pos = hm_stream_next_pos(use->stream);
		use->live = false;
	}
	return 0;
}

void hm_uses_record(struct hm_order *o, struct hm_uses *u)
{
	unsigned int i;

	for (i = 0; i < u->nr && !is_forked(o); i++) {
		struct hm_stream *s = u->list[i].stream;

		if (s->nr > MANY_POINTS)
			hm_stream_poll(o, s);
		if (!has_ended(&u->list[i]))
			hm_stream_record(o, s);
	}
}

bool hm_uses_done(struct hm_order *o, struct hm_uses *u)
{
	if (is_forked(o))
		return true;
	drop_complete(u);
	return !u->nr;
}

int hm_uses_order(struct hm_order *o, struct hm_uses *u, struct hm_stream *s)
{
	unsigned int i;
	int err = 0;

	for (i = 0; i < u->nr && !err && !is_forked(o); i++)
		err = hm_stream_wait(o, s, u->list[i].stream, u->list[i].pos);
	return err;
}

int hm_uses_sync(struct hm_order *o, struct hm_uses *u)
{
	unsigned int i;
	int err = 0;

	for (i = 0; i < u->nr && !err && !is_forked(o); i++)
		if (!has_ended(&u->list[i]))
			err = hm_stream_sync(o, u->list[i].stream,
					     u->list[i].pos);
	return err;
}
