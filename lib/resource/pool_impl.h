/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the files of the pool share.
 *
 * Memory comes in runs: addresses with memory behind them, without a gap. A
 * run is cut into blocks, multiples of 512 bytes, each described by a struct
 * block outside of the memory; descriptors have 32-bit names, so that a block
 * costs 48 bytes and a hash chain's head. A block is
 *
 *	LIVE	the program's;
 *	CACHED	freed, and kept by its stream for the next request of exactly
 *		this size: no lock that others take, no neighbours merged;
 *	FREE	in the arena of a stream, merged with its neighbours;
 *	PENDING	freed, and used on further streams that are not done with it;
 *	BUSY	between two of these, in nobody's hands but the pool's.
 *
 * A free block's tag is (stream, position): its last use, see stream.h. The
 * host's arena has what is complete and anybody's. There are two zones, of
 * runs, blocks and arenas: small blocks do not sit between large ones.
 *
 * Locking: a stream's own lock protects its cache and counters, and is held
 * for some instructions only. pool->lock protects everything else, is taken
 * first, and is held while the driver is called. Of a live block everything
 * but state, flags and uses is constant. The hash is read without a lock:
 * whoever finds nothing looks again under pool->lock.
 *
 * The cached path is to take no lock and write no cache line that threads with
 * other streams use. A stream's lock, cache and counters are its own. Of those
 * that use a stream, the thread that allocated on it last owns it; others that
 * free on it put the block on its list of remote frees, without the lock,
 * which whoever has the lock takes as a whole when the cache lacks a block, is
 * emptied, or its counters are read: such a free counts from then on. The
 * descriptors of cached blocks are of cache lines that belong to the stream.
 *
 * A stream may be retired, and its place another's, between its being looked
 * up and its lock. Whoever retires one first changes the order's epoch, then
 * takes the stream's lock and closes its remote list; all others read the
 * epoch, look up, and read the epoch again once they have the lock or know what
 * the list begins with. Where it has changed they look up again. So what is freed
 * on a stream before its end is recorded is covered by that event, and what is
 * freed later is not said to be.
 */
#ifndef HETMEM_RESOURCE_POOL_IMPL_H
#define HETMEM_RESOURCE_POOL_IMPL_H

#include <errno.h>

#include "resource/pool.h"
#include "resource/stream.h"

#define UNIT_SHIFT	9
#define UNIT		((size_t)1 << UNIT_SHIFT)
#define SMALL_MAX	((size_t)1 << 20)	/* of the first zone */
#define NR_BINS		((SMALL_MAX >> UNIT_SHIFT) + 1)
#define MAP_WORDS	((NR_BINS + 63) / 64)
#define NR_ZONES	2
#define REMOTE_CLOSED	UINT64_MAX

enum block_state {
	BLOCK_NONE,
	BLOCK_LIVE,
	BLOCK_CACHED,
	BLOCK_FREE,
	BLOCK_PENDING,
	BLOCK_BUSY,
};

#define BLOCK_ZONE	1	/* bit: zone 1 */
#define BLOCK_USED	2	/* has uses on further streams */
#define BLOCK_GRAPH	4	/* belongs to a capture */
#define BLOCK_RESERVE	8	/* has addresses reserved behind it */
#define BLOCK_WHOLE	16	/* owns its handle, never cut or merged */
#define BLOCK_EXPORTED	32	/* others have it too: not used again */

/**
 * struct block - of [@addr, @addr + @units * 512)
 * @slack: live: bytes of it that were not asked for
 * @prev, @next: its neighbours in the run, 0 at its ends
 * @chain: next in the hash
 * @left, @right: in a tree or list; of a live block @left are its uses and
 *	@right is the graph that it belongs to
 * @stream: index: free: of the tag; live: that it was allocated on
 * @pos: free: position of the tag; live: serial of that stream
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
	uint16_t stream;
	uint8_t state;
	uint8_t flags;
	uint64_t pos;
};

_Static_assert(sizeof(struct block) == 48, "a block's metadata");

/* A use of a block on a further stream; a list, 0 ends it. */
struct use {
	uint32_t next;
	uint16_t stream;
	uint16_t unused;
	uint64_t pos;
};

/* An array whose pages are there when they are touched. */
struct table {
	void *base;
	uint32_t size;		/* of an entry */
	uint32_t nr;		/* entries ever used, the first is none */
	uint32_t max;
	uint32_t free;		/* list of those not in use */
	uint32_t link;		/* offset of the list's link in an entry */
};

