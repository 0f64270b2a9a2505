// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Spans: small pages of one mapping move many blocks at a time, and what lies
 * in between (another mapping, a hole, pages that are there already, a caller
 * who wants a list) ends a span and loses nothing. A driver's migration sends
 * one MIGRATE notification, which tells how many there were.
 */
#include "libktest/harness.h"
#include "libktest/emu.h"
#include "libktest/modules.h"

#include <pthread.h>

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

/* Migrations that a driver does for one MIGRATE of everything to @loc. */
static long migrations_to(int hm, void *p, size_t size, uint32_t loc,
			  struct hetmem_cmd_migrate *cmd)
{
	struct hetmem_cmd_stats before, after;
	int ret = hm_stats_context(hm, &before);

	if (!ret)
		ret = hm_migrate(hm, p, size, loc, cmd);
	if (!ret)
		ret = hm_stats_context(hm, &after);
	return ret ? ret : (long)(after.changes[HETMEM_CHANGE_MIGRATE] -
				  before.changes[HETMEM_CHANGE_MIGRATE]);
}

static long migrations(int hm, void *p, size_t size,
		       struct hetmem_cmd_migrate *cmd)
{
	return migrations_to(hm, p, size, ANY_HOST, cmd);
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

/*
 * A driver may have room for no more than a span, which for a device of this
 * size is a block: also where the range begins within one.
 */
TEST_F(span, begins_within_a_block)
{
	char *start = (char *)(((uintptr_t)self->p + HUGE_SIZE - 1) &
			       -HUGE_SIZE) + HUGE_SIZE / 2;
	struct hetmem_cmd_migrate cmd;

	ASSERT_EQ(0, hm_migrate(self->hm, self->p, self->size, ANY_HOST,
				&cmd));
	EXPECT_EQ(2, migrations_to(self->hm, start, HUGE_SIZE * 3 / 2,
				   self->dev->loc, &cmd));
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
		.rest_size = sizeof(struct hetmem_run),
	};
	struct hetmem_cmd_stats before, after;

