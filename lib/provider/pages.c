// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Anonymous pages: mapped so that huge ones fit, placed near a node, and made
 * to be there by several threads. The kernel zeroes pages in the thread that
 * faults, at some 5 GB/s; four threads are about as much as memory is worth,
 * and more of them get in each other's way.
 */
#include <errno.h>
#include <numaif.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

#include "driver/hetmem.h"
#include "platform/platform.h"
#include "provider/pages.h"

#define DEFAULT_THREADS	4
/* Less than this is not worth a thread. */
#define MIN_SHARE	((size_t)8 << 20)

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE	23
#endif

/* What one thread makes; @slow_ns as of hm_pages_populate(). */
struct share {
	char *start;
	size_t size;
	size_t page_size;
	uint64_t slow_ns;
	int err;
};

void *hm_pages_map(size_t size, size_t page_size)
{
	const size_t align = size < HM_HUGE_SIZE ? page_size : HM_HUGE_SIZE;
	const size_t slack = align - page_size;
	uintptr_t raw, start;
	void *p;

	if (size > PTRDIFF_MAX - slack) {
		errno = ENOMEM;
		return NULL;
	}
	p = mmap(NULL, size + slack, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	raw = (uintptr_t)p;
	start = (raw + align - 1) & ~(align - 1);
	if (start > raw)
		munmap(p, start - raw);
	if (raw + slack > start)
		munmap((void *)(start + size), raw + slack - start);
	/* A kernel without huge pages says -EINVAL: nothing is lost. */
	if (align == HM_HUGE_SIZE)
		madvise((void *)start, size, MADV_HUGEPAGE);
	return (void *)start;
}

/* Maps @fd twice, at addresses that the process has already. */
static bool map_twice(char *p, size_t size, int fd)
{
	int i;

	for (i = 0; i < 2; i++)
		if (mmap(p + i * size, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
			 0) == MAP_FAILED)
			return false;
	return true;
}

void *hm_pages_map_ring(size_t size)
{
	int fd = memfd_create("hetmem ring", MFD_CLOEXEC), err;
	void *p = MAP_FAILED;

	if (fd < 0)
		return NULL;
	if (!ftruncate(fd, size))
		p = mmap(NULL, 2 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
			 0);
	if (p != MAP_FAILED && !map_twice(p, size, fd)) {
		err = errno;
		munmap(p, 2 * size);
		errno = err;
		p = MAP_FAILED;
	}
	err = errno;
	close(fd);
	errno = err;
	return p == MAP_FAILED ? NULL : p;
}

/* Nearer is better, and elsewhere is better than nothing. */
void hm_pages_prefer(void *ptr, size_t size, int node)
{
	unsigned long mask[16] = { 0 };
	const unsigned int bits = 8 * sizeof(mask[0]);

	if (node < 0 || (unsigned int)node >= 16 * bits || !hm_numa_there())
		return;
	mask[node / bits] = 1UL << node % bits;
	mbind(ptr, size, MPOL_PREFERRED, mask, 16 * bits, 0);
}

/* 0 or -ENOMEM. */
static int populate_range(char *start, size_t size, size_t page_size)
{
	size_t at;

	if (!madvise(start, size, MADV_POPULATE_WRITE))
		return 0;
	if (errno != EINVAL)
		return -ENOMEM;
	/* Kernels before 5.14 */
	for (at = 0; at < size; at += page_size)
		*(volatile char *)(start + at) = 0;
	return 0;
}

/* By huge pages, until too many of them are slow. */
static void *populate(void *arg)
{
	struct share *s = arg;
	unsigned int slow = 0;
	size_t at = 0, step;
	uint64_t began;

	s->err = 0;
	while (at < s->size && !s->err) {
		step = slow >= HM_PAGES_SLOW || s->size - at < HM_HUGE_SIZE ?
			s->size - at : HM_HUGE_SIZE;
		began = hm_now();
		s->err = populate_range(s->start + at, step, s->page_size);
		at += step;
		if (step != HM_HUGE_SIZE || hm_now() - began <= s->slow_ns)
			continue;
		/* A kernel without huge pages says -EINVAL: nothing is lost. */
		if (++slow == HM_PAGES_SLOW && at < s->size)
			madvise(s->start + at, s->size - at, MADV_NOHUGEPAGE);
	}
	return NULL;
}

static unsigned int nr_cpus(void)
{
	cpu_set_t set;

	return sched_getaffinity(0, sizeof(set), &set) ? 1 : CPU_COUNT(&set);
}

static unsigned int choose_threads(size_t size, unsigned int threads)
{
	if (!threads) {
		threads = nr_cpus();
		if (threads > DEFAULT_THREADS)
			threads = DEFAULT_THREADS;
	}
	if (threads > HM_PAGES_THREADS)
		threads = HM_PAGES_THREADS;
	if (threads > size / MIN_SHARE)
		threads = size / MIN_SHARE;
	return threads ? threads : 1;
}

int hm_pages_populate(void *ptr, size_t size, size_t page_size,
		      unsigned int threads, uint64_t slow_ns)
{
	struct share shares[HM_PAGES_THREADS];
	pthread_t workers[HM_PAGES_THREADS];
	bool started[HM_PAGES_THREADS];
	size_t at = 0, each;
	sigset_t all, old;
	unsigned int i;
	int err = 0;

	threads = choose_threads(size, threads);
	each = (size / threads + HM_HUGE_SIZE - 1) & ~(HM_HUGE_SIZE - 1);
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	for (i = 0; i < threads; i++) {
		shares[i].start = (char *)ptr + at;
		shares[i].size = size - at < each || i == threads - 1 ?
			size - at : each;
		shares[i].page_size = page_size;
		shares[i].slow_ns = slow_ns ? slow_ns : HM_PAGES_SLOW_NS;
		at += shares[i].size;
		started[i] = i && !pthread_create(&workers[i], NULL, populate,
						  &shares[i]);
	}
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	/* The first share is the caller's, and those nobody came for. */
	for (i = 0; i < threads; i++)
		if (!started[i])
			populate(&shares[i]);
	for (i = 0; i < threads; i++) {
		if (started[i])
			pthread_join(workers[i], NULL);
		if (shares[i].err)
			err = shares[i].err;
	}
	return err;
}
