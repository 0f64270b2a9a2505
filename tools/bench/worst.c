/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem bench worst: programs that are written against an allocator. Each has
 * a resource of its own, fills it, and then makes the calls that are hard: the
 * slowest of these counts, and how long a mutex of the library was held; or the
 * memory that is held at most, over what is requested at most. Both peaks are
 * true ones: the second is counted here.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"
#include "alloc.h"
#include "hold.h"

#ifdef HAVE_JSON_C
#include "json_text.h"
#endif

#define KIB		((size_t)1 << 10)
#define MIB		((size_t)1 << 20)
#define MAX_STREAMS	1024

/* What streams wait for. */
struct gate {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool open;
};

struct piece {
	void *p;
	size_t size;
	unsigned int on;	/* index of its stream */
};

/**
 * struct worst - one program with one resource
 * @nr: of what it is about: blocks, streams
 * @seed: of what it draws
 * @live, @peak: bytes that are requested
 * @left: nanoseconds that hard calls may still take
 * @calls, @ns, @slowest: of hard calls: how many, all, one; @cpu_slowest: of the
 *	thread's own time; @instructions of one
 * @error: 0, or of the call that failed
 */
struct worst {
	struct bench_options *o;
	struct hetmem_resource *res;
	size_t nr;
	unsigned int seed;
	CUstream streams[MAX_STREAMS];
	unsigned int nr_streams;
	struct piece *pieces;
	size_t nr_pieces;
	size_t room;
	uint64_t live;
	uint64_t peak;
	int64_t left;
	uint64_t calls;
	uint64_t ns;
	uint64_t slowest;
	uint64_t cpu_slowest;
	uint64_t instructions;
	struct hold hold;
	struct gate gate;
	int error;
};

/**
 * struct adversary - a row
 * @full, @small: what worst.nr is by --size
 * @goal: of the ratio, 0: it is about time
 */
struct adversary {
	const char *name;
	const char *what;
	size_t full;
	size_t small;
	void (*run)(struct worst *w);
	double goal;
};

struct worst_row {
	const struct adversary *adversary;
	const char *spec;
	size_t nr;
	uint64_t calls;
	double ns;
	uint64_t slowest;
	uint64_t cpu_slowest;
	uint64_t requested;
	uint64_t reserved;
	struct hold hold;
	uint64_t instructions;
	bool stopped;
};

static unsigned int draw(struct worst *w, unsigned int below)
{
	w->seed = w->seed * 1664525 + 1013904223;
	return (w->seed >> 8) % below;
}

static bool stopped(const struct worst *w)
{
	return w->error || w->left < 0;
}

static bool make_streams(struct worst *w, unsigned int nr)
{
	while (w->nr_streams < nr && !w->error) {
		if (w->o->drv->cuStreamCreate(&w->streams[w->nr_streams],
					      CU_STREAM_NON_BLOCKING))
			w->error = -EIO;
		else
			w->nr_streams++;
	}
	return !w->error;
}

/* When the hard call began, by each clock. */
static uint64_t hard_start, hard_cpu, hard_count;

static void hard_begin(struct worst *w)
{
	hold_begin(&w->hold);
	hard_count = hold_instructions(w->hold.counter);
	hard_cpu = hold_cpu_ns();
	hard_start = bench_now();
}

static void hard_end(struct worst *w)
{
	uint64_t ns = bench_now() - hard_start;
	uint64_t cpu = hold_cpu_ns() - hard_cpu;
	uint64_t count = hold_instructions(w->hold.counter) - hard_count;

	hold_end();
	w->calls++;
	w->ns += ns;
	w->left -= ns;
	if (w->slowest < ns)
		w->slowest = ns;
	if (w->cpu_slowest < cpu)
		w->cpu_slowest = cpu;
	if (w->instructions < count)
		w->instructions = count;
}

static void requested(struct worst *w, int64_t bytes)
{
	w->live += bytes;
	if (w->peak < w->live)
		w->peak = w->live;
}

