// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver's graphs, in check mode: when their memory is there and
 * counted, when a launch has to fail, and what it leaves; the order in which
 * the nodes are done.
 */
#include "soft_driver.h"

#define MB	((size_t)1 << 20)
#define SLOW	20000000	/* ns */
#define LAUNCHES	300

static CUstream a, b;

static CUdeviceptr get(size_t size)
{
	CUdeviceptr p = 0;

	need(!drv->cuMemAllocAsync(&p, size, a) && p, "captured memory");
	return p;
}

static void begin(void)
{
	need(!drv->cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL),
	     "a capture");
}

static CUgraphExec end(void)
{
	CUgraphExec exec;
	CUgraph graph;

	need(!drv->cuStreamEndCapture(a, &graph) &&
	     !drv->cuGraphInstantiateWithFlags(&exec, graph, 0) &&
	     !drv->cuGraphDestroy(graph), "an executable");
	return exec;
}

static void slow_kernel(CUdeviceptr p, size_t size)
{
	const struct hm_soft_range range = { p, size, 0x33 };

	need(!soft_launch(a, "a kernel", &range, 1, SLOW), "a kernel");
}

/* Freed in the graph: launches may overlap, memory is there meanwhile. */
static void whole(void)
{
	CUgraphExec exec;
	CUdeviceptr p;

	begin();
	p = get(3 * MB + 1);
	slow_kernel(p, 3 * MB);
	drv->cuMemFreeAsync(p, a);
	exec = end();
	is(device_used(), 0, "nothing is held before a launch");
	is(drv->cuGraphLaunch(exec, a), 0, "a launch");
	ok(device_used() >= 3 * MB, "the memory is there");
	is(drv->cuGraphLaunch(exec, a), 0, "another one behind it");
	ok(device_used() < 4 * MB, "has the same memory");
	is(drv->cuMemFreeAsync(p, a), CUDA_ERROR_INVALID_VALUE,
	   "that the graph frees");
	drv->cuStreamSynchronize(a);
	is(device_used(), 0, "and nothing is held after it");
	is(drv->cuGraphLaunch(exec, b), 0, "on another stream");
	is(drv->cuGraphExecDestroy(exec), 0, "destroyed under way");
	drv->cuStreamSynchronize(b);
	is(device_used(), 0, "all went");
}

/* Freed later: until then there is no other launch. */
static void kept(void)
{
	unsigned char out[16];
	CUgraphExec exec;
	CUdeviceptr p;

	begin();
	p = get(MB);
	slow_kernel(p, MB);
	exec = end();
	is(drv->cuGraphLaunch(exec, a), 0, "a launch");
	is(drv->cuGraphLaunch(exec, a), CUDA_ERROR_INVALID_VALUE,
	   "not while its memory is allocated");
	drv->cuMemcpyDtoHAsync(out, p + MB - 16, 16, a);
	is(drv->cuMemFreeAsync(p, a), 0, "freed behind a copy");
	is(drv->cuGraphLaunch(exec, a), 0, "launched before that is done");
	ok(all_bytes(out, 0x33, 16), "the copy was first");
	drv->cuStreamSynchronize(a);
	is(device_used(), MB, "the memory is there");
	is(drv->cuMemFree(p), 0, "freed at once");
	is(device_used(), 0, "gone");
	is(drv->cuGraphExecDestroy(exec), 0, "destroyed");
}

/* What does not fit is refused as a whole, and nothing is held. */
static void full(void)
{
	CUgraphExec exec;
	CUdeviceptr p, q, big;

	begin();
	p = get(100 * MB);
	q = get(100 * MB);
	ok(p != q, "two");
	drv->cuMemFreeAsync(p, a);
	drv->cuMemFreeAsync(q, a);
	exec = end();
	need(!drv->cuMemAlloc(&big, 100 * MB), "memory");
	is(drv->cuGraphLaunch(exec, a), CUDA_ERROR_OUT_OF_MEMORY,
	   "one and a half of them fit");
	is(device_used(), 100 * MB, "neither is held");
	is(drv->cuMemFree(big), 0, "room");
	is(drv->cuGraphLaunch(exec, a), 0, "now it fits");
	drv->cuStreamSynchronize(a);
	drv->cuGraphExecDestroy(exec);
	is(device_used(), 0, "nothing is held");
}

