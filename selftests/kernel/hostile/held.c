// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Pins and what happens to memory under them: truncation, holes, moves of all kinds,
 * a fork, a process that is reaped while it ends, limits, many contexts. Whatever it was,
 * VmPin is what is held, and nothing is left.
 */
#include "libktest/harness.h"
#include "libktest/ring.h"
#include "libktest/sysfs.h"

#include <pthread.h>
#include <sys/resource.h>

#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif
#ifndef SYS_process_mrelease
#define SYS_process_mrelease 448
#endif

#define PAGES	1024
#define SIZE	(PAGES * page_size())

FIXTURE(held)
{
	int hm;
	long held, bytes;
	char *p;
};

FIXTURE_SETUP(held)
{
	self->held = pins_held();
	self->bytes = read_long(STATS "bytes");
	self->hm = hm_open();
	ASSERT_LE(0, self->hm);
	self->p = map_filled(SIZE, 1);
	ASSERT_NE(NULL, self->p);
}

FIXTURE_TEARDOWN(held)
{
	munmap(self->p, SIZE);
	EXPECT_EQ(0, close(self->hm));
	EXPECT_TRUE(EVENTUALLY(!vm_pin()));
	EXPECT_TRUE(EVENTUALLY(pins_held() == self->held)) {
		TH_LOG("held %ld, before %ld", pins_held(), self->held);
	}
	EXPECT_TRUE(EVENTUALLY(read_long(STATS "bytes") == self->bytes));
}

#define PAGE(n)	(self->p + (n) * page_size())

/* Dropped and pinned again, many times: charged for what is held, once for each page. */
TEST_F(held, dropped_and_pinned)
{
	struct hetmem_cmd_migrate cmd;
	uint64_t unpinned;
	int i;

	for (i = 0; i < 20; i++) {
		ASSERT_EQ(0, hm_pin(self->hm, self->p, SIZE, FOREVER_MS, &cmd));
		EXPECT_EQ(PAGES, cmd.pinned);
		EXPECT_LE(vm_pin(), PAGES);
		EXPECT_EQ(PAGES, pages_pinned(self->hm, self->p, SIZE));
		ASSERT_EQ(0, madvise(PAGE(i), (PAGES - 2 * i) * page_size(), MADV_DONTNEED));
		memset(self->p, 1, SIZE);
	}
	EXPECT_EQ(0, hm_unpin(self->hm, self->p, SIZE, &unpinned));
	EXPECT_EQ(0, vm_pin());
	EXPECT_EQ(PAGES, unpinned);
}

/* A file that gets shorter and has holes punched; addresses behind its end. */
TEST_F(held, truncated)
{
	struct hetmem_cmd_migrate cmd;
	uint64_t unpinned;
	int fd = memfd_create("x", 0), i;
	char *q;

	ASSERT_EQ(0, ftruncate(fd, SIZE / 2));
	q = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ASSERT_NE(MAP_FAILED, q);
	memset(q, 1, SIZE / 2);
	ASSERT_EQ(0, hm_pin(self->hm, q, SIZE, FOREVER_MS, &cmd));
	EXPECT_EQ(PAGES / 2, cmd.pinned);
	EXPECT_EQ(PAGES / 2, cmd.not_moved);
	EXPECT_EQ(PAGES / 2, vm_pin());
	ASSERT_EQ(0, fallocate(fd, 3, 0, SIZE / 8));
	ASSERT_EQ(0, hm_pin(self->hm, q, SIZE, FOREVER_MS, &cmd));
	TH_LOG("pinned %llu not %llu why %x VmPin %ld", cmd.pinned, cmd.not_moved,
	       cmd.why, vm_pin());
	ASSERT_EQ(0, ftruncate(fd, page_size()));
	ASSERT_EQ(0, hm_pin(self->hm, q, SIZE, FOREVER_MS, &cmd));
	ASSERT_EQ(0, ftruncate(fd, SIZE));
	for (i = 0; i < PAGES; i++)
		q[i * page_size()] = 1;
	ASSERT_EQ(0, hm_pin(self->hm, q, SIZE, FOREVER_MS, &cmd));
	EXPECT_EQ(PAGES, cmd.pinned);
	EXPECT_EQ(PAGES, vm_pin());
	EXPECT_EQ(PAGES, pages_pinned(self->hm, q, SIZE));
	EXPECT_EQ(0, hm_unpin(self->hm, q, SIZE, &unpinned));
	EXPECT_EQ(PAGES, unpinned);
	EXPECT_EQ(0, vm_pin());
	munmap(q, SIZE);
	close(fd);
}

