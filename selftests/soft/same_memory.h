/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What drivers say of memory: mappings that are in each other's way, handles
 * of the host's memory, pointers, pools.
 */
#ifndef HETMEM_SELFTESTS_SAME_MEMORY_H
#define HETMEM_SELFTESTS_SAME_MEMORY_H

#include "same.h"

/* Whether @p is mapped, in words. */
static void say_range(CUdeviceptr p)
{
	CUdeviceptr base = 0;
	size_t size = 0;
	int res = d->cuMemGetAddressRange(&base, &size, p);

	if (res)
		say("range:%d", res);
	else
		say("range:%lld+%zu", (long long)(base - va) / (long long)G,
		    size / G);
}

static void map_part(void)
{
	say("%d", d->cuMemMap(va, G, G, handle, 0));
	say("%d", d->cuMemMap(va, G, 0, handle, 0));
	say("%d", d->cuMemMap(va, 4 * G, 0, handle, 0));
	say("%d", d->cuMemMap(va, 2 * G, 0, handle, 1));
	say("%d", d->cuMemMap(va + 4096, 2 * G, 0, handle, 0));
	say_range(va);
}

static void map_over(void)
{
	say("%d", d->cuMemMap(va + 2 * G, 2 * G, 0, handle, 0));
	say("%d", d->cuMemMap(va + G, 2 * G, 0, handle, 0));
	say("%d", d->cuMemMap(va + 3 * G, 2 * G, 0, handle, 0));
	say_range(va + 2 * G);
}

/*
 * Across the end of a reservation nothing is asked: CUDA refuses it unless what
 * is behind is another one, or was a moment ago.
 */
static void map_outside(void)
{
	say("%d", d->cuMemMap(va + 14 * G, 2 * G, 0, handle, 0));
	say_range(va + 11 * G);
}

static void unmap_part(void)
{
	say("%d", d->cuMemUnmap(va + 2 * G, G));
	say("%d", d->cuMemUnmap(va + 3 * G, G));
	say("%d", d->cuMemUnmap(va + 3 * G, 4 * G));
	say("%d", d->cuMemUnmap(va, 3 * G));
	say("%d", d->cuMemUnmap(va + 2 * G, 0));
	say("%d", d->cuMemUnmap(va + 2 * G + 4096, 2 * G));
	say("%d", d->cuMemUnmap(va + 2 * G, 2 * G - 4096));
	say_range(va + 2 * G);
}

static void unmap_hole(void)
{
	say("%d", d->cuMemUnmap(va, 4 * G));
	say_range(va + 2 * G);
	say("%d", d->cuMemUnmap(va + 2 * G, 2 * G));
}

static void unmap_nothing(void)
{
	say("%d", d->cuMemUnmap(va, 2 * G));
	say("%d", d->cuMemUnmap(va + 6 * G, 6 * G));
	say("%d", d->cuMemUnmap(va + 8 * G, 8 * G));
	say("%d", d->cuMemUnmap(va + 64 * G, G));
}

/* Two mappings, a hole in between: what of it goes? */
static void unmap_two(void)
{
	d->cuMemMap(va + 6 * G, 2 * G, 0, handle, 0);
	say("%d", d->cuMemUnmap(va + 2 * G, 5 * G));
	say_range(va + 2 * G);
	say("%d", d->cuMemUnmap(va + 2 * G, 6 * G));
	say_range(va + 2 * G);
	say_range(va + 6 * G);
}

