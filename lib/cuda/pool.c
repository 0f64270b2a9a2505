// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The attributes of a device's default pool, which cuMemAllocAsync() is served from.
 *
 * USED is what the program has from the pool by cuMemAllocAsync(). RESERVED is that and the
 * free memory that the resource keeps. The driver answers for all other pools and attributes.
 *
 * Peaks are the peaks of USED, and of RESERVED as it was when the program asked.
 */
#include "cuda/cuda.h"
#include "cuda/prototypes.h"

/* Bytes of a device, by its handle. */
struct use {
	uint64_t used;
	uint64_t used_high;
	uint64_t reserved_high;
};

static struct use uses[HM_MAX_DEVICES];

static void raise_to(uint64_t *high, uint64_t value)
{
	uint64_t was = __atomic_load_n(high, __ATOMIC_RELAXED);

	while (was < value && !__atomic_compare_exchange_n(high, &was, value, true,
							   __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

void hm_cuda_pool_add(CUdevice device, size_t size)
{
	struct use *u = &uses[device];

	raise_to(&u->used_high, __atomic_add_fetch(&u->used, size, __ATOMIC_RELAXED));
}

void hm_cuda_pool_sub(CUdevice device, size_t size)
{
	__atomic_sub_fetch(&uses[device].used, size, __ATOMIC_RELAXED);
}

void hm_cuda_pool_forget(CUdevice device)
{
	__atomic_store_n(&uses[device].used, 0, __ATOMIC_RELAXED);
}

/* The open device whose default pool it is; NULL: none. */
static struct hm_cuda_device *device_of(CUmemoryPool pool)
{
	struct hm_cuda_device *d;
	CUmemoryPool preset;
	CUdevice i;

	if (!pool || hm_cuda_is_child())
		return NULL;
	for (i = 0; i < HM_MAX_DEVICES; i++) {
		preset = NULL;
		d = hm_cuda_open_device(i);
		if (d)
			HM_CUDA_NEXT_AS(cuDeviceGetDefaultMemPool, CUresult (*)(CUmemoryPool *,
					CUdevice))(&preset, i);
		if (d && preset == pool)
			return d;
	}
	return NULL;
}

static uint64_t reserved_of(const struct hm_cuda_device *d)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };
	struct use *u = &uses[d->handle];
	uint64_t reserved = __atomic_load_n(&u->used, __ATOMIC_RELAXED);

	if (!hetmem_resource_stats(d->resource, &stats) && stats.reserved > stats.requested)
		reserved += stats.reserved - stats.requested;
	raise_to(&u->reserved_high, reserved);
	return reserved;
}

/* Of those that are about memory. *@high: a peak, which can be set to 0. */
static bool find(const struct hm_cuda_device *d, CUmemPool_attribute attribute, uint64_t *value,
		 uint64_t **high)
{
	struct use *u = &uses[d->handle];

	*high = NULL;
	switch ((int)attribute) {
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
		*value = reserved_of(d);
		return true;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		*value = __atomic_load_n(&u->used, __ATOMIC_RELAXED);
		return true;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		reserved_of(d);
		*high = &u->reserved_high;
		raise_to(*high, __atomic_load_n(&u->used_high, __ATOMIC_RELAXED));
		break;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		*high = &u->used_high;
		break;
	default:
		return false;
	}
	*value = __atomic_load_n(*high, __ATOMIC_RELAXED);
	return true;
}

CUresult HM_CUDA_EXPORT cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
					      void *value)
{
	CUresult res = HM_CUDA_NEXT(cuMemPoolGetAttribute)(pool, attribute, value);
	struct hm_cuda_device *d;
	uint64_t ours, *high;

	if (!hm_cuda_is_active())
		return res;
	HM_CUDA_COUNT(cuMemPoolGetAttribute);
	d = res ? NULL : device_of(pool);
	if (d && value && find(d, attribute, &ours, &high))
		*(cuuint64_t *)value = ours;
	return res;
}

CUresult HM_CUDA_EXPORT cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute,
					      void *value)
{
	CUresult res = HM_CUDA_NEXT(cuMemPoolSetAttribute)(pool, attribute, value);
	struct hm_cuda_device *d;
	uint64_t ours, *high;

	if (!hm_cuda_is_active())
		return res;
	HM_CUDA_COUNT(cuMemPoolSetAttribute);
	d = res ? NULL : device_of(pool);
	/* The driver takes no other value than 0: the peak begins anew at what is there. */
	if (d && find(d, attribute, &ours, &high) && high) {
		__atomic_store_n(high, 0, __ATOMIC_RELAXED);
		if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
			raise_to(high, __atomic_load_n(&uses[d->handle].used, __ATOMIC_RELAXED));
		else
			reserved_of(d);
	}
	return res;
}

CUresult HM_CUDA_EXPORT cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
	CUresult res = HM_CUDA_NEXT(cuMemPoolTrimTo)(pool, keep);
	struct hm_cuda_device *d;

	if (!hm_cuda_is_active())
		return res;
	HM_CUDA_COUNT(cuMemPoolTrimTo);
	d = res ? NULL : device_of(pool);
	/* Memory that cannot be given back now stays: that is no error of the driver's, either. */
	if (d && !hm_cuda_is_capturing())
		hetmem_trim(d->resource, keep, NULL);
	return res;
}
