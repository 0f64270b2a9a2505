// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Readers of the event ring that are hostile, slow, killed or forked: they can
 * neither block nor harm whoever adds events, nor anybody else.
 */
#include "libktest/harness.h"
#include "libktest/emu.h"
#include "libktest/ring.h"

#include <pthread.h>
#include <sys/param.h>
#include <sys/resource.h>

#define PAGES	64
#define SIZE	(PAGES * page_size())
#define ENTRIES	64

FIXTURE(reader)
{
	int fd;
	char *p;
	struct ring r;
};

FIXTURE_SETUP(reader)
{
	self->fd = hm_open_flags(0);
	ASSERT_GE(self->fd, 0);
	self->p = map_filled(SIZE, 1);
	ASSERT_NE(NULL, self->p);
	/* What is told of is what the tests do, and nothing else. */
	ASSERT_EQ(0, no_numa_balancing(self->p, SIZE));
	ASSERT_EQ(0, hm_track(self->fd, self->p, SIZE));
}

FIXTURE_TEARDOWN(reader)
{
	munmap(self->p, SIZE);
	EXPECT_EQ(0, close(self->fd));
}

#define PAGE(n)		(self->p + (n) * page_size())
#define OPEN_RING(events)						\
	ASSERT_EQ(0, ring_open(self->fd, ENTRIES, events, &self->r))

/*
 * Rubbish in everything that the reader can write. The kernel goes on adding
 * where it was, within the array, and nobody else's memory changes.
 */
TEST_F(reader, hostile_tail)
{
	static const int64_t ahead[] = {
		1, 2, ENTRIES, 1000, -1, -1000, 1LL << 32, -(1LL << 32),
		INT64_MAX, INT64_MIN,
	};
	uint64_t dropped, added, used;
	struct hetmem_event e;
	size_t i;
	int j;

	OPEN_RING(EVENT(INVALIDATED));
	for (i = 0; i < ARRAY_SIZE(ahead); i++) {
		uint64_t head = self->r.h->head;

		/* What is to be read, as it says: at most all that there is. */
		used = -ahead[i];
		added = used < ENTRIES ? MIN(3, ENTRIES - used) : 0;
		dropped = self->r.h->dropped[HETMEM_EVENT_INVALIDATED];
		__atomic_store_n(&self->r.h->tail, head + ahead[i],
				 __ATOMIC_RELEASE);
		EXPECT_EQ(POLLIN, poll_one(self->fd, 0));
		for (j = 0; j < 3; j++)
			ASSERT_EQ(0, invalidate(PAGE(j)));
		EXPECT_EQ(head + added, self->r.h->head);
		EXPECT_EQ(dropped + 3 - added,
			  self->r.h->dropped[HETMEM_EVENT_INVALIDATED]);
		/* Who mends its ways is served again. */
		self->r.tail = self->r.h->head;
		self->r.h->tail = self->r.tail;
		ASSERT_EQ(0, invalidate(PAGE(7)));
		ASSERT_TRUE(ring_next(&self->r, &e));
		EXPECT_EQ((uintptr_t)PAGE(7), e.start);
		EXPECT_FALSE(ring_next(&self->r, &e));
	}
	ring_close(&self->r);
}

TEST_F(reader, hostile_header)
{
	uint64_t head;
	int i;

	OPEN_RING(EVENT(INVALIDATED));
	ASSERT_EQ(0, invalidate(PAGE(0)));
	head = self->r.h->head;
	memset(self->r.h, 0, page_size());
	for (i = 0; i < 10; i++)
		ASSERT_EQ(0, invalidate(PAGE(i)));
	/* Published again from the kernel's own. */
	EXPECT_EQ(head + 10, self->r.h->head);
	memset(self->r.h, 0xff, page_size());
	for (i = 0; i < 2 * ENTRIES; i++)
		ASSERT_EQ(0, invalidate(PAGE(i % PAGES)));
	memset(self->r.h, 0, page_size());
	self->r.h->nr_entries = ENTRIES;
	self->r.h->entry_size = sizeof(struct hetmem_event);
	self->r.h->data_offset = page_size();
	for (i = 0; i < 2 * ENTRIES; i++)
		ASSERT_EQ(0, invalidate(PAGE(i % PAGES)));
	/* The counter of what was lost is the kernel's own as well. */
	EXPECT_LE(ENTRIES, self->r.h->dropped[HETMEM_EVENT_INVALIDATED]);
	EXPECT_GE(4 * ENTRIES + 11, self->r.h->dropped[HETMEM_EVENT_INVALIDATED] +
		  self->r.h->head);
	ring_close(&self->r);
}

