// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The walk over segments and blocks: states, streams and sizes; that blocks have
 * no gaps and no overlaps; private pools and captures; adaptors above; callbacks
 * that end the walk or use the resource; threads that allocate meanwhile.
 */
#include <dlfcn.h>

#include "alloc_with.h"
#include "pool_gate.h"

static bool no_memory;

/* In the place of the C library's. */
void *realloc(void *ptr, size_t size)
{
	static void *(*real_realloc)(void *ptr, size_t size);

	if (!real_realloc)
		*(void **)&real_realloc = dlsym(RTLD_NEXT, "realloc");
	return no_memory ? NULL : real_realloc(ptr, size);
}

#define MOST	8192

/* What a walk told, and what is wrong with it. */
struct seen {
	struct hetmem_walk_segment segments[MOST];
	struct hetmem_walk_block blocks[MOST];
	uint64_t ids[MOST];
	unsigned int nr_segments;
	unsigned int nr;
	unsigned int bad;
	uint64_t bytes;
	char *next;
};

static struct seen seen;

static int see_segment(void *data, const struct hetmem_walk_segment *segment)
{
	struct seen *s = data;

	s->bad += segment->size != sizeof(*segment) || !segment->bytes;
	/* The one before had all of its blocks. */
	if (s->nr_segments) {
		const struct hetmem_walk_segment *last =
			&s->segments[s->nr_segments - 1];

		s->bad += s->next != (char *)last->base + last->bytes;
	}
	s->segments[s->nr_segments++ % MOST] = *segment;
	s->next = segment->base;
	return 0;
}

static int see_block(void *data, const struct hetmem_walk_segment *segment,
		     const struct hetmem_walk_block *block)
{
	struct seen *s = data;

	s->bad += block->size != sizeof(*block) || !block->bytes ||
		s->next != block->ptr || block->requested > block->bytes ||
		!block->requested != (block->state != HETMEM_BLOCK_LIVE);
	s->next = (char *)block->ptr + block->bytes;
	s->bytes += block->bytes;
	s->ids[s->nr % MOST] = segment->private_pool;
	s->blocks[s->nr++ % MOST] = *block;
	return 0;
}

static int walk_of(struct hetmem_resource *res, uint64_t id)
{
	const struct hetmem_walk walk = {
		.size = sizeof(walk),
		.private_pool = id,
		.segment = see_segment,
		.block = see_block,
		.data = &seen,
	};

	memset(&seen, 0, sizeof(seen));
	return hetmem_walk(res, &walk);
}

static const struct hetmem_walk_block *at(const void *p)
{
	unsigned int i;

	for (i = 0; i < seen.nr; i++)
		if (seen.blocks[i].ptr == p)
			return &seen.blocks[i];
	return NULL;
}

static uint64_t id_at(const void *p)
{
	return at(p) ? seen.ids[at(p) - seen.blocks] : ~0ULL;
}

static bool is_at(const void *p, int state, size_t requested,
		  hetmem_stream stream)
{
	const struct hetmem_walk_block *b = at(p);

	if (b && b->state == state && b->requested == requested &&
	    b->stream == stream)
		return true;
	if (b)
		printf("# state %d, %zu bytes, stream %p\n", b->state,
		       b->requested, b->stream);
	return false;
}

static uint64_t live_bytes(unsigned int *nr)
{
	uint64_t bytes = 0;
	unsigned int i;

	*nr = 0;
	for (i = 0; i < seen.nr; i++) {
		*nr += seen.blocks[i].state == HETMEM_BLOCK_LIVE;
		bytes += seen.blocks[i].requested;
	}
	return bytes;
}

/* All that the pool holds, and each byte once. */
static void complete(const char *what)
{
	struct hetmem_resource_stats stats = pool_stats();
	unsigned int nr;

	is(walk_of(pool, 0), 0, "%s: a walk", what);
	is(seen.bad, 0, "%s: blocks fill their segments", what);
	is(seen.bytes, stats.reserved, "%s: all that is held", what);
	is(live_bytes(&nr), stats.requested, "%s: all that was requested", what);
	is(nr, stats.live, "%s: all that is live", what);
}

static int count(void *data, const struct hetmem_walk_segment *segment,
		 const struct hetmem_walk_block *block)
{
	(void)segment;
	(void)block;
	++*(int *)data;
	return 0;
}

