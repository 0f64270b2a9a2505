/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Uses of a block on further streams than the one that frees it. A LIVE block lists the
 * streams. The free notes where each of them is, and the block is PENDING until all are past
 * that. Every stream lists the uses on it in order. The caller of a function holds pool->lock.
 */
#ifndef HETMEM_POOL_USES_H
#define HETMEM_POOL_USES_H

#include "pool/pool_impl.h"

/* Records a use of a live block, to be waited for when it is freed. */
int hm_block_use(struct pool *p, struct block *b, struct pool_stream *s);
/* The uses of a block, which nobody waits for any more, are gone. */
void hm_uses_put(struct pool *p, uint32_t list);
/* Frees a BUSY block, with uses or without; exported memory is given back. Releases the lock. */
void hm_block_free_used(struct pool *p, struct block *b);
void hm_block_end_uses(struct pool *p, struct block *b);
/*
 * Ends uses on @s that are complete, PIECE at most, and PENDING blocks that have
 * no other use. Returns whether there are more.
 */
bool hm_uses_settle(struct pool *p, struct pool_stream *s);
/*
 * Blocks to be dropped whose own stream is done with them. Releases the lock between
 * pieces; a block that is still in use goes to the end of the list.
 */
void hm_uses_settle_dropped(struct pool *p);
/*
 * Orders @s behind the last use of a FREE block, or all uses of a PENDING one,
 * which becomes BUSY and has none then.
 */
int hm_block_wait(struct pool *p, struct pool_stream *s, struct block *b);

#endif /* HETMEM_POOL_USES_H */