/* A block, as w->pieces[] has it; false: there is no more, or no time. */
static bool take(struct worst *w, size_t size, unsigned int on)
{
	struct piece *piece;
	void *p = NULL;

	if (stopped(w))
		return false;
	w->error = hetmem_alloc(w->res, size, 0, w->streams[on], &p);
	if (w->error)
		return false;
	if (w->nr_pieces == w->room) {
		w->room = w->room ? 2 * w->room : 4096;
		w->pieces = xrealloc_array(w->pieces, w->room,
					   sizeof(*w->pieces));
	}
	piece = &w->pieces[w->nr_pieces++];
	*piece = (struct piece){ p, size, on };
	requested(w, size);
	return true;
}

static bool hard_take(struct worst *w, size_t size, unsigned int on)
{
	bool good;

	hard_begin(w);
	good = take(w, size, on);
	hard_end(w);
	return good;
}

static void give(struct worst *w, size_t i, unsigned int on)
{
	struct piece *piece = &w->pieces[i];

	if (!piece->p)
		return;
	hetmem_free(w->res, piece->p, piece->size, w->streams[on]);
	w->live -= piece->size;
	piece->p = NULL;
}

static void give_own(struct worst *w, size_t i)
{
	give(w, i, w->pieces[i].on);
}

static void hard_give(struct worst *w, size_t i)
{
	hard_begin(w);
	give_own(w, i);
	hard_end(w);
}

static void pass_gate(void *arg)
{
	struct gate *g = arg;

	pthread_mutex_lock(&g->lock);
	while (!g->open)
		pthread_cond_wait(&g->changed, &g->lock);
	pthread_mutex_unlock(&g->lock);
}

/* Busy streams, except the first: they complete when the gate opens. */
static bool make_busy_streams(struct worst *w, unsigned int nr)
{
	unsigned int on;

	if (!make_streams(w, nr))
		return false;
	if (!w->o->drv->cuLaunchHostFunc)
		w->error = -EOPNOTSUPP;
	for (on = 1; on < nr && !w->error; on++)
		if (w->o->drv->cuLaunchHostFunc(w->streams[on], pass_gate,
						&w->gate))
			w->error = -EIO;
	return !w->error;
}

static void open_gate(struct worst *w)
{
	pthread_mutex_lock(&w->gate.lock);
	w->gate.open = true;
	pthread_cond_broadcast(&w->gate.changed);
	pthread_mutex_unlock(&w->gate.lock);
}

/* Live blocks of @size with a free one after each. */
static void isolate(struct worst *w, size_t size, size_t nr, unsigned int on)
{
	size_t i, first = w->nr_pieces;

	for (i = 0; i < 2 * nr && take(w, size, on); i++)
		;
	for (i = first; i < w->nr_pieces; i += 2)
		give_own(w, i);
}

/* Free blocks of two streams in turn, and of @each one that is live. */
static void take_parts(struct worst *w, size_t size, size_t nr, size_t each)
{
	size_t i, first = w->nr_pieces;

	for (i = 0; i < nr && take(w, size, 1 + i % 2); i++)
		;
	for (i = first; i < w->nr_pieces; i++)
		if ((i - first) % each != each - 1)
			give_own(w, i);
}

static void take_hard(struct worst *w, size_t size, unsigned int nr)
{
	while (nr-- && hard_take(w, size, 0))
		;
}

static void run_intervals(struct worst *w)
{
	if (!make_busy_streams(w, 2))
		return;
	isolate(w, 512, w->nr, 1);
	take_hard(w, 8 * MIB, 16);
}

/* They do not merge, and the handle of each 2 MiB cannot be moved. */
static void run_parts(struct worst *w)
{
	if (!make_busy_streams(w, 3))
		return;
	take_parts(w, 512, w->nr, w->nr < 8192 ? w->nr / 2 : 4096);
	take_hard(w, 8 * MIB, 16);
}

