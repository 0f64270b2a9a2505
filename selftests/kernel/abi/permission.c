// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Whose context it is: a descriptor that fork(), SCM_RIGHTS, vfork() or
 * execve() brought into another address space, held by who may trace
 * everybody and by who may not.
 */
#include "libktest/harness.h"
#include "libktest/table.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <linux/capability.h>

#define HALF	(16 * page_size())

FIXTURE(permission)
{
	int fd;
	char *p;
};

FIXTURE_VARIANT(permission)
{
	bool may_trace;		/* CAP_SYS_PTRACE */
};

FIXTURE_VARIANT_ADD(permission, root) { .may_trace = true };
FIXTURE_VARIANT_ADD(permission, nobody) { .may_trace = false };

FIXTURE_SETUP(permission)
{
	ASSERT_EQ(0, geteuid());
	self->fd = hm_open_flags(0);
	ASSERT_GE(self->fd, 0);
	self->p = mmap(NULL, 2 * HALF, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, self->p);
	fill(self->p, 2 * HALF, 1);
	ASSERT_EQ(0, hm_track(self->fd, self->p, HALF));
}

FIXTURE_TEARDOWN(permission)
{
	EXPECT_EQ(-1, mismatch(self->p, 2 * HALF, 1));
	munmap(self->p, 2 * HALF);
	EXPECT_EQ(0, close(self->fd));
}

/*
 * In a process that is not the context's: every command as it should be.
 * Exits with what is wrong.
 */
static void check_as_stranger(int fd, const char *p, size_t half,
			      bool may_trace)
{
	struct hetmem_cmd_info info;
	enum command_id id;

	if (!may_trace)
		CHILD_CHECK(!become_nobody());
	for (id = 0; id < CMD_NR; id++) {
		bool allowed = may_trace && commands[id].stranger;
		union any_command c;
		int ret;

		command_valid(id, &c, p, half);
		ret = command_call(fd, id, &c);
		if (ret != (allowed ? commands[id].right : -EPERM)) {
			fprintf(stderr, "# %s from another process: %d\n",
				commands[id].name, ret);
			_exit(1);
		}
	}
	if (may_trace) {
		/* Neither tracked nor untracked by us. */
		CHILD_CHECK(!hm_info(fd, &info) && info.nr_ranges == 1);
		/* The owner's memory, not ours. */
		CHILD_CHECK(pages_of_kind(fd, p, 2 * half, HETMEM_HOST) ==
			    (long)(2 * half / page_size()));
	}
}

/* Wrong arguments must not tell a stranger more than right ones do. */
static void check_wrong_as_stranger(int fd)
{
	enum command_id id;
	union any_command c;

	CHILD_CHECK(!become_nobody());
	for (id = 0; id < CMD_NR; id++) {
		memset(&c, 0, sizeof(c));
		CHILD_CHECK(command_call(fd, id, &c) == -EPERM);
		CHILD_CHECK(command_call(fd, id, NULL) == -EPERM);
	}
}

