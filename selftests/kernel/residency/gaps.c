// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * RESIDENCY of memory that is mostly empty: what it reports. `hetmem bench kernel residency`
 * compares what it takes with PAGEMAP_SCAN.
 */
#include "libktest/harness.h"
#include "libktest/view.h"

#include <linux/types.h>
#include <pthread.h>
#include <sys/ioctl.h>

#define GiB	(1UL << 30)

FIXTURE(gaps)
{
	int fd;
};

FIXTURE_VARIANT(gaps)
{
	int flags;
	bool huge;
};

FIXTURE_VARIANT_ADD(gaps, anon) { .flags = MAP_PRIVATE | MAP_ANONYMOUS };
FIXTURE_VARIANT_ADD(gaps, anon_huge) { .flags = MAP_PRIVATE | MAP_ANONYMOUS, .huge = true };
FIXTURE_VARIANT_ADD(gaps, shared) { .flags = MAP_SHARED | MAP_ANONYMOUS };

FIXTURE_SETUP(gaps)
{
	self->fd = hm_open();
	ASSERT_LE(0, self->fd);
}

FIXTURE_TEARDOWN(gaps)
{
	EXPECT_EQ(0, close(self->fd));
}

#define MAP(size)							\
	({								\
		char *p_ = mmap(NULL, size, PROT_READ | PROT_WRITE,	\
				variant->flags | MAP_NORESERVE, -1, 0);	\
		ASSERT_NE(MAP_FAILED, p_);				\
		madvise(p_, size, variant->huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE); \
		p_;							\
	})

/* Exactly the pages that are there, at odd places, in every size of gap. */
TEST_F(gaps, exact)
{
	static const uint64_t at[] = {
		0, 1, 511, 512, 513, 1024, 5000, 262143, 262144, 262145, 300000, 524288,
		3 * 262144 + 77, 8 * 262144 - 1, 40 * 262144 + 3,
		/* Most times behind 512 GiB, an entry of the highest level, without any. */
		1040 * 262144UL,
	};
	const size_t size = 2048 * GiB, page = page_size();
	uint64_t there = 0;
	struct view v;
	char *p = MAP(size);
	size_t i;

	for (i = 0; i < ARRAY_SIZE(at); i++)
		p[at[i] * page] = 1;
	ASSERT_EQ(0, view_take(self->fd, p, size, &v));
	for (i = 0; i < ARRAY_SIZE(at); i++)
		EXPECT_EQ(HETMEM_HOST, HETMEM_LOC_KIND(view_at(&v, p + at[i] * page)->location));
	for (i = 0; i < v.nr_runs; i++) {
		const struct hetmem_run *r = &v.runs[i];

		if (HETMEM_LOC_KIND(r->location) == HETMEM_HOST) {
			there += (r->end - r->start) / page;
			continue;
		}
		EXPECT_EQ(HETMEM_LOC(HETMEM_UNKNOWN, 0), r->location);
		EXPECT_EQ(HETMEM_WHY_ABSENT, r->why & HETMEM_WHY_ABSENT);
		EXPECT_EQ(0, r->order);
		/* Runs of one kind are one, also across steps and tables. */
		if (i) {
			EXPECT_EQ(HETMEM_HOST, HETMEM_LOC_KIND(v.runs[i - 1].location));
		}
	}
	EXPECT_LE(ARRAY_SIZE(at), there);
	if (!variant->huge) {
		EXPECT_EQ(ARRAY_SIZE(at), there);
	}
	view_free(&v);
	/* A part that begins and ends in the midst of a gap; and a mapping that ends there. */
	ASSERT_EQ(0, view_take(self->fd, p + 50 * GiB + page, 7 * GiB + 5 * page, &v));
	EXPECT_EQ(1, v.nr_runs);
	EXPECT_EQ((7 * GiB + 5 * page) / page, view_kind(&v, HETMEM_UNKNOWN));
	view_free(&v);
	ASSERT_EQ(0, munmap(p + 50 * GiB, 3 * page));
	ASSERT_EQ(0, mprotect(p + 60 * GiB + page, GiB, PROT_NONE));
	ASSERT_EQ(0, view_take(self->fd, p, size, &v));
	EXPECT_EQ(HETMEM_UNMAPPED, view_at(&v, p + 50 * GiB)->location >> 16);
	EXPECT_EQ((uintptr_t)p + 50 * GiB + 3 * page, view_at(&v, p + 50 * GiB)->end);
	EXPECT_EQ((uintptr_t)p + 60 * GiB + page, view_at(&v, p + 59 * GiB)->end);
	EXPECT_EQ(HETMEM_WHY_NOT_READABLE,
		  view_at(&v, p + 60 * GiB + page)->why & HETMEM_WHY_NOT_READABLE);
	view_free(&v);
	munmap(p, size);
}

