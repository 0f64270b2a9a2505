// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * classes(PROVIDER): a pool for each placement class, over arenas that the pools share.
 *
 * hetmem_alloc_with() names the class of a block. Otherwise its stream decides: host for
 * HETMEM_STREAM_HOST, else device. Arenas hand out whole units of 2 MiB, so two classes
 * never share a unit. All pools are made at once: every pool is notified of captures,
 * retired streams and private pools.
 *
 * Before a pool takes new memory, the others give back units that they do not use. If
 * there are none, the allocation waits for the others' work, as one pool would. The
 * arenas' map has the class of each pointer, so a free finds its pool without a lock.
 *
 * A block that the other side used before is moved before it is handed out, see
 * hm_arenas_given(). Free memory does not move.
 */
#include <errno.h>
#include <stdlib.h>

#include "adaptor/adaptor.h"
#include "core/parked.h"
#include "core/shrink.h"
#include "provider/arenas.h"

_Static_assert(HETMEM_PLACEMENT_STREAMING == HM_ARENAS_CLASSES, "classes");

/**
 * struct classes - the resource
 * @several: its upstreams are the pools of class 1, 2, ...
 * @options: of the spec, or last set; under hm->lock
 */
struct classes {
	struct hm_several several;
	struct hm_arenas_user user;
	struct hm_arenas *arenas;
	struct hm_pool_options options;
};

static struct hetmem_resource *pool_of(const struct classes *c,
				       unsigned int class)
{
	return c->several.upstreams[class - 1];
}

static unsigned int class_of(const struct classes *c, unsigned int placement,
			     hetmem_stream stream)
{
	if (placement != HETMEM_PLACEMENT_STREAM)
		return placement;
	return c->several.resource.device < 0 || stream == HETMEM_STREAM_HOST ?
		HETMEM_PLACEMENT_HOST : HETMEM_PLACEMENT_DEVICE;
}

/* Returns the pool of the block that @ptr is in, or NULL. */
static struct hetmem_resource *owner(const struct classes *c, const void *ptr)
{
	unsigned int class = hm_arenas_class(c->arenas, ptr);

	return class ? pool_of(c, class) : NULL;
}

/* The other pools give back units that they do not use. Some may not be made yet. */
static void classes_spare(struct hm_arenas_user *user, unsigned int class,
			  size_t bytes)
{
	struct classes *c = hm_container(user, struct classes, user);
	unsigned int i;

	for (i = 1; i <= HM_ARENAS_CLASSES; i++)
		if (i != class && pool_of(c, i))
			hm_pool_spare(pool_of(c, i), bytes);
}

static bool classes_is_gap(struct hm_arenas_user *user, unsigned int class,
			   uintptr_t left, uintptr_t right)
{
	struct classes *c = hm_container(user, struct classes, user);

	return hm_pool_is_gap(pool_of(c, class), left, right);
}

/* Waits for the others' work on freed memory. Returns whether that freed memory. */
static bool trim_others(struct classes *c, unsigned int class)
{
	size_t freed = 0, one;
	unsigned int i;

	for (i = 1; i <= HM_ARENAS_CLASSES; i++) {
		struct hetmem_resource *pool = pool_of(c, i);

		one = 0;
		if (i != class && !pool->ops->ctl(pool, HM_CTL_TRIM, &one))
			freed += one;
	}
	return freed;
}

static int alloc_in(struct classes *c, unsigned int class,
		    struct hm_ctl_alloc *arg)
{
	struct hetmem_resource *pool = pool_of(c, class);

	if (arg->reserve || arg->private_pool)
		return pool->ops->ctl(pool, HM_CTL_ALLOC_WITH, arg);
	return pool->ops->alloc(pool, arg->size, arg->align, arg->stream,
				&arg->ptr);
}

static int classes_alloc_with(struct classes *c, struct hm_ctl_alloc *arg)
{
	unsigned int class = class_of(c, arg->placement, arg->stream);
	int err = arg->tag ?
		hm_error(-EOPNOTSUPP, "alloc_with: only pools over vmm() have tags") :
		alloc_in(c, class, arg);

	if (hm_unlikely(err == -ENOMEM) && trim_others(c, class))
		err = alloc_in(c, class, arg);
	if (err)
		return err;
	hm_arenas_given(c->arenas, arg->ptr, arg->size, arg->stream);
	return 0;
}

