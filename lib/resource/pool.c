// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The pool: made, used, destroyed. pool_impl.h tells how it is built.
 *
 * The cached path: a stream keeps what was freed on it, up to a limit, by
 * exact size. Such a block comes back on the same stream without a lock that
 * another stream takes, without a system call, and without a call of the
 * driver but for the stream's id. Everything else is pool_slow.c.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "driver/check.h"
#include "resource/pool_impl.h"

#define MAX_BLOCKS	(1U << 24)
#define MAX_USES	(1U << 20)
#define CACHE_MAX	((uint64_t)16 << 20)

void hm_pool_spin(struct pool_stream *s)
{
	unsigned int i;

	do {
		for (i = 0; i < 100 && __atomic_load_n(&s->lock,
						__ATOMIC_RELAXED); i++)
			__builtin_ia32_pause();
		if (i == 100)
			sched_yield();
	} while (__atomic_exchange_n(&s->lock, 1, __ATOMIC_ACQUIRE));
}

static struct block *cache_pop(struct pool *p, struct pool_stream *s,
			       uint32_t units)
{
	uint32_t id = s->cache[units];
	struct block *b = block_at(p, id);

	if (!id)
		return NULL;
	s->cache[units] = b->right;
	s->cached -= (uint64_t)units << UNIT_SHIFT;
	return b;
}

static int get(struct hetmem_resource *res, size_t size, size_t align,
	       hetmem_stream stream, void **ptr)
{
	struct pool *p = to_pool(res);
	struct pool_stream *s;
	uint32_t units;
	struct block *b;
	int err;

	err = p->host && stream == HETMEM_STREAM_HOST ? 0 :
		hm_check_owner(res->hm);
	if (!err)
		err = hm_stream_get(&p->order, stream,
				    (struct hm_stream **)&s);
	if (hm_unlikely(err))
		return err;
	if (size > SMALL_MAX || align > UNIT ||
	    hm_unlikely(__atomic_load_n(&s->graph, __ATOMIC_RELAXED)))
		return hm_pool_alloc_slow(p, s, size, align, ptr);
	units = (size + UNIT - 1) >> UNIT_SHIFT;
	stream_lock(s);
	b = s->cache ? cache_pop(p, s, units) : NULL;
	if (hm_unlikely(!b)) {
		stream_unlock(s);
		return hm_pool_alloc_slow(p, s, size, align, ptr);
	}
	b->slack = (units << UNIT_SHIFT) - size;
	b->stream = s->s.index;
	b->pos = s->s.serial;
	b->left = 0;
	s->requested += size;
	if (s->requested > s->high)
		s->high = s->requested;
	s->allocs++;
	*ptr = (void *)(uintptr_t)b->addr;
	set_state(b, BLOCK_LIVE);
	stream_unlock(s);
	return 0;
}

static int pool_alloc(struct hetmem_resource *res, size_t size, size_t align,
		      hetmem_stream stream, void **ptr)
{
	int err = get(res, size, align, stream, ptr);

	if (hm_unlikely(hm_check_enabled) && !err)
		hm_pool_tell_alloc(to_pool(res), *ptr, size, stream);
	return err;
}

/*
 * LIVE to BUSY. Two threads that free one block at the same time are told
 * apart in check mode only: an atomic exchange is a third of what a free costs.
 */
static bool to_busy(const struct pool *p, struct block *b)
{
	uint8_t state = BLOCK_LIVE;

	if (hm_unlikely(p->opt.check))
		return __atomic_compare_exchange_n(&b->state, &state,
				BLOCK_BUSY, false, __ATOMIC_ACQ_REL,
				__ATOMIC_RELAXED);
	if (hm_unlikely(block_state(b) != BLOCK_LIVE))
		return false;
	set_state(b, BLOCK_BUSY);
	return true;
}

static __attribute__((noinline))
struct block *not_live(void *ptr, const struct block *b)
{
	hm_error(-EINVAL, b ? "free: %p was freed already" :
		 "free: %p is not the beginning of a live block", ptr);
	return NULL;
}

/* A reader of the hash may be led astray; whoever looks under the lock not. */
static __attribute__((noinline))
struct block *find_again(struct pool *p, void *ptr)
{
	struct block *b;

	pthread_mutex_lock(&p->lock);
	b = hm_block_find_locked(p, (uintptr_t)ptr);
	pthread_mutex_unlock(&p->lock);
	return b;
}

/* A live block that is the caller's now, or NULL and why. */
static struct block *claim(struct pool *p, void *ptr, size_t size)
{
	struct block *b = hm_block_find(p, (uintptr_t)ptr);
	uint64_t asked;

