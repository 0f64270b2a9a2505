// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Allocations with options, and private pools: whose memory it is, that nobody asks
 * who a stream is, references, bad input, adaptors above, several threads.
 */
#include "alloc_with.h"
#include "pool/graph.h"
#include "pool_gate.h"

static unsigned int nr_ids;
static CUcontext context;
static struct hm_driver before;

static CUresult count_id(CUstream stream, unsigned long long *id)
{
	__atomic_add_fetch(&nr_ids, 1, __ATOMIC_RELAXED);
	return before.cuStreamGetId(stream, id);
}

static void *get_private(uint64_t id, size_t size, CUstream s)
{
	void *p = NULL;

	need(!alloc_private(pool, id, size, s, &p), "private: %s",
	     hetmem_last_error());
	return p;
}

static void bad_input(void)
{
	struct { struct hetmem_alloc_params now; uint64_t later; } more = {
		.now = { .size = sizeof(more), .bytes = 4096 },
	};
	struct hetmem_alloc_params p = { .size = sizeof(p), .bytes = 4096 };
	void *ptr = &p, *was = ptr;

	make_pool("vmm", NULL);
	is(hetmem_alloc_with(pool, NULL, &ptr), -EINVAL, "no parameters");
	is(hetmem_alloc_with(pool, &p, NULL), -EINVAL, "nowhere to put it");
	is(hetmem_alloc_with(NULL, &p, &ptr), -EINVAL, "no resource");
	p.size = sizeof(p) - 1;
	is(hetmem_alloc_with(pool, &p, &ptr), -EINVAL, "too small a struct");
	p.size = 0;
	is(hetmem_alloc_with(pool, &p, &ptr), -EINVAL, "no size: %s",
	   hetmem_last_error());
	p.size = sizeof(p);
	p.flags = 1U << 31;
	is(hetmem_alloc_with(pool, &p, &ptr), -EINVAL, "an unknown flag");
	p.flags = 0;
	p.align = 768;
	is(hetmem_alloc_with(pool, &p, &ptr), -EINVAL, "a bad alignment");
	p.align = 0;
	p.stream = HETMEM_STREAM_UNKNOWN;
	is(hetmem_alloc_with(pool, &p, &ptr), -EINVAL, "an unknown stream");
	p.stream = NULL;
	p.reserve = 4095;
	is(hetmem_alloc_with(pool, &p, &ptr), -EINVAL, "too small a reserve");
	p.reserve = 8 * MIB;
	p.align = 4 * MIB;
	is(hetmem_alloc_with(pool, &p, &ptr), -EINVAL, "a reserve, aligned: %s",
	   hetmem_last_error());
	p.align = 2 * MIB;
	p.private_pool = 1;
	is(hetmem_alloc_with(pool, &p, &ptr), -EINVAL, "a reserve in private");
	p.reserve = 0;
	is(hetmem_alloc_with(pool, &p, &ptr), -ENOENT, "not retained: %s",
	   hetmem_last_error());
	p.private_pool = 0;
	more.later = 1;
	is(hetmem_alloc_with(pool, &more.now, &ptr), -E2BIG, "a later member");
	ok(ptr == was, "nothing was returned");
	more.later = 0;
	is(hetmem_alloc_with(pool, &more.now, &ptr), 0, "a later struct");
	put(ptr, 4096, NULL);
	p.bytes = 0;
	p.align = 1 << 16;
	is(hetmem_alloc_with(pool, &p, &ptr), 0, "no bytes are one");
	is((uintptr_t)ptr & 0xffff, 0, "aligned");
	put(ptr, 0, NULL);
	is(hetmem_private_retain(pool, 0), -EINVAL, "0 is no private pool");
	is(hetmem_private_release(pool, 0, NULL), -EINVAL, "nor to release");
	is(hetmem_private_release(pool, 7, NULL), -ENOENT, "7 is none");
	is(hetmem_resource_destroy(pool), 0, "nothing is left");
}

