// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The grammar of specs:
 *
 *	spec  = name [ "(" [ arg { "," arg } ] ")" ]
 *	arg   = spec | name "=" value
 *	value = characters other than , ( ) " ' and blanks, or such text in
 *		quotes of either kind, which ends at the same. A number may
 *		have blanks before its unit: 80 GB
 *	name  = letters, digits, - and _, the first a letter
 *
 * Blanks may be between any two of these. An error names the character,
 * counted from 1, and shows the text from there on.
 */
#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "spec/spec.h"

struct parser {
	const char *text;
	size_t pos;
};

int hm_spec_error(const char *text, size_t pos, const char *fmt, ...)
{
	size_t len = strlen(text);
	const char *at = text + (pos < len ? pos : len);
	char why[320], where[64];
	va_list args;

	va_start(args, fmt);
	vsnprintf(why, sizeof(why), fmt, args);
	va_end(args);
	if (*at)
		snprintf(where, sizeof(where), ", at \"%.32s%s\"", at,
			 strlen(at) > 32 ? "..." : "");
	else
		snprintf(where, sizeof(where), ", at the end");
	return hm_error(-EINVAL, "spec: character %zu%s: %s",
			(size_t)(at - text) + 1, where, why);
}

static char peek(struct parser *p)
{
	while (isspace((unsigned char)p->text[p->pos]))
		p->pos++;
	return p->text[p->pos];
}

static size_t name_len(const char *at)
{
	size_t n = 0;

	if (!isalpha((unsigned char)at[0]))
		return 0;
	while (isalnum((unsigned char)at[n]) || at[n] == '-' || at[n] == '_')
		n++;
	return n;
}

/* The names that there are, for who typed none of them. */
static void list_params(const struct hm_kind *kind, char *buf, size_t len)
{
	const struct hm_param *param;
	size_t n = 0;

	buf[0] = '\0';
	for (param = kind->params; param->name && n < len; param++)
		n += snprintf(buf + n, len - n, "%s%s", n ? ", " : "",
			      param->name);
}

static void list_kinds(char *buf, size_t len)
{
	const struct hm_kind *kind;
	size_t n = 0;

	for (kind = hm_kinds; kind->name && n < len; kind++)
		n += snprintf(buf + n, len - n, "%s%s", n ? ", " : "",
			      kind->name);
}

/* The length of a value without quotes at @at, a unit after blanks included. */
static size_t value_len(const char *at)
{
	size_t len = strcspn(at, ",()\"' \t\r\n");
	size_t blanks = strspn(at + len, " \t");
	size_t unit = 0;

	if (!blanks || !len || strspn(at, "0123456789.") != len)
		return len;
	while (isalpha((unsigned char)at[len + blanks + unit]))
		unit++;
	return unit ? len + blanks + unit : len;
}

static int parse_value(struct parser *p, char **value, size_t *pos)
{
	const char *start;
	size_t len;
	char quote = peek(p);

	*pos = p->pos;
	if (quote == '"' || quote == '\'') {
		start = p->text + p->pos + 1;
		len = strcspn(start, quote == '"' ? "\"" : "'");
		if (!start[len])
			return hm_spec_error(p->text, p->pos,
					     "this quote is never closed: add one");
		p->pos += len + 2;
	} else {
		start = p->text + p->pos;
		len = value_len(start);
		if (!len)
			return hm_spec_error(p->text, p->pos,
					     "a value is missing");
		p->pos += len;
	}
	*value = strndup(start, len);
	return *value ? 0 : hm_error(-ENOMEM, "spec: no memory");
}

