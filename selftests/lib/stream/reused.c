// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A stream that is destroyed between allocation and free, whose handle the driver gives
 * to another stream while its work goes on: over a pool, over every provider without one,
 * and in fixed(). With and without hetmem_stream_retire(). In check mode: memory that is
 * given back, or out, before the work is complete aborts.
 *
 * The soft driver reuses a handle only when the work is complete. So the library's own
 * table plays it: a handle that is passed on is another stream to it.
 */
#include "pool_gate.h"

#define SIZE	(64UL << 10)

static CUstream handle, now;
static unsigned int nr_syncs, nr_on_now, nr_freed_on_now;

/* After so many questions for the id of @handle, it becomes @next's handle; 0: never. */
static unsigned int ids_until_reuse;
static CUstream next;

static CUstream of(CUstream s)
{
	return s == handle && now ? now : s;
}

/* The same, of what only the stream itself should get. */
static CUstream given(CUstream s)
{
	nr_on_now += of(s) != s;
	return of(s);
}

static CUresult get_id(CUstream s, unsigned long long *id)
{
	CUresult res = real.cuStreamGetId(of(s), id);

	if (s == handle && ids_until_reuse && !--ids_until_reuse)
		now = next;
	return res;
}

static CUresult record(CUevent event, CUstream s)
{
	return count_record(event, given(s));
}

static CUresult query(CUstream s)
{
	return real.cuStreamQuery(given(s));
}

static CUresult wait_event(CUstream s, CUevent event, unsigned int flags)
{
	return count_wait(given(s), event, flags);
}

static CUresult free_async(CUdeviceptr ptr, CUstream s)
{
	nr_freed_on_now += of(s) != s;
	return real.cuMemFreeAsync(ptr, given(s));
}

/* Nobody synchronizes a context before the test is done with the gate. */
static CUresult synchronize(void)
{
	nr_syncs++;
	open_gate();
	return real.cuCtxSynchronize();
}

/* These wait for all work of the device, too. */
static CUresult mem_free(CUdeviceptr ptr)
{
	open_gate();
	return real.cuMemFree(ptr);
}

static CUresult unregister(void *ptr)
{
	open_gate();
	return real.cuMemHostUnregister(ptr);
}

static void tell_alloc(const void *ptr, size_t size, hetmem_stream s)
{
	hm->soft->alloc(ptr, size, of(s));
}

static void tell_free(const void *ptr, size_t size, hetmem_stream s)
{
	hm->soft->free(ptr, size, of(s));
}

static void play_reuse(void)
{
	static struct hm_soft check;

	count_calls();
	check = *hm->soft;
	check.alloc = tell_alloc;
	check.free = tell_free;
	hm->check = &check;
	hm->driver.cuStreamGetId = get_id;
	hm->driver.cuEventRecord = record;
	hm->driver.cuStreamQuery = query;
	hm->driver.cuStreamWaitEvent = wait_event;
	hm->driver.cuMemFreeAsync = free_async;
	hm->driver.cuCtxSynchronize = synchronize;
	hm->driver.cuMemFree = mem_free;
	hm->driver.cuMemHostUnregister = unregister;
}

static void use(void *p, CUstream s)
{
	struct hm_soft_range r = { (uintptr_t)p, SIZE, -1 };

	need(!hm->soft->launch(s, "a kernel", &r, 1, 0), "a kernel");
}

/* As cuStreamDestroy(), and cuStreamCreate() with the same result. */
static void pass_handle_on(CUstream to)
{
	now = to;
	nr_on_now = 0;
	nr_syncs = 0;
}

static void make(const char *spec)
{
	need(!hetmem_resource_create(hm, spec, &pool), "%s: %s", spec, hetmem_last_error());
	handle = new_stream();
	now = NULL;
}

static void end(const char *spec, CUstream other)
{
	is(hetmem_resource_destroy(pool), 0, "%s: nothing is live", spec);
	drv->cuStreamDestroy(handle);
	drv->cuStreamDestroy(other);
	now = NULL;
	handle = NULL;
}

/* @seen: the other stream has been named before the free. */
static void lost(const char *spec, bool seen)
{
	CUstream other = new_stream();
	void *p, *q;

	make(spec);
	p = get(SIZE, handle);
	close_gate(handle);
	use(p, handle);
	pass_handle_on(other);
	if (seen) {
		q = get(SIZE, handle);
		put(q, SIZE, handle);
	}
	nr_on_now = 0;
	put(p, SIZE, HETMEM_STREAM_UNKNOWN);
	is(hetmem_poll(pool), 0, "%s: poll", spec);
	is(nr_on_now, 0, "%s: nothing is done on a stream that only has the handle", spec);
	is(nr_syncs, 0, "%s: and no free waits", spec);
	is(hetmem_trim(pool, 0, NULL), 0, "%s: trim", spec);
	/* The first of them opens the gate, and check mode knows whether all is complete. */
	p = get(SIZE, other);
	use(p, other);
	put(p, SIZE, other);
	open_gate();
	end(spec, other);
}

