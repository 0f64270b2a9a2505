// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The cached path: a stream keeps what was freed on it, up to a limit, by
 * size. Such a block comes back on the same stream for a request of its size,
 * or one that is somewhat smaller: without a lock that another stream takes,
 * without a system call, and with one call of the driver, for the stream's id.
 * Everything else is alloc.c.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "core/alias.h"
#include "driver/check.h"
#include "pool/cache.h"
#include "pool/counters.h"
#include "pool/graph.h"
#include "pool/hash.h"
#include "pool/set.h"
#include "pool/source.h"

/* A cached block is at most so many times as large as what is asked for. */
#define FIT		2
/* Or, where frees are as many as allocations, see stream_churn(). */
#define CHURN_FIT	3
/* Excess that a stream may have there: units. */
#define CHURN_EXCESS	((4 << 20) >> UNIT_SHIFT)
/* Frees that stream_churn() remembers. */
#define MAX_CHURN	16
/* Frees that find the cache full before half of it goes. */
#define OVERFLOWS	32
/*
 * Ends a list of cached blocks whose bit in the map is set. A hit that takes the last block
 * leaves it as the head, and the next free finds the bit set: see is_name().
 */
#define LIST_END	(1U << 31)
#define CACHE_BYTES	((NR_BINS * sizeof(uint32_t) + 63) & ~(size_t)63)
/* Remote frees wait up to this part of a full cache; more take the lock. */
#define REMOTE_SHARE	2
/* And at most so many: they are taken at once. */
#define REMOTE_MOST	256
/* Instructions of one that is taken, about. */
#define REMOTE_WORK	64
/* One pause of so many yields, even if no thread is known to wait for the lock. */
#define YIELDS		8
/* Of a stream that has nothing. */
#define EMPTY_WORK	16

void hm_stream_spin(struct pool_stream *s)
{
	unsigned int i;

	do {
		for (i = 0; i < 100 && __atomic_load_n(&s->lock,
						__ATOMIC_RELAXED); i++)
			hm_cpu_relax();
		if (i == 100)
			sched_yield();
	} while (__atomic_exchange_n(&s->lock, 1, __ATOMIC_ACQUIRE));
}

/* Whether @head, or a link, of a list of cached blocks is a block's name. */
static inline bool is_name(uint32_t head)
{
	return (int32_t)head > 0;
}

static uint64_t cache_max(const struct pool *p)
{
	return __atomic_load_n(&p->cache_max, __ATOMIC_RELAXED);
}

/* Frees into the cache that no allocation in excess came after, at most MAX_CHURN. */
static uint64_t stream_churn(const struct pool_stream *s)
{
	const uint64_t frees = s->frees - s->calm;

	return frees < MAX_CHURN ? frees : MAX_CHURN;
}

/*
 * Where frees come with the allocations, excess goes as fast as it came: it may be as
 * much as what is requested. Blocks that stay share @room.
 */
static bool may_exceed(const struct pool_stream *s, uint32_t more)
{
	const int64_t excess = s->excess + more;

	return excess <= s->room ||
	       (stream_churn(s) && excess <= CHURN_EXCESS &&
		excess <= s->requested >> UNIT_SHIFT);
}

/*
 * Returns the stream of @handle, with its lock, if the calling thread may hit its cache, or
 * NULL. *@id: its id if the driver was asked, else HM_STREAM_NO_ID. @asks: the driver is to
 * be asked: streams end without hm_stream_retire().
 *
 * The driver may call back: after its call only the stream and the address of the entry are
 * used. The slot of the stream stays, and nothing that concerned it happened since a thread
 * stored that address in @hit.
 */
static inline __attribute__((always_inline))
struct pool_stream *hit_begin(struct pool *p, bool asks, hetmem_stream handle,
			      unsigned long long *id)
{
	const struct hm_stream_key *key = hm_stream_last(&p->order, handle);
	struct pool_stream *s;

	if (hm_unlikely(!key))
		goto not_asked;
	s = (struct pool_stream *)key->stream;
	if (asks && hm_unlikely((*key->get_id)(handle, id)))
		goto not_asked;
	if (!asks)
		*id = HM_STREAM_NO_ID;
	if (hm_unlikely(!stream_trylock(s)))
		return NULL;
	if (hm_likely(s->hit == key) && (!asks || hm_likely(s->hit_id == *id)))
		return s;
	stream_unlock(s);
	return NULL;
not_asked:
	*id = HM_STREAM_NO_ID;
	return NULL;
}