/* A capture that is thrown away takes its addresses with it. */
static void thrown_away(void)
{
	CUgraph graph = NULL;
	CUdeviceptr p, q;

	begin();
	p = get(MB);
	is(drv->cuStreamQuery(a), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
	   "something illegal");
	is(drv->cuMemAllocAsync(&q, MB, a),
	   CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "no more memory");
	is(drv->cuStreamEndCapture(a, &graph),
	   CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "invalid");
	is(drv->cuMemFreeAsync(p, a), CUDA_ERROR_INVALID_VALUE,
	   "nothing to free");
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char done[6 * LAUNCHES + 1];

/* A letter in the order in which things are done. */
static void letter(void *which)
{
	pthread_mutex_lock(&lock);
	done[strlen(done)] = *(const char *)which;
	pthread_mutex_unlock(&lock);
}

static void put_letter(CUstream s, const char *which)
{
	need(!drv->cuLaunchHostFunc(s, letter, (void *)which), "work");
}

/* 0, then 1 2 and 3 4 in two branches, then 5. */
static CUgraphExec branches(void)
{
	begin();
	put_letter(a, "0");
	follow(b, a);
	put_letter(a, "1");
	put_letter(a, "2");
	put_letter(b, "3");
	put_letter(b, "4");
	follow(a, b);
	put_letter(a, "5");
	return end();
}

static bool before(const char *order, char first, char second)
{
	return memchr(order, first, 6) < memchr(order, second, 6);
}

/* The order of each launch, by @seed, in @all. */
static void launch_seed(const char *seed, char *all)
{
	CUgraphExec exec;
	int i;

	setenv("HETMEM_SOFT_SEED", seed, 1);
	open_soft("");
	drv->cuStreamCreate(&a, CU_STREAM_NON_BLOCKING);
	drv->cuStreamCreate(&b, CU_STREAM_NON_BLOCKING);
	memset(done, 0, sizeof(done));
	exec = branches();
	for (i = 0; i < LAUNCHES; i++)
		need(!drv->cuGraphLaunch(exec, i & 1 ? a : b), "a launch");
	drv->cuCtxSynchronize();
	drv->cuGraphExecDestroy(exec);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
	close_soft();
	strcpy(all, done);
}

/* Six orders are possible, and all of them happen. */
static void orders(void)
{
	char all[sizeof(done)], again[sizeof(done)];
	unsigned int kinds = 0, wrong = 0;
	int i, j;

	launch_seed("1", all);
	is(strlen(all), 6 * LAUNCHES, "launches, one at a time");
	for (i = 0; i < LAUNCHES; i++) {
		const char *o = all + 6 * i;

		wrong += o[0] != '0' || o[5] != '5' || !before(o, '1', '2') ||
			!before(o, '3', '4');
		for (j = 0; j < i; j++)
			if (!memcmp(o, all + 6 * j, 6))
				break;
		kinds += j == i;
	}
	is(wrong, 0, "what is ordered is done in order");
	is(kinds, 6, "what is not, in every order");
	launch_seed("1", again);
	ok(!strcmp(all, again), "the same seed, the same orders");
	launch_seed("2", again);
	ok(strcmp(all, again), "another seed, others");
	launch_seed("0", again);
	for (i = 0; i < LAUNCHES; i++)
		wrong += !!memcmp(again + 6 * i, "012345", 6);
	is(wrong, 0, "none: as it was captured");
	unsetenv("HETMEM_SOFT_SEED");
}

static void bad_seed(void)
{
	struct hetmem_params params = { .size = sizeof(params),
					.driver = "soft", .module_path = "" };
	static const char *const bad[] = {
		"-1", "x", "1x", " 1", "99999999999999999999",
	};
	size_t i;

	for (i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		setenv("HETMEM_SOFT_SEED", bad[i], 1);
		is(hetmem_open(&hm, &params), -EINVAL, "seed '%s'", bad[i]);
	}
	unsetenv("HETMEM_SOFT_SEED");
}

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "256M", 1);
	setenv("HETMEM_SOFT_DEBUG", "1", 1);
	setenv("HETMEM_SOFT_CHECK", "1", 1);
	open_soft("");
	drv->cuStreamCreate(&a, CU_STREAM_NON_BLOCKING);
	drv->cuStreamCreate(&b, CU_STREAM_NON_BLOCKING);
	whole();
	kept();
	full();
	thrown_away();
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
	close_soft();
	orders();
	bad_seed();
	return tap_end();
}
