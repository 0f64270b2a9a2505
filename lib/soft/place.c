// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver's prefetch and advice, as the machine that is played has them:
 *
 *	HMM		to an emulated device and back, by the module's MIGRATE;
 *			without one nothing moves
 *	ATS		to the node that plays the device's memory, by move_pages(2)
 *	CDMM		system memory moves to the nearest node of the host
 *	others		nothing moves
 *
 * Pages move in stream order. The last request for managed memory is remembered
 * for cuMemRangeGetAttribute().
 */
#include <string.h>

#include "soft/soft.h"

/*
 * Pages that stay are no error, to this API prefetch is a hint. @task->value: where
 * the module moves it, or 0; @task->src: the node for move_pages(2) and 1, or 0.
 */
static CUresult run_prefetch(struct CUctx_st *ctx, struct soft_task *task)
{
	const size_t page = hm_soft_world->page_size;
	const uintptr_t start = task->dst & ~(page - 1);
	const uintptr_t end = (task->dst + task->size + page - 1) & ~(page - 1);
	struct hetmem_moved moved = { .size = sizeof(moved) };

	(void)ctx;
	if (task->value)
		hm_kmod_migrate(&hm_soft_world->kmod, start, end, task->value, 0,
				&moved);
	if (task->src)
		hm_numa_move(start, end, page, (int)task->src - 1, &moved);
	return CUDA_SUCCESS;
}

/* Plans how @task moves its memory to @dev. */
static void plan_to_device(struct soft_task *task, const struct CUctx_st *dev,
			   bool managed)
{
	const struct soft_fact *node = &dev->facts[HM_FACT_NODE];

	if (dev->emu >= 0)
		task->value = HETMEM_LOC(HETMEM_DEVICE, dev->module_id);
	else if (dev->kind == HETMEM_PLATFORM_ATS && node->value >= 0)
		task->src = node->value + 1;
	else if (dev->kind == HETMEM_PLATFORM_CDMM && !managed)
		task->src = hm_soft_host_node(dev) + 1;
}

/* Plans how it comes to @node of the host, from whichever device. */
static void plan_to_host(struct soft_task *task, int node)
{
	const struct soft_world *w = hm_soft_world;
	int i;

	for (i = 0; i < w->nr_devices; i++) {
		const struct CUctx_st *dev = &w->devices[i];

		if (dev->emu >= 0)
			task->value = HETMEM_LOC(HETMEM_HOST, node);
		if (dev->kind == HETMEM_PLATFORM_ATS)
			task->src = hm_soft_host_node(dev) + 1;
	}
	if (task->src && node != HETMEM_NODE_ANY)
		task->src = node + 1;
}

/* With the lock: all of the range is in one managed allocation, or NULL. */
static struct soft_memory *find_managed(uintptr_t ptr, size_t size)
{
	struct soft_memory *m = hm_soft_find(ptr, 1);

	if (!m || m->kind != SOFT_MANAGED || size > m->range.end - ptr)
		return NULL;
	return m;
}

/* Whether @device, or for CU_DEVICE_CPU any, uses memory that is not the driver's. */
static bool is_pageable(int device)
{
	const struct soft_world *w = hm_soft_world;
	int i;

	for (i = 0; i < w->nr_devices; i++)
		if ((device == CU_DEVICE_CPU || device == i) &&
		    hm_soft_says(&w->devices[i], HM_FACT_PAGEABLE))
			return true;
	return false;
}

/* With the lock: the result of a prefetch to @device, or of advice. */
static CUresult can_move(const struct soft_memory *m, uintptr_t ptr, size_t size,
			 int device)
{
	if (!m && (!is_pageable(device) || hm_soft_find(ptr, size)))
		return CUDA_ERROR_INVALID_VALUE;
	if (m && device >= 0 && !hm_soft_says(&hm_soft_world->devices[device],
					      HM_FACT_CONCURRENT))
		return CUDA_ERROR_INVALID_DEVICE;
	return CUDA_SUCCESS;
}

