// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Pools of other drivers' pages: their numbers, and what INFO reports of them. A
 * driver can have many pools, share one between devices, be unloaded and be
 * loaded again. Its pages are always reported and always pulled back, and its
 * unloading never waits for hetmem.
 */
#include "libktest/harness.h"
#include "libktest/asker.h"
#include "libktest/hmm.h"
#include "libktest/modules.h"
#include "libktest/sysfs.h"

#include <pthread.h>

#define PAGES	16
#define SIZE	(PAGES * page_size())
#define SEVERAL	FOREIGN(HETMEM_SEVERAL)

/* Pools of one driver that are told apart. */
#define OWNER_POOLS 4

/* A driver with more pools than hetmem tells apart. */
TEST(more_than_four)
{
	enum { CHUNKS = OWNER_POOLS + 3 };
	const size_t size = CHUNKS * GPU_CHUNK;
	int fd = hm_open(), gpu = gpu_open_2m(0), i;
	char *p = map_filled(size, 1);
	struct hetmem_cmd_refresh cmd;
	struct hetmem_cmd_migrate m;
	struct hetmem_pool_info pool;

	ASSERT_LE(0, fd);
	ASSERT_LE(0, gpu);
	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, hm_track(fd, p, size));
	for (i = 0; i < CHUNKS; i++) {
		const size_t there = (i + 1) * GPU_CHUNK;

		ASSERT_EQ(0, to_gpu_at(gpu, p + there - GPU_CHUNK, GPU_CHUNK, 1,
				       there - GPU_CHUNK));
		/* All of its pages are seen, in any number of pools. */
		EXPECT_EQ(NR(there), pages_of_kind(fd, p, size, HETMEM_FOREIGN));
		EXPECT_EQ(0, pages_at(fd, p, size, NO_LOC));
	}
	EXPECT_EQ(NR(size), pages_at(fd, p, size, SEVERAL));
	/* SEVERAL is no pool: INFO does not list it. */
	EXPECT_EQ(-ENOENT, pool_at(fd, SEVERAL, &pool));
	EXPECT_EQ(0, hm_refresh_all(fd, p, &cmd));
	EXPECT_EQ((uint64_t)NR(size), cmd.on_device);

	ASSERT_EQ(0, hm_migrate(fd, p, size / 2, ANY_HOST, &m));
	EXPECT_EQ((uint64_t)NR(size / 2), m.moved);
	EXPECT_EQ(-1, mismatch(p, size / 2, 1));
	EXPECT_EQ(NR(size) - NR(size / 2), pages_at(fd, p, size, SEVERAL));
	ASSERT_EQ(0, hm_migrate(fd, p, size, ANY_HOST, &m));
	EXPECT_EQ((uint64_t)NR(size), m.moved + m.already);
	EXPECT_EQ(NR(size), pages_of_kind(fd, p, size, HETMEM_HOST));
	EXPECT_EQ(0, hm_refresh_all(fd, p, &cmd));
	EXPECT_EQ(0, cmd.on_device);
	EXPECT_EQ(-1, mismatch(p, size, 1));

	/* The driver's other device is another owner. */
	close(gpu);
	gpu = gpu_open_2m(1);
	ASSERT_LE(0, gpu);
	ASSERT_EQ(0, to_gpu(gpu, p, page_size(), 1));
	EXPECT_NE(NO_LOC, foreign_at(fd, p));
	EXPECT_NE(SEVERAL, foreign_at(fd, p));
	munmap(p, size);
	close(gpu);
	close(fd);
}

/* An executor can bind SEVERAL. Hints reach it there and by its UUID. */
TEST(several_bound)
{
	const size_t size = (OWNER_POOLS + 1) * GPU_CHUNK;
	const uint8_t uuid[16] = "many pools";
	int gpu = gpu_open_2m(0);
	char *p = map_filled(size, 1);
	struct hetmem_event e;
	struct ring r;

	ASSERT_LE(0, gpu);
	ASSERT_NE(NULL, p);
	ASSERT_LE(0, executor_open(&r, FOREIGN(9), 16));
	ASSERT_EQ(0, to_gpu(gpu, p, size, 1));
	EXPECT_EQ(NR(size), pages_at(r.fd, p, size, SEVERAL));
	ASSERT_EQ(0, hm_bind(r.fd, SEVERAL, HETMEM_BIND_EXECUTOR, uuid));
	EXPECT_EQ(-ETIMEDOUT, hm_hint(r.fd, p, size, SEVERAL, 1, NULL));
	EXPECT_EQ(-ETIMEDOUT, hm_hint_uuid(r.fd, p, size, FOREIGN(0), uuid, 1,
					   NULL));
	EXPECT_EQ(2, ring_count(&r, HETMEM_EVENT_HINT, &e));
	EXPECT_EQ(SEVERAL, e.location);
	munmap(p, size);
	ring_close(&r);
	close(r.fd);
	close(gpu);
}

