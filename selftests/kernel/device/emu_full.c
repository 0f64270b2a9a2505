// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A device that is full: what comes in pushes out what came in first, for
 * whomever, from several processes and threads at once, and no byte is lost.
 *
 * Sizes follow the device's capacity; a small one (8 MiB) makes the tests
 * quick.
 */
#include "libktest/harness.h"
#include "libktest/emu.h"

#include <pthread.h>

FIXTURE(full)
{
	struct rig rig;
	struct emu *dev;
	int hm;
	size_t cap;
};

FIXTURE_SETUP(full)
{
	ASSERT_EQ(0, rig_init(&self->rig));
	self->dev = self->rig.dev;
	self->hm = self->rig.fd;
	self->cap = self->dev->capacity;
	/* Otherwise this is a test of patience. */
	ASSERT_LE(self->cap, 64 * MiB);
}

FIXTURE_TEARDOWN(full)
{
	EXPECT_EQ(0, rig_exit(&self->rig));
}

#define ON_DEVICE(p, size) pages_at(self->hm, p, size, self->dev->loc)

/*
 * In pieces of a MiB and not in one call: MIGRATE may evict what an earlier
 * part of the same call brought, which is right, but not what it brings.
 */
static int move_in_order(int hm, const struct emu *dev, char *p, size_t size)
{
	size_t at = 0;
	int again = 0;

	while (at < size) {
		long there = to_device(hm, dev, p + at, MiB);

		if (there < 0)
			return there;
		if (there == NR(MiB)) {
			at += MiB;
			continue;
		}
		/* A page that was just locked may wait in another CPU's batch. */
		if (again++ == 10 ||
		    write_text("/proc/sys/vm/drop_caches", "1"))
			return -EAGAIN;
	}
	return 0;
}

/* Twice what it can hold: the newest stays, the oldest goes home. */
TEST_F(full, oversubscribed)
{
	size_t size = 2 * self->cap;
	char *p = map_filled(size, 1);
	struct hetmem_emu_cmd_info before, after;
	struct hetmem_cmd_stats st;

	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, hm_track(self->hm, p, size));
	ASSERT_EQ(0, emu_info(self->dev->fd, &before));
	ASSERT_EQ(0, move_in_order(self->hm, self->dev, p, size));
	ASSERT_EQ(0, emu_info(self->dev->fd, &after));
	EXPECT_LE(after.used, after.capacity);
	EXPECT_LE(NR(self->cap), (long)(after.evicted - before.evicted));
	EXPECT_EQ(NR(size), (long)(after.to_device - before.to_device));
	EXPECT_EQ((long)after.used, ON_DEVICE(p, size));
	/* The last half is there but for little; the first quarter is not. */
	EXPECT_LE(NR(self->cap) * 7 / 8, ON_DEVICE(p + self->cap, self->cap));
	EXPECT_EQ(0, ON_DEVICE(p, self->cap / 2));
	EXPECT_EQ(NR(MiB), ON_DEVICE(p + size - MiB, MiB));
	ASSERT_EQ(0, hm_stats(self->hm, p, &st));
	EXPECT_EQ(NR(size), (long)st.to_device);
	EXPECT_EQ((long)(after.evicted - before.evicted), (long)st.to_host);
	EXPECT_EQ(-1, mismatch(p, size, 1));
	munmap(p, size);
}

/* The same asked for in one call: it ends, and what it says is so. */
TEST_F(full, oversubscribed_at_once)
{
	size_t size = 2 * self->cap;
	char *p = map_filled(size, 2);
	struct hetmem_cmd_migrate cmd;

	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, hm_migrate(self->hm, p, size, self->dev->loc, &cmd));
	EXPECT_LE(NR(size) * 7 / 8, (long)cmd.moved);
	EXPECT_EQ(0, cmd.already);
	EXPECT_LE(NR(self->cap) * 7 / 8, ON_DEVICE(p, size));
	EXPECT_LE(NR(MiB) * 7 / 8, ON_DEVICE(p + size - MiB, MiB));
	EXPECT_EQ(-1, mismatch(p, size, 2));
	munmap(p, size);
}