struct vandal {
	pthread_t thread;
	volatile bool stop;
	struct ring *r;
	unsigned int seed;
	int fd;
};

static void *vandalize(void *arg)
{
	struct vandal *v = arg;
	unsigned char *at = (void *)v->r->h;
	unsigned int x = v->seed;
	size_t i;

	while (!v->stop) {
		for (i = 0; i < v->r->size / 8; i++) {
			x = x * 1103515245 + 12345;
			((volatile uint64_t *)at)[i] =
				(uint64_t)x << 32 | (x >> 3);
		}
		v->r->h->tail = x & 0x10000 ? 0 : x;
		poll_one(v->fd, 0);
		memset(at, x, v->r->size);
	}
	return NULL;
}

/* Two threads scribble over all of it while events come from two others. */
TEST_F(reader, hostile_all)
{
	struct vandal v[2];
	int i;

	OPEN_RING(ALL_EVENTS);
	for (i = 0; i < 2; i++) {
		v[i] = (struct vandal){
			.r = &self->r, .seed = 7 + i, .fd = self->fd,
		};
		ASSERT_EQ(0, pthread_create(&v[i].thread, NULL, vandalize,
					    &v[i]));
	}
	for (i = 0; i < test_rounds(2000); i++)
		if (invalidate(PAGE(i % PAGES)))
			break;
	EXPECT_EQ(test_rounds(2000), i);
	for (i = 0; i < 2; i++) {
		v[i].stop = true;
		pthread_join(v[i].thread, NULL);
	}
	EXPECT_EQ(1, hm_notified(self->fd, self->p, HETMEM_CHANGE_REPLACE) >=
		  test_rounds(2000));
	ring_close(&self->r);
	/* The context is none the worse. */
	EXPECT_EQ(0, hm_untrack(self->fd, self->p, SIZE));
}

/* Several threads make events while one reads: none is lost or twice. */
struct producer {
	pthread_t thread;
	char *page;
	int rounds;
	int failed;
};

static void *produce(void *arg)
{
	struct producer *p = arg;
	int i;

	for (i = 0; i < p->rounds; i++)
		p->failed |= invalidate(p->page);
	return NULL;
}

TEST_F(reader, producers)
{
	const int rounds = test_rounds(1000);
	uint64_t seen[4] = { 0 }, dropped, last = 0, total = 0;
	struct producer p[4];
	struct hetmem_event e;
	bool ended = false;
	int i, idle = 0;

	OPEN_RING(EVENT(INVALIDATED));
	for (i = 0; i < 4; i++) {
		p[i] = (struct producer){ .page = PAGE(i), .rounds = rounds };
		ASSERT_EQ(0, pthread_create(&p[i].thread, NULL, produce,
					    &p[i]));
	}
	do {
		ended = total + (dropped = __atomic_load_n(
			&self->r.h->dropped[HETMEM_EVENT_INVALIDATED],
			__ATOMIC_RELAXED)) >= 4ULL * rounds;
		while (ring_next(&self->r, &e)) {
			i = (e.start - (uintptr_t)self->p) / page_size();
			ASSERT_LT(i, 4);
			EXPECT_EQ(HETMEM_EVENT_INVALIDATED, e.type);
			EXPECT_EQ(HETMEM_CHANGE_REPLACE, e.cause);
			EXPECT_LE(last, e.time);
			last = e.time;
			seen[i]++;
			total++;
			idle = 0;
		}
		if (!ended)
			poll_one(self->fd, 10);
	} while (!ended && ++idle < 3000);
	for (i = 0; i < 4; i++) {
		pthread_join(p[i].thread, NULL);
		EXPECT_EQ(0, p[i].failed);
		EXPECT_LE(seen[i], rounds);
	}
	EXPECT_EQ(4ULL * rounds, total +
		  self->r.h->dropped[HETMEM_EVENT_INVALIDATED]);
	ring_close(&self->r);
}

