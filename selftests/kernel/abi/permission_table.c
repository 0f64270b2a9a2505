// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Who may do what with a context: each command, for each kind of caller, with
 * each way its owner can have set SHAREABLE and ALLOW_HINTS, and with each way
 * to come by the file. The table is that of Documentation/kernel-interface.md,
 * and source.t compares the two.
 *
 * The owner is an ordinary user. What is allowed is called rightly and does
 * what it should: HINT says -ENXIO, for nobody executes there.
 */
#include "libktest/harness.h"
#include "libktest/caller.h"
#include "libktest/ring.h"
#include "libktest/sysfs.h"
#include "libktest/table.h"

#define HALF	(16 * page_size())

#ifndef SYS_pidfd_open
#define SYS_pidfd_open	434
#endif
#ifndef SYS_pidfd_getfd
#define SYS_pidfd_getfd	438
#endif

/* What is no command. */
enum {
	CMD_mmap = CMD_NR,
	CMD_poll,
	CMD_pidfd_getfd,	/* to come by the file */
};

enum right { no, yes, SHAREABLE, ALLOW_HINTS };

#define ROW(name, ...)	{ CMD_##name, #name, { __VA_ARGS__ } }

static const struct row {
	unsigned int id;
	const char *name;
	enum right right[NR_CALLERS];
} table[] = {
	/* owner, root, CAP_SYS_PTRACE, CAP_SYS_NICE, same user, other user, userns root */
	ROW(INFO, yes, yes, yes, SHAREABLE, SHAREABLE, SHAREABLE, SHAREABLE),
	ROW(TRACK, yes, no, no, no, no, no, no),
	ROW(UNTRACK, yes, no, no, no, no, no, no),
	ROW(RESIDENCY, yes, yes, yes, SHAREABLE, SHAREABLE, SHAREABLE, SHAREABLE),
	ROW(MIGRATE, yes, no, no, no, no, no, no),
	ROW(UNPIN, yes, no, no, no, no, no, no),
	ROW(STATS, yes, yes, yes, SHAREABLE, SHAREABLE, SHAREABLE, SHAREABLE),
	ROW(RING, yes, no, no, no, no, no, no),
	ROW(REFRESH, yes, yes, yes, SHAREABLE, SHAREABLE, SHAREABLE, SHAREABLE),
	ROW(ALLOW, yes, no, no, no, no, no, no),
	ROW(BIND_DEVICE, yes, no, no, no, no, no, no),
	ROW(HINT, yes, yes, ALLOW_HINTS, yes, ALLOW_HINTS, ALLOW_HINTS, ALLOW_HINTS),
	ROW(COMPLETE, yes, no, no, no, no, no, no),
	ROW(LIST, yes, no, no, no, no, no, no),
	ROW(MIGRATE_VECTOR, yes, no, no, no, no, no, no),
	ROW(BACKGROUND, yes, no, no, no, no, no, no),
	ROW(mmap, yes, no, no, no, no, no, no),
	ROW(poll, yes, yes, yes, yes, yes, yes, yes),
	ROW(pidfd_getfd, yes, yes, yes, no, yes, no, no),
};

/* How the owner has set it, and whether its address space is gone. */
struct owned {
	int fd;
	char *p;		/* half of it tracked */
	bool shareable, hints, gone;
};

static const struct row *row_of(unsigned int id)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(table); i++)
		if (table[i].id == id)
			return &table[i];
	return NULL;
}

static bool allowed(const struct row *row, enum caller who,
		    const struct owned *o)
{
	switch (row->right[who]) {
	case yes:
		return true;
	case SHAREABLE:
		return o->shareable;
	case ALLOW_HINTS:
		return o->hints;
	default:
		return false;
	}
}

/* What the call says if it is allowed. */
static int right_answer(unsigned int id, const struct owned *o)
{
	switch (id) {
	case CMD_RESIDENCY:
	case CMD_REFRESH:
		return o->gone ? -ESRCH : 0;
	case CMD_mmap:
		return -ENXIO;		/* no ring */
	case CMD_poll:
		return POLLERR;		/* likewise */
	default:
		return commands[id].right;
	}
}

static int call(unsigned int id, const struct owned *o)
{
	struct pollfd pollfd = { .fd = o->fd, .events = POLLIN };
	union any_command c;
	void *p;

	switch (id) {
	case CMD_mmap:
		p = mmap(NULL, page_size(), PROT_READ, MAP_SHARED, o->fd, 0);
		return p == MAP_FAILED ? -errno : 0;
	case CMD_poll:
		return poll(&pollfd, 1, 0) < 0 ? -errno : pollfd.revents;
	default:
		command_valid(id, &c, o->p, HALF);
		return command_call(o->fd, id, &c);
	}
}

