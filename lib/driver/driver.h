/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The driver table: the one seam between the library and what drives the
 * devices. cuda.c fills it from libcuda.so.1, the soft driver (soft*.c) with
 * functions of its own; nothing else of the library knows which.
 *
 * Members have the Driver API's own names, types and meaning, so its
 * documentation holds for both. calls.h says which may be NULL. Result
 * parameters are never NULL; 0 (CUDA_SUCCESS) is success; on an error
 * nothing has changed unless it says otherwise. Calls that take a stream
 * return before the work is done, and the memory they name stays valid
 * until it is. All may be called from any thread; those that name neither
 * a device nor a stream use the calling thread's current context.
 */
#ifndef HETMEM_DRIVER_DRIVER_H
#define HETMEM_DRIVER_DRIVER_H

#include "driver/cuda_types.h"

struct hm_driver {
	const char *name;	/* "cuda", "soft" */
	int version;		/* 13000 is 13.0; of the API it speaks */

	/*
	 * pre:  first call of the process to this driver; flags is 0.
	 * post: every other call may be made.
	 * CUDA_ERROR_NO_DEVICE: a driver, but nothing to drive.
	 */
	CUresult (*cuInit)(unsigned int flags);
	CUresult (*cuDriverGetVersion)(int *version);

	/*
	 * pre:  any result, also of a later driver.
	 * post: *str is static text, or NULL with CUDA_ERROR_INVALID_VALUE.
	 * Needs no cuInit().
	 */
	CUresult (*cuGetErrorName)(CUresult error, const char **str);
	CUresult (*cuGetErrorString)(CUresult error, const char **str);

	/*
	 * pre:  0 <= ordinal < count.
	 * post: the device's handle, name (NUL-terminated), UUID, attribute,
	 *	 bytes of memory. INVALID_VALUE: no such attribute.
	 * Ordinals are stable for the life of the process.
	 */
	CUresult (*cuDeviceGetCount)(int *count);
	CUresult (*cuDeviceGet)(CUdevice *device, int ordinal);
	CUresult (*cuDeviceGetName)(char *name, int len, CUdevice device);
	CUresult (*cuDeviceGetUuid)(CUuuid *uuid, CUdevice device);
	CUresult (*cuDeviceGetAttribute)(int *value,
					 CUdevice_attribute attribute,
					 CUdevice device);
	CUresult (*cuDeviceTotalMem)(size_t *bytes, CUdevice device);

	/*
	 * pre:  a release for each retain.
	 * post: the context all users of the device in this process share.
	 * Retaining does not make it current.
	 */
	CUresult (*cuDevicePrimaryCtxRetain)(CUcontext *ctx, CUdevice device);
	CUresult (*cuDevicePrimaryCtxRelease)(CUdevice device);

	/*
	 * pre:  ctx is NULL or a live context.
	 * post: it is the calling thread's; Get says NULL if there is none.
	 * Synchronize waits for all its work and reports its errors.
	 */
	CUresult (*cuCtxSetCurrent)(CUcontext ctx);
	CUresult (*cuCtxGetCurrent)(CUcontext *ctx);
	CUresult (*cuCtxGetDevice)(CUdevice *device);
	CUresult (*cuCtxSynchronize)(void);

	/*
	 * pre:  two devices; for Enable and Disable: the current context and
	 *	 that of the other device; flags is 0.
	 * post: the current context reaches what the other one allocates; not
	 *	 what is mapped by cuMemMap() or is a memory pool's.
	 * PEER_ACCESS_ALREADY_ENABLED, PEER_ACCESS_NOT_ENABLED.
	 */
	CUresult (*cuDeviceCanAccessPeer)(int *can, CUdevice device,
					  CUdevice peer);
	CUresult (*cuCtxEnablePeerAccess)(CUcontext peer, unsigned int flags);
	CUresult (*cuCtxDisablePeerAccess)(CUcontext peer);

