// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The CUDA Runtime as far as PyTorch needs it to hold tensors: over the soft driver, without a
 * GPU. Memory, streams, events, copies, captures and graphs work. A kernel is launched
 * and does nothing, so only copies give a tensor contents.
 *
 * With LD_PRELOAD it takes the place of libcudart.so.13. A function that PyTorch calls and
 * this file lacks ends the process with its name.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda.h>
#include <cuda_runtime_api.h>

static _Thread_local cudaError_t last;
static _Thread_local int device;
static CUcontext contexts[16];

/* The library opens the soft driver, which has devices from then on. */
static void *open_soft(void)
{
	const char *path = getenv("HETMEM_LIBRARY");
	void *library = dlopen(path ? path : "libhetmem.so.0", RTLD_NOW), *soft, *hm;
	int (*open_library)(void **hm, const void *params);

	*(void **)&open_library = library ? dlsym(library, "hetmem_open") : NULL;
	if (!open_library || open_library(&hm, NULL))
		return NULL;
	soft = dlopen("libhetmem-soft.so", RTLD_NOW | RTLD_NOLOAD);
	return soft ? dlsym(soft, "cuGetProcAddress_v2") : NULL;
}

/* NULL: the soft driver has no such function. */
static void *lookup(const char *name, int version)
{
	static CUresult (*get)(const char *, void **, int, cuuint64_t,
			       CUdriverProcAddressQueryResult *);
	CUdriverProcAddressQueryResult status;
	void *fn = NULL;

	if (!get)
		get = (__typeof__(get))open_soft();
	return get && !get(name, &fn, version, 0, &status) ? fn : NULL;
}

static void *find(const char *name)
{
	void *fn = lookup(name, 13000);

	if (!fn) {
		fprintf(stderr, "cudart: the soft driver has no %s\n", name);
		abort();
	}
	return fn;
}

/* The soft driver's function @fn. */
#define CU(fn) (*(__typeof__(fn) *)find(#fn))

/* Results of the driver and of the runtime have the same numbers. */
static cudaError_t result(CUresult of)
{
	cudaError_t error = (cudaError_t)of;

	if (error && error != cudaErrorNotReady)
		last = error;
	return error;
}

/* The driver with the context of the thread's device. */
static cudaError_t enter(void)
{
	CUdevice handle;
	CUresult err;

	if (!contexts[device]) {
		err = CU(cuInit)(0);
		if (!err)
			err = CU(cuDeviceGet)(&handle, device);
		if (!err)
			err = CU(cuDevicePrimaryCtxRetain)(&contexts[device], handle);
		if (err)
			return result(err);
	}
	return result(CU(cuCtxSetCurrent)(contexts[device]));
}

#define ENTER()					\
	do {					\
		cudaError_t entered = enter();	\
						\
		if (entered)			\
			return entered;		\
	} while (0)

cudaError_t cudaGetLastError(void)
{
	cudaError_t error = last;

	last = cudaSuccess;
	return error;
}

cudaError_t cudaPeekAtLastError(void)
{
	return last;
}

const char *cudaGetErrorString(cudaError_t error)
{
	return error ? "an error of the soft driver" : "no error";
}

const char *cudaGetErrorName(cudaError_t error)
{
	return cudaGetErrorString(error);
}

/* Devices. */

cudaError_t cudaDriverGetVersion(int *version)
{
	*version = 13000;
	return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
	*version = 13000;
	return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
	CUresult err = CU(cuInit)(0);

	return result(err ? err : CU(cuDeviceGetCount)(count));
}

cudaError_t cudaGetDevice(int *out)
{
	*out = device;
	return cudaSuccess;
}

cudaError_t cudaSetDevice(int to)
{
	device = to;
	return enter();
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int of)
{
	size_t total;
	CUdevice handle;
	CUresult err = CU(cuInit)(0);

	if (!err)
		err = CU(cuDeviceGet)(&handle, of);
	if (!err)
		err = CU(cuDeviceTotalMem)(&total, handle);
	if (err)
		return result(err);
	memset(p, 0, sizeof(*p));
	strcpy(p->name, "soft");
	p->totalGlobalMem = total;
	p->major = 9;
	p->multiProcessorCount = 1;
	p->maxThreadsPerMultiProcessor = 2048;
	p->maxThreadsPerBlock = 1024;
	p->maxThreadsDim[0] = p->maxThreadsDim[1] = p->maxThreadsDim[2] = 1024;
	p->maxGridSize[0] = p->maxGridSize[1] = p->maxGridSize[2] = 65535;
	p->warpSize = 32;
	return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int of)
{
	CUdevice handle;
	CUresult err = CU(cuDeviceGet)(&handle, of);

	return result(err ? err : CU(cuDeviceGetAttribute)(value, (CUdevice_attribute)attribute,
							  handle));
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
	*least = *greatest = 0;
	return cudaSuccess;
}

