// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * At the edges of what is allowed: a user who has no kernel memory left can give back what
 * he has; ranges as large as they may be cost a notification what their addresses do.
 */
#include "libktest/harness.h"
#include "libktest/asker.h"
#include "libktest/load.h"
#include "libktest/ring.h"
#include "libktest/sysfs.h"
#include "libktest/table.h"

#include <pthread.h>
#include <sys/resource.h>

#define SIZE	(64 * page_size())
#define TiB	(1UL << 40)

FIXTURE(edge)
{
	char *p;
};

FIXTURE_SETUP(edge)
{
	self->p = map_filled(SIZE, 1);
	ASSERT_NE(NULL, self->p);
}

FIXTURE_TEARDOWN(edge)
{
	write_text(SYSFS "caps/user_kb", "65536");
	write_text(SYSFS "caps/total_kb", "262144");
	munmap(self->p, SIZE);
}

/* Nothing is left: what gives back works, what takes says so and changes nothing. */
TEST_F(edge, nothing_left)
{
	static const char *const caps[] = { "caps/user_kb", "caps/total_kb" };
	struct turns t;
	unsigned int i;
	pid_t pid;

	for (i = 0; i < 2; i++) {
		ASSERT_EQ(0, turns_init(&t));
		pid = fork();
		ASSERT_LE(0, pid);
		if (!pid) {
			struct hetmem_cmd_migrate cmd;
			struct hetmem_cmd_refresh ref;
			struct hetmem_cmd_info info;
			struct hetmem_cmd_stats st;
			struct hetmem_event e;
			struct hetmem_list_entry list[8];
			struct asker a;
			struct ring r;
			uint64_t n;
			int fd, fd2, ret;

			CHILD_CHECK(!become_nobody());
			turns_in_child(&t);
			fd = executor_open(&r, FOREIGN(3), 64);
			fd2 = hm_open();
			CHILD_CHECK(fd >= 0 && fd2 >= 0);
			CHILD_CHECK(!hm_track(fd, self->p, SIZE));
			ret = hm_pin(fd, self->p, 16 * page_size(), 60000, &cmd);
			CHILD_CHECK(!ret && cmd.pinned == 16);
			turn_pass(t.to_parent[1]);
			turn_wait(t.to_child[0]);
			/* Takes. */
			ret = hm_open();
			fprintf(stderr, "# open %d\n", ret);
			CHILD_CHECK(ret == -EDQUOT);
			ret = hm_track(fd, self->p + SIZE, SIZE);
			CHILD_CHECK(ret == -EDQUOT);
			ret = hm_pin(fd, self->p, SIZE, 60000, &cmd);
			fprintf(stderr, "# pin %d pinned %llu\n", ret, cmd.pinned);
			CHILD_CHECK(ret == -EDQUOT);
			CHILD_CHECK(vm_pin() == 16);
			fprintf(stderr, "# residency %ld\n", pages_at(fd, self->p, SIZE, ANY_HOST));
			fprintf(stderr, "# refresh %d\n", hm_refresh(fd, self->p, &ref));
			fprintf(stderr, "# ring %d\n", ring_make(fd2, 64, 1, NULL));
			fprintf(stderr, "# list %d\n", hm_list(fd, list, 8));
			/* Does not take. */
			CHILD_CHECK(!hm_info(fd, &info));
			CHILD_CHECK(info.used_bytes > info.max_bytes || i);
			CHILD_CHECK(!hm_stats(fd, self->p, &st));
			CHILD_CHECK(!hm_allow(fd, 3));
			CHILD_CHECK(!hm_bind(fd2, FOREIGN(4), 0, "0123456789abcdef"));
			CHILD_CHECK(!asker_start(&a, fd, self->p, SIZE, FOREIGN(3),
						 uuid_of(FOREIGN(3))));
			while (ring_wait(&r, &e, 30000) && e.type != HETMEM_EVENT_HINT)
				;
			CHILD_CHECK(!hm_complete(fd, e.data, 0, 1));
			CHILD_CHECK(!asker_end(&a));
			/* Gives back. */
			ret = hm_unpin(fd, self->p, SIZE, &n);
			fprintf(stderr, "# unpin %d %llu\n", ret, (unsigned long long)n);
			CHILD_CHECK(!ret && n == 16);
			CHILD_CHECK(!vm_pin());
			CHILD_CHECK(!hm_untrack(fd, self->p, SIZE));
			ring_close(&r);
			CHILD_CHECK(!close(fd) && !close(fd2));
			_exit(0);
		}
		turns_in_parent(&t);
		ASSERT_TRUE(turn_wait(t.to_parent[0]));
		ASSERT_EQ(0, sysfs_set(caps[i], 0));
		turn_pass(t.to_child[1]);
		EXPECT_EQ(0, child_status(pid));
		write_text(SYSFS "caps/user_kb", "65536");
		write_text(SYSFS "caps/total_kb", "262144");
		close(t.to_child[1]);
		close(t.to_parent[0]);
	}
}

