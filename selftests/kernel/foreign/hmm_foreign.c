// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Another driver's device memory: the kernel's own test_hmm, which knows
 * nothing of hetmem, plays two GPUs. What it moves is seen, numbered, counted
 * by REFRESH and brought back, through eviction, fork, mremap and unmapping.
 */
#include "libktest/harness.h"
#include "libktest/hmm.h"
#include "libktest/modules.h"
#include "libktest/ring.h"

#define ENTRIES	1024

FIXTURE(foreign)
{
	int fd;
	int gpu[2];
	uint32_t loc[2];
	struct ring r;
	char *p;
	size_t size;
	struct hetmem_cmd_refresh cmd;
};

FIXTURE_SETUP(foreign)
{
	char *scratch;
	int i;

	self->fd = hm_open();
	ASSERT_GE(self->fd, 0);
	/* As userspace finds out which GPU is which: a page to each. */
	for (i = 0; i < 2; i++) {
		self->gpu[i] = gpu_open(i);
		ASSERT_GE(self->gpu[i], 0);
		scratch = map_filled(page_size(), 9);
		ASSERT_NE(NULL, scratch);
		ASSERT_EQ(0, to_gpu(self->gpu[i], scratch, page_size(), 9));
		self->loc[i] = foreign_at(self->fd, scratch);
		EXPECT_NE(NO_LOC, self->loc[i]);
		munmap(scratch, page_size());
	}
	EXPECT_NE(self->loc[0], self->loc[1]);
	self->size = test_size() / 4;
	self->p = map_filled(self->size, 1);
	ASSERT_NE(NULL, self->p);
	ASSERT_EQ(0, hm_track(self->fd, self->p, self->size));
	ASSERT_EQ(0, ring_open(self->fd, ENTRIES,
			       ALL_EVENTS & ~EVENT(THRASH), &self->r));
	ASSERT_EQ(0, hm_refresh_all(self->fd, self->p, &self->cmd));
	ASSERT_EQ(0, self->cmd.on_device);
}

FIXTURE_TEARDOWN(foreign)
{
	int i;

	munmap(self->p, self->size);
	ring_close(&self->r);
	for (i = 0; i < 2; i++)
		close(self->gpu[i]);
	EXPECT_EQ(0, close(self->fd));
}

#define GPU	self->gpu[0]
#define AT(loc)	pages_at(self->fd, self->p, self->size, loc)
#define ON_HOST() pages_of_kind(self->fd, self->p, self->size, HETMEM_HOST)

/* REFRESH finds @n pages on devices. */
#define EXPECT_FOUND(n)							\
	do {								\
		EXPECT_EQ(0, hm_refresh_all(self->fd, self->p,		\
					    &self->cmd));		\
		EXPECT_EQ(n, self->cmd.on_device);			\
	} while (0)

/*
 * Before any driver has shown its owner its pages are unknown, never
 * "nothing". hetmem is loaded anew, so that it has seen nobody.
 */
TEST_F(foreign, unknown_owner)
{
	struct module hetmem = { .name = "hetmem" };
	struct module emu = { .name = "hetmem_emu" };
	bool had_emu = module_loaded("hetmem_emu");
	struct hetmem_run run;
	char *more;

	ring_close(&self->r);
	close(self->fd);
	module_params(&hetmem);
	module_params(&emu);
	if (had_emu)
		ASSERT_EQ(0, module_unload("hetmem_emu"));
	ASSERT_EQ(0, module_unload("hetmem"));
	ASSERT_EQ(0, to_gpu(GPU, self->p, self->size, 1));
	ASSERT_EQ(0, module_load(&hetmem));
	if (had_emu)
		ASSERT_EQ(0, module_load(&emu));
	self->fd = hm_open();
	ASSERT_GE(self->fd, 0);
	EXPECT_EQ(NR(self->size), AT(NO_LOC));
	run = run_at(self->fd, self->p);
	EXPECT_EQ(HETMEM_WHY_ABSENT, run.why);
	/* One migration of it, and it is known. */
	more = map_filled(page_size(), 2);
	ASSERT_NE(NULL, more);
	ASSERT_EQ(0, to_gpu(GPU, more, page_size(), 2));
	EXPECT_EQ(NR(self->size), pages_of_kind(self->fd, self->p, self->size,
						HETMEM_FOREIGN));
	EXPECT_EQ(foreign_at(self->fd, more), foreign_at(self->fd, self->p));
	munmap(more, page_size());
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
	ASSERT_EQ(0, ring_open(self->fd, ENTRIES, ALL_EVENTS, &self->r));
}

