// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What can be said of another driver's device, and done about it, without
 * that driver: its directory in sysfs, the advisory limit that bounds hints and
 * nothing else, and thrash counted in attempts. test_hmm plays the GPU.
 */
#include "hetmem_trace.h"
#include "hetmem_abi.h"
#include "hetmem_hmm_test.h"

#define PAGES	32
#define SIZE	(PAGES * page_size())
#define COUNT	6
#define NO_LIMIT "18446744073709551615"

FIXTURE(limit)
{
	int gpu;
	uint32_t loc;
	struct ring r;		/* of the executor for it */
	char *p;		/* tracked; in one block */
	char limit[64], seen[64], capacity[64];
	long count, window;
};

FIXTURE_SETUP(limit)
{
	int fd = hm_open();

	ASSERT_LE(0, fd);
	self->gpu = gpu_open(0);
	ASSERT_LE(0, self->gpu);
	self->p = map_pattern(HUGE_SIZE + SIZE, 1);
	ASSERT_NE(NULL, self->p);
	if (((uintptr_t)self->p ^ (uintptr_t)(self->p + SIZE - 1)) >= HUGE_SIZE)
		self->p += SIZE;
	fill(self->p, SIZE, 1);
	ASSERT_EQ(0, to_gpu(self->gpu, self->p, page_size(), 1));
	self->loc = foreign_at(fd, self->p);
	ASSERT_NE(NO_LOC, self->loc);
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
	ASSERT_EQ(0, ring_make(&self->r, fd, 64, EVENT(HINT) | EVENT(LIMIT) |
			       EVENT(COMPLETED) | EVENT(THRASH)));
	ASSERT_EQ(0, hm_bind(fd, self->loc, HETMEM_BIND_EXECUTOR, NULL));
	ASSERT_EQ(0, hm_track(fd, self->p, SIZE));
	snprintf(self->limit, 64, "foreign/%u/advisory_limit",
		 HETMEM_LOC_INDEX(self->loc));
	snprintf(self->seen, 64, "foreign/%u/seen",
		 HETMEM_LOC_INDEX(self->loc));
	snprintf(self->capacity, 64, "foreign/%u/capacity",
		 HETMEM_LOC_INDEX(self->loc));
	/* A work item makes the directory. */
	ASSERT_TRUE(EVENTUALLY(sysfs_read(self->limit) > 0));
	self->count = sysfs_read("thrash/count");
	self->window = sysfs_read("thrash/window_ms");
	ASSERT_EQ(0, sysfs_set("thrash/count", COUNT));
	ASSERT_EQ(0, sysfs_set("thrash/window_ms", 600000));
}

FIXTURE_TEARDOWN(limit)
{
	EXPECT_EQ(0, sysfs_write(self->limit, NO_LIMIT));
	EXPECT_EQ(0, sysfs_set("thrash/count", self->count));
	EXPECT_EQ(0, sysfs_set("thrash/window_ms", self->window));
	munmap(self->r.header, self->r.size);
	close(self->r.fd);
	close(self->gpu);
}

#define FD	(self->r.fd)
#define SEEN	sysfs_read(self->seen)
#define HINT(at, pages)							\
	hm_hint(FD, self->p + (at) * page_size(), (pages) * page_size(), \
		self->loc, FOREVER_MS, FD, &cmd)

/* REFRESH until nothing is on its way: pages of the range on devices. */
static long refresh(int fd, const void *p)
{
	struct hetmem_cmd_refresh cmd;
	int i, ret = -EAGAIN;

	for (i = 0; i < 500; i++) {
		cmd = (struct hetmem_cmd_refresh){
			.size = sizeof(cmd), .start = (uintptr_t)p,
		};
		ret = hm_ioctl(fd, HETMEM_IOC_REFRESH, &cmd);
		if ((ret && ret != -EBUSY) || (!ret && !cmd.dirty_blocks))
			break;
		usleep(10000);
	}
	return ret ? ret : (long)cmd.on_device;
}