static int parse_param(struct parser *p, struct hm_spec *spec, size_t len)
{
	const struct hm_kind *kind = spec->kind;
	size_t name_pos = p->pos, value_pos;
	const char *name = p->text + p->pos;
	char list[160], why[160];
	char *text = NULL;
	int i, err;

	for (i = 0; kind->params[i].name; i++)
		if (strlen(kind->params[i].name) == len &&
		    !strncmp(kind->params[i].name, name, len))
			break;
	if (!kind->params[i].name) {
		list_params(kind, list, sizeof(list));
		return hm_spec_error(p->text, name_pos, "%s has no parameter '%.*s'; it has %s",
				     kind->name, (int)len, name,
				     *list ? list : "none");
	}
	if (spec->values[i].text)
		return hm_spec_error(p->text, name_pos, "%s is given twice: leave out one",
				     kind->params[i].name);
	p->pos += len;
	peek(p);
	p->pos++;			/* the '=' */
	err = parse_value(p, &text, &value_pos);
	if (err)
		return err;
	spec->values[i].text = text;
	spec->values[i].given = true;
	spec->values[i].pos = value_pos;
	if (hm_value_parse(&kind->params[i], text, &spec->values[i], why,
			   sizeof(why)))
		return hm_spec_error(p->text, value_pos, "%s must be %s",
				     kind->params[i].name, why);
	return 0;
}

static int parse_spec(struct parser *p, int depth, struct hm_spec **out);

/* Whether the name at @p goes on with a '='. */
static bool is_param(struct parser *p, size_t len)
{
	struct parser ahead = { .text = p->text, .pos = p->pos + len };

	return peek(&ahead) == '=';
}

static int parse_args(struct parser *p, struct hm_spec *spec, int depth)
{
	const struct hm_kind *kind = spec->kind;
	size_t len;
	char c;
	int err;

	p->pos++;			/* the '(' */
	if (peek(p) == ')') {
		p->pos++;
		return 0;
	}
	for (;;) {
		peek(p);
		len = name_len(p->text + p->pos);
		if (len && is_param(p, len)) {
			err = parse_param(p, spec, len);
		} else if (!len) {
			return hm_spec_error(p->text, p->pos, "a resource or a parameter of %s is missing",
					     kind->name);
		} else if (spec->nr_children == kind->max_children) {
			return hm_spec_error(p->text, p->pos,
					     kind->max_children ?
					     "%s takes %d below it, not more" :
					     "%s takes nothing below it: leave this out",
					     kind->name, kind->max_children);
		} else {
			err = parse_spec(p, depth + 1,
					 &spec->children[spec->nr_children]);
			spec->nr_children += !!spec->children[spec->nr_children];
		}
		if (err)
			return err;
		c = peek(p);
		if (c != ',' && c != ')')
			return hm_spec_error(p->text, p->pos,
					     "',' or ')' is missing");
		p->pos++;
		if (c == ')')
			return 0;
	}
}

/* What was not given and has a preset. */
static int fill_presets(const char *text, struct hm_spec *spec)
{
	const struct hm_kind *kind = spec->kind;
	char why[160];
	int i;

	for (i = 0; kind->params[i].name; i++) {
		struct hm_value *value = &spec->values[i];

		if (value->text)
			continue;
		if (kind->params[i].required)
			return hm_spec_error(text, spec->pos, "%s needs %s=",
					     kind->name, kind->params[i].name);
		if (!kind->params[i].preset)
			continue;
		value->text = strdup(kind->params[i].preset);
		if (!value->text)
			return hm_error(-ENOMEM, "spec: no memory");
		if (hm_value_parse(&kind->params[i], value->text, value, why,
				   sizeof(why)))
			return hm_error(-EINVAL, "spec: preset of %s in %s: not %s",
					kind->params[i].name, kind->name, why);
	}
	return 0;
}