/**
 * struct arena - free blocks of one stream in one zone
 * @bins: by units, those of up to SMALL_MAX in the first zone; lists
 * @map: bit: the bin has blocks; @summary: bit: the word has bits
 * @root: of a tree by (units, address) of the others
 * @no_bins: there was no memory for them
 * @units: of all
 */
struct arena {
	uint32_t *bins;
	uint64_t map[MAP_WORDS];
	uint64_t summary;
	uint32_t root;
	bool no_bins;
	uint64_t units;
};

/**
 * struct pool_stream - what the pool keeps of a stream
 * @owner: the thread that allocated on it last, or its memory of streams
 * @graph: the capture under way on it, whose memory is taken instead
 * @cache: by units: list of cached blocks; NULL until the first
 * @remote: list of BUSY blocks that other threads freed, below the serial of
 *	the stream that it is of, or REMOTE_CLOSED; @remote_units: of them and of
 *	those that are about to be there
 * @returned: of @excess, by frees on other streams
 * @lock: see the top
 * @cache_map: bit: the list has blocks; @cached: bytes in all
 * @excess: units of live small blocks that were not asked for; @room: how
 *	many there may be
 * @requested, @allocs, @frees: what was done on this stream
 * @published: of @requested, in the pool's; @high: the most since then
 * @unrecorded_bytes: freed behind the last event
 * @arenas: see the top
 * @ids: list of names of descriptors for it; @fresh, @fresh_end: never used
 */
struct pool_stream {
	struct hm_stream s;
	/* Read by all who use the stream, seldom written. */
	const void *owner __attribute__((aligned(64)));
	struct graph *graph;
	uint32_t *cache;
	/* Written by those that do not own it. */
	uint64_t remote __attribute__((aligned(64)));
	uint32_t remote_units;
	int64_t returned;
	/* Written by its owner at each allocation and free. */
	int lock __attribute__((aligned(64)));
	uint64_t cached;
	int64_t excess;
	int64_t room;
	int64_t requested;
	int64_t high;
	uint64_t allocs;
	uint64_t frees;
	uint64_t cache_map[MAP_WORDS];
	/* With pool->lock. */
	int64_t published;
	uint64_t unrecorded_bytes;
	struct arena arenas[NR_ZONES];
	uint32_t ids;
	uint32_t fresh;
	uint32_t fresh_end;
};

/**
 * struct graph - what a capture has: arenas of its own, until it is released
 * @parked: list of freed blocks with uses on further streams
 */
struct graph {
	struct graph *next;
	uint64_t id;
	uint16_t index;
	uint32_t parked;
	struct arena arenas[NR_ZONES];
};

/* pool_hash.c. One that was outgrown is kept: somebody may read it. */
struct hash {
	struct hash *old;
	unsigned int bits;
	uint32_t heads[] __attribute__((aligned(64)));
};

struct pool;

/**
 * struct source - where runs come from: regions (pool_region.c) or handles
 *	behind addresses (vm.c). With pool->lock.
 * @grow: makes a free block of at least @units that @s may use, in @zone,
 *	tagged so that it will be found; -ENOMEM
 * @trim: gives back what is free and complete until at most @keep bytes are
 *	held
 * @poll: what has completed
 * @destroy: all blocks are gone; @forget: so is the driver
 * The rest are as the ctl of the same name, NULL: -EOPNOTSUPP.
 */
struct source {
	int (*grow)(struct pool *p, struct pool_stream *s, unsigned int zone,
		    uint64_t units);
	size_t (*trim)(struct pool *p, uint64_t keep);
	void (*poll)(struct pool *p);
	void (*destroy)(struct pool *p, bool forget);
	int (*segments)(struct pool *p, struct hm_ctl_segments *arg);
	uint64_t (*metadata)(const struct pool *p);
	/* A live block keeps its memory and addresses until destroy. */
	int (*pin)(struct pool *p, struct block *b);
	/* A live block gets @units; of a failure nothing is left but memory. */
	int (*enlarge)(struct pool *p, struct pool_stream *s, struct block *b,
		       uint64_t units);
	/* A BUSY block of a run of its own, with @reserve units of addresses. */
	int (*reserve)(struct pool *p, uint64_t units, uint64_t reserve,
		       struct block **b);
	/* The addresses behind a BLOCK_RESERVE that is freed. */
	void (*unreserve)(struct pool *p, struct block *b);
	int (*sleep)(struct pool *p);
	int (*wake)(struct pool *p);
	int (*export)(struct pool *p, struct block *b,
		      struct hm_ctl_export *arg);
	/* A BUSY block that was exported, whose uses are complete. */
	void (*drop)(struct pool *p, struct block *b);
};

