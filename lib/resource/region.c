// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * One region of a provider for each allocation.
 *
 * A STREAMED provider takes a region back in stream order; the stream is made
 * to wait for the others that were recorded. To any other a region goes back
 * when events say that its last use is over: those it waits for are looked
 * at on later calls. Even then freeing may wait in the driver (cuMemFree()
 * does, for all the device's work), so that a free never does it, unless it
 * is the process's own memory.
 *
 * A block's stream and recorded streams are handles, which are good until
 * hetmem_stream_retire(): that puts an event in their place.
 *
 * Locking: hm->lock, which fork() holds, protects the tree of live blocks, the
 * list of freed ones and the counters; it is not held while the provider or
 * the driver is called, but for queries of events.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "driver/check.h"
#include "resource/region_impl.h"

static bool is_over(struct region *r, struct block *b, bool wait)
{
	struct hetmem *hm = r->resource.hm;
	unsigned int i;

	if (!region_has_streams(r))
		return true;
	if (!hm_use_over(hm, &b->own, wait))
		return false;
	for (i = 0; i < b->nr_uses; i++)
		if (!hm_use_over(hm, &b->uses[i], wait))
			return false;
	return true;
}

static void end_uses(struct region *r, struct block *b)
{
	struct hetmem *hm = r->resource.hm;
	unsigned int i;

	if (!region_has_streams(r))
		return;
	hm_use_end(hm, &b->own);
	for (i = 0; i < b->nr_uses; i++)
		hm_use_end(hm, &b->uses[i]);
}

static void free_block(struct block *b)
{
	free(b->uses);
	free(b);
}

void region_append(struct region *r, struct block *b)
{
	b->next = NULL;
	*r->last = b;
	r->last = &b->next;
	r->freed_bytes += b->base_size;
}

/*
 * With the lock: takes freed blocks out, until @bytes are left. @all: also
 * those whose uses are not over.
 */
static struct block *take(struct region *r, size_t bytes, bool all)
{
	struct block **p = &r->freed, *b, *list = NULL, **end = &list;

	while ((b = *p) && r->freed_bytes > bytes) {
		if (!all && !is_over(r, b, false)) {
			p = &b->next;
			continue;
		}
		*p = b->next;
		b->next = NULL;
		*end = b;
		end = &b->next;
		r->freed_bytes -= b->base_size;
	}
	for (p = &r->freed; *p; p = &(*p)->next)
		;
	r->last = p;
	return list;
}

/* Gives what take() took back to the provider. Returns the bytes. */
static size_t give_back(struct region *r, struct block *list)
{
	struct hm_provider *p = r->provider;
	struct block *b;
	size_t bytes = 0;
	uint64_t nr = 0;
	int err;

	while ((b = list)) {
		list = b->next;
		is_over(r, b, true);
		err = p->ops->free(p, b->base, b->base_size,
				   HETMEM_STREAM_HOST);
		nr++;
		end_uses(r, b);
		region_lock(r);
		if (err) {
			region_append(r, b);
		} else {
			bytes += b->base_size;
			r->stats.reserved -= b->base_size;
			r->stats.metadata -= sizeof(*b);
		}
		region_unlock(r);
		if (!err)
			free_block(b);
	}
	region_lock(r);
	r->stats.driver_calls += nr;
	region_unlock(r);
	return bytes;
}

static size_t reap(struct region *r, size_t keep, bool all)
{
	struct block *list;

	region_lock(r);
	list = take(r, keep, all);
	region_unlock(r);
	return list ? give_back(r, list) : 0;
}

static int alloc_base(struct region *r, size_t size, hetmem_stream stream,
		      void **base)
{
	struct hm_provider *p = r->provider;
	size_t before;
	int err;

	reap(r, 0, false);
	for (;;) {
		err = p->ops->alloc(p, size, stream, base);
		region_lock(r);
		r->stats.driver_calls++;
		before = r->freed_bytes;
		region_unlock(r);
		/* What was freed may be all that is missing. */
		if (err != -ENOMEM || !before || !reap(r, 0, true))
			return err;
	}
}

static void add(struct region *r, struct block *b)
{
	struct hetmem_resource_stats *s = &r->stats;

	s->live++;
	s->allocs++;
	s->requested += b->size;
	if (s->requested > s->requested_peak)
		s->requested_peak = s->requested;
	s->reserved += b->base_size;
	if (s->reserved > s->reserved_peak)
		s->reserved_peak = s->reserved;
	s->metadata += sizeof(*b);
}

static int allocate(struct region *r, struct block *b, size_t align,
		    hetmem_stream stream)
{
	struct hetmem *hm = r->resource.hm;
	const size_t g = r->provider->granularity;
	uintptr_t start;
	int err;

	if (region_has_streams(r) && stream != HETMEM_STREAM_HOST) {
		err = hm_use_init(hm, r->resource.device, stream, &b->own);
		if (err)
			return err;
		if (region_has(r, HM_PROVIDER_STREAMED) &&
		    hm_capture_active(hm, stream))
			return hm_error(-EBUSY, "%s: stream %p is being captured",
					r->provider->ops->name, stream);
	}
	b->base_size = b->size + (align > g ? align - g : 0);
	b->base_size = (b->base_size + g - 1) & ~(g - 1);
	err = alloc_base(r, b->base_size, stream, &b->base);
	if (err)
		return err;
	start = ((uintptr_t)b->base + align - 1) & ~(align - 1);
	b->range.start = start;
	b->range.end = (uintptr_t)b->base + b->base_size;
	region_lock(r);
	err = hm_range_insert(&r->live, &b->range);
	if (!err)
		add(r, b);
	region_unlock(r);
	if (!err)
		return 0;
	r->provider->ops->free(r->provider, b->base, b->base_size,
			       HETMEM_STREAM_HOST);
	return hm_error(-ENOMEM, "%s: no memory for metadata",
			r->provider->ops->name);
}

static int region_alloc(struct hetmem_resource *self, size_t size,
			size_t align, hetmem_stream stream, void **ptr)
{
	struct region *r = region_of(self);
	CUstreamCaptureMode mode;
	struct block *b;
	int err;

	err = region_check_owner(r);
	if (err)
		return err;
	if (align > PTRDIFF_MAX / 2 ||
	    size > PTRDIFF_MAX - align - r->provider->granularity)
		return hm_error(-ENOMEM, "%s: %zu bytes at a multiple of %zu are more than an address space has",
				r->provider->ops->name, size, align);
	b = calloc(1, sizeof(*b));
	if (!b)
		return hm_error(-ENOMEM, "%s: no memory for metadata",
				r->provider->ops->name);
	b->size = size;
	b->own.stream = HETMEM_STREAM_HOST;
	mode = hm_capture_relaxed(self->hm);
	err = allocate(r, b, align, stream);
	hm_capture_mode(self->hm, mode);
	if (err) {
		region_lock(r);
		r->stats.failed++;
		region_unlock(r);
		free(b);
		return err;
	}
	*ptr = (void *)b->range.start;
	hm_check_alloc(self->hm, *ptr, size, stream);
	return 0;
}

static void tell_check(struct region *r, const struct block *b,
		       hetmem_stream stream)
{
	void *ptr = (void *)b->range.start;
	unsigned int i;

	if (stream == HETMEM_STREAM_UNKNOWN)
		stream = hm_stream_here(b->own.stream, b->own.thread);
	if (stream != HETMEM_STREAM_UNKNOWN)
		hm_check_free(r->resource.hm, ptr, b->size, stream);
	for (i = 0; i < b->nr_uses; i++)
		if (b->uses[i].stream != HETMEM_STREAM_UNKNOWN)
			hm_check_free(r->resource.hm, ptr, b->size,
				      hm_stream_here(b->uses[i].stream,
						     b->uses[i].thread));
}

/* Events that stand for a free that failed: later work is not before them. */
static void unrecord(struct region *r, struct block *b)
{
	unsigned int i;

	for (i = 0; i < b->nr_uses; i++)
		if (b->uses[i].stream != HETMEM_STREAM_UNKNOWN)
			hm_use_end(r->resource.hm, &b->uses[i]);
}

/*
 * Where the uses of @b end: events for the recorded ones, and *@at for what it
 * was freed on.
 */
static int record_uses(struct region *r, struct block *b,
		       hetmem_stream stream, struct hm_use *at)
{
	struct hetmem *hm = r->resource.hm;
	unsigned int i;
	int err = 0;

	*at = (struct hm_use){ .stream = HETMEM_STREAM_HOST };
	if (!region_has_streams(r))
		return 0;
	for (i = 0; i < b->nr_uses && !err; i++)
		err = hm_use_record(hm, &b->uses[i]);
	if (err || stream == HETMEM_STREAM_HOST)
		return err;
	if (stream == HETMEM_STREAM_UNKNOWN) {
		*at = b->own;
		if (at->stream == HETMEM_STREAM_HOST && !at->event)
			return 0;
		at->stream = hm_stream_here(at->stream, at->thread);
	} else {
		err = hm_use_init(hm, r->resource.device, stream, at);
	}
	if (!err && !region_has(r, HM_PROVIDER_STREAMED))
		err = hm_use_record(hm, at);
	return err;
}

/* In order of a stream of the driver's: nothing to wait for later. */
static int free_streamed(struct region *r, struct block *b,
			 const struct hm_use *at)
{
	struct hm_provider *p = r->provider;
	struct hetmem *hm = r->resource.hm;
	CUresult res = CUDA_SUCCESS;
	CUcontext before = at->ctx;
	unsigned int i;
	int err = 0;

	for (i = 0; i < b->nr_uses && !err; i++)
		err = hm_use_order(hm, at, &b->uses[i]);
	if (err)
		return err;
	/* What NULL and the like mean depends on the context. */
	if (hm_stream_special(at->stream))
		res = hm_current_enter(&hm->driver, at->ctx, &before);
	if (res)
		return hm_driver_error(&hm->driver, "cuCtxSetCurrent", res);
	err = p->ops->free(p, b->base, b->base_size, at->stream);
	hm_current_leave(&hm->driver, at->ctx, before);
	if (err)
		return err;
	end_uses(r, b);
	region_lock(r);
	r->stats.reserved -= b->base_size;
	r->stats.metadata -= sizeof(*b);
	r->stats.driver_calls++;
	region_unlock(r);
	free_block(b);
	return 0;
}

/* @b is out of the tree. */
static int retire_block(struct region *r, struct block *b,
			hetmem_stream stream)
{
	struct hm_use at;
	int err;

	err = record_uses(r, b, stream, &at);
	if (!err) {
		tell_check(r, b, stream);
		if (region_has(r, HM_PROVIDER_STREAMED) &&
		    at.stream != HETMEM_STREAM_HOST && !at.event) {
			err = free_streamed(r, b, &at);
			if (!err)
				return 0;
		}
	}
	if (err) {
		unrecord(r, b);
		return err;
	}
	if (b->own.event && b->own.event != at.event)
		hm_use_end(r->resource.hm, &b->own);
	b->own = at;
	region_lock(r);
	region_append(r, b);
	region_unlock(r);
	if (region_has(r, HM_PROVIDER_FORK))
		reap(r, 0, false);
	return 0;
}

static int region_free(struct hetmem_resource *self, void *ptr, size_t size,
		       hetmem_stream stream)
{
	struct region *r = region_of(self);
	CUstreamCaptureMode mode;
	struct block *b;
	size_t was = 0;
	int err;

	err = region_check_owner(r);
	if (err)
		return err;
	region_lock(r);
	b = region_find(r, ptr);
	if (b)
		was = b->size;
	if (b && size && size != was)
		b = NULL;
	if (b)
		hm_range_erase(&r->live, &b->range);
	region_unlock(r);
	if (!b)
		return was ? hm_error(-EINVAL, "free: %p has %zu bytes, not %zu",
				      ptr, was, size) :
			hm_error(-EINVAL, "free: %p is not allocated here",
				 ptr);
	mode = hm_capture_relaxed(self->hm);
	err = retire_block(r, b, stream);
	hm_capture_mode(self->hm, mode);
	region_lock(r);
	if (!err) {
		r->stats.live--;
		r->stats.frees++;
		r->stats.requested -= was;
	} else if (hm_range_insert(&r->live, &b->range)) {
		/* Nobody has a handle of it any more, but we have. */
		region_append(r, b);
	}
	region_unlock(r);
	return err;
}

static void trim(struct region *r, size_t *bytes)
{
	struct hm_provider *p = r->provider;
	uint64_t before = 0, after, most;
	const size_t keep = *bytes;
	bool held = p->ops->held && p->ops->held(p, &before, &most);

	*bytes = reap(r, keep, true);
	if (p->ops->trim)
		p->ops->trim(p, keep);
	/* What only went to the driver's pool did not go. */
	if (held && p->ops->held(p, &after, &most))
		*bytes = after < before ? before - after : 0;
}

static int region_ctl(struct hetmem_resource *self, enum hm_ctl op, void *arg)
{
	struct region *r = region_of(self);
	CUstreamCaptureMode mode;
	int err;

	switch (op) {
	case HM_CTL_OWNS:
		return region_owns(r, arg);
	case HM_CTL_SEGMENTS:
		return region_segments(r, arg);
	case HM_CTL_STATS:
		region_get_stats(r, arg);
		return 0;
	case HM_CTL_RECORD:
		return region_record(r, arg);
	case HM_CTL_RETIRE:
		mode = hm_capture_relaxed(self->hm);
		err = region_retire(r, ((struct hm_ctl_stream *)arg)->stream);
		hm_capture_mode(self->hm, mode);
		return err;
	case HM_CTL_POLL:
	case HM_CTL_TRIM:
		err = region_check_owner(r);
		if (err)
			return err;
		mode = hm_capture_relaxed(self->hm);
		if (op == HM_CTL_TRIM)
			trim(r, arg);
		else if (region_has(r, HM_PROVIDER_FORK))
			reap(r, 0, false);
		hm_capture_mode(self->hm, mode);
		return 0;
	default:
		return -EOPNOTSUPP;
	}
}

/* All work of all devices: for blocks that nobody freed. */
static void wait_for_all(struct region *r)
{
	struct hetmem *hm = r->resource.hm;
	struct hm_context saved;
	int i;

	for (i = 0; i < hm->nr_devices; i++) {
		if (!hm->devices[i].ctx || hm_context_enter(hm, i, &saved))
			continue;
		hm->driver.cuCtxSynchronize();
		hm_context_leave(hm, &saved);
	}
}

/* What fails once is tried once more: there is no later. */
static void drop(struct region *r, struct block *b, bool mine)
{
	struct hm_provider *p = r->provider;

	if (mine) {
		end_uses(r, b);
		if (p->ops->free(p, b->base, b->base_size, HETMEM_STREAM_HOST))
			p->ops->free(p, b->base, b->base_size,
				     HETMEM_STREAM_HOST);
	}
	free_block(b);
}

static void region_destroy(struct hetmem_resource *self)
{
	struct region *r = region_of(self);
	bool mine = self->hm->generation == hm_generation();
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
	struct block *b;

	if (r->live)
		hm_error(0, "destroy: %llu blocks are still allocated, one of %zu bytes at %#lx",
			 (unsigned long long)r->stats.live,
			 ((struct block *)hm_range_any(&r->live))->size,
			 (unsigned long)hm_range_any(&r->live)->start);
	if (mine) {
		mode = hm_capture_relaxed(self->hm);
		wait_for_all(r);
	}
	while ((b = r->freed)) {
		r->freed = b->next;
		is_over(r, b, true);
		drop(r, b, mine);
	}
	while ((b = (struct block *)hm_range_any(&r->live))) {
		hm_range_erase(&r->live, &b->range);
		drop(r, b, mine);
	}
	if (mine)
		hm_capture_mode(self->hm, mode);
	r->provider->ops->destroy(r->provider);
	free(r);
}

static const struct hm_resource_ops region_ops = {
	.name = "region",
	.alloc = region_alloc,
	.free = region_free,
	.ctl = region_ctl,
	.destroy = region_destroy,
};

int hm_region_create(struct hm_provider *provider,
		     struct hetmem_resource **out)
{
	struct region *r;

	if (provider->caps & HM_PROVIDER_MAPPABLE)
		return hm_error(-EINVAL, "%s gives no regions: it is for a pool, as in pool(%s)",
				provider->ops->name, provider->ops->name);
	r = calloc(1, sizeof(*r));
	if (!r)
		return hm_error(-ENOMEM, "region: no memory");
	r->resource.ops = &region_ops;
	r->resource.hm = provider->hm;
	r->resource.device = provider->device;
	r->provider = provider;
	r->last = &r->freed;
	*out = &r->resource;
	return 0;
}
