// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The VMM pool on a real GPU: contents while memory is moved under a busy
 * stream, order between streams, growth in place, sleep and wake, captures.
 * Times are printed, none is a test.
 */
#include "alloc_with.h"
#include "gpu_driver.h"
#include "provider/vmm.h"
#include "vmm/vmm.h"

#define MIB	((size_t)1 << 20)
#define BLOCKS	48

static struct hetmem *hm;
static const struct hm_api *drv;
static struct hetmem_resource *pool;

static void make_pool(const struct hm_pool_options *opt)
{
	struct hm_provider *p;

	need(!hm_vmm_provider(hm, 0, NULL, &p) &&
	     !hm_vmm_pool_create(p, opt, &pool), "a pool: %s",
	     hetmem_last_error());
}

static void *get(size_t size, CUstream stream)
{
	void *p = NULL;

	need(!hetmem_alloc(pool, size, 0, stream, &p), "%zu bytes: %s", size,
	     hetmem_last_error());
	return p;
}

static void put(void *p, CUstream stream)
{
	need(!hetmem_free(pool, p, 0, stream), "free: %s",
	     hetmem_last_error());
}

static struct hetmem_resource_stats stats(void)
{
	struct hetmem_resource_stats s = { .size = sizeof(s) };

	need(!hetmem_resource_stats(pool, &s), "statistics");
	return s;
}

static void fill(void *p, size_t size, unsigned int value, CUstream stream)
{
	need(!drv->cuMemsetD8Async((uintptr_t)p, value, size, stream),
	     "memset");
}

static unsigned char *host;

/* All of it has that value, when the stream gets there. */
static bool has(void *p, size_t size, unsigned int value, CUstream stream)
{
	size_t i;

	need(!drv->cuMemcpyDtoHAsync(host, (uintptr_t)p, size, stream) &&
	     !drv->cuStreamSynchronize(stream), "a copy");
	for (i = 0; i < size; i += 509)
		if (host[i] != (unsigned char)value)
			return false;
	return host[size - 1] == (unsigned char)value;
}

/* Half of the blocks go, and come back as one, while the streams are busy. */
static void move_under_load(void)
{
	CUstream streams[2];
	void *p[BLOCKS], *q, *big;
	unsigned int round, i, wrong = 0;

	drv->cuStreamCreate(&streams[0], CU_STREAM_NON_BLOCKING);
	drv->cuStreamCreate(&streams[1], CU_STREAM_NON_BLOCKING);
	make_pool(NULL);
	for (round = 0; round < 20; round++) {
		for (i = 0; i < BLOCKS; i++) {
			p[i] = get(6 * MIB + i * 4096, streams[i & 1]);
			fill(p[i], 6 * MIB, round + i, streams[i & 1]);
		}
		for (i = 0; i < BLOCKS; i += 3)
			put(p[i], streams[i & 1]);
		big = get(80 * MIB, streams[round & 1]);
		fill(big, 80 * MIB, 0xee, streams[round & 1]);
		q = get(30 * MIB, streams[~round & 1]);
		fill(q, 30 * MIB, 0xdd, streams[~round & 1]);
		for (i = 0; i < BLOCKS; i++)
			if (i % 3)
				wrong += !has(p[i], 6 * MIB, round + i,
					      streams[i & 1]);
		wrong += !has(big, 80 * MIB, 0xee, streams[round & 1]);
		wrong += !has(q, 30 * MIB, 0xdd, streams[~round & 1]);
		put(big, streams[round & 1]);
		put(q, streams[~round & 1]);
		for (i = 0; i < BLOCKS; i++)
			if (i % 3)
				put(p[i], streams[i & 1]);
	}
	is(wrong, 0, "nobody's memory is another's, while it is moved");
	is(stats().host_wait_ns, 0, "and the host never waits");
	printf("# %llu driver calls, %llu MiB held at most for %llu asked for\n",
	       (unsigned long long)stats().driver_calls,
	       (unsigned long long)(stats().reserved_peak / MIB),
	       (unsigned long long)(stats().requested_peak / MIB));
	is(hetmem_resource_destroy(pool), 0, "all is freed");
	drv->cuStreamDestroy(streams[0]);
	drv->cuStreamDestroy(streams[1]);
}

