/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* hetmem replay: recorded allocations through any resource, beside the driver. */
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "count_calls.h"
#include "replay.h"
#include "spec/spec.h"
#include "options.h"

#define MAX_SPECS	32

struct options {
	const char *specs[MAX_SPECS];
	int nr_specs;
	struct replay_spill_options spill;
	const char *driver;
	const char *plot;
	const char *html;
	const char *curve;
	bool json;
	struct replay_how how;
	char **files;
	int nr_files;
};

static int help(void)
{
	puts("Usage: hetmem replay [OPTION]... FILE...\n"
	     "Replays recorded allocations and frees. On a GPU: beside cuMemAllocAsync.\n\n"
	     "  --spec SPEC         resource to replay with, any number of times\n"
	     "                      (HETMEM_RESOURCE, else device-pool)\n"
	     "  --spill SIZE        adds device-pool that moves blocks to SIZE of host memory\n"
	     "  --max SIZE|PERCENT  its device memory; PERCENT: of FILE's requested peak\n"
	     "  --movable SIZE      its blocks of that size or more can move (4M)\n"
	     "  --moves             lists each move, of specs with spill=\n"
	     "  --driver DRIVER     cuda or soft (cuda where there is a device)\n"
	     "  --order recorded    in one thread, in the order of the file\n"
	     "  --order concurrent  in the recorded threads, as fast as they can\n"
	     "  --work idle         streams have nothing else to do\n"
	     "  --work lag=US       they are US microseconds behind the CPU\n"
	     "  --work busy=US      each works so long with every block allocated on it\n"
	     "  --memory            what is held alone: no times, no peer, few passes\n"
	     "  --json              an array of objects\n"
	     "  --plot FILE.svg     draws bytes over time, and the addresses at the peak\n"
	     "  --curve FILE.svg    draws the specs' time against their ratio\n"
	     "  --html FILE         writes a page of all this for a browser, without network\n\n"
	     "FILE has RMM's columns, Thread,Time,Action,Pointer,Size,Stream, plain or\n"
	     "gzipped; -: standard input. log(R,file=) in a spec writes such files.\n"
	     "Passes: 1 with a resource just made, 2 the same again.");
	return EXIT_OK;
}

static bool parse_work(const char *s, struct replay_how *how)
{
	const bool busy = !strncmp(s, "busy=", 5);
	long us;

	how->lag_us = how->busy_us = 0;
	if (!strcmp(s, "idle"))
		return true;
	if (!busy && strncmp(s, "lag=", 4))
		return false;
	if (!parse_number(s + 4 + busy, 1, 10000000, &us))
		return false;
	*(busy ? &how->busy_us : &how->lag_us) = us;
	return true;
}

static bool parse_order(const char *s, struct replay_how *how)
{
	how->concurrent = !strcmp(s, "concurrent");
	return how->concurrent || !strcmp(s, "recorded");
}

/* @from: where it is from, if it was not typed. */
static int add_spec(struct options *o, const char *text, const char *from)
{
	struct hm_spec *spec;

	if (o->nr_specs == MAX_SPECS)
		return usage_error("replay", "more than %d specs", MAX_SPECS);
	if (hm_spec_parse(text, &spec))
		return usage_error("replay", "%s%s", from, hetmem_last_error());
	hm_spec_free(spec);
	o->specs[o->nr_specs++] = text;
	return 0;
}

static int parse_option(struct options *o, int c, char **argv)
{
	switch (c) {
	case 's':
		return add_spec(o, optarg, "");
	case 'd':
		if (!is_driver(optarg))
			return usage_error("replay", "'%s' is not cuda or soft",
					   optarg);
		o->driver = optarg;
		return 0;
	case 'o':
		return parse_order(optarg, &o->how) ? 0 :
			usage_error("replay", "'%s' is not recorded or concurrent",
				    optarg);
	case 'w':
		return parse_work(optarg, &o->how) ? 0 :
			usage_error("replay", "'%s' is not idle, lag=US or busy=US",
				    optarg);
	case 'j':
		o->json = true;
		return 0;
	case 'm':
		o->how.memory = true;
		return 0;
	case 'p':
		o->plot = optarg;
		return 0;
	case 'c':
		o->curve = optarg;
		return 0;
	case 'H':
		o->html = optarg;
		return 0;
	case 'S':
		o->spill.spill = optarg;
		return 0;
	case 'M':
		o->spill.max = optarg;
		return 0;
	case 'B':
		o->spill.movable = optarg;
		return 0;
	case 'v':
		o->how.moves = true;
		return 0;
	case 'h':
		return -1;
	default:
		return option_error("replay", c, argv);
	}
}

