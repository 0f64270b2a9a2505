// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * fixed(R,size=,count=,comm=): bounce buffers. All are made at once, of one
 * block of R, and there are never more: what they are registered with is
 * registered once. With comm=on R is told to keep the block where it is.
 *
 * A stream that takes a buffer waits for the uses of it that were freed, by
 * cuStreamWaitEvent(). The host waits itself until some buffer is complete,
 * without the lock. A captured stream cannot wait for work outside of its graph:
 * it gets a complete buffer, or -EBUSY. The uses of a buffer stay listed until
 * they are complete, also while the next user has it: the stream that frees it
 * need not be ordered after them.
 *
 * Locking: f->lock, which fork() holds, protects everything, also the order of
 * the streams. Nobody waits with it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "driver/check.h"
#include "adaptor/adaptor.h"
#include "core/snapshot.h"
#include "stream/uses.h"

/**
 * struct buffer - one of them
 * @next: in the list of those that are free, oldest first
 * @size: as it was asked for, 0: free
 */
struct buffer {
	struct buffer *next;
	size_t size;
	struct hm_uses uses;
};

struct fixed {
	struct hetmem_resource resource;
	struct hm_lock lock;
	struct hm_order order;
	unsigned char *slab;
	size_t size;
	unsigned int count;
	struct buffer *buffers;
	struct buffer *first;
	struct buffer **last;
	struct hetmem_resource_stats stats;
	bool asleep;
};

static unsigned char *address(const struct fixed *f, const struct buffer *b)
{
	return f->slab + (b - f->buffers) * f->size;
}

/* A forked child has the buffers of host memory. */
static int fixed_check_owner(const struct fixed *f)
{
	return f->resource.device < 0 ? 0 : hm_check_owner(f->resource.hm);
}

/*
 * The link to the oldest free buffer that @s may have. The host waits for one,
 * without the lock, which frees take. Errors:
 * -ENOMEM: all are allocated;
 * -EBUSY: @s is captured, and no free buffer is complete;
 * -EIO.
 */
static int find_free(struct fixed *f, struct hm_stream *s,
		     struct buffer ***link)
{
	/* A stream of the device's waits itself, mostly. */
	const bool waits = s->index && !s->unnamed;
	bool poll = !waits;
	unsigned int naps = 0;
	int err, failed = 0;

	for (;;) {
		if (!f->first)
			return hm_error(-ENOMEM, "fixed: all %u buffers are allocated",
					f->count);
		if (poll)
			failed = hm_order_poll(&f->order);
		for (*link = &f->first; **link; *link = &(**link)->next) {
			struct hm_uses *uses = &(**link)->uses;

			if (hm_uses_done(&f->order, uses))
				return 0;
			err = waits ? hm_uses_order(&f->order, uses, s) :
				-EAGAIN;
			/* Nothing can be ordered after a lost stream. */
			if (err != -EAGAIN)
				return err;
		}
		if (failed)
			return failed;
		if (s->unnamed)
			return hm_error(-EBUSY, "fixed: the stream is being captured, and no free buffer is done: its graph cannot wait for what is outside of it");
		err = hm_order_wait(&f->order, &naps);
		if (err)
			return err;
		poll = true;
	}
}

/* With the lock. */
static int take(struct fixed *f, size_t size, size_t align,
		struct hm_stream *s, void **ptr)
{
	struct buffer **p = NULL, *b;
	int err;

	if (size > f->size)
		return hm_error(-ENOMEM, "fixed: %zu bytes, the buffers have %zu",
				size, f->size);
	if (align > HETMEM_ALIGNMENT && f->size % align)
		return hm_error(-ENOMEM, "fixed: alignment %zu, the buffers have %zu bytes each",
				align, f->size);
	err = find_free(f, s, &p);
	if (err)
		return err;
	b = *p;
	err = hm_uses_begin(&b->uses, s);
	if (err)
		return err;
	*p = b->next;
	if (!b->next)
		f->last = p;
	b->size = size;
	*ptr = address(f, b);
	return 0;
}

/*
 * A special handle is of the buffers' device. If the driver refuses its context, the check hears
 * of the allocation all the same: it would find the buffer free.
 */
static void tell_alloc(struct fixed *f, void *ptr, hetmem_stream stream)
{
	const struct hm_driver *d = &f->resource.hm->driver;
	CUcontext ctx = hm_stream_special(stream) ? f->order.ctx : NULL, before = ctx;

	if (!f->resource.hm->check)
		return;
	if (ctx && hm_current_enter(d, ctx, &before))
		before = ctx;
	hm_check_alloc(f->resource.hm, ptr, f->size, stream);
	hm_current_leave(d, ctx, before);
}

