// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Timed pins: MIGRATE to the host with PIN, on every kind of memory; what is
 * charged for them, what RESIDENCY says, and all the ways in which they end.
 * Against a device's driver: emu_pin.c. Many of them: pins.c.
 */
#include "libktest/harness.h"
#include "libktest/ring.h"
#include "libktest/sysfs.h"

#include <sys/resource.h>
#include <sys/uio.h>

FIXTURE(pin)
{
	struct mem m;
	int fd;
	long pages;
	long before;
};

FIXTURE_VARIANT(pin)
{
	enum mem_kind kind;
};

FIXTURE_VARIANT_ADD(pin, anon) { MEM_ANON };
FIXTURE_VARIANT_ADD(pin, file_read) { MEM_FILE_READ };
FIXTURE_VARIANT_ADD(pin, file_cow) { MEM_FILE_COW };
FIXTURE_VARIANT_ADD(pin, file_shared) { MEM_FILE_SHARED };
FIXTURE_VARIANT_ADD(pin, shared_anon) { MEM_SHARED_ANON };
FIXTURE_VARIANT_ADD(pin, memfd) { MEM_MEMFD };
FIXTURE_VARIANT_ADD(pin, thp) { MEM_THP };
FIXTURE_VARIANT_ADD(pin, mlocked) { MEM_MLOCKED };

FIXTURE_SETUP(pin)
{
	size_t size = variant->kind == MEM_THP ? 2 * HUGE_SIZE : test_size();
	int ret = mem_map(&self->m, variant->kind, size, 1);

	if (ret == -EOPNOTSUPP)
		SKIP(return, "kernel lacks %s", self->m.lacks);
	ASSERT_EQ(0, ret);
	self->fd = hm_open();
	ASSERT_LE(0, self->fd);
	self->pages = size / page_size();
	self->before = vm_pin();
	ASSERT_LE(0, self->before);
}

FIXTURE_TEARDOWN(pin)
{
	close(self->fd);
	EXPECT_EQ(self->before, vm_pin());
	mem_unmap(&self->m);
}

#define PINNED		(vm_pin() - self->before)
#define SHOWN		pages_pinned(self->fd, self->m.p, self->m.size)
#define PAGE(n)		(self->m.p + (n) * page_size())

TEST_F(pin, closed)
{
	struct hetmem_list_entry list[64];
	struct hetmem_cmd_migrate cmd;
	int i, nr, found = 0;

	EXPECT_EQ(0, SHOWN);
	ASSERT_EQ(0, hm_pin(self->fd, self->m.p, self->m.size, FOREVER_MS,
			    &cmd));
	EXPECT_EQ(cmd.end, cmd.walk_end);
	EXPECT_EQ(self->pages, (long)cmd.already);
	EXPECT_EQ(self->pages, (long)cmd.pinned);
	EXPECT_EQ(self->pages, PINNED);
	EXPECT_EQ(self->pages, SHOWN);
	nr = hm_list(self->fd, list, 64);
	for (i = 0; i < nr && i < 64; i++)
		found += list[i].pid == (uint32_t)getpid() &&
			 (long)list[i].nr_pinned == self->pages;
	EXPECT_EQ(1, found);
	EXPECT_EQ(-1, mismatch(self->m.p, self->m.size, 1));
	/* Closing drops them before it returns: see the teardown. */
}

TEST_F(pin, timed_out)
{
	struct hetmem_cmd_migrate cmd;

	ASSERT_EQ(0, hm_pin(self->fd, self->m.p, self->m.size, 100, &cmd));
	EXPECT_EQ(self->pages, (long)cmd.pinned);
	EXPECT_TRUE(EVENTUALLY(!PINNED));
	EXPECT_EQ(0, SHOWN);
	EXPECT_EQ(-1, mismatch(self->m.p, self->m.size, 1));
}