/* The spec of --spill follows from the recording: NULL stands for it. */
static int add_spill(struct options *o)
{
	int status = replay_spill_check(&o->spill);

	if (status || !o->spill.spill)
		return status;
	if (o->how.concurrent)
		return usage_error("replay", "--spill needs one thread: leave out --order concurrent");
	if (o->nr_specs == MAX_SPECS)
		return usage_error("replay", "more than %d specs", MAX_SPECS);
	o->specs[o->nr_specs++] = NULL;
	return 0;
}

static bool any_spill(const struct options *o)
{
	uint64_t limit;
	int i;

	for (i = 0; i < o->nr_specs; i++)
		if (!o->specs[i] || replay_has_spill(o->specs[i], 0, &limit))
			return true;
	return false;
}

/* A replay must not replace what it reads. 0, or the exit status. */
static int check_outputs(const struct options *o)
{
	const struct {
		const char *option, *path;
	} outputs[] = { { "--plot", o->plot }, { "--curve", o->curve }, { "--html", o->html } };
	size_t n;
	int i, j;

	for (i = 0; i < o->nr_files; i++) {
		if (!strcmp(o->files[i], "-"))
			continue;
		for (n = 0; n < ARRAY_SIZE(outputs); n++)
			if (replay_same_file(outputs[n].path, o->files[i]))
				return complain(EXIT_USAGE, "replay", "'%s' is the recording; name another file with %s",
						outputs[n].path, outputs[n].option);
		for (j = 0; j < o->nr_specs; j++)
			if (o->specs[j] && replay_logs_to(o->specs[j], o->files[i]))
				return complain(EXIT_USAGE, "replay", "'%s' would log to the recording; give --spec, or unset HETMEM_RESOURCE",
						o->specs[j]);
	}
	return 0;
}

static int parse(struct options *o, int argc, char **argv)
{
	const char *env = getenv("HETMEM_RESOURCE");
	int c, status, stdins = 0;

	while ((c = next_option("replay", argc, argv)) != -1) {
		status = parse_option(o, c, argv);
		if (status)
			return status;
	}
	if (optind == argc)
		return usage_error("replay", "which trace? Give a file, or - for standard input");
	o->files = argv + optind;
	o->nr_files = argc - optind;
	for (c = 0; c < o->nr_files; c++)
		stdins += !strcmp(o->files[c], "-");
	if (stdins > 1)
		return usage_error("replay", "standard input can be read once: leave out one '-'");
#ifndef HAVE_JSON_C
	if (o->json)
		return complain(EXIT_USAGE, "replay", "--json: this was built without libjson-c-dev");
#endif
	status = add_spill(o);
	if (!status && !o->nr_specs)
		status = add_spec(o, env && *env ? env : "device-pool", "HETMEM_RESOURCE: ");
	if (!status && o->how.moves && (o->how.concurrent || !any_spill(o)))
		status = usage_error("replay", "--moves: nothing moves without spill= in a spec, or --order concurrent");
	return status ? status : check_outputs(o);
}

static const char *ms(double value)
{
	static char buffers[32][32];
	static unsigned int turn;
	char *text = buffers[turn++ % ARRAY_SIZE(buffers)];

	if (value < 0)
		return "-";
	snprintf(text, sizeof(buffers[0]), value < 100 ? "%.2f" : "%.0f",
		 value);
	return text;
}

static void print_calls(const struct replay_result *r)
{
	unsigned int i;

	if (!r->calls_known)
		return;
	printf("\n%s, %s: driver calls of a first pass:", r->trace->name,
	       r->spec);
	for (i = 0; i < count_calls_nr(); i++)
		if (r->calls[i])
			printf(" %s %llu", count_calls_name(i),
			       (unsigned long long)r->calls[i]);
	putchar('\n');
}

