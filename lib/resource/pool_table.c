// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The pool's metadata: tables of descriptors, and the hash that finds a block
 * by its address.
 *
 * The hash is read without a lock. Descriptors never go away and keep their
 * chain when they leave it, so that a reader always reads a descriptor; it
 * may be led astray, which ends after some steps with nothing found, and is
 * never led to a block that is not at the address it asked for.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "resource/pool_impl.h"

#define FIRST_BITS	10
#define MAX_STEPS	64
#define MAX_BLOCKS	(1U << 24)
#define BATCH		64
#define HOMES_BYTES	(MAX_BLOCKS / BATCH * sizeof(uint16_t))

int hm_table_init(struct table *t, uint32_t size, uint32_t link, uint32_t max)
{
	void *p = mmap(NULL, (size_t)size * max, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p == MAP_FAILED)
		return hm_error(-ENOMEM, "pool: no addresses for metadata");
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
		return hm_error(-ENOMEM, "pool: no addresses for metadata");
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

static uint32_t slot_of(const struct hash *h, uint64_t addr)
{
	return (addr >> UNIT_SHIFT) * 0x9e3779b97f4a7c15ULL >> (64 - h->bits);
}

static struct hash *new_hash(unsigned int bits, struct hash *old)
{
	struct hash *h = calloc(1, sizeof(*h) + (sizeof(uint32_t) << bits));

	if (h) {
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

static void push(struct pool *p, struct hash *h, struct block *b)
{
	uint32_t *head = &h->heads[slot_of(h, b->addr)];

	__atomic_store_n(&b->chain, *head, __ATOMIC_RELAXED);
	__atomic_store_n(head, block_id(p, b), __ATOMIC_RELEASE);
}

/* Without memory the chains get longer, which is slow and not wrong. */
static void grow(struct pool *p)
{
	struct hash *old = p->hash, *h = new_hash(old->bits + 1, old);
	uint32_t i, id, next;

	if (!h)
		return;
	for (i = 0; i < 1U << old->bits; i++) {
		for (id = old->heads[i]; id; id = next) {
			next = block_at(p, id)->chain;
			push(p, h, block_at(p, id));
		}
	}
	__atomic_store_n(&p->hash, h, __ATOMIC_RELEASE);
}

void hm_hash_add(struct pool *p, struct block *b)
{
	if (p->hash_nr >> 1 >> p->hash->bits)
		grow(p);
	push(p, p->hash, b);
	p->hash_nr++;
}

void hm_hash_remove(struct pool *p, struct block *b)
{
	uint32_t *link = &p->hash->heads[slot_of(p->hash, b->addr)];
	uint32_t id = block_id(p, b);

	while (*link != id)
		link = &block_at(p, *link)->chain;
	__atomic_store_n(link, b->chain, __ATOMIC_RELEASE);
	p->hash_nr--;
}

struct block *hm_block_find(const struct pool *p, uint64_t addr)
{
	const struct hash *h = __atomic_load_n(&p->hash, __ATOMIC_ACQUIRE);
	uint32_t id = __atomic_load_n(&h->heads[slot_of(h, addr)],
				      __ATOMIC_ACQUIRE);
	unsigned int steps;

	for (steps = 0; id && steps < MAX_STEPS; steps++) {
		struct block *b = block_at(p, id);

		if (__atomic_load_n(&b->addr, __ATOMIC_RELAXED) == addr)
			return b;
		id = __atomic_load_n(&b->chain, __ATOMIC_ACQUIRE);
	}
	return NULL;
}

struct block *hm_block_find_locked(const struct pool *p, uint64_t addr)
{
	uint32_t id = p->hash->heads[slot_of(p->hash, addr)];

	while (id && block_at(p, id)->addr != addr)
		id = block_at(p, id)->chain;
	return id ? block_at(p, id) : NULL;
}

uint64_t hm_pool_metadata(const struct pool *p)
{
	uint64_t bytes = sizeof(*p) + (uint64_t)p->blocks.nr * p->blocks.size +
		p->blocks.nr / BATCH * sizeof(*p->homes) +
		(uint64_t)p->uses.nr * p->uses.size;
	const struct hash *h;
	unsigned int i, zone;

	for (h = p->hash; h; h = h->old)
		bytes += sizeof(*h) + (sizeof(uint32_t) << h->bits);
	bytes += HM_MAX_STREAMS * sizeof(void *);
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
