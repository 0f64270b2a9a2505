// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * foreign/limits: how much hints may ask for of another driver's device, by its
 * UUID. It bounds hints and nothing else: the device's driver moves what it
 * likes. test_hmm plays the GPU.
 */
#include "libktest/harness.h"
#include "libktest/asker.h"
#include "libktest/hmm.h"
#include "libktest/sysfs.h"
#include "libktest/trace.h"

#define PAGES	32
#define SIZE	(PAGES * page_size())
#define LIMITS	"foreign/limits"
#define MAX_LIMITS 64

static const uint8_t uuid[16] = {
	0x8f, 0x6a, 0xef, 0x44, 0x1a, 0x5d, 0x19, 0x78,
	0x3d, 0x98, 0x5c, 0xc4, 0xd0, 0xfa, 0x04, 0x46,
};

#define UUID	"8f6aef44-1a5d-1978-3d98-5cc4d0fa0446"

static const uint8_t other_uuid[16] = { 0x01, [15] = 0xfe };

#define OTHER	"01000000-0000-0000-0000-0000000000fe"

/* Writes a line for @name; -1: no limit. */
static int set_limit(const char *name, long bytes)
{
	char line[128];

	if (bytes < 0)
		snprintf(line, sizeof(line), "%s max\n", name);
	else
		snprintf(line, sizeof(line), "%s %ld\n", name, bytes);
	return sysfs_write(LIMITS, line);
}

/* What the file says of @name; -1: nothing. @nr_lines may be NULL. */
static long get_limit(const char *name, int *nr_lines)
{
	FILE *f = fopen(SYSFS LIMITS, "r");
	char found[40];
	long bytes, limit = -1;
	int nr = 0;

	while (f && fscanf(f, "%39s %ld\n", found, &bytes) == 2) {
		nr++;
		if (!strcmp(found, name))
			limit = bytes;
	}
	if (f)
		fclose(f);
	if (nr_lines)
		*nr_lines = nr;
	return limit;
}

