/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Where the pages of a process are: from the kernel module, through a
 * context of that process, or from /proc/PID/pagemap.
 *
 * pagemap knows what is on the host and what was never touched, but writes
 * a page on a device as if it were swapped out. The module knows devices.
 * Where page tables do not tell it reports HETMEM_UNKNOWN, and pagemap is asked.
 */
#ifndef HETMEM_TOOLS_SOURCE_H
#define HETMEM_TOOLS_SOURCE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include <linux/hetmem.h>

#include "maps.h"

/* Locations that only the tool has, beside those of <linux/hetmem.h>. */
#define LOC_ABSENT		HETMEM_LOC(0x100, 0)	/* no page at all */
#define LOC_SWAP_OR_DEVICE	HETMEM_LOC(0x101, 0)	/* as pagemap has it */

struct source {
	pid_t pid;
	int context;		/* -1: from pagemap only */
	int pagemap;		/* -1: the module's word only */
	bool many_nodes;	/* host pages: ask on which node */
	uint64_t page_size;
	const char *note;	/* what a reader must know, or NULL */
};

/*
 * Opens the sources for @pid, which may be our own. -EACCES neither may be
 * used. Close with source_close() in any case.
 */
int source_open(struct source *source, pid_t pid);
void source_close(struct source *source);

/* Called for consecutive runs; not 0 ends the walk and is its result. */
typedef int (*run_fn)(const struct hetmem_run *run, void *arg);

/*
 * Walks [@start, @end) in @vma. The runs cover it without a gap. -ESRCH the
 * process is gone.
 */
int source_walk(struct source *source, const struct vma *vma, uint64_t start,
		uint64_t end, run_fn fn, void *arg);

/* As hetmem_location_name(), and the tool's own locations. */
char *location_text(uint32_t location, char *buf, size_t len);

#endif
