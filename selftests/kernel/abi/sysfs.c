// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * /sys/class/misc/hetmem/: which files there are, what they take and refuse,
 * and that max_hints holds for whom it should. The other caps: quota.c.
 */
#include "libktest/harness.h"
#include "libktest/ring.h"
#include "libktest/sysfs.h"

#define SIZE	(16 * page_size())

static const struct setting {
	const char *name;
	long min, max, usual;
} settings[] = {
	{ "caps/user_kb", 0, UINT32_MAX, 64 * KiB },
	{ "caps/total_kb", 0, UINT32_MAX, 256 * KiB },
	{ "caps/max_hints", 1, 1024, 64 },
	{ "thrash/count", 2, 1000000, 8 },
	{ "thrash/window_ms", 1, 3600000, 1000 },
};

static const char *const statistics[] = {
	"bytes", "callbacks", "contexts", "decodes", "events", "events_dropped",
	"hints", "moving", "pages_failed", "pages_to_device", "pages_to_host",
	"ranges", "thrashed",
};

static const unsigned char uuid[16] = { 1 };

FIXTURE(sysfs)
{
	long was[ARRAY_SIZE(settings)];
	char *p;
};

FIXTURE_SETUP(sysfs)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(settings); i++) {
		self->was[i] = sysfs_read(settings[i].name);
		ASSERT_LE(settings[i].min, self->was[i]);
	}
	self->p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		       MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, self->p);
	/* Its notifications are counted too. */
	ASSERT_EQ(0, no_numa_balancing(self->p, SIZE));
}

FIXTURE_TEARDOWN(sysfs)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(settings); i++)
		EXPECT_EQ(0, sysfs_set(settings[i].name, self->was[i]));
	munmap(self->p, SIZE);
}

TEST_F(sysfs, usual_values)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(settings); i++)
		EXPECT_EQ(settings[i].usual, self->was[i]) {
			TH_LOG("setting %u", i);
		}
}

/* Everything that is there is documented, and the other way round. */
TEST_F(sysfs, as_documented)
{
	EXPECT_EQ(0, abi_compare(false));
}

TEST_F(sysfs, bounds)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(settings); i++) {
		const struct setting *s = &settings[i];

		EXPECT_EQ(0, sysfs_set(s->name, s->min));
		EXPECT_EQ(s->min, sysfs_read(s->name));
		EXPECT_EQ(-ERANGE, sysfs_set(s->name, s->max + 1));
		if (s->min)
			EXPECT_EQ(-ERANGE, sysfs_set(s->name, s->min - 1));
		EXPECT_EQ(-ERANGE, sysfs_set(s->name, 1L << 32));
		EXPECT_EQ(-ERANGE, sysfs_set(s->name, (1L << 32) + s->min));
		EXPECT_EQ(-EINVAL, sysfs_set(s->name, -1));
		EXPECT_EQ(-EINVAL, sysfs_write(s->name, "\n"));
		EXPECT_EQ(-EINVAL, sysfs_write(s->name, "many"));
		EXPECT_EQ(-EINVAL, sysfs_write(s->name, "20 20"));
		EXPECT_EQ(-EINVAL, sysfs_write(s->name, "20M"));
		EXPECT_EQ(s->min, sysfs_read(s->name)) {
			TH_LOG("setting %u", i);
		}
		EXPECT_EQ(0, sysfs_set(s->name, s->max));
		EXPECT_EQ(s->max, sysfs_read(s->name));
		EXPECT_EQ(0, sysfs_write(s->name, "0x20\n"));
		EXPECT_EQ(32, sysfs_read(s->name));
	}
}

