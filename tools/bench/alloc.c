/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem bench alloc, threads, streams: pairs of an allocation and a free with
 * 16 live blocks of 256 B to 1 MiB, warm, beside cuMemAllocAsync: us, the peer,
 * the peer, us.
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "alloc.h"
#include "count_calls.h"
#include "count_system.h"

#define PEER	"cuMemAllocAsync"

static const char *const presets[] = {
	"device-pool", "device-pool(streams=retired)", NULL,
};

/* With work for streams: as many pairs as take one of them a tenth of a second. */
static uint64_t busy_pairs(const struct bench_options *o)
{
	return o->busy_us < 100000 / BENCH_LIVE ? 100000 / o->busy_us :
		BENCH_LIVE;
}

/* As many pairs as take about a fifth of a second. */
static uint64_t calibrate(struct bench_thread *t)
{
	uint64_t pairs = 1000, ns;

	if (t->o->busy) {
		bench_thread_run(t, busy_pairs(t->o));
		return busy_pairs(t->o);
	}
	bench_thread_run(t, 4 * BENCH_SIZES);
	for (;;) {
		ns = bench_now();
		bench_thread_run(t, pairs);
		ns = bench_now() - ns;
		if (ns > 50000000 || pairs > 1 << 24)
			return pairs * 4;
		pairs *= 2;
	}
}

/*
 * Nanoseconds a pair, of one thread, and until the streams are done half of
 * them is added to *@device. < 0: it failed.
 */
static double measure_one(struct bench_options *o,
			  struct hetmem_resource *res, int nr_streams,
			  bool cross, struct bench_pair *count, double *device)
{
	struct bench_thread t;
	uint64_t pairs, ns;
	double result = -1;

	if (bench_thread_init(&t, o, res, nr_streams)) {
		t.cross = cross;
		pairs = calibrate(&t);
		if (o->busy)
			o->drv->cuCtxSynchronize();
		ns = bench_now();
		bench_thread_run(&t, pairs);
		result = (double)(bench_now() - ns) / pairs;
		if (o->busy) {
			o->drv->cuCtxSynchronize();
			*device += (bench_now() - ns) / 2.0 / pairs;
		}
		if (count)
			bench_count(&t, count);
		if (t.failures)
			result = -1;
	}
	bench_thread_end(&t);
	return result;
}

static void keep_all(struct bench_options *o)
{
	cuuint64_t keep = UINT64_MAX;
	CUmemoryPool pool;

	if (o->drv->cuDeviceGetDefaultMemPool &&
	    !o->drv->cuDeviceGetDefaultMemPool(&pool, o->hm->devices[0].handle))
		o->drv->cuMemPoolSetAttribute(pool,
					CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
					&keep);
}

/* The soft driver's is our own imitation. */
static bool has_peer(const struct bench_options *o)
{
	return o->drv->cuMemAllocAsync && !o->hm->soft;
}

/* < 0: one of them failed. */
static double mean(double a, double b)
{
	return a < 0 || b < 0 ? -1 : (a + b) / 2;
}

static void run_streams(struct bench_options *o, struct bench_pairs *pairs,
			const char *spec, int nr_streams, bool cross)
{
	struct hetmem_resource *res = bench_make(o, spec);
	struct bench_pair row = { .threads = 1, .peer = PEER, .peer_ns = -1 };
	double first, peer;

	if (!res)
		return;
	snprintf(row.spec, sizeof(row.spec), "%s", spec);
	row.what = nr_streams == 1 ? "one stream" :
		cross ? "freed on another stream" :
		xasprintf("%d streams in turn", nr_streams);
	first = measure_one(o, res, nr_streams, cross, &row, &row.device_ns);
	if (has_peer(o)) {
		peer = measure_one(o, NULL, nr_streams, cross, NULL,
				   &row.peer_device_ns);
		row.peer_ns = mean(peer, measure_one(o, NULL, nr_streams,
						     cross, NULL,
						     &row.peer_device_ns));
	}
	row.ns = mean(first, measure_one(o, res, nr_streams, cross, NULL,
					 &row.device_ns));
	hetmem_resource_destroy(res);
	bench_pairs_add(pairs, &row);
}

