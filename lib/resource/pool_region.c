// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Runs from a provider of whole regions: every region is a run. A region is
 * given back when it is free as a whole and its last use is complete.
 */
#include <stdlib.h>

#include "resource/pool_impl.h"

/* A region is at most this part of what the pool has. */
#define REGION_SHARE	16
#define MIN_REGION	((uint64_t)2 << 20)

struct region {
	uint64_t addr;
	uint64_t bytes;
	bool pinned;
};

struct region_list {
	struct region *regions;
	unsigned int nr;
	unsigned int room;
};

static uint64_t round_up(uint64_t bytes, uint64_t to)
{
	return (bytes + to - 1) & ~(to - 1);
}

/* What is best asked for, then what is enough. */
static uint64_t region_bytes(const struct pool *p, uint64_t bytes)
{
	uint64_t want = p->opt.handle;

	if (!want) {
		want = MIN_REGION;
		while (want * 2 <= p->reserved / REGION_SHARE)
			want *= 2;
	}
	if (want < bytes)
		want = bytes;
	return round_up(want, p->provider->granularity);
}

/*
 * NULL is the legacy stream of the pool's own device, whatever context is
 * current: see identify() in stream_id.c.
 */
static CUresult enter(const struct pool *p, hetmem_stream stream,
		      CUcontext *before)
{
	*before = p->order.ctx;
	return p->order.ctx && hm_stream_special(stream) ?
		hm_current_enter(&p->res.hm->driver, p->order.ctx, before) :
		CUDA_SUCCESS;
}

static void leave(const struct pool *p, CUcontext before)
{
	hm_current_leave(&p->res.hm->driver, p->order.ctx, before);
}

static int get_region(struct pool *p, struct pool_stream *s, uint64_t bytes,
		      struct region *r)
{
	CUcontext before;
	CUresult res;
	void *ptr;
	int err;

	err = hm_pool_reserve(p, bytes);
	if (err)
		return err;
	p->calls++;
	res = enter(p, s->s.handle, &before);
	err = res ? hm_driver_error(&p->res.hm->driver,
				    "cuCtxSetCurrent", res) :
		p->provider->ops->alloc(p->provider, bytes, s->s.handle, &ptr);
	leave(p, before);
	if (err) {
		hm_pool_unreserve(p, bytes);
		return err;
	}
	*r = (struct region){ (uintptr_t)ptr, bytes, false };
	return 0;
}

static int put_region(struct pool *p, const struct region *r,
		      hetmem_stream stream)
{
	CUcontext before;
	CUresult res;
	int err;

	p->calls++;
	res = enter(p, stream, &before);
	err = res ? hm_driver_error(&p->res.hm->driver,
				    "cuCtxSetCurrent", res) :
		p->provider->ops->free(p->provider, (void *)(uintptr_t)r->addr,
				       r->bytes, stream);
	leave(p, before);
	if (!err)
		hm_pool_unreserve(p, r->bytes);
	return err;
}

static int make_room(struct region_list *l)
{
	unsigned int room = l->room ? 2 * l->room : 16;
	struct region *regions;

	if (l->nr < l->room)
		return 0;
	regions = realloc(l->regions, room * sizeof(*regions));
	if (!regions)
		return hm_error(-ENOMEM, "pool: no host memory");
	l->regions = regions;
	l->room = room;
	return 0;
}

static size_t regions_trim(struct pool *p, uint64_t keep);

static int regions_grow(struct pool *p, struct pool_stream *s,
			unsigned int zone, uint64_t units)
{
	uint64_t bytes = units << UNIT_SHIFT;
	struct region_list *l = p->regions;
	struct region r;
	struct block *b;
	int err;

	err = make_room(l);
	if (err)
		return err;
	err = get_region(p, s, region_bytes(p, bytes), &r);
	bytes = round_up(bytes, p->provider->granularity);
	if (err == -ENOMEM)
		err = get_region(p, s, bytes, &r);
	/* Free regions that do not fit may be all that is in the way. */
	if (err == -ENOMEM && regions_trim(p, 0))
		err = get_region(p, s, bytes, &r);
	if (err)
		return err;
	b = hm_block_new(p, r.addr, r.bytes >> UNIT_SHIFT, zone);
	if (!b) {
		put_region(p, &r, s->s.handle);
		return -ENOMEM;
	}
	if (p->provider->caps & HM_PROVIDER_STREAMED) {
		stream_lock(s);
		b->stream = s->s.index;
		b->pos = hm_stream_step(&s->s);
		stream_unlock(s);
	}
	l->regions[l->nr++] = r;
	hm_block_release(p, b);
	return 0;
}

static struct region *find_region(struct region_list *l, uint64_t addr)
{
	unsigned int i;

	for (i = 0; i < l->nr; i++)
		if (l->regions[i].addr == addr)
			return &l->regions[i];
	return NULL;
}

/* A block that is all of a region, complete, which is not needed for @keep. */
static bool can_go(struct pool *p, const struct block *b, uint64_t keep)
{
	return !b->prev && !b->next && hm_block_done(p, b) &&
	       p->reserved >= keep + block_bytes(b);
}

static size_t regions_trim(struct pool *p, uint64_t keep)
{
	struct region_list *l = p->regions;
	struct block *b, *next;
	unsigned int i, zone;
	size_t freed = 0;
	struct region *r;

	for (i = 0; i < p->order.nr * NR_ZONES; i++) {
		struct pool_stream *s = stream_at(p, i / NR_ZONES);

		zone = i % NR_ZONES;
		for (b = hm_arena_best(p, &s->arenas[zone], 1); b; b = next) {
			next = hm_arena_next(p, &s->arenas[zone], b);
			if (!can_go(p, b, keep))
				continue;
			r = find_region(l, b->addr);
			if (r->pinned || put_region(p, r, HETMEM_STREAM_HOST))
				continue;
			freed += r->bytes;
			*r = l->regions[--l->nr];
			hm_block_take(p, b);
			hm_block_delete(p, b);
		}
	}
	return freed;
}

/* Nothing here is mapped elsewhere; it is not given back either. */
static int regions_pin(struct pool *p, struct block *b)
{
	struct region_list *l = p->regions;
	unsigned int i;

	for (i = 0; i < l->nr; i++)
		if (b->addr >= l->regions[i].addr &&
		    b->addr < l->regions[i].addr + l->regions[i].bytes)
			l->regions[i].pinned = true;
	return 0;
}

static uint64_t regions_metadata(const struct pool *p)
{
	return sizeof(*p->regions) + p->regions->room * sizeof(struct region);
}

static void regions_poll(struct pool *p)
{
	(void)p;
}

/* What fails once is tried once more: there is no later. */
static void regions_destroy(struct pool *p, bool forget)
{
	unsigned int i;

	for (i = 0; !forget && i < p->regions->nr; i++)
		if (put_region(p, &p->regions->regions[i],
			       HETMEM_STREAM_HOST))
			put_region(p, &p->regions->regions[i],
				   HETMEM_STREAM_HOST);
	free(p->regions->regions);
	free(p->regions);
	p->regions = NULL;
}

static const struct source regions_source = {
	.grow = regions_grow,
	.trim = regions_trim,
	.poll = regions_poll,
	.destroy = regions_destroy,
	.metadata = regions_metadata,
	.pin = regions_pin,
};

int hm_regions_init(struct pool *p)
{
	p->regions = calloc(1, sizeof(*p->regions));
	if (!p->regions)
		return hm_error(-ENOMEM, "pool: no host memory");
	p->source = &regions_source;
	return 0;
}