/* Exactly what is unmapped, at the head, in the middle and at the tail. */
TEST_F(pin, unmapped_in_parts)
{
	static const int parts[] = { 0, 7, 8, 100, 255 };
	struct hetmem_cmd_migrate cmd;
	unsigned int i;

	ASSERT_EQ(0, hm_pin(self->fd, self->m.p, self->m.size, FOREVER_MS,
			    &cmd));
	for (i = 0; i < ARRAY_SIZE(parts); i++) {
		ASSERT_EQ(0, munmap(PAGE(parts[i]), page_size()));
		EXPECT_TRUE(EVENTUALLY(PINNED == self->pages - (int)i - 1));
		EXPECT_EQ(self->pages - (int)i - 1, SHOWN);
	}
	/* New memory in the place of old is not pinned. */
	ASSERT_EQ(PAGE(7), mmap(PAGE(7), 2 * page_size(), PROT_READ |
				PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS |
				MAP_FIXED, -1, 0));
	fill(PAGE(7), 2 * page_size(), 2);
	EXPECT_EQ(self->pages - 5, SHOWN);
	EXPECT_EQ(0, pages_pinned(self->fd, PAGE(7), 2 * page_size()));
	EXPECT_EQ(1, pages_pinned(self->fd, PAGE(6), 2 * page_size()));
	EXPECT_EQ(1, pages_pinned(self->fd, PAGE(8), 2 * page_size()));
	/* The rest at once, through all that is left of it. */
	ASSERT_EQ(0, munmap(self->m.p, self->m.size));
	EXPECT_TRUE(EVENTUALLY(!PINNED));
	EXPECT_EQ(0, SHOWN);
}

TEST_F(pin, moved_away)
{
	size_t part = 16 * page_size();
	struct hetmem_cmd_migrate cmd;
	char *to;

	ASSERT_EQ(0, hm_pin(self->fd, self->m.p, self->m.size, FOREVER_MS,
			    &cmd));
	to = mremap(self->m.p, part, 2 * part, MREMAP_MAYMOVE);
	ASSERT_NE(MAP_FAILED, to);
	ASSERT_NE(self->m.p, to);
	EXPECT_TRUE(EVENTUALLY(PINNED == self->pages - 16));
	EXPECT_EQ(self->pages - 16, SHOWN);
	EXPECT_EQ(0, pages_pinned(self->fd, to, part));
	EXPECT_EQ(-1, mismatch(to, part, 1));
	munmap(to, 2 * part);
}

/* Pinned again a page is held, and charged, once: for longer, never shorter. */
TEST_F(pin, twice)
{
	struct hetmem_cmd_migrate cmd;
	size_t part = 32 * page_size();
	long charged = 0, shown = 0;
	unsigned int ms;
	uint64_t since, unpinned;
	int other;

	ASSERT_EQ(0, hm_pin(self->fd, PAGE(16), part, FOREVER_MS, &cmd));
	/* It may end before it was looked at: then once more, for longer. */
	for (ms = 200; ms < FOREVER_MS; ms *= 4) {
		since = now_ns();
		ASSERT_EQ(0, hm_pin(self->fd, PAGE(0), part, ms, &cmd));
		EXPECT_EQ(32, (long)cmd.pinned);
		charged = PINNED;
		shown = SHOWN;
		if (now_ns() - since < ms * 1000000ULL)
			break;
		EXPECT_TRUE(EVENTUALLY(PINNED == 32));
	}
	EXPECT_EQ(48, charged);
	EXPECT_EQ(48, shown);
	EXPECT_TRUE(EVENTUALLY(PINNED == 32));
	EXPECT_EQ(32, SHOWN);
	EXPECT_EQ(0, pages_pinned(self->fd, PAGE(0), 16 * page_size()));
	/* Another context's are its own. */
	other = hm_open();
	ASSERT_LE(0, other);
	EXPECT_EQ(0, pages_pinned(other, self->m.p, self->m.size));
	ASSERT_EQ(0, hm_pin(other, PAGE(16), part, FOREVER_MS, &cmd));
	EXPECT_EQ(64, PINNED);
	EXPECT_EQ(32, SHOWN);
	/* UNPIN too. */
	ASSERT_EQ(0, hm_unpin(self->fd, self->m.p, self->m.size, &unpinned));
	EXPECT_EQ(32, unpinned);
	EXPECT_EQ(32, PINNED);
	EXPECT_EQ(0, SHOWN);
	EXPECT_EQ(32, pages_pinned(other, self->m.p, self->m.size));
	close(other);
	EXPECT_EQ(0, PINNED);
}