static int fixed_alloc(struct hetmem_resource *self, size_t size,
		       size_t align, hetmem_stream stream, void **ptr)
{
	struct fixed *f = (struct fixed *)self;
	CUstreamCaptureMode mode;
	struct hm_stream *s;
	int err = fixed_check_owner(f);

	if (err)
		return err;
	mode = hm_capture_relaxed(self->hm);
	err = hm_order_enter(&f->order, stream, true, &s);
	if (err)
		goto out;
	err = f->asleep ? hm_error(-EBUSY, "fixed: the pool below is asleep: hetmem_wake()") :
		take(f, size, align, s, ptr);
	if (err) {
		f->stats.failed++;
	} else {
		tell_alloc(f, *ptr, stream);
		f->stats.allocs++;
		f->stats.live++;
		f->stats.requested += size;
		if (f->stats.requested > f->stats.requested_peak)
			f->stats.requested_peak = f->stats.requested;
	}
	hm_unlock(&f->lock);
out:
	hm_capture_mode(self->hm, mode);
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

/* @s: NULL: the stream that it was allocated on. */
static int put(struct fixed *f, struct buffer *b, size_t *size,
	       struct hm_stream *s)
{
	int err;

	if (*size && *size != b->size)
		return hm_error(-EINVAL, "free: %p has %zu bytes, not %zu",
				address(f, b), b->size, *size);
	*size = b->size;
	if (!s)
		s = hm_uses_own(&f->order, &b->uses);
	err = hm_uses_end(&f->order, &b->uses, s, address(f, b), f->size);
	if (err)
		return err;
	hm_uses_record(&f->order, &b->uses);
	f->stats.frees++;
	f->stats.live--;
	f->stats.requested -= b->size;
	b->size = 0;
	b->next = NULL;
	*f->last = b;
	f->last = &b->next;
	return 0;
}

static int fixed_free(struct hetmem_resource *self, void *ptr, size_t *size,
		      hetmem_stream stream)
{
	struct fixed *f = (struct fixed *)self;
	CUstreamCaptureMode mode;
	struct hm_stream *s;
	struct buffer *b;
	int err = fixed_check_owner(f);

	if (err)
		return err;
	mode = hm_capture_relaxed(self->hm);
	err = hm_order_enter(&f->order, stream, false, &s);
	if (err)
		goto out;
	b = find(f, ptr);
	if (!b || address(f, b) != ptr)
		err = hm_error(-EINVAL, "free: %p is not allocated from this fixed",
			       ptr);
	else
		err = put(f, b, size, s);
	hm_unlock(&f->lock);
out:
	hm_capture_mode(self->hm, mode);
	return err;
}

static int fixed_owns(struct fixed *f, struct hm_ctl_owns *owns)
{
	struct buffer *b;

	hm_lock(&f->lock);
	b = find(f, owns->ptr);
	if (b) {
		owns->base = address(f, b);
		owns->size = f->size;
		owns->asked = b->size;
		owns->stream = hm_uses_handle(&b->uses);
	}
	hm_unlock(&f->lock);
	return b ? 0 : -ENOENT;
}

static int fixed_record(struct fixed *f, const struct hm_ctl_stream *use)
{
	struct hm_stream *s;
	struct buffer *b;
	int err = fixed_check_owner(f);

	if (!err)
		err = hm_order_enter(&f->order, use->stream, true, &s);
	if (err)
		return err;
	b = find(f, use->ptr);
	err = b ? hm_uses_add(&f->order, &b->uses, s) :
		hm_error(-EINVAL, "record_stream: %p is not allocated from this fixed",
			 use->ptr);
	hm_unlock(&f->lock);
	return err;
}

static int fixed_stats(struct fixed *f, struct hetmem_resource_stats *stats)
{
	int err = hm_ctl_upstream(&f->resource, HM_CTL_STATS, stats);

	if (err)
		return err;
	hm_lock(&f->lock);
	stats->live = f->stats.live;
	stats->requested = f->stats.requested;
	stats->requested_peak = f->stats.requested_peak;
	stats->allocs = f->stats.allocs;
	stats->frees = f->stats.frees;
	stats->failed = f->stats.failed;
	hm_unlock(&f->lock);
	stats->metadata += sizeof(*f) + f->count * sizeof(*f->buffers);
	return 0;
}

static int fixed_retire(struct fixed *f, const struct hm_ctl_stream *arg)
{
	int err = hm_check_owner(f->resource.hm), below;

	if (err)
		return err;
	err = hm_order_retire(&f->order, arg->stream);
	below = hm_ctl_upstream(&f->resource, HM_CTL_RETIRE, (void *)arg);
	return err || below == -EOPNOTSUPP ? err : below;
}

/* Its buffers have no memory while a pool below sleeps. */
static int sleep_or_wake(struct fixed *f, enum hm_ctl op, struct hm_ctl_sleep *arg)
{
	const unsigned int others = arg->asleep;
	int err;

	/* Before memory goes, and after it is there. */
	hm_lock(&f->lock);
	f->asleep |= op == HM_CTL_SLEEP;
	hm_unlock(&f->lock);
	err = hm_ctl_upstream(&f->resource, op, arg);
	hm_lock(&f->lock);
	f->asleep = arg->asleep > others;
	hm_unlock(&f->lock);
	return err;
}

static int fixed_ctl(struct hetmem_resource *self, enum hm_ctl op, void *arg)
{
	struct fixed *f = (struct fixed *)self;

	switch (op) {
	case HM_CTL_RETIRE:
		return fixed_retire(f, arg);
	case HM_CTL_STATS:
		return fixed_stats(f, arg);
	case HM_CTL_SLEEP:
	case HM_CTL_WAKE:
		return sleep_or_wake(f, op, arg);
	case HM_CTL_OWNS:
		return fixed_owns(f, arg);
	case HM_CTL_RECORD:
		return fixed_record(f, arg);
	case HM_CTL_ACCESS:		/* its buffers are of one size */
		return hm_adaptor_access(self, arg);
	case HM_CTL_ALLOC_WITH:
		return hm_alloc_placed(self, arg);
	case HM_CTL_GROW:		/* its buffers are of one size */
	case HM_CTL_SHRINK:
	case HM_CTL_EXPORT:		/* and are parts of handles */
	case HM_CTL_MOVE:
	case HM_CTL_CAPTURE_BEGIN:	/* there are too few to set aside */
	case HM_CTL_CAPTURE_END:
	case HM_CTL_CAPTURE_RELEASE:
	case HM_CTL_PRIVATE_RETAIN:
	case HM_CTL_PRIVATE_RELEASE:
	case HM_CTL_PRIVATE_TRIM:
	case HM_CTL_CHECKPOINT:
	case HM_CTL_RESTORE:
		return -EOPNOTSUPP;
	default:
		return hm_ctl_upstream(self, op, arg);
	}
}

/*
 * Waits for what uses the buffers. Of a live one the streams are not known, so that
 * contexts are synchronized, which is illegal while a stream is captured.
 */
static void wait_for_uses(struct fixed *f)
{
	bool unknown = f->stats.live;
	unsigned int i;

	hm_lock(&f->lock);
	for (i = 0; i < f->count && !unknown; i++)
		unknown = hm_uses_sync(&f->order, &f->buffers[i].uses);
	hm_unlock(&f->lock);
	if (unknown)
		hm_order_finish(&f->order);
}

/* Of one that could not be made, what there is. */
static void fixed_destroy(struct hetmem_resource *self)
{
	struct fixed *f = (struct fixed *)self;
	struct hetmem_resource *up = self->upstream;
	const bool forget = self->hm->generation != hm_generation();
	size_t whole = f->size * f->count;
	unsigned int i;

	if (f->slab && !forget)
		wait_for_uses(f);
	hm_order_destroy(&f->order, forget);
	if (f->slab)
		up->ops->free(up, f->slab, &whole, HETMEM_STREAM_HOST);
	if (f->stats.live) {
		for (i = 0; !f->buffers[i].size; i++)
			;
		hm_error(-EBUSY, "fixed: destroyed while %p of %zu bytes is allocated",
			 address(f, &f->buffers[i]), f->buffers[i].size);
	}
	hm_lock_destroy(&f->lock);
	for (i = 0; f->buffers && i < f->count; i++)
		free(f->buffers[i].uses.list);
	free(f->buffers);
	hm_resource_free(self);
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
	if (!err)
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
	f = hm_adaptor_new(sizeof(*f), &fixed_ops, upstream);
	if (!f)
		return -ENOMEM;
	f->size = (size + HETMEM_ALIGNMENT - 1) & -(size_t)HETMEM_ALIGNMENT;
	f->count = count;
	hm_lock_init(&f->lock, HM_FORK_ADAPTOR);
	f->buffers = calloc(count, sizeof(*f->buffers));
	if (f->buffers)
		err = hm_order_init(&f->order, upstream->hm, upstream->device,
				    sizeof(struct hm_stream), false,
				    &f->lock.mutex);
	else
		hm_error(err, "fixed: no memory");
	if (!err)
		err = make_slab(f, comm);
	if (err) {
		fixed_destroy(&f->resource);
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
