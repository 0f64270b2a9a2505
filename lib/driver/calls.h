/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The calls of the driver table, once: X(member of struct hm_driver, name for
 * cuGetProcAddress, exported symbol, CUDA version of this ABI, need).
 *
 * Need is REQUIRED: without the call a driver is not usable; or OPTIONAL: the
 * member is NULL where the driver lacks the call, and its user asks first. The
 * library or the command calls each of them. What only programs call is in
 * soft/calls.h, for the soft driver and for tests.
 */
#ifndef HETMEM_DRIVER_CALLS_H
#define HETMEM_DRIVER_CALLS_H

#define HM_DRIVER_CALLS(X)	HM_DRIVER_CALLS_12(X) HM_DRIVER_CALLS_13(X)

/* In the toolkit's cuda.h from 12.2 on. */
#define HM_DRIVER_CALLS_12(X)						\
X(cuInit, cuInit, cuInit, 2000, REQUIRED)				\
X(cuGetErrorName, cuGetErrorName, cuGetErrorName, 6000, REQUIRED)	\
X(cuDeviceGet, cuDeviceGet, cuDeviceGet, 2000, REQUIRED)		\
X(cuDeviceGetCount, cuDeviceGetCount, cuDeviceGetCount, 2000, REQUIRED)	\
X(cuDeviceGetName, cuDeviceGetName, cuDeviceGetName, 2000, REQUIRED)	\
X(cuDeviceGetUuid, cuDeviceGetUuid, cuDeviceGetUuid_v2, 11040, OPTIONAL) \
X(cuDeviceGetAttribute, cuDeviceGetAttribute, cuDeviceGetAttribute, 2000, REQUIRED) \
X(cuDeviceTotalMem, cuDeviceTotalMem, cuDeviceTotalMem_v2, 3020, REQUIRED) \
X(cuMemGetInfo, cuMemGetInfo, cuMemGetInfo_v2, 3020, REQUIRED)		\
X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, 7000, REQUIRED) \
X(cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, 11000, REQUIRED) \
X(cuCtxSetCurrent, cuCtxSetCurrent, cuCtxSetCurrent, 4000, REQUIRED)	\
X(cuCtxGetCurrent, cuCtxGetCurrent, cuCtxGetCurrent, 4000, REQUIRED)	\
X(cuCtxSynchronize, cuCtxSynchronize, cuCtxSynchronize, 2000, REQUIRED)	\
X(cuStreamCreate, cuStreamCreate, cuStreamCreate, 2000, REQUIRED)	\
X(cuStreamDestroy, cuStreamDestroy, cuStreamDestroy_v2, 4000, REQUIRED)	\
X(cuStreamSynchronize, cuStreamSynchronize, cuStreamSynchronize, 2000, REQUIRED) \
X(cuStreamQuery, cuStreamQuery, cuStreamQuery, 2000, REQUIRED)		\
X(cuStreamGetId, cuStreamGetId, cuStreamGetId, 12000, OPTIONAL)		\
X(cuStreamGetCtx, cuStreamGetCtx, cuStreamGetCtx, 9020, OPTIONAL)	\
X(cuStreamWaitEvent, cuStreamWaitEvent, cuStreamWaitEvent, 3020, REQUIRED) \
X(cuStreamIsCapturing, cuStreamIsCapturing, cuStreamIsCapturing, 10000, OPTIONAL) \
X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode, 10010, OPTIONAL) \
X(cuLaunchHostFunc, cuLaunchHostFunc, cuLaunchHostFunc, 10000, OPTIONAL) \
X(cuEventCreate, cuEventCreate, cuEventCreate, 2000, REQUIRED)		\
X(cuEventDestroy, cuEventDestroy, cuEventDestroy_v2, 4000, REQUIRED)	\
X(cuEventRecord, cuEventRecord, cuEventRecord, 2000, REQUIRED)		\
X(cuEventQuery, cuEventQuery, cuEventQuery, 2000, REQUIRED)		\
X(cuEventSynchronize, cuEventSynchronize, cuEventSynchronize, 2000, REQUIRED) \
X(cuMemAlloc, cuMemAlloc, cuMemAlloc_v2, 3020, REQUIRED)		\
X(cuMemFree, cuMemFree, cuMemFree_v2, 3020, REQUIRED)			\
X(cuMemAllocManaged, cuMemAllocManaged, cuMemAllocManaged, 6000, REQUIRED) \
X(cuMemHostAlloc, cuMemHostAlloc, cuMemHostAlloc, 2020, REQUIRED)	\
X(cuMemFreeHost, cuMemFreeHost, cuMemFreeHost, 2000, REQUIRED)		\
X(cuMemHostRegister, cuMemHostRegister, cuMemHostRegister_v2, 6050, REQUIRED) \
X(cuMemHostUnregister, cuMemHostUnregister, cuMemHostUnregister, 4000, REQUIRED) \
X(cuPointerGetAttributes, cuPointerGetAttributes, cuPointerGetAttributes, 7000, REQUIRED) \
X(cuMemcpyAsync, cuMemcpyAsync, cuMemcpyAsync, 4000, REQUIRED)		\
X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, 3020, REQUIRED) \
X(cuMemsetD8Async, cuMemsetD8Async, cuMemsetD8Async, 3020, REQUIRED)	\
X(cuMemPrefetchAsync_v1, cuMemPrefetchAsync, cuMemPrefetchAsync, 8000, OPTIONAL) \
X(cuMemPrefetchAsync_v2, cuMemPrefetchAsync, cuMemPrefetchAsync_v2, 12020, OPTIONAL) \
X(cuMemAdvise_v1, cuMemAdvise, cuMemAdvise, 8000, OPTIONAL)		\
X(cuMemAdvise_v2, cuMemAdvise, cuMemAdvise_v2, 12020, OPTIONAL)		\
X(cuMemRangeGetAttribute, cuMemRangeGetAttribute, cuMemRangeGetAttribute, 8000, OPTIONAL) \
X(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, cuMemGetAllocationGranularity, 10020, OPTIONAL) \
X(cuMemAddressReserve, cuMemAddressReserve, cuMemAddressReserve, 10020, OPTIONAL) \
X(cuMemAddressFree, cuMemAddressFree, cuMemAddressFree, 10020, OPTIONAL) \
X(cuMemCreate, cuMemCreate, cuMemCreate, 10020, OPTIONAL)		\
X(cuMemRelease, cuMemRelease, cuMemRelease, 10020, OPTIONAL)		\
X(cuMemMap, cuMemMap, cuMemMap, 10020, OPTIONAL)			\
X(cuMemUnmap, cuMemUnmap, cuMemUnmap, 10020, OPTIONAL)			\
X(cuMemSetAccess, cuMemSetAccess, cuMemSetAccess, 10020, OPTIONAL)	\
X(cuMemExportToShareableHandle, cuMemExportToShareableHandle, cuMemExportToShareableHandle, 10020, OPTIONAL) \
X(cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, cuMemImportFromShareableHandle, 10020, OPTIONAL) \
X(cuMemAllocAsync, cuMemAllocAsync, cuMemAllocAsync, 11020, OPTIONAL)	\
X(cuMemFreeAsync, cuMemFreeAsync, cuMemFreeAsync, 11020, OPTIONAL)	\
X(cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync, 11020, OPTIONAL) \
X(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool, 11020, OPTIONAL) \
X(cuMemPoolCreate, cuMemPoolCreate, cuMemPoolCreate, 11020, OPTIONAL)	\
X(cuMemPoolDestroy, cuMemPoolDestroy, cuMemPoolDestroy, 11020, OPTIONAL) \
X(cuMemPoolTrimTo, cuMemPoolTrimTo, cuMemPoolTrimTo, 11020, OPTIONAL)	\
X(cuMemPoolSetAttribute, cuMemPoolSetAttribute, cuMemPoolSetAttribute, 11020, OPTIONAL) \
X(cuMemPoolGetAttribute, cuMemPoolGetAttribute, cuMemPoolGetAttribute, 11020, OPTIONAL)

/* From 12.8 and 13.0 on. */
#define HM_DRIVER_CALLS_13(X)						\
X(cuCheckpointProcessGetState, cuCheckpointProcessGetState, cuCheckpointProcessGetState, 12080, OPTIONAL) \
X(cuCheckpointProcessLock, cuCheckpointProcessLock, cuCheckpointProcessLock, 12080, OPTIONAL) \
X(cuCheckpointProcessCheckpoint, cuCheckpointProcessCheckpoint, cuCheckpointProcessCheckpoint, 12080, OPTIONAL) \
X(cuCheckpointProcessRestore, cuCheckpointProcessRestore, cuCheckpointProcessRestore, 12080, OPTIONAL) \
X(cuCheckpointProcessUnlock, cuCheckpointProcessUnlock, cuCheckpointProcessUnlock, 12080, OPTIONAL) \
X(cuMemPrefetchBatchAsync, cuMemPrefetchBatchAsync, cuMemPrefetchBatchAsync, 13000, OPTIONAL) \
X(cuMemDiscardBatchAsync, cuMemDiscardBatchAsync, cuMemDiscardBatchAsync, 13000, OPTIONAL)

#endif /* HETMEM_DRIVER_CALLS_H */
