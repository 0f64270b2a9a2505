/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Programs that run once for each call of the driver that they make, which fails then. First they
 * run a few times without a failure, which tells the calls that they make at all.
 */
#ifndef HETMEM_SELFTESTS_FAILING_CALLS_H
#define HETMEM_SELFTESTS_FAILING_CALLS_H

#include "driver_calls.h"

/* Rules of one list; the soft driver takes 32. */
#define COUNTED	30

static bool is_made[NR_CALLS];

/* The @nth @call fails; without a @call: nothing fails, and calls are counted from the @nth on. */
static const char *failing_rule(const char *call, unsigned int nth)
{
	static char rule[64 * COUNTED];
	unsigned int i;
	size_t at = 0;

	if (call) {
		snprintf(rule, sizeof(rule), "%s:%u", call, nth);
		return rule;
	}
	for (i = nth; i < NR_CALLS && i < nth + COUNTED; i++)
		at += snprintf(rule + at, sizeof(rule) - at, "%s%s:4000000000", at ? "," : "", calls[i]);
	return rule;
}

/* Before the rules of failing_rule() go: how often @call was made. */
static long failing_made(const char *call, unsigned int nth)
{
	unsigned int i;

	for (i = nth; !call && i < NR_CALLS && i < nth + COUNTED; i++)
		is_made[i] = hm->soft->made(i - nth);
	/* A call of several versions is there as often. */
	for (i = 1; !call && i < NR_CALLS; i++)
		if (!strcmp(calls[i], calls[i - 1]))
			is_made[i] = false;
	return hm->soft->made(0);
}

/* What follows runs with the rules of failing_rule(NULL, @from), until is_made[] is right. */
#define count_made(from)						\
	for (unsigned int from = 0; from < NR_CALLS; from += COUNTED)

#endif /* HETMEM_SELFTESTS_FAILING_CALLS_H */
