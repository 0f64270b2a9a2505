// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A machine whose GPU shares the page tables of its CPUs (ATS) has the GPU's
 * memory as a NUMA node without CPUs. Here node 1 stands for it, which the
 * virtual machine has been given for that. Residency is nodes there, what goes
 * to the device goes by mempolicy or by move_pages(2), and nobody tells of a
 * migration between devices.
 */
#include "libktest/harness.h"

#include <numaif.h>
#include <sys/syscall.h>

#define CPUS_OF_1	"/sys/devices/system/node/node1/cpulist"
#define HOST		HETMEM_LOC(HETMEM_HOST, 0)
#define GPU		HETMEM_LOC(HETMEM_HOST, 1)

#ifndef MPOL_PREFERRED_MANY
#define MPOL_PREFERRED_MANY	5
#endif
#ifndef SYS_set_mempolicy_home_node
#define SYS_set_mempolicy_home_node	450
#endif

FIXTURE(ats)
{
	int fd;
	struct mem m;
	char *p;
	size_t size;
	long pages;
};

static int policy(void *p, size_t size, int mode, unsigned long nodes,
		  unsigned int flags)
{
	return syscall(SYS_mbind, p, size, mode, &nodes, 8 * sizeof(nodes),
		       flags) ? -errno : 0;
}

/* Return: pages that are on node @to afterwards, or a negative errno. */
static long move_all(char *p, size_t size, int to)
{
	const unsigned long nr = size / page_size();
	void **pages = calloc(nr, sizeof(*pages));
	int *nodes = calloc(nr, sizeof(*nodes));
	int *status = calloc(nr, sizeof(*status));
	unsigned long i;
	long there = 0;

	for (i = 0; i < nr; i++) {
		pages[i] = p + i * page_size();
		nodes[i] = to;
	}
	if (syscall(SYS_move_pages, 0, nr, pages, nodes, status,
		    MPOL_MF_MOVE) < 0 ||
	    syscall(SYS_move_pages, 0, nr, pages, NULL, status, 0) < 0)
		there = -errno;
	for (i = 0; i < nr && there >= 0; i++)
		there += status[i] == to;
	free(pages);
	free(nodes);
	free(status);
	return there;
}