static void bad_input(void)
{
	struct { struct hetmem_walk now; uint64_t later; } more = {
		.now = { .size = sizeof(more) },
	};
	struct hetmem_walk walk = { .size = sizeof(walk) };
	struct hetmem_resource *res;

	make_pool("vmm", NULL);
	is(hetmem_walk(pool, NULL), -EINVAL, "no walk");
	is(hetmem_walk(NULL, &walk), -EINVAL, "no resource");
	is(hetmem_walk(pool, &walk), 0, "no callbacks");
	walk.size--;
	is(hetmem_walk(pool, &walk), -EINVAL, "too small a struct: %s",
	   hetmem_last_error());
	is(hetmem_walk(pool, &more.now), 0, "a later struct");
	more.later = 1;
	is(hetmem_walk(pool, &more.now), -E2BIG, "a later member: %s",
	   hetmem_last_error());
	complete("an empty pool");
	is(seen.nr, 0, "has no blocks");
	no_memory = true;
	is(walk_of(pool, 0), -ENOMEM, "no host memory: %s", hetmem_last_error());
	no_memory = false;
	hetmem_resource_destroy(pool);
	need(!hetmem_resource_create(hm, "device", &res), "a resource");
	is(walk_of(res, 0), -EOPNOTSUPP, "not a pool: %s", hetmem_last_error());
	hetmem_resource_destroy(res);
}

static void states(const char *provider)
{
	CUstream a = new_stream(), b = new_stream();
	void *live, *small, *large, *pending, *host;

	make_pool(provider, NULL);
	live = get(3 * MIB - 100, a);
	small = get(700, a);
	large = get(5 * MIB, b);
	pending = get(7 * MIB, a);
	host = get(900, HETMEM_STREAM_HOST);
	complete(provider);
	ok(is_at(live, HETMEM_BLOCK_LIVE, 3 * MIB - 100, a), "%s: live",
	   provider);
	ok(is_at(small, HETMEM_BLOCK_LIVE, 700, a), "%s: a small one", provider);
	ok(is_at(host, HETMEM_BLOCK_LIVE, 900, HETMEM_STREAM_HOST),
	   "%s: the host's", provider);
	is(id_at(live), 0, "%s: everyone's", provider);
	/* The first free makes the cache. */
	put(get(700, a), 700, a);
	put(small, 700, a);
	close_gate(b);
	put(large, 5 * MIB, b);
	need(!hetmem_record_stream(pool, pending, b), "a use");
	put(pending, 7 * MIB, a);
	complete(provider);
	ok(is_at(small, HETMEM_BLOCK_CACHED, 0, a), "%s: cached", provider);
	ok(is_at(large, HETMEM_BLOCK_FREE, 0, b), "%s: free, behind a stream",
	   provider);
	ok(is_at(pending, HETMEM_BLOCK_PENDING, 0, a), "%s: pending", provider);
	open_gate();
	drv->cuCtxSynchronize();
	hetmem_stream_retire(pool, a);
	drv->cuStreamDestroy(a);
	complete(provider);
	ok(at(live) && at(live)->stream == HETMEM_STREAM_UNKNOWN,
	   "%s: a stream that has gone", provider);
	hetmem_trim(pool, 0, NULL);
	complete(provider);
	ok(at(live) && at(host) && !at(pending), "%s: what is left", provider);
	put(live, 0, HETMEM_STREAM_HOST);
	put(host, 0, HETMEM_STREAM_HOST);
	hetmem_resource_destroy(pool);
	drv->cuStreamDestroy(b);
}

