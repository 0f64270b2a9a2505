// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The arrays that commands fill: each comes with the size of an entry, smaller
 * than the first version's is refused, and what the kernel does not know of a
 * larger one comes back zeroed.
 */
#include "libktest/harness.h"
#include "libktest/emu.h"
#include "libktest/hmm.h"

#include <linux/mempolicy.h>

/* Entries that there is room for: what MIGRATE asks for at least. */
#define ROOM	HETMEM_REST_MIN

#define MEMORY	(8 * page_size())

enum array_id {
	INFO_DEVICES, INFO_POOLS, RESIDENCY_RUNS, RESIDENCY_TOTALS,
	MIGRATE_REST, LIST_ENTRIES,
};

FIXTURE(array)
{
	int fd, gpu;
	char *p;		/* pages on node 1, and pages that are not there */
	unsigned char *room;	/* nothing is mapped behind it */
	size_t size;
	unsigned int least;	/* entries that are filled */
};

FIXTURE_VARIANT(array)
{
	enum array_id id;
	size_t entry;
};

FIXTURE_VARIANT_ADD(array, devices) {
	.id = INFO_DEVICES, .entry = sizeof(struct hetmem_device_info),
};
FIXTURE_VARIANT_ADD(array, pools) {
	.id = INFO_POOLS, .entry = sizeof(struct hetmem_pool_info),
};
FIXTURE_VARIANT_ADD(array, runs) {
	.id = RESIDENCY_RUNS, .entry = sizeof(struct hetmem_run),
};
FIXTURE_VARIANT_ADD(array, totals) {
	.id = RESIDENCY_TOTALS, .entry = sizeof(struct hetmem_total),
};
FIXTURE_VARIANT_ADD(array, rest) {
	.id = MIGRATE_REST, .entry = sizeof(struct hetmem_run),
};
FIXTURE_VARIANT_ADD(array, list) {
	.id = LIST_ENTRIES, .entry = sizeof(struct hetmem_list_entry),
};

/*
 * Calls for the array @at with entries of @stride bytes and room for @nr. Return:
 * how many are filled, or an errno.
 */
static int call(int fd, enum array_id id, const char *p, uint64_t at,
		uint32_t stride, uint32_t nr)
{
	struct hetmem_cmd_info info = { .size = sizeof(info) };
	struct hetmem_cmd_residency residency = {
		.start = (uintptr_t)p, .end = (uintptr_t)p + MEMORY,
	};
	struct hetmem_cmd_migrate migrate = {
		.size = sizeof(migrate), .start = (uintptr_t)p,
		.end = (uintptr_t)p + MEMORY,
		.location = HETMEM_LOC(HETMEM_HOST, 0),
		.rest = at, .rest_size = stride, .nr_rest = nr,
	};
	struct hetmem_cmd_list list = {
		.size = sizeof(list), .entries = at, .entry_size = stride,
		.nr = nr,
	};
	int ret;

	switch (id) {
	case INFO_DEVICES:
		info.devices = at;
		info.device_size = stride;
		info.nr_devices = nr;
		ret = hm_ioctl(fd, HETMEM_IOC_INFO, &info);
		return ret ? ret : (int)info.nr_devices;
	case INFO_POOLS:
		info.pools = at;
		info.pool_size = stride;
		info.nr_pools = nr;
		ret = hm_ioctl(fd, HETMEM_IOC_INFO, &info);
		return ret ? ret : (int)info.nr_pools;
	case RESIDENCY_RUNS:
		residency.runs = at;
		residency.run_size = stride;
		residency.nr_runs = nr;
		ret = hm_residency(fd, &residency);
		return ret ? ret : (int)residency.filled_runs;
	case RESIDENCY_TOTALS:
		residency.totals = at;
		residency.total_size = stride;
		residency.nr_totals = nr < HETMEM_MAX_TOTALS ? nr :
							       HETMEM_MAX_TOTALS;
		ret = hm_residency(fd, &residency);
		return ret ? ret : (int)residency.filled_totals;
	case MIGRATE_REST:
		ret = hm_ioctl(fd, HETMEM_IOC_MIGRATE, &migrate);
		return ret ? ret : (int)migrate.filled_rest;
	default:
		ret = hm_ioctl(fd, HETMEM_IOC_LIST, &list);
		return ret ? ret : (int)list.nr;
	}
}

FIXTURE_SETUP(array)
{
	unsigned long node = 1 << 1;
	int i;

	self->gpu = -1;
	self->fd = hm_open();
	ASSERT_LE(0, self->fd);
	self->size = ROOM * page_size();
	self->room = mmap(NULL, self->size + page_size(), PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)self->room);
	ASSERT_EQ(0, mprotect(self->room + self->size, page_size(), PROT_NONE));
	self->p = mmap(NULL, MEMORY, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, self->p);
	ASSERT_EQ(0, madvise(self->p, MEMORY, MADV_NOHUGEPAGE));
	ASSERT_EQ(0, syscall(SYS_mbind, self->p, MEMORY, MPOL_BIND, &node, 8UL,
			     0UL));
	/* Every second page: many runs, two totals. */
	for (i = 0; i < NR(MEMORY); i += 2)
		fill(self->p + i * page_size(), page_size(), i);
	/* Where there are no devices of this kind, none is listed. */
	self->least = variant->id == INFO_DEVICES ? 0 : 1;
	if (variant->id == INFO_POOLS) {
		self->least = 0;
		if (!access("/dev/hmm_dmirror0", F_OK)) {
			self->gpu = gpu_open(0);
			ASSERT_LE(0, self->gpu);
			ASSERT_EQ(0, to_gpu(self->gpu, self->p, page_size(), 0));
			ASSERT_NE(NO_LOC, foreign_at(self->fd, self->p));
			self->least = 1;
		}
	} else if (!access("/dev/hetmem_emu0", F_OK)) {
		self->least = 1;
	}
	if (variant->id == RESIDENCY_RUNS)
		self->least = NR(MEMORY);
	if (variant->id == RESIDENCY_TOTALS)
		self->least = 2;
	if (variant->id == MIGRATE_REST)
		self->least = NR(MEMORY) / 2;
}

