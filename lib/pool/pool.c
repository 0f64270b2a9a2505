// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The pool cuts memory of a provider into blocks, in stream order.
 *
 * Memory comes in runs: address ranges with memory behind them, without gaps.
 * A source (source.h) makes runs. A run is cut into blocks, multiples of 512
 * bytes. Each block has a descriptor outside of the memory, of 48 bytes and
 * with a 32-bit name. A block is
 *
 *	LIVE	the program's;
 *	CACHED	freed, and kept by its stream for the next request of its size:
 *		no shared lock, no merging with neighbours;
 *	FREE	in the arena of a stream, merged with its neighbours;
 *	PENDING	freed, and used on further streams whose work is not complete;
 *	BUSY	between two of these, in the hands of one thread of the pool.
 *
 * The tag of a free block is (stream, position): its last use, see stream.c.
 * The arena of the host has complete blocks, which every stream may use.
 * There are two zones, each with its own runs, blocks and arenas: small blocks
 * do not lie between large ones.
 *
 * Files: pool.c creates, controls and destroys a pool. cache.c is the cached path, where
 * allocations and frees arrive. alloc.c is the slow path; uses.c has uses on further streams.
 * block.c cuts and merges, arena.c searches, index.c has the metadata, graph.c is captured work.
 * tags.c has what pools of several tags share, set.c changes options and answers other processes,
 * show.c publishes statistics. regions.c and vmm/ are the sources.
 *
 * Locking: a stream's lock protects its cache and counters; it is held for a
 * few instructions. pool->lock protects everything else, is taken first, and
 * is held while the driver is called. Nobody waits with it: hm_order_nap() and
 * hm_stream_sync_lost() release it. A live block is constant, except for state,
 * flags and uses. The hash is read without a lock: a reader that finds nothing
 * looks again under pool->lock.
 *
 * The cached path takes no shared lock and writes no cache line that threads
 * with other streams use. The lock, cache and counters of a stream are its
 * own, and so are the cache lines of the descriptors in its cache. Of the
 * threads that use a stream, the one that allocated on it last owns it. A free
 * by another thread only adds the block to the stream's list of remote frees,
 * without the lock. The list is taken as a whole under the lock when the cache
 * lacks a block, is flushed, or its counters are read; the frees count from
 * then on.
 *
 * A stream can be retired, and its slot reused, between lookup and locking.
 * The retiring thread changes the order's epoch, then takes the stream's lock
 * and closes the remote list. Everyone else reads the epoch, looks up, locks
 * or loads the list's head, and reads the epoch again: if it changed, they
 * look up again. So a free before the end of a stream is covered by its last
 * event, and no later free is taken for covered. A hit reads the epoch once, before
 * the lock: a thread that changes the epoch for a stream then clears its @hit under the lock.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/nvtx.h"
#include "core/shrink.h"
#include "core/snapshot.h"
#include "driver/check.h"
#include "pool/cache.h"
#include "pool/counters.h"
#include "pool/graph.h"
#include "pool/hash.h"
#include "pool/pins.h"
#include "pool/set.h"
#include "pool/show.h"
#include "pool/source.h"
#include "pool/sparse.h"
#include "pool/uses.h"
#include "provider/gate.h"
#include "stream/uses.h"

/*
 * What check mode is told of blocks that are given out and taken back. A handle
 * that means a stream of the current context means one of the pool's here.
 */

void hm_pool_tell_alloc(struct pool *p, const void *ptr, size_t size,
			hetmem_stream stream)
{
	const struct block *b = hm_block_find(p, (uintptr_t)ptr);
	struct hm_context saved;
	bool entered;

	/* A capture's was told of when it became the capture's. */
	if (b && b->flags & BLOCK_GRAPH)
		return;
	entered = p->res.device >= 0 &&
		  !hm_context_enter(p->res.hm, p->res.device, &saved);
	hm_check_alloc(p->res.hm, ptr, size, stream);
	if (entered)
		hm_context_leave(p->res.hm, &saved);
}

/* With the lock. */
static void tell_uses(struct pool *p, const struct block *b, size_t from, size_t size)
{
	uint32_t id = b->flags & BLOCK_USED ? b->left : 0;

	while (id) {
		struct use *u = use_at(p, id);
		struct pool_stream *s = stream_at(p, u->stream);

		if (s->s.serial == u->pos && !s->s.retired)
			hm_check_free(p->res.hm, (void *)(uintptr_t)(b->addr + from),
				      size, hm_stream_handle(&s->s));
		id = u->next;
	}
}

/* The next part of @b in [*@from, @to) that has memory, as source->part() says it. */
static uint64_t next_part(const struct pool *p, const struct block *b, uint64_t *from, uint64_t to)
{
	if (b->flags & BLOCK_RESERVE && p->source->part)
		return p->source->part(p, b, from, to);
	return *from < to ? to - *from : 0;
}

/* With the lock, in the context of @stream. */
static void tell_part(struct pool *p, const struct block *b, size_t from, size_t size,
		      hetmem_stream stream)
{
	hm_check_free(p->res.hm, (char *)(uintptr_t)b->addr + from, size, stream);
	tell_uses(p, b, from, size);
}

void hm_pool_tell_free(struct pool *p, const struct block *b,
		       hetmem_stream stream)
{
	const size_t size = block_bytes(b) - b->slack;
	uint64_t from = 0, part;
	struct hm_context saved;
	struct pool_stream *s;
	bool entered;

	entered = p->res.device >= 0 &&
		  !hm_context_enter(p->res.hm, p->res.device, &saved);
	pthread_mutex_lock(&p->lock);
	if (stream == HETMEM_STREAM_UNKNOWN) {
		s = hm_block_owner(p, b);
		stream = s->s.index && !s->s.retired ?
			hm_stream_handle(&s->s) : HETMEM_STREAM_HOST;
	}
	while ((part = next_part(p, b, &from, size))) {
		tell_part(p, b, from, part, stream);
		from += part;
	}
	pthread_mutex_unlock(&p->lock);
	if (entered)
		hm_context_leave(p->res.hm, &saved);
}

/* What else a pool can be asked. All of it takes the pool's lock. */

/* Descriptors that one hold of the lock looks at. */
#define SCANNED		4096

/*
 * The live block that an address is in; interior ones take a search, which
 * releases the lock between pieces: the block that has @addr stays where it is.
 */
struct block *hm_pool_find_around(struct pool *p, uint64_t addr)
{
	struct block *b = hm_block_find_locked(p, addr);
	uint32_t id;

