// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Commands about the very memory that they are written in: structs, arrays and buffers
 * that lie where the pages move, on the device while they are read and written.
 */
#include "libktest/harness.h"
#include "libktest/emu.h"
#include "libktest/ring.h"

#include <pthread.h>
#include <sys/resource.h>

FIXTURE(itself)
{
	struct rig rig;
	struct emu *dev;
	int hm;
	char *p;
	size_t size;
};

FIXTURE_SETUP(itself)
{
	ASSERT_EQ(0, rig_init(&self->rig));
	self->dev = self->rig.dev;
	self->hm = self->rig.fd;
	self->size = 256 * page_size();
	self->p = map_filled(self->size, 1);
	ASSERT_NE(NULL, self->p);
}

FIXTURE_TEARDOWN(itself)
{
	munmap(self->p, self->size);
	EXPECT_EQ(0, rig_exit(&self->rig));
}

#define PAGE(n)	(self->p + (n) * page_size())

/* READ and WRITE with the buffer in the same page of the device, shifted and not. */
TEST_F(itself, access_buffer)
{
	static const long shift[] = { 0, 8, 100, 4096, 4095, -8, -4096, 5000 };
	unsigned int i, n;

	for (n = 0; n < 8; n++) {
		const uint32_t op = n & 1 ? HETMEM_EMU_WRITE : HETMEM_EMU_READ;
		const uint32_t flags = n & 2 ? HETMEM_EMU_MIGRATE : 0;
		const size_t length = n & 4 ? 20 * page_size() : page_size();

		for (i = 0; i < ARRAY_SIZE(shift); i++) {
			ASSERT_LT(0, to_device(self->hm, self->dev, self->p, self->size));
			EXPECT_EQ(0, emu_access(self->dev, op, flags, PAGE(8), length,
						PAGE(8) + shift[i], 0, NULL)) {
				TH_LOG("op %u flags %u shift %ld", op, flags, shift[i]);
			}
		}
	}
}

/* The struct at the edge of a page that the operation writes: what it said counts. */
TEST_F(itself, access_struct)
{
	struct hetmem_emu_cmd_access *cmd = (void *)(PAGE(9) - 24);
	int i, ret;

	for (i = 0; i < 4; i++) {
		ASSERT_LT(0, to_device(self->hm, self->dev, self->p, self->size));
		*cmd = (struct hetmem_emu_cmd_access){
			.size = sizeof(*cmd), .flags = i & 1,
			.op = i & 2 ? HETMEM_EMU_ADD : HETMEM_EMU_FILL,
			.addr = (uintptr_t)PAGE(8), .length = 2 * page_size(),
		};
		to_device(self->hm, self->dev, self->p, self->size);
		ret = ioctl(self->dev->fd, HETMEM_EMU_IOC_ACCESS, cmd) ? -errno : 0;
		EXPECT_EQ(0, ret);
	}
}

/* The struct and the array of the rest among the pages that move, both ways. */
TEST_F(itself, migrate)
{
	const uint32_t loc[] = { self->dev[0].loc, ANY_HOST, self->dev[1].loc, ANY_HOST };
	struct hetmem_cmd_migrate *cmd = (void *)(PAGE(100) - 16);
	struct hetmem_run *rest = (void *)PAGE(50);
	int i, ret;

	for (i = 0; i < 40; i++) {
		*cmd = (struct hetmem_cmd_migrate){
			.size = sizeof(*cmd),
			.start = (uintptr_t)self->p,
			.end = (uintptr_t)self->p + self->size,
			.location = loc[i % 4],
			.rest = (uintptr_t)rest,
			.rest_size = sizeof(*rest),
			.nr_rest = HETMEM_REST_MIN,
		};
		ret = ioctl(self->hm, HETMEM_IOC_MIGRATE, cmd) ? -errno : 0;
		ASSERT_EQ(0, ret);
		EXPECT_EQ((uint64_t)(uintptr_t)self->p + self->size, cmd->walk_end);
		EXPECT_EQ(self->size / page_size(), cmd->moved + cmd->already + cmd->not_moved);
	}
}

