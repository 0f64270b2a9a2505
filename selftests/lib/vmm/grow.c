// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * hetmem_grow() and hetmem_alloc_with() that fail leave everything as it was: the
 * block, its neighbours, the room after it, its uses, and what the pool holds.
 */
#include "alloc_with.h"
#include "block_of.h"
#include "pool_gate.h"

#define GIB	((size_t)1 << 30)

static size_t usable(const void *p)
{
	struct hm_ctl_owns block;

	return block_of(pool, p, &block) ? 0 : block.size;
}

/* What the pool says it holds, is what it held and what the driver gave. */
static void same(const struct hetmem_resource_stats *was, const char *what)
{
	struct hetmem_resource_stats now = pool_stats();

	is(now.reserved, was->reserved, "%s: bytes held", what);
	is(now.requested, was->requested, "%s: bytes requested", what);
	is(device_used(), now.reserved, "%s: the driver agrees", what);
}

/* More than the device has. */
static void beyond_the_device(void)
{
	struct hetmem_resource_stats was;
	size_t had;
	char *p;

	make_pool("vmm", NULL);
	is(alloc_reserve(pool, 2 * MIB, 16 * GIB, NULL, (void **)&p), 0,
	   "2 MiB with room for 16 GiB");
	had = usable(p);
	was = pool_stats();
	is(hetmem_grow(pool, p, 16 * GIB, NULL), -ENOMEM, "more than there is: %s",
	   hetmem_last_error());
	same(&was, "too much");
	is(usable(p), had, "and the block is as large as it was");
	is(hetmem_free(pool, p, 3 * MIB, NULL), -EINVAL, "a wrong size");
	is(hetmem_grow(pool, p, 6 * GIB, NULL), 0, "what there is fits: %s",
	   hetmem_last_error());
	is(hetmem_grow(pool, p, 16 * GIB, NULL), -ENOMEM, "once more too much");
	is(hetmem_grow(pool, p, 7 * GIB, NULL), 0, "the room is still there");
	is(hetmem_free(pool, p, 7 * GIB, NULL), 0, "freed with its size");
	is(alloc_reserve(pool, 16 * GIB, 20 * GIB, NULL, (void **)&p), -ENOMEM,
	   "a first part that is too large");
	hetmem_trim(pool, 0, NULL);
	is(device_used(), 0, "leaves no memory");
	is(hetmem_resource_destroy(pool), 0, "all is freed");
}

static size_t free_bytes(void)
{
	struct hetmem_resource_stats s = pool_stats();

	return s.reserved - s.requested;
}

/* A neighbour that is free, and behind it one that is not. */
static void swallowed(void)
{
	struct hm_pool_options opt = { .handle = 2 * MIB };
	struct hetmem_resource_stats was;
	char *p, *q, *r;

	make_pool("vmm", &opt);
	p = get(12 * MIB, NULL);
	put(p, 0, NULL);
	p = get(4 * MIB, NULL);
	q = get(4 * MIB, NULL);
	r = get(4 * MIB, NULL);
	ok(q == p + 4 * MIB && r == q + 4 * MIB, "three in a row");
	put(q, 0, NULL);
	was = pool_stats();
	is(hetmem_grow(pool, p, 12 * MIB, NULL), -ENOSPC, "the third is in the way: %s",
	   hetmem_last_error());
	same(&was, "in the way");
	is(usable(p), 4 * MIB, "the first has what it had");
	is(free_bytes(), 4 * MIB, "the second is free");
	ok(get(4 * MIB, NULL) == q, "and can be had");
	put(q, 0, NULL);
	put(r, 0, NULL);
	/* Now the run ends after them, and there is no memory. */
	q = get(4 * MIB, NULL);
	ok(q == p + 4 * MIB, "the second again");
	put(q, 0, NULL);
	soft_rules("cuMemCreate:*", NULL);
	was = pool_stats();
	is(hetmem_grow(pool, p, 64 * MIB, NULL), -ENOMEM, "no memory: %s",
	   hetmem_last_error());
	soft_rules(NULL, NULL);
	is(usable(p), 4 * MIB, "the first has what it had");
	is(pool_stats().requested, was.requested, "nothing more was requested");
	put(get(8 * MIB, NULL), 0, NULL);
	is(hetmem_free(pool, p, 4 * MIB, NULL), 0, "freed with its size");
	is(hetmem_resource_destroy(pool), 0, "all is freed");
}