/* The range of @nr times as "LEAST..MOST". */
static const char *range(const struct replay_time *t)
{
	static char buffers[8][64];
	static unsigned int turn;
	char *text = buffers[turn++ % ARRAY_SIZE(buffers)];

	if (t->median < 0)
		return "-";
	snprintf(text, sizeof(buffers[0]), "%s..%s", ms(t->least), ms(t->most));
	return text;
}

/* Without the peer's columns where there is none. */
static void print_times(const struct replay_result *results, size_t nr)
{
	static const struct table_column columns[] = {
		{ "TRACE", false }, { "SPEC", false }, { "EVENTS", true },
		{ "NS", true }, { "P99", true }, { "PASS 1", true }, { "RANGE", true },
		{ "PASS 2", true }, { "RANGE", true }, { "DEVICE", true },
		{ "WAIT", true }, { "SYSCALLS", true }, { "PEER 1", true },
		{ "RANGE", true }, { "PEER 2", true }, { "RANGE", true }, { "PEER'S", true },
	};
	const int peers = 5;
	struct table *table = table_new(columns, ARRAY_SIZE(columns) -
					(results[0].soft ? peers : 0));
	char events[24], system[24];
	size_t i;

	if (results[0].soft)
		puts(SOFT_TIMES ".\n"
		     "cuMemAllocAsync is left out: " SOFT_PEER ".\n");
	for (i = 0; i < nr; i++) {
		const struct replay_result *r = &results[i];

		snprintf(events, sizeof(events), "%zu", r->trace->nr);
		snprintf(system, sizeof(system), "%lld",
			 (long long)r->system_calls);
		table_row(table, (const char *[]){
			r->trace->name, r->spec, events, ms(r->ns_per_event),
			ms(r->ns_p99), ms(r->pass[0].median), range(&r->pass[0]),
			ms(r->pass[1].median), range(&r->pass[1]),
			ms(r->device[1].median), ms(r->host_wait_ms),
			r->system_calls < 0 ? "-" : system,
			ms(r->peer_pass[0].median), range(&r->peer_pass[0]),
			ms(r->peer_pass[1].median), range(&r->peer_pass[1]),
			ms(r->peer_device[1].median) });
	}
	table_print(table);
	printf("\nNS and P99: nanoseconds a step of pass 2. Passes and WAIT: milliseconds, the\n"
	       "median of %d passes; RANGE: their least and most. DEVICE: pass 2 until the\n"
	       "streams are done. SYSCALLS: of a warm pass.%s\n\n", REPLAY_ROUNDS,
	       results[0].soft ? "" : " PEER: cuMemAllocAsync.");
}

static void print_memory(const struct replay_result *results, size_t nr)
{
	static const struct table_column columns[] = {
		{ "TRACE", false }, { "SPEC", false }, { "REQUESTED", true },
		{ "RESERVED", true }, { "RATIO", true }, { "NEEDED", true },
		{ "LEAST", true }, { "RATIO", true }, { "FAILED", true },
	};
	struct table *table = table_new(columns, ARRAY_SIZE(columns));
	char ratio[24], least[24], failed[24];
	const char *why = NULL;
	size_t i;

	for (i = 0; i < nr; i++) {
		const struct replay_result *r = &results[i];
		const bool held = !r->imitated;

		snprintf(ratio, sizeof(ratio), "%.4f", r->ratio);
		snprintf(least, sizeof(least), r->needed_known && held ? "%.4f" : "-",
			 (double)r->needed_reserved / r->needed.least);
		snprintf(failed, sizeof(failed), "%llu",
			 (unsigned long long)r->failures);
		table_row(table, (const char *[]){
			r->trace->name, r->spec, size_text(r->peak_requested),
			held ? size_text(r->peak_reserved) : "-", held ? ratio : "-",
			r->needed_known ? size_text(r->needed.needed) : "-",
			r->needed_known ? size_text(r->needed.least) : "-",
			least, failed });
		why = why ? why : replay_ratio_why(r);
	}
	table_print(table);
	puts("\nNEEDED: live, or freed and still in use. LEAST: NEEDED without what a stream\n"
	     "itself can have again, and what was reserved over it.");
	if (why)
		printf("-: %s.\n", why);
}

static void print_table(const struct replay_result *results, size_t nr,
			const struct replay_how *how)
{
	size_t i;

	if (!how->memory)
		print_times(results, nr);
	print_memory(results, nr);
	for (i = 0; i < nr; i++)
		print_calls(&results[i]);
	replay_spill_print(results, nr);
}

