// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Memory that is allocated and freed as a whole, and what programs ask about it.
 *
 * cuMemAlloc() allocates on the stream of the host: every stream and the CPU may use the block
 * at once. cuMemFree() waits for all earlier work of the context, as the driver's does, and
 * then frees on the stream of the host. With sync=off it frees on the legacy stream.
 *
 * Probes. cuMemAlloc() of 0 bytes and cuMemFree() of address 1 return
 * CUDA_ERROR_INVALID_VALUE where a correct call would succeed. Anywhere else they return what
 * a correct call would return, and do the same harm: in a capture they end it.
 */
#include <errno.h>
#include <string.h>

#include "cuda/cuda.h"
#include "cuda/ipc.h"
#include "cuda/prototypes.h"

CUresult hm_cuda_probe_alloc(void)
{
	CUdeviceptr none = 0;
	CUresult res = HM_CUDA_NEXT(cuMemAlloc_v2)(&none, 0);

	return res == CUDA_ERROR_INVALID_VALUE ? CUDA_SUCCESS : res;
}

static CUresult probe_free(void)
{
	CUresult res = HM_CUDA_NEXT(cuMemFree_v2)(HM_CUDA_NO_ADDRESS);

	return res == CUDA_ERROR_INVALID_VALUE ? CUDA_SUCCESS : res;
}

static CUresult result_of(int err)
{
	switch (err) {
	case 0:
		return CUDA_SUCCESS;
	case -ENOMEM:
		return CUDA_ERROR_OUT_OF_MEMORY;
	case -EINVAL:
		return CUDA_ERROR_INVALID_VALUE;
	default:
		return CUDA_ERROR_UNKNOWN;
	}
}

