// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * /sys/class/misc/hetmem/: which files there are, what they take and refuse,
 * and that each cap holds for whom it should. Devices: emu_sysfs.c.
 */
#include "hetmem_abi.h"
#include "hetmem_hint_test.h"

#define SIZE	(16 * page_size())

static const struct setting {
	const char *name;
	long min, max, usual;
} settings[] = {
	{ "caps/max_contexts", 1, 65536, 64 },
	{ "caps/max_ranges", 1, 1 << 22, 131072 },
	{ "caps/max_blocks", 1, 1 << 26, 1048576 },
	{ "caps/max_ring_entries", HETMEM_RING_MIN, HETMEM_RING_MAX,
	  HETMEM_RING_MAX },
	{ "caps/max_hints", 1, 65536, 256 },
	{ "caps/max_pins", 1, 1 << 20, 16384 },
	{ "thrash/count", 2, 1000000, 8 },
	{ "thrash/window_ms", 1, 3600000, 1000 },
};

static const char *const statistics[] = {
	"callbacks", "contexts", "decodes", "events", "events_dropped", "hints",
	"pages_failed", "pages_to_device", "pages_to_host", "ranges",
	"thrashed",
};

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
	ASSERT_EQ(0, ring_make(&r, fd, 16, EVENT(INVALIDATED) | EVENT(HINT)));
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
	EXPECT_EQ(6, r.header->dropped[HETMEM_EVENT_INVALIDATED]);
	ring_count(&r, 0, NULL);
	ASSERT_EQ(0, hm_bind(fd, GPU(0), HETMEM_BIND_EXECUTOR, NULL));
	EXPECT_EQ(-ETIMEDOUT, hm_hint(fd, self->p, SIZE, GPU(0), 1, -1, NULL));
	EXPECT_EQ(hints + 1, sysfs_read("stats/hints"));
	ASSERT_EQ(0, hm_untrack(fd, self->p, SIZE / 2));
	EXPECT_EQ(ranges + 1, sysfs_read("stats/ranges"));
	munmap(r.header, r.size);
	close(fd);
	EXPECT_EQ(ranges, sysfs_read("stats/ranges"));
	EXPECT_EQ(contexts, sysfs_read("stats/contexts"));
}

/* Of one user, root's own included, but for who may have all resources. */
TEST_F(sysfs, max_contexts)
{
	int fd[4], i;
	pid_t pid;

	ASSERT_EQ(0, sysfs_set("caps/max_contexts", 2));
	for (i = 0; i < 4; i++) {
		fd[i] = hm_open();
		EXPECT_LE(0, fd[i]);
	}
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		int own[3];

		/* Root's contexts are not counted against us. */
		CHILD_CHECK(!become_nobody());
		for (i = 0; i < 2; i++) {
			own[i] = hm_open();
			CHILD_CHECK(own[i] >= 0);
		}
		CHILD_CHECK(hm_open() == -EDQUOT);
		close(own[0]);
		own[0] = hm_open();
		CHILD_CHECK(own[0] >= 0);
		CHILD_CHECK(hm_open() == -EDQUOT);
		/* In another process too. */
		pid = fork();
		if (!pid) {
			CHILD_CHECK(hm_open() == -EDQUOT);
			_exit(0);
		}
		CHILD_CHECK(!child_status(pid));
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
	for (i = 0; i < 4; i++)
		close(fd[i]);
}