FIXTURE_TEARDOWN(array)
{
	munmap(self->p, MEMORY);
	munmap(self->room, self->size + page_size());
	close(self->gpu);
	close(self->fd);
}

#define CALL(at, stride, nr)						\
	call(self->fd, variant->id, self->p, (uintptr_t)(at), stride, nr)

TEST_F(array, smaller)
{
	size_t stride;

	memset(self->room, 0xa5, self->size);
	for (stride = 0; stride < variant->entry; stride++)
		EXPECT_EQ(-EINVAL, CALL(self->room, stride, ROOM)) {
			TH_LOG("entries of %zu bytes", stride);
		}
	/* Also where nothing would be written there. */
	EXPECT_EQ(-EINVAL, CALL(NULL, variant->entry - 1, ROOM));
	EXPECT_EQ(0xa5, self->room[0]);
	EXPECT_EQ(0, memcmp(self->room, self->room + 1, self->size - 1));
}

TEST_F(array, larger)
{
	const size_t strides[] = {
		variant->entry, variant->entry + 1, variant->entry + 8,
		2 * variant->entry, page_size(),
	};
	unsigned char *exact = calloc(ROOM, variant->entry);
	int nr, i, n;
	size_t s;

	ASSERT_NE(NULL, exact);
	n = CALL(exact, variant->entry, ROOM);
	ASSERT_LE(self->least, n);
	ASSERT_GE(ROOM, n);
	for (s = 0; s < ARRAY_SIZE(strides); s++) {
		memset(self->room, 0xa5, self->size);
		nr = CALL(self->room, strides[s], ROOM);
		ASSERT_EQ(n, nr);
		for (i = 0; i < nr; i++) {
			unsigned char *entry = self->room + i * strides[s];
			size_t byte;

			/* Known members, then zeroes. */
			EXPECT_EQ(0, memcmp(entry, exact + i * variant->entry,
					    variant->entry));
			for (byte = variant->entry; byte < strides[s]; byte++)
				ASSERT_EQ(0, entry[byte]);
		}
		/* Entries that are not filled are not touched. */
		for (i = nr * strides[s]; i < (int)self->size; i++)
			ASSERT_EQ(0xa5, self->room[i]);
	}
	free(exact);
}

TEST_F(array, above_a_page)
{
	EXPECT_EQ(-E2BIG, CALL(self->room, page_size() + 1, ROOM));
	EXPECT_EQ(-E2BIG, CALL(self->room, ~0U, ROOM));
	EXPECT_EQ(-E2BIG, CALL(NULL, ~0U, ROOM));
}

/* Room for none: neither the size nor the address counts. */
TEST_F(array, none)
{
	static const uint32_t strides[] = { 0, 1, 4, ~0U };
	int ret, i;

	for (i = 0; i < (int)ARRAY_SIZE(strides); i++) {
		ret = CALL(KERNEL_ADDR, strides[i], 0);
		EXPECT_LE(0, ret);
		/* Those that say how many there are do so. */
		if (variant->id == INFO_DEVICES || variant->id == INFO_POOLS ||
		    variant->id == LIST_ENTRIES) {
			EXPECT_LE(self->least, ret);
		} else {
			EXPECT_EQ(0, ret);
		}
	}
}

TEST_F(array, unwritable)
{
	static const uint64_t bad[] = { 0, 8, KERNEL_ADDR, ~0ULL, 1ULL << 62 };
	const size_t stride = variant->entry + 8;
	size_t i;

	if (!self->least)
		return;
	for (i = 0; i < ARRAY_SIZE(bad); i++) {
		EXPECT_EQ(-EFAULT, CALL(bad[i], variant->entry, ROOM));
		EXPECT_EQ(-EFAULT, CALL(bad[i], stride, ROOM));
	}
	/* The zeroes behind the first entry are in the page that is not there. */
	EXPECT_EQ(-EFAULT, CALL(self->room + self->size - variant->entry, stride,
				ROOM));
}

/* What lies behind the entries that there is room for stays. */
TEST_F(array, too_short)
{
	unsigned char *at = self->room;
	size_t i;
	int ret;

	if (self->least < 2)
		return;
	memset(at, 0xa5, self->size);
	ret = CALL(at, variant->entry, 1);
	EXPECT_EQ(variant->id == RESIDENCY_TOTALS ? -ENOSPC :
		  variant->id == MIGRATE_REST ? -EINVAL : 1, ret);
	for (i = variant->entry; i < self->size; i++)
		ASSERT_EQ(0xa5, at[i]);
}

TEST_HARNESS_MAIN
