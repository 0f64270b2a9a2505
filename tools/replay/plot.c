/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * `hetmem replay --plot`: an SVG with a panel for each run. On the left
 * requested and reserved bytes, step by step; on the right the live blocks at
 * the step where most bytes were requested, by address: a row is a range of
 * addresses, blocks are dark, what is between two is the fragmentation.
 *
 * Where blocks move, the left side also has the bytes on the host, max=, and marks below
 * the axis: one row for steps that moved blocks to the host, one for those that moved
 * blocks back. On the right blocks of which some is on the host have its colour.
 */
#include <stdlib.h>
#include <string.h>

#include "replay.h"
#include "samples.h"

#define ROWS		48
#define PANEL_HEIGHT	330
#define LEFT		70
#define WIDTH		620
#define HEIGHT		240
#define MAP_LEFT	750
#define MAP_WIDTH	480
#define TOP		46

static const char *const line_names[NR_LINES] = { "requested", "reserved", "spilled" };
static const char *const colours[NR_LINES] = { "#2a5d9f", "#c0392b", "#27864b" };

/* Text of XML. */
static void put_text(FILE *f, const char *s)
{
	for (; *s; s++) {
		if (*s == '<')
			fputs("&lt;", f);
		else if (*s == '>')
			fputs("&gt;", f);
		else if (*s == '&')
			fputs("&amp;", f);
		else if ((unsigned char)*s >= 0x20)
			fputc(*s, f);
	}
}

static double place_x(const struct replay_samples *p, size_t sample)
{
	return LEFT + (double)sample * WIDTH / (p->nr_samples > 1 ? p->nr_samples - 1 : 1);
}

static void draw_line(FILE *f, const struct replay_samples *p, uint64_t most, int top, enum line line)
{
	size_t i;

	fprintf(f, "<polyline fill=\"none\" stroke=\"%s\" points=\"", colours[line]);
	for (i = 0; i < p->nr_samples; i++)
		fprintf(f, "%.1f,%.1f ", place_x(p, i),
			top + HEIGHT - (double)p->samples[i].bytes[line] * HEIGHT / most);
	fputs("\"/>\n", f);
}

/* A mark for each sample with moves, in the colour of the side that they go to. */
static void draw_moves(FILE *f, const struct replay_samples *p, int top, int back)
{
	const int y = top + HEIGHT + 2 + 7 * back;
	size_t i;

	fprintf(f, "<path class=\"%s\" stroke=\"%s\" d=\"", back ? "back" : "out",
		colours[back ? RESERVED : SPILLED]);
	for (i = 0; i < p->nr_samples; i++)
		if (p->samples[i].moves[back])
			fprintf(f, "M%.1f,%dv5 ", place_x(p, i), y);
	fputs("\"/>\n", f);
}

static void draw_spill(FILE *f, const struct replay_samples *p, const struct replay_spill *s,
		       uint64_t most, int top)
{
	const double y = top + HEIGHT - (double)s->limit * HEIGHT / most;

	draw_line(f, p, most, top, SPILLED);
	draw_moves(f, p, top, 0);
	draw_moves(f, p, top, 1);
	if (s->limit)
		fprintf(f, "<line class=\"max\" x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#c0392b\" stroke-dasharray=\"6 4\"/>\n",
			LEFT, y, LEFT + WIDTH, y);
}

/* The largest value that is drawn. */
static uint64_t most_of(const struct replay_samples *p, const struct replay_spill *s)
{
	uint64_t most = s->limit ? s->limit : 1;
	size_t i;
	int line;

	for (i = 0; i < p->nr_samples; i++)
		for (line = 0; line < NR_LINES; line++)
			if (p->samples[i].bytes[line] > most)
				most = p->samples[i].bytes[line];
	return most;
}

static void draw_key(FILE *f, const struct replay_spill *s, int top)
{
	int line;

	fprintf(f, "<text x=\"%d\" y=\"%d\">", LEFT, top - 8);
	for (line = s->known ? SPILLED : RESERVED; line >= 0; line--)
		fprintf(f, "<tspan fill=\"%s\">%s</tspan>%s", colours[line],
			line_names[line], line ? " " : "");
	if (s->limit)
		fprintf(f, " <tspan fill=\"#c0392b\">- - max=</tspan>");
	if (s->known)
		fprintf(f, " moves: <tspan fill=\"%s\">| to the host</tspan> <tspan fill=\"%s\">| back</tspan>, at most %s spilled",
			colours[SPILLED], colours[RESERVED], size_text(s->most));
	fputs("</text>\n", f);
}