TEST(file)
{
	static const char *const wrong[] = {
		"", "\n", " ", "GPU-", UUID, UUID "\n", UUID " ", UUID " \n",
		"GPU-" UUID, UUID " much", UUID " -1", UUID " 1M", UUID " 1 2",
		UUID "  1", " " UUID " 1", UUID "\t1", UUID "1 1",
		"GPU-GPU-" UUID " 1", "gpu-" UUID " 1", "MIG-" UUID " 1",
		"8f6aef441a5d19783d985cc4d0fa0446 1",
		"8f6aef44-1a5d-1978-3d98-5cc4d0fa044g 1",
		"8f6aef44-1a5d-1978-3d98-5cc4d0fa044 1",
		UUID " maximum", "max", "12345",
	};
	char line[80];
	unsigned int i;
	pid_t pid;
	int nr;

	ASSERT_EQ(-1, get_limit(UUID, &nr));
	ASSERT_EQ(0, nr);
	ASSERT_EQ(0, set_limit(UUID, 12345));
	for (i = 0; i < ARRAY_SIZE(wrong); i++) {
		/* write(2) of nothing does not come to the module. */
		EXPECT_EQ(*wrong[i] ? -EINVAL : 0, sysfs_write(LIMITS, wrong[i])) {
			TH_LOG("'%s'", wrong[i]);
		}
	}
	EXPECT_EQ(-ERANGE, sysfs_write(LIMITS, UUID " 18446744073709551616"));
	EXPECT_EQ(12345, get_limit(UUID, &nr));
	EXPECT_EQ(1, nr);
	/* Both forms, in both cases, with a line end or without; hexadecimal too. */
	EXPECT_EQ(0, set_limit("GPU-" UUID, 1));
	EXPECT_EQ(1, get_limit(UUID, &nr));
	EXPECT_EQ(0, sysfs_write(LIMITS, "8F6AEF44-1A5D-1978-3D98-5CC4D0FA0446 0x10"));
	EXPECT_EQ(16, get_limit(UUID, &nr));
	EXPECT_EQ(1, nr);
	EXPECT_EQ(0, set_limit("GPU-" OTHER, 0));
	EXPECT_EQ(0, get_limit(OTHER, &nr));
	EXPECT_EQ(2, nr);
	EXPECT_EQ(0, set_limit("GPU-" UUID, -1));
	EXPECT_EQ(-1, get_limit(UUID, &nr));
	EXPECT_EQ(1, nr);
	/* What is not there can be removed. */
	EXPECT_EQ(0, set_limit(UUID, -1));

	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		CHILD_CHECK(!become_nobody());
		CHILD_CHECK(get_limit(OTHER, NULL) == 0);
		CHILD_CHECK(set_limit(OTHER, 1) == -EACCES);
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));

	/* As many as there is room for; one that is there can be changed. */
	for (i = 1; i < MAX_LIMITS; i++) {
		snprintf(line, sizeof(line),
			 "00000000-0000-0000-0000-%012x", i);
		EXPECT_EQ(0, set_limit(line, i));
	}
	EXPECT_EQ(-ENOSPC, set_limit(UUID, 1));
	EXPECT_EQ(0, set_limit(OTHER, 77));
	EXPECT_EQ(77, get_limit(OTHER, &nr));
	EXPECT_EQ(MAX_LIMITS, nr);
	EXPECT_EQ(0, set_limit(OTHER, -1));
	EXPECT_EQ(0, set_limit(UUID, 1));
	EXPECT_EQ(0, set_limit(UUID, -1));
	for (i = 1; i < MAX_LIMITS; i++) {
		snprintf(line, sizeof(line),
			 "00000000-0000-0000-0000-%012x", i);
		EXPECT_EQ(i, (unsigned int)get_limit(line, NULL));
		EXPECT_EQ(0, set_limit(line, -1));
	}
	EXPECT_EQ(-1, get_limit(UUID, &nr));
	EXPECT_EQ(0, nr);
}

FIXTURE(limit)
{
	int gpu, fd;		/* fd: asks */
	uint32_t loc;
	struct ring r;		/* of the executor for it */
	char *p;		/* tracked by the executor */
};

FIXTURE_SETUP(limit)
{
	self->fd = hm_open();
	ASSERT_LE(0, self->fd);
	self->gpu = gpu_open(0);
	ASSERT_LE(0, self->gpu);
	self->p = map_filled(SIZE, 1);
	ASSERT_NE(NULL, self->p);
	ASSERT_EQ(0, to_gpu(self->gpu, self->p, page_size(), 1));
	self->loc = foreign_at(self->fd, self->p);
	ASSERT_NE(NO_LOC, self->loc);
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
	self->r.fd = hm_open();
	ASSERT_LE(0, self->r.fd);
	ASSERT_EQ(0, ring_open(self->r.fd, 64, EVENT(HINT), &self->r));
	ASSERT_EQ(0, hm_bind(self->r.fd, self->loc, HETMEM_BIND_EXECUTOR, uuid));
	ASSERT_EQ(0, hm_track(self->r.fd, self->p, SIZE));
}

FIXTURE_TEARDOWN(limit)
{
	EXPECT_EQ(0, set_limit(UUID, -1));
	EXPECT_EQ(0, set_limit(OTHER, -1));
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
	EXPECT_EQ(0, hints_waiting(self->fd, getpid()));
	munmap(self->p, SIZE);
	ring_close(&self->r);
	close(self->r.fd);
	close(self->gpu);
	close(self->fd);
}

#define FD	(self->r.fd)
#define PAGE(n)	(self->p + (n) * page_size())
#define SET(nr)	set_limit(UUID, (nr) * (long)page_size())

