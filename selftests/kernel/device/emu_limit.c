// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * /sys/class/misc/hetmem/devices/N/: what is shown of a device, its limit and
 * how the device keeps it.
 */
#include "libktest/harness.h"
#include "libktest/emu.h"
#include "libktest/modules.h"
#include "libktest/ring.h"
#include "libktest/sysfs.h"
#include "libktest/trace.h"

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
	ASSERT_EQ(0, hm_pin(self->hm, p, MiB, FOREVER_MS, &cmd));
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
TEST_F(limit, written_under_load)
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

		EXPECT_TRUE(!ret || ret == -EDQUOT);
	}
	kill(pid, SIGKILL);
	child_status(pid);
	EXPECT_EQ(0, sysfs_set(self->limit, MiB));
	EXPECT_TRUE(EVENTUALLY(USED <= (long)MiB));
	EXPECT_EQ(-1, mismatch(p, 2 * MiB, 1));
	munmap(p, 2 * MiB);
}

/* The file @name of the first device, whose number is a new one each time. */
static int device_file(char *path, size_t size, const char *name)
{
	struct emu e;
	int ret = emu_open(&e, 0);

	if (ret)
		return ret;
	close(e.fd);
	snprintf(path, size, "devices/%u/%s", HETMEM_LOC_INDEX(e.loc), name);
	return 0;
}

static int open_limit(void)
{
	char name[64], path[128];
	int ret = device_file(name, sizeof(name), "limit");

	if (ret)
		return ret;
	snprintf(path, sizeof(path), SYSFS "%s", name);
	return open(path, O_RDWR | O_CLOEXEC);
}

/*
 * Reads and writes the files of whatever devices there are: of a range of
 * numbers, since opening a device would keep its module.
 */
static void use_files(unsigned int first)
{
	char name[64];
	unsigned int i, id;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (i = 0;; i++) {
		id = first + i % 64;
		snprintf(name, sizeof(name), "devices/%u/used", id);
		sysfs_read(name);
		snprintf(name, sizeof(name), "devices/%u/limit", id);
		sysfs_set(name, i % 3 * MiB);
	}
}

/* Its files go with it, also the ones that somebody has open. */
TEST(unloaded)
{
	struct module emu = { "hetmem_emu" };
	char first[64], path[128], name[64];
	unsigned int id;
	int fd, i, rounds;
	pid_t pid;
	char c;

	module_params(&emu);
	ASSERT_EQ(0, device_file(first, sizeof(first), "limit"));
	ASSERT_EQ(1, sscanf(first, "devices/%u", &id));
	snprintf(path, sizeof(path), SYSFS "devices/%u", id);
	fd = open_limit();
	ASSERT_LE(0, fd);
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid)
		use_files(id);
	rounds = test_rounds(16);
	for (i = 0; i < rounds; i++) {
		EXPECT_EQ(0, access(path, F_OK));
		ASSERT_EQ(0, module_unload("hetmem_emu"));
		EXPECT_NE(0, access(path, F_OK));
		EXPECT_EQ(-1, pread(fd, &c, 1, 0));
		EXPECT_EQ(ENODEV, errno);
		ASSERT_EQ(0, module_load(&emu));
		/* Whoever has the old number must not find the new device. */
		EXPECT_NE(0, access(path, F_OK));
		EXPECT_EQ(-1, pread(fd, &c, 1, 0));
		ASSERT_EQ(0, device_file(name, sizeof(name), "limit"));
		snprintf(path, sizeof(path), SYSFS "%s", name);
	}
	kill(pid, SIGKILL);
	child_status(pid);
	close(fd);
	/* Of both: the child has set whichever it met. */
	for (i = 0; i < 2; i++) {
		struct emu e;

		ASSERT_EQ(0, emu_open(&e, i));
		snprintf(name, sizeof(name), "devices/%u/limit",
			 HETMEM_LOC_INDEX(e.loc));
		EXPECT_EQ(0, sysfs_set(name, e.capacity));
		close(e.fd);
	}
}

TEST_HARNESS_MAIN
