// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The managed provider: cuMemAllocManaged(). One address for the CPU and every
 * device, pages move where they are used, and there may be more of them than
 * a device has.
 */
#include <errno.h>
#include <stdlib.h>

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

static void managed_destroy(struct hm_provider *self)
{
	free(self);
}

static const struct hm_provider_ops managed_ops = {
	.name = "managed",
	.alloc = managed_alloc,
	.free = hm_provider_mem_free,
	.destroy = managed_destroy,
};

int hm_managed_provider(struct hetmem *hm, int device,
			struct hm_provider **out)
{
	struct hm_provider *p;
	CUcontext ctx;
	CUresult res;
	int err, can = 0;

	err = hm_check_owner(hm);
	if (!err)
		err = hm_device_context(hm, device, &ctx);
	if (err)
		return err;
	res = hm->driver.cuDeviceGetAttribute(&can,
			CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY,
			hm->devices[device].handle);
	if (res)
		return hm_driver_error(&hm->driver, "cuDeviceGetAttribute",
				       res);
	if (!can)
		return hm_error(-EOPNOTSUPP, "device %d has no managed memory",
				device);
	p = calloc(1, sizeof(*p));
	if (!p)
		return hm_error(-ENOMEM, "managed: no memory");
	p->ops = &managed_ops;
	p->hm = hm;
	p->device = device;
	p->caps = HM_PROVIDER_HOST | HM_PROVIDER_DEVICE;
	p->granularity = HETMEM_ALIGNMENT;
	p->total = hm->devices[device].props.total;
	*out = p;
	return 0;
}
