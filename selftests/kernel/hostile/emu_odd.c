// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Mappings that few programs have: droppable, below a stack that grows, behind a
 * protection key, sealed, wiped at fork, of a file that is sealed; and limits as root of
 * a user namespace.
 */
#include "libktest/harness.h"
#include "libktest/emu.h"
#include "libktest/ring.h"
#include "libktest/sysfs.h"

#include <sys/resource.h>

#ifndef MAP_DROPPABLE
#define MAP_DROPPABLE	0x08
#endif
#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK	18
#endif

#define PAGES	64
#define SIZE	(PAGES * page_size())

FIXTURE(odd)
{
	struct rig rig;
	struct emu *dev;
	int hm;
};

FIXTURE_SETUP(odd)
{
	ASSERT_EQ(0, rig_init(&self->rig));
	self->dev = self->rig.dev;
	self->hm = self->rig.fd;
}

FIXTURE_TEARDOWN(odd)
{
	EXPECT_EQ(0, hm_unpin(self->hm, NULL, 0x7ffffffff000UL, NULL));
	EXPECT_TRUE(EVENTUALLY(!vm_pin()));
	EXPECT_EQ(0, rig_exit(&self->rig));
}

/* There and back, and held: every count adds up, the contents stay. */
static void round_trip(struct __test_metadata *_metadata, int hm, const struct emu *dev, char *p,
		       long moves, long holds)
{
	struct hetmem_cmd_migrate cmd;

	EXPECT_EQ(moves, move_to(hm, p, SIZE, dev->loc, NULL));
	EXPECT_EQ(moves, pages_at(hm, p, SIZE, dev->loc));
	EXPECT_EQ(PAGES, to_host(hm, p, SIZE));
	EXPECT_EQ(0, hm_pin(hm, p, SIZE, 60000, &cmd));
	EXPECT_EQ(holds, (long)cmd.pinned);
	EXPECT_EQ(holds, vm_pin());
	EXPECT_EQ(0, hm_unpin(hm, p, SIZE, NULL));
}

TEST_F(odd, droppable)
{
	char *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_DROPPABLE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		SKIP(return, "kernel lacks droppable memory");
	fill(p, SIZE, 1);
	round_trip(_metadata, self->hm, self->dev, p, PAGES, PAGES);
	EXPECT_EQ(-1, mismatch(p, SIZE, 1));
	munmap(p, SIZE);
}

TEST_F(odd, grows_down)
{
	char *room = mmap(NULL, 64 * MiB, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), *p;
	struct hetmem_cmd_migrate cmd;
	char buf[64];

	munmap(room, 64 * MiB);
	p = mmap(room + 32 * MiB, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS |
		 MAP_FIXED | MAP_GROWSDOWN, -1, 0);
	ASSERT_NE(MAP_FAILED, p);
	madvise(p, SIZE, MADV_NOHUGEPAGE);
	fill(p, SIZE, 1);
	EXPECT_EQ(0, hm_pin(self->hm, p - SIZE, SIZE, 60000, &cmd));
	EXPECT_EQ(0, cmd.pinned);
	EXPECT_EQ(0, hm_migrate(self->hm, p - SIZE, SIZE, self->dev->loc, &cmd));
	EXPECT_EQ(PAGES, cmd.not_moved);
	EXPECT_EQ(-EFAULT, emu_read(self->dev, 0, p - 64, 64, buf));
	EXPECT_EQ(-EFAULT, emu_read(self->dev, 1, p - 64, 64, buf));
	EXPECT_EQ(PAGES, pages_of_kind(self->hm, p - SIZE, SIZE, HETMEM_UNMAPPED));
	round_trip(_metadata, self->hm, self->dev, p, PAGES, PAGES);
	EXPECT_EQ(-1, mismatch(p, SIZE, 1));
	munmap(p, SIZE);
}

/* The key forbids this thread what the mapping allows. */
TEST_F(odd, protection_key)
{
	char *p = map_filled(SIZE, 1);
	struct hetmem_cmd_migrate cmd;
	int key = syscall(SYS_pkey_alloc, 0, 1 /* PKEY_DISABLE_ACCESS */);

	if (key < 0)
		SKIP(return, "kernel lacks protection keys");
	ASSERT_EQ(0, syscall(SYS_pkey_mprotect, p, SIZE, PROT_READ | PROT_WRITE, key));
	EXPECT_EQ(PAGES, move_to(self->hm, p, SIZE, self->dev->loc, NULL));
	EXPECT_EQ(PAGES, to_host(self->hm, p, SIZE));
	EXPECT_EQ(0, hm_pin(self->hm, p, SIZE, 60000, &cmd));
	TH_LOG("pinned %llu", cmd.pinned);
	EXPECT_EQ((long)cmd.pinned, vm_pin());
	EXPECT_EQ(-EFAULT, hm_ioctl(self->hm, HETMEM_IOC_MIGRATE, p));
	ASSERT_EQ(0, syscall(SYS_pkey_mprotect, p, SIZE, PROT_READ | PROT_WRITE, 0));
	EXPECT_EQ(-1, mismatch(p, SIZE, 1));
	munmap(p, SIZE);
}

