/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The driver table: the one seam between the library and what drives the devices.
 * cuda.c fills it from libcuda.so.1 or libhetmem-soft.so, by the same path.
 *
 * Members have the Driver API's own names, types and meaning, so its
 * documentation holds for both. calls.h says which may be NULL; without any
 * driver all are, and there is no device. Result parameters are never NULL. 0
 * is success. After an error nothing has changed, except where a comment says so.
 * Calls that take a stream return before the work is done; the memory they name
 * stays valid until then. Any thread may call them. Those that name neither a
 * device nor a stream use the calling thread's current context.
 */
#ifndef HETMEM_DRIVER_DRIVER_H
#define HETMEM_DRIVER_DRIVER_H

#include "driver/cuda_types.h"
#include "driver/place_calls.h"
#include "driver/process_calls.h"

struct hm_driver {
	const char *name;	/* "cuda", "soft", "none" */
	int version;		/* 13000 is 13.0; of the API it speaks */
	/*
	 * pre:  first call of the process to this driver; flags is 0.
	 * post: every other call may be made.
	 * CUDA_ERROR_NO_DEVICE: a driver, but nothing to drive.
	 */
	CUresult (*cuInit)(unsigned int flags);

	/*
	 * pre:  any result, also of a later driver. Needs no cuInit().
	 * post: *str is static text, or NULL with CUDA_ERROR_INVALID_VALUE.
	 */
	CUresult (*cuGetErrorName)(CUresult error, const char **str);

	/*
	 * pre:  0 <= ordinal < count; ordinals are stable.
	 * post: the device's handle, name (NUL-terminated), UUID, attribute,
	 *	 bytes of memory. INVALID_VALUE: no such attribute.
	 */
	CUresult (*cuDeviceGetCount)(int *count);
	CUresult (*cuDeviceGet)(CUdevice *device, int ordinal);
	CUresult (*cuDeviceGetName)(char *name, int len, CUdevice device);
	CUresult (*cuDeviceGetUuid)(CUuuid *uuid, CUdevice device);
	CUresult (*cuDeviceGetAttribute)(int *value, CUdevice_attribute which, CUdevice device);
	CUresult (*cuDeviceTotalMem)(size_t *bytes, CUdevice device);
	/* Of the current context's device; integrated: without the page cache. */
	CUresult (*cuMemGetInfo)(size_t *available, size_t *total);

	/*
	 * pre:  a release for each retain.
	 * post: the context all users of the device in this process share.
	 *	 Retaining does not make it current.
	 */
	CUresult (*cuDevicePrimaryCtxRetain)(CUcontext *ctx, CUdevice device);
	CUresult (*cuDevicePrimaryCtxRelease)(CUdevice device);

	/*
	 * pre:  ctx is NULL or a live context.
	 * post: it is the calling thread's; Get: or NULL.
	 *	 Synchronize waits for all its work and reports its errors.
	 */
	CUresult (*cuCtxSetCurrent)(CUcontext ctx);
	CUresult (*cuCtxGetCurrent)(CUcontext *ctx);
	CUresult (*cuCtxSynchronize)(void);

	/*
	 * pre:  a context is current; for Destroy: nobody uses the stream.
	 * post: work executes in order. Synchronize, Query return its errors.
	 * Destroy returns at once. Handles are used again, ids never.
	 */
	CUresult (*cuStreamCreate)(CUstream *stream, unsigned int flags);
	CUresult (*cuStreamDestroy)(CUstream stream);
	CUresult (*cuStreamGetId)(CUstream stream, unsigned long long *id);
	CUresult (*cuStreamGetCtx)(CUstream stream, CUcontext *ctx);
	CUresult (*cuStreamSynchronize)(CUstream stream);
	CUresult (*cuStreamQuery)(CUstream stream);

	/*
	 * pre:  live stream, live event, of any two contexts; flags 0.
	 * post: later work on the stream starts after what the event
	 *	 recorded last; never recorded: at once. The host does not wait.
	 */
	CUresult (*cuStreamWaitEvent)(CUstream stream, CUevent event,
				      unsigned int flags);

