/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* hetmem bench: finds the benchmark. */
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "options.h"

const struct command benches[] = {
	{ "kernel", bench_kernel, "hetmem.ko beside what the kernel has" },
	{ "agent", bench_agent, "what the agent saves where CPU and device fight, and costs" },
	{ "pullback", bench_pullback, "bringing memory back from a device" },
	{ "alloc", bench_alloc, "an allocation and a free, beside cuMemAllocAsync" },
	{ "threads", bench_threads, "the same in 1 to 16 threads" },
	{ "streams", bench_streams, "the same over several streams" },
	{ "sparse", bench_sparse, "commits and decommits of units of sparse blocks" },
	{ "cached", bench_cached, "the cached path alone, and what it calls" },
	{ "vmm", bench_vmm, "a pool that grows by 1 GiB" },
	{ "pinned", bench_pinned, "page-locked memory, beside cuMemHostAlloc" },
	{ "sleep", bench_sleep, "parking the contents of a pool, beside a copy" },
	{ "spill", bench_spill, "moving blocks to the host and back, beside a copy" },
	{ "driver", bench_driver, "what calls of the driver take by themselves" },
	{ "metadata", bench_metadata, "resident memory that a pool of small blocks needs" },
	{ "unified", bench_unified, "memory of both CPU and device, in turns" },
	{ "transport", bench_transport, "blocks that UCX sends between two processes" },
	{ "worst", bench_worst, "programs that are written against an allocator" },
};
const size_t nr_benches = ARRAY_SIZE(benches);

static int help(void)
{
	size_t i;

	puts("Usage: hetmem bench NAME [OPTION]...\n"
	     "Measures hetmem beside its peers, in the same process.\n");
	for (i = 0; i < ARRAY_SIZE(benches); i++)
		printf("  %-10s %s\n", benches[i].name, benches[i].help);
	puts("\n"
	     "  --help     this text; 'hetmem bench NAME --help' for one of them");
	return EXIT_OK;
}

int cmd_bench(int argc, char **argv)
{
	size_t i;

	if (argc < 2)
		return usage_error("bench", "which benchmark?");
	if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))
		return help();
	for (i = 0; i < ARRAY_SIZE(benches); i++)
		if (!strcmp(argv[1], benches[i].name))
			return benches[i].run(argc - 1, argv + 1);
	return usage_error("bench", argv[1][0] == '-' ? "unknown option '%s'" :
			   "there is no benchmark '%s'", argv[1]);
}
