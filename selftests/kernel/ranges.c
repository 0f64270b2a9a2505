// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * TRACK and UNTRACK: which ranges fit beside each other, how many a context
 * may have, and many threads doing both at once.
 */
#include "hetmem_test.h"
#include "hetmem_mem.h"

#include <pthread.h>

/* Nothing is mapped there, which TRACK does not look at. */
#define BASE	((char *)0x200000000000UL)
#define PAGES(n) ((n) * page_size())

FIXTURE(ranges)
{
	int fd;
};

FIXTURE_SETUP(ranges)
{
	self->fd = hm_open();
	ASSERT_GE(self->fd, 0);
}

FIXTURE_TEARDOWN(ranges)
{
	EXPECT_EQ(0, close(self->fd));
}

static long nr_ranges(int fd)
{
	struct hetmem_cmd_info info;
	int ret = hm_info(fd, &info);

	return ret ? ret : (long)info.nr_ranges;
}

/* Every way in which two ranges can overlap. */
TEST_F(ranges, overlap)
{
	static const struct {
		const char *shape;
		int start, end;		/* pages; the range is [10, 20) */
	} shapes[] = {
		{ "the same", 10, 20 },
		{ "inside", 12, 18 },
		{ "inside, at the start", 10, 11 },
		{ "inside, at the end", 19, 20 },
		{ "around", 5, 25 },
		{ "around, from the same start", 10, 25 },
		{ "around, to the same end", 5, 20 },
		{ "over the start", 5, 11 },
		{ "over the end", 19, 25 },
	};
	size_t i;

	ASSERT_EQ(0, hm_track(self->fd, BASE + PAGES(10), PAGES(10)));
	for (i = 0; i < ARRAY_SIZE(shapes); i++) {
		EXPECT_EQ(-EEXIST,
			  hm_track(self->fd, BASE + PAGES(shapes[i].start),
				   PAGES(shapes[i].end - shapes[i].start))) {
			TH_LOG("%s", shapes[i].shape);
		}
	}
	EXPECT_EQ(1, nr_ranges(self->fd));
	EXPECT_EQ(0, hm_untrack(self->fd, BASE + PAGES(10), PAGES(10)));
}

TEST_F(ranges, adjacent)
{
	struct hetmem_cmd_stats st;

	ASSERT_EQ(0, hm_track(self->fd, BASE + PAGES(10), PAGES(10)));
	EXPECT_EQ(0, hm_track(self->fd, BASE + PAGES(9), PAGES(1)));
	EXPECT_EQ(0, hm_track(self->fd, BASE + PAGES(20), PAGES(1)));
	EXPECT_EQ(3, nr_ranges(self->fd));
	/* They stay three. */
	EXPECT_EQ(0, hm_stats(self->fd, BASE + PAGES(9), &st));
	EXPECT_EQ((uintptr_t)BASE + PAGES(10), st.end);
	EXPECT_EQ(0, hm_stats(self->fd, BASE + PAGES(20), &st));
	EXPECT_EQ((uintptr_t)BASE + PAGES(20), st.start);
}

TEST_F(ranges, untrack_wants_exact_bounds)
{
	static const int wrong[][2] = {
		{ 10, 19 }, { 11, 20 }, { 9, 20 }, { 10, 21 }, { 9, 21 },
		{ 12, 18 }, { 0, 10 }, { 20, 30 }, { 40, 50 },
	};
	size_t i;

	EXPECT_EQ(-ENOENT, hm_untrack(self->fd, BASE + PAGES(10), PAGES(10)));
	ASSERT_EQ(0, hm_track(self->fd, BASE + PAGES(10), PAGES(10)));
	for (i = 0; i < ARRAY_SIZE(wrong); i++) {
		EXPECT_EQ(-ENOENT,
			  hm_untrack(self->fd, BASE + PAGES(wrong[i][0]),
				     PAGES(wrong[i][1] - wrong[i][0]))) {
			TH_LOG("[%d, %d)", wrong[i][0], wrong[i][1]);
		}
	}
	EXPECT_EQ(1, nr_ranges(self->fd));
	EXPECT_EQ(0, hm_untrack(self->fd, BASE + PAGES(10), PAGES(10)));
	EXPECT_EQ(-ENOENT, hm_untrack(self->fd, BASE + PAGES(10), PAGES(10)));
	/* What was tracked once can be tracked again. */
	EXPECT_EQ(0, hm_track(self->fd, BASE + PAGES(10), PAGES(10)));
}

