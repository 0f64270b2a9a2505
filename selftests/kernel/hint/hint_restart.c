// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Askers that leave the kernel without a signal handler: stopped, frozen, traced. HINT goes on
 * afterwards with the hint that it had, until its original deadline, and nothing is
 * asked for twice.
 */
#include "libktest/harness.h"
#include "libktest/asker.h"
#include "libktest/sysfs.h"

#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/stat.h>

#define SIZE	(16 * page_size())
#define GROUP	"/tmp/hetmem-cgroup/asker"

enum way { STOPPED, FROZEN, TRACED };

FIXTURE(restart)
{
	struct ring x;		/* executor for FOREIGN(0) */
	char *p;
	long max_hints;
};

FIXTURE_VARIANT(restart)
{
	enum way way;
};

FIXTURE_VARIANT_ADD(restart, stopped) { STOPPED };
FIXTURE_VARIANT_ADD(restart, frozen) { FROZEN };
FIXTURE_VARIANT_ADD(restart, traced) { TRACED };

static int freezer(const char *state)
{
	return write_text(GROUP "/cgroup.freeze", state);
}

/* Whether there is a group that can freeze its tasks. */
static bool freezer_possible(void)
{
	mkdir("/tmp", 0777);
	mkdir("/tmp/hetmem-cgroup", 0777);
	if (mount("none", "/tmp/hetmem-cgroup", "cgroup2", 0, NULL) && errno != EBUSY)
		return false;
	mkdir(GROUP, 0777);
	return !freezer("0");
}

static bool is_frozen(void)
{
	char text[256] = "";
	FILE *f = fopen(GROUP "/cgroup.events", "r");

	if (f)
		text[fread(text, 1, sizeof(text) - 1, f)] = 0;
	if (f)
		fclose(f);
	return strstr(text, "frozen 1");
}

FIXTURE_SETUP(restart)
{
	if (variant->way == FROZEN && !freezer_possible())
		SKIP(return, "kernel lacks the freezer of cgroup2");
	ASSERT_LE(0, executor_open(&self->x, FOREIGN(0), 256));
	ASSERT_EQ(0, hm_allow(self->x.fd, HETMEM_ALLOW_HINTS));
	self->p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, self->p);
	self->max_hints = sysfs_read("caps/max_hints");
}

FIXTURE_TEARDOWN(restart)
{
	struct hetmem_event e;

	/* Each hint came once. */
	EXPECT_FALSE(ring_next(&self->x, &e));
	EXPECT_EQ(0, hints_waiting(self->x.fd, getpid()));
	EXPECT_EQ(0, sysfs_set("caps/max_hints", self->max_hints));
	munmap(self->p, SIZE);
	close(self->x.fd);
}

static void handler(int sig)
{
}

/* A child that asks, and asks once more if @again and that was interrupted. */
static pid_t ask(int fd, const char *p, enum way way, unsigned int timeout_ms, bool again)
{
	struct sigaction sa = { .sa_handler = handler };
	char pid[16];
	int ret;
	pid_t child = fork();

	if (child)
		return child;
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	/* Other contexts end when the test closes them. */
	CHILD_CHECK(!syscall(SYS_close_range, fd + 1, ~0U, 0));
	sigaction(SIGUSR1, &sa, NULL);
	snprintf(pid, sizeof(pid), "%d", getpid());
	CHILD_CHECK(way != FROZEN || !write_text(GROUP "/cgroup.procs", pid));
	CHILD_CHECK(way != TRACED || !ptrace(PTRACE_TRACEME, 0, 0, 0));
	ret = hm_hint(fd, p, SIZE, FOREIGN(0), timeout_ms, NULL);
	if (again && ret == -EINTR)
		ret = hm_hint(fd, p, SIZE, FOREIGN(0), timeout_ms, NULL);
	_exit(-ret);
}

static bool hold(pid_t pid, enum way way)
{
	int status;

	if (way == FROZEN)
		return !freezer("1") && EVENTUALLY(is_frozen());
	return !kill(pid, SIGSTOP) && waitpid(pid, &status, WUNTRACED) == pid &&
	       WIFSTOPPED(status);
}

/* @sig, which a tracer alone can add, or 0. */
static bool let_go(pid_t pid, enum way way, int sig)
{
	switch (way) {
	case FROZEN:
		return !freezer("0");
	case STOPPED:
		return !kill(pid, SIGCONT);
	default:
		return !ptrace(PTRACE_CONT, pid, 0, sig);
	}
}

/* Asks and holds the asker, whose hint is @e. */
#define ASK_AND_HOLD(pid, e, ms, again)						\
	do {									\
		pid = ask(self->x.fd, self->p, variant->way, ms, again);	\
		ASSERT_LE(0, pid);						\
		ASSERT_TRUE(ring_wait(&self->x, e, FOREVER_MS));		\
		ASSERT_EQ(HETMEM_EVENT_HINT, (e)->type);			\
		ASSERT_TRUE(hold(pid, variant->way));				\
	} while (0)

#define LET_GO(pid)	ASSERT_TRUE(let_go(pid, variant->way, 0))

