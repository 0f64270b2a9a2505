// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * One region of a provider for each allocation.
 *
 * A STREAMED provider takes a region back at once, in stream order: the stream
 * is made to wait for the recorded ones. Every other provider takes it back when
 * its uses are complete, which later calls ask. Even then the driver may wait
 * (cuMemFree() waits for all work of the device). So a free gives regions back
 * only where they are the process's own memory.
 *
 * A STREAMED provider cannot order a region after streams that were retired or
 * lost. Such a region waits as those of other providers do. So does one that is freed
 * without a stream: the owner of the stream of its allocation may destroy that stream, and
 * its handle become another stream's, before the provider is called with it. Nobody
 * destroys the legacy stream.
 *
 * Locking: r->lock, which fork() holds, protects the streams, the tree of live
 * blocks, the list of freed ones and the counters. The provider is called
 * without it.
 */
#include <errno.h>
#include <stdlib.h>

#include "core/snapshot.h"
#include "driver/check.h"
#include "pool/region.h"
#include "provider/gate.h"
#include "stream/uses.h"

/**
 * struct block - a region, live or freed
 * @range: as it may be used
 * @base, @base_size: as the provider gave it
 * @size: as it was asked for
 * @next: of freed ones, oldest first
 */
struct block {
	struct hm_range range;
	void *base;
	size_t base_size;
	size_t size;
	struct hm_uses uses;
	struct block *next;
};

/**
 * struct region - the resource
 * @live: tree of live blocks
 * @freed, @last: list of freed blocks; @freed_bytes: of them
 * @taken: blocks ever taken out of it, to be given back; @returned: of these, those that were
 */
struct region {
	struct hetmem_resource resource;
	struct hm_provider *provider;
	struct hm_lock lock;
	struct hm_order order;
	void *live;
	struct block *freed;
	struct block **last;
	size_t freed_bytes;
	uint64_t taken;
	uint64_t returned;
	struct hetmem_resource_stats stats;
};

static struct region *region_of(struct hetmem_resource *self)
{
	return (struct region *)self;
}

static bool region_has(const struct region *r, unsigned int cap)
{
	return r->provider->caps & cap;
}

static int region_check_owner(struct region *r)
{
	return region_has(r, HM_PROVIDER_FORK) ? 0 :
		hm_check_owner(r->resource.hm);
}

/* With the lock: the live block that @ptr is in, or NULL. */
static struct block *region_around(const struct region *r, const void *ptr)
{
	return (struct block *)hm_range_find(&r->live, (uintptr_t)ptr, 1);
}

/* With the lock: the live block that begins at @ptr, or NULL. */
static struct block *region_find(const struct region *r, const void *ptr)
{
	struct block *b = region_around(r, ptr);

	return b && b->range.start == (uintptr_t)ptr ? b : NULL;
}

static void free_block(struct block *b)
{
	free(b->uses.list);
	free(b);
}

/* With the lock: the provider has @b again. */
static void forget_block(struct region *r, struct block *b)
{
	r->stats.reserved -= b->base_size;
	r->stats.metadata -= sizeof(*b);
	free_block(b);
}

/* With the lock: @b is freed, and no more in the tree. */
static void region_append(struct region *r, struct block *b)
{
	b->next = NULL;
	*r->last = b;
	r->last = &b->next;
	r->freed_bytes += b->base_size;
}

/*
 * With the lock: takes freed blocks out, until @bytes are left. @all: also
 * those whose uses are not complete.
 */
static struct block *take_freed(struct region *r, size_t bytes, bool all)
{
	struct block **p = &r->freed, *b, *list = NULL, **end = &list;

	if (r->freed_bytes > bytes)
		hm_order_poll(&r->order);
	while ((b = *p) && r->freed_bytes > bytes) {
		if (!all && !hm_uses_done(&r->order, &b->uses)) {
			p = &b->next;
			continue;
		}
		*p = b->next;
		b->next = NULL;
		*end = b;
		end = &b->next;
		r->freed_bytes -= b->base_size;
		r->taken++;
	}
	for (p = &r->freed; *p; p = &(*p)->next)
		;
	r->last = p;
	return list;
}

