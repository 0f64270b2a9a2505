// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Looking at memory of a process that is busy: invalidations elsewhere in the address
 * space disturb no look, from inside or by another process, and nobody who is killed or
 * closes a context waits for them. An invalidation of the very pages that are looked at
 * is waited for, but not for ever: then nothing is known of those, and that is told.
 *
 * With a device: emu_busy.c.
 */
#include "libktest/harness.h"
#include "libktest/load.h"

#include <sys/resource.h>

#define MOVING		"/sys/class/misc/hetmem/stats/moving"

/*
 * CPU time in ms that the end of a process may take, the last system calls of its threads
 * included.
 */
#define KILL_MS		(slow_kernel() ? 20000 : 2000)

FIXTURE(busy)
{
	int fd;
	struct mem m;
	char *p;		/* one block */
	struct load load;
};

FIXTURE_SETUP(busy)
{
	self->fd = hm_open_flags(0);
	ASSERT_GE(self->fd, 0);
	self->m = (struct mem){ .fd = -1, .old_hugepages = -1 };
	self->p = map_aligned(&self->m, HUGE_SIZE);
	ASSERT_NE(MAP_FAILED, (void *)self->p);
	madvise(self->m.map, self->m.map_size, MADV_NOHUGEPAGE);
	ASSERT_EQ(0, no_numa_balancing(self->m.map, self->m.map_size));
	fill(self->p, HUGE_SIZE, 1);
	ASSERT_EQ(0, hm_track(self->fd, self->p, HUGE_SIZE));
}

FIXTURE_TEARDOWN(busy)
{
	EXPECT_EQ(-1, mismatch(self->p, HUGE_SIZE, 1));
	mem_unmap(&self->m);
	EXPECT_EQ(0, close(self->fd));
}

/* What many looks at one block were like. */
struct looks {
	int wrong;		/* failed, or some pages were not on the host */
	long waits;		/* voluntary switches of the thread */
	uint64_t median_ns;	/* CPU time of one */
};

static int compare_ns(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static struct looks look(int fd, char *p, int rounds)
{
	uint64_t *ns = calloc(rounds, sizeof(*ns));
	struct hetmem_total totals[4];
	struct hetmem_cmd_residency cmd = {
		.start = (uintptr_t)p,
		.end = (uintptr_t)p + HUGE_SIZE,
		.totals = (uintptr_t)totals,
		.nr_totals = ARRAY_SIZE(totals),
		.total_size = sizeof(totals[0]),
	};
	struct looks l = { .waits = -thread_waits() };
	uint64_t host;
	uint32_t j;
	int i;

	for (i = 0; ns && i < rounds; i++) {
		ns[i] = thread_cpu_ns();
		l.wrong += hm_residency(fd, &cmd) != 0;
		ns[i] = thread_cpu_ns() - ns[i];
		for (j = 0, host = 0; j < cmd.filled_totals; j++) {
			if (HETMEM_LOC_KIND(totals[j].location) == HETMEM_HOST)
				host += totals[j].pages;
		}
		l.wrong += host != HUGE_SIZE / page_size();
	}
	l.waits += thread_waits();
	l.wrong += !ns;
	if (ns) {
		qsort(ns, rounds, sizeof(*ns), compare_ns);
		l.median_ns = ns[rounds / 2];
	}
	free(ns);
	return l;
}

/*
 * All pages are known each time. A look takes about as much CPU time as without the
 * threads, and does not sleep for invalidations of other memory.
 */
TEST_F(busy, looks)
{
	const int rounds = test_rounds(1000);
	struct looks quiet, busy;
	long moving, done;

	quiet = look(self->fd, self->p, rounds);
	moving = read_long(MOVING);
	ASSERT_LE(0, moving);
	ASSERT_EQ(0, load_start(&self->load, true));
	done = load_done(&self->load);
	busy = look(self->fd, self->p, rounds);
	EXPECT_LT(done, load_done(&self->load));
	EXPECT_TRUE(load_stop(&self->load));
	TH_LOG("quiet: %lu ns, %ld waits; busy: %lu ns, %ld waits", quiet.median_ns,
	       quiet.waits, busy.median_ns, busy.waits);
	EXPECT_EQ(0, quiet.wrong);
	EXPECT_EQ(0, busy.wrong);
	EXPECT_EQ(moving, read_long(MOVING));
	if (quiet.median_ns < CPU_CLOCK_NS)
		quiet.median_ns = CPU_CLOCK_NS;
	EXPECT_GT(10 * quiet.median_ns, busy.median_ns);
	EXPECT_GT(rounds / 10 + 10, busy.waits);
}

/* REFRESH, MIGRATE and UNTRACK are not disturbed either. */
TEST_F(busy, commands)
{
	struct hetmem_cmd_migrate migrate;
	struct hetmem_cmd_refresh refresh;
	const int rounds = test_rounds(300);
	long waits, moving = read_long(MOVING);
	int i, bad = 0;

	ASSERT_EQ(0, load_start(&self->load, true));
	waits = thread_waits();
	for (i = 0; i < rounds; i++) {
		bad += hm_refresh(self->fd, self->p, &refresh) != 0;
		bad += refresh.dirty_blocks != 0;
		bad += hm_migrate(self->fd, self->p, HUGE_SIZE, ANY_HOST,
				  &migrate) != 0;
		bad += migrate.already != HUGE_SIZE / page_size();
		bad += hm_untrack(self->fd, self->p, HUGE_SIZE) != 0;
		bad += hm_track(self->fd, self->p, HUGE_SIZE) != 0;
	}
	waits = thread_waits() - waits;
	EXPECT_TRUE(load_stop(&self->load));
	EXPECT_EQ(0, bad);
	EXPECT_EQ(moving, read_long(MOVING));
	EXPECT_GT(rounds / 4 + 10, waits);
}

/* Opening takes mmap_lock for writing; closing waits for nothing. */
TEST_F(busy, opened_and_closed)
{
	const int rounds = test_rounds(200);
	long waits = 0;
	int i, fd;

	ASSERT_EQ(0, load_start(&self->load, true));
	for (i = 0; i < rounds; i++) {
		fd = hm_open();
		if (fd < 0)
			break;
		EXPECT_EQ(0, hm_track(fd, self->p, HUGE_SIZE));
		EXPECT_EQ(512, pages_of_kind(fd, self->p, HUGE_SIZE, HETMEM_HOST));
		waits -= thread_waits();
		EXPECT_EQ(0, close(fd));
		waits += thread_waits();
	}
	EXPECT_TRUE(load_stop(&self->load));
	EXPECT_EQ(rounds, i);
	TH_LOG("%ld waits in %d times close()", waits, rounds);
	EXPECT_GT(rounds / 4 + 10, waits);
}

/* Walks all of another process until it is killed; says how far it came. */
struct reader {
	int fd;
	int walks;		/* that came to an end */
	int bad;
};

static void read_all(struct reader *r)
{
	struct hetmem_total totals[HETMEM_MAX_TOTALS];
	struct hetmem_cmd_residency cmd = {
		.totals = (uintptr_t)totals,
		.nr_totals = ARRAY_SIZE(totals),
		.total_size = sizeof(totals[0]),
	};

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;) {
		cmd.start = page_size();
		cmd.end = (1UL << 47) - page_size();
		if (hm_residency(r->fd, &cmd) || cmd.walk_end != cmd.end)
			word_add(&r->bad);
		word_add(&r->walks);
	}
}