/* Answered afterwards, and while the asker is not there; often. */
TEST_F(restart, answered)
{
	struct hetmem_event e;
	pid_t pid;
	int i;

	for (i = 0; i < 4; i++) {
		ASK_AND_HOLD(pid, &e, FOREVER_MS, false);
		EXPECT_EQ(1, hints_waiting(self->x.fd, getpid()));
		if (i % 2)
			EXPECT_EQ(0, hm_complete(self->x.fd, e.data, -i, 0));
		LET_GO(pid);
		if (i == 2) {
			ASSERT_TRUE(hold(pid, variant->way));
			LET_GO(pid);
		}
		if (i % 2 == 0)
			EXPECT_EQ(0, hm_complete(self->x.fd, e.data, -i, 0));
		EXPECT_EQ(0, child_status(pid));
		EXPECT_EQ(-ENOENT, hm_complete(self->x.fd, e.data, 0, 0));
	}
}

/* The deadline is the first one, before and after it. */
TEST_F(restart, deadline)
{
	const unsigned int timeout_ms = 2000;
	struct hetmem_event e;
	uint64_t end;
	pid_t pid;
	int i;

	for (i = 0; i < 2; i++) {
		ASK_AND_HOLD(pid, &e, timeout_ms, false);
		end = e.time + timeout_ms * 1000000ULL;
		/* time: the deadline comes while the asker is held, or three quarters of it */
		while (now_ns() < end + 50000000 - (i ? timeout_ms / 4 * 1000000ULL : 0))
			usleep(10000); /* time: the same */
		LET_GO(pid);
		EXPECT_EQ(ETIMEDOUT, child_status(pid));
		/* The event is younger than the deadline, which is one of jiffies. */
		EXPECT_LE(end - 10000000, now_ns());
		/* A new one would have lasted as long again. */
		EXPECT_GT(end + timeout_ms * 500000ULL, now_ns());
	}
}

/* The executor goes while the asker is held. */
TEST_F(restart, executor_gone)
{
	struct hetmem_event e;
	struct ring r;
	pid_t pid;

	ASSERT_EQ(0, hm_bind(self->x.fd, FOREIGN(0), 0, uuid_of(FOREIGN(0))));
	ASSERT_LE(0, executor_open(&r, FOREIGN(0), 16));
	pid = ask(self->x.fd, self->p, variant->way, FOREVER_MS, false);
	ASSERT_LE(0, pid);
	ASSERT_TRUE(ring_wait(&r, &e, FOREVER_MS));
	ASSERT_TRUE(hold(pid, variant->way));
	ring_close(&r);
	close(r.fd);
	LET_GO(pid);
	EXPECT_EQ(EOWNERDEAD, child_status(pid));
}

/* A hint whose thread ends while it is held is dropped by the next one. */
TEST_F(restart, killed)
{
	struct hetmem_event e;
	pid_t pid;

	ASSERT_EQ(0, sysfs_set("caps/max_hints", 1));
	ASK_AND_HOLD(pid, &e, FOREVER_MS, false);
	kill(pid, SIGKILL);
	EXPECT_EQ(128 + SIGKILL, child_status(pid));
	EXPECT_EQ(-ETIMEDOUT, hm_hint(self->x.fd, self->p, SIZE, FOREIGN(0), 1, NULL));
	EXPECT_EQ(-ENOENT, hm_complete(self->x.fd, e.data, 0, 0));
	EXPECT_EQ(1, ring_count(&self->x, HETMEM_EVENT_HINT, NULL));
}

/* The place in the queue of one that is held is free after its deadline. */
TEST_F(restart, queue)
{
	struct hetmem_event e;
	int ret;
	pid_t pid;

	ASSERT_EQ(0, sysfs_set("caps/max_hints", 1));
	ASK_AND_HOLD(pid, &e, 500, false);
	EXPECT_TRUE(EVENTUALLY((ret = hm_hint(self->x.fd, self->p, page_size(), FOREIGN(0), 1,
					      NULL)) != -EAGAIN));
	EXPECT_EQ(-ETIMEDOUT, ret);
	EXPECT_EQ(1, ring_count(&self->x, HETMEM_EVENT_HINT, NULL));
	LET_GO(pid);
	EXPECT_EQ(ETIMEDOUT, child_status(pid));
}

/* A handler ends HINT; the same HINT again goes on with the same hint. */
TEST_F(restart, handler)
{
	struct hetmem_event e;
	pid_t pid;

	if (variant->way != TRACED) {
		ASK_AND_HOLD(pid, &e, FOREVER_MS, false);
		ASSERT_EQ(0, kill(pid, SIGUSR1));
		LET_GO(pid);
		EXPECT_EQ(EINTR, child_status(pid));
		/* Gone with its thread. */
		EXPECT_EQ(-ETIMEDOUT, hm_hint(self->x.fd, self->p, SIZE, FOREIGN(0), 1, NULL));
		EXPECT_EQ(1, ring_count(&self->x, HETMEM_EVENT_HINT, NULL));
		return;
	}
	ASK_AND_HOLD(pid, &e, FOREVER_MS, true);
	ASSERT_TRUE(let_go(pid, TRACED, SIGUSR1));
	EXPECT_EQ(1, hints_waiting(self->x.fd, getpid()));
	EXPECT_EQ(0, hm_complete(self->x.fd, e.data, 0, 0));
	EXPECT_EQ(0, child_status(pid));
}

TEST_HARNESS_MAIN
