// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The pool's metadata: tables of descriptors, whose names are indices. The
 * descriptors of blocks never go away, see pool_hash.c.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "resource/pool_impl.h"

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
