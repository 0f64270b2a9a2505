// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver: copies and fills, order on and between streams, events,
 * memory of every kind and what is told about it.
 */
#include <sys/mman.h>

#include "soft_driver.h"

#define SIZE	((size_t)3 << 20)

static void copies(void)
{
	unsigned char *a = malloc(SIZE), *b = malloc(SIZE);
	uint32_t *words;
	CUdeviceptr d, e;
	size_t i, bad;

	for (i = 0; i < SIZE; i++)
		a[i] = i * 31 >> 3;
	need(!drv->cuMemAlloc(&d, SIZE) && !drv->cuMemAlloc(&e, SIZE),
	     "device memory");
	is(d & 511, 0, "is aligned to 512 bytes");
	is(drv->cuMemcpyAsync(d, (uintptr_t)a, SIZE, NULL), 0,
	   "to the device");
	is(drv->cuMemcpyDtoDAsync(e, d, SIZE, NULL), 0, "on the device");
	is(drv->cuMemcpyDtoHAsync(b, e, SIZE, NULL), 0, "to the host");
	is(drv->cuStreamSynchronize(NULL), 0, "done");
	ok(!memcmp(a, b, SIZE), "round trip");
	memset(b, 0, SIZE);
	is(drv->cuMemcpyAsync((uintptr_t)b + 1, e + 1, SIZE - 2, NULL), 0,
	   "unified, unaligned");
	drv->cuStreamSynchronize(NULL);
	ok(!b[0] && !memcmp(a + 1, b + 1, SIZE - 2) && !b[SIZE - 1],
	   "no byte more");
	is(drv->cuMemcpyAsync(d, e, 0, NULL), 0, "no bytes");
	is(drv->cuMemcpyAsync(0, e, 1, NULL), CUDA_ERROR_INVALID_VALUE,
	   "to NULL");
	is(drv->cuMemcpyAsync(d, 0, 1, NULL), CUDA_ERROR_INVALID_VALUE,
	   "from NULL");
	is(drv->cuMemcpyAsync(d, e, SIZE_MAX, NULL), CUDA_ERROR_INVALID_VALUE,
	   "too much");

	is(drv->cuMemsetD8Async(d, 0x5a, SIZE, NULL), 0, "bytes");
	is(drv->cuMemsetD32Async(d + 4, 0x01020304, 100, NULL), 0, "words");
	is(drv->cuMemsetD32Async(d + 2, 1, 1, NULL), CUDA_ERROR_INVALID_VALUE,
	   "words not aligned");
	drv->cuMemcpyDtoHAsync(b, d, SIZE, NULL);
	drv->cuStreamSynchronize(NULL);
	words = (uint32_t *)b;
	for (i = 1, bad = 0; i <= 100; i++)
		bad += words[i] != 0x01020304;
	is(bad, 0, "each word");
	ok(words[0] == 0x5a5a5a5a && words[101] == 0x5a5a5a5a &&
	   all_bytes(b + 404, 0x5a, SIZE - 404), "and each byte around them");
	is(drv->cuMemFree(d) + drv->cuMemFree(e), 0, "freed");
	is(drv->cuMemFree(d), CUDA_ERROR_INVALID_VALUE, "not twice");
	is(drv->cuMemFree((uintptr_t)a), CUDA_ERROR_INVALID_VALUE,
	   "nor what is not the driver's");
	is(drv->cuMemFree(0), 0, "0 is nothing");
	free(a);
	free(b);
}

struct gate {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	bool open;
	int passed;
};

/* Work that lasts until the test opens it. */
static void wait_gate(void *arg)
{
	struct gate *gate = arg;

	pthread_mutex_lock(&gate->lock);
	while (!gate->open)
		pthread_cond_wait(&gate->cond, &gate->lock);
	gate->passed++;
	pthread_mutex_unlock(&gate->lock);
}

static void open_gate(struct gate *gate)
{
	pthread_mutex_lock(&gate->lock);
	gate->open = true;
	pthread_cond_broadcast(&gate->cond);
	pthread_mutex_unlock(&gate->lock);
}

#define GATE	{ PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0 }