	if (b)
		return block_state(b) == BLOCK_LIVE ? b : NULL;
	for (id = 1; id < p->blocks.nr; id++) {
		b = block_at(p, id);
		if (block_state(b) == BLOCK_LIVE && addr >= b->addr &&
		    addr < block_end(b))
			return b;
		if (id % SCANNED == 0)
			hm_pool_pause(p);
	}
	return NULL;
}

static int pool_owns(struct pool *p, struct hm_ctl_owns *arg)
{
	struct hm_stream *s;
	struct block *b;

	pthread_mutex_lock(&p->lock);
	b = arg->first ? hm_block_find_live(p, (uintptr_t)arg->ptr) :
		hm_pool_find_around(p, (uintptr_t)arg->ptr);
	if (b) {
		s = &hm_block_owner(p, b)->s;
		arg->base = (void *)(uintptr_t)b->addr;
		arg->size = block_bytes(b);
		arg->asked = block_bytes(b) - b->slack;
		arg->stream = !s->retired && (s->index || !b->stream) ?
			hm_stream_handle(s) : HETMEM_STREAM_UNKNOWN;
	}
	pthread_mutex_unlock(&p->lock);
	return b ? 0 : hm_error(-ENOENT, "owns: %p is in no block of this pool",
				arg->ptr);
}

/* @s uses live @b, as others may. */
int hm_pool_use(struct pool *p, struct block *b, struct pool_stream *s)
{
	if (!s->s.index || s == hm_block_owner(p, b))
		return 0;
	return hm_block_use(p, b, s);
}

static int pool_record(struct pool *p, const struct hm_ctl_stream *arg)
{
	struct pool_stream *s;
	struct block *b;
	int err;

	err = hm_private_record(p, arg);
	if (err != -ENOENT)
		return err;
	err = hm_pool_lock_stream(p, arg->stream, &s);
	if (err)
		return err;
	b = hm_block_find_live(p, (uintptr_t)arg->ptr);
	if (!b)
		err = hm_error(-EINVAL, "record_stream: %p is not the beginning of a live block",
			       arg->ptr);
	else
		err = hm_pool_use(p, b, s);
	pthread_mutex_unlock(&p->lock);
	return err;
}

static int pool_retire(struct pool *p, const struct hm_ctl_stream *arg)
{
	struct hm_stream *s;
	int err;

	pthread_mutex_lock(&p->lock);
	err = hm_stream_end(&p->order, arg->stream, &s);
	if (!err && s) {
		hm_stream_close(p, (struct pool_stream *)s);
		err = hm_stream_retire(&p->order, s);
		if (!err)
			hm_stream_flush(p, (struct pool_stream *)s, 0);
	}
	pthread_mutex_unlock(&p->lock);
	return err;
}

static int pool_poll(struct pool *p)
{
	pthread_mutex_lock(&p->lock);
	hm_pool_poll(p);
	hm_pool_sync_lost(p);
	p->source->poll(p);
	hm_pool_decay(p);
	pthread_mutex_unlock(&p->lock);
	return 0;
}

/* Waits, without the lock, for work on freed memory: its end may be near. */
bool hm_pool_trim_until(struct pool *p, size_t *arg, uint64_t deadline)
{
	bool more, changed = true;
	unsigned int naps = 0;
	uint64_t keep;
	HM_RANGE("trim", 0);

	pthread_mutex_lock(&p->lock);
	keep = *arg > p->opt.min ? *arg : p->opt.min;
	*arg = 0;
	hm_pool_flush(p);
	/* A pool with one stream has recorded nothing so far. */
	hm_pool_record_all(p);
	hm_pool_poll(p);
	for (;;) {
		if (changed) {
			hm_pool_settle_all(p);
			*arg += p->source->trim(p, keep);
		}
		more = p->reserved > keep && hm_pool_awaits(p);
		if (!more || hm_now() >= deadline)
			break;
		hm_order_nap(&p->order, &naps);
		changed = hm_pool_poll(p);
	}
	pthread_mutex_unlock(&p->lock);
	return more;
}

bool hm_pool_trim_now(struct pool *p)
{
	size_t keep = 0;

	return hm_pool_trim_until(p, &keep, 0);
}

/* Of more streams, only what is known to be complete is spared: asking takes long. */
#define SPARE_STREAMS	64

void hm_pool_spare(struct hetmem_resource *res, size_t bytes)
{
	struct pool *p = to_pool(res);
	uint64_t used;

	pthread_mutex_lock(&p->lock);
	hm_pool_sum(p);
	used = p->requested > 0 ? p->requested : 0;
	if (p->reserved > p->opt.min && p->reserved >= used + bytes) {
		hm_pool_flush(p);
		if (p->order.seen <= SPARE_STREAMS) {
			hm_pool_record_all(p);
			hm_pool_poll(p);
		}
		hm_pool_settle_all(p);
		p->source->trim(p, p->opt.min);
	}
	pthread_mutex_unlock(&p->lock);
}

/* Blocks that a search for a gap looks at: it holds the lock. */
#define GAP_BLOCKS	4096

/*
 * The last block from @b on, to the right or the left, before a live one, one that is
 * reserved or an end of the region. *@blocks: looked at; from GAP_BLOCKS on it was stopped.
 */
static struct block *last_free(struct pool *p, struct block *b, bool right,
			       unsigned int *blocks)
{
	for (;;) {
		uint32_t id = right ? b->next : b->prev;

		if (!id || block_state(block_at(p, id)) == BLOCK_LIVE ||
		    block_at(p, id)->flags & BLOCK_RESERVE || ++*blocks >= GAP_BLOCKS)
			return b;
		b = block_at(p, id);
	}
}

/* Two live blocks of @p: next to each other, but for blocks that are not live. */
static bool is_gap(struct pool *p, struct block *left, struct block *right)
{
	unsigned int blocks = 0;
	struct block *from, *to;

	from = last_free(p, left, true, &blocks);
	if (blocks >= GAP_BLOCKS)
		return false;
	if (from->next)
		return block_at(p, from->next) == right;
	to = last_free(p, right, false, &blocks);
	return blocks < GAP_BLOCKS && !to->prev && block_end(from) == to->addr;
}

bool hm_pool_is_gap(struct hetmem_resource *res, uintptr_t left, uintptr_t right)
{
	struct pool *p = to_pool(res);
	struct block *l, *r;
	bool gap;

	pthread_mutex_lock(&p->lock);
	l = hm_block_find_live(p, left);
	r = hm_block_find_live(p, right);
	gap = l && r && left < right && is_gap(p, l, r);
	pthread_mutex_unlock(&p->lock);
	return gap;
}

