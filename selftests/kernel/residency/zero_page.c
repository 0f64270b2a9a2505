// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Memory that is read and never written: the kernel's page of zeroes, small or huge, is
 * told as such. It takes no memory, so whoever adds up what is on the host must not
 * count it.
 */
#include "libktest/harness.h"

#define SIZE	(8 * MiB)
#define ZERO	HETMEM_LOC(HETMEM_ZERO, 0)

/* Reads each page once: a sum keeps the compiler from leaving that out. */
static unsigned int read_all(const volatile char *p, size_t size)
{
	unsigned int sum = 0;
	size_t i;

	for (i = 0; i < size; i += page_size())
		sum += p[i];
	return sum;
}

FIXTURE(zero)
{
	int fd;
	char *p;
	struct mem m;
};

FIXTURE_SETUP(zero)
{
	self->fd = hm_open();
	ASSERT_LE(0, self->fd);
	self->p = map_aligned(&self->m, SIZE);
	ASSERT_NE(MAP_FAILED, (void *)self->p);
	ASSERT_EQ(0, madvise(self->p, SIZE, MADV_NOHUGEPAGE));
}

FIXTURE_TEARDOWN(zero)
{
	munmap(self->p, SIZE);
	close(self->fd);
}

/* Totals and runs; what is on the host is what the process has. */
static bool adds_up(int fd, char *p, long zeroes, long written)
{
	struct view v;
	bool good = !view_take(fd, p, SIZE, &v) &&
		    (long)view_kind(&v, HETMEM_ZERO) == zeroes &&
		    (long)view_total(&v, ZERO) == zeroes &&
		    (long)view_pages(&v, ZERO) == zeroes &&
		    (long)view_kind(&v, HETMEM_HOST) == written &&
		    resident(p) * (long)KiB == written * (long)page_size();

	if (!good) {
		fprintf(stderr, "# %ld KiB resident, %ld pages written, %ld read\n",
			resident(p), written, zeroes);
		view_print(&v);
	}
	view_free(&v);
	return good;
}

TEST_F(zero, small)
{
	const long all = NR(SIZE);
	struct hetmem_cmd_migrate cmd;
	long i;

	EXPECT_TRUE(adds_up(self->fd, self->p, 0, 0));
	EXPECT_EQ(0, read_all(self->p, SIZE / 2));
	EXPECT_TRUE(adds_up(self->fd, self->p, all / 2, 0));
	EXPECT_EQ(0, read_all(self->p, SIZE));
	EXPECT_TRUE(adds_up(self->fd, self->p, all, 0));
	EXPECT_EQ(0, run_at(self->fd, self->p).why);
	EXPECT_EQ(0, run_at(self->fd, self->p).order);
	/* One page that is written, in a block, at its ends, and every second. */
	self->p[100 * page_size()] = 1;
	EXPECT_TRUE(adds_up(self->fd, self->p, all - 1, 1));
	EXPECT_EQ(ZERO, run_at(self->fd, self->p + 99 * page_size()).location);
	EXPECT_EQ(HETMEM_HOST, HETMEM_LOC_KIND(run_at(self->fd, self->p +
					       100 * page_size()).location));
	EXPECT_EQ(ZERO, run_at(self->fd, self->p + 101 * page_size()).location);
	self->p[0] = 1;
	self->p[SIZE - 1] = 1;
	EXPECT_TRUE(adds_up(self->fd, self->p, all - 3, 3));
	for (i = 512; i < 1024; i += 2)
		self->p[i * page_size()] = 1;
	EXPECT_TRUE(adds_up(self->fd, self->p, all - 259, 259));
	/* Written pages that may not be written any more are no zeroes. */
	ASSERT_EQ(0, mprotect(self->p, SIZE, PROT_READ));
	EXPECT_TRUE(adds_up(self->fd, self->p, all - 259, 259));
	/* They are where they are to be, and stay what they are. */
	ASSERT_EQ(0, hm_migrate(self->fd, self->p, SIZE, ANY_HOST, &cmd));
	EXPECT_EQ(all, cmd.already);
	EXPECT_TRUE(adds_up(self->fd, self->p, all - 259, 259));
	ASSERT_EQ(0, madvise(self->p, SIZE, MADV_DONTNEED));
	EXPECT_TRUE(adds_up(self->fd, self->p, 0, 0));
}

TEST_F(zero, huge)
{
	long n;

	if (!thp_possible())
		SKIP(return, "kernel lacks transparent huge pages");
	ASSERT_EQ(0, madvise(self->p, SIZE, MADV_HUGEPAGE));
	EXPECT_EQ(0, read_all(self->p, SIZE));
	EXPECT_TRUE(adds_up(self->fd, self->p, NR(SIZE), 0));
	/* Where there is no memory for the huge one there are small ones. */
	n = run_at(self->fd, self->p).order;
	EXPECT_TRUE(n == 0 || n == 9);
	/* Writing to it makes a huge page of one's own, or small ones. */
	self->p[HUGE_SIZE] = 1;
	n = pages_of_kind(self->fd, self->p, SIZE, HETMEM_HOST);
	EXPECT_LT(0, n);
	EXPECT_TRUE(adds_up(self->fd, self->p, NR(SIZE) - n, n));
	EXPECT_EQ(ZERO, run_at(self->fd, self->p).location);
}

/* A child has it too, and a page that only the child writes is not the parent's. */
TEST_F(zero, forked)
{
	pid_t pid;

	EXPECT_EQ(0, read_all(self->p, SIZE));
	self->p[0] = 1;
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		int fd = hm_open();

		CHILD_CHECK(fd >= 0);
		CHILD_CHECK(pages_at(fd, self->p, SIZE, ZERO) == NR(SIZE) - 1);
		self->p[page_size()] = 1;
		CHILD_CHECK(pages_at(fd, self->p, SIZE, ZERO) == NR(SIZE) - 2);
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(NR(SIZE) - 1, pages_at(self->fd, self->p, SIZE, ZERO));
}

/* A file's hole is a page of the file. */
TEST_F(zero, file)
{
	int fd = memfd_create("zero", MFD_CLOEXEC);
	char *p;

	ASSERT_LE(0, fd);
	ASSERT_EQ(0, ftruncate(fd, SIZE));
	p = mmap(NULL, SIZE, PROT_READ, MAP_PRIVATE, fd, 0);
	ASSERT_NE(MAP_FAILED, p);
	EXPECT_EQ(0, read_all(p, SIZE));
	EXPECT_EQ(0, pages_of_kind(self->fd, p, SIZE, HETMEM_ZERO));
	EXPECT_EQ(NR(SIZE), pages_of_kind(self->fd, p, SIZE, HETMEM_HOST));
	munmap(p, SIZE);
	close(fd);
}

TEST_HARNESS_MAIN
