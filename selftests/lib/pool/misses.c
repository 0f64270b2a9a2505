// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * How often a cache lacks what is asked for, which takes the pool's lock; and what is
 * held where one stream after the other could use what those before it left.
 */
#include <dlfcn.h>
#include <semaphore.h>

#include "pool_gate.h"

#define LIVE	16
#define PAIRS	100000

static unsigned int seed;
static unsigned int nr_locks;
static bool counting;

/* A mutex that this thread takes in a pair is the pool's. */
int pthread_mutex_lock(pthread_mutex_t *m)
{
	static int (*real_lock)(pthread_mutex_t *m);

	if (!real_lock)
		*(void **)&real_lock = dlsym(RTLD_NEXT, "pthread_mutex_lock");
	nr_locks += counting;
	return real_lock(m);
}

static unsigned int draw(unsigned int below)
{
	seed ^= seed << 13;
	seed ^= seed >> 17;
	seed ^= seed << 5;
	return seed % below;
}

/* 256 bytes to 1 MiB, each power of two as often as the others. */
static size_t draw_size(void)
{
	size_t base = (size_t)256 << draw(12);

	return base + draw(base);
}

static double ratio(void)
{
	struct hetmem_resource_stats s = pool_stats();

	return (double)s.reserved_peak / s.requested_peak;
}

/* Pairs of any sizes, on streams in turn, each with blocks of its own. */
static void pairs(const char *provider, unsigned int streams, unsigned int most)
{
	static struct {
		void *p[LIVE];
		size_t size[LIVE];
	} of[16];
	unsigned int i, slot;
	CUstream s[16];

	seed = 1;
	nr_locks = 0;
	memset(of, 0, sizeof(of));
	make_pool(provider, NULL);
	for (i = 0; i < streams; i++)
		s[i] = new_stream();
	/* The first round fills the caches. */
	for (i = 0; i < 2 * PAIRS; i++) {
		unsigned int on = i % streams;

		slot = i / streams % LIVE;
		counting = i >= PAIRS;
		if (i == PAIRS)
			nr_records = 0;
		if (of[on].p[slot])
			put(of[on].p[slot], of[on].size[slot], s[on]);
		of[on].size[slot] = draw_size();
		of[on].p[slot] = get(of[on].size[slot], s[on]);
	}
	counting = false;
	printf("# %s, %u streams: the lock is taken %u times in %u pairs, %u events\n",
	       provider, streams, nr_locks, PAIRS, nr_records);
	ok(nr_locks < PAIRS / most, "%s, %u streams: a cache seldom lacks a size",
	   provider, streams);
	/* What goes round in the cache is no free that others could wait for. */
	ok(nr_records <= nr_locks / 90,
	   "%s, %u streams: a miss seldom records an event", provider, streams);
	for (i = 0; i < streams; i++) {
		for (slot = 0; slot < LIVE; slot++)
			put(of[i].p[slot], of[i].size[slot], s[i]);
		drv->cuStreamDestroy(s[i]);
	}
	is(hetmem_resource_destroy(pool), 0, "%s, %u streams: all is freed",
	   provider, streams);
}

/* Once a cache is full of sizes that nobody wants any more. */
static void change_of_sizes(const char *provider)
{
	CUstream s = new_stream();
	void *p[LIVE], *q[200];
	unsigned int i;

	nr_locks = 0;
	make_pool(provider, NULL);
	for (i = 0; i < 200; i++)
		q[i] = get(100 << 10, s);
	for (i = 0; i < 200; i++)
		put(q[i], 100 << 10, s);
	for (i = 0; i < LIVE; i++)
		p[i] = get(300 << 10, s);
	for (i = 0; i < 2 * PAIRS; i++) {
		counting = i >= PAIRS;
		put(p[i % LIVE], 300 << 10, s);
		p[i % LIVE] = get(300 << 10, s);
	}
	counting = false;
	is(nr_locks, 0, "%s: a full cache gets room for others",
	   provider);
	for (i = 0; i < LIVE; i++)
		put(p[i], 300 << 10, s);
	is(hetmem_resource_destroy(pool), 0, "%s: all is freed", provider);
	drv->cuStreamDestroy(s);
}

/* Streams that come one after the other find what those before them left. */
static void left_by_others(const char *provider)
{
	enum { STREAMS = 96, BLOCKS = 300 };
	static void *p[STREAMS][BLOCKS];
	CUstream s[STREAMS];
	unsigned int on, i;

	seed = 3;
	make_pool(provider, NULL);
	for (on = 0; on < STREAMS; on++) {
		s[on] = new_stream();
		for (i = 0; i < BLOCKS; i++)
			p[on][i] = get(8192 + draw(8192), s[on]);
		for (i = 0; i < BLOCKS; i++)
			put(p[on][i], 0, s[on]);
		for (i = 0; i < BLOCKS; i++)
			p[on][i] = get(6144 + draw(8192), s[on]);
	}
	printf("# %s: %.4f\n", provider, ratio());
	ok(ratio() < 1.15, "%s: streams take what others left", provider);
	for (on = 0; on < STREAMS; on++) {
		for (i = 0; i < BLOCKS; i++)
			put(p[on][i], 0, s[on]);
		drv->cuStreamDestroy(s[on]);
	}
	is(hetmem_resource_destroy(pool), 0, "%s: all is freed", provider);
}

