/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the subcommands share: exit statuses and one-line errors, printing
 * what others wrote (names of mappings, files of /proc) without letting it
 * reach the terminal raw, tables, sizes, time, files under another root.
 */
#ifndef HETMEM_TOOLS_UTIL_H
#define HETMEM_TOOLS_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

/* Exit statuses of every subcommand. */
enum {
	EXIT_OK		= 0,
	EXIT_FAILED	= 1,	/* it ran, and the answer is no */
	EXIT_USAGE	= 2,	/* cannot do what was typed; one line says why */
	EXIT_CANNOT_RUN	= 126,	/* of a command that was to be started, as in a shell */
	EXIT_NOT_FOUND	= 127,
};

#define ARRAY_SIZE(a)	(sizeof(a) / sizeof((a)[0]))

/* Of figures that were taken with the soft driver. */
#define SOFT_TIMES	"the soft driver plays a GPU in software: no time is a GPU's"
#define SOFT_PEER	"the soft driver's own calls are an imitation in software"

/* For the error of those that cannot. */
#define JSON_SUBCOMMANDS	"doctor, map, status, report, list, replay and bench have it"

#define printf_like(fmt, first)	__attribute__((format(printf, fmt, first)))

int cmd_doctor(int argc, char **argv);
int cmd_map(int argc, char **argv);
int cmd_advise(int argc, char **argv);
int cmd_list(int argc, char **argv);
int cmd_keep(int argc, char **argv);
int cmd_top(int argc, char **argv);
int cmd_tune(int argc, char **argv);
int cmd_status(int argc, char **argv);
int cmd_run(int argc, char **argv);
int cmd_demo(int argc, char **argv);
int cmd_record(int argc, char **argv);
int cmd_report(int argc, char **argv);
int cmd_prefetch(int argc, char **argv);
int cmd_pullback(int argc, char **argv);
int cmd_sleep(int argc, char **argv);
int cmd_wake(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_reclaim(int argc, char **argv);
int cmd_set(int argc, char **argv);
int cmd_spec(int argc, char **argv);
int cmd_replay(int argc, char **argv);
int cmd_completion(int argc, char **argv);

/*
 * Writes "hetmem SUB: message" as one line on stderr, control characters
 * escaped. @sub may be NULL. Returns @status, so that a caller can return it.
 */
int complain(int status, const char *sub, const char *fmt, ...)
	printf_like(3, 4);

/* As complain() with EXIT_USAGE, and says where the options are listed. */
int usage_error(const char *sub, const char *fmt, ...) printf_like(2, 3);

/* The line for a process that may not be looked at. Returns EXIT_FAILED. */
int not_permitted(const char *sub, pid_t pid);

/* The line for a command that is not there. Returns EXIT_NOT_FOUND. */
int no_command(const char *sub, const char *command);

/*
 * The line for an option that getopt_long() refused (':' or '?', opterr 0).
 * Returns EXIT_USAGE.
 */
int option_error(const char *sub, int c, char **argv);

/*
 * Copies @src to @dst with every byte that is not printable ASCII written as
 * \xNN; cuts at @len, which includes the NUL. Returns @dst.
 */
char *escape(char *dst, size_t len, const char *src);

/* "cuda" or "soft", as --driver takes it. */
bool is_driver(const char *s);

/* These end the program with one line if there is no memory. */
void *xcalloc(size_t n, size_t size);
void *xrealloc_array(void *p, size_t n, size_t size);
char *xstrdup(const char *s);
char *xasprintf(const char *fmt, ...) printf_like(1, 2);
/* escape() of all of @src. */
char *xescape(const char *src);

/* "START-END" in hexadecimal, widened to whole pages. */
bool parse_range(const char *s, uint64_t *start, uint64_t *end);

/* A decimal number from @min to @max, and nothing else. */
bool parse_number(const char *s, long min, long max, long *value);

/* A number of MiB from @min to @max, or a size with a unit, as bytes. */
bool parse_mib(const char *s, uint64_t min, uint64_t max, uint64_t *bytes);

/* "64 MiB", "1.5 GiB"; a static buffer for each of 8 calls in turn. */
const char *size_text(uint64_t bytes);

/* Monotonic seconds. */
double now(void);

/*
 * Reads at most @max bytes of the file @root + @path, NUL-terminated and
 * malloc'd; *@len (may be NULL) is its length. NULL with errno if it cannot
 * be read (EFBIG if it is longer).
 */
char *read_file(const char *root, const char *path, size_t max, size_t *len);

/* read_file() of one line, without its newline, control characters escaped. */
char *read_line(const char *root, const char *path);

/* Bytes of memory that the kernel thinks can be had, 0 if it does not say. */
size_t available_memory(void);

/* Whether and how to colour. */
enum colour_mode { COLOUR_AUTO, COLOUR_ALWAYS, COLOUR_NEVER };

/* "auto", "always", "never"; false if @s is none of them. */
bool colour_parse(const char *s, enum colour_mode *mode);

/* For stdout: a terminal that is not dumb, and NO_COLOR is not set. */
bool colour_wanted(enum colour_mode mode);

/* Columns of the terminal on stdout, else of COLUMNS, else 80. */
int terminal_width(void);

/*
 * A table of @columns; a header of NULL has no header line. Cells are
 * escaped and copied. table_print() prints and frees it.
 */
struct table;

struct table_column {
	const char *header;
	bool right;		/* numbers */
};

/* Bytes of the first words of @text, one at least, that fit into @room columns. */
size_t words_that_fit(const char *text, size_t room);
/* Prints @text from column @indent on, and wraps between words; @width 0: it does not. */
void print_words(const char *text, int indent, int width);

struct table *table_new(const struct table_column *columns, int nr);
void table_row(struct table *table, const char *const *cells);
void table_print(struct table *table);

#endif
