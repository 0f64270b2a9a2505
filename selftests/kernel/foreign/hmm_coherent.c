// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Another driver's memory that is coherent with the CPUs. The CPUs map it, so no
 * fault brings it back: MIGRATE has the core migrate it. test_hmm plays two GPUs
 * of this kind.
 */
#include "libktest/harness.h"
#include "libktest/hmm.h"
#include "libktest/ring.h"

#define PAGES	64
#define SIZE	(PAGES * page_size())

FIXTURE(coherent)
{
	int fd;
	int gpu[2];
	uint32_t loc[2];
	struct ring r;
	char *p;
	struct hetmem_cmd_refresh refreshed;
};

FIXTURE_SETUP(coherent)
{
	char *scratch;
	int i;

	self->fd = hm_open();
	ASSERT_LE(0, self->fd);
	for (i = 0; i < 2; i++) {
		self->gpu[i] = gpu_open(GPU_COHERENT + i);
		ASSERT_LE(0, self->gpu[i]);
		scratch = map_filled(page_size(), 9);
		ASSERT_NE(NULL, scratch);
		ASSERT_EQ(0, to_gpu(self->gpu[i], scratch, page_size(), 9));
		self->loc[i] = run_at(self->fd, scratch).location;
		EXPECT_EQ(HETMEM_COHERENT, HETMEM_LOC_KIND(self->loc[i]));
		munmap(scratch, page_size());
	}
	self->p = map_filled(SIZE, 1);
	ASSERT_NE(NULL, self->p);
	ASSERT_EQ(0, hm_track(self->fd, self->p, SIZE));
	ASSERT_EQ(0, ring_open(self->fd, 1024, ALL_EVENTS, &self->r));
	ASSERT_EQ(0, hm_refresh_all(self->fd, self->p, &self->refreshed));
	ring_drain(&self->r);
}

FIXTURE_TEARDOWN(coherent)
{
	int i;

	munmap(self->p, SIZE);
	ring_close(&self->r);
	for (i = 0; i < 2; i++)
		close(self->gpu[i]);
	EXPECT_EQ(0, vm_pin());
	EXPECT_EQ(0, close(self->fd));
}

#define GPU	self->gpu[0]
#define LOC	self->loc[0]
#define AT(loc)	pages_at(self->fd, self->p, SIZE, loc)
#define ON_HOST() pages_of_kind(self->fd, self->p, SIZE, HETMEM_HOST)
#define MIGRATE(m) hm_migrate(self->fd, self->p, SIZE, ANY_HOST, m)

TEST_F(coherent, told)
{
	struct hetmem_pool_info pool;
	struct hetmem_run run;
	int i;

	EXPECT_NE(self->loc[0], self->loc[1]);
	for (i = 0; i < 2; i++) {
		ASSERT_EQ(0, to_gpu(self->gpu[i], self->p, SIZE, 1));
		EXPECT_EQ(PAGES, AT(self->loc[i]));
		run = run_at(self->fd, self->p);
		EXPECT_EQ(0, run.why);
		/* The CPU uses it where it is. */
		EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
		EXPECT_EQ(PAGES, AT(self->loc[i]));
		EXPECT_EQ(0, hm_refresh_all(self->fd, self->p,
					    &self->refreshed));
		EXPECT_EQ(PAGES, (long)self->refreshed.on_device);
		ASSERT_EQ(0, pool_at(self->fd, self->loc[i], &pool));
		EXPECT_EQ(256 * MiB, pool.capacity);
		EXPECT_EQ(SIZE, pool.seen);
		EXPECT_EQ(0, pool.flags);
		ASSERT_EQ(0, from_gpu(self->gpu[i], self->p, SIZE));
		EXPECT_EQ(PAGES, ON_HOST());
	}
}