static int pool_stats(struct pool *p, struct hetmem_resource_stats *st)
{
	pthread_mutex_lock(&p->lock);
	hm_pool_count(p, st);
	st->reserved = p->reserved;
	st->reserved_peak = p->reserved_peak;
	st->metadata = hm_pool_metadata(p);
	st->failed = p->failed;
	st->driver_calls = p->calls + p->order.calls;
	st->host_wait_ns = p->order.wait_ns;
	st->parked = p->source->parked ? p->source->parked(p) : 0;
	st->addresses = p->source->far ? p->source->far(p) : 0;
	if (p->source->moved)
		p->source->moved(p, st);
	pthread_mutex_unlock(&p->lock);
	return 0;
}

static int pool_segments(struct pool *p, struct hm_ctl_segments *arg)
{
	uint64_t addr = (uintptr_t)arg->ptr;
	struct block *b;
	int err = 0;

	if (!p->source->segments)
		return -EOPNOTSUPP;
	pthread_mutex_lock(&p->lock);
	b = hm_pool_find_around(p, addr);
	if (!b || arg->size > block_end(b) - addr)
		err = hm_error(-EINVAL, "segments: %p and %zu bytes are not in one block of this pool",
			       arg->ptr, arg->size);
	else
		err = p->source->segments(p, arg);
	pthread_mutex_unlock(&p->lock);
	return err;
}

/* As hm_pool_attempt() for @s; -ENOMEM is explained. */
static int pool_attempt(struct pool *p, struct pool_stream *s,
			int (*attempt)(struct pool *p, struct pool_stream *s,
				       void *arg),
			void *arg, const char *what, size_t size)
{
	uint64_t wait_ns = p->order.wait_ns;
	struct hm_stream *waited = NULL;
	int err;

	s->pins++;
	err = hm_pool_attempt(p, s, size, attempt, arg, &waited);
	s->pins--;
	if (err != -ENOMEM)
		return err;
	return hm_pool_explain(p, s, what, size, err, p->order.wait_ns - wait_ns,
			       waited);
}

/* New memory rather than an order between streams, unless there is none. */
static int reserve_block(struct pool *p, struct pool_stream *s,
			 const struct hm_ctl_alloc *arg, struct block **b)
{
	int err = -ENOMEM;

	if (!p->opt.reuse_order)
		err = p->source->reserve(p, s, arg, false, b);
	if (err != -ENOMEM)
		return err;
	if (s->s.index)
		hm_pool_claim(p, s);
	return p->source->reserve(p, s, arg, true, b);
}

static int reserve_attempt(struct pool *p, struct pool_stream *s, void *arg)
{
	struct hm_ctl_alloc *r = arg;
	struct block *b;
	int err;

	hm_pool_make_ready(p);
	if (p->asleep)
		return hm_pool_asleep();
	if (s->graph)
		return hm_error(-EBUSY, "alloc_with: a capture has no block that grows, and no ring");
	err = reserve_block(p, s, r, &b);
	if (err)
		return err;
	r->ptr = (void *)(uintptr_t)b->addr;
	hm_pool_give(p, s, b, r->size);
	if (r->flags & HETMEM_ALLOC_MOVABLE && p->source->declare && block_zone(b))
		p->source->declare(p, b, r->priority);
	return 0;
}

/* Whether flags matter: blocks that the cached path gives out are not movable. */
static bool is_flagged(const struct pool *p, const struct hm_ctl_alloc *arg)
{
	if (arg->size > SMALL_MAX)
		return arg->flags;
	return p->source->declare && (arg->flags & HETMEM_ALLOC_MOVABLE ||
				      (arg->flags && p->opt.movable && arg->size == SMALL_MAX));
}

/* A block with flags comes by the slow path. */
static int alloc_flagged(struct pool *p, struct hm_ctl_alloc *arg)
{
	struct pool_stream *s;
	int err = hm_pool_lock_stream(p, arg->stream, &s);

	if (err)
		return err;
	err = hm_pool_alloc_slow(p, s, NULL, arg, arg->size, arg->align, &arg->ptr);
	pthread_mutex_unlock(&p->lock);
	if (hm_unlikely(p->res.hm->check) && !err)
		hm_pool_tell_alloc(p, arg->ptr, arg->size, arg->stream);
	return err;
}

static int pool_alloc_with(struct pool *p, struct hm_ctl_alloc *arg)
{
	struct pool_stream *s;
	int err;

	if (arg->tag)
		return hm_error(-EOPNOTSUPP, "alloc_with: only pools over vmm() have tags");
	arg->flags &= ~HETMEM_ALLOC_SCRATCH;
	if (arg->flags & HETMEM_ALLOC_SPARSE)
		return hm_pool_alloc_sparse(p, arg);
	if (arg->private_pool)
		return hm_private_alloc(p, arg);
	if (!arg->reserve && is_flagged(p, arg))
		return alloc_flagged(p, arg);
	if (!arg->reserve)
		return p->res.ops->alloc(&p->res, arg->size, arg->align, arg->stream, &arg->ptr);
	if (!p->source->reserve || p->whole)
		return -EOPNOTSUPP;
	if (arg->align > p->provider->granularity && p->provider->caps & HM_PROVIDER_MAPPABLE)
		return hm_error(-EINVAL, "alloc_with: a block that grows is aligned to %zu",
				p->provider->granularity);
	if (arg->size > BLOCK_MAX || arg->align > BLOCK_MAX ||
	    arg->reserve > BLOCK_MAX - arg->align)
		return hm_error(-ENOMEM, "alloc_with: more than there can be");
	err = hm_pool_lock_stream(p, arg->stream, &s);
	if (err)
		return err;
	err = pool_attempt(p, s, reserve_attempt, arg, "alloc_with of",
			   arg->size);
	p->failed += err != 0;
	hm_pool_show(p);
	pthread_mutex_unlock(&p->lock);
	if (hm_unlikely(p->res.hm->check) && !err)
		hm_pool_tell_alloc(p, arg->ptr, arg->size, arg->stream);
	return err;
}

/*
 * Enlarges @b to @units, and cuts off what is more. Exceptions: a block with room
 * of its own keeps it, and one that was large enough is left as it is.
 */
