// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Sparse blocks: addresses first, memory where it is committed. Decommitted units are parked,
 * and serve others when these need memory.
 */
#include "sparse_test.h"

static void basic(void)
{
	struct hetmem_resource *res = make("pool(vmm)");
	char *p = get_sparse(res, 1 << 30), *q;
	size_t made;

	is(held(res), 0, "addresses are no memory");
	is(stats(res).requested, 0, "nor requested");
	is(stats(res).addresses, (size_t)1 << 30, "but counted");
	is(hetmem_commit(res, p, 8 * MIB, 4 * MIB, NULL), 0, "commit: %s", hetmem_last_error());
	is(held(res), 4 * MIB, "two units");
	is(stats(res).requested, 4 * MIB, "requested");
	memset(p + 8 * MIB, 5, 4 * MIB);
	is(hetmem_commit(res, p, 8 * MIB, 2 * MIB, NULL), -EEXIST, "twice");
	is(hetmem_commit(res, p, 6 * MIB, 4 * MIB, NULL), -EEXIST, "in part");
	is(held(res), 4 * MIB, "all or nothing");
	is(hetmem_decommit(res, p, 0, 2 * MIB, NULL), -ENOENT, "not committed");
	is(hetmem_commit(res, p, MIB, 2 * MIB, NULL), -EINVAL, "no unit");
	is(hetmem_commit(res, p, 0, MIB, NULL), -EINVAL, "no unit's length");
	is(hetmem_commit(res, p, 1 << 30, 2 * MIB, NULL), -EINVAL, "beyond");
	is(hetmem_commit(res, p, SIZE_MAX - MIB, 2 * MIB, NULL), -EINVAL, "overflow");
	ok(all_bytes(p + 8 * MIB, 5, 4 * MIB), "contents");
	is(hetmem_decommit(res, p, 8 * MIB, 4 * MIB, NULL), 0, "decommit");
	is(held(res), 4 * MIB, "parked");
	is(stats(res).requested, 0, "not requested");
	made = stats(res).driver_calls;
	is(hetmem_commit(res, p, 8 * MIB, 4 * MIB, NULL), 0, "again");
	is(hetmem_decommit(res, p, 8 * MIB, 4 * MIB, NULL), 0, "and again");
	is(stats(res).driver_calls, made, "without a call of the driver");
	is(hetmem_commit(res, p, 100 * MIB, 4 * MIB, NULL), 0, "elsewhere");
	is(held(res), 4 * MIB, "the same memory");
	is(hetmem_decommit(res, p, 100 * MIB, 4 * MIB, NULL), 0, "parked there");
	q = get(res, 4 * MIB, NULL);
	is(held(res), 4 * MIB, "an allocation takes it");
	memset(q, 1, 4 * MIB);
	is(hetmem_commit(res, p, 100 * MIB, 2 * MIB, NULL), 0, "where it was: %s", hetmem_last_error());
	memset(p + 100 * MIB, 2, 2 * MIB);
	ok(all_bytes(q, 1, 4 * MIB), "apart");
	is(held(res), 6 * MIB, "new memory");
	need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), "sleep: %s", hetmem_last_error());
	is(hetmem_commit(res, p, 0, 2 * MIB, NULL), -EBUSY, "asleep");
	need(!hetmem_wake(res, NULL), "wake: %s", hetmem_last_error());
	ok(all_bytes(q, 1, 4 * MIB) && all_bytes(p + 100 * MIB, 2, 2 * MIB), "contents stay");
	is(hetmem_decommit(res, p, 100 * MIB, 2 * MIB, NULL), 0, "parked");
	hetmem_trim(res, 0, NULL);
	is(held(res), 4 * MIB, "a trim takes it");
	is(hetmem_commit(res, p, 0, 1 << 26, NULL), 0, "64 MiB");
	is(hetmem_free(res, p, 1 << 26, NULL), -EINVAL, "its size is that of its addresses");
	is(hetmem_free(res, p, 1 << 30, NULL), 0, "free");
	is(stats(res).requested, 4 * MIB, "requested");
	is(stats(res).addresses, 0, "no addresses");
	made = stats(res).driver_calls;
	is(get_sparse(res, 1 << 30) == p, 1, "the next has the same addresses");
	is(hetmem_commit(res, p, 0, 1 << 26, NULL), 0, "and units");
	is(stats(res).driver_calls, made, "without a call of the driver");
	hetmem_free(res, p, 0, NULL);
	hetmem_free(res, q, 0, NULL);
	hetmem_trim(res, 0, NULL);
	is(held(res), 0, "nothing is left");
	is(device_used(), 0, "the driver agrees");
	is(get_sparse(res, 1 << 29) == p, 1, "and the addresses serve a block of another size");
	is(hetmem_resource_destroy(res), 1, "destroyed");
}

