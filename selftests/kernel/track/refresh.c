// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * REFRESH and the marks that it goes by, without any device: which blocks a
 * notification makes dirty, that exactly those are looked at, and ranges that
 * change, end or are enormous meanwhile.
 */
#include "libktest/harness.h"
#include "libktest/ring.h"

#include <pthread.h>

#define BLOCK	(2 * MiB)
#define BLOCKS	100
#define SIZE	(BLOCKS * BLOCK)

FIXTURE(refresh)
{
	int fd;
	void *map;
	char *p;		/* aligned to blocks, nothing touched */
	struct hetmem_cmd_refresh cmd;
};

FIXTURE_SETUP(refresh)
{
	self->fd = hm_open_flags(0);
	ASSERT_GE(self->fd, 0);
	self->map = mmap(NULL, SIZE + BLOCK, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	ASSERT_NE(MAP_FAILED, self->map);
	madvise(self->map, SIZE + BLOCK, MADV_NOHUGEPAGE);
	self->p = (char *)(((uintptr_t)self->map + BLOCK - 1) & ~(BLOCK - 1));
	ASSERT_EQ(0, hm_track(self->fd, self->p, SIZE));
}

FIXTURE_TEARDOWN(refresh)
{
	munmap(self->map, SIZE + BLOCK);
	EXPECT_EQ(0, close(self->fd));
}

#define AT(n)		(self->p + (n) * BLOCK)
#define REFRESH(where)	hm_refresh(self->fd, where, &self->cmd)
#define DIRTY()		hm_dirty(self->fd, self->p)

/* All that is dirty is looked at, and it was @n blocks. */
#define EXPECT_WALKED(n)						\
	do {								\
		EXPECT_EQ(n, DIRTY());					\
		EXPECT_EQ(0, REFRESH(self->p));				\
		EXPECT_EQ(n, self->cmd.walked_blocks);			\
		EXPECT_EQ(0, self->cmd.dirty_blocks);			\
		EXPECT_EQ(0, self->cmd.on_device);			\
		EXPECT_EQ(0, DIRTY());					\
	} while (0)

/* A range begins as one of which nothing is known. */
TEST_F(refresh, first_look)
{
	uint64_t before = now_ns(), as_of;
	struct hetmem_cmd_stats st;

	ASSERT_EQ(0, hm_stats(self->fd, self->p, &st));
	EXPECT_EQ(BLOCKS, st.dirty_blocks);
	EXPECT_EQ(0, st.as_of);
	EXPECT_EQ(0, st.on_device);
	EXPECT_WALKED(BLOCKS);
	as_of = self->cmd.as_of;
	EXPECT_LE(before, as_of);
	EXPECT_GE(now_ns(), as_of);
	/* Any page of the range will do; and there is nothing to do. */
	EXPECT_EQ(0, REFRESH(self->p + SIZE - page_size()));
	EXPECT_EQ(0, self->cmd.walked_blocks);
	EXPECT_LE(as_of, self->cmd.as_of);
	ASSERT_EQ(0, hm_stats(self->fd, self->p, &st));
	EXPECT_EQ(self->cmd.as_of, st.as_of);
	EXPECT_EQ(-ENOENT, REFRESH(self->p + SIZE));
	EXPECT_EQ(-ENOENT, REFRESH(self->p - page_size()));
	/* What comes back after an error is not what was there before. */
	EXPECT_EQ(0, self->cmd.walked_blocks);
}

/* Blocks are those of the address space, not of the range. */
TEST_F(refresh, unaligned)
{
	const size_t page = page_size();

	ASSERT_EQ(0, hm_untrack(self->fd, self->p, SIZE));
	self->p += BLOCK - page;
	ASSERT_EQ(0, hm_track(self->fd, self->p, 2 * page));
	EXPECT_WALKED(2);
	ASSERT_EQ(0, madvise(self->p, page, MADV_DONTNEED));
	EXPECT_WALKED(1);
	ASSERT_EQ(0, madvise(self->p, 2 * page, MADV_DONTNEED));
	EXPECT_WALKED(2);
	ASSERT_EQ(0, hm_untrack(self->fd, self->p, 2 * page));
	ASSERT_EQ(0, hm_track(self->fd, self->p, BLOCK + 2 * page));
	EXPECT_WALKED(3);
	/* Beside it is not in it, also in the same block. */
	ASSERT_EQ(0, madvise(self->p - page, page, MADV_DONTNEED));
	ASSERT_EQ(0, madvise(self->p + BLOCK + 2 * page, page,
			     MADV_DONTNEED));
	EXPECT_WALKED(0);
	self->p -= BLOCK - page;
}

/* What can change where pages are marks, what cannot does not. */
TEST_F(refresh, marked_by)
{
	const size_t page = page_size();
	char *p = self->p;
	struct turns t;
	pid_t pid;

	EXPECT_WALKED(BLOCKS);
	memset(AT(5), 1, BLOCK);
	EXPECT_WALKED(0);
	ASSERT_EQ(0, mprotect(AT(5), BLOCK, PROT_READ));
	ASSERT_EQ(0, mprotect(AT(5), BLOCK, PROT_READ | PROT_WRITE));
	EXPECT_WALKED(0);
	ASSERT_EQ(0, madvise(AT(5), page, MADV_DONTNEED));
	EXPECT_WALKED(1);
	ASSERT_EQ(0, madvise(AT(5) - page, 2 * page, MADV_DONTNEED));
	EXPECT_WALKED(2);
	ASSERT_EQ(0, munmap(AT(7), BLOCK));
	EXPECT_WALKED(1);
	ASSERT_EQ(AT(7), mmap(AT(7), BLOCK, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	EXPECT_WALKED(0);
	ASSERT_EQ(AT(7), mmap(AT(7), BLOCK, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0));
	EXPECT_WALKED(1);
	/* The old place of mremap() only. */
	*AT(9) = 1;
	ASSERT_EQ(AT(20), mremap(AT(9), page, page, MREMAP_MAYMOVE |
				 MREMAP_FIXED, AT(20)));
	EXPECT_LE(1, DIRTY());
	EXPECT_GE(2, DIRTY());
	EXPECT_EQ(0, REFRESH(p));
	/* fork() write-protects; breaking that changes what is where. */
	ASSERT_EQ(0, turns_init(&t));
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		turns_in_child(&t);
		CHILD_CHECK(turn_wait(t.to_child[0]));
		_exit(0);
	}
	turns_in_parent(&t);
	EXPECT_WALKED(0);
	*(AT(5) + 4 * page) = 2;
	EXPECT_WALKED(1);
	EXPECT_TRUE(turn_pass(t.to_child[1]));
	EXPECT_EQ(0, child_status(pid));
}

/* Exactly the blocks that were notified, however many. */
TEST_F(refresh, many_blocks)
{
	static const int numbers[] = { 63, 64, 65, 66, 89 };
	unsigned int n;
	int i;

	EXPECT_WALKED(BLOCKS);
	for (n = 0; n < ARRAY_SIZE(numbers); n++) {
		ASSERT_EQ(0, madvise(AT(10), numbers[n] * BLOCK, MADV_DONTNEED));
		EXPECT_WALKED(numbers[n]);
	}
	ASSERT_EQ(0, madvise(AT(0), SIZE, MADV_DONTNEED));
	EXPECT_WALKED(BLOCKS);
	/* 65 blocks: 63 and a page of each neighbour. */
	ASSERT_EQ(0, madvise(AT(11) - page_size(), 63 * BLOCK +
			     2 * page_size(), MADV_DONTNEED));
	EXPECT_WALKED(65);
	/* Each block once, however often it is marked. */
	for (i = 0; i < 50; i++) {
		ASSERT_EQ(0, madvise(AT(i % 7 * 3), page_size(),
				     MADV_DONTNEED));
	}
	EXPECT_WALKED(7);
	/* What counts is the part of the notification in the range. */
	ASSERT_EQ(0, hm_untrack(self->fd, self->p, SIZE));
	ASSERT_EQ(0, hm_track(self->fd, AT(0), 60 * BLOCK));
	ASSERT_EQ(0, hm_track(self->fd, AT(60), 40 * BLOCK));
	EXPECT_WALKED(60);
	ASSERT_EQ(0, hm_refresh(self->fd, AT(60), &self->cmd));
	EXPECT_EQ(40, self->cmd.walked_blocks);
	ASSERT_EQ(0, madvise(AT(50), 50 * BLOCK, MADV_DONTNEED));
	EXPECT_WALKED(10);
	EXPECT_EQ(40, hm_dirty(self->fd, AT(60)));
}

/* One unmapping in a range of 64 GiB: its own blocks, also of many words of bits. */
TEST_F(refresh, many_words)
{
	const size_t size = 64UL << 30, odd = 12345 * BLOCK, part = 7001 * BLOCK;
	char *p = mmap(FAR, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS |
		       MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);

	ASSERT_EQ(FAR, p);
	ASSERT_EQ(0, hm_track(self->fd, p, size));
	ASSERT_EQ(0, hm_refresh_all(self->fd, p, &self->cmd));
	ASSERT_EQ(size / BLOCK, self->cmd.walked_blocks);
	ASSERT_EQ(0, munmap(p + odd, part));
	EXPECT_EQ((long)(part / BLOCK), hm_dirty(self->fd, p));
	EXPECT_EQ(0, hm_refresh_all(self->fd, p, &self->cmd));
	EXPECT_EQ(part / BLOCK, self->cmd.walked_blocks);
	munmap(p, size);
}

/* A call looks at so many blocks, and the next one goes on after them. */
TEST_F(refresh, in_parts)
{
	const unsigned long part = HETMEM_REFRESH_BLOCKS, all = 2 * part + part / 2;
	uint64_t before = now_ns(), first;

	ASSERT_EQ(0, hm_track(self->fd, FAR, all * BLOCK));
	ASSERT_EQ(0, hm_refresh(self->fd, FAR, &self->cmd));
	EXPECT_EQ(part, self->cmd.walked_blocks);
	EXPECT_EQ(all - part, self->cmd.dirty_blocks);
	EXPECT_EQ(0, self->cmd.as_of);
	first = now_ns();
	/* What changes before the place where it goes on is left for the next round. */
	ASSERT_EQ(FAR, mmap(FAR, BLOCK, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS |
			    MAP_FIXED_NOREPLACE, -1, 0));
	ASSERT_EQ(0, munmap(FAR, BLOCK));
	ASSERT_EQ(0, hm_refresh(self->fd, FAR, &self->cmd));
	EXPECT_EQ(part, self->cmd.walked_blocks);
	EXPECT_EQ(0, self->cmd.as_of);
	ASSERT_EQ(0, hm_refresh(self->fd, FAR, &self->cmd));
	EXPECT_EQ(part / 2, self->cmd.walked_blocks);
	EXPECT_EQ(1, self->cmd.dirty_blocks);
	/* As of the beginning of the round. */
	EXPECT_LE(before, self->cmd.as_of);
	EXPECT_GE(first, self->cmd.as_of);
	ASSERT_EQ(0, hm_refresh(self->fd, FAR, &self->cmd));
	EXPECT_EQ(1, self->cmd.walked_blocks);
	EXPECT_EQ(0, self->cmd.dirty_blocks);
	EXPECT_LE(first, self->cmd.as_of);
}

/* Another process looks, as far as the owner allows it: the owner's memory, not its own. */
TEST_F(refresh, by_another)
{
	struct hetmem_cmd_refresh *cmd = &self->cmd;
	pid_t pid;
	int i;

	for (i = 0; i < 2; i++) {
		ASSERT_EQ(0, hm_allow(self->fd, i ? HETMEM_SHAREABLE : 0));
		pid = fork();
		ASSERT_LE(0, pid);
		if (!pid) {
			munmap(self->map, SIZE + BLOCK);
			CHILD_CHECK(!become_nobody());
			CHILD_CHECK(REFRESH(self->p) == (i ? 0 : -EPERM));
			CHILD_CHECK(!i || cmd->walked_blocks == BLOCKS);
			_exit(0);
		}
		EXPECT_EQ(0, child_status(pid));
		EXPECT_EQ(i ? 0 : BLOCKS, DIRTY());
	}
	*AT(3) = 1;
	EXPECT_WALKED(0);
}

/* Two contexts have each their own marks. */
TEST_F(refresh, two_contexts)
{
	int other = hm_open();

	ASSERT_GE(other, 0);
	ASSERT_EQ(0, hm_track(other, self->p, SIZE));
	EXPECT_WALKED(BLOCKS);
	EXPECT_EQ(BLOCKS, hm_dirty(other, self->p));
	ASSERT_EQ(0, hm_refresh(other, self->p, &self->cmd));
	ASSERT_EQ(0, madvise(AT(3), page_size(), MADV_DONTNEED));
	EXPECT_WALKED(1);
	EXPECT_EQ(1, hm_dirty(other, self->p));
	close(other);
}

struct worker {
	pthread_t thread;
	int fd;
	char *p;
	volatile bool *stop;
	volatile long done;
	int bad;
};

static void *refresh_on(void *arg)
{
	struct worker *w = arg;
	struct hetmem_cmd_refresh cmd;

	while (!*w->stop) {
		int ret = hm_refresh(w->fd, w->p, &cmd);

		if (ret && ret != -ENOENT)
			w->bad = ret;
		/* Of no other range than this one. */
		if (!ret && (cmd.on_device || cmd.walked_blocks > BLOCKS ||
			     cmd.dirty_blocks > BLOCKS))
			w->bad = -EBADMSG;
		w->done++;
	}
	return NULL;
}

/* The range goes, and others come in its place, while it is looked at. */
TEST_F(refresh, tracked_anew)
{
	volatile bool stop = false;
	struct worker w[2];
	int i;

	for (i = 0; i < 2; i++) {
		w[i] = (struct worker){
			.fd = self->fd, .p = self->p, .stop = &stop,
		};
		ASSERT_EQ(0, pthread_create(&w[i].thread, NULL, refresh_on,
					    &w[i]));
	}
	/* Long enough that one of them has come to an end at least. */
	for (i = 0; i < test_rounds(200) ||
	     (!w[0].done && !w[1].done && i < 100000); i++) {
		size_t size = i & 1 ? SIZE : BLOCK;

		EXPECT_EQ(0, hm_untrack(self->fd, self->p,
					i & 1 ? BLOCK : SIZE));
		EXPECT_EQ(0, hm_track(self->fd, self->p, size));
		EXPECT_EQ(0, madvise(self->p, size, MADV_DONTNEED));
	}
	stop = true;
	for (i = 0; i < 2; i++) {
		pthread_join(w[i].thread, NULL);
		EXPECT_EQ(0, w[i].bad);
	}
	EXPECT_LT(0, w[0].done + w[1].done);
	EXPECT_EQ(0, hm_refresh_all(self->fd, self->p, &self->cmd));
	EXPECT_EQ(0, DIRTY());
}

/* The descriptor is closed in the midst; the context ends with the call. */
TEST_F(refresh, closed_meanwhile)
{
	volatile bool stop = true;
	int i;

	for (i = 0; i < test_rounds(40); i++) {
		struct hetmem_cmd_refresh *cmd = &self->cmd;
		struct worker w = { .p = self->p, .stop = &stop };

		stop = false;
		w.fd = hm_open();
		ASSERT_GE(w.fd, 0);
		ASSERT_EQ(0, hm_track(w.fd, self->p, SIZE));
		ASSERT_EQ(0, pthread_create(&w.thread, NULL, refresh_on, &w));
		/* time: the moment varies, and each is right */
		usleep(i * 100);
		EXPECT_EQ(0, close(w.fd));
		stop = true;
		pthread_join(w.thread, NULL);
		EXPECT_TRUE(!w.bad || w.bad == -EBADF);
		EXPECT_EQ(0, REFRESH(self->p));
		EXPECT_EQ(0, cmd->dirty_blocks);
	}
}

/* Mapping and unmapping all the time: bounded, and right afterwards. */
TEST_F(refresh, unmapped_meanwhile)
{
	volatile bool stop = false;
	struct worker w = { .fd = self->fd, .p = self->p, .stop = &stop };
	int i;

	ASSERT_EQ(0, pthread_create(&w.thread, NULL, refresh_on, &w));
	for (i = 0; i < test_rounds(400); i++) {
		ASSERT_EQ(AT(1), mmap(AT(1), 4 * BLOCK, PROT_READ | PROT_WRITE,
				      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
				      -1, 0));
		*AT(i % 5) = 1;
		ASSERT_EQ(0, munmap(AT(2), BLOCK));
	}
	stop = true;
	pthread_join(w.thread, NULL);
	EXPECT_EQ(0, w.bad);
	EXPECT_EQ(0, hm_refresh_all(self->fd, self->p, &self->cmd));
	EXPECT_WALKED(0);
}

/* 4 GiB, of which nothing is mapped. */
TEST_F(refresh, huge)
{
	const size_t size = slow_kernel() ? 1UL << 30 : 1UL << 32;

	ASSERT_EQ(0, hm_track(self->fd, FAR, size));
	ASSERT_EQ(0, hm_refresh(self->fd, FAR, &self->cmd));
	EXPECT_EQ(size / BLOCK, self->cmd.walked_blocks);
	EXPECT_EQ(0, self->cmd.dirty_blocks);
	EXPECT_EQ(0, self->cmd.on_device);
	EXPECT_EQ(0, hm_refresh(self->fd, FAR, &self->cmd));
	EXPECT_EQ(0, self->cmd.walked_blocks);
}

TEST_HARNESS_MAIN
