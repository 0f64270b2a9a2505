// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * hetmem_shrink() of a range inside a block: whole handles serve others, and the block keeps
 * its address, its size, and the contents of all other bytes, until one free ends all of it.
 */
#include "shrink_test.h"

/* Bytes of a block that have memory, as its segments say. */
static size_t has_memory(struct hetmem_resource *res, const char *p, size_t size)
{
	struct hetmem_segment seg[256];
	ssize_t nr = hetmem_segments(res, p, size, seg, 256), i;
	size_t sum = 0, end = 0;

	need(nr > 0, "segments: %s", hetmem_last_error());
	for (i = 0; i < nr; i++) {
		need(seg[i].offset >= end && (char *)seg[i].base == p + seg[i].offset,
		     "segment %zd is where it says", i);
		end = seg[i].offset + seg[i].length;
		sum += seg[i].length;
	}
	return sum;
}

static void window(const char *spec, size_t size, size_t from, size_t length)
{
	struct hetmem_resource *res = make(spec);
	char *p = get(res, size, NULL), *q;
	size_t before;

	memset(p, 7, size);
	before = held(res);
	is(hetmem_shrink(res, p, from, length, NULL), 0, "%s: %zu at %zu of %zu go: %s", spec,
	   length, from, size, hetmem_last_error());
	is(stats(res).requested, size, "as many bytes are requested");
	is(has_memory(res, p, size), size - length, "its segments have the others");
	q = get(res, length, NULL);
	ok(q && held(res) == before, "which serve the next, before a trim: %zu", held(res));
	ok(q + length <= p || q >= p + size, "at addresses of its own");
	memset(q, 9, length);
	ok(all_bytes(p, 7, from) && all_bytes(p + from + length, 7, size - from - length),
	   "what stays has its contents");
	hetmem_free(res, q, length, NULL);
	hetmem_trim(res, 0, NULL);
	is(held(res), before - length, "they go back to the driver");
	is(held(res), device_used(), "which agrees");
	is(hetmem_shrink(res, p, from, length, NULL), 0, "a second time there is nothing");
	is(has_memory(res, p, size), size - length, "to go");
	need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), "sleeps: %s", hetmem_last_error());
	is(stats(res).parked <= size - length + 2 * MIB, 1, "%zu bytes are parked",
	   (size_t)stats(res).parked);
	need(!hetmem_wake(res, NULL), "wakes: %s", hetmem_last_error());
	ok(all_bytes(p, 7, from) && all_bytes(p + from + length, 7, size - from - length),
	   "a sleep keeps the contents");
	is(has_memory(res, p, size), size - length, "and the hole");
	is(hetmem_free(res, p, size - length, NULL), -EINVAL, "its size is what it was");
	is(hetmem_free(res, p, size, NULL), 0, "one free ends it");
	is(stats(res).requested, 0, "nothing is requested");
	q = get(res, size - length, NULL);
	ok(q && held(res) <= before - length, "its memory serves one block: %zu", held(res));
	hetmem_free(res, q, 0, NULL);
	hetmem_trim(res, 0, NULL);
	is(held(res), 0, "nothing is left");
	is(hetmem_resource_destroy(res), 0, "destroyed");
	is(device_used(), 0, "all is given back");
}

