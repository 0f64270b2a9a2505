// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Memory on a device, and all that a process may do with its memory: what
 * was there must be there afterwards, and RESIDENCY, STATS and the device's
 * own counters must agree on where.
 */
#include "libktest/harness.h"
#include "libktest/emu.h"

#include <pthread.h>
#include <sys/ptrace.h>

FIXTURE(emu)
{
	struct rig rig;
	struct emu *dev;
	int hm;
	char *p;
	size_t size;
	long pages;
};

FIXTURE_SETUP(emu)
{
	ASSERT_EQ(0, rig_init(&self->rig));
	self->dev = self->rig.dev;
	self->hm = self->rig.fd;
	self->size = 64 * page_size();
	self->pages = 64;
	self->p = map_filled(self->size, 1);
	ASSERT_NE(NULL, self->p);
	ASSERT_EQ(0, hm_track(self->hm, self->p, self->size));
	ASSERT_EQ(self->pages, to_device(self->hm, self->dev, self->p,
					 self->size));
}

FIXTURE_TEARDOWN(emu)
{
	munmap(self->p, self->size);
	EXPECT_EQ(0, rig_exit(&self->rig));
}

#define PAGE(n)		(self->p + (n) * page_size())
#define ON_DEVICE(p, size) pages_at(self->hm, p, size, self->dev->loc)

TEST_F(emu, already_there)
{
	struct hetmem_emu_cmd_info before, after;
	struct hetmem_cmd_migrate cmd;

	ASSERT_EQ(0, emu_info(self->dev->fd, &before));
	ASSERT_EQ(0, hm_migrate(self->hm, self->p, self->size,
				self->dev->loc, &cmd));
	EXPECT_EQ(64, cmd.already);
	EXPECT_EQ(0, cmd.moved);
	ASSERT_EQ(0, emu_info(self->dev->fd, &after));
	EXPECT_EQ(before.to_device, after.to_device);
	EXPECT_EQ(before.to_host, after.to_host);
}

/* All three who count, through every way there and back. */
TEST_F(emu, counters)
{
	struct hetmem_emu_cmd_info before, after;
	struct hetmem_cmd_stats st;
	uint64_t evicted;

	ASSERT_EQ(0, hm_stats(self->hm, self->p, &st));
	EXPECT_EQ(64, st.to_device);
	EXPECT_EQ(0, st.to_host);
	EXPECT_LE(1, st.changes[HETMEM_CHANGE_MIGRATE]);

	/* asked for */
	ASSERT_EQ(16, to_host(self->hm, PAGE(0), 16 * page_size()));
	ASSERT_EQ(0, hm_stats(self->hm, self->p, &st));
	EXPECT_EQ(16, st.to_host);
	/* faulted, all the rest of it */
	ASSERT_EQ(0, emu_info(self->dev->fd, &before));
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
	ASSERT_EQ(0, emu_info(self->dev->fd, &after));
	EXPECT_EQ(48, after.to_host - before.to_host);
	EXPECT_LE(1, after.cpu_faults - before.cpu_faults);
	EXPECT_EQ(0, after.used);
	ASSERT_EQ(0, hm_stats(self->hm, self->p, &st));
	EXPECT_EQ(64, st.to_host);
	/* evicted */
	ASSERT_EQ(64, to_device(self->hm, self->dev, self->p, self->size));
	ASSERT_EQ(0, emu_evict(self->dev, 64, &evicted));
	ASSERT_EQ(64, evicted);
	ASSERT_EQ(0, emu_info(self->dev->fd, &after));
	EXPECT_EQ(before.evicted + 64, after.evicted);
	ASSERT_EQ(0, hm_stats(self->hm, self->p, &st));
	EXPECT_EQ(128, st.to_device);
	EXPECT_EQ(128, st.to_host);
	EXPECT_EQ(0, st.failed);
	/* faulted by the device */
	ASSERT_TRUE(emu_sees(self->dev, HETMEM_EMU_MIGRATE, self->p,
			     self->size, 1));
	ASSERT_EQ(0, hm_stats(self->hm, self->p, &st));
	EXPECT_EQ(192, st.to_device);
	/* The context has seen the same, and INFO tells what is used. */
	ASSERT_EQ(0, hm_stats_context(self->hm, &st));
	EXPECT_EQ(192, st.to_device);
	EXPECT_EQ(128, st.to_host);
}

