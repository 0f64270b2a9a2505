// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* runtime [ipc | open HANDLE]: every allocation call of CUDA's runtime, streams, graphs. */
#include <cuda_runtime_api.h>

#include "sample.h"

static unsigned char host[8 * MIB];
static cudaStream_t stream;

static unsigned long long contents(const void *p, size_t size)
{
	memset(host, 0, size);
	if (cudaMemcpyAsync(host, p, size, cudaMemcpyDefault, stream) || cudaStreamSynchronize(stream))
		return 0;
	return sum(host, size);
}

static void plain(void)
{
	static const size_t sizes[] = { 1, 511, 4096, MIB, 3 * MIB + 1 };
	size_t i, pitch = 0;
	void *p;

	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		step("cudaMalloc", cudaMalloc(&p, sizes[i]), (size_t)p % 256);
		step("cudaMemset", cudaMemset(p, i + 1, sizes[i]), contents(p, sizes[i]));
		step("cudaFree", cudaFree(p), 0);
	}
	step("cudaMalloc of nothing", cudaMalloc(&p, 0), p != NULL);
	step("cudaMalloc of too much", cudaMalloc(&p, (size_t)1 << 50), 0);
	step("its error is read", cudaGetLastError(), 0);
	step("cudaFree of NULL", cudaFree(NULL), 0);
	step("cudaFree of an address", cudaFree((void *)4096), 0);
	step("its error is read", cudaGetLastError(), 0);
	step("cudaMallocPitch", cudaMallocPitch(&p, &pitch, 1000, 100), pitch);
	step("cudaMemset2D", cudaMemset2D(p, pitch, 7, 1000, 100), contents(p, 1000));
	step("cudaFree", cudaFree(p), 0);
}

static void others(void)
{
	const struct cudaChannelFormatDesc format = { 32, 0, 0, 0, cudaChannelFormatKindFloat };
	struct cudaPointerAttributes attributes = { 0 };
	cudaArray_t array;
	void *p = NULL;

	step("cudaMallocManaged", cudaMallocManaged(&p, MIB, cudaMemAttachGlobal), 0);
	if (p)
		memset(p, 3, MIB);
	step("managed", cudaMemset(p, 4, MIB / 2), contents(p, MIB));
	step("cudaPointerGetAttributes", cudaPointerGetAttributes(&attributes, p), attributes.type);
	step("cudaFree", cudaFree(p), 0);
	step("cudaMallocHost", cudaMallocHost(&p, MIB), 0);
	step("cudaFreeHost", cudaFreeHost(p), 0);
	step("cudaMallocArray", cudaMallocArray(&array, &format, 256, 256, 0), 0);
	step("cudaFreeArray", cudaFreeArray(array), 0);
}

static void ordered(void)
{
	struct cudaMemPoolProps props = { .allocType = cudaMemAllocationTypePinned };
	unsigned long long value = 0;
	cudaMemPool_t pool, mine;
	void *p[8];
	int i;

	for (i = 0; i < 8; i++) {
		step("cudaMallocAsync", cudaMallocAsync(&p[i], MIB + i, stream), 0);
		step("cudaMemsetAsync", cudaMemsetAsync(p[i], i + 9, MIB + i, stream), 0);
	}
	for (i = 0; i < 8; i++) {
		step("its contents", 0, contents(p[i], MIB + i));
		step("cudaFreeAsync", cudaFreeAsync(p[i], stream), 0);
	}
	step("cudaMallocAsync", cudaMallocAsync(&p[0], MIB, stream), 0);
	step("cudaFree of it", cudaFree(p[0]), 0);
	step("cudaMalloc", cudaMalloc(&p[0], MIB), 0);
	step("cudaFreeAsync of it", cudaFreeAsync(p[0], stream), 0);
	step("cudaDeviceGetDefaultMemPool", cudaDeviceGetDefaultMemPool(&pool, 0), 0);
	step("cudaStreamSynchronize", cudaStreamSynchronize(stream), 0);
	step("used now", cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &value), value);
	step("cudaMemPoolTrimTo", cudaMemPoolTrimTo(pool, 0), 0);
	props.location.type = cudaMemLocationTypeDevice;
	step("cudaMemPoolCreate", cudaMemPoolCreate(&mine, &props), 0);
	step("cudaMallocFromPoolAsync", cudaMallocFromPoolAsync(&p[0], MIB, mine, stream), 0);
	step("its contents", cudaMemsetAsync(p[0], 5, MIB, stream), contents(p[0], MIB));
	step("cudaFreeAsync", cudaFreeAsync(p[0], stream), 0);
	step("cudaStreamSynchronize", cudaStreamSynchronize(stream), 0);
	step("cudaMemPoolDestroy", cudaMemPoolDestroy(mine), 0);
}

