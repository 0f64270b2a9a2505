// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * fixed(R,size=,count=,comm=): bounce buffers. All are made at once, of one
 * block of R, and there are never more: what they are registered with is
 * registered once. With comm=on R is told to keep the block where it is.
 *
 * A free records an event on each stream that used the buffer, and whoever
 * gets it next waits for those: a stream by cuStreamWaitEvent(), the host by
 * waiting itself, for a buffer that is done if there is one. Streams are only
 * ever named by handles that live: the caller frees before it destroys one, or
 * retires it, which records the events early.
 *
 * A captured stream cannot wait for what is outside of its graph, and gets a
 * buffer that is done, or -EBUSY. In a forked child there is no driver and no
 * work goes on in its copy of host memory: events are nothing to it.
 *
 * One lock, that of @blocks, for all of it, held over the driver's calls too:
 * there are few buffers, and each is large.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "driver/check.h"
#include "resource/adaptor.h"
#include "resource/region_use.h"

#define USES	16

/* A stream, as that thread calls it: see hm_stream_here(). */
struct named {
	hetmem_stream stream;
	uint64_t thread;
};

/**
 * struct buffer - one of them
 * @next: in the list of those that are free, oldest first
 * @size: as it was asked for, 0: free
 * @stream: it was allocated on, HETMEM_STREAM_HOST once that is retired
 * @uses: other streams that were recorded
 * @events: recorded behind all uses that are over
 * @nr_events: of them that count; @nr_made: that there are
 *
 * Uses become events, of which one may be of the allocation, and two more come
 * of its stream and the one it is freed on: there are places for all of them.
 */
struct buffer {
	struct buffer *next;
	size_t size;
	struct named stream;
	unsigned int nr_uses;
	unsigned int nr_events;
	unsigned int nr_made;
	struct named uses[USES];
	CUevent events[2 * USES + 2];
};

struct fixed {
	struct hetmem_resource resource;
	struct hm_blocks *blocks;	/* for its lock */
	unsigned char *slab;
	size_t size;
	unsigned int count;
	struct buffer *buffers;
	struct buffer *first;
	struct buffer **last;
	struct hetmem_resource_stats stats;
};

static unsigned char *address(const struct fixed *f, const struct buffer *b)
{
	return f->slab + (b - f->buffers) * f->size;
}

static const struct hm_driver *driver(const struct fixed *f)
{
	return &f->resource.hm->driver;
}

/* For any of the driver's calls; host memory is used by device 0 if by any. */
static int enter(struct fixed *f, struct hm_context *saved)
{
	int device = f->resource.device < 0 ? 0 : f->resource.device;
	int err = hm_context_enter(f->resource.hm, device, saved);

	if (!err)
		hm_context_relax(f->resource.hm, saved);
	return err;
}

static bool is_forked(const struct fixed *f)
{
	return f->resource.hm->generation != hm_generation();
}

static hetmem_stream here(struct named n)
{
	return hm_stream_here(n.stream, n.thread);
}

/* Is it what the calling thread calls @stream? */
static bool is_named(struct named n, hetmem_stream stream)
{
	return n.stream == stream && here(n) == stream;
}

/* Adds an event behind what was given to @stream. */
static int record(struct fixed *f, struct buffer *b, hetmem_stream stream)
{
	const struct hm_driver *d = driver(f);
	CUresult res;

	if (stream == HETMEM_STREAM_HOST || is_forked(f))
		return 0;
	if (hm_capture_active(f->resource.hm, stream))
		return hm_error(-EBUSY, "fixed: stream %p is being captured",
				stream);
	if (b->nr_events == b->nr_made) {
		res = d->cuEventCreate(&b->events[b->nr_made],
				       CU_EVENT_DISABLE_TIMING);
		if (res)
			return hm_driver_error(d, "cuEventCreate", res);
		b->nr_made++;
	}
	res = d->cuEventRecord(b->events[b->nr_events], stream);
	if (res)
		return hm_driver_error(d, "cuEventRecord", res);
	b->nr_events++;
	return 0;
}

