/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the driver takes of a pass: the calls of it that can take long are
 * replaced by ones that look at the clock before and after. For one thread.
 */
#ifndef HETMEM_TOOLS_TIME_CALLS_H
#define HETMEM_TOOLS_TIME_CALLS_H

#include "driver/hetmem.h"

#define TIME_CALLS	12

/* Begins, with nothing taken so far. Changes @hm's table until it ends. */
void time_calls_begin(struct hetmem *hm);

/* Ends; @ns of each, of time_calls_nr() entries. */
void time_calls_end(struct hetmem *hm, uint64_t *ns);

unsigned int time_calls_nr(void);
const char *time_calls_name(unsigned int index);

#endif
