/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The inside of region.h: region.c allocates and frees, region_ctl.c answers
 * questions about blocks and streams. region.c tells the locking.
 */
#ifndef HETMEM_RESOURCE_REGION_IMPL_H
#define HETMEM_RESOURCE_REGION_IMPL_H

#include "resource/region.h"
#include "resource/region_use.h"

/**
 * struct block - a region, live or freed
 * @range: as it may be used
 * @base, @base_size: as the provider gave it
 * @size: as it was asked for
 * @own: the stream it was allocated on; once freed, the one it was freed on
 * @uses: recorded
 * @next: of freed ones, oldest first
 */
struct block {
	struct hm_range range;
	void *base;
	size_t base_size;
	size_t size;
	struct hm_use own;
	struct hm_use *uses;
	unsigned int nr_uses;
	struct block *next;
};

struct region {
	struct hetmem_resource resource;
	struct hm_provider *provider;
	void *live;
	struct block *freed;
	struct block **last;
	size_t freed_bytes;
	struct hetmem_resource_stats stats;
};

static inline struct region *region_of(struct hetmem_resource *self)
{
	return (struct region *)self;
}

static inline bool region_has(const struct region *r, unsigned int cap)
{
	return r->provider->caps & cap;
}

static inline void region_lock(struct region *r)
{
	pthread_mutex_lock(&r->resource.hm->lock);
}

static inline void region_unlock(struct region *r)
{
	pthread_mutex_unlock(&r->resource.hm->lock);
}

static inline int region_check_owner(struct region *r)
{
	return region_has(r, HM_PROVIDER_FORK) ? 0 :
		hm_check_owner(r->resource.hm);
}

/* Streams mean something: there is a device, and it is this process's. */
static inline bool region_has_streams(const struct region *r)
{
	const struct hetmem *hm = r->resource.hm;

	return hm->nr_devices && hm->generation == hm_generation();
}

/* With the lock: NULL unless @ptr is exactly what was allocated. */
static inline struct block *region_find(struct region *r, const void *ptr)
{
	struct hm_range *range = hm_range_find(&r->live, (uintptr_t)ptr, 1);

	return range && range->start == (uintptr_t)ptr ? (void *)range : NULL;
}

/* With the lock: @b is freed, and no more in the tree. */
void region_append(struct region *r, struct block *b);

/* region_ctl.c */
int region_record(struct region *r, const struct hm_ctl_stream *arg);
int region_retire(struct region *r, hetmem_stream stream);
int region_owns(struct region *r, struct hm_ctl_owns *arg);
int region_segments(struct region *r, struct hm_ctl_segments *arg);
void region_get_stats(struct region *r, struct hetmem_resource_stats *stats);

#endif /* HETMEM_RESOURCE_REGION_IMPL_H */