/* The second time is shorter than the first: nothing changes. */
TEST_F(pin, not_shortened)
{
	struct hetmem_cmd_migrate cmd;

	ASSERT_EQ(0, hm_pin(self->fd, self->m.p, self->m.size, FOREVER_MS, &cmd));
	ASSERT_EQ(0, hm_pin(self->fd, PAGE(8), 200 * page_size(), 1, &cmd));
	EXPECT_EQ(200, (long)cmd.pinned);
	/* Of another page, so that the end of the short ones is seen to come. */
	ASSERT_EQ(0, hm_unpin(self->fd, PAGE(3), page_size(), NULL));
	ASSERT_EQ(0, hm_pin(self->fd, PAGE(3), page_size(), 100, &cmd));
	EXPECT_TRUE(EVENTUALLY(PINNED == self->pages - 1));
	EXPECT_EQ(self->pages - 1, SHOWN);
}

/* The second time is longer. */
TEST_F(pin, prolonged)
{
	struct hetmem_cmd_migrate cmd;

	ASSERT_EQ(0, hm_pin(self->fd, self->m.p, self->m.size, 500, &cmd));
	ASSERT_EQ(0, hm_pin(self->fd, PAGE(30), 100 * page_size(), FOREVER_MS,
			    &cmd));
	EXPECT_EQ(100, (long)cmd.pinned);
	EXPECT_TRUE(EVENTUALLY(PINNED == 100));
	EXPECT_EQ(100, pages_pinned(self->fd, PAGE(30), 100 * page_size()));
}

/* In parts, over parts that were unpinned before, and what was never pinned. */
TEST_F(pin, unpinned)
{
	struct hetmem_cmd_migrate cmd;
	uint64_t nr = 7;

	EXPECT_EQ(0, hm_unpin(self->fd, self->m.p, self->m.size, &nr));
	EXPECT_EQ(0, nr);
	ASSERT_EQ(0, hm_pin(self->fd, self->m.p, self->m.size, FOREVER_MS, &cmd));
	ASSERT_EQ(0, hm_unpin(self->fd, PAGE(5), page_size(), &nr));
	EXPECT_EQ(1, nr);
	EXPECT_EQ(self->pages - 1, PINNED);
	EXPECT_EQ(0, pages_pinned(self->fd, PAGE(5), page_size()));
	EXPECT_EQ(1, pages_pinned(self->fd, PAGE(4), page_size()));
	EXPECT_EQ(1, pages_pinned(self->fd, PAGE(6), page_size()));
	/* Overlapping, and over the edges of 64 pages. */
	ASSERT_EQ(0, hm_unpin(self->fd, PAGE(0), 130 * page_size(), &nr));
	EXPECT_EQ(129, nr);
	ASSERT_EQ(0, hm_unpin(self->fd, PAGE(60), 140 * page_size(), &nr));
	EXPECT_EQ(70, nr);
	EXPECT_EQ(self->pages - 200, PINNED);
	EXPECT_EQ(self->pages - 200, SHOWN);
	/* Pinned again, for a while. */
	ASSERT_EQ(0, hm_pin(self->fd, PAGE(190), 20 * page_size(), FOREVER_MS,
			    &cmd));
	EXPECT_EQ(20, (long)cmd.pinned);
	EXPECT_EQ(self->pages - 190, PINNED);
	/* More than there is. */
	ASSERT_EQ(0, hm_unpin(self->fd, (void *)page_size(),
			      (1UL << 47) - 2 * page_size(), &nr));
	EXPECT_EQ(self->pages - 190, (long)nr);
	EXPECT_EQ(0, PINNED);
	EXPECT_EQ(0, SHOWN);
	EXPECT_EQ(-1, mismatch(self->m.p, self->m.size, 1));
}

/* What was unmapped has ended already: it is not counted as unpinned. */
TEST_F(pin, unpinned_and_unmapped)
{
	struct hetmem_cmd_migrate cmd;
	uint64_t nr = 0;

	ASSERT_EQ(0, hm_pin(self->fd, self->m.p, self->m.size, FOREVER_MS, &cmd));
	ASSERT_EQ(0, munmap(PAGE(10), 20 * page_size()));
	EXPECT_EQ(self->pages - 20, SHOWN);
	ASSERT_EQ(0, hm_unpin(self->fd, self->m.p, self->m.size, &nr));
	EXPECT_EQ(self->pages - 20, (long)nr);
	EXPECT_EQ(0, PINNED);
}

