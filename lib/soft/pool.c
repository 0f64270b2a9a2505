// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver's stream-ordered allocation. Memory is valid at once,
 * which is earlier than promised; it is given back in stream order. A pool
 * caches nothing: reserved is what is used, and says so from the call of a free
 * on, from where the driver's would use it again. What is allocated while
 * capturing is a graph's and no pool's, see graph.c.
 */
#include <stdlib.h>
#include <string.h>

#include "soft/soft.h"

/* With the lock. */
bool hm_soft_is_pool(CUmemoryPool pool)
{
	struct soft_world *w = hm_soft_world;
	int i;

	for (i = 0; i < w->nr_devices; i++)
		if (pool == &w->devices[i].pool)
			return true;
	for (i = 0; i < SOFT_MAX_POOLS; i++)
		if (pool == &w->pools[i])
			return pool->live && !pool->dying;
	return false;
}

static CUresult take(struct CUmemPoolHandle_st *pool, size_t size,
		     CUdeviceptr *ptr)
{
	struct CUctx_st *ctx = &hm_soft_world->devices[pool->device];
	struct soft_memory *m;
	CUresult res;

	if (pool->max_size && size > pool->max_size - pool->used)
		return CUDA_ERROR_OUT_OF_MEMORY;
	res = hm_soft_map_memory(ctx, pool->host ? SOFT_HOST : SOFT_DEVICE,
				 size, &m);
	if (res)
		return res;
	m->pool = pool;
	pool->used += m->range.end - m->range.start;
	pool->given += m->range.end - m->range.start;
	if (pool->given > pool->given_high)
		pool->given_high = pool->given;
	*ptr = m->range.start;
	return CUDA_SUCCESS;
}

/* Frees that are still under way may be all that is missing. */
static CUresult take_or_wait(struct CUstream_st *s,
			     struct CUmemPoolHandle_st *pool, size_t size,
			     CUdeviceptr *ptr)
{
	CUresult res = s->ctx->error;

	if (!res && s->capture)
		return hm_soft_graph_alloc(s, size, ptr);
	if (!res)
		res = hm_soft_unsafe();
	*ptr = 0;
	if (!res && size)
		res = take(pool, size, ptr);
	if (res == CUDA_ERROR_OUT_OF_MEMORY) {
		hm_soft_drain(&hm_soft_world->devices[pool->device]);
		res = take(pool, size, ptr);
	}
	return res;
}

static CUresult mem_alloc_async(CUdeviceptr *ptr, size_t size,
				CUstream stream)
{
	struct CUstream_st *s;
	CUresult res;

	SOFT_ENTER(cuMemAllocAsync);
	hm_soft_lock();
	s = hm_soft_stream(stream, &res);
	if (s)
		res = take_or_wait(s, &s->ctx->pool, size, ptr);
	hm_soft_unlock();
	return res;
}

static CUresult mem_alloc_from_pool_async(CUdeviceptr *ptr, size_t size,
					  CUmemoryPool pool, CUstream stream)
{
	struct CUstream_st *s;
	CUresult res;

	SOFT_ENTER(cuMemAllocFromPoolAsync);
	hm_soft_lock();
	s = hm_soft_stream(stream, &res);
	if (s && hm_soft_is_pool(pool))
		res = take_or_wait(s, pool, size, ptr);
	else if (s)
		res = CUDA_ERROR_INVALID_VALUE;
	hm_soft_unlock();
	return res;
}

static CUresult give_back(struct CUctx_st *ctx, struct soft_task *task)
{
	struct soft_memory *m;

	(void)ctx;
	hm_soft_lock();
	m = hm_soft_find(task->dst, 1);
	if (m && m->freeing)
		hm_soft_drop_memory(m);
	hm_soft_unlock();
	return CUDA_SUCCESS;
}

static CUresult mem_free_async(CUdeviceptr ptr, CUstream stream)
{
	struct soft_task *task;
	struct soft_memory *m;
	struct CUstream_st *s;
	uint64_t delay;
	CUresult res;

	SOFT_ENTER_WORK(cuMemFreeAsync, &delay);
	if (!ptr)
		return CUDA_SUCCESS;
	task = hm_soft_task();
	if (!task)
		return CUDA_ERROR_OUT_OF_MEMORY;
	task->run = give_back;
	task->always = true;
	task->dst = ptr;
	task->delay = delay;
	hm_soft_lock();
	s = hm_soft_stream(stream, &res);
	if (s)
		res = s->capture ? hm_soft_graph_mem_free(s, ptr) :
			hm_soft_unsafe();
	if (s && (res || s->capture))
		s = NULL;
	m = hm_soft_find(ptr, 1);
	if (s && (!m || m->range.start != ptr || m->freeing ||
		  (m->kind != SOFT_DEVICE && !m->pool))) {
		res = CUDA_ERROR_INVALID_VALUE;
		s = NULL;
	}
	if (s) {
		m->freeing = true;
		hm_check_gone(m, &s->actor, "cuMemFreeAsync");
		res = hm_soft_submit(s, task, NULL, NULL);
		if (res)
			m->freeing = false;
		else if (m->pool)
			m->pool->given -= m->range.end - m->range.start;
	} else {
		hm_soft_task_put(task);
	}
	hm_soft_unlock();
	return res;
}

