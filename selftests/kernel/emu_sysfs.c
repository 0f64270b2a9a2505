// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * /sys/class/misc/hetmem/devices/N/: what is shown of a device, its limit and
 * how the device keeps it; and preferred locations, the other thing that a
 * device's driver is told.
 */
#include "hetmem_emu_test.h"
#include "hetmem_modules.h"
#include "hetmem_trace.h"

FIXTURE(limit)
{
	struct rig rig;
	struct emu *dev;
	int hm;
	char used[64], limit[64], capacity[64], name[64];
};

FIXTURE_SETUP(limit)
{
	unsigned int id;

	ASSERT_EQ(0, rig_init(&self->rig));
	self->dev = &self->rig.dev[0];
	self->hm = self->rig.fd;
	id = HETMEM_LOC_INDEX(self->dev->loc);
	snprintf(self->used, 64, "devices/%u/used", id);
	snprintf(self->limit, 64, "devices/%u/limit", id);
	snprintf(self->capacity, 64, "devices/%u/capacity", id);
	snprintf(self->name, 64, "devices/%u/name", id);
	ASSERT_LE(8 * MiB, self->dev->capacity);
}

FIXTURE_TEARDOWN(limit)
{
	EXPECT_EQ(0, sysfs_set(self->limit, self->dev->capacity));
	EXPECT_EQ(0, rig_exit(&self->rig));
}

#define NR(size)	((long)((size) / page_size()))
#define USED		sysfs_read(self->used)
#define ON_DEVICE(p, s)	pages_at(self->hm, p, s, self->dev->loc)

TEST_F(limit, files)
{
	char name[64] = "", path[128];
	char *p = map_filled(MiB, 1);
	FILE *f;

	snprintf(path, sizeof(path), SYSFS "%s", self->name);
	f = fopen(path, "r");
	ASSERT_NE(NULL, f);
	ASSERT_NE(NULL, fgets(name, sizeof(name), f));
	fclose(f);
	EXPECT_STREQ("hetmem_emu0\n", name);
	EXPECT_EQ(self->dev->capacity, (size_t)sysfs_read(self->capacity));
	EXPECT_EQ(self->dev->capacity, (size_t)sysfs_read(self->limit));
	EXPECT_EQ(0, USED);
	ASSERT_EQ(NR(MiB), to_device(self->hm, self->dev, p, MiB));
	EXPECT_EQ((long)MiB, USED);
	munmap(p, MiB);
	EXPECT_TRUE(EVENTUALLY(!USED));
	EXPECT_EQ(-EACCES, sysfs_set(self->used, 0));
	EXPECT_EQ(-EACCES, sysfs_set(self->capacity, 1));
	EXPECT_EQ(-EACCES, sysfs_write(self->name, "gpu"));
}

/* Of all processes, with a context or without. */
TEST_F(limit, statistics)
{
	long to_device_before = sysfs_read("stats/pages_to_device");
	long to_host_before = sysfs_read("stats/pages_to_host");
	char *p = map_filled(MiB, 1);
	struct hetmem_cmd_migrate cmd;
	long failed;

	ASSERT_NE(NULL, p);
	ASSERT_EQ(NR(MiB), to_device(self->hm, self->dev, p, MiB));
	EXPECT_EQ(NR(MiB), sysfs_read("stats/pages_to_device") -
		  to_device_before);
	EXPECT_EQ(0, sysfs_read("stats/pages_to_host") - to_host_before);
	EXPECT_EQ(-1, mismatch(p, MiB, 1));
	EXPECT_EQ(NR(MiB), sysfs_read("stats/pages_to_host") - to_host_before);
	ASSERT_EQ(0, hm_pin(self->hm, p, MiB, FOREVER_MS, 0, &cmd));
	failed = sysfs_read("stats/pages_failed");
	ASSERT_EQ(0, hm_migrate(self->hm, p, MiB, self->dev->loc, &cmd));
	EXPECT_EQ(NR(MiB), sysfs_read("stats/pages_failed") - failed);
	munmap(p, MiB);
}