/* After hit_begin(): the thread's entry for @handle if that confirmed it, or NULL. */
static const struct hm_stream_key *confirmed(struct pool *p, hetmem_stream handle, uint64_t id)
{
	const struct hm_stream_key *key = hm_stream_last(&p->order, handle);

	return key && (!key->get_id || key->id == id) ? key : NULL;
}

/* Keeps in memory what only a call that does not hit reads: saving a register costs more. */
#define KEEP_IN_MEMORY(variable)	__asm__("" : "+m" (variable))

/* Whether @b is live at @addr, on @s, with nothing special about it. */
static inline bool block_is_plain(const struct pool_stream *s, const struct block *b,
				  uint64_t addr)
{
	return block_is_at(b, addr) && __atomic_load_n(&b->kind, __ATOMIC_ACQUIRE) == s->plain;
}

/* The list @bin has no blocks. */
static void cache_clear(struct pool_stream *s, uint32_t bin)
{
	s->cache[bin] = 0;
	s->cache_map[bin / 64] &= ~(1ULL << bin % 64);
}

/*
 * The first list from @from to @last that has blocks, or 0. A hit leaves the bit of a list
 * that has no more: this clears it.
 */
static uint32_t cache_next(struct pool_stream *s, uint32_t from, uint32_t last)
{
	uint32_t word, bin;
	uint64_t bits;

	for (word = from / 64; word <= last / 64; word++) {
		bits = s->cache_map[word];
		if (word == from / 64)
			bits &= ~0ULL << from % 64;
		for (; bits; bits &= bits - 1) {
			bin = word * 64 + __builtin_ctzll(bits);
			if (bin > last)
				return 0;
			if (is_name(s->cache[bin]))
				return bin;
			cache_clear(s, bin);
		}
	}
	return 0;
}

/*
 * The list for @units, or if that is empty the next that may serve: sizes that
 * come once each would find nothing otherwise. 0: none has blocks.
 */
static uint32_t cache_fit(struct pool_stream *s, uint32_t units)
{
	uint32_t last = units * (stream_churn(s) ? CHURN_FIT : FIT), bin;

	if (!s->cache)
		return 0;
	if (is_name(s->cache[units]))
		return units;
	bin = cache_next(s, units, last < NR_BINS ? last : NR_BINS - 1);
	return bin && may_exceed(s, bin - units) ? bin : 0;
}

/* With the lock, as what follows: the last block of a list that has some. */
static inline struct block *cache_take(struct pool *p, struct pool_stream *s,
				       uint32_t bin)
{
	struct block *b = block_at(p, s->cache[bin]);

	s->cache[bin] = b->right;
	if (!is_name(b->right))
		cache_clear(s, bin);
	stream_set_cached(s, s->cached - ((uint64_t)bin << UNIT_SHIFT));
	return b;
}

/* A block for @units, or NULL. */
static struct block *cache_pop(struct pool *p, struct pool_stream *s,
			       uint32_t units)
{
	uint32_t bin = cache_fit(s, units);
	struct block *b;

	if (hm_unlikely(!bin))
		return NULL;
	b = cache_take(p, s, bin);
	s->excess += bin - units;
	if (bin != units && stream_churn(s))
		s->calm = s->frees - stream_churn(s) + 1;
	return b;
}

/* What is in excess is of the stream that it was allocated on. */
void hm_pool_return_excess(struct pool *p, struct pool_stream *s,
			   const struct block *b)
{
	uint32_t excess = block_excess(b);

	if (b->stream == s->s.index)
		s->excess -= excess;
	else if (excess && !(b->flags & BLOCK_GRAPH))
		__atomic_fetch_sub(&stream_at(p, b->stream)->returned, excess,
				   __ATOMIC_RELAXED);
}

/* First in the list of @units: a block that is freed on @s at @pos, which then has @cached. */
static inline void cache_put(struct pool_stream *s, struct block *b, uint32_t id, uint32_t units,
			     uint64_t pos, uint64_t cached, uint64_t asked)
{
	uint32_t *list = &s->cache[units];
	uint32_t next = *list;

	if (hm_unlikely(!next)) {
		s->cache_map[units / 64] |= 1ULL << units % 64;
		next = LIST_END;
	}
	__atomic_store_n(&b->pos, pos, __ATOMIC_RELAXED);
	b->right = next;
	*list = id;
	stream_set_cached(s, cached);
	stream_sub_requested(s, asked);
	stream_count_free(s);
	block_set_state(b, BLOCK_CACHED);
}

