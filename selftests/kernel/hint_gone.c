// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Hints when somebody goes: the executor closes, exits, executes another
 * program, is killed, also while others hold its file; contexts whose hints
 * point at each other; and the module, which can go when all of them have.
 */
#include "hetmem_hint_test.h"
#include "hetmem_modules.h"

#define SIZE	(16 * page_size())

enum way { CLOSE, EXIT, EXEC, KILL };

FIXTURE(gone)
{
	struct ring a;		/* of the asker, which is this process */
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
	CHILD_CHECK(!ring_make(&r, fd, 64, EVENT(HINT)));
	CHILD_CHECK(!hm_bind(fd, GPU(0), HETMEM_BIND_EXECUTOR, NULL));
	CHILD_CHECK(!hm_set_attr(open_to_all, NULL, HETMEM_ATTR_ALLOW_HINTS,
				 1));
	if (shared && !fork()) {
		prctl(PR_SET_PDEATHSIG, 0);
		/* Until the test closes its end. */
		while (read(t->to_child[0], &c, 1) > 0 && c != 'q')
			;
		_exit(0);
	}
	/* Who holds the executor's own file keeps it from being closed. */
	CHILD_CHECK(!send_fd(sock, way == CLOSE || !shared ? open_to_all : fd));
	if (way == CLOSE || !shared) {
		struct hetmem_event e;

		CHILD_CHECK(ring_wait(&r, &e, FOREVER_MS));
	} else {
		CHILD_CHECK(!hm_set_attr(fd, NULL, HETMEM_ATTR_ALLOW_HINTS, 1));
		CHILD_CHECK(turn_pass(t->to_parent[1]));
		CHILD_CHECK(poll(&(struct pollfd){ .fd = fd, .events = POLLIN },
				 1, FOREVER_MS) == 1);
	}
	/* The other hint is on its way, or there. */
	usleep(20000);
	switch (way) {
	case CLOSE:
		munmap(r.header, r.size);
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
	int sock[2], fd = hm_open();

	ASSERT_LE(0, fd);
	ASSERT_EQ(0, ring_make(&self->a, fd, 64, EVENT(COMPLETED)));
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
	close(self->a.fd);
}

/* Who waits and who does not are both told, and nobody can ask any more. */
TEST_F(gone, owner_dead)
{
	struct hetmem_cmd_hint cmd;
	struct hetmem_event e;

	ASSERT_EQ(0, hm_hint(self->x, self->p, SIZE, GPU(0), FOREVER_MS,
			     self->a.fd, &cmd));
	/* Now the executor goes; it may have before this one is asked. */
	switch (hm_hint(self->x, self->p, SIZE, ANY_HOST, FOREVER_MS, -1,
			NULL)) {
	case -EOWNERDEAD:
	case -ENXIO:
		break;
	default:
		EXPECT_TRUE(false);
	}
	ASSERT_TRUE(ring_wait(&self->a, &e, FOREVER_MS));
	EXPECT_EQ(HETMEM_EVENT_COMPLETED, e.type);
	EXPECT_EQ(-EOWNERDEAD, e.result);
	EXPECT_EQ(cmd.id, e.data);
	EXPECT_EQ(-ENXIO, hm_hint(self->x, self->p, SIZE, GPU(0), 1000, -1,
				  NULL));
	EXPECT_EQ(-ENXIO, hm_hint(self->x, self->p, SIZE, ANY_HOST, 1000,
				  self->a.fd, NULL));
	EXPECT_FALSE(ring_next(&self->a, &e));
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

static int make_circle(char *p, size_t size, struct ring *r)
{
	int i, ret;

	for (i = 0; i < 2; i++) {
		ret = executor_open(&r[i], GPU(i), 64);
		if (ret < 0)
			return ret;
	}
	for (i = 0; i < 2; i++) {
		/* To the other, and to itself. */
		ret = hm_hint(r[i].fd, p, size, GPU(i), FOREVER_MS,
			      r[!i].fd, NULL);
		if (!ret)
			ret = hm_hint(r[i].fd, p, size, GPU(i), FOREVER_MS,
				      r[i].fd, NULL);
		if (ret)
			return ret;
	}
	return 0;
}

/* Closed, they are gone at once, whatever they still wait for. */
TEST_F(circle, closed)
{
	struct ring r[2];
	int i;

	ASSERT_EQ(0, make_circle(self->p, SIZE, r));
	EXPECT_EQ(self->before + 2, nr_contexts());
	for (i = 0; i < 2; i++) {
		munmap(r[i].header, r[i].size);
		close(r[i].fd);
	}
	EXPECT_EQ(self->before, nr_contexts());
}

TEST_F(circle, exited)
{
	pid_t pid = fork();

	ASSERT_LE(0, pid);
	if (!pid) {
		struct ring r[2];

		CHILD_CHECK(!make_circle(self->p, SIZE, r));
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
}

/* Two processes that wait for each other, both killed. */
TEST_F(circle, of_processes)
{
	int sock[2], i, status;
	pid_t pid[2];

	ASSERT_EQ(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sock));
	for (i = 0; i < 2; i++) {
		pid[i] = fork();
		ASSERT_LE(0, pid[i]);
		if (!pid[i]) {
			struct hetmem_event e;
			struct ring r;
			int other;

			prctl(PR_SET_PDEATHSIG, SIGKILL);
			CHILD_CHECK(executor_open(&r, GPU(0), 64) >= 0);
			CHILD_CHECK(!hm_set_attr(r.fd, NULL,
						 HETMEM_ATTR_ALLOW_HINTS, 1));
			CHILD_CHECK(!send_fd(sock[i], r.fd));
			other = receive_fd(sock[i]);
			CHILD_CHECK(other >= 0);
			CHILD_CHECK(!hm_hint(other, self->p, SIZE, GPU(0),
					     FOREVER_MS, r.fd, NULL));
			CHILD_CHECK(ring_wait(&r, &e, FOREVER_MS));
			raise(SIGSTOP);
			_exit(1);
		}
	}
	for (i = 0; i < 2; i++) {
		ASSERT_EQ(pid[i], waitpid(pid[i], &status, WUNTRACED));
		ASSERT_TRUE(WIFSTOPPED(status));
	}
	EXPECT_EQ(self->before + 2, nr_contexts());
	for (i = 0; i < 2; i++)
		kill(pid[i], SIGKILL);
	for (i = 0; i < 2; i++)
		EXPECT_EQ(128 + SIGKILL, child_status(pid[i]));
	close(sock[0]);
	close(sock[1]);
}

/* After all that, and with hints that were going to time out, it can go. */
TEST_F(circle, unloaded)
{
	struct module hetmem = { "hetmem" }, emu = { "hetmem_emu" };
	bool had_emu = module_loaded(emu.name);
	struct ring r[2];
	int i;

	ASSERT_EQ(0, make_circle(self->p, SIZE, r));
	if (had_emu) {
		module_params(&emu);
		ASSERT_EQ(0, module_unload(emu.name));
	}
	module_params(&hetmem);
	EXPECT_EQ(-EAGAIN, module_unload_once(hetmem.name));
	for (i = 0; i < 2; i++) {
		munmap(r[i].header, r[i].size);
		close(r[i].fd);
	}
	EXPECT_EQ(0, module_unload(hetmem.name));
	ASSERT_EQ(0, module_load(&hetmem));
	if (had_emu)
		ASSERT_EQ(0, module_load(&emu));
}

TEST_HARNESS_MAIN