TEST_F(foreign, there_and_back)
{
	struct hetmem_event e;
	uint64_t before = now_ns(), seen = 0;

	ASSERT_EQ(0, to_gpu(GPU, self->p, self->size, 1));
	/* Announced, within the range, before it happened. */
	while (ring_next(&self->r, &e)) {
		if (e.type != HETMEM_EVENT_INVALIDATED)
			continue;
		EXPECT_EQ(HETMEM_CHANGE_MIGRATE, e.cause);
		EXPECT_LE(before, e.time);
		EXPECT_EQ(0, e.location);
		EXPECT_LE((uintptr_t)self->p, e.start);
		EXPECT_GE((uintptr_t)self->p + self->size, e.end);
		seen += (e.end - e.start) / page_size();
	}
	EXPECT_LE(NR(self->size), seen);
	EXPECT_LT(0, hm_dirty(self->fd, self->p));
	/* What came of it only REFRESH finds. */
	EXPECT_FOUND(NR(self->size));
	EXPECT_EQ(NR(self->size), AT(self->loc[0]));
	/* Nothing changed: nothing more is looked at. */
	EXPECT_FOUND(NR(self->size));
	EXPECT_EQ(0, self->cmd.walked_blocks);

	ASSERT_EQ(0, from_gpu(GPU, self->p, self->size));
	EXPECT_FOUND(0);
	EXPECT_EQ(NR(self->size), ON_HOST());
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
	EXPECT_FOUND(0);
}

/* as_of is when REFRESH began: what moves after it may not be in the counters. */
TEST_F(foreign, as_of)
{
	struct hetmem_cmd_refresh *cmd = &self->cmd;
	struct hetmem_cmd_stats st;
	uint64_t before;
	int i;

	for (i = 0; i < 10; i++) {
		ASSERT_EQ(0, to_gpu(GPU, self->p, self->size, 1));
		before = now_ns();
		ASSERT_EQ(0, hm_refresh(self->fd, self->p, cmd));
		EXPECT_LE(before, cmd->as_of);
		EXPECT_GE(now_ns(), cmd->as_of);
		ASSERT_EQ(0, hm_stats(self->fd, self->p, &st));
		EXPECT_EQ(cmd->as_of, st.as_of);
		ASSERT_EQ(0, from_gpu(GPU, self->p, self->size));
		EXPECT_EQ(0, hm_refresh_all(self->fd, self->p, cmd));
	}
}

/*
 * A process that is killed while pages of the GPU are pulled back, or on their
 * way there: what it shares with its parent stays what it was.
 */
