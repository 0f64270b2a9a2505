// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Memory in the order of a stream.
 *
 * Served are streams of a primary context that are not captured, with the default pool of the
 * device. The driver serves the others: an allocation or a free in a capture is a node of the
 * graph, and a pool that the program made can be shared with other processes.
 *
 * The _ptsz forms mean the calling thread's stream by a NULL stream.
 */
#include "cuda/cuda.h"
#include "cuda/prototypes.h"

#define NO_ADDRESS	((CUdeviceptr)1)

typedef CUresult alloc_fn(CUdeviceptr *ptr, size_t size, CUstream stream);
typedef CUresult pool_fn(CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream stream);
typedef CUresult free_fn(CUdeviceptr ptr, CUstream stream);

/* Devices whose current pool is one that the program set. */
static bool other_pool[HM_MAX_DEVICES];

CUresult HM_CUDA_EXPORT cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
	CUresult res = HM_CUDA_NEXT(cuDeviceSetMemPool)(device, pool);
	CUmemoryPool preset = NULL;

	if (!hm_cuda_is_active())
		return res;
	HM_CUDA_COUNT(cuDeviceSetMemPool);
	if (res || device < 0 || device >= HM_MAX_DEVICES)
		return res;
	HM_CUDA_NEXT_AS(cuDeviceGetDefaultMemPool, CUresult (*)(CUmemoryPool *, CUdevice))
		(&preset, device);
	__atomic_store_n(&other_pool[device], pool != preset, __ATOMIC_RELAXED);
	return res;
}

/* The context that @stream is of; NULL: the driver does not tell. */
static CUcontext context_of(CUstream stream)
{
	CUcontext ctx = NULL;

	if (hm_stream_special(stream))
		return hm_cuda_current();
	if (HM_CUDA_NEXT_AS(cuStreamGetCtx, CUresult (*)(CUstream, CUcontext *))(stream, &ctx))
		return NULL;
	return ctx;
}

/* False: @stream is captured, or the driver refuses the question. */
static bool is_plain(CUstream stream)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

	return !HM_CUDA_NEXT_AS(cuStreamIsCapturing, CUresult (*)(CUstream,
			CUstreamCaptureStatus *))(stream, &status) &&
		status == CU_STREAM_CAPTURE_STATUS_NONE;
}

/* The device that serves @stream. NULL: the driver serves it. */
static struct hm_cuda_device *server_of(CUstream stream, CUresult *error)
{
	struct hm_cuda_device *d;

	*error = CUDA_SUCCESS;
	if (hm_cuda_is_child() || !is_plain(stream))
		return NULL;
	d = hm_cuda_device(context_of(stream), error);
	return d && !__atomic_load_n(&other_pool[d->handle], __ATOMIC_RELAXED) ? d : NULL;
}

/* The driver's own allocation, charged. @from_pool: NULL: @plain is called. */
static CUresult alloc_charged(CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream stream,
			      CUstream meant, alloc_fn *plain, pool_fn *from_pool)
{
	const bool good = ptr && size && !hm_cuda_is_child();
	const bool in_order = good && is_plain(meant);
	CUcontext ctx = context_of(meant);
	struct hm_cuda_graph *memory = NULL;
	CUdeviceptr none = 0;
	CUdevice device;
	CUresult res;
	const bool charged = in_order && hm_cuda_device_of_context(ctx, &device);

	if (charged && !hm_cuda_charge(device, size)) {
		/* No bytes: the error of a failed context, and of a capture that forbids the call. */
		res = from_pool ? from_pool(&none, 0, pool, stream) : plain(&none, 0, stream);
		return res && res != CUDA_ERROR_INVALID_VALUE ? res : CUDA_ERROR_OUT_OF_MEMORY;
	}
	/* In a capture it is a node. */
	if (good && !in_order && !hm_cuda_graph_begin(meant, size, &memory))
		return CUDA_ERROR_OUT_OF_MEMORY;
	res = from_pool ? from_pool(ptr, size, pool, stream) : plain(ptr, size, stream);
	hm_cuda_graph_done(memory, size, res, res ? 0 : *ptr);
	if (charged && res)
		hm_cuda_uncharge(device, size);
	else if (charged)
		hm_cuda_note_charged(device, NULL, *ptr, size);
	return res;
}

/*
 * cuMemAllocAsync() of 0 bytes succeeds without memory on a stream in order. It returns the
 * error of a context that failed, and of a capture that forbids the call.
 */
static CUresult probe_alloc(CUstream stream, alloc_fn *next)
{
	CUdeviceptr none = 0;
	CUresult res = next(&none, 0, stream);

	return res == CUDA_ERROR_INVALID_VALUE ? CUDA_SUCCESS : res;
}

static CUresult serve_alloc(CUdeviceptr *ptr, size_t size, CUstream stream, CUstream meant,
			    alloc_fn *next)
{
	struct hm_cuda_device *d = NULL;
	CUmemoryPool pool = NULL;
	CUresult res = CUDA_SUCCESS;

	if (ptr && size)
		d = server_of(meant, &res);
	if (res)
		return res;
	if (!d)
		return alloc_charged(ptr, size, NULL, stream, meant, next, NULL);
	res = probe_alloc(stream, next);
	if (res)
		return res;
	HM_CUDA_NEXT_AS(cuDeviceGetDefaultMemPool, CUresult (*)(CUmemoryPool *, CUdevice))
		(&pool, d->handle);
	return hm_cuda_alloc(d, HM_CUDA_ASYNC, size, meant, pool, ptr);
}

static CUstream per_thread(CUstream stream)
{
	return stream ? stream : CU_STREAM_PER_THREAD;
}

