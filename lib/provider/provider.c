// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What providers have in common when they are made: see provider.h.
 */
#include <errno.h>
#include <stdlib.h>

#include "provider/provider.h"

int hm_provider_check(struct hetmem *hm, int device)
{
	int err = hm_check_owner(hm);
	CUcontext ctx;

	return err ? err : hm_device_context(hm, device, &ctx);
}

void *hm_provider_new(struct hetmem *hm, int device,
		      const struct hm_provider_ops *ops, unsigned int caps,
		      size_t bytes)
{
	struct hm_provider *p = calloc(1, bytes);

	if (!p) {
		hm_error(-ENOMEM, "%s: no host memory", ops->name);
		return NULL;
	}
	p->ops = ops;
	p->hm = hm;
	p->device = device;
	p->caps = caps;
	p->granularity = HETMEM_ALIGNMENT;
	if (device >= 0) {
		p->devices = 1ULL << device;
		p->total = hm->devices[device].props.total;
	}
	return p;
}

void hm_provider_free(struct hm_provider *self)
{
	free(self);
}
