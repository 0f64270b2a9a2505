/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem bench agent: what the agent saves where CPU and device fight over memory, what
 * it costs where it cannot help, and what it leaves behind for a device that is alone then.
 * Each is run without an agent and with one, on new memory. Needs hetmem.ko and a
 * device that memory moves to.
 */
#include <getopt.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench.h"
#include "driver/hetmem.h"
#include "options.h"

#define PIECE_PAGES	16
#define BLOCK		((size_t)2 << 20)
#define STREAM_BLOCKS	128

struct bench {
	struct hetmem *hm;
	CUstream stream;
	size_t page;
	size_t piece;
	size_t rounds;
	const char *failed;
};

static void device_writes(struct bench *b, unsigned char *p, int value)
{
	const struct hm_driver *d = &b->hm->driver;

	if (d->cuMemsetD8Async((uintptr_t)p, value, b->piece, b->stream) ||
	    d->cuStreamSynchronize(b->stream))
		b->failed = "the device cannot write";
}

static void cpu_writes(struct bench *b, unsigned char *p)
{
	size_t i;

	for (i = 0; i < PIECE_PAGES; i++)
		((volatile unsigned char *)p)[i * b->page]++;
}

/* Both write the same pages, in turns. */
static void fight(struct bench *b, unsigned char *p)
{
	size_t i;

	for (i = 0; i < b->rounds; i++) {
		device_writes(b, p, i);
		cpu_writes(b, p);
	}
}

/* Pages of many blocks go to the device and come back, each seldom: that is no fight. */
static void stream(struct bench *b, unsigned char *p)
{
	size_t i;

	for (i = 0; i < 3 * STREAM_BLOCKS; i++) {
		unsigned char *at = p + (i % STREAM_BLOCKS) * BLOCK;

		device_writes(b, at, i);
		cpu_writes(b, at);
	}
}

static void alone(struct bench *b, unsigned char *p)
{
	size_t i;

	for (i = 0; i < 250 * b->rounds; i++)
		device_writes(b, p, i);
}

struct times {
	double fight;
	double alone;
	double stream;
};

static double timed(struct bench *b, unsigned char *p,
		    void (*run)(struct bench *b, unsigned char *p))
{
	uint64_t before = bench_ticks();

	run(b, p);
	return bench_ticks() - before;
}

/* Blocks of which the pages that are used are there. */
static void *memory(struct bench *b, size_t blocks)
{
	void *p = NULL;
	size_t i;

	if (hetmem_system_alloc(b->hm, blocks * BLOCK, &p)) {
		b->failed = "no memory";
		return NULL;
	}
	/* Small pages: what a huge page costs is not the question here. */
	madvise(p, blocks * BLOCK, MADV_NOHUGEPAGE);
	for (i = 0; i < blocks; i++)
		memset((char *)p + i * BLOCK, 1, b->piece);
	return p;
}

static void measure(struct bench *b, bool agent, struct times *t)
{
	const struct hetmem_agent_params params = {
		.size = sizeof(params), .policy = HETMEM_AGENT_CONSERVATIVE,
		.flags = HETMEM_AGENT_NO_HINTS,
	};
	unsigned char *p = memory(b, 1);
	unsigned char *q = memory(b, STREAM_BLOCKS);

	if (p && q && agent && hetmem_agent_start(b->hm, &params))
		b->failed = "the agent cannot be started";
	if (p && q && !b->failed) {
		t->stream = timed(b, q, stream);
		t->fight = timed(b, p, fight);
		t->alone = timed(b, p, alone);
	}
	if (agent && !b->failed)
		hetmem_agent_stop(b->hm);
	if (p)
		hetmem_system_free(b->hm, p);
	if (q)
		hetmem_system_free(b->hm, q);
}

static void add(struct bench_report *report, const char *name, const char *what,
		double with, double without, double limit)
{
	const struct bench_row row = {
		.name = name, .what = what, .unit = bench_unit(), .ours = with,
		.peer = without, .peer_name = "no agent", .goal = BENCH_GOAL_AT_MOST,
		.limit = limit,
	};

	bench_report_add(report, &row);
}

static bool open_device(struct bench *b)
{
	struct hetmem_feature feature;
	CUcontext ctx;

	if (hetmem_open(&b->hm, NULL))
		return false;
	return !hetmem_feature(b->hm, HETMEM_FEATURE_MIGRATION, &feature) &&
	       feature.available && hm_kmod_there(&b->hm->kmod) &&
	       !hm_device_context(b->hm, 0, &ctx) &&
	       !b->hm->driver.cuCtxSetCurrent(ctx) &&
	       !b->hm->driver.cuStreamCreate(&b->stream, CU_STREAM_NON_BLOCKING);
}

static int help(void)
{
	puts("Usage: hetmem bench agent [--rounds N] [--json]\n"
	     "What the agent saves, and what it costs.\n\n"
	     "  --rounds N  in which CPU and device write the same pages (default 1000)\n"
	     "  --json      one JSON object\n"
	     "  --help      this text\n\n"
	     "HETMEM_BENCH=agent make bench-kernel starts a virtual machine for it, where\n"
	     "figures are instructions.");
	return EXIT_OK;
}

int bench_agent(int argc, char **argv)
{
	struct bench b = { .page = sysconf(_SC_PAGESIZE), .rounds = 1000 };
	struct times without = { 0 }, with = { 0 };
	struct bench_report *report;
	bool json = false;
	long rounds;
	int c;

	while ((c = next_option("bench agent", argc, argv)) != -1) {
		switch (c) {
		case 'r':
			if (!parse_number(optarg, 10, 100000, &rounds))
				return usage_error("bench", "'%s' is not a number of rounds, 10 to 100000",
						   optarg);
			b.rounds = rounds;
			break;
		case 'j':
			json = true;
			break;
		case 'h':
			return help();
		default:
			return option_error("bench", c, argv);
		}
	}
	if (optind < argc)
		return usage_error("bench", "'%s' is not an option", argv[optind]);
	b.piece = PIECE_PAGES * b.page;
	if (!open_device(&b))
		return complain(EXIT_FAILED, "bench",
				"there is no device that memory moves to, or no hetmem.ko ('hetmem doctor' says why)");
	report = bench_report_new("agent", json);
	/* Once for what is done once. */
	measure(&b, true, &with);
	measure(&b, false, &without);
	measure(&b, true, &with);
	if (b.failed) {
		bench_report_skip(report, "agent", "%s: %s", b.failed,
				  hetmem_last_error());
	} else {
		add(report, "agent.fight", "CPU and device write the same pages",
		    with.fight, without.fight, 1.0 / 3);
		add(report, "agent.stream", "each page goes and comes seldom", with.stream,
		    without.stream, 1.02);
		add(report, "agent.alone", "after the fight: the device alone", with.alone,
		    without.alone, 1 / 0.9);
	}
	b.hm->driver.cuStreamDestroy(b.stream);
	hetmem_close(b.hm);
	return bench_report_end(report);
}
