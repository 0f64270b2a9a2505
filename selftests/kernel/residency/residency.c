// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * RESIDENCY of every kind of memory that a process can have, and of what is
 * no memory at all. Nothing here has device pages.
 */
#include "libktest/fixtures.h"

#include <linux/userfaultfd.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL	102
#endif

TEST_F(kind, on_the_host)
{
	size_t i, pages = self->m.size / page_size();
	struct view v;

	ASSERT_EQ(0, view_take(self->fd, self->m.p, self->m.size, &v));
	EXPECT_EQ(pages, view_kind(&v, HETMEM_HOST));
	for (i = 0; i < v.nr_runs; i++) {
		EXPECT_EQ(mem_why(variant->kind), v.runs[i].why);
		EXPECT_EQ(mem_is_huge(variant->kind) ? 9 : 0,
			  v.runs[i].order) {
			view_print(&v);
		}
	}
	/* Each page on the node where the kernel says it is. */
	for (i = 0; i < pages; i += 37) {
		char *page = self->m.p + i * page_size();
		int node = host_node(page);

		if (node == -EFAULT || node == -ENOENT)
			continue;	/* not told of this kind of page */
		EXPECT_EQ(HETMEM_LOC(HETMEM_HOST, node),
			  view_at(&v, page)->location);
	}
	view_free(&v);
}

/* A run is as long as it can be, whatever blocks it crosses. */
TEST_F(kind, one_run)
{
	struct hetmem_run runs[4];
	struct hetmem_cmd_residency cmd = {
		.start = (uintptr_t)self->m.p,
		.end = (uintptr_t)self->m.p + self->m.size,
		.runs = (uintptr_t)runs,
		.nr_runs = ARRAY_SIZE(runs),
		.run_size = sizeof(struct hetmem_run),
	};

	/* Several nodes would be several runs. */
	if (access("/sys/devices/system/node/node1", F_OK) == 0)
		cmd.end = cmd.start + page_size();
	ASSERT_EQ(0, hm_residency(self->fd, &cmd));
	EXPECT_EQ(cmd.end, cmd.walk_end);
	EXPECT_EQ(1, cmd.filled_runs);
	EXPECT_EQ(cmd.start, runs[0].start);
	EXPECT_EQ(cmd.end, runs[0].end);
}

/* Tracked or not makes no difference. */
TEST_F(kind, tracked)
{
	struct view v[2];
	size_t i;

	ASSERT_EQ(0, view_take(self->fd, self->m.p, self->m.size, &v[0]));
	ASSERT_EQ(0, hm_track(self->fd, self->m.p, self->m.size / 2));
	ASSERT_EQ(0, view_take(self->fd, self->m.p, self->m.size, &v[1]));
	ASSERT_EQ(v[0].nr_runs, v[1].nr_runs);
	for (i = 0; i < v[0].nr_runs; i++) {
		EXPECT_EQ(0, memcmp(&v[0].runs[i], &v[1].runs[i],
				    sizeof(v[0].runs[i])));
	}
	view_free(&v[0]);
	view_free(&v[1]);
	EXPECT_EQ(0, hm_notified(self->fd, self->m.p, HETMEM_CHANGE_REPLACE));
}

/* Pieces of huge mappings, cut anywhere, are still of a huge mapping. */
TEST_F(kind, any_cut)
{
	static const unsigned int cuts[][2] = {
		{ 0, 1 }, { 1, 2 }, { 17, 100 }, { 100, 200 }, { 255, 256 },
	};
	size_t i;

	for (i = 0; i < ARRAY_SIZE(cuts); i++) {
		char *p = self->m.p + cuts[i][0] * page_size();
		unsigned int pages = cuts[i][1] - cuts[i][0];
		struct view v;

		ASSERT_EQ(0, view_take(self->fd, p, pages * page_size(), &v));
		EXPECT_EQ(pages, view_kind(&v, HETMEM_HOST));
		EXPECT_EQ(mem_is_huge(variant->kind) ? 9 : 0,
			  v.runs[0].order);
		view_free(&v);
	}
}

