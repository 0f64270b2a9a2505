/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Tables: by libsmartcols, which wraps the last column to the terminal, or
 * in plain columns where the tool was built without it.
 */
#include <stdlib.h>
#include <string.h>

#include "util.h"

#ifdef HAVE_LIBSMARTCOLS
#include <libsmartcols/libsmartcols.h>
#endif

#define CELL_MAX	2048

struct table {
	int nr_columns;
#ifdef HAVE_LIBSMARTCOLS
	struct libscols_table *scols;
#else
	const struct table_column *columns;
	size_t nr_rows;
	char **cells;
#endif
};

#ifdef HAVE_LIBSMARTCOLS
struct table *table_new(const struct table_column *columns, int nr)
{
	struct table *table = xcalloc(1, sizeof(*table));
	bool headers = false;
	int i;

	/* libsmartcols checks its debug mask whether it was set or not. */
	scols_init_debug(0);
	table->nr_columns = nr;
	table->scols = scols_new_table();
	if (!table->scols)
		exit(complain(EXIT_FAILED, NULL, "out of memory"));
	for (i = 0; i < nr; i++) {
		int flags = columns[i].right ? SCOLS_FL_RIGHT : 0;

		if (i == nr - 1 && !columns[i].right)
			flags |= SCOLS_FL_WRAP;
		scols_table_new_column(table->scols,
				       columns[i].header ? columns[i].header :
				       "", 0, flags);
		headers |= !!columns[i].header;
	}
	/* Cells are escaped here; escaped again they would not be legible. */
	scols_table_enable_noencoding(table->scols, 1);
	scols_table_enable_noheadings(table->scols, !headers);
	return table;
}

void table_row(struct table *table, const char *const *cells)
{
	struct libscols_line *line;
	char cell[CELL_MAX];
	int i;

	line = scols_table_new_line(table->scols, NULL);
	if (!line)
		exit(complain(EXIT_FAILED, NULL, "out of memory"));
	for (i = 0; i < table->nr_columns; i++)
		scols_line_set_data(line, i,
				    escape(cell, sizeof(cell),
					   cells[i] ? cells[i] : ""));
}

void table_print(struct table *table)
{
	scols_print_table(table->scols);
	scols_unref_table(table->scols);
	free(table);
}
#else
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

void table_print(struct table *table)
{
	int *widths = xcalloc(table->nr_columns, sizeof(*widths));
	size_t row;
	int i;

	for (row = 0; row < table->nr_rows; row++) {
		for (i = 0; i < table->nr_columns; i++) {
			int len = strlen(table->cells[row * table->nr_columns +
						      i]);

			if (len > widths[i])
				widths[i] = len;
		}
	}
	for (row = 0; row < table->nr_rows; row++) {
		for (i = 0; i < table->nr_columns; i++) {
			char *cell = table->cells[row * table->nr_columns + i];
			bool last = i == table->nr_columns - 1;

			if (table->columns[i].right)
				printf("%*s", widths[i], cell);
			else
				printf("%-*s", last ? 0 : widths[i], cell);
			putchar(last ? '\n' : ' ');
			free(cell);
		}
	}
	free(widths);
	free(table->cells);
	free(table);
}
#endif
