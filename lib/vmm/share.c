// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Memory that several processes have, by descriptors of its handles: exported
 * from a pool, and imported, one handle after the other, at addresses of ours.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "vmm/ring.h"
#include "vmm/sharers.h"
#include "vmm/sparse.h"
#include "vmm/vmm.h"

int hm_vmm_export(struct pool *p, struct block *b, struct hm_ctl_export *arg)
{
	struct vmm *v = vmm_of(p);
	struct handle *h = handle_of_page(v, first_page(v, b));
	size_t room = arg->nr;
	int err;

	arg->nr = 1;
	if (!room)
		return hm_error(-ENOSPC, "export: there is 1");
	err = p->provider->ops->export_fd(p->provider, h->handle, arg->fds);
	if (err)
		return err;
	arg->segments[0] = (struct hetmem_segment){
		.base = (void *)(uintptr_t)b->addr, .offset = 0,
		.length = block_bytes(b), .device = p->provider->device,
		.handle_types = p->provider->handle_types,
	};
	h->flags |= HANDLE_PINNED | HANDLE_EXPORTED;
	__atomic_store_n(&b->flags, b->flags | BLOCK_EXPORTED,
			 __ATOMIC_RELEASE);
	return 0;
}

/* Instructions that a part of a block takes, about. */
#define PART_WORK	1024

/*
 * A block that was freed, and has addresses without memory in it: the parts between these
 * become free memory, from the end on, so that what is before keeps its name. false: there are
 * no more names.
 */
static bool drop_parts(struct pool *p, struct block *b)
{
	struct vmm *v = vmm_of(p);
	const uint32_t first = first_page(v, b);
	struct block *part;
	uint32_t last, page;

	for (;;) {
		last = page_of(v, block_end(b) - 1);
		page = hm_vmm_same_before(v, last, first);
		if (page == first)
			break;
		if (!hm_vmm_is_apart(v, last)) {
			part = hm_block_cut(p, b, (page_addr(v, page) - b->addr) >> UNIT_SHIFT);
			if (!part)
				return false;
			__atomic_store_n(&part->flags, block_zone(b), __ATOMIC_RELEASE);
			hm_block_release(p, part);
			last = page - 1;
			page = hm_vmm_same_before(v, last, first);
		}
		hm_block_shorten(p, b, (page_addr(v, page) - b->addr) >> UNIT_SHIFT);
		hm_vmm_set_apart(v, page, last + 1 - page, false);
		hm_pool_step(p, PART_WORK);
	}
	__atomic_store_n(&b->flags, block_zone(b), __ATOMIC_RELEASE);
	hm_block_release(p, b);
	return true;
}

bool hm_vmm_drop(struct pool *p, struct block *b)
{
	struct vmm *v = vmm_of(p);
	uint32_t page = first_page(v, b);
	struct vmm_free f = {
		.handle = mapping_at(v, v->map[page])->handle, .page = page,
		.pages = handle_of_page(v, page)->pages,
		.block = block_id(p, b),
	};
	bool left;

	if (block_is_sparse(b))
		return hm_sparse_drop(p, b);
	if (hm_is_ring(v, b))
		return hm_ring_drop(p, b);
	if (b->flags & BLOCK_SPILLED)
		return hm_sharers_drop(p, b);
	if (b->flags & BLOCK_RESERVE)
		return drop_parts(p, b);
	/* Without success it is free memory; nobody else has it for long. */
	__atomic_store_n(&b->flags, b->flags & ~BLOCK_EXPORTED,
			 __ATOMIC_RELEASE);
	if (hm_vmm_release(p, &f, &left) && left)
		hm_block_release(p, b);
	return true;
}

/**
 * struct hm_import - what was imported
 * @addr, @size: where it is
 * @nr: of @handles; @mapped: how many of them are, from the first on
 */
struct hm_import {
	struct hm_import *next;
	struct hetmem *hm;
	int device;
	CUdeviceptr addr;
	size_t size;
	size_t nr;
	size_t mapped;
	struct {
		CUmemGenericAllocationHandle handle;
		size_t offset;
		size_t length;
	} handles[];
};

static void import_add(struct hm_import *im)
{
	struct hetmem *hm = im->hm;

	pthread_mutex_lock(&hm->lock);
	im->next = hm->imports;
	hm->imports = im;
	__atomic_fetch_add(&hm->imported[im->device], im->size, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&hm->lock);
}

void hm_import_forget(struct hetmem *hm)
{
	struct hm_import *im;

	while ((im = hm->imports)) {
		hm->imports = im->next;
		free(im);
	}
}

static int import_drop(struct hm_import *im)
{
	const struct hm_driver *d = &im->hm->driver;
	CUresult res = CUDA_SUCCESS, one;
	size_t i;

	for (i = 0; i < im->mapped; i++) {
		CUdeviceptr addr = im->addr + im->handles[i].offset;

		one = hm_retry_once(d->cuMemUnmap(addr, im->handles[i].length));
		res = res ? res : one;
	}
	for (i = 0; i < im->nr; i++) {
		one = hm_retry_once(d->cuMemRelease(im->handles[i].handle));
		res = res ? res : one;
	}
	if (im->addr) {
		one = hm_retry_once(d->cuMemAddressFree(im->addr, im->size));
		res = res ? res : one;
	}
	free(im);
	return res ? hm_driver_error(d, "import_close", res) : 0;
}