/* Who has it, and only that. */
static void ids(const char *provider, size_t size)
{
	CUstream a = new_stream(), s = new_stream();
	void *p = NULL, *q = NULL, *r, *other, *used = NULL;
	unsigned int nr;

	make_pool(provider, NULL);
	need(!hetmem_private_retain(pool, 4), "retain");
	other = get(size, a);
	need(!alloc_private(pool, 4, size, a, &p) &&
	     !alloc_private(pool, 4, size, s, &q) &&
	     !alloc_private(pool, 4, size, s, &used), "private blocks");
	need(!hetmem_capture_begin(pool, s, 9), "begin");
	r = get(size, s);
	complete(provider);
	ok(is_at(p, HETMEM_BLOCK_LIVE, size, a) && id_at(p) == 4,
	   "%s, %zu: a private pool's", provider, size);
	ok(is_at(q, HETMEM_BLOCK_LIVE, size, s) && id_at(q) == 4,
	   "%s, %zu: on another stream", provider, size);
	ok(is_at(r, HETMEM_BLOCK_LIVE, size, s) && id_at(r) == 9,
	   "%s, %zu: a capture's", provider, size);
	ok(is_at(other, HETMEM_BLOCK_LIVE, size, a) && !id_at(other),
	   "%s, %zu: everyone's", provider, size);
	is(walk_of(pool, 4), 0, "%s, %zu: a private pool alone", provider, size);
	is(seen.bad, 0, "%s, %zu: in segments of its own", provider, size);
	is(live_bytes(&nr), 3 * size, "%s, %zu: bytes", provider, size);
	is(nr, 3, "%s, %zu: blocks", provider, size);
	ok(!at(other) && !at(r), "%s, %zu: no others", provider, size);
	is(walk_of(pool, 9), 0, "%s, %zu: a capture alone", provider, size);
	ok(at(r) && seen.nr == 1, "%s, %zu: its block", provider, size);
	is(walk_of(pool, 77), 0, "%s, %zu: nobody's", provider, size);
	is(seen.nr, 0, "%s, %zu: is none", provider, size);
	need(!hetmem_record_stream(pool, used, a), "a use");
	put(used, size, s);
	put(q, size, a);
	put(r, size, s);
	complete(provider);
	ok(is_at(q, HETMEM_BLOCK_FREE, 0, a) && id_at(q) == 4,
	   "%s, %zu: free for the stream that it was freed on", provider, size);
	ok(is_at(used, HETMEM_BLOCK_PENDING, 0, s) && id_at(used) == 4,
	   "%s, %zu: parked", provider, size);
	ok(is_at(r, HETMEM_BLOCK_FREE, 0, s) && id_at(r) == 9,
	   "%s, %zu: free in the capture", provider, size);
	need(!hetmem_capture_end(pool, s, 9) &&
	     !hetmem_capture_release(pool, s, 9), "release");
	need(!hetmem_private_release(pool, 4, a), "release");
	complete(provider);
	ok(is_at(p, HETMEM_BLOCK_LIVE, size, HETMEM_STREAM_HOST) && !id_at(p),
	   "%s, %zu: live beyond the release", provider, size);
	put(p, size, a);
	put(other, size, a);
	hetmem_resource_destroy(pool);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(s);
}

static int end_with(void *data, const struct hetmem_walk_segment *segment,
		    const struct hetmem_walk_block *block)
{
	(void)segment;
	(void)block;
	return ++*(int *)data == 3 ? -EOPNOTSUPP : 0;
}

static int end_first(void *data, const struct hetmem_walk_segment *segment)
{
	(void)segment;
	++*(int *)data;
	return 7;
}

/* Frees what it sees, allocates, and walks itself. */
static int busy(void *data, const struct hetmem_walk_segment *segment,
		const struct hetmem_walk_block *block)
{
	struct hetmem_walk walk = {
		.size = sizeof(walk), .block = count, .data = data,
	};
	int err;

	(void)segment;
	if (block->state != HETMEM_BLOCK_LIVE)
		return 0;
	err = hetmem_free(pool, block->ptr, block->requested, block->stream);
	put(get(3000, NULL), 3000, NULL);
	return err ? err : hetmem_walk(pool, &walk);
}

static void callbacks(void)
{
	struct hetmem_walk walk = { .size = sizeof(walk) };
	int i, nr = 0;

	make_pool("vmm", NULL);
	for (i = 0; i < 10; i++)
		get(100000, NULL);
	walk.data = &nr;
	walk.block = end_with;
	is(hetmem_walk(pool, &walk), -EOPNOTSUPP, "a callback ends the walk");
	is(nr, 3, "at once");
	nr = 0;
	walk.segment = end_first;
	is(hetmem_walk(pool, &walk), 7, "so does that for segments");
	is(nr, 1, "before its blocks");
	walk.segment = NULL;
	walk.block = busy;
	is(hetmem_walk(pool, &walk), 0, "callbacks use the resource");
	is(pool_stats().live, 0, "and may free what they see");
	hetmem_resource_destroy(pool);
}