static void run_large(struct worst *w)
{
	if (!make_busy_streams(w, 3))
		return;
	take_parts(w, 16 * KIB, w->nr, 128);
	take_hard(w, 64 * MIB, 16);
}

/*
 * Half of the blocks have live neighbours and are the smallest; the others are
 * in pairs that merge when both streams are done.
 */
static void run_merge(struct worst *w)
{
	if (!make_busy_streams(w, 3))
		return;
	isolate(w, 16 * KIB, w->nr / 2, 1);
	take_parts(w, 32 * KIB, w->nr / 2 / 2 * 3, 3);
	open_gate(w);
	w->o->drv->cuCtxSynchronize();
	take_hard(w, 64 * MIB, 16);
}

static void run_growth(struct worst *w)
{
	unsigned int i;

	if (!make_streams(w, 1))
		return;
	isolate(w, 512, w->nr, 0);
	for (i = 0; i < 64 && hard_take(w, 700 * KIB, 0) &&
	     hard_take(w, 3 * MIB + i * 64 * KIB, 0); i++)
		;
}

/* Freed while a stream that used them is not done. */
static void run_pending(struct worst *w)
{
	size_t i;

	if (!make_busy_streams(w, 2))
		return;
	for (i = 0; i < w->nr && take(w, 4 * KIB, 0); i++)
		w->error = hetmem_record_stream(w->res, w->pieces[i].p,
						w->streams[1]);
	for (i = 0; i < w->nr_pieces; i++)
		give_own(w, i);
	for (i = 0; i < 200 && hard_take(w, 2 * MIB + i * 4 * KIB, 0); i++)
		;
}

/* A stream's block is freed, and it gets another; @from: of the sizes. */
static void run_pairs(struct worst *w, size_t from, size_t nr)
{
	size_t i;

	for (i = from; i < from + nr && !w->error; i++) {
		struct piece *piece = &w->pieces[i % w->nr];
		hetmem_stream s = w->streams[i % w->nr];

		hetmem_free(w->res, piece->p, piece->size, s);
		w->live -= piece->size;
		piece->size = bench_sizes[i % BENCH_SIZES];
		piece->p = NULL;
		w->error = hetmem_alloc(w->res, piece->size, 0, s, &piece->p);
		if (!w->error)
			requested(w, piece->size);
	}
}

/* On all streams in turn, by one clock: a pair is hardly longer than that. */
static void run_streams(struct worst *w)
{
	const size_t warm = 4 * BENCH_SIZES, nr = 50000;
	unsigned int on;
	uint64_t start;

	if (!make_streams(w, w->nr))
		return;
	for (on = 0; on < w->nr; on++)
		take(w, bench_sizes[on], on);
	run_pairs(w, 0, warm);
	hold_begin(&w->hold);
	start = bench_now();
	run_pairs(w, warm, nr);
	w->ns = bench_now() - start;
	hold_end();
	w->calls = nr;
}

/* @size as often as it fits into what was requested at most. */
static void refill(struct worst *w, size_t size, size_t more)
{
	const uint64_t peak = w->peak;

	while (w->live + size <= peak && hard_take(w, size, 0))
		size += more;
}

static void run_holes(struct worst *w)
{
	size_t i;

	if (!make_streams(w, 1))
		return;
	for (i = 0; i < w->nr && take(w, 256 * KIB, 0); i++)
		;
	for (i = 0; i < w->nr_pieces; i++)
		if (i % 32)
			give_own(w, i);
	refill(w, 64 * MIB, 0);
}

static void run_turns(struct worst *w)
{
	size_t i;

	if (!make_streams(w, 1))
		return;
	for (i = 0; i < w->nr && take(w, 2 * MIB, 0) && take(w, 512, 0); i++)
		;
	/* Every second large one, and so many small ones. */
	for (i = 0; i < w->nr_pieces; i++)
		if (i / 2 % 2)
			give_own(w, i);
	refill(w, 2 * MIB + 64 * KIB, 512);
}