/* A BUSY block that is freed on @s. */
static void cache_push(struct pool *p, struct pool_stream *s, struct block *b)
{
	const uint64_t bytes = block_bytes(b);

	hm_pool_return_excess(p, s, b);
	__atomic_store_n(&b->stream, s->s.index, __ATOMIC_RELAXED);
	cache_put(s, b, block_id(p, b), b->units, hm_stream_next_pos(&s->s), s->cached + bytes,
		  bytes - b->slack);
}

/* What is on the list; then it is @empty: of this stream, or closed. */
static void collect_remote(struct pool *p, struct pool_stream *s,
			   uint64_t empty)
{
	uint64_t head, sum = 0;
	uint32_t id, next;

	if (__atomic_load_n(&s->returned, __ATOMIC_RELAXED))
		s->excess += __atomic_exchange_n(&s->returned, 0,
						 __ATOMIC_RELAXED);
	if (__atomic_load_n(&s->remote, __ATOMIC_RELAXED) == empty)
		return;
	head = __atomic_exchange_n(&s->remote, empty, __ATOMIC_ACQ_REL);
	for (id = head == REMOTE_CLOSED ? 0 : head; id; id = next) {
		struct block *b = block_at(p, id);

		block_prefetch(b);
		next = b->right;
		sum += REMOTE_ONE + b->units;
		cache_push(p, s, b);
	}
	__atomic_sub_fetch(&s->remote_sum, sum, __ATOMIC_RELAXED);
}

/* Their owners take blocks off the list under this lock only, and others add at its head. */
uint64_t hm_stream_remote_requested(const struct pool *p, const struct pool_stream *s,
				    uint64_t *nr)
{
	const uint64_t head = __atomic_load_n(&s->remote, __ATOMIC_ACQUIRE);
	uint64_t bytes = 0;
	uint32_t id;

	*nr = 0;
	for (id = head == REMOTE_CLOSED ? 0 : head; id; id = block_at(p, id)->right) {
		const struct block *b = block_at(p, id);

		bytes += block_bytes(b) - b->slack;
		++*nr;
	}
	return bytes;
}

void hm_stream_collect(struct pool *p, struct pool_stream *s)
{
	collect_remote(p, s, s->s.retired ? REMOTE_CLOSED : s->s.serial << 32);
}

void hm_stream_lock(struct pool *p, struct pool_stream *s)
{
	if (hm_unlikely(!p->cache_max))
		while (hm_stream_flush_piece(p, s, 0))
			;
	stream_lock(s);
	if (p->cache_max)
		hm_stream_collect(p, s);
}

void hm_pool_collect(struct pool *p)
{
	unsigned int i;

	for (i = 0; i < p->order.nr; i++) {
		struct pool_stream *s = stream_at(p, i);

		if (hm_stream_remote(s)) {
			hm_stream_lock(p, s);
			stream_unlock(s);
			p->work += REMOTE_MOST * REMOTE_WORK / 2;
		}
		hm_pool_step(p, EMPTY_WORK);
	}
}

/*
 * A remote free has no position in its stream before it is collected: until
 * then an event, or that all is complete, says nothing of it. The end has one
 * of its own: blocks that are used on the stream, but freed later or
 * elsewhere, are not covered by an event for the last free.
 */
void hm_stream_close(struct pool *p, struct pool_stream *s)
{
	stream_lock(s);
	s->hit = NULL;
	collect_remote(p, s, REMOTE_CLOSED);
	hm_stream_step(&s->s);
	stream_unlock(s);
}

void hm_stream_unhit(struct pool_stream *s)
{
	stream_lock(s);
	s->hit = NULL;
	stream_unlock(s);
}

static __attribute__((noinline))
int alloc_slow(struct pool *p, struct pool_stream *s, uint64_t epoch,
	       size_t size, size_t align, hetmem_stream stream, void **ptr)
{
	int err;

	hm_pool_listen(p);
	err = hm_pool_lock(p, stream, epoch, &s);
	if (!err) {
		err = hm_pool_alloc_slow(p, s, NULL, NULL, size, align, ptr);
		pthread_mutex_unlock(&p->lock);
	}
	return err;
}

/*
 * Gives out @b, which was in the cache of @s. Under its lock. Returns whether
 * hm_stream_end_batch() is to be called.
 */
