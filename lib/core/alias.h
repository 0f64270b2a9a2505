/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Second addresses of blocks, which hetmem_free() takes, too. No resource knows them as blocks:
 * hetmem_free() looks here after the resource did not know the address.
 */
#ifndef HETMEM_CORE_ALIAS_H
#define HETMEM_CORE_ALIAS_H

#include "core/resource.h"

/**
 * struct hm_alias - an address of memory that belongs to a block
 * @addr, @size: as hetmem_alias() returned it, and as it was asked for
 * @res: the resource that it was asked of
 * @free: ends it, in the order of @stream. After an error nothing has changed.
 */
struct hm_alias {
	struct hm_alias *next;
	uintptr_t addr;
	size_t size;
	struct hetmem_resource *res;
	int (*free)(struct hm_alias *self, hetmem_stream stream);
};

/* hetmem_free() finds @alias from now on; no longer. A second removal does nothing. */
void hm_alias_add(struct hm_alias *alias);
void hm_alias_remove(struct hm_alias *alias);
/* Whether @ptr is in an alias. */
bool hm_is_alias(const void *ptr);
/*
 * What remains of hetmem_free() after @res did not know @ptr: frees the alias @ptr. Errors: as
 * hetmem_free(); -EINVAL without a text: there is no such alias.
 */
int hm_alias_free(struct hetmem_resource *res, const void *ptr, size_t size,
		  hetmem_stream stream);

#endif /* HETMEM_CORE_ALIAS_H */
