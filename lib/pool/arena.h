/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Arenas: the free blocks of one stream in one zone, found by size. The caller
 * of every function holds pool->lock.
 */
#ifndef HETMEM_POOL_ARENA_H
#define HETMEM_POOL_ARENA_H

#include "pool/block.h"

/* Who walks over all blocks of an arena, a few at a time. */
enum arena_walk {
	WALK_SETTLE,
	WALK_JOIN,
	WALK_TRIM,
	NR_WALKS,
};

/**
 * struct arena - free blocks of one stream in one zone
 * @bins: by units: lists of the first zone's blocks of up to SMALL_MAX
 * @map: bit: the bin has blocks
 * @summary: bit: the word of @map is not 0
 * @root: tree by (units, address) of all other blocks
 * @no_bins: memory for @bins ran out: @root has all blocks
 * @units, @nr: sum of all blocks, and their number
 * @walks: where each walk goes on; 0: it is not under way
 * @settling, @settled: positions before this one were complete when the walk of
 *	hm_pool_settle() began, and when one ended; later blocks are not before it
 */
struct arena {
	uint32_t *bins;
	uint64_t map[MAP_WORDS];
	uint64_t summary;
	uint32_t root;
	bool no_bins;
	uint64_t units;
	uint64_t nr;
	uint32_t walks[NR_WALKS];
	uint64_t settling;
	uint64_t settled;
};

void hm_arena_free(struct arena *a);
void hm_arena_add(struct pool *p, struct arena *a, struct block *b);
void hm_arena_remove(struct pool *p, struct arena *a, struct block *b);
/* Returns the smallest block of at least @units, the lowest of equals. */
struct block *hm_arena_best(const struct pool *p, const struct arena *a,
			    uint64_t units);
/*
 * Returns the next block of a walk, or NULL at its end; the one after that
 * begins a new one. The arena may change during a walk: added blocks may be missed.
 */
struct block *hm_arena_walk(const struct pool *p, struct arena *a,
			    enum arena_walk walk);
/*
 * Calls @look for the blocks of at least @units, which is more than SMALL_MAX, and
 * before @below, the last one first, until it returns false. Returns whether it
 * never did.
 */
bool hm_arena_each(const struct pool *p, const struct arena *a,
		   const struct block *below, uint64_t units,
		   bool (*look)(const struct pool *p, struct block *b,
				void *arg),
		   void *arg);
/* Returns the block after @b in that order, or NULL. */
struct block *hm_arena_next(const struct pool *p, const struct arena *a,
			    const struct block *b);

#endif /* HETMEM_POOL_ARENA_H */