int bench_alloc(int argc, char **argv)
{
	struct bench_options o = { 0 };
	int i, status = bench_begin(&o, argc, argv,
		"Usage: hetmem bench alloc [--spec SPEC]... [--work busy=US] [--driver DRIVER]\n"
		"                          [--json]\n"
		"One thread, one stream, 16 live blocks of 256 B to 1 MiB.", presets);
	struct bench_pairs *pairs;

	if (status >= 0)
		return status;
	pairs = bench_pairs_new();
	keep_all(&o);
	for (i = 0; i < o.nr_specs; i++)
		run_streams(&o, pairs, o.specs[i], 1, false);
	return bench_end(&o, pairs);
}

int bench_streams(int argc, char **argv)
{
	struct bench_options o = { 0 };
	int i, nr, status = bench_begin(&o, argc, argv,
		"Usage: hetmem bench streams [--spec SPEC]... [--work busy=US] [--driver DRIVER]\n"
		"                            [--json]\n"
		"One thread that goes round 2 to 16 streams, and one that frees on another\n"
		"stream than it allocated on, behind an event.", presets);
	struct bench_pairs *pairs;

	if (status >= 0)
		return status;
	pairs = bench_pairs_new();
	keep_all(&o);
	for (i = 0; i < o.nr_specs; i++) {
		for (nr = 2; nr <= 16; nr *= 2)
			run_streams(&o, pairs, o.specs[i], nr, false);
		run_streams(&o, pairs, o.specs[i], 3, true);
	}
	return bench_end(&o, pairs);
}

/*
 * Threads. Each has its own stream and core. Handing over: blocks go round in
 * a ring of queues, and who takes one frees it on the stream it is from.
 */
#define QUEUE	256

struct handed {
	void *block;
	size_t size;
};

/*
 * Each end remembers how far the other one was, and looks again when that is
 * not enough: what is measured is not the queue.
 */
struct queue {
	struct handed handed[QUEUE];
	uint64_t head __attribute__((aligned(64)));
	uint64_t seen_tail;
	uint64_t tail __attribute__((aligned(64)));
	uint64_t seen_head;
};

/*
 * The least that gives a block back to whom it is from: equal blocks that say
 * nothing, a list of one's own, and one where others put theirs. What handing
 * over takes here, any allocator pays.
 */
struct equal {
	struct equal *next;
	uint64_t touched;
} __attribute__((aligned(64)));

#define EQUALS	(4 * BENCH_LIVE)

struct equals {
	struct equal all[EQUALS];
	struct equal *own;
	struct equal *back __attribute__((aligned(64)));
};

/*
 * @res: NULL: the driver's cuMemAllocAsync(), or with @equal blocks that are
 *	no memory
 */
struct crew {
	struct bench_options *o;
	struct hetmem_resource *res;
	int nr;
	bool hand_over;
	bool equal;
	uint64_t pairs;
	struct bench_pair *count;
	int finished;
	pthread_barrier_t start;
	struct member *members;
};

struct member {
	pthread_t thread;
	struct crew *crew;
	int index;
	uint64_t ns;
	int failures;
	struct bench_thread work;
	struct queue in;
	struct equals equals;
};

static void equals_init(struct equals *e)
{
	int i;

	for (i = 0; i < EQUALS; i++) {
		e->all[i].next = e->own;
		e->own = &e->all[i];
	}
}

/* There are more of them than are on their way at any time. */
static void *equal_get(struct equals *e)
{
	struct equal *b;

	if (!e->own)
		e->own = __atomic_exchange_n(&e->back, NULL, __ATOMIC_ACQUIRE);
	b = e->own;
	e->own = b->next;
	b->touched++;
	return b;
}

static void equal_put(struct equals *e, struct equal *b)
{
	struct equal *head = __atomic_load_n(&e->back, __ATOMIC_RELAXED);

	b->touched++;
	do {
		b->next = head;
	} while (!__atomic_compare_exchange_n(&e->back, &head, b, true,
					      __ATOMIC_RELEASE,
					      __ATOMIC_RELAXED));
}

static void free_one(struct crew *c, struct member *from, void *p, size_t size)
{
	CUstream stream = from->work.streams[0];

	if (c->equal)
		equal_put(&from->equals, p);
	else if (c->res)
		hetmem_free(c->res, p, size, stream);
	else
		c->o->drv->cuMemFreeAsync((uintptr_t)p, stream);
}

static void *alloc_one(struct crew *c, struct member *m, size_t size)
{
	CUstream stream = m->work.streams[0];
	CUdeviceptr ptr = 0;
	void *p = NULL;

	if (c->equal)
		return equal_get(&m->equals);
	if (c->res) {
		m->failures += !!hetmem_alloc(c->res, size, 0, stream, &p);
		return p;
	}
	m->failures += !!c->o->drv->cuMemAllocAsync(&ptr, size, stream);
	return (void *)(uintptr_t)ptr;
}

