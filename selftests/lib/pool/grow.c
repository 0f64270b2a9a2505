// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Blocks that grow where a pool's memory comes in regions: into free memory behind them, in
 * stream order; and into addresses that were reserved, where memory costs nothing before
 * it is touched. After a failure all is as it was. Arguments: a seed, rounds.
 */
#include <stdint.h>

#include "alloc_with.h"
#include "below.h"
#include "block_of.h"
#include "pool_gate.h"

#define KIB	((size_t)1 << 10)
#define GIB	((size_t)1 << 30)
#define HOST	HETMEM_STREAM_HOST
#define SLOTS	12

static unsigned int rounds = 3000;

static void make(const char *spec)
{
	need(!hetmem_resource_create(hm, spec, &pool), "%s: %s", spec, hetmem_last_error());
}

static char *get_on(size_t size, hetmem_stream stream)
{
	void *p = NULL;

	need(!hetmem_alloc(pool, size, 0, stream, &p), "%zu bytes: %s", size,
	     hetmem_last_error());
	return p;
}

static size_t size_of(const void *p)
{
	struct hm_ctl_owns block;

	return block_of(pool, p, &block) ? 0 : block.asked;
}

/* A row of @nr blocks of @size bytes, in one region. */
static void row(char **block, int nr, size_t size)
{
	int i;

	for (i = 0; i < nr; i++) {
		block[i] = get_on(size, HOST);
		if (i)
			need(block[i] == block[i - 1] + size, "a row");
	}
}

/* Into what is behind a block, as far as that is free. */
static void into_free_memory(const char *spec)
{
	const size_t size = 2 * MIB;
	char *b[4], *all;

	make(spec);
	all = get_on(4 * size, HOST);
	is(hetmem_free(pool, all, 0, HOST), 0, "%s: one region", spec);
	row(b, 4, size);
	ok(b[0] == all, "holds all four");
	memset(b[0], 1, size);
	memset(b[2], 2, size);
	is(hetmem_grow(pool, b[0], 2 * size, HOST), -ENOSPC, "what is behind it is live: %s",
	   hetmem_last_error());
	is(size_of(b[0]), size, "it is as large as it was");
	is(hetmem_free(pool, b[1], size, HOST), 0, "its neighbour goes");
	is(hetmem_grow(pool, b[0], 2 * size + 1, HOST), -ENOSPC, "a byte too many");
	is(hetmem_grow(pool, b[0], size + 1000, HOST), 0, "a part of it: %s",
	   hetmem_last_error());
	b[1] = get_on(3 * MIB / 2, HOST);
	ok(b[1] > b[0] + size && b[1] < b[2], "the rest is free");
	is(hetmem_free(pool, b[1], 0, HOST), 0, "and is freed");
	is(hetmem_grow(pool, b[0], 2 * size, HOST), 0, "all of it");
	is(size_of(b[0]), 2 * size, "is its own");
	memset(b[0] + size, 3, size);
	is(hetmem_free(pool, b[2], size, HOST), 0, "the next one goes");
	is(hetmem_free(pool, b[3], size, HOST), 0, "the last one");
	is(hetmem_grow(pool, b[0], 4 * size, HOST), 0, "to the end of the region");
	ok(b[0][0] == 1 && b[0][size - 1] == 1 && b[0][2 * size - 1] == 3, "contents stay");
	is(hetmem_grow(pool, b[0], 4 * size + 1, HOST), -ENOSPC, "not beyond: %s",
	   hetmem_last_error());
	is(hetmem_grow(pool, b[0], size, HOST), -EOPNOTSUPP, "nor back");
	is(hetmem_free(pool, b[0], 4 * size, HOST), 0, "freed with its size");
	is(hetmem_trim(pool, 0, NULL), 0, "trim");
	is(pool_stats().reserved, 0, "all is given back");
	is(hetmem_resource_destroy(pool), 0, "nothing is live");
}

/* A block of the size of those that a thread keeps grows, and is none of them when it is freed. */
static void out_of_the_cache(const char *spec)
{
	const size_t size = MIB + 64 * KIB;
	char *b[3], *first;
	int i;

	make(spec);
	is(hetmem_free(pool, get_on(8 * MIB, HOST), 0, HOST), 0, "%s: one region", spec);
	row(b, 3, 512 * KIB);
	first = b[0];
	is(hetmem_free(pool, b[1], 0, HOST), 0, "its neighbour goes");
	is(hetmem_free(pool, b[2], 0, HOST), 0, "and that one's");
	is(hetmem_trim(pool, 0, NULL), 0, "out of the cache");
	is(hetmem_grow(pool, first, size, HOST), 0, "it grows: %s", hetmem_last_error());
	for (i = 0; i < 8; i++)
		is(hetmem_free(pool, get_on(4 * KIB, HOST), 4 * KIB, HOST), 0, "a hit");
	is(hetmem_free(pool, first, size, HOST), 0, "freed");
	is(hetmem_trim(pool, 0, NULL), 0, "trim");
	is(pool_stats().reserved, 0, "all is given back");
	is(hetmem_resource_destroy(pool), 0, "nothing is live");
}

