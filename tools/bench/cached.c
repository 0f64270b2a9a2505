/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem bench cached: the cached path alone. A few sizes, again and again, so
 * that every block comes from a stream's cache: on one stream, on several in
 * turn, freed on another stream than they were allocated on, and on the CPU.
 * What it calls is counted, in the driver and, by another process, in the
 * kernel.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "alloc.h"
#include "count_calls.h"
#include "count_system.h"

#define PAIRS	20000
#define STREAMS	4

static const size_t sizes[] = {
	256, 1000, 4096, 10000, 65536, 100000, 262144, 524288,
};

enum way {
	ONE_STREAM,
	STREAMS_IN_TURN,
	FREED_ELSEWHERE,
	HOST_STREAM,
};

static const char *const ways[] = {
	[ONE_STREAM]	  = "cached, one stream",
	[STREAMS_IN_TURN] = "cached, 4 streams in turn",
	[FREED_ELSEWHERE] = "cached, freed on another stream",
	[HOST_STREAM]	  = "cached, the CPU's",
};

static hetmem_stream stream_of(const struct bench_thread *t, enum way way,
			       uint64_t i, bool freed)
{
	switch (way) {
	case HOST_STREAM:
		return HETMEM_STREAM_HOST;
	case STREAMS_IN_TURN:
		return t->streams[i / ARRAY_SIZE(sizes) % STREAMS];
	case FREED_ELSEWHERE:
		/* There and back, so that no cache runs out. */
		return t->streams[(i / ARRAY_SIZE(sizes) + freed) % 2];
	default:
		return t->streams[0];
	}
}

/* Nothing runs on the streams, so nobody has to order a free. */
static void run_pairs(struct bench_thread *t, enum way way, uint64_t pairs)
{
	uint64_t i;
	void *p;

	for (i = 0; i < pairs; i++) {
		size_t size = sizes[i % ARRAY_SIZE(sizes)];

		if (hetmem_alloc(t->res, size, 0,
				 stream_of(t, way, i, false), &p)) {
			t->failures++;
			return;
		}
		hetmem_free(t->res, p, size, stream_of(t, way, i, true));
	}
}

/*
 * Blocks of each size for each stream at once: before it grows, a pool takes
 * what another stream has cached.
 */
static void warm_up(struct bench_thread *t, enum way way)
{
	void *p[STREAMS * ARRAY_SIZE(sizes)] = { NULL };
	uint64_t i;

	for (i = 0; i < ARRAY_SIZE(p); i++)
		t->failures += !!hetmem_alloc(t->res,
					      sizes[i % ARRAY_SIZE(sizes)], 0,
					      stream_of(t, way, i, false),
					      &p[i]);
	for (i = 0; i < ARRAY_SIZE(p); i++)
		if (p[i])
			hetmem_free(t->res, p[i], 0,
				    stream_of(t, way, i, false));
	run_pairs(t, way, PAIRS);
}

static void count_pairs(struct bench_thread *t, enum way way,
			struct bench_pair *row)
{
	row->counted = PAIRS;
	row->calls_known = count_calls_begin(t->o->hm);
	run_pairs(t, way, PAIRS);
	count_calls_end(t->o->hm, row->calls);
	if (count_system_begin()) {
		run_pairs(t, way, PAIRS);
		row->system_calls = count_system_end();
	}
}

static void run_way(struct bench_options *o, struct bench_pairs *pairs,
		    const char *spec, enum way way)
{
	struct bench_pair row = { .threads = 1, .what = ways[way],
				  .peer_ns = -1, .system_calls = -1 };
	struct hetmem_resource *res = bench_make(o, spec);
	struct bench_thread t;
	uint64_t ns;

	if (!res)
		return;
	snprintf(row.spec, sizeof(row.spec), "%s", spec);
	if (bench_thread_init(&t, o, res, STREAMS)) {
		warm_up(&t, way);
		ns = bench_now();
		run_pairs(&t, way, PAIRS);
		row.ns = (double)(bench_now() - ns) / PAIRS;
		count_pairs(&t, way, &row);
	}
	if (t.failures)
		complain(EXIT_FAILED, "bench", "%s: %s: %s", spec, row.what,
			 hetmem_last_error());
	else
		bench_pairs_add(pairs, &row);
	bench_thread_end(&t);
	hetmem_resource_destroy(res);
}

int bench_cached(int argc, char **argv)
{
	static const char *const presets[] = {
		"device-pool", "device-pool(streams=retired)", "pool(host)",
		NULL,
	};
	struct bench_options o = { 0 };
	int i, status = bench_begin(&o, argc, argv,
		"Usage: hetmem bench cached [--spec SPEC]... [--driver DRIVER] [--json]\n"
		"Blocks that come from a cache, and what that calls: in the driver, and in the\n"
		"kernel (SYSCALLS, counted by another process).", presets);
	struct bench_pairs *pairs;
	enum way way;

	if (status >= 0)
		return status;
	pairs = bench_pairs_new();
	for (i = 0; i < o.nr_specs; i++)
		for (way = ONE_STREAM; way <= HOST_STREAM; way++)
			run_way(&o, pairs, o.specs[i], way);
	return bench_end(&o, pairs);
}
