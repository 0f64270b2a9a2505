/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem bench pullback: bringing memory back from a device, by MIGRATE, by
 * the CPU's faults on each page, and by MADV_POPULATE_READ, which faults them
 * all in one call.
 *
 * Each time memory is made anew, sent to the device, brought back and
 * verified; only bringing it back is measured. The three take turns, forth and
 * back, and a figure is the median.
 */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench.h"
#include "driver/hetmem.h"
#include "options.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ	22
#endif

#define HUGE_SIZE	((size_t)2 << 20)
#define MIN_MIB		2
#define MAX_MIB		4096
#define TURNS		3
#define NR_TIMES	(2 * TURNS)

/* Of what is sent a page in this many may stay behind, for a moment's reason. */
#define MAY_STAY	64

struct pull {
	struct hetmem *hm;
	int device;
	size_t page;
	size_t size;
	char *p;
	unsigned int order;	/* of the smallest page last seen on a device */
	struct bench_report *report;
};

static int by_migrate(struct pull *b)
{
	struct hetmem_moved moved = { .size = sizeof(moved) };

	return hetmem_prefetch(b->hm, b->p, b->size,
			       HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY), NULL,
			       &moved);
}

static int by_faults(struct pull *b)
{
	const volatile char *p = b->p;
	size_t at;

	for (at = 0; at < b->size; at += b->page)
		(void)p[at];
	return 0;
}

static int by_populate(struct pull *b)
{
	return madvise(b->p, b->size, MADV_POPULATE_READ) ? -errno : 0;
}

static const struct method {
	const char *name;
	const char *what;
	int (*run)(struct pull *b);
} methods[] = {
	{ "migrate", "MIGRATE", by_migrate },
	{ "faults", "the CPU reads each page", by_faults },
	{ "populate", "MADV_POPULATE_READ", by_populate },
};

#define NR_METHODS	ARRAY_SIZE(methods)

/* What there is to bring back. */
static const struct scene {
	const char *name;
	const char *what;
	unsigned int one_in;	/* pages on the device: all, one in N, 0: none */
	bool huge;
	bool half;		/* only the first half was ever touched */
} scenes[] = {
	{ "all", "all pages on the device", 1, false, false },
	{ "huge", "huge pages, all on the device", 1, true, false },
	{ "sixteenth", "one page in 16 there, the others on the host", 16, false,
	  false },
	{ "half", "half there, the other half never touched", 1, false, true },
	{ "none", "all on the host, nothing to do", 0, false, false },
};

static size_t used(const struct pull *b, const struct scene *s)
{
	return s->half ? b->size / 2 : b->size;
}

static char value(size_t page)
{
	return page % 251 + 1;
}

