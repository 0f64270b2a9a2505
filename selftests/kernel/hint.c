// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Hints: naming devices, asking, being asked, answering, and all that both
 * sides can get wrong. What happens when one of them goes is hint_gone.c's,
 * and who may ask at all share.c's.
 */
#include "hetmem_hint_test.h"

#include <pthread.h>

#define SIZE	(16 * page_size())

FIXTURE(hint)
{
	struct ring x;		/* executor for GPU(0) */
	struct ring a;		/* asks */
	char *p;
};

FIXTURE_SETUP(hint)
{
	int fd;

	ASSERT_LE(0, executor_open(&self->x, GPU(0), 256));
	fd = hm_open();
	ASSERT_LE(0, fd);
	ASSERT_EQ(0, ring_make(&self->a, fd, 256, EVENT(COMPLETED)));
	self->p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		       MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, self->p);
}

FIXTURE_TEARDOWN(hint)
{
	struct hetmem_event e;

	/* Nothing that nobody asked for. */
	EXPECT_FALSE(ring_next(&self->x, &e));
	EXPECT_FALSE(ring_next(&self->a, &e));
	EXPECT_EQ(0, self->x.header->dropped[HETMEM_EVENT_HINT]);
	munmap(self->p, SIZE);
	close(self->x.fd);
	close(self->a.fd);
}

#define ASK(loc, ms, cmd) \
	hm_hint(self->a.fd, self->p, SIZE, loc, ms, self->a.fd, cmd)

TEST_F(hint, bind)
{
	uint8_t uuid[16] = "a device's uuid", other[16] = "another", got[16];
	int fd = hm_open(), i;
	struct ring r;

	ASSERT_LE(0, fd);
	EXPECT_EQ(-ENOENT, hm_bind(fd, GPU(1), HETMEM_BIND_GET, got));
	EXPECT_EQ(0, hm_bind(fd, GPU(1), 0, uuid));
	EXPECT_EQ(0, hm_bind(fd, GPU(1), HETMEM_BIND_GET, got));
	EXPECT_EQ(0, memcmp(uuid, got, 16));
	EXPECT_EQ(0, hm_bind(fd, GPU(1), 0, other));
	EXPECT_EQ(0, hm_bind(fd, GPU(1), HETMEM_BIND_GET, got));
	EXPECT_EQ(0, memcmp(other, got, 16));
	/* A context's own affair. */
	EXPECT_EQ(-ENOENT, hm_bind(self->a.fd, GPU(1), HETMEM_BIND_GET, got));

	EXPECT_EQ(-ENXIO, hm_bind(fd, GPU(1), HETMEM_BIND_EXECUTOR, uuid));
	EXPECT_EQ(-ENXIO, hm_bind(self->a.fd, GPU(1), HETMEM_BIND_EXECUTOR,
				  uuid));
	ASSERT_EQ(0, ring_make(&r, fd, 16, EVENT(HINT)));
	EXPECT_EQ(-EBUSY, hm_bind(fd, GPU(0), HETMEM_BIND_EXECUTOR, uuid));
	/* Refused is not bound. */
	EXPECT_EQ(-ENOENT, hm_bind(fd, GPU(0), HETMEM_BIND_GET, got));
	EXPECT_EQ(0, hm_bind(fd, GPU(1), HETMEM_BIND_EXECUTOR, uuid));
	EXPECT_EQ(0, hm_bind(fd, GPU(1), HETMEM_BIND_EXECUTOR, uuid));
	/* A device of hetmem's and one of another driver differ. */
	EXPECT_EQ(0, hm_bind(fd, HETMEM_LOC(HETMEM_DEVICE, 0),
			     HETMEM_BIND_EXECUTOR, uuid));
	/* Who gives the role up leaves it to others. */
	EXPECT_EQ(0, hm_bind(self->x.fd, GPU(0), 0, uuid));
	EXPECT_EQ(0, hm_bind(fd, GPU(0), HETMEM_BIND_EXECUTOR, uuid));
	EXPECT_EQ(-EBUSY, hm_bind(self->x.fd, GPU(0), HETMEM_BIND_EXECUTOR,
				  uuid));
	/* And who closes; a mapped ring keeps the file. */
	munmap(r.header, r.size);
	EXPECT_EQ(0, close(fd));
	EXPECT_EQ(0, hm_bind(self->x.fd, GPU(0), HETMEM_BIND_EXECUTOR, uuid));

	for (i = 1; i < 16; i++)
		EXPECT_EQ(0, hm_bind(self->x.fd, GPU(i), 0, uuid));
	EXPECT_EQ(-ENOSPC, hm_bind(self->x.fd, GPU(16), 0, uuid));
	EXPECT_EQ(0, hm_bind(self->x.fd, GPU(15), 0, other));
}

