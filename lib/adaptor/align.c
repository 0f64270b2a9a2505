// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * align(R,align=,min=): blocks of min bytes up begin at a multiple of align.
 * Smaller ones are as they are asked for, since many small blocks apart from
 * each other would waste what they do not use.
 */
#include <errno.h>

#include "adaptor/adaptor.h"

struct align {
	struct hetmem_resource resource;
	size_t align;
	size_t min;
};

static int align_alloc(struct hetmem_resource *self, size_t size,
		       size_t align, hetmem_stream stream, void **ptr)
{
	struct align *a = (struct align *)self;
	struct hetmem_resource *up = self->upstream;

	if (size >= a->min && align < a->align)
		align = a->align;
	return up->ops->alloc(up, size, align, stream, ptr);
}

static int align_ctl(struct hetmem_resource *self, enum hm_ctl op, void *arg)
{
	struct align *a = (struct align *)self;
	struct hm_ctl_alloc *with = arg;

	if (op == HM_CTL_ALLOC_WITH && with->size >= a->min &&
	    with->align < a->align)
		with->align = a->align;
	return hm_ctl_upstream(self, op, arg);
}

static const struct hm_resource_ops align_ops = {
	.name = "align",
	.alloc = align_alloc,
	.free = hm_adaptor_free,
	.ctl = align_ctl,
	.destroy = hm_resource_free,
};

int hm_align_create(struct hetmem_resource *upstream, uint64_t align,
		    uint64_t min, struct hetmem_resource **res)
{
	struct align *a;

	if (!align || align & (align - 1))
		return hm_error(-EINVAL, "align: %llu is not a power of two",
				(unsigned long long)align);
	a = hm_adaptor_new(sizeof(*a), &align_ops, upstream);
	if (!a)
		return -ENOMEM;
	a->align = align;
	a->min = min;
	*res = &a->resource;
	return 0;
}