/* The same page at two addresses of one context: held for each, or for both. */
TEST_F(held, mapped_twice)
{
	struct hetmem_cmd_migrate cmd;
	uint64_t unpinned;
	int fd = memfd_create("x", 0);
	char *q, *r;

	ASSERT_EQ(0, ftruncate(fd, SIZE));
	q = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	memset(q, 1, SIZE);
	r = mremap(q, 0, SIZE, MREMAP_MAYMOVE);
	ASSERT_NE(MAP_FAILED, r);
	memset(r, 1, SIZE);
	ASSERT_EQ(0, hm_pin(self->hm, q, SIZE, FOREVER_MS, &cmd));
	EXPECT_EQ(PAGES, cmd.pinned);
	ASSERT_EQ(0, hm_pin(self->hm, r, SIZE, FOREVER_MS, &cmd));
	EXPECT_EQ(PAGES, cmd.pinned);
	TH_LOG("VmPin %ld", vm_pin());
	ASSERT_EQ(0, munmap(q, SIZE));
	EXPECT_TRUE(EVENTUALLY(vm_pin() == PAGES));
	EXPECT_EQ(PAGES, pages_pinned(self->hm, r, SIZE));
	EXPECT_EQ(0, hm_unpin(self->hm, r, SIZE, &unpinned));
	EXPECT_EQ(PAGES, unpinned);
	EXPECT_EQ(0, vm_pin());
	munmap(r, SIZE);
	close(fd);
}

/* Moved away in every manner: the pin ends where its memory is unmapped. */
TEST_F(held, moved)
{
	struct hetmem_cmd_migrate cmd;
	char *q = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *r;
	uint64_t unpinned;

	ASSERT_EQ(0, hm_pin(self->hm, self->p, SIZE, FOREVER_MS, &cmd));
	ASSERT_EQ(PAGES, cmd.pinned);
	r = mremap(self->p, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP, q);
	ASSERT_EQ(q, r);
	EXPECT_TRUE(EVENTUALLY(!vm_pin())) {
		TH_LOG("VmPin %ld", vm_pin());
	}
	EXPECT_EQ(0, hm_unpin(self->hm, self->p, SIZE, &unpinned));
	EXPECT_EQ(0, unpinned);
	/* Back, page by page in another order, each pinned at once. */
	for (int i = 0; i < PAGES; i++) {
		int j = i * 5 % PAGES;

		ASSERT_EQ(PAGE(j), mremap(q + j * page_size(), page_size(), page_size(),
			MREMAP_MAYMOVE | MREMAP_FIXED, PAGE(j)));
		ASSERT_EQ(0, hm_pin(self->hm, PAGE(j), page_size(), FOREVER_MS, &cmd));
		ASSERT_EQ(1, cmd.pinned);
	}
	EXPECT_EQ(PAGES, vm_pin());
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
	EXPECT_EQ(0, hm_unpin(self->hm, NULL, 0x7ffffffff000UL, &unpinned));
	EXPECT_EQ(PAGES, unpinned);
	munmap(q, SIZE);
}

/* Fork, exec, exit of children with what the parent holds. */
TEST_F(held, forked)
{
	struct hetmem_cmd_migrate cmd;
	pid_t pid;
	int i;

	ASSERT_EQ(0, hm_pin(self->hm, self->p, SIZE, FOREVER_MS, &cmd));
	for (i = 0; i < 3; i++) {
		pid = i ? fork() : vfork();
		ASSERT_LE(0, pid);
		if (!pid) {
			if (i == 0)
				execl("/bin/true", "true", NULL);
			if (i == 1) {
				CHILD_CHECK(vm_pin() == 0);
				CHILD_CHECK(hm_unpin(self->hm, self->p, SIZE, NULL) == -EPERM);
				CHILD_CHECK(mismatch(self->p, SIZE, 1) == -1);
				memset(self->p, 2, SIZE);
				munmap(self->p, SIZE);
			}
			_exit(0);
		}
		EXPECT_EQ(i ? 0 : 0, child_status(pid) & ~127);
		EXPECT_EQ(PAGES, vm_pin());
		EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
		EXPECT_EQ(PAGES, pages_pinned(self->hm, self->p, SIZE));
	}
	EXPECT_EQ(0, hm_unpin(self->hm, self->p, SIZE, NULL));
	EXPECT_EQ(0, vm_pin());
}

static void *reap(void *arg)
{
	int pidfd = *(int *)arg;

	while (syscall(SYS_process_mrelease, pidfd, 0) && errno != ESRCH)
		sched_yield();
	return NULL;
}

static void *pin_round(void *arg)
{
	char *p = arg;
	struct hetmem_cmd_migrate cmd;
	int hm = hm_open();

	for (;;) {
		hm_pin(hm, p, SIZE, FOREVER_MS, &cmd);
		hm_unpin(hm, p, SIZE / 2, NULL);
	}
	return NULL;
}

