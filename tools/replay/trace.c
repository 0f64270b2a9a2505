/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Reads traces: RMM's columns, Thread,Time,Action,Pointer,Size,Stream, plain
 * or gzipped, found by the header's names, so that more columns do no harm.
 * Streams are hexadecimal with 0x, as handles are printed, else decimal.
 *
 * A pointer is a block from its allocate to its free; a second allocate of a
 * live one means that its free was not logged, and frees it first.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "trace.h"
#include "util.h"

#ifdef HAVE_ZLIB
#include <zlib.h>
#endif

#define MAX_LINE	4096
#define MAX_STREAMS	4096

enum column { THREAD, TIME, ACTION, POINTER, SIZE, STREAM, COLUMNS };

static const char *const column_names[COLUMNS] = {
	"Thread", "Time", "Action", "Pointer", "Size", "Stream",
};

/* A map from a number to an index, open addressing; grows. */
struct map {
	struct entry {
		uint64_t key;
		uint32_t value;
		bool used;
	} *entries;
	size_t room;
	size_t nr;
};

struct live {
	size_t size;
	uint16_t stream;
};

struct reader {
	const char *path;
	size_t line;
	int place[COLUMNS];
	struct replay_trace *trace;
	size_t room;
	struct map blocks;	/* live pointers */
	struct map events;
	struct map streams;
	struct map threads;
	struct live *live;	/* by block */
	size_t live_room;
	uint64_t requested;
	size_t implied;		/* frees that were not logged */
};

static struct entry *probe(const struct map *m, uint64_t key)
{
	size_t i = (key * 0x9e3779b97f4a7c15ULL >> 20) & (m->room - 1);

	while (m->entries[i].used && m->entries[i].key != key)
		i = (i + 1) & (m->room - 1);
	return &m->entries[i];
}

/* Values are only ever replaced by REPLAY_NONE: keys stay. */
static struct entry *map_get(struct map *m, uint64_t key)
{
	struct map larger = { .room = m->room ? 2 * m->room : 1024 };
	struct entry *e;
	size_t i;

	if (2 * (m->nr + 1) > m->room) {
		larger.entries = xcalloc(larger.room, sizeof(*larger.entries));
		for (i = 0; i < m->room; i++)
			if (m->entries[i].used)
				*probe(&larger, m->entries[i].key) =
					m->entries[i];
		larger.nr = m->nr;
		free(m->entries);
		*m = larger;
	}
	e = probe(m, key);
	if (!e->used) {
		*e = (struct entry){ .key = key, .value = REPLAY_NONE,
				     .used = true };
		m->nr++;
	}
	return e;
}

static void *bad(struct reader *r, const char *what)
{
	complain(EXIT_FAILED, "replay", "%s: line %zu: %s", r->path, r->line,
		 what);
	return NULL;
}

/* Cuts @line at its commas. */
static int split(char *line, char **fields, int max)
{
	int n = 0;

	line[strcspn(line, "\r\n")] = '\0';
	while (n < max) {
		fields[n++] = line;
		line = strchr(line, ',');
		if (!line)
			break;
		*line++ = '\0';
	}
	return n;
}

static bool read_header(struct reader *r, char *line)
{
	char *fields[64];
	int n = split(line, fields, 64), i, c;

	for (c = 0; c < COLUMNS; c++) {
		r->place[c] = -1;
		for (i = 0; i < n; i++)
			if (!strcmp(fields[i], column_names[c]))
				r->place[c] = i;
		if (r->place[c] < 0 && c != TIME && c != THREAD)
			return false;
	}
	return true;
}

static bool read_number(const char *s, uint64_t *value)
{
	char *end;

	if (!strcmp(s, "(nil)")) {
		*value = 0;
		return true;
	}
	while (*s == ' ')
		s++;
	/* No sign, which strtoull() would take. */
	if (*s < '0' || *s > '9')
		return false;
	errno = 0;
	*value = strtoull(s, &end, strncmp(s, "0x", 2) ? 10 : 16);
	return end != s && !*end && !errno;
}

static struct replay_step *add_step(struct reader *r, enum replay_op op)
{
	struct replay_trace *t = r->trace;

	if (t->nr == r->room) {
		r->room = r->room ? 2 * r->room : 4096;
		t->steps = xrealloc_array(t->steps, r->room,
					  sizeof(*t->steps));
	}
	t->steps[t->nr] = (struct replay_step){ .op = op,
						.block = REPLAY_NONE };
	return &t->steps[t->nr++];
}

static uint32_t new_block(struct reader *r, size_t size, uint16_t stream)
{
	uint32_t block = r->trace->blocks++;

	if (block >= r->live_room) {
		r->live_room = r->live_room ? 2 * r->live_room : 4096;
		r->live = xrealloc_array(r->live, r->live_room,
					 sizeof(*r->live));
	}
	r->live[block] = (struct live){ .size = size, .stream = stream };
	r->requested += size;
	return block;
}

