// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* LIST: who has which contexts open, and who sees that. Its array: arrays.c. */
#include "libktest/harness.h"
#include "libktest/sysfs.h"

#include <pthread.h>

#define BLOCK	(2 * MiB)
#define SIZE	(4 * BLOCK)

FIXTURE(list)
{
	int fd;
	char *p;
};

FIXTURE_SETUP(list)
{
	self->fd = hm_open_flags(0);
	ASSERT_GE(self->fd, 0);
	self->p = FAR + SIZE;
	ASSERT_EQ(0, hm_track(self->fd, self->p, SIZE));
}

FIXTURE_TEARDOWN(list)
{
	EXPECT_EQ(0, close(self->fd));
}

#define MANY	32	/* more than a user may have open in 1 MiB */

/* Of these entries: those of a process. */
static int listed(const struct hetmem_list_entry *e, int nr, pid_t pid,
		  const struct hetmem_list_entry **one)
{
	int n = 0;

	for (; nr--; e++) {
		if (e->pid != (uint32_t)pid)
			continue;
		n++;
		*one = e;
	}
	return n;
}

TEST_F(list, entries)
{
	struct hetmem_list_entry e[8];
	const struct hetmem_list_entry *one = NULL;
	unsigned char *bytes = (void *)e;
	int nr, all, i, other;

	all = hm_list(self->fd, NULL, 0);
	ASSERT_LE(0, all);
	ASSERT_LE(1, all);
	ASSERT_GT(ARRAY_SIZE(e), all + 2);
	nr = hm_list(self->fd, e, ARRAY_SIZE(e));
	ASSERT_LE(0, nr);
	EXPECT_EQ(all, nr);
	EXPECT_EQ(1, listed(e, nr, getpid(), &one));
	EXPECT_EQ(0, one->uid);
	EXPECT_EQ(1, one->nr_ranges);
	EXPECT_EQ(0, one->flags);
	EXPECT_EQ(0, one->nr_pinned);
	EXPECT_EQ(0, one->nr_hints);
	EXPECT_EQ(0, one->reserved);
	/* A second one, with everything different. */
	other = hm_open();
	ASSERT_GE(other, 0);
	ASSERT_EQ(0, hm_allow(other, HETMEM_SHAREABLE));
	ASSERT_EQ(0, hm_untrack(self->fd, self->p, SIZE));
	ASSERT_EQ(0, hm_allow(self->fd, HETMEM_ALLOW_HINTS));
	ASSERT_EQ(0, hm_track(other, FAR, BLOCK));
	ASSERT_EQ(0, hm_track(other, FAR + BLOCK, BLOCK));
	nr = hm_list(other, e, ARRAY_SIZE(e));
	ASSERT_LE(0, nr);
	EXPECT_EQ(all + 1, nr);
	EXPECT_EQ(2, listed(e, nr, getpid(), &one));
	for (i = 0; i < nr; i++) {
		if (e[i].pid != (uint32_t)getpid())
			continue;
		EXPECT_EQ(e[i].nr_ranges == 2 ? HETMEM_LIST_SHAREABLE :
						HETMEM_LIST_ALLOW_HINTS,
			  e[i].flags);
	}
	/* Room for one: how many there are is said, and no more is written. */
	memset(e, 0xa5, sizeof(e));
	nr = hm_list(other, e, 1);
	ASSERT_LE(0, nr);
	EXPECT_EQ(all + 1, nr);
	for (i = sizeof(e[0]); i < (int)sizeof(e); i++)
		ASSERT_EQ(0xa5, bytes[i]);
	close(other);
}

