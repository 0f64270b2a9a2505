// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * RESIDENCY as a walk: how it stops, goes on, selects and totals; over a
 * whole address space; and while the memory changes. When it is killed:
 * killed.c.
 */
#include "libktest/harness.h"

#include <pthread.h>

/*
 * Four blocks of 2 MiB in which every kind of run lies more than once,
 * some of them over the edge of a block.
 */
FIXTURE(walk)
{
	int fd;
	struct mem m;
	size_t size;
	struct view all;
};

static void make_patchwork(char *p)
{
	const size_t page = page_size();

	fill(p, 10 * page, 1);
	/* 10 to 19 never touched */
	fill(p + 20 * page, 5 * page, 2);
	munmap(p + 25 * page, 5 * page);
	fill(p + 500 * page, 20 * page, 3);
	mprotect(p + 600 * page, 10 * page, PROT_NONE);
	munmap(p + 1020 * page, 8 * page);
	fill(p + 1500 * page, 1 * page, 4);
	fill(p + 2047 * page, 1 * page, 5);
}

FIXTURE_SETUP(walk)
{
	self->fd = hm_open();
	ASSERT_GE(self->fd, 0);
	self->m.fd = -1;
	self->m.old_hugepages = -1;
	self->size = 4 * HUGE_SIZE;
	self->m.p = map_aligned(&self->m, self->size);
	ASSERT_NE(MAP_FAILED, self->m.p);
	madvise(self->m.map, self->m.map_size, MADV_NOHUGEPAGE);
	make_patchwork(self->m.p);
	ASSERT_EQ(0, view_take_by(self->fd, self->m.p, self->size, 4096,
				  &self->all));
}

FIXTURE_TEARDOWN(walk)
{
	view_free(&self->all);
	mem_unmap(&self->m);
	EXPECT_EQ(0, close(self->fd));
}

TEST_F(walk, whole)
{
	EXPECT_EQ(37, view_kind(&self->all, HETMEM_HOST));
	EXPECT_EQ(13, view_kind(&self->all, HETMEM_UNMAPPED));
	EXPECT_EQ(2048 - 37 - 13, view_kind(&self->all, HETMEM_UNKNOWN));
	/* Neighbours that have everything in common are one run. */
	EXPECT_EQ(14, self->all.nr_runs) {
		view_print(&self->all);
	}
}

/* However few runs a call has room for, together they tell the same. */
TEST_F(walk, resumed)
{
	unsigned int room;

	for (room = 1; room < 20; room += room < 4 ? 1 : 5) {
		struct view v;
		size_t i;

		ASSERT_EQ(0, view_take_by(self->fd, self->m.p, self->size,
					  room, &v));
		ASSERT_EQ(self->all.nr_runs, v.nr_runs);
		for (i = 0; i < v.nr_runs; i++) {
			EXPECT_EQ(0, memcmp(&v.runs[i], &self->all.runs[i],
					    sizeof(v.runs[i])));
		}
		view_free(&v);
	}
}

/* Nothing behind the array or the entries that were filled is written. */
TEST_F(walk, array_bounds)
{
	struct hetmem_run runs[8];
	struct hetmem_cmd_residency cmd = {
		.start = self->all.start,
		.end = self->all.end,
		.runs = (uintptr_t)runs,
		.nr_runs = 5,
		.run_size = sizeof(struct hetmem_run),
	};
	unsigned char *behind = (unsigned char *)&runs[5];
	size_t i;

	memset(runs, 0xa5, sizeof(runs));
	ASSERT_EQ(0, hm_residency(self->fd, &cmd));
	EXPECT_EQ(5, cmd.filled_runs);
	EXPECT_EQ(runs[4].end, cmd.walk_end);
	for (i = 0; i < 3 * sizeof(runs[0]); i++)
		ASSERT_EQ(0xa5, behind[i]);

	memset(runs, 0xa5, sizeof(runs));
	cmd.end = cmd.start + page_size();
	ASSERT_EQ(0, hm_residency(self->fd, &cmd));
	EXPECT_EQ(1, cmd.filled_runs);
	EXPECT_EQ(0xa5, *(unsigned char *)&runs[1]);
}

TEST_F(walk, totals_only)
{
	struct hetmem_total totals[8];
	struct hetmem_cmd_residency cmd = {
		.start = self->all.start,
		.end = self->all.end,
		.totals = (uintptr_t)totals,
		.nr_totals = ARRAY_SIZE(totals),
		.total_size = sizeof(struct hetmem_total),
	};
	unsigned int i;

	ASSERT_EQ(0, hm_residency(self->fd, &cmd));
	EXPECT_EQ(cmd.end, cmd.walk_end);
	EXPECT_EQ(0, cmd.filled_runs);
	EXPECT_EQ(self->all.nr_totals, cmd.filled_totals);
	for (i = 0; i < cmd.filled_totals; i++)
		EXPECT_EQ(view_total(&self->all, totals[i].location),
			  totals[i].pages);
}

TEST_F(walk, too_many_locations)
{
	struct hetmem_total totals[4];
	struct hetmem_cmd_residency cmd = {
		.start = self->all.start,
		.end = self->all.end,
		.totals = (uintptr_t)totals,
		.nr_totals = 2,
		.total_size = sizeof(struct hetmem_total),
	};

	EXPECT_EQ(-ENOSPC, hm_residency(self->fd, &cmd));
	/* Two are enough as long as there are two. */
	cmd.end = cmd.start + 20 * page_size();
	EXPECT_EQ(0, hm_residency(self->fd, &cmd));
	EXPECT_EQ(2, cmd.filled_totals);
}

