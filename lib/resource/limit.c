// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * limit(R,max=): no more than so many bytes live at once, counted as they were
 * asked for, so that what a program may use does not depend on how its
 * upstream rounds. The bytes are taken before the upstream is asked: threads
 * that together would go beyond the limit do not.
 */
#include <errno.h>
#include <stdlib.h>

#include "resource/adaptor.h"

struct limit {
	struct hetmem_resource resource;
	struct hm_blocks *blocks;
	uint64_t max;
	uint64_t used;
	uint64_t failed;
};

static int take(struct limit *l, size_t size)
{
	uint64_t used = __atomic_load_n(&l->used, __ATOMIC_RELAXED);

	do {
		if (size > l->max - used) {
			__atomic_add_fetch(&l->failed, 1, __ATOMIC_RELAXED);
			return hm_error(-ENOMEM, "limit: %zu bytes more than %llu that are allocated would be beyond %llu",
					size, (unsigned long long)used,
					(unsigned long long)l->max);
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
	struct hm_known known = { .size = size, .stream = stream };
	int err = take(l, size);

	if (err)
		return err;
	err = up->ops->alloc(up, size, align, stream, &known.ptr);
	if (!err && hm_blocks_add(l->blocks, &known)) {
		up->ops->free(up, known.ptr, size, stream);
		err = -ENOMEM;
	}
	if (err)
		put(l, size);
	else
		*ptr = known.ptr;
	return err;
}

static int limit_free(struct hetmem_resource *self, void *ptr, size_t size,
		      hetmem_stream stream)
{
	struct limit *l = (struct limit *)self;
	struct hetmem_resource *up = self->upstream;
	struct hm_known known;
	int err;

	err = hm_blocks_take_freed(l->blocks, "limit", ptr, size, &known);
	if (err)
		return err;
	err = up->ops->free(up, ptr, known.size, stream);
	if (hm_unlikely(err))
		hm_blocks_add(l->blocks, &known);
	else
		put(l, known.size);
	return err;
}

static int limit_grow(struct limit *l, struct hm_ctl_grow *grow)
{
	struct hm_known known;
	size_t more = 0;
	int err;

	/* Its size is nobody else's while a thread grows it. */
	if (!hm_blocks_find(l->blocks, grow->ptr, &known))
		return hm_error(-EINVAL, "grow: %p is not allocated from this limit",
				grow->ptr);
	if (grow->size > known.size)
		more = grow->size - known.size;
	err = take(l, more);
	if (err)
		return err;
	err = hm_ctl_upstream(&l->resource, HM_CTL_GROW, grow);
	if (err) {
		put(l, more);
		return err;
	}
	hm_blocks_update(l->blocks, grow->ptr, grow->size, 0, &known);
	return 0;
}

/* Addresses cost nothing: what grows into them is counted when it does. */
static int limit_reserve(struct limit *l, struct hm_ctl_reserve *arg)
{
	struct hetmem_resource *up = l->resource.upstream;
	struct hm_known known = { .size = arg->size, .stream = arg->stream };
	int err = take(l, arg->size);

	if (err)
		return err;
	err = hm_ctl_upstream(&l->resource, HM_CTL_RESERVE, arg);
	known.ptr = arg->ptr;
	if (!err && hm_blocks_add(l->blocks, &known)) {
		up->ops->free(up, known.ptr, 0, known.stream);
		err = -ENOMEM;
	}
	if (err)
		put(l, arg->size);
	return err;
}

static int limit_ctl(struct hetmem_resource *self, enum hm_ctl op, void *arg)
{
	struct limit *l = (struct limit *)self;
	struct hetmem_resource_stats *stats = arg;
	int err;

	if (op == HM_CTL_GROW)
		return limit_grow(l, arg);
	if (op == HM_CTL_RESERVE)
		return limit_reserve(l, arg);
	err = hm_ctl_upstream(self, op, arg);
	if (op == HM_CTL_STATS && !err) {
		stats->failed += __atomic_load_n(&l->failed, __ATOMIC_RELAXED);
		stats->metadata += sizeof(*l) + hm_blocks_bytes(l->blocks);
	}
	return err;
}

static void limit_destroy(struct hetmem_resource *self)
{
	struct limit *l = (struct limit *)self;

	hm_blocks_free(l->blocks, NULL, NULL);
	free(l);
}

static const struct hm_resource_ops limit_ops = {
	.name = "limit",
	.alloc = limit_alloc,
	.free = limit_free,
	.ctl = limit_ctl,
	.destroy = limit_destroy,
};

int hm_limit_create(struct hetmem_resource *upstream, uint64_t max,
		    struct hetmem_resource **res)
{
	struct limit *l = calloc(1, sizeof(*l));

	if (!l)
		return hm_error(-ENOMEM, "limit: no memory");
	l->blocks = hm_blocks_new();
	if (!l->blocks) {
		free(l);
		return -ENOMEM;
	}
	l->max = max;
	hm_adaptor_init(&l->resource, &limit_ops, upstream);
	*res = &l->resource;
	return 0;
}
