/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* hetmem spec: what a spec names, and what can be named. */
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "spec/spec.h"
#include "options.h"
#include "util.h"

struct options {
	bool list;
	bool create;
	bool explain;
	const char *driver;
	const char *text;
};

static int help(void)
{
	puts("Usage: hetmem spec [OPTION]... [SPEC]\n"
	     "Checks SPEC (HETMEM_RESOURCE, else device-pool) and shows what it names.\n\n"
	     "  --list           every kind with its parameters\n"
	     "  --create         makes it, too, to see whether this machine can\n"
	     "  --explain        what this machine chooses for it and refuses, and why\n"
	     "  --driver DRIVER  cuda or soft\n\n"
	     "Grammar:\n"
	     "  spec  = name [ '(' [ arg { ',' arg } ] ')' ]\n"
	     "  arg   = spec | name '=' value\n"
	     "  value = 64K 1.5GiB 90% 10ms on off ..., or \"text with , ( ) in quotes\"\n"
	     "K, M, G, T are powers of 1024. A percentage is of the device's memory.\n\n"
	     "  providers  device vmm managed async pinned registered system host custom\n"
	     "  pool       pool(PROVIDER): what providers have, cut into blocks\n"
	     "             classes(PROVIDER): the same, by placement class\n"
	     "  adaptors   stats limit headroom watermark log history retry fallback\n"
	     "             binning align guard fixed\n"
	     "  defaults   device-pool unified\n\n"
	     "  hetmem spec 'stats(pool(vmm(device=0),max=90%))'\n"
	     "  hetmem spec 'fallback(device-pool(max=8G),pool(managed))'");
	return EXIT_OK;
}

static int parse(struct options *o, int argc, char **argv)
{
	int c;

	while ((c = next_option("spec", argc, argv)) != -1) {
		switch (c) {
		case 'l':
			o->list = true;
			break;
		case 'c':
			o->create = true;
			break;
		case 'e':
			o->explain = true;
			break;
		case 'd':
			if (!is_driver(optarg))
				return usage_error("spec", "'%s' is not cuda or soft",
						   optarg);
			o->driver = optarg;
			break;
		case 'h':
			return -1;
		default:
			return option_error("spec", c, argv);
		}
	}
	if (argc - optind > 1)
		return usage_error("spec", "'%s' is too many: quote the spec for the shell",
				   argv[optind + 1]);
	o->text = argv[optind];
	if (o->list && (o->text || o->create || o->explain))
		return usage_error("spec", "--list stands alone");
	return 0;
}

static const char *type_text(const struct hm_param *param)
{
	switch (param->type) {
	case HM_PARAM_SIZE:
		return param->path ? "size, word or path" :
			param->words ? "size or word" : "size";
	case HM_PARAM_POWER:
		return "size, a power of two";
	case HM_PARAM_SHARE:
		return "size or %";
	case HM_PARAM_NUMBER:
		return "number";
	case HM_PARAM_TIME:
		return "time";
	case HM_PARAM_SWITCH:
		return "on|off";
	case HM_PARAM_WORD:
		return param->words;
	case HM_PARAM_DEVICES:
		return "ordinals";
	case HM_PARAM_SIZES:
		return "sizes";
	case HM_PARAM_TEXT:
	case HM_PARAM_TAG:
		break;
	}
	return "text";
}

static int list(void)
{
	static const struct table_column columns[] = {
		{ "KIND", false }, { "PARAMETER", false }, { "VALUE", false },
		{ "PRESET", false }, { "WHAT", false },
	};
	struct table *table = table_new(columns, ARRAY_SIZE(columns));
	const struct hm_param *param;
	const struct hm_kind *kind;

	for (kind = hm_kinds; kind->name; kind++) {
		table_row(table, (const char *[]){ kind->name, "", "", "",
						   kind->help });
		for (param = kind->params; param->name; param++)
			table_row(table, (const char *[]){
				"", param->name, type_text(param),
				param->required ? "required" :
				param->preset ? param->preset : "",
				param->help });
	}
	table_print(table);
	return EXIT_OK;
}