/* The memory of a process that was killed is taken before it has ended. */
TEST_F(held, reaped)
{
	int i;

	if (syscall(SYS_process_mrelease, -1, 0) && errno == ENOSYS)
		SKIP(return, "kernel lacks process_mrelease()");
	for (i = 0; i < test_rounds(20); i++) {
		pthread_t reaper;
		struct turns t;
		int pidfd;
		pid_t pid;

		ASSERT_EQ(0, turns_init(&t));
		pid = fork();
		ASSERT_LE(0, pid);
		if (!pid) {
			struct hetmem_cmd_migrate cmd;
			struct ring r;
			pthread_t th;
			int j, hm[8];

			for (j = 0; j < 8; j++) {
				hm[j] = hm_open();
				CHILD_CHECK(hm[j] >= 0);
				CHILD_CHECK(!hm_track(hm[j], self->p, SIZE));
				CHILD_CHECK(!ring_open(hm[j], 64, ALL_EVENTS, &r));
				CHILD_CHECK(!hm_pin(hm[j], self->p, SIZE, FOREVER_MS, &cmd));
			}
			for (j = 0; j < 3; j++)
				CHILD_CHECK(!pthread_create(&th, NULL, pin_round, self->p));
			turn_pass(t.to_parent[1]);
			for (;;)
				pause();
		}
		turns_in_parent(&t);
		ASSERT_TRUE(turn_wait(t.to_parent[0]));
		pidfd = syscall(SYS_pidfd_open, pid, 0);
		ASSERT_LE(0, pidfd);
		kill(pid, SIGKILL);
		ASSERT_EQ(0, pthread_create(&reaper, NULL, reap, &pidfd));
		EXPECT_EQ(128 + SIGKILL, child_status(pid));
		pthread_join(reaper, NULL);
		close(pidfd);
		close(t.to_child[1]);
		close(t.to_parent[0]);
		EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
	}
}

/* Every limit around a group's size, without privileges: never above it, nothing lost. */
TEST_F(held, at_every_limit)
{
	pid_t pid = fork();

	ASSERT_LE(0, pid);
	if (!pid) {
		const struct rlimit most = { 8 * MiB, 8 * MiB };
		struct hetmem_cmd_migrate cmd;
		unsigned int limit;
		int hm, hm2;

		/* Before 5.16 users begin with less. */
		CHILD_CHECK(!setrlimit(RLIMIT_MEMLOCK, &most));
		CHILD_CHECK(!become_nobody());
		hm = hm_open();
		hm2 = hm_open();
		CHILD_CHECK(hm >= 0 && hm2 >= 0);
		for (limit = 0; limit < 300; limit += limit < 140 ? 1 : 37) {
			struct rlimit rl = { limit * page_size(), limit * page_size() };
			struct rlimit soft = { rl.rlim_cur, 8 * MiB };
			long had;
			int ret;

			CHILD_CHECK(!setrlimit(RLIMIT_MEMLOCK, &soft));
			ret = hm_pin(hm, self->p + 32 * page_size(), SIZE / 2, FOREVER_MS, &cmd);
			CHILD_CHECK(ret == -EDQUOT);
			had = vm_pin();
			CHILD_CHECK((unsigned long)had <= limit);
			CHILD_CHECK((unsigned long)had == cmd.pinned);
			CHILD_CHECK((unsigned long)pages_pinned(hm, self->p, SIZE) == cmd.pinned);
			ret = hm_pin(hm2, self->p, SIZE / 2, FOREVER_MS, &cmd);
			CHILD_CHECK(ret == -EDQUOT);
			CHILD_CHECK((unsigned long)vm_pin() <= limit);
			CHILD_CHECK(!hm_unpin(hm2, self->p, SIZE, NULL));
			CHILD_CHECK(vm_pin() == had);
			CHILD_CHECK(!hm_unpin(hm, self->p, SIZE, NULL));
			CHILD_CHECK(!vm_pin());
		}
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
}

/* The whole address space, while it changes: held, released, held. */
TEST_F(held, everything)
{
	pid_t pid = fork();

	ASSERT_LE(0, pid);
	if (!pid) {
		struct hetmem_cmd_migrate cmd;
		uint64_t unpinned;
		int hm = hm_open(), i;

		for (i = 0; i < 5; i++) {
			CHILD_CHECK(!hm_pin(hm, NULL, 0x7ffffffff000UL, FOREVER_MS, &cmd));
			CHILD_CHECK(cmd.pinned >= PAGES);
			CHILD_CHECK(vm_pin() >= PAGES);
			CHILD_CHECK(!hm_unpin(hm, NULL, 0x7ffffffff000UL, &unpinned));
			if (i & 1)
				CHILD_CHECK(vm_pin() == 0);
		}
		CHILD_CHECK(!hm_pin(hm, NULL, 0x7ffffffff000UL, FOREVER_MS, &cmd));
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
}

TEST_HARNESS_MAIN
