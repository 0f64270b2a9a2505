/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem bench sparse: commits and decommits of single units, by where their memory comes
 * from, beside the driver's calls that make a handle. Then tasks that share memory over time,
 * beside the same tasks on three buffers, and the bookkeeping of many blocks that have
 * addresses and no memory.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "alloc.h"
#include "count_calls.h"
#include "resident.h"

#define MIB	((size_t)1 << 20)
#define GIB	((size_t)1 << 30)
#define UNITS	32	/* in a round */
#define ROUNDS	9
#define BLOCKS	10000

enum way {
	PARKED_HERE,
	DECOMMIT,
	NEW,
	PARKED_ELSEWHERE,
	IN_TURNS,
	NR_WAYS,
};

static const char *const ways[] = {
	[PARKED_HERE]	   = "commit, parked in the same block",
	[DECOMMIT]	   = "decommit",
	[NEW]		   = "commit, new memory",
	[PARKED_ELSEWHERE] = "commit, parked in another block",
	[IN_TURNS]	   = "commit, two blocks in turns",
};

/**
 * struct sparse_bench - two sparse blocks
 * @unit: bytes of a unit; @err: of the first call that failed
 */
struct sparse_bench {
	struct bench_options *o;
	struct hetmem_resource *res;
	CUstream stream;
	char *p[2];
	size_t unit;
	int err;
};

static int alloc_sparse(struct hetmem_resource *res, size_t bytes, CUstream s, char **p)
{
	const struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = bytes, .stream = s, .flags = HETMEM_ALLOC_SPARSE,
	};

	return hetmem_alloc_with(res, &params, (void **)p);
}

/* Commits or decommits UNITS units of @block, one a call. */
static void each_unit(struct sparse_bench *b, bool commit, unsigned int block)
{
	size_t i;

	for (i = 0; i < UNITS && !b->err; i++)
		b->err = commit ?
			hetmem_commit(b->res, b->p[block], i * b->unit, b->unit, b->stream) :
			hetmem_decommit(b->res, b->p[block], i * b->unit, b->unit, b->stream);
}

/* No unit has memory. */
static void give_back(struct sparse_bench *b)
{
	b->o->drv->cuStreamSynchronize(b->stream);
	hetmem_trim(b->res, 0, NULL);
}

/* Puts the two blocks into the state that the calls of @way begin with. */
static void prepare(struct sparse_bench *b, enum way way)
{
	if (way != IN_TURNS)
		give_back(b);
	if (way == NEW)
		return;
	each_unit(b, true, 0);
	if (way != DECOMMIT)
		each_unit(b, false, 0);
	/* The old addresses are mapped still: the calls that are measured unmap them. */
	if (way == IN_TURNS) {
		each_unit(b, true, 1);
		each_unit(b, false, 1);
		b->o->drv->cuStreamSynchronize(b->stream);
	}
}

/* ns of one call of @way. Calls of the driver are counted instead if there is a @row. */
static double one_round(struct sparse_bench *b, enum way way, struct bench_pair *row)
{
	uint64_t ns;

	prepare(b, way);
	if (row) {
		row->counted = UNITS;
		row->calls_known = count_calls_begin(b->o->hm);
	}
	ns = bench_now();
	each_unit(b, way != DECOMMIT, way == PARKED_ELSEWHERE);
	ns = bench_now() - ns;
	if (row)
		count_calls_end(b->o->hm, row->calls);
	if (way != DECOMMIT)
		each_unit(b, false, way == PARKED_ELSEWHERE);
	return (double)ns / UNITS;
}

/* The driver alone: a handle of one unit, made, mapped and made accessible. < 0: cannot. */
static double driver_makes(struct sparse_bench *b)
{
	const struct hm_driver *d = b->o->drv;
	CUdeviceptr at;
	double ns;

	if (!d->cuMemAddressReserve || !d->cuMemCreate ||
	    d->cuMemAddressReserve(&at, b->unit, 0, 0, 0))
		return -1;
	ns = bench_map_handle(b->o, at, b->unit);
	d->cuMemAddressFree(at, b->unit);
	return ns;
}

static void run_way(struct sparse_bench *b, struct bench_pairs *pairs, const char *spec,
		    enum way way)
{
	const bool makes = way == NEW || way == PARKED_ELSEWHERE || way == IN_TURNS;
	double ours[ROUNDS], theirs[ROUNDS];
	struct bench_pair row = {
		.what = ways[way], .threads = 1, .system_calls = -1, .peer_ns = -1,
		.peer = makes ? "one handle: create, map, access" : NULL,
	};
	int i;

	for (i = 0; i < ROUNDS; i++) {
		ours[i] = one_round(b, way, NULL);
		theirs[i] = makes ? driver_makes(b) : -1;
	}
	one_round(b, way, &row);
	if (b->err) {
		complain(EXIT_FAILED, "bench", "%s: %s: %s", spec, row.what, hetmem_last_error());
		b->err = 0;
		return;
	}
	snprintf(row.spec, sizeof(row.spec), "%s", spec);
	row.ns = bench_median(ours, ROUNDS);
	row.peer_ns = bench_median(theirs, ROUNDS);
	bench_pairs_add(pairs, &row);
}

