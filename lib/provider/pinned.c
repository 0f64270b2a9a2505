// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The pinned provider: page-locked host memory that every device reaches at
 * the same address. cuMemHostAlloc() makes small pages one by one; here the
 * pages are huge, near the device, made by several threads, and then only
 * registered.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "provider/pages.h"
#include "provider/regions.h"

struct pinned {
	struct hm_provider provider;
	unsigned int threads;
	int node;
};

static int pinned_alloc(struct hm_provider *self, size_t size,
			hetmem_stream stream, void **ptr)
{
	const struct hm_driver *d = &self->hm->driver;
	struct pinned *p = (struct pinned *)self;
	struct hm_context saved;
	CUresult res;
	void *pages;
	int err;

	(void)stream;
	err = hm_check_owner(self->hm);
	if (err)
		return err;
	pages = hm_pages_map(size, self->hm->page_size);
	if (!pages)
		return hm_error(-ENOMEM, "pinned: mmap of %zu bytes: %s", size,
				strerror(errno));
	hm_pages_prefer(pages, size, p->node);
	err = hm_pages_populate(pages, size, self->hm->page_size, p->threads);
	if (err) {
		hm_error(err, "pinned: no pages for %zu bytes", size);
		goto unmap;
	}
	err = hm_provider_enter(self, &saved);
	if (err)
		goto unmap;
	res = d->cuMemHostRegister(pages, size, CU_MEMHOSTREGISTER_PORTABLE |
				   CU_MEMHOSTREGISTER_DEVICEMAP);
	hm_context_leave(self->hm, &saved);
	if (res) {
		err = hm_driver_error(d, "cuMemHostRegister", res);
		goto unmap;
	}
	*ptr = pages;
	return 0;

unmap:
	munmap(pages, size);
	return err;
}

static int pinned_free(struct hm_provider *self, void *ptr, size_t size,
		       hetmem_stream stream)
{
	const struct hm_driver *d = &self->hm->driver;
	struct hm_context saved;
	CUresult res;
	int err;

	(void)stream;
	err = hm_provider_enter(self, &saved);
	if (err)
		return err;
	res = d->cuMemHostUnregister(ptr);
	hm_context_leave(self->hm, &saved);
	if (res)
		return hm_driver_error(d, "cuMemHostUnregister", res);
	munmap(ptr, size);
	return 0;
}

static void pinned_destroy(struct hm_provider *self)
{
	free(self);
}

static const struct hm_provider_ops pinned_ops = {
	.name = "pinned",
	.alloc = pinned_alloc,
	.free = pinned_free,
	.destroy = pinned_destroy,
};

static int can_pin(struct hetmem *hm, int device)
{
	static const struct {
		CUdevice_attribute attribute;
		const char *lacks;
	} needs[] = {
		{ CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED,
		  "cannot register host memory" },
		{ CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM,
		  "has another address for registered memory" },
	};
	CUresult res;
	size_t i;
	int can;

	for (i = 0; i < sizeof(needs) / sizeof(needs[0]); i++) {
		can = 0;
		res = hm->driver.cuDeviceGetAttribute(&can, needs[i].attribute,
						hm->devices[device].handle);
		if (res)
			return hm_driver_error(&hm->driver,
					       "cuDeviceGetAttribute", res);
		if (!can)
			return hm_error(-EOPNOTSUPP, "pinned: device %d %s",
					device, needs[i].lacks);
	}
	return 0;
}

int hm_pinned_provider(struct hetmem *hm, int device,
		       const struct hm_pinned_options *options,
		       struct hm_provider **out)
{
	static const struct hm_pinned_options none;
	struct pinned *p;
	CUcontext ctx;
	int err;

	if (!options)
		options = &none;
	if (options->node && !hm_numa_has_node(options->node - 1))
		return hm_error(-EINVAL, "pinned: there is no host node %u",
				options->node - 1);
	err = hm_check_owner(hm);
	if (!err)
		err = hm_device_context(hm, device, &ctx);
	if (!err)
		err = can_pin(hm, device);
	if (err)
		return err;
	p = calloc(1, sizeof(*p));
	if (!p)
		return hm_error(-ENOMEM, "pinned: no memory");
	p->provider.ops = &pinned_ops;
	p->provider.hm = hm;
	p->provider.device = device;
	p->provider.caps = HM_PROVIDER_HOST | HM_PROVIDER_DEVICE;
	p->provider.granularity = hm->page_size;
	p->provider.total = (uint64_t)sysconf(_SC_PHYS_PAGES) * hm->page_size;
	p->threads = options->threads;
	p->node = options->node ? (int)options->node - 1 :
		hm->devices[device].props.host_node;
	*out = &p->provider;
	return 0;
}
