// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A memory cgroup at its limit: a ring, or a range, that does not fit there is
 * -ENOMEM, and nobody is killed for it.
 */
#include "libktest/harness.h"
#include "libktest/ring.h"
#include "libktest/sysfs.h"

#include <sys/stat.h>

#define CGROUPS		"/sys/fs/cgroup/"
#define GROUP		CGROUPS "hetmem-ring/"

/* Less than a large ring has, and more than a small process needs. */
#define LIMIT		"2097152"

/* A line of memory.events. */
static long event(const char *name)
{
	FILE *f = fopen(GROUP "memory.events", "r");
	char line[64];
	long nr = -1, n;

	while (f && fscanf(f, "%63s %ld", line, &n) == 2) {
		if (!strcmp(line, name))
			nr = n;
	}
	if (f)
		fclose(f);
	return nr;
}

FIXTURE(limited)
{
	struct turns t;
	pid_t pid;
	int *step;		/* shared: how far the child came */
};

FIXTURE_VARIANT(limited)
{
	bool root;
};

FIXTURE_VARIANT_ADD(limited, root) { .root = true };
FIXTURE_VARIANT_ADD(limited, user) { .root = false };

/* In the group, at first with the limit and then without. */
static void be_limited(struct turns *t, int *step, bool root)
{
	const size_t tib = 1UL << 40;
	struct hetmem_cmd_info before, now;
	struct ring r;
	int fd, i;

	turns_in_child(t);
	CHILD_CHECK(!write_text(GROUP "cgroup.procs", "0"));
	if (!root)
		CHILD_CHECK(!become_nobody());
	fd = hm_open();
	CHILD_CHECK(fd >= 0 && !hm_info(fd, &before));
	for (i = 0; i < 3; i++) {
		CHILD_CHECK(ring_make(fd, HETMEM_RING_MAX, ALL_EVENTS, NULL) ==
			    -ENOMEM);
		CHILD_CHECK(hm_track(fd, FAR, tib) == -ENOMEM);
	}
	/*
	 * That has cost nothing, and what fits is there. The kernel may take a while to give the
	 * group back what was freed: until then each command can lack memory.
	 */
	CHILD_CHECK(EVENTUALLY(!hm_info(fd, &now)));
	CHILD_CHECK(now.used_bytes == before.used_bytes && !now.nr_ranges);
	CHILD_CHECK(EVENTUALLY(!hm_track(fd, FAR, HUGE_SIZE)));
	CHILD_CHECK(EVENTUALLY(pages_of_kind(fd, FAR, HUGE_SIZE, HETMEM_UNMAPPED) ==
			       NR(HUGE_SIZE)));
	word_add(step);
	turn_pass(t->to_parent[1]);
	CHILD_CHECK(turn_wait(t->to_child[0]));
	CHILD_CHECK(!hm_track(fd, FAR + tib, tib));
	CHILD_CHECK(!ring_open(fd, HETMEM_RING_MAX, ALL_EVENTS, &r));
	word_add(step);
	_exit(0);
}

FIXTURE_SETUP(limited)
{
	ASSERT_EQ(0, geteuid());
	write_text(CGROUPS "cgroup.subtree_control", "+memory");
	mkdir(GROUP, 0755);
	if (access(GROUP "memory.max", F_OK))
		SKIP(return, "kernel lacks memory cgroups");
	ASSERT_EQ(0, write_text(GROUP "memory.max", LIMIT));
	self->step = mmap(NULL, page_size(), PROT_READ | PROT_WRITE,
			  MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)self->step);
	ASSERT_EQ(0, turns_init(&self->t));
	self->pid = fork();
	ASSERT_LE(0, self->pid);
	if (!self->pid)
		be_limited(&self->t, self->step, variant->root);
	turns_in_parent(&self->t);
}

FIXTURE_TEARDOWN(limited)
{
	munmap(self->step, page_size());
	EXPECT_TRUE(EVENTUALLY(!rmdir(GROUP)));
}

TEST_F(limited, no_memory)
{
	EXPECT_TRUE(turn_wait(self->t.to_parent[0]));
	EXPECT_EQ(1, word_read(self->step));
	/* It did meet the limit. */
	EXPECT_LT(0, event("max"));
	EXPECT_EQ(0, event("oom_kill"));
	ASSERT_EQ(0, write_text(GROUP "memory.max", "max"));
	turn_pass(self->t.to_child[1]);
	EXPECT_EQ(0, child_status(self->pid));
	EXPECT_EQ(2, word_read(self->step));
	EXPECT_EQ(0, event("oom_kill"));
}

TEST_HARNESS_MAIN