CUresult HM_CUDA_EXPORT cuMemAllocAsync(CUdeviceptr *ptr, size_t size, CUstream stream)
{
	alloc_fn *next = HM_CUDA_NEXT(cuMemAllocAsync);

	if (!hm_cuda_is_active())
		return next(ptr, size, stream);
	HM_CUDA_COUNT(cuMemAllocAsync);
	return serve_alloc(ptr, size, stream, stream, next);
}

CUresult HM_CUDA_EXPORT cuMemAllocAsync_ptsz(CUdeviceptr *ptr, size_t size, CUstream stream)
{
	alloc_fn *next = HM_CUDA_NEXT(cuMemAllocAsync_ptsz);

	if (!hm_cuda_is_active())
		return next(ptr, size, stream);
	HM_CUDA_COUNT(cuMemAllocAsync_ptsz);
	return serve_alloc(ptr, size, stream, per_thread(stream), next);
}

static CUresult serve_from_pool(CUdeviceptr *ptr, size_t size, CUmemoryPool pool, CUstream stream,
				CUstream meant, pool_fn *next, alloc_fn *plain)
{
	struct hm_cuda_device *d = NULL;
	CUmemoryPool preset = NULL;
	CUresult res = CUDA_SUCCESS;

	if (ptr && size && pool)
		d = server_of(meant, &res);
	if (res)
		return res;
	if (d)
		HM_CUDA_NEXT_AS(cuDeviceGetDefaultMemPool, CUresult (*)(CUmemoryPool *, CUdevice))
			(&preset, d->handle);
	if (!d || preset != pool)
		return alloc_charged(ptr, size, pool, stream, meant, NULL, next);
	res = probe_alloc(stream, plain);
	return res ? res : hm_cuda_alloc(d, HM_CUDA_ASYNC, size, meant, pool, ptr);
}

CUresult HM_CUDA_EXPORT cuMemAllocFromPoolAsync(CUdeviceptr *ptr, size_t size, CUmemoryPool pool,
						CUstream stream)
{
	pool_fn *next = HM_CUDA_NEXT(cuMemAllocFromPoolAsync);

	if (!hm_cuda_is_active())
		return next(ptr, size, pool, stream);
	HM_CUDA_COUNT(cuMemAllocFromPoolAsync);
	return serve_from_pool(ptr, size, pool, stream, stream, next,
			       HM_CUDA_NEXT(cuMemAllocAsync));
}

CUresult HM_CUDA_EXPORT cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *ptr, size_t size,
						     CUmemoryPool pool, CUstream stream)
{
	pool_fn *next = HM_CUDA_NEXT(cuMemAllocFromPoolAsync_ptsz);

	if (!hm_cuda_is_active())
		return next(ptr, size, pool, stream);
	HM_CUDA_COUNT(cuMemAllocFromPoolAsync_ptsz);
	return serve_from_pool(ptr, size, pool, stream, per_thread(stream), next,
			       HM_CUDA_NEXT(cuMemAllocAsync_ptsz));
}

/* A stream of another context does not order the pool: the host waits for it. */
static CUresult free_elsewhere(const struct hm_cuda_block *block, CUstream stream)
{
	CUresult res = HM_CUDA_NEXT_AS(cuStreamSynchronize, CUresult (*)(CUstream))(stream);

	return res ? res : hm_cuda_free(block, HETMEM_STREAM_HOST);
}

static CUresult free_charged(CUdeviceptr ptr, CUstream stream, CUstream meant, free_fn *next)
{
	struct hm_cuda_block block;
	const bool taken = hm_cuda_block_take(ptr, 1U << HM_CUDA_CHARGED, &block);
	const CUresult res = next(ptr, stream);

	if (!taken) {
		if (!res && !is_plain(meant))
			hm_cuda_graph_freed(ptr);
		return res;
	}
	if (res)
		hm_cuda_block_put(&block);
	else
		hm_cuda_uncharge(block.device, block.range.end - block.range.start);
	return res;
}

static CUresult serve_free(CUdeviceptr ptr, CUstream stream, CUstream meant, free_fn *next)
{
	struct hm_cuda_block block;
	CUresult res;

	if (!ptr || hm_cuda_is_child())
		return next(ptr, stream);
	if (!hm_cuda_block_take(ptr, HM_CUDA_KINDS_ORDERED, &block))
		return hm_cuda_is_region(ptr) ? next(NO_ADDRESS, stream) :
			free_charged(ptr, stream, meant, next);
	/* Only a graph's own memory is freed in its capture: the driver refuses this. */
	res = next(NO_ADDRESS, stream);
	if (res == CUDA_ERROR_INVALID_VALUE && is_plain(meant))
		res = context_of(meant) == block.ctx ? hm_cuda_free(&block, meant) :
			free_elsewhere(&block, meant);
	if (res)
		hm_cuda_block_put(&block);
	return res;
}

CUresult HM_CUDA_EXPORT cuMemFreeAsync(CUdeviceptr ptr, CUstream stream)
{
	free_fn *next = HM_CUDA_NEXT(cuMemFreeAsync);

	if (!hm_cuda_is_active())
		return next(ptr, stream);
	HM_CUDA_COUNT(cuMemFreeAsync);
	return serve_free(ptr, stream, stream, next);
}

CUresult HM_CUDA_EXPORT cuMemFreeAsync_ptsz(CUdeviceptr ptr, CUstream stream)
{
	free_fn *next = HM_CUDA_NEXT(cuMemFreeAsync_ptsz);

	if (!hm_cuda_is_active())
		return next(ptr, stream);
	HM_CUDA_COUNT(cuMemFreeAsync_ptsz);
	return serve_free(ptr, stream, per_thread(stream), next);
}
