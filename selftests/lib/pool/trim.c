// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * hetmem_trim() waits for work on freed memory that is about to end, without the pool's
 * lock, and not for longer than wait=.
 */
#include "pool_gate.h"

static unsigned int not_ready;

/* Events are late, by so many questions. */
static CUresult late_query(CUevent event)
{
	if (not_ready) {
		not_ready--;
		return CUDA_ERROR_NOT_READY;
	}
	return real.cuEventQuery(event);
}

static void late(const char *provider, unsigned int by)
{
	CUstream a = new_stream(), b = new_stream();
	size_t freed;
	void *p, *q;

	make_pool(provider, NULL);
	q = get(512, b);
	p = get(8 * MIB, a);
	put(p, 8 * MIB, a);
	need(!drv->cuCtxSynchronize(), "all is done");
	not_ready = by;
	is(hetmem_trim(pool, 0, &freed), 0, "%s: trim", provider);
	ok(freed >= 8 * MIB, "%s: gives back what is complete %u questions later: %zu",
	   provider, by, freed);
	is(not_ready, 0, "%s: and asked so often", provider);
	put(q, 512, b);
	hetmem_resource_destroy(pool);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

static void bounded(unsigned int wait_ms)
{
	struct hm_pool_options opt = { .wait_ms = wait_ms };
	CUstream a = new_stream(), b = new_stream();
	size_t freed;
	void *p, *q;

	make_pool("vmm", &opt);
	q = get(512, b);
	p = get(8 * MIB, a);
	close_gate(a);
	put(p, 8 * MIB, a);
	is(hetmem_trim(pool, 0, &freed), 0, "trim while a stream is held up");
	is(freed, 0, "gives nothing back, and returns");
	is(hetmem_trim(pool, SIZE_MAX, &freed), 0, "trim to more than there is");
	open_gate();
	put(q, 512, b);
	hetmem_resource_destroy(pool);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

static size_t trimmed;

static void *trim_all(void *unused)
{
	(void)unused;
	if (hetmem_trim(pool, 0, &trimmed))
		trimmed = 0;
	return NULL;
}

/* The gate opens when another thread has used the pool: it must get through before. */
static void others_go_on(void)
{
	struct hm_pool_options opt = { .wait_ms = 600000 };
	CUstream a = new_stream(), b = new_stream();
	pthread_t id;
	void *p, *q;
	int i;

	make_pool("vmm", &opt);
	q = get(512, b);
	p = get(8 * MIB, a);
	close_gate(a);
	put(p, 8 * MIB, a);
	need(!pthread_create(&id, NULL, trim_all, NULL), "a thread");
	for (i = 0; i < 15; i++)
		put(get(512 * (size_t)(1 + 17 * i), b), 0, b);
	ok(!is_open, "allocations and frees go on while a trim waits");
	open_gate();
	pthread_join(id, NULL);
	ok(trimmed >= 8 * MIB, "which gives back %zu bytes then", trimmed);
	put(q, 512, b);
	hetmem_resource_destroy(pool);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

/* What is registered with a transport stays where it is, freed or not. */
static void pinned(const char *provider)
{
	struct hm_pool_options opt = { .max = 32 * MIB, .wait_ms = HM_POOL_NO_WAIT };
	void *p, *next, *q = NULL;

	make_pool(provider, &opt);
	p = get(8 * MIB, HETMEM_STREAM_HOST);
	next = get(2 * MIB, HETMEM_STREAM_HOST);
	is(hetmem_pin_comm(pool, p), 0, "%s: pinned", provider);
	put(p, 8 * MIB, HETMEM_STREAM_HOST);
	is(hetmem_trim(pool, 0, NULL), 0, "%s: trim", provider);
	ok(pool_stats().reserved >= 8 * MIB, "%s: it is not given back", provider);
	is(hetmem_alloc(pool, 24 * MIB, 0, HETMEM_STREAM_HOST, &q), -ENOMEM,
	   "%s: nor is its memory used elsewhere: %s", provider, hetmem_last_error());
	if (q)
		put(q, 0, HETMEM_STREAM_HOST);
	q = get(8 * MIB, HETMEM_STREAM_HOST);
	ok(q == p, "%s: but in its place", provider);
	put(q, 8 * MIB, HETMEM_STREAM_HOST);
	put(next, 2 * MIB, HETMEM_STREAM_HOST);
	is(hetmem_resource_destroy(pool), 0, "%s: until destroy", provider);
	is(device_used(), 0, "%s: nothing is left", provider);
}

int main(void)
{
	open_soft("");
	count_calls();
	hm->driver.cuEventQuery = late_query;
	late("vmm", 1);
	late("vmm", 7);
	late("device", 1);
	bounded(HM_POOL_NO_WAIT);
	bounded(5);
	others_go_on();
	pinned("device");
	pinned("vmm");
	close_soft();
	return tap_end();
}
