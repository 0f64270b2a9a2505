// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * hetmem_shrink(): a block gives its end back in the order of a stream. Contents and address
 * of what stays are as before, a block with room grows again where it is, and after an error
 * all is as it was.
 */
#include "shrink_test.h"

static char *with_room(struct hetmem_resource *res, size_t size, size_t room, hetmem_stream s)
{
	void *p;

	need(!alloc_reserve(res, size, room, s, &p), "%zu bytes: %s", size, hetmem_last_error());
	return p;
}

/* A cache of many requests: what ended ones had goes back, and the address stays. */
static void cache(size_t first, size_t most, size_t least)
{
	struct hetmem_resource *res = make("pool(vmm)");
	const size_t room = 2 * most;
	char *p = with_room(res, first, room, HETMEM_STREAM_LEGACY), *q;
	unsigned int round;

	for (round = 0; round < 3; round++) {
		need(!hetmem_grow(res, p, most, HETMEM_STREAM_LEGACY), "grows: %s",
		     hetmem_last_error());
		memset(p, round + 1, most);
		is(hetmem_shrink(res, p, least, most - least, HETMEM_STREAM_LEGACY), 0,
		   "%zu of %zu bytes stay: %s", least, most, hetmem_last_error());
		is(stats(res).requested, least, "as many are requested");
		ok(hetmem_segments(res, p, least, NULL, 0) == -ENOSPC, "it has segments");
		ok(all_bytes(p, round + 1, least), "with their contents");
		/* The rest serves others, where they are, before it goes back. */
		q = get(res, (most - least) / 2, HETMEM_STREAM_LEGACY);
		ok(q && held(res) <= most + 2 * GRANULE, "%zu bytes held", held(res));
		ok(q + (most - least) / 2 <= p || q >= p + room, "not at the block's addresses");
		memset(q, 0xee, (most - least) / 2);
		ok(all_bytes(p, round + 1, least), "which is other memory");
		hetmem_free(res, q, 0, HETMEM_STREAM_LEGACY);
		hetmem_trim(res, 0, NULL);
		ok(held(res) <= least + GRANULE + most / 64, "%zu bytes are held for %zu",
		   held(res), least);
		is(held(res), device_used(), "the driver agrees");
	}
	is(hetmem_grow(res, p, room + 2 * GRANULE, HETMEM_STREAM_LEGACY), -ENOSPC,
	   "no more than the room");
	is(hetmem_grow(res, p, room, HETMEM_STREAM_LEGACY), 0, "all of which is there: %s",
	   hetmem_last_error());
	is(hetmem_free(res, p, room, HETMEM_STREAM_LEGACY), 0, "freed with its size");
	hetmem_trim(res, 0, NULL);
	is(held(res), 0, "nothing is left");
	is(hetmem_resource_destroy(res), 0, "destroyed");
}

