// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * hetmem_private_trim(): what was made for one private pool goes to the driver, what it took
 * from the cache returns there, and nothing else changes.
 */
#include "alloc_with.h"
#include "pool_gate.h"

static CUcontext context;

static void *get_private(uint64_t id, size_t size, CUstream s)
{
	void *p = NULL;

	need(!alloc_private(pool, id, size, s, &p), "private: %s", hetmem_last_error());
	return p;
}

static uint64_t reserved(void)
{
	return pool_stats().reserved;
}

/* The bytes that a trim of @id gives back; the gauge must agree. */
static size_t trim(uint64_t id, const char *what)
{
	const uint64_t before = reserved();
	size_t freed = 1;

	is(hetmem_private_trim(pool, id, &freed), 0, "%s: trim", what);
	is(before - reserved(), freed, "%s: reports what it gives back", what);
	return freed;
}

/* The private pool is larger than the cache: it takes all of that, and more is made. */
static void made_and_taken(const char *provider, size_t cached, size_t size)
{
	CUstream a = new_stream(), b = new_stream();
	void *p, *q, *r;
	uint64_t before;

	make_pool(provider, NULL);
	p = get(cached, a);
	put(p, cached, a);
	drv->cuStreamSynchronize(a);
	need(!hetmem_poll(pool), "poll");
	before = reserved();
	need(!hetmem_private_retain(pool, 9) && !hetmem_private_retain(pool, 10), "retain");
	p = get_private(9, size, a);
	q = get_private(9, size, b);
	r = get_private(10, size, a);
	put(q, size, b);
	drv->cuCtxSynchronize();
	trim(9, "one of two blocks");
	ok(reserved() >= before, "%s, %zu: the cache is as large as before", provider, size);
	put(p, size, a);
	put(r, size, a);
	drv->cuCtxSynchronize();
	trim(9, "both");
	ok(get_private(10, size, a) == r, "%s, %zu: another private pool has its memory", provider,
	   size);
	put(r, size, a);
	drv->cuCtxSynchronize();
	trim(10, "the other pool");
	is(reserved(), before, "%s, %zu: what was made has gone, and nothing else", provider, size);
	is(trim(9, "again"), 0, "%s, %zu: nothing more", provider, size);
	p = get(cached, a);
	is(reserved(), before, "%s, %zu: the cache is there", provider, size);
	put(p, cached, a);
	p = get_private(9, size, b);
	put(p, size, b);
	is(hetmem_private_release(pool, 9, b), 0, "%s, %zu: used again and released", provider,
	   size);
	is(hetmem_private_release(pool, 10, b), 0, "%s, %zu: the other, too", provider, size);
	is(hetmem_resource_destroy(pool), 0, "%s, %zu: nothing is left", provider, size);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

/* All of a private pool comes from the cache, and returns there. */
static void only_taken(const char *provider)
{
	CUstream a = new_stream();
	void *p, *q;
	uint64_t before;

	make_pool(provider, NULL);
	p = get(80 * MIB, a);
	put(p, 80 * MIB, a);
	drv->cuStreamSynchronize(a);
	before = reserved();
	need(!hetmem_private_retain(pool, 9), "retain");
	q = get_private(9, 4 * MIB, a);
	is(reserved(), before, "%s: the cache serves it", provider);
	put(q, 4 * MIB, a);
	drv->cuStreamSynchronize(a);
	is(trim(9, provider), 0, "%s: nothing was made for it", provider);
	p = get(80 * MIB, a);
	is(reserved(), before, "%s: the cache is whole again", provider);
	put(p, 80 * MIB, a);
	is(hetmem_private_release(pool, 9, a), 0, "%s: released", provider);
	is(hetmem_resource_destroy(pool), 0, "%s: nothing is left", provider);
	drv->cuStreamDestroy(a);
}

/* Live blocks stay; those with uses on further streams go. */
static void live_and_used(const char *provider, size_t size)
{
	CUstream a = new_stream(), b = new_stream();
	void *live, *used, *p;
	uint64_t with_live;

	make_pool(provider, NULL);
	need(!hetmem_private_retain(pool, 9), "retain");
	live = get_private(9, size, a);
	with_live = reserved();
	used = get_private(9, 3 * size, a);
	drv->cuMemsetD8Async((CUdeviceptr)used, 1, 3 * size, b);
	need(!hetmem_record_stream(pool, used, b), "a use: %s", hetmem_last_error());
	put(used, 3 * size, a);
	drv->cuCtxSynchronize();
	ok(trim(9, provider) > 0 || size < MIB, "%s, %zu: a block with a use goes", provider, size);
	ok(reserved() >= with_live, "%s, %zu: a live one stays", provider, size);
	drv->cuMemsetD8Async((CUdeviceptr)live, 2, size, a);
	p = get_private(9, size, a);
	ok(p != live, "%s, %zu: and is not given out", provider, size);
	put(p, size, a);
	put(live, size, a);
	drv->cuCtxSynchronize();
	trim(9, provider);
	is(reserved(), 0, "%s, %zu: then all goes", provider, size);
	is(hetmem_private_release(pool, 9, a), 0, "%s, %zu: released", provider, size);
	is(hetmem_resource_destroy(pool), 0, "%s, %zu: nothing is left", provider, size);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

static void exported(void)
{
	struct hetmem_segment segment = { 0 };
	CUstream a = new_stream();
	int fd = -1;
	void *p, *q;

	need(!hetmem_resource_create(hm, "pool(vmm(export=fd))", &pool), "a pool");
	need(!hetmem_private_retain(pool, 9), "retain");
	p = get_private(9, 3 * MIB, a);
	q = get_private(9, 5 * MIB, a);
	is(hetmem_export(pool, p, &fd, &segment, 1), 1, "exported: %s", hetmem_last_error());
	put(p, 3 * MIB, a);
	put(q, 5 * MIB, a);
	drv->cuStreamSynchronize(a);
	is(hetmem_private_trim(pool, 9, NULL), 0, "exportable: trim");
	is(reserved(), 0, "exportable: all was given back");
	close(fd);
	is(hetmem_private_release(pool, 9, a), 0, "exportable: released");
	is(hetmem_resource_destroy(pool), 0, "exportable: nothing is left");
	drv->cuStreamDestroy(a);
}

static void never_restored(void *data, const struct hetmem_restored *block)
{
	(void)block;
	*(bool *)data = true;
}

static void checkpoints(void)
{
	struct hetmem_checkpoint *saved;
	CUstream a = new_stream();
	bool restored = false;
	void *p;

	make_pool("vmm", NULL);
	need(!hetmem_private_retain(pool, 9), "retain");
	p = get_private(9, 8 * MIB, a);
	need(!hetmem_private_checkpoint(pool, 9, &saved), "a checkpoint");
	put(p, 8 * MIB, a);
	drv->cuStreamSynchronize(a);
	trim(9, "checkpoint");
	is(hetmem_private_restore(pool, saved, never_restored, &restored), -ENOENT,
	   "no restore: %s", hetmem_last_error());
	ok(!restored, "it changes nothing");
	hetmem_checkpoint_free(saved);
	is(hetmem_private_release(pool, 9, a), 0, "released");
	is(hetmem_resource_destroy(pool), 0, "nothing is left");
	drv->cuStreamDestroy(a);
}

static void least_and_asleep(void)
{
	CUstream a = new_stream();
	void *p;

	need(!hetmem_resource_create(hm, "pool(vmm,min=16M)", &pool), "min=");
	need(!hetmem_private_retain(pool, 9), "retain");
	p = get_private(9, 40 * MIB, a);
	put(p, 40 * MIB, a);
	drv->cuStreamSynchronize(a);
	trim(9, "min=");
	is(reserved(), 16 * MIB, "min= stays");
	need(!hetmem_sleep(pool, NULL, HETMEM_SLEEP_DISCARD), "sleep: %s", hetmem_last_error());
	is(hetmem_private_trim(pool, 9, NULL), -EBUSY, "asleep: %s", hetmem_last_error());
	need(!hetmem_wake(pool, NULL), "wake");
	is(hetmem_private_trim(pool, 9, NULL), 0, "awake");
	is(hetmem_private_release(pool, 9, a), 0, "released");
	is(hetmem_resource_destroy(pool), 0, "nothing is left");
	drv->cuStreamDestroy(a);
}

/* The driver refuses to take memory: it stays held, and is used again. */
static CUresult refuse(CUdeviceptr ptr, size_t size)
{
	(void)ptr;
	(void)size;
	return CUDA_ERROR_UNKNOWN;
}

static CUresult refuse_region(CUdeviceptr ptr)
{
	(void)ptr;
	return CUDA_ERROR_UNKNOWN;
}

static void driver_refuses(const char *provider)
{
	const struct hm_driver was = hm->driver;
	CUstream a = new_stream();
	uint64_t held;
	void *p;

	make_pool(provider, NULL);
	need(!hetmem_private_retain(pool, 9), "retain");
	p = get_private(9, 8 * MIB, a);
	put(p, 8 * MIB, a);
	drv->cuStreamSynchronize(a);
	held = reserved();
	hm->driver.cuMemUnmap = refuse;
	hm->driver.cuMemFree = refuse_region;
	is(trim(9, provider), 0, "%s: nothing was given back", provider);
	hm->driver = was;
	p = get(8 * MIB, a);
	is(reserved(), held, "%s: the memory is used again", provider);
	put(p, 8 * MIB, a);
	is(hetmem_private_release(pool, 9, a), 0, "%s: released", provider);
	is(hetmem_resource_destroy(pool), 0, "%s: nothing is left", provider);
	drv->cuStreamDestroy(a);
}

static void bad_input(void)
{
	struct hetmem_resource *res;
	size_t freed = 7;
	void *p = NULL;

	make_pool("vmm", NULL);
	is(hetmem_private_trim(NULL, 1, &freed), -EINVAL, "no resource");
	is(hetmem_private_trim(pool, 0, &freed), -EINVAL, "0 is no private pool");
	is(hetmem_private_trim(pool, 9, &freed), -ENOENT, "not retained: %s", hetmem_last_error());
	is(freed, 7, "nothing was set");
	is(hetmem_resource_destroy(pool), 0, "nothing is left");
	need(!hetmem_resource_create(hm, "device", &res), "device");
	is(hetmem_private_trim(res, 9, NULL), -EOPNOTSUPP, "not a pool");
	hetmem_resource_destroy(res);
	need(!hetmem_resource_create(hm, "stats(binning(pool(vmm),device,at=8M))", &res), "bins");
	need(!hetmem_private_retain(res, 9) && !alloc_private(res, 9, 4 * MIB, NULL, &p), "a block");
	is(hetmem_free(res, p, 4 * MIB, NULL), 0, "freed");
	is(hetmem_private_trim(res, 9, &freed), 0, "down a stack: %s", hetmem_last_error());
	is(freed, 4 * MIB, "all of it");
	is(hetmem_private_release(res, 9, NULL), 0, "released");
	is(hetmem_private_trim(res, 9, NULL), -ENOENT, "no more");
	is(hetmem_resource_destroy(res), 0, "nothing is left");
}

static unsigned int trims;

static void *churn(void *arg)
{
	const uint64_t id = 1 + (uintptr_t)arg % 2;
	unsigned int seed = (uintptr_t)arg, i;
	void *p[8] = { NULL };
	long bad = 0;
	CUstream s;

	drv->cuCtxSetCurrent(context);
	s = new_stream();
	for (i = 0; i < 1500 || __atomic_load_n(&trims, __ATOMIC_RELAXED) < 20; i++) {
		seed = seed * 1103515245 + 12345;
		if (p[seed >> 29])
			bad += !!hetmem_free(pool, p[seed >> 29], 0, s);
		p[seed >> 29] = NULL;
		if (seed & 512)
			bad += !!(seed & 1024 ?
				  alloc_private(pool, id, 1 + (seed >> 8) % 5000000, s, &p[seed >> 29]) :
				  hetmem_alloc(pool, 1 + (seed >> 8) % 5000000, 0, s, &p[seed >> 29]));
	}
	for (i = 0; i < 8; i++)
		if (p[i])
			bad += !!hetmem_free(pool, p[i], 0, s);
	drv->cuStreamSynchronize(s);
	return (void *)bad;
}

/* Trims of both private pools beside four threads that use them. */
static void threads(const char *provider)
{
	pthread_t t[4];
	long bad = 0;
	uintptr_t i;
	void *one;

	make_pool(provider, NULL);
	need(!hetmem_private_retain(pool, 1) && !hetmem_private_retain(pool, 2), "retain");
	trims = 0;
	for (i = 0; i < 4; i++)
		need(!pthread_create(&t[i], NULL, churn, (void *)(77 + i)), "a thread");
	for (i = 0; i < 40; i++) {
		bad += !!hetmem_private_trim(pool, 1 + i % 2, NULL);
		__atomic_add_fetch(&trims, 1, __ATOMIC_RELAXED);
	}
	for (i = 0; i < 4; i++) {
		pthread_join(t[i], &one);
		bad += (long)one;
	}
	is(bad, 0, "%s: four threads: %s", provider, bad ? hetmem_last_error() : "all succeed");
	is(pool_stats().live, 0, "%s: nothing is live", provider);
	for (i = 1; i <= 2; i++)
		is(hetmem_private_release(pool, i, NULL), 0, "%s: released", provider);
	is(hetmem_resource_destroy(pool), 0, "%s: nothing is left", provider);
}

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "1G", 1);
	setenv("HETMEM_SOFT_CHECK", "1", 1);
	open_soft("");
	drv->cuCtxGetCurrent(&context);
	count_calls();
	bad_input();
	made_and_taken("vmm", 20 * MIB, 30 * MIB);
	made_and_taken("vmm", 80 * MIB, 4 * MIB);
	made_and_taken("vmm", 20 * MIB, 700);
	made_and_taken("vmm", 7 * MIB, 5 * MIB + 512);
	made_and_taken("device", 20 * MIB, 30 * MIB);
	only_taken("vmm");
	only_taken("device");
	live_and_used("vmm", 5 * MIB);
	live_and_used("vmm", 900);
	live_and_used("device", 40 * MIB);
	exported();
	checkpoints();
	least_and_asleep();
	driver_refuses("vmm");
	driver_refuses("device");
	threads("vmm");
	threads("device");
	is(device_used(), 0, "nothing is left");
	close_soft();
	return tap_end();
}
