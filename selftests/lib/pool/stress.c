// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The pool under load: random sizes on several streams, whose work writes and
 * checks every block in stream order; many threads; blocks that other threads
 * free; fork; every call of the driver failing in turn.
 */
#include <sys/wait.h>

#include "driver/calls.h"
#include "pool.h"
#include "provider/regions.h"

#define SLOTS	48
#define THREADS	4
#define ROUNDS	1500

static int mismatches;

struct mark {
	unsigned char *ptr;
	size_t size;
	unsigned char value;
	bool check;
};

/* On the stream: what a kernel would do with the block. */
static void use_block(void *data)
{
	struct mark *m = data;
	size_t step = m->size > 4096 ? m->size / 16 : 1, i;

	for (i = 0; i < m->size; i += step) {
		if (m->check && m->ptr[i] != m->value)
			__atomic_add_fetch(&mismatches, 1, __ATOMIC_RELAXED);
		m->ptr[i] = m->value;
	}
	free(m);
}

static void launch(CUstream stream, void *ptr, size_t size,
		   unsigned char value, bool check)
{
	struct mark *m = malloc(sizeof(*m));

	need(m, "memory");
	*m = (struct mark){ ptr, size, value, check };
	need(!drv->cuLaunchHostFunc(stream, use_block, m), "a kernel");
}

static unsigned int next(unsigned int *seed)
{
	*seed = *seed * 1664525 + 1013904223;
	return *seed >> 8;
}

static size_t random_size(unsigned int *seed)
{
	static const size_t tops[] = { 600, 5000, 100000, 3000000, 20000000 };

	return 1 + next(seed) % tops[next(seed) % 5];
}

struct slot {
	void *ptr;
	size_t size;
	unsigned char value;
	unsigned int stream;
};

/* One thread's; all blocks of a slot are used on its stream or, recorded, on another. */
static void churn(CUstream *streams, unsigned int nr, unsigned int seed,
		  unsigned int rounds)
{
	struct slot slots[SLOTS] = { 0 };
	unsigned int i, s;

	for (i = 0; i < rounds; i++) {
		struct slot *slot = &slots[next(&seed) % SLOTS];

		if (slot->ptr) {
			launch(streams[slot->stream], slot->ptr, slot->size,
			       slot->value, true);
			s = next(&seed) % nr;
			if (s != slot->stream && next(&seed) % 4 == 0) {
				/* Reading elsewhere, ordered by an event. */
				CUevent e;

				need(!drv->cuEventCreate(&e, 0) &&
				     !drv->cuEventRecord(e,
						streams[slot->stream]) &&
				     !drv->cuStreamWaitEvent(streams[s], e, 0),
				     "an order");
				drv->cuEventDestroy(e);
				launch(streams[s], slot->ptr, slot->size,
				       slot->value, true);
				need(!hetmem_record_stream(pool, slot->ptr,
							   streams[s]),
				     "record: %s", hetmem_last_error());
			}
			put(slot->ptr, next(&seed) % 2 ? slot->size : 0,
			    streams[slot->stream]);
			slot->ptr = NULL;
			continue;
		}
		slot->size = random_size(&seed);
		slot->stream = next(&seed) % nr;
		slot->value = next(&seed);
		if (hetmem_alloc(pool, slot->size, 0, streams[slot->stream],
				 &slot->ptr)) {
			slot->ptr = NULL;
			continue;
		}
		launch(streams[slot->stream], slot->ptr, slot->size,
		       slot->value, false);
	}
	for (i = 0; i < SLOTS; i++)
		if (slots[i].ptr)
			put(slots[i].ptr, slots[i].size,
			    streams[slots[i].stream]);
}

static void make_streams(CUstream *streams, unsigned int nr)
{
	unsigned int i;

	for (i = 0; i < nr; i++)
		need(!drv->cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING),
		     "a stream");
}

