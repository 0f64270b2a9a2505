// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A kernel with the patches of selftests/upstream/: PAGEMAP_SCAN tells pages on a device,
 * migrate_vma_*() have tracepoints, and process_madvise() brings pages back. The kernel's
 * own test_hmm plays two devices of one driver. hetmem.ko is not loaded.
 */
#include "libktest/harness.h"
#include "libktest/hmm.h"

#include <linux/fs.h>
#include <sys/mount.h>

#ifndef PAGE_IS_DEVICE
#define PAGE_IS_DEVICE			(1 << 10)
#define PAGE_DEVICE_OWNER(categories)	((__u64)(categories) >> 56)
#endif
#ifndef MADV_TO_HOST
#define MADV_TO_HOST	26
#endif
#ifndef PAGEMAP_SCAN
#define PAGEMAP_SCAN	_IOWR('f', 16, struct scan)
#endif

/* struct page_region and struct pm_scan_arg of linux/fs.h, which this system may lack. */
struct region {
	uint64_t start, end, categories;
};

struct scan {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
	uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};

#define PAGES	64
#define TRACE	"/sys/kernel/tracing/"

FIXTURE(upstream)
{
	int gpu[2];
	int pagemap;
	char *p;
	size_t size;
};

FIXTURE_SETUP(upstream)
{
	int i;

	for (i = 0; i < 2; i++) {
		self->gpu[i] = gpu_open(i);
		ASSERT_LE(0, self->gpu[i]);
	}
	self->pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	ASSERT_LE(0, self->pagemap);
	self->size = PAGES * page_size();
	self->p = map_filled(self->size, 1);
	ASSERT_NE(NULL, self->p);
}

FIXTURE_TEARDOWN(upstream)
{
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
	munmap(self->p, self->size);
	close(self->pagemap);
	close(self->gpu[0]);
	close(self->gpu[1]);
}

/* Regions with PAGE_IS_DEVICE, at most 8, or an errno. */
static int scan(int pagemap, const char *p, size_t size, struct region r[8])
{
	struct scan arg = {
		.size = sizeof(arg),
		.start = (uintptr_t)p,
		.end = (uintptr_t)p + size,
		.vec = (uintptr_t)r,
		.vec_len = 8,
		.category_mask = PAGE_IS_DEVICE,
		.return_mask = PAGE_IS_DEVICE,
	};
	int ret = ioctl(pagemap, _IOWR('f', 16, struct scan), &arg);

	return ret < 0 ? -errno : ret;
}

TEST_F(upstream, device_category)
{
	char *half = self->p + self->size / 2;
	struct region r[8];

	EXPECT_EQ(0, scan(self->pagemap, self->p, self->size, r));
	ASSERT_EQ(0, to_gpu(self->gpu[0], self->p, 8 * page_size(), 1));
	ASSERT_EQ(0, to_gpu_at(self->gpu[1], half, 4 * page_size(), 1, self->size / 2));
	ASSERT_EQ(2, scan(self->pagemap, self->p, self->size, r));
	EXPECT_EQ((uintptr_t)self->p, r[0].start);
	EXPECT_EQ((uintptr_t)self->p + 8 * page_size(), r[0].end);
	EXPECT_EQ((uintptr_t)half, r[1].start);
	EXPECT_EQ((uintptr_t)half + 4 * page_size(), r[1].end);
	EXPECT_TRUE(r[0].categories & PAGE_IS_DEVICE);
	EXPECT_LT(0, PAGE_DEVICE_OWNER(r[0].categories));
	EXPECT_LT(0, PAGE_DEVICE_OWNER(r[1].categories));
	/* A page that the CPU touches is on the host again. */
	EXPECT_EQ(-1, mismatch(self->p, 8 * page_size(), 1));
	EXPECT_EQ(1, scan(self->pagemap, self->p, self->size, r));
	EXPECT_EQ((uintptr_t)half, r[0].start);
}

