// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What happens to memory under tracked ranges, as STATS counts it: unmapping,
 * moving, protecting, dropping, copying on write, fork, exec and exit.
 *
 * Counts are exact where one system call makes one notification by its
 * nature; where the kernel may split its work they are lower bounds. What it
 * does of its own (NUMA balancing, khugepaged) is kept away from the memory.
 */
#include "libktest/harness.h"
#include "libktest/ring.h"

#include <pthread.h>

#define PAGES	64
#define SIZE	(PAGES * page_size())

FIXTURE(notify)
{
	int fd;
	char *p;
};

FIXTURE_SETUP(notify)
{
	self->fd = hm_open_flags(0);
	ASSERT_GE(self->fd, 0);
	/* In the middle of nothing, so that it shares no mapping. */
	self->p = mmap(NULL, 3 * SIZE, PROT_NONE, MAP_PRIVATE |
		       MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, self->p);
	ASSERT_EQ(0, munmap(self->p, 3 * SIZE));
	self->p = mmap(self->p + SIZE, SIZE, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	ASSERT_NE(MAP_FAILED, self->p);
	madvise(self->p, SIZE, MADV_NOHUGEPAGE);
	ASSERT_EQ(0, no_numa_balancing(self->p, SIZE));
	fill(self->p, SIZE, 1);
	ASSERT_EQ(0, hm_track(self->fd, self->p, SIZE));
}

FIXTURE_TEARDOWN(notify)
{
	munmap(self->p, SIZE);
	EXPECT_EQ(0, close(self->fd));
}

#define PAGE(n)		(self->p + (n) * page_size())
#define SEEN(type)	hm_notified(self->fd, self->p, HETMEM_CHANGE_##type)

/* No notification of any type for the range so far. */
static bool quiet(int fd, const char *p)
{
	struct hetmem_cmd_stats st;
	int i;

	if (hm_stats(fd, p, &st))
		return false;
	for (i = 0; i < HETMEM_CHANGE_NR; i++)
		if (st.changes[i])
			return false;
	return true;
}

/* Touching, reading and looking at memory changes nothing. */
TEST_F(notify, nothing)
{
	struct view v;

	EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
	fill(self->p, SIZE, 2);
	EXPECT_EQ(0, view_take(self->fd, self->p, SIZE, &v));
	view_free(&v);
	EXPECT_TRUE(quiet(self->fd, self->p));
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 2));
}

TEST_F(notify, munmap_whole)
{
	ASSERT_EQ(0, munmap(self->p, SIZE));
	EXPECT_EQ(1, SEEN(UNMAP));
	EXPECT_EQ(0, SEEN(REPLACE));
	/* The range stays, and says so. */
	EXPECT_EQ(PAGES, pages_at(self->fd, self->p, SIZE,
				  HETMEM_LOC(HETMEM_UNMAPPED, 0)));
	EXPECT_EQ(0, hm_untrack(self->fd, self->p, SIZE));
}

