// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * How long a call holds the pool's lock: the basic blocks that the library executes in a row
 * without a call of the driver. The pool was filled before. Some pools have 10^6 blocks, some
 * have 1,024 streams. recorded_holds.c has growths that move hundreds of handles.
 *
 * The longest row of all kinds was 9,000 blocks, with gcc 12. MOST leaves a fifth more, as
 * compilers differ. Documentation/pool.md has it.
 */
#include <limits.h>

#include "holds.h"

#define MOST		10800
/* Calls of the driver in one hold for 32 units, each made, mapped and made accessible, twice. */
#define SPARSE_CALLS	(2 * 32 * 3 + 16)

#define STREAMS		4
#define MANY		1024

static CUstream streams[MANY];
static unsigned int nr_streams;

static void make_streams(unsigned int nr)
{
	for (; nr_streams < nr; nr_streams++)
		streams[nr_streams] = new_stream();
}

/* Their work completes when the gate opens. */
static void make_busy(unsigned int first)
{
	unsigned int i;

	for (i = first; i < nr_streams; i++)
		close_gate(streams[i]);
}

/*
 * @nr blocks of @size bytes, of which every @nth is freed, on one stream after the
 * other; the stream @of allocates all.
 */
static void fill(size_t size, unsigned int nr, unsigned int nth, unsigned int of)
{
	void **held = calloc(nr, sizeof(*held));
	unsigned int i;

	need(held, "memory");
	for (i = 0; i < nr; i++)
		held[i] = get(size, streams[of]);
	for (i = 0; i < nr; i += nth)
		put(held[i], 0, streams[i / nth % nr_streams]);
	free(held);
}

/* All is freed, by all streams in turn: nothing merges, until it is complete. */
static void all_free(void)
{
	fill(16 << 10, 60000, 1, 0);
	drv->cuCtxSynchronize();
}

static void isolated(void)
{
	fill(512, 1000000, 2, 0);
}

static void isolated_large(void)
{
	fill(3 * MIB, 40000, 2, 0);
}

static void larger(void)
{
	fill(16 << 10, 200000, 2, 0);
}

static void one_stream(void)
{
	fill(512, 1000000, 2, 0);
	fill(MIB + 512, 20000, 2, 0);
}

/* Each stream has @live live blocks of @size bytes, and as many that it freed. */
static void spread(size_t size, unsigned int live)
{
	void **held = calloc(2 * live, sizeof(*held));
	unsigned int i, j;

	need(held, "memory");
	for (i = 0; i < nr_streams; i++) {
		for (j = 0; j < 2 * live; j++)
			held[j] = get(size + i % 61 * 512, streams[i]);
		for (j = 0; j < 2 * live; j += 2)
			put(held[j], 0, streams[i]);
	}
	free(held);
}

/* Of streams that are under way. */
static void many_cached(void)
{
	make_busy(0);
	spread(8 << 10, 32);
}

/* Each stream has small and large free blocks, and is under way. */
static void many_busy(void)
{
	make_busy(0);
	spread(8 << 10, 96);
	spread(3 * MIB, 4);
}

/* Nobody was told that what was given to the streams is complete. */
static void complete(void)
{
	open_gate();
	drv->cuCtxSynchronize();
}

static void many_free(void)
{
	many_busy();
	complete();
}

/* Each stream has a small block, so many of them a large one, and is under way. */
static void few(unsigned int large)
{
	const unsigned int nr = nr_streams;

	make_busy(0);
	spread(8 << 10, 1);
	nr_streams = large;
	spread(3 * MIB, 1);
	nr_streams = nr;
}

/* Few blocks: what is counted moves all of them. */
static void few_free(void)
{
	few(128);
	complete();
}

static void few_busy(void)
{
	few(256);
}

/* A block that all streams have used. */
static void *used;

static void many_uses(void)
{
	unsigned int i;

	used = get(MIB, streams[0]);
	for (i = 1; i < nr_streams; i++)
		need(!hetmem_record_stream(pool, used, streams[i]), "a use");
}

#define ALIASES	3000

static void *aliases[ALIASES];

static void many_aliases(void)
{
	void *p = get(2 * MIB, streams[0]);
	unsigned int i;

	for (i = 0; i < ALIASES; i++)
		need(!hetmem_alias(pool, p, MIB, 0, &aliases[i]), "alias: %s", hetmem_last_error());
}

