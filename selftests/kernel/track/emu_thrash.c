// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Thrash: blocks that go back and forth between the host and a device, counted
 * to the threshold within the window that sysfs sets. foreign/hmm_thrash.c has
 * the same for drivers that are not registered.
 */
#include "libktest/harness.h"
#include "libktest/emu.h"
#include "libktest/ring.h"
#include "libktest/sysfs.h"
#include "libktest/trace.h"

#define COUNT	4

FIXTURE(thrash)
{
	struct rig rig;
	struct ring r;
	struct emu *dev;
	char *map, *p;		/* p: three blocks */
	long count, window;
};

FIXTURE_SETUP(thrash)
{
	ASSERT_EQ(0, rig_init(&self->rig));
	self->dev = &self->rig.dev[0];
	ASSERT_EQ(0, ring_open(self->rig.fd, 1024, EVENT(THRASH), &self->r));
	self->map = mmap(NULL, 4 * HUGE_SIZE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, self->map);
	self->p = (char *)(((uintptr_t)self->map + HUGE_SIZE - 1) &
			   ~(HUGE_SIZE - 1));
	madvise(self->map, 4 * HUGE_SIZE, MADV_NOHUGEPAGE);
	self->count = sysfs_read("thrash/count");
	self->window = sysfs_read("thrash/window_ms");
	ASSERT_EQ(0, sysfs_set("thrash/count", COUNT));
	ASSERT_EQ(0, sysfs_set("thrash/window_ms", 600000));
}

FIXTURE_TEARDOWN(thrash)
{
	EXPECT_EQ(0, sysfs_set("thrash/count", self->count));
	EXPECT_EQ(0, sysfs_set("thrash/window_ms", self->window));
	ring_close(&self->r);
	munmap(self->map, 4 * HUGE_SIZE);
	EXPECT_EQ(0, rig_exit(&self->rig));
}

#define HM	(self->rig.fd)

/* There and back @times times: the first way is no bounce, all others are. */
static bool bounce(int hm, const struct emu *dev, char *p, size_t size,
		   int times)
{
	const long pages = size / page_size();

	while (times--) {
		if (to_device(hm, dev, p, size) != pages ||
		    to_host(hm, p, size) != pages)
			return false;
	}
	return true;
}

static long thrashed(int hm, const void *p)
{
	struct hetmem_cmd_stats st;
	int ret = hm_stats(hm, p, &st);

	return ret ? ret : (long)st.thrashed;
}

TEST_F(thrash, at_the_threshold)
{
	char *p = self->p + HUGE_SIZE + 16 * page_size();
	const size_t size = 32 * page_size();
	long total = sysfs_read("stats/thrashed");
	struct hetmem_event e;

	fill(p, size, 1);
	ASSERT_EQ(0, hm_track(HM, p, size));
	/* Three bounces and not a fourth. */
	ASSERT_TRUE(bounce(HM, self->dev, p, size, 2));
	EXPECT_EQ(0, thrashed(HM, p));
	EXPECT_FALSE(ring_next(&self->r, &e));
	ASSERT_EQ(32, to_device(HM, self->dev, p, size));
	EXPECT_EQ(1, thrashed(HM, p));
	ASSERT_TRUE(ring_next(&self->r, &e));
	EXPECT_EQ(HETMEM_EVENT_THRASH, e.type);
	EXPECT_EQ(COUNT, (int)e.count);
	EXPECT_EQ(self->dev->loc, e.location);
	/* Of the block, what is tracked. */
	EXPECT_EQ((uintptr_t)p, e.start);
	EXPECT_EQ((uintptr_t)p + size, e.end);
	EXPECT_FALSE(ring_next(&self->r, &e));
	/* It begins anew. */
	ASSERT_EQ(32, to_host(HM, p, size));
	ASSERT_TRUE(bounce(HM, self->dev, p, size, 1));
	EXPECT_FALSE(ring_next(&self->r, &e));
	ASSERT_EQ(32, to_device(HM, self->dev, p, size));
	EXPECT_TRUE(ring_next(&self->r, &e));
	EXPECT_EQ(2, thrashed(HM, p));
	EXPECT_EQ(total + 2, sysfs_read("stats/thrashed"));
	EXPECT_EQ(-1, mismatch(p, size, 1));
}