/* The same of a buffer that is freed. */
static int record_free(struct fixed *f, struct buffer *b, hetmem_stream stream)
{
	int err = record(f, b, stream);

	if (!err)
		hm_check_free(f->resource.hm, address(f, b), f->size, stream);
	return err;
}

/* All that was given to the streams that used it, but @stream's own. */
static int record_uses(struct fixed *f, struct buffer *b, hetmem_stream stream)
{
	unsigned int i;
	int err = 0;

	if (stream == HETMEM_STREAM_UNKNOWN)
		stream = here(b->stream);
	for (i = 0; !err && i < b->nr_uses; i++)
		if (!is_named(b->uses[i], stream))
			err = record_free(f, b, here(b->uses[i]));
	return err ? err : record_free(f, b, stream);
}

static bool is_over(const struct fixed *f, CUevent e)
{
	return is_forked(f) || !driver(f)->cuEventQuery(e);
}

static bool is_done(const struct fixed *f, const struct buffer *b)
{
	unsigned int i;

	for (i = 0; i < b->nr_events; i++)
		if (!is_over(f, b->events[i]))
			return false;
	return true;
}

/* Makes @stream, or the calling thread, wait for the buffer's events. */
static int order_behind(struct fixed *f, struct buffer *b,
			hetmem_stream stream)
{
	const struct hm_driver *d = driver(f);
	bool host = stream == HETMEM_STREAM_HOST;
	CUresult res = CUDA_SUCCESS;
	unsigned int i;

	for (i = 0; !is_forked(f) && !res && i < b->nr_events; i++)
		res = host ? d->cuEventSynchronize(b->events[i]) :
			d->cuStreamWaitEvent(stream, b->events[i], 0);
	return res ? hm_driver_error(d, host ? "cuEventSynchronize" :
				     "cuStreamWaitEvent", res) : 0;
}

/* The oldest, or the oldest that is done. With the lock, in the context. */
static int take(struct fixed *f, size_t size, hetmem_stream stream,
		void **ptr)
{
	bool host = stream == HETMEM_STREAM_HOST;
	bool captured = !host && hm_capture_active(f->resource.hm, stream);
	struct buffer **p = &f->first, *b;
	unsigned int nr;
	int err = 0;

	while (*p && (host || captured) && !is_done(f, *p))
		p = &(*p)->next;
	if (!*p)
		p = &f->first;
	b = *p;
	if (!b)
		return hm_error(-ENOMEM, "fixed: all %u buffers are allocated",
				f->count);
	if (!captured)
		err = order_behind(f, b, stream);
	else if (!is_done(f, b))
		err = hm_error(-EBUSY, "fixed: stream %p is being captured, and no free buffer is done: its graph cannot wait for what is outside of it",
			       stream);
	if (err)
		return err;
	nr = b->nr_events;
	b->nr_events = 0;
	/* Whoever frees it elsewhere may not be behind what was waited for. */
	if (nr && !captured)
		err = record(f, b, stream);
	if (err) {
		b->nr_events = nr;
		return err;
	}
	*p = b->next;
	if (!b->next)
		f->last = p;
	b->size = size;
	b->stream = (struct named){ stream, hm_thread() };
	b->nr_uses = 0;
	*ptr = address(f, b);
	hm_check_alloc(f->resource.hm, *ptr, f->size, stream);
	return 0;
}

/* What cannot be recorded at the end shall not begin. */
static int check_stream(struct fixed *f, hetmem_stream stream)
{
	int device = f->resource.device, err;

	if (stream == HETMEM_STREAM_HOST)
		return 0;
	err = hm_check_owner(f->resource.hm);
	return err ? err : hm_stream_of_device(f->resource.hm,
					       device < 0 ? 0 : device, stream);
}

/* Before the lock; nothing, where the driver has nothing to do with it. */
static int begin(struct fixed *f, hetmem_stream stream,
		 struct hm_context *saved)
{
	int err;