/* Runs are written over the pages that they are about. */
TEST_F(itself, residency)
{
	struct hetmem_cmd_residency cmd = {
		.size = sizeof(cmd), .start = (uintptr_t)self->p,
		.end = (uintptr_t)self->p + self->size,
		.runs = (uintptr_t)PAGE(3) - 8, .run_size = 4096, .nr_runs = 200,
		.totals = (uintptr_t)PAGE(3), .nr_totals = 64, .total_size = 4096,
	};
	size_t i;

	to_device(self->hm, self->dev, self->p, self->size);
	for (i = 0; i < 256; i += 2)
		*(volatile char *)PAGE(i);
	EXPECT_EQ(0, ioctl(self->hm, HETMEM_IOC_RESIDENCY, &cmd));
	EXPECT_LT(0, cmd.filled_runs);
}

/* All that the process has, code, stack and thread-local storage included. */
static int everything_to(int hm, uint32_t loc, uint64_t *moved)
{
	struct hetmem_cmd_migrate cmd = {
		.size = sizeof(cmd), .start = 0, .end = 0x7ffffffff000UL,
		.location = loc,
	};
	int ret = ioctl(hm, HETMEM_IOC_MIGRATE, &cmd) ? -errno : 0;

	*moved = cmd.moved;
	return ret;
}

static void *busy(void *arg)
{
	int *stop = arg;
	volatile char on_stack[20000];
	int i = 0;

	while (!__atomic_load_n(stop, __ATOMIC_RELAXED)) {
		on_stack[i++ % 20000]++;
		if (!(i % 1000))
			sched_yield();
	}
	return NULL;
}

TEST_F(itself, whole_process)
{
	int i, status;
	pid_t pid = fork();

	ASSERT_LE(0, pid);
	if (!pid) {
		int hm = hm_open(), stop = 0;
		uint64_t moved, sum = 0;
		pthread_t t[3];

		for (i = 0; i < 3; i++)
			CHILD_CHECK(!pthread_create(&t[i], NULL, busy, &stop));
		for (i = 0; i < 10; i++) {
			int ret = everything_to(hm, self->dev[i % 2].loc, &moved);

			CHILD_CHECK(ret == 0 || ret == -ENOMEM);
			sum += moved;
		}
		CHILD_CHECK(sum > 0);
		/* Ends, robust list and all, with pages on the device. */
		syscall(SYS_exit_group, 0);
	}
	status = child_status(pid);
	EXPECT_EQ(0, status);
	/* What it shared is on the devices for its parents too. */
	for (i = 0; i < 2; i++)
		EXPECT_EQ(0, emu_evict(&self->dev[i], 1 << 20, NULL));
}

/* It dumps its memory, which is on the device and pinned, and its ring. */
TEST_F(itself, dumped)
{
	char core[] = "/tmp/core-XXXXXX", pattern[64], old[128] = "";
	int fd = mkstemp(core), status;
	struct rlimit rl = { RLIM_INFINITY, RLIM_INFINITY };
	FILE *f = fopen("/proc/sys/kernel/core_pattern", "r");
	pid_t pid;

	if (!f)
		SKIP(return, "kernel lacks core dumps");
	ASSERT_NE(NULL, fgets(old, sizeof(old), f));
	fclose(f);
	close(fd);
	snprintf(pattern, sizeof(pattern), "%s", core);
	ASSERT_EQ(0, write_text("/proc/sys/kernel/core_pattern", pattern));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		struct hetmem_cmd_migrate cmd;
		struct ring r;
		int hm = hm_open();

		setrlimit(RLIMIT_CORE, &rl);
		CHILD_CHECK(!ring_open(hm, 64, ALL_EVENTS, &r));
		CHILD_CHECK(to_device(hm, self->dev, self->p, self->size) > 0);
		CHILD_CHECK(!hm_pin(hm, self->p, 16 * page_size(), 60000, &cmd));
		abort();
	}
	status = child_status(pid);
	EXPECT_EQ(128 + SIGABRT, status);
	write_text("/proc/sys/kernel/core_pattern", old);
	unlink(core);
}

TEST_HARNESS_MAIN
