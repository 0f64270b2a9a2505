// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Sparse blocks and other calls: the list of committed ranges, bad input, calls that refuse
 * sparse blocks, adaptors that count commits, captures, walks.
 */
#include "sparse_test.h"

static void ranges(uint64_t round)
{
	struct hetmem_resource *res = make("pool(vmm,wait=60s)");
	struct mirror m[2] = { { .p = get_sparse(res, UNITS * GRANULE) },
			       { .p = get_sparse(res, UNITS * GRANULE) } };
	unsigned int n, from, length, u, right = 0;
	struct mirror *one;
	bool all, none;
	int err;

	seed = round;
	ok(listed(res, &m[0]), "nothing is committed");
	for (n = 0; n < 200; n++) {
		one = &m[below(2)];
		from = below(UNITS);
		length = 1 + below(UNITS - from);
		for (all = none = true, u = from; u < from + length; u++) {
			all &= one->has[u];
			none &= !one->has[u];
		}
		if (below(2)) {
			err = hetmem_commit(res, one->p, from * GRANULE, length * GRANULE, NULL);
			right += err == (none ? 0 : -EEXIST);
			all = false;
		} else {
			err = hetmem_decommit(res, one->p, from * GRANULE, length * GRANULE, NULL);
			right += err == (all ? 0 : -ENOENT);
			none = false;
		}
		for (u = from; u < from + length && (all || none); u++)
			one->has[u] = none;
		right += listed(res, &m[0]) && listed(res, &m[1]);
	}
	is(right, 2 * 200, "round %u: ranges are all or nothing, and listed", (unsigned int)round);
	need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), "sleep: %s", hetmem_last_error());
	is(held(res), device_used(), "the driver agrees");
	ok(listed(res, &m[0]) && listed(res, &m[1]), "listed in a sleep, too");
	need(!hetmem_wake(res, NULL), "wake: %s", hetmem_last_error());
	ok(listed(res, &m[0]) && listed(res, &m[1]), "and after it");
	hetmem_free(res, m[0].p, 0, NULL);
	is(hetmem_committed(res, m[0].p, NULL, 0), -EINVAL, "not of a freed block");
	hetmem_free(res, m[1].p, 0, NULL);
	is(hetmem_resource_destroy(res), 0, "destroyed");
	is(device_used(), 0, "all is given back");
}

static int with(struct hetmem_resource *res, struct hetmem_alloc_params params)
{
	void *p;

	params.size = sizeof(params);
	params.flags |= HETMEM_ALLOC_SPARSE;
	return hetmem_alloc_with(res, &params, &p);
}

