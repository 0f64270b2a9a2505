/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem bench metadata: what a pool costs of the process's own memory while
 * many small blocks are live, by what the kernel says is resident, not by what
 * the pool says of itself. The driver's part is in it.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "alloc.h"
#include "resident.h"

static const size_t counts[] = { 100000, 1000000 };

/* 256 B to 4 KiB, all as likely. */
static size_t size_of(uint64_t *seed)
{
	*seed = *seed * 6364136223846793005ULL + 1442695040888963407ULL;
	return 256 + (*seed >> 33) % (4096 - 256 + 1);
}

/* Fills @blocks on @nr_streams in turn. 0 or the errno. */
static int fill(struct bench_thread *t, void **blocks, size_t nr)
{
	uint64_t seed = 1;
	size_t i;
	int err = 0;

	for (i = 0; i < nr && !err; i++)
		err = hetmem_alloc(t->res, size_of(&seed), 0,
				   t->streams[i % t->nr_streams], &blocks[i]);
	return err;
}

static void empty(struct bench_thread *t, void **blocks, size_t nr)
{
	size_t i;

	for (i = 0; i < nr && blocks[i]; i++)
		hetmem_free(t->res, blocks[i], 0, t->streams[i % t->nr_streams]);
}

static void run_metadata(struct bench_options *o, struct bench_pairs *pairs,
			 const char *spec, size_t nr, int nr_streams)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };
	struct bench_pair row = { .threads = 1, .ns = -1, .peer_ns = -1,
				  .system_calls = -1, .blocks = nr };
	void **blocks = xcalloc(nr, sizeof(*blocks));
	struct bench_thread t;
	int64_t before;
	int err = -EINVAL;

	/* Every page of it is there before anything is counted. */
	memset(blocks, 0xff, nr * sizeof(*blocks));
	memset(blocks, 0, nr * sizeof(*blocks));
	row.what = xasprintf("%zu blocks of 256 B to 4 KiB, %d stream%s", nr,
			     nr_streams, nr_streams > 1 ? "s" : "");
	snprintf(row.spec, sizeof(row.spec), "%s", spec);
	if (bench_thread_init(&t, o, NULL, nr_streams)) {
		resident_begin();
		before = resident_anonymous();
		t.res = bench_make(o, spec);
		err = t.res ? fill(&t, blocks, nr) : 0;
		row.resident = resident_anonymous() - before;
		if (t.res && !err && before >= 0 &&
		    !hetmem_resource_stats(t.res, &stats)) {
			row.mapped = stats.reserved;
			bench_pairs_add(pairs, &row);
		}
	}
	if (err)
		complain(EXIT_FAILED, "bench", "%s: %s: %s", spec, row.what,
			 hetmem_last_error());
	if (t.res)
		empty(&t, blocks, nr);
	bench_thread_end(&t);
	if (t.res)
		hetmem_resource_destroy(t.res);
	free(blocks);
}

int bench_metadata(int argc, char **argv)
{
	static const char *const presets[] = { "device-pool", NULL };
	struct bench_options o = { 0 };
	int status = bench_begin(&o, argc, argv,
		"Usage: hetmem bench metadata [--spec SPEC]... [--driver DRIVER] [--json]\n"
		"How much the process's resident memory grows by, the driver's part included,\n"
		"while 100,000 and 1,000,000 blocks are live, on one stream and on eight.", presets);
	struct bench_pairs *pairs;
	size_t i, j;

	if (status >= 0)
		return status;
	pairs = bench_pairs_new();
	for (i = 0; i < (size_t)o.nr_specs; i++)
		for (j = 0; j < ARRAY_SIZE(counts); j++) {
			run_metadata(&o, pairs, o.specs[i], counts[j], 1);
			run_metadata(&o, pairs, o.specs[i], counts[j], 8);
		}
	return bench_end(&o, pairs);
}
