// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * ALLOW, by which owners say what others may do with their contexts, and LIST,
 * which shows that. What follows from it is in permission_table.c.
 */
#include "libktest/harness.h"
#include "libktest/caller.h"
#include "libktest/ring.h"
#include "libktest/sysfs.h"

#include <linux/userfaultfd.h>
#include <pthread.h>

#define SIZE	(16 * page_size())

FIXTURE(share)
{
	struct turns t;
	pid_t pid;		/* of the owner of a context */
	char *p;		/* of its memory; tracked */
};

FIXTURE_VARIANT(share)
{
	bool shareable, hints;
};

FIXTURE_VARIANT_ADD(share, closed) { false, false };
FIXTURE_VARIANT_ADD(share, shareable) { true, false };
FIXTURE_VARIANT_ADD(share, hints) { false, true };
FIXTURE_VARIANT_ADD(share, both) { true, true };

static void be_owner(struct turns *t, char *p, bool shareable, bool hints)
{
	int fd;

	turns_in_child(t);
	CHILD_CHECK(!become(OWNER));
	fd = hm_open();
	CHILD_CHECK(fd >= 0 && !hm_track(fd, p, SIZE));
	/* The last one counts, and counts alone. */
	CHILD_CHECK(!hm_allow(fd, HETMEM_SHAREABLE | HETMEM_ALLOW_HINTS));
	CHILD_CHECK(!hm_allow(fd, (shareable ? HETMEM_SHAREABLE : 0) |
			      (hints ? HETMEM_ALLOW_HINTS : 0)));
	CHILD_CHECK(turn_pass(t->to_parent[1]));
	CHILD_CHECK(turn_wait(t->to_child[0]));
	_exit(0);
}

FIXTURE_SETUP(share)
{
	ASSERT_EQ(0, geteuid());
	self->p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		       MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, self->p);
	ASSERT_EQ(0, turns_init(&self->t));
	self->pid = fork();
	ASSERT_LE(0, self->pid);
	if (!self->pid)
		be_owner(&self->t, self->p, variant->shareable,
			 variant->hints);
	turns_in_parent(&self->t);
	ASSERT_TRUE(turn_wait(self->t.to_parent[0]));
}

FIXTURE_TEARDOWN(share)
{
	turn_pass(self->t.to_child[1]);
	EXPECT_EQ(0, child_status(self->pid));
	close(self->t.to_child[1]);
	close(self->t.to_parent[0]);
	munmap(self->p, SIZE);
}

/* What is shown of the owner's context to @who; 0 entries: nothing. */
static void look_at_list(enum caller who, bool all, pid_t owner, bool shareable,
			 bool hints)
{
	uint32_t flags = (shareable ? HETMEM_LIST_SHAREABLE : 0) |
			 (hints ? HETMEM_LIST_ALLOW_HINTS : 0);
	int fd, nr, i, found = 0, foreign = 0;
	struct hetmem_list_entry list[64];

	CHILD_CHECK(!become(who));
	fd = hm_open();
	CHILD_CHECK(fd >= 0);
	memset(list, 0xff, sizeof(list));
	nr = hm_list(fd, list, 64);
	CHILD_CHECK(nr >= 1 && nr <= 64);
	for (i = 0; i < nr; i++) {
		foreign += list[i].uid != geteuid();
		if (list[i].pid != (uint32_t)owner)
			continue;
		found++;
		CHILD_CHECK(list[i].uid == OWNER_UID);
		CHILD_CHECK(list[i].flags == flags);
		CHILD_CHECK(list[i].nr_ranges == 1);
		CHILD_CHECK(!list[i].nr_pinned && !list[i].nr_hints &&
			    !list[i].reserved);
	}
	CHILD_CHECK(found == (all || who == SAME_USER));
	CHILD_CHECK(all || !foreign);
	/* How many there are is said whatever there is room for. */
	CHILD_CHECK(hm_list(fd, NULL, 0) == nr);
	_exit(0);
}

TEST_F(share, listed)
{
	enum caller who;

	for (who = ROOT; who <= OTHER_USER; who++) {
		pid_t pid = fork();

		ASSERT_LE(0, pid);
		if (!pid) {
			look_at_list(who, who == ROOT || who == ONLY_PTRACE,
				     self->pid, variant->shareable,
				     variant->hints);
		}
		EXPECT_EQ(0, child_status(pid)) {
			TH_LOG("as %d", who);
		}
	}
}