	if (hm_unlikely(!b))
		b = find_again(p, ptr);
	if (hm_unlikely(!b || !to_busy(p, b)))
		return not_live(ptr, b);
	asked = block_bytes(b) - b->slack;
	if (hm_unlikely(size && size != asked)) {
		set_state(b, BLOCK_LIVE);
		hm_error(-EINVAL, "free: %p has %llu bytes, not %zu", ptr,
			 (unsigned long long)asked, size);
		return NULL;
	}
	return b;
}

static uint64_t cache_max(const struct pool *p)
{
	return __atomic_load_n(&p->cache_max, __ATOMIC_RELAXED);
}

static bool cache_push(struct pool *p, struct pool_stream *s, struct block *b)
{
	uint64_t bytes = block_bytes(b);
	bool pushed = false;

	stream_lock(s);
	if (s->cache && s->cached + bytes <= cache_max(p) && !s->s.retired) {
		b->pos = hm_stream_step(&s->s);
		b->right = s->cache[b->units];
		s->cache[b->units] = block_id(p, b);
		s->cache_map[b->units / 64] |= 1ULL << b->units % 64;
		s->cached += bytes;
		s->requested -= bytes - b->slack;
		s->frees++;
		b->stream = s->s.index;
		set_state(b, BLOCK_CACHED);
		pushed = true;
	}
	stream_unlock(s);
	return pushed;
}

/* Not on the cached path: there is no cache yet, or it is full. */
static void make_cache(struct pool *p, struct pool_stream *s)
{
	uint32_t *cache;

	if (!cache_max(p))
		return;
	pthread_mutex_lock(&p->lock);
	if (s->cache) {
		hm_stream_flush(p, s, cache_max(p) / 2);
	} else {
		cache = calloc(NR_BINS, sizeof(*cache));
		stream_lock(s);
		s->cache = cache;
		stream_unlock(s);
	}
	pthread_mutex_unlock(&p->lock);
}

static int pool_free(struct hetmem_resource *res, void *ptr, size_t size,
		     hetmem_stream stream)
{
	struct pool *p = to_pool(res);
	struct pool_stream *s = NULL;
	struct block *b;
	int err;

	err = p->host && stream == HETMEM_STREAM_HOST ? 0 :
		hm_check_owner(res->hm);
	if (!err && stream != HETMEM_STREAM_UNKNOWN)
		err = hm_stream_get(&p->order, stream,
				    (struct hm_stream **)&s);
	if (hm_unlikely(err))
		return err;
	b = claim(p, ptr, size);
	if (hm_unlikely(!b))
		return -EINVAL;
	if (hm_unlikely(hm_check_enabled) && !(b->flags & BLOCK_GRAPH))
		hm_pool_tell_free(p, b, stream);
	if (!s || b->units >= NR_BINS ||
	    __atomic_load_n(&b->flags, __ATOMIC_RELAXED) & ~BLOCK_ZONE ||
	    __atomic_load_n(&s->graph, __ATOMIC_RELAXED))
		return hm_pool_free_slow(p, s, b);
	if (cache_push(p, s, b))
		return 0;
	make_cache(p, s);
	return cache_push(p, s, b) ? 0 : hm_pool_free_slow(p, s, b);
}

static void free_streams(struct pool *p)
{
	unsigned int i, zone;

	for (i = 0; i < p->order.nr; i++) {
		struct pool_stream *s = stream_at(p, i);

		free(s->cache);
		for (zone = 0; zone < NR_ZONES; zone++)
			hm_arena_free(&s->arenas[zone]);
	}
}

/* The text names the first of what is still live. */
static void report_live(struct pool *p)
{
	uint64_t nr = 0, bytes = 0;
	struct block *first = NULL;
	uint32_t id;

	for (id = 1; id < p->blocks.nr; id++) {
		struct block *b = block_at(p, id);

		if (b->state != BLOCK_LIVE)
			continue;
		if (!first)
			first = b;
		nr++;
		bytes += block_bytes(b) - b->slack;
	}
	if (nr)
		hm_error(0, "pool destroyed with %llu live blocks of %llu bytes, the first %p of %llu",
			 (unsigned long long)nr, (unsigned long long)bytes,
			 (void *)(uintptr_t)first->addr,
			 (unsigned long long)(block_bytes(first) -
					      first->slack));
}