	*saved = (struct hm_context){ 0 };
	if (f->resource.device < 0 &&
	    (stream == HETMEM_STREAM_HOST || is_forked(f)))
		return 0;
	err = hm_check_owner(f->resource.hm);
	if (!err)
		err = check_stream(f, stream);
	return err ? err : enter(f, saved);
}

static int fixed_alloc(struct hetmem_resource *self, size_t size,
		       size_t align, hetmem_stream stream, void **ptr)
{
	struct fixed *f = (struct fixed *)self;
	struct hm_context saved;
	int err = begin(f, stream, &saved);

	if (err)
		return err;
	hm_blocks_lock(f->blocks);
	if (size > f->size)
		err = hm_error(-ENOMEM, "fixed: %zu bytes, the buffers have %zu",
			       size, f->size);
	else if (align > HETMEM_ALIGNMENT && f->size % align)
		err = hm_error(-ENOMEM, "fixed: alignment %zu, the buffers have %zu bytes each",
			       align, f->size);
	else
		err = take(f, size, stream, ptr);
	if (err) {
		f->stats.failed++;
	} else {
		f->stats.allocs++;
		f->stats.live++;
		f->stats.requested += size;
		if (f->stats.requested > f->stats.requested_peak)
			f->stats.requested_peak = f->stats.requested;
	}
	hm_blocks_unlock(f->blocks);
	hm_context_leave(self->hm, &saved);
	return err;
}

/* The live buffer that @ptr is in, or NULL. */
static struct buffer *find(const struct fixed *f, const void *ptr)
{
	size_t offset = (uintptr_t)ptr - (uintptr_t)f->slab;
	struct buffer *b;

	if ((uintptr_t)ptr < (uintptr_t)f->slab ||
	    offset >= f->size * f->count)
		return NULL;
	b = &f->buffers[offset / f->size];
	return b->size ? b : NULL;
}

static int put(struct fixed *f, struct buffer *b, size_t size,
	       hetmem_stream stream)
{
	unsigned int before;
	int err;

	if (size && size != b->size)
		return hm_error(-EINVAL, "free: %p has %zu bytes, not %zu",
				address(f, b), b->size, size);
	before = b->nr_events;
	err = record_uses(f, b, stream);
	if (err) {
		b->nr_events = before;
		return err;
	}
	f->stats.frees++;
	f->stats.live--;
	f->stats.requested -= b->size;
	b->size = 0;
	b->next = NULL;
	*f->last = b;
	f->last = &b->next;
	return 0;
}

static int fixed_free(struct hetmem_resource *self, void *ptr, size_t size,
		      hetmem_stream stream)
{
	struct fixed *f = (struct fixed *)self;
	struct hm_context saved;
	struct buffer *b;
	int err = begin(f, stream, &saved);

	if (err)
		return err;
	hm_blocks_lock(f->blocks);
	b = find(f, ptr);
	if (!b || address(f, b) != ptr)
		err = hm_error(-EINVAL, "free: %p is not allocated from this fixed",
			       ptr);
	else
		err = put(f, b, size, stream);
	hm_blocks_unlock(f->blocks);
	hm_context_leave(self->hm, &saved);
	return err;
}

static int fixed_owns(struct fixed *f, struct hm_ctl_owns *owns)
{
	struct buffer *b = find(f, owns->ptr);

	if (!b)
		return -ENOENT;
	owns->base = address(f, b);
	owns->size = f->size;
	owns->stream = here(b->stream);
	return 0;
}

/* Events that are known to be over, when their places are needed. */
static void drop_done(struct fixed *f, struct buffer *b)
{
	CUstreamCaptureMode mode = hm_capture_relaxed(f->resource.hm);
	unsigned int i;
	CUevent e;

	for (i = b->nr_events; i-- > 0;) {
		e = b->events[i];
		if (!is_over(f, e))
			continue;
		b->events[i] = b->events[--b->nr_events];
		b->events[b->nr_events] = e;
	}
	hm_capture_mode(f->resource.hm, mode);
}