/*
 * Waits for @b, which is in no list, and gives it to the provider. With the lock,
 * which is released in between. After an error it is in the list of freed ones.
 */
static int give_back(struct region *r, struct block *b)
{
	struct hm_provider *p = r->provider;
	int err = hm_uses_sync(&r->order, &b->uses);

	if (!err) {
		r->stats.driver_calls++;
		hm_unlock(&r->lock);
		err = hm_provider_free_region(p, b->base, b->base_size,
					      HETMEM_STREAM_HOST);
		hm_lock(&r->lock);
	}
	if (err) {
		r->taken--;
		region_append(r, b);
		return err;
	}
	r->returned++;
	forget_block(r, b);
	return 0;
}

/* Returns how many bytes the provider took back. */
static size_t region_reap(struct region *r, size_t keep, bool all)
{
	struct block *list, *b;
	size_t bytes = 0, size;

	hm_lock(&r->lock);
	list = take_freed(r, keep, all);
	while ((b = list)) {
		list = b->next;
		size = b->base_size;
		if (!give_back(r, b))
			bytes += size;
	}
	hm_unlock(&r->lock);
	return bytes;
}

/* Most that is waited for others, who may go on for ever: ns. */
#define REAP_NS		1000000000ULL

/*
 * Other threads give back blocks that were freed: waits until more than @returned are.
 * Returns false if nobody does that, or after @deadline.
 */
static bool wait_for_reapers(struct region *r, uint64_t returned, uint64_t deadline)
{
	unsigned int naps = 0;
	bool more;

	hm_lock(&r->lock);
	/* A forked child has none of these threads. */
	while (r->returned == returned && r->returned < r->taken &&
	       r->resource.hm->generation == hm_generation())
		hm_order_nap(&r->order, &naps);
	more = r->returned != returned;
	hm_unlock(&r->lock);
	return more && hm_now() < deadline;
}

static int alloc_base(struct region *r, size_t size, hetmem_stream stream,
		      void **base)
{
	struct hm_provider *p = r->provider;
	uint64_t deadline = 0, returned;
	int err;

	region_reap(r, 0, false);
	for (;;) {
		hm_lock(&r->lock);
		r->stats.driver_calls++;
		returned = r->returned;
		hm_unlock(&r->lock);
		err = hm_provider_alloc_region(p, size, stream, base);
		if (err != -ENOMEM)
			return err;
		deadline = deadline ? deadline : hm_now() + REAP_NS;
		/* What was freed may be all that is missing. */
		if (!region_reap(r, 0, true) &&
		    !wait_for_reapers(r, returned, deadline))
			return err;
	}
}

static void count_block(struct region *r, struct block *b)
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

/* The base of @b, in which there is room for it at a multiple of @align. */
static int place_block(struct region *r, struct block *b, size_t align,
		       hetmem_stream stream)
{
	const size_t g = r->provider->granularity;
	size_t extra = align > g ? align - g : 0;
	int err;

	for (;;) {
		b->base_size = (b->size + extra + g - 1) & ~(g - 1);
		err = alloc_base(r, b->base_size, stream, &b->base);
		if (err)
			return err;
		b->range.start = ((uintptr_t)b->base + align - 1) & ~(align - 1);
		b->range.end = (uintptr_t)b->base + b->base_size;
		if (b->range.start + b->size <= b->range.end)
			return 0;
		/* cuMemAlloc() need not align to what it rounds to. */
		hm_retry_once(hm_provider_free_region(r->provider, b->base, b->base_size,
						      HETMEM_STREAM_HOST));
		extra = align;
	}
}

