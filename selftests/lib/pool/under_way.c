// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The pool, and what streams do with memory that is not freed yet: while the pool is put
 * to sleep, is destroyed, after it was grown on another stream, and after the stream was
 * destroyed without being retired.
 */
#include "alloc_with.h"
#include "pool_gate.h"

/* @a uses @p, and goes on when the gate opens: when the main thread waits. */
static pthread_t use_slowly(void *p, size_t size, CUstream a)
{
	pthread_t id;

	close_gate(a);
	need(!drv->cuMemsetD8Async((CUdeviceptr)p, 0x55, size, a), "work");
	need(!pthread_create(&id, NULL, open_gate_later, NULL), "a thread");
	return id;
}

static void sleep_waits(void)
{
	CUstream a = new_stream();
	pthread_t id;
	void *p;

	make_pool("vmm", NULL);
	p = get(3 * MIB, a);
	id = use_slowly(p, 3 * MIB, a);
	is(hetmem_sleep(pool, NULL, HETMEM_SLEEP_DISCARD), 0, "sleep");
	ok(__atomic_load_n(&is_open, __ATOMIC_SEQ_CST),
	   "waits for what uses memory that is live");
	pthread_join(id, NULL);
	is(drv->cuStreamSynchronize(a), 0, "which has it until then");
	is(hetmem_wake(pool, NULL), 0, "wake");
	need(!drv->cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_RELAXED), "a capture");
	is(hetmem_sleep(pool, NULL, HETMEM_SLEEP_DISCARD), -EBUSY, "not while a stream is captured: %s",
	   hetmem_last_error());
	need(!drv->cuStreamEndCapture(a, &(CUgraph){ NULL }), "its end");
	put(p, 0, a);
	p = get(3 * MIB, a);
	ok(p, "and is awake then");
	put(p, 0, a);
	hetmem_resource_destroy(pool);
	drv->cuStreamDestroy(a);
}