/* One block on each stream in turn: each finds its own again, however many there are. */
static void in_turn(unsigned int streams, size_t size)
{
	const unsigned int first = 16 * streams;
	CUstream *s = calloc(streams, sizeof(*s));
	unsigned int i;

	need(s, "memory");
	nr_locks = 0;
	make_pool("vmm", NULL);
	for (i = 0; i < streams; i++)
		s[i] = new_stream();
	for (i = 0; i < 2 * first; i++) {
		counting = i >= first;
		put(get(size, s[i % streams]), size, s[i % streams]);
	}
	counting = false;
	is(nr_locks, 0, "%u streams in turn, %zu bytes: no pair takes the lock", streams, size);
	ok(pool_stats().reserved_peak <= streams * size + 8 * MIB,
	   "and not much more is held than one block each");
	for (i = 0; i < streams; i++)
		drv->cuStreamDestroy(s[i]);
	is(hetmem_resource_destroy(pool), 0, "%u streams in turn: all is freed", streams);
	free(s);
}

#define THREADS	16
#define ROUNDS	3000

/* What a thread allocates the next one frees, on the stream of the first, LIVE rounds later. */
static struct {
	sem_t turn;
	CUstream stream;
	void *p[LIVE];
	size_t size[LIVE];
} hands[THREADS];

static CUcontext hands_context;

static void hand(unsigned int me, unsigned int round)
{
	const unsigned int from = (me + THREADS - 1) % THREADS;
	const unsigned int oldest = (round + 1) % LIVE, slot = round % LIVE;

	if (hands[from].p[oldest])
		put(hands[from].p[oldest], hands[from].size[oldest], hands[from].stream);
	hands[from].p[oldest] = NULL;
	hands[me].size[slot] = draw_size();
	hands[me].p[slot] = get(hands[me].size[slot], hands[me].stream);
}

static void *hand_over(void *arg)
{
	const unsigned int me = (uintptr_t)arg;
	unsigned int round;

	need(!drv->cuCtxSetCurrent(hands_context), "the context is current");
	for (round = 0; round < ROUNDS; round++) {
		sem_wait(&hands[me].turn);
		counting = round >= ROUNDS / 2;
		hand(me, round);
		counting = false;
		sem_post(&hands[(me + 1) % THREADS].turn);
	}
	return NULL;
}

static void handed_over(void)
{
	pthread_t thread[THREADS];
	unsigned int i, j;

	seed = 7;
	nr_locks = 0;
	need(!drv->cuCtxGetCurrent(&hands_context), "the context");
	make_pool("vmm", NULL);
	for (i = 0; i < THREADS; i++) {
		hands[i].stream = new_stream();
		sem_init(&hands[i].turn, 0, i == 0);
	}
	for (i = 0; i < THREADS; i++)
		need(!pthread_create(&thread[i], NULL, hand_over, (void *)(uintptr_t)i),
		     "a thread");
	for (i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	printf("# handed over: the lock is taken %u times in %u pairs, %.2f held\n", nr_locks,
	       THREADS * ROUNDS / 2, ratio());
	ok(nr_locks < THREADS * ROUNDS / 2 / 3,
	   "what another thread frees: two of three pairs do without the lock");
	ok(ratio() < 3.5, "and no more is held than that takes");
	for (i = 0; i < THREADS; i++) {
		for (j = 0; j < LIVE; j++)
			if (hands[i].p[j])
				put(hands[i].p[j], hands[i].size[j], hands[i].stream);
		drv->cuStreamDestroy(hands[i].stream);
	}
	is(hetmem_resource_destroy(pool), 0, "handed over: all is freed");
}

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "2G", 1);
	open_soft("");
	count_calls();
	pairs("vmm", 1, 20);
	pairs("vmm", 4, 4);
	pairs("vmm", 16, 2);
	pairs("device", 1, 20);
	change_of_sizes("vmm");
	in_turn(1, 4096);
	in_turn(32, 128 << 10);
	in_turn(600, 4096);
	in_turn(1000, 4096);
	in_turn(300, 100 << 10);
	handed_over();
	left_by_others("vmm");
	is(device_used(), 0, "nothing is left");
	close_soft();
	return tap_end();
}
