// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Many pins: the same pages over and over, in one context and in many, unmapped page by
 * page; as many as a context may have; and at their limit, which nobody ever sees
 * exceeded. What is released costs what its pages are, however calls have overlapped.
 */
#include "libktest/harness.h"
#include "libktest/load.h"
#include "libktest/ring.h"
#include "libktest/sysfs.h"

#include <dirent.h>
#include <sys/resource.h>

#define PAGES	512
#define SIZE	(PAGES * page_size())

/* Pages that a context keeps track of together, and many such groups. */
#define GROUP		64
#define GROUPS		17000

FIXTURE(pins)
{
	char *p;
	long held, bytes;
};

FIXTURE_SETUP(pins)
{
	self->held = pins_held();
	self->bytes = read_long(STATS "bytes");
	ASSERT_LE(0, self->bytes);
	self->p = map_filled(SIZE, 1);
	ASSERT_NE(NULL, self->p);
	ASSERT_EQ(0, vm_pin());
}

/* Whatever was pinned, all of it comes back. */
FIXTURE_TEARDOWN(pins)
{
	EXPECT_EQ(0, vm_pin());
	EXPECT_EQ(self->held, pins_held());
	EXPECT_EQ(self->bytes, read_long(STATS "bytes"));
	munmap(self->p, SIZE);
}

#define PAGE(n)		(self->p + (n) * page_size())

/* Pins [p, p + size) @n times, in steps of the whole and of odd parts of it. */
static int pin_often(int fd, char *p, size_t size, int n)
{
	struct hetmem_cmd_migrate cmd;
	size_t off, part;
	int i, ret = 0;

	for (i = 0; i < n && !ret; i++) {
		off = i % 2 ? i * 37 % (size / page_size()) * page_size() : 0;
		part = i % 2 ? (size - off + 1) / 2 + page_size() - 1 : size;
		part &= -page_size();
		ret = hm_pin(fd, p + off, part, FOREVER_MS - i, &cmd);
		if (!ret && cmd.pinned != part / page_size())
			ret = -EBADMSG;
	}
	return ret;
}

/* CPU time of all threads that may work for a module's unbound work queue. */
static uint64_t workers_cpu_ns(void)
{
	unsigned long long run;
	uint64_t sum = 0;
	char path[300], name[64];
	struct dirent *e;
	DIR *dir = opendir("/proc");
	FILE *f;

	while (dir && (e = readdir(dir))) {
		snprintf(path, sizeof(path), "/proc/%s/comm", e->d_name);
		f = fopen(path, "r");
		if (!f)
			continue;
		if (!fgets(name, sizeof(name), f))
			name[0] = 0;
		fclose(f);
		if (strncmp(name, "kworker/u", 9))
			continue;
		snprintf(path, sizeof(path), "/proc/%s/schedstat", e->d_name);
		f = fopen(path, "r");
		if (f && fscanf(f, "%llu", &run) == 1)
			sum += run;
		if (f)
			fclose(f);
	}
	if (dir)
		closedir(dir);
	return sum;
}

/*
 * The CPU time in ns, workers included, that it takes to unmap [p, p + size) page by page
 * and to wait until nothing of it is held.
 */
static uint64_t release(char *p, size_t size)
{
	uint64_t begin = thread_cpu_ns() + workers_cpu_ns();
	size_t at;

	for (at = 0; at < size; at += page_size()) {
		if (munmap(p + at, page_size()))
			return UINT64_MAX;
	}
	begin = thread_cpu_ns() - begin;
	if (!EVENTUALLY(!vm_pin()))
		return UINT64_MAX;
	return begin + workers_cpu_ns();
}

/* @b is at most about @factor times @a; what both have in common is left aside. */
#define EXPECT_ABOUT(factor, a, b)					\
	do {								\
		uint64_t a_ = a, b_ = b;				\
									\
		TH_LOG("%lu us, then %lu us", a_ / 1000, b_ / 1000);	\
		EXPECT_NE(UINT64_MAX, a_);				\
		EXPECT_NE(UINT64_MAX, b_);				\
		EXPECT_GT(4 * (factor) * a_ + 20000000, b_);		\
	} while (0)

