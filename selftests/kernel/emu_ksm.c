// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Memory that KSM may merge: it goes to no device, and who asks is told why.
 * What is on a device already comes back.
 */
#include "hetmem_emu_test.h"

FIXTURE(ksm)
{
	struct rig rig;
	struct emu *dev;
	int hm;
	char *p;
	size_t size;
};

FIXTURE_SETUP(ksm)
{
	ASSERT_EQ(0, rig_init(&self->rig));
	self->dev = self->rig.dev;
	self->hm = self->rig.fd;
	self->size = 64 * page_size();
	self->p = map_filled(self->size, 1);
	ASSERT_NE(NULL, self->p);
	ASSERT_EQ(64, to_device(self->hm, self->dev, self->p, self->size));
}

FIXTURE_TEARDOWN(ksm)
{
	munmap(self->p, self->size);
	EXPECT_EQ(0, rig_exit(&self->rig));
}

#define PAGE(n)		(self->p + (n) * page_size())
#define ON_DEVICE(p, size) pages_at(self->hm, p, size, self->dev->loc)

/* It is the mapping that counts; KSM itself need not be at work. */
TEST_F(ksm, mergeable)
{
	const size_t half = self->size / 2;
	struct hetmem_cmd_migrate cmd;

	if (madvise(PAGE(16), half, MADV_MERGEABLE) && errno == EINVAL)
		SKIP(return, "kernel lacks KSM");
	/* There already: neither moved nor refused. */
	ASSERT_EQ(0, hm_migrate(self->hm, self->p, self->size, self->dev->loc,
				&cmd));
	EXPECT_EQ(64, cmd.already);
	EXPECT_EQ(0, run_at(self->hm, PAGE(16)).why);
	/* To the host as any other. */
	ASSERT_EQ(64, to_host(self->hm, self->p, self->size));
	EXPECT_EQ(HETMEM_WHY_MERGEABLE, run_at(self->hm, PAGE(16)).why);
	EXPECT_EQ(0, run_at(self->hm, PAGE(15)).why);
	EXPECT_EQ(0, run_at(self->hm, PAGE(48)).why);
	ASSERT_EQ(0, hm_migrate(self->hm, self->p, self->size, self->dev->loc,
				&cmd));
	EXPECT_EQ(32, cmd.moved);
	EXPECT_EQ(32, cmd.not_moved);
	EXPECT_EQ(HETMEM_WHY_MERGEABLE, cmd.why);
	EXPECT_EQ((uintptr_t)PAGE(16), cmd.why_addr);
	EXPECT_EQ(0, ON_DEVICE(PAGE(16), half));
	/* Nor from one device to another. */
	ASSERT_EQ(0, madvise(self->p, self->size, MADV_MERGEABLE));
	ASSERT_EQ(0, hm_migrate(self->hm, self->p, self->size,
				self->rig.dev[1].loc, &cmd));
	EXPECT_EQ(0, cmd.moved);
	EXPECT_EQ(64, cmd.not_moved);
	EXPECT_EQ(HETMEM_WHY_MERGEABLE, cmd.why);
	EXPECT_EQ(16, ON_DEVICE(self->p, 16 * page_size()));
	/* What was never touched is not there either. */
	ASSERT_EQ(0, madvise(PAGE(20), page_size(), MADV_DONTNEED));
	ASSERT_EQ(0, hm_migrate(self->hm, PAGE(20), page_size(),
				self->dev->loc, &cmd));
	EXPECT_EQ(HETMEM_WHY_MERGEABLE, cmd.why);
	fill(self->p, self->size, 1);
	ASSERT_EQ(0, madvise(self->p, self->size, MADV_UNMERGEABLE));
	EXPECT_EQ(64, to_device(self->hm, self->dev, self->p, self->size));
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

/*
 * While KSM is at work on a mapping its pages may stay where they are, but
 * must not be lost between KSM and who moves them; unmerged they move again.
 */
TEST_F(ksm, merged)
{
	static const char run[] = "/sys/kernel/mm/ksm/run";
	struct hetmem_cmd_migrate cmd;
	int i, round, sharing;

	if (access(run, F_OK))
		SKIP(return, "kernel lacks KSM");
	write_text("/sys/kernel/mm/ksm/sleep_millisecs", "1");
	write_text("/sys/kernel/mm/ksm/pages_to_scan", "1000");
	ASSERT_EQ(0, write_text(run, "1"));
	for (round = 0; round < 3; round++) {
		for (i = 0; i < 64; i++)
			fill(PAGE(i), page_size(), 6);
		ASSERT_EQ(0, madvise(self->p, self->size, MADV_MERGEABLE));
		/* In the middle of merging, and when it is done. */
		for (i = 0; i < 1000; i++) {
			sharing = read_long("/sys/kernel/mm/ksm/pages_sharing");
			EXPECT_EQ(0, migrate_contended(self->hm, self->p,
						       self->size,
						       self->rig.dev[i & 1].loc,
						       &cmd));
			EXPECT_EQ(0, cmd.moved);
			EXPECT_TRUE(!cmd.not_moved ||
				    (cmd.why & HETMEM_WHY_MERGEABLE));
			if (sharing >= 60)
				break;
			EXPECT_EQ(0, migrate_contended(self->hm, self->p,
						       self->size, ANY_HOST,
						       &cmd));
			usleep(10000);
		}
		EXPECT_LT(i, 1000);
		EXPECT_EQ(0, emu_write(self->dev, HETMEM_EMU_MIGRATE, PAGE(7),
				       8, &(uint64_t){ 7 }));
		EXPECT_EQ(7, *(uint64_t *)PAGE(7));
		*(uint64_t *)PAGE(7) = pattern_word(6, 0);
		for (i = 0; i < 64; i++)
			EXPECT_EQ(-1, mismatch(PAGE(i), page_size(), 6));
		ASSERT_EQ(0, madvise(self->p, self->size, MADV_UNMERGEABLE));
		EXPECT_EQ(64, to_device(self->hm, self->dev, self->p,
					self->size));
		for (i = 0; i < 64; i++)
			EXPECT_EQ(-1, mismatch(PAGE(i), page_size(), 6));
	}
	EXPECT_EQ(0, write_text(run, "0"));
}

/*
 * A page that two processes share is merged for both when one of them lets
 * KSM: the other one's mapping does not tell.
 */
TEST_F(ksm, merged_by_another)
{
	static const char run[] = "/sys/kernel/mm/ksm/run";
	struct hetmem_cmd_migrate cmd;
	struct turns t;
	pid_t pid;
	int i;

	if (access(run, F_OK))
		SKIP(return, "kernel lacks KSM");
	write_text("/sys/kernel/mm/ksm/sleep_millisecs", "1");
	write_text("/sys/kernel/mm/ksm/pages_to_scan", "1000");
	for (i = 0; i < 64; i++)
		fill(PAGE(i), page_size(), 6);
	ASSERT_EQ(64, to_host(self->hm, self->p, self->size));
	/* Nothing is merged of who was there before. */
	ASSERT_EQ(0, write_text(run, "2"));
	ASSERT_EQ(0, turns_init(&t));
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		int hm = hm_open();

		turns_in_child(&t);
		CHILD_CHECK(hm >= 0);
		CHILD_CHECK(turn_wait(t.to_child[0]));
		CHILD_CHECK(!hm_migrate(hm, self->p, self->size,
					self->dev->loc, &cmd));
		/* One of them has become the page that all others are. */
		CHILD_CHECK(cmd.not_moved > 0);
		CHILD_CHECK(cmd.moved < 64);
		for (i = 0; i < 64; i++)
			CHILD_CHECK(mismatch(PAGE(i), page_size(), 6) < 0);
		_exit(0);
	}
	turns_in_parent(&t);
	ASSERT_EQ(0, madvise(self->p, self->size, MADV_MERGEABLE));
	ASSERT_EQ(0, write_text(run, "1"));
	for (i = 0; i < 1000; i++) {
		if (read_long("/sys/kernel/mm/ksm/pages_sharing") >= 63)
			break;
		usleep(10000);
	}
	EXPECT_LT(i, 1000);
	EXPECT_EQ(0, write_text(run, "0"));
	turn_pass(t.to_child[1]);
	EXPECT_EQ(0, child_status(pid));
	for (i = 0; i < 64; i++)
		EXPECT_EQ(-1, mismatch(PAGE(i), page_size(), 6));
	ASSERT_EQ(0, madvise(self->p, self->size, MADV_UNMERGEABLE));
	close(t.to_child[1]);
	close(t.to_parent[0]);
}