/* Asking must not make pages: untouched memory stays untouched. */
TEST_F(special, never_touched)
{
	unsigned char in_core[64];
	int i, round;

	for (round = 0; round < 2; round++) {
		struct hetmem_run run = run_at(self->fd, PAGE(0));

		EXPECT_EQ(HETMEM_LOC(HETMEM_UNKNOWN, 0), run.location);
		EXPECT_EQ(HETMEM_WHY_ABSENT, run.why);
		EXPECT_EQ(64, pages_at(self->fd, self->p, self->size,
				       HETMEM_LOC(HETMEM_UNKNOWN, 0)));
	}
	ASSERT_EQ(0, mincore(self->p, self->size, in_core));
	for (i = 0; i < 64; i++)
		EXPECT_EQ(0, in_core[i] & 1);
}

/* Untouched memory reads as zeroes, from a page that nobody pays for. */
TEST_F(special, zero_page)
{
	struct hetmem_run run;

	EXPECT_TRUE(all_zero(PAGE(3), page_size()));
	EXPECT_EQ(1, pages_at(self->fd, self->p, self->size,
			      HETMEM_LOC(HETMEM_ZERO, 0)));
	EXPECT_EQ(0, pages_of_kind(self->fd, self->p, self->size,
				   HETMEM_HOST));
	run = run_at(self->fd, PAGE(3));
	EXPECT_EQ(HETMEM_LOC(HETMEM_ZERO, 0), run.location);
	EXPECT_EQ(0, run.why);
	/* Among pages of the host, whichever comes first. */
	fill(PAGE(2), page_size(), 1);
	fill(PAGE(4), page_size(), 1);
	EXPECT_TRUE(all_zero(PAGE(5), page_size()));
	EXPECT_EQ(2, pages_at(self->fd, self->p, self->size,
			      HETMEM_LOC(HETMEM_ZERO, 0)));
	EXPECT_EQ(2, pages_of_kind(self->fd, self->p, self->size,
				   HETMEM_HOST));
	/* Written, it is a page of the host. */
	fill(PAGE(3), page_size(), 1);
	EXPECT_EQ(HETMEM_HOST,
		  HETMEM_LOC_KIND(run_at(self->fd, PAGE(3)).location));
	EXPECT_EQ(0, run_at(self->fd, PAGE(3)).why);
}

/* Read only, so that nothing tells it apart by being writable. */
TEST_F(special, zero_page_beside_read_only)
{
	fill(PAGE(0), 8 * page_size(), 1);
	EXPECT_TRUE(all_zero(PAGE(8), 8 * page_size()));
	ASSERT_EQ(0, mprotect(self->p, self->size, PROT_READ));
	EXPECT_EQ(8, pages_of_kind(self->fd, self->p, self->size,
				   HETMEM_HOST));
	EXPECT_EQ(8, pages_at(self->fd, PAGE(8), 8 * page_size(),
			      HETMEM_LOC(HETMEM_ZERO, 0)));
	EXPECT_EQ(-1, mismatch(self->p, 8 * page_size(), 1));
}

/* The huge one. */
TEST_F(special, huge_zero_page)
{
	struct hetmem_run run;
	struct mem m = { .fd = -1, .old_hugepages = -1 };

	if (!thp_possible())
		SKIP(return, "kernel lacks transparent huge pages");
	m.p = map_aligned(&m, HUGE_SIZE);
	ASSERT_NE(MAP_FAILED, (void *)m.p);
	ASSERT_EQ(0, madvise(m.p, HUGE_SIZE, MADV_HUGEPAGE));
	EXPECT_TRUE(all_zero(m.p, HUGE_SIZE));
	EXPECT_EQ(512, pages_at(self->fd, m.p, HUGE_SIZE,
				HETMEM_LOC(HETMEM_ZERO, 0)));
	run = run_at(self->fd, m.p + 7 * page_size());
	EXPECT_EQ(HETMEM_LOC(HETMEM_ZERO, 0), run.location);
	fill(m.p, HUGE_SIZE, 1);
	EXPECT_EQ(512, pages_of_kind(self->fd, m.p, HUGE_SIZE, HETMEM_HOST));
	mem_unmap(&m);
}

/* Files have holes, of pages of their own; they are no page of zeroes. */
TEST_F(special, zeroes_of_a_file)
{
	int file = make_file(page_size(), 1);
	char *p;

	ASSERT_GE(file, 0);
	ASSERT_EQ(0, ftruncate(file, 8 * page_size()));
	p = mmap(NULL, 8 * page_size(), PROT_READ, MAP_PRIVATE, file, 0);
	ASSERT_NE(MAP_FAILED, p);
	/* Each page is touched: a fault maps others only if they are not locked. */
	EXPECT_EQ(-1, mismatch(p, page_size(), 1));
	EXPECT_TRUE(all_zero(p + page_size(), 7 * page_size()));
	EXPECT_EQ(8, pages_of_kind(self->fd, p, 8 * page_size(), HETMEM_HOST));
	munmap(p, 8 * page_size());
	close(file);
}

