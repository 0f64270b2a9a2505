// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What happens to memory under tracked ranges, as STATS counts it: unmapping,
 * moving, protecting, dropping, copying on write, fork, exec and exit.
 *
 * Counts are exact where one system call makes one notification by its
 * nature; where the kernel may split its work they are lower bounds. What it
 * does of its own (NUMA balancing, khugepaged) is kept away from the memory.
 */
#include "hetmem_mem.h"

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
#define SEEN(type)	hm_notified(self->fd, self->p, HETMEM_NOTIFY_##type)

/* No notification of any type for the range so far. */
static bool quiet(int fd, const char *p)
{
	struct hetmem_cmd_stats st;
	int i;

	if (hm_stats(fd, p, &st))
		return false;
	for (i = 0; i < HETMEM_NOTIFY_NR; i++)
		if (st.notified[i])
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
	EXPECT_EQ(0, SEEN(CLEAR));
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
				      HETMEM_NOTIFY_CLEAR)) {
			TH_LOG("page %d", i);
		}
	}
}

/*
 * More than are looked at without a pause: each is told, and once. Compaction
 * may clear entries besides, here as many as there are; nobody else unmaps.
 */
TEST_F(notify, very_many_ranges)
{
	const int pages = 1000;
	const size_t size = pages * page_size();
	struct hetmem_cmd_stats st;
	int i, wrong = 0;
	char *p;

	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		 MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, p);
	madvise(p, size, MADV_NOHUGEPAGE);
	ASSERT_EQ(0, no_numa_balancing(p, size));
	fill(p, size, 1);
	for (i = 0; i < pages; i++)
		ASSERT_EQ(0, hm_track(self->fd, p + i * page_size(),
				      page_size()));
	ASSERT_EQ(0, madvise(p + 3 * page_size(), size - 5 * page_size(),
			     MADV_DONTNEED));
	ASSERT_EQ(0, munmap(p, size));
	for (i = 0; i < pages; i++) {
		ASSERT_EQ(0, hm_stats(self->fd, p + i * page_size(), &st));
		wrong += i >= 3 && i < pages - 2 &&
			 !st.notified[HETMEM_NOTIFY_CLEAR];
		wrong += st.notified[HETMEM_NOTIFY_UNMAP] != 1;
	}
	EXPECT_EQ(0, wrong);
}

TEST_F(notify, dontneed)
{
	ASSERT_EQ(0, madvise(PAGE(0), 8 * page_size(), MADV_DONTNEED));
	EXPECT_EQ(1, SEEN(CLEAR));
	EXPECT_EQ(0, SEEN(UNMAP));
	EXPECT_TRUE(all_zero(PAGE(0), 8 * page_size()));
	EXPECT_EQ(-1, mismatch_at(PAGE(8), 56 * page_size(), 1,
				  8 * page_size()));
}

TEST_F(notify, mprotect)
{
	ASSERT_EQ(0, mprotect(self->p, SIZE, PROT_READ));
	EXPECT_EQ(1, SEEN(PROTECTION));
	ASSERT_EQ(0, mprotect(self->p, SIZE, PROT_NONE));
	EXPECT_EQ(2, SEEN(PROTECTION));
	ASSERT_EQ(0, mprotect(self->p, SIZE, PROT_READ | PROT_WRITE));
	EXPECT_EQ(3, SEEN(PROTECTION));
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
	EXPECT_EQ(1, SEEN(PROTECTION));
	before = SEEN(CLEAR);
	fill(self->p, SIZE / 2, 2);
	EXPECT_EQ(before + PAGES / 2, SEEN(CLEAR));
	turn_pass(t.to_child[1]);
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(0, SEEN(UNMAP));
	EXPECT_EQ(before + PAGES / 2, SEEN(CLEAR));
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
	EXPECT_EQ(before.notified[HETMEM_NOTIFY_UNMAP] + 1,
		  after.notified[HETMEM_NOTIFY_UNMAP]);
	EXPECT_EQ(0, SEEN(UNMAP));
	/* Ranges that ended are still in it. */
	ASSERT_EQ(0, munmap(self->p, SIZE));
	EXPECT_EQ(1, SEEN(UNMAP));
	ASSERT_EQ(0, hm_untrack(self->fd, self->p, SIZE));
	ASSERT_EQ(0, hm_stats_context(self->fd, &after));
	EXPECT_EQ(before.notified[HETMEM_NOTIFY_UNMAP] + 2,
		  after.notified[HETMEM_NOTIFY_UNMAP]);
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
	EXPECT_EQ(1, hm_notified(other, self->p, HETMEM_NOTIFY_UNMAP));
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
		counted = hm_notified(fd, p, HETMEM_NOTIFY_RELEASE);
		EXPECT_EQ(1, counted);
		EXPECT_EQ(-ESRCH, pages_at(fd, p, SIZE, ANY_HOST));
		EXPECT_EQ(0, close(fd));
	}
}

TEST_F(notify, owner_exits)
{
	owner_ends(_metadata, false);
	/* It was not this context's owner. */
	EXPECT_EQ(0, SEEN(RELEASE));
	EXPECT_EQ(0, SEEN(UNMAP));
}

TEST_F(notify, owner_executes)
{
	owner_ends(_metadata, true);
	/* It was not this context's owner. */
	EXPECT_EQ(0, SEEN(RELEASE));
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

/* KSM replaces pages by one: a CLEAR or a PROTECTION for each at least. */
TEST_F(notify, ksm)
{
	static const char run[] = "/sys/kernel/mm/ksm/run";
	struct hetmem_cmd_stats st;
	int i, merged = 0;

	if (access(run, F_OK))
		SKIP(return, "kernel lacks KSM");
	for (i = 0; i < PAGES; i++)
		fill(PAGE(i), page_size(), 8);
	write_text("/sys/kernel/mm/ksm/sleep_millisecs", "1");
	write_text("/sys/kernel/mm/ksm/pages_to_scan", "1000");
	ASSERT_EQ(0, madvise(self->p, SIZE, MADV_MERGEABLE));
	ASSERT_EQ(0, write_text(run, "1"));
	for (i = 0; i < 1500 && !merged; i++) {
		usleep(10000);
		ASSERT_EQ(0, hm_stats(self->fd, self->p, &st));
		merged = st.notified[HETMEM_NOTIFY_CLEAR] >= PAGES - 1;
	}
	/* Unmerging gives each its own page again. */
	EXPECT_EQ(0, write_text(run, "2"));
	EXPECT_TRUE(merged);
	EXPECT_EQ(PAGES, pages_of_kind(self->fd, self->p, SIZE, HETMEM_HOST));
	for (i = 0; i < PAGES; i++)
		EXPECT_EQ(-1, mismatch(PAGE(i), page_size(), 8));
}

TEST_HARNESS_MAIN
