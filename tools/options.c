/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* The table of options, see options.h. */
#include <getopt.h>
#include <string.h>

#include "options.h"
#include "util.h"

#define FLAG(n, l)	{ .name = (n), .letter = (l) }
#define VALUE(n, l, v)	{ .name = (n), .letter = (l), .value = (v) }
#define HIDDEN(n, l, v)	{ .name = (n), .letter = (l), .value = (v), .hidden = true }

/* Of the benchmarks that share bench_begin(). */
#define DRIVER	VALUE("driver", 'd', "cuda|soft"), FLAG("json", 'j')
#define SPECS	VALUE("spec", 's', "SPEC"), DRIVER
#define THREADS	VALUE("threads", 't', "MOST")
#define MIB	VALUE("size", 'b', "MIB")
#define WORK	VALUE("work", 'w', "idle|busy=US")

const struct options_of options_table[] = {
	{ "doctor", NULL, {
		VALUE("require", 'r', "pools|device|pytorch|cupy|managed|sleep|unified|hmm|moves|module|all"),
		FLAG("json", 'j'),
		{ .name = "verbose", .letter = 'v', .typed = true },
		/* For tests: trees that look like other machines. */
		HIDDEN("sysroot", 's', "DIR"),
	} },
	{ "run", "COMMAND", {
		VALUE("min", 'm', "SIZE"),
		VALUE("policy", 'p', "local|interleave|interleave=NODES|prefer=NODE|bind=NODES"),
		VALUE("spec", 's', "SPEC"),
		VALUE("device", 'd', "SPEC"),
		VALUE("device-set", 'D', "sync=on|sync=off|managed=on|managed=off|ipc=on|ipc=off"),
		FLAG("agent", 'a'),
		FLAG("mmap", 'M'),
		VALUE("report", 'r', "FILE"),
	} },
	{ "map", "PID", {
		FLAG("self", 's'),
		VALUE("range", 'r', "START-END"),
		VALUE("largest", 'n', "N"),
		FLAG("all", 'a'),
		VALUE("width", 'w', "COLUMNS"),
		VALUE("color", 'c', "auto|always|never"),
		HIDDEN("colour", 'c', "auto|always|never"),
		FLAG("json", 'j'),
	} },
	{ "status", "PID", {
		FLAG("json", 'j'),
		FLAG("prometheus", 'P'),
		VALUE("interval", 'i', "SECONDS"),
	} },
	{ "top", NULL, {
		VALUE("interval", 'i', "SECONDS"),
		VALUE("sort", 's', "pid|name|device|host|moves|thrash"),
	} },
	{ "record", "COMMAND", {
		{ .name = "output", .letter = 'o', .value = "FILE", .typed = true },
		VALUE("chrome", 'C', "FILE"),
		FLAG("force", 'f'),
		VALUE("interval", 'i', "MS"),
		VALUE("for", 's', "SECONDS"),
		VALUE("max", 'm', "SIZE"),
	} },
	{ "report", "FILE", {
		VALUE("svg", 's', "FILE.svg"),
		VALUE("chrome", 'C', "FILE"),
		VALUE("html", 'H', "FILE"),
		FLAG("json", 'j'),
		VALUE("color", 'c', "auto|always|never"),
		HIDDEN("colour", 'c', "auto|always|never"),
	} },
	{ "prefetch", "PID", {
		/* For scripts of version 0.1. */
		HIDDEN("pid", 'p', "PID"),
		VALUE("to", 'l', "LOCATION"),
		VALUE("range", 'r', "START-END"),
		VALUE("timeout", 't', "SECONDS"),
	} },
	{ "pullback", "PID", {
		HIDDEN("pid", 'p', "PID"),
		VALUE("node", 'n', "N"),
		VALUE("range", 'r', "START-END"),
		VALUE("timeout", 't', "SECONDS"),
	} },
	{ "advise", "PID", { VALUE("timeout", 't', "SECONDS") } },
	{ "sleep", "PID", { VALUE("timeout", 't', "SECONDS"), FLAG("served", 's') } },
	{ "wake", "PID", { { .name = NULL } } },
	{ "reclaim", "SIZE", { VALUE("device", 'd', "N"), VALUE("timeout", 't', "SECONDS") } },
	{ "set", "PID", { VALUE("device", 'd', "N"), VALUE("timeout", 't', "SECONDS") } },
	{ "keep", NULL, {
		VALUE("socket", 's', "FILE"),
		VALUE("mode", 'm', "0600|0660|0666"),
		VALUE("names", 'n', "N"),
		VALUE("bytes", 'b', "SIZE"),
		FLAG("list", 'l'),
		VALUE("drop", 'd', "NAME"),
	} },
	{ "list", "PID", { FLAG("json", 'j') } },
	{ "tune", "NAME=VALUE", {
		FLAG("save", 's'),
		FLAG("restore", 'r'),
		VALUE("file", 'f', "FILE"),
		HIDDEN("sysroot", 'R', "DIR"),
	} },
	{ "demo", NULL, {
		VALUE("file", 'f', "FILE"),
		VALUE("device", 'd', "N"),
		FLAG("no-color", 'n'),
	} },
	{ "spec", "SPEC", {
		FLAG("list", 'l'),
		FLAG("create", 'c'),
		FLAG("explain", 'e'),
		VALUE("driver", 'd', "cuda|soft"),
	} },
	{ "replay", "FILE", {
		VALUE("spec", 's', "SPEC"),
		VALUE("spill", 'S', "SIZE"),
		VALUE("max", 'M', "SIZE or PERCENT"),
		VALUE("movable", 'B', "SIZE"),
		FLAG("moves", 'v'),
		VALUE("driver", 'd', "cuda|soft"),
		VALUE("order", 'o', "recorded|concurrent"),
		VALUE("work", 'w', "idle|lag=US|busy=US"),
		FLAG("memory", 'm'),
		FLAG("json", 'j'),
		VALUE("plot", 'p', "FILE.svg"),
		VALUE("curve", 'c', "FILE.svg"),
		VALUE("html", 'H', "FILE"),
	} },
	{ "completion", "bash|zsh|fish", { { .name = NULL } } },
	{ "bench kernel", "residency|track|busy|device|events", {
		VALUE("size", 's', "MIB"),
		FLAG("quick", 'q'),
		FLAG("json", 'j'),
	} },
	{ "bench agent", NULL, { VALUE("rounds", 'r', "N"), FLAG("json", 'j') } },
	{ "bench pullback", NULL, {
		VALUE("size", 's', "MIB"),
		VALUE("device", 'd', "N"),
		FLAG("json", 'j'),
	} },
	{ "bench alloc", NULL, { SPECS, WORK } },
	{ "bench threads", NULL, { SPECS, THREADS } },
	{ "bench streams", NULL, { SPECS, WORK } },
	{ "bench cached", NULL, { SPECS } },
	{ "bench vmm", NULL, { SPECS } },
	{ "bench sparse", NULL, { SPECS } },
	{ "bench pinned", NULL, { SPECS } },
	{ "bench sleep", NULL, { SPECS, MIB } },
	{ "bench spill", NULL, { SPECS, MIB } },
	{ "bench driver", NULL, { DRIVER, THREADS } },
	{ "bench metadata", NULL, { SPECS } },
	{ "bench unified", NULL, { SPECS, MIB } },
	{ "bench transport", NULL, { SPECS, MIB } },
	{ "bench worst", "intervals|parts|large|merge|growth|pending|streams-1|streams-2|"
		"streams-8|streams-128|streams-1024|holes|turns|kv|once|excess", {
		VALUE("size", 'S', "full|small"),
		VALUE("limit", 'L', "SECONDS"),
		SPECS,
	} },
	{ .command = NULL }
};

