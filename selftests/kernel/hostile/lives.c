// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Address spaces that outlive their opener, and contexts that outlive their address
 * space; calls of 32-bit programs; execve() amid everything; files queued in circles.
 */
#include "libktest/harness.h"
#include "libktest/asker.h"
#include "libktest/ring.h"
#include "libktest/sysfs.h"
#include "libktest/table.h"

#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/resource.h>

#define SIZE	(64 * page_size())

/* fdinfo's number. */
static long info_pid(int fd)
{
	char path[64], line[128];
	long pid = -1;
	FILE *f;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", fd);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f))
		sscanf(line, "hetmem-pid: %ld", &pid);
	if (f)
		fclose(f);
	return pid;
}

static int survive(void *arg)
{
	int *fds = arg;
	struct hetmem_cmd_migrate cmd;
	struct hetmem_list_entry list[64];
	struct hetmem_cmd_refresh ref;
	struct ring r;
	char *p;
	int fd = fds[0], i, n;
	char c;

	/* Until the opener has ended. */
	close(fds[2]);
	if (read(fds[1], &c, 1))
		return 10;
	p = map_filled(SIZE, 1);
	if (!p)
		return 11;
	if (hm_track(fd, p, SIZE))
		return 12;
	if (hm_pin(fd, p, SIZE, 60000, &cmd) || cmd.pinned != 64)
		return 13;
	if (pages_of_kind(fd, p, SIZE, HETMEM_HOST) != 64)
		return 14;
	if (hm_refresh(fd, p, &ref))
		return 15;
	if (ring_open(fd, 64, ALL_EVENTS, &r))
		return 16;
	if (info_pid(fd) != 0)
		return 17;
	n = hm_list(fd, list, 64);
	for (i = 0; i < n; i++)
		if (list[i].nr_pinned == 64 && list[i].pid == 0)
			break;
	if (i >= n)
		return 18;
	if (vm_pin() != 64)
		return 19;
	return 0;
}

static char stack[256 * 1024] __attribute__((aligned(16)));

/* The process that opened it ends, another one has the same memory. */
TEST(opener_gone)
{
	pid_t pid = fork();
	int status;

	ASSERT_LE(0, pid);
	if (!pid) {
		/* In a process of its own: it opens, clones, and ends. */
		static int arg[3];
		int pipe_[2];
		pid_t sub;

		prctl(PR_SET_CHILD_SUBREAPER, 1);
		if (pipe(pipe_))
			_exit(1);
		sub = fork();
		if (!sub) {
			arg[0] = hm_open();
			arg[1] = pipe_[0];
			arg[2] = pipe_[1];
			sub = clone(survive, stack + sizeof(stack), CLONE_VM | SIGCHLD, arg);
			_exit(sub > 0 ? 0 : 1);
		}
		waitpid(sub, &status, 0);
		if (status)
			_exit(2);
		close(pipe_[0]);
		close(pipe_[1]);
		sub = waitpid(-1, &status, 0);
		_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
	}
	EXPECT_EQ(0, child_status(pid));
}

#ifdef __x86_64__
static long ioctl32(int fd, unsigned int nr, void *arg)
{
	long ret;

	asm volatile("int $0x80" : "=a"(ret) : "a"(54L), "b"((long)fd), "c"((long)nr),
		     "d"((long)(uintptr_t)arg) : "memory", "r8", "r9", "r10", "r11");
	return ret;
}

static void on_segv(int sig)
{
	_exit(KSFT_SKIP);
}

