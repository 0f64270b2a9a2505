/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * `hetmem report --html`: one panel. Its timeline has the bytes of each location and the moves,
 * its map the addresses over time, its tables the moment with the most memory.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <hetmem.h>

#include "map/source.h"
#include "page/page.h"
#include "report.h"
#include "util.h"

#define LARGEST	12	/* rows of the table of addresses */

static const char *name_of(const struct history *h, unsigned int location)
{
	static char text[64];

	return location == HISTORY_LOCATIONS - 1 ? "others" :
		location_text(h->locations[location], text, sizeof(text));
}

/* Colours of page.html. */
static int colour_of(uint32_t location)
{
	const uint32_t index = HETMEM_LOC_INDEX(location);

	if (location == LOC_SWAP_OR_DEVICE)
		return 4;
	switch (HETMEM_LOC_KIND(location)) {
	case HETMEM_HOST:
		return index && index != HETMEM_NODE_ANY ? 5 : 0;
	case HETMEM_DEVICE:
		return (int[]){ 3, 1, 2, 4 }[index % 4];
	case HETMEM_FOREIGN:
	case HETMEM_COHERENT:
		return (int[]){ 4, 2, 1, 3 }[index % 4];
	case HETMEM_ZERO:
		return 7;
	default:
		return 6;
	}
}

static double column_bytes(const struct history *h, const struct grid *g, unsigned int column,
			   unsigned int location)
{
	double sum = 0;
	unsigned int row;

	for (row = 0; row < g->rows; row++)
		sum += grid_bytes(h, g, row, column, location);
	return sum;
}

static void put_lines(FILE *f, const struct history *h, const struct grid *g)
{
	unsigned int i, c;

	fputs("\"lines\":[", f);
	for (i = 0; i < h->nr_locations; i++) {
		fputs(i ? ",{\"name\":" : "{\"name\":", f);
		page_text(f, name_of(h, i));
		fprintf(f, ",\"colour\":%d,\"values\":[", colour_of(h->locations[i]));
		for (c = 0; c < g->columns; c++)
			fprintf(f, "%s%.0f", c ? "," : "", column_bytes(h, g, c, i));
		fputs("]}", f);
	}
	fputs("],", f);
}

static void begin_bar(FILE *f, bool *first, const char *name, int colour, bool bytes)
{
	fputs(*first ? "{\"name\":" : ",{\"name\":", f);
	*first = false;
	page_text(f, name);
	fprintf(f, ",\"colour\":%d,\"bytes\":%s,\"values\":[", colour, bytes ? "true" : "false");
}

static void put_bars(FILE *f, const struct history *h, const struct grid *g)
{
	static const char *const events[] = {
		[RECORD_MIGRATE] = "MIGRATE", [RECORD_THRASH] = "thrash", [RECORD_HINT] = "hints",
	};
	static const int colours[NR_WAYS] = { [TO_DEVICE] = 3, [TO_HOST] = 0, [BETWEEN] = 5 };
	bool first = true;
	unsigned int c, what;
	int way;

	fputs("\"bars\":[", f);
	for (way = 0; way < NR_WAYS; way++) {
		if (!h->moved[way])
			continue;
		begin_bar(f, &first, report_way(h, way), colours[way], true);
		for (c = 0; c < g->columns; c++)
			fprintf(f, "%s%" PRIu64, c ? "," : "", g->moved[way][c]);
		fputs("]}", f);
	}
	for (what = RECORD_MIGRATE; what <= RECORD_HINT; what++) {
		if (!h->events[what])
			continue;
		begin_bar(f, &first, events[what], 6, false);
		for (c = 0; c < g->columns; c++)
			fprintf(f, "%s%u", c ? "," : "", g->events[c * GRID_EVENTS + what]);
		fputs("]}", f);
	}
	fputs("],", f);
}

