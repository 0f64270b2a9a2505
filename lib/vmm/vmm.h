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

#endif /* HETMEM_VMM_VMM_H */
