// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
#include "libktest/load.h"

#include <sys/resource.h>

#define LOAD_SIZE	(1 * MiB)

static bool load_over(const struct load *l)
{
	return __atomic_load_n(&l->stop, __ATOMIC_RELAXED);
}

static void *load_main(void *arg)
{
	struct load_thread *t = arg;
	const bool idle = t - t->load->t < LOAD_IDLE;
	const struct sched_param param = { 0 };
	size_t at;

	if (idle && sched_setscheduler(0, SCHED_IDLE, &param))
		t->failed = true;
	while (!load_over(t->load)) {
		for (at = 0; at < LOAD_SIZE; at += page_size())
			*(volatile char *)(t->p + at) = 1;
		if (madvise(t->p, LOAD_SIZE, idle ? MADV_FREE : MADV_DONTNEED))
			t->failed = true;
		__atomic_fetch_add(&t->done, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

long load_done(const struct load *l)
{
	long done = 0;
	int i;

	for (i = 0; i < l->nr; i++)
		done += __atomic_load_n(&l->t[i].done, __ATOMIC_RELAXED);
	return done;
}

static bool load_has_begun(const struct load *l)
{
	int i;

	for (i = 0; i < l->nr; i++) {
		if (!__atomic_load_n(&l->t[i].done, __ATOMIC_RELAXED))
			return false;
	}
	return true;
}

static int load_add(struct load *l)
{
	struct load_thread *t = &l->t[l->nr];
	int ret;

	t->load = l;
	t->p = mmap(NULL, LOAD_SIZE, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (t->p == MAP_FAILED)
		return -errno;
	madvise(t->p, LOAD_SIZE, MADV_NOHUGEPAGE);
	ret = -pthread_create(&t->thread, NULL, load_main, t);
	l->nr += !ret;
	return ret;
}

int load_start(struct load *l, bool busy)
{
	int ret = 0;

	memset(l, 0, sizeof(*l));
	l->wanted = busy ? LOAD_THREADS : LOAD_IDLE;
	while (l->nr < l->wanted && !ret) {
		ret = load_add(l);
		/* The idle ones get nowhere while the busy ones run. */
		if (!ret && l->nr >= LOAD_IDLE && !EVENTUALLY(load_has_begun(l)))
			ret = -ETIME;
	}
	return ret;
}

bool load_stop(struct load *l)
{
	bool ok = l->nr == l->wanted;

	__atomic_store_n(&l->stop, 1, __ATOMIC_RELAXED);
	for (; l->nr; l->nr--) {
		struct load_thread *t = &l->t[l->nr - 1];

		pthread_join(t->thread, NULL);
		ok &= !t->failed;
		munmap(t->p, LOAD_SIZE);
	}
	return ok;
}

static uint64_t cpu_ns(clockid_t clock)
{
	struct timespec t = { 0 };

	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000ULL + t.tv_nsec;
}

uint64_t thread_cpu_ns(void)
{
	return cpu_ns(CLOCK_THREAD_CPUTIME_ID);
}

long thread_waits(void)
{
	struct rusage usage;

	return getrusage(RUSAGE_THREAD, &usage) ? -errno : usage.ru_nvcsw;
}

long kill_cpu_ms(pid_t pid)
{
	struct rusage usage;
	uint64_t before;
	clockid_t clock;
	int status;
	long ms;

	if (clock_getcpuclockid(pid, &clock))
		return -ESRCH;
	before = cpu_ns(clock) / 1000000;
	if (kill(pid, SIGKILL))
		return -errno;
	while (wait4(pid, &status, 0, &usage) != pid) {
		if (errno != EINTR)
			return -errno;
	}
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
		return -ECHILD;
	ms = (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000 +
	     (usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1000;
	return ms > (long)before ? ms - (long)before : 0;
}
