// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver told to fail, to be slow and to be full; what it reports
 * that was not freed.
 */
#include <fcntl.h>
#include <sys/wait.h>

#include "device_memory.h"
#include "soft_driver.h"

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static void nth_call(void)
{
	static const char *const bad[] = {
		"cuMemAlloc", "cuMemAlloc:", "cuMemAlloc:0", "cuMemAlloc:-1",
		"cuMemAlloc:x", "cuMemAlloc:1=CUDA_ERROR_NOSUCH",
		"cuMemAlloc:1=CUDA_SUCCESS", "cuNoSuchCall:1", "cuMemAlloc:1x",
	};
	CUevent event;
	CUdeviceptr p[4];
	size_t i;

	is(soft_rules("cuMemAlloc:2,cuMemFree:1=CUDA_ERROR_ILLEGAL_STATE",
			 NULL), 0, "two rules");
	is(drv->cuMemAlloc(&p[0], 1), 0, "the first call");
	is(drv->cuMemAlloc(&p[1], 1), CUDA_ERROR_OUT_OF_MEMORY,
	   "the second one fails");
	is(drv->cuMemAlloc(&p[1], 1), 0, "the third does not");
	is(drv->cuMemFree(p[0]), CUDA_ERROR_ILLEGAL_STATE,
	   "another call, with the error that was asked for");
	is(drv->cuMemFree(p[0]) + drv->cuMemFree(p[1]), 0,
	   "nothing had changed");
	is(soft_rules("cuEventCreate:*", NULL), 0, "every call");
	for (i = 0; i < 3; i++)
		is(drv->cuEventCreate(&event, 0), CUDA_ERROR_UNKNOWN,
		   "fails");
	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
		is(soft_rules(bad[i], NULL), -EINVAL, "refused: %s", bad[i]);
	is(soft_rules(NULL, "cuMemAlloc:5"), -EINVAL, "a time without unit");
	is(soft_rules(NULL, "cuMemAlloc:5h"), -EINVAL, "an unknown unit");
	is(soft_rules(NULL, "cuMemAlloc:0:5s"), -EINVAL, "a call before the first");
	is(soft_rules(NULL, "cuMemAlloc:2:"), -EINVAL, "no time");
	is(drv->cuEventCreate(&event, 0), CUDA_ERROR_UNKNOWN,
	   "what was refused changed nothing");
	is(soft_rules(NULL, NULL), 0, "no rules");
	is(drv->cuEventCreate(&event, 0), 0, "no failure");
	drv->cuEventDestroy(event);
}

/* On the stream: the call returns before, the work ends after. */
static void delay(void)
{
	unsigned char byte = 0;
	CUresult res, query;
	uint64_t start, took;
	unsigned int late = 0;
	CUdeviceptr p;

	is(soft_rules(NULL, "cuMemsetD8Async:300ms,cuMemAlloc:20ms"), 0,
	   "delays");
	/* A busy machine can look too late, after the work: then look again. */
	do {
		start = now_ns();
		res = drv->cuMemsetD8Async((uintptr_t)&byte, 1, 1, NULL);
		query = drv->cuStreamQuery(NULL);
		took = now_ns() - start;
	} while (!res && !query && took >= 300000000 && ++late < 100);
	is(res, 0, "slow work");
	is(query, CUDA_ERROR_NOT_READY, "the call does not wait for it: %u late looks", late);
	start = now_ns();
	drv->cuMemAlloc(&p, 1);
	took = now_ns() - start;
	ok(took >= 20000000, "a call that works itself takes its time");
	drv->cuStreamSynchronize(NULL);
	took = now_ns() - start;
	ok(byte == 1, "the work is done");
	soft_rules(NULL, NULL);
	drv->cuMemFree(p);
	start = now_ns();
	soft_rules(NULL, "cuEventRecord:1:50ms");
	{
		CUevent event;

		drv->cuEventCreate(&event, 0);
		drv->cuEventRecord(event, NULL);
		drv->cuEventSynchronize(event);
		took = now_ns() - start;
		ok(took >= 50000000, "waiting for it takes as long");
		soft_rules(NULL, "cuEventRecord:2:1000s");
		drv->cuEventRecord(event, NULL);
		is(drv->cuEventSynchronize(event), 0, "another one does not");
		drv->cuEventDestroy(event);
	}
	soft_rules(NULL, NULL);
}