static int fixed_record(struct fixed *f, const struct hm_ctl_stream *use)
{
	struct buffer *b = find(f, use->ptr);
	unsigned int i;

	if (!b)
		return hm_error(-EINVAL, "record_stream: %p is not allocated from this fixed",
				use->ptr);
	if (is_named(b->stream, use->stream))
		return 0;
	for (i = 0; i < b->nr_uses; i++)
		if (is_named(b->uses[i], use->stream))
			return 0;
	if (b->nr_uses + b->nr_events >= 2 * USES)
		drop_done(f, b);
	if (b->nr_uses == USES || b->nr_uses + b->nr_events >= 2 * USES)
		return hm_error(-ENOSPC, "record_stream: %u streams are recorded, and %u that were retired are not done",
				b->nr_uses, b->nr_events);
	b->uses[b->nr_uses++] = (struct named){ use->stream, hm_thread() };
	return 0;
}

/* What runs on @stream is behind an event from now on. In the context. */
static int retire_buffer(struct fixed *f, struct buffer *b,
			 hetmem_stream stream)
{
	unsigned int i;
	int err = 0;

	if (is_named(b->stream, stream)) {
		err = record(f, b, stream);
		if (!err)
			b->stream.stream = HETMEM_STREAM_HOST;
	}
	for (i = 0; !err && i < b->nr_uses; i++) {
		if (!is_named(b->uses[i], stream))
			continue;
		err = record(f, b, stream);
		if (!err)
			b->uses[i] = b->uses[--b->nr_uses];
		break;
	}
	return err;
}

static int fixed_stats(struct fixed *f, struct hetmem_resource_stats *stats)
{
	int err = hm_ctl_upstream(&f->resource, HM_CTL_STATS, stats);

	if (err)
		return err;
	stats->live = f->stats.live;
	stats->requested = f->stats.requested;
	stats->requested_peak = f->stats.requested_peak;
	stats->allocs = f->stats.allocs;
	stats->frees = f->stats.frees;
	stats->failed = f->stats.failed;
	stats->metadata += sizeof(*f) + f->count * sizeof(*f->buffers) +
		hm_blocks_bytes(f->blocks);
	return 0;
}

static int retire(struct fixed *f, const struct hm_ctl_stream *arg)
{
	struct hm_context saved;
	int err = hm_check_owner(f->resource.hm), below;
	unsigned int i;

	if (!err)
		err = enter(f, &saved);
	if (err)
		return err;
	hm_blocks_lock(f->blocks);
	for (i = 0; !err && i < f->count; i++)
		if (f->buffers[i].size)
			err = retire_buffer(f, &f->buffers[i], arg->stream);
	hm_blocks_unlock(f->blocks);
	hm_context_leave(f->resource.hm, &saved);
	below = hm_ctl_upstream(&f->resource, HM_CTL_RETIRE, (void *)arg);
	return err || below == -EOPNOTSUPP ? err : below;
}

static int fixed_ctl(struct hetmem_resource *self, enum hm_ctl op, void *arg)
{
	struct fixed *f = (struct fixed *)self;
	int err;

	switch (op) {
	case HM_CTL_RETIRE:
		return retire(f, arg);
	case HM_CTL_STATS:
	case HM_CTL_OWNS:
	case HM_CTL_RECORD:
		err = op != HM_CTL_RECORD ? 0 :
			check_stream(f, ((struct hm_ctl_stream *)arg)->stream);
		if (err)
			return err;
		hm_blocks_lock(f->blocks);
		err = op == HM_CTL_STATS ? fixed_stats(f, arg) :
		      op == HM_CTL_OWNS ? fixed_owns(f, arg) :
		      fixed_record(f, arg);
		hm_blocks_unlock(f->blocks);
		return err;
	case HM_CTL_GROW:		/* its buffers are of one size */
	case HM_CTL_RESERVE:
	case HM_CTL_EXPORT:		/* and are parts of handles */
	case HM_CTL_CAPTURE_BEGIN:	/* there are too few to set aside */
	case HM_CTL_CAPTURE_END:
	case HM_CTL_CAPTURE_RELEASE:
		return -EOPNOTSUPP;
	default:
		return hm_ctl_upstream(self, op, arg);
	}
}