static void adaptors(void)
{
	void *p = NULL, *q = NULL;

	need(!hetmem_resource_create(hm, "stats(limit(align(retry(pool(vmm)),align=64K),max=80M))",
				     &pool), "a stack");
	p = get(100000, NULL);
	is(walk_of(pool, 0), 0, "through a stack");
	ok(is_at(p, HETMEM_BLOCK_LIVE, 100000, NULL), "down to the pool");
	put(p, 0, NULL);
	hetmem_resource_destroy(pool);
	need(!hetmem_resource_create(hm, "binning(pool(vmm),pool(device),at=1M)",
				     &pool), "two");
	p = get(100000, NULL);
	q = get(5 * MIB, NULL);
	is(walk_of(pool, 0), 0, "side by side");
	ok(at(p) && at(q), "both");
	hetmem_resource_destroy(pool);
	need(!hetmem_resource_create(hm, "binning(pool(vmm),device,at=1M)",
				     &pool), "one");
	p = get(100000, NULL);
	is(walk_of(pool, 0), 0, "of two, one is a pool");
	ok(at(p), "which is walked");
	hetmem_resource_destroy(pool);
	need(!hetmem_resource_create(hm, "pool(host)", &pool), "host memory");
	p = get(100000, HETMEM_STREAM_HOST);
	is(walk_of(pool, 0), 0, "host memory");
	ok(is_at(p, HETMEM_BLOCK_LIVE, 100000, HETMEM_STREAM_HOST) &&
	   seen.segments[0].device == -1 && seen.segments[0].small,
	   "is no device's");
	put(p, 0, HETMEM_STREAM_HOST);
	hetmem_resource_destroy(pool);
}

/* Threads, while others are walked over. */

#define KEPT		3000

static void *kept[KEPT];
static CUcontext context;
static int stop;
static CUstream streams[3];

static size_t kept_size(int i)
{
	return 100 + i * 37 % 5000 * (i % 11 ? 1 : 300);
}

static void *churn(void *arg)
{
	unsigned int seed = (uintptr_t)arg;
	void *p[64] = { NULL };
	long bad = 0;
	unsigned int i;

	drv->cuCtxSetCurrent(context);
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		seed = seed * 1103515245 + 12345;
		i = seed >> 26;
		if (p[i])
			bad += !!hetmem_free(pool, p[i], 0,
					     streams[(seed >> 8) % 3]);
		p[i] = NULL;
		if (seed & 512)
			bad += !!hetmem_alloc(pool, seed & 0x7000 ?
					      1 + (seed >> 10) % 20000 :
					      (seed >> 8) % (4 * MIB), 0,
					      streams[(seed >> 12) % 3], &p[i]);
		if (!(seed & 0xfff00))
			bad += !!hetmem_trim(pool, 0, NULL);
	}
	for (i = 0; i < 64; i++)
		if (p[i])
			bad += !!hetmem_free(pool, p[i], 0, streams[0]);
	return (void *)bad;
}

struct count {
	int times[KEPT];
	int wrong;
	char *next;
};

static int by_address(const void *a, const void *b)
{
	const char *const *x = a, *const *y = b;

	return *x < *y ? -1 : *x > *y;
}

static int see_kept(void *data, const struct hetmem_walk_segment *segment,
		    const struct hetmem_walk_block *block)
{
	struct count *c = data;
	void **k = bsearch(&block->ptr, kept, KEPT, sizeof(*kept), by_address);

	(void)segment;
	c->wrong += (char *)block->ptr < c->next;
	c->next = (char *)block->ptr + block->bytes;
	if (!k)
		return 0;
	c->times[k - kept]++;
	c->wrong += block->state != HETMEM_BLOCK_LIVE ||
		*(int *)block->ptr != (int)block->requested;
	return 0;
}