	/*
	 * pre:  a context is current; for Destroy: nobody uses the stream.
	 * post: work on a stream executes in the order it was given.
	 * Destroy returns at once, its work is still done. Handles are used
	 * again, the ids of GetId never.
	 */
	CUresult (*cuStreamCreate)(CUstream *stream, unsigned int flags);
	CUresult (*cuStreamDestroy)(CUstream stream);
	CUresult (*cuStreamGetId)(CUstream stream, unsigned long long *id);
	CUresult (*cuStreamGetCtx)(CUstream stream, CUcontext *ctx);

	/*
	 * pre:  a live stream, NULL for the legacy one.
	 * post: Synchronize: all work given before is done. Query: the same,
	 *	 or CUDA_ERROR_NOT_READY.
	 * Both also report errors of that work.
	 */
	CUresult (*cuStreamSynchronize)(CUstream stream);
	CUresult (*cuStreamQuery)(CUstream stream);

	/*
	 * pre:  live stream, live event, of any two contexts; flags 0.
	 * post: later work on the stream starts after what the event
	 *	 recorded last; never recorded: at once.
	 * The host does not wait.
	 */
	CUresult (*cuStreamWaitEvent)(CUstream stream, CUevent event,
				      unsigned int flags);

	/*
	 * pre:  Begin: not the legacy stream; End: the stream of Begin, and
	 *	 what joined its capture has come back to it.
	 * post: in between, work of the stream and of those that wait for it
	 *	 is put into a graph and not done. IsCapturing and
	 *	 GetCaptureInfo (the capture's id) are legal meanwhile.
	 * STREAM_CAPTURE_UNSUPPORTED, and the capture is invalid: in every mode
	 * GetId, Query, Synchronize, prefetch and GraphLaunch of a captured
	 * stream, and cuCtxSynchronize(); and what is unsafe, by the capturing
	 * thread and in GLOBAL mode by any other, but for threads in RELAXED
	 * mode. Unsafe are allocating and freeing as a whole, registering,
	 * memory pools (and their memory, on streams that do not capture),
	 * asking or waiting for any event or stream, advice, making and
	 * destroying executables; reserving, creating and mapping are not.
	 * STREAM_CAPTURE_IMPLICIT: the legacy stream, while one that it would
	 * wait for is captured; IsCapturing says it and does no harm.
	 */
	CUresult (*cuStreamIsCapturing)(CUstream stream,
					CUstreamCaptureStatus *status);
	CUresult (*cuStreamGetCaptureInfo)(CUstream stream,
					   CUstreamCaptureStatus *status,
					   cuuint64_t *id);
	CUresult (*cuStreamBeginCapture)(CUstream stream,
					 CUstreamCaptureMode mode);
	CUresult (*cuStreamEndCapture)(CUstream stream, CUgraph *graph);
	CUresult (*cuThreadExchangeStreamCaptureMode)(
					CUstreamCaptureMode *mode);

	/*
	 * pre:  Instantiate: flags is 0; Destroy: of what was made.
	 * post: Launch: the graph's work is done in order of the stream. The
	 *	 executable lives on without the graph.
	 * What was allocated while capturing has memory from a launch to the
	 * free; a launch while it is allocated is INVALID_VALUE, a second
	 * executable at the same time NOT_SUPPORTED.
	 */
	CUresult (*cuGraphInstantiateWithFlags)(CUgraphExec *exec,
						CUgraph graph,
						unsigned long long flags);
	CUresult (*cuGraphLaunch)(CUgraphExec exec, CUstream stream);
	CUresult (*cuGraphExecDestroy)(CUgraphExec exec);
	CUresult (*cuGraphDestroy)(CUgraph graph);

	/*
	 * pre:  fn calls no function of the driver.
	 * post: it runs on a thread of the driver, in stream order.
	 * Not run if the context has failed by then.
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
	 * pre:  both recorded, none made with CU_EVENT_DISABLE_TIMING.
	 * post: milliseconds between the two points, negative if reversed.
	 * CUDA_ERROR_NOT_READY: one is pending.
	 */
	CUresult (*cuEventElapsedTime)(float *ms, CUevent start, CUevent end);

