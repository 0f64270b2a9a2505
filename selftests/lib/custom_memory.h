/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Providers of a test's own, as programs would write them: custom(name=host)
 * and custom(name=device) hand out regions; memfd and mapped, for pools, have
 * addresses and memory apart.
 */
#ifndef HETMEM_SELFTESTS_CUSTOM_MEMORY_H
#define HETMEM_SELFTESTS_CUSTOM_MEMORY_H

#include <sys/mman.h>

#include "api.h"

#define CUSTOM_MEMORY	((size_t)256 << 20)

static const struct hm_api *drv;
/* Bytes of handles of memfd. */
static size_t custom_made;

/* Ordinary pages. */

static void *custom_pages(size_t size, size_t align, int prot)
{
	unsigned char *p = mmap(NULL, size + align, prot, MAP_PRIVATE |
				MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	size_t before;

	if (p == MAP_FAILED)
		return NULL;
	before = -(uintptr_t)p & (align - 1);
	if (before)
		munmap(p, before);
	munmap(p + before + size, align - before);
	return p + before;
}

static int host_alloc(void *data, size_t size, void **ptr)
{
	(void)data;
	*ptr = custom_pages(size, 64 << 10, PROT_READ | PROT_WRITE);
	return *ptr ? 0 : -ENOMEM;
}

static int host_free(void *data, void *ptr, size_t size)
{
	(void)data;
	return munmap(ptr, size) ? -errno : 0;
}

/* Handles are files. */

static int memfd_reserve(void *data, size_t size, size_t align, void **addr)
{
	(void)data;
	*addr = custom_pages(size, align, PROT_NONE);
	return *addr ? 0 : -ENOMEM;
}

static int memfd_create_handle(void *data, size_t size, uint64_t *handle)
{
	size_t made = __atomic_add_fetch(&custom_made, size, __ATOMIC_RELAXED);
	int fd = made > CUSTOM_MEMORY ? -1 : memfd_create("custom", MFD_CLOEXEC);

	(void)data;
	if (fd < 0 || ftruncate(fd, size)) {
		close(fd);
		__atomic_sub_fetch(&custom_made, size, __ATOMIC_RELAXED);
		return -ENOMEM;
	}
	*handle = (uint64_t)size << 24 | fd;
	return 0;
}

static int memfd_release(void *data, uint64_t handle)
{
	(void)data;
	__atomic_sub_fetch(&custom_made, handle >> 24, __ATOMIC_RELAXED);
	close(handle & 0xffffff);
	return 0;
}

static int memfd_map(void *data, void *addr, size_t size, uint64_t handle)
{
	(void)data;
	return mmap(addr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED,
		    handle & 0xffffff, 0) == MAP_FAILED ? -errno : 0;
}

static int memfd_unmap(void *data, void *addr, size_t size)
{
	(void)data;
	return mmap(addr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS |
		    MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED ? -errno : 0;
}

/* The driver's, in the context that is current. */

static int custom_error(CUresult res)
{
	return !res ? 0 : res == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : -(int)res;
}

static int device_alloc(void *data, size_t size, void **ptr)
{
	CUdeviceptr p = 0;
	int err = custom_error(drv->cuMemAlloc(&p, size));

	(void)data;
	*ptr = (void *)(uintptr_t)p;
	return err;
}

static int device_free(void *data, void *ptr, size_t size)
{
	(void)data;
	(void)size;
	return custom_error(drv->cuMemFree((uintptr_t)ptr));
}

static const CUmemAllocationProp custom_prop = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
};

static int mapped_reserve(void *data, size_t size, size_t align, void **addr)
{
	CUdeviceptr p = 0;
	int err = custom_error(drv->cuMemAddressReserve(&p, size, align, 0, 0));

	(void)data;
	*addr = (void *)(uintptr_t)p;
	return err;
}

static int mapped_unreserve(void *data, void *addr, size_t size)
{
	(void)data;
	return custom_error(drv->cuMemAddressFree((uintptr_t)addr, size));
}

static int mapped_create(void *data, size_t size, uint64_t *handle)
{
	CUmemGenericAllocationHandle h = 0;
	int err = custom_error(drv->cuMemCreate(&h, size, &custom_prop, 0));

	(void)data;
	*handle = h;
	return err;
}

static int mapped_release(void *data, uint64_t handle)
{
	(void)data;
	return custom_error(drv->cuMemRelease(handle));
}

static int mapped_map(void *data, void *addr, size_t size, uint64_t handle)
{
	const CUmemAccessDesc access = {
		.location = custom_prop.location,
		.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	const CUdeviceptr at = (uintptr_t)addr;
	int err = custom_error(drv->cuMemMap(at, size, 0, handle, 0));

	(void)data;
	if (err)
		return err;
	err = custom_error(drv->cuMemSetAccess(at, size, &access, 1));
	if (err)
		(void)hm_retry_once(drv->cuMemUnmap(at, size));
	return err;
}

static int mapped_unmap(void *data, void *addr, size_t size)
{
	(void)data;
	return custom_error(drv->cuMemUnmap((uintptr_t)addr, size));
}

static const struct hetmem_provider custom_host = {
	.size = sizeof(struct hetmem_provider),
	.version = HETMEM_PROVIDER_VERSION,
	.flags = HETMEM_PROVIDER_HOST | HETMEM_PROVIDER_FORK,
	.device = -1,
	.granularity = 64 << 10,
	.alloc = host_alloc,
	.free = host_free,
};

static const struct hetmem_provider custom_memfd = {
	.size = sizeof(struct hetmem_provider),
	.version = HETMEM_PROVIDER_VERSION,
	.flags = HETMEM_PROVIDER_HOST,
	.device = -1,
	.granularity = 2 << 20,
	.total = CUSTOM_MEMORY,
	.reserve = memfd_reserve,
	.unreserve = host_free,
	.create = memfd_create_handle,
	.release = memfd_release,
	.map = memfd_map,
	.unmap = memfd_unmap,
};

static const struct hetmem_provider custom_device = {
	.size = sizeof(struct hetmem_provider),
	.version = HETMEM_PROVIDER_VERSION,
	.granularity = 512,
	.alloc = device_alloc,
	.free = device_free,
};

static const struct hetmem_provider custom_mapped = {
	.size = sizeof(struct hetmem_provider),
	.version = HETMEM_PROVIDER_VERSION,
	.granularity = 2 << 20,
	.total = CUSTOM_MEMORY,
	.reserve = mapped_reserve,
	.unreserve = mapped_unreserve,
	.create = mapped_create,
	.release = mapped_release,
	.map = mapped_map,
	.unmap = mapped_unmap,
};

static void custom_register(struct hetmem *h)
{
	need(!hetmem_provider_register(h, "host", &custom_host, NULL) &&
	     !hetmem_provider_register(h, "memfd", &custom_memfd, NULL) &&
	     !hetmem_provider_register(h, "device", &custom_device, NULL) &&
	     !hetmem_provider_register(h, "mapped", &custom_mapped, NULL),
	     "registered: %s", hetmem_last_error());
}

#endif /* HETMEM_SELFTESTS_CUSTOM_MEMORY_H */
