// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Answers that cannot be written before somebody else, here a handler of userfaultfd that
 * never does, brings the page: the call waits for that, and nobody waits for the call.
 */
#include "libktest/harness.h"
#include "libktest/ring.h"
#include "libktest/sysfs.h"
#include "libktest/table.h"

#include <linux/userfaultfd.h>
#include <pthread.h>

#define SIZE	(4 * HUGE_SIZE)
#define MANY	70		/* more than may look at an address space at once */

struct caller {
	pthread_t thread;
	int fd;
	enum command_id id;
	void *cmd;
	int ret;
};

static void *call_it(void *arg)
{
	struct caller *c = arg;

	c->ret = command_call(c->fd, c->id, c->cmd);
	return NULL;
}

static int watch(void *p, size_t size, uint64_t mode)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .mode = mode };
	struct uffdio_writeprotect wp = { .mode = UFFDIO_WRITEPROTECT_MODE_WP };
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);

	reg.range.start = wp.range.start = (uintptr_t)p;
	reg.range.len = wp.range.len = size;
	if (fd < 0 || ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &reg) ||
	    (mode == UFFDIO_REGISTER_MODE_WP && ioctl(fd, UFFDIO_WRITEPROTECT, &wp)))
		return -1;
	return fd;
}

/* Waits until @n of the threads wait; false if they do not. */
static bool stuck(int uffd, int n)
{
	struct uffd_msg msg;

	return EVENTUALLY(({
		while (n > 0 && read(uffd, &msg, sizeof(msg)) == sizeof(msg))
			n--;
		n <= 0;
	}));
}

