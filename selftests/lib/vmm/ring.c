// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Rings: blocks that are mapped twice in a row, on the device and on the host. What they refuse,
 * what they count, the order of streams, sleeps, and each driver call that fails.
 */
#include "custom_memory.h"
#include "ring_test.h"
#include "failing_calls.h"

/* Whether byte i is byte i + bytes, wherever a range wraps around. Compilers know no aliases. */
static bool wraps(char *p, size_t bytes)
{
	volatile char *v = p;
	bool right = true;
	size_t i;

	memset(p, 1, 2 * bytes);
	for (i = 0; i < bytes; i += bytes / 8) {
		v[i] = 2;
		right &= v[i + bytes] == 2;
		v[i + bytes] = 3;
		right &= v[i] == 3;
	}
	for (i = bytes - 100; i < bytes + 100; i++)
		v[i] = 7;
	__asm__ volatile("" ::: "memory");
	return right && all_bytes(p, 7, 100) && all_bytes(p + 2 * bytes - 100, 7, 100) && v[100] == 1;
}

/* Every resource that has rings, with adaptors and without. */
static void everywhere(void)
{
	static const char *const specs[] = {
		"pool(vmm)", "pool(vmm,handle=2M)", "pool(vmm,max=16M,wait=0s)", "pool(host,max=48M)",
		"pool(pinned)", "pool(registered)", "pool(registered,max=4M,wait=0s)",
		"limit(pool(vmm),max=4M)", "stats(pool(host))", "log(pool(vmm),file=/dev/null,full=on)",
		"history(pool(vmm))", "retry(pool(vmm))", "headroom(pool(vmm))",
		"fallback(pool(device),pool(vmm))",
		"pool(custom(name=mapped))",
	};
	struct hetmem_resource *res;
	size_t i;
	char *p;

	for (i = 0; i < sizeof(specs) / sizeof(*specs); i++) {
		res = make(specs[i]);
		p = get_ring(res, 4 * MIB, HETMEM_STREAM_HOST);
		ok(wraps(p, 4 * MIB), "%s: it wraps", specs[i]);
		is(stats(res).requested, 4 * MIB, "%s: requested once", specs[i]);
		is(stats(res).reserved, 4 * MIB, "%s: held once", specs[i]);
		ok(hetmem_grow(res, p, 6 * MIB, NULL) < 0, "%s: it keeps its size", specs[i]);
		ok(hetmem_grow(res, p, 2 * MIB, NULL) < 0, "%s: also less", specs[i]);
		ok(hetmem_shrink(res, p, 0, 2 * MIB, NULL) < 0, "%s: and its memory", specs[i]);
		ok(hetmem_commit(res, p, 0, 2 * MIB, NULL) < 0, "%s: it is not sparse", specs[i]);
		is(hetmem_free(res, p, 8 * MIB, HETMEM_STREAM_HOST), -EINVAL, "%s: its size", specs[i]);
		is(hetmem_free(res, p + 4 * MIB, 0, HETMEM_STREAM_HOST), -EINVAL, "%s: its address", specs[i]);
		is(hetmem_free(res, p, 4 * MIB, HETMEM_STREAM_HOST), 0, "%s: free", specs[i]);
		is(hetmem_free(res, p, 4 * MIB, HETMEM_STREAM_HOST), -EINVAL, "%s: once", specs[i]);
		is(stats(res).requested, 0, "%s: nothing is requested", specs[i]);
		p = get_ring(res, 4 * MIB, HETMEM_STREAM_HOST);
		ok(wraps(p, 4 * MIB), "%s: another", specs[i]);
		is(stats(res).reserved_peak, 4 * MIB, "%s: of the same memory", specs[i]);
		is(hetmem_free(res, p, 0, HETMEM_STREAM_HOST), 0, "%s: free", specs[i]);
		hetmem_trim(res, 0, NULL);
		is(stats(res).reserved, 0, "%s: a trim gives all back", specs[i]);
		is(hetmem_resource_destroy(res), 0, "%s: destroyed", specs[i]);
		is(device_used(), 0, "%s: the driver agrees", specs[i]);
	}
}