/* Memory that a stream still uses goes to that stream at once, and to others behind it. */
static void order(void)
{
	struct hetmem_resource *res = make("pool(vmm,max=128M)");
	CUstream a = new_stream(), b = new_stream(), c = new_stream();
	char *p = with_room(res, 96 * MIB, 256 * MIB, a), *q;

	soft_rules(NULL, "cuMemsetD8Async=200000");
	drv->cuMemsetD8Async((uintptr_t)p, 1, 96 * MIB, a);
	need(!hetmem_shrink(res, p, 8 * MIB, 88 * MIB, a), "shrinks: %s", hetmem_last_error());
	q = get(res, 80 * MIB, a);
	ok(q, "its own stream has the memory at once");
	drv->cuMemsetD8Async((uintptr_t)q, 2, 80 * MIB, a);
	hetmem_free(res, q, 0, a);
	q = get(res, 80 * MIB, b);
	ok(q, "another one, behind it");
	is(stats(res).host_wait_ns, 0, "and the host did not wait");
	drv->cuMemsetD8Async((uintptr_t)q, 3, 80 * MIB, b);
	drv->cuCtxSynchronize();
	ok(all_bytes(p, 1, 8 * MIB) && all_bytes(q, 3, 80 * MIB), "each has its contents");
	hetmem_free(res, q, 0, b);
	/* A recorded use on c, then a shrink on a: a is behind c. */
	need(!hetmem_grow(res, p, 96 * MIB, a), "grows: %s", hetmem_last_error());
	drv->cuMemsetD8Async((uintptr_t)p, 4, 96 * MIB, c);
	need(!hetmem_record_stream(res, p, c), "recorded");
	need(!hetmem_shrink(res, p, 8 * MIB, 88 * MIB, a), "shrinks: %s", hetmem_last_error());
	q = get(res, 80 * MIB, a);
	ok(q, "80 MiB: %s", hetmem_last_error());
	drv->cuMemsetD8Async((uintptr_t)q, 5, 80 * MIB, a);
	drv->cuCtxSynchronize();
	ok(all_bytes(p, 4, 8 * MIB) && all_bytes(q, 5, 80 * MIB), "a waited for c");
	soft_rules(NULL, NULL);
	hetmem_free(res, q, 0, a);
	hetmem_free(res, p, 8 * MIB, a);
	is(hetmem_resource_destroy(res), 0, "destroyed");
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
	drv->cuStreamDestroy(c);
}

/* What it gave back is in use by others behind their work: the block grows into new memory. */
static void again(void)
{
	struct hetmem_resource *res = make("pool(vmm,wait=60s)");
	CUstream a = new_stream();
	char *p = with_room(res, 64 * MIB, 128 * MIB, a), *q;

	memset(p, 1, 64 * MIB);
	need(!hetmem_shrink(res, p, 4 * MIB, 60 * MIB, a), "shrinks: %s", hetmem_last_error());
	q = get(res, 60 * MIB, a);
	memset(q, 2, 60 * MIB);
	is(hetmem_grow(res, p, 64 * MIB, a), 0, "grows again: %s", hetmem_last_error());
	memset(p + 4 * MIB, 3, 60 * MIB);
	ok(all_bytes(p, 1, 4 * MIB) && all_bytes(p + 4 * MIB, 3, 60 * MIB) &&
	   all_bytes(q, 2, 60 * MIB), "no byte is two blocks'");
	hetmem_free(res, q, 0, a);
	need(!hetmem_shrink(res, p, 4 * MIB, 60 * MIB, a), "shrinks");
	is(hetmem_grow(res, p, 64 * MIB, a), 0, "grows at once");
	memset(p + 4 * MIB, 4, 60 * MIB);
	ok(all_bytes(p, 1, 4 * MIB), "the beginning stays");
	/*
	 * Work on its old memory is under way, which is another block's now: the host waits. No
	 * other memory is free, which would be waited for in any case.
	 */
	drv->cuCtxSynchronize();
	hetmem_trim(res, 0, NULL);
	soft_rules(NULL, "cuMemsetD8Async=100000");
	drv->cuMemsetD8Async((uintptr_t)p, 5, 64 * MIB, a);
	need(!hetmem_shrink(res, p, 4 * MIB, 60 * MIB, a), "shrinks");
	q = get(res, 60 * MIB, a);
	drv->cuMemsetD8Async((uintptr_t)q, 7, 60 * MIB, a);
	is(hetmem_grow(res, p, 64 * MIB, a), 0, "grows after the work: %s", hetmem_last_error());
	soft_rules(NULL, NULL);
	drv->cuCtxSynchronize();
	ok(all_bytes(p, 5, 4 * MIB), "the beginning stays");
	memset(p + 4 * MIB, 6, 60 * MIB);
	ok(all_bytes(q, 7, 60 * MIB), "the rest is other memory");
	hetmem_free(res, q, 0, a);
	hetmem_trim(res, 0, NULL);
	ok(held(res) <= 128 * MIB, "%zu bytes held", held(res));
	hetmem_free(res, p, 0, a);
	is(hetmem_resource_destroy(res), 0, "destroyed");
	drv->cuStreamDestroy(a);
}

