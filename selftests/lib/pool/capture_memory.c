// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Where a capture's memory is from: what is free and complete, before new memory
 * is made; and where it goes: to the branch that it was freed on, to the next
 * capture with the id, and to everyone after release.
 */
#include "pool/graph.h"
#include "pool_gate.h"

static CUgraph graph;

static void begin(CUstream s, uint64_t id)
{
	need(!hetmem_capture_begin(pool, s, id), "capture_begin: %s",
	     hetmem_last_error());
	need(!drv->cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL),
	     "a capture");
}

static void end(CUstream s, uint64_t id)
{
	need(!drv->cuStreamEndCapture(s, &graph) &&
	     !drv->cuGraphDestroy(graph), "a graph");
	need(!hetmem_capture_end(pool, s, id), "capture_end");
}

/* A warm-up, as frameworks do one, on the stream that is captured then. */
static void warmed_up(const char *provider, size_t size, int nr)
{
	CUstream s = new_stream();
	uint64_t before;
	void *p[16];
	int i;

	make_pool(provider, NULL);
	for (i = 0; i < nr; i++)
		p[i] = get(size, s);
	for (i = 0; i < nr; i++)
		put(p[i], size, s);
	need(!drv->cuStreamSynchronize(s), "idle");
	before = pool_stats().reserved;
	begin(s, 1);
	for (i = 0; i < nr; i++)
		p[i] = get(size, s);
	is(pool_stats().reserved, before,
	   "%s, %d of %zu: a capture after a warm-up makes no memory", provider,
	   nr, size);
	for (i = 0; i < nr; i++)
		put(p[i], size, s);
	end(s, 1);
	is(hetmem_capture_release(pool, s, 1), 0, "released");
	is(hetmem_resource_destroy(pool), 0, "nothing is left");
	drv->cuStreamDestroy(s);
}

/* What others have freed, and what is in use for a moment longer. */
static void full(const char *provider)
{
	struct hm_pool_options opt = { .max = 64 * MIB, .wait_ms = 20000 };
	CUstream a = new_stream(), b = new_stream(), s = new_stream();
	void *p, *q;

	make_pool(provider, &opt);
	put(get(512, s), 512, s);
	p = get(30 * MIB, a);
	q = get(30 * MIB, b);
	put(p, 30 * MIB, a);
	need(!soft_launch(b, "short", NULL, 0, 30000000), "work");
	put(q, 30 * MIB, b);
	begin(s, 1);
	p = get(30 * MIB, s);
	ok(p, "%s: a capture has what another stream freed", provider);
	q = get(28 * MIB, s);
	ok(q, "%s: and waits for what is in use", provider);
	ok(pool_stats().reserved <= 64 * MIB, "%s: within max=", provider);
	put(p, 30 * MIB, s);
	put(q, 28 * MIB, s);
	end(s, 1);
	hetmem_capture_release(pool, s, 1);
	is(hetmem_resource_destroy(pool), 0, "%s: nothing is left", provider);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
	drv->cuStreamDestroy(s);
}

static void parts(const char *provider, size_t size)
{
	CUstream a = new_stream(), b = new_stream(), c = new_stream();
	void *p, *q, *r;

	make_pool(provider, NULL);
	put(get(512, c), 512, c);
	need(!hetmem_capture_begin(pool, b, 1), "b takes part");
	begin(a, 1);
	p = get(size, a);
	put(p, size, a);
	q = get(size, b);
	ok(q != p, "%s, %zu: what a branch freed is not another's", provider,
	   size);
	r = get(size, a);
	ok(r == p, "%s, %zu: it is its own", provider, size);
	/* Freed on the other branch, which then has it. */
	put(r, size, b);
	r = get(size, a);
	ok(r != p, "%s, %zu: nor what is freed on another", provider, size);
	put(get(size, b), size, b);
	put(q, size, b);
	/* Freed outside of what is captured. */
	put(r, size, c);
	q = get(size, c);
	ok(q != r && q != p, "%s, %zu: it stays with the id", provider, size);
	put(q, size, c);
	end(a, 1);
	q = get(size, b);
	ok(q != r, "%s, %zu: while a branch is captured", provider, size);
	put(q, size, b);
	need(!hetmem_capture_end(pool, b, 1), "b ends");
	begin(a, 1);
	p = get(size, a);
	q = get(size, a);
	ok(p == r || q == r, "%s, %zu: the next capture has all of it", provider,
	   size);
	end(a, 1);
	is(pool_stats().live, 2, "%s, %zu: two are live", provider, size);
	is(hetmem_capture_release(pool, a, 1), 0, "%s, %zu: released", provider,
	   size);
	put(p, size, HETMEM_STREAM_UNKNOWN);
	put(q, size, a);
	is(hetmem_resource_destroy(pool), 0, "%s, %zu: nothing is left",
	   provider, size);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
	drv->cuStreamDestroy(c);
}