/* The device's own faults make room as well. */
TEST_F(full, device_faults)
{
	size_t size = 2 * self->cap;
	char *p = map_filled(size, 3);
	struct hetmem_emu_cmd_access cmd;

	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, emu_access(self->dev, HETMEM_EMU_ADD, HETMEM_EMU_MIGRATE,
				p, size, NULL, 5, &cmd));
	EXPECT_LT(0, cmd.faults);
	EXPECT_LE(NR(self->cap) * 7 / 8, ON_DEVICE(p, size));
	ASSERT_EQ(0, emu_access(self->dev, HETMEM_EMU_ADD, HETMEM_EMU_MIGRATE,
				p, size, NULL, -5ULL, NULL));
	EXPECT_EQ(-1, mismatch(p, size, 3));
	munmap(p, size);
}

/* EVICT takes the least recently migrated, and as many as asked. */
TEST_F(full, evict_in_order)
{
	size_t part = 64 * page_size();
	char *p = map_filled(4 * part, 4);
	static const int order[] = { 2, 0, 3, 1 };
	uint64_t evicted;
	int i, j;

	ASSERT_NE(NULL, p);
	for (i = 0; i < 4; i++)
		ASSERT_EQ(64, to_device(self->hm, self->dev,
					p + order[i] * part, part));
	ASSERT_EQ(0, emu_evict(self->dev, 0, &evicted));
	EXPECT_EQ(0, evicted);
	EXPECT_EQ(256, ON_DEVICE(p, 4 * part));
	for (i = 0; i < 4; i++) {
		ASSERT_EQ(0, emu_evict(self->dev, 64, &evicted));
		EXPECT_EQ(64, evicted);
		for (j = 0; j < 4; j++) {
			EXPECT_EQ(j <= i ? 0 : 64,
				  ON_DEVICE(p + order[j] * part, part));
		}
	}
	/* Nothing left to evict is no error. */
	ASSERT_EQ(0, emu_evict(self->dev, 64, &evicted));
	EXPECT_EQ(0, evicted);
	ASSERT_EQ(0, emu_evict(self->dev, ~0ULL, &evicted));
	EXPECT_EQ(-1, mismatch(p, 4 * part, 4));
	munmap(p, 4 * part);
}

/* Brought again is recent again. */
TEST_F(full, order_is_of_the_last_arrival)
{
	size_t part = 64 * page_size();
	char *p = map_filled(2 * part, 5);
	uint64_t evicted;

	ASSERT_NE(NULL, p);
	ASSERT_EQ(64, to_device(self->hm, self->dev, p, part));
	ASSERT_EQ(64, to_device(self->hm, self->dev, p + part, part));
	ASSERT_EQ(64, to_host(self->hm, p, part));
	ASSERT_EQ(64, to_device(self->hm, self->dev, p, part));
	ASSERT_EQ(0, emu_evict(self->dev, 64, &evicted));
	EXPECT_EQ(64, ON_DEVICE(p, part));
	EXPECT_EQ(0, ON_DEVICE(p + part, part));
	EXPECT_EQ(-1, mismatch(p, 2 * part, 5));
	munmap(p, 2 * part);
}

/* To the kernel pages that are read twice are active ones. */
static void make_active(char *p, size_t size)
{
	struct iovec to, from = { p, size };
	int i;

	to.iov_len = size;
	to.iov_base = malloc(size);
	for (i = 0; i < 4 && to.iov_base; i++)
		process_vm_readv(getpid(), &to, 1, &from, 1, 0);
	free(to.iov_base);
}

/* A process that has @p, which it inherits, locked until it is told. */
static pid_t lock_too(char *p, size_t size, struct turns *t)
{
	pid_t pid;

	if (turns_init(t))
		return -1;
	pid = fork();
	if (!pid) {
		turns_in_child(t);
		CHILD_CHECK(!mlock2(p, size, MLOCK_ONFAULT));
		turn_pass(t->to_parent[1]);
		turn_wait(t->to_child[0]);
		_exit(0);
	}
	turns_in_parent(t);
	return pid > 0 && turn_wait(t->to_parent[0]) ? pid : -1;
}

/*
 * What a device page was to one process it must not be to the next one: active
 * once, and then, where two processes have it locked, unevictable.
 */
