/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem bench kernel: what an open context costs its process, and tracking with none,
 * few and many ranges. One notification is one callback whatever the number
 * of ranges, and munmap() costs what it costs with a hundred.
 */
#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernel.h"

#define FEW		100
#define MANY		100000
#define ROUNDS		100
#define PASSES		9
/* What munmap() may cost with many, with few being 1. */
#define MOST		1.1

/*
 * Ranges of a page each, every other page of [start, start + 2 * nr pages):
 * addresses without a mapping, which tracking does not look at.
 */
struct ranges {
	char *start;
	size_t nr;
};

static int ranges_track(struct kernel_bench *kb, struct ranges *ranges,
			size_t nr)
{
	int ret = 0;

	for (; ranges->nr < nr && !ret; ranges->nr++) {
		uint64_t at = (uintptr_t)ranges->start +
			      2 * ranges->nr * kb->page;

		ret = kb_track(kb->fd, at, at + kb->page);
	}
	return ret;
}

static void ranges_untrack(struct kernel_bench *kb, struct ranges *ranges)
{
	while (ranges->nr) {
		uint64_t at = (uintptr_t)ranges->start +
			      2 * --ranges->nr * kb->page;

		kb_untrack(kb->fd, at, at + kb->page);
	}
}

/* Callbacks that so many notifications cause, a tenth of them of all ranges. */
static int count_callbacks(struct kernel_bench *kb,
			   const struct ranges *ranges, double *callbacks)
{
	uint64_t before, after;
	char *p = kb_map(HUGE_SIZE, false);
	int i, ret = p ? 0 : -ENOMEM;

	if (!ret)
		ret = kb_track(kb->fd, (uintptr_t)p, (uintptr_t)p + HUGE_SIZE);
	if (!ret)
		ret = kb_notified(kb->fd, &before);
	for (i = 0; i < ROUNDS && !ret; i++)
		if (i % 10 ? madvise(p + i * kb->page, kb->page, MADV_DONTNEED) :
			     madvise(ranges->start, 2 * ranges->nr * kb->page,
				     MADV_DONTNEED))
			ret = -errno;
	if (!ret)
		ret = kb_notified(kb->fd, &after);
	if (!ret)
		*callbacks = after - before;
	if (p)
		kb_untrack(kb->fd, (uintptr_t)p, (uintptr_t)p + HUGE_SIZE);
	kb_unmap(p, HUGE_SIZE);
	return ret;
}

/* The operations get a page at @p that is there. They return 0, or an errno. */
static int do_madvise(char *p, size_t page)
{
	return madvise(p, page, MADV_FREE) ? -errno : 0;
}

static int do_munmap(char *p, size_t page)
{
	return munmap(p, page) ? -errno : 0;
}

/* The page is absent, and a read maps the page of zeroes. */
static int do_fault(char *p, size_t page)
{
	(void)page;
	return *(volatile char *)p;
}

static int do_fork(char *p, size_t page)
{
	const pid_t pid = fork();

	(void)p;
	(void)page;
	if (!pid)
		_exit(0);
	return pid < 0 ? -errno : 0;
}

/* Operations of every process that change mappings or page tables. */
static const struct operation {
	const char *name;
	const char *what;
	int (*run)(char *p, size_t page);
} operations[] = {
	{ "track.madvise", "madvise of a page beside an open context", do_madvise },
	{ "track.unmap", "munmap of a page beside an open context", do_munmap },
	{ "track.fault", "a fault beside an open context", do_fault },
	{ "track.fork", "fork beside an open context", do_fork },
};

/* Ticks of the best round; or an errno. */
static int64_t cost_op(const struct kernel_bench *kb, const struct operation *op)
{
	char *at, *p = kb_map(HUGE_SIZE, false);
	int64_t n, best = p ? INT64_MAX : -ENOMEM;
	uint64_t begin;
	int i, ret;

	for (i = 0; i < ROUNDS && best > 0; i++) {
		/* An unmapped page is gone: each round takes the next one. */
		at = op->run == do_munmap ? p + i * kb->page : p;
		*(volatile char *)at = 1;
		if (op->run == do_fault)
			madvise(at, kb->page, MADV_DONTNEED);
		begin = bench_ticks();
		ret = op->run(at, kb->page);
		n = ret < 0 ? ret : (int64_t)(bench_ticks() - begin);
		while (waitpid(-1, NULL, 0) > 0)
			;
		if (n < best)
			best = n;
	}
	kb_unmap(p, HUGE_SIZE);
	return best;
}

