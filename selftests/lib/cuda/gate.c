// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * gate: the gate before calls of the driver (lib/cuda/gate.h), alone. A call here is
 * hm_gate_enter() and hm_gate_leave(), which entry.c has in assembly.
 */
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "cuda/gate.h"
#include "tap.h"

#define THREADS	6
#define CLOSES	300
/* No call of these tests takes as long, on a slow machine either. */
#define LONG_MS	600000

/* Only changed while the gate is closed, and read inside calls: TSan looks at it. */
static unsigned long guarded;
static atomic_int inside, wrong;

static bool is_closed(void)
{
	return __atomic_load_n(&hm_gate_closed, __ATOMIC_RELAXED);
}

static atomic_bool stop;
static atomic_ulong calls;

static void *call_often(void *arg)
{
	(void)arg;
	while (!stop) {
		unsigned long before;

		if (!hm_gate_enter((uintptr_t)&before))
			wrong++;
		inside++;
		before = guarded;
		if (before != guarded)
			wrong++;
		inside--;
		hm_gate_leave();
		calls++;
	}
	return NULL;
}

/* A thread for each few calls. */
static void *come_and_go(void *arg)
{
	pthread_t thread;

	while (!stop) {
		if (pthread_create(&thread, NULL, (void *(*)(void *))arg, NULL)) {
			wrong++;
			return NULL;
		}
		pthread_join(thread, NULL);
	}
	return NULL;
}

static void *call_once(void *arg)
{
	(void)arg;
	if (!hm_gate_enter((uintptr_t)&inside))
		wrong++;
	inside++;
	if (guarded == ~0UL)
		wrong++;
	inside--;
	hm_gate_leave();
	calls++;
	return NULL;
}

static void test_threads(void)
{
	pthread_t threads[THREADS];
	unsigned int i, failed = 0, seen = 0;
	unsigned long before;

	stop = false;
	for (i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, i < THREADS - 2 ? call_often : come_and_go,
			       (void *)call_once);
	wait_until(calls > 1000);
	for (i = 0; i < CLOSES; i++) {
		if (hm_gate_close(LONG_MS)) {
			failed++;
			continue;
		}
		before = calls;
		seen += inside != 0;
		guarded++;
		sched_yield();
		/* A thread outside can still count the call that it has left. */
		seen += inside != 0 || calls > before + THREADS;
		hm_gate_open();
	}
	before = calls;
	ok(wait_until(calls > before + 1000), "calls go on");
	stop = true;
	for (i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	is(failed, 0, "%d closes of %d threads", CLOSES, THREADS);
	is(seen, 0, "no thread is inside a closed gate");
	is(wrong, 0, "each call comes in once");
}

/* A call that lasts until @stop. */
static atomic_bool nested_passes;

static void *stay_inside(void *arg)
{
	(void)arg;
	hm_gate_enter((uintptr_t)&arg);
	inside++;
	stay_until(is_closed() || stop);
	/* A call inside this one does not wait. */
	nested_passes = !hm_gate_enter((uintptr_t)&arg);
	stay_until(stop);
	inside--;
	hm_gate_leave();
	return NULL;
}

static void test_busy(void)
{
	pthread_t thread;

	stop = false;
	pthread_create(&thread, NULL, stay_inside, NULL);
	need(wait_until(inside == 1), "a call is in flight");
	is(hm_gate_close(20), -EBUSY, "it keeps the gate from closing");
	is(is_closed(), 0, "the gate is open again");
	ok(hm_gate_enter((uintptr_t)&thread), "another call comes in");
	is(hm_gate_close(0), -EBUSY, "a thread inside a call finds the other one");
	stop = true;
	pthread_join(thread, NULL);
	ok(nested_passes, "a call inside a call passes");
	is(hm_gate_close(LONG_MS), 0, "a thread inside a call can close the gate");
	hm_gate_open();
	hm_gate_leave();
}

static atomic_int signals, came_in;

static void note_signal(int signal)
{
	(void)signal;
	signals++;
}

static atomic_int waiter;

static void *wait_outside(void *arg)
{
	(void)arg;
	waiter = gettid();
	hm_gate_enter((uintptr_t)&arg);
	came_in++;
	hm_gate_leave();
	return NULL;
}

static void test_signal(void)
{
	struct sigaction action = { .sa_handler = note_signal };
	pthread_t thread;

	sigaction(SIGUSR1, &action, NULL);
	is(hm_gate_close(LONG_MS), 0, "closed");
	pthread_create(&thread, NULL, wait_outside, NULL);
	ok(wait_until(waiter && thread_sleeps(getpid(), waiter)), "a call waits");
	pthread_kill(thread, SIGUSR1);
	ok(wait_until(signals == 1), "a signal is handled meanwhile");
	ok(wait_until(thread_sleeps(getpid(), waiter)) && !came_in, "the call waits on");
	hm_gate_open();
	pthread_join(thread, NULL);
	is(came_in, 1, "it comes in once the gate is open");
}

/* A destructor of a thread that calls, and lasts until @stop. */
static pthread_key_t key;
static atomic_int rounds;

static void call_late(void *arg)
{
	/* The gate's own destructor has run by the second round. */
	if (rounds++ == 0) {
		pthread_setspecific(key, arg);
		return;
	}
	if (hm_gate_enter((uintptr_t)&arg))
		hm_gate_leave();
	else
		came_in++;
	inside++;
	stay_until(stop);
	inside--;
}

static void *end_late(void *arg)
{
	pthread_setspecific(key, arg);
	hm_gate_enter((uintptr_t)&arg);
	hm_gate_leave();
	return NULL;
}

static void test_late(void)
{
	pthread_t thread;

	stop = false;
	came_in = 0;
	pthread_key_create(&key, call_late);
	pthread_create(&thread, NULL, end_late, &key);
	need(wait_until(inside == 1), "a thread is in its last destructor");
	is(came_in, 1, "its call passes");
	is(hm_gate_close(20), -EBUSY, "the gate does not close over it");
	stop = true;
	pthread_join(thread, NULL);
	is(hm_gate_close(LONG_MS), 0, "it closes when the thread is gone");
	hm_gate_open();
}

static void test_fork(void)
{
	int status = -1;
	pid_t child;

	hm_gate_enter((uintptr_t)&status);
	hm_gate_leave();
	is(hm_gate_close(LONG_MS), 0, "closed before fork()");
	child = fork();
	if (!child) {
		hang_limit(true);
		if (!hm_gate_enter((uintptr_t)&status))
			_exit(1);
		hm_gate_leave();
		_exit(hm_gate_close(LONG_MS) ? 2 : 0);
	}
	waitpid(child, &status, 0);
	is(status, 0, "the gate of a child is open, and closes");
	is(is_closed(), 1, "the parent's stays closed");
	hm_gate_open();
}

int main(void)
{
	hang_limit(true);
	test_fork();
	test_threads();
	test_busy();
	test_signal();
	test_late();
	return tap_end();
}
