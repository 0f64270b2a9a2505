/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What drivers say while a stream is captured: of each call in each mode what
 * it says, and what the end of the capture says then.
 */
#ifndef HETMEM_SELFTESTS_SAME_CAPTURE_H
#define HETMEM_SELFTESTS_SAME_CAPTURE_H

#include "same.h"

/* What the calls are given; 0 once a call has used it up. */
static struct {
	CUdeviceptr device, async, managed, range;
	void *host, *registered, *other;
	CUmemGenericAllocationHandle spare, mapped;
	CUstream stream;
	CUevent event, captured;
	CUmemoryPool pool;
	CUgraph graph;
	CUgraphExec exec;
} t;

static const CUmemPoolProps pool_props = {
	.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
	.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
};

static void make_things(void)
{
	memset(&t, 0, sizeof(t));
	d->cuMemAlloc(&t.device, 4096);
	d->cuMemAllocAsync(&t.async, 4096, b);
	d->cuMemAllocManaged(&t.managed, 4096, CU_MEM_ATTACH_GLOBAL);
	d->cuMemHostAlloc(&t.host, 4096, 0);
	t.registered = aligned_alloc(4096, 4096);
	t.other = aligned_alloc(4096, 4096);
	d->cuMemHostRegister(t.registered, 4096, 0);
	d->cuMemCreate(&t.spare, G, &prop, 0);
	d->cuMemCreate(&t.mapped, G, &prop, 0);
	d->cuMemMap(va + 8 * G, G, 0, t.mapped, 0);
	d->cuMemSetAccess(va + 8 * G, G, &rw, 1);
	d->cuMemAddressReserve(&t.range, G, 0, 0, 0);
	d->cuStreamCreate(&t.stream, CU_STREAM_NON_BLOCKING);
	d->cuEventCreate(&t.event, CU_EVENT_DISABLE_TIMING);
	d->cuEventCreate(&t.captured, CU_EVENT_DISABLE_TIMING);
	d->cuMemPoolCreate(&t.pool, &pool_props);
	d->cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED);
	d->cuMemsetD8Async(va + 2 * G, 1, 64, a);
	d->cuStreamEndCapture(a, &t.graph);
	d->cuGraphInstantiateWithFlags(&t.exec, t.graph, 0);
	d->cuCtxSynchronize();
}

static void drop_things(void)
{
	d->cuCtxSynchronize();
	if (t.device)
		d->cuMemFree(t.device);
	if (t.async)
		d->cuMemFreeAsync(t.async, b);
	if (t.managed)
		d->cuMemFree(t.managed);
	if (t.host)
		d->cuMemFreeHost(t.host);
	d->cuMemHostUnregister(t.registered);
	d->cuMemHostUnregister(t.other);
	free(t.registered);
	free(t.other);
	d->cuMemUnmap(va + 8 * G, G);
	d->cuMemUnmap(va + 10 * G, G);
	if (t.spare)
		d->cuMemRelease(t.spare);
	d->cuMemRelease(t.mapped);
	if (t.range)
		d->cuMemAddressFree(t.range, G);
	if (t.stream)
		d->cuStreamDestroy(t.stream);
	if (t.event)
		d->cuEventDestroy(t.event);
	d->cuEventDestroy(t.captured);
	d->cuStreamSynchronize(b);
	if (t.pool)
		d->cuMemPoolDestroy(t.pool);
	if (t.exec)
		d->cuGraphExecDestroy(t.exec);
	if (t.graph)
		d->cuGraphDestroy(t.graph);
}

/* Of memory or a handle that a call gives: it goes when all is over. */
#define GIVES(name, type, call, undo)					\
static CUresult name(void)						\
{									\
	type it;							\
	CUresult res = (call);						\
									\
	if (!res)							\
		undo;							\
	return res;							\
}

#define CALL(name, call)						\
static CUresult name(void)						\
{									\
	return call;							\
}

/* A call that takes the thing away: nobody else frees it if it succeeds. */
#define TAKES(name, thing, call)					\
static CUresult name(void)						\
{									\
	CUresult res = (call);						\
									\
	if (!res)							\
		thing = 0;						\
	return res;							\
}

static unsigned long long id;
static CUcontext some_ctx;
static CUstreamCaptureStatus status;
static cuuint64_t some_value;
static CUdeviceptr some_ptr;
static size_t some_size, other_size, none;
static int some_int;
static char bytes[64];

static void host_fn(void *data)
{
	(void)data;
}

