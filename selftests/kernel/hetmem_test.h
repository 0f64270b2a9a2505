/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the tests of hetmem.ko share: its commands as plain functions, views
 * of residency that check themselves, and memory filled with a pattern that
 * no page of it shares with another.
 *
 * The commands go straight to ioctl(2); no library lies between a test and
 * the kernel. Functions return 0 or a negative errno unless they say
 * otherwise. A test that must be skipped says "kernel lacks ..." first:
 * whoever runs it takes any other reason for a failure.
 */
#ifndef HETMEM_TEST_H
#define HETMEM_TEST_H

#include "kselftest_harness.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <linux/hetmem.h>

#define DEV_HETMEM	"/dev/hetmem"
#define KiB		1024UL
#define MiB		(1024 * KiB)
#define HUGE_SIZE	(2 * MiB)
#define ANY_HOST	HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY)
#define NOBODY		65534

/* Outside of every user address space, 47 or 56 bits. */
#define KERNEL_ADDR	0xffff888000000000UL

/* In a forked child: asserting there would run the fixture's teardown. */
#define CHILD_CHECK(cond)						\
	do {								\
		if (!(cond)) {						\
			fprintf(stderr, "# %s:%d: child: not true: %s (errno %d)\n", \
				__FILE__, __LINE__, #cond, errno);	\
			_exit(1);					\
		}							\
	} while (0)

#define HELPER static inline __attribute__((unused))

HELPER size_t page_size(void)
{
	return sysconf(_SC_PAGESIZE);
}

/* A kernel that checks itself is some thirty times slower. */
HELPER bool slow_kernel(void)
{
	return getenv("HETMEM_TEST_SLOW") ||
	       access("/sys/kernel/debug/kmemleak", F_OK) == 0;
}

/* Bytes that a test moves about; never below 1 MiB. */
HELPER size_t test_size(void)
{
	return slow_kernel() ? 1 * MiB : 4 * MiB;
}

HELPER int test_rounds(int rounds)
{
	return slow_kernel() ? (rounds + 7) / 8 : rounds;
}

HELPER int hm_open_flags(int flags)
{
	int fd;

	do {
		fd = open(DEV_HETMEM, O_RDWR | flags);
	} while (fd < 0 && errno == EINTR);
	return fd < 0 ? -errno : fd;
}

HELPER int hm_open(void)
{
	return hm_open_flags(O_CLOEXEC);
}

HELPER int hm_ioctl(int fd, unsigned long nr, void *cmd)
{
	return ioctl(fd, nr, cmd) < 0 ? -errno : 0;
}

HELPER int hm_info(int fd, struct hetmem_cmd_info *info)
{
	memset(info, 0, sizeof(*info));
	info->size = sizeof(*info);
	return hm_ioctl(fd, HETMEM_IOC_INFO, info);
}

HELPER int hm_track(int fd, const void *p, size_t size)
{
	struct hetmem_cmd_track cmd = {
		.size = sizeof(cmd),
		.start = (uintptr_t)p,
		.end = (uintptr_t)p + size,
	};

	return hm_ioctl(fd, HETMEM_IOC_TRACK, &cmd);
}

HELPER int hm_untrack(int fd, const void *p, size_t size)
{
	struct hetmem_cmd_untrack cmd = {
		.size = sizeof(cmd),
		.start = (uintptr_t)p,
		.end = (uintptr_t)p + size,
	};

	return hm_ioctl(fd, HETMEM_IOC_UNTRACK, &cmd);
}

HELPER int hm_stats(int fd, const void *p, struct hetmem_cmd_stats *st)
{
	memset(st, 0, sizeof(*st));
	st->size = sizeof(*st);
	st->start = (uintptr_t)p;
	return hm_ioctl(fd, HETMEM_IOC_STATS, st);
}

HELPER int hm_stats_context(int fd, struct hetmem_cmd_stats *st)
{
	memset(st, 0, sizeof(*st));
	st->size = sizeof(*st);
	st->flags = HETMEM_STATS_CONTEXT;
	return hm_ioctl(fd, HETMEM_IOC_STATS, st);
}

/* Notifications of one type that a tracked range has seen, or an errno. */
HELPER long hm_notified(int fd, const void *p, enum hetmem_notification type)
{
	struct hetmem_cmd_stats st;
	int ret = hm_stats(fd, p, &st);

	return ret ? ret : (long)st.notified[type];
}

HELPER int hm_residency(int fd, struct hetmem_cmd_residency *cmd)
{
	cmd->size = sizeof(*cmd);
	return hm_ioctl(fd, HETMEM_IOC_RESIDENCY, cmd);
}

/*
 * One MIGRATE. What comes back is checked for what always holds: the
 * counters add up to what was walked, and why_addr lies in it.
 */
HELPER int hm_migrate_flags(int fd, const void *p, size_t size, uint32_t loc,
			    uint32_t flags, struct hetmem_cmd_migrate *cmd)
{
	uint64_t pages;
	int ret;

	memset(cmd, 0, sizeof(*cmd));
	cmd->size = sizeof(*cmd);
	cmd->flags = flags;
	cmd->start = (uintptr_t)p;
	cmd->end = (uintptr_t)p + size;
	cmd->location = loc;
	ret = hm_ioctl(fd, HETMEM_IOC_MIGRATE, cmd);
	if (ret)
		return ret;
	pages = (cmd->walk_end - cmd->start) / page_size();
	if (cmd->walk_end != cmd->end ||
	    cmd->moved + cmd->already + cmd->not_moved != pages ||
	    !cmd->not_moved != !cmd->why ||
	    (cmd->not_moved && (cmd->why_addr < cmd->start ||
				cmd->why_addr >= cmd->end))) {
		fprintf(stderr,
			"# MIGRATE [%llx, %llx) to %llx: %llu moved, %llu already, %llu not, why %x at %llx\n",
			cmd->start, cmd->end, cmd->walk_end, cmd->moved,
			cmd->already, cmd->not_moved, cmd->why, cmd->why_addr);
		return -EBADMSG;
	}
	return 0;
}

HELPER int hm_migrate(int fd, const void *p, size_t size, uint32_t loc,
		      struct hetmem_cmd_migrate *cmd)
{
	return hm_migrate_flags(fd, p, size, loc, 0, cmd);
}

/*
 * A view: all runs and totals of a range, taken in several calls.
 */
struct view {
	uint64_t start, end;
	struct hetmem_run *runs;
	size_t nr_runs;
	struct hetmem_total totals[HETMEM_MAX_TOTALS];
	size_t nr_totals;
};

HELPER void view_free(struct view *v)
{
	free(v->runs);
	v->runs = NULL;
}

HELPER uint64_t view_total(const struct view *v, uint32_t loc)
{
	size_t i;

	for (i = 0; i < v->nr_totals; i++)
		if (v->totals[i].location == loc)
			return v->totals[i].pages;
	return 0;
}

HELPER uint64_t view_pages(const struct view *v, uint32_t loc)
{
	uint64_t pages = 0;
	size_t i;

	for (i = 0; i < v->nr_runs; i++)
		if (v->runs[i].location == loc)
			pages += (v->runs[i].end - v->runs[i].start) /
				 page_size();
	return pages;
}

HELPER uint64_t view_kind(const struct view *v, uint32_t kind)
{
	uint64_t pages = 0;
	size_t i;

	for (i = 0; i < v->nr_totals; i++)
		if (HETMEM_LOC_KIND(v->totals[i].location) == kind)
			pages += v->totals[i].pages;
	return pages;
}

HELPER const struct hetmem_run *view_at(const struct view *v, const void *p)
{
	uint64_t addr = (uintptr_t)p;
	size_t i;

	for (i = 0; i < v->nr_runs; i++)
		if (v->runs[i].start <= addr && addr < v->runs[i].end)
			return &v->runs[i];
	return NULL;
}

/* What is wrong with a complete view, "" if nothing. */
HELPER const char *view_flaw(const struct view *v)
{
	uint64_t at = v->start, sum = 0;
	size_t i;

	for (i = 0; i < v->nr_runs; i++) {
		const struct hetmem_run *r = &v->runs[i];

		if (r->start != at)
			return r->start < at ? "runs overlap or are unsorted" :
					       "a gap between runs";
		if (r->end <= r->start || r->end > v->end)
			return "a run is empty or leaves the range";
		if ((r->start | r->end) % page_size())
			return "a run is unaligned";
		if (r->flags || r->reserved)
			return "flags or reserved of a run are not zero";
		if (HETMEM_LOC_KIND(r->location) > HETMEM_FOREIGN)
			return "no such kind of location";
		if (HETMEM_LOC_KIND(r->location) == HETMEM_DEVICE && r->why)
			return "a why for pages on a device";
		if (view_total(v, r->location) != view_pages(v, r->location))
			return "total and runs of a location differ";
		at = r->end;
	}
	if (at != v->end)
		return "runs end before the range";
	for (i = 0; i < v->nr_totals; i++) {
		if (v->totals[i].reserved)
			return "reserved of a total is not zero";
		if (!v->totals[i].pages)
			return "an empty total";
		sum += v->totals[i].pages;
	}
	if (sum != (v->end - v->start) / page_size())
		return "totals do not add up to the range";
	return "";
}

HELPER int view_add_totals(struct view *v, const struct hetmem_total *t,
			   unsigned int nr)
{
	unsigned int i;
	size_t j;

	for (i = 0; i < nr; i++) {
		for (j = 0; j < v->nr_totals; j++)
			if (v->totals[j].location == t[i].location)
				break;
		if (j == HETMEM_MAX_TOTALS)
			return -ENOSPC;
		if (j == v->nr_totals)
			v->totals[v->nr_totals++] = t[i];
		else
			v->totals[j].pages += t[i].pages;
	}
	return 0;
}

/*
 * Fill @v with what [p, p + size) looks like, @room runs a call, and check
 * it: -EBADMSG if it is flawed. The caller calls view_free() in any case.
 */
HELPER int view_take_by(int fd, const void *p, size_t size, unsigned int room,
			struct view *v)
{
	struct hetmem_total totals[HETMEM_MAX_TOTALS];
	int ret = 0, busy = 0;

	memset(v, 0, sizeof(*v));
	v->start = (uintptr_t)p;
	v->end = v->start + size;
	for (uint64_t at = v->start; at < v->end;) {
		struct hetmem_cmd_residency cmd = {
			.start = at,
			.end = v->end,
			.nr_runs = room,
			.totals = (uintptr_t)totals,
			.nr_totals = HETMEM_MAX_TOTALS,
		};

		v->runs = realloc(v->runs,
				  (v->nr_runs + room) * sizeof(*v->runs));
		if (!v->runs)
			return -ENOMEM;
		cmd.runs = (uintptr_t)(v->runs + v->nr_runs);
		ret = hm_residency(fd, &cmd);
		if (ret && ret != -EBUSY)
			return ret;
		if (ret == -EBUSY && ++busy > 1000)
			return ret;
		if (cmd.walk_end < at || cmd.walk_end > v->end ||
		    (!ret && cmd.walk_end == at) || cmd.filled_runs > room ||
		    cmd.filled_totals > HETMEM_MAX_TOTALS) {
			fprintf(stderr, "# RESIDENCY at %llx: walk_end %llx\n",
				(unsigned long long)at, cmd.walk_end);
			return -EBADMSG;
		}
		v->nr_runs += cmd.filled_runs;
		ret = view_add_totals(v, totals, cmd.filled_totals);
		if (ret)
			return ret;
		at = cmd.walk_end;
	}
	if (*view_flaw(v)) {
		fprintf(stderr, "# RESIDENCY: %s\n", view_flaw(v));
		return -EBADMSG;
	}
	return 0;
}

HELPER int view_take(int fd, const void *p, size_t size, struct view *v)
{
	return view_take_by(fd, p, size, 256, v);
}

HELPER void view_print(const struct view *v)
{
	size_t i;

	for (i = 0; i < v->nr_runs && i < 40; i++)
		fprintf(stderr, "#   %llx-%llx location %x order %u why %x\n",
			v->runs[i].start, v->runs[i].end, v->runs[i].location,
			v->runs[i].order, v->runs[i].why);
}

/* Pages of [p, p + size) at @loc, or a negative errno. */
HELPER long pages_at(int fd, const void *p, size_t size, uint32_t loc)
{
	struct view v;
	long ret = view_take(fd, p, size, &v);

	if (!ret)
		ret = view_total(&v, loc);
	view_free(&v);
	return ret;
}

/* Pages of [p, p + size) at any location of @kind, or a negative errno. */
HELPER long pages_of_kind(int fd, const void *p, size_t size, uint32_t kind)
{
	struct view v;
	long ret = view_take(fd, p, size, &v);

	if (!ret)
		ret = view_kind(&v, kind);
	view_free(&v);
	return ret;
}

/* The run that the page at @p is in; all ones in @start if that failed. */
HELPER struct hetmem_run run_at(int fd, const void *p)
{
	struct hetmem_run run;
	struct hetmem_cmd_residency cmd = {
		.start = (uintptr_t)p,
		.end = (uintptr_t)p + page_size(),
		.runs = (uintptr_t)&run,
		.nr_runs = 1,
	};

	if (hm_residency(fd, &cmd) || cmd.filled_runs != 1)
		memset(&run, 0xff, sizeof(run));
	return run;
}

/* The pattern: each word of it tells @seed and its offset. */
HELPER uint64_t pattern_word(uint64_t seed, size_t offset)
{
	uint64_t x = (offset + 1) * 0x9e3779b97f4a7c15ULL ^ seed << 17;

	return x ^ x >> 29;
}

HELPER void fill(void *p, size_t size, uint64_t seed)
{
	volatile uint64_t *w = p;
	size_t i;

	for (i = 0; i < size / sizeof(*w); i++)
		w[i] = pattern_word(seed, i * sizeof(*w));
}

/* Bytes into @p where the pattern breaks, -1 if it does not. */
HELPER long mismatch_at(const void *p, size_t size, uint64_t seed,
			size_t first_offset)
{
	const volatile uint64_t *w = p;
	size_t i;

	for (i = 0; i < size / sizeof(*w); i++)
		if (w[i] != pattern_word(seed, first_offset + i * sizeof(*w)))
			return i * sizeof(*w);
	return -1;
}

HELPER long mismatch(const void *p, size_t size, uint64_t seed)
{
	return mismatch_at(p, size, seed, 0);
}

HELPER bool all_zero(const void *p, size_t size)
{
	const volatile uint64_t *w = p;
	size_t i;

	for (i = 0; i < size / sizeof(*w); i++)
		if (w[i])
			return false;
	return true;
}

/* Exit status of a child, 128 + signal if one killed it, or -errno. */
HELPER int child_status(pid_t pid)
{
	int status;

	while (waitpid(pid, &status, 0) != pid)
		if (errno != EINTR)
			return -errno;
	return WIFEXITED(status) ? WEXITSTATUS(status) :
				   128 + WTERMSIG(status);
}

/* Give up every privilege; the caller must be single-threaded. */
HELPER int become_nobody(void)
{
	if (setresgid(NOBODY, NOBODY, NOBODY) ||
	    setresuid(NOBODY, NOBODY, NOBODY))
		return -errno;
	return 0;
}

/*
 * A pair of pipes by which parent and child take turns.
 */
struct turns {
	int to_child[2], to_parent[2];
};

HELPER int turns_init(struct turns *t)
{
	return pipe2(t->to_child, O_CLOEXEC) ||
	       pipe2(t->to_parent, O_CLOEXEC) ? -errno : 0;
}

/* False if the other side is gone. */
HELPER bool turn_wait(int pipe_end)
{
	char c;
	ssize_t n;

	do {
		n = read(pipe_end, &c, 1);
	} while (n < 0 && errno == EINTR);
	return n == 1;
}

HELPER bool turn_pass(int pipe_end)
{
	return write(pipe_end, "x", 1) == 1;
}

HELPER void turns_in_child(struct turns *t)
{
	close(t->to_child[1]);
	close(t->to_parent[0]);
}

HELPER void turns_in_parent(struct turns *t)
{
	close(t->to_child[0]);
	close(t->to_parent[1]);
}

#endif /* HETMEM_TEST_H */