TEST_F(full, no_page_remembers)
{
	struct turns t;
	pid_t pid;
	char *p;
	int i;

	for (i = 0; i < 2; i++) {
		p = map_filled(self->cap, i);
		ASSERT_NE(NULL, p);
		if (!i) {
			make_active(p, self->cap);
			EXPECT_EQ(0, move_in_order(self->hm, self->dev, p,
						   self->cap));
			/* Freed where they are. */
			ASSERT_EQ(0, munmap(p, self->cap));
			continue;
		}
		EXPECT_EQ(0, mlock(p, self->cap));
		pid = lock_too(p, self->cap, &t);
		ASSERT_LT(0, pid);
		EXPECT_EQ(0, move_in_order(self->hm, self->dev, p, self->cap));
		EXPECT_EQ(-1, mismatch(p, self->cap, i));
		turn_pass(t.to_child[1]);
		EXPECT_EQ(0, child_status(pid));
		ASSERT_EQ(0, munmap(p, self->cap));
	}
}

TEST_F(full, evict_is_for_administrators)
{
	size_t size = 16 * page_size();
	char *p = map_filled(size, 6);
	pid_t pid;

	ASSERT_NE(NULL, p);
	ASSERT_EQ(16, to_device(self->hm, self->dev, p, size));
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		struct hetmem_emu_cmd_evict cmd = {
			.size = sizeof(cmd), .flags = 1,
		};
		struct emu own;

		CHILD_CHECK(!emu_open(&own, 0));
		CHILD_CHECK(hm_ioctl(own.fd, HETMEM_EMU_IOC_EVICT, &cmd) ==
			    -EINVAL);
		/* Opened by who may, used by who may not. */
		CHILD_CHECK(!become_nobody());
		CHILD_CHECK(emu_evict(&own, 16, NULL) == -EPERM);
		CHILD_CHECK(emu_evict(&own, 0, NULL) == -EPERM);
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(16, ON_DEVICE(p, size));
	munmap(p, size);
}

/* In a child: @rounds times all of its own memory to the device. */
static void fill_device(uint64_t seed, size_t size, int rounds)
{
	char *p = map_filled(size, seed);
	int hm = hm_open(), i;
	struct emu own;

	CHILD_CHECK(hm >= 0 && p && !emu_open(&own, 0));
	for (i = 0; i < rounds; i++) {
		struct hetmem_cmd_migrate cmd;
		int ret = hm_migrate(hm, p, size, own.loc, &cmd);

		CHILD_CHECK(!ret);
		CHILD_CHECK(mismatch(p, size / 4, seed) < 0);
		ret = emu_access(&own, HETMEM_EMU_ADD, HETMEM_EMU_MIGRATE,
				 p + size / 2, size / 4, NULL, 1, NULL);
		/* Full, and the other process is faster: documented. */
		CHILD_CHECK(!ret || ret == -EBUSY);
		if (ret)
			fill(p, size, seed);
		else
			CHILD_CHECK(!emu_access(&own, HETMEM_EMU_ADD, 0,
						p + size / 2, size / 4, NULL,
						-1ULL, NULL));
	}
	CHILD_CHECK(mismatch(p, size, seed) < 0);
	_exit(0);
}

/* Each wants all of it; both get through, and neither sees the other's. */
TEST_F(full, two_processes)
{
	pid_t pid[2];
	int i;

	for (i = 0; i < 2; i++) {
		pid[i] = fork();
		ASSERT_GE(pid[i], 0);
		if (!pid[i])
			fill_device(10 + i, self->cap, test_rounds(8));
	}
	for (i = 0; i < 2; i++)
		EXPECT_EQ(0, child_status(pid[i]));
}

struct toucher {
	pthread_t thread;
	volatile bool *stop;
	char *p;
	size_t size;
	long bad;
};

/* The CPU goes through the memory, reading or adding and taking back. */
static void *touch(void *arg)
{
	struct toucher *t = arg;
	size_t at;

	while (!*t->stop) {
		for (at = 0; at < t->size && !*t->stop; at += page_size()) {
			volatile uint64_t *w = (void *)(t->p + at);

			__atomic_fetch_add(w, 3, __ATOMIC_SEQ_CST);
			t->bad += mismatch_at(t->p + at + 8, 64, 7, at + 8) >=
				  0;
			__atomic_fetch_add(w, -3, __ATOMIC_SEQ_CST);
		}
	}
	return NULL;
}

