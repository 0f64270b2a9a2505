// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * watermark(): when it calls the program, and what the function may do: free, trim, allocate,
 * change the adaptor, destroy another pool, take long. Nothing is called below the watermark,
 * during a capture, or again within every=. All ways that make memory come to it.
 */
#include <sys/wait.h>

#include "below.h"
#include "by_spec.h"
#include "driver_calls.h"

#define MIB	((size_t)1 << 20)
#define HOST	HETMEM_STREAM_HOST
#define BLOCKS	64

/* What the function does, and what it was told. */
struct asked {
	struct hetmem_resource *res;
	unsigned int calls, at_once, nested;
	struct hetmem_pressure last;
	void (*act)(struct asked *asked);
	void *blocks[BLOCKS];
	unsigned int nr;
	bool good;
};

static void on_pressure(void *data, const struct hetmem_pressure *pressure)
{
	struct asked *a = data;

	if (__atomic_add_fetch(&a->at_once, 1, __ATOMIC_SEQ_CST) != 1)
		__atomic_add_fetch(&a->nested, 1, __ATOMIC_SEQ_CST);
	a->last = *pressure;
	a->calls++;
	if (a->act)
		a->act(a);
	__atomic_sub_fetch(&a->at_once, 1, __ATOMIC_SEQ_CST);
}

static void ask(struct asked *a, struct hetmem_resource *res, void (*act)(struct asked *asked))
{
	*a = (struct asked){ .res = res, .act = act };
	is(hetmem_on_pressure(res, on_pressure, a), 0, "a function");
}

static void put(struct hetmem_resource *res, void *p)
{
	need(!hetmem_free(res, p, 0, HOST), "free: %s", hetmem_last_error());
}

/* Keeps a block of @size bytes for the function. */
static bool keep(struct asked *a, size_t size)
{
	a->blocks[a->nr] = get(a->res, size, HOST);
	return a->blocks[a->nr++];
}

static void drop(struct asked *a)
{
	while (a->nr)
		put(a->res, a->blocks[--a->nr]);
}

static unsigned int pressures(int device)
{
	struct hetmem_memory_info info = { .size = sizeof(info) };

	need(!hetmem_memory_info(hm, device, &info), "%s", hetmem_last_error());
	return info.pressures;
}

static void end(struct hetmem_resource *res)
{
	is(hetmem_resource_destroy(res), 0, "nothing is left");
}

/* Exactly @at is held without a call; what is more calls first, and goes on. */
static void exact(const char *spec, size_t block, size_t at, int device)
{
	struct hetmem_resource *res = make(spec);
	unsigned int before = pressures(device), i;
	struct asked a;

	ask(&a, res, NULL);
	for (i = 0; i < at / block; i++)
		need(keep(&a, block), "a block");
	is(a.calls, 0, "%s: up to the watermark there is none", spec);
	is(stats(res).reserved, at, "all of which is held");
	ok(keep(&a, block), "beyond, the allocation goes on");
	is(a.calls, 1, "after a call");
	is(a.last.size, sizeof(a.last), "which is told its size");
	ok(a.last.bytes == block && a.last.held == at && a.last.at == at,
	   "why: %llu, %llu, %llu", (long long)a.last.bytes, (long long)a.last.held,
	   (long long)a.last.at);
	is(stats(res).pressures, 1, "counted");
	is(pressures(device), before + 1, "for the memory, too");
	ok(keep(&a, block), "one more");
	is(a.calls, 2, "every=0s: one more call");
	is(hetmem_on_pressure(res, NULL, NULL), 0, "no function");
	ok(keep(&a, block), "none is called");
	is(a.calls, 2, "then");
	drop(&a);
	end(res);
}

/* Regions of 8 MiB, and smaller ones where these would go beyond. */
static void generous(void)
{
	struct hetmem_resource *res = make("watermark(pool(device,handle=8M),at=20M,every=0s)");
	struct asked a;
	unsigned int i;

	ask(&a, res, NULL);
	for (i = 0; i < 10; i++)
		need(keep(&a, 2 * MIB), "a block");
	is(a.calls, 0, "memory in advance is no reason for a call");
	is(stats(res).reserved, 20 * MIB, "and is not made");
	drop(&a);
	end(res);
}