static void access_part(void)
{
	CUmemAccessDesc desc = rw;

	say("%d", d->cuMemSetAccess(va, 4 * G, &rw, 1));
	say("%d", d->cuMemSetAccess(va + 2 * G, 4 * G, &rw, 1));
	say("%d", d->cuMemSetAccess(va, 2 * G, &rw, 1));
	say("half:%d", d->cuMemSetAccess(va + 2 * G, G, &rw, 1));
	say("%d", d->cuMemSetAccess(va + 3 * G, G, &rw, 1));
	say("%d", d->cuMemSetAccess(va + 2 * G, 0, &rw, 1));
	say("%d", d->cuMemSetAccess(va + 2 * G, 2 * G, &rw, 0));
	desc.flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
	say("read:%d", d->cuMemSetAccess(va + 2 * G, 2 * G, &desc, 1));
	desc.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
	say("none:%d", d->cuMemSetAccess(va + 2 * G, 2 * G, &desc, 1));
	desc.flags = 2;
	say("write:%d", d->cuMemSetAccess(va + 2 * G, 2 * G, &desc, 1));
}


static void free_mapped(void)
{
	CUdeviceptr again;

	say("%d", d->cuMemAddressFree(va, 12 * G));
	say_range(va + 2 * G);
	say("unmap:%d", d->cuMemUnmap(va + 2 * G, 2 * G));
	say_range(va + 2 * G);
	say("free:%d", d->cuMemAddressFree(va, 12 * G));
	say("reserve:%d", d->cuMemAddressReserve(&again, 12 * G, 0, va, 0));
	say("same:%d", again == va);
	va = again;
}

static void free_wrong(void)
{
	d->cuMemUnmap(va + 2 * G, 2 * G);
	say("%d", d->cuMemAddressFree(va, 6 * G));
	say("%d", d->cuMemAddressFree(va + 2 * G, 10 * G));
	say("%d", d->cuMemAddressFree(va, 24 * G));
	say("%d", d->cuMemAddressFree(va, 12 * G));
	say("%d", d->cuMemAddressFree(va, 12 * G));
}

static void reserve_odd(void)
{
	CUdeviceptr p;

	say("%d", d->cuMemAddressReserve(&p, G + 4096, 0, 0, 0));
	say("%d", d->cuMemAddressReserve(&p, 0, 0, 0, 0));
	say("%d", d->cuMemAddressReserve(&p, G, 3 * G, 0, 0));
	say("%d", d->cuMemAddressReserve(&p, G, 0, 0, 1));
	say("%d", d->cuMemAddressReserve(&p, G, 0, va, 0));
	say("%d", p == va);
	d->cuMemAddressFree(p, G);
}

static void create_odd(void)
{
	CUmemGenericAllocationHandle h = 0;
	CUmemAllocationProp other = prop;

	say("%d", d->cuMemCreate(&h, G + 4096, &prop, 0));
	say("%d", d->cuMemCreate(&h, 0, &prop, 0));
	say("%d", d->cuMemCreate(&h, G, &prop, 1));
	say("%d", d->cuMemCreate(&h, (size_t)1 << 50, &prop, 0));
	other.location.id = 99;
	say("%d", d->cuMemCreate(&h, G, &other, 0));
	other = prop;
	other.type = CU_MEM_ALLOCATION_TYPE_INVALID;
	say("%d", d->cuMemCreate(&h, G, &other, 0));
	other = prop;
	other.location.type = CU_MEM_LOCATION_TYPE_INVALID;
	say("%d", d->cuMemCreate(&h, G, &other, 0));
	other = prop;
	other.requestedHandleTypes = 64;
	say("%d", d->cuMemCreate(&h, G, &other, 0));
	d->cuMemRelease(h);
	other.requestedHandleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
	say("fabric:%d", d->cuMemCreate(&h, G, &other, 0));
}

/* A handle lives on in its mapping. */
static void release_mapped(void)
{
	say("%d", d->cuMemRelease(handle));
	say_range(va + 2 * G);
	d->cuMemCreate(&handle, 2 * G, &prop, 0);
}