static void drop_streams(CUstream *streams, unsigned int nr)
{
	unsigned int i;

	for (i = 0; i < nr; i++)
		drv->cuStreamDestroy(streams[i]);
}

static void order(const char *provider, unsigned int nr, uint64_t max)
{
	struct hm_pool_options opt = { .max = max, .wait_ms = 5000 };
	CUstream streams[4];

	make_streams(streams, nr);
	make_pool(provider, &opt);
	churn(streams, nr, nr * 77 + max, 4 * ROUNDS);
	is(mismatches, 0, "%s: %u streams, at most %llu MiB: nobody's block was written by another",
	   provider, nr, (unsigned long long)(max >> 20));
	if (max)
		ok(pool_stats().reserved_peak <= max, "%s: within its limit",
		   provider);
	drv->cuCtxSynchronize();
	hetmem_poll(pool);
	is(hetmem_resource_destroy(pool), 0, "%s: all is freed", provider);
	is(device_used(), 0, "%s: and given back", provider);
	drop_streams(streams, nr);
}

static void tiny_reservation(void)
{
	struct hm_pool_options opt = { .reserve = 96 * MIB, .wait_ms = 5000 };
	CUstream streams[2];

	make_streams(streams, 2);
	make_pool("vmm", &opt);
	churn(streams, 2, 4711, 6 * ROUNDS);
	is(mismatches, 0, "a tiny reservation: contents");
	ok(pool_stats().allocs > 1000, "a tiny reservation: %llu blocks",
	   (unsigned long long)pool_stats().allocs);
	drv->cuCtxSynchronize();
	is(hetmem_resource_destroy(pool), 0, "a tiny reservation: freed");
	is(device_used(), 0, "a tiny reservation: given back");
	drop_streams(streams, 2);
}

static CUcontext context;

static void *thread(void *arg)
{
	unsigned int seed = (uintptr_t)arg;
	CUstream stream;

	drv->cuCtxSetCurrent(context);
	make_streams(&stream, 1);
	churn(&stream, 1, seed, ROUNDS);
	hetmem_stream_retire(pool, stream);
	drv->cuStreamDestroy(stream);
	return NULL;
}