/* Devices reach each other's memory where it is mapped for them. */
cudaError_t cudaDeviceCanAccessPeer(int *can, int of, int peer)
{
	*can = of != peer;
	return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags)
{
	(void)peer;
	(void)flags;
	return cudaSuccess;
}

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t *pool, int of)
{
	CUdevice handle;
	CUresult err = CU(cuDeviceGet)(&handle, of);

	return result(err ? err : CU(cuDeviceGetDefaultMemPool)(pool, handle));
}

cudaError_t cudaDeviceSynchronize(void)
{
	ENTER();
	return result(CU(cuCtxSynchronize)());
}

/* Memory. */

cudaError_t cudaMemGetInfo(size_t *room, size_t *total)
{
	ENTER();
	return result(CU(cuMemGetInfo)(room, total));
}

cudaError_t cudaMalloc(void **ptr, size_t size)
{
	ENTER();
	return result(CU(cuMemAlloc)((CUdeviceptr *)ptr, size));
}

cudaError_t cudaFree(void *ptr)
{
	ENTER();
	return ptr ? result(CU(cuMemFree)((CUdeviceptr)ptr)) : cudaSuccess;
}

cudaError_t cudaHostAlloc(void **ptr, size_t size, unsigned int flags)
{
	ENTER();
	return result(CU(cuMemHostAlloc)(ptr, size, flags));
}

cudaError_t cudaFreeHost(void *ptr)
{
	ENTER();
	return result(CU(cuMemFreeHost)(ptr));
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr)
{
	memset(attributes, 0, sizeof(*attributes));
	attributes->type = cudaMemoryTypeUnregistered;
	(void)ptr;
	return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t count, enum cudaMemcpyKind kind,
			    cudaStream_t stream)
{
	(void)kind;
	ENTER();
	return result(CU(cuMemcpyAsync)((CUdeviceptr)to, (CUdeviceptr)from, count, stream));
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t count, enum cudaMemcpyKind kind)
{
	cudaError_t error = cudaMemcpyAsync(to, from, count, kind, NULL);

	return error ? error : cudaStreamSynchronize(NULL);
}

cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
				size_t count, cudaStream_t stream)
{
	(void)to_device;
	(void)from_device;
	return cudaMemcpyAsync(to, from, count, cudaMemcpyDeviceToDevice, stream);
}

cudaError_t cudaMemsetAsync(void *ptr, int value, size_t count, cudaStream_t stream)
{
	ENTER();
	return result(CU(cuMemsetD8Async)((CUdeviceptr)ptr, value, count, stream));
}

/* Streams and events. */

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority)
{
	(void)priority;
	ENTER();
	return result(CU(cuStreamCreate)(stream, flags));
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
	ENTER();
	return result(CU(cuStreamDestroy)(stream));
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
	(void)stream;
	*priority = 0;
	return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
	ENTER();
	return result(CU(cuStreamQuery)(stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
	ENTER();
	return result(CU(cuStreamSynchronize)(stream));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int flags)
{
	ENTER();
	return result(CU(cuStreamWaitEvent)(stream, event, flags));
}

/* An event of another process is one of its own here: nothing waits for the other process. */
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
	ENTER();
	return result(CU(cuEventCreate)(event, flags & ~cudaEventInterprocess));
}

cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t *handle, cudaEvent_t event)
{
	(void)event;
	memset(handle, 0, sizeof(*handle));
	return cudaSuccess;
}