static void whose(const char *provider, size_t size)
{
	CUstream a = new_stream(), b = new_stream();
	void *p, *q, *r, *more;
	uint64_t held;

	make_pool(provider, NULL);
	is(hetmem_private_retain(pool, 9), 0, "%s, %zu: retain", provider, size);
	is(hetmem_private_retain(pool, 10), 0, "%s, %zu: another", provider, size);
	p = get_private(9, size, a);
	put(p, size, a);
	q = get(size, a);
	ok(q != p, "%s, %zu: nobody else's", provider, size);
	r = get_private(10, size, a);
	ok(r != p, "%s, %zu: nor another private pool's", provider, size);
	put(r, size, a);
	r = get_private(9, size, b);
	ok(r != p, "%s, %zu: nor another stream's", provider, size);
	put(r, 0, HETMEM_STREAM_UNKNOWN);
	is((get_private(9, size, b) == r), 1, "%s, %zu: unknown is its own",
	   provider, size);
	put(q, size, a);
	q = get_private(9, size, a);
	ok(q == p, "%s, %zu: its own again", provider, size);
	put(q, size, b);
	p = get_private(9, size, b);
	ok(p == q, "%s, %zu: of the stream that it is freed on", provider, size);
	is(hetmem_free(pool, p, size + 1, b), -EINVAL, "%s, %zu: a wrong size",
	   provider, size);
	put(p, size, b);
	is(hetmem_free(pool, p, size, b), -EINVAL, "%s, %zu: freed twice",
	   provider, size);
	is(pool_stats().live, 1, "%s, %zu: one is live", provider, size);
	is(hetmem_private_retain(pool, 9), 0, "%s, %zu: a reference", provider,
	   size);
	is(hetmem_private_release(pool, 9, a), 0, "%s, %zu: is released",
	   provider, size);
	is(hetmem_capture_begin(pool, a, 9), -EBUSY, "%s, %zu: no capture's: %s",
	   provider, size, hetmem_last_error());
	is(hetmem_private_release(pool, 9, a), 0, "%s, %zu: and the last",
	   provider, size);
	is(hetmem_private_release(pool, 9, a), -ENOENT, "%s, %zu: it has gone",
	   provider, size);
	held = pool_stats().reserved;
	more = get(size, a);
	is(pool_stats().reserved, held, "%s, %zu: then it is everybody's",
	   provider, size);
	put(more, size, a);
	put(r, size, b);
	is(pool_stats().live, 0, "%s, %zu: nothing is live", provider, size);
	is(hetmem_resource_destroy(pool), 0, "%s, %zu: with a private pool",
	   provider, size);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

/* A stream that is captured, and nobody was told. */
/* The part before an aligned block is cut off: both are the private pool's. */
static void aligned(const char *provider, size_t size)
{
	struct hetmem_alloc_params p = {
		.size = sizeof(p), .bytes = size, .align = 1 << 16,
		.private_pool = 9,
	};
	CUstream a = new_stream();
	void *front, *first = NULL, *again = NULL;

	make_pool(provider, NULL);
	is(hetmem_private_retain(pool, 9), 0, "%s, %zu: retain", provider, size);
	p.stream = a;
	front = get_private(9, 700, a);
	need(!hetmem_alloc_with(pool, &p, &first), "%s, %zu: aligned: %s",
	     provider, size, hetmem_last_error());
	is((uintptr_t)first & 0xffff, 0, "%s, %zu: aligned", provider, size);
	put(first, size, a);
	need(!hetmem_alloc_with(pool, &p, &again), "%s, %zu: aligned again: %s",
	     provider, size, hetmem_last_error());
	ok(again == first, "%s, %zu: its own again", provider, size);
	put(front, 700, a);
	put(again, size, a);
	is(hetmem_private_release(pool, 9, a), 0, "%s, %zu: released", provider,
	   size);
	is(hetmem_resource_destroy(pool), 0, "%s, %zu: nothing is left",
	   provider, size);
	drv->cuStreamDestroy(a);
}

/* What is behind its bytes is nobody's, too: check mode would end this program. */
static void outlives(const char *provider)
{
	CUstream a = new_stream(), b = new_stream();
	void *p, *q;

	make_pool(provider, NULL);
	is(hetmem_private_retain(pool, 9), 0, "%s: retain", provider);
	p = get_private(9, 700, a);
	is(hetmem_private_release(pool, 9, a), 0, "%s: released", provider);
	put(p, 700, b);
	q = get(1024, b);
	ok(q == p, "%s: a block that outlived its private pool is used again", provider);
	put(q, 1024, b);
	is(hetmem_resource_destroy(pool), 0, "%s: nothing is left", provider);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

/* A stream that is captured, and nobody was told. */
static void *use_own(void *used)
{
	void *p;

	drv->cuCtxSetCurrent(context);
	p = get_private(7, 700, CU_STREAM_PER_THREAD);
	put(p, 700, CU_STREAM_PER_THREAD);
	*(void **)used = p;
	return NULL;
}

/* Each thread's own stream has a part of its own. */
static void own_streams(const char *provider)
{
	CUstream a = new_stream();
	pthread_t id;
	void *p, *q;

	make_pool(provider, NULL);
	is(hetmem_private_retain(pool, 7), 0, "%s: threads' own streams", provider);
	need(!pthread_create(&id, NULL, use_own, &p) && !pthread_join(id, NULL), "a thread");
	q = get_private(7, 700, CU_STREAM_PER_THREAD);
	ok(q != p, "%s: what one freed is not another's", provider);
	put(q, 700, CU_STREAM_PER_THREAD);
	is(hetmem_private_release(pool, 7, a), 0, "released: %s", hetmem_last_error());
	hetmem_stream_retire(pool, a);
	is(hetmem_resource_destroy(pool), 0, "%s: nothing is left", provider);
	drv->cuStreamDestroy(a);
}

static void captured(const char *provider)
{
	CUstream s = new_stream();
	CUgraph graph = NULL;
	void *p, *q;

	make_pool(provider, NULL);
	need(!hetmem_private_retain(pool, 3), "retain");
	before = hm->driver;
	hm->driver.cuStreamGetId = count_id;
	nr_ids = 0;
	need(!drv->cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL),
	     "a capture");
	p = get_private(3, 3 * MIB, s);
	drv->cuMemsetD8Async((CUdeviceptr)p, 1, 3 * MIB, s);
	put(p, 3 * MIB, s);
	q = get_private(3, 3 * MIB, s);
	ok(q == p, "%s: used again in the capture", provider);
	q = get_private(3, 700, s);
	put(q, 700, s);
	put(p, 3 * MIB, s);
	is(nr_ids, 0, "%s: nobody asked who the stream is", provider);
	is(drv->cuStreamEndCapture(s, &graph), 0, "%s: the capture is valid",
	   provider);
	if (graph)
		drv->cuGraphDestroy(graph);
	hm->driver.cuStreamGetId = before.cuStreamGetId;
	is(hetmem_private_release(pool, 3, s), 0, "%s: released", provider);
	is(hetmem_resource_destroy(pool), 0, "%s: nothing is left", provider);
	drv->cuStreamDestroy(s);
}

static void *churn(void *arg)
{
	uint64_t id = 1 + ((uintptr_t)arg >> 4) % 3;
	unsigned int seed = (uintptr_t)arg, i;
	void *p[8] = { NULL };
	long bad = 0;
	CUstream s;

	drv->cuCtxSetCurrent(context);
	s = new_stream();

	for (i = 0; i < 2000; i++) {
		seed = seed * 1103515245 + 12345;
		if (p[seed >> 29])
			bad += !!hetmem_free(pool, p[seed >> 29], 0,
					     seed & 256 ? s : HETMEM_STREAM_UNKNOWN);
		p[seed >> 29] = NULL;
		if (seed & 512)
			bad += !!alloc_private(pool, id, 1 + (seed >> 10) % 900000,
					       s, &p[seed >> 29]);
		if (i % 100 == 0)
			bad += !!hetmem_private_retain(pool, id);
		if (i % 100 == 50)
			bad += !!hetmem_private_release(pool, id, s);
	}
	for (i = 0; i < 8; i++)
		if (p[i])
			bad += !!hetmem_free(pool, p[i], 0, s);
	drv->cuStreamSynchronize(s);
	return (void *)bad;
}

static void threads(const char *provider)
{
	pthread_t t[4];
	long bad = 0;
	void *one;
	uint64_t id;
	int i;

	make_pool(provider, NULL);
	for (id = 1; id <= 3; id++)
		need(!hetmem_private_retain(pool, id), "retain");
	for (i = 0; i < 4; i++)
		pthread_create(&t[i], NULL, churn,
			       (void *)(uintptr_t)(1000 + i * 16));
	for (i = 0; i < 4; i++) {
		pthread_join(t[i], &one);
		bad += (long)one;
	}
	is(bad, 0, "%s: four threads: %s", provider, bad ?
	   hetmem_last_error() : "all succeed");
	is(pool_stats().live, 0, "%s: nothing is live", provider);
	for (id = 1; id <= 3; id++)
		is(hetmem_private_release(pool, id, NULL), 0, "%s: released",
		   provider);
	is(hetmem_resource_destroy(pool), 0, "%s: nothing is left", provider);
}

/* Streams of private pools, as many as there can be: no driver knows them. */
static void many(void)
{
	uint64_t stream, nr, longest = 0;
	CUstream s = new_stream();
	struct graph *g;
	struct pool *p;
	unsigned int i;
	void *last = NULL;
	int err = 0;

	make_pool("vmm", NULL);
	need(!hetmem_private_retain(pool, 1), "retain");
	need(!hetmem_private_retain(pool, 2), "retain");
	for (stream = 1; !err && stream < 100000; stream++)
		err = alloc_private(pool, 1 + stream % 2, 1,
				    (CUstream)(stream << 8), &last);
	is(err, -ENOSPC, "one more than there can be: %s", hetmem_last_error());
	is(stream, 65537, "there can be 65,535");
	p = to_pool(pool);
	for (i = 0; i < GRAPH_LISTS; i++) {
		nr = 0;
		for (g = p->graphs->parts[i]; g; g = g->chain)
			nr++;
		longest = nr > longest ? nr : longest;
	}
	ok(longest >= 16 && longest < 64, "each is found in a list of %llu",
	   (unsigned long long)longest);
	is(hetmem_private_release(pool, 1, NULL), 0, "one is released");
	is(hetmem_private_release(pool, 2, NULL), 0, "the other too");
	is(p->graphs->nr, 0, "and there are none");
	for (i = 1, err = 0; !err && i < 100000; i++)
		err = hetmem_private_retain(pool, i);
	is(err, -ENOSPC, "nor more ids: %s", hetmem_last_error());
	is(i, 65537, "than 65,535");
	is(hetmem_capture_begin(pool, s, 70000), -ENOSPC,
	   "captures have the same");
	is(hetmem_resource_destroy(pool), 65535, "what is live is counted");
	drv->cuStreamDestroy(s);
}

/* Through adaptors, which count and choose. */
static void adaptors(void)
{
	struct hetmem_resource_stats st = { .size = sizeof(st) };
	struct hetmem_resource *res;
	void *p = NULL, *q = NULL;

	need(!hetmem_resource_create(hm, "stats(limit(align(retry(pool(vmm)),align=64K),max=8M))",
				     &res), "a stack: %s", hetmem_last_error());
	is(hetmem_private_retain(res, 5), 0, "retained down the stack");
	is(alloc_private(res, 5, 3 * MIB, NULL, &p), 0, "a private block");
	is((uintptr_t)p & 0xffff, 0, "align() aligns it");
	is(alloc_private(res, 5, 6 * MIB, NULL, &q), -ENOMEM, "limit() limits it");
	need(!hetmem_resource_stats(res, &st), "statistics");
	is(st.requested, 3 * MIB, "stats() counts it");
	is(hetmem_free(res, p, 3 * MIB, NULL), 0, "and its free");
	is(hetmem_private_release(res, 5, NULL), 0, "released");
	is(hetmem_resource_destroy(res), 0, "nothing is left");
	need(!hetmem_resource_create(hm, "binning(pool(vmm),pool(device),at=1M)",
				     &res), "bins: %s", hetmem_last_error());
	is(alloc_reserve(res, 512 << 10, 8 * MIB, NULL, &p), 0,
	   "a small one that grows, from the first bin");
	is(alloc_reserve(res, 2 * MIB, 8 * MIB, NULL, &q), -EOPNOTSUPP,
	   "a large one, from the second, which cannot");
	is(hetmem_free(res, p, 0, NULL), 0, "freed");
	is(hetmem_resource_destroy(res), 0, "nothing is left");
	need(!hetmem_resource_create(hm, "device", &res), "a resource");
	is(hetmem_private_retain(res, 5), -EOPNOTSUPP, "not a pool: %s",
	   hetmem_last_error());
	hetmem_resource_destroy(res);
}

/* The thread used the stream before: its id is not asked while it is captured. */
static void known_stream(const char *provider)
{
	CUstream s = new_stream();
	CUgraph graph;
	void *p, *q;

	make_pool(provider, NULL);
	put(get(700, s), 700, s);
	p = get(700, s);
	is(hetmem_private_retain(pool, 7), 0, "%s: a stream that is known", provider);
	q = get_private(7, 700, s);
	need(!drv->cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED), "a capture");
	put(q, 700, s);
	is(drv->cuStreamEndCapture(s, &graph), 0, "%s: the capture is valid after a free",
	   provider);
	drv->cuGraphDestroy(graph);
	put(p, 700, s);
	is(hetmem_private_release(pool, 7, s), 0, "released: %s", hetmem_last_error());
	hetmem_stream_retire(pool, s);
	is(hetmem_resource_destroy(pool), 0, "%s: nothing is left", provider);
	drv->cuStreamDestroy(s);
}

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "1G", 1);
	setenv("HETMEM_SOFT_CHECK", "1", 1);
	open_soft("");
	drv->cuCtxGetCurrent(&context);
	count_calls();
	bad_input();
	whose("device", 700);
	whose("vmm", 5000);
	whose("vmm", 5 * MIB);
	aligned("device", 5000);
	aligned("vmm", 5000);
	aligned("vmm", 3 * MIB);
	outlives("device");
	outlives("vmm");
	own_streams("device");
	own_streams("vmm");
	captured("device");
	captured("vmm");
	threads("device");
	threads("vmm");
	many();
	adaptors();
	is(device_used(), 0, "nothing is left");
	close_soft();
	/* Check mode notifies, and has no hits. */
	unsetenv("HETMEM_SOFT_CHECK");
	open_soft("");
	drv->cuCtxGetCurrent(&context);
	known_stream("device");
	known_stream("vmm");
	close_soft();
	return tap_end();
}
