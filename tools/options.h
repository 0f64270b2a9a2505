/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The options of all subcommands, in one table. Subcommands parse their command line by it,
 * 'hetmem completion' makes the shells' completion from it. A new option is one row.
 */
#ifndef HETMEM_TOOLS_OPTIONS_H
#define HETMEM_TOOLS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

/**
 * struct command - a subcommand, or a benchmark of 'hetmem bench'
 * @name: as it is typed
 * @run: gets the arguments from the name on; returns the exit status
 * @help: for the list of commands
 */
struct command {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *help;
};

extern const struct command subcommands[];
extern const size_t nr_subcommands;
extern const struct command benches[];
extern const size_t nr_benches;

/* Of one command, without --help. */
#define MAX_OPTIONS	16

/**
 * struct option_row - one option
 * @name: without the dashes
 * @letter: what next_option() returns for it
 * @value: NULL: it takes none. "a|b=N": one of these words. FILE, FILE.svg, DIR, PID, SPEC
 *	and COMMAND are completed as such. Any other text only names the value.
 * @typed: -@letter does the same
 * @hidden: never completed
 */
struct option_row {
	const char *name;
	char letter;
	const char *value;
	bool typed;
	bool hidden;
};

/**
 * struct options_of - the options of one command
 * @command: its name, "bench NAME" for a benchmark; NULL ends the table
 * @argument: what may follow the options, as option_row.value; NULL: nothing. COMMAND ends the
 *	options: those behind it are that command's
 * @rows: a NULL name ends them
 */
struct options_of {
	const char *command;
	const char *argument;
	struct option_row rows[MAX_OPTIONS + 1];
};

extern const struct options_of options_table[];

/*
 * getopt_long() with the options of @command, --help and -h, which return 'h'. Errors return
 * ':' or '?', for option_error().
 */
int next_option(const char *command, int argc, char **argv);

/* Whether any command has the option @typed, which may have a value: "--work=idle". */
bool is_option(const char *typed);

#endif
