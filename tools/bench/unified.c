// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * hetmem bench unified: `unified` beside what a program would do without it. Blocks are
 * prefetched together, beside managed memory block by block. The CPU and kernels use the
 * same memory in turns, beside managed memory that moves by faults, the driver's own
 * prefetches, and pinned copies.
 *
 * The CPU touches one word of each page: moves dominate the time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <hetmem/place.h>
#include <hetmem/pool.h>

#include "alloc.h"
#include "bench.h"

#define MIB		((size_t)1 << 20)
#define PAGE		((size_t)4096)
#define ROUNDS		5
/* Measured turns of a round. One turn before them is not measured. */
#define TURNS		4
/* Allocations before blocks are prefetched together; MIXED_LIVE are live at a time. */
#define MIXED		100000
#define MIXED_LIVE	512
#define BLOCKS		1024
#define BLOCK		((size_t)64 << 10)
/* Bytes that both use in a turn with small results. */
#define RESULTS		MIB

static const char *const presets[] = {
	"unified", "unified(over=registered)", NULL,
};

static int by_value(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* The median of ROUNDS times in ms; < 0 if a round failed. */
static double median(double *ms)
{
	qsort(ms, ROUNDS, sizeof(*ms), by_value);
	return ms[0] < 0 ? -1 : ms[ROUNDS / 2];
}

/*
 * struct place - the device that is measured
 * @moves: memory of the current spec can move to it
 * @failed: the first step that failed; "": none
 */
struct place {
	struct bench_options *o;
	CUstream stream;
	uint32_t device;
	bool moves;
	char failed[256];
};

static bool good(struct place *at, bool worked, const char *what)
{
	if (!worked && !*at->failed)
		snprintf(at->failed, sizeof(at->failed), "%s", what);
	return worked;
}

/* A call of the library returned @err: its text is there only now. */
static bool called(struct place *at, int err)
{
	return good(at, !err, err ? hetmem_last_error() : "");
}

static bool sync(struct place *at)
{
	return good(at, !at->o->drv->cuStreamSynchronize(at->stream), "cuStreamSynchronize");
}

static bool prefetch_bare(struct place *at, const void *ptr, size_t size, bool to_device)
{
	const uint32_t where = to_device ? at->device :
		HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY);

	return good(at, !hm_driver_prefetch(at->o->hm, (uintptr_t)ptr, size, where,
					    at->stream), "cuMemPrefetchAsync");
}

static void *alloc_managed(struct place *at, size_t size)
{
	CUdeviceptr p = 0;

	good(at, !at->o->drv->cuMemAllocManaged(&p, size, CU_MEM_ATTACH_GLOBAL),
	     "cuMemAllocManaged");
	return (void *)(uintptr_t)p;
}

static void free_managed(struct place *at, void *p)
{
	if (p)
		at->o->drv->cuMemFree((uintptr_t)p);
}

static void *alloc_ours(struct place *at, struct hetmem_resource *res, size_t size,
			enum hetmem_placement placement)
{
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = size, .stream = at->stream,
		.placement = placement,
	};
	void *p = NULL;

	called(at, hetmem_alloc_with(res, &params, &p));
	return p;
}

/* The CPU writes one word of each page. */
static void write_pages(void *p, size_t size, uint32_t value)
{
	size_t i;

	for (i = 0; i < size; i += PAGE)
		*(volatile uint32_t *)((char *)p + i) = value;
}

static bool read_pages(struct place *at, const void *p, size_t size, uint32_t value)
{
	size_t i;

	for (i = 0; i < size; i += PAGE)
		if (*(const volatile uint32_t *)((const char *)p + i) != value)
			return good(at, false, "the contents are wrong");
	return true;
}

/* Prefetches. */

/*
 * struct blocks - blocks that are prefetched
 * @res: NULL: each is managed memory of its own
 */
struct blocks {
	struct hetmem_resource *res;
	void *p[BLOCKS];
	unsigned int nr;
	size_t size;
};

