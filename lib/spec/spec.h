/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Specs: text such as "stats(pool(vmm(device=0),max=90%))" that names a stack
 * of resources. values.c reads sizes and the like; parse.c reads whole specs and
 * refuses stacks that cannot work; kinds.c is the table of what there is; names.c
 * has what the named defaults stand for; build.c makes it; set.c changes it.
 *
 * A parsed spec is a tree of struct hm_spec, each a kind with values for
 * its parameters and with children, the resources or the provider below it.
 */
#ifndef HETMEM_SPEC_SPEC_H
#define HETMEM_SPEC_SPEC_H

#include "driver/hetmem.h"
#include "provider/provider.h"
#include "core/resource.h"

#define HM_SPEC_PARAMS		32
#define HM_SPEC_CHILDREN	8
#define HM_SPEC_DEPTH		16
#define HM_SPEC_LEN		4096

enum hm_param_type {
	HM_PARAM_SIZE,		/* bytes: 4096, 64K, 1.5GiB */
	HM_PARAM_POWER,		/* the same, a power of two */
	HM_PARAM_SHARE,		/* the same, or a part of all there is: 90% */
	HM_PARAM_NUMBER,	/* 0, 1, 2, ... */
	HM_PARAM_TIME,		/* 100us, 5ms, 1s; as nanoseconds */
	HM_PARAM_SWITCH,	/* on, off; as 1 and 0 */
	HM_PARAM_WORD,		/* one of a few; as its index */
	HM_PARAM_TEXT,		/* as it is */
	HM_PARAM_TAG,		/* the same, shorter than HM_TAG_LEN */
	HM_PARAM_DEVICES,	/* 1/2/3; as bits */
	HM_PARAM_SIZES,		/* 64K/1M, ascending; as how many they are */
};

/**
 * struct hm_param - one parameter that a kind has
 * @name: NULL ends the list
 * @type: what its value is
 * @preset: text of the value that it has when it is not given; NULL: none
 * @words: for HM_PARAM_WORD, separated by '|'; for HM_PARAM_SIZE, in place of a size
 * @path: for HM_PARAM_SIZE: or a path, which has a '/'
 * @help: what it does, a few words
 * @required: must be given
 * @not_zero: must be more than 0
 * @live: hetmem_resource_set() can change it
 * @instead: the next version refuses it; what to do then
 */
struct hm_param {
	const char *name;
	enum hm_param_type type;
	const char *preset;
	const char *words;
	const char *help;
	bool required;
	bool not_zero;
	bool live;
	bool path;
	const char *instead;
};

/* What a kind is, and so where in a stack it may be. */
enum hm_kind_class {
	HM_KIND_PROVIDER,	/* regions; alone: a resource */
	HM_KIND_POOL,		/* takes a provider */
	HM_KIND_ADAPTOR,	/* takes resources */
	HM_KIND_NAME,		/* stands for another spec */
};

struct hm_spec;

/**
 * struct hm_expansion - what a name stands for on this machine
 * @text: a spec
 * @why: one line
 * @agent: policy of the agent that comes with it, 0: none
 */
struct hm_expansion {
	int agent;
	char text[HM_SPEC_LEN];
	char why[HM_REASON_LEN + 128];
};

/**
 * struct hm_kind - a row of the table of kinds
 * @name: as in a spec
 * @class: what it is
 * @only_pool: of a HM_KIND_PROVIDER: mappable, so no resource by itself
 * @min_children, @max_children: how many it takes
 * @help: what it is, a few words
 * @params: that it has
 * @provider, @pool, @resource: makes it, whichever it is. What is given, a
 *	provider or resources, belongs to the new resource if it succeeds
 * @change: reads the live parameters that @spec has into the options of what is
 *	made, at first and by hetmem_resource_set(). 100% is @total.
 * @expand: of a HM_KIND_NAME: what it stands for, and why
 * All return 0 or a negative errno and set the error's text.
 */