TEST_F(limit, wrong_values)
{
	const long cap = self->dev->capacity;
	pid_t pid;

	EXPECT_EQ(-ERANGE, sysfs_set(self->limit, cap + 1));
	EXPECT_EQ(-ERANGE, sysfs_write(self->limit, "18446744073709551616"));
	EXPECT_EQ(-EINVAL, sysfs_set(self->limit, -1));
	EXPECT_EQ(-EINVAL, sysfs_write(self->limit, "half"));
	EXPECT_EQ(-EINVAL, sysfs_write(self->limit, "1M"));
	EXPECT_EQ(cap, sysfs_read(self->limit));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		CHILD_CHECK(!become_nobody());
		CHILD_CHECK(sysfs_read(self->limit) == cap);
		CHILD_CHECK(sysfs_set(self->limit, cap) == -EACCES);
		_exit(0);
	}
	EXPECT_EQ(0, child_status(pid));
}

/* What is beyond goes home at once; what comes later pushes out the oldest. */
TEST_F(limit, lowered)
{
	char *p = map_filled(4 * MiB, 1);
	size_t at;

	ASSERT_NE(NULL, p);
	ASSERT_EQ(NR(4 * MiB), to_device(self->hm, self->dev, p, 4 * MiB));
	ASSERT_EQ(0, sysfs_set(self->limit, 3 * MiB));
	EXPECT_TRUE(EVENTUALLY(USED <= (long)(3 * MiB)));
	EXPECT_EQ(NR(3 * MiB), ON_DEVICE(p, 4 * MiB));
	/* Not a whole number of pages: rounded down. */
	ASSERT_EQ(0, sysfs_set(self->limit, MiB + 1));
	EXPECT_TRUE(EVENTUALLY(USED <= (long)MiB));
	EXPECT_EQ(NR(MiB), ON_DEVICE(p, 4 * MiB));

	for (at = 0; at < 4 * MiB; at += MiB / 2) {
		EXPECT_EQ(NR(MiB / 2), to_device(self->hm, self->dev, p + at,
						 MiB / 2));
		EXPECT_GE((long)MiB, USED);
	}
	EXPECT_EQ(NR(MiB), ON_DEVICE(p + 3 * MiB, MiB));
	/* The device's own faults keep it too. */
	ASSERT_EQ(0, emu_access(self->dev, HETMEM_EMU_ADD, HETMEM_EMU_MIGRATE,
				p, 2 * MiB, NULL, 5, NULL));
	EXPECT_GE((long)MiB, USED);
	ASSERT_EQ(0, emu_access(self->dev, HETMEM_EMU_ADD, HETMEM_EMU_MIGRATE,
				p, 2 * MiB, NULL, -5ULL, NULL));
	EXPECT_GE((long)MiB, USED);
	/* Raised, there is room again. */
	ASSERT_EQ(0, sysfs_set(self->limit, 4 * MiB));
	EXPECT_EQ(NR(4 * MiB), to_device(self->hm, self->dev, p, 4 * MiB));
	EXPECT_EQ((long)(4 * MiB), USED);
	EXPECT_EQ(-1, mismatch(p, 4 * MiB, 1));
	munmap(p, 4 * MiB);
}

/* One call for more than the limit moves what it may. */
TEST_F(limit, too_much_at_once)
{
	char *p = map_filled(2 * HUGE_SIZE, 1);
	struct hetmem_cmd_migrate cmd;

	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, sysfs_set(self->limit, 64 * page_size()));
	ASSERT_EQ(0, hm_migrate(self->hm, p, 256 * page_size(), self->dev->loc,
				&cmd));
	EXPECT_LE(1, (long)cmd.moved);
	EXPECT_GE(64, ON_DEVICE(p, 2 * HUGE_SIZE));
	EXPECT_GE((long)(64 * page_size()), USED);
	EXPECT_TRUE(cmd.why & HETMEM_WHY_NO_MEMORY);
	EXPECT_EQ(-1, mismatch(p, 2 * HUGE_SIZE, 1));
	munmap(p, 2 * HUGE_SIZE);
}