/* ThreadSanitizer leaves a program few addresses. */
#ifdef __SANITIZE_THREAD__
#define NR	300
#else
#define NR	10000
#endif

/* Blocks of addresses without memory cost next to nothing. */
static void many(void)
{
	struct hetmem_resource *res = make("pool(vmm)");
	char **p = calloc(NR, sizeof(*p));
	const size_t before = stats(res).metadata;
	int i, failed = 0;

	need(p, "host memory");
	for (i = 0; i < NR; i++)
		failed += !!sparse(res, 1 << 30, NULL, &p[i]);
	is(failed, 0, "%d blocks of 1 GiB: %s", NR, hetmem_last_error());
	is(stats(res).addresses, (uint64_t)NR << 30, "addresses");
	ok((stats(res).metadata - before) / NR <= 4096, "%zu bytes of metadata each",
	   (size_t)(stats(res).metadata - before) / NR);
	for (i = 0; i < NR; i++)
		failed += !!hetmem_free(res, p[i], 1 << 30, NULL);
	is(failed, 0, "freed");
	free(p);
	is(hetmem_resource_destroy(res), 0, "destroyed");
}

/* Two blocks, two streams: each unit has its number, or is not committed. */
static void at_random(uint64_t round, const char *spec)
{
	struct hetmem_resource *res = make(spec);
	CUstream s[2] = { new_stream(), new_stream() };
	unsigned char has[2][UNITS] = { 0 }, number = 0;
	unsigned int n, b, u, wrong = 0, refused = 0;
	char *p[2] = { get_sparse(res, UNITS * GRANULE), get_sparse(res, UNITS * GRANULE) };
	void *other = NULL;
	int err;

	seed = round;
	for (n = 0; n < 600; n++) {
		b = below(2);
		u = below(UNITS);
		if (has[b][u]) {
			need(!hetmem_decommit(res, p[b], u * GRANULE, GRANULE, s[b]), "decommit: %s",
			     hetmem_last_error());
			has[b][u] = 0;
		} else {
			err = hetmem_commit(res, p[b], u * GRANULE, GRANULE, s[b]);
			refused += err != 0;
			if (!err) {
				number = number % 250 + 1;
				has[b][u] = number;
				write_unit(p[b] + u * GRANULE, number, s[b]);
			}
		}
		if (!below(6)) {
			hetmem_free(res, other, 0, s[0]);
			other = NULL;
			if (!hetmem_alloc(res, MIB + below(24 * MIB), 0, s[0], &other))
				drv->cuMemsetD8Async((uintptr_t)other, 0xff, MIB, s[0]);
		}
		if (below(40))
			continue;
		drv->cuCtxSynchronize();
		if (below(2)) {
			need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), "sleeps: %s", hetmem_last_error());
			need(!hetmem_wake(res, NULL), "wakes: %s", hetmem_last_error());
		} else {
			hetmem_trim(res, 0, NULL);
			is(held(res), device_used(), "the driver agrees");
		}
		for (b = 0; b < 2; b++)
			for (u = 0; u < UNITS; u++)
				wrong += has[b][u] && !has_unit(p[b] + u * GRANULE, has[b][u]);
	}
	drv->cuCtxSynchronize();
	for (b = 0; b < 2; b++)
		for (u = 0; u < UNITS; u++)
			wrong += has[b][u] && !has_unit(p[b] + u * GRANULE, has[b][u]);
	is(wrong, 0, "round %u over %s", (unsigned int)round, spec);
	is(refused, 0, "no commit was refused: %s", hetmem_last_error());
	hetmem_free(res, other, 0, s[0]);
	hetmem_free(res, p[0], 0, s[0]);
	hetmem_free(res, p[1], 0, s[1]);
	is(stats(res).requested, 0, "nothing is requested");
	hetmem_trim(res, 0, NULL);
	is(held(res), 0, "nothing is held");
	is(hetmem_resource_destroy(res), 0, "destroyed");
	is(device_used(), 0, "all is given back");
	drv->cuStreamDestroy(s[0]);
	drv->cuStreamDestroy(s[1]);
}