static CUresult device_get_default_mem_pool(CUmemoryPool *pool,
					    CUdevice device)
{
	struct soft_world *w = hm_soft_world;

	SOFT_ENTER(cuDeviceGetDefaultMemPool);
	if (device < 0 || device >= w->nr_devices)
		return CUDA_ERROR_INVALID_DEVICE;
	*pool = &w->devices[device].pool;
	return CUDA_SUCCESS;
}

static CUresult mem_pool_create(CUmemoryPool *pool,
				const CUmemPoolProps *props)
{
	struct soft_world *w = hm_soft_world;
	CUresult res = CUDA_ERROR_OUT_OF_MEMORY;
	bool host;
	int i;

	SOFT_ENTER(cuMemPoolCreate);
	host = hm_soft_place_host(&props->location);
	if (props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    (!host && (props->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
		       props->location.id < 0 ||
		       props->location.id >= w->nr_devices)))
		return CUDA_ERROR_INVALID_VALUE;
	if (props->handleTypes)
		return CUDA_ERROR_NOT_SUPPORTED;
	hm_soft_lock();
	if (hm_soft_unsafe()) {
		hm_soft_unlock();
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	for (i = 0; i < SOFT_MAX_POOLS && res; i++) {
		if (w->pools[i].live)
			continue;
		memset(&w->pools[i], 0, sizeof(w->pools[i]));
		w->pools[i].live = true;
		w->pools[i].host = host;
		w->pools[i].device = host ? 0 : props->location.id;
		w->pools[i].max_size = props->maxSize;
		*pool = &w->pools[i];
		res = CUDA_SUCCESS;
	}
	hm_soft_unlock();
	return res;
}

static CUresult mem_pool_destroy(CUmemoryPool pool)
{
	struct soft_world *w = hm_soft_world;
	CUresult res;

	SOFT_ENTER(cuMemPoolDestroy);
	hm_soft_lock();
	res = hm_soft_unsafe();
	if (!res && (!hm_soft_is_pool(pool) || pool < w->pools ||
		     pool >= w->pools + SOFT_MAX_POOLS))
		res = CUDA_ERROR_INVALID_VALUE;
	if (!res && pool->used)
		pool->dying = true;
	else if (!res)
		pool->live = false;
	hm_soft_unlock();
	return res;
}

static CUresult mem_pool_trim_to(CUmemoryPool pool, size_t keep)
{
	CUresult res;

	SOFT_ENTER(cuMemPoolTrimTo);
	(void)keep;
	hm_soft_lock();
	res = hm_soft_unsafe();
	if (!res && !hm_soft_is_pool(pool))
		res = CUDA_ERROR_INVALID_VALUE;
	hm_soft_unlock();
	return res;
}

/* With the lock: where @pool has @attribute, and its *@size. NULL: *@res has the error. */
static void *find_attribute(CUmemoryPool pool, CUmemPool_attribute attribute,
			    size_t *size, CUresult *res)
{
	*res = hm_soft_unsafe();
	if (*res)
		return NULL;
	*size = sizeof(cuuint64_t);
	switch (hm_soft_is_pool(pool) ? (int)attribute : 0) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		*size = sizeof(int);
		return &pool->reuse[attribute - 1];
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		return &pool->threshold;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		return &pool->given;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		return &pool->given_high;
	}
	*res = CUDA_ERROR_INVALID_VALUE;
	return NULL;
}

static CUresult mem_pool_set_attribute(CUmemoryPool pool,
				       CUmemPool_attribute attribute,
				       void *value)
{
	CUresult res;
	size_t size;
	void *at;

	SOFT_ENTER(cuMemPoolSetAttribute);
	hm_soft_lock();
	at = find_attribute(pool, attribute, &size, &res);
	if (at && at == &pool->given_high) {
		/* Only resetting: the driver takes nothing but 0. */
		if (memcmp(value, &(cuuint64_t){ 0 }, size))
			res = CUDA_ERROR_INVALID_VALUE;
		else
			pool->given_high = pool->given;
	} else if (at && at == &pool->given) {
		res = CUDA_ERROR_INVALID_VALUE;
	} else if (at) {
		memcpy(at, value, size);
	}
	hm_soft_unlock();
	return res;
}

static CUresult mem_pool_get_attribute(CUmemoryPool pool,
				       CUmemPool_attribute attribute,
				       void *value)
{
	const void *at;
	CUresult res;
	size_t size;

	SOFT_ENTER(cuMemPoolGetAttribute);
	hm_soft_lock();
	at = find_attribute(pool, attribute, &size, &res);
	if (at)
		memcpy(value, at, size);
	hm_soft_unlock();
	return res;
}

void hm_soft_fill_pool(struct hm_api *d)
{
	d->cuMemAllocAsync = mem_alloc_async;
	d->cuMemAllocFromPoolAsync = mem_alloc_from_pool_async;
	d->cuMemFreeAsync = mem_free_async;
	d->cuDeviceGetDefaultMemPool = device_get_default_mem_pool;
	d->cuMemPoolCreate = mem_pool_create;
	d->cuMemPoolDestroy = mem_pool_destroy;
	d->cuMemPoolTrimTo = mem_pool_trim_to;
	d->cuMemPoolSetAttribute = mem_pool_set_attribute;
	d->cuMemPoolGetAttribute = mem_pool_get_attribute;
}