/* The CPU's and the device's own faults make bounces as well. */
TEST_F(thrash, by_faults)
{
	const size_t size = 16 * page_size();
	struct hetmem_event e;
	int i;

	fill(self->p, size, 1);
	ASSERT_EQ(0, hm_track(HM, self->p, size));
	for (i = 0; i < 3; i++) {
		ASSERT_TRUE(emu_sees(self->dev, HETMEM_EMU_MIGRATE, self->p,
				     size, 1));
		ASSERT_EQ(-1, mismatch(self->p, size, 1));
	}
	EXPECT_EQ(1, thrashed(HM, self->p));
	EXPECT_EQ(1, ring_count(&self->r, HETMEM_EVENT_THRASH, &e));
	EXPECT_EQ(self->dev->loc, e.location);
}

/* In parts, the same way, is no bounce; blocks are counted one by one. */
TEST_F(thrash, of_blocks)
{
	const size_t part = 8 * page_size();
	struct hetmem_event e;
	size_t at;
	int i;

	fill(self->p, HUGE_SIZE, 1);
	fill(self->p + HUGE_SIZE, part, 1);
	ASSERT_EQ(0, hm_track(HM, self->p, 2 * HUGE_SIZE));
	for (at = 0; at < HUGE_SIZE; at += 8 * part)
		ASSERT_EQ(8, to_device(HM, self->dev, self->p + at, part));
	for (at = 0; at < HUGE_SIZE; at += 8 * part)
		ASSERT_EQ(8, to_host(HM, self->p + at, part));
	EXPECT_EQ(0, thrashed(HM, self->p));
	/* One bounce so far; three more there, two in the other block. */
	for (i = 0; i < 2; i++)
		ASSERT_TRUE(bounce(HM, self->dev, self->p + HUGE_SIZE, part,
				   1));
	ASSERT_TRUE(bounce(HM, self->dev, self->p, part, 1));
	EXPECT_EQ(0, thrashed(HM, self->p));
	ASSERT_EQ(8, to_device(HM, self->dev, self->p + HUGE_SIZE, part));
	EXPECT_EQ(1, ring_count(&self->r, HETMEM_EVENT_THRASH, &e));
	EXPECT_EQ((uintptr_t)self->p + HUGE_SIZE, e.start);
	EXPECT_EQ((uintptr_t)self->p + 2 * HUGE_SIZE, e.end);
	ASSERT_EQ(8, to_device(HM, self->dev, self->p, part));
	EXPECT_EQ(1, ring_count(&self->r, HETMEM_EVENT_THRASH, &e));
	EXPECT_EQ((uintptr_t)self->p, e.start);
	EXPECT_EQ((uintptr_t)self->p + HUGE_SIZE, e.end);
}

/* What took longer than the window does not count together. */
TEST_F(thrash, too_slow)
{
	const size_t size = 4 * page_size();
	struct hetmem_event e;
	int i;

	fill(self->p, size, 1);
	ASSERT_EQ(0, sysfs_set("thrash/window_ms", 1));
	ASSERT_EQ(0, hm_track(HM, self->p, size));
	for (i = 0; i < 6; i++) {
		ASSERT_TRUE(bounce(HM, self->dev, self->p, size, 1));
		/* time: more than a window, which is rounded up to the kernel's clock */
		usleep(50000);
	}
	EXPECT_EQ(0, thrashed(HM, self->p));
	EXPECT_FALSE(ring_next(&self->r, &e));
}

/* Memory that is not tracked does not thrash, whatever it does. */
TEST_F(thrash, not_tracked)
{
	const size_t size = 4 * page_size();
	struct hetmem_event e;

	fill(self->p, 2 * size, 1);
	ASSERT_EQ(0, hm_track(HM, self->p, size));
	ASSERT_TRUE(bounce(HM, self->dev, self->p + size, size, 6));
	EXPECT_EQ(0, thrashed(HM, self->p));
	EXPECT_FALSE(ring_next(&self->r, &e));
	ASSERT_TRUE(bounce(HM, self->dev, self->p, 2 * size, 3));
	EXPECT_EQ(1, thrashed(HM, self->p));
	EXPECT_EQ(1, ring_count(&self->r, HETMEM_EVENT_THRASH, &e));
}