TEST_F(hint, bind_wrong)
{
	static const uint32_t wrong[] = {
		0, HETMEM_LOC(HETMEM_UNMAPPED, 0), ANY_HOST,
		HETMEM_LOC(HETMEM_FOREIGN + 1, 0), ~0U,
	};
	struct hetmem_cmd_bind_device cmd;
	uint8_t uuid[16] = "";
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(wrong); i++) {
		EXPECT_EQ(-EINVAL, hm_bind(self->x.fd, wrong[i], 0, uuid));
		EXPECT_EQ(-EINVAL, hm_bind(self->x.fd, wrong[i],
					   HETMEM_BIND_GET, uuid));
	}
	EXPECT_EQ(-EINVAL, hm_bind(self->x.fd, GPU(0), HETMEM_BIND_GET |
				   HETMEM_BIND_EXECUTOR, uuid));
	EXPECT_EQ(-EINVAL, hm_bind(self->x.fd, GPU(0), 4, uuid));
	memset(&cmd, 0, sizeof(cmd));
	cmd.size = sizeof(cmd);
	cmd.location = GPU(0);
	cmd.reserved = 1;
	EXPECT_EQ(-EINVAL, hm_ioctl(self->x.fd, HETMEM_IOC_BIND_DEVICE, &cmd));
	/* It is the executor still. */
	EXPECT_EQ(-ETIMEDOUT, hm_hint(self->a.fd, self->p, SIZE, GPU(0), 1, -1,
				      NULL));
	EXPECT_EQ(1, ring_count(&self->x, HETMEM_EVENT_HINT, NULL));
}

