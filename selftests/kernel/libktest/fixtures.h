/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Fixtures that several programs have: memory of each kind, all of it touched, and
 * memory that a test makes special page by page, none of it touched. With each
 * a context that tracks nothing.
 */
#ifndef LIBKTEST_FIXTURES_H
#define LIBKTEST_FIXTURES_H

#include "libktest/harness.h"

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
}

FIXTURE_TEARDOWN(kind)
{
	EXPECT_EQ(-1, mismatch(self->m.p, self->m.size, 3));
	mem_unmap(&self->m);
	EXPECT_EQ(0, close(self->fd));
}

FIXTURE(special)
{
	int fd;
	char *p;
	size_t size;
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
}

FIXTURE_TEARDOWN(special)
{
	munmap(self->p, self->size);
	EXPECT_EQ(0, close(self->fd));
}

/* Page @n of the fixture's memory. */
#define PAGE(n)		(self->p + (n) * page_size())

#endif