/* Root looks at all memory, by the owner's context, and is killed. */
TEST_F(busy, another_reader)
{
	struct reader *r = mmap(NULL, sizeof(*r), PROT_READ | PROT_WRITE,
				MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct looks beside;
	int i, walks;
	pid_t pid;
	long ms;

	ASSERT_NE(MAP_FAILED, r);
	r->fd = self->fd;
	ASSERT_EQ(0, load_start(&self->load, true));
	for (i = 0; i < 3; i++) {
		walks = word_read(&r->walks);
		pid = fork();
		ASSERT_GE(pid, 0);
		if (!pid)
			read_all(r);
		beside = look(self->fd, self->p, test_rounds(100));
		EXPECT_EQ(0, beside.wrong);
		word_wait(&r->walks, walks + 2);
		ms = kill_cpu_ms(pid);
		EXPECT_LE(0, ms);
		EXPECT_GT(KILL_MS, ms);
	}
	EXPECT_TRUE(load_stop(&self->load));
	EXPECT_EQ(0, word_read(&r->bad));
	munmap(r, sizeof(*r));
}

/* Commands of a process with such threads that go on until it is killed. */
enum work { WORK_RESIDENCY, WORK_REFRESH, WORK_MIGRATE, WORK_PIN, WORK_OPEN };

static void work_on(enum work work, char *p, int *begun)
{
	struct hetmem_cmd_migrate migrate;
	struct hetmem_cmd_refresh refresh;
	struct hetmem_cmd_residency all = {
		.start = page_size(), .end = (1UL << 47) - page_size(),
	};
	struct load load;
	int fd = hm_open();

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	CHILD_CHECK(fd >= 0);
	CHILD_CHECK(!load_start(&load, true));
	for (;;) {
		switch (work) {
		case WORK_RESIDENCY:
			CHILD_CHECK(!hm_residency(fd, &all));
			break;
		case WORK_REFRESH:
			CHILD_CHECK(!hm_track(fd, FAR, 1UL << 36));
			word_add(begun);
			CHILD_CHECK(!hm_refresh(fd, FAR, &refresh));
			CHILD_CHECK(!hm_untrack(fd, FAR, 1UL << 36));
			break;
		case WORK_MIGRATE:
			CHILD_CHECK(!hm_migrate(fd, p, HUGE_SIZE, ANY_HOST,
						&migrate));
			break;
		case WORK_PIN:
			CHILD_CHECK(!hm_pin(fd, p, HUGE_SIZE, 10, &migrate));
			break;
		case WORK_OPEN:
			CHILD_CHECK(!close(fd));
			fd = hm_open();
			CHILD_CHECK(fd >= 0);
			break;
		}
		word_add(begun);
	}
}

FIXTURE(killed)
{
	int *begun;
	struct mem m;
	char *p;
};

FIXTURE_VARIANT(killed)
{
	enum work work;
};

FIXTURE_VARIANT_ADD(killed, residency) { WORK_RESIDENCY };
FIXTURE_VARIANT_ADD(killed, refresh) { WORK_REFRESH };
FIXTURE_VARIANT_ADD(killed, migrate) { WORK_MIGRATE };
FIXTURE_VARIANT_ADD(killed, pin) { WORK_PIN };
FIXTURE_VARIANT_ADD(killed, open) { WORK_OPEN };

FIXTURE_SETUP(killed)
{
	self->begun = mmap(NULL, page_size(), PROT_READ | PROT_WRITE, MAP_SHARED |
			   MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)self->begun);
	self->m = (struct mem){ .fd = -1, .old_hugepages = -1 };
	self->p = map_aligned(&self->m, HUGE_SIZE);
	ASSERT_NE(MAP_FAILED, (void *)self->p);
	fill(self->p, HUGE_SIZE, 1);
}

