// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The providers pinned and registered: page-locked host memory that every device
 * reaches at the same address. cuMemHostAlloc() makes small pages one by one.
 * Here the pages are huge, near the device and made by several threads; then the
 * driver registers them. Each region is one registration, because a copy across
 * two fails.
 *
 * fork() copies pinned pages, which takes seconds for some GiB. A forked child
 * therefore lacks registered memory (MADV_DONTFORK), unless fork=copy. Pinned
 * memory is in the child.
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
	bool keep_from_child;
};

/* Pages as @p wants them, or NULL and the error. Not there yet. @ring: twice in a row. */
static void *map_pages(const struct pinned *p, size_t size, bool ring, int *err)
{
	const char *name = p->provider.ops->name;
	const size_t mapped = ring ? 2 * size : size;
	void *pages = ring ? hm_pages_map_ring(size) :
		hm_pages_map(size, p->provider.hm->page_size);

	*err = 0;
	if (!pages)
		*err = hm_error(-ENOMEM, "%s: mmap of %zu bytes: %s", name,
				size, strerror(errno));
	else if (p->keep_from_child && madvise(pages, mapped, MADV_DONTFORK))
		*err = hm_error(errno == ENOMEM ? -ENOMEM : -EIO,
				"%s: MADV_DONTFORK of %zu bytes: %s", name,
				size, strerror(errno));
	else
		hm_pages_prefer(pages, size, p->node);
	if (*err && pages) {
		munmap(pages, mapped);
		pages = NULL;
	}
	return pages;
}

static int pin_pages(struct hm_provider *self, size_t size, bool ring, void **ptr)
{
	const struct hm_driver *d = &self->hm->driver;
	const size_t mapped = ring ? 2 * size : size;
	struct pinned *p = (struct pinned *)self;
	struct hm_context saved;
	CUresult res;
	void *pages;
	int err;

	err = hm_check_owner(self->hm);
	if (err)
		return err;
	pages = map_pages(p, size, ring, &err);
	if (!pages)
		return err;
	err = hm_pages_populate(pages, size, self->hm->page_size, p->threads,
				0);
	if (err) {
		hm_error(err, "%s: no pages for %zu bytes", self->ops->name,
			 size);
		goto unmap;
	}
	err = hm_provider_enter(self, &saved);
	if (err)
		goto unmap;
	res = d->cuMemHostRegister(pages, mapped, CU_MEMHOSTREGISTER_PORTABLE |
				   CU_MEMHOSTREGISTER_DEVICEMAP);
	hm_context_leave(self->hm, &saved);
	if (res) {
		err = hm_driver_error(d, "cuMemHostRegister", res);
		goto unmap;
	}
	*ptr = pages;
	return 0;

unmap:
	munmap(pages, mapped);
	return err;
}

static int pinned_alloc(struct hm_provider *self, size_t size,
			hetmem_stream stream, void **ptr)
{
	(void)stream;
	return pin_pages(self, size, false, ptr);
}

static int pinned_ring(struct hm_provider *self, size_t size, void **ptr)
{
	return pin_pages(self, size, true, ptr);
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
	.ring = pinned_ring,
	.destroy = hm_provider_free,
};

static const struct hm_provider_ops registered_ops = {
	.name = "registered",
	.alloc = pinned_alloc,
	.free = pinned_free,
	.ring = pinned_ring,
	.destroy = hm_provider_free,
};

static int can_pin(struct hetmem *hm, const char *name, int device)
{
	const struct hetmem_platform *p = &hm->devices[device].platform;

	if (p->registers && p->registered)
		return 0;
	return hm_error(-EOPNOTSUPP, "%s: device %d %s", name, device,
			p->registers ?
			"has another address for registered memory" :
			"cannot register host memory");
}

static int create_provider(struct hetmem *hm, const struct hm_provider_ops *ops,
			   int device, const struct hm_pinned_options *options,
			   struct hm_provider **out)
{
	static const struct hm_pinned_options none;
	struct pinned *p;
	int err, i;

	if (!options)
		options = &none;
	if (options->node && !hm_numa_has_node(options->node - 1))
		return hm_error(-EINVAL, "%s: there is no host node %u",
				ops->name, options->node - 1);
	err = hm_provider_check(hm, device);
	if (!err)
		err = can_pin(hm, ops->name, device);
	if (err)
		return err;
	p = hm_provider_new(hm, device, ops,
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
	p->keep_from_child = ops == &registered_ops && !options->fork_copies;
	*out = &p->provider;
	return 0;
}

int hm_pinned_provider(struct hetmem *hm, int device,
		       const struct hm_pinned_options *options,
		       struct hm_provider **out)
{
	return create_provider(hm, &pinned_ops, device, options, out);
}

int hm_registered_provider(struct hetmem *hm, int device,
			   const struct hm_pinned_options *options,
			   struct hm_provider **out)
{
	return create_provider(hm, &registered_ops, device, options, out);
}
