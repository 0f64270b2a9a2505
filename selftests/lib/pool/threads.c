// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The pool, streams and several threads: streams that are a thread's own,
 * handles that are numbers, what one thread frees for another, frees while the
 * stream is retired, a cache that two threads fill.
 */
#include "pool_gate.h"

/*
 * What a thread frees on its own stream has the handle of another stream
 * wherever else it is looked at.
 */
static CUcontext context;

static void *free_held_up(void *arg)
{
	void **p = arg;

	drv->cuCtxSetCurrent(context);
	*p = get(3 * MIB, CU_STREAM_PER_THREAD);
	close_gate(CU_STREAM_PER_THREAD);
	put(*p, 3 * MIB, CU_STREAM_PER_THREAD);
	return NULL;
}

static void threads_own(const char *provider, CUstream by)
{
	struct hm_pool_options opt = {
		.max = 32 * MIB, .wait_ms = 50, .reuse_order = true,
	};
	pthread_t thread;
	void *p, *q;

	make_pool(provider, &opt);
	drv->cuCtxGetCurrent(&context);
	put(get(512, by), 512, by);
	need(!pthread_create(&thread, NULL, free_held_up, &p), "a thread");
	pthread_join(thread, NULL);
	nr_waits = 0;
	q = get(3 * MIB, by);
	ok(q == p, "%s, on %p: what another thread freed on its own stream",
	   provider, by);
	is(nr_waits, 1, "%s, on %p: behind an event", provider, by);
	ok(is_held_up(by), "%s, on %p: of that thread", provider, by);
	open_gate();
	ok(gets_through(by), "%s, on %p: until it is complete", provider, by);
	put(q, 0, by);
	is(hetmem_resource_destroy(pool), 0, "%s, on %p: nothing is left",
	   provider, by);
}

/* What NULL means depends on the context, which the pool's need not be. */
static void no_context(const char *provider)
{
	struct hm_pool_options opt = {
		.max = 32 * MIB, .wait_ms = 50, .reuse_order = true,
	};
	CUstream a = new_stream();
	CUcontext before;
	void *p, *q;

	make_pool(provider, &opt);
	drv->cuCtxGetCurrent(&before);
	put(get(512, a), 512, a);
	close_gate(a);
	p = get(3 * MIB, a);
	put(p, 3 * MIB, a);
	drv->cuCtxSetCurrent(NULL);
	q = get(3 * MIB, NULL);
	ok(q == p, "%s: no context: another stream's", provider);
	put(q, 0, NULL);
	q = get(3 * MIB, a);
	put(q, 0, a);
	drv->cuCtxSetCurrent(before);
	open_gate();
	ok(gets_through(NULL), "%s: no context: in order", provider);
	hetmem_resource_destroy(pool);
	drv->cuStreamDestroy(a);
}

/* A driver that tells no ids: handles that are numbers are streams, too. */
static void no_ids(const char *provider, CUstream first)
{
	struct hm_pool_options opt = {
		.max = 32 * MIB, .wait_ms = 50, .reuse_order = true,
	};
	CUstream a = new_stream();
	void *p, *q;

	hm->driver.cuStreamGetId = NULL;
	make_pool(provider, &opt);
	p = get(3 * MIB, first);
	close_gate(first);
	put(p, 3 * MIB, first);
	q = get(3 * MIB, a);
	ok(q == p, "%s, on %p: no ids: another stream's", provider, first);
	ok(is_held_up(a), "%s, on %p: no ids: is ordered", provider, first);
	open_gate();
	put(q, 0, a);
	is(hetmem_resource_destroy(pool), 0, "%s, on %p: no ids: nothing left",
	   provider, first);
	hm->driver.cuStreamGetId = real.cuStreamGetId;
	drv->cuStreamDestroy(a);
}

struct remote_free {
	void *ptr;
	size_t size;
	CUstream stream;
};

static void *free_remotely(void *arg)
{
	struct remote_free *r = arg;

	put(r->ptr, r->size, r->stream);
	return NULL;
}

/*
 * Freed by another thread than the one that allocates there, and the stream is
 * retired before anybody has collected it: the work behind it is still under way.
 */