CUresult hm_cuda_alloc(struct hm_cuda_device *d, enum hm_cuda_kind kind, size_t size,
		       CUstream stream, CUmemoryPool pool, CUdeviceptr *ptr)
{
	struct hm_cuda_block block = {
		.kind = kind, .device = d->handle, .ctx = d->ctx, .pool = pool,
	};
	void *p;
	int err = hetmem_alloc(d->resource, size, 0, stream, &p);

	if (err)
		return result_of(err);
	block.range = (struct hm_range){ (uintptr_t)p, (uintptr_t)p + size };
	if (!hm_cuda_block_add(&block)) {
		hetmem_free(d->resource, p, size, stream);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (kind == HM_CUDA_ASYNC)
		hm_cuda_pool_add(d->handle, size);
	*ptr = (uintptr_t)p;
	return CUDA_SUCCESS;
}

CUresult HM_CUDA_EXPORT cuMemAlloc_v2(CUdeviceptr *ptr, size_t size)
{
	struct hm_cuda_device *d;
	CUresult res, error;

	if (!hm_cuda_is_active())
		return HM_CUDA_NEXT(cuMemAlloc_v2)(ptr, size);
	HM_CUDA_COUNT(cuMemAlloc_v2);
	if (!ptr || !size)
		return HM_CUDA_NEXT(cuMemAlloc_v2)(ptr, size);
	res = hm_cuda_probe_alloc();
	if (res)
		return res;
	d = hm_cuda_device(hm_cuda_current(), &error);
	if (error)
		return error;
	return d && !hm_cuda_ipc ? hm_cuda_alloc(d, HM_CUDA_SERVED, size, HETMEM_STREAM_HOST, NULL, ptr) :
		hm_cuda_alloc_charged(ptr, size);
}

/*
 * The multiple that the driver makes pitches of. 0: it gave none. Every thread that asks first
 * gets the same answer.
 */
static size_t pitch_unit(unsigned int element)
{
	static size_t unit;
	size_t known = __atomic_load_n(&unit, __ATOMIC_RELAXED);
	CUdeviceptr row;

	if (known)
		return known;
	if (HM_CUDA_NEXT(cuMemAllocPitch_v2)(&row, &known, 1, 1, element))
		return 0;
	HM_CUDA_NEXT(cuMemFree_v2)(row);
	__atomic_store_n(&unit, known, __ATOMIC_RELAXED);
	return known;
}

/* The driver's own rows. Their size is known afterwards. */
static CUresult pitch_charged(CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height,
			      unsigned int element)
{
	CUresult res = HM_CUDA_NEXT(cuMemAllocPitch_v2)(ptr, pitch, width, height, element);
	CUdevice device;

	if (res || hm_cuda_is_child() || !hm_cuda_current_device(&device))
		return res;
	if (!hm_cuda_charge(device, *pitch * height)) {
		HM_CUDA_NEXT(cuMemFree_v2)(*ptr);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	hm_cuda_note_charged(device, hm_cuda_current(), *ptr, *pitch * height);
	return CUDA_SUCCESS;
}

CUresult HM_CUDA_EXPORT cuMemAllocPitch_v2(CUdeviceptr *ptr, size_t *pitch, size_t width,
					   size_t height, unsigned int element)
{
	const bool good = ptr && pitch && width && height &&
		(element == 4 || element == 8 || element == 16);
	struct hm_cuda_device *d = NULL;
	CUresult res = CUDA_SUCCESS, error = CUDA_SUCCESS;
	size_t unit, row, size;

	if (!hm_cuda_is_active())
		return HM_CUDA_NEXT(cuMemAllocPitch_v2)(ptr, pitch, width, height, element);
	HM_CUDA_COUNT(cuMemAllocPitch_v2);
	if (good)
		res = hm_cuda_probe_alloc();
	if (good && !res)
		d = hm_cuda_device(hm_cuda_current(), &error);
	if (res || error)
		return res ? res : error;
	unit = d && !hm_cuda_ipc ? pitch_unit(element) : 0;
	if (!unit || __builtin_add_overflow(width, unit - 1, &row) ||
	    __builtin_mul_overflow(row / unit * unit, height, &size))
		return pitch_charged(ptr, pitch, width, height, element);
	res = hm_cuda_alloc(d, HM_CUDA_SERVED, size, HETMEM_STREAM_HOST, NULL, ptr);
	if (!res)
		*pitch = row / unit * unit;
	return res;
}

/*
 * During a capture cuCtxSynchronize() would end it: the driver's own cuMemFree() of other
 * memory waits, too.
 */
CUresult hm_cuda_wait_for_work(CUcontext ctx)
{
	CUcontext before = hm_cuda_current();
	CUdeviceptr other;
	CUresult res = CUDA_SUCCESS;

	if (before != ctx)
		res = HM_CUDA_NEXT_AS(cuCtxSetCurrent, CUresult (*)(CUcontext))(ctx);
	if (res)
		return res;
	if (!hm_cuda_is_capturing()) {
		res = HM_CUDA_NEXT_AS(cuCtxSynchronize, CUresult (*)(void))();
	} else {
		res = HM_CUDA_NEXT(cuMemAlloc_v2)(&other, 1);
		if (!res)
			res = HM_CUDA_NEXT(cuMemFree_v2)(other);
	}
	if (before != ctx)
		HM_CUDA_NEXT_AS(cuCtxSetCurrent, CUresult (*)(CUcontext))(before);
	return res;
}

CUresult hm_cuda_free(const struct hm_cuda_block *block, CUstream stream)
{
	struct hm_cuda_device *d = hm_cuda_open_device(block->device);
	int err;

	hm_cuda_ipc_forget(block->range.start);
	err = d ? hetmem_free(d->resource, (void *)block->range.start, 0, stream) : -EINVAL;
	if (!err && block->kind == HM_CUDA_ASYNC)
		hm_cuda_pool_sub(block->device, block->range.end - block->range.start);
	return result_of(err);
}

static CUresult free_now(const struct hm_cuda_block *block)
{
	CUresult res = hm_cuda_sync ? hm_cuda_wait_for_work(block->ctx) : CUDA_SUCCESS;

	if (res)
		return res;
	return hm_cuda_free(block, hm_cuda_sync ? HETMEM_STREAM_HOST : HETMEM_STREAM_LEGACY);
}

CUresult HM_CUDA_EXPORT cuMemFree_v2(CUdeviceptr ptr)
{
	struct hm_cuda_block block;
	CUresult res;

	if (!hm_cuda_is_active())
		return HM_CUDA_NEXT(cuMemFree_v2)(ptr);
	HM_CUDA_COUNT(cuMemFree_v2);
	if (!ptr || hm_cuda_is_child())
		return HM_CUDA_NEXT(cuMemFree_v2)(ptr);
	if (!hm_cuda_block_take(ptr, HM_CUDA_KINDS_SERVED, &block))
		return hm_cuda_is_region(ptr) ? HM_CUDA_NEXT(cuMemFree_v2)(HM_CUDA_NO_ADDRESS) :
			hm_cuda_free_charged(ptr);
	res = probe_free();
	if (!res)
		res = free_now(&block);
	if (res)
		hm_cuda_block_put(&block);
	return res;
}

CUresult HM_CUDA_EXPORT cuMemGetInfo_v2(size_t *available, size_t *total)
{
	CUresult res = HM_CUDA_NEXT(cuMemGetInfo_v2)(available, total), error;
	struct hm_cuda_device *d;
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };
	struct hm_ctl_charge charge = { 0 };
	size_t left;

	if (!hm_cuda_is_active())
		return res;
	HM_CUDA_COUNT(cuMemGetInfo_v2);
	if (res || !available || !total)
		return res;
	d = hm_cuda_device(hm_cuda_current(), &error);
	if (!d)
		return res;
	/* Memory that the pool keeps is the program's to allocate. */
	if (!hetmem_resource_stats(d->resource, &stats) && stats.reserved > stats.requested)
		*available += stats.reserved - stats.requested;
	if (*available > *total)
		*available = *total;
	if (d->resource->ops->ctl(d->resource, HM_CTL_CHARGE, &charge))
		return res;
	left = charge.max > charge.used ? charge.max - charge.used : 0;
	if (*total > charge.max)
		*total = charge.max;
	if (*available > left)
		*available = left;
	return res;
}

/* Whether @ptr is in a block of ours that this process may ask about. */
static bool find_served(CUdeviceptr ptr, struct hm_cuda_block *block)
{
	return !hm_cuda_is_child() && hm_cuda_block_find(ptr, block) &&
		((HM_CUDA_KINDS_SERVED | 1U << HM_CUDA_OPENED) >> block->kind & 1);
}

CUresult HM_CUDA_EXPORT cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size,
						CUdeviceptr ptr)
{
	CUresult res = HM_CUDA_NEXT(cuMemGetAddressRange_v2)(base, size, ptr);
	struct hm_cuda_block block;

	if (!hm_cuda_is_active())
		return res;
	HM_CUDA_COUNT(cuMemGetAddressRange_v2);
	if (res || !find_served(ptr, &block))
		return res;
	if (base)
		*base = block.range.start;
	if (size)
		*size = block.range.end - block.range.start;
	return res;
}

