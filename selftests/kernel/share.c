// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * LIST, which shows whose contexts there are and what they allow, and the
 * attributes by which their owners say so. What follows from them is in
 * permission_table.c.
 */
#include "hetmem_hint_test.h"
#include "hetmem_caller.h"

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
	CHILD_CHECK(!hm_set_attr(fd, NULL, HETMEM_ATTR_SHAREABLE, shareable));
	CHILD_CHECK(!hm_set_attr(fd, NULL, HETMEM_ATTR_ALLOW_HINTS, hints));
	CHILD_CHECK(hm_get_attr(fd, NULL, HETMEM_ATTR_SHAREABLE) == shareable);
	CHILD_CHECK(hm_get_attr(fd, NULL, HETMEM_ATTR_ALLOW_HINTS) == hints);
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

TEST(attributes)
{
	char *p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		       MAP_ANONYMOUS, -1, 0);
	static const struct {
		uint32_t attr;
		uint64_t value;
	} wrong[] = {
		{ HETMEM_ATTR_SHAREABLE, 2 }, { HETMEM_ATTR_ALLOW_HINTS, ~0ULL },
		{ HETMEM_ATTR_NO_THRASH, 2 }, { HETMEM_ATTR_PREFERRED, 1 },
		{ HETMEM_ATTR_PREFERRED, 1ULL << 32 | ANY_HOST },
		{ HETMEM_ATTR_PREFERRED, HETMEM_LOC(HETMEM_UNMAPPED, 0) },
		{ HETMEM_ATTR_PREFERRED, GPU(0) },
		{ HETMEM_ATTR_PREFERRED + 1, 0 }, { ~0U, 0 },
	};
	int fd = hm_open();
	unsigned int i;

	ASSERT_LE(0, fd);
	ASSERT_NE(MAP_FAILED, p);
	ASSERT_EQ(0, hm_track(fd, p, SIZE / 2));
	for (i = 0; i < ARRAY_SIZE(wrong); i++) {
		bool of_context = wrong[i].attr <= HETMEM_ATTR_ALLOW_HINTS;

		EXPECT_EQ(-EINVAL, hm_set_attr(fd, of_context ? NULL : p,
					       wrong[i].attr, wrong[i].value));
	}
	/* A context has no address, a range has one that is tracked. */
	EXPECT_EQ(-EINVAL, hm_set_attr(fd, p, HETMEM_ATTR_SHAREABLE, 1));
	EXPECT_EQ(-EINVAL, hm_set_attr(fd, p + 1, HETMEM_ATTR_NO_THRASH, 1));
	EXPECT_EQ(-ENOENT, hm_set_attr(fd, p + SIZE / 2,
				       HETMEM_ATTR_NO_THRASH, 1));
	EXPECT_EQ(-ERANGE, hm_get_attr(fd, (void *)KERNEL_ADDR,
				       HETMEM_ATTR_NO_THRASH));
	for (i = 0; i <= HETMEM_ATTR_PREFERRED; i++) {
		void *at = i <= HETMEM_ATTR_ALLOW_HINTS ? NULL :
							   p + page_size();

		EXPECT_EQ(0, hm_get_attr(fd, at, i));
		EXPECT_EQ(0, hm_set_attr(fd, at, i, i == HETMEM_ATTR_PREFERRED ?
					 ANY_HOST : 1));
		EXPECT_LT(0, hm_get_attr(fd, at, i));
		EXPECT_EQ(0, hm_set_attr(fd, at, i, 0));
		EXPECT_EQ(0, hm_get_attr(fd, at, i));
	}
	munmap(p, SIZE);
	close(fd);
}

/* LIST of a process that has gone, and of a caller of another version. */
TEST(list)
{
	struct { struct hetmem_list_entry e; char more[8]; } grown[64];
	struct hetmem_cmd_list cmd = {
		.size = sizeof(cmd), .entries = (uintptr_t)grown,
		.entry_size = sizeof(grown[0]), .nr = 64,
	};
	int sock[2], fd = hm_open(), gone, i;
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

	memset(grown, 0xff, sizeof(grown));
	ASSERT_EQ(0, hm_ioctl(fd, HETMEM_IOC_LIST, &cmd));
	ASSERT_LE(2, cmd.nr);
	for (i = 0; i < (int)cmd.nr && i < 64; i++) {
		EXPECT_TRUE(all_zero(grown[i].more, 8));
		EXPECT_NE((uint32_t)pid, grown[i].e.pid);
		seen |= !grown[i].e.pid;
	}
	EXPECT_TRUE(seen);
	cmd.nr = 64;
	cmd.entry_size = sizeof(struct hetmem_list_entry) - 1;
	EXPECT_EQ(-EINVAL, hm_ioctl(fd, HETMEM_IOC_LIST, &cmd));
	cmd.entry_size = page_size() + 1;
	EXPECT_EQ(-E2BIG, hm_ioctl(fd, HETMEM_IOC_LIST, &cmd));
	cmd.entry_size = sizeof(grown[0]);
	cmd.entries = 8;
	EXPECT_EQ(-EFAULT, hm_ioctl(fd, HETMEM_IOC_LIST, &cmd));
	/* One that claims room for more than there is memory. */
	cmd.nr = ~0U;
	cmd.entries = (uintptr_t)grown;
	EXPECT_EQ(0, hm_ioctl(fd, HETMEM_IOC_LIST, &cmd));
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
	CHILD_CHECK(!hm_set_attr(fd, NULL, HETMEM_ATTR_SHAREABLE, 1));
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
