/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What drivers say of the host as a place: handles of a NUMA node's memory,
 * pools there, prefetch and advice to it.
 */
#ifndef HETMEM_SELFTESTS_SAME_HOST_H
#define HETMEM_SELFTESTS_SAME_HOST_H

#include "same.h"

static const CUmemLocation places[] = {
	{ CU_MEM_LOCATION_TYPE_DEVICE, 0 },
	{ CU_MEM_LOCATION_TYPE_DEVICE, 99 },
	{ CU_MEM_LOCATION_TYPE_HOST, 0 },
	{ CU_MEM_LOCATION_TYPE_HOST, 5 },
	{ CU_MEM_LOCATION_TYPE_HOST_NUMA, 0 },
	{ CU_MEM_LOCATION_TYPE_HOST_NUMA, 77 },
	{ CU_MEM_LOCATION_TYPE_HOST_NUMA, -1 },
	{ CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT, 0 },
	{ CU_MEM_LOCATION_TYPE_INVALID, 0 },
};

#define NR_PLACES	(sizeof(places) / sizeof(places[0]))

static void granularity_at(void)
{
	CUmemAllocationProp p = prop;
	size_t i, size;

	for (i = 0; i < NR_PLACES; i++) {
		p.location = places[i];
		size = 0;
		say("%d", d->cuMemGetAllocationGranularity(&size, &p,
					CU_MEM_ALLOC_GRANULARITY_MINIMUM));
		say("%zuK", size >> 10);
	}
}

static void create_at(void)
{
	CUmemGenericAllocationHandle h;
	CUmemAllocationProp p = prop;
	size_t i;
	int res;

	for (i = 0; i < NR_PLACES; i++) {
		p.location = places[i];
		res = d->cuMemCreate(&h, G, &p, 0);
		say("%d", res);
		if (!res)
			d->cuMemRelease(h);
	}
}

static CUmemGenericAllocationHandle map_host(CUmemAccessDesc *host)
{
	CUmemGenericAllocationHandle h = 0;
	CUmemAllocationProp p = prop;

	p.location = (CUmemLocation){ CU_MEM_LOCATION_TYPE_HOST_NUMA, 0 };
	host->location = p.location;
	host->flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	say("%d", d->cuMemCreate(&h, G, &p, 0));
	say("%d", d->cuMemMap(va + 6 * G, G, 0, h, 0));
	return h;
}

static void unmap_host(CUmemGenericAllocationHandle h)
{
	say("%d", d->cuMemUnmap(va + 6 * G, G));
	say("%d", d->cuMemRelease(h));
}

/* The CPU and the device write the same memory. */
static void host_memory(void)
{
	CUmemAccessDesc host;
	CUmemGenericAllocationHandle h = map_host(&host);
	volatile unsigned char *p = (void *)(uintptr_t)(va + 6 * G);
	unsigned char out = 0;
	int res, dev;

	res = d->cuMemSetAccess(va + 6 * G, G, &host, 1);
	dev = d->cuMemSetAccess(va + 6 * G, G, &rw, 1);
	say("host:%d device:%d", res, dev);
	if (!res && !dev) {
		p[100] = 0x5a;
		d->cuMemcpyDtoHAsync(&out, va + 6 * G + 100, 1, a);
		d->cuMemsetD8Async(va + 6 * G + 200, 0x77, 1, a);
		say("sync:%d", d->cuStreamSynchronize(a));
		say("%x %x", out, p[200]);
	}
	unmap_host(h);
}

static void host_access(void)
{
	CUmemAccessDesc host, both[2];
	CUmemGenericAllocationHandle h = map_host(&host);
	unsigned long long flags;
	size_t i;
	int res;

	both[0] = rw;
	both[1] = host;
	say("both:%d", d->cuMemSetAccess(va + 6 * G, G, both, 2));
	for (i = 0; i < NR_PLACES; i++) {
		flags = 9;
		res = d->cuMemGetAccess(&flags, &places[i], va + 6 * G);
		say("%d,%llu", res, flags);
	}
	for (i = 2; i < NR_PLACES; i++) {
		host.location = places[i];
		say("%d", d->cuMemSetAccess(va + 6 * G, G, &host, 1));
	}
	unmap_host(h);
}