/* @p, of @pages pages, pairs of which are alike. */
static void fill_pairs(char *p, unsigned int pages)
{
	unsigned int i;

	for (i = 0; i < pages; i++)
		fill(p + i * page_size(), page_size(), 100 + i / 2);
}

static bool pairs_kept(const char *p, unsigned int pages)
{
	unsigned int i;

	for (i = 0; i < pages; i++) {
		if (mismatch(p + i * page_size(), page_size(), 100 + i / 2) >= 0)
			return false;
	}
	return true;
}

/* Lets KSM make one of every two pages at @p, and be there until told. */
static void merge_pairs(char *p, unsigned int pages, struct turns *t)
{
	static const char run[] = "/sys/kernel/mm/ksm/run";
	unsigned int i;

	turns_in_child(t);
	CHILD_CHECK(!madvise(p, pages * page_size(), MADV_MERGEABLE));
	CHILD_CHECK(!write_text(run, "1"));
	for (i = 0; i < 3000; i++) {
		if (read_long("/sys/kernel/mm/ksm/pages_shared") >= pages / 2)
			break;
		usleep(10000);
	}
	CHILD_CHECK(i < 3000);
	CHILD_CHECK(!write_text(run, "0"));
	turn_pass(t->to_parent[1]);
	turn_wait(t->to_child[0]);
	_exit(0);
}