	ASSERT_EQ(0, hm_stats_context(self->hm, &before));
	ASSERT_EQ(0, hm_ioctl(self->hm, HETMEM_IOC_MIGRATE, &cmd));
	ASSERT_EQ(0, hm_stats_context(self->hm, &after));
	EXPECT_EQ(cmd.end, cmd.walk_end);
	EXPECT_EQ(0, cmd.filled_rest);
	EXPECT_LE(3, after.changes[HETMEM_CHANGE_MIGRATE] -
		     before.changes[HETMEM_CHANGE_MIGRATE]);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

#define BLOCKS	4

/* Towards a device a span is an eighth of it: this one is large enough. */
FIXTURE(large)
{
	struct module emu;
	struct rig rig;
	uint32_t loc;
	int hm;
	char *map, *p;
	size_t size;
};

FIXTURE_SETUP(large)
{
	struct module large = { .name = "hetmem_emu" };

	self->emu.name = large.name;
	module_params(&self->emu);
	ASSERT_GT(sizeof(large.params),
		  snprintf(large.params, sizeof(large.params),
			   "%scapacity_mb=%zu", self->emu.params,
			   8 * BLOCKS * HUGE_SIZE / MiB));
	ASSERT_EQ(0, module_unload(large.name));
	ASSERT_EQ(0, module_load(&large));
	ASSERT_EQ(0, rig_init(&self->rig));
	self->hm = self->rig.fd;
	self->loc = self->rig.dev->loc;
	self->size = BLOCKS * HUGE_SIZE;
	self->map = map_filled(self->size + HUGE_SIZE, 1);
	ASSERT_NE(NULL, self->map);
	self->p = (char *)(((uintptr_t)self->map + HUGE_SIZE - 1) &
			   -HUGE_SIZE);
	fill(self->p, self->size, 1);
}

FIXTURE_TEARDOWN(large)
{
	munmap(self->map, self->size + HUGE_SIZE);
	EXPECT_EQ(0, rig_exit(&self->rig));
	EXPECT_EQ(0, module_unload("hetmem_emu"));
	EXPECT_EQ(0, module_load(&self->emu));
}

/* [@p, @p + @size): every second page is of a huge page, mapped by itself. */
static int map_parts(char *p, size_t size)
{
	size_t at;

	if (mmap(p, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS |
		 MAP_FIXED, -1, 0) != p || madvise(p, size, MADV_HUGEPAGE))
		return -errno;
	fill(p, size, 1);
	if (huge_mapped(p) * KiB < size)
		return -ENOMEM;
	if (madvise(p, size, MADV_NOHUGEPAGE))
		return -errno;
	for (at = page_size(); at < size; at += 2 * page_size()) {
		if (madvise(p + at, page_size(), MADV_DONTNEED))
			return -errno;
		p[at] = 1;
	}
	return 0;
}

/* A span of more blocks than the list has room for: it is not overrun. */
TEST_F(large, with_a_list)
{
	const size_t pages = self->size / page_size();
	struct hetmem_cmd_migrate cmd = { .walk_end = (uintptr_t)self->p };
	const uint64_t end = cmd.walk_end + self->size;
	uint64_t counted = 0, left = 0, listed = 0;
	struct hetmem_run *rest;
	uint32_t i;

	if (!thp_possible())
		SKIP(return, "kernel lacks transparent huge pages");
	rest = malloc(pages * sizeof(*rest));
	ASSERT_NE(NULL, rest);
	ASSERT_EQ(0, map_parts(self->p, self->size));
	while (cmd.walk_end < end) {
		memset(rest, 0xff, pages * sizeof(*rest));
		cmd = (struct hetmem_cmd_migrate){
			.size = sizeof(cmd),
			.start = cmd.walk_end,
			.end = end,
			.location = self->loc,
			.rest = (uintptr_t)rest,
			.nr_rest = HETMEM_REST_MIN,
			.rest_size = sizeof(struct hetmem_run),
		};
		ASSERT_EQ(0, hm_ioctl(self->hm, HETMEM_IOC_MIGRATE, &cmd));
		ASSERT_LT(cmd.start, cmd.walk_end);
		ASSERT_GE(HETMEM_REST_MIN, cmd.filled_rest);
		for (i = 0; i < cmd.filled_rest; i++)
			listed += (rest[i].end - rest[i].start) / page_size();
		for (; i < pages; i++)
			ASSERT_EQ(UINT64_MAX, rest[i].start);
		counted += cmd.moved + cmd.already + cmd.not_moved;
		left += cmd.not_moved;
	}
	EXPECT_EQ(pages, counted);
	EXPECT_EQ(left, listed);
	free(rest);
}

/* Pages that another process maps too move with the others, for both. */
TEST_F(large, shared_pages)
{
	struct hetmem_cmd_migrate cmd;
	char *shared = self->p + HUGE_SIZE + 7 * page_size();
	struct turns t;
	pid_t pid;

	EXPECT_EQ(1, migrations_to(self->hm, self->p, self->size, self->loc,
				   &cmd));
	EXPECT_EQ(1, migrations(self->hm, self->p, self->size, &cmd));
	ASSERT_EQ(0, turns_init(&t));
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		turns_in_child(&t);
		turn_wait(t.to_child[0]);
		_exit(mismatch(self->p, self->size, 1) >= 0);
	}
	turns_in_parent(&t);
	EXPECT_EQ(1, migrations_to(self->hm, self->p, self->size, self->loc,
				   &cmd));
	EXPECT_LT(0, cmd.moved);
	EXPECT_EQ(1, migrations(self->hm, self->p, self->size, &cmd));
	/* All but one are copied. */
	fill(self->p, shared - self->p, 2);
	fill(shared + page_size(),
	     self->size - (shared - self->p) - page_size(), 2);
	EXPECT_EQ(1, migrations_to(self->hm, self->p, self->size, self->loc,
				   &cmd));
	EXPECT_EQ(1, migrations(self->hm, self->p, self->size, &cmd));
	turn_pass(t.to_child[1]);
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(-1, mismatch(self->p, shared - self->p, 2));
	EXPECT_EQ(-1, mismatch_at(shared, page_size(), 1, shared - self->p));
	close(t.to_child[1]);
	close(t.to_parent[0]);
}

static void *fork_until(void *arg)
{
	int *end = arg;
	pid_t pid;

	while (!__atomic_load_n(end, __ATOMIC_RELAXED)) {
		pid = fork();
		if (!pid)
			_exit(0);
		if (pid < 0 || child_status(pid))
			return arg;
	}
	return NULL;
}

/* A fork makes what was looked at worthless, and not what was asked for. */
TEST_F(large, forks_meanwhile)
{
	struct hetmem_cmd_migrate cmd;
	uint64_t moved = 0;
	int i, end = 0;
	pthread_t forker;
	void *failed;

	ASSERT_EQ(0, pthread_create(&forker, NULL, fork_until, &end));
	for (i = 0; i < test_rounds(40); i++) {
		EXPECT_EQ(0, hm_migrate(self->hm, self->p, self->size,
					self->loc, &cmd));
		moved += cmd.moved;
		EXPECT_EQ(0, hm_migrate(self->hm, self->p, self->size,
					ANY_HOST, &cmd));
	}
	__atomic_store_n(&end, 1, __ATOMIC_RELAXED);
	ASSERT_EQ(0, pthread_join(forker, &failed));
	EXPECT_EQ(NULL, failed);
	EXPECT_LT(0, moved);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

TEST_HARNESS_MAIN