	/*
	 * pre:  a context is current; size is not 0.
	 * post: device memory, 512-byte aligned at least, contents undefined.
	 * Free waits for all work of the device. CUDA_ERROR_OUT_OF_MEMORY.
	 */
	CUresult (*cuMemGetInfo)(size_t *available, size_t *total);
	CUresult (*cuMemAlloc)(CUdeviceptr *ptr, size_t size);
	CUresult (*cuMemFree)(CUdeviceptr ptr);
	CUresult (*cuMemGetAddressRange)(CUdeviceptr *base, size_t *size,
					 CUdeviceptr ptr);

	/*
	 * pre:  flags is one of CU_MEM_ATTACH_GLOBAL and _HOST.
	 * post: one address for the CPU and every device.
	 * Freed by cuMemFree().
	 */
	CUresult (*cuMemAllocManaged)(CUdeviceptr *ptr, size_t size,
				      unsigned int flags);

	/*
	 * pre:  Register: mapped memory that is not registered, not even in
	 *	 part; Unregister, FreeHost: exactly what was given.
	 * post: page-locked memory which devices reach at the same address.
	 */
	CUresult (*cuMemHostAlloc)(void **ptr, size_t size,
				   unsigned int flags);
	CUresult (*cuMemFreeHost)(void *ptr);
	CUresult (*cuMemHostRegister)(void *ptr, size_t size,
				      unsigned int flags);
	CUresult (*cuMemHostUnregister)(void *ptr);
	CUresult (*cuMemHostGetDevicePointer)(CUdeviceptr *device, void *ptr,
					      unsigned int flags);

	/*
	 * pre:  data is of the attribute's type.
	 * post: Attribute: INVALID_VALUE for memory the driver does not know;
	 *	 Attributes: zero or NULL there, and success.
	 * Interior pointers are as good as the first.
	 */
	CUresult (*cuPointerGetAttribute)(void *data,
					  CUpointer_attribute attribute,
					  CUdeviceptr ptr);
	CUresult (*cuPointerGetAttributes)(unsigned int nr,
					   CUpointer_attribute *attributes,
					   void **data, CUdeviceptr ptr);
	CUresult (*cuPointerSetAttribute)(const void *value,
					  CUpointer_attribute attribute,
					  CUdeviceptr ptr);

	/*
	 * pre:  memory of cuMemAlloc(); Open: in another process.
	 * post: Get: 64 bytes that name all of the allocation; Open: its first
	 *	 byte there.
	 * VMM memory is INVALID_VALUE.
	 */
	CUresult (*cuIpcGetMemHandle)(CUipcMemHandle *handle, CUdeviceptr ptr);
	CUresult (*cuIpcOpenMemHandle)(CUdeviceptr *ptr, CUipcMemHandle handle,
				       unsigned int flags);
	CUresult (*cuIpcCloseMemHandle)(CUdeviceptr ptr);

	/*
	 * pre:  both ranges are mapped.
	 * post: the bytes are there when it returns: it waits for the legacy
	 *	 stream.
	 */
	CUresult (*cuMemcpy)(CUdeviceptr dst, CUdeviceptr src, size_t size);

	/*
	 * pre:  both ranges stay mapped until the work is done.
	 * post: the bytes are there in stream order; size 0 does nothing.
	 * Memory the device cannot reach fails the context when it runs.
	 */
	CUresult (*cuMemcpyAsync)(CUdeviceptr dst, CUdeviceptr src,
				  size_t size, CUstream stream);
	CUresult (*cuMemcpyHtoDAsync)(CUdeviceptr dst, const void *src,
				      size_t size, CUstream stream);
	CUresult (*cuMemcpyDtoHAsync)(void *dst, CUdeviceptr src, size_t size,
				      CUstream stream);
	CUresult (*cuMemcpyDtoDAsync)(CUdeviceptr dst, CUdeviceptr src,
				      size_t size, CUstream stream);