/* Nothing else moves it: move_pages() to another node fails, then works. */
TEST_F(pin, to_another_node)
{
	int status = -1, node = 1, from;
	struct hetmem_cmd_migrate cmd;
	void *page = PAGE(5);

	if (access("/sys/devices/system/node/node1", F_OK))
		SKIP(return, "kernel lacks a second NUMA node");
	from = host_node(page);
	ASSERT_LE(0, from);
	node = !from;
	ASSERT_EQ(0, hm_pin(self->fd, self->m.p, self->m.size, FOREVER_MS,
			    &cmd));
	/* What pinning made a copy of may be elsewhere. */
	from = host_node(page);
	node = !from;
	syscall(SYS_move_pages, 0, 1UL, &page, &node, &status, 0);
	EXPECT_GT(0, status);
	EXPECT_EQ(from, host_node(page));
	close(self->fd);
	self->fd = hm_open();
	if (self->m.kind == MEM_FILE_SHARED || self->m.kind == MEM_FILE_READ)
		return;	/* ramfs pages do not migrate */
	EXPECT_TRUE(EVENTUALLY(!syscall(SYS_move_pages, 0, 1UL, &page, &node,
					&status, 0) && status == node));
	EXPECT_EQ(-1, mismatch(self->m.p, self->m.size, 1));
}

/* Who exits or executes another program takes nothing along. */
TEST_F(pin, ended_with_the_process)
{
	struct hetmem_list_entry list[64];
	int i, sock[2], fd, way;
	struct turns t;
	pid_t pid;

	for (way = 0; way < 2; way++) {
		long most = 0;

		ASSERT_EQ(0, turns_init(&t));
		ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM, 0, sock));
		pid = fork();
		ASSERT_LE(0, pid);
		if (!pid) {
			struct hetmem_cmd_migrate cmd;
			int own = hm_open();

			turns_in_child(&t);
			CHILD_CHECK(own >= 0);
			/* fork() does not copy what a file can give again. */
			CHILD_CHECK(mismatch(self->m.p, self->m.size, 1) == -1);
			CHILD_CHECK(!hm_pin(own, self->m.p, self->m.size,
					    FOREVER_MS, &cmd));
			CHILD_CHECK((long)cmd.pinned == self->pages);
			CHILD_CHECK(!send_fd(sock[1], own));
			CHILD_CHECK(turn_wait(t.to_child[0]));
			if (way)
				_exit(0);
			execl("/bin/true", "true", NULL);
			_exit(1);
		}
		turns_in_parent(&t);
		fd = receive_fd(sock[0]);
		ASSERT_LE(0, fd);
		turn_pass(t.to_child[1]);
		EXPECT_EQ(0, child_status(pid));
		/* Its file is here still, and holds nothing. */
		EXPECT_TRUE(EVENTUALLY(({
			int nr = hm_list(self->fd, list, 64);

			for (i = 0, most = 0; i < nr && i < 64; i++)
				most += list[i].nr_pinned;
			!most;
		})));
		close(fd);
		close(sock[0]);
		close(sock[1]);
		close(t.to_child[1]);
		close(t.to_parent[0]);
	}
}

/* A child's copies are its own, whatever is pinned. */
TEST_F(pin, forked)
{
	struct hetmem_cmd_migrate cmd;
	pid_t pid;

	ASSERT_EQ(0, hm_pin(self->fd, self->m.p, self->m.size, FOREVER_MS,
			    &cmd));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		CHILD_CHECK(mismatch(self->m.p, self->m.size, 1) == -1);
		CHILD_CHECK(!vm_pin());
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(self->pages, PINNED);
	EXPECT_EQ(-1, mismatch(self->m.p, self->m.size, 1));
}

FIXTURE(pins)
{
	int fd;
	char *p;
	size_t size;
	long before;
};

FIXTURE_SETUP(pins)
{
	self->fd = hm_open();
	ASSERT_LE(0, self->fd);
	self->size = 4 * HUGE_SIZE;
	self->p = mmap(NULL, self->size, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		       MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, self->p);
	madvise(self->p, self->size, MADV_NOHUGEPAGE);
	self->before = vm_pin();
}

FIXTURE_TEARDOWN(pins)
{
	close(self->fd);
	EXPECT_EQ(self->before, vm_pin());
	munmap(self->p, self->size);
}

