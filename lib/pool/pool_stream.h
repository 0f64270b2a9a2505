/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the pool keeps of a stream: its cache, counters and arenas. pool.c has
 * the locking.
 */
#ifndef HETMEM_POOL_POOL_STREAM_H
#define HETMEM_POOL_POOL_STREAM_H

#include "core/publish.h"
#include "pool/arena.h"
#include "stream/lookup.h"

/* Each stream keeps so much of its cache longer than the rest. */
#define SMALL_KEPT	((uint64_t)256 << 10)
#define REMOTE_CLOSED	UINT64_MAX
/* A remote free counts so much in @remote_sum, and its units. */
#define REMOTE_ONE	((uint64_t)1 << 32)

/**
 * struct pool_stream - what the pool keeps of a stream
 * @owner: the thread that allocated on it last, as the address of its hm_stream_front
 * @hit: under the lock: the entry of a thread's lookup cache with which that thread may hit the
 *	cache, or NULL. It is cleared after each change of the epoch that concerns the stream.
 *	@hit_id: the id in it
 * @graph: the capture under way on it: its memory comes from there
 * @cache: by units: list of cached blocks; NULL until the first free. @blocks: all descriptors;
 *	@plain: kind of a live block of it that has no flags. They come with @cache
 * @remote: list of BUSY blocks that other threads freed, below the serial of
 *	the stream, or REMOTE_CLOSED
 * @remote_sum: of them, and of those about to be added, see REMOTE_ONE
 * @returned: units of @excess, by frees on other streams
 * @cached: bytes in the cache; @cache_map: bit: the list has blocks
 * @excess: units of live small blocks that were not requested
 * @room: most of @excess
 * @calm: @frees, less what stream_churn() remembers
 * @overflows: frees that found the cache full since half of it went
 * @requested, @frees: sums of this stream; negative where it frees what others allocate
 * @batch: cached allocations until hm_stream_end_batch(); @batches: allocations with these
 * @high, @low: most and least of @requested since hm_pool_sum()
 * @published: part of @requested that the pool's sum has
 * @shown_requested, @shown_allocs, @shown_frees: parts that other processes can read. No
 *	decision reads them
 * @unrecorded, @unrecorded_bytes: freed into the arenas after the last event
 * @cut_allocs, @cut_at: its allocations, and @cuts of the pool, when these were seen to change
 * @steals: misses in a row that took memory of other streams; @stolen_at, @stolen_frees:
 *	allocations and frees at the last
 * @used: @allocs and @frees at the last look for decay=
 * @pins: threads that wait, and go on with this stream afterwards
 * @first_use, @last_use: list of uses of PENDING blocks, in order
 * @ids: list of names of descriptors for it
 * @fresh, @fresh_end: names never used
 */
struct pool_stream {
	struct hm_stream s;
	/* Read by all users of the stream, seldom written. */
	const void *owner __attribute__((aligned(64)));
	struct graph *graph;
	uint32_t *cache;
	struct block *blocks;
	uint32_t plain;
	/* Written by threads that do not own it. */
	uint64_t remote __attribute__((aligned(64)));
	uint64_t remote_sum;
	int64_t returned;
	/* Written by its owner at each allocation and free. */
	int lock __attribute__((aligned(64)));
	int32_t room;
	uint32_t overflows;
	int32_t batch;
	const struct hm_stream_key *hit;
	uint64_t hit_id;
	uint64_t cached;
	int64_t excess;
	int64_t requested;
	int64_t high;
	int64_t low;
	uint64_t batches;
	uint64_t frees;
	uint64_t calm;
	uint64_t cache_map[MAP_WORDS];
	/* Under pool->lock. */
	int64_t published;
	int64_t shown_requested;
	uint64_t shown_allocs;
	uint64_t shown_frees;
	uint64_t unrecorded_bytes;
	unsigned int unrecorded;
	uint64_t cut_allocs;
	uint64_t cut_at;
	uint64_t stolen_at;
	uint64_t stolen_frees;
	unsigned int steals;
	uint64_t used;
	unsigned int pins;
	uint32_t first_use;
	uint32_t last_use;
	uint32_t parked;
	struct arena arenas[NR_ZONES];
	uint32_t ids;
	uint32_t fresh;
	uint32_t fresh_end;
};