TEST_F(notify, munmap_in_parts)
{
	int i;

	for (i = 0; i < 8; i++)
		ASSERT_EQ(0, munmap(PAGE(8 * i), 4 * page_size()));
	EXPECT_EQ(8, SEEN(UNMAP));
	EXPECT_EQ(PAGES / 2, pages_of_kind(self->fd, self->p, SIZE,
					   HETMEM_HOST));
	for (i = 0; i < 8; i++) {
		EXPECT_EQ(-1, mismatch_at(PAGE(8 * i + 4), 4 * page_size(), 1,
					  (8 * i + 4) * page_size()));
	}
	/* New memory in a hole is under the same range. */
	ASSERT_EQ(PAGE(0), mmap(PAGE(0), 4 * page_size(),
				PROT_READ | PROT_WRITE, MAP_PRIVATE |
				MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	fill(PAGE(0), page_size(), 3);
	ASSERT_EQ(0, munmap(PAGE(0), 4 * page_size()));
	EXPECT_EQ(9, SEEN(UNMAP));
}

/* Outside is outside, up to the last byte. */
TEST_F(notify, neighbours)
{
	char *before = mmap(self->p - page_size(), page_size(),
			    PROT_READ | PROT_WRITE, MAP_PRIVATE |
			    MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	char *after = mmap(self->p + SIZE, page_size(), PROT_READ |
			   PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS |
			   MAP_FIXED, -1, 0);

	ASSERT_EQ(self->p - page_size(), before);
	ASSERT_EQ(self->p + SIZE, after);
	fill(before, page_size(), 4);
	fill(after, page_size(), 5);
	ASSERT_EQ(0, madvise(before, page_size(), MADV_DONTNEED));
	ASSERT_EQ(0, munmap(after, page_size()));
	ASSERT_EQ(0, munmap(before, page_size()));
	EXPECT_TRUE(quiet(self->fd, self->p));
}

/* One notification over many ranges counts once in each that it touches. */
TEST_F(notify, many_ranges)
{
	int i;

	ASSERT_EQ(0, hm_untrack(self->fd, self->p, SIZE));
	for (i = 0; i < PAGES; i += 2)
		ASSERT_EQ(0, hm_track(self->fd, PAGE(i), page_size()));
	ASSERT_EQ(0, madvise(PAGE(10), 21 * page_size(), MADV_DONTNEED));
	for (i = 0; i < PAGES; i += 2) {
		EXPECT_EQ(i >= 10 && i <= 30,
			  hm_notified(self->fd, PAGE(i),
				      HETMEM_CHANGE_REPLACE)) {
			TH_LOG("page %d", i);
		}
	}
}

#define MANY	200

/*
 * Ranges of a page each, one behind the other. What is not @clean has never been
 * looked at.
 */
static char *track_many(int fd, int nr, bool clean)
{
	const size_t size = nr * page_size();
	struct hetmem_cmd_refresh cmd;
	char *p;
	int i;

	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		 MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return NULL;
	madvise(p, size, MADV_NOHUGEPAGE);
	if (no_numa_balancing(p, size))
		return NULL;
	fill(p, size, 1);
	for (i = 0; i < nr; i++) {
		if (hm_track(fd, p + i * page_size(), page_size()))
			return NULL;
		if (clean && hm_refresh_all(fd, p + i * page_size(), &cmd))
			return NULL;
	}
	return p;
}

/* What became of @nr ranges, those of track_many(). */
struct many {
	long unmapped, dirty, most;
};

static struct many many_stats(int fd, const char *p, int nr)
{
	struct hetmem_cmd_stats st;
	struct many m = { 0 };
	long unmapped;
	int i;

	for (i = 0; i < nr; i++) {
		if (hm_stats(fd, p + i * page_size(), &st))
			return (struct many){ -1, -1, -1 };
		unmapped = st.changes[HETMEM_CHANGE_UNMAP];
		m.unmapped += unmapped;
		m.most = unmapped > m.most ? unmapped : m.most;
		m.dirty += st.dirty_blocks;
	}
	return m;
}

/* Up to 64 ranges each is counted and marked, and no other. */
TEST_F(notify, as_many_ranges_as_are_counted)
{
	char *p = track_many(self->fd, MANY, true);
	struct hetmem_cmd_stats before, after;
	struct many m;

	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, hm_stats_context(self->fd, &before));
	ASSERT_EQ(0, munmap(p + 10 * page_size(), 64 * page_size()));
	ASSERT_EQ(0, hm_stats_context(self->fd, &after));
	EXPECT_EQ(before.changes[HETMEM_CHANGE_UNMAP] + 1,
		  after.changes[HETMEM_CHANGE_UNMAP]);
	m = many_stats(self->fd, p, MANY);
	EXPECT_EQ(64, m.unmapped);
	EXPECT_EQ(1, m.most);
	EXPECT_EQ(64, m.dirty);
	munmap(p, MANY * page_size());
}

/*
 * Beyond, one notification counts for the context and for 64 ranges, and all
 * ranges of the context are dirty, those too that it does not touch.
 */
TEST_F(notify, more_ranges_than_are_counted)
{
	char *p = track_many(self->fd, MANY, true);
	struct hetmem_cmd_stats before, after;
	struct hetmem_cmd_refresh cmd;
	struct many m;

	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, hm_refresh_all(self->fd, self->p, &cmd));
	ASSERT_EQ(0, hm_stats_context(self->fd, &before));
	ASSERT_EQ(0, munmap(p + 10 * page_size(), 65 * page_size()));
	ASSERT_EQ(0, hm_stats_context(self->fd, &after));
	EXPECT_EQ(before.changes[HETMEM_CHANGE_UNMAP] + 1,
		  after.changes[HETMEM_CHANGE_UNMAP]);
	m = many_stats(self->fd, p, MANY);
	EXPECT_EQ(64, m.unmapped);
	EXPECT_EQ(1, m.most);
	EXPECT_EQ(MANY, m.dirty);
	EXPECT_LT(0, hm_dirty(self->fd, self->p));
	EXPECT_EQ(0, SEEN(UNMAP));
	/* Each is looked at, and clean, by itself. */
	ASSERT_EQ(0, hm_refresh_all(self->fd, p, &cmd));
	EXPECT_EQ(1, cmd.walked_blocks);
	m = many_stats(self->fd, p, MANY);
	EXPECT_EQ(MANY - 1, m.dirty);
	ASSERT_EQ(0, hm_refresh_all(self->fd, self->p, &cmd));
	EXPECT_EQ(0, hm_dirty(self->fd, self->p));
	munmap(p, MANY * page_size());
	m = many_stats(self->fd, p, MANY);
	EXPECT_EQ(MANY, m.dirty);
	EXPECT_EQ(64 + 64, m.unmapped);
}

/* A range that was tracked after such a notification begins as any other. */
TEST_F(notify, tracked_after_many)
{
	char *p = track_many(self->fd, MANY, false);
	struct hetmem_cmd_refresh cmd;
	struct many m;

	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, munmap(p, MANY * page_size()));
	m = many_stats(self->fd, p, MANY);
	EXPECT_EQ(MANY, m.dirty);
	ASSERT_EQ(0, hm_untrack(self->fd, p, page_size()));
	ASSERT_EQ(0, hm_track(self->fd, p, page_size()));
	EXPECT_EQ(1, hm_dirty(self->fd, p));
	ASSERT_EQ(0, hm_refresh_all(self->fd, p, &cmd));
	EXPECT_EQ(0, hm_dirty(self->fd, p));
}