static int classes_alloc(struct hetmem_resource *self, size_t size,
			 size_t align, hetmem_stream stream, void **ptr)
{
	struct classes *c = (struct classes *)self;
	unsigned int class = class_of(c, HETMEM_PLACEMENT_STREAM, stream);
	struct hetmem_resource *pool = pool_of(c, class);
	int err = pool->ops->alloc(pool, size, align, stream, ptr);

	if (hm_unlikely(err == -ENOMEM) && trim_others(c, class))
		err = pool->ops->alloc(pool, size, align, stream, ptr);
	if (!err)
		hm_arenas_given(c->arenas, *ptr, size, stream);
	return err;
}

/* The device of @stream used the block. */
static int classes_free(struct hetmem_resource *self, void *ptr, size_t *size,
			hetmem_stream stream)
{
	struct classes *c = (struct classes *)self;
	struct hetmem_resource *pool = owner(c, ptr);
	const bool device = stream != HETMEM_STREAM_HOST &&
		stream != HETMEM_STREAM_UNKNOWN;
	const bool known = *size;
	int err;

	if (!pool)
		return hm_error(-EINVAL, "free: %p is not allocated from this %s",
				ptr, self->ops->name);
	/* If the size is known: before another thread can allocate the block. */
	if (device && known)
		hm_arenas_used(c->arenas, ptr, *size, stream);
	err = pool->ops->free(pool, ptr, size, stream);
	if (!err && device && !known)
		hm_arenas_used(c->arenas, ptr, *size, stream);
	return err;
}

static int classes_record(struct classes *c, struct hm_ctl_stream *arg)
{
	struct hetmem_resource *pool = owner(c, arg->ptr);
	struct hm_ctl_owns owns = { .ptr = arg->ptr, .first = true };
	int err;

	if (!pool)
		return hm_error(-EINVAL, "%p is not allocated from these classes",
				arg->ptr);
	err = pool->ops->ctl(pool, HM_CTL_RECORD, arg);
	if (!err && arg->stream != HETMEM_STREAM_HOST &&
	    !pool->ops->ctl(pool, HM_CTL_OWNS, &owns))
		hm_arenas_used(c->arenas, owns.base, owns.size, arg->stream);
	return err;
}

/* An interior pointer keeps its whole block. */
static int classes_pin(struct classes *c, enum hm_ctl op, struct hm_ctl_stream *arg)
{
	struct hetmem_resource *pool = owner(c, arg->ptr);
	struct hm_ctl_owns owns = { .ptr = arg->ptr };
	int err;

	if (!pool)
		return hm_error(-EINVAL, "%p is not allocated from these classes",
				arg->ptr);
	err = pool->ops->ctl(pool, HM_CTL_OWNS, &owns);
	if (!err)
		err = pool->ops->ctl(pool, op, arg);
	/* Pages stay until destroy: nobody counts who uses them. */
	if (!err && op == HM_CTL_PIN_COMM)
		hm_arenas_keep(c->arenas, owns.base, owns.size);
	return err == -ENOENT ? -EINVAL : err;
}

/* Trims pool after pool, until all together hold at most *@arg bytes. */
static int classes_trim(struct classes *c, size_t *arg)
{
	struct hm_arenas_stats before, now;
	const size_t keep = *arg;
	unsigned int i;
	int err = 0;

	hm_arenas_get_stats(c->arenas, &before);
	hm_arenas_trim(c->arenas, keep);
	for (i = 1; i <= HM_ARENAS_CLASSES && !err; i++) {
		struct hetmem_resource_stats stats = { .size = sizeof(stats) };
		struct hetmem_resource *pool = pool_of(c, i);
		uint64_t others;
		size_t one;

		hm_arenas_get_stats(c->arenas, &now);
		err = pool->ops->ctl(pool, HM_CTL_STATS, &stats);
		if (err || now.held <= keep)
			continue;
		others = now.held > stats.reserved ?
			now.held - stats.reserved : 0;
		one = keep > others ? keep - others : 0;
		err = pool->ops->ctl(pool, HM_CTL_TRIM, &one);
	}
	hm_arenas_trim(c->arenas, keep);
	hm_arenas_get_stats(c->arenas, &now);
	*arg = before.held > now.held ? before.held - now.held : 0;
	return err;
}