/* Memory that is not there yet, without huge pages. */
static char *map_empty(size_t size)
{
	char *p = mmap(NULL, size, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (p == MAP_FAILED)
		return NULL;
	madvise(p, size, MADV_NOHUGEPAGE);
	return p;
}

FIXTURE_SETUP(ats)
{
	char cpus[16] = "";
	FILE *f = fopen(CPUS_OF_1, "r");

	self->m = (struct mem){ .fd = -1, .old_hugepages = -1 };
	if (!f)
		SKIP(return, "machine has no second memory node");
	/* A list of none is an empty line. */
	if (fgets(cpus, sizeof(cpus), f))
		cpus[strcspn(cpus, "\n")] = 0;
	fclose(f);
	ASSERT_STREQ("", cpus);
	self->fd = hm_open();
	ASSERT_LE(0, self->fd);
	self->size = 64 * page_size();
	self->pages = 64;
	self->p = map_empty(self->size);
	ASSERT_NE(NULL, self->p);
	ASSERT_EQ(0, hm_track(self->fd, self->p, self->size));
}

FIXTURE_TEARDOWN(ats)
{
	mem_unmap(&self->m);
	munmap(self->p, self->size);
	EXPECT_EQ(0, close(self->fd));
}

/* What is first touched goes where the policy says, and is seen there. */
TEST_F(ats, first_touch)
{
	static const int modes[] = {
		MPOL_BIND, MPOL_PREFERRED, MPOL_PREFERRED_MANY,
	};
	struct view view;
	unsigned int i;
	int ret;

	for (i = 0; i < ARRAY_SIZE(modes); i++) {
		ret = policy(self->p, self->size, modes[i], 1 << 1, 0);
		/* The last of them. */
		if (ret == -EINVAL && modes[i] == MPOL_PREFERRED_MANY)
			SKIP(return, "kernel lacks MPOL_PREFERRED_MANY");
		ASSERT_EQ(0, ret);
		fill(self->p, self->size, i);
		ASSERT_EQ(0, view_take(self->fd, self->p, self->size, &view));
		EXPECT_EQ(1, view.nr_runs);
		EXPECT_EQ(self->pages, view_pages(&view, GPU));
		EXPECT_EQ(self->pages, view_total(&view, GPU));
		view_free(&view);
		EXPECT_EQ(-1, mismatch(self->p, self->size, i));
		ASSERT_EQ(0, madvise(self->p, self->size, MADV_DONTNEED));
	}
}

/* Page by page on one and the other: as many runs as pages. */
TEST_F(ats, interleaved)
{
	struct view view;

	ASSERT_EQ(0, policy(self->p, self->size, MPOL_INTERLEAVE, 3, 0));
	fill(self->p, self->size, 1);
	ASSERT_EQ(0, view_take(self->fd, self->p, self->size, &view));
	EXPECT_EQ(self->pages, view.nr_runs);
	EXPECT_EQ(self->pages / 2, view_pages(&view, HOST));
	EXPECT_EQ(self->pages / 2, view_pages(&view, GPU));
	EXPECT_STREQ("", view_flaw(&view));
	view_free(&view);
}

/* The node that a range calls home comes first of those it may be on. */
TEST_F(ats, home_node)
{
	long ret;

	ASSERT_EQ(0, policy(self->p, self->size, MPOL_BIND, 3, 0));
	ret = syscall(SYS_set_mempolicy_home_node, self->p, self->size, 1UL, 0UL);
	if (ret && errno == ENOSYS)
		SKIP(return, "kernel lacks set_mempolicy_home_node()");
	ASSERT_EQ(0, ret);
	fill(self->p, self->size, 1);
	EXPECT_EQ(self->pages, pages_at(self->fd, self->p, self->size, GPU));
}

/* A policy that moves what is there: seen at once, told as no migration. */
TEST_F(ats, policy_moves)
{
	struct hetmem_cmd_stats before, st;

	ASSERT_EQ(0, policy(self->p, self->size, MPOL_BIND, 1 << 0, 0));
	fill(self->p, self->size, 2);
	ASSERT_EQ(self->pages, pages_at(self->fd, self->p, self->size, HOST));
	ASSERT_EQ(0, hm_stats(self->fd, self->p, &before));
	ASSERT_EQ(0, policy(self->p, self->size, MPOL_BIND, 1 << 1,
			    MPOL_MF_MOVE | MPOL_MF_STRICT));
	EXPECT_EQ(self->pages, pages_at(self->fd, self->p, self->size, GPU));
	ASSERT_EQ(0, hm_stats(self->fd, self->p, &st));
	EXPECT_LT(before.changes[HETMEM_CHANGE_REPLACE],
		  st.changes[HETMEM_CHANGE_REPLACE]);
	EXPECT_EQ(0, st.changes[HETMEM_CHANGE_MIGRATE]);
	EXPECT_EQ(0, st.to_device);
	EXPECT_EQ(0, st.to_host);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 2));
}

/*
 * MIGRATE to a node says what is left to do; done, it says that it is. The list
 * has room for one block, and the memory may be of two.
 */