/**
 * struct pool - one pool
 * @next: of all that work in a forked child
 * @opt: options, defaults filled in
 * @blocks, @uses: tables; @homes: of the names of blocks, in batches: the
 *	streams that they are for
 * @hash: of LIVE and CACHED blocks by address; @hash_nr: in it
 * @reserved: bytes held; @requested: by published changes
 * @source: where runs come from, @vm or @regions is its own
 * @decay_at: when to look (ns); @decay_high: most requested since last time
 * @asleep: memory is gone, addresses stay
 * @growing: what is released is for the stream that asked
 * @host: works in a forked child
 * @whole: blocks own their handles
 */
struct pool {
	/* Read by every allocation and free, seldom written. */
	struct hetmem_resource res;
	struct pool *next;
	struct hm_provider *provider;
	struct hm_pool_options opt;
	const struct source *source;
	struct vm *vm;
	struct region_list *regions;
	uint16_t *homes;
	struct hash *hash;
	uint64_t cache_max;
	bool asleep;
	bool growing;
	bool host;
	bool whole;
	struct hm_order order;
	/* Written by the slow path. */
	pthread_mutex_t lock __attribute__((aligned(64)));
	struct table uses;
	struct graph *graphs;
	uint32_t hash_nr;
	uint32_t pending;
	uint64_t reserved;
	uint64_t reserved_peak;
	int64_t requested;
	uint64_t requested_peak;
	uint64_t failed;
	uint64_t calls;
	uint64_t decay_at;
	int64_t decay_high;
	uint32_t nr_graphs;
	uint16_t next_graph;
	/* Its first member by all, the others when there is a new block. */
	struct table blocks __attribute__((aligned(64)));
};

static inline struct pool *to_pool(struct hetmem_resource *res)
{
	return (struct pool *)res;
}

static inline struct block *block_at(const struct pool *p, uint32_t id)
{
	return (struct block *)p->blocks.base + id;
}

static inline uint32_t block_id(const struct pool *p, const struct block *b)
{
	return b - (struct block *)p->blocks.base;
}

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

static inline struct pool_stream *stream_at(const struct pool *p,
					    unsigned int index)
{
	return (struct pool_stream *)p->order.streams[index];
}

/*
 * The position of what is freed on @s. Behind the event of a retired stream
 * there is nothing; one that was lost has none.
 */
static inline uint64_t stream_next_pos(struct hm_stream *s)
{
	return hm_unlikely(s->retired && !s->lost) ? s->pos : hm_stream_step(s);
}

/* Has a stream come to its end, or a capture begun or ended, meanwhile? */
static inline uint64_t pool_epoch(const struct pool *p)
{
	return __atomic_load_n(&p->order.epoch, __ATOMIC_ACQUIRE);
}

/* The block's descriptor, which is about to be written to. */
static inline void prefetch_block(const struct block *b)
{
#ifdef __x86_64__
	/* Both cache lines that it may be in, at once to be written to. */
	__asm__ ("prefetchw %0" : : "m" (b->addr));
	__asm__ ("prefetchw %0" : : "m" (b->pos));
#else
	__builtin_prefetch(&b->addr, 1);
	__builtin_prefetch(&b->pos, 1);
#endif
}

/* Units of a small block that were not asked for: its cache had no better. */
static inline uint32_t block_excess(const struct block *b)
{
	return block_zone(b) ? 0 : b->slack >> UNIT_SHIFT;
}

static inline uint8_t block_state(const struct block *b)
{
	return __atomic_load_n(&b->state, __ATOMIC_ACQUIRE);
}

static inline void set_state(struct block *b, enum block_state state)
{
	__atomic_store_n(&b->state, state, __ATOMIC_RELEASE);
}

/* pool_cache.c: the cached path. Without pool->lock where not said otherwise. */

int hm_pool_alloc(struct hetmem_resource *res, size_t size, size_t align,
		  hetmem_stream stream, void **ptr);
