// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * System memory: ordinary anonymous pages, laid out so that devices like it.
 *
 * From 2 MiB on, addresses are 2 MiB aligned, so that huge pages fit and a
 * device's driver can move whole ones; what was mapped for the alignment
 * is given back at once. Smaller sizes are whole pages of their own mapping
 * too (neighbours share a VMA, not pages), because the module tracks pages
 * and two allocations in one page could not be tracked apart.
 *
 * What is allocated is known in a tree outside the memory: sizes for free
 * and resize, and a pointer that is not allocated is found out before
 * anything is done with it. The tree's lock is held over the changes of the
 * address space too, so that an address which the kernel hands out again
 * cannot be inserted before it was erased.
 *
 * Tracking is best effort: a module that has no room left does not keep
 * anybody from having memory.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver/check.h"
#include "driver/hetmem.h"
#include "provider/pages.h"
#include "provider/regions.h"

/**
 * struct allocation - live system memory
 * @range: whole pages
 * @size: as it was asked for
 * @tracked: by the module
 */
struct allocation {
	struct hm_range range;
	size_t size;
	bool tracked;
};

/* Bytes of whole pages for @size, 0 if there is no such number. */
static size_t whole_pages(const struct hetmem *hm, size_t size)
{
	if (size > PTRDIFF_MAX - HM_HUGE_SIZE)
		return 0;
	return (size + hm->page_size - 1) & ~(hm->page_size - 1);
}

static void advise_huge(const struct hm_range *range)
{
	/* A kernel without huge pages says -EINVAL: nothing is lost. */
	if (range->end - range->start >= HM_HUGE_SIZE)
		madvise((void *)range->start, range->end - range->start,
			MADV_HUGEPAGE);
}

static bool may_track(const struct hetmem *hm)
{
	return hm_kmod_there(&hm->kmod) && hm->generation == hm_generation();
}

static void track(const struct hetmem *hm, struct allocation *a)
{
	a->tracked = may_track(hm) &&
		     !hm_kmod_track(&hm->kmod, a->range.start, a->range.end);
	if (a->tracked && hm_kmod_there(&hm->watching))
		hm_kmod_track(&hm->watching, a->range.start, a->range.end);
}

static void untrack(const struct hetmem *hm, struct allocation *a)
{
	if (a->tracked && may_track(hm)) {
		hm_kmod_untrack(&hm->kmod, a->range.start, a->range.end);
		if (hm_kmod_there(&hm->watching))
			hm_kmod_untrack(&hm->watching, a->range.start,
					a->range.end);
	}
	a->tracked = false;
}

/* Lock held. NULL unless @ptr is exactly what was allocated. */
static struct allocation *find_allocation(struct hetmem *hm, const void *ptr)
{
	struct hm_range *r = hm_range_find(&hm->system, (uintptr_t)ptr, 1);

	return r && r->start == (uintptr_t)ptr ? (void *)r : NULL;
}

int hetmem_system_alloc(struct hetmem *hm, size_t size, void **ptr)
{
	struct allocation *a;
	size_t len;
	void *p;
	int err;

	if (!hm || !ptr || !size)
		return hm_error(-EINVAL, "system_alloc: %s", !hm ? "hm is NULL" :
				!ptr ? "ptr is NULL" : "size is 0");
	len = whole_pages(hm, size);
	if (!len)
		return hm_error(-ENOMEM, "system_alloc: %zu bytes are more than an address space has",
				size);
	a = malloc(sizeof(*a));
	if (!a)
		return hm_error(-ENOMEM, "system_alloc: no memory for metadata");

	pthread_mutex_lock(&hm->lock);
	p = hm_pages_map(len, hm->page_size);
	if (!p) {
		err = hm_error(-ENOMEM, "system_alloc: mmap of %zu bytes: %s",
			       len, strerror(errno));
		goto fail;
	}
	a->size = size;
	a->range.start = (uintptr_t)p;
	a->range.end = a->range.start + len;
	err = hm_range_insert(&hm->system, &a->range);
	if (err) {
		munmap(p, len);
		hm_error(err, "system_alloc: %s", err == -EEXIST ?
			 "an allocation at this address was unmapped behind our back" :
			 "no memory for metadata");
		err = -ENOMEM;
		goto fail;
	}
	track(hm, a);
	pthread_mutex_unlock(&hm->lock);
	*ptr = p;
	return 0;

fail:
	pthread_mutex_unlock(&hm->lock);
	free(a);
	return err;
}