/* Handles that the range covers in part stay, and so does the one that the block begins in. */
static void in_part(void)
{
	struct hetmem_resource *res = make("pool(vmm,handle=8M)");
	char *p = get(res, 64 * MIB, NULL);

	memset(p, 1, 64 * MIB);
	is(hetmem_shrink(res, p, 1, 8 * MIB, NULL), 0, "less than a handle");
	is(has_memory(res, p, 64 * MIB), 64 * MIB, "changes nothing");
	is(hetmem_shrink(res, p, 9 * MIB, 22 * MIB, NULL), 0, "from 9 to 31 MiB");
	is(has_memory(res, p, 64 * MIB), 56 * MIB, "is one handle");
	is(hetmem_shrink(res, p, 0, 60 * MIB, NULL), 0, "from the beginning on: %s",
	   hetmem_last_error());
	is(has_memory(res, p, 64 * MIB), 16 * MIB, "the first and the last stay");
	ok(all_bytes(p, 1, 8 * MIB) && all_bytes(p + 56 * MIB, 1, 8 * MIB), "with contents");
	is(hetmem_shrink(res, p, 0, 64 * MIB, NULL), -EINVAL, "all of it: %s",
	   hetmem_last_error());
	is(hetmem_grow(res, p, 30 * MIB, NULL), -EOPNOTSUPP, "no end in a hole: %s",
	   hetmem_last_error());
	is(hetmem_grow(res, p, 6 * MIB, NULL), 0, "before it: %s", hetmem_last_error());
	is(stats(res).requested, 6 * MIB, "which is its size then");
	is(has_memory(res, p, 6 * MIB), 6 * MIB, "with memory");
	is(hetmem_grow(res, p, 70 * MIB, NULL), -ENOSPC, "it has no more addresses than it had");
	is(hetmem_grow(res, p, 64 * MIB, NULL), 0, "into which it grows: %s",
	   hetmem_last_error());
	memset(p + 6 * MIB, 2, 58 * MIB);
	ok(all_bytes(p, 1, 6 * MIB) && has_memory(res, p, 64 * MIB) == 64 * MIB, "where it is");
	is(hetmem_free(res, p, 64 * MIB, NULL), 0, "freed");
	p = get(res, 100000, NULL);
	is(hetmem_shrink(res, p, 100, 1000, NULL), 0, "a small block keeps its memory");
	hetmem_free(res, p, 100000, NULL);
	hetmem_trim(res, 0, NULL);
	is(held(res), 0, "nothing is left");
	is(hetmem_resource_destroy(res), 0, "destroyed");
}

/* A block in the midst of a run: its neighbours stay whole. */
static void neighbours(void)
{
	struct hetmem_resource *res = make("pool(vmm,handle=2M,min=64M)");
	char *a = get(res, 11 * MIB, NULL), *b = get(res, 22 * MIB, NULL), *c = get(res, 9 * MIB, NULL);

	memset(a, 1, 11 * MIB);
	memset(b, 2, 22 * MIB);
	memset(c, 3, 9 * MIB);
	is(b - a, 11 * MIB, "the second begins in the last handle of the first");
	is(hetmem_shrink(res, a, 2 * MIB, 6 * MIB, NULL), 0, "one shrinks: %s", hetmem_last_error());
	/* From the handle on that comes behind that one. */
	is(hetmem_shrink(res, b, MIB, 12 * MIB, NULL), 0, "and the next: %s", hetmem_last_error());
	is(has_memory(res, b, 22 * MIB), 10 * MIB, "which keeps 10 MiB");
	hetmem_trim(res, 0, NULL);
	is(hetmem_free(res, a, 11 * MIB, NULL), 0, "the first is freed");
	is(has_memory(res, b, 22 * MIB), 10 * MIB, "the hole of the next is its own still");
	a = get(res, 11 * MIB, NULL);
	memset(a, 1, 11 * MIB);
	is(hetmem_grow(res, b, 20 * MIB, NULL), 0, "its end: %s", hetmem_last_error());
	is(hetmem_grow(res, b, MIB, NULL), 0, "its end, before the hole: %s",
	   hetmem_last_error());
	ok(all_bytes(a, 1, 11 * MIB) && all_bytes(b, 2, MIB) && all_bytes(c, 3, 9 * MIB),
	   "contents");
	hetmem_free(res, a, 0, NULL);
	hetmem_free(res, c, 0, NULL);
	a = get(res, 50 * MIB, NULL);
	memset(a, 4, 50 * MIB);
	ok(all_bytes(b, 2, MIB), "the rest serves others");
	ok(held(res) <= 64 * MIB, "%zu are held", held(res));
	hetmem_free(res, b, MIB, NULL);
	hetmem_free(res, a, 0, NULL);
	hetmem_trim(res, 0, NULL);
	ok(held(res) <= 64 * MIB, "min= stays: %zu", held(res));
	is(hetmem_resource_destroy(res), 0, "destroyed");
	is(device_used(), 0, "all is given back");
}