TEST_F(sysfs, for_root_only)
{
	pid_t pid = fork();
	unsigned int i;
	char name[64];

	ASSERT_LE(0, pid);
	if (!pid) {
		CHILD_CHECK(!become_nobody());
		for (i = 0; i < ARRAY_SIZE(settings); i++) {
			CHILD_CHECK(sysfs_read(settings[i].name) ==
				    self->was[i]);
			CHILD_CHECK(sysfs_set(settings[i].name,
					      self->was[i]) == -EACCES);
		}
		for (i = 0; i < ARRAY_SIZE(statistics); i++) {
			snprintf(name, sizeof(name), "stats/%s",
				 statistics[i]);
			CHILD_CHECK(sysfs_read(name) >= 0);
			CHILD_CHECK(sysfs_set(name, 0) == -EACCES);
		}
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
	/* Statistics are not even root's to write. */
	for (i = 0; i < ARRAY_SIZE(statistics); i++) {
		snprintf(name, sizeof(name), "stats/%s", statistics[i]);
		EXPECT_EQ(-EACCES, sysfs_set(name, 0));
	}
}

TEST_F(sysfs, statistics)
{
	long contexts = sysfs_read("stats/contexts");
	long ranges = sysfs_read("stats/ranges");
	long callbacks = sysfs_read("stats/callbacks");
	long events = sysfs_read("stats/events");
	long dropped = sysfs_read("stats/events_dropped");
	long hints = sysfs_read("stats/hints");
	struct ring r;
	int fd = hm_open(), i;

	ASSERT_LE(0, fd);
	EXPECT_EQ(contexts + 1, sysfs_read("stats/contexts"));
	fill(self->p, SIZE, 1);
	ASSERT_EQ(0, hm_track(fd, self->p, SIZE / 2));
	ASSERT_EQ(0, hm_track(fd, self->p + SIZE / 2, SIZE / 2));
	EXPECT_EQ(ranges + 2, sysfs_read("stats/ranges"));
	ASSERT_EQ(0, ring_open(fd, 16, EVENT(INVALIDATED) | EVENT(HINT), &r));
	ASSERT_EQ(0, madvise(self->p, SIZE, MADV_DONTNEED));
	EXPECT_LT(callbacks, sysfs_read("stats/callbacks"));
	/* One for each range. */
	EXPECT_EQ(events + 2, sysfs_read("stats/events"));
	for (i = 0; i < 10; i++) {
		fill(self->p, SIZE, 1);
		ASSERT_EQ(0, madvise(self->p, SIZE, MADV_DONTNEED));
	}
	EXPECT_EQ(events + 16, sysfs_read("stats/events"));
	EXPECT_EQ(dropped + 6, sysfs_read("stats/events_dropped"));
	EXPECT_EQ(6, r.h->dropped[HETMEM_EVENT_INVALIDATED]);
	ring_count(&r, 0, NULL);
	ASSERT_EQ(0, hm_bind(fd, FOREIGN(0), HETMEM_BIND_EXECUTOR, uuid));
	EXPECT_EQ(-ETIMEDOUT, hm_hint(fd, self->p, SIZE, FOREIGN(0), 1, NULL));
	EXPECT_EQ(hints + 1, sysfs_read("stats/hints"));
	ASSERT_EQ(0, hm_untrack(fd, self->p, SIZE / 2));
	EXPECT_EQ(ranges + 1, sysfs_read("stats/ranges"));
	ring_close(&r);
	close(fd);
	EXPECT_EQ(ranges, sysfs_read("stats/ranges"));
	EXPECT_EQ(contexts, sysfs_read("stats/contexts"));
}

/* One process that asks @executor once for all, and waits. */
static pid_t asker(uid_t uid, const char *p, const struct ring *executor)
{
	pid_t pid = fork();

	if (!pid) {
		CHILD_CHECK(!setresuid(uid, uid, uid));
		hm_hint(executor->fd, p, SIZE, FOREIGN(0), FOREVER_MS, NULL);
		_exit(0);
	}
	return pid;
}

/* Whether one more of this user's is refused at once, and not told of. */
static bool refused(uid_t uid, const char *p, struct ring *executor)
{
	pid_t pid = fork();

	if (!pid) {
		CHILD_CHECK(!setresuid(uid, uid, uid));
		CHILD_CHECK(hm_hint(executor->fd, p, SIZE, FOREIGN(0),
				    FOREVER_MS, NULL) == -EAGAIN);
		_exit(0);
	}
	return !child_status(pid) &&
	       !ring_count(executor, HETMEM_EVENT_HINT, NULL);
}

/* Of one user at one executor: nobody can keep others from asking. */
TEST_F(sysfs, max_hints)
{
	static const uid_t users[] = { 0, 1001, 1002 };
	struct hetmem_event e[ARRAY_SIZE(users)][3];
	pid_t pid[ARRAY_SIZE(users)][3], one_more;
	struct hetmem_event again;
	struct ring r;
	size_t u, i;

	ASSERT_EQ(0, geteuid());
	ASSERT_EQ(0, sysfs_set("caps/max_hints", 3));
	r.fd = hm_open();
	ASSERT_LE(0, r.fd);
	ASSERT_EQ(0, ring_open(r.fd, 64, EVENT(HINT), &r));
	ASSERT_EQ(0, hm_bind(r.fd, FOREIGN(0), HETMEM_BIND_EXECUTOR, uuid));
	ASSERT_EQ(0, hm_allow(r.fd, HETMEM_ALLOW_HINTS));
	for (u = 0; u < ARRAY_SIZE(users); u++) {
		for (i = 0; i < 3; i++) {
			pid[u][i] = asker(users[u], self->p, &r);
			ASSERT_LT(0, pid[u][i]);
			ASSERT_TRUE(ring_wait(&r, &e[u][i], FOREVER_MS));
		}
		/* Whichever of its processes asks. */
		EXPECT_TRUE(refused(users[u], self->p, &r));
	}
	/* One that is answered makes room for one of the same user's. */
	EXPECT_EQ(0, hm_complete(r.fd, e[1][2].data, 0, 0));
	EXPECT_EQ(0, child_status(pid[1][2]));
	EXPECT_TRUE(refused(users[2], self->p, &r));
	one_more = asker(users[1], self->p, &r);
	ASSERT_TRUE(ring_wait(&r, &again, FOREVER_MS));
	EXPECT_TRUE(refused(users[1], self->p, &r));
	EXPECT_EQ(0, hm_complete(r.fd, again.data, 0, 0));
	EXPECT_EQ(0, child_status(one_more));
	for (u = 0; u < ARRAY_SIZE(users); u++) {
		for (i = 0; i < 3; i++) {
			if (u == 1 && i == 2)
				continue;
			EXPECT_EQ(0, hm_complete(r.fd, e[u][i].data, 0, 0));
			EXPECT_EQ(0, child_status(pid[u][i]));
		}
	}
	ring_close(&r);
	close(r.fd);
}

TEST_HARNESS_MAIN
