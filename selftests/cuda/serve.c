// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * serve: a program of one thread, with limit(POOL,max=64M): the limit, blocks, what cuMemFree()
 * waits for, streams, attributes, counts, and the end of the context.
 */
#include <stdatomic.h>
#include <sched.h>

#include "cuda/libcuda.h"
#include "cuda/program.h"

#define LIMIT	(64 * MIB)

static CUcontext ctx;

static size_t left(void)
{
	size_t available = 0, total = 0;

	cuMemGetInfo_v2(&available, &total);
	return available;
}

static void limits(void)
{
	CUdeviceptr p[65], more, one[1000];
	size_t available, total, i, n;

	is(cuMemGetInfo_v2(&available, &total), 0, "cuMemGetInfo");
	is(total, LIMIT, "the total is the limit");
	is(available, LIMIT, "all of it is left");
	for (n = 0; n < 65 && !cuMemAlloc_v2(&p[n], MIB); n++)
		;
	is(n, 64, "as many blocks as the limit has");
	is(left(), 0, "nothing is left");
	is(cuMemAlloc_v2(&more, 1), CUDA_ERROR_OUT_OF_MEMORY, "not a byte more");
	is(cuMemAllocAsync(&more, 1, NULL), CUDA_ERROR_OUT_OF_MEMORY, "nor from a stream");
	is(cuMemAllocManaged(&more, 1, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY,
	   "nor of managed memory");
	for (i = 0; i < n; i++)
		if (cuMemFree_v2(p[i]))
			break;
	is(i, n, "all are freed");
	is(left(), LIMIT, "all of it is left again");
	is(cuMemAlloc_v2(&p[0], LIMIT), 0, "one block of the limit");
	is(cuMemFree_v2(p[0]), 0, "which is freed");
	is(cuMemAlloc_v2(&p[0], LIMIT + 1), CUDA_ERROR_OUT_OF_MEMORY, "one byte too many");
	for (i = 0; i < 1000; i++)
		if (cuMemAlloc_v2(&one[i], 100 + i % 7))
			break;
	is(i, 1000, "1000 small blocks");
	ok(left() >= LIMIT - 1000 * 512, "which do not take 2 MiB each");
	for (i = 0; i < 1000; i++)
		cuMemFree_v2(one[i]);
	is(left(), LIMIT, "all of it is left after 1000 frees");
}

static void charges(void)
{
	const CUmemPoolProps props = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
	};
	CUdeviceptr p = 0, q;
	CUmemoryPool pool;
	CUstream stream;

	cuStreamCreate(&stream, 0);
	is(cuMemAllocManaged(&p, 40 * MIB, CU_MEM_ATTACH_GLOBAL), 0, "managed memory");
	is(left(), 24 * MIB, "is charged");
	is(cuMemAlloc_v2(&q, 25 * MIB), CUDA_ERROR_OUT_OF_MEMORY, "to the same limit");
	is(cuMemFree_v2(p), 0, "until it is freed");
	is(left(), LIMIT, "then it is not");

	need(!cuMemPoolCreate(&pool, &props), "a pool of the program");
	is(cuMemAllocFromPoolAsync(&p, 30 * MIB, pool, stream), 0, "gives memory");
	is(left(), 34 * MIB, "which is charged");
	is(cuMemAllocFromPoolAsync(&q, 35 * MIB, pool, stream), CUDA_ERROR_OUT_OF_MEMORY,
	   "and obeys the limit");
	is(cuMemFreeAsync(p, stream), 0, "until it is freed in order");
	is(left(), LIMIT, "then it is not charged");
	cuStreamSynchronize(stream);
	cuMemPoolDestroy(pool);
	cuStreamDestroy_v2(stream);
}

static void open_gate(void *gate)
{
	atomic_store((atomic_int *)gate, 1);
}

static void wait_at_gate(void *gate)
{
	while (!atomic_load((atomic_int *)gate))
		sched_yield();
}

static void frees(bool waits)
{
	atomic_int gate = 0;
	CUstream stream;
	CUdeviceptr p;

	cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
	cuMemAlloc_v2(&p, MIB);
	if (waits) {
		/* time: 50 ms of the kernel, which the free waits for, however long it takes */
		fake_launch(stream, p, MIB, 50000000);
		is(cuMemFree_v2(p), 0, "a free with work under way");
		is(cuStreamQuery(stream), 0, "waits for the work");
	} else {
		cuLaunchHostFunc(stream, wait_at_gate, &gate);
		is(cuMemFree_v2(p), 0, "with sync=off a free with work under way");
		is(cuStreamQuery(stream), CUDA_ERROR_NOT_READY, "does not wait");
		open_gate(&gate);
	}
	cuStreamSynchronize(stream);
	cuStreamDestroy_v2(stream);
}