/* A block grows in its reservation; another takes its turn when it is full. */
static void run_kv(struct worst *w)
{
	const size_t most = 64 * MIB, step = 2 * MIB;
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = step, .reserve = most,
	};
	size_t i, n, size;
	void *p;

	if (!make_streams(w, 1))
		return;
	w->pieces = xcalloc(w->nr, sizeof(*w->pieces));
	memset(w->pieces, 0, w->nr * sizeof(*w->pieces));
	w->nr_pieces = w->room = w->nr;
	for (n = 0; n < w->nr * 100 && !stopped(w); n++) {
		struct piece *piece = &w->pieces[i = draw(w, w->nr)];

		size = piece->size + step;
		if (piece->p && (piece->size == most || !draw(w, 24))) {
			hard_give(w, i);
			continue;
		}
		if (!piece->p) {
			hard_begin(w);
			params.stream = w->streams[0];
			w->error = hetmem_alloc_with(w->res, &params, &p);
			hard_end(w);
			*piece = (struct piece){ w->error ? NULL : p, step, 0 };
			requested(w, w->error ? 0 : step);
			continue;
		}
		hard_begin(w);
		w->error = hetmem_grow(w->res, piece->p, size, w->streams[0]);
		hard_end(w);
		if (w->error)
			break;
		requested(w, step);
		piece->size = size;
	}
}

/* Each stream has 24 MiB once, in blocks that are cached, and no more. */
static void run_once(struct worst *w)
{
	size_t i, first;
	unsigned int on;

	if (!make_streams(w, w->nr))
		return;
	for (on = 0; on < w->nr && !stopped(w); on++) {
		first = w->nr_pieces;
		for (i = 0; i < 48 && hard_take(w, 512 * KIB, on); i++)
			;
		for (i = first; i < w->nr_pieces; i++)
			give_own(w, i);
		w->o->drv->cuCtxSynchronize();
	}
}

/* On each stream small blocks, then as many that are slightly smaller. */
static void run_excess(struct worst *w)
{
	size_t i, first;
	unsigned int on;

	if (!make_streams(w, w->nr))
		return;
	for (on = 0; on < w->nr && !stopped(w); on++) {
		first = w->nr_pieces;
		for (i = 0; i < 300; i++)
			take(w, 8 * KIB + draw(w, 8 * KIB), on);
		for (i = first; i < w->nr_pieces; i++)
			give_own(w, i);
		w->nr_pieces = first;
		for (i = 0; i < 300 &&
		     hard_take(w, 6 * KIB + draw(w, 8 * KIB), on); i++)
			;
	}
}

static const struct adversary adversaries[] = {
	{ "intervals", "8 MiB among live and free blocks of 512 B",
	  1000000, 4000, run_intervals, 0 },
	{ "parts", "8 MiB among free blocks of 512 B of two streams",
	  1000000, 1024, run_parts, 0 },
	{ "large", "64 MiB among free blocks of 16 KiB of two streams",
	  131072, 1024, run_large, 0 },
	{ "merge", "64 MiB when free blocks of two streams merge",
	  40000, 1024, run_merge, 0 },
	{ "growth", "growth among isolated free blocks",
	  500000, 4000, run_growth, 0 },
	{ "pending", "2 MiB while freed blocks are in use",
	  50000, 500, run_pending, 0 },
	{ "streams-1", "a pair on one stream", 1, 1, run_streams, 0 },
	{ "streams-2", "a pair on streams in turn", 2, 2, run_streams, 0 },
	{ "streams-8", "a pair on streams in turn", 8, 4, run_streams, 0 },
	{ "streams-128", "a pair on streams in turn", 128, 16, run_streams, 0 },
	{ "streams-1024", "a pair on streams in turn", 1024, 32, run_streams,
	  0 },
	{ "holes", "256 KiB, of which every 32nd stays, then 64 MiB",
	  12000, 1024, run_holes, 1.25 },
	{ "turns", "2 MiB and 512 B in turns, half of them freed, then larger",
	  1000, 64, run_turns, 1.38 },
	{ "kv", "blocks that grow in their reservation",
	  64, 8, run_kv, 1.10 },
	{ "once", "streams that each had 24 MiB once", 256, 8, run_once, 1.3 },
	{ "excess", "streams that get cached blocks that are too large",
	  128, 8, run_excess, 1.05 },
};

