// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Huge pages of a device, where the kernel has them: what one PMD maps moves
 * as one, there and back, and comes apart only where it has to. That it moved
 * whole is seen in the device's own counters, in RESIDENCY's runs and in what
 * the CPU has mapped; what is in it is compared every time.
 *
 * The kernel's own tests of this are here by their names, less "migrate_":
 *
 *	migrate_anon_huge_empty		anon_huge_empty
 *	migrate_anon_huge_zero		anon_huge_zero
 *	migrate_anon_huge_free		anon_huge_free
 *	migrate_anon_huge_fault		anon_huge_fault
 *	migrate_partial_unmap_fault	partial_unmap_fault
 *	migrate_remap_fault		remap_fault
 *	migrate_anon_huge_err		anon_huge_err, fragmented
 *	migrate_anon_huge_zero_err	anon_huge_zero_err
 *
 * Then where there is no room for one in one piece: on the device, on the host, or
 * neither while others move, fault and evict at the same time. Nothing is lost,
 * and what can move moves by pages.
 */
#include "libktest/harness.h"
#include "libktest/emu.h"

#include <pthread.h>

#define HUGE_ORDER	9
#define HUGE_PARAM	"/sys/module/hetmem_emu/parameters/huge"

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

static int huge_map_in(struct mem *m, char **p, size_t *size, long *pages,
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
static int move_whole(int fd, const struct emu *dev, const void *p,
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
static int emu_fill_at(const struct emu *e, void *p, size_t size,
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

#define DECODES	"/sys/class/misc/hetmem/stats/decodes"

/* There as one, seen as one by everybody, and back as one. */
TEST_F(huge, moves_whole)
{
	struct hetmem_emu_cmd_info before, info;
	struct hetmem_cmd_stats st;
	struct hetmem_run run;
	struct view view;
	long decodes;

	ASSERT_EQ(0, huge_map(self, 2));
	ASSERT_EQ(0, hm_track(self->rig.fd, self->p, self->size));
	ASSERT_EQ(0, emu_info(self->dev->fd, &before));
	ASSERT_EQ(self->pages, to_device(self->rig.fd, self->dev, self->p,
					 self->size));
	ASSERT_EQ(0, emu_info(self->dev->fd, &info));
	EXPECT_EQ(before.huge_to_device + 2, info.huge_to_device);
	EXPECT_EQ(before.to_device + self->pages, info.to_device);
	EXPECT_EQ(before.huge_split, info.huge_split);
	EXPECT_EQ(self->pages, info.used);

	decodes = read_long(DECODES);
	ASSERT_LE(0, decodes);
	ASSERT_EQ(0, view_take(self->rig.fd, self->p, self->size, &view));
	/* Each was looked at once. */
	EXPECT_EQ(decodes + 2, read_long(DECODES));
	EXPECT_EQ(1, view.nr_runs);
	run = *view_at(&view, self->p);
	view_free(&view);
	EXPECT_EQ(self->dev->loc, run.location);
	EXPECT_EQ(HUGE_ORDER, run.order);
	EXPECT_EQ(self->size, run.end - run.start);
	/* From the midst of one it is the same. */
	run = run_at(self->rig.fd, self->p + HUGE_SIZE / 2 + page_size());
	EXPECT_EQ(self->dev->loc, run.location);
	EXPECT_EQ(HUGE_ORDER, run.order);
	ASSERT_EQ(0, hm_stats(self->rig.fd, self->p, &st));
	EXPECT_EQ(self->pages, st.to_device);
	EXPECT_EQ(0, st.to_host);

	EXPECT_TRUE(emu_sees(self->dev, 0, self->p, self->size, 1));
	ASSERT_EQ(self->pages, to_host(self->rig.fd, self->p, self->size));
	ASSERT_EQ(0, emu_info(self->dev->fd, &info));
	EXPECT_EQ(before.huge_to_host + 2, info.huge_to_host);
	EXPECT_EQ(before.to_host + self->pages, info.to_host);
	EXPECT_EQ(before.huge_split, info.huge_split);
	EXPECT_EQ(before.cpu_faults, info.cpu_faults);
	EXPECT_EQ(0, info.used);
	EXPECT_EQ(self->size, huge_mapped(self->p) * KiB);
	ASSERT_EQ(0, hm_stats(self->rig.fd, self->p, &st));
	EXPECT_EQ(self->pages, st.to_host);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

/* A device works on any part of it, where it is. */
TEST_F(huge, accessed_in_parts)
{
	const size_t at[] = { 0, 8, HUGE_SIZE / 2 - 24, HUGE_SIZE / 2 + 4096,
			      HUGE_SIZE - 4096 - 16 };
	struct hetmem_emu_cmd_info before, info;
	unsigned int i;
	char *own;

	ASSERT_EQ(0, huge_map(self, 1));
	own = malloc(HUGE_SIZE);
	ASSERT_NE(NULL, own);
	memcpy(own, self->p, HUGE_SIZE);
	ASSERT_EQ(0, huge_to_device(self));
	ASSERT_EQ(0, emu_info(self->dev->fd, &before));
	for (i = 0; i < ARRAY_SIZE(at); i++) {
		fill(own + at[i], 4096, 100 + i);
		EXPECT_EQ(0, emu_fill(self->dev, 0, self->p + at[i], 4096,
				      100 + i));
		EXPECT_TRUE(emu_sees(self->dev, 0, self->p + at[i], 4096,
				     100 + i));
	}
	EXPECT_EQ(0, emu_access(self->dev, HETMEM_EMU_ADD, HETMEM_EMU_MIGRATE,
				self->p + 65536, 65536, NULL, 7, NULL));
	for (i = 0; i < 65536 / 8; i++)
		((uint64_t *)(own + 65536))[i] += 7;
	ASSERT_EQ(0, emu_info(self->dev->fd, &info));
	EXPECT_EQ(before.device_faults, info.device_faults);
	EXPECT_EQ(before.huge_split, info.huge_split);
	EXPECT_EQ(self->pages, info.used);

	EXPECT_EQ(0, memcmp(own, self->p, HUGE_SIZE));
	free(own);
}

/* A device's fault takes all of it along, too. */
TEST_F(huge, device_fault)
{
	struct hetmem_emu_cmd_info before, info;

	ASSERT_EQ(0, huge_map(self, 1));
	ASSERT_EQ(0, emu_info(self->dev->fd, &before));
	EXPECT_TRUE(emu_sees_at(self->dev, HETMEM_EMU_MIGRATE,
				self->p + HUGE_SIZE / 2, 4096, 1,
				HUGE_SIZE / 2));
	ASSERT_EQ(0, emu_info(self->dev->fd, &info));
	EXPECT_EQ(before.huge_to_device + 1, info.huge_to_device);
	EXPECT_EQ(before.device_faults + 1, info.device_faults);
	EXPECT_EQ(self->pages, info.used);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

TEST_F(huge, anon_huge_fault)
{
	struct hetmem_emu_cmd_info before, info;
	volatile char *byte;

	ASSERT_EQ(0, huge_map(self, 1));
	ASSERT_EQ(0, huge_to_device(self));
	ASSERT_EQ(0, emu_info(self->dev->fd, &before));
	byte = self->p + HUGE_SIZE / 2 + 1;
	*byte = *byte;
	ASSERT_EQ(0, emu_info(self->dev->fd, &info));
	EXPECT_EQ(before.cpu_faults + 1, info.cpu_faults);
	EXPECT_EQ(before.huge_to_host + 1, info.huge_to_host);
	EXPECT_EQ(0, info.used);
	EXPECT_EQ(HUGE_SIZE, huge_mapped(self->p) * KiB);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

/* What was never touched becomes a huge page there if the process wants one. */
TEST_F(huge, anon_huge_empty)
{
	struct hetmem_emu_cmd_info before, info;
	bool whole;

	for (whole = true;; whole = false) {
		ASSERT_EQ(0, huge_map_empty(self, 1));
		ASSERT_EQ(0, madvise(self->p, self->size, whole ?
				     MADV_HUGEPAGE : MADV_NOHUGEPAGE));
		ASSERT_EQ(0, emu_info(self->dev->fd, &before));
		ASSERT_EQ(self->pages, to_device(self->rig.fd, self->dev,
						 self->p, self->size));
		ASSERT_EQ(0, emu_info(self->dev->fd, &info));
		EXPECT_EQ(before.huge_to_device + whole, info.huge_to_device);
		EXPECT_EQ(self->pages, info.used);
		EXPECT_EQ(0, emu_fill(self->dev, 0, self->p + 4096, 8192, 3));
		EXPECT_EQ(-1, mismatch(self->p + 4096, 8192, 3));
		EXPECT_TRUE(all_zero(self->p, 4096));
		EXPECT_TRUE(all_zero(self->p + 12288, self->size - 12288));
		if (!whole)
			break;
		huge_unmap(self);
	}
}

TEST_F(huge, anon_huge_zero)
{
	struct hetmem_emu_cmd_info before, info;

	ASSERT_EQ(0, huge_map_empty(self, 1));
	/* Reading maps the huge zero page. */
	ASSERT_TRUE(all_zero(self->p, self->size));
	EXPECT_EQ(self->pages, pages_at(self->rig.fd, self->p, self->size,
					HETMEM_LOC(HETMEM_ZERO, 0)));
	ASSERT_EQ(0, emu_info(self->dev->fd, &before));
	ASSERT_EQ(0, huge_to_device(self));
	ASSERT_EQ(0, emu_info(self->dev->fd, &info));
	EXPECT_EQ(before.huge_to_device + 1, info.huge_to_device);
	EXPECT_EQ(0, emu_fill(self->dev, 0, self->p, self->size / 2, 4));
	EXPECT_EQ(-1, mismatch(self->p, self->size / 2, 4));
	EXPECT_TRUE(all_zero(self->p + self->size / 2, self->size / 2));
}

/* By every way that there is: the device has it back at once. */
TEST_F(huge, anon_huge_free)
{
	struct hetmem_emu_cmd_info info;
	int way;

	for (way = 0; way < 3; way++) {
		ASSERT_EQ(0, huge_map(self, 1));
		ASSERT_EQ(0, huge_to_device(self));
		switch (way) {
		case 0:
			ASSERT_EQ(0, madvise(self->p, self->size,
					     MADV_DONTNEED));
			EXPECT_TRUE(all_zero(self->p, self->size));
			break;
		case 1:
			ASSERT_EQ(self->p, mmap(self->p, self->size, PROT_READ,
						MAP_FIXED | MAP_PRIVATE |
						MAP_ANONYMOUS, -1, 0));
			break;
		case 2:
			/* A promise not to need it; it is still there. */
			ASSERT_EQ(0, madvise(self->p, self->size, MADV_FREE));
			EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
			break;
		}
		ASSERT_EQ(0, emu_info(self->dev->fd, &info));
		EXPECT_EQ(0, info.used) {
			TH_LOG("way %d", way);
		}
		huge_unmap(self);
	}
}

/* A hole in its midst: what is left is as it was, whoever looks. */
TEST_F(huge, partial_unmap_fault)
{
	const size_t hole = HUGE_SIZE / 4, len = HUGE_SIZE / 2;
	struct hetmem_emu_cmd_info before, info;
	int way;

	for (way = 0; way < 3; way++) {
		ASSERT_EQ(0, huge_map(self, 1));
		ASSERT_EQ(0, huge_to_device(self));
		ASSERT_EQ(0, emu_info(self->dev->fd, &before));
		ASSERT_EQ(0, munmap(self->p + hole, len));
		EXPECT_EQ(hole / page_size(),
			  pages_at(self->rig.fd, self->p, hole,
				   self->dev->loc));
		EXPECT_EQ(0, run_at(self->rig.fd, self->p).order);
		EXPECT_TRUE(emu_sees(self->dev, 0, self->p, hole, 1));
		EXPECT_TRUE(emu_sees_at(self->dev, 0, self->p + hole + len,
					hole, 1, hole + len));
		if (way == 1)
			EXPECT_EQ((long)(hole / page_size()),
				  to_host(self->rig.fd, self->p, hole));
		if (way == 2)
			EXPECT_EQ(0, emu_evict(self->dev, self->pages, NULL));
		EXPECT_EQ(-1, mismatch(self->p, hole, 1));
		EXPECT_EQ(-1, mismatch_at(self->p + hole + len, hole, 1,
					  hole + len));
		ASSERT_EQ(0, emu_info(self->dev->fd, &info));
		EXPECT_EQ(before.huge_split + 1, info.huge_split);
		EXPECT_EQ(0, info.used);
		huge_unmap(self);
	}
}

/* A part comes back, the rest stays; and goes again as it is. */
TEST_F(huge, partial_migrate)
{
	const size_t part = HUGE_SIZE / 8, off = HUGE_SIZE / 4;
	struct hetmem_emu_cmd_info before, info;

	ASSERT_EQ(0, huge_map(self, 1));
	ASSERT_EQ(0, huge_to_device(self));
	ASSERT_EQ(0, emu_info(self->dev->fd, &before));
	EXPECT_EQ((long)(part / page_size()),
		  to_host(self->rig.fd, self->p + off, part));
	EXPECT_EQ((self->size - part) / page_size(),
		  pages_at(self->rig.fd, self->p, self->size, self->dev->loc));
	ASSERT_EQ(0, emu_info(self->dev->fd, &info));
	EXPECT_EQ(before.huge_split + 1, info.huge_split);
	EXPECT_EQ((self->size - part) / page_size(), info.used);
	EXPECT_TRUE(emu_sees(self->dev, 0, self->p, self->size, 1));
	EXPECT_EQ(self->pages, to_device(self->rig.fd, self->dev, self->p,
					 self->size));
	ASSERT_EQ(0, emu_info(self->dev->fd, &info));
	EXPECT_EQ(before.huge_to_device, info.huge_to_device);
	EXPECT_EQ(self->pages, info.used);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

/* A part goes there: the host's huge page is split, and what was there is. */
TEST_F(huge, partial_to_device)
{
	const size_t part = HUGE_SIZE / 8, off = HUGE_SIZE / 2;
	struct hetmem_emu_cmd_info before, info;

	ASSERT_EQ(0, huge_map(self, 1));
	ASSERT_EQ(0, emu_info(self->dev->fd, &before));
	EXPECT_EQ((long)(part / page_size()),
		  to_device(self->rig.fd, self->dev, self->p + off, part));
	ASSERT_EQ(0, emu_info(self->dev->fd, &info));
	EXPECT_EQ(before.huge_to_device, info.huge_to_device);
	EXPECT_EQ(part / page_size(), info.used);
	EXPECT_TRUE(emu_sees(self->dev, 0, self->p, self->size, 1));
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

/* To where it can still be one, and to where it cannot. */
TEST_F(huge, remap_fault)
{
	struct hetmem_emu_cmd_info info;
	char *to, *new;
	size_t off;

	for (off = 0; off <= page_size(); off += page_size()) {
		ASSERT_EQ(0, huge_map(self, 1));
		ASSERT_EQ(0, huge_to_device(self));
		to = mmap(NULL, 3 * HUGE_SIZE, PROT_NONE, MAP_PRIVATE |
			  MAP_ANONYMOUS, -1, 0);
		ASSERT_NE(MAP_FAILED, to);
		new = (char *)(((uintptr_t)to + HUGE_SIZE - 1) &
			       ~(HUGE_SIZE - 1)) + off;
		ASSERT_EQ(new, mremap(self->p, self->size, self->size,
				      MREMAP_MAYMOVE | MREMAP_FIXED, new));
		EXPECT_EQ(self->pages, pages_at(self->rig.fd, new, self->size,
						self->dev->loc));
		EXPECT_EQ(off ? 0 : HUGE_ORDER,
			  run_at(self->rig.fd, new).order);
		EXPECT_TRUE(emu_sees(self->dev, 0, new, self->size, 1));
		EXPECT_EQ(-1, mismatch(new, self->size, 1));
		ASSERT_EQ(0, emu_info(self->dev->fd, &info));
		EXPECT_EQ(0, info.used);
		EXPECT_EQ(0, munmap(to, 3 * HUGE_SIZE));
		huge_unmap(self);
	}
}

/* Both see what was there; then each its own. */
TEST_F(huge, fork_copies_on_write)
{
	struct turns turns;
	pid_t pid;
	int first;

	for (first = 0; first < 2; first++) {
		ASSERT_EQ(0, huge_map(self, 1));
		ASSERT_EQ(0, huge_to_device(self));
		ASSERT_EQ(0, turns_init(&turns));
		pid = fork();
		ASSERT_LE(0, pid);
		if (!pid) {
			turns_in_child(&turns);
			if (first && !turn_wait(turns.to_child[0]))
				_exit(1);
			if (mismatch(self->p, self->size, 1) >= 0)
				_exit(2);
			fill(self->p, self->size / 2, 5);
			if (!first && (!turn_pass(turns.to_parent[1]) ||
				       !turn_wait(turns.to_child[0])))
				_exit(3);
			if (mismatch(self->p, self->size / 2, 5) >= 0 ||
			    mismatch_at(self->p + self->size / 2,
					self->size / 2, 1,
					self->size / 2) >= 0)
				_exit(4);
			_exit(0);
		}
		turns_in_parent(&turns);
		if (!first)
			ASSERT_TRUE(turn_wait(turns.to_parent[0]));
		EXPECT_TRUE(emu_sees(self->dev, 0, self->p, self->size, 1));
		EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
		fill(self->p + self->size / 2, self->size / 2, 6);
		ASSERT_TRUE(turn_pass(turns.to_child[1]));
		EXPECT_EQ(0, child_status(pid));
		EXPECT_EQ(-1, mismatch(self->p, self->size / 2, 1));
		EXPECT_EQ(-1, mismatch(self->p + self->size / 2,
				       self->size / 2, 6));
		huge_unmap(self);
	}
}

/* From one device to the other without coming apart, and without the host. */
TEST_F(huge, between_devices)
{
	struct hetmem_emu_cmd_info before, info;
	struct emu *other = &self->rig.dev[1];

	ASSERT_EQ(0, huge_map(self, 1));
	ASSERT_EQ(0, huge_to_device(self));
	ASSERT_EQ(0, emu_info(other->fd, &before));
	ASSERT_EQ(self->pages, to_device(self->rig.fd, other, self->p,
					 self->size));
	ASSERT_EQ(0, emu_info(other->fd, &info));
	EXPECT_EQ(before.huge_to_device + 1, info.huge_to_device);
	EXPECT_EQ(self->pages, info.used);
	ASSERT_EQ(0, emu_info(self->dev->fd, &info));
	EXPECT_EQ(0, info.used);
	EXPECT_EQ(HUGE_ORDER, run_at(self->rig.fd, self->p).order);
	EXPECT_TRUE(emu_sees(other, 0, self->p, self->size, 1));
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

/* Protection changes what a fault may do, not where it is. */
TEST_F(huge, read_only)
{
	ASSERT_EQ(0, huge_map(self, 1));
	ASSERT_EQ(0, huge_to_device(self));
	ASSERT_EQ(0, mprotect(self->p, self->size, PROT_READ));
	EXPECT_EQ(self->pages, pages_at(self->rig.fd, self->p, self->size,
					self->dev->loc));
	EXPECT_EQ(-EPERM, emu_fill(self->dev, 0, self->p, 4096, 9));
	EXPECT_TRUE(emu_sees(self->dev, 0, self->p, self->size, 1));
	/* Of a part, it maps it by pages. */
	ASSERT_EQ(0, mprotect(self->p + HUGE_SIZE / 2, HUGE_SIZE / 2,
			      PROT_READ | PROT_WRITE));
	EXPECT_EQ(self->pages, pages_at(self->rig.fd, self->p, self->size,
					self->dev->loc));
	EXPECT_EQ(0, emu_fill_at(self->dev, self->p + HUGE_SIZE / 2,
				 HUGE_SIZE / 2, 1, HUGE_SIZE / 2));
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

#define HUGE_HOST	"/sys/module/hetmem_emu/parameters/huge_host"

/* The host has 2 MiB in one piece for what leaves, or has not. */
static int huge_host(bool has)
{
	return write_text(HUGE_HOST, has ? "Y" : "N");
}

/*
 * The device has as many free pages as a huge page needs and more, but no two
 * megabytes of them together.
 */
TEST_F(huge, fragmented)
{
	const size_t piece = 64 * KiB, all = self->dev->capacity;
	struct hetmem_emu_cmd_info before, info;
	char *other;
	size_t off;

	other = map_filled(all, 2);
	ASSERT_NE(NULL, other);
	ASSERT_EQ((long)(all / page_size()),
		  to_device(self->rig.fd, self->dev, other, all));
	for (off = 0; off < all; off += 2 * piece)
		ASSERT_EQ((long)(piece / page_size()),
			  to_host(self->rig.fd, other + off, piece));

	ASSERT_EQ(0, huge_map(self, 1));
	ASSERT_EQ(0, emu_info(self->dev->fd, &before));
	ASSERT_LE(self->pages, before.capacity - before.used);
	ASSERT_EQ(self->pages, to_device(self->rig.fd, self->dev, self->p,
					 self->size));
	ASSERT_EQ(0, emu_info(self->dev->fd, &info));
	EXPECT_EQ(before.huge_to_device, info.huge_to_device);
	EXPECT_EQ(before.to_device + self->pages, info.to_device);
	EXPECT_EQ(before.evicted, info.evicted);
	EXPECT_EQ(0, run_at(self->rig.fd, self->p).order);
	EXPECT_TRUE(emu_sees(self->dev, 0, self->p, self->size, 1));
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));

	/* With room again, and put together by the CPU's kernel, it is one. */
	ASSERT_EQ((long)(all / page_size()), to_host(self->rig.fd, other, all));
	if (!madvise(self->p, self->size, MADV_COLLAPSE)) {
		ASSERT_EQ(HUGE_SIZE, huge_mapped(self->p) * KiB);
		EXPECT_EQ(0, huge_to_device(self));
		EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
	}
	EXPECT_EQ(-1, mismatch(other, all, 2));
	munmap(other, all);
}

/* Full of huge pages: the oldest one leaves, by pages, and another comes whole. */
TEST_F(huge, full)
{
	const long nr = self->dev->capacity / HUGE_SIZE;
	struct hetmem_emu_cmd_info before, info;

	ASSERT_EQ(0, huge_map(self, nr + 1));
	ASSERT_EQ(0, move_whole(self->rig.fd, self->dev, self->p,
				nr * HUGE_SIZE));
	ASSERT_EQ(0, emu_info(self->dev->fd, &before));
	ASSERT_EQ(before.capacity, before.used);
	ASSERT_EQ(0, move_whole(self->rig.fd, self->dev,
				self->p + nr * HUGE_SIZE, HUGE_SIZE));
	ASSERT_EQ(0, emu_info(self->dev->fd, &info));
	EXPECT_EQ(before.evicted + HUGE_SIZE / page_size(), info.evicted);
	EXPECT_EQ(before.to_host + HUGE_SIZE / page_size(), info.to_host);
	EXPECT_EQ(before.huge_to_host, info.huge_to_host);
	EXPECT_EQ(before.huge_split + 1, info.huge_split);
	EXPECT_EQ(HUGE_SIZE / page_size(),
		  pages_of_kind(self->rig.fd, self->p, self->size,
				HETMEM_HOST));
	EXPECT_EQ(HETMEM_HOST, HETMEM_LOC_KIND(run_at(self->rig.fd,
						      self->p).location));
	/* Asking again for what is there evicts nothing. */
	before = info;
	ASSERT_EQ(HUGE_SIZE / page_size(),
		  to_device(self->rig.fd, self->dev,
			    self->p + nr * HUGE_SIZE, HUGE_SIZE));
	ASSERT_EQ(0, emu_info(self->dev->fd, &info));
	EXPECT_EQ(before.evicted, info.evicted);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

/* One page of eviction is all of one huge page, whatever the host has. */
TEST_F(huge, evict)
{
	struct hetmem_emu_cmd_info before, info;
	struct hetmem_run run;
	uint64_t evicted;
	bool host;

	for (host = true;; host = false) {
		ASSERT_EQ(0, huge_map(self, 2));
		ASSERT_EQ(0, huge_to_device(self));
		ASSERT_EQ(0, emu_info(self->dev->fd, &before));
		ASSERT_EQ(0, huge_host(host));
		EXPECT_EQ(0, emu_evict(self->dev, 1, &evicted));
		ASSERT_EQ(0, huge_host(true));
		EXPECT_EQ(self->pages / 2, evicted);
		ASSERT_EQ(0, emu_info(self->dev->fd, &info));
		EXPECT_EQ(before.huge_split + 1, info.huge_split);
		EXPECT_EQ(self->pages / 2, info.used);
		run = run_at(self->rig.fd, self->p);
		EXPECT_EQ(HETMEM_HOST, HETMEM_LOC_KIND(run.location));
		run = run_at(self->rig.fd, self->p + HUGE_SIZE);
		EXPECT_EQ(self->dev->loc, run.location);
		EXPECT_EQ(HUGE_ORDER, run.order);
		EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
		huge_unmap(self);
		if (!host)
			break;
	}
}

/* The host has no 2 MiB in one piece: who asks or faults gets 512 pages. */
TEST_F(huge, anon_huge_err)
{
	struct hetmem_emu_cmd_info before, info;
	int way;

	for (way = 0; way < 2; way++) {
		ASSERT_EQ(0, huge_map(self, 1));
		ASSERT_EQ(0, huge_to_device(self));
		ASSERT_EQ(0, emu_info(self->dev->fd, &before));
		ASSERT_EQ(0, huge_host(false));
		if (way)
			EXPECT_EQ(self->pages, to_host(self->rig.fd, self->p,
						       self->size));
		EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
		ASSERT_EQ(0, huge_host(true));
		ASSERT_EQ(0, emu_info(self->dev->fd, &info));
		EXPECT_EQ(0, info.used);
		EXPECT_EQ(before.to_host + self->pages, info.to_host);
		EXPECT_EQ(before.huge_to_host, info.huge_to_host);
		EXPECT_EQ(before.huge_split + 1, info.huge_split);
		EXPECT_EQ(before.cpu_fault_failures, info.cpu_fault_failures);
		EXPECT_EQ(0, huge_mapped(self->p));
		huge_unmap(self);
	}
}

TEST_F(huge, anon_huge_zero_err)
{
	struct hetmem_emu_cmd_info info;

	ASSERT_EQ(0, huge_map_empty(self, 1));
	ASSERT_TRUE(all_zero(self->p, self->size));
	ASSERT_EQ(0, huge_to_device(self));
	ASSERT_EQ(0, huge_host(false));
	EXPECT_TRUE(all_zero(self->p, self->size));
	ASSERT_EQ(0, huge_host(true));
	ASSERT_EQ(0, emu_info(self->dev->fd, &info));
	EXPECT_EQ(0, info.used);
}

struct crowd {
	int fd;
	const struct emu *dev;
	char *p;
	size_t size;
	volatile bool stop;
	const char *flaw;
};

/* Whole ones, parts and odd parts go there and back. */
static void *crowd_moves(void *arg)
{
	struct crowd *c = arg;
	struct hetmem_cmd_migrate cmd;
	unsigned int i;
	size_t off;
	int ret;

	for (i = 0; !c->stop; i++) {
		ret = hm_migrate(c->fd, c->p, c->size, c->dev[i & 1].loc, &cmd);
		if (ret && ret != -ENOMEM)
			c->flaw = "moving whole ones failed";
		off = i * 37 * page_size() % (c->size - 64 * KiB);
		ret = hm_migrate(c->fd, c->p + off, 64 * KiB,
				 i % 3 ? ANY_HOST : c->dev[0].loc, &cmd);
		if (ret && ret != -ENOMEM)
			c->flaw = "moving parts failed";
	}
	return NULL;
}

static void *crowd_evicts(void *arg)
{
	struct crowd *c = arg;
	unsigned int i;

	for (i = 0; !c->stop; i++) {
		if (emu_evict(&c->dev[i & 1], 1 + i % 700, NULL))
			c->flaw = "evicting failed";
		/* time: the pace of evictions */
		usleep(2000);
	}
	return NULL;
}

static void *crowd_puts_together(void *arg)
{
	struct crowd *c = arg;

	while (!c->stop) {
		madvise(c->p, c->size, MADV_COLLAPSE);
		/* time: the pace of collapses */
		usleep(3000);
	}
	return NULL;
}

static void *crowd_faults(void *arg)
{
	struct crowd *c = arg;
	size_t off = 0;

	while (!c->stop) {
		off = (off + 99 * page_size()) % c->size;
		if (mismatch_at(c->p + off, page_size(), 1, off) >= 0)
			c->flaw = "the CPU saw something else";
	}
	return NULL;
}

/*
 * Nobody among them ends or discards memory: kernels that have huge pages for
 * devices lose count where that meets a huge page on its way to the host.
 */
TEST_F(huge, crowd)
{
	static void *(* const who[])(void *) = {
		crowd_moves, crowd_moves, crowd_evicts, crowd_puts_together,
		crowd_faults,
	};
	pthread_t threads[ARRAY_SIZE(who)];
	struct hetmem_emu_cmd_info info;
	struct crowd crowd;
	unsigned int i;

	ASSERT_EQ(0, huge_map(self, 3));
	crowd = (struct crowd){
		.fd = self->rig.fd, .dev = self->rig.dev,
		.p = self->p, .size = self->size,
	};
	for (i = 0; i < ARRAY_SIZE(who); i++)
		ASSERT_EQ(0, pthread_create(&threads[i], NULL, who[i], &crowd));
	/* time: a race without an end of its own */
	sleep(test_rounds(6));
	crowd.stop = true;
	for (i = 0; i < ARRAY_SIZE(who); i++)
		pthread_join(threads[i], NULL);
	EXPECT_EQ(NULL, crowd.flaw) {
		TH_LOG("%s", crowd.flaw);
	}
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
	ASSERT_EQ(0, emu_info(self->dev->fd, &info));
	TH_LOG("%llu huge there, %llu back, %llu split", info.huge_to_device,
	       info.huge_to_host, info.huge_split);
	EXPECT_LT(0, info.huge_to_device);
}

TEST_HARNESS_MAIN
