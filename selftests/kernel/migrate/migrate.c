// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * MIGRATE where no device is: to the host, where everything is already, and
 * of memory that is not there or must be left alone. Every answer says how
 * many, where and why, and the memory is what it was.
 */
#include "libktest/fixtures.h"

#include <linux/userfaultfd.h>

/* All of it is tracked: what moves, and what does not, is counted there too. */
#define TRACK(p, size)	ASSERT_EQ(0, hm_track(self->fd, p, size))

/* What is on the host already is counted so, and not touched. */
TEST_F(kind, to_host)
{
	struct hetmem_cmd_migrate cmd;
	struct hetmem_cmd_stats st;

	TRACK(self->m.p, self->m.size);
	ASSERT_EQ(0, hm_migrate(self->fd, self->m.p, self->m.size, ANY_HOST,
				&cmd));
	EXPECT_EQ(self->m.size / page_size(), cmd.already);
	EXPECT_EQ(0, cmd.moved);
	EXPECT_EQ(0, cmd.not_moved);
	EXPECT_EQ(0, cmd.why);
	EXPECT_EQ(0, cmd.why_addr);
	ASSERT_EQ(0, hm_stats(self->fd, self->m.p, &st));
	EXPECT_EQ(0, st.to_host);
	EXPECT_EQ(0, st.to_device);
	EXPECT_EQ(0, st.failed);
	EXPECT_EQ(0, st.changes[HETMEM_CHANGE_REPLACE]);
	EXPECT_EQ(0, st.changes[HETMEM_CHANGE_MIGRATE]);
}

/* Its own node is where it is; what huge pages are stays huge. */
TEST_F(kind, to_its_node)
{
	struct hetmem_cmd_migrate cmd;
	struct hetmem_run run = run_at(self->fd, self->m.p);

	TRACK(self->m.p, self->m.size);
	ASSERT_EQ(HETMEM_HOST, HETMEM_LOC_KIND(run.location));
	ASSERT_EQ(0, hm_migrate(self->fd, self->m.p, page_size(),
				run.location, &cmd));
	EXPECT_EQ(1, cmd.already);
	EXPECT_EQ(mem_is_huge(variant->kind) ? 9 : 0, run.order);
	EXPECT_EQ(run.order, run_at(self->fd, self->m.p).order);
}

/* No device of that number: nothing is even looked at. */
TEST_F(kind, to_no_device)
{
	static const unsigned int ids[] = { 31, 32, 1000, 0xffff };
	struct hetmem_cmd_migrate cmd;
	size_t i;

	TRACK(self->m.p, self->m.size);
	for (i = 0; i < ARRAY_SIZE(ids); i++) {
		EXPECT_EQ(-ENODEV,
			  hm_migrate(self->fd, self->m.p, self->m.size,
				     HETMEM_LOC(HETMEM_DEVICE, ids[i]),
				     &cmd));
	}
	EXPECT_EQ(self->m.size / page_size(),
		  pages_of_kind(self->fd, self->m.p, self->m.size,
				HETMEM_HOST));
}

#define HOST(p, size)	hm_migrate(self->fd, p, size, ANY_HOST, &cmd)
#define IN_CORE(nr)							\
	EXPECT_EQ(nr, pages_of_kind(self->fd, self->p, self->size,	\
				    HETMEM_HOST))

