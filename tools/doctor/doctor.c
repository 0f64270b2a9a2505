/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* hetmem doctor: what works on this machine, what is missing, what to do. */
#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "doctor.h"
#include "options.h"
#include "util.h"

#ifdef HAVE_JSON_C
#include "json_text.h"
#endif

static const char *const state_names[] = {
	[CHECK_OK]	= "ok",
	[CHECK_MISSING]	= "missing",
	[CHECK_NOTE]	= "note",
};

void doctor_report(struct doctor *doctor, enum check_state state,
		   const char *name, const char *todo, const char *fmt, ...)
{
	struct check *check;
	va_list ap;

	doctor->checks = xrealloc_array(doctor->checks, doctor->nr + 1,
					sizeof(*doctor->checks));
	check = &doctor->checks[doctor->nr++];
	check->state = state;
	check->name = xstrdup(name);
	check->todo = todo ? xstrdup(todo) : NULL;
	check->shown = state == CHECK_MISSING;
	va_start(ap, fmt);
	if (vasprintf(&check->why, fmt, ap) < 0)
		exit(complain(EXIT_FAILED, "doctor", "out of memory"));
	va_end(ap);
}

void doctor_show(struct doctor *doctor)
{
	doctor->checks[doctor->nr - 1].shown = true;
}

bool doctor_exists(const struct doctor *doctor, const char *path)
{
	char *full = xasprintf("%s%s", doctor->root, path);
	bool exists = !access(full, F_OK);

	free(full);
	return exists;
}

char *doctor_line(const struct doctor *doctor, const char *path)
{
	return read_line(doctor->root, path);
}

static void print_table(const struct doctor *doctor)
{
	const struct table_column columns[] = {
		{ "STATE", false }, { "WHAT", false }, { "WHY; WHAT TO DO", false },
	};
	struct table *table = table_new(columns, ARRAY_SIZE(columns));
	size_t i;

	for (i = 0; i < USE_NR; i++) {
		const bool works = doctor->uses[i].works;
		char *text = xasprintf("%s%s; %s", works ? "" : "no ", doctor_use_gives(doctor, i),
				       doctor->uses[i].why);
		char *name = xasprintf("use: %s", doctor_use_name(i));
		const char *cells[] = { works ? "ok" : "note", name, text };

		table_row(table, cells);
		free(name);
		free(text);
	}
	for (i = 0; i < doctor->nr; i++) {
		const struct check *check = &doctor->checks[i];
		char *text = check->todo ?
			xasprintf("%s; %s", check->why, check->todo) :
			xstrdup(check->why);
		const char *cells[] = {
			state_names[check->state], check->name, text,
		};

		table_row(table, cells);
		free(text);
	}
	table_print(table);
}

/* One line, cut between words: the rest is in --verbose. */
static void print_line(const char *state, const char *name, const char *why, int name_width,
		       int width)
{
	int indent = 11 + name_width, room = width > indent + 20 ? width - indent : 20;
	char *shown = xescape(why), *escaped = xescape(name);
	size_t len = strlen(shown);

	if (len > (size_t)room)
		len = words_that_fit(shown, room - 4);
	printf("  %-7s %-*s %.*s%s\n", state, name_width, escaped, (int)len, shown,
	       shown[len] ? " ..." : "");
	free(escaped);
	free(shown);
}

static void print_uses(const struct doctor *doctor, int name_width, int width)
{
	bool any = false;
	size_t i;

	for (i = 0; i < USE_NR; i++) {
		char *text;

		if (!doctor->uses[i].works)
			continue;
		if (!any)
			puts("Works here:");
		any = true;
		text = i == USE_POOLS ? xasprintf("%s, %s", doctor->uses[i].why, doctor_use_gives(doctor, i)) :
			xstrdup(doctor_use_gives(doctor, i));
		print_line("ok", doctor_use_name(i), text, name_width, width);
		free(text);
	}
	if (!any)
		puts("Nothing works here.");
}

