/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* How long mutexes are held: see hold.h. */
#include <linux/perf_event.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "hold.h"

#define DEPTH	8	/* mutexes that a thread holds at once */

struct held {
	pthread_mutex_t *mutex;
	uint64_t ns;
	uint64_t cpu_ns;
	uint64_t instructions;
};

static __thread struct hold *watched;
static __thread struct held held[DEPTH];
static __thread unsigned int nr_held;

int __real_pthread_mutex_lock(pthread_mutex_t *m);
int __real_pthread_mutex_trylock(pthread_mutex_t *m);
int __real_pthread_mutex_unlock(pthread_mutex_t *m);
int __real_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m);
int __real_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m,
				  const struct timespec *until);
int __wrap_pthread_mutex_lock(pthread_mutex_t *m);
int __wrap_pthread_mutex_trylock(pthread_mutex_t *m);
int __wrap_pthread_mutex_unlock(pthread_mutex_t *m);
int __wrap_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m);
int __wrap_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m,
				  const struct timespec *until);

static uint64_t clock_ns(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return ts.tv_sec * UINT64_C(1000000000) + ts.tv_nsec;
}

uint64_t hold_cpu_ns(void)
{
	return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

int hold_counter(void)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_HARDWARE,
		.size = sizeof(attr),
		.config = PERF_COUNT_HW_INSTRUCTIONS,
		.exclude_kernel = 1,
		.exclude_hv = 1,
	};

	return syscall(SYS_perf_event_open, &attr, 0, -1, -1,
		       PERF_FLAG_FD_CLOEXEC);
}

uint64_t hold_instructions(int counter)
{
	uint64_t count;

	return counter >= 0 && read(counter, &count, sizeof(count)) ==
		sizeof(count) ? count : 0;
}

static void taken(pthread_mutex_t *m)
{
	struct held *h;

	if (!watched || nr_held == DEPTH)
		return;
	h = &held[nr_held++];
	h->mutex = m;
	h->instructions = hold_instructions(watched->counter);
	h->cpu_ns = hold_cpu_ns();
	h->ns = clock_ns(CLOCK_MONOTONIC);
}

/* Called before the mutex is released. */
static void released(pthread_mutex_t *m)
{
	uint64_t ns, cpu_ns, instructions;
	unsigned int i;

	if (!watched)
		return;
	for (i = nr_held; i-- && held[i].mutex != m;)
		;
	if (i == UINT32_MAX)
		return;
	ns = clock_ns(CLOCK_MONOTONIC) - held[i].ns;
	cpu_ns = hold_cpu_ns() - held[i].cpu_ns;
	instructions = hold_instructions(watched->counter) -
		held[i].instructions;
	if (watched->ns < ns)
		watched->ns = ns;
	if (watched->cpu_ns < cpu_ns)
		watched->cpu_ns = cpu_ns;
	if (watched->instructions < instructions)
		watched->instructions = instructions;
	held[i] = held[--nr_held];
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *m)
{
	int err = __real_pthread_mutex_lock(m);

	if (__builtin_expect(!!watched, 0) && !err)
		taken(m);
	return err;
}

int __wrap_pthread_mutex_trylock(pthread_mutex_t *m)
{
	int err = __real_pthread_mutex_trylock(m);

	if (__builtin_expect(!!watched, 0) && !err)
		taken(m);
	return err;
}

int __wrap_pthread_mutex_unlock(pthread_mutex_t *m)
{
	if (__builtin_expect(!!watched, 0))
		released(m);
	return __real_pthread_mutex_unlock(m);
}

int __wrap_pthread_cond_wait(pthread_cond_t *c, pthread_mutex_t *m)
{
	int err;

	released(m);
	err = __real_pthread_cond_wait(c, m);
	taken(m);
	return err;
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *c, pthread_mutex_t *m,
				  const struct timespec *until)
{
	int err;

	released(m);
	err = __real_pthread_cond_timedwait(c, m, until);
	taken(m);
	return err;
}

void hold_begin(struct hold *hold)
{
	nr_held = 0;
	watched = hold;
}

void hold_end(void)
{
	watched = NULL;
}