static void fixed_destroy(struct hetmem_resource *self)
{
	struct fixed *f = (struct fixed *)self;
	struct hetmem_resource *up = self->upstream;
	const struct hm_driver *d = driver(f);
	struct hm_context saved;
	unsigned int i;

	if (!is_forked(f) && self->hm->nr_devices &&
	    !enter(f, &saved)) {
		/* Live ones may be in use on any stream. */
		d->cuCtxSynchronize();
		for (i = 0; i < f->count; i++)
			while (f->buffers[i].nr_made)
				d->cuEventDestroy(f->buffers[i].events[
						--f->buffers[i].nr_made]);
		hm_context_leave(self->hm, &saved);
	}
	up->ops->free(up, f->slab, f->size * f->count, HETMEM_STREAM_HOST);
	for (i = 0; i < f->count && !f->buffers[i].size; i++)
		;
	if (i < f->count)
		hm_error(-EBUSY, "fixed: destroyed while %p of %zu bytes is allocated",
			 address(f, &f->buffers[i]), f->buffers[i].size);
	hm_blocks_free(f->blocks, NULL, NULL);
	free(f->buffers);
	free(f);
}

static const struct hm_resource_ops fixed_ops = {
	.name = "fixed",
	.alloc = fixed_alloc,
	.free = fixed_free,
	.ctl = fixed_ctl,
	.destroy = fixed_destroy,
};

static int make_slab(struct fixed *f, bool comm)
{
	struct hetmem_resource *up = f->resource.upstream;
	size_t align = f->size & -f->size, whole;
	struct hm_ctl_stream pin = { .stream = HETMEM_STREAM_HOST };
	void *ptr;
	int err;

	if (__builtin_mul_overflow(f->size, f->count, &whole))
		return hm_error(-EINVAL, "fixed: %u buffers of %zu bytes are too many",
				f->count, f->size);
	if (align > HM_HUGE_SIZE)
		align = HM_HUGE_SIZE;
	err = up->ops->alloc(up, whole, align, HETMEM_STREAM_HOST, &ptr);
	if (err)
		return err;
	f->slab = ptr;
	pin.ptr = ptr;
	if (comm) {
		err = up->ops->ctl(up, HM_CTL_PIN_COMM, &pin);
		if (err == -EOPNOTSUPP)
			hm_error(err, "fixed: comm=on: %s cannot keep a block where it is",
				 up->ops->name);
	}
	if (err)
		up->ops->free(up, ptr, whole, HETMEM_STREAM_HOST);
	else
		hm_check_free(f->resource.hm, ptr, whole, HETMEM_STREAM_HOST);
	return err;
}

int hm_fixed_create(struct hetmem_resource *upstream, uint64_t size,
		    unsigned int count, bool comm,
		    struct hetmem_resource **res)
{
	struct fixed *f;
	unsigned int i;
	int err = -ENOMEM;

	if (!size || !count || size > PTRDIFF_MAX - HETMEM_ALIGNMENT)
		return hm_error(-EINVAL, "fixed: size and count must not be 0");
	f = calloc(1, sizeof(*f));
	if (!f)
		return hm_error(-ENOMEM, "fixed: no memory");
	f->size = (size + HETMEM_ALIGNMENT - 1) & -(size_t)HETMEM_ALIGNMENT;
	f->count = count;
	hm_adaptor_init(&f->resource, &fixed_ops, upstream);
	f->buffers = calloc(count, sizeof(*f->buffers));
	f->blocks = hm_blocks_new();
	if (f->buffers && f->blocks)
		err = make_slab(f, comm);
	else
		hm_error(err, "fixed: no memory");
	if (err) {
		hm_blocks_free(f->blocks, NULL, NULL);
		free(f->buffers);
		free(f);
		return err;
	}
	f->last = &f->first;
	for (i = 0; i < count; i++) {
		*f->last = &f->buffers[i];
		f->last = &f->buffers[i].next;
	}
	*res = &f->resource;
	return 0;
}
