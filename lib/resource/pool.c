// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The pool: made and destroyed. pool_impl.h tells how it is built,
 * pool_cache.c is where allocations and frees arrive.
 */
#include <stdlib.h>
#include <string.h>

#include "resource/pool_impl.h"

#define MAX_USES	(1U << 20)
#define CACHE_MAX	((uint64_t)32 << 20)

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

struct live {
	uint64_t nr;
	uint64_t bytes;
	struct block *first;
};

static struct live count_live(const struct pool *p)
{
	struct live live = { 0, 0, NULL };
	uint32_t id;

	for (id = 1; id < p->blocks.nr; id++) {
		struct block *b = block_at(p, id);

		if (b->state != BLOCK_LIVE)
			continue;
		if (!live.first)
			live.first = b;
		live.nr++;
		live.bytes += block_bytes(b) - b->slack;
	}
	return live;
}

/* The text names the first of what is still live. */
static void report_live(const struct live *live)
{
	const struct block *first = live->first;

	if (first)
		hm_error(0, "pool destroyed with %llu live blocks of %llu bytes, the first %p of %llu",
			 (unsigned long long)live->nr,
			 (unsigned long long)live->bytes,
			 (void *)(uintptr_t)first->addr,
			 (unsigned long long)(block_bytes(first) -
					      first->slack));
}

/* All that is under way. */
static void sync_all(struct pool *p, bool live)
{
	unsigned int i;

	if (!hm_pool_sync(p, live))
		return;
	/* An end that cannot be recorded: that of the context is one too. */
	for (i = 1; i < p->order.nr; i++)
		if (p->order.streams[i]->id)
			hm_stream_sync_lost(&p->order, p->order.streams[i]);
}

static void pool_destroy(struct hetmem_resource *res)
{
	struct pool *p = to_pool(res);
	bool forget = hm_generation() != res->hm->generation;
	struct live live;

	if (p->host)
		hm_pool_fork_remove(p);
	if (!forget)
		hm_pool_collect(p);
	live = count_live(p);
	if (!forget)
		sync_all(p, live.nr);
	p->source->destroy(p, forget);
	hm_graphs_destroy(p);
	free_streams(p);
	hm_order_destroy(&p->order, forget);
	p->provider->ops->destroy(p->provider);
	report_live(&live);
	hm_hash_free(p);
	hm_names_free(p);
	hm_table_free(&p->uses);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

static const struct hm_resource_ops pool_ops = {
	.name = "pool",
	.alloc = hm_pool_alloc,
	.free = hm_pool_free,
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
			    &p->lock);
	if (err)
		return err;
	err = hm_names_init(p);
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
	hm_names_free(p);
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
	p = aligned_alloc(_Alignof(struct pool), sizeof(*p));
	if (!p)
		return hm_error(-ENOMEM, "pool: no host memory");
	memset(p, 0, sizeof(*p));
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
		hm_names_free(p);
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
