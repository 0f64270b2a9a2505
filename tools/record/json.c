/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* hetmem report --json: what the text has, with nothing rounded. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include <hetmem.h>

#include "map/picture.h"
#include "map/source.h"
#include "report.h"
#include "util.h"

#ifdef HAVE_JSON_C
#include "json_text.h"

#define add(object, name, value)	json_object_object_add(object, name, value)

static struct json_object *json_location(const struct history *h, unsigned int number)
{
	char text[64];

	return json_text(number == HISTORY_LOCATIONS - 1 ? "others" :
			 location_text(h->locations[number], text, sizeof(text)));
}

static struct json_object *json_locations(const struct history *h)
{
	struct json_object *all = json_object_new_array(), *o;
	unsigned int i;
	char mark[2] = "";

	for (i = 0; i < h->nr_locations; i++) {
		const struct history_sum *s = &h->sums[i];

		o = json_object_new_object();
		mark[0] = picture_mark(h->locations[i]);
		add(o, "location", json_location(h, i));
		add(o, "mark", json_text(mark));
		add(o, "average_bytes", json_count(h->seconds > 0 ? s->integral / h->seconds : s->bytes));
		add(o, "most_bytes", json_count(s->peak));
		json_object_array_add(all, o);
	}
	return all;
}

/* A string for each row: a mark for each column, '%' for several, '.' for nothing. */
static struct json_object *json_map(const struct history *h, const struct grid *g)
{
	struct json_object *o = json_object_new_object(), *rows = json_object_new_array(), *line;
	char *cells = xcalloc(g->columns + 1, 1);
	unsigned int row, c;

	for (row = 0; row < g->rows; row++) {
		for (c = 0; c < g->columns; c++) {
			const int cell = grid_cell(g, row, c);

			cells[c] = cell == CELL_EMPTY ? '.' : cell == CELL_MIXED ? '%' :
				picture_mark(h->locations[cell]);
		}
		line = json_object_new_object();
		add(line, "start", json_address(history_address(h, g, row)));
		add(line, "cells", json_text(cells));
		json_object_array_add(rows, line);
	}
	free(cells);
	add(o, "column_seconds", json_object_new_double(h->seconds / g->columns));
	add(o, "row_bytes", json_count(h->nr_blocks * h->block / g->rows));
	add(o, "rows", rows);
	return o;
}

static struct json_object *json_timeline(const struct history *h, const struct grid *g)
{
	static const char *const ways[] = { "to_device_bytes", "to_host_bytes", "other_node_bytes" };
	static const char *const events[] = {
		[RECORD_MIGRATE] = "migrate", [RECORD_THRASH] = "thrash", [RECORD_HINT] = "hints",
		[RECORD_COMPLETE] = "hints_ended",
	};
	struct json_object *o = json_object_new_object(), *list;
	unsigned int i, c;

	add(o, "source", json_text(h->counted && !h->foreign ? "module" : "estimated"));
	for (i = 0; i < NR_WAYS; i++) {
		list = json_object_new_array();
		for (c = 0; c < g->columns; c++)
			json_object_array_add(list, json_count(g->moved[i][c]));
		add(o, ways[i], list);
	}
	for (i = RECORD_MIGRATE; i < GRID_EVENTS; i++) {
		list = json_object_new_array();
		for (c = 0; c < g->columns; c++)
			json_object_array_add(list, json_count(g->events[c * GRID_EVENTS + i]));
		add(o, events[i], list);
	}
	return o;
}

static struct json_object *json_found(const struct found *list, bool moves)
{
	struct json_object *all = json_object_new_array(), *o;
	char text[64];
	int i;

	for (i = 0; i < HISTORY_FOUND && (moves ? list[i].moves : list[i].bytes); i++) {
		o = json_object_new_object();
		add(o, "start", json_address(list[i].start));
		add(o, "end", json_address(list[i].end));
		add(o, "bytes", json_count(list[i].bytes));
		if (moves)
			add(o, "moves", json_count(list[i].moves));
		add(o, "location", json_text(location_text(list[i].location, text, sizeof(text))));
		json_object_array_add(all, o);
	}
	return all;
}

static struct json_object *json_advice(char *advice)
{
	struct json_object *o = json_text(advice);

	free(advice);
	return o;
}

static struct json_object *json_whys(const struct history *h)
{
	unsigned int bits[HISTORY_WHYS], nr = report_whys(h, bits), i;
	struct json_object *all = json_object_new_array(), *o;
	char text[128];

	for (i = 0; i < nr; i++) {
		o = json_object_new_object();
		add(o, "why", json_text(hetmem_why_names(1U << bits[i], text, sizeof(text))));
		add(o, "most_bytes", json_count(h->whys[bits[i]].peak));
		add(o, "unmoved_pages", json_count(h->failed[bits[i]]));
		add(o, "advice", json_text(report_remedy(bits[i])));
		json_object_array_add(all, o);
	}
	return all;
}

static struct json_object *json_findings(const struct history *h)
{
	static const char *const sides[] = { "stayed_on_host", "stayed_on_device" };
	struct json_object *o = json_object_new_object(), *part = json_object_new_object();
	int side;

	add(part, "blocks", json_count(h->nr_bounced));
	add(part, "most", json_found(h->bounced, true));
	add(part, "advice", h->nr_bounced ? json_advice(report_advice_bounced(h)) : NULL);
	add(o, "bounced", part);
	for (side = 0; side < 2; side++) {
		part = json_object_new_object();
		add(part, "bytes", json_count(h->stayed_bytes[side]));
		add(part, "largest", json_found(h->stayed[side], false));
		add(part, "advice", h->stayed_bytes[side] ?
		    json_advice(report_advice_stayed(h, side)) : NULL);
		add(o, sides[side], part);
	}
	add(o, "hindered", json_whys(h));
	return o;
}

int report_json(const struct history *h, const struct grid *g)
{
	struct json_object *o = json_object_new_object();
	char *note = report_note(h);

	add(o, "pid", json_object_new_int64(h->reader->header.pid));
	add(o, "name", json_text(h->name));
	add(o, "began", json_count(h->reader->header.realtime / 1000000000));
	add(o, "seconds", json_object_new_double(h->seconds));
	add(o, "looks", json_count(h->samples));
	add(o, "execs", json_count(h->execs));
	add(o, "source", json_text(h->module ? "module" : "pagemap"));
	add(o, "ended", json_text(report_reason(h)));
	add(o, "complete", json_object_new_boolean(h->ended && !h->reader->damage));
	add(o, "note", json_text(note));
	add(o, "block_bytes", json_count(h->block));
	add(o, "locations", json_locations(h));
	add(o, "map", json_map(h, g));
	add(o, "timeline", json_timeline(h, g));
	add(o, "findings", json_findings(h));
	puts(json_object_to_json_string_ext(o, JSON_C_TO_STRING_PRETTY));
	json_object_put(o);
	free(note);
	return 0;
}

#else

int report_json(const struct history *h, const struct grid *g)
{
	(void)h;
	(void)g;
	return -EOPNOTSUPP;
}

#endif
