// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * open() in a process with many mappings. The first one visits all of them: neither
 * signals nor a tracer keep it from coming back, and later ones have no need to visit
 * anything, also after the last close().
 */
#include "libktest/harness.h"
#include "libktest/sysfs.h"

#include <sys/ptrace.h>
#include <sys/time.h>

#define MAPPINGS	20000
/* lockdep counts at most 4,095 locks that are held together. */
#define LOCKDEP_MAPPINGS	1000

static volatile sig_atomic_t signals;

static void on_alarm(int sig)
{
	(void)sig;
	signals = signals + 1;
}

FIXTURE(opens)
{
	size_t mappings;
	char *p;
	long *shared;
};

/* Every other page, so that no two of them are one mapping. Each has memory. */
FIXTURE_SETUP(opens)
{
	size_t i;

	self->mappings = access("/proc/lockdep", F_OK) ? MAPPINGS : LOCKDEP_MAPPINGS;
	self->shared = mmap(NULL, page_size(), PROT_READ | PROT_WRITE,
			    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, self->shared);
	self->p = mmap(NULL, 2 * self->mappings * page_size(), PROT_NONE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	ASSERT_NE(MAP_FAILED, self->p);
	for (i = 0; i < self->mappings; i++) {
		char *page = self->p + 2 * i * page_size();

		ASSERT_EQ(0, mprotect(page, page_size(), PROT_READ | PROT_WRITE));
		*page = 1;
	}
}

FIXTURE_TEARDOWN(opens)
{
	munmap(self->p, 2 * self->mappings * page_size());
	munmap(self->shared, page_size());
}

/* Of one open() and close(), in nanoseconds, or an errno. */
static long open_once(void)
{
	uint64_t start = now_ns();
	int fd = hm_open();

	if (fd < 0)
		return fd;
	close(fd);
	return now_ns() - start;
}

static unsigned long blocked(void)
{
	unsigned long bits = 0;
	sigset_t set;
	int sig;

	sigprocmask(SIG_SETMASK, NULL, &set);
	for (sig = 1; sig < 64; sig++)
		bits |= (unsigned long)(sigismember(&set, sig) == 1) << sig;
	return bits;
}

/* In a child with a timer that fires each @us, if that is not 0. */
static void open_with_timer(long *shared, long us)
{
	struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	struct itimerval timer = { { 0, us }, { 0, us } };
	unsigned long before;
	sigset_t one;

	sigemptyset(&one);
	sigaddset(&one, SIGUSR1);
	CHILD_CHECK(!sigprocmask(SIG_BLOCK, &one, NULL));
	CHILD_CHECK(!sigaction(SIGALRM, &action, NULL));
	before = blocked();
	/* time: signals must come during open(); 0 sets no timer */
	CHILD_CHECK(!setitimer(ITIMER_REAL, &timer, NULL));
	shared[0] = open_once();
	CHILD_CHECK(blocked() == before);
	/* They come again, those too that came during open(). */
	CHILD_CHECK(!us || EVENTUALLY(signals));
	_exit(0);
}

/* Return: nanoseconds of a first open(), or a negative errno. */
static long first_open(long *shared, long us)
{
	int status = -1;
	pid_t pid = fork();

	if (!pid)
		open_with_timer(shared, us);
	if (pid < 0 || !EVENTUALLY(waitpid(pid, &status, WNOHANG) == pid)) {
		kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
		return -ETIMEDOUT;
	}
	return status ? -EIO : shared[0];
}

TEST_F(opens, under_signals)
{
	long quiet = first_open(self->shared, 0), took;
	int part;

	ASSERT_LT(0, quiet);
	for (part = 2; part <= 8; part *= 2) {
		took = first_open(self->shared, quiet / 1000 / part + 1);
		EXPECT_LT(0, took);
		TH_LOG("%ld us, with a signal each %ld us: %ld us", quiet / 1000,
		       quiet / 1000 / part + 1, took / 1000);
	}
}

/*
 * What no mask holds back, as often as it can be: it comes back all the same, with
 * -EAGAIN if not with a descriptor, and can be tried again.
 */
TEST_F(opens, under_a_tracer)
{
	int status, stops = 0;
	bool ended;
	pid_t pid = fork();

	ASSERT_LE(0, pid);
	if (!pid) {
		long ret;

		raise(SIGSTOP);
		ret = open_once();
		CHILD_CHECK(ret > 0 || ret == -EAGAIN);
		self->shared[0] = 1;
		/* The tracer has seen that, and goes. */
		CHILD_CHECK(EVENTUALLY(__atomic_load_n(&self->shared[1], __ATOMIC_ACQUIRE)));
		_exit(open_once() > 0 ? 0 : 1);
	}
	ASSERT_EQ(pid, waitpid(pid, &status, WUNTRACED));
	ASSERT_EQ(0, ptrace(PTRACE_SEIZE, pid, 0, 0));
	ASSERT_EQ(0, kill(pid, SIGCONT));
	ended = EVENTUALLY(({
		int n;

		for (n = 0; n < 1000 && !__atomic_load_n(&self->shared[0], __ATOMIC_ACQUIRE);
		     n++) {
			ptrace(PTRACE_INTERRUPT, pid, 0, 0);
			if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status))
				break;
			ptrace(PTRACE_CONT, pid, 0, 0);
			stops++;
		}
		__atomic_load_n(&self->shared[0], __ATOMIC_ACQUIRE);
	}));
	EXPECT_TRUE(ended);
	TH_LOG("%d stops", stops);
	if (!ended)
		kill(pid, SIGKILL);
	ptrace(PTRACE_INTERRUPT, pid, 0, 0);
	waitpid(pid, &status, 0);
	ptrace(PTRACE_DETACH, pid, 0, 0);
	__atomic_store_n(&self->shared[1], 1, __ATOMIC_RELEASE);
	EXPECT_EQ(0, child_status(pid));
}

/* The first open() visits the mappings. Those after the last close() do not. */
TEST_F(opens, again)
{
	long first = open_once(), again = first, took, callbacks;
	int i;

	ASSERT_LT(0, first);
	for (i = 0; i < 10; i++) {
		took = open_once();
		ASSERT_LT(0, took);
		again = again < took ? again : took;
	}
	TH_LOG("first %ld us, again %ld us", first / 1000, again / 1000);
	EXPECT_LT(4 * again, first);
	/* The notifier is there for a while. */
	callbacks = sysfs_read("stats/callbacks");
	ASSERT_EQ(0, mprotect(self->p, page_size(), PROT_READ));
	EXPECT_LT(callbacks, sysfs_read("stats/callbacks"));
	EXPECT_EQ(0, sysfs_read("stats/contexts"));
}

/* One process after another leaves a notifier to its end; nothing stays charged. */
TEST_F(opens, left_to_the_end)
{
	long bytes = sysfs_read("stats/bytes");
	int i, k;

	for (i = 0; i < 20; i++) {
		pid_t pid = fork();

		ASSERT_LE(0, pid);
		if (!pid) {
			for (k = 0; k < i % 3 + 1; k++)
				CHILD_CHECK(open_once() > 0);
			if (i % 4 == 1)
				CHILD_CHECK(hm_open() >= 0);
			if (i % 4 == 2)
				kill(getpid(), SIGKILL);
			_exit(0);
		}
		EXPECT_EQ(i % 4 == 2 ? 128 + SIGKILL : 0, child_status(pid));
	}
	EXPECT_TRUE(EVENTUALLY(sysfs_read("stats/bytes") == bytes));
}

TEST_HARNESS_MAIN