/* The neighbour is free on a stream that has not come so far. */
static void in_stream_order(const char *spec, bool orders)
{
	CUstream a = new_stream(), b = new_stream();
	char *p, *q;

	make(spec);
	p = get_on(8 * MIB, a);
	is(hetmem_free(pool, p, 0, a), 0, "%s: a region", spec);
	p = get_on(4 * MIB, a);
	q = get_on(4 * MIB, a);
	need(q == p + 4 * MIB, "two in a row");
	close_gate(a);
	is(hetmem_free(pool, q, 0, a), 0, "the second is free when its stream gets there");
	if (orders) {
		is(hetmem_grow(pool, p, 8 * MIB, b), 0, "on another stream: %s",
		   hetmem_last_error());
		ok(is_held_up(b), "which waits for that");
	} else {
		is(hetmem_grow(pool, p, 8 * MIB, HOST), -ENOMEM, "not for the CPU: %s",
		   hetmem_last_error());
		is(size_of(p), 4 * MIB, "which has what it had");
		is(hetmem_grow(pool, p, 8 * MIB, a), 0, "on its own stream: %s",
		   hetmem_last_error());
	}
	open_gate();
	ok(gets_through(a) && gets_through(b), "all goes on");
	is(hetmem_free(pool, p, 8 * MIB, HOST), 0, "freed");
	need(!drv->cuStreamSynchronize(a) && !drv->cuStreamSynchronize(b), "streams end");
	is(hetmem_resource_destroy(pool), 0, "nothing is live");
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

/* Room for a GiB costs what is used of it. */
static void into_reserved_addresses(const char *spec)
{
	struct hetmem_resource_stats was;
	size_t size = MIB;
	char *p, *q;

	make(spec);
	is(alloc_reserve(pool, size, GIB, HOST, (void **)&p), 0, "%s: 1 MiB, room for a GiB: %s",
	   spec, hetmem_last_error());
	is(pool_stats().requested, size, "the room is not requested");
	p[0] = 1;
	q = get_on(3 * MIB, HOST);
	ok(q + 3 * MIB <= p || q >= p + GIB, "others are elsewhere");
	for (; size < GIB; size *= 4) {
		memset(p + size - 1, 2, 1);
		if (hetmem_grow(pool, p, 4 * size, HOST))
			break;
		p[4 * size - 1] = 3;
	}
	is(size, GIB, "grows to a GiB: %s", hetmem_last_error());
	is(p[0] + p[MIB - 1], 3, "contents stay");
	was = pool_stats();
	is(hetmem_grow(pool, p, GIB + 64 * MIB, HOST), -ENOSPC, "but not beyond: %s",
	   hetmem_last_error());
	is(pool_stats().requested, was.requested, "and stays as it is");
	is(hetmem_free(pool, p, GIB, HOST), 0, "freed with its size");
	is(alloc_reserve(pool, 3, 64 * MIB, HOST, (void **)&p), 0, "3 bytes");
	is(hetmem_grow(pool, p, 10, HOST), 0, "10");
	is(hetmem_grow(pool, p, 64 * MIB + 512, HOST), -ENOSPC, "too many: %s",
	   hetmem_last_error());
	is(hetmem_free(pool, p, 10, HOST), 0, "freed before it has grown");
	is(hetmem_free(pool, q, 0, HOST), 0, "the other one, too");
	hetmem_trim(pool, 0, NULL);
	is(pool_stats().reserved, 0, "all is given back");
	is(alloc_reserve(pool, MIB, KIB, HOST, (void **)&p), -EINVAL, "less room than size");
	is(hetmem_resource_destroy(pool), 0, "nothing is live");
}

/* Alignment beyond that of the provider's regions. */
static void aligned(const char *spec)
{
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = MIB, .align = 4 * MIB, .stream = HOST,
		.reserve = 8 * MIB,
	};
	void *p = NULL;

	make(spec);
	get_on(3 * MIB, HOST);
	is(hetmem_alloc_with(pool, &params, &p), 0, "%s: aligned to 4 MiB: %s", spec,
	   hetmem_last_error());
	ok(p && !((uintptr_t)p & (params.align - 1)), "it is");
	is(hetmem_grow(pool, p, 8 * MIB, HOST), 0, "and grows");
	params.align = (size_t)1 << 62;
	is(hetmem_alloc_with(pool, &params, &p), -ENOMEM, "beyond all addresses: %s",
	   hetmem_last_error());
	hetmem_resource_destroy(pool);
}

