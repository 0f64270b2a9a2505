// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * MIGRATE where no device is: to the host, where everything is already, and
 * of memory that is not there or must be left alone. Every answer says how
 * many, where and why, and the memory is what it was.
 */
#include "hetmem_mem.h"

#include <linux/userfaultfd.h>

/* Memory of one kind, all of it touched. */
FIXTURE(kind)
{
	int fd;
	struct mem m;
};

MEM_KIND_VARIANTS(kind);

FIXTURE_SETUP(kind)
{
	size_t size = mem_is_huge(variant->kind) ? 2 * HUGE_SIZE : test_size();
	int ret;

	self->fd = hm_open();
	ASSERT_GE(self->fd, 0);
	ret = mem_map(&self->m, variant->kind, size, 3);
	if (ret == -EOPNOTSUPP) {
		mem_unmap(&self->m);
		SKIP(return, "kernel lacks %s", self->m.lacks);
	}
	ASSERT_EQ(0, ret) {
		mem_unmap(&self->m);
	}
	ASSERT_EQ(0, hm_track(self->fd, self->m.p, size));
}

FIXTURE_TEARDOWN(kind)
{
	EXPECT_EQ(-1, mismatch(self->m.p, self->m.size, 3));
	mem_unmap(&self->m);
	EXPECT_EQ(0, close(self->fd));
}

/* What is on the host already is counted so, and not touched. */
TEST_F(kind, to_host)
{
	static const uint32_t flags[] = { 0, HETMEM_MIGRATE_POPULATE };
	struct hetmem_cmd_migrate cmd;
	struct hetmem_cmd_stats st;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(flags); i++) {
		ASSERT_EQ(0, hm_migrate_flags(self->fd, self->m.p,
					      self->m.size, ANY_HOST,
					      flags[i], &cmd));
		EXPECT_EQ(self->m.size / page_size(), cmd.already);
		EXPECT_EQ(0, cmd.moved);
		EXPECT_EQ(0, cmd.not_moved);
		EXPECT_EQ(0, cmd.why);
		EXPECT_EQ(0, cmd.why_addr);
	}
	ASSERT_EQ(0, hm_stats(self->fd, self->m.p, &st));
	EXPECT_EQ(0, st.to_host);
	EXPECT_EQ(0, st.to_device);
	EXPECT_EQ(0, st.failed);
	EXPECT_EQ(0, st.notified[HETMEM_NOTIFY_CLEAR]);
	EXPECT_EQ(0, st.notified[HETMEM_NOTIFY_MIGRATE]);
}