int hetmem_system_free(struct hetmem *hm, void *ptr)
{
	struct allocation *a;

	if (!hm || !ptr)
		return hm_error(-EINVAL, "system_free: %s is NULL",
				hm ? "ptr" : "hm");
	pthread_mutex_lock(&hm->lock);
	a = find_allocation(hm, ptr);
	if (!a) {
		pthread_mutex_unlock(&hm->lock);
		return hm_error(-EINVAL, "system_free: %p is not allocated",
				ptr);
	}
	hm->memory_ops->gone(hm, a->range.start, a->range.end - a->range.start);
	untrack(hm, a);
	hm_range_erase(&hm->system, &a->range);
	munmap(ptr, a->range.end - a->range.start);
	pthread_mutex_unlock(&hm->lock);
	free(a);
	return 0;
}

/* In place. Lock held. */
static int resize_here(struct hetmem *hm, struct allocation *a, size_t len)
{
	const uintptr_t start = a->range.start;
	const size_t old_len = a->range.end - start;
	bool tracked = a->tracked;

	if (len >= HM_HUGE_SIZE && start & (HM_HUGE_SIZE - 1))
		return -EADDRNOTAVAIL;
	if (len == old_len)
		return 0;
	if (mremap((void *)start, old_len, len, 0) == MAP_FAILED)
		return -errno;
	untrack(hm, a);
	a->range.end = start + len;
	if (tracked)
		track(hm, a);
	return 0;
}

/*
 * Elsewhere. The target is mapped first, as the memory it will be, and put
 * into the tree, so that what can be refused is refused before anything has
 * changed. Should mremap() fail in spite of that, it has dropped the target
 * already, and the hole may be another thread's by now: it is not ours to
 * unmap. Lock held.
 */
static int resize_elsewhere(struct hetmem *hm, struct allocation **pa,
			    size_t len)
{
	struct allocation *a = *pa, *b;
	void *target;
	int err;

	b = malloc(sizeof(*b));
	if (!b)
		return -ENOMEM;
	target = hm_pages_map(len, hm->page_size);
	if (!target) {
		err = -errno;
		goto fail;
	}
	b->range.start = (uintptr_t)target;
	b->range.end = b->range.start + len;
	b->tracked = false;
	err = hm_range_insert(&hm->system, &b->range);
	if (err) {
		munmap(target, len);
		goto fail;
	}
	if (mremap((void *)a->range.start, a->range.end - a->range.start, len,
		   MREMAP_MAYMOVE | MREMAP_FIXED, target) == MAP_FAILED) {
		err = -errno;
		hm_range_erase(&hm->system, &b->range);
		goto fail;
	}
	hm_range_erase(&hm->system, &a->range);
	if (a->tracked) {
		untrack(hm, a);
		track(hm, b);
	}
	free(a);
	*pa = b;
	return 0;

fail:
	free(b);
	return err;
}

int hetmem_system_resize(struct hetmem *hm, void *ptr, size_t new_size,
			 void **new_ptr)
{
	size_t len, old_len = 0;
	struct allocation *a;
	int err;

	if (!hm || !ptr || !new_ptr || !new_size)
		return hm_error(-EINVAL, "system_resize: %s", !hm ?
				"hm is NULL" : !ptr ? "ptr is NULL" :
				!new_ptr ? "new_ptr is NULL" :
				"new_size is 0: free it instead");
	len = whole_pages(hm, new_size);
	if (!len)
		return hm_error(-ENOMEM, "system_resize: %zu bytes are more than an address space has",
				new_size);

	pthread_mutex_lock(&hm->lock);
	a = find_allocation(hm, ptr);
	if (!a) {
		err = hm_error(-EINVAL, "system_resize: %p is not allocated",
			       ptr);
		goto out;
	}
	old_len = a->range.end - a->range.start;
	err = resize_here(hm, a, len);
	if (err)
		err = resize_elsewhere(hm, &a, len);
	if (err) {
		hm_error(err, "system_resize: %p to %zu bytes: %s", ptr, len,
			 strerror(-err));
		goto out;
	}
	a->size = new_size;
	advise_huge(&a->range);
	*new_ptr = (void *)a->range.start;
out:
	pthread_mutex_unlock(&hm->lock);
	if (!err)
		hm->memory_ops->moved(hm, (uintptr_t)ptr, old_len,
				      (uintptr_t)*new_ptr, len);
	return err;
}