static void bad_input(void)
{
	struct hetmem_resource *res = make("pool(vmm)");
	char *p = get_sparse(res, 5 * MIB), *plain = get(res, 4 * MIB, NULL);
	struct hetmem_segment segment;
	struct hetmem_extent e;
	int fd;

	is(with(res, (struct hetmem_alloc_params){ 0 }), -EINVAL, "no bytes");
	is(with(res, (struct hetmem_alloc_params){ .bytes = MIB, .reserve = 2 * MIB }), -EINVAL, "reserve");
	is(with(res, (struct hetmem_alloc_params){ .bytes = MIB, .private_pool = 1 }), -EINVAL, "private");
	is(with(res, (struct hetmem_alloc_params){ .bytes = MIB, .tag = "a" }), -EINVAL, "tag");
	is(with(res, (struct hetmem_alloc_params){ .bytes = MIB, .flags = HETMEM_ALLOC_KEEP }), -EINVAL, "flags");
	is(with(res, (struct hetmem_alloc_params){ .bytes = MIB, .flags = HETMEM_ALLOC_SCRATCH }), -EINVAL,
	   "scratch");
	is(with(res, (struct hetmem_alloc_params){ .bytes = MIB, .align = 4 * MIB }), -EINVAL, "alignment");
	is(with(res, (struct hetmem_alloc_params){ .bytes = SIZE_MAX }), -ENOMEM, "more than there can be");
	is(with(res, (struct hetmem_alloc_params){ .bytes = SIZE_MAX / 4 }), -ENOMEM, "more than addresses");
	is(hetmem_commit(NULL, p, 0, GRANULE, NULL), -EINVAL, "no resource");
	is(hetmem_commit(res, NULL, 0, GRANULE, NULL), -EINVAL, "no block");
	is(hetmem_decommit(res, NULL, 0, GRANULE, NULL), -EINVAL, "no block to decommit");
	is(hetmem_commit(res, p, 0, 0, NULL), 0, "no bytes are no work");
	is(hetmem_commit(res, p + GRANULE, 0, GRANULE, NULL), -EINVAL, "not the beginning");
	is(hetmem_commit(res, plain, 0, GRANULE, NULL), -EINVAL, "a block that is not sparse");
	is(hetmem_decommit(res, plain, 0, GRANULE, NULL), -EINVAL, "nor to decommit");
	is(hetmem_committed(res, plain, &e, 1), -EINVAL, "nor to list");
	is(hetmem_committed(res, NULL, &e, 1), -EINVAL, "no block to list");
	is(hetmem_committed(res, p, NULL, 1), -EINVAL, "no room");
	is(hetmem_commit(res, p, 1, GRANULE, NULL), -EINVAL, "not a unit");
	is(hetmem_commit(res, p, 4 * MIB, GRANULE, NULL), 0, "the last unit whole");
	is(hetmem_decommit(res, p, 4 * MIB, MIB, NULL), 0, "ends with the block");
	is(hetmem_commit(res, p, 4 * MIB, MIB / 2, NULL), -EINVAL, "not before");
	is(hetmem_commit(res, p, 4 * MIB, 2 * GRANULE, NULL), -EINVAL, "not after");
	is(hetmem_commit(res, p, SIZE_MAX - GRANULE + 1, GRANULE, NULL), -EINVAL, "overflow");
	is(hetmem_decommit(res, p, GRANULE, SIZE_MAX, NULL), -EINVAL, "overflow of a decommit");
	is(hetmem_commit(res, p, 0, 5 * MIB, NULL), 0, "all of it");
	is(hetmem_grow(res, p, 64 * MIB, NULL), -EOPNOTSUPP, "no growth");
	is(hetmem_shrink(res, p, GRANULE, GRANULE, NULL), -EOPNOTSUPP, "no hole");
	is(hetmem_shrink(res, p, GRANULE, 3 * MIB, NULL), -EOPNOTSUPP, "no shorter end");
	is(hetmem_spill(res, p), -EOPNOTSUPP, "no spill");
	is(hetmem_fetch(res, p), -EOPNOTSUPP, "no fetch");
	is(hetmem_priority(res, p, 1), -EOPNOTSUPP, "no priority");
	is(hetmem_pin_comm(res, p), -EOPNOTSUPP, "no pin");
	is(hetmem_export(res, p, &fd, &segment, 1), -EOPNOTSUPP, "no export");
	is(hetmem_segments(res, p, 5 * MIB, &segment, 0), -ENOSPC, "segments are units");
	is(stats(res).requested, 6 * MIB + 4 * MIB, "nothing has changed");
	is(hetmem_free(res, p, 6 * MIB, NULL), -EINVAL, "not its size");
	is(hetmem_free(res, p, 5 * MIB, NULL), 0, "freed");
	is(hetmem_free(res, p, 0, NULL), -EINVAL, "once");
	is(hetmem_commit(res, p, 0, GRANULE, NULL), -EINVAL, "not of a freed block");
	hetmem_free(res, plain, 0, NULL);
	is(hetmem_resource_destroy(res), 0, "destroyed");
}

/* Resources without sparse blocks refuse them. */
static void refused(void)
{
	static const char *const specs[] = {
		"pool(device)", "device", "pool(vmm(export=fd))", "pool(vmm,comm=on)", "guard(pool(vmm))",
		"fixed(pool(vmm),size=1M,count=4)", "pool(host)", "host", "classes(managed)", "pool(pinned)",
	};
	static const char *const bad[] = {
		"pool(vmm,unit=3M)", "pool(vmm,unit=1M)", "pool(vmm,unit=0)", "pool(vmm,unit=2G)",
		"pool(device,unit=2M)",
	};
	struct hetmem_resource *res;
	char *p = NULL;
	size_t i;

	for (i = 0; i < sizeof(specs) / sizeof(*specs); i++) {
		res = make(specs[i]);
		is(sparse(res, 4 * MIB, HETMEM_STREAM_HOST, &p), -EOPNOTSUPP, "%s: %s", specs[i],
		   hetmem_last_error());
		ok(hetmem_last_error()[0], "%s: with a reason", specs[i]);
		is(hetmem_resource_destroy(res), 0, "%s: destroyed", specs[i]);
	}
	for (i = 0; i < sizeof(bad) / sizeof(*bad); i++)
		ok(hetmem_resource_create(hm, bad[i], &res) < 0, "%s: %s", bad[i], hetmem_last_error());
}

