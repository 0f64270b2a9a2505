// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Memory that the driver allocates for the program, charged to the limit() of the spec.
 *
 * The bytes are charged before the driver is called, so that threads together do not exceed
 * the limit. A block is noted after the call, and uncharged when it is freed. A spec without
 * limit() charges nothing.
 */
#include <errno.h>

#include "cuda/cuda.h"
#include "cuda/prototypes.h"

static bool charge(CUdevice device, uint64_t add, uint64_t sub)
{
	struct hm_ctl_charge c = { .add = add, .sub = sub };
	CUresult error;
	struct hm_cuda_device *d = sub ? hm_cuda_open_device(device) :
		hm_cuda_device_of(device, &error);

	return !d || d->resource->ops->ctl(d->resource, HM_CTL_CHARGE, &c) != -ENOMEM;
}

bool hm_cuda_charge(CUdevice device, size_t size)
{
	return charge(device, size, 0);
}

void hm_cuda_uncharge(CUdevice device, size_t size)
{
	if (!hm_cuda_is_child())
		charge(device, 0, size);
}

bool hm_cuda_current_device(CUdevice *device)
{
	return !HM_CUDA_NEXT_AS(cuCtxGetDevice, CUresult (*)(CUdevice *))(device);
}

void hm_cuda_note_charged(CUdevice device, CUcontext ctx, CUdeviceptr ptr, size_t size)
{
	const struct hm_cuda_block block = {
		.range = { ptr, ptr + size }, .kind = HM_CUDA_CHARGED,
		.device = device, .ctx = ctx,
	};

	/* What cannot be noted is no longer charged: its free would not be seen. */
	if (!hm_cuda_block_add(&block))
		hm_cuda_uncharge(device, size);
}

CUresult hm_cuda_alloc_charged(CUdeviceptr *ptr, size_t size)
{
	CUdevice device;
	CUresult res;

	if (hm_cuda_is_child() || !hm_cuda_current_device(&device))
		return HM_CUDA_NEXT(cuMemAlloc_v2)(ptr, size);
	if (!hm_cuda_charge(device, size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	res = HM_CUDA_NEXT(cuMemAlloc_v2)(ptr, size);
	if (res)
		hm_cuda_uncharge(device, size);
	else
		hm_cuda_note_charged(device, hm_cuda_current(), *ptr, size);
	return res;
}

CUresult hm_cuda_free_charged(CUdeviceptr ptr)
{
	struct hm_cuda_block block;
	const bool taken = hm_cuda_block_take(ptr, 1U << HM_CUDA_CHARGED, &block);
	const CUresult res = HM_CUDA_NEXT(cuMemFree_v2)(ptr);

	if (!taken)
		return res;
	if (res)
		hm_cuda_block_put(&block);
	else
		hm_cuda_uncharge(block.device, block.range.end - block.range.start);
	return res;
}

/* The device that serves managed memory; NULL: none. */
static struct hm_cuda_device *managed_device(CUdeviceptr *ptr, size_t size, unsigned int flags,
					     CUresult *error)
{
	CUdeviceptr none = 0;

	*error = CUDA_SUCCESS;
	/* Other flags are about streams, which a pool's blocks know nothing of. */
	if (!hm_cuda_managed || !ptr || !size || flags != CU_MEM_ATTACH_GLOBAL ||
	    hm_cuda_is_child())
		return NULL;
	*error = HM_CUDA_NEXT(cuMemAllocManaged)(&none, 0, flags);
	if (*error != CUDA_ERROR_INVALID_VALUE)
		return NULL;
	return hm_cuda_device(hm_cuda_current(), error);
}

CUresult HM_CUDA_EXPORT cuMemAllocManaged(CUdeviceptr *ptr, size_t size, unsigned int flags)
{
	struct hm_cuda_device *d;
	CUdevice device;
	CUresult res;

	if (!hm_cuda_is_active())
		return HM_CUDA_NEXT(cuMemAllocManaged)(ptr, size, flags);
	HM_CUDA_COUNT(cuMemAllocManaged);
	d = managed_device(ptr, size, flags, &res);
	if (res)
		return res;
	if (d)
		return hm_cuda_alloc(d, HM_CUDA_MANAGED, size, HETMEM_STREAM_HOST, NULL, ptr);
	if (!ptr || !size || hm_cuda_is_child() || !hm_cuda_current_device(&device))
		return HM_CUDA_NEXT(cuMemAllocManaged)(ptr, size, flags);
	if (!hm_cuda_charge(device, size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	res = HM_CUDA_NEXT(cuMemAllocManaged)(ptr, size, flags);
	if (res)
		hm_cuda_uncharge(device, size);
	else
		hm_cuda_note_charged(device, hm_cuda_current(), *ptr, size);
	return res;
}

static void uncharge_block(const struct hm_cuda_block *block)
{
	hm_cuda_uncharge(block->device, block->range.end - block->range.start);
}

static void end_context(CUcontext ctx)
{
	hm_cuda_block_drop(0, ctx, uncharge_block);
	hm_cuda_array_drop(0, ctx);
}

/* The driver frees what a context of the program has. Primary contexts are refused there. */
#define DESTROY(name)							\
CUresult HM_CUDA_EXPORT name(CUcontext ctx)				\
{									\
	CUresult res = HM_CUDA_NEXT(name)(ctx);				\
									\
	if (!hm_cuda_is_active())					\
		return res;						\
	HM_CUDA_COUNT(name);						\
	if (!res && ctx && !hm_cuda_is_child())				\
		end_context(ctx);					\
	return res;							\
}

DESTROY(cuCtxDestroy)
DESTROY(cuCtxDestroy_v2)
