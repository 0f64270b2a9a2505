/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the tests of huge device pages share: a fixture with two devices and
 * memory that is huge pages. It is skipped where the kernel has none for
 * devices.
 */
#ifndef HETMEM_HUGE_H
#define HETMEM_HUGE_H

#include "hetmem_emu_test.h"

#define HUGE_ORDER	9
#define HUGE_PARAM	"/sys/module/hetmem_emu/parameters/huge"

#ifndef ARRAY_SIZE
#define ARRAY_SIZE(a)	(sizeof(a) / sizeof((a)[0]))
#endif

FIXTURE(huge)
{
	struct rig rig;
	struct emu *dev;
	struct mem m;
	char *p;
	size_t size;
	long pages;
};

/* Aligned memory for @nr huge pages, nothing in it. */
#define huge_map_empty(self, nr) huge_map_in(&(self)->m, &(self)->p,	\
	&(self)->size, &(self)->pages, nr, false)

/* The same with huge pages in it and the pattern in those. */
#define huge_map(self, nr) huge_map_in(&(self)->m, &(self)->p,		\
	&(self)->size, &(self)->pages, nr, true)

#define huge_unmap(self) mem_unmap(&(self)->m)

HELPER int huge_map_in(struct mem *m, char **p, size_t *size, long *pages,
		       int nr, bool filled)
{
	int ret = 0;

	*size = nr * HUGE_SIZE;
	*pages = *size / page_size();
	if (filled) {
		ret = mem_map(m, MEM_THP, *size, 1);
	} else {
		*m = (struct mem){ .fd = -1, .old_hugepages = -1 };
		m->p = map_aligned(m, *size);
		if (m->p == MAP_FAILED || madvise(m->p, *size, MADV_HUGEPAGE))
			ret = -errno;
	}
	*p = m->p;
	return ret;
}

/*
 * Moves @size bytes of huge pages at @p to @dev, and not in pieces. Return: 0
 * or a negative errno.
 */
HELPER int move_whole(int fd, const struct emu *dev, const void *p,
		      size_t size)
{
	struct hetmem_emu_cmd_info before, info;
	long moved;
	int ret;

	ret = emu_info(dev->fd, &before);
	if (ret)
		return ret;
	moved = to_device(fd, dev, p, size);
	if (moved < 0)
		return moved;
	ret = emu_info(dev->fd, &info);
	if (ret)
		return ret;
	return moved == (long)(size / page_size()) &&
	       info.huge_to_device - before.huge_to_device ==
	       size / HUGE_SIZE ? 0 : -ECHILD;
}

#define huge_to_device(self) move_whole((self)->rig.fd, (self)->dev,	\
	(self)->p, (self)->size)

/* The device writes the pattern from @offset on, where things are. */
HELPER int emu_fill_at(const struct emu *e, void *p, size_t size,
		       uint64_t seed, size_t offset)
{
	uint64_t *buf = malloc(size);
	int ret = -ENOMEM;
	size_t i;

	if (buf) {
		for (i = 0; i < size / sizeof(*buf); i++)
			buf[i] = pattern_word(seed, offset + i * sizeof(*buf));
		ret = emu_write(e, 0, p, size, buf);
	}
	free(buf);
	return ret;
}

FIXTURE_SETUP(huge)
{
	struct hetmem_emu_cmd_info info;

	self->m = (struct mem){ .fd = -1, .old_hugepages = -1 };
	ASSERT_EQ(0, rig_init(&self->rig));
	self->dev = &self->rig.dev[0];
	ASSERT_EQ(0, write_text(HUGE_PARAM, "Y"));
	ASSERT_EQ(0, emu_info(self->dev->fd, &info));
	if (!info.huge_size)
		SKIP(return, "kernel has no huge pages for devices");
	ASSERT_EQ(HUGE_SIZE, info.huge_size);
}

FIXTURE_TEARDOWN(huge)
{
	mem_unmap(&self->m);
	EXPECT_EQ(0, write_text(HUGE_PARAM, "N"));
	EXPECT_EQ(0, rig_exit(&self->rig));
}

#endif /* HETMEM_HUGE_H */
