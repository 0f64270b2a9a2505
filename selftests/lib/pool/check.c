// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A pool in check mode, with kernels that take their time: random blocks on
 * several streams, freed where they were allocated, elsewhere, or after other
 * streams used them; streams that come and go; one thread and several.
 */
#include "pool.h"

#define NR_STREAMS	4
#define NR_BLOCKS	48

struct held {
	void *ptr;
	size_t size;
	CUstream stream;
};

struct worker {
	pthread_t thread;
	unsigned int seed;
	int rounds;
	int bad;
	CUstream streams[NR_STREAMS];
	struct held blocks[NR_BLOCKS];
};

static CUcontext context;
/* Each worker's first stream is its thread's own. */
static bool own_streams;
/* The last one all share. It is retired, and given work again, at any time. */
static CUstream shared;

static unsigned int roll(struct worker *w, unsigned int n)
{
	w->seed = w->seed * 1103515245 + 12345;
	return (w->seed >> 8) % n;
}

static void kernel(struct worker *w, struct held *h, CUstream s)
{
	struct hm_soft_range r = { (uintptr_t)h->ptr, h->size, -1 };

	w->bad += soft_launch(s, "a kernel", &r, 1,
				 roll(w, 4) ? 0 : 20000) != CUDA_SUCCESS;
}

static void take(struct worker *w, struct held *h)
{
	static const size_t most[] = { 600, 5000, 300000, 3 << 20, 9 << 20 };

	h->size = 1 + roll(w, most[roll(w, 5)]);
	h->stream = w->streams[roll(w, NR_STREAMS)];
	if (hetmem_alloc(pool, h->size, 0, h->stream, &h->ptr)) {
		/* Full: somebody else has it, and it is no error. */
		h->ptr = NULL;
		return;
	}
	kernel(w, h, h->stream);
}

static void give(struct worker *w, struct held *h)
{
	CUstream other = w->streams[roll(w, NR_STREAMS)];
	hetmem_stream on = h->stream;
	unsigned int how = roll(w, 5);

	/* Frees that name a stream count from then on, whatever was retired. */
	if (shared && (on == shared || other == shared))
		how = how < 3 ? 0 : 4;
	switch (how) {
	case 0:			/* moves to another stream */
		follow(other, h->stream);
		kernel(w, h, other);
		on = other;
		break;
	case 1:			/* is used by another, which is recorded */
		follow(other, h->stream);
		w->bad += !!hetmem_record_stream(pool, h->ptr, other);
		kernel(w, h, other);
		break;
	case 2:			/* the same, and nobody knows any more */
		follow(other, h->stream);
		w->bad += !!hetmem_record_stream(pool, h->ptr, other);
		kernel(w, h, other);
		on = HETMEM_STREAM_UNKNOWN;
		break;
	}
	w->bad += !!hetmem_free(pool, h->ptr, roll(w, 2) ? h->size : 0, on);
	h->ptr = NULL;
}

/* A stream of which blocks are still held goes, another comes. */
static void exchange(struct worker *w)
{
	const unsigned int nr = NR_STREAMS - own_streams - !!shared;
	unsigned int i = own_streams + roll(w, nr), j;
	CUstream old = w->streams[i];

	if (shared)
		w->bad += !!hetmem_stream_retire(pool, shared);

	for (j = 0; j < NR_BLOCKS; j++)
		if (w->blocks[j].ptr && w->blocks[j].stream == old)
			give(w, &w->blocks[j]);
	w->bad += !!hetmem_stream_retire(pool, old);
	drv->cuStreamDestroy(old);
	drv->cuStreamCreate(&w->streams[i], CU_STREAM_NON_BLOCKING);
}

static void *work(void *arg)
{
	struct worker *w = arg;
	struct held *h;
	int i;

	drv->cuCtxSetCurrent(context);
	for (i = 0; i < NR_STREAMS; i++)
		drv->cuStreamCreate(&w->streams[i], CU_STREAM_NON_BLOCKING);
	if (own_streams) {
		drv->cuStreamDestroy(w->streams[0]);
		w->streams[0] = CU_STREAM_PER_THREAD;
	}
	if (shared) {
		drv->cuStreamDestroy(w->streams[NR_STREAMS - 1]);
		w->streams[NR_STREAMS - 1] = shared;
	}
	for (i = 0; i < w->rounds; i++) {
		h = &w->blocks[roll(w, NR_BLOCKS)];
		if (h->ptr)
			give(w, h);
		else
			take(w, h);
		if (!roll(w, 40))
			w->bad += !!hetmem_poll(pool);
		if (!roll(w, shared ? 20 : 200))
			exchange(w);
		if (!roll(w, 300))
			w->bad += !!hetmem_trim(pool, 0, NULL);
	}
	for (i = 0; i < NR_BLOCKS; i++)
		if (w->blocks[i].ptr)
			give(w, &w->blocks[i]);
	for (i = 0; i < NR_STREAMS; i++) {
		w->bad += !!hetmem_stream_retire(pool, w->streams[i]);
		if (w->streams[i] != CU_STREAM_PER_THREAD &&
		    w->streams[i] != shared)
			drv->cuStreamDestroy(w->streams[i]);
	}
	return NULL;
}

static void run(const char *provider, int threads, int rounds)
{
	struct worker *w = calloc(threads, sizeof(*w));
	int i, bad = 0;

	make_pool(provider, NULL);
	for (i = 0; i < threads; i++) {
		w[i].seed = 1000 * threads + i;
		w[i].rounds = rounds;
		if (threads > 1)
			pthread_create(&w[i].thread, NULL, work, &w[i]);
		else
			work(&w[i]);
	}
	for (i = 0; i < threads; i++) {
		if (threads > 1)
			pthread_join(w[i].thread, NULL);
		bad += w[i].bad;
	}
	is(bad, 0, "%s: %d threads, %d rounds", provider, threads, rounds);
	is(pool_stats().live, 0, "nothing is live");
	is(hetmem_resource_destroy(pool), 0, "nothing was left");
	free(w);
}

int main(void)
{
	setenv("HETMEM_SOFT_CHECK", "1", 1);
	setenv("HETMEM_SOFT_MEMORY", "192M", 1);
	open_soft("");
	drv->cuCtxGetCurrent(&context);
	run("device", 1, 2000);
	run("vmm", 1, 4000);
	run("device", 3, 800);
	run("vmm", 3, 1500);
	own_streams = true;
	run("device", 3, 400);
	run("vmm", 3, 800);
	own_streams = false;
	drv->cuStreamCreate(&shared, CU_STREAM_NON_BLOCKING);
	run("device", 3, 800);
	run("vmm", 3, 1500);
	drv->cuStreamDestroy(shared);
	close_soft();
	return tap_end();
}