/* One memory behind two addresses: how many bytes differ. */
static void alias(void)
{
	unsigned char out[64];
	int i, bad = 0;

	say("%d", d->cuMemMap(va + 6 * G, 2 * G, 0, handle, 0));
	say("%d", d->cuMemSetAccess(va + 6 * G, 2 * G, &rw, 1));
	d->cuMemsetD8Async(va + 2 * G + 100, 0x3c, 64, a);
	d->cuMemcpyDtoHAsync(out, va + 6 * G + 100, 64, a);
	say("%d", d->cuStreamSynchronize(a));
	for (i = 0; i < 64; i++)
		bad += out[i] != 0x3c;
	say("bad:%d", bad);
	say("%d", d->cuMemUnmap(va + 6 * G, 2 * G));
	say_range(va + 2 * G);
}

/* A new mapping of a handle is usable while work uses the old one. */
static void map_under_work(void)
{
	int i;

	for (i = 0; i < 200; i++)
		d->cuMemsetD8Async(va + 2 * G, i, 2 * G, a);
	say("%d", d->cuMemMap(va + 6 * G, 2 * G, 0, handle, 0));
	say("%d", d->cuMemSetAccess(va + 6 * G, 2 * G, &rw, 1));
	say("%d", d->cuMemsetD8Async(va + 6 * G, 1, 2 * G, a));
	say("%d", d->cuStreamSynchronize(a));
	say("%d", d->cuMemUnmap(va + 6 * G, 2 * G));
}

static void ranges(void)
{
	static char mine[64];

	say_range(va + 3 * G + 5);
	say_range(va);
	say_range((uintptr_t)mine);
	say_range(0);
}

static void say_attribute(CUpointer_attribute which, CUdeviceptr p)
{
	unsigned long long value = 0;
	int res = d->cuPointerGetAttribute(&value, which, p);

	if (res)
		say("%d:%d", which, res);
	else
		say("%d=%llu", which, value);
}

/* All that is no address of this very run. */
static void say_attributes(CUdeviceptr p)
{
	static const CUpointer_attribute which[] = {
		CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
		CU_POINTER_ATTRIBUTE_IS_MANAGED,
		CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
		CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE,
		CU_POINTER_ATTRIBUTE_RANGE_SIZE,
		CU_POINTER_ATTRIBUTE_MAPPED,
		CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES,
	};
	void *pointer = NULL;
	CUdeviceptr base = 0;
	size_t i;
	int res;

	for (i = 0; i < sizeof(which) / sizeof(which[0]); i++)
		say_attribute(which[i], p);
	res = d->cuPointerGetAttribute(&pointer,
				       CU_POINTER_ATTRIBUTE_HOST_POINTER, p);
	say("host:%d,%d", res, pointer == (void *)(uintptr_t)p);
	pointer = NULL;
	res = d->cuPointerGetAttribute(&pointer,
				       CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p);
	say("pool:%d,%d", res, !!pointer);
	res = d->cuPointerGetAttribute(&pointer,
				       CU_POINTER_ATTRIBUTE_CONTEXT, p);
	say("ctx:%d,%d", res, !res && pointer == (void *)ctx);
	res = d->cuPointerGetAttribute(&base,
				CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, p);
	say("base:%d,%lld", res, res ? 0 : (long long)(p - base));
}

static void about_device(void)
{
	CUdeviceptr p = 0;

	d->cuMemAlloc(&p, 1000);
	say_attributes(p + 7);
	d->cuMemFree(p);
}

static void about_managed(void)
{
	CUdeviceptr p = 0;

	d->cuMemAllocManaged(&p, 1000, CU_MEM_ATTACH_GLOBAL);
	say_attributes(p + 7);
	d->cuMemFree(p);
}

static void about_host(void)
{
	void *p = NULL;

	d->cuMemHostAlloc(&p, 1000, 0);
	say_attributes((uintptr_t)p + 7);
	d->cuMemFreeHost(p);
}

static void about_registered(void)
{
	void *p = aligned_alloc(4096, 8192);

	d->cuMemHostRegister(p, 8192, 0);
	say_attributes((uintptr_t)p + 7);
	d->cuMemHostUnregister(p);
	free(p);
}