/* Frees what the one before has allocated, on its stream. */
static bool take_one(struct crew *c, struct member *m)
{
	struct member *from = &c->members[(m->index + c->nr - 1) % c->nr];
	uint64_t head = m->in.head;
	struct handed *h = &m->in.handed[head % QUEUE];

	if (head == m->in.seen_tail)
		m->in.seen_tail = __atomic_load_n(&m->in.tail,
						  __ATOMIC_ACQUIRE);
	if (head == m->in.seen_tail)
		return false;
	free_one(c, from, h->block, h->size);
	__atomic_store_n(&m->in.head, head + 1, __ATOMIC_RELEASE);
	return true;
}

static void give_one(struct crew *c, struct member *m, size_t size)
{
	struct queue *to = &c->members[(m->index + 1) % c->nr].in;
	uint64_t tail = to->tail;

	/* 16 live ones for each thread: no further ahead. */
	while (tail - to->seen_head >= BENCH_LIVE) {
		to->seen_head = __atomic_load_n(&to->head, __ATOMIC_ACQUIRE);
		if (tail - to->seen_head >= BENCH_LIVE && !take_one(c, m))
			sched_yield();
	}
	to->handed[tail % QUEUE] =
		(struct handed){ alloc_one(c, m, size), size };
	__atomic_store_n(&to->tail, tail + 1, __ATOMIC_RELEASE);
}

static void *member_main(void *arg)
{
	struct member *m = arg;
	struct crew *c = m->crew;
	struct hm_context saved;
	uint64_t i, start;
	bool traced;

	bench_own_core(m->index);
	hm_context_enter(c->o->hm, 0, &saved);
	if (!c->hand_over)
		bench_thread_run(&m->work, BENCH_SIZES);
	pthread_barrier_wait(&c->start);
	start = bench_now();
	if (!c->hand_over) {
		traced = c->count && !m->index && count_system_begin();
		bench_thread_run(&m->work, c->pairs);
		if (traced)
			c->count->system_calls = count_system_end();
	} else {
		for (i = 0; i < c->pairs; i++) {
			give_one(c, m, bench_sizes[(i * 7 + m->index) %
						   BENCH_SIZES]);
			take_one(c, m);
		}
	}
	m->ns = bench_now() - start;
	/* Nobody's queue stays full because its reader has gone. */
	__atomic_add_fetch(&c->finished, 1, __ATOMIC_RELEASE);
	while (__atomic_load_n(&c->finished, __ATOMIC_ACQUIRE) < c->nr)
		if (!take_one(c, m))
			sched_yield();
	while (take_one(c, m))
		;
	m->failures += m->work.failures;
	return NULL;
}

/* Nanoseconds of a thread for a pair, the mean of all. < 0: it failed. */
static double run_crew(struct crew *c)
{
	int i, failures = 0;
	double ns = 0;

	/* Each on cache lines of its own. */
	c->members = aligned_alloc(64, c->nr * sizeof(*c->members));
	if (!c->members)
		return -1;
	memset(c->members, 0, c->nr * sizeof(*c->members));
	c->finished = 0;
	pthread_barrier_init(&c->start, NULL, c->nr);
	for (i = 0; i < c->nr; i++) {
		struct member *m = &c->members[i];

		m->crew = c;
		m->index = i;
		equals_init(&m->equals);
		failures += !bench_thread_init(&m->work, c->o, c->res, 1);
	}
	for (i = 0; i < c->nr; i++)
		if (pthread_create(&c->members[i].thread, NULL, member_main,
				   &c->members[i]))
			exit(complain(EXIT_FAILED, "bench",
				      "cannot start %d threads", c->nr));
	for (i = 0; i < c->nr; i++) {
		pthread_join(c->members[i].thread, NULL);
		ns += (double)c->members[i].ns / c->pairs / c->nr;
		failures += c->members[i].failures;
	}
	for (i = 0; i < c->nr; i++)
		bench_thread_end(&c->members[i].work);
	pthread_barrier_destroy(&c->start);
	free(c->members);
	return failures ? -1 : ns;
}

/*
 * With @count, the system calls of a thread that only allocates and frees; one
 * that hands over gives its core away when it has to wait.
 */