/*
 * The most migrations that a MIGRATE of @size bytes begins: a full device has each
 * block begun anew, up to eight of them more often, each time in three forms.
 */
static uint64_t most_rounds(size_t size)
{
	return 3 * (2 * (size / HUGE_SIZE + 1) + 8);
}

/* What one CPU fault begins at most, as the interface says. */
#define FAULT_ROUNDS	8

/*
 * Few rounds: the kernel flushes the TLBs for each page of a process that runs on
 * several CPUs, and one that waits for a processor of the host holds up each flush.
 */
TEST_F(full, cpu_faults_meanwhile)
{
	size_t size = self->cap + self->cap / 4;
	struct hetmem_emu_cmd_info before, after;
	char *p = map_filled(size, 7);
	struct hetmem_cmd_migrate cmd;
	volatile bool stop = false;
	const struct emu *dev;
	struct toucher t[2];
	int i;

	ASSERT_NE(NULL, p);
	for (i = 0; i < 2; i++) {
		t[i] = (struct toucher){
			.stop = &stop,
			.p = p, .size = size,
		};
		ASSERT_EQ(0, pthread_create(&t[i].thread, NULL, touch, &t[i]));
	}
	for (i = 0; i < 2; i++) {
		dev = &self->rig.dev[i];
		ASSERT_EQ(0, emu_info(dev->fd, &before));
		EXPECT_EQ(0, hm_migrate(self->hm, p, size, dev->loc, &cmd));
		ASSERT_EQ(0, emu_info(dev->fd, &after));
		EXPECT_LT(0, after.to_device_rounds - before.to_device_rounds);
		EXPECT_LE(after.to_device_rounds - before.to_device_rounds,
			  most_rounds(size));
		EXPECT_LE(after.cpu_fault_rounds - before.cpu_fault_rounds,
			  FAULT_ROUNDS * (after.cpu_faults - before.cpu_faults));
	}
	stop = true;
	for (i = 0; i < 2; i++) {
		pthread_join(t[i].thread, NULL);
		EXPECT_EQ(0, t[i].bad);
	}
	EXPECT_EQ(-1, mismatch(p, size, 7));
	munmap(p, size);
}

struct crowd {
	pthread_barrier_t start, end;
	uint64_t *word;
	int rounds;
};

static void *crowd_touch(void *arg)
{
	struct crowd *c = arg;
	int i;

	for (i = 0; i < c->rounds; i++) {
		pthread_barrier_wait(&c->start);
		__atomic_fetch_add(c->word, 1, __ATOMIC_SEQ_CST);
		pthread_barrier_wait(&c->end);
	}
	return NULL;
}

