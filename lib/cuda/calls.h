/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Every function that libcuda.so.1 exports, by its exported name, once, in the order of
 * strcmp(): S(name) has a function of the same name in this folder, P(name) passes through
 * a counted jump of entry.c. A function of a newer driver is not in the list: programs
 * reach it directly.
 */
#ifndef HETMEM_CUDA_CALLS_H
#define HETMEM_CUDA_CALLS_H

#define HM_CUDA_CALLS(P, S) \
P(cuArray3DCreate) S(cuArray3DCreate_v2) P(cuArray3DGetDescriptor) P(cuArray3DGetDescriptor_v2) \
P(cuArrayCreate) S(cuArrayCreate_v2) S(cuArrayDestroy) P(cuArrayGetDescriptor) \
P(cuArrayGetDescriptor_v2) P(cuArrayGetMemoryRequirements) P(cuArrayGetPlane) \
P(cuArrayGetSparseProperties) P(cuCheckpointProcessCheckpoint) \
P(cuCheckpointProcessGetRestoreThreadId) P(cuCheckpointProcessGetState) P(cuCheckpointProcessLock) \
P(cuCheckpointProcessRestore) P(cuCheckpointProcessUnlock) P(cuCoredumpGetAttribute) \
P(cuCoredumpGetAttributeGlobal) P(cuCoredumpSetAttribute) P(cuCoredumpSetAttributeGlobal) \
P(cuCtxAttach) P(cuCtxCreate) P(cuCtxCreate_v2) P(cuCtxCreate_v3) P(cuCtxCreate_v4) \
S(cuCtxDestroy) S(cuCtxDestroy_v2) P(cuCtxDetach) S(cuCtxDisablePeerAccess) \
S(cuCtxEnablePeerAccess) P(cuCtxFromGreenCtx) P(cuCtxGetApiVersion) P(cuCtxGetCacheConfig) \
P(cuCtxGetCurrent) P(cuCtxGetDevResource) P(cuCtxGetDevice) P(cuCtxGetDevice_v2) \
P(cuCtxGetExecAffinity) P(cuCtxGetFlags) P(cuCtxGetId) P(cuCtxGetLimit) P(cuCtxGetSharedMemConfig) \
P(cuCtxGetStreamPriorityRange) P(cuCtxPopCurrent) P(cuCtxPopCurrent_v2) P(cuCtxPushCurrent) \
P(cuCtxPushCurrent_v2) P(cuCtxRecordEvent) P(cuCtxResetPersistingL2Cache) P(cuCtxSetCacheConfig) \
P(cuCtxSetCurrent) P(cuCtxSetFlags) P(cuCtxSetLimit) P(cuCtxSetSharedMemConfig) \
P(cuCtxSynchronize) P(cuCtxSynchronize_v2) P(cuCtxWaitEvent) P(cuDestroyExternalMemory) \
P(cuDestroyExternalSemaphore) P(cuDevResourceGenerateDesc) P(cuDevSmResourceSplitByCount) \
P(cuDeviceCanAccessPeer) P(cuDeviceComputeCapability) P(cuDeviceGet) P(cuDeviceGetAttribute) \
P(cuDeviceGetByPCIBusId) P(cuDeviceGetCount) P(cuDeviceGetDefaultMemPool) \
P(cuDeviceGetDevResource) P(cuDeviceGetExecAffinitySupport) P(cuDeviceGetGraphMemAttribute) \
P(cuDeviceGetHostAtomicCapabilities) P(cuDeviceGetLuid) P(cuDeviceGetMemPool) P(cuDeviceGetName) \
P(cuDeviceGetNvSciSyncAttributes) P(cuDeviceGetP2PAtomicCapabilities) P(cuDeviceGetP2PAttribute) \
P(cuDeviceGetPCIBusId) P(cuDeviceGetProperties) P(cuDeviceGetTexture1DLinearMaxWidth) \
P(cuDeviceGetUuid) P(cuDeviceGetUuid_v2) P(cuDeviceGraphMemTrim) P(cuDevicePrimaryCtxGetState) \
S(cuDevicePrimaryCtxRelease) S(cuDevicePrimaryCtxRelease_v2) S(cuDevicePrimaryCtxReset) \
S(cuDevicePrimaryCtxReset_v2) S(cuDevicePrimaryCtxRetain) P(cuDevicePrimaryCtxSetFlags) \
P(cuDevicePrimaryCtxSetFlags_v2) P(cuDeviceRegisterAsyncNotification) \
P(cuDeviceSetGraphMemAttribute) S(cuDeviceSetMemPool) P(cuDeviceTotalMem) P(cuDeviceTotalMem_v2) \
P(cuDeviceUnregisterAsyncNotification) P(cuDriverGetVersion) P(cuEGLApiInit) \
P(cuEGLStreamConsumerAcquireFrame) P(cuEGLStreamConsumerConnect) \
P(cuEGLStreamConsumerConnectWithFlags) P(cuEGLStreamConsumerDisconnect) \
P(cuEGLStreamConsumerReleaseFrame) P(cuEGLStreamProducerConnect) P(cuEGLStreamProducerDisconnect) \
P(cuEGLStreamProducerPresentFrame) P(cuEGLStreamProducerReturnFrame) P(cuEventCreate) \
P(cuEventDestroy) P(cuEventDestroy_v2) P(cuEventElapsedTime) P(cuEventElapsedTime_v2) \
P(cuEventQuery) P(cuEventRecord) P(cuEventRecordWithFlags) P(cuEventRecordWithFlags_ptsz) \
P(cuEventRecord_ptsz) P(cuEventSynchronize) P(cuExternalMemoryGetMappedBuffer) \
P(cuExternalMemoryGetMappedMipmappedArray) P(cuFlushGPUDirectRDMAWrites) P(cuFuncGetAttribute) \
P(cuFuncGetModule) P(cuFuncGetName) P(cuFuncGetParamInfo) P(cuFuncIsLoaded) P(cuFuncLoad) \
P(cuFuncSetAttribute) P(cuFuncSetBlockShape) P(cuFuncSetCacheConfig) P(cuFuncSetSharedMemConfig) \
P(cuFuncSetSharedSize) P(cuGLCtxCreate) P(cuGLCtxCreate_v2) P(cuGLGetDevices) P(cuGLGetDevices_v2) \
P(cuGLInit) P(cuGLMapBufferObject) P(cuGLMapBufferObjectAsync) P(cuGLMapBufferObjectAsync_v2) \
P(cuGLMapBufferObjectAsync_v2_ptsz) P(cuGLMapBufferObject_v2) P(cuGLMapBufferObject_v2_ptds) \
P(cuGLRegisterBufferObject) P(cuGLSetBufferObjectMapFlags) P(cuGLUnmapBufferObject) \
P(cuGLUnmapBufferObjectAsync) P(cuGLUnregisterBufferObject) P(cuGetErrorName) P(cuGetErrorString) \
S(cuGetExportTable) S(cuGetProcAddress) S(cuGetProcAddress_v2) P(cuGraphAddBatchMemOpNode) \
P(cuGraphAddChildGraphNode) P(cuGraphAddDependencies) P(cuGraphAddDependencies_v2) \
P(cuGraphAddEmptyNode) P(cuGraphAddEventRecordNode) P(cuGraphAddEventWaitNode) \
P(cuGraphAddExternalSemaphoresSignalNode) P(cuGraphAddExternalSemaphoresWaitNode) \
P(cuGraphAddHostNode) P(cuGraphAddKernelNode) P(cuGraphAddKernelNode_v2) S(cuGraphAddMemAllocNode) \
S(cuGraphAddMemFreeNode) P(cuGraphAddMemcpyNode) P(cuGraphAddMemsetNode) P(cuGraphAddNode) \
P(cuGraphAddNode_v2) P(cuGraphBatchMemOpNodeGetParams) P(cuGraphBatchMemOpNodeSetParams) \
P(cuGraphChildGraphNodeGetGraph) P(cuGraphClone) P(cuGraphConditionalHandleCreate) \
P(cuGraphCreate) P(cuGraphDebugDotPrint) S(cuGraphDestroy) P(cuGraphDestroyNode) \
P(cuGraphEventRecordNodeGetEvent) P(cuGraphEventRecordNodeSetEvent) \
P(cuGraphEventWaitNodeGetEvent) P(cuGraphEventWaitNodeSetEvent) \
P(cuGraphExecBatchMemOpNodeSetParams) P(cuGraphExecChildGraphNodeSetParams) S(cuGraphExecDestroy) \
P(cuGraphExecEventRecordNodeSetEvent) P(cuGraphExecEventWaitNodeSetEvent) \
P(cuGraphExecExternalSemaphoresSignalNodeSetParams) \
P(cuGraphExecExternalSemaphoresWaitNodeSetParams) P(cuGraphExecGetFlags) \
P(cuGraphExecHostNodeSetParams) P(cuGraphExecKernelNodeSetParams) \
P(cuGraphExecKernelNodeSetParams_v2) P(cuGraphExecMemcpyNodeSetParams) \
P(cuGraphExecMemsetNodeSetParams) P(cuGraphExecNodeSetParams) P(cuGraphExecUpdate) \
P(cuGraphExecUpdate_v2) P(cuGraphExternalSemaphoresSignalNodeGetParams) \
P(cuGraphExternalSemaphoresSignalNodeSetParams) P(cuGraphExternalSemaphoresWaitNodeGetParams) \
P(cuGraphExternalSemaphoresWaitNodeSetParams) P(cuGraphGetEdges) P(cuGraphGetEdges_v2) \
P(cuGraphGetNodes) P(cuGraphGetRootNodes) P(cuGraphHostNodeGetParams) P(cuGraphHostNodeSetParams) \
S(cuGraphInstantiate) S(cuGraphInstantiateWithFlags) S(cuGraphInstantiateWithParams) \
S(cuGraphInstantiateWithParams_ptsz) S(cuGraphInstantiate_v2) P(cuGraphKernelNodeCopyAttributes) \
P(cuGraphKernelNodeGetAttribute) P(cuGraphKernelNodeGetParams) P(cuGraphKernelNodeGetParams_v2) \
P(cuGraphKernelNodeSetAttribute) P(cuGraphKernelNodeSetParams) P(cuGraphKernelNodeSetParams_v2) \
P(cuGraphLaunch) P(cuGraphLaunch_ptsz) P(cuGraphMemAllocNodeGetParams) \
P(cuGraphMemFreeNodeGetParams) P(cuGraphMemcpyNodeGetParams) P(cuGraphMemcpyNodeSetParams) \
P(cuGraphMemsetNodeGetParams) P(cuGraphMemsetNodeSetParams) P(cuGraphNodeFindInClone) \
P(cuGraphNodeGetDependencies) P(cuGraphNodeGetDependencies_v2) P(cuGraphNodeGetDependentNodes) \
P(cuGraphNodeGetDependentNodes_v2) P(cuGraphNodeGetEnabled) P(cuGraphNodeGetType) \
P(cuGraphNodeSetEnabled) P(cuGraphNodeSetParams) P(cuGraphReleaseUserObject) \
P(cuGraphRemoveDependencies) P(cuGraphRemoveDependencies_v2) P(cuGraphRetainUserObject) \
P(cuGraphUpload) P(cuGraphUpload_ptsz) P(cuGraphicsEGLRegisterImage) P(cuGraphicsGLRegisterBuffer) \
P(cuGraphicsGLRegisterImage) P(cuGraphicsMapResources) P(cuGraphicsMapResources_ptsz) \
P(cuGraphicsResourceGetMappedEglFrame) P(cuGraphicsResourceGetMappedMipmappedArray) \
P(cuGraphicsResourceGetMappedPointer) P(cuGraphicsResourceGetMappedPointer_v2) \
P(cuGraphicsResourceSetMapFlags) P(cuGraphicsResourceSetMapFlags_v2) \
P(cuGraphicsSubResourceGetMappedArray) P(cuGraphicsUnmapResources) \
P(cuGraphicsUnmapResources_ptsz) P(cuGraphicsUnregisterResource) \
P(cuGraphicsVDPAURegisterOutputSurface) P(cuGraphicsVDPAURegisterVideoSurface) P(cuGreenCtxCreate) \
P(cuGreenCtxDestroy) P(cuGreenCtxGetDevResource) P(cuGreenCtxGetId) P(cuGreenCtxRecordEvent) \
P(cuGreenCtxStreamCreate) P(cuGreenCtxWaitEvent) P(cuImportExternalMemory) \
P(cuImportExternalSemaphore) P(cuInit) S(cuIpcCloseMemHandle) P(cuIpcGetEventHandle) \
S(cuIpcGetMemHandle) P(cuIpcOpenEventHandle) S(cuIpcOpenMemHandle) S(cuIpcOpenMemHandle_v2) \
P(cuKernelGetAttribute) P(cuKernelGetFunction) P(cuKernelGetLibrary) P(cuKernelGetName) \
P(cuKernelGetParamInfo) P(cuKernelSetAttribute) P(cuKernelSetCacheConfig) P(cuLaunch) \
P(cuLaunchCooperativeKernel) P(cuLaunchCooperativeKernelMultiDevice) \
P(cuLaunchCooperativeKernel_ptsz) P(cuLaunchGrid) P(cuLaunchGridAsync) P(cuLaunchHostFunc) \
P(cuLaunchHostFunc_ptsz) P(cuLaunchKernel) P(cuLaunchKernelEx) P(cuLaunchKernelEx_ptsz) \
P(cuLaunchKernel_ptsz) P(cuLibraryEnumerateKernels) P(cuLibraryGetGlobal) P(cuLibraryGetKernel) \
P(cuLibraryGetKernelCount) P(cuLibraryGetManaged) P(cuLibraryGetModule) \
P(cuLibraryGetUnifiedFunction) P(cuLibraryLoadData) P(cuLibraryLoadFromFile) P(cuLibraryUnload) \
P(cuLinkAddData) P(cuLinkAddData_v2) P(cuLinkAddFile) P(cuLinkAddFile_v2) P(cuLinkComplete) \
P(cuLinkCreate) P(cuLinkCreate_v2) P(cuLinkDestroy) P(cuLogsCurrent) P(cuLogsDumpToFile) \
P(cuLogsDumpToMemory) P(cuLogsRegisterCallback) P(cuLogsUnregisterCallback) P(cuMemAddressFree) \
P(cuMemAddressReserve) P(cuMemAdvise) P(cuMemAdvise_v2) P(cuMemAlloc) S(cuMemAllocAsync) \
S(cuMemAllocAsync_ptsz) S(cuMemAllocFromPoolAsync) S(cuMemAllocFromPoolAsync_ptsz) \
P(cuMemAllocHost) P(cuMemAllocHost_v2) S(cuMemAllocManaged) P(cuMemAllocPitch) \
S(cuMemAllocPitch_v2) S(cuMemAlloc_v2) P(cuMemBatchDecompressAsync) \
P(cuMemBatchDecompressAsync_ptsz) S(cuMemCreate) P(cuMemDiscardAndPrefetchBatchAsync) \
P(cuMemDiscardAndPrefetchBatchAsync_ptsz) P(cuMemDiscardBatchAsync) P(cuMemDiscardBatchAsync_ptsz) \
S(cuMemExportToShareableHandle) P(cuMemFree) S(cuMemFreeAsync) S(cuMemFreeAsync_ptsz) \
P(cuMemFreeHost) S(cuMemFree_v2) P(cuMemGetAccess) P(cuMemGetAddressRange) \
S(cuMemGetAddressRange_v2) P(cuMemGetAllocationGranularity) \
P(cuMemGetAllocationPropertiesFromHandle) P(cuMemGetAttribute) P(cuMemGetAttribute_v2) \
P(cuMemGetDefaultMemPool) P(cuMemGetHandleForAddressRange) P(cuMemGetInfo) S(cuMemGetInfo_v2) \
P(cuMemGetMemPool) P(cuMemHostAlloc) P(cuMemHostGetDevicePointer) P(cuMemHostGetDevicePointer_v2) \
P(cuMemHostGetFlags) P(cuMemHostRegister) P(cuMemHostRegister_v2) P(cuMemHostUnregister) \
S(cuMemImportFromShareableHandle) S(cuMemMap) P(cuMemMapArrayAsync) P(cuMemMapArrayAsync_ptsz) \
P(cuMemPoolCreate) P(cuMemPoolDestroy) P(cuMemPoolExportPointer) \
P(cuMemPoolExportToShareableHandle) P(cuMemPoolGetAccess) S(cuMemPoolGetAttribute) \
P(cuMemPoolImportFromShareableHandle) P(cuMemPoolImportPointer) S(cuMemPoolSetAccess) \
S(cuMemPoolSetAttribute) S(cuMemPoolTrimTo) P(cuMemPrefetchAsync) P(cuMemPrefetchAsync_ptsz) \
P(cuMemPrefetchAsync_v2) P(cuMemPrefetchAsync_v2_ptsz) P(cuMemPrefetchBatchAsync) \
P(cuMemPrefetchBatchAsync_ptsz) P(cuMemRangeGetAttribute) P(cuMemRangeGetAttributes) \
S(cuMemRelease) S(cuMemRetainAllocationHandle) P(cuMemSetAccess) P(cuMemSetMemPool) S(cuMemUnmap) \
P(cuMemcpy) P(cuMemcpy2D) P(cuMemcpy2DAsync) P(cuMemcpy2DAsync_v2) P(cuMemcpy2DAsync_v2_ptsz) \
P(cuMemcpy2DUnaligned) P(cuMemcpy2DUnaligned_v2) P(cuMemcpy2DUnaligned_v2_ptds) P(cuMemcpy2D_v2) \
P(cuMemcpy2D_v2_ptds) P(cuMemcpy3D) P(cuMemcpy3DAsync) P(cuMemcpy3DAsync_v2) \
P(cuMemcpy3DAsync_v2_ptsz) P(cuMemcpy3DBatchAsync) P(cuMemcpy3DBatchAsync_ptsz) \
P(cuMemcpy3DBatchAsync_v2) P(cuMemcpy3DBatchAsync_v2_ptsz) P(cuMemcpy3DPeer) \
P(cuMemcpy3DPeerAsync) P(cuMemcpy3DPeerAsync_ptsz) P(cuMemcpy3DPeer_ptds) P(cuMemcpy3D_v2) \
P(cuMemcpy3D_v2_ptds) P(cuMemcpyAsync) P(cuMemcpyAsync_ptsz) P(cuMemcpyAtoA) P(cuMemcpyAtoA_v2) \
P(cuMemcpyAtoA_v2_ptds) P(cuMemcpyAtoD) P(cuMemcpyAtoD_v2) P(cuMemcpyAtoD_v2_ptds) P(cuMemcpyAtoH) \
P(cuMemcpyAtoHAsync) P(cuMemcpyAtoHAsync_v2) P(cuMemcpyAtoHAsync_v2_ptsz) P(cuMemcpyAtoH_v2) \
P(cuMemcpyAtoH_v2_ptds) P(cuMemcpyBatchAsync) P(cuMemcpyBatchAsync_ptsz) P(cuMemcpyBatchAsync_v2) \
P(cuMemcpyBatchAsync_v2_ptsz) P(cuMemcpyDtoA) P(cuMemcpyDtoA_v2) P(cuMemcpyDtoA_v2_ptds) \
P(cuMemcpyDtoD) P(cuMemcpyDtoDAsync) P(cuMemcpyDtoDAsync_v2) P(cuMemcpyDtoDAsync_v2_ptsz) \
P(cuMemcpyDtoD_v2) P(cuMemcpyDtoD_v2_ptds) P(cuMemcpyDtoH) P(cuMemcpyDtoHAsync) \
P(cuMemcpyDtoHAsync_v2) P(cuMemcpyDtoHAsync_v2_ptsz) P(cuMemcpyDtoH_v2) P(cuMemcpyDtoH_v2_ptds) \
P(cuMemcpyHtoA) P(cuMemcpyHtoAAsync) P(cuMemcpyHtoAAsync_v2) P(cuMemcpyHtoAAsync_v2_ptsz) \
P(cuMemcpyHtoA_v2) P(cuMemcpyHtoA_v2_ptds) P(cuMemcpyHtoD) P(cuMemcpyHtoDAsync) \
P(cuMemcpyHtoDAsync_v2) P(cuMemcpyHtoDAsync_v2_ptsz) P(cuMemcpyHtoD_v2) P(cuMemcpyHtoD_v2_ptds) \
P(cuMemcpyPeer) P(cuMemcpyPeerAsync) P(cuMemcpyPeerAsync_ptsz) P(cuMemcpyPeer_ptds) \
P(cuMemcpy_ptds) P(cuMemsetD16) P(cuMemsetD16Async) P(cuMemsetD16Async_ptsz) P(cuMemsetD16_v2) \
P(cuMemsetD16_v2_ptds) P(cuMemsetD2D16) P(cuMemsetD2D16Async) P(cuMemsetD2D16Async_ptsz) \
P(cuMemsetD2D16_v2) P(cuMemsetD2D16_v2_ptds) P(cuMemsetD2D32) P(cuMemsetD2D32Async) \
P(cuMemsetD2D32Async_ptsz) P(cuMemsetD2D32_v2) P(cuMemsetD2D32_v2_ptds) P(cuMemsetD2D8) \
P(cuMemsetD2D8Async) P(cuMemsetD2D8Async_ptsz) P(cuMemsetD2D8_v2) P(cuMemsetD2D8_v2_ptds) \
P(cuMemsetD32) P(cuMemsetD32Async) P(cuMemsetD32Async_ptsz) P(cuMemsetD32_v2) \
P(cuMemsetD32_v2_ptds) P(cuMemsetD8) P(cuMemsetD8Async) P(cuMemsetD8Async_ptsz) P(cuMemsetD8_v2) \
P(cuMemsetD8_v2_ptds) S(cuMipmappedArrayCreate) S(cuMipmappedArrayDestroy) \
P(cuMipmappedArrayGetLevel) P(cuMipmappedArrayGetMemoryRequirements) \
P(cuMipmappedArrayGetSparseProperties) P(cuModuleEnumerateFunctions) P(cuModuleGetFunction) \
P(cuModuleGetFunctionCount) P(cuModuleGetGlobal) P(cuModuleGetGlobal_v2) P(cuModuleGetLoadingMode) \
P(cuModuleGetSurfRef) P(cuModuleGetTexRef) P(cuModuleLoad) P(cuModuleLoadData) \
P(cuModuleLoadDataEx) P(cuModuleLoadFatBinary) P(cuModuleUnload) P(cuMulticastAddDevice) \
P(cuMulticastBindAddr) P(cuMulticastBindMem) P(cuMulticastCreate) P(cuMulticastGetGranularity) \
P(cuMulticastUnbind) P(cuOccupancyAvailableDynamicSMemPerBlock) \
P(cuOccupancyMaxActiveBlocksPerMultiprocessor) \
P(cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags) P(cuOccupancyMaxActiveClusters) \
P(cuOccupancyMaxPotentialBlockSize) P(cuOccupancyMaxPotentialBlockSizeWithFlags) \
P(cuOccupancyMaxPotentialClusterSize) P(cuParamSetSize) P(cuParamSetTexRef) P(cuParamSetf) \
P(cuParamSeti) P(cuParamSetv) S(cuPointerGetAttribute) S(cuPointerGetAttributes) \
P(cuPointerSetAttribute) P(cuProfilerInitialize) P(cuProfilerStart) P(cuProfilerStop) \
P(cuSignalExternalSemaphoresAsync) P(cuSignalExternalSemaphoresAsync_ptsz) P(cuStreamAddCallback) \
P(cuStreamAddCallback_ptsz) P(cuStreamAttachMemAsync) P(cuStreamAttachMemAsync_ptsz) \
P(cuStreamBatchMemOp) P(cuStreamBatchMemOp_ptsz) P(cuStreamBatchMemOp_v2) \
P(cuStreamBatchMemOp_v2_ptsz) S(cuStreamBeginCapture) S(cuStreamBeginCaptureToGraph) \
S(cuStreamBeginCaptureToGraph_ptsz) S(cuStreamBeginCapture_ptsz) S(cuStreamBeginCapture_v2) \
S(cuStreamBeginCapture_v2_ptsz) P(cuStreamCopyAttributes) P(cuStreamCopyAttributes_ptsz) \
P(cuStreamCreate) P(cuStreamCreateWithPriority) S(cuStreamDestroy) S(cuStreamDestroy_v2) \
S(cuStreamEndCapture) S(cuStreamEndCapture_ptsz) P(cuStreamGetAttribute) \
P(cuStreamGetAttribute_ptsz) P(cuStreamGetCaptureInfo) P(cuStreamGetCaptureInfo_ptsz) \
P(cuStreamGetCaptureInfo_v2) P(cuStreamGetCaptureInfo_v2_ptsz) P(cuStreamGetCaptureInfo_v3) \
P(cuStreamGetCaptureInfo_v3_ptsz) P(cuStreamGetCtx) P(cuStreamGetCtx_ptsz) P(cuStreamGetCtx_v2) \
P(cuStreamGetCtx_v2_ptsz) P(cuStreamGetDevice) P(cuStreamGetDevice_ptsz) P(cuStreamGetFlags) \
P(cuStreamGetFlags_ptsz) P(cuStreamGetGreenCtx) P(cuStreamGetId) P(cuStreamGetId_ptsz) \
P(cuStreamGetPriority) P(cuStreamGetPriority_ptsz) P(cuStreamIsCapturing) \
P(cuStreamIsCapturing_ptsz) P(cuStreamQuery) P(cuStreamQuery_ptsz) P(cuStreamSetAttribute) \
P(cuStreamSetAttribute_ptsz) P(cuStreamSynchronize) P(cuStreamSynchronize_ptsz) \
P(cuStreamUpdateCaptureDependencies) P(cuStreamUpdateCaptureDependencies_ptsz) \
P(cuStreamUpdateCaptureDependencies_v2) P(cuStreamUpdateCaptureDependencies_v2_ptsz) \
P(cuStreamWaitEvent) P(cuStreamWaitEvent_ptsz) P(cuStreamWaitValue32) P(cuStreamWaitValue32_ptsz) \
P(cuStreamWaitValue32_v2) P(cuStreamWaitValue32_v2_ptsz) P(cuStreamWaitValue64) \
P(cuStreamWaitValue64_ptsz) P(cuStreamWaitValue64_v2) P(cuStreamWaitValue64_v2_ptsz) \
P(cuStreamWriteValue32) P(cuStreamWriteValue32_ptsz) P(cuStreamWriteValue32_v2) \
P(cuStreamWriteValue32_v2_ptsz) P(cuStreamWriteValue64) P(cuStreamWriteValue64_ptsz) \
P(cuStreamWriteValue64_v2) P(cuStreamWriteValue64_v2_ptsz) P(cuSurfObjectCreate) \
P(cuSurfObjectDestroy) P(cuSurfObjectGetResourceDesc) P(cuSurfRefGetArray) P(cuSurfRefSetArray) \
P(cuTensorMapEncodeIm2col) P(cuTensorMapEncodeIm2colWide) P(cuTensorMapEncodeTiled) \
P(cuTensorMapReplaceAddress) P(cuTexObjectCreate) P(cuTexObjectDestroy) \
P(cuTexObjectGetResourceDesc) P(cuTexObjectGetResourceViewDesc) P(cuTexObjectGetTextureDesc) \
P(cuTexRefCreate) P(cuTexRefDestroy) P(cuTexRefGetAddress) P(cuTexRefGetAddressMode) \
P(cuTexRefGetAddress_v2) P(cuTexRefGetArray) P(cuTexRefGetBorderColor) P(cuTexRefGetFilterMode) \
P(cuTexRefGetFlags) P(cuTexRefGetFormat) P(cuTexRefGetMaxAnisotropy) \
P(cuTexRefGetMipmapFilterMode) P(cuTexRefGetMipmapLevelBias) P(cuTexRefGetMipmapLevelClamp) \
P(cuTexRefGetMipmappedArray) P(cuTexRefSetAddress) P(cuTexRefSetAddress2D) \
P(cuTexRefSetAddress2D_v2) P(cuTexRefSetAddress2D_v3) P(cuTexRefSetAddressMode) \
P(cuTexRefSetAddress_v2) P(cuTexRefSetArray) P(cuTexRefSetBorderColor) P(cuTexRefSetFilterMode) \
P(cuTexRefSetFlags) P(cuTexRefSetFormat) P(cuTexRefSetMaxAnisotropy) \
P(cuTexRefSetMipmapFilterMode) P(cuTexRefSetMipmapLevelBias) P(cuTexRefSetMipmapLevelClamp) \
P(cuTexRefSetMipmappedArray) P(cuThreadExchangeStreamCaptureMode) P(cuUserObjectCreate) \
P(cuUserObjectRelease) P(cuUserObjectRetain) P(cuVDPAUCtxCreate) P(cuVDPAUCtxCreate_v2) \
P(cuVDPAUGetDevice) P(cuWaitExternalSemaphoresAsync) P(cuWaitExternalSemaphoresAsync_ptsz)

#endif /* HETMEM_CUDA_CALLS_H */
