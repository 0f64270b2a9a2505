// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver beside the real one: the same calls, and what each says.
 * What the library relies on must be the same; other differences are told.
 */
#include "gpu_driver.h"

#define G	((size_t)2 << 20)

/* For one driver. */
static const struct hm_driver *d;
static CUstream a, b;
static CUevent event;
static CUdeviceptr va;
static CUmemGenericAllocationHandle handle;

static const CUmemAllocationProp prop = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
};

static const CUmemAccessDesc rw = {
	.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
	.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
};

/* [va + 2 G, va + 4 G) is one handle; 12 G are reserved. */
static int map_part(void)
{
	return d->cuMemMap(va, G, G, handle, 0);
}

static int map_over(void)
{
	return d->cuMemMap(va + 2 * G, 2 * G, 0, handle, 0);
}

static int unmap_half(void)
{
	return d->cuMemUnmap(va + 2 * G, G);
}

static int unmap_hole(void)
{
	return d->cuMemUnmap(va, 4 * G);
}

static int access_hole(void)
{
	return d->cuMemSetAccess(va, 4 * G, &rw, 1);
}

static int free_mapped(void)
{
	return d->cuMemAddressFree(va, 12 * G);
}

static int create_odd(void)
{
	CUmemGenericAllocationHandle h;

	return d->cuMemCreate(&h, G + 4096, &prop, 0);
}

/* One memory behind two addresses: the differing bytes, or an error. */
static int alias(void)
{
	unsigned char out[64];
	int i, res, bad = 0;

	res = d->cuMemMap(va + 6 * G, 2 * G, 0, handle, 0);
	if (res)
		return res;
	res = d->cuMemSetAccess(va + 6 * G, 2 * G, &rw, 1);
	d->cuMemsetD8Async(va + 2 * G + 100, 0x3c, 64, a);
	d->cuMemcpyDtoHAsync(out, va + 6 * G + 100, 64, a);
	d->cuStreamSynchronize(a);
	for (i = 0; i < 64; i++)
		bad += out[i] != 0x3c;
	return res ? res : bad + (int)d->cuMemUnmap(va + 6 * G, 2 * G);
}

/* A new mapping of a handle is usable while work uses the old one. */
static int unmap_under_work(void)
{
	int i, res;

	for (i = 0; i < 200; i++)
		d->cuMemsetD8Async(va + 2 * G, i, 2 * G, a);
	res = d->cuMemMap(va + 6 * G, 2 * G, 0, handle, 0);
	if (!res)
		res = d->cuMemSetAccess(va + 6 * G, 2 * G, &rw, 1);
	if (!res)
		res = d->cuMemsetD8Async(va + 6 * G, 1, 2 * G, a);
	if (!res)
		res = d->cuStreamSynchronize(a);
	return res ? res : (int)d->cuMemUnmap(va + 6 * G, 2 * G);
}

static int range_of_mapping(void)
{
	CUdeviceptr base = 0;
	size_t size = 0;
	int res = d->cuMemGetAddressRange(&base, &size, va + 3 * G + 5);

	return res ? res : base != va + 2 * G || size != 2 * G;
}

static int range_of_malloc(void)
{
	static char mine[64];
	CUdeviceptr base;
	size_t size;

	return d->cuMemGetAddressRange(&base, &size, (uintptr_t)mine);
}

static int range_of_reserved(void)
{
	CUdeviceptr base;
	size_t size;

	return d->cuMemGetAddressRange(&base, &size, va);
}

static int attribute_of_malloc(void)
{
	static char mine[64];
	unsigned int type;

	return d->cuPointerGetAttribute(&type,
					CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
					(uintptr_t)mine);
}

static int retained_is_same(void)
{
	CUmemGenericAllocationHandle h;
	int res = d->cuMemRetainAllocationHandle(&h,
				(void *)(uintptr_t)(va + 3 * G));

	return res ? res : (h != handle) + (int)d->cuMemRelease(h);
}

static int ipc_of_mapping(void)
{
	CUipcMemHandle ipc;

	return !!d->cuIpcGetMemHandle(&ipc, va + 2 * G);
}