/* Without room the end is free where it is, to the byte. */
static void in_place(void)
{
	struct hetmem_resource *res = make("stats(limit(pool(vmm),max=100M))");
	char *p = get(res, 64 * MIB, NULL), *q;
	struct hetmem_resource_stats s;

	memset(p, 1, 64 * MIB);
	is(hetmem_shrink(res, p, 10 * MIB + 100, 54 * MIB - 100, NULL), 0, "shrinks: %s",
	   hetmem_last_error());
	s = stats(res);
	is(s.requested, 10 * MIB + 100, "statistics: bytes requested");
	q = get(res, 53 * MIB, NULL);
	ok(q && held(res) == 64 * MIB, "the limit has room, and no memory was made: %zu",
	   held(res));
	memset(q, 2, 53 * MIB);
	ok(all_bytes(p, 1, 10 * MIB + 100), "what stays has its contents");
	is(hetmem_free(res, p, 64 * MIB, NULL), -EINVAL, "the old size is wrong");
	is(hetmem_free(res, p, 10 * MIB + 100, NULL), 0, "the new one is right");
	hetmem_free(res, q, 0, NULL);
	p = get(res, 100000, NULL);
	is(hetmem_shrink(res, p, 1000, 99000, NULL), 0, "a small block");
	is(stats(res).requested, 1000, "counts less");
	is(hetmem_grow(res, p, 50000, NULL), 0, "and grows again");
	is(hetmem_grow(res, p, 400, NULL), 0, "hetmem_grow() shrinks, too");
	is(stats(res).requested, 400, "to 400 bytes");
	hetmem_free(res, p, 400, NULL);
	is(stats(res).requested, 0, "none is left");
	is(hetmem_resource_destroy(res), 0, "destroyed");
}

static int shrink(struct hetmem_resource *res, void *p)
{
	return hetmem_shrink(res, p, 4 * MIB, 4 * MIB, NULL);
}

static void refused(const char *spec, int err, const char *what)
{
	struct hetmem_resource *res;
	char *p;

	if (hetmem_resource_create(hm, spec, &res)) {
		ok(false, "%s: %s", spec, hetmem_last_error());
		return;
	}
	p = get(res, 8 * MIB, NULL);
	is(shrink(res, p), err, "%s: %s", what, hetmem_last_error());
	is(hetmem_free(res, p, 8 * MIB, NULL), 0, "and it has what it had");
	hetmem_resource_destroy(res);
}

