// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * fallback(A,B,...): memory of the first that has some. Each is asked whether
 * a pointer is its own when it comes back, so that it may go anywhere
 * meanwhile.
 */
#include <errno.h>
#include <stdio.h>

#include "adaptor/adaptor.h"

static int fallback_alloc(struct hetmem_resource *self, size_t size,
			  size_t align, hetmem_stream stream, void **ptr)
{
	struct hm_several *s = (struct hm_several *)self;
	char text[HM_SEVERAL_TEXT] = "";
	int i, err = -ENOMEM;

	for (i = 0; err == -ENOMEM && i < s->nr; i++) {
		if (i == 1)
			snprintf(text, sizeof(text), "%s", hetmem_last_error());
		err = s->upstreams[i]->ops->alloc(s->upstreams[i], size, align,
						  stream, ptr);
	}
	return err == -ENOMEM ? hm_several_no_memory(text) : err;
}

static const struct hm_resource_ops fallback_ops = {
	.name = "fallback",
	.alloc = fallback_alloc,
	.free = hm_several_free,
	.ctl = hm_several_ctl,
	.destroy = hm_several_destroy,
};

int hm_fallback_create(struct hetmem_resource **upstreams, int nr,
		       struct hetmem_resource **res)
{
	struct hm_several *s = hm_several_new(sizeof(*s), &fallback_ops,
					      upstreams, nr);

	if (!s)
		return -ENOMEM;
	*res = &s->resource;
	return 0;
}
