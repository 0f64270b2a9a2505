// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Hints: naming devices, asking, answering, bounds, and errors of both sides.
 * hint_gone.c is about the end of one side, abi/permission.c about permission.
 */
#include "libktest/harness.h"
#include "libktest/asker.h"
#include "libktest/sysfs.h"

#define SIZE	(16 * page_size())
#define COHERENT(n) HETMEM_LOC(HETMEM_COHERENT, n)
#define DEVICE(n) HETMEM_LOC(HETMEM_DEVICE, n)

/* Hints that an executor's queue takes, of all users. */
#define QUEUE_MAX 1024

FIXTURE(hint)
{
	struct ring x;		/* executor for FOREIGN(0) */
	int fd;			/* asks */
	char *p;
	long max_hints;
};

FIXTURE_SETUP(hint)
{
	ASSERT_LE(0, executor_open(&self->x, FOREIGN(0), 256));
	self->fd = hm_open();
	ASSERT_LE(0, self->fd);
	self->p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		       MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, self->p);
	self->max_hints = sysfs_read("caps/max_hints");
	ASSERT_LE(1, self->max_hints);
}

FIXTURE_TEARDOWN(hint)
{
	struct hetmem_event e;

	/* Each hint was read and has ended. */
	EXPECT_FALSE(ring_next(&self->x, &e));
	EXPECT_EQ(0, self->x.h->dropped[HETMEM_EVENT_HINT]);
	EXPECT_EQ(0, hints_waiting(self->fd, getpid()));
	EXPECT_EQ(0, sysfs_set("caps/max_hints", self->max_hints));
	munmap(self->p, SIZE);
	close(self->x.fd);
	close(self->fd);
}

#define ASK(loc, ms, cmd) hm_hint(self->fd, self->p, SIZE, loc, ms, cmd)
#define ASK_UUID(loc, uuid, ms) \
	hm_hint_uuid(self->fd, self->p, SIZE, loc, uuid, ms, NULL)
#define START(a, loc) asker_start(a, self->fd, self->p, SIZE, loc, NULL)

TEST_F(hint, bind)
{
	uint8_t uuid[16] = "a device's uuid", other[16] = "another";
	int fd = hm_open();
	struct ring r, deaf;

	ASSERT_LE(0, fd);
	EXPECT_EQ(0, hm_bind(fd, FOREIGN(1), 0, uuid));
	EXPECT_EQ(0, hm_bind(fd, FOREIGN(1), 0, uuid));
	EXPECT_EQ(-ENXIO, hm_bind(fd, FOREIGN(1), HETMEM_BIND_EXECUTOR, uuid));
	ASSERT_EQ(0, ring_open(self->fd, 16, EVENT(THRASH), &deaf));
	EXPECT_EQ(-ENXIO, hm_bind(self->fd, FOREIGN(1), HETMEM_BIND_EXECUTOR,
				  uuid));
	ring_close(&deaf);
	ASSERT_EQ(0, ring_open(fd, 16, EVENT(HINT), &r));
	EXPECT_EQ(0, hm_bind(fd, FOREIGN(1), HETMEM_BIND_EXECUTOR, uuid));
	EXPECT_EQ(0, hm_bind(fd, FOREIGN(1), HETMEM_BIND_EXECUTOR, uuid));
	/* A device of another driver is its UUID, wherever it is. */
	EXPECT_EQ(-EBUSY, hm_bind(fd, FOREIGN(7), HETMEM_BIND_EXECUTOR,
				  uuid_of(FOREIGN(0))));
	EXPECT_EQ(-EBUSY, hm_bind(fd, COHERENT(0), HETMEM_BIND_EXECUTOR,
				  uuid_of(FOREIGN(0))));
	/* Refused is not bound. */
	EXPECT_EQ(-ENXIO, ASK(FOREIGN(7), 1, NULL));
	EXPECT_EQ(-ENXIO, ASK(COHERENT(0), 1, NULL));
	/* A device of hetmem's is its location. */
	EXPECT_EQ(0, hm_bind(fd, DEVICE(0), HETMEM_BIND_EXECUTOR, uuid));
	EXPECT_EQ(-EBUSY, hm_bind(self->x.fd, DEVICE(0), HETMEM_BIND_EXECUTOR,
				  other));
	EXPECT_EQ(0, hm_bind(self->x.fd, DEVICE(1), HETMEM_BIND_EXECUTOR, uuid));
	/* Binding without the flag gives the role up. */
	EXPECT_EQ(0, hm_bind(fd, DEVICE(0), 0, uuid));
	EXPECT_EQ(-ENXIO, ASK(DEVICE(0), 1, NULL));
	EXPECT_EQ(0, hm_bind(self->x.fd, DEVICE(0), HETMEM_BIND_EXECUTOR, other));
	EXPECT_EQ(-EBUSY, hm_bind(fd, DEVICE(0), HETMEM_BIND_EXECUTOR, uuid));
	EXPECT_EQ(-EBUSY, hm_bind(self->x.fd, FOREIGN(1), HETMEM_BIND_EXECUTOR,
				  uuid));
	/* Closing gives it up too. A mapped ring keeps the file. */
	ring_close(&r);
	EXPECT_EQ(0, close(fd));
	EXPECT_EQ(0, hm_bind(self->x.fd, FOREIGN(1), HETMEM_BIND_EXECUTOR, uuid));
}

