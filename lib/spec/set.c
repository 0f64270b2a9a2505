// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Changes parameters of a resource at run time. A value is read by the row of
 * the table and by the function that read it when the resource was made. The
 * resource that has the parameter calls back, since only it knows its options
 * and what 100% is.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "spec/spec.h"

/* The index of a parameter, or -1. */
static int find_param(const struct hm_kind *kind, const char *name)
{
	int i;

	for (i = 0; kind->params[i].name; i++)
		if (!strcmp(kind->params[i].name, name))
			return i;
	return -1;
}

static int change_one(const struct hm_ctl_set *set, const char *name,
		      uint64_t total, void *options, bool within)
{
	const struct hm_kind *kind = hm_kind_find(name, strlen(name));
	struct hm_spec one = { .kind = kind, .within = within };
	char why[160];
	int i = -1;

	if (!set->kind || !strcmp(set->kind, name))
		i = find_param(kind, set->name);
	if (i < 0 || !kind->params[i].live)
		return -ENOENT;
	one.values[i].text = (char *)set->text;
	one.values[i].given = true;
	if (hm_value_parse(&kind->params[i], set->text, &one.values[i], why,
			   sizeof(why)))
		return hm_error(-EINVAL, "resource_set: %s of %s must be %s",
				set->name, name, why);
	return kind->change(&one, total, options);
}

static int change(const struct hm_ctl_set *set, const char *name,
		  uint64_t total, void *options)
{
	return change_one(set, name, total, options, false);
}

static int change_within(const struct hm_ctl_set *set, const char *name,
			 uint64_t total, void *options)
{
	return change_one(set, name, total, options, true);
}

/*
 * Whether there is such a parameter in @set->kind, or in any, and whether it
 * ever changes; 0, -EINVAL or -EOPNOTSUPP.
 */
static int check_name(const struct hm_ctl_set *set)
{
	const struct hm_kind *kind, *has = NULL;
	bool known = false;

	for (kind = hm_kinds; kind->name; kind++) {
		int i;

		if (set->kind && strcmp(kind->name, set->kind))
			continue;
		known = true;
		i = find_param(kind, set->name);
		if (i < 0)
			continue;
		if (kind->params[i].live)
			return 0;
		has = kind;
	}
	if (!known)
		return hm_error(-EINVAL, "resource_set: no kind of resource '%s': `hetmem spec --list` shows all",
				set->kind);
	if (!has)
		return hm_error(-EINVAL, "resource_set: %s%sno parameter '%s': `hetmem spec --list` shows all",
				set->kind ? set->kind : "",
				set->kind ? " has " : "", set->name);
	return hm_error(-EOPNOTSUPP, "resource_set: %s of %s does not change: make another resource",
			set->name, has->name);
}

static int set_one(struct hetmem_resource *res, struct hm_ctl_set *set,
		   const char *name)
{
	int err = check_name(set);

	if (err)
		return err;
	err = hm_resource_ctl(res, "resource_set", HM_CTL_SET, set);
	if (err == -EOPNOTSUPP)
		hm_error(err, "resource_set: nothing in this stack has a '%s' that changes: make another resource",
			 name);
	return err;
}

/* No memory has so many bytes, and a spec can say it. */
#define UNLIMITED	(1ULL << 60)

int hm_resource_set_within(struct hetmem_resource *res, uint64_t max)
{
	char text[24];
	struct hm_ctl_set set = {
		.name = "max", .text = text, .change = change_within,
	};

	snprintf(text, sizeof(text), "%llu",
		 (unsigned long long)(max < UNLIMITED ? max : UNLIMITED));
	return set_one(res, &set, set.name);
}

int hetmem_resource_set(struct hetmem_resource *res, const char *name,
			const char *value)
{
	struct hm_ctl_set set = { .name = name, .text = value, .change = change };
	char kind[32];
	const char *dot;

	if (!res || !name || !value)
		return hm_error(-EINVAL, "resource_set: %s is NULL", !res ?
				"res" : !name ? "name" : "value");
	dot = strchr(name, '.');
	if (dot) {
		snprintf(kind, sizeof(kind), "%.*s", (int)(dot - name), name);
		set.kind = kind;
		set.name = dot + 1;
	}
	return set_one(res, &set, name);
}
