// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * foreign/GPU-UUID: how much hints may ask for of another driver's device. It bounds hints and nothing else: the device's driver moves what it
 * likes. test_hmm plays the GPU.
 */
#include "libktest/harness.h"
#include "libktest/asker.h"
#include "libktest/hmm.h"
#include "libktest/sysfs.h"
#include "libktest/trace.h"

#include <dirent.h>
#include <pthread.h>

#define PAGES	32
#define SIZE	(PAGES * page_size())
#define ADD	"foreign/add"
#define REMOVE	"foreign/remove"
#define FILES	"foreign/GPU-"
#define MAX_LIMITS 64

static const uint8_t uuid[16] = {
	0x8f, 0x6a, 0xef, 0x44, 0x1a, 0x5d, 0x19, 0x78,
	0x3d, 0x98, 0x5c, 0xc4, 0xd0, 0xfa, 0x04, 0x46,
};

#define UUID	"8f6aef44-1a5d-1978-3d98-5cc4d0fa0446"

static const uint8_t other_uuid[16] = { 0x01, [15] = 0xfe };

#define OTHER	"01000000-0000-0000-0000-0000000000fe"

/* Sets the limit of @name, a UUID, and makes its file if need be; -1: removes it. */
static int set_limit(const char *name, long bytes)
{
	char file[64];
	int ret;

	if (bytes < 0) {
		ret = sysfs_write(REMOVE, name);
		return ret == -ENOENT ? 0 : ret;
	}
	ret = sysfs_write(ADD, name);
	if (ret && ret != -EEXIST)
		return ret;
	snprintf(file, sizeof(file), FILES "%s", name);
	return sysfs_set(file, bytes);
}

/* What the file of @name has; -1: "max", -2: there is none. */
static long get_limit(const char *name)
{
	char path[96], text[32];
	long bytes = -1;
	FILE *f;

	snprintf(path, sizeof(path), SYSFS FILES "%s", name);
	f = fopen(path, "r");
	if (!f)
		return -2;
	if (fscanf(f, "%31s", text) == 1 && strcmp(text, "max"))
		bytes = atol(text);
	fclose(f);
	return bytes;
}

static int nr_files(void)
{
	DIR *d = opendir(SYSFS "foreign");
	struct dirent *e;
	int nr = 0;

	while (d && (e = readdir(d)))
		nr += !strncmp(e->d_name, "GPU-", 4);
	if (d)
		closedir(d);
	return nr;
}

/* What names no device. */
static const char *const no_uuid[] = {
	"", "\n", " ", "GPU-", UUID " ", UUID " 1", " " UUID, UUID "1",
	"GPU-GPU-" UUID, "gpu-" UUID, "MIG-" UUID, "8f6aef441a5d19783d985cc4d0fa0446",
	"8f6aef44-1a5d-1978-3d98-5cc4d0fa044g", "8f6aef44-1a5d-1978-3d98-5cc4d0fa044",
	"00000000-0000-0000-0000-000000000000", "max", "12345", "../add", UUID "/x",
};

TEST(files)
{
	unsigned int i;

	ASSERT_EQ(0, nr_files());
	for (i = 0; i < ARRAY_SIZE(no_uuid); i++) {
		/* write(2) of nothing does not come to the module. */
		EXPECT_EQ(*no_uuid[i] ? -EINVAL : 0, sysfs_write(ADD, no_uuid[i])) {
			TH_LOG("'%s'", no_uuid[i]);
		}
		EXPECT_EQ(*no_uuid[i] ? -EINVAL : 0, sysfs_write(REMOVE, no_uuid[i]));
	}
	EXPECT_EQ(-ENOENT, sysfs_write(REMOVE, UUID));
	EXPECT_EQ(0, nr_files());
	/* Both forms, in both cases, with a line end or without. */
	EXPECT_EQ(0, sysfs_write(ADD, "GPU-" UUID "\n"));
	EXPECT_EQ(-1, get_limit(UUID));
	EXPECT_EQ(-EEXIST, sysfs_write(ADD, "8F6AEF44-1A5D-1978-3D98-5CC4D0FA0446"));
	EXPECT_EQ(0, sysfs_write(ADD, OTHER));
	EXPECT_EQ(2, nr_files());
	EXPECT_EQ(0, sysfs_write(REMOVE, "8F6AEF44-1A5D-1978-3D98-5CC4D0FA0446\n"));
	EXPECT_EQ(-2, get_limit(UUID));
	EXPECT_EQ(-ENOENT, sysfs_write(REMOVE, UUID));
	EXPECT_EQ(0, sysfs_write(REMOVE, "GPU-" OTHER));
	EXPECT_EQ(0, nr_files());
}

