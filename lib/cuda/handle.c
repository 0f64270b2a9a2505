// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Physical memory of devices that the program makes by cuMemCreate(), charged to the limit().
 *
 * Memory is charged once, to the process that made it. It lives as long as a handle or a
 * mapping of it: cuMemRetainAllocationHandle() gives further handles, and so does an import of
 * a descriptor that this process has exported. Memory that another process made is charged
 * there. Memory of the host is not charged.
 *
 * The memory outlives a reset of its device. total[] is charged again to the new resource.
 *
 * The lock covers the trees and total[]. No call of the driver or of a resource is made with it.
 */
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "cuda/cuda.h"
#include "cuda/prototypes.h"

/**
 * struct memory - what one cuMemCreate() made
 * @uses: references by handles, and mappings
 * @fd: the last exported descriptor, as the program knows it; -1: none
 */
struct memory {
	CUdevice device;
	size_t size;
	unsigned int uses;
	int fd;
	dev_t dev;
	ino_t ino;
};

/**
 * struct entry - a handle, or a mapping, of memory
 * @range: of a handle: its value; of a mapping: its addresses
 * @refs: of a handle: releases until the driver forgets it
 */
struct entry {
	struct hm_range range;
	struct memory *memory;
	unsigned int refs;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *handles;
static void *mappings;
static uint64_t total[HM_MAX_DEVICES];

static bool is_counted(CUdevice device)
{
	return device >= 0 && device < HM_MAX_DEVICES;
}

void hm_cuda_recharge(struct hm_cuda_device *d)
{
	struct hm_ctl_charge c = { 0 };

	if (!is_counted(d->handle))
		return;
	pthread_mutex_lock(&lock);
	c.add = total[d->handle];
	pthread_mutex_unlock(&lock);
	if (c.add)
		d->resource->ops->ctl(d->resource, HM_CTL_CHARGE, &c);
}

uint64_t hm_cuda_handle_bytes(void)
{
	uint64_t sum = 0;
	CUdevice device;

	pthread_mutex_lock(&lock);
	for (device = 0; device < HM_MAX_DEVICES; device++)
		sum += total[device];
	pthread_mutex_unlock(&lock);
	return sum;
}

/* With the lock. Returns the memory if its last use is over, else NULL. */
static struct memory *put(struct memory *memory)
{
	if (--memory->uses)
		return NULL;
	if (is_counted(memory->device))
		total[memory->device] -= memory->size;
	return memory;
}

/* Without the lock, what put() returned. */
static void end(struct memory *memory)
{
	if (memory)
		hm_cuda_uncharge(memory->device, memory->size);
	free(memory);
}

/* With the lock: adds a use of @memory to @root. False: no host memory. */
static bool insert(void **root, uintptr_t start, uintptr_t end, struct memory *memory)
{
	struct entry *e = malloc(sizeof(*e));

	if (!e)
		return false;
	*e = (struct entry){ .range = { start, end }, .memory = memory, .refs = 1 };
	if (hm_range_insert(root, &e->range)) {
		free(e);
		return false;
	}
	memory->uses++;
	return true;
}

/* With the lock: one more release of @handle is to come. */
static void add_handle(uintptr_t handle, struct memory *memory)
{
	struct entry *e = (void *)hm_range_find(&handles, handle, 1);

	if (e && e->memory == memory) {
		e->refs++;
		memory->uses++;
	} else if (!e) {
		insert(&handles, handle, handle + 1, memory);
	}
}

CUresult HM_CUDA_EXPORT cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
				    const CUmemAllocationProp *prop, unsigned long long flags)
{
	CUmemGenericAllocationHandle none = 0;
	struct memory *memory = NULL;
	CUresult res;

	if (!hm_cuda_is_active())
		return HM_CUDA_NEXT(cuMemCreate)(handle, size, prop, flags);
	HM_CUDA_COUNT(cuMemCreate);
	if (handle && size && prop && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
	    is_counted(prop->location.id) && !hm_cuda_is_child())
		memory = calloc(1, sizeof(*memory));
	if (!memory)
		return HM_CUDA_NEXT(cuMemCreate)(handle, size, prop, flags);
	/* No bytes: the driver's error before cuInit(), which a charge would call. */
	res = HM_CUDA_NEXT(cuMemCreate)(&none, 0, prop, flags);
	if (res && res != CUDA_ERROR_INVALID_VALUE) {
		free(memory);
		return res;
	}
	*memory = (struct memory){ .device = prop->location.id, .size = size, .fd = -1 };
	if (!hm_cuda_charge(memory->device, size)) {
		free(memory);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	res = HM_CUDA_NEXT(cuMemCreate)(handle, size, prop, flags);
	pthread_mutex_lock(&lock);
	if (!res && insert(&handles, *handle, *handle + 1, memory)) {
		total[memory->device] += size;
		memory = NULL;
	}
	pthread_mutex_unlock(&lock);
	end(memory);
	return res;
}

CUresult HM_CUDA_EXPORT cuMemRelease(CUmemGenericAllocationHandle handle)
{
	struct memory *memory = NULL;
	struct entry *e = NULL;
	CUresult res;

	if (!hm_cuda_is_active())
		return HM_CUDA_NEXT(cuMemRelease)(handle);
	HM_CUDA_COUNT(cuMemRelease);
	if (hm_cuda_is_child())
		return HM_CUDA_NEXT(cuMemRelease)(handle);
	/* Once it is released, another thread can get the handle's value at once. */
	pthread_mutex_lock(&lock);
	e = (void *)hm_range_find(&handles, handle, 1);
	if (e) {
		memory = e->memory;
		if (!--e->refs)
			hm_range_erase(&handles, &e->range);
		if (e->refs)
			e = NULL;
	}
	pthread_mutex_unlock(&lock);
	res = HM_CUDA_NEXT(cuMemRelease)(handle);
	free(e);
	pthread_mutex_lock(&lock);
	if (res && memory) {
		add_handle(handle, memory);
		memory->uses--;
		memory = NULL;
	}
	memory = memory ? put(memory) : NULL;
	pthread_mutex_unlock(&lock);
	end(memory);
	return res;
}

CUresult HM_CUDA_EXPORT cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
				 CUmemGenericAllocationHandle handle, unsigned long long flags)
{
	CUresult res = HM_CUDA_NEXT(cuMemMap)(ptr, size, offset, handle, flags);
	struct entry *e;

	if (!hm_cuda_is_active())
		return res;
	HM_CUDA_COUNT(cuMemMap);
	if (res || hm_cuda_is_child())
		return res;
	pthread_mutex_lock(&lock);
	e = (void *)hm_range_find(&handles, handle, 1);
	if (e)
		insert(&mappings, ptr, ptr + size, e->memory);
	pthread_mutex_unlock(&lock);
	return res;
}

