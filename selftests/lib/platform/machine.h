/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* A library that is open on a machine that the soft driver plays. */
#ifndef HETMEM_SELFTESTS_MACHINE_H
#define HETMEM_SELFTESTS_MACHINE_H

#include "api.h"

/* NULL: it cannot be played, hetmem_last_error() tells why. */
static struct hetmem *open_machine(const char *description)
{
	struct hetmem_params params = {
		.size = sizeof(params), .driver = "soft", .module_path = "",
	};
	struct hetmem *hm;

	setenv("HETMEM_SOFT_MACHINE", description, 1);
	return hetmem_open(&hm, &params) ? NULL : hm;
}

__attribute__((unused))
static struct hetmem_platform platform_of(struct hetmem *hm, int device)
{
	struct hetmem_platform p = { .size = sizeof(p) };

	need(!hetmem_platform(hm, device, &p), "device %d: %s", device,
	     hetmem_last_error());
	return p;
}

/* The value of a piece of evidence, "" if there is no such piece. */
__attribute__((unused))
static const char *evidence_of(struct hetmem *hm, int device,
			       const char *source, const char *what)
{
	struct hetmem_evidence e = { .size = sizeof(e) };
	unsigned int i;

	for (i = 0; !hetmem_evidence(hm, device, i, &e); i++)
		if (!strcmp(e.source, source) && !strcmp(e.what, what))
			return e.value;
	return "";
}

#endif /* HETMEM_SELFTESTS_MACHINE_H */