static inline bool give(struct pool_stream *s, struct block *b, uint64_t bytes, size_t size,
			void **ptr)
{
	/* A walk reads these. */
	__atomic_store_n(&b->slack, bytes - size, __ATOMIC_RELAXED);
	__atomic_store_n(&b->pos, s->s.serial, __ATOMIC_RELAXED);
	stream_add_requested(s, size);
	*ptr = (void *)(uintptr_t)b->addr;
	block_set_state(b, BLOCK_LIVE);
	return stream_count_alloc(s);
}

/* With the lock of @s, which it releases. */
static __attribute__((noinline)) int end_batch(struct pool *p, struct pool_stream *s)
{
	hm_stream_end_batch(p, s);
	stream_unlock(s);
	hm_pool_listen(p);
	return 0;
}

/* The path of a call that does not hit. @id: that hit_begin() returned, or HM_STREAM_NO_ID. */
static __attribute__((noinline))
int alloc_any(struct pool *p, uint64_t id, size_t size, size_t align,
	      hetmem_stream stream, void **ptr)
{
	const struct hm_stream_key *key = confirmed(p, stream, id);
	struct pool_stream *s = key ? (struct pool_stream *)key->stream : NULL;
	uint64_t epoch = key ? key->epoch : pool_epoch(p);
	uint32_t units;
	struct block *b;
	int err;

	if (!s) {
		err = p->host && stream == HETMEM_STREAM_HOST ? 0 : hm_check_owner(p->res.hm);
		if (!err)
			err = hm_stream_get(&p->order, stream, (struct hm_stream **)&s);
		if (hm_unlikely(err))
			return err;
	}
	if (size > SMALL_MAX || align > UNIT ||
	    hm_unlikely(__atomic_load_n(&s->graph, __ATOMIC_RELAXED)))
		return alloc_slow(p, s, epoch, size, align, stream, ptr);
	units = units_of(size);
	if (hm_unlikely(__atomic_load_n(&s->owner, __ATOMIC_RELAXED) != &hm_stream_front))
		__atomic_store_n(&s->owner, &hm_stream_front, __ATOMIC_RELAXED);
	stream_lock(s);
	if (key && s->cache && epoch == pool_epoch(p)) {
		s->hit = key;
		s->hit_id = key->id;
	}
	b = hm_unlikely(epoch != pool_epoch(p)) ? NULL : cache_pop(p, s, units);
	/* A pool that sleeps gives out nothing that was cached. */
	if (hm_unlikely(!b) && cache_max(p) && epoch == pool_epoch(p)) {
		hm_stream_collect(p, s);
		b = cache_pop(p, s, units);
	}
	if (hm_unlikely(!b)) {
		stream_unlock(s);
		return alloc_slow(p, s, epoch, size, align, stream, ptr);
	}
	if (hm_unlikely(give(s, b, block_bytes(b), size, ptr)))
		return end_batch(p, s);
	stream_unlock(s);
	return 0;
}

static inline __attribute__((always_inline))
int alloc_hit(struct pool *p, bool asks, size_t size, size_t align, hetmem_stream stream,
	      void **ptr)
{
	struct pool *pool = p;
	hetmem_stream kept = stream;
	unsigned long long id;
	struct pool_stream *s;
	struct block *b;
	uint64_t bytes;
	uint32_t *list;

	if (hm_unlikely(size > SMALL_MAX) || hm_unlikely(align > UNIT))
		return alloc_any(p, HM_STREAM_NO_ID, size, align, stream, ptr);
	KEEP_IN_MEMORY(pool);
	KEEP_IN_MEMORY(kept);
	KEEP_IN_MEMORY(ptr);
	s = hit_begin(p, asks, stream, &id);
	if (hm_unlikely(!s))
		return alloc_any(pool, id, size, UNIT, kept, ptr);
	list = &s->cache[units_of(size)];
	if (hm_unlikely(!is_name(*list))) {
		stream_unlock(s);
		return alloc_any(pool, id, size, UNIT, kept, ptr);
	}
	bytes = units_of(size) << UNIT_SHIFT;
	b = s->blocks + *list;
	*list = b->right;
	stream_count(&s->cached, -bytes);
	if (hm_unlikely(give(s, b, bytes, size, ptr)))
		return end_batch(pool, s);
	stream_unlock(s);
	return 0;
}

