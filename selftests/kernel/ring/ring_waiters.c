// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Many who poll one ring: a notification costs the same as without them, for it can be
 * another process that has it, or the kernel that needs memory. Each of them is woken.
 */
#include "libktest/harness.h"
#include "libktest/load.h"
#include "libktest/ring.h"

#include <sys/epoll.h>
#include <sys/resource.h>

#define WAITERS	20000
#define ROUNDS	20

/*
 * CPU time of this thread, in ns, for what notifies: the least of some, for a busy host
 * stops a guest at any time.
 */
static uint64_t notify_ns(char *p)
{
	uint64_t least = UINT64_MAX, begin, ns;
	int i;

	for (i = 0; i < ROUNDS; i++) {
		*(volatile char *)p = 1;
		begin = thread_cpu_ns();
		madvise(p, page_size(), MADV_DONTNEED);
		ns = thread_cpu_ns() - begin;
		if (ns < least)
			least = ns;
	}
	return least;
}

TEST(polled_by_many)
{
	const struct rlimit limit = { WAITERS + 100, WAITERS + 100 };
	struct epoll_event ev = { .events = EPOLLIN };
	char *p = map_filled(page_size(), 1);
	int fd = hm_open(), *ep = calloc(WAITERS, sizeof(*ep)), i;
	uint64_t without, with;
	struct ring r;

	ASSERT_TRUE(p && ep);
	ASSERT_EQ(0, setrlimit(RLIMIT_NOFILE, &limit));
	ASSERT_EQ(0, ring_open(fd, 256, ALL_EVENTS, &r));
	ASSERT_EQ(0, hm_track(fd, p, page_size()));
	without = notify_ns(p);
	ring_drain(&r);
	for (i = 0; i < WAITERS; i++) {
		ep[i] = epoll_create1(EPOLL_CLOEXEC);
		ASSERT_LE(0, ep[i]);
		ASSERT_EQ(0, epoll_ctl(ep[i], EPOLL_CTL_ADD, fd, &ev));
	}
	with = notify_ns(p);
	TH_LOG("without %lu ns, with %lu ns", without, with);
	EXPECT_LT(with, 20 * (without > CPU_CLOCK_NS ? without : CPU_CLOCK_NS));
	for (i = 0; i < WAITERS; i += 199)
		EXPECT_TRUE(EVENTUALLY(epoll_wait(ep[i], &ev, 1, 0) == 1));
	for (i = 0; i < WAITERS; i++)
		close(ep[i]);
	ring_close(&r);
	close(fd);
	munmap(p, page_size());
	free(ep);
}

TEST_HARNESS_MAIN