/* Every adaptor passes commits on, and counts them if it counts. */
static void adaptors(void)
{
	static const char *const specs[] = {
		"limit(pool(vmm),max=200M)", "stats(pool(vmm))", "headroom(pool(vmm))",
		"watermark(pool(vmm),at=500M)", "retry(pool(vmm))", "binning(pool(device),pool(vmm),at=16M)",
		"fallback(pool(device),pool(vmm))", "history(pool(vmm))", "align(pool(vmm),align=64K)",
		"log(pool(vmm),file=/dev/null,full=on)", "stats(limit(retry(headroom(pool(vmm))),max=200M))",
		"pool(vmm,unit=4M)",
	};
	struct hetmem_extent e;
	size_t i;

	for (i = 0; i < sizeof(specs) / sizeof(*specs); i++) {
		struct hetmem_resource *res = make(specs[i]);
		char *p = get_sparse(res, 62 * MIB);

		is(stats(res).requested, 0, "%s: addresses are not requested", specs[i]);
		is(hetmem_commit(res, p, 0, 62 * MIB, NULL), 0, "%s: commit: %s", specs[i],
		   hetmem_last_error());
		is(hetmem_committed(res, p, &e, 1), 1, "%s: one range", specs[i]);
		is(hetmem_commit(res, p, 0, 62 * MIB, NULL), -EEXIST, "%s: committed", specs[i]);
		is(stats(res).requested, e.length, "%s: requested", specs[i]);
		is(hetmem_decommit(res, p, 0, 8 * MIB, NULL), 0, "%s: decommit", specs[i]);
		is(hetmem_decommit(res, p, 0, 8 * MIB, NULL), -ENOENT, "%s: not committed", specs[i]);
		is(stats(res).requested, e.length - 8 * MIB, "%s: less", specs[i]);
		is(stats(res).addresses, e.length, "%s: addresses", specs[i]);
		is(stats(res).requested_peak, e.length, "%s: the peak", specs[i]);
		is(hetmem_free(res, p, 0, NULL), 0, "%s: free", specs[i]);
		is(stats(res).requested, 0, "%s: nothing", specs[i]);
		is(stats(res).live, 0, "%s: no block", specs[i]);
		is(hetmem_resource_destroy(res), 0, "%s: destroyed", specs[i]);
	}
}

/* A limit bounds what is committed, to the byte. */
static void limited(void)
{
	struct hetmem_resource *res = make("limit(pool(vmm),max=20M)");
	char *p = get_sparse(res, 30 * MIB - 1), *small;

	is(hetmem_commit(res, p, 0, 20 * MIB, NULL), 0, "as many as there may be: %s", hetmem_last_error());
	is(hetmem_commit(res, p, 20 * MIB, GRANULE, NULL), -ENOMEM, "not more");
	is(hetmem_decommit(res, p, 0, GRANULE, NULL), 0, "less");
	small = get(res, 512, NULL);
	ok(small, "other blocks share the limit");
	is(hetmem_commit(res, p, 28 * MIB, GRANULE - 1, NULL), -ENOMEM, "the last unit counts whole");
	hetmem_free(res, small, 0, NULL);
	is(hetmem_commit(res, p, 28 * MIB, GRANULE - 1, NULL), 0, "and fits: %s", hetmem_last_error());
	ok(!get(res, 512, NULL), "exactly");
	is(hetmem_free(res, p, 0, NULL), 0, "freed");
	small = get(res, 20 * MIB, NULL);
	ok(small, "all of the limit is free again: %s", hetmem_last_error());
	hetmem_free(res, small, 0, NULL);
	is(hetmem_resource_destroy(res), 0, "destroyed");
	res = make("pool(vmm,max=20M,wait=0s)");
	p = get_sparse(res, 30 * MIB);
	is(hetmem_commit(res, p, 0, 20 * MIB, NULL), 0, "as many as the pool may hold");
	is(hetmem_commit(res, p, 20 * MIB, GRANULE, NULL), -ENOMEM, "not more: %s", hetmem_last_error());
	is(hetmem_decommit(res, p, 4 * MIB, 2 * GRANULE, NULL), 0, "less");
	is(hetmem_commit(res, p, 20 * MIB, 2 * GRANULE, NULL), 0, "parked units serve: %s", hetmem_last_error());
	is(held(res), 20 * MIB, "no more is held");
	is(hetmem_free(res, p, 0, NULL), 0, "freed");
	small = get(res, 20 * MIB, NULL);
	ok(small, "one block of all units: %s", hetmem_last_error());
	memset(small, 1, 20 * MIB);
	hetmem_free(res, small, 0, NULL);
	is(hetmem_resource_destroy(res), 0, "destroyed");
	is(device_used(), 0, "all is given back");
}