TEST_F(pins, wrong_arguments)
{
	struct hetmem_cmd_migrate cmd;

	fill(self->p, page_size(), 1);
	EXPECT_EQ(-EINVAL, hm_pin(self->fd, self->p, page_size(), 0, &cmd));
	EXPECT_EQ(-EINVAL, hm_pin(self->fd, self->p, page_size(),
				  HETMEM_PIN_TIMEOUT_MAX + 1, &cmd));
	EXPECT_EQ(-EINVAL, hm_pin(self->fd, self->p, page_size(), 0, &cmd));
	cmd.timeout_ms = 1;
	cmd.flags |= 2;
	EXPECT_EQ(-EINVAL, hm_ioctl(self->fd, HETMEM_IOC_MIGRATE, &cmd));
	EXPECT_EQ(0, PINNED);
	EXPECT_EQ(0, hm_pin(self->fd, self->p, page_size(),
			    HETMEM_PIN_TIMEOUT_MAX, &cmd));
	EXPECT_EQ(1, PINNED);
	cmd.flags = 0;
	cmd.timeout_ms = 1;
	EXPECT_EQ(-EINVAL, hm_ioctl(self->fd, HETMEM_IOC_MIGRATE, &cmd));
}

/* What is not there is not pinned. */
TEST_F(pins, holes)
{
	struct hetmem_cmd_migrate cmd;
	size_t size = 32 * page_size();
	volatile char sum = 0;
	int i;

	/* Written, read only (the zero page), not touched, in turn. */
	for (i = 0; i < 32; i++) {
		if (i % 4 == 0)
			fill(self->p + i * page_size(), page_size(), i);
		else if (i % 4 == 1)
			sum += self->p[i * page_size()];
	}
	ASSERT_EQ(0, sum);
	ASSERT_EQ(0, hm_pin(self->fd, self->p, size, FOREVER_MS, &cmd));
	EXPECT_EQ(16, (long)cmd.pinned);
	EXPECT_EQ(16, (long)cmd.not_moved);
	EXPECT_TRUE(cmd.why & HETMEM_WHY_ABSENT);
	EXPECT_EQ(16, PINNED);
	EXPECT_EQ(16, pages_pinned(self->fd, self->p, size));
	for (i = 0; i < 32; i++)
		EXPECT_EQ(i % 4 < 2, pages_pinned(self->fd, self->p + i *
						  page_size(), page_size()));
	/* Once it is there it is. */
	for (i = 2; i < 32; i++) {
		if (i % 4 >= 2)
			*(volatile char *)(self->p + i * page_size()) = 0;
	}
	ASSERT_EQ(0, hm_pin(self->fd, self->p, size, FOREVER_MS, &cmd));
	EXPECT_EQ(32, (long)cmd.pinned);
	EXPECT_EQ(32, PINNED);
	EXPECT_EQ(32, pages_pinned(self->fd, self->p, size));
	for (i = 0; i < 32; i += 4)
		EXPECT_EQ(-1, mismatch(self->p + i * page_size(), page_size(),
				       i));
	EXPECT_TRUE(all_zero(self->p + page_size(), 3 * page_size()));
}

/*
 * What is held is a page: one that was dropped stays held. The one that came in its
 * place is held when it is pinned, and then the first one is not any more.
 */
TEST_F(pins, dropped)
{
	struct hetmem_cmd_migrate cmd;
	size_t part = 8 * page_size();
	const long held = pins_held();
	uint64_t nr;

	fill(self->p, 2 * part, 1);
	ASSERT_EQ(0, hm_pin(self->fd, self->p, 2 * part, FOREVER_MS, &cmd));
	ASSERT_EQ(0, madvise(self->p, part, MADV_DONTNEED));
	EXPECT_EQ(16, PINNED);
	fill(self->p, part, 2);
	ASSERT_EQ(0, hm_pin(self->fd, self->p, 2 * part, FOREVER_MS, &cmd));
	EXPECT_EQ(16, (long)cmd.pinned);
	EXPECT_EQ(16, PINNED);
	EXPECT_EQ(held + 16, pins_held());
	EXPECT_EQ(16, pages_pinned(self->fd, self->p, 2 * part));
	/* It is the new one: it goes nowhere. */
	EXPECT_EQ(-1, mismatch(self->p, part, 2));
	ASSERT_EQ(0, hm_unpin(self->fd, self->p, part, &nr));
	EXPECT_EQ(8, nr);
	EXPECT_EQ(8, PINNED);
	EXPECT_EQ(held + 8, pins_held());
	EXPECT_EQ(-1, mismatch(self->p, part, 2));
	EXPECT_EQ(-1, mismatch_at(self->p + part, part, 1, part));
}