static int pool_enlarge(struct pool *p, struct pool_stream *s, struct block *b,
			uint64_t units)
{
	struct block *rest;
	int err = -ENOMEM;

	if (!p->opt.reuse_order)
		err = p->source->enlarge(p, s, b, units, false);
	if (err == -ENOMEM) {
		if (s->s.index)
			hm_pool_claim(p, s);
		err = p->source->enlarge(p, s, b, units, true);
	}
	if (err || b->units <= units || b->flags & BLOCK_RESERVE)
		return err;
	rest = hm_block_cut(p, b, units);
	if (rest) {
		/* What it is made of may be in use, and @s ordered behind that. */
		__atomic_store_n(&rest->flags, block_zone(b), __ATOMIC_RELAXED);
		rest->stream = s->s.index;
		rest->pos = stream_point(s);
		hm_block_release(p, rest);
	}
	return 0;
}

/* Takes back a use that was added to the list when it was @left. */
static void pool_unuse(struct pool *p, struct block *b, uint32_t left)
{
	if (b->left == left)
		return;
	hm_table_put(&p->uses, b->left);
	b->left = left;
	if (!left)
		__atomic_store_n(&b->flags, b->flags & ~BLOCK_USED,
				 __ATOMIC_RELEASE);
}

/* The live block @b gets @size bytes, and a use on @s; or nothing changes. */
static int pool_grow_block(struct pool *p, struct pool_stream *s,
			   struct block *b, uint64_t size)
{
	uint64_t units = units_of(size);
	uint64_t was = block_bytes(b) - b->slack;
	uint32_t excess = block_excess(b), left = b->left;
	int err;

	err = hm_pool_use(p, b, s);
	if (!err && units > b->units) {
		err = pool_enlarge(p, s, b, units);
		if (err)
			pool_unuse(p, b, left);
	}
	if (err)
		return err;
	b->slack = block_bytes(b) - size;
	stream_lock(s);
	stream_add_requested(s, size - was);
	stream_unlock(s);
	hm_pool_publish(p, s);
	__atomic_fetch_add(&stream_at(p, b->stream)->returned,
			   (int64_t)block_excess(b) - excess, __ATOMIC_RELAXED);
	return 0;
}

/* A part of a block: bytes from @from on. */
struct part {
	uint64_t from;
	uint64_t bytes;
};

/*
 * Lists the parts of @b in [@from, @to) that have memory, before the block gives them back: check
 * mode is told of them afterwards. *@nr of them, to be freed; NULL: no host memory.
 */
static struct part *list_parts(const struct pool *p, const struct block *b, uint64_t from,
			       uint64_t to, size_t *nr)
{
	struct part *parts = NULL, *more;
	size_t room = 0;
	uint64_t bytes;

	for (*nr = 0; (bytes = next_part(p, b, &from, to)); from += bytes) {
		if (*nr == room) {
			room = room ? 2 * room : 16;
			more = realloc(parts, room * sizeof(*parts));
			if (!more) {
				free(parts);
				return NULL;
			}
			parts = more;
		}
		parts[(*nr)++] = (struct part){ from, bytes };
	}
	return parts ? parts : calloc(1, sizeof(*parts));
}

/* Tells check mode that these of @b were freed. With the lock. */
static void tell_parts(struct pool *p, const struct block *b, const struct part *parts, size_t nr,
		       hetmem_stream stream)
{
	struct hm_context saved;
	bool entered;
	size_t i;

	entered = p->res.device >= 0 && !hm_context_enter(p->res.hm, p->res.device, &saved);
	for (i = 0; i < nr; i++)
		tell_part(p, b, parts[i].from, parts[i].bytes, stream);
	if (entered)
		hm_context_leave(p->res.hm, &saved);
}

/* Orders @s behind the uses of the live block @b on further streams. -EBUSY: it cannot be. */
static int wait_for_uses(struct pool *p, struct pool_stream *s, const struct block *b)
{
	uint32_t id = b->flags & BLOCK_USED ? b->left : 0;
	struct hm_stream *of;
	uint64_t pos;
	int err = 0;

	for (; id && !err; id = use_at(p, id)->next) {
		of = stream_by_serial(p, use_at(p, id)->stream, use_at(p, id)->pos);
		if (!of->index || of == &s->s)
			continue;
		stream_lock((struct pool_stream *)of);
		pos = hm_stream_next_pos(of);
		stream_unlock((struct pool_stream *)of);
		err = hm_stream_wait(&p->order, &s->s, of, pos);
	}
	return err != -EAGAIN ? err :
		hm_error(-EBUSY, "shrink: the stream cannot wait for a recorded use that is not complete");
}

/*
 * Bytes [@from, @to) of the live block @b are freed on @s: up to its end, or inside it. That is
 * behind all uses of the block on other streams.
 */
static int free_range(struct pool *p, struct pool_stream *s, struct block *b, uint64_t from,
		      uint64_t to, hetmem_stream stream)
{
	const uint64_t asked = block_bytes(b) - b->slack;
	struct part *parts = NULL;
	uint64_t pos = 0;
	size_t nr = 0;
	int err;

	if (!p->source->shrink || p->opt.comm || b->flags & (BLOCK_WHOLE | BLOCK_EXPORTED) ||
	    hm_pins_has(p, b))
		return hm_error(-EOPNOTSUPP, "shrink: memory of %p cannot go back in parts",
				(void *)(uintptr_t)b->addr);
	if (hm_unlikely(p->res.hm->check)) {
		parts = list_parts(p, b, from, asked < to ? asked : to, &nr);
		if (!parts)
			return hm_error(-ENOMEM, "shrink: no host memory");
	}
	err = wait_for_uses(p, s, b);
	if (!err) {
		stream_lock(s);
		if (s->s.index)
			pos = hm_stream_next_pos(&s->s);
		stream_unlock(s);
		err = p->source->shrink(p, s, b, from, to, pos);
	}
	if (!err)
		tell_parts(p, b, parts, nr, stream);
	free(parts);
	return err;
}

/* The live block @b keeps @g->size bytes. */
static int pool_shrink_block(struct pool *p, struct pool_stream *s, struct block *b,
			     const struct hm_ctl_grow *g)
{
	const uint64_t before = block_bytes(b);
	const uint32_t excess = block_excess(b);
	int err = free_range(p, s, b, g->size, before, g->stream);

	if (err)
		return err;
	b->slack = block_bytes(b) - g->size;
	stream_lock(s);
	stream_sub_requested(s, g->was - g->size);
	stream_unlock(s);
	hm_pool_publish(p, s);
	__atomic_fetch_add(&stream_at(p, b->stream)->returned,
			   (int64_t)block_excess(b) - excess, __ATOMIC_RELAXED);
	hm_pool_record(p, s, 1, before - block_bytes(b));
	return 0;
}