static void put_map(FILE *f, const struct history *h, const struct grid *g)
{
	unsigned int i, row, c;

	fputs("\"heat\":{\"name\":\"Addresses over time\",\"timed\":true,\"keys\":[", f);
	for (i = 0; i < h->nr_locations; i++) {
		fprintf(f, "{\"mark\":\"%c\",\"colour\":%d,\"name\":", 'a' + i, colour_of(h->locations[i]));
		page_text(f, name_of(h, i));
		fputs("},", f);
	}
	fputs("{\"mark\":\"m\",\"colour\":6,\"name\":\"several\"}],\"rows\":[", f);
	for (row = 0; row < g->rows; row++)
		fprintf(f, "%s\"%012" PRIx64 "\"", row ? "," : "", history_address(h, g, row));
	fputs("],\"cells\":[", f);
	for (row = 0; row < g->rows; row++) {
		fputs(row ? ",\"" : "\"", f);
		for (c = 0; c < g->columns; c++) {
			const int cell = grid_cell(g, row, c);

			fputc(cell == CELL_EMPTY ? '.' : cell == CELL_MIXED ? 'm' : 'a' + cell, f);
		}
		fputc('"', f);
	}
	fputs("]},", f);
}

/* The column with the most memory. */
static unsigned int peak_column(const struct history *h, const struct grid *g)
{
	double most = -1, sum;
	unsigned int c, i, peak = 0;

	for (c = 0; c < g->columns; c++) {
		sum = 0;
		for (i = 0; i < h->nr_locations; i++)
			sum += column_bytes(h, g, c, i);
		if (sum > most) {
			most = sum;
			peak = c;
		}
	}
	return peak;
}

/* Neighbouring rows with memory of one location. */
struct place {
	unsigned int row, last, location;
	double bytes;
};

static bool is_next(const struct history *h, const struct grid *g, const struct place *p, unsigned int row)
{
	const uint64_t blocks = h->nr_blocks / g->rows + 1;

	return row == p->last + 1 &&
	       history_address(h, g, row) - history_address(h, g, p->last) <= blocks * h->block;
}

static int by_bytes(const void *a, const void *b)
{
	const struct place *x = a, *y = b;

	if (x->bytes != y->bytes)
		return x->bytes < y->bytes ? 1 : -1;
	return (x->row > y->row) - (x->row < y->row);
}

static void put_locations(FILE *f, const struct history *h, const struct grid *g, unsigned int peak)
{
	double most = 1, bytes;
	bool first = true;
	unsigned int i;

	for (i = 0; i < h->nr_locations; i++) {
		bytes = column_bytes(h, g, peak, i);
		most = bytes > most ? bytes : most;
	}
	fprintf(f, "{\"name\":\"At the peak (%.3g s), by location\",\"head\":[\"location\",\"bytes\",\"\"],\"rows\":[",
		(peak + 0.5) / g->columns * h->seconds);
	for (i = 0; i < h->nr_locations; i++) {
		bytes = column_bytes(h, g, peak, i);
		if (bytes < 1)
			continue;
		page_row(f, first, bytes / most, (const char *[]){ name_of(h, i), size_text(bytes) }, 2);
		first = false;
	}
	fputs("]},", f);
}

static void put_largest(FILE *f, const struct history *h, const struct grid *g, unsigned int peak)
{
	struct place *places = xcalloc((size_t)g->rows * HISTORY_LOCATIONS, sizeof(*places));
	unsigned int row, i, nr = 0;

	for (i = 0; i < h->nr_locations; i++)
		for (row = 0; row < g->rows; row++) {
			const double bytes = grid_bytes(h, g, row, peak, i);

			if (bytes < 1)
				continue;
			if (nr && places[nr - 1].location == i && is_next(h, g, &places[nr - 1], row)) {
				places[nr - 1].last = row;
				places[nr - 1].bytes += bytes;
			} else {
				places[nr++] = (struct place){ row, row, i, bytes };
			}
		}
	qsort(places, nr, sizeof(*places), by_bytes);
	fputs("{\"name\":\"At the peak, the largest ranges\",\"head\":[\"addresses from\",\"location\",\"bytes\",\"\"],\"rows\":[", f);
	for (i = 0; i < nr && i < LARGEST; i++) {
		char address[24];

		snprintf(address, sizeof(address), "%012" PRIx64, history_address(h, g, places[i].row));
		page_row(f, !i, places[i].bytes / places[0].bytes,
			 (const char *[]){ address, name_of(h, places[i].location),
					   size_text(places[i].bytes) }, 3);
	}
	fputs("]}", f);
	free(places);
}

/* What stands in quotes in an advice is a command. */
static void put_commands(FILE *f, const char *advice)
{
	const char *from = advice, *to;
	bool first = true;
	char *command;

	fputs("],\"commands\":[", f);
	while ((from = strchr(from, '\'')) && (to = strchr(from + 1, '\''))) {
		command = xasprintf("%.*s", (int)(to - from - 1), from + 1);
		fputs(first ? "" : ",", f);
		page_text(f, command);
		first = false;
		free(command);
		from = to + 1;
	}
	fputs("]}", f);
}

