// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The tracepoints: each one fires when it should, with the fields that
 * Documentation/tracing.md promises. hetmem_thrash: emu_thrash.c.
 */
#include "hetmem_trace.h"

#define SIZE	(16 * page_size())

FIXTURE(trace)
{
	struct ring r;
	char *p;
	unsigned long start, end;
};

FIXTURE_SETUP(trace)
{
	int fd;

	if (!trace_possible())
		SKIP(return, "kernel lacks tracefs");
	fd = hm_open();
	ASSERT_LE(0, fd);
	ASSERT_EQ(0, ring_make(&self->r, fd, 64, EVENT(HINT) |
			       EVENT(COMPLETED)));
	self->p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE |
		       MAP_ANONYMOUS, -1, 0);
	ASSERT_NE(MAP_FAILED, self->p);
	fill(self->p, SIZE, 1);
	self->start = (uintptr_t)self->p;
	self->end = self->start + SIZE;
	ASSERT_EQ(0, trace_start());
}

FIXTURE_TEARDOWN(trace)
{
	trace_stop();
	munmap(self->p, SIZE);
	close(self->r.fd);
}

#define PID		getpid()
#define RANGE		"range=%#lx-%#lx"

TEST_F(trace, track)
{
	ASSERT_EQ(0, hm_track(self->r.fd, self->p, SIZE));
	ASSERT_EQ(-EEXIST, hm_track(self->r.fd, self->p, SIZE));
	ASSERT_EQ(0, hm_untrack(self->r.fd, self->p, SIZE));
	ASSERT_EQ(-ENOENT, hm_untrack(self->r.fd, self->p, SIZE));
	EXPECT_TRACED(1, "hetmem_track", "opener=%d " RANGE " result=0\n", PID,
		      self->start, self->end);
	EXPECT_TRACED(1, "hetmem_track", "opener=%d " RANGE " result=%d\n",
		      PID, self->start, self->end, -EEXIST);
	EXPECT_TRACED(1, "hetmem_untrack", "opener=%d " RANGE " result=0\n",
		      PID, self->start, self->end);
	EXPECT_TRACED(1, "hetmem_untrack", "opener=%d " RANGE " result=%d\n",
		      PID, self->start, self->end, -ENOENT);
}

TEST_F(trace, notify)
{
	ASSERT_EQ(0, mprotect(self->p, SIZE, PROT_READ));
	ASSERT_EQ(0, madvise(self->p, page_size(), MADV_DONTNEED));
	ASSERT_EQ(0, munmap(self->p, SIZE));
	EXPECT_TRACED(1, "hetmem_notify", "opener=%d type=protection " RANGE
		      "\n", PID, self->start, self->end);
	EXPECT_TRACED(1, "hetmem_notify", "opener=%d type=clear " RANGE "\n",
		      PID, self->start, self->start + page_size());
	EXPECT_TRACED(1, "hetmem_notify", "opener=%d type=unmap " RANGE "\n",
		      PID, self->start, self->end);
}

TEST_F(trace, migrate)
{
	struct hetmem_cmd_migrate cmd;

	ASSERT_EQ(0, hm_migrate(self->r.fd, self->p, SIZE, ANY_HOST, &cmd));
	EXPECT_TRACED(1, "hetmem_migrate_begin",
		      "opener=%d " RANGE " location=%#x flags=0x0\n", PID,
		      self->start, self->end, ANY_HOST);
	EXPECT_TRACED(1, "hetmem_migrate_end",
		      "opener=%d " RANGE " moved=0 already=16 not_moved=0 why=0x0 result=0\n",
		      PID, self->start, self->end);
	/* What is wrong from the beginning does not begin. */
	ASSERT_EQ(-ENODEV, hm_migrate(self->r.fd, self->p, SIZE,
				      HETMEM_LOC(HETMEM_DEVICE, 99), &cmd));
	EXPECT_TRACED(1, "hetmem_migrate_begin", "opener=%d ", PID);
}

TEST_F(trace, hint)
{
	const int fd = self->r.fd;
	struct hetmem_cmd_hint cmd;

	ASSERT_EQ(0, hm_bind(fd, GPU(3), HETMEM_BIND_EXECUTOR, NULL));
	ASSERT_EQ(0, hm_hint(fd, self->p, SIZE, GPU(3), FOREVER_MS, fd, &cmd));
	EXPECT_TRACED(1, "hetmem_hint",
		      "opener=%d id=%llu " RANGE " location=%#x result=0\n",
		      PID, cmd.id, self->start, self->end, GPU(3));
	ASSERT_EQ(0, hm_complete(fd, cmd.id, -ENOMEM, 5));
	EXPECT_TRACED(1, "hetmem_complete", "id=%llu moved=5 result=%d\n",
		      cmd.id, -ENOMEM);
	/* Nobody answers: that is an end as well. */
	ASSERT_EQ(-ETIMEDOUT, hm_hint(fd, self->p, SIZE, GPU(3), 1, -1, NULL));
	EXPECT_TRACED(1, "hetmem_complete", "moved=0 result=%d\n", -ETIMEDOUT);
	EXPECT_EQ(2, trace_count("hetmem_hint", ""));
	EXPECT_EQ(2, trace_count("hetmem_complete", ""));
}