static void refused(void)
{
	static const char *const specs[] = {
		"pool(device)", "device", "host", "pinned", "pool(vmm(export=fd))", "pool(vmm,comm=on)",
		"guard(pool(vmm))", "fixed(pool(vmm),size=4M,count=4)", "pool(managed)", "pool(async)",
		"pool(system(device=0))", "classes(registered,max=48M)", "pool(custom(name=host),max=48M)",
	};
	struct hetmem_resource *res;
	char *p = NULL;
	size_t i;

	for (i = 0; i < sizeof(specs) / sizeof(*specs); i++) {
		res = make(specs[i]);
		is(ring(res, 4 * MIB, HETMEM_STREAM_HOST, &p), -EOPNOTSUPP, "%s: %s", specs[i],
		   hetmem_last_error());
		ok(hetmem_last_error()[0], "%s: with a reason", specs[i]);
		is(hetmem_resource_destroy(res), 0, "%s: destroyed", specs[i]);
	}
}

static int with(struct hetmem_resource *res, struct hetmem_alloc_params params)
{
	void *p;

	params.size = sizeof(params);
	params.flags |= HETMEM_ALLOC_RING;
	return hetmem_alloc_with(res, &params, &p);
}

static void bad_input(const char *spec, size_t unit)
{
	struct hetmem_resource *res = make(spec);
	const struct {
		struct hetmem_alloc_params params;
		int err;
		const char *what;
	} table[] = {
		{ { 0 }, -EINVAL, "no bytes" },
		{ { .bytes = unit, .reserve = 2 * unit }, -EINVAL, "reserve" },
		{ { .bytes = unit, .private_pool = 1 }, -EINVAL, "private" },
		{ { .bytes = unit, .tag = "a" }, -EINVAL, "tag" },
		{ { .bytes = unit, .flags = HETMEM_ALLOC_SPARSE }, -EINVAL, "sparse" },
		{ { .bytes = unit, .flags = HETMEM_ALLOC_KEEP }, -EINVAL, "keep" },
		{ { .bytes = unit, .flags = HETMEM_ALLOC_MOVABLE }, -EINVAL, "movable" },
		{ { .bytes = unit, .flags = HETMEM_ALLOC_SCRATCH }, -EINVAL, "scratch" },
		{ { .bytes = unit, .flags = 1U << 31 }, -EINVAL, "unknown flags" },
		{ { .bytes = unit, .align = 2 * unit }, -EINVAL, "alignment" },
		{ { .bytes = unit, .align = 3 }, -EINVAL, "no alignment" },
		{ { .bytes = unit / 2 }, -EINVAL, "half a unit" },
		{ { .bytes = unit + 1 }, -EINVAL, "a byte more" },
		{ { .bytes = unit, .stream = HETMEM_STREAM_UNKNOWN }, -EINVAL, "no stream" },
		{ { .bytes = SIZE_MAX }, -ENOMEM, "all there can be" },
		{ { .bytes = SIZE_MAX / 2 + 1 }, -ENOMEM, "whose double overflows" },
		{ { .bytes = (SIZE_MAX / 4) / unit * unit }, -ENOMEM, "more than addresses" },
		{ { .bytes = (size_t)1 << 44 }, -ENOMEM, "more than memory" },
	};
	size_t i;

	for (i = 0; i < sizeof(table) / sizeof(*table); i++)
		is(with(res, table[i].params), table[i].err, "%s: %s: %s", spec, table[i].what,
		   hetmem_last_error());
	is(stats(res).requested, 0, "%s: nothing is left", spec);
	is(stats(res).reserved, 0, "%s: no memory", spec);
	is(hetmem_resource_destroy(res), 0, "%s: destroyed", spec);
}

