// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Runs from a provider of whole regions: every region is a run. A region is
 * given back when it is free as a whole and its last use is complete.
 *
 * Making a region can take long, and giving one back waits for all work of the
 * device. So pool->lock is released for that. Until it is taken again the bytes
 * count as pool->busy: neither held nor free.
 */
#include <stdlib.h>

#include "pool/pins.h"
#include "pool/source.h"
#include "provider/gate.h"

/* A region is at most this part of what the pool has. */
#define REGION_SHARE	16
#define MIN_REGION	((uint64_t)2 << 20)

/**
 * struct region - memory of the provider
 * @pinned: so often: it is not given back
 * @ring: @bytes are mapped twice in a row; it is one block, and goes back when that is freed
 * @failed: the trim in which the provider did not take it
 */
struct region {
	uint64_t addr;
	uint64_t bytes;
	uint32_t pinned;
	bool ring;
	unsigned int failed;
};

/**
 * struct region_list - the source's data
 * @room: of @regions; @out: regions that are being given back, for which there
 *	is room
 * @trims: trims so far
 * @small, @nr_small: bytes and number of regions of zone 0
 */
struct region_list {
	struct region *regions;
	unsigned int nr;
	unsigned int room;
	unsigned int out;
	unsigned int trims;
	uint64_t small;
	uint64_t nr_small;
};

static struct region_list *regions_of(const struct pool *p)
{
	return p->memory;
}

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

/* Without the lock. */
static int call_free(struct pool *p, const struct region *r)
{
	if (r->ring)
		return hm_provider_free_ring(p->provider, (void *)(uintptr_t)r->addr, r->bytes);
	return hm_provider_free_region(p->provider, (void *)(uintptr_t)r->addr, r->bytes,
				       HETMEM_STREAM_HOST);
}

static int get_region(struct pool *p, struct pool_stream *s, uint64_t bytes, bool ring,
		      struct region *r)
{
	CUcontext before;
	CUstream here;
	void *ptr = NULL;
	int err;

	err = hm_pool_may_hold(p, bytes);
	if (err)
		return err;
	/* NULL is the legacy stream of the pool's own device. */
	err = hm_stream_enter(&p->order, &s->s, &here, &before);
	if (err)
		return err;
	p->calls++;
	p->busy += bytes;
	pthread_mutex_unlock(&p->lock);
	err = ring ? hm_provider_alloc_ring(p->provider, bytes, &ptr) :
		hm_provider_alloc_region(p->provider, bytes, here, &ptr);
	hm_stream_leave(&p->order, &s->s, before);
	pthread_mutex_lock(&p->lock);
	p->busy -= bytes;
	if (err)
		return err;
	hm_pool_hold(p, bytes);
	*r = (struct region){ .addr = (uintptr_t)ptr, .bytes = bytes, .ring = ring };
	return 0;
}

/* @r is in no list and has no block. After an error it is held as before. */
static int put_region(struct pool *p, const struct region *r)
{
	int err;

	p->calls++;
	hm_pool_unhold(p, r->bytes);
	p->busy += r->bytes;
	pthread_mutex_unlock(&p->lock);
	err = call_free(p, r);
	pthread_mutex_lock(&p->lock);
	p->busy -= r->bytes;
	if (err)
		hm_pool_hold(p, r->bytes);
	return err;
}

/* Room for one more, and for those that are out. */
static int regions_make_room(struct region_list *l)
{
	unsigned int room = l->room ? 2 * l->room : 16;
	struct region *regions;

	if (l->nr + l->out < l->room)
		return 0;
	regions = realloc(l->regions, room * sizeof(*regions));
	if (!regions)
		return hm_error(-ENOMEM, "pool: no host memory");
	l->regions = regions;
	l->room = room;
	return 0;
}

static void count_small(struct region_list *l, const struct region *r, unsigned int zone, int nr)
{
	if (zone)
		return;
	l->small += nr * (int64_t)r->bytes;
	l->nr_small += nr;
}

/* @r, for which there is room, becomes a run: BUSY @b. -ENOMEM: it is nothing. */
static int add_region(struct pool *p, const struct region *r, unsigned int zone,
		      struct pool_stream *s, struct block **out)
{
	struct region_list *l = regions_of(p);
	struct block *b = hm_block_new(p, r->addr, r->bytes >> UNIT_SHIFT, zone);

	if (!b)
		return -ENOMEM;
	if (s && p->provider->caps & HM_PROVIDER_STREAMED) {
		b->stream = s->s.index;
		b->pos = stream_point(s);
	}
	l->regions[l->nr++] = *r;
	count_small(l, r, zone, 1);
	*out = b;
	return 0;
}

static size_t regions_trim(struct pool *p, uint64_t keep);