/*
 * The stream is destroyed, and its handle used again, between two calls of the driver by
 * one call of ours.
 */
static void lost_between(const char *spec, unsigned int ids, bool poll)
{
	CUstream other = new_stream();
	void *p;

	make(spec);
	p = get(SIZE, handle);
	close_gate(handle);
	use(p, handle);
	nr_freed_on_now = 0;
	next = other;
	ids_until_reuse = ids;
	put(p, SIZE, HETMEM_STREAM_UNKNOWN);
	if (poll)
		is(hetmem_poll(pool), 0, "%s: poll", spec);
	/* Check mode knows whether the memory is free. */
	p = get(SIZE, other);
	use(p, other);
	put(p, SIZE, other);
	open_gate();
	is(hetmem_trim(pool, 0, NULL), 0, "%s: trim, after %u ids", spec, ids);
	is(nr_freed_on_now, 0, "%s: nothing is freed on the new stream", spec);
	ids_until_reuse = 0;
	end(spec, other);
}

/* The tail of a stream that was retired is known. */
static void retired(const char *spec)
{
	CUstream other = new_stream();
	void *p;

	make(spec);
	p = get(SIZE, handle);
	close_gate(handle);
	use(p, handle);
	is(hetmem_stream_retire(pool, handle), 0, "%s: retired", spec);
	pass_handle_on(other);
	put(p, SIZE, HETMEM_STREAM_UNKNOWN);
	is(hetmem_poll(pool), 0, "%s: poll", spec);
	is(nr_on_now, 0, "%s: nothing is done on its handle then", spec);
	open_gate();
	p = get(SIZE, other);
	use(p, other);
	put(p, SIZE, other);
	is(hetmem_trim(pool, 0, NULL), 0, "%s: trim", spec);
	is(nr_syncs, 0, "%s: no context is synchronized", spec);
	end(spec, other);
}

/* A block of @own that @handle uses when the gate opens, which is recorded. */
static void *get_recorded(const char *spec, CUstream own)
{
	void *p;

	make(spec);
	p = get(SIZE, own);
	is(hetmem_record_stream(pool, p, handle), 0, "%s: recorded", spec);
	close_gate(handle);
	use(p, handle);
	return p;
}

/* The same of a use that was recorded. */
static void recorded(const char *spec, bool retire)
{
	CUstream other = new_stream(), own = new_stream();
	void *p;

	p = get_recorded(spec, own);
	if (retire)
		is(hetmem_stream_retire(pool, handle), 0, "%s: retired", spec);
	pass_handle_on(other);
	put(p, SIZE, own);
	is(hetmem_poll(pool), 0, "%s: poll", spec);
	is(nr_on_now, 0, "%s: nothing is done on a stream that only has the handle", spec);
	if (retire)
		open_gate();
	is(hetmem_trim(pool, 0, NULL), 0, "%s: trim", spec);
	p = get(SIZE, other);
	use(p, other);
	put(p, SIZE, other);
	open_gate();
	if (retire)
		is(nr_syncs, 0, "%s: no context is synchronized", spec);
	end(spec, other);
	drv->cuStreamDestroy(own);
}

/* A free records the streams: those may be destroyed then without retire. */
static void freed_before(const char *spec)
{
	CUstream other = new_stream(), own = new_stream();
	void *p;

	p = get_recorded(spec, own);
	put(p, SIZE, own);
	pass_handle_on(other);
	is(hetmem_poll(pool), 0, "%s: poll", spec);
	open_gate();
	is(hetmem_trim(pool, 0, NULL), 0, "%s: trim", spec);
	p = get(SIZE, other);
	use(p, other);
	put(p, SIZE, other);
	is(nr_on_now, 0, "%s: an event of the free is behind a stream that is destroyed then",
	   spec);
	is(nr_syncs, 0, "%s: no context is synchronized", spec);
	end(spec, other);
	drv->cuStreamDestroy(own);
}

/* An event that could not be recorded at the free is recorded later. */
static void recorded_later(const char *spec)
{
	CUstream own = new_stream(), other = new_stream();
	unsigned int tries;
	uint64_t one;
	void *p;

	make(spec);
	p = get(SIZE, own);
	one = pool_stats().reserved;
	soft_rules("cuEventRecord:1=CUDA_ERROR_UNKNOWN", NULL);
	close_gate(own);
	put(p, SIZE, own);
	soft_rules(NULL, NULL);
	open_gate();
	for (tries = 0; tries < 10; tries++) {
		need(!drv->cuStreamSynchronize(own), "its work, and the event");
		p = get(SIZE, HETMEM_STREAM_HOST);
		put(p, SIZE, HETMEM_STREAM_HOST);
		if (pool_stats().reserved <= one)
			break;
	}
	ok(tries < 10, "%s: an event that failed is recorded later", spec);
	end(spec, other);
	drv->cuStreamDestroy(own);
}

