// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * limit(R,max=): no more than so many bytes live at once, counted as they were
 * asked for, so that what a program may use does not depend on how its
 * upstream rounds. The bytes are taken before the upstream is asked: threads
 * that together would go beyond the limit do not.
 */
#include <errno.h>

#include "adaptor/adaptor.h"
#include "core/shrink.h"
#include "core/snapshot.h"

/**
 * struct limit - the adaptor
 * @max: changes at run time; may be less than @used then
 * @most: @max of the spec, or of the last hetmem_resource_set()
 */
struct limit {
	struct hetmem_resource resource;
	uint64_t max;
	uint64_t most;
	uint64_t used;
	uint64_t failed;
};

static int take(struct limit *l, size_t size)
{
	uint64_t used = __atomic_load_n(&l->used, __ATOMIC_RELAXED);
	uint64_t max = __atomic_load_n(&l->max, __ATOMIC_RELAXED);

	do {
		if (used > max || size > max - used) {
			__atomic_add_fetch(&l->failed, 1, __ATOMIC_RELAXED);
			return hm_error(-ENOMEM, "limit: %zu bytes more than %llu that are allocated would be beyond %llu",
					size, (unsigned long long)used,
					(unsigned long long)max);
		}
	} while (!__atomic_compare_exchange_n(&l->used, &used, used + size,
					      true, __ATOMIC_RELAXED,
					      __ATOMIC_RELAXED));
	return 0;
}

static void put(struct limit *l, size_t size)
{
	__atomic_sub_fetch(&l->used, size, __ATOMIC_RELAXED);
}

static int limit_alloc(struct hetmem_resource *self, size_t size,
		       size_t align, hetmem_stream stream, void **ptr)
{
	struct limit *l = (struct limit *)self;
	struct hetmem_resource *up = self->upstream;
	int err = take(l, size);

	if (err)
		return err;
	err = up->ops->alloc(up, size, align, stream, ptr);
	if (err)
		put(l, size);
	return err;
}

static int limit_free(struct hetmem_resource *self, void *ptr, size_t *size,
		      hetmem_stream stream)
{
	struct limit *l = (struct limit *)self;
	struct hetmem_resource *up = self->upstream;
	int err = up->ops->free(up, ptr, size, stream);

	if (!err)
		put(l, *size);
	return err;
}

static int limit_grow(struct limit *l, struct hm_ctl_grow *grow)
{
	struct hm_ctl_owns block = { .ptr = grow->ptr, .first = true };
	size_t more = 0;
	int err;

	/* Its size is nobody else's while a thread grows it. */
	err = hm_ctl_upstream(&l->resource, HM_CTL_OWNS, &block);
	if (err || block.base != grow->ptr)
		return err && err != -ENOENT ? err :
			hm_error(-EINVAL, "grow: %p is not allocated from this limit",
				 grow->ptr);
	if (grow->size > block.asked)
		more = grow->size - block.asked;
	err = take(l, more);
	if (err)
		return err;
	err = hm_ctl_upstream(&l->resource, HM_CTL_GROW, grow);
	if (err)
		put(l, more);
	else if (grow->size < grow->was)
		put(l, grow->was - grow->size);
	return err;
}

/* Bytes from @arg's offset to its end: the last unit counts whole. */
static size_t count_units(struct limit *l, const struct hm_ctl_shrink *arg)
{
	struct hm_ctl_owns block = { .ptr = arg->ptr, .first = true };

	if (!hm_ctl_upstream(&l->resource, HM_CTL_OWNS, &block) &&
	    arg->offset + arg->length == block.asked)
		return block.size - arg->offset;
	return arg->length;
}

static int limit_part(struct limit *l, struct hm_ctl_shrink *arg)
{
	const size_t more = arg->what == HM_PART_COMMIT ? count_units(l, arg) : 0;
	int err = take(l, more);

	if (err)
		return err;
	err = hm_ctl_upstream(&l->resource, HM_CTL_SHRINK, arg);
	if (err)
		put(l, more);
	else if (arg->what == HM_PART_DECOMMIT)
		put(l, arg->counted);
	return err;
}

