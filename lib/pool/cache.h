/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The cached path: the calls of a pool, as in struct hm_resource_ops. They are called without
 * a lock.
 */
#ifndef HETMEM_POOL_CACHE_H
#define HETMEM_POOL_CACHE_H

#include "core/resource.h"

int hm_pool_alloc(struct hetmem_resource *res, size_t size, size_t align, hetmem_stream stream,
		  void **ptr);
int hm_pool_free(struct hetmem_resource *res, void *ptr, size_t *size, hetmem_stream stream);
int hm_pool_put(struct hetmem_resource *res, void *ptr, size_t size, hetmem_stream stream);

/* If the program retires its streams, a hit calls no driver. */
int hm_pool_alloc_retired(struct hetmem_resource *res, size_t size, size_t align,
			  hetmem_stream stream, void **ptr);
int hm_pool_free_retired(struct hetmem_resource *res, void *ptr, size_t *size,
			 hetmem_stream stream);
int hm_pool_put_retired(struct hetmem_resource *res, void *ptr, size_t size,
			hetmem_stream stream);

/* Check mode is notified. */
int hm_pool_alloc_told(struct hetmem_resource *res, size_t size, size_t align,
		       hetmem_stream stream, void **ptr);
int hm_pool_free_any(struct hetmem_resource *res, void *ptr, size_t *size, hetmem_stream stream);

#endif /* HETMEM_POOL_CACHE_H */
