/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Numbers at random, which are the same on every machine: below(n), from a seed of the thread. */
#ifndef HETMEM_SELFTESTS_BELOW_H
#define HETMEM_SELFTESTS_BELOW_H

#include <stdint.h>

static __thread uint64_t seed = 1;

__attribute__((unused))
static unsigned int below(unsigned int n)
{
	seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
	return (seed >> 33) % n;
}

#endif /* HETMEM_SELFTESTS_BELOW_H */
