/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Resources that a test makes by their specs, and blocks of theirs. */
#ifndef HETMEM_SELFTESTS_BY_SPEC_H
#define HETMEM_SELFTESTS_BY_SPEC_H

#include "soft_driver.h"

static struct hetmem_resource *make(const char *spec)
{
	struct hetmem_resource *res = NULL;

	need(!hetmem_resource_create(hm, spec, &res), "%s: %s", spec,
	     hetmem_last_error());
	return res;
}

/* NULL, and a line why, if there is none. */
__attribute__((unused))
static void *get(struct hetmem_resource *res, size_t size, hetmem_stream s)
{
	void *p = NULL;

	if (hetmem_alloc(res, size, 0, s, &p))
		printf("# %s\n", hetmem_last_error());
	return p;
}

__attribute__((unused))
static struct hetmem_resource_stats stats(struct hetmem_resource *res)
{
	struct hetmem_resource_stats s = { .size = sizeof(s) };

	need(!hetmem_resource_stats(res, &s), "statistics: %s", hetmem_last_error());
	return s;
}

#endif /* HETMEM_SELFTESTS_BY_SPEC_H */