TEST_F(odd, wiped_at_fork)
{
	char *p = map_filled(SIZE, 1);
	struct hetmem_cmd_migrate cmd;
	pid_t pid;

	ASSERT_EQ(0, madvise(p, SIZE, MADV_WIPEONFORK));
	EXPECT_EQ(PAGES, move_to(self->hm, p, SIZE, self->dev->loc, NULL));
	EXPECT_EQ(0, hm_pin(self->hm, p, SIZE / 2, 60000, &cmd));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid)
		_exit(!all_zero(p, SIZE));
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(PAGES / 2, pages_at(self->hm, p, SIZE, self->dev->loc));
	EXPECT_EQ(-1, mismatch(p, SIZE, 1));
	munmap(p, SIZE);
}

/* Memory that may not be unmapped, and the end of its process. */
TEST_F(odd, sealed)
{
	pid_t pid = fork();

	ASSERT_LE(0, pid);
	if (!pid) {
		struct hetmem_cmd_migrate cmd;
		char *p = map_filled(SIZE, 1);
		int hm = hm_open();

		if (syscall(462 /* mseal */, p, SIZE, 0))
			_exit(KSFT_SKIP);
		CHILD_CHECK(move_to(hm, p, SIZE, self->dev->loc, NULL) == PAGES);
		CHILD_CHECK(!hm_pin(hm, p, SIZE / 2, 60000, &cmd));
		CHILD_CHECK(cmd.pinned == PAGES / 2);
		CHILD_CHECK(mismatch(p, SIZE, 1) == -1);
		_exit(0);
	}
	int status = child_status(pid);
	if (status == KSFT_SKIP)
		SKIP(return, "kernel lacks mseal");
	EXPECT_EQ(0, status);
}

/* A file that nobody may write any more, while a pin is there and when it has ended. */
TEST_F(odd, sealed_file)
{
	struct hetmem_cmd_migrate cmd;
	int fd = memfd_create("x", 2 /* MFD_ALLOW_SEALING */);
	char *p, *q;

	ASSERT_EQ(0, ftruncate(fd, SIZE));
	p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	fill(p, SIZE, 1);
	q = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
	ASSERT_EQ(-1, mismatch(q, SIZE, 1));
	EXPECT_EQ(0, hm_pin(self->hm, p, SIZE, 60000, &cmd));
	EXPECT_EQ(PAGES, cmd.pinned);
	ASSERT_EQ(0, munmap(p, SIZE));
	EXPECT_TRUE(EVENTUALLY(!vm_pin()));
	EXPECT_TRUE(EVENTUALLY(!fcntl(fd, 1033 /* F_ADD_SEALS */, 8 /* F_SEAL_WRITE */)));
	EXPECT_EQ(0, hm_pin(self->hm, q, SIZE, 60000, &cmd));
	EXPECT_EQ((long)cmd.pinned, vm_pin());
	EXPECT_EQ(0, hm_migrate(self->hm, q, SIZE, self->dev->loc, &cmd));
	memset(q, 4, SIZE);
	EXPECT_EQ(0, hm_pin(self->hm, q, SIZE, 60000, &cmd));
	EXPECT_EQ(PAGES, cmd.pinned);
	EXPECT_EQ(PAGES, vm_pin());
	EXPECT_EQ(0, hm_unpin(self->hm, q, SIZE, NULL));
	EXPECT_EQ(PAGES, move_to(self->hm, q, SIZE, self->dev->loc, NULL));
	munmap(q, SIZE);
	close(fd);
}

/* Its root has all capabilities there, and none that count. */
TEST_F(odd, user_namespace)
{
	pid_t pid = fork();

	ASSERT_LE(0, pid);
	if (!pid) {
		struct rlimit rl = { 16 * page_size(), 16 * page_size() };
		struct hetmem_cmd_migrate cmd;
		char *p = map_filled(SIZE, 1);
		size_t far;
		int hm, ret;

		CHILD_CHECK(!become_nobody());
		CHILD_CHECK(!setrlimit(RLIMIT_MEMLOCK, &rl));
		if (unshare(CLONE_NEWUSER))
			_exit(KSFT_SKIP);
		hm = hm_open();
		CHILD_CHECK(hm >= 0);
		CHILD_CHECK(hm_pin(hm, p, SIZE, 60000, &cmd) == -EDQUOT);
		CHILD_CHECK(vm_pin() <= 16);
		CHILD_CHECK(emu_evict(self->dev, 1, NULL) == -EPERM);
		/* 8.25 bytes for each 2 MiB, 64 MiB at most. */
		for (far = 0, ret = 0; far < 64 && !ret; far++)
			ret = hm_track(hm, (void *)(far << 40), 1UL << 40);
		CHILD_CHECK(ret == -EDQUOT);
		CHILD_CHECK(far >= 14 && far <= 17);
		_exit(0);
	}
	int status = child_status(pid);
	if (status == KSFT_SKIP)
		SKIP(return, "kernel lacks user namespaces");
	EXPECT_EQ(0, status);
}

TEST_HARNESS_MAIN