/* Threads on all CPUs touch one page of the device at once: each time it comes. */
TEST_F(full, one_page_for_all)
{
	enum { THREADS = 4, ROUNDS = 50 };
	struct hetmem_emu_cmd_info before, after;
	struct crowd c = { .rounds = ROUNDS };
	pthread_t thread[THREADS];
	char *p = map_filled(page_size(), 1);
	int i;

	ASSERT_NE(NULL, p);
	c.word = (uint64_t *)p;
	*c.word = 0;
	ASSERT_EQ(0, pthread_barrier_init(&c.start, NULL, THREADS + 1));
	ASSERT_EQ(0, pthread_barrier_init(&c.end, NULL, THREADS + 1));
	ASSERT_EQ(0, emu_info(self->dev->fd, &before));
	for (i = 0; i < THREADS; i++)
		ASSERT_EQ(0, pthread_create(&thread[i], NULL, crowd_touch, &c));
	for (i = 0; i < ROUNDS; i++) {
		EXPECT_EQ(1, to_device(self->hm, self->dev, p, page_size()));
		pthread_barrier_wait(&c.start);
		pthread_barrier_wait(&c.end);
		EXPECT_EQ((uint64_t)(i + 1) * THREADS, *c.word);
	}
	for (i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	ASSERT_EQ(0, emu_info(self->dev->fd, &after));
	EXPECT_LE(ROUNDS, after.cpu_faults - before.cpu_faults);
	EXPECT_LE(after.cpu_fault_rounds - before.cpu_fault_rounds,
		  FAULT_ROUNDS * (after.cpu_faults - before.cpu_faults));
	TH_LOG("%llu faults in %llu rounds, %llu left it to another CPU",
	       after.cpu_faults - before.cpu_faults,
	       after.cpu_fault_rounds - before.cpu_fault_rounds,
	       after.cpu_faults_yielded - before.cpu_faults_yielded);
	munmap(p, page_size());
}

/* EVICT and MIGRATE fight over the same pages. */
struct evicter {
	pthread_t thread;
	volatile bool *stop;
	const struct emu *dev;
	int ret;
};

static void *evict_all(void *arg)
{
	struct evicter *e = arg;

	while (!*e->stop && !e->ret)
		e->ret = emu_evict(e->dev, 300, NULL);
	return NULL;
}

TEST_F(full, evicted_meanwhile)
{
	size_t size = self->cap / 2;
	char *p = map_filled(size, 8);
	struct hetmem_cmd_migrate cmd;
	volatile bool stop = false;
	struct evicter e = { .stop = &stop, .dev = self->dev };
	int i;

	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, pthread_create(&e.thread, NULL, evict_all, &e));
	for (i = 0; i < test_rounds(24); i++) {
		EXPECT_EQ(0, hm_migrate(self->hm, p, size, self->dev->loc,
					&cmd));
		EXPECT_EQ(0, hm_migrate(self->hm, p + size / 4, size / 4,
					ANY_HOST, &cmd));
		EXPECT_EQ(0, munmap(p + size - 8 * page_size(),
				    8 * page_size()));
		ASSERT_NE(MAP_FAILED,
			  mmap(p + size - 8 * page_size(), 8 * page_size(),
			       PROT_READ | PROT_WRITE, MAP_PRIVATE |
			       MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	}
	stop = true;
	pthread_join(e.thread, NULL);
	EXPECT_EQ(0, e.ret);
	EXPECT_EQ(-1, mismatch(p, size - 8 * page_size(), 8));
	munmap(p, size);
}

/* A child inherits a full device, and both go on pushing. */
TEST_F(full, fork_while_full)
{
	size_t size = self->cap;
	char *p = map_filled(size, 9);
	struct hetmem_cmd_migrate cmd;
	pid_t pid;

	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, hm_migrate(self->hm, p, size, self->dev->loc, &cmd));
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		struct emu own;
		int hm = hm_open();

		CHILD_CHECK(hm >= 0 && !emu_open(&own, 0));
		CHILD_CHECK(mismatch(p, size / 2, 9) < 0);
		fill(p, size, 10);
		CHILD_CHECK(!hm_migrate(hm, p, size, own.loc, &cmd));
		CHILD_CHECK(mismatch(p, size, 10) < 0);
		_exit(0);
	}
	EXPECT_EQ(0, hm_migrate(self->hm, p, size, self->dev->loc, &cmd));
	EXPECT_EQ(-1, mismatch(p, size / 2, 9));
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(-1, mismatch(p, size, 9));
	munmap(p, size);
}

/* Killed in the middle of filling it: the device is empty afterwards. */
TEST_F(full, killed_while_filling)
{
	int round;

	for (round = 0; round < test_rounds(16); round++) {
		struct turns t;
		pid_t pid;

		ASSERT_EQ(0, turns_init(&t));
		pid = fork();
		ASSERT_GE(pid, 0);
		if (!pid) {
			char *p = map_filled(self->cap, round);
			struct hetmem_cmd_migrate cmd;
			int hm = hm_open();

			CHILD_CHECK(hm >= 0 && p);
			turn_pass(t.to_parent[1]);
			for (;;) {
				CHILD_CHECK(!hm_migrate(hm, p, self->cap,
							self->dev->loc,
							&cmd));
				CHILD_CHECK(!hm_migrate(hm, p, self->cap,
							ANY_HOST, &cmd));
			}
		}
		turns_in_parent(&t);
		EXPECT_TRUE(turn_wait(t.to_parent[0]));
		/* time: the moment varies, and each is right */
		usleep(3000 * (round % 8));
		EXPECT_EQ(0, kill(pid, SIGKILL));
		EXPECT_EQ(128 + SIGKILL, child_status(pid));
		close(t.to_child[1]);
		close(t.to_parent[0]);
	}
}

TEST_HARNESS_MAIN