TEST_F(hint, bind_many)
{
	struct hetmem_event e;
	int i;

	for (i = 1; i < HETMEM_MAX_BINDINGS; i++)
		EXPECT_EQ(0, hm_bind(self->x.fd, FOREIGN(i), i % 2 ?
				     HETMEM_BIND_EXECUTOR : 0,
				     uuid_of(FOREIGN(i))));
	EXPECT_EQ(-ENOSPC, hm_bind(self->x.fd, FOREIGN(i), 0,
				   uuid_of(FOREIGN(i))));
	/* What was refused is not bound. */
	EXPECT_EQ(-ENXIO, ASK(FOREIGN(i), 1, NULL));
	EXPECT_EQ(-ENXIO, ASK(FOREIGN(2), 1, NULL));
	for (i = 1; i < HETMEM_MAX_BINDINGS; i += 2) {
		EXPECT_EQ(-ETIMEDOUT, ASK(FOREIGN(i), 1, NULL));
		ASSERT_TRUE(ring_next(&self->x, &e));
		EXPECT_EQ(FOREIGN(i), e.location);
		EXPECT_EQ(0, memcmp(e.uuid, uuid_of(FOREIGN(i)), 16));
	}
	/* Binding a UUID to another location takes no further entry. */
	EXPECT_EQ(0, hm_bind(self->x.fd, FOREIGN(99), HETMEM_BIND_EXECUTOR,
			     uuid_of(FOREIGN(1))));
	EXPECT_EQ(-ENXIO, ASK(FOREIGN(1), 1, NULL));
	EXPECT_EQ(-ETIMEDOUT, ASK(FOREIGN(99), 1, NULL));
	ASSERT_TRUE(ring_next(&self->x, &e));
	EXPECT_EQ(FOREIGN(99), e.location);
}

TEST_F(hint, bind_wrong)
{
	static const uint32_t wrong[] = {
		0, HETMEM_LOC(HETMEM_UNMAPPED, 0), ANY_HOST,
		HETMEM_LOC(HETMEM_ZERO, 0), HETMEM_LOC(HETMEM_ZERO + 1, 0), ~0U,
	};
	struct hetmem_cmd_bind_device cmd = {
		.size = sizeof(cmd),
		.location = FOREIGN(0),
		.reserved = 1,
		.uuid = { 1 },
	};
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(wrong); i++)
		EXPECT_EQ(-EINVAL, hm_bind(self->x.fd, wrong[i], 0,
					   uuid_of(FOREIGN(1))));
	EXPECT_EQ(-EINVAL, hm_bind(self->x.fd, FOREIGN(1), 0, NULL));
	EXPECT_EQ(-EINVAL, hm_bind(self->x.fd, COHERENT(1), 0, NULL));
	EXPECT_EQ(0, hm_bind(self->x.fd, DEVICE(1), 0, NULL));
	EXPECT_EQ(-EINVAL, hm_bind(self->x.fd, FOREIGN(0), 2,
				   uuid_of(FOREIGN(0))));
	EXPECT_EQ(-EINVAL, hm_ioctl(self->x.fd, HETMEM_IOC_BIND_DEVICE, &cmd));
	/* It is the executor still. */
	EXPECT_EQ(-ETIMEDOUT, ASK(FOREIGN(0), 1, NULL));
	EXPECT_EQ(1, ring_count(&self->x, HETMEM_EVENT_HINT, NULL));
}