int hm_pool_alloc(struct hetmem_resource *res, size_t size, size_t align,
		  hetmem_stream stream, void **ptr)
{
	return alloc_hit(to_pool(res), true, size, align, stream, ptr);
}

int hm_pool_alloc_retired(struct hetmem_resource *res, size_t size, size_t align,
			  hetmem_stream stream, void **ptr)
{
	return alloc_hit(to_pool(res), false, size, align, stream, ptr);
}

int hm_pool_alloc_told(struct hetmem_resource *res, size_t size, size_t align,
		       hetmem_stream stream, void **ptr)
{
	int err = alloc_any(to_pool(res), HM_STREAM_NO_ID, size, align, stream, ptr);

	if (!err)
		hm_pool_tell_alloc(to_pool(res), *ptr, size, stream);
	return err;
}

/*
 * LIVE to BUSY. Two threads that free one block at the same time are told
 * apart in check mode only: an atomic exchange is a third of what a free costs.
 */
static bool block_to_busy(const struct pool *p, struct block *b)
{
	uint8_t state = BLOCK_LIVE;

	if (hm_unlikely(p->opt.check))
		return __atomic_compare_exchange_n(&b->state, &state,
				BLOCK_BUSY, false, __ATOMIC_ACQ_REL,
				__ATOMIC_RELAXED);
	if (hm_unlikely(block_state(b) != BLOCK_LIVE))
		return false;
	block_set_state(b, BLOCK_BUSY);
	return true;
}

/*
 * A reader of the hash may be led astray, to nothing or to what has been the
 * block; whoever looks under the lock is not.
 */
static __attribute__((noinline))
struct block *find_locked(struct pool *p, void *ptr)
{
	struct block *b;

	pthread_mutex_lock(&p->lock);
	b = hm_block_find_locked(p, (uintptr_t)ptr);
	pthread_mutex_unlock(&p->lock);
	if (b && block_to_busy(p, b))
		return b;
	hm_error(-EINVAL, b ? "free: %p was freed already" :
		 "free: %p is not the beginning of a live block", ptr);
	return NULL;
}

/*
 * A live block that is the caller's now, or NULL and why. *@size: in: that it
 * must have, or 0; out: that it has.
 */
static struct block *claim_live(struct pool *p, void *ptr, size_t *size)
{
	struct block *b = hm_block_find(p, (uintptr_t)ptr);
	uint64_t asked;

	if (hm_unlikely(!b || !block_to_busy(p, b))) {
		b = find_locked(p, ptr);
		if (!b)
			return NULL;
	}
	asked = block_bytes(b) - b->slack;
	if (hm_unlikely(*size && *size != asked)) {
		block_set_state(b, BLOCK_LIVE);
		hm_error(-EINVAL, "free: %p has %llu bytes, not %zu", ptr,
			 (unsigned long long)asked, *size);
		return NULL;
	}
	*size = hm_unlikely(b->flags & BLOCK_WHOLE) ? block_asked(p, b) : asked;
	return b;
}

/*
 * To the owner of @s; false: that is the caller, or there is too much, or @s
 * may be retired.
 */
static bool cache_push_remote(struct pool *p, struct pool_stream *s,
			      uint64_t epoch, struct block *b)
{
	const uint64_t one = REMOTE_ONE + b->units;
	uint32_t id = block_id(p, b);
	uint64_t head, serial, sum;

	if (__atomic_load_n(&s->owner, __ATOMIC_RELAXED) == &hm_stream_front ||
	    !__atomic_load_n(&s->cache, __ATOMIC_RELAXED))
		return false;
	/* First what writes the line, which others write, too. */
	sum = __atomic_add_fetch(&s->remote_sum, one, __ATOMIC_RELAXED);
	if (sum >= (REMOTE_MOST + 1) * REMOTE_ONE ||
	    (sum & (REMOTE_ONE - 1)) << UNIT_SHIFT > cache_max(p) / REMOTE_SHARE)
		goto not;
	head = __atomic_load_n(&s->remote, __ATOMIC_ACQUIRE);
	serial = head >> 32;
	if (hm_unlikely(head == REMOTE_CLOSED || epoch != pool_epoch(p)))
		goto not;
	do {
		if (hm_unlikely(head >> 32 != serial))
			goto not;
		b->right = head;
	} while (!__atomic_compare_exchange_n(&s->remote, &head,
					      serial << 32 | id, true,
					      __ATOMIC_RELEASE,
					      __ATOMIC_RELAXED));
	return true;
not:
	__atomic_sub_fetch(&s->remote_sum, one, __ATOMIC_RELAXED);
	return false;
}

