/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A recording in the trace event format of Chrome, which Perfetto opens: counters of the bytes
 * at each location and of what moved, a slice for each look, and the module's events. The file
 * is written while history_read() reads frames, so its size, like the recording's, is bounded.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <hetmem.h>

#include "map/source.h"
#include "report.h"
#include "util.h"

/* Threads of the picture. */
enum { LOOKS = 1, MODULE = 2 };

/**
 * struct chrome - a trace that is written
 * @bytes, @moved: what the last counters said
 * @look: begin of the last look
 */
struct chrome {
	FILE *f;
	uint32_t pid;
	bool any, looked;
	uint64_t bytes[HISTORY_LOCATIONS], moved[NR_WAYS], look;
};

/* A string of JSON. Other characters than printable ASCII are escaped by now. */
static void put_string(FILE *f, const char *s)
{
	fputc('"', f);
	for (; *s; s++) {
		if (*s == '"' || *s == '\\')
			fputc('\\', f);
		fputc(*s, f);
	}
	fputc('"', f);
}

/* Begins an event; the caller adds members and the last brace. Times are in us. */
static void begin_event(struct chrome *c, const char *name, const char *phase, uint64_t ns)
{
	fputs(",\n{\"name\":", c->f);
	put_string(c->f, name);
	fprintf(c->f, ",\"ph\":\"%s\",\"pid\":%" PRIu32 ",\"ts\":%" PRIu64 ".%03u", phase, c->pid,
		ns / 1000, (unsigned int)(ns % 1000));
}

static const char *name_of(const struct history *h, unsigned int number, char *text, size_t len)
{
	return number == HISTORY_LOCATIONS - 1 ? "others" :
		location_text(h->locations[number], text, len);
}

static void put_bytes(struct chrome *c, const struct history *h, uint64_t ns)
{
	char text[64];
	unsigned int i;

	begin_event(c, "memory", "C", ns);
	fputs(",\"args\":{", c->f);
	for (i = 0; i < h->nr_locations; i++) {
		fputs(i ? "," : "", c->f);
		put_string(c->f, name_of(h, i, text, sizeof(text)));
		fprintf(c->f, ":%" PRIu64, h->sums[i].bytes);
		c->bytes[i] = h->sums[i].bytes;
	}
	fputs("}}", c->f);
}

static void put_moved(struct chrome *c, const struct history *h, uint64_t ns)
{
	int way;

	begin_event(c, h->counted && !h->foreign ? "moved" : "moved, estimated", "C", ns);
	fputs(",\"args\":{", c->f);
	for (way = 0; way < NR_WAYS; way++) {
		fputs(way ? "," : "", c->f);
		put_string(c->f, report_way(h, way));
		fprintf(c->f, ":%" PRIu64, h->moved[way]);
		c->moved[way] = h->moved[way];
	}
	fputs("}}", c->f);
}

static void put_counters(struct chrome *c, const struct history *h, uint64_t ns)
{
	bool changed = !c->any;
	unsigned int i;

	for (i = 0; i < h->nr_locations; i++)
		changed |= c->bytes[i] != h->sums[i].bytes;
	if (changed)
		put_bytes(c, h, ns);
	if (!c->any || memcmp(c->moved, h->moved, sizeof(c->moved)))
		put_moved(c, h, ns);
	c->any = true;
}

static void put_look(struct chrome *c, const struct record_sample *s)
{
	/* A long look has several samples. */
	if (c->looked && c->look == s->time)
		return;
	c->looked = true;
	c->look = s->time;
	begin_event(c, s->source == RECORD_MODULE ? "look at the module" : "look at pagemap", "X",
		    s->time);
	fprintf(c->f, ",\"tid\":%d,\"dur\":%" PRIu64 ".%03u}", LOOKS, s->took / 1000,
		(unsigned int)(s->took % 1000));
}