/* One event covers all that is not told one by one. */
TEST_F(notify, events_of_many_ranges)
{
	struct hetmem_event e;
	uint64_t at, start;
	struct ring r;
	char *p;
	int nr;

	p = track_many(self->fd, MANY, true);
	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, ring_open(self->fd, 256, EVENT(INVALIDATED), &r));
	start = (uintptr_t)p + 5 * page_size();
	ASSERT_EQ(0, munmap(p + 5 * page_size(), 180 * page_size()));
	for (nr = 0, at = start; ring_next(&r, &e);) {
		EXPECT_EQ(HETMEM_EVENT_INVALIDATED, e.type);
		if (e.cause != HETMEM_CHANGE_UNMAP)
			continue;
		EXPECT_EQ(at, e.start);
		at = e.end;
		if (nr++ < 64)
			EXPECT_EQ(page_size(), e.end - e.start);
	}
	EXPECT_EQ(65, nr);
	EXPECT_EQ(start + 180 * page_size(), at);
	EXPECT_EQ(0, r.h->dropped[HETMEM_EVENT_INVALIDATED]);
	ring_close(&r);
	munmap(p, MANY * page_size());
}

/* Each of many contexts has its own counters, and its own mark. */
TEST_F(notify, many_contexts)
{
	/* With that of the fixture as many as there may be. */
	const int contexts = 63;
	const int many = slow_kernel() ? 70 : MANY;
	const size_t size = many * page_size();
	struct hetmem_cmd_refresh cmd;
	struct hetmem_cmd_stats st;
	int fds[64], i, j;
	struct many m;
	char *p;

	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		 MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)p);
	fill(p, size, 1);
	/* Every second one has more ranges than are counted. */
	for (i = 0; i < contexts; i++) {
		fds[i] = hm_open();
		ASSERT_GE(fds[i], 0);
		for (j = 0; j < (i & 1 ? many : 10); j++) {
			ASSERT_EQ(0, hm_track(fds[i], p + j * page_size(),
					      page_size()));
			ASSERT_EQ(0, hm_refresh_all(fds[i], p + j * page_size(),
						    &cmd));
		}
	}
	EXPECT_EQ(-EDQUOT, hm_open());
	ASSERT_EQ(0, munmap(p, size));
	for (i = 0; i < contexts; i++) {
		m = many_stats(fds[i], p, i & 1 ? many : 10);
		EXPECT_EQ(i & 1 ? 64 : 10, m.unmapped);
		EXPECT_EQ(1, m.most);
		EXPECT_EQ(i & 1 ? many : 10, m.dirty);
		ASSERT_EQ(0, hm_stats_context(fds[i], &st));
		EXPECT_EQ(1, st.changes[HETMEM_CHANGE_UNMAP]);
		close(fds[i]);
	}
}