TEST_F(sysfs, max_ranges)
{
	struct hetmem_cmd_info info;
	int fd = hm_open(), i;

	ASSERT_LE(0, fd);
	ASSERT_EQ(0, sysfs_set("caps/max_ranges", 3));
	ASSERT_EQ(0, hm_info(fd, &info));
	EXPECT_EQ(3, info.max_ranges);
	for (i = 0; i < 3; i++)
		ASSERT_EQ(0, hm_track(fd, self->p + i * page_size(),
				      page_size()));
	EXPECT_EQ(-ENOSPC, hm_track(fd, self->p + 3 * page_size(),
				    page_size()));
	EXPECT_EQ(-EEXIST, hm_track(fd, self->p, page_size()));
	/* What is there stays. */
	ASSERT_EQ(0, sysfs_set("caps/max_ranges", 1));
	ASSERT_EQ(0, hm_info(fd, &info));
	EXPECT_EQ(3, info.nr_ranges);
	for (i = 0; i < 3; i++) {
		EXPECT_EQ(-ENOSPC, hm_track(fd, self->p + 3 * page_size(),
					    page_size()));
		EXPECT_EQ(0, hm_untrack(fd, self->p + i * page_size(),
					page_size()));
	}
	EXPECT_EQ(0, hm_track(fd, self->p + 3 * page_size(), page_size()));
	close(fd);
}

TEST_F(sysfs, max_blocks)
{
	char *p = (void *)(64UL << 30);
	int fd = hm_open();

	ASSERT_LE(0, fd);
	ASSERT_EQ(0, sysfs_set("caps/max_blocks", 10));
	EXPECT_EQ(-ENOSPC, hm_track(fd, p, 11 * HUGE_SIZE));
	EXPECT_EQ(0, hm_track(fd, p, 10 * HUGE_SIZE));
	EXPECT_EQ(-ENOSPC, hm_track(fd, p + 20 * HUGE_SIZE, page_size()));
	EXPECT_EQ(0, hm_untrack(fd, p, 10 * HUGE_SIZE));
	/* A block that is only touched is one. */
	EXPECT_EQ(-ENOSPC, hm_track(fd, p + page_size(), 10 * HUGE_SIZE));
	EXPECT_EQ(0, hm_track(fd, p + page_size(), 9 * HUGE_SIZE));
	EXPECT_EQ(-ENOSPC, hm_track(fd, p + 20 * HUGE_SIZE, page_size()));
	close(fd);
}

TEST_F(sysfs, max_ring_entries)
{
	int fd = hm_open();
	struct ring r;

	ASSERT_LE(0, fd);
	ASSERT_EQ(0, sysfs_set("caps/max_ring_entries", 32));
	EXPECT_EQ(-EDQUOT, ring_make(&r, fd, 64, EVENT(HINT)));
	EXPECT_EQ(-EINVAL, ring_make(&r, fd, 33, EVENT(HINT)));
	EXPECT_EQ(0, ring_make(&r, fd, 32, EVENT(HINT)));
	munmap(r.header, r.size);
	close(fd);
}

TEST_F(sysfs, max_hints)
{
	struct hetmem_cmd_hint cmd;
	struct hetmem_event e;
	struct ring r;
	int i;

	ASSERT_EQ(0, sysfs_set("caps/max_hints", 4));
	ASSERT_LE(0, executor_open(&r, GPU(0), 64));
	for (i = 0; i < 4; i++)
		ASSERT_EQ(0, hm_hint(r.fd, self->p, SIZE, GPU(0), FOREVER_MS,
				     r.fd, &cmd));
	EXPECT_EQ(-EAGAIN, hm_hint(r.fd, self->p, SIZE, GPU(0), FOREVER_MS,
				   r.fd, NULL));
	/* It was not told either. */
	EXPECT_EQ(4, ring_count(&r, HETMEM_EVENT_HINT, &e));
	EXPECT_EQ(cmd.id, e.data);
	EXPECT_EQ(0, hm_complete(r.fd, cmd.id, 0, 0));
	EXPECT_EQ(0, hm_hint(r.fd, self->p, SIZE, GPU(0), FOREVER_MS, r.fd,
			     NULL));
	munmap(r.header, r.size);
	close(r.fd);
}

