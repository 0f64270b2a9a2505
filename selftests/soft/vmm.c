// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver's virtual memory management: reserve, create, map, alias,
 * unmap; touching what is not mapped is SIGSEGV; export and import.
 */
#include <sys/resource.h>

#include "device_memory.h"
#include "soft_driver.h"
#include "touch.h"

#define G	((size_t)2 << 20)

static void map_and_fault(void)
{
	CUmemAccessDesc ro = rw;
	CUmemGenericAllocationHandle h;
	CUdeviceptr va;

	need(!drv->cuMemAddressReserve(&va, 8 * G, 0, 0, 0), "a reservation");
	is(va & (G - 1), 0, "is aligned");
	is(touch(va), SIGSEGV, "reserved addresses fault");
	need(!drv->cuMemCreate(&h, 2 * G, &prop, 0), "a handle");
	is(drv->cuMemMap(va + G, 2 * G, 0, h, 0), 0, "mapped");
	is(touch(va + G), SIGSEGV, "without access they fault still");
	is(drv->cuMemSetAccess(va + G, 2 * G, &rw, 1), 0, "access");
	is(touch_write(va + 3 * G - 1), 0, "is access");
	is(touch(va + 3 * G), SIGSEGV, "not behind it");
	ro.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
	is(drv->cuMemSetAccess(va + G, 2 * G, &ro, 1), 0, "for reading");
	is(touch(va + G), 0, "reads");
	is(touch_write(va + G), SIGSEGV, "and writes not");

	is(drv->cuMemMap(va + 2 * G, 2 * G, 0, h, 0),
	   CUDA_ERROR_INVALID_VALUE, "over a mapping");
	is(drv->cuMemMap(va + 4 * G, G, G, h, 0), CUDA_ERROR_NOT_SUPPORTED,
	   "part of a handle");
	is(drv->cuMemMap(va + 7 * G, 2 * G, 0, h, 0),
	   CUDA_ERROR_INVALID_VALUE, "beyond the reservation");
	is(drv->cuMemMap(va + 4 * G + 4096, 2 * G, 0, h, 0),
	   CUDA_ERROR_INVALID_VALUE, "not aligned");
	is(drv->cuMemUnmap(va + G, G), CUDA_ERROR_INVALID_VALUE,
	   "unmap of half a mapping");
	is(drv->cuMemUnmap(va, 2 * G), CUDA_ERROR_INVALID_VALUE,
	   "of a hole and half a mapping");
	is(drv->cuMemUnmap(va + 4 * G, 2 * G), 0, "of nothing");
	is(drv->cuMemSetAccess(va, 3 * G, &rw, 1), CUDA_ERROR_INVALID_VALUE,
	   "access to a hole");
	is(drv->cuMemAddressFree(va, 8 * G), CUDA_ERROR_INVALID_VALUE,
	   "addresses in use are not freed");
	is(drv->cuMemUnmap(va, 5 * G), 0, "unmapped, and holes around it");
	is(touch(va + G), SIGSEGV, "faults again");
	is(drv->cuMemAddressFree(va, 4 * G), CUDA_ERROR_INVALID_VALUE,
	   "half a reservation");
	is(drv->cuMemRelease(h), 0, "released");
	is(drv->cuMemRelease(h), CUDA_ERROR_INVALID_VALUE, "not twice");
	is(drv->cuMemAddressFree(va, 8 * G), 0, "addresses freed");
}