/* Every address space has an executor of its own for the same device. */
TEST_F(hint, bind_in_a_child)
{
	pid_t pid = fork();

	ASSERT_LE(0, pid);
	if (!pid) {
		struct ring r;

		CHILD_CHECK(executor_open(&r, FOREIGN(0), 16) >= 0);
		CHILD_CHECK(hm_bind(self->x.fd, FOREIGN(0), 0,
				    uuid_of(FOREIGN(0))) == -EPERM);
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
}

/*
 * Two devices at one location: their driver shares a pool between them. A hint
 * must name one of them; then its location does not count.
 */
TEST_F(hint, two_at_one_location)
{
	const uint8_t other[16] = "the other GPU", unbound[16] = "no GPU";
	struct hetmem_event e;
	struct ring r;

	ASSERT_LE(0, executor_open(&r, FOREIGN(1), 16));
	/* A binding without the flag gets no hints. */
	EXPECT_EQ(0, hm_bind(r.fd, FOREIGN(0), 0, other));
	EXPECT_EQ(-ETIMEDOUT, ASK(FOREIGN(0), 1, NULL));
	EXPECT_EQ(1, ring_count(&self->x, HETMEM_EVENT_HINT, NULL));
	/* Two executors, then one with two devices. */
	EXPECT_EQ(0, hm_bind(r.fd, FOREIGN(0), HETMEM_BIND_EXECUTOR, other));
	EXPECT_EQ(-ENOTUNIQ, ASK(FOREIGN(0), 1, NULL));
	EXPECT_EQ(0, hm_bind(r.fd, FOREIGN(1), 0, other));
	EXPECT_EQ(0, hm_bind(self->x.fd, FOREIGN(0), HETMEM_BIND_EXECUTOR,
			     other));
	EXPECT_EQ(-ENOTUNIQ, ASK(FOREIGN(0), 1, NULL));
	EXPECT_EQ(0, ring_count(&self->x, HETMEM_EVENT_HINT, NULL));

	EXPECT_EQ(-ETIMEDOUT, ASK_UUID(FOREIGN(0), other, 1));
	ASSERT_TRUE(ring_next(&self->x, &e));
	EXPECT_EQ(0, memcmp(e.uuid, other, 16));
	EXPECT_EQ(FOREIGN(0), e.location);
	EXPECT_EQ(-ETIMEDOUT, ASK_UUID(COHERENT(77), uuid_of(FOREIGN(0)), 1));
	ASSERT_TRUE(ring_next(&self->x, &e));
	EXPECT_EQ(0, memcmp(e.uuid, uuid_of(FOREIGN(0)), 16));
	EXPECT_EQ(FOREIGN(0), e.location);
	EXPECT_EQ(-ENXIO, ASK_UUID(FOREIGN(0), unbound, 1));
	/* To the host there is nothing to tell apart. */
	EXPECT_EQ(-ETIMEDOUT, ASK(ANY_HOST, 1, NULL));
	EXPECT_EQ(1, ring_count(&self->x, HETMEM_EVENT_HINT, NULL) +
		  ring_count(&r, HETMEM_EVENT_HINT, NULL));
	ring_close(&r);
	close(r.fd);
}

TEST_F(hint, ask_wrong)
{
	static const uint32_t wrong[] = {
		0, HETMEM_LOC(HETMEM_UNMAPPED, 0), HETMEM_LOC(HETMEM_ZERO, 0),
		HETMEM_LOC(HETMEM_ZERO + 1, 0), ~0U,
	};
	struct hetmem_cmd_hint cmd;
	unsigned int i;

	EXPECT_EQ(-EINVAL, ASK(FOREIGN(0), 0, NULL));
	EXPECT_EQ(-EINVAL, ASK(FOREIGN(0), HETMEM_HINT_TIMEOUT_MAX + 1, NULL));
	for (i = 0; i < ARRAY_SIZE(wrong); i++)
		EXPECT_EQ(-EINVAL, ASK(wrong[i], 1000, NULL));
	EXPECT_EQ(-EINVAL, ASK_UUID(ANY_HOST, uuid_of(FOREIGN(0)), 1000));
	EXPECT_EQ(-EINVAL, ASK_UUID(DEVICE(0), uuid_of(FOREIGN(0)), 1000));
	EXPECT_EQ(-ENXIO, ASK(FOREIGN(1), 1000, NULL));
	EXPECT_EQ(-ENXIO, ASK(COHERENT(0), 1000, NULL));
	EXPECT_EQ(-ENXIO, ASK(DEVICE(0), 1000, NULL));
	EXPECT_EQ(-EINVAL, hm_hint(self->fd, self->p, 0, FOREIGN(0), 1000, NULL));
	EXPECT_EQ(-EINVAL, hm_hint(self->fd, self->p + 1, SIZE, FOREIGN(0), 1000,
				   NULL));
	EXPECT_EQ(-ERANGE, hm_hint(self->fd, (void *)KERNEL_ADDR, SIZE,
				   FOREIGN(0), 1000, NULL));
	cmd = (struct hetmem_cmd_hint){
		.size = sizeof(cmd),
		.start = (uintptr_t)self->p,
		.end = (uintptr_t)self->p + SIZE,
		.location = FOREIGN(0),
		.timeout_ms = 1000,
		.reserved = 1,
	};
	EXPECT_EQ(-EINVAL, hm_ioctl(self->fd, HETMEM_IOC_HINT, &cmd));
	cmd.reserved = 0;
	cmd.flags = 1;
	EXPECT_EQ(-EINVAL, hm_ioctl(self->fd, HETMEM_IOC_HINT, &cmd));
}

TEST_F(hint, asked_and_answered)
{
	static const uint32_t where[] = {
		FOREIGN(0), ANY_HOST, HETMEM_LOC(HETMEM_HOST, 0),
	};
	static const int results[] = { 0, -ENOMEM, -4095 };
	static const uint64_t moved[] = { 16, 0, ~0ULL };
	const uint8_t none[16] = "";
	struct hetmem_event e;
	struct asker a;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(where); i++) {
		ASSERT_EQ(0, START(&a, where[i]));
		ASSERT_TRUE(ring_wait(&self->x, &e, FOREVER_MS));
		EXPECT_EQ(HETMEM_EVENT_HINT, e.type);
		EXPECT_EQ(0, e.cause);
		EXPECT_EQ((uintptr_t)self->p, e.start);
		EXPECT_EQ((uintptr_t)self->p + SIZE, e.end);
		EXPECT_EQ(where[i], e.location);
		EXPECT_NE(0, e.time);
		EXPECT_EQ(0, e.count);
		EXPECT_EQ(0, memcmp(e.uuid, i ? none : uuid_of(FOREIGN(0)), 16));

		EXPECT_EQ(-EINVAL, hm_complete(self->x.fd, e.data, 1, 0));
		EXPECT_EQ(-EINVAL, hm_complete(self->x.fd, e.data, -4096, 0));
		EXPECT_EQ(-ENOENT, hm_complete(self->x.fd, e.data + 1, 0, 0));
		EXPECT_EQ(-ENOENT, hm_complete(self->fd, e.data, 0, 0));
		EXPECT_EQ(1, hints_waiting(self->fd, getpid()));
		EXPECT_EQ(0, hm_complete(self->x.fd, e.data, results[i],
					 moved[i]));
		EXPECT_EQ(-ENOENT, hm_complete(self->x.fd, e.data, 0, 0));
		EXPECT_EQ(0, hints_waiting(self->fd, getpid()));

		EXPECT_EQ(0, asker_end(&a));
		EXPECT_EQ(e.data, a.cmd.id);
		EXPECT_EQ(results[i], a.cmd.result);
		EXPECT_EQ(moved[i], a.cmd.moved);
	}
}