/* What the range was used for, and recorded uses, come before what others do with it. */
static void order(void)
{
	struct hetmem_resource *res = make("pool(vmm,handle=2M,max=64M,wait=60s)");
	CUstream a = new_stream(), b = new_stream();
	char *p = get(res, 60 * MIB, a), *q;

	soft_rules(NULL, "cuMemsetD8Async=200000");
	drv->cuMemsetD8Async((uintptr_t)p, 2, 60 * MIB, b);
	need(!hetmem_record_stream(res, p, b), "recorded");
	is(hetmem_shrink(res, p, 20 * MIB, 20 * MIB, a), 0, "shrinks: %s", hetmem_last_error());
	q = get(res, 20 * MIB, a);
	ok(q, "its stream has the memory at once");
	is(stats(res).host_wait_ns, 0, "and the host did not wait");
	drv->cuMemsetD8Async((uintptr_t)q, 3, 20 * MIB, a);
	drv->cuCtxSynchronize();
	ok(all_bytes(p, 2, 20 * MIB) && all_bytes(p + 40 * MIB, 2, 20 * MIB) &&
	   all_bytes(q, 3, 20 * MIB), "each has its contents");
	/* The free is behind what b does still. */
	drv->cuMemsetD8Async((uintptr_t)p + 40 * MIB, 5, 20 * MIB, b);
	is(hetmem_free(res, p, 60 * MIB, a), 0, "freed while b uses it");
	p = get(res, 40 * MIB, a);
	ok(p, "40 MiB: %s", hetmem_last_error());
	drv->cuMemsetD8Async((uintptr_t)p, 6, 40 * MIB, a);
	drv->cuCtxSynchronize();
	ok(all_bytes(p, 6, 40 * MIB), "came after it");
	soft_rules(NULL, NULL);
	hetmem_free(res, p, 0, a);
	hetmem_free(res, q, 0, a);
	is(hetmem_resource_destroy(res), 0, "destroyed");
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
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
	is(hetmem_shrink(res, p, 2 * MIB, 4 * MIB, NULL), err, "%s: %s", what, hetmem_last_error());
	is(hetmem_free(res, p, 8 * MIB, NULL), 0, "and it has what it had");
	hetmem_resource_destroy(res);
}

static void bad_input(void)
{
	struct hetmem_resource *res = make("pool(vmm,handle=2M,spill=64M,launcher=single)");
	struct hetmem_alloc_params movable = {
		.size = sizeof(movable), .bytes = 24 * MIB, .flags = HETMEM_ALLOC_MOVABLE,
	};
	char *p = get(res, 8 * MIB, NULL);
	void *q;

	is(hetmem_shrink(res, p + 512, 2 * MIB, 2 * MIB, NULL), -EINVAL, "an interior address");
	is(hetmem_shrink(res, p, 2 * MIB, SIZE_MAX - MIB, NULL), -EINVAL, "overflow");
	need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), "sleeps");
	is(hetmem_shrink(res, p, 2 * MIB, 2 * MIB, NULL), -EBUSY, "asleep: %s",
	   hetmem_last_error());
	need(!hetmem_wake(res, NULL), "awake");
	hetmem_free(res, p, 8 * MIB, NULL);
	need(!hetmem_alloc_with(res, &movable, &q), "a movable block");
	need(!hetmem_spill(res, q), "spills: %s", hetmem_last_error());
	is(hetmem_shrink(res, q, 4 * MIB, 12 * MIB, NULL), -EBUSY, "spilled: %s",
	   hetmem_last_error());
	need(!hetmem_fetch(res, q), "fetched");
	is(hetmem_shrink(res, q, 4 * MIB, 12 * MIB, NULL), 0, "fetched: %s", hetmem_last_error());
	ok(hetmem_spill(res, q) < 0, "a block with a hole stays: %s", hetmem_last_error());
	is(hetmem_free(res, q, 24 * MIB, NULL), 0, "freed");
	is(hetmem_resource_destroy(res), 0, "destroyed");
	res = make("pool(vmm,handle=2M)");
	p = get(res, 8 * MIB, NULL);
	is(hetmem_pin_comm(res, p), 0, "pinned");
	is(hetmem_shrink(res, p, 2 * MIB, 2 * MIB, NULL), -EOPNOTSUPP, "pinned: %s",
	   hetmem_last_error());
	hetmem_free(res, p, 8 * MIB, NULL);
	is(hetmem_resource_destroy(res), 0, "destroyed");
	refused("pool(device)", -EOPNOTSUPP, "memory in regions");
	refused("device", -EOPNOTSUPP, "no pool");
	refused("pool(vmm,comm=on)", -EOPNOTSUPP, "a pool for communication");
	refused("pool(vmm(export=fd))", -EOPNOTSUPP, "blocks with handles of their own");
	refused("guard(pool(vmm))", -EOPNOTSUPP, "guarded blocks");
	refused("stats(limit(pool(vmm,handle=2M),max=100M))", 0, "adaptors pass it on");
}