static CUresult prefetch(uintptr_t ptr, size_t size, int device, int node,
			 CUstream stream, uint64_t delay)
{
	struct soft_world *w = hm_soft_world;
	struct soft_task *task;
	struct soft_memory *m;
	struct CUstream_st *s;
	CUresult res;

	if (!size || ptr + size < ptr)
		return CUDA_ERROR_INVALID_VALUE;
	if (device < CU_DEVICE_CPU || device >= w->nr_devices)
		return CUDA_ERROR_INVALID_DEVICE;
	task = hm_soft_task();
	if (!task)
		return CUDA_ERROR_OUT_OF_MEMORY;
	task->dst = ptr;
	task->size = size;
	task->delay = delay;
	hm_soft_lock();
	s = hm_soft_stream(stream, &res);
	m = find_managed(ptr, size);
	if (device == CU_DEVICE_CPU)
		plan_to_host(task, node);
	else
		plan_to_device(task, &w->devices[device], m);
	if (task->value || task->src)
		task->run = run_prefetch;
	if (s)
		res = hm_soft_capture_never(s);
	if (s && !res)
		res = can_move(m, ptr, size, device);
	if (s && !res) {
		res = hm_soft_submit(s, task, NULL, NULL);
		if (!res && m)
			m->advice.prefetched = device;
	} else {
		hm_soft_task_put(task);
	}
	hm_soft_unlock();
	return res;
}

static CUresult mem_prefetch_async_v1(CUdeviceptr ptr, size_t size,
				      CUdevice device, CUstream stream)
{
	uint64_t delay;

	SOFT_ENTER_WORK(cuMemPrefetchAsync, &delay);
	return prefetch(ptr, size, device, HETMEM_NODE_ANY, stream, delay);
}

/* CU_DEVICE_INVALID: no such location. */
static int device_of(CUmemLocation location)
{
	switch (location.type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		return location.id < 0 ? CU_DEVICE_INVALID : location.id;
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
		return hm_numa_has_node(location.id) ? CU_DEVICE_CPU :
			CU_DEVICE_INVALID;
	case CU_MEM_LOCATION_TYPE_HOST:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
		return CU_DEVICE_CPU;
	default:
		return CU_DEVICE_INVALID;
	}
}

static CUresult mem_prefetch_async_v2(CUdeviceptr ptr, size_t size,
				      CUmemLocation location,
				      unsigned int flags, CUstream stream)
{
	int node = HETMEM_NODE_ANY;
	uint64_t delay;

	SOFT_ENTER_WORK(cuMemPrefetchAsync, &delay);
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (device_of(location) == CU_DEVICE_INVALID)
		return CUDA_ERROR_INVALID_VALUE;
	if (location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA)
		node = location.id;
	return prefetch(ptr, size, device_of(location), node, stream, delay);
}

static bool all_say(enum hm_fact_id id)
{
	const struct soft_world *w = hm_soft_world;
	int i;

	for (i = 0; i < w->nr_devices; i++)
		if (!hm_soft_says(&w->devices[i], id))
			return false;
	return true;
}

/*
 * Whether each range is managed, or all devices use any memory, and each location
 * is one.
 */
static CUresult check_batch(CUdeviceptr *ptrs, size_t *sizes, size_t count,
			    CUmemLocation *locations, size_t *first,
			    size_t nr_locations)
{
	CUresult res = CUDA_SUCCESS;
	size_t i;

	if (!count || (locations && (!nr_locations || nr_locations > count ||
				     first[0])))
		return CUDA_ERROR_INVALID_VALUE;
	for (i = 0; i < nr_locations; i++) {
		if (device_of(locations[i]) < CU_DEVICE_CPU ||
		    device_of(locations[i]) >= hm_soft_world->nr_devices)
			return CUDA_ERROR_INVALID_VALUE;
		if (first[i] >= count || (i && first[i] < first[i - 1]))
			return CUDA_ERROR_INVALID_VALUE;
	}
	if (!all_say(HM_FACT_CONCURRENT))
		return CUDA_ERROR_NOT_SUPPORTED;
	hm_soft_lock();
	for (i = 0; i < count && !res; i++)
		if (!sizes[i] || (!find_managed(ptrs[i], sizes[i]) &&
				  (!all_say(HM_FACT_PAGEABLE) ||
				   hm_soft_find(ptrs[i], sizes[i]))))
			res = CUDA_ERROR_INVALID_VALUE;
	hm_soft_unlock();
	return res;
}