/* Without PAGE_IS_DEVICE in the return mask nothing new is in an answer. */
TEST_F(upstream, others_see_nothing_new)
{
	struct region r;
	struct scan arg = {
		.size = sizeof(arg),
		.start = (uintptr_t)self->p,
		.end = (uintptr_t)self->p + self->size,
		.vec = (uintptr_t)&r,
		.vec_len = 1,
		.category_anyof_mask = 1 << 3 | 1 << 4,
		.return_mask = 1 << 3 | 1 << 4,
	};

	ASSERT_EQ(0, to_gpu(self->gpu[0], self->p, self->size, 1));
	ASSERT_EQ(1, ioctl(self->pagemap, _IOWR('f', 16, struct scan), &arg));
	EXPECT_EQ(1 << 4, r.categories);
}

/* Lines of the trace with @event. */
static int traced(const char *event)
{
	FILE *f = fopen(TRACE "trace", "r");
	char line[256];
	int nr = 0;

	while (f && fgets(line, sizeof(line), f))
		nr += !!strstr(line, event);
	if (f)
		fclose(f);
	return nr;
}

TEST_F(upstream, tracepoints)
{
	mount("tracefs", "/sys/kernel/tracing", "tracefs", 0, NULL);
	ASSERT_EQ(0, write_text(TRACE "events/migrate/migrate_vma_setup/enable", "1"));
	ASSERT_EQ(0, write_text(TRACE "events/migrate/migrate_vma_finalize/enable", "1"));
	ASSERT_EQ(0, write_text(TRACE "trace", "\n"));
	ASSERT_EQ(0, to_gpu(self->gpu[0], self->p, self->size, 1));
	EXPECT_LT(0, traced("migrate_vma_setup: start="));
	EXPECT_LT(0, traced("migrate_vma_finalize: start="));
	EXPECT_LT(0, traced("pages=64"));
	EXPECT_EQ(0, write_text(TRACE "events/migrate/enable", "0"));
}

TEST_F(upstream, to_host)
{
	char *hole = mmap(NULL, self->size, PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned char there[PAGES];
	struct region r[8];
	int i;

	ASSERT_NE(MAP_FAILED, hole);
	ASSERT_EQ(0, to_gpu(self->gpu[0], self->p, self->size, 1));
	ASSERT_EQ(0, madvise(self->p, self->size / 2, MADV_TO_HOST));
	ASSERT_EQ(1, scan(self->pagemap, self->p, self->size, r));
	EXPECT_EQ((uintptr_t)self->p + self->size / 2, r[0].start);
	ASSERT_EQ(0, madvise(self->p, self->size, MADV_TO_HOST));
	EXPECT_EQ(0, scan(self->pagemap, self->p, self->size, r));
	/* What was never touched stays so. */
	ASSERT_EQ(0, madvise(hole, self->size, MADV_TO_HOST));
	ASSERT_EQ(0, mincore(hole, self->size, there));
	for (i = 0; i < PAGES; i++)
		EXPECT_EQ(0, there[i] & 1);
	munmap(hole, self->size);
}

/* Another process brings them back, and may only with CAP_SYS_NICE. */
TEST_F(upstream, to_host_of_another)
{
	struct iovec all = { self->p, self->size };
	int pidfd = syscall(SYS_pidfd_open, getpid(), 0);
	struct region r[8];
	pid_t pid;

	ASSERT_LE(0, pidfd);
	ASSERT_EQ(0, to_gpu(self->gpu[0], self->p, self->size, 1));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		CHILD_CHECK(syscall(SYS_process_madvise, pidfd, &all, 1, MADV_TO_HOST, 0) ==
			    (long)self->size);
		CHILD_CHECK(!become_nobody());
		CHILD_CHECK(syscall(SYS_process_madvise, pidfd, &all, 1, MADV_TO_HOST, 0) < 0);
		CHILD_CHECK(errno == EPERM || errno == EACCES);
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(0, scan(self->pagemap, self->p, self->size, r));
	close(pidfd);
}

TEST_HARNESS_MAIN
