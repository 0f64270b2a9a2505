// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Pages that a device has for itself, for atomics. They are on the host, and only
 * their driver can tell them from swapped-out pages. hetmem reports them as
 * UNKNOWN, with EXCLUSIVE_SEEN. test_hmm plays the GPU.
 */
#include "libktest/harness.h"
#include "libktest/hmm.h"
#include "libktest/ring.h"

#define PAGES	32
#define SIZE	(PAGES * page_size())
#define TAKEN	8	/* pages that the GPU takes, from FIRST on */
#define FIRST	4

FIXTURE(exclusive)
{
	int fd, gpu;
	struct ring r;
	char *map, *p;		/* p: tracked, of one block */
	struct hetmem_cmd_refresh refreshed;
};

FIXTURE_SETUP(exclusive)
{
	self->fd = hm_open();
	ASSERT_LE(0, self->fd);
	self->gpu = gpu_open(0);
	ASSERT_LE(0, self->gpu);
	self->map = map_filled(3 * HUGE_SIZE, 1);
	ASSERT_NE(NULL, self->map);
	self->p = (char *)(((uintptr_t)self->map + HUGE_SIZE - 1) &
			   ~(HUGE_SIZE - 1));
	fill(self->p, SIZE, 1);
	ASSERT_EQ(0, hm_track(self->fd, self->p, HUGE_SIZE));
	ASSERT_EQ(0, ring_open(self->fd, 64, ALL_EVENTS, &self->r));
	ASSERT_EQ(0, hm_refresh_all(self->fd, self->p, &self->refreshed));
	ring_drain(&self->r);
}

FIXTURE_TEARDOWN(exclusive)
{
	ring_close(&self->r);
	munmap(self->map, 3 * HUGE_SIZE);
	close(self->gpu);
	EXPECT_EQ(0, close(self->fd));
}

/* The GPU takes pages for itself. It answers with what is in them. */
static int take(int gpu, char *p, size_t size, uint64_t seed, size_t offset)
{
	struct hmm_dmirror_cmd cmd;
	char *data = malloc(size);
	int i, ret = -ENOMEM;

	/* A page that is busy for a moment is asked for again. */
	for (i = 0; data && i < 50; i++) {
		ret = gpu_call(gpu, HMM_DMIRROR_EXCLUSIVE, p, size, data, &cmd);
		if (ret != -EBUSY && ret != -EAGAIN && ret != -ENOENT)
			break;
		/* time: the pace of looks */
		usleep(1000);
	}
	if (!ret && mismatch_at(data, size, seed, offset) >= 0)
		ret = -EILSEQ;
	free(data);
	return ret;
}

#define AT	(self->p + FIRST * page_size())
#define TAKE()	take(self->gpu, AT, TAKEN * page_size(), 1, FIRST * page_size())
#define WHY(at)	run_at(self->fd, at).why
#define TAKEN_TIMES hm_notified(self->fd, self->p, HETMEM_CHANGE_EXCLUSIVE)

TEST_F(exclusive, told)
{
	struct hetmem_cmd_migrate m;
	struct hetmem_run run;
	struct hetmem_event e;

	ASSERT_EQ(0, TAKE());
	EXPECT_LE(1, TAKEN_TIMES);
	ASSERT_TRUE(ring_next(&self->r, &e));
	EXPECT_EQ(HETMEM_EVENT_INVALIDATED, e.type);
	EXPECT_EQ(HETMEM_CHANGE_EXCLUSIVE, e.cause);
	EXPECT_EQ(1, hm_dirty(self->fd, self->p));

	run = run_at(self->fd, AT);
	EXPECT_EQ(NO_LOC, run.location);
	EXPECT_EQ(HETMEM_WHY_ABSENT | HETMEM_WHY_EXCLUSIVE_SEEN, run.why);
	EXPECT_EQ(TAKEN, pages_at(self->fd, self->p, SIZE, NO_LOC));
	/* The others are where they were. */
	EXPECT_EQ(PAGES - TAKEN, pages_of_kind(self->fd, self->p, SIZE,
					       HETMEM_HOST));
	EXPECT_EQ(0, WHY(self->p));
	/* REFRESH adds no event: they went to no device and came from none. */
	EXPECT_EQ(0, hm_refresh_all(self->fd, self->p, &self->refreshed));
	EXPECT_EQ(0, self->refreshed.on_device);
	while (ring_next(&self->r, &e))
		EXPECT_EQ(HETMEM_EVENT_INVALIDATED, e.type);
	/* The look of REFRESH changes nothing. */
	EXPECT_EQ(HETMEM_WHY_ABSENT | HETMEM_WHY_EXCLUSIVE_SEEN, WHY(AT));

	ASSERT_EQ(0, hm_migrate(self->fd, self->p, SIZE, ANY_HOST, &m));
	EXPECT_EQ(PAGES - TAKEN, (long)m.already);
	EXPECT_EQ(TAKEN, (long)m.not_moved);
	EXPECT_EQ((uintptr_t)AT, m.why_addr);
	EXPECT_EQ(HETMEM_WHY_ABSENT | HETMEM_WHY_EXCLUSIVE_SEEN, m.why);
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
}

