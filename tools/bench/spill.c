/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem bench spill: movable blocks of 256 MiB go to the host and come back, beside one
 * copy of as much to or from page-locked memory. The first time the pool makes its host
 * memory on the way, unless min_host= made it before. Then blocks move while another stream
 * works. Each round has contents of its own, which are compared after each move.
 */
#include <stdlib.h>
#include <string.h>

#include <hetmem/move.h>
#include <hetmem/pool.h>

#include "alloc.h"
#include "bench.h"

#define MIB	((size_t)1 << 20)
#define BLOCK	(256 * MIB)
#define BLOCKS	8
#define ROUNDS	5
/* A part of a block has one value. */
#define PART	(2 * MIB)
/* The time that both together may take, over the longer alone. */
#define BESIDE	1.1

/**
 * struct spiller - blocks, and page-locked memory of the same size
 * @stream: of the blocks; @other: works while they move
 * @size: of a block; @nr of them
 * @round: of the contents
 * @moves: bytes of each that move
 * @from, @to: @size bytes each that @other's work copies
 * @failed: the first step that failed; "": none
 */
struct spiller {
	struct bench_options *o;
	struct hetmem_resource *res, *host, *work;
	CUstream stream, other;
	size_t size;
	int nr;
	void *block[BLOCKS];
	size_t moves[BLOCKS];
	unsigned char *copy;
	unsigned int round;
	void *from, *to;
	char failed[256];
};

static bool good(struct spiller *s, bool worked, const char *what)
{
	if (!worked && !*s->failed)
		snprintf(s->failed, sizeof(s->failed), "%s", what);
	return worked && !*s->failed;
}

/* @err: of a call of the library. */
static bool done(struct spiller *s, int err)
{
	return good(s, !err, err ? hetmem_last_error() : "");
}

static bool sync(struct spiller *s)
{
	return good(s, !s->o->drv->cuStreamSynchronize(s->stream), "cuStreamSynchronize");
}

/* Contents. */

static unsigned char value_of(const struct spiller *s, int block, size_t part)
{
	return 1 + (s->round * 101 + block * 31 + part * 7) % 251;
}

static void fill(struct spiller *s)
{
	const struct hm_driver *d = s->o->drv;
	size_t at;
	int i;

	s->round++;
	for (i = 0; i < s->nr; i++)
		for (at = 0; at < s->size; at += PART)
			good(s, !d->cuMemsetD8Async((uintptr_t)s->block[i] + at,
						    value_of(s, i, at / PART), PART, s->stream),
			     "cuMemsetD8Async");
	sync(s);
}

static bool is_filled(const unsigned char *part, unsigned char value)
{
	const uint64_t *at = (const uint64_t *)part;
	const uint64_t want = value * UINT64_C(0x0101010101010101);
	uint64_t differs = 0;
	size_t i;

	for (i = 0; i < PART / sizeof(*at); i++)
		differs |= at[i] ^ want;
	return !differs;
}

/* Compares all contents, read at the blocks' addresses. */
static void verify(struct spiller *s, const char *when)
{
	const struct hm_driver *d = s->o->drv;
	size_t at;
	int i;

	memset(s->copy, 0, s->nr * s->size);
	for (i = 0; i < s->nr && !*s->failed; i++)
		good(s, !d->cuMemcpyDtoHAsync(s->copy + i * s->size, (uintptr_t)s->block[i],
					      s->size, s->stream), "cuMemcpyDtoHAsync");
	sync(s);
	for (i = 0; i < s->nr && !*s->failed; i++)
		for (at = 0; at < s->size; at += PART)
			good(s, is_filled(s->copy + i * s->size + at,
					  value_of(s, i, at / PART)), when);
}

/* Times, in ms; < 0: it failed. */

/* Copies as much as moves, to page-locked memory or @back. */
static double copy_all(struct spiller *s, bool back)
{
	const struct hm_driver *d = s->o->drv;
	const uint64_t begin = bench_now();
	int i;

	for (i = 0; i < s->nr; i++) {
		const CUdeviceptr block = (uintptr_t)s->block[i];
		const CUdeviceptr copy = (uintptr_t)s->copy + i * s->size;

		good(s, !d->cuMemcpyAsync(back ? block : copy, back ? copy : block, s->moves[i],
					  s->stream), "cuMemcpyAsync");
	}
	return sync(s) ? (bench_now() - begin) / 1e6 : -1;
}

static double move_all(struct spiller *s, bool back)
{
	const uint64_t begin = bench_now();
	int i;

	for (i = 0; i < s->nr && !*s->failed; i++)
		done(s, back ? hetmem_fetch(s->res, s->block[i]) :
		     hetmem_spill(s->res, s->block[i]));
	return *s->failed ? -1 : (bench_now() - begin) / 1e6;
}