static void end(struct worst *w)
{
	size_t i;
	unsigned int on;

	for (i = 0; i < w->nr_pieces; i++)
		give_own(w, i);
	open_gate(w);
	w->o->drv->cuCtxSynchronize();
	for (on = 0; on < w->nr_streams; on++) {
		hetmem_stream_retire(w->res, w->streams[on]);
		w->o->drv->cuStreamDestroy(w->streams[on]);
	}
	free(w->pieces);
	hetmem_resource_destroy(w->res);
}

/* False: a line was written. */
static bool measure(struct bench_options *o, const struct adversary *a,
		    const char *spec, bool small, int64_t limit_ns, int counter,
		    struct worst_row *row)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };
	struct worst *w = xcalloc(1, sizeof(*w));
	bool good;

	*w = (struct worst){ .o = o, .nr = small ? a->small : a->full,
			     .seed = 1, .left = limit_ns,
			     .hold = { .counter = counter },
			     .gate = { .lock = PTHREAD_MUTEX_INITIALIZER,
				       .changed = PTHREAD_COND_INITIALIZER },
			     .res = bench_make(o, spec) };
	if (!w->res) {
		free(w);
		return false;
	}
	a->run(w);
	good = !w->error && !hetmem_resource_stats(w->res, &stats);
	if (!good)
		complain(EXIT_FAILED, "bench", "%s: %s: %s", spec, a->name,
			 hetmem_last_error());
	*row = (struct worst_row){
		.adversary = a, .spec = spec, .nr = w->nr, .calls = w->calls,
		.ns = w->calls ? (double)w->ns / w->calls : 0,
		.slowest = w->slowest, .cpu_slowest = w->cpu_slowest,
		.requested = w->peak,
		.reserved = stats.reserved_peak, .hold = w->hold,
		.instructions = w->instructions, .stopped = w->left < 0,
	};
	end(w);
	free(w);
	return good;
}

static double ratio(const struct worst_row *r)
{
	return r->requested ? (double)r->reserved / r->requested : 0;
}

#ifdef HAVE_JSON_C
static void add_count(struct json_object *object, const char *key,
		      bool known, uint64_t value)
{
	json_object_object_add(object, key, known ?
			       json_object_new_int64(value) : NULL);
}

static void add_double(struct json_object *object, const char *key,
		       const char *format, double value)
{
	char text[64];

	snprintf(text, sizeof(text), format, value);
	json_object_object_add(object, key,
			       json_object_new_double_s(value, text));
}

static void print_json(const struct worst_row *rows, size_t nr)
{
	struct json_object *array = json_object_new_array();
	size_t i;

	for (i = 0; i < nr; i++) {
		const struct worst_row *r = &rows[i];
		struct json_object *o = json_object_new_object();
		const bool counts = r->hold.counter >= 0;

		json_object_object_add(o, "name",
				       json_text(r->adversary->name));
		json_object_object_add(o, "what",
				       json_text(r->adversary->what));
		json_object_object_add(o, "spec", json_text(r->spec));
		add_count(o, "n", true, r->nr);
		add_count(o, "calls", true, r->calls);
		add_double(o, "ns_call", "%.1f", r->ns);
		add_count(o, "ns_slowest", r->slowest, r->slowest);
		add_count(o, "cpu_ns_slowest", r->slowest, r->cpu_slowest);
		add_count(o, "instructions_slowest", counts && r->slowest,
			  r->instructions);
		add_count(o, "ns_held", true, r->hold.ns);
		add_count(o, "cpu_ns_held", true, r->hold.cpu_ns);
		add_count(o, "instructions_held", counts,
			  r->hold.instructions);
		add_count(o, "peak_requested", true, r->requested);
		add_count(o, "peak_reserved", true, r->reserved);
		add_double(o, "ratio", "%.4f", ratio(r));
		if (r->adversary->goal > 0)
			add_double(o, "goal", "%.2f", r->adversary->goal);
		else
			json_object_object_add(o, "goal", NULL);
		json_object_object_add(o, "stopped",
				       json_object_new_boolean(r->stopped));
		json_object_array_add(array, o);
	}
	puts(json_object_to_json_string_ext(array, JSON_C_TO_STRING_PRETTY));
	json_object_put(array);
}
#else
static void print_json(const struct worst_row *rows, size_t nr)
{
	(void)rows;
	(void)nr;
}
#endif

