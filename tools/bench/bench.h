/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the benchmarks share: a clock that counts instructions where time is
 * instructions, and a report of rows, as a table or as JSON.
 */
#ifndef HETMEM_TOOLS_BENCH_H
#define HETMEM_TOOLS_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "util.h"

/* The subcommands of `hetmem bench`; argv[0] is the name. */
int bench_kernel(int argc, char **argv);
int bench_pullback(int argc, char **argv);
int bench_agent(int argc, char **argv);
int bench_alloc(int argc, char **argv);
int bench_threads(int argc, char **argv);
int bench_streams(int argc, char **argv);
int bench_vmm(int argc, char **argv);
int bench_pinned(int argc, char **argv);
int bench_sleep(int argc, char **argv);
int bench_spill(int argc, char **argv);
int bench_sparse(int argc, char **argv);
int bench_cached(int argc, char **argv);
int bench_driver(int argc, char **argv);
int bench_metadata(int argc, char **argv);
int bench_worst(int argc, char **argv);
int bench_unified(int argc, char **argv);
int bench_transport(int argc, char **argv);

/*
 * Ticks since some moment: instructions in a virtual machine that counts them
 * (there the time stamp counter does), nanoseconds elsewhere. The first call
 * finds out which.
 */
uint64_t bench_ticks(void);

/*
 * @whole less @overhead, both in ticks; below zero if that leaves nothing, as
 * can be where ticks are time: then it was not measured.
 */
double bench_without(double whole, double overhead);

/* What bench_ticks() counts: "instructions" or "ns". */
const char *bench_unit(void);

/* What a row is to be. */
enum bench_goal {
	BENCH_GOAL_NONE,
	BENCH_GOAL_AT_MOST,	/* ours / peer <= limit */
	BENCH_GOAL_LESS,	/* ours / peer < limit */
	BENCH_GOAL_EXACTLY,	/* ours / peer == limit; for what is counted */
};

/**
 * struct bench_row - one thing that was measured
 * @name: for programs: letters, digits, dots and dashes
 * @what: for people
 * @unit: of both figures
 * @ours: our figure
 * @peer: what it is held against; not looked at if @peer_name is NULL
 * @peer_name: who that is
 * @goal: of the ratio
 * @limit: that the goal names
 *
 * A figure below zero says that it was not measured, see bench_without(). Then
 * so does the report, and not whether the goal is met. Strings live as long as
 * the report.
 */
struct bench_row {
	const char *name;
	const char *what;
	const char *unit;
	double ours;
	double peer;
	const char *peer_name;
	enum bench_goal goal;
	double limit;
};

struct bench_report;

/* @name: of the benchmark. Rows are printed at the end, all at once. */
struct bench_report *bench_report_new(const char *name, bool json);
/* The figures are the soft driver's: peers have none, and the report says so. */
void bench_report_soft(struct bench_report *report);
/* Text for rows, and the name of a row for @what of @spec. They belong to the report. */
const char *bench_report_text(struct bench_report *report, const char *fmt, ...)
	printf_like(2, 3);
const char *bench_row_name(struct bench_report *report, const char *spec, const char *what);

void bench_report_add(struct bench_report *report, const struct bench_row *row);

/* Something was not measured, and why; @why is copied. */
void bench_report_skip(struct bench_report *report, const char *name,
		       const char *fmt, ...) printf_like(3, 4);

/*
 * Prints and frees it. Return: the exit status, EXIT_FAILED if nothing was
 * measured.
 */
int bench_report_end(struct bench_report *report);

#endif