/*
 * First use by the device, page by page, the whole way back by MIGRATE, there in
 * bulk and back in one CPU fault after the other: three changes of direction,
 * however many calls and faults they take.
 */
TEST_F(thrash, progressive)
{
	const size_t size = 64 * page_size();
	uint64_t value = 0;
	size_t at;

	ASSERT_EQ(0, hm_track(HM, self->p, HUGE_SIZE));
	for (at = 0; at < size; at += page_size())
		ASSERT_EQ(0, emu_access(self->dev, HETMEM_EMU_ADD,
					HETMEM_EMU_MIGRATE, self->p + at,
					page_size(), NULL, value++, NULL));
	EXPECT_EQ(NR(size), pages_at(HM, self->p, size, self->dev->loc));
	ASSERT_EQ(NR(size), to_host(HM, self->p, size));
	fill(self->p, size, 1);
	ASSERT_EQ(NR(size), to_device(HM, self->dev, self->p, size));
	for (at = 0; at < size; at += page_size())
		ASSERT_EQ(-1, mismatch_at(self->p + at, page_size(), 1, at));
	EXPECT_EQ(0, thrashed(HM, self->p));
	EXPECT_FALSE(self->r.h->head);
	/* The fourth is one too many. */
	ASSERT_EQ(1, to_device(HM, self->dev, self->p, page_size()));
	EXPECT_EQ(1, thrashed(HM, self->p));
}

/*
 * More blocks than there are slots: those that share one hide each other,
 * and none is accused of what another did.
 */
TEST_F(thrash, collisions)
{
	enum { BLOCKS = 700 };
	char told[BLOCKS] = "", *map, *p;
	struct hetmem_event e;
	int i, round, nr = 0;

	map = mmap(NULL, (BLOCKS + 1) * HUGE_SIZE, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	ASSERT_NE(MAP_FAILED, map);
	p = (char *)(((uintptr_t)map + HUGE_SIZE - 1) & ~(HUGE_SIZE - 1));
	madvise(map, (BLOCKS + 1) * HUGE_SIZE, MADV_NOHUGEPAGE);
	for (i = 0; i < BLOCKS; i++)
		fill(p + i * HUGE_SIZE, page_size(), i);
	ASSERT_EQ(0, hm_track(HM, p, BLOCKS * HUGE_SIZE));
	/* 2 * 2 + 1 changes of direction less the first: the threshold. */
	for (round = 0; round < 5; round++) {
		for (i = 0; i < BLOCKS; i++) {
			char *page = p + i * HUGE_SIZE;

			ASSERT_EQ(1, round % 2 ?
				  to_host(HM, page, page_size()) :
				  to_device(HM, self->dev, page, page_size()));
		}
	}
	while (ring_next(&self->r, &e)) {
		i = (e.start - (uintptr_t)p) / HUGE_SIZE;
		ASSERT_LT(i, BLOCKS);
		EXPECT_EQ((uintptr_t)p + i * HUGE_SIZE, e.start);
		EXPECT_EQ(COUNT, (int)e.count);
		EXPECT_EQ(0, told[i]);
		told[i] = 1;
		nr++;
	}
	/* Some have a slot of their own, and some cannot have. */
	EXPECT_LT(0, nr);
	EXPECT_GE(512, nr);
	EXPECT_EQ(nr, thrashed(HM, p));
	for (i = 0; i < BLOCKS; i++)
		EXPECT_EQ(-1, mismatch(p + i * HUGE_SIZE, page_size(), i));
	munmap(map, (BLOCKS + 1) * HUGE_SIZE);
}

TEST_F(thrash, traced)
{
	const size_t size = 4 * page_size();

	if (!trace_possible())
		SKIP(return, "kernel lacks tracefs");
	fill(self->p, size, 1);
	ASSERT_EQ(0, hm_track(HM, self->p, size));
	ASSERT_EQ(0, trace_start());
	ASSERT_TRUE(bounce(HM, self->dev, self->p, size, 3));
	trace_stop();
	EXPECT_TRACED(1, "hetmem_thrash",
		      "opener=%d range=%#lx-%#lx location=%#x nr=%d result=0\n",
		      getpid(), (unsigned long)self->p,
		      (unsigned long)self->p + size, self->dev->loc, COUNT);
}

TEST_HARNESS_MAIN