int hm_pool_free(struct hetmem_resource *res, void *ptr, size_t size,
		 hetmem_stream stream);
/* Waits for a stream's lock. */
void hm_pool_spin(struct pool_stream *s);
/* Remote frees to the cache; with @s's lock. */
void hm_stream_collect(struct pool *p, struct pool_stream *s);
/* The same of all streams, before one is asked whether it is at its end. pool->lock. */
void hm_pool_collect(struct pool *p);
/* The same of one that is about to be retired, and of no more. pool->lock. */
void hm_stream_close(struct pool *p, struct pool_stream *s);
/* With the stream's lock: @b, which is freed on @s, wastes nothing any more. */
void hm_pool_return_excess(struct pool *p, struct pool_stream *s,
			   const struct block *b);
/* Cached blocks of @s to its arena until @keep bytes are left. pool->lock. */
void hm_stream_flush(struct pool *p, struct pool_stream *s, uint64_t keep);
/* All cached blocks to their arenas. pool->lock. */
void hm_pool_flush(struct pool *p);

static inline void stream_lock(struct pool_stream *s)
{
	if (hm_unlikely(__atomic_exchange_n(&s->lock, 1, __ATOMIC_ACQUIRE)))
		hm_pool_spin(s);
}

static inline void stream_unlock(struct pool_stream *s)
{
	__atomic_store_n(&s->lock, 0, __ATOMIC_RELEASE);
}

/* pool_table.c: metadata. All with pool->lock. */

int hm_table_init(struct table *t, uint32_t size, uint32_t link, uint32_t max);
void hm_table_free(struct table *t);
/* A zeroed entry, 0: there is no more memory. */
uint32_t hm_table_get(struct table *t);
void hm_table_put(struct table *t, uint32_t id);

/* The names of blocks: one for @home, which is a stream's index, or 0. */
int hm_names_init(struct pool *p);
void hm_names_free(struct pool *p);
uint32_t hm_name_get(struct pool *p, unsigned int home);
void hm_name_put(struct pool *p, uint32_t id);
unsigned int hm_name_home(const struct pool *p, uint32_t id);

/* pool_hash.c: with pool->lock, but hm_block_find(). */

int hm_hash_init(struct pool *p);
void hm_hash_free(struct pool *p);
void hm_hash_add(struct pool *p, struct block *b);
void hm_hash_remove(struct pool *p, struct block *b);
/* The block that begins there and is LIVE or CACHED; without a lock. */
struct block *hm_block_find(const struct pool *p, uint64_t addr);
struct block *hm_block_find_locked(const struct pool *p, uint64_t addr);

uint64_t hm_pool_metadata(const struct pool *p);

/* pool_arena.c: with pool->lock. */

void hm_arena_free(struct arena *a);
void hm_arena_add(struct pool *p, struct arena *a, struct block *b);
void hm_arena_remove(struct pool *p, struct arena *a, struct block *b);
/* The smallest of at least @units, the lowest of them; NULL. */
struct block *hm_arena_best(const struct pool *p, const struct arena *a,
			    uint64_t units);
/* The next larger one in that order, NULL: that was the last. */
struct block *hm_arena_next(const struct pool *p, const struct arena *a,
			    const struct block *b);

/* pool_block.c: blocks between LIVE and FREE. With pool->lock. */

/* Out of its arena: BUSY. */
void hm_block_take(struct pool *p, struct block *b);
/* A BUSY block with its tag becomes FREE, merged with what is around it. */
struct block *hm_block_release(struct pool *p, struct block *b);
/* Cuts a BUSY block behind @units; the rest, BUSY, or NULL: no memory. */
struct block *hm_block_cut(struct pool *p, struct block *b, uint64_t units);
/* A BUSY block that is a run of its own and complete, or NULL. */
struct block *hm_block_new(struct pool *p, uint64_t addr, uint64_t units,
			   unsigned int zone);
/* The last block of a run and the first of the one behind it. */
void hm_block_link(struct pool *p, struct block *b, struct block *next);
/* A BUSY block is no more; its run ends before it, another begins behind. */
void hm_block_delete(struct pool *p, struct block *b);
/* A BUSY or LIVE block swallows the BUSY one behind it. */
void hm_block_join(struct pool *p, struct block *b, struct block *n);
/* Is the tag's use known to be complete? */
bool hm_block_done(const struct pool *p, const struct block *b);
/* The BUSY block @b, in no list, by a descriptor whose cache line is @s's. */
struct block *hm_block_rehome(struct pool *p, const struct pool_stream *s,
			      struct block *b);