	/*
	 * pre:  dst is aligned to the value's size; n counts values.
	 * post: as for a copy.
	 */
	CUresult (*cuMemsetD8Async)(CUdeviceptr dst, unsigned char value,
				    size_t n, CUstream stream);
	CUresult (*cuMemsetD32Async)(CUdeviceptr dst, unsigned int value,
				     size_t n, CUstream stream);

	/*
	 * pre:  managed memory, or any where the device is pageable;
	 *	 else INVALID_VALUE. CU_DEVICE_CPU is the host in v1.
	 * post: moved (advised) in stream order (at once); both are hints.
	 */
	CUresult (*cuMemPrefetchAsync_v1)(CUdeviceptr ptr, size_t size,
					  CUdevice device, CUstream stream);
	CUresult (*cuMemPrefetchAsync_v2)(CUdeviceptr ptr, size_t size,
					  CUmemLocation location,
					  unsigned int flags,
					  CUstream stream);
	CUresult (*cuMemAdvise_v1)(CUdeviceptr ptr, size_t size,
				   CUmem_advise advice, CUdevice device);
	CUresult (*cuMemAdvise_v2)(CUdeviceptr ptr, size_t size,
				   CUmem_advise advice,
				   CUmemLocation location);

	/*
	 * pre:  managed memory, count ranges; locations[i] is for the ranges
	 *	 from first[i] on; flags is 0.
	 * post: as a prefetch of each; Discard: the contents are undefined
	 *	 and need not be moved.
	 */
	CUresult (*cuMemPrefetchBatchAsync)(CUdeviceptr *ptrs, size_t *sizes,
					    size_t count,
					    CUmemLocation *locations,
					    size_t *first, size_t nr_locations,
					    unsigned long long flags,
					    CUstream stream);
	CUresult (*cuMemDiscardBatchAsync)(CUdeviceptr *ptrs, size_t *sizes,
					   size_t count,
					   unsigned long long flags,
					   CUstream stream);
	CUresult (*cuMemDiscardAndPrefetchBatchAsync)(CUdeviceptr *ptrs,
						      size_t *sizes,
						      size_t count,
						      CUmemLocation *locations,
						      size_t *first,
						      size_t nr_locations,
						      unsigned long long flags,
						      CUstream stream);

	/*
	 * pre:  managed memory; data_size fits the attribute.
	 * post: what was asked for last, never where the pages are.
	 */
	CUresult (*cuMemRangeGetAttribute)(void *data, size_t data_size,
					   CUmem_range_attribute attribute,
					   CUdeviceptr ptr, size_t size);

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
	CUresult (*cuMemGetAccess)(unsigned long long *flags,
				   const CUmemLocation *location,
				   CUdeviceptr ptr);

	/*
	 * pre:  a live handle; device memory, whole pages of the host.
	 * post: as it was created; a dma-buf's descriptor, the caller's, int
	 *	 at *handle.
	 */
	CUresult (*cuMemGetAllocationPropertiesFromHandle)(
					CUmemAllocationProp *prop,
					CUmemGenericAllocationHandle handle);
	CUresult (*cuMemGetHandleForAddressRange)(void *handle,
						  CUdeviceptr ptr, size_t size,
						  CUmemRangeHandleType type,
						  unsigned long long flags);

	/*
	 * pre:  addr is mapped by cuMemMap().
	 * post: its handle, to be released once more.
	 */
	CUresult (*cuMemRetainAllocationHandle)(
					CUmemGenericAllocationHandle *handle,
					void *addr);

	/*
	 * pre:  the handle was created with this type.
	 * post: a file descriptor of the caller's, int at *shareable; Import
	 *	 takes it as a pointer's value and does not close it.
	 */
	CUresult (*cuMemExportToShareableHandle)(void *shareable,
					CUmemGenericAllocationHandle handle,
					CUmemAllocationHandleType type,
					unsigned long long flags);
	CUresult (*cuMemImportFromShareableHandle)(
					CUmemGenericAllocationHandle *handle,
					void *shareable,
					CUmemAllocationHandleType type);