/* Its own node is where it is; what huge pages are stays huge. */
TEST_F(kind, to_its_node)
{
	struct hetmem_cmd_migrate cmd;
	struct hetmem_run run = run_at(self->fd, self->m.p);

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

/* Memory that is special in one way. */
FIXTURE(special)
{
	int fd;
	char *p;
	size_t size;
	struct hetmem_cmd_migrate cmd;
};

FIXTURE_SETUP(special)
{
	self->fd = hm_open();
	ASSERT_GE(self->fd, 0);
	self->size = 64 * page_size();
	self->p = mmap(NULL, self->size, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, self->p);
	madvise(self->p, self->size, MADV_NOHUGEPAGE);
	ASSERT_EQ(0, hm_track(self->fd, self->p, self->size));
}

FIXTURE_TEARDOWN(special)
{
	munmap(self->p, self->size);
	EXPECT_EQ(0, close(self->fd));
}

#define PAGE(n)		(self->p + (n) * page_size())
#define HOST(p, size, flags)						\
	hm_migrate_flags(self->fd, p, size, ANY_HOST, flags, &self->cmd)
#define IN_CORE(nr)							\
	EXPECT_EQ(nr, pages_of_kind(self->fd, self->p, self->size,	\
				    HETMEM_HOST))

TEST_F(special, locations_that_are_no_target)
{
	uint32_t locs[] = {
		HETMEM_LOC(HETMEM_UNKNOWN, 0),
		HETMEM_LOC(HETMEM_UNMAPPED, 0),
		HETMEM_LOC(HETMEM_FOREIGN, 0),
		HETMEM_LOC(HETMEM_FOREIGN + 1, 0),
		HETMEM_LOC(0xffff, 0xffff),
		/* nodes that no machine has */
		HETMEM_LOC(HETMEM_HOST, 0xfffe),
		HETMEM_LOC(HETMEM_HOST, 1023),
	};
	size_t i;

	fill(self->p, self->size, 1);
	for (i = 0; i < ARRAY_SIZE(locs); i++) {
		EXPECT_EQ(-EOPNOTSUPP,
			  hm_migrate(self->fd, self->p, self->size, locs[i],
				     &self->cmd)) {
			TH_LOG("location %x", locs[i]);
		}
	}
	IN_CORE(64);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

/* Populating is what the CPU does; no device has it. */
TEST_F(special, populate_is_for_the_host)
{
	struct hetmem_device_info dev;
	struct hetmem_cmd_info info = {
		.size = sizeof(info),
		.devices = (uintptr_t)&dev,
		.device_size = sizeof(dev),
		.nr_devices = 1,
	};

	ASSERT_EQ(0, hm_ioctl(self->fd, HETMEM_IOC_INFO, &info));
	EXPECT_EQ(-EINVAL,
		  hm_migrate_flags(self->fd, self->p, self->size,
				   HETMEM_LOC(HETMEM_DEVICE,
					      info.nr_devices ? dev.id : 0),
				   HETMEM_MIGRATE_POPULATE, &self->cmd));
	IN_CORE(0);
}

/* Without POPULATE nothing that is absent comes into being. */
TEST_F(special, absent)
{
	struct hetmem_cmd_stats st;

	fill(self->p, 10 * page_size(), 2);
	ASSERT_EQ(0, HOST(self->p, self->size, 0));
	EXPECT_EQ(10, self->cmd.already);
	EXPECT_EQ(0, self->cmd.moved);
	EXPECT_EQ(54, self->cmd.not_moved);
	EXPECT_EQ(HETMEM_WHY_ABSENT, self->cmd.why);
	EXPECT_EQ((uintptr_t)PAGE(10), self->cmd.why_addr);
	IN_CORE(10);
	/* To be absent is no failure. */
	ASSERT_EQ(0, hm_stats(self->fd, self->p, &st));
	EXPECT_EQ(0, st.failed);
}

TEST_F(special, populate)
{
	fill(PAGE(10), 10 * page_size(), 3);
	ASSERT_EQ(0, HOST(PAGE(5), 20 * page_size(),
			  HETMEM_MIGRATE_POPULATE));
	EXPECT_EQ(10, self->cmd.already);
	EXPECT_EQ(10, self->cmd.moved);
	EXPECT_EQ(0, self->cmd.not_moved);
	/* Just those, and no page beside them. */
	IN_CORE(20);
	EXPECT_EQ(20, pages_of_kind(self->fd, PAGE(5), 20 * page_size(),
				    HETMEM_HOST));
	EXPECT_TRUE(all_zero(PAGE(0), 10 * page_size()));
	EXPECT_EQ(-1, mismatch(PAGE(10), 10 * page_size(), 3));
	/* They can be written like any other. */
	fill(self->p, self->size, 4);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 4));
}

