/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* The tests of hetmem_shrink() share this: over memory of the soft driver, in handles. */
#ifndef HETMEM_SELFTESTS_SHRINK_TEST_H
#define HETMEM_SELFTESTS_SHRINK_TEST_H

#include "alloc_with.h"
#include "below.h"
#include "by_spec.h"
#include "driver_calls.h"
#include "new_stream.h"
#include "wait.h"

#define MIB	((size_t)1 << 20)
#define GRANULE	(2 * MIB)

__attribute__((unused))
static size_t held(struct hetmem_resource *res)
{
	return stats(res).reserved;
}

#endif /* HETMEM_SELFTESTS_SHRINK_TEST_H */
