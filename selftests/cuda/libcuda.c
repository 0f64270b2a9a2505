// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A libcuda.so.1 for tests: it exports every function in cuda/calls.h. Those that the soft
 * driver has are the soft driver's. The others note how they were called and return a number
 * of their own. cuGetProcAddress() returns the exported functions, as NVIDIA's driver does.
 *
 * It does not look for its own functions by dlsym(): an interposer would answer.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/calls.h"
#include "driver/check.h"
#include "soft/calls.h"
#include "cuda/libcuda.h"

/* CUDA_MEM_ALLOC_NODE_PARAMS. */
struct hm_cuda_node_alloc {
	CUmemPoolProps pool;
	const void *access;
	size_t nr_access;
	size_t bytes;
	CUdeviceptr ptr;
};

#define ARGS	long a, long b, long c, long d, long e, long f, long g, long h

typedef CUresult call_fn(ARGS);

enum {
#define CALL(name)	CALL_##name,
	HM_CUDA_CALLS(CALL, CALL)
#undef CALL
	NR_CALLS
};

static const char *const names[NR_CALLS] = {
#define NAME(name)	#name,
	HM_CUDA_CALLS(NAME, NAME)
#undef NAME
};

static _Thread_local struct fake_call last;

__attribute__((visibility("default")))
struct fake_call fake_last(void)
{
	return last;
}

/* The soft driver's functions, by the index of the exported name. */
static call_fn *soft_calls[NR_CALLS];
static const struct hm_soft *soft;
/* cuInit() was called. */
static int opened;
static CUresult (*soft_get)(const char *symbol, void **fn, int version, cuuint64_t flags,
			    CUdriverProcAddressQueryResult *status);

static int find(const char *name)
{
	int i;

	for (i = 0; i < NR_CALLS; i++)
		if (!strcmp(names[i], name))
			return i;
	return -1;
}

static void fill(const char *base, const char *symbol, int version)
{
	CUdriverProcAddressQueryResult status;
	const int i = find(symbol);
	void *fn = NULL;

	if (i < 0 || soft_get(base, &fn, version, 0, &status) || !fn)
		return;
	memcpy(&soft_calls[i], &fn, sizeof(fn));
}

static void load(void)
{
	void *library = dlopen("libhetmem-soft.so", RTLD_NOW | RTLD_LOCAL);
	void *fn;

	if (!library) {
		fprintf(stderr, "libcuda: %s\n", dlerror());
		abort();
	}
	soft = dlsym(library, HM_SOFT_SYMBOL);
	fn = dlsym(library, "cuGetProcAddress_v2");
	memcpy(&soft_get, &fn, sizeof(fn));
#define CALL(member, base, symbol, version, need) fill(#base, #symbol, version);
	HM_DRIVER_CALLS(CALL)
	HM_PROGRAM_CALLS(CALL)
#undef CALL
}

static void load_once(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;

	pthread_once(&once, load);
}

static CUresult call(int i, ARGS)
{
	load_once();
	last = (struct fake_call){ names[i], { a, b, c, d, e, f, g, h } };
	if (soft_calls[i] && !__atomic_load_n(&opened, __ATOMIC_ACQUIRE))
		return CUDA_ERROR_NOT_INITIALIZED;
	return soft_calls[i] ? soft_calls[i](a, b, c, d, e, f, g, h) : FAKE_RESULT(i);
}

/* Functions that the soft driver lacks, and that programs here need. */

static CUcontext primaries[HM_MAX_DEVICES];
static int retains[HM_MAX_DEVICES];
static CUmemoryPool pools[HM_MAX_DEVICES];

#define SOFT(name, type)	((type)(void *)soft_calls[CALL_##name])

static CUresult my_init(ARGS)
{
	char reason[256];

	load_once();
	if (!__atomic_exchange_n(&opened, 1, __ATOMIC_ACQ_REL) &&
	    soft->open("", reason, sizeof(reason))) {
		fprintf(stderr, "libcuda: %s\n", reason);
		return CUDA_ERROR_NO_DEVICE;
	}
	return soft_calls[CALL_cuInit](a, b, c, d, e, f, g, h);
}