static void free_all(struct asked *a)
{
	drop(a);
}

/* What the function frees serves the allocation: no more memory is held. */
static void frees(const char *spec, size_t at)
{
	struct hetmem_resource *res = make(spec);
	unsigned int i, round;
	struct asked a;
	void *p;

	ask(&a, res, free_all);
	for (round = 1; round <= 3; round++) {
		for (i = 0; i < at / (2 * MIB); i++)
			need(keep(&a, 2 * MIB), "a block");
		is(a.calls, round - 1, "%s: no call yet", spec);
		p = get(res, 2 * MIB, HOST);
		ok(p && a.calls == round && !a.nr, "round %u: a call, which frees", round);
		ok(stats(res).reserved <= at, "%llu bytes are held", (long long)stats(res).reserved);
		put(res, p);
		p = get(res, at, HOST);
		ok(p, "all in one block");
		/* Free memory in pieces was given back, before the program was troubled. */
		is(a.calls, round, "without a call");
		put(res, p);
	}
	end(res);
}

/* Pools of which a block that is too large for max= comes to the watermark first. */
static void before_max(const char *spec)
{
	struct hetmem_resource *res = make(spec);
	struct asked a;
	void *p;

	ask(&a, res, free_all);
	need(keep(&a, 20 * MIB) && keep(&a, 20 * MIB), "blocks");
	p = get(res, 50 * MIB, HOST);
	ok(p && a.calls == 1, "%s: room is made, once", spec);
	put(res, p);
	is(hetmem_alloc(res, 65 * MIB, 0, HOST, &p), -ENOMEM, "more than there can be: %s",
	   hetmem_last_error());
	ok(a.calls <= 2, "is no reason for more than a call");
	end(res);
}

static void every(void)
{
	struct hetmem_resource *res = make("watermark(pool(vmm,handle=2M),at=16M,every=3600s)");
	struct asked a;
	unsigned int i;

	ask(&a, res, NULL);
	for (i = 0; i < 20; i++)
		need(keep(&a, 2 * MIB), "a block");
	is(a.calls, 1, "one call in every=");
	is(hetmem_resource_set(res, "every", "0s"), 0, "set");
	need(keep(&a, 2 * MIB), "a block");
	is(a.calls, 1, "which counts from the next call on");
	drop(&a);
	end(res);
}

static void get_more(struct asked *a)
{
	a->good = keep(a, 4 * MIB) && keep(a, 40 * MIB);
	a->good &= !hetmem_trim(a->res, 0, NULL) && !hetmem_poll(a->res);
}

static void change(struct asked *a)
{
	a->good = !hetmem_resource_set(a->res, "at", "80M") &&
		!hetmem_on_pressure(a->res, NULL, NULL);
}

static struct hetmem_resource *another;

static void destroy_another(struct asked *a)
{
	a->good = another && !hetmem_resource_destroy(another);
	another = NULL;
}

static void acts(void)
{
	struct hetmem_resource *res = make("watermark(pool(vmm),at=16M,every=0s)");
	struct asked a;
	void *p;

	ask(&a, res, get_more);
	need(keep(&a, 16 * MIB), "a block");
	p = get(res, 2 * MIB, HOST);
	ok(p && a.good && a.calls == 1, "a function that allocates is not called by itself");
	put(res, p);
	drop(&a);
	another = make("pool(vmm)");
	put(another, get(another, 8 * MIB, HOST));
	need(!hetmem_trim(res, 0, NULL), "trim");
	ask(&a, res, destroy_another);
	p = get(res, 40 * MIB, HOST);
	ok(p && a.good && a.calls == 1, "it may destroy another pool");
	put(res, p);
	need(!hetmem_trim(res, 0, NULL), "trim");
	ask(&a, res, change);
	p = get(res, 40 * MIB, HOST);
	ok(p && a.good && a.calls == 1, "and change the adaptor, and itself");
	put(res, p);
	need(!hetmem_trim(res, 0, NULL), "trim");
	ask(&a, res, NULL);
	p = get(res, 80 * MIB, HOST);
	ok(p && !a.calls, "the new watermark is in force");
	put(res, p);
	end(res);
}