TEST_F(special, dropped)
{
	fill(self->p, self->size, 5);
	ASSERT_EQ(0, madvise(PAGE(10), 20 * page_size(), MADV_DONTNEED));
	EXPECT_EQ(44, pages_of_kind(self->fd, self->p, self->size,
				    HETMEM_HOST));
	EXPECT_EQ(20, pages_at(self->fd, PAGE(10), 20 * page_size(),
			       HETMEM_LOC(HETMEM_UNKNOWN, 0)));
	EXPECT_EQ(-1, mismatch(self->p, 10 * page_size(), 5));
	EXPECT_EQ(-1, mismatch_at(PAGE(30), 34 * page_size(), 5,
				  30 * page_size()));
}

TEST_F(special, not_readable)
{
	struct hetmem_run run;

	fill(self->p, self->size, 6);
	ASSERT_EQ(0, mprotect(PAGE(8), 8 * page_size(), PROT_NONE));
	ASSERT_EQ(0, mprotect(PAGE(24), 8 * page_size(), PROT_WRITE));
	run = run_at(self->fd, PAGE(8));
	EXPECT_EQ(HETMEM_LOC(HETMEM_UNKNOWN, 0), run.location);
	EXPECT_EQ(HETMEM_WHY_NOT_READABLE, run.why);
	run = run_at(self->fd, PAGE(24));
	EXPECT_EQ(HETMEM_LOC(HETMEM_UNKNOWN, 0), run.location);
	EXPECT_EQ(HETMEM_WHY_NOT_READABLE, run.why);
	EXPECT_EQ(48, pages_of_kind(self->fd, self->p, self->size,
				    HETMEM_HOST));
	ASSERT_EQ(0, mprotect(self->p, self->size, PROT_READ));
	EXPECT_EQ(64, pages_of_kind(self->fd, self->p, self->size,
				    HETMEM_HOST));
	EXPECT_EQ(-1, mismatch(self->p, self->size, 6));
}

TEST_F(special, holes)
{
	struct view v;

	fill(self->p, self->size, 7);
	/* single, double, at the end */
	ASSERT_EQ(0, munmap(PAGE(1), page_size()));
	ASSERT_EQ(0, munmap(PAGE(20), 2 * page_size()));
	ASSERT_EQ(0, munmap(PAGE(63), page_size()));
	ASSERT_EQ(0, view_take(self->fd, self->p, self->size, &v));
	EXPECT_EQ(60, view_kind(&v, HETMEM_HOST));
	EXPECT_EQ(4, view_total(&v, HETMEM_LOC(HETMEM_UNMAPPED, 0)));
	EXPECT_EQ(6, v.nr_runs);
	EXPECT_EQ((uintptr_t)PAGE(20), view_at(&v, PAGE(21))->start);
	EXPECT_EQ((uintptr_t)PAGE(22), view_at(&v, PAGE(21))->end);
	EXPECT_EQ(HETMEM_WHY_UNMAPPED, view_at(&v, PAGE(21))->why);
	view_free(&v);
}