/* For work of its own: what its last holder did does not count. */
static void pool_wait_lock(struct pool *p)
{
	hm_order_wait_lock(&p->order);
	p->work = 0;
}

static bool cache_push_own(struct pool *p, struct pool_stream *s,
			   uint64_t epoch, struct block *b)
{
	bool pushed = false;

	stream_lock(s);
	if (s->cache && epoch == pool_epoch(p) && !s->s.retired) {
		pushed = s->cached + block_bytes(b) <= cache_max(p);
		if (pushed)
			cache_push(p, s, b);
		else
			stream_set_overflows(s, s->overflows + 1);
	}
	stream_unlock(s);
	return pushed;
}

/*
 * Not on the cached path: there is no cache yet, or it is full. Half of it goes only
 * when it was full for some time: what is in it serves sizes like those that come, and
 * each block of it that goes is a miss. Returns whether there is room now.
 */
static bool cache_make(struct pool *p, struct pool_stream *s)
{
	uint32_t *cache;

	if (!cache_max(p) ||
	    (__atomic_load_n(&s->cache, __ATOMIC_RELAXED) &&
	     __atomic_load_n(&s->overflows, __ATOMIC_RELAXED) < OVERFLOWS))
		return false;
	pool_wait_lock(p);
	if (s->cache) {
		hm_stream_flush_piece(p, s, hm_stream_cached(s) / 2);
		stream_lock(s);
		stream_set_overflows(s, 0);
		stream_unlock(s);
	} else {
		/* In cache lines of its own. */
		cache = aligned_alloc(64, CACHE_BYTES);
		if (cache)
			memset(cache, 0, CACHE_BYTES);
		s->blocks = p->blocks.base;
		s->plain = BLOCK_KIND(s->s.index, BLOCK_LIVE);
		stream_lock(s);
		__atomic_store_n(&s->cache, cache, __ATOMIC_RELEASE);
		stream_unlock(s);
	}
	pthread_mutex_unlock(&p->lock);
	return true;
}

/* Also where the stream is not what it was; if that has gone, nothing is done. */
static __attribute__((noinline))
int free_slow(struct pool *p, struct pool_stream *s, uint64_t epoch,
	      hetmem_stream stream, struct block *b)
{
	int err = 0;

	if (s)
		err = hm_pool_lock(p, stream, epoch, &s);
	else
		pool_wait_lock(p);
	if (err) {
		block_set_state(b, BLOCK_LIVE);
		return err;
	}
	hm_pool_free_slow(p, s, NULL, b);
	pthread_mutex_unlock(&p->lock);
	hm_pool_listen(p);
	return 0;
}

/* The path of a call that does not hit. @id is as in alloc_any(). */
static __attribute__((noinline))
int free_any(struct pool *p, uint64_t id, void *ptr, size_t *size,
	     hetmem_stream stream)
{
	const struct hm_stream_key *key = confirmed(p, stream, id);
	struct pool_stream *s = key ? (struct pool_stream *)key->stream : NULL;
	uint64_t epoch = key ? key->epoch : pool_epoch(p);
	struct block *b;
	int err = 0;

	if (!s)
		err = p->host && stream == HETMEM_STREAM_HOST ? 0 : hm_check_owner(p->res.hm);
	if (!err && hm_unlikely(__atomic_load_n(&p->tagged, __ATOMIC_RELAXED))) {
		struct hetmem_resource *owner = p->tags->ops->owner(p->tags, ptr);

		if (owner != &p->res)
			return owner->ops->free(owner, ptr, size, stream);
	}
	/* A private pool's block: nobody asks who the stream is. */
	if (!err && hm_unlikely(__atomic_load_n(&p->nr_privates,
						__ATOMIC_RELAXED))) {
		err = hm_private_free(p, ptr, size, stream);
		if (err != -ENOENT)
			return err;
		err = 0;
	}
	if (!err && !s && stream != HETMEM_STREAM_UNKNOWN)
		err = hm_stream_get(&p->order, stream,
				    (struct hm_stream **)&s);
	if (hm_unlikely(err))
		return err;
	b = claim_live(p, ptr, size);
	if (hm_unlikely(!b))
		return -EINVAL;
	if (hm_unlikely(p->res.hm->check) && !(b->flags & BLOCK_GRAPH))
		hm_pool_tell_free(p, b, stream);
	if (!s || b->units >= NR_BINS ||
	    __atomic_load_n(&b->flags, __ATOMIC_RELAXED) & ~BLOCK_ZONE ||
	    __atomic_load_n(&s->graph, __ATOMIC_RELAXED))
		return free_slow(p, s, epoch, stream, b);
	if (cache_push_remote(p, s, epoch, b) || cache_push_own(p, s, epoch, b))
		return 0;
	if (epoch == pool_epoch(p) && cache_make(p, s) &&
	    cache_push_own(p, s, epoch, b))
		return 0;
	return free_slow(p, s, epoch, stream, b);
}

