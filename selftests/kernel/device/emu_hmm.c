// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What the kernel's own test of a device that mirrors memory covers, for
 * this one; the part where the device reads and writes. emu_hmm_move.c has
 * the part where pages move. Documentation/hmm-tests.md has the whole table.
 * Upstream name, and where it is here:
 *
 *	open_close		open_close
 *	anon_read		anon_read
 *	anon_read_prot		anon_read_prot
 *	anon_write		anon_write
 *	anon_write_prot		anon_write_prot
 *	anon_write_child	anon_write_child
 *	anon_write_child_shared	anon_write_child_shared
 *	anon_write_huge		kind.write, variant thp
 *	anon_write_hugetlbfs	kind.write, variant hugetlb
 *	file_read		kind.read, variants file_read and file_shared
 *	file_write		kind.write, variant file_shared, which looks at
 *				the file too
 *	anon_read_multiple	anon_read_multiple
 *	anon_teardown		anon_teardown
 *	mixedmap		mixedmap
 *	double_map		double_map
 *	exclusive		there are no exclusive entries here: a device
 *				that needs atomics has the page, or uses the
 *				host's by atomic instructions. The need, both
 *				sides counting: emu_access: add_*
 *	exclusive_mprotect	anon_write_prot, by ADD as well
 *	exclusive_cow		emu_move: fork_*, written from both sides
 *	userfaultfd_read	userfaultfd_read: refused until it is there
 */
#include "libktest/harness.h"
#include "libktest/emu.h"

#include <pthread.h>
#include <linux/userfaultfd.h>

FIXTURE(emu)
{
	struct rig rig;
	struct emu *dev;
	int hm;
	size_t size;
	void *mirror;
};

FIXTURE_VARIANT(emu)
{
	int dev;
	uint32_t flags;
};

FIXTURE_VARIANT_ADD(emu, over_the_bus) { .dev = 0, .flags = 0 };
FIXTURE_VARIANT_ADD(emu, migrating) { .dev = 0, .flags = HETMEM_EMU_MIGRATE };
FIXTURE_VARIANT_ADD(emu, second_device) {
	.dev = 1, .flags = HETMEM_EMU_MIGRATE,
};

FIXTURE_SETUP(emu)
{
	ASSERT_EQ(0, rig_init(&self->rig));
	self->dev = &self->rig.dev[variant->dev];
	self->hm = self->rig.fd;
	self->size = self->rig.size;
	self->mirror = malloc(self->size);
	ASSERT_NE(NULL, self->mirror);
}

FIXTURE_TEARDOWN(emu)
{
	free(self->mirror);
	EXPECT_EQ(0, rig_exit(&self->rig));
}

/* Pages at the device if the variant brings them there, none otherwise. */
#define EXPECT_BROUGHT(p, size, pages)					\
	EXPECT_EQ(variant->flags & HETMEM_EMU_MIGRATE ? (long)(pages) : 0, \
		  pages_at(self->hm, p, size, self->dev->loc))

TEST_F(emu, open_close)
{
	struct hetmem_emu_cmd_info info;

	EXPECT_EQ(0, emu_info(self->dev->fd, &info));
	EXPECT_EQ(0, info.used);
	EXPECT_LT(0, info.capacity);
}