static void begin_finding(FILE *f, bool *first, const char *text)
{
	fputs(*first ? "{\"text\":" : ",{\"text\":", f);
	*first = false;
	page_text(f, text);
	fputs(",\"lines\":[", f);
}

static void put_found(FILE *f, const struct found *found, bool moves)
{
	char text[64], *line, *times;

	times = moves ? xasprintf(", each block moved %u times, then was at", found->moves) : xstrdup(" on");
	line = xasprintf("%" PRIx64 "-%" PRIx64 ": %s%s %s", found->start, found->end,
			 size_text(found->bytes), times,
			 location_text(found->location, text, sizeof(text)));
	page_text(f, line);
	fputc(',', f);
	free(line);
	free(times);
}

static void put_findings(FILE *f, const struct history *h)
{
	static const char *const sides[] = { "the host", "a device" };
	unsigned int bits[HISTORY_WHYS], nr, bit;
	char *text, *advice, names[128];
	bool first = true;
	int i, side;

	if (h->nr_bounced) {
		text = xasprintf("Blocks that bounced: %" PRIu64 " of %s moved twice or more",
				 h->nr_bounced, size_text(h->block));
		advice = report_advice_bounced(h);
		begin_finding(f, &first, text);
		for (i = 0; i < HISTORY_FOUND && h->bounced[i].moves; i++)
			put_found(f, &h->bounced[i], true);
		page_text(f, advice);
		put_commands(f, advice);
		free(text);
		free(advice);
	}
	for (side = 0; side < 2; side++) {
		if (!h->stayed_bytes[side])
			continue;
		text = xasprintf("Pages that never left %s: %s", sides[side],
				 size_text(h->stayed_bytes[side]));
		advice = report_advice_stayed(h, side);
		begin_finding(f, &first, text);
		for (i = 0; i < HISTORY_FOUND && h->stayed[side][i].bytes; i++)
			put_found(f, &h->stayed[side][i], false);
		page_text(f, advice);
		put_commands(f, advice);
		free(text);
		free(advice);
	}
	nr = report_whys(h, bits);
	for (bit = 0; bit < nr && bit < HISTORY_FOUND; bit++) {
		text = xasprintf("What hinders moves to a device: %s, %s at most",
				 hetmem_why_names(1U << bits[bit], names, sizeof(names)),
				 size_text(h->whys[bits[bit]].peak));
		begin_finding(f, &first, text);
		page_text(f, report_remedy(bits[bit]));
		put_commands(f, report_remedy(bits[bit]));
		free(text);
	}
}

static void put_sub(FILE *f, const struct history *h)
{
	char *note = report_note(h);
	char *line = xasprintf("%.3g s, %" PRIu64 " looks; %s; moves are %s", h->seconds, h->samples,
			       report_reason(h), h->counted && !h->foreign ? "counted by the module" :
			       "estimated");

	page_text(f, line);
	if (note) {
		fputc(',', f);
		page_text(f, note);
	}
	if (!h->module) {
		fputc(',', f);
		page_text(f, "without /dev/hetmem open, pages on a device look like swap");
	}
	free(line);
	free(note);
}

void report_html(FILE *f, const struct history *h, const struct grid *g)
{
	const unsigned int peak = peak_column(h, g);
	char *title = xasprintf("process %u (%s)", h->reader->header.pid, h->name);

	page_begin(f);
	fputs("{\"title\":", f);
	page_text(f, title);
	fputs(",\"sub\":[", f);
	put_sub(f, h);
	fputs("],\"findings\":[", f);
	put_findings(f, h);
	fprintf(f, "],\"panels\":[{\"name\":\"Memory over time\",\"text\":\"a column is %.3g s\",\"unit\":\"s\",\"end\":%.9g,\"limit\":0,",
		h->seconds / g->columns, h->seconds);
	put_lines(f, h, g);
	put_bars(f, h, g);
	put_map(f, h, g);
	fputs("\"tables\":[", f);
	put_locations(f, h, g, peak);
	put_largest(f, h, g, peak);
	fputs("]}]}", f);
	page_end(f);
	free(title);
}
