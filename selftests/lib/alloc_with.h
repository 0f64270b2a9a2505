/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Allocations with options, for tests: each with one of them.
 */
#ifndef HETMEM_SELFTESTS_ALLOC_WITH_H
#define HETMEM_SELFTESTS_ALLOC_WITH_H

#include <hetmem.h>

__attribute__((unused))
static int alloc_reserve(struct hetmem_resource *res, size_t bytes,
			 size_t reserve, hetmem_stream stream, void **ptr)
{
	const struct hetmem_alloc_params params = {
		.size = sizeof(params),
		.bytes = bytes,
		.stream = stream,
		.reserve = reserve,
	};

	return hetmem_alloc_with(res, &params, ptr);
}

__attribute__((unused))
static int alloc_private(struct hetmem_resource *res, uint64_t id, size_t bytes,
			 hetmem_stream stream, void **ptr)
{
	const struct hetmem_alloc_params params = {
		.size = sizeof(params),
		.bytes = bytes,
		.stream = stream,
		.private_pool = id,
	};

	return hetmem_alloc_with(res, &params, ptr);
}

#endif /* HETMEM_SELFTESTS_ALLOC_WITH_H */