TEST_F(limit, nothing)
{
	char *p = map_filled(MiB, 1);
	struct hetmem_cmd_migrate cmd;

	ASSERT_NE(NULL, p);
	ASSERT_EQ(NR(MiB), to_device(self->hm, self->dev, p, MiB));
	ASSERT_EQ(0, sysfs_set(self->limit, 0));
	EXPECT_TRUE(EVENTUALLY(!USED));
	EXPECT_EQ(-EDQUOT, hm_migrate(self->hm, p, MiB, self->dev->loc, &cmd));
	EXPECT_EQ(0, cmd.moved);
	EXPECT_EQ(0, ON_DEVICE(p, MiB));
	EXPECT_EQ(-EBUSY, emu_access(self->dev, HETMEM_EMU_ADD,
				     HETMEM_EMU_MIGRATE, p, page_size(), NULL,
				     1, NULL));
	/* In place, as over a bus, it works on; to the host, too. */
	EXPECT_TRUE(emu_sees(self->dev, 0, p, MiB, 1));
	EXPECT_EQ(0, hm_migrate(self->hm, p, MiB, ANY_HOST, &cmd));
	/* The other device has a limit of its own. */
	EXPECT_EQ(NR(MiB), to_device(self->hm, &self->rig.dev[1], p, MiB));
	EXPECT_EQ(-1, mismatch(p, MiB, 1));
	munmap(p, MiB);
}

TEST_F(limit, traced)
{
	struct hetmem_cmd_migrate cmd;
	char *p;

	if (!trace_possible())
		SKIP(return, "kernel lacks tracefs");
	p = map_filled(MiB, 1);
	ASSERT_NE(NULL, p);
	ASSERT_EQ(0, sysfs_set(self->limit, page_size() - 1));
	ASSERT_EQ(0, trace_start());
	EXPECT_EQ(-EDQUOT, hm_migrate(self->hm, p, MiB, self->dev->loc, &cmd));
	trace_stop();
	EXPECT_TRACED(1, "hetmem_limit_hit", "limit=devices/limit value=%zu\n",
		      page_size() - 1);
	munmap(p, MiB);
}

/* Written all the time while pages come and go. */
TEST_F_TIMEOUT(limit, written_under_load, 120)
{
	char *p = map_filled(2 * MiB, 1);
	int i, rounds = test_rounds(100);
	pid_t pid;

	ASSERT_NE(NULL, p);
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (i = 0;; i++)
			sysfs_set(self->limit, i % 5 * MiB / 2);
	}
	for (i = 0; i < rounds; i++) {
		struct hetmem_cmd_migrate cmd;
		int ret = hm_migrate(self->hm, p, 2 * MiB, self->dev->loc,
				     &cmd);

		EXPECT_TRUE(!ret || ret == -EDQUOT || ret == -EBUSY);
	}
	kill(pid, SIGKILL);
	child_status(pid);
	EXPECT_EQ(0, sysfs_set(self->limit, MiB));
	EXPECT_TRUE(EVENTUALLY(USED <= (long)MiB));
	EXPECT_EQ(-1, mismatch(p, 2 * MiB, 1));
	munmap(p, 2 * MiB);
}

