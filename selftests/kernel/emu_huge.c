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
 *	migrate_anon_huge_err		emu_huge_full: anon_huge_err, fragmented
 *	migrate_anon_huge_zero_err	emu_huge_full: anon_huge_zero_err
 *
 * emu_huge_full.c is about devices and hosts that have no room for one.
 */
#include "hetmem_huge.h"

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

TEST_HARNESS_MAIN