static void alias(void)
{
	CUmemGenericAllocationHandle h;
	unsigned char out[2] = { 0 };
	CUdeviceptr va;

	drv->cuMemAddressReserve(&va, 4 * G, 0, 0, 0);
	drv->cuMemCreate(&h, G, &prop, 0);
	is(drv->cuMemMap(va, G, 0, h, 0) + drv->cuMemMap(va + 2 * G, G, 0, h, 0),
	   0, "one handle behind two addresses");
	drv->cuMemSetAccess(va, G, &rw, 1);
	drv->cuMemSetAccess(va + 2 * G, G, &rw, 1);
	drv->cuMemsetD8Async(va + 5, 0x77, 1, NULL);
	drv->cuMemcpyDtoHAsync(out, va + 2 * G + 5, 1, NULL);
	drv->cuCtxSynchronize();
	is(out[0], 0x77, "is one memory");
	is(drv->cuMemUnmap(va, G), 0, "one unmapped");
	is(drv->cuMemRelease(h), 0, "and released");
	drv->cuMemcpyDtoHAsync(out, va + 2 * G + 5, 1, NULL);
	drv->cuCtxSynchronize();
	is(out[0], 0x77, "the other mapping keeps it");
	is(device_used(), G, "and its memory");
	is(drv->cuMemUnmap(va + 2 * G, G), 0, "until it goes too");
	is(device_used(), 0, "then it is free");
	drv->cuMemAddressFree(va, 4 * G);
}

static void many(void)
{
	CUmemGenericAllocationHandle h[8];
	CUdeviceptr va;
	int i, bad = 0;

	drv->cuMemAddressReserve(&va, 8 * G, 64 * G, 0, 0);
	is(va & (64 * G - 1), 0, "an alignment that was asked for");
	for (i = 0; i < 8; i++)
		bad += drv->cuMemCreate(&h[i], G, &prop, 0) ||
		       drv->cuMemMap(va + i * G, G, 0, h[i], 0) ||
		       drv->cuMemRelease(h[i]);
	is(bad, 0, "eight handles, mapped and released");
	is(drv->cuMemSetAccess(va, 8 * G, &rw, 1), 0, "access to all at once");
	memset((void *)(uintptr_t)va, 3, 8 * G);
	is(drv->cuMemUnmap(va, 8 * G), 0, "unmapped at once");
	is(drv->cuMemAddressFree(va, 8 * G), 0, "freed");
}

static void share(void)
{
	CUmemAllocationProp p = prop;
	CUmemGenericAllocationHandle h, imported;
	CUdeviceptr va;
	int fd = -1;

	drv->cuMemCreate(&h, G, &prop, 0);
	is(drv->cuMemExportToShareableHandle(&fd, h,
			CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
	   CUDA_ERROR_INVALID_VALUE, "export of what was not made for it");
	drv->cuMemRelease(h);
	p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	drv->cuMemCreate(&h, G, &p, 0);
	is(drv->cuMemExportToShareableHandle(&fd, h,
			CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), 0,
	   "export");
	is(drv->cuMemImportFromShareableHandle(&imported,
			(void *)(intptr_t)fd,
			CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR), 0, "import");
	is(close(fd), 0, "the descriptor stays the caller's");
	drv->cuMemAddressReserve(&va, 2 * G, 0, 0, 0);
	drv->cuMemMap(va, G, 0, h, 0);
	drv->cuMemMap(va + G, G, 0, imported, 0);
	drv->cuMemSetAccess(va, 2 * G, &rw, 1);
	*(volatile char *)(uintptr_t)(va + 3) = 99;
	is(*(volatile char *)(uintptr_t)(va + G + 3), 99, "is the same memory");
	is(drv->cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)-1,
			CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
	   CUDA_ERROR_INVALID_VALUE, "import of nothing");
	drv->cuMemUnmap(va, 2 * G);
	drv->cuMemRelease(h);
	drv->cuMemRelease(imported);
	drv->cuMemAddressFree(va, 2 * G);
}

/* More handles than a process may have descriptors. */
static void descriptors(void)
{
	static CUmemGenericAllocationHandle h[32];
	struct rlimit was, few;
	CUdeviceptr va;
	int i, bad = 0;

	getrlimit(RLIMIT_NOFILE, &was);
	few = was;
	few.rlim_cur = 16;
	setrlimit(RLIMIT_NOFILE, &few);
	drv->cuMemAddressReserve(&va, 32 * G, 0, 0, 0);
	for (i = 0; i < 32; i++)
		bad += drv->cuMemCreate(&h[i], G, &prop, 0) ||
		       drv->cuMemMap(va + i * G, G, 0, h[i], 0);
	is(bad, 0, "32 handles with 16 descriptors");
	is(drv->cuMemSetAccess(va, 32 * G, &rw, 1), 0, "access");
	for (i = 0; i < 32; i++)
		memset((void *)(uintptr_t)(va + i * G), i, 4096);
	for (i = 0; i < 32; i++)
		bad += !all_bytes((void *)(uintptr_t)(va + i * G), i, 4096);
	is(bad, 0, "each is its own memory");
	drv->cuMemUnmap(va, 32 * G);
	for (i = 0; i < 32; i++)
		drv->cuMemRelease(h[i]);
	drv->cuMemAddressFree(va, 32 * G);
	setrlimit(RLIMIT_NOFILE, &was);
}

