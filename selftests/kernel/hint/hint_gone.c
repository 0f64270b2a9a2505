// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Hints when somebody goes: the executor closes, exits, executes another
 * program, is killed, also while others hold its file; processes that wait for
 * each other; and the module, which can go when all of them have.
 */
#include "libktest/harness.h"
#include "libktest/asker.h"
#include "libktest/modules.h"
#include "libktest/sysfs.h"

#define SIZE	(16 * page_size())

enum way { CLOSE, EXIT, EXEC, KILL };

FIXTURE(gone)
{
	struct turns turns;
	int x;			/* a context of the executor's process */
	pid_t pid;
	char *p;
};

FIXTURE_VARIANT(gone)
{
	enum way way;
	bool shared;		/* a child of the executor has its files */
};

FIXTURE_VARIANT_ADD(gone, close) { CLOSE, false };
FIXTURE_VARIANT_ADD(gone, exit) { EXIT, false };
FIXTURE_VARIANT_ADD(gone, exec) { EXEC, false };
FIXTURE_VARIANT_ADD(gone, killed) { KILL, false };
FIXTURE_VARIANT_ADD(gone, exit_shared) { EXIT, true };
FIXTURE_VARIANT_ADD(gone, exec_shared) { EXEC, true };
FIXTURE_VARIANT_ADD(gone, killed_shared) { KILL, true };

/* The constructor below ends what is executed. */
#define EXECUTED	"HM_GONE_EXECUTED"

__attribute__((constructor)) static void after_exec(void)
{
	if (!getenv(EXECUTED))
		return;
	/* Until the test has seen what it wants to see. */
	pause();
}

/*
 * The executor: two contexts, one of which is executor and one of which
 * others have. Files are inherited on purpose.
 */
static void be_executor(struct turns *t, int sock, enum way way, bool shared)
{
	char *envp[] = { EXECUTED "=1", NULL };
	char *argv[] = { "self", NULL };
	int open_to_all, fd, self_fd;
	struct ring r;
	char c;

	turns_in_child(t);
	open_to_all = hm_open_flags(0);
	fd = hm_open_flags(0);
	CHILD_CHECK(open_to_all >= 0 && fd >= 0);
	CHILD_CHECK(!ring_open(fd, 64, EVENT(HINT), &r));
	CHILD_CHECK(!hm_bind(fd, FOREIGN(0), HETMEM_BIND_EXECUTOR,
			     uuid_of(FOREIGN(0))));
	CHILD_CHECK(!hm_allow(open_to_all, HETMEM_ALLOW_HINTS));
	if (shared && !fork()) {
		prctl(PR_SET_PDEATHSIG, 0);
		/* Until the test closes its end. */
		while (read(t->to_child[0], &c, 1) > 0 && c != 'q')
			;
		_exit(0);
	}
	/* A holder of the executor's own file would keep its context. */
	CHILD_CHECK(!send_fd(sock, way == CLOSE || !shared ? open_to_all : fd));
	if (way == CLOSE || !shared) {
		struct hetmem_event e;

		CHILD_CHECK(ring_wait(&r, &e, FOREVER_MS));
	} else {
		CHILD_CHECK(!hm_allow(fd, HETMEM_ALLOW_HINTS));
		CHILD_CHECK(turn_pass(t->to_parent[1]));
		CHILD_CHECK(poll(&(struct pollfd){ .fd = fd, .events = POLLIN },
				 1, FOREVER_MS) == 1);
	}
	/* time: the other hint is on its way, or there, and both are right */
	usleep(20000);
	switch (way) {
	case CLOSE:
		ring_close(&r);
		close(fd);
		pause();
		break;
	case EXEC:
		self_fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
		fexecve(self_fd, argv, envp);
		CHILD_CHECK(!"executed");
		break;
	case EXIT:
		_exit(0);
	case KILL:
		raise(SIGKILL);
	}
	_exit(1);
}

FIXTURE_SETUP(gone)
{
	int sock[2];

	self->p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		       MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, self->p);
	ASSERT_EQ(0, turns_init(&self->turns));
	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock));
	self->pid = fork();
	ASSERT_LE(0, self->pid);
	if (!self->pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		be_executor(&self->turns, sock[1], variant->way,
			    variant->shared);
	}
	turns_in_parent(&self->turns);
	self->x = receive_fd(sock[0]);
	ASSERT_LE(0, self->x);
	if (variant->shared)
		ASSERT_TRUE(turn_wait(self->turns.to_parent[0]));
	close(sock[0]);
	close(sock[1]);
}

FIXTURE_TEARDOWN(gone)
{
	if (variant->shared)
		EXPECT_EQ(1, write(self->turns.to_child[1], "q", 1));
	kill(self->pid, SIGKILL);
	child_status(self->pid);
	close(self->turns.to_child[1]);
	close(self->turns.to_parent[0]);
	munmap(self->p, SIZE);
	close(self->x);
}