TEST_F(notify, dontneed)
{
	ASSERT_EQ(0, madvise(PAGE(0), 8 * page_size(), MADV_DONTNEED));
	EXPECT_EQ(1, SEEN(REPLACE));
	EXPECT_EQ(0, SEEN(UNMAP));
	EXPECT_TRUE(all_zero(PAGE(0), 8 * page_size()));
	EXPECT_EQ(-1, mismatch_at(PAGE(8), 56 * page_size(), 1,
				  8 * page_size()));
}

TEST_F(notify, mprotect)
{
	ASSERT_EQ(0, mprotect(self->p, SIZE, PROT_READ));
	EXPECT_EQ(1, SEEN(PROTECT));
	ASSERT_EQ(0, mprotect(self->p, SIZE, PROT_NONE));
	EXPECT_EQ(2, SEEN(PROTECT));
	ASSERT_EQ(0, mprotect(self->p, SIZE, PROT_READ | PROT_WRITE));
	EXPECT_EQ(3, SEEN(PROTECT));
	EXPECT_EQ(0, SEEN(UNMAP));
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
}

/* The kernel tells of the old place only, and the range stays there. */
TEST_F(notify, mremap_moves)
{
	char *to = mmap(NULL, SIZE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS,
			-1, 0);

	ASSERT_NE(MAP_FAILED, to);
	ASSERT_EQ(0, hm_track(self->fd, to, SIZE));
	ASSERT_EQ(to, mremap(self->p, SIZE, SIZE, MREMAP_MAYMOVE |
			     MREMAP_FIXED, to));
	EXPECT_LE(1, SEEN(UNMAP));
	EXPECT_EQ(PAGES, pages_at(self->fd, self->p, SIZE,
				  HETMEM_LOC(HETMEM_UNMAPPED, 0)));
	EXPECT_EQ(PAGES, pages_of_kind(self->fd, to, SIZE, HETMEM_HOST));
	EXPECT_EQ(-1, mismatch(to, SIZE, 1));
	EXPECT_EQ(-EEXIST, hm_track(self->fd, self->p, SIZE));
	munmap(to, SIZE);
}

TEST_F(notify, mremap_grows_and_shrinks)
{
	ASSERT_EQ(self->p, mremap(self->p, SIZE, 2 * SIZE, 0));
	EXPECT_EQ(0, SEEN(UNMAP));
	fill(self->p + SIZE, SIZE, 2);
	ASSERT_EQ(self->p, mremap(self->p, 2 * SIZE, SIZE, 0));
	EXPECT_EQ(0, SEEN(UNMAP));
	ASSERT_EQ(self->p, mremap(self->p, SIZE, SIZE / 2, 0));
	EXPECT_EQ(1, SEEN(UNMAP));
	EXPECT_EQ(-1, mismatch(self->p, SIZE / 2, 1));
	EXPECT_EQ(PAGES / 2, pages_at(self->fd, self->p, SIZE,
				      HETMEM_LOC(HETMEM_UNMAPPED, 0)));
}

