// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * graphs [SEED]: with limit(POOL,max=64M), memory that graphs allocate obeys the limit. A graph
 * counts as what it has allocated at one time, until it and its executables are destroyed.
 */
#include "cuda/program.h"

#define LIMIT	(64 * MIB)
#define NR	6

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream);

static CUstream stream;

static size_t charged(void)
{
	size_t available = 0, total = 0;

	cuMemGetInfo_v2(&available, &total);
	return LIMIT - available;
}

static void begin(void)
{
	need(!cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED), "a capture begins");
}

static void captured(void)
{
	CUdeviceptr p, q;
	CUgraphExec exec;
	CUgraph graph;

	begin();
	is(cuMemAllocAsync(&p, 40 * MIB, stream), 0, "a captured allocation");
	is(charged(), 40 * MIB, "is charged");
	is(cuMemAllocAsync(&q, 30 * MIB, stream), CUDA_ERROR_OUT_OF_MEMORY, "obeys the limit");
	is(charged(), 40 * MIB, "and counts nothing then");
	is(cuMemsetD8Async(p, 1, MIB, stream), 0, "the capture goes on");
	is(cuMemFreeAsync(p, stream), 0, "what is freed in the capture");
	is(cuMemAllocAsync(&q, 30 * MIB, stream), 0, "makes room");
	is(charged(), 40 * MIB, "the most at one time counts");
	is(cuMemFreeAsync(q, stream), 0, "all is freed");
	is(cuStreamEndCapture(stream, &graph), 0, "the capture ends");
	is(charged(), 40 * MIB, "the graph is charged");
	is(cuMemAlloc_v2(&p, 30 * MIB), CUDA_ERROR_OUT_OF_MEMORY, "to the same limit");
	is(cuGraphInstantiateWithFlags(&exec, graph, 0), 0, "an executable");
	is(cuGraphDestroy(graph), 0, "outlives the graph");
	is(charged(), 40 * MIB, "and is charged");
	is(cuGraphLaunch(exec, stream) || cuStreamSynchronize(stream), 0, "it is launched");
	is(cuGraphExecDestroy(exec), 0, "it is destroyed");
	is(charged(), 0, "nothing is charged then");
}

static void invalid(void)
{
	CUgraph graph = NULL;
	CUdeviceptr p;

	begin();
	is(cuMemAllocAsync(&p, 10 * MIB, stream), 0, "an allocation");
	is(charged(), 10 * MIB, "of a capture");
	ok(cuStreamSynchronize(stream), "that becomes invalid");
	ok(cuStreamEndCapture(stream, &graph), "has no graph");
	is(charged(), 0, "and is not charged");
}

static void added(void)
{
	struct hm_cuda_node_alloc params = {
		.pool = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
			  .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 } },
		.bytes = 50 * MIB,
	};
	CUdeviceptr first;
	CUgraph graph;
	void *node;

	begin();
	need(!cuStreamEndCapture(stream, &graph), "a graph");
	is(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params), 0, "a node that allocates");
	is(charged(), 50 * MIB, "is charged");
	first = params.ptr;
	params.bytes = 20 * MIB;
	is(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params), CUDA_ERROR_OUT_OF_MEMORY,
	   "a second one is too large");
	is(cuGraphAddMemFreeNode(&node, graph, NULL, 0, first), 0, "after a node that frees");
	is(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params), 0, "it is not");
	is(charged(), 50 * MIB, "the most at one time counts");
	params.bytes = 0;
	is(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params), CUDA_ERROR_INVALID_VALUE,
	   "no bytes");
	is(cuGraphDestroy(graph), 0, "the graph is destroyed");
	is(charged(), 0, "and not charged");
}

/* One capture of random allocations and frees. Returns the most at one time. */
static size_t capture_one(unsigned int *seed, size_t room, unsigned int *wrong)
{
	size_t live = 0, most = 0, sizes[16] = { 0 };
	CUdeviceptr p[16];
	unsigned int i, slot;
	CUresult res;

	for (i = 0; i < 60; i++) {
		const size_t size = 1 + rand_r(seed) % (6 * MIB);

		slot = rand_r(seed) % 16;
		if (sizes[slot]) {
			if (cuMemFreeAsync(p[slot], stream))
				(*wrong)++;
			live -= sizes[slot];
			sizes[slot] = 0;
			continue;
		}
		res = cuMemAllocAsync(&p[slot], size, stream);
		if (res != (live + size > most && live + size > room ? CUDA_ERROR_OUT_OF_MEMORY :
			    CUDA_SUCCESS))
			(*wrong)++;
		if (res)
			continue;
		sizes[slot] = size;
		live += size;
		most = live > most ? live : most;
	}
	for (slot = 0; slot < 16; slot++)
		if (sizes[slot] && cuMemFreeAsync(p[slot], stream))
			(*wrong)++;
	return most;
}

static void at_random(unsigned int seed)
{
	size_t most[NR] = { 0 }, sum = 0;
	unsigned int i, n, wrong = 0;
	CUgraph graphs[NR] = { 0 };
	CUgraphExec execs[NR] = { 0 };

	for (n = 0; n < 40; n++) {
		i = rand_r(&seed) % NR;
		if (graphs[i] && rand_r(&seed) % 2) {
			if (!execs[i])
				wrong += cuGraphInstantiateWithFlags(&execs[i], graphs[i], 0) != 0;
		} else if (graphs[i]) {
			wrong += cuGraphDestroy(graphs[i]) != 0;
			if (execs[i])
				wrong += cuGraphExecDestroy(execs[i]) != 0;
			sum -= most[i];
			graphs[i] = NULL;
			execs[i] = NULL;
		} else {
			begin();
			most[i] = capture_one(&seed, LIMIT - sum, &wrong);
			wrong += cuStreamEndCapture(stream, &graphs[i]) != 0;
			sum += most[i];
		}
		wrong += charged() != sum;
	}
	is(wrong, 0, "40 steps with %d graphs are as the model says", NR);
	for (i = 0; i < NR; i++) {
		if (execs[i])
			cuGraphExecDestroy(execs[i]);
		if (graphs[i])
			cuGraphDestroy(graphs[i]);
	}
	is(charged(), 0, "nothing is charged at the end");
}

/* The context ends with a graph of it. */
static void ends(void)
{
	CUgraph graph;
	CUcontext ctx;
	CUdeviceptr p;

	begin();
	is(cuMemAllocAsync(&p, 20 * MIB, stream) || cuMemFreeAsync(p, stream) ||
	   cuStreamEndCapture(stream, &graph), 0, "a graph");
	is(charged(), 20 * MIB, "is charged");
	is(cuDevicePrimaryCtxRelease_v2(0), 0, "its context ends");
	cuDevicePrimaryCtxRetain(&ctx, 0);
	cuCtxSetCurrent(ctx);
	is(charged(), 0, "so it is not charged");
	cuGraphDestroy(graph);
	is(charged(), 0, "nor taken off when it is destroyed");
	is(cuMemAlloc_v2(&p, LIMIT), 0, "all of the limit is there");
	is(cuMemFree_v2(p), 0, "and freed");
}

int main(int argc, char **argv)
{
	need(start() && !cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "a stream");
	captured();
	invalid();
	added();
	at_random(argc > 1 ? atoi(argv[1]) : 1);
	ends();
	return tap_end();
}
