// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * binning(A,B,...,at=X/...): blocks of up to X bytes from A, larger ones up to
 * the next bound from B, and so on; the last has no bound. A free does not
 * rely on the size that it is told: the owner is asked for.
 */
#include <errno.h>
#include <string.h>

#include "adaptor/adaptor.h"

struct binning {
	struct hm_several several;
	uint64_t bounds[8];
};

static struct hetmem_resource *bin_of(const struct binning *b, size_t size)
{
	int i;

	for (i = 0; i < b->several.nr - 1 && size > b->bounds[i]; i++)
		;
	return b->several.upstreams[i];
}

static int binning_alloc(struct hetmem_resource *self, size_t size,
			 size_t align, hetmem_stream stream, void **ptr)
{
	struct hetmem_resource *up = bin_of((struct binning *)self, size);

	return up->ops->alloc(up, size, align, stream, ptr);
}

static int binning_ctl(struct hetmem_resource *self, enum hm_ctl op, void *arg)
{
	const struct hm_ctl_alloc *with = arg;
	struct hetmem_resource *up;

	if (op != HM_CTL_ALLOC_WITH)
		return hm_several_ctl(self, op, arg);
	up = bin_of((struct binning *)self, with->flags & HETMEM_ALLOC_SPARSE ?
		    with->reserve : with->size);
	return up->ops->ctl(up, op, arg);
}

static const struct hm_resource_ops binning_ops = {
	.name = "binning",
	.alloc = binning_alloc,
	.free = hm_several_free,
	.ctl = binning_ctl,
	.destroy = hm_several_destroy,
};

int hm_binning_create(struct hetmem_resource **upstreams, int nr,
		      const uint64_t *bounds, struct hetmem_resource **res)
{
	struct binning *b = hm_several_new(sizeof(*b), &binning_ops, upstreams,
					   nr);

	if (!b)
		return -ENOMEM;
	memcpy(b->bounds, bounds, (nr - 1) * sizeof(*bounds));
	*res = &b->several.resource;
	return 0;
}