int hm_pool_free_any(struct hetmem_resource *res, void *ptr, size_t *size, hetmem_stream stream)
{
	return free_any(to_pool(res), HM_STREAM_NO_ID, ptr, size, stream);
}

/*
 * False: nothing was done. *@size: the bytes that were requested, or 0; *@asked: these bytes.
 * *@id: for free_any(). The lock tells apart two threads that free one block.
 */
static inline __attribute__((always_inline))
bool free_hit(struct pool *p, bool asks, void *ptr, const size_t *size, hetmem_stream stream,
	      unsigned long long *id, size_t *asked)
{
	uint64_t cached, units;
	struct pool_stream *s;
	struct block *b;
	uint32_t name;

	/* The driver is not asked for the stream of a private pool's or a tagged block. */
	if (hm_unlikely(__atomic_load_n(&p->asks_owner, __ATOMIC_RELAXED))) {
		*id = HM_STREAM_NO_ID;
		return false;
	}
	s = hit_begin(p, asks, stream, id);
	if (hm_unlikely(!s))
		return false;
	name = hm_hash_name(p, (uintptr_t)ptr);
	b = s->blocks + name;
	units = b->units;
	/* A block of the first zone may have grown. */
	if (hm_unlikely(!block_is_plain(s, b, (uintptr_t)ptr)) ||
	    hm_unlikely(units >= NR_BINS) || hm_unlikely(b->slack >= UNIT))
		goto not;
	*asked = (units << UNIT_SHIFT) - b->slack;
	cached = s->cached + (units << UNIT_SHIFT);
	if (hm_unlikely(cached > cache_max(p)))
		goto not;
	if (hm_unlikely(*size != *asked) && hm_likely(*size))
		goto not;
	cache_put(s, b, name, units, hm_stream_step(&s->s), cached, *asked);
	stream_unlock(s);
	return true;
not:
	stream_unlock(s);
	return false;
}

static __attribute__((noinline))
int put_any(struct pool *p, uint64_t id, void *ptr, size_t size, hetmem_stream stream)
{
	size_t asked = size;
	int err = free_any(p, id, ptr, &asked, stream);

	return err == -EINVAL ? hm_alias_free(&p->res, ptr, size, stream) : err;
}

static inline __attribute__((always_inline))
int put_hit(struct pool *p, bool asks, void *ptr, size_t size, hetmem_stream stream)
{
	hetmem_stream kept = stream;
	unsigned long long id;
	size_t asked;

	KEEP_IN_MEMORY(kept);
	KEEP_IN_MEMORY(size);
	if (hm_likely(free_hit(p, asks, ptr, &size, stream, &id, &asked)))
		return 0;
	return put_any(p, id, ptr, size, kept);
}

int hm_pool_put(struct hetmem_resource *res, void *ptr, size_t size, hetmem_stream stream)
{
	return put_hit(to_pool(res), true, ptr, size, stream);
}

int hm_pool_put_retired(struct hetmem_resource *res, void *ptr, size_t size,
			hetmem_stream stream)
{
	return put_hit(to_pool(res), false, ptr, size, stream);
}

static inline __attribute__((always_inline))
int sized_hit(struct pool *p, bool asks, void *ptr, size_t *size, hetmem_stream stream)
{
	unsigned long long id;
	size_t asked;

	if (hm_unlikely(!free_hit(p, asks, ptr, size, stream, &id, &asked)))
		return free_any(p, id, ptr, size, stream);
	*size = asked;
	return 0;
}

int hm_pool_free(struct hetmem_resource *res, void *ptr, size_t *size, hetmem_stream stream)
{
	return sized_hit(to_pool(res), true, ptr, size, stream);
}