/* A ring and the calls that other blocks know. */
static void other_calls(void)
{
	struct hetmem_resource *res = make("pool(vmm,spill=100M)");
	char *p = get_ring(res, 8 * MIB, NULL);
	struct hetmem_segment segments[8];
	CUstream stream;
	void *q;

	need(!drv->cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "a stream");
	is(hetmem_pin_comm(res, p), -EOPNOTSUPP, "pin_comm: %s", hetmem_last_error());
	ok(hetmem_spill(res, p) < 0, "spill: %s", hetmem_last_error());
	ok(hetmem_segments(res, p, 8 * MIB, segments, 8) > 0, "segments: %s", hetmem_last_error());
	ok(segments[0].base == p, "of the first address");
	ok(wraps(p, 8 * MIB), "as it was");
	need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), "sleep: %s", hetmem_last_error());
	is(ring(res, 2 * MIB, NULL, (char **)&q), -EBUSY, "asleep");
	is(p[2 * 8 * MIB - 1], 7, "its memory stays");
	need(!hetmem_wake(res, NULL), "wake: %s", hetmem_last_error());
	need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_DISCARD), "sleep: %s", hetmem_last_error());
	is(p[0], 7, "contents, too");
	is(stats(res).reserved, 8 * MIB, "it is all that is held");
	is(hetmem_free(res, p, 0, stream), 0, "free in a sleep: %s", hetmem_last_error());
	is(hetmem_sleep(res, NULL, HETMEM_SLEEP_DISCARD), 0, "sleep, again: %s",
	   hetmem_last_error());
	is(stats(res).reserved, 0, "it is given back, too");
	need(!hetmem_wake(res, NULL), "wake: %s", hetmem_last_error());
	q = get(res, 8 * MIB, NULL);
	memset(q, 1, 8 * MIB);
	is(stats(res).reserved, 8 * MIB, "its memory serves others");
	hetmem_free(res, q, 0, NULL);
	is(hetmem_resource_destroy(res), 0, "destroyed");
	drv->cuStreamDestroy(stream);
	res = make("pool(registered)");
	p = get_ring(res, 1 * MIB, HETMEM_STREAM_HOST);
	is(hetmem_pin_comm(res, p), 0, "pinned: %s", hetmem_last_error());
	hetmem_free(res, p, 0, HETMEM_STREAM_HOST);
	is(stats(res).reserved, 1 * MIB, "it stays until destroy");
	*(volatile char *)(p + MIB) = 1;
	is(*(volatile char *)p, 1, "mapped");
	is(hetmem_resource_destroy(res), 0, "destroyed");
}

/* Both addresses are there until the last use is complete. */
static void in_order(const char *spec)
{
	struct hetmem_resource *res = make(spec);
	struct hm_soft_range range = { .size = 4 * MIB, .fill = 9 };
	CUstream s[2] = { new_stream(), new_stream() };
	char *p = get_ring(res, 4 * MIB, s[0]), *q[4];
	unsigned int i;

	range.ptr = (uintptr_t)p + 2 * MIB;
	need(!hm->soft->launch(s[0], "first", &range, 1, 20000000), "a kernel");
	is(hetmem_record_stream(res, p, s[1]), 0, "record: %s", hetmem_last_error());
	{
		CUevent e;

		need(!drv->cuEventCreate(&e, CU_EVENT_DISABLE_TIMING) && !drv->cuEventRecord(e, s[0]) &&
		     !drv->cuStreamWaitEvent(s[1], e, 0), "an order");
		drv->cuEventDestroy(e);
	}
	range.ptr = (uintptr_t)p + 4 * MIB;
	need(!hm->soft->launch(s[1], "second", &range, 1, 20000000), "a kernel");
	is(hetmem_free(res, p, 4 * MIB, s[0]), 0, "free");
	for (i = 0; i < 4; i++) {
		q[i] = get(res, 4 * MIB, s[i % 2]);
		range.ptr = (uintptr_t)q[i];
		need(q[i] && !hm->soft->launch(s[i % 2], "others", &range, 1, 0), "a use");
		hetmem_poll(res);
		hetmem_trim(res, 0, NULL);
	}
	is(drv->cuStreamSynchronize(s[0]), CUDA_SUCCESS, "%s: the first stream", spec);
	is(drv->cuStreamSynchronize(s[1]), CUDA_SUCCESS, "%s: the second stream", spec);
	for (i = 0; i < 4; i++)
		hetmem_free(res, q[i], 0, s[i % 2]);
	hetmem_trim(res, 0, NULL);
	is(stats(res).reserved, 0, "%s: all can go", spec);
	is(hetmem_resource_destroy(res), 0, "%s: destroyed", spec);
	drv->cuStreamDestroy(s[0]);
	drv->cuStreamDestroy(s[1]);
}