static void capacity(void)
{
	size_t available, total;
	CUdeviceptr p[3], q;
	CUmemoryPool pool;
	cuuint64_t used;

	drv->cuMemGetInfo(&available, &total);
	is(total, 8 << 20, "8 MiB");
	is(available, 8 << 20, "all free");
	is(drv->cuMemAlloc(&p[0], 5 << 20), 0, "5 MiB");
	is(drv->cuMemAlloc(&p[1], 4 << 20), CUDA_ERROR_OUT_OF_MEMORY,
	   "4 more are too many");
	is(drv->cuMemAlloc(&p[1], 3 << 20), 0, "3 are not");
	is(drv->cuMemAlloc(&p[2], 1), CUDA_ERROR_OUT_OF_MEMORY, "it is full");
	is(drv->cuMemAlloc(&p[2], SIZE_MAX), CUDA_ERROR_OUT_OF_MEMORY,
	   "for all there is too");
	is(drv->cuMemAlloc(&p[2], 0), CUDA_ERROR_INVALID_VALUE, "nothing");
	is(drv->cuMemAllocManaged(&q, 16 << 20, CU_MEM_ATTACH_GLOBAL), 0,
	   "managed memory can be more");
	drv->cuMemFree(q);
	is(drv->cuMemFree(p[1]), 0, "free 3");

	is(drv->cuMemAllocAsync(&p[1], 3 << 20, NULL), 0, "3 in stream order");
	soft_rules(NULL, "cuMemFreeAsync:30ms");
	is(drv->cuMemFreeAsync(p[1], NULL), 0, "freed later");
	is(drv->cuMemFreeAsync(p[1], NULL), CUDA_ERROR_INVALID_VALUE,
	   "not twice");
	is(drv->cuMemAllocAsync(&q, 2 << 20, NULL), 0,
	   "an allocation waits for it");
	soft_rules(NULL, NULL);
	drv->cuDeviceGetDefaultMemPool(&pool, 0);
	drv->cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
				   &used);
	is(used, 2 << 20, "the pool knows what is used");
	drv->cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &used);
	is(used, 3 << 20, "and what was");
	is(drv->cuMemFreeAsync(q, NULL), 0, "freed");
	is(drv->cuMemFree(p[0]), 0, "all");
	drv->cuMemGetInfo(&available, &total);
	is(available, 8 << 20, "is free again");
}

static void pools(void)
{
	CUmemPoolProps props = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
		.maxSize = 2 << 20,
	};
	cuuint64_t threshold = 12345, back = 0;
	CUmemoryPool pool;
	CUdeviceptr p;

	is(drv->cuMemPoolCreate(&pool, &props), 0, "a pool");
	is(drv->cuMemAllocFromPoolAsync(&p, 3 << 20, pool, NULL),
	   CUDA_ERROR_OUT_OF_MEMORY, "with a limit");
	is(drv->cuMemAllocFromPoolAsync(&p, 1 << 20, pool, NULL), 0, "below it");
	drv->cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
				   &threshold);
	drv->cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
				   &back);
	is(back, 12345, "an attribute");
	is(drv->cuMemPoolTrimTo(pool, 0), 0, "trimmed");
	is(drv->cuMemPoolDestroy(pool), 0, "destroyed while it is used");
	is(drv->cuMemAllocFromPoolAsync(&p, 1, pool, NULL),
	   CUDA_ERROR_INVALID_VALUE, "gives nothing more");
	is(drv->cuMemFreeAsync(p, NULL), 0, "and takes back");
	drv->cuCtxSynchronize();
	drv->cuDeviceGetDefaultMemPool(&pool, 0);
	is(drv->cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE,
	   "the default pool stays");
}

