/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The functions of libcuda.so.1 that this object has as C functions, S() in calls.h, with the
 * driver's own types.
 */
#ifndef HETMEM_CUDA_PROTOTYPES_H
#define HETMEM_CUDA_PROTOTYPES_H

#include "driver/cuda_types.h"

/* CUDA_ARRAY_DESCRIPTOR */
struct hm_cuda_array_2d {
	size_t width;
	size_t height;
	int format;
	unsigned int channels;
};

/* CUDA_ARRAY3D_DESCRIPTOR */
struct hm_cuda_array_shape {
	size_t width;
	size_t height;
	size_t depth;
	int format;
	unsigned int channels;
	unsigned int flags;
};

/* CUDA_MEM_ALLOC_NODE_PARAMS */
struct hm_cuda_node_alloc {
	CUmemPoolProps pool;
	const CUmemAccessDesc *access;
	size_t nr_access;
	size_t bytes;
	CUdeviceptr ptr;
};

/* CUipcMemHandle */
struct hm_cuda_ipc_handle {
	char bytes[64];
};

/* reach.c */
CUresult cuGetProcAddress(const char *symbol, void **fn, int version, cuuint64_t flags);
CUresult cuGetProcAddress_v2(const char *symbol, void **fn, int version, cuuint64_t flags,
			     CUdriverProcAddressQueryResult *status);

/* world.c */
CUresult cuGetExportTable(const void **table, const CUuuid *id);

/* context.c */
CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice device);
CUresult cuDevicePrimaryCtxRelease(CUdevice device);
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device);
CUresult cuDevicePrimaryCtxReset(CUdevice device);
CUresult cuDevicePrimaryCtxReset_v2(CUdevice device);
CUresult cuStreamBeginCapture(CUstream stream);
CUresult cuStreamBeginCapture_ptsz(CUstream stream);
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode);
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode);
CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const void *nodes,
				     const void *edges, size_t nr, CUstreamCaptureMode mode);
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const void *nodes,
					  const void *edges, size_t nr, CUstreamCaptureMode mode);
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph);
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph);
CUresult cuStreamDestroy(CUstream stream);
CUresult cuStreamDestroy_v2(CUstream stream);

/* alloc.c */
CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t size);
CUresult cuMemAllocPitch_v2(CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height,
			    unsigned int element);
CUresult cuMemFree_v2(CUdeviceptr ptr);
CUresult cuMemGetInfo_v2(size_t *available, size_t *total);
CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr ptr);
CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr);
CUresult cuPointerGetAttributes(unsigned int nr, CUpointer_attribute *attributes, void **data,
				CUdeviceptr ptr);

/* async.c */
CUresult cuMemAllocAsync(CUdeviceptr *ptr, size_t size, CUstream stream);
CUresult cuMemAllocAsync_ptsz(CUdeviceptr *ptr, size_t size, CUstream stream);
CUresult cuMemAllocFromPoolAsync(CUdeviceptr *ptr, size_t size, CUmemoryPool pool,
				 CUstream stream);
CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *ptr, size_t size, CUmemoryPool pool,
				      CUstream stream);
CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream stream);
CUresult cuMemFreeAsync_ptsz(CUdeviceptr ptr, CUstream stream);
CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool);

/* charge.c */
CUresult cuMemAllocManaged(CUdeviceptr *ptr, size_t size, unsigned int flags);
CUresult cuCtxDestroy(CUcontext ctx);
CUresult cuCtxDestroy_v2(CUcontext ctx);

/* handle.c */
CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size,
		     const CUmemAllocationProp *prop, unsigned long long flags);
CUresult cuMemRelease(CUmemGenericAllocationHandle handle);
CUresult cuMemMap(CUdeviceptr ptr, size_t size, size_t offset,
		  CUmemGenericAllocationHandle handle, unsigned long long flags);
CUresult cuMemUnmap(CUdeviceptr ptr, size_t size);
CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *ptr);
CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle,
				      CUmemAllocationHandleType type, unsigned long long flags);
CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable,
					CUmemAllocationHandleType type);

/* array.c */
CUresult cuArrayCreate_v2(void **array, const struct hm_cuda_array_2d *desc);
CUresult cuArray3DCreate_v2(void **array, const struct hm_cuda_array_shape *desc);
CUresult cuArrayDestroy(void *array);
CUresult cuMipmappedArrayCreate(void **array, const struct hm_cuda_array_shape *desc,
				unsigned int levels);
CUresult cuMipmappedArrayDestroy(void *array);

/* pool.c */
CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value);
CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value);
CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep);

/* peer.c */
CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags);
CUresult cuCtxDisablePeerAccess(CUcontext peer);
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *desc, size_t count);

/* ipc.c */
CUresult cuIpcGetMemHandle(struct hm_cuda_ipc_handle *handle, CUdeviceptr ptr);
CUresult cuIpcOpenMemHandle(CUdeviceptr *ptr, struct hm_cuda_ipc_handle handle,
			    unsigned int flags);
CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *ptr, struct hm_cuda_ipc_handle handle,
			       unsigned int flags);
CUresult cuIpcCloseMemHandle(CUdeviceptr ptr);

/* graph.c */
CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, void *node, char *log, size_t size);
CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, void *node, char *log,
			       size_t size);
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags);
CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, void *params);
CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, void *params);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuGraphExecDestroy(CUgraphExec exec);
CUresult cuGraphAddMemAllocNode(void **node, CUgraph graph, void *const *deps, size_t nr,
				struct hm_cuda_node_alloc *params);
CUresult cuGraphAddMemFreeNode(void **node, CUgraph graph, void *const *deps, size_t nr,
			       CUdeviceptr ptr);

#endif /* HETMEM_CUDA_PROTOTYPES_H */