/* With devices of both kinds there every documented file must be. */
TEST_F(limit, as_documented)
{
	EXPECT_EQ(0, abi_compare(true));
}

TEST_F(limit, files)
{
	int other = hm_open();

	ASSERT_LE(0, other);
	EXPECT_LT(0, sysfs_read(self->capacity));
	EXPECT_EQ(0, sysfs_read(self->capacity) % (long)page_size());
	EXPECT_EQ(0, refresh(FD, self->p));
	EXPECT_EQ(0, SEEN);
	ASSERT_EQ(0, to_gpu(self->gpu, self->p, SIZE, 1));
	/* Nobody has told. */
	EXPECT_EQ(0, SEEN);
	EXPECT_EQ(PAGES, refresh(FD, self->p));
	EXPECT_EQ((long)SIZE, SEEN);
	/* Seen by two it counts twice, until one of them closes. */
	ASSERT_EQ(0, hm_track(other, self->p, SIZE));
	EXPECT_EQ(PAGES, refresh(other, self->p));
	EXPECT_EQ(2 * (long)SIZE, SEEN);
	close(other);
	EXPECT_EQ((long)SIZE, SEEN);
	EXPECT_EQ(-1, mismatch(self->p, SIZE / 2, 1));
	EXPECT_EQ(PAGES / 2, refresh(FD, self->p));
	EXPECT_EQ((long)SIZE / 2, SEEN);
	ASSERT_EQ(0, hm_untrack(FD, self->p, SIZE));
	EXPECT_EQ(0, SEEN);
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
}

TEST_F(limit, wrong_values)
{
	pid_t pid;

	ASSERT_EQ(0, sysfs_set(self->limit, 12345));
	EXPECT_EQ(-EINVAL, sysfs_write(self->limit, "much"));
	EXPECT_EQ(-EINVAL, sysfs_write(self->limit, "-1"));
	EXPECT_EQ(-EINVAL, sysfs_write(self->limit, "1M"));
	EXPECT_EQ(-ERANGE, sysfs_write(self->limit, "18446744073709551616"));
	EXPECT_EQ(12345, sysfs_read(self->limit));
	EXPECT_EQ(-EACCES, sysfs_set(self->seen, 0));
	EXPECT_EQ(-EACCES, sysfs_set(self->capacity, 0));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		CHILD_CHECK(!become_nobody());
		CHILD_CHECK(sysfs_read(self->limit) == 12345);
		CHILD_CHECK(sysfs_set(self->limit, 1) == -EACCES);
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
}

