// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The pool and streams: who may have what was freed where, while a stream is
 * held up by a host function that waits for a gate.
 */
#include "pool/graph.h"
#include "pool_gate.h"

static void one_stream(const char *provider, size_t size)
{
	CUstream a = new_stream();
	void *p, *q;
	int i;

	make_pool(provider, NULL);
	nr_records = 0;
	close_gate(a);
	p = get(size, a);
	put(p, size, a);
	q = get(size, a);
	ok(p == q, "%s, %zu: at once on the same stream", provider, size);
	put(q, size, a);
	for (i = 0; i < 300; i++) {
		p = get(size + i * 512, a);
		put(p, size + i * 512, a);
	}
	is(nr_records, 0, "%s, %zu: one stream records nothing", provider,
	   size);
	open_gate();
	hetmem_resource_destroy(pool);
	drv->cuStreamDestroy(a);
}

/* Streams record now and then, not at each free. */
static void record_rarely(const char *provider)
{
	struct hm_pool_options opt = { .cache = 512 };
	CUstream a = new_stream(), b = new_stream();
	int i;

	make_pool(provider, &opt);
	put(get(512, a), 512, a);
	put(get(512, b), 512, b);
	nr_records = 0;
	for (i = 0; i < 640; i++)
		put(get(1024, a), 1024, a);
	ok(nr_records >= 5 && nr_records <= 10, "%s: %u events for 640 frees",
	   provider, nr_records);
	nr_records = 0;
	for (i = 0; i < 40; i++)
		put(get(16 * MIB, a), 16 * MIB, a);
	ok(nr_records >= 5 && nr_records <= 14,
	   "%s: %u events for 40 frees of 640 MiB", provider, nr_records);
	hetmem_resource_destroy(pool);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

static void cross_stream(const char *provider, size_t size)
{
	struct hm_pool_options opt = {
		.max = 64 * MIB, .wait_ms = 50, .reuse_order = true,
	};
	CUstream a = new_stream(), b = new_stream();
	void *p, *q, *r;

	make_pool(provider, &opt);
	put(get(512, b), 512, b);
	p = get(size, a);
	close_gate(a);
	put(p, size, a);

	r = get(size, HETMEM_STREAM_HOST);
	ok(r != p, "%s, %zu: the host gets other memory", provider, size);
	memset(r, 1, size);
	is(pool_stats().host_wait_ns, 0, "%s, %zu: without waiting", provider,
	   size);
	put(r, size, HETMEM_STREAM_HOST);
	q = get(size, b);
	ok(q == r, "%s, %zu: what is complete is taken first", provider, size);
	ok(gets_through(b), "%s, %zu: without an order", provider, size);
	nr_waits = 0;
	r = get(size, b);
	ok(r == p, "%s, %zu: then another stream's", provider, size);
	is(nr_waits, 1, "%s, %zu: behind an event", provider, size);
	ok(is_held_up(b), "%s, %zu: the stream is ordered", provider, size);
	open_gate();
	drv->cuCtxSynchronize();
	ok(gets_through(b), "%s, %zu: until it is complete", provider, size);
	put(q, size, b);
	put(r, size, a);
	is(hetmem_resource_destroy(pool), 0, "%s, %zu: freed on another stream",
	   provider, size);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

/* Streams wait for each other only where there is no room for new memory. */
static void new_before_order(const char *provider)
{
	struct hm_pool_options opt = { .max = 256 * MIB, .wait_ms = 50 };
	CUstream a = new_stream(), b = new_stream();
	void *p, *q, *r, *full;

	make_pool(provider, &opt);
	put(get(512, b), 512, b);
	p = get(96 * MIB, a);
	close_gate(a);
	put(p, 96 * MIB, a);
	nr_waits = 0;
	q = get(96 * MIB, b);
	ok(q != p, "%s: new memory", provider);
	is(nr_waits, 0, "%s: no order", provider);
	ok(gets_through(b), "%s: the stream goes on", provider);
	full = get(pool_stats().reserved < 200 * MIB ? 60 * MIB : 30 * MIB, b);
	r = get(96 * MIB, b);
	ok(nr_waits > 0, "%s: an order where max= leaves no room", provider);
	ok(is_held_up(b), "%s: which the stream obeys", provider);
	ok(pool_stats().reserved <= 256 * MIB, "%s: within max=", provider);
	is(pool_stats().host_wait_ns, 0, "%s: and the host does not wait", provider);
	open_gate();
	ok(gets_through(b), "%s: until that is complete", provider);
	put(q, 0, b);
	put(r, 0, b);
	put(full, 0, b);
	is(hetmem_resource_destroy(pool), 0, "%s: nothing is left", provider);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

/* Memory of an idle stream is complete, though nothing was recorded on it. */
static void idle_is_complete(const char *provider)
{
	CUstream a = new_stream(), b = new_stream();
	void *p, *q;

	make_pool(provider, NULL);
	put(get(512, b), 512, b);
	p = get(48 * MIB, a);
	put(p, 48 * MIB, a);
	need(!drv->cuStreamSynchronize(a), "idle");
	nr_waits = 0;
	q = get(48 * MIB, b);
	is(nr_waits, 0, "%s: an idle stream is not waited for", provider);
	ok(pool_stats().reserved < 80 * MIB, "%s: its memory is used", provider);
	put(q, 0, b);
	is(hetmem_resource_destroy(pool), 0, "%s: nothing is left", provider);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

#define MANY	40

/* A miss asks the driver about a few streams, however many there are. */
static void few_are_asked(const char *provider)
{
	CUstream streams[MANY], b = new_stream();
	unsigned int most_records = 0, most_queries = 0;
	void *p[MANY], *q[20];
	int i;

	make_pool(provider, NULL);
	for (i = 0; i < MANY; i++) {
		streams[i] = new_stream();
		p[i] = get(3 * MIB, streams[i]);
	}
	close_gate(streams[0]);
	for (i = 1; i < MANY; i++) {
		CUevent e;

		need(!drv->cuEventCreate(&e, CU_EVENT_DISABLE_TIMING) &&
		     !drv->cuEventRecord(e, streams[0]) &&
		     !drv->cuStreamWaitEvent(streams[i], e, 0), "held up");
		drv->cuEventDestroy(e);
	}
	for (i = 0; i < MANY; i++)
		put(p[i], 3 * MIB, streams[i]);
	for (i = 0; i < 20; i++) {
		nr_records = 0;
		nr_queries = 0;
		q[i] = get(3 * MIB, b);
		if (nr_records > most_records)
			most_records = nr_records;
		if (nr_queries > most_queries)
			most_queries = nr_queries;
	}
	ok(most_records <= 8, "%s: %u events at most for a miss", provider,
	   most_records);
	ok(most_queries <= 16, "%s: %u questions", provider, most_queries);
	open_gate();
	for (i = 0; i < 20; i++)
		put(q[i], 0, b);
	drv->cuCtxSynchronize();
	is(hetmem_resource_destroy(pool), 0, "%s: nothing is left", provider);
	for (i = 0; i < MANY; i++)
		drv->cuStreamDestroy(streams[i]);
	drv->cuStreamDestroy(b);
}

/* The first wait is to be in vain; so may others be, on a busy machine. */
static void host_wait(const char *provider)
{
	struct hm_pool_options opt = { .max = 32 * MIB, .wait_ms = 500 };
	CUstream a = new_stream();
	unsigned int tries = 0;
	unsigned long long id = 0;
	void *p, *q = NULL;
	char says[64];

	make_pool(provider, &opt);
	p = get(24 * MIB, a);
	close_gate(a);
	put(p, 24 * MIB, a);
	is(hetmem_alloc(pool, 20 * MIB, 0, HETMEM_STREAM_HOST, &q), -ENOMEM,
	   "%s: memory in use is waited for, not for ever", provider);
	drv->cuStreamGetId(a, &id);
	snprintf(says, sizeof(says), "memory in use on stream %llu", id);
	ok(strstr(hetmem_last_error(), "waited ") &&
	   strstr(hetmem_last_error(), says), "%s: it says: %s", provider,
	   hetmem_last_error());
	ok(pool_stats().host_wait_ns >= 400000000, "%s: and counts", provider);
	q = get(20 * MIB, a);
	put(q, 0, a);
	open_gate();
	while (hetmem_alloc(pool, 20 * MIB, 0, HETMEM_STREAM_HOST, &q))
		need(++tries < 100, "%s: until it is complete: %s", provider, hetmem_last_error());
	memset(q, 2, 20 * MIB);
	put(q, 0, HETMEM_STREAM_HOST);
	hetmem_resource_destroy(pool);
	drv->cuStreamDestroy(a);
}

/* What is done first is taken, and not what is of the stream seen first. */
static void host_wait_any(const char *provider)
{
	struct hm_pool_options opt = { .max = 40 * MIB, .wait_ms = 10000 };
	CUstream a = new_stream(), b = new_stream();
	void *p, *q, *r = NULL;

	make_pool(provider, &opt);
	p = get(4 * MIB, a);
	q = get(30 * MIB, b);
	close_gate(a);
	need(!soft_launch(b, "short", NULL, 0, 100000000), "work");
	put(p, 4 * MIB, a);
	put(q, 30 * MIB, b);
	is(hetmem_alloc(pool, 20 * MIB, 0, HETMEM_STREAM_HOST, &r), 0,
	   "%s: any memory that is done is waited for", provider);
	if (r)
		put(r, 20 * MIB, HETMEM_STREAM_HOST);
	open_gate();
	hetmem_resource_destroy(pool);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

static void recorded(const char *provider, size_t size)
{
	struct hm_pool_options opt = { .wait_ms = HM_POOL_NO_WAIT };
	CUstream a = new_stream(), b = new_stream();
	void *p, *q;

	make_pool(provider, &opt);
	p = get(size, a);
	is(hetmem_record_stream(pool, p, b), 0, "%s, %zu: record_stream",
	   provider, size);
	is(hetmem_record_stream(pool, p, b), 0, "%s, %zu: again", provider,
	   size);
	close_gate(b);
	put(p, size, a);
	q = get(size, HETMEM_STREAM_HOST);
	ok(q != p, "%s, %zu: the recorded use is under way", provider, size);
	put(q, size, a);
	open_gate();
	drv->cuCtxSynchronize();
	hetmem_poll(pool);
	drv->cuCtxSynchronize();
	is(hetmem_poll(pool), 0, "%s, %zu: poll", provider, size);
	q = get(size, a);
	put(get(size, a), size, a);
	is(pool_stats().live, 1, "%s, %zu: live", provider, size);

	/* A free that does not know its stream. */
	is(hetmem_record_stream(pool, q, b), 0, "%s, %zu: recorded", provider,
	   size);
	put(q, 0, HETMEM_STREAM_UNKNOWN);
	drv->cuCtxSynchronize();
	hetmem_poll(pool);
	is(hetmem_resource_destroy(pool), 0, "%s, %zu: stream unknown",
	   provider, size);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

/* Of two streams that use a block one is complete, and the host is told. */
static void recorded_twice(const char *provider, size_t size)
{
	CUstream a = new_stream(), b = new_stream(), c = new_stream();
	void *p, *q;

	make_pool(provider, NULL);
	p = get(size, a);
	need(!hetmem_record_stream(pool, p, b) && !hetmem_record_stream(pool, p, c),
	     "two streams use it");
	close_gate(c);
	put(p, size, a);
	hetmem_poll(pool);
	need(!drv->cuStreamSynchronize(a) && !drv->cuStreamSynchronize(b), "one is complete");
	hetmem_poll(pool);
	q = get(size, HETMEM_STREAM_HOST);
	ok(q != p, "%s, %zu: one of two recorded uses is under way", provider, size);
	put(q, size, HETMEM_STREAM_HOST);
	open_gate();
	is(hetmem_resource_destroy(pool), 0, "%s, %zu: all is freed", provider, size);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
	drv->cuStreamDestroy(c);
}

static void retire(const char *provider, bool retired)
{
	struct hm_pool_options opt = { .retired = retired, .reuse_order = true };
	CUstream a = new_stream(), b = new_stream();
	void *p, *q;
	int i;

	make_pool(provider, &opt);
	put(get(512, b), 512, b);
	p = get(3 * MIB, a);
	close_gate(a);
	put(p, 3 * MIB, a);
	is(hetmem_stream_retire(pool, a), 0, "%s: retire", provider);
	drv->cuStreamDestroy(a);
	q = get(3 * MIB, b);
	ok(q == p, "%s: a retired stream's memory", provider);
	ok(is_held_up(b), "%s: is taken in order", provider);
	open_gate();
	put(q, 0, b);
	for (i = 0; i < HM_MAX_STREAMS + 100; i++) {
		a = new_stream();
		p = NULL;
		if (hetmem_alloc(pool, 700, 0, a, &p) ||
		    hetmem_free(pool, p, 700, a) ||
		    hetmem_stream_retire(pool, a))
			break;
		drv->cuStreamDestroy(a);
		if (i % 64 == 0)
			hetmem_poll(pool);
	}
	is(i, HM_MAX_STREAMS + 100, "%s: streams come and go: %s", provider,
	   hetmem_last_error());
	hetmem_resource_destroy(pool);
	drv->cuStreamDestroy(b);
}

/*
 * Nothing was freed on the stream that is retired, but it uses the block: told
 * by record_stream, or it was allocated there.
 */
static void retire_used(const char *provider, size_t size, bool recorded)
{
	CUstream a = new_stream(), b = new_stream();
	void *p, *q;

	make_pool(provider, NULL);
	put(get(512, a), 512, a);
	p = get(size, recorded ? a : b);
	if (recorded)
		is(hetmem_record_stream(pool, p, b), 0, "recorded");
	close_gate(b);
	is(hetmem_stream_retire(pool, b), 0, "%s, %zu: retired while it uses",
	   provider, size);
	hetmem_poll(pool);
	put(p, size, recorded ? a : HETMEM_STREAM_UNKNOWN);
	hetmem_poll(pool);
	nr_waits = 0;
	q = get(size, a);
	ok(q != p || nr_waits, "%s, %zu: what it uses is not complete, %s",
	   provider, size, recorded ? "recorded" : "its own");
	open_gate();
	drv->cuCtxSynchronize();
	put(q, size, a);
	is(hetmem_resource_destroy(pool), 0, "%s, %zu: nothing is left",
	   provider, size);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

static void destroyed_without(const char *provider)
{
	CUstream a, old = NULL;
	int i, reused = 0;
	void *p;

	make_pool(provider, NULL);
	for (i = 0; i < 50; i++) {
		a = new_stream();
		reused += a == old;
		old = a;
		p = get(2 * MIB, a);
		put(p, 2 * MIB, a);
		drv->cuStreamDestroy(a);
	}
	ok(pool_stats().reserved <= 256 * MIB, "%s: %d handles used again",
	   provider, reused);
	is(hetmem_resource_destroy(pool), 0, "%s: not retired", provider);
}

static void foreign_stream(const char *provider)
{
	CUcontext ctx, before;
	CUstream other;
	void *p;

	make_pool(provider, NULL);
	drv->cuCtxGetCurrent(&before);
	need(!drv->cuDevicePrimaryCtxRetain(&ctx, 1) &&
	     !drv->cuCtxSetCurrent(ctx), "device 1");
	other = new_stream();
	is(hetmem_alloc(pool, 1000, 0, other, &p), -EINVAL,
	   "%s: a stream of another context: %s", provider,
	   hetmem_last_error());
	p = get(1000, NULL);
	drv->cuCtxSetCurrent(before);
	put(p, 1000, NULL);
	drv->cuCtxSetCurrent(NULL);
	p = get(1000, HETMEM_STREAM_PER_THREAD);
	put(p, 1000, HETMEM_STREAM_PER_THREAD);
	drv->cuCtxSetCurrent(before);
	is(hetmem_resource_destroy(pool), 0,
	   "%s: stream 0 is the pool's device's, whatever is current",
	   provider);
	drv->cuStreamDestroy(other);
	drv->cuDevicePrimaryCtxRelease(1);
}

/* A block that is larger than what was asked for is grown into itself. */
static void grow_inside(void)
{
	CUstream a = new_stream(), b = new_stream();
	char *p, *q;

	make_pool("vmm", NULL);
	put(get(MIB, b), MIB, b);
	p = get(MIB, a);
	close_gate(a);
	put(p, MIB, a);
	ok(get(MIB - 65536, a) == p, "most of a block that is in use");
	is(hetmem_grow(pool, p, MIB - 16384, a), 0, "grows in place");
	nr_waits = 0;
	q = get(MIB / 4, HETMEM_STREAM_HOST);
	ok(q + MIB / 4 <= p || q >= p + MIB, "its rest is nobody else's");
	open_gate();
	drv->cuCtxSynchronize();
	put(p, 0, a);
	put(q, 0, HETMEM_STREAM_HOST);
	hetmem_resource_destroy(pool);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

/* A block's name of a graph has 16 bits: one more is refused. */
static void too_many_ids(void)
{
	CUstream a = new_stream();
	struct pool *p;
	uint64_t id;

	make_pool("vmm", NULL);
	for (id = 1; id <= 300; id++)
		if (hetmem_capture_begin(pool, a, id) ||
		    hetmem_capture_end(pool, a, id))
			break;
	is(id, 301, "ids that are not released");
	p = to_pool(pool);
	p->graphs->nr += 65535 - 300;	/* as if there were so many */
	is(hetmem_capture_begin(pool, a, 301), -ENOSPC, "one more than there can be: %s",
	   hetmem_last_error());
	is(hetmem_capture_begin(pool, a, 7), 0, "one there is goes on");
	is(hetmem_capture_end(pool, a, 7), 0, "to its end");
	is(hetmem_capture_release(pool, a, 7), 0, "and is released");
	is(hetmem_capture_begin(pool, a, 301), 0, "then there is room");
	is(hetmem_capture_end(pool, a, 301), 0, "for one");
	is(hetmem_capture_begin(pool, a, 302), -ENOSPC, "and not for two");
	is(hetmem_resource_destroy(pool), 0, "destroyed with all of them");
	drv->cuStreamDestroy(a);
}

static void all(const char *provider)
{
	one_stream(provider, 700);
	one_stream(provider, 3 * MIB);
	record_rarely(provider);
	cross_stream(provider, 3 * MIB);
	cross_stream(provider, 20 * MIB);
	new_before_order(provider);
	idle_is_complete(provider);
	few_are_asked(provider);
	host_wait(provider);
	host_wait_any(provider);
	recorded(provider, 700);
	recorded(provider, 3 * MIB);
	recorded_twice(provider, 700);
	recorded_twice(provider, 3 * MIB);
	retire(provider, false);
	retire(provider, true);
	retire_used(provider, 700, true);
	retire_used(provider, 3 * MIB, true);
	retire_used(provider, 700, false);
	retire_used(provider, 3 * MIB, false);
	destroyed_without(provider);
	foreign_stream(provider);
	is(device_used(), 0, "%s: nothing is left", provider);
}

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "1G", 1);
	setenv("HETMEM_SOFT_DEVICES", "2", 1);
	open_soft("");
	count_calls();
	all("device");
	all("vmm");
	grow_inside();
	too_many_ids();
	close_soft();
	return tap_end();
}