/* In one context: each page is held and charged once, and released once. */
TEST_F(pins, the_same_pages)
{
	const int n = test_rounds(200);
	uint64_t ns[2];
	int fd, i;
	char *p;

	for (i = 0; i < 2; i++) {
		p = map_filled(SIZE, 2);
		ASSERT_NE(NULL, p);
		fd = hm_open();
		ASSERT_LE(0, fd);
		ASSERT_EQ(0, pin_often(fd, p, SIZE, i ? 4 * n : n));
		EXPECT_EQ(PAGES, vm_pin());
		EXPECT_EQ(self->held + PAGES, pins_held());
		ns[i] = release(p, SIZE);
		EXPECT_EQ(self->held, pins_held());
		close(fd);
	}
	EXPECT_ABOUT(1, ns[0], ns[1]);
}

/* In many: each has its own. */
TEST_F(pins, the_same_pages_in_many_contexts)
{
	const int n = slow_kernel() ? 2 : 16;
	uint64_t ns[2];
	int fds[64], i, j;
	char *p;

	for (i = 0; i < 2; i++) {
		p = map_filled(SIZE, 2);
		ASSERT_NE(NULL, p);
		for (j = 0; j < (i ? 4 * n : n); j++) {
			fds[j] = hm_open();
			ASSERT_LE(0, fds[j]);
			ASSERT_EQ(0, pin_often(fds[j], p, SIZE, 3));
		}
		EXPECT_EQ(PAGES * j, vm_pin());
		EXPECT_EQ(self->held + PAGES * j, pins_held());
		ns[i] = release(p, SIZE);
		EXPECT_EQ(self->held, pins_held());
		while (j--)
			close(fds[j]);
	}
	EXPECT_ABOUT(4, ns[0], ns[1]);
}

/* More pages, and all of them by close() and by UNPIN, in the caller's own time. */
TEST_F(pins, closed_and_unpinned)
{
	const size_t most = slow_kernel() ? 4 * SIZE : 16 * SIZE;
	uint64_t ns[2][2], nr;
	char *p = map_filled(most, 3);
	size_t size;
	int fd, i, way;

	ASSERT_NE(NULL, p);
	for (way = 0; way < 2; way++) {
		for (i = 0; i < 2; i++) {
			size = i ? most : most / 4;
			fd = hm_open();
			ASSERT_LE(0, fd);
			ASSERT_EQ(0, pin_often(fd, p, size, 8));
			EXPECT_EQ((long)(size / page_size()), vm_pin());
			ns[way][i] = -thread_cpu_ns();
			if (way) {
				EXPECT_EQ(0, hm_unpin(fd, p, most, &nr));
				EXPECT_EQ(size / page_size(), nr);
			} else {
				close(fd);
			}
			ns[way][i] += thread_cpu_ns();
			EXPECT_EQ(0, vm_pin());
			if (way)
				close(fd);
		}
		EXPECT_ABOUT(4, ns[way][0], ns[way][1]);
	}
	EXPECT_EQ(-1, mismatch(p, most, 3));
	munmap(p, most);
}

/* All but one of them, by as many system calls. */
TEST_F(pins, all_but_one)
{
	struct hetmem_cmd_migrate cmd;
	int fd = hm_open(), i;

	ASSERT_LE(0, fd);
	ASSERT_EQ(0, hm_pin(fd, self->p, SIZE, FOREVER_MS, &cmd));
	for (i = 0; i < PAGES; i++) {
		if (i != 300)
			ASSERT_EQ(0, munmap(PAGE(i), page_size()));
	}
	EXPECT_EQ(1, pages_pinned(fd, self->p, SIZE));
	EXPECT_TRUE(EVENTUALLY(vm_pin() == 1));
	EXPECT_EQ(self->held + 1, pins_held());
	EXPECT_EQ(-1, mismatch_at(PAGE(300), page_size(), 1, 300 * page_size()));
	close(fd);
}

/*
 * A context with pages in many groups, one in each: pages count, not groups. All of it
 * ends by one system call, by close() and with the process.
 */
FIXTURE(groups)
{
	char *p;
	size_t step;
	long nr;
};