/* The same in a process that has no context: a child's address space is its own. */
static int64_t cost_without(const struct kernel_bench *kb, const struct operation *op)
{
	int64_t *cost = mmap(NULL, sizeof(*cost), PROT_READ | PROT_WRITE,
			     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int64_t ticks = -ECHILD;
	int status;
	pid_t pid;

	if (cost == MAP_FAILED)
		return -errno;
	pid = fork();
	if (!pid) {
		*cost = cost_op(kb, op);
		_exit(0);
	}
	if (pid > 0 && waitpid(pid, &status, 0) == pid && !status)
		ticks = *cost;
	munmap(cost, sizeof(*cost));
	return ticks;
}

static int beside_context(struct kernel_bench *kb, const struct operation *op)
{
	int64_t with = cost_op(kb, op), without = cost_without(kb, op);
	struct bench_row row = {
		.name = op->name,
		.what = op->what,
		.unit = bench_unit(),
		.ours = with,
		.peer = without,
		.peer_name = "without one",
	};

	if (with < 0 || without < 0)
		return with < 0 ? with : without;
	bench_report_add(kb->report, &row);
	return 0;
}

/* Ticks of munmap() of one range's memory, of the best pass. */
static int cost_munmap(struct kernel_bench *kb, size_t size, double *ticks)
{
	uint64_t best = UINT64_MAX, begin, n;
	int passes = kb->quick ? 1 : PASSES;
	int pass, ret = 0;

	for (pass = 0; pass < passes && !ret; pass++) {
		char *p = kb_map(size, false);

		if (!p)
			return -ENOMEM;
		ret = kb_track(kb->fd, (uintptr_t)p, (uintptr_t)p + size);
		begin = bench_ticks();
		kb_unmap(p, size);
		n = bench_ticks() - begin;
		if (n < best)
			best = n;
		kb_untrack(kb->fd, (uintptr_t)p, (uintptr_t)p + size);
	}
	*ticks = best;
	return ret;
}

/*
 * Ticks of munmap() of one piece of memory that is tracked as @nr ranges,
 * which the one notification touches all. Memory that was never written costs
 * munmap() nothing, so what is left is the ranges.
 */
static int cost_munmap_all(struct kernel_bench *kb, size_t nr, bool written,
			   double *ticks)
{
	size_t size = (MANY * kb->page + HUGE_SIZE - 1) & ~(HUGE_SIZE - 1);
	size_t i, step = MANY / nr * kb->page;
	uint64_t begin;
	int ret = 0;
	char *p;

	p = written ? kb_map(size, false) :
		mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS |
		     MAP_NORESERVE, -1, 0);
	if (!p || p == MAP_FAILED)
		return -ENOMEM;

	for (i = 0; i < nr && !ret; i++) {
		uint64_t at = (uintptr_t)p + i * step;

		ret = kb_track(kb->fd, at, at + step);
	}
	begin = bench_ticks();
	kb_unmap(p, size);
	*ticks = bench_ticks() - begin;
	while (i--)
		kb_untrack(kb->fd, (uintptr_t)p + i * step,
			   (uintptr_t)p + (i + 1) * step);
	return ret;
}

static void add(struct kernel_bench *kb, const char *name, const char *what,
		double many, double few)
{
	struct bench_row row = {
		.name = name,
		.what = what,
		.unit = bench_unit(),
		.ours = many,
		.peer = few,
		.peer_name = "with 100 ranges",
		.goal = BENCH_GOAL_AT_MOST,
		.limit = MOST,
	};

	bench_report_add(kb->report, &row);
}

static int munmaps(struct kernel_bench *kb, struct ranges *ranges)
{
	double few[2], many[2], callbacks;
	struct bench_row row = {
		.name = "track.callbacks",
		.what = "callbacks, 100,000 ranges",
		.unit = "count",
		.peer = ROUNDS,
		.peer_name = "notifications",
		.goal = BENCH_GOAL_EXACTLY,
		.limit = 1,
	};
	int ret;

	ret = ranges_track(kb, ranges, FEW);
	if (!ret)
		ret = cost_munmap(kb, kb->page, &few[0]);
	if (!ret)
		ret = cost_munmap(kb, HUGE_SIZE, &few[1]);
	if (!ret)
		ret = ranges_track(kb, ranges, MANY);
	if (!ret)
		ret = count_callbacks(kb, ranges, &callbacks);
	if (!ret)
		ret = cost_munmap(kb, kb->page, &many[0]);
	if (!ret)
		ret = cost_munmap(kb, HUGE_SIZE, &many[1]);
	if (ret)
		return ret;
	row.ours = callbacks;
	bench_report_add(kb->report, &row);
	add(kb, "track.munmap.page", "munmap of a page, 100,000 ranges",
	    many[0], few[0]);
	add(kb, "track.munmap.2m", "munmap of 2 MiB, 100,000 ranges", many[1],
	    few[1]);
	return 0;
}

static int munmap_all(struct kernel_bench *kb)
{
	struct bench_row row = {
		.name = "track.range",
		.what = "a range that munmap touches",
		.unit = bench_unit(),
	};
	double few, many;
	int ret;

	ret = cost_munmap_all(kb, MANY, false, &many);
	if (!ret)
		ret = cost_munmap_all(kb, 1, false, &few);
	if (ret)
		return ret;
	row.ours = bench_without(many, few) / (MANY - 1);
	bench_report_add(kb->report, &row);

	if (available_memory() < 2 * MANY * kb->page) {
		bench_report_skip(kb->report, "track.munmap.all",
				  "it takes %s of memory",
				  size_text(2 * MANY * kb->page));
		return 0;
	}
	/* The first pass pays for page tables and the like. */
	ret = cost_munmap_all(kb, FEW, true, &few);
	if (!ret && !kb->quick)
		ret = cost_munmap_all(kb, FEW, true, &few);
	if (!ret)
		ret = cost_munmap_all(kb, MANY, true, &many);
	if (ret)
		return ret;
	add(kb, "track.munmap.all", "munmap of all 100,000 ranges at once",
	    many, few);
	return 0;
}

void bench_kernel_track(struct kernel_bench *kb)
{
	struct ranges ranges = { 0 };
	size_t room = 2 * MANY * kb->page;
	size_t i;
	int ret;

	/* Address space only. */
	ranges.start = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS |
			    MAP_NORESERVE, -1, 0);
	ret = ranges.start == MAP_FAILED ? -errno : 0;
	for (i = 0; i < sizeof(operations) / sizeof(operations[0]) && !ret; i++)
		ret = beside_context(kb, &operations[i]);
	if (!ret)
		ret = munmaps(kb, &ranges);
	ranges_untrack(kb, &ranges);
	if (ranges.start != MAP_FAILED)
		munmap(ranges.start, room);
	if (!ret)
		ret = munmap_all(kb);
	if (ret)
		bench_report_skip(kb->report, "track", "%s", strerror(-ret));
}
