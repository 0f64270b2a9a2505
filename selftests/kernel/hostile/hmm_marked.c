// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Another driver's pages in memory that was made special since they went there: without
 * protection, read-only, watched by userfaultfd, guarded, poisoned, half unmapped. MIGRATE
 * brings back what the CPU could have, says of the rest why, and never fails for it.
 */
#include "libktest/harness.h"
#include "libktest/hmm.h"

#include <linux/userfaultfd.h>

#define PAGES	64
#define SIZE	(PAGES * page_size())

static void nothing(int sig)
{
}

FIXTURE(marked)
{
	int hm, gpu;
	char *p;
};

FIXTURE_VARIANT(marked) { int gpu; };
FIXTURE_VARIANT_ADD(marked, private) { 0 };
FIXTURE_VARIANT_ADD(marked, coherent) { GPU_COHERENT };

FIXTURE_SETUP(marked)
{
	signal(SIGBUS, nothing);
	self->hm = hm_open();
	ASSERT_LE(0, self->hm);
	self->gpu = gpu_open(variant->gpu);
	if (self->gpu < 0)
		SKIP(return, "kernel lacks such a device");
	self->p = map_filled(SIZE, 1);
	ASSERT_NE(NULL, self->p);
	ASSERT_EQ(0, to_gpu(self->gpu, self->p, SIZE, 1));
}

FIXTURE_TEARDOWN(marked)
{
	munmap(self->p, SIZE);
	close(self->hm);
	close(self->gpu);
	EXPECT_TRUE(EVENTUALLY(!vm_pin()));
}

#define PAGE(n)	(self->p + (n) * page_size())

static void back(struct __test_metadata *_metadata, int hm, char *p, long expect, const char *what)
{
	struct hetmem_cmd_migrate cmd;
	int ret;

	ret = hm_migrate(hm, p, SIZE, ANY_HOST, &cmd);
	EXPECT_EQ(0, ret);
	EXPECT_EQ(expect, (long)(cmd.moved + cmd.already)) {
		TH_LOG("%s: moved %llu already %llu not %llu why %x at page %llu", what, cmd.moved,
		       cmd.already, cmd.not_moved, cmd.why,
		       (cmd.why_addr - (uintptr_t)p) / page_size());
	}
	ret = hm_pin(hm, p, SIZE, 60000, &cmd);
	EXPECT_EQ(0, ret);
	EXPECT_EQ(expect, (long)cmd.pinned) {
		TH_LOG("%s: pinned %llu moved %llu already %llu not %llu why %x", what, cmd.pinned,
		       cmd.moved, cmd.already, cmd.not_moved, cmd.why);
	}
	EXPECT_EQ((long)cmd.pinned, vm_pin());
	EXPECT_EQ(0, hm_unpin(hm, p, SIZE, NULL));
	EXPECT_EQ(0, vm_pin());
}

TEST_F(marked, not_accessible)
{
	ASSERT_EQ(0, mprotect(self->p, 16 * page_size(), PROT_NONE));
	ASSERT_EQ(0, mprotect(PAGE(16), 16 * page_size(), PROT_READ));
	back(_metadata, self->hm, self->p, PAGES - 16, "protected");
	ASSERT_EQ(0, mprotect(self->p, SIZE, PROT_READ | PROT_WRITE));
	back(_metadata, self->hm, self->p, PAGES, "unprotected");
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
}

TEST_F(marked, in_parts)
{
	ASSERT_EQ(0, munmap(PAGE(3), page_size()));
	ASSERT_EQ(0, madvise(PAGE(10), 4 * page_size(), MADV_DONTNEED));
	ASSERT_EQ(0, madvise(PAGE(20), page_size(), MADV_DONTNEED));
	back(_metadata, self->hm, self->p, PAGES - 6, "in parts");
}

TEST_F(marked, watched)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);

	reg.range.start = (uintptr_t)PAGE(8);
	reg.range.len = 8 * page_size();
	if (fd < 0 || ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &reg))
		SKIP(return, "kernel lacks userfaultfd");
	back(_metadata, self->hm, self->p, PAGES - 8, "watched");
	close(fd);
	back(_metadata, self->hm, self->p, PAGES, "not any more");
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
}

/* A child has the same pages, and ends; the memory moves to other addresses. */
TEST_F(marked, shared)
{
	pid_t pid = fork();
	char *q;

	ASSERT_LE(0, pid);
	if (!pid) {
		memset(PAGE(5), 9, 5 * page_size());
		_exit(0);
	}
	back(_metadata, self->hm, self->p, PAGES, "shared");
	EXPECT_EQ(0, child_status(pid));
	ASSERT_EQ(0, to_gpu(self->gpu, self->p, SIZE, 1));
	q = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_EQ(q, mremap(self->p, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, q));
	back(_metadata, self->hm, q, PAGES, "moved");
	EXPECT_EQ(-1, mismatch(q, SIZE, 1));
	munmap(q, SIZE);
}

TEST_HARNESS_MAIN