cudaError_t cudaIpcOpenEventHandle(cudaEvent_t *event, cudaIpcEventHandle_t handle)
{
	(void)handle;
	return cudaEventCreateWithFlags(event, cudaEventDisableTiming);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
	ENTER();
	return result(CU(cuEventDestroy)(event));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
	ENTER();
	return result(CU(cuEventRecord)(event, stream));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned int flags)
{
	(void)flags;
	return cudaEventRecord(event, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
	ENTER();
	return result(CU(cuEventQuery)(event));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
	ENTER();
	return result(CU(cuEventSynchronize)(event));
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
	ENTER();
	return result(CU(cuEventElapsedTime)(ms, start, end));
}

/* Captures. PyTorch asks for the number of a capture: here all of a stream have one. */

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
	return result(CU(cuThreadExchangeStreamCaptureMode)((CUstreamCaptureMode *)mode));
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, enum cudaStreamCaptureStatus *status)
{
	ENTER();
	return result(CU(cuStreamIsCapturing)(stream, (CUstreamCaptureStatus *)status));
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, enum cudaStreamCaptureMode mode)
{
	ENTER();
	return result(CU(cuStreamBeginCapture)(stream, (CUstreamCaptureMode)mode));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph)
{
	ENTER();
	return result(CU(cuStreamEndCapture)(stream, graph));
}

/* Set by tests. */
int fail_capture_info;

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
				     unsigned long long *id, cudaGraph_t *graph,
				     const cudaGraphNode_t **dependencies,
				     const cudaGraphEdgeData **edges, size_t *nr)
{
	(void)dependencies;
	(void)edges;
	(void)nr;
	/* CUDA refuses the legacy stream while a blocking stream is captured. */
	if (!stream && fail_capture_info)
		return cudaErrorStreamCaptureImplicit;
	if (id)
		*id = 1;
	if (graph)
		*graph = NULL;
	return cudaStreamIsCapturing(stream, status);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *nr)
{
	(void)graph;
	(void)nodes;
	*nr = 1;
	return cudaSuccess;
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *exec, cudaGraph_t graph,
					  unsigned long long flags)
{
	(void)flags;
	ENTER();
	return result(CU(cuGraphInstantiateWithFlags)(exec, graph, 0));
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
	return cudaGraphInstantiateWithFlags(exec, graph, flags);
}

/* PyTorch 2.12 and later ask for functions of the driver by it. */
cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **fn, unsigned int version,
					     unsigned long long flags,
					     enum cudaDriverEntryPointQueryResult *status)
{
	(void)flags;
	*fn = lookup(symbol, (int)version);
	if (status)
		*status = *fn ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
	return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
	ENTER();
	return result(CU(cuGraphLaunch)(exec, stream));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
	ENTER();
	return result(CU(cuGraphDestroy)(graph));
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
	ENTER();
	return result(CU(cuGraphExecDestroy)(exec));
}

cudaError_t cudaProfilerStart(void)
{
	return cudaSuccess;
}

cudaError_t cudaProfilerStop(void)
{
	return cudaSuccess;
}

/* Kernels. */

cudaError_t cudaLaunchKernel(const void *fn, dim3 grid, dim3 block, void **arguments,
			     size_t shared, cudaStream_t stream)
{
	(void)fn;
	(void)grid;
	(void)block;
	(void)arguments;
	(void)shared;
	(void)stream;
	return cudaSuccess;
}

/* The compiler's calls, which no header declares. */
void **__cudaRegisterFatBinary(void *binary);
void __cudaRegisterFatBinaryEnd(void **handle);
void __cudaUnregisterFatBinary(void **handle);
void __cudaRegisterFunction(void);
void __cudaRegisterVar(void);
char __cudaInitModule(void **handle);
unsigned int __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream);
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream);
cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *fn);
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
			       size_t shared, cudaStream_t stream);

void **__cudaRegisterFatBinary(void *binary)
{
	static void *handle;

	(void)binary;
	return &handle;
}

void __cudaRegisterFatBinaryEnd(void **handle)
{
	(void)handle;
}

void __cudaUnregisterFatBinary(void **handle)
{
	(void)handle;
}

void __cudaRegisterFunction(void)
{
}

void __cudaRegisterVar(void)
{
}

char __cudaInitModule(void **handle)
{
	(void)handle;
	return 1;
}

static _Thread_local struct {
	dim3 grid, block;
	size_t shared;
	void *stream;
} pushed;

unsigned int __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream)
{
	pushed.grid = grid;
	pushed.block = block;
	pushed.shared = shared;
	pushed.stream = stream;
	return 0;
}

cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
	*grid = pushed.grid;
	*block = pushed.block;
	*shared = pushed.shared;
	*(void **)stream = pushed.stream;
	return cudaSuccess;
}

cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *fn)
{
	*kernel = (cudaKernel_t)fn;
	return cudaSuccess;
}

cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void **arguments,
			       size_t shared, cudaStream_t stream)
{
	(void)kernel;
	return cudaLaunchKernel(NULL, grid, block, arguments, shared, stream);
}