static void about_async(void)
{
	CUdeviceptr p = 0;

	d->cuMemAllocAsync(&p, 1000, a);
	d->cuStreamSynchronize(a);
	say_attributes(p + 7);
	say("set:%d", d->cuMemSetAccess(p, 1000, &rw, 1));
	d->cuMemFreeAsync(p, a);
}

static void about_mapping(void)
{
	say_attributes(va + 2 * G + 7);
}

static void about_reserved(void)
{
	say_attributes(va + 7);
}

static void about_malloc(void)
{
	static char mine[64];

	say_attributes((uintptr_t)mine);
}

static unsigned long long buffer_id(CUdeviceptr p)
{
	unsigned long long buffer = 0;

	d->cuPointerGetAttribute(&buffer, CU_POINTER_ATTRIBUTE_BUFFER_ID, p);
	return buffer;
}

/* Of the handle, of the mapping, or of the address? */
static void buffer_ids(void)
{
	unsigned long long first = buffer_id(va + 2 * G);

	say("%d", !!first);
	say("%d", buffer_id(va + 3 * G + 5) == first);
	d->cuMemMap(va + 6 * G, 2 * G, 0, handle, 0);
	say("%d", buffer_id(va + 6 * G) == first);
	say("%d", buffer_id(va + 2 * G) == first);
	d->cuMemUnmap(va + 2 * G, 2 * G);
	d->cuMemMap(va + 2 * G, 2 * G, 0, handle, 0);
	say("%d", buffer_id(va + 2 * G) == first);
	say("%d", buffer_id(va + 2 * G) > first);
}

static void registers(void)
{
	char *p = aligned_alloc(4096, 16384);
	static char mine[8192];

	say("%d", d->cuMemHostRegister(p, 8192, CU_MEMHOSTREGISTER_PORTABLE));
	say("%d", d->cuMemHostRegister(p, 4096, 0));
	say("%d", d->cuMemHostRegister(p + 4096, 8192, 0));
	say("%d", d->cuMemHostUnregister(p + 4096));
	say("%d", d->cuMemHostUnregister(p));
	say("%d", d->cuMemHostUnregister(p));
	say("%d", d->cuMemHostUnregister(mine));
	say("%d", d->cuMemHostRegister(NULL, 4096, 0));
	say("%d", d->cuMemHostRegister(p, 0, 0));
	say("%d", d->cuMemHostRegister((void *)(uintptr_t)(va + 2 * G), 4096,
				       0));
	free(p);
}

static void events(void)
{
	CUevent e;

	say("%d", d->cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
	say("%d", d->cuEventQuery(e));
	say("%d", d->cuStreamWaitEvent(a, e, 0));
	say("%d", d->cuEventDestroy(e));
}

static void stream_ids(void)
{
	unsigned long long first, second, per_thread, legacy;
	CUstream s;

	d->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
	d->cuStreamGetId(s, &first);
	d->cuStreamDestroy(s);
	d->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
	d->cuStreamGetId(s, &second);
	d->cuStreamDestroy(s);
	d->cuStreamGetId(CU_STREAM_PER_THREAD, &per_thread);
	d->cuStreamGetId(NULL, &legacy);
	say("%d", first == second || per_thread == legacy || legacy == first);
}

static void pools(void)
{
	CUmemPoolProps props = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
		.maxSize = 64 << 20,
	};
	CUmemoryPool pool;
	CUdeviceptr p;

	say("%d", d->cuMemPoolCreate(&pool, &props));
	say("%d", d->cuMemAllocFromPoolAsync(&p, 128 << 20, pool, a));
	p = 9;
	say("%d", d->cuMemAllocFromPoolAsync(&p, 0, pool, a));
	say("ptr:%d", !p ? 0 : p == 9 ? 9 : 1);
	say("free:%d", d->cuMemFreeAsync(0, a));
	say("%d", d->cuMemAllocFromPoolAsync(&p, 32 << 20, pool, a));
	say("%d", d->cuMemFreeAsync(p + 4096, a));
	say("%d", d->cuMemFreeAsync(p, a));
	say("%d", d->cuMemFreeAsync(p, a));
	say("%d", d->cuMemFreeAsync(va + 2 * G, a));
	d->cuStreamSynchronize(a);
	say("%d", d->cuMemPoolDestroy(pool));
	props.location.id = 99;
	say("%d", d->cuMemPoolCreate(&pool, &props));
}

