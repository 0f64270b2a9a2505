/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem completion: the completion of bash or zsh, from the tables of commands and options.
 * bash gets its words from one case statement. zsh gets specifications for _arguments.
 */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "options.h"
#include "spec/spec.h"
#include "util.h"

static bool is_spec(const char *value)
{
	return !strcmp(value, "SPEC");
}

/* What completes a value. */
enum kind { KIND_NONE, KIND_WORDS, KIND_FILE, KIND_DIRECTORY, KIND_PID, KIND_COMMAND };

static enum kind kind_of(const char *value)
{
	if (!value)
		return KIND_NONE;
	if (strchr(value, '|') || is_spec(value))
		return KIND_WORDS;
	if (!strcmp(value, "FILE") || !strcmp(value, "FILE.svg"))
		return KIND_FILE;
	if (!strcmp(value, "DIR"))
		return KIND_DIRECTORY;
	if (!strcmp(value, "COMMAND"))
		return KIND_COMMAND;
	return strcmp(value, "PID") ? KIND_NONE : KIND_PID;
}

/* The words of @value, with a blank before each: of "lag=US" the part that is typed as it is. */
static void print_values(const char *value)
{
	const struct hm_kind *kind;
	size_t len;

	if (is_spec(value)) {
		for (kind = hm_kinds; kind->name; kind++)
			printf(" %s", kind->name);
		return;
	}
	for (;; value += len + 1) {
		const char *equals;

		len = strcspn(value, "|");
		equals = memchr(value, '=', len);
		printf(" %.*s", (int)(equals ? equals + 1 - value : (long)len), value);
		if (!value[len])
			return;
	}
}

static void print_names(const struct command *commands, size_t nr)
{
	size_t i;

	for (i = 0; i < nr; i++)
		printf(" %s", commands[i].name);
}

static void bash_kind(const char *value)
{
	static const char *const kinds[] = {
		[KIND_NONE] = "none", [KIND_FILE] = "file",
		[KIND_DIRECTORY] = "directory", [KIND_PID] = "pid",
		[KIND_COMMAND] = "command",
	};
	const enum kind kind = kind_of(value);

	if (is_spec(value)) {
		puts("words=$specs ;;");
	} else if (kind == KIND_WORDS) {
		printf("words='");
		print_values(value);
		puts("' ;;");
	} else {
		printf("kind='%s' ;;\n", kinds[kind]);
	}
}

static void bash(void)
{
	const struct option_row *row;
	const struct options_of *of;

	puts("# bash completion of hetmem, made by: hetmem completion bash\n"
	     "_hetmem()\n"
	     "{\n"
	     "\tlocal cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]}\n"
	     "\tlocal command=${COMP_WORDS[1]} words='' kind='none'\n"
	     "\tlocal \\");
	printf("\t\tspecs='");
	print_values("SPEC");
	puts("'\n"
	     "\n"
	     "\tCOMPREPLY=()\n"
	     "\t# Readline makes three words of --option=value.\n"
	     "\tif [ \"$cur\" = = ]; then\n"
	     "\t\tcur=''\n"
	     "\telif [ \"$prev\" = = ]; then\n"
	     "\t\tprev=${COMP_WORDS[COMP_CWORD - 2]}\n"
	     "\tfi\n"
	     "\tif [ \"$command\" = bench ] && [ \"$COMP_CWORD\" -gt 2 ]; then\n"
	     "\t\tcommand=\"bench ${COMP_WORDS[2]}\"\n"
	     "\tfi\n"
	     "\tcase \"$COMP_CWORD $command $prev\" in");
	printf("\t1\\ *) words='");
	print_names(subcommands, nr_subcommands);
	printf(" --help --version' ;;\n\t2\\ bench\\ *) words='");
	print_names(benches, nr_benches);
	puts(" --help' ;;");
	for (of = options_table; of->command; of++)
		for (row = of->rows; row->name; row++)
			if (row->value) {
				printf("\t*' %s --%s') ", of->command, row->name);
				bash_kind(row->value);
			}
	puts("\t*)\n"
	     "\t\tcase \"$command $cur\" in");
	for (of = options_table; of->command; of++) {
		printf("\t\t'%s -'*) words='", of->command);
		for (row = of->rows; row->name; row++)
			if (!row->hidden)
				printf(" --%s", row->name);
		puts(" --help' ;;");
		if (of->argument) {
			printf("\t\t'%s '*) ", of->command);
			bash_kind(of->argument);
		}
	}
	puts("\t\tesac ;;\n"
	     "\tesac\n"
	     "\tcase $kind in\n"
	     "\tfile) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -f -- \"$cur\") ;;\n"
	     "\tdirectory) compopt -o filenames; mapfile -t COMPREPLY < <(compgen -d -- \"$cur\") ;;\n"
	     "\tcommand) mapfile -t COMPREPLY < <(compgen -c -- \"$cur\") ;;\n"
	     "\tpid) words=$(cd /proc && echo [0-9]*) ;;\n"
	     "\tesac\n"
	     "\t[ -z \"$words\" ] || mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$cur\")\n"
	     "\tcase ${COMPREPLY[*]} in\n"
	     "\t*=) compopt -o nospace ;;\n"
	     "\tesac\n"
	     "}\n"
	     "complete -F _hetmem hetmem");
}