CALL(id_of_captured, d->cuStreamGetId(a, &id))
CALL(id_of_other, d->cuStreamGetId(b, &id))
CALL(id_of_legacy, d->cuStreamGetId(NULL, &id))
CALL(id_of_thread, d->cuStreamGetId(CU_STREAM_PER_THREAD, &id))
CALL(ctx_of_captured, d->cuStreamGetCtx(a, &some_ctx))
CALL(ctx_of_other, d->cuStreamGetCtx(b, &some_ctx))
CALL(ctx_of_legacy, d->cuStreamGetCtx(NULL, &some_ctx))
CALL(capturing_captured, d->cuStreamIsCapturing(a, &status))
CALL(capturing_other, d->cuStreamIsCapturing(b, &status))
CALL(capturing_legacy, d->cuStreamIsCapturing(NULL, &status))
CALL(query_captured, d->cuStreamQuery(a))
CALL(query_other, d->cuStreamQuery(b))
CALL(query_legacy, d->cuStreamQuery(NULL))
CALL(sync_captured, d->cuStreamSynchronize(a))
CALL(sync_other, d->cuStreamSynchronize(b))
CALL(sync_ctx, d->cuCtxSynchronize())
CALL(get_ctx, d->cuCtxGetCurrent(&some_ctx))
CALL(set_ctx, d->cuCtxSetCurrent(ctx))
CALL(get_attribute, d->cuDeviceGetAttribute(&some_int, \
		CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 0))
CALL(get_info, d->cuMemGetInfo(&some_size, &other_size))
CALL(retain_ctx, (d->cuDevicePrimaryCtxRetain(&some_ctx, 0) ?:
		  d->cuDevicePrimaryCtxRelease(0)))
GIVES(stream_create, CUstream, d->cuStreamCreate(&it, CU_STREAM_NON_BLOCKING),
      d->cuStreamDestroy(it))
TAKES(stream_destroy, t.stream, d->cuStreamDestroy(t.stream))
GIVES(event_create, CUevent, d->cuEventCreate(&it, CU_EVENT_DISABLE_TIMING),
      d->cuEventDestroy(it))
TAKES(event_destroy, t.event, d->cuEventDestroy(t.event))
CALL(event_query, d->cuEventQuery(event))
CALL(event_never_query, d->cuEventQuery(t.event))
CALL(event_sync, d->cuEventSynchronize(event))
CALL(event_record_other, d->cuEventRecord(t.event, b))
CALL(event_wait_outside, d->cuStreamWaitEvent(a, event, 0))
CALL(event_wait_never, d->cuStreamWaitEvent(a, t.event, 0))
CALL(event_wait_other, d->cuStreamWaitEvent(b, event, 0))
CALL(event_captured, (d->cuEventRecord(t.captured, a) ?:
		      d->cuEventQuery(t.captured)))
CALL(event_captured_sync, (d->cuEventRecord(t.captured, a) ?:
			   d->cuEventSynchronize(t.captured)))
CALL(event_again, (d->cuEventRecord(t.captured, a) ?:
		   d->cuEventRecord(t.captured, b)))
CALL(unjoined, (d->cuEventRecord(t.captured, a) ?:
		d->cuStreamWaitEvent(t.stream, t.captured, 0) ?:
		d->cuMemsetD8Async(va + 2 * G, 0, 64, t.stream)))
CALL(unjoined_idle, (d->cuEventRecord(t.captured, a) ?:
		     d->cuStreamWaitEvent(t.stream, t.captured, 0)))
CALL(memset_captured, d->cuMemsetD8Async(va + 2 * G, 0, 64, a))
CALL(memset_other, d->cuMemsetD8Async(va + 2 * G, 0, 64, b))
CALL(memset_legacy, d->cuMemsetD8Async(va + 2 * G, 0, 64, NULL))
CALL(copy_back, d->cuMemcpyDtoHAsync(bytes, va + 2 * G, 64, a))
CALL(host_func, d->cuLaunchHostFunc(a, host_fn, NULL))
GIVES(alloc, CUdeviceptr, d->cuMemAlloc(&it, 4096), d->cuMemFree(it))
TAKES(free_device, t.device, d->cuMemFree(t.device))
GIVES(alloc_managed, CUdeviceptr, d->cuMemAllocManaged(&it, 4096,
		CU_MEM_ATTACH_GLOBAL), d->cuMemFree(it))