static int regions_grow(struct pool *p, struct pool_stream *s,
			unsigned int zone, uint64_t units, bool order,
			struct block **b)
{
	uint64_t bytes = units << UNIT_SHIFT;
	struct region r;
	int err;

	err = get_region(p, s, region_bytes(p, bytes), false, &r);
	bytes = round_up(bytes, p->provider->granularity);
	if (err == -ENOMEM || err == HM_UNDER_PRESSURE)
		err = get_region(p, s, bytes, false, &r);
	/*
	 * Free regions that do not fit may be all that is in the way. Giving
	 * one back can wait for the device: rather an order between streams.
	 */
	if (err == -ENOMEM && order && regions_trim(p, 0))
		err = get_region(p, s, bytes, false, &r);
	if (err)
		return err;
	err = regions_make_room(regions_of(p));
	if (!err)
		err = add_region(p, &r, zone, s, b);
	if (err)
		hm_retry_once(put_region(p, &r));
	return err;
}

/* A block that is a region of its own. */
static int grow_alone(struct pool *p, struct pool_stream *s, uint64_t bytes, bool ring,
		      struct block **b)
{
	struct region r;
	int err = get_region(p, s, bytes, ring, &r);

	if (err == -ENOMEM && regions_trim(p, 0))
		err = get_region(p, s, bytes, ring, &r);
	if (err)
		return err;
	err = regions_make_room(regions_of(p));
	if (!err)
		err = add_region(p, &r, 1, s, b);
	if (err)
		hm_retry_once(put_region(p, &r));
	return err;
}

static int regions_grow_whole(struct pool *p, struct pool_stream *s, uint64_t units,
			      struct block **b)
{
	int err = grow_alone(p, s, units << UNIT_SHIFT, false, b);

	if (!err)
		__atomic_store_n(&(*b)->flags, (*b)->flags | BLOCK_WHOLE, __ATOMIC_RELEASE);
	return err;
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
static bool region_can_go(struct pool *p, const struct block *b, uint64_t keep)
{
	return !b->prev && !b->next && hm_block_done(p, b) &&
	       p->reserved >= keep + block_bytes(b);
}

/* Instructions of a look at a block, about. */
#define LOOK_WORK	128

/*
 * A region to give back until @keep bytes are held, and its block; or NULL. Releases
 * the lock between pieces of the search. *@arena: where it goes on.
 */
static struct region *find_victim(struct pool *p, uint64_t keep,
				  unsigned int trim, unsigned int *arena,
				  struct block **block)
{
	struct region *r;
	struct block *b;

	for (; *arena < p->order.nr * NR_ZONES; ++*arena) {
		struct arena *a = &stream_at(p, *arena / NR_ZONES)->
			arenas[*arena % NR_ZONES];

		hm_pool_step(p, LOOK_WORK / 4);
		while (a->units && (b = hm_arena_walk(p, a, WALK_TRIM))) {
			r = region_can_go(p, b, keep) ?
				find_region(regions_of(p), b->addr) : NULL;
			if (r && !r->pinned && r->failed != trim) {
				*block = b;
				return r;
			}
			hm_pool_step(p, LOOK_WORK);
		}
		a->walks[WALK_TRIM] = 0;
	}
	return NULL;
}

/*
 * Gives back @r, which is the FREE block @b. Returns its bytes, or 0: then it is a run
 * again, which @trim does not try again.
 */
static size_t give_region(struct pool *p, struct region *r, struct block *b, unsigned int trim)
{
	struct region_list *l = regions_of(p);
	const unsigned int zone = block_zone(b);
	struct region one = *r;
	int err;

	*r = l->regions[--l->nr];
	l->out++;
	count_small(l, &one, zone, -1);
	hm_block_take(p, b);
	hm_block_delete(p, b);
	err = put_region(p, &one);
	l->out--;
	if (!err)
		return one.bytes;
	one.failed = trim;
	/* Without a name for a block it is there until destroy. */
	if (add_region(p, &one, zone, NULL, &b))
		l->regions[l->nr++] = one;
	else
		hm_block_release(p, b);
	return 0;
}

/* One region after the other: anything may change while the provider takes one. */
static size_t regions_trim(struct pool *p, uint64_t keep)
{
	unsigned int trim = ++regions_of(p)->trims, arena = 0;
	struct region *r;
	size_t freed = 0;
	struct block *b;

	while ((r = find_victim(p, keep, trim, &arena, &b)))
		freed += give_region(p, r, b, trim);
	return freed;
}

static size_t regions_shed(struct pool *p, struct block *b, uint64_t from, uint64_t to,
			   uint64_t most)
{
	struct region *r;

	(void)from;
	(void)to;
	if (b->prev || b->next || block_bytes(b) > most)
		return 0;
	r = find_region(regions_of(p), b->addr);
	return r && !r->pinned ? give_region(p, r, b, 0) : 0;
}

static void set_reserve(struct block *b, bool reserve)
{
	const uint8_t flags = b->flags & ~BLOCK_RESERVE;

	__atomic_store_n(&b->flags, flags | (reserve ? BLOCK_RESERVE : 0), __ATOMIC_RELEASE);
}

static struct region *region_around(struct region_list *l, uint64_t addr)
{
	unsigned int i;

