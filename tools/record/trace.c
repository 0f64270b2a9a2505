/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The module's tracepoints, see record.h. A ring of events is for its owner alone, so a
 * recorder reads tracepoints: by perf_event_open(2), which leaves nothing behind however the
 * recorder ends. Where a field is comes from tracefs, since fields may change.
 */
#include <errno.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <linux/hetmem.h>

#include "record.h"
#include "util.h"

#define PAGES		64	/* of each CPU's buffer, a power of two */
#define RAW_MOST	1024
/* The initial PID namespace: the only one whose PIDs tracepoints have. */
#define INITIAL_PIDS	0xeffffffcU

/* A field of an event; @size 0: there is none. */
struct field {
	unsigned int offset, size;
};

enum { OPENER, START, END, LOCATION, NR, RESULT, CMD, NR_FIELDS };

struct point {
	const char *name;
	enum record_event_what what;
	bool wanted[NR_FIELDS];
	uint64_t id;
	struct field fields[NR_FIELDS];
};

struct buffer {
	struct perf_event_mmap_page *page;
	char *data;
};

#define RANGE	{ [OPENER] = true, [START] = true, [END] = true, [LOCATION] = true, \
		  [NR] = true, [RESULT] = true }

static const struct point all_points[] = {
	{ .name = "hetmem_migrate_end", .what = RECORD_MIGRATE,
	  .wanted = { [OPENER] = true, [CMD] = true, [RESULT] = true } },
	{ .name = "hetmem_thrash", .what = RECORD_THRASH, .wanted = RANGE },
	{ .name = "hetmem_hint", .what = RECORD_HINT, .wanted = RANGE },
	{ .name = "hetmem_complete", .what = RECORD_COMPLETE, .wanted = RANGE },
};

#define NR_POINTS	ARRAY_SIZE(all_points)

struct record_trace {
	pid_t pid;
	uint64_t began;
	struct point points[NR_POINTS];
	unsigned int nr_cpus, nr_fds;
	struct buffer *buffers;
	int *fds;
};

static const char *const field_names[NR_FIELDS] = {
	"opener", "start", "end", "location", "nr", "result", "cmd",
};

static char *read_tracefs(const char *event, const char *file)
{
	static const char *const roots[] = { "/sys/kernel/tracing", "/sys/kernel/debug/tracing" };
	char *path, *text = NULL;
	size_t i;

	for (i = 0; i < ARRAY_SIZE(roots) && !text; i++) {
		path = xasprintf("%s/events/hetmem/%s/%s", roots[i], event, file);
		text = read_file(NULL, path, 65536, NULL);
		free(path);
	}
	return text;
}

/* A line of format: "	field:u64 start;	offset:16;	size:8;	signed:0;" */
static void parse_field(struct point *p, const char *line)
{
	unsigned int offset, size;
	const char *name;
	size_t len, i;

	len = strcspn(line, ";");
	for (name = line + len; name > line && name[-1] != ' '; name--)
		;
	if (sscanf(line + len, "; offset:%u; size:%u", &offset, &size) != 2)
		return;
	len = line + len - name;
	for (i = 0; i < NR_FIELDS; i++)
		if (strlen(field_names[i]) == len && !strncmp(field_names[i], name, len))
			p->fields[i] = (struct field){ offset, size };
}

/* Whether the kernel has the event, with all that is wanted of it. */
static bool find_point(struct point *p)
{
	char *id = read_tracefs(p->name, "id"), *format = read_tracefs(p->name, "format"), *at;
	bool good = id && format;
	size_t i;

	if (good)
		p->id = strtoull(id, NULL, 10);
	for (at = format; good && (at = strstr(at, "field:")); at++)
		parse_field(p, at);
	for (i = 0; i < NR_FIELDS; i++)
		good = good && p->fields[i].size >= (p->wanted[i] ? 1U : 0U);
	free(id);
	free(format);
	return good && p->id;
}