/* What is there and what is asked for are bounded together. */
TEST_F(limit, hints)
{
	struct hetmem_cmd_hint cmd;
	struct hetmem_event e;
	uint64_t first;

	ASSERT_EQ(0, sysfs_set(self->limit, 8 * page_size()));
	ASSERT_EQ(0, HINT(0, 6));
	first = cmd.id;
	EXPECT_EQ(-EDQUOT, HINT(6, 3));
	EXPECT_EQ(0, HINT(6, 2));
	EXPECT_EQ(-EDQUOT, HINT(8, 1));
	EXPECT_EQ(-EDQUOT, HINT(8, 1));
	EXPECT_EQ(-EDQUOT, HINT(8, 24));
	/* Of each row of refusals the first is told. */
	ASSERT_TRUE(ring_next(&self->r, &e));
	EXPECT_EQ(HETMEM_EVENT_HINT, e.type);
	ASSERT_TRUE(ring_next(&self->r, &e));
	EXPECT_EQ(HETMEM_EVENT_LIMIT, e.type);
	EXPECT_EQ(self->loc, e.location);
	EXPECT_EQ((uintptr_t)self->p + 6 * page_size(), e.start);
	EXPECT_EQ((uintptr_t)self->p + 9 * page_size(), e.end);
	EXPECT_EQ(0, e.data);
	ASSERT_TRUE(ring_next(&self->r, &e));
	EXPECT_EQ(HETMEM_EVENT_HINT, e.type);
	ASSERT_TRUE(ring_next(&self->r, &e));
	EXPECT_EQ(HETMEM_EVENT_LIMIT, e.type);
	EXPECT_FALSE(ring_next(&self->r, &e));

	/* Answered, whatever the answer, it asks for nothing any more. */
	EXPECT_EQ(0, hm_complete(FD, first, -ENOMEM, 0));
	ASSERT_EQ(0, HINT(0, 6));
	first = cmd.id;
	ASSERT_EQ(0, to_gpu(self->gpu, self->p, 6 * page_size(), 1));
	EXPECT_EQ(0, hm_complete(FD, first, 0, 6));
	EXPECT_EQ(6, refresh(FD, self->p));
	EXPECT_EQ(-EDQUOT, HINT(8, 1));
	/* Elsewhere there is room. */
	EXPECT_EQ(0, hm_hint(FD, self->p, SIZE, ANY_HOST, FOREVER_MS, FD,
			     &cmd));
	/* The driver does as it likes. */
	ASSERT_EQ(0, to_gpu_at(self->gpu, self->p + SIZE / 2, SIZE / 2, 1,
			       SIZE / 2));
	EXPECT_EQ(6 + PAGES / 2, refresh(FD, self->p));
	ASSERT_EQ(0, sysfs_set(self->limit, (9 + PAGES / 2) * page_size() - 1));
	EXPECT_EQ(-EDQUOT, HINT(8, 1));
	ASSERT_EQ(0, sysfs_set(self->limit, (9 + PAGES / 2) * page_size()));
	EXPECT_EQ(0, HINT(8, 1));
	ASSERT_EQ(0, sysfs_set(self->limit, 0));
	EXPECT_EQ(-EDQUOT, HINT(9, 1));
	ASSERT_EQ(0, sysfs_write(self->limit, NO_LIMIT));
	EXPECT_EQ(0, HINT(9, 20));
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
}

TEST_F(limit, traced)
{
	struct hetmem_cmd_hint cmd;

	if (!trace_possible())
		SKIP(return, "kernel lacks tracefs");
	ASSERT_EQ(0, sysfs_set(self->limit, 8 * page_size()));
	ASSERT_EQ(0, trace_start());
	EXPECT_EQ(-EDQUOT, HINT(0, 9));
	trace_stop();
	EXPECT_TRACED(1, "hetmem_limit_hit",
		      "limit=foreign/advisory_limit value=%zu\n",
		      8 * page_size());
	EXPECT_EQ(0, trace_count("hetmem_hint", ""));
}

/* However a hint ends, what it asked for is given back. */
TEST_F(limit, given_back)
{
	struct hetmem_cmd_hint cmd;
	int fd, i, ret = 0;

	ASSERT_EQ(0, sysfs_set(self->limit, 8 * page_size()));
	EXPECT_EQ(-ETIMEDOUT, hm_hint(FD, self->p, 8 * page_size(), self->loc,
				      1, -1, &cmd));
	EXPECT_EQ(0, hm_hint(FD, self->p, 8 * page_size(), self->loc, 1, FD,
			     &cmd));
	for (i = 0; i < 1000 && (ret = HINT(0, 8)) == -EDQUOT; i++)
		usleep(5000);
	EXPECT_EQ(0, ret);
	EXPECT_EQ(-EDQUOT, HINT(0, 8));
	/* The executor goes. */
	munmap(self->r.header, self->r.size);
	close(FD);
	fd = hm_open();
	ASSERT_LE(0, fd);
	ASSERT_EQ(0, ring_make(&self->r, fd, 16, EVENT(HINT) |
			       EVENT(COMPLETED)));
	ASSERT_EQ(0, hm_bind(fd, self->loc, HETMEM_BIND_EXECUTOR, NULL));
	EXPECT_EQ(0, HINT(0, 8));
	/* Who does not want to be told of limits is not. */
	EXPECT_EQ(-EDQUOT, HINT(0, 1));
	EXPECT_EQ(1, self->r.header->head);
	/* No room in the ring: not told, and so it does not count. */
	ASSERT_EQ(0, sysfs_write(self->limit, NO_LIMIT));
	while (!HINT(0, 1))
		EXPECT_EQ(0, hm_complete(FD, cmd.id, 0, 0));
	ring_count(&self->r, 0, NULL);
	ASSERT_EQ(0, sysfs_set(self->limit, 9 * page_size()));
	EXPECT_EQ(0, HINT(0, 1));
	EXPECT_EQ(-EDQUOT, HINT(0, 1));
}