/* As much as a context may track at most, in one range and in many. */
TEST_F(ranges, whole_address_space)
{
	const size_t all = (1UL << 47) - 2 * page_size(), most = 1UL << 41;
	char *first = (char *)page_size();
	int i;

	/* Of which each block of 2 MiB is remembered. */
	EXPECT_EQ(-ENOSPC, hm_track(self->fd, first, all));
	EXPECT_EQ(-ENOSPC, hm_track(self->fd, BASE, most + page_size()));
	EXPECT_EQ(0, nr_ranges(self->fd));
	ASSERT_EQ(0, hm_track(self->fd, BASE, most));
	EXPECT_EQ(-EEXIST, hm_track(self->fd, BASE + most / 2, PAGES(1)));
	EXPECT_EQ(-ENOSPC, hm_track(self->fd, BASE + most, PAGES(1)));
	EXPECT_EQ(0, hm_untrack(self->fd, BASE, most));
	/* A range that is not aligned to blocks touches one more. */
	EXPECT_EQ(-ENOSPC, hm_track(self->fd, BASE + page_size(), most));
	for (i = 0; i < 16; i++)
		ASSERT_EQ(0, hm_track(self->fd, BASE + most / 16 * i,
				      most / 16));
	EXPECT_EQ(-ENOSPC, hm_track(self->fd, BASE + most, PAGES(1)));
	EXPECT_EQ(0, hm_untrack(self->fd, BASE, most / 16));
	EXPECT_EQ(0, hm_track(self->fd, NULL, page_size()));
}

/* Contexts of one process know nothing of each other's ranges. */
TEST_F(ranges, two_contexts)
{
	int other = hm_open();

	ASSERT_GE(other, 0);
	EXPECT_EQ(0, hm_track(self->fd, BASE, PAGES(10)));
	EXPECT_EQ(0, hm_track(other, BASE, PAGES(10)));
	EXPECT_EQ(0, hm_track(other, BASE + PAGES(10), PAGES(5)));
	EXPECT_EQ(-ENOENT, hm_untrack(self->fd, BASE + PAGES(10), PAGES(5)));
	EXPECT_EQ(1, nr_ranges(self->fd));
	EXPECT_EQ(2, nr_ranges(other));
	EXPECT_EQ(0, close(other));
	EXPECT_EQ(1, nr_ranges(self->fd));
	EXPECT_EQ(0, hm_untrack(self->fd, BASE, PAGES(10)));
}

/* Up to the limit, and back; a slow kernel's is made one that it reaches. */
TEST_F_TIMEOUT(ranges, as_many_as_allowed, 120)
{
	static const char cap[] = "/sys/class/misc/hetmem/caps/max_ranges";
	struct hetmem_cmd_info info;
	char usual[32];
	long i, max;

	ASSERT_EQ(0, hm_info(self->fd, &info));
	max = info.max_ranges;
	snprintf(usual, sizeof(usual), "%ld", max);
	if (slow_kernel()) {
		max = 4096;
		ASSERT_EQ(0, write_text(cap, "4096"));
	}
	for (i = 0; i < max; i++) {
		ASSERT_EQ(0, hm_track(self->fd, BASE + PAGES(2 * i),
				      PAGES(1)));
	}
	EXPECT_EQ(-ENOSPC, hm_track(self->fd, BASE + PAGES(1), PAGES(1)));
	/* An overlap is told as such also when there is no room. */
	EXPECT_EQ(-EEXIST, hm_track(self->fd, BASE, PAGES(1)));
	EXPECT_EQ(max, nr_ranges(self->fd));
	EXPECT_EQ(0, hm_untrack(self->fd, BASE + PAGES(2), PAGES(1)));
	EXPECT_EQ(0, hm_track(self->fd, BASE + PAGES(1), PAGES(1)));
	EXPECT_EQ(-ENOSPC, hm_track(self->fd, BASE + PAGES(2), PAGES(1)));
	ASSERT_EQ(0, write_text(cap, usual));
	/* close() frees the rest. */
}

