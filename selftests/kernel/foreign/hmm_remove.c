// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Another driver of a process takes its interval notifier away, for which the kernel waits
 * until no invalidation touches it. Looks of hetmem at the same address space make that
 * wait for nothing else.
 */
#include "libktest/harness.h"
#include "libktest/hmm.h"
#include "libktest/load.h"

#define ROUNDS	test_rounds(100)

struct reader {
	char *p;
	int stop;
	int fd;
	long looks;
	int failed;
};

static void *read_on(void *arg)
{
	struct reader *r = arg;
	struct hetmem_total totals[4];

	while (!__atomic_load_n(&r->stop, __ATOMIC_ACQUIRE)) {
		struct hetmem_cmd_residency cmd = {
			.start = (uintptr_t)r->p,
			.end = (uintptr_t)r->p + HUGE_SIZE,
			.totals = (uintptr_t)totals,
			.nr_totals = ARRAY_SIZE(totals),
			.total_size = sizeof(totals[0]),
		};

		r->failed |= hm_residency(r->fd, &cmd);
		__atomic_add_fetch(&r->looks, 1, __ATOMIC_RELEASE);
	}
	return NULL;
}

/* Voluntary switches while a driver is opened and closed, or a negative errno. */
static long waits_of_removals(void)
{
	long before = thread_waits();
	int i, gpu;

	for (i = 0; i < ROUNDS; i++) {
		gpu = gpu_open(0);
		if (gpu < 0)
			return gpu;
		if (close(gpu))
			return -errno;
	}
	return thread_waits() - before;
}

TEST(waits_for_no_look)
{
	struct reader r = { .p = map_filled(HUGE_SIZE, 1) };
	struct load load = { 0 };
	pthread_t thread;
	long without, with;

	ASSERT_NE(NULL, r.p);
	ASSERT_EQ(0, load_start(&load, false));
	without = waits_of_removals();
	r.fd = hm_open();
	ASSERT_GE(r.fd, 0);
	ASSERT_EQ(0, hm_track(r.fd, r.p, HUGE_SIZE));
	ASSERT_EQ(0, pthread_create(&thread, NULL, read_on, &r));
	ASSERT_TRUE(EVENTUALLY(__atomic_load_n(&r.looks, __ATOMIC_ACQUIRE) > 0));
	with = waits_of_removals();
	__atomic_store_n(&r.stop, 1, __ATOMIC_RELEASE);
	ASSERT_EQ(0, pthread_join(thread, NULL));
	EXPECT_TRUE(load_stop(&load));
	TH_LOG("%d removals: %ld waits, with %ld looks beside them %ld", ROUNDS, without,
	       r.looks, with);
	EXPECT_GE(without, 0);
	EXPECT_GE(with, 0);
	EXPECT_LE(with, 2 * without + ROUNDS);
	EXPECT_EQ(0, r.failed);
	EXPECT_EQ(0, close(r.fd));
	munmap(r.p, HUGE_SIZE);
}

TEST_HARNESS_MAIN