static CUresult my_version(ARGS)
{
	(void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
	*(int *)a = getenv("FAKE_VERSION") ? atoi(getenv("FAKE_VERSION")) : 13000;
	return CUDA_SUCCESS;
}

static CUresult my_retain(ARGS)
{
	CUresult res;

	load_once();
	res = soft_calls[CALL_cuDevicePrimaryCtxRetain](a, b, c, d, e, f, g, h);
	if (!res) {
		__atomic_store_n(&primaries[(int)b], *(CUcontext *)a, __ATOMIC_RELAXED);
		__atomic_add_fetch(&retains[(int)b], 1, __ATOMIC_RELAXED);
	}
	return res;
}

static void forget_peers(int device);

static CUresult my_release(ARGS)
{
	CUresult res;

	load_once();
	res = soft_calls[CALL_cuDevicePrimaryCtxRelease_v2](a, b, c, d, e, f, g, h);
	if (!res && !__atomic_sub_fetch(&retains[(int)a], 1, __ATOMIC_RELAXED))
		forget_peers(a);
	return res;
}

static CUresult my_state(ARGS)
{
	(void)d, (void)e, (void)f, (void)g, (void)h;
	*(unsigned int *)b = 0;
	*(int *)c = __atomic_load_n(&retains[(int)a], __ATOMIC_RELAXED) > 0;
	return CUDA_SUCCESS;
}

static CUresult my_get_device(ARGS)
{
	CUcontext ctx = NULL;
	CUresult res;
	int i;

	(void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
	load_once();
	res = SOFT(cuCtxGetCurrent, CUresult (*)(CUcontext *))(&ctx);
	if (res || !ctx)
		return res ? res : CUDA_ERROR_INVALID_CONTEXT;
	for (i = 0; i < HM_MAX_DEVICES; i++)
		if (__atomic_load_n(&primaries[i], __ATOMIC_RELAXED) == ctx)
			break;
	*(CUdevice *)a = i;
	return i < HM_MAX_DEVICES ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

/* Rows are multiples of 512 bytes. */
static CUresult my_pitch(ARGS)
{
	const size_t pitch = (c + 511) & ~511L;
	CUresult res;

	(void)f, (void)g, (void)h;
	if (!a || !b || !c || !d || (e != 4 && e != 8 && e != 16))
		return CUDA_ERROR_INVALID_VALUE;
	res = call(CALL_cuMemAlloc_v2, a, pitch * d, 0, 0, 0, 0, 0, 0);
	if (!res)
		*(size_t *)b = pitch;
	return res;
}

static CUresult my_set_pool(ARGS)
{
	(void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
	if (a < 0 || a >= HM_MAX_DEVICES)
		return CUDA_ERROR_INVALID_DEVICE;
	pools[a] = (CUmemoryPool)b;
	return CUDA_SUCCESS;
}

/* Ids of captures, by the stream that began. A stream that has joined is in the last one. */
static struct {
	CUstream stream;
	cuuint64_t id;
} begun[16];
static cuuint64_t last_capture;

static CUresult my_begin(ARGS)
{
	CUresult res = call(CALL_cuStreamBeginCapture_v2, a, b, c, d, e, f, g, h);
	cuuint64_t id;

	if (res)
		return res;
	id = __atomic_add_fetch(&last_capture, 1, __ATOMIC_RELAXED);
	begun[id % 16].stream = (CUstream)a;
	begun[id % 16].id = id;
	return CUDA_SUCCESS;
}

static CUresult my_capture_info(ARGS)
{
	CUstreamCaptureStatus *status = (CUstreamCaptureStatus *)b;
	CUresult res;
	size_t i;

	load_once();
	res = SOFT(cuStreamIsCapturing, CUresult (*)(CUstream, CUstreamCaptureStatus *))
		((CUstream)a, status);
	(void)d, (void)e, (void)f, (void)g, (void)h;
	if (res || *status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		return res;
	*(cuuint64_t *)c = last_capture;
	for (i = 0; i < 16; i++)
		if (begun[i].stream == (CUstream)a)
			*(cuuint64_t *)c = begun[i].id;
	return CUDA_SUCCESS;
}

/* Nodes that a program adds: of their addresses nothing is ever used. */
static CUresult my_alloc_node(ARGS)
{
	static CUdeviceptr unused = 1ULL << 50;
	struct hm_cuda_node_alloc *params = (void *)e;

	(void)a, (void)c, (void)d, (void)f, (void)g, (void)h;
	if (!b || !params || !params->bytes)
		return CUDA_ERROR_INVALID_VALUE;
	params->ptr = __atomic_fetch_add(&unused, params->bytes, __ATOMIC_RELAXED);
	return CUDA_SUCCESS;
}

static CUresult my_free_node(ARGS)
{
	(void)a, (void)c, (void)d, (void)f, (void)g, (void)h;
	return b && e ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Access of a context's device to another's, which the soft driver has for mappings alone. */
static bool peers[HM_MAX_DEVICES][HM_MAX_DEVICES];

static void forget_peers(int device)
{
	int i;

	for (i = 0; i < HM_MAX_DEVICES; i++)
		peers[device][i] = peers[i][device] = false;
}

static int device_of(CUcontext ctx)
{
	int i;

	for (i = 0; ctx && i < HM_MAX_DEVICES; i++)
		if (__atomic_load_n(&primaries[i], __ATOMIC_RELAXED) == ctx)
			return i;
	return -1;
}

static CUresult change_peer(CUcontext peer, bool on)
{
	CUcontext ctx = NULL;
	int user, owner = device_of(peer);

	load_once();
	SOFT(cuCtxGetCurrent, CUresult (*)(CUcontext *))(&ctx);
	user = device_of(ctx);
	if (user < 0 || owner < 0 || user == owner)
		return CUDA_ERROR_INVALID_CONTEXT;
	/* CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, CUDA_ERROR_PEER_ACCESS_NOT_ENABLED */
	if (peers[user][owner] == on)
		return on ? (CUresult)704 : (CUresult)705;
	peers[user][owner] = on;
	return CUDA_SUCCESS;
}

static CUresult my_enable(ARGS)
{
	(void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
	return change_peer((CUcontext)a, true);
}

static CUresult my_disable(ARGS)
{
	(void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
	return change_peer((CUcontext)a, false);
}

static CUresult my_pool_access(ARGS)
{
	(void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
	return a ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Arrays have no contents here. A handle is the address of a byte. */
static struct {
	pthread_mutex_t lock;
	char *live[64];
} arrays = { .lock = PTHREAD_MUTEX_INITIALIZER };

static CUresult my_array(ARGS)
{
	size_t i;

	(void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
	pthread_mutex_lock(&arrays.lock);
	for (i = 0; i < 64 && arrays.live[i]; i++)
		;
	if (i < 64)
		*(char **)a = arrays.live[i] = malloc(1);
	pthread_mutex_unlock(&arrays.lock);
	return i < 64 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult my_array_destroy(ARGS)
{
	size_t i;

	(void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
	pthread_mutex_lock(&arrays.lock);
	for (i = 0; i < 64 && (!a || arrays.live[i] != (char *)a); i++)
		;
	if (i < 64) {
		free(arrays.live[i]);
		arrays.live[i] = NULL;
	}
	pthread_mutex_unlock(&arrays.lock);
	return i < 64 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The calling thread's stream is what NULL means in these. */
#define PER_THREAD(fn, name, stream)					\
static CUresult fn(ARGS)						\
{									\
	load_once();							\
	stream = stream ? stream : (long)CU_STREAM_PER_THREAD;		\
	return call(CALL_##name, a, b, c, d, e, f, g, h);		\
}

PER_THREAD(my_alloc_async, cuMemAllocAsync, c)
PER_THREAD(my_from_pool, cuMemAllocFromPoolAsync, d)
PER_THREAD(my_free_async, cuMemFreeAsync, b)
PER_THREAD(my_set, cuMemsetD8Async, d)
PER_THREAD(my_copy, cuMemcpyAsync, d)
PER_THREAD(my_synchronize, cuStreamSynchronize, a)
PER_THREAD(my_is_capturing, cuStreamIsCapturing, a)

static CUresult my_get_v1(ARGS);
static CUresult my_get_v2(ARGS);

static call_fn *const mine[NR_CALLS] = {
	[CALL_cuInit] = my_init,
	[CALL_cuDriverGetVersion] = my_version,
	[CALL_cuDevicePrimaryCtxRetain] = my_retain,
	[CALL_cuDevicePrimaryCtxRelease] = my_release,
	[CALL_cuDevicePrimaryCtxRelease_v2] = my_release,
	[CALL_cuDevicePrimaryCtxGetState] = my_state,
	[CALL_cuCtxGetDevice] = my_get_device,
	[CALL_cuMemAllocPitch_v2] = my_pitch,
	[CALL_cuDeviceSetMemPool] = my_set_pool,
	[CALL_cuStreamBeginCapture_v2] = my_begin,
	[CALL_cuStreamGetCaptureInfo] = my_capture_info,
	[CALL_cuGraphAddMemAllocNode] = my_alloc_node,
	[CALL_cuGraphAddMemFreeNode] = my_free_node,
	[CALL_cuCtxEnablePeerAccess] = my_enable,
	[CALL_cuCtxDisablePeerAccess] = my_disable,
	[CALL_cuMemPoolSetAccess] = my_pool_access,
	[CALL_cuArrayCreate_v2] = my_array,
	[CALL_cuArray3DCreate_v2] = my_array,
	[CALL_cuMipmappedArrayCreate] = my_array,
	[CALL_cuArrayDestroy] = my_array_destroy,
	[CALL_cuMipmappedArrayDestroy] = my_array_destroy,
	[CALL_cuMemAllocAsync_ptsz] = my_alloc_async,
	[CALL_cuMemAllocFromPoolAsync_ptsz] = my_from_pool,
	[CALL_cuMemFreeAsync_ptsz] = my_free_async,
	[CALL_cuMemsetD8Async_ptsz] = my_set,
	[CALL_cuMemcpyAsync_ptsz] = my_copy,
	[CALL_cuStreamSynchronize_ptsz] = my_synchronize,
	[CALL_cuStreamIsCapturing_ptsz] = my_is_capturing,
	[CALL_cuGetProcAddress] = my_get_v1,
	[CALL_cuGetProcAddress_v2] = my_get_v2,
};

#define EXPORTED(name)							\
__attribute__((visibility("default")))					\
CUresult name(ARGS);							\
CUresult name(ARGS)							\
{									\
	if (!mine[CALL_##name])						\
		return call(CALL_##name, a, b, c, d, e, f, g, h);	\
	last = (struct fake_call){ #name, { a, b, c, d, e, f, g, h } }; \
	return mine[CALL_##name](a, b, c, d, e, f, g, h);		\
}

/* This one has a float, which the others would lose. */
#define cuParamSetf	unused_set_float
HM_CUDA_CALLS(EXPORTED, EXPORTED)
#undef EXPORTED
#undef cuParamSetf

__attribute__((visibility("default")))
CUresult cuParamSetf(long a, int b, float f);
CUresult cuParamSetf(long a, int b, float f)
{
	last = (struct fake_call){ "cuParamSetf", { a, b, (long)(f * 1024) } };
	return FAKE_RESULT(CALL_cuParamSetf);
}

static call_fn *const exported[NR_CALLS] = {
#define EXPORTED(name)	(call_fn *)(void *)name,
	HM_CUDA_CALLS(EXPORTED, EXPORTED)
#undef EXPORTED
};

/* The soft driver's own answer: its exported name, NULL: it has no such function. */
static const char *soft_name(const char *base, int version)
{
	static const struct {
		const char *base;
		const char *symbol;
		int since;
	} rows[] = {
#define CALL(member, base, symbol, version, need) { #base, #symbol, version },
		HM_DRIVER_CALLS(CALL)
		HM_PROGRAM_CALLS(CALL)
#undef CALL
	};
	const char *found = NULL;
	int newest = 0;
	size_t i;

	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		if (strcmp(rows[i].base, base) || rows[i].since > version || rows[i].since < newest)
			continue;
		newest = rows[i].since;
		found = rows[i].symbol;
	}
	return found;
}

/* The newest name of @base that a program of @version may get. */
static call_fn *get(const char *base, int version, unsigned long flags)
{
	static const struct {
		const char *suffix;
		int since;
	} versions[] = { { "_v4", 12050 }, { "_v3", 12000 }, { "_v2", 3020 }, { "", 0 } };
	const char *soft_symbol = soft_name(base, version);
	char name[128];
	size_t i;
	int found;

	if (soft_symbol) {
		snprintf(name, sizeof(name), "%s%s", soft_symbol, flags & 2 ? "_ptsz" : "");
		found = find(name);
		return exported[found < 0 ? find(soft_symbol) : found];
	}
	for (i = 0; i < 4; i++) {
		if (versions[i].since > version)
			continue;
		snprintf(name, sizeof(name), "%s%s%s", base, versions[i].suffix,
			 flags & 2 ? "_ptsz" : "");
		found = find(name);
		if (found < 0) {
			snprintf(name, sizeof(name), "%s%s%s", base, versions[i].suffix,
				 flags & 2 ? "_ptds" : "");
			found = find(name);
		}
		if (found < 0) {
			snprintf(name, sizeof(name), "%s%s", base, versions[i].suffix);
			found = find(name);
		}
		if (found >= 0)
			return exported[found];
	}
	return NULL;
}

__attribute__((visibility("default")))
CUresult fake_launch(CUstream stream, unsigned long long ptr, size_t size, unsigned long ns)
{
	const struct hm_soft_range range = { ptr, size, 1 };

	load_once();
	return soft->launch(stream, "a kernel", &range, 1, ns);
}

__attribute__((visibility("default")))
bool fake_is_noted(const char *name)
{
	const int i = find(name);

	load_once();
	return i >= 0 && i != CALL_cuParamSetf && !soft_calls[i] && !mine[i];
}

static CUresult from_the_future(ARGS)
{
	(void)a, (void)b, (void)c, (void)d, (void)e, (void)f, (void)g, (void)h;
	return FAKE_FUTURE;
}

static CUresult my_get_v1(ARGS)
{
	call_fn *fn = get((const char *)a, c, d);

	(void)e, (void)f, (void)g, (void)h;
	/* An ABI that is younger than cuda/calls.h. */
	if (c >= 99000)
		fn = from_the_future;
	memcpy((void *)b, &fn, sizeof(fn));
	return fn ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static CUresult my_get_v2(ARGS)
{
	CUresult res = my_get_v1(a, b, c, d, e, f, g, h);

	if (e)
		*(CUdriverProcAddressQueryResult *)e = res ? CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND :
			CU_GET_PROC_ADDRESS_SUCCESS;
	return CUDA_SUCCESS;
}
