// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * libcuda.so.1 for Numba, which takes the driver's functions by their names: those of the soft
 * driver, which hetmem has opened before. A function that the soft driver lacks is not
 * supported.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stddef.h>
#include <stdio.h>

#define NOT_SUPPORTED	801
#define EXPORT __attribute__((visibility("default")))

typedef long (*function)(long a, long b, long c, long d, long e, long f);

static function find(const char *name)
{
	int (*get)(const char *name, void **fn, int version, uint64_t flags, int *status);
	void *soft = dlopen("libhetmem-soft.so", RTLD_NOW | RTLD_NOLOAD), *fn = NULL;
	int status;

	*(void **)&get = soft ? dlsym(soft, "cuGetProcAddress_v2") : NULL;
	if (!get || get(name, &fn, 12080, 0, &status))
		return NULL;
	return (function)fn;
}

#define CALL(name, exported)							\
	EXPORT int exported(long a, long b, long c, long d, long e, long f);	\
	EXPORT int exported(long a, long b, long c, long d, long e, long f)	\
	{									\
		function fn = find(#name);					\
										\
		return fn ? (int)fn(a, b, c, d, e, f) : NOT_SUPPORTED;		\
	}
#define SAME(name) CALL(name, name)

SAME(cuInit) SAME(cuDriverGetVersion) SAME(cuDeviceGet) SAME(cuDeviceGetCount)
SAME(cuDeviceGetName) SAME(cuDeviceGetUuid)
SAME(cuDevicePrimaryCtxRetain) SAME(cuDevicePrimaryCtxRelease) SAME(cuCtxGetCurrent)
SAME(cuCtxSetCurrent) SAME(cuCtxSynchronize) SAME(cuMemAlloc) SAME(cuMemFree) SAME(cuMemGetInfo)
SAME(cuMemGetAddressRange) SAME(cuMemHostAlloc) SAME(cuMemFreeHost) SAME(cuMemHostRegister)
SAME(cuMemHostUnregister) SAME(cuPointerGetAttribute) SAME(cuStreamCreate) SAME(cuStreamDestroy)
SAME(cuStreamSynchronize) SAME(cuStreamQuery) SAME(cuEventCreate) SAME(cuEventDestroy)
SAME(cuEventRecord) SAME(cuEventSynchronize) SAME(cuEventQuery) SAME(cuIpcGetMemHandle)
SAME(cuLaunchHostFunc) SAME(cuDevicePrimaryCtxReset) SAME(cuDeviceTotalMem)
SAME(cuIpcOpenMemHandle) SAME(cuMemHostGetDevicePointer) SAME(cuStreamWaitEvent)

/* Numba wants a compute capability: 9.0. */
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device);
EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	function fn = find("cuDeviceGetAttribute");

	*value = attribute == 75 ? 9 : 0;
	if (attribute == 75 || attribute == 76)
		return 0;
	return fn ? (int)fn((long)value, attribute, device, 0, 0, 0) : NOT_SUPPORTED;
}

/* Contexts are a stack of one. */
EXPORT int cuCtxPushCurrent(long ctx);
EXPORT int cuCtxPushCurrent(long ctx)
{
	return cuCtxSetCurrent(ctx, 0, 0, 0, 0, 0);
}

EXPORT int cuCtxPopCurrent(long *ctx);
EXPORT int cuCtxPopCurrent(long *ctx)
{
	int err = cuCtxGetCurrent((long)ctx, 0, 0, 0, 0, 0);

	return err ? err : cuCtxSetCurrent(0, 0, 0, 0, 0, 0);
}

EXPORT int cuCtxGetDevice(int *device);
EXPORT int cuCtxGetDevice(int *device)
{
	*device = 0;
	return 0;
}

static int copy(long to, long from, long size, long stream)
{
	function fn = find("cuMemcpyAsync");

	return fn ? (int)fn(to, from, size, stream, 0, 0) : NOT_SUPPORTED;
}

static int copy_now(long to, long from, long size)
{
	int err = copy(to, from, size, 0);

	return err ? err : cuStreamSynchronize(0, 0, 0, 0, 0, 0);
}

#define COPY(name)								\
	EXPORT int name(long to, long from, long size);				\
	EXPORT int name(long to, long from, long size)				\
	{									\
		return copy_now(to, from, size);				\
	}									\
	EXPORT int name##Async(long to, long from, long size, long stream);	\
	EXPORT int name##Async(long to, long from, long size, long stream)	\
	{									\
		return copy(to, from, size, stream);				\
	}

COPY(cuMemcpyHtoD) COPY(cuMemcpyDtoH) COPY(cuMemcpyDtoD)