/* They are in use, until the gate opens. */
static void many_freed_aliases(void)
{
	unsigned int i;

	many_aliases();
	make_busy(1);
	for (i = 0; i < ALIASES; i++)
		need(!hetmem_free(pool, aliases[i], 0, streams[1]), "free: %s", hetmem_last_error());
}

static void many_unused_aliases(void)
{
	unsigned int i;

	many_aliases();
	for (i = 0; i < ALIASES; i++)
		need(!hetmem_free(pool, aliases[i], 0, streams[1]), "free: %s", hetmem_last_error());
	drv->cuCtxSynchronize();
}

/* Freed blocks that several streams have used that are under way. */
static void many_pending(void)
{
	void *p[256];
	unsigned int i, j;

	make_busy(0);
	spread(8 << 10, 4);
	for (i = 0; i < 256; i++) {
		p[i] = get(64 << 10, streams[i]);
		for (j = 0; j < 64; j++)
			need(!hetmem_record_stream(pool, p[i],
						   streams[(i + 17 * j) % MANY]), "a use");
	}
	for (i = 0; i < 256; i++)
		put(p[i], 0, streams[i]);
}

/* Blocks of the first stream that another thread freed. */
static void *free_all(void *arg)
{
	void **held = arg;

	drv->cuCtxSetCurrent(hm->devices[0].ctx);
	for (; *held; held++)
		put(*held, 0, streams[0]);
	return NULL;
}

static void remote(void)
{
	const unsigned int nr = 1500;
	void **held = calloc(nr + 1, sizeof(*held));
	pthread_t other;
	unsigned int i;

	need(held, "memory");
	/* The stream has a cache then. */
	put(get(512, streams[0]), 0, streams[0]);
	for (i = 0; i < nr; i++)
		held[i] = get(512, streams[0]);
	need(!pthread_create(&other, NULL, free_all, held), "a thread");
	pthread_join(other, NULL);
	free(held);
}

/* Thousands of events of one stream. */
static void many_points(void)
{
	struct hm_order *o = &((struct pool *)pool)->order;
	unsigned int i;

	make_busy(0);
	for (i = 0; i < 6000; i++) {
		put(get(2 * MIB, streams[0]), 0, streams[0]);
		need(!hm_stream_record(o, o->streams[1]), "an event");
	}
	complete();
}

#define SPARSE_BYTES	((size_t)8 << 30)
#define SPARSE_UNITS	(SPARSE_BYTES / (2 * MIB))

/* Two sparse blocks. */
static void *sparse[2];

static void get_sparse(void)
{
	const struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = SPARSE_BYTES, .stream = streams[0],
		.flags = HETMEM_ALLOC_SPARSE,
	};

	need(!hetmem_alloc_with(pool, &params, &sparse[0]) &&
	     !hetmem_alloc_with(pool, &params, &sparse[1]), "sparse blocks: %s", hetmem_last_error());
}

/* All units are parked in one of them. */
static void park_all(void)
{
	get_sparse();
	need(!hetmem_commit(pool, sparse[0], 0, SPARSE_BYTES, streams[0]) &&
	     !hetmem_decommit(pool, sparse[0], 0, SPARSE_BYTES, streams[0]), "parked units");
	drv->cuCtxSynchronize();
}

static void committed_all(void)
{
	get_sparse();
	need(!hetmem_commit(pool, sparse[0], 0, SPARSE_BYTES, streams[0]), "committed units");
	close_gate(streams[1]);
}

/* Every other unit of one of them is parked. */
static void park_half(void)
{
	size_t u;

	park_all();
	for (u = 0; u < SPARSE_UNITS; u += 2)
		need(!hetmem_commit(pool, sparse[0], u * 2 * MIB, 2 * MIB, streams[0]), "a unit");
	drv->cuCtxSynchronize();
	hetmem_trim(pool, 0, NULL);
	for (u = 0; u < SPARSE_UNITS; u += 2)
		need(!hetmem_decommit(pool, sparse[0], u * 2 * MIB, 2 * MIB, streams[0]), "a unit");
}

/* What is counted. */

static size_t held_bytes(void)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };

	need(!hetmem_resource_stats(pool, &stats), "statistics");
	return stats.reserved;
}

