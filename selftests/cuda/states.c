// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * states: prints what each call returns in each state of a process: before cuInit(), without a
 * context, in captures of each mode, after an error that the context keeps, in a forked child;
 * with right and wrong arguments. Natively and under libhetmem-cuda.so it prints the same.
 */
#include <sys/wait.h>

#include "cuda/libcuda.h"
#include "cuda/program.h"

static CUdeviceptr block, async;
static CUstream stream;

static CUresult alloc_free(void)
{
	CUdeviceptr p = 0;
	CUresult res = cuMemAlloc_v2(&p, MIB);

	return res ? res : cuMemFree_v2(p);
}

static CUresult alloc_nothing(void)
{
	CUdeviceptr p;

	return cuMemAlloc_v2(&p, 0);
}

static CUresult alloc_too_much(void)
{
	CUdeviceptr p;

	return cuMemAlloc_v2(&p, (size_t)1 << 50);
}

static CUresult pitch(void)
{
	CUdeviceptr p;
	size_t row = 0;
	CUresult res = cuMemAllocPitch_v2(&p, &row, 1000, 10, 8);

	return res ? res : cuMemFree_v2(p) ? CUDA_ERROR_UNKNOWN : (CUresult)row;
}

static CUresult pitch_of_wrong_element(void)
{
	CUdeviceptr p;
	size_t row;

	return cuMemAllocPitch_v2(&p, &row, 1000, 10, 5);
}

static CUresult free_null(void)
{
	return cuMemFree_v2(0);
}

static CUresult free_foreign(void)
{
	return cuMemFree_v2((uintptr_t)&block);
}

static CUresult free_interior(void)
{
	return cuMemFree_v2(block + 512);
}

static CUresult free_block(void)
{
	return cuMemFree_v2(block);
}

static CUresult free_twice(void)
{
	CUresult res = cuMemFree_v2(block);

	return res ? res : cuMemFree_v2(block);
}

static CUresult async_alloc_free(void)
{
	CUdeviceptr p = 0;
	CUresult res = cuMemAllocAsync(&p, MIB, stream);

	return res ? res : cuMemFreeAsync(p, stream);
}

static CUresult async_free_block(void)
{
	return cuMemFreeAsync(block, stream);
}

static CUresult async_free_interior(void)
{
	return cuMemFreeAsync(async + 512, stream);
}

static CUresult async_free_null(void)
{
	return cuMemFreeAsync(0, stream);
}

static CUresult free_of_async(void)
{
	return cuMemFree_v2(async);
}

static CUresult thread_stream(void)
{
	CUdeviceptr p = 0;
	CUresult res = cuMemAllocAsync_ptsz(&p, MIB, NULL);

	return res ? res : cuMemFreeAsync_ptsz(p, NULL);
}

static CUresult info(void)
{
	size_t left, total;

	return cuMemGetInfo_v2(&left, &total);
}

/* Results of questions: whether the answer is right. */
static CUresult range(void)
{
	CUdeviceptr base = 0;
	size_t size = 0;
	CUresult res = cuMemGetAddressRange_v2(&base, &size, block + 4096);

	return res ? res : base == block && size == MIB ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

static CUresult attribute(void)
{
	size_t size = 0;
	CUresult res = cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, block + 1);

	return res ? res : size == MIB ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

static CUresult attributes(void)
{
	CUpointer_attribute which[] = {
		CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
	};
	CUdeviceptr first = 0;
	unsigned int type = 0;
	void *data[] = { &first, &type };
	CUresult res = cuPointerGetAttributes(2, which, data, block + MIB - 1);

	return res ? res : first == block && type == CU_MEMORYTYPE_DEVICE ? CUDA_SUCCESS :
		CUDA_ERROR_UNKNOWN;
}

static CUresult attribute_of_foreign(void)
{
	size_t size;

	return cuPointerGetAttribute(&size, CU_POINTER_ATTRIBUTE_RANGE_SIZE, 4096);
}

static CUresult managed(void)
{
	CUdeviceptr p;
	CUresult res = cuMemAllocManaged(&p, MIB, CU_MEM_ATTACH_GLOBAL);

	return res ? res : cuMemFree_v2(p);
}

static const struct {
	const char *name;
	CUresult (*call)(void);
} calls[] = {
#define ROW(name)	{ #name, name }
	ROW(alloc_free), ROW(alloc_nothing), ROW(alloc_too_much), ROW(pitch),
	ROW(pitch_of_wrong_element), ROW(free_null), ROW(free_foreign), ROW(free_interior),
	ROW(free_block), ROW(free_twice), ROW(async_alloc_free), ROW(async_free_block),
	ROW(async_free_interior), ROW(async_free_null), ROW(free_of_async), ROW(thread_stream),
	ROW(info), ROW(range), ROW(attribute), ROW(attributes), ROW(attribute_of_foreign),
	ROW(managed),
};

static const char *const states[] = {
	"uninitialized", "no-context", "normal", "capture-global", "capture-thread",
	"capture-relaxed", "failed", "forked",
};

/* A kernel that writes to a mapping without access: the context keeps the error. */
static bool fail_context(void)
{
	const CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
	};
	CUmemGenericAllocationHandle handle;
	CUdeviceptr p;

	if (cuMemCreate(&handle, 2 * MIB, &prop, 0) || cuMemAddressReserve(&p, 2 * MIB, 0, 0, 0) ||
	    cuMemMap(p, 2 * MIB, 0, handle, 0))
		return false;
	fake_launch(stream, p, 64, 0);
	return cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS;
}

static void begin(unsigned int state)
{
	if (!state)
		return;
	if (!start() || cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) ||
	    cuMemAlloc_v2(&block, MIB) || cuMemAllocAsync(&async, MIB, stream) ||
	    cuStreamSynchronize(stream))
		exit(3);
	if (state == 1)
		cuCtxSetCurrent(NULL);
	else if (state >= 3 && state <= 5)
		cuStreamBeginCapture_v2(stream, state - 3);
	else if (state == 6 && !fail_context())
		exit(3);
}

/* The result of the call, and of the end of the capture. */
static void run_one(unsigned int state, CUresult (*call)(void))
{
	CUgraph graph = NULL;
	CUresult res, end = 0;
	pid_t child;

	begin(state);
	if (state == 7) {
		child = fork();
		if (child) {
			waitpid(child, NULL, 0);
			_exit(0);
		}
	}
	res = call();
	if (state >= 3 && state <= 5)
		end = cuStreamEndCapture(stream, &graph);
	printf(" %u/%u", res, end);
	fflush(stdout);
	_exit(0);
}

int main(void)
{
	unsigned int state;
	size_t i;
	pid_t child;
	int status;

	for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		printf("%s:", calls[i].name);
		for (state = 0; state < sizeof(states) / sizeof(states[0]); state++) {
			printf(" %s", states[state]);
			fflush(stdout);
			child = fork();
			if (!child)
				run_one(state, calls[i].call);
			if (waitpid(child, &status, 0) != child || status)
				printf(" died(%#x)", status);
		}
		printf("\n");
	}
	return 0;
}
