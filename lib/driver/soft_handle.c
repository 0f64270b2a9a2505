// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver's handles: memory without an address, a device's or the
 * host's. All that need no descriptor of their own are in one file, and so is
 * what cuMemAlloc() gives.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver/soft.h"

bool hm_soft_place_host(const CUmemLocation *location)
{
	return location->type == CU_MEM_LOCATION_TYPE_HOST ||
	       (location->type == CU_MEM_LOCATION_TYPE_HOST_NUMA &&
		hm_numa_has_node(location->id));
}

/* The device that @prop is for, *@res 0 and NULL: the host; else why not. */
static struct CUctx_st *device_of(const CUmemAllocationProp *prop,
				  CUresult *res)
{
	struct soft_world *w = hm_soft_world;

	*res = CUDA_ERROR_INVALID_VALUE;
	if (prop->type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return NULL;
	if (prop->requestedHandleTypes & CU_MEM_HANDLE_TYPE_FABRIC) {
		/* It takes a channel that an administrator makes. */
		*res = CUDA_ERROR_NOT_PERMITTED;
		return NULL;
	}
	if (hm_soft_place_host(&prop->location)) {
		*res = CUDA_SUCCESS;
		return NULL;
	}
	if (prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return NULL;
	*res = CUDA_ERROR_INVALID_DEVICE;
	if (prop->location.id < 0 || prop->location.id >= w->nr_devices)
		return NULL;
	*res = CUDA_SUCCESS;
	return &w->devices[prop->location.id];
}

bool hm_soft_handle_host(const struct soft_handle *h)
{
	return h->prop.location.type != CU_MEM_LOCATION_TYPE_DEVICE;
}

/* The same for every place, one that is none included. */
static CUresult get_granularity(size_t *granularity,
				const CUmemAllocationProp *prop,
				CUmemAllocationGranularity_flags which)
{
	SOFT_ENTER(cuMemGetAllocationGranularity);
	(void)which;
	(void)prop;
	*granularity = SOFT_GRANULARITY;
	return CUDA_SUCCESS;
}

/* With the lock. */
struct soft_handle *hm_soft_handle(CUmemGenericAllocationHandle handle)
{
	struct soft_handle *h;

	h = (void *)hm_range_find(&hm_soft_world->handles, handle, 1);
	return h && h->self.start == handle && h->refs ? h : NULL;
}

int hm_soft_handle_fd(const struct soft_handle *h)
{
	return h->fd >= 0 ? h->fd : hm_soft_world->fd;
}

/* With the lock. Its pages go; its part of the file is not used again. */
static void free_pages(struct soft_handle *h)
{
	if (h->fd >= 0)
		close(h->fd);
	else
		hm_soft_file_put(h->offset, h->size);
}

/* With the lock. Frees it if neither handles nor mappings are left. */
void hm_soft_handle_put(struct soft_handle *h)
{
	if (h->refs || h->mappings)
		return;
	hm_range_erase(&hm_soft_world->handles, &h->self);
	if (h->charged)
		hm_soft_world->devices[h->prop.location.id].used -= h->size;
	hm_check_free_uses(&h->uses);
	free_pages(h);
	free(h);
}

CUresult hm_soft_add_handle(struct soft_handle *h)
{
	h->refs = 1;
	h->id = ++hm_soft_world->next_id;
	h->self.start = (uintptr_t)h;
	h->self.end = h->self.start + 1;
	return hm_range_insert(&hm_soft_world->handles, &h->self) ?
		CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

static int new_file(size_t size)
{
	int fd = memfd_create("hetmem soft device", MFD_CLOEXEC);

	if (fd >= 0 && ftruncate(fd, size)) {
		close(fd);
		fd = -1;
	}
	return fd;
}

CUresult hm_soft_file_take(size_t size, uint64_t *offset)
{
	struct soft_world *w = hm_soft_world;
	uint64_t end = w->file_end + size;

	if (end > INT64_MAX / 2)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (w->fd < 0)
		w->fd = new_file(0);
	if (w->fd < 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (end > w->file_size) {
		if (ftruncate(w->fd, 2 * end))
			return CUDA_ERROR_OUT_OF_MEMORY;
		w->file_size = 2 * end;
	}
	*offset = w->file_end;
	w->file_end = end + SOFT_GRANULARITY;
	return CUDA_SUCCESS;
}

void hm_soft_file_put(uint64_t offset, size_t size)
{
	fallocate(hm_soft_world->fd, FALLOC_FL_PUNCH_HOLE |
		  FALLOC_FL_KEEP_SIZE, offset, size);
}

/* With the lock. */
static CUresult make_pages(struct soft_handle *h)
{
	if (h->prop.requestedHandleTypes &
	    CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
		h->fd = new_file(h->size);
		return h->fd < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
	}
	h->fd = -1;
	return hm_soft_file_take(h->size, &h->offset);
}

static CUresult add_new(struct CUctx_st *ctx, struct soft_handle *h)
{
	CUresult res = ctx ? hm_soft_charge(ctx, h->size) : CUDA_SUCCESS;

	if (res)
		return res;
	res = make_pages(h);
	if (!res) {
		res = hm_soft_add_handle(h);
		if (res)
			free_pages(h);
	}
	h->charged = ctx && !res;
	if (ctx && res)
		ctx->used -= h->size;
	return res;
}

static CUresult mem_create(CUmemGenericAllocationHandle *handle, size_t size,
			   const CUmemAllocationProp *prop,
			   unsigned long long flags)
{
	struct soft_handle *h;
	struct CUctx_st *ctx;
	CUresult res;

	SOFT_ENTER(cuMemCreate);
	if (!hm_soft_granular(size) || size > PTRDIFF_MAX || flags)
		return CUDA_ERROR_INVALID_VALUE;
	ctx = device_of(prop, &res);
	if (res)
		return res;
	h = calloc(1, sizeof(*h));
	if (!h)
		return CUDA_ERROR_OUT_OF_MEMORY;
	h->size = size;
	h->prop = *prop;
	hm_soft_lock();
	res = add_new(ctx, h);
	hm_soft_unlock();
	if (res)
		free(h);
	else
		*handle = (uintptr_t)h;
	return res;
}

static CUresult mem_release(CUmemGenericAllocationHandle handle)
{
	CUresult res = CUDA_ERROR_INVALID_VALUE;
	struct soft_handle *h;

	SOFT_ENTER(cuMemRelease);
	hm_soft_lock();
	h = hm_soft_handle(handle);
	if (h) {
		h->refs--;
		hm_soft_handle_put(h);
		res = CUDA_SUCCESS;
	}
	hm_soft_unlock();
	return res;
}

void hm_soft_free_handles(struct soft_world *w)
{
	struct soft_handle *h;

	while ((h = (void *)hm_range_any(&w->handles))) {
		if (w->debug)
			hm_soft_leak("handle", (uintptr_t)h, h->size);
		h->refs = 0;
		hm_soft_handle_put(h);
	}
}

void hm_soft_fill_handle(struct hm_driver *d)
{
	d->cuMemGetAllocationGranularity = get_granularity;
	d->cuMemCreate = mem_create;
	d->cuMemRelease = mem_release;
}
