// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Page table entries that are neither a page nor nothing: poisoned by hardware or by
 * userfaultfd, write-protected by it, guards, pages of a device without protection.
 * What is beside them is seen, moved and held all the same.
 */
#include "libktest/harness.h"
#include "libktest/emu.h"
#include "libktest/ring.h"

#include <linux/userfaultfd.h>
#include <pthread.h>

#ifndef UFFDIO_POISON
struct uffdio_poison { struct uffdio_range range; __u64 mode; __s64 updated; };
#define UFFDIO_POISON	_IOWR(UFFDIO, 0x08, struct uffdio_poison)
#endif

#define PAGES	64

/* Whose page is poisoned is told so. */
static void nothing(int sig)
{
}

FIXTURE(marked)
{
	struct rig rig;
	struct emu *dev;
	int hm;
	char *p;
	size_t size;
};

FIXTURE_SETUP(marked)
{
	signal(SIGBUS, nothing);
	ASSERT_EQ(0, rig_init(&self->rig));
	self->dev = self->rig.dev;
	self->hm = self->rig.fd;
	self->size = PAGES * page_size();
	self->p = map_filled(self->size, 1);
	ASSERT_NE(NULL, self->p);
	ASSERT_EQ(0, hm_track(self->hm, self->p, self->size));
}

FIXTURE_TEARDOWN(marked)
{
	EXPECT_TRUE(EVENTUALLY(!vm_pin()));
	munmap(self->p, self->size);
	EXPECT_EQ(0, rig_exit(&self->rig));
}

#define PAGE(n)	(self->p + (n) * page_size())

static void show(int hm, const char *p, size_t size)
{
	struct view v;

	if (!view_take(hm, p, size, &v))
		view_print(&v);
	else
		fprintf(stderr, "# view failed\n");
	view_free(&v);
}

/* Everything that can be asked of memory with @bad pages that nothing can be done with. */
static void around(struct __test_metadata *_metadata, int hm, const struct emu *dev,
		   char *p, size_t size, long bad)
{
	const long pages = size / page_size();
	struct hetmem_cmd_migrate cmd;
	struct hetmem_cmd_refresh ref;
	uint64_t unpinned;
	long n;

	show(hm, p, size);
	EXPECT_EQ(0, hm_migrate(hm, p, size, dev->loc, &cmd)) {
		TH_LOG("to the device");
	}
	TH_LOG("to device: moved %llu already %llu not %llu why %x at %llx",
	       cmd.moved, cmd.already, cmd.not_moved, cmd.why, cmd.why_addr);
	n = move_to(hm, p, size, dev->loc, NULL);
	EXPECT_EQ(pages - bad, n);
	show(hm, p, size);
	EXPECT_EQ(0, hm_refresh_all(hm, p, &ref));
	EXPECT_EQ(pages - bad, (long)ref.on_device);
	n = to_host(hm, p, size);
	EXPECT_EQ(pages - bad, n);
	EXPECT_EQ(0, hm_pin(hm, p, size, 60000, &cmd));
	EXPECT_EQ(pages - bad, (long)cmd.pinned) {
		TH_LOG("pin: moved %llu already %llu not %llu why %x at %llx",
		       cmd.moved, cmd.already, cmd.not_moved, cmd.why, cmd.why_addr);
	}
	EXPECT_EQ(pages - bad, vm_pin());
	EXPECT_EQ(0, hm_unpin(hm, p, size, &unpinned));
	EXPECT_EQ(pages - bad, (long)unpinned);
	EXPECT_EQ(0, hm_refresh_all(hm, p, &ref));
	EXPECT_EQ(0, ref.on_device);
}

TEST_F(marked, by_hardware)
{
	if (madvise(PAGE(7), page_size(), 100 /* MADV_HWPOISON */))
		SKIP(return, "kernel lacks memory failure");
	around(_metadata, self->hm, self->dev, self->p, self->size, 1);
}

/* A page that is poisoned while it is held. */
TEST_F(marked, by_hardware_while_held)
{
	struct hetmem_cmd_migrate cmd;
	uint64_t unpinned;

	ASSERT_EQ(0, hm_pin(self->hm, self->p, self->size, 60000, &cmd));
	if (madvise(PAGE(7), page_size(), 100 /* MADV_HWPOISON */)) {
		EXPECT_EQ(0, hm_unpin(self->hm, self->p, self->size, &unpinned));
		SKIP(return, "kernel lacks memory failure");
	}
	show(self->hm, self->p, self->size);
	EXPECT_EQ(0, hm_pin(self->hm, self->p, self->size, 60000, &cmd));
	TH_LOG("pinned %llu, VmPin %ld", cmd.pinned, vm_pin());
	EXPECT_EQ(0, hm_unpin(self->hm, self->p, self->size, &unpinned));
	TH_LOG("unpinned %llu, VmPin %ld", (unsigned long long)unpinned, vm_pin());
}

/* A page on the device that fails: the driver's pages are not the kernel's to poison. */
TEST_F(marked, by_hardware_on_the_device)
{
	ASSERT_EQ(PAGES, to_device(self->hm, self->dev, self->p, self->size));
	if (madvise(PAGE(7), page_size(), 101 /* MADV_SOFT_OFFLINE */))
		TH_LOG("soft offline: errno %d", errno);
	if (madvise(PAGE(9), page_size(), 100 /* MADV_HWPOISON */))
		SKIP(return, "kernel lacks memory failure");
	around(_metadata, self->hm, self->dev, self->p, self->size, 1);
}

