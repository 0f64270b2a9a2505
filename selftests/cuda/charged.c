// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * charged [managed|ipc]: with limit(POOL,max=64M), arrays and mipmapped arrays of the driver's
 * obey the limit; the attributes of the default pool; memory that is shared. With "managed" the
 * setting managed=on is given, with "ipc" ipc=on.
 */
#include "cuda/libcuda.h"
#include "cuda/program.h"

#define LIMIT	(64 * MIB)

enum { SINT8 = 0x08, HALF = 0x10, FLOAT = 0x20, BC1 = 0x91, BC7 = 0x9d, UNORM16X4 = 0xc5 };

static CUcontext ctx;

static size_t left(void)
{
	size_t available = 0, total = 0;

	cuMemGetInfo_v2(&available, &total);
	return available;
}

static void arrays(void)
{
	static const struct {
		struct hm_cuda_array_shape shape;
		unsigned int levels;
		size_t bytes;
	} rows[] = {
		{ { 1 << 20, 0, 0, SINT8, 1, 0 }, 0, MIB },
		{ { 1024, 1024, 0, FLOAT, 4, 0 }, 0, 16 * MIB },
		{ { 1024, 1024, 0, HALF, 2, 0 }, 0, 4 * MIB },
		{ { 256, 256, 64, FLOAT, 1, 0 }, 0, 16 * MIB },
		{ { 1024, 1024, 6, SINT8, 1, 1 }, 0, 6 * MIB },
		{ { 2048, 2048, 0, BC1, 4, 0 }, 0, 2 * MIB },
		{ { 2048, 2048, 0, BC7, 4, 0 }, 0, 4 * MIB },
		{ { 512, 512, 0, UNORM16X4, 4, 0 }, 0, 2 * MIB },
		/* Sparse, and of deferred mapping: no memory of their own. */
		{ { 4096, 4096, 0, FLOAT, 4, 0x40 }, 0, 0 },
		{ { 4096, 4096, 0, FLOAT, 4, 0x80 }, 0, 0 },
		{ { 1024, 1024, 0, FLOAT, 1, 0 }, 1, 4 * MIB },
		{ { 1024, 1024, 0, FLOAT, 1, 0 }, 3, 4 * MIB + MIB + MIB / 4 },
		{ { 4, 4, 0, FLOAT, 1, 0 }, 9, 64 + 16 + 4 },
		{ { 64, 64, 64, FLOAT, 1, 0 }, 2, MIB + MIB / 8 },
		{ { 512, 512, 4, FLOAT, 1, 1 }, 2, 4 * MIB + MIB },
	};
	const struct hm_cuda_array_2d flat = { 2048, 2048, FLOAT, 2 };
	const struct hm_cuda_array_shape large = { 4096, 4096, 0, FLOAT, 2, 0 };
	void *array, *more;
	size_t i;

	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		if (rows[i].levels)
			is(cuMipmappedArrayCreate(&array, &rows[i].shape, rows[i].levels), 0,
			   "row %zu: a mipmapped array", i);
		else
			is(cuArray3DCreate_v2(&array, &rows[i].shape), 0, "row %zu: an array", i);
		is(LIMIT - left(), rows[i].bytes, "which is charged");
		is(rows[i].levels ? cuMipmappedArrayDestroy(array) : cuArrayDestroy(array), 0,
		   "until it is destroyed");
		is(left(), LIMIT, "then it is not");
	}
	is(cuArrayCreate_v2(&array, &flat), 0, "an array of two dimensions");
	is(LIMIT - left(), 32 * MIB, "is charged");
	is(cuArrayCreate_v2(&more, &flat), 0, "another one");
	is(left(), 0, "fills the limit");
	is(cuArrayCreate_v2(&more, &(struct hm_cuda_array_2d){ 1, 1, SINT8, 1 }),
	   CUDA_ERROR_OUT_OF_MEMORY, "a third is beyond it");
	is(cuMipmappedArrayCreate(&more, &large, 2), CUDA_ERROR_OUT_OF_MEMORY, "so are levels");
	is(cuArrayDestroy((void *)&left), CUDA_ERROR_INVALID_VALUE, "a foreign array");
	is(left(), 0, "changes nothing");
	is(cuArrayDestroy(array), 0, "the first is destroyed");
	is(cuArrayDestroy(array), CUDA_ERROR_INVALID_VALUE, "but not twice");
	is(left(), 32 * MIB, "and counts once");
	is(cuDevicePrimaryCtxRelease_v2(0), 0, "the context ends");
	cuDevicePrimaryCtxRetain(&ctx, 0);
	cuCtxSetCurrent(ctx);
	is(left(), LIMIT, "and its arrays with it");
}

static cuuint64_t attribute(CUmemoryPool pool, CUmemPool_attribute which)
{
	cuuint64_t value = ~0ULL;

	return cuMemPoolGetAttribute(pool, which, &value) ? ~0ULL : value;
}

