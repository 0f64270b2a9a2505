// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A pool while several streams are captured into one graph: a block that one
 * branch freed goes to another branch only behind an order between them. The
 * soft driver executes branches in any order that the graph allows, and check
 * mode aborts when two branches use the same memory without one. Every case is
 * a process of its own.
 */
#include <sys/wait.h>

#include "pool.h"

#define STREAMS	3
#define ID	7

static CUstream streams[STREAMS];
static CUgraphExec exec;

static void order(int to, int from)
{
	follow(streams[to], streams[from]);
}

static void *take(int i, size_t size)
{
	void *p = get(size, streams[i]);

	need(!drv->cuMemsetD8Async((uintptr_t)p, i, size, streams[i]),
	     "work");
	return p;
}

/* All streams are captured into one graph, and declared with one id. */
static void begin(void)
{
	int i;

	for (i = 0; i < STREAMS; i++)
		need(!hetmem_capture_begin(pool, streams[i], ID),
		     "capture_begin: %s", hetmem_last_error());
	need(!drv->cuStreamBeginCapture(streams[0],
					CU_STREAM_CAPTURE_MODE_GLOBAL),
	     "a capture");
	for (i = 1; i < STREAMS; i++)
		order(i, 0);
}

static void end(void)
{
	CUgraph graph;
	int i;

	for (i = 1; i < STREAMS; i++)
		order(0, i);
	need(!drv->cuStreamEndCapture(streams[0], &graph) &&
	     !drv->cuGraphInstantiateWithFlags(&exec, graph, 0) &&
	     !drv->cuGraphDestroy(graph), "a graph");
	for (i = 0; i < STREAMS; i++)
		need(!hetmem_capture_end(pool, streams[i], ID),
		     "capture_end: %s", hetmem_last_error());
}

/* Branch 0 has used and freed a block when branch 1 wants one like it. */
static void same_size(void)
{
	put(take(0, 3 * MIB), 3 * MIB, streams[0]);
	put(take(1, 3 * MIB), 3 * MIB, streams[1]);
}

static void small_ones(void)
{
	int i;

	for (i = 0; i < 100; i++)
		put(take(i % 2, 1000), 1000, streams[i % 2]);
}

/* Of two small ones a large one is made. */
static void merged(void)
{
	void *p = take(0, 5 * MIB), *q = take(0, 5 * MIB);

	put(p, 5 * MIB, streams[0]);
	put(q, 5 * MIB, streams[0]);
	put(take(2, 9 * MIB), 9 * MIB, streams[2]);
}

/* An order that is from before the free is none. */
static void early_order(void)
{
	void *p = take(0, 3 * MIB);

	order(1, 0);
	put(p, 3 * MIB, streams[0]);
	put(take(2, 3 * MIB), 3 * MIB, streams[2]);
	put(take(1, 3 * MIB), 3 * MIB, streams[1]);
}

/* Freed on the branch that used it last, not on the one it is from. */
static void freed_elsewhere(void)
{
	void *p = take(0, 3 * MIB);

	order(1, 0);
	drv->cuMemsetD8Async((uintptr_t)p, 1, 3 * MIB, streams[1]);
	put(p, 3 * MIB, streams[1]);
	put(take(0, 3 * MIB), 3 * MIB, streams[0]);
}

static void use_on(int i, void *p)
{
	need(!drv->cuMemsetD8Async((uintptr_t)p, i, 3 * MIB, streams[i]), "work");
}

/* Another branch goes on using it, which is recorded. */
static void recorded(void)
{
	void *p = take(0, 3 * MIB);

	order(1, 0);
	need(!hetmem_record_stream(pool, p, streams[1]), "recorded");
	use_on(1, p);
	put(p, 3 * MIB, streams[0]);
	put(take(0, 3 * MIB), 3 * MIB, streams[0]);
}

/* Nobody knows behind which work of the graph that is. */
static void freed_outside(void)
{
	void *p = take(0, 3 * MIB);

	order(1, 0);
	use_on(1, p);
	put(p, 3 * MIB, HETMEM_STREAM_HOST);
	put(take(0, 3 * MIB), 3 * MIB, streams[0]);
}

static void ordered(void)
{
	put(take(0, 3 * MIB), 3 * MIB, streams[0]);
	order(1, 0);
	put(take(1, 3 * MIB), 3 * MIB, streams[1]);
	order(2, 1);
	put(take(2, 3 * MIB), 3 * MIB, streams[2]);
}

static void at_random(void)
{
	static const size_t sizes[] = { 700, 5000, 300000, 3 << 20, 9 << 20 };
	struct { void *p; size_t size; int on; } held[12] = { { 0 } };
	unsigned int seed = 1, i;

	for (i = 0; i < 400; i++) {
		int h, to, from;

		seed = seed * 1103515245 + 12345;
		h = (seed >> 8) % 12;
		to = (seed >> 13) % STREAMS;
		from = (seed >> 18) % STREAMS;
		if (!((seed >> 22) % 9) && to != from)
			order(to, from);
		if (held[h].p) {
			put(held[h].p, held[h].size, streams[held[h].on]);
			held[h].p = NULL;
			continue;
		}
		held[h].on = to;
		held[h].size = sizes[(seed >> 25) % 5];
		held[h].p = take(to, held[h].size);
	}
	for (i = 0; i < 12; i++)
		if (held[i].p)
			put(held[i].p, held[i].size, streams[held[i].on]);
}

static const struct {
	const char *name;
	void (*work)(void);
} cases[] = {
	{ "another branch wants the same size", same_size },
	{ "small blocks, in turn", small_ones },
	{ "what was merged", merged },
	{ "an order from before the free", early_order },
	{ "freed on another branch", freed_elsewhere },
	{ "another branch uses it longer", recorded },
	{ "freed outside of the capture", freed_outside },
	{ "an order between them", ordered },
	{ "at random", at_random },
};

static void run(const char *provider, void (*work)(void))
{
	int i;

	open_soft("");
	for (i = 0; i < STREAMS; i++)
		drv->cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING);
	make_pool(provider, NULL);
	begin();
	work();
	end();
	for (i = 0; i < 4; i++)
		need(!drv->cuGraphLaunch(exec, streams[i % STREAMS]),
		     "a launch");
	drv->cuCtxSynchronize();
	drv->cuGraphExecDestroy(exec);
	need(!hetmem_capture_release(pool, streams[0], ID), "release: %s",
	     hetmem_last_error());
	for (i = 0; i < STREAMS; i++) {
		hetmem_stream_retire(pool, streams[i]);
		drv->cuStreamDestroy(streams[i]);
	}
	need(!hetmem_resource_destroy(pool), "nothing was left");
	close_soft();
}

/* A child says nothing on success, and why on stderr else. */
static void run_apart(const char *provider, size_t i)
{
	int status;

	fflush(stdout);
	if (!fork()) {
		dup2(2, 1);
		run(provider, cases[i].work);
		_exit(0);
	}
	wait(&status);
	ok(WIFEXITED(status) && !WEXITSTATUS(status), "%s: %s", provider,
	   cases[i].name);
}

int main(void)
{
	size_t i;

	setenv("HETMEM_SOFT_CHECK", "1", 1);
	setenv("HETMEM_SOFT_MEMORY", "256M", 1);
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		run_apart("vmm", i);
		run_apart("device", i);
	}
	return tap_end();
}
