// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Counters of a device that is registered with hetmem: its driver reports what
 * arrives, REFRESH puts the counters right where pages went away unseen, and in
 * the end they agree with what RESIDENCY sees.
 */
#include "libktest/harness.h"
#include "libktest/emu.h"

#include <pthread.h>

FIXTURE(told)
{
	struct rig rig;
	char *p;
	size_t size;
	struct hetmem_cmd_refresh cmd;
};

FIXTURE_SETUP(told)
{
	ASSERT_EQ(0, rig_init(&self->rig));
	self->size = self->rig.size;
	self->p = map_filled(self->size, 1);
	ASSERT_NE(NULL, self->p);
	ASSERT_EQ(0, hm_track(self->rig.fd, self->p, self->size));
	ASSERT_EQ(0, hm_refresh_all(self->rig.fd, self->p, &self->cmd));
	ASSERT_EQ(0, self->cmd.on_device);
}

FIXTURE_TEARDOWN(told)
{
	munmap(self->p, self->size);
	EXPECT_EQ(0, rig_exit(&self->rig));
}

#define HM	self->rig.fd
#define DEV	(&self->rig.dev[0])

static long on_device(int fd, const void *p)
{
	struct hetmem_cmd_stats st;
	int ret = hm_stats(fd, p, &st);

	return ret ? ret : (long)st.on_device;
}

/* Pages of the range that its driver reported to arrive on the host. */
static long came_back(int fd, const void *p)
{
	struct hetmem_cmd_stats st;
	int ret = hm_stats(fd, p, &st);

	return ret ? ret : (long)st.to_host;
}

/* Nothing dirty, @n pages on the device by all accounts. */
#define EXPECT_SETTLED(n)						\
	do {								\
		EXPECT_EQ(0, hm_refresh_all(HM, self->p, &self->cmd));	\
		EXPECT_EQ(n, self->cmd.on_device);			\
		EXPECT_EQ((long)(n), on_device(HM, self->p));		\
		EXPECT_EQ((long)(n), pages_of_kind(HM, self->p,		\
						   self->size,		\
						   HETMEM_DEVICE));	\
	} while (0)

