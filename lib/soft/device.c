// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver's devices, their primary contexts, and error names.
 */
#include <stdio.h>
#include <string.h>

#include "soft/soft.h"

/* A world that is gone takes its contexts with it, hence the generation. */
static __thread struct {
	struct soft_world *world;
	struct CUctx_st *ctx;
} current;

static const struct {
	CUresult res;
	const char *name;
} errors[] = {
#define ERROR(name) { name, #name }
	ERROR(CUDA_SUCCESS),
	ERROR(CUDA_ERROR_INVALID_VALUE),
	ERROR(CUDA_ERROR_OUT_OF_MEMORY),
	ERROR(CUDA_ERROR_NOT_INITIALIZED),
	ERROR(CUDA_ERROR_DEINITIALIZED),
	ERROR(CUDA_ERROR_STUB_LIBRARY),
	ERROR(CUDA_ERROR_DEVICE_UNAVAILABLE),
	ERROR(CUDA_ERROR_NO_DEVICE),
	ERROR(CUDA_ERROR_INVALID_DEVICE),
	ERROR(CUDA_ERROR_INVALID_CONTEXT),
	ERROR(CUDA_ERROR_MAP_FAILED),
	ERROR(CUDA_ERROR_UNMAP_FAILED),
	ERROR(CUDA_ERROR_ALREADY_MAPPED),
	ERROR(CUDA_ERROR_NOT_MAPPED),
	ERROR(CUDA_ERROR_ECC_UNCORRECTABLE),
	ERROR(CUDA_ERROR_OPERATING_SYSTEM),
	ERROR(CUDA_ERROR_INVALID_HANDLE),
	ERROR(CUDA_ERROR_ILLEGAL_STATE),
	ERROR(CUDA_ERROR_NOT_FOUND),
	ERROR(CUDA_ERROR_NOT_READY),
	ERROR(CUDA_ERROR_ILLEGAL_ADDRESS),
	ERROR(CUDA_ERROR_CONTEXT_IS_DESTROYED),
	ERROR(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED),
	ERROR(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED),
	ERROR(CUDA_ERROR_LAUNCH_FAILED),
	ERROR(CUDA_ERROR_NOT_PERMITTED),
	ERROR(CUDA_ERROR_NOT_SUPPORTED),
	ERROR(CUDA_ERROR_SYSTEM_NOT_READY),
	ERROR(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH),
	ERROR(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED),
	ERROR(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED),
	ERROR(CUDA_ERROR_STREAM_CAPTURE_MERGE),
	ERROR(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED),
	ERROR(CUDA_ERROR_STREAM_CAPTURE_UNJOINED),
	ERROR(CUDA_ERROR_STREAM_CAPTURE_ISOLATION),
	ERROR(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT),
	ERROR(CUDA_ERROR_CAPTURED_EVENT),
	ERROR(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD),
	ERROR(CUDA_ERROR_UNKNOWN),
#undef ERROR
};

#define NR_ERRORS	(sizeof(errors) / sizeof(errors[0]))

bool hm_soft_error_by_name(const char *name, CUresult *res)
{
	size_t i;

	for (i = 0; i < NR_ERRORS; i++) {
		if (!strcmp(errors[i].name, name)) {
			*res = errors[i].res;
			return true;
		}
	}
	return false;
}