TEST_F(coherent, pulled_back)
{
	struct hetmem_cmd_migrate m;
	int i;

	for (i = 0; i < test_rounds(16); i++) {
		ASSERT_EQ(0, to_gpu(self->gpu[i & 1], self->p, SIZE, 1 + 2 * i));
		/* Written in place: the device page has the newest contents. */
		fill(self->p, SIZE, 2 + 2 * i);
		EXPECT_EQ(PAGES, AT(self->loc[i & 1]));
		EXPECT_EQ(0, hm_refresh_all(self->fd, self->p,
					    &self->refreshed));
		EXPECT_EQ(PAGES, (long)self->refreshed.on_device);
		ring_drain(&self->r);
		ASSERT_EQ(0, MIGRATE(&m));
		EXPECT_EQ(PAGES, (long)m.moved);
		EXPECT_EQ(PAGES, ON_HOST());
		EXPECT_EQ(0, vm_pin());
		EXPECT_EQ(-1, mismatch(self->p, SIZE, 2 + 2 * i));
		EXPECT_EQ(0, hm_refresh_all(self->fd, self->p,
					    &self->refreshed));
		EXPECT_EQ(0, self->refreshed.on_device);
		ASSERT_EQ(0, MIGRATE(&m));
		EXPECT_EQ(PAGES, (long)m.already);
		/* For the next round. */
		fill(self->p, SIZE, 3 + 2 * i);
	}
	/* Only their driver can bring pages there. */
	EXPECT_EQ(-EOPNOTSUPP, hm_migrate(self->fd, self->p, SIZE, LOC, &m));
}

/* In turns: coherent, private, absent, and on the host. */
TEST_F(coherent, mixed)
{
	struct hetmem_cmd_migrate m;
	int other = gpu_open(0);
	int i;

	ASSERT_LE(0, other);
	for (i = 0; i < PAGES; i++) {
		char *page = self->p + i * page_size();

		switch (i % 4) {
		case 0:
			ASSERT_EQ(0, to_gpu_at(GPU, page, page_size(), 1,
					       i * page_size()));
			break;
		case 1:
			ASSERT_EQ(0, to_gpu_at(other, page, page_size(), 1,
					       i * page_size()));
			break;
		case 2:
			ASSERT_EQ(0, madvise(page, page_size(), MADV_DONTNEED));
		}
	}
	EXPECT_EQ(PAGES / 4, AT(LOC));
	EXPECT_EQ(PAGES / 4, pages_of_kind(self->fd, self->p, SIZE,
					   HETMEM_FOREIGN));
	ASSERT_EQ(0, MIGRATE(&m));
	EXPECT_EQ(PAGES / 2, (long)m.moved);
	EXPECT_EQ(PAGES / 4, (long)m.already);
	EXPECT_EQ(PAGES / 4, (long)m.not_moved);
	EXPECT_EQ(HETMEM_WHY_ABSENT, m.why);
	EXPECT_EQ((uintptr_t)self->p + 2 * page_size(), m.why_addr);
	for (i = 0; i < PAGES; i++) {
		char *page = self->p + i * page_size();

		if (i % 4 == 2) {
			EXPECT_TRUE(all_zero(page, page_size()));
			continue;
		}
		EXPECT_EQ(-1, mismatch_at(page, page_size(), 1,
					  i * page_size()));
	}
	close(other);
}

/* Pages that a pipe holds stay; their neighbours move. */
TEST_F(coherent, held)
{
	static const int held[] = { 0, 1, 17, PAGES - 1 };
	struct hetmem_cmd_migrate m;
	int pipes[2], i;

	ASSERT_EQ(0, pipe(pipes));
	ASSERT_EQ(0, to_gpu(GPU, self->p, SIZE, 1));
	for (i = 0; i < 4; i++) {
		struct iovec v = { self->p + held[i] * page_size(), page_size() };

		ASSERT_EQ((ssize_t)page_size(), vmsplice(pipes[1], &v, 1, 0));
	}
	ASSERT_EQ(0, MIGRATE(&m));
	EXPECT_EQ(PAGES - 4, (long)m.moved);
	EXPECT_EQ(4, (long)m.not_moved);
	EXPECT_EQ(HETMEM_WHY_BUSY, m.why);
	EXPECT_EQ((uintptr_t)self->p, m.why_addr);
	EXPECT_EQ(4, AT(LOC));
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
	EXPECT_EQ(0, vm_pin());
	close(pipes[0]);
	close(pipes[1]);
	/* Let go, they come. */
	EXPECT_EQ(PAGES, to_host(self->fd, self->p, SIZE));
	EXPECT_EQ(PAGES, ON_HOST());
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
}

