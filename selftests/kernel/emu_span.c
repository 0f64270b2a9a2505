// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Spans: small pages of one mapping move to the host many blocks at a time,
 * and what lies in between (another mapping, a hole, pages that are there
 * already, a caller who wants a list) ends a span and loses nothing. A
 * driver's migration sends one MIGRATE notification, which tells how many
 * there were.
 */
#include "hetmem_emu_test.h"

FIXTURE(span)
{
	struct rig rig;
	struct emu *dev;
	int hm;
	char *p;
	size_t size;
	long pages;
};

FIXTURE_SETUP(span)
{
	ASSERT_EQ(0, rig_init(&self->rig));
	self->dev = self->rig.dev;
	self->hm = self->rig.fd;
	/* Three blocks at least, wherever it begins, and less than a device. */
	self->size = 3 * HUGE_SIZE;
	self->pages = self->size / page_size();
	self->p = map_filled(self->size, 1);
	ASSERT_NE(NULL, self->p);
	ASSERT_GT(self->dev->capacity, self->size);
	ASSERT_EQ(self->pages, to_device(self->hm, self->dev, self->p,
					 self->size));
}

FIXTURE_TEARDOWN(span)
{
	munmap(self->p, self->size);
	EXPECT_EQ(0, rig_exit(&self->rig));
}

#define MIDDLE	(self->p + self->size / 2)

/* Migrations that a driver does for one MIGRATE of everything to the host. */
static long migrations(int hm, void *p, size_t size,
		       struct hetmem_cmd_migrate *cmd)
{
	struct hetmem_cmd_stats before, after;
	int ret = hm_stats_context(hm, &before);

	if (!ret)
		ret = hm_migrate(hm, p, size, ANY_HOST, cmd);
	if (!ret)
		ret = hm_stats_context(hm, &after);
	return ret ? ret : (long)(after.notified[HETMEM_NOTIFY_MIGRATE] -
				  before.notified[HETMEM_NOTIFY_MIGRATE]);
}

TEST_F(span, one_mapping)
{
	struct hetmem_cmd_migrate cmd;

	EXPECT_EQ(1, migrations(self->hm, self->p, self->size, &cmd));
	EXPECT_LE(self->pages - 8, cmd.moved);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

TEST_F(span, two_mappings)
{
	struct hetmem_cmd_migrate cmd;

	ASSERT_EQ(0, mprotect(MIDDLE, self->size / 2, PROT_READ));
	EXPECT_EQ(2, migrations(self->hm, self->p, self->size, &cmd));
	EXPECT_LE(self->pages - 8, cmd.moved);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

TEST_F(span, a_hole)
{
	struct hetmem_cmd_migrate cmd;
	size_t behind = self->size / 2 + page_size();

	ASSERT_EQ(0, munmap(MIDDLE, page_size()));
	EXPECT_EQ(2, migrations(self->hm, self->p, self->size, &cmd));
	EXPECT_EQ(MIDDLE, (char *)(uintptr_t)cmd.why_addr);
	EXPECT_EQ(HETMEM_WHY_UNMAPPED, cmd.why);
	EXPECT_EQ(-1, mismatch(self->p, self->size / 2, 1));
	EXPECT_EQ(-1, mismatch_at(self->p + behind, self->size - behind, 1,
				  behind));
}

TEST_F(span, a_mapping_that_stays)
{
	struct hetmem_cmd_migrate cmd;

	/* What may not be read is left alone. */
	ASSERT_EQ(0, mprotect(MIDDLE, page_size(), PROT_NONE));
	EXPECT_EQ(2, migrations(self->hm, self->p, self->size, &cmd));
	EXPECT_EQ(MIDDLE, (char *)(uintptr_t)cmd.why_addr);
	EXPECT_TRUE(cmd.why & HETMEM_WHY_NOT_READABLE);
	ASSERT_EQ(0, mprotect(MIDDLE, page_size(), PROT_READ));
	EXPECT_EQ(self->dev->loc, run_at(self->hm, MIDDLE).location);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

TEST_F(span, some_are_there)
{
	struct hetmem_cmd_migrate cmd;

	/* The CPU's fault brings it, and neighbours. */
	EXPECT_EQ(-1, mismatch_at(MIDDLE, page_size(), 1, self->size / 2));
	EXPECT_EQ(2, migrations(self->hm, self->p, self->size, &cmd));
	EXPECT_LE(1, cmd.already);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

/* A list has room for one block's pages at a time. */
TEST_F(span, with_a_list)
{
	struct hetmem_run rest[HETMEM_REST_MIN];
	struct hetmem_cmd_migrate cmd = {
		.size = sizeof(cmd),
		.start = (uintptr_t)self->p,
		.end = (uintptr_t)self->p + self->size,
		.location = ANY_HOST,
		.rest = (uintptr_t)rest,
		.nr_rest = HETMEM_REST_MIN,
	};
	struct hetmem_cmd_stats before, after;

	ASSERT_EQ(0, hm_stats_context(self->hm, &before));
	ASSERT_EQ(0, hm_ioctl(self->hm, HETMEM_IOC_MIGRATE, &cmd));
	ASSERT_EQ(0, hm_stats_context(self->hm, &after));
	EXPECT_EQ(cmd.end, cmd.walk_end);
	EXPECT_EQ(0, cmd.filled_rest);
	EXPECT_LE(3, after.notified[HETMEM_NOTIFY_MIGRATE] -
		     before.notified[HETMEM_NOTIFY_MIGRATE]);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

TEST_HARNESS_MAIN