/* Every command as a 32-bit program calls it. */
TEST(compat)
{
	pid_t pid = fork();
	int status;

	ASSERT_LE(0, pid);
	if (!pid) {
		union any_command *cmd = mmap(NULL, 2 * page_size(), PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
		char *p = map_filled(SIZE, 1);
		int fd = hm_open(), i;

		signal(SIGSEGV, on_segv);
		CHILD_CHECK(cmd != MAP_FAILED && p && fd >= 0);
		CHILD_CHECK(!hm_track(fd, p, SIZE / 2));
		for (i = 0; i < CMD_NR; i++) {
			long ret;

			command_valid(i, cmd, p, SIZE / 2);
			ret = ioctl32(fd, commands[i].nr, cmd);
			if (ret != commands[i].right)
				fprintf(stderr, "# %s: %ld\n", commands[i].name, ret);
			if (ret == -ENOSYS)
				_exit(KSFT_SKIP);
			CHILD_CHECK(ret == commands[i].right);
			if (i == CMD_UNTRACK)
				hm_track(fd, p, SIZE / 2);
		}
		_exit(0);
	}
	status = child_status(pid);
	if (status == KSFT_SKIP)
		SKIP(return, "kernel lacks 32-bit programs");
	EXPECT_EQ(0, status);
}
#endif

/* execve() while threads are in each command; the file stays open behind it. */
static int exec_fd;
static char *exec_p;

static void *work(void *arg)
{
	struct hetmem_cmd_migrate cmd;
	struct hetmem_cmd_refresh ref;
	struct hetmem_cmd_hint hint;
	long n = (long)arg;

	for (;;) {
		switch (n % 5) {
		case 0:
			hm_pin(exec_fd, exec_p, SIZE, 60000, &cmd);
			break;
		case 1:
			hm_refresh(exec_fd, exec_p, &ref);
			break;
		case 2:
			hm_hint(exec_fd, exec_p, SIZE, FOREIGN(3), FOREVER_MS, &hint);
			break;
		case 3:
			hm_untrack(exec_fd, exec_p, SIZE);
			hm_track(exec_fd, exec_p, SIZE);
			break;
		case 4:
			pages_of_kind(exec_fd, exec_p, SIZE, HETMEM_HOST);
			break;
		}
	}
	return NULL;
}

TEST(executed_meanwhile)
{
	long bytes = read_long(STATS "bytes");
	int i;

	for (i = 0; i < test_rounds(20); i++) {
		pid_t pid = fork();

		ASSERT_LE(0, pid);
		if (!pid) {
			pthread_t t;
			struct ring r;
			long n;

			exec_fd = hm_open_flags(0);
			exec_p = map_filled(SIZE, 1);
			CHILD_CHECK(!hm_track(exec_fd, exec_p, SIZE));
			CHILD_CHECK(!ring_open(exec_fd, 64, ALL_EVENTS, &r));
			CHILD_CHECK(!hm_bind(exec_fd, FOREIGN(3), HETMEM_BIND_EXECUTOR, "0123456789abcdef"));
			for (n = 0; n < 10; n++)
				CHILD_CHECK(!pthread_create(&t, NULL, work, (void *)n));
			/* time: the moment varies, and each is right */
			usleep(i * 500);
			execl("/bin/sh", "sh", "-c", "exit 7", NULL);
			_exit(3);
		}
		EXPECT_EQ(7, child_status(pid));
	}
	EXPECT_TRUE(EVENTUALLY(read_long(STATS "bytes") == bytes));
}

/* Epoll on everything, nested, closed under the waiter; queued in sockets in a circle. */
TEST(queued_in_a_circle)
{
	long contexts = nr_contexts();
	int i;

	for (i = 0; i < 50; i++) {
		int sv[2], sw[2], ep = epoll_create1(0), ep2 = epoll_create1(0), hm = hm_open();
		struct epoll_event ev = { .events = EPOLLIN | EPOLLET };
		struct hetmem_cmd_migrate cmd;
		char buf[CMSG_SPACE(4 * sizeof(int))] = { };
		struct iovec iov = { "x", 1 };
		struct msghdr msg = { .msg_iov = &iov, .msg_iovlen = 1,
				      .msg_control = buf, .msg_controllen = sizeof(buf) };
		struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
		char *p = map_filled(SIZE, 1);
		struct ring r;
		int fds[4];

		ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_DGRAM, 0, sv));
		ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_DGRAM, 0, sw));
		ASSERT_EQ(0, ring_open(hm, 16, ALL_EVENTS, &r));
		ASSERT_EQ(0, hm_track(hm, p, SIZE));
		ASSERT_EQ(0, hm_pin(hm, p, SIZE, FOREVER_MS, &cmd));
		ASSERT_EQ(0, epoll_ctl(ep, EPOLL_CTL_ADD, hm, &ev));
		ASSERT_EQ(0, epoll_ctl(ep2, EPOLL_CTL_ADD, ep, &ev));
		fds[0] = sv[0]; fds[1] = sw[1]; fds[2] = hm; fds[3] = hm;
		c->cmsg_level = SOL_SOCKET;
		c->cmsg_type = SCM_RIGHTS;
		c->cmsg_len = CMSG_LEN(sizeof(fds));
		memcpy(CMSG_DATA(c), fds, sizeof(fds));
		ASSERT_EQ(1, sendmsg(sv[1], &msg, 0));
		ASSERT_EQ(1, sendmsg(sw[0], &msg, 0));
		ring_close(&r);
		if (i & 1)
			munmap(p, SIZE);
		close(hm); close(sv[0]); close(sv[1]); close(sw[0]); close(sw[1]);
		if ((i & 3) == 2)
			invalidate(p);
		close(ep); close(ep2);
		munmap(p, SIZE);
	}
	/* The kernel collects them when it comes to it. */
	EXPECT_TRUE(EVENTUALLY(({ int s[2]; socketpair(AF_UNIX, SOCK_DGRAM, 0, s);
		close(s[0]); close(s[1]); nr_contexts() == contexts; }))) {
		TH_LOG("%ld contexts, before %ld", nr_contexts(), contexts);
	}
	EXPECT_TRUE(EVENTUALLY(!vm_pin()));
}