static void pools(void)
{
	cuuint64_t none = 0, threshold = 12345;
	CUmemoryPool pool = NULL;
	CUdeviceptr p, q, other;

	cuDeviceGetDefaultMemPool(&pool, 0);
	is(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0, "the default pool is unused");
	cuMemAlloc_v2(&other, 4 * MIB);
	is(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0, "cuMemAlloc() uses none of it");
	cuMemAllocAsync(&p, 10 * MIB, NULL);
	cuMemAllocAsync(&q, 6 * MIB, NULL);
	is(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 16 * MIB, "cuMemAllocAsync() does");
	ok(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= 16 * MIB, "it is reserved");
	cuMemFreeAsync(p, NULL);
	is(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 6 * MIB, "until a free");
	is(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 16 * MIB, "the peak is kept");
	ok(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) >= 16 * MIB, "both peaks");
	is(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &none), 0, "it is reset");
	is(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH), 6 * MIB, "to what is used");
	is(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &threshold),
	   CUDA_ERROR_INVALID_VALUE, "to nothing else");
	is(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold), 0,
	   "another attribute");
	is(attribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD), threshold, "is the driver's");
	cuMemFree_v2(q);
	cuMemFree_v2(other);
	is(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0, "all is freed");
	is(cuMemPoolTrimTo(pool, 0), 0, "trimmed");
	is(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0, "nothing is kept");
	ok(cuMemPoolTrimTo(NULL, 0), "no pool");
	ok(attribute(NULL, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == ~0ULL, "has no attributes");
}

/* The driver is asked about address 1, which is nobody's. */
static void shared(bool is_driver)
{
	struct hm_cuda_ipc_handle handle;
	CUdeviceptr p, rows, more = 0;
	size_t pitch;
	unsigned int capable = 2;

	is(cuMemAlloc_v2(&p, 3 * MIB), 0, "memory");
	is(LIMIT - left(), 3 * MIB, "is charged");
	cuIpcGetMemHandle(&handle, p);
	ok(!strcmp(fake_last().name, "cuIpcGetMemHandle") &&
	   fake_last().args[1] == (is_driver ? (long)p : 1), is_driver ?
	   "the driver shares it" : "the driver refuses to share it");
	if (!is_driver) {
		is(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
					 p), 0, "which can be asked for");
		is(capable, 0, "and is told");
	}
	is(cuMemAllocPitch_v2(&rows, &pitch, 1000, 1024, 4), 0, "rows");
	is(LIMIT - left(), 4 * MIB, "are charged, too");
	is(cuMemAllocPitch_v2(&more, &pitch, 1000, 61 * 1024, 4), CUDA_ERROR_OUT_OF_MEMORY,
	   "more are beyond the limit");
	is(cuMemFree_v2(p), 0, "the memory is freed");
	is(cuMemFree_v2(rows), 0, "and the rows");
	is(left(), LIMIT, "and not charged");
}

static void managed(void)
{
	unsigned int is_managed = 2;
	CUdeviceptr p, q;
	CUcontext its = NULL;
	unsigned char *c;
	size_t i, n = 0;

	is(cuMemAllocManaged(&p, MIB, CU_MEM_ATTACH_GLOBAL), 0, "managed memory");
	is(LIMIT - left(), MIB, "is charged");
	c = (void *)(uintptr_t)p;
	memset(c, 5, MIB);
	is(cuMemsetD8Async(p, 6, 1000, NULL), 0, "the device writes to it");
	cuStreamSynchronize(NULL);
	ok(c[999] == 6 && c[1000] == 5, "and the CPU does");
	cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, p + 7);
	is(is_managed, 1, "it is known as managed");
	cuPointerGetAttribute(&its, CU_POINTER_ATTRIBUTE_CONTEXT, p);
	ok(its == ctx, "of the context");
	is(cuMemAlloc_v2(&q, MIB), 0, "other memory");
	cuPointerGetAttribute(&is_managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, q);
	is(is_managed, 0, "is not");
	ok(cuMemFreeAsync(p, NULL), "no stream frees managed memory");
	is(cuMemFree_v2(p), 0, "a free does");
	is(cuMemFree_v2(q), 0, "both are freed");
	is(left(), LIMIT, "and not charged");
	is(cuMemAllocManaged(&p, MIB, 0), CUDA_ERROR_INVALID_VALUE, "wrong flags");
	is(cuMemAllocManaged(&p, 0, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_INVALID_VALUE, "no bytes");
	is(cuMemAllocManaged(&p, LIMIT + 1, CU_MEM_ATTACH_GLOBAL), CUDA_ERROR_OUT_OF_MEMORY,
	   "more than the limit");
	for (i = 0; i < 300; i++)
		if (!cuMemAllocManaged(&p, 4096 + i, CU_MEM_ATTACH_GLOBAL) && !cuMemFree_v2(p))
			n++;
	is(n, 300, "many small ones");
}

int main(int argc, char **argv)
{
	const void *table;
	CUuuid id = { .bytes = { 1, 2, 3, [15] = -1 } };

	ctx = start();
	need(ctx, "a context");
	if (argc > 1 && !strcmp(argv[1], "managed")) {
		managed();
	} else if (argc > 1) {
		shared(true);
	} else {
		shared(false);
		pools();
		arrays();
		cuGetExportTable(&table, &id);
		cuGetExportTable(&table, &id);
	}
	return tap_end();
}