static const char *time_text(double ns)
{
	static char texts[8][32];
	static unsigned int turn;
	char *text = texts[turn++ % ARRAY_SIZE(texts)];

	if (ns < 10000)
		snprintf(text, sizeof(texts[0]), "%.0f ns", ns);
	else if (ns < 10000000)
		snprintf(text, sizeof(texts[0]), "%.0f us", ns / 1e3);
	else
		snprintf(text, sizeof(texts[0]), "%.0f ms", ns / 1e6);
	return text;
}

static void print_table(const struct bench_options *o, const struct worst_row *rows, size_t nr)
{
	static const struct table_column columns[] = {
		{ "NAME", false }, { "WHAT", false }, { "SPEC", false },
		{ "N", true }, { "CALLS", true }, { "A CALL", true },
		{ "SLOWEST", true }, { "CPU", true }, { "INSTR", true },
		{ "HELD", true }, { "CPU", true }, { "INSTR", true }, { "REQUESTED", true }, { "RESERVED", true },
		{ "RATIO", true }, { "GOAL", true }, { "", false },
	};
	struct table *table = table_new(columns, ARRAY_SIZE(columns));
	char n[24], calls[24], one[24], held[24], part[24], goal[24];
	size_t i;

	bench_print_driver(o);
	for (i = 0; i < nr; i++) {
		const struct worst_row *r = &rows[i];
		const double limit = r->adversary->goal;
		const bool counts = r->hold.counter >= 0;

		snprintf(n, sizeof(n), "%zu", r->nr);
		snprintf(calls, sizeof(calls), "%llu",
			 (unsigned long long)r->calls);
		snprintf(one, sizeof(one), "%llu",
			 (unsigned long long)r->instructions);
		snprintf(held, sizeof(held), "%llu",
			 (unsigned long long)r->hold.instructions);
		snprintf(part, sizeof(part), "%.4f", ratio(r));
		snprintf(goal, sizeof(goal), "%.2f", limit);
		table_row(table, (const char *[]){
			r->adversary->name, r->adversary->what, r->spec, n,
			calls, time_text(r->ns),
			r->slowest ? time_text(r->slowest) : "-",
			r->slowest ? time_text(r->cpu_slowest) : "-",
			counts && r->slowest ? one : "-",
			time_text(r->hold.ns), time_text(r->hold.cpu_ns),
			counts ? held : "-",
			size_text(r->requested), size_text(r->reserved), part,
			limit > 0 ? goal : "",
			r->stopped ? "stopped: no time" : limit <= 0 ? "" :
			ratio(r) <= limit ? "met" : "MISSED" });
	}
	table_print(table);
	puts("\nN: blocks or streams. A CALL and SLOWEST: of the hard calls alone; HELD: the\n"
	     "longest that a mutex was held in them; CPU: the most of the thread's own time that\n"
	     "one took; INSTR: likewise of instructions, where the kernel counts them\n"
	     "(perf_event_open(2)). RATIO: peak reserved over peak requested.");
}

