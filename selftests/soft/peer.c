// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver's two devices and each other's mappings; batches of managed
 * memory.
 */
#include "soft_driver.h"

#define G	((size_t)2 << 20)

static CUcontext ctx[2];

static CUresult touch(int device, CUdeviceptr p, int fill)
{
	struct hm_soft_range r = { p, 64, fill };
	CUresult res;
	CUcontext c;

	drv->cuCtxSetCurrent(ctx[device]);
	soft_launch(CU_STREAM_PER_THREAD, "a kernel", &r, 1, 0);
	res = drv->cuStreamSynchronize(CU_STREAM_PER_THREAD);
	/* An error sticks to the context until it is released. */
	drv->cuDevicePrimaryCtxRelease(device);
	drv->cuDevicePrimaryCtxRetain(&c, device);
	drv->cuCtxSetCurrent(ctx[0]);
	return res;
}

static void mappings(void)
{
	CUmemAccessDesc desc[2] = {
		{ { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
		  CU_MEM_ACCESS_FLAGS_PROT_READWRITE },
		{ { CU_MEM_LOCATION_TYPE_DEVICE, 1 },
		  CU_MEM_ACCESS_FLAGS_PROT_READ },
	};
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
		.allocFlags = { .gpuDirectRDMACapable = 1 },
	};
	CUmemGenericAllocationHandle h;
	unsigned long long flags;
	CUdeviceptr va;

	drv->cuMemAddressReserve(&va, G, 0, 0, 0);
	drv->cuMemCreate(&h, G, &prop, 0);
	drv->cuMemMap(va, G, 0, h, 0);
	drv->cuMemSetAccess(va, G, &desc[0], 1);
	is(touch(0, va, 3), 0, "its device");
	is(touch(1, va, -1), CUDA_ERROR_ILLEGAL_ADDRESS, "another does not");
	drv->cuMemSetAccess(va, G, &desc[1], 1);
	is(touch(1, va, -1), 0, "when it may read");
	is(touch(1, va, 4), CUDA_ERROR_ILLEGAL_ADDRESS, "it may not write");
	is(touch(0, va, 3), 0, "the first one may still");
	is(drv->cuMemGetAccess(&flags, &desc[1].location, va + 5), 0, "asked");
	is(flags, CU_MEM_ACCESS_FLAGS_PROT_READ, "for reading");
	drv->cuMemGetAccess(&flags, &desc[0].location, va + 5);
	is(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "for both");
	drv->cuMemUnmap(va, G);
	drv->cuMemMap(va, G, 0, h, 0);
	is(touch(0, va, -1), CUDA_ERROR_ILLEGAL_ADDRESS,
	   "a new mapping has no access");
	is(drv->cuMemGetAccess(&flags, &desc[0].location, va + G),
	   CUDA_ERROR_INVALID_VALUE, "nothing is there");
	drv->cuMemUnmap(va, G);
	drv->cuMemRelease(h);
	is(drv->cuMemRelease(h), CUDA_ERROR_INVALID_VALUE,
	   "a handle that is gone");
	drv->cuMemAddressFree(va, G);
}

static int prefetched(CUdeviceptr p)
{
	int device = 77;

	drv->cuMemRangeGetAttribute(&device, sizeof(device),
			CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, p, 64);
	return device;
}

static void batches(void)
{
	CUmemLocation to[2] = { { CU_MEM_LOCATION_TYPE_DEVICE, 1 },
				{ CU_MEM_LOCATION_TYPE_HOST, 0 } };
	size_t sizes[3] = { 4096, 4096, 4096 }, first[2] = { 0, 2 };
	CUdeviceptr p[3];
	int i;

	for (i = 0; i < 3; i++)
		drv->cuMemAllocManaged(&p[i], 4096, CU_MEM_ATTACH_GLOBAL);
	is(drv->cuMemPrefetchBatchAsync(p, sizes, 3, to, first, 2, 0, NULL), 0,
	   "a batch to two places");
	ok(prefetched(p[0]) == 1 && prefetched(p[1]) == 1 &&
	   prefetched(p[2]) == CU_DEVICE_CPU, "each went where it should");
	is(drv->cuMemDiscardAndPrefetchBatchAsync(p, sizes, 3, to, first, 1, 0,
						  NULL), 0, "to one place");
	is(prefetched(p[2]), 1, "all of it");
	is(drv->cuMemDiscardBatchAsync(p, sizes, 3, 0, NULL), 0, "discarded");
	is(drv->cuMemDiscardBatchAsync(p, sizes, 3, 1, NULL),
	   CUDA_ERROR_INVALID_VALUE, "unknown flags");
	first[1] = 3;
	is(drv->cuMemPrefetchBatchAsync(p, sizes, 3, to, first, 2, 0, NULL),
	   CUDA_ERROR_INVALID_VALUE, "a place for nothing");
	to[0].id = 9;
	is(drv->cuMemPrefetchBatchAsync(p, sizes, 3, to, first, 1, 0, NULL),
	   CUDA_ERROR_INVALID_VALUE, "no such place");
	sizes[1] = 8192;
	is(drv->cuMemDiscardBatchAsync(p, sizes, 3, 0, NULL),
	   CUDA_ERROR_INVALID_VALUE, "beyond its end");
	drv->cuCtxSynchronize();
	for (i = 0; i < 3; i++)
		drv->cuMemFree(p[i]);
}

int main(void)
{
	int i;

	setenv("HETMEM_SOFT_DEVICES", "2", 1);
	setenv("HETMEM_SOFT_DEBUG", "1", 1);
	open_soft("");
	for (i = 0; i < 2; i++)
		drv->cuDevicePrimaryCtxRetain(&ctx[i], i);
	/* The only reference, so that a release is the last one. */
	drv->cuDevicePrimaryCtxRelease(0);
	mappings();
	batches();
	drv->cuDevicePrimaryCtxRelease(1);
	close_soft();
	return tap_end();
}
