// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Thrash with a driver that is not registered. It announces migrations, but
 * neither their direction nor their success. First use, bulk moves, a progressive
 * migration in many faults and our own MIGRATE are no thrash. Memory that goes
 * back and forth is. test_hmm plays the GPU.
 */
#include "libktest/harness.h"
#include "libktest/hmm.h"
#include "libktest/ring.h"
#include "libktest/sysfs.h"

#define PAGES	64
#define SIZE	(PAGES * page_size())

/* time: the next announcement belongs to another epoch, of 10 ms in clock ticks */
#define EPOCH()	usleep(40000)

/* What one epoch of a progressive migration moves. */
#define STEP	(4 * page_size())

FIXTURE(thrash)
{
	int fd, gpu;
	struct ring r;
	char *map, *p;		/* p: tracked, of one block */
	long count, window;
};

FIXTURE_SETUP(thrash)
{
	self->fd = hm_open();
	ASSERT_LE(0, self->fd);
	self->gpu = gpu_open(0);
	ASSERT_LE(0, self->gpu);
	self->map = map_filled(2 * HUGE_SIZE, 0);
	ASSERT_NE(NULL, self->map);
	self->p = (char *)(((uintptr_t)self->map + HUGE_SIZE - 1) &
			   ~(HUGE_SIZE - 1)) + SIZE;
	fill(self->p, SIZE, 1);
	ASSERT_EQ(0, hm_track(self->fd, self->p, SIZE));
	ASSERT_EQ(0, ring_open(self->fd, 256, EVENT(THRASH), &self->r));
	self->count = sysfs_read("thrash/count");
	self->window = sysfs_read("thrash/window_ms");
	ASSERT_EQ(0, sysfs_set("thrash/window_ms", 600000));
}

FIXTURE_TEARDOWN(thrash)
{
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
	EXPECT_EQ(0, sysfs_set("thrash/count", self->count));
	EXPECT_EQ(0, sysfs_set("thrash/window_ms", self->window));
	ring_close(&self->r);
	munmap(self->map, 2 * HUGE_SIZE);
	close(self->gpu);
	EXPECT_EQ(0, close(self->fd));
}

/* How often the range was found to thrash, or an errno. */
static long thrashed(int fd, const void *p)
{
	struct hetmem_cmd_stats st;
	int ret = hm_stats(fd, p, &st);

	return ret ? ret : (long)st.thrashed;
}

#define THRASHED thrashed(self->fd, self->p)
#define ATTEMPTS hm_notified(self->fd, self->p, HETMEM_CHANGE_MIGRATE)

/* To the GPU, in one try: busy pages stay, and to try them again would count. */
static int try_to_gpu(int gpu, char *p, size_t size)
{
	struct hmm_dmirror_cmd cmd;
	char *data = malloc(size);
	int ret = -ENOMEM;

	if (data)
		ret = gpu_call(gpu, HMM_DMIRROR_MIGRATE_TO_DEV, p, size, data,
			       &cmd);
	free(data);
	return ret == -ENOENT ? 0 : ret;
}

/* To the GPU page by page, in many epochs; and back by CPU faults. */
static int progress_to_gpu(int gpu, char *p)
{
	size_t at;
	int ret = 0;

	for (at = 0; at < SIZE && !ret; at += page_size()) {
		ret = try_to_gpu(gpu, p + at, page_size());
		if ((at + page_size()) % STEP == 0)
			EPOCH();
	}
	return ret;
}

static int progress_to_host(char *p)
{
	size_t at;

	for (at = 0; at < SIZE; at += STEP) {
		if (mismatch_at(p + at, STEP, 1, at) >= 0)
			return -EILSEQ;
		EPOCH();
	}
	return 0;
}

/* Memory goes there once: some was never touched, some was. */
TEST_F(thrash, first_use)
{
	size_t at;

	ASSERT_EQ(0, sysfs_set("thrash/count", 2));
	ASSERT_EQ(0, madvise(self->p, SIZE / 2, MADV_DONTNEED));
	for (at = 0; at < SIZE / 2; at += page_size()) {
		ASSERT_EQ(0, try_to_gpu(self->gpu, self->p + at, page_size()));
		if (at % STEP == 0)
			EPOCH();
	}
	ASSERT_EQ(0, try_to_gpu(self->gpu, self->p + SIZE / 2, SIZE / 2));
	EXPECT_LE(PAGES / 2 + 1, ATTEMPTS);
	EXPECT_EQ(0, THRASHED);
	EXPECT_TRUE(all_zero(self->p, SIZE / 2));
	fill(self->p, SIZE / 2, 1);
}

/* Once there and back is one change of direction. */
TEST_F(thrash, bulk)
{
	ASSERT_EQ(0, sysfs_set("thrash/count", 2));
	ASSERT_EQ(0, try_to_gpu(self->gpu, self->p, SIZE));
	EPOCH();
	ASSERT_EQ(0, from_gpu(self->gpu, self->p, SIZE));
	EXPECT_LE(2, ATTEMPTS);
	EXPECT_EQ(0, THRASHED);
	EXPECT_FALSE(self->r.h->head);
}

TEST_F(thrash, progressive)
{
	long before = ATTEMPTS;

	/* Three changes of direction at most, in 16 epochs each. */
	ASSERT_EQ(0, sysfs_set("thrash/count", 4));
	ASSERT_EQ(0, progress_to_gpu(self->gpu, self->p));
	ASSERT_EQ(0, progress_to_host(self->p));
	ASSERT_EQ(0, progress_to_gpu(self->gpu, self->p));
	ASSERT_EQ(0, progress_to_host(self->p));
	EXPECT_LE(2 * PAGES, ATTEMPTS - before);
	EXPECT_EQ(0, THRASHED);
	EXPECT_FALSE(self->r.h->head);
}

