/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * TAP for the programs of this directory: ok() once a behaviour, tap_end() last.
 */
#ifndef HETMEM_SELFTESTS_TAP_HPP
#define HETMEM_SELFTESTS_TAP_HPP

#include <cstdint>
#include <cstdio>

#include <hetmem.h>

static int tests, failed;

static void ok(bool good, const char *what)
{
	printf("%sok %d - %s\n", good ? "" : "not ", ++tests, what);
	failed += !good;
}

static uint64_t live(hetmem_resource *res)
{
	struct hetmem_resource_stats stats{};

	stats.size = sizeof(stats);
	return hetmem_resource_stats(res, &stats) ? ~0ULL : stats.live;
}

static int tap_end()
{
	printf("1..%d\n", tests);
	return failed != 0;
}

#endif /* HETMEM_SELFTESTS_TAP_HPP */