TEST_F(emu, info_of_hetmem)
{
	struct hetmem_device_info devs[8];
	struct hetmem_cmd_info info = {
		.size = sizeof(info),
		.devices = (uintptr_t)devs,
		.device_size = sizeof(devs[0]),
		.nr_devices = ARRAY_SIZE(devs),
	};
	unsigned int i, seen = 0;

	ASSERT_EQ(0, hm_ioctl(self->hm, HETMEM_IOC_INFO, &info));
	EXPECT_EQ(HETMEM_FEATURE_DEVICE_PRIVATE, info.features);
	EXPECT_LE(2, info.nr_devices);
	for (i = 0; i < info.nr_devices && i < ARRAY_SIZE(devs); i++) {
		if (HETMEM_LOC(HETMEM_DEVICE, devs[i].id) != self->dev->loc)
			continue;
		seen++;
		EXPECT_EQ(self->dev->capacity, devs[i].capacity);
		EXPECT_EQ(self->size, devs[i].used);
		EXPECT_EQ(0, devs[i].reserved);
	}
	EXPECT_EQ(1, seen);
}

TEST_F(emu, between_devices)
{
	struct emu *other = &self->rig.dev[1];
	struct hetmem_emu_cmd_info info;
	int i;

	for (i = 0; i < 4; i++) {
		struct emu *to = i & 1 ? self->dev : other;
		struct emu *from = i & 1 ? other : self->dev;

		ASSERT_EQ(64, to_device(self->hm, to, self->p, self->size));
		ASSERT_EQ(0, emu_info(from->fd, &info));
		EXPECT_EQ(0, info.used);
		ASSERT_EQ(0, emu_info(to->fd, &info));
		EXPECT_EQ(64, info.used);
		EXPECT_EQ(64, pages_at(self->hm, self->p, self->size,
				       to->loc));
		EXPECT_TRUE(emu_sees(to, 0, self->p, self->size, 1));
	}
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

static bool node_with_memory(int nr)
{
	char path[64], line[128] = "";
	unsigned long kb = 0;
	FILE *f;

	snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/meminfo",
		 nr);
	f = fopen(path, "r");
	if (!f)
		return false;
	if (fgets(line, sizeof(line), f))
		sscanf(line, "Node %*d MemTotal: %lu", &kb);
	fclose(f);
	return kb > 0;
}

/* A node is honoured on the way back, and what is elsewhere is told. */
TEST_F(emu, to_a_node)
{
	struct hetmem_cmd_migrate cmd;
	int node, seen = 0;

	for (node = 0; node < 8; node++) {
		uint32_t loc = HETMEM_LOC(HETMEM_HOST, node);

		if (!node_with_memory(node))
			continue;
		seen++;
		ASSERT_EQ(64, to_device(self->hm, self->dev, self->p,
					self->size));
		EXPECT_EQ(64, move_to(self->hm, self->p, self->size, loc,
				      &cmd));
		EXPECT_EQ(64, cmd.moved);
		EXPECT_EQ(64, pages_at(self->hm, self->p, self->size, loc));
		EXPECT_EQ(node, host_node(PAGE(5)));
		EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
	}
	EXPECT_LT(0, seen);
}

/* Never touched and the zero page: the device gets zeroed pages. */
TEST_F(emu, nothing_and_zeroes)
{
	char *p = mmap(NULL, self->size, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		       MAP_ANONYMOUS, -1, 0);

	ASSERT_NE(MAP_FAILED, p);
	madvise(p, self->size, MADV_NOHUGEPAGE);
	EXPECT_TRUE(all_zero(p, self->size / 2));
	/* Make what the device had dirty, that it cannot come back. */
	ASSERT_EQ(0, emu_fill(self->dev, 0, self->p, self->size, 9));
	munmap(self->p, self->size);
	ASSERT_EQ(64, to_device(self->hm, self->dev, p, self->size));
	EXPECT_EQ(64, ON_DEVICE(p, self->size));
	ASSERT_EQ(0, emu_access(self->dev, HETMEM_EMU_ADD, 0, p, self->size,
				NULL, 0, NULL));
	EXPECT_TRUE(all_zero(p, self->size));
	munmap(p, self->size);
}