/*
 * Our own MIGRATE to the host, which test_hmm carries out page by page, does not
 * count. Each return to the GPU does.
 */
TEST_F(thrash, own_migrate)
{
	struct hetmem_cmd_migrate m;
	int i;

	ASSERT_EQ(0, sysfs_set("thrash/count", 2));
	for (i = 0; i < 3; i++) {
		ASSERT_EQ(0, try_to_gpu(self->gpu, self->p, SIZE));
		EXPECT_EQ(i == 2, THRASHED);
		EPOCH();
		ASSERT_EQ(0, hm_migrate(self->fd, self->p, SIZE, ANY_HOST, &m));
		EXPECT_LE(PAGES / 2, (long)m.moved);
		EPOCH();
		EXPECT_EQ(i == 2, THRASHED);
	}
	EXPECT_LE(3 * PAGES / 2, ATTEMPTS);
	EXPECT_EQ(1, ring_count(&self->r, HETMEM_EVENT_THRASH, NULL));
}

/* The CPU and the GPU use the same pages in turns. */
TEST_F(thrash, ping_pong)
{
	enum { COUNT = 4, ROUNDS = 8 };
	long total = sysfs_read("stats/thrashed"), told = 0, times;
	struct hetmem_event e;
	int i;

	ASSERT_EQ(0, sysfs_set("thrash/count", COUNT));
	for (i = 0; i < ROUNDS; i++) {
		ASSERT_EQ(0, try_to_gpu(self->gpu, self->p, SIZE));
		EPOCH();
		ASSERT_EQ(-1, mismatch(self->p, SIZE, 1));
		EPOCH();
	}
	times = THRASHED;
	/* Each way except the first counts, once. */
	EXPECT_EQ((2 * ROUNDS - 1) / COUNT, times);
	EXPECT_EQ(times, sysfs_read("stats/thrashed") - total);
	while (ring_next(&self->r, &e)) {
		EXPECT_EQ(HETMEM_EVENT_THRASH, e.type);
		EXPECT_EQ(COUNT, (int)e.count);
		/* A driver that migrates does not say for which device. */
		EXPECT_EQ(0, e.location);
		EXPECT_EQ((uintptr_t)self->p, e.start);
		EXPECT_EQ((uintptr_t)self->p + SIZE, e.end);
		told++;
	}
	EXPECT_EQ(times, told);
}

/* One page that goes back and forth, among others that stay, is enough. */
TEST_F(thrash, one_page)
{
	char *page = self->p + 5 * page_size();
	int i;

	ASSERT_EQ(0, sysfs_set("thrash/count", 6));
	ASSERT_EQ(0, to_gpu(self->gpu, self->p, SIZE, 1));
	for (i = 0; i < 8; i++) {
		EPOCH();
		ASSERT_EQ(-1, mismatch_at(page, page_size(), 1,
					  5 * page_size()));
		EPOCH();
		ASSERT_EQ(0, to_gpu_at(self->gpu, page, page_size(), 1,
				       5 * page_size()));
	}
	EXPECT_LE(1, THRASHED);
	EXPECT_EQ(THRASHED, ring_count(&self->r, HETMEM_EVENT_THRASH, NULL));
}

/* The driver tries in vain to migrate pages that are pinned: reported. */
TEST_F(thrash, in_vain)
{
	struct hetmem_cmd_migrate m;
	int i;

	ASSERT_EQ(0, sysfs_set("thrash/count", 3));
	ASSERT_EQ(0, hm_pin(self->fd, self->p, SIZE, FOREVER_MS, &m));
	ASSERT_EQ(PAGES, (long)m.pinned);
	for (i = 0; i < 6; i++) {
		EXPECT_EQ(0, try_to_gpu(self->gpu, self->p, page_size()));
		EPOCH();
	}
	EXPECT_LE(1, THRASHED);
	EXPECT_EQ(PAGES, pages_of_kind(self->fd, self->p, SIZE, HETMEM_HOST));
}

/* Only what happens within the window counts, and only in tracked memory. */
TEST_F(thrash, window)
{
	int i;

	ASSERT_EQ(0, sysfs_set("thrash/count", 2));
	ASSERT_EQ(0, sysfs_set("thrash/window_ms", 1));
	for (i = 0; i < 4; i++) {
		EPOCH();
		ASSERT_EQ(0, to_gpu(self->gpu, self->p, SIZE, 1));
		EPOCH();
		ASSERT_EQ(0, from_gpu(self->gpu, self->p, SIZE));
	}
	EXPECT_EQ(0, THRASHED);
	ASSERT_EQ(0, sysfs_set("thrash/window_ms", 600000));
	fill(self->p - SIZE, SIZE, 2);
	for (i = 0; i < 2; i++) {
		EPOCH();
		ASSERT_EQ(0, to_gpu(self->gpu, self->p - SIZE, SIZE, 2));
		EPOCH();
		ASSERT_EQ(0, from_gpu(self->gpu, self->p - SIZE, SIZE));
	}
	EXPECT_EQ(0, THRASHED);
	EXPECT_FALSE(self->r.h->head);
	for (i = 0; i < 2; i++) {
		EPOCH();
		ASSERT_EQ(0, to_gpu(self->gpu, self->p, SIZE, 1));
		EPOCH();
		ASSERT_EQ(0, from_gpu(self->gpu, self->p, SIZE));
	}
	EXPECT_LE(1, THRASHED);
}

TEST_HARNESS_MAIN
