// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Commands that take long end when their process is killed, where they are
 * and not at their end, and say how far they came. What they say goes into
 * memory that the parent sees, for the process that asked is gone by then.
 */
#include "libktest/harness.h"

#define STATS	"/sys/class/misc/hetmem/stats/"

/*
 * A page is there in each 2 MiB: memory without page tables is one step. TRACKED is what one
 * REFRESH looks at.
 */
#define SIZE	(32UL << 30)
#define TRACKED	(8UL << 30)

/* What the command was told, and says; in shared memory. */
struct killed_in {
	union {
		struct hetmem_cmd_migrate_vector vector;
		struct hetmem_cmd_residency residency;
		struct hetmem_cmd_migrate migrate;
		struct hetmem_cmd_refresh refresh;
	} cmd;
	struct hetmem_cmd_migrate moves[HETMEM_VECTOR_MAX];
	int32_t results[HETMEM_VECTOR_MAX];
};

#define NO_RESULT	99

/* Return: how far it came, of @all; more than @all if what it says is wrong. */
typedef uint64_t (*how_far)(const struct killed_in *k, uint64_t *all);

static uint64_t in_residency(const struct killed_in *k, uint64_t *all)
{
	const struct hetmem_cmd_residency *cmd = &k->cmd.residency;

	*all = SIZE;
	return cmd->walk_end ? cmd->walk_end - cmd->start : 0;
}

static uint64_t in_migrate(const struct killed_in *k, uint64_t *all)
{
	const struct hetmem_cmd_migrate *cmd = &k->cmd.migrate;

	*all = SIZE;
	/* All that it passed was counted. */
	return (cmd->not_moved + cmd->already) * page_size() == cmd->walk_end - cmd->start ?
	       cmd->walk_end - cmd->start : SIZE + 1;
}

static uint64_t in_refresh(const struct killed_in *k, uint64_t *all)
{
	*all = TRACKED / HUGE_SIZE;
	return k->cmd.refresh.walked_blocks;
}

/* Commands that ended, one that was interrupted, and others that did not begin. */
static uint64_t in_vector(const struct killed_in *k, uint64_t *all)
{
	const uint32_t done = k->cmd.vector.done;
	uint32_t i;

	*all = HETMEM_VECTOR_MAX;
	for (i = 0; i < HETMEM_VECTOR_MAX; i++)
		if (i < done ? k->results[i] && (k->results[i] != -EINTR || i != done - 1) :
		    k->results[i] != NO_RESULT || k->moves[i].walk_end)
			return *all + 1;
	return done;
}

FIXTURE(killed)
{
	struct killed_in *k;
	char *p;
};

FIXTURE_VARIANT(killed)
{
	unsigned long nr;
	size_t size;
	how_far how_far;
};

FIXTURE_VARIANT_ADD(killed, residency) {
	.nr = HETMEM_IOC_RESIDENCY, .how_far = in_residency,
	.size = sizeof(struct hetmem_cmd_residency),
};

FIXTURE_VARIANT_ADD(killed, migrate) {
	.nr = HETMEM_IOC_MIGRATE, .how_far = in_migrate,
	.size = sizeof(struct hetmem_cmd_migrate),
};

FIXTURE_VARIANT_ADD(killed, refresh) {
	.nr = HETMEM_IOC_REFRESH, .how_far = in_refresh,
	.size = sizeof(struct hetmem_cmd_refresh),
};

FIXTURE_VARIANT_ADD(killed, vector) {
	.nr = HETMEM_IOC_MIGRATE_VECTOR, .how_far = in_vector,
	.size = sizeof(struct hetmem_cmd_migrate_vector),
};

FIXTURE_SETUP(killed)
{
	size_t at;

	self->k = mmap(NULL, sizeof(*self->k), PROT_READ | PROT_WRITE, MAP_SHARED |
		       MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)self->k);
	self->p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS |
		       MAP_NORESERVE, -1, 0);
	ASSERT_NE(MAP_FAILED, (void *)self->p);
	madvise(self->p, SIZE, MADV_NOHUGEPAGE);
	for (at = 0; at < SIZE; at += HUGE_SIZE)
		self->p[at] = 1;
}

FIXTURE_TEARDOWN(killed)
{
	munmap(self->p, SIZE);
	munmap(self->k, sizeof(*self->k));
}

/* All of the memory, by as many commands as there can be. */
static void make_vector(struct killed_in *k, char *p)
{
	const size_t each = SIZE / HETMEM_VECTOR_MAX;
	uint32_t i;

	for (i = 0; i < HETMEM_VECTOR_MAX; i++) {
		k->moves[i].start = (uintptr_t)p + i * each;
		k->moves[i].end = k->moves[i].start + each;
		k->moves[i].location = ANY_HOST;
		k->results[i] = NO_RESULT;
	}
	k->cmd.vector = (struct hetmem_cmd_migrate_vector){
		.size = sizeof(k->cmd.vector),
		.commands = (uintptr_t)k->moves,
		.results = (uintptr_t)k->results,
		.command_size = sizeof(k->moves[0]),
		.nr = HETMEM_VECTOR_MAX,
	};
}

/* In a child, and not to its end. */
static void call(struct killed_in *k, char *p, unsigned long nr, size_t size,
		 struct turns *t)
{
	/* All begin alike, but that REFRESH has no end. */
	struct hetmem_cmd_track *range = (void *)k;
	int fd = hm_open();

	CHILD_CHECK(fd >= 0);
	memset(k, 0, sizeof(*k));
	range->size = size;
	range->start = (uintptr_t)p;
	if (nr == HETMEM_IOC_REFRESH)
		CHILD_CHECK(!hm_track(fd, p, TRACKED));
	else
		range->end = (uintptr_t)p + SIZE;
	if (nr == HETMEM_IOC_MIGRATE) {
		k->cmd.migrate.location = ANY_HOST;
		k->cmd.migrate.walk_end = range->start;
	}
	if (nr == HETMEM_IOC_MIGRATE_VECTOR)
		make_vector(k, p);
	turn_pass(t->to_parent[1]);
	hm_ioctl(fd, nr, k);
	_exit(0);
}

TEST_F(killed, in_the_middle)
{
	uint64_t came, all;
	int round, status, begun = 0;

	/* The first ones may be killed before they ask; others, on a busy machine, too late. */
	for (round = 0; round < 100 && begun < 3; round++) {
		struct turns t;
		pid_t pid;

		ASSERT_EQ(0, turns_init(&t));
		pid = fork();
		ASSERT_GE(pid, 0);
		if (!pid)
			call(self->k, self->p, variant->nr, variant->size, &t);
		turns_in_parent(&t);
		ASSERT_TRUE(turn_wait(t.to_parent[0]));
		/* time: the moment varies, and each is right */
		usleep(2000 * round);
		EXPECT_EQ(0, kill(pid, SIGKILL));
		status = child_status(pid);
		came = variant->how_far(self->k, &all);
		EXPECT_LE(came, all);
		EXPECT_TRUE(status == 128 + SIGKILL || (!status && came == all));
		begun += came > 0 && came < all;
		close(t.to_child[1]);
		close(t.to_parent[0]);
		EXPECT_EQ(0, read_long(STATS "contexts"));
		EXPECT_EQ(0, read_long(STATS "ranges"));
	}
	EXPECT_EQ(3, begun);
}

TEST_HARNESS_MAIN
