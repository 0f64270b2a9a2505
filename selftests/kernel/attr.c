// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * SET_ATTR and GET_ATTR: values that there are and that there are not; and LIST:
 * who has which contexts open, and who sees that.
 */
#include "hetmem_ring.h"

#define BLOCK	(2 * MiB)
#define SIZE	(4 * BLOCK)

/* Nothing is mapped there, which TRACK does not look at. */
#define FAR	((char *)0x200000000000UL)

FIXTURE(attr)
{
	int fd;
	char *p;
};

FIXTURE_SETUP(attr)
{
	self->fd = hm_open_flags(0);
	ASSERT_GE(self->fd, 0);
	self->p = FAR + SIZE;
	ASSERT_EQ(0, hm_track(self->fd, self->p, SIZE));
}

FIXTURE_TEARDOWN(attr)
{
	EXPECT_EQ(0, close(self->fd));
}

TEST_F(attr, values)
{
	static const uint64_t wrong_locations[] = {
		1, 0xffff, HETMEM_LOC(HETMEM_UNMAPPED, 0),
		HETMEM_LOC(HETMEM_FOREIGN, 0), HETMEM_LOC(5, 0),
		1ULL << 32, (1ULL << 32) | HETMEM_LOC(HETMEM_DEVICE, 0), ~0ULL,
	};
	size_t i;
	int fd = self->fd, n;

	/* As they are at first. */
	EXPECT_EQ(0, hm_get_attr(fd, NULL, HETMEM_ATTR_SHAREABLE));
	EXPECT_EQ(0, hm_get_attr(fd, NULL, HETMEM_ATTR_ALLOW_HINTS));
	EXPECT_EQ(0, hm_get_attr(fd, self->p, HETMEM_ATTR_NO_THRASH));
	EXPECT_EQ(0, hm_get_attr(fd, self->p, HETMEM_ATTR_PREFERRED));
	for (n = 0; n < 2; n++) {
		EXPECT_EQ(-EINVAL, hm_set_attr(fd, NULL, n, 2));
		EXPECT_EQ(-EINVAL, hm_set_attr(fd, NULL, n, 1ULL << 32));
		EXPECT_EQ(-EINVAL, hm_set_attr(fd, self->p, n, 1));
		EXPECT_EQ(-EINVAL, hm_get_attr(fd, self->p, n));
		EXPECT_EQ(0, hm_get_attr(fd, NULL, n));
		EXPECT_EQ(0, hm_set_attr(fd, NULL, n, 1));
		EXPECT_EQ(1, hm_get_attr(fd, NULL, n));
		EXPECT_EQ(0, hm_set_attr(fd, NULL, n, 0));
		EXPECT_EQ(0, hm_get_attr(fd, NULL, n));
	}
	EXPECT_EQ(-EINVAL, hm_set_attr(fd, self->p, HETMEM_ATTR_NO_THRASH, 2));
	for (i = 0; i < ARRAY_SIZE(wrong_locations); i++) {
		EXPECT_EQ(-EINVAL,
			  hm_set_attr(fd, self->p, HETMEM_ATTR_PREFERRED,
				      wrong_locations[i])) {
			TH_LOG("%llx", (unsigned long long)wrong_locations[i]);
		}
	}
	EXPECT_EQ(0, hm_get_attr(fd, self->p, HETMEM_ATTR_PREFERRED));
	/* Any page of the range, and of this range only. */
	ASSERT_EQ(0, hm_track(fd, FAR, page_size()));
	EXPECT_EQ(0, hm_set_attr(fd, self->p + BLOCK, HETMEM_ATTR_PREFERRED, ANY_HOST));
	EXPECT_EQ(0, hm_set_attr(fd, self->p + 2 * BLOCK, HETMEM_ATTR_NO_THRASH, 1));
	EXPECT_EQ(ANY_HOST, hm_get_attr(fd, self->p, HETMEM_ATTR_PREFERRED));
	EXPECT_EQ(1, hm_get_attr(fd, self->p + SIZE - page_size(), HETMEM_ATTR_NO_THRASH));
	EXPECT_EQ(0, hm_get_attr(fd, FAR, HETMEM_ATTR_PREFERRED));
	EXPECT_EQ(0, hm_set_attr(fd, self->p, HETMEM_ATTR_PREFERRED,
				 HETMEM_LOC(HETMEM_DEVICE, 1)));
	EXPECT_EQ(HETMEM_LOC(HETMEM_DEVICE, 1),
		  hm_get_attr(fd, self->p, HETMEM_ATTR_PREFERRED));
	EXPECT_EQ(-ENOENT, hm_set_attr(fd, FAR + page_size(),
				       HETMEM_ATTR_NO_THRASH, 1));
	EXPECT_EQ(-ENOENT, hm_get_attr(fd, NULL, HETMEM_ATTR_NO_THRASH));
	/* No such attribute, also where there is no range. */
	for (i = HETMEM_ATTR_PREFERRED + 1; i < 40; i++) {
		EXPECT_EQ(-EINVAL, hm_set_attr(fd, self->p, i, 0));
		EXPECT_EQ(-EINVAL, hm_get_attr(fd, self->p, i));
		EXPECT_EQ(-EINVAL, hm_get_attr(fd, NULL, i));
	}
	EXPECT_EQ(-EINVAL, hm_get_attr(fd, self->p, ~0U));
	/* They end with the range. */
	ASSERT_EQ(0, hm_untrack(fd, self->p, SIZE));
	ASSERT_EQ(0, hm_track(fd, self->p, SIZE));
	EXPECT_EQ(0, hm_get_attr(fd, self->p, HETMEM_ATTR_PREFERRED));
	EXPECT_EQ(0, hm_get_attr(fd, self->p, HETMEM_ATTR_NO_THRASH));
}