/* MIGRATE with PIN pulls them back first; then no driver gets them. */
TEST_F(coherent, pinned)
{
	struct hetmem_cmd_migrate m;

	ASSERT_EQ(0, to_gpu(GPU, self->p, SIZE, 1));
	ASSERT_EQ(0, hm_pin(self->fd, self->p, SIZE, FOREVER_MS, &m));
	EXPECT_EQ(PAGES, (long)m.moved);
	EXPECT_EQ(PAGES, (long)m.pinned);
	EXPECT_EQ(PAGES, vm_pin());
	EXPECT_NE(0, to_gpu(GPU, self->p, page_size(), 1));
	EXPECT_EQ(PAGES, ON_HOST());
	EXPECT_EQ(PAGES, pages_pinned(self->fd, self->p, SIZE));
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
	ASSERT_EQ(0, hm_unpin(self->fd, self->p, SIZE, NULL));
	EXPECT_EQ(0, to_gpu(GPU, self->p, SIZE, 1));
	EXPECT_EQ(PAGES, AT(LOC));
}

/*
 * After fork() both processes map the pages, until one of them pulls them back or
 * writes. Neither changes what the other reads.
 */
TEST_F(coherent, forked)
{
	const size_t half = SIZE / 2;
	struct hetmem_cmd_migrate m;
	struct turns t;
	pid_t pid;

	ASSERT_EQ(0, turns_init(&t));
	ASSERT_EQ(0, to_gpu(GPU, self->p, SIZE, 1));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		int fd = hm_open();

		turns_in_child(&t);
		CHILD_CHECK(fd >= 0);
		CHILD_CHECK(pages_at(fd, self->p, SIZE, LOC) == PAGES);
		fill(self->p, half, 2);
		CHILD_CHECK(pages_at(fd, self->p, SIZE, LOC) == PAGES / 2);
		CHILD_CHECK(to_host(fd, self->p, SIZE) == PAGES);
		CHILD_CHECK(mismatch(self->p, half, 2) < 0);
		CHILD_CHECK(mismatch_at(self->p + half, half, 1, half) < 0);
		turn_pass(t.to_parent[1]);
		/* The parent writes now; this process does not see it. */
		CHILD_CHECK(turn_wait(t.to_child[0]));
		CHILD_CHECK(mismatch(self->p, half, 2) < 0);
		CHILD_CHECK(mismatch_at(self->p + half, half, 1, half) < 0);
		_exit(0);
	}
	turns_in_parent(&t);
	EXPECT_TRUE(turn_wait(t.to_parent[0]));
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
	EXPECT_EQ(PAGES, to_host(self->fd, self->p, SIZE));
	EXPECT_EQ(PAGES, ON_HOST());
	fill(self->p, SIZE, 3);
	turn_pass(t.to_child[1]);
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 3));
	ASSERT_EQ(0, MIGRATE(&m));
	EXPECT_EQ(PAGES, (long)m.already);
	close(t.to_child[1]);
	close(t.to_parent[0]);
}

/* Memory that may only be read is pulled back too. */
TEST_F(coherent, read_only)
{
	struct hetmem_cmd_migrate m;

	ASSERT_EQ(0, to_gpu(GPU, self->p, SIZE, 1));
	ASSERT_EQ(0, mprotect(self->p, SIZE, PROT_READ));
	ASSERT_EQ(0, MIGRATE(&m));
	EXPECT_EQ(PAGES, (long)m.moved);
	EXPECT_EQ(PAGES, ON_HOST());
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
}

/* A killed process leaves no pin behind, and its parent's memory as it was. */
TEST_F(coherent, killed)
{
	struct hetmem_cmd_migrate m;
	int i;

	for (i = 0; i < test_rounds(16); i++) {
		struct turns t;
		pid_t pid;

		ASSERT_EQ(0, turns_init(&t));
		pid = fork();
		ASSERT_LE(0, pid);
		if (!pid) {
			int fd = hm_open(), gpu = gpu_open(GPU_COHERENT);

			CHILD_CHECK(fd >= 0 && gpu >= 0);
			turn_pass(t.to_parent[1]);
			for (;;) {
				CHILD_CHECK(!to_gpu(gpu, self->p, SIZE, 1));
				hm_migrate(fd, self->p, SIZE, ANY_HOST, &m);
			}
		}
		turns_in_parent(&t);
		EXPECT_TRUE(turn_wait(t.to_parent[0]));
		/* time: the moment varies, and each is right */
		usleep(900 * i);
		EXPECT_EQ(0, kill(pid, SIGKILL));
		EXPECT_EQ(128 + SIGKILL, child_status(pid));
		close(t.to_child[1]);
		close(t.to_parent[0]);
		EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
	}
	EXPECT_EQ(PAGES, to_host(self->fd, self->p, SIZE));
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
}

TEST_HARNESS_MAIN