TEST_F(special, populate_file)
{
	int file = make_file(32 * page_size(), 5);
	char *p;

	ASSERT_GE(file, 0);
	p = mmap(NULL, 32 * page_size(), PROT_READ, MAP_PRIVATE, file, 0);
	ASSERT_NE(MAP_FAILED, p);
	ASSERT_EQ(0, HOST(p, 32 * page_size(), 0));
	EXPECT_EQ(32, self->cmd.not_moved);
	EXPECT_EQ(HETMEM_WHY_ABSENT | HETMEM_WHY_FILE, self->cmd.why);
	ASSERT_EQ(0, HOST(p, 32 * page_size(), HETMEM_MIGRATE_POPULATE));
	EXPECT_EQ(32, self->cmd.moved);
	EXPECT_EQ(32, pages_of_kind(self->fd, p, 32 * page_size(),
				    HETMEM_HOST));
	EXPECT_EQ(-1, mismatch(p, 32 * page_size(), 5));
	/* Behind the end of the file there is nothing to bring: SIGBUS. */
	ASSERT_EQ(0, ftruncate(file, 16 * page_size()));
	ASSERT_EQ(0, HOST(p, 32 * page_size(), HETMEM_MIGRATE_POPULATE));
	EXPECT_EQ(16, self->cmd.already);
	EXPECT_EQ(16, self->cmd.not_moved);
	EXPECT_EQ((uintptr_t)p + 16 * page_size(), self->cmd.why_addr);
	EXPECT_EQ(HETMEM_WHY_ABSENT,
		  self->cmd.why & HETMEM_WHY_ABSENT);
	munmap(p, 32 * page_size());
	close(file);
}

TEST_F(special, unmapped)
{
	fill(self->p, self->size, 6);
	ASSERT_EQ(0, munmap(PAGE(20), 4 * page_size()));
	ASSERT_EQ(0, HOST(self->p, self->size, HETMEM_MIGRATE_POPULATE));
	EXPECT_EQ(60, self->cmd.already);
	EXPECT_EQ(4, self->cmd.not_moved);
	EXPECT_EQ(HETMEM_WHY_UNMAPPED, self->cmd.why & HETMEM_WHY_UNMAPPED);
	EXPECT_EQ((uintptr_t)PAGE(20), self->cmd.why_addr);
	EXPECT_EQ(4, pages_at(self->fd, self->p, self->size,
			      HETMEM_LOC(HETMEM_UNMAPPED, 0)));
	ASSERT_EQ(0, munmap(self->p, self->size));
	ASSERT_EQ(0, HOST(self->p, self->size, 0));
	EXPECT_EQ(64, self->cmd.not_moved);
}