/* Told in the order in which they were asked, answered in any. */
TEST_F(hint, first_in_first_out)
{
	struct hetmem_event e[8];
	struct asker a[8];
	int i;

	for (i = 0; i < 8; i++) {
		ASSERT_EQ(0, START(&a[i], i % 3 ? FOREIGN(0) : ANY_HOST));
		ASSERT_TRUE(EVENTUALLY(hints_waiting(self->fd, getpid()) ==
				       i + 1));
	}
	for (i = 0; i < 8; i++) {
		ASSERT_TRUE(ring_next(&self->x, &e[i]));
		EXPECT_EQ(i % 3 ? FOREIGN(0) : ANY_HOST, e[i].location);
		if (i)
			EXPECT_LT(e[i - 1].data, e[i].data);
	}
	for (i = 7; i >= 0; i--)
		ASSERT_EQ(0, hm_complete(self->x.fd, e[i].data, -i, i));
	for (i = 0; i < 8; i++) {
		EXPECT_EQ(0, asker_end(&a[i]));
		EXPECT_EQ(e[i].data, a[i].cmd.id);
		EXPECT_EQ(-i, a[i].cmd.result);
		EXPECT_EQ((unsigned int)i, a[i].cmd.moved);
	}
}

/* What a hint of another user returns that is not answered. */
static int ask_as_nobody(int fd, const char *p)
{
	pid_t pid = fork();

	if (pid)
		return pid < 0 ? -errno : -child_status(pid);
	if (become_nobody())
		_exit(255);
	_exit(-hm_hint(fd, p, SIZE, FOREIGN(0), 1, NULL));
}

