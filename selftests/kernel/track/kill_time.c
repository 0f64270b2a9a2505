// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * REFRESH of as many blocks as one call looks at, UNTRACK of all that a user can track, and
 * UNTRACK that waits for such a REFRESH: a process that is killed in it is gone after little
 * time of a processor, not at the command's end.
 */
#include "libktest/harness.h"
#include "libktest/sysfs.h"

#include <sys/resource.h>

#define TIB		(1UL << 40)
#define REFRESHED	(4096 * HUGE_SIZE)
/* On a busy machine a command can end before it is seen. */
#define TRIES		50

/* What the kernel does for a process that ends is in it. */
static long bound_ms(void)
{
	return slow_kernel() ? 20000 : 3000;
}

/* Time of a processor that a process has had, in milliseconds. */
static long cpu_ms(pid_t pid)
{
	struct timespec t;
	clockid_t clock;

	if (clock_getcpuclockid(pid, &clock) || clock_gettime(clock, &t))
		return -1;
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/*
 * Kills a process. Return: what it has had since, of a processor, or -1. That includes
 * what a busy host has not given the guest; the time that the machine had does not.
 */
static long killed(pid_t pid)
{
	long before = cpu_ms(pid), began = had_ms(), cpu, had;
	struct rusage u;
	int status;

	if (before < 0 || kill(pid, SIGKILL) ||
	    wait4(pid, &status, 0, &u) != pid || !WIFSIGNALED(status))
		return -1;
	had = had_ms() - began;
	cpu = (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000 +
	      (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1000 - before;
	return cpu < had ? cpu : had;
}

FIXTURE(kill_time)
{
	struct turns t;
	int sock[2];
};

FIXTURE_SETUP(kill_time)
{
	ASSERT_EQ(0, turns_init(&self->t));
	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0,
				self->sock));
}

FIXTURE_TEARDOWN(kill_time)
{
	close(self->sock[0]);
	close(self->sock[1]);
	EXPECT_TRUE(EVENTUALLY(!nr_contexts()));
	EXPECT_EQ(0, sysfs_read("stats/bytes"));
}

static void refresh(const int *fd)
{
	struct hetmem_cmd_refresh cmd;

	hm_refresh(*fd, FAR, &cmd);
}

/* A child that is in REFRESH. @other, if any, shares its memory and its files. */
static void be_in_refresh(int sock, int (*other)(void *fd))
{
	const size_t stack = 64 * KiB;
	char *p = mmap(NULL, stack, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		       MAP_ANONYMOUS, -1, 0);
	char *far = mmap(FAR, REFRESHED, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS |
			 MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
	int fd = hm_open();
	pid_t pid = 0;
	size_t at;

	CHILD_CHECK(p != MAP_FAILED && far == FAR);
	/* Memory without page tables is one step. */
	madvise(far, REFRESHED, MADV_NOHUGEPAGE);
	for (at = 0; at < REFRESHED; at += HUGE_SIZE)
		far[at] = 1;
	CHILD_CHECK(fd >= 0 && !hm_track(fd, FAR, REFRESHED));
	CHILD_CHECK(!send_fd(sock, fd));
	/* Not a thread, so that it can be killed by itself, by our parent. */
	if (other)
		pid = clone(other, p + stack, CLONE_VM | CLONE_FILES |
			    CLONE_PARENT | SIGCHLD, &fd);
	CHILD_CHECK(pid >= 0 && write(sock, &pid, sizeof(pid)) == sizeof(pid));
	refresh(&fd);
	/* Nobody gets here. */
	_exit(1);
}

/* In REFRESH. Return: a file of its context. */
static int begin(int *sock, int (*other)(void *fd), pid_t *pid, pid_t *others)
{
	int fd;

	*pid = fork();
	if (!*pid)
		be_in_refresh(sock[1], other);
	fd = receive_fd(sock[0]);
	if (fd < 0 || read(sock[0], others, sizeof(*others)) != sizeof(*others) ||
	    !EVENTUALLY(hm_dirty(fd, FAR) < (long)(REFRESHED / HUGE_SIZE) - 10))
		return -1;
	return fd;
}

TEST_F(kill_time, refresh)
{
	bool seen = false;
	pid_t pid, none;
	long cpu, left;
	int fd, i;

	for (i = 0; i < TRIES && !seen; i++) {
		fd = begin(self->sock, NULL, &pid, &none);
		ASSERT_LE(0, fd);
		cpu = killed(pid);
		left = hm_dirty(fd, FAR);
		/* It did not come to its end. */
		seen = cpu >= 0 && left > 0;
		if (seen) {
			EXPECT_GT(bound_ms(), cpu);
			TH_LOG("%ld ms, %ld blocks are left", cpu, left);
		}
		close(fd);
	}
	EXPECT_TRUE(seen);
}

static int untrack(void *fd)
{
	while (hm_dirty(*(int *)fd, FAR) == (long)(REFRESHED / HUGE_SIZE))
		/* time: the pace of looks */
		usleep(1000);
	hm_untrack(*(int *)fd, FAR, REFRESHED);
	/* Nobody gets here, either. */
	_exit(1);
}

/* Sleeps where only a fatal signal wakes it. */
static bool sleeps(pid_t pid)
{
	char path[64], state = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	f = fopen(path, "r");
	if (!f)
		return false;
	if (fscanf(f, "%*d (%*[^)]) %c", &state) != 1)
		state = 0;
	fclose(f);
	return state == 'D';
}

/* It waits for REFRESH, which goes on when it is killed. */
TEST_F(kill_time, untrack_waits)
{
	bool seen = false, waits;
	pid_t pid, waiter;
	long cpu, left;
	int fd, i;

	for (i = 0; i < TRIES && !seen; i++) {
		fd = begin(self->sock, untrack, &pid, &waiter);
		ASSERT_LE(0, fd);
		while (!(waits = sleeps(waiter)) && hm_dirty(fd, FAR) > 0)
			;
		cpu = killed(waiter);
		left = hm_dirty(fd, FAR);
		seen = waits && cpu >= 0 && left > 0;
		if (seen)
			EXPECT_GT(bound_ms(), cpu);
		cpu = killed(pid);
		if (cpu >= 0)
			EXPECT_GT(bound_ms(), cpu);
		close(fd);
	}
	EXPECT_TRUE(seen);
}

/* Tracks as much as one may, and untracks it, for ever. */
static void be_in_untrack(struct turns *t)
{
	size_t size = 64 * TIB;
	int fd;

	turns_in_child(t);
	CHILD_CHECK(!become_nobody());
	fd = hm_open();
	CHILD_CHECK(fd >= 0);
	while (hm_track(fd, FAR, size) == -EDQUOT)
		size -= size / 16 & ~(HUGE_SIZE - 1);
	turn_pass(t->to_parent[1]);
	while (!hm_untrack(fd, FAR, size) && !hm_track(fd, FAR, size))
		;
	_exit(1);
}

TEST_F(kill_time, untrack)
{
	long cpu, most = 0;
	int round;

	for (round = 0; round < test_rounds(24); round++) {
		struct turns t;
		pid_t pid;

		ASSERT_EQ(0, turns_init(&t));
		pid = fork();
		ASSERT_LE(0, pid);
		if (!pid)
			be_in_untrack(&t);
		turns_in_parent(&t);
		ASSERT_TRUE(turn_wait(t.to_parent[0]));
		/* time: the moment varies, and each is right */
		usleep(3000 * round);
		cpu = killed(pid);
		EXPECT_LE(0, cpu);
		if (cpu > most)
			most = cpu;
		close(t.to_child[1]);
		close(t.to_parent[0]);
	}
	TH_LOG("%ld ms at most", most);
	EXPECT_GT(bound_ms(), most);
}

TEST_HARNESS_MAIN
