/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The hash of LIVE and CACHED blocks by address. index.c has the design. Unless a
 * comment says otherwise, the caller holds pool->lock.
 */
#ifndef HETMEM_POOL_HASH_H
#define HETMEM_POOL_HASH_H

#include "pool/pool_impl.h"

#define BUCKET		4
/* A head: a descriptor's name, and above it bits of the hash. */
#define NAME_BITS	24
#define NAME_MASK	((1U << NAME_BITS) - 1)

/*
 * An outgrown one is kept, as @old: lockless readers may still use it. @moved:
 * its heads before this one are empty, what they had is here. @shift: 64 - @bits.
 */
struct hash {
	struct hash *old;
	unsigned int bits;
	unsigned int shift;
	uint32_t moved;
	uint32_t heads[] __attribute__((aligned(64)));
};

int hm_hash_init(struct pool *p);
void hm_hash_free(struct pool *p);
void hm_hash_add(struct pool *p, struct block *b);
void hm_hash_remove(struct pool *p, struct block *b);
/*
 * Returns the LIVE or CACHED block that begins at @addr, or NULL. Needs no
 * lock, but can then miss the block or return a stale descriptor.
 */
struct block *hm_block_find(const struct pool *p, uint64_t addr);
struct block *hm_block_find_locked(const struct pool *p, uint64_t addr);
/* Under the lock: the LIVE block that begins at @addr, or NULL. */
struct block *hm_block_find_live(const struct pool *p, uint64_t addr);

static inline uint64_t hash_of(uint64_t addr)
{
	return (addr >> UNIT_SHIFT) * 0x9e3779b97f4a7c15ULL;
}

static inline uint32_t hash_bucket(const struct hash *h, uint64_t hash)
{
	return (hash >> h->shift) & ~(uint32_t)(BUCKET - 1);
}

/* Other bits than those that tell the bucket. */
static inline uint32_t hash_mark(uint64_t hash)
{
	return hash & ~NAME_MASK;
}

static inline bool block_is_at(const struct block *b, uint64_t addr)
{
	return __atomic_load_n(&b->addr, __ATOMIC_RELAXED) == addr;
}

/*
 * Returns the name of a block of which @addr may be the address: of no other one, if
 * that is in a head. 0: look for it by hm_block_find(). Needs no lock.
 */
static inline uint32_t hm_hash_name(const struct pool *p, uint64_t addr)
{
	const struct hash *h = __atomic_load_n(&p->hash, __ATOMIC_ACQUIRE);
	const uint64_t hash = hash_of(addr);
	const uint32_t *heads = &h->heads[hash_bucket(h, hash)];
	const uint32_t mark = hash_mark(hash);
	uint32_t id = __atomic_load_n(heads, __ATOMIC_ACQUIRE) ^ mark;
	unsigned int i;

	/* Without the mark there are no bits above the name. */
	for (i = 1; hm_unlikely(id - 1 >= NAME_MASK) && i < BUCKET; i++)
		id = __atomic_load_n(&heads[i], __ATOMIC_ACQUIRE) ^ mark;
	return hm_likely(id - 1 < NAME_MASK) ? id : 0;
}

#endif /* HETMEM_POOL_HASH_H */