/* A user has caps/max_hints waiting at one executor, by whichever process. */
TEST_F(hint, bounded_per_user)
{
	enum { MAX = 5 };
	struct hetmem_event e[MAX], last;
	struct asker a[MAX];
	struct ring r;
	pid_t pid;
	int i;

	ASSERT_EQ(0, sysfs_set("caps/max_hints", MAX));
	ASSERT_EQ(0, hm_allow(self->x.fd, HETMEM_ALLOW_HINTS));
	ASSERT_LE(0, executor_open(&r, FOREIGN(1), 16));
	for (i = 0; i < MAX; i++) {
		ASSERT_EQ(0, START(&a[i], i % 2 ? FOREIGN(0) : ANY_HOST));
		ASSERT_TRUE(ring_wait(&self->x, &e[i], FOREVER_MS));
	}
	EXPECT_EQ(-EAGAIN, ASK(FOREIGN(0), 1000, NULL));
	EXPECT_EQ(-EAGAIN, ASK(ANY_HOST, 1000, NULL));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		CHILD_CHECK(hm_hint(self->x.fd, self->p, SIZE, FOREIGN(0), 1000,
				    NULL) == -EAGAIN);
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
	/* Not another user, nor another executor. */
	EXPECT_EQ(-ETIMEDOUT, ask_as_nobody(self->x.fd, self->p));
	EXPECT_EQ(-ETIMEDOUT, ASK(FOREIGN(1), 1, NULL));
	EXPECT_EQ(1, ring_count(&self->x, HETMEM_EVENT_HINT, &last));
	EXPECT_EQ(MAX, hints_waiting(self->fd, getpid()));
	/* One place is free, for one. */
	EXPECT_EQ(0, hm_complete(self->x.fd, e[3].data, 0, 0));
	EXPECT_EQ(0, asker_end(&a[3]));
	ASSERT_EQ(0, START(&a[3], FOREIGN(0)));
	ASSERT_TRUE(ring_wait(&self->x, &e[3], FOREVER_MS));
	EXPECT_EQ(-EAGAIN, ASK(FOREIGN(0), 1000, NULL));
	/* A hint that times out makes room. A new cap counts at once. */
	ASSERT_EQ(0, sysfs_set("caps/max_hints", MAX + 1));
	for (i = 0; i < 3; i++)
		EXPECT_EQ(-ETIMEDOUT, ASK(FOREIGN(0), 1, NULL));
	EXPECT_EQ(3, ring_count(&self->x, HETMEM_EVENT_HINT, &last));
	ASSERT_EQ(0, sysfs_set("caps/max_hints", 1));
	EXPECT_EQ(-EAGAIN, ASK(FOREIGN(0), 1000, NULL));
	for (i = 0; i < MAX; i++) {
		EXPECT_EQ(0, hm_complete(self->x.fd, e[i].data, 0, 0));
		EXPECT_EQ(0, asker_end(&a[i]));
	}
	ring_close(&r);
	close(r.fd);
}