/* Every address space has an executor of its own for the same device. */
TEST_F(hint, bind_in_a_child)
{
	pid_t pid = fork();

	ASSERT_LE(0, pid);
	if (!pid) {
		struct ring r;

		CHILD_CHECK(executor_open(&r, GPU(0), 16) >= 0);
		CHILD_CHECK(hm_bind(self->x.fd, GPU(0), 0, NULL) == -EPERM);
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
}

TEST_F(hint, ask_wrong)
{
	static const uint32_t wrong[] = {
		0, HETMEM_LOC(HETMEM_UNMAPPED, 0),
		HETMEM_LOC(HETMEM_FOREIGN + 1, 0), ~0U,
	};
	int fd = hm_open(), pipes[2], other;
	struct ring r;
	unsigned int i;

	ASSERT_LE(0, fd);
	ASSERT_EQ(0, pipe(pipes));
	EXPECT_EQ(-EINVAL, ASK(GPU(0), 0, NULL));
	EXPECT_EQ(-EINVAL, ASK(GPU(0), HETMEM_HINT_TIMEOUT_MAX + 1, NULL));
	for (i = 0; i < ARRAY_SIZE(wrong); i++)
		EXPECT_EQ(-EINVAL, ASK(wrong[i], 1000, NULL));
	EXPECT_EQ(-ENXIO, ASK(GPU(1), 1000, NULL));
	EXPECT_EQ(-ENXIO, ASK(HETMEM_LOC(HETMEM_DEVICE, 0), 1000, NULL));
	EXPECT_EQ(-EINVAL, hm_hint(fd, self->p, 0, GPU(0), 1000, -1, NULL));
	EXPECT_EQ(-EINVAL, hm_hint(fd, self->p + 1, SIZE, GPU(0), 1000, -1,
				   NULL));
	EXPECT_EQ(-ERANGE, hm_hint(fd, (void *)KERNEL_ADDR, SIZE, GPU(0), 1000,
				   -1, NULL));
	EXPECT_EQ(-EINVAL, hm_hint(fd, self->p, SIZE, GPU(0), 1000, -2, NULL));
	EXPECT_EQ(-EBADF, hm_hint(fd, self->p, SIZE, GPU(0), 1000, 9999,
				  NULL));
	EXPECT_EQ(-EBADF, hm_hint(fd, self->p, SIZE, GPU(0), 1000, pipes[0],
				  NULL));
	EXPECT_EQ(-ENXIO, hm_hint(fd, self->p, SIZE, GPU(0), 1000, fd, NULL));
	other = hm_open();
	ASSERT_LE(0, other);
	ASSERT_EQ(0, ring_make(&r, other, 16, EVENT(HINT)));
	EXPECT_EQ(-ENXIO, hm_hint(fd, self->p, SIZE, GPU(0), 1000, other,
				  NULL));
	munmap(r.header, r.size);
	close(other);
	close(fd);
	close(pipes[0]);
	close(pipes[1]);
}

/* The context that is told belongs to who asks. */
TEST_F(hint, reply_to_another)
{
	pid_t pid;

	ASSERT_EQ(0, hm_set_attr(self->x.fd, NULL, HETMEM_ATTR_ALLOW_HINTS, 1));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		CHILD_CHECK(hm_hint(self->x.fd, self->p, SIZE, GPU(0), 1000,
				    self->a.fd, NULL) == -EBADF);
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
}

TEST_F(hint, asked_and_answered)
{
	static const uint32_t where[] = {
		GPU(0), HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY),
		HETMEM_LOC(HETMEM_HOST, 0),
	};
	struct hetmem_cmd_hint cmd;
	struct hetmem_event e;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(where); i++) {
		ASSERT_EQ(0, ASK(where[i], FOREVER_MS, &cmd));
		ASSERT_TRUE(ring_wait(&self->x, &e, 1000));
		EXPECT_EQ(HETMEM_EVENT_HINT, e.type);
		EXPECT_EQ(0, e.cause);
		EXPECT_EQ((uintptr_t)self->p, e.start);
		EXPECT_EQ((uintptr_t)self->p + SIZE, e.end);
		EXPECT_EQ(where[i], e.location);
		EXPECT_EQ(cmd.id, e.data);
		EXPECT_NE(0, e.time);
		EXPECT_EQ(0, e.count | e.result | e.reserved | e.reserved2);

		EXPECT_FALSE(ring_next(&self->a, &e));
		EXPECT_EQ(-EINVAL, hm_complete(self->x.fd, cmd.id, 1, 0));
		EXPECT_EQ(-EINVAL, hm_complete(self->x.fd, cmd.id, -4096, 0));
		EXPECT_EQ(-ENOENT, hm_complete(self->x.fd, cmd.id + 1, 0, 0));
		EXPECT_EQ(-ENOENT, hm_complete(self->a.fd, cmd.id, 0, 0));
		EXPECT_FALSE(ring_next(&self->a, &e));
		EXPECT_EQ(0, hm_complete(self->x.fd, cmd.id, i ? -ENOMEM : 0,
					 7));
		EXPECT_EQ(-ENOENT, hm_complete(self->x.fd, cmd.id, 0, 0));

		ASSERT_TRUE(ring_wait(&self->a, &e, 1000));
		EXPECT_EQ(HETMEM_EVENT_COMPLETED, e.type);
		EXPECT_EQ(cmd.id, e.data);
		EXPECT_EQ(i ? -ENOMEM : 0, e.result);
		EXPECT_EQ(7, e.count);
		EXPECT_EQ((uintptr_t)self->p, e.start);
		EXPECT_EQ((uintptr_t)self->p + SIZE, e.end);
		EXPECT_EQ(0, e.location);
	}
	/* More than fits is the most that does. */
	ASSERT_EQ(0, ASK(GPU(0), FOREVER_MS, &cmd));
	ASSERT_TRUE(ring_wait(&self->x, &e, 1000));
	EXPECT_EQ(0, hm_complete(self->x.fd, cmd.id, 0, ~0ULL));
	ASSERT_TRUE(ring_wait(&self->a, &e, 1000));
	EXPECT_EQ(~0U, e.count);
}

