/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Sparse blocks of a VMM pool: sparse.c has the design. All under pool->lock.
 */
#ifndef HETMEM_VMM_SPARSE_H
#define HETMEM_VMM_SPARSE_H

#include "vmm/vmm_impl.h"

#define IDLE_LISTS	1024

/**
 * struct hm_sparse - what a pool has for sparse blocks
 * @holes, @nr_holes: tree of the pages that are of no block; @unmapped: of those without a
 *	mapping
 * @bytes: of the reservation; @end: pages before this one were used
 * @first, @last: list of parked mappings, oldest first; @nr: their pages
 * @trim: of them: where a trim goes on
 * @idle: by size: lists of freed blocks that keep their addresses while units are mapped there
 * @addresses: bytes of live blocks
 *
 * A mapping there has the block as its @owner. A mapping is @fresh if a commit that is under
 * way made its memory.
 */
struct hm_sparse {
	struct hole_node *holes, *unmapped;
	uint32_t nr_holes;
	uint64_t bytes;
	uint32_t end;
	uint32_t first, last;
	uint64_t nr;
	uint32_t trim;
	uint32_t idle[IDLE_LISTS];
	uint64_t addresses;
};

/* map.c */

/* Whether @page is set aside: see hm_vmm_set_apart(). */
static inline bool hm_vmm_is_apart(const struct vmm *v, uint32_t page)
{
	return v->apart[page / 64] >> page % 64 & 1;
}

/* No run begins or ends at [@page, @page + @pages) any more. */
static inline void hm_vmm_set_ends(struct vmm *v, uint32_t page, uint32_t pages)
{
	if (page >= v->nr)
		return;
	v->head[page] = 0;
	v->tail[page + pages - 1] = 0;
}
/* A list of one use: position @pos of stream @stream, unless that is complete. -ENOMEM. */
int hm_vmm_use(struct pool *p, unsigned int stream, uint64_t pos, uint32_t *uses);
/* Whether all of a list of uses is complete. Those that are not recorded are, for later. */
bool hm_vmm_uses_done(struct pool *p, uint32_t *uses);
/* The alias of @f at @f->to becomes its active mapping; the other one is an alias with @uses. */
void hm_vmm_swap(struct pool *p, const struct vmm_free *f, uint32_t uses);
/* Unmaps the active mapping of a handle, and releases it. No block has it. */
int hm_vmm_unmap_handle(struct pool *p, uint32_t handle);
/* Addresses that a pool takes of what the process has left: 1/@part. */
uint64_t hm_vmm_share_of_addresses(unsigned int part);

/* sparse.c: as in struct source. */

int hm_sparse_alloc(struct pool *p, struct pool_stream *s, uint64_t bytes, struct block **b);
int hm_sparse_prepare(struct pool *p, struct pool_stream *s, struct block *b, uint64_t from,
		      uint64_t to, enum hm_commit how, uint64_t pos);
int hm_sparse_commit(struct pool *p, struct block *b, uint64_t from, uint64_t to);
void hm_sparse_cancel(struct pool *p, uint64_t from, uint64_t to);
int hm_sparse_decommit(struct pool *p, struct pool_stream *s, struct block *b, uint64_t from,
		       uint64_t to, uint64_t pos, bool keep);
/* Parks all units of the BUSY block @b, which was freed. false: no memory, try again. */
bool hm_sparse_drop(struct pool *p, struct block *b);

/*
 * Adds to @list, at *@nr, parked units that @s may have, oldest first, until they have @pages
 * pages: at most @room entries. They stay in the list of parked units until hm_sparse_take().
 * @wait: memory that @s has to be ordered after counts.
 */
void hm_sparse_collect(struct pool *p, const struct pool_stream *s, bool wait, uint64_t pages,
		       struct vmm_free *list, size_t *nr, size_t room);
/* Orders @s after the last use of the parked unit of @f; *@waits: it is not complete. */
int hm_sparse_order(struct pool *p, struct pool_stream *s, const struct vmm_free *f, bool *waits);
/* The alias of @f at @f->to becomes its active mapping. The sparse block has an alias. */
void hm_sparse_take(struct pool *p, const struct vmm_free *f);
/*
 * Gives back complete parked units, oldest first, until at most @keep bytes are held. @pauses:
 * releases the lock in between. Otherwise it looks at some of the units only.
 */
void hm_sparse_trim(struct pool *p, uint64_t keep, bool pauses);
/* A mapping at addresses of the sparse block @owner (0: of none) is gone. */
void hm_sparse_unmapped(struct pool *p, uint32_t owner);
/* Pages of parked units. */
static inline uint64_t hm_sparse_parked(const struct vmm *v)
{
	return v->sparse ? v->sparse->nr : 0;
}
void hm_sparse_free(struct pool *p, bool forget);

#endif /* HETMEM_VMM_SPARSE_H */