/* Whether a hint may ask for @nr pages now: one with a short timeout. */
#define MAY(nr)	hm_hint(self->fd, self->p, (nr) * page_size(), self->loc, 1, NULL)
#define YES	(-ETIMEDOUT)
#define NO	(-EDQUOT)

/* Asks for @nr pages and waits for the executor to be told. */
#define START(a, nr, e)							\
	do {								\
		ASSERT_EQ(0, asker_start(a, self->fd, self->p,		\
					 (nr) * page_size(), self->loc,	\
					 NULL));			\
		ASSERT_TRUE(ring_wait(&self->r, e, FOREVER_MS));	\
		ASSERT_EQ(HETMEM_EVENT_HINT, (e)->type);		\
	} while (0)

#define END(a, e, moved)						\
	do {								\
		EXPECT_EQ(0, hm_complete(FD, (e)->data, 0, moved));	\
		EXPECT_EQ(0, asker_end(a));				\
	} while (0)

/* REFRESH until nothing is on its way: pages of the range on devices. */
static long refresh(int fd, const void *p)
{
	struct hetmem_cmd_refresh cmd;
	int ret = hm_refresh_all(fd, p, &cmd);

	return ret ? ret : (long)cmd.on_device;
}

/* With devices of both kinds there every documented file must be. */
TEST_F(limit, as_documented)
{
	EXPECT_EQ(0, SET(8));
	EXPECT_EQ(0, abi_compare(true));
}

/* What is there and what is asked for are bounded together. */
TEST_F(limit, sum)
{
	struct hetmem_event e[2];
	struct asker a[2];

	EXPECT_EQ(YES, MAY(PAGES));
	ASSERT_EQ(0, SET(8));
	EXPECT_EQ(YES, MAY(8));
	EXPECT_EQ(NO, MAY(9));
	ring_drain(&self->r);
	START(&a[0], 6, &e[0]);
	EXPECT_EQ(NO, MAY(3));
	ring_drain(&self->r);
	START(&a[1], 2, &e[1]);
	EXPECT_EQ(NO, MAY(1));
	END(&a[1], &e[1], 0);
	ring_drain(&self->r);
	/* Elsewhere there is room. */
	EXPECT_EQ(-ETIMEDOUT, hm_hint(self->fd, self->p, SIZE, ANY_HOST, 1, NULL));

	/* Moved pages count once REFRESH has seen them. */
	ASSERT_EQ(0, to_gpu(self->gpu, self->p, 6 * page_size(), 1));
	END(&a[0], &e[0], 6);
	EXPECT_EQ(6, refresh(FD, self->p));
	EXPECT_EQ(NO, MAY(3));
	EXPECT_EQ(YES, MAY(2));
	/* The driver does as it likes. */
	ASSERT_EQ(0, to_gpu_at(self->gpu, PAGE(PAGES / 2), SIZE / 2, 1, SIZE / 2));
	EXPECT_EQ(6 + PAGES / 2, refresh(FD, self->p));
	EXPECT_EQ(NO, MAY(1));
	ASSERT_EQ(0, set_limit(UUID, (7 + PAGES / 2) * page_size() - 1));
	EXPECT_EQ(NO, MAY(1));
	ASSERT_EQ(0, SET(7 + PAGES / 2));
	EXPECT_EQ(YES, MAY(1));
	ASSERT_EQ(0, SET(0));
	EXPECT_EQ(NO, MAY(1));
	/* Back on the host it leaves room again. */
	ASSERT_EQ(0, SET(8));
	EXPECT_EQ(-1, mismatch(self->p, SIZE, 1));
	EXPECT_EQ(NO, MAY(8));
	EXPECT_EQ(0, refresh(FD, self->p));
	EXPECT_EQ(YES, MAY(8));
	ASSERT_EQ(0, set_limit(UUID, -1));
	EXPECT_EQ(YES, MAY(PAGES));
}