/* LIST of a process that has gone. */
TEST(list)
{
	int sock[2], fd = hm_open(), gone, nr, i;
	struct hetmem_list_entry e[64];
	bool seen = false;
	pid_t pid;

	ASSERT_LE(0, fd);
	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid)
		_exit(send_fd(sock[1], hm_open()) != 0);
	gone = receive_fd(sock[0]);
	ASSERT_LE(0, gone);
	EXPECT_EQ(0, child_status(pid));
	nr = hm_list(fd, e, ARRAY_SIZE(e));
	ASSERT_LE(2, nr);
	ASSERT_GE((int)ARRAY_SIZE(e), nr);
	for (i = 0; i < nr; i++) {
		EXPECT_NE((uint32_t)pid, e[i].pid);
		seen |= !e[i].pid;
	}
	EXPECT_TRUE(seen);
	close(gone);
	close(fd);
	close(sock[0]);
	close(sock[1]);
}

/* RESIDENCY that waits for a page of the caller's. */
struct stalled {
	struct hetmem_cmd_residency cmd;
	int fd;
	int ret;
};

static void *ask(void *arg)
{
	struct stalled *s = arg;

	s->ret = hm_residency(s->fd, &s->cmd);
	return NULL;
}

/* Shows its memory, with @memfd in it, to who is at @sock, and goes. */
static void show_and_go(struct turns *t, int sock, int memfd)
{
	int fd = hm_open();
	char *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, memfd,
		       0);

	turns_in_child(t);
	CHILD_CHECK(fd >= 0 && p != MAP_FAILED);
	CHILD_CHECK(!hm_allow(fd, HETMEM_SHAREABLE));
	CHILD_CHECK(write(sock, &p, sizeof(p)) == sizeof(p));
	CHILD_CHECK(!send_fd(sock, fd));
	CHILD_CHECK(turn_wait(t->to_child[0]));
	_exit(0);
}

/*
 * Who looks at another's memory, and has the answer wait, does not keep that
 * memory: no writable mapping is left, so that the file can be sealed.
 */
TEST(memory_goes_with_its_process)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register reg = { .mode = UFFDIO_REGISTER_MODE_MISSING };
	struct uffdio_zeropage zero = { .range.len = page_size() };
	int memfd, sock[2], uffd = syscall(SYS_userfaultfd, O_CLOEXEC |
					   O_NONBLOCK);
	struct stalled s = { .ret = 1 };
	struct pollfd asked = { .fd = uffd, .events = POLLIN };
	char *runs, *p;
	pthread_t thread;
	struct turns t;
	pid_t pid;

	if (uffd < 0 && errno == ENOSYS)
		SKIP(return, "kernel has no userfaultfd");
	ASSERT_LE(0, uffd);
	memfd = memfd_create("hetmem", MFD_ALLOW_SEALING | MFD_CLOEXEC);
	ASSERT_LE(0, memfd);
	ASSERT_EQ(0, ftruncate(memfd, SIZE));
	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock));
	ASSERT_EQ(0, turns_init(&t));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid)
		show_and_go(&t, sock[1], memfd);
	turns_in_parent(&t);
	ASSERT_EQ(sizeof(p), read(sock[0], &p, sizeof(p)));
	s.fd = receive_fd(sock[0]);
	ASSERT_LE(0, s.fd);

	runs = mmap(NULL, page_size(), PROT_READ | PROT_WRITE, MAP_PRIVATE |
		    MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, runs);
	reg.range.start = zero.range.start = (uintptr_t)runs;
	reg.range.len = page_size();
	ASSERT_EQ(0, ioctl(uffd, UFFDIO_API, &api));
	ASSERT_EQ(0, ioctl(uffd, UFFDIO_REGISTER, &reg));
	s.cmd.start = (uintptr_t)p;
	s.cmd.end = (uintptr_t)p + SIZE;
	s.cmd.runs = (uintptr_t)runs;
	s.cmd.nr_runs = 1;
	s.cmd.run_size = sizeof(struct hetmem_run);
	ASSERT_EQ(0, pthread_create(&thread, NULL, ask, &s));
	ASSERT_EQ(1, poll(&asked, 1, FOREVER_MS));
	ASSERT_EQ(POLLIN, asked.revents);
	ASSERT_EQ(-1, fcntl(memfd, F_ADD_SEALS, F_SEAL_WRITE));
	turn_pass(t.to_child[1]);
	EXPECT_EQ(0, child_status(pid));
	EXPECT_TRUE(EVENTUALLY(!fcntl(memfd, F_ADD_SEALS, F_SEAL_WRITE)));
	ASSERT_EQ(0, ioctl(uffd, UFFDIO_ZEROPAGE, &zero));
	ASSERT_EQ(0, pthread_join(thread, NULL));
	/* What it had found it says; then nothing is there to look at. */
	EXPECT_EQ(0, s.ret);
	EXPECT_EQ(1, s.cmd.filled_runs);
	EXPECT_EQ(-ESRCH, hm_residency(s.fd, &s.cmd));
	close(s.fd);
	close(uffd);
	close(memfd);
	close(sock[0]);
	close(sock[1]);
	close(t.to_child[1]);
	close(t.to_parent[0]);
	munmap(runs, page_size());
}

TEST_HARNESS_MAIN