/* What is live all the time is there, once, as it is. */
static void threads(const char *provider)
{
	static struct count c;
	const struct hetmem_walk walk = {
		.size = sizeof(walk), .block = see_kept, .data = &c,
	};
	int i, round, missed = 0, wrong = 0, err = 0;
	pthread_t t[3];
	long bad = 0;
	void *one;

	make_pool(provider, NULL);
	for (i = 0; i < 3; i++)
		streams[i] = new_stream();
	for (i = 0; i < KEPT; i++) {
		kept[i] = get(kept_size(i), streams[i % 3]);
		*(int *)kept[i] = kept_size(i);
	}
	qsort(kept, KEPT, sizeof(*kept), by_address);
	__atomic_store_n(&stop, 0, __ATOMIC_RELAXED);
	for (i = 0; i < 3; i++)
		pthread_create(&t[i], NULL, churn, (void *)(uintptr_t)(i + 1));
	for (round = 0; round < 50; round++) {
		memset(&c, 0, sizeof(c));
		err |= hetmem_walk(pool, &walk);
		for (i = 0; i < KEPT; i++)
			missed += c.times[i] != 1;
		wrong += c.wrong;
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (i = 0; i < 3; i++) {
		pthread_join(t[i], &one);
		bad += (long)one;
	}
	is(bad, 0, "%s: threads succeed", provider);
	is(err, 0, "%s: so do walks", provider);
	is(missed, 0, "%s: what stays is seen once", provider);
	is(wrong, 0, "%s: as it is, in order", provider);
	for (i = 0; i < KEPT; i++)
		put(kept[i], 0, streams[0]);
	complete(provider);
	hetmem_resource_destroy(pool);
	for (i = 0; i < 3; i++)
		drv->cuStreamDestroy(streams[i]);
}

static int sum_segments(void *data, const struct hetmem_walk_segment *segment)
{
	((uint64_t *)data)[!segment->small] += segment->bytes;
	return 0;
}

/* What a pool keeps about its memory is what a walk finds. */
static void sums(const char *provider)
{
	const struct hetmem_walk walk = { .size = sizeof(walk), .segment = sum_segments };
	struct hetmem_sums made = { .size = sizeof(made) };
	CUstream s = new_stream(), other = new_stream();
	struct hetmem_walk with = walk;
	uint64_t found[2] = { 0 };
	void *p[40];
	int i;

	make_pool(provider, NULL);
	is(hetmem_pool_sums(pool, &made), 0, "%s: sums of nothing", provider);
	is(made.made + made.held[0] + made.held_bytes[1] + made.free[0], 0, "are nothing");
	for (i = 0; i < 40; i++)
		p[i] = get(i % 2 ? 3000 : (1 + i % 5) * MIB + 512, s);
	need(!hetmem_record_stream(pool, p[0], other), "a use");
	close_gate(other);
	for (i = 0; i < 40; i += 2)
		put(p[i], 0, s);
	need(!hetmem_pool_sums(pool, &made), "sums");
	with.data = found;
	need(!hetmem_walk(pool, &with), "a walk");
	is(made.held_bytes[0], found[0], "%s: bytes of small blocks", provider);
	is(made.held_bytes[1], found[1], "%s: and of larger ones", provider);
	is(made.held_bytes[0] + made.held_bytes[1], pool_stats().reserved, "all that is held");
	is(made.made_bytes - made.given_back_bytes, pool_stats().reserved, "made, not given back");
	is(made.held[0] + made.held[1], made.made - made.given_back, "in as many pieces");
	is(made.pending[1], 1, "%s: one block waits", provider);
	is(made.pending_bytes[1], MIB + 512, "with its bytes");
	ok(made.free[1] > 0, "others are free");
	open_gate();
	for (i = 1; i < 40; i += 2)
		put(p[i], 3000, s);
	drv->cuCtxSynchronize();
	hetmem_trim(pool, 0, NULL);
	need(!hetmem_pool_sums(pool, &made), "sums");
	is(made.given_back, made.made, "%s: all went back", provider);
	is(made.given_back_bytes, made.made_bytes, "with its bytes");
	is(made.held[0] + made.held[1] + made.held_bytes[0] + made.held_bytes[1] +
	   made.pending[1] + made.free[0] + made.free[1], 0, "nothing is left");
	made.size = 8;
	is(hetmem_pool_sums(pool, &made), -EINVAL, "a size that is too small");
	made.size = sizeof(made) + 8;
	is(hetmem_pool_sums(pool, &made), -E2BIG, "a later version");
	is(hetmem_pool_sums(pool, NULL), -EINVAL, "no sums");
	hetmem_resource_destroy(pool);
	need(!hetmem_resource_create(hm, "stats(fallback(pool(vmm,max=8M),pool(device)))", &pool),
	     "two pools");
	p[0] = get(7 * MIB, s);
	p[1] = get(9 * MIB, s);
	made.size = sizeof(made);
	is(hetmem_pool_sums(pool, &made), 0, "sums of two pools");
	is(made.held_bytes[1], pool_stats().reserved, "are those of both");
	hetmem_resource_destroy(pool);
	need(!hetmem_resource_create(hm, "device", &pool), "no pool");
	is(hetmem_pool_sums(pool, &made), -EOPNOTSUPP, "has no sums");
	hetmem_resource_destroy(pool);
	drv->cuStreamDestroy(s);
	drv->cuStreamDestroy(other);
}

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "1G", 1);
	open_soft("");
	drv->cuCtxGetCurrent(&context);
	count_calls();
	bad_input();
	states("device");
	states("vmm");
	ids("device", 700);
	ids("vmm", 3 * MIB);
	callbacks();
	adaptors();
	threads("device");
	threads("vmm");
	sums("device");
	sums("vmm");
	is(device_used(), 0, "nothing is left");
	close_soft();
	return tap_end();
}
