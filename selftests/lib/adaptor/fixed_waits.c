// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * fixed(): the host waits for a buffer that is done without the lock: frees go on, and
 * what they free is found. A buffer that was given on without being used is used
 * after those who had it before.
 */
#include "pool_gate.h"

#define SIZE	(64UL << 10)

static void *got;
static int err;

static void *get_on_host(void *unused)
{
	(void)unused;
	err = hetmem_alloc(pool, SIZE, 0, HETMEM_STREAM_HOST, &got);
	return NULL;
}

/* @b waits for @a, and frees the buffer without anybody being ordered after @b. */
static void given_on(void)
{
	CUstream a = new_stream(), b = new_stream(), c = new_stream();
	void *p, *q;

	need(!hetmem_resource_create(hm, "fixed(pinned,size=64K,count=1)", &pool),
	     "a buffer: %s", hetmem_last_error());
	p = get(SIZE, a);
	close_gate(a);
	put(p, SIZE, a);
	p = get(SIZE, b);
	put(p, SIZE, HETMEM_STREAM_HOST);
	q = get(SIZE, c);
	ok(p == q && is_held_up(c), "the next user waits for the first");
	open_gate();
	ok(gets_through(c), "and no longer");
	put(q, SIZE, c);
	is(hetmem_resource_destroy(pool), 0, "all is freed");
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
	drv->cuStreamDestroy(c);
}

int main(void)
{
	CUstream a;
	pthread_t id;
	void *p, *q;

	/* A thread that waits with the lock makes this wait for ever. */
	hang_limit(true);
	open_soft("");
	count_calls();
	a = new_stream();
	need(!hetmem_resource_create(hm, "fixed(pinned,size=64K,count=2)", &pool),
	     "buffers: %s", hetmem_last_error());
	p = get(SIZE, a);
	q = get(SIZE, HETMEM_STREAM_HOST);
	close_gate(a);
	put(p, SIZE, a);
	need(!pthread_create(&id, NULL, get_on_host, NULL), "a thread");
	while (__atomic_load_n(&nr_queries, __ATOMIC_RELAXED) < 5)
		sched_yield();
	put(q, SIZE, HETMEM_STREAM_HOST);
	pthread_join(id, NULL);
	ok(!is_open, "a buffer is freed while a thread waits for another one");
	is(err, 0, "and that thread has it");
	ok(got == q, "the very one");
	hm->driver.cuEventQuery = real.cuEventQuery;
	soft_rules("cuEventQuery:*=CUDA_ERROR_LAUNCH_FAILED", NULL);
	is(hetmem_alloc(pool, SIZE, 0, HETMEM_STREAM_HOST, &p), -EIO,
	   "an event that fails is not waited for: %s", hetmem_last_error());
	soft_rules(NULL, NULL);
	open_gate();
	p = get(SIZE, HETMEM_STREAM_HOST);
	put(p, SIZE, HETMEM_STREAM_HOST);
	put(got, SIZE, HETMEM_STREAM_HOST);
	is(hetmem_resource_destroy(pool), 0, "all is freed");
	drv->cuStreamDestroy(a);
	given_on();
	close_soft();
	return tap_end();
}