TEST_F(special, locations_that_are_no_target)
{
	uint32_t locs[] = {
		HETMEM_LOC(HETMEM_UNKNOWN, 0),
		HETMEM_LOC(HETMEM_UNMAPPED, 0),
		HETMEM_LOC(HETMEM_FOREIGN, 0),
		HETMEM_LOC(HETMEM_COHERENT, 0),
		HETMEM_LOC(HETMEM_ZERO, 0),
		HETMEM_LOC(HETMEM_ZERO + 1, 0),
		HETMEM_LOC(0xffff, 0xffff),
		/* nodes that no machine has */
		HETMEM_LOC(HETMEM_HOST, 0xfffe),
		HETMEM_LOC(HETMEM_HOST, 1023),
	};
	size_t i;
	struct hetmem_cmd_migrate cmd;

	TRACK(self->p, self->size);
	fill(self->p, self->size, 1);
	for (i = 0; i < ARRAY_SIZE(locs); i++) {
		EXPECT_EQ(-EOPNOTSUPP,
			  hm_migrate(self->fd, self->p, self->size, locs[i],
				     &cmd)) {
			TH_LOG("location %x", locs[i]);
		}
	}
	IN_CORE(64);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

/* Nothing that is absent comes into being. */
TEST_F(special, absent)
{
	struct hetmem_cmd_stats st;
	struct hetmem_cmd_migrate cmd;

	TRACK(self->p, self->size);
	fill(self->p, 10 * page_size(), 2);
	ASSERT_EQ(0, HOST(self->p, self->size));
	EXPECT_EQ(10, cmd.already);
	EXPECT_EQ(0, cmd.moved);
	EXPECT_EQ(54, cmd.not_moved);
	EXPECT_EQ(HETMEM_WHY_ABSENT, cmd.why);
	EXPECT_EQ((uintptr_t)PAGE(10), cmd.why_addr);
	IN_CORE(10);
	/* To be absent is no failure. */
	ASSERT_EQ(0, hm_stats(self->fd, self->p, &st));
	EXPECT_EQ(0, st.failed);
}

/* The page of zeroes takes no memory: to the host it has nowhere to go. */
TEST_F(special, zeroes)
{
	struct hetmem_cmd_migrate cmd;
	struct hetmem_cmd_stats st;

	TRACK(self->p, self->size);
	EXPECT_TRUE(all_zero(self->p, 10 * page_size()));
	fill(PAGE(3), page_size(), 3);
	ASSERT_EQ(0, HOST(self->p, 10 * page_size()));
	EXPECT_EQ(10, cmd.already);
	ASSERT_EQ(0, hm_migrate(self->fd, self->p, 10 * page_size(),
				run_at(self->fd, PAGE(3)).location, &cmd));
	EXPECT_EQ(10, cmd.already);
	IN_CORE(1);
	ASSERT_EQ(0, hm_stats(self->fd, self->p, &st));
	EXPECT_EQ(0, st.failed);
}

TEST_F(special, absent_file)
{
	int file = make_file(32 * page_size(), 5);
	struct hetmem_cmd_migrate cmd;
	char *p;

	TRACK(self->p, self->size);
	ASSERT_GE(file, 0);
	p = mmap(NULL, 32 * page_size(), PROT_READ, MAP_PRIVATE, file, 0);
	ASSERT_NE(MAP_FAILED, p);
	ASSERT_EQ(0, HOST(p, 32 * page_size()));
	EXPECT_EQ(32, cmd.not_moved);
	EXPECT_EQ(HETMEM_WHY_ABSENT | HETMEM_WHY_FILE, cmd.why);
	EXPECT_EQ(-1, mismatch(p, 32 * page_size(), 5));
	/* Behind the end of the file there is nothing: SIGBUS. */
	ASSERT_EQ(0, ftruncate(file, 16 * page_size()));
	ASSERT_EQ(0, HOST(p, 32 * page_size()));
	EXPECT_EQ(16, cmd.already);
	EXPECT_EQ(16, cmd.not_moved);
	EXPECT_EQ((uintptr_t)p + 16 * page_size(), cmd.why_addr);
	EXPECT_EQ(HETMEM_WHY_ABSENT,
		  cmd.why & HETMEM_WHY_ABSENT);
	munmap(p, 32 * page_size());
	close(file);
}

TEST_F(special, unmapped)
{
	struct hetmem_cmd_migrate cmd;

	TRACK(self->p, self->size);
	fill(self->p, self->size, 6);
	ASSERT_EQ(0, munmap(PAGE(20), 4 * page_size()));
	ASSERT_EQ(0, HOST(self->p, self->size));
	EXPECT_EQ(60, cmd.already);
	EXPECT_EQ(4, cmd.not_moved);
	EXPECT_EQ(HETMEM_WHY_UNMAPPED, cmd.why & HETMEM_WHY_UNMAPPED);
	EXPECT_EQ((uintptr_t)PAGE(20), cmd.why_addr);
	EXPECT_EQ(4, pages_at(self->fd, self->p, self->size,
			      HETMEM_LOC(HETMEM_UNMAPPED, 0)));
	ASSERT_EQ(0, munmap(self->p, self->size));
	ASSERT_EQ(0, HOST(self->p, self->size));
	EXPECT_EQ(64, cmd.not_moved);
}

TEST_F(special, not_readable)
{
	static const int prots[] = { PROT_NONE, PROT_WRITE };
	size_t i;
	struct hetmem_cmd_migrate cmd;

	TRACK(self->p, self->size);
	for (i = 0; i < ARRAY_SIZE(prots); i++) {
		fill(PAGE(0), 16 * page_size(), 7);
		fill(PAGE(24), 8 * page_size(), 7);
		ASSERT_EQ(0, mprotect(PAGE(8), 16 * page_size(), prots[i]));
		ASSERT_EQ(0, HOST(PAGE(0), 32 * page_size()));
		EXPECT_EQ(16, cmd.not_moved);
		EXPECT_EQ(16, cmd.already);
		EXPECT_EQ(HETMEM_WHY_NOT_READABLE,
			  cmd.why & HETMEM_WHY_NOT_READABLE);
		EXPECT_EQ((uintptr_t)PAGE(8), cmd.why_addr);
		ASSERT_EQ(0, mprotect(PAGE(8), 16 * page_size(),
				      PROT_READ | PROT_WRITE));
		/* Nothing was made of the half that never was. */
		EXPECT_EQ(8, pages_of_kind(self->fd, PAGE(16),
					   8 * page_size(), HETMEM_UNKNOWN));
		EXPECT_EQ(-1, mismatch(PAGE(0), 16 * page_size(), 7));
	}
}

TEST_F(special, device_memory)
{
	char *p = NULL;
	size_t size = 0;
	struct hetmem_cmd_migrate cmd;

	TRACK(self->p, self->size);
	ASSERT_EQ(0, special_mapping(&p, &size));
	ASSERT_EQ(0, HOST(p, size));
	EXPECT_EQ(size / page_size(), cmd.not_moved);
	EXPECT_EQ(HETMEM_WHY_SPECIAL, cmd.why & HETMEM_WHY_SPECIAL);
	EXPECT_EQ((uintptr_t)p, cmd.why_addr);
}

/* Faulting on such memory would wake its handler: it is left alone. */
TEST_F(special, userfaultfd)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = {
		.range = { (uintptr_t)PAGE(16), 16 * page_size() },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	int uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	struct uffd_msg msg;
	struct hetmem_cmd_migrate cmd;

	TRACK(self->p, self->size);
	if (uffd < 0 && errno == ENOSYS)
		SKIP(return, "kernel lacks userfaultfd");
	ASSERT_GE(uffd, 0);
	ASSERT_EQ(0, ioctl(uffd, UFFDIO_API, &api));
	fill(PAGE(0), 24 * page_size(), 8);
	ASSERT_EQ(0, ioctl(uffd, UFFDIO_REGISTER, &reg));
	ASSERT_EQ(0, HOST(self->p, self->size));
	EXPECT_EQ(24, cmd.already);
	EXPECT_EQ(40, cmd.not_moved);
	EXPECT_EQ(HETMEM_WHY_UFFD, cmd.why & HETMEM_WHY_UFFD);
	EXPECT_EQ((uintptr_t)PAGE(24), cmd.why_addr);
	/* Nobody was asked to bring a page. */
	EXPECT_EQ(-1, read(uffd, &msg, sizeof(msg)));
	EXPECT_EQ(EAGAIN, errno);
	close(uffd);
	IN_CORE(24);
	EXPECT_EQ(-1, mismatch(PAGE(0), 24 * page_size(), 8));
}

/* Over everything at once: each is counted where it belongs. */
TEST_F(special, mixed)
{
	struct hetmem_cmd_migrate cmd;

	TRACK(self->p, self->size);
	fill(PAGE(0), 20 * page_size(), 9);
	ASSERT_EQ(0, munmap(PAGE(4), page_size()));
	ASSERT_EQ(0, mprotect(PAGE(8), page_size(), PROT_NONE));
	ASSERT_EQ(0, madvise(PAGE(12), page_size(), MADV_DONTNEED));
	ASSERT_EQ(0, mprotect(PAGE(16), page_size(), PROT_READ));
	ASSERT_EQ(0, HOST(PAGE(0), 20 * page_size()));
	EXPECT_EQ(17, cmd.already);
	EXPECT_EQ(3, cmd.not_moved);
	EXPECT_EQ((uintptr_t)PAGE(4), cmd.why_addr);
	ASSERT_EQ(0, HOST(PAGE(5), 15 * page_size()));
	EXPECT_EQ((uintptr_t)PAGE(8), cmd.why_addr);
	EXPECT_EQ(HETMEM_WHY_NOT_READABLE, cmd.why);
	ASSERT_EQ(0, HOST(PAGE(9), 11 * page_size()));
	EXPECT_EQ((uintptr_t)PAGE(12), cmd.why_addr);
	EXPECT_EQ(HETMEM_WHY_ABSENT, cmd.why);
	ASSERT_EQ(0, HOST(PAGE(13), 7 * page_size()));
	EXPECT_EQ(7, cmd.already);
}

/* A terabyte of nothing: no page is made, no counter overflows. */
TEST_F(special, large_and_empty)
{
	size_t size = slow_kernel() ? 4UL << 30 : 64UL << 30;
	char *p = mmap(NULL, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS |
		       MAP_NORESERVE, -1, 0);
	struct hetmem_cmd_migrate cmd;

	TRACK(self->p, self->size);
	ASSERT_NE(MAP_FAILED, p);
	ASSERT_EQ(0, HOST(p, size));
	EXPECT_EQ(size / page_size(), cmd.not_moved);
	munmap(p, size);
	ASSERT_EQ(0, HOST(p, size));
	EXPECT_EQ(size / page_size(), cmd.not_moved);
	EXPECT_EQ(HETMEM_WHY_UNMAPPED, cmd.why);
}

/* A node other than its own: userspace has move_pages(2) for that. */
TEST_F(special, to_another_node)
{
	int node;
	struct hetmem_cmd_migrate cmd;

	TRACK(self->p, self->size);
	fill(self->p, self->size, 10);
	node = HETMEM_LOC_INDEX(run_at(self->fd, self->p).location);
	if (access("/sys/devices/system/node/node1", F_OK))
		SKIP(return, "kernel lacks a second memory node");
	ASSERT_EQ(0, hm_migrate(self->fd, self->p, self->size,
				HETMEM_LOC(HETMEM_HOST, !node), &cmd));
	EXPECT_EQ(64, cmd.not_moved);
	EXPECT_EQ(HETMEM_WHY_OTHER_NODE, cmd.why);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 10));
}

TEST_HARNESS_MAIN