/*
 * A process whose child has let KSM merge has merged pages in a mapping of
 * which KSM does not know. Whoever unmaps such a page there has no way to map
 * it again: not even MIGRATE or a device's access may try. The ones beside
 * them move.
 */
TEST_F(ksm, merged_by_child)
{
	const unsigned int pages = 64;
	const size_t size = pages * page_size();
	struct hetmem_cmd_migrate cmd;
	struct turns t;
	pid_t pid, merger;
	char *p;

	if (access("/sys/kernel/mm/ksm/run", F_OK))
		SKIP(return, "kernel lacks KSM");
	write_text("/sys/kernel/mm/ksm/sleep_millisecs", "1");
	write_text("/sys/kernel/mm/ksm/pages_to_scan", "1000");
	/* Nothing is merged of who was there before. */
	ASSERT_EQ(0, write_text("/sys/kernel/mm/ksm/run", "2"));
	ASSERT_EQ(0, turns_init(&t));
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		int hm = hm_open();
		struct emu dev;

		CHILD_CHECK(hm >= 0);
		CHILD_CHECK(!emu_open(&dev, 0));
		p = map_filled(size, 1);
		CHILD_CHECK(p);
		fill_pairs(p, pages);
		merger = fork();
		CHILD_CHECK(merger >= 0);
		if (!merger)
			merge_pairs(p, pages, &t);
		turns_in_parent(&t);
		CHILD_CHECK(turn_wait(t.to_parent[0]));
		/* Touching what is lost takes forever. */
		alarm(20);
		CHILD_CHECK(!hm_migrate(hm, p, size, dev.loc, &cmd));
		CHILD_CHECK(pairs_kept(p, pages));
		CHILD_CHECK(cmd.not_moved >= pages / 2);
		CHILD_CHECK(cmd.why & HETMEM_WHY_MERGEABLE);
		CHILD_CHECK(cmd.moved + cmd.not_moved == pages);
		/* The device uses them where they are. */
		CHILD_CHECK(emu_sees(&dev, HETMEM_EMU_MIGRATE, p,
				     page_size(), 100));
		CHILD_CHECK(emu_sees(&dev, HETMEM_EMU_MIGRATE,
				     p + page_size(), page_size(), 100));
		/* So it is when nobody merges any more. */
		turn_pass(t.to_child[1]);
		CHILD_CHECK(!child_status(merger));
		CHILD_CHECK(to_device(hm, &dev, p, size) <= pages / 2);
		CHILD_CHECK(pairs_kept(p, pages));
		/* Until it is written: by the CPU, or by the device. */
		fill(p, size / 2, 7);
		CHILD_CHECK(!emu_fill(&dev, 0, p + size / 2, size / 2, 8));
		CHILD_CHECK(to_device(hm, &dev, p, size) == pages);
		CHILD_CHECK(mismatch(p, size / 2, 7) < 0);
		CHILD_CHECK(mismatch(p + size / 2, size / 2, 8) < 0);
		_exit(0);
	}
	turns_in_parent(&t);
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(0, write_text("/sys/kernel/mm/ksm/run", "0"));
	close(t.to_child[1]);
	close(t.to_parent[0]);
}

TEST_HARNESS_MAIN
