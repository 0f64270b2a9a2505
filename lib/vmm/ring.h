/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Memory of a VMM pool at a second address that lasts: rings and aliases. All under pool->lock,
 * if nothing else is said.
 */
#ifndef HETMEM_VMM_RING_H
#define HETMEM_VMM_RING_H

#include "core/move.h"
#include "vmm/vmm_impl.h"

/* @handle gets an address beside its own, or loses one. While it has any, it is pinned. */
static inline void hm_vmm_lend(struct handle *h)
{
	h->flags |= h->flags & HANDLE_PINNED ? 0 : HANDLE_PINNED | HANDLE_LENT;
	h->others++;
}

static inline void hm_vmm_unlend(struct handle *h)
{
	if (!--h->others && h->flags & HANDLE_LENT)
		h->flags &= ~(HANDLE_PINNED | HANDLE_LENT);
}

/* Whether the live or BUSY block @b is a ring. */
static inline bool hm_is_ring(const struct vmm *v, const struct block *b)
{
	return b->flags & BLOCK_RESERVE && !block_is_sparse(b) &&
	       handle_of_page(v, first_page(v, b))->flags & HANDLE_RING;
}

/* map.c: the mapping @m is an alias, the last of the list, or stays as it is and is none. */
void hm_vmm_set_alias(struct vmm *v, uint32_t m, bool alias);

/* Errors of an allocation: -EINVAL: no whole pages; -EOPNOTSUPP: the pool has no rings. */
int hm_ring_check(const struct pool *p, const struct hm_ctl_alloc *arg);
/* Maps the memory of BUSY @b, which has room of the same size, there. All or nothing. */
int hm_ring_map(struct pool *p, const struct block *b);
/* As hm_vmm_drop(), of a ring. */
bool hm_ring_drop(struct pool *p, struct block *b);

/* alias.c */

/* HM_MOVE_ALIAS, HM_MOVE_PIN. Without the lock. */
int hm_vmm_make_other(struct pool *p, struct hm_ctl_move *arg);
/*
 * Unmaps freed aliases whose last use is complete, unless the pool sleeps: from the time that
 * contents are saved on, handles that stay in the sleep are pinned. The first also then.
 * The second looks at a bounded number of them, the third at all. It can release the lock.
 */
void hm_vmm_unpin_others(struct pool *p);
void hm_vmm_reap_others(struct pool *p);
void hm_vmm_reap_all_others(struct pool *p);
/* Ends all aliases; with @forget the driver is gone. */
void hm_vmm_free_others(struct pool *p, bool forget);

#endif /* HETMEM_VMM_RING_H */
