// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The pool's metadata: tables of descriptors, whose names are indices, and the
 * hash that finds a block by its address.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "platform/platform.h"
#include "pool/hash.h"
#include "pool/source.h"

/* Tables of descriptors. Those of blocks never go away, see the hash below. */

#define MAX_BLOCKS	(1U << 24)
#define BATCH		64
#define HOMES_BYTES	(MAX_BLOCKS / BATCH * sizeof(uint16_t))

/* Of the addresses that a RLIMIT_AS leaves, a table takes this part at most. */
#define TABLE_SHARE	256
#define TABLE_LEAST	(1U << 16)

/* The number of descriptors of @size bytes, up to @max, that there are addresses for. */
static uint32_t fit_addresses(uint32_t size, uint32_t max)
{
	struct rlimit limit;
	uint64_t used, fit;

	if (getrlimit(RLIMIT_AS, &limit) || limit.rlim_cur == RLIM_INFINITY)
		return max;
	used = hm_addresses_used();
	fit = used < limit.rlim_cur ? (limit.rlim_cur - used) / TABLE_SHARE / size : 0;
	if (fit < TABLE_LEAST)
		fit = TABLE_LEAST;
	return fit < max ? fit : max;
}

int hm_table_init(struct table *t, uint32_t size, uint32_t link, uint32_t most)
{
	const uint32_t max = fit_addresses(size, most);
	void *p = mmap(NULL, (size_t)size * max, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		return hm_error(-ENOMEM, "pool: no addresses for metadata: raise RLIMIT_AS, or give pools fewer by reserve=");
	*t = (struct table){
		.base = p, .size = size, .link = link, .max = max, .nr = 1,
	};
	return 0;
}

void hm_table_free(struct table *t)
{
	if (t->base)
		munmap(t->base, (size_t)t->size * t->max);
	t->base = NULL;
}

static uint32_t *link_of(const struct table *t, uint32_t id)
{
	return (uint32_t *)((char *)t->base + (size_t)id * t->size + t->link);
}

uint32_t hm_table_get(struct table *t)
{
	uint32_t id = t->free;

	if (id) {
		t->free = *link_of(t, id);
		*link_of(t, id) = 0;
		return id;
	}
	return t->nr < t->max ? t->nr++ : 0;
}

void hm_table_put(struct table *t, uint32_t id)
{
	*link_of(t, id) = t->free;
	t->free = id;
}

/*
 * Descriptors of one batch are for one stream: two threads that allocate on
 * streams of their own do not write to the same cache line. A descriptor's
 * home does not change, so that there are never more than are in use at most.
 */
int hm_names_init(struct pool *p)
{
	void *homes;
	int err;

	err = hm_table_init(&p->blocks, sizeof(struct block),
			    offsetof(struct block, left), MAX_BLOCKS);
	if (err)
		return err;
	homes = mmap(NULL, HOMES_BYTES, PROT_READ | PROT_WRITE,
		     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (homes == MAP_FAILED)
		return hm_error(-ENOMEM, "pool: no addresses for metadata: raise RLIMIT_AS, or give pools fewer by reserve=");
	p->homes = homes;
	/* The first is none, nor is what is in a batch with it. */
	p->blocks.nr = BATCH;
	return 0;
}

void hm_names_free(struct pool *p)
{
	if (p->homes)
		munmap(p->homes, HOMES_BYTES);
	p->homes = NULL;
	hm_table_free(&p->blocks);
}

unsigned int hm_name_home(const struct pool *p, uint32_t id)
{
	return p->homes[id / BATCH];
}

static uint32_t take_name(struct pool *p, struct pool_stream *s)
{
	uint32_t id = s->ids;

	if (id) {
		s->ids = *link_of(&p->blocks, id);
		*link_of(&p->blocks, id) = 0;
		return id;
	}
	return s->fresh < s->fresh_end ? s->fresh++ : 0;
}

uint32_t hm_name_get(struct pool *p, unsigned int home)
{
	struct pool_stream *s = stream_at(p, home);
	uint32_t id = take_name(p, s);
	unsigned int i;

	if (id)
		return id;
	if (p->blocks.max - p->blocks.nr >= BATCH) {
		p->homes[p->blocks.nr / BATCH] = home;
		s->fresh = p->blocks.nr;
		p->blocks.nr += BATCH;
		s->fresh_end = p->blocks.nr;
		return s->fresh++;
	}
	for (i = 0; i < p->order.nr && !id; i++)
		id = take_name(p, stream_at(p, i));
	return id;
}

void hm_name_put(struct pool *p, uint32_t id)
{
	struct pool_stream *s = stream_at(p, hm_name_home(p, id));

	*link_of(&p->blocks, id) = s->ids;
	s->ids = id;
}

uint64_t hm_pool_metadata(const struct pool *p)
{
	uint64_t bytes = sizeof(*p) + (uint64_t)p->blocks.nr * p->blocks.size +
		p->blocks.nr / BATCH * sizeof(*p->homes) +
		(uint64_t)p->uses.nr * p->uses.size;
	const struct hash *h;
	unsigned int i, zone;

	/* Of those that were outgrown the edges are left. */
	for (h = p->hash; h; h = h->old)
		bytes += sizeof(*h) + (h == p->hash ?
				       sizeof(uint32_t) << h->bits : 4096);
	bytes += HM_MAX_STREAMS * sizeof(void *) + (2 << HM_STREAM_HASH) * sizeof(uint16_t);
	for (i = 0; i < p->order.nr; i++) {
		const struct pool_stream *s = stream_at(p, i);

		bytes += sizeof(*s) + s->s.room * (sizeof(struct hm_point) +
						   sizeof(CUevent));
		bytes += s->s.nr_waited * sizeof(uint64_t);
		if (s->cache)
			bytes += NR_BINS * sizeof(uint32_t);
		for (zone = 0; zone < NR_ZONES; zone++)
			if (s->arenas[zone].bins)
				bytes += NR_BINS * sizeof(uint32_t);
	}
	return bytes + p->source->metadata(p);
}

/*
 * The hash. Heads are in buckets of four, with some bits of the address beside
 * each name: a descriptor that is not the right one is hardly ever looked at,
 * since another thread may write to it all the time. The last head of a bucket
 * has a chain. At most half of the heads are in use.
 *
 * It is read without a lock. Descriptors never go away and keep their chain
 * when they leave it, so that a reader always reads a descriptor. A lockless
 * lookup can miss the block or return a stale descriptor, within a bounded
 * number of steps; it never returns a block at another address. Look again
 * under pool->lock.
 */

#define FIRST_BITS	10
#define MAX_STEPS	64
static size_t hash_bytes(unsigned int bits)
{
	return sizeof(struct hash) + (sizeof(uint32_t) << bits);
}

/* The kernel makes its pages, of zeroes, when they are first used. */
static struct hash *hash_new(unsigned int bits, struct hash *old)
{
	struct hash *h = mmap(NULL, hash_bytes(bits), PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (h == MAP_FAILED)
		return NULL;
	h->bits = bits;
	h->shift = 64 - bits;
	h->old = old;
	return h;
}

int hm_hash_init(struct pool *p)
{
	p->hash = hash_new(FIRST_BITS, NULL);
	return p->hash ? 0 : hm_error(-ENOMEM, "pool: no host memory");
}

void hm_hash_free(struct pool *p)
{
	struct hash *h, *old;

	for (h = p->hash; h; h = old) {
		old = h->old;
		munmap(h, hash_bytes(h->bits));
	}
	p->hash = NULL;
}

static void hash_set_head(uint32_t *head, uint32_t value)
{
	__atomic_store_n(head, value, __ATOMIC_RELEASE);
}

static void hash_push(struct pool *p, struct hash *h, struct block *b)
{
	uint64_t hash = hash_of(b->addr);
	uint32_t *head = &h->heads[hash_bucket(h, hash)];
	unsigned int i;

	for (i = 0; i < BUCKET - 1 && *head; i++)
		head++;
	__atomic_store_n(&b->chain, *head & NAME_MASK, __ATOMIC_RELAXED);
	hash_set_head(head, block_id(p, b) | hash_mark(hash));
}

/*
 * Whoever still reads what was outgrown finds nothing there, and looks again
 * under the lock; its addresses stay, its memory need not.
 */
static void hash_outgrow(struct hash *h)
{
	const uintptr_t page = sysconf(_SC_PAGESIZE);
	uintptr_t from = ((uintptr_t)h->heads + page - 1) & ~(page - 1);
	uintptr_t to = (uintptr_t)(h->heads + (1UL << h->bits)) & ~(page - 1);

	if (from < to)
		madvise((void *)from, to - from, MADV_DONTNEED);
}

/* Heads of the outgrown hash that move for each block that is added. */
#define MOVED		(8 * BUCKET)

/* Whether the block that was in @head of the outgrown hash may be there still. */
static bool hash_is_old(const struct hash *h, uint32_t head)
{
	return h->old && head >= __atomic_load_n(&h->moved, __ATOMIC_ACQUIRE) &&
	       !(head >> h->old->bits);
}

/* Some of what is left in the outgrown hash, so that no call moves all of it. */
static void hash_move(struct pool *p, struct hash *h)
{
	struct hash *old = h->old;
	uint32_t end = h->moved + MOVED, i, id, next;

	if (!old || h->moved >> old->bits)
		return;
	for (i = h->moved; i < end; i++) {
		for (id = old->heads[i] & NAME_MASK; id; id = next) {
			next = block_at(p, id)->chain;
			hash_push(p, h, block_at(p, id));
		}
		hash_set_head(&old->heads[i], 0);
	}
	__atomic_store_n(&h->moved, end, __ATOMIC_RELEASE);
	if (end >> old->bits)
		hash_outgrow(old);
}

/* Without memory the chains get longer, which is slow and not wrong. */
static void hash_grow(struct pool *p)
{
	struct hash *h;

	/* There are more adds between two of these than the move takes. */
	if (p->hash->old && !(p->hash->moved >> p->hash->old->bits))
		return;
	h = hash_new(p->hash->bits + 1, p->hash);
	if (h)
		__atomic_store_n(&p->hash, h, __ATOMIC_RELEASE);
}

void hm_hash_add(struct pool *p, struct block *b)
{
	if (p->hash_nr << 1 >> p->hash->bits)
		hash_grow(p);
	hash_move(p, p->hash);
	hash_push(p, p->hash, b);
	p->hash_nr++;
}

/* False: @b is not in @h. */
static bool hash_pull(struct pool *p, struct hash *h, const struct block *b)
{
	uint32_t *head = &h->heads[hash_bucket(h, hash_of(b->addr))];
	uint32_t id = block_id(p, b), *link;
	unsigned int i;

	for (i = 0; i < BUCKET - 1; i++, head++) {
		if ((*head & NAME_MASK) == id) {
			hash_set_head(head, 0);
			return true;
		}
	}
	if ((*head & NAME_MASK) == id) {
		id = b->chain;
		hash_set_head(head, id ? id | hash_mark(hash_of(
				     block_at(p, id)->addr)) : 0);
		return true;
	}
	if (!(*head & NAME_MASK))
		return false;
	link = &block_at(p, *head & NAME_MASK)->chain;
	while (*link && *link != id)
		link = &block_at(p, *link)->chain;
	if (!*link)
		return false;
	__atomic_store_n(link, b->chain, __ATOMIC_RELEASE);
	return true;
}

void hm_hash_remove(struct pool *p, struct block *b)
{
	struct hash *h = p->hash;

	p->hash_nr--;
	if (h->old && hash_is_old(h, hash_bucket(h->old, hash_of(b->addr))) &&
	    hash_pull(p, h->old, b))
		return;
	hash_pull(p, h, b);
}

/* Behind the last head of a bucket. */
static __attribute__((noinline))
struct block *hash_find_chained(const struct pool *p, uint32_t id,
				uint64_t addr)
{
	unsigned int steps;

	for (steps = 0; id && steps < MAX_STEPS; steps++) {
		struct block *b = block_at(p, id);

		if (block_is_at(b, addr))
			return b;
		id = __atomic_load_n(&b->chain, __ATOMIC_ACQUIRE);
	}
	return NULL;
}

static inline struct block *hash_find(const struct pool *p,
				      const struct hash *h, uint64_t addr)
{
	uint64_t hash = hash_of(addr);
	const uint32_t *heads = &h->heads[hash_bucket(h, hash)];
	uint32_t mark = hash_mark(hash), head = 0;
	unsigned int i;

	for (i = 0; i < BUCKET; i++) {
		head = __atomic_load_n(&heads[i], __ATOMIC_ACQUIRE);
		if (head && (head & ~NAME_MASK) == mark) {
			struct block *b = block_at(p, head & NAME_MASK);

			/* It will be written to, if it is the one. */
			block_prefetch(b);
			if (block_is_at(b, addr))
				return b;
		}
	}
	return hm_unlikely(head) ? hash_find_chained(p, head & NAME_MASK,
						     addr) :
		NULL;
}

/* In what is left of the outgrown hash. */
static __attribute__((noinline))
struct block *hash_find_old(const struct pool *p, const struct hash *h,
			    uint64_t addr)
{
	if (!h->old || !hash_is_old(h, hash_bucket(h->old, hash_of(addr))))
		return NULL;
	return hash_find(p, h->old, addr);
}

struct block *hm_block_find(const struct pool *p, uint64_t addr)
{
	const struct hash *h = __atomic_load_n(&p->hash, __ATOMIC_ACQUIRE);
	struct block *b = hash_find(p, h, addr);

	return b ? b : hash_find_old(p, h, addr);
}

static struct block *hash_find_locked(const struct pool *p,
				      const struct hash *h, uint64_t addr)
{
	const uint32_t *heads = &h->heads[hash_bucket(h, hash_of(addr))];
	uint32_t id = 0;
	unsigned int i;

	for (i = 0; i < BUCKET; i++) {
		id = heads[i] & NAME_MASK;
		if (id && block_at(p, id)->addr == addr)
			return block_at(p, id);
	}
	while (id && block_at(p, id)->addr != addr)
		id = block_at(p, id)->chain;
	return id ? block_at(p, id) : NULL;
}

struct block *hm_block_find_locked(const struct pool *p, uint64_t addr)
{
	const struct hash *h = p->hash;
	struct block *b = hash_find_locked(p, h, addr);

	if (!b && h->old && hash_is_old(h, hash_bucket(h->old, hash_of(addr))))
		b = hash_find_locked(p, h->old, addr);
	return b;
}

struct block *hm_block_find_live(const struct pool *p, uint64_t addr)
{
	struct block *b = hm_block_find_locked(p, addr);

	return b && block_state(b) == BLOCK_LIVE ? b : NULL;
}