/* What any other thread may do meanwhile. */
static void others(int fd, char *p, bool look)
{
	struct hetmem_cmd_migrate mig;
	struct hetmem_cmd_refresh ref;
	struct hetmem_cmd_stats st;
	struct hetmem_list_entry list[4];
	int hm;
	char *q = mmap(NULL, HUGE_SIZE, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHILD_CHECK(q != MAP_FAILED && !munmap(q, HUGE_SIZE));
	if (look) {
		CHILD_CHECK(pages_of_kind(fd, p, SIZE, HETMEM_HOST) >= 0);
		CHILD_CHECK(!hm_refresh(fd, p, &ref));
		CHILD_CHECK(!hm_migrate(fd, p, SIZE, ANY_HOST, &mig));
		CHILD_CHECK(!hm_pin(fd, p, 16 * page_size(), 1000, &mig));
		CHILD_CHECK(!hm_unpin(fd, p, SIZE, NULL));
	}
	CHILD_CHECK(!hm_stats(fd, p, &st));
	CHILD_CHECK(hm_list(fd, list, 4) > 0);
	CHILD_CHECK(!hm_untrack(fd, p, SIZE / 2));
	CHILD_CHECK(!hm_track(fd, p, SIZE / 2));
	CHILD_CHECK(read_long(STATS "bytes") > 0);
	hm = hm_open();
	CHILD_CHECK(hm >= 0);
	CHILD_CHECK(!hm_track(hm, p, SIZE));
	CHILD_CHECK(!close(hm));
}

static void in_child(enum command_id id, int nr, bool wp)
{
	struct caller c[MANY];
	char *p = map_filled(SIZE, 1);
	char *q = map_filled(MANY * page_size(), 1);
	char *out = mmap(NULL, HUGE_SIZE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int fd = hm_open(), uffd, i, ret;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	CHILD_CHECK(p && q && out != MAP_FAILED && fd >= 0);
	CHILD_CHECK(!hm_track(fd, p, SIZE / 2));
	for (i = 0; i < nr; i++) {
		union any_command *cmd = (void *)(q + i * page_size());

		memset(cmd, 0, sizeof(*cmd));
		command_valid(id, cmd, p, SIZE / 2);
		c[i] = (struct caller){ .fd = fd, .id = id, .cmd = cmd };
		if (wp)
			continue;
		switch (id) {
		case CMD_INFO:
			cmd->info.pool_size = sizeof(struct hetmem_pool_info);
			cmd->info.devices = cmd->info.pools = (uintptr_t)out;
			cmd->info.nr_devices = cmd->info.nr_pools = 8;
			cmd->info.device_size = sizeof(struct hetmem_device_info);
			break;
		case CMD_RESIDENCY:
			cmd->residency.runs = (uintptr_t)out;
			cmd->residency.totals = (uintptr_t)out;
			break;
		case CMD_LIST:
			cmd->list.entries = (uintptr_t)out;
			break;
		default:
			break;
		}
	}
	uffd = wp ? watch(q, MANY * page_size(), UFFDIO_REGISTER_MODE_WP) :
		    watch(out, HUGE_SIZE, UFFDIO_REGISTER_MODE_MISSING);
	if (uffd < 0)
		_exit(KSFT_SKIP);
	for (i = 0; i < nr; i++)
		CHILD_CHECK(!pthread_create(&c[i].thread, NULL, call_it, &c[i]));
	if (!stuck(uffd, nr)) {
		for (i = 0; i < nr; i++)
			fprintf(stderr, "# %s: ret %d\n", commands[id].name, c[i].ret);
		_exit(2);
	}
	/* What UNTRACK ends must be tracked for the others. */
	ret = hm_track(fd, p, SIZE / 2);
	CHILD_CHECK(!ret || ret == -EEXIST);
	others(fd, p, true);
	_exit(0);
}

FIXTURE(answer) { int nothing; };
FIXTURE_VARIANT(answer) { enum command_id id; int nr; bool wp; };
FIXTURE_SETUP(answer) { }
FIXTURE_TEARDOWN(answer) { }
#define V(n, ...) FIXTURE_VARIANT_ADD(answer, n) { __VA_ARGS__ }
V(residency, CMD_RESIDENCY, 1, false);
V(list, CMD_LIST, 1, false);
V(residency_many, CMD_RESIDENCY, MANY, false);
V(wp_info, CMD_INFO, 1, true);
V(wp_residency, CMD_RESIDENCY, MANY, true);
V(wp_migrate, CMD_MIGRATE, MANY, true);
V(wp_unpin, CMD_UNPIN, 4, true);
V(wp_stats, CMD_STATS, MANY, true);
V(wp_ring, CMD_RING, 1, true);
V(wp_refresh, CMD_REFRESH, MANY, true);
V(wp_list, CMD_LIST, MANY, true);

TEST_F(answer, waits)
{
	pid_t pid = fork();
	int status = -1;

	ASSERT_LE(0, pid);
	if (!pid)
		in_child(variant->id, variant->nr, variant->wp);
	EXPECT_TRUE(EVENTUALLY(waitpid(pid, &status, WNOHANG) == pid));
	if (status < 0) {
		kill(pid, SIGKILL);
		waitpid(pid, &status, 0);
	}
	if (WIFEXITED(status) && WEXITSTATUS(status) == KSFT_SKIP)
		SKIP(return, "kernel lacks userfaultfd with write protection");
	EXPECT_EQ(0, status);
}

/* The list of the rest. */
TEST(rest)
{
	pid_t pid = fork();
	int status = -1;

	ASSERT_LE(0, pid);
	if (!pid) {
		char *p = map_filled(SIZE, 1);
		char *out = mmap(NULL, HUGE_SIZE, PROT_READ | PROT_WRITE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		struct hetmem_cmd_migrate cmd = {
			.size = sizeof(cmd), .start = (uintptr_t)p,
			.end = (uintptr_t)p + SIZE,
			.location = HETMEM_LOC(HETMEM_HOST, 1),
			.rest = (uintptr_t)out, .nr_rest = 512,
			.rest_size = sizeof(struct hetmem_run),
		};
		int fd = hm_open(), uffd;
		struct caller c = { .fd = fd, .id = CMD_MIGRATE, .cmd = &cmd };

		CHILD_CHECK(p && out != MAP_FAILED && fd >= 0);
		CHILD_CHECK(!hm_track(fd, p, SIZE / 2));
		uffd = watch(out, HUGE_SIZE, UFFDIO_REGISTER_MODE_MISSING);
		CHILD_CHECK(uffd >= 0);
		CHILD_CHECK(!pthread_create(&c.thread, NULL, call_it, &c));
		if (!stuck(uffd, 1)) {
			fprintf(stderr, "# migrate %d\n", c.ret);
			_exit(c.ret == -EOPNOTSUPP ? KSFT_SKIP : 2);
		}
		others(fd, p, true);
		_exit(0);
	}
	EXPECT_TRUE(EVENTUALLY(waitpid(pid, &status, WNOHANG) == pid));
	if (WIFEXITED(status) && WEXITSTATUS(status) == KSFT_SKIP)
		SKIP(return, "kernel lacks a second node");
	EXPECT_EQ(0, status);
}

TEST_HARNESS_MAIN
