// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Who may do what with a context of another process: each command, for each
 * kind of caller, with each way its owner can have set SHAREABLE and
 * ALLOW_HINTS. And how one gets at such a file: SCM_RIGHTS, pidfd_getfd(),
 * fork(); and LIST, which shows whose contexts there are.
 *
 * The owner is an ordinary user. HINT that is allowed says -ENXIO, for
 * nobody executes there.
 */
#include "hetmem_hint_test.h"

#include <linux/capability.h>

#define SIZE	(16 * page_size())
#define OWNER	1000
#define OTHER	1001

#ifndef SYS_pidfd_open
#define SYS_pidfd_open	434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd	438
#endif

enum caller {
	ROOT, SAME_USER, OTHER_USER, ONLY_PTRACE, ONLY_NICE, USERNS_ROOT,
};

/* In a child, for good. */
static int become(enum caller who)
{
	uint64_t caps = who == ONLY_PTRACE ? 1ULL << CAP_SYS_PTRACE :
					     1ULL << CAP_SYS_NICE;
	struct __user_cap_header_struct head = {
		.version = _LINUX_CAPABILITY_VERSION_3,
	};
	struct __user_cap_data_struct data[2] = {
		{ .effective = caps, .permitted = caps },
	};
	uid_t uid = who == SAME_USER ? OWNER : OTHER;

	if (who == ROOT)
		return 0;
	if (prctl(PR_SET_KEEPCAPS, 1) || setresgid(uid, uid, uid) ||
	    setresuid(uid, uid, uid))
		return -errno;
	switch (who) {
	case ONLY_PTRACE:
	case ONLY_NICE:
		return syscall(SYS_capset, &head, data) ? -errno : 0;
	default:
		memset(data, 0, sizeof(data));
		if (syscall(SYS_capset, &head, data))
			return -errno;
		if (who == USERNS_ROOT && unshare(CLONE_NEWUSER))
			return -errno;
		return 0;
	}
}

FIXTURE(share)
{
	struct turns t;
	pid_t pid;		/* the owner */
	int x;			/* its context */
	int its_fd;		/* as it numbers it */
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

static void be_owner(struct turns *t, int sock, char *p, bool shareable,
		     bool hints)
{
	int fd;

	turns_in_child(t);
	CHILD_CHECK(!become(SAME_USER));
	/* Otherwise nobody could take a file from it. */
	prctl(PR_SET_DUMPABLE, 1);
	fd = hm_open();
	CHILD_CHECK(fd >= 0 && !hm_track(fd, p, SIZE));
	CHILD_CHECK(!hm_set_attr(fd, NULL, HETMEM_ATTR_SHAREABLE, shareable));
	CHILD_CHECK(!hm_set_attr(fd, NULL, HETMEM_ATTR_ALLOW_HINTS, hints));
	CHILD_CHECK(hm_get_attr(fd, NULL, HETMEM_ATTR_SHAREABLE) == shareable);
	CHILD_CHECK(hm_get_attr(fd, NULL, HETMEM_ATTR_ALLOW_HINTS) == hints);
	CHILD_CHECK(!send_fd(sock, fd));
	CHILD_CHECK(write(t->to_parent[1], &fd, sizeof(fd)) == sizeof(fd));
	CHILD_CHECK(turn_wait(t->to_child[0]));
	/* What strangers tried has changed nothing. */
	CHILD_CHECK(hm_get_attr(fd, NULL, HETMEM_ATTR_SHAREABLE) == shareable);
	CHILD_CHECK(hm_get_attr(fd, NULL, HETMEM_ATTR_ALLOW_HINTS) == hints);
	CHILD_CHECK(!hm_untrack(fd, p, SIZE));
	CHILD_CHECK(mismatch(p, SIZE, 1) == -1);
	_exit(0);
}

FIXTURE_SETUP(share)
{
	int sock[2];

	ASSERT_EQ(0, geteuid());
	self->p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		       MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, self->p);
	fill(self->p, SIZE, 1);
	ASSERT_EQ(0, turns_init(&self->t));
	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock));
	self->pid = fork();
	ASSERT_LE(0, self->pid);
	if (!self->pid)
		be_owner(&self->t, sock[1], self->p, variant->shareable,
			 variant->hints);
	turns_in_parent(&self->t);
	self->x = receive_fd(sock[0]);
	ASSERT_LE(0, self->x);
	ASSERT_EQ((ssize_t)sizeof(self->its_fd),
		  read(self->t.to_parent[0], &self->its_fd,
		       sizeof(self->its_fd)));
	close(sock[0]);
	close(sock[1]);
}

FIXTURE_TEARDOWN(share)
{
	turn_pass(self->t.to_child[1]);
	EXPECT_EQ(0, child_status(self->pid));
	close(self->t.to_child[1]);
	close(self->t.to_parent[0]);
	close(self->x);
	munmap(self->p, SIZE);
}

#define EXPECT_RET(want, call)						\
	do {								\
		int want_ = (want), ret_ = (call);			\
									\
		if (ret_ != want_) {					\
			fprintf(stderr, "# %s: %d, not %d\n", #call,	\
				ret_, want_);				\
			_exit(1);					\
		}							\
	} while (0)