static void run_driver(struct sparse_bench *b, struct bench_pairs *pairs, const char *spec)
{
	double ns[ROUNDS];
	struct bench_pair row = {
		.what = "the driver alone: create, map, access", .threads = 1,
		.system_calls = -1, .peer_ns = -1,
	};
	int i;

	for (i = 0; i < ROUNDS; i++)
		ns[i] = driver_makes(b);
	snprintf(row.spec, sizeof(row.spec), "%s", spec);
	row.ns = bench_median(ns, ROUNDS);
	bench_pairs_add(pairs, &row);
}

static void run_commits(struct bench_options *o, struct bench_pairs *pairs, const char *spec)
{
	struct sparse_bench b = { .o = o, .res = bench_make(o, spec) };
	struct hetmem_access access = { .size = sizeof(access) };
	enum way way;

	if (!b.res)
		return;
	if (o->drv->cuStreamCreate(&b.stream, CU_STREAM_NON_BLOCKING)) {
		hetmem_resource_destroy(b.res);
		complain(EXIT_FAILED, "bench", "%s: no stream", spec);
		return;
	}
	/* Room for units of 1 GiB. */
	b.err = alloc_sparse(b.res, UNITS * GIB, b.stream, &b.p[0]);
	if (!b.err)
		b.err = alloc_sparse(b.res, UNITS * GIB, b.stream, &b.p[1]);
	if (!b.err)
		b.err = hetmem_resource_access(b.res, &access);
	b.unit = access.unit;
	if (b.err) {
		complain(EXIT_FAILED, "bench", "%s: %s", spec, hetmem_last_error());
	} else {
		for (way = 0; way < NR_WAYS; way++)
			run_way(&b, pairs, spec, way);
		run_driver(&b, pairs, spec);
	}
	hetmem_free(b.res, b.p[0], 0, b.stream);
	hetmem_free(b.res, b.p[1], 0, b.stream);
	hetmem_resource_destroy(b.res);
	o->drv->cuStreamDestroy(b.stream);
}

#define TASKS	40
#define RUNNING	3	/* at once */
#define PARTS	16	/* of the memory; a task has three to five of them */
#define MOST	5

/**
 * struct tasks - they write their memory @passes times; their last values are compared
 * @total: bytes that all may have, @part: a sixteenth of them
 * @ends: the last byte of each part of each task, pinned
 * @buffers: of the peer
 */
struct tasks {
	struct bench_options *o;
	struct hetmem_resource *res;
	CUstream streams[RUNNING];
	CUdeviceptr buffers[RUNNING];
	unsigned char *ends;
	size_t total, part;
	int passes;
	int err;
};

static unsigned int parts_of(int task)
{
	return 3 + task * 7 % 3;
}

/* The work of @task at @at, on its stream. */
static void run_task(struct tasks *t, int task, CUdeviceptr at)
{
	const CUstream s = t->streams[task % RUNNING];
	const struct hm_driver *d = t->o->drv;
	unsigned int i;
	int pass;

	for (pass = t->passes; pass >= 0; pass--)
		t->err |= d->cuMemsetD8Async(at, task + 1 + pass, parts_of(task) * t->part, s);
	for (i = 0; i < parts_of(task); i++)
		t->err |= d->cuMemcpyDtoHAsync(&t->ends[task * MOST + i], at + (i + 1) * t->part - 1, 1, s);
}

/* A task has addresses of its own, and memory while it runs. */
static void run_shared(struct tasks *t, int task)
{
	const size_t bytes = parts_of(task) * t->part;
	const CUstream s = t->streams[task % RUNNING];
	char *p = NULL;

	if (t->err)
		return;
	t->err = alloc_sparse(t->res, bytes, s, &p);
	if (!t->err)
		t->err = hetmem_commit_with(t->res, p, 0, bytes, HETMEM_COMMIT_WAIT, s);
	if (!t->err)
		run_task(t, task, (uintptr_t)p);
	if (!t->err)
		t->err = hetmem_decommit(t->res, p, 0, bytes, s);
	hetmem_free(t->res, p, 0, s);
}

/* ns of a task, until all are done. */
static double run_tasks(struct tasks *t, bool shared)
{
	uint64_t ns = bench_now();
	unsigned int i;
	int task;

	memset(t->ends, 0, TASKS * MOST);
	for (task = 0; task < TASKS; task++)
		if (shared)
			run_shared(t, task);
		else
			run_task(t, task, t->buffers[task % RUNNING]);
	for (i = 0; i < RUNNING; i++)
		t->err |= t->o->drv->cuStreamSynchronize(t->streams[i]);
	ns = bench_now() - ns;
	for (task = 0; task < TASKS; task++)
		for (i = 0; i < parts_of(task); i++)
			t->err |= t->ends[task * MOST + i] != (unsigned char)(task + 1);
	return (double)ns / TASKS;
}