static void bad_input(void)
{
	struct hetmem_resource *res = make("pool(vmm,spill=64M,launcher=single)");
	struct hetmem_alloc_params movable = {
		.size = sizeof(movable), .bytes = 24 * MIB, .flags = HETMEM_ALLOC_MOVABLE,
	};
	char *p = get(res, 8 * MIB, NULL);
	CUstream s = new_stream();
	CUgraph graph;
	void *q;

	is(hetmem_shrink(res, NULL, 4 * MIB, 4 * MIB, NULL), -EINVAL, "NULL");
	is(hetmem_shrink(res, p, 0, 8 * MIB, NULL), -EINVAL, "all of it");
	is(hetmem_shrink(res, p + 512, 4 * MIB, 4 * MIB, NULL), -EINVAL, "an interior address");
	is(hetmem_shrink(res, p, 9 * MIB, MIB, NULL), -EINVAL, "beyond its end");
	is(hetmem_shrink(res, p, 4 * MIB, SIZE_MAX - MIB, NULL), -EINVAL, "overflow");
	is(hetmem_shrink(res, p, 4 * MIB, 5 * MIB, NULL), -EINVAL, "more than it has");
	is(hetmem_shrink(res, p, 4 * MIB, 0, NULL), 0, "nothing");
	is(stats(res).requested, 8 * MIB, "it has what it had");
	need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), "sleeps");
	is(shrink(res, p), -EBUSY, "asleep: %s", hetmem_last_error());
	need(!hetmem_wake(res, NULL), "awake");
	is(hetmem_pin_comm(res, p), 0, "pinned");
	is(shrink(res, p), -EOPNOTSUPP, "pinned for communication: %s", hetmem_last_error());
	hetmem_free(res, p, 8 * MIB, NULL);
	hetmem_resource_destroy(res);
	res = make("pool(vmm,handle=2M,spill=64M,launcher=single)");
	need(!hetmem_alloc_with(res, &movable, &q), "a movable block");
	need(!hetmem_spill(res, q), "spills: %s", hetmem_last_error());
	is(hetmem_shrink(res, q, 12 * MIB, 12 * MIB, NULL), -EBUSY, "spilled: %s",
	   hetmem_last_error());
	need(!hetmem_fetch(res, q), "fetched");
	is(hetmem_shrink(res, q, 12 * MIB, 12 * MIB, NULL), 0, "fetched: %s",
	   hetmem_last_error());
	need(!hetmem_spill(res, q), "spills again: %s", hetmem_last_error());
	ok(stats(res).spilled <= 12 * MIB, "what it has");
	hetmem_free(res, q, 12 * MIB, NULL);
	need(!hetmem_capture_begin(res, s, 3) &&
	     !drv->cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL), "capturing");
	p = get(res, 8 * MIB, s);
	is(hetmem_shrink(res, p, 4 * MIB, 4 * MIB, s), -EBUSY, "of a capture: %s",
	   hetmem_last_error());
	hetmem_free(res, p, 8 * MIB, s);
	need(!drv->cuStreamEndCapture(s, &graph) && !hetmem_capture_end(res, s, 3) &&
	     !hetmem_capture_release(res, s, 3), "captured");
	drv->cuGraphDestroy(graph);
	is(hetmem_resource_destroy(res), 0, "destroyed");
	drv->cuStreamDestroy(s);
	refused("pool(device)", -EOPNOTSUPP, "memory in regions");
	refused("device", -EOPNOTSUPP, "no pool");
	refused("pool(vmm,comm=on)", -EOPNOTSUPP, "a pool for communication");
	refused("pool(vmm(export=fd))", -EOPNOTSUPP, "blocks with handles of their own");
	refused("guard(pool(vmm))", -EOPNOTSUPP, "guarded blocks");
}

/* The calls of a shrink fail, one after the other, alone and with the one that undoes it. */
static void each_call(const char *undo)
{
	static const char *const fails[] = { "cuMemMap", "cuMemSetAccess" };
	struct hetmem_resource_stats was;
	struct hetmem_resource *res;
	unsigned int i, n;
	char rule[100];
	char *p;
	int err;

	for (i = 0; i < 2; i++) {
		for (n = 1; n <= 7; n++) {
			res = make("pool(vmm)");
			p = with_room(res, 12 * MIB, 24 * MIB, NULL);
			memset(p, 9, 12 * MIB);
			was = stats(res);
			snprintf(rule, sizeof(rule), "%s:%u=CUDA_ERROR_UNKNOWN%s", fails[i], n, undo);
			soft_rules(rule, NULL);
			err = hetmem_shrink(res, p, 2 * MIB, 10 * MIB, NULL);
			soft_rules(NULL, NULL);
			ok(n > 5 ? !err : err < 0, "%s: %d", rule, err);
			is(stats(res).requested, err ? was.requested : 2 * MIB, "%s: requested", rule);
			is(held(res), was.reserved, "%s: held", rule);
			ok(all_bytes(p, 9, err ? 12 * MIB : 2 * MIB), "%s: contents", rule);
			is(hetmem_grow(res, p, 24 * MIB, NULL), 0, "%s: it grows: %s", rule,
			   hetmem_last_error());
			memset(p, 8, 24 * MIB);
			is(hetmem_shrink(res, p, 2 * MIB, 22 * MIB, NULL), 0, "%s: and shrinks: %s",
			   rule, hetmem_last_error());
			ok(all_bytes(p, 8, 2 * MIB), "%s: with contents", rule);
			hetmem_free(res, p, 2 * MIB, NULL);
			hetmem_trim(res, 0, NULL);
			is(held(res), 0, "%s: nothing is left", rule);
			is(hetmem_resource_destroy(res), 0, "%s: destroyed", rule);
			is(device_used(), 0, "%s: all is given back", rule);
		}
	}
}