int next_option(const char *command, int argc, char **argv)
{
	struct option longs[MAX_OPTIONS + 2] = { { NULL } };
	char letters[2 * MAX_OPTIONS + 4] = "";
	const struct option_row *row;
	const struct options_of *of = options_table;
	size_t nr = 0;

	while (of->command && strcmp(of->command, command))
		of++;
	strcpy(letters, of->command && of->argument && !strcmp(of->argument, "COMMAND") ?
	       "+:h" : ":h");
	for (row = of->rows; of->command && row->name; row++) {
		longs[nr++] = (struct option){ row->name, row->value ? required_argument :
			no_argument, NULL, row->letter };
		if (row->typed)
			strncat(letters, &row->letter, 1);
		if (row->typed && row->value)
			strcat(letters, ":");
	}
	longs[nr] = (struct option){ "help", no_argument, NULL, 'h' };
	opterr = 0;
	return getopt_long(argc, argv, letters, longs, NULL);
}

bool is_option(const char *typed)
{
	const struct option_row *row;
	const struct options_of *of;
	size_t len;

	if (strncmp(typed, "--", 2))
		return false;
	typed += 2;
	len = strcspn(typed, "=");
	for (of = options_table; of->command; of++)
		for (row = of->rows; row->name; row++)
			if (strlen(row->name) == len && !strncmp(row->name, typed, len))
				return true;
	return false;
}