TEST_F(foreign, killed)
{
	struct hetmem_cmd_migrate m;
	int i;

	for (i = 0; i < test_rounds(24); i++) {
		struct turns t;
		pid_t pid;

		ASSERT_EQ(0, turns_init(&t));
		pid = fork();
		ASSERT_GE(pid, 0);
		if (!pid) {
			int fd = hm_open(), gpu = gpu_open(i & 1);

			CHILD_CHECK(fd >= 0 && gpu >= 0);
			CHILD_CHECK(!hm_track(fd, self->p, self->size));
			turn_pass(t.to_parent[1]);
			for (;;) {
				CHILD_CHECK(!to_gpu(gpu, self->p, self->size,
						    1));
				hm_migrate(fd, self->p, self->size, ANY_HOST,
					   &m);
			}
		}
		turns_in_parent(&t);
		EXPECT_TRUE(turn_wait(t.to_parent[0]));
		/* time: the moment varies, and each is right */
		usleep(700 * i);
		EXPECT_EQ(0, kill(pid, SIGKILL));
		EXPECT_EQ(128 + SIGKILL, child_status(pid));
		close(t.to_child[1]);
		close(t.to_parent[0]);
		EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
	}
	ASSERT_EQ(0, hm_migrate(self->fd, self->p, self->size, ANY_HOST, &m));
	EXPECT_EQ(NR(self->size), m.already + m.moved);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

/* Each GPU has a location of its own, the same for everybody. */
TEST_F(foreign, two_gpus)
{
	const size_t half = self->size / 2;
	int other = hm_open();

	ASSERT_GE(other, 0);
	ASSERT_EQ(0, to_gpu(self->gpu[0], self->p, half, 1));
	ASSERT_EQ(0, to_gpu_at(self->gpu[1], self->p + half, half, 1, half));
	EXPECT_EQ(NR(half), AT(self->loc[0]));
	EXPECT_EQ(NR(half), AT(self->loc[1]));
	EXPECT_EQ(0, AT(NO_LOC));
	EXPECT_EQ(self->loc[0], run_at(other, self->p).location);
	EXPECT_EQ(self->loc[1], run_at(other, self->p + half).location);
	EXPECT_EQ(0, run_at(other, self->p).why);
	EXPECT_EQ(0, hm_refresh_all(self->fd, self->p, &self->cmd));
	EXPECT_EQ(NR(self->size), self->cmd.on_device);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
	EXPECT_EQ(0, hm_refresh_all(self->fd, self->p, &self->cmd));
	EXPECT_EQ(0, self->cmd.on_device);
	close(other);
}

/* The CPU faults some of it back. */
TEST_F(foreign, faulted_back)
{
	const size_t part = 16 * page_size();

	ASSERT_EQ(0, to_gpu(GPU, self->p, self->size, 1));
	EXPECT_FOUND(NR(self->size));
	EXPECT_EQ(-1, mismatch(self->p, part, 1));
	EXPECT_FOUND(NR(self->size - part));
	EXPECT_EQ(NR(part), ON_HOST());
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
	EXPECT_FOUND(0);
}

/* MIGRATE to the host works on whatever driver's pages. */
TEST_F(foreign, migrated_to_host)
{
	struct hetmem_cmd_migrate m;
	const size_t half = self->size / 2;

	ASSERT_EQ(0, to_gpu(GPU, self->p, self->size, 1));
	EXPECT_FOUND(NR(self->size));
	ASSERT_EQ(0, hm_migrate(self->fd, self->p + half, half, ANY_HOST, &m));
	EXPECT_EQ(NR(half), m.moved);
	EXPECT_EQ(0, m.already);
	EXPECT_EQ(0, m.not_moved);
	EXPECT_EQ(NR(half), AT(self->loc[0]));
	EXPECT_EQ(NR(half), ON_HOST());
	EXPECT_FOUND(NR(half));
	/* Half of it is there already. */
	ASSERT_EQ(0, hm_migrate(self->fd, self->p, self->size, ANY_HOST, &m));
	EXPECT_EQ(NR(half), m.moved);
	EXPECT_EQ(NR(half), m.already);
	EXPECT_FOUND(0);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
	/* Only that driver can move anything there. */
	EXPECT_EQ(-EOPNOTSUPP, hm_migrate(self->fd, self->p, self->size,
					  self->loc[0], &m));
	EXPECT_EQ(NR(self->size), ON_HOST());
}

/* Holes become device pages, zeroed; MIGRATE brings these too. */
TEST_F(foreign, never_touched)
{
	struct hetmem_cmd_migrate m;
	struct hmm_dmirror_cmd cmd;
	char *data = malloc(self->size);

	ASSERT_NE(NULL, data);
	ASSERT_EQ(0, madvise(self->p, self->size, MADV_DONTNEED));
	EXPECT_EQ(0, hm_refresh_all(self->fd, self->p, &self->cmd));
	EXPECT_EQ(NR(self->size), AT(NO_LOC));
	ring_drain(&self->r);
	ASSERT_EQ(0, gpu_call(GPU, HMM_DMIRROR_MIGRATE_TO_DEV, self->p,
			      self->size, data, &cmd));
	EXPECT_TRUE(all_zero(data, self->size));
	EXPECT_FOUND(NR(self->size));
	ASSERT_EQ(0, hm_migrate(self->fd, self->p, self->size, ANY_HOST, &m));
	EXPECT_EQ(NR(self->size), m.moved);
	EXPECT_FOUND(0);
	EXPECT_TRUE(all_zero(self->p, self->size));
	free(data);
}

/* The driver evicts by PFN: no MIGRATE is seen, the blocks are dirty. */
TEST_F(foreign, evicted)
{
	long before;

	ASSERT_EQ(0, to_gpu(GPU, self->p, self->size, 1));
	EXPECT_FOUND(NR(self->size));
	before = hm_notified(self->fd, self->p, HETMEM_CHANGE_MIGRATE);
	/* Whoever closes such a device evicts all that it has. */
	close(GPU);
	EXPECT_EQ(before, hm_notified(self->fd, self->p,
				      HETMEM_CHANGE_MIGRATE));
	EXPECT_LT(0, hm_dirty(self->fd, self->p));
	EXPECT_FOUND(0);
	EXPECT_EQ(NR(self->size), ON_HOST());
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
	self->gpu[0] = gpu_open(0);
	ASSERT_GE(self->gpu[0], 0);
}

TEST_F(foreign, unmapped_in_part)
{
	const size_t part = self->size / 4;

	ASSERT_EQ(0, to_gpu(GPU, self->p, self->size, 1));
	EXPECT_FOUND(NR(self->size));
	ASSERT_EQ(0, munmap(self->p + part, part));
	EXPECT_FOUND(NR(self->size - part));
	EXPECT_EQ(NR(part), AT(HETMEM_LOC(HETMEM_UNMAPPED, 0)));
	ASSERT_EQ(0, madvise(self->p, part, MADV_DONTNEED));
	EXPECT_FOUND(NR(self->size - 2 * part));
	EXPECT_EQ(NR(part), AT(NO_LOC));
	EXPECT_TRUE(all_zero(self->p, part));
	EXPECT_EQ(-1, mismatch_at(self->p + 2 * part, 2 * part, 1, 2 * part));
	EXPECT_FOUND(0);
}

TEST_F(foreign, moved_by_mremap)
{
	char *to = mmap(NULL, self->size, PROT_NONE, MAP_PRIVATE |
			MAP_ANONYMOUS, -1, 0);
	struct hetmem_cmd_migrate m;

	ASSERT_NE(MAP_FAILED, to);
	ASSERT_EQ(0, to_gpu(GPU, self->p, self->size, 1));
	EXPECT_FOUND(NR(self->size));
	ASSERT_EQ(to, mremap(self->p, self->size, self->size, MREMAP_MAYMOVE |
			     MREMAP_FIXED, to));
	/* They left this place. */
	EXPECT_FOUND(0);
	EXPECT_EQ(NR(self->size), pages_at(self->fd, to, self->size,
					   self->loc[0]));
	ASSERT_EQ(0, hm_track(self->fd, to, self->size));
	EXPECT_EQ(0, hm_refresh_all(self->fd, to, &self->cmd));
	EXPECT_EQ(NR(self->size), self->cmd.on_device);
	ASSERT_EQ(0, hm_migrate(self->fd, to, self->size, ANY_HOST, &m));
	EXPECT_EQ(NR(self->size), m.moved);
	EXPECT_EQ(-1, mismatch(to, self->size, 1));
	munmap(to, self->size);
}

/*
 * After fork() both have the GPU's pages. The child's fault brings a page back
 * for both, its write gives it a copy; its own context sees what it has.
 */
TEST_F(foreign, forked)
{
	struct turns t;
	pid_t pid;

	ASSERT_EQ(0, turns_init(&t));
	ASSERT_EQ(0, to_gpu(GPU, self->p, self->size, 1));
	EXPECT_FOUND(NR(self->size));
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		const size_t half = self->size / 2;
		struct hetmem_cmd_refresh cmd;
		struct hetmem_cmd_migrate m;
		int fd = hm_open();

		turns_in_child(&t);
		CHILD_CHECK(fd >= 0 && !hm_track(fd, self->p, self->size));
		/* The owner is known to all contexts. */
		CHILD_CHECK(!hm_refresh_all(fd, self->p, &cmd));
		CHILD_CHECK(cmd.on_device == NR(self->size));
		fill(self->p, half, 2);
		CHILD_CHECK(!hm_refresh_all(fd, self->p, &cmd));
		CHILD_CHECK(cmd.on_device == NR(half));
		CHILD_CHECK(!hm_migrate(fd, self->p, self->size, ANY_HOST,
					&m));
		CHILD_CHECK(m.moved == NR(half) && !m.not_moved);
		CHILD_CHECK(mismatch(self->p, half, 2) < 0);
		CHILD_CHECK(mismatch_at(self->p + half, half, 1, half) < 0);
		turn_pass(t.to_parent[1]);
		_exit(0);
	}
	turns_in_parent(&t);
	EXPECT_TRUE(turn_wait(t.to_parent[0]));
	EXPECT_EQ(0, child_status(pid));
	EXPECT_FOUND((uint64_t)pages_of_kind(self->fd, self->p, self->size,
					     HETMEM_FOREIGN));
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
	EXPECT_FOUND(0);
}