FIXTURE_SETUP(groups)
{
	long i;

	self->nr = slow_kernel() ? 512 : GROUPS;
	self->step = GROUP * page_size();
	self->p = mmap(NULL, (self->nr + 1) * self->step, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)self->p);
	madvise(self->p, (self->nr + 1) * self->step, MADV_NOHUGEPAGE);
	for (i = 0; i <= self->nr; i++)
		*(long *)(self->p + i * self->step) = i;
}

FIXTURE_TEARDOWN(groups)
{
	EXPECT_TRUE(EVENTUALLY(!vm_pin()));
	munmap(self->p, (self->nr + 1) * self->step);
}

TEST_F(groups, released)
{
	struct hetmem_cmd_migrate cmd;
	int fd, way, ret;
	uint64_t nr;

	for (way = 0; way < 3; way++) {
		fd = hm_open();
		ASSERT_LE(0, fd);
		ret = hm_pin(fd, self->p, (self->nr + 1) * self->step, FOREVER_MS,
			     &cmd);
		EXPECT_EQ(0, ret);
		EXPECT_EQ(self->nr + 1, (long)cmd.pinned);
		EXPECT_EQ((long)cmd.pinned, vm_pin());
		switch (way) {
		case 0:
			break;
		case 1:
			EXPECT_EQ(0, hm_unpin(fd, self->p, (self->nr + 1) *
					      self->step, &nr));
			EXPECT_EQ(cmd.pinned, nr);
			EXPECT_EQ(0, vm_pin());
			break;
		case 2:
			ASSERT_EQ(0, munmap(self->p, (self->nr + 1) *
					    self->step));
			EXPECT_TRUE(EVENTUALLY(!vm_pin()));
			break;
		}
		close(fd);
		EXPECT_EQ(0, vm_pin());
	}
}

/*
 * CPU time of the munmap() of @nr groups with a page each, pinned or not, less than a
 * block from the next one's.
 */
static uint64_t unmap_ns(int fd, long nr, bool pinned)
{
	const size_t step = GROUP * page_size(), size = nr * step;
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS |
		       MAP_NORESERVE, -1, 0);
	struct hetmem_cmd_migrate cmd;
	uint64_t begin;
	long i;

	if (p == MAP_FAILED)
		return UINT64_MAX;
	madvise(p, size, MADV_NOHUGEPAGE);
	for (i = 0; i < nr; i++)
		p[i * step] = 1;
	if (pinned && (hm_pin(fd, p, size, FOREVER_MS, &cmd) || (long)cmd.pinned != nr))
		return UINT64_MAX;
	begin = thread_cpu_ns();
	if (munmap(p, size))
		return UINT64_MAX;
	return thread_cpu_ns() - begin;
}

/* A notification marks a number of groups at most; the rest is a worker's. */
TEST_F(groups, unmapped_at_once)
{
	const long most = slow_kernel() ? 1024 : GROUPS;
	uint64_t apart, pinned;
	int fd = hm_open(), i, tries;

	ASSERT_LE(0, fd);
	for (i = 0; i < 2; i++) {
		/* A busy host's time counts as the thread's: one try of ten must show it. */
		for (tries = 0; tries < 10; tries++) {
			apart = unmap_ns(fd, i ? most : most / 16, false);
			pinned = unmap_ns(fd, i ? most : most / 16, true);
			ASSERT_NE(UINT64_MAX, apart);
			ASSERT_NE(UINT64_MAX, pinned);
			TH_LOG("%lu us, pinned %lu us", apart / 1000, pinned / 1000);
			EXPECT_TRUE(EVENTUALLY(!vm_pin()));
			/* Twice as long, for the pages have their references still. */
			if (pinned < 2 * apart + 10000000)
				break;
		}
		EXPECT_GT(10, tries);
	}
	close(fd);
}