/* Waiting hints end with -EOWNERDEAD, later ones with -ENXIO. */
TEST_F(gone, owner_dead)
{
	struct asker a[2];
	int i, dead = 0;

	/* The executor goes after the first hint; the second may be too late. */
	for (i = 0; i < 2; i++)
		ASSERT_EQ(0, asker_start(&a[i], self->x, self->p, SIZE,
					 i ? ANY_HOST : FOREIGN(0), NULL));
	for (i = 0; i < 2; i++) {
		switch (asker_end(&a[i])) {
		case -EOWNERDEAD:
			dead++;
			break;
		case -ENXIO:
			break;
		default:
			EXPECT_TRUE(false) {
				TH_LOG("HINT: %d", a[i].ret);
			}
		}
		EXPECT_EQ(0, a[i].cmd.moved);
	}
	EXPECT_LE(1, dead);
	EXPECT_EQ(-ENXIO, hm_hint(self->x, self->p, SIZE, FOREIGN(0), 1000,
				  NULL));
	EXPECT_EQ(-ENXIO, hm_hint(self->x, self->p, SIZE, ANY_HOST, 1000, NULL));
}

FIXTURE(circle)
{
	char *p;
	long before;
};

FIXTURE_SETUP(circle)
{
	self->p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		       MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, self->p);
	self->before = nr_contexts();
	ASSERT_LE(0, self->before);
}

FIXTURE_TEARDOWN(circle)
{
	munmap(self->p, SIZE);
	EXPECT_TRUE(EVENTUALLY(nr_contexts() == self->before));
}

/* Two executors of one process, and hints for them through a third context. */
struct waiting {
	int fd;
	struct ring r[2];
	struct asker a[2];
};

static int waiting_start(struct waiting *w, char *p)
{
	int i, ret;

	w->fd = hm_open();
	for (i = 0; i < 2; i++) {
		ret = executor_open(&w->r[i], FOREIGN(i), 64);
		if (ret >= 0)
			ret = asker_start(&w->a[i], w->fd, p, SIZE, FOREIGN(i),
					  NULL);
		if (ret)
			return ret;
	}
	return EVENTUALLY(hints_waiting(w->fd, getpid()) == 2) ? 0 : -ETIME;
}

static void waiting_close(struct waiting *w)
{
	int i;

	for (i = 0; i < 2; i++) {
		ring_close(&w->r[i]);
		close(w->r[i].fd);
	}
}

/* Closed contexts are gone at once, while hints wait for them. */
TEST_F(circle, closed)
{
	struct waiting w;
	int i;

	ASSERT_EQ(0, waiting_start(&w, self->p));
	EXPECT_EQ(self->before + 3, nr_contexts());
	waiting_close(&w);
	EXPECT_EQ(self->before + 1, nr_contexts());
	for (i = 0; i < 2; i++)
		EXPECT_EQ(-EOWNERDEAD, asker_end(&w.a[i]));
	close(w.fd);
}

TEST_F(circle, exited)
{
	pid_t pid = fork();

	ASSERT_LE(0, pid);
	if (!pid) {
		struct waiting w;

		CHILD_CHECK(!waiting_start(&w, self->p));
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
}

/* Two processes wait for each other, through each other's file, and are killed. */
TEST_F(circle, of_processes)
{
	struct turns turns[2];
	int sock[2], i;
	pid_t pid[2];

	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock));
	for (i = 0; i < 2; i++) {
		ASSERT_EQ(0, turns_init(&turns[i]));
		pid[i] = fork();
		ASSERT_LE(0, pid[i]);
		if (!pid[i]) {
			struct hetmem_event e;
			struct asker a;
			struct ring r;
			int other;

			prctl(PR_SET_PDEATHSIG, SIGKILL);
			turns_in_child(&turns[i]);
			CHILD_CHECK(executor_open(&r, FOREIGN(0), 64) >= 0);
			CHILD_CHECK(!hm_allow(r.fd, HETMEM_ALLOW_HINTS));
			CHILD_CHECK(!send_fd(sock[i], r.fd));
			other = receive_fd(sock[i]);
			CHILD_CHECK(other >= 0);
			CHILD_CHECK(!asker_start(&a, other, self->p, SIZE,
						 FOREIGN(0), NULL));
			CHILD_CHECK(ring_wait(&r, &e, FOREVER_MS));
			CHILD_CHECK(turn_pass(turns[i].to_parent[1]));
			pause();
			_exit(1);
		}
		turns_in_parent(&turns[i]);
	}
	for (i = 0; i < 2; i++)
		EXPECT_TRUE(turn_wait(turns[i].to_parent[0]));
	EXPECT_EQ(self->before + 2, nr_contexts());
	for (i = 0; i < 2; i++)
		kill(pid[i], SIGKILL);
	for (i = 0; i < 2; i++) {
		EXPECT_EQ(128 + SIGKILL, child_status(pid[i]));
		close(turns[i].to_child[1]);
		close(turns[i].to_parent[0]);
		close(sock[i]);
	}
}

/* The module can be unloaded when all contexts are closed, not before. */
TEST_F(circle, unloaded)
{
	struct module hetmem = { "hetmem" }, emu = { "hetmem_emu" };
	bool had_emu = module_loaded(emu.name);
	struct waiting w;
	int i;

	ASSERT_EQ(0, waiting_start(&w, self->p));
	if (had_emu) {
		module_params(&emu);
		ASSERT_EQ(0, module_unload(emu.name));
	}
	module_params(&hetmem);
	EXPECT_EQ(-EAGAIN, module_unload_once(hetmem.name));
	waiting_close(&w);
	for (i = 0; i < 2; i++)
		EXPECT_EQ(-EOWNERDEAD, asker_end(&w.a[i]));
	close(w.fd);
	EXPECT_EQ(0, module_unload(hetmem.name));
	ASSERT_EQ(0, module_load(&hetmem));
	if (had_emu)
		ASSERT_EQ(0, module_load(&emu));
}

TEST_HARNESS_MAIN