static CUresult prefetch_batch(CUdeviceptr *ptrs, size_t *sizes, size_t count,
			       CUmemLocation *locations, size_t *first,
			       size_t nr, CUstream stream, uint64_t delay)
{
	CUresult res = CUDA_SUCCESS;
	size_t i, at = 0;

	for (i = 0; i < count && !res; i++) {
		while (at + 1 < nr && first[at + 1] == i)
			at++;
		res = prefetch(ptrs[i], sizes[i], device_of(locations[at]),
			       locations[at].type ==
			       CU_MEM_LOCATION_TYPE_HOST_NUMA ?
			       locations[at].id : HETMEM_NODE_ANY, stream,
			       i ? 0 : delay);
	}
	return res;
}

static CUresult mem_prefetch_batch_async(CUdeviceptr *ptrs, size_t *sizes,
					 size_t count,
					 CUmemLocation *locations,
					 size_t *first, size_t nr_locations,
					 unsigned long long flags,
					 CUstream stream)
{
	uint64_t delay;
	CUresult res;

	SOFT_ENTER_WORK(cuMemPrefetchBatchAsync, &delay);
	if (flags || !locations)
		return CUDA_ERROR_INVALID_VALUE;
	res = check_batch(ptrs, sizes, count, locations, first, nr_locations);
	return res ? res : prefetch_batch(ptrs, sizes, count, locations, first,
					  nr_locations, stream, delay);
}

/* Any contents will do afterwards, those that are there as well. */
static CUresult mem_discard_batch_async(CUdeviceptr *ptrs, size_t *sizes,
					size_t count, unsigned long long flags,
					CUstream stream)
{
	struct soft_task *task;
	struct CUstream_st *s;
	uint64_t delay;
	CUresult res;

	SOFT_ENTER_WORK(cuMemDiscardBatchAsync, &delay);
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	res = check_batch(ptrs, sizes, count, NULL, NULL, 0);
	if (res)
		return res;
	task = hm_soft_task();
	if (!task)
		return CUDA_ERROR_OUT_OF_MEMORY;
	task->delay = delay;
	hm_soft_lock();
	s = hm_soft_stream(stream, &res);
	if (s)
		res = hm_soft_capture_never(s);
	if (s && !res)
		res = hm_soft_submit(s, task, NULL, NULL);
	else
		hm_soft_task_put(task);
	hm_soft_unlock();
	return res;
}

static CUresult mem_discard_prefetch_batch_async(CUdeviceptr *ptrs,
						 size_t *sizes, size_t count,
						 CUmemLocation *locations,
						 size_t *first,
						 size_t nr_locations,
						 unsigned long long flags,
						 CUstream stream)
{
	uint64_t delay;
	CUresult res;

	SOFT_ENTER_WORK(cuMemDiscardAndPrefetchBatchAsync, &delay);
	if (flags || !locations)
		return CUDA_ERROR_INVALID_VALUE;
	res = check_batch(ptrs, sizes, count, locations, first, nr_locations);
	return res ? res : prefetch_batch(ptrs, sizes, count, locations, first,
					  nr_locations, stream, delay);
}