/* The calls of a shrink fail, one after the other, alone and with the one that undoes it. */
static void each_call(const char *undo)
{
	static const char *const fails[] = { "cuMemMap", "cuMemSetAccess" };
	struct hetmem_resource *res;
	unsigned int i, n;
	char rule[100];
	size_t before;
	char *p;
	int err;

	for (i = 0; i < 2; i++) {
		for (n = 1; n <= 6; n++) {
			res = make("pool(vmm,handle=2M)");
			p = get(res, 20 * MIB, NULL);
			memset(p, 9, 20 * MIB);
			before = held(res);
			snprintf(rule, sizeof(rule), "%s:%u=CUDA_ERROR_UNKNOWN%s", fails[i], n, undo);
			soft_rules(rule, NULL);
			err = hetmem_shrink(res, p, 6 * MIB, 10 * MIB, NULL);
			soft_rules(NULL, NULL);
			ok(n > 5 ? !err : err < 0, "%s: %d", rule, err);
			is(held(res), before, "%s: held", rule);
			is(has_memory(res, p, 20 * MIB), err ? 20 * MIB : 10 * MIB, "%s: segments", rule);
			ok(all_bytes(p, 9, 6 * MIB) && all_bytes(p + 16 * MIB, 9, 4 * MIB) &&
			   (!err || all_bytes(p, 9, 20 * MIB)), "%s: contents", rule);
			is(hetmem_shrink(res, p, 6 * MIB, 10 * MIB, NULL), 0, "%s: again: %s", rule,
			   hetmem_last_error());
			is(hetmem_free(res, p, 20 * MIB, NULL), 0, "%s: freed", rule);
			hetmem_trim(res, 0, NULL);
			is(held(res), 0, "%s: nothing is left", rule);
			is(hetmem_resource_destroy(res), 0, "%s: destroyed", rule);
			is(device_used(), 0, "%s: all is given back", rule);
		}
	}
}

#define BLOCKS	6
#define STEP	(MIB / 2)
#define MOST	(24 * MIB)

/**
 * struct cache - a block with holes
 * @gone: steps of STEP bytes that were given back, at least in part
 */
struct cache {
	char *p;
	size_t size;
	bool room;
	bool gone[2 * MOST / STEP];
	hetmem_stream s;
	int byte;
};

static unsigned int wrong_steps(const struct cache *c)
{
	unsigned int wrong = 0;
	size_t at, n;

	for (at = 0; c->p && at < c->size; at += STEP) {
		n = c->size - at < STEP ? c->size - at : STEP;
		wrong += !c->gone[at / STEP] && !all_bytes(c->p + at, c->byte, n);
	}
	return wrong;
}

static void make_block(struct hetmem_resource *res, struct cache *c, int byte, hetmem_stream s)
{
	void *p = NULL;
	int err;

	*c = (struct cache){ .byte = byte, .s = s, .room = below(2) };
	c->size = 1 + below(below(3) ? 8 * MIB : MOST);
	err = c->room ? alloc_reserve(res, c->size, 2 * MOST, s, &p) : hetmem_alloc(res, c->size, 0, s, &p);
	if (err)
		return;
	c->p = p;
	drv->cuMemsetD8Async((uintptr_t)p, byte, c->size, s);
}

static void give_back(struct hetmem_resource *res, struct cache *c, unsigned int *refused)
{
	size_t from = below(c->size), n = 1 + below(c->size - from), at;

	if (from + n >= c->size)
		return;
	if (hetmem_shrink(res, c->p, from, n, c->s)) {
		++*refused;
		return;
	}
	for (at = from / STEP; at <= (from + n - 1) / STEP; at++)
		c->gone[at] = true;
}

