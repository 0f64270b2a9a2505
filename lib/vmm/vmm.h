/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The VMM pool: a pool whose runs are handles of memory, mapped at addresses of
 * one reservation.
 */
#ifndef HETMEM_VMM_VMM_H
#define HETMEM_VMM_VMM_H

#include "pool/pool.h"

/* hm_pool_create() over a mappable @provider. */
int hm_vmm_pool_create(struct hm_provider *provider,
		       const struct hm_pool_options *options,
		       struct hetmem_resource **out);

/* The addresses of a pool that hm_vmm_pool_create() made. */
void hm_vmm_range(const struct hetmem_resource *pool, uintptr_t *from, uintptr_t *to);

/* Bytes of host memory of its contents. During a sleep or a wake that excludes others. */
uint64_t hm_vmm_parked(const struct hetmem_resource *pool);

/*
 * The functions of hetmem_on_remap() of one such pool are notified by another one, too. Waits
 * for a move, a sleep or a wake of @from. -ENOMEM, -EDEADLK.
 */
int hm_vmm_copy_observers(struct hetmem_resource *from, struct hetmem_resource *to);

/* hetmem_close(): what hetmem_import() maps stays mapped, and no call knows it any more. */
void hm_import_forget(struct hetmem *hm);

#endif /* HETMEM_VMM_VMM_H */