TEST_F(permission, forked)
{
	pid_t pid = fork();

	ASSERT_GE(pid, 0);
	if (!pid) {
		/* The child's own memory at those addresses is something else. */
		munmap(self->p, 2 * HALF);
		check_as_stranger(self->fd, self->p, HALF,
				  variant->may_trace);
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
	/* The owner can do everything, as before. */
	EXPECT_EQ(0, hm_untrack(self->fd, self->p, HALF));
}

TEST_F(permission, wrong_arguments)
{
	pid_t pid = fork();

	ASSERT_GE(pid, 0);
	if (!pid) {
		check_wrong_as_stranger(self->fd);
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
}

/* A capability inside a user namespace of one's own is not enough. */
TEST_F(permission, user_namespace)
{
	pid_t pid = fork();

	ASSERT_GE(pid, 0);
	if (!pid) {
		enum command_id id;
		union any_command c;

		CHILD_CHECK(!become_nobody());
		if (unshare(CLONE_NEWUSER))
			_exit(errno == EINVAL || errno == ENOSYS ||
			      errno == EPERM ? KSFT_SKIP : 1);
		for (id = 0; id < CMD_NR; id++) {
			command_valid(id, &c, self->p, HALF);
			CHILD_CHECK(command_call(self->fd, id, &c) == -EPERM);
		}
		_exit(0);
	}
	switch (child_status(pid)) {
	case 0:
		break;
	case KSFT_SKIP:
		SKIP(return, "kernel lacks user namespaces for users");
	default:
		ASSERT_TRUE(false);
	}
}

/* A thread of the owner is the owner, also one without privileges. */
TEST_F(permission, owner_without_privileges)
{
	pid_t pid = fork();

	ASSERT_GE(pid, 0);
	if (!pid) {
		enum command_id id;
		union any_command c;
		int fd;

		if (!variant->may_trace)
			CHILD_CHECK(!become_nobody());
		fd = hm_open();
		CHILD_CHECK(fd >= 0);
		CHILD_CHECK(!hm_track(fd, self->p, HALF));
		/* From the last to the first: STATS before UNTRACK. */
		for (id = CMD_NR; id-- > 0;) {
			command_valid(id, &c, self->p, HALF);
			CHILD_CHECK(command_call(fd, id, &c) ==
				    commands[id].right);
		}
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
}

/* vfork()'s child lives in its parent's address space: it is the owner. */
TEST_F(permission, vforked)
{
	volatile int ret = -1;
	pid_t pid = vfork();

	if (!pid) {
		ret = hm_untrack(self->fd, self->p, HALF);
		_exit(0);
	}
	ASSERT_GT(pid, 0);
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(0, ret);
}

/* A child opens a context and passes it up: now the parent is a stranger. */
TEST_F(permission, passed)
{
	struct turns t;
	int sock[2], fd, round;
	pid_t owner, stranger;

	ASSERT_EQ(0, turns_init(&t));
	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock));
	owner = fork();
	ASSERT_GE(owner, 0);
	if (!owner) {
		int own = hm_open();

		turns_in_child(&t);
		CHILD_CHECK(own >= 0 && !hm_track(own, self->p, HALF));
		CHILD_CHECK(!send_fd(sock[1], own));
		turn_wait(t.to_child[0]);
		CHILD_CHECK(!hm_untrack(own, self->p, HALF));
		_exit(0);
	}
	turns_in_parent(&t);
	fd = receive_fd(sock[0]);
	ASSERT_GE(fd, 0);
	for (round = 0; round < 2; round++) {
		stranger = fork();
		ASSERT_GE(stranger, 0);
		if (!stranger) {
			check_as_stranger(fd, self->p, HALF,
					  variant->may_trace);
			_exit(0);
		}
		EXPECT_EQ(0, child_status(stranger));
	}
	turn_pass(t.to_child[1]);
	EXPECT_EQ(0, child_status(owner));

	/* The owner has exited: what it had cannot be looked at any more. */
	stranger = fork();
	ASSERT_GE(stranger, 0);
	if (!stranger) {
		struct hetmem_cmd_residency cmd = {
			.start = (uintptr_t)self->p,
			.end = (uintptr_t)self->p + HALF,
		};
		int want = variant->may_trace ? -ESRCH : -EPERM;

		if (!variant->may_trace)
			CHILD_CHECK(!become_nobody());
		CHILD_CHECK(hm_residency(fd, &cmd) == want);
		CHILD_CHECK(hm_track(fd, self->p, HALF) == -EPERM);
		_exit(0);
	}
	EXPECT_EQ(0, child_status(stranger));
	EXPECT_EQ(0, close(fd));
	close(sock[0]);
	close(sock[1]);
}

/* What /proc/PID/fdinfo says of whose a context is; -1 if it does not. */
static int fdinfo_pid(int fd)
{
	char path[64], line[128];
	int pid = -1;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	f = fopen(path, "r");
	if (!f)
		return -1;
	while (fgets(line, sizeof(line), f))
		if (sscanf(line, "hetmem-pid: %d", &pid) == 1)
			break;
	fclose(f);
	return pid;
}

/* A holder can find out whose context it holds, also when they are gone. */
TEST_F(permission, told_by_fdinfo)
{
	int sock[2], fd;
	pid_t pid;

	EXPECT_EQ(getpid(), fdinfo_pid(self->fd));
	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock));
	pid = fork();
	ASSERT_GE(pid, 0);
	if (!pid) {
		int own = hm_open();

		if (!variant->may_trace)
			CHILD_CHECK(!become_nobody());
		/* Nobody's own /proc is root's after that: not to be read. */
		if (variant->may_trace)
			CHILD_CHECK(fdinfo_pid(self->fd) == getppid());
		CHILD_CHECK(own >= 0 && !send_fd(sock[1], own));
		_exit(0);
	}
	fd = receive_fd(sock[0]);
	ASSERT_GE(fd, 0);
	EXPECT_EQ(pid, fdinfo_pid(fd));
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(0, fdinfo_pid(fd));
	close(fd);
	close(sock[0]);
	close(sock[1]);
}

#define EXEC_FD		"HM_EXEC_FD"
#define EXEC_ADDR	"HM_EXEC_ADDR"
#define EXEC_TRACE	"HM_EXEC_TRACE"

/*
 * What this program does when a test has executed it anew: the descriptor
 * is of its former self, whose address space is gone.
 */
__attribute__((constructor)) static void after_exec(void)
{
	struct hetmem_cmd_residency cmd = { 0 };
	bool may_trace;
	int fd, own;

	if (!getenv(EXEC_FD))
		return;
	fd = atoi(getenv(EXEC_FD));
	cmd.start = strtoul(getenv(EXEC_ADDR), NULL, 16);
	cmd.end = cmd.start + page_size();
	may_trace = getenv(EXEC_TRACE);
	CHILD_CHECK(may_trace == !geteuid());
	CHILD_CHECK(hm_track(fd, (void *)cmd.start, page_size()) == -EPERM);
	CHILD_CHECK(hm_residency(fd, &cmd) == (may_trace ? -ESRCH : -EPERM));
	own = hm_open();
	CHILD_CHECK(own >= 0 && !hm_residency(own, &cmd));
	_exit(0);
}

TEST_F(permission, executed)
{
	pid_t pid = fork();

	ASSERT_GE(pid, 0);
	if (!pid) {
		char fd_text[32], addr_text[48];
		char *envp[] = { fd_text, addr_text,
				 variant->may_trace ? EXEC_TRACE "=1" : NULL,
				 NULL };
		char *argv[] = { "self", NULL };
		int self_fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
		int fd = hm_open_flags(0);

		CHILD_CHECK(self_fd >= 0 && fd >= 0);
		CHILD_CHECK(!hm_track(fd, self->p, HALF));
		snprintf(fd_text, sizeof(fd_text), EXEC_FD "=%d", fd);
		snprintf(addr_text, sizeof(addr_text), EXEC_ADDR "=%lx",
			 (unsigned long)self->p);
		if (!variant->may_trace)
			CHILD_CHECK(!become_nobody());
		fexecve(self_fd, argv, envp);
		CHILD_CHECK(!"executed");
	}
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(0, hm_untrack(self->fd, self->p, HALF));
}

TEST_HARNESS_MAIN