TEST_F(emu, read_only)
{
	ASSERT_EQ(0, mprotect(self->p, self->size, PROT_READ));
	EXPECT_EQ(64, ON_DEVICE(self->p, self->size));
	EXPECT_EQ(-1, mismatch(self->p, self->size / 2, 1));
	ASSERT_EQ(64, to_device(self->hm, self->dev, self->p, self->size));
	EXPECT_EQ(-EPERM, emu_fill(self->dev, 0, self->p, 16, 2));
	ASSERT_EQ(0, mprotect(self->p, self->size, PROT_NONE));
	EXPECT_EQ(-EPERM, emu_read(self->dev, 0, self->p, 16, self->p));
	ASSERT_EQ(0, mprotect(self->p, self->size, PROT_READ | PROT_WRITE));
	EXPECT_EQ(64, ON_DEVICE(self->p, self->size));
	EXPECT_EQ(0, emu_fill(self->dev, 0, self->p, self->size, 2));
	EXPECT_EQ(-1, mismatch(self->p, self->size, 2));
}

/* Shared after fork(): a page moves for both, and each writes its own. */
TEST_F(emu, fork_shares)
{
	struct turns t;
	pid_t pid;

	ASSERT_EQ(0, turns_init(&t));
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		struct emu own;
		int hm = hm_open();

		turns_in_child(&t);
		CHILD_CHECK(hm >= 0 && !emu_open(&own, 0));
		/* Inherited on the device. */
		CHILD_CHECK(pages_at(hm, self->p, self->size, own.loc) == 64);
		CHILD_CHECK(emu_sees(&own, 0, self->p, self->size, 1));
		CHILD_CHECK(turn_pass(t.to_parent[1]));
		CHILD_CHECK(turn_wait(t.to_child[0]));
		/* The parent wrote its half 0, we write half 1. */
		CHILD_CHECK(mismatch(self->p, self->size, 1) < 0);
		CHILD_CHECK(to_device(hm, &own, self->p, self->size) == 64);
		CHILD_CHECK(!emu_fill(&own, 0, PAGE(32), self->size / 2, 3));
		CHILD_CHECK(mismatch(self->p, self->size / 2, 1) < 0);
		CHILD_CHECK(mismatch(PAGE(32), self->size / 2, 3) < 0);
		CHILD_CHECK(turn_pass(t.to_parent[1]));
		CHILD_CHECK(turn_wait(t.to_child[0]));
		_exit(0);
	}
	turns_in_parent(&t);
	ASSERT_TRUE(turn_wait(t.to_parent[0]));
	/* A device writes: that breaks the sharing like a CPU does. */
	ASSERT_EQ(0, emu_fill(self->dev, HETMEM_EMU_MIGRATE, self->p,
			      self->size / 2, 2));
	turn_pass(t.to_child[1]);
	ASSERT_TRUE(turn_wait(t.to_parent[0]));
	EXPECT_EQ(-1, mismatch(self->p, self->size / 2, 2));
	EXPECT_EQ(-1, mismatch_at(PAGE(32), self->size / 2, 1,
				  self->size / 2));
	turn_pass(t.to_child[1]);
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(-1, mismatch(self->p, self->size / 2, 2));
}

/* Moved by one while the other only reads. */
TEST_F(emu, fork_then_move)
{
	struct turns t;
	pid_t pid;
	long moved;

	ASSERT_EQ(64, to_host(self->hm, self->p, self->size));
	ASSERT_EQ(0, turns_init(&t));
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		int i;

		turns_in_child(&t);
		for (i = 0; i < 4; i++) {
			CHILD_CHECK(turn_wait(t.to_child[0]));
			CHILD_CHECK(mismatch(self->p, self->size, 1) < 0);
			CHILD_CHECK(turn_pass(t.to_parent[1]));
		}
		_exit(0);
	}
	turns_in_parent(&t);
	for (int i = 0; i < 4; i++) {
		/* What two processes map moves for both. */
		moved = to_device(self->hm, &self->rig.dev[i & 1], self->p,
				  self->size);
		EXPECT_EQ(64, moved);
		turn_pass(t.to_child[1]);
		ASSERT_TRUE(turn_wait(t.to_parent[0]));
		EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
	}
	EXPECT_EQ(0, child_status(pid));
}

