/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The VMM pool: blocks that get memory, and blocks that give back a part of theirs. All under
 * pool->lock.
 */
#ifndef HETMEM_VMM_GROW_H
#define HETMEM_VMM_GROW_H

#include "vmm/vmm_impl.h"

/* As in struct source. */
bool hm_vmm_retry(struct pool *p);
int hm_vmm_grow(struct pool *p, struct pool_stream *s, unsigned int zone, uint64_t units,
		bool order, struct block **b);
int hm_vmm_grow_whole(struct pool *p, struct pool_stream *s, uint64_t units, struct block **b);
int hm_vmm_reserve(struct pool *p, struct pool_stream *s, const struct hm_ctl_alloc *arg,
		   bool order, struct block **b);
void hm_vmm_unreserve(struct pool *p, struct block *b);
int hm_vmm_enlarge(struct pool *p, struct pool_stream *s, struct block *b, uint64_t units,
		   bool order);

/*
 * -ENOMEM, or there are descriptors for @nr handles that change their place: the change cannot
 * fail for lack of any.
 */
int hm_vmm_has_descriptors(struct pool *p, size_t nr);
/* A BUSY block of @zone, of what was mapped at pages [@from, @to). Descriptors were counted. */
struct block *hm_vmm_add_run(struct pool *p, unsigned int zone, uint32_t from, uint32_t to);

/* shrink.c: as in struct source. */
int hm_vmm_shrink(struct pool *p, struct pool_stream *s, struct block *b, uint64_t from,
		  uint64_t to, uint64_t pos);

/*
 * Unmaps and releases the handle @id, which has no alias. Its block does not change, and has
 * holes. An error: the memory is there as before, and the caller lists the block's ends anew.
 */
int hm_vmm_empty(struct pool *p, uint32_t id);
/* fit.c: as in struct source. */
bool hm_vmm_fit(struct pool *p, struct block *b, uint64_t addr, uint64_t units);

#endif /* HETMEM_VMM_GROW_H */
