// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * sleeper [BLOCKS]: a program that 'hetmem sleep' puts to sleep. It fills memory of every kind,
 * BLOCKS (20) of them of cuMemAlloc(), of 2 MiB each. It prints its PID, and carries out
 * commands, a line each: "check" whether all contents are there, "alloc", "begin" and "end" of
 * a capture, "work" that lasts until "release", "table", "context", "future", "range", "retain"
 * for calls that no sleep of the library can follow, "quit".
 */
#include "cuda/program.h"

CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice device);
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream);
CUresult cuMemGetHandleForAddressRange(void *handle, CUdeviceptr ptr, size_t size, int type,
				       unsigned long long flags);
CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t size, CUstream stream);
CUresult cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count);

#define SIZE	(2 * MIB)
#define MOST	65536

static CUdeviceptr blocks[MOST], async, mapped;
static size_t nr = 20;
static CUstream stream;

static bool is_filled(CUdeviceptr p, unsigned char value)
{
	static unsigned char host[SIZE];
	size_t i;

	if (cuMemcpyDtoHAsync_v2(host, p, SIZE, stream) || cuStreamSynchronize(stream))
		return false;
	for (i = 0; i < SIZE; i++)
		if (host[i] != value)
			return false;
	return true;
}

static bool make(void)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
	};
	const CUmemAccessDesc access = { prop.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemGenericAllocationHandle handle;
	size_t i;

	if (!start() || cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) ||
	    cuMemAllocAsync(&async, SIZE, stream) || cuMemsetD8Async(async, 101, SIZE, stream) ||
	    cuMemCreate(&handle, SIZE, &prop, 0) || cuMemAddressReserve(&mapped, SIZE, 0, 0, 0) ||
	    cuMemMap(mapped, SIZE, 0, handle, 0) || cuMemSetAccess(mapped, SIZE, &access, 1) ||
	    cuMemsetD8Async(mapped, 102, SIZE, stream))
		return false;
	for (i = 0; i < nr; i++)
		if (cuMemAlloc_v2(&blocks[i], SIZE) ||
		    cuMemsetD8Async(blocks[i], i % 99 + 1, SIZE, stream))
			return false;
	return !cuStreamSynchronize(stream);
}

static const char *check(void)
{
	size_t i;

	for (i = 0; i < nr; i++)
		if (!is_filled(blocks[i], i % 99 + 1))
			return "a block is broken";
	return !is_filled(async, 101) ? "the stream's block is broken" :
		!is_filled(mapped, 102) ? "the mapped memory is broken" : "whole";
}

static const char *end_capture(void)
{
	CUgraphExec exec;
	CUgraph graph;

	if (cuStreamEndCapture(stream, &graph) || cuGraphInstantiateWithFlags(&exec, graph, 0) ||
	    cuGraphLaunch(exec, stream))
		return "the capture has failed";
	return is_filled(async, 103) && !cuMemsetD8Async(async, 101, SIZE, stream) ? "replayed" :
		"the graph did nothing";
}

static int released;

static void wait_for_release(void *unused)
{
	(void)unused;
	stay_until(__atomic_load_n(&released, __ATOMIC_ACQUIRE));
}

static const char *obey(const char *command)
{
	const CUuuid table = { { 1, 2, 3 } };
	CUmemGenericAllocationHandle handle;
	CUdeviceptr p;
	CUcontext ctx;
	void *fn;

	if (!strcmp(command, "work\n"))
		return cuLaunchHostFunc(stream, wait_for_release, NULL) ? "no work" : "works";
	if (!strcmp(command, "release\n")) {
		__atomic_store_n(&released, 1, __ATOMIC_RELEASE);
		return "released";
	}
	if (!strcmp(command, "table\n"))
		return cuGetExportTable((const void **)&fn, &table) ? "asked" : "got";
	if (!strcmp(command, "context\n"))
		return cuCtxCreate_v2(&ctx, 0, 0) ? "asked" : "got";
	if (!strcmp(command, "future\n"))
		return cuGetProcAddress("cuMemAlloc", &fn, 99000, 0) ? "asked" : "got";
	if (!strcmp(command, "range\n"))
		return cuMemGetHandleForAddressRange(&fn, blocks[0], SIZE, 1, 0) ? "asked" : "got";
	if (!strcmp(command, "retain\n"))
		return cuMemRetainAllocationHandle(&handle, (void *)blocks[0]) ? "asked" : "got";
	if (!strcmp(command, "check\n"))
		return check();
	if (!strcmp(command, "alloc\n"))
		return cuMemAlloc_v2(&p, SIZE) || cuMemFree_v2(p) ? "no memory" : "allocated";
	if (!strcmp(command, "begin\n"))
		return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) ||
			cuMemsetD8Async(async, 103, SIZE, stream) ? "no capture" : "captures";
	return end_capture();
}

int main(int argc, char **argv)
{
	char command[64];

	if (argc > 1)
		nr = strtoul(argv[1], NULL, 10);
	if (nr > MOST)
		return 2;

	if (!make()) {
		printf("no memory\n");
		return 1;
	}
	printf("%d\n", getpid());
	fflush(stdout);
	while (fgets(command, sizeof(command), stdin) && strcmp(command, "quit\n")) {
		puts(obey(command));
		fflush(stdout);
	}
	return 0;
}