TEST_F(special, not_readable)
{
	static const int prots[] = { PROT_NONE, PROT_WRITE };
	size_t i;

	for (i = 0; i < ARRAY_SIZE(prots); i++) {
		fill(PAGE(0), 16 * page_size(), 7);
		ASSERT_EQ(0, mprotect(PAGE(8), 16 * page_size(), prots[i]));
		ASSERT_EQ(0, HOST(PAGE(0), 32 * page_size(),
				  HETMEM_MIGRATE_POPULATE));
		EXPECT_EQ(16, self->cmd.not_moved);
		EXPECT_EQ(16, self->cmd.already + self->cmd.moved);
		EXPECT_EQ(HETMEM_WHY_NOT_READABLE,
			  self->cmd.why & HETMEM_WHY_NOT_READABLE);
		EXPECT_EQ((uintptr_t)PAGE(8), self->cmd.why_addr);
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

	ASSERT_EQ(0, special_mapping(&p, &size));
	ASSERT_EQ(0, HOST(p, size, HETMEM_MIGRATE_POPULATE));
	EXPECT_EQ(size / page_size(), self->cmd.not_moved);
	EXPECT_EQ(HETMEM_WHY_SPECIAL, self->cmd.why & HETMEM_WHY_SPECIAL);
	EXPECT_EQ((uintptr_t)p, self->cmd.why_addr);
}

/* Populating such memory would wake its handler: it is left alone. */
TEST_F(special, userfaultfd)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = {
		.range = { (uintptr_t)PAGE(16), 16 * page_size() },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	int uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	struct uffd_msg msg;

	if (uffd < 0 && errno == ENOSYS)
		SKIP(return, "kernel lacks userfaultfd");
	ASSERT_GE(uffd, 0);
	ASSERT_EQ(0, ioctl(uffd, UFFDIO_API, &api));
	fill(PAGE(0), 24 * page_size(), 8);
	ASSERT_EQ(0, ioctl(uffd, UFFDIO_REGISTER, &reg));
	ASSERT_EQ(0, HOST(self->p, self->size, HETMEM_MIGRATE_POPULATE));
	EXPECT_EQ(24, self->cmd.already);
	EXPECT_EQ(8, self->cmd.not_moved);
	EXPECT_EQ(32, self->cmd.moved);
	EXPECT_EQ(HETMEM_WHY_UFFD, self->cmd.why & HETMEM_WHY_UFFD);
	EXPECT_EQ((uintptr_t)PAGE(24), self->cmd.why_addr);
	/* Nobody was asked to bring a page. */
	EXPECT_EQ(-1, read(uffd, &msg, sizeof(msg)));
	EXPECT_EQ(EAGAIN, errno);
	close(uffd);
	IN_CORE(56);
	EXPECT_EQ(-1, mismatch(PAGE(0), 24 * page_size(), 8));
}

/* Over everything at once: each is counted where it belongs. */
TEST_F(special, mixed)
{
	fill(PAGE(0), 20 * page_size(), 9);
	ASSERT_EQ(0, munmap(PAGE(4), page_size()));
	ASSERT_EQ(0, mprotect(PAGE(8), page_size(), PROT_NONE));
	ASSERT_EQ(0, madvise(PAGE(12), page_size(), MADV_DONTNEED));
	ASSERT_EQ(0, mprotect(PAGE(16), page_size(), PROT_READ));
	ASSERT_EQ(0, HOST(PAGE(0), 20 * page_size(), 0));
	EXPECT_EQ(17, self->cmd.already);
	EXPECT_EQ(3, self->cmd.not_moved);
	EXPECT_EQ((uintptr_t)PAGE(4), self->cmd.why_addr);
	ASSERT_EQ(0, HOST(PAGE(5), 15 * page_size(), 0));
	EXPECT_EQ((uintptr_t)PAGE(8), self->cmd.why_addr);
	EXPECT_EQ(HETMEM_WHY_NOT_READABLE, self->cmd.why);
	ASSERT_EQ(0, HOST(PAGE(9), 11 * page_size(), 0));
	EXPECT_EQ((uintptr_t)PAGE(12), self->cmd.why_addr);
	EXPECT_EQ(HETMEM_WHY_ABSENT, self->cmd.why);
	ASSERT_EQ(0, HOST(PAGE(13), 7 * page_size(), 0));
	EXPECT_EQ(7, self->cmd.already);
}

/* A terabyte of nothing: no page is made, no counter overflows. */
TEST_F(special, large_and_empty)
{
	size_t size = slow_kernel() ? 4UL << 30 : 64UL << 30;
	char *p = mmap(NULL, size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS |
		       MAP_NORESERVE, -1, 0);

	ASSERT_NE(MAP_FAILED, p);
	ASSERT_EQ(0, HOST(p, size, 0));
	EXPECT_EQ(size / page_size(), self->cmd.not_moved);
	munmap(p, size);
	ASSERT_EQ(0, HOST(p, size, HETMEM_MIGRATE_POPULATE));
	EXPECT_EQ(size / page_size(), self->cmd.not_moved);
	EXPECT_EQ(HETMEM_WHY_UNMAPPED, self->cmd.why);
}

/* A node other than its own: userspace has move_pages(2) for that. */
TEST_F(special, to_another_node)
{
	int node;

	fill(self->p, self->size, 10);
	node = HETMEM_LOC_INDEX(run_at(self->fd, self->p).location);
	if (access("/sys/devices/system/node/node1", F_OK))
		SKIP(return, "kernel lacks a second memory node");
	ASSERT_EQ(0, hm_migrate(self->fd, self->p, self->size,
				HETMEM_LOC(HETMEM_HOST, !node), &self->cmd));
	EXPECT_EQ(64, self->cmd.not_moved);
	EXPECT_EQ(HETMEM_WHY_OTHER_NODE, self->cmd.why);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 10));
}

TEST_HARNESS_MAIN