TEST_F(told, there_and_back)
{
	uint64_t before = now_ns();
	struct hetmem_cmd_stats st;

	ASSERT_EQ(NR(self->size), to_device(HM, DEV, self->p, self->size));
	/* STATS has what REFRESH last saw, and what the driver reported. */
	ASSERT_EQ(0, hm_stats(HM, self->p, &st));
	EXPECT_EQ(0, st.on_device);
	EXPECT_EQ(NR(self->size), st.to_device);
	EXPECT_EQ(0, st.to_host);
	EXPECT_LT(0, hm_dirty(HM, self->p));
	EXPECT_SETTLED(NR(self->size));
	EXPECT_LT(0, self->cmd.walked_blocks);
	EXPECT_LE(before, self->cmd.as_of);

	ASSERT_EQ(NR(self->size), to_host(HM, self->p, self->size));
	EXPECT_EQ(NR(self->size), on_device(HM, self->p));
	EXPECT_EQ(NR(self->size), came_back(HM, self->p));
	EXPECT_SETTLED(0);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

/* The CPU brings pages back by touching them. */
TEST_F(told, faulted_back)
{
	uint64_t back;

	ASSERT_EQ(NR(self->size), to_device(HM, DEV, self->p, self->size));
	*(volatile char *)self->p;
	back = came_back(HM, self->p);
	EXPECT_LE(1, back);
	EXPECT_SETTLED(NR(self->size) - back);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
	EXPECT_EQ(NR(self->size), came_back(HM, self->p));
	EXPECT_SETTLED(0);
}

TEST_F(told, evicted)
{
	uint64_t evicted;

	ASSERT_EQ(NR(self->size), to_device(HM, DEV, self->p, self->size));
	ASSERT_EQ(0, emu_evict(DEV, NR(self->size), &evicted));
	EXPECT_LE(NR(self->size), evicted);
	EXPECT_EQ(NR(self->size), came_back(HM, self->p));
	EXPECT_SETTLED(0);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

/* What is unmapped or dropped on the device arrives nowhere. */
TEST_F(told, unmapped)
{
	const size_t quarter = self->size / 4;

	ASSERT_EQ(NR(self->size), to_device(HM, DEV, self->p, self->size));
	ASSERT_EQ(0, munmap(self->p, quarter));
	EXPECT_LT(0, hm_dirty(HM, self->p));
	EXPECT_SETTLED(NR(3 * quarter));
	ASSERT_EQ(0, madvise(self->p + quarter, quarter, MADV_DONTNEED));
	EXPECT_LT(0, hm_dirty(HM, self->p));
	EXPECT_SETTLED(NR(2 * quarter));
	EXPECT_EQ(0, came_back(HM, self->p));
	EXPECT_EQ(-1, mismatch_at(self->p + 2 * quarter, 2 * quarter, 1,
				  2 * quarter));
}

/*
 * What is dropped on the device and moved again is not there twice, in a range
 * that is less than a block.
 */
TEST_F(told, dropped_and_moved_again)
{
	const size_t part = 16 * page_size();

	ASSERT_EQ(0, hm_untrack(HM, self->p, self->size));
	ASSERT_EQ(0, hm_track(HM, self->p, part));
	ASSERT_EQ(NR(part), to_device(HM, DEV, self->p, part));
	ASSERT_EQ(0, madvise(self->p, part, MADV_DONTNEED));
	fill(self->p, part, 1);
	ASSERT_EQ(NR(part), to_device(HM, DEV, self->p, part));
	EXPECT_SETTLED(NR(part));
	EXPECT_EQ(-1, mismatch(self->p, part, 1));
}

/* A range over memory that is on the device already: the first look says. */
TEST_F(told, tracked_late)
{
	struct hetmem_cmd_stats st;

	ASSERT_EQ(0, hm_untrack(HM, self->p, self->size));
	ASSERT_EQ(NR(self->size), to_device(HM, DEV, self->p, self->size));
	ASSERT_EQ(0, hm_track(HM, self->p, self->size));
	EXPECT_EQ(0, on_device(HM, self->p));
	EXPECT_SETTLED(NR(self->size));
	/* The driver reported this arrival before. */
	ASSERT_EQ(0, hm_stats(HM, self->p, &st));
	EXPECT_EQ(0, st.to_device);
	ASSERT_EQ(NR(self->size), to_host(HM, self->p, self->size));
	EXPECT_SETTLED(0);
}

/* mremap() is told of the old place; the new one is tracked afterwards. */
TEST_F(told, moved_away)
{
	char *to;

	ASSERT_EQ(NR(self->size), to_device(HM, DEV, self->p, self->size));
	to = mmap(NULL, self->size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		  0);
	ASSERT_NE(MAP_FAILED, to);
	ASSERT_EQ(to, mremap(self->p, self->size, self->size, MREMAP_MAYMOVE |
			     MREMAP_FIXED, to));
	EXPECT_SETTLED(0);
	EXPECT_EQ(0, came_back(HM, self->p));
	ASSERT_EQ(0, hm_track(HM, to, self->size));
	ASSERT_EQ(0, hm_refresh_all(HM, to, &self->cmd));
	EXPECT_EQ(NR(self->size), self->cmd.on_device);
	EXPECT_EQ(-1, mismatch(to, self->size, 1));
	munmap(to, self->size);
}

/* A child that reads brings pages back for both; the parent's counters know. */
TEST_F(told, child_reads)
{
	pid_t pid;

	ASSERT_EQ(NR(self->size), to_device(HM, DEV, self->p, self->size));
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		CHILD_CHECK(mismatch(self->p, self->size, 1) < 0);
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(0, hm_refresh_all(HM, self->p, &self->cmd));
	EXPECT_EQ(self->cmd.on_device, pages_of_kind(HM, self->p, self->size,
						     HETMEM_DEVICE));
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
	EXPECT_SETTLED(0);
}

/*
 * More ranges than a report is counted for: 64 of them are, all are dirty, and
 * REFRESH finds the pages of each.
 */
TEST_F(told, in_many_ranges)
{
	const int nr = 200;
	const size_t part = nr * page_size();
	struct hetmem_cmd_stats st, before, after;
	long counted, dirty;
	struct hetmem_cmd_refresh cmd;
	int i, round;

	ASSERT_LT(part, self->size);
	ASSERT_EQ(0, hm_untrack(HM, self->p, self->size));
	for (i = 0; i < nr; i++) {
		ASSERT_EQ(0, hm_track(HM, self->p + i * page_size(), page_size()));
		ASSERT_EQ(0, hm_refresh_all(HM, self->p + i * page_size(), &cmd));
	}
	ASSERT_EQ(0, hm_stats_context(HM, &before));
	ASSERT_EQ(nr, to_device(HM, DEV, self->p, part));
	ASSERT_EQ(0, hm_stats_context(HM, &after));
	EXPECT_EQ(nr, (long)(after.to_device - before.to_device));
	for (round = 0; round < 2; round++) {
		counted = dirty = 0;
		for (i = 0; i < nr; i++) {
			ASSERT_EQ(0, hm_stats(HM, self->p + i * page_size(), &st));
			counted += st.to_device;
			dirty += st.dirty_blocks;
			if (round)
				continue;
			ASSERT_EQ(0, hm_refresh_all(HM, self->p + i * page_size(),
						    &cmd));
			EXPECT_EQ(1, cmd.on_device);
		}
		EXPECT_EQ(round ? 0 : nr, dirty);
	}
	EXPECT_LE(64, counted);
	EXPECT_GE(nr, counted);
}

/* Two devices, one range. */
TEST_F(told, two_devices)
{
	const size_t half = self->size / 2;

	ASSERT_EQ(NR(half), to_device(HM, DEV, self->p, half));
	ASSERT_EQ(NR(half), to_device(HM, &self->rig.dev[1], self->p + half,
				      half));
	EXPECT_SETTLED(NR(self->size));
	ASSERT_EQ(NR(half), to_host(HM, self->p, half));
	EXPECT_SETTLED(NR(half));
	ASSERT_EQ(NR(half), to_host(HM, self->p + half, half));
	EXPECT_SETTLED(0);
}

struct mover {
	pthread_t thread;
	struct rig *rig;
	char *p;
	size_t size;
	volatile bool *stop;
	unsigned int nr;
	int bad;
};

static void *move_about(void *arg)
{
	struct mover *m = arg;
	struct hetmem_cmd_migrate cmd;
	unsigned int i;

	for (i = m->nr; !*m->stop; i++) {
		size_t part = m->size / 8 * (i % 8);
		int ret = 0;

		switch (i % 5) {
		case 0:
		case 1:
			ret = hm_migrate(m->rig->fd, m->p, m->size,
					 m->rig->dev[m->nr].loc, &cmd);
			break;
		case 2:
			ret = hm_migrate(m->rig->fd, m->p + part, m->size / 8,
					 ANY_HOST, &cmd);
			break;
		case 3:
			ret = emu_evict(&m->rig->dev[m->nr], 64, NULL);
			break;
		case 4:
			*(volatile char *)(m->p + part);
			break;
		}
		if (ret)
			m->bad = ret;
	}
	return NULL;
}

/* Moved by all means while it is looked at: right when it has come to rest. */
TEST_F(told, moved_meanwhile)
{
	volatile bool stop = false;
	struct mover m[2];
	long there;
	int i, ret;

	for (i = 0; i < 2; i++) {
		m[i] = (struct mover){
			.rig = &self->rig, .p = self->p, .size = self->size,
			.stop = &stop, .nr = i,
		};
		ASSERT_EQ(0, pthread_create(&m[i].thread, NULL, move_about,
					    &m[i]));
	}
	for (i = 0; i < test_rounds(300); i++) {
		ret = hm_refresh(HM, self->p, &self->cmd);
		EXPECT_EQ(0, ret);
		EXPECT_GE(NR(self->size), self->cmd.on_device);
	}
	stop = true;
	for (i = 0; i < 2; i++) {
		pthread_join(m[i].thread, NULL);
		EXPECT_EQ(0, m[i].bad);
	}
	there = pages_of_kind(HM, self->p, self->size, HETMEM_DEVICE);
	ASSERT_GE(there, 0);
	EXPECT_SETTLED((uint64_t)there);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
	EXPECT_SETTLED(0);
}

TEST_HARNESS_MAIN