/* Live blocks of two streams and two ids, freed in any order and by anybody. */
static void live_lists(const char *provider)
{
	CUstream s[2] = { new_stream(), new_stream() };
	void *p[2][40];
	int i, j;

	make_pool(provider, NULL);
	for (i = 0; i < 2; i++) {
		begin(s[i], 5 + i);
		for (j = 0; j < 40; j++)
			p[i][j] = get(600 + 90000 * (j % 3), s[i]);
		end(s[i], 5 + i);
	}
	for (j = 0; j < 40; j += 3)
		put(p[0][j], 0, HETMEM_STREAM_UNKNOWN);
	for (j = 39; j > 0; j -= 2)
		put(p[1][j], 0, s[1]);
	is(hetmem_capture_release(pool, s[0], 5), 0, "%s: one is released",
	   provider);
	for (j = 0; j < 40; j++)
		if (j % 3)
			put(p[0][j], 0, s[0]);
	for (j = 0; j < 40; j += 2)
		put(p[1][j], 0, HETMEM_STREAM_UNKNOWN);
	is(pool_stats().live, 0, "%s: nothing is live", provider);
	is(hetmem_capture_release(pool, s[1], 6), 0, "%s: so is the other",
	   provider);
	is(hetmem_capture_release(pool, s[1], 6), -ENOENT, "%s: once", provider);
	is(hetmem_resource_destroy(pool), 0, "%s: nothing is left", provider);
	drv->cuStreamDestroy(s[0]);
	drv->cuStreamDestroy(s[1]);
}

struct waiter {
	CUstream stream;
	CUcontext ctx;
	int err;
};

static void *wait_for_memory(void *arg)
{
	struct waiter *w = arg;
	void *p = NULL;

	drv->cuCtxSetCurrent(w->ctx);
	w->err = hetmem_alloc(pool, 40 * MIB, 0, w->stream, &p);
	return NULL;
}

/* Whether an allocation on any stream waits, without the lock. */
static bool somebody_waits(void)
{
	struct pool *p = to_pool(pool);
	bool waits = false;
	unsigned int i;

	pthread_mutex_lock(&p->lock);
	for (i = 1; i < p->order.nr; i++)
		waits |= stream_at(p, i)->pins;
	pthread_mutex_unlock(&p->lock);
	return waits;
}

/* What an allocation was for has gone when there is memory. */
static void ended_meanwhile(const char *provider)
{
	struct hm_pool_options opt = { .max = 64 * MIB, .wait_ms = 60000 };
	CUstream a = new_stream(), s = new_stream();
	struct waiter w = { .stream = s };
	pthread_t id;
	void *p;

	make_pool(provider, &opt);
	p = get(40 * MIB, a);
	close_gate(a);
	put(p, 40 * MIB, a);
	need(!hetmem_capture_begin(pool, s, 1), "begin");
	drv->cuCtxGetCurrent(&w.ctx);
	need(!pthread_create(&id, NULL, wait_for_memory, &w), "a thread");
	need(wait_until(somebody_waits()), "it waits");
	is(hetmem_capture_end(pool, s, 1), 0, "%s: ends while one waits",
	   provider);
	is(hetmem_capture_release(pool, s, 1), 0, "%s: released", provider);
	open_gate();
	pthread_join(id, NULL);
	is(w.err, -EBUSY, "%s: it has nobody to be for", provider);
	is(pool_stats().live, 0, "%s: nothing is live", provider);
	hetmem_resource_destroy(pool);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(s);
}

/* A graph that was launched goes on using what it had when its id was released. */
static void released_under_way(const char *provider, size_t size)
{
	CUstream a = new_stream(), b = new_stream();
	CUgraphExec exec;
	void *p, *q;

	make_pool(provider, NULL);
	put(get(512, b), 512, b);
	begin(a, 1);
	p = get(size, a);
	need(!drv->cuMemsetD8Async((uintptr_t)p, 1, size, a), "work");
	put(p, size, a);
	need(!drv->cuStreamEndCapture(a, &graph) &&
	     !drv->cuGraphInstantiateWithFlags(&exec, graph, 0) &&
	     !drv->cuGraphDestroy(graph) && !hetmem_capture_end(pool, a, 1), "a graph");
	close_gate(a);
	need(!drv->cuGraphLaunch(exec, a), "a launch");
	is(hetmem_capture_release(pool, a, 1), 0, "%s, %zu: released under way", provider, size);
	q = get(size, HETMEM_STREAM_HOST);
	ok(q != p, "%s, %zu: what the graph uses is not complete", provider, size);
	put(q, size, HETMEM_STREAM_HOST);
	open_gate();
	drv->cuCtxSynchronize();
	drv->cuGraphExecDestroy(exec);
	is(hetmem_resource_destroy(pool), 0, "%s, %zu: nothing is left", provider, size);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

static void all(const char *provider)
{
	ended_meanwhile(provider);
	warmed_up(provider, 700, 16);
	warmed_up(provider, 3 * MIB, 16);
	warmed_up(provider, 20 * MIB, 3);
	full(provider);
	parts(provider, 700);
	parts(provider, 5 * MIB);
	live_lists(provider);
	released_under_way(provider, 700);
	released_under_way(provider, 5 * MIB);
	is(device_used(), 0, "%s: nothing is left", provider);
}

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "1G", 1);
	setenv("HETMEM_SOFT_CHECK", "1", 1);
	open_soft("");
	count_calls();
	all("device");
	all("vmm");
	close_soft();
	return tap_end();
}