/* The live block that is to change its size, or NULL and *@err. */
static struct block *grow_find(struct pool *p, struct hm_ctl_grow *g, int *err)
{
	struct block *b = hm_block_find_live(p, (uintptr_t)g->ptr);

	g->was = b ? block_bytes(b) - b->slack : 0;
	*err = 0;
	if (!b)
		*err = hm_error(-EINVAL, "grow: %p is not the beginning of a live block",
				g->ptr);
	else if (b->flags & BLOCK_GRAPH)
		*err = hm_error(-EBUSY, "grow: %p belongs to a capture",
				g->ptr);
	else if (block_is_sparse(b))
		*err = hm_error(-EOPNOTSUPP, "grow, shrink: %p is a sparse block: hetmem_commit(), hetmem_decommit()",
				g->ptr);
	else if (p->asleep)
		*err = hm_pool_asleep();
	return *err ? NULL : b;
}

/* Whether @b, or the free block after it, has all that is missing, complete. */
static bool has_enough(const struct pool *p, const struct block *b,
		       uint64_t units)
{
	const struct block *n = block_at(p, b->next);

	return units <= b->units ||
	       (b->next && block_state(n) == BLOCK_FREE &&
		n->units >= units - b->units && hm_block_done(p, n));
}

static int grow_attempt(struct pool *p, struct pool_stream *s, void *arg)
{
	struct hm_ctl_grow *g = arg;
	struct block *b;
	int err;

	b = grow_find(p, g, &err);
	if (b && g->size < g->was)
		return pool_shrink_block(p, s, b, g);
	if (b && !has_enough(p, b, units_of(g->size))) {
		hm_pool_make_ready(p);
		/* The lock was released. */
		b = grow_find(p, g, &err);
	}
	if (b && g->size < g->was)
		return pool_shrink_block(p, s, b, g);
	return b ? pool_grow_block(p, s, b, g->size) : err;
}

static int pool_grow(struct pool *p, struct hm_ctl_grow *arg)
{
	struct pool_stream *s;
	int err;

	if (!p->source->enlarge || p->whole)
		return -EOPNOTSUPP;
	if (arg->size > BLOCK_MAX)
		return hm_error(-ENOMEM, "grow: more than there can be");
	err = hm_pool_lock_stream(p, arg->stream, &s);
	if (err)
		return err;
	err = pool_attempt(p, s, grow_attempt, arg, "grow to", arg->size);
	hm_pool_show(p);
	pthread_mutex_unlock(&p->lock);
	if (hm_unlikely(p->res.hm->check) && !err && arg->size > arg->was)
		hm_pool_tell_alloc(p, (char *)arg->ptr + arg->was,
				   arg->size - arg->was, arg->stream);
	return err;
}

static int shrink_attempt(struct pool *p, struct pool_stream *s, void *arg)
{
	const struct hm_ctl_shrink *range = arg;
	struct hm_ctl_grow g = { .ptr = range->ptr };
	struct block *b;
	int err;

	b = grow_find(p, &g, &err);
	if (b && range->offset + range->length >= g.was)
		err = hm_error(-EINVAL, "shrink: %p has %zu bytes now", range->ptr, g.was);
	if (b && !err)
		err = free_range(p, s, b, range->offset, range->offset + range->length,
				 range->stream);
	if (b && !err)
		hm_pool_record(p, s, 1, range->length);
	return err;
}

static int pool_shrink_inside(struct pool *p, struct hm_ctl_shrink *arg)
{
	struct pool_stream *s;
	int err = hm_pool_lock_stream(p, arg->stream, &s);

	if (err)
		return err;
	err = pool_attempt(p, s, shrink_attempt, arg, "shrink by", arg->length);
	pthread_mutex_unlock(&p->lock);
	return err;
}

/* What a stream caches by default: bytes. */
#define CACHE_MAX	((uint64_t)8 << 20)

/* What streams may cache, awake and asleep. */
void hm_pool_set_cache(struct pool *p)
{
	__atomic_store_n(&p->cache_max, p->asleep || p->whole ? 0 :
			 p->opt.cache ? p->opt.cache : CACHE_MAX,
			 __ATOMIC_RELAXED);
}

/*
 * A stream that was ordered behind that of an allocation is not known, nor are those
 * of private pools and of graphs: whether any of them may use memory.
 */
static bool is_used_elsewhere(struct pool *p)
{
	hm_pool_sum(p);
	return (p->graphs && p->graphs->nr) || p->requested;
}

int hm_pool_sync(struct pool *p, bool live)
{
	unsigned int i;
	int err = 0, one;

	for (i = 1; i < p->order.nr; i++) {
		struct pool_stream *s = stream_at(p, i);

		if (!s->s.id)
			continue;
		/* What uses live memory has no position: there was no free. */
		if (live) {
			stream_lock(s);
			hm_stream_next_pos(&s->s);
			stream_unlock(s);
		}
		one = hm_stream_sync(&p->order, &s->s, hm_stream_pos(&s->s));
		err = err ? err : one;
	}
	return err;
}

/* Waits for all of that. Releases the lock while it waits. */
static int pool_finish(struct pool *p)
{
	uint64_t start = hm_now();
	int err;

	pthread_mutex_unlock(&p->lock);
	err = hm_order_finish(&p->order);
	pthread_mutex_lock(&p->lock);
	p->order.wait_ns += hm_now() - start;
	return err;
}

static void pool_awake(struct pool *p)
{
	p->asleep = false;
	hm_pool_set_cache(p);
}

static void tell(struct pool *p, enum hetmem_remap_cause cause, bool after, int err)
{
	if (p->source->tell)
		p->source->tell(p, cause, after, err);
}

static int put_to_sleep(struct pool *p)
{
	int err;

	tell(p, HETMEM_REMAP_SLEEP, false, 0);
	err = p->source->sleep(p);
	tell(p, HETMEM_REMAP_SLEEP, true, err);
	return err;
}

/* What failed before is tried again. Blocks can have been freed since. */
static int sleep_again(struct pool *p)
{
	int err = hm_pool_sync(p, true);

	return err ? err : put_to_sleep(p);
}