/* Shares, of which total; changes. */
static void shares(void)
{
	struct hetmem_resource *res = make("watermark(stats(pool(vmm,max=40M,handle=2M)),at=50%,every=0s)");
	struct hetmem_resource *bad;
	struct asked a;
	unsigned int i;

	ask(&a, res, NULL);
	for (i = 0; i < 11; i++)
		need(keep(&a, 2 * MIB), "a block");
	is(a.calls, 1, "half of max=");
	is(a.last.at, 20 * MIB, "is the watermark");
	is(hetmem_resource_set(res, "max", "80M"), 0, "a larger max=");
	need(keep(&a, 2 * MIB), "a block");
	is(a.calls, 1, "moves it");
	is(hetmem_resource_set(res, "watermark.at", "25%"), 0, "a smaller share");
	need(keep(&a, 2 * MIB), "a block");
	is(a.calls, 2, "too");
	is(a.last.at, 20 * MIB, "to a quarter");
	is(hetmem_resource_set(res, "at", "0"), -EINVAL, "no watermark: %s", hetmem_last_error());
	is(hetmem_resource_set(res, "at", "101%"), -EINVAL, "too much: %s", hetmem_last_error());
	is(hetmem_resource_set(res, "at", "22M"), 0, "bytes");
	is(hetmem_resource_set(res, "max", "40M"), 0, "which max= does not move");
	need(keep(&a, 2 * MIB), "a block");
	is(a.last.at, 22 * MIB, "at all");
	drop(&a);
	end(res);
	res = make("watermark(fallback(pool(vmm,max=10M,handle=2M),pool(vmm,max=30M,handle=2M)),at=50%,every=0s)");
	ask(&a, res, NULL);
	for (i = 0; i < 11; i++)
		need(keep(&a, 2 * MIB), "a block");
	is(a.last.at, 20 * MIB, "several pools: of the sum");
	is(a.calls, 1, "together");
	drop(&a);
	end(res);
	res = make("watermark(device,at=50%)");
	ask(&a, res, NULL);
	need(keep(&a, 150 * MIB), "a block");
	is(a.last.at, 128 * MIB, "no pool: of the device");
	drop(&a);
	end(res);
	is(hetmem_resource_create(hm, "watermark(pool(vmm))", &bad), -EINVAL, "%s",
	   hetmem_last_error());
	is(hetmem_resource_create(hm, "watermark(pool(vmm),at=0%)", &bad), -EINVAL, "%s",
	   hetmem_last_error());
	is(hetmem_resource_create(hm, "watermark(vmm,at=5%)", &bad), -EINVAL, "%s",
	   hetmem_last_error());
	is(hetmem_resource_create(hm, "watermark(fallback(host,device),at=5%)", &bad), -EINVAL,
	   "%s", hetmem_last_error());
	res = make("pool(vmm)");
	is(hetmem_on_pressure(res, on_pressure, &a), -EOPNOTSUPP, "none in the stack: %s",
	   hetmem_last_error());
	end(res);
	is(hetmem_on_pressure(NULL, on_pressure, &a), -EINVAL, "no resource");
	/* min= was made before. */
	res = make("watermark(pool(vmm,min=16M,handle=2M),at=16M,every=0s)");
	ask(&a, res, NULL);
	need(keep(&a, 16 * MIB), "a block");
	is(a.calls, 0, "memory of min= counts as held");
	need(keep(&a, 2 * MIB), "a block");
	is(a.calls, 1, "so the next is beyond");
	drop(&a);
	end(res);
}