	/*
	 * pre:  Free: what one of these returned, on any stream that is
	 *	 ordered behind all uses.
	 * post: valid from here to there, in stream order. On a stream that is
	 *	 captured: nodes of its graph; only what a graph allocated can
	 *	 be freed by one.
	 */
	CUresult (*cuMemAllocAsync)(CUdeviceptr *ptr, size_t size,
				    CUstream stream);
	CUresult (*cuMemAllocFromPoolAsync)(CUdeviceptr *ptr, size_t size,
					    CUmemoryPool pool,
					    CUstream stream);
	CUresult (*cuMemFreeAsync)(CUdeviceptr ptr, CUstream stream);

	/*
	 * pre:  value is of the attribute's type (int or cuuint64_t);
	 *	 Destroy: not the default pool.
	 * post: Destroy waits for the last free; Trim keeps what is used.
	 */
	CUresult (*cuDeviceGetDefaultMemPool)(CUmemoryPool *pool,
					      CUdevice device);
	CUresult (*cuMemPoolCreate)(CUmemoryPool *pool,
				    const CUmemPoolProps *props);
	CUresult (*cuMemPoolDestroy)(CUmemoryPool pool);
	CUresult (*cuMemPoolTrimTo)(CUmemoryPool pool, size_t keep);
	CUresult (*cuMemPoolSetAttribute)(CUmemoryPool pool,
					  CUmemPool_attribute attribute,
					  void *value);
	CUresult (*cuMemPoolGetAttribute)(CUmemoryPool pool,
					  CUmemPool_attribute attribute,
					  void *value);

	/*
	 * pre:  devices that reach the pool's as a peer.
	 * post: they reach what it gives, too; its own always does.
	 */
	CUresult (*cuMemPoolSetAccess)(CUmemoryPool pool,
				       const CUmemAccessDesc *desc,
				       size_t count);
	CUresult (*cuMemPoolGetAccess)(CUmemAccess_flags *flags,
				       CUmemoryPool pool,
				       CUmemLocation *location);
};

/*
 * Loads libcuda.so.1 (again: cheap), fills *@driver and calls cuInit().
 * Returns 0 and the version and number of devices in @reason, or -ENODEV
 * and why there is no CUDA to use. The library stays loaded: a driver
 * cannot be unloaded safely.
 */
int hm_cuda_open(struct hm_driver *driver, char *reason, size_t len);

/*
 * Fills *@driver with the soft driver and starts it, or takes a reference if
 * it runs: there is one per process, as of CUDA. @module_path as in struct
 * hetmem_params, of the first opener. 0, -EINVAL a bad HETMEM_SOFT_*
 * variable, -ENOMEM; @reason is text in either case.
 */
int hm_soft_open(struct hm_driver *driver, const char *module_path,
		 char *reason, size_t len);

/* Drops it. The last one waits for all streams and frees everything. */
void hm_soft_close(void);

/*
 * For tests: replaces HETMEM_SOFT_FAIL and HETMEM_SOFT_DELAY. NULL: none.
 * -EINVAL: cannot be read; nothing has changed then.
 */
int hm_soft_rules(const char *fail, const char *delay);

/**
 * struct hm_soft_range - memory that a soft kernel uses
 * @ptr: first byte
 * @size: bytes, not 0
 * @fill: what it writes to each byte, or -1: it only reads
 */
struct hm_soft_range {
	CUdeviceptr ptr;
	size_t size;
	int fill;
};

/*
 * Plays a kernel of the soft driver on @stream: work of that name (static text) that takes
 * @ns nanoseconds, then reads and writes @ranges. Memory that is not mapped
 * when it runs fails the context with CUDA_ERROR_ILLEGAL_ADDRESS; memory that
 * it must not use aborts at once in check mode, see check.h. The rules know
 * it as cuLaunchKernel.
 */
CUresult hm_soft_launch(CUstream stream, const char *name,
			const struct hm_soft_range *ranges, unsigned int nr,
			uint64_t ns);

/* Id of soft device @ordinal in hetmem.ko, -1 if it is not an emulated one. */
int hm_soft_module_id(int ordinal);

#endif /* HETMEM_DRIVER_DRIVER_H */