/* With both locks. Releases pool->lock while it waits and copies. */
static int pool_go_to_sleep(struct pool *p, struct hm_ctl_sleep *arg)
{
	const bool keep = arg->keep && !p->scratch;
	int err = 0;

	if (keep && p->source->refuses)
		arg->refused = p->source->refuses(p);
	if (arg->refused)
		return -EOPNOTSUPP;
	if (p->opt.comm)
		return hm_error(-EBUSY, "sleep: memory for communication stays");
	if (p->asleep && keep && !p->saved)
		return hm_error(-EBUSY, "sleep: the pool is asleep and its contents are lost: hetmem_wake()");
	if (p->asleep)
		return sleep_again(p);
	if (p->source->end_moves)
		err = p->source->end_moves(p);
	if (err)
		return err;
	p->asleep = true;
	p->slept_in = arg->call;
	hm_pool_set_cache(p);
	hm_pool_flush(p);
	/* Streams that are known come first: to ask one that is captured does no harm. */
	err = hm_pool_sync(p, true);
	if (!err && is_used_elsewhere(p))
		err = pool_finish(p);
	if (err) {
		pool_awake(p);
		return err;
	}
	hm_pool_poll(p);
	hm_pool_settle_all(p);
	if (keep)
		err = p->source->save(p);
	if (err) {
		pool_awake(p);
		return err;
	}
	p->saved = keep;
	return put_to_sleep(p);
}

/* The text of @err stays. */
static int wake_failed(struct pool *p, int err)
{
	char text[256];

	snprintf(text, sizeof(text), "%s", hetmem_last_error());
	p->source->sleep(p);
	p->waking = false;
	tell(p, HETMEM_REMAP_WAKE, true, err);
	return hm_error(err, "%s", text);
}

/*
 * With both locks. Releases pool->lock while it copies. After an error the pool is asleep
 * as before, and has no memory. Observers see one wake, whatever its steps are.
 */
static int pool_wake_up(struct pool *p, enum hm_wake_step step, bool undo)
{
	int err = 0;

	if (step == HM_WAKE_CANCEL)
		return p->waking ? wake_failed(p, -ECANCELED) : 0;
	if (!p->waking)
		tell(p, HETMEM_REMAP_WAKE, false, 0);
	p->waking = true;
	if (step == HM_WAKE_ALL || step == HM_WAKE_MAKE)
		err = p->source->wake(p);
	if (!err && p->saved && (step == HM_WAKE_ALL || step == HM_WAKE_LOAD))
		err = p->source->load(p);
	if (err)
		return wake_failed(p, err);
	if (step == HM_WAKE_MAKE || step == HM_WAKE_LOAD)
		return 0;
	if (p->saved)
		p->source->loaded(p, undo);
	p->waking = false;
	tell(p, HETMEM_REMAP_WAKE, true, 0);
	p->saved = false;
	pool_awake(p);
	return 0;
}

/* Not beside a sleep, a wake or a move. */
static void pool_idle(struct pool *p, bool all)
{
	if (!p->source->idle || pthread_mutex_trylock(&p->sleep_lock))
		return;
	__atomic_store_n(&p->mover, hm_thread(), __ATOMIC_RELAXED);
	pthread_mutex_lock(&p->lock);
	while (p->source->idle(p, all) && all)
		;
	hm_pool_unlock_moves(p);
}

static int pool_sleep_or_wake(struct pool *p, struct hm_ctl_sleep *arg, bool wake)
{
	const char *tag = arg->tag;
	const bool later = !wake && arg->part != HM_SLEEP_ALL &&
		p->scratch != (arg->part == HM_SLEEP_SCRATCH);
	int err = 0;
	HM_RANGE(wake ? "wake" : "sleep", 0);

	if (!p->source->sleep)
		return -EOPNOTSUPP;
	if (later || (tag && strcmp(tag, p->opt.tag))) {
		pthread_mutex_lock(&p->lock);
		arg->asleep += p->asleep;
		pthread_mutex_unlock(&p->lock);
		return 0;
	}
	err = hm_pool_lock_moves(p);
	if (err)
		return err;
	if (!wake)
		err = pool_go_to_sleep(p, arg);
	else if (p->asleep && (!arg->undo || p->slept_in == arg->call))
		err = pool_wake_up(p, arg->step, arg->undo);
	arg->asleep += p->asleep;
	hm_pool_unlock_moves(p);
	/* A max that was lowered while the pool slept concerns free memory only. */
	if (wake && !err && !p->asleep)
		hm_pool_shrink(p, false);
	return err;
}

static int pool_export(struct pool *p, struct hm_ctl_export *arg)
{
	struct block *b;
	int err;

	if (!p->whole)
		return -EOPNOTSUPP;
	pthread_mutex_lock(&p->lock);
	b = hm_block_find_live(p, (uintptr_t)arg->ptr);
	if (!b)
		err = hm_error(-EINVAL, "export: %p is not the beginning of a live block",
			       arg->ptr);
	else if (p->asleep)
		err = hm_pool_asleep();
	else
		err = p->source->export(p, b, arg);
	pthread_mutex_unlock(&p->lock);
	return err;
}

int hm_pool_ctl(struct pool *p, enum hm_ctl op, void *arg)
{
	switch (op) {
	case HM_CTL_OWNS:
		return pool_owns(p, arg);
	case HM_CTL_RECORD:
		return pool_record(p, arg);
	case HM_CTL_RETIRE:
		return pool_retire(p, arg);
	case HM_CTL_POLL:
		pool_idle(p, false);
		return pool_poll(p);
	case HM_CTL_TRIM:
		pool_idle(p, false);
		hm_pool_trim_until(p, arg, hm_now() + hm_pool_most_wait(p));
		/* Of spilled blocks that went just now, too. */
		pool_idle(p, true);
		return 0;
	case HM_CTL_STATS:
		return pool_stats(p, arg);
	case HM_CTL_TAG_STATS:
		return hm_pool_tag_stats(p, arg);
	case HM_CTL_SEGMENTS:
		return pool_segments(p, arg);
	case HM_CTL_CHECKPOINT:
		return hm_private_checkpoint(p, arg);
	case HM_CTL_RESTORE:
		return hm_private_restore(p, arg);
	case HM_CTL_WALK:
		return hm_pool_walk(p, arg);
	case HM_CTL_ALLOC_WITH:
		return pool_alloc_with(p, arg);
	case HM_CTL_GROW:
		return pool_grow(p, arg);
	case HM_CTL_SHRINK:
		return ((struct hm_ctl_shrink *)arg)->what ? hm_pool_commit(p, arg) :
			pool_shrink_inside(p, arg);
	case HM_CTL_PIN_COMM:
	case HM_CTL_UNPIN_COMM:
		return hm_pool_pin(p, arg, op == HM_CTL_PIN_COMM);
	case HM_CTL_SLEEP:
	case HM_CTL_WAKE:
		return pool_sleep_or_wake(p, arg, op == HM_CTL_WAKE);
	case HM_CTL_PARKED_READ:
		return hm_pool_parked_read(p, arg);
	case HM_CTL_EXPORT:
		return pool_export(p, arg);
	case HM_CTL_MOVE:
		return p->source->move && !p->whole && !p->opt.comm ?
			p->source->move(p, arg) : -EOPNOTSUPP;
	case HM_CTL_OBSERVE:
		return p->source->observe ? p->source->observe(p, arg) : -EOPNOTSUPP;
	case HM_CTL_SET:
		return hm_pool_set(p, arg);
	case HM_CTL_ACCESS:
		return hm_pool_access(p, arg);
	case HM_CTL_GATE:
		return hm_gate_ctl(p->provider, arg);
	case HM_CTL_PRESSURE:
		return hm_pool_show_pressure(p);
	case HM_CTL_CAPTURE_BEGIN:
	case HM_CTL_CAPTURE_END:
	case HM_CTL_CAPTURE_RELEASE:
	case HM_CTL_PRIVATE_RETAIN:
	case HM_CTL_PRIVATE_RELEASE:
		return hm_graph_ctl(p, op, arg);
	case HM_CTL_PRIVATE_TRIM:
		return hm_private_trim(p, arg);
	default:
		return -EOPNOTSUPP;
	}
}