struct hammer {
	pthread_t thread;
	int fd, nr, errors;
	long tracked;
};

#define HAMMER_SLOTS	8

/* All threads want the same few ranges: EEXIST and ENOENT are fine. */
static void *hammer(void *arg)
{
	struct hammer *h = arg;
	unsigned int x = h->nr + 1;
	int i, ret;

	for (i = 0; i < test_rounds(4000); i++) {
		char *p;

		x = x * 1103515245 + 12345;
		p = BASE + PAGES(x >> 16 & (HAMMER_SLOTS - 1));
		if (x >> 24 & 1) {
			ret = hm_track(h->fd, p, PAGES(1));
			h->tracked += !ret;
			h->errors += ret && ret != -EEXIST;
		} else {
			ret = hm_untrack(h->fd, p, PAGES(1));
			h->tracked -= !ret;
			h->errors += ret && ret != -ENOENT;
		}
	}
	return NULL;
}

TEST_F(ranges, threads)
{
	struct hammer h[4];
	long tracked = 0;
	int i;

	for (i = 0; i < 4; i++) {
		h[i] = (struct hammer){ .fd = self->fd, .nr = i };
		ASSERT_EQ(0, pthread_create(&h[i].thread, NULL, hammer,
					    &h[i]));
	}
	for (i = 0; i < 4; i++) {
		pthread_join(h[i].thread, NULL);
		EXPECT_EQ(0, h[i].errors);
		tracked += h[i].tracked;
	}
	EXPECT_EQ(tracked, nr_ranges(self->fd));
	for (i = 0; i < HAMMER_SLOTS; i++)
		tracked -= !hm_untrack(self->fd, BASE + PAGES(i), PAGES(1));
	EXPECT_EQ(0, tracked);
	EXPECT_EQ(0, nr_ranges(self->fd));
}

struct mapper {
	pthread_t thread;
	volatile bool stop;
	char *p;
	size_t size;
	bool failed;
};

static void *map_and_unmap(void *arg)
{
	struct mapper *m = arg;
	uint64_t seed = 1;

	while (!m->stop) {
		if (mmap(m->p, m->size, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
			 0) != m->p) {
			m->failed = true;
			break;
		}
		fill(m->p, m->size, ++seed);
		if (mismatch(m->p, m->size, seed) >= 0)
			m->failed = true;
		munmap(m->p, m->size);
	}
	return NULL;
}

/* Contexts with live ranges go while notifications for them come. */
TEST_F(ranges, close_while_unmapping)
{
	struct mapper m = { .p = BASE, .size = PAGES(16) };
	int i, fd;

	ASSERT_EQ(0, pthread_create(&m.thread, NULL, map_and_unmap, &m));
	for (i = 0; i < test_rounds(400); i++) {
		fd = hm_open();
		if (fd < 0)
			break;
		EXPECT_EQ(0, hm_track(fd, BASE, PAGES(8)));
		EXPECT_EQ(0, hm_track(fd, BASE + PAGES(8), PAGES(1024)));
		EXPECT_EQ(0, close(fd));
	}
	m.stop = true;
	pthread_join(m.thread, NULL);
	EXPECT_GE(fd, 0);
	EXPECT_FALSE(m.failed);
}

TEST_HARNESS_MAIN