TEST_F(special, nothing_at_all)
{
	size_t size = 64UL << 30;
	void *nowhere = mmap(NULL, size, PROT_NONE, MAP_PRIVATE |
			     MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct view v;

	ASSERT_NE(MAP_FAILED, nowhere);
	/* A reservation of 64 GiB costs one step, and so does its absence. */
	ASSERT_EQ(0, view_take(self->fd, nowhere, size, &v));
	EXPECT_EQ(1, v.nr_runs);
	EXPECT_EQ(HETMEM_WHY_NOT_READABLE, v.runs[0].why);
	view_free(&v);
	ASSERT_EQ(0, munmap(nowhere, size));
	ASSERT_EQ(0, view_take(self->fd, nowhere, size, &v));
	EXPECT_EQ(1, v.nr_runs);
	EXPECT_EQ(HETMEM_LOC(HETMEM_UNMAPPED, 0), v.runs[0].location);
	view_free(&v);
}

TEST_F(special, device_memory)
{
	struct hetmem_run run;
	char *p = NULL;
	size_t size = 0;

	ASSERT_EQ(0, special_mapping(&p, &size));
	run = run_at(self->fd, p);
	EXPECT_EQ(HETMEM_LOC(HETMEM_UNKNOWN, 0), run.location);
	EXPECT_EQ(HETMEM_WHY_SPECIAL, run.why & HETMEM_WHY_SPECIAL);
}

TEST_F(special, secret)
{
	struct hetmem_cmd_migrate cmd;
	struct hetmem_run run;
	int ret = map_secret(PAGE(8), 4 * page_size());

	if (ret == -ENOSYS)
		SKIP(return, "kernel lacks memfd_secret()");
	ASSERT_EQ(0, ret);
	fill(PAGE(8), 2 * page_size(), 3);
	run = run_at(self->fd, PAGE(8));
	EXPECT_EQ(HETMEM_HOST, HETMEM_LOC_KIND(run.location));
	EXPECT_EQ(HETMEM_WHY_SPECIAL, run.why);
	/* No driver is asked to, and nothing is faulted in. */
	ASSERT_EQ(0, hm_migrate(self->fd, PAGE(8), 4 * page_size(), ANY_HOST,
				&cmd));
	EXPECT_EQ(HETMEM_WHY_SPECIAL, cmd.why & HETMEM_WHY_SPECIAL);
	EXPECT_EQ(HETMEM_UNKNOWN, HETMEM_LOC_KIND(run_at(self->fd,
						PAGE(10)).location));
	EXPECT_EQ(-1, mismatch(PAGE(8), 2 * page_size(), 3));
}

TEST_F(special, userfaultfd)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = {
		.range = { (uintptr_t)PAGE(16), 16 * page_size() },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	int uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	struct view v;

	if (uffd < 0 && errno == ENOSYS)
		SKIP(return, "kernel lacks userfaultfd");
	ASSERT_GE(uffd, 0);
	ASSERT_EQ(0, ioctl(uffd, UFFDIO_API, &api));
	fill(PAGE(0), 24 * page_size(), 8);
	ASSERT_EQ(0, ioctl(uffd, UFFDIO_REGISTER, &reg));
	/* Half of it is there, half would be somebody else's to bring. */
	ASSERT_EQ(0, view_take(self->fd, self->p, self->size, &v));
	EXPECT_EQ(24, view_kind(&v, HETMEM_HOST));
	EXPECT_EQ(0, view_at(&v, PAGE(15))->why);
	EXPECT_EQ(HETMEM_WHY_UFFD, view_at(&v, PAGE(16))->why);
	EXPECT_EQ(HETMEM_HOST,
		  HETMEM_LOC_KIND(view_at(&v, PAGE(16))->location));
	EXPECT_EQ(HETMEM_UNKNOWN,
		  HETMEM_LOC_KIND(view_at(&v, PAGE(24))->location));
	EXPECT_EQ(HETMEM_WHY_UFFD,
		  view_at(&v, PAGE(24))->why & HETMEM_WHY_UFFD);
	view_free(&v);
	close(uffd);
	EXPECT_EQ(0, run_at(self->fd, PAGE(16)).why);
	EXPECT_EQ(-1, mismatch(PAGE(0), 24 * page_size(), 8));
}

TEST_F(special, guard_pages)
{
	struct view v;

	fill(self->p, self->size, 9);
	if (madvise(PAGE(30), 2 * page_size(), MADV_GUARD_INSTALL)) {
		ASSERT_EQ(EINVAL, errno);
		SKIP(return, "kernel lacks MADV_GUARD_INSTALL");
	}
	ASSERT_EQ(0, view_take(self->fd, self->p, self->size, &v));
	EXPECT_EQ(62, view_kind(&v, HETMEM_HOST));
	EXPECT_EQ(HETMEM_UNKNOWN,
		  HETMEM_LOC_KIND(view_at(&v, PAGE(31))->location));
	view_free(&v);
	EXPECT_EQ(-1, mismatch(self->p, 30 * page_size(), 9));
}

/*
 * A signature that swapon(2) takes, on the RAM disk: the only block device
 * that a kernel without modules from its distribution can have.
 */
static int swap_on(const char *disk)
{
	char head[4096] = "";
	struct {
		uint32_t version, last_page, nr_bad;
	} *info = (void *)(head + 1024);
	int fd = open(disk, O_RDWR | O_CLOEXEC), ret = 0;

	if (fd < 0)
		return -errno;
	info->version = 1;
	info->last_page = 255;
	memcpy(head + sizeof(head) - 10, "SWAPSPACE2", 10);
	if (pwrite(fd, head, sizeof(head), 0) != sizeof(head))
		ret = -EIO;
	close(fd);
	if (!ret && syscall(SYS_swapon, disk, 0))
		ret = -errno;
	return ret;
}

TEST_F(special, swapped_out)
{
	const char *disk = "/dev/ram0";
	long there, swapped;
	size_t i;
	int ret = swap_on(disk);

	if (ret == -ENOENT || ret == -ENXIO || ret == -ENOSYS)
		SKIP(return, "kernel lacks a RAM disk to swap to");
	ASSERT_EQ(0, ret);
	fill(self->p, self->size, 10);
	EXPECT_EQ(0, madvise(self->p, self->size, MADV_PAGEOUT));
	there = pages_of_kind(self->fd, self->p, self->size, HETMEM_HOST);
	EXPECT_LT(there, 64);
	EXPECT_EQ(64 - there, pages_at(self->fd, self->p, self->size,
				       HETMEM_LOC(HETMEM_UNKNOWN, 0)));
	EXPECT_EQ(64 - there, pages_why(self->fd, self->p, self->size, HETMEM_WHY_SWAPPED));
	/* Pages that never were are not swapped out, whatever lies beside them. */
	for (i = 1; i < 64; i += 2)
		ASSERT_EQ(0, madvise(PAGE(i), page_size(), MADV_DONTNEED));
	swapped = pages_why(self->fd, self->p, self->size, HETMEM_WHY_SWAPPED);
	EXPECT_LT(0, swapped);
	EXPECT_GE(32, swapped);
	EXPECT_EQ(0, run_at(self->fd, PAGE(1)).why & HETMEM_WHY_SWAPPED);
	EXPECT_EQ(HETMEM_WHY_ABSENT, run_at(self->fd, PAGE(1)).why);
	for (i = 0; i < 64; i += 2)
		EXPECT_EQ(-1, mismatch_at(PAGE(i), page_size(), 10, i * page_size()));
	for (i = 1; i < 64; i += 2)
		EXPECT_TRUE(all_zero(PAGE(i), page_size()));
	EXPECT_EQ(32, pages_of_kind(self->fd, self->p, self->size, HETMEM_HOST));
	EXPECT_EQ(0, pages_why(self->fd, self->p, self->size, HETMEM_WHY_SWAPPED));
	EXPECT_EQ(0, syscall(SYS_swapoff, disk));
}

/* What mprotect() makes of one mapping is several runs at most by why. */
TEST_F(special, read_only)
{
	fill(self->p, self->size, 11);
	ASSERT_EQ(0, mprotect(PAGE(0), 32 * page_size(), PROT_READ));
	EXPECT_EQ(64, pages_of_kind(self->fd, self->p, self->size,
				    HETMEM_HOST));
	EXPECT_EQ(0, run_at(self->fd, PAGE(0)).why);
}

/*
 * Where a huge page of hugetlb is not, hmm_range_fault() tells its order and
 * nothing else that counts.
 */
TEST_F(special, absent_hugetlb)
{
	struct mem mem;
	int ret = mem_map(&mem, MEM_HUGETLB, 3 * HUGE_SIZE, 13);

	if (ret == -EOPNOTSUPP)
		SKIP(goto out, "kernel lacks %s", mem.lacks);
	ASSERT_EQ(0, ret);
	/* Between two that are there. */
	ret = madvise(mem.p + HUGE_SIZE, HUGE_SIZE, MADV_DONTNEED);
	if (ret && errno == EINVAL)
		SKIP(goto out, "kernel lacks MADV_DONTNEED of huge pages");
	ASSERT_EQ(0, ret);
	EXPECT_EQ(512, pages_at(self->fd, mem.p + HUGE_SIZE, HUGE_SIZE,
				HETMEM_LOC(HETMEM_UNKNOWN, 0)));
	EXPECT_EQ(1024, pages_of_kind(self->fd, mem.p, mem.size,
				      HETMEM_HOST));
	EXPECT_EQ(-1, mismatch(mem.p, HUGE_SIZE, 13));
out:
	mem_unmap(&mem);
}

TEST_HARNESS_MAIN