/* The queue is bounded for all users together. */
TEST_F(hint, queue_is_full)
{
	struct asker *a = calloc(QUEUE_MAX, sizeof(*a));
	int fd, i;
	struct ring r;

	ASSERT_NE(NULL, a);
	fd = executor_open(&r, FOREIGN(1), 4 * QUEUE_MAX);
	ASSERT_LE(0, fd);
	EXPECT_EQ(-ERANGE, sysfs_set("caps/max_hints", QUEUE_MAX + 1));
	ASSERT_EQ(0, sysfs_set("caps/max_hints", QUEUE_MAX));
	ASSERT_EQ(0, hm_allow(fd, HETMEM_ALLOW_HINTS));
	for (i = 0; i < QUEUE_MAX; i++)
		ASSERT_EQ(0, START(&a[i], FOREIGN(1)));
	ASSERT_TRUE(EVENTUALLY(hints_waiting(self->fd, getpid()) == QUEUE_MAX));
	EXPECT_EQ(-EAGAIN, ASK(FOREIGN(1), 1000, NULL));
	/* Another user, who has no hint there, gets no room either. */
	i = fork();
	ASSERT_LE(0, i);
	if (!i) {
		CHILD_CHECK(!become_nobody());
		CHILD_CHECK(hm_hint(fd, self->p, SIZE, FOREIGN(1), 1000, NULL) ==
			    -EAGAIN);
		_exit(0);
	}
	EXPECT_EQ(0, child_status(i));
	ring_close(&r);
	close(fd);
	for (i = 0; i < QUEUE_MAX; i++)
		EXPECT_EQ(-EOWNERDEAD, asker_end(&a[i]));
	free(a);
}

enum { SHARE = 8 };

/* Asks for all that a user can have, and then for more. */
static void flood(int fd, const char *p, const int *full, const int *stop)
{
	struct asker a[SHARE];
	int i;

	CHILD_CHECK(!become_nobody());
	for (i = 0; i < SHARE; i++)
		CHILD_CHECK(!asker_start(&a[i], fd, p, SIZE, FOREIGN(0), NULL));
	word_wait(full, 1);
	while (!word_read(stop))
		CHILD_CHECK(hm_hint(fd, p, SIZE, FOREIGN(0), FOREVER_MS, NULL) ==
			    -EAGAIN);
	_exit(0);
}

/* A user that asks all the time does not shut others out. */
TEST_F(hint, flood)
{
	int *words = mmap(NULL, page_size(), PROT_READ | PROT_WRITE, MAP_SHARED |
			  MAP_ANONYMOUS, -1, 0);
	struct hetmem_event e;
	struct asker a;
	pid_t pid;
	int i;

	ASSERT_NE(MAP_FAILED, words);
	ASSERT_EQ(0, sysfs_set("caps/max_hints", SHARE));
	ASSERT_EQ(0, hm_allow(self->x.fd, HETMEM_ALLOW_HINTS));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid)
		flood(self->x.fd, self->p, &words[0], &words[1]);
	for (i = 0; i < SHARE; i++)
		ASSERT_TRUE(ring_wait(&self->x, &e, FOREVER_MS));
	word_add(&words[0]);
	for (i = 0; i < 100; i++) {
		ASSERT_EQ(0, START(&a, FOREIGN(0)));
		ASSERT_TRUE(ring_wait(&self->x, &e, FOREVER_MS));
		EXPECT_EQ(0, hm_complete(self->x.fd, e.data, 0, i));
		EXPECT_EQ(0, asker_end(&a));
		EXPECT_EQ(i, (int)a.cmd.moved);
		EXPECT_EQ(SHARE, hints_waiting(self->fd, getpid()));
	}
	word_add(&words[1]);
	/* The hints of a process end with it. */
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(0, hints_waiting(self->fd, getpid()));
	munmap(words, page_size());
}