static void show(const struct hm_spec *spec, struct table *table, int depth)
{
	const struct hm_param *params = spec->kind->params;
	char *name, *values = xstrdup("");
	int i;

	name = xasprintf("%*s%s", 2 * depth, "", spec->kind->name);
	for (i = 0; params[i].name; i++) {
		char *more;

		if (!spec->values[i].text)
			continue;
		more = xasprintf("%s%s%s=%s", values, *values ? " " : "",
				 params[i].name, spec->values[i].text);
		free(values);
		values = more;
	}
	table_row(table, (const char *[]){ name, values, spec->kind->help });
	free(name);
	free(values);
	for (i = 0; i < spec->nr_children; i++)
		show(spec->children[i], table, depth + 1);
}

/* What a name stands for here, and why. */
static int show_expanded(struct hetmem *hm, const struct hm_spec *spec)
{
	struct hm_expansion is;

	if (spec->kind->class != HM_KIND_NAME)
		return EXIT_OK;
	if (spec->kind->expand(hm, spec, &is))
		return complain(EXIT_FAILED, "spec", "%s", hetmem_last_error());
	printf("\n%s is %s with the %s driver.\nWhy: %s.\n", spec->kind->name,
	       is.text, hetmem_driver_name(hm), is.why);
	return EXIT_OK;
}

/* The same of the whole stack, and what this machine refuses. */
static int explain(struct hetmem *hm, const char *text)
{
	char buf[HM_SPEC_LEN * 2];

	if (hetmem_resource_explain(hm, text, buf, sizeof(buf)))
		return complain(EXIT_FAILED, "spec", "%s", hetmem_last_error());
	printf("\n%s", *buf ? buf : "This machine chooses and refuses nothing.\n");
	return EXIT_OK;
}

static int create(struct hetmem *hm, const char *text)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };
	struct hetmem_resource *res;

	if (hetmem_resource_create(hm, text, &res))
		return complain(EXIT_FAILED, "spec", "%s", hetmem_last_error());
	printf("\nIt can be made with the %s driver", hetmem_driver_name(hm));
	if (!hetmem_resource_stats(res, &stats))
		printf(" and holds %s at first", size_text(stats.reserved));
	puts(".");
	hetmem_resource_destroy(res);
	return EXIT_OK;
}

static int with_library(const struct options *o, const struct hm_spec *spec)
{
	struct hetmem_params params = {
		.size = sizeof(params), .driver = o->driver,
	};
	struct hetmem *hm;
	int status;

	if (hetmem_open(&hm, &params))
		return complain(EXIT_FAILED, "spec", "%s", hetmem_last_error());
	status = o->explain ? explain(hm, o->text) : show_expanded(hm, spec);
	if (status == EXIT_OK && o->create)
		status = create(hm, o->text);
	hetmem_close(hm);
	return status;
}

int cmd_spec(int argc, char **argv)
{
	static const struct table_column columns[] = {
		{ NULL, false }, { NULL, false }, { NULL, false },
	};
	struct options o = { 0 };
	int status = parse(&o, argc, argv);
	const char *from = "";
	struct hm_spec *spec;
	struct table *table;

	if (status)
		return status < 0 ? help() : status;
	if (o.list)
		return list();
	if (!o.text) {
		o.text = getenv("HETMEM_RESOURCE");
		from = "HETMEM_RESOURCE: ";
		if (!o.text || !*o.text)
			o.text = "device-pool";
	}
	if (hm_spec_parse(o.text, &spec)) {
		const char *said = hetmem_last_error();

		/* The command's name says it already. */
		said += strncmp(said, "spec: ", 6) ? 0 : 6;
		return complain(EXIT_USAGE, "spec", "%s%s", from, said);
	}
	table = table_new(columns, ARRAY_SIZE(columns));
	show(spec, table, 0);
	table_print(table);
	if (o.create || o.explain || spec->kind->class == HM_KIND_NAME)
		status = with_library(&o, spec);
	hm_spec_free(spec);
	return status;
}