static void prefetch_ours(struct place *at, struct blocks *b, bool to_device)
{
	static struct hetmem_prefetch_range ranges[BLOCKS];
	unsigned int i;

	for (i = 0; i < b->nr; i++)
		ranges[i] = (struct hetmem_prefetch_range){
			.size = sizeof(ranges[i]), .ptr = b->p[i], .bytes = b->size,
			.location = to_device ? at->device :
				HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY),
		};
	called(at, hetmem_prefetch_batch(at->o->hm, ranges, b->nr, at->stream));
}

static void prefetch_all(struct place *at, struct blocks *b, bool to_device)
{
	unsigned int i;

	if (b->res) {
		prefetch_ours(at, b, to_device);
		return;
	}
	for (i = 0; i < b->nr && !*at->failed; i++)
		prefetch_bare(at, b->p[i], b->size, to_device);
}

/*
 * Prefetches blocks that the CPU has written to the device, then to the host. Returns the
 * time of the first in ms; *@back is that of the second. < 0: failed.
 */
static double prefetch_round(struct place *at, struct blocks *b, double *back)
{
	uint64_t start, there, end;
	unsigned int i;

	*back = -1;
	for (i = 0; i < b->nr; i++)
		write_pages(b->p[i], b->size, i + 1);
	start = bench_now();
	prefetch_all(at, b, true);
	sync(at);
	there = bench_now();
	prefetch_all(at, b, false);
	sync(at);
	end = bench_now();
	for (i = 0; i < b->nr && !*at->failed; i++)
		read_pages(at, b->p[i], b->size, i + 1);
	if (*at->failed)
		return -1;
	*back = (double)(end - there) / 1e6;
	return (double)(there - start) / 1e6;
}

/*
 * Fragments @res as a long-running program does. @stay: every eighth block stays until
 * the resource is destroyed.
 */
static void mix(struct place *at, struct hetmem_resource *res, bool stay)
{
	void *live[MIXED_LIVE] = { NULL };
	size_t sizes[MIXED_LIVE] = { 0 };
	unsigned int i, slot;

	for (i = 0; i < MIXED && !*at->failed; i++) {
		slot = i % MIXED_LIVE;
		hetmem_free(res, live[slot], sizes[slot], at->stream);
		sizes[slot] = bench_sizes[i % BENCH_SIZES];
		live[slot] = alloc_ours(at, res, sizes[slot], HETMEM_PLACEMENT_STREAM);
	}
	for (i = 0; i < MIXED_LIVE; i++)
		if (!stay || i % 8)
			hetmem_free(res, live[i], sizes[i], at->stream);
}

static void blocks_make(struct place *at, struct blocks *b, struct hetmem_resource *res,
			unsigned int nr, size_t size)
{
	*b = (struct blocks){ .res = res, .size = size };
	for (; b->nr < nr && !*at->failed; b->nr++)
		b->p[b->nr] = res ? alloc_ours(at, res, size, HETMEM_PLACEMENT_STREAM) :
			alloc_managed(at, size);
}

static void blocks_free(struct place *at, struct blocks *b)
{
	unsigned int i;

	for (i = 0; i < b->nr; i++)
		if (b->res)
			hetmem_free(b->res, b->p[i], b->size, at->stream);
		else
			free_managed(at, b->p[i]);
}

/* Only a GPU has goals, and only memory that moves: the soft driver moves nothing. */
static void add_row(const struct place *at, struct bench_report *report, const char *spec,
		    const char *name, const char *what, double ours, double peer,
		    const char *peer_name, double limit)
{
	const bool has_goal = limit > 0 && !at->o->hm->soft && at->moves;
	struct bench_row row = {
		.name = bench_row_name(report, spec, name),
		.what = bench_report_text(report, "%s: %s", spec, what),
		.unit = "ms", .ours = ours, .peer = peer, .peer_name = peer_name,
		.goal = has_goal ? BENCH_GOAL_AT_MOST : BENCH_GOAL_NONE, .limit = limit,
	};

	bench_report_add(report, &row);
}