static void free_block(struct reader *r, struct entry *e, uint16_t stream,
		       uint16_t thread)
{
	struct replay_step *s = add_step(r, REPLAY_FREE);

	s->block = e->value;
	s->stream = stream;
	s->thread = thread;
	s->size = r->live[e->value].size;
	r->requested -= s->size;
	e->value = REPLAY_NONE;
}

static void add_alloc(struct reader *r, uint64_t ptr, size_t size,
		      uint16_t stream, uint16_t thread)
{
	struct replay_trace *t = r->trace;
	struct entry *e = map_get(&r->blocks, ptr);
	struct replay_step *s;

	if (e->value != REPLAY_NONE) {
		free_block(r, e, r->live[e->value].stream, thread);
		r->implied++;
	}
	s = add_step(r, REPLAY_ALLOC);
	s->size = size;
	s->stream = stream;
	s->thread = thread;
	s->block = new_block(r, size, stream);
	e->value = s->block;
	if (r->requested > t->peak_requested) {
		t->peak_requested = r->requested;
		t->peak_step = t->nr - 1;
	}
}

static void add_on_block(struct reader *r, enum replay_op op, uint64_t ptr,
			 uint16_t stream, uint16_t thread)
{
	struct entry *e = map_get(&r->blocks, ptr);
	struct replay_step *s;

	if (e->value == REPLAY_NONE) {
		r->trace->ignored++;
	} else if (op == REPLAY_FREE) {
		free_block(r, e, stream, thread);
	} else {
		s = add_step(r, op);
		s->block = e->value;
		s->stream = stream;
		s->thread = thread;
	}
}

/* @event: 0 is a valid one. Exception: a sync with a stream has none. */
static void add_edge(struct reader *r, enum replay_op op, uint64_t event,
		     uint16_t stream, uint16_t thread)
{
	bool named = op == REPLAY_RECORD || op == REPLAY_WAIT ||
		(op == REPLAY_SYNC && event);
	struct entry *e = named ? map_get(&r->events, event) : NULL;
	struct replay_step *s;

	if (op == REPLAY_RECORD)
		e->value = r->trace->events++;
	else if (e && e->value == REPLAY_NONE)
		return;		/* of an event that was never recorded */
	s = add_step(r, op);
	s->block = e ? e->value : REPLAY_NONE;
	s->stream = stream;
	s->thread = thread;
}

static bool index_of(struct map *m, uint64_t key, unsigned int *nr,
		     uint16_t *index)
{
	struct entry *e = map_get(m, key);

	if (e->value == REPLAY_NONE) {
		if (*nr == MAX_STREAMS)
			return false;
		e->value = (*nr)++;
	}
	*index = e->value;
	return true;
}

static bool read_row(struct reader *r, char *line)
{
	struct replay_trace *t = r->trace;
	uint64_t ptr, size, stream, thread = 0;
	uint16_t on, by;
	char *fields[64];
	const char *action;
	int n = split(line, fields, 64), c;

	for (c = 0; c < COLUMNS; c++)
		if (r->place[c] >= n)
			return bad(r, "a column is missing");
	action = fields[r->place[ACTION]];
	if (!read_number(fields[r->place[POINTER]], &ptr))
		return bad(r, "Pointer is not a number");
	if (!read_number(fields[r->place[SIZE]], &size) ||
	    size > PTRDIFF_MAX)
		return bad(r, "Size is not a number");
	if (!strcmp(action, "allocate") && size > PTRDIFF_MAX - r->requested)
		return bad(r, "more is live than any machine has");
	if (!read_number(fields[r->place[STREAM]], &stream))
		return bad(r, "Stream is not a number");
	if (r->place[THREAD] >= 0 &&
	    !read_number(fields[r->place[THREAD]], &thread))
		return bad(r, "Thread is not a number");
	if (stream == UINT64_MAX)
		on = REPLAY_STREAM_HOST;
	else if (stream == UINT64_MAX - 1)
		on = REPLAY_STREAM_UNKNOWN;
	else if (!index_of(&r->streams, stream, &t->streams, &on))
		return bad(r, "too many streams");
	if (!index_of(&r->threads, thread, &t->threads, &by))
		return bad(r, "too many threads");

	if (!strcmp(action, "allocate"))
		add_alloc(r, ptr, size, on, by);
	else if (!strcmp(action, "free") || !strcmp(action, "deallocate"))
		add_on_block(r, REPLAY_FREE, ptr, on, by);
	else if (!strcmp(action, "record_stream"))
		add_on_block(r, REPLAY_RECORD_STREAM, ptr, on, by);
	else if (!strcmp(action, "record"))
		add_edge(r, REPLAY_RECORD, ptr, on, by);
	else if (!strcmp(action, "wait"))
		add_edge(r, REPLAY_WAIT, ptr, on, by);
	else if (!strcmp(action, "sync"))
		add_edge(r, REPLAY_SYNC, ptr, on, by);
	else if (!strcmp(action, "retire"))
		add_edge(r, REPLAY_RETIRE, 0, on, by);
	else if (strcmp(action, "allocate failure"))
		return bad(r, "unknown action");
	return true;
}

