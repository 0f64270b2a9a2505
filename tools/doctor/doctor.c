/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* hetmem doctor: what this machine can do, why not more, what to do. */
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

/* The verdict first, which was found last. */
static const struct check *in_order(const struct doctor *doctor, enum check_state state, size_t i)
{
	const struct check *check = &doctor->checks[i ? i - 1 : doctor->nr - 1];

	if (!i)
		return state == CHECK_MISSING ? check : NULL;
	return i < doctor->nr && check->shown && check->state == state ? check : NULL;
}

/* One line, cut between words: the rest is in --verbose. The @verdict has as many as it needs. */
static void print_line(const struct check *check, bool verdict, int name_width, int width)
{
	const char *state = state_names[check->state];
	int indent = 9 + name_width, room = width > indent + 20 ? width - indent : 20;
	char *why = xescape(check->why), *name = xescape(check->name);
	size_t len = strlen(why);

	if (verdict) {
		printf("%-7s %-*s ", state, name_width, name);
		print_words(why, indent, width);
		goto out;
	}
	if (len > (size_t)room)
		len = words_that_fit(why, room - 4);
	printf("%-7s %-*s %.*s%s\n", state, name_width, name, (int)len, why,
	       why[len] ? " ..." : "");
out:
	free(name);
	free(why);
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

/* What matters, a line each, for people. */
static void print_short(const struct doctor *doctor)
{
	static const enum check_state order[] = { CHECK_MISSING, CHECK_OK, CHECK_NOTE };
	const int width = terminal_width();
	int name_width = 0;
	size_t i, s, shown = 0;

	for (i = 0; i < doctor->nr; i++) {
		const int len = strlen(doctor->checks[i].name);

		if ((doctor->checks[i].shown || i == doctor->nr - 1) && len > name_width)
			name_width = len;
	}
	for (s = 0; s < ARRAY_SIZE(order); s++) {
		for (i = 0; i <= doctor->nr; i++) {
			const struct check *check = in_order(doctor, order[s], i);

			if (!check)
				continue;
			print_line(check, !i, name_width, width);
			shown++;
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
		json_object_array_add(checks, object);
	}
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
	puts("Usage: hetmem doctor [--verbose] [--json]\n"
	     "Reports what this machine can do with memory that CPUs and GPUs share.\n"
	     "The first line is the verdict. A line has one of these:\n\n"
	     "  ok       it is there\n"
	     "  missing  it is not; why, and what to do about it\n"
	     "  note     good to know; does not count\n\n"
	     "  --verbose      everything that was looked at, with evidence and advice\n"
	     "  --json         the same for programs\n\n"
	     "Exit status: 0 nothing is missing and memory can move to a device and back,\n"
	     "1 something is missing, 2 cannot do what was typed.");
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
	int missing = 0, c;
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
	return missing || !moves ? EXIT_FAILED : EXIT_OK;
}
