// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The named defaults: each stands for a stack that fits the machine.
 *
 * unified is memory that the CPU and a device use at one address. The provider
 * below it follows from the platform's verdict (platform/detect.c); over= overrides
 * that. A device that cannot use system memory is refused it. Parameters go to the
 * provider or to the pool, whichever has them. A parameter that neither has takes no
 * effect, and the reason names it: one spec serves machines that differ.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "spec/spec.h"

/* Words of over=, in the order of its row in kinds.c. */
enum over { OVER_AUTO, OVER_SYSTEM, OVER_MANAGED, OVER_REGISTERED, OVER_HOST };

/* Likewise of headroom=. */
enum headroom { HEADROOM_AUTO, HEADROOM_OFF, HEADROOM_ON };

static const char *const providers[] = {
	[OVER_SYSTEM] = "system",
	[OVER_MANAGED] = "managed",
	[OVER_REGISTERED] = "registered",
	[OVER_HOST] = "host",
};

struct text {
	char *at;
	size_t room;
	bool full;
};

__attribute__((format(printf, 2, 3)))
static void append(struct text *t, const char *fmt, ...)
{
	va_list args;
	int n;

	va_start(args, fmt);
	n = vsnprintf(t->at, t->room, fmt, args);
	va_end(args);
	if (n < 0 || (size_t)n >= t->room) {
		t->full = true;
		n = t->room - 1;
	}
	t->at += n;
	t->room -= n;
}

static bool has_param(const struct hm_kind *kind, const char *name)
{
	const struct hm_param *param;

	for (param = kind->params; param->name; param++)
		if (!strcmp(param->name, name))
			return true;
	return false;
}

static void append_param(struct text *t, const char *between, const char *name,
			 const char *value)
{
	const char *quote = strchr(value, '"') ? "'" : "\"";

	append(t, "%s%s=%s%s%s", between, name, quote, value, quote);
}

/* Whether @spec sets parameter @i, and passes it on to the pool or the provider. */
static bool goes_on(const struct hm_spec *spec, int i)
{
	static const char *const own[] = { "device", "over", "headroom", "keep", "agent" };
	size_t j;

	for (j = 0; j < sizeof(own) / sizeof(own[0]); j++)
		if (!strcmp(spec->kind->params[i].name, own[j]))
			return false;
	return spec->values[i].given;
}

/*
 * Writes @pool(@provider(...),...) with the parameters that @spec was given, in a
 * headroom() with @keep (may be "") if that is not NULL. @device -1: none. Adds to @out->why the
 * parameters that neither kind has. -EINVAL: too long.
 */
static int expand_pool(const struct hm_spec *spec, const char *pool,
		       const char *provider, int device, const char *keep,
		       struct hm_expansion *out)
{
	const struct hm_kind *over = hm_kind_find(provider, strlen(provider));
	const struct hm_kind *kind = hm_kind_find(pool, strlen(pool));
	const struct hm_param *param = spec->kind->params;
	struct text t = { out->text, sizeof(out->text), false };
	struct text why = { out->why, sizeof(out->why), false };
	const char *between = "(";
	int i;

	why.at += strlen(out->why);
	why.room -= strlen(out->why);
	append(&t, "%s%s(%s", keep ? "headroom(" : "", pool, provider);
	if (device >= 0 && has_param(over, "device")) {
		append(&t, "(device=%d", device);
		between = ",";
	}
	for (i = 0; param[i].name; i++) {
		if (!goes_on(spec, i) || !has_param(over, param[i].name))
			continue;
		append_param(&t, between, param[i].name, spec->values[i].text);
		between = ",";
	}
	append(&t, "%s", *between == '(' ? "" : ")");
	for (i = 0; param[i].name; i++) {
		if (!goes_on(spec, i) || has_param(over, param[i].name))
			continue;
		if (has_param(kind, param[i].name))
			append_param(&t, ",", param[i].name,
				     spec->values[i].text);
		else
			append(&why, "; %s= has no effect over %s",
			       param[i].name, provider);
	}
	append(&t, ")");
	if (keep && *keep)
		append_param(&t, ",", "keep", keep);
	if (keep)
		append(&t, ")");
	return t.full ? hm_error(-EINVAL, "%s: its parameters are too long: shorten them",
				 spec->kind->name) : 0;
}

/* Memory of the device itself, never what moves away from it. */
int hm_expand_device_pool(struct hetmem *hm, const struct hm_spec *spec,
			  struct hm_expansion *out)
{
	int device = hm_spec_number(spec, "device");
	bool vmm;

	if (device >= hm->nr_devices)
		return hm_no_device(hm, spec->kind->name, device);
	vmm = hm->devices[device].props.vmm;
	snprintf(out->why, sizeof(out->why), "device %d has %s", device, vmm ?
		 "virtual memory management" : "no virtual memory management");
	out->agent = 0;
	return expand_pool(spec, "pool", vmm ? "vmm" : "device", device, NULL, out);
}