/* A ring of host memory goes back when its last use is complete. */
static void region_in_order(void)
{
	struct hetmem_resource *res = make("pool(registered)");
	struct hm_soft_range range = { .size = 4 * MIB, .fill = 9 };
	CUstream s = new_stream();
	char *p = get_ring(res, 4 * MIB, s);

	range.ptr = (uintptr_t)p + 4 * MIB;
	need(!hm->soft->launch(s, "slow", &range, 1, 20000000), "a kernel");
	is(hetmem_free(res, p, 0, s), 0, "free");
	hetmem_poll(res);
	is(drv->cuStreamSynchronize(s), CUDA_SUCCESS, "the kernel has its memory");
	hetmem_trim(res, 0, NULL);
	is(stats(res).reserved, 0, "which is given back then");
	is(hetmem_resource_destroy(res), 0, "destroyed");
	drv->cuStreamDestroy(s);
}

/* All addresses are used: those of a freed ring are missing until its last use is complete. */
static void few_addresses(void)
{
	struct hetmem_resource *res = make("pool(vmm,reserve=16M,wait=60s)");
	struct hm_soft_range range = { .size = 8 * MIB, .fill = 9 };
	CUstream s = new_stream();
	char *p = get_ring(res, 8 * MIB, s), *q;

	range.ptr = (uintptr_t)p + 8 * MIB;
	need(!hm->soft->launch(s, "slow", &range, 1, 50000000), "a kernel");
	is(hetmem_free(res, p, 0, s), 0, "free");
	q = get(res, 12 * MIB, s);
	is(drv->cuStreamSynchronize(s), CUDA_SUCCESS, "the kernel has its addresses");
	ok(q, "they serve others then: %s", hetmem_last_error());
	hetmem_free(res, q, 0, s);
	is(hetmem_resource_destroy(res), 0, "destroyed");
	drv->cuStreamDestroy(s);
}

/* Rings among blocks that grow, shrink and come and go, with a checksum of each. */
static void at_random(const char *spec, uint64_t round)
{
	struct hetmem_resource *res = make(spec);
	struct { char *p; size_t bytes; bool ring; unsigned char value; } b[12] = { 0 };
	CUstream s[2] = { new_stream(), new_stream() };
	unsigned int n, i, wrong = 0, rings = 0;

	seed = round;
	for (n = 0; n < 90; n++) {
		const unsigned int on = below(2);

		i = below(12);
		if (b[i].p) {
			drv->cuCtxSynchronize();
			wrong += !all_bytes(b[i].p, b[i].value, b[i].bytes * (b[i].ring ? 2 : 1));
			wrong += hetmem_free(res, b[i].p, b[i].bytes, s[on]) != 0;
			b[i].p = NULL;
			continue;
		}
		b[i].ring = below(2);
		b[i].bytes = (1 + below(2)) * GRANULE;
		b[i].value = n;
		if (b[i].ring ? ring(res, b[i].bytes, s[on], &b[i].p) :
		    hetmem_alloc(res, b[i].bytes, 0, s[on], (void **)&b[i].p)) {
			b[i].p = NULL;
			continue;
		}
		rings += b[i].ring;
		/* A ring is written by its second address, in part across the end. */
		if (b[i].ring)
			wrong += drv->cuMemsetD8Async((uintptr_t)b[i].p + b[i].bytes / 2, n, b[i].bytes,
						      s[on]) != 0;
		else
			wrong += drv->cuMemsetD8Async((uintptr_t)b[i].p, n, b[i].bytes, s[on]) != 0;
	}
	drv->cuCtxSynchronize();
	for (i = 0; i < 12; i++) {
		if (!b[i].p)
			continue;
		wrong += !all_bytes(b[i].p, b[i].value, b[i].bytes * (b[i].ring ? 2 : 1));
		hetmem_free(res, b[i].p, b[i].bytes, s[0]);
	}
	ok(rings > 10, "%s: %u rings", spec, rings);
	is(wrong, 0, "%s: contents", spec);
	drv->cuCtxSynchronize();
	hetmem_trim(res, 0, NULL);
	is(stats(res).reserved, 0, "%s: all is given back", spec);
	is(hetmem_resource_destroy(res), 0, "%s: destroyed", spec);
	drv->cuStreamDestroy(s[0]);
	drv->cuStreamDestroy(s[1]);
}

