/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * `hetmem report --svg`: the heat map, addresses down and time to the right, a rectangle for
 * each run of equal cells; below it the timeline of moves.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <linux/hetmem.h>

#include "map/source.h"
#include "report.h"
#include "util.h"

#define LEFT		130
#define TOP		60
#define WIDTH		1000
#define HEIGHT		480
#define LANE		50
#define LABELS		8	/* rows with an address */

/* Named by what it is of; the text says the same, so colours alone tell nothing. */
static const char *colour_of(uint32_t location)
{
	static const char *const devices[] = { "#8e44ad", "#2a5d9f", "#c0392b", "#d68910" };
	const uint32_t index = HETMEM_LOC_INDEX(location);

	if (location == LOC_SWAP_OR_DEVICE)
		return "#c9a227";
	switch (HETMEM_LOC_KIND(location)) {
	case HETMEM_HOST:
		return index && index != HETMEM_NODE_ANY ? "#48b0a8" : "#27864b";
	case HETMEM_DEVICE:
		return devices[index % ARRAY_SIZE(devices)];
	case HETMEM_FOREIGN:
	case HETMEM_COHERENT:
		return devices[3 - index % ARRAY_SIZE(devices)];
	case HETMEM_ZERO:
		return "#dddddd";
	default:
		return "#999999";
	}
}

#define MIXED	"#7f8c8d"

/* Text of XML; names are printable ASCII by now. */
static void put_text(FILE *f, const char *s)
{
	for (; *s; s++) {
		if (*s == '<')
			fputs("&lt;", f);
		else if (*s == '>')
			fputs("&gt;", f);
		else if (*s == '&')
			fputs("&amp;", f);
		else
			fputc(*s, f);
	}
}

static void draw_row(FILE *f, const struct history *h, const struct grid *g, unsigned int row)
{
	const double width = (double)WIDTH / g->columns, height = (double)HEIGHT / g->rows;
	unsigned int c, from;

	for (from = 0; from < g->columns; from = c) {
		const int cell = grid_cell(g, row, from);

		for (c = from + 1; c < g->columns && grid_cell(g, row, c) == cell; c++)
			;
		if (cell != CELL_EMPTY)
			fprintf(f, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" fill=\"%s\"/>\n",
				LEFT + from * width, TOP + row * height, (c - from) * width, height,
				cell == CELL_MIXED ? MIXED : colour_of(h->locations[cell]));
	}
}

static void draw_map(FILE *f, const struct history *h, const struct grid *g)
{
	const unsigned int every = g->rows > LABELS ? g->rows / LABELS : 1;
	unsigned int row, i;

	fprintf(f, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"#f2f2f2\"/>\n",
		LEFT, TOP, WIDTH, HEIGHT);
	for (row = 0; row < g->rows; row++)
		draw_row(f, h, g, row);
	for (row = 0; row < g->rows; row += every)
		fprintf(f, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%012" PRIx64 "</text>\n",
			LEFT - 6, TOP + (double)row * HEIGHT / g->rows + 10,
			history_address(h, g, row));
	for (i = 0; i <= 4; i++)
		fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">%.3g s</text>\n",
			LEFT + i * WIDTH / 4, TOP + HEIGHT + 14, i * h->seconds / 4);
}

static void draw_key(FILE *f, const struct history *h)
{
	char text[64];
	unsigned int i;

	fprintf(f, "<text x=\"%d\" y=\"%d\">", LEFT, TOP - 10);
	for (i = 0; i < h->nr_locations; i++) {
		fprintf(f, "<tspan fill=\"%s\">\xe2\x96\xa0</tspan> ", colour_of(h->locations[i]));
		put_text(f, i == HISTORY_LOCATIONS - 1 ? "others" :
			 location_text(h->locations[i], text, sizeof(text)));
		fputs("  ", f);
	}
	fputs("<tspan fill=\"" MIXED "\">\xe2\x96\xa0</tspan> several</text>\n", f);
}

static void draw_lane(FILE *f, const struct history *h, const struct grid *g, int way, int top)
{
	const double width = (double)WIDTH / g->columns;
	const uint64_t most = grid_most(g, way);
	unsigned int c;

	fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", LEFT - 6,
		top + LANE - 12, report_way(h, way));
	fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n", LEFT - 6, top + LANE,
		size_text(h->moved[way]));
	fprintf(f, "<path class=\"moved\" fill=\"none\" stroke-width=\"%.2f\" stroke=\"%s\" d=\"", width,
		way == TO_DEVICE ? "#8e44ad" : way == TO_HOST ? "#27864b" : "#48b0a8");
	for (c = 0; c < g->columns; c++)
		if (g->moved[way][c])
			fprintf(f, "M%.2f,%dv-%.2f ", LEFT + (c + 0.5) * width, top + LANE,
				1 + (LANE - 8.0) * g->moved[way][c] / most);
	fputs("\"/>\n", f);
	fprintf(f, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"#ccc\"/>\n", LEFT,
		top + LANE, LEFT + WIDTH, top + LANE);
}

void report_svg(FILE *f, const struct history *h, const struct grid *g)
{
	const int height = TOP + HEIGHT + 30 + NR_WAYS * LANE + 20;
	int way;

	fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"11\">\n"
		"<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
		LEFT + WIDTH + 20, height, LEFT + WIDTH + 20, height);
	fprintf(f, "<text x=\"%d\" y=\"%d\" font-size=\"14\">process %u (", LEFT, TOP - 32,
		h->reader->header.pid);
	put_text(f, h->name);
	fprintf(f, "), %.3g s, %" PRIu64 " looks; moves are %s</text>\n", h->seconds, h->samples,
		h->counted && !h->foreign ? "counted by the module" : "estimated");
	draw_key(f, h);
	draw_map(f, h, g);
	for (way = 0; way < NR_WAYS; way++)
		draw_lane(f, h, g, way, TOP + HEIGHT + 30 + way * LANE);
	fputs("</svg>\n", f);
}