/* Caches that grow and shrink at random, beside other blocks, near the limit of the pool. */
#define CACHES	6
#define ROOM	(24 * MIB)

static void at_random(uint64_t round, const char *spec)
{
	struct hetmem_resource *res = make(spec);
	struct { char *p; size_t size; int byte; hetmem_stream s; } c[CACHES];
	size_t sum = 0, size, most = 76 * MIB;
	unsigned int i, n, wrong = 0, refusals = 0;
	void *other = NULL;
	CUstream s[2] = { new_stream(), new_stream() };

	seed = round;
	for (i = 0; i < CACHES; i++) {
		c[i].s = s[i % 2];
		c[i].size = 1 + below(4 * MIB);
		c[i].byte = i + 1;
		c[i].p = with_room(res, c[i].size, ROOM, c[i].s);
		drv->cuMemsetD8Async((uintptr_t)c[i].p, c[i].byte, c[i].size, c[i].s);
		sum += c[i].size;
	}
	for (n = 0; n < 120; n++) {
		i = below(CACHES);
		size = 1 + below(below(4) ? 6 * MIB : ROOM - 1);
		if (size > c[i].size && sum + size - c[i].size > most)
			continue;
		if (hetmem_grow(res, c[i].p, size, c[i].s)) {
			refusals++;
			continue;
		}
		/* In stream order, what it had and what is new. */
		if (size > c[i].size)
			drv->cuMemsetD8Async((uintptr_t)c[i].p + c[i].size, c[i].byte,
					     size - c[i].size, c[i].s);
		sum += size - c[i].size;
		c[i].size = size;
		if (!below(8)) {
			hetmem_free(res, other, 0, s[0]);
			other = NULL;
			size = 1 + below(8 * MIB);
			if (sum + size <= most && !hetmem_alloc(res, size, 0, s[0], &other))
				drv->cuMemsetD8Async((uintptr_t)other, 0xff, size, s[0]);
		}
		if (below(40))
			continue;
		drv->cuCtxSynchronize();
		for (i = 0; i < CACHES; i++)
			wrong += !all_bytes(c[i].p, c[i].byte, c[i].size);
	}
	drv->cuCtxSynchronize();
	for (i = 0; i < CACHES; i++)
		wrong += !all_bytes(c[i].p, c[i].byte, c[i].size);
	is(wrong, 0, "round %u over %s: blocks with wrong contents", (unsigned int)round, spec);
	is(refusals, 0, "and no step was refused: %s", hetmem_last_error());
	hetmem_free(res, other, 0, s[0]);
	hetmem_trim(res, 0, NULL);
	ok(held(res) <= sum + CACHES * (GRANULE + MIB), "%zu bytes held for %zu", held(res), sum);
	is(held(res), device_used(), "the driver agrees");
	for (i = 0; i < CACHES; i++)
		is(hetmem_free(res, c[i].p, c[i].size, c[i].s), 0, "cache %u is freed", i);
	is(hetmem_resource_destroy(res), 0, "destroyed");
	is(device_used(), 0, "all is given back");
	drv->cuStreamDestroy(s[0]);
	drv->cuStreamDestroy(s[1]);
}

static void all(const char *check)
{
	uint64_t round;

	setenv("HETMEM_SOFT_CHECK", check, 1);
	open_soft("");
	cache(GRANULE, 128 * MIB, 40 * MIB);
	cache(100, 66 * MIB + 7, 5 * MIB + 3);
	cache(3 * MIB, 96 * MIB, 1);
	order();
	again();
	in_place();
	bad_input();
	each_call("");
	each_call(",cuMemUnmap:1");
	for (round = 1; round <= 2; round++) {
		at_random(round, "pool(vmm,wait=60s)");
		at_random(round + 100, "pool(vmm,max=100M,wait=60s)");
	}
	close_soft();
}

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "1G", 1);
	all("0");
	all("1");
	return tap_end();
}