static int export_plain(void)
{
	int fd;

	return !!d->cuMemExportToShareableHandle(&fd, handle,
			CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
}

static int access_flags(void)
{
	unsigned long long flags = 0;
	int res = d->cuMemGetAccess(&flags, &rw.location, va + 2 * G);

	return res ? res : flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
}

static int register_twice(void)
{
	void *p = aligned_alloc(4096, 8192);
	int res = d->cuMemHostRegister(p, 8192, CU_MEMHOSTREGISTER_PORTABLE);

	if (!res) {
		res = d->cuMemHostRegister(p, 4096, 0);
		d->cuMemHostUnregister(p);
	}
	free(p);
	return res;
}

static int unregister_unknown(void)
{
	static char mine[8192];

	return d->cuMemHostUnregister(mine);
}

static int never_recorded(void)
{
	CUevent e;
	int res = d->cuEventCreate(&e, CU_EVENT_DISABLE_TIMING);

	if (!res)
		res = d->cuEventQuery(e);
	if (!res)
		res = d->cuStreamWaitEvent(a, e, 0);
	d->cuEventDestroy(e);
	return res;
}

static int ids_differ(void)
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
	return first == second || per_thread == legacy || legacy == first;
}

static int limited_pool(void)
{
	CUmemPoolProps props = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
		.maxSize = 64 << 20,
	};
	CUmemoryPool pool;
	CUdeviceptr p;
	int res = d->cuMemPoolCreate(&pool, &props);

	if (res)
		return res;
	res = d->cuMemAllocFromPoolAsync(&p, 128 << 20, pool, a);
	d->cuMemPoolDestroy(pool);
	return res;
}

static int no_peer(void)
{
	int can = 7;
	int res = d->cuDeviceCanAccessPeer(&can, 0, 0);

	return res ? res : can;
}

/* What @call says while a stream captures in GLOBAL mode: * 1000 + the end. */
static int captured(int (*call)(void))
{
	CUgraph graph = NULL;
	int res = d->cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL);
	int end;

	if (res)
		return -res;
	res = call();
	end = d->cuStreamEndCapture(a, &graph);
	if (graph)
		d->cuGraphDestroy(graph);
	d->cuStreamSynchronize(a);
	return res * 1000 + end;
}

static int c_alloc(void)
{
	CUdeviceptr p;
	int res = d->cuMemAlloc(&p, 4096);

	return res ? res : (int)d->cuMemFree(p);
}

static int c_relaxed_alloc(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	int res;

	d->cuThreadExchangeStreamCaptureMode(&mode);
	res = c_alloc();
	d->cuThreadExchangeStreamCaptureMode(&mode);
	return res;
}

static int c_create(void)
{
	CUmemGenericAllocationHandle h;
	int res = d->cuMemCreate(&h, G, &prop, 0);

	return res ? res : (int)d->cuMemRelease(h);
}

static int c_map(void)
{
	int res = d->cuMemMap(va + 6 * G, 2 * G, 0, handle, 0);

	return res ? res : (int)d->cuMemUnmap(va + 6 * G, 2 * G);
}

static int c_relaxed_map(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	int res;

	d->cuThreadExchangeStreamCaptureMode(&mode);
	res = c_create();
	if (!res)
		res = c_map();
	if (!res)
		res = d->cuMemSetAccess(va + 2 * G, 2 * G, &rw, 1);
	d->cuThreadExchangeStreamCaptureMode(&mode);
	return res;
}

static int c_access(void)
{
	return d->cuMemSetAccess(va + 2 * G, 2 * G, &rw, 1);
}

static int c_query_event(void)
{
	return d->cuEventQuery(event);
}

static int c_query(void)
{
	return d->cuStreamQuery(a);
}

static int c_query_other(void)
{
	return d->cuStreamQuery(b);
}

static int c_record_other(void)
{
	return d->cuEventRecord(event, b);
}

static int c_sync(void)
{
	return d->cuStreamSynchronize(a);
}

static int c_wait_outside(void)
{
	return d->cuStreamWaitEvent(a, event, 0);
}

static int c_unjoined(void)
{
	CUevent e;

	d->cuEventCreate(&e, CU_EVENT_DISABLE_TIMING);
	d->cuEventRecord(e, a);
	d->cuStreamWaitEvent(b, e, 0);
	d->cuMemsetD8Async(va + 2 * G, 0, 64, b);
	d->cuEventDestroy(e);
	return 0;
}

