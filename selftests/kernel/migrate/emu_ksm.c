// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Memory that KSM may merge: it goes to no device, and who asks is told why.
 * What is on a device already comes back.
 */
#include "libktest/harness.h"
#include "libktest/emu.h"

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
	EXPECT_EQ(HETMEM_WHY_MERGEABLE | HETMEM_WHY_ABSENT, cmd.why);
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
	int i, round, sharing = 0;
	long end;

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
		end = had_ms() + PATIENCE_MS;
		for (i = 0; had_ms() < end; i++) {
			sharing = read_long("/sys/kernel/mm/ksm/pages_sharing");
			EXPECT_EQ(0, hm_migrate(self->hm, self->p, self->size,
						self->rig.dev[i & 1].loc, &cmd));
			EXPECT_EQ(0, cmd.moved);
			EXPECT_TRUE(!cmd.not_moved ||
				    (cmd.why & HETMEM_WHY_MERGEABLE));
			if (sharing >= 60)
				break;
			EXPECT_EQ(0, hm_migrate(self->hm, self->p, self->size,
						ANY_HOST, &cmd));
			/* time: the pace of looks */
			usleep(10000);
		}
		EXPECT_LE(60, sharing);
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
 * KSM: the other one's mapping does not tell. Its pages may move, and then do
 * for both; contents stay.
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
		CHILD_CHECK(cmd.moved >= 62);
		for (i = 0; i < 64; i++)
			CHILD_CHECK(mismatch(PAGE(i), page_size(), 6) < 0);
		_exit(0);
	}
	turns_in_parent(&t);
	ASSERT_EQ(0, madvise(self->p, self->size, MADV_MERGEABLE));
	ASSERT_EQ(0, write_text(run, "1"));
	EXPECT_TRUE(EVENTUALLY(read_long("/sys/kernel/mm/ksm/pages_sharing") >=
			       63));
	EXPECT_EQ(0, write_text(run, "0"));
	turn_pass(t.to_child[1]);
	EXPECT_EQ(0, child_status(pid));
	for (i = 0; i < 64; i++)
		EXPECT_EQ(-1, mismatch(PAGE(i), page_size(), 6));
	ASSERT_EQ(0, madvise(self->p, self->size, MADV_UNMERGEABLE));
	close(t.to_child[1]);
	close(t.to_parent[0]);
}

TEST_HARNESS_MAIN
