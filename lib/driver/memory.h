/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* How much memory is left, and what of it is kept: memory.c. */
#ifndef HETMEM_DRIVER_MEMORY_H
#define HETMEM_DRIVER_MEMORY_H

#include "core/core.h"

/**
 * struct hm_reserve - memory that HETMEM_RESERVE keeps back
 * @given: it is set
 * @percent: @value is a percentage, else bytes
 */
struct hm_reserve {
	bool given;
	bool percent;
	uint64_t value;
};

/*
 * Bytes that a headroom() keeps usable on a device. In the list from add to remove,
 * which take hm->lock.
 */
struct hm_keep {
	struct hm_keep *next;
	int device;
	uint64_t bytes;
};

void hm_keep_add(struct hetmem *hm, struct hm_keep *keep);
void hm_keep_remove(struct hetmem *hm, struct hm_keep *keep);

/*
 * Bytes that may go to @device: what is usable there beyond what is kept. UINT64_MAX:
 * nothing is kept there, or nobody tells what is usable.
 */
uint64_t hm_headroom_fit(struct hetmem *hm, int device);

/* Bytes that the host can spare, less the reserve; HETMEM_MEMORY_UNKNOWN: nobody tells. */
uint64_t hm_host_usable(struct hetmem *hm);

/* Reads HETMEM_RESERVE. -EINVAL, with a text: it is wrong. */
int hm_read_reserve(struct hm_reserve *reserve);

#endif /* HETMEM_DRIVER_MEMORY_H */
