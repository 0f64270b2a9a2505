/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* The tests of rings share this. */
#ifndef HETMEM_SELFTESTS_RING_TEST_H
#define HETMEM_SELFTESTS_RING_TEST_H

#include "shrink_test.h"

__attribute__((unused))
static int ring(struct hetmem_resource *res, size_t bytes, hetmem_stream s, char **p)
{
	const struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = bytes, .stream = s, .flags = HETMEM_ALLOC_RING,
	};

	return hetmem_alloc_with(res, &params, (void **)p);
}

__attribute__((unused))
static char *get_ring(struct hetmem_resource *res, size_t bytes, hetmem_stream s)
{
	char *p = NULL;

	need(!ring(res, bytes, s, &p), "ring: %s", hetmem_last_error());
	return p;
}

#endif /* HETMEM_SELFTESTS_RING_TEST_H */