/* Each call of the driver fails once: a ring is whole, or there is none. */
static long fail_nth(const char *spec, const char *call, unsigned int nth, unsigned int *wrong)
{
	struct hetmem_resource *res = make(spec);
	CUstream s = new_stream();
	const char *rule = failing_rule(call, nth);
	char *p = NULL;
	void *q;
	long made;

	q = get(res, 2 * MIB, s);
	hetmem_free(res, q, 0, s);
	soft_rules(rule, NULL);
	if (ring(res, 4 * MIB, s, &p)) {
		*wrong += stats(res).requested != 0 || !hetmem_last_error()[0];
		*wrong += ring(res, 4 * MIB, s, &p) != 0;
	}
	made = failing_made(call, nth);
	*wrong += !p || (drv->cuStreamSynchronize(s) && drv->cuStreamSynchronize(s)) || !wraps(p, 4 * MIB);
	if (hetmem_free(res, p, 0, s))
		*wrong += hetmem_free(res, p, 0, s) != 0;
	*wrong += hetmem_alloc(res, 8 * MIB, 0, s, &q) && hetmem_alloc(res, 8 * MIB, 0, s, &q);
	soft_rules(NULL, NULL);
	hetmem_free(res, q, 0, s);
	drv->cuCtxSynchronize();
	hetmem_trim(res, 0, NULL);
	*wrong += stats(res).requested || stats(res).reserved;
	*wrong += hetmem_resource_destroy(res) != 0 || device_used();
	drv->cuStreamDestroy(s);
	if (*wrong)
		printf("# %s: %s: %s\n", spec, rule, hetmem_last_error());
	return made;
}

static void failing(const char *spec)
{
	unsigned int nth, wrong = 0, all = 0;
	long made;
	size_t i;

	count_made(from)
		fail_nth(spec, NULL, from, &wrong);
	ok(!wrong, "%s: no call fails", spec);
	for (i = 0; i < NR_CALLS; i++) {
		if (!is_made[i])
			continue;
		for (made = nth = 1, wrong = 0; nth <= 6 && nth <= made && !wrong; nth++)
			made = fail_nth(spec, calls[i], nth, &wrong);
		all += made > 0;
		if (made || wrong)
			ok(!wrong, "%s: %s fails, %u of %ld", spec, calls[i], nth - 1, made);
	}
	ok(all > 1, "%s: calls were made", spec);
}

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "256M", 1);
	setenv("HETMEM_SOFT_CHECK", "1", 1);
	open_soft("");
	custom_register(hm);
	everywhere();
	refused();
	bad_input("pool(vmm)", GRANULE);
	bad_input("pool(host)", 4096);
	bad_input("pool(registered)", 4096);
	other_calls();
	in_order("pool(vmm)");
	in_order("pool(registered,max=64M)");
	few_addresses();
	region_in_order();
	at_random("pool(vmm)", 1);
	at_random("pool(vmm,max=14M,wait=0s)", 2);
	at_random("pool(registered,max=48M)", 3);
	failing("pool(vmm)");
	failing("pool(registered)");
	close_soft();
	return tap_end();
}