/* Memory that may only be read, and memory that may not even be that. */
TEST_F(pins, protected)
{
	struct hetmem_cmd_migrate cmd;
	size_t part = 8 * page_size();

	fill(self->p, 3 * part, 1);
	ASSERT_EQ(0, mprotect(self->p + part, part, PROT_READ));
	ASSERT_EQ(0, mprotect(self->p + 2 * part, part, PROT_NONE));
	ASSERT_EQ(0, hm_pin(self->fd, self->p, 3 * part, FOREVER_MS, &cmd));
	EXPECT_EQ(16, (long)cmd.pinned);
	EXPECT_EQ(16, PINNED);
	EXPECT_EQ(16, pages_pinned(self->fd, self->p, 3 * part));
	ASSERT_EQ(0, mprotect(self->p, 3 * part, PROT_READ | PROT_WRITE));
	EXPECT_EQ(-1, mismatch(self->p, 3 * part, 1));
	fill(self->p, 3 * part, 2);
	EXPECT_EQ(-1, mismatch(self->p, 3 * part, 2));
	EXPECT_EQ(16, PINNED);
}

/* RESIDENCY has all of it in one piece, with many pins in that. */
TEST_F(pins, unreadable)
{
	const size_t step = 3 * page_size();
	struct hetmem_cmd_migrate cmd;
	int i, nr = test_rounds(512);

	fill(self->p, nr * step, 1);
	for (i = 0; i < nr; i++)
		ASSERT_EQ(0, hm_pin(self->fd, self->p + i * step, page_size(),
				    FOREVER_MS, &cmd));
	/* One more that begins at a page that is pinned, and is held longer. */
	ASSERT_EQ(0, hm_pin(self->fd, self->p, 2 * page_size(), FOREVER_MS,
			    &cmd));
	ASSERT_EQ(0, mprotect(self->p, self->size, PROT_NONE));
	EXPECT_EQ(nr + 1, PINNED);
	EXPECT_EQ(nr + 1, pages_pinned(self->fd, self->p, self->size));
	EXPECT_EQ(2, pages_pinned(self->fd, self->p, step));
	EXPECT_EQ(0, pages_pinned(self->fd, self->p + step - page_size(),
				  page_size()));
	EXPECT_EQ(1, pages_pinned(self->fd, self->p + step, step));
	EXPECT_EQ(0, pages_pinned(self->fd, self->p + nr * step,
				  self->size - nr * step));
}

TEST_F(pins, left_alone)
{
	struct hetmem_cmd_migrate cmd;
	size_t size = 0;
	struct mem m;
	char *p = NULL;
	int ret;

	ASSERT_EQ(0, special_mapping(&p, &size));
	ASSERT_EQ(0, hm_pin(self->fd, p, size, FOREVER_MS, &cmd));
	EXPECT_EQ(0, cmd.pinned);
	ret = mem_map(&m, MEM_HUGETLB, HUGE_SIZE, 1);
	if (!ret) {
		ASSERT_EQ(0, hm_pin(self->fd, m.p, m.size, FOREVER_MS,
				    &cmd));
		EXPECT_EQ(0, cmd.pinned);
	}
	mem_unmap(&m);
	ASSERT_EQ(0, munmap(self->p, HUGE_SIZE));
	ASSERT_EQ(0, hm_pin(self->fd, self->p, HUGE_SIZE, FOREVER_MS, &cmd));
	EXPECT_EQ(0, cmd.pinned);
	EXPECT_EQ(0, PINNED);
}

