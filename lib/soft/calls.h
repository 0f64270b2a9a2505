/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The Driver API as programs see it: what the library calls (driver/calls.h),
 * and what only programs call, which the soft driver has for them: captures,
 * graphs, questions, advice. Tests play such programs.
 */
#ifndef HETMEM_SOFT_CALLS_H
#define HETMEM_SOFT_CALLS_H

#include "driver/calls.h"
#include "driver/driver.h"

#define HM_PROGRAM_CALLS(X)	HM_PROGRAM_CALLS_12(X) HM_PROGRAM_CALLS_13(X)

/* In the toolkit's cuda.h from 12.2 on. */
#define HM_PROGRAM_CALLS_12(X)						\
X(cuStreamBeginCapture, cuStreamBeginCapture, cuStreamBeginCapture_v2, 10010, OPTIONAL) \
X(cuStreamEndCapture, cuStreamEndCapture, cuStreamEndCapture, 10000, OPTIONAL) \
X(cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, cuGraphInstantiateWithFlags, 11040, OPTIONAL) \
X(cuGraphLaunch, cuGraphLaunch, cuGraphLaunch, 10000, OPTIONAL)		\
X(cuGraphExecDestroy, cuGraphExecDestroy, cuGraphExecDestroy, 10000, OPTIONAL) \
X(cuGraphDestroy, cuGraphDestroy, cuGraphDestroy, 10000, OPTIONAL)	\
X(cuEventElapsedTime, cuEventElapsedTime, cuEventElapsedTime, 2000, REQUIRED) \
X(cuMemGetAddressRange, cuMemGetAddressRange, cuMemGetAddressRange_v2, 3020, REQUIRED) \
X(cuPointerGetAttribute, cuPointerGetAttribute, cuPointerGetAttribute, 4000, REQUIRED) \
X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2, 3020, REQUIRED) \
X(cuMemsetD32Async, cuMemsetD32Async, cuMemsetD32Async, 3020, REQUIRED) \
X(cuMemGetAccess, cuMemGetAccess, cuMemGetAccess, 10020, OPTIONAL) \
X(cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, cuMemRetainAllocationHandle, 11000, OPTIONAL)

/* From 13.0 on. */
#define HM_PROGRAM_CALLS_13(X)						\
X(cuMemDiscardAndPrefetchBatchAsync, cuMemDiscardAndPrefetchBatchAsync, cuMemDiscardAndPrefetchBatchAsync, 13000, OPTIONAL)

struct hm_api {
#define CALL(member, base, symbol, version, need)			\
	__typeof__(((struct hm_driver *)0)->member) member;
	HM_DRIVER_CALLS(CALL)
#undef CALL

	/*
	 * pre:  Begin: not the legacy stream; End: the stream of Begin, and
	 *	 what joined its capture has come back to it.
	 * post: in between, work of the stream and of those that wait for it
	 *	 is put into a graph and not done. IsCapturing is legal then.
	 * STREAM_CAPTURE_UNSUPPORTED, and the capture is invalid: in every mode
	 * GetId, Query, Synchronize, prefetch and GraphLaunch of a captured
	 * stream, and cuCtxSynchronize(); and what is unsafe, by the capturing
	 * thread and in GLOBAL mode by any other, except threads in RELAXED
	 * mode. Unsafe are allocating and freeing as a whole, registering,
	 * memory pools (and their memory, on streams that do not capture),
	 * asking or waiting for any event or stream, advice, making and
	 * destroying executables; reserving, creating and mapping are not.
	 * STREAM_CAPTURE_IMPLICIT: the legacy stream, while one that it would
	 * wait for is captured; IsCapturing says it and does no harm.
	 */
	CUresult (*cuStreamBeginCapture)(CUstream stream,
					 CUstreamCaptureMode mode);
	CUresult (*cuStreamEndCapture)(CUstream stream, CUgraph *graph);

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
	 * pre:  both recorded, none made with CU_EVENT_DISABLE_TIMING.
	 * post: milliseconds between the two points, negative if reversed.
	 * CUDA_ERROR_NOT_READY: one is pending.
	 */
	CUresult (*cuEventElapsedTime)(float *ms, CUevent start, CUevent end);

	/*
	 * pre:  memory that the driver knows; base or size may be NULL.
	 * post: the allocation or mapping around ptr.
	 */
	CUresult (*cuMemGetAddressRange)(CUdeviceptr *base, size_t *size,
					 CUdeviceptr ptr);

	/*
	 * pre:  data is of the attribute's type.
	 * post: INVALID_VALUE for memory the driver does not know.
	 */
	CUresult (*cuPointerGetAttribute)(void *data,
					  CUpointer_attribute attribute,
					  CUdeviceptr ptr);

	/*
	 * pre:  as cuMemcpyAsync(); D32: dst is aligned to 4, n counts values.
	 * post: as there.
	 */
	CUresult (*cuMemcpyDtoDAsync)(CUdeviceptr dst, CUdeviceptr src,
				      size_t size, CUstream stream);
	CUresult (*cuMemsetD32Async)(CUdeviceptr dst, unsigned int value,
				     size_t n, CUstream stream);

	/*
	 * pre:  mapped by cuMemMap().
	 * post: enum CUmemAccess_flags of the location.
	 */
	CUresult (*cuMemGetAccess)(unsigned long long *flags,
				   const CUmemLocation *location,
				   CUdeviceptr ptr);

	/*
	 * pre:  ptr is mapped by cuMemMap().
	 * post: a handle of the memory there, which needs a cuMemRelease().
	 */
	CUresult (*cuMemRetainAllocationHandle)(CUmemGenericAllocationHandle *handle,
						void *ptr);

	/* A discard and a prefetch of each, see driver/place_calls.h. */
	CUresult (*cuMemDiscardAndPrefetchBatchAsync)(CUdeviceptr *ptrs,
						      size_t *sizes,
						      size_t count,
						      CUmemLocation *locations,
						      size_t *first,
						      size_t nr_locations,
						      unsigned long long flags,
						      CUstream stream);
};

#endif /* HETMEM_SOFT_CALLS_H */