/* One value a file. */
TEST(values)
{
	static const char *const wrong[] = {
		"\n", " ", "much", "-1", "1M", "1 2", "1\n2\n", "maximum", "max 1", UUID " 1",
	};
	unsigned int i;
	pid_t pid;

	ASSERT_EQ(0, set_limit(UUID, 12345));
	ASSERT_EQ(0, set_limit(OTHER, 77));
	for (i = 0; i < ARRAY_SIZE(wrong); i++) {
		EXPECT_EQ(-EINVAL, sysfs_write(FILES UUID, wrong[i])) {
			TH_LOG("'%s'", wrong[i]);
		}
	}
	EXPECT_EQ(-ERANGE, sysfs_write(FILES UUID, "18446744073709551616"));
	EXPECT_EQ(12345, get_limit(UUID));
	EXPECT_EQ(0, sysfs_write(FILES UUID, "0x10\n"));
	EXPECT_EQ(16, get_limit(UUID));
	EXPECT_EQ(0, sysfs_write(FILES UUID, "0"));
	EXPECT_EQ(0, get_limit(UUID));
	EXPECT_EQ(0, sysfs_write(FILES UUID, "max\n"));
	EXPECT_EQ(-1, get_limit(UUID));
	EXPECT_EQ(77, get_limit(OTHER));

	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		CHILD_CHECK(!become_nobody());
		CHILD_CHECK(get_limit(OTHER) == 77);
		CHILD_CHECK(sysfs_write(FILES OTHER, "1") == -EACCES);
		CHILD_CHECK(sysfs_write(ADD, UUID) == -EACCES);
		CHILD_CHECK(sysfs_write(REMOVE, OTHER) == -EACCES);
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(0, set_limit(UUID, -1));
	EXPECT_EQ(0, set_limit(OTHER, -1));
}

/* As many as there is room for; one that was removed makes room, and begins as a new one. */
TEST(many)
{
	unsigned int i;
	char name[40];

	for (i = 1; i <= MAX_LIMITS; i++) {
		snprintf(name, sizeof(name), "00000000-0000-0000-0000-%012x", i);
		EXPECT_EQ(0, set_limit(name, i));
	}
	EXPECT_EQ(-ENOSPC, sysfs_write(ADD, UUID));
	EXPECT_EQ(-EEXIST, sysfs_write(ADD, name));
	EXPECT_EQ(MAX_LIMITS, nr_files());
	EXPECT_EQ(0, set_limit("00000000-0000-0000-0000-000000000007", -1));
	EXPECT_EQ(0, sysfs_write(ADD, UUID));
	EXPECT_EQ(-1, get_limit(UUID));
	EXPECT_EQ(0, set_limit(UUID, -1));
	for (i = 1; i <= MAX_LIMITS; i++) {
		snprintf(name, sizeof(name), "00000000-0000-0000-0000-%012x", i);
		EXPECT_EQ(i == 7 ? -2 : (int)i, (int)get_limit(name));
		EXPECT_EQ(0, set_limit(name, -1));
	}
	EXPECT_EQ(0, nr_files());
}

static void *add_and_remove(void *arg)
{
	int *bad = arg, i;

	for (i = 0; i < test_rounds(300); i++) {
		const int ret = sysfs_write(i & 1 ? REMOVE : ADD, UUID);

		if (ret && ret != -EEXIST && ret != -ENOENT)
			*bad = ret;
	}
	return NULL;
}

/* Files come and go while they are read, written and removed by others. */
TEST(at_once)
{
	pthread_t threads[3];
	int bad[3] = { 0 }, i, ret;

	for (i = 0; i < 3; i++)
		ASSERT_EQ(0, pthread_create(&threads[i], NULL, add_and_remove, &bad[i]));
	for (i = 0; i < test_rounds(300); i++) {
		ret = sysfs_write(FILES UUID, "5");
		EXPECT_TRUE(!ret || ret == -ENOENT || ret == -ENODEV);
		EXPECT_NE(0, get_limit(UUID));
	}
	for (i = 0; i < 3; i++) {
		pthread_join(threads[i], NULL);
		EXPECT_EQ(0, bad[i]);
	}
	EXPECT_EQ(0, set_limit(UUID, -1));
	EXPECT_EQ(0, nr_files());
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
	EXPECT_TRACED(1, "hetmem_limit_hit", "limit=foreign/GPU-UUID value=%zu\n",
		      8 * page_size());
	EXPECT_EQ(0, trace_count("hetmem_hint", ""));
}

TEST_HARNESS_MAIN
