/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem bench vmm, pinned: what making memory costs: a block that grows by
 * 1 GiB in place, a pool that grows, handles of one size and of those that the
 * pool chooses; page-locked memory beside cuMemHostAlloc.
 */
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "alloc.h"
#include "count_calls.h"

#define GIB	((size_t)1 << 30)
#define MIB	((size_t)1 << 20)
#define ROUNDS	5

/* The driver alone: one handle of @size, mapped; and back. < 0: cannot. */
static double driver_maps(struct bench_options *o, size_t size)
{
	const struct hm_driver *d = o->drv;
	CUdeviceptr at;
	double ns;

	if (!d->cuMemAddressReserve || !d->cuMemCreate ||
	    d->cuMemAddressReserve(&at, size, 0, 0, 0))
		return -1;
	ns = bench_map_handle(o, at, size);
	d->cuMemAddressFree(at, size);
	return ns;
}

/* Counts what happens between the two, once, if there is a @row for it. */
static void count_one(struct bench_options *o, struct bench_pair *row)
{
	if (!row)
		return;
	row->counted = 1;
	row->calls_known = count_calls_begin(o->hm);
}

static void counted_one(struct bench_options *o, struct bench_pair *row)
{
	if (row)
		count_calls_end(o->hm, row->calls);
}

/*
 * Grows a block of 64 MiB by 1 GiB in a fresh pool; what that calls is counted
 * if there is a @row for it. < 0: the errno.
 */
static double pool_grows(struct bench_options *o, const char *spec,
			 bool in_place, struct bench_pair *row)
{
	hetmem_stream s = HETMEM_STREAM_LEGACY;
	struct hetmem_resource *res;
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = 64 * MIB,
	};
	void *p = NULL, *q = NULL;
	uint64_t ns;
	int err;

	err = hetmem_resource_create(o->hm, spec, &res);
	if (err)
		return err;
	params.stream = s;
	params.reserve = in_place ? params.bytes + GIB : 0;
	err = hetmem_alloc_with(res, &params, &p);
	count_one(o, row);
	ns = bench_now();
	if (!err && in_place)
		err = hetmem_grow(res, p, 64 * MIB + GIB, s);
	else if (!err)
		err = hetmem_alloc(res, GIB, 0, s, &q);
	ns = bench_now() - ns;
	counted_one(o, row);
	hetmem_free(res, q, GIB, s);
	hetmem_free(res, p, 0, s);
	hetmem_resource_destroy(res);
	return err ? err : (double)ns;
}

static void run_growth(struct bench_options *o, struct bench_pairs *pairs,
		       const char *spec, bool in_place)
{
	double ours[ROUNDS], theirs[ROUNDS];
	struct bench_pair row = {
		.what = in_place ? "hetmem_grow by 1 GiB" : "1 GiB of a fresh pool",
		.threads = 1, .system_calls = -1,
		.peer = "one handle: create, map, access",
	};
	int i;

	for (i = 0; i < ROUNDS; i++) {
		ours[i] = pool_grows(o, spec, in_place, NULL);
		if (ours[i] < 0) {
			complain(EXIT_FAILED, "bench", "%s: %s: %s", spec,
				 row.what, hetmem_last_error());
			return;
		}
		theirs[i] = driver_maps(o, GIB);
	}
	pool_grows(o, spec, in_place, &row);
	snprintf(row.spec, sizeof(row.spec), "%s", spec);
	row.ns = bench_median(ours, ROUNDS);
	row.peer_ns = bench_median(theirs, ROUNDS);
	bench_pairs_add(pairs, &row);
}

int bench_vmm(int argc, char **argv)
{
	static const char *const handles[] = {
		"pool(vmm)", "pool(vmm,handle=2M)", "pool(vmm,handle=16M)",
		"pool(vmm,handle=64M)", "pool(vmm,handle=256M)",
		"pool(vmm,handle=1G)", NULL,
	};
	struct bench_options o = { 0 };
	int i, status = bench_begin(&o, argc, argv,
		"Usage: hetmem bench vmm [--spec SPEC]... [--driver DRIVER] [--json]\n"
		"A pool that grows by 1 GiB, in place and otherwise, with handles that it\n"
		"chooses and of one size. NS is of one growth.", handles);
	struct bench_pairs *pairs;

	if (status >= 0)
		return status;
	pairs = bench_pairs_new();
	for (i = 0; i < o.nr_specs; i++) {
		run_growth(&o, pairs, o.specs[i], true);
		run_growth(&o, pairs, o.specs[i], false);
	}
	return bench_end(&o, pairs);
}

/* A resource with @size of page-locked memory ready, made and gone. */
static double pinned_made(struct bench_options *o, const char *spec,
			  size_t size, struct bench_pair *row)
{
	struct hetmem_resource *res = NULL;
	void *p = NULL;
	uint64_t ns;
	int err;

	count_one(o, row);
	ns = bench_now();
	err = hetmem_resource_create(o->hm, spec, &res);
	if (!err)
		err = hetmem_alloc(res, size, 0, HETMEM_STREAM_HOST, &p);
	ns = bench_now() - ns;
	counted_one(o, row);
	if (!err)
		hetmem_free(res, p, size, HETMEM_STREAM_HOST);
	hetmem_resource_destroy(res);
	return err ? -1 : (double)ns;
}

static double pinned_by_driver(struct bench_options *o, size_t size)
{
	uint64_t ns = bench_now();
	void *p;

	if (o->drv->cuMemHostAlloc(&p, size, CU_MEMHOSTALLOC_PORTABLE))
		return -1;
	ns = bench_now() - ns;
	o->drv->cuMemFreeHost(p);
	return ns;
}

int bench_pinned(int argc, char **argv)
{
	static const char *const presets[] = { "pinned", "pool(pinned)", NULL };
	struct bench_options o = { 0 };
	int i, j, status = bench_begin(&o, argc, argv,
		"Usage: hetmem bench pinned [--spec SPEC]... [--driver DRIVER] [--json]\n"
		"1 GiB of page-locked memory, made and given out. NS is of one.", presets);
	size_t size = GIB;
	struct bench_pairs *pairs;

	if (status >= 0)
		return status;
	/* On a small machine as much as it can spare. */
	while (size > 64 * MIB && size * 4 > available_memory())
		size /= 2;
	pairs = bench_pairs_new();
	for (i = 0; i < o.nr_specs; i++) {
		double ours[ROUNDS], theirs[ROUNDS];
		struct bench_pair row = {
			.threads = 1, .system_calls = -1,
			.peer = "cuMemHostAlloc",
		};

		row.what = size == GIB ? "1 GiB, page-locked" :
			xasprintf("%zu MiB, page-locked", size / MIB);
		for (j = 0; j < ROUNDS; j++) {
			ours[j] = pinned_made(&o, o.specs[i], size, NULL);
			theirs[j] = pinned_by_driver(&o, size);
		}
		pinned_made(&o, o.specs[i], size, &row);
		snprintf(row.spec, sizeof(row.spec), "%s", o.specs[i]);
		row.ns = bench_median(ours, ROUNDS);
		row.peer_ns = bench_median(theirs, ROUNDS);
		bench_pairs_add(pairs, &row);
	}
	return bench_end(&o, pairs);
}