/* A block that is allocated while its stream is captured has no stream to ask. */
static void captured(const char *spec)
{
	const bool one = strstr(spec, "count=1)");
	CUstream other = new_stream();
	void *p, *q = NULL;
	CUgraph graph;

	make(spec);
	drv->cuStreamBeginCapture(handle, CU_STREAM_CAPTURE_MODE_GLOBAL);
	p = get(SIZE, handle);
	if (!one)
		q = get(SIZE, handle);
	is(hetmem_free(pool, p, SIZE, HETMEM_STREAM_UNKNOWN), -EBUSY,
	   "%s: not freed while it is captured: %s", spec, hetmem_last_error());
	is(hetmem_record_stream(pool, p, handle), 0, "%s: recorded there", spec);
	is(hetmem_free(pool, p, SIZE, HETMEM_STREAM_HOST), -EBUSY,
	   "%s: not freed elsewhere either: %s", spec, hetmem_last_error());
	is(drv->cuStreamEndCapture(handle, &graph), 0, "%s: the capture is valid", spec);
	drv->cuGraphDestroy(graph);
	close_gate(handle);
	use(p, handle);
	pass_handle_on(other);
	put(p, SIZE, HETMEM_STREAM_UNKNOWN);
	is(hetmem_poll(pool), 0, "%s: poll", spec);
	is(nr_on_now, 0, "%s: nothing is done on its handle", spec);
	is(hetmem_trim(pool, 0, NULL), 0, "%s: trim", spec);
	p = get(SIZE, other);
	use(p, other);
	put(p, SIZE, other);
	ok(nr_syncs, "%s: the context was synchronized", spec);
	if (q) {
		/* That says nothing of what the stream is given after it. */
		now = NULL;
		close_gate(handle);
		use(q, handle);
		pass_handle_on(other);
		put(q, SIZE, HETMEM_STREAM_UNKNOWN);
		is(hetmem_poll(pool), 0, "%s: poll", spec);
		is(hetmem_trim(pool, 0, NULL), 0, "%s: trim", spec);
		ok(nr_syncs, "%s: it was synchronized again", spec);
	}
	end(spec, other);
}

/* A thread frees a block of a stream that another thread retires. */

static pthread_t retiring;
static bool is_retired;
static pid_t retiring_tid;
static unsigned int early;

static void *retire(void *s)
{
	__atomic_store_n(&retiring_tid, gettid(), __ATOMIC_RELEASE);
	need(!hetmem_stream_retire(pool, s), "retired: %s", hetmem_last_error());
	__atomic_store_n(&is_retired, true, __ATOMIC_RELEASE);
	return NULL;
}

static CUresult free_and_retire(CUdeviceptr ptr, CUstream s)
{
	need(!pthread_create(&retiring, NULL, retire, s), "a thread");
	/* It gets through, or waits. */
	wait_until(__atomic_load_n(&is_retired, __ATOMIC_ACQUIRE) ||
		   (__atomic_load_n(&retiring_tid, __ATOMIC_ACQUIRE) &&
		    thread_sleeps(getpid(), retiring_tid)));
	early += __atomic_load_n(&is_retired, __ATOMIC_ACQUIRE);
	return real.cuMemFreeAsync(ptr, s);
}

static void retired_meanwhile(void)
{
	CUstream s;
	void *p;

	make("async");
	s = new_stream();
	p = get(SIZE, s);
	hm->driver.cuMemFreeAsync = free_and_retire;
	put(p, SIZE, s);
	hm->driver.cuMemFreeAsync = free_async;
	pthread_join(retiring, NULL);
	is(early, 0, "no stream is retired while the driver frees memory on it");
	ok(is_retired, "but then");
	end("async", s);
}

int main(void)
{
	static const char *const specs[] = {
		"pool(vmm)", "pool(device)", "device", "managed", "async", "pinned",
		"system(device=0)", "host", "fixed(pool(vmm),size=64K,count=1)",
		"fixed(pool(host),size=64K,count=1)",
	};
	unsigned int i, ids;

	setenv("HETMEM_SOFT_CHECK", "1", 1);
	hang_limit(true);
	open_soft("");
	play_reuse();
	for (i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
		const bool one = strstr(specs[i], "count=1)");

		lost(specs[i], false);
		if (!one)
			lost(specs[i], true);
		for (ids = 1; ids <= 4; ids++) {
			lost_between(specs[i], ids, false);
			lost_between(specs[i], ids, true);
		}
		retired(specs[i]);
		recorded(specs[i], true);
		recorded(specs[i], false);
		if (!strstr(specs[i], "pool(") && strcmp(specs[i], "async"))
			captured(specs[i]);
		if (strncmp(specs[i], "pool(", 5))
			freed_before(specs[i]);
		if (!strcmp(specs[i], "device") || !strcmp(specs[i], "managed"))
			recorded_later(specs[i]);
	}
	captured("fixed(pool(vmm),size=64K,count=1)");
	retired_meanwhile();
	close_soft();
	return tap_end();
}
