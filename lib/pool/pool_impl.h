/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the files of the pool, and its sources of runs, share. pool.c has the
 * design and the locking. Unless a comment says otherwise, the caller of a
 * function holds pool->lock.
 */
#ifndef HETMEM_POOL_POOL_IMPL_H
#define HETMEM_POOL_POOL_IMPL_H

#include "pool/arena.h"
#include "pool/pool.h"
#include "pool/pool_stream.h"
#include "pool/tags.h"

/**
 * struct pool - one pool
 * @opt: options, defaults filled in
 * @source, @memory: where runs come from, and its data
 * @homes: by batch of names of blocks: the stream that uses them
 * @hash_nr: blocks in @hash
 * @work: instructions since the lock was released for a moment, about; @pauses:
 *	how often that was
 * @nr_pending: PENDING blocks with uses on further streams; @pending: arenas of
 *	those that may be reused; @dropped, @last_dropped, @nr_dropped: list of
 *	PENDING ones without uses
 * @turn, @to_ask, @cuts: where the next search of other streams begins, and how many
 *	of them it may ask the driver about, see alloc.c
 * @reserved: bytes held, of @made_bytes; @made, @given_back: pieces; @busy: bytes on their way
 * @requested: sum of what streams published; @room: sum of their @room; @shown_peak: of figures
 * @graphs: ids of captures and private pools, or NULL; @nr_privates: of the latter
 * @asks_owner: a free asks first whose the block is: @nr_privates and @tagged (there are tags)
 * @decay_at: when to look next (ns); @decay_high: most requested since the last
 *	look, as hm_pool_sum() knows it
 * @nr_lost: streams that were lost, and not synchronized since
 * @settle_next: arena where hm_pool_settle() goes on; @nr_settled: arenas before
 *	it in which it found no more to do
 * @asleep: memory is released, addresses stay; @saved: and so are contents; @waking:
 *	see enum hm_wake_step; @slept_in: by which call of hetmem_sleep(). @sleep_lock:
 *	held by a sleep, a wake and a move, taken before @lock; @mover: its hm_thread(), or 0
 * @host: works in a forked child; only then @fork is registered
 * @whole: blocks own their handles; @member: of @tags, and not the program's pool; @scratch:
 *	contents are never kept; @tags: NULL: no tags
 * @shared: streams share @room; @sum_due: the peak may rise; @mixing: see source.h; @published: or NULL
 * @asked: where others ask, or NULL; @answered: their last request that was
 */
