/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Tables. On a terminal the last column is wrapped, and only between words. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "util.h"

#define CELL_MAX	2048

/* The last column is not squeezed into less than this. */
#define LEAST_ROOM	20

struct table {
	int nr_columns;
	const struct table_column *columns;
	size_t nr_rows;
	char **cells;
};

struct table *table_new(const struct table_column *columns, int nr)
{
	struct table *table = xcalloc(1, sizeof(*table));
	const char **headers = xcalloc(nr, sizeof(*headers));
	bool any = false;
	int i;

	table->nr_columns = nr;
	table->columns = columns;
	for (i = 0; i < nr; i++) {
		headers[i] = columns[i].header;
		any |= !!columns[i].header;
	}
	if (any)
		table_row(table, headers);
	free(headers);
	return table;
}

void table_row(struct table *table, const char *const *cells)
{
	size_t at = table->nr_rows * table->nr_columns;
	char cell[CELL_MAX];
	int i;

	table->nr_rows++;
	table->cells = xrealloc_array(table->cells,
				      table->nr_rows * table->nr_columns,
				      sizeof(*table->cells));
	for (i = 0; i < table->nr_columns; i++)
		table->cells[at + i] =
			xstrdup(escape(cell, sizeof(cell),
				       cells[i] ? cells[i] : ""));
}

size_t words_that_fit(const char *text, size_t room)
{
	size_t at = 0, fits = 0;

	while (text[at]) {
		at += strspn(text + at, " ");
		at += strcspn(text + at, " ");
		if (at > room && fits)
			break;
		fits = at;
	}
	return fits;
}

void print_words(const char *text, int indent, int width)
{
	const int room = width - indent;
	size_t n;

	if (!width || room < LEAST_ROOM) {
		puts(text);
		return;
	}
	for (;;) {
		n = words_that_fit(text, room);
		printf("%.*s\n", (int)n, text);
		text += n + strspn(text + n, " ");
		if (!*text)
			return;
		printf("%*s", indent, "");
	}
}

void table_print(struct table *table)
{
	const int width = isatty(STDOUT_FILENO) ? terminal_width() : 0;
	int *widths = xcalloc(table->nr_columns, sizeof(*widths));
	int i, indent = 0;
	size_t row;

	for (row = 0; row < table->nr_rows; row++) {
		for (i = 0; i < table->nr_columns; i++) {
			int len = strlen(table->cells[row * table->nr_columns +
						      i]);

			if (len > widths[i])
				widths[i] = len;
		}
	}
	for (i = 0; i < table->nr_columns - 1; i++)
		indent += widths[i] + 1;
	for (row = 0; row < table->nr_rows; row++) {
		for (i = 0; i < table->nr_columns; i++) {
			char *cell = table->cells[row * table->nr_columns + i];
			const bool last = i == table->nr_columns - 1;

			if (table->columns[i].right)
				printf("%*s%s", widths[i], cell, last ? "\n" : " ");
			else if (last)
				print_words(cell, indent, width);
			else
				printf("%-*s ", widths[i], cell);
			free(cell);
		}
	}
	free(widths);
	free(table->cells);
	free(table);
}