void hm_system_forget(struct hetmem *hm)
{
	struct hm_range *r;

	while ((r = hm_range_any(&hm->system))) {
		hm_range_erase(&hm->system, r);
		free(r);
	}
}

/*
 * The providers system and host: the process's own pages, for devices that reach
 * them (tracked by the module, if it is there), and for the CPU alone. Both go
 * on in a forked child, copy-on-write.
 */

/* The provider system: @node that pages come from, -1: any. */
struct system_memory {
	struct hm_provider provider;
	int node;
};

static int system_alloc(struct hm_provider *self, size_t size,
			hetmem_stream stream, void **ptr)
{
	struct system_memory *s = (struct system_memory *)self;
	void *pages;
	int err = hetmem_system_alloc(self->hm, size, &pages);

	(void)stream;
	if (err)
		return err;
	hm_pages_prefer(pages, size, s->node);
	if (self->populate)
		err = hm_pages_populate(pages, size, self->hm->page_size,
					self->populate, self->slow_ns);
	if (err) {
		hetmem_system_free(self->hm, pages);
		return hm_error(err, "system: no pages for %zu bytes", size);
	}
	*ptr = pages;
	return 0;
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

/* Makes all pages now: a fault that finds no memory later ends the program. */
static int host_ring(struct hm_provider *self, size_t size, void **ptr)
{
	void *pages = hm_pages_map_ring(size);
	int err;

	if (!pages)
		return hm_error(-ENOMEM, "host: a ring of %zu bytes: %s", size, strerror(errno));
	err = hm_pages_populate(pages, size, self->hm->page_size, self->populate, self->slow_ns);
	if (err) {
		munmap(pages, 2 * size);
		return hm_error(err, "host: no pages for %zu bytes", size);
	}
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

static const struct hm_provider_ops system_ops = {
	.name = "system",
	.alloc = system_alloc,
	.free = system_free,
	.destroy = hm_provider_free,
};

static const struct hm_provider_ops host_ops = {
	.name = "host",
	.alloc = host_alloc,
	.free = host_free,
	.ring = host_ring,
	.destroy = hm_provider_free,
};

static int create_provider(struct hetmem *hm, const struct hm_provider_ops *ops,
			   int device, unsigned int caps, size_t bytes,
			   struct hm_provider **out)
{
	struct hm_provider *p;
	int i;

	p = hm_provider_new(hm, device, ops,
			    caps | HM_PROVIDER_HOST | HM_PROVIDER_FORK |
			    HM_PROVIDER_LAZY | HM_PROVIDER_PAGES, bytes);
	if (!p)
		return -ENOMEM;
	/* Also @device, only if it reaches them. */
	p->devices = 0;
	for (i = 0; i < hm->nr_devices; i++)
		p->devices |= (uint64_t)hm->devices[i].platform.pageable << i;
	p->granularity = hm->page_size;
	p->total = (uint64_t)sysconf(_SC_PHYS_PAGES) * hm->page_size;
	*out = p;
	return 0;
}

int hm_system_provider(struct hetmem *hm, int device,
		       const struct hm_system_options *options,
		       struct hm_provider **out)
{
	static const struct hm_system_options none;
	struct system_memory *s;
	unsigned int caps = 0;
	int err;

	if (!options)
		options = &none;
	if (device < -1 || device >= hm->nr_devices)
		return hm_no_device(hm, "system", device);
	if (options->node && !hm_numa_has_node(options->node - 1))
		return hm_error(-EINVAL, "system: there is no host node %u",
				options->node - 1);
	if (device >= 0 && hm->devices[device].platform.pageable)
		caps |= HM_PROVIDER_DEVICE;
	if (device >= 0 && hm->devices[device].platform.moves)
		caps |= HM_PROVIDER_MOVES;
	err = create_provider(hm, &system_ops, device, caps, sizeof(*s), out);
	if (err)
		return err;
	s = (struct system_memory *)*out;
	s->node = options->node ? (int)options->node - 1 :
		device >= 0 ? hm->devices[device].platform.host_node : -1;
	s->provider.populate = options->populate;
	s->provider.slow_ns = options->slow_ns;
	return 0;
}

int hm_host_provider(struct hetmem *hm, struct hm_provider **out)
{
	return create_provider(hm, &host_ops, -1, 0,
			       sizeof(struct hm_provider), out);
}
