// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What a process may try with the mapping of its ring: give it to a child, make it larger,
 * executable, pinned, migrated, tracked, or use it for arguments and answers.
 */
#include "libktest/harness.h"
#include "libktest/ring.h"

#include <pthread.h>

#define ENTRIES	64

FIXTURE(ring)
{
	int fd;
	struct ring r;
};

FIXTURE_SETUP(ring)
{
	self->fd = hm_open();
	ASSERT_LE(0, self->fd);
	ASSERT_EQ(0, ring_open(self->fd, ENTRIES, ALL_EVENTS, &self->r));
}

FIXTURE_TEARDOWN(ring)
{
	EXPECT_EQ(0, close(self->fd));
}

/* Advice that would undo it is refused or without effect. */
TEST_F(ring, not_inherited_by_advice)
{
	pid_t pid;
	int ret = madvise(self->r.h, self->r.size, MADV_DOFORK);

	TH_LOG("MADV_DOFORK: %d, errno %d", ret, errno);
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		unsigned char vec;

		CHILD_CHECK(mincore(self->r.h, page_size(), &vec) < 0 &&
			    errno == ENOMEM);
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
	ring_close(&self->r);
}

TEST_F(ring, neither_larger_nor_executable)
{
	void *p, *q;

	EXPECT_NE(0, mprotect(self->r.h, self->r.size, PROT_READ | PROT_EXEC));
	p = mremap(self->r.h, self->r.size, 2 * self->r.size, MREMAP_MAYMOVE);
	EXPECT_EQ(MAP_FAILED, p);
	/* A second mapping of the same pages, and one that leaves a hole behind. */
	p = mremap(self->r.h, 0, self->r.size, MREMAP_MAYMOVE);
	TH_LOG("duplicate: %p errno %d", p, errno);
	q = mremap(self->r.h, self->r.size, self->r.size, MREMAP_MAYMOVE | 4);
	TH_LOG("dontunmap: %p errno %d", q, errno);
	EXPECT_NE(0, mprotect(self->r.h, page_size(), PROT_READ | PROT_EXEC));
	madvise(self->r.h, self->r.size, MADV_DONTNEED);
	madvise(self->r.h, self->r.size, MADV_REMOVE);
	madvise(self->r.h, self->r.size, MADV_PAGEOUT);
	madvise(self->r.h, self->r.size, MADV_HUGEPAGE);
	madvise(self->r.h, self->r.size, 102 /* GUARD_INSTALL */);
	mlock(self->r.h, self->r.size);
	if (p != MAP_FAILED)
		munmap(p, self->r.size);
	if (q != MAP_FAILED)
		munmap(q, self->r.size);
	munmap(self->r.h, self->r.size);
	EXPECT_EQ(0, ring_map(self->fd, &self->r));
	ring_close(&self->r);
}

/* The ring as memory that commands are about. */
TEST_F(ring, as_memory)
{
	struct hetmem_cmd_migrate cmd;
	struct hetmem_cmd_refresh ref;
	struct hetmem_run run;
	const long pages = self->r.size / page_size();

	EXPECT_EQ(0, hm_track(self->fd, self->r.h, self->r.size));
	EXPECT_EQ(0, hm_pin(self->fd, self->r.h, self->r.size, 60000, &cmd));
	EXPECT_EQ(0, cmd.pinned);
	EXPECT_EQ(pages, (long)(cmd.already + cmd.not_moved));
	EXPECT_EQ(0, hm_refresh(self->fd, self->r.h, &ref));
	run = run_at(self->fd, self->r.h);
	EXPECT_TRUE(run.why & HETMEM_WHY_SPECIAL);
	EXPECT_EQ(0, vm_pin());
	ring_close(&self->r);
	EXPECT_EQ(0, hm_untrack(self->fd, self->r.h, self->r.size));
}

/* Arguments and answers in the ring, which the kernel writes meanwhile. */
TEST_F(ring, holds_arguments)
{
	struct hetmem_cmd_residency *cmd = (void *)ring_entry(&self->r, 0);
	struct hetmem_run *runs = (void *)ring_entry(&self->r, 8);
	char *p = map_filled(64 * page_size(), 1);
	int i;

	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, hm_track(self->fd, p, 64 * page_size()));
	for (i = 0; i < 1000; i++) {
		int ret;

		*cmd = (struct hetmem_cmd_residency) {
			.size = sizeof(*cmd), .start = (uintptr_t)p,
			.end = (uintptr_t)p + 64 * page_size(),
			.runs = (uintptr_t)runs, .nr_runs = 16,
			.run_size = sizeof(*runs),
			.totals = (uintptr_t)(runs - 2), .nr_totals = 16,
			.total_size = sizeof(struct hetmem_total),
		};
		ret = ioctl(self->fd, HETMEM_IOC_RESIDENCY, cmd) ? -errno : 0;
		ASSERT_EQ(0, ret);
		invalidate(p + i % 64 * page_size());
		__atomic_store_n(&self->r.h->tail, self->r.h->head - i % ENTRIES,
				 __ATOMIC_RELEASE);
	}
	ring_close(&self->r);
	munmap(p, 64 * page_size());
}

/* The size changes while the kernel reads it: nothing behind the struct is touched. */
struct flipper {
	int stop;
	uint32_t *word, a, b;
};

static void *flip(void *arg)
{
	struct flipper *f = arg;

	while (!__atomic_load_n(&f->stop, __ATOMIC_RELAXED)) {
		__atomic_store_n(f->word, f->a, __ATOMIC_RELAXED);
		__atomic_store_n(f->word, f->b, __ATOMIC_RELAXED);
	}
	return NULL;
}

TEST_F(ring, size_flips)
{
	static const uint32_t other[] = { 0xffffffff, 0xffff0000, 8192, 4096, 4, 0 };
	const size_t room = 4 * MiB;
	char *p = map_filled(room, 1);
	struct hetmem_cmd_info *cmd = (void *)p;
	unsigned int k, i, ok, seen;
	pthread_t thread;

	ASSERT_NE(NULL, p);
	for (k = 0; k < ARRAY_SIZE(other); k++) {
		struct flipper f = { 0, &cmd->size, sizeof(*cmd), other[k] };

		fill(p, 65536, 1);
		memset(cmd, 0, sizeof(*cmd));
		ASSERT_EQ(0, pthread_create(&thread, NULL, flip, &f));
		for (i = ok = seen = 0; i < 20000; i++) {
			cmd->flags = 0;
			cmd->nr_devices = cmd->nr_pools = 0;
			if (!ioctl(self->fd, HETMEM_IOC_INFO, cmd))
				ok++;
			else
				seen |= 1u << (errno & 31);
		}
		__atomic_store_n(&f.stop, 1, __ATOMIC_RELAXED);
		pthread_join(thread, NULL);
		TH_LOG("%x: %u ok, errors %x", other[k], ok, seen);
		EXPECT_EQ(-1, mismatch_at(p + 128, 65536 - 128, 1, 128));
	}
	munmap(p, room);
	ring_close(&self->r);
}

TEST_HARNESS_MAIN
