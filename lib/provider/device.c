// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The device provider: regions of cuMemAlloc() memory. Freeing one waits for
 * the whole device, so a pool frees them only when it is asked to.
 */
#include <errno.h>

#include "provider/vmm.h"

/* What cuMemAlloc() rounds to anyway. */
#define GRANULARITY	((size_t)2 << 20)

static int device_alloc(struct hm_provider *self, size_t size,
			hetmem_stream stream, void **ptr)
{
	struct hm_context saved;
	CUdeviceptr addr;
	CUresult res;
	int err;

	(void)stream;
	err = hm_provider_enter(self, &saved);
	if (err)
		return err;
	res = self->hm->driver.cuMemAlloc(&addr, size);
	hm_context_leave(self->hm, &saved);
	if (res)
		return hm_driver_error(&self->hm->driver, "cuMemAlloc", res);
	*ptr = (void *)(uintptr_t)addr;
	return 0;
}

int hm_provider_mem_free(struct hm_provider *self, void *ptr, size_t size,
			 hetmem_stream stream)
{
	struct hm_context saved;
	CUresult res;
	int err;

	(void)stream;
	err = hm_provider_enter(self, &saved);
	if (err)
		return err;
	self->hm->memory_ops->gone(self->hm, (uintptr_t)ptr, size);
	res = self->hm->driver.cuMemFree((uintptr_t)ptr);
	hm_context_leave(self->hm, &saved);
	return res ? hm_driver_error(&self->hm->driver, "cuMemFree", res) : 0;
}

static const struct hm_provider_ops device_ops = {
	.name = "device",
	.alloc = device_alloc,
	.free = hm_provider_mem_free,
	.destroy = hm_provider_free,
};

int hm_device_provider(struct hetmem *hm, int device,
		       struct hm_provider **out)
{
	struct hm_provider *p;
	int err = hm_provider_check(hm, device);

	if (err)
		return err;
	p = hm_provider_new(hm, device, &device_ops, HM_PROVIDER_DEVICE,
			    sizeof(*p));
	if (!p)
		return -ENOMEM;
	p->granularity = GRANULARITY;
	*out = p;
	return 0;
}
