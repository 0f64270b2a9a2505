// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * BACKGROUND with a device: memory goes there and comes back while its process does
 * something else, contents and counters are right, and the device is empty after the
 * process or the context that wanted it there has gone.
 */
#include "libktest/harness.h"
#include "libktest/background.h"
#include "libktest/emu.h"

FIXTURE(emu_background)
{
	struct rig rig;
	struct job job;
	char *p;
	size_t size;
};

FIXTURE_SETUP(emu_background)
{
	ASSERT_EQ(0, rig_init(&self->rig));
	ASSERT_EQ(0, job_open(&self->job));
	self->size = self->rig.size;
	self->p = map_filled(self->size, 3);
	ASSERT_NE(NULL, self->p);
}

FIXTURE_TEARDOWN(emu_background)
{
	EXPECT_EQ(-1, mismatch(self->p, self->size, 3));
	munmap(self->p, self->size);
	job_close(&self->job);
	EXPECT_EQ(0, rig_exit(&self->rig));
}

/* Pages that are busy are asked for again. Return: pages that are at @location. */
static long all(struct job *job, const void *p, size_t size, uint32_t location)
{
	long there = -1;

	EVENTUALLY(({
		job_set(job, p, size, location);
		there = job_begin(job) || job_wait(job) != 1 || job_collect(job) ||
			job->cmd.result ? -1 : (long)(job->move.moved + job->move.already);
		there < 0 || there == NR(size);
	}));
	return there;
}

TEST_F(emu_background, there_and_back)
{
	const uint32_t loc = self->rig.dev[0].loc;
	struct hetmem_emu_cmd_info before, after;

	ASSERT_EQ(0, emu_info(self->rig.dev[0].fd, &before));
	ASSERT_EQ(NR(self->size), all(&self->job, self->p, self->size, loc));
	EXPECT_EQ(NR(self->size), pages_at(self->job.fd, self->p, self->size, loc));
	EXPECT_TRUE(emu_sees(&self->rig.dev[0], 0, self->p, self->size, 3));
	ASSERT_EQ(NR(self->size), all(&self->job, self->p, self->size, ANY_HOST));
	EXPECT_EQ(NR(self->size), pages_of_kind(self->job.fd, self->p, self->size, HETMEM_HOST));
	ASSERT_EQ(0, emu_info(self->rig.dev[0].fd, &after));
	EXPECT_LE(NR(self->size), (long)(after.to_device - before.to_device));
	EXPECT_LE(NR(self->size), (long)(after.to_host - before.to_host));
}

/* The process writes to the memory all the time that it moves. */
TEST_F(emu_background, written)
{
	size_t at;
	int i;

	for (i = 0; i < test_rounds(20); i++) {
		job_set(&self->job, self->p, self->size,
			i % 2 ? ANY_HOST : self->rig.dev[i / 2 % 2].loc);
		ASSERT_EQ(0, job_begin(&self->job));
		for (at = 0; !poll_one(self->job.eventfd, 0); at = (at + 4104) % self->size & ~7UL)
			*(uint64_t *)(self->p + at) = pattern_word(3, at);
		EXPECT_EQ(1, job_wait(&self->job));
		ASSERT_EQ(0, job_collect(&self->job));
		EXPECT_EQ(0, self->job.cmd.result);
		EXPECT_EQ(self->job.move.end, self->job.move.walk_end);
	}
}

/* Unmapped, mapped anew and closed while it moves. */
TEST_F(emu_background, unmapped)
{
	const uint32_t loc = self->rig.dev[0].loc;
	int i;

	for (i = 0; i < test_rounds(20); i++) {
		char *p = map_filled(self->size, 4);
		struct job job;

		ASSERT_NE(NULL, p);
		ASSERT_EQ(0, job_open(&job));
		job_set(&job, p, self->size, loc);
		ASSERT_EQ(0, job_begin(&job));
		if (i % 3 == 1)
			EXPECT_EQ(-1, mismatch(p, self->size, 4));
		munmap(p, self->size);
		if (i % 2)
			EXPECT_EQ(1, job_wait(&job));
		job_close(&job);
	}
	EXPECT_TRUE(EVENTUALLY(pages_at(self->rig.fd, self->p, self->size, loc) == 0));
}

TEST_HARNESS_MAIN