/* Never touched, zero page and pages, all of it read-only. */
TEST_F(emu, anon_read)
{
	const size_t page = page_size();
	char *p = mmap(NULL, self->size, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct hetmem_emu_cmd_access cmd;

	ASSERT_NE(MAP_FAILED, p);
	madvise(p, self->size, MADV_NOHUGEPAGE);
	fill(p + 2 * page, self->size - 2 * page, 1);
	ASSERT_EQ(0, mprotect(p, self->size, PROT_READ));
	EXPECT_TRUE(all_zero(p + page, page));

	memset(self->mirror, 0xff, self->size);
	ASSERT_EQ(0, emu_access(self->dev, HETMEM_EMU_READ, variant->flags, p,
				self->size, self->mirror, 0, &cmd));
	EXPECT_LE(1, cmd.faults);
	EXPECT_TRUE(all_zero(self->mirror, 2 * page));
	EXPECT_EQ(-1, mismatch(self->mirror + 2 * page, self->size - 2 * page,
			       1));
	EXPECT_BROUGHT(p, self->size, self->size / page);
	/* And it is all still there for the CPU. */
	EXPECT_TRUE(all_zero(p, 2 * page));
	EXPECT_EQ(-1, mismatch(p + 2 * page, self->size - 2 * page, 1));
	munmap(p, self->size);
}

TEST_F(emu, anon_read_prot)
{
	char *p = map_filled(self->size, 2);
	struct hetmem_emu_cmd_access cmd;

	ASSERT_NE(NULL, p);
	fill(self->mirror, self->size, 3);
	ASSERT_EQ(0, mprotect(p, self->size, PROT_NONE));
	EXPECT_EQ(-EPERM, emu_access(self->dev, HETMEM_EMU_READ,
				     variant->flags, p, self->size,
				     self->mirror, 0, &cmd));
	EXPECT_EQ(0, cmd.done);
	EXPECT_EQ(-1, mismatch(self->mirror, self->size, 3));
	ASSERT_EQ(0, mprotect(p, self->size, PROT_READ));
	EXPECT_EQ(-1, mismatch(p, self->size, 2));
	munmap(p, self->size);
}

TEST_F(emu, anon_write)
{
	char *p = mmap(NULL, self->size, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct hetmem_emu_cmd_access cmd;

	ASSERT_NE(MAP_FAILED, p);
	madvise(p, self->size, MADV_NOHUGEPAGE);
	fill(self->mirror, self->size, 4);
	ASSERT_EQ(0, emu_access(self->dev, HETMEM_EMU_WRITE, variant->flags,
				p, self->size, self->mirror, 0, &cmd));
	EXPECT_LE(1, cmd.faults);
	EXPECT_BROUGHT(p, self->size, self->size / page_size());
	EXPECT_EQ(-1, mismatch(p, self->size, 4));
	munmap(p, self->size);
}

TEST_F(emu, anon_write_prot)
{
	char *p = mmap(NULL, self->size, PROT_READ, MAP_PRIVATE |
		       MAP_ANONYMOUS, -1, 0);

	ASSERT_NE(MAP_FAILED, p);
	madvise(p, self->size, MADV_NOHUGEPAGE);
	ASSERT_EQ(0, emu_read(self->dev, variant->flags, p, page_size(),
			      self->mirror));
	EXPECT_TRUE(all_zero(self->mirror, page_size()));
	fill(self->mirror, self->size, 5);
	EXPECT_EQ(-EPERM, emu_write(self->dev, variant->flags, p, self->size,
				    self->mirror));
	EXPECT_EQ(-EPERM, emu_access(self->dev, HETMEM_EMU_ADD,
				     variant->flags, p, self->size, NULL, 1,
				     NULL));
	EXPECT_EQ(-EPERM, emu_access(self->dev, HETMEM_EMU_FILL,
				     variant->flags, p, self->size, NULL, 1,
				     NULL));
	EXPECT_TRUE(all_zero(p, self->size));
	/* Now it may, and what it saw of the zero page is replaced. */
	ASSERT_EQ(0, mprotect(p, self->size, PROT_READ | PROT_WRITE));
	EXPECT_EQ(0, emu_write(self->dev, variant->flags, p, self->size,
			       self->mirror));
	EXPECT_EQ(-1, mismatch(p, self->size, 5));
	munmap(p, self->size);
}

/* A child's device writes what the child sees: private or shared. */
static void write_in_child(struct __test_metadata *_metadata, int nr,
			   uint32_t flags, size_t size, int map_flags,
			   uint64_t seen_by_parent)
{
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE,
		       map_flags | MAP_ANONYMOUS, -1, 0);
	pid_t pid;

	ASSERT_NE(MAP_FAILED, p);
	madvise(p, size, MADV_NOHUGEPAGE);
	fill(p, size, 6);
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		struct emu own;

		CHILD_CHECK(mismatch(p, size, 6) < 0);
		CHILD_CHECK(!emu_open(&own, nr));
		CHILD_CHECK(!emu_fill(&own, flags, p, size, 7));
		CHILD_CHECK(mismatch(p, size, 7) < 0);
		CHILD_CHECK(emu_sees(&own, flags, p, size, 7));
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(-1, mismatch(p, size, seen_by_parent));
	munmap(p, size);
}

TEST_F(emu, anon_write_child)
{
	write_in_child(_metadata, variant->dev, variant->flags, self->size,
		       MAP_PRIVATE, 6);
}

TEST_F(emu, anon_write_child_shared)
{
	write_in_child(_metadata, variant->dev, variant->flags, self->size,
		       MAP_SHARED, 7);
}

TEST_F(emu, anon_read_multiple)
{
	int i;

	for (i = 0; i < test_rounds(16); i++) {
		char *p = map_filled(self->size, i);

		ASSERT_NE(NULL, p);
		EXPECT_TRUE(emu_sees(self->dev, variant->flags, p, self->size,
				     i));
		munmap(p, self->size);
	}
}

struct unmapper {
	char *p;
	size_t size;
	unsigned int delay;
};

static void *unmap_late(void *arg)
{
	struct unmapper *u = arg;
	volatile unsigned int i;

	for (i = 0; i < u->delay; i++)
		;
	munmap(u->p, u->size);
	return NULL;
}

/* Half of the memory goes while the device reads it. */
TEST_F(emu, anon_teardown)
{
	int i;

	for (i = 0; i < test_rounds(32); i++) {
		char *p = map_filled(self->size, i);
		struct unmapper u = {
			.p = p + self->size / 2,
			.size = self->size / 2,
			.delay = i * 2000,
		};
		struct hetmem_emu_cmd_access cmd;
		pthread_t thread;
		int ret;

		ASSERT_NE(NULL, p);
		ASSERT_EQ(0, pthread_create(&thread, NULL, unmap_late, &u));
		ret = emu_access(self->dev, HETMEM_EMU_READ, variant->flags,
				 p, self->size, self->mirror, 0, &cmd);
		pthread_join(thread, NULL);
		EXPECT_TRUE(!ret || ret == -EFAULT);
		/* It works in pieces; what it says it read, it read. */
		EXPECT_LE(self->size / 4, cmd.done);
		EXPECT_EQ(-1, mismatch(self->mirror, cmd.done & ~7UL, i));
		munmap(p, self->size / 2);
	}
}

/* Pages that the kernel itself put into the mapping, of no owner. */
TEST_F(emu, mixedmap)
{
	char *p = NULL;
	size_t size = 0;

	ASSERT_EQ(0, special_mapping(&p, &size));
	EXPECT_EQ(-EFAULT, emu_read(self->dev, variant->flags, p, page_size(),
				    self->mirror));
	EXPECT_EQ(0, pages_of_kind(self->hm, p, size, HETMEM_DEVICE));
}

/*
 * A device's fault holds what a handler needs to bring a page, so it asks none:
 * the device is told, and sees what the handler has brought.
 */
TEST_F(emu, userfaultfd_read)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	struct uffdio_copy copy = { .len = self->size };
	struct hetmem_emu_cmd_access cmd;
	char *p, *from;
	int fd;

	fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
	if (fd < 0 && errno == ENOSYS)
		SKIP(return, "kernel has no userfaultfd");
	ASSERT_LE(0, fd);
	ASSERT_EQ(0, ioctl(fd, UFFDIO_API, &api));
	p = mmap(NULL, self->size, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, p);
	reg.range.start = (uintptr_t)p;
	reg.range.len = self->size;
	ASSERT_EQ(0, ioctl(fd, UFFDIO_REGISTER, &reg));

	EXPECT_EQ(-EFAULT, emu_access(self->dev, HETMEM_EMU_READ,
				      variant->flags, p, self->size,
				      self->mirror, 0, &cmd));
	EXPECT_EQ(0, cmd.done);
	EXPECT_EQ(-EFAULT, emu_access(self->dev, HETMEM_EMU_FILL,
				      variant->flags, p, self->size, NULL, 5,
				      &cmd));
	EXPECT_EQ(self->size / page_size(),
		  pages_of_kind(self->hm, p, self->size, HETMEM_UNKNOWN));

	from = map_filled(self->size, 8);
	ASSERT_NE(NULL, from);
	copy.dst = (uintptr_t)p;
	copy.src = (uintptr_t)from;
	ASSERT_EQ(0, ioctl(fd, UFFDIO_COPY, &copy));
	EXPECT_TRUE(emu_sees(self->dev, variant->flags, p, self->size, 8));
	close(fd);
	munmap(from, self->size);
	munmap(p, self->size);
}