int hm_pool_free_retired(struct hetmem_resource *res, void *ptr, size_t *size,
			 hetmem_stream stream)
{
	return sized_hit(to_pool(res), false, ptr, size, stream);
}

/*
 * Up to PIECE blocks of the cache, which @s has no more, while it has more than
 * @keep bytes; large ones first. *@more: there are others.
 */
static uint32_t cache_detach(struct pool *p, struct pool_stream *s,
			     uint64_t keep, bool *more)
{
	unsigned int i, bin, nr = 0;
	uint32_t list = 0;

	stream_lock(s);
	hm_stream_collect(p, s);
	for (i = MAP_WORDS; i-- && s->cached > keep && nr < PIECE;) {
		while (s->cache_map[i] && s->cached > keep && nr < PIECE) {
			struct block *b;

			bin = i * 64 + 63 - __builtin_clzll(s->cache_map[i]);
			if (!is_name(s->cache[bin])) {
				cache_clear(s, bin);
				continue;
			}
			b = cache_take(p, s, bin);
			b->right = list;
			list = block_id(p, b);
			nr++;
		}
	}
	*more = s->cached > keep;
	stream_unlock(s);
	return list;
}

/* A stream that allocated nothing during so many cuts is idle. */
#define IDLE_CUTS	64

uint64_t hm_stream_budget(struct pool *p, struct pool_stream *s)
{
	const void *owner = __atomic_load_n(&s->owner, __ATOMIC_RELAXED);
	const uint64_t allocs = stream_allocs(s);
	int64_t high;

	if (allocs != s->cut_allocs) {
		s->cut_allocs = allocs;
		s->cut_at = p->cuts;
	}
	if (!owner || owner == &hm_stream_front || p->cuts - s->cut_at >= IDLE_CUTS)
		return 0;
	high = __atomic_load_n(&s->high, __ATOMIC_RELAXED);
	return high > (int64_t)SMALL_KEPT ? (uint64_t)high : SMALL_KEPT;
}

struct block *hm_stream_uncache(struct pool *p, struct pool_stream *s,
				uint32_t units, uint32_t last, uint64_t known)
{
	struct block *b = NULL;
	uint32_t bin;

	stream_lock(s);
	bin = s->cache ? cache_next(s, units, last) : 0;
	if (bin && block_at(p, s->cache[bin])->pos <= known)
		b = cache_take(p, s, bin);
	stream_unlock(s);
	if (b) {
		hm_hash_remove(p, b);
		block_set_state(b, BLOCK_BUSY);
	}
	return b;
}

bool hm_stream_flush_piece(struct pool *p, struct pool_stream *s, uint64_t keep)
{
	unsigned int nr = 0;
	uint64_t bytes = 0;
	uint32_t id, next;
	bool more;

	for (id = cache_detach(p, s, keep, &more); id; id = next) {
		struct block *b = block_at(p, id);

		next = b->right;
		bytes += block_bytes(b);
		hm_hash_remove(p, b);
		block_set_state(b, BLOCK_BUSY);
		hm_block_release(p, b);
		nr++;
	}
	if (nr)
		hm_pool_record(p, s, nr, bytes);
	p->work += 256 + nr * MOVE_WORK;
	return more;
}

void hm_stream_flush(struct pool *p, struct pool_stream *s, uint64_t keep)
{
	while (hm_stream_flush_piece(p, s, keep))
		hm_pool_pause(p);
}

void hm_pool_flush(struct pool *p)
{
	unsigned int i, nr = __atomic_load_n(&p->order.nr, __ATOMIC_ACQUIRE);

	for (i = 0; i < nr; i++) {
		struct pool_stream *s = stream_at(p, i);

		/* For a sleep the stream's lock tells whether there is more. */
		if (hm_stream_cached(s) || !p->cache_max)
			hm_stream_flush(p, s, 0);
		hm_pool_step(p, EMPTY_WORK);
	}
}

void hm_pool_pause(struct pool *p)
{
	/* Most threads that wait are counted. */
	const bool yields = ++p->pauses % YIELDS == 0 ||
		__atomic_load_n(&p->order.waiting, __ATOMIC_RELAXED);

	pthread_mutex_unlock(&p->lock);
	if (yields)
		sched_yield();
	pthread_mutex_lock(&p->lock);
	p->work = 0;
}

void hm_pool_step(struct pool *p, unsigned int work)
{
	p->work += work;
	if (p->work >= WORK)
		hm_pool_pause(p);
}