/* What was unmapped with many others is not held, whoever asks and when. */
TEST_F(groups, mapped_again)
{
	struct hetmem_cmd_migrate cmd;
	const long most = slow_kernel() ? 500 : 1000, kept = most / 5, tenth = most / 10;
	const size_t size = most * self->step;
	int fd = hm_open(), i;
	uint64_t nr;
	char *p;

	ASSERT_LE(0, fd);
	ASSERT_LE(most, self->nr);
	for (i = 0; i < 4; i++) {
		ASSERT_EQ(0, hm_pin(fd, self->p, size, FOREVER_MS, &cmd));
		ASSERT_EQ(most, (long)cmd.pinned);
		/* Two unmappings, of which the second begins in the midst of what the first left. */
		ASSERT_EQ(0, munmap(self->p, size / 2));
		ASSERT_EQ(0, munmap(self->p + size / 4, (most - kept) * self->step - size / 4));
		p = mmap(self->p, (most - kept) * self->step, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
		ASSERT_EQ(self->p, p);
		madvise(p, (most - kept) * self->step, MADV_NOHUGEPAGE);
		memset(p + tenth * self->step, 1, page_size());
		switch (i) {
		case 0:
			EXPECT_EQ(kept, pages_pinned(fd, p, size));
			break;
		case 1:
			ASSERT_EQ(0, hm_unpin(fd, p + 3 * tenth * self->step, tenth * self->step, &nr));
			EXPECT_EQ(0, nr);
			ASSERT_EQ(0, hm_unpin(fd, p, size, &nr));
			EXPECT_EQ(kept, (long)nr);
			break;
		case 2:
			/* A new pin is no part of what ends. */
			ASSERT_EQ(0, hm_pin(fd, p + tenth * self->step, page_size(), FOREVER_MS,
					    &cmd));
			EXPECT_EQ(1, (long)cmd.pinned);
			EXPECT_EQ(kept + 1, pages_pinned(fd, p, size));
			EXPECT_TRUE(EVENTUALLY(vm_pin() == kept + 1));
			break;
		case 3:
			EXPECT_TRUE(EVENTUALLY(vm_pin() == kept));
			EXPECT_EQ(kept, pages_pinned(fd, p, size));
			break;
		}
		ASSERT_EQ(0, hm_unpin(fd, p, size, NULL));
		EXPECT_EQ(0, vm_pin());
		for (nr = 0; (long)nr < most; nr++)
			*(long *)(p + nr * self->step) = 1;
	}
	close(fd);
}

TEST_F(groups, killed)
{
	const long held = pins_held();
	struct turns t;
	pid_t pid;

	ASSERT_EQ(0, turns_init(&t));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		struct hetmem_cmd_migrate cmd;
		int fd = hm_open();

		turns_in_child(&t);
		CHILD_CHECK(fd >= 0);
		hm_pin(fd, self->p, self->nr * self->step, FOREVER_MS, &cmd);
		CHILD_CHECK((long)cmd.pinned == self->nr);
		turn_pass(t.to_parent[1]);
		turn_wait(t.to_child[0]);
		_exit(1);
	}
	turns_in_parent(&t);
	ASSERT_TRUE(turn_wait(t.to_parent[0]));
	EXPECT_EQ(held + self->nr, pins_held());
	EXPECT_LE(0, kill_cpu_ms(pid));
	EXPECT_TRUE(EVENTUALLY(pins_held() == held));
	close(t.to_child[1]);
	close(t.to_parent[0]);
}