TAKES(free_managed, t.managed, d->cuMemFree(t.managed))
GIVES(alloc_host, void *, d->cuMemHostAlloc(&it, 4096, 0), \
      d->cuMemFreeHost(it))
TAKES(free_host, t.host, d->cuMemFreeHost(t.host))
CALL(host_register, d->cuMemHostRegister(t.other, 4096, 0))
CALL(host_unregister, d->cuMemHostUnregister(t.registered))
CALL(address_range, d->cuMemGetAddressRange(&some_ptr, &some_size, t.device))
CALL(pointer_attribute, d->cuPointerGetAttribute(&id,
		CU_POINTER_ATTRIBUTE_BUFFER_ID, t.device))
CALL(prefetch, d->cuMemPrefetchAsync_v2(t.managed, 4096, prop.location, 0, a))
CALL(prefetch_other, d->cuMemPrefetchAsync_v2(t.managed, 4096, prop.location,
					      0, b))
CALL(prefetch_batch, d->cuMemPrefetchBatchAsync(&t.managed, &some_size, 1, \
		(CUmemLocation *)&prop.location, &none, 1, 0, a))
CALL(discard_batch, d->cuMemDiscardBatchAsync(&t.managed, &some_size, 1, 0, a))
CALL(advise, d->cuMemAdvise_v2(t.managed, 4096,
		CU_MEM_ADVISE_SET_READ_MOSTLY, prop.location))
CALL(range_attribute, d->cuMemRangeGetAttribute(&some_int, 4,
		CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, t.managed, 4096))
CALL(export_handle, d->cuMemExportToShareableHandle(&some_int, t.spare,
		CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0))
CALL(granularity, d->cuMemGetAllocationGranularity(&some_size, &prop, 0))
GIVES(address_reserve, CUdeviceptr, d->cuMemAddressReserve(&it, G, 0, 0, 0),
      d->cuMemAddressFree(it, G))
TAKES(address_free, t.range, d->cuMemAddressFree(t.range, G))
GIVES(mem_create, CUmemGenericAllocationHandle,
      d->cuMemCreate(&it, G, &prop, 0), d->cuMemRelease(it))
TAKES(mem_release, t.spare, d->cuMemRelease(t.spare))
CALL(mem_map, d->cuMemMap(va + 10 * G, G, 0, t.spare, 0))
CALL(mem_unmap, d->cuMemUnmap(va + 8 * G, G))
CALL(set_access, d->cuMemSetAccess(va + 8 * G, G, &rw, 1))
CALL(get_access, d->cuMemGetAccess(&id, &rw.location, va + 8 * G))
CALL(alloc_async, (d->cuMemAllocAsync(&some_ptr, 4096, a) ?:
		   d->cuMemFreeAsync(some_ptr, a)))
CALL(alloc_async_pool, (d->cuMemAllocFromPoolAsync(&some_ptr, 4096, t.pool,
						   a) ?:
			d->cuMemFreeAsync(some_ptr, a)))
CALL(alloc_async_other, (d->cuMemAllocAsync(&some_ptr, 4096, b) ?:
			 d->cuMemFreeAsync(some_ptr, b)))
CALL(alloc_async_legacy, (d->cuMemAllocAsync(&some_ptr, 4096, NULL) ?:
			  d->cuMemFreeAsync(some_ptr, NULL)))
TAKES(free_async, t.async, d->cuMemFreeAsync(t.async, a))
TAKES(free_async_other, t.async, d->cuMemFreeAsync(t.async, b))
CALL(default_pool, d->cuDeviceGetDefaultMemPool((CUmemoryPool *)&id, 0))
GIVES(pool_create, CUmemoryPool, d->cuMemPoolCreate(&it, &pool_props),
      d->cuMemPoolDestroy(it))
TAKES(pool_destroy, t.pool, d->cuMemPoolDestroy(t.pool))
CALL(pool_set, d->cuMemPoolSetAttribute(t.pool,
		CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &some_value))
CALL(pool_get, d->cuMemPoolGetAttribute(t.pool,
		CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &some_value))
CALL(pool_trim, d->cuMemPoolTrimTo(t.pool, 0))
GIVES(graph_instantiate, CUgraphExec,
      d->cuGraphInstantiateWithFlags(&it, t.graph, 0),
      d->cuGraphExecDestroy(it))
CALL(graph_launch_other, d->cuGraphLaunch(t.exec, b))
CALL(graph_launch_captured, d->cuGraphLaunch(t.exec, a))
TAKES(graph_destroy, t.graph, d->cuGraphDestroy(t.graph))
TAKES(exec_destroy, t.exec, d->cuGraphExecDestroy(t.exec))
CALL(begin_twice, d->cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL))

