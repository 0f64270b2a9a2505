// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The tracepoints: each one fires when it should, with the fields that
 * Documentation/tracing.md describes. hetmem_thrash: emu_thrash.c.
 */
#include "libktest/harness.h"
#include "libktest/ring.h"
#include "libktest/sysfs.h"
#include "libktest/trace.h"

#include <pthread.h>
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
	ASSERT_EQ(0, ring_open(fd, 64, EVENT(HINT), &self->r));
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

static const unsigned char uuid[16] = { 3 };

TEST_F(trace, track)
{
	ASSERT_EQ(0, hm_track(self->r.fd, self->p, SIZE));
	ASSERT_EQ(-EEXIST, hm_track(self->r.fd, self->p, SIZE));
	ASSERT_EQ(0, hm_untrack(self->r.fd, self->p, SIZE));
	ASSERT_EQ(-ENOENT, hm_untrack(self->r.fd, self->p, SIZE));
	EXPECT_TRACED(1, "hetmem_track", "opener=%d " RANGE
		      " location=0x0 nr=0 result=0\n", PID, self->start,
		      self->end);
	EXPECT_TRACED(1, "hetmem_track", "opener=%d " RANGE
		      " location=0x0 nr=0 result=%d\n", PID, self->start,
		      self->end, -EEXIST);
	EXPECT_TRACED(1, "hetmem_untrack", "opener=%d " RANGE
		      " location=0x0 nr=0 result=0\n", PID, self->start,
		      self->end);
	EXPECT_TRACED(1, "hetmem_untrack", "opener=%d " RANGE
		      " location=0x0 nr=0 result=%d\n", PID, self->start,
		      self->end, -ENOENT);
}

TEST_F(trace, notify)
{
	ASSERT_EQ(0, mprotect(self->p, SIZE, PROT_READ));
	ASSERT_EQ(0, madvise(self->p, page_size(), MADV_DONTNEED));
	ASSERT_EQ(0, munmap(self->p, SIZE));
	EXPECT_TRACED(1, "hetmem_notify", "opener=%d change=protect " RANGE
		      "\n", PID, self->start, self->end);
	EXPECT_TRACED(1, "hetmem_notify", "opener=%d change=replace " RANGE "\n",
		      PID, self->start, self->start + page_size());
	EXPECT_TRACED(1, "hetmem_notify", "opener=%d change=unmap " RANGE "\n",
		      PID, self->start, self->end);
}

TEST_F(trace, migrate)
{
	struct hetmem_cmd_migrate cmd;

	ASSERT_EQ(0, hm_migrate(self->r.fd, self->p, SIZE, ANY_HOST, &cmd));
	EXPECT_TRACED(1, "hetmem_migrate_begin",
		      "opener=%d " RANGE " location=%#x nr=0 result=0\n",
		      PID, self->start, self->end, ANY_HOST);
	EXPECT_TRACED(1, "hetmem_migrate_end",
		      "opener=%d " RANGE " moved=0 already=16 not_moved=0 why=0x0 result=0\n",
		      PID, self->start, self->end);
	/* What is wrong from the beginning does not begin. */
	ASSERT_EQ(-ENODEV, hm_migrate(self->r.fd, self->p, SIZE,
				      HETMEM_LOC(HETMEM_DEVICE, 99), &cmd));
	EXPECT_TRACED(1, "hetmem_migrate_begin", "opener=%d ", PID);
}

/* Asks once, and waits for the answer. */
static void *ask(void *arg)
{
	struct hetmem_cmd_hint *cmd = arg;
	int fd = cmd->reserved;

	cmd->reserved = 0;
	return (void *)(intptr_t)hm_ioctl(fd, HETMEM_IOC_HINT, cmd);
}

TEST_F(trace, hint)
{
	const int fd = self->r.fd;
	struct hetmem_cmd_hint cmd = {
		.size = sizeof(cmd), .start = self->start, .end = self->end,
		.location = FOREIGN(3), .timeout_ms = FOREVER_MS,
		.reserved = fd,
	};
	struct hetmem_event e;
	pthread_t thread;
	void *ret;

	ASSERT_EQ(0, hm_bind(fd, FOREIGN(3), HETMEM_BIND_EXECUTOR, uuid));
	ASSERT_EQ(0, pthread_create(&thread, NULL, ask, &cmd));
	ASSERT_TRUE(ring_wait(&self->r, &e, FOREVER_MS));
	ASSERT_EQ(0, hm_complete(fd, e.data, -ENOMEM, 5));
	ASSERT_EQ(0, pthread_join(thread, &ret));
	ASSERT_EQ(NULL, ret);
	EXPECT_TRACED(1, "hetmem_hint", "opener=%d " RANGE
		      " location=%#x nr=%llu result=0\n", PID, self->start,
		      self->end, FOREIGN(3), cmd.id);
	EXPECT_TRACED(1, "hetmem_complete", "opener=%d " RANGE
		      " location=%#x nr=%llu result=%d\n", PID, self->start,
		      self->end, FOREIGN(3), cmd.id, -ENOMEM);
	/* Nobody answers: that is an end as well. */
	ASSERT_EQ(-ETIMEDOUT, hm_hint(fd, self->p, SIZE, FOREIGN(3), 1, NULL));
	EXPECT_TRACED(1, "hetmem_complete", " location=%#x nr=%llu result=%d\n",
		      FOREIGN(3), cmd.id + 1, -ETIMEDOUT);
	EXPECT_EQ(2, trace_count("hetmem_hint", ""));
	EXPECT_EQ(2, trace_count("hetmem_complete", ""));
}