/* Many processes of a user, each within RLIMIT_MEMLOCK: caps/pinned_kb bounds their sum. */
TEST_F(pins, of_a_user)
{
	const long cap = sysfs_read("caps/pinned_kb"), before = sysfs_read("stats/pages_pinned");
	const long may = 1000, each = 300;
	/* Before 5.16 users begin with less. */
	const struct rlimit limit = { 8 * MiB, 8 * MiB };
	struct hetmem_cmd_migrate cmd;
	long left = may;
	struct turns t;
	pid_t pids[4];
	int i, fd;

	/* A part of memory at first. */
	EXPECT_LE(sysconf(_SC_PHYS_PAGES) / 80 * (long)(page_size() / KiB), cap);
	EXPECT_GE(sysconf(_SC_PHYS_PAGES) / 50 * (long)(page_size() / KiB), cap);
	EXPECT_EQ(self->held, before);
	ASSERT_EQ(0, sysfs_set("caps/pinned_kb", may * (page_size() / KiB)));
	ASSERT_EQ(0, turns_init(&t));
	for (i = 0; i < 4; i++) {
		pids[i] = fork();
		ASSERT_LE(0, pids[i]);
		if (!pids[i]) {
			turns_in_child(&t);
			CHILD_CHECK(!setrlimit(RLIMIT_MEMLOCK, &limit));
			CHILD_CHECK(!become_nobody());
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			fd = hm_open();
			CHILD_CHECK(fd >= 0);
			/* Refused where the cap is, and what came before is held. */
			CHILD_CHECK(hm_pin(fd, self->p, each * page_size(), FOREVER_MS, &cmd) ==
				    (left < each ? -EDQUOT : 0));
			CHILD_CHECK((long)cmd.pinned == (left < each ? left : each));
			CHILD_CHECK(cmd.walk_end == (uintptr_t)PAGE((long)cmd.pinned));
			turn_pass(t.to_parent[1]);
			pause();
			_exit(1);
		}
		ASSERT_TRUE(turn_wait(t.to_parent[0]));
		left -= each;
		EXPECT_EQ(before + may - (left > 0 ? left : 0), sysfs_read("stats/pages_pinned"));
	}
	/* Not another user, nor one with CAP_SYS_RESOURCE. */
	fd = hm_open();
	ASSERT_LE(0, fd);
	EXPECT_EQ(0, hm_pin(fd, self->p, SIZE, FOREVER_MS, &cmd));
	ASSERT_EQ(0, sysfs_set("caps/pinned_kb", 0));
	EXPECT_EQ(0, hm_unpin(fd, self->p, SIZE, NULL));
	EXPECT_EQ(0, hm_pin(fd, self->p, SIZE, FOREVER_MS, &cmd));
	close(fd);
	for (i = 0; i < 4; i++) {
		kill(pids[i], SIGKILL);
		EXPECT_EQ(128 + SIGKILL, child_status(pids[i]));
	}
	EXPECT_TRUE(EVENTUALLY(sysfs_read("stats/pages_pinned") == before));
	ASSERT_EQ(0, sysfs_set("caps/pinned_kb", cap));
	close(t.to_child[1]);
	close(t.to_parent[0]);
}

/* What a user without CAP_IPC_LOCK may hold, in pages. */
#define LIMIT	300

static void limit_self(void)
{
	struct rlimit limit = { LIMIT * page_size(), LIMIT * page_size() };

	CHILD_CHECK(!setrlimit(RLIMIT_MEMLOCK, &limit));
	CHILD_CHECK(!become_nobody());
	prctl(PR_SET_DUMPABLE, 1);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
}

struct pinner {
	pthread_t thread;
	char *p;
	int rounds, nr;
	long refused;
	bool bad;
};

/* As much as there is, and no longer than it takes to ask for it. */
static void *pin_and_unpin(void *arg)
{
	struct pinner *w = arg;
	struct hetmem_cmd_migrate cmd;
	int fd = hm_open(), i, ret;
	uint64_t nr;

	w->bad = fd < 0;
	for (i = 0; i < w->rounds; i++) {
		ret = hm_pin(fd, w->p, SIZE, FOREVER_MS, &cmd);
		w->refused += ret == -EDQUOT;
		w->bad |= ret && ret != -EDQUOT;
		w->bad |= cmd.pinned > LIMIT;
		w->bad |= hm_unpin(fd, w->p, SIZE, &nr) || nr != cmd.pinned;
	}
	close(fd);
	return NULL;
}

struct poller {
	pthread_t thread;
	int stop;
	long most, polls;
};

static void *poll_pins(void *arg)
{
	struct poller *w = arg;
	long now;

	while (!__atomic_load_n(&w->stop, __ATOMIC_RELAXED)) {
		now = vm_pin();
		w->most = now > w->most || now < 0 ? now : w->most;
		w->polls++;
	}
	return NULL;
}