/* Growth, a wake, a fetch and a block with room. */
static void ways(void)
{
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = 8 * MIB, .reserve = 64 * MIB, .stream = HOST,
	};
	struct hetmem_resource *res = make("watermark(pool(vmm,spill=64M,handle=2M),at=20M,every=0s)");
	void *p, *q;
	struct asked a;

	ask(&a, res, NULL);
	is(hetmem_alloc_with(res, &params, &p), 0, "a block with room");
	is(a.calls, 0, "below");
	is(hetmem_grow(res, p, 30 * MIB, HOST), 0, "grows");
	is(a.calls, 1, "after a call");
	is(a.last.bytes, 30 * MIB, "which is told the new size");
	is(hetmem_alloc_with(res, &params, &q), 0, "another block with room");
	is(a.calls, 2, "comes to it, too");
	put(res, p);
	put(res, q);
	need(!hetmem_trim(res, 0, NULL), "trim");
	p = get(res, 30 * MIB, HOST);
	memset(p, 77, 30 * MIB);
	need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), "sleep: %s", hetmem_last_error());
	a.calls = 0;
	is(hetmem_wake(res, NULL), 0, "a wake: %s", hetmem_last_error());
	is(a.calls, 1, "too");
	ok(!a.last.bytes && !a.last.held, "which has no memory yet, and names no size");
	ok(all_bytes(p, 77, 30 * MIB), "contents");
	put(res, p);
	need(!hetmem_trim(res, 0, NULL), "trim");
	params = (struct hetmem_alloc_params){
		.size = sizeof(params), .bytes = 16 * MIB, .stream = HOST,
		.flags = HETMEM_ALLOC_MOVABLE,
	};
	need(!hetmem_alloc_with(res, &params, &p), "movable: %s", hetmem_last_error());
	memset(p, 78, 16 * MIB);
	need(!hetmem_spill(res, p), "spill: %s", hetmem_last_error());
	need(!hetmem_trim(res, 0, NULL), "trim");
	q = get(res, 16 * MIB, HOST);
	a.calls = 0;
	is(hetmem_fetch(res, p), 0, "a fetch: %s", hetmem_last_error());
	is(a.calls, 1, "comes to it");
	ok(all_bytes(p, 78, 16 * MIB), "contents");
	put(res, p);
	put(res, q);
	end(res);
}

/* The function could end the capture: memory of a captured stream passes. */
static void captured(void)
{
	struct hetmem_resource *res = make("watermark(pool(vmm,handle=2M),at=8M,every=0s)");
	CUgraph graph = NULL;
	struct asked a;
	CUstream s;
	void *p;

	need(!drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "a stream");
	ask(&a, res, NULL);
	need(!hetmem_capture_begin(res, s, 5), "begin: %s", hetmem_last_error());
	need(!drv->cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL), "a capture");
	p = get(res, 16 * MIB, s);
	ok(p, "memory for a capture");
	is(hetmem_free(res, p, 0, s), 0, "freed in it");
	is(drv->cuStreamEndCapture(s, &graph), 0, "the capture is valid");
	is(a.calls, 0, "and nobody was called");
	need(!hetmem_capture_end(res, s, 5), "end");
	if (graph)
		drv->cuGraphDestroy(graph);
	is(hetmem_capture_release(res, s, 5), 0, "released");
	p = get(res, 64 * MIB, HOST);
	is(a.calls, 1, "afterwards it is called");
	put(res, p);
	drv->cuStreamDestroy(s);
	end(res);
}

/* The function frees too little: the allocation makes memory all the same. */
static void free_last(struct asked *a)
{
	if (a->nr)
		put(a->res, a->blocks[--a->nr]);
}

/* Each driver call of an allocation that comes to the watermark fails, in turn. */
static void failing_calls(const char *spec)
{
	unsigned int call, nth, failed = 0;
	struct hetmem_resource *res = make(spec);
	bool good = true, same = true;
	struct asked a;
	char rule[80];
	void *p;
	int err;

	ask(&a, res, free_last);
	for (call = 0; call < NR_CALLS; call++) {
		for (nth = 1; nth < 30; nth++) {
			need(keep(&a, 10 * MIB) && keep(&a, 6 * MIB), "blocks");
			snprintf(rule, sizeof(rule), "%s:%u", calls[call], nth);
			need(!soft_rules(rule, NULL), "a rule");
			p = NULL;
			err = hetmem_alloc(res, 8 * MIB, 0, HOST, &p);
			soft_rules(NULL, NULL);
			failed += err != 0;
			good &= err ? !p && (err == -ENOMEM || err == -EIO) : !!p;
			if (!err)
				put(res, p);
			drop(&a);
			need(!hetmem_trim(res, 0, NULL), "trim");
			/* Of some pools the driver says later what it has back. */
			hetmem_poll(res);
			same &= !stats(res).live;
			if (!err && nth > 8)
				break;
		}
	}
	ok(failed && good, "%s: %u calls failed, with the driver's error", spec, failed);
	ok(same && a.calls, "the program was called %u times, and nothing is lost", a.calls);
	is(hetmem_resource_destroy(res), 0, "nothing is live");
}

