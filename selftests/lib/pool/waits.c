// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Whoever waits for memory, for a stream or for a context does so without the pool's lock:
 * frees, and allocations that need not wait, go on. What was freed meanwhile is found.
 */
#include "pool_gate.h"

static unsigned int in_call, call_may_go;

static void stay(void)
{
	__atomic_store_n(&in_call, 1, __ATOMIC_SEQ_CST);
	stay_until(__atomic_load_n(&call_may_go, __ATOMIC_SEQ_CST));
}

static CUresult slow_sync(void)
{
	stay();
	return real.cuCtxSynchronize();
}

static CUresult slow_alloc(CUdeviceptr *p, size_t size)
{
	stay();
	return real.cuMemAlloc(p, size);
}

static CUresult slow_free(CUdeviceptr p)
{
	stay();
	return real.cuMemFree(p);
}

static void wait_for(unsigned int *what, unsigned int least)
{
	need(wait_until(__atomic_load_n(what, __ATOMIC_SEQ_CST) >= least), "it comes so far");
}

struct wanted {
	size_t size;
	void *p;
	int err;
};

static void *get_on_host(void *arg)
{
	struct wanted *w = arg;

	w->err = hetmem_alloc(pool, w->size, 0, HETMEM_STREAM_HOST, &w->p);
	return NULL;
}

/* All that need not wait for the thread that does. */
static void others(CUstream b, const char *what)
{
	void *p[3];
	int i;

	for (i = 0; i < 3; i++)
		p[i] = get(1000 << i, i & 1 ? b : HETMEM_STREAM_HOST);
	is(hetmem_record_stream(pool, p[1], HETMEM_STREAM_HOST), 0, "%s: a use", what);
	for (i = 0; i < 3; i++)
		put(p[i], 0, i & 1 ? HETMEM_STREAM_HOST : b);
	is(hetmem_poll(pool), 0, "%s: a poll", what);
	ok(pool_stats().live, "%s: statistics", what);
}

