// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * vmm(stripe=): memory of several devices in turn, which all of them use. Segments and
 * residency report the device of each part, what fails leaves nothing behind, and what makes
 * no sense is refused in one line.
 */
#include "alloc_with.h"
#include "by_spec.h"
#include "devices.h"

#define MIB	((size_t)1 << 20)
static bool all_given_back(void)
{
	return !used(0) && !used(1) && !used(2);
}

static unsigned long long rights(const void *ptr, int device)
{
	CUmemLocation location = { CU_MEM_LOCATION_TYPE_DEVICE, device };
	unsigned long long flags = ~0ULL;

	return drv->cuMemGetAccess(&flags, &location, (uintptr_t)ptr) ? ~0ULL : flags;
}

static bool is_reached(void *ptr, size_t size, int by, unsigned char value)
{
	bool good;

	drv->cuCtxSetCurrent(ctx[by]);
	good = !drv->cuMemsetD8Async((uintptr_t)ptr, value, size, streams[by]) &&
	       !drv->cuStreamSynchronize(streams[by]);
	drv->cuCtxSetCurrent(ctx[0]);
	return good && all_bytes(ptr, value, size);
}

/*
 * @size bytes at @ptr: parts of @unit, each of one device of the mask @devices, which all of
 * them use. With @in_turn their order is that of the devices.
 */