static void begin_all(struct spiller *s, bool back)
{
	int i;

	for (i = 0; i < s->nr && !*s->failed; i++)
		done(s, back ? hetmem_fetch_async(s->res, s->block[i]) :
		     hetmem_spill_async(s->res, s->block[i]));
}

/* As move_all(), but all moves are begun before the first is ended. */
static double move_begun(struct spiller *s, bool back)
{
	const uint64_t begin = bench_now();

	begin_all(s, back);
	if (!*s->failed)
		move_all(s, back);
	return *s->failed ? -1 : (bench_now() - begin) / 1e6;
}

static uint64_t spilled(struct spiller *s)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };

	good(s, !hetmem_resource_stats(s->res, &stats), "hetmem_resource_stats");
	return stats.spilled;
}

/* As move_all() to the host, and finds out how much of each block moves. */
static double move_first(struct spiller *s)
{
	uint64_t before = 0, after, begin;
	double ms = 0;
	int i;

	for (i = 0; i < s->nr && !*s->failed; i++) {
		begin = bench_now();
		done(s, hetmem_spill(s->res, s->block[i]));
		ms += (bench_now() - begin) / 1e6;
		after = spilled(s);
		s->moves[i] = after - before;
		before = after;
	}
	return *s->failed ? -1 : ms;
}

/* Blocks. */

/* Host memory that nobody had before takes a virtual machine longer to make. */
static void warm_up(struct spiller *s)
{
	void *p;

	if (!hetmem_alloc(s->host, 2 * s->nr * s->size, 0, HETMEM_STREAM_HOST, &p))
		hetmem_free(s->host, p, 0, HETMEM_STREAM_HOST);
}

static void make_blocks(struct spiller *s, const char *spec)
{
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = s->size, .stream = s->stream,
		.flags = HETMEM_ALLOC_MOVABLE,
	};
	int i;

	s->res = bench_make(s->o, spec);
	if (!good(s, s->res, "the spec cannot be made"))
		return;
	for (i = 0; i < s->nr && !*s->failed; i++)
		done(s, hetmem_alloc_with(s->res, &params, &s->block[i]));
}

static void free_blocks(struct spiller *s)
{
	int i;

	for (i = 0; i < s->nr; i++)
		if (s->block[i])
			hetmem_free(s->res, s->block[i], s->size, s->stream);
	memset(s->block, 0, sizeof(s->block));
	if (s->res)
		hetmem_resource_destroy(s->res);
	s->res = NULL;
}

