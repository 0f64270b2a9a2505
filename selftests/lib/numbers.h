/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Contents that are checked, and where pages are, for tests with the emulated device. */
#ifndef HETMEM_SELFTESTS_NUMBERS_H
#define HETMEM_SELFTESTS_NUMBERS_H

#include "soft_driver.h"

/*
 * Pages of a range at @location, or, with HETMEM_NODE_ANY, at any of its kind;
 * UINT64_MAX: it is not known.
 */
__attribute__((unused))
static uint64_t pages_on(const void *p, size_t size, uint32_t location)
{
	const bool any = HETMEM_LOC_INDEX(location) == HETMEM_NODE_ANY;
	const uintptr_t page = sysconf(_SC_PAGESIZE);
	uintptr_t at = (uintptr_t)p, end = at + size, next;
	struct hetmem_run runs[64];
	uint64_t pages = 0;
	ssize_t n, i;

	for (; at < end; at = next) {
		n = hetmem_residency(hm, (void *)at, end - at, runs, NULL, 64, &next);
		if (n <= 0 || next <= at)
			return UINT64_MAX;
		for (i = 0; i < n; i++)
			if (any ? HETMEM_LOC_KIND(runs[i].location) == HETMEM_LOC_KIND(location) :
			    runs[i].location == location)
				pages += (runs[i].end - runs[i].start) / page;
	}
	return pages;
}

/* As pages_on(), of all locations of @kind. */
__attribute__((unused))
static uint64_t pages_at(const void *p, size_t size, uint32_t kind)
{
	return pages_on(p, size, HETMEM_LOC(kind, HETMEM_NODE_ANY));
}

__attribute__((unused))
static void write_numbers(unsigned char *p, size_t size, uint64_t seed)
{
	uint64_t *words = (uint64_t *)p;
	size_t i;

	for (i = 0; i < size / 8; i++)
		words[i] = i * 0x9e3779b97f4a7c15ULL + seed;
}

__attribute__((unused))
static size_t wrong_numbers(const unsigned char *p, size_t size, uint64_t seed)
{
	const uint64_t *words = (const uint64_t *)p;
	size_t i, wrong = 0;

	for (i = 0; i < size / 8; i++)
		wrong += words[i] != i * 0x9e3779b97f4a7c15ULL + seed;
	return wrong;
}

#endif /* HETMEM_SELFTESTS_NUMBERS_H */