/* Whether memory of @res moves to the device. If not, the device uses it on the host. */
static bool can_move(struct place *at, struct hetmem_resource *res)
{
	struct hetmem_moved moved = { .size = sizeof(moved) };
	void *p = alloc_ours(at, res, BLOCK, HETMEM_PLACEMENT_STREAM);
	bool does = false;

	if (p) {
		write_pages(p, BLOCK, 0);
		does = !hetmem_prefetch(at->o->hm, p, BLOCK, at->device, at->stream, &moved) &&
			strcmp(moved.how, "none");
		sync(at);
	}
	hetmem_free(res, p, BLOCK, at->stream);
	return does;
}

/* @nr blocks of @size of @res, in turn with @nr managed allocations; a row each way. */
static void compare_prefetches(struct place *at, struct bench_report *report,
			       const char *spec, struct hetmem_resource *res,
			       const char *name, const char *what,
			       unsigned int nr, size_t size, double limit)
{
	static struct blocks ours, theirs;
	double there[2][ROUNDS], back[2][ROUNDS];
	int i;

	blocks_make(at, &ours, res, nr, size);
	blocks_make(at, &theirs, NULL, nr, size);
	for (i = 0; i < ROUNDS; i++) {
		there[0][i] = prefetch_round(at, &ours, &back[0][i]);
		there[1][i] = prefetch_round(at, &theirs, &back[1][i]);
	}
	blocks_free(at, &ours);
	blocks_free(at, &theirs);
	add_row(at, report, spec, name, bench_report_text(report, "%s, to the device", what),
		median(there[0]), median(there[1]), "cuMemPrefetchAsync", limit);
	add_row(at, report, spec, bench_report_text(report, "%s-back", name),
		bench_report_text(report, "%s, back to the host", what), median(back[0]),
		median(back[1]), "cuMemPrefetchAsync", 0);
}

static void run_prefetches(struct place *at, struct bench_report *report, const char *spec,
			   size_t size)
{
	struct hetmem_resource *res = bench_make(at->o, spec);

	if (!res)
		return;
	at->moves = can_move(at, res);
	if (!at->moves) {
		bench_report_skip(report, bench_row_name(report, spec, "prefetch"),
				  "the device uses this memory where it is");
	} else {
		mix(at, res, false);
		compare_prefetches(at, report, spec, res, "blocks",
				   "1,024 blocks of 64 KiB", BLOCKS, BLOCK, 0.1);
		mix(at, res, true);
		compare_prefetches(at, report, spec, res, "blocks-between",
				   "1,024 blocks among 64 others", BLOCKS, BLOCK, 0);
		compare_prefetches(at, report, spec, res, "one", "one block", 1, size, 1 / 0.97);
	}
	hetmem_resource_destroy(res);
}

/* Turns. */

enum way {
	MOVED,		/* ours, by hetmem_prefetch() and hetmem_move() */
	PLACED,		/* ours, in the class streaming: no call */
	FAULTS,
	PREFETCHES,
	COPIES,
	NR_WAYS
};

static const char *const way_names[] = {
	[FAULTS] = "managed, by faults", [PREFETCHES] = "cuMemPrefetchAsync",
	[COPIES] = "pinned copies",
};

/**
 * struct turns - a program that takes turns
 * @res: of MOVED and PLACED
 * @shared, @size: memory that both use in each turn; COPIES: the host's copy
 * @copy: COPIES: the device's copy
 * @data, @data_size: memory that the device alone uses in each turn
 * @value: the last value that the CPU wrote
 */
struct turns {
	enum way way;
	struct hetmem_resource *res;
	void *shared;
	size_t size;
	CUdeviceptr copy;
	void *data;
	size_t data_size;
	uint32_t value;
};

static void turns_alloc_ours(struct place *at, struct turns *t)
{
	enum hetmem_placement placement = HETMEM_PLACEMENT_BOTH;

	if (t->way == PLACED)
		placement = HETMEM_PLACEMENT_STREAMING;
	t->shared = alloc_ours(at, t->res, t->size, placement);
	if (!t->data_size || *at->failed)
		return;
	t->data = alloc_ours(at, t->res, t->data_size, HETMEM_PLACEMENT_DEVICE);
	if (t->data)
		called(at, hetmem_prefetch(at->o->hm, t->data, t->data_size, at->device,
					  at->stream, NULL));
}