/* Every command, as @who; @query, @hint: they are allowed. */
static void call_all(int x, const char *p, bool query, bool hint)
{
	const int q = query ? 0 : -EPERM;
	struct hetmem_cmd_refresh refresh = {
		.size = sizeof(refresh), .start = (uintptr_t)p,
	};
	struct hetmem_cmd_residency residency = {
		.start = (uintptr_t)p, .end = (uintptr_t)p + SIZE,
	};
	struct hetmem_cmd_migrate migrate;
	struct hetmem_list_entry list[4];
	struct hetmem_cmd_stats stats;
	struct hetmem_cmd_info info;
	struct ring r;

	EXPECT_RET(q, hm_info(x, &info));
	EXPECT_RET(q, hm_residency(x, &residency));
	EXPECT_RET(q, hm_stats(x, p, &stats));
	EXPECT_RET(q, hm_stats_context(x, &stats));
	EXPECT_RET(q, hm_get_attr(x, p, HETMEM_ATTR_NO_THRASH));
	EXPECT_RET(query ? 0 : -EPERM,
		   hm_get_attr(x, p, HETMEM_ATTR_PREFERRED));
	EXPECT_RET(hint ? -ENXIO : -EPERM,
		   hm_hint(x, p, SIZE, GPU(0), 1000, -1, NULL));

	EXPECT_RET(-EPERM, hm_track(x, p + SIZE, SIZE));
	EXPECT_RET(-EPERM, hm_untrack(x, p, SIZE));
	EXPECT_RET(-EPERM, hm_migrate(x, p, SIZE, ANY_HOST, &migrate));
	EXPECT_RET(-EPERM, ring_make(&r, x, 16, EVENT(HINT)));
	EXPECT_RET(-EPERM, hm_ioctl(x, HETMEM_IOC_REFRESH, &refresh));
	EXPECT_RET(-EPERM, hm_set_attr(x, NULL, HETMEM_ATTR_SHAREABLE, 1));
	EXPECT_RET(-EPERM, hm_set_attr(x, NULL, HETMEM_ATTR_ALLOW_HINTS, 1));
	EXPECT_RET(-EPERM, hm_set_attr(x, p, HETMEM_ATTR_NO_THRASH, 1));
	EXPECT_RET(-EPERM, hm_bind(x, GPU(0), 0, NULL));
	EXPECT_RET(-EPERM, hm_complete(x, 1, 0, 0));
	EXPECT_RET(-EPERM, hm_list(x, list, 4));
	CHILD_CHECK(mmap(NULL, 2 * page_size(), PROT_READ, MAP_SHARED, x, 0) ==
		    MAP_FAILED && errno == EPERM);
}

static int try_as(enum caller who, int x, const char *p, bool query, bool hint)
{
	pid_t pid = fork();

	if (!pid) {
		int ret = become(who);

		/* Where users may have no namespaces there is nothing to try. */
		if (who == USERNS_ROOT && ret)
			_exit(0);
		CHILD_CHECK(!ret);
		call_all(x, p, query, hint);
		_exit(0);
	}
	return pid < 0 ? -errno : child_status(pid);
}

TEST_F(share, table)
{
	static const struct {
		const char *name;
		enum caller who;
		bool ptrace, nice;
	} callers[] = {
		{ "root", ROOT, true, true },
		{ "same user", SAME_USER, false, false },
		{ "other user", OTHER_USER, false, false },
		{ "CAP_SYS_PTRACE", ONLY_PTRACE, true, false },
		{ "CAP_SYS_NICE", ONLY_NICE, false, true },
		{ "root of a user namespace", USERNS_ROOT, false, false },
	};
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(callers); i++) {
		EXPECT_EQ(0, try_as(callers[i].who, self->x, self->p,
				    callers[i].ptrace || variant->shareable,
				    callers[i].nice || variant->hints)) {
			TH_LOG("as %s", callers[i].name);
		}
	}
}

/* pidfd_getfd() is the kernel's own check of who may trace whom. */
TEST_F(share, taken)
{
	enum caller who;

	for (who = ROOT; who <= OTHER_USER; who++) {
		pid_t pid = fork();

		ASSERT_LE(0, pid);
		if (!pid) {
			int pidfd, fd;

			CHILD_CHECK(!become(who));
			close(self->x);
			pidfd = syscall(SYS_pidfd_open, self->pid, 0);
			CHILD_CHECK(pidfd >= 0);
			fd = syscall(SYS_pidfd_getfd, pidfd, self->its_fd, 0);
			if (who == OTHER_USER) {
				CHILD_CHECK(fd < 0 && errno == EPERM);
				_exit(0);
			}
			CHILD_CHECK(fd >= 0);
			call_all(fd, self->p, who == ROOT || variant->shareable,
				 who == ROOT || variant->hints);
			_exit(0);
		}
		EXPECT_EQ(0, child_status(pid));
	}
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
		CHILD_CHECK(list[i].uid == OWNER);
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

	for (who = ROOT; who <= ONLY_NICE; who++) {
		pid_t pid = fork();

		ASSERT_LE(0, pid);
		if (!pid) {
			close(self->x);
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

TEST_HARNESS_MAIN