/* However a hint ends, what it asked for is given back. */
TEST_F(limit, given_back)
{
	struct hetmem_event e;
	struct asker a;
	struct ring r;
	pid_t pid;

	ASSERT_EQ(0, SET(8));
	START(&a, 8, &e);
	EXPECT_EQ(NO, MAY(1));
	EXPECT_EQ(0, hm_complete(FD, e.data, -ENOMEM, 0));
	EXPECT_EQ(0, asker_end(&a));
	EXPECT_EQ(YES, MAY(8));
	EXPECT_EQ(YES, MAY(8));
	/* By a signal. */
	ASSERT_EQ(0, hm_allow(FD, HETMEM_ALLOW_HINTS));
	ring_drain(&self->r);
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		hm_hint(FD, self->p, 8 * page_size(), self->loc, FOREVER_MS,
			NULL);
		_exit(1);
	}
	ASSERT_TRUE(ring_wait(&self->r, &e, FOREVER_MS));
	EXPECT_EQ(NO, MAY(1));
	kill(pid, SIGKILL);
	EXPECT_EQ(128 + SIGKILL, child_status(pid));
	EXPECT_EQ(YES, MAY(8));
	/* The executor goes. */
	ring_drain(&self->r);
	START(&a, 8, &e);
	ring_close(&self->r);
	close(FD);
	EXPECT_EQ(-EOWNERDEAD, asker_end(&a));
	r.fd = hm_open();
	ASSERT_LE(0, r.fd);
	ASSERT_EQ(0, ring_open(r.fd, 16, EVENT(HINT), &self->r));
	ASSERT_EQ(0, hm_bind(FD, self->loc, HETMEM_BIND_EXECUTOR, uuid));
	EXPECT_EQ(YES, MAY(8));
	EXPECT_EQ(NO, MAY(9));
	EXPECT_EQ(1, self->r.h->head);
	/* A hint that has no room in the ring asks for nothing. */
	ASSERT_EQ(0, set_limit(UUID, -1));
	while (MAY(8) == YES)
		;
	ASSERT_EQ(-EAGAIN, MAY(8));
	ring_drain(&self->r);
	ASSERT_EQ(0, SET(8));
	EXPECT_EQ(YES, MAY(8));
}

/* Each process's executor gets as much as the limit allows. */
static int other_process(uint32_t loc, const char *p)
{
	struct asker a;
	struct ring r;
	pid_t pid = fork();
	struct hetmem_event e;
	int fd;

	if (pid)
		return pid < 0 ? -errno : child_status(pid);
	CHILD_CHECK(!become_nobody());
	fd = hm_open();
	CHILD_CHECK(fd >= 0 && !ring_open(fd, 16, EVENT(HINT), &r));
	CHILD_CHECK(!hm_bind(fd, loc, HETMEM_BIND_EXECUTOR, uuid));
	CHILD_CHECK(!asker_start(&a, fd, p, 8 * page_size(), loc, NULL));
	CHILD_CHECK(ring_wait(&r, &e, FOREVER_MS));
	CHILD_CHECK(hm_hint(fd, p, page_size(), loc, FOREVER_MS, NULL) ==
		    -EDQUOT);
	CHILD_CHECK(!hm_complete(fd, e.data, 0, 0));
	CHILD_CHECK(!asker_end(&a));
	_exit(0);
}

