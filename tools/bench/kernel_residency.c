/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem bench kernel: RESIDENCY beside PAGEMAP_SCAN, which answers what the
 * kernel can tell about the same pages: whether they are present or swapped
 * out, of a file, and huge. Both report everything, joined where neighbours
 * are alike, in one call.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernel.h"

#define PASSES	20
/* Interruptions are left out of a short pass more likely than out of a long. */
#define PASS_SIZE	(4UL << 20)
#define SPARSE_SIZE	(64UL << 30)
#define SPARSE_PAGES	100

/* linux/fs.h has these from 6.7 on. */
struct scan_region {
	uint64_t start;
	uint64_t end;
	uint64_t categories;
};

struct scan_arg {
	uint64_t size;
	uint64_t flags;
	uint64_t start;
	uint64_t end;
	uint64_t walk_end;
	uint64_t vec;
	uint64_t vec_len;
	uint64_t max_pages;
	uint64_t category_inverted;
	uint64_t category_mask;
	uint64_t category_anyof_mask;
	uint64_t return_mask;
};

#define SCAN_IOCTL	_IOWR('f', 16, struct scan_arg)
#define SCAN_FILE	(1 << 2)
#define SCAN_PRESENT	(1 << 3)
#define SCAN_SWAPPED	(1 << 4)
#define SCAN_HUGE	(1 << 6)

/* One memory, and what both say of it. */
struct look {
	struct kernel_bench *kb;
	char *p;
	size_t size;
	int pagemap;
	struct hetmem_run *runs;
	struct scan_region *regions;
	uint32_t nr;		/* entries that both have room for */
	uint32_t filled;	/* of the last call */
};

static int ask_us(struct look *look)
{
	struct hetmem_total totals[8];
	struct hetmem_cmd_residency cmd = {
		.size = sizeof(cmd),
		.start = (uintptr_t)look->p,
		.end = (uintptr_t)look->p + look->size,
		.runs = (uintptr_t)look->runs,
		.nr_runs = look->nr,
		.run_size = sizeof(*look->runs),
		.totals = (uintptr_t)totals,
		.nr_totals = ARRAY_SIZE(totals),
		.total_size = sizeof(totals[0]),
	};
	int ret = kb_ioctl(look->kb->fd, HETMEM_IOC_RESIDENCY, &cmd);

	look->filled = cmd.filled_runs;
	return !ret && cmd.walk_end != cmd.end ? -ENOSPC : ret;
}

/* In as many calls as it takes: it may stop early. */
static int scan(struct look *look, uint64_t categories)
{
	struct scan_arg arg = {
		.size = sizeof(arg),
		.end = (uintptr_t)look->p + look->size,
		.walk_end = (uintptr_t)look->p,
		.return_mask = categories,
	};
	int ret;

	for (look->filled = 0; arg.walk_end < arg.end; look->filled += ret) {
		arg.start = arg.walk_end;
		arg.vec = (uintptr_t)(look->regions + look->filled);
		arg.vec_len = look->nr - look->filled;
		ret = ioctl(look->pagemap, SCAN_IOCTL, &arg);
		if (ret < 0)
			return -errno;
		if (arg.walk_end == arg.start)
			return -ENOSPC;
	}
	return 0;
}

static int ask_kernel(struct look *look)
{
	return scan(look, SCAN_FILE | SCAN_PRESENT | SCAN_SWAPPED | SCAN_HUGE);
}

/* Without a look at the page itself. */
static int ask_kernel_less(struct look *look)
{
	return scan(look, SCAN_PRESENT | SCAN_SWAPPED);
}

/* Ticks per base page, of the best pass; negative errno. */
static double cost(struct look *look, int (*ask)(struct look *look))
{
	uint64_t best = UINT64_MAX, begin, ticks;
	int pass, ret;

	for (pass = 0; pass < PASSES; pass++) {
		begin = bench_ticks();
		ret = ask(look);
		ticks = bench_ticks() - begin;
		if (ret)
			return ret;
		if (ticks < best)
			best = ticks;
	}
	return best / (double)(look->size / look->kb->page);
}

struct question {
	const char *name;
	const char *what;
	int (*peer)(struct look *look);
	const char *peer_name;
	enum bench_goal goal;
	double limit;
};

static void compare(struct look *look, const struct question *q)
{
	const char *name = q->name;
	static char unit[32];
	struct bench_row row = {
		.name = name,
		.what = q->what,
		.unit = unit,
		.goal = q->goal,
		.limit = q->limit,
		.peer_name = q->peer_name,
	};

	snprintf(unit, sizeof(unit), "%s/4K page", bench_unit());
	row.ours = cost(look, ask_us);
	if (row.ours < 0) {
		bench_report_skip(look->kb->report, name, "RESIDENCY: %s",
				  strerror(-row.ours));
		return;
	}
	row.peer = cost(look, q->peer);
	if (row.peer < 0) {
		bench_report_skip(look->kb->report, name, "PAGEMAP_SCAN: %s",
				  row.peer == -ENOTTY ?
				  "this kernel has none" :
				  strerror(-row.peer));
		row.peer_name = NULL;
		row.goal = BENCH_GOAL_NONE;
	}
	bench_report_add(look->kb->report, &row);
}