static void turns_make(struct place *at, struct turns *t)
{
	const struct hm_driver *d = at->o->drv;
	CUdeviceptr p = 0;

	switch (t->way) {
	case MOVED:
	case PLACED:
		turns_alloc_ours(at, t);
		break;
	case COPIES:
		good(at, !d->cuMemHostAlloc(&t->shared, t->size, CU_MEMHOSTALLOC_PORTABLE) &&
		     !d->cuMemAlloc(&t->copy, t->size), "cuMemHostAlloc or cuMemAlloc");
		if (t->data_size)
			good(at, !d->cuMemAlloc(&p, t->data_size), "cuMemAlloc");
		t->data = (void *)(uintptr_t)p;
		break;
	default:
		t->shared = alloc_managed(at, t->size);
		if (t->data_size)
			t->data = alloc_managed(at, t->data_size);
	}
}

static void turns_free(struct place *at, struct turns *t)
{
	const struct hm_driver *d = at->o->drv;

	sync(at);
	switch (t->way) {
	case MOVED:
	case PLACED:
		hetmem_free(t->res, t->shared, t->size, at->stream);
		hetmem_free(t->res, t->data, t->data_size, at->stream);
		break;
	case COPIES:
		d->cuMemFreeHost(t->shared);
		if (t->copy)
			d->cuMemFree(t->copy);
		free_managed(at, t->data);
		break;
	default:
		free_managed(at, t->shared);
		free_managed(at, t->data);
	}
}

/* Brings @t's memory to the device. Returns its address there. */
static const void *to_device(struct place *at, struct turns *t)
{
	const struct hm_driver *d = at->o->drv;

	if (t->way == COPIES) {
		good(at, !d->cuMemcpyAsync(t->copy, (uintptr_t)t->shared, t->size, at->stream),
		     "cuMemcpyAsync");
		return (void *)(uintptr_t)t->copy;
	}
	if (t->way == PREFETCHES)
		prefetch_bare(at, t->shared, t->size, true);
	else if (t->way == MOVED)
		called(at, hetmem_prefetch(at->o->hm, t->shared, t->size, at->device,
					  at->stream, NULL));
	return t->shared;
}

static void to_host(struct place *at, struct turns *t)
{
	const uint32_t host = HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY);
	const struct hm_driver *d = at->o->drv;

	if (t->way == COPIES)
		good(at, !d->cuMemcpyAsync((uintptr_t)t->shared, t->copy, t->size, at->stream),
		     "cuMemcpyAsync");
	else if (t->way == PREFETCHES)
		prefetch_bare(at, t->shared, t->size, false);
	else if (t->way == MOVED)
		called(at, hetmem_move(at->o->hm, t->shared, t->size, host, at->stream, 0,
				      NULL));
	sync(at);
}

static void turn(struct place *at, struct turns *t)
{
	unsigned int adds = 0;
	const void *p;

	write_pages(t->shared, t->size, ++t->value);
	p = to_device(at, t);
	if (t->data_size)
		good(at, busy_count_up(at->o->busy, at->stream, t->data, t->data_size, &adds),
		     "a kernel");
	good(at, busy_count_up(at->o->busy, at->stream, p, t->size, &adds), "a kernel");
	to_host(at, t);
	if (!*at->failed)
		read_pages(at, t->shared, t->size, t->value + adds);
}

/* Returns the mean time of a turn in ms; < 0: failed. */
static double turns_round(struct place *at, struct turns *t)
{
	uint64_t start;
	int i;

	turn(at, t);
	start = bench_now();
	for (i = 0; i < TURNS && !*at->failed; i++)
		turn(at, t);
	return *at->failed ? -1 : (double)(bench_now() - start) / TURNS / 1e6;
}