TEST_F(emu, mremap_moves)
{
	char *to = mmap(NULL, 2 * self->size, PROT_NONE, MAP_PRIVATE |
			MAP_ANONYMOUS, -1, 0);
	struct hetmem_cmd_stats st;

	ASSERT_NE(MAP_FAILED, to);
	ASSERT_EQ(0, hm_track(self->hm, to, self->size));
	ASSERT_EQ(to, mremap(self->p, self->size, self->size,
			     MREMAP_MAYMOVE | MREMAP_FIXED, to));
	/* They went along: no page moved. */
	EXPECT_EQ(64, ON_DEVICE(to, self->size));
	EXPECT_EQ(64, pages_at(self->hm, self->p, self->size,
			       HETMEM_LOC(HETMEM_UNMAPPED, 0)));
	EXPECT_TRUE(emu_sees(self->dev, 0, to, self->size, 1));
	EXPECT_EQ(-EFAULT, emu_read(self->dev, 0, self->p, 16, to));
	ASSERT_EQ(64, to_host(self->hm, to, self->size));
	ASSERT_EQ(0, hm_stats(self->hm, to, &st));
	EXPECT_EQ(64, st.to_host);
	EXPECT_EQ(-1, mismatch(to, self->size, 1));
	munmap(to, 2 * self->size);
}

TEST_F(emu, munmap_half)
{
	struct hetmem_emu_cmd_info info;

	ASSERT_EQ(0, munmap(PAGE(16), 32 * page_size()));
	EXPECT_EQ(32, ON_DEVICE(self->p, self->size));
	ASSERT_EQ(0, emu_info(self->dev->fd, &info));
	EXPECT_EQ(32, info.used);
	EXPECT_EQ(-1, mismatch(PAGE(0), 16 * page_size(), 1));
	EXPECT_EQ(-1, mismatch_at(PAGE(48), 16 * page_size(), 1,
				  48 * page_size()));
}

TEST_F(emu, dontneed)
{
	struct hetmem_emu_cmd_info info;

	ASSERT_EQ(0, madvise(PAGE(0), 32 * page_size(), MADV_DONTNEED));
	ASSERT_EQ(0, emu_info(self->dev->fd, &info));
	EXPECT_EQ(32, info.used);
	EXPECT_TRUE(all_zero(PAGE(0), 32 * page_size()));
	EXPECT_EQ(-1, mismatch_at(PAGE(32), 32 * page_size(), 1,
				  32 * page_size()));
}

/* MADV_FREE may drop what is there, never mix it or make it half. */
TEST_F(emu, free)
{
	int i;

	ASSERT_EQ(0, madvise(self->p, self->size, MADV_FREE));
	for (i = 0; i < 64; i++) {
		EXPECT_TRUE(all_zero(PAGE(i), page_size()) ||
			    mismatch_at(PAGE(i), page_size(), 1,
					i * page_size()) < 0);
	}
	/* What the device writes after it is kept. */
	ASSERT_EQ(0, madvise(self->p, self->size, MADV_FREE));
	ASSERT_EQ(0, emu_fill(self->dev, HETMEM_EMU_MIGRATE, self->p,
			      self->size, 2));
	ASSERT_EQ(64, to_host(self->hm, self->p, self->size));
	madvise(self->p, self->size, MADV_PAGEOUT);
	EXPECT_EQ(-1, mismatch(self->p, self->size, 2));
}

/* Advice that the kernel may follow or not, on pages it cannot see. */
TEST_F(emu, other_advice)
{
	static const int advice[] = {
		MADV_COLD, MADV_PAGEOUT, MADV_WILLNEED, MADV_RANDOM,
		MADV_SEQUENTIAL, MADV_DONTFORK, MADV_DOFORK, MADV_DONTDUMP,
		MADV_POPULATE_READ, MADV_POPULATE_WRITE, MADV_HUGEPAGE,
		MADV_COLLAPSE, MADV_NOHUGEPAGE,
	};
	size_t i;

	for (i = 0; i < ARRAY_SIZE(advice); i++) {
		ASSERT_EQ(64, to_device(self->hm, self->dev, self->p,
					self->size));
		madvise(self->p, self->size, advice[i]);
		EXPECT_EQ(-1, mismatch(self->p, self->size, 1)) {
			TH_LOG("madvise %d", advice[i]);
		}
	}
}

/* mlock() and munlock(), MAP_LOCKED or later, there and here. */
TEST_F(emu, mlock)
{
	ASSERT_EQ(0, mlock(self->p, self->size));
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
	ASSERT_EQ(64, to_device(self->hm, self->dev, self->p, self->size));
	ASSERT_EQ(0, munlock(self->p, self->size));
	EXPECT_TRUE(emu_sees(self->dev, 0, self->p, self->size, 1));
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
}