static void streams(void)
{
	CUdeviceptr p, q;
	CUstream stream;
	int i, bad = 0;

	for (i = 0; i < 3000; i++) {
		if (cuStreamCreate(&stream, i & 1) || cuMemAllocAsync(&p, 4096 + i, stream) ||
		    cuMemsetD8Async(p, i, 4096, stream) || cuMemFreeAsync(p, stream) ||
		    cuStreamDestroy_v2(stream))
			bad++;
	}
	is(bad, 0, "3000 streams are made, used and destroyed");
	is(left(), LIMIT, "and leave nothing allocated");
	cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
	cuMemAlloc_v2(&p, MIB);
	is(cuMemFreeAsync(p, stream), 0, "a block of cuMemAlloc is freed in order");
	cuMemAllocAsync(&q, MIB, stream);
	is(cuMemFree_v2(q), 0, "a block of cuMemAllocAsync is freed at once");
	is(cuMemFree_v2(q), CUDA_ERROR_INVALID_VALUE, "and no second time");
	is(cuMemAllocAsync_ptsz(&p, MIB, NULL), 0, "the thread's own stream");
	is(cuMemFreeAsync_ptsz(p, NULL), 0, "frees it");
	cuStreamDestroy_v2(stream);
}

static void attributes(void)
{
	CUmemoryPool pool = NULL, preset = NULL;
	unsigned long long first = 0, second = 0, third = 0;
	CUdeviceptr p, q, base = 0;
	CUcontext its = NULL;
	size_t pitch = 0, size = 0;

	cuDeviceGetDefaultMemPool(&preset, 0);
	cuMemAlloc_v2(&p, 1000);
	cuMemAlloc_v2(&q, 1000);
	cuPointerGetAttribute(&first, CU_POINTER_ATTRIBUTE_BUFFER_ID, p);
	cuPointerGetAttribute(&second, CU_POINTER_ATTRIBUTE_BUFFER_ID, q + 999);
	ok(first && second && first != second, "each block has an id of its own");
	cuMemGetAddressRange_v2(&base, &size, q + 500);
	ok(base == q && size == 1000, "the range of a small block");
	is(cuMemGetAddressRange_v2(NULL, &size, q), 0, "without its base");
	cuPointerGetAttribute(&its, CU_POINTER_ATTRIBUTE_CONTEXT, p);
	ok(its == ctx, "a block is of the context");
	cuMemFree_v2(q);
	cuMemAlloc_v2(&q, 1000);
	cuPointerGetAttribute(&third, CU_POINTER_ATTRIBUTE_BUFFER_ID, q);
	ok(third != second, "no id comes twice");
	cuMemFree_v2(p);
	cuMemFree_v2(q);
	cuMemAllocAsync(&p, 1000, NULL);
	cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p);
	ok(pool == preset, "a block of a stream is of the default pool");
	cuMemFreeAsync(p, NULL);
	is(cuMemAllocPitch_v2(&p, &pitch, 1025, 3, 4), 0, "rows");
	is(pitch, 1536, "are as long as the driver makes them");
	cuMemGetAddressRange_v2(&base, &size, p);
	is(size, 3 * 1536, "and the block has all of them");
	cuMemFree_v2(p);
}

static void ends(void)
{
	CUdeviceptr p, q;
	CUcontext again = NULL;

	cuMemAlloc_v2(&p, 10 * MIB);
	is(cuDevicePrimaryCtxRelease_v2(0), 0, "the last release");
	is(cuMemFree_v2(p), CUDA_ERROR_INVALID_VALUE, "ends the blocks of the context");
	is(cuDevicePrimaryCtxRetain(&again, 0), 0, "the context is retained again");
	cuCtxSetCurrent(again);
	is(left(), LIMIT, "nothing is allocated then");
	is(cuMemAlloc_v2(&q, LIMIT), 0, "all of the limit can be");
	is(cuMemFree_v2(q), 0, "and freed");
}

static void counts(void)
{
	const unsigned long long before = counted("cuMemAlloc_v2");
	const unsigned long long created = counted("cuStreamCreate");
	CUstream stream;
	CUdeviceptr p;

	cuMemAlloc_v2(&p, MIB);
	cuMemFree_v2(p);
	cuStreamCreate(&stream, 0);
	cuStreamDestroy_v2(stream);
	is(counted("cuMemAlloc_v2"), before + 1, "a served call is counted");
	is(counted("cuStreamCreate"), created + 1, "a passed call is counted");
	is(counted("cuNoSuchCall"), 0, "an unknown name has no count");
}

/* The program unloads what it has loaded: the driver stays. */
static void closes(void)
{
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	CUdeviceptr p;

	dlclose(library);
	dlclose(library);
	is(cuMemAlloc_v2(&p, MIB), 0, "after dlclose()");
	is(cuMemFree_v2(p), 0, "calls work");
}

int main(int argc, char **argv)
{
	ctx = start();
	need(ctx, "a context");
	if (argc > 1 && !strcmp(argv[1], "nosync")) {
		frees(false);
		return tap_end();
	}
	limits();
	charges();
	frees(true);
	streams();
	attributes();
	counts();
	closes();
	ends();
	return tap_end();
}
