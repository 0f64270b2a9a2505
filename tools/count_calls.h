/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Counts calls of the driver, by name: each member of the driver table is
 * replaced by a thunk that adds one and goes on to what was there, whatever
 * its arguments are. On x86-64 and aarch64; elsewhere nothing is counted.
 */
#ifndef HETMEM_TOOLS_COUNT_CALLS_H
#define HETMEM_TOOLS_COUNT_CALLS_H

#include "driver/hetmem.h"

/* Begins; while it counts, @hm's table is changed. False: cannot. */
bool count_calls_begin(struct hetmem *hm);

/* Ends; @counts, of count_calls_nr() entries. */
void count_calls_end(struct hetmem *hm, uint64_t *counts);

unsigned int count_calls_nr(void);
const char *count_calls_name(unsigned int index);

#endif