/* Another user: its executor gets as much as the limit allows, and no more. */
static int other_user(uint32_t loc, const char *p)
{
	struct hetmem_cmd_hint cmd;
	struct ring r;
	pid_t pid = fork();
	int fd;

	if (pid)
		return pid < 0 ? -errno : child_status(pid);
	CHILD_CHECK(!become_nobody());
	fd = executor_open(&r, loc, 16);
	CHILD_CHECK(fd >= 0);
	CHILD_CHECK(!hm_hint(fd, p, 8 * page_size(), loc, FOREVER_MS, fd,
			     &cmd));
	CHILD_CHECK(hm_hint(fd, p, page_size(), loc, FOREVER_MS, fd, &cmd) ==
		    -EDQUOT);
	_exit(0);
}

/* What a user has there, or asks for and leaves undone, is no other's. */
TEST_F(limit, of_each_user)
{
	struct hetmem_cmd_hint cmd;
	int fd = hm_open();
	uint64_t first;

	ASSERT_LE(0, fd);
	ASSERT_EQ(0, sysfs_set(self->limit, 8 * page_size()));
	ASSERT_EQ(0, HINT(0, 8));
	first = cmd.id;
	EXPECT_EQ(-EDQUOT, HINT(8, 1));
	EXPECT_EQ(0, other_user(self->loc, self->p));
	EXPECT_EQ(-EDQUOT, HINT(8, 1));
	ASSERT_EQ(0, hm_complete(FD, first, 0, 0));

	/* Seen by two of its contexts, too many pages are there. */
	ASSERT_EQ(0, to_gpu(self->gpu, self->p, 6 * page_size(), 1));
	ASSERT_EQ(0, hm_track(fd, self->p, SIZE));
	EXPECT_EQ(6, refresh(FD, self->p));
	EXPECT_EQ(6, refresh(fd, self->p));
	EXPECT_EQ(12 * (long)page_size(), SEEN);
	EXPECT_EQ(-EDQUOT, HINT(8, 1));
	EXPECT_EQ(0, other_user(self->loc, self->p));
	close(fd);
	EXPECT_EQ(0, HINT(8, 2));
	EXPECT_EQ(-EDQUOT, HINT(8, 1));
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
}

/*
 * Each MIGRATE notification over the block is an attempt, whichever way, and
 * whether it works or not; each COUNT of them are told, once.
 */