FIXTURE_TEARDOWN(killed)
{
	mem_unmap(&self->m);
	munmap(self->begun, page_size());
}

/* All of it ends, and soon: threads, looks, contexts. */
TEST_F(killed, under_load)
{
	const int rounds = test_rounds(8);
	int round;
	pid_t pid;
	long ms;

	for (round = 0; round < rounds; round++) {
		*self->begun = 0;
		pid = fork();
		ASSERT_GE(pid, 0);
		if (!pid)
			work_on(variant->work, self->p, self->begun);
		word_wait(self->begun, 1 + round % 3);
		/* time: the moment varies, and each is right */
		usleep(1700 * round);
		ms = kill_cpu_ms(pid);
		EXPECT_LE(0, ms);
		EXPECT_GT(KILL_MS, ms);
		EXPECT_EQ(0, read_long("/sys/class/misc/hetmem/stats/contexts"));
		EXPECT_EQ(0, read_long("/sys/class/misc/hetmem/stats/ranges"));
	}
}

/*
 * An invalidation that lasts: mprotect() changes many entries, on a processor that
 * somebody of more importance takes away from it most of the time. It marks nothing:
 * where pages are it does not change.
 */
FIXTURE(held)
{
	int fd;
	void *map;
	size_t map_size;
	char *big, *last, *after;	/* @last: the last block of @big */
	size_t size;
	long pages;
	volatile int stop;
	pthread_t protector, spinner;
};

#define GIB	(1UL << 30)

static int run_on(int cpu, int priority)
{
	struct sched_param param = { .sched_priority = priority };
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	if (sched_setaffinity(0, sizeof(set), &set) ||
	    sched_setscheduler(0, priority ? SCHED_FIFO : SCHED_OTHER, &param))
		return -errno;
	return 0;
}

static void *protect_on(void *arg)
{
	FIXTURE_DATA(held) *self = arg;

	if (run_on(0, 0))
		return arg;
	while (!self->stop) {
		if (mprotect(self->big, self->size, PROT_READ) ||
		    mprotect(self->big, self->size, PROT_READ | PROT_WRITE))
			return arg;
	}
	return NULL;
}

/* The kernel leaves a twentieth of the time to others, anyway. */
static void *spin_on(void *arg)
{
	FIXTURE_DATA(held) *self = arg;
	uint64_t end;

	if (run_on(0, 10))
		return arg;
	while (!self->stop) {
		end = now_ns() + 150 * 1000000;
		while (!self->stop && now_ns() < end)
			;
		/* time: the share that the kernel leaves to others */
		usleep(10000);
	}
	return NULL;
}