/* Not even for a moment: several pin at once, one looks all the time. */
TEST_F(pins, never_above_the_limit)
{
	struct pinner w[3];
	struct poller poller = { 0 };
	pid_t pid;
	int i;

	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		long refused = 0;

		limit_self();
		CHILD_CHECK(!pthread_create(&poller.thread, NULL, poll_pins,
					    &poller));
		for (i = 0; i < 3; i++) {
			w[i] = (struct pinner){
				.p = map_filled(SIZE, i), .nr = i,
				.rounds = test_rounds(1000),
			};
			CHILD_CHECK(w[i].p);
			CHILD_CHECK(!pthread_create(&w[i].thread, NULL,
						    pin_and_unpin, &w[i]));
		}
		for (i = 0; i < 3; i++) {
			pthread_join(w[i].thread, NULL);
			CHILD_CHECK(!w[i].bad);
			refused += w[i].refused;
		}
		__atomic_store_n(&poller.stop, 1, __ATOMIC_RELAXED);
		pthread_join(poller.thread, NULL);
		printf("# %ld polls, %ld pages at most, %ld refused\n",
		       poller.polls, poller.most, refused);
		CHILD_CHECK(refused > 0);
		CHILD_CHECK(poller.most > 0);
		CHILD_CHECK(poller.most <= LIMIT);
		CHILD_CHECK(!vm_pin());
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
}

/* Where nothing is held is nothing that was charged. */
static void check_refused(int fd, char *p, size_t from, size_t size, long before)
{
	struct hetmem_cmd_migrate cmd;
	size_t came;
	int ret = hm_pin(fd, p + from, size, FOREVER_MS, &cmd);

	came = cmd.walk_end - cmd.start;
	CHILD_CHECK(ret == -EDQUOT);
	CHILD_CHECK(cmd.walk_end >= cmd.start && cmd.walk_end < cmd.end);
	CHILD_CHECK(cmd.moved + cmd.already + cmd.not_moved == came / page_size());
	CHILD_CHECK(pages_pinned(fd, p + from, came) == (long)cmd.pinned);
	/* Nothing of it is held, unless it was held before. */
	CHILD_CHECK(vm_pin() <= LIMIT);
	CHILD_CHECK(vm_pin() > LIMIT - GROUP);
	CHILD_CHECK(pages_pinned(fd, p, SIZE) == vm_pin());
	CHILD_CHECK(vm_pin() >= before);
	CHILD_CHECK(run_at(fd, p + from + came).location != HETMEM_LOC(0, 0));
}

/* -EDQUOT says how far it came, from wherever it began and whatever was held. */
TEST_F(pins, refused)
{
	static const struct {
		int held, nr_held, from, nr;
	} cases[] = {
		{ 0, 0, 0, 512 },	/* nothing was held */
		{ 0, 0, 17, 400 },
		{ 0, 0, 100, 301 },
		{ 0, 300, 200, 312 },	/* as much as there may be was */
		{ 100, 200, 0, 512 },	/* some in the middle of it */
		{ 450, 50, 0, 512 },	/* some behind where it ends */
	};
	pid_t pid;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(cases); i++) {
		pid = fork();
		ASSERT_LE(0, pid);
		if (!pid) {
			struct hetmem_cmd_migrate cmd;
			int fd;

			limit_self();
			fd = hm_open();
			CHILD_CHECK(fd >= 0);
			fill(self->p, SIZE, 1);
			if (cases[i].nr_held)
				CHILD_CHECK(!hm_pin(fd, PAGE(cases[i].held),
						    cases[i].nr_held * page_size(),
						    FOREVER_MS, &cmd));
			CHILD_CHECK(vm_pin() == cases[i].nr_held);
			check_refused(fd, self->p, cases[i].from * page_size(),
				      cases[i].nr * page_size(), vm_pin());
			CHILD_CHECK(mismatch(self->p, SIZE, 1) < 0);
			close(fd);
			CHILD_CHECK(!vm_pin());
			_exit(0);
		}
		EXPECT_EQ(0, child_status(pid)) {
			TH_LOG("case %zu", i);
		}
	}
}

/* What is not there, in between, is counted and passed by. */
TEST_F(pins, refused_among_holes)
{
	pid_t pid;
	int i;

	/* Every third page is gone: 341 are left. */
	for (i = 1; i < PAGES; i += 3)
		ASSERT_EQ(0, madvise(PAGE(i), page_size(), MADV_DONTNEED));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		int fd;

		limit_self();
		fd = hm_open();
		CHILD_CHECK(fd >= 0);
		check_refused(fd, self->p, 0, SIZE, 0);
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
}

TEST_HARNESS_MAIN