static void pool_destroy(struct hetmem_resource *res)
{
	struct pool *p = to_pool(res);
	bool forget = hm_generation() != res->hm->generation;
	unsigned int i;

	if (p->host)
		hm_pool_fork_remove(p);
	for (i = 1; !forget && i < p->order.nr; i++) {
		struct hm_stream *s = p->order.streams[i];

		if (!hm_stream_sync(&p->order, s, hm_stream_pos(s),
				    UINT64_MAX))
			continue;
		/* Its end cannot be recorded: that of the context is one too. */
		s->lost = true;
		hm_stream_sync(&p->order, s, hm_stream_pos(s), UINT64_MAX);
	}
	p->source->destroy(p, forget);
	hm_graphs_destroy(p);
	free_streams(p);
	hm_order_destroy(&p->order, forget);
	p->provider->ops->destroy(p->provider);
	report_live(p);
	hm_hash_free(p);
	hm_table_free(&p->blocks);
	hm_table_free(&p->uses);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

static const struct hm_resource_ops pool_ops = {
	.name = "pool",
	.alloc = pool_alloc,
	.free = pool_free,
	.ctl = hm_pool_ctl,
	.destroy = pool_destroy,
};

static int check_options(const struct hm_pool_options *opt,
			 const struct hm_provider *provider)
{
	if (opt->max && opt->min > opt->max)
		return hm_error(-EINVAL, "pool: min is more than max");
	if (opt->min && provider->caps & HM_PROVIDER_EXPORT)
		return hm_error(-EINVAL, "pool: exportable memory is made for each block: no min");
	if (opt->handle & (opt->handle - 1) ||
	    (opt->handle && opt->handle < provider->granularity))
		return hm_error(-EINVAL, "pool: handle is a power of two, %zu at least",
				provider->granularity);
	if ((opt->comm || opt->reserve) &&
	    !(provider->caps & HM_PROVIDER_MAPPABLE))
		return hm_error(-EOPNOTSUPP, "pool: %s has no addresses apart from memory",
				provider->ops->name);
	return 0;
}

static int init_parts(struct pool *p)
{
	int err;

	err = hm_order_init(&p->order, p->res.hm, p->res.device,
			    sizeof(struct pool_stream), p->opt.retired,
			    p->opt.check, &p->lock);
	if (err)
		return err;
	err = hm_table_init(&p->blocks, sizeof(struct block),
			    offsetof(struct block, left), MAX_BLOCKS);
	if (!err)
		err = hm_table_init(&p->uses, sizeof(struct use),
				    offsetof(struct use, next), MAX_USES);
	if (!err)
		err = hm_hash_init(p);
	if (!err)
		err = p->provider->caps & HM_PROVIDER_MAPPABLE ?
			hm_vm_init(p) : hm_regions_init(p);
	if (!err)
		return 0;
	hm_hash_free(p);
	hm_table_free(&p->uses);
	hm_table_free(&p->blocks);
	hm_order_destroy(&p->order, false);
	return err;
}

static int make_min(struct pool *p)
{
	const uint64_t units = p->opt.min >> UNIT_SHIFT;
	int err = 0;

	pthread_mutex_lock(&p->lock);
	if (units > UINT32_MAX / 2)
		err = hm_error(-EINVAL, "pool: min is more than 1 TiB");
	else if (units)
		err = p->source->grow(p, stream_at(p, 0), 1, units);
	pthread_mutex_unlock(&p->lock);
	return err;
}

int hm_pool_create(struct hm_provider *provider,
		   const struct hm_pool_options *options,
		   struct hetmem_resource **out)
{
	static const struct hm_pool_options defaults;
	struct pool *p;
	int err;

	if (!options)
		options = &defaults;
	err = check_options(options, provider);
	if (err)
		return err;
	p = calloc(1, sizeof(*p));
	if (!p)
		return hm_error(-ENOMEM, "pool: no host memory");
	p->res.ops = &pool_ops;
	p->res.hm = provider->hm;
	p->res.device = provider->device;
	p->provider = provider;
	p->opt = *options;
	if (!p->opt.wait_ms)
		p->opt.wait_ms = HM_POOL_WAIT_MS;
	if (!p->opt.cache)
		p->opt.cache = CACHE_MAX;
	p->cache_max = p->opt.cache;
	p->host = provider->caps & HM_PROVIDER_FORK;
	p->whole = provider->caps & HM_PROVIDER_EXPORT;
	if (p->whole)
		p->cache_max = 0;
	pthread_mutex_init(&p->lock, NULL);
	err = init_parts(p);
	if (err) {
		pthread_mutex_destroy(&p->lock);
		free(p);
		return err;
	}
	err = make_min(p);
	if (err) {
		/* The provider stays the caller's. */
		p->source->destroy(p, false);
		free_streams(p);
		hm_order_destroy(&p->order, false);
		hm_hash_free(p);
		hm_table_free(&p->blocks);
		hm_table_free(&p->uses);
		pthread_mutex_destroy(&p->lock);
		free(p);
		return err;
	}
	if (p->host)
		hm_pool_fork_add(p);
	*out = &p->res;
	return 0;
}