/* In a child: one column of the table. From below: STATS before UNTRACK. */
static void check_column(enum caller who, const struct owned *o)
{
	unsigned int id, wrong = 0;
	const struct row *row;
	int ret, want;

	for (id = CMD_pidfd_getfd; id-- > 0;) {
		row = row_of(id);
		CHILD_CHECK(row);
		want = allowed(row, who, o) ? right_answer(id, o) : -EPERM;
		ret = call(id, o);
		if (ret == want)
			continue;
		fprintf(stderr, "# %s as %s: %d, not %d\n", row->name,
			callers[who], ret, want);
		wrong++;
	}
	CHILD_CHECK(!wrong);
}

static char *map_owned(void)
{
	char *p = mmap(NULL, 2 * HALF, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		       MAP_ANONYMOUS, -1, 0);

	if (p != MAP_FAILED)
		fill(p, 2 * HALF, 1);
	return p == MAP_FAILED ? NULL : p;
}

static uint32_t allowed_by(const struct owned *o)
{
	return (o->shareable ? HETMEM_SHAREABLE : 0) |
	       (o->hints ? HETMEM_ALLOW_HINTS : 0);
}

/* A context of this address space and of the owner's, whoever we are. */
static int own(struct owned *o, int flags)
{
	uid_t was = geteuid();
	int ret;

	if (!was && seteuid(OWNER_UID))
		return -errno;
	o->fd = hm_open_flags(flags);
	if (!was && seteuid(0))
		return -errno;
	if (o->fd < 0)
		return o->fd;
	ret = hm_track(o->fd, o->p, HALF);
	return ret ? ret : hm_allow(o->fd, allowed_by(o));
}

/* The only context of this process, as it is listed, allows what it did. */
static bool allows_as_before(const struct owned *o)
{
	struct hetmem_list_entry e[64];
	int i, nr = hm_list(o->fd, e, ARRAY_SIZE(e));

	for (i = 0; i < nr && i < (int)ARRAY_SIZE(e); i++) {
		if (e[i].pid == (uint32_t)getpid())
			return e[i].flags == allowed_by(o);
	}
	return false;
}

/* Whether what strangers tried has changed nothing. */
static bool unharmed(const struct owned *o)
{
	struct hetmem_cmd_info info;

	return !hm_info(o->fd, &info) && info.nr_ranges == 1 &&
	       allows_as_before(o) && !hm_untrack(o->fd, o->p, HALF) &&
	       mismatch(o->p, 2 * HALF, 1) == -1;
}

FIXTURE(table)
{
	struct owned o;
};

FIXTURE_VARIANT(table)
{
	bool shareable, hints;
};

FIXTURE_VARIANT_ADD(table, closed) { false, false };
FIXTURE_VARIANT_ADD(table, shareable) { true, false };
FIXTURE_VARIANT_ADD(table, hints) { false, true };
FIXTURE_VARIANT_ADD(table, both) { true, true };

FIXTURE_SETUP(table)
{
	ASSERT_EQ(0, geteuid());
	self->o = (struct owned){
		.p = map_owned(), .shareable = variant->shareable,
		.hints = variant->hints,
	};
	ASSERT_NE(NULL, self->o.p);
}

FIXTURE_TEARDOWN(table)
{
	munmap(self->o.p, 2 * HALF);
}

TEST_F(table, complete)
{
	unsigned int id;

	for (id = 0; id <= CMD_pidfd_getfd; id++)
		EXPECT_NE(NULL, row_of(id));
}

/* The owner's own, with the privileges of anybody. */
TEST_F(table, owner)
{
	enum caller who;

	for (who = OWNER; who < NR_CALLERS; who++) {
		pid_t pid = fork();

		ASSERT_LE(0, pid);
		if (!pid) {
			become_or_exit(who);
			CHILD_CHECK(!own(&self->o, O_CLOEXEC));
			check_column(OWNER, &self->o);
			_exit(0);
		}
		EXPECT_EQ(0, child_status(pid));
	}
}

TEST_F(table, forked)
{
	enum caller who;

	ASSERT_EQ(0, own(&self->o, O_CLOEXEC));
	for (who = ROOT; who < NR_CALLERS; who++) {
		pid_t pid = fork();

		ASSERT_LE(0, pid);
		if (!pid) {
			/* At these addresses the child itself has nothing. */
			munmap(self->o.p, 2 * HALF);
			become_or_exit(who);
			check_column(who, &self->o);
			_exit(0);
		}
		EXPECT_EQ(0, child_status(pid));
	}
	EXPECT_TRUE(unharmed(&self->o));
}