/* Both devices read the same memory, then one of them has it. */
TEST_F(emu, double_map)
{
	struct emu *other = &self->rig.dev[!variant->dev];
	char *p = map_filled(self->size, 8);

	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, mprotect(p, self->size, PROT_READ));
	EXPECT_TRUE(emu_sees(self->dev, variant->flags, p, self->size, 8));
	EXPECT_TRUE(emu_sees(other, variant->flags, p, self->size, 8));
	EXPECT_EQ((long)(self->size / page_size()),
		  to_device(self->hm, other, p, self->size));
	EXPECT_TRUE(emu_sees(self->dev, variant->flags, p, self->size, 8));
	EXPECT_EQ(-1, mismatch(p, self->size, 8));
	munmap(p, self->size);
}

/* Every kind of memory, read and written by the device. */
FIXTURE(kind)
{
	struct rig rig;
	struct mem m;
};

MEM_KIND_VARIANTS(kind);

FIXTURE_SETUP(kind)
{
	int ret;

	ASSERT_EQ(0, rig_init(&self->rig));
	ret = mem_map(&self->m, variant->kind, mem_is_huge(variant->kind) ?
		      HUGE_SIZE : self->rig.size, 1);
	if (ret == -EOPNOTSUPP)
		SKIP(return, "kernel lacks %s", self->m.lacks);
	ASSERT_EQ(0, ret) {
		mem_unmap(&self->m);
	}
}