FIXTURE_SETUP(held)
{
	size_t i;

	self->fd = hm_open();
	ASSERT_GE(self->fd, 0);
	self->pages = HUGE_SIZE / page_size();
	self->size = slow_kernel() ? 64 * MiB : 512 * MiB;
	/* The kernel notifies of each GiB by itself. */
	self->map_size = 2 * GIB;
	self->map = mmap(NULL, self->map_size, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	ASSERT_NE(MAP_FAILED, self->map);
	madvise(self->map, self->map_size, MADV_NOHUGEPAGE);
	self->big = (char *)(((uintptr_t)self->map + GIB - 1) & -GIB);
	self->last = self->big + self->size - HUGE_SIZE;
	self->after = self->big + self->size;
	ASSERT_EQ(0, no_numa_balancing(self->big, self->size + HUGE_SIZE));
	/* All of it is the page of zeroes. Kernels before 5.14 cannot be told. */
	if (madvise(self->big, self->size, MADV_POPULATE_READ)) {
		ASSERT_EQ(EINVAL, errno);
		for (i = 0; i < self->size; i += page_size())
			(void)*(volatile char *)(self->big + i);
	}
	fill(self->after, HUGE_SIZE, 2);
	ASSERT_EQ(0, hm_track(self->fd, self->last, 2 * HUGE_SIZE));
	ASSERT_EQ(0, run_on(1, 0));
	ASSERT_EQ(0, pthread_create(&self->protector, NULL, protect_on, self));
	ASSERT_EQ(0, pthread_create(&self->spinner, NULL, spin_on, self));
}

FIXTURE_TEARDOWN(held)
{
	void *failed;

	self->stop = 1;
	pthread_join(self->spinner, &failed);
	EXPECT_EQ(NULL, failed);
	pthread_join(self->protector, &failed);
	EXPECT_EQ(NULL, failed);
	EXPECT_EQ(-1, mismatch(self->after, HUGE_SIZE, 2));
	munmap(self->map, self->map_size);
	EXPECT_EQ(0, close(self->fd));
}

/*
 * Runs @call while an invalidation of self->last is in progress, as stats/moving tells,
 * three times. Others, where it was not, do not count.
 */
#define WHILE_HELD(call)						\
	do {								\
		long before_;						\
		int held_ = 0;						\
									\
		EXPECT_TRUE(EVENTUALLY(({				\
			usleep(7000); /* time: another moment of the hold */ \
			before_ = read_long(MOVING);			\
			call;						\
			held_ += read_long(MOVING) > before_;		\
			held_ >= 3;					\
		})));							\
	} while (0)

/* The block is unknown, and why; the walk goes on. */
TEST_F(held, residency)
{
	int moving = 0, bad = 0;
	struct view v;
	uint32_t why;

	WHILE_HELD(({
		bad += view_take(self->fd, self->last, 2 * HUGE_SIZE, &v) != 0;
		why = v.nr_runs ? v.runs[0].why : 0;
		if (why & HETMEM_WHY_MOVING) {
			bad += v.runs[0].location != HETMEM_LOC(HETMEM_UNKNOWN, 0);
			bad += v.runs[0].end != (uintptr_t)self->after;
			bad += why != HETMEM_WHY_MOVING;
			moving++;
		} else {
			bad += view_total(&v, HETMEM_LOC(HETMEM_ZERO, 0)) !=
			       (uint64_t)self->pages;
		}
		bad += view_kind(&v, HETMEM_HOST) != (uint64_t)self->pages;
		view_free(&v);
	}));
	EXPECT_LE(3, moving);
	EXPECT_EQ(0, bad);
}

/* What could not be seen has not been: it is dirty still, though nothing marks it. */
TEST_F(held, refresh)
{
	struct hetmem_cmd_refresh cmd;
	long before;
	int bad = 0;

	WHILE_HELD(({
		before = read_long(MOVING);
		bad += hm_untrack(self->fd, self->last, 2 * HUGE_SIZE) != 0;
		bad += hm_track(self->fd, self->last, 2 * HUGE_SIZE) != 0;
		bad += hm_refresh(self->fd, self->last, &cmd) != 0;
		bad += cmd.walked_blocks != 2;
		bad += cmd.dirty_blocks != (read_long(MOVING) > before);
	}));
	EXPECT_EQ(0, bad);
	self->stop = 1;
	ASSERT_EQ(0, hm_refresh_all(self->fd, self->last, &cmd));
	EXPECT_EQ(0, hm_dirty(self->fd, self->last));
}

/* MIGRATE has the same name for it, and moves, or counts, what follows. */
TEST_F(held, migrate)
{
	struct hetmem_cmd_migrate cmd;
	int moving = 0, bad = 0;

	WHILE_HELD(({
		bad += hm_migrate(self->fd, self->last, 2 * HUGE_SIZE, ANY_HOST,
				  &cmd) != 0;
		if (cmd.not_moved) {
			bad += cmd.not_moved != (uint64_t)self->pages;
			bad += cmd.why != HETMEM_WHY_MOVING;
			bad += cmd.why_addr != (uintptr_t)self->last;
			moving++;
		}
		bad += cmd.moved + cmd.already + cmd.not_moved !=
		       2 * (uint64_t)self->pages;
	}));
	EXPECT_LE(3, moving);
	EXPECT_EQ(0, bad);
}

TEST_HARNESS_MAIN