typedef CUresult (*call_fn)(void);

static CUresult as_relaxed(call_fn call)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUresult res;

	d->cuThreadExchangeStreamCaptureMode(&mode);
	res = call();
	d->cuThreadExchangeStreamCaptureMode(&mode);
	return res;
}

static CUresult make_current(void)
{
	return d->cuCtxSetCurrent(ctx);
}

struct elsewhere {
	call_fn call;
	CUresult res;
};

static void *run_elsewhere(void *arg)
{
	struct elsewhere *e = arg;

	as_relaxed(make_current);
	e->res = e->call();
	return NULL;
}

static CUresult as_other(call_fn call)
{
	struct elsewhere e = { call, CUDA_ERROR_UNKNOWN };
	pthread_t thread;

	if (!pthread_create(&thread, NULL, run_elsewhere, &e))
		pthread_join(thread, NULL);
	return e.res;
}

static CUresult as_it_is(call_fn call)
{
	return call();
}

/* @call while a capture of that mode is under way: its result / the end's. */
static void captured(const char *name, CUstreamCaptureMode mode,
		     CUresult (*how)(call_fn), call_fn call)
{
	CUgraph graph = NULL;
	CUresult res, end;

	make_things();
	some_size = 4096;
	res = d->cuStreamBeginCapture(a, mode);
	if (res) {
		say("%s:begin:%d", name, res);
	} else {
		res = how(call);
		end = d->cuStreamEndCapture(a, &graph);
		say("%s:%d/%d", name, res, end);
		if (graph)
			d->cuGraphDestroy(graph);
	}
	drop_things();
}

static void in_all_modes(call_fn call)
{
	captured("G", CU_STREAM_CAPTURE_MODE_GLOBAL, as_it_is, call);
	captured("L", CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, as_it_is, call);
	captured("R", CU_STREAM_CAPTURE_MODE_RELAXED, as_it_is, call);
	captured("Gr", CU_STREAM_CAPTURE_MODE_GLOBAL, as_relaxed, call);
	captured("Go", CU_STREAM_CAPTURE_MODE_GLOBAL, as_other, call);
	captured("Lo", CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, as_other, call);
}

static const struct capture_probe {
	const char *name;
	call_fn call;
} capture_probes[] = {
#define P(fn)	{ "capture_" #fn, fn }
	P(id_of_captured), P(id_of_other), P(id_of_legacy), P(id_of_thread),
	P(ctx_of_captured), P(ctx_of_other), P(ctx_of_legacy),
	P(capturing_captured), P(capturing_other), P(capturing_legacy),
 P(query_captured), P(query_other),
	P(query_legacy), P(sync_captured), P(sync_other), P(sync_ctx),
	P(get_ctx), P(set_ctx), P(get_attribute), P(get_info),
	P(retain_ctx), P(stream_create), P(stream_destroy), P(event_create),
	P(event_destroy), P(event_query), P(event_never_query), P(event_sync),
	P(event_record_other), P(event_wait_outside), P(event_wait_never),
	P(event_wait_other), P(event_captured), P(event_captured_sync),
	P(event_again), P(unjoined), P(unjoined_idle), P(memset_captured),
	P(memset_other), P(memset_legacy),
 P(copy_back), P(host_func), P(alloc), P(free_device),
	P(alloc_managed), P(free_managed), P(alloc_host), P(free_host),
	P(host_register), P(host_unregister),
	P(address_range), P(pointer_attribute),
	P(prefetch), P(prefetch_other), P(prefetch_batch), P(discard_batch),
	P(advise), P(range_attribute), P(export_handle),
	P(granularity), P(address_reserve), P(address_free), P(mem_create),
	P(mem_release), P(mem_map), P(mem_unmap), P(set_access),
	P(get_access), P(alloc_async), P(alloc_async_pool),
	P(alloc_async_other), P(alloc_async_legacy), P(free_async),
	P(free_async_other), P(default_pool), P(pool_create), P(pool_destroy),
	P(pool_set), P(pool_get), P(pool_trim), P(graph_instantiate),
	P(graph_launch_other), P(graph_launch_captured), P(graph_destroy),
	P(exec_destroy), P(begin_twice),
#undef P
};

#endif /* HETMEM_SELFTESTS_SAME_CAPTURE_H */
