// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver's two devices and each other's memory; batches of managed
 * memory; what can be shared, and what is refused.
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
	hm_soft_launch(CU_STREAM_PER_THREAD, "a kernel", &r, 1, 0);
	res = drv->cuStreamSynchronize(CU_STREAM_PER_THREAD);
	/* An error sticks to the context until it is released. */
	drv->cuDevicePrimaryCtxRelease(device);
	drv->cuDevicePrimaryCtxRetain(&c, device);
	drv->cuCtxSetCurrent(ctx[0]);
	return res;
}

static void peers(void)
{
	CUdeviceptr p;
	int can = 7;

	is(drv->cuDeviceCanAccessPeer(&can, 0, 1), 0, "asked");
	is(can, 1, "it can");
	drv->cuDeviceCanAccessPeer(&can, 1, 1);
	is(can, 0, "nobody is his own peer");
	is(drv->cuDeviceCanAccessPeer(&can, 0, 2), CUDA_ERROR_INVALID_DEVICE,
	   "no such device");
	drv->cuMemAlloc(&p, 4096);
	is(touch(0, p, 1), 0, "its own memory");
	is(touch(1, p, -1), CUDA_ERROR_ILLEGAL_ADDRESS, "is not another's");
	drv->cuCtxSetCurrent(ctx[1]);
	is(drv->cuCtxEnablePeerAccess(ctx[0], 0), 0, "enabled");
	is(drv->cuCtxEnablePeerAccess(ctx[0], 0),
	   CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, "not twice");
	is(drv->cuCtxEnablePeerAccess(ctx[1], 0), CUDA_ERROR_INVALID_CONTEXT,
	   "not to itself");
	is(touch(1, p, -1), 0, "reached");
	drv->cuCtxSetCurrent(ctx[1]);
	is(drv->cuCtxDisablePeerAccess(ctx[0]), 0, "disabled");
	is(drv->cuCtxDisablePeerAccess(ctx[0]),
	   CUDA_ERROR_PEER_ACCESS_NOT_ENABLED, "not twice");
	drv->cuCtxSetCurrent(ctx[0]);
	drv->cuMemFree(p);
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
	}, back = { 0 };
	CUmemGenericAllocationHandle h;
	unsigned long long flags;
	CUdeviceptr va;

	drv->cuMemAddressReserve(&va, G, 0, 0, 0);
	drv->cuMemCreate(&h, G, &prop, 0);
	is(drv->cuMemGetAllocationPropertiesFromHandle(&back, h), 0,
	   "properties");
	ok(!memcmp(&prop, &back, sizeof(prop)), "as it was created");
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
	is(drv->cuMemGetAllocationPropertiesFromHandle(&back, h),
	   CUDA_ERROR_INVALID_VALUE, "a handle that is gone");
	drv->cuMemAddressFree(va, G);
}

static void pools(void)
{
	CUmemAccessDesc desc = {
		{ CU_MEM_LOCATION_TYPE_DEVICE, 1 },
		CU_MEM_ACCESS_FLAGS_PROT_READWRITE
	};
	CUmemAccess_flags flags;
	CUmemoryPool pool;
	CUdeviceptr p;

	drv->cuDeviceGetDefaultMemPool(&pool, 0);
	drv->cuMemAllocAsync(&p, 4096, NULL);
	drv->cuMemPoolGetAccess(&flags, pool, &desc.location);
	is(flags, CU_MEM_ACCESS_FLAGS_PROT_NONE, "a pool's memory");
	is(touch(1, p, 1), CUDA_ERROR_ILLEGAL_ADDRESS, "is its device's");
	is(drv->cuMemPoolSetAccess(pool, &desc, 1), 0, "until it is allowed");
	is(touch(1, p, 1), 0, "to another");
	drv->cuMemPoolGetAccess(&flags, pool, &desc.location);
	is(flags, CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "and says so");
	desc.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
	is(drv->cuMemPoolSetAccess(pool, &desc, 1), 0, "or taken back");
	desc.location.id = 0;
	is(drv->cuMemPoolSetAccess(pool, &desc, 1), CUDA_ERROR_INVALID_VALUE,
	   "from its own device it is not");
	drv->cuMemFreeAsync(p, NULL);
	drv->cuCtxSynchronize();
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

static void shared(void)
{
	CUdeviceptr p, m, same;
	CUipcMemHandle ipc;
	unsigned int one = 1;
	void *host;
	int fd;

	drv->cuMemAlloc(&p, 4096);
	drv->cuMemAllocManaged(&m, 4096, CU_MEM_ATTACH_GLOBAL);
	drv->cuMemHostAlloc(&host, 4096, 0);
	is(drv->cuMemHostGetDevicePointer(&same, (char *)host + 9, 0), 0,
	   "the device's address of host memory");
	ok(same == (uintptr_t)host + 9, "is the same");
	is(drv->cuMemHostGetDevicePointer(&same, (void *)(uintptr_t)p, 0),
	   CUDA_ERROR_INVALID_VALUE, "of device memory there is none");
	is(drv->cuIpcGetMemHandle(&ipc, p), 0, "a name for other processes");
	is(drv->cuIpcGetMemHandle(&ipc, m), CUDA_ERROR_INVALID_VALUE,
	   "and never of managed memory");
	is(drv->cuMemGetHandleForAddressRange(&fd, p, 4096,
			CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0),
	   0, "a descriptor in place of a dma-buf");
	is(close(fd), 0, "is one");
	is(drv->cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS,
				      p), 0, "synchronous copies");
	is(drv->cuMemcpy((uintptr_t)host, p, 100), 0, "a copy that waits");
	drv->cuMemsetD8Async(p, 0x5a, 100, NULL);
	is(drv->cuMemcpy((uintptr_t)host, p, 100), 0, "for what was before");
	ok(all_bytes(host, 0x5a, 100), "is done");
	drv->cuMemFreeHost(host);
	drv->cuMemFree(m);
	drv->cuMemFree(p);
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
	peers();
	mappings();
	pools();
	batches();
	shared();
	drv->cuDevicePrimaryCtxRelease(1);
	close_soft();
	return tap_end();
}