static int hm_list(int fd, struct hetmem_list_entry *entries, uint32_t room,
		   uint32_t *nr)
{
	struct hetmem_cmd_list cmd = {
		.size = sizeof(cmd),
		.entries = (uintptr_t)entries,
		.entry_size = sizeof(*entries),
		.nr = room,
	};
	int ret = hm_ioctl(fd, HETMEM_IOC_LIST, &cmd);

	*nr = cmd.nr;
	return ret;
}

#define MANY	70	/* more than a user may have open */

/* Of these entries: those of a process. */
static int listed(const struct hetmem_list_entry *e, uint32_t nr, pid_t pid,
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

TEST_F(attr, list)
{
	struct hetmem_list_entry e[8];
	const struct hetmem_list_entry *one = NULL;
	unsigned char *bytes = (void *)e;
	uint32_t nr, all;
	int i, other;

	ASSERT_EQ(0, hm_list(self->fd, NULL, 0, &all));
	ASSERT_LE(1, all);
	ASSERT_GT(ARRAY_SIZE(e), all + 2);
	ASSERT_EQ(0, hm_list(self->fd, e, ARRAY_SIZE(e), &nr));
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
	ASSERT_EQ(0, hm_set_attr(other, NULL, HETMEM_ATTR_SHAREABLE, 1));
	ASSERT_EQ(0, hm_untrack(self->fd, self->p, SIZE));
	ASSERT_EQ(0, hm_set_attr(self->fd, NULL, HETMEM_ATTR_ALLOW_HINTS, 1));
	ASSERT_EQ(0, hm_track(other, FAR, BLOCK));
	ASSERT_EQ(0, hm_track(other, FAR + BLOCK, BLOCK));
	ASSERT_EQ(0, hm_list(other, e, ARRAY_SIZE(e), &nr));
	EXPECT_EQ(all + 1, nr);
	EXPECT_EQ(2, listed(e, nr, getpid(), &one));
	for (i = 0; i < (int)nr; i++) {
		if (e[i].pid != (uint32_t)getpid())
			continue;
		EXPECT_EQ(e[i].nr_ranges == 2 ? HETMEM_LIST_SHAREABLE :
						HETMEM_LIST_ALLOW_HINTS,
			  e[i].flags);
	}
	/* Room for one: how many there are is said, and no more is written. */
	memset(e, 0xa5, sizeof(e));
	ASSERT_EQ(0, hm_list(other, e, 1, &nr));
	EXPECT_EQ(all + 1, nr);
	for (i = sizeof(e[0]); i < (int)sizeof(e); i++)
		ASSERT_EQ(0xa5, bytes[i]);
	close(other);
}

TEST_F(attr, list_wrong)
{
	struct hetmem_list_entry e[8];
	struct hetmem_cmd_list cmd = {
		.size = sizeof(cmd), .entries = (uintptr_t)e,
		.entry_size = sizeof(e[0]) - 1, .nr = 8,
	};
	unsigned char *bytes = (void *)e;
	size_t i;

	EXPECT_EQ(-EINVAL, hm_ioctl(self->fd, HETMEM_IOC_LIST, &cmd));
	cmd.entry_size = 0;
	EXPECT_EQ(-EINVAL, hm_ioctl(self->fd, HETMEM_IOC_LIST, &cmd));
	cmd.entry_size = ~0U;
	EXPECT_EQ(-E2BIG, hm_ioctl(self->fd, HETMEM_IOC_LIST, &cmd));
	cmd.entry_size = sizeof(e[0]);
	cmd.entries = KERNEL_ADDR;
	EXPECT_EQ(-EFAULT, hm_ioctl(self->fd, HETMEM_IOC_LIST, &cmd));
	cmd.entries = 0;
	EXPECT_EQ(-EFAULT, hm_ioctl(self->fd, HETMEM_IOC_LIST, &cmd));
	/* Room for everybody on earth costs nothing. */
	cmd.entries = (uintptr_t)e;
	cmd.nr = 1;
	ASSERT_EQ(0, hm_ioctl(self->fd, HETMEM_IOC_LIST, &cmd));
	ASSERT_GT(ARRAY_SIZE(e), cmd.nr);
	cmd.nr = ~0U;
	EXPECT_EQ(0, hm_ioctl(self->fd, HETMEM_IOC_LIST, &cmd));
	/* Entries of a later kernel's size come with zeroes. */
	memset(e, 0xa5, sizeof(e));
	cmd.nr = 1;
	cmd.entry_size = sizeof(e[0]) + 24;
	ASSERT_EQ(0, hm_ioctl(self->fd, HETMEM_IOC_LIST, &cmd));
	for (i = sizeof(e[0]); i < sizeof(e[0]) + 24; i++)
		EXPECT_EQ(0, bytes[i]);
	EXPECT_EQ(0xa5, bytes[i]);
}

/* A user sees its own, root sees all; a user has a number of them at most. */
TEST_F(attr, list_of_users)
{
	const struct hetmem_list_entry *one = NULL;
	struct hetmem_list_entry e[MANY + 8];
	struct turns t;
	uint32_t nr;
	pid_t pid;

	ASSERT_EQ(0, turns_init(&t));
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		int fds[MANY], i;

		turns_in_child(&t);
		CHILD_CHECK(!become_nobody());
		/* From its parent, whose it is not. */
		CHILD_CHECK(hm_list(self->fd, e, 4, &nr) == -EPERM);
		for (i = 0; i < MANY; i++) {
			fds[i] = hm_open();
			if (fds[i] < 0)
				break;
		}
		CHILD_CHECK(i > 1 && i < MANY && fds[i] == -EDQUOT);
		CHILD_CHECK(!hm_list(fds[0], e, ARRAY_SIZE(e), &nr));
		CHILD_CHECK(nr == (uint32_t)i);
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
	ASSERT_EQ(0, hm_list(self->fd, e, ARRAY_SIZE(e), &nr));
	EXPECT_LT(1, listed(e, nr, pid, &one));
	EXPECT_EQ(NOBODY, one->uid);
	EXPECT_EQ(1, listed(e, nr, getpid(), &one));
	turn_pass(t.to_child[1]);
	EXPECT_EQ(0, child_status(pid));
}

TEST_HARNESS_MAIN