static void grow(void)
{
	double start, took;
	void *p;

	make_pool(NULL);
	need(!alloc_reserve(pool, 64 * MIB, 4096 * MIB, NULL, &p),
	     "room: %s", hetmem_last_error());
	fill(p, 64 * MIB, 7, NULL);
	start = ms_now();
	is(hetmem_grow(pool, p, 1088 * MIB, NULL), 0, "grows by 1 GiB");
	took = ms_now() - start;
	printf("# in %.0f us\n", took * 1e3);
	fill((char *)p + 64 * MIB, 64 * MIB, 8, NULL);
	fill((char *)p + 1024 * MIB, 64 * MIB, 9, NULL);
	ok(has(p, 64 * MIB, 7, NULL) &&
	   has((char *)p + 64 * MIB, 64 * MIB, 8, NULL) &&
	   has((char *)p + 1024 * MIB, 64 * MIB, 9, NULL), "in one piece");
	put(p, NULL);
	hetmem_resource_destroy(pool);
}

static void sleep_and_wake(void)
{
	size_t before, asleep, total;
	double start;
	void *p;

	make_pool(NULL);
	p = get(1024 * MIB, NULL);
	fill(p, 64 * MIB, 1, NULL);
	drv->cuMemGetInfo(&before, &total);
	start = ms_now();
	is(hetmem_sleep(pool, NULL, HETMEM_SLEEP_DISCARD), 0, "sleep");
	printf("# 1 GiB in %.2f ms\n", ms_now() - start);
	drv->cuMemGetInfo(&asleep, &total);
	ok(asleep >= before + 1000 * MIB, "the device has its memory back");
	start = ms_now();
	is(hetmem_wake(pool, NULL), 0, "wake");
	printf("# in %.2f ms\n", ms_now() - start);
	fill(p, 64 * MIB, 2, NULL);
	ok(has(p, 64 * MIB, 2, NULL), "at the same addresses");
	put(p, NULL);
	is(hetmem_resource_destroy(pool), 0, "all is freed");
}

/* 16 live blocks, 256 bytes to 1 MiB, one freed and allocated at a time. */
static void pairs(bool retired)
{
	struct hm_pool_options opt = { .retired = retired };
	const unsigned int nr = 1000000;
	size_t size[16];
	CUstream stream;
	unsigned int i;
	double start;
	void *p[16];

	drv->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
	make_pool(&opt);
	for (i = 0; i < 16; i++) {
		size[i] = 256UL << i % 13;
		p[i] = get(size[i], stream);
	}
	start = ms_now();
	for (i = 0; i < nr; i++) {
		hetmem_free(pool, p[i & 15], size[i & 15], stream);
		hetmem_alloc(pool, size[i & 15], 0, stream, &p[i & 15]);
	}
	printf("# %s: %.1f ns a pair\n", retired ? "streams=retired" :
	       "streams asked for", (ms_now() - start) * 1e6 / nr);
	is(stats().allocs, nr + 16, "pairs are counted");
	hetmem_resource_destroy(pool);
	drv->cuStreamDestroy(stream);
}

static void capture(void)
{
	CUstream stream;
	CUgraph graph;
	CUgraphExec exec;
	void *p, *q;
	int i;

	if (!drv->cuStreamBeginCapture || !drv->cuGraphInstantiateWithFlags)
		return;
	drv->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
	make_pool(NULL);
	is(hetmem_capture_begin(pool, stream, 1), 0, "capture_begin");
	need(!drv->cuStreamBeginCapture(stream,
					CU_STREAM_CAPTURE_MODE_GLOBAL),
	     "the driver captures");
	p = get(300 * MIB, stream);
	fill(p, 4 * MIB, 0x77, stream);
	need(!drv->cuStreamEndCapture(stream, &graph), "a graph");
	is(hetmem_capture_end(pool, stream, 1), 0, "capture_end");
	need(!drv->cuGraphInstantiateWithFlags(&exec, graph, 0), "an exec");
	put(p, stream);
	q = get(300 * MIB, stream);
	ok(p != q, "a graph's memory stays its own");
	for (i = 0; i < 3; i++)
		drv->cuGraphLaunch(exec, stream);
	ok(has(p, 4 * MIB, 0x77, stream), "and is used at each launch");
	put(q, stream);
	drv->cuGraphExecDestroy(exec);
	drv->cuGraphDestroy(graph);
	is(hetmem_capture_release(pool, stream, 1), 0, "release");
	is(hetmem_resource_destroy(pool), 0, "all is freed");
	drv->cuStreamDestroy(stream);
}

int main(void)
{
	drv = open_driver(DRIVER, &hm);
	need(!drv->cuMemHostAlloc((void **)&host, 128 * MIB, 0),
	     "host memory");
	move_under_load();
	grow();
	sleep_and_wake();
	capture();
	pairs(true);
	pairs(false);
	drv->cuMemFreeHost(host);
	close_driver(drv, hm);
	return tap_end();
}