static int region_make(struct region *r, struct block *b, size_t align,
		       hetmem_stream stream)
{
	struct hm_stream *s;
	int err;

	err = hm_order_enter(&r->order, stream,
			     !region_has(r, HM_PROVIDER_STREAMED), &s);
	if (err)
		return err;
	err = hm_uses_begin(&b->uses, s);
	hm_unlock(&r->lock);
	if (err)
		return err;
	err = place_block(r, b, align, stream);
	if (err)
		return err;
	hm_lock(&r->lock);
	err = hm_range_insert(&r->live, &b->range);
	if (!err)
		count_block(r, b);
	hm_unlock(&r->lock);
	if (!err)
		return 0;
	hm_provider_free_region(r->provider, b->base, b->base_size, HETMEM_STREAM_HOST);
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
	mode = hm_capture_relaxed(self->hm);
	err = region_make(r, b, align, stream);
	hm_capture_mode(self->hm, mode);
	if (err) {
		hm_lock(&r->lock);
		r->stats.failed++;
		hm_unlock(&r->lock);
		free_block(b);
		return err;
	}
	*ptr = (void *)b->range.start;
	hm_check_alloc(self->hm, *ptr, size, stream);
	return 0;
}

/*
 * The provider takes @b back in the order of @s, which is ordered after all other
 * uses. With the lock, which is released in between. After an error @b is as it
 * was.
 */
static int free_streamed(struct region *r, struct block *b, struct hm_stream *s)
{
	struct hm_provider *p = r->provider;
	CUcontext before;
	CUstream here;
	int err;

	/* What NULL and the like mean depends on the context. */
	err = hm_stream_enter(&r->order, s, &here, &before);
	if (err)
		return err;
	s->calls++;
	r->stats.driver_calls++;
	hm_unlock(&r->lock);
	err = hm_provider_free_region(p, b->base, b->base_size, here);
	hm_stream_leave(&r->order, s, before);
	hm_lock(&r->lock);
	s->calls--;
	if (!err)
		forget_block(r, b);
	return err;
}

/* With the lock. @freed_on: NULL, if the caller does not know the stream. */
static int block_free(struct region *r, struct block *b, struct hm_stream *freed_on)
{
	struct hm_stream *s = freed_on ? freed_on : hm_uses_own(&r->order, &b->uses);
	const bool lasts = freed_on || hm_stream_special(s->handle);
	int err = hm_uses_end(&r->order, &b->uses, s, (void *)b->range.start,
			      b->size);

	if (err)
		return err;
	hm_range_erase(&r->live, &b->range);
	r->stats.live--;
	r->stats.frees++;
	r->stats.requested -= b->size;
	if (region_has(r, HM_PROVIDER_STREAMED) && lasts && s->index && !s->retired &&
	    !hm_uses_order(&r->order, &b->uses, s) && !free_streamed(r, b, s))
		return 0;
	hm_uses_record(&r->order, &b->uses);
	region_append(r, b);
	return 0;
}

static int region_free(struct hetmem_resource *self, void *ptr, size_t *size,
		       hetmem_stream stream)
{
	struct region *r = region_of(self);
	CUstreamCaptureMode mode;
	struct hm_stream *s;
	struct block *b;
	int err;

	err = region_check_owner(r);
	if (err)
		return err;
	mode = hm_capture_relaxed(self->hm);
	err = hm_order_enter(&r->order, stream, false, &s);
	if (err)
		goto out;
	b = region_find(r, ptr);
	if (!b) {
		err = hm_error(-EINVAL, "free: %p is not allocated here", ptr);
	} else if (*size && *size != b->size) {
		err = hm_error(-EINVAL, "free: %p has %zu bytes, not %zu",
			       ptr, b->size, *size);
	} else {
		*size = b->size;
		err = block_free(r, b, s);
	}
	hm_unlock(&r->lock);
	if (!err && region_has(r, HM_PROVIDER_FORK))
		region_reap(r, 0, false);
out:
	hm_capture_mode(self->hm, mode);
	return err;
}