/* Bytes of remote frees, about; without a lock. */
static inline uint64_t hm_stream_remote(const struct pool_stream *s)
{
	return (__atomic_load_n(&s->remote_sum, __ATOMIC_RELAXED) &
		(REMOTE_ONE - 1)) << UNIT_SHIFT;
}

/* Bytes in the cache, and of remote frees, likewise. */
static inline uint64_t hm_stream_cached(const struct pool_stream *s)
{
	return __atomic_load_n(&s->cached, __ATOMIC_RELAXED) +
		hm_stream_remote(s);
}

/*
 * Nothing has changed on @s since it published. Without its lock: a change that
 * is missed is under way.
 */
static inline bool stream_is_published(const struct pool_stream *s)
{
	const int64_t sum = s->published;

	return __atomic_load_n(&s->requested, __ATOMIC_RELAXED) == sum &&
	       __atomic_load_n(&s->high, __ATOMIC_RELAXED) == sum &&
	       __atomic_load_n(&s->low, __ATOMIC_RELAXED) == sum && !hm_stream_remote(s);
}

/* cache.c: waits for the lock of @s. */
void hm_stream_spin(struct pool_stream *s);
/* Call it after a change of the epoch: each thread looks @s up again before its next hit. */
void hm_stream_unhit(struct pool_stream *s);

/* Under the lock of @s: requested bytes of the @nr blocks that are still remote frees. */
uint64_t hm_stream_remote_requested(const struct pool *p, const struct pool_stream *s,
				    uint64_t *nr);

/* show.c: figures. No decision of the pool reads what these functions write. */

/* Writes what @s has counted if pool->lock is free. Under the lock of @s. */
void hm_stream_end_batch(struct pool *p, struct pool_stream *s);
/* Writes the figures that are the pool's own. Under pool->lock. */
void hm_pool_show(struct pool *p);
/* Fills in the counts and the requested bytes of @st. Under pool->lock, which it releases. */
void hm_pool_count(struct pool *p, struct hetmem_resource_stats *st);

/* These with pool->lock. */

/*
 * Takes the lock of @s, after its remote frees are in the cache; or in its arena while
 * the pool caches nothing: a pool that sleeps has empty caches.
 */
void hm_stream_lock(struct pool *p, struct pool_stream *s);
/*
 * Moves cached blocks of @s, PIECE at most, to its arena until @keep bytes are
 * left. Returns whether more are.
 */
bool hm_stream_flush_piece(struct pool *p, struct pool_stream *s,
			   uint64_t keep);
/* Likewise, all of them. Releases the lock between pieces. */
void hm_stream_flush(struct pool *p, struct pool_stream *s, uint64_t keep);
/*
 * Bytes that a cut leaves to the cache of @s. If another thread allocates on @s, an empty
 * cache makes that thread wait for the lock. So the cache keeps as much as was requested at
 * once. Idle streams, and streams of the calling thread, keep nothing.
 */
uint64_t hm_stream_budget(struct pool *p, struct pool_stream *s);
/*
 * Takes a block of @units to @last out of the cache of @s, if it was freed at @known
 * or before: BUSY, or NULL.
 */
struct block *hm_stream_uncache(struct pool *p, struct pool_stream *s,
				uint32_t units, uint32_t last, uint64_t known);

static inline void stream_lock(struct pool_stream *s)
{
	if (hm_unlikely(__atomic_exchange_n(&s->lock, 1, __ATOMIC_ACQUIRE)))
		hm_stream_spin(s);
}

static inline bool stream_trylock(struct pool_stream *s)
{
	return !__atomic_exchange_n(&s->lock, 1, __ATOMIC_ACQUIRE);
}

static inline void stream_unlock(struct pool_stream *s)
{
	__atomic_store_n(&s->lock, 0, __ATOMIC_RELEASE);
}

/*
 * A position of its own for memory that @s was ordered behind. The host's has none:
 * its memory is complete. Takes the lock of @s.
 */
static inline uint64_t stream_point(struct pool_stream *s)
{
	uint64_t pos;

	if (!s->s.index)
		return 0;
	stream_lock(s);
	pos = hm_stream_step(&s->s);
	stream_unlock(s);
	return pos;
}

#endif /* HETMEM_POOL_POOL_STREAM_H */
