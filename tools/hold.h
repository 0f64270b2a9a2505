/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * How long the calling thread holds the library's mutexes. The command is linked
 * with --wrap for the calls below, so the library's own calls come here; the
 * driver's do not. A stream's own lock, which spins, is no mutex.
 */
#ifndef HETMEM_TOOLS_HOLD_H
#define HETMEM_TOOLS_HOLD_H

#include <stdbool.h>
#include <stdint.h>

/**
 * struct hold - the longest that one mutex was held
 * @ns: by the clock
 * @cpu_ns: of the thread's own time, which is not longer on a busy machine
 * @instructions: in user space, as @counter counts them; meaningless without
 * @counter: of perf_event_open(2), -1: none
 */
struct hold {
	uint64_t ns;
	uint64_t cpu_ns;
	uint64_t instructions;
	int counter;
};

/* Of the calling thread, until hold_end(). *@hold is added to. */
void hold_begin(struct hold *hold);
void hold_end(void);

/* The calling thread's own time. */
uint64_t hold_cpu_ns(void);

/* A counter of the calling thread's instructions in user space, or -1. */
int hold_counter(void);
uint64_t hold_instructions(int counter);

#endif
