/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Counts the system calls of the calling thread from outside: by another
 * process that traces it, so that nothing is taken on trust.
 */
#ifndef HETMEM_TOOLS_COUNT_SYSTEM_H
#define HETMEM_TOOLS_COUNT_SYSTEM_H

#include <stdbool.h>
#include <stdint.h>

/* Begins with the calling thread. False: it cannot be traced here. */
bool count_system_begin(void);

/* Ends. System calls since, or -1. On the thread that began. */
int64_t count_system_end(void);

#endif