/* Decodes of one call; other processes may add some: the fewest. */
static void count_decodes(struct look *look)
{
	uint64_t before, after, fewest = UINT64_MAX;
	struct bench_row row = {
		.name = "residency.thp.decodes",
		.what = "decodes, huge pages",
		.unit = "count",
		.peer = look->size / HUGE_SIZE,
		.peer_name = "huge pages",
		.goal = BENCH_GOAL_EXACTLY,
		.limit = 1,
	};
	int pass, ret;

	for (pass = 0; pass < PASSES; pass++) {
		ret = kb_statistic("decodes", &before);
		if (!ret)
			ret = ask_us(look);
		if (!ret)
			ret = kb_statistic("decodes", &after);
		if (ret) {
			bench_report_skip(look->kb->report, row.name, "%s",
					  strerror(-ret));
			return;
		}
		if (after - before < fewest)
			fewest = after - before;
	}
	row.ours = fewest;
	bench_report_add(look->kb->report, &row);
}

static bool is_huge(struct look *look)
{
	return !ask_us(look) && look->filled == 1 &&
	       (size_t)HUGE_SIZE == look->kb->page << look->runs[0].order;
}

static const struct question small = {
	"residency.4k", "residency, 4K pages", ask_kernel, "PAGEMAP_SCAN",
	BENCH_GOAL_AT_MOST, 1,
};

static const struct question small_less = {
	"residency.4k.less", "residency, 4K pages", ask_kernel_less,
	"PAGEMAP_SCAN, present or swapped", BENCH_GOAL_NONE, 0,
};

static const struct question every_other = {
	"residency.4k.every-other", "residency, every other 4K page",
	ask_kernel, "PAGEMAP_SCAN", BENCH_GOAL_NONE, 0,
};

static const struct question huge = {
	"residency.thp", "residency, huge pages", ask_kernel, "PAGEMAP_SCAN",
	BENCH_GOAL_AT_MOST, 8,
};

static const struct question sparse = {
	"residency.sparse", "residency, 100 pages in 64 GiB", ask_kernel, "PAGEMAP_SCAN",
	BENCH_GOAL_AT_MOST, 3,
};

static void compare_sparse(struct look *look)
{
	size_t i;

	look->size = SPARSE_SIZE;
	look->p = mmap(NULL, look->size, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (look->p == MAP_FAILED) {
		bench_report_skip(look->kb->report, sparse.name, "64 GiB of addresses: %s",
				  strerror(errno));
		return;
	}
	madvise(look->p, look->size, MADV_NOHUGEPAGE);
	for (i = 0; i < SPARSE_PAGES; i++)
		look->p[i * (look->size / SPARSE_PAGES)] = 1;
	compare(look, &sparse);
	munmap(look->p, look->size);
}

void bench_kernel_residency(struct kernel_bench *kb)
{
	struct look look = {
		.kb = kb,
		.size = kb->size < PASS_SIZE ? kb->size : PASS_SIZE,
	};
	size_t at;

	/* More than there can be: a full array ends the walk. */
	look.nr = 2 * (look.size / kb->page);
	look.pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	look.runs = xcalloc(look.nr, sizeof(*look.runs));
	look.regions = xcalloc(look.nr, sizeof(*look.regions));
	/* Not to be faulted in while time is taken. */
	memset(look.runs, 0, look.nr * sizeof(*look.runs));
	memset(look.regions, 0, look.nr * sizeof(*look.regions));

	look.p = kb_map(look.size, false);
	if (look.p) {
		compare(&look, &small);
		compare(&look, &small_less);
		for (at = 0; at < look.size; at += 2 * kb->page)
			madvise(look.p + at, kb->page, MADV_DONTNEED);
		compare(&look, &every_other);
	}
	kb_unmap(look.p, look.size);

	look.size = kb->size;
	look.p = kb_map(look.size, true);
	if (look.p && is_huge(&look)) {
		compare(&look, &huge);
		count_decodes(&look);
	} else {
		bench_report_skip(kb->report, "residency.thp",
				  "there are no transparent huge pages for %s",
				  size_text(look.size));
	}
	kb_unmap(look.p, look.size);
	compare_sparse(&look);
	close(look.pagemap);
	free(look.runs);
	free(look.regions);
}