static void order(void)
{
	struct gate gate = GATE;
	CUdeviceptr d;
	CUevent event, later;
	CUstream s, t, free_one;
	unsigned char out = 0;
	float ms = -1;

	need(!drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING) &&
	     !drv->cuStreamCreate(&t, CU_STREAM_NON_BLOCKING) &&
	     !drv->cuStreamCreate(&free_one, CU_STREAM_NON_BLOCKING) &&
	     !drv->cuEventCreate(&event, 0) && !drv->cuEventCreate(&later, 0) &&
	     !drv->cuMemAlloc(&d, 4096), "streams and events");
	is(drv->cuEventQuery(event), 0, "an event never recorded is complete");
	is(drv->cuStreamWaitEvent(t, event, 0), 0, "waiting for it is nothing");

	drv->cuMemsetD8Async(d, 1, 1, s);
	drv->cuStreamSynchronize(s);
	is(drv->cuLaunchHostFunc(s, wait_gate, &gate), 0, "work that lasts");
	drv->cuMemsetD8Async(d, 2, 1, s);
	drv->cuEventRecord(event, s);
	is(drv->cuStreamWaitEvent(t, event, 0), 0, "another stream waits");
	drv->cuMemcpyDtoHAsync(&out, d, 1, t);
	drv->cuEventRecord(later, t);
	is(drv->cuStreamQuery(s), CUDA_ERROR_NOT_READY, "the first is busy");
	is(drv->cuStreamQuery(t), CUDA_ERROR_NOT_READY, "the second waits");
	is(drv->cuEventQuery(event), CUDA_ERROR_NOT_READY, "its event too");
	is(drv->cuEventElapsedTime(&ms, event, later), CUDA_ERROR_NOT_READY,
	   "no time yet");
	is(drv->cuMemsetD8Async(d + 8, 1, 1, free_one), 0, "a third stream");
	is(drv->cuStreamSynchronize(free_one), 0, "does not wait");
	ok(!out, "nothing was read yet");
	open_gate(&gate);
	is(drv->cuEventSynchronize(later), 0, "the last event comes");
	is(out, 2, "behind the write on the other stream");
	is(drv->cuEventQuery(event), 0, "the first event has come");
	is(drv->cuEventElapsedTime(&ms, event, later), 0, "a time");
	ok(ms >= 0, "that does not go back: %f ms", ms);
	is(drv->cuEventElapsedTime(&ms, later, event), 0, "nor forth");
	ok(ms <= 0, "when asked the other way round");
	is(drv->cuEventDestroy(event) + drv->cuEventDestroy(later), 0,
	   "events destroyed");
	is(drv->cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE, "are gone");
	is(drv->cuStreamDestroy(s) + drv->cuStreamDestroy(t) +
	   drv->cuStreamDestroy(free_one) + drv->cuMemFree(d), 0, "all freed");
	is(drv->cuStreamQuery(s), CUDA_ERROR_INVALID_HANDLE, "streams too");
}

static void destroyed_while_busy(void)
{
	struct gate gate = GATE;
	unsigned char done = 0;
	CUevent event;
	CUstream s;

	drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
	drv->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
	drv->cuLaunchHostFunc(s, wait_gate, &gate);
	drv->cuMemsetD8Async((uintptr_t)&done, 1, 1, s);
	drv->cuEventRecord(event, s);
	is(drv->cuStreamDestroy(s), 0, "a busy stream is destroyed at once");
	is(drv->cuEventQuery(event), CUDA_ERROR_NOT_READY, "its work is not done");
	open_gate(&gate);
	drv->cuEventSynchronize(event);
	is(done, 1, "but still comes");
	drv->cuEventDestroy(event);
}