/* RLIMIT_MEMLOCK is for who has not CAP_IPC_LOCK. */
TEST_F(pins, limited)
{
	pid_t pid;

	fill(self->p, self->size, 1);
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		/* A block and a half. */
		struct rlimit limit = { 3 * MiB, 3 * MiB };
		struct hetmem_cmd_migrate cmd;
		int fd;

		CHILD_CHECK(!setrlimit(RLIMIT_MEMLOCK, &limit));
		CHILD_CHECK(!become_nobody());
		prctl(PR_SET_DUMPABLE, 1);
		fd = hm_open();
		CHILD_CHECK(fd >= 0);
		fill(self->p, self->size, 1);
		CHILD_CHECK(hm_pin(fd, self->p, self->size, FOREVER_MS,
				   &cmd) == -EDQUOT);
		/* As much as was said, and no more: to the page that ends it. */
		CHILD_CHECK((long)cmd.pinned == vm_pin());
		CHILD_CHECK(vm_pin() > 768 - 64 && vm_pin() <= 768);
		CHILD_CHECK(pages_pinned(fd, self->p, self->size) == vm_pin());
		CHILD_CHECK(cmd.walk_end == cmd.start + cmd.pinned * page_size());
		CHILD_CHECK(cmd.already == cmd.pinned);
		CHILD_CHECK(!cmd.moved && !cmd.not_moved);
		CHILD_CHECK(pages_pinned(fd, self->p, cmd.pinned * page_size()) ==
			    vm_pin());
		CHILD_CHECK(!munmap(self->p, HUGE_SIZE));
		CHILD_CHECK(EVENTUALLY(vm_pin() <= 512));
		close(fd);
		CHILD_CHECK(!vm_pin());
		/* Exactly the limit, and a page more. */
		fd = hm_open();
		CHILD_CHECK(!hm_pin(fd, self->p + self->size - 3 * MiB,
				    3 * MiB, FOREVER_MS, &cmd));
		CHILD_CHECK(vm_pin() == 768);
		CHILD_CHECK(hm_pin(fd, self->p + self->size - 3 * MiB -
				   page_size(), page_size(), FOREVER_MS,
				   &cmd) == -EDQUOT);
		CHILD_CHECK(!cmd.pinned && vm_pin() == 768);
		CHILD_CHECK(cmd.walk_end == cmd.start);
		/* What is held already costs nothing. */
		CHILD_CHECK(!hm_pin(fd, self->p + self->size - 3 * MiB,
				    3 * MiB, FOREVER_MS, &cmd));
		CHILD_CHECK(cmd.pinned == 768 && vm_pin() == 768);
		CHILD_CHECK(mismatch_at(self->p + HUGE_SIZE,
					self->size - HUGE_SIZE, 1,
					HUGE_SIZE) == -1);
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
}

static int racer(void *arg)
{
	volatile int *stop = ((void **)arg)[0];
	char *p = ((void **)arg)[1];
	size_t size = *(size_t *)((void **)arg)[2];
	unsigned int i, bad = 0;

	for (i = 0; !*stop; i++) {
		size_t at = i % 8 * size / 8;

		bad += munmap(p + at, size / 8) != 0;
		bad += mmap(p + at, size / 8, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) !=
		       p + at;
		p[at] = 1;
		madvise(p, size, MADV_NOHUGEPAGE);
	}
	return bad != 0;
}

/* Pinned by one thread, unmapped by another, mapped again, all at once. */
TEST_F(pins, raced)
{
	int i, rounds = test_rounds(300);
	size_t part = 64 * page_size();
	volatile int *stop = mmap(NULL, page_size(), PROT_READ | PROT_WRITE,
				  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	struct hetmem_cmd_migrate cmd;
	char stack[16384] __attribute__((aligned(16)));
	void *arg[3] = { (void *)stop, self->p, &part };
	pid_t pid;

	ASSERT_NE(MAP_FAILED, stop);
	pid = clone(racer, stack + sizeof(stack), CLONE_VM | SIGCHLD, arg);
	ASSERT_LE(0, pid);
	for (i = 0; i < rounds; i++) {
		EXPECT_EQ(0, hm_pin(self->fd, self->p, part, 1 + i % 5, &cmd));
	}
	*stop = 1;
	EXPECT_EQ(0, child_status(pid));
	/* Whatever happened, all of it ends. */
	EXPECT_TRUE(EVENTUALLY(!PINNED));
	EXPECT_EQ(0, pages_pinned(self->fd, self->p, part));
	munmap((void *)stop, page_size());
}

TEST_HARNESS_MAIN