	/*
	 * pre:  any stream, also one that is captured.
	 * post: its status. STREAM_CAPTURE_IMPLICIT: the legacy stream, while
	 *	 one that it would wait for is captured. Exchange: the calling
	 *	 thread's mode; in RELAXED mode calls that are unsafe while
	 *	 another stream is captured are legal, see soft/calls.h.
	 */
	CUresult (*cuStreamIsCapturing)(CUstream stream, CUstreamCaptureStatus *status);
	CUresult (*cuThreadExchangeStreamCaptureMode)(CUstreamCaptureMode *m);

	/*
	 * pre:  fn calls no function of the driver.
	 * post: it runs on a thread of the driver, in stream order; not if the
	 *	 context has failed by then.
	 */
	CUresult (*cuLaunchHostFunc)(CUstream stream, CUhostFn fn, void *data);

	/*
	 * pre:  a context is current; Record: event and stream of one.
	 * post: Query and Synchronize are about the last Record before the
	 *	 call; an event never recorded is complete.
	 * Destroy of a pending event is legal.
	 */
	CUresult (*cuEventCreate)(CUevent *event, unsigned int flags);
	CUresult (*cuEventDestroy)(CUevent event);
	CUresult (*cuEventRecord)(CUevent event, CUstream stream);
	CUresult (*cuEventQuery)(CUevent event);
	CUresult (*cuEventSynchronize)(CUevent event);

	/*
	 * pre:  a context is current; size is not 0.
	 * post: device memory, 512-byte aligned at least, contents undefined.
	 * Free waits for all work of the device. CUDA_ERROR_OUT_OF_MEMORY.
	 */
	CUresult (*cuMemAlloc)(CUdeviceptr *ptr, size_t size);
	CUresult (*cuMemFree)(CUdeviceptr ptr);

	/*
	 * pre:  flags is one of CU_MEM_ATTACH_GLOBAL and _HOST.
	 * post: one address for the CPU and every device; cuMemFree() frees.
	 */
	CUresult (*cuMemAllocManaged)(CUdeviceptr *ptr, size_t size, unsigned int flags);

	/*
	 * pre:  Register: mapped memory that is not registered, not even in
	 *	 part; Unregister, FreeHost: exactly what was given.
	 * post: page-locked memory which devices reach at the same address.
	 */
	CUresult (*cuMemHostAlloc)(void **ptr, size_t size, unsigned int flags);
	CUresult (*cuMemFreeHost)(void *ptr);
	CUresult (*cuMemHostRegister)(void *ptr, size_t size, unsigned int fl);
	CUresult (*cuMemHostUnregister)(void *ptr);

	/*
	 * pre:  data[i] is of the type of attributes[i].
	 * post: zero or NULL for memory the driver does not know. Interior
	 *	 pointers are as good as the first.
	 */
	CUresult (*cuPointerGetAttributes)(unsigned int nr,
					   CUpointer_attribute *attributes,
					   void **data, CUdeviceptr ptr);

	/*
	 * pre:  both ranges stay mapped until the work is done.
	 * post: the bytes are there in stream order; size 0 does nothing.
	 * Memory the device cannot reach fails the context when it runs.
	 */
	CUresult (*cuMemcpyAsync)(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream);
	CUresult (*cuMemcpyDtoHAsync)(void *dst, CUdeviceptr src, size_t size, CUstream stream);
	CUresult (*cuMemsetD8Async)(CUdeviceptr dst, unsigned char value,
				    size_t n, CUstream stream);

	/* See place_calls.h. */
	hm_prefetch_v1_fn *cuMemPrefetchAsync_v1;
	hm_prefetch_v2_fn *cuMemPrefetchAsync_v2;
	hm_prefetch_batch_fn *cuMemPrefetchBatchAsync;
	hm_discard_batch_fn *cuMemDiscardBatchAsync;
	hm_advise_v1_fn *cuMemAdvise_v1;
	hm_advise_v2_fn *cuMemAdvise_v2;
	hm_range_attribute_fn *cuMemRangeGetAttribute;