static double measure_threads(struct bench_options *o,
			      struct hetmem_resource *res, int nr,
			      bool hand_over, uint64_t pairs,
			      struct bench_pair *count)
{
	struct crew c = { .o = o, .res = res, .nr = nr,
			  .hand_over = hand_over, .pairs = pairs,
			  .count = count };

	return run_crew(&c);
}

/* As many pairs as take about a fifth of a second, but no more than that. */
static uint64_t enough(struct crew c)
{
	double ns;

	c.pairs = 500;
	ns = run_crew(&c);
	if (ns > 0 && ns < 20000) {
		c.pairs = 5000;
		ns = run_crew(&c);
	}
	if (ns <= 0 || ns > 200000)
		return 1000;
	return 200e6 / ns < 1000000 ? 200e6 / ns : 1000000;
}

/* Calls of all threads for a pair, system calls of one of them. */
static void count_threads(struct bench_options *o,
			  struct hetmem_resource *res, bool hand_over,
			  uint64_t pairs, struct bench_pair *row)
{
	if (pairs > BENCH_COUNTED)
		pairs = BENCH_COUNTED;
	row->counted = (uint64_t)row->threads *
		(pairs + (hand_over ? 0 : BENCH_SIZES));
	row->calls_known = count_calls_begin(o->hm);
	measure_threads(o, res, row->threads, hand_over, pairs, row);
	count_calls_end(o->hm, row->calls);
}

static void run_threads(struct bench_options *o, struct bench_pairs *pairs,
			const char *spec, int nr, bool hand_over)
{
	uint64_t ours, theirs;
	struct hetmem_resource *res = bench_make(o, spec);
	struct bench_pair row = { .threads = nr, .peer = PEER, .peer_ns = -1,
				  .system_calls = -1 };
	double first, peer;

	if (!res)
		return;
	snprintf(row.spec, sizeof(row.spec), "%s", spec);
	row.what = hand_over ? "another thread frees" : "own streams";
	/* The first makes what the second finds warm. */
	ours = enough((struct crew){ .o = o, .res = res, .nr = nr,
				     .hand_over = hand_over });
	theirs = !has_peer(o) ? 0 :
		enough((struct crew){ .o = o, .nr = nr,
				      .hand_over = hand_over });
	first = measure_threads(o, res, nr, hand_over, ours, NULL);
	if (has_peer(o)) {
		peer = measure_threads(o, NULL, nr, hand_over, theirs, NULL);
		row.peer_ns = mean(peer, measure_threads(o, NULL, nr, hand_over,
							 theirs, NULL));
	}
	row.ns = mean(first, measure_threads(o, res, nr, hand_over, ours,
					     NULL));
	count_threads(o, res, hand_over, ours, &row);
	hetmem_resource_destroy(res);
	bench_pairs_add(pairs, &row);
}

/* Handing over by itself: what the queues and the blocks' way back take. */
static void run_equals(struct bench_options *o, struct bench_pairs *pairs,
		       int nr)
{
	struct crew c = { .o = o, .nr = nr, .hand_over = true, .equal = true };
	struct bench_pair row = { .what = "handed over, no allocator",
				  .threads = nr, .peer_ns = -1,
				  .system_calls = -1 };

	c.pairs = enough(c);
	row.ns = run_crew(&c);
	row.ns = mean(row.ns, run_crew(&c));
	bench_pairs_add(pairs, &row);
}

int bench_threads(int argc, char **argv)
{
	struct bench_options o = { 0 };
	int i, nr, status = bench_begin(&o, argc, argv,
		"Usage: hetmem bench threads [--spec SPEC]... [--threads MOST] [--driver DRIVER]\n"
		"                            [--json]\n"
		"1 to 16 threads, each with its own stream and core; threads that free what\n"
		"another one allocated; and what handing over takes by itself, with blocks\n"
		"that are no memory.", presets);
	struct bench_pairs *pairs;

	if (status >= 0)
		return status;
	pairs = bench_pairs_new();
	keep_all(&o);
	for (i = 0; i < o.nr_specs; i++) {
		for (nr = 1; nr <= o.max_threads; nr *= 2)
			run_threads(&o, pairs, o.specs[i], nr, false);
		for (nr = 2; nr <= o.max_threads; nr *= 2)
			run_threads(&o, pairs, o.specs[i], nr, true);
	}
	for (nr = 2; nr <= o.max_threads; nr *= 2)
		run_equals(&o, pairs, nr);
	return bench_end(&o, pairs);
}