static void frees(void)
{
	CUdeviceptr p = 0;
	void *host = NULL;

	d->cuMemAlloc(&p, 8192);
	say("%d", d->cuMemFree(p + 4096));
	say("%d", d->cuMemFree(p));
	say("%d", d->cuMemFree(p));
	say("%d", d->cuMemFree(0));
	say("%d", d->cuMemFree(va + 2 * G));
	say("%d", d->cuMemAlloc(&p, 0));
	d->cuMemHostAlloc(&host, 8192, 0);
	say("%d", d->cuMemFree((uintptr_t)host));
	say("%d", d->cuMemFreeHost((char *)host + 4096));
	say("%d", d->cuMemFreeHost(host));
	say("%d", d->cuMemFreeHost(host));
	d->cuMemAlloc(&p, 8192);
	say("%d", d->cuMemFreeAsync(p, a));
	d->cuStreamSynchronize(a);
	say("%d", d->cuMemFree(p));
	d->cuMemAllocAsync(&p, 8192, a);
	d->cuStreamSynchronize(a);
	say("%d", d->cuMemFree(p));
}

/* The legacy stream waits for blocking ones: while such a one is captured? */
static void legacy_blocked(int which)
{
	CUstreamCaptureStatus told = 7;
	unsigned long long which_id;
	CUgraph graph = NULL;
	CUstream blocking;
	CUcontext of;
	int res = 0;

	d->cuStreamCreate(&blocking, CU_STREAM_DEFAULT);
	d->cuStreamBeginCapture(blocking, CU_STREAM_CAPTURE_MODE_RELAXED);
	switch (which) {
	case 0:
		res = d->cuStreamIsCapturing(NULL, &told);
		break;
	case 1:
		res = d->cuStreamGetId(NULL, &which_id);
		break;
	case 2:
		res = d->cuStreamGetCtx(NULL, &of);
		break;
	case 3:
		res = d->cuStreamQuery(NULL);
		break;
	case 4:
		res = d->cuMemsetD8Async(va + 2 * G, 1, 64, NULL);
		break;
	case 5:
		res = d->cuEventRecord(event, NULL);
		break;
	case 6:
		res = d->cuStreamWaitEvent(NULL, event, 0);
		break;
	}
	say("%d/%d", res, d->cuStreamEndCapture(blocking, &graph));
	if (!which)
		say("status:%d", told);
	if (graph)
		d->cuGraphDestroy(graph);
	d->cuStreamDestroy(blocking);
}

static void legacy(void)
{
	int i;

	for (i = 0; i < 7; i++)
		legacy_blocked(i);
}

static const struct probe memory_probes[] = {
#define P(fn)	{ #fn, fn }
	P(map_part), P(map_over), P(map_outside), P(unmap_part),
	P(unmap_hole), P(unmap_nothing), P(unmap_two), P(access_part),
	P(access_of_device), P(free_mapped), P(free_wrong), P(reserve_odd),
	P(create_odd), P(release_mapped), P(alias), P(map_under_work),
	P(ranges), P(about_device), P(about_managed), P(about_host),
	P(about_registered), P(about_async), P(about_mapping),
	P(about_reserved), P(about_malloc), P(buffer_ids),
	P(registers), P(events), P(stream_ids), P(pools),
	P(frees), P(legacy),
#undef P
};

#endif /* HETMEM_SELFTESTS_SAME_MEMORY_H */
