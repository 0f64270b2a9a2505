/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem bench kernel: what the module's calls cost, beside what the kernel
 * itself has for the same purpose, and what the module promises to do just
 * once, counted.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernel.h"
#include "options.h"
#include "core/device_open.h"

#define MIN_MIB	2
#define MAX_MIB	4096

static const struct part {
	const char *name;
	void (*run)(struct kernel_bench *kb);
} parts[] = {
	{ "residency", bench_kernel_residency },
	{ "track", bench_kernel_track },
	{ "busy", bench_kernel_busy },
	{ "device", bench_kernel_device },
	{ "events", bench_kernel_events },
};

int kb_open(void)
{
	return hm_device_open("/dev/hetmem");
}

int kb_ioctl(int fd, unsigned long nr, void *cmd)
{
	return ioctl(fd, nr, cmd) < 0 ? -errno : 0;
}

int kb_track(int fd, uint64_t start, uint64_t end)
{
	struct hetmem_cmd_track cmd = {
		.size = sizeof(cmd), .start = start, .end = end,
	};

	return kb_ioctl(fd, HETMEM_IOC_TRACK, &cmd);
}

int kb_untrack(int fd, uint64_t start, uint64_t end)
{
	struct hetmem_cmd_untrack cmd = {
		.size = sizeof(cmd), .start = start, .end = end,
	};

	return kb_ioctl(fd, HETMEM_IOC_UNTRACK, &cmd);
}

static int context_stats(int fd, struct hetmem_cmd_stats *stats)
{
	memset(stats, 0, sizeof(*stats));
	stats->size = sizeof(*stats);
	stats->flags = HETMEM_STATS_CONTEXT;
	return kb_ioctl(fd, HETMEM_IOC_STATS, stats);
}

int kb_notified(int fd, uint64_t *all)
{
	struct hetmem_cmd_stats stats;
	int i, ret = context_stats(fd, &stats);

	*all = 0;
	for (i = 0; i < HETMEM_CHANGE_NR; i++)
		*all += stats.changes[i];
	return ret;
}

int kb_notified_type(int fd, enum hetmem_change type, uint64_t *nr)
{
	struct hetmem_cmd_stats stats;
	int ret = context_stats(fd, &stats);

	*nr = stats.changes[type];
	return ret;
}

int kb_statistic(const char *name, uint64_t *value)
{
	char *path = xasprintf("/sys/class/misc/hetmem/stats/%s", name);
	char *line = read_line(NULL, path);
	int ret = line ? 0 : -errno;

	free(path);
	*value = line ? strtoull(line, NULL, 10) : 0;
	free(line);
	return ret;
}

char *kb_map(size_t size, bool huge)
{
	size_t room = size + HUGE_SIZE, at;
	uintptr_t start;
	char *p;

	p = mmap(NULL, room, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	start = ((uintptr_t)p + HUGE_SIZE - 1) & ~(HUGE_SIZE - 1);
	if (start != (uintptr_t)p)
		munmap(p, start - (uintptr_t)p);
	munmap((char *)start + size, (uintptr_t)p + room - start - size);
	p = (char *)start;
	madvise(p, size, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	for (at = 0; at < size; at += 4096)
		*(volatile uint64_t *)(p + at) = at + 1;
	return p;
}

void kb_unmap(char *p, size_t size)
{
	if (p)
		munmap(p, size);
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

double kb_median(uint64_t *values, size_t nr)
{
	qsort(values, nr, sizeof(*values), compare);
	return values[nr / 2];
}

double kb_p99(uint64_t *values, size_t nr)
{
	qsort(values, nr, sizeof(*values), compare);
	return values[nr - 1 - nr / 100];
}

static int help(void)
{
	size_t i;

	puts("Usage: hetmem bench kernel [OPTION]... [PART]...\n"
	     "What hetmem.ko costs, beside what the kernel has for the same.\n"
	     "\n"
	     "  --size MIB  memory to walk and to move (default 32)\n"
	     "  --quick     fewer passes: times are coarse\n"
	     "  --json      one JSON object\n"
	     "  --help      this text");
	fputs("\nParts:", stdout);
	for (i = 0; i < ARRAY_SIZE(parts); i++)
		printf(" %s", parts[i].name);
	puts(" (default: all)\n"
	     "In a virtual machine that counts instructions figures are instructions,\n"
	     "elsewhere nanoseconds: 'make bench-kernel' starts one with everything loaded.");
	return EXIT_OK;
}

static int parse_size(const char *text, size_t *size)
{
	uint64_t bytes;

	if (!parse_mib(text, MIN_MIB, MAX_MIB, &bytes))
		return usage_error("bench", "'%s' is not a size, %d to %d MiB",
				   text, MIN_MIB, MAX_MIB);
	*size = bytes & ~(HUGE_SIZE - 1);
	return EXIT_OK;
}

static const struct part *find_part(const char *name)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(parts); i++)
		if (!strcmp(name, parts[i].name))
			return &parts[i];
	return NULL;
}

static bool wanted(const struct part *part, int argc, char **argv)
{
	int i;

	for (i = 0; i < argc; i++)
		if (find_part(argv[i]) == part)
			return true;
	return !argc;
}

int bench_kernel(int argc, char **argv)
{
	struct kernel_bench kb = {
		.size = 32UL << 20,
		.page = sysconf(_SC_PAGESIZE),
	};
	bool json = false;
	int c, i, status;
	size_t part;

	while ((c = next_option("bench kernel", argc, argv)) != -1) {
		switch (c) {
		case 's':
			status = parse_size(optarg, &kb.size);
			if (status)
				return status;
			break;
		case 'q':
			kb.quick = true;
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
	for (i = optind; i < argc; i++)
		if (!find_part(argv[i]))
			return usage_error("bench", "kernel has no part '%s'",
					   argv[i]);
	kb.fd = kb_open();
	if (kb.fd < 0)
		return complain(EXIT_FAILED, "bench",
				"cannot open /dev/hetmem: %s ('hetmem doctor' says why)",
				strerror(-kb.fd));
	/* Whatever the start of the machine and of this process left to do. */
	sleep(1);
	kb.report = bench_report_new("kernel", json);
	for (part = 0; part < ARRAY_SIZE(parts); part++)
		if (wanted(&parts[part], argc - optind, argv + optind))
			parts[part].run(&kb);
	close(kb.fd);
	return bench_report_end(kb.report);
}
