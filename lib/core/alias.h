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
 * @next: with the same hash
 * @addr, @size: as hetmem_alias() returned it, and as it was asked for
 * @kind: "an alias", or "a replica", which is a copy of the memory: see place/replica.c
 * @res: the resource that it was asked of
 * @free: ends it, in the order of @stream. After an error nothing has changed.
 */
struct hm_alias {
	struct hm_alias *next;
	uintptr_t addr;
	size_t size;
	const char *kind;
	struct hetmem_resource *res;
	int (*free)(struct hm_alias *self, hetmem_stream stream);
};

/* hetmem_free() finds @alias from now on; no longer. A second removal does nothing. */
void hm_alias_add(struct hm_alias *alias);
void hm_alias_remove(struct hm_alias *alias);
/* The kind of the alias that begins at @ptr, or NULL. */
const char *hm_alias_kind(const void *ptr);
/*
 * What remains of hetmem_free() after @res did not know @ptr: frees the alias @ptr. Errors: as
 * hetmem_free(); -EINVAL without a text: there is no such alias.
 */
int hm_alias_free(struct hetmem_resource *res, const void *ptr, size_t size,
		  hetmem_stream stream);

struct hm_replicated;

/**
 * struct hm_replica_ops - the replicas of blocks
 * @free_begins: before hetmem_free() frees @ptr, a block with replicas or any other. An error is
 *	hetmem_free()'s. *@block, if not NULL, goes to @free_ends, with the result of the free
 * @reach: whether a replica of @ptr has bytes from offset @from on
 * @bytes: of the memory of all replicas
 * @poll: frees those that ended and are complete
 * @end: frees all. No other thread uses @res
 * All without a lock; in a forked child they do nothing.
 */
struct hm_replica_ops {
	int (*free_begins)(struct hetmem_resource *res, const void *ptr, hetmem_stream stream,
			   struct hm_replicated **block);
	void (*free_ends)(struct hetmem_resource *res, struct hm_replicated *block, int err);
	bool (*reach)(struct hetmem_resource *res, const void *ptr, size_t from);
	uint64_t (*bytes)(struct hetmem_resource *res);
	void (*poll)(struct hetmem_resource *res);
	void (*end)(struct hetmem_resource *res);
};

/* Adds @by, 1 or -1, to the blocks that have replicas. There is one @ops in the process. */
void hm_watch_replicas(const struct hm_replica_ops *ops, int by);

#endif /* HETMEM_CORE_ALIAS_H */