	/* See process_calls.h. */
	hm_process_state_fn *cuCheckpointProcessGetState;
	hm_process_lock_fn *cuCheckpointProcessLock;
	hm_process_checkpoint_fn *cuCheckpointProcessCheckpoint;
	hm_process_restore_fn *cuCheckpointProcessRestore;
	hm_process_unlock_fn *cuCheckpointProcessUnlock;

	/*
	 * pre:  sizes and alignment are multiples of the granularity.
	 * post: addresses without memory behind them; touching is a fault.
	 * Free: exactly what was reserved, with nothing mapped in it.
	 */
	CUresult (*cuMemGetAllocationGranularity)(size_t *granularity,
					const CUmemAllocationProp *prop,
					CUmemAllocationGranularity_flags which);
	CUresult (*cuMemAddressReserve)(CUdeviceptr *ptr, size_t size,
					size_t alignment, CUdeviceptr addr,
					unsigned long long flags);
	CUresult (*cuMemAddressFree)(CUdeviceptr ptr, size_t size);

	/*
	 * pre:  size is a multiple of the granularity.
	 * post: memory without an address; lives until it is released and
	 *	 the last mapping of it is gone.
	 */
	CUresult (*cuMemCreate)(CUmemGenericAllocationHandle *handle,
				size_t size, const CUmemAllocationProp *prop,
				unsigned long long flags);
	CUresult (*cuMemRelease)(CUmemGenericAllocationHandle handle);

	/*
	 * pre:  reserved, unmapped addresses; offset 0 and the whole handle,
	 *	 anything else is NOT_SUPPORTED. Unmap: whole mappings.
	 * post: mapped without access until SetAccess. None of them waits.
	 */
	CUresult (*cuMemMap)(CUdeviceptr ptr, size_t size, size_t offset,
			     CUmemGenericAllocationHandle handle,
			     unsigned long long flags);
	CUresult (*cuMemUnmap)(CUdeviceptr ptr, size_t size);
	CUresult (*cuMemSetAccess)(CUdeviceptr ptr, size_t size,
				   const CUmemAccessDesc *desc, size_t count);

	/*
	 * pre:  the handle was created with this type.
	 * post: a file descriptor of the caller's, int at *shareable; Import
	 *	 takes it as a pointer's value and does not close it.
	 */
	CUresult (*cuMemExportToShareableHandle)(void *shareable,
		CUmemGenericAllocationHandle handle,
		CUmemAllocationHandleType type, unsigned long long flags);
	CUresult (*cuMemImportFromShareableHandle)(
		CUmemGenericAllocationHandle *handle, void *shareable,
		CUmemAllocationHandleType type);

	/*
	 * pre:  Free: what one of these returned, on any stream that is
	 *	 ordered after all uses.
	 * post: valid from here to there, in stream order. On a stream that is
	 *	 captured: nodes of its graph; only what a graph allocated can
	 *	 be freed by one.
	 */
	CUresult (*cuMemAllocAsync)(CUdeviceptr *ptr, size_t size,
				    CUstream stream);
	CUresult (*cuMemAllocFromPoolAsync)(CUdeviceptr *ptr, size_t size,
					    CUmemoryPool pool, CUstream stream);
	CUresult (*cuMemFreeAsync)(CUdeviceptr ptr, CUstream stream);

	/*
	 * pre:  value is of the attribute's type; Destroy: not the default one.
	 * post: Destroy waits for the last free; Trim keeps what is used.
	 */
	CUresult (*cuDeviceGetDefaultMemPool)(CUmemoryPool *pool, CUdevice d);
	CUresult (*cuMemPoolCreate)(CUmemoryPool *pool, const CUmemPoolProps *props);
	CUresult (*cuMemPoolDestroy)(CUmemoryPool pool);
	CUresult (*cuMemPoolTrimTo)(CUmemoryPool pool, size_t keep);
	CUresult (*cuMemPoolSetAttribute)(CUmemoryPool pool, CUmemPool_attribute which, void *v);
	CUresult (*cuMemPoolGetAttribute)(CUmemoryPool pool, CUmemPool_attribute which, void *v);
};

#endif /* HETMEM_DRIVER_DRIVER_H */