/* The legacy stream and blocking streams wait for each other. */
static void legacy(void)
{
	struct gate gate = GATE, second = GATE;
	CUstream blocking, other;

	drv->cuStreamCreate(&blocking, CU_STREAM_DEFAULT);
	drv->cuStreamCreate(&other, CU_STREAM_NON_BLOCKING);
	drv->cuLaunchHostFunc(blocking, wait_gate, &gate);
	drv->cuLaunchHostFunc(NULL, wait_gate, &second);
	drv->cuLaunchHostFunc(other, wait_gate, &second);
	open_gate(&second);
	drv->cuStreamSynchronize(other);
	is(second.passed, 1, "a non-blocking stream goes past the legacy one");
	is(drv->cuStreamQuery(NULL), CUDA_ERROR_NOT_READY,
	   "which waits for a blocking one");
	open_gate(&gate);
	drv->cuStreamSynchronize(CU_STREAM_LEGACY);
	is(second.passed, 2, "until that is done");

	gate.open = false;
	drv->cuLaunchHostFunc(NULL, wait_gate, &gate);
	drv->cuLaunchHostFunc(blocking, wait_gate, &second);
	drv->cuLaunchHostFunc(CU_STREAM_PER_THREAD, wait_gate, &second);
	is(drv->cuStreamQuery(blocking), CUDA_ERROR_NOT_READY,
	   "a blocking stream waits for the legacy one");
	is(drv->cuStreamQuery(CU_STREAM_PER_THREAD), CUDA_ERROR_NOT_READY,
	   "the thread's own does too");
	open_gate(&gate);
	is(drv->cuCtxSynchronize(), 0, "all done");
	is(second.passed, 4, "really");
	drv->cuStreamDestroy(blocking);
	drv->cuStreamDestroy(other);
}

static void ids(void)
{
	static unsigned char target[40];
	unsigned long long id[40], per_thread, none;
	CUstream s;
	int i, j, twice = 0;

	for (i = 0; i < 40; i++) {
		drv->cuStreamCreate(&s, 0);
		drv->cuMemsetD8Async((uintptr_t)&target[i], 0, 1, s);
		drv->cuStreamGetId(s, &id[i]);
		drv->cuStreamDestroy(s);
		for (j = 0; j < i; j++)
			twice += id[i] == id[j];
	}
	is(twice, 0, "no id comes twice");
	is(drv->cuStreamGetId(CU_STREAM_PER_THREAD, &per_thread), 0,
	   "the thread's stream has one");
	is(drv->cuStreamGetId(NULL, &none), 0, "the legacy stream too");
	ok(per_thread != none, "another one");
	is(drv->cuStreamGetId((CUstream)&none, &none),
	   CUDA_ERROR_INVALID_HANDLE, "rubbish has none");
	is(drv->cuStreamDestroy(NULL), CUDA_ERROR_INVALID_HANDLE,
	   "the legacy stream stays");
}

static void pointers(void)
{
	CUpointer_attribute ask[3] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
				       CU_POINTER_ATTRIBUTE_IS_MANAGED,
				       CU_POINTER_ATTRIBUTE_RANGE_SIZE };
	unsigned int type = 7, managed = 7;
	size_t size = 7;
	void *data[3] = { &type, &managed, &size };
	CUdeviceptr d, m, base;
	void *host, *mine = malloc(8192);

	need(!drv->cuMemAlloc(&d, 10000) &&
	     !drv->cuMemAllocManaged(&m, 10000, CU_MEM_ATTACH_GLOBAL) &&
	     !drv->cuMemHostAlloc(&host, 10000, 0), "three kinds of memory");
	is(drv->cuPointerGetAttributes(3, ask, data, d + 77), 0, "device");
	ok(type == CU_MEMORYTYPE_DEVICE && size == 10000, "type, size");
	is(drv->cuPointerGetAttribute(&type, ask[0], (uintptr_t)host), 0, "host");
	is(type, CU_MEMORYTYPE_HOST, "type");
	managed = 0;
	drv->cuPointerGetAttribute(&managed, ask[1], m);
	is(managed, 1, "managed");
	is(drv->cuPointerGetAttribute(&type, ask[0], (uintptr_t)mine),
	   CUDA_ERROR_INVALID_VALUE, "malloc'd memory is not known");
	managed = 0;
	is(drv->cuPointerGetAttributes(3, ask, data, (uintptr_t)mine), 0,
	   "which is no error here");
	ok(!type && !managed && !size, "but nothing");
	is(drv->cuMemGetAddressRange(&base, &size, d + 9999), 0, "a range");
	ok(base == d && size == 10000, "from inside it");
	is(drv->cuMemGetAddressRange(&base, &size, (uintptr_t)mine),
	   CUDA_ERROR_NOT_FOUND, "not of malloc'd memory");

	is(drv->cuMemHostRegister(mine, 8192, 0), 0, "registered");
	is(drv->cuPointerGetAttribute(&type, ask[0], (uintptr_t)mine + 1), 0,
	   "is known then");
	is(drv->cuMemHostRegister((char *)mine + 100, 10, 0),
	   CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, "not twice");
	is(drv->cuMemHostUnregister((char *)mine + 1),
	   CUDA_ERROR_INVALID_VALUE, "not from inside");
	is(drv->cuMemHostUnregister(mine), 0, "unregistered");
	is(drv->cuMemHostRegister(NULL, 10, 0), CUDA_ERROR_INVALID_VALUE,
	   "NULL");
	is(drv->cuMemFreeHost((char *)host + 1), CUDA_ERROR_INVALID_VALUE,
	   "a free inside");
	is(drv->cuMemFree((uintptr_t)host), CUDA_ERROR_INVALID_VALUE,
	   "a free of another kind");
	is(drv->cuMemFreeHost(host) + drv->cuMemFree(m) + drv->cuMemFree(d), 0,
	   "freed");
	free(mine);
}

