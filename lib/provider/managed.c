// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The managed provider: cuMemAllocManaged(). One address for the CPU and every
 * device, pages move where they are used, and there may be more of them than
 * a device has.
 */
#include <errno.h>

#include "provider/regions.h"

static int managed_alloc(struct hm_provider *self, size_t size,
			 hetmem_stream stream, void **ptr)
{
	const struct hm_driver *d = &self->hm->driver;
	struct hm_context saved;
	CUdeviceptr p = 0;
	CUresult res;
	int err;

	(void)stream;
	err = hm_provider_enter(self, &saved);
	if (err)
		return err;
	res = d->cuMemAllocManaged(&p, size, CU_MEM_ATTACH_GLOBAL);
	hm_context_leave(self->hm, &saved);
	if (res)
		return hm_driver_error(d, "cuMemAllocManaged", res);
	*ptr = (void *)(uintptr_t)p;
	return 0;
}

static const struct hm_provider_ops managed_ops = {
	.name = "managed",
	.alloc = managed_alloc,
	.free = hm_provider_mem_free,
	.destroy = hm_provider_free,
};

int hm_managed_provider(struct hetmem *hm, int device,
			struct hm_provider **out)
{
	struct hm_provider *p;
	int err = hm_provider_check(hm, device), i;

	if (err)
		return err;
	if (!hm->devices[device].platform.managed)
		return hm_error(-EOPNOTSUPP, "device %d has no managed memory",
				device);
	p = hm_provider_new(hm, device, &managed_ops,
			    HM_PROVIDER_HOST | HM_PROVIDER_DEVICE, sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->caps |= HM_PROVIDER_LAZY;
	if (hm->devices[device].platform.concurrent &&
	    hm->devices[device].platform.kind != HETMEM_PLATFORM_INTEGRATED)
		p->caps |= HM_PROVIDER_MOVES;
	for (i = 0; i < hm->nr_devices; i++)
		p->devices |= (uint64_t)hm->devices[i].platform.managed << i;
	*out = p;
	return 0;
}