struct hm_kind {
	const char *name;
	enum hm_kind_class class;
	bool only_pool;
	int min_children;
	int max_children;
	const char *help;
	struct hm_param params[HM_SPEC_PARAMS];
	int (*provider)(struct hetmem *hm, const struct hm_spec *spec,
			struct hm_provider **provider);
	int (*pool)(const struct hm_spec *spec, struct hm_provider *provider,
		    struct hetmem_resource **res);
	int (*resource)(const struct hm_spec *spec,
			struct hetmem_resource **children, int nr,
			struct hetmem_resource **res);
	int (*change)(const struct hm_spec *spec, uint64_t total,
		      void *options);
	int (*expand)(struct hetmem *hm, const struct hm_spec *spec,
		      struct hm_expansion *out);
};

/* The table; a NULL name ends it. */
extern const struct hm_kind hm_kinds[];
const struct hm_kind *hm_kind_find(const char *name, size_t len);

/**
 * struct hm_value - what a parameter was given
 * @text: as it was written, without quotes; NULL: not given and no preset
 * @given: not a preset
 * @percent: of HM_PARAM_SHARE: @number is in millionths of all there is
 * @word: of HM_PARAM_SIZE: @number is the index of a word; @path: it is a path
 * @number: what it comes to
 * @pos: offset in the spec
 */
struct hm_value {
	char *text;
	bool given;
	bool percent;
	bool word;
	bool path;
	uint64_t number;
	size_t pos;
};

/**
 * struct hm_spec - one node
 * @pos: offset of its name in the text
 * @end: offset behind it
 * @within: max= is changed, and not above what it was set to before
 */
struct hm_spec {
	const struct hm_kind *kind;
	size_t pos;
	size_t end;
	bool within;
	int nr_children;
	struct hm_spec *children[HM_SPEC_CHILDREN];
	struct hm_value values[HM_SPEC_PARAMS];
};

/* values.c */

/*
 * Reads @text as @type. 0, or -EINVAL and what would be right in @why.
 */
int hm_value_parse(const struct hm_param *param, const char *text,
		   struct hm_value *value, char *why, size_t len);

/*
 * The sizes of HM_PARAM_SIZES, of which there are less than HM_SPEC_CHILDREN.
 * Returns their number, or -EINVAL.
 */
int hm_value_sizes(const char *text, uint64_t sizes[HM_SPEC_CHILDREN]);

/* parse.c */

/*
 * Reads @text and checks that the stack can work. 0; -EINVAL, and the error's
 * text points at the character; -ENOMEM.
 */
int hm_spec_parse(const char *text, struct hm_spec **spec);
void hm_spec_free(struct hm_spec *spec);

/* Sets the error's text: what is wrong with @text at offset @pos. -EINVAL. */
__attribute__((format(printf, 3, 4)))
int hm_spec_error(const char *text, size_t pos, const char *fmt, ...);

/* Writes @spec as text, presets included if @all; returns the length. */
size_t hm_spec_print(const struct hm_spec *spec, bool all, char *buf,
		     size_t len);

/* The value of a parameter that @spec's kind has. */
const struct hm_value *hm_spec_value(const struct hm_spec *spec,
				     const char *name);
uint64_t hm_spec_number(const struct hm_spec *spec, const char *name);
/* A HM_PARAM_SHARE in bytes; @total is all there is. */
uint64_t hm_spec_bytes(const struct hm_spec *spec, const char *name,
		       uint64_t total);

/* names.c: hm_kind.expand of the names. */

int hm_expand_device_pool(struct hetmem *hm, const struct hm_spec *spec,
			  struct hm_expansion *out);
int hm_expand_unified(struct hetmem *hm, const struct hm_spec *spec,
		      struct hm_expansion *out);

/* build.c */

/*
 * Makes the resource of @text, with @device where the spec has a device= that is not given.
 * Errors as hetmem_resource_create().
 */
int hm_resource_create_on(struct hetmem *hm, const char *text, int device,
			  struct hetmem_resource **res);

/* Destroys the current resources that the library made. */
void hm_current_close(struct hetmem *hm);

/*
 * set.c: sets max= to @max, but to no more than the spec or hetmem_resource_set() says.
 * Errors: those of hetmem_resource_set().
 */
int hm_resource_set_within(struct hetmem_resource *res, uint64_t max);

#endif /* HETMEM_SPEC_SPEC_H */
