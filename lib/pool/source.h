/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Where the runs of a pool come from: regions of a provider (regions.c), or
 * handles that are mapped at addresses (vmm/).
 */
#ifndef HETMEM_POOL_SOURCE_H
#define HETMEM_POOL_SOURCE_H

#include "core/move.h"
#include "core/parked.h"
#include "core/shrink.h"
#include "pool/pool_impl.h"

/* Units: a smaller rest of a large block is not worth a descriptor. */
#define BLOCK_REST	((4 << 10) >> UNIT_SHIFT)

/* Bytes of the smallest block of HETMEM_ALLOC_WHOLE. */
#define WHOLE_LEAST	((size_t)2 << 20)

/**
 * struct source - operations, all under pool->lock, which @grow, @retry
 * and @trim release for a while
 * @init: sets pool->memory. After an error @destroy frees it, unless NULL.
 * @edge: @b begins or ends a run. May be NULL.
 * @place: returns the address in the free block @b where @units fit best, at
 *	its beginning or its end, or, of a @movable block, in between. May be NULL.
 * @fit: may remake BUSY @b's memory before @units at @addr are cut. false: it lost @b. May be NULL.
 * @prepare: before @grow: merges free memory that @s may have, @order likewise, in pieces
 *	between which the lock is released. May be NULL.
 * @grow: puts into @b a BUSY block of at least @units that @s may use, in
 *	@zone. @order: also of memory that @s has to be ordered behind, and by
 *	calls of the driver that wait. -ENOMEM.
 * @grow_whole: puts into @b a BUSY, complete BLOCK_WHOLE of @units, multiples of 2 MiB, for
 *	@s, with a handle or region of its own, in zone 1. -ENOMEM.
 * @retry: a growth that failed left out some of what is free, and did not have
 *	to: makes that memory available, in pieces between which the lock is
 *	released. false: it did not. May be NULL.
 * @trim: gives back free and complete memory until at most @keep bytes are
 *	held; returns the bytes that it gave back.
 * @shed: gives back memory of [@from, @to), a part of the FREE and complete block @b,
 *	at most @most bytes; also what of @b is of one piece with it. Returns the bytes.
 *	May release the lock.
 * @poll: reclaims memory whose work has completed.
 * @destroy: all blocks are gone; with @forget, so is the driver.
 * @segments: as HM_CTL_SEGMENTS.
 * @metadata: returns bytes of its own.
 * @pin: as HM_CTL_PIN_COMM (@on) and HM_CTL_UNPIN_COMM. Without a lock.
 * @enlarge: the live block @b gets @units or more; @order as in @grow. After an
 *	error it has what it had, and so does the pool.
 * @shrink: bytes [@from, @to) of the live block @b become free memory, with the point @pos of
 *	@s as its tag. The block keeps handles that have other bytes of it, too. If @to is the
 *	block's end it gets shorter: addresses that were reserved stay so. Else it keeps all
 *	addresses, and is a BLOCK_RESERVE from now on. After an error nothing has changed.
 * @part: bytes of the next part of @b in [*@from, @to) that has memory, from the new *@from on;
 *	0: there is none. NULL: all of a block has.
 * @reserve: puts into @b a BUSY block that @s may use, as @arg says: at a multiple of
 *	@arg->align, with addresses for @arg->reserve bytes, or a ring; @order as in @grow.
 * @unreserve: releases the addresses after a BLOCK_RESERVE that is freed, and has its tag. It
 *	is one no longer, unless it has addresses without memory in it.
 * @sparse: puts into @b a BUSY block of addresses for @bytes, see vmm/sparse.c
 * @prepare_commit: bytes [@from, @to) of the live sparse block @b, whole units, get memory that
 *	nobody else takes, for @s from the point @pos on (0: @commit follows at once). After an
 *	error nothing has changed. -EAGAIN: HM_COMMIT_HERE does not do.
 * @commit: they are committed. -EINVAL: some are, since another thread has freed the block.
 * @cancel_commit: others may take units at addresses [@from, @to); memory made for them goes.
 * @decommit: these units are parked, with the point @pos of @s; @keep: nobody takes them yet.
 * @sleep, @wake: as the ctl of the same name. @wake releases the lock before it begins.
 * @refuses: why contents cannot be kept in a sleep, as a text that stays; NULL: they can
 * @save, @load: the contents of live blocks, before @sleep and after @wake. Nobody
 *	allocates meanwhile. They release the lock. After an error all is as it was.
 * @loaded: loaded contents are saved no more; @undo: nor is memory kept that @save made. Likewise.
 * @read: the contents that @save saved, while these are there. With both locks, of which it
 *	releases pool->lock. Memory that a sleep leaves in place is read there. -ENODATA: there
 *	is no memory.
 * @idle: gives back a piece of the host memory that contents were saved in; @all: also
 *	of what is kept for the next time. Releases the lock. Returns whether there may be
 *	more.
 * @parked: bytes of that memory.
 * @export: as HM_CTL_EXPORT.
 * @drop: deletes a BUSY block of BLOCK_DROPPED; its uses are complete. false: try again.
 * @declare: the live block @b is movable, with this priority. There may be no room to
 *	remember it: then it is not.
 * @forget: a movable block that is BUSY is freed: it is no longer. false: it is under way,
 *	and hm_pool_let_go() follows.
 * @relieve: there is no memory for @bytes on @s: moves blocks of @s to the host. Returns
 *	whether any moved. Releases the lock, waits.
 * @regain: moves blocks of @s back that fit. Likewise.
 * @end_moves: ends moves that are under way; -EIO: some still are. With both locks;
 *	releases pool->lock.
 * @move, @observe: as HM_CTL_MOVE, HM_CTL_OBSERVE. Without a lock.
 * @small: bytes, and number, of handles or regions of zone 0; NULL: not known
 * @addresses: bytes of addresses that memory can be mapped at, NULL: any number
 * @far: bytes of addresses of live sparse blocks
 * @tell: calls observers before a sleep or a wake (@after: after it, with @err). With both
 *	locks; releases pool->lock.
 * @moved: adds the figures of moves.
 *
 * From @pin on, but @part, NULL means -EOPNOTSUPP; @declare to @end_moves: that no block moves.
 */