/* The uses that do not work, with the same reason in one line. */
static void print_useless(const struct doctor *doctor, int width)
{
	char *names, *longer;
	bool any = false;
	size_t i, j;

	for (i = 0; i < USE_NR; i++) {
		const char *why = doctor->uses[i].why;

		for (j = 0; j < i; j++)
			if (!doctor->uses[j].works && !strcmp(doctor->uses[j].why, why))
				break;
		if (doctor->uses[i].works || j < i)
			continue;
		names = xstrdup(doctor_use_name(i));
		for (j = i + 1; j < USE_NR; j++) {
			if (doctor->uses[j].works || strcmp(doctor->uses[j].why, why))
				continue;
			longer = xasprintf("%s, %s", names, doctor_use_name(j));
			free(names);
			names = longer;
		}
		if (!any)
			puts("\nDoes not work here:");
		any = true;
		longer = xasprintf("%s: %s", names, why);
		free(names);
		names = xescape(longer);
		fputs("  - ", stdout);
		print_words(names, 4, width);
		free(names);
		free(longer);
	}
}

/* What is missing, under a heading for those whom it concerns, in the order of the checks. */
static void print_missing(const struct doctor *doctor, int name_width, int width)
{
	size_t i, j;

	for (i = 0; i < doctor->nr; i++) {
		const char *whom = doctor_whom(doctor->checks[i].name);

		for (j = 0; j < i; j++)
			if (doctor->checks[j].state == CHECK_MISSING &&
			    !strcmp(doctor_whom(doctor->checks[j].name), whom))
				break;
		if (doctor->checks[i].state != CHECK_MISSING || j < i)
			continue;
		printf("\nMissing, for %s:\n", whom);
		for (j = i; j < doctor->nr; j++) {
			const struct check *check = &doctor->checks[j];

			if (check->state == CHECK_MISSING && !strcmp(doctor_whom(check->name), whom))
				print_line("missing", check->name, check->why, name_width, width);
		}
	}
}

/* The advice of what is shown, each once. */
static void print_advice(const struct doctor *doctor, int width)
{
	bool any = false;
	char *todo;
	size_t i, j;

	for (i = 0; i < doctor->nr; i++) {
		const struct check *check = &doctor->checks[i];

		if (!check->shown || !check->todo)
			continue;
		for (j = 0; j < i; j++)
			if (doctor->checks[j].shown && doctor->checks[j].todo &&
			    !strcmp(doctor->checks[j].todo, check->todo))
				break;
		if (j < i)
			continue;
		if (!any)
			puts("\nWhat to do:");
		any = true;
		todo = xescape(check->todo);
		fputs("  - ", stdout);
		print_words(todo, 4, width);
		free(todo);
	}
}

/* What matters, a line each, for people: what works, what does not, whom it concerns. */
static void print_short(const struct doctor *doctor)
{
	static const enum check_state order[] = { CHECK_OK, CHECK_NOTE };
	const int width = terminal_width();
	int name_width = 0, len;
	bool any = false;
	size_t i, s, shown = 0;

	for (i = 0; i < doctor->nr; i++) {
		len = strlen(doctor->checks[i].name);
		shown += doctor->checks[i].shown;
		if (doctor->checks[i].shown && len > name_width)
			name_width = len;
	}
	for (i = 0; i < USE_NR; i++) {
		len = strlen(doctor_use_name(i));
		if (len > name_width)
			name_width = len;
	}
	print_uses(doctor, name_width, width);
	print_useless(doctor, width);
	print_missing(doctor, name_width, width);
	for (s = 0; s < ARRAY_SIZE(order); s++) {
		for (i = 0; i < doctor->nr; i++) {
			const struct check *check = &doctor->checks[i];

			if (!check->shown || check->state != order[s])
				continue;
			if (!any)
				puts("\nGood to know:");
			any = true;
			print_line(state_names[check->state], check->name, check->why, name_width,
				   width);
		}
	}
	if (doctor->nr > shown)
		printf("and %zu more are as expected; 'hetmem doctor --verbose' lists all\n",
		       doctor->nr - shown);
	print_advice(doctor, width);
}

#ifdef HAVE_JSON_C
static void add_string(struct json_object *object, const char *key,
		       const char *value)
{
	json_object_object_add(object, key, json_text(value));
}