static void access_of_device(void)
{
	unsigned long long flags;
	CUmemAccessDesc desc = rw;
	size_t i;
	int res;

	for (i = 0; i < NR_PLACES; i++) {
		desc.location = places[i];
		say("%d", d->cuMemSetAccess(va + 2 * G, 2 * G, &desc, 1));
		flags = 9;
		res = d->cuMemGetAccess(&flags, &places[i], va + 2 * G);
		say("%d,%llu", res, flags);
	}
}

static void host_attributes(void)
{
	static const CUpointer_attribute which[] = {
		CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
		CU_POINTER_ATTRIBUTE_IS_MANAGED,
		CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
		CU_POINTER_ATTRIBUTE_RANGE_SIZE,
		CU_POINTER_ATTRIBUTE_MAPPED,
	};
	CUmemAccessDesc host;
	CUmemGenericAllocationHandle h = map_host(&host);
	unsigned long long value;
	void *pointer = NULL;
	size_t i;
	int res;

	d->cuMemSetAccess(va + 6 * G, G, &host, 1);
	d->cuMemSetAccess(va + 6 * G, G, &rw, 1);
	for (i = 0; i < sizeof(which) / sizeof(which[0]); i++) {
		value = 0;
		res = d->cuPointerGetAttribute(&value, which[i], va + 6 * G);
		say("%d:%d=%d", which[i], res, (int)value);
	}
	res = d->cuPointerGetAttribute(&pointer,
			CU_POINTER_ATTRIBUTE_HOST_POINTER, va + 6 * G);
	say("host:%d,%d", res, pointer == (void *)(uintptr_t)(va + 6 * G));
	res = d->cuPointerGetAttribute(&pointer, CU_POINTER_ATTRIBUTE_CONTEXT,
				       va + 6 * G);
	say("ctx:%d,%d", res, !res && pointer == (void *)ctx);
	unmap_host(h);
}

static void pool_at(void)
{
	CUmemPoolProps p = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED };
	CUmemoryPool pool;
	CUdeviceptr mem;
	size_t i;
	int res;

	for (i = 0; i < NR_PLACES; i++) {
		p.location = places[i];
		res = d->cuMemPoolCreate(&pool, &p);
		say("%d", res);
		if (res)
			continue;
		res = d->cuMemAllocFromPoolAsync(&mem, 4096, pool, a);
		say("(%d", res);
		if (!res)
			d->cuMemFreeAsync(mem, a);
		say("%d)", d->cuStreamSynchronize(a));
		d->cuMemPoolDestroy(pool);
	}
}

static void prefetch_to(void)
{
	CUdeviceptr p;
	size_t i;

	if (!d->cuMemPrefetchAsync_v2) {
		say("none");
		return;
	}
	d->cuMemAllocManaged(&p, 2 * G, CU_MEM_ATTACH_GLOBAL);
	for (i = 0; i < NR_PLACES; i++)
		say("%d", d->cuMemPrefetchAsync_v2(p, 2 * G, places[i], 0, a));
	say("%d", d->cuMemPrefetchAsync_v2(p, 4 * G, places[0], 0, a));
	say("%d", d->cuMemPrefetchAsync_v2(p, 0, places[0], 0, a));
	say("%d", d->cuMemPrefetchAsync_v2(p, G, places[0], 1, a));
	say("%d", d->cuMemPrefetchAsync_v2(va + 2 * G, G, places[0], 0, a));
	say("%d", d->cuMemPrefetchAsync_v2((uintptr_t)&p, 8, places[0], 0, a));
	say("%d", d->cuStreamSynchronize(a));
	d->cuMemFree(p);
}

