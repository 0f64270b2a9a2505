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

#define SAMPLES		1200
#define ROWS		48
#define PANEL_HEIGHT	330
#define LEFT		70
#define WIDTH		620
#define HEIGHT		240
#define MAP_LEFT	750
#define MAP_WIDTH	480
#define TOP		46

enum line { REQUESTED, RESERVED, SPILLED, NR_LINES };

static const char *const line_names[NR_LINES] = { "requested", "reserved", "spilled" };
static const char *const colours[NR_LINES] = { "#2a5d9f", "#c0392b", "#27864b" };

/* @moves: to the host, and back. */
struct sample {
	uint64_t bytes[NR_LINES];
	uint32_t moves[2];
};

/* @spilled: some of it is on the host. */
struct extent {
	uintptr_t start;
	size_t size;
	bool spilled;
};

/**
 * struct panel - what one replay gave
 * @extents: blocks at the peak, by address
 */
struct panel {
	size_t nr_samples;
	struct sample samples[SAMPLES + 1];
	size_t nr_extents;
	struct extent *extents;
};

static int by_start(const void *a, const void *b)
{
	const struct extent *x = a, *y = b;

	return x->start < y->start ? -1 : x->start > y->start;
}

static void take_extents(struct panel *p, const struct replay_world *w,
			 const struct replay_watch *watch, const size_t *sizes)
{
	uint32_t i;

	p->extents = xcalloc(w->trace->blocks, sizeof(*p->extents));
	for (i = 0; i < w->trace->blocks; i++)
		if (w->ptrs[i])
			p->extents[p->nr_extents++] = (struct extent){
				(uintptr_t)w->ptrs[i], sizes[i],
				watch->blocks && watch->blocks[i].spilled };
	qsort(p->extents, p->nr_extents, sizeof(*p->extents), by_start);
}

/* The sample of a time, with the most that was @requested; what follows is the next one's. */
static void take_sample(struct panel *p, struct replay_watch *watch,
			struct hetmem_resource *res, uint64_t requested)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };

	hetmem_resource_stats(res, &stats);
	p->samples[p->nr_samples++] = (struct sample){
		.bytes = { requested, stats.reserved, watch->recent },
		.moves = { watch->recent_moves[0], watch->recent_moves[1] },
	};
	watch->recent = watch->spill ? watch->spill->spilled : 0;
	watch->recent_moves[0] = watch->recent_moves[1] = 0;
}

/*
 * A sample is of the most that was requested since the one before, so that no
 * peak is left out. In one thread, whatever the order: the picture is of what
 * was recorded.
 */
static int take_samples(struct panel *p, struct hetmem *hm,
			const struct replay_result *r,
			const struct replay_how *how)
{
	struct replay_watch watch = { .spill = NULL };
	struct replay_spill spill = { .known = false };
	const struct replay_trace *t = r->trace;
	size_t every = t->nr / SAMPLES + 1, i;
	size_t *sizes = xcalloc(t->blocks, sizeof(*sizes));
	struct hetmem_resource *res = NULL;
	uint64_t requested = 0, most = 0;
	struct replay_world w;
	int status;

	status = replay_world_open(&w, hm, t, how);
	if (!status && hetmem_resource_create(hm, r->spec, &res))
		status = complain(EXIT_FAILED, "replay", "%s",
				  hetmem_last_error());
	if (!status && r->spill.known)
		status = replay_watch_open(&watch, &w, res, r->spec, false, &spill);
	for (i = 0; !status && i < t->nr; i++) {
		const struct replay_step *s = &t->steps[i];

		if (r->spill.known)
			replay_watch_step(&watch, i);
		else
			replay_step(&w, res, s);
		if (s->op == REPLAY_ALLOC) {
			requested += s->size;
			sizes[s->block] = s->size;
		} else if (s->op == REPLAY_FREE) {
			requested -= s->size;
		}
		if (requested > most)
			most = requested;
		if (i == t->peak_step)
			take_extents(p, &w, &watch, sizes);
		if (i % every && i != t->nr - 1)
			continue;
		take_sample(p, &watch, res, most);
		most = 0;
	}
	replay_watch_close(&watch);
	if (res) {
		replay_drain(&w, res);
		hetmem_resource_destroy(res);
	}
	replay_world_close(&w);
	free(sizes);
	return status;
}

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