static void destroy_waits(const char *provider)
{
	CUstream a = new_stream(), b = new_stream();
	pthread_t id;
	void *p;

	make_pool(provider, NULL);
	put(get(512, b), 512, b);
	p = get(3 * MIB, a);
	is(hetmem_record_stream(pool, p, b), 0, "%s: another stream uses it", provider);
	id = use_slowly(p, 3 * MIB, b);
	is(hetmem_resource_destroy(pool), 1, "%s: destroy, with a live block", provider);
	ok(__atomic_load_n(&is_open, __ATOMIC_SEQ_CST),
	   "%s: waits for what uses it", provider);
	pthread_join(id, NULL);
	is(drv->cuStreamSynchronize(b), 0, "%s: which has it until then", provider);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

/* Of a stream that the pool never heard of: the program ordered it by an event. */
static void unknown(const char *provider, bool sleeps)
{
	CUstream a = new_stream(), b = new_stream();
	pthread_t id;
	void *p;

	make_pool(provider, NULL);
	p = get(3 * MIB, a);
	follow(b, a);
	id = use_slowly(p, 3 * MIB, b);
	if (sleeps)
		is(hetmem_sleep(pool, NULL, HETMEM_SLEEP_DISCARD), 0, "%s: sleep", provider);
	else
		is(hetmem_resource_destroy(pool), 1, "%s: destroy", provider);
	ok(__atomic_load_n(&is_open, __ATOMIC_SEQ_CST),
	   "%s: waits for a stream that is not known", provider);
	pthread_join(id, NULL);
	is(drv->cuStreamSynchronize(b), 0, "%s: which has it until then", provider);
	if (sleeps)
		hetmem_resource_destroy(pool);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

/* Nobody asks who the streams of a private pool are. */
static void private_pool(bool sleeps)
{
	CUstream a = new_stream();
	void *p = NULL;
	pthread_t id;

	make_pool("vmm", NULL);
	need(!hetmem_private_retain(pool, 5) &&
	     !alloc_private(pool, 5, 3 * MIB, a, &p), "a private block");
	id = use_slowly(p, 3 * MIB, a);
	put(p, 3 * MIB, a);
	if (sleeps)
		is(hetmem_sleep(pool, NULL, HETMEM_SLEEP_DISCARD), 0, "sleep");
	else
		is(hetmem_resource_destroy(pool), 0, "destroy");
	ok(__atomic_load_n(&is_open, __ATOMIC_SEQ_CST),
	   "waits for what uses a private pool");
	pthread_join(id, NULL);
	is(drv->cuStreamSynchronize(a), 0, "which has it until then");
	if (sleeps)
		hetmem_resource_destroy(pool);
	drv->cuStreamDestroy(a);
}

/* So do resources without a pool of their own. */
static void destroy_waits_for_live(const char *spec)
{
	CUstream a = new_stream();
	pthread_t id;
	void *p;

	need(!hetmem_resource_create(hm, spec, &pool), "%s: %s", spec, hetmem_last_error());
	p = get(64 << 10, a);
	id = use_slowly(p, 64 << 10, a);
	hetmem_resource_destroy(pool);
	ok(__atomic_load_n(&is_open, __ATOMIC_SEQ_CST),
	   "%s: destroy waits for what uses a live block", spec);
	pthread_join(id, NULL);
	is(drv->cuStreamSynchronize(a), 0, "%s: which has it until then", spec);
	drv->cuStreamDestroy(a);
}

/* Of what was freed, too, and where no event can be recorded that tells when. */
static void destroy_waits_for_context(const char *provider)
{
	CUstream a = new_stream();
	pthread_t id;
	void *p;

	make_pool(provider, NULL);
	p = get(3 * MIB, a);
	id = use_slowly(p, 3 * MIB, a);
	put(p, 3 * MIB, a);
	soft_rules("cuEventRecord:*=CUDA_ERROR_UNKNOWN", NULL);
	is(hetmem_resource_destroy(pool), 0, "%s: destroy, without events", provider);
	soft_rules(NULL, NULL);
	ok(__atomic_load_n(&is_open, __ATOMIC_SEQ_CST),
	   "%s: waits for what uses freed memory", provider);
	pthread_join(id, NULL);
	is(drv->cuStreamSynchronize(a), 0, "%s: which has it until then", provider);
	drv->cuStreamDestroy(a);
}

/* A stream that a block was grown on is one of those that use it. */
static void grown(void)
{
	CUstream a = new_stream(), b = new_stream(), c = new_stream();
	char *p, *q;

	make_pool("vmm", NULL);
	put(get(512, c), 512, c);
	is(alloc_reserve(pool, 2 * MIB, 8 * MIB, a, (void **)&p), 0, "room to grow");
	is(hetmem_grow(pool, p, 4 * MIB, b), 0, "is used on another stream");
	close_gate(b);
	is(hetmem_free(pool, p, 0, HETMEM_STREAM_UNKNOWN), 0, "freed, nobody knows where");
	q = get(4 * MIB, HETMEM_STREAM_HOST);
	ok(q + 4 * MIB <= p || q >= p + 4 * MIB, "is given to nobody while that stream runs");
	put(q, 0, HETMEM_STREAM_HOST);
	open_gate();
	drv->cuCtxSynchronize();
	hetmem_resource_destroy(pool);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
	drv->cuStreamDestroy(c);
}

/*
 * A driver that gives a new stream the handle of one that was destroyed, as CUDA does:
 * to the pool that one is lost.
 */
#define HANDLE	((CUstream)0x7777000)

static CUstream behind_handle;

static CUstream resolve(CUstream s)
{
	return s == HANDLE ? behind_handle : s;
}

static CUresult same_id(CUstream s, unsigned long long *id)
{
	return real.cuStreamGetId(resolve(s), id);
}

static CUresult same_ctx(CUstream s, CUcontext *ctx)
{
	return real.cuStreamGetCtx(resolve(s), ctx);
}

static CUresult same_capturing(CUstream s, CUstreamCaptureStatus *status)
{
	return real.cuStreamIsCapturing(resolve(s), status);
}

static CUresult same_record(CUevent event, CUstream s)
{
	return real.cuEventRecord(event, resolve(s));
}

static CUresult same_wait(CUstream s, CUevent event, unsigned int flags)
{
	return real.cuStreamWaitEvent(resolve(s), event, flags);
}

static void use_handle(void)
{
	hm->driver.cuStreamGetId = same_id;
	hm->driver.cuStreamGetCtx = same_ctx;
	hm->driver.cuStreamIsCapturing = same_capturing;
	hm->driver.cuEventRecord = same_record;
	hm->driver.cuStreamWaitEvent = same_wait;
}

static void lost(bool recorded)
{
	CUstream a = new_stream(), b = new_stream();
	char *p, *q;

	make_pool("vmm", NULL);
	use_handle();
	behind_handle = a;
	p = get(4 * MIB, recorded ? HETMEM_STREAM_HOST : HANDLE);
	if (recorded)
		is(hetmem_record_stream(pool, p, HANDLE), 0, "a stream uses memory");
	close_gate(a);
	drv->cuStreamDestroy(a);
	behind_handle = b;
	put(get(512, HANDLE), 512, HANDLE);
	is(hetmem_poll(pool), 0, "it is destroyed, and its handle another's");
	is(hetmem_free(pool, p, 0, HETMEM_STREAM_UNKNOWN), 0, "freed, nobody knows where");
	q = get(4 * MIB, HETMEM_STREAM_HOST);
	ok(q + 4 * MIB <= p || q >= p + 4 * MIB, "is given to nobody while it runs");
	put(q, 0, HETMEM_STREAM_HOST);
	open_gate();
	is(hetmem_resource_destroy(pool), 0, "all is freed");
	hm->driver = real;
	drv->cuStreamDestroy(b);
}

/* What it freed before is not the next stream's, which has only its handle. */
static void next_of_handle(const char *provider, size_t size)
{
	CUstream a = new_stream(), b = new_stream();
	void *p, *q;

	make_pool(provider, NULL);
	use_handle();
	behind_handle = a;
	p = get(size, HANDLE);
	close_gate(a);
	put(p, size, HANDLE);
	drv->cuStreamDestroy(a);
	behind_handle = b;
	q = get(size, HANDLE);
	ok(q != p, "%s, %zu: what a destroyed stream freed is not for the next of its handle",
	   provider, size);
	put(q, size, HANDLE);
	open_gate();
	is(hetmem_resource_destroy(pool), 0, "%s, %zu: all is freed", provider, size);
	hm->driver = real;
	drv->cuStreamDestroy(b);
}

/* Streams that are lost do not use the table up. */
static void many_lost(void)
{
	unsigned int i, failed = 0;
	void *p;

	make_pool("vmm", NULL);
	use_handle();
	for (i = 0; i < 5000; i++) {
		behind_handle = new_stream();
		failed += !!hetmem_alloc(pool, 512, 0, HANDLE, &p) ||
			  hetmem_free(pool, p, 512, HANDLE);
		drv->cuStreamDestroy(behind_handle);
		if (i % 64 == 0)
			hetmem_poll(pool);
	}
	is(failed, 0, "5000 streams, none of which is retired: %s",
	   failed ? hetmem_last_error() : "");
	behind_handle = new_stream();
	is(hetmem_resource_destroy(pool), 0, "all is freed");
	drv->cuStreamDestroy(behind_handle);
	hm->driver = real;
}

static void too_much(void)
{
	static const size_t sizes[] = {
		(size_t)1 << 41, (size_t)1 << 53, ((size_t)1 << 53) + 2 * MIB,
		SIZE_MAX / 2, SIZE_MAX - 100, SIZE_MAX,
	};
	unsigned int i;
	void *p;

	make_pool("vmm", NULL);
	for (i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		is(alloc_reserve(pool, 2 * MIB, sizes[i], HETMEM_STREAM_HOST, &p),
		   -ENOMEM, "%zu bytes of addresses", sizes[i]);
		is(alloc_reserve(pool, sizes[i], sizes[i], HETMEM_STREAM_HOST, &p),
		   -ENOMEM, "%zu bytes of memory", sizes[i]);
	}
	is(hetmem_resource_destroy(pool), 0, "nothing was allocated");
}

/* What a graph uses has no room to grow. */
static void captured(void)
{
	CUstream a = new_stream();
	CUgraph graph;
	void *p;

	make_pool("vmm", NULL);
	is(hetmem_capture_begin(pool, a, 7), 0, "a capture");
	need(!drv->cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL), "begins");
	is(alloc_reserve(pool, 2 * MIB, 8 * MIB, a, &p), -EBUSY,
	   "a reserve of a captured stream: %s", hetmem_last_error());
	p = get(2 * MIB, a);
	put(p, 0, a);
	is(drv->cuStreamEndCapture(a, &graph), 0, "and the capture is valid");
	is(hetmem_capture_end(pool, a, 7), 0, "its end");
	is(hetmem_capture_release(pool, a, 7), 0, "released");
	drv->cuGraphDestroy(graph);
	is(hetmem_resource_destroy(pool), 0, "all is freed");
	drv->cuStreamDestroy(a);
}

/* What is made in a hole is not given to a neighbour that is larger and in use. */
static void beside_what_is_used(bool host)
{
	struct hm_pool_options opt = { .handle = 2 * MIB, .wait_ms = 50 };
	CUstream a = new_stream(), b = new_stream();
	char *x, *y, *z, *q = NULL;

	make_pool("vmm", &opt);
	put(get(512, b), 512, b);
	x = get(14 * MIB, HETMEM_STREAM_HOST);
	put(x, 0, HETMEM_STREAM_HOST);
	x = get(2 * MIB, HETMEM_STREAM_HOST);
	y = get(4 * MIB, HETMEM_STREAM_HOST);
	z = get(8 * MIB, a);
	ok(y == x + 2 * MIB && z == y + 4 * MIB, "three in a row");
	put(y, 0, HETMEM_STREAM_HOST);
	is(hetmem_trim(pool, 0, NULL), 0, "the second is given back");
	put(x, 0, HETMEM_STREAM_HOST);
	close_gate(a);
	put(z, 0, a);
	is(hetmem_alloc(pool, 6 * MIB, 0, host ? HETMEM_STREAM_HOST : b, (void **)&q), 0,
	   "the first gets memory behind it: %s", hetmem_last_error());
	is(pool_stats().host_wait_ns, 0, "without waiting");
	ok(q == x || !host, "and is one with it");
	open_gate();
	drv->cuCtxSynchronize();
	if (q)
		put(q, 0, host ? HETMEM_STREAM_HOST : b);
	hetmem_resource_destroy(pool);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

/* New memory rather than what is added to the end of what is used. */
static void at_end_of_what_is_used(bool host)
{
	struct hm_pool_options opt = { .handle = 2 * MIB, .wait_ms = 50 };
	const char *who = host ? "the host" : "another stream";
	CUstream a = new_stream(), b = new_stream();
	char *z, *q = NULL;

	make_pool("vmm", &opt);
	put(get(512, b), 512, b);
	z = get(8 * MIB, a);
	close_gate(a);
	put(z, 0, a);
	nr_waits = 0;
	is(hetmem_alloc(pool, 16 * MIB, 0, host ? HETMEM_STREAM_HOST : b, (void **)&q), 0,
	   "%s gets new memory: %s", who, hetmem_last_error());
	ok(q + 16 * MIB <= z || q >= z + 8 * MIB, "%s: not behind what is used", who);
	is(nr_waits, 0, "%s: without an order", who);
	if (q)
		put(q, 0, host ? HETMEM_STREAM_HOST : b);
	open_gate();
	hetmem_resource_destroy(pool);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

/* What a block leaves of a region that comes in stream order is there no earlier than it. */
static void rest_of_region(void)
{
	CUstream a = new_stream();
	char *p, *q;

	need(!hetmem_resource_create(hm, "pool(async)", &pool), "a pool: %s",
	     hetmem_last_error());
	close_gate(a);
	p = get(4096, a);
	q = get(4096, HETMEM_STREAM_HOST);
	ok(q + 4096 <= p || q >= p + 2 * MIB, "the host gets memory that is there");
	open_gate();
	put(p, 4096, a);
	put(q, 4096, HETMEM_STREAM_HOST);
	is(hetmem_resource_destroy(pool), 0, "all is freed");
	drv->cuStreamDestroy(a);
}

/* What sleeps has no memory that could be exported. */
static void export_asleep(void)
{
	struct hetmem_segment segments[8];
	int fds[8];
	void *p;

	need(!hetmem_resource_create(hm, "pool(vmm(export=fd))", &pool), "a pool: %s",
	     hetmem_last_error());
	p = get(4 * MIB, HETMEM_STREAM_HOST);
	is(hetmem_sleep(pool, NULL, HETMEM_SLEEP_DISCARD), 0, "exportable memory sleeps");
	is(hetmem_export(pool, p, fds, segments, 8), -EBUSY, "export: %s",
	   hetmem_last_error());
	is(hetmem_wake(pool, NULL), 0, "wakes");
	is(hetmem_export(pool, p, fds, segments, 8), 1, "and can be exported");
	close(fds[0]);
	put(p, 0, HETMEM_STREAM_HOST);
	is(hetmem_resource_destroy(pool), 0, "all is freed");
}

/* Exported memory is given back when what uses it is complete: poll finds that. */
static void exported_in_use(bool recorded)
{
	CUstream a = new_stream(), b = new_stream();
	const char *who = recorded ? "another stream" : "its stream";
	struct hetmem_segment segment;
	unsigned int tries;
	void *p;
	int fd;

	need(!hetmem_resource_create(hm, "pool(vmm(export=fd))", &pool), "a pool: %s",
	     hetmem_last_error());
	p = get(4 * MIB, a);
	need(hetmem_export(pool, p, &fd, &segment, 1) == 1, "an export: %s",
	     hetmem_last_error());
	close(fd);
	if (recorded)
		need(!hetmem_record_stream(pool, p, b), "recorded");
	close_gate(recorded ? b : a);
	put(p, 0, a);
	is(hetmem_poll(pool), 0, "exported, and %s uses it", who);
	is(pool_stats().reserved, 4 * MIB, "%s: it is not given back", who);
	open_gate();
	for (tries = 0; tries < 10 && pool_stats().reserved; tries++) {
		need(!drv->cuCtxSynchronize(), "all is complete");
		hetmem_poll(pool);
	}
	is(pool_stats().reserved, 0, "%s: but then", who);
	is(hetmem_resource_destroy(pool), 0, "%s: all is freed", who);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "1G", 1);
	open_soft("");
	count_calls();
	sleep_waits();
	destroy_waits("vmm");
	destroy_waits("device");
	destroy_waits("async");
	unknown("vmm", true);
	unknown("vmm", false);
	unknown("async", false);
	private_pool(true);
	private_pool(false);
	destroy_waits_for_live("device");
	destroy_waits_for_live("async");
	destroy_waits_for_live("pinned");
	destroy_waits_for_live("system(device=0)");
	destroy_waits_for_live("fixed(pool(vmm),size=64K,count=2)");
	destroy_waits_for_live("fixed(pinned,size=64K,count=2)");
	destroy_waits_for_context("vmm");
	destroy_waits_for_context("device");
	exported_in_use(false);
	exported_in_use(true);
	grown();
	lost(false);
	lost(true);
	next_of_handle("vmm", 512);
	next_of_handle("vmm", 4 * MIB);
	next_of_handle("device", 512);
	many_lost();
	too_much();
	captured();
	rest_of_region();
	export_asleep();
	beside_what_is_used(true);
	beside_what_is_used(false);
	at_end_of_what_is_used(true);
	at_end_of_what_is_used(false);
	close_soft();
	return tap_end();
}