/* A user sees its own, root sees all; a user has a number of them at most. */
TEST_F(list, of_users)
{
	const struct hetmem_list_entry *one = NULL;
	struct hetmem_list_entry e[MANY + 8];
	long cap = sysfs_read("caps/user_kb");
	struct turns t;
	pid_t pid;
	int nr;

	ASSERT_EQ(0, turns_init(&t));
	ASSERT_EQ(0, sysfs_set("caps/user_kb", KiB));
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		int fds[MANY], i;

		turns_in_child(&t);
		CHILD_CHECK(!become_nobody());
		/* From its parent, whose it is not. */
		CHILD_CHECK(hm_list(self->fd, e, 4) == -EPERM);
		for (i = 0; i < MANY; i++) {
			fds[i] = hm_open();
			if (fds[i] < 0)
				break;
		}
		CHILD_CHECK(i > 1 && i < MANY && fds[i] == -EDQUOT);
		nr = hm_list(fds[0], e, ARRAY_SIZE(e));
		CHILD_CHECK(nr == i);
		while (nr--)
			CHILD_CHECK(e[nr].uid == NOBODY &&
				    e[nr].pid == (uint32_t)getpid());
		close(fds[--i]);
		fds[i] = hm_open();
		CHILD_CHECK(fds[i] >= 0 && hm_open() == -EDQUOT);
		turn_pass(t.to_parent[1]);
		turn_wait(t.to_child[0]);
		_exit(0);
	}
	turns_in_parent(&t);
	EXPECT_TRUE(turn_wait(t.to_parent[0]));
	nr = hm_list(self->fd, e, ARRAY_SIZE(e));
	ASSERT_LE(0, nr);
	EXPECT_LT(1, listed(e, nr, pid, &one));
	EXPECT_EQ(NOBODY, one->uid);
	EXPECT_EQ(1, listed(e, nr, getpid(), &one));
	turn_pass(t.to_child[1]);
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(0, sysfs_set("caps/user_kb", cap));
}

/* Processes with one context each, so that several share each row of the table. */
#define CROWD		400
/* Processes whose contexts come and go. */
#define RESTLESS	8

static void *open_and_close(void *stop)
{
	while (!word_read(stop))
		close(hm_open());
	return NULL;
}

/* Forks @nr processes that have one context each, or @stop and threads that change theirs. */
static int crowd_start(pid_t *pids, int nr, int *stop)
{
	pthread_t threads[2];
	int i, k;

	for (i = 0; i < nr; i++) {
		pids[i] = fork();
		if (pids[i] < 0)
			return -errno;
		if (pids[i])
			continue;
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		CHILD_CHECK(stop || hm_open() >= 0);
		for (k = 0; stop && k < 2; k++)
			CHILD_CHECK(!pthread_create(&threads[k], NULL, open_and_close, stop));
		pause();
		_exit(1);
	}
	return 0;
}

static void crowd_end(const pid_t *pids, int nr)
{
	while (nr--) {
		kill(pids[nr], SIGKILL);
		child_status(pids[nr]);
	}
}

/* Entries of @pids among the @n of @e. */
static int listed_of(const struct hetmem_list_entry *e, int n, const pid_t *pids, int nr)
{
	int sum = 0, i;

	for (; n--; e++) {
		for (i = 0; i < nr && pids[i] != (pid_t)e->pid; i++)
			;
		sum += i < nr;
	}
	return sum;
}

/* Address spaces whose last context closes while another one opens move nobody. */
TEST_F(list, never_twice)
{
	const int crowd = slow_kernel() ? CROWD / 8 : CROWD, rounds = test_rounds(3000);
	const int room = CROWD + 2 * RESTLESS + 16;
	struct hetmem_list_entry *e = calloc(room, sizeof(*e));
	int *stop = mmap(NULL, page_size(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
			 -1, 0);
	pid_t pids[CROWD], restless[RESTLESS];
	int i, nr = 0, here, seen = crowd;

	ASSERT_NE(MAP_FAILED, (void *)stop);
	ASSERT_NE(NULL, e);
	here = hm_list(self->fd, NULL, 0);
	ASSERT_EQ(0, crowd_start(pids, crowd, NULL));
	EXPECT_TRUE(EVENTUALLY(hm_list(self->fd, NULL, 0) == here + crowd));
	ASSERT_EQ(0, crowd_start(restless, RESTLESS, stop));
	for (i = 0; i < rounds; i++) {
		nr = hm_list(self->fd, e, room);
		EXPECT_LE(here + crowd, nr);
		EXPECT_GE(here + crowd + 2 * RESTLESS, nr);
		if (nr < here + crowd || nr > here + crowd + 2 * RESTLESS)
			break;
		if (i % 16 == 0) {
			seen = listed_of(e, nr, pids, crowd);
			EXPECT_EQ(crowd, seen);
		}
	}
	crowd_end(restless, RESTLESS);
	crowd_end(pids, crowd);
	munmap(stop, page_size());
	free(e);
}

TEST_HARNESS_MAIN
