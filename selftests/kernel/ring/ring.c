// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The event ring: how it is made and mapped, what is told in which order, what
 * is lost when nobody reads, and how a reader is woken.
 */
#include "libktest/harness.h"
#include "libktest/emu.h"
#include "libktest/ring.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/personality.h>

#define PAGES	64
#define SIZE	(PAGES * page_size())
#define ENTRIES	64

FIXTURE(ring)
{
	int fd;
	char *p;
	struct ring r;
};

FIXTURE_SETUP(ring)
{
	self->fd = hm_open_flags(0);
	ASSERT_GE(self->fd, 0);
	self->p = map_filled(SIZE, 1);
	ASSERT_NE(NULL, self->p);
	ASSERT_EQ(0, hm_track(self->fd, self->p, SIZE));
}

FIXTURE_TEARDOWN(ring)
{
	munmap(self->p, SIZE);
	EXPECT_EQ(0, close(self->fd));
}

#define PAGE(n)		(self->p + (n) * page_size())
#define OPEN_RING(events)						\
	ASSERT_EQ(0, ring_open(self->fd, ENTRIES, events, &self->r))

TEST_F(ring, sizes)
{
	static const uint32_t wrong[] = {
		0, 1, 8, 15, 17, 48, 65, 65535, 65537, 131072, 1U << 31,
		0xffffffff,
	};
	size_t i, size = 0;

	for (i = 0; i < ARRAY_SIZE(wrong); i++) {
		EXPECT_EQ(-EINVAL, ring_make(self->fd, wrong[i], ALL_EVENTS,
					     NULL)) {
			TH_LOG("%u entries", wrong[i]);
		}
	}
	for (i = HETMEM_RING_MIN; i <= HETMEM_RING_MAX; i *= 2) {
		int fd = hm_open();
		struct ring r;

		ASSERT_GE(fd, 0);
		ASSERT_EQ(0, ring_open(fd, i, ALL_EVENTS, &r));
		EXPECT_LT(size, r.size + 1);
		EXPECT_EQ(0, r.size % page_size());
		EXPECT_EQ(HETMEM_RING_VERSION, r.h->version);
		EXPECT_EQ(i, r.h->nr_entries);
		EXPECT_EQ(sizeof(struct hetmem_event), r.h->entry_size);
		EXPECT_LE(r.h->data_offset + i * r.h->entry_size, r.size);
		EXPECT_LE(sizeof(*r.h), r.h->data_offset);
		EXPECT_EQ(0, r.h->head);
		EXPECT_EQ(0, r.h->tail);
		/* Nothing of whose pages these were. */
		EXPECT_TRUE(all_zero(ring_entry(&r, 0), i * r.h->entry_size));
		size = r.size;
		ring_close(&r);
		close(fd);
	}
}

TEST_F(ring, wrong_arguments)
{
	struct hetmem_cmd_ring cmd = {
		.size = sizeof(cmd), .nr_entries = 16,
	};

	EXPECT_EQ(-EINVAL, hm_ioctl(self->fd, HETMEM_IOC_RING, &cmd));
	EXPECT_EQ(-EINVAL, ring_make(self->fd, 16, ALL_EVENTS + 1, NULL));
	EXPECT_EQ(-EINVAL, ring_make(self->fd, 16, 1ULL << 63, NULL));
	cmd.events = ALL_EVENTS;
	cmd.flags = 1;
	EXPECT_EQ(-EINVAL, hm_ioctl(self->fd, HETMEM_IOC_RING, &cmd));
	/* None of these made a ring; and there is only one. */
	EXPECT_EQ(-ENXIO, ring_map(self->fd, &(struct ring){ .size = 8192 }));
	EXPECT_EQ(0, ring_make(self->fd, 16, ALL_EVENTS, NULL));
	EXPECT_EQ(-EEXIST, ring_make(self->fd, 16, ALL_EVENTS, NULL));
	EXPECT_EQ(-EEXIST, ring_make(self->fd, 32, 1, NULL));
}

/* Threads that all make one: one of them does. */
struct maker {
	pthread_t thread;
	int fd, ret;
};

static void *make_ring(void *arg)
{
	struct maker *m = arg;

	m->ret = ring_make(m->fd, 16, ALL_EVENTS, NULL);
	return NULL;
}