static void begin(struct spiller *s)
{
	const struct hm_driver *d = s->o->drv;
	void *copy;

	good(s, !d->cuStreamCreate(&s->stream, CU_STREAM_NON_BLOCKING) &&
	     !d->cuStreamCreate(&s->other, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
	s->host = bench_make(s->o, "pinned");
	s->work = bench_make(s->o, "device-pool");
	if (!good(s, s->host && s->work, "no page-locked or device memory"))
		return;
	warm_up(s);
	if (done(s, hetmem_alloc(s->host, s->nr * s->size, 0, HETMEM_STREAM_HOST, &copy)))
		s->copy = copy;
	done(s, hetmem_alloc(s->work, s->size, 0, s->other, &s->from));
	done(s, hetmem_alloc(s->work, s->size, 0, s->other, &s->to));
}

static void end(struct spiller *s)
{
	const struct hm_driver *d = s->o->drv;

	free_blocks(s);
	if (s->from)
		hetmem_free(s->work, s->from, s->size, s->other);
	if (s->to)
		hetmem_free(s->work, s->to, s->size, s->other);
	if (s->copy)
		hetmem_free(s->host, s->copy, s->nr * s->size, HETMEM_STREAM_HOST);
	if (s->work)
		hetmem_resource_destroy(s->work);
	if (s->host)
		hetmem_resource_destroy(s->host);
	if (s->other)
		d->cuStreamDestroy(s->other);
	if (s->stream)
		d->cuStreamDestroy(s->stream);
}

/* Rows. */

static int by_value(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static double median(double *ms, int nr)
{
	qsort(ms, nr, sizeof(*ms), by_value);
	return ms[nr / 2];
}

/* Only a GPU has goals. @limit 0: none. */
static void add_row(const struct spiller *s, struct bench_report *report, const char *spec,
		    const char *name, const char *what, double ours, double peer,
		    const char *peer_name, double limit)
{
	struct bench_row row = {
		.name = bench_row_name(report, spec, name),
		.what = bench_report_text(report, "%s: %s", spec, what),
		.unit = "ms", .ours = ours, .peer = peer, .peer_name = peer_name,
		.goal = limit && !s->o->hm->soft ? BENCH_GOAL_AT_MOST : BENCH_GOAL_NONE,
		.limit = limit,
	};

	if (!*s->failed)
		bench_report_add(report, &row);
}

/* A page-locked copy reaches 55 GB/s. The goals are 47 GB/s to the host and 53 GB/s back. */
static const double limits[2] = { 55 / 47.0, 55 / 53.0 };
static const char *const peers[2] = { "a copy, page-locked", "a copy back" };

/*
 * Rounds there and back. The first is a row of its own; @prepared: its host memory was made
 * before, and no other round follows.
 */
static void there_and_back(struct spiller *s, struct bench_report *report, const char *spec,
			   bool prepared)
{
	double ours[2][ROUNDS], begun[2][ROUNDS], peer[2][ROUNDS], first;
	int i, way;

	fill(s);
	first = move_first(s);
	verify(s, "contents changed by the first spill");
	move_all(s, true);
	verify(s, "contents changed by the first fetch");
	peer[0][0] = copy_all(s, false);
	add_row(s, report, spec, prepared ? "prepared" : "first",
		prepared ? "the first spill, min_host=" : "the first spill", first, peer[0][0],
		peers[0], prepared ? limits[0] : 0);
	if (prepared)
		return;
	for (i = 0; i < ROUNDS && !*s->failed; i++) {
		fill(s);
		ours[0][i] = move_all(s, false);
		verify(s, "contents changed by a spill");
		ours[1][i] = move_all(s, true);
		verify(s, "contents changed by a fetch");
		for (way = 0; way < 2; way++) {
			begun[way][i] = move_begun(s, way);
			verify(s, "contents changed by moves that were begun");
			peer[way][i] = copy_all(s, way);
		}
	}
	for (way = 0; way < 2 && !*s->failed; way++) {
		const double copy = median(peer[way], ROUNDS);

		add_row(s, report, spec, way ? "fetch" : "spill",
			way ? "fetch, one at a time" : "spill, one at a time",
			median(ours[way], ROUNDS), copy, peers[way], limits[way]);
		add_row(s, report, spec, way ? "fetch-begun" : "spill-begun",
			way ? "fetch, all begun at once" : "spill, all begun at once",
			median(begun[way], ROUNDS), copy, peers[way], limits[way]);
	}
}

/* Work of another stream. */

enum work { KERNEL, COPIES, NR_WORKS };

static const char *const work_names[NR_WORKS] = { "kernel", "copies" };

/* @amount: ns, or a number of copies within the device. */
static void give_work(struct spiller *s, enum work work, uint64_t amount)
{
	const struct hm_driver *d = s->o->drv;
	uint64_t i;

	if (work == KERNEL) {
		good(s, busy_run(s->o->busy, s->other, s->from, PART, amount), "a kernel");
		return;
	}
	for (i = 0; i < amount; i++)
		good(s, !d->cuMemcpyAsync((uintptr_t)s->to, (uintptr_t)s->from, s->size,
					  s->other), "cuMemcpyAsync");
}

static bool sync_other(struct spiller *s)
{
	return good(s, !s->o->drv->cuStreamSynchronize(s->other), "cuStreamSynchronize");
}

static double work_alone(struct spiller *s, enum work work, uint64_t amount)
{
	const uint64_t begin = bench_now();

	give_work(s, work, amount);
	return sync_other(s) ? (bench_now() - begin) / 1e6 : -1;
}

/* As much work as takes about @ms, and at least one. */
static uint64_t amount_of(struct spiller *s, enum work work, double ms)
{
	double one;

	if (work == KERNEL)
		return ms * 1e6;
	work_alone(s, work, 1);
	one = work_alone(s, work, 1);
	if (one <= 0 || ms < one)
		return 1;
	return ms / one < 10000 ? ms / one : 10000;
}

/* Moves begin, then @work; the moves are ended in order. */
static double move_beside(struct spiller *s, bool back, enum work work, uint64_t amount)
{
	const uint64_t begin = bench_now();

	begin_all(s, back);
	give_work(s, work, amount);
	if (!*s->failed)
		move_all(s, back);
	sync_other(s);
	return *s->failed ? -1 : (bench_now() - begin) / 1e6;
}

static void beside(struct spiller *s, struct bench_report *report, const char *spec,
		   enum work work)
{
	double alone[2][ROUNDS], together[2][ROUNDS], longer;
	uint64_t amount;
	int i, way;

	fill(s);
	amount = amount_of(s, work, move_begun(s, false));
	move_begun(s, true);
	for (i = 0; i < ROUNDS && !*s->failed; i++) {
		fill(s);
		for (way = 0; way < 2; way++) {
			alone[way][i] = move_begun(s, way);
			longer = work_alone(s, work, amount);
			if (longer > alone[way][i])
				alone[way][i] = longer;
		}
		for (way = 0; way < 2; way++)
			together[way][i] = move_beside(s, way, work, amount);
		verify(s, "contents changed by moves beside work");
	}
	for (way = 0; way < 2 && !*s->failed; way++)
		add_row(s, report, spec,
			bench_report_text(report, "%s-beside-%s", way ? "fetch" : "spill", work_names[work]),
			bench_report_text(report, "%s beside %s", way ? "fetch" : "spill",
				  work == KERNEL ? "a kernel" : "copies within the device"),
			median(together[way], ROUNDS), median(alone[way], ROUNDS),
			"the longer alone", BESIDE);
}

/* @spec with min_host= for all blocks; NULL: it has one, or its top is no pool. */
static char *prepared_spec(const struct spiller *s, const char *text)
{
	char buf[HM_SPEC_LEN], *with = NULL;
	struct hm_spec *spec;
	size_t len;
	int i;

	if (hm_spec_parse(text, &spec))
		return NULL;
	len = hm_spec_print(spec, false, buf, sizeof(buf));
	for (i = 0; spec->kind->params[i].name; i++)
		if (!strcmp(spec->kind->params[i].name, "min_host"))
			break;
	if (spec->kind->params[i].name && !spec->values[i].given && len < sizeof(buf)) {
		const bool args = buf[len - 1] == ')';

		with = xasprintf("%.*s%smin_host=%zuM)", (int)(args ? len - 1 : len), buf,
				 args ? buf[len - 2] == '(' ? "" : "," : "(",
				 s->nr * s->size / MIB);
	}
	hm_spec_free(spec);
	return with;
}

static int run_spec(struct spiller *s, struct bench_report *report, const char *spec)
{
	char *prepared = prepared_spec(s, spec);
	int work;

	*s->failed = '\0';
	make_blocks(s, spec);
	if (!*s->failed)
		there_and_back(s, report, spec, false);
	for (work = 0; work < NR_WORKS && !*s->failed; work++)
		beside(s, report, spec, work);
	free_blocks(s);
	if (prepared && !*s->failed) {
		make_blocks(s, prepared);
		if (!*s->failed)
			there_and_back(s, report, spec, true);
		free_blocks(s);
	}
	if (*s->failed)
		bench_report_skip(report, bench_row_name(report, spec, "rest"), "%s", s->failed);
	free(prepared);
	return *s->failed ? EXIT_FAILED : EXIT_OK;
}

/*
 * Eight blocks of 256 MiB, or fewer and then smaller ones: device memory twice and host
 * memory four times, where the device's is the host's too. False: there is too little.
 */
static bool choose_size(struct spiller *s)
{
	size_t total = s->o->size ? s->o->size : BLOCKS * BLOCK, available, all;

	if (s->o->drv->cuMemGetInfo(&available, &all))
		available = 1024 * MIB;
	while (!s->o->size && total > 64 * MIB &&
	       (total * 8 > available_memory() || total * 3 > available))
		total /= 2;
	s->nr = total / BLOCK ? total / BLOCK : 1;
	if (s->nr > BLOCKS)
		s->nr = BLOCKS;
	s->size = total / s->nr / PART * PART;
	return s->size >= 2 * PART;
}

int bench_spill(int argc, char **argv)
{
	/* spill=1T limits nothing here: it stands for the default handles of such a pool. */
	static const char *const presets[] = {
		"pool(vmm,handle=64M,wait=60s)", "pool(vmm,spill=1T,wait=60s)", NULL,
	};
	struct bench_options o = { .runs_kernels = true };
	struct spiller s = { .o = &o };
	struct bench_report *report;
	int i, ended, failed = EXIT_OK;
	int status = bench_begin(&o, argc, argv,
		"Usage: hetmem bench spill [--spec SPEC]... [--size MIB] [--driver DRIVER] [--json]\n"
		"Moves blocks of a pool to the host and back, beside a copy of as much to and from\n"
		"page-locked memory: the first time, later, with min_host= made before; and beside\n"
		"the work of another stream, where the peer is the longer of both alone. Blocks\n"
		"have 256 MiB. MIB is of all of them: 2048, or what the machine can spare.", presets);

	if (status >= 0)
		return status;
	if (!choose_size(&s)) {
		bench_close(&o);
		return usage_error("bench", "--size must be %zu at least", 2 * PART / MIB);
	}
	fprintf(stderr, "hetmem: bench: %d blocks of %zu MiB\n", s.nr, s.size / MIB);
	report = bench_report_new("spill", o.json);
	if (o.hm->soft)
		bench_report_soft(report);
	begin(&s);
	if (*s.failed) {
		failed = complain(EXIT_FAILED, "bench", "%s", s.failed);
	} else {
		for (i = 0; i < o.nr_specs; i++)
			if (run_spec(&s, report, o.specs[i]))
				failed = EXIT_FAILED;
	}
	end(&s);
	bench_close(&o);
	ended = bench_report_end(report);
	return failed ? failed : ended;
}
