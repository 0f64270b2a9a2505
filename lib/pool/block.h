/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Blocks: their descriptors and the functions that cut and merge them. pool.c has
 * the design, hash.h the hash that finds a block by its address. Unless a comment says
 * otherwise, the caller holds pool->lock.
 */
#ifndef HETMEM_POOL_BLOCK_H
#define HETMEM_POOL_BLOCK_H

#include <errno.h>

#include "core/core.h"

#define UNIT_SHIFT	9
#define UNIT		((size_t)1 << UNIT_SHIFT)
#define SMALL_MAX	((size_t)1 << 20)	/* of the first zone */
#define NR_BINS		((SMALL_MAX >> UNIT_SHIFT) + 1)
/* Bytes of the largest block. */
#define BLOCK_MAX	((uint64_t)(UINT32_MAX / 2) << UNIT_SHIFT)
#define MAP_WORDS	((NR_BINS + 63) / 64)
#define NR_ZONES	2

struct pool;
struct pool_stream;

enum block_state {
	BLOCK_NONE,
	BLOCK_LIVE,
	BLOCK_CACHED,
	BLOCK_FREE,
	BLOCK_PENDING,
	BLOCK_BUSY,
	BLOCK_HELD,	/* see vmm/sharers.h */
};

#define BLOCK_ZONE	1	/* bit: zone 1 */
#define BLOCK_USED	2	/* has uses on further streams */
#define BLOCK_GRAPH	4	/* belongs to a capture */
#define BLOCK_RESERVE	8	/* has addresses without memory, after it or in it; BUSY: it is these */
#define BLOCK_WHOLE	16	/* owns its handle or region, never cut or merged */
#define BLOCK_EXPORTED	32	/* shared with other processes: never reused */
#define BLOCK_MOVABLE	64	/* live: may be spilled */
#define BLOCK_SPILLED	128	/* some of it is host memory: never reused */
/* Freed, it goes to no arena, but to source->drop() once its uses are complete. RESERVE: holes. */
#define BLOCK_DROPPED	(BLOCK_EXPORTED | BLOCK_SPILLED | BLOCK_RESERVE)

/**
 * struct block - descriptor of [@addr, @addr + @units * 512)
 * @slack: live: bytes that were not requested. Pending: the list of uses
 * @prev, @next: neighbours in the run, 0 at its ends
 * @chain: next in the hash
 * @left, @right: links of a tree or list. Live: @left is the list of uses,
 *	@right the graph that it belongs to, or, of a movable one, its entry in
 *	vmm/movable.c. BUSY and about to be live: @right likewise.
 * @stream: index. Free: the tag's. Live: the stream it was allocated on.
 * @kind: @stream, @state and @flags at once
 * @pos: free: the tag's position. Live: serial of that stream; of a graph: see graph.c.
 */
struct block {
	uint64_t addr;
	uint32_t units;
	uint32_t slack;
	uint32_t prev;
	uint32_t next;
	uint32_t chain;
	uint32_t left;
	uint32_t right;
	union {
		struct {
			uint16_t stream;
			uint8_t state;
			uint8_t flags;
		};
		uint32_t kind;
	};
	uint64_t pos;
};

#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define BLOCK_KIND(stream, state)	((uint32_t)(stream) << 16 | (uint32_t)(state) << 8)
#else
#define BLOCK_KIND(stream, state)	((uint32_t)(stream) | (uint32_t)(state) << 16)
#endif

_Static_assert(sizeof(struct block) == 48, "a block's metadata");

/* Units that @bytes take. */
static inline uint64_t units_of(uint64_t bytes)
{
	return (bytes + UNIT - 1) >> UNIT_SHIFT;
}

/**
 * struct use - a use of a block on a further stream
 * @next: of the block; 0 ends the list
 * @stream: its index; 0: it is over
 * @left: of a PENDING block, in the first of its list: uses that are not over
 * @pos: LIVE: serial of the stream. PENDING: its position
 * @block: PENDING: the block
 * @earlier, @later: PENDING: the uses of the same stream, in order
 */
struct use {
	uint32_t next;
	uint16_t stream;
	uint16_t left;
	uint64_t pos;
	uint32_t block;
	uint32_t earlier;
	uint32_t later;
};

static inline uint64_t block_bytes(const struct block *b)
{
	return (uint64_t)b->units << UNIT_SHIFT;
}

static inline uint64_t block_end(const struct block *b)
{
	return b->addr + block_bytes(b);
}

static inline unsigned int block_zone(const struct block *b)
{
	return b->flags & BLOCK_ZONE;
}

/* Units of a small block that were not requested: its cache had no better. */
static inline uint32_t block_excess(const struct block *b)
{
	return b->units < NR_BINS ? b->slack >> UNIT_SHIFT : 0;
}