/* What INFO reports of a pool: seen by address space, names by context. */
TEST(info)
{
	const uint8_t uuid[2][16] = { "the one GPU", "the other GPU" };
	int fd = hm_open(), other = hm_open(), gpu = gpu_open(0);
	struct hetmem_pool_info pool, none = { 0 };
	char *p = map_filled(SIZE, 1);
	struct hetmem_cmd_refresh cmd;
	uint32_t loc;

	ASSERT_LE(0, fd);
	ASSERT_LE(0, other);
	ASSERT_LE(0, gpu);
	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, to_gpu(gpu, p, SIZE, 1));
	loc = foreign_at(fd, p);
	ASSERT_NE(NO_LOC, loc);
	ASSERT_EQ(0, pool_at(fd, loc, &pool));
	EXPECT_EQ(256 * MiB, pool.capacity);
	EXPECT_EQ(0, pool.seen);
	EXPECT_EQ(0, pool.flags);
	EXPECT_EQ(0, memcmp(pool.uuid, none.uuid, 16));
	/* What REFRESH saw in this address space, by any context. */
	ASSERT_EQ(0, hm_track(fd, p, SIZE));
	ASSERT_EQ(0, pool_at(fd, loc, &pool));
	EXPECT_EQ(0, pool.seen);
	EXPECT_EQ(0, hm_refresh_all(fd, p, &cmd));
	ASSERT_EQ(0, pool_at(other, loc, &pool));
	EXPECT_EQ(SIZE, pool.seen);
	EXPECT_EQ(-1, mismatch(p, SIZE / 2, 1));
	ASSERT_EQ(0, pool_at(fd, loc, &pool));
	EXPECT_EQ(SIZE, pool.seen);
	EXPECT_EQ(0, hm_refresh_all(fd, p, &cmd));
	ASSERT_EQ(0, pool_at(fd, loc, &pool));
	EXPECT_EQ(SIZE / 2, pool.seen);
	ASSERT_EQ(0, hm_untrack(fd, p, SIZE));
	ASSERT_EQ(0, pool_at(fd, loc, &pool));
	EXPECT_EQ(0, pool.seen);

	/* One UUID names the pool, two set SEVERAL. Only this context sees them. */
	ASSERT_EQ(0, hm_bind(fd, loc, 0, uuid[0]));
	ASSERT_EQ(0, pool_at(fd, loc, &pool));
	EXPECT_EQ(0, pool.flags);
	EXPECT_EQ(0, memcmp(pool.uuid, uuid[0], 16));
	ASSERT_EQ(0, hm_bind(fd, loc, 0, uuid[1]));
	ASSERT_EQ(0, pool_at(fd, loc, &pool));
	EXPECT_EQ(HETMEM_POOL_SEVERAL, pool.flags);
	EXPECT_TRUE(!memcmp(pool.uuid, uuid[0], 16) ||
		    !memcmp(pool.uuid, uuid[1], 16));
	ASSERT_EQ(0, pool_at(other, loc, &pool));
	EXPECT_EQ(0, pool.flags);
	EXPECT_EQ(0, memcmp(pool.uuid, none.uuid, 16));
	/* Binding the second UUID elsewhere takes it away from here. */
	ASSERT_EQ(0, hm_bind(fd, FOREIGN(12345), 0, uuid[1]));
	ASSERT_EQ(0, pool_at(fd, loc, &pool));
	EXPECT_EQ(0, pool.flags);
	EXPECT_EQ(0, memcmp(pool.uuid, uuid[0], 16));
	munmap(p, SIZE);
	close(gpu);
	close(fd);
	close(other);
}

FIXTURE(driver)
{
	struct module hmm[2];
	struct ring r;		/* of a context that outlives the driver */
	char *p;
};

/* The test_hmm of 6.12 does not free its devices' names when it is unloaded. */
#define KMEMLEAK "/sys/kernel/debug/kmemleak"

FIXTURE_SETUP(driver)
{
	int i;

	if (!access(KMEMLEAK, F_OK))
		SKIP(return, "kernel lacks a test_hmm that frees all it has");
	self->hmm[0].name = "test_hmm";
	self->hmm[1].name = "test_hmm_2m";
	for (i = 0; i < 2; i++)
		module_params(&self->hmm[i]);
	self->p = map_filled(SIZE, 1);
	ASSERT_NE(NULL, self->p);
	ASSERT_LE(0, executor_open(&self->r, FOREIGN(HETMEM_SEVERAL - 1), 64));
	ASSERT_EQ(0, hm_track(self->r.fd, self->p, SIZE));
}

FIXTURE_TEARDOWN(driver)
{
	int i;

	if (!self->p)
		return;
	for (i = 0; i < 2; i++)
		if (!module_loaded(self->hmm[i].name))
			EXPECT_EQ(0, module_load(&self->hmm[i]));
	munmap(self->p, SIZE);
	ring_close(&self->r);
	EXPECT_EQ(0, close(self->r.fd));
}

