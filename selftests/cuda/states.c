// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * states: prints what each call returns in each state of a process: before cuInit(), without a
 * context, in captures of each mode, after an error that the context keeps, in a forked child;
 * with right and wrong arguments. Natively and under libhetmem-cuda.so it prints the same.
 *
 * calls[] has sequences of calls. rows[] has single ones, of every function that the library
 * serves: "no row" is printed for one that is missing.
 */
#include <sys/wait.h>

#include "cuda/calls.h"
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

/* What begin() makes for rows[]. */
static CUcontext ctx;
static CUmemoryPool pool, own;
static CUmemGenericAllocationHandle handle, mapped_handle;
static CUdeviceptr reserved, mapped;
static CUgraph graph;
static CUgraphExec exec;
static void *array, *mipmap;
static uint64_t out[32];
static const uint64_t one = 1;
static const CUuuid table = { { 1, 2, 3 } };
static const CUmemAllocationProp prop = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
	.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
};
static const CUmemAllocationProp no_device = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { CU_MEM_LOCATION_TYPE_DEVICE, 99 },
};
static const CUmemAccessDesc by_device = {
	{ CU_MEM_LOCATION_TYPE_DEVICE, 0 }, CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
};
static const CUmemAccessDesc by_none = {
	{ CU_MEM_LOCATION_TYPE_DEVICE, 99 }, CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
};
static const CUmemPoolProps pool_props = {
	.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
};
/* 8 is CU_AD_FORMAT_SIGNED_INT8. */
static const struct hm_cuda_array_2d flat = { 64, 64, 8, 1 };
static const struct hm_cuda_array_shape deep = { 64, 64, 4, 8, 1, 0 };
static struct hm_cuda_node_alloc node = {
	.pool = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		  .location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 } },
	.bytes = MIB,
};
static CUpointer_attribute which[] = { CU_POINTER_ATTRIBUTE_RANGE_SIZE };
static void *datas[] = { out };

/* An argument: a value, or a variable that is read at the call. */
struct arg {
	bool variable;
	uintptr_t value;
};

#define N(x)	{ false, (uintptr_t)(x) }
#define V(x)	{ true, (uintptr_t)&(x) }
#define OUT	N(out)
#define OUT2	N(out + 8)
#define FOREIGN	N(&one)
#define TOO_MUCH N((size_t)1 << 50)