TEST_F(ring, made_once)
{
	int i, j, made, exist;

	for (i = 0; i < test_rounds(32); i++) {
		struct maker m[4];
		int fd = hm_open();

		made = exist = 0;
		ASSERT_GE(fd, 0);
		for (j = 0; j < 4; j++) {
			m[j].fd = fd;
			ASSERT_EQ(0, pthread_create(&m[j].thread, NULL,
						    make_ring, &m[j]));
		}
		for (j = 0; j < 4; j++) {
			pthread_join(m[j].thread, NULL);
			made += !m[j].ret;
			exist += m[j].ret == -EEXIST;
		}
		EXPECT_EQ(1, made);
		EXPECT_EQ(3, exist);
		close(fd);
	}
}

TEST_F(ring, mmap_rules)
{
	const int rw = PROT_READ | PROT_WRITE;
	size_t size, page = page_size();
	int fd = self->fd, ro;
	char *map;

	EXPECT_EQ(MAP_FAILED, mmap(NULL, page, rw, MAP_SHARED, fd, 0));
	EXPECT_EQ(ENXIO, errno);
	EXPECT_EQ(POLLERR, poll_one(fd, 0));
	ASSERT_EQ(0, ring_make(fd, 256, ALL_EVENTS, &size));
	ASSERT_LT(2 * page, size);
#define REFUSED(length, prot, flags, at)				\
	do {								\
		errno = 0;						\
		EXPECT_EQ(MAP_FAILED, mmap(NULL, length, prot, flags,	\
					   fd, at));			\
		EXPECT_EQ(EINVAL, errno);				\
	} while (0)
	REFUSED(size, rw, MAP_PRIVATE, 0);
	REFUSED(size, PROT_READ, MAP_PRIVATE, 0);
	REFUSED(size, rw | PROT_EXEC, MAP_SHARED, 0);
	REFUSED(size + page, rw, MAP_SHARED, 0);
	REFUSED(size - page, rw, MAP_SHARED, 0);
	REFUSED(page, rw, MAP_SHARED, 0);
	REFUSED(size, rw, MAP_SHARED, page);
	REFUSED(size - page, rw, MAP_SHARED, page);
	REFUSED(size, rw, MAP_SHARED, 1L << 50);
#undef REFUSED
	/* Who only wants to look. */
	map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	ASSERT_NE(MAP_FAILED, map);
	EXPECT_EQ(256, ((struct hetmem_ring_header *)map)->nr_entries);
	/* It neither grows nor becomes code. */
	EXPECT_EQ(MAP_FAILED, mremap(map, size, 2 * size, MREMAP_MAYMOVE));
	EXPECT_EQ(-1, mprotect(map, size, PROT_READ | PROT_EXEC));
	/* It moves, and goes in parts. */
	map = mremap(map, size, size, MREMAP_MAYMOVE | MREMAP_FIXED,
		     mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS,
			  -1, 0));
	ASSERT_NE(MAP_FAILED, map);
	EXPECT_EQ(256, ((struct hetmem_ring_header *)map)->nr_entries);
	EXPECT_EQ(0, munmap(map + page, page));
	EXPECT_EQ(0, munmap(map, size));
	/* A file that was opened for reading has no ring: its reader has to write there. */
	ro = open(DEV_HETMEM, O_RDONLY | O_CLOEXEC);
	ASSERT_GE(ro, 0);
	EXPECT_EQ(-EBADF, ring_make(ro, 256, ALL_EVENTS, &size));
	EXPECT_EQ(MAP_FAILED, mmap(NULL, size, rw, MAP_SHARED, ro, 0));
	EXPECT_EQ(EACCES, errno);
	EXPECT_EQ(MAP_FAILED, mmap(NULL, size, PROT_READ, MAP_SHARED, ro, 0));
	EXPECT_EQ(ENXIO, errno);
	close(ro);
}

/* The permissions that /proc/self/maps shows for the mapping at @p; "" if there is none. */
static void permissions_at(const void *p, char perms[5])
{
	FILE *f = fopen("/proc/self/maps", "r");
	unsigned long start;
	char line[512], got[5];

	*perms = 0;
	while (f && fgets(line, sizeof(line), f))
		if (sscanf(line, "%lx-%*x %4s", &start, got) == 2 && start == (uintptr_t)p)
			memcpy(perms, got, sizeof(got));
	if (f)
		fclose(f);
}