static void put_range(struct chrome *c, const struct record_event *e)
{
	char text[128];

	fprintf(c->f, ",\"args\":{\"start\":\"0x%" PRIx64 "\",\"end\":\"0x%" PRIx64 "\",\"location\":",
		e->start, e->end);
	put_string(c->f, location_text(e->location, text, sizeof(text)));
	fprintf(c->f, ",\"result\":%" PRId32, e->result);
	if (e->what != RECORD_MIGRATE)
		return;
	fprintf(c->f, ",\"moved_pages\":%" PRIu64 ",\"unmoved_pages\":%" PRIu64 ",\"why\":", e->nr,
		e->not_moved);
	put_string(c->f, hetmem_why_names(e->why, text, sizeof(text)));
}

static void put_module_event(struct chrome *c, const struct record_event *e)
{
	switch (e->what) {
	case RECORD_MIGRATE:
		begin_event(c, "MIGRATE", "i", e->time);
		break;
	case RECORD_THRASH:
		begin_event(c, "thrash", "i", e->time);
		break;
	case RECORD_HINT:
	case RECORD_COMPLETE:
		/* A hint lasts until it ends; its id connects both. */
		begin_event(c, "hint", e->what == RECORD_HINT ? "b" : "e", e->time);
		fprintf(c->f, ",\"cat\":\"hint\",\"id\":\"0x%" PRIx64 "\"", e->nr);
		break;
	default:
		return;
	}
	fprintf(c->f, ",\"tid\":%d%s", MODULE, e->what <= RECORD_THRASH ? ",\"s\":\"t\"" : "");
	put_range(c, e);
	if (e->what == RECORD_THRASH)
		fprintf(c->f, ",\"times\":%" PRIu64, e->nr);
	fputs("}}", c->f);
}

static void put_instant(struct chrome *c, const char *name, uint64_t ns)
{
	begin_event(c, name, "i", ns);
	fprintf(c->f, ",\"tid\":%d,\"s\":\"p\"}", LOOKS);
}

static void frame(void *arg, const struct history *h)
{
	const void *payload = h->reader->payload;
	const struct record_process *process = payload;
	const struct record_end *end = payload;
	struct chrome *c = arg;
	char *name;

	switch (h->reader->frame.type) {
	case RECORD_PROCESS:
		name = xasprintf("%s %s", process->what == RECORD_EXEC ? "runs" : "recorded:", h->name);
		put_instant(c, name, process->time);
		free(name);
		if (process->what == RECORD_EXEC)
			put_counters(c, h, process->time);
		break;
	case RECORD_SAMPLE:
		put_look(c, payload);
		put_counters(c, h, ((const struct record_sample *)payload)->time);
		break;
	case RECORD_EVENT:
		put_module_event(c, payload);
		break;
	case RECORD_END:
		put_instant(c, report_reason(h), end->time);
		break;
	default:
		break;
	}
}

static void put_name(struct chrome *c, const char *what, int thread, const char *name)
{
	fprintf(c->f, "%s{\"name\":\"%s\",\"ph\":\"M\",\"pid\":%" PRIu32 ",\"tid\":%d,\"args\":{\"name\":",
		thread ? ",\n" : "", what, c->pid, thread);
	put_string(c->f, name);
	fputs("}}", c->f);
}

int report_chrome(FILE *f, struct reader *reader)
{
	struct chrome c = { .f = f, .pid = reader->header.pid };
	const struct history_watch watch = { frame, &c };
	struct history history;
	char *note;
	int status;

	fputs("{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n", f);
	reader_rewind(reader);
	put_name(&c, "process_name", 0, "memory");
	put_name(&c, "thread_name", LOOKS, "hetmem record");
	put_name(&c, "thread_name", MODULE, "hetmem.ko");
	status = history_read(&history, reader, NULL, 0, &watch);
	fprintf(f, "\n],\n\"otherData\":{\"pid\":%" PRIu32 ",\"began\":%" PRIu64, c.pid,
		reader->header.realtime / 1000000000);
	if (!status) {
		note = report_note(&history);
		fputs(",\"name\":", f);
		put_string(f, history.name);
		fputs(",\"note\":", f);
		put_string(f, note ? note : "");
		free(note);
	}
	fputs("}}\n", f);
	history_free(&history);
	return status;
}