/* Pages that went before anybody tracked them: the first look finds them. */
TEST_F(foreign, tracked_late)
{
	ASSERT_EQ(0, hm_untrack(self->fd, self->p, self->size));
	ASSERT_EQ(0, to_gpu(GPU, self->p, self->size, 1));
	ASSERT_EQ(0, hm_track(self->fd, self->p, self->size));
	EXPECT_FOUND(NR(self->size));
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

/* Attempts of a driver that is not registered are counted as such. */
TEST_F(foreign, stats)
{
	struct hetmem_cmd_stats st;

	ASSERT_EQ(0, to_gpu(GPU, self->p, self->size, 1));
	ASSERT_EQ(0, from_gpu(GPU, self->p, self->size));
	ASSERT_EQ(0, hm_stats(self->fd, self->p, &st));
	EXPECT_LE(2, st.changes[HETMEM_CHANGE_MIGRATE]);
	/* Which of them worked nobody has told. */
	EXPECT_EQ(0, st.to_device);
	EXPECT_EQ(0, st.to_host);
	EXPECT_EQ(0, st.on_device);
	EXPECT_LT(0, st.dirty_blocks);
}

/*
 * Again and again, each time with other contents: what was pulled back is what
 * the GPU had. (test_hmm cannot write to pages that it has itself.)
 */
TEST_F(foreign, again_and_again)
{
	struct hetmem_cmd_migrate m;
	int i;

	for (i = 0; i < test_rounds(16); i++) {
		ASSERT_EQ(0, to_gpu(self->gpu[i & 1], self->p, self->size,
				    1 + i));
		EXPECT_FOUND(NR(self->size));
		ASSERT_EQ(0, hm_migrate(self->fd, self->p, self->size,
					ANY_HOST, &m));
		EXPECT_EQ(0, m.not_moved);
		EXPECT_EQ(-1, mismatch(self->p, self->size, 1 + i));
		EXPECT_FOUND(0);
		fill(self->p, self->size, 2 + i);
	}
}

TEST_HARNESS_MAIN