static void retire_remote(const char *provider)
{
	const size_t size = 64 << 10;
	CUstream a = new_stream(), b = new_stream();
	struct remote_free r = { .size = size };
	pthread_t thread;
	void *p, *q;

	make_pool(provider, NULL);
	put(get(4 * size, a), 4 * size, a);
	put(get(size, b), size, b);
	is(hetmem_stream_retire(pool, b), 0, "%s: retire", provider);
	drv->cuStreamDestroy(b);
	drv->cuCtxSynchronize();
	hetmem_poll(pool);
	/* In the place of the one that has gone: its end is complete. */
	b = new_stream();
	put(get(size, b), size, b);
	is(hetmem_stream_retire(pool, b), 0, "%s: again", provider);
	drv->cuStreamDestroy(b);
	drv->cuCtxSynchronize();
	hetmem_poll(pool);
	b = new_stream();
	p = get(size, b);
	close_gate(b);
	r.ptr = p;
	r.stream = b;
	need(!pthread_create(&thread, NULL, free_remotely, &r), "a thread");
	pthread_join(thread, NULL);
	is(hetmem_stream_retire(pool, b), 0, "%s: with a remote free", provider);
	nr_waits = 0;
	q = get(size, a);
	ok(q != p || nr_waits, "%s: what is under way is not complete", provider);
	open_gate();
	drv->cuCtxSynchronize();
	put(q, size, a);
	hetmem_resource_destroy(pool);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

/*
 * The same while the stream is being retired: at a call of the driver that
 * this takes, another thread gives the stream work and frees behind it. It
 * must get through at once or be waited for.
 */
static struct {
	struct remote_free free;
	bool armed;
	bool go;
	bool done;
	bool on_record;
	pid_t tid;
} race;

static void *free_in_race(void *arg)
{
	struct remote_free *r = arg;

	race.tid = gettid();
	drv->cuCtxSetCurrent(context);
	/* Looked up before, and remembered. */
	put(get(512, r->stream), 512, r->stream);
	pthread_mutex_lock(&lock);
	while (!race.go)
		pthread_cond_wait(&opened, &lock);
	is_open = false;
	pthread_mutex_unlock(&lock);
	drv->cuLaunchHostFunc(r->stream, wait_for_gate, NULL);
	put(r->ptr, r->size, r->stream);
	__atomic_store_n(&race.done, true, __ATOMIC_RELEASE);
	return NULL;
}

/* It goes, until it gets through or waits. */
static void let_race(void)
{
	pthread_mutex_lock(&lock);
	race.go = true;
	pthread_cond_broadcast(&opened);
	pthread_mutex_unlock(&lock);
	wait_until(__atomic_load_n(&race.done, __ATOMIC_ACQUIRE) ||
		   thread_sleeps(getpid(), race.tid));
}

static CUresult race_at_ctx(CUstream stream, CUcontext *ctx)
{
	if (race.armed && !race.on_record && !race.go)
		let_race();
	return real.cuStreamGetCtx(stream, ctx);
}

static CUresult race_at_record(CUevent event, CUstream stream)
{
	CUresult res = count_record(event, stream);

	if (race.armed && race.on_record && !race.go)
		let_race();
	return res;
}

/* Allocates all there is until it has some of [@p, @p + @size). */
static bool got_back(char *p, size_t size, CUstream stream)
{
	void *q;

	while (!hetmem_alloc(pool, size, 0, stream, &q))
		if ((char *)q < p + size && (char *)q + size > p)
			return true;
	return false;
}

static void retire_race(const char *provider, bool on_record)
{
	struct hm_pool_options opt = { .max = 32 * MIB, .wait_ms = 50 };
	const size_t size = 64 << 10;
	CUstream a = new_stream(), b = new_stream();
	const char *when = on_record ? "recorded" : "asked";
	pthread_t thread;
	bool got;
	void *p;

	make_pool(provider, &opt);
	drv->cuCtxGetCurrent(&context);
	put(get(4 * size, a), 4 * size, a);
	p = get(size, b);
	memset(&race, 0, sizeof(race));
	race.free = (struct remote_free){ p, size, b };
	race.on_record = on_record;
	hm->driver.cuStreamGetCtx = race_at_ctx;
	hm->driver.cuEventRecord = race_at_record;
	need(!pthread_create(&thread, NULL, free_in_race, &race.free), "a thread");
	while (pool_stats().frees < 2)
		sched_yield();
	/* The end that is known so far is complete, or there is none. */
	drv->cuCtxSynchronize();
	if (!on_record)
		hetmem_trim(pool, SIZE_MAX / 2, NULL);
	get(512, b);
	race.armed = true;
	is(hetmem_stream_retire(pool, b), 0, "%s: retired, and when it is %s another thread frees",
	   provider, when);
	pthread_join(thread, NULL);
	hm->driver.cuStreamGetCtx = real.cuStreamGetCtx;
	hm->driver.cuEventRecord = count_record;
	hetmem_poll(pool);
	nr_waits = 0;
	got = got_back(p, size, a);
	ok(!got || nr_waits, "%s, %s: what is under way is not complete",
	   provider, when);
	open_gate();
	drv->cuCtxSynchronize();
	ok(got || got_back(p, size, a), "%s, %s: nor is it lost", provider, when);
	hetmem_resource_destroy(pool);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

/* Two threads whose frees on one stream overflow its cache. */
static void *fill_cache(void *stream)
{
	void *p[16];
	unsigned int i, j;

	for (i = 0; i < 64; i++) {
		for (j = 0; j < 16; j++)
			p[j] = get(4096, stream);
		for (j = 0; j < 16; j++)
			put(p[j], 4096, stream);
	}
	return NULL;
}

static void full_cache(const char *provider)
{
	struct hm_pool_options opt = { .cache = 32 << 10 };
	CUstream a = new_stream();
	pthread_t threads[2];
	unsigned int i;

	make_pool(provider, &opt);
	for (i = 0; i < 2; i++)
		need(!pthread_create(threads + i, NULL, fill_cache, a),
		     "a thread");
	for (i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	is(hetmem_resource_destroy(pool), 0, "%s: two threads and a full cache",
	   provider);
	drv->cuStreamDestroy(a);
}

static void all(const char *provider)
{
	CUstream other = new_stream();

	retire_remote(provider);
	retire_race(provider, false);
	retire_race(provider, true);
	threads_own(provider, CU_STREAM_PER_THREAD);
	threads_own(provider, other);
	no_context(provider);
	no_ids(provider, NULL);
	no_ids(provider, CU_STREAM_PER_THREAD);
	full_cache(provider);
	drv->cuStreamDestroy(other);
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
	close_soft();
	return tap_end();
}