static void region_trim(struct region *r, size_t *bytes)
{
	struct hm_provider *p = r->provider;
	uint64_t before = 0, after, most;
	const size_t keep = *bytes;
	bool held = p->ops->held && p->ops->held(p, &before, &most);

	*bytes = region_reap(r, keep, true);
	if (p->ops->trim)
		p->ops->trim(p, keep);
	/* What only went to the driver's pool did not go. */
	if (held && p->ops->held(p, &after, &most))
		*bytes = after < before ? before - after : 0;
}

/* Recorded streams, and what is known of a pointer. */

static int region_record(struct region *r, const struct hm_ctl_stream *arg)
{
	struct hm_stream *s;
	struct block *b;
	int err;

	err = region_check_owner(r);
	if (!err)
		err = hm_order_enter(&r->order, arg->stream, true, &s);
	if (err)
		return err;
	b = region_find(r, arg->ptr);
	err = b ? hm_uses_add(&r->order, &b->uses, s) :
		hm_error(-EINVAL, "record_stream: %p is not allocated here",
			 arg->ptr);
	hm_unlock(&r->lock);
	return err;
}

static int region_owns(struct region *r, struct hm_ctl_owns *arg)
{
	struct block *b;
	int err = -ENOENT;

	hm_lock(&r->lock);
	b = region_around(r, arg->ptr);
	if (b) {
		arg->base = (void *)b->range.start;
		arg->size = b->range.end - b->range.start;
		arg->asked = b->size;
		arg->stream = hm_uses_handle(&b->uses);
		err = 0;
	}
	hm_unlock(&r->lock);
	return err;
}

static int region_segments(struct region *r, struct hm_ctl_segments *arg)
{
	struct hm_ctl_owns block = { .ptr = arg->ptr };
	size_t room = arg->nr, offset;
	int err = region_owns(r, &block);

	if (err)
		return hm_error(-EINVAL, "segments: %p is not allocated here",
				arg->ptr);
	offset = (const char *)arg->ptr - (char *)block.base;
	if (arg->size > block.size - offset)
		return hm_error(-EINVAL, "segments: beyond the block's end");
	arg->nr = 1;
	if (!room)
		return -ENOSPC;
	arg->segments[0] = (struct hetmem_segment){
		.base = (void *)arg->ptr, .length = arg->size,
		.device = r->provider->caps & HM_PROVIDER_HOST ? -1 : r->provider->device,
	};
	return 0;
}

static void region_get_stats(struct region *r,
			     struct hetmem_resource_stats *stats)
{
	struct hm_provider *p = r->provider;
	uint64_t held, most;
	size_t size = stats->size;

	hm_lock(&r->lock);
	*stats = r->stats;
	stats->driver_calls += r->order.calls;
	stats->host_wait_ns = r->order.wait_ns;
	hm_unlock(&r->lock);
	stats->size = size;
	if (p->ops->held && p->ops->held(p, &held, &most)) {
		stats->reserved = held;
		stats->reserved_peak = most;
	}
}

struct spans {
	struct hetmem_walk_segment *at;
	size_t nr;
};

static void add_span(const struct block *b, struct spans *spans)
{
	spans->at[spans->nr++] = (struct hetmem_walk_segment){
		.size = sizeof(*spans->at), .base = b->base, .bytes = b->base_size,
	};
}

static void add_live(struct hm_range *range, void *arg)
{
	add_span((struct block *)range, arg);
}

/* With the lock: copies what there is, except blocks that are being given back. */
static int copy_spans(struct region *r, struct spans *spans)
{
	size_t nr = r->stats.live;
	struct block *b;

	for (b = r->freed; b; b = b->next)
		nr++;
	spans->at = malloc((nr + 1) * sizeof(*spans->at));
	if (!spans->at)
		return hm_error(-ENOMEM, "%s: no memory for a walk", r->provider->ops->name);
	hm_range_walk(&r->live, add_live, spans);
	for (b = r->freed; b; b = b->next)
		add_span(b, spans);
	return 0;
}