/* The CPU takes them back: EXCLUSIVE is not the last change any more. */
TEST_F(exclusive, taken_back)
{
	char *hole = self->p + HUGE_SIZE - page_size();
	long before;

	ASSERT_EQ(0, madvise(hole, page_size(), MADV_DONTNEED));
	EXPECT_EQ(HETMEM_WHY_ABSENT, WHY(hole));
	ASSERT_EQ(0, TAKE());
	/* It is of the block: another absent page there is reported alike. */
	EXPECT_EQ(HETMEM_WHY_ABSENT | HETMEM_WHY_EXCLUSIVE_SEEN, WHY(hole));
	EXPECT_EQ(0, hm_refresh_all(self->fd, self->p, &self->refreshed));
	before = TAKEN_TIMES;
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
	EXPECT_EQ(1, hm_dirty(self->fd, self->p));
	/* Older kernels (6.12) announce in the same way that the CPU takes them. */
	EXPECT_EQ(HETMEM_WHY_ABSENT | (TAKEN_TIMES > before ?
				       HETMEM_WHY_EXCLUSIVE_SEEN : 0), WHY(hole));
	EXPECT_EQ(PAGES, pages_of_kind(self->fd, self->p, SIZE, HETMEM_HOST));
	fill(AT, TAKEN * page_size(), 2);
	ASSERT_EQ(0, take(self->gpu, AT, TAKEN * page_size(), 2, 0));
	EXPECT_EQ(HETMEM_WHY_ABSENT | HETMEM_WHY_EXCLUSIVE_SEEN, WHY(AT));
	EXPECT_EQ(-1, mismatch(AT, TAKEN * page_size(), 2));
}

/* Only the context that tracks the memory knows. */
TEST_F(exclusive, of_tracked_memory)
{
	char *other = self->p + HUGE_SIZE;
	int fd = hm_open();

	ASSERT_LE(0, fd);
	fill(other, SIZE, 3);
	ASSERT_EQ(0, take(self->gpu, other, page_size(), 3, 0));
	EXPECT_EQ(HETMEM_WHY_ABSENT, WHY(other));
	ASSERT_EQ(0, TAKE());
	EXPECT_EQ(HETMEM_WHY_ABSENT, run_at(fd, AT).why);
	EXPECT_EQ(HETMEM_WHY_ABSENT | HETMEM_WHY_EXCLUSIVE_SEEN, WHY(AT));
	ASSERT_EQ(0, hm_untrack(self->fd, self->p, HUGE_SIZE));
	EXPECT_EQ(HETMEM_WHY_ABSENT, WHY(AT));
	ASSERT_EQ(0, hm_track(self->fd, self->p, HUGE_SIZE));
	EXPECT_EQ(HETMEM_WHY_ABSENT, WHY(AT));
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
	EXPECT_EQ(-1, mismatch(other, SIZE, 3));
	close(fd);
}

/* fork() gives the pages back to the CPU: both processes have the contents. */
TEST_F(exclusive, forked)
{
	pid_t pid;

	ASSERT_EQ(0, TAKE());
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		struct hetmem_cmd_migrate m;
		int fd = hm_open();

		CHILD_CHECK(fd >= 0);
		CHILD_CHECK(!hm_migrate(fd, self->p, SIZE, ANY_HOST, &m));
		CHILD_CHECK(mismatch(self->p, SIZE, 1) < 0);
		fill(self->p, SIZE, 9);
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
}

/* MIGRATE with PIN pins the neighbours, which can be seen. */
TEST_F(exclusive, pinned)
{
	struct hetmem_cmd_migrate m;

	ASSERT_EQ(0, TAKE());
	ASSERT_EQ(0, hm_pin(self->fd, self->p, SIZE, FOREVER_MS, &m));
	EXPECT_EQ(PAGES - TAKEN, (long)m.pinned);
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
	ASSERT_EQ(0, hm_pin(self->fd, self->p, SIZE, FOREVER_MS, &m));
	EXPECT_EQ(PAGES, (long)m.pinned);
	ASSERT_EQ(0, hm_unpin(self->fd, self->p, SIZE, NULL));
}

TEST_HARNESS_MAIN
