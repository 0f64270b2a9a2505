/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * `hetmem replay --html`: a panel for each run. Its timeline has requested, reserved and spilled
 * bytes by steps, its map the addresses at the peak, and its tables the blocks there.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "page/page.h"
#include "samples.h"

#define ROWS		32
#define COLUMNS		120
#define SIZES		12	/* rows of a table */

/* Blocks of one size, or of one class of sizes: to a power of 2. */
struct group {
	uint64_t size, nr, bytes;
};

static int by_size(const void *a, const void *b)
{
	const struct group *x = a, *y = b;

	return (x->size > y->size) - (x->size < y->size);
}

static int by_bytes(const void *a, const void *b)
{
	const struct group *x = a, *y = b;

	return x->bytes != y->bytes ? (x->bytes < y->bytes) - (x->bytes > y->bytes) : by_size(a, b);
}

static uint64_t class_of(uint64_t size)
{
	uint64_t class = 512;

	while (class < size)
		class *= 2;
	return class;
}

/* The groups of the blocks at the peak, by size. */
static struct group *make_groups(const struct replay_samples *p, bool classes, size_t *nr)
{
	struct group *groups = xcalloc(p->nr_extents + 1, sizeof(*groups));
	size_t i;

	for (i = 0; i < p->nr_extents; i++) {
		const uint64_t size = p->extents[i].size;

		groups[i] = (struct group){ classes ? class_of(size) : size, 1, size };
	}
	qsort(groups, p->nr_extents, sizeof(*groups), by_size);
	*nr = 0;
	for (i = 0; i < p->nr_extents; i++) {
		if (*nr && groups[*nr - 1].size == groups[i].size) {
			groups[*nr - 1].nr++;
			groups[*nr - 1].bytes += groups[i].bytes;
		} else {
			groups[(*nr)++] = groups[i];
		}
	}
	return groups;
}

static void put_groups(FILE *f, const struct replay_samples *p, const char *name, bool classes)
{
	struct group *groups;
	uint64_t most = 1;
	size_t nr, i;

	groups = make_groups(p, classes, &nr);
	if (!classes)
		qsort(groups, nr, sizeof(*groups), by_bytes);
	for (i = 0; i < nr; i++)
		most = groups[i].bytes > most ? groups[i].bytes : most;
	fprintf(f, "{\"name\":\"%s\",\"head\":[\"%s\",\"blocks\",\"bytes\",\"\"],\"rows\":[", name,
		classes ? "up to" : "size");
	for (i = 0; i < nr && (classes || i < SIZES); i++) {
		char count[24], size[32];

		snprintf(count, sizeof(count), "%" PRIu64, groups[i].nr);
		/* A size that is rounded could be another row's. */
		if (groups[i].size % 1024)
			snprintf(size, sizeof(size), "%" PRIu64 " bytes", groups[i].size);
		else
			snprintf(size, sizeof(size), "%s", size_text(groups[i].size));
		page_row(f, !i, (double)groups[i].bytes / most,
			 (const char *[]){ size, count, size_text(groups[i].bytes) }, 3);
	}
	fputs("]}", f);
	free(groups);
}

static void put_values(FILE *f, const struct replay_samples *p, enum line line, const char *name,
		       int colour)
{
	size_t i;

	fprintf(f, "%s{\"name\":\"%s\",\"colour\":%d,\"values\":[", line ? "," : "", name, colour);
	for (i = 0; i < p->nr_samples; i++)
		fprintf(f, "%s%" PRIu64, i ? "," : "", p->samples[i].bytes[line]);
	fputs("]}", f);
}

static void put_moves(FILE *f, const struct replay_samples *p, int back)
{
	size_t i;

	fprintf(f, "%s{\"name\":\"%s\",\"colour\":%d,\"bytes\":false,\"values\":[", back ? "," : "",
		back ? "moves back" : "moves out", back ? 2 : 0);
	for (i = 0; i < p->nr_samples; i++)
		fprintf(f, "%s%u", i ? "," : "", p->samples[i].moves[back]);
	fputs("]}", f);
}