/* The use of a stream that a grow failed on is none. */
static void no_use(void)
{
	CUstream a = new_stream(), b = new_stream();
	char *p, *q;

	make_pool("vmm", NULL);
	put(get(512, b), 512, b);
	is(alloc_reserve(pool, 2 * MIB, 8 * MIB, a, (void **)&p), 0, "room to grow");
	soft_rules("cuMemCreate:*", NULL);
	is(hetmem_grow(pool, p, 8 * MIB, b), -ENOMEM, "no memory");
	soft_rules(NULL, NULL);
	close_gate(b);
	put(p, 2 * MIB, a);
	q = get(2 * MIB, a);
	ok(q == p, "the block is used on its own stream only");
	is(pool_stats().host_wait_ns, 0, "and nobody waits");
	open_gate();
	drv->cuCtxSynchronize();
	put(q, 0, a);
	is(hetmem_resource_destroy(pool), 0, "all is freed");
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

/* Every call of a grow fails, alone and with the calls that undo it. */
static void each_call(unsigned int nr, bool room, const char *undo)
{
	static const char *const calls[] = {
		"cuMemCreate", "cuMemMap", "cuMemSetAccess",
	};
	struct hm_pool_options opt = { .handle = 2 * MIB };
	struct hetmem_resource_stats was;
	char rule[100], what[128], *p, *q;
	unsigned int i, n;
	size_t had;
	int err;

	for (i = 0; i < nr; i++) {
		for (n = 1; n <= 5; n++) {
			snprintf(rule, sizeof(rule), "%s:%u=CUDA_ERROR_UNKNOWN%s",
				 calls[i], n, undo);
			snprintf(what, sizeof(what), "%s%s", rule,
				 room ? ", with room" : "");
			make_pool("vmm", &opt);
			if (room)
				err = alloc_reserve(pool, 3 * MIB, 32 * MIB,
							   NULL, (void **)&p);
			else
				err = hetmem_alloc(pool, 3 * MIB, 0, NULL, (void **)&p);
			need(!err, "a block");
			memset(p, 7, 3 * MIB);
			had = usable(p);
			was = pool_stats();
			soft_rules(rule, NULL);
			err = hetmem_grow(pool, p, 13 * MIB, NULL);
			soft_rules(NULL, NULL);
			if (err) {
				is(usable(p), had, "%s: as it was", what);
				is(pool_stats().requested, was.requested,
				   "%s: as much", what);
				is(pool_stats().reserved, device_used(),
				   "%s: the driver agrees", what);
				if (!*undo)
					is(pool_stats().reserved, was.reserved,
					   "%s: and no more", what);
			}
			ok(n == 5 || err, "%s: fails", what);
			ok(all_bytes(p, 7, 3 * MIB), "%s: contents stay", what);
			if (err && !*undo)
				is(hetmem_grow(pool, p, room ? 32 * MIB : 13 * MIB, NULL),
				   0, "%s: works afterwards: %s", what, hetmem_last_error());
			q = get(40 * MIB, NULL);
			memset(q, 8, 40 * MIB);
			ok(all_bytes(p, 7, 3 * MIB), "%s: still", what);
			put(q, 0, NULL);
			put(p, 0, NULL);
			is(hetmem_resource_destroy(pool), 0, "%s: all is freed", what);
			is(device_used(), 0, "%s: and given back", what);
		}
	}
}

/* A cache: @first bytes with room, which grows by @step until it has @all. */
static char *grow_by_steps(size_t first, size_t step, size_t all, hetmem_stream stream)
{
	char *p;
	size_t n;

	need(!alloc_reserve(pool, first, 2 * all, stream, (void **)&p), "a cache");
	for (n = first + step; n <= all; n += step)
		need(!hetmem_grow(pool, p, n, stream), "grows: %s", hetmem_last_error());
	return p;
}

/* What other blocks had, is what a block grows into, whatever their handles' sizes. */
static void after_others(size_t step, unsigned int nr, size_t size, CUstream of, CUstream on)
{
	struct hetmem_resource_stats was;
	void *others[64];
	unsigned int i;
	char *p;

	make_pool("vmm", NULL);
	for (i = 0; i < nr; i++)
		others[i] = get(size + i * MIB / 2, of);
	for (i = 0; i < nr; i++)
		put(others[i], 0, of);
	was = pool_stats();
	p = grow_by_steps(step, step, nr * size, on);
	ok(pool_stats().reserved_peak <= was.reserved + was.reserved / 40,
	   "%zu KiB steps after %u of %zu MiB: %zu MiB held, %zu before", step >> 10, nr,
	   size / MIB, (size_t)pool_stats().reserved_peak / MIB, (size_t)was.reserved / MIB);
	is(pool_stats().host_wait_ns, 0, "and nobody waits");
	is(pool_stats().reserved, device_used(), "the driver agrees");
	put(p, 0, on);
	is(hetmem_resource_destroy(pool), 0, "all is freed");
}

/* While the work on what was freed goes on, it stays; later steps give the more back. */
static void after_work(void)
{
	CUstream s = new_stream();
	struct hetmem_resource_stats was;
	size_t n, held, left;
	char *p, *q;

	make_pool("vmm", NULL);
	/* Nothing is free, and nothing is to be given back for that later. */
	p = grow_by_steps(2 * MIB, 2 * MIB, 128 * MIB, s);
	q = get(256 * MIB, s);
	close_gate(s);
	put(q, 0, s);
	was = pool_stats();
	for (n = 130 * MIB; n <= 192 * MIB; n += 2 * MIB)
		need(!hetmem_grow(pool, p, n, s), "grows: %s", hetmem_last_error());
	held = pool_stats().reserved;
	ok(held > was.reserved, "work goes on: memory is made");
	is(pool_stats().host_wait_ns, 0, "and nobody waits");
	open_gate();
	drv->cuStreamSynchronize(s);
	need(!hetmem_grow(pool, p, n, s), "one more step");
	left = pool_stats().reserved;
	ok(left <= was.reserved, "it is done: %zu MiB held, %zu before", left / MIB,
	   (size_t)was.reserved / MIB);
	ok(left + 16 * MIB >= was.reserved, "and no more than that went");
	put(p, 0, s);
	is(hetmem_resource_destroy(pool), 0, "all is freed");
	drv->cuStreamDestroy(s);
}

static void after_activations(void)
{
	CUstream a = new_stream(), b = new_stream();

	after_others(2 * MIB, 3, 128 * MIB, NULL, NULL);
	after_others(2 * MIB, 1, 600 * MIB, a, a);
	after_others(3 * MIB / 2, 10, 60 * MIB, a, a);
	after_others(7 * MIB, 7, 150 * MIB, a, b);
	after_others(MIB / 2, 40, 8 * MIB, HETMEM_STREAM_HOST, b);
	after_others(16 * MIB, 5, 160 * MIB, b, HETMEM_STREAM_HOST);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "8G", 1);
	open_soft("");
	count_calls();
	beyond_the_device();
	swallowed();
	no_use();
	after_activations();
	after_work();
	each_call(3, false, "");
	each_call(3, true, "");
	each_call(3, false, ",cuMemUnmap:1");
	each_call(3, true, ",cuMemUnmap:1,cuMemRelease:1");
	each_call(3, true, ",cuMemUnmap:*");
	close_soft();
	return tap_end();
}
