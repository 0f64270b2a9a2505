// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * vmm(peers=): other devices reach what the pool has, and whatever it maps
 * later: what it makes as it grows, what it maps again, what it wakes with.
 */
#include "alloc_with.h"
#include "pool.h"

static struct hetmem_resource *res;
static CUstream own, other;
static CUcontext other_ctx;

/* What @device may do at @ptr, as the driver says. */
static unsigned long long rights(const void *ptr, int device)
{
	CUmemLocation location = {
		.type = CU_MEM_LOCATION_TYPE_DEVICE,
		.id = hm->devices[device].handle,
	};
	unsigned long long flags = ~0ULL;

	if (drv->cuMemGetAccess(&flags, &location, (uintptr_t)ptr))
		return ~0ULL;
	return flags;
}

/* Of every handle of a block: the owner and device 1 may, device 2 may not. */
static bool is_shared(void *ptr, size_t size)
{
	struct hetmem_segment seg[256];
	ssize_t i, nr = hetmem_segments(res, ptr, size, seg, 256);

	for (i = 0; i < nr; i++)
		if (rights(seg[i].base, 0) !=
		    CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
		    rights(seg[i].base, 1) !=
		    CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
		    rights(seg[i].base, 2) != CU_MEM_ACCESS_FLAGS_PROT_NONE)
			return false;
	return nr > 0;
}

/* Device 1 writes it, device 0 reads it. */
static bool is_reached(void *ptr, size_t size, unsigned char value)
{
	unsigned char ends[2] = { 0 };
	CUcontext before;
	bool good;

	drv->cuCtxGetCurrent(&before);
	drv->cuCtxSetCurrent(other_ctx);
	good = !drv->cuMemsetD8Async((uintptr_t)ptr, value, size, other) &&
		!drv->cuStreamSynchronize(other);
	drv->cuCtxSetCurrent(before);
	return good &&
		!drv->cuMemcpyDtoHAsync(&ends[0], (uintptr_t)ptr, 1, own) &&
		!drv->cuMemcpyDtoHAsync(&ends[1], (uintptr_t)ptr + size - 1, 1,
					own) &&
		!drv->cuStreamSynchronize(own) && ends[0] == value &&
		ends[1] == value;
}

static void open_devices(void)
{
	CUcontext before;

	drv->cuCtxGetCurrent(&before);
	need(!drv->cuDevicePrimaryCtxRetain(&other_ctx, 1) &&
	     !drv->cuCtxSetCurrent(other_ctx) &&
	     !drv->cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) &&
	     !drv->cuCtxSetCurrent(before) &&
	     !drv->cuStreamCreate(&own, CU_STREAM_NON_BLOCKING), "two devices");
}

static void close_devices(void)
{
	drv->cuStreamDestroy(own);
	drv->cuStreamDestroy(other);
	drv->cuDevicePrimaryCtxRelease(1);
}

static void *block(size_t size)
{
	void *p = NULL;

	need(!hetmem_alloc(res, size, 0, own, &p), "%zu bytes: %s", size,
	     hetmem_last_error());
	return p;
}

static void everything_mapped(void)
{
	void *p[16], *q;
	int i;

	is(hetmem_resource_create(hm, "pool(vmm(device=0,peers=1),handle=2M,tag=t)",
				  &res), 0, "peers=1: %s", hetmem_last_error());
	p[0] = block(3 * MIB);
	ok(is_shared(p[0], 3 * MIB), "what is mapped first");
	ok(is_reached(p[0], 3 * MIB, 0x11), "device 1 writes there");
	for (i = 1; i < 16; i++)
		p[i] = block(4 * MIB);
	ok(is_shared(p[15], 4 * MIB), "what the pool grows by");
	for (i = 1; i < 16; i += 2)
		hetmem_free(res, p[i], 0, own);
	q = block(24 * MIB);
	ok(is_shared(q, 24 * MIB), "what is mapped again");
	ok(is_reached(q, 24 * MIB, 0x22), "device 1 writes there, too");
	hetmem_free(res, q, 0, own);
	is(alloc_reserve(res, 2 * MIB, 32 * MIB, own, &q), 0,
	   "a block with room");
	is(hetmem_grow(res, q, 20 * MIB, own), 0, "grows");
	ok(is_shared(q, 20 * MIB), "what it has grown by");
	is(hetmem_sleep(res, "t", HETMEM_SLEEP_DISCARD), 0, "sleep");
	is(hetmem_wake(res, "t"), 0, "wake");
	ok(is_shared(q, 20 * MIB) && is_shared(p[0], 3 * MIB),
	   "what is there after waking");
	ok(is_reached(q, 20 * MIB, 0x33), "device 1 writes there still");
	hetmem_free(res, q, 0, own);
	for (i = 0; i < 16; i += 2)
		hetmem_free(res, p[i], 0, own);
	is(hetmem_resource_destroy(res), 0, "all is freed");
	is(device_used(), 0, "and given back");
}

static void others(void)
{
	void *p;

	need(!hetmem_resource_create(hm, "pool(vmm)", &res), "no peers");
	p = block(MIB);
	is(rights(p, 1), CU_MEM_ACCESS_FLAGS_PROT_NONE,
	   "nobody who was not asked for");
	hetmem_free(res, p, 0, own);
	hetmem_resource_destroy(res);
	need(!hetmem_resource_create(hm, "pool(vmm(device=0,peers=1/2))",
				     &res), "two peers");
	p = block(MIB);
	is(rights(p, 2), CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	   "both who were asked for");
	hetmem_free(res, p, 0, own);
	hetmem_resource_destroy(res);
	is(hetmem_resource_create(hm, "pool(vmm(peers=9))", &res), -ENODEV,
	   "no such device: %s", hetmem_last_error());
	is(hetmem_resource_create(hm, "pool(vmm(peers=x))", &res), -EINVAL,
	   "no number: %s", hetmem_last_error());
	is(hetmem_resource_create(hm, "pool(vmm(export=fabric))", &res),
	   -EOPNOTSUPP, "no fabric: %s", hetmem_last_error());
}

/* Failing to give a peer its rights leaves nothing behind. */
static void refused(void)
{
	void *p = NULL;
	int err;

	need(!hetmem_resource_create(hm, "pool(vmm(peers=1),wait=0s)", &res),
	     "a pool");
	need(!soft_rules("cuMemSetAccess:1", NULL), "a rule");
	/* It may have tried again with another handle. */
	err = hetmem_alloc(res, MIB, 0, own, &p);
	soft_rules(NULL, NULL);
	ok(err ? !p : is_shared(p, MIB), "no block without the rights");
	hetmem_free(res, p, 0, own);
	p = block(MIB);
	ok(is_shared(p, MIB), "then with them");
	hetmem_free(res, p, 0, own);
	is(hetmem_resource_destroy(res), 0, "all is freed");
	is(device_used(), 0, "and nothing is left");
}

int main(void)
{
	setenv("HETMEM_SOFT_DEVICES", "3", 1);
	setenv("HETMEM_SOFT_CHECK", "1", 1);
	open_soft("");
	open_devices();
	everything_mapped();
	others();
	refused();
	close_devices();
	close_soft();
	return tap_end();
}