static void prefetch_batch_to(void)
{
	CUdeviceptr p[2];
	size_t sizes[2] = { G, G }, first[2] = { 0, 1 }, i;
	CUmemLocation where[2];

	if (!d->cuMemPrefetchBatchAsync) {
		say("none");
		return;
	}
	d->cuMemAllocManaged(&p[0], 2 * G, CU_MEM_ATTACH_GLOBAL);
	p[1] = p[0] + G;
	for (i = 0; i < NR_PLACES; i++) {
		where[0] = places[0];
		where[1] = places[i];
		say("%d", d->cuMemPrefetchBatchAsync(p, sizes, 2, where, first,
						     2, 0, a));
	}
	say("%d", d->cuMemPrefetchBatchAsync(p, sizes, 0, where, first, 1, 0,
					     a));
	first[1] = 0;
	where[1] = where[0];
	say("%d", d->cuMemPrefetchBatchAsync(p, sizes, 2, where, first, 2, 0,
					     a));
	say("%d", d->cuStreamSynchronize(a));
	d->cuMemFree(p[0]);
}

static void advise_at(void)
{
	int advice, told;
	CUdeviceptr p;
	size_t i;

	if (!d->cuMemAdvise_v2) {
		say("none");
		return;
	}
	d->cuMemAllocManaged(&p, 2 * G, CU_MEM_ATTACH_GLOBAL);
	for (advice = CU_MEM_ADVISE_SET_PREFERRED_LOCATION;
	     advice <= CU_MEM_ADVISE_SET_ACCESSED_BY; advice += 2) {
		for (i = 0; i < NR_PLACES; i++)
			say("%d", d->cuMemAdvise_v2(p, 2 * G, advice,
						    places[i]));
		say("|");
	}
	for (i = 0; i < NR_PLACES; i++)
		say("%d", d->cuMemAdvise_v2(p, 2 * G,
				CU_MEM_ADVISE_SET_READ_MOSTLY, places[i]));
	say("| %d", d->cuMemAdvise_v2(p, 4 * G, 1, places[0]));
	say("%d", d->cuMemAdvise_v2(p, 2 * G, 99, places[0]));
	told = 9;
	say("%d", d->cuMemRangeGetAttribute(&told, 4,
			CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, 2 * G));
	say("%d", told);
	d->cuMemFree(p);
}

/* What is told after each place was asked for, and that it is of the last. */
static void remembered(void)
{
	static const CUmemLocation asked[] = {
		{ CU_MEM_LOCATION_TYPE_DEVICE, 0 },
		{ CU_MEM_LOCATION_TYPE_HOST, 0 },
		{ CU_MEM_LOCATION_TYPE_HOST_NUMA, 0 },
	};
	int told[4], i;
	CUdeviceptr p;

	d->cuMemAllocManaged(&p, 2 * G, CU_MEM_ATTACH_GLOBAL);
	for (i = 0; i < 3 && d->cuMemAdvise_v2; i++) {
		d->cuMemAdvise_v2(p, 2 * G,
				  CU_MEM_ADVISE_SET_PREFERRED_LOCATION,
				  asked[i]);
		d->cuMemPrefetchAsync_v2(p, 2 * G, asked[i], 0, a);
		d->cuStreamSynchronize(a);
		told[0] = told[1] = 9;
		d->cuMemRangeGetAttribute(&told[0], 4,
			CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, p, 2 * G);
		d->cuMemRangeGetAttribute(&told[1], 4,
			CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, p,
			2 * G);
		say("%d,%d", told[0], told[1]);
	}
	say("%d", d->cuMemRangeGetAttribute(told, 16,
			CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, p, 2 * G));
	say("%d,%d", told[0], told[1]);
	d->cuMemFree(p);
}

static const struct probe host_probes[] = {
#define P(fn)	{ #fn, fn }
	P(granularity_at), P(create_at), P(host_memory), P(host_access), P(access_of_device),
	P(host_attributes), P(pool_at), P(prefetch_to), P(prefetch_batch_to),
	P(advise_at), P(remembered),
#undef P
};

#endif /* HETMEM_SELFTESTS_SAME_HOST_H */