/* A reader that is killed in the midst of everything takes all along. */
TEST_F(reader, reader_killed)
{
	int i;

	for (i = 0; i < test_rounds(16); i++) {
		struct turns t;
		pid_t pid;

		ASSERT_EQ(0, turns_init(&t));
		pid = fork();
		ASSERT_GE(pid, 0);
		if (!pid) {
			int fd = hm_open(), n;
			struct producer pr = {
				.page = PAGE(0), .rounds = 1 << 30,
			};
			struct ring r;

			turns_in_child(&t);
			CHILD_CHECK(fd >= 0);
			CHILD_CHECK(!ring_open(fd, 16, ALL_EVENTS, &r));
			CHILD_CHECK(!hm_track(fd, self->p, SIZE));
			CHILD_CHECK(!pthread_create(&pr.thread, NULL, produce,
						    &pr));
			turn_pass(t.to_parent[1]);
			for (n = 0; ; n++) {
				ring_drain(&r);
				poll_one(fd, 1);
			}
		}
		turns_in_parent(&t);
		EXPECT_TRUE(turn_wait(t.to_parent[0]));
		/* time: the moment varies, and each is right */
		usleep(i * 200);
		kill(pid, SIGKILL);
		EXPECT_EQ(128 + SIGKILL, child_status(pid));
		close(t.to_child[1]);
		close(t.to_parent[0]);
	}
}

/* A child has neither the mapping nor a way to get it. */
TEST_F(reader, not_inherited)
{
	pid_t pid;

	OPEN_RING(ALL_EVENTS);
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		struct ring r = { .size = self->r.size };
		unsigned char vec;
		struct rlimit none = { 0, 0 };

		CHILD_CHECK(mincore(self->r.h, page_size(), &vec) < 0 &&
			    errno == ENOMEM);
		CHILD_CHECK(ring_map(self->fd, &r) == -EPERM);
		CHILD_CHECK(ring_make(self->fd, 16, 1, NULL) == -EPERM);
		setrlimit(RLIMIT_CORE, &none);
		__atomic_store_n(&self->r.h->tail, 5, __ATOMIC_RELAXED);
		_exit(0);
	}
	EXPECT_EQ(128 + SIGSEGV, child_status(pid));
	EXPECT_EQ(0, self->r.h->tail);
	/* fork() itself was told of. */
	EXPECT_EQ(POLLIN, poll_one(self->fd, 0));
	ring_close(&self->r);
}

/* The owner ends while somebody else holds the file: no harm in asking. */
TEST_F(reader, owner_gone)
{
	struct turns t;
	pid_t pid;
	int fd;

	ASSERT_EQ(0, turns_init(&t));
	/* Two processes that share descriptors but no memory. */
	pid = syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
	ASSERT_GE(pid, 0);
	if (!pid) {
		int own = hm_open_flags(0);
		struct ring r;

		CHILD_CHECK(own >= 0);
		CHILD_CHECK(!hm_track(own, self->p, SIZE));
		CHILD_CHECK(!ring_open(own, 16, ALL_EVENTS, &r));
		CHILD_CHECK(!invalidate(PAGE(0)));
		CHILD_CHECK(write(t.to_parent[1], &own, sizeof(own)) ==
			    sizeof(own));
		_exit(0);
	}
	ASSERT_EQ(sizeof(fd), read(t.to_parent[0], &fd, sizeof(fd)));
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(POLLIN, poll_one(fd, 0));
	EXPECT_EQ(-EPERM, ring_map(fd, &(struct ring){ .size = 8192 }));
	EXPECT_EQ(0, close(fd));
}

TEST_HARNESS_MAIN