/* ":NAME:ACTION" of _arguments. */
static void zsh_value(const char *value)
{
	static const char *const actions[] = {
		[KIND_NONE] = " ", [KIND_FILE] = "_files",
		[KIND_DIRECTORY] = "_directories", [KIND_PID] = "_pids",
		[KIND_COMMAND] = "_command_names -e",
	};
	const enum kind kind = kind_of(value);

	if (kind == KIND_WORDS) {
		printf(":%s:(", is_spec(value) ? value : "value");
		print_values(value);
		putchar(')');
	} else {
		printf(":%s:%s", value, actions[kind]);
	}
}

static void zsh_commands(const char *name, const struct command *commands, size_t nr)
{
	const char *c;
	size_t i;

	printf("\tlocal -a %s=(\n", name);
	for (i = 0; i < nr; i++) {
		printf("\t\t'%s:", commands[i].name);
		for (c = commands[i].help; *c; c++)
			*c == '\'' ? (void)fputs("'\\''", stdout) : (void)putchar(*c);
		puts("'");
	}
	puts("\t)");
}

static void zsh(void)
{
	const struct option_row *row;
	const struct options_of *of;

	puts("#compdef hetmem\n"
	     "# zsh completion of hetmem, made by: hetmem completion zsh\n"
	     "_hetmem()\n"
	     "{");
	/* Not "commands": that is zsh's own table, which _command_names reads. */
	zsh_commands("subcommands", subcommands, nr_subcommands);
	zsh_commands("benches", benches, nr_benches);
	puts("\tlocal command\n"
	     "\n"
	     "\tif (( CURRENT == 2 )); then\n"
	     "\t\t_describe command subcommands -- '( --help --version )'\n"
	     "\t\treturn\n"
	     "\tfi\n"
	     "\tshift words\n"
	     "\t(( CURRENT-- ))\n"
	     "\tcommand=$words[1]\n"
	     "\tif [[ $command = bench ]]; then\n"
	     "\t\tif (( CURRENT == 2 )); then\n"
	     "\t\t\t_describe benchmark benches -- '( --help )'\n"
	     "\t\t\treturn\n"
	     "\t\tfi\n"
	     "\t\tshift words\n"
	     "\t\t(( CURRENT-- ))\n"
	     "\t\tcommand=\"bench $words[1]\"\n"
	     "\tfi\n"
	     "\tcase $command in");
	for (of = options_table; of->command; of++) {
		printf("\t'%s')\n\t\t_arguments --help", of->command);
		for (row = of->rows; row->name; row++) {
			if (row->hidden)
				continue;
			printf(" \\\n\t\t\t'*--%s", row->name);
			if (row->value) {
				putchar('=');
				zsh_value(row->value);
			}
			putchar('\'');
		}
		if (of->argument) {
			printf(" \\\n\t\t\t'*");
			zsh_value(of->argument);
			putchar('\'');
		}
		puts(" ;;");
	}
	/* As a file of fpath it runs once it is loaded; sourced, it registers itself. */
	puts("\tesac\n"
	     "}\n"
	     "if [[ $funcstack[1] = _hetmem ]]; then\n"
	     "\t_hetmem \"$@\"\n"
	     "else\n"
	     "\tcompdef _hetmem hetmem\n"
	     "fi");
}