/* Told in the order in which they were asked, answered in any. */
TEST_F(hint, first_in_first_out)
{
	struct hetmem_cmd_hint cmd[8];
	struct hetmem_event e;
	int i;

	for (i = 0; i < 8; i++)
		ASSERT_EQ(0, ASK(i % 3 ? GPU(0) : ANY_HOST, FOREVER_MS,
				 &cmd[i]));
	for (i = 0; i < 8; i++) {
		ASSERT_TRUE(ring_next(&self->x, &e));
		EXPECT_EQ(cmd[i].id, e.data);
		if (i)
			EXPECT_LT(cmd[i - 1].id, cmd[i].id);
	}
	for (i = 7; i >= 0; i--)
		ASSERT_EQ(0, hm_complete(self->x.fd, cmd[i].id, 0, i));
	for (i = 7; i >= 0; i--) {
		ASSERT_TRUE(ring_next(&self->a, &e));
		EXPECT_EQ(cmd[i].id, e.data);
		EXPECT_EQ((unsigned int)i, e.count);
	}
}

/* One process cannot have more than its share under way. */
TEST_F(hint, bounded_per_asker)
{
	uint64_t id[HETMEM_HINT_ASKED_MAX];
	struct hetmem_cmd_hint cmd;
	struct hetmem_event e;
	pid_t pid;
	int i;

	for (i = 0; i < HETMEM_HINT_ASKED_MAX; i++) {
		ASSERT_EQ(0, ASK(GPU(0), FOREVER_MS, &cmd));
		id[i] = cmd.id;
	}
	EXPECT_EQ(-EAGAIN, ASK(GPU(0), FOREVER_MS, NULL));
	EXPECT_EQ(-EAGAIN, ASK(ANY_HOST, FOREVER_MS, NULL));
	/* Another one can. */
	ASSERT_EQ(0, hm_set_attr(self->x.fd, NULL, HETMEM_ATTR_ALLOW_HINTS, 1));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		CHILD_CHECK(hm_hint(self->x.fd, self->p, SIZE, GPU(0), 10, -1,
				    NULL) == -ETIMEDOUT);
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(0, hm_complete(self->x.fd, id[3], 0, 0));
	EXPECT_EQ(0, ASK(GPU(0), FOREVER_MS, &cmd));
	id[3] = cmd.id;
	EXPECT_EQ(-EAGAIN, ASK(GPU(0), FOREVER_MS, NULL));
	for (i = 0; i < HETMEM_HINT_ASKED_MAX; i++)
		EXPECT_EQ(0, hm_complete(self->x.fd, id[i], 0, 0));
	EXPECT_EQ(HETMEM_HINT_ASKED_MAX + 2U,
		  ring_count(&self->x, HETMEM_EVENT_HINT, &e));
	EXPECT_EQ(HETMEM_HINT_ASKED_MAX + 1U,
		  ring_count(&self->a, HETMEM_EVENT_COMPLETED, &e));
}