/* A mapping over another one unmaps that. */
TEST_F(notify, mapped_over)
{
	ASSERT_EQ(self->p, mmap(self->p, SIZE / 2, PROT_READ, MAP_PRIVATE |
				MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	EXPECT_EQ(1, SEEN(UNMAP));
	EXPECT_TRUE(all_zero(self->p, SIZE / 2));
	EXPECT_EQ(-1, mismatch_at(self->p + SIZE / 2, SIZE / 2, 1, SIZE / 2));
}

/*
 * fork() write-protects what both now share; the first write of each page
 * breaks that. The child's own deeds are not ours.
 */
TEST_F(notify, fork_and_copy_on_write)
{
	long before;
	pid_t pid;
	struct turns t;

	ASSERT_EQ(0, turns_init(&t));
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		turns_in_child(&t);
		CHILD_CHECK(turn_wait(t.to_child[0]));
		CHILD_CHECK(mismatch(self->p, SIZE, 1) < 0);
		fill(self->p, SIZE, 3);
		CHILD_CHECK(!munmap(self->p, SIZE / 2));
		CHILD_CHECK(mismatch_at(self->p + SIZE / 2, SIZE / 2, 3,
					SIZE / 2) < 0);
		_exit(0);
	}
	turns_in_parent(&t);
	EXPECT_EQ(1, SEEN(PROTECT));
	before = SEEN(REPLACE);
	fill(self->p, SIZE / 2, 2);
	EXPECT_EQ(before + PAGES / 2, SEEN(REPLACE));
	turn_pass(t.to_child[1]);
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(0, SEEN(UNMAP));
	EXPECT_EQ(before + PAGES / 2, SEEN(REPLACE));
	EXPECT_EQ(-1, mismatch(self->p, SIZE / 2, 2));
	EXPECT_EQ(-1, mismatch_at(self->p + SIZE / 2, SIZE / 2, 1, SIZE / 2));
}

/* Nobody's range, but the context's memory. */
TEST_F(notify, whole_context)
{
	struct hetmem_cmd_stats before, after;
	char *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		       MAP_ANONYMOUS, -1, 0);

	ASSERT_NE(MAP_FAILED, p);
	fill(p, SIZE, 6);
	ASSERT_EQ(0, hm_stats_context(self->fd, &before));
	ASSERT_EQ(0, munmap(p, SIZE));
	ASSERT_EQ(0, hm_stats_context(self->fd, &after));
	EXPECT_EQ(before.changes[HETMEM_CHANGE_UNMAP] + 1,
		  after.changes[HETMEM_CHANGE_UNMAP]);
	EXPECT_EQ(0, SEEN(UNMAP));
	/* Ranges that ended are still in it. */
	ASSERT_EQ(0, munmap(self->p, SIZE));
	EXPECT_EQ(1, SEEN(UNMAP));
	ASSERT_EQ(0, hm_untrack(self->fd, self->p, SIZE));
	ASSERT_EQ(0, hm_stats_context(self->fd, &after));
	EXPECT_EQ(before.changes[HETMEM_CHANGE_UNMAP] + 2,
		  after.changes[HETMEM_CHANGE_UNMAP]);
	/* Tracked anew, it starts anew. */
	ASSERT_EQ(0, hm_track(self->fd, self->p, SIZE));
	EXPECT_EQ(0, SEEN(UNMAP));
}

TEST_F(notify, two_contexts)
{
	int other = hm_open();

	ASSERT_GE(other, 0);
	ASSERT_EQ(0, hm_track(other, self->p, SIZE));
	ASSERT_EQ(0, munmap(PAGE(0), page_size()));
	EXPECT_EQ(1, SEEN(UNMAP));
	EXPECT_EQ(1, hm_notified(other, self->p, HETMEM_CHANGE_UNMAP));
	EXPECT_EQ(0, close(other));
	ASSERT_EQ(0, munmap(PAGE(1), page_size()));
	EXPECT_EQ(2, SEEN(UNMAP));
}

/* What a process without a context does at the same addresses calls nobody. */
TEST_F(notify, others_pay_nothing)
{
	static const char callbacks[] =
		"/sys/class/misc/hetmem/stats/callbacks";
	const int rounds = 1000;
	long before, after;
	struct turns t;
	pid_t pid;
	int i;

	ASSERT_EQ(0, turns_init(&t));
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		turns_in_child(&t);
		CHILD_CHECK(turn_wait(t.to_child[0]));
		for (i = 0; i < rounds; i++) {
			*(volatile char *)PAGE(i % PAGES) = 1;
			CHILD_CHECK(!madvise(PAGE(i % PAGES), page_size(),
					     MADV_DONTNEED));
		}
		_exit(0);
	}
	turns_in_parent(&t);
	before = read_long(callbacks);
	ASSERT_LE(0, before);
	turn_pass(t.to_child[1]);
	EXPECT_EQ(0, child_status(pid));
	after = read_long(callbacks);
	/* What the kernel does to the parent's memory meanwhile is not that. */
	EXPECT_GT(rounds / 2, after - before);
	EXPECT_EQ(0, SEEN(UNMAP));
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
	close(t.to_child[1]);
	close(t.to_parent[0]);
}