/* Streams, buffers and the limit; false: the driver has not so much. */
static bool begin_tasks(struct tasks *t)
{
	const struct hm_driver *d = t->o->drv;
	size_t available = 0, total;
	char text[32];
	int i;

	if (d->cuMemGetInfo(&available, &total))
		return false;
	/* The peer's buffers are there at the same time. */
	t->total = 16 * GIB;
	while (t->total > 32 * MIB && (t->total * 2 > available || (t->o->hm->soft && t->total > 64 * MIB)))
		t->total /= 2;
	t->part = t->total / PARTS;
	t->passes = t->o->hm->soft ? 0 : 16;
	snprintf(text, sizeof(text), "%zuM", t->total / MIB);
	if (hetmem_resource_set(t->res, "max", text) ||
	    d->cuMemHostAlloc((void **)&t->ends, TASKS * MOST, 0))
		return false;
	for (i = 0; i < RUNNING; i++)
		if (d->cuStreamCreate(&t->streams[i], CU_STREAM_NON_BLOCKING) ||
		    d->cuMemAlloc(&t->buffers[i], MOST * t->part))
			return false;
	return true;
}

static void end_tasks(struct tasks *t)
{
	const struct hm_driver *d = t->o->drv;
	int i;

	for (i = 0; i < RUNNING; i++) {
		if (t->buffers[i])
			d->cuMemFree(t->buffers[i]);
		if (t->streams[i])
			d->cuStreamDestroy(t->streams[i]);
	}
	if (t->ends)
		d->cuMemFreeHost(t->ends);
	hetmem_resource_destroy(t->res);
}

/* The unit of @spec must divide a part. */
static void run_sharing(struct bench_options *o, struct bench_pairs *pairs, const char *spec)
{
	struct tasks t = { .o = o, .res = bench_make(o, spec) };
	struct bench_pair row = {
		.what = "a task of 40, of 3 to 5 sixteenths of the memory", .threads = 1,
		.system_calls = -1, .peer = "three buffers",
	};
	double ours[ROUNDS], theirs[ROUNDS];
	int i;

	if (!t.res)
		return;
	if (!begin_tasks(&t)) {
		complain(EXIT_FAILED, "bench", "%s: %s: no memory", spec, row.what);
		end_tasks(&t);
		return;
	}
	for (i = 0; i < ROUNDS; i++) {
		theirs[i] = run_tasks(&t, false);
		ours[i] = run_tasks(&t, true);
	}
	if (t.err) {
		complain(EXIT_FAILED, "bench", "%s: %s: %s", spec, row.what, hetmem_last_error());
	} else {
		snprintf(row.spec, sizeof(row.spec), "%s", spec);
		row.ns = bench_median(ours, ROUNDS);
		row.peer_ns = bench_median(theirs, ROUNDS);
		bench_pairs_add(pairs, &row);
	}
	end_tasks(&t);
}

/* Resident bytes of the process for blocks of 1 GiB that have no memory. */
static void run_blocks(struct bench_options *o, struct bench_pairs *pairs, const char *spec)
{
	struct bench_pair row = {
		.what = "10,000 blocks of 1 GiB without memory", .threads = 1, .ns = -1,
		.peer_ns = -1, .system_calls = -1, .blocks = BLOCKS,
	};
	struct hetmem_resource *res = bench_make(o, spec);
	int64_t before;
	int i, err = 0;
	char *p;

	if (!res)
		return;
	resident_begin();
	before = resident_anonymous();
	for (i = 0; i < BLOCKS && !err; i++)
		err = alloc_sparse(res, GIB, HETMEM_STREAM_LEGACY, &p);
	row.resident = resident_anonymous() - before;
	snprintf(row.spec, sizeof(row.spec), "%s", spec);
	if (err)
		complain(EXIT_FAILED, "bench", "%s: %s: %s", spec, row.what, hetmem_last_error());
	else if (before >= 0)
		bench_pairs_add(pairs, &row);
	hetmem_resource_destroy(res);
}

int bench_sparse(int argc, char **argv)
{
	static const char *const presets[] = { "pool(vmm)", "pool(vmm,unit=64M)", NULL };
	struct bench_options o = { 0 };
	int i, status = bench_begin(&o, argc, argv,
		"Usage: hetmem bench sparse [--spec SPEC]... [--driver DRIVER] [--json]\n"
		"Commits and decommits of units of sparse blocks, tasks that share memory over\n"
		"time, and the bookkeeping of 10,000 blocks of 1 GiB that have no memory. NS is\n"
		"of one unit, or of one task.", presets);
	struct bench_pairs *pairs;

	if (status >= 0)
		return status;
	pairs = bench_pairs_new();
	for (i = 0; i < o.nr_specs; i++)
		run_commits(&o, pairs, o.specs[i]);
	for (i = 0; i < o.nr_specs; i++)
		run_sharing(&o, pairs, o.specs[i]);
	for (i = 0; i < o.nr_specs; i++)
		run_blocks(&o, pairs, o.specs[i]);
	return bench_end(&o, pairs);
}