/* A device's fault leaves memory where its owner prefers it. */
TEST_F(limit, preferred)
{
	size_t part = 64 * page_size();
	char *p = map_filled(4 * part, 1);
	const struct emu *other = &self->rig.dev[1];
	int i;

	ASSERT_NE(NULL, p);
	for (i = 0; i < 4; i++)
		ASSERT_EQ(0, hm_track(self->hm, p + i * part, part));
	ASSERT_EQ(0, hm_set_attr(self->hm, p, HETMEM_ATTR_PREFERRED,
				 ANY_HOST));
	ASSERT_EQ(0, hm_set_attr(self->hm, p + part, HETMEM_ATTR_PREFERRED,
				 self->dev->loc));
	ASSERT_EQ(0, hm_set_attr(self->hm, p + 2 * part, HETMEM_ATTR_PREFERRED,
				 other->loc));
	ASSERT_EQ(0, emu_access(self->dev, HETMEM_EMU_ADD, HETMEM_EMU_MIGRATE,
				p, 4 * part, NULL, 3, NULL));
	EXPECT_EQ(0, ON_DEVICE(p, part));
	EXPECT_EQ(64, ON_DEVICE(p + part, part));
	EXPECT_EQ(0, ON_DEVICE(p + 2 * part, part));
	EXPECT_EQ(64, ON_DEVICE(p + 3 * part, part));
	ASSERT_EQ(0, emu_access(other, HETMEM_EMU_ADD, HETMEM_EMU_MIGRATE, p,
				4 * part, NULL, -3ULL, NULL));
	EXPECT_EQ(64, pages_at(self->hm, p + 2 * part, part, other->loc));
	EXPECT_EQ(0, pages_at(self->hm, p + part, part, other->loc));
	/* A preference is no order: who asks by MIGRATE gets it. */
	EXPECT_EQ(64, to_device(self->hm, self->dev, p, part));
	/* And what is there is used there. */
	EXPECT_TRUE(emu_sees(self->dev, HETMEM_EMU_MIGRATE, p, part, 1));
	EXPECT_EQ(64, ON_DEVICE(p, part));
	/* Half a piece: the border between two ranges. */
	ASSERT_EQ(0, hm_untrack(self->hm, p + 3 * part, part));
	ASSERT_EQ(0, hm_track(self->hm, p + 3 * part, page_size()));
	ASSERT_EQ(0, hm_set_attr(self->hm, p + 3 * part, HETMEM_ATTR_PREFERRED,
				 ANY_HOST));
	EXPECT_EQ(64, to_host(self->hm, p + 3 * part, part));
	EXPECT_TRUE(emu_sees_at(self->dev, HETMEM_EMU_MIGRATE, p + 3 * part,
				part, 1, 3 * part));
	EXPECT_EQ(0, ON_DEVICE(p + 3 * part, page_size()));
	EXPECT_EQ(63, ON_DEVICE(p + 3 * part, part));
	EXPECT_EQ(-1, mismatch(p, 4 * part, 1));
	munmap(p, 4 * part);
}

/* Its files go with it, also the ones that somebody has open. */
TEST(unloaded)
{
	struct module emu = { "hetmem_emu" };
	int fd, i, rounds;
	pid_t pid;
	char c;

	module_params(&emu);
	fd = open(SYSFS "devices/0/limit", O_RDWR | O_CLOEXEC);
	ASSERT_LE(0, fd);
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (i = 0;; i++) {
			sysfs_read("devices/0/used");
			sysfs_set("devices/0/limit", i % 3 * MiB);
		}
	}
	rounds = test_rounds(16);
	for (i = 0; i < rounds; i++) {
		ASSERT_EQ(0, module_unload("hetmem_emu"));
		EXPECT_NE(0, access(SYSFS "devices/0", F_OK));
		EXPECT_EQ(-1, pread(fd, &c, 1, 0));
		EXPECT_EQ(ENODEV, errno);
		ASSERT_EQ(0, module_load(&emu));
		EXPECT_EQ(0, access(SYSFS "devices/0", F_OK));
	}
	kill(pid, SIGKILL);
	child_status(pid);
	close(fd);
	EXPECT_EQ(0, sysfs_set("devices/0/limit",
			       sysfs_read("devices/0/capacity")));
}

TEST_HARNESS_MAIN