/* A pool with tags is asked as a whole. */
static int pool_ctl(struct hetmem_resource *res, enum hm_ctl op, void *arg)
{
	struct pool *p = to_pool(res);
	int err = p->host ? 0 : hm_check_owner(res->hm);

	if (err)
		return err;
	hm_pool_listen(p);
	return p->tags && !p->member ? p->tags->ops->ctl(p->tags, op, arg) : hm_pool_ctl(p, op, arg);
}

/*
 * Pools of host memory go on in a forked child: fork() holds their locks.
 */
static void pool_hold(struct hm_fork *fork)
{
	struct pool *p = hm_container(fork, struct pool, fork);
	unsigned int i;

	pthread_mutex_lock(&p->lock);
	for (i = 0; i < p->order.nr; i++)
		stream_lock(stream_at(p, i));
}

static void pool_let_go(struct hm_fork *fork, bool child)
{
	struct pool *p = hm_container(fork, struct pool, fork);
	unsigned int i;

	if (child)
		hm_private_forked(p);
	for (i = 0; i < p->order.nr; i++)
		stream_unlock(stream_at(p, i));
	pthread_mutex_unlock(&p->lock);
}

/* Made and destroyed. */

#define MAX_USES	(1U << 20)

static void free_streams(struct pool *p)
{
	unsigned int i, zone;

	for (zone = 0; zone < NR_ZONES; zone++)
		hm_arena_free(&p->pending[zone]);

	for (i = 0; i < p->order.nr; i++) {
		struct pool_stream *s = stream_at(p, i);

		free(s->cache);
		for (zone = 0; zone < NR_ZONES; zone++)
			hm_arena_free(&s->arenas[zone]);
	}
}

/* What is live when a pool is destroyed; @first: one of the blocks. */
struct live {
	uint64_t nr;
	uint64_t bytes;
	struct block first;
};

static struct live count_live(const struct pool *p)
{
	struct live live = { 0 };
	uint32_t id;

	for (id = 1; id < p->blocks.nr; id++) {
		const struct block *b = block_at(p, id);

		if (b->state != BLOCK_LIVE)
			continue;
		if (!live.nr++)
			live.first = *b;
		live.bytes += block_bytes(b) - b->slack;
	}
	return live;
}

static void report_live(const struct live *live)
{
	if (live->nr)
		hm_error(0, "pool destroyed with %llu live blocks of %llu bytes, the first %p of %llu",
			 (unsigned long long)live->nr,
			 (unsigned long long)live->bytes,
			 (void *)(uintptr_t)live->first.addr,
			 (unsigned long long)(block_bytes(&live->first) -
					      live->first.slack));
}

/* All that is under way. */
static void sync_all(struct pool *p, bool live)
{
	unsigned int i;

	pthread_mutex_lock(&p->lock);
	if (hm_pool_sync(p, live))
		/* No event could be recorded: synchronize whole contexts. */
		for (i = 1; i < p->order.nr; i++)
			if (p->order.streams[i]->id)
				hm_stream_sync_lost(&p->order,
						    p->order.streams[i]);
	if (is_used_elsewhere(p))
		pool_finish(p);
	pthread_mutex_unlock(&p->lock);
}

/* What there is of @p, whose blocks are gone; the provider is the caller's. */
static void pool_free(struct pool *p, bool forget)
{
	if (p->memory)
		p->source->destroy(p, forget);
	hm_graphs_destroy(p);
	free_streams(p);
	hm_order_destroy(&p->order, forget);
	hm_hash_free(p);
	hm_names_free(p);
	hm_table_free(&p->uses);
	free(p->pins);
	pthread_mutex_destroy(&p->lock);
	pthread_mutex_destroy(&p->sleep_lock);
	hm_resource_free(&p->res);
}

/* In a forked child (@forget) the lock of a device's pool may be held for ever. */
static void pool_hide(struct pool *p, bool forget)
{
	struct hm_published_pool *published = p->published;

	hm_publish_unasked(published);
	p->asked = NULL;
	if (!forget)
		pthread_mutex_lock(&p->lock);
	p->published = NULL;
	if (!forget)
		pthread_mutex_unlock(&p->lock);
	hm_publish_remove(published);
}

static void pool_destroy(struct hetmem_resource *res)
{
	struct pool *p = to_pool(res);
	struct hm_provider *provider = p->provider;
	bool forget = hm_generation() != res->hm->generation;
	struct hm_tags *tags = p->member ? NULL : p->tags;
	const bool member = p->member;
	struct live live;

	if (tags)
		tags->ops->destroy(tags);
	if (p->host)
		hm_fork_remove(&p->fork);
	pool_hide(p, forget);
	if (!forget && p->source->end_moves && !hm_pool_lock_moves(p)) {
		hm_retry_once(p->source->end_moves(p));
		hm_pool_unlock_moves(p);
	}
	if (!forget) {
		pthread_mutex_lock(&p->lock);
		hm_pool_collect(p);
		pthread_mutex_unlock(&p->lock);
	}
	live = count_live(p);
	if (!forget)
		sync_all(p, live.nr);
	pool_free(p, forget);
	free(tags);
	if (!member)
		provider->ops->destroy(provider);
	/* Last: what fails before sets a text too. */
	report_live(&live);
}

