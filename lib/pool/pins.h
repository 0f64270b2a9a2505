/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Pins of hetmem_pin_comm(). A pin belongs to addresses, not to a block: it stays when the block
 * is freed. With pool->lock, if nothing else is said.
 */
#ifndef HETMEM_POOL_PINS_H
#define HETMEM_POOL_PINS_H

#include "pool/pool_impl.h"

/* Ranges that a pool pins at most. */
#define HM_MOST_PINS	65536

/**
 * struct hm_pin - a range that is pinned
 * @addr, @bytes: of the block when it was pinned
 * @count: how often
 */
struct hm_pin {
	uint64_t addr;
	uint64_t bytes;
	uint32_t count;
};

/* HM_CTL_PIN_COMM (@on), HM_CTL_UNPIN_COMM. Without a lock. */
int hm_pool_pin(struct pool *p, const struct hm_ctl_stream *arg, bool on);
/* The live block around @ptr. NULL, and *@err: there is none, or the pool sleeps. */
struct block *hm_pin_block(struct pool *p, const char *what, const void *ptr, int *err);
/* Makes room for a pin: the next hm_pins_add() does not fail. -ENOSPC, -ENOMEM. */
int hm_pins_reserve(struct pool *p);
/* Pins @b. Returns whether the range is new: its memory has to be pinned. */
bool hm_pins_add(struct pool *p, const struct block *b);
/*
 * Takes back the last pin of @b. *@gone: the range. Its count is 0: its memory is pinned no
 * more. -EINVAL: there is none.
 */
int hm_pins_remove(struct pool *p, const struct block *b, struct hm_pin *gone);
/* Whether a range begins where @b does. */
bool hm_pins_has(const struct pool *p, const struct block *b);

#endif /* HETMEM_POOL_PINS_H */