/* More or less at the end; the end may not be where memory went. */
static void resize(struct hetmem_resource *res, struct cache *c)
{
	size_t size = 1 + below(2 * MOST), at;

	if (hetmem_grow(res, c->p, size, c->s))
		return;
	if (size > c->size) {
		for (at = (c->size + STEP - 1) / STEP; at <= (size - 1) / STEP; at++)
			c->gone[at] = false;
		drv->cuMemsetD8Async((uintptr_t)c->p + c->size, c->byte, size - c->size, c->s);
	}
	c->size = size;
}

static void at_random(uint64_t round, const char *spec)
{
	struct hetmem_resource *res = make(spec);
	CUstream s[2] = { new_stream(), new_stream() };
	unsigned int i, n, wrong = 0, refused = 0;
	struct cache *c = calloc(BLOCKS, sizeof(*c));
	void *other = NULL;

	need(c, "host memory");
	seed = round;
	for (n = 0; n < 200; n++) {
		i = below(BLOCKS);
		if (!c[i].p) {
			make_block(res, &c[i], 1 + below(200), s[below(2)]);
		} else if (!below(6)) {
			if (below(2))
				need(!hetmem_record_stream(res, c[i].p, s[below(2)]), "recorded");
			is(hetmem_free(res, c[i].p, c[i].size, c[i].s), 0, "freed");
			c[i].p = NULL;
		} else if (below(3)) {
			give_back(res, &c[i], &refused);
		} else {
			resize(res, &c[i]);
		}
		if (!below(4)) {
			hetmem_free(res, other, 0, s[0]);
			other = NULL;
			if (!hetmem_alloc(res, MIB + below(12 * MIB), 0, s[0], &other))
				drv->cuMemsetD8Async((uintptr_t)other, 0xff, MIB, s[0]);
		}
		if (below(30))
			continue;
		drv->cuCtxSynchronize();
		if (below(2)) {
			need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), "sleeps: %s",
			     hetmem_last_error());
			need(!hetmem_wake(res, NULL), "wakes: %s", hetmem_last_error());
		} else {
			hetmem_trim(res, 0, NULL);
			is(held(res), device_used(), "the driver agrees");
		}
		for (i = 0; i < BLOCKS; i++)
			wrong += wrong_steps(&c[i]);
	}
	drv->cuCtxSynchronize();
	for (i = 0; i < BLOCKS; i++)
		wrong += wrong_steps(&c[i]);
	is(wrong, 0, "round %u over %s: steps with wrong contents", (unsigned int)round, spec);
	is(refused, 0, "no range was refused: %s", hetmem_last_error());
	hetmem_free(res, other, 0, s[0]);
	for (i = 0; i < BLOCKS; i++)
		hetmem_free(res, c[i].p, c[i].size, c[i].s);
	is(stats(res).requested, 0, "nothing is requested");
	hetmem_trim(res, 0, NULL);
	is(held(res), 0, "nothing is held");
	is(hetmem_resource_destroy(res), 0, "destroyed");
	is(device_used(), 0, "all is given back");
	drv->cuStreamDestroy(s[0]);
	drv->cuStreamDestroy(s[1]);
	free(c);
}

static void all(const char *check, unsigned int rounds)
{
	uint64_t round;

	setenv("HETMEM_SOFT_CHECK", check, 1);
	open_soft("");
	window("pool(vmm,handle=2M)", 64 * MIB, 10 * MIB, 30 * MIB);
	window("pool(vmm,handle=2M)", 20 * MIB, 2 * MIB, 2 * MIB);
	window("pool(vmm,handle=4M)", 48 * MIB, 4 * MIB, 40 * MIB);
	in_part();
	neighbours();
	order();
	bad_input();
	each_call("");
	each_call(",cuMemUnmap:1");
	for (round = 1; round <= rounds; round++) {
		at_random(round, "pool(vmm,handle=2M,wait=60s)");
		at_random(round + 100, "pool(vmm,max=120M,wait=60s)");
		at_random(round + 200, "pool(vmm,wait=60s)");
	}
	close_soft();
}

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "1G", 1);
	all("0", 2);
	all("1", 1);
	return tap_end();
}