static CUresult advise(uintptr_t ptr, size_t size, CUmem_advise advice,
		       int device)
{
	struct soft_world *w = hm_soft_world;
	struct soft_memory *m;
	CUresult res;

	if (!size || ptr + size < ptr)
		return CUDA_ERROR_INVALID_VALUE;
	hm_soft_lock();
	res = hm_soft_unsafe();
	if (res)
		goto out;
	m = find_managed(ptr, size);
	if (!m) {
		/* Of memory the driver does not own nothing is remembered. */
		res = can_move(NULL, ptr, size, CU_DEVICE_CPU);
		goto out;
	}
	if ((advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ||
	     advice == CU_MEM_ADVISE_SET_ACCESSED_BY ||
	     advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY) &&
	    (device < CU_DEVICE_CPU || device >= w->nr_devices)) {
		res = CUDA_ERROR_INVALID_DEVICE;
		goto out;
	}
	if (advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ||
	    advice == CU_MEM_ADVISE_SET_ACCESSED_BY)
		res = can_move(m, ptr, size, device);
	if (res)
		goto out;
	switch (advice) {
	case CU_MEM_ADVISE_SET_READ_MOSTLY:
		m->advice.read_mostly = 1;
		break;
	case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
		m->advice.read_mostly = 0;
		break;
	case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
		m->advice.preferred = device;
		break;
	case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
		m->advice.preferred = CU_DEVICE_INVALID;
		break;
	case CU_MEM_ADVISE_SET_ACCESSED_BY:
		m->advice.accessed_by |= 1U << (device + 1);
		break;
	case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
		m->advice.accessed_by &= ~(1U << (device + 1));
		break;
	default:
		res = CUDA_ERROR_INVALID_VALUE;
	}
out:
	hm_soft_unlock();
	return res;
}

static CUresult mem_advise_v1(CUdeviceptr ptr, size_t size,
			      CUmem_advise advice, CUdevice device)
{
	SOFT_ENTER(cuMemAdvise);
	return advise(ptr, size, advice, device);
}

static CUresult mem_advise_v2(CUdeviceptr ptr, size_t size,
			      CUmem_advise advice, CUmemLocation location)
{
	const int device = device_of(location);

	SOFT_ENTER(cuMemAdvise);
	switch (advice) {
	case CU_MEM_ADVISE_SET_ACCESSED_BY:
	case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
		/* Processors, not their memory. */
		if (location.type != CU_MEM_LOCATION_TYPE_DEVICE &&
		    location.type != CU_MEM_LOCATION_TYPE_HOST)
			return CUDA_ERROR_INVALID_VALUE;
		/* fallthrough */
	case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
		if (device < CU_DEVICE_CPU ||
		    device >= hm_soft_world->nr_devices)
			return CUDA_ERROR_INVALID_VALUE;
		break;
	default:
		if (location.type == CU_MEM_LOCATION_TYPE_INVALID)
			return CUDA_ERROR_INVALID_VALUE;
	}
	return advise(ptr, size, advice, device);
}

static CUresult get_value(const struct soft_memory *m, int *data, size_t nr,
			  CUmem_range_attribute attribute)
{
	int device;
	size_t i = 0;

	switch (attribute) {
	case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
		data[0] = m->advice.read_mostly;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
		data[0] = m->advice.preferred;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
		data[0] = m->advice.prefetched;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
		for (device = CU_DEVICE_CPU;
		     device < SOFT_MAX_DEVICES && i < nr; device++)
			if (m->advice.accessed_by & 1U << (device + 1))
				data[i++] = device;
		while (i < nr)
			data[i++] = CU_DEVICE_INVALID;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	return nr == 1 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult mem_range_get_attribute(void *data, size_t data_size,
					CUmem_range_attribute attribute,
					CUdeviceptr ptr, size_t size)
{
	CUresult res = CUDA_ERROR_INVALID_VALUE;
	struct soft_memory *m;

	SOFT_ENTER(cuMemRangeGetAttribute);
	if (!data_size || data_size % sizeof(int) || !size || ptr + size < ptr)
		return CUDA_ERROR_INVALID_VALUE;
	hm_soft_lock();
	m = find_managed(ptr, size);
	if (m)
		res = get_value(m, data, data_size / sizeof(int), attribute);
	hm_soft_unlock();
	return res;
}

void hm_soft_fill_place(struct hm_api *d)
{
	d->cuMemPrefetchAsync_v1 = mem_prefetch_async_v1;
	d->cuMemPrefetchAsync_v2 = mem_prefetch_async_v2;
	d->cuMemPrefetchBatchAsync = mem_prefetch_batch_async;
	d->cuMemDiscardBatchAsync = mem_discard_batch_async;
	d->cuMemDiscardAndPrefetchBatchAsync = mem_discard_prefetch_batch_async;
	d->cuMemAdvise_v1 = mem_advise_v1;
	d->cuMemAdvise_v2 = mem_advise_v2;
	d->cuMemRangeGetAttribute = mem_range_get_attribute;
}