struct source {
	int (*init)(struct pool *p);
	void (*edge)(struct pool *p, const struct block *b);
	uint64_t (*place)(const struct pool *p, const struct block *b, uint64_t units,
			  bool movable);
	bool (*fit)(struct pool *p, struct block *b, uint64_t addr, uint64_t units);
	void (*prepare)(struct pool *p, struct pool_stream *s, bool order);
	int (*grow)(struct pool *p, struct pool_stream *s, unsigned int zone,
		    uint64_t units, bool order, struct block **b);
	int (*grow_whole)(struct pool *p, struct pool_stream *s, uint64_t units,
			  struct block **b);
	bool (*retry)(struct pool *p);
	size_t (*trim)(struct pool *p, uint64_t keep);
	size_t (*shed)(struct pool *p, struct block *b, uint64_t from, uint64_t to,
		       uint64_t most);
	void (*poll)(struct pool *p);
	void (*destroy)(struct pool *p, bool forget);
	int (*segments)(struct pool *p, struct hm_ctl_segments *arg);
	uint64_t (*metadata)(const struct pool *p);
	int (*pin)(struct pool *p, const void *ptr, bool on);
	int (*enlarge)(struct pool *p, struct pool_stream *s, struct block *b,
		       uint64_t units, bool order);
	int (*shrink)(struct pool *p, struct pool_stream *s, struct block *b,
		      uint64_t from, uint64_t to, uint64_t pos);
	uint64_t (*part)(const struct pool *p, const struct block *b, uint64_t *from, uint64_t to);
	int (*reserve)(struct pool *p, struct pool_stream *s,
		       const struct hm_ctl_alloc *arg, bool order, struct block **b);
	void (*unreserve)(struct pool *p, struct block *b);
	int (*sparse)(struct pool *p, struct pool_stream *s, uint64_t bytes, struct block **b);
	int (*prepare_commit)(struct pool *p, struct pool_stream *s, struct block *b,
			      uint64_t from, uint64_t to, enum hm_commit how, uint64_t pos);
	int (*commit)(struct pool *p, struct block *b, uint64_t from, uint64_t to);
	void (*cancel_commit)(struct pool *p, uint64_t from, uint64_t to);
	int (*decommit)(struct pool *p, struct pool_stream *s, struct block *b, uint64_t from,
			uint64_t to, uint64_t pos, bool keep);
	int (*sleep)(struct pool *p);
	int (*wake)(struct pool *p);
	const char *(*refuses)(const struct pool *p);
	int (*save)(struct pool *p);
	int (*load)(struct pool *p);
	void (*loaded)(struct pool *p, bool undo);
	int (*read)(struct pool *p, const struct hm_ctl_parked *arg);
	bool (*idle)(struct pool *p, bool all);
	uint64_t (*parked)(const struct pool *p);
	int (*export)(struct pool *p, struct block *b,
		      struct hm_ctl_export *arg);
	bool (*drop)(struct pool *p, struct block *b);
	void (*declare)(struct pool *p, struct block *b, int priority);
	bool (*forget)(struct pool *p, struct block *b);
	bool (*relieve)(struct pool *p, struct pool_stream *s, uint64_t bytes);
	void (*regain)(struct pool *p, struct pool_stream *s);
	int (*end_moves)(struct pool *p);
	int (*move)(struct pool *p, struct hm_ctl_move *arg);
	int (*observe)(struct pool *p, const struct hm_ctl_observe *arg);
	void (*tell)(struct pool *p, enum hetmem_remap_cause cause, bool after, int err);
	void (*small)(const struct pool *p, uint64_t *bytes, uint64_t *nr);
	uint64_t (*addresses)(const struct pool *p);
	uint64_t (*far)(const struct pool *p);
	void (*moved)(const struct pool *p, struct hetmem_resource_stats *st);
};