/* To the host nothing moves, and all of it is accounted for; pinning it holds what is there. */
TEST_F(gaps, migrated)
{
	const size_t size = 64 * GiB;
	struct hetmem_cmd_migrate m;
	char *p = MAP(size);

	p[3 * GiB] = 1;
	p[size - 1] = 1;
	ASSERT_EQ(0, hm_migrate(self->fd, p, size, ANY_HOST, &m));
	EXPECT_EQ(NR(size), m.already + m.not_moved);
	EXPECT_LE(2, m.already);
	EXPECT_EQ((uintptr_t)p, m.why_addr);
	EXPECT_EQ(HETMEM_WHY_ABSENT, m.why & HETMEM_WHY_ABSENT);
	ASSERT_EQ(0, hm_pin(self->fd, p + 2 * GiB, 2 * GiB, 60000, &m));
	EXPECT_LE(1, m.pinned);
	EXPECT_EQ((long)m.pinned, pages_pinned(self->fd, p, size));
	munmap(p, size);
}

#define KEPT	16

struct churn {
	pthread_t thread;
	char *p;
	int flags;
	unsigned int seed;
	volatile bool *stop;
};

/* Maps, unmaps, moves, fills, collapses in [256 MiB, 1 GiB) of each GiB. */
static void *churn(void *arg)
{
	const int prot = PROT_READ | PROT_WRITE;
	struct churn *c = arg;

	while (!*c->stop) {
		const size_t block = 2 * MiB;
		unsigned int r = rand_r(&c->seed);
		char *p = c->p + r % KEPT * GiB + 256 * MiB + r / KEPT % 16 * block;

		switch (r % 7) {
		case 0:
			mmap(p, 256 * MiB, prot, c->flags | MAP_NORESERVE | MAP_FIXED, -1, 0);
			break;
		case 1:
			madvise(p, 4 * block, MADV_DONTNEED);
			break;
		case 2:
			mremap(p, block, block, MREMAP_MAYMOVE | MREMAP_FIXED,
			       c->p + r / 7 % KEPT * GiB + 800 * MiB);
			mmap(p, block, prot, c->flags | MAP_NORESERVE | MAP_FIXED, -1, 0);
			break;
		case 3:
			madvise(p, block, MADV_HUGEPAGE);
			madvise(p, page_size(), MADV_POPULATE_WRITE);
			break;
		case 4:
			mprotect(p, 3 * page_size(), PROT_READ);
			break;
		default:
			/* A write could fault: another thread can have taken the right. */
			madvise(p, page_size(), MADV_POPULATE_WRITE);
		}
	}
	return NULL;
}

/*
 * Tables come and go while they are read. What stays is seen each time, what is never
 * touched never, and a view has no hole.
 */
TEST_F(gaps, while_tables_change)
{
	const size_t size = KEPT * GiB;
	volatile bool stop = false;
	char *p = MAP(size);
	struct churn c[2];
	struct view v;
	int i, round;

	for (i = 0; i < KEPT; i++) {
		p[i * GiB + i * page_size()] = 1;
		mlock(p + i * GiB + i * page_size(), page_size());
	}
	for (i = 0; i < 2; i++) {
		c[i] = (struct churn){ .p = p, .flags = variant->flags, .seed = i, .stop = &stop };
		ASSERT_EQ(0, pthread_create(&c[i].thread, NULL, churn, &c[i]));
	}
	for (round = 0; round < test_rounds(40); round++) {
		ASSERT_EQ(0, view_take(self->fd, p, size, &v));
		for (i = 0; i < KEPT; i++) {
			const struct hetmem_run *r = view_at(&v, p + i * GiB + i * page_size());

			EXPECT_TRUE(HETMEM_LOC_KIND(r->location) == HETMEM_HOST ||
				    r->why & HETMEM_WHY_MOVING);
			EXPECT_EQ(HETMEM_LOC(HETMEM_UNKNOWN, 0),
				  view_at(&v, p + i * GiB + 128 * MiB)->location);
		}
		view_free(&v);
	}
	stop = true;
	for (i = 0; i < 2; i++)
		pthread_join(c[i].thread, NULL);
	munmap(p, size);
}

TEST_HARNESS_MAIN