/* With decay=, also gives back units that one pool returned and no other pool took. */
static int classes_poll(struct classes *c)
{
	struct hetmem *hm = c->several.resource.hm;
	bool decays;
	int err = hm_several_ctl(&c->several.resource, HM_CTL_POLL, NULL);

	pthread_mutex_lock(&hm->lock);
	decays = c->options.decay_ms;
	pthread_mutex_unlock(&hm->lock);
	if (!err && decays)
		hm_arenas_trim(c->arenas, 0);
	return err;
}

/* Pools count each request for units as a driver call. Replace those by the real calls. */
static int classes_stats(struct classes *c, struct hetmem_resource_stats *stats)
{
	struct hm_arenas_stats arenas;
	int err;

	hm_arenas_get_stats(c->arenas, &arenas);
	err = hm_several_ctl(&c->several.resource, HM_CTL_STATS, stats);
	if (err)
		return err;
	stats->reserved = arenas.held;
	stats->reserved_peak = arenas.peak;
	stats->metadata += sizeof(*c) + arenas.metadata;
	stats->driver_calls += arenas.calls;
	stats->driver_calls -= stats->driver_calls > arenas.asked ?
		arenas.asked : stats->driver_calls;
	return 0;
}

/* Passes parsed options to a pool, except max, which is a bound of the arenas. */
struct handed {
	struct hm_ctl_set set;
	struct hm_pool_options options;
};

static int hand_options(const struct hm_ctl_set *set, const char *kind,
			uint64_t total, void *out)
{
	const struct handed *h = (const struct handed *)set;
	struct hm_pool_options *options = out;

	(void)kind;
	(void)total;
	options->min = h->options.min;
	options->wait_ms = h->options.wait_ms;
	options->decay_ms = h->options.decay_ms;
	options->cache = h->options.cache;
	return 0;
}

/* Returns the class that min= applies to: that of an allocation on the default stream. */
static unsigned int main_class(const struct classes *c)
{
	return class_of(c, HETMEM_PLACEMENT_STREAM, NULL);
}

static int set_pools(struct classes *c, const struct hm_ctl_set *set,
		     const struct hm_pool_options *options)
{
	struct handed h = { .set = *set, .options = *options };
	unsigned int i;
	int err = 0;

	h.set.change = hand_options;
	for (i = 1; i <= HM_ARENAS_CLASSES && !err; i++) {
		struct hetmem_resource *pool = pool_of(c, i);

		h.options.min = i == main_class(c) ? options->min : 0;
		err = pool->ops->ctl(pool, HM_CTL_SET, &h.set);
	}
	return err;
}

/* Gives memory back until @max holds. If a large region prevents that, gives all back. */
static int shrink(struct classes *c, uint64_t max)
{
	struct hm_arenas_stats stats;
	size_t keep = max;
	int err = classes_trim(c, &keep);

	hm_arenas_get_stats(c->arenas, &stats);
	keep = 0;
	return err || stats.held <= max ? err : classes_trim(c, &keep);
}

static int classes_set(struct classes *c, struct hm_ctl_set *set)
{
	struct hetmem *hm = c->several.resource.hm;
	const uint64_t total = hm_arenas_base(c->arenas)->total;
	struct hm_pool_options options;
	int err;

	pthread_mutex_lock(&hm->lock);
	options = c->options;
	pthread_mutex_unlock(&hm->lock);
	err = set->change(set, "classes", total, &options);
	if (err == -ENOENT)
		err = set->change(set, "pool", total, &options);
	if (err)
		return err == -ENOENT ? -EOPNOTSUPP : err;
	if (options.max && options.min > options.max)
		return hm_error(-EINVAL, "classes: min is more than max");
	err = set_pools(c, set, &options);
	if (err || set->try)
		return err;
	pthread_mutex_lock(&hm->lock);
	c->options = options;
	pthread_mutex_unlock(&hm->lock);
	hm_arenas_set_max(c->arenas, options.max);
	return options.max ? shrink(c, options.max) : 0;
}

static int ask_owner(struct classes *c, const void *ptr, enum hm_ctl op,
		     void *arg)
{
	struct hetmem_resource *pool = owner(c, ptr);

	if (pool)
		return pool->ops->ctl(pool, op, arg);
	return op == HM_CTL_OWNS ?
		hm_error(-ENOENT, "owns: %p is in no block of these classes", ptr) :
		hm_error(-EINVAL, "%p is not allocated from these classes", ptr);
}