	for (i = 0; i < l->nr; i++)
		if (addr >= l->regions[i].addr && addr - l->regions[i].addr < l->regions[i].bytes)
			return &l->regions[i];
	return NULL;
}

/* Nothing here is mapped elsewhere; it is not given back either. */
static int regions_pin(struct pool *p, const void *ptr, bool on)
{
	struct hm_pin gone;
	struct region *r;
	struct block *b;
	int err;

	pthread_mutex_lock(&p->lock);
	b = hm_pin_block(p, on ? "pin_comm" : "unpin_comm", ptr, &err);
	r = b ? region_around(regions_of(p), b->addr) : NULL;
	if (r && on) {
		err = hm_pins_reserve(p);
		if (!err && hm_pins_add(p, b))
			r->pinned++;
	} else if (r) {
		err = hm_pins_remove(p, b, &gone);
		if (!err && !gone.count)
			r->pinned--;
	}
	pthread_mutex_unlock(&p->lock);
	return err;
}

static int reserve_ring(struct pool *p, struct pool_stream *s, const struct hm_ctl_alloc *arg,
			struct block **b)
{
	int err;

	if (!p->provider->ops->ring)
		return hm_error(-EOPNOTSUPP, "alloc_with: this memory of %s is mapped once: take a ring from a pool over vmm(), host(), pinned() or registered()",
				p->provider->ops->name);
	if (arg->size % p->provider->granularity || arg->align > p->provider->granularity)
		return hm_error(-EINVAL, "alloc_with: a ring has a multiple of %zu bytes, and this alignment at most",
				p->provider->granularity);
	err = grow_alone(p, s, arg->size, true, b);
	if (!err)
		set_reserve(*b, true);
	return err;
}

/* Whether the BLOCK_RESERVE @b is a ring. Any other has its reserved rest after it. */
static bool is_ring(const struct block *b)
{
	return !b->next;
}

/*
 * A reserved block is two: the block, and the BUSY rest of what was reserved. Memory that
 * costs nothing before it is touched can be reserved so.
 */
static int regions_reserve(struct pool *p, struct pool_stream *s,
			   const struct hm_ctl_alloc *arg, bool order, struct block **out)
{
	const uint64_t units = units_of(arg->size), all = units_of(arg->reserve);
	struct block *b;
	int err;

	(void)order;
	if (arg->flags & HETMEM_ALLOC_RING)
		return reserve_ring(p, s, arg, out);
	if (!(p->provider->caps & HM_PROVIDER_LAZY))
		return -EOPNOTSUPP;
	b = hm_pool_find_now(p, s, 1, all + units_of(arg->align) - 1, &err);
	if (!b)
		return err;
	b = hm_block_trim(p, b, (b->addr + arg->align - 1) & ~(uint64_t)(arg->align - 1), all, 1);
	if (!b)
		return -ENOMEM;
	if (b->units > units) {
		if (!hm_block_cut(p, b, units)) {
			hm_block_release(p, b);
			return -ENOMEM;
		}
		set_reserve(b, true);
		set_reserve(block_at(p, b->next), true);
	}
	*out = b;
	return 0;
}

static void regions_unreserve(struct pool *p, struct block *b)
{
	struct block *rest = block_at(p, b->next);

	if (is_ring(b))
		return;
	set_reserve(b, false);
	set_reserve(rest, false);
	rest->stream = b->stream;
	rest->pos = b->pos;
	hm_block_release(p, rest);
}

/* Gives back a freed ring: other blocks cannot use it. After an error, destroy gives it back. */
static bool regions_drop(struct pool *p, struct block *b)
{
	struct region_list *l = regions_of(p);
	struct region *r = find_region(l, b->addr), one = *r;

	if (!hm_block_done(p, b))
		return false;
	hm_block_delete(p, b);
	if (r->pinned)
		return true;
	*r = l->regions[--l->nr];
	l->out++;
	if (hm_retry_once(put_region(p, &one)))
		l->regions[l->nr++] = one;
	l->out--;
	return true;
}

static int in_use(void)
{
	return hm_error(-ENOSPC, "grow: the memory after the block is in use");
}

/* Enlarges @b by a part of what was reserved for it. */
static int enlarge_reserved(struct pool *p, struct block *b, uint64_t units)
{
	struct block *rest = block_at(p, b->next);
	const uint64_t more = units - b->units;
	const bool is_all = rest->units == more;

	if (rest->units < more)
		return hm_error(-ENOSPC, "grow: no more addresses were reserved for the block");
	if (!is_all && !hm_block_cut(p, rest, more))
		return -ENOMEM;
	set_reserve(b, !is_all);
	hm_block_join(p, b, rest);
	return 0;
}

/*
 * The last of the free blocks after @b that have @units together with it, and *@missing:
 * how many of the last one's that takes. NULL, and *@err: there are none that @s may have,
 * with @order behind their last uses.
 */
static struct block *find_behind(struct pool *p, const struct pool_stream *s,
				 const struct block *b, uint64_t units, bool order,
				 uint64_t *missing, int *err)
{
	struct block *n = NULL;
	unsigned int i;

	*missing = units - b->units;
	for (i = 0; i < PIECE && b->next; i++, b = n) {
		n = block_at(p, b->next);
		if ((block_state(n) != BLOCK_FREE && block_state(n) != BLOCK_PENDING) ||
		    n->flags & (BLOCK_GRAPH | BLOCK_WHOLE))
			break;
		if (block_state(n) == BLOCK_PENDING || !(order || source_may_have(p, s, n))) {
			*err = hm_error(-ENOMEM, "grow: the memory after the block is used by another stream");
			return NULL;
		}
		if (n->units >= *missing)
			return n;
		*missing -= n->units;
	}
	*err = in_use();
	return NULL;
}

/* Orders @s behind the blocks after @b up to @last. */
static int wait_behind(struct pool *p, struct pool_stream *s, const struct block *b,
		       const struct block *last)
{
	int err = 0;

	while (!err && b != last) {
		b = block_at(p, b->next);
		err = hm_stream_wait(&p->order, &s->s, p->order.streams[b->stream], b->pos);
	}
	return err == -EAGAIN ?
		hm_error(-ENOMEM, "grow: the memory after the block is still in use") : err;
}

static int regions_enlarge(struct pool *p, struct pool_stream *s, struct block *b,
			   uint64_t units, bool order)
{
	struct block *last, *n;
	uint64_t missing;
	int err = 0;

	if (b->flags & BLOCK_RESERVE && is_ring(b))
		return hm_error(-EOPNOTSUPP, "grow: a ring keeps its size");
	if (b->flags & BLOCK_RESERVE)
		return enlarge_reserved(p, b, units);
	last = find_behind(p, s, b, units, order, &missing, &err);
	if (last)
		err = wait_behind(p, s, b, last);
	if (err)
		return err;
	hm_block_take(p, last);
	if (!hm_block_trim(p, last, last->addr, missing, 1))
		return -ENOMEM;
	while (b->units < units) {
		n = block_at(p, b->next);
		if (n != last)
			hm_block_take(p, n);
		hm_block_join(p, b, n);
	}
	return 0;
}

static uint64_t regions_metadata(const struct pool *p)
{
	return sizeof(*regions_of(p)) + regions_of(p)->room * sizeof(struct region);
}

static void regions_poll(struct pool *p)
{
	(void)p;
}

static void regions_destroy(struct pool *p, bool forget)
{
	struct region_list *l = regions_of(p);
	unsigned int i;

	for (i = 0; !forget && i < l->nr; i++)
		hm_retry_once(call_free(p, &l->regions[i]));
	free(l->regions);
	free(l);
	p->memory = NULL;
}

static int regions_init(struct pool *p)
{
	p->memory = calloc(1, sizeof(struct region_list));
	return p->memory ? 0 : hm_error(-ENOMEM, "pool: no host memory");
}

static void regions_small(const struct pool *p, uint64_t *bytes, uint64_t *nr)
{
	*bytes = regions_of(p)->small;
	*nr = regions_of(p)->nr_small;
}

static const struct source regions_source = {
	.init = regions_init,
	.grow = regions_grow,
	.grow_whole = regions_grow_whole,
	.trim = regions_trim,
	.shed = regions_shed,
	.poll = regions_poll,
	.destroy = regions_destroy,
	.metadata = regions_metadata,
	.small = regions_small,
	.pin = regions_pin,
	.enlarge = regions_enlarge,
	.reserve = regions_reserve,
	.unreserve = regions_unreserve,
	.drop = regions_drop,
};

int hm_pool_create(struct hm_provider *provider,
		   const struct hm_pool_options *options,
		   struct hetmem_resource **out)
{
	if (provider->caps & HM_PROVIDER_MAPPABLE)
		return hm_error(-EINVAL, "pool: %s gives no regions",
				provider->ops->name);
	return hm_pool_create_over(provider, &regions_source, options, out);
}
