// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Makes resources from specs, from the bottom up, and keeps the current one of
 * each device.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/check.h"
#include "adaptor/adaptor.h"
#include "pool/region.h"
#include "spec/spec.h"

#define DEFAULT_SPEC	"device-pool"
#define HOST_SPEC	"pool(host)"

/* What only shows when it is made is said of the innermost of @text. */
static int point_at(int err, const char *text, const struct hm_spec *spec)
{
	char why[256];

	if (err != -EINVAL || !text)
		return err;
	snprintf(why, sizeof(why), "%s", hetmem_last_error());
	return strncmp(why, "spec: ", 6) ?
		hm_spec_error(text, spec->pos, "%s", why) : err;
}

static int build(struct hetmem *hm, const char *text,
		 const struct hm_spec *spec, struct hetmem_resource **res);

static int build_name(struct hetmem *hm, const struct hm_spec *spec,
		      struct hetmem_resource **res)
{
	struct hm_expansion is;
	struct hm_spec *real;
	int err = spec->kind->expand(hm, spec, &is);

	if (!err)
		err = hm_spec_parse(is.text, &real);
	if (err)
		return err;
	/* Not what the user wrote: there is nothing to point at. */
	err = build(hm, NULL, real, res);
	hm_spec_free(real);
	if (!err && is.agent)
		__atomic_store_n(&hm->agent_wanted, is.agent, __ATOMIC_RELAXED);
	return err;
}

/* The agent that a spec asks for: it does not start while a lock is held. */
static void start_agent(struct hetmem *hm)
{
	const int policy = __atomic_exchange_n(&hm->agent_wanted, 0, __ATOMIC_RELAXED);

	if (policy && hm->start_agent)
		hm->start_agent(hm, policy);
}

/* A pool, or a provider by itself. */
static int build_regions(struct hetmem *hm, const char *text,
			 const struct hm_spec *spec,
			 struct hetmem_resource **res)
{
	bool pool = spec->kind->class == HM_KIND_POOL;
	const struct hm_spec *below = pool ? spec->children[0] : spec;
	struct hm_provider *provider;
	int err = below->kind->provider(hm, below, &provider);

	if (err)
		return point_at(err, text, below);
	err = pool ? spec->kind->pool(spec, provider, res) :
		hm_region_create(provider, res);
	if (err)
		provider->ops->destroy(provider);
	return err;
}

static int build_adaptor(struct hetmem *hm, const char *text,
			 const struct hm_spec *spec,
			 struct hetmem_resource **res)
{
	struct hetmem_resource *children[HM_SPEC_CHILDREN];
	int nr, err = 0;

	for (nr = 0; nr < spec->nr_children; nr++) {
		err = build(hm, text, spec->children[nr], &children[nr]);
		if (err)
			break;
	}
	if (!err)
		err = spec->kind->resource(spec, children, nr, res);
	while (err && nr)
		hm_resource_put(children[--nr]);
	return err;
}

static int build(struct hetmem *hm, const char *text,
		 const struct hm_spec *spec, struct hetmem_resource **res)
{
	int err;

	switch (spec->kind->class) {
	case HM_KIND_NAME:
		err = build_name(hm, spec, res);
		break;
	case HM_KIND_ADAPTOR:
		err = build_adaptor(hm, text, spec, res);
		break;
	default:
		err = build_regions(hm, text, spec, res);
		break;
	}
	return point_at(err, text, spec);
}

/* Is misuse to be told, whatever that costs? */
static bool is_guarded(const struct hetmem *hm, const struct hm_spec *spec)
{
	bool guarded = hm->check || !strcmp(spec->kind->name, "guard");
	int i;

	for (i = 0; !guarded && i < spec->nr_children; i++)
		guarded = is_guarded(hm, spec->children[i]);
	return guarded;
}

/* A resource that outlives its destroy, for hm_current_close(). */
struct hm_kept {
	struct hm_kept *next;
	struct hetmem_resource *res;
};

static int build_stack(struct hetmem *hm, const char *text,
		       const struct hm_spec *spec,
		       struct hetmem_resource **res)
{
	struct hm_kept *kept = NULL;
	int err;

	if (is_guarded(hm, spec)) {
		kept = malloc(sizeof(*kept));
		if (!kept)
			return hm_error(-ENOMEM, "resource: no memory");
	}
	err = build(hm, text, spec, res);
	if (err || !kept) {
		free(kept);
		return err;
	}
	(*res)->keep = true;
	kept->res = *res;
	pthread_mutex_lock(&hm->lock);
	kept->next = hm->kept;
	hm->kept = kept;
	pthread_mutex_unlock(&hm->lock);
	return 0;
}