static int c_alloc_async(void)
{
	CUdeviceptr p;
	int res = d->cuMemAllocAsync(&p, 4096, a);

	return res ? res : (int)d->cuMemFreeAsync(p, a);
}

static int c_get_id(void)
{
	unsigned long long id;

	return d->cuStreamGetId(a, &id);
}

#define SURE	true
#define TOLD	false

static const struct {
	const char *name;
	int (*fn)(void);
	bool capture;
	bool sure;
} probes[] = {
#define PLAIN(fn, sure)	{ #fn, fn, false, sure }
#define CAPTURE(fn, sure) { #fn, fn, true, sure }
	PLAIN(map_part, SURE), PLAIN(map_over, TOLD), PLAIN(unmap_half, TOLD),
	PLAIN(unmap_hole, TOLD), PLAIN(access_hole, TOLD),
	PLAIN(free_mapped, TOLD), PLAIN(create_odd, SURE), PLAIN(alias, SURE),
	PLAIN(unmap_under_work, SURE), PLAIN(range_of_mapping, SURE),
	PLAIN(range_of_malloc, TOLD), PLAIN(range_of_reserved, TOLD),
	PLAIN(attribute_of_malloc, SURE), PLAIN(retained_is_same, SURE),
	PLAIN(ipc_of_mapping, SURE), PLAIN(export_plain, SURE),
	PLAIN(access_flags, SURE), PLAIN(register_twice, TOLD),
	PLAIN(unregister_unknown, TOLD), PLAIN(never_recorded, SURE),
	PLAIN(ids_differ, SURE), PLAIN(limited_pool, TOLD),
	PLAIN(no_peer, SURE),
	CAPTURE(c_alloc, TOLD), CAPTURE(c_relaxed_alloc, SURE),
	CAPTURE(c_create, TOLD), CAPTURE(c_map, TOLD),
	CAPTURE(c_relaxed_map, SURE), CAPTURE(c_access, TOLD),
	CAPTURE(c_query_event, TOLD), CAPTURE(c_query, SURE),
	CAPTURE(c_query_other, TOLD), CAPTURE(c_record_other, SURE),
	CAPTURE(c_sync, SURE), CAPTURE(c_wait_outside, SURE),
	CAPTURE(c_unjoined, TOLD), CAPTURE(c_alloc_async, TOLD),
	CAPTURE(c_get_id, SURE),
};

#define NR_PROBES	(sizeof(probes) / sizeof(probes[0]))

static void run(const char *name, int *results)
{
	struct hetmem *hm;
	size_t i;

	d = open_driver(name, &hm);
	d->cuStreamCreate(&a, CU_STREAM_NON_BLOCKING);
	d->cuStreamCreate(&b, CU_STREAM_NON_BLOCKING);
	d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
	need(!d->cuMemAddressReserve(&va, 12 * G, 0, 0, 0) &&
	     !d->cuMemCreate(&handle, 2 * G, &prop, 0) &&
	     !d->cuMemMap(va + 2 * G, 2 * G, 0, handle, 0) &&
	     !d->cuMemSetAccess(va + 2 * G, 2 * G, &rw, 1), "%s: VMM", name);
	for (i = 0; i < NR_PROBES; i++) {
		d->cuEventRecord(event, b);
		d->cuStreamSynchronize(b);
		results[i] = probes[i].capture ? captured(probes[i].fn) :
			probes[i].fn();
	}
	is(d->cuCtxSynchronize(), 0, "%s: nothing was hurt", name);
	d->cuMemUnmap(va + 2 * G, 2 * G);
	d->cuMemRelease(handle);
	d->cuMemAddressFree(va, 12 * G);
	d->cuEventDestroy(event);
	d->cuStreamDestroy(a);
	d->cuStreamDestroy(b);
	close_driver(d, hm);
}

int main(void)
{
	int real[NR_PROBES], soft[NR_PROBES];
	size_t i;

	run(DRIVER, real);
	run("soft", soft);
	for (i = 0; i < NR_PROBES; i++) {
		if (probes[i].sure)
			is(soft[i], real[i], "the same: %s (%d)",
			   probes[i].name, real[i]);
		else
			printf("# %s: %s: %s %d, soft %d\n",
			       real[i] == soft[i] ? "same" : "DIFFERS",
			       probes[i].name, DRIVER, real[i], soft[i]);
	}
	return tap_end();
}
