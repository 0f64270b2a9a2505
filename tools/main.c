/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* The hetmem command: finds the subcommand. */
#include <stdlib.h>
#include <string.h>

#include <hetmem.h>

#include "options.h"
#include "util.h"

const struct command subcommands[] = {
	{ "doctor", cmd_doctor, "what works on this machine, and what is missing" },
	{ "run", cmd_run, "an unmodified program with its large memory in huge pages" },
	{ "map", cmd_map, "where the pages of a process are, as a picture" },
	{ "status", cmd_status, "what moves, what thrashes, pools: once, also for scripts" },
	{ "top", cmd_top, "what status shows, live, with keys" },
	{ "record", cmd_record, "where a process's memory is over time, to a file" },
	{ "report", cmd_report, "such a file as a heat map, with what to do about it" },
	{ "prefetch", cmd_prefetch, "has a process move its memory to a device" },
	{ "pullback", cmd_pullback, "has a process bring its memory back" },
	{ "advise", cmd_advise, "tells a process which side uses memory next" },
	{ "sleep", cmd_sleep, "moves what a process has on its GPUs to host memory" },
	{ "wake", cmd_wake, "brings back the GPU memory of a process that sleeps" },
	{ "reclaim", cmd_reclaim, "your processes give back memory that they do not use" },
	{ "set", cmd_set, "the most memory that a process of yours may hold" },
	{ "keep", cmd_keep, "holds device memory by name for workers that come and go" },
	{ "list", cmd_list, "who uses the module; what a process tracks" },
	{ "tune", cmd_tune, "the module's settings: shows, sets, saves, restores" },
	{ "demo", cmd_demo, "memory moves to a device and back, verified" },
	{ "bench", cmd_bench, "what it costs, beside its peers" },
	{ "spec", cmd_spec, "what a spec of a memory resource names" },
	{ "replay", cmd_replay, "recorded allocations through any resource" },
	{ "completion", cmd_completion, "options for the Tab key of bash, zsh or fish" },
};
const size_t nr_subcommands = ARRAY_SIZE(subcommands);

static int help(void)
{
	size_t i;

	/* A screen has 24 lines. */
	puts("Usage: hetmem COMMAND [OPTION]...   Exit status: 0 done, 1 no, 2 cannot do that");
	for (i = 0; i < ARRAY_SIZE(subcommands); i++)
		printf("  %-10s %s\n", subcommands[i].name,
		       subcommands[i].help);
	puts("  --help     this text; 'hetmem COMMAND --help' for a command; --version");
	return EXIT_OK;
}

static int version(void)
{
	printf("hetmem %s (library interface %d, kernel interface %d)\n",
	       HETMEM_VERSION_STRING, HETMEM_API_VERSION, HETMEM_VERSION);
	return EXIT_OK;
}

/* What could not be written was not done: a full disk, a closed pipe. */
static int flushed(int status)
{
	if (!fflush(stdout) && !ferror(stdout))
		return status;
	return complain(EXIT_FAILED, NULL, "cannot write to standard output");
}

int main(int argc, char **argv)
{
	size_t i;

	if (argc < 2)
		return usage_error(NULL, "no command given");
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") ||
	    !strcmp(argv[1], "--version")) {
		if (argc > 2)
			return usage_error(NULL, "'%s' takes no argument",
					   argv[1]);
		return flushed(argv[1][2] == 'v' ? version() : help());
	}
	for (i = 0; i < ARRAY_SIZE(subcommands); i++)
		if (!strcmp(argv[1], subcommands[i].name))
			return flushed(subcommands[i].run(argc - 1, argv + 1));
	if (!strcmp(argv[1], "--json"))
		return usage_error(NULL, "'--json' comes after the command: " JSON_SUBCOMMANDS);
	return usage_error(NULL, argv[1][0] == '-' ? "unknown option '%s'" :
			   "unknown command '%s'", argv[1]);
}
