// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Memory that was mapped, got no access, and was not unmapped either: it is counted, never
 * used, and given back as soon as the driver unmaps it, addresses included.
 */
#include "pool.h"

static unsigned int freed_ranges, bad_ranges;
static CUresult (*real_address_free)(CUdeviceptr addr, size_t size);

static CUresult count_address_free(CUdeviceptr addr, size_t size)
{
	CUresult res = real_address_free(addr, size);

	freed_ranges += !res;
	bad_ranges += !!res;
	return res;
}

#define HALF	"cuMemSetAccess:%u=CUDA_ERROR_UNKNOWN,cuMemUnmap:*"

static void half_mapped_from(unsigned int nth)
{
	char rule[80];

	snprintf(rule, sizeof(rule), HALF, nth);
	need(!soft_rules(rule, NULL), "a rule");
}

static void destroyed(const char *what)
{
	freed_ranges = 0;
	bad_ranges = 0;
	is(hetmem_resource_destroy(pool), 0, "%s: all is freed", what);
	is(device_used(), 0, "%s: all memory is given back", what);
	ok(freed_ranges == 1 && !bad_ranges, "%s: all addresses, too", what);
}

static void created(bool trimmed)
{
	struct hm_pool_options opt = { .wait_ms = HM_POOL_NO_WAIT };
	size_t was;
	void *p;

	make_pool("vmm", &opt);
	half_mapped_from(1);
	ok(hetmem_alloc(pool, 4 * MIB, 0, NULL, &p) < 0, "no memory: %s",
	   hetmem_last_error());
	is(pool_stats().reserved, device_used(), "what is held is counted");
	ok(device_used(), "there is some");
	soft_rules(NULL, NULL);
	p = get(4 * MIB, NULL);
	memset(p, 1, 4 * MIB);
	was = pool_stats().reserved;
	if (trimmed) {
		is(hetmem_trim(pool, 0, NULL), 0, "trim");
		ok(pool_stats().reserved < was, "gives it back");
		is(pool_stats().reserved, device_used(), "and the driver agrees");
	}
	put(p, 0, NULL);
	destroyed("created");
}

/* Free memory in pieces that is mapped elsewhere as one. */
static void moved(void)
{
	struct hm_pool_options opt = { .handle = 2 * MIB, .max = 64 * MIB };
	unsigned int i, n, failed = 0;
	char *p[32], *q;
	bool good = true;

	for (n = 1; n <= 4; n++) {
		make_pool("vmm", &opt);
		for (i = 0; i < 32; i++) {
			p[i] = get(2 * MIB, NULL);
			memset(p[i], i, 2 * MIB);
		}
		for (i = 0; i < 32; i += 2)
			put(p[i], 0, NULL);
		half_mapped_from(n);
		failed += !!hetmem_alloc(pool, 16 * MIB, 0, NULL, (void **)&q);
		soft_rules(NULL, NULL);
		for (i = 0; i < 3; i++) {
			need(!hetmem_alloc(pool, 16 * MIB, 0, NULL, (void **)&q),
			     "moved: %s", hetmem_last_error());
			memset(q, 0xee, 16 * MIB);
			put(q, 0, NULL);
			hetmem_trim(pool, 48 * MIB, NULL);
		}
		is(pool_stats().reserved, device_used(), "%u: what is held is counted", n);
		for (i = 1; i < 32; i += 2) {
			good &= all_bytes(p[i], i, 2 * MIB);
			put(p[i], 0, NULL);
		}
		ok(good, "%u: contents stay", n);
		destroyed("moved");
	}
	ok(failed, "and it was what failed");
}

static void woken(bool again)
{
	void *p;

	make_pool("vmm", NULL);
	p = get(6 * MIB, NULL);
	is(hetmem_sleep(pool, NULL, HETMEM_SLEEP_DISCARD), 0, "sleep");
	half_mapped_from(1);
	ok(hetmem_wake(pool, NULL) < 0, "does not wake: %s", hetmem_last_error());
	ok(hetmem_wake(pool, NULL) < 0, "nor does it then");
	soft_rules(NULL, NULL);
	if (again) {
		is(hetmem_wake(pool, NULL), 0, "wakes");
		memset(p, 1, 6 * MIB);
		is(pool_stats().reserved, device_used(), "what is held is counted");
	}
	put(p, 0, NULL);
	destroyed("woken");
}

int main(void)
{
	open_soft("");
	real_address_free = hm->driver.cuMemAddressFree;
	hm->driver.cuMemAddressFree = count_address_free;
	created(false);
	created(true);
	moved();
	woken(true);
	woken(false);
	close_soft();
	return tap_end();
}