/* A function that takes long: other threads go on meanwhile, and it can be unset. */
static bool inside, let_go;

static void stay(struct asked *a)
{
	(void)a;
	__atomic_store_n(&inside, true, __ATOMIC_RELEASE);
	stay_until(__atomic_load_n(&let_go, __ATOMIC_ACQUIRE));
}

struct job {
	struct hetmem_resource *res;
	size_t size;
	void *p;
};

static void *alloc_it(void *arg)
{
	struct job *job = arg;

	job->p = get(job->res, job->size, HOST);
	return NULL;
}

static void takes_long(const char *spec, bool forks)
{
	struct hetmem_resource *res = make(spec);
	struct job job = { .res = res, .size = 20 * MIB };
	int status = -1;
	struct asked a;
	pthread_t t;
	void *p;
	pid_t pid;

	inside = let_go = false;
	ask(&a, res, stay);
	need(!pthread_create(&t, NULL, alloc_it, &job), "a thread");
	need(wait_until(__atomic_load_n(&inside, __ATOMIC_ACQUIRE)), "it is called");
	p = get(res, 24 * MIB, HOST);
	ok(p, "%s: another thread goes on meanwhile", spec);
	put(res, p);
	if (forks) {
		fflush(stdout);
		pid = fork();
		if (!pid) {
			/* The thread that was in the function is not here. */
			let_go = true;
			a.at_once = 0;
			p = NULL;
			_exit(hetmem_alloc(res, 60 * MIB, 0, HOST, &p) || a.calls != 2 ||
			      a.nested || hetmem_free(res, p, 0, HOST));
		}
		waitpid(pid, &status, 0);
		is(status, 0, "a forked child is called anew");
	}
	is(hetmem_on_pressure(res, NULL, NULL), 0, "unset while it runs");
	p = get(res, 48 * MIB, HOST);
	ok(p, "nobody is called");
	put(res, p);
	__atomic_store_n(&let_go, true, __ATOMIC_RELEASE);
	pthread_join(t, NULL);
	ok(job.p, "the first one has its memory in the end");
	is(a.calls, 1, "after one call");
	is(a.nested, 0, "one at a time");
	put(res, job.p);
	end(res);
}

/* Threads that allocate and free, and a function that frees what a cache has. */
static pthread_mutex_t cache_lock = PTHREAD_MUTEX_INITIALIZER;

static void empty_cache(struct asked *a)
{
	void *blocks[BLOCKS];
	unsigned int nr;

	pthread_mutex_lock(&cache_lock);
	nr = a->nr;
	memcpy(blocks, a->blocks, nr * sizeof(*blocks));
	a->nr = 0;
	pthread_mutex_unlock(&cache_lock);
	while (nr)
		put(a->res, blocks[--nr]);
}

static bool to_cache(struct asked *a, void *p)
{
	bool fits;

	pthread_mutex_lock(&cache_lock);
	fits = a->nr < BLOCKS;
	if (fits)
		a->blocks[a->nr++] = p;
	pthread_mutex_unlock(&cache_lock);
	return fits;
}

static void *work(void *arg)
{
	static __thread unsigned int state;
	struct asked *a = arg;
	unsigned int i;
	char *p;

	state = (unsigned int)hm_thread();
	for (i = 0; i < 400; i++) {
		size_t size;

		state = state * 1103515245 + 12345;
		size = (1 + (state >> 8) % 6) * MIB - (state >> 16) % 3 * 777;
		p = NULL;
		if (hetmem_alloc(a->res, size, 0, HOST, (void **)&p))
			continue;
		p[0] = p[size - 1] = 1;
		if (!to_cache(a, p))
			put(a->res, p);
	}
	return NULL;
}