static int classes_grow(struct classes *c, struct hm_ctl_grow *arg)
{
	int err = ask_owner(c, arg->ptr, HM_CTL_GROW, arg);

	if (!err && arg->size > arg->was)
		hm_arenas_given(c->arenas, (char *)arg->ptr + arg->was,
				arg->size - arg->was, arg->stream);
	return err;
}

static int classes_ctl(struct hetmem_resource *self, enum hm_ctl op, void *arg)
{
	struct classes *c = (struct classes *)self;

	switch (op) {
	case HM_CTL_ALLOC_WITH:
		return classes_alloc_with(c, arg);
	case HM_CTL_OWNS:
		return ask_owner(c, ((struct hm_ctl_owns *)arg)->ptr, op, arg);
	case HM_CTL_RECORD:
		return classes_record(c, arg);
	case HM_CTL_GROW:
		return classes_grow(c, arg);
	case HM_CTL_SHRINK:
		return ask_owner(c, ((struct hm_ctl_shrink *)arg)->ptr, op, arg);
	case HM_CTL_PARKED_READ:
		return ask_owner(c, ((struct hm_ctl_parked *)arg)->ptr, op, arg);
	case HM_CTL_POLL:
		return classes_poll(c);
	case HM_CTL_PIN_COMM:
	case HM_CTL_UNPIN_COMM:
		return classes_pin(c, op, arg);
	case HM_CTL_TRIM:
		return classes_trim(c, arg);
	case HM_CTL_STATS:
		return classes_stats(c, arg);
	case HM_CTL_SET:
		return classes_set(c, arg);
	case HM_CTL_ACCESS:
		return hm_provider_access(hm_arenas_base(c->arenas), arg);
	case HM_CTL_GATE:
		return hm_arenas_gate(c->arenas, arg);
	default:
		return hm_several_ctl(self, op, arg);
	}
}

static void put_pools(struct classes *c)
{
	int i;

	for (i = 0; i < c->several.nr; i++)
		hm_resource_put(c->several.upstreams[i]);
}

static void classes_destroy(struct hetmem_resource *self)
{
	struct classes *c = (struct classes *)self;

	struct hm_provider *base;

	put_pools(c);
	base = hm_arenas_destroy(c->arenas);
	base->ops->destroy(base);
	hm_resource_free(self);
}

static const struct hm_resource_ops classes_ops = {
	.name = "classes",
	.alloc = classes_alloc,
	.free = classes_free,
	.ctl = classes_ctl,
	.destroy = classes_destroy,
};

static int add_pool(struct classes *c, unsigned int class)
{
	struct hm_provider *provider = hm_arenas_provider(c->arenas, class);
	struct hm_pool_options options = c->options;
	int err;

	if (!provider)
		return -ENOMEM;
	options.max = 0;
	if (class != main_class(c))
		options.min = 0;
	err = hm_pool_create(provider, &options,
			     &c->several.upstreams[class - 1]);
	if (err)
		provider->ops->destroy(provider);
	else
		c->several.nr++;
	return err;
}

int hm_classes_create(struct hm_provider *provider,
		      const struct hm_pool_options *options,
		      struct hetmem_resource **res)
{
	struct classes *c = calloc(1, sizeof(*c));
	unsigned int class;
	int err;

	if (!c)
		return hm_error(-ENOMEM, "classes: no memory");
	c->several.resource = (struct hetmem_resource){
		.ops = &classes_ops,
		.hm = provider->hm,
		.device = provider->device,
	};
	c->user.spare = classes_spare;
	c->user.is_gap = classes_is_gap;
	c->options = *options;
	if (options->max && options->min > options->max)
		err = hm_error(-EINVAL, "classes: min is more than max");
	else
		err = hm_arenas_create(provider, options->max, &c->user,
				       &c->arenas);
	if (err) {
		free(c);
		return err;
	}
	for (class = 1; class <= HM_ARENAS_CLASSES && !err; class++)
		err = add_pool(c, class);
	if (err) {
		put_pools(c);
		hm_arenas_destroy(c->arenas);
		free(c);
		return err;
	}
	*res = &c->several.resource;
	return 0;
}