struct pool {
	/* Read by every allocation and free, seldom written. */
	struct hetmem_resource res;
	struct hm_provider *provider;
	struct hm_pool_options opt;
	const struct source *source;
	void *memory;
	uint16_t *homes;
	struct hash *hash;
	union {
		struct {
			uint32_t nr_privates;
			uint32_t tagged;
		};
		uint64_t asks_owner;
	};
	uint64_t cache_max;
	bool asleep, saved, waking;
	uint32_t slept_in;
	bool host, whole, member, scratch;
	struct hm_tags *tags;
	struct hm_published_pool *published;
	struct hm_asked_pool *asked;
	uint32_t answered;
	struct hm_order order;
	/* Written by the slow path. */
	pthread_mutex_t lock __attribute__((aligned(64)));
	pthread_mutex_t sleep_lock;
	uint64_t mover;
	struct table uses;
	struct graphs *graphs;
	uint32_t hash_nr;
	unsigned int work, pauses;
	uint32_t nr_pending;
	uint32_t dropped, last_dropped, nr_dropped;
	struct arena pending[NR_ZONES];
	unsigned int turn, to_ask;
	uint64_t cuts;
	uint64_t reserved, reserved_peak, busy;
	int64_t requested, room;
	uint64_t requested_peak, shown_peak;
	bool shared, sum_due, mixing;
	uint64_t failed;
	uint64_t calls, made, given_back, made_bytes;
	uint64_t decay_at;
	int64_t decay_high;
	unsigned int nr_lost;
	unsigned int settle_next, nr_settled;
	struct hm_pin *pins;
	unsigned int nr_pins, room_pins;
	struct hm_fork fork;
	/* Its base is read by all, the rest is written for new blocks. */
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

static inline struct use *use_at(const struct pool *p, uint32_t id)
{
	return (struct use *)p->uses.base + id;
}

static inline struct pool_stream *stream_at(const struct pool *p,
					    unsigned int index)
{
	return (struct pool_stream *)p->order.streams[index];
}

/* Changes when a stream ends, and when a capture begins or ends. */
static inline uint64_t pool_epoch(const struct pool *p)
{
	return __atomic_load_n(&p->order.epoch, __ATOMIC_ACQUIRE);
}

/* cache.c; cache.h has the cached path. */

/* Moves remote frees to the cache. Under @s's lock. */
void hm_stream_collect(struct pool *p, struct pool_stream *s);
/* For all streams, before one is asked whether it is complete; in pieces. */
void hm_pool_collect(struct pool *p);
/* Does so for a stream that is about to be retired, for the last time. */
void hm_stream_close(struct pool *p, struct pool_stream *s);
/* @b, which is freed on @s, has no excess any more. Under @s's lock. */
void hm_pool_return_excess(struct pool *p, struct pool_stream *s, const struct block *b);
/* Empties all caches. Releases the lock between pieces. */
void hm_pool_flush(struct pool *p);

/* alloc.c: what a cache lacks. uses.h: uses on further streams. */

/*
 * Takes pool->lock, and looks @stream up again if the epoch is not @epoch any
 * more. Without a lock. Errors as hm_stream_get(), then the lock is not held.
 */
int hm_pool_lock(struct pool *p, hetmem_stream stream, uint64_t epoch, struct pool_stream **s);
/* Looks @stream up, and takes pool->lock. Likewise. */
int hm_pool_lock_stream(struct pool *p, hetmem_stream stream, struct pool_stream **s);
/*
 * Asks the driver how far streams are; recycles retired ones. Releases the lock
 * between pieces.
 */
bool hm_pool_poll(struct pool *p);
/*
 * If many streams were lost, synchronizes their contexts: there is room for so
 * many streams only. Releases the lock meanwhile.
 */
void hm_pool_sync_lost(struct pool *p);
/* Records an event on each stream. Releases the lock between pieces. */
void hm_pool_record_all(struct pool *p);
/* Whether an event that is recorded will complete freed memory. */
bool hm_pool_awaits(struct pool *p);
/*
 * Waits on the host for everything that was freed and, with @live, for all work on the
 * streams, without the lock. Goes on after an error and returns the first.
 */
int hm_pool_sync(struct pool *p, bool live);
/* Counts @nr blocks that went to the arenas of @s; enough of them get an event. */
void hm_pool_record(struct pool *p, struct pool_stream *s, unsigned int nr, uint64_t bytes);
/* @g: part of a private pool, or NULL. @with: flags and priority, or NULL. Releases the lock. */
int hm_pool_alloc_slow(struct pool *p, struct pool_stream *s, struct graph *g,
		       const struct hm_ctl_alloc *with, size_t size, size_t align, void **ptr);
/*
 * Frees a BUSY block that was live. @s: NULL if the stream is unknown. @to: as
 * hm_graph_free(). Releases the lock.
 */
void hm_pool_free_slow(struct pool *p, struct pool_stream *s, struct graph *to,
		       struct block *b);
/*
 * All that is cached, and free and complete, merges with its neighbours.
 * Releases the lock between pieces.
 */
void hm_pool_make_ready(struct pool *p);
/*
 * PENDING blocks do not merge, and their handles do not move. Orders @s behind
 * what streams have used, some of them, and makes blocks with no other uses free
 * for @s. Returns whether there are any.
 */
bool hm_pool_claim(struct pool *p, struct pool_stream *s);
/* -EBUSY: the pool is asleep. */
int hm_pool_asleep(void);
/*
 * Calls @attempt, which needs @bytes, until it does not return -ENOMEM: while blocks can
 * move away, or there is memory in use: waits for any of it, at most wait_ms, without the
 * lock. *@waited: the last stream that was waited for. -EBUSY: the pool was put to sleep.
 */
int hm_pool_attempt(struct pool *p, struct pool_stream *s, uint64_t bytes,
		    int (*attempt)(struct pool *p, struct pool_stream *s, void *arg), void *arg, struct hm_stream **waited);
/*
 * Adds to the error's text what the pool holds, and that it waited for @on, if
 * that is not NULL. Returns @err.
 */
int hm_pool_explain(struct pool *p, const struct pool_stream *s, const char *what, size_t size,
		    int err, uint64_t waited_ns, const struct hm_stream *on);
/*
 * Returns a BUSY block that @s may use, or NULL and *@err. May release the lock. *@waited:
 * the last stream that was waited for, if any.
 */
struct block *hm_pool_find(struct pool *p, struct pool_stream *s,
			   unsigned int zone, uint64_t units, int *err,
			   struct hm_stream **waited);
/* As hm_pool_find(), without waiting for memory. */
struct block *hm_pool_find_now(struct pool *p, struct pool_stream *s, unsigned int zone,
			       uint64_t units, int *err);
/* Makes a BUSY block live: @size bytes, on @s. */
void hm_pool_give(struct pool *p, struct pool_stream *s, struct block *b, size_t size);
/* Gives back memory that was not needed for decay= milliseconds. Releases the lock. */
void hm_pool_decay(struct pool *p);
/* Adds the sums of @s to the pool's. */
void hm_pool_publish(struct pool *p, struct pool_stream *s);
/* Adds the sums of all streams, and raises the peak. May release the lock first. */
void hm_pool_sum(struct pool *p);
/* Whether @bytes more may be held. -ENOMEM: more than max. */
int hm_pool_may_hold(const struct pool *p, uint64_t bytes);
/* Counts memory that was created, or released. */
void hm_pool_hold(struct pool *p, uint64_t bytes);
void hm_pool_unhold(struct pool *p, uint64_t bytes);

/* pool.c: the live block that @addr is in, or NULL. May release the lock. */
struct block *hm_pool_find_around(struct pool *p, uint64_t addr);

/* pool.c: tells check mode. Without a lock; @b is BUSY, of no capture. */

void hm_pool_tell_alloc(struct pool *p, const void *ptr, size_t size, hetmem_stream stream);
void hm_pool_tell_free(struct pool *p, const struct block *b, hetmem_stream stream);

#endif /* HETMEM_POOL_POOL_IMPL_H */