static void is_dealt(struct hetmem_resource *res, void *ptr, size_t size, size_t unit,
		     unsigned int devices, bool in_turn)
{
	struct hetmem_segment seg[64];
	ssize_t i, nr = hetmem_segments(res, ptr, size, seg, 64);
	size_t parts[DEVICES] = { 0 }, most = 0, least = SIZE_MAX;
	bool whole = true, turns = true, seen = true, right = true;
	int d;

	is(nr, (size + unit - 1) / unit, "segments of %zu MiB", size / MIB);
	for (i = 0; i < nr; i++) {
		d = seg[i].device;
		whole = whole && seg[i].offset == i * unit && seg[i].length <= unit;
		right = right && d >= 0 && d < DEVICES && devices >> d & 1;
		seen = seen && owner(seg[i].base) == d;
		turns = turns && (!i || d != seg[i - 1].device);
		parts[right ? d : 0]++;
		for (d = 0; d < DEVICES; d++)
			right = right && (devices >> d & 1) == (rights(seg[i].base, d) ==
				CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	}
	ok(whole, "in units, in a row");
	ok(right, "of the devices that were named, for all of them");
	ok(seen, "the driver says the same");
	ok(turns || !in_turn, "dealt in turn");
	for (d = 0; d < DEVICES; d++) {
		if (!(devices >> d & 1))
			continue;
		most = parts[d] > most ? parts[d] : most;
		least = parts[d] < least ? parts[d] : least;
	}
	ok(most - least <= 1 || !in_turn, "and evenly: %zu to %zu", least, most);
	for (d = 0; d < DEVICES; d++)
		if (devices >> d & 1)
			ok(is_reached(ptr, size, d, 0x40 + d), "device %d writes all of it", d);
}

/* Both ways in which the number of devices and a power of two go together. */
static void dealt(void)
{
	struct hetmem_resource *res = make("pool(vmm(stripe=0/1))");
	void *p = get(res, 24 * MIB, NULL), *q, *r;

	is_dealt(res, p, 24 * MIB, 2 * MIB, 3, true);
	ok(used(0) == used(1) && used(0) >= 12 * MIB, "each has a half: %zu, %zu", used(0), used(1));
	is(hetmem_free(res, p, 0, NULL), 0, "free");
	is(hetmem_resource_destroy(res), 0, "destroy");

	res = make("pool(vmm(stripe=0/1/2,unit=4M))");
	p = get(res, 48 * MIB, NULL);
	is_dealt(res, p, 48 * MIB, 4 * MIB, 7, true);
	q = get(res, 16 * MIB, NULL);
	r = get(res, 16 * MIB, NULL);
	ok(used(0) - used(1) + 4 * MIB <= 8 * MIB && used(1) - used(2) + 4 * MIB <= 8 * MIB,
	   "one unit of difference at most: %zu, %zu, %zu", used(0), used(1), used(2));
	/* Memory that is free is mapped at other addresses. */
	hetmem_free(res, p, 0, NULL);
	hetmem_free(res, r, 0, NULL);
	p = get(res, 64 * MIB, NULL);
	is_dealt(res, p, 64 * MIB, 4 * MIB, 7, false);
	hetmem_free(res, p, 0, NULL);
	hetmem_free(res, q, 0, NULL);
	is(hetmem_resource_destroy(res), 0, "destroy");
	ok(all_given_back(), "all is given back");

	res = make("pool(vmm(device=1,stripe=0/1,peers=2))");
	p = get(res, 5 * MIB, HETMEM_STREAM_HOST);
	is(rights(p, 2), CU_MEM_ACCESS_FLAGS_PROT_READWRITE, "a peer that has none of it");
	hetmem_free(res, p, 0, HETMEM_STREAM_HOST);
	is(hetmem_resource_destroy(res), 0, "destroy");
	ok(all_given_back(), "all is given back");
}

/* What other blocks can do: sleep with contents, grow, rings, aliases, units on demand. */
static void used_as_others(void)
{
	struct hetmem_resource *res = make("pool(vmm(stripe=0/1),tag=t,unit=4M)");
	struct hetmem_alloc_params params = { .size = sizeof(params), .bytes = 8 * MIB };
	unsigned char *p = get(res, 12 * MIB, HETMEM_STREAM_HOST);
	void *other = NULL;

	memset(p, 0x5a, 12 * MIB);
	is(hetmem_alias(res, p, 12 * MIB, 0, &other), 0, "an alias: %s", hetmem_last_error());
	ok(all_bytes(other, 0x5a, 12 * MIB), "has the contents");
	is(hetmem_free(res, other, 0, HETMEM_STREAM_HOST), 0, "is freed");
	is(hetmem_alias(res, p, 12 * MIB, HETMEM_ALIAS_READ, &other), 0, "one to read");
	is(rights(other, 1), CU_MEM_ACCESS_FLAGS_PROT_READ, "device 1 only reads");
	is(hetmem_free(res, other, 0, HETMEM_STREAM_HOST), 0, "is freed");
	is(hetmem_sleep(res, "t", HETMEM_SLEEP_KEEP), 0, "a sleep: %s", hetmem_last_error());
	ok(all_given_back(), "gives back the memory of all devices");
	is(hetmem_wake(res, "t"), 0, "a wake: %s", hetmem_last_error());
	ok(all_bytes(p, 0x5a, 12 * MIB), "brings the contents");
	is_dealt(res, p, 12 * MIB, 2 * MIB, 3, true);
	is(hetmem_spill(res, p), -EOPNOTSUPP, "a spill is refused: %s", hetmem_last_error());
	ok(strstr(hetmem_last_error(), "stripe"), "with the reason");
	hetmem_free(res, p, 0, HETMEM_STREAM_HOST);
	params.flags = HETMEM_ALLOC_RING;
	params.stream = HETMEM_STREAM_HOST;
	is(hetmem_alloc_with(res, &params, (void **)&p), 0, "a ring: %s", hetmem_last_error());
	p[1] = 0x77;
	is(p[8 * MIB + 1], 0x77, "begins again after its end");
	hetmem_free(res, p, 0, HETMEM_STREAM_HOST);
	params.flags = HETMEM_ALLOC_SPARSE;
	is(hetmem_alloc_with(res, &params, (void **)&p), 0, "a sparse block");
	is(hetmem_commit(res, p, 4 * MIB, 4 * MIB, HETMEM_STREAM_HOST), 0, "a unit of it: %s",
	   hetmem_last_error());
	ok(owner(p + 4 * MIB) != owner(p + 6 * MIB), "is of two devices");
	hetmem_free(res, p, 0, HETMEM_STREAM_HOST);
	is(hetmem_resource_destroy(res), 0, "destroy");
	ok(all_given_back(), "all is given back");
}

/* The CPU has touched none of it, so the kernel knows no page, as of a GPU's memory. */
static void residency(void)
{
	struct hetmem_resource *res = make("pool(vmm(stripe=0/1/2,unit=4M))");
	char *p = get(res, 16 * MIB, HETMEM_STREAM_HOST);
	struct hetmem_run runs[8];
	uintptr_t next = (uintptr_t)p, end = next + 16 * MIB;
	unsigned int room, nr = 0, devices = 0;
	uint8_t sources[8];
	bool good = true;
	ssize_t n, i;

	for (room = 1; room <= 8; room++) {
		for (next = (uintptr_t)p, nr = 0; next < end && good; nr += n) {
			n = hetmem_residency(hm, (void *)next, end - next, runs, sources, room,
					     &next);
			good = n > 0;
			for (i = 0; i < n; i++) {
				good = good && sources[i] == HETMEM_SOURCE_DRIVER &&
				       runs[i].end - runs[i].start == 4 * MIB &&
				       runs[i].start == (uintptr_t)p + (nr + i) * 4 * MIB &&
				       runs[i].location ==
				       HETMEM_LOC(HETMEM_DEVICE, owner((void *)runs[i].start));
				devices |= 1U << HETMEM_LOC_INDEX(runs[i].location);
			}
		}
		ok(good && nr == 4, "residency, %u runs at a time: %u parts", room, nr);
	}
	is(devices, 7, "of all devices");
	is(hetmem_residency(hm, p, 16 * MIB, runs, NULL, 8, &next), 1, "without sources");
	is(HETMEM_LOC_KIND(runs[0].location), HETMEM_UNKNOWN, "the driver is not asked");
	hetmem_free(res, p, 0, HETMEM_STREAM_HOST);
	is(hetmem_resource_destroy(res), 0, "destroy");
}

static void refuses(const char *spec, int err, const char *why)
{
	struct hetmem_resource *res = NULL;

	is(hetmem_resource_create(hm, spec, &res), err, "%s", spec);
	ok(!res && strstr(hetmem_last_error(), why) && !strchr(hetmem_last_error(), '\n'),
	   "refused: %s", hetmem_last_error());
}

static void bad_input(void)
{
	refuses("pool(vmm(stripe=0))", -EINVAL, "two devices");
	refuses("pool(vmm(stripe=1/1))", -EINVAL, "two devices");
	refuses("pool(vmm(device=2,stripe=0/1))", -EINVAL, "device= is one of them");
	refuses("pool(vmm(device=9,stripe=0/9))", -ENODEV, "9");
	refuses("pool(vmm(stripe=0/7))", -ENODEV, "7");
	refuses("pool(vmm(stripe=x))", -EINVAL, "ordinals of devices");
	refuses("pool(vmm(stripe=0/1,unit=3M))", -EINVAL, "power of two");
	refuses("pool(vmm(stripe=0/1,unit=1M))", -EINVAL, "2097152 to 1G");
	refuses("pool(vmm(stripe=0/1,unit=2G))", -EINVAL, "2097152 to 1G");
	refuses("pool(vmm(stripe=0/1,unit=8000000000G))", -EINVAL, "power of two");
	refuses("pool(vmm(unit=2M))", -EINVAL, "stripe=");
	refuses("pool(vmm(stripe=0/1,export=fd))", -EINVAL, "export=");
	refuses("pool(vmm(stripe=0/1),spill=1G)", -EINVAL, "stripe");
	refuses("pool(vmm(stripe=0/1),movable=1M)", -EINVAL, "stripe");
	need(!soft_rules("cuMemSetAccess:*", NULL), "a rule");
	refuses("pool(vmm(stripe=0/1))", -EOPNOTSUPP, "memory of device 0");
	need(!soft_rules("cuMemSetAccess:2", NULL), "a rule");
	refuses("pool(vmm(stripe=0/1))", -EOPNOTSUPP, "memory of device 1");
	soft_rules(NULL, NULL);
	ok(all_given_back(), "nothing is left");
}

/*
 * Each of @calls fails in turn: the allocation is there whole, or nothing has changed. @retried:
 * the pool can make other handles instead.
 */
static void fails(const char *calls, bool retried)
{
	struct hetmem_resource *res;
	unsigned int nth, failed = 0;
	bool good = true, counted = true;
	char rule[96];
	void *p, *q;

	for (nth = 1; nth <= 8; nth++) {
		res = make("pool(vmm(stripe=0/1/2),wait=0s)");
		q = get(res, 4 * MIB, HETMEM_STREAM_HOST);
		memset(q, 0x21, 4 * MIB);
		snprintf(rule, sizeof(rule), calls, nth);
		need(!soft_rules(rule, NULL), "%s", rule);
		p = NULL;
		failed += hetmem_alloc(res, 12 * MIB, 0, HETMEM_STREAM_HOST, &p) < 0;
		soft_rules(NULL, NULL);
		counted = counted && stats(res).reserved <= used(0) + used(1) + used(2);
		if (p)
			hetmem_free(res, p, 0, HETMEM_STREAM_HOST);
		p = get(res, 16 * MIB, HETMEM_STREAM_HOST);
		memset(p, 0x22, 16 * MIB);
		good = good && all_bytes(q, 0x21, 4 * MIB);
		hetmem_free(res, p, 0, HETMEM_STREAM_HOST);
		snprintf(rule, sizeof(rule), calls, nth);
		need(!soft_rules(rule, NULL), "%s", rule);
		hetmem_trim(res, 0, NULL);
		soft_rules(NULL, NULL);
		good = good && all_bytes(q, 0x21, 4 * MIB);
		hetmem_free(res, q, 0, HETMEM_STREAM_HOST);
		p = get(res, 16 * MIB, HETMEM_STREAM_HOST);
		memset(p, 0x23, 16 * MIB);
		hetmem_free(res, p, 0, HETMEM_STREAM_HOST);
		good = good && !hetmem_resource_destroy(res) && all_given_back();
	}
	ok(failed || retried, "%s: %u allocations fail", calls, failed);
	ok(good, "contents stay, and nothing is left");
	ok(counted, "what is held is counted");
}

int main(void)
{
	setenv("HETMEM_SOFT_DEVICES", "3", 1);
	setenv("HETMEM_SOFT_CHECK", "1", 1);
	setenv("HETMEM_SOFT_MEMORY", "256M", 1);
	open_devices();
	dealt();
	used_as_others();
	residency();
	bad_input();
	fails("cuMemCreate:%u", true);
	fails("cuMemMap:%u", false);
	fails("cuMemSetAccess:%u", false);
	fails("cuMemCreate:%u=CUDA_ERROR_OUT_OF_MEMORY,cuMemRelease:*", true);
	fails("cuMemSetAccess:%u=CUDA_ERROR_UNKNOWN,cuMemUnmap:*", false);
	fails("cuMemMap:%u=CUDA_ERROR_UNKNOWN,cuMemUnmap:*", false);
	close_devices();
	return tap_end();
}