/* On an error *@out may be set too, to be freed. */
static int parse_spec(struct parser *p, int depth, struct hm_spec **out)
{
	char list[256];
	struct hm_spec *spec;
	size_t len;
	int err;

	peek(p);
	len = name_len(p->text + p->pos);
	if (!len)
		return hm_spec_error(p->text, p->pos,
				     "the name of a resource is missing");
	if (depth == HM_SPEC_DEPTH)
		return hm_spec_error(p->text, p->pos, "more than %d inside each other: use fewer",
				     HM_SPEC_DEPTH);
	spec = calloc(1, sizeof(*spec));
	if (!spec)
		return hm_error(-ENOMEM, "spec: no memory");
	spec->pos = p->pos;
	spec->kind = hm_kind_find(p->text + p->pos, len);
	if (!spec->kind) {
		list_kinds(list, sizeof(list));
		free(spec);
		return hm_spec_error(p->text, p->pos, "no resource '%.*s'; there are %s",
				     (int)(len > 32 ? 32 : len),
				     p->text + p->pos, list);
	}
	*out = spec;
	p->pos += len;
	if (peek(p) == '(') {
		err = parse_args(p, spec, depth);
		if (err)
			return err;
	}
	spec->end = p->pos;
	return fill_presets(p->text, spec);
}

/*
 * Which stacks can work. A block must find its way home by its address alone
 * when it is freed. So a pool is cut from the regions of a provider, never from
 * blocks of another resource, which would be freed in parts; and every resource
 * that chooses among several can ask each whether a pointer is its own.
 */

static int check_pool(const char *text, const struct hm_spec *spec)
{
	const struct hm_spec *child = spec->children[0];

	if (child->kind->class == HM_KIND_PROVIDER)
		return 0;
	return hm_spec_error(text, child->pos, "a pool is cut from a provider's regions, and %s gives blocks, which cannot be given back in parts: put a provider here",
			     child->kind->name);
}

/* Two that write one file would mix their lines. */
static int check_files(const char *text, const struct hm_spec *spec,
		       const struct hm_spec *top)
{
	const struct hm_value *mine, *other;
	int i, err;

	if (spec != top && !strcmp(spec->kind->name, "log") &&
	    !strcmp(top->kind->name, "log")) {
		mine = hm_spec_value(spec, "file");
		other = hm_spec_value(top, "file");
		if (mine->text && other->text &&
		    !strcmp(mine->text, other->text))
			return hm_spec_error(text, mine->pos,
					     "another log writes this file: give each its own");
	}
	for (i = 0; i < spec->nr_children; i++) {
		err = check_files(text, spec->children[i], top);
		if (err)
			return err;
	}
	return 0;
}

static int check_headroom(const char *text, const struct hm_spec *spec)
{
	const struct hm_value *headroom = hm_spec_value(spec, "headroom");
	const struct hm_value *keep = hm_spec_value(spec, "keep");

	if (!keep->given || !headroom->text || strcmp(headroom->text, "off"))
		return 0;
	return hm_spec_error(text, keep->pos, "keep= has no effect with headroom=off: leave out one of them");
}

/* As many bounds as there are resources below, less one. */
static int check_bounds(const char *text, const struct hm_spec *spec)
{
	const struct hm_value *at = hm_spec_value(spec, "at");

	if (strcmp(spec->kind->name, "binning") || !at->text ||
	    at->number + 1 == (uint64_t)spec->nr_children)
		return 0;
	return hm_spec_error(text, at->pos, "at has %d of the %d sizes that %d resources need",
			     (int)at->number, spec->nr_children - 1,
			     spec->nr_children);
}

/* What is below an adaptor, or at the top, has to be a resource. */
static int check_resource(const char *text, const struct hm_spec *spec)
{
	if (!spec->kind->only_pool)
		return 0;
	return hm_spec_error(text, spec->pos, "%s is only for a pool: handles without addresses are no blocks, try pool(%s)",
			     spec->kind->name, spec->kind->name);
}

static int check_stack(const char *text, const struct hm_spec *spec)
{
	const struct hm_kind *kind = spec->kind;
	int i, err;

	/* At its ')', or where "(...)" should follow. */
	if (spec->nr_children < kind->min_children)
		return hm_spec_error(text, text[spec->end - 1] == ')' ?
				     spec->end - 1 : spec->end,
				     kind->class == HM_KIND_POOL ?
				     "%s needs a provider, as in pool(vmm)" :
				     kind->min_children == 1 ?
				     "%s needs a resource below it" :
				     "%s needs %d resources below it, at least",
				     kind->name, kind->min_children);
	if (kind->class == HM_KIND_POOL) {
		err = check_pool(text, spec);
		if (err)
			return err;
	}
	err = check_files(text, spec, spec);
	if (!err)
		err = check_bounds(text, spec);
	if (!err)
		err = check_headroom(text, spec);
	for (i = 0; !err && i < spec->nr_children; i++) {
		if (kind->class == HM_KIND_ADAPTOR)
			err = check_resource(text, spec->children[i]);
		if (!err)
			err = check_stack(text, spec->children[i]);
	}
	return err;
}