TEST_F(limit, attempts)
{
	struct hetmem_cmd_migrate m;
	struct hetmem_cmd_stats st;
	struct hetmem_event e;
	uint64_t told = 0, tries;
	long total = sysfs_read("stats/thrashed");
	int i;

	for (i = 0; i < 2 * COUNT; i++) {
		ASSERT_EQ(0, to_gpu(self->gpu, self->p, SIZE, 1));
		ASSERT_EQ(0, hm_stats(FD, self->p, &st));
		EXPECT_EQ(st.notified[HETMEM_NOTIFY_MIGRATE] / COUNT,
			  st.thrashed);
		ASSERT_EQ(0, from_gpu(self->gpu, self->p, SIZE));
		ASSERT_EQ(0, hm_stats(FD, self->p, &st));
		EXPECT_EQ(st.notified[HETMEM_NOTIFY_MIGRATE] / COUNT,
			  st.thrashed);
	}
	EXPECT_LE(4, st.thrashed);
	EXPECT_EQ(total + (long)st.thrashed, sysfs_read("stats/thrashed"));
	while (ring_next(&self->r, &e)) {
		EXPECT_EQ(HETMEM_EVENT_THRASH, e.type);
		EXPECT_EQ(COUNT, (int)e.count);
		/* A driver that migrates does not say for which device. */
		EXPECT_EQ(0, e.location);
		EXPECT_EQ((uintptr_t)self->p, e.start);
		EXPECT_EQ((uintptr_t)self->p + SIZE, e.end);
		told++;
	}
	EXPECT_EQ(st.thrashed, told);

	/* Held on the host, which is the answer to it, it is tried in vain. */
	ASSERT_EQ(0, hm_pin(FD, self->p, SIZE, FOREVER_MS, 0, &m));
	ASSERT_EQ(PAGES, (long)m.pinned);
	tries = st.notified[HETMEM_NOTIFY_MIGRATE];
	for (i = 0; i < COUNT; i++)
		EXPECT_NE(0, to_gpu(self->gpu, self->p, page_size(), 1));
	ASSERT_EQ(0, hm_stats(FD, self->p, &st));
	EXPECT_LE(tries + COUNT, st.notified[HETMEM_NOTIFY_MIGRATE]);
	EXPECT_EQ(st.notified[HETMEM_NOTIFY_MIGRATE] / COUNT, st.thrashed);
	EXPECT_EQ(PAGES, pages_of_kind(FD, self->p, SIZE, HETMEM_HOST));
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
}

/* Not of memory that is not tracked, nor against its owner's wish. */
TEST_F(limit, attempts_not_wanted)
{
	struct hetmem_cmd_stats st;
	long tries;
	int i;

	ASSERT_EQ(0, hm_set_attr(FD, self->p, HETMEM_ATTR_NO_THRASH, 1));
	for (i = 0; i < 2 * COUNT; i++) {
		ASSERT_EQ(0, to_gpu(self->gpu, self->p, SIZE, 1));
		ASSERT_EQ(0, from_gpu(self->gpu, self->p, SIZE));
	}
	ASSERT_EQ(0, hm_stats(FD, self->p, &st));
	EXPECT_LE(2 * COUNT, st.notified[HETMEM_NOTIFY_MIGRATE]);
	EXPECT_EQ(0, st.thrashed);
	EXPECT_EQ(0, ring_count(&self->r, HETMEM_EVENT_THRASH, NULL));
	/* And only what comes within the window counts together. */
	tries = st.notified[HETMEM_NOTIFY_MIGRATE];
	ASSERT_EQ(0, to_gpu(self->gpu, self->p, SIZE, 1));
	ASSERT_EQ(0, from_gpu(self->gpu, self->p, SIZE));
	ASSERT_EQ(0, hm_stats(FD, self->p, &st));
	tries = st.notified[HETMEM_NOTIFY_MIGRATE] - tries;
	ASSERT_EQ(0, sysfs_set("thrash/window_ms", 1));
	ASSERT_EQ(0, sysfs_set("thrash/count", tries + 1));
	ASSERT_EQ(0, hm_set_attr(FD, self->p, HETMEM_ATTR_NO_THRASH, 0));
	for (i = 0; i < 8; i++) {
		usleep(50000);
		ASSERT_EQ(0, to_gpu(self->gpu, self->p, SIZE, 1));
		ASSERT_EQ(0, from_gpu(self->gpu, self->p, SIZE));
	}
	ASSERT_EQ(0, hm_stats(FD, self->p, &st));
	EXPECT_EQ(0, st.thrashed);
	ASSERT_EQ(0, sysfs_set("thrash/window_ms", 600000));
	ASSERT_EQ(0, to_gpu(self->gpu, self->p, SIZE, 1));
	ASSERT_EQ(0, from_gpu(self->gpu, self->p, SIZE));
	ASSERT_EQ(0, hm_stats(FD, self->p, &st));
	EXPECT_EQ(1, st.thrashed);
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
}

TEST_HARNESS_MAIN
