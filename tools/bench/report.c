/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* The benchmarks' clock and their report: see bench.h. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>

#include "bench.h"

struct skip {
	char *name;
	char *why;
};

struct bench_report {
	const char *name;
	bool json;
	struct bench_row *rows;
	size_t nr_rows;
	struct skip *skips;
	size_t nr_skips;
	char **texts;
	size_t nr_texts;
};

#ifdef __x86_64__
static inline uint64_t tsc(void)
{
	uint32_t low, high;

	__asm__ volatile("lfence; rdtsc" : "=a"(low), "=d"(high) : : "memory");
	return (uint64_t)high << 32 | low;
}

/*
 * Whether the time stamp counter counts instructions, as it does under QEMU's
 * -icount shift=0: two loops of known length must take as many ticks, which
 * no clock brings about for both. An interrupt adds some: the best of a few.
 */
static bool tsc_counts(void)
{
	enum { LOOPS = 20000, SHORT = 2, LONG = 10 };
	uint64_t best[2] = { UINT64_MAX, UINT64_MAX };
	int try, i;

	for (try = 0; try < 5; try++) {
		uint64_t at[3];
		long n = LOOPS;

		at[0] = tsc();
		__asm__ volatile("1: dec %0; jnz 1b" : "+r"(n) : : "cc");
		at[1] = tsc();
		n = LOOPS;
		__asm__ volatile("1: nop; nop; nop; nop; nop; nop; nop; nop; dec %0; jnz 1b"
				 : "+r"(n) : : "cc");
		at[2] = tsc();
		for (i = 0; i < 2; i++)
			if (at[i + 1] - at[i] < best[i])
				best[i] = at[i + 1] - at[i];
	}
	return best[0] >= LOOPS * SHORT && best[0] < LOOPS * SHORT * 1.01 &&
	       best[1] >= LOOPS * LONG && best[1] < LOOPS * LONG * 1.01;
}
#else
static inline uint64_t tsc(void)
{
	return 0;
}

static bool tsc_counts(void)
{
	return false;
}
#endif

static bool counts_instructions(void)
{
	static int known = -1;

	if (known < 0)
		known = tsc_counts();
	return known;
}

uint64_t bench_ticks(void)
{
	struct timespec ts;

	if (counts_instructions())
		return tsc();
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * UINT64_C(1000000000) + ts.tv_nsec;
}

double bench_without(double whole, double overhead)
{
	return whole > overhead ? whole - overhead : -1;
}

const char *bench_unit(void)
{
	return counts_instructions() ? "instructions" : "ns";
}

struct bench_report *bench_report_new(const char *name, bool json)
{
	struct bench_report *report = xcalloc(1, sizeof(*report));

	report->name = name;
	report->json = json;
	return report;
}

void bench_report_skip(struct bench_report *report, const char *name,
		       const char *fmt, ...)
{
	struct skip *skip;
	va_list ap;

	report->skips = xrealloc_array(report->skips, report->nr_skips + 1,
				       sizeof(*skip));
	skip = &report->skips[report->nr_skips++];
	skip->name = xstrdup(name);
	va_start(ap, fmt);
	if (vasprintf(&skip->why, fmt, ap) < 0)
		skip->why = xstrdup("");
	va_end(ap);
}

static char *keep_text(struct bench_report *report, char *text)
{
	report->texts = xrealloc_array(report->texts, report->nr_texts + 1, sizeof(text));
	report->texts[report->nr_texts++] = text;
	return text;
}

const char *bench_report_text(struct bench_report *report, const char *fmt, ...)
{
	va_list ap;
	char *text;

	va_start(ap, fmt);
	if (vasprintf(&text, fmt, ap) < 0)
		text = xstrdup("");
	va_end(ap);
	return keep_text(report, text);
}

const char *bench_row_name(struct bench_report *report, const char *spec, const char *what)
{
	char *name = keep_text(report, xasprintf("%s-%s", spec, what)), *c;

	for (c = name; *c; c++)
		if (strchr("()=,\"' ", *c))
			*c = '-';
	return name;
}

static bool measured(const struct bench_row *row)
{
	return row->ours >= 0 && (!row->peer_name || row->peer >= 0);
}

void bench_report_add(struct bench_report *report, const struct bench_row *row)
{
	report->rows = xrealloc_array(report->rows, report->nr_rows + 1,
				      sizeof(*row));
	report->rows[report->nr_rows++] = *row;
	if (!measured(row))
		bench_report_skip(report, row->name,
				  "its overhead took as long as all of it");
}

static double ratio(const struct bench_row *row)
{
	return row->peer ? row->ours / row->peer : INFINITY;
}

static bool met(const struct bench_row *row)
{
	switch (row->goal) {
	case BENCH_GOAL_AT_MOST:
		return ratio(row) <= row->limit;
	case BENCH_GOAL_LESS:
		return ratio(row) < row->limit;
	case BENCH_GOAL_EXACTLY:
		return ratio(row) == row->limit;
	default:
		return true;
	}
}

static const char *goal_sign(enum bench_goal goal)
{
	static const char *const signs[] = {
		[BENCH_GOAL_NONE] = "",
		[BENCH_GOAL_AT_MOST] = "<=",
		[BENCH_GOAL_LESS] = "<",
		[BENCH_GOAL_EXACTLY] = "=",
	};

	return signs[goal];
}

