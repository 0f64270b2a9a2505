/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The process's own memory that is really there, as the kernel counts it:
 * what a resource's metadata costs is what this grows by.
 */
#ifndef HETMEM_TOOLS_RESIDENT_H
#define HETMEM_TOOLS_RESIDENT_H

#include <stdint.h>

/* Gives free heap back, so that what is counted next is not hidden in it. */
void resident_begin(void);

/*
 * Bytes of anonymous pages that this process has, or -1. Memory of a device is
 * none of them, nor is the soft driver's (a file's). Allocates nothing.
 */
int64_t resident_anonymous(void);

#endif
