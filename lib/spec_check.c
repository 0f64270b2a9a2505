// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Which stacks can work. What is made by a resource must find its way home
 * when it is freed, by its address alone: so a pool is cut from regions of a
 * provider, never from blocks of another resource that would be freed in
 * parts, and every resource that chooses among several can ask each whether a
 * pointer is its own.
 */
#include <errno.h>
#include <string.h>

#include "spec.h"

static int check_pool(const char *text, const struct hm_spec *spec)
{
	const struct hm_spec *child = spec->children[0];

	if (child->kind->class == HM_KIND_PROVIDER)
		return 0;
	return hm_spec_error(text, child->pos, "a pool is cut from a provider's regions, and %s gives blocks, which cannot be given back in parts",
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
					     "another log writes this file");
	}
	for (i = 0; i < spec->nr_children; i++) {
		err = check_files(text, spec->children[i], top);
		if (err)
			return err;
	}
	return 0;
}

/* As many bounds as there are resources below, less one. */
static int check_bounds(const char *text, const struct hm_spec *spec)
{
	const struct hm_value *at = hm_spec_value(spec, "at");

	if (!at->text || at->number + 1 == (uint64_t)spec->nr_children)
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

static int check(const char *text, const struct hm_spec *spec)
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
	for (i = 0; !err && i < spec->nr_children; i++) {
		if (kind->class == HM_KIND_ADAPTOR)
			err = check_resource(text, spec->children[i]);
		if (!err)
			err = check(text, spec->children[i]);
	}
	return err;
}

int hm_spec_check(const char *text, const struct hm_spec *spec)
{
	int err = check_resource(text, spec);

	return err ? err : check(text, spec);
}