/* Whether the stack can work. 0, or -EINVAL with the error's text. */
static int check_spec(const char *text, const struct hm_spec *spec)
{
	int err = check_resource(text, spec);

	return err ? err : check_stack(text, spec);
}

int hm_spec_parse(const char *text, struct hm_spec **out)
{
	struct parser p = { .text = text };
	struct hm_spec *spec = NULL;
	int err;

	if (strlen(text) > HM_SPEC_LEN)
		return hm_error(-EINVAL, "spec: longer than %d characters: shorten it",
				HM_SPEC_LEN);
	err = parse_spec(&p, 0, &spec);
	if (!err && peek(&p))
		err = hm_spec_error(text, p.pos, "the spec is complete before this: remove the rest");
	if (!err)
		err = check_spec(text, spec);
	if (err) {
		hm_spec_free(spec);
		return err;
	}
	*out = spec;
	return 0;
}

void hm_spec_free(struct hm_spec *spec)
{
	int i;

	if (!spec)
		return;
	for (i = 0; i < spec->nr_children; i++)
		hm_spec_free(spec->children[i]);
	for (i = 0; i < HM_SPEC_PARAMS; i++)
		free(spec->values[i].text);
	free(spec);
}

const struct hm_value *hm_spec_value(const struct hm_spec *spec,
				     const char *name)
{
	static const struct hm_value none;
	int i;

	for (i = 0; spec->kind->params[i].name; i++)
		if (!strcmp(spec->kind->params[i].name, name))
			return &spec->values[i];
	return &none;
}

uint64_t hm_spec_number(const struct hm_spec *spec, const char *name)
{
	return hm_spec_value(spec, name)->number;
}

uint64_t hm_spec_bytes(const struct hm_spec *spec, const char *name,
		       uint64_t total)
{
	const struct hm_value *value = hm_spec_value(spec, name);

	if (!value->percent)
		return value->number;
	return (unsigned __int128)total * value->number / 1000000;
}

/* Where what was counted and not written would go. */
static size_t append(char *buf, size_t len, size_t n, const char *fmt, ...)
{
	va_list args;
	int more;

	va_start(args, fmt);
	more = vsnprintf(n < len ? buf + n : NULL, n < len ? len - n : 0, fmt,
			 args);
	va_end(args);
	return n + more;
}

static size_t print_spec(const struct hm_spec *spec, bool all, char *buf,
			 size_t len, size_t n)
{
	const struct hm_kind *kind = spec->kind;
	bool any = false;
	int i;

	n = append(buf, len, n, "%s", kind->name);
	for (i = 0; i < spec->nr_children; i++, any = true) {
		n = append(buf, len, n, any ? "," : "(");
		n = print_spec(spec->children[i], all, buf, len, n);
	}
	for (i = 0; kind->params[i].name; i++) {
		const struct hm_value *value = &spec->values[i];
		const char *quote = "";

		if (!value->text || (!value->given && !all))
			continue;
		if (strchr(value->text, '"'))
			quote = "'";
		else if (strpbrk(value->text, ",() \t\r\n'"))
			quote = "\"";
		n = append(buf, len, n, "%s%s=%s%s%s", any ? "," : "(",
			   kind->params[i].name, quote, value->text, quote);
		any = true;
	}
	return any ? append(buf, len, n, ")") : n;
}

size_t hm_spec_print(const struct hm_spec *spec, bool all, char *buf,
		     size_t len)
{
	if (len)
		buf[0] = '\0';
	return print_spec(spec, all, buf, len, 0);
}