TEST_F(ats, listed_for_move_pages)
{
	struct hetmem_run *rest = calloc(HETMEM_REST_MIN, sizeof(*rest));
	struct hetmem_cmd_migrate cmd = {
		.size = sizeof(cmd),
		.start = (uintptr_t)self->p,
		.end = (uintptr_t)self->p + self->size,
		.location = GPU,
		.rest = (uintptr_t)rest,
		.nr_rest = HETMEM_REST_MIN,
		.rest_size = sizeof(struct hetmem_run),
	};
	long already = 0, not_moved = 0, listed = 0;
	uint32_t i;

	ASSERT_NE(NULL, rest);
	ASSERT_EQ(0, policy(self->p, self->size, MPOL_INTERLEAVE, 3, 0));
	fill(self->p, self->size, 3);
	ASSERT_EQ(0, no_numa_balancing(self->p, self->size));
	/* What a scan had passed before is there again once it is touched. */
	ASSERT_EQ(-1, mismatch(self->p, self->size, 3));
	for (; cmd.start < cmd.end; cmd.start = cmd.walk_end) {
		ASSERT_EQ(0, hm_ioctl(self->fd, HETMEM_IOC_MIGRATE, &cmd));
		ASSERT_LT(cmd.start, cmd.walk_end);
		EXPECT_EQ(0, cmd.moved);
		already += cmd.already;
		not_moved += cmd.not_moved;
		listed += cmd.filled_rest;
		if (cmd.not_moved)
			EXPECT_EQ(HETMEM_WHY_OTHER_NODE, cmd.why);
		for (i = 0; i < cmd.filled_rest; i++) {
			EXPECT_EQ(HOST, rest[i].location);
			EXPECT_EQ(1, move_all((char *)(uintptr_t)rest[i].start,
					      rest[i].end - rest[i].start, 1));
		}
	}
	EXPECT_EQ(self->pages / 2, already);
	EXPECT_EQ(self->pages / 2, not_moved);
	EXPECT_EQ(self->pages / 2, listed);
	ASSERT_EQ(0, hm_migrate(self->fd, self->p, self->size, GPU, &cmd));
	EXPECT_EQ(self->pages, cmd.already);
	EXPECT_EQ(0, cmd.not_moved);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 3));
	free(rest);
}

/* A huge page goes as one and is seen as one. */
TEST_F(ats, huge)
{
	struct hetmem_run run;
	int ret = mem_map(&self->m, MEM_THP, HUGE_SIZE, 4);

	if (ret == -EOPNOTSUPP)
		SKIP(return, "kernel lacks %s", self->m.lacks);
	ASSERT_EQ(0, ret);
	/* It may be on either: there and back. */
	EXPECT_EQ(HUGE_SIZE / page_size(),
		  move_all(self->m.p, HUGE_SIZE, 0));
	EXPECT_EQ(HUGE_SIZE / page_size(),
		  move_all(self->m.p, HUGE_SIZE, 1));
	EXPECT_EQ(HUGE_SIZE / page_size(),
		  pages_at(self->fd, self->m.p, HUGE_SIZE, GPU));
	run = run_at(self->fd, self->m.p);
	EXPECT_EQ(GPU, run.location);
	EXPECT_EQ(9, run.order);
	EXPECT_EQ(-1, mismatch(self->m.p, HUGE_SIZE, 4));
}

/* A child's copies go where its policy, which it has inherited, says. */
TEST_F(ats, forked)
{
	pid_t pid;

	ASSERT_EQ(0, policy(self->p, self->size, MPOL_BIND, 1 << 0, 0));
	fill(self->p, self->size, 5);
	ASSERT_EQ(0, policy(self->p, self->size, MPOL_BIND, 1 << 1, 0));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		int fd = hm_open();

		if (fd < 0)
			_exit(1);
		if (pages_at(fd, self->p, self->size, HOST) != self->pages)
			_exit(2);
		fill(self->p, self->size, 6);
		if (pages_at(fd, self->p, self->size, GPU) != self->pages)
			_exit(3);
		_exit(mismatch(self->p, self->size, 6) < 0 ? 0 : 4);
	}
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(self->pages, pages_at(self->fd, self->p, self->size, HOST));
	EXPECT_EQ(-1, mismatch(self->p, self->size, 5));
}

TEST_HARNESS_MAIN
