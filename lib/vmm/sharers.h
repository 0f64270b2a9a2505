/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The blocks of one handle. A handle moves as a whole: with all blocks in it, if all of them
 * may move and are of one stream. Free memory of the handle must be complete. During the
 * move, and while the handle is on the host, that memory is held: its blocks are BLOCK_HELD,
 * no arena has them, and they lie within the handle. When the handle is back, they are free.
 * When a handle on the host has held blocks only, it is given back.
 */
#ifndef HETMEM_VMM_SHARERS_H
#define HETMEM_VMM_SHARERS_H

#include "vmm/vmm_impl.h"

/* A handle of more blocks stays where it is. */
#define HM_MOST_SHARERS	1024

/*
 * All of these: with pool->lock; @b is one of the blocks of the handle at @page.
 *
 * ask: whether the handle can move when @b, a movable block of @s, moves. *@nr: its live
 * blocks. *@priority: the highest of these. Errors:
 * -EBUSY: it stays, and the text has the reason;
 * -EAGAIN: it has cached blocks.
 */
int hm_sharers_ask(struct pool *p, const struct pool_stream *s, const struct block *b,
		   uint32_t page, uint32_t *nr, int *priority);
/* Likewise, for hetmem_pin_comm(): live blocks of @s need not be movable. */
int hm_sharers_ask_pin(struct pool *p, const struct pool_stream *s, const struct block *b,
		       uint32_t page, uint32_t *nr);
/* A number for the blocks at [@from, @to), around the live @b. It changes when any of them does. */
uint64_t hm_sharers_sum(const struct pool *p, const struct block *b, uint64_t from, uint64_t to);
/*
 * Holds the free memory of a handle that ask() lets move. Adds the entries of its live
 * blocks, except that of @b, to @list at *@nr. -ENOMEM: nothing has changed.
 */
int hm_sharers_join(struct pool *p, const struct block *b, uint32_t page, uint32_t *list,
		    uint32_t *nr);
/* The held memory of the handle is free again. */
void hm_sharers_release(struct pool *p, const struct block *b, uint32_t page);
/*
 * Frees the BUSY block @b, which was spilled, and whose uses are complete. Its parts of
 * handles on the host are held. May release the lock. false: no memory, try again.
 */
bool hm_sharers_drop(struct pool *p, struct block *b);

#endif /* HETMEM_VMM_SHARERS_H */
