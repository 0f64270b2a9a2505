/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The resource of a test over the soft driver.
 */
#ifndef HETMEM_SELFTESTS_ONE_RESOURCE_H
#define HETMEM_SELFTESTS_ONE_RESOURCE_H

#include "below.h"
#include "soft_driver.h"

#define MIB	((size_t)1 << 20)
#define HOST	HETMEM_STREAM_HOST

static struct hetmem_resource *res;

static void create(const char *spec)
{
	need(!hetmem_resource_create(hm, spec, &res), "%s: %s", spec, hetmem_last_error());
}

static struct hetmem_resource_stats stats(void)
{
	struct hetmem_resource_stats s = { .size = sizeof(s) };

	need(!hetmem_resource_stats(res, &s), "%s", hetmem_last_error());
	return s;
}

#endif /* HETMEM_SELFTESTS_ONE_RESOURCE_H */
