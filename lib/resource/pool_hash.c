// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The hash that finds a block by its address.
 *
 * Heads are in buckets of four, with some bits of the address beside each
 * name: a descriptor that is not the right one is hardly ever looked at, for
 * it may be another thread's, who writes to it all the time. Of the last head
 * in a bucket there is a chain. At most half of the heads are in use.
 *
 * It is read without a lock. Descriptors never go away and keep their chain
 * when they leave it, so that a reader always reads a descriptor; it may be
 * led astray, which ends after some steps with nothing found or with what has
 * been a block, and is never led to one that is not at the address it asked
 * for.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "resource/pool_impl.h"

#define FIRST_BITS	10
#define MAX_STEPS	64
#define BUCKET		4
/* A head: a descriptor's name, and above it bits of the hash. */
#define NAME_BITS	24
#define NAME_MASK	((1U << NAME_BITS) - 1)

static uint64_t hash_of(uint64_t addr)
{
	return (addr >> UNIT_SHIFT) * 0x9e3779b97f4a7c15ULL;
}

static uint32_t bucket_of(const struct hash *h, uint64_t hash)
{
	return (hash >> (64 - h->bits)) & ~(uint32_t)(BUCKET - 1);
}

/* Other bits than those that tell the bucket. */
static uint32_t mark_of(uint64_t hash)
{
	return hash >> 8 & ~NAME_MASK;
}

static struct hash *new_hash(unsigned int bits, struct hash *old)
{
	size_t bytes = sizeof(struct hash) + (sizeof(uint32_t) << bits);
	struct hash *h = aligned_alloc(64, bytes);

	if (h) {
		memset(h, 0, bytes);
		h->bits = bits;
		h->old = old;
	}
	return h;
}

int hm_hash_init(struct pool *p)
{
	p->hash = new_hash(FIRST_BITS, NULL);
	return p->hash ? 0 : hm_error(-ENOMEM, "pool: no host memory");
}

void hm_hash_free(struct pool *p)
{
	struct hash *h, *old;

	for (h = p->hash; h; h = old) {
		old = h->old;
		free(h);
	}
	p->hash = NULL;
}

static void set_head(uint32_t *head, uint32_t value)
{
	__atomic_store_n(head, value, __ATOMIC_RELEASE);
}

static void push(struct pool *p, struct hash *h, struct block *b)
{
	uint64_t hash = hash_of(b->addr);
	uint32_t *head = &h->heads[bucket_of(h, hash)];
	unsigned int i;

	for (i = 0; i < BUCKET - 1 && *head; i++)
		head++;
	__atomic_store_n(&b->chain, *head & NAME_MASK, __ATOMIC_RELAXED);
	set_head(head, block_id(p, b) | mark_of(hash));
}

/*
 * Whoever still reads what was outgrown finds nothing there, and looks again
 * under the lock; its addresses stay, its memory need not.
 */
static void outgrow(struct hash *h)
{
	const uintptr_t page = sysconf(_SC_PAGESIZE);
	uintptr_t from = ((uintptr_t)h->heads + page - 1) & ~(page - 1);
	uintptr_t to = (uintptr_t)(h->heads + (1UL << h->bits)) & ~(page - 1);

	if (from < to)
		madvise((void *)from, to - from, MADV_DONTNEED);
}

/* Without memory the chains get longer, which is slow and not wrong. */
static void grow(struct pool *p)
{
	struct hash *old = p->hash, *h = new_hash(old->bits + 1, old);
	uint32_t i, id, next;

	if (!h)
		return;
	for (i = 0; i < 1U << old->bits; i++) {
		for (id = old->heads[i] & NAME_MASK; id; id = next) {
			next = block_at(p, id)->chain;
			push(p, h, block_at(p, id));
		}
	}
	__atomic_store_n(&p->hash, h, __ATOMIC_RELEASE);
	outgrow(old);
}

void hm_hash_add(struct pool *p, struct block *b)
{
	if (p->hash_nr << 1 >> p->hash->bits)
		grow(p);
	push(p, p->hash, b);
	p->hash_nr++;
}

void hm_hash_remove(struct pool *p, struct block *b)
{
	uint32_t *head = &p->hash->heads[bucket_of(p->hash, hash_of(b->addr))];
	uint32_t id = block_id(p, b), *link;
	unsigned int i;

	p->hash_nr--;
	for (i = 0; i < BUCKET - 1; i++, head++) {
		if ((*head & NAME_MASK) == id) {
			set_head(head, 0);
			return;
		}
	}
	if ((*head & NAME_MASK) == id) {
		id = b->chain;
		set_head(head, id ? id | mark_of(hash_of(
				block_at(p, id)->addr)) : 0);
		return;
	}
	link = &block_at(p, *head & NAME_MASK)->chain;
	while (*link != id)
		link = &block_at(p, *link)->chain;
	__atomic_store_n(link, b->chain, __ATOMIC_RELEASE);
}

static bool is_at(const struct block *b, uint64_t addr)
{
	return __atomic_load_n(&b->addr, __ATOMIC_RELAXED) == addr;
}

/* Behind the last head of a bucket. */
static __attribute__((noinline))
struct block *find_chained(const struct pool *p, uint32_t id, uint64_t addr)
{
	unsigned int steps;

	for (steps = 0; id && steps < MAX_STEPS; steps++) {
		struct block *b = block_at(p, id);

		if (is_at(b, addr))
			return b;
		id = __atomic_load_n(&b->chain, __ATOMIC_ACQUIRE);
	}
	return NULL;
}

struct block *hm_block_find(const struct pool *p, uint64_t addr)
{
	const struct hash *h = __atomic_load_n(&p->hash, __ATOMIC_ACQUIRE);
	uint64_t hash = hash_of(addr);
	const uint32_t *heads = &h->heads[bucket_of(h, hash)];
	uint32_t mark = mark_of(hash), head = 0;
	unsigned int i;

	for (i = 0; i < BUCKET; i++) {
		head = __atomic_load_n(&heads[i], __ATOMIC_ACQUIRE);
		if (head && (head & ~NAME_MASK) == mark) {
			struct block *b = block_at(p, head & NAME_MASK);

			/* It will be written to, if it is the one. */
			prefetch_block(b);
			if (is_at(b, addr))
				return b;
		}
	}
	return hm_unlikely(head) ? find_chained(p, head & NAME_MASK, addr) :
		NULL;
}

struct block *hm_block_find_locked(const struct pool *p, uint64_t addr)
{
	const uint32_t *heads = &p->hash->heads[bucket_of(p->hash,
							  hash_of(addr))];
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