/* 3 MiB were allocated, 1 MiB of them is free again: each attribute, and whether it can be set. */
static void attributes(void)
{
	static const struct {
		int attribute;
		cuuint64_t set, has;
		CUresult err;
	} rows[] = {
		{ 0, 1, 0, CUDA_ERROR_INVALID_VALUE },
		{ CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, 0, 0, CUDA_SUCCESS },
		{ CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC, 0, 0, CUDA_SUCCESS },
		{ CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, 1, 1, CUDA_SUCCESS },
		{ CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 1ULL << 40, 1ULL << 40, CUDA_SUCCESS },
		{ CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, 0, 2 << 20, CUDA_ERROR_INVALID_VALUE },
		{ CU_MEMPOOL_ATTR_USED_MEM_CURRENT, 0, 2 << 20, CUDA_ERROR_INVALID_VALUE },
		{ CU_MEMPOOL_ATTR_USED_MEM_HIGH, 1, 3 << 20, CUDA_ERROR_INVALID_VALUE },
		{ CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0, 2 << 20, CUDA_SUCCESS },
		{ CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, 0, 2 << 20, CUDA_SUCCESS },
		{ 99, 0, 0, CUDA_ERROR_INVALID_VALUE },
	};
	CUmemoryPool pool;
	CUdeviceptr p, q;
	size_t i;

	drv->cuDeviceGetDefaultMemPool(&pool, 0);
	need(!drv->cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH,
					 &(cuuint64_t){ 0 }) &&
	     !drv->cuMemAllocAsync(&p, 2 << 20, NULL) &&
	     !drv->cuMemAllocAsync(&q, 1 << 20, NULL) && !drv->cuMemFreeAsync(q, NULL), "blocks");
	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		cuuint64_t value = rows[i].set;

		is(drv->cuMemPoolSetAttribute(pool, rows[i].attribute, &value), rows[i].err,
		   "attribute %d is set to %llu", rows[i].attribute, (unsigned long long)value);
		value = 0;
		drv->cuMemPoolGetAttribute(pool, rows[i].attribute, &value);
		is(value, (long long)rows[i].has, "and has");
	}
	drv->cuMemFreeAsync(p, NULL);
	drv->cuCtxSynchronize();
}

/* What a child that frees nothing says on stderr. */
static void leaks(void)
{
	CUmemGenericAllocationHandle h;
	char text[4096];
	CUdeviceptr p;
	CUstream s;
	CUevent e;
	ssize_t n;
	int fds[2], status;

	need(!pipe(fds), "a pipe");
	fflush(stdout);
	if (!fork()) {
		dup2(fds[1], 2);
		setenv("HETMEM_SOFT_DEBUG", "1", 1);
		open_soft("");
		drv->cuMemAlloc(&p, 4321);
		drv->cuMemAddressReserve(&p, 4 << 20, 0, 0, 0);
		drv->cuMemCreate(&h, 2 << 20, &prop, 0);
		drv->cuMemMap(p, 2 << 20, 0, h, 0);
		drv->cuStreamCreate(&s, 0);
		drv->cuEventCreate(&e, 0);
		close_soft();
		_exit(0);
	}
	wait(&status);
	close(fds[1]);
	n = read(fds[0], text, sizeof(text) - 1);
	text[n > 0 ? n : 0] = '\0';
	ok(WIFEXITED(status) && !WEXITSTATUS(status), "a leaking child ends");
	ok(strstr(text, "device memory") && strstr(text, "4321"), "memory");
	ok(strstr(text, "mapping"), "a mapping");
	ok(strstr(text, "handle"), "a handle");
	ok(strstr(text, "address range"), "an address range");
	ok(strstr(text, "stream"), "a stream");
	ok(strstr(text, "event"), "an event");
}

static void environment(void)
{
	struct hetmem_params params = {
		.size = sizeof(params), .driver = "soft", .module_path = "",
	};
	CUdeviceptr p;
	struct hetmem *bad;

	setenv("HETMEM_SOFT_FAIL", "cuMemAlloc:1", 1);
	open_soft("");
	is(drv->cuMemAlloc(&p, 1), CUDA_ERROR_OUT_OF_MEMORY,
	   "HETMEM_SOFT_FAIL");
	close_soft();
	setenv("HETMEM_SOFT_FAIL", "nonsense", 1);
	is(hetmem_open(&bad, &params), -EINVAL, "a bad one is refused");
	ok(strstr(hetmem_last_error(), "HETMEM_SOFT_FAIL=nonsense"), "%s",
	   hetmem_last_error());
	setenv("HETMEM_SOFT_FAIL", "cuInit:1", 1);
	is(hetmem_open(&bad, &params), -EIO, "a driver that does not start");
	unsetenv("HETMEM_SOFT_FAIL");
	setenv("HETMEM_SOFT_DELAY", "cuMemAlloc", 1);
	is(hetmem_open(&bad, &params), -EINVAL, "a bad HETMEM_SOFT_DELAY");
	unsetenv("HETMEM_SOFT_DELAY");
}

int main(void)
{
	leaks();
	setenv("HETMEM_SOFT_MEMORY", "8M", 1);
	open_soft("");
	nth_call();
	delay();
	capacity();
	pools();
	attributes();
	close_soft();
	environment();
	return tap_end();
}