static void fish_text(const char *text)
{
	const char *c;

	putchar('\'');
	for (c = text; *c; c++) {
		if (*c == '\'' || *c == '\\')
			putchar('\\');
		putchar(*c);
	}
	putchar('\'');
}

static void fish_kind(const char *value, bool option)
{
	static const char *const actions[] = {
		[KIND_NONE] = "", [KIND_FILE] = " -F",
		[KIND_DIRECTORY] = " -a '(__fish_complete_directories)'",
		[KIND_PID] = " -a '(__fish_complete_pids)'",
		[KIND_COMMAND] = " -a '(__fish_complete_command)'",
	};
	const enum kind kind = kind_of(value);

	if (option)
		fputs(kind == KIND_FILE ? " -r" : " -x", stdout);
	if (kind == KIND_WORDS) {
		fputs(" -a '", stdout);
		print_values(value);
		putchar('\'');
	} else {
		fputs(actions[kind], stdout);
	}
}

static void fish_commands(const char *condition, const struct command *commands, size_t nr)
{
	size_t i;

	for (i = 0; i < nr; i++) {
		printf("complete -c hetmem -n '%s' -a %s -d ", condition, commands[i].name);
		fish_text(commands[i].help);
		putchar('\n');
	}
}

static void fish(void)
{
	const struct option_row *row;
	const struct options_of *of;

	puts("# fish completion of hetmem, made by: hetmem completion fish\n"
	     "function __hetmem_command\n"
	     "\tset -l words (commandline -opc)\n"
	     "\tset -e words[1]\n"
	     "\tif test \"$words[1]\" = bench; and test (count $words) -gt 1\n"
	     "\t\ttest \"$argv\" = \"bench $words[2]\"\n"
	     "\telse\n"
	     "\t\ttest \"$argv\" = \"$words[1]\"\n"
	     "\tend\n"
	     "end\n"
	     "complete -c hetmem -f\n"
	     "complete -c hetmem -l help\n"
	     "complete -c hetmem -n '__hetmem_command' -l version");
	fish_commands("__hetmem_command", subcommands, nr_subcommands);
	fish_commands("__hetmem_command bench", benches, nr_benches);
	for (of = options_table; of->command; of++) {
		for (row = of->rows; row->name; row++) {
			if (row->hidden)
				continue;
			printf("complete -c hetmem -n '__hetmem_command %s' -l %s", of->command,
			       row->name);
			if (row->typed)
				printf(" -s %c", row->letter);
			if (row->value)
				fish_kind(row->value, true);
			putchar('\n');
		}
		if (of->argument) {
			printf("complete -c hetmem -n '__hetmem_command %s'", of->command);
			fish_kind(of->argument, false);
			putchar('\n');
		}
	}
}

static int help(void)
{
	puts("Usage: hetmem completion bash|zsh|fish\n"
	     "Prints what the shell needs to complete commands, options and their values.\n\n"
	     "'make install' and the packages install it. Without them add to ~/.bashrc\n\n"
	     "  eval \"$(hetmem completion bash)\"\n\n"
	     "or to ~/.zshrc, after compinit\n\n"
	     "  eval \"$(hetmem completion zsh)\"\n\n"
	     "or to ~/.config/fish/config.fish\n\n"
	     "  hetmem completion fish | source");
	return EXIT_OK;
}

int cmd_completion(int argc, char **argv)
{
	int c = next_option("completion", argc, argv);

	if (c == 'h')
		return help();
	if (c != -1)
		return option_error("completion", c, argv);
	if (argc - optind > 1)
		return usage_error("completion", "one shell at a time, '%s' is too many",
				   argv[optind + 1]);
	if (optind == argc)
		return usage_error("completion", "which shell? Give bash, zsh or fish");
	if (!strcmp(argv[optind], "bash"))
		bash();
	else if (!strcmp(argv[optind], "zsh"))
		zsh();
	else if (!strcmp(argv[optind], "fish"))
		fish();
	else
		return usage_error("completion", "'%s' is not bash, zsh or fish", argv[optind]);
	return EXIT_OK;
}
