/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* What hetmem_pin_comm() shares with the moves of spill.c and with sleep.c. */
#ifndef HETMEM_VMM_PIN_H
#define HETMEM_VMM_PIN_H

#include "vmm/spill.h"

/* spill.c */

/* Device memory of a move, counted; @shared: as of create_shared(). Without pool->lock. */
int hm_spill_make_memory(struct pool *p, uint32_t pages, bool shared, uint64_t *handle);
/* Gives it back, or keeps it until the driver takes it. Likewise. */
void hm_spill_release_memory(struct pool *p, uint64_t handle, uint32_t pages);
/* Calls the observers. With pool->sleep_lock only. */
void hm_spill_observe_one(struct pool *p, enum hetmem_remap_cause cause, uint64_t addr,
			  uint64_t bytes, bool after, int err);

/* pin.c, with pool->sleep_lock: ends what the driver did not undo; or forgets it. */

void hm_pin_reap(struct pool *p);
void hm_pin_forget(struct hm_spill *sp);

/* sleep.c: @h gets the pages and addresses of the handle @id behind it. With pool->lock. */
void hm_vmm_merge_next(struct pool *p, struct handle *h, uint32_t id);

#endif /* HETMEM_VMM_PIN_H */
