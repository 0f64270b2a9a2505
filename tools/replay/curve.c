/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * `hetmem replay --curve`: an SVG of what each spec costs in time against what
 * it saves in memory: first pass over the peer's (under 1 is faster) to the
 * right, the ratio upwards. The time's axis is logarithmic. Points of specs
 * that differ in the value of one parameter alone are joined, a line for each
 * trace, and named by that value; others are squares with the name of the spec.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "replay.h"

#define LEFT	70
#define TOP	40
#define WIDTH	760
#define HEIGHT	420

static const char *const colours[] = {
	"#2a5d9f", "#c0392b", "#27864b", "#8e44ad", "#b9770e", "#16808a",
};

/* Milliseconds, where there is no peer. */
static double cost(const struct replay_result *r)
{
	return r->peer_pass[0].median > 0 ?
		r->pass[0].median / r->peer_pass[0].median : r->pass[0].median;
}

struct axes {
	double least;		/* of the logarithm of the cost */
	double most;
	double top;		/* of the ratio, from 1 */
};

static double place_x(const struct axes *a, double value)
{
	return LEFT + (log2(value) - a->least) * WIDTH / (a->most - a->least);
}

static double place_y(const struct axes *a, double ratio)
{
	return TOP + HEIGHT - (ratio - 1) * HEIGHT / (a->top - 1);
}

static struct axes find_axes(const struct replay_result *results, size_t nr)
{
	struct axes a = { .least = 1e9, .most = -1e9, .top = 1.02 };
	size_t i;

	for (i = 0; i < nr; i++) {
		double x = cost(&results[i]) > 0 ? log2(cost(&results[i])) : 0;

		a.least = fmin(a.least, floor(x));
		a.most = fmax(a.most, ceil(x));
		a.top = fmax(a.top, results[i].ratio * 1.01);
	}
	if (a.most <= a.least)
		a.most = a.least + 1;
	return a;
}

static void draw_axes(FILE *f, const struct axes *a, const struct replay_result *first)
{
	int i;

	for (i = a->least; i <= a->most; i++)
		fprintf(f, "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"#ddd\"/>\n"
			"<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%.4g</text>\n",
			place_x(a, exp2(i)), TOP, place_x(a, exp2(i)),
			TOP + HEIGHT, place_x(a, exp2(i)), TOP + HEIGHT + 16,
			exp2(i));
	for (i = 0; i <= 5; i++) {
		double ratio = 1 + (a->top - 1) * i / 5;

		fprintf(f, "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#ddd\"/>\n"
			"<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.3f</text>\n",
			LEFT, place_y(a, ratio), LEFT + WIDTH,
			place_y(a, ratio), LEFT - 6, place_y(a, ratio) + 4,
			ratio);
	}
	fprintf(f, "<text x=\"%d\" y=\"%d\">%s</text>\n<text x=\"%d\" y=\"%d\">peak reserved over peak requested</text>\n",
		LEFT, TOP + HEIGHT + 34, first->peer_pass[0].median > 0 ?
		"first pass over cuMemAllocAsync's" : first->soft ?
		"first pass, ms (soft driver: not a GPU's)" : "first pass, ms",
		LEFT - 50, TOP - 14);
}

/* @s up to one of the characters of @end. */
static void put_text(FILE *f, const char *s, const char *end)
{
	for (; *s && !strchr(end, *s); s++) {
		if (*s == '<' || *s == '&')
			fputs(*s == '<' ? "&lt;" : "&amp;", f);
		else if ((unsigned char)*s >= 0x20)
			fputc(*s, f);
	}
}

/*
 * Of specs that are alike up to the last '=', what comes after it; NULL for
 * others. There must be two of them.
 */
static const char *value_of(const struct replay_result *results, size_t nr,
			    size_t index)
{
	const char *spec = results[index].spec, *equals = strrchr(spec, '=');
	size_t i;

	if (!equals)
		return NULL;
	for (i = 0; i < nr; i++)
		if (i != index && !strncmp(results[i].spec, spec,
					   equals + 1 - spec))
			return equals + 1;
	return NULL;
}

static void draw_point(FILE *f, double x, double y, const char *colour,
		       const char *value, const char *spec)
{
	if (value)
		fprintf(f, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"/>\n",
			x, y, colour);
	else
		fprintf(f, "<rect x=\"%.1f\" y=\"%.1f\" width=\"8\" height=\"8\" fill=\"white\" stroke=\"%s\" stroke-width=\"2\"/>\n",
			x - 4, y - 4, colour);
	fprintf(f, "<text x=\"%.1f\" y=\"%.1f\" font-size=\"10\" fill=\"%s\">",
		x + 6, y - 5, colour);
	if (value)
		put_text(f, value, ",)");
	else
		put_text(f, spec, "");
	fputs("</text>\n", f);
}

static void draw_trace(FILE *f, const struct axes *a,
		       const struct replay_result *results, size_t nr,
		       size_t index)
{
	const char *colour = colours[index % ARRAY_SIZE(colours)];
	size_t i;

	fprintf(f, "<polyline fill=\"none\" stroke=\"%s\" points=\"", colour);
	for (i = 0; i < nr; i++)
		if (value_of(results, nr, i))
			fprintf(f, "%.1f,%.1f ",
				place_x(a, cost(&results[i])),
				place_y(a, results[i].ratio));
	fprintf(f, "\"/>\n<text x=\"%d\" y=\"%zu\" fill=\"%s\">",
		LEFT + WIDTH + 16, TOP + 18 * index + 12, colour);
	put_text(f, results[0].trace->name, "");
	fputs("</text>\n", f);
	for (i = 0; i < nr; i++)
		draw_point(f, place_x(a, cost(&results[i])),
			   place_y(a, results[i].ratio), colour,
			   value_of(results, nr, i), results[i].spec);
}

void replay_curve(FILE *f, const struct replay_result *results, size_t nr,
		  size_t specs)
{
	struct axes a = find_axes(results, nr);
	size_t i;

	fprintf(f, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" font-family=\"sans-serif\" font-size=\"11\">\n"
		"<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
		LEFT + WIDTH + 180, TOP + HEIGHT + 50,
		LEFT + WIDTH + 180, TOP + HEIGHT + 50);
	draw_axes(f, &a, &results[0]);
	for (i = 0; i < nr / specs; i++)
		draw_trace(f, &a, results + i * specs, specs, i);
	fputs("</svg>\n", f);
}
