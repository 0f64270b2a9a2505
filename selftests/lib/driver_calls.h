/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The names of the driver's calls, as rules of the soft driver have them. A
 * call of several versions is there as often.
 */
#ifndef HETMEM_SELFTESTS_DRIVER_CALLS_H
#define HETMEM_SELFTESTS_DRIVER_CALLS_H

#include "driver/calls.h"

static const char *const calls[] = {
#define CALL(member, base, symbol, version, need) #base,
	HM_DRIVER_CALLS(CALL)
#undef CALL
};

#define NR_CALLS	(sizeof(calls) / sizeof(calls[0]))

#endif /* HETMEM_SELFTESTS_DRIVER_CALLS_H */