static int import_map(struct hm_import *im, const int *fds,
		      const struct hetmem_segment *segments, size_t nr)
{
	const struct hm_driver *d = &im->hm->driver;
	CUmemAccessDesc access = {
		.location = { CU_MEM_LOCATION_TYPE_DEVICE,
			      im->hm->devices[im->device].handle },
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	CUresult res;
	size_t i;

	for (i = 0; i < nr; i++) {
		res = d->cuMemImportFromShareableHandle(&im->handles[i].handle,
				(void *)(intptr_t)fds[i],
				CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
		if (res == CUDA_ERROR_INVALID_VALUE)
			return hm_error(-EINVAL, "import: descriptor %d is no device memory",
					fds[i]);
		if (res)
			return hm_driver_error(d, "cuMemImportFromShareableHandle",
					       res);
		im->nr = i + 1;
		im->handles[i].offset = segments[i].offset;
		im->handles[i].length = segments[i].length;
	}
	res = d->cuMemAddressReserve(&im->addr, im->size, 0, 0, 0);
	if (res) {
		im->addr = 0;
		return hm_driver_error(d, "cuMemAddressReserve", res);
	}
	for (i = 0; i < nr; i++) {
		res = d->cuMemMap(im->addr + segments[i].offset,
				  segments[i].length, 0,
				  im->handles[i].handle, 0);
		if (res == CUDA_ERROR_INVALID_VALUE ||
		    res == CUDA_ERROR_NOT_SUPPORTED)
			return hm_error(-EINVAL, "import: segment %zu has not the length of what was exported",
					i);
		if (res)
			return hm_driver_error(d, "cuMemMap", res);
		im->mapped = i + 1;
	}
	res = d->cuMemSetAccess(im->addr, im->size, &access, 1);
	return res ? hm_driver_error(d, "cuMemSetAccess", res) : 0;
}

static int import_check(struct hetmem *hm, const int *fds,
			const struct hetmem_segment *segments, size_t nr,
			size_t *size)
{
	size_t i;

	*size = 0;
	for (i = 0; i < nr; i++) {
		if (!segments[i].length || segments[i].offset != *size ||
		    fds[i] < 0 || segments[i].length > PTRDIFF_MAX - *size)
			return hm_error(-EINVAL, "import: segment %zu does not begin where the one before it ends",
					i);
		*size += segments[i].length;
	}
	if (!nr)
		return hm_error(-EINVAL, "import: nr is 0");
	if (!hm->driver.cuMemImportFromShareableHandle ||
	    !hm->driver.cuMemAddressReserve)
		return hm_error(-EOPNOTSUPP, "import: the driver has no virtual memory management");
	return 0;
}

int hetmem_import(struct hetmem *hm, int device, const int *fds,
		  const struct hetmem_segment *segments, size_t nr,
		  void **ptr)
{
	struct hm_context saved;
	struct hm_import *im;
	size_t size;
	int err;

	if (!hm || !fds || !segments || !ptr)
		return hm_error(-EINVAL, "import: %s is NULL", !hm ? "hm" :
				!fds ? "fds" : !ptr ? "ptr" : "segments");
	err = hm_check_owner(hm);
	if (!err)
		err = import_check(hm, fds, segments, nr, &size);
	if (err)
		return err;
	im = calloc(1, sizeof(*im) + nr * sizeof(im->handles[0]));
	if (!im)
		return hm_error(-ENOMEM, "import: no host memory");
	im->hm = hm;
	im->device = device;
	im->size = size;
	err = hm_context_enter(hm, device, &saved);
	if (err) {
		free(im);
		return err;
	}
	err = import_map(im, fds, segments, nr);
	if (err) {
		char text[256];

		/* The text of the first error is the one that tells. */
		snprintf(text, sizeof(text), "%s", hetmem_last_error());
		import_drop(im);
		hm_error(err, "%s", text);
	}
	hm_context_leave(hm, &saved);
	if (err)
		return err;
	*ptr = (void *)(uintptr_t)im->addr;
	import_add(im);
	return 0;
}

int hetmem_import_close(struct hetmem *hm, void *ptr)
{
	struct hm_import **link, *im;
	struct hm_context saved;
	int err;

	if (!hm)
		return hm_error(-EINVAL, "import_close: hm is NULL");
	err = hm_check_owner(hm);
	if (err)
		return err;
	pthread_mutex_lock(&hm->lock);
	for (link = &hm->imports; (im = *link); link = &im->next)
		if (im->addr == (uintptr_t)ptr)
			break;
	if (im) {
		*link = im->next;
		__atomic_fetch_sub(&hm->imported[im->device], im->size, __ATOMIC_RELAXED);
	}
	pthread_mutex_unlock(&hm->lock);
	if (!im)
		return hm_error(-EINVAL, "import_close: %p was not imported",
				ptr);
	err = hm_context_enter(hm, im->device, &saved);
	if (err) {
		/* Nothing is done: it can be closed later. */
		import_add(im);
		return err;
	}
	err = import_drop(im);
	hm_context_leave(hm, &saved);
	return err;
}