/* Both sides use @size bytes in each turn, the device alone another @data_size. */
static void compare_turns(struct place *at, struct bench_report *report, const char *spec,
			  size_t size, size_t data_size)
{
	struct hetmem_resource *res = bench_make(at->o, spec);
	struct turns t[NR_WAYS];
	double ms[NR_WAYS][ROUNDS], all[NR_WAYS];
	int i, way;

	if (!res)
		return;
	for (way = 0; way < NR_WAYS; way++) {
		t[way] = (struct turns){ .way = way, .res = res, .size = size,
					 .data_size = data_size };
		turns_make(at, &t[way]);
	}
	for (i = 0; i < ROUNDS; i++)
		for (way = 0; way < NR_WAYS; way++)
			ms[way][i] = *at->failed ? -1 : turns_round(at, &t[way]);
	for (way = 0; way < NR_WAYS; way++) {
		turns_free(at, &t[way]);
		all[way] = median(ms[way]);
	}
	hetmem_resource_destroy(res);
	if (data_size) {
		add_row(at, report, spec, "small-copies",
			"a turn, streaming, small results", all[PLACED],
			all[COPIES], way_names[COPIES], 1.1);
		return;
	}
	add_row(at, report, spec, "moved-prefetches",
		"a turn, moved by calls", all[MOVED],
		all[PREFETCHES], way_names[PREFETCHES], 1.05);
	for (way = FAULTS; way < NR_WAYS; way++)
		add_row(at, report, spec, way == FAULTS ? "placed-faults" :
			way == COPIES ? "placed-copies" : "placed-prefetches",
			"a turn, streaming",
			all[PLACED], all[way], way_names[way], way == FAULTS ? 1 / 3.0 : 0);
}

/* At most 1 GiB, and an eighth of what the host and the device have. */
static size_t choose_size(const struct bench_options *o)
{
	const size_t total = o->hm->devices[0].props.total;
	size_t size = 1024 * MIB;

	while (size > 2 * MIB && (size * 8 > available_memory() || size * 8 > total))
		size /= 2;
	return size;
}

static void run_spec(struct place *at, struct bench_report *report, const char *spec,
		     size_t size)
{
	*at->failed = '\0';
	run_prefetches(at, report, spec, size);
	if (!*at->failed)
		compare_turns(at, report, spec, size, 0);
	if (!*at->failed)
		compare_turns(at, report, spec, RESULTS, size);
	if (*at->failed)
		bench_report_skip(report, bench_row_name(report, spec, "rest"), "%s", at->failed);
}

int bench_unified(int argc, char **argv)
{
	struct bench_options o = { .runs_kernels = true, .uses_module = true };
	struct place at = { .o = &o, .device = HETMEM_LOC(HETMEM_DEVICE, 0) };
	struct bench_report *report;
	int i, status = bench_begin(&o, argc, argv,
		"Usage: hetmem bench unified [--spec SPEC]... [--size MIB] [--driver DRIVER]\n"
		"                            [--json]\n"
		"Measures memory that the CPU and kernels use, beside managed memory, the\n"
		"driver's prefetches and pinned copies:\n\n"
		"  blocks   1,024 blocks of 64 KiB and one of MIB, prefetched and brought back\n"
		"  turns    CPU and kernels use MIB in turns: moved by hetmem_prefetch() and\n"
		"           hetmem_move(), or of the class streaming, which stays on the host\n"
		"  results  a kernel uses MIB, the CPU 1 MiB of results\n\n"
		"MIB is 1024, or less where memory is short. On a machine with HMM compare\n"
		"--spec 'unified(over=system)' with --spec 'unified(over=managed)'.", presets);

	if (status >= 0)
		return status;
	if (o.drv->cuStreamCreate(&at.stream, CU_STREAM_NON_BLOCKING)) {
		bench_close(&o);
		return complain(EXIT_FAILED, "bench", "cuStreamCreate failed");
	}
	report = bench_report_new("unified", o.json);
	if (o.hm->soft)
		bench_report_soft(report);
	for (i = 0; i < o.nr_specs; i++)
		run_spec(&at, report, o.specs[i], o.size ? o.size : choose_size(&o));
	o.drv->cuStreamDestroy(at.stream);
	bench_close(&o);
	return bench_report_end(report);
}