static const struct hm_resource_ops pool_ops = {
	.name = "pool", .alloc = hm_pool_alloc, .free = hm_pool_free, .put = hm_pool_put,
	.ctl = pool_ctl, .destroy = pool_destroy,
};

/* Streams are retired: no call of the driver confirms them. */
static const struct hm_resource_ops retired_ops = {
	.name = "pool", .alloc = hm_pool_alloc_retired, .free = hm_pool_free_retired,
	.put = hm_pool_put_retired, .ctl = pool_ctl, .destroy = pool_destroy,
};

/* In check mode. */
static const struct hm_resource_ops told_ops = {
	.name = "pool", .alloc = hm_pool_alloc_told, .free = hm_pool_free_any,
	.ctl = pool_ctl, .destroy = pool_destroy,
};

int hm_pool_check_options(const struct hm_pool_options *opt,
			  const struct hm_provider *provider)
{
	if (opt->max && opt->min > opt->max)
		return hm_error(-EINVAL, "pool: min is more than max");
	if (opt->min && provider->caps & HM_PROVIDER_EXPORT)
		return hm_error(-EINVAL, "pool: exportable memory is made for each block: no min");
	if (opt->handle & (opt->handle - 1) ||
	    (opt->handle && opt->handle < provider->granularity))
		return hm_error(-EINVAL, "pool: handle is a power of two, %zu at least",
				provider->granularity);
	if (opt->unit % HM_POOL_UNIT || opt->unit % provider->granularity ||
	    (opt->unit > HM_POOL_UNIT_MAX && opt->unit > provider->granularity))
		return hm_error(-EINVAL, "pool: unit is a multiple of 2M, and of %zu, up to 1G",
				provider->granularity);
	if ((opt->comm || opt->reserve || opt->unit || opt->park_given || opt->max_host || opt->spill ||
	     opt->min_host || opt->movable) &&
	    !(provider->caps & HM_PROVIDER_MAPPABLE))
		return hm_error(-EOPNOTSUPP, "pool: %s has no addresses apart from memory",
				provider->ops->name);
	if ((opt->spill || opt->min_host || opt->movable) &&
	    (opt->comm || provider->caps & HM_PROVIDER_EXPORT || !provider->ops->create_host))
		return hm_error(-EINVAL, "pool: %s blocks do not move: no spill, min_host, movable",
				opt->comm ? "comm=on:" : provider->caps & HM_PROVIDER_EXPORT ?
				"exported" : provider->ops->name);
	if (opt->spill && opt->min_host > opt->spill)
		return hm_error(-EINVAL, "pool: min_host is more than spill");
	return 0;
}

static int init_parts(struct pool *p)
{
	int err;

	err = hm_order_init(&p->order, p->res.hm, p->res.device,
			    sizeof(struct pool_stream), p->opt.retired,
			    &p->lock);
	if (!err)
		err = hm_names_init(p);
	if (!err)
		err = hm_table_init(&p->uses, sizeof(struct use),
				    offsetof(struct use, next), MAX_USES);
	if (!err)
		err = hm_hash_init(p);
	return err ? err : p->source->init(p);
}

static int make_min(struct pool *p)
{
	const uint64_t units = p->opt.min >> UNIT_SHIFT;
	struct block *b;
	int err = 0;

	pthread_mutex_lock(&p->lock);
	if (units > UINT32_MAX / 2)
		err = hm_error(-EINVAL, "pool: min is more than 1 TiB");
	else if (units)
		err = p->source->grow(p, stream_at(p, 0), 1, units, false, &b);
	if (units && !err)
		hm_block_release(p, b);
	pthread_mutex_unlock(&p->lock);
	return err;
}

/* handle= of a pool with spill=, if none is given: a power of two. */
static uint64_t spill_handle(const struct pool *p)
{
	const uint64_t all = p->opt.max ? p->opt.max : p->provider->total;
	uint64_t handle = p->provider->granularity;

	while (handle < HM_POOL_SPILL_HANDLE && 2 * handle <= all / HM_POOL_SPILL_SHARE)
		handle *= 2;
	return handle;
}

int hm_pool_create_over(struct hm_provider *provider,
			const struct source *source,
			const struct hm_pool_options *options,
			struct hetmem_resource **out)
{
	static const struct hm_pool_options defaults;
	struct pool *p;
	int err;

	if (!options)
		options = &defaults;
	err = hm_pool_check_options(options, provider);
	if (err)
		return err;
	p = aligned_alloc(_Alignof(struct pool), sizeof(*p));
	if (!p)
		return hm_error(-ENOMEM, "pool: no host memory");
	memset(p, 0, sizeof(*p));
	p->res.ops = options->check || provider->hm->check ? &told_ops :
		options->retired ? &retired_ops : &pool_ops;
	p->res.hm = provider->hm;
	p->res.device = provider->device;
	p->provider = provider;
	p->source = source;
	p->opt = *options;
	if (!p->opt.unit && provider->caps & HM_PROVIDER_MAPPABLE)
		p->opt.unit = provider->granularity > HM_POOL_UNIT ? provider->granularity :
			HM_POOL_UNIT;
	if (p->opt.spill && !p->opt.handle)
		p->opt.handle = spill_handle(p);
	p->host = provider->caps & HM_PROVIDER_FORK;
	p->whole = provider->caps & HM_PROVIDER_EXPORT;
	hm_pool_set_cache(p);
	/* It is held for less than falling asleep and waking up take. */
	p->lock = (pthread_mutex_t)PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
	pthread_mutex_init(&p->sleep_lock, NULL);
	err = init_parts(p);
	if (!err)
		err = make_min(p);
	if (err) {
		pool_free(p, false);
		return err;
	}
	p->fork = (struct hm_fork){
		.level = HM_FORK_POOL,
		.hold = pool_hold, .let_go = pool_let_go,
	};
	if (p->host)
		hm_fork_add(&p->fork);
	p->published = hm_publish_add(provider->ops->name, p->opt.tag, p->res.device, p->opt.max,
				      p->host ? HM_PUBLISHED_FORK : 0);
	hm_pool_show_device(p);
	__atomic_store_n(&p->asked, hm_publish_asked(p->published, hm_pool_answer, p),
			 __ATOMIC_RELEASE);
	hm_pool_show(p);
	*out = &p->res;
	return 0;
}