/* With the lock: removes the mappings in the range, and returns them as a list. */
static struct entry **take_mappings(uintptr_t ptr, size_t size, size_t *nr)
{
	struct entry **taken = NULL, **more;
	struct entry *e;

	*nr = 0;
	while (size && (e = (void *)hm_range_find(&mappings, ptr, size))) {
		more = realloc(taken, (*nr + 1) * sizeof(*taken));
		if (!more)
			break;
		taken = more;
		taken[(*nr)++] = e;
		hm_range_erase(&mappings, &e->range);
	}
	return taken;
}

CUresult HM_CUDA_EXPORT cuMemUnmap(CUdeviceptr ptr, size_t size)
{
	struct entry **taken;
	struct memory *over;
	CUresult res;
	size_t i, nr;

	if (!hm_cuda_is_active())
		return HM_CUDA_NEXT(cuMemUnmap)(ptr, size);
	HM_CUDA_COUNT(cuMemUnmap);
	if (hm_cuda_is_child())
		return HM_CUDA_NEXT(cuMemUnmap)(ptr, size);
	/* Once they are unmapped, another thread can map there at once. */
	pthread_mutex_lock(&lock);
	taken = take_mappings(ptr, size, &nr);
	pthread_mutex_unlock(&lock);
	res = HM_CUDA_NEXT(cuMemUnmap)(ptr, size);
	for (i = 0; i < nr; i++) {
		over = NULL;
		pthread_mutex_lock(&lock);
		if (!res || hm_range_insert(&mappings, &taken[i]->range)) {
			over = put(taken[i]->memory);
			free(taken[i]);
		}
		pthread_mutex_unlock(&lock);
		end(over);
	}
	free(taken);
	return res;
}

CUresult HM_CUDA_EXPORT cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle,
						    void *ptr)
{
	CUresult res = HM_CUDA_NEXT(cuMemRetainAllocationHandle)(handle, ptr);
	struct entry *e;

	if (!hm_cuda_is_active())
		return res;
	HM_CUDA_COUNT(cuMemRetainAllocationHandle);
	if (res || !handle || hm_cuda_is_child())
		return res;
	pthread_mutex_lock(&lock);
	e = (void *)hm_range_find(&mappings, (uintptr_t)ptr, 1);
	if (e)
		add_handle(*handle, e->memory);
	pthread_mutex_unlock(&lock);
	return res;
}

CUresult HM_CUDA_EXPORT cuMemExportToShareableHandle(void *shareable,
						     CUmemGenericAllocationHandle handle,
						     CUmemAllocationHandleType type,
						     unsigned long long flags)
{
	CUresult res = HM_CUDA_NEXT(cuMemExportToShareableHandle)(shareable, handle, type, flags);
	struct entry *e;
	struct stat st;

	if (!hm_cuda_is_active())
		return res;
	HM_CUDA_COUNT(cuMemExportToShareableHandle);
	if (res || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || hm_cuda_is_child() ||
	    fstat(*(int *)shareable, &st))
		return res;
	pthread_mutex_lock(&lock);
	e = (void *)hm_range_find(&handles, handle, 1);
	if (e) {
		e->memory->fd = *(int *)shareable;
		e->memory->dev = st.st_dev;
		e->memory->ino = st.st_ino;
	}
	pthread_mutex_unlock(&lock);
	return res;
}

struct search {
	int fd;
	struct stat st;
	struct memory *found;
};

/* NVIDIA's descriptors share one inode, so the number counts, too. */
static void compare(struct hm_range *range, void *arg)
{
	struct memory *memory = ((struct entry *)range)->memory;
	struct search *s = arg;

	if (memory->fd == s->fd && memory->dev == s->st.st_dev && memory->ino == s->st.st_ino)
		s->found = memory;
}

CUresult HM_CUDA_EXPORT cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle,
						       void *shareable,
						       CUmemAllocationHandleType type)
{
	CUresult res = HM_CUDA_NEXT(cuMemImportFromShareableHandle)(handle, shareable, type);
	struct search s = { .fd = (int)(intptr_t)shareable };

	if (!hm_cuda_is_active())
		return res;
	HM_CUDA_COUNT(cuMemImportFromShareableHandle);
	if (res || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || hm_cuda_is_child() ||
	    fstat(s.fd, &s.st))
		return res;
	pthread_mutex_lock(&lock);
	hm_range_walk(&mappings, compare, &s);
	hm_range_walk(&handles, compare, &s);
	if (s.found)
		add_handle(*handle, s.found);
	pthread_mutex_unlock(&lock);
	return res;
}