/* Reserved addresses cost nothing: growth into them is counted then. */
static int limit_alloc_with(struct limit *l, struct hm_ctl_alloc *arg)
{
	int err = take(l, arg->size);

	if (err)
		return err;
	err = hm_ctl_upstream(&l->resource, HM_CTL_ALLOC_WITH, arg);
	if (err)
		put(l, arg->size);
	return err;
}

/* In the plan what is more than is freed; what is less when it is done. */
static int limit_restore(struct limit *l, struct hm_ctl_restore *arg)
{
	size_t more = 0, less = 0, from, to, i;
	int err = hm_restore_upstream(&l->resource, arg, &from, &to);

	if (err)
		return err;
	for (i = from; i < to; i++) {
		if (arg->blocks[i].kind == HETMEM_RESTORED_ALLOCATED)
			more += arg->blocks[i].bytes;
		else if (arg->blocks[i].kind == HETMEM_RESTORED_FREED)
			less += arg->blocks[i].bytes;
	}
	if (arg->step == HM_RESTORE_DO && less > more)
		put(l, less - more);
	else if (arg->step == HM_RESTORE_CANCEL && more > less)
		put(l, more - less);
	else if (arg->step == HM_RESTORE_PLAN && more > less)
		err = take(l, more - less);
	if (err)
		hm_restore_cancel(&l->resource, arg, from);
	return err;
}

static int limit_set(struct limit *l, struct hm_ctl_set *set)
{
	struct hm_limit_options options = {
		.most = __atomic_load_n(&l->most, __ATOMIC_RELAXED),
	};
	int err = set->change(set, "limit",
			      hm_adaptor_total(l->resource.upstream), &options);

	if (err == -ENOENT)
		return hm_ctl_upstream(&l->resource, HM_CTL_SET, set);
	if (!err && !set->try) {
		__atomic_store_n(&l->max, options.max, __ATOMIC_RELAXED);
		__atomic_store_n(&l->most, options.most, __ATOMIC_RELAXED);
	}
	return err;
}

static int limit_charge(struct limit *l, struct hm_ctl_charge *charge)
{
	int err = charge->add ? take(l, charge->add) : 0;

	if (err)
		return err;
	put(l, charge->sub);
	charge->max = __atomic_load_n(&l->max, __ATOMIC_RELAXED);
	charge->used = __atomic_load_n(&l->used, __ATOMIC_RELAXED);
	return 0;
}

static int limit_ctl(struct hetmem_resource *self, enum hm_ctl op, void *arg)
{
	struct limit *l = (struct limit *)self;
	struct hetmem_resource_stats *stats = arg;
	int err;

	if (op == HM_CTL_GROW)
		return limit_grow(l, arg);
	if (op == HM_CTL_SHRINK)
		return limit_part(l, arg);
	if (op == HM_CTL_ALLOC_WITH)
		return limit_alloc_with(l, arg);
	if (op == HM_CTL_RESTORE)
		return limit_restore(l, arg);
	if (op == HM_CTL_SET)
		return limit_set(l, arg);
	if (op == HM_CTL_CHARGE)
		return limit_charge(l, arg);
	err = hm_ctl_upstream(self, op, arg);
	if (op == HM_CTL_STATS && !err) {
		stats->failed += __atomic_load_n(&l->failed, __ATOMIC_RELAXED);
		stats->metadata += sizeof(*l);
	}
	return err;
}

static const struct hm_resource_ops limit_ops = {
	.name = "limit",
	.alloc = limit_alloc,
	.free = limit_free,
	.ctl = limit_ctl,
	.destroy = hm_resource_free,
};

int hm_limit_create(struct hetmem_resource *upstream,
		    const struct hm_limit_options *options,
		    struct hetmem_resource **res)
{
	struct limit *l = hm_adaptor_new(sizeof(*l), &limit_ops, upstream);

	if (!l)
		return -ENOMEM;
	l->max = options->max;
	l->most = options->most;
	*res = &l->resource;
	return 0;
}
