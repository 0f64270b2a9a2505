// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The system and the host provider: the process's own pages, for devices that
 * reach them (tracked by the module, if it is there), and for the CPU alone.
 * Both go on in a forked child, copy-on-write.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver/check.h"
#include "provider/pages.h"
#include "provider/regions.h"

static int system_alloc(struct hm_provider *self, size_t size,
			hetmem_stream stream, void **ptr)
{
	(void)stream;
	return hetmem_system_alloc(self->hm, size, ptr);
}

static int system_free(struct hm_provider *self, void *ptr, size_t size,
		       hetmem_stream stream)
{
	(void)stream;
	hm_check_forget(self->hm, ptr, size);
	return hetmem_system_free(self->hm, ptr);
}

static int host_alloc(struct hm_provider *self, size_t size,
		      hetmem_stream stream, void **ptr)
{
	void *pages = hm_pages_map(size, self->granularity);

	(void)stream;
	if (!pages)
		return hm_error(-ENOMEM, "host: mmap of %zu bytes: %s", size,
				strerror(errno));
	*ptr = pages;
	return 0;
}

static int host_free(struct hm_provider *self, void *ptr, size_t size,
		     hetmem_stream stream)
{
	(void)stream;
	hm_check_forget(self->hm, ptr, size);
	if (munmap(ptr, size))
		return hm_error(-errno, "host: munmap of %zu bytes: %s", size,
				strerror(errno));
	return 0;
}

static void destroy(struct hm_provider *self)
{
	free(self);
}

static const struct hm_provider_ops system_ops = {
	.name = "system",
	.alloc = system_alloc,
	.free = system_free,
	.destroy = destroy,
};

static const struct hm_provider_ops host_ops = {
	.name = "host",
	.alloc = host_alloc,
	.free = host_free,
	.destroy = destroy,
};

static int create(struct hetmem *hm, const struct hm_provider_ops *ops,
		  int device, unsigned int caps, struct hm_provider **out)
{
	struct hm_provider *p = calloc(1, sizeof(*p));

	if (!p)
		return hm_error(-ENOMEM, "%s: no memory", ops->name);
	p->ops = ops;
	p->hm = hm;
	p->device = device;
	p->caps = caps | HM_PROVIDER_HOST | HM_PROVIDER_FORK;
	p->granularity = hm->page_size;
	p->total = (uint64_t)sysconf(_SC_PHYS_PAGES) * hm->page_size;
	*out = p;
	return 0;
}

int hm_system_provider(struct hetmem *hm, int device,
		       struct hm_provider **out)
{
	if (device < -1 || device >= hm->nr_devices)
		return hm_error(-ENODEV, "system: no device %d: there are %d",
				device, hm->nr_devices);
	return create(hm, &system_ops, device, device >= 0 &&
		      hm->devices[device].pageable ? HM_PROVIDER_DEVICE : 0,
		      out);
}

int hm_host_provider(struct hetmem *hm, struct hm_provider **out)
{
	return create(hm, &host_ops, -1, 0, out);
}