#define FD	self->r.fd

struct looker {
	int fd;
	char *p;
	int stop;
};

static void *look(void *arg)
{
	struct looker *l = arg;
	struct hetmem_cmd_refresh cmd;

	while (!__atomic_load_n(&l->stop, __ATOMIC_RELAXED)) {
		pages_at(l->fd, l->p, SIZE, NO_LOC);
		hm_refresh(l->fd, l->p, &cmd);
	}
	return NULL;
}

/*
 * A driver has moved pages of a process, whose context has bound its pools and
 * looks at the pages all the time. The driver can be unloaded at once.
 */
TEST_F(driver, unloaded)
{
	struct looker l = { FD, self->p };
	static const int nrs[] = { 0, GPU_COHERENT };
	pthread_t thread;
	uint32_t loc;
	int i, gpu;

	ASSERT_EQ(0, pthread_create(&thread, NULL, look, &l));
	for (i = 0; i < 6; i++) {
		gpu = gpu_open(nrs[i % 2]);
		ASSERT_LE(0, gpu);
		ASSERT_EQ(0, to_gpu(gpu, self->p, SIZE, 1));
		loc = run_at(FD, self->p).location;
		EXPECT_EQ(i % 2 ? HETMEM_COHERENT : HETMEM_FOREIGN,
			  HETMEM_LOC_KIND(loc));
		EXPECT_EQ(0, hm_bind(FD, loc, HETMEM_BIND_EXECUTOR,
				     uuid_of(loc)));
		/* It evicts what it has. */
		close(gpu);
		EXPECT_EQ(0, module_unload_once("test_hmm"));
		EXPECT_EQ(PAGES, pages_of_kind(FD, self->p, SIZE, HETMEM_HOST));
		EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
		ASSERT_EQ(0, module_load(&self->hmm[0]));
	}
	__atomic_store_n(&l.stop, 1, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
}

/*
 * Drivers are loaded again and again. Each is known from its first migration on
 * and inherits nothing: no number, no UUID, no executor.
 */
TEST_F(driver, reloaded)
{
	enum { ROUNDS = 20 };
	const uint8_t uuid[16] = "one GPU", none[16] = "";
	struct hetmem_pool_info pool;
	struct hetmem_cmd_migrate m;
	uint32_t loc[ROUNDS];
	int i, k, gpu, several = 0;

	for (i = 0; i < ROUNDS; i++) {
		gpu = i % 3 == 2 ? gpu_open_2m(i % 2) : gpu_open(i % 2);
		ASSERT_LE(0, gpu);
		fill(self->p, SIZE, i);
		ASSERT_EQ(0, to_gpu(gpu, self->p, SIZE, i));
		loc[i] = foreign_at(FD, self->p);
		EXPECT_NE(NO_LOC, loc[i]);
		EXPECT_EQ(PAGES, pages_at(FD, self->p, SIZE, loc[i]));
		several += loc[i] == SEVERAL;
		for (k = 0; k < i; k++)
			EXPECT_NE(loc[i], loc[k]) {
				TH_LOG("round %d has what round %d had", i, k);
			}
		/* It has no UUID and no executor. */
		EXPECT_EQ(0, pool_at(FD, loc[i], &pool));
		EXPECT_EQ(0, pool.flags);
		EXPECT_EQ(0, memcmp(pool.uuid, none, 16));
		EXPECT_EQ(0, pool.seen);
		EXPECT_EQ(-ENXIO, hm_hint(FD, self->p, SIZE, loc[i], 1, NULL));
		ASSERT_EQ(0, hm_bind(FD, loc[i], HETMEM_BIND_EXECUTOR, uuid));
		EXPECT_EQ(-ETIMEDOUT, hm_hint(FD, self->p, SIZE, loc[i], 1,
					      NULL));

		ASSERT_EQ(0, hm_migrate(FD, self->p, SIZE / 2, ANY_HOST, &m));
		EXPECT_EQ(PAGES / 2, (long)m.moved);
		EXPECT_EQ(-1, mismatch(self->p, SIZE / 2, i));
		close(gpu);
		for (k = 0; k < 2; k++)
			ASSERT_EQ(0, module_unload_once(self->hmm[k].name));
		/* The order of loading alternates, and with it the addresses. */
		for (k = 0; k < 2; k++)
			ASSERT_EQ(0, module_load(&self->hmm[(i + k) % 2]));
		EXPECT_EQ(PAGES, pages_of_kind(FD, self->p, SIZE, HETMEM_HOST));
		EXPECT_EQ(-1, mismatch(self->p, SIZE, i));
	}
	EXPECT_EQ(0, several);
	EXPECT_EQ(ROUNDS, (int)ring_count(&self->r, HETMEM_EVENT_HINT, NULL));
}

TEST_HARNESS_MAIN
