// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Large folios that the CPU maps by pages: huge pages of which a part was
 * protected, unmapped or discarded, and the smaller ones that a kernel may
 * give to anonymous memory. Kernels from 7 on split them where they migrate;
 * older ones pass them by, which MIGRATE says, with a list, so that userspace
 * has them split and asks again. In the end all of it is on the device.
 */
#include "libktest/harness.h"
#include "libktest/emu.h"

#define MTHP	"/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled"
#define MAX_REST	(2 * HETMEM_REST_MIN)

FIXTURE(large)
{
	struct rig rig;
	struct emu *dev;
	struct mem m;
	char *p;
	bool splits;	/* the kernel does, by itself */
	struct hetmem_run rest[MAX_REST];
};

FIXTURE_SETUP(large)
{
	struct hetmem_emu_cmd_info info;

	self->m = (struct mem){ .fd = -1, .old_hugepages = -1 };
	ASSERT_EQ(0, rig_init(&self->rig));
	self->dev = &self->rig.dev[0];
	/* The same kernels have huge pages for devices. */
	ASSERT_EQ(0, write_text("/sys/module/hetmem_emu/parameters/huge", "Y"));
	ASSERT_EQ(0, emu_info(self->dev->fd, &info));
	ASSERT_EQ(0, write_text("/sys/module/hetmem_emu/parameters/huge", "N"));
	self->splits = info.huge_size;
}

FIXTURE_TEARDOWN(large)
{
	mem_unmap(&self->m);
	EXPECT_EQ(0, rig_exit(&self->rig));
}

/*
 * Moves [@p, @p + @size), all of it parts of large folios. Return: NULL, or
 * what was not as it should be.
 */
static const char *move_parts(struct rig *rig, const struct emu *dev, char *p,
			      size_t size, bool splits,
			      struct hetmem_run *rest)
{
	const uint64_t pages = size / page_size();
	struct hetmem_cmd_migrate cmd = {
		.size = sizeof(cmd),
		.start = (uintptr_t)p,
		.end = (uintptr_t)p + size,
		.location = dev->loc,
		.rest = (uintptr_t)rest,
		.nr_rest = MAX_REST,
		.rest_size = sizeof(struct hetmem_run),
	};
	uint64_t listed = 0;
	char *at;
	uint32_t i;

	if (hm_ioctl(rig->fd, HETMEM_IOC_MIGRATE, &cmd))
		return "MIGRATE failed";
	if (cmd.moved + cmd.already + cmd.not_moved != pages)
		return "pages were not counted";
	for (i = 0; i < cmd.filled_rest; i++) {
		if (!(rest[i].why & HETMEM_WHY_LARGE_FOLIO))
			return "listed for another reason";
		if (HETMEM_LOC_KIND(rest[i].location) != HETMEM_HOST)
			return "listed, but not on the host";
		listed += (rest[i].end - rest[i].start) / page_size();
	}
	if (listed != cmd.not_moved)
		return "what was left is not what was listed";
	if (splits)
		return cmd.not_moved ? "the kernel did not split" : NULL;
	if (cmd.not_moved != pages)
		return "they were no large folios";
	if (!(cmd.why & HETMEM_WHY_LARGE_FOLIO) || cmd.why_addr != cmd.start)
		return "not said why";

	for (at = p; at < p + size; at += page_size())
		madvise(at, page_size(), MADV_COLD);
	if (to_device(rig->fd, dev, p, size) != (long)pages)
		return "they do not move even when split";
	return NULL;
}

#define EXPECT_PARTS_MOVE(p, size)					\
do {									\
	const char *__flaw = move_parts(&self->rig, self->dev, p, size,	\
					self->splits, self->rest);	\
									\
	EXPECT_EQ(NULL, __flaw) {					\
		TH_LOG("%s", __flaw);					\
	}								\
} while (0)

static int map_huge(struct mem *m, char **p)
{
	int ret = mem_map(m, MEM_THP, HUGE_SIZE, 1);

	*p = m->p;
	return ret;
}

/* A page in its midst is read only. */
TEST_F(large, protected)
{
	char *page;

	ASSERT_EQ(0, map_huge(&self->m, &self->p));
	page = self->p + HUGE_SIZE / 2;
	ASSERT_EQ(0, mprotect(page, page_size(), PROT_READ));
	ASSERT_EQ(0, huge_mapped(self->p));
	EXPECT_PARTS_MOVE(self->p, HUGE_SIZE / 2);
	ASSERT_EQ(1, to_device(self->rig.fd, self->dev, page, page_size()));
	EXPECT_TRUE(emu_sees(self->dev, 0, self->p, HUGE_SIZE, 1));
	EXPECT_EQ(-1, mismatch(self->p, HUGE_SIZE, 1));
}

/* Its second half is gone. */
TEST_F(large, unmapped)
{
	ASSERT_EQ(0, map_huge(&self->m, &self->p));
	ASSERT_EQ(0, munmap(self->p + HUGE_SIZE / 2, HUGE_SIZE / 2));
	EXPECT_PARTS_MOVE(self->p, HUGE_SIZE / 2);
	EXPECT_TRUE(emu_sees(self->dev, 0, self->p, HUGE_SIZE / 2, 1));
	EXPECT_EQ(-1, mismatch(self->p, HUGE_SIZE / 2, 1));
}

/* A page of it was discarded: it is a hole, which a device can fill. */
TEST_F(large, discarded)
{
	ASSERT_EQ(0, map_huge(&self->m, &self->p));
	ASSERT_EQ(0, madvise(self->p, page_size(), MADV_DONTNEED));
	EXPECT_PARTS_MOVE(self->p + page_size(), HUGE_SIZE - page_size());
	EXPECT_EQ(-1, mismatch_at(self->p + page_size(),
				  HUGE_SIZE - page_size(), 1, page_size()));
	EXPECT_TRUE(all_zero(self->p, page_size()));
}

/* Folios of 64 KiB, which never were mapped otherwise. */
TEST_F(large, of_64k)
{
	const size_t size = 512 * KiB;

	if (access(MTHP, F_OK))
		SKIP(return, "kernel has no folios of 64 KiB");
	self->m.p = map_aligned(&self->m, HUGE_SIZE);
	ASSERT_NE(MAP_FAILED, (void *)self->m.p);
	self->p = self->m.p;
	ASSERT_EQ(0, write_text(MTHP, "always"));
	/* Not all of a huge page's addresses: no huge page. */
	ASSERT_EQ(0, munmap(self->p + size, HUGE_SIZE - size));
	fill(self->p, size, 1);
	ASSERT_EQ(0, write_text(MTHP, "never"));
	EXPECT_PARTS_MOVE(self->p, size);
	EXPECT_TRUE(emu_sees(self->dev, 0, self->p, size, 1));
	EXPECT_EQ(-1, mismatch(self->p, size, 1));
}

TEST_HARNESS_MAIN