/* An executor that does not read is not asked any more. */
TEST_F(hint, ring_is_full)
{
	struct hetmem_cmd_hint cmd;
	struct hetmem_event e;
	struct ring r;
	int i;

	ASSERT_LE(0, executor_open(&r, GPU(1), 16));
	for (i = 0; i < 16; i++) {
		ASSERT_EQ(0, ASK(GPU(1), FOREVER_MS, &cmd));
		/* Answered by one who guesses: the entry was not read. */
		ASSERT_EQ(0, hm_complete(r.fd, cmd.id, 0, 0));
	}
	EXPECT_EQ(-EAGAIN, ASK(GPU(1), FOREVER_MS, NULL));
	EXPECT_EQ(1, r.header->dropped[HETMEM_EVENT_HINT]);
	ASSERT_TRUE(ring_next(&r, &e));
	EXPECT_EQ(0, ASK(GPU(1), FOREVER_MS, &cmd));
	EXPECT_EQ(0, hm_complete(r.fd, cmd.id, 0, 0));
	EXPECT_EQ(17, ring_count(&self->a, HETMEM_EVENT_COMPLETED, &e));
	close(r.fd);
	munmap(r.header, r.size);
}

TEST_F(hint, timed_out)
{
	struct hetmem_cmd_hint cmd;
	struct hetmem_event e;

	EXPECT_EQ(-ETIMEDOUT, hm_hint(self->a.fd, self->p, SIZE, GPU(0), 20,
				      -1, &cmd));
	ASSERT_TRUE(ring_next(&self->x, &e));
	EXPECT_EQ(-ENOENT, hm_complete(self->x.fd, e.data, 0, 0));

	ASSERT_EQ(0, ASK(GPU(0), 20, &cmd));
	ASSERT_TRUE(ring_wait(&self->a, &e, FOREVER_MS));
	EXPECT_EQ(-ETIMEDOUT, e.result);
	EXPECT_EQ(cmd.id, e.data);
	EXPECT_EQ(0, e.count);
	ASSERT_TRUE(ring_next(&self->x, &e));
	EXPECT_EQ(-ENOENT, hm_complete(self->x.fd, cmd.id, 0, 0));
}

/* Answers @nr hints as they come. */
struct answers {
	struct ring *ring;
	int nr, result;
	bool ok;
};

static void *answer(void *arg)
{
	struct answers *a = arg;
	struct hetmem_event e;

	a->ok = true;
	while (a->nr--) {
		a->ok &= ring_wait(a->ring, &e, FOREVER_MS) &&
			 e.type == HETMEM_EVENT_HINT &&
			 !hm_complete(a->ring->fd, e.data, a->result,
				      (e.end - e.start) / page_size());
	}
	return NULL;
}

TEST_F(hint, waited_for)
{
	static const int results[] = { 0, -ENOMEM, -EAGAIN };
	struct hetmem_cmd_hint cmd;
	pthread_t thread;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(results); i++) {
		struct answers a = { &self->x, 1, results[i] };

		ASSERT_EQ(0, pthread_create(&thread, NULL, answer, &a));
		EXPECT_EQ(0, hm_hint(self->a.fd, self->p, SIZE, GPU(0),
				     FOREVER_MS, -1, &cmd));
		EXPECT_EQ(results[i], cmd.result);
		EXPECT_EQ(16, cmd.moved);
		EXPECT_NE(0, cmd.id);
		pthread_join(thread, NULL);
		EXPECT_TRUE(a.ok);
	}
}

static void nothing(int sig)
{
}