/* Three digits that count, and no exponent. */
static char *number(double value)
{
	int digits = value >= 100 ? 0 : value >= 10 ? 1 : 2;

	if (value < 0)
		return xstrdup("-");
	if (value == (int64_t)value && value < 1e15)
		digits = 0;
	return xasprintf("%.*f", digits, value);
}

static void print_table(const struct bench_report *report)
{
	static const struct table_column columns[] = {
		{ "WHAT", false }, { "OURS", true }, { "PEER", true },
		{ "RATIO", true }, { "GOAL", true }, { "", false },
		{ "UNIT", false }, { "PEER IS", false },
	};
	struct table *table = table_new(columns, ARRAY_SIZE(columns));
	struct utsname name;
	size_t i, c;

	uname(&name);
	printf("hetmem bench %s, kernel %s, clock in %s\n", report->name,
	       name.release, bench_unit());
	for (i = 0; i < report->nr_rows; i++) {
		const struct bench_row *row = &report->rows[i];
		char *cells[ARRAY_SIZE(columns)] = {
			xstrdup(row->what), number(row->ours),
		};

		if (row->peer_name) {
			cells[2] = number(row->peer);
			cells[3] = measured(row) ?
				xasprintf("%.3f", ratio(row)) : xstrdup("-");
			cells[7] = xstrdup(row->peer_name);
		}
		if (row->goal != BENCH_GOAL_NONE) {
			cells[4] = xasprintf("%s %.4g", goal_sign(row->goal),
					     row->limit);
			cells[5] = xstrdup(!measured(row) ? "not measured" :
					   met(row) ? "met" : "MISSED");
		}
		cells[6] = xstrdup(row->unit);
		table_row(table, (const char *const *)cells);
		for (c = 0; c < ARRAY_SIZE(columns); c++)
			free(cells[c]);
	}
	table_print(table);
	for (i = 0; i < report->nr_skips; i++)
		printf("not measured: %s: %s\n", report->skips[i].name,
		       report->skips[i].why);
}

/* @text is ours or from the kernel, of printable characters after escape(). */
static void print_string(const char *text)
{
	char *clean = xescape(text);
	const char *s;

	putchar('"');
	for (s = clean; *s; s++) {
		if (*s == '"' || *s == '\\')
			putchar('\\');
		putchar(*s);
	}
	putchar('"');
	free(clean);
}

static void print_pair(const char *key, const char *text)
{
	printf("\"%s\": ", key);
	print_string(text);
}

/* null: not measured. */
static void print_figure(const char *key, double value)
{
	if (value < 0)
		printf(", \"%s\": null", key);
	else
		printf(", \"%s\": %.17g", key, value);
}

static void print_json_row(const struct bench_row *row)
{
	static const char *const goals[] = {
		[BENCH_GOAL_NONE] = "none",
		[BENCH_GOAL_AT_MOST] = "at most",
		[BENCH_GOAL_LESS] = "less",
		[BENCH_GOAL_EXACTLY] = "exactly",
	};

	fputs("\n  {", stdout);
	print_pair("name", row->name);
	fputs(", ", stdout);
	print_pair("what", row->what);
	fputs(", ", stdout);
	print_pair("unit", row->unit);
	print_figure("ours", row->ours);
	if (row->peer_name) {
		print_figure("peer", row->peer);
		fputs(", ", stdout);
		print_pair("peer_name", row->peer_name);
		if (row->peer)
			print_figure("ratio", measured(row) ? ratio(row) : -1);
	}
	if (row->goal != BENCH_GOAL_NONE)
		printf(", \"goal\": \"%s\", \"limit\": %.17g, \"met\": %s",
		       goals[row->goal], row->limit, !measured(row) ? "null" :
		       met(row) ? "true" : "false");
	putchar('}');
}

static void print_json(const struct bench_report *report)
{
	struct utsname name;
	size_t i;

	uname(&name);
	putchar('{');
	print_pair("bench", report->name);
	fputs(", ", stdout);
	print_pair("release", name.release);
	fputs(", ", stdout);
	print_pair("unit", bench_unit());
	fputs(",\n\"rows\": [", stdout);
	for (i = 0; i < report->nr_rows; i++) {
		if (i)
			putchar(',');
		print_json_row(&report->rows[i]);
	}
	fputs("],\n\"not_measured\": [", stdout);
	for (i = 0; i < report->nr_skips; i++) {
		fputs(i ? ",\n  {" : "\n  {", stdout);
		print_pair("name", report->skips[i].name);
		fputs(", ", stdout);
		print_pair("why", report->skips[i].why);
		putchar('}');
	}
	puts("]}");
}

int bench_report_end(struct bench_report *report)
{
	int status = report->nr_rows ? EXIT_OK : EXIT_FAILED;
	size_t i;

	if (report->json)
		print_json(report);
	else
		print_table(report);
	for (i = 0; i < report->nr_skips; i++) {
		free(report->skips[i].name);
		free(report->skips[i].why);
	}
	for (i = 0; i < report->nr_texts; i++)
		free(report->texts[i]);
	free(report->texts);
	free(report->skips);
	free(report->rows);
	free(report);
	return status;
}