/* Adds @size bytes from @at on to the cells that they are in. */
static void fill(double *cells, double cell, double at, double size)
{
	size_t first = at / cell, last = (at + size) / cell, i;

	for (i = first; i <= last && i < ROWS * COLUMNS; i++) {
		const double from = i * cell > at ? i * cell : at;
		const double to = (i + 1) * cell < at + size ? (i + 1) * cell : at + size;

		if (to > from)
			cells[i] += (to - from) / cell;
	}
}

/* How full each piece of the addresses is: 0 to 4; s: what is there is on the host. */
static void put_map(FILE *f, const struct replay_samples *p)
{
	static const char *const names[] = {
		"free", "a quarter of it", "half", "three quarters", "blocks",
	};
	double *live = xcalloc(2 * ROWS * COLUMNS, sizeof(*live)), *away = live + ROWS * COLUMNS;
	const double cell = (double)replay_samples_span(p) / (ROWS * COLUMNS);
	uintptr_t at = 0;
	size_t i, row;

	for (i = 0; i < p->nr_extents; i++) {
		fill(p->extents[i].spilled ? away : live, cell, at, p->extents[i].size);
		at += replay_samples_step(p, i);
	}
	fputs("{\"name\":\"Addresses at the peak\",\"timed\":false,\"keys\":[", f);
	for (i = 1; i < ARRAY_SIZE(names); i++)
		fprintf(f, "{\"mark\":\"%zu\",\"name\":\"%s\",\"colour\":1,\"opacity\":%.2f},", i, names[i],
			i / 4.0);
	fputs("{\"mark\":\"s\",\"name\":\"on the host\",\"colour\":0}],\"rows\":[", f);
	for (row = 0; row < ROWS; row++) {
		fprintf(f, "%s", row ? "," : "");
		page_text(f, size_text(row * COLUMNS * cell));
	}
	fputs("],\"cells\":[", f);
	for (row = 0; row < ROWS; row++) {
		fputs(row ? ",\"" : "\"", f);
		for (i = row * COLUMNS; i < (row + 1) * COLUMNS; i++)
			fputc(away[i] > live[i] ? 's' : live[i] > 0.99 ? '4' :
			      live[i] > 0 ? '1' + (int)(live[i] * 3) : '.', f);
		fputc('"', f);
	}
	fputs("]}", f);
	free(live);
}

static void put_panel(FILE *f, const struct replay_samples *p, const struct replay_result *r,
		      bool first)
{
	char *name = xasprintf("%s, %s", r->trace->name, r->spec);
	char *text = xasprintf("%s driver: %s requested, %s reserved, ratio %.4f; %zu blocks at the peak",
			       r->driver, size_text(r->peak_requested), size_text(r->peak_reserved),
			       r->ratio, p->nr_extents);

	fprintf(f, "%s{\"name\":", first ? "" : ",");
	page_text(f, name);
	fputs(",\"text\":", f);
	page_text(f, text);
	fprintf(f, ",\"unit\":\"steps\",\"end\":%zu,\"limit\":%" PRIu64 ",\"lines\":[", r->trace->nr,
		r->spill.limit);
	put_values(f, p, REQUESTED, "requested", 1);
	put_values(f, p, RESERVED, "reserved on the device", 2);
	if (r->spill.known)
		put_values(f, p, SPILLED, "spilled to the host", 0);
	fputs("],\"bars\":[", f);
	if (r->spill.known) {
		put_moves(f, p, 0);
		put_moves(f, p, 1);
	}
	fputs("],\"heat\":", f);
	if (p->nr_extents)
		put_map(f, p);
	else
		fputs("null", f);
	fputs(",\"tables\":[", f);
	put_groups(f, p, "Blocks at the peak, by size", false);
	fputc(',', f);
	put_groups(f, p, "Blocks at the peak, by class of sizes", true);
	fputs("]}", f);
	free(name);
	free(text);
}

/* The name of a file in a command. */
static char *shell_word(const char *path)
{
	static const char plain[] =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./,=+:@";
	char *word, *to;
	const char *c;

	if (*path && strspn(path, plain) == strlen(path))
		return xstrdup(path);
	word = xcalloc(4 * strlen(path) + 3, 1);
	to = word;
	*to++ = '\'';
	for (c = path; *c; c++) {
		if (*c == '\'')
			to = stpcpy(to, "'\\''");
		else
			*to++ = *c;
	}
	*to = '\'';
	return word;
}