/* The role is given up, or taken by another, while hints wait for it. */
TEST(role_given_up)
{
	struct hetmem_event e;
	struct ring r, r2;
	struct asker a, b;
	char *p = map_filled(SIZE, 1);
	int fd, fd2;

	fd = executor_open(&r, FOREIGN(3), 64);
	ASSERT_LE(0, fd);
	ASSERT_EQ(0, asker_start(&a, fd, p, SIZE, FOREIGN(3), uuid_of(FOREIGN(3))));
	ASSERT_TRUE(EVENTUALLY(hints_waiting(fd, getpid()) == 1));
	ASSERT_EQ(0, hm_bind(fd, FOREIGN(3), 0, uuid_of(FOREIGN(3))));
	fd2 = executor_open(&r2, FOREIGN(3), 64);
	ASSERT_LE(0, fd2);
	ASSERT_EQ(0, asker_start(&b, fd, p, SIZE, FOREIGN(3), uuid_of(FOREIGN(3))));
	ASSERT_TRUE(ring_wait(&r, &e, 1000));
	EXPECT_EQ(-ENOENT, hm_complete(fd2, e.data, 0, 1));
	EXPECT_EQ(0, hm_complete(fd, e.data, 0, 1));
	EXPECT_EQ(0, asker_end(&a));
	ASSERT_TRUE(ring_wait(&r2, &e, 1000));
	EXPECT_EQ(-ENOENT, hm_complete(fd, e.data, 0, 2));
	EXPECT_EQ(-EINVAL, hm_complete(fd2, e.data, 1, 2));
	EXPECT_EQ(-EINVAL, hm_complete(fd2, e.data, -4096, 2));
	EXPECT_EQ(0, hm_complete(fd2, e.data, -4095, 2));
	asker_end(&b);
	EXPECT_EQ(-ENOENT, hm_complete(fd2, e.data, 0, 2));
	ring_close(&r);
	ring_close(&r2);
	close(fd);
	close(fd2);
	munmap(p, SIZE);
}

/* All threads of two processes with one memory open at once: as many as there may be. */
static int opened[200];
static int go;

static void *open_one(void *arg)
{
	while (!__atomic_load_n(&go, __ATOMIC_ACQUIRE))
		;
	opened[(long)arg] = hm_open();
	return NULL;
}

TEST(opened_at_once)
{
	int round;

	for (round = 0; round < 5; round++) {
		pthread_t t[100];
		int i, ok = 0, refused = 0;

		go = 0;
		for (i = 0; i < 100; i++)
			ASSERT_EQ(0, pthread_create(&t[i], NULL, open_one, (void *)(long)i));
		__atomic_store_n(&go, 1, __ATOMIC_RELEASE);
		for (i = 0; i < 100; i++)
			pthread_join(t[i], NULL);
		for (i = 0; i < 100; i++) {
			ok += opened[i] >= 0;
			refused += opened[i] == -EDQUOT;
			if (opened[i] >= 0)
				close(opened[i]);
		}
		EXPECT_EQ(64, ok);
		EXPECT_EQ(36, refused);
	}
}

/* Devices that there are not. */
TEST(bound_to_nothing)
{
	struct ring r;
	int fd = hm_open(), i;

	ASSERT_EQ(0, ring_open(fd, 16, ALL_EVENTS, &r));
	for (i = 0; i < 20; i++) {
		int ret = hm_bind(fd, HETMEM_LOC(HETMEM_DEVICE, 60000 + i), i & 1, NULL);

		TH_LOG("%d: %d", i, ret);
	}
	EXPECT_EQ(-EINVAL, hm_bind(fd, FOREIGN(1), 0, NULL));
	EXPECT_EQ(-EINVAL, hm_bind(fd, ANY_HOST, 1, "0123456789abcdef"));
	EXPECT_EQ(-EINVAL, hm_bind(fd, HETMEM_LOC(77, 0), 1, "0123456789abcdef"));
	ring_close(&r);
	close(fd);
}

TEST_HARNESS_MAIN
