/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Threads that keep an address space busy with invalidations of memory of their own: eight
 * of SCHED_IDLE in MADV_FREE, which are preempted in the midst of it, and two of the usual
 * class in MADV_DONTNEED.
 */
#ifndef LIBKTEST_LOAD_H
#define LIBKTEST_LOAD_H

#include "libktest/base.h"

#include <pthread.h>

#define LOAD_IDLE	8
#define LOAD_BUSY	2
#define LOAD_THREADS	(LOAD_IDLE + LOAD_BUSY)

struct load_thread {
	struct load *load;
	pthread_t thread;
	char *p;
	long done;		/* madvise() */
	bool failed;
};

struct load {
	int stop;
	int nr, wanted;
	struct load_thread t[LOAD_THREADS];
};

/*
 * Starts the idle ones and, with @busy, the others; returns when each has called madvise()
 * once at least. Where the busy ones leave no time to the others, the kernel's RCU readers
 * among those may hold up whoever waits for a grace period, for seconds.
 */
int load_start(struct load *l, bool busy);

/* Calls of madvise() so far. */
long load_done(const struct load *l);

/* False: a call failed, also the one that started them. */
bool load_stop(struct load *l);

/* CPU time of the calling thread in ns, and its voluntary switches so far. */
uint64_t thread_cpu_ns(void);
long thread_waits(void);

/*
 * The least difference of thread_cpu_ns() that says something: on a busy host a guest's
 * clock stands still for a while, and then less is told than was used.
 */
#define CPU_CLOCK_NS	((uint64_t)50000)

/*
 * Kills @pid and waits for its end. Return: the CPU time, in ms, that the process took
 * from SIGKILL to its end; or a negative errno, -ECHILD if it ended by itself.
 */
long kill_cpu_ms(pid_t pid);

#endif
