/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem bench kernel: a look at memory while other threads of the process are
 * busy changing theirs. Two have a CPU's full share; eight are idle in the
 * scheduler's sense, so they are stopped in the middle of an invalidation for
 * long. None of them touches the memory that is looked at.
 */
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "kernel.h"

#define LOOKS		1000
#define LOOKS_QUICK	100
#define IDLE		8
#define BUSY		2
/* What a look may cost with them, without being 1. */
#define MOST		3

struct changer {
	pthread_t thread;
	bool idle;
	bool *stop;
};

static void *change(void *arg)
{
	struct changer *changer = arg;
	const struct sched_param none = { 0 };
	char *p = kb_map(HUGE_SIZE, false);

	if (changer->idle)
		pthread_setschedparam(pthread_self(), SCHED_IDLE, &none);
	while (p && !__atomic_load_n(changer->stop, __ATOMIC_RELAXED)) {
		madvise(p, HUGE_SIZE, MADV_FREE);
		*(volatile char *)p = 1;
	}
	kb_unmap(p, HUGE_SIZE);
	return NULL;
}

static uint64_t cpu_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return now.tv_sec * 1000000000ULL + now.tv_nsec;
}

/* Looks at 2 MiB: the CPU time of each; fewest pages that one knew in *known. */
static int look(struct kernel_bench *kb, char *p, uint64_t *ns, int nr,
		uint64_t *known)
{
	struct hetmem_total totals[8];
	struct hetmem_cmd_residency cmd;
	uint64_t begin, pages;
	uint32_t t;
	int i, ret;

	for (i = 0; i < nr; i++) {
		cmd = (struct hetmem_cmd_residency){
			.size = sizeof(cmd),
			.start = (uintptr_t)p,
			.end = (uintptr_t)p + HUGE_SIZE,
			.totals = (uintptr_t)totals,
			.nr_totals = ARRAY_SIZE(totals),
			.total_size = sizeof(totals[0]),
		};
		begin = cpu_ns();
		ret = kb_ioctl(kb->fd, HETMEM_IOC_RESIDENCY, &cmd);
		ns[i] = cpu_ns() - begin;
		if (ret)
			return ret;
		for (pages = t = 0; t < cmd.filled_totals; t++)
			if (HETMEM_LOC_KIND(totals[t].location) == HETMEM_HOST)
				pages += totals[t].pages;
		if (pages < *known)
			*known = pages;
	}
	return 0;
}

/* The same beside the changers. */
static int look_beside(struct kernel_bench *kb, char *p, uint64_t *ns, int nr,
		       uint64_t *known)
{
	struct changer changers[IDLE + BUSY];
	bool stop = false;
	int i, started, ret = 0;

	for (started = 0; started < IDLE + BUSY && !ret; started += !ret) {
		changers[started].idle = started < IDLE;
		changers[started].stop = &stop;
		ret = -pthread_create(&changers[started].thread, NULL, change,
				      &changers[started]);
	}
	if (!ret)
		ret = look(kb, p, ns, nr, known);
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	for (i = 0; i < started; i++)
		pthread_join(changers[i].thread, NULL);
	return ret;
}

void bench_kernel_busy(struct kernel_bench *kb)
{
	const int nr = kb->quick ? LOOKS_QUICK : LOOKS;
	uint64_t *ns = xcalloc(2 * nr, sizeof(*ns));
	uint64_t known = UINT64_MAX;
	char *p = kb_map(HUGE_SIZE, false);
	struct bench_row cost = {
		.name = "busy.look",
		.what = "a look at 2 MiB beside 10 busy threads",
		.unit = "ns of CPU time",
		.peer_name = "without them",
		.goal = BENCH_GOAL_AT_MOST,
		.limit = MOST,
	};
	struct bench_row pages = {
		.name = "busy.known",
		.what = "pages known in each of these looks",
		.unit = "count",
		.peer = HUGE_SIZE / kb->page,
		.peer_name = "pages",
		.goal = BENCH_GOAL_EXACTLY,
		.limit = 1,
	};
	int ret = p ? look(kb, p, ns, nr, &known) : -ENOMEM;

	if (!ret)
		ret = look_beside(kb, p, ns + nr, nr, &known);
	if (ret) {
		bench_report_skip(kb->report, "busy", "%s", strerror(-ret));
	} else {
		cost.ours = kb_median(ns + nr, nr);
		cost.peer = kb_median(ns, nr);
		bench_report_add(kb->report, &cost);
		pages.ours = known;
		bench_report_add(kb->report, &pages);
	}
	kb_unmap(p, HUGE_SIZE);
	free(ns);
}
