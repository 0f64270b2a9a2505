// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The pinned provider: page-locked host memory that every device reaches at
 * the same address. cuMemHostAlloc() makes small pages one by one; here the
 * pages are huge, near the device, made by several threads, and then only
 * registered.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "platform/platform.h"
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

static const struct hm_provider_ops pinned_ops = {
	.name = "pinned",
	.alloc = pinned_alloc,
	.free = pinned_free,
	.destroy = hm_provider_free,
};

static int can_pin(struct hetmem *hm, int device)
{
	const struct hetmem_platform *p = &hm->devices[device].platform;

	if (p->registers && p->registered)
		return 0;
	return hm_error(-EOPNOTSUPP, "pinned: device %d %s", device,
			p->registers ?
			"has another address for registered memory" :
			"cannot register host memory");
}

int hm_pinned_provider(struct hetmem *hm, int device,
		       const struct hm_pinned_options *options,
		       struct hm_provider **out)
{
	static const struct hm_pinned_options none;
	struct pinned *p;
	int err, i;

	if (!options)
		options = &none;
	if (options->node && !hm_numa_has_node(options->node - 1))
		return hm_error(-EINVAL, "pinned: there is no host node %u",
				options->node - 1);
	err = hm_provider_check(hm, device);
	if (!err)
		err = can_pin(hm, device);
	if (err)
		return err;
	p = hm_provider_new(hm, device, &pinned_ops,
			    HM_PROVIDER_HOST | HM_PROVIDER_DEVICE, sizeof(*p));
	if (!p)
		return -ENOMEM;
	for (i = 0; i < hm->nr_devices; i++)
		p->provider.devices |=
			(uint64_t)hm->devices[i].platform.registered << i;
	p->provider.granularity = hm->page_size;
	p->provider.total = (uint64_t)sysconf(_SC_PHYS_PAGES) * hm->page_size;
	p->threads = options->threads;
	p->node = options->node ? (int)options->node - 1 :
		hm->devices[device].platform.host_node;
	*out = &p->provider;
	return 0;
}