/* A commit is all or nothing. */
static void each_call(const char *undo)
{
	static const char *const fails[] = { "cuMemCreate", "cuMemMap", "cuMemSetAccess" };
	unsigned int i, n;
	char rule[100];
	int err;

	for (i = 0; i < 3; i++) {
		for (n = 1; n <= 6; n++) {
			struct hetmem_resource *res = make("pool(vmm)");
			char *p = get_sparse(res, 40 * MIB);
			size_t before;

			need(!hetmem_commit(res, p, 20 * MIB, 4 * MIB, NULL), "commit");
			need(!hetmem_decommit(res, p, 20 * MIB, 4 * MIB, NULL), "decommit");
			before = held(res);
			snprintf(rule, sizeof(rule), "%s:%u=CUDA_ERROR_UNKNOWN%s", fails[i], n, undo);
			soft_rules(rule, NULL);
			err = hetmem_commit(res, p, 0, 10 * MIB, NULL);
			soft_rules(NULL, NULL);
			ok(n > (i ? 5 : 3) ? !err : err < 0, "%s: %d", rule, err);
			hetmem_poll(res);
			is(held(res), err ? before : 10 * MIB, "%s: held", rule);
			is(stats(res).requested, err ? 0 : 10 * MIB, "%s: requested", rule);
			if (err)
				is(hetmem_commit(res, p, 0, 10 * MIB, NULL), 0, "%s: again: %s", rule,
				   hetmem_last_error());
			memset(p, 3, 10 * MIB);
			is(hetmem_free(res, p, 40 * MIB, NULL), 0, "%s: freed", rule);
			hetmem_trim(res, 0, NULL);
			is(held(res), 0, "%s: nothing is held", rule);
			is(hetmem_resource_destroy(res), 0, "%s: destroyed", rule);
			is(device_used(), 0, "%s: all is given back", rule);
		}
	}
}

/* A commit of many units lets go of the lock in between. It is all or nothing, too. */
static void pieces(void)
{
	static const char *const rules[] = {
		"cuMemCreate:70=CUDA_ERROR_UNKNOWN", "cuMemMap:75=CUDA_ERROR_UNKNOWN",
		"cuMemSetAccess:90=CUDA_ERROR_UNKNOWN", "cuMemSetAccess:90=CUDA_ERROR_UNKNOWN,cuMemUnmap:1",
		"cuMemCreate:70=CUDA_ERROR_UNKNOWN,cuMemRelease:3",
	};
	struct hetmem_resource *res = make("pool(vmm,wait=0s)");
	char *p = get_sparse(res, 100 * GRANULE);
	struct hetmem_extent e[2];
	size_t before;
	unsigned int i;
	int err;

	need(!hetmem_commit(res, p, 40 * GRANULE, 3 * GRANULE, NULL), "commit: %s", hetmem_last_error());
	is(hetmem_commit(res, p, 0, 100 * GRANULE, NULL), -EEXIST, "units that are committed");
	is(held(res), 3 * GRANULE, "nothing was made for the others");
	is(hetmem_decommit(res, p, 0, 100 * GRANULE, NULL), -ENOENT, "units that are not");
	is(hetmem_committed(res, p, e, 2), 1, "all or nothing");
	need(!hetmem_decommit(res, p, 40 * GRANULE, 3 * GRANULE, NULL), "decommit");
	before = held(res);
	for (i = 0; i < sizeof(rules) / sizeof(*rules); i++) {
		soft_rules(rules[i], NULL);
		err = hetmem_commit(res, p, 0, 100 * GRANULE, NULL);
		soft_rules(NULL, NULL);
		ok(err < 0, "%s: %d: %s", rules[i], err, hetmem_last_error());
		hetmem_poll(res);
		is(held(res), before, "%s: held", rules[i]);
		is(stats(res).requested, 0, "%s: requested", rules[i]);
		is(hetmem_committed(res, p, e, 2), 0, "%s: nothing is committed", rules[i]);
	}
	is(hetmem_commit(res, p, 0, 100 * GRANULE, NULL), 0, "all: %s", hetmem_last_error());
	is(stats(res).requested, 100 * GRANULE, "requested");
	memset(p, 9, 100 * GRANULE);
	is(hetmem_decommit(res, p, GRANULE, 99 * GRANULE, NULL), 0, "nearly all");
	is(stats(res).requested, GRANULE, "one is left");
	is(hetmem_commit(res, p, 50 * GRANULE, GRANULE, NULL), 0, "others can be committed again");
	ok(all_bytes(p, 9, GRANULE), "contents stay");
	hetmem_free(res, p, 0, NULL);
	hetmem_trim(res, 0, NULL);
	is(held(res), 0, "nothing is left");
	is(device_used(), 0, "the driver agrees");
	is(hetmem_resource_destroy(res), 0, "destroyed");
}

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "1G", 1);
	open_soft("");
	basic();
	pieces();
	many();
	each_call("");
	each_call(",cuMemUnmap:1");
	at_random(1, "pool(vmm,wait=60s)");
	at_random(2, "pool(vmm,max=300M,wait=60s)");
	at_random(3, "pool(vmm,handle=8M,wait=60s)");
	close_soft();
	return tap_end();
}