TEST_F(trace, limit_hit)
{
	long ranges = sysfs_read("caps/max_ranges");
	long blocks = sysfs_read("caps/max_blocks");
	long hints = sysfs_read("caps/max_hints");
	long entries = sysfs_read("caps/max_ring_entries");
	const int fd = self->r.fd;
	struct ring other;
	int second = hm_open();

	ASSERT_LE(0, second);
	ASSERT_EQ(0, sysfs_set("caps/max_ranges", 1));
	ASSERT_EQ(0, sysfs_set("caps/max_blocks", 7));
	ASSERT_EQ(0, sysfs_set("caps/max_hints", 1));
	ASSERT_EQ(0, sysfs_set("caps/max_ring_entries", 32));
	EXPECT_EQ(0, hm_track(fd, self->p, page_size()));
	EXPECT_EQ(-ENOSPC, hm_track(fd, self->p + page_size(), page_size()));
	EXPECT_EQ(0, hm_untrack(fd, self->p, page_size()));
	EXPECT_EQ(-ENOSPC, hm_track(fd, self->p, 9 * HUGE_SIZE));
	EXPECT_EQ(-EDQUOT, ring_make(&other, second, 64, EVENT(HINT)));
	EXPECT_EQ(0, hm_bind(fd, GPU(3), HETMEM_BIND_EXECUTOR, NULL));
	EXPECT_EQ(0, hm_hint(fd, self->p, SIZE, GPU(3), FOREVER_MS, fd, NULL));
	EXPECT_EQ(-EAGAIN, hm_hint(fd, self->p, SIZE, GPU(3), 10, fd, NULL));
	EXPECT_EQ(0, sysfs_set("caps/max_ranges", ranges));
	EXPECT_EQ(0, sysfs_set("caps/max_blocks", blocks));
	EXPECT_EQ(0, sysfs_set("caps/max_hints", hints));
	EXPECT_EQ(0, sysfs_set("caps/max_ring_entries", entries));
	EXPECT_TRACED(1, "hetmem_limit_hit", "limit=max_ranges value=1\n");
	EXPECT_TRACED(1, "hetmem_limit_hit", "limit=max_blocks value=7\n");
	EXPECT_TRACED(1, "hetmem_limit_hit", "limit=max_hints value=1\n");
	EXPECT_TRACED(1, "hetmem_limit_hit",
		      "limit=max_ring_entries value=32\n");
	EXPECT_EQ(4, trace_count("hetmem_limit_hit", ""));
	close(second);
}

/* The fields of an event by name, in order, as perf and others see them. */
static bool fields_are(const char *event, const char *want)
{
	char path[128], line[256], got[256] = "", *end, *name;
	FILE *f;

	snprintf(path, sizeof(path), TRACEFS "events/hetmem/%s/format", event);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f)) {
		if (!strstr(line, "field:") || strstr(line, " common_"))
			continue;
		end = strchr(line, ';');
		*end = 0;
		name = strrchr(line, ' ') + 1;
		name[strcspn(name, "[")] = 0;
		strcat(got, " ");
		strcat(got, name);
	}
	if (f)
		fclose(f);
	if (!strcmp(got, want))
		return true;
	fprintf(stderr, "# %s has%s\n", event, got);
	return false;
}

TEST_F(trace, fields)
{
	EXPECT_TRUE(fields_are("hetmem_track", " opener start end result"));
	EXPECT_TRUE(fields_are("hetmem_untrack", " opener start end result"));
	EXPECT_TRUE(fields_are("hetmem_notify", " opener type start end"));
	EXPECT_TRUE(fields_are("hetmem_migrate_begin",
			       " opener start end location flags"));
	EXPECT_TRUE(fields_are("hetmem_migrate_end",
			       " opener start walk_end moved already not_moved why result"));
	EXPECT_TRUE(fields_are("hetmem_thrash",
			       " opener start end location count"));
	EXPECT_TRUE(fields_are("hetmem_hint",
			       " opener id start end location result"));
	EXPECT_TRUE(fields_are("hetmem_complete", " id moved result"));
	EXPECT_TRUE(fields_are("hetmem_limit_hit", " limit value"));
}

TEST_HARNESS_MAIN