static void advice(void)
{
	CUmemLocation device = { CU_MEM_LOCATION_TYPE_DEVICE, 0 };
	CUdeviceptr m;
	int value[2];

	drv->cuMemAllocManaged(&m, 1 << 20, CU_MEM_ATTACH_GLOBAL);
	is(drv->cuMemAdvise_v2(m, 1 << 20,
			       CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device), 0,
	   "preferred location");
	is(drv->cuMemAdvise_v1(m, 1 << 20, CU_MEM_ADVISE_SET_ACCESSED_BY,
			       CU_DEVICE_CPU), 0, "accessed by");
	is(drv->cuMemPrefetchAsync_v1(m, 1 << 20, 0, NULL), 0, "prefetch");
	drv->cuMemRangeGetAttribute(value, 4,
			CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, m, 4096);
	is(value[0], 0, "preferred: the device");
	drv->cuMemRangeGetAttribute(value, 8,
			CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, m, 4096);
	ok(value[0] == CU_DEVICE_CPU && value[1] == CU_DEVICE_INVALID,
	   "accessed by: the CPU and no other");
	is(drv->cuMemPrefetchAsync_v1(m, 1 << 20, 5, NULL),
	   CUDA_ERROR_INVALID_DEVICE, "no such device");
	is(drv->cuMemPrefetchAsync_v2((uintptr_t)&m, 4, device, 0, NULL),
	   CUDA_ERROR_INVALID_VALUE, "malloc'd memory, nothing to move it");
	is(drv->cuMemAdvise_v2(m, 2 << 20, CU_MEM_ADVISE_SET_READ_MOSTLY,
			       device), CUDA_ERROR_INVALID_VALUE, "beyond its end");
	is(drv->cuMemFree(m), 0, "freed");
}

static void no_context(void)
{
	CUcontext ctx, was;
	CUdeviceptr d;
	CUstream s;

	drv->cuCtxGetCurrent(&was);
	drv->cuCtxSetCurrent(NULL);
	is(drv->cuMemAlloc(&d, 1), CUDA_ERROR_INVALID_CONTEXT,
	   "memory without a context");
	is(drv->cuStreamCreate(&s, 0), CUDA_ERROR_INVALID_CONTEXT, "a stream");
	is(drv->cuStreamSynchronize(NULL), CUDA_ERROR_INVALID_CONTEXT,
	   "the legacy stream");
	is(drv->cuCtxSetCurrent((CUcontext)&d), CUDA_ERROR_INVALID_CONTEXT,
	   "a context that is none");
	is(drv->cuDevicePrimaryCtxRetain(&ctx, 9), CUDA_ERROR_INVALID_DEVICE,
	   "of no device");
	drv->cuCtxSetCurrent(was);
}

int main(void)
{
	open_soft("");
	copies();
	order();
	destroyed_while_busy();
	legacy();
	ids();
	pointers();
	advice();
	no_context();
	close_soft();
	return tap_end();
}