/* Hints of a process of user @uid, which ends, that @executor is told of. */
static unsigned int hints_of(uid_t uid, const char *p, struct ring *executor)
{
	struct ring r = { .fd = -1 };
	pid_t pid = fork();
	int ret;

	if (!pid) {
		CHILD_CHECK(!setresuid(uid, uid, uid));
		r.fd = hm_open();
		CHILD_CHECK(r.fd >= 0);
		CHILD_CHECK(!ring_make(&r, r.fd, 64, EVENT(COMPLETED)));
		do {
			ret = hm_hint(executor->fd, p, SIZE, GPU(0),
				      FOREVER_MS, r.fd, NULL);
		} while (!ret);
		CHILD_CHECK(ret == -EAGAIN);
		_exit(0);
	}
	if (pid < 0 || child_status(pid))
		return -1;
	return ring_count(executor, HETMEM_EVENT_HINT, NULL);
}

/* Nobody can keep others from asking, and all of them not its own user. */
TEST_F(sysfs, max_hints_of_a_user)
{
	struct ring r;

	if (geteuid())
		SKIP(return, "needs root");
	ASSERT_EQ(0, sysfs_set("caps/max_hints", 16));
	ASSERT_LE(0, executor_open(&r, GPU(0), 64));
	ASSERT_EQ(0, hm_set_attr(r.fd, NULL, HETMEM_ATTR_ALLOW_HINTS, 1));
	EXPECT_EQ(4U, hints_of(1001, self->p, &r));
	/* Whichever of its processes asks. */
	EXPECT_EQ(0U, hints_of(1001, self->p, &r));
	EXPECT_EQ(2U, hints_of(1002, self->p, &r));
	EXPECT_EQ(1U, hints_of(1003, self->p, &r));
	EXPECT_EQ(0U, hints_of(1002, self->p, &r));
	EXPECT_EQ(9U, hints_of(0, self->p, &r));
	EXPECT_EQ(0U, hints_of(0, self->p, &r));
	munmap(r.header, r.size);
	close(r.fd);
}

/* Pins, not pages: each hole begins a new one. */
TEST_F(sysfs, max_pins)
{
	struct hetmem_cmd_migrate cmd;
	long before = vm_pin();
	int fd = hm_open(), i;

	ASSERT_LE(0, fd);
	fill(self->p, SIZE, 1);
	for (i = 1; i < 16; i += 2)
		ASSERT_EQ(0, madvise(self->p + i * page_size(), page_size(),
				     MADV_DONTNEED));
	ASSERT_EQ(0, sysfs_set("caps/max_pins", 3));
	EXPECT_EQ(-EDQUOT, hm_pin(fd, self->p, SIZE, FOREVER_MS, 0, &cmd));
	EXPECT_EQ(3, cmd.pinned);
	EXPECT_EQ(3, vm_pin() - before);
	EXPECT_EQ(-EDQUOT, hm_pin(fd, self->p, SIZE, FOREVER_MS, 0, &cmd));
	EXPECT_EQ(0, cmd.pinned);
	EXPECT_EQ(3, vm_pin() - before);
	/* One that ends makes room for another, however long. */
	ASSERT_EQ(0, madvise(self->p + 2 * page_size(), page_size(),
			     MADV_DONTNEED));
	ASSERT_EQ(0, munmap(self->p + 4 * page_size(), page_size()));
	EXPECT_TRUE(EVENTUALLY(vm_pin() - before == 2));
	fill(self->p + 6 * page_size(), 10 * page_size(), 1);
	EXPECT_EQ(0, hm_pin(fd, self->p + 6 * page_size(), 10 * page_size(),
			    FOREVER_MS, 0, &cmd));
	EXPECT_EQ(10, cmd.pinned);
	EXPECT_EQ(-EDQUOT, hm_pin(fd, self->p, page_size(), FOREVER_MS, 0,
				  &cmd));
	close(fd);
	EXPECT_EQ(before, vm_pin());
}

TEST_HARNESS_MAIN