FIXTURE_TEARDOWN(kind)
{
	mem_unmap(&self->m);
	EXPECT_EQ(0, rig_exit(&self->rig));
}

static const uint32_t both_ways[] = { 0, HETMEM_EMU_MIGRATE, 0 };

TEST_F(kind, read)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(both_ways); i++) {
		EXPECT_TRUE(emu_sees(&self->rig.dev[0], both_ways[i],
				     self->m.p, self->m.size, 1));
		EXPECT_TRUE(emu_sees(&self->rig.dev[1], both_ways[i],
				     self->m.p, self->m.size, 1));
	}
	EXPECT_EQ(-1, mismatch(self->m.p, self->m.size, 1));
}

TEST_F(kind, write)
{
	size_t i;

	if (variant->kind == MEM_FILE_READ) {
		EXPECT_EQ(-EPERM, emu_fill(&self->rig.dev[0], 0, self->m.p,
					   page_size(), 2));
		EXPECT_EQ(-1, mismatch(self->m.p, self->m.size, 1));
		return;
	}
	for (i = 0; i < ARRAY_SIZE(both_ways); i++) {
		ASSERT_EQ(0, emu_fill(&self->rig.dev[i & 1], both_ways[i],
				      self->m.p, self->m.size, 10 + i));
		/* The other device first, then the CPU. */
		EXPECT_TRUE(emu_sees(&self->rig.dev[!(i & 1)], 0, self->m.p,
				     self->m.size, 10 + i));
		EXPECT_EQ(-1, mismatch(self->m.p, self->m.size, 10 + i));
	}
	if (variant->kind == MEM_FILE_SHARED || variant->kind == MEM_MEMFD) {
		char *buf = malloc(self->m.size);

		ASSERT_NE(NULL, buf);
		EXPECT_EQ((ssize_t)self->m.size,
			  pread(self->m.fd, buf, self->m.size, 0));
		EXPECT_EQ(-1, mismatch(buf, self->m.size, 12));
		free(buf);
	}
	if (variant->kind == MEM_FILE_COW) {
		char *buf = malloc(self->m.size);

		/* The file is nobody's but its own. */
		ASSERT_NE(NULL, buf);
		EXPECT_EQ((ssize_t)self->m.size,
			  pread(self->m.fd, buf, self->m.size, 0));
		EXPECT_EQ(-1, mismatch(buf, self->m.size, ~1UL));
		free(buf);
	}
}

TEST_HARNESS_MAIN
