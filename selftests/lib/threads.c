// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Many threads on one library and one soft driver; also the program to run
 * under the thread sanitizer.
 */
#include "soft_driver.h"

#define THREADS	6
#define ROUNDS	150

static int failures;

static void expect(bool good)
{
	if (!good)
		__atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED);
}

static void system_memory(unsigned int seed, unsigned int round)
{
	size_t size = 1 + (seed * 7919 + round * 104729) % (3 << 20);
	struct hetmem_moved moved = { .size = sizeof(moved) };
	struct hetmem_run runs[4];
	unsigned char *p;
	uintptr_t next;
	void *q;

	if (hetmem_system_alloc(hm, size, (void **)&p)) {
		expect(false);
		return;
	}
	p[0] = seed;
	p[size - 1] = seed;
	expect(hetmem_residency(hm, p, size, runs, NULL, 4, &next) > 0);
	expect(!hetmem_prefetch(hm, p, 4096, HETMEM_LOC(HETMEM_HOST, 0), NULL,
				&moved));
	expect(moved.already == 1);
	expect(!hetmem_system_resize(hm, p, size * 2, &q));
	p = q;
	expect(p[0] == (unsigned char)seed && p[size - 1] == (unsigned char)seed);
	expect(!hetmem_system_free(hm, p));
	expect(hetmem_system_free(hm, &seed) == -EINVAL);
	expect(strstr(hetmem_last_error(), "not allocated"));
}

static void device_memory(CUstream stream, unsigned char seed)
{
	unsigned char host[5000];
	CUdeviceptr a, b;
	CUevent event;

	expect(!drv->cuMemAlloc(&a, sizeof(host)));
	expect(!drv->cuMemAllocAsync(&b, sizeof(host), stream));
	expect(!drv->cuEventCreate(&event, 0));
	expect(!drv->cuMemsetD8Async(a, seed, sizeof(host), stream));
	expect(!drv->cuMemcpyDtoDAsync(b, a, sizeof(host), stream));
	expect(!drv->cuMemcpyDtoHAsync(host, b, sizeof(host), stream));
	expect(!drv->cuEventRecord(event, stream));
	expect(!drv->cuMemFreeAsync(b, stream));
	expect(!drv->cuEventSynchronize(event));
	expect(all_bytes(host, seed, sizeof(host)));
	expect(!drv->cuEventDestroy(event));
	expect(!drv->cuMemFree(a));
}

static void *work(void *arg)
{
	unsigned int seed = (uintptr_t)arg, i;
	CUstream streams[3] = { NULL, CU_STREAM_PER_THREAD };
	CUcontext ctx;

	expect(!drv->cuDevicePrimaryCtxRetain(&ctx, 0));
	expect(!drv->cuCtxSetCurrent(ctx));
	expect(!drv->cuStreamCreate(&streams[2], seed & 1));
	for (i = 0; i < ROUNDS; i++) {
		system_memory(seed, i);
		device_memory(streams[i % 3], seed + i);
	}
	expect(!drv->cuStreamDestroy(streams[2]));
	expect(!drv->cuDevicePrimaryCtxRelease(0));
	return NULL;
}

/* Libraries come and go while the others work. */
static void *open_and_close(void *arg)
{
	struct hetmem_params params = {
		.size = sizeof(params), .driver = "soft", .module_path = "",
	};
	struct hetmem *mine;
	int i;

	(void)arg;
	for (i = 0; i < ROUNDS; i++) {
		expect(!hetmem_open(&mine, &params));
		hetmem_close(mine);
	}
	return NULL;
}

static pthread_barrier_t together;

static void *first_use(void *arg)
{
	struct hetmem_resource *res;

	pthread_barrier_wait(&together);
	expect(!hetmem_resource_current(arg, 0, &res));
	return NULL;
}

/* The current resource is made once, also of what can be made once only. */
static void first_uses(void)
{
	struct hetmem_params params = {
		.size = sizeof(params), .driver = "soft", .module_path = "",
	};
	char path[] = "/tmp/hetmem-first-XXXXXX", spec[128];
	pthread_t thread[THREADS];
	struct hetmem *other;
	int fd = mkstemp(path), i, round;

	need(fd >= 0, "a file");
	snprintf(spec, sizeof(spec), "log(device-pool,file=%s)", path);
	setenv("HETMEM_RESOURCE", spec, 1);
	pthread_barrier_init(&together, NULL, THREADS);
	for (round = 0; round < 20; round++) {
		need(!hetmem_open(&other, &params), "a library");
		for (i = 0; i < THREADS; i++)
			need(!pthread_create(&thread[i], NULL, first_use, other),
			     "a thread");
		for (i = 0; i < THREADS; i++)
			pthread_join(thread[i], NULL);
		hetmem_close(other);
	}
	pthread_barrier_destroy(&together);
	unsetenv("HETMEM_RESOURCE");
	close(fd);
	unlink(path);
	is(failures, 0, "%d threads use the current resource at first", THREADS);
}

int main(void)
{
	pthread_t thread[THREADS + 1];
	uintptr_t i;

	open_soft("");
	for (i = 0; i < THREADS; i++)
		need(!pthread_create(&thread[i], NULL, work, (void *)(i + 1)),
		     "a thread");
	need(!pthread_create(&thread[i], NULL, open_and_close, NULL), "one more");
	for (i = 0; i <= THREADS; i++)
		pthread_join(thread[i], NULL);
	is(failures, 0, "%d threads, %d rounds each", THREADS, ROUNDS);
	first_uses();
	is(device_used(), 0, "all of it was given back");
	close_soft();
	return tap_end();
}