/* The driver's answer is about a handle or a region. @data: of the attribute's type. */
static void correct(const struct hm_cuda_block *block, CUpointer_attribute attribute, void *data)
{
	if (!data)
		return;
	switch ((int)attribute) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		*(CUcontext *)data = block->kind == HM_CUDA_ASYNC ? NULL : block->ctx;
		break;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		*(unsigned long long *)data = block->id;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*(CUdeviceptr *)data = block->range.start;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(size_t *)data = block->range.end - block->range.start;
		break;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		if (block->kind != HM_CUDA_MANAGED)
			*(void **)data = NULL;
		break;
	/* Called booleans; the driver writes four bytes. */
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(unsigned int *)data = block->kind == HM_CUDA_MANAGED;
		break;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		*(unsigned int *)data = hm_cuda_ipc_can_share(block);
		break;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		*(cuuint64_t *)data = CU_MEM_HANDLE_TYPE_NONE;
		break;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		*(CUmemoryPool *)data = block->pool;
		break;
	}
}

CUresult HM_CUDA_EXPORT cuPointerGetAttribute(void *data, CUpointer_attribute attribute,
					      CUdeviceptr ptr)
{
	CUresult res = HM_CUDA_NEXT(cuPointerGetAttribute)(data, attribute, ptr);
	struct hm_cuda_block block;

	if (!hm_cuda_is_active())
		return res;
	HM_CUDA_COUNT(cuPointerGetAttribute);
	if (res || !find_served(ptr, &block))
		return res;
	correct(&block, attribute, data);
	/* Device memory has none, whatever the spec takes it from. */
	return attribute == CU_POINTER_ATTRIBUTE_HOST_POINTER && block.kind != HM_CUDA_MANAGED ?
		CUDA_ERROR_INVALID_VALUE : res;
}

CUresult HM_CUDA_EXPORT cuPointerGetAttributes(unsigned int nr, CUpointer_attribute *attributes,
					       void **data, CUdeviceptr ptr)
{
	CUresult res = HM_CUDA_NEXT(cuPointerGetAttributes)(nr, attributes, data, ptr);
	struct hm_cuda_block block;
	unsigned int i;

	if (!hm_cuda_is_active())
		return res;
	HM_CUDA_COUNT(cuPointerGetAttributes);
	if (res || !find_served(ptr, &block))
		return res;
	for (i = 0; i < nr; i++)
		correct(&block, attributes[i], data[i]);
	return res;
}
