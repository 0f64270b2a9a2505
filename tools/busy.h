/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Work for streams, as a program's kernels are: it takes a given time on its
 * stream and uses a block. It is no call of the driver table: what the library
 * calls is counted without it. On a GPU it is a kernel of one thread that takes
 * time and touches nothing, because not all memory of a resource need be the
 * GPU's; several streams run theirs at once. The soft driver's kernels read the
 * whole block, so that check mode knows of it.
 *
 * A second kernel uses all of a block: it counts up each word.
 */
#ifndef HETMEM_TOOLS_BUSY_H
#define HETMEM_TOOLS_BUSY_H

#include "driver/hetmem.h"

struct busy;

/* In the current context. NULL: a line of the subcommand @sub was written. */
struct busy *busy_open(struct hetmem *hm, const char *sub);
void busy_close(struct busy *busy);

/* Any thread with that context. False: the driver refused. */
bool busy_run(const struct busy *busy, CUstream stream, const void *ptr,
	      size_t size, uint64_t ns);

/*
 * Adds 1 to each 32-bit word of [@ptr, @ptr + @size), which the device can use. The soft
 * driver's kernel only reads them: *@adds becomes what is
 * added. False: the driver refused.
 */
bool busy_count_up(const struct busy *busy, CUstream stream, const void *ptr, size_t size,
		   unsigned int *adds);

#endif