/* What is complete to the host's arena, where neighbours merge. */
void hm_pool_settle(struct pool *p);

/* pool_order.c: blocks and streams. With pool->lock. */

/*
 * Takes pool->lock with *@s, looked up for @stream after @epoch was read,
 * being that stream still or another that was looked up. Else an error.
 */
int hm_pool_lock(struct pool *p, hetmem_stream stream, uint64_t epoch,
		 struct pool_stream **s);

/* Asks the driver how far the streams are; retired ones come to an end. */
bool hm_pool_poll(struct pool *p);
/*
 * Waits on the host for all that was freed, and, if there is @live memory, for all
 * that is under way on the streams. The first error, all are waited for.
 */
int hm_pool_sync(struct pool *p, bool live);
/* A BUSY block whose uses are a list is PENDING, or FREE. */
void hm_block_pend(struct pool *p, struct block *b);
/* Orders @s behind all uses of a PENDING block. */
int hm_block_wait(struct pool *p, struct pool_stream *s, struct block *b);
/* A use of a live block, to be found when it is freed. */
int hm_block_use(struct pool *p, struct block *b, struct pool_stream *s);
/* Frees that are enough for an event. */
void hm_pool_record(struct pool *p, struct pool_stream *s, uint64_t bytes);

/* pool_slow.c: with pool->lock. */

int hm_pool_alloc_slow(struct pool *p, struct pool_stream *s, size_t size,
		       size_t align, void **ptr);
/* A BUSY block that was live; @s: NULL if the stream is not known. */
void hm_pool_free_slow(struct pool *p, struct pool_stream *s,
		       struct block *b);
/* What @s may use, made if need be; BUSY, or NULL and *@err. */
struct block *hm_pool_find_or_grow(struct pool *p, struct pool_stream *s,
				   unsigned int zone, uint64_t units,
				   int *err);
/* A BUSY block becomes live, of @size bytes, on @s. */
void hm_pool_give(struct pool *p, struct pool_stream *s, struct block *b,
		  size_t size);
/* Gives back what was not needed for a while, if decay= says so. */
void hm_pool_decay(struct pool *p);
/* What @s did, into the pool's sums. */
void hm_pool_publish(struct pool *p, struct pool_stream *s);
/* Counts memory that is made; -ENOMEM: more than max. */
int hm_pool_reserve(struct pool *p, uint64_t bytes);
void hm_pool_unreserve(struct pool *p, uint64_t bytes);

/* pool_fork.c: without pool->lock. */
void hm_pool_fork_add(struct pool *p);
void hm_pool_fork_remove(struct pool *p);

/* pool_check.c: without pool->lock; @b is BUSY, of no capture. */
void hm_pool_tell_alloc(struct pool *p, const void *ptr, size_t size,
			hetmem_stream stream);
void hm_pool_tell_free(struct pool *p, const struct block *b,
		       hetmem_stream stream);

/* pool_graph.c: with pool->lock. */

struct graph *hm_graph_by_index(const struct pool *p, uint32_t index);
/* A BUSY block for @s, which is captured, or NULL and *@err. */
struct block *hm_graph_find(struct pool *p, struct pool_stream *s,
			    unsigned int zone, uint64_t units, int *err);
/* A BUSY block that belongs to a graph is free. */
void hm_graph_free(struct pool *p, struct block *b);
int hm_graph_ctl(struct pool *p, enum hm_ctl op,
		 const struct hm_ctl_capture *arg);
void hm_graphs_destroy(struct pool *p);

/* pool_ctl.c */
struct block *hm_pool_find_live(struct pool *p, uint64_t addr);
int hm_pool_ctl(struct hetmem_resource *res, enum hm_ctl op, void *arg);

/* pool_region.c, vm.c */
int hm_regions_init(struct pool *p);
int hm_vm_init(struct pool *p);
/* @b begins or ends a run. */
void hm_vm_edge(struct pool *p, const struct block *b);
/* Where in a free block @units are best: at its beginning or its end. */
uint64_t hm_vm_place(const struct pool *p, const struct block *b,
		     uint64_t units);

#endif /* HETMEM_RESOURCE_POOL_IMPL_H */