/* Everything this process has, and everything it has not. */
TEST_F(walk, address_space)
{
	size_t size = (1UL << 47) - 2 * page_size();
	unsigned long start, end, mapped = 0;
	char line[512];
	struct view v;
	FILE *f;

	ASSERT_EQ(0, view_take(self->fd, (void *)page_size(), size, &v));
	f = fopen("/proc/self/maps", "r");
	ASSERT_NE(NULL, f);
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "%lx-%lx ", &start, &end) == 2 &&
		    end < 1UL << 47)
			mapped += (end - start) / page_size();
	fclose(f);
	/* The heap may have grown for the view itself, and for stdio. */
	EXPECT_LE(size / page_size() - view_kind(&v, HETMEM_UNMAPPED),
		  mapped);
	EXPECT_GE(size / page_size() - view_kind(&v, HETMEM_UNMAPPED) + 1024,
		  mapped);
	EXPECT_LE(37, view_kind(&v, HETMEM_HOST));
	EXPECT_EQ(HETMEM_HOST,
		  HETMEM_LOC_KIND(view_at(&v, &start)->location));
	view_free(&v);
}

struct changer {
	pthread_t thread;
	volatile bool stop;
	char *p;
	size_t size;
	bool failed;
};

/* All that changes mappings, in the middle of what is walked. */
static void *change(void *arg)
{
	struct changer *c = arg;
	uint64_t seed = 0;

	while (!c->stop) {
		if (mmap(c->p, c->size, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
			 0) != c->p)
			c->failed = true;
		fill(c->p, c->size, ++seed);
		if (mprotect(c->p, c->size / 2, PROT_NONE) ||
		    mprotect(c->p, c->size, PROT_READ) ||
		    mismatch(c->p, c->size, seed) >= 0 ||
		    madvise(c->p + c->size / 4, c->size / 4, MADV_DONTNEED) ||
		    munmap(c->p, c->size))
			c->failed = true;
	}
	return NULL;
}

TEST_F(walk, while_it_changes)
{
	struct changer c = {
		.p = self->m.p + HUGE_SIZE - 32 * page_size(),
		.size = 64 * page_size(),
	};
	int i, ret = 0;

	ASSERT_EQ(0, pthread_create(&c.thread, NULL, change, &c));
	for (i = 0; i < test_rounds(160) && !ret; i++) {
		struct view v;

		/* Each answer has no gap and adds up, whatever it says. */
		ret = view_take(self->fd, self->m.p, self->size, &v);
		view_free(&v);
	}
	c.stop = true;
	pthread_join(c.thread, NULL);
	EXPECT_EQ(0, ret);
	EXPECT_FALSE(c.failed);
}

/* The first or the last page of a block is there, never both. */
static void *alternate(void *arg)
{
	struct changer *c = arg;
	char *last = c->p + c->size - page_size();
	volatile unsigned int i;
	unsigned int n = 0;

	while (!c->stop) {
		char *p = n++ & 1 ? last : c->p;

		*(volatile char *)p = 1;
		for (i = n * 977 % 20000; i; i--)
			;
		if (madvise(p, page_size(), MADV_DONTNEED))
			c->failed = true;
	}
	return NULL;
}

/* What is said of a block was so at one moment, though looking takes longer. */
TEST_F(walk, of_one_moment)
{
	struct changer c = { .p = self->m.p + HUGE_SIZE, .size = HUGE_SIZE };
	struct hetmem_total totals[4];
	struct hetmem_cmd_residency cmd = {
		.start = (uintptr_t)c.p, .end = (uintptr_t)c.p + c.size,
		.totals = (uintptr_t)totals, .nr_totals = ARRAY_SIZE(totals),
		.total_size = sizeof(struct hetmem_total),
	};
	int i, none = 0, one = 0, both = 0, rounds = test_rounds(20000);
	uint64_t there;
	uint32_t j;

	ASSERT_EQ(c.p, mmap(c.p, c.size, PROT_READ | PROT_WRITE, MAP_PRIVATE |
			    MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	madvise(c.p, c.size, MADV_NOHUGEPAGE);
	ASSERT_EQ(0, no_numa_balancing(c.p, c.size));
	ASSERT_EQ(0, pthread_create(&c.thread, NULL, alternate, &c));
	for (i = 0; i < rounds || (!one && i < rounds + 30000); i++) {
		if (i >= rounds)
			/* time: a busy host ran no other processor during all these looks */
			usleep(1000);
		EXPECT_EQ(0, hm_residency(self->fd, &cmd));
		for (j = 0, there = 0; j < cmd.filled_totals; j++) {
			if (HETMEM_LOC_KIND(totals[j].location) == HETMEM_HOST)
				there += totals[j].pages;
		}
		none += !there;
		one += there == 1;
		both += there > 1;
	}
	c.stop = true;
	pthread_join(c.thread, NULL);
	EXPECT_FALSE(c.failed);
	EXPECT_LT(0, one);
	EXPECT_EQ(0, both);
	TH_LOG("nothing there %d times, one page %d times", none, one);
}

/* Two threads on one context, each with its own walk. */
static void *walk_again(void *arg)
{
	FIXTURE_DATA(walk) *self = arg;
	long i, bad = 0;

	for (i = 0; i < test_rounds(80); i++) {
		struct view v;

		bad += view_take_by(self->fd, self->m.p, self->size, 3, &v) ||
		       v.nr_runs != self->all.nr_runs;
		view_free(&v);
	}
	return (void *)bad;
}

TEST_F(walk, threads)
{
	pthread_t t[3];
	void *bad;
	int i;

	for (i = 0; i < 3; i++)
		ASSERT_EQ(0, pthread_create(&t[i], NULL, walk_again, self));
	for (i = 0; i < 3; i++) {
		pthread_join(t[i], &bad);
		EXPECT_EQ(NULL, bad);
	}
}

TEST_HARNESS_MAIN