static CUresult get_error_name(CUresult error, const char **str)
{
	size_t i;

	*str = NULL;
	for (i = 0; i < NR_ERRORS && !*str; i++)
		if (errors[i].res == error)
			*str = errors[i].name;
	return *str ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult init(unsigned int flags)
{
	SOFT_ENTER(cuInit);
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	hm_soft_lock();
	hm_soft_world->initialized = true;
	hm_soft_unlock();
	return CUDA_SUCCESS;
}

static struct CUctx_st *device_of(CUdevice device)
{
	struct soft_world *w = hm_soft_world;

	return device >= 0 && device < w->nr_devices ? &w->devices[device] :
		NULL;
}

static CUresult device_get_count(int *count)
{
	SOFT_ENTER(cuDeviceGetCount);
	*count = hm_soft_world->nr_devices;
	return CUDA_SUCCESS;
}

static CUresult device_get(CUdevice *device, int ordinal)
{
	SOFT_ENTER(cuDeviceGet);
	if (!device_of(ordinal))
		return CUDA_ERROR_INVALID_DEVICE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

static CUresult device_get_name(char *name, int len, CUdevice device)
{
	struct CUctx_st *dev;

	SOFT_ENTER(cuDeviceGetName);
	dev = device_of(device);
	if (!dev || len < 1)
		return dev ? CUDA_ERROR_INVALID_VALUE :
			CUDA_ERROR_INVALID_DEVICE;
	snprintf(name, len, "%s", dev->name);
	return CUDA_SUCCESS;
}

static CUresult device_get_uuid(CUuuid *uuid, CUdevice device)
{
	SOFT_ENTER(cuDeviceGetUuid);
	if (!device_of(device))
		return CUDA_ERROR_INVALID_DEVICE;
	memset(uuid, 0, sizeof(*uuid));
	memcpy(uuid->bytes, "hetmem soft", 11);
	uuid->bytes[15] = (char)device;
	return CUDA_SUCCESS;
}

static CUresult get_fact(int *value, const struct CUctx_st *dev,
			 enum hm_fact_id id)
{
	if (dev->facts[id].fails)
		return CUDA_ERROR_INVALID_VALUE;
	*value = (int)dev->facts[id].value;
	return CUDA_SUCCESS;
}

static CUresult device_get_attribute(int *value, CUdevice_attribute attribute,
				     CUdevice device)
{
	struct CUctx_st *dev;
	CUresult res;

	SOFT_ENTER(cuDeviceGetAttribute);
	dev = device_of(device);
	if (!dev)
		return CUDA_ERROR_INVALID_DEVICE;
	switch ((int)attribute) {
	case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
	case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
		*value = 1;
		return CUDA_SUCCESS;
	case CU_DEVICE_ATTRIBUTE_INTEGRATED:
		return get_fact(value, dev, HM_FACT_INTEGRATED);
	case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS:
		return get_fact(value, dev, HM_FACT_PAGEABLE);
	case CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES:
		return get_fact(value, dev, HM_FACT_HOST_TABLES);
	case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
		return get_fact(value, dev, HM_FACT_MANAGED);
	case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
		return get_fact(value, dev, HM_FACT_CONCURRENT);
	case CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST:
		return get_fact(value, dev, HM_FACT_DIRECT);
	case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
		return get_fact(value, dev, HM_FACT_REGISTERS);
	case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
		return get_fact(value, dev, HM_FACT_REGISTERED);
	case CU_DEVICE_ATTRIBUTE_NUMA_ID:
		return get_fact(value, dev, HM_FACT_NODE);
	case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID:
		return get_fact(value, dev, HM_FACT_HOST_NODE);
	case CU_DEVICE_ATTRIBUTE_NUMA_CONFIG:
		res = get_fact(value, dev, HM_FACT_NODE);
		*value = !res && *value >= 0 ? CU_DEVICE_NUMA_CONFIG_NUMA_NODE : 0;
		return res;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult device_total_mem(size_t *bytes, CUdevice device)
{
	struct CUctx_st *dev;

	SOFT_ENTER(cuDeviceTotalMem);
	dev = device_of(device);
	if (!dev)
		return CUDA_ERROR_INVALID_DEVICE;
	*bytes = dev->capacity;
	return CUDA_SUCCESS;
}

static CUresult primary_ctx_retain(CUcontext *ctx, CUdevice device)
{
	struct CUctx_st *dev;

	SOFT_ENTER(cuDevicePrimaryCtxRetain);
	dev = device_of(device);
	if (!dev)
		return CUDA_ERROR_INVALID_DEVICE;
	hm_soft_lock();
	dev->retained++;
	hm_soft_unlock();
	*ctx = dev;
	return CUDA_SUCCESS;
}

static CUresult primary_ctx_release(CUdevice device)
{
	struct CUctx_st *dev;
	CUresult res = CUDA_SUCCESS;

	SOFT_ENTER(cuDevicePrimaryCtxRelease);
	dev = device_of(device);
	if (!dev)
		return CUDA_ERROR_INVALID_DEVICE;
	hm_soft_lock();
	if (!dev->retained) {
		res = CUDA_ERROR_INVALID_CONTEXT;
	} else if (!--dev->retained) {
		hm_soft_drain(dev);
		dev->error = CUDA_SUCCESS;
	}
	hm_soft_unlock();
	return res;
}

struct CUctx_st *hm_soft_current(void)
{
	return current.world == hm_soft_world ? current.ctx : NULL;
}

static CUresult ctx_set_current(CUcontext ctx)
{
	int i;

	SOFT_ENTER(cuCtxSetCurrent);
	for (i = 0; ctx && ctx != device_of(i); i++)
		if (!device_of(i))
			return CUDA_ERROR_INVALID_CONTEXT;
	current.world = hm_soft_world;
	current.ctx = ctx;
	return CUDA_SUCCESS;
}

static CUresult ctx_get_current(CUcontext *ctx)
{
	SOFT_ENTER(cuCtxGetCurrent);
	*ctx = hm_soft_current();
	return CUDA_SUCCESS;
}

static CUresult ctx_synchronize(void)
{
	struct CUctx_st *ctx = hm_soft_current();
	CUresult res;

	SOFT_ENTER(cuCtxSynchronize);
	if (!ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	hm_soft_lock();
	res = hm_soft_capture_none(ctx);
	if (!res)
		res = hm_soft_unsafe();
	if (!res) {
		hm_soft_drain(ctx);
		res = ctx->error;
	}
	hm_soft_unlock();
	return res;
}

void hm_soft_fill_device(struct hm_api *d)
{
	d->cuInit = init;
	d->cuGetErrorName = get_error_name;
	d->cuDeviceGetCount = device_get_count;
	d->cuDeviceGet = device_get;
	d->cuDeviceGetName = device_get_name;
	d->cuDeviceGetUuid = device_get_uuid;
	d->cuDeviceGetAttribute = device_get_attribute;
	d->cuDeviceTotalMem = device_total_mem;
	d->cuDevicePrimaryCtxRetain = primary_ctx_retain;
	d->cuDevicePrimaryCtxRelease = primary_ctx_release;
	d->cuCtxSetCurrent = ctx_set_current;
	d->cuCtxGetCurrent = ctx_get_current;
	d->cuCtxSynchronize = ctx_synchronize;
}