static void threads(const char *provider, bool retired)
{
	struct hm_pool_options opt = { .retired = retired, .wait_ms = 5000 };
	pthread_t t[THREADS];
	uintptr_t i;

	make_pool(provider, &opt);
	drv->cuCtxGetCurrent(&context);
	for (i = 0; i < THREADS; i++)
		need(!pthread_create(&t[i], NULL, thread, (void *)(i + 1)),
		     "a thread");
	for (i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	is(mismatches, 0, "%s: threads, a stream each", provider);
	is(pool_stats().live, 0, "%s: threads: all freed", provider);
	hetmem_resource_destroy(pool);
	is(device_used(), 0, "%s: threads: given back", provider);
}

/* A ring of blocks that the other thread frees, on the same stream. */
#define RING	64
static void *ring[RING];
static CUstream shared;
static int ring_errors;

static void *consumer(void *arg)
{
	unsigned int i;
	void *p;

	(void)arg;
	drv->cuCtxSetCurrent(context);
	for (i = 0; i < 20 * ROUNDS; i++) {
		while (!(p = __atomic_exchange_n(&ring[i % RING], NULL,
						 __ATOMIC_ACQUIRE)))
			sched_yield();
		if (hetmem_free(pool, p, 0, shared))
			__atomic_add_fetch(&ring_errors, 1, __ATOMIC_RELAXED);
	}
	return NULL;
}

static void cross_thread(const char *provider)
{
	unsigned int i, seed = 3;
	pthread_t t;
	void *p;

	make_streams(&shared, 1);
	make_pool(provider, NULL);
	need(!pthread_create(&t, NULL, consumer, NULL), "a thread");
	for (i = 0; i < 20 * ROUNDS; i++) {
		p = get(1 + next(&seed) % 30000, shared);
		while (__atomic_load_n(&ring[i % RING], __ATOMIC_RELAXED))
			sched_yield();
		__atomic_store_n(&ring[i % RING], p, __ATOMIC_RELEASE);
	}
	pthread_join(t, NULL);
	is(ring_errors, 0, "%s: another thread frees", provider);
	is(pool_stats().live, 0, "%s: all", provider);
	hetmem_resource_destroy(pool);
	drop_streams(&shared, 1);
}

static void in_child(const char *provider)
{
	void *p, *q;
	int status;
	pid_t pid;

	make_pool(provider, NULL);
	p = get(1000, NULL);
	fflush(stdout);
	pid = fork();
	if (!pid) {
		struct hetmem_resource_stats s = { .size = sizeof(s) };

		_exit(hetmem_alloc(pool, 1, 0, NULL, &q) != -EOWNERDEAD ? 1 :
		      hetmem_free(pool, p, 0, NULL) != -EOWNERDEAD ? 2 :
		      hetmem_resource_stats(pool, &s) != -EOWNERDEAD ? 3 :
		      hetmem_resource_destroy(pool) ? 4 : 0);
	}
	need(pid > 0 && waitpid(pid, &status, 0) == pid, "a child");
	is(status, 0, "%s: a child is told, and only forgets", provider);
	put(p, 1000, NULL);
	is(hetmem_resource_destroy(pool), 0, "%s: the parent goes on",
	   provider);
}

static bool stop_churning;

static void *host_churn(void *arg)
{
	unsigned int seed = (uintptr_t)arg;
	void *p;

	while (!__atomic_load_n(&stop_churning, __ATOMIC_RELAXED)) {
		p = NULL;
		if (!hetmem_alloc(pool, random_size(&seed) / 8 + 1, 0,
				  HETMEM_STREAM_HOST, &p))
			hetmem_free(pool, p, 0, HETMEM_STREAM_HOST);
	}
	return NULL;
}

/* Whatever other threads do: the child finds a pool that works. */
static void host_child(void)
{
	struct hm_provider *provider;
	pthread_t t[2];
	int status, bad = 0;
	uintptr_t i;
	char *p, *q;
	pid_t pid;

	need(!hm_host_provider(hm, &provider) &&
	     !hm_pool_create(provider, NULL, &pool), "a pool of host memory");
	for (i = 0; i < 2; i++)
		need(!pthread_create(&t[i], NULL, host_churn, (void *)(i + 1)),
		     "a thread");
	p = get(5000, HETMEM_STREAM_HOST);
	memset(p, 7, 5000);
	fflush(stdout);
	for (i = 0; i < 20; i++) {
		pid = fork();
		if (!pid) {
			hang_limit(true);
			q = get(300000, HETMEM_STREAM_HOST);
			memset(q, 8, 300000);
			put(q, 300000, HETMEM_STREAM_HOST);
			_exit(!all_bytes(p, 7, 5000) ||
			      hetmem_free(pool, p, 5000, HETMEM_STREAM_HOST));
		}
		need(pid > 0 && waitpid(pid, &status, 0) == pid, "a child");
		bad += !!status;
	}
	is(bad, 0, "host: children go on with their own copy");
	__atomic_store_n(&stop_churning, true, __ATOMIC_RELAXED);
	for (i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	put(p, 5000, HETMEM_STREAM_HOST);
	is(hetmem_resource_destroy(pool), 0, "host: and so does the parent");
}

static bool scenario(const char *provider, const struct hm_pool_options *opt)
{
	CUstream streams[2];
	unsigned int i, seed = 9;
	void *p[40] = { 0 };
	bool failed = false;
	size_t freed;

	if (try_pool(provider, opt))
		return true;
	if (drv->cuStreamCreate(&streams[0], 1))
		streams[0] = NULL;
	if (drv->cuStreamCreate(&streams[1], 1))
		streams[1] = NULL;
	for (i = 0; i < 400; i++) {
		unsigned int at = next(&seed) % 40;
		CUstream s = streams[at % 2];

		if (p[at]) {
			/* A stream may be unknown to a failing driver. */
			if (!hetmem_free(pool, p[at], 0, s))
				p[at] = NULL;
			else
				failed = true;
		} else if (hetmem_alloc(pool, random_size(&seed), 0, s,
					&p[at])) {
			p[at] = NULL;
			failed = true;
		}
		if (i % 100 == 99)
			hetmem_trim(pool, 0, &freed);
	}
	for (i = 0; i < 40; i++)
		while (p[i] && hetmem_free(pool, p[i], 0, streams[i % 2]))
			failed = true;
	for (i = 0; i < 2; i++) {
		hetmem_stream_retire(pool, streams[i]);
		if (streams[i])
			drv->cuStreamDestroy(streams[i]);
	}
	if (hetmem_resource_destroy(pool))
		failed = true;
	return failed;
}

/* Those that the pool calls; the nth of each fails, n = 1, 2, 3, 10, 50. */
static void failures(const char *provider)
{
	static const char *const calls[] = {
		"cuMemAlloc", "cuMemFree", "cuMemAddressReserve",
		"cuMemAddressFree", "cuMemCreate", "cuMemRelease", "cuMemMap",
		"cuMemUnmap", "cuMemSetAccess", "cuEventCreate",
		"cuEventRecord", "cuEventQuery", "cuStreamWaitEvent",
		"cuStreamGetId", "cuStreamGetCtx", "cuCtxGetCurrent",
		"cuCtxSetCurrent", "cuStreamIsCapturing",
		"cuMemGetAllocationGranularity", "cuDeviceGetAttribute",
	};
	static const int nth[] = { 1, 2, 3, 10, 50 };
	struct hm_pool_options opt = { .max = 96 * MIB, .wait_ms = 50 };
	unsigned int i, j, leaks = 0, failed = 0;
	char rule[64];

	for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		for (j = 0; j < 5; j++) {
			snprintf(rule, sizeof(rule), "%s:%d", calls[i],
				 nth[j]);
			need(!soft_rules(rule, NULL), "rule %s", rule);
			failed += scenario(provider, &opt);
			soft_rules(NULL, NULL);
			if (device_used()) {
				leaks++;
				printf("# %s leaves %zu bytes\n", rule,
				       device_used());
			}
		}
	}
	ok(failed > 3, "%s: %u failures were told", provider, failed);
	is(leaks, 0, "%s: nothing leaks when a call fails", provider);
}

/* What the driver reports as not freed, when it is closed. */
static long stderr_bytes(void)
{
	fflush(stderr);
	return lseek(STDERR_FILENO, 0, SEEK_END);
}

int main(void)
{
	static const char *const providers[] = { "device", "vmm" };
	char name[] = "/tmp/hetmem-pool-XXXXXX";
	int i, fd, saved;

	setenv("HETMEM_SOFT_MEMORY", "1G", 1);
	setenv("HETMEM_SOFT_DEBUG", "1", 1);
	open_soft("");
	for (i = 0; i < 2; i++) {
		order(providers[i], 1, 0);
		order(providers[i], 3, 0);
		order(providers[i], 3, 128 * MIB);
		threads(providers[i], false);
		threads(providers[i], true);
		cross_thread(providers[i]);
		in_child(providers[i]);
		failures(providers[i]);
	}
	tiny_reservation();
	host_child();
	fd = mkstemp(name);
	need(fd >= 0, "a file");
	unlink(name);
	saved = dup(STDERR_FILENO);
	dup2(fd, STDERR_FILENO);
	close_soft();
	is(stderr_bytes(), 0, "no handle, mapping or address range is left");
	dup2(saved, STDERR_FILENO);
	return tap_end();
}