TEST_F(limit, of_each_process)
{
	struct hetmem_event e;
	struct asker a;
	int fd = hm_open();

	ASSERT_LE(0, fd);
	ASSERT_EQ(0, SET(8));
	START(&a, 8, &e);
	EXPECT_EQ(NO, MAY(1));
	EXPECT_EQ(0, other_process(self->loc, self->p));
	EXPECT_EQ(NO, MAY(1));
	END(&a, &e, 0);

	/* What another context of the process has seen counts as well. */
	ASSERT_EQ(0, to_gpu(self->gpu, self->p, 3 * page_size(), 1));
	ASSERT_EQ(0, hm_untrack(FD, self->p, SIZE));
	ASSERT_EQ(0, hm_track(fd, self->p, SIZE));
	EXPECT_EQ(3, refresh(fd, self->p));
	EXPECT_EQ(NO, MAY(6));
	EXPECT_EQ(YES, MAY(5));
	EXPECT_EQ(0, other_process(self->loc, self->p));
	/* Two that track it see the same pages, not twice as many. */
	ASSERT_EQ(0, hm_track(FD, self->p, SIZE));
	EXPECT_EQ(3, refresh(FD, self->p));
	EXPECT_EQ(NO, MAY(6));
	EXPECT_EQ(YES, MAY(5));
	ASSERT_EQ(0, hm_untrack(FD, self->p, SIZE));
	EXPECT_EQ(YES, MAY(5));
	/* Until it closes. */
	close(fd);
	EXPECT_EQ(YES, MAY(8));
}

/* The limit belongs to the UUID, not to the location. */
TEST_F(limit, of_the_uuid)
{
	const uint32_t elsewhere = FOREIGN(HETMEM_SEVERAL - 1);
	struct hetmem_event e;
	struct asker a;

	ASSERT_EQ(0, hm_bind(FD, self->loc, HETMEM_BIND_EXECUTOR, other_uuid));
	ASSERT_EQ(0, SET(8));
	EXPECT_EQ(-ENOTUNIQ, MAY(1));
	EXPECT_EQ(NO, hm_hint_uuid(self->fd, self->p, SIZE, self->loc, uuid, 1,
				   NULL));
	EXPECT_EQ(YES, hm_hint_uuid(self->fd, self->p, SIZE, self->loc,
				    other_uuid, 1, NULL));
	ring_drain(&self->r);
	/* Hints that wait for the shared pool count for both devices. */
	ASSERT_EQ(0, asker_start(&a, self->fd, self->p, 5 * page_size(),
				 self->loc, other_uuid));
	ASSERT_TRUE(ring_wait(&self->r, &e, FOREVER_MS));
	EXPECT_EQ(NO, hm_hint_uuid(self->fd, self->p, 4 * page_size(), self->loc,
				   uuid, 1, NULL));
	EXPECT_EQ(YES, hm_hint_uuid(self->fd, self->p, 3 * page_size(),
				    self->loc, uuid, 1, NULL));
	END(&a, &e, 0);
	/* Bound elsewhere it takes its limit along; what is here does not count. */
	ASSERT_EQ(0, to_gpu(self->gpu, self->p, 8 * page_size(), 1));
	EXPECT_EQ(8, refresh(FD, self->p));
	ASSERT_EQ(0, hm_bind(FD, elsewhere, HETMEM_BIND_EXECUTOR, uuid));
	EXPECT_EQ(YES, MAY(PAGES));
	EXPECT_EQ(YES, hm_hint(self->fd, self->p, 8 * page_size(), elsewhere, 1,
			       NULL));
	EXPECT_EQ(NO, hm_hint(self->fd, self->p, 9 * page_size(), elsewhere, 1,
			      NULL));
	ASSERT_EQ(0, set_limit(UUID, -1));
	ASSERT_EQ(0, set_limit(OTHER, 0));
	EXPECT_EQ(NO, MAY(1));
	EXPECT_EQ(YES, hm_hint(self->fd, self->p, 9 * page_size(), elsewhere, 1,
			       NULL));
}

TEST_F(limit, traced)
{
	if (!trace_possible())
		SKIP(return, "kernel lacks tracefs");
	ASSERT_EQ(0, SET(8));
	ASSERT_EQ(0, trace_start());
	EXPECT_EQ(NO, MAY(9));
	trace_stop();
	EXPECT_TRACED(1, "hetmem_limit_hit", "limit=foreign/limits value=%zu\n",
		      8 * page_size());
	EXPECT_EQ(0, trace_count("hetmem_hint", ""));
}

TEST_HARNESS_MAIN