static void graphs(void)
{
	cudaGraphExec_t exec;
	cudaGraph_t graph;
	void *out, *p;
	int i;

	step("cudaMalloc", cudaMalloc(&out, MIB), 0);
	step("cudaStreamBeginCapture",
	     cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed), 0);
	step("cudaMallocAsync, captured", cudaMallocAsync(&p, MIB, stream), 0);
	step("cudaMemsetAsync, captured", cudaMemsetAsync(p, 42, MIB, stream), 0);
	step("cudaMemcpyAsync, captured",
	     cudaMemcpyAsync(out, p, MIB, cudaMemcpyDeviceToDevice, stream), 0);
	step("cudaFreeAsync, captured", cudaFreeAsync(p, stream), 0);
	step("cudaStreamEndCapture", cudaStreamEndCapture(stream, &graph), 0);
	step("cudaGraphInstantiate", cudaGraphInstantiateWithFlags(&exec, graph, 0), 0);
	for (i = 0; i < 3; i++) {
		cudaMemset(out, 0, MIB);
		step("cudaGraphLaunch", cudaGraphLaunch(exec, stream), contents(out, MIB));
	}
	step("cudaGraphExecDestroy", cudaGraphExecDestroy(exec), 0);
	step("cudaGraphDestroy", cudaGraphDestroy(graph), 0);
	step("cudaFree", cudaFree(out), 0);
}

static int opens(const char *hex)
{
	cudaIpcMemHandle_t handle;
	void *p;

	from_hex(&handle, hex, sizeof(handle));
	step("cudaIpcOpenMemHandle",
	     cudaIpcOpenMemHandle(&p, handle, cudaIpcMemLazyEnablePeerAccess), 0);
	step("contents there", 0, contents(p, 3 * MIB));
	step("changed there", cudaMemset(p, 22, 3 * MIB), contents(p, 3 * MIB));
	step("cudaIpcCloseMemHandle", cudaIpcCloseMemHandle(p), 0);
	return 0;
}

static void shares(const char *program)
{
	cudaIpcMemHandle_t handle;
	void *p;

	step("cudaMalloc", cudaMalloc(&p, 3 * MIB), 0);
	step("cudaMemset", cudaMemset(p, 11, 3 * MIB), contents(p, 3 * MIB));
	step("cudaIpcGetMemHandle", cudaIpcGetMemHandle(&handle, p), 0);
	step("the peer", run_peer(program, &handle, sizeof(handle)), contents(p, 3 * MIB));
	step("cudaFree", cudaFree(p), 0);
}

int main(int argc, char **argv)
{
	step("cudaStreamCreate", cudaStreamCreate(&stream), 0);
	if (argc > 2)
		return opens(argv[2]);
	if (argc > 1) {
		shares(argv[0]);
	} else {
		plain();
		others();
		ordered();
		graphs();
	}
	step("cudaStreamDestroy", cudaStreamDestroy(stream), 0);
	step("cudaDeviceReset", cudaDeviceReset(), 0);
	return 0;
}