/* System calls that read and write the memory themselves. */
TEST_F(emu, read_and_write)
{
	int pipes[2], i;
	char buf[4096];

	ASSERT_EQ(0, pipe(pipes));
	for (i = 0; i < 16; i++) {
		ASSERT_EQ(4096, write(pipes[1], PAGE(i), 4096));
		ASSERT_EQ(4096, read(pipes[0], buf, 4096));
		EXPECT_EQ(-1, mismatch_at(buf, 4096, 1, i * page_size()));
	}
	ASSERT_EQ(64, to_device(self->hm, self->dev, self->p, self->size));
	fill(buf, 4096, 2);
	for (i = 0; i < 64; i++) {
		ASSERT_EQ(4096, write(pipes[1], buf, 4096));
		ASSERT_EQ(4096, read(pipes[0], PAGE(i), 4096));
		EXPECT_EQ(-1, mismatch(PAGE(i), 4096, 2));
	}
	close(pipes[0]);
	close(pipes[1]);
}

/* A tracer and /proc/PID/mem see what the device has. */
TEST_F(emu, traced)
{
	struct turns t;
	char *copy = malloc(self->size), path[64];
	struct iovec here = { copy, self->size };
	struct iovec there = { self->p, self->size };
	pid_t pid;
	int fd, status;

	ASSERT_NE(NULL, copy);
	ASSERT_EQ(0, turns_init(&t));
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		struct emu own;
		int hm = hm_open();

		turns_in_child(&t);
		CHILD_CHECK(hm >= 0 && !emu_open(&own, 0));
		fill(self->p, self->size, 4);
		CHILD_CHECK(to_device(hm, &own, self->p, self->size) == 64);
		CHILD_CHECK(turn_pass(t.to_parent[1]));
		CHILD_CHECK(turn_wait(t.to_child[0]));
		CHILD_CHECK(*(uint64_t *)PAGE(2) == 42);
		_exit(0);
	}
	turns_in_parent(&t);
	ASSERT_TRUE(turn_wait(t.to_parent[0]));
	ASSERT_EQ(0, ptrace(PTRACE_ATTACH, pid, NULL, NULL));
	ASSERT_EQ(pid, waitpid(pid, &status, 0));
	errno = 0;
	EXPECT_EQ((long)pattern_word(4, page_size()),
		  ptrace(PTRACE_PEEKDATA, pid, PAGE(1), NULL));
	EXPECT_EQ(0, errno);
	EXPECT_EQ(0, ptrace(PTRACE_POKEDATA, pid, PAGE(2), 42L));
	snprintf(path, sizeof(path), "/proc/%d/mem", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	ASSERT_GE(fd, 0);
	EXPECT_EQ(4096, pread(fd, copy, 4096, (off_t)PAGE(20)));
	EXPECT_EQ(-1, mismatch_at(copy, 4096, 4, 20 * page_size()));
	close(fd);
	EXPECT_EQ((ssize_t)self->size,
		  process_vm_readv(pid, &here, 1, &there, 1, 0));
	EXPECT_EQ(-1, mismatch_at(copy + 3 * page_size(),
				  self->size - 3 * page_size(), 4,
				  3 * page_size()));
	EXPECT_EQ(0, ptrace(PTRACE_DETACH, pid, NULL, NULL));
	turn_pass(t.to_child[1]);
	EXPECT_EQ(0, child_status(pid));
	/* The parent's own pages were not the child's. */
	EXPECT_EQ(-1, mismatch(self->p, self->size, 1));
	free(copy);
}

/* Every way to end with pages on a device; rig_exit() counts them. */
TEST_F(emu, owner_ends)
{
	char *argv[] = { "self", "-h", NULL }, *envp[] = { NULL };
	struct hetmem_emu_cmd_info info;
	int way;

	munmap(self->p, self->size);
	for (way = 0; way < 4; way++) {
		pid_t pid = fork();
		static const int end[] = {
			0, 128 + SIGKILL, 128 + SIGSEGV, KSFT_SKIP,
		};

		ASSERT_GE(pid, 0);
		if (!pid) {
			int hm = hm_open();
			char *p = map_filled(self->size, 5);
			struct emu own;

			CHILD_CHECK(hm >= 0 && p && !emu_open(&own, 0));
			CHILD_CHECK(to_device(hm, &own, p, self->size) == 64);
			if (way == 1)
				raise(SIGKILL);
			if (way == 2)
				raise(SIGSEGV);
			if (way == 3) {
				/* Its help text is not for the output. */
				close(1);
				close(2);
				execve("/proc/self/exe", argv, envp);
			}
			_exit(0);
		}
		EXPECT_EQ(end[way], child_status(pid));
		EXPECT_TRUE(emu_empties(self->dev, &info));
	}
}

TEST_HARNESS_MAIN