/* Memory as if it had never been on a device. */
static void refill(struct pull *b, const struct scene *s)
{
	size_t at, nr = 0;

	madvise(b->p, b->size, MADV_DONTNEED);
	madvise(b->p, b->size, s->huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
	for (at = 0; at < used(b, s); at += b->page)
		memset(b->p + at, value(nr++), b->page);
}

static int send_range(struct pull *b, size_t at, size_t size)
{
	struct hetmem_moved moved = { .size = sizeof(moved) };

	return hetmem_prefetch(b->hm, b->p + at, size,
			       HETMEM_LOC(HETMEM_DEVICE, b->device), NULL,
			       &moved);
}

static int to_device(struct pull *b, const struct scene *s)
{
	const struct hm_driver *driver = hetmem_driver_table(b->hm);
	struct hm_context saved;
	CUresult result;
	size_t at;
	int ret = 0;

	if (!s->one_in)
		return 0;
	if (s->one_in == 1)
		ret = send_range(b, 0, used(b, s));
	for (at = 0; s->one_in > 1 && !ret && at < used(b, s);
	     at += s->one_in * b->page)
		ret = send_range(b, at, b->page);
	if (ret)
		return ret;
	/* Where the driver does it, it does it in its own time. */
	ret = hm_context_enter(b->hm, b->device, &saved);
	if (ret)
		return ret;
	result = driver->cuCtxSynchronize();
	hm_context_leave(b->hm, &saved);
	return result ? hm_driver_error(driver, "cuCtxSynchronize", result) : 0;
}

static ssize_t on_device(struct pull *b)
{
	uintptr_t at = (uintptr_t)b->p, end = at + b->size, next;
	struct hetmem_run runs[256];
	ssize_t n, i, pages = 0;

	b->order = UINT_MAX;
	for (; at < end; at = next) {
		n = hetmem_residency(b->hm, (void *)at, end - at, runs, NULL,
				     ARRAY_SIZE(runs), &next);
		if (n < 0 || next <= at)
			return n < 0 ? n : -EIO;
		for (i = 0; i < n; i++) {
			unsigned int kind = HETMEM_LOC_KIND(runs[i].location);

			if (kind != HETMEM_DEVICE && kind != HETMEM_FOREIGN)
				continue;
			pages += (runs[i].end - runs[i].start) / b->page;
			if (runs[i].order < b->order)
				b->order = runs[i].order;
		}
	}
	return pages;
}

static bool is_right(struct pull *b, const struct scene *s)
{
	size_t at, k, nr = 0;

	for (at = 0; at < used(b, s); at += b->page, nr++)
		for (k = 0; k < b->page; k += b->page / 4)
			if (b->p[at + k] != value(nr))
				return false;
	return true;
}

/* One time; 0, or it was skipped and that was said. */
static int measure(struct pull *b, const struct scene *s,
		   const struct method *m, double *ticks)
{
	const ssize_t all = s->one_in ? used(b, s) / b->page / s->one_in : 0;
	uint64_t begin;
	ssize_t there;
	int ret;

	refill(b, s);
	ret = to_device(b, s);
	there = ret ? ret : on_device(b);
	if (there < 0) {
		bench_report_skip(b->report, s->name, "to the device: %s",
				  hetmem_last_error());
		return -1;
	}
	if (there > all || there < all - all / MAY_STAY) {
		bench_report_skip(b->report, s->name,
				  "%zd pages of %zd went to the device", there,
				  all);
		return -1;
	}
	if (s->huge && b->page << b->order < HUGE_SIZE) {
		bench_report_skip(b->report, s->name,
				  "the device has them as pages of %zu KiB (hetmem_emu.ko: huge=Y)",
				  (b->page << b->order) >> 10);
		return -1;
	}
	begin = bench_ticks();
	ret = m->run(b);
	*ticks = bench_ticks() - begin;
	there = ret ? ret : on_device(b);
	if (there || !is_right(b, s)) {
		bench_report_skip(b->report, s->name, "%s: %s", m->what,
				  there < 0 ? strerror(-there) : there ?
				  "pages are on the device still" :
				  "wrong contents");
		return -1;
	}
	return 0;
}

static int by_value(const void *a, const void *b)
{
	const double l = *(const double *)a, r = *(const double *)b;

	return l < r ? -1 : l > r;
}

static void run_scene(struct pull *b, const struct scene *s)
{
	static const char *const unit[] = {
		"instructions a page", "ns a page",
	};
	static char names[ARRAY_SIZE(scenes)][NR_METHODS][32];
	double times[NR_METHODS][NR_TIMES], median[NR_METHODS];
	const double pages = b->size / b->page;
	size_t turn, m;

	for (turn = 0; turn < NR_TIMES; turn++)
		for (m = 0; m < NR_METHODS; m++) {
			size_t which = turn & 1 ? NR_METHODS - 1 - m : m;

			if (measure(b, s, &methods[which], &times[which][turn]))
				return;
		}
	for (m = 0; m < NR_METHODS; m++) {
		qsort(times[m], NR_TIMES, sizeof(times[m][0]), by_value);
		median[m] = (times[m][TURNS - 1] + times[m][TURNS]) / 2 / pages;
	}
	for (m = 1; m < NR_METHODS; m++) {
		char *name = names[s - scenes][m];
		struct bench_row row = {
			.name = name,
			.what = s->what,
			.unit = unit[strcmp(bench_unit(), "instructions") != 0],
			.ours = median[0],
			.peer = median[m],
			.peer_name = methods[m].what,
		};

		snprintf(name, sizeof(names[0][0]), "%s.%s", s->name,
			 methods[m].name);
		bench_report_add(b->report, &row);
	}
}

static int help(void)
{
	puts("Usage: hetmem bench pullback [OPTION]...\n"
	     "Memory comes back from a device: by MIGRATE of hetmem.ko, by the CPU's faults,\n"
	     "and by MADV_POPULATE_READ.\n\n"
	     "  --size MIB   of memory (default 16)\n"
	     "  --device N   the driver's device (0)\n"
	     "  --json       one JSON object\n"
	     "  --help       this text\n\n"
	     "In a virtual machine that counts instructions figures are instructions,\n"
	     "elsewhere nanoseconds: 'make bench-pullback' starts one with everything loaded.");
	return EXIT_OK;
}

/* 0, an exit status, or -1 for help. */
static int parse(struct pull *b, bool *json, int argc, char **argv)
{
	uint64_t bytes;
	long n;
	int c;

	while ((c = next_option("bench pullback", argc, argv)) != -1) {
		switch (c) {
		case 's':
			if (!parse_mib(optarg, MIN_MIB, MAX_MIB, &bytes))
				return usage_error("bench", "'%s' is not a size, %d to %d MiB",
						   optarg, MIN_MIB, MAX_MIB);
			b->size = bytes & ~(HUGE_SIZE - 1);
			break;
		case 'd':
			if (!parse_number(optarg, 0, HM_MAX_DEVICES - 1, &n))
				return usage_error("bench", "'%s' is not the number of a device",
						   optarg);
			b->device = n;
			break;
		case 'j':
			*json = true;
			break;
		case 'h':
			return -1;
		default:
			return option_error("bench", c, argv);
		}
	}
	if (optind < argc)
		return usage_error("bench", "'%s' is not an option",
				   argv[optind]);
	return 0;
}

static int prepare(struct pull *b)
{
	struct hetmem_feature feature;
	int ret = hetmem_open(&b->hm, NULL);

	if (ret)
		return complain(EXIT_FAILED, "bench", "%s",
				hetmem_last_error());
	if (!hm_kmod_there(hetmem_kmod(b->hm)))
		hetmem_feature(b->hm, HETMEM_FEATURE_MODULE, &feature);
	else
		hetmem_feature(b->hm, HETMEM_FEATURE_MIGRATION, &feature);
	if (!feature.available)
		return complain(EXIT_FAILED, "bench",
				"%s; type 'hetmem doctor'", feature.reason);
	if (b->device >= hetmem_device_count(b->hm))
		return usage_error("bench", "there is no device %d, only %d of them",
				   b->device, hetmem_device_count(b->hm));
	b->p = mmap(NULL, b->size + HUGE_SIZE, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (b->p == MAP_FAILED)
		return complain(EXIT_FAILED, "bench", "no %s of memory",
				size_text(b->size));
	b->p = (char *)(((uintptr_t)b->p + HUGE_SIZE - 1) & -HUGE_SIZE);
	return 0;
}

int bench_pullback(int argc, char **argv)
{
	struct pull b = {
		.page = sysconf(_SC_PAGESIZE),
		.size = (size_t)16 << 20,
	};
	bool json = false;
	size_t i;
	int ret;

	ret = parse(&b, &json, argc, argv);
	if (ret)
		return ret < 0 ? help() : ret;
	ret = prepare(&b);
	if (!ret) {
		/* Whatever the machine and this process have left to do. */
		sleep(1);
		b.report = bench_report_new("pullback", json);
		for (i = 0; i < ARRAY_SIZE(scenes); i++)
			run_scene(&b, &scenes[i]);
		ret = bench_report_end(b.report);
	}
	hetmem_close(b.hm);
	return ret;
}
