/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Brings memory of another process to the host without its help: reads a byte of each page
 * that its pagemap shows as swapped. Pages on a device look so too, and a read brings
 * back both, as an access of the process itself would.
 */
#ifndef HETMEM_TOOLS_PULL_H
#define HETMEM_TOOLS_PULL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct pull_range {
	uint64_t start;
	uint64_t end;
};

/**
 * struct pulled - what came back
 * @away: pages that were on a device or in swap when their turn came
 * @back: of these, pages that were in memory after the read
 * @swapped: pages by which the process's swap shrank, at most @back
 * @reached: bytes of addresses looked at
 * @ended: all ranges were looked at
 */
struct pulled {
	uint64_t away;
	uint64_t back;
	uint64_t swapped;
	uint64_t reached;
	bool ended;
};

/*
 * Takes @seconds at most. A process that does not let itself be read in time is left.
 * -EPERM: not permitted; -ESRCH: it is gone; else an errno of process_vm_readv(2).
 */
int pull_by_reading(pid_t pid, const struct pull_range *ranges, size_t nr, unsigned int seconds,
		    struct pulled *pulled);

#endif