/* Where a device is meant and none is said, it is @device. */
static void preset_device(struct hm_spec *spec, int device)
{
	const struct hm_param *params = spec->kind->params;
	int i;

	for (i = 0; params[i].name; i++)
		if (params[i].preset && !strcmp(params[i].name, "device") &&
		    !spec->values[i].given)
			spec->values[i].number = device;
	for (i = 0; i < spec->nr_children; i++)
		preset_device(spec->children[i], device);
}

/* One line on stderr for each parameter that @spec gives and the next version refuses. */
static void warn_of_old(const struct hm_spec *spec)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	static const char *warned[HM_SPEC_PARAMS];
	const struct hm_param *param;
	int i, nr;

	for (param = spec->kind->params; param->name; param++) {
		if (!param->instead || !spec->values[param - spec->kind->params].given)
			continue;
		pthread_mutex_lock(&lock);
		for (nr = 0; warned[nr] && strcmp(warned[nr], param->name);)
			nr++;
		if (!warned[nr])
			fprintf(stderr, "hetmem: spec: the next version refuses %s= of %s: %s\n",
				param->name, spec->kind->name, param->instead);
		warned[nr] = param->name;
		pthread_mutex_unlock(&lock);
	}
	for (i = 0; i < spec->nr_children; i++)
		warn_of_old(spec->children[i]);
}

/* @text as a user wrote it, NULL: in the environment, or not at all. */
static int create(struct hetmem *hm, const char *text, int device,
		  struct hetmem_resource **res)
{
	bool environment = !text;
	struct hm_spec *spec;
	char why[512];
	int err;

	if (!text)
		text = secure_getenv("HETMEM_RESOURCE");
	if (!text || !*text) {
		text = DEFAULT_SPEC;
		environment = false;
	}
	err = hm_check_owner(hm);
	if (err)
		return err;
	err = hm_spec_parse(text, &spec);
	if (!err) {
		preset_device(spec, device);
		err = build_stack(hm, text, spec, res);
		if (!err)
			warn_of_old(spec);
		hm_spec_free(spec);
	}
	if (!err || !environment)
		return err;
	snprintf(why, sizeof(why), "%s", hetmem_last_error());
	return hm_error(err, "HETMEM_RESOURCE: %s", why);
}

int hm_resource_create_on(struct hetmem *hm, const char *text, int device,
			  struct hetmem_resource **res)
{
	int err = create(hm, text, device, res);

	if (!err)
		start_agent(hm);
	return err;
}

int hetmem_resource_create(struct hetmem *hm, const char *text,
			   struct hetmem_resource **out)
{
	struct hetmem_resource *res;
	int err;

	if (!hm || !out)
		return hm_error(-EINVAL, "resource_create: %s is NULL",
				hm ? "res" : "hm");
	err = create(hm, text, 0, &res);
	if (err)
		return err;
	start_agent(hm);
	*out = res;
	return 0;
}

/* Adds to @text, which has room for @len. -ENOSPC: there is no room. */
__attribute__((format(printf, 3, 4)))
static int add_line(char *text, size_t len, const char *fmt, ...)
{
	const size_t used = strlen(text);
	va_list args;
	int n;

	va_start(args, fmt);
	n = vsnprintf(text + used, len - used, fmt, args);
	va_end(args);
	return n >= 0 && (size_t)n < len - used ? 0 :
		hm_error(-ENOSPC, "resource_explain: %zu bytes are too few: give a larger buffer",
			 len);
}

/* Adds the places that the contents of the pool @spec can move to, where these differ. */
static int explain_pool(struct hetmem *hm, const struct hm_spec *spec, char *text, size_t len)
{
	const struct hm_value *park = hm_spec_value(spec, "park");
	const struct hm_spec *below = spec->children[0];
	const int device = hm_spec_number(below, "device");
	const bool one = !strcmp(below->kind->name, "vmm") && device < hm->nr_devices &&
		hm_has_one_memory(hm, device);
	int err = 0;

	if (one && (hm_spec_value(spec, "spill")->text || hm_spec_value(spec, "min_host")->text))
		err = add_line(text, len, "pool(vmm(device=%d)): spill= and min_host= are refused: " HM_ONE_MEMORY "\n",
			       device);
	if (!err && park->path)
		err = add_line(text, len, "pool(%s): a sleep keeps contents in a file in %s\n",
			       below->kind->name, park->text);
	else if (!err && one)
		err = add_line(text, len, "pool(vmm(device=%d)): a sleep keeps no contents: " HM_ONE_MEMORY ": give park=PATH, a directory on a disk\n",
			       device);
	return err;
}