/* The owner ends while somebody holds its context: that is counted too. */
static void owner_ends(struct __test_metadata *_metadata, bool by_exec)
{
	char *argv[] = { "self", "-h", NULL }, *envp[] = { NULL };
	struct turns t;
	long counted;
	pid_t pid;
	int fd;

	ASSERT_EQ(0, turns_init(&t));
	/* Two processes that share descriptors but no memory. */
	pid = syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
	ASSERT_GE(pid, 0);
	if (!pid) {
		char *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		int own = hm_open_flags(0);
		ssize_t n;

		CHILD_CHECK(p != MAP_FAILED && own >= 0);
		fill(p, SIZE, 7);
		CHILD_CHECK(!hm_track(own, p, SIZE));
		n = write(t.to_parent[1], &own, sizeof(own));
		n += write(t.to_parent[1], &p, sizeof(p));
		CHILD_CHECK(n == sizeof(own) + sizeof(p));
		if (by_exec) {
			/* The help text is not for this test's output. */
			CHILD_CHECK(!unshare(CLONE_FILES));
			close(1);
			close(2);
			execve("/proc/self/exe", argv, envp);
			_exit(1);
		}
		_exit(KSFT_SKIP);
	} else {
		char *p;

		ASSERT_EQ(sizeof(fd), read(t.to_parent[0], &fd, sizeof(fd)));
		ASSERT_EQ(sizeof(p), read(t.to_parent[0], &p, sizeof(p)));
		EXPECT_EQ(KSFT_SKIP, child_status(pid));
		counted = hm_notified(fd, p, HETMEM_CHANGE_EXIT);
		EXPECT_EQ(1, counted);
		EXPECT_EQ(-ESRCH, pages_at(fd, p, SIZE, ANY_HOST));
		EXPECT_EQ(0, close(fd));
	}
}

TEST_F(notify, owner_exits)
{
	owner_ends(_metadata, false);
	/* It was not this context's owner. */
	EXPECT_EQ(0, SEEN(EXIT));
	EXPECT_EQ(0, SEEN(UNMAP));
}

TEST_F(notify, owner_executes)
{
	owner_ends(_metadata, true);
	/* It was not this context's owner. */
	EXPECT_EQ(0, SEEN(EXIT));
	EXPECT_EQ(0, SEEN(UNMAP));
}

/* Processes that end with live ranges and contexts, in every way. */
TEST_F(notify, owners_end_without_closing)
{
	int i;

	for (i = 0; i < test_rounds(32); i++) {
		pid_t pid = fork();

		ASSERT_GE(pid, 0);
		if (!pid) {
			int own = hm_open(), j;

			CHILD_CHECK(own >= 0);
			for (j = 0; j < PAGES; j++)
				CHILD_CHECK(!hm_track(own, PAGE(j),
						      page_size()));
			CHILD_CHECK(i % 4 != 1 || !munmap(self->p, SIZE));
			if (i % 4 == 2)
				raise(SIGKILL);
			if (i % 4 == 3)
				abort();
			_exit(0);
		}
		switch (i % 4) {
		case 2:
			EXPECT_EQ(128 + SIGKILL, child_status(pid));
			break;
		case 3:
			EXPECT_EQ(128 + SIGABRT, child_status(pid));
			break;
		default:
			EXPECT_EQ(0, child_status(pid));
		}
	}
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
}

/* KSM replaces pages by one: a REPLACE for each page except that one. */
TEST_F(notify, ksm)
{
	static const char run[] = "/sys/kernel/mm/ksm/run";
	int i;

	if (access(run, F_OK))
		SKIP(return, "kernel lacks KSM");
	for (i = 0; i < PAGES; i++)
		fill(PAGE(i), page_size(), 8);
	write_text("/sys/kernel/mm/ksm/sleep_millisecs", "1");
	write_text("/sys/kernel/mm/ksm/pages_to_scan", "1000");
	ASSERT_EQ(0, madvise(self->p, SIZE, MADV_MERGEABLE));
	ASSERT_EQ(0, write_text(run, "1"));
	EXPECT_TRUE(EVENTUALLY(hm_notified(self->fd, self->p,
					   HETMEM_CHANGE_REPLACE) >= PAGES - 1));
	/* Unmerging gives each its own page again. */
	EXPECT_EQ(0, write_text(run, "2"));
	EXPECT_EQ(PAGES, pages_of_kind(self->fd, self->p, SIZE, HETMEM_HOST));
	for (i = 0; i < PAGES; i++)
		EXPECT_EQ(-1, mismatch(PAGE(i), page_size(), 8));
}

TEST_HARNESS_MAIN