/* One line for each run in which no allocation succeeded. */
static int check_failures(const struct replay_result *results, size_t nr)
{
	int status = EXIT_OK;
	size_t i;

	for (i = 0; i < nr; i++)
		if (results[i].failures >= results[i].trace->blocks)
			status = complain(EXIT_FAILED, "replay", "%s, %s: every allocation failed: %s",
					  results[i].trace->name, results[i].spec, results[i].why);
	return status;
}

/* Before anything is measured: what cannot be written is not waited for. */
static bool open_picture(const char *path, FILE **f)
{
	if (!path)
		return true;
	*f = fopen(path, "we");
	if (!*f)
		complain(EXIT_FAILED, "replay", "%s: %s", path,
			 strerror(errno));
	return *f;
}

static int close_picture(const char *path, FILE *f, int status)
{
	bool bad = f && (fflush(f) || ferror(f));
	int error = errno;

	if (f)
		fclose(f);
	return !bad || status ? status :
		complain(EXIT_FAILED, "replay", "%s: %s", path,
			 strerror(error));
}

static int run_all(const struct options *o, struct hetmem *hm,
		   struct replay_trace **traces)
{
	size_t nr = (size_t)o->nr_files * o->nr_specs, n;
	struct replay_result *results = xcalloc(nr, sizeof(*results));
	char **own = xcalloc(o->nr_files, sizeof(*own));
	FILE *plot = NULL, *curve = NULL, *html = NULL;
	int i, j, status = EXIT_OK;

	if (!open_picture(o->plot, &plot) || !open_picture(o->curve, &curve) ||
	    !open_picture(o->html, &html))
		status = EXIT_FAILED;
	for (i = 0; !status && i < o->nr_files; i++) {
		if (o->spill.spill)
			own[i] = replay_spill_spec(&o->spill, traces[i]);
		for (j = 0; !status && j < o->nr_specs; j++)
			status = replay_measure(hm, traces[i],
						o->specs[j] ? o->specs[j] : own[i], &o->how,
						&results[i * o->nr_specs + j]);
	}
	if (!status && o->json)
		status = replay_json(results, nr, &o->how);
	else if (!status)
		print_table(results, nr, &o->how);
	if (!status && plot)
		status = replay_plot(plot, hm, results, nr, &o->how);
	if (!status && curve)
		replay_curve(curve, results, nr, o->nr_specs);
	if (!status && html)
		status = replay_page(html, hm, results, nr, o->files, o->nr_specs, &o->how);
	if (!status)
		status = check_failures(results, nr);
	status = close_picture(o->plot, plot, status);
	status = close_picture(o->curve, curve, status);
	status = close_picture(o->html, html, status);
	for (i = 0; i < o->nr_files; i++)
		free(own[i]);
	for (n = 0; n < nr; n++)
		free(results[n].spill.log);
	free(own);
	free(results);
	return status;
}

int cmd_replay(int argc, char **argv)
{
	struct options o = { 0 };
	struct hetmem_params params = { .size = sizeof(params) };
	struct replay_trace **traces;
	struct hetmem_feature feature;
	struct hetmem *hm = NULL;
	int i, status = parse(&o, argc, argv);

	if (status)
		return status < 0 ? help() : status;
	traces = xcalloc(o.nr_files, sizeof(*traces));
	for (i = 0; !status && i < o.nr_files; i++) {
		traces[i] = replay_trace_read(o.files[i]);
		if (!traces[i])
			status = EXIT_FAILED;
	}
	/* Software devices as large as today's: what is not touched is free. */
	setenv("HETMEM_SOFT_MEMORY", "140G", 0);
	params.driver = o.driver;
	params.module_path = "";
	if (!status && hetmem_open(&hm, &params))
		status = complain(EXIT_FAILED, "replay", "%s",
				  hetmem_last_error());
	if (!status && !hetmem_device_count(hm)) {
		hetmem_feature(hm, HETMEM_FEATURE_DEVICE, &feature);
		status = complain(EXIT_FAILED, "replay", "%s", feature.reason);
	}
	if (!status)
		status = run_all(&o, hm, traces);
	hetmem_close(hm);
	for (i = 0; i < o.nr_files; i++)
		replay_trace_free(traces[i]);
	free(traces);
	return status;
}