static int help(void)
{
	size_t i;

	puts("Usage: hetmem bench worst [OPTION]... [NAME]...\n"
	     "Programs that are written against an allocator; all of them, or those named.\n\n"
	     "  --size full|small  small: some hundred or thousand blocks, for tests\n"
	     "  --limit SECONDS    the hard calls of one stop after these (20)\n"
	     "  --spec SPEC        resource, any number of times (device-pool)\n"
	     "  --driver DRIVER    cuda or soft (cuda where there is a device)\n"
	     "  --json             an array of objects\n");
	for (i = 0; i < ARRAY_SIZE(adversaries); i++)
		printf("  %-13s %s\n", adversaries[i].name, adversaries[i].what);
	return EXIT_OK;
}

struct options {
	bool small;
	long limit;
	bool wanted[ARRAY_SIZE(adversaries)];
};

/* What bench_begin() does not know is taken out of @argv. < 0: go on. */
static int parse(struct options *own, int *argc, char **argv)
{
	bool any = false;
	int in, out = 1;
	size_t i;

	own->limit = 20;
	for (in = 1; in < *argc; in++) {
		const char *arg = argv[in], *value = NULL;
		const bool size = !strncmp(arg, "--size", 6);

		if (!strcmp(arg, "--help") || !strcmp(arg, "-h"))
			return help();
		if (!strcmp(arg, "--spec") || !strcmp(arg, "--driver")) {
			argv[out++] = argv[in];
			if (in + 1 < *argc)
				argv[out++] = argv[++in];
			continue;
		}
		if (size || !strncmp(arg, "--limit", 7)) {
			arg += size ? 6 : 7;
			value = *arg == '=' ? arg + 1 : !*arg && in + 1 < *argc ?
				argv[++in] : "";
			if (!size && !parse_number(value, 1, 86400, &own->limit))
				return usage_error("bench", "'%s' is not a number of seconds",
						   value);
			own->small = size ? !strcmp(value, "small") :
				own->small;
			if (size && !own->small && strcmp(value, "full"))
				return usage_error("bench", "'%s' is not full or small",
						   value);
			continue;
		}
		if (*arg == '-') {
			argv[out++] = argv[in];
			continue;
		}
		for (i = 0; i < ARRAY_SIZE(adversaries); i++)
			if (!strcmp(arg, adversaries[i].name))
				break;
		if (i == ARRAY_SIZE(adversaries))
			return usage_error("bench", "there is no program '%s'",
					   arg);
		own->wanted[i] = any = true;
	}
	argv[out] = NULL;
	*argc = out;
	for (i = 0; !any && i < ARRAY_SIZE(adversaries); i++)
		own->wanted[i] = true;
	return -1;
}

int bench_worst(int argc, char **argv)
{
	static const char *const presets[] = { "device-pool", NULL };
	struct options own = { 0 };
	struct bench_options o = { 0 };
	struct worst_row rows[ARRAY_SIZE(adversaries) * BENCH_SPECS];
	int i, counter, status = parse(&own, &argc, argv);
	size_t j, nr = 0;
	bool good = true;

	if (status < 0)
		status = bench_begin(&o, argc, argv, "", presets);
	if (status >= 0)
		return status;
	counter = hold_counter();
	for (i = 0; i < o.nr_specs; i++) {
		for (j = 0; j < ARRAY_SIZE(adversaries); j++) {
			if (!own.wanted[j])
				continue;
			if (measure(&o, &adversaries[j], o.specs[i], own.small,
				    own.limit * INT64_C(1000000000), counter,
				    &rows[nr]))
				nr++;
			else
				good = false;
		}
	}
	if (nr && o.json)
		print_json(rows, nr);
	else if (nr)
		print_table(&o, rows, nr);
	if (counter >= 0)
		close(counter);
	o.drv->cuCtxSetCurrent(NULL);
	hetmem_close(o.hm);
	return nr && good ? EXIT_OK : EXIT_FAILED;
}