static bool commit_all(void)
{
	return !hetmem_commit(pool, sparse[0], 0, SPARSE_BYTES, streams[0]) &&
		held_bytes() == SPARSE_BYTES;
}

static bool commit_elsewhere(void)
{
	return !hetmem_commit(pool, sparse[1], 0, SPARSE_BYTES, streams[1]) &&
		held_bytes() == SPARSE_BYTES;
}

/* A unit too many: all that was made is given back. */
static bool commit_too_much(void)
{
	const size_t before = held_bytes();
	struct hetmem_extent e;

	return hetmem_commit(pool, sparse[0], 0, SPARSE_BYTES, streams[0]) == -ENOMEM &&
		held_bytes() == before && !hetmem_committed(pool, sparse[0], &e, 1);
}

static bool decommit_all(void)
{
	struct hetmem_extent e;

	return !hetmem_decommit(pool, sparse[0], 0, SPARSE_BYTES, streams[1]) &&
		!hetmem_committed(pool, sparse[0], &e, 1);
}

static bool trim_all(void)
{
	size_t freed;

	return !hetmem_trim(pool, 0, &freed) && freed == SPARSE_BYTES;
}

static bool allocate(size_t size, unsigned int on)
{
	unsigned int i;
	void *p;

	for (i = 0; i < 3; i++)
		if (hetmem_alloc(pool, size, 0, streams[on], &p))
			return false;
	return true;
}

static bool get_64k(void)
{
	return allocate(64 << 10, 1);
}

static bool get_1m(void)
{
	return allocate(MIB, 1);
}

static bool get_8m(void)
{
	return allocate(8 * MIB, 1);
}

static bool get_64m(void)
{
	return allocate(64 * MIB, 2);
}

static bool get_64m_own(void)
{
	return allocate(64 * MIB, 0);
}

static bool get_300m(void)
{
	return allocate(300 * MIB, 3);
}

/* More than there is: every remedy is tried. */
static bool get_too_much(void)
{
	void *p;

	return hetmem_alloc(pool, 1792 * MIB, 0, streams[1], &p) == -ENOMEM;
}

static bool poll(void)
{
	return !hetmem_poll(pool);
}

static bool ask_statistics(void)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };

	return !hetmem_resource_stats(pool, &stats);
}

static bool trim(void)
{
	size_t freed;

	return !hetmem_trim(pool, 0, &freed);
}

static bool free_used(void)
{
	return !hetmem_free(pool, used, 0, streams[0]);
}

static bool retire_and_poll(void)
{
	unsigned int i;

	for (i = 0; i < nr_streams; i++) {
		/* Some of these are enough. */
		if (i == 2)
			unwatch();
		if (hetmem_stream_retire(pool, streams[i]))
			return false;
	}
	watch();
	return !hetmem_poll(pool);
}

static bool decay(void)
{
	/* time: decay= counts it, and 2 ms are more than its 1 ms */
	usleep(2000);
	return !hetmem_poll(pool);
}

struct kind {
	const char *name;
	unsigned int streams;
	void (*fill)(void);
	bool (*call)(void);
	struct hm_pool_options opt;
};