static void put_finding(FILE *f, bool *first, const char *text, const char *line, const char *command)
{
	fprintf(f, "%s{\"text\":", *first ? "" : ",");
	*first = false;
	page_text(f, text);
	fputs(",\"lines\":[", f);
	page_text(f, line);
	fputs("],\"commands\":[", f);
	page_text(f, command);
	fputs("]}", f);
}

static void find_fullest(FILE *f, bool *first, const struct replay_samples *p,
			 const struct replay_result *r, const char *path)
{
	struct group *groups;
	size_t nr, i;
	uint64_t sum = 0;
	char *text, *command;

	groups = make_groups(p, false, &nr);
	qsort(groups, nr, sizeof(*groups), by_bytes);
	for (i = 0; i < nr && i < 3; i++)
		sum += groups[i].bytes;
	text = xasprintf("%s: blocks of %zu %s hold %s of %s at the peak", r->trace->name, i,
			 i == 1 ? "size" : "sizes", size_text(sum), size_text(r->peak_requested));
	command = xasprintf("hetmem replay --spill %" PRIu64 "M --max 75%% --moves %s",
			    (r->peak_requested >> 20) + 1, path);
	if (nr)
		put_finding(f, first, text,
			    "To see which blocks would move if only three quarters of the peak fitted:", command);
	free(groups);
	free(text);
	free(command);
}

static void find_held(FILE *f, bool *first, const struct replay_result *r, const char *path)
{
	char *text, *command;

	if (r->peak_reserved <= r->peak_requested || r->ratio < 1.03)
		return;
	text = xasprintf("%s, %s: %s are held beyond what the program requested", r->trace->name,
			 r->spec, size_text(r->peak_reserved - r->peak_requested));
	command = xasprintf("hetmem replay --memory --spec device-pool --spec 'device-pool(handle=2M)' %s",
			    path);
	put_finding(f, first, text, "To compare the memory of other specs on the same recording:", command);
	free(text);
	free(command);
}

static void find_failures(FILE *f, bool *first, const struct replay_result *r, const char *path)
{
	char *text, *command;

	if (!r->failures)
		return;
	text = xasprintf("%s, %s: %" PRIu64 " allocations failed: %s", r->trace->name, r->spec,
			 r->failures, r->why);
	command = xasprintf("hetmem replay --spill %" PRIu64 "M --max 75%% %s",
			    (r->peak_requested >> 20) + 1, path);
	put_finding(f, first, text, "Raise max=, or let blocks move to the host:", command);
	free(text);
	free(command);
}

int replay_page(FILE *f, struct hetmem *hm, const struct replay_result *results, size_t nr,
		char *const *paths, size_t specs, const struct replay_how *how)
{
	struct replay_samples **p = xcalloc(nr, sizeof(*p));
	struct replay_how one_thread = *how;
	int status = EXIT_OK;
	bool first = true;
	size_t i;

	one_thread.concurrent = false;
	for (i = 0; !status && i < nr; i++) {
		p[i] = xcalloc(1, sizeof(*p[i]));
		status = replay_samples_take(p[i], hm, &results[i], &one_thread);
	}
	if (!status) {
		page_begin(f);
		fputs("{\"title\":\"hetmem replay\",\"sub\":[", f);
		page_text(f, results[0].soft ?
			  "The soft driver plays a GPU in software." : "Replayed on a GPU.");
		fputs("],\"findings\":[", f);
		for (i = 0; i < nr; i++) {
			char *path = shell_word(paths[i / specs]);

			if (!(i % specs))
				find_fullest(f, &first, p[i], &results[i], path);
			find_held(f, &first, &results[i], path);
			find_failures(f, &first, &results[i], path);
			free(path);
		}
		fputs("],\"panels\":[", f);
		for (i = 0; i < nr; i++)
			put_panel(f, p[i], &results[i], !i);
		fputs("]}", f);
		page_end(f);
	}
	for (i = 0; i < nr && p[i]; i++)
		replay_samples_free(p[i]);
	free(p);
	return status;
}