/* Any signal withdraws a hint, also one that would restart a system call. */
TEST_F(hint, interrupted)
{
	static const int signals[] = { SIGUSR1, SIGUSR2, SIGKILL };
	struct hetmem_event e;
	unsigned int i;

	ASSERT_EQ(0, hm_set_attr(self->x.fd, NULL, HETMEM_ATTR_ALLOW_HINTS, 1));
	for (i = 0; i < ARRAY_SIZE(signals); i++) {
		pid_t pid = fork();

		ASSERT_LE(0, pid);
		if (!pid) {
			struct sigaction sa = { .sa_handler = nothing };

			sigaction(SIGUSR1, &sa, NULL);
			sa.sa_flags = SA_RESTART;
			sigaction(SIGUSR2, &sa, NULL);
			CHILD_CHECK(hm_hint(self->x.fd, self->p, SIZE, GPU(0),
					    FOREVER_MS, -1, NULL) == -EINTR);
			_exit(0);
		}
		ASSERT_TRUE(ring_wait(&self->x, &e, FOREVER_MS));
		/* It asks before it sleeps; either way it must give up. */
		kill(pid, signals[i]);
		EXPECT_EQ(signals[i] == SIGKILL ? 128 + SIGKILL : 0,
			  child_status(pid));
		EXPECT_EQ(-ENOENT, hm_complete(self->x.fd, e.data, 0, 0));
	}
}

/* Who is to be told may go before it is. */
TEST_F(hint, reply_closed)
{
	long before = nr_contexts();
	struct hetmem_cmd_hint cmd;
	struct hetmem_event e;
	struct ring r;
	int fd = hm_open();

	ASSERT_LE(0, fd);
	ASSERT_EQ(0, ring_make(&r, fd, 16, EVENT(COMPLETED)));
	ASSERT_EQ(0, hm_hint(fd, self->p, SIZE, GPU(0), FOREVER_MS, fd, &cmd));
	ASSERT_EQ(0, hm_hint(fd, self->p, SIZE, GPU(0), 50, fd, NULL));
	munmap(r.header, r.size);
	close(fd);
	/* The hint does not keep it. */
	EXPECT_EQ(before, nr_contexts());
	ASSERT_TRUE(ring_next(&self->x, &e));
	EXPECT_EQ(0, hm_complete(self->x.fd, cmd.id, 0, 1));
	ASSERT_TRUE(ring_next(&self->x, &e));
	EXPECT_TRUE(EVENTUALLY(hm_complete(self->x.fd, e.data, 0, 0) ==
			       -ENOENT));
}

static bool has_exited(pid_t pid)
{
	siginfo_t info = { 0 };

	return !waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) &&
	       info.si_pid == pid;
}

/* Many askers, short patience, an executor that is now slow, now quick. */
TEST_F_TIMEOUT(hint, storm, 120)
{
	struct hetmem_list_entry list[64];
	int i, nr, ret, rounds = test_rounds(400);
	struct hetmem_event e;
	pid_t pid[4];

	ASSERT_EQ(0, hm_set_attr(self->x.fd, NULL, HETMEM_ATTR_ALLOW_HINTS, 1));
	for (i = 0; i < 4; i++) {
		pid[i] = fork();
		ASSERT_LE(0, pid[i]);
		if (pid[i])
			continue;
		for (nr = 0; nr < rounds; nr++) {
			ret = hm_hint(self->x.fd, self->p, SIZE, GPU(0),
				      1 + nr % 3, -1, NULL);
			CHILD_CHECK(!ret || ret == -ETIMEDOUT ||
				    ret == -EAGAIN);
		}
		_exit(0);
	}
	for (i = 0, nr = 0; i < 4;) {
		if (!ring_wait(&self->x, &e, 20)) {
			/* The next one that is still asking. */
			i += has_exited(pid[i]);
			continue;
		}
		if (nr++ % 7 == 0)
			usleep(1500);
		ret = hm_complete(self->x.fd, e.data, 0, 1);
		EXPECT_TRUE(!ret || ret == -ENOENT);
	}
	for (i = 0; i < 4; i++)
		EXPECT_EQ(0, child_status(pid[i]));
	nr = hm_list(self->x.fd, list, ARRAY_SIZE(list));
	ASSERT_LE(2, nr);
	for (i = 0; i < nr && i < 64; i++)
		EXPECT_EQ(0, list[i].nr_hints);
	ring_count(&self->x, HETMEM_EVENT_HINT, NULL);
}

TEST_HARNESS_MAIN
