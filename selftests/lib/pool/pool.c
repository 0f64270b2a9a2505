// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The pool over each kind of provider: sizes, alignment, contents, bad
 * arguments, limits, trim, destroy.
 */
#include "block_of.h"
#include "pool.h"

static const char *provider;

static void sizes(void)
{
	static const size_t list[] = {
		0, 1, 255, 512, 513, 4096, 1 * MIB - 1, 1 * MIB, 1 * MIB + 1,
		2 * MIB, 3 * MIB + 77, 40 * MIB,
	};
	const size_t nr = sizeof(list) / sizeof(list[0]);
	struct hm_ctl_owns block;
	void *p[sizeof(list) / sizeof(list[0])];
	bool aligned = true, whole = true, owned = true;
	struct hetmem_resource_stats s;
	size_t i;

	for (i = 0; i < nr; i++) {
		p[i] = get(list[i], NULL);
		aligned &= !((uintptr_t)p[i] & (HETMEM_ALIGNMENT - 1));
		memset(p[i], i + 1, list[i]);
	}
	ok(aligned, "%s: 512-byte aligned", provider);
	for (i = 0; i < nr; i++) {
		whole &= all_bytes(p[i], i + 1, list[i]);
		owned &= !block_of(pool, (char *)p[i] + list[i] / 2,
				      &block) && block.base == p[i] &&
			block.size >= list[i];
	}
	ok(whole, "%s: blocks do not overlap", provider);
	ok(owned, "%s: owns knows interior pointers", provider);
	s = pool_stats();
	is(s.live, nr, "%s: live blocks", provider);
	is(s.reserved, device_used(), "%s: reserved is what the driver says",
	   provider);
	for (i = 0; i < nr; i++)
		put(p[i], i & 1 ? list[i] : 0, NULL);
	s = pool_stats();
	is(s.live, 0, "%s: none is live", provider);
	is(s.requested, 0, "%s: no byte is requested", provider);
	is(block_of(pool, p[3], &block), -ENOENT,
	   "%s: and none is owned", provider);
}

static void alignment(void)
{
	size_t align;
	bool good = true;
	void *p[16];
	int i;

	for (align = 512; align <= 4 * MIB; align *= 2) {
		for (i = 0; i < 16; i++) {
			good &= !hetmem_alloc(pool, 700 + i, align, NULL,
					      &p[i]) &&
				!((uintptr_t)p[i] & (align - 1));
			memset(p[i], i, 700 + i);
		}
		for (i = 0; i < 16; i++) {
			good &= all_bytes(p[i], i, 700 + i);
			put(p[i], 700 + i, NULL);
		}
	}
	ok(good, "%s: larger alignments", provider);
	is(hetmem_alloc(pool, 1, 3, NULL, &p[0]), -EINVAL,
	   "%s: 3 is none", provider);
}

static void bad_frees(void)
{
	struct hetmem_resource_stats before, after;
	char *p = get(1000, NULL), *large = get(3 * MIB, NULL);
	int local;

	before = pool_stats();
	is(hetmem_free(pool, p + 512, 0, NULL), -EINVAL,
	   "%s: interior pointer", provider);
	is(hetmem_free(pool, &local, 0, NULL), -EINVAL, "%s: foreign pointer",
	   provider);
	is(hetmem_free(pool, p, 999, NULL), -EINVAL, "%s: wrong size",
	   provider);
	ok(strstr(hetmem_last_error(), "1000 bytes, not 999"),
	   "%s: and it says so: %s", provider, hetmem_last_error());
	is(hetmem_free(pool, large, 2 * MIB, NULL), -EINVAL,
	   "%s: wrong size of a large one", provider);
	is(hetmem_free(pool, p, 0, (hetmem_stream)0x1234560), -EINVAL,
	   "%s: not a stream", provider);
	is(hetmem_record_stream(pool, p + 512, NULL), -EINVAL,
	   "%s: record_stream inside", provider);
	after = pool_stats();
	is(after.live, before.live, "%s: nothing has changed", provider);
	put(p, 1000, NULL);
	put(large, 3 * MIB, NULL);
	is(hetmem_free(pool, p, 1000, NULL), -EINVAL, "%s: twice", provider);
	is(hetmem_free(pool, large, 0, NULL), -EINVAL, "%s: large, twice",
	   provider);
	is(hetmem_free(pool, NULL, 0, NULL), 0, "%s: NULL is nothing",
	   provider);
	is(pool_stats().live, before.live - 2, "%s: counted once", provider);
}

static void reuse(void)
{
	void *a = get(700, NULL), *b;

	put(a, 700, NULL);
	b = get(1000, NULL);
	ok(a == b, "%s: the same class comes back", provider);
	put(b, 0, NULL);
}

static void coalesce(void)
{
	uint64_t before, after;
	void *p[24];
	int i;

	for (i = 0; i < 24; i++)
		p[i] = get(2 * MIB, NULL);
	before = pool_stats().reserved;
	for (i = 0; i < 24; i += 2)
		put(p[i], 0, NULL);
	for (i = 1; i < 24; i += 2)
		put(p[i], 0, NULL);
	p[0] = get(40 * MIB, NULL);
	after = pool_stats().reserved;
	if (!strcmp(provider, "vmm"))
		is(after, before, "%s: neighbours become one block", provider);
	memset(p[0], 1, 40 * MIB);
	put(p[0], 40 * MIB, NULL);
}