static void print_json(const struct doctor *doctor, int missing, bool moves)
{
	struct json_object *all = json_object_new_object();
	struct json_object *checks = json_object_new_array();
	size_t i;

	for (i = 0; i < doctor->nr; i++) {
		const struct check *check = &doctor->checks[i];
		struct json_object *object = json_object_new_object();

		add_string(object, "name", check->name);
		add_string(object, "state", state_names[check->state]);
		add_string(object, "why", check->why);
		add_string(object, "todo", check->todo);
		add_string(object, "matters_for", check->state == CHECK_MISSING ?
			   doctor_whom(check->name) : NULL);
		json_object_array_add(checks, object);
	}
	json_object_object_add(all, "uses", doctor_uses_json(doctor));
	json_object_object_add(all, "checks", checks);
	json_object_object_add(all, "devices", doctor->devices ?
			       json_object_get(doctor->devices) :
			       json_object_new_array());
	json_object_object_add(all, "missing", json_object_new_int(missing));
	json_object_object_add(all, "memory_moves",
			       json_object_new_boolean(moves));
	puts(json_object_to_json_string_ext(all, JSON_C_TO_STRING_PRETTY |
					    JSON_C_TO_STRING_NOSLASHESCAPE));
	json_object_put(all);
}
#else
static void print_json(const struct doctor *doctor, int missing, bool moves)
{
	(void)doctor;
	(void)missing;
	(void)moves;
}
#endif

static int help(void)
{
	puts("Usage: hetmem doctor [--require USE,...] [--verbose] [--json]\n"
	     "Reports what works on this machine, what is missing, and for whom it matters.\n"
	     "A line has one of these:\n\n"
	     "  ok       it is there\n"
	     "  missing  it is not; why, and what to do about it\n"
	     "  note     good to know; does not count\n\n"
	     "  --require USE  fails unless USE works: pools, device, pytorch, cupy, managed,\n"
	     "                 sleep, unified, hmm, moves, module, or all (nothing is missing)\n"
	     "  --verbose      everything that was looked at, with evidence and advice\n"
	     "  --json         the same for programs\n\n"
	     "Exit status: 0 every required use works, 1 one of them does not,\n"
	     "2 cannot do what was typed.");
	return EXIT_OK;
}

int cmd_doctor(int argc, char **argv)
{
	struct doctor doctor = {
		.root = "",
		.live = true,
		.modules = -1,
		.device_private = -1,
	};
	bool json = false, verbose = false, moves;
	int missing = 0, status, c;
	struct stat st;
	size_t i;

	while ((c = next_option("doctor", argc, argv)) != -1) {
		switch (c) {
		case 'j':
			json = true;
			break;
		case 'v':
			verbose = true;
			break;
		case 's':
			if (stat(optarg, &st) || !S_ISDIR(st.st_mode))
				return usage_error("doctor", "'%s' is not a directory",
						   optarg);
			doctor.root = optarg;
			doctor.live = false;
			break;
		case 'r':
			c = doctor_require(&doctor, optarg);
			if (c)
				return c;
			break;
		case 'h':
			return help();
		default:
			return option_error("doctor", c, argv);
		}
	}
	if (optind < argc)
		return usage_error("doctor", "'%s' is not an option",
				   argv[optind]);
#ifndef HAVE_JSON_C
	if (json)
		return complain(EXIT_USAGE, "doctor",
				"built without json-c; type 'apt-get install libjson-c-dev' and build again");
#endif
	doctor_advice_begin(&doctor);
	doctor_kernel(&doctor);
	doctor_module(&doctor);
	doctor_nvidia(&doctor);
	doctor_memory(&doctor);
	moves = doctor_devices(&doctor);

	for (i = 0; i < doctor.nr; i++)
		missing += doctor.checks[i].state == CHECK_MISSING;
	if (json)
		print_json(&doctor, missing, moves);
	else if (verbose)
		print_table(&doctor);
	else
		print_short(&doctor);
	doctor_advice_end(&doctor);
	fflush(stdout);
	status = doctor_judge(&doctor, missing);
	for (i = 0; i < USE_NR; i++)
		free(doctor.uses[i].why);
	for (i = 0; i < doctor.nr; i++) {
		free(doctor.checks[i].name);
		free(doctor.checks[i].why);
		free(doctor.checks[i].todo);
	}
	free(doctor.checks);
#ifdef HAVE_JSON_C
	json_object_put(doctor.devices);
#endif
	free(doctor.release);
	return status;
}