static const struct kind kinds[] = {
	{ "8 MiB among 10^6 blocks of 512 B", STREAMS, isolated, get_8m, { .cache = 1 } },
	{ "1 MiB among 10^6 blocks of 512 B", STREAMS, isolated, get_1m, { .cache = 1 } },
	{ "64 MiB among 200,000 blocks of 16 KiB", STREAMS, larger, get_64m, { .cache = 1 } },
	{ "64 MiB among 60,000 free ones of four streams", STREAMS, all_free, get_64m,
	  { .cache = 1 } },
	{ "300 MiB among 40,000 blocks of 3 MiB", STREAMS, isolated_large, get_300m,
	  { .cache = 1 } },
	{ "64 MiB among both", STREAMS, one_stream, get_64m_own, { .cache = 1 } },
	{ "a block that a thread frees 1,500 of", 1, remote, get_64k, { 0 } },
	{ "a poll after 6,000 events", 2, many_points, poll, { 0 } },
	{ "1 MiB, cached blocks of 1,024 streams", MANY, many_cached, get_1m, { 0 } },
	{ "8 MiB, cached blocks of 1,024 streams", MANY, many_cached, get_8m, { 0 } },
	{ "1 MiB, free blocks of 1,024 streams", MANY, many_free, get_1m, { .cache = 1 } },
	{ "8 MiB, free blocks of 1,024 streams", MANY, many_free, get_8m, { .cache = 1 } },
	{ "1 MiB, blocks in use by 1,024 streams", MANY, many_busy, get_1m, { .cache = 1 } },
	{ "8 MiB, blocks in use by 1,024 streams", MANY, many_busy, get_8m,
	  { .cache = 1, .reuse_order = true } },
	{ "-ENOMEM, blocks in use by 1,024 streams", MANY, few_busy, get_too_much,
	  { .max = 2048 * MIB, .wait_ms = HM_POOL_NO_WAIT } },
	{ "8 MiB, pending blocks of 1,024 streams", MANY, many_pending, get_8m,
	  { .reuse_order = true } },
	{ "a poll of 1,024 streams", MANY, many_free, poll, { 0 } },
	{ "statistics of 1,024 streams", MANY, many_cached, ask_statistics, { 0 } },
	{ "a trim of 1,024 streams", MANY, few_free, trim, { 0 } },
	{ "decay of 1,024 streams", MANY, few_free, decay, { .decay_ms = 1 } },
	{ "a free after uses on 1,024 streams", MANY, many_uses, free_used, { 0 } },
	{ "8 MiB beside 3,000 aliases", STREAMS, many_aliases, get_8m, { 0 } },
	{ "8 MiB beside 3,000 freed aliases in use", STREAMS, many_freed_aliases, get_8m, { 0 } },
	{ "a trim beside 3,000 freed aliases", STREAMS, many_unused_aliases, trim, { 0 } },
	{ "a poll after 1,024 streams were retired", MANY, many_free, retire_and_poll, { 0 } },
};

static const struct kind sparse_kinds[] = {
	{ "a commit of 4,096 units", STREAMS, get_sparse, commit_all, { 0 } },
	{ "a commit of 4,096 units that are parked there", STREAMS, park_all, commit_all, { 0 } },
	{ "a commit of 4,096 units, of which half are parked there", STREAMS, park_half, commit_all,
	  { 0 } },
	{ "a commit of 4,096 units that are parked elsewhere", STREAMS, park_all, commit_elsewhere,
	  { .max = SPARSE_BYTES } },
	{ "a commit of 4,096 units beyond max=", STREAMS, get_sparse, commit_too_much,
	  { .max = SPARSE_BYTES - 2 * MIB, .wait_ms = HM_POOL_NO_WAIT } },
	{ "a decommit of 4,096 units in use", STREAMS, committed_all, decommit_all, { 0 } },
	{ "a trim of 4,096 parked units", STREAMS, park_all, trim_all, { 0 } },
};

static void work(const void *arg)
{
	const struct kind *k = arg;

	open_soft("");
	make_streams(k->streams);
	make_pool("vmm", &k->opt);
	k->fill();
	/* Not what came of filling it: events that are complete. */
	if (k->call != poll)
		hetmem_poll(pool);
	watch();
	counted->failed = !k->call();
	unwatch();
}

/* @most_calls: of the driver, in one hold */
static void one(const struct kind *k, unsigned int most_calls)
{
	struct counted *c = counted;
	bool ended;

	memset(c, 0, sizeof(*c));
	ended = in_child(work, k);
	ok(ended && !c->failed && c->all && c->stretch <= MOST && c->most_calls <= most_calls,
	   "%s: at most %lu basic blocks in a row, %lu with %lu calls of the driver; %lu times, in all %lu; at most %lu calls",
	   k->name, c->stretch, c->longest, c->longest_calls, c->holds, c->all, c->most_calls);
}

int main(int argc, char **argv)
{
	unsigned int i;

	setenv("HETMEM_SOFT_MEMORY", "512G", 1);
	need(library_counts(), "the library counts its basic blocks");
	counted = shared_memory(sizeof(*counted));
	for (i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (argc < 2 || strstr(kinds[i].name, argv[1]))
			one(&kinds[i], UINT_MAX);
	for (i = 0; i < sizeof(sparse_kinds) / sizeof(sparse_kinds[0]); i++)
		if (argc < 2 || strstr(sparse_kinds[i].name, argv[1]))
			one(&sparse_kinds[i], SPARSE_CALLS);
	return tap_end();
}
