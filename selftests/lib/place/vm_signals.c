// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Opening the library with hetmem.ko in a process that has many mappings and gets
 * signals all the time. The module's open() visits all mappings and starts over
 * at each signal.
 */
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "driver/hetmem.h"
#include "platform/platform.h"
#include "tap.h"
#include "wait.h"

#define MAPPINGS	20000
/* lockdep counts at most 4,095 locks that are held together. */
#define LOCKDEP_MAPPINGS	1000

static volatile sig_atomic_t signals;

static void on_alarm(int sig)
{
	(void)sig;
	signals = signals + 1;
}

static long now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000L + t.tv_nsec / 1000;
}

/* Opens and closes the library's context. Returns microseconds, or a negative errno. */
static long open_once(void)
{
	char reason[256];
	struct hm_kmod kmod;
	long start = now_us();
	int err = hm_kmod_open(&kmod, NULL, reason, sizeof(reason));

	if (err)
		return err;
	hm_kmod_close(&kmod);
	return now_us() - start + 1;
}

/* Signals that this thread blocks, a bit each. */
static unsigned long blocked(void)
{
	unsigned long bits = 0;
	sigset_t set;
	int sig;

	sigemptyset(&set);
	sigprocmask(SIG_SETMASK, NULL, &set);
	for (sig = 1; sig < 64; sig++)
		if (sigismember(&set, sig) == 1)
			bits |= 1UL << sig;
	return bits;
}

/* The same in a child. A new address space has no notifier yet. */
static long open_in_child(long *shared, long period)
{
	struct sigaction action = { .sa_handler = on_alarm, .sa_flags = SA_RESTART };
	struct itimerval timer = { { 0, period }, { 0, period } };
	unsigned long before;
	int status = -1;
	sigset_t one;
	pid_t pid;

	sigemptyset(&one);
	shared[0] = 0;
	pid = fork();
	if (!pid) {
		sigaction(SIGALRM, &action, NULL);
		sigaddset(&one, SIGUSR1);
		sigprocmask(SIG_BLOCK, &one, NULL);
		before = blocked();
		/* time: signals must come during open(); period 0 sets no timer */
		setitimer(ITIMER_REAL, &timer, NULL);
		shared[0] = open_once();
		shared[1] = before && before == blocked();
		/* Signals arrive again, also those that came in open(). */
		if (period)
			stay_until(signals);
		_exit(0);
	}
	if (pid < 0 || !wait_until(waitpid(pid, &status, WNOHANG) == pid)) {
		kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
	}
	return status ? -ETIMEDOUT : shared[0];
}

int main(void)
{
	const size_t mappings = access("/proc/lockdep", F_OK) ? MAPPINGS : LOCKDEP_MAPPINGS;
	size_t page = sysconf(_SC_PAGESIZE), i;
	long *shared, quiet, stormy;
	char *p;

	shared = mmap(NULL, page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	p = mmap(NULL, 2 * mappings * page, PROT_NONE,
		 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	need(shared != MAP_FAILED && p != MAP_FAILED, "address space");
	/* Every other page, so that no two of them are one mapping. Each has memory. */
	for (i = 0; i < mappings; i++) {
		if (mprotect(p + 2 * i * page, page, PROT_READ | PROT_WRITE))
			break;
		p[2 * i * page] = 1;
	}
	is(i, mappings, "%zu mappings", mappings);
	quiet = open_in_child(shared, 0);
	ok(quiet > 0, "opens without signals: %ld us", quiet);
	/* Several signals fall into the time of one open(). */
	stormy = open_in_child(shared, quiet / 4 + 1);
	ok(stormy > 0, "opens with a signal each %ld us: %ld us", quiet / 4 + 1, stormy);
	ok(shared[1], "the thread has its signal mask again");
	return tap_end();
}
