/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * One HTML page of `hetmem report` and `hetmem replay`: page.html, which is part of the
 * command, with data in JSON. The page loads nothing, and refuses to by its own policy.
 *
 * The data: { title, sub: [line], findings: [{ text, lines, commands }], panels: [{ name, text,
 * unit: "s" or "steps", end, limit, lines: [{ name, colour, values }], bars: [{ the same,
 * bytes }], heat: null or { name, timed, rows: [label], keys: [{ mark, name, colour, opacity }],
 * cells: [row of marks] }, tables: [{ name, head, rows: [[share, cell...]] }] }] }.
 * Colours are 0 to 7.
 */
#ifndef HETMEM_TOOLS_PAGE_H
#define HETMEM_TOOLS_PAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* What comes before and after the data. */
void page_begin(FILE *f);
void page_end(FILE *f);

/* A string of JSON, in quotes, for a page: no character of it can end the data. */
void page_text(FILE *f, const char *text);

/* A row of a table: its @share of the largest, then @nr cells. */
void page_row(FILE *f, bool first, double share, const char *const *cells, size_t nr);

#endif /* HETMEM_TOOLS_PAGE_H */
