// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * MIGRATE_VECTOR where no device is: each command has the result and the answer that it
 * has alone, whatever the others are, and bad vectors are refused as documented.
 */
#include "libktest/harness.h"
#include "libktest/commands.h"

#define PAGES	64
#define NR_ALL	HETMEM_VECTOR_MAX

FIXTURE(vector)
{
	int fd;
	char *p;		/* PAGES pages; after them nothing is mapped */
	size_t size;
	struct hetmem_cmd_migrate *moves;
	int32_t *results;
	struct hetmem_cmd_migrate_vector cmd;
};

FIXTURE_SETUP(vector)
{
	size_t i;

	self->fd = hm_open();
	ASSERT_LE(0, self->fd);
	self->size = PAGES * page_size();
	self->p = mmap(NULL, 2 * self->size, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, self->p);
	ASSERT_EQ(0, munmap(self->p + self->size, self->size));
	fill(self->p, self->size, 1);
	self->moves = calloc(NR_ALL + 1, sizeof(*self->moves));
	self->results = calloc(NR_ALL + 1, sizeof(*self->results));
	ASSERT_TRUE(self->moves && self->results);
	for (i = 0; i <= NR_ALL; i++)
		self->moves[i] = (struct hetmem_cmd_migrate){
			.start = (uintptr_t)self->p + i % PAGES * page_size(),
			.end = (uintptr_t)self->p + (i % PAGES + 1) * page_size(),
			.location = ANY_HOST,
		};
	self->cmd = (struct hetmem_cmd_migrate_vector){
		.size = sizeof(self->cmd),
		.commands = (uintptr_t)self->moves,
		.results = (uintptr_t)self->results,
		.command_size = sizeof(*self->moves),
		.nr = NR_ALL,
		.done = 7,
	};
}

FIXTURE_TEARDOWN(vector)
{
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
	EXPECT_EQ(0, vm_pin());
	EXPECT_EQ(0, close(self->fd));
	munmap(self->p, self->size);
	free(self->moves);
	free(self->results);
}

#define CALL()	hm_ioctl(self->fd, HETMEM_IOC_MIGRATE_VECTOR, &self->cmd)

TEST_F(vector, all)
{
	size_t i;

	self->results[NR_ALL] = 99;
	ASSERT_EQ(0, CALL());
	EXPECT_EQ(NR_ALL, self->cmd.done);
	for (i = 0; i < NR_ALL; i++) {
		EXPECT_EQ(0, self->results[i]);
		EXPECT_EQ(1, self->moves[i].already);
		EXPECT_EQ(self->moves[i].end, self->moves[i].walk_end);
		EXPECT_EQ(sizeof(self->moves[i]), self->moves[i].size);
	}
	EXPECT_EQ(99, self->results[NR_ALL]);
	EXPECT_EQ(0, self->moves[NR_ALL].walk_end);
}

/* Breaks a command in one of several ways, or leaves it right. */
static void spoil(struct hetmem_cmd_migrate *move, const char *p, unsigned int way)
{
	const uint64_t start = (uintptr_t)p;

	switch (way % 13) {
	case 0:
		move->end = move->start;
		break;
	case 1:
		move->start += 8;
		break;
	case 2:
		move->end = 1UL << 63;
		break;
	case 3:			/* a sum that overflows */
		move->start = -page_size();
		move->end = page_size();
		break;
	case 4:			/* nothing is mapped there */
		move->start = start + PAGES * page_size();
		move->end = start + 2 * PAGES * page_size();
		break;
	case 5:			/* half of it is */
		move->end = start + 2 * PAGES * page_size();
		break;
	case 6:
		move->location = HETMEM_LOC(HETMEM_DEVICE, 0x7ffe);
		break;
	case 7:
		move->location = HETMEM_LOC(HETMEM_FOREIGN, 1);
		break;
	case 8:			/* PIN without a time */
		move->flags = HETMEM_MIGRATE_PIN;
		break;
	case 9:
		move->flags = 1U << 31;
		break;
	case 10:
		move->nr_rest = 1;
		break;
	case 11:
		move->rest = KERNEL_ADDR;
		move->rest_size = sizeof(struct hetmem_run);
		move->nr_rest = HETMEM_REST_MIN;
		move->location = HETMEM_LOC(HETMEM_HOST, 0);
		break;
	default:
		break;
	}
}

TEST_F(vector, as_alone)
{
	struct hetmem_cmd_migrate alone[NR_ALL];
	int ret[NR_ALL], failed = 0;
	size_t i;

	for (i = 0; i < NR_ALL; i++) {
		spoil(&self->moves[i], self->p, i * 5);
		alone[i] = self->moves[i];
		alone[i].size = sizeof(alone[i]);
		ret[i] = hm_ioctl(self->fd, HETMEM_IOC_MIGRATE, &alone[i]);
		failed += ret[i] < 0;
	}
	EXPECT_LT(NR_ALL / 2, failed);
	EXPECT_GT(NR_ALL, failed);
	ASSERT_EQ(0, CALL());
	EXPECT_EQ(NR_ALL, self->cmd.done);
	for (i = 0; i < NR_ALL; i++) {
		EXPECT_EQ(ret[i], self->results[i]) {
			TH_LOG("command %zu, spoilt in way %zu", i, i * 5 % 13);
		}
		alone[i].size = self->moves[i].size;
		EXPECT_EQ(0, memcmp(&alone[i], &self->moves[i], sizeof(alone[i]))) {
			TH_LOG("command %zu, spoilt in way %zu", i, i * 5 % 13);
		}
	}
}