/* The block that is waited for is freed by another thread. */
static void freed_meanwhile(const char *provider, size_t size)
{
	struct hm_pool_options opt = { .max = 16 * MIB, .wait_ms = 20000 };
	CUstream a = new_stream(), b = new_stream();
	struct wanted want = { .size = size };
	void *x[16], *y, *z;
	unsigned int i, nr = 6 * MIB / size;
	pthread_t id;

	make_pool(provider, &opt);
	y = get(6 * MIB, a);
	for (i = 0; i < nr; i++)
		x[i] = get(size, HETMEM_STREAM_HOST);
	/* Room for others, which is no room for what is waited for. */
	z = get(1000, b);
	while (!hetmem_alloc(pool, MIB, 0, HETMEM_STREAM_HOST, &x[15]) && nr < 15)
		x[nr++] = x[15];
	close_gate(a);
	put(y, 0, a);
	nr_queries = 0;
	need(!pthread_create(&id, NULL, get_on_host, &want), "a thread");
	wait_for(&nr_queries, 5);
	others(b, provider);
	ok(!is_open, "%s: while a thread waits for %zu bytes", provider, size);
	put(x[0], 0, HETMEM_STREAM_HOST);
	pthread_join(id, NULL);
	ok(!is_open, "%s: a free gives them to it", provider);
	is(want.err, 0, "%s: at once: %s", provider, want.err ? "late" : "");
	ok(want.p == x[0], "%s: the very memory", provider);
	open_gate();
	put(want.p, size, HETMEM_STREAM_HOST);
	for (i = 1; i < nr; i++)
		put(x[i], 0, HETMEM_STREAM_HOST);
	put(z, 0, b);
	is(hetmem_resource_destroy(pool), 0, "%s: all is freed", provider);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

/* A wait ends with the pool's going to sleep, and without what was wanted. */
static void slept_meanwhile(void)
{
	struct hm_pool_options opt = { .max = 8 * MIB, .wait_ms = 20000 };
	CUstream a = new_stream();
	struct wanted want = { .size = 6 * MIB };
	pthread_t id;
	void *p;

	make_pool("vmm", &opt);
	put(get(512, HETMEM_STREAM_HOST), 512, HETMEM_STREAM_HOST);
	p = get(6 * MIB, a);
	close_gate(a);
	put(p, 0, a);
	nr_queries = 0;
	need(!pthread_create(&id, NULL, get_on_host, &want), "a thread");
	wait_for(&nr_queries, 5);
	soft_rules("cuMemUnmap:*", NULL);
	open_gate();
	hetmem_sleep(pool, NULL, HETMEM_SLEEP_DISCARD);
	soft_rules(NULL, NULL);
	pthread_join(id, NULL);
	ok(!want.err || want.err == -EBUSY, "asleep, or just before: %d", want.err);
	is(hetmem_wake(pool, NULL), 0, "wakes: %s", hetmem_last_error());
	if (!want.err)
		put(want.p, 0, HETMEM_STREAM_HOST);
	is(hetmem_resource_destroy(pool), 0, "all is freed");
	drv->cuStreamDestroy(a);
}

static void *sleep_now(void *arg)
{
	*(int *)arg = hetmem_sleep(pool, NULL, HETMEM_SLEEP_DISCARD);
	return NULL;
}

static void sleep_waits(void)
{
	CUstream a = new_stream(), b = new_stream();
	pthread_t id;
	void *p, *q, *r;
	int err = -1;

	make_pool("vmm", NULL);
	p = get(6 * MIB, a);
	q = get(3 * MIB, b);
	close_gate(a);
	nr_queries = 0;
	need(!pthread_create(&id, NULL, sleep_now, &err), "a thread");
	wait_for(&nr_queries, 3);
	is(hetmem_alloc(pool, 512, 0, b, &r), -EBUSY, "a pool that goes to sleep gives nothing");
	is(hetmem_free(pool, q, 3 * MIB, b), 0, "and takes what is freed");
	ok(!is_open, "while it waits for a stream");
	open_gate();
	pthread_join(id, NULL);
	is(err, 0, "then it sleeps");
	is(device_used(), 0, "without memory");
	is(hetmem_wake(pool, NULL), 0, "wakes");
	put(p, 0, a);
	is(hetmem_resource_destroy(pool), 0, "all is freed");
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

/* A stream that was destroyed, whose context has to be synchronized. */
static void lost(void)
{
	struct hm_pool_options opt = { .max = 8 * MIB, .wait_ms = 20000 };
	CUstream a = new_stream(), b = new_stream();
	struct wanted want = { .size = 5 * MIB };
	pthread_t id;
	void *p, *q;

	make_pool("vmm", &opt);
	in_call = 0;
	call_may_go = 0;
	q = get(1000, b);
	p = get(6 * MIB, a);
	put(p, 0, a);
	drv->cuStreamDestroy(a);
	hm->driver.cuCtxSynchronize = slow_sync;
	need(!pthread_create(&id, NULL, get_on_host, &want), "a thread");
	wait_for(&in_call, 1);
	others(b, "lost");
	ok(!call_may_go, "while a thread synchronizes the context");
	__atomic_store_n(&call_may_go, 1, __ATOMIC_SEQ_CST);
	pthread_join(id, NULL);
	is(want.err, 0, "which gives it the memory");
	put(want.p, 0, HETMEM_STREAM_HOST);
	put(q, 0, b);
	is(hetmem_resource_destroy(pool), 0, "all is freed");
	hm->driver.cuCtxSynchronize = real.cuCtxSynchronize;
	drv->cuStreamDestroy(b);
}

static void *trim_all(void *arg)
{
	size_t freed = 0;

	*(int *)arg = hetmem_trim(pool, 0, &freed) ? -1 : (int)(freed / MIB);
	return NULL;
}

/* A provider that takes its time: cuMemFree() waits for all work of the device. */
static void slow_provider(void)
{
	struct hm_pool_options opt = { .max = 64 * MIB, .handle = 8 * MIB };
	struct wanted want = { .size = 30 * MIB };
	CUstream b = new_stream();
	pthread_t id;
	void *p, *q;
	int freed = 0;

	make_pool("device", &opt);
	q = get(1000, b);
	in_call = 0;
	call_may_go = 0;
	hm->driver.cuMemAlloc = slow_alloc;
	need(!pthread_create(&id, NULL, get_on_host, &want), "a thread");
	wait_for(&in_call, 1);
	others(b, "a region is made");
	is(hetmem_alloc(pool, 40 * MIB, 0, b, &p), -ENOMEM, "the limit knows of it: %s",
	   hetmem_last_error());
	ok(!call_may_go, "while a thread makes a region");
	__atomic_store_n(&call_may_go, 1, __ATOMIC_SEQ_CST);
	pthread_join(id, NULL);
	is(want.err, 0, "which it gets");
	hm->driver.cuMemAlloc = real.cuMemAlloc;
	put(want.p, 0, HETMEM_STREAM_HOST);
	in_call = 0;
	call_may_go = 0;
	hm->driver.cuMemFree = slow_free;
	need(!pthread_create(&id, NULL, trim_all, &freed), "a thread");
	wait_for(&in_call, 1);
	others(b, "a region is given back");
	ok(!call_may_go, "while a thread gives a region back");
	__atomic_store_n(&call_may_go, 1, __ATOMIC_SEQ_CST);
	pthread_join(id, NULL);
	ok(freed >= 30, "all of it: %d MiB", freed);
	soft_rules("cuMemFree:*", NULL);
	p = get(20 * MIB, b);
	put(p, 0, HETMEM_STREAM_HOST);
	is(hetmem_trim(pool, 0, NULL), 0, "a provider that takes nothing");
	soft_rules(NULL, NULL);
	is(pool_stats().reserved, device_used(), "is counted as it is");
	ok(get(20 * MIB, HETMEM_STREAM_HOST) == p, "and what it has not taken is used again");
	put(p, 0, HETMEM_STREAM_HOST);
	put(q, 0, b);
	is(hetmem_resource_destroy(pool), 0, "all is freed");
	is(device_used(), 0, "and given back");
	hm->driver.cuMemFree = real.cuMemFree;
	drv->cuStreamDestroy(b);
}

int main(void)
{
	/* A thread that waits with the lock makes all this wait for ever. */
	hang_limit(true);
	open_soft("");
	count_calls();
	freed_meanwhile("vmm", 6 * MIB);
	freed_meanwhile("device", 6 * MIB);
	freed_meanwhile("vmm", MIB);
	slept_meanwhile();
	sleep_waits();
	lost();
	slow_provider();
	close_soft();
	return tap_end();
}
