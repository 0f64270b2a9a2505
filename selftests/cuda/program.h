/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the programs of this folder share: they are linked with libcuda.so.1, as a program is
 * that knows nothing of hetmem.
 */
#ifndef HETMEM_SELFTESTS_PROGRAM_H
#define HETMEM_SELFTESTS_PROGRAM_H

#include <dlfcn.h>

#include "cuda/prototypes.h"
#include "lib/tap.h"

CUresult cuInit(unsigned int flags);
CUresult cuCtxSetCurrent(CUcontext ctx);
CUresult cuCtxSynchronize(void);
CUresult cuStreamCreate(CUstream *stream, unsigned int flags);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream);
CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t n, CUstream stream);
CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device);
CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props);
CUresult cuMemPoolDestroy(CUmemoryPool pool);
CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device);

CUresult cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
			     unsigned long long flags);
CUresult cuStreamQuery(CUstream stream);
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *data);

#define MIB	((size_t)1 << 20)

/* Makes the primary context of device 0 current. */
static inline CUcontext start(void)
{
	CUcontext ctx = NULL;

	if (cuInit(0) || cuDevicePrimaryCtxRetain(&ctx, 0) || cuCtxSetCurrent(ctx))
		return NULL;
	return ctx;
}

/* Calls of a name that the interposer has counted; 0 without it. */
static inline unsigned long long counted(const char *name)
{
	uint64_t (*count)(const char *name);
	void *fn = dlsym(RTLD_DEFAULT, "hetmem_cuda_count");

	memcpy(&count, &fn, sizeof(fn));
	return count ? count(name) : 0;
}

#endif /* HETMEM_SELFTESTS_PROGRAM_H */
