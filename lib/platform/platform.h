/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* What the machine is: verdicts about its devices, the host's memory nodes. */
#ifndef HETMEM_PLATFORM_PLATFORM_H
#define HETMEM_PLATFORM_PLATFORM_H

#include "core/core.h"

/* detect.c */

/**
 * struct hm_evidence - what is known of a device
 * @soft: it is the soft driver's
 * @pageable: it reaches all memory of the process
 * @host_tables: through the CPU's page tables
 * @numa_node: that its own memory is, by its driver's word; -1: none
 */
struct hm_evidence {
	bool soft;
	bool pageable;
	bool host_tables;
	int numa_node;
};

enum hetmem_addressing hm_platform_verdict(const struct hm_evidence *e);

/* numa.c: host nodes by move_pages(2). */

bool hm_numa_there(void);
bool hm_numa_has_node(int node);
int hm_numa_nodes(void);
ssize_t hm_numa_residency(uintptr_t start, uintptr_t end, size_t page_size,
			  struct hetmem_run *runs, size_t nr, uintptr_t *next);
int hm_numa_move(uintptr_t start, uintptr_t end, size_t page_size, int node,
		 struct hetmem_moved *moved);

#endif /* HETMEM_PLATFORM_PLATFORM_H */