static int region_walk(struct region *r, struct hm_ctl_walk *arg)
{
	struct spans spans = { 0 };
	size_t i;
	int err;

	if (!arg->regions || arg->sums)
		return -EOPNOTSUPP;
	hm_lock(&r->lock);
	err = copy_spans(r, &spans);
	hm_unlock(&r->lock);
	for (i = 0; i < spans.nr && !arg->result; i++)
		arg->result = arg->walk->segment(arg->walk->data, &spans.at[i]);
	free(spans.at);
	return err;
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
	case HM_CTL_ALLOC_WITH:
		return hm_alloc_placed(self, arg);
	case HM_CTL_STATS:
		region_get_stats(r, arg);
		return 0;
	case HM_CTL_ACCESS:
		return hm_provider_access(r->provider, arg);
	case HM_CTL_WALK:
		return region_walk(r, arg);
	case HM_CTL_GATE:
		return hm_gate_ctl(r->provider, arg);
	case HM_CTL_RECORD:
		return region_record(r, arg);
	case HM_CTL_RETIRE:
	case HM_CTL_POLL:
	case HM_CTL_TRIM:
		err = region_check_owner(r);
		if (err)
			return err;
		mode = hm_capture_relaxed(self->hm);
		if (op == HM_CTL_RETIRE)
			err = hm_order_retire(&r->order, ((struct hm_ctl_stream *)
							  arg)->stream);
		else if (op == HM_CTL_TRIM)
			region_trim(r, arg);
		else if (region_has(r, HM_PROVIDER_FORK))
			region_reap(r, 0, false);
		hm_capture_mode(self->hm, mode);
		return err;
	default:
		return -EOPNOTSUPP;
	}
}

static void drop_block(struct region *r, struct block *b, bool forget)
{
	struct hm_provider *p = r->provider;

	if (!forget)
		hm_retry_once(hm_provider_free_region(p, b->base, b->base_size,
						      HETMEM_STREAM_HOST));
	free_block(b);
}

static void region_destroy(struct hetmem_resource *self)
{
	struct region *r = region_of(self);
	const bool forget = self->hm->generation != hm_generation();
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
	struct block *b = (struct block *)hm_range_any(&r->live);

	if (b)
		hm_error(0, "destroy: %llu blocks are still allocated, one of %zu bytes at %#lx",
			 (unsigned long long)r->stats.live, b->size,
			 (unsigned long)b->range.start);
	if (!forget) {
		mode = hm_capture_relaxed(self->hm);
		region_reap(r, 0, true);
		/*
		 * Blocks that nobody freed may be in use on any stream. Not without
		 * need: it is illegal while a stream is captured.
		 */
		if (b || r->freed)
			hm_order_finish(&r->order);
	}
	while ((b = r->freed)) {
		r->freed = b->next;
		drop_block(r, b, forget);
	}
	while ((b = (struct block *)hm_range_any(&r->live))) {
		hm_range_erase(&r->live, &b->range);
		drop_block(r, b, forget);
	}
	hm_order_destroy(&r->order, forget);
	if (!forget)
		hm_capture_mode(self->hm, mode);
	r->provider->ops->destroy(r->provider);
	hm_lock_destroy(&r->lock);
	hm_resource_free(self);
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
	int err;

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
	/* Of any context; a thread that has none gets the device's. */
	err = hm_order_init(&r->order, provider->hm, -1,
			    sizeof(struct hm_stream), false, &r->lock.mutex);
	if (err) {
		free(r);
		return err;
	}
	r->order.device = provider->device;
	hm_lock_init(&r->lock, HM_FORK_POOL);
	*out = &r->resource;
	return 0;
}