static void threads(const char *spec)
{
	struct hetmem_resource *res = make(spec);
	pthread_t t[4];
	struct asked a;
	unsigned int i;

	ask(&a, res, empty_cache);
	for (i = 0; i < 4; i++)
		need(!pthread_create(&t[i], NULL, work, &a), "a thread");
	for (i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	ok(a.calls && !a.nested, "%s: %u calls, one at a time", spec, a.calls);
	is(stats(res).pressures, a.calls, "all counted");
	is(stats(res).failed <= 4 * a.calls + 1600, 1, "no storm of failures");
	empty_cache(&a);
	end(res);
}

/* One over another: each has its own bound, and its own call. */
static void nested(void)
{
	struct hetmem_resource *res =
		make("watermark(headroom(watermark(pool(vmm,handle=2M),at=10M,every=3600s)),at=20M,every=0s)");
	struct asked a;
	unsigned int i;

	ask(&a, res, NULL);
	for (i = 0; i < 5; i++)
		need(keep(&a, 2 * MIB), "a block");
	is(a.calls, 0, "below both");
	for (i = 0; i < 5; i++)
		need(keep(&a, 2 * MIB), "a block");
	is(a.calls, 1, "the inner one alone");
	is(a.last.at, 10 * MIB, "which names its own");
	need(keep(&a, 2 * MIB), "a block");
	is(a.calls, 2, "both");
	is(a.last.at, 20 * MIB, "the outer one, too");
	is(stats(res).pressures, 2, "counts are sums");
	drop(&a);
	end(res);
}

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "256M", 1);
	open_soft("");
	exact("watermark(device,at=32M,every=0s)", 4 * MIB, 32 * MIB, 0);
	exact("watermark(pool(vmm,handle=2M),at=32M,every=0s)", 2 * MIB, 32 * MIB, 0);
	exact("watermark(pool(vmm(export=fd)),at=32M,every=0s)", 4 * MIB, 32 * MIB, 0);
	exact("stats(watermark(guard(pool(vmm,handle=2M)),at=32M,every=0s))", 2 * MIB - 4096,
	      32 * MIB, 0);
	exact("watermark(pool(device),at=40M,every=0s)", 20 * MIB, 40 * MIB, 0);
	exact("watermark(pool(host),at=40M,every=0s)", 20 * MIB, 40 * MIB, -1);
	exact("watermark(classes(managed),at=32M,every=0s)", 2 * MIB, 32 * MIB, 0);
	generous();
	frees("watermark(pool(vmm),at=48M,every=0s)", 48 * MIB);
	frees("watermark(pool(device),at=48M,every=0s)", 48 * MIB);
	frees("watermark(pool(managed),at=48M,every=0s)", 48 * MIB);
	frees("watermark(classes(managed),at=48M,every=0s)", 48 * MIB);
	frees("watermark(pool(vmm,max=48M),at=100%,every=0s)", 48 * MIB);
	before_max("watermark(pool(vmm,max=64M),at=90%,every=0s)");
	before_max("watermark(pool(device,max=64M),at=90%,every=0s)");
	before_max("watermark(pool(pinned,max=64M),at=100%,every=0s)");
	before_max("watermark(classes(managed,max=64M),at=90%,every=0s)");
	every();
	acts();
	shares();
	ways();
	captured();
	failing_calls("watermark(pool(vmm,handle=2M),at=16M,every=0s)");
	failing_calls("watermark(pool(device),at=16M,every=0s)");
	failing_calls("watermark(pool(async),at=16M,every=0s)");
	takes_long("watermark(pool(vmm),at=16M,every=0s)", false);
	takes_long("watermark(pool(host),at=16M,every=0s)", true);
	threads("watermark(pool(vmm),at=48M,every=0s)");
	threads("watermark(pool(device,max=96M),at=50%,every=1ms)");
	threads("watermark(classes(managed,max=96M),at=50%,every=0s)");
	nested();
	close_soft();
	return tap_end();
}
