// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The tracepoints: each one fires when it should, with the fields that
 * Documentation/tracing.md promises. hetmem_thrash: emu_thrash.c.
 */
#include "hetmem_trace.h"

#include <sched.h>
#include <sys/resource.h>

#include <linux/perf_event.h>

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

/* Caps that root need not care about: of somebody else, with his own. */
static void hit_limits_as_nobody(char *p)
{
	struct rlimit limit = { 2 * page_size(), 2 * page_size() };
	struct hetmem_cmd_migrate cmd;
	int fd;

	CHILD_CHECK(!setrlimit(RLIMIT_MEMLOCK, &limit));
	CHILD_CHECK(!become_nobody());
	fd = hm_open();
	CHILD_CHECK(fd >= 0);
	CHILD_CHECK(hm_open() == -EDQUOT);
	CHILD_CHECK(hm_pin(fd, p, SIZE, FOREVER_MS, 0, &cmd) == -EDQUOT);
	CHILD_CHECK(!hm_pin(fd, p, page_size(), FOREVER_MS, 0, &cmd));
	CHILD_CHECK(hm_pin(fd, p + page_size(), page_size(), FOREVER_MS, 0,
			   &cmd) == -EDQUOT);
	_exit(0);
}

TEST_F(trace, limit_hit_by_users)
{
	long contexts = sysfs_read("caps/max_contexts");
	long pins = sysfs_read("caps/max_pins");
	pid_t pid;

	ASSERT_EQ(0, sysfs_set("caps/max_contexts", 1));
	ASSERT_EQ(0, sysfs_set("caps/max_pins", 1));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid)
		hit_limits_as_nobody(self->p);
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(0, sysfs_set("caps/max_contexts", contexts));
	EXPECT_EQ(0, sysfs_set("caps/max_pins", pins));
	EXPECT_TRACED(1, "hetmem_limit_hit", "limit=max_contexts value=1\n");
	EXPECT_TRACED(1, "hetmem_limit_hit", "limit=RLIMIT_MEMLOCK value=%zu\n",
		      2 * page_size());
	EXPECT_TRACED(1, "hetmem_limit_hit", "limit=max_pins value=1\n");
	EXPECT_EQ(3, trace_count("hetmem_limit_hit", ""));
}

/*
 * As perf opens a tracepoint: of one kind, with its fields, what CPU 0 does. That of
 * a process would have the kernel patch its scheduler, under emulated processors that
 * are at work in there.
 */
static int perf_open(const char *event)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_TRACEPOINT,
		.size = sizeof(attr),
		.sample_period = 1,
		.sample_type = PERF_SAMPLE_RAW,
		.wakeup_events = 1,
	};
	char path[128];

	snprintf(path, sizeof(path), TRACEFS "events/hetmem/%s/id", event);
	attr.config = read_long(path);
	return syscall(SYS_perf_event_open, &attr, -1, 0, -1,
		       PERF_FLAG_FD_CLOEXEC);
}

/* Where @field of @event is in what a tracepoint gives; -1: it is not. */
static int field_offset(const char *event, const char *field)
{
	char path[128], line[256], want[64], *at;
	int offset = -1;
	FILE *f;

	snprintf(path, sizeof(path), TRACEFS "events/hetmem/%s/format", event);
	snprintf(want, sizeof(want), " %s;", field);
	f = fopen(path, "r");
	while (f && fgets(line, sizeof(line), f)) {
		at = strstr(line, want);
		if (at && sscanf(at + strlen(want), " offset:%d", &offset) == 1)
			break;
	}
	if (f)
		fclose(f);
	return offset;
}

TEST_F(trace, perf)
{
	const size_t map_size = 2 * page_size();
	struct perf_event_mmap_page *map;
	int fd, at;
	uint64_t value, count = 0;
	struct sample {
		struct perf_event_header header;
		uint32_t size;
		char raw[];
	} *sample;
	cpu_set_t first;

	CPU_ZERO(&first);
	CPU_SET(0, &first);
	ASSERT_EQ(0, sched_setaffinity(0, sizeof(first), &first));
	fd = perf_open("hetmem_track");
	if (fd < 0 && errno == ENOSYS)
		SKIP(return, "kernel lacks perf events");
	ASSERT_LE(0, fd);
	map = mmap(NULL, map_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	ASSERT_NE(MAP_FAILED, (void *)map);
	ASSERT_EQ(0, hm_track(self->r.fd, self->p, SIZE));
	ASSERT_EQ(0, hm_untrack(self->r.fd, self->p, SIZE));
	ASSERT_EQ((ssize_t)sizeof(count), read(fd, &count, sizeof(count)));
	EXPECT_EQ(1, count);
	ASSERT_LT(0, __atomic_load_n(&map->data_head, __ATOMIC_ACQUIRE));
	sample = (void *)((char *)map + page_size());
	ASSERT_EQ(PERF_RECORD_SAMPLE, sample->header.type);
	at = field_offset("hetmem_track", "end");
	ASSERT_LT(0, at);
	ASSERT_LE(at + sizeof(value), sample->size);
	memcpy(&value, sample->raw + at, sizeof(value));
	EXPECT_EQ(self->end, value);
	munmap(map, map_size);
	close(fd);
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