static void no_addresses(const char *spec)
{
	void *p;

	make(spec);
	is(alloc_reserve(pool, MIB, 8 * MIB, HOST, &p), -EOPNOTSUPP, "%s: %s", spec,
	   hetmem_last_error());
	hetmem_resource_destroy(pool);
}

struct slot {
	unsigned char *p;
	size_t size, reserve;
	unsigned char value;
};

static bool is_whole(const struct slot *s)
{
	return s->p[0] == s->value && !memcmp(s->p, s->p + 1, s->size - 1);
}

static bool overlap(const struct slot *a, const struct slot *b)
{
	return a->p && b->p && a != b && a->p < b->p + b->size && b->p < a->p + a->size;
}

static void at_random(const char *spec, bool reserves)
{
	unsigned int i, k, grown = 0, refused = 0, wrong = 0, errors = 0;
	struct slot slots[SLOTS] = { 0 }, *s;
	size_t size;
	int err;

	make(spec);
	for (i = 0; i < rounds; i++) {
		s = &slots[below(SLOTS)];
		if (!s->p) {
			*s = (struct slot){ .size = 1 + below(512 * KIB), .value = i | 1 };
			s->reserve = reserves && !below(3) ? s->size + below(4 * MIB) : 0;
			err = alloc_reserve(pool, s->size, s->reserve, HOST, (void **)&s->p);
			errors += !!err;
		} else if (below(2)) {
			size = s->size + below(MIB);
			err = hetmem_grow(pool, s->p, size, HOST);
			errors += err && err != -ENOSPC;
			errors += err && size <= s->reserve;
			wrong += !is_whole(s);
			s->size = err ? s->size : size;
			grown += !err;
			refused += !!err;
		} else {
			wrong += !is_whole(s);
			errors += !!hetmem_free(pool, s->p, below(2) ? s->size : 0, HOST);
			s->p = NULL;
		}
		for (k = 0; k < SLOTS; k++)
			wrong += overlap(s, &slots[k]);
		if (s->p)
			memset(s->p, s->value, s->size);
		if (!below(100))
			hetmem_trim(pool, below(8) * MIB, NULL);
	}
	for (k = size = 0; k < SLOTS; k++)
		size += slots[k].p ? slots[k].size : 0;
	is(pool_stats().requested, size, "%s: what is live is requested", spec);
	for (k = 0; k < SLOTS; k++) {
		if (!slots[k].p)
			continue;
		wrong += !is_whole(&slots[k]);
		errors += !!hetmem_free(pool, slots[k].p, slots[k].size, HOST);
	}
	is(wrong, 0, "contents stay");
	is(errors, 0, "no errors");
	ok(grown && refused, "%u times it has grown, %u times it could not", grown, refused);
	hetmem_trim(pool, 0, NULL);
	is(pool_stats().reserved, 0, "all is given back");
	is(hetmem_resource_destroy(pool), 0, "nothing is live");
}

int main(int argc, char **argv)
{
	if (argc > 1)
		seed = strtoull(argv[1], NULL, 0);
	if (argc > 2)
		rounds = strtoul(argv[2], NULL, 0);
	printf("# seed %llu\n", (unsigned long long)seed);
	setenv("HETMEM_SOFT_DEBUG", "1", 1);
	setenv("HETMEM_SOFT_MACHINE", "hmm memory=4G", 1);
	open_soft("");
	into_free_memory("pool(host)");
	into_free_memory("pool(managed)");
	into_free_memory("pool(pinned)");
	into_free_memory("classes(system(device=0))");
	into_free_memory("unified(over=registered)");
	out_of_the_cache("pool(host)");
	out_of_the_cache("pool(managed)");
	in_stream_order("pool(device,reuse=order)", true);
	in_stream_order("pool(device)", true);
	in_stream_order("pool(managed,wait=1ms)", false);
	into_reserved_addresses("pool(managed)");
	into_reserved_addresses("pool(host)");
	into_reserved_addresses("pool(system(device=0))");
	into_reserved_addresses("unified(over=system)");
	into_reserved_addresses("stats(unified(over=managed,headroom=off))");
	aligned("pool(managed)");
	aligned("unified(over=system)");
	no_addresses("pool(device)");
	no_addresses("unified(over=registered)");
	at_random("pool(host)", true);
	at_random("pool(pinned)", false);
	at_random("pool(managed)", true);
	at_random("unified(over=system)", true);
	at_random("unified(over=registered)", false);
	at_random("pool(vmm)", true);
	close_soft();
	return tap_end();
}