static int uffd_open(char *p, size_t size, uint64_t mode, uint64_t features)
{
	struct uffdio_api api = { .api = UFFD_API, .features = features };
	struct uffdio_register reg = { .mode = mode };
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);

	reg.range.start = (uintptr_t)p;
	reg.range.len = size;
	if (fd >= 0 && (ioctl(fd, UFFDIO_API, &api) ||
			ioctl(fd, UFFDIO_REGISTER, &reg))) {
		close(fd);
		return -1;
	}
	return fd;
}

/* The markers stay when userfaultfd has gone. */
TEST_F(marked, by_userfaultfd)
{
	struct uffdio_poison poison = { };
	int uffd = uffd_open(self->p, self->size, UFFDIO_REGISTER_MODE_MISSING,
			     1 << 14 /* POISON */);

	if (uffd < 0)
		SKIP(return, "kernel lacks poison of userfaultfd");
	ASSERT_EQ(0, madvise(PAGE(5), 3 * page_size(), MADV_DONTNEED));
	poison.range.start = (uintptr_t)PAGE(5);
	poison.range.len = 3 * page_size();
	ASSERT_EQ(0, ioctl(uffd, UFFDIO_POISON, &poison));
	close(uffd);
	around(_metadata, self->hm, self->dev, self->p, self->size, 3);
}

/* Write-protected and moved before; and pages of the device that are made so. */
TEST_F(marked, write_protected)
{
	struct uffdio_writeprotect wp = { .mode = UFFDIO_WRITEPROTECT_MODE_WP };
	struct hetmem_cmd_migrate cmd;
	int uffd;

	ASSERT_EQ(PAGES, to_device(self->hm, self->dev, self->p, self->size));
	uffd = uffd_open(self->p, self->size, UFFDIO_REGISTER_MODE_WP, 0);
	if (uffd < 0)
		SKIP(return, "kernel lacks write protection of userfaultfd");
	wp.range.start = (uintptr_t)self->p;
	wp.range.len = self->size;
	ASSERT_EQ(0, ioctl(uffd, UFFDIO_WRITEPROTECT, &wp));
	show(self->hm, self->p, self->size);
	EXPECT_EQ(0, hm_migrate(self->hm, self->p, self->size, ANY_HOST, &cmd));
	EXPECT_EQ(0, cmd.moved);
	EXPECT_TRUE(cmd.why & HETMEM_WHY_UFFD);
	EXPECT_EQ(0, hm_pin(self->hm, self->p, self->size, 60000, &cmd));
	EXPECT_EQ(0, cmd.pinned);
	/* Reading brings it back and leaves the protection. */
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
	EXPECT_EQ(0, hm_migrate(self->hm, self->p, self->size, self->dev->loc, &cmd));
	EXPECT_EQ(0, cmd.moved);
	close(uffd);
	around(_metadata, self->hm, self->dev, self->p, self->size, 0);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

TEST_F(marked, guards)
{
	if (madvise(PAGE(10), 4 * page_size(), 102 /* MADV_GUARD_INSTALL */))
		SKIP(return, "kernel lacks guard pages");
	around(_metadata, self->hm, self->dev, self->p, self->size, 4);
	/* On pages that are on the device. */
	ASSERT_EQ(PAGES - 4, to_device(self->hm, self->dev, self->p, self->size));
	ASSERT_EQ(0, madvise(PAGE(20), 4 * page_size(), 102));
	around(_metadata, self->hm, self->dev, self->p, self->size, 8);
	ASSERT_EQ(0, madvise(self->p, self->size, 103 /* REMOVE */));
	around(_metadata, self->hm, self->dev, self->p, self->size, 0);
}

/* Protection goes while pages are on the device. */
TEST_F(marked, not_accessible)
{
	struct hetmem_cmd_migrate cmd;
	struct hetmem_cmd_refresh ref;

	ASSERT_EQ(PAGES, to_device(self->hm, self->dev, self->p, self->size));
	ASSERT_EQ(0, mprotect(PAGE(0), 16 * page_size(), PROT_NONE));
	ASSERT_EQ(0, mprotect(PAGE(16), 16 * page_size(), PROT_READ));
	show(self->hm, self->p, self->size);
	EXPECT_EQ(0, hm_refresh_all(self->hm, self->p, &ref));
	TH_LOG("on device %llu", ref.on_device);
	EXPECT_EQ(0, hm_pin(self->hm, self->p, self->size, 60000, &cmd));
	TH_LOG("pin: moved %llu already %llu not %llu pinned %llu why %x at %llx",
	       cmd.moved, cmd.already, cmd.not_moved, cmd.pinned, cmd.why, cmd.why_addr);
	EXPECT_EQ(vm_pin(), (long)cmd.pinned);
	ASSERT_EQ(0, mprotect(self->p, self->size, PROT_READ | PROT_WRITE));
	EXPECT_EQ(0, hm_unpin(self->hm, self->p, self->size, NULL));
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
	around(_metadata, self->hm, self->dev, self->p, self->size, 0);
}

TEST_HARNESS_MAIN