#ifdef HAVE_ZLIB
/* zlib reads plain files as they are. */
typedef gzFile trace_file;
#define trace_open(path)	gzopen(path, "rbe")
#define trace_fdopen(fd)	gzdopen(fd, "rb")
#define trace_line(f, buf, len)	gzgets(f, buf, len)
#define trace_close(f)		gzclose(f)

/* Why there are no more lines, NULL: that is all. */
static const char *trace_error(trace_file f)
{
	int err;
	const char *text = gzerror(f, &err);

	return err == Z_OK ? NULL : err == Z_ERRNO ? strerror(errno) :
		err == Z_BUF_ERROR ? "it ends too early: gzipped, and cut off" :
		text;
}
#else
typedef FILE *trace_file;
#define trace_open(path)	fopen(path, "re")
#define trace_fdopen(fd)	fdopen(fd, "r")
#define trace_line(f, buf, len)	fgets(buf, len, f)
#define trace_close(f)		fclose(f)

static const char *trace_error(trace_file f)
{
	return ferror(f) ? strerror(errno) : NULL;
}
#endif

/* What is not as a trace should be, and may be meant so: no error. */
static void tell_left_out(const struct reader *r)
{
	if (r->trace->ignored)
		complain(EXIT_OK, "replay", "%s: %zu rows are of blocks that are not live: left out",
			 r->path, r->trace->ignored);
	if (r->implied)
		complain(EXIT_OK, "replay", "%s: %zu blocks are allocated while they are live: freed before",
			 r->path, r->implied);
}

static bool read_lines(struct reader *r, trace_file f)
{
	const char *why = NULL;
	char line[MAX_LINE];

	for (r->line = 1; trace_line(f, line, sizeof(line)); r->line++) {
		/* Half a line may be wrong because there is no more. */
		why = strchr(line, '\n') ? NULL : trace_error(f);
		if (why)
			break;
		if (strlen(line) == sizeof(line) - 1 &&
		    line[sizeof(line) - 2] != '\n')
			return bad(r, "the line is too long");
		if (r->line == 1) {
			if (!strncmp(line, "\x1f\x8b", 2))
				return bad(r, "gzipped, and this was built without zlib");
			if (!read_header(r, line))
				return bad(r, "not the header of a trace: Thread,Time,Action,Pointer,Size,Stream; log(RESOURCE,file=) in a spec writes traces");
		} else if (line[strspn(line, " \r\n")] && !read_row(r, line)) {
			return false;
		}
	}
	if (!why)
		why = trace_error(f);
	if (why)
		return bad(r, why);
	if (!r->trace->blocks)
		return bad(r, "the trace allocates nothing");
	tell_left_out(r);
	return true;
}

static char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');
	char *name = xstrdup(slash ? slash + 1 : path), *end;

	end = strstr(name, ".csv");
	if (end && end != name)
		*end = '\0';
	return name;
}

/* A copy of the descriptor, which is closed with the file. */
static trace_file open_stdin(void)
{
	int fd = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0);
	trace_file f = fd < 0 ? NULL : trace_fdopen(fd);

	if (!f && fd >= 0)
		close(fd);
	return f;
}

struct replay_trace *replay_trace_read(const char *path)
{
	const bool from_stdin = !strcmp(path, "-");
	struct reader r = { .path = from_stdin ? "standard input" : path };
	trace_file f = from_stdin ? open_stdin() : trace_open(path);
	bool good;

	if (!f) {
		complain(EXIT_FAILED, "replay", "%s: %s", r.path,
			 strerror(errno));
		return NULL;
	}
	r.trace = xcalloc(1, sizeof(*r.trace));
	r.trace->name = from_stdin ? xstrdup("stdin") : base_name(path);
	good = read_lines(&r, f);
	trace_close(f);
	free(r.blocks.entries);
	free(r.events.entries);
	free(r.streams.entries);
	free(r.threads.entries);
	free(r.live);
	if (good)
		return r.trace;
	replay_trace_free(r.trace);
	return NULL;
}

void replay_trace_free(struct replay_trace *trace)
{
	if (!trace)
		return;
	free(trace->steps);
	free(trace->name);
	free(trace);
}