static void draw_axes(FILE *f, const struct replay_result *r, uint64_t most,
		      int top)
{
	int i;

	for (i = 0; i <= 4; i++) {
		int y = top + HEIGHT - i * HEIGHT / 4;

		fprintf(f, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"#ddd\"/>\n",
			LEFT, y, LEFT + WIDTH, y);
		fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%s</text>\n",
			LEFT - 6, y + 4, size_text(most / 4 * i));
	}
	fprintf(f, "<text x=\"%d\" y=\"%d\" text-anchor=\"end\">%zu steps</text>\n",
		LEFT + WIDTH, top + HEIGHT + (r->spill.known ? 28 : 16), r->trace->nr);
}

/* A block may go over the ends of rows. */
static void draw_extent(FILE *f, uintptr_t at, size_t size, uintptr_t row_span,
			int top)
{
	double row_height = (double)HEIGHT / ROWS;

	while (size) {
		uintptr_t row = at / row_span, in_row = at % row_span;
		size_t part = row_span - in_row;

		if (part > size)
			part = size;
		fprintf(f, "<rect x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"/>\n",
			MAP_LEFT + (double)in_row * MAP_WIDTH / row_span,
			top + row * row_height,
			(double)part * MAP_WIDTH / row_span,
			row_height * 0.8);
		at += part;
		size -= part;
	}
}

static void draw_extents(FILE *f, const struct replay_samples *p, bool spilled, int top)
{
	uintptr_t row_span = replay_samples_span(p) / ROWS + 1, at = 0;
	size_t i;

	fprintf(f, "<g fill=\"%s\">\n", colours[spilled ? SPILLED : REQUESTED]);
	for (i = 0; i < p->nr_extents; i++) {
		const struct replay_extent *e = &p->extents[i];

		if (e->spilled == spilled)
			draw_extent(f, at, e->size, row_span, top);
		at += replay_samples_step(p, i);
	}
	fputs("</g>\n", f);
}

static void draw_map(FILE *f, const struct replay_samples *p, bool spills, int top)
{
	const uintptr_t row_span = replay_samples_span(p) / ROWS + 1;

	fprintf(f, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"#eee\"/>\n",
		MAP_LEFT, top, MAP_WIDTH, HEIGHT);
	draw_extents(f, p, false, top);
	if (spills)
		draw_extents(f, p, true, top);
	fprintf(f, "<text x=\"%d\" y=\"%d\">%zu blocks at the peak over %s of addresses, a row is %s</text>\n",
		MAP_LEFT, top + HEIGHT + 16, p->nr_extents,
		size_text(replay_samples_span(p)), size_text(row_span));
}

static void draw_panel(FILE *f, const struct replay_samples *p,
		       const struct replay_result *r, int top)
{
	const uint64_t most = most_of(p, &r->spill);

	fprintf(f, "<text x=\"%d\" y=\"%d\" font-size=\"14\">", LEFT, top - 24);
	put_text(f, r->trace->name);
	fputs(", ", f);
	put_text(f, r->spec);
	fprintf(f, ", %s driver: %s requested, %s reserved, ratio %.4f</text>\n",
		r->driver, size_text(r->peak_requested),
		size_text(r->peak_reserved), r->ratio);
	draw_key(f, &r->spill, top);
	draw_axes(f, r, most, top);
	draw_line(f, p, most, top, RESERVED);
	draw_line(f, p, most, top, REQUESTED);
	if (r->spill.known)
		draw_spill(f, p, &r->spill, most, top);
	draw_map(f, p, r->spill.known, top);
}

int replay_plot(FILE *f, struct hetmem *hm,
		const struct replay_result *results, size_t nr,
		const struct replay_how *how)
{
	struct replay_how one_thread = *how;
	int status = EXIT_OK;
	struct replay_samples *p;
	size_t i;

	one_thread.concurrent = false;
	fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%zu\" viewBox=\"0 0 %d %zu\" font-family=\"sans-serif\" font-size=\"11\">\n"
		"<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
		MAP_LEFT + MAP_WIDTH + 20, nr * PANEL_HEIGHT,
		MAP_LEFT + MAP_WIDTH + 20, nr * PANEL_HEIGHT);
	for (i = 0; !status && i < nr; i++) {
		p = xcalloc(1, sizeof(*p));
		status = replay_samples_take(p, hm, &results[i], &one_thread);
		if (!status)
			draw_panel(f, p, &results[i],
				   i * PANEL_HEIGHT + TOP);
		replay_samples_free(p);
	}
	fputs("</svg>\n", f);
	return status;
}