TEST_F(trace, limit_hit)
{
	long total = sysfs_read("caps/total_kb");
	long hints = sysfs_read("caps/max_hints");
	const int fd = self->r.fd;
	struct hetmem_cmd_hint cmd = {
		.size = sizeof(cmd), .start = self->start, .end = self->end,
		.location = FOREIGN(3), .timeout_ms = FOREVER_MS,
		.reserved = fd,
	};
	struct hetmem_event e;
	pthread_t thread;
	void *ret;

	ASSERT_EQ(0, hm_bind(fd, FOREIGN(3), HETMEM_BIND_EXECUTOR, uuid));
	ASSERT_EQ(0, sysfs_set("caps/max_hints", 1));
	ASSERT_EQ(0, pthread_create(&thread, NULL, ask, &cmd));
	ASSERT_TRUE(ring_wait(&self->r, &e, FOREVER_MS));
	EXPECT_EQ(-EAGAIN, hm_hint(fd, self->p, SIZE, FOREIGN(3), 10, NULL));
	ASSERT_EQ(0, hm_complete(fd, e.data, 0, 0));
	ASSERT_EQ(0, pthread_join(thread, &ret));
	EXPECT_EQ(0, sysfs_set("caps/max_hints", hints));
	ASSERT_EQ(0, sysfs_set("caps/total_kb", 7));
	EXPECT_EQ(-EDQUOT, hm_track(fd, FAR, 1UL << 40));
	EXPECT_EQ(0, sysfs_set("caps/total_kb", total));
	EXPECT_TRACED(1, "hetmem_limit_hit", "limit=max_hints value=1\n");
	EXPECT_TRACED(1, "hetmem_limit_hit", "limit=total_kb value=7\n");
	EXPECT_EQ(2, trace_count("hetmem_limit_hit", ""));
}

/* Limits that root need not care about: of somebody else, with his own. */
static void hit_limits_as_nobody(char *p, struct turns *t)
{
	struct rlimit limit = { 2 * page_size(), 2 * page_size() };
	struct hetmem_cmd_migrate cmd;
	int fd;

	turns_in_child(t);
	CHILD_CHECK(!setrlimit(RLIMIT_MEMLOCK, &limit));
	CHILD_CHECK(!become_nobody());
	fd = hm_open();
	CHILD_CHECK(fd >= 0);
	CHILD_CHECK(hm_pin(fd, p, SIZE, FOREVER_MS, &cmd) == -EDQUOT);
	CHILD_CHECK(turn_pass(t->to_parent[1]));
	CHILD_CHECK(turn_wait(t->to_child[0]));
	CHILD_CHECK(hm_track(fd, p, SIZE) == -EDQUOT);
	_exit(0);
}

TEST_F(trace, limit_hit_by_users)
{
	long cap = sysfs_read("caps/user_kb");
	struct turns t;
	pid_t pid;

	ASSERT_EQ(0, turns_init(&t));
	pid = fork();
	ASSERT_LE(0, pid);
	if (!pid)
		hit_limits_as_nobody(self->p, &t);
	turns_in_parent(&t);
	EXPECT_TRUE(turn_wait(t.to_parent[0]));
	ASSERT_EQ(0, sysfs_set("caps/user_kb", 5));
	turn_pass(t.to_child[1]);
	EXPECT_EQ(0, child_status(pid));
	EXPECT_EQ(0, sysfs_set("caps/user_kb", cap));
	EXPECT_TRACED(1, "hetmem_limit_hit", "limit=RLIMIT_MEMLOCK value=%zu\n",
		      2 * page_size());
	EXPECT_TRACED(1, "hetmem_limit_hit", "limit=user_kb value=5\n");
	EXPECT_EQ(2, trace_count("hetmem_limit_hit", ""));
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
	static const char *const of_ranges[] = {
		"track", "untrack", "migrate_begin", "thrash", "hint", "complete",
	};
	char event[32];
	size_t i;

	for (i = 0; i < ARRAY_SIZE(of_ranges); i++) {
		snprintf(event, sizeof(event), "hetmem_%s", of_ranges[i]);
		EXPECT_TRUE(fields_are(event, " opener start end location nr result"));
	}
	EXPECT_TRUE(fields_are("hetmem_notify", " opener change start end"));
	EXPECT_TRUE(fields_are("hetmem_migrate_end", " opener cmd result"));
	EXPECT_TRUE(fields_are("hetmem_limit_hit", " limit value"));
}

TEST_HARNESS_MAIN