static int help(void *data, size_t bytes, unsigned int attempt)
{
	(void)bytes;
	(void)attempt;
	return !hetmem_free(((void **)data)[0], ((void **)data)[1], 0, NULL);
}

/* retry() and watermark() act before a commit fails. */
static void helped(void)
{
	struct hetmem_resource *res = make("retry(pool(vmm,max=20M,wait=0s))");
	char *p = get_sparse(res, 30 * MIB), *other = get(res, 16 * MIB, NULL);
	void *data[2] = { res, other };

	is(hetmem_on_failure(res, help, data), 0, "a function");
	is(hetmem_commit(res, p, 0, 20 * MIB, NULL), 0, "tried again: %s", hetmem_last_error());
	hetmem_free(res, p, 0, NULL);
	is(hetmem_resource_destroy(res), 0, "destroyed");
}

/* A captured stream commits nothing, and a block that a graph uses stays as it is. */
static void captured(void)
{
	struct hetmem_resource *res = make("pool(vmm)");
	CUstream s = new_stream();
	char *p = get_sparse(res, 8 * MIB), *q;
	CUgraph graph;

	need(!hetmem_commit(res, p, 0, 4 * MIB, s), "commit");
	need(!hetmem_capture_begin(res, s, 1), "capture_begin: %s", hetmem_last_error());
	need(!drv->cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED), "capture");
	is(hetmem_commit(res, p, 4 * MIB, GRANULE, s), -EBUSY, "commit: %s", hetmem_last_error());
	is(hetmem_decommit(res, p, 0, GRANULE, s), -EBUSY, "decommit: %s", hetmem_last_error());
	is(sparse(res, 4 * MIB, s, &q), -EBUSY, "alloc: %s", hetmem_last_error());
	need(!drv->cuMemsetD8Async((uintptr_t)p, 1, 4 * MIB, s), "a use of committed units");
	need(!drv->cuStreamEndCapture(s, &graph), "the capture is valid");
	need(!hetmem_capture_end(res, s, 1), "capture_end");
	need(!hetmem_capture_release(res, s, 1), "release");
	is(hetmem_decommit(res, p, 0, GRANULE, s), 0, "after it: %s", hetmem_last_error());
	drv->cuGraphDestroy(graph);
	hetmem_free(res, p, 0, s);
	is(hetmem_resource_destroy(res), 0, "destroyed");
	drv->cuStreamDestroy(s);
}

struct seen {
	const void *p;
	size_t bytes, requested;
	unsigned int times, blocks;
};

static int see(void *data, const struct hetmem_walk_segment *segment,
	       const struct hetmem_walk_block *block)
{
	struct seen *seen = data;

	(void)segment;
	seen->blocks++;
	if (block->ptr == seen->p) {
		seen->bytes = block->bytes;
		seen->requested = block->requested;
		seen->times++;
	}
	return 0;
}

static void walked(void)
{
	struct hetmem_resource *res = make("pool(vmm)");
	char *p = get_sparse(res, 100 * MIB);
	struct seen seen = { .p = p };
	const struct hetmem_walk walk = { .size = sizeof(walk), .block = see, .data = &seen };

	need(!hetmem_commit(res, p, 10 * MIB, 6 * MIB, NULL), "commit");
	is(hetmem_walk(res, &walk), 0, "walk");
	is(seen.times, 1, "once");
	is(seen.bytes, 100 * MIB, "its addresses");
	is(seen.requested, 6 * MIB, "its memory");
	hetmem_free(res, p, 0, NULL);
	seen = (struct seen){ .p = p };
	is(hetmem_walk(res, &walk), 0, "walk");
	is(seen.times, 0, "a freed one is not seen");
	is(hetmem_resource_destroy(res), 0, "destroyed");
}

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "1G", 1);
	open_soft("");
	bad_input();
	ranges(1);
	ranges(2);
	refused();
	adaptors();
	limited();
	helped();
	captured();
	walked();
	close_soft();
	return tap_end();
}