/* Both forms of a function, with a stream and with NULL. */
#define STREAM(name, ...)						\
	{ #name, { __VA_ARGS__, V(stream) } },				\
	{ #name, { __VA_ARGS__, N(NULL) } },				\
	{ #name "_ptsz", { __VA_ARGS__, V(stream) } },			\
	{ #name "_ptsz", { __VA_ARGS__, N(NULL) } }
#define ATTRIBUTE(number)						\
	ROW("cuPointerGetAttribute", OUT, N(number), V(block)),		\
	ROW("cuPointerGetAttribute", OUT, N(number), V(async)),		\
	ROW("cuPointerGetAttribute", OUT, N(number), FOREIGN)
#undef ROW
#define ROW(name, ...)	{ name, { __VA_ARGS__ } }

static const struct row {
	const char *name;
	struct arg args[6];
} rows[] = {
	ROW("cuArray3DCreate_v2", OUT, N(&deep)), ROW("cuArrayCreate_v2", OUT, N(&flat)),
	ROW("cuArrayDestroy", V(array)), ROW("cuMipmappedArrayCreate", OUT, N(&deep), N(2)),
	ROW("cuMipmappedArrayDestroy", V(mipmap)),
	ROW("cuCtxDestroy", V(ctx)), ROW("cuCtxDestroy", N(NULL)), ROW("cuCtxDestroy_v2", V(ctx)),
	ROW("cuCtxDestroy_v2", N(NULL)),
	ROW("cuCtxEnablePeerAccess", V(ctx), N(0)), ROW("cuCtxEnablePeerAccess", V(ctx), N(1)),
	ROW("cuCtxDisablePeerAccess", V(ctx)),
	ROW("cuDevicePrimaryCtxRelease", N(0)), ROW("cuDevicePrimaryCtxRelease", N(99)),
	ROW("cuDevicePrimaryCtxRelease_v2", N(0)), ROW("cuDevicePrimaryCtxRelease_v2", N(-1)),
	ROW("cuDevicePrimaryCtxReset", N(0)), ROW("cuDevicePrimaryCtxReset", N(99)),
	ROW("cuDevicePrimaryCtxReset_v2", N(0)), ROW("cuDevicePrimaryCtxReset_v2", N(-1)),
	ROW("cuDevicePrimaryCtxRetain", OUT, N(0)), ROW("cuDevicePrimaryCtxRetain", OUT, N(99)),
	ROW("cuDeviceSetMemPool", N(0), V(pool)), ROW("cuDeviceSetMemPool", N(0), V(own)),
	ROW("cuDeviceSetMemPool", N(99), V(pool)),
	ROW("cuGetExportTable", OUT, N(&table)),
	ROW("cuGetProcAddress", N("cuMemAlloc"), OUT, N(12000), N(0)),
	ROW("cuGetProcAddress", N("cuNothing"), OUT, N(12000), N(0)),
	ROW("cuGetProcAddress_v2", N("cuMemAlloc"), OUT, N(12000), N(0), OUT2),
	ROW("cuGetProcAddress_v2", N("cuMemAlloc"), OUT, N(1), N(0), OUT2),
	ROW("cuGetProcAddress_v2", N("cuNothing"), OUT, N(12000), N(0), OUT2),
	ROW("cuGraphAddMemAllocNode", OUT, V(graph), N(NULL), N(0), N(&node)),
	ROW("cuGraphAddMemFreeNode", OUT, V(graph), N(NULL), N(0), V(async)),
	ROW("cuGraphAddMemFreeNode", OUT, V(graph), N(NULL), N(0), FOREIGN),
	ROW("cuGraphInstantiate", OUT, V(graph), N(NULL), N(NULL), N(0)),
	ROW("cuGraphInstantiate_v2", OUT, V(graph), N(NULL), N(NULL), N(0)),
	ROW("cuGraphInstantiateWithFlags", OUT, V(graph), N(0)),
	ROW("cuGraphInstantiateWithParams", OUT, V(graph), OUT2),
	ROW("cuGraphInstantiateWithParams_ptsz", OUT, V(graph), OUT2),
	ROW("cuGraphExecDestroy", V(exec)), ROW("cuGraphDestroy", V(graph)),
	ROW("cuIpcGetMemHandle", OUT, V(block)), ROW("cuIpcGetMemHandle", OUT, FOREIGN),
	ROW("cuIpcOpenMemHandle", OUT, N(1)), ROW("cuIpcOpenMemHandle_v2", OUT, N(1)),
	ROW("cuIpcCloseMemHandle", V(block)), ROW("cuIpcCloseMemHandle", FOREIGN),
	ROW("cuMemAlloc_v2", OUT, N(MIB)), ROW("cuMemAlloc_v2", OUT, N(1)),
	ROW("cuMemAlloc_v2", OUT, N(0)), ROW("cuMemAlloc_v2", OUT, TOO_MUCH),
	ROW("cuMemAllocPitch_v2", OUT, OUT2, N(1000), N(10), N(16)),
	ROW("cuMemAllocPitch_v2", OUT, OUT2, N(0), N(10), N(4)),
	ROW("cuMemAllocPitch_v2", OUT, OUT2, N(1000), N(0), N(4)),
	ROW("cuMemAllocPitch_v2", OUT, OUT2, N(1000), TOO_MUCH, N(4)),
	ROW("cuMemAllocManaged", OUT, N(MIB), N(1)), ROW("cuMemAllocManaged", OUT, N(MIB), N(2)),
	ROW("cuMemAllocManaged", OUT, N(MIB), N(9)), ROW("cuMemAllocManaged", OUT, N(0), N(1)),
	STREAM(cuMemAllocAsync, OUT, N(MIB)), STREAM(cuMemAllocAsync, OUT, N(0)),
	STREAM(cuMemAllocAsync, OUT, TOO_MUCH),
	STREAM(cuMemAllocFromPoolAsync, OUT, N(MIB), V(pool)),
	STREAM(cuMemAllocFromPoolAsync, OUT, N(MIB), V(own)),
	STREAM(cuMemAllocFromPoolAsync, OUT, N(0), V(pool)),
	STREAM(cuMemAllocFromPoolAsync, OUT, TOO_MUCH, V(own)),
	STREAM(cuMemFreeAsync, V(async)), STREAM(cuMemFreeAsync, V(block)),
	STREAM(cuMemFreeAsync, FOREIGN), STREAM(cuMemFreeAsync, V(mapped)),
	ROW("cuMemFree_v2", V(block)), ROW("cuMemFree_v2", V(async)), ROW("cuMemFree_v2", FOREIGN),
	ROW("cuMemFree_v2", V(mapped)), ROW("cuMemFree_v2", V(reserved)),
	ROW("cuMemCreate", OUT, N(2 * MIB), N(&prop), N(0)),
	ROW("cuMemCreate", OUT, N(1), N(&prop), N(0)), ROW("cuMemCreate", OUT, N(0), N(&prop), N(0)),
	ROW("cuMemCreate", OUT, N(2 * MIB), N(&no_device), N(0)),
	ROW("cuMemCreate", OUT, TOO_MUCH, N(&prop), N(0)),
	ROW("cuMemRelease", V(handle)), ROW("cuMemRelease", V(mapped_handle)),
	ROW("cuMemRelease", N(12345)),
	ROW("cuMemMap", V(reserved), N(2 * MIB), N(0), V(handle), N(0)),
	ROW("cuMemMap", V(reserved), N(2 * MIB), N(0), N(12345), N(0)),
	ROW("cuMemMap", V(reserved), N(4 * MIB), N(0), V(handle), N(0)),
	ROW("cuMemMap", V(mapped), N(2 * MIB), N(0), V(handle), N(0)),
	ROW("cuMemUnmap", V(mapped), N(2 * MIB)), ROW("cuMemUnmap", V(mapped), N(MIB)),
	ROW("cuMemUnmap", V(reserved), N(2 * MIB)),
	ROW("cuMemExportToShareableHandle", OUT, V(handle), N(1), N(0)),
	ROW("cuMemExportToShareableHandle", OUT, N(12345), N(1), N(0)),
	ROW("cuMemImportFromShareableHandle", OUT, N(-1), N(1)),
	ROW("cuMemRetainAllocationHandle", OUT, V(mapped)),
	ROW("cuMemRetainAllocationHandle", OUT, V(reserved)),
	ROW("cuMemRetainAllocationHandle", OUT, FOREIGN),
	ROW("cuMemGetAddressRange_v2", OUT, OUT2, V(block)),
	ROW("cuMemGetAddressRange_v2", OUT, OUT2, V(async)),
	ROW("cuMemGetAddressRange_v2", OUT, OUT2, FOREIGN),
	ROW("cuMemGetAddressRange_v2", OUT, N(NULL), V(block)),
	ROW("cuMemGetInfo_v2", OUT, OUT2),
	ROW("cuMemPoolGetAttribute", V(pool), N(4), OUT),
	ROW("cuMemPoolGetAttribute", V(pool), N(5), OUT),
	ROW("cuMemPoolGetAttribute", V(pool), N(7), OUT),
	ROW("cuMemPoolGetAttribute", V(pool), N(99), OUT),
	ROW("cuMemPoolGetAttribute", V(own), N(5), OUT),
	ROW("cuMemPoolSetAttribute", V(pool), N(4), N(&one)),
	ROW("cuMemPoolSetAttribute", V(pool), N(5), N(&one)),
	ROW("cuMemPoolSetAttribute", V(pool), N(6), N(&one)),
	ROW("cuMemPoolSetAttribute", V(pool), N(99), N(&one)),
	ROW("cuMemPoolSetAttribute", V(own), N(4), N(&one)),
	ROW("cuMemPoolSetAccess", V(pool), N(&by_device), N(1)),
	ROW("cuMemPoolSetAccess", V(pool), N(&by_none), N(1)),
	ROW("cuMemPoolSetAccess", V(own), N(&by_device), N(1)),
	ROW("cuMemPoolTrimTo", V(pool), N(0)), ROW("cuMemPoolTrimTo", V(own), N(MIB)),
	ATTRIBUTE(2), ATTRIBUTE(3), ATTRIBUTE(4), ATTRIBUTE(7), ATTRIBUTE(8), ATTRIBUTE(9),
	ATTRIBUTE(11), ATTRIBUTE(12), ATTRIBUTE(13), ATTRIBUTE(99),
	ROW("cuPointerGetAttributes", N(1), N(which), N(datas), V(block)),
	ROW("cuPointerGetAttributes", N(1), N(which), N(datas), FOREIGN),
	ROW("cuPointerGetAttributes", N(0), N(which), N(datas), V(block)),
	ROW("cuStreamBeginCapture", V(stream)), ROW("cuStreamBeginCapture_ptsz", V(stream)),
	ROW("cuStreamBeginCapture_v2", V(stream), N(2)),
	ROW("cuStreamBeginCapture_v2", N(NULL), N(2)),
	ROW("cuStreamBeginCapture_v2_ptsz", V(stream), N(2)),
	ROW("cuStreamBeginCaptureToGraph", V(stream), V(graph), N(NULL), N(NULL), N(0), N(2)),
	ROW("cuStreamBeginCaptureToGraph_ptsz", V(stream), V(graph), N(NULL), N(NULL), N(0), N(2)),
	ROW("cuStreamEndCapture", V(stream), OUT), ROW("cuStreamEndCapture_ptsz", V(stream), OUT),
	ROW("cuStreamDestroy", V(stream)), ROW("cuStreamDestroy_v2", V(stream)),
};

static bool has_row(const char *name)
{
	size_t i;

	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		if (!strcmp(rows[i].name, name))
			return true;
	return false;
}

/* Every argument is a word: the registers of the call are the same. */
static CUresult call_row(const struct row *row)
{
	CUresult (*fn)(uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e,
		       uintptr_t f);
	void *found = dlsym(RTLD_DEFAULT, row->name);
	uintptr_t args[6];
	size_t i;

	memcpy(&fn, &found, sizeof(fn));
	for (i = 0; i < 6; i++)
		args[i] = row->args[i].variable ? *(const uintptr_t *)row->args[i].value :
			row->args[i].value;
	return fn(args[0], args[1], args[2], args[3], args[4], args[5]);
}

static void make_objects(void)
{
	if (cuDeviceGetDefaultMemPool(&pool, 0) || cuMemPoolCreate(&own, &pool_props) ||
	    cuMemCreate(&handle, 2 * MIB, &prop, 0) ||
	    cuMemCreate(&mapped_handle, 2 * MIB, &prop, 0) ||
	    cuMemAddressReserve(&reserved, 2 * MIB, 0, 0, 0) ||
	    cuMemAddressReserve(&mapped, 2 * MIB, 0, 0, 0) ||
	    cuMemMap(mapped, 2 * MIB, 0, mapped_handle, 0) || cuArrayCreate_v2(&array, &flat) ||
	    cuMipmappedArrayCreate(&mipmap, &deep, 2) ||
	    cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) ||
	    cuMemsetD8Async(block, 1, MIB, stream) || cuStreamEndCapture(stream, &graph) ||
	    cuGraphInstantiateWithFlags(&exec, graph, 0))
		exit(3);
}

static const char *const states[] = {
	"uninitialized", "no-context", "normal", "capture-global", "capture-thread",
	"capture-relaxed", "failed", "forked",
};

/* A kernel that writes to a mapping without access: the context keeps the error. */
static bool fail_context(void)
{
	CUmemGenericAllocationHandle memory;
	CUdeviceptr p;

	if (cuMemCreate(&memory, 2 * MIB, &prop, 0) || cuMemAddressReserve(&p, 2 * MIB, 0, 0, 0) ||
	    cuMemMap(p, 2 * MIB, 0, memory, 0))
		return false;
	fake_launch(stream, p, 64, 0);
	return cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS;
}

static void begin(unsigned int state)
{
	if (!state)
		return;
	ctx = start();
	if (!ctx || cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) ||
	    cuMemAlloc_v2(&block, MIB) || cuMemAllocAsync(&async, MIB, stream) ||
	    cuStreamSynchronize(stream))
		exit(3);
	make_objects();
	if (state == 1)
		cuCtxSetCurrent(NULL);
	else if (state >= 3 && state <= 5)
		cuStreamBeginCapture_v2(stream, state - 3);
	else if (state == 6 && !fail_context())
		exit(3);
}

#define NR_CALLS	(sizeof(calls) / sizeof(calls[0]))
#define NR_ROWS		(sizeof(rows) / sizeof(rows[0]))

/* Whether row @i ends the context: a capture in it ends with the driver's own timing. */
static bool ends_context(size_t i)
{
	const char *name = i < NR_CALLS ? "" : rows[i - NR_CALLS].name;

	return !strncmp(name, "cuDevicePrimaryCtxRelease", 25) ||
		!strncmp(name, "cuDevicePrimaryCtxReset", 23);
}

/* The result of the call, and of the end of the capture. */
static void run_one(unsigned int state, size_t i)
{
	CUgraph captured = NULL;
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
	res = i < NR_CALLS ? calls[i].call() : call_row(&rows[i - NR_CALLS]);
	if (state >= 3 && state <= 5 && !ends_context(i))
		end = cuStreamEndCapture(stream, &captured);
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

#define PASSED(name)
#define SERVED(name)	if (!has_row(#name)) printf("no row: %s\n", #name);
	HM_CUDA_CALLS(PASSED, SERVED)
	for (i = 0; i < NR_CALLS + NR_ROWS; i++) {
		printf("%zu %s:", i, i < NR_CALLS ? calls[i].name : rows[i - NR_CALLS].name);
		for (state = 0; state < sizeof(states) / sizeof(states[0]); state++) {
			printf(" %s", states[state]);
			fflush(stdout);
			child = fork();
			if (!child)
				run_one(state, i);
			if (waitpid(child, &status, 0) != child || status)
				printf(" died(%#x)", status);
		}
		printf("\n");
	}
	return 0;
}