/* The kernel allows a process some 65530 mappings. */
static void mappings(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	const int most = 1000;	/* it needs mappings itself */
#else
	const int most = 70000;
#endif
	CUmemGenericAllocationHandle h;
	CUresult res = CUDA_SUCCESS;
	CUdeviceptr va;
	int n, bad = 0;

	if (drv->cuMemAddressReserve(&va, most * G, 0, 0, 0)) {
		printf("# no room for as many addresses\n");
		return;
	}
	drv->cuMemCreate(&h, G, &prop, 0);
	for (n = 0; n < most && !res; n++)
		res = drv->cuMemMap(va + n * G, G, 0, h, 0);
	printf("# %d mappings: %d\n", n, res);
	if (res) {
		n--;
		is(res, CUDA_ERROR_OUT_OF_MEMORY, "too many mappings");
		is(drv->cuMemMap(va + n * G, G, 0, h, 0),
		   CUDA_ERROR_OUT_OF_MEMORY, "still too many");
		/* One hole in the place of four mappings. */
		is(drv->cuMemUnmap(va + 7 * G, 4 * G), 0, "four go");
		is(drv->cuMemMap(va + n * G, G, 0, h, 0), 0, "one comes");
		bad += drv->cuMemUnmap(va, 7 * G) != CUDA_SUCCESS;
		bad += drv->cuMemUnmap(va + 11 * G, (n - 10) * G) != CUDA_SUCCESS;
	} else {
		bad += drv->cuMemUnmap(va, n * G) != CUDA_SUCCESS;
	}
	is(bad, 0, "all unmapped");
	drv->cuMemRelease(h);
	is(device_used(), 0, "and freed");
	is(drv->cuMemAddressFree(va, most * G), 0, "with their addresses");
}

static void refused(void)
{
	CUmemAllocationProp p = prop;
	CUmemGenericAllocationHandle h;
	CUdeviceptr va;

	is(drv->cuMemCreate(&h, G + 1, &prop, 0), CUDA_ERROR_INVALID_VALUE,
	   "a size that is not granular");
	is(drv->cuMemCreate(&h, 0, &prop, 0), CUDA_ERROR_INVALID_VALUE,
	   "no size");
	is(drv->cuMemCreate(&h, 1024 * G, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY,
	   "more than the device has");
	p.location.id = 1;
	is(drv->cuMemCreate(&h, G, &p, 0), CUDA_ERROR_INVALID_DEVICE,
	   "no such device");
	p.location.id = 0;
	p.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
	is(drv->cuMemCreate(&h, G, &p, 0), CUDA_ERROR_NOT_PERMITTED,
	   "no fabric");
	is(drv->cuMemAddressReserve(&va, 100, 0, 0, 0),
	   CUDA_ERROR_INVALID_VALUE, "a reservation that is not granular");
	is(drv->cuMemAddressFree(0x1000, G), CUDA_ERROR_INVALID_VALUE,
	   "a free of what is not reserved");
}

int main(void)
{
	size_t g = 0;

	catch_faults();
	setenv("HETMEM_SOFT_MEMORY", "64M", 1);
	open_soft("");
	is(drv->cuMemGetAllocationGranularity(&g, &prop,
			CU_MEM_ALLOC_GRANULARITY_MINIMUM), 0, "granularity");
	is(g, G, "is 2 MiB");
	map_and_fault();
	alias();
	many();
	share();
	descriptors();
	mappings();
	refused();
	close_soft();
	return tap_end();
}