/* There each mapping for reading is made executable. The ring is not. */
TEST_F(ring, read_implies_exec)
{
	const int old = personality(0xffffffff), rw = PROT_READ | PROT_WRITE;
	size_t size;
	char perms[5];
	int fd = hm_open();
	char *map;

	ASSERT_LE(0, old);
	ASSERT_LE(0, fd);
	ASSERT_EQ(0, ring_make(fd, 256, ALL_EVENTS, &size));
	ASSERT_EQ(MAP_FAILED, mmap(NULL, size, rw | PROT_EXEC, MAP_SHARED, fd, 0));
	EXPECT_EQ(EINVAL, errno);
	ASSERT_EQ(old, personality(old | READ_IMPLIES_EXEC));
	map = mmap(NULL, size, rw, MAP_SHARED, fd, 0);
	ASSERT_NE(MAP_FAILED, map);
	permissions_at(map, perms);
	EXPECT_STREQ("rw-s", perms);
	EXPECT_EQ(256, ((struct hetmem_ring_header *)map)->nr_entries);
	EXPECT_EQ(0, mprotect(map, size, PROT_READ));
	permissions_at(map, perms);
	EXPECT_STREQ("r--s", perms);
	EXPECT_EQ(-1, mprotect(map, size, PROT_READ | PROT_EXEC));
	EXPECT_EQ(EACCES, errno);
	EXPECT_EQ(0, munmap(map, size));
	map = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
	EXPECT_EQ(MAP_FAILED, map);
	personality(old);
	close(fd);
}

/* The mapping keeps the context alive. */
TEST_F(ring, closed_while_mapped)
{
	int fd = hm_open();
	struct hetmem_event e;
	struct ring r;

	ASSERT_GE(fd, 0);
	ASSERT_EQ(0, ring_open(fd, 16, ALL_EVENTS, &r));
	ASSERT_EQ(0, hm_track(fd, self->p, SIZE));
	EXPECT_EQ(0, close(fd));
	EXPECT_EQ(0, invalidate(PAGE(3)));
	ASSERT_TRUE(ring_next(&r, &e));
	EXPECT_EQ((uintptr_t)PAGE(3), e.start);
	ring_close(&r);
	EXPECT_EQ(0, invalidate(PAGE(3)));
}