#define EXECUTED "HETMEM_TEST_EXECUTED"

/* This program, executed anew by the test below. */
__attribute__((constructor)) static void executed(void)
{
	const char *env = getenv(EXECUTED);
	struct owned o = { .gone = true };
	int who, shareable, hints;

	if (!env)
		return;
	CHILD_CHECK(sscanf(env, "%d,%p,%d,%d,%d", &o.fd, (void **)&o.p, &who,
			   &shareable, &hints) == 5);
	o.shareable = shareable;
	o.hints = hints;
	become_or_exit(who);
	check_column(who, &o);
	_exit(0);
}

/* The process is the same, its address space another one. */
TEST_F(table, executed)
{
	enum caller who;

	for (who = ROOT; who < NR_CALLERS; who++) {
		pid_t pid = fork();

		ASSERT_LE(0, pid);
		if (!pid) {
			struct owned *o = &self->o;
			char env[128];

			CHILD_CHECK(!own(o, 0));
			snprintf(env, sizeof(env), "%d,%p,%d,%d,%d", o->fd,
				 o->p, who, o->shareable, o->hints);
			setenv(EXECUTED, env, 1);
			execl("/proc/self/exe", "permission_table", NULL);
			_exit(1);
		}
		EXPECT_EQ(0, child_status(pid));
	}
}

/* The owner in a process of its own, which sends its file. */
static void be_owner(struct owned *o, struct turns *t, int sock)
{
	turns_in_child(t);
	CHILD_CHECK(!become(OWNER));
	/* Otherwise nobody of its user could take a file from it. */
	prctl(PR_SET_DUMPABLE, 1);
	CHILD_CHECK(!own(o, O_CLOEXEC));
	CHILD_CHECK(!send_fd(sock, o->fd));
	CHILD_CHECK(write(t->to_parent[1], &o->fd, sizeof(o->fd)) ==
		    sizeof(o->fd));
	CHILD_CHECK(turn_wait(t->to_child[0]));
	CHILD_CHECK(unharmed(o));
	_exit(0);
}

TEST_F(table, passed)
{
	struct turns t;
	enum caller who;
	pid_t owner;
	int sock[2];

	ASSERT_EQ(0, turns_init(&t));
	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock));
	owner = fork();
	ASSERT_LE(0, owner);
	if (!owner)
		be_owner(&self->o, &t, sock[1]);
	turns_in_parent(&t);
	self->o.fd = receive_fd(sock[0]);
	ASSERT_LE(0, self->o.fd);
	for (who = ROOT; who < NR_CALLERS; who++) {
		pid_t pid = fork();

		ASSERT_LE(0, pid);
		if (!pid) {
			become_or_exit(who);
			check_column(who, &self->o);
			_exit(0);
		}
		EXPECT_EQ(0, child_status(pid));
	}
	turn_pass(t.to_child[1]);
	EXPECT_EQ(0, child_status(owner));
}

/* pidfd_getfd() is the kernel's own check of who may trace whom. */
TEST_F(table, taken)
{
	struct turns t;
	enum caller who;
	pid_t owner;
	int sock[2], its_fd;

	ASSERT_EQ(0, turns_init(&t));
	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock));
	owner = fork();
	ASSERT_LE(0, owner);
	if (!owner)
		be_owner(&self->o, &t, sock[1]);
	turns_in_parent(&t);
	ASSERT_EQ((ssize_t)sizeof(its_fd),
		  read(t.to_parent[0], &its_fd, sizeof(its_fd)));
	for (who = ROOT; who < NR_CALLERS; who++) {
		pid_t pid = fork();

		ASSERT_LE(0, pid);
		if (!pid) {
			int pidfd = syscall(SYS_pidfd_open, owner, 0);
			struct owned *o = &self->o;

			CHILD_CHECK(pidfd >= 0);
			become_or_exit(who);
			o->fd = syscall(SYS_pidfd_getfd, pidfd, its_fd, 0);
			if (allowed(row_of(CMD_pidfd_getfd), who, o)) {
				CHILD_CHECK(o->fd >= 0);
				check_column(who, o);
			} else {
				CHILD_CHECK(o->fd < 0 && errno == EPERM);
			}
			_exit(0);
		}
		EXPECT_EQ(0, child_status(pid));
	}
	turn_pass(t.to_child[1]);
	EXPECT_EQ(0, child_status(owner));
}

TEST_HARNESS_MAIN