static int open_point(struct record_trace *t, const struct point *p, int cpu, int leader)
{
	struct perf_event_attr attr = {
		.type = PERF_TYPE_TRACEPOINT, .size = sizeof(attr), .config = p->id,
		.sample_period = 1, .sample_type = PERF_SAMPLE_TIME | PERF_SAMPLE_RAW,
		.use_clockid = 1, .clockid = CLOCK_MONOTONIC, .disabled = 1,
	};
	char filter[32];
	int fd = syscall(SYS_perf_event_open, &attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC);

	if (fd < 0)
		return -errno;
	t->fds[t->nr_fds++] = fd;
	snprintf(filter, sizeof(filter), "opener == %d", t->pid);
	if (ioctl(fd, PERF_EVENT_IOC_SET_FILTER, filter) ||
	    (leader >= 0 && ioctl(fd, PERF_EVENT_IOC_SET_OUTPUT, leader)))
		return -errno;
	return fd;
}

/* 0, or a negative errno. A CPU that is offline has no events. */
static int open_cpu(struct record_trace *t, unsigned int cpu)
{
	const size_t page = sysconf(_SC_PAGESIZE);
	int leader = -1, fd;
	size_t i;
	void *map;

	for (i = 0; i < NR_POINTS; i++) {
		fd = open_point(t, &t->points[i], cpu, leader);
		if (fd < 0)
			return fd == -ENODEV && leader < 0 ? 0 : fd;
		if (leader >= 0)
			continue;
		leader = fd;
		map = mmap(NULL, (1 + PAGES) * page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (map == MAP_FAILED)
			return -errno;
		t->buffers[cpu].page = map;
		t->buffers[cpu].data = (char *)map + page;
	}
	return 0;
}

/*
 * Each CPU takes a file for each event: with 256 CPUs that is all of the usual 1024. The command
 * to record runs by now, and keeps its own limit.
 */
static void allow_files(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

static bool is_initial_namespace(void)
{
	struct stat st;

	return !stat("/proc/self/ns/pid", &st) && st.st_ino == INITIAL_PIDS;
}

struct record_trace *record_trace_open(pid_t pid, uint64_t began, const char **why)
{
	struct record_trace *t;
	unsigned int cpu, i;
	int err = 0;

	*why = NULL;
	if (access("/sys/class/misc/hetmem", F_OK))
		return NULL;
	if (!is_initial_namespace()) {
		*why = "no events: they need a PID namespace that is the machine's own";
		return NULL;
	}
	t = xcalloc(1, sizeof(*t));
	t->pid = pid;
	t->began = began;
	memcpy(t->points, all_points, sizeof(all_points));
	t->nr_cpus = sysconf(_SC_NPROCESSORS_CONF);
	t->buffers = xcalloc(t->nr_cpus, sizeof(*t->buffers));
	t->fds = xcalloc(t->nr_cpus * NR_POINTS, sizeof(*t->fds));
	for (i = 0; i < NR_POINTS && !*why; i++)
		if (!find_point(&t->points[i]))
			*why = "no events: the module's tracepoints cannot be read, which takes root and tracefs";
	allow_files();
	for (cpu = 0; cpu < t->nr_cpus && !*why && !err; cpu++)
		err = open_cpu(t, cpu);
	if (err == -EMFILE)
		*why = "no events: they need 4 files for each CPU; raise 'ulimit -Hn'";
	else if (err)
		*why = "no events: perf_event_open(2) refuses them, which takes root";
	for (i = 0; i < t->nr_fds && !*why; i++)
		ioctl(t->fds[i], PERF_EVENT_IOC_ENABLE, 0);
	if (!*why)
		return t;
	record_trace_close(t);
	return NULL;
}

void record_trace_close(struct record_trace *t)
{
	unsigned int i;

	if (!t)
		return;
	for (i = 0; i < t->nr_cpus; i++)
		if (t->buffers[i].page)
			munmap(t->buffers[i].page, (1 + PAGES) * sysconf(_SC_PAGESIZE));
	for (i = 0; i < t->nr_fds; i++)
		close(t->fds[i]);
	free(t->buffers);
	free(t->fds);
	free(t);
}

static uint64_t value(const struct point *p, int field, const char *raw, size_t len)
{
	const struct field *f = &p->fields[field];
	uint64_t v = 0;

	if (f->size > sizeof(v) || f->offset > len || f->size > len - f->offset)
		return 0;
	memcpy(&v, raw + f->offset, f->size);
	return v;
}

/* One sample: its time, and the fields of its event. */
static int take(struct record_trace *t, uint64_t time, const char *raw, size_t len,
		struct record_file *file)
{
	struct hetmem_cmd_migrate cmd = { 0 };
	struct record_event e = { .time = time > t->began ? time - t->began : 0 };
	const struct field *f;
	const struct point *p;
	unsigned short id;
	size_t i;

	if (len < sizeof(id))
		return 0;
	/* common_type is the first field of all events. */
	memcpy(&id, raw, sizeof(id));
	for (i = 0; i < NR_POINTS && t->points[i].id != id; i++)
		;
	if (i == NR_POINTS)
		return 0;
	p = &t->points[i];
	/* The filter says the same; an event of another process is never recorded. */
	if ((pid_t)value(p, OPENER, raw, len) != t->pid)
		return 0;
	e.what = p->what;
	e.result = (int32_t)value(p, RESULT, raw, len);
	if (p->what == RECORD_MIGRATE) {
		f = &p->fields[CMD];
		if (f->offset > len || f->size > len - f->offset)
			return 0;
		memcpy(&cmd, raw + f->offset, f->size < sizeof(cmd) ? f->size : sizeof(cmd));
		e.start = cmd.start;
		e.end = cmd.walk_end;
		e.location = cmd.location;
		e.nr = cmd.moved;
		e.not_moved = cmd.not_moved;
		e.why = cmd.why;
	} else {
		e.start = value(p, START, raw, len);
		e.end = value(p, END, raw, len);
		e.location = value(p, LOCATION, raw, len);
		e.nr = value(p, NR, raw, len);
	}
	return record_file_add(file, RECORD_EVENT, &e, sizeof(e), NULL, 0);
}

/* Copies @len bytes at @at of a ring of @size bytes. */
static void copy(char *to, const struct buffer *b, uint64_t at, size_t len, uint64_t size)
{
	size_t i;

	for (i = 0; i < len; i++)
		to[i] = b->data[(at + i) & (size - 1)];
}

static int read_buffer(struct record_trace *t, struct buffer *b, struct record_file *file)
{
	const uint64_t size = PAGES * sysconf(_SC_PAGESIZE);
	const uint64_t head = __atomic_load_n(&b->page->data_head, __ATOMIC_ACQUIRE);
	uint64_t tail = b->page->data_tail;
	struct {
		struct perf_event_header head;
		uint64_t first;		/* a sample's time; of a loss its id */
		union {
			uint64_t lost;
			struct {
				uint32_t len;
				char raw[RAW_MOST];
			};
		};
	} event;
	int status = 0;

	while (tail < head && !status) {
		copy((char *)&event, b, tail, sizeof(event.head), size);
		if (event.head.size < sizeof(event.head))
			break;
		if (event.head.size <= sizeof(event)) {
			copy((char *)&event, b, tail, event.head.size, size);
			if (event.head.type == PERF_RECORD_LOST)
				file->dropped += event.lost;
			else if (event.head.type == PERF_RECORD_SAMPLE && event.len <= RAW_MOST)
				status = take(t, event.first, event.raw, event.len, file);
		}
		tail += event.head.size;
	}
	__atomic_store_n(&b->page->data_tail, tail, __ATOMIC_RELEASE);
	return status;
}

int record_trace_read(struct record_trace *t, struct record_file *file)
{
	unsigned int i;
	int status = 0;

	for (i = 0; t && i < t->nr_cpus && !status; i++)
		if (t->buffers[i].page)
			status = read_buffer(t, &t->buffers[i], file);
	return status;
}