/* What each cause looks like, one event for one deed. */
TEST_F(ring, causes)
{
	struct hetmem_event e;
	uint64_t before;

#define EXPECT_TOLD(type_, cause_, from, to)				\
	do {								\
		ASSERT_TRUE(ring_next(&self->r, &e));			\
		EXPECT_EQ(HETMEM_EVENT_##type_, e.type);		\
		EXPECT_EQ(HETMEM_CHANGE_##cause_, e.cause);		\
		EXPECT_EQ((uintptr_t)PAGE(from), e.start);		\
		EXPECT_EQ((uintptr_t)PAGE(to), e.end);			\
		EXPECT_LE(before, e.time);				\
		EXPECT_GE(now_ns(), e.time);				\
		EXPECT_EQ(0, e.location);				\
		EXPECT_EQ(0, e.count);					\
		EXPECT_EQ(0, e.data);					\
		EXPECT_TRUE(all_zero(e.uuid, sizeof(e.uuid)));		\
		EXPECT_FALSE(ring_next(&self->r, &e));			\
		before = now_ns();					\
	} while (0)

	OPEN_RING(ALL_EVENTS);
	before = now_ns();
	EXPECT_FALSE(ring_next(&self->r, &e));
	ASSERT_EQ(0, madvise(PAGE(0), 8 * page_size(), MADV_DONTNEED));
	EXPECT_TOLD(INVALIDATED, REPLACE, 0, 8);
	ASSERT_EQ(0, mprotect(PAGE(8), 8 * page_size(), PROT_READ));
	EXPECT_TOLD(INVALIDATED, PROTECT, 8, 16);
	ASSERT_EQ(0, munmap(PAGE(16), 16 * page_size()));
	EXPECT_TOLD(INVALIDATED, UNMAP, 16, 32);
	ASSERT_EQ(PAGE(32), mmap(PAGE(32), 4 * page_size(), PROT_READ,
				 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
				 0));
	EXPECT_TOLD(INVALIDATED, UNMAP, 32, 36);
	/* Only the tracked part is told of. */
	ASSERT_EQ(PAGE(56), mremap(PAGE(56), 8 * page_size(), page_size(), 0));
	EXPECT_TOLD(INVALIDATED, UNMAP, 57, 64);
	ring_close(&self->r);
}

TEST_F(ring, soft_dirty)
{
	struct hetmem_event e;
	int seen = 0;

	OPEN_RING(EVENT(INVALIDATED));
	if (write_text("/proc/self/clear_refs", "4"))
		SKIP(return, "kernel lacks soft-dirty bits");
	while (ring_next(&self->r, &e))
		seen += e.cause == HETMEM_CHANGE_PROTECT &&
			e.start == (uintptr_t)self->p &&
			e.end == (uintptr_t)self->p + SIZE;
	/* Kernels without them take the number and do nothing. */
	if (!seen)
		SKIP(return, "kernel lacks soft-dirty bits");
	EXPECT_EQ(1, seen);
	ring_close(&self->r);
}

/* A notification over many ranges is told for each, clipped to it. */
TEST_F(ring, many_ranges)
{
	struct hetmem_event e;
	int i;

	ASSERT_EQ(0, hm_untrack(self->fd, self->p, SIZE));
	for (i = 0; i < 20; i += 2)
		ASSERT_EQ(0, hm_track(self->fd, PAGE(i), page_size()));
	OPEN_RING(ALL_EVENTS);
	ASSERT_EQ(0, madvise(PAGE(3), 12 * page_size(), MADV_DONTNEED));
	for (i = 4; i < 15; i += 2) {
		ASSERT_TRUE(ring_next(&self->r, &e));
		EXPECT_EQ((uintptr_t)PAGE(i), e.start);
		EXPECT_EQ((uintptr_t)PAGE(i + 1), e.end);
	}
	EXPECT_FALSE(ring_next(&self->r, &e));
	/* Not tracked any more: not told. */
	ASSERT_EQ(0, hm_untrack(self->fd, PAGE(4), page_size()));
	EXPECT_EQ(0, invalidate(PAGE(4)));
	EXPECT_EQ(0, invalidate(PAGE(5)));
	EXPECT_FALSE(ring_next(&self->r, &e));
	ring_close(&self->r);
}

/* Beyond 64 ranges one event covers the rest of the addresses. */
TEST_F(ring, too_many_ranges)
{
	const size_t size = 256 * page_size();
	char *p = map_filled(size, 2);
	struct hetmem_event e;
	struct ring r;
	int fd, i;

	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, no_numa_balancing(p, size));
	fd = hm_open();
	ASSERT_LE(0, fd);
	ASSERT_EQ(0, ring_open(fd, 256, ALL_EVENTS, &r));
	for (i = 0; i < 200; i += 2)
		ASSERT_EQ(0, hm_track(fd, p + i * page_size(), page_size()));
	ASSERT_EQ(0, madvise(p, size, MADV_DONTNEED));
	for (i = 0; i < 128; i += 2) {
		ASSERT_TRUE(ring_next(&r, &e));
		EXPECT_EQ((uintptr_t)p + i * page_size(), e.start);
		EXPECT_EQ((uintptr_t)p + (i + 1) * page_size(), e.end);
	}
	ASSERT_TRUE(ring_next(&r, &e));
	EXPECT_EQ(HETMEM_EVENT_INVALIDATED, e.type);
	EXPECT_EQ(HETMEM_CHANGE_REPLACE, e.cause);
	EXPECT_EQ((uintptr_t)p + 128 * page_size(), e.start);
	EXPECT_EQ((uintptr_t)p + size, e.end);
	EXPECT_FALSE(ring_next(&r, &e));
	/* Which of these are dirty is not known: all of them. */
	EXPECT_EQ(1, hm_dirty(fd, p + 198 * page_size()));
	ring_close(&r);
	close(fd);
	munmap(p, size);
}

/* What was not asked for is neither told nor counted as lost. */
TEST_F(ring, only_wanted)
{
	struct hetmem_event e;
	int i;

	OPEN_RING(EVENT(HINT) | EVENT(THRASH));
	for (i = 0; i < 2 * ENTRIES; i++)
		ASSERT_EQ(0, invalidate(PAGE(0)));
	EXPECT_FALSE(ring_next(&self->r, &e));
	EXPECT_EQ(0, poll_one(self->fd, 0));
	for (i = 0; i < HETMEM_RING_TYPES; i++)
		EXPECT_EQ(0, self->r.h->dropped[i]);
	ring_close(&self->r);
}

TEST_F(ring, order)
{
	struct hetmem_event e;
	uint64_t last = now_ns();
	int i, n;

	OPEN_RING(ALL_EVENTS);
	/* Around the end of the array several times. */
	for (n = 0; n < 10 * ENTRIES; n += i) {
		for (i = 0; i < ENTRIES - 7; i++)
			ASSERT_EQ(0, invalidate(PAGE((n + i) % PAGES)));
		EXPECT_EQ(n + i, self->r.h->head);
		for (i = 0; i < ENTRIES - 7; i++) {
			ASSERT_TRUE(ring_next(&self->r, &e));
			EXPECT_EQ((uintptr_t)PAGE((n + i) % PAGES), e.start);
			EXPECT_LE(last, e.time);
			last = e.time;
		}
		EXPECT_FALSE(ring_next(&self->r, &e));
	}
	EXPECT_LE(last, now_ns());
	EXPECT_EQ(0, self->r.h->dropped[HETMEM_EVENT_INVALIDATED]);
	ring_close(&self->r);
}

/* A full ring loses the newest, and says of which type and how many. */
TEST_F(ring, overflow)
{
	struct hetmem_event e;
	int i;

	OPEN_RING(ALL_EVENTS);
	for (i = 0; i < ENTRIES + 10; i++)
		ASSERT_EQ(0, invalidate(PAGE(i % PAGES)));
	EXPECT_EQ(ENTRIES, self->r.h->head);
	for (i = 0; i < HETMEM_RING_TYPES; i++)
		EXPECT_EQ(i == HETMEM_EVENT_INVALIDATED ? 10 : 0,
			  self->r.h->dropped[i]);
	/* Room for one is room for one. */
	ASSERT_TRUE(ring_next(&self->r, &e));
	EXPECT_EQ((uintptr_t)PAGE(0), e.start);
	EXPECT_EQ(0, invalidate(PAGE(40)));
	EXPECT_EQ(0, invalidate(PAGE(41)));
	EXPECT_EQ(11, self->r.h->dropped[HETMEM_EVENT_INVALIDATED]);
	for (i = 1; i < ENTRIES; i++) {
		ASSERT_TRUE(ring_next(&self->r, &e));
		EXPECT_EQ((uintptr_t)PAGE(i), e.start);
	}
	ASSERT_TRUE(ring_next(&self->r, &e));
	EXPECT_EQ((uintptr_t)PAGE(40), e.start);
	EXPECT_FALSE(ring_next(&self->r, &e));
	ring_close(&self->r);
}

TEST_F(ring, poll)
{
	struct hetmem_event e;

	OPEN_RING(EVENT(INVALIDATED));
	EXPECT_EQ(0, poll_one(self->fd, 0));
	ASSERT_EQ(0, invalidate(PAGE(0)));
	ASSERT_EQ(0, invalidate(PAGE(1)));
	EXPECT_EQ(POLLIN, poll_one(self->fd, 0));
	ASSERT_TRUE(ring_next(&self->r, &e));
	EXPECT_EQ(POLLIN, poll_one(self->fd, 0));
	ASSERT_TRUE(ring_next(&self->r, &e));
	EXPECT_EQ(0, poll_one(self->fd, 0));
	ring_close(&self->r);
}

struct waiter {
	pthread_t thread;
	int fd;
	bool by_epoll;
	int ret;
};

static void *wait_for_event(void *arg)
{
	struct waiter *w = arg;

	if (w->by_epoll) {
		struct epoll_event ev = { .events = EPOLLIN };
		int ep = epoll_create1(EPOLL_CLOEXEC);

		w->ret = -1;
		if (ep >= 0 && !epoll_ctl(ep, EPOLL_CTL_ADD, w->fd, &ev) &&
		    epoll_wait(ep, &ev, 1, FOREVER_MS) == 1)
			w->ret = ev.events;
		close(ep);
	} else {
		w->ret = poll_one(w->fd, FOREVER_MS);
	}
	return NULL;
}

/* Who sleeps in poll or epoll is woken. */
TEST_F(ring, wakes)
{
	struct hetmem_event e;
	int i;

	OPEN_RING(EVENT(INVALIDATED));
	for (i = 0; i < 6; i++) {
		struct waiter w = { .fd = self->fd, .by_epoll = i & 1 };

		ASSERT_EQ(0, pthread_create(&w.thread, NULL, wait_for_event,
					    &w));
		/* time: the event comes before the wait or after its begin, and both are right */
		usleep(i < 2 ? 50000 : 1000 * i);
		ASSERT_EQ(0, invalidate(PAGE(i)));
		pthread_join(w.thread, NULL);
		EXPECT_EQ(POLLIN, w.ret);
		/* The thread's own stack is not tracked memory. */
		ASSERT_TRUE(ring_next(&self->r, &e));
		EXPECT_EQ((uintptr_t)PAGE(i), e.start);
		EXPECT_FALSE(ring_next(&self->r, &e));
	}
	ring_close(&self->r);
}

TEST_HARNESS_MAIN