/* @p uses all memory of the process; *@moves becomes the reason for the choice. */
static enum over choose_pageable(const struct hetmem *hm,
				 const struct hetmem_platform *p,
				 const char **moves)
{
	switch (p->kind) {
	case HETMEM_PLATFORM_ATS:
		*moves = "it uses the CPU's page tables, and its memory is a node";
		return OVER_SYSTEM;
	case HETMEM_PLATFORM_CDMM:
		*moves = "it uses the CPU's page tables; system memory stays on the host";
		return OVER_SYSTEM;
	case HETMEM_PLATFORM_INTEGRATED:
		*moves = "it and the CPU have one memory";
		return OVER_SYSTEM;
	default:
		break;
	}
	if (hm_kmod_there(&hm->kmod)) {
		*moves = "hetmem.ko knows where system memory is";
		return OVER_SYSTEM;
	}
	if (!p->managed) {
		*moves = "it has no managed memory";
		return OVER_SYSTEM;
	}
	*moves = "managed memory moves in larger pieces, and without hetmem.ko nothing reports where system memory is; give over=system to use it all the same";
	return OVER_MANAGED;
}

/* 0, or -EOPNOTSUPP. */
static int choose(const struct hetmem *hm, int device, enum over *over,
		  const char **reason)
{
	const struct hetmem_platform *p = &hm->devices[device].platform;

	if (p->pageable) {
		*over = choose_pageable(hm, p, reason);
	} else if (p->concurrent) {
		*over = OVER_MANAGED;
		*reason = "it and the CPU use managed memory at one time; it uses no other memory of the process";
	} else if (p->registers && p->registered) {
		*over = OVER_REGISTERED;
		*reason = "it and the CPU do not use managed memory at one time; it reads registered memory at the CPU's address";
	} else {
		return hm_error(-EOPNOTSUPP, "unified: device %d reaches neither system nor managed nor registered memory together with the CPU: give over=host for memory of the CPU alone",
				device);
	}
	return 0;
}

/*
 * Returns what headroom() keeps beside the reserve ("": nothing), or NULL for no
 * headroom(). By default HMM has one: too much memory can hang its driver.
 */
static const char *keep_of(const struct hm_spec *spec, const struct hetmem_platform *p)
{
	const char *keep = hm_spec_value(spec, "keep")->text;
	const enum headroom headroom = hm_spec_number(spec, "headroom");

	if (headroom == HEADROOM_OFF ||
	    (headroom == HEADROOM_AUTO && !keep && p->kind != HETMEM_PLATFORM_HMM))
		return NULL;
	return keep ? keep : "";
}

/* Expands to @over; @device exists. */
static int expand_over(struct hetmem *hm, const struct hm_spec *spec, enum over over,
		       int device, struct hm_expansion *out)
{
	const char *keep = keep_of(spec, &hm->devices[device].platform);
	const size_t used = strlen(out->why);

	out->agent = hm_spec_number(spec, "agent");
	if (keep)
		snprintf(out->why + used, sizeof(out->why) - used, "; with headroom");
	if (out->agent && !hm_kmod_there(&hm->kmod)) {
		snprintf(out->why + strlen(out->why), sizeof(out->why) - strlen(out->why),
			 "; agent= has no effect without hetmem.ko");
		out->agent = 0;
	}
	return expand_pool(spec, "classes", providers[over], device, keep, out);
}

int hm_expand_unified(struct hetmem *hm, const struct hm_spec *spec,
		      struct hm_expansion *out)
{
	enum over over = hm_spec_number(spec, "over");
	int device = hm_spec_number(spec, "device"), err;
	const char *reason = "";

	out->agent = 0;
	/* No device: use the host's memory. */
	if (!hm->nr_devices && !device && over == OVER_AUTO) {
		snprintf(out->why, sizeof(out->why), "there is no device: %s",
			 hm->reasons[HETMEM_FEATURE_DEVICE]);
		return expand_pool(spec, "classes", "host", -1, NULL, out);
	}
	if (over == OVER_HOST) {
		snprintf(out->why, sizeof(out->why), "over=host");
		return expand_pool(spec, "classes", "host", -1, NULL, out);
	}
	if (device >= hm->nr_devices)
		return hm_no_device(hm, spec->kind->name, device);
	if (over == OVER_SYSTEM && !hm->devices[device].platform.pageable)
		return hm_error(-EOPNOTSUPP, "unified: device %d (%s) cannot use system memory: leave out over=, or give over=host for memory of the CPU alone",
				device,
				hetmem_platform_name(hm->devices[device].platform.kind));
	if (over != OVER_AUTO) {
		snprintf(out->why, sizeof(out->why), "over=%s", providers[over]);
		return expand_over(hm, spec, over, device, out);
	}
	err = choose(hm, device, &over, &reason);
	if (err)
		return err;
	snprintf(out->why, sizeof(out->why), "device %d (%s): %s", device,
		 hetmem_platform_name(hm->devices[device].platform.kind),
		 reason);
	return expand_over(hm, spec, over, device, out);
}