static inline uint8_t block_state(const struct block *b)
{
	return __atomic_load_n(&b->state, __ATOMIC_ACQUIRE);
}

static inline void block_set_state(struct block *b, enum block_state state)
{
	__atomic_store_n(&b->state, state, __ATOMIC_RELEASE);
}

/* Fetches both cache lines of a descriptor that is about to be written. */
static inline void block_prefetch(const struct block *b)
{
#ifdef __x86_64__
	__asm__ ("prefetchw %0" : : "m" (b->addr));
	__asm__ ("prefetchw %0" : : "m" (b->pos));
#else
	__builtin_prefetch(&b->addr, 1);
	__builtin_prefetch(&b->pos, 1);
#endif
}

/* index.c: tables. */

/* An array of descriptors. The kernel adds its pages on first touch. */
struct table {
	void *base;
	uint32_t size;		/* of an entry */
	uint32_t nr;		/* entries ever used; entry 0 is never used */
	uint32_t max;
	uint32_t free;		/* list of entries not in use */
	uint32_t link;		/* offset of that list's link in an entry */
};

int hm_table_init(struct table *t, uint32_t size, uint32_t link, uint32_t max);
void hm_table_free(struct table *t);
/* Returns a zeroed entry, or 0: out of memory. */
uint32_t hm_table_get(struct table *t);
void hm_table_put(struct table *t, uint32_t id);

/* index.c: names of blocks. @home: index of the stream that uses it, or 0. */

int hm_names_init(struct pool *p);
void hm_names_free(struct pool *p);
uint32_t hm_name_get(struct pool *p, unsigned int home);
void hm_name_put(struct pool *p, uint32_t id);
unsigned int hm_name_home(const struct pool *p, uint32_t id);

/* Bytes of all metadata. */
uint64_t hm_pool_metadata(const struct pool *p);

/* cache.c: how long the lock is held. */

/* Blocks that one hold of pool->lock moves at most; the work goes on after it. */
#define PIECE		64
/* Instructions of one, about, after which a long piece of work pauses. */
#define WORK		16384
/* Instructions, about: a move of a block between a cache and an arena. */
#define MOVE_WORK	600

/* Releases the lock for a moment: anything may change. */
void hm_pool_pause(struct pool *p);
/* Counts @work instructions, and pauses after WORK of them. */
void hm_pool_step(struct pool *p, unsigned int work);

/* block.c: blocks between LIVE and FREE. */

/* Removes @b from its arena; it becomes BUSY. */
void hm_block_take(struct pool *p, struct block *b);
/* Makes a BUSY block with its tag FREE, merged with its neighbours. */
struct block *hm_block_release(struct pool *p, struct block *b);
/* As hm_block_release(): @b is complete, and merges with complete ones only. */
struct block *hm_block_release_done(struct pool *p, struct block *b);
/* Cuts a BUSY block after @units. Returns the BUSY rest; NULL: no memory. */
struct block *hm_block_cut(struct pool *p, struct block *b, uint64_t units);
/*
 * Releases what BUSY @b has before @addr, and what it has behind @units from there on, if
 * that is @smallest units at least. NULL: no memory, and all of @b is released.
 */
struct block *hm_block_trim(struct pool *p, struct block *b, uint64_t addr,
			    uint64_t units, uint64_t smallest);
/* Returns a BUSY, complete block that is a run of its own; NULL: no memory. */
struct block *hm_block_new(struct pool *p, uint64_t addr, uint64_t units, unsigned int zone);
/* Joins two runs: @b is the last block of one, @next the first of the other. */
void hm_block_link(struct pool *p, struct block *b, struct block *next);
/* Deletes a BUSY block; its run becomes two, before and after it. */
void hm_block_delete(struct pool *p, struct block *b);
/* @b and its run end after @units. What came behind @b begins a run. */
void hm_block_shorten(struct pool *p, struct block *b, uint64_t units);
/* The BUSY or LIVE block @b absorbs its BUSY successor @n. */
void hm_block_join(struct pool *p, struct block *b, struct block *n);
/* Returns whether the tag's use is known to be complete. */
bool hm_block_done(const struct pool *p, const struct block *b);
/* Gives the BUSY block @b a descriptor in a cache line of @s. */
struct block *hm_block_rehome(struct pool *p, const struct pool_stream *s, struct block *b);
/*
 * Moves complete blocks to the host's arena, where neighbours merge: some of
 * them. Returns whether there may be more.
 */
bool hm_pool_settle(struct pool *p);
/* All of them. Releases the lock now and then. */
void hm_pool_settle_all(struct pool *p);

#endif /* HETMEM_POOL_BLOCK_H */