/* Parts of huge pages, one context after another, odd ends; then the pages are taken apart. */
FIXTURE(parts) { struct mem m; int fd; };
FIXTURE_VARIANT(parts) { enum mem_kind kind; };
FIXTURE_VARIANT_ADD(parts, thp) { MEM_THP };
FIXTURE_SETUP(parts)
{
	self->fd = hm_open();
	int ret = mem_map(&self->m, variant->kind, 2 * HUGE_SIZE, 1);

	if (ret == -EOPNOTSUPP) {
		mem_unmap(&self->m);
		SKIP(return, "kernel lacks %s", self->m.lacks);
	}
	ASSERT_EQ(0, ret);
}
FIXTURE_TEARDOWN(parts)
{
	mem_unmap(&self->m);
	EXPECT_EQ(0, close(self->fd));
	EXPECT_TRUE(EVENTUALLY(!vm_pin()));
}

TEST_F(parts, held)
{
	struct hetmem_cmd_migrate cmd;
	const size_t pg = page_size();
	char *p = self->m.p;
	int other = hm_open(), i;
	uint64_t n;
	long sum = 0;
	pid_t pid;

	for (i = 0; i < 1000; i += 7) {
		ASSERT_EQ(0, hm_pin(self->fd, p + i * pg, 3 * pg, 60000, &cmd));
		EXPECT_EQ(3, cmd.pinned);
		sum += 3;
	}
	EXPECT_EQ(sum, vm_pin());
	EXPECT_EQ(sum, pages_pinned(self->fd, p, self->m.size));
	ASSERT_EQ(0, hm_pin(other, p + pg, self->m.size - 2 * pg, 60000, &cmd));
	EXPECT_EQ(1022, cmd.pinned);
	EXPECT_EQ(sum + 1022, vm_pin());
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		CHILD_CHECK(mismatch(p, self->m.size, 1) == -1);
		if (variant->kind == MEM_THP)
			memset(p, 7, self->m.size);
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(-1, mismatch(p, self->m.size, 1));
	EXPECT_EQ(0, hm_unpin(self->fd, p + 100 * pg, 500 * pg, &n));
	TH_LOG("unpinned %lu of %ld", (unsigned long)n, sum);
	EXPECT_EQ(sum + 1022 - (long)n, vm_pin());
	if (variant->kind == MEM_THP) {
		ASSERT_EQ(0, munmap(p + 300 * pg, 100 * pg));
		ASSERT_EQ(0, madvise(p, 50 * pg, MADV_DONTNEED));
		ASSERT_EQ(0, mprotect(p + 600 * pg, 3 * pg, PROT_READ));
		EXPECT_TRUE(EVENTUALLY(vm_pin() <= sum + 1022 - (long)n - 100));
		ASSERT_EQ(0, hm_pin(other, p, self->m.size, 60000, &cmd));
		EXPECT_EQ(1024 - 150, cmd.pinned);
	} else {
		ASSERT_EQ(0, madvise(p, HUGE_SIZE, MADV_DONTNEED));
		memset(p, 3, HUGE_SIZE);
		ASSERT_EQ(0, hm_pin(other, p, self->m.size, 60000, &cmd));
		EXPECT_EQ(1024, cmd.pinned);
	}
	EXPECT_EQ(0, hm_unpin(other, NULL, 0x7ffffffff000UL, &n));
	EXPECT_EQ(0, hm_unpin(self->fd, NULL, 0x7ffffffff000UL, &n));
	EXPECT_EQ(0, vm_pin());
	close(other);
}

TEST_HARNESS_MAIN
