// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * binning(A,B,...,at=X/...): blocks of up to X bytes from A, larger ones up to
 * the next bound from B, and so on; the last has no bound. A free does not
 * rely on the size that it is told: the owner is asked for.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "resource/adaptor.h"

struct binning {
	struct hm_several several;
	uint64_t bounds[8];
};

static int binning_alloc(struct hetmem_resource *self, size_t size,
			 size_t align, hetmem_stream stream, void **ptr)
{
	struct binning *b = (struct binning *)self;
	struct hetmem_resource *up;
	int i;

	for (i = 0; i < b->several.nr - 1 && size > b->bounds[i]; i++)
		;
	up = b->several.upstreams[i];
	return up->ops->alloc(up, size, align, stream, ptr);
}

static const struct hm_resource_ops binning_ops = {
	.name = "binning",
	.alloc = binning_alloc,
	.free = hm_several_free,
	.ctl = hm_several_ctl,
	.destroy = hm_several_destroy,
};

int hm_binning_create(struct hetmem_resource **upstreams, int nr,
		      const uint64_t *bounds, struct hetmem_resource **res)
{
	struct binning *b = calloc(1, sizeof(*b));

	if (!b)
		return hm_error(-ENOMEM, "binning: no memory");
	hm_several_init(&b->several, &binning_ops, upstreams, nr);
	memcpy(b->bounds, bounds, (nr - 1) * sizeof(*bounds));
	*res = &b->several.resource;
	return 0;
}
