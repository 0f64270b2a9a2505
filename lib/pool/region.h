/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A resource over a provider of whole regions: one region an allocation.
 */
#ifndef HETMEM_POOL_REGION_H
#define HETMEM_POOL_REGION_H

#include "provider/provider.h"
#include "core/resource.h"

/*
 * Freeing gives the region back when its last use is complete: at once over a
 * STREAMED provider, else on a later alloc, free, poll or trim; none of them
 * waits but alloc and trim, when there is no memory otherwise.
 *
 * @provider belongs to the resource from then on and is destroyed with it; on
 * an error it stays the caller's. -EINVAL it is mappable; -ENOMEM.
 */
int hm_region_create(struct hm_provider *provider,
		     struct hetmem_resource **out);

#endif /* HETMEM_POOL_REGION_H */