static void trim(void)
{
	size_t freed = 0, all = 0;
	void *p = get(MIB, NULL);
	int i;

	drv->cuCtxSynchronize();
	for (i = 0; i < 100 && pool_stats().reserved > 16 * MIB; i++) {
		is(hetmem_trim(pool, 0, &freed), 0, "%s: trim", provider);
		drv->cuCtxSynchronize();
		all += freed;
	}
	ok(all, "%s: gives back %zu", provider, all);
	is(pool_stats().reserved, device_used(), "%s: to the driver", provider);
	memset(p, 1, MIB);
	put(p, MIB, NULL);
}

/* What is to be kept stays, and min= whatever is asked for. */
static void trim_keeps(void)
{
	struct hm_pool_options opt = { .min = 8 * MIB };
	size_t freed = 0;
	uint64_t held;
	void *p[32];
	int i;

	make_pool(provider, &opt);
	for (i = 0; i < 32; i++)
		p[i] = get(2 * MIB, NULL);
	for (i = 0; i < 32; i++)
		put(p[i], 0, NULL);
	drv->cuCtxSynchronize();
	held = pool_stats().reserved;
	is(hetmem_trim(pool, 32 * MIB, &freed), 0, "%s: trim to 32 MiB",
	   provider);
	is(held - pool_stats().reserved, freed, "%s: says what", provider);
	held = pool_stats().reserved;
	ok(held >= 32 * MIB && held < 48 * MIB, "%s: keeps them: %llu",
	   provider, (unsigned long long)held);
	is(hetmem_trim(pool, 0, &freed), 0, "%s: trim to nothing", provider);
	held = pool_stats().reserved;
	ok(held >= 8 * MIB && held < 24 * MIB, "%s: keeps min=: %llu",
	   provider, (unsigned long long)held);
	hetmem_resource_destroy(pool);
}

static void limits(void)
{
	struct hm_pool_options opt = { .max = 32 * MIB, .min = 8 * MIB };
	void *p, *q;

	make_pool(provider, &opt);
	is(pool_stats().reserved, 8 * MIB, "%s: min= is there", provider);
	is(hetmem_alloc(pool, 33 * MIB, 0, NULL, &p), -ENOMEM,
	   "%s: more than max=", provider);
	ok(strstr(hetmem_last_error(), "of at most 33554432"),
	   "%s: says so: %s", provider, hetmem_last_error());
	p = get(16 * MIB, NULL);
	is(hetmem_alloc(pool, 20 * MIB, 0, NULL, &q), -ENOMEM,
	   "%s: together", provider);
	put(p, 0, NULL);
	q = get(20 * MIB, NULL);
	put(q, 0, NULL);
	is(hetmem_alloc(pool, SIZE_MAX / 2, 0, NULL, &p), -ENOMEM,
	   "%s: huge", provider);
	is(hetmem_alloc(pool, SIZE_MAX, 0, NULL, &p), -ENOMEM,
	   "%s: more than huge", provider);
	is(pool_stats().failed, 4, "%s: failures are counted", provider);
	ok(pool_stats().reserved_peak <= 32 * MIB, "%s: never above max",
	   provider);
	is(hetmem_resource_destroy(pool), 0, "%s: nothing was live",
	   provider);

	opt.min = 64 * MIB;
	is(try_pool(provider, &opt), -EINVAL, "%s: min above max", provider);
	opt = (struct hm_pool_options){ .handle = 3 * MIB };
	is(try_pool(provider, &opt), -EINVAL, "%s: handle=3M", provider);
}

static void decay(void)
{
	struct hm_pool_options opt = { .decay_ms = 20 };
	void *p;

	make_pool(provider, &opt);
	p = get(100 * MIB, NULL);
	put(p, 0, NULL);
	p = get(1000, NULL);
	ok(wait_until(!hetmem_poll(pool) && pool_stats().reserved <= 16 * MIB),
	   "%s: decay= gives back what is not used", provider);
	memset(p, 1, 1000);
	put(p, 1000, NULL);
	hetmem_resource_destroy(pool);
}

static void destroy_live(void)
{
	make_pool(provider, NULL);
	get(1000, NULL);
	get(3 * MIB, NULL);
	is(hetmem_resource_destroy(pool), 2, "%s: two were live", provider);
	ok(strstr(hetmem_last_error(), "2 live blocks of 3146728 bytes"),
	   "%s: it says: %s", provider, hetmem_last_error());
	is(device_used(), 0, "%s: and they are gone", provider);
}

static void two_pools(void)
{
	struct hetmem_resource *first;
	void *p;

	make_pool(provider, NULL);
	first = pool;
	p = get(1000, NULL);
	make_pool(provider, NULL);
	is(hetmem_free(pool, p, 0, NULL), -EINVAL, "%s: another pool's",
	   provider);
	is(hetmem_resource_destroy(pool), 0, "%s: pools are apart", provider);
	pool = first;
	put(p, 1000, NULL);
	is(hetmem_resource_destroy(pool), 0, "%s: and end apart", provider);
}

static void all(const char *name)
{
	provider = name;
	make_pool(name, NULL);
	sizes();
	alignment();
	bad_frees();
	reuse();
	coalesce();
	trim();
	is(hetmem_resource_destroy(pool), 0, "%s: all was freed", name);
	is(device_used(), 0, "%s: nothing is left", name);
	trim_keeps();
	limits();
	decay();
	destroy_live();
	two_pools();
}

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "1G", 1);
	open_soft("");
	all("device");
	all("vmm");
	close_soft();
	return tap_end();
}
