/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem bench driver: what calls of the driver take by themselves, below
 * which nothing that makes them can come: the id of a stream, which the cached
 * path asks for, in one thread and in several; a handle made, mapped and made
 * accessible; registering memory that is there already.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bench.h"
#include "alloc.h"
#include "time_calls.h"

#define IDS	200000
#define ROUNDS	16
#define GIB	((size_t)1 << 30)
#define MIB	((size_t)1 << 20)

struct asker {
	pthread_t thread;
	struct bench_options *o;
	pthread_barrier_t *start;
	CUstream stream;
	int index;
	uint64_t ns;
} __attribute__((aligned(64)));

static void *ask_ids(void *arg)
{
	struct asker *a = arg;
	const struct hm_driver *d = a->o->drv;
	struct hm_context saved;
	unsigned long long id;
	uint64_t start;
	int i;

	bench_own_core(a->index);
	hm_context_enter(a->o->hm, 0, &saved);
	for (i = 0; i < IDS / 10; i++)
		d->cuStreamGetId(a->stream, &id);
	pthread_barrier_wait(a->start);
	start = bench_now();
	for (i = 0; i < IDS; i++)
		d->cuStreamGetId(a->stream, &id);
	a->ns = bench_now() - start;
	return NULL;
}

static void add(struct bench_pairs *pairs, const char *what, int threads,
		double ns)
{
	struct bench_pair row = { .what = what, .threads = threads, .ns = ns,
				  .peer_ns = -1, .system_calls = -1 };

	bench_pairs_add(pairs, &row);
}

static void stream_ids(struct bench_options *o, struct bench_pairs *pairs,
		       int nr)
{
	struct asker *askers = aligned_alloc(64, nr * sizeof(*askers));
	pthread_barrier_t start;
	double ns = 0;
	int i;

	if (!askers)
		return;
	memset(askers, 0, nr * sizeof(*askers));
	pthread_barrier_init(&start, NULL, nr);
	for (i = 0; i < nr; i++) {
		askers[i].o = o;
		askers[i].start = &start;
		askers[i].index = i;
		if (o->drv->cuStreamCreate(&askers[i].stream,
					   CU_STREAM_NON_BLOCKING) ||
		    pthread_create(&askers[i].thread, NULL, ask_ids,
				   &askers[i]))
			exit(complain(EXIT_FAILED, "bench",
				      "cannot start %d threads", nr));
	}
	for (i = 0; i < nr; i++) {
		pthread_join(askers[i].thread, NULL);
		o->drv->cuStreamDestroy(askers[i].stream);
		ns += (double)askers[i].ns / IDS / nr;
	}
	pthread_barrier_destroy(&start);
	free(askers);
	add(pairs, "cuStreamGetId", nr, ns);
}

/* A handle of @size, ROUNDS times: made, mapped, made accessible, and back. */
static void handle_calls(struct bench_options *o, struct bench_pairs *pairs,
			 size_t size)
{
	const struct hm_driver *d = o->drv;
	uint64_t ns[TIME_CALLS];
	bool good = true;
	CUdeviceptr at;
	unsigned int i;

	if (!d->cuMemCreate || !d->cuMemAddressReserve ||
	    d->cuMemAddressReserve(&at, size, 0, 0, 0))
		return;
	time_calls_begin(o->hm);
	for (i = 0; good && i < ROUNDS; i++)
		good = bench_map_handle(o, at, size) >= 0;
	time_calls_end(o->hm, ns);
	d->cuMemAddressFree(at, size);
	for (i = 0; good && i < time_calls_nr(); i++)
		if (ns[i])
			add(pairs, xasprintf("%s, %zu MiB", time_calls_name(i),
					     size / MIB), 1,
			    (double)ns[i] / ROUNDS);
}

/* Of pages that are there, huge ones where the machine gives any. */
static void registering(struct bench_options *o, struct bench_pairs *pairs)
{
	size_t size = GIB;
	uint64_t ns;
	void *p;

	while (size > 64 * MIB && size * 4 > available_memory())
		size /= 2;
	p = mmap(NULL, size, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (p == MAP_FAILED)
		return;
	madvise(p, size, MADV_HUGEPAGE);
	memset(p, 0, size);
	ns = bench_now();
	if (!o->drv->cuMemHostRegister(p, size, 0)) {
		add(pairs, xasprintf("cuMemHostRegister, %zu MiB", size / MIB),
		    1, bench_now() - ns);
		o->drv->cuMemHostUnregister(p);
	}
	munmap(p, size);
}

int bench_driver(int argc, char **argv)
{
	static const char *const presets[] = { "", NULL };
	struct bench_options o = { 0 };
	int nr, status = bench_begin(&o, argc, argv,
		"Usage: hetmem bench driver [--threads MOST] [--driver DRIVER] [--json]\n"
		"What calls of the driver take by themselves. NS is of one call.", presets);
	struct bench_pairs *pairs;

	if (status >= 0)
		return status;
	pairs = bench_pairs_new();
	for (nr = 1; nr <= o.max_threads; nr *= 2)
		stream_ids(&o, pairs, nr);
	handle_calls(&o, pairs, 2 * MIB);
	handle_calls(&o, pairs, 32 * MIB);
	handle_calls(&o, pairs, GIB);
	registering(&o, pairs);
	return bench_end(&o, pairs);
}