TEST_F(vector, number)
{
	static const uint32_t bad[] = { 0, NR_ALL + 1, 1U << 31, ~0U };
	size_t i;

	for (i = 0; i < ARRAY_SIZE(bad); i++) {
		self->cmd.nr = bad[i];
		EXPECT_EQ(-EINVAL, CALL());
		EXPECT_EQ(0, self->cmd.done);
	}
	EXPECT_EQ(0, self->moves[0].walk_end);
}

TEST_F(vector, command_size)
{
	const size_t size = sizeof(*self->moves);
	char *large = calloc(2, page_size());

	ASSERT_NE(NULL, large);
	self->cmd.command_size = size - 8;
	EXPECT_EQ(-EINVAL, CALL());
	self->cmd.command_size = 0;
	EXPECT_EQ(-EINVAL, CALL());
	self->cmd.command_size = page_size() + 8;
	EXPECT_EQ(-E2BIG, CALL());
	self->cmd.command_size = ~0U;
	EXPECT_EQ(-E2BIG, CALL());
	EXPECT_EQ(0, self->cmd.done);

	/* Compiled with a later header: what the kernel does not know is zero, or refused. */
	memcpy(large, self->moves, size);
	memcpy(large + page_size(), &self->moves[1], size);
	large[2 * page_size() - 1] = 1;
	self->cmd.command_size = page_size();
	self->cmd.commands = (uintptr_t)large;
	self->cmd.nr = 2;
	ASSERT_EQ(0, CALL());
	EXPECT_EQ(0, self->results[0]);
	EXPECT_EQ(-E2BIG, self->results[1]);
	EXPECT_EQ(page_size(), ((struct hetmem_cmd_migrate *)large)->size);
	free(large);
}

/* Commands that cannot be read, or whose answer cannot be written, have a result. */
TEST_F(vector, commands_not_there)
{
	const uint64_t bad[] = { 0, KERNEL_ADDR, -page_size(), (uintptr_t)self->p + self->size };
	const size_t size = sizeof(*self->moves);
	char *page = mmap(NULL, page_size(), PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	size_t i;

	ASSERT_NE(MAP_FAILED, page);
	for (i = 0; i < ARRAY_SIZE(bad); i++) {
		self->cmd.commands = bad[i];
		memset(self->results, 0, NR_ALL * sizeof(*self->results));
		ASSERT_EQ(0, CALL());
		EXPECT_EQ(NR_ALL, self->cmd.done);
		EXPECT_EQ(-EFAULT, self->results[0]);
		EXPECT_EQ(-EFAULT, self->results[NR_ALL - 1]);
	}
	memcpy(page, self->moves, page_size());
	ASSERT_EQ(0, mprotect(page, page_size(), PROT_READ));
	self->cmd.commands = (uintptr_t)page;
	self->cmd.nr = page_size() / size;
	ASSERT_EQ(0, CALL());
	for (i = 0; i < self->cmd.nr; i++)
		EXPECT_EQ(-EFAULT, self->results[i]);
	EXPECT_EQ(0, memcmp(page, self->moves, page_size()));
	munmap(page, page_size());
}

/* The commands up to the result that cannot be written were carried out. */
TEST_F(vector, results_not_there)
{
	char *page = mmap(NULL, 2 * page_size(), PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	ASSERT_NE(MAP_FAILED, page);
	ASSERT_EQ(0, munmap(page + page_size(), page_size()));
	self->cmd.results = (uintptr_t)page + page_size() - 3 * sizeof(int32_t);
	EXPECT_EQ(-EFAULT, CALL());
	EXPECT_EQ(self->moves[3].end, self->moves[3].walk_end);
	EXPECT_EQ(0, self->moves[4].walk_end);
	self->cmd.results = KERNEL_ADDR;
	EXPECT_EQ(-EFAULT, CALL());
	EXPECT_EQ(0, self->moves[4].walk_end);
	munmap(page, page_size());
}

/* Results lie on top of the commands: the program harms itself alone. */
TEST_F(vector, arrays_overlap)
{
	self->cmd.results = self->cmd.commands;
	EXPECT_EQ(0, CALL());
	EXPECT_EQ(NR_ALL, self->cmd.done);
}

TEST_F(vector, pins)
{
	size_t i;

	self->cmd.nr = 8;
	for (i = 0; i < 8; i++) {
		self->moves[i].flags = HETMEM_MIGRATE_PIN;
		self->moves[i].timeout_ms = HETMEM_PIN_TIMEOUT_MAX;
		/* The second half holds what is held. */
		if (i >= 4) {
			self->moves[i].start = self->moves[i - 4].start;
			self->moves[i].end = self->moves[i - 4].end;
		}
	}
	ASSERT_EQ(0, CALL());
	for (i = 0; i < 8; i++)
		EXPECT_EQ(1, self->moves[i].pinned);
	EXPECT_EQ(4, vm_pin());
	EXPECT_EQ(0, hm_unpin(self->fd, self->p, self->size, NULL));
}

/* All of the address space, 512 times, over and over: a signal ends it at once. */
TEST_F(vector, killed)
{
	size_t i;
	pid_t pid;

	for (i = 0; i < NR_ALL; i++) {
		self->moves[i].start = 0;
		self->moves[i].end = 0x7ffffffff000;
	}
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		self->fd = hm_open();
		for (;;)
			if (CALL())
				_exit(1);
	}
	usleep(50000); /* time: the child is in its call, or not; both are right */
	kill(pid, SIGKILL);
	EXPECT_EQ(128 + SIGKILL, child_status(pid));
}

TEST_HARNESS_MAIN