/*
 * Adds a line for each name in @spec, from the top, and for pools that this machine limits.
 * -ENOSPC: there is no room.
 */
static int explain(struct hetmem *hm, const struct hm_spec *spec, char *text,
		   size_t len)
{
	struct hm_expansion is;
	struct hm_spec *real;
	int err = 0, i;

	if (spec->kind->class == HM_KIND_NAME) {
		err = spec->kind->expand(hm, spec, &is);
		if (!err)
			err = add_line(text, len, "%s is %s: %s\n", spec->kind->name, is.text,
				       is.why);
		if (!err)
			err = hm_spec_parse(is.text, &real);
		if (err)
			return err;
		err = explain(hm, real, text, len);
		hm_spec_free(real);
	} else if (spec->kind->class == HM_KIND_POOL) {
		err = explain_pool(hm, spec, text, len);
	}
	for (i = 0; !err && i < spec->nr_children; i++)
		err = explain(hm, spec->children[i], text, len);
	return err;
}

int hetmem_resource_explain(struct hetmem *hm, const char *text, char *buf,
			    size_t len)
{
	struct hm_spec *spec;
	int err;

	if (!hm || !buf || !len)
		return hm_error(-EINVAL, "resource_explain: %s", !hm ?
				"hm is NULL" : !buf ? "buf is NULL" :
				"len is 0");
	*buf = '\0';
	if (!text)
		text = secure_getenv("HETMEM_RESOURCE");
	err = hm_spec_parse(text && *text ? text : DEFAULT_SPEC, &spec);
	if (err)
		return err;
	err = explain(hm, spec, buf, len);
	hm_spec_free(spec);
	if (err)
		*buf = '\0';
	return err;
}

static int check_device(struct hetmem *hm, const char *what, int device)
{
	if (!hm)
		return hm_error(-EINVAL, "%s: hm is NULL", what);
	if (device < -1 || device >= hm->nr_devices)
		return hm_no_device(hm, what, device);
	return 0;
}

static struct hetmem_resource *look(struct hetmem *hm, int device)
{
	struct hetmem_resource *res;

	pthread_mutex_lock(&hm->lock);
	res = hm->current[device + 1] ? hm->current[device + 1] :
		hm->own[device + 1];
	pthread_mutex_unlock(&hm->lock);
	return res;
}

/* By one thread at a time: a second log of one file would be refused. */
static int make_own(struct hetmem *hm, int device)
{
	struct hetmem_resource *made = NULL;
	int err = 0;

	pthread_mutex_lock(&hm->making);
	if (!look(hm, device))
		err = device < 0 ? create(hm, HOST_SPEC, 0, &made) :
			create(hm, NULL, device, &made);
	if (made) {
		pthread_mutex_lock(&hm->lock);
		hm->own[device + 1] = made;
		pthread_mutex_unlock(&hm->lock);
	}
	pthread_mutex_unlock(&hm->making);
	return err;
}

int hetmem_resource_current(struct hetmem *hm, int device,
			    struct hetmem_resource **out)
{
	int err = check_device(hm, "resource_current", device);

	if (err || !out)
		return err ? err : hm_error(-EINVAL,
					    "resource_current: res is NULL");
	*out = look(hm, device);
	while (!err && !*out) {
		err = make_own(hm, device);
		start_agent(hm);
		*out = look(hm, device);
	}
	return *out ? 0 : err;
}

int hetmem_resource_set_current(struct hetmem *hm, int device,
				struct hetmem_resource *res,
				struct hetmem_resource **old)
{
	int err = check_device(hm, "resource_set_current", device);

	if (err)
		return err;
	if (res && res->hm != hm)
		return hm_error(-EINVAL, "resource_set_current: the resource is of another struct hetmem: make one with this");
	pthread_mutex_lock(&hm->lock);
	if (old)
		*old = hm->current[device + 1];
	hm->current[device + 1] = res;
	pthread_mutex_unlock(&hm->lock);
	return 0;
}

void hm_current_close(struct hetmem *hm)
{
	struct hm_kept *kept;
	int i;

	for (i = 0; i <= HM_MAX_DEVICES; i++) {
		hm_resource_put(hm->own[i]);
		hm->own[i] = NULL;
	}
	while ((kept = hm->kept)) {
		hm->kept = kept->next;
		/* One that was not destroyed stays the program's mistake. */
		if (!kept->res->hm)
			free(kept->res);
		free(kept);
	}
}
