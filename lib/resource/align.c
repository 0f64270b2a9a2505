// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * align(R,align=,min=): blocks of min bytes up begin at a multiple of align.
 * Smaller ones are as they are asked for, since many small blocks apart from
 * each other would waste what they do not use.
 */
#include <errno.h>
#include <stdlib.h>

#include "resource/adaptor.h"

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

static int align_free(struct hetmem_resource *self, void *ptr, size_t size,
		      hetmem_stream stream)
{
	struct hetmem_resource *up = self->upstream;

	return up->ops->free(up, ptr, size, stream);
}

static void align_destroy(struct hetmem_resource *self)
{
	free(self);
}

static const struct hm_resource_ops align_ops = {
	.name = "align",
	.alloc = align_alloc,
	.free = align_free,
	.ctl = hm_ctl_upstream,
	.destroy = align_destroy,
};

int hm_align_create(struct hetmem_resource *upstream, uint64_t align,
		    uint64_t min, struct hetmem_resource **res)
{
	struct align *a;

	if (!align || align & (align - 1))
		return hm_error(-EINVAL, "align: %llu is not a power of two",
				(unsigned long long)align);
	a = calloc(1, sizeof(*a));
	if (!a)
		return hm_error(-ENOMEM, "align: no memory");
	a->align = align;
	a->min = min;
	hm_adaptor_init(&a->resource, &align_ops, upstream);
	*res = &a->resource;
	return 0;
}