/*
 * A sparse block: no other one has both flags. Its @right is the number of its units that are
 * committed.
 */
static inline bool block_is_sparse(const struct block *b)
{
	return (b->flags & (BLOCK_WHOLE | BLOCK_RESERVE)) == (BLOCK_WHOLE | BLOCK_RESERVE);
}

/* Bytes of a live block that count as requested. */
static inline uint64_t block_asked(const struct pool *p, const struct block *b)
{
	if (!block_is_sparse(b))
		return block_bytes(b) - b->slack;
	return __atomic_load_n(&b->right, __ATOMIC_RELAXED) * p->opt.unit;
}

/* wait=, or the default of @ms, in ns. */
static inline uint64_t hm_pool_wait_or(const struct pool *p, unsigned int ms)
{
	if (p->opt.wait_ms == HM_POOL_NO_WAIT)
		return 0;
	return (p->opt.wait_ms ? p->opt.wait_ms : ms) * 1000000ULL;
}

static inline uint64_t hm_pool_most_wait(const struct pool *p)
{
	return hm_pool_wait_or(p, HM_POOL_WAIT_MS);
}

/* Of an allocation on @s. Captures and private pools ask on the host's stream, too. */
static inline uint64_t hm_pool_most_wait_on(const struct pool *p, const struct pool_stream *s)
{
	return hm_pool_wait_or(p, s->s.index || p->order.nr_captured || p->nr_privates ?
			       HM_POOL_WAIT_MS : HM_POOL_HOST_WAIT_MS);
}

/*
 * Returns the stream that a live block was allocated on. If that stream is
 * retired and complete, the host's.
 */
static inline struct hm_stream *stream_by_serial(struct pool *p, unsigned int index,
					  uint64_t serial)
{
	struct hm_stream *s = p->order.streams[index];

	return s->serial == serial && s->id ? s : hm_stream_host(&p->order);
}

/*
 * A handle moves only if its blocks are of one stream. So in a pool that moves blocks, free
 * memory of large ones stays with the stream that had it, and others get memory of their own.
 * They share handles only when there is no other memory, and none can be moved away.
 */
static inline bool hm_pool_is_apart(const struct pool *p, unsigned int zone)
{
	return p->opt.spill && zone && p->order.seen > 1 && !p->mixing;
}

/* Whether @s is behind all that was done with the FREE block @b. */
static inline bool source_may_have(const struct pool *p, const struct pool_stream *s,
				   const struct block *b)
{
	return b->pos <= hm_stream_known(&s->s, p->order.streams[b->stream]) ||
	       hm_block_done(p, b);
}

/*
 * moves.c: takes sleep_lock, then the lock; and back. -EDEADLK: the thread has it, in a
 * callback of hetmem_on_remap(). within: -EBUSY: another thread has it for longer.
 */
int hm_pool_lock_moves(struct pool *p);
int hm_pool_lock_moves_within(struct pool *p, uint64_t ns);
void hm_pool_unlock_moves(struct pool *p);

/* parked.c: HM_CTL_PARKED_READ. */
int hm_pool_parked_read(struct pool *p, const struct hm_ctl_parked *arg);

/* alloc.c: the rest of a free, for a BUSY block that forget() did not give back. */
void hm_pool_let_go(struct pool *p, struct block *b);

/* As hm_pool_create(), over @source. */
int hm_pool_create_over(struct hm_provider *provider,
			const struct source *source,
			const struct hm_pool_options *options,
			struct hetmem_resource **out);

#endif /* HETMEM_POOL_SOURCE_H */
