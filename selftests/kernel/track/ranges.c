// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * TRACK and UNTRACK: which ranges fit beside each other, how many a user may
 * have, and many threads doing both at once.
 */
#include "libktest/harness.h"

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

/* What a range costs at most, as the interface says. */
static uint64_t range_bytes(size_t size)
{
	return 512 + 9 * (size / HUGE_SIZE + 1);
}

static long used_bytes(int fd)
{
	struct hetmem_cmd_info info;
	int ret = hm_info(fd, &info);

	return ret ? ret : (long)info.used_bytes;
}

/* Each block of 2 MiB is remembered: all of them are more than all users may have. */
TEST_F(ranges, listed)
{
	static const int starts[] = { 3, 10, 11, 700, 5000 };
	struct hetmem_cmd_stats st = { .size = sizeof(st), .flags = HETMEM_STATS_NEXT };
	size_t i;

	EXPECT_EQ(-ENOENT, hm_ioctl(self->fd, HETMEM_IOC_STATS, &st));
	for (i = ARRAY_SIZE(starts); i-- > 0;)
		ASSERT_EQ(0, hm_track(self->fd, BASE + PAGES(starts[i]), PAGES(1)));
	for (i = 0; i < ARRAY_SIZE(starts); i++) {
		ASSERT_EQ(0, hm_ioctl(self->fd, HETMEM_IOC_STATS, &st));
		EXPECT_EQ((uintptr_t)BASE + PAGES(starts[i]), st.start);
		EXPECT_EQ(st.start + PAGES(1), st.end);
		EXPECT_EQ(1, st.dirty_blocks);
		/* Any address in it is before its end. */
		ASSERT_EQ(0, hm_ioctl(self->fd, HETMEM_IOC_STATS, &st));
		EXPECT_EQ((uintptr_t)BASE + PAGES(starts[i]), st.start);
		st.start = st.end;
	}
	EXPECT_EQ(-ENOENT, hm_ioctl(self->fd, HETMEM_IOC_STATS, &st));
	st.start = 0;
	st.flags |= HETMEM_STATS_CONTEXT;
	EXPECT_EQ(-EINVAL, hm_ioctl(self->fd, HETMEM_IOC_STATS, &st));
}

TEST_F(ranges, whole_address_space)
{
	const size_t all = (1UL << 47) - 2 * page_size(), some = 1UL << 41;
	const long before = used_bytes(self->fd);
	char *first = (char *)page_size();
	int i;

	EXPECT_EQ(-EDQUOT, hm_track(self->fd, first, all));
	EXPECT_EQ(0, nr_ranges(self->fd));
	EXPECT_EQ(before, used_bytes(self->fd));
	ASSERT_EQ(0, hm_track(self->fd, BASE, some));
	EXPECT_EQ(-EEXIST, hm_track(self->fd, BASE + some / 2, PAGES(1)));
	EXPECT_LT(before + 8 * (some / HUGE_SIZE), used_bytes(self->fd));
	EXPECT_GT(before + range_bytes(some), used_bytes(self->fd));
	EXPECT_EQ(0, hm_untrack(self->fd, BASE, some));
	EXPECT_EQ(before, used_bytes(self->fd));
	for (i = 0; i < 16; i++)
		ASSERT_EQ(0, hm_track(self->fd, BASE + some / 16 * i,
				      some / 16));
	EXPECT_EQ(0, hm_untrack(self->fd, BASE, some / 16));
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

/* Up to the user's limit, and back. close() frees the rest. */
static void fill_up(void)
{
	struct hetmem_cmd_info info;
	long i, max, most;
	int fd, ret;

	CHILD_CHECK(!become_nobody());
	fd = hm_open();
	CHILD_CHECK(fd >= 0 && !hm_info(fd, &info));
	most = info.max_bytes / sizeof(struct hetmem_cmd_track);
	for (i = 0; i < most; i++) {
		ret = hm_track(fd, BASE + PAGES(2 * i), PAGES(1));
		if (ret)
			break;
	}
	max = i;
	CHILD_CHECK(ret == -EDQUOT);
	CHILD_CHECK(nr_ranges(fd) == max);
	CHILD_CHECK(!hm_info(fd, &info));
	CHILD_CHECK(info.used_bytes <= info.max_bytes);
	CHILD_CHECK(info.used_bytes + range_bytes(PAGES(1)) > info.max_bytes);
	/* No more than is said for each, the context included. */
	CHILD_CHECK(max * range_bytes(PAGES(1)) + 100 * KiB > info.max_bytes);
	CHILD_CHECK(!hm_untrack(fd, BASE + PAGES(2), PAGES(1)));
	CHILD_CHECK(!hm_track(fd, BASE + PAGES(1), PAGES(1)));
	CHILD_CHECK(hm_track(fd, BASE + PAGES(2), PAGES(1)) == -EDQUOT);
	/* Nor another context of the same user. */
	ret = hm_open();
	CHILD_CHECK(ret == -EDQUOT);
	CHILD_CHECK(!close(fd));
	fd = hm_open();
	CHILD_CHECK(fd >= 0);
	CHILD_CHECK(!hm_track(fd, BASE, PAGES(1)));
	_exit(0);
}

TEST_F(ranges, as_many_as_allowed)
{
	static const char cap[] = "/sys/class/misc/hetmem/caps/user_kb";
	const long usual = read_long(cap);
	pid_t pid;

	ASSERT_LT(0, usual);
	ASSERT_EQ(0, write_long(cap, slow_kernel() ? 512 : 4096));
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid)
		fill_up();
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(0, write_long(cap, usual));
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