static double place_x(const struct panel *p, size_t sample)
{
	return LEFT + (double)sample * WIDTH / (p->nr_samples > 1 ? p->nr_samples - 1 : 1);
}

static void draw_line(FILE *f, const struct panel *p, uint64_t most, int top, enum line line)
{
	size_t i;

	fprintf(f, "<polyline fill=\"none\" stroke=\"%s\" points=\"", colours[line]);
	for (i = 0; i < p->nr_samples; i++)
		fprintf(f, "%.1f,%.1f ", place_x(p, i),
			top + HEIGHT - (double)p->samples[i].bytes[line] * HEIGHT / most);
	fputs("\"/>\n", f);
}

/* A mark for each sample with moves, in the colour of the side that they go to. */
static void draw_moves(FILE *f, const struct panel *p, int top, int back)
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

static void draw_spill(FILE *f, const struct panel *p, const struct replay_spill *s,
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
static uint64_t most_of(const struct panel *p, const struct replay_spill *s)
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

/*
 * Addresses that are far from the next block are another region, of which
 * there may be several; the space between them is left out.
 */
#define FAR	((uintptr_t)1 << 30)

static uintptr_t drawn_span(const struct panel *p)
{
	uintptr_t span = 0;
	size_t i;

	for (i = 0; i < p->nr_extents; i++) {
		uintptr_t end = p->extents[i].start + p->extents[i].size;
		uintptr_t next = i + 1 < p->nr_extents ?
			p->extents[i + 1].start : end;

		span += next - p->extents[i].start < FAR + p->extents[i].size ?
			next - p->extents[i].start : p->extents[i].size;
		if (i + 1 == p->nr_extents)
			span += p->extents[i].size;
	}
	return span ? span : 1;
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

static void draw_extents(FILE *f, const struct panel *p, bool spilled, int top)
{
	uintptr_t row_span = drawn_span(p) / ROWS + 1, at = 0;
	size_t i;

	fprintf(f, "<g fill=\"%s\">\n", colours[spilled ? SPILLED : REQUESTED]);
	for (i = 0; i < p->nr_extents; i++) {
		const struct extent *e = &p->extents[i];
		uintptr_t step = i + 1 < p->nr_extents ?
			e[1].start - e->start : e->size;

		if (e->spilled == spilled)
			draw_extent(f, at, e->size, row_span, top);
		at += step < FAR + e->size ? step : e->size;
	}
	fputs("</g>\n", f);
}

static void draw_map(FILE *f, const struct panel *p, bool spills, int top)
{
	const uintptr_t row_span = drawn_span(p) / ROWS + 1;

	fprintf(f, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"#eee\"/>\n",
		MAP_LEFT, top, MAP_WIDTH, HEIGHT);
	draw_extents(f, p, false, top);
	if (spills)
		draw_extents(f, p, true, top);
	fprintf(f, "<text x=\"%d\" y=\"%d\">%zu blocks at the peak over %s of addresses, a row is %s</text>\n",
		MAP_LEFT, top + HEIGHT + 16, p->nr_extents,
		size_text(drawn_span(p)), size_text(row_span));
}

static void draw_panel(FILE *f, const struct panel *p,
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
	struct panel *p;
	size_t i;

	one_thread.concurrent = false;
	fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%zu\" viewBox=\"0 0 %d %zu\" font-family=\"sans-serif\" font-size=\"11\">\n"
		"<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
		MAP_LEFT + MAP_WIDTH + 20, nr * PANEL_HEIGHT,
		MAP_LEFT + MAP_WIDTH + 20, nr * PANEL_HEIGHT);
	for (i = 0; !status && i < nr; i++) {
		p = xcalloc(1, sizeof(*p));
		status = take_samples(p, hm, &results[i], &one_thread);
		if (!status)
			draw_panel(f, p, &results[i],
				   i * PANEL_HEIGHT + TOP);
		free(p->extents);
		free(p);
	}
	fputs("</svg>\n", f);
	return status;
}
