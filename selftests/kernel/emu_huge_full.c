// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Huge pages of a device where there is no room for one in one piece: on the
 * device, on the host, or neither while others move, fault and evict at the
 * same time. Nothing is lost, and what can move moves by pages.
 */
#include "hetmem_huge.h"

#include <pthread.h>

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
		ret = migrate_contended(c->fd, c->p, c->size, c->dev[i & 1].loc,
					&cmd);
		if (ret && ret != -ENOMEM)
			c->flaw = "moving whole ones failed";
		off = i * 37 * page_size() % (c->size - 64 * KiB);
		ret = migrate_contended(c->fd, c->p + off, 64 * KiB,
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
		usleep(2000);
	}
	return NULL;
}

static void *crowd_puts_together(void *arg)
{
	struct crowd *c = arg;

	while (!c->stop) {
		madvise(c->p, c->size, MADV_COLLAPSE);
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
TEST_F_TIMEOUT(huge, crowd, 120)
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
