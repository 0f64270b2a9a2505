// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* LIST: who has which contexts open, and who sees that. Its array: arrays.c. */
#include "libktest/harness.h"
#include "libktest/sysfs.h"

#define BLOCK	(2 * MiB)
#define SIZE	(4 * BLOCK)

/* Nothing is mapped there, which TRACK does not look at. */
#define FAR	((char *)0x200000000000UL)

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

TEST_HARNESS_MAIN