/* An executor that does not read is not asked any more. */
TEST_F(hint, ring_is_full)
{
	struct hetmem_event e;
	struct ring r;
	int i;

	ASSERT_LE(0, executor_open(&r, FOREIGN(1), 16));
	/* Withdrawn hints stay in the ring. */
	for (i = 0; i < 16; i++)
		ASSERT_EQ(-ETIMEDOUT, ASK(FOREIGN(1), 1, NULL));
	EXPECT_EQ(-EAGAIN, ASK(FOREIGN(1), 1000, NULL));
	EXPECT_EQ(1, r.h->dropped[HETMEM_EVENT_HINT]);
	EXPECT_EQ(0, hints_waiting(self->fd, getpid()));
	ASSERT_TRUE(ring_next(&r, &e));
	EXPECT_EQ(-ETIMEDOUT, ASK(FOREIGN(1), 1, NULL));
	EXPECT_EQ(16, ring_count(&r, HETMEM_EVENT_HINT, NULL));
	close(r.fd);
	ring_close(&r);
}

TEST_F(hint, timed_out)
{
	struct hetmem_event e;

	EXPECT_EQ(-ETIMEDOUT, ASK(FOREIGN(0), 20, NULL));
	EXPECT_EQ(0, hints_waiting(self->fd, getpid()));
	ASSERT_TRUE(ring_next(&self->x, &e));
	EXPECT_EQ(-ENOENT, hm_complete(self->x.fd, e.data, 0, 0));
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

	ASSERT_EQ(0, hm_allow(self->x.fd, HETMEM_ALLOW_HINTS));
	for (i = 0; i < ARRAY_SIZE(signals); i++) {
		pid_t pid = fork();

		ASSERT_LE(0, pid);
		if (!pid) {
			struct sigaction sa = { .sa_handler = nothing };

			sigaction(SIGUSR1, &sa, NULL);
			sa.sa_flags = SA_RESTART;
			sigaction(SIGUSR2, &sa, NULL);
			CHILD_CHECK(hm_hint(self->x.fd, self->p, SIZE, FOREIGN(0),
					    FOREVER_MS, NULL) == -EINTR);
			_exit(0);
		}
		ASSERT_TRUE(ring_wait(&self->x, &e, FOREVER_MS));
		/* It asks before it sleeps; either way it must give up. */
		kill(pid, signals[i]);
		EXPECT_EQ(signals[i] == SIGKILL ? 128 + SIGKILL : 0,
			  child_status(pid));
		EXPECT_EQ(-ENOENT, hm_complete(self->x.fd, e.data, 0, 0));
		EXPECT_EQ(0, hints_waiting(self->fd, getpid()));
	}
}

static bool has_exited(pid_t pid)
{
	siginfo_t info = { 0 };

	return !waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) &&
	       info.si_pid == pid;
}

/* Many askers, short patience, an executor that is now slow, now quick. */
TEST_F(hint, storm)
{
	struct hetmem_list_entry list[64];
	int i, nr, ret, rounds = test_rounds(400);
	struct hetmem_event e;
	pid_t pid[4];

	ASSERT_EQ(0, hm_allow(self->x.fd, HETMEM_ALLOW_HINTS));
	for (i = 0; i < 4; i++) {
		pid[i] = fork();
		ASSERT_LE(0, pid[i]);
		if (pid[i])
			continue;
		for (nr = 0; nr < rounds; nr++) {
			ret = hm_hint(self->x.fd, self->p, SIZE, FOREIGN(0),
				      1 + nr % 3, NULL);
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
			/* time: lets some hints time out */
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
