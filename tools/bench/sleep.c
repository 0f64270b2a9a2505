/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem bench sleep: what it takes to park the contents of a pool in host memory and
 * to bring them back, the first time and later, beside one copy of as much to page-locked
 * memory. Contents are compared after each wake.
 */
#include <string.h>
#include <time.h>

#include "alloc.h"
#include "bench.h"

#define GIB	((size_t)1 << 30)
#define MIB	((size_t)1 << 20)
#define BLOCKS	16
#define ROUNDS	3

/* Blocks of a pool, and page-locked memory of the same size. */
struct sleeper {
	struct bench_options *o;
	struct hetmem_resource *res, *host;
	size_t size;
	void *block[BLOCKS];
	unsigned char *copy;
	uint64_t sum;
};

static size_t block_size(const struct sleeper *s)
{
	return s->size / BLOCKS;
}

/* Copies all to the host: the time in ns, < 0: it failed. */
static double copy_all(struct sleeper *s)
{
	const struct hm_driver *d = s->o->drv;
	uint64_t begin = bench_now();
	int i;

	for (i = 0; i < BLOCKS; i++)
		if (d->cuMemcpyDtoHAsync(s->copy + i * block_size(s), (uintptr_t)s->block[i],
					 block_size(s), NULL))
			return -1;
	return d->cuStreamSynchronize(NULL) ? -1 : (double)(bench_now() - begin);
}

static uint64_t sum_of(const struct sleeper *s)
{
	const uint64_t *at = (const uint64_t *)s->copy;
	uint64_t sum = 0;
	size_t i;

	for (i = 0; i < s->size / sizeof(*at); i++)
		sum = sum * 31 + at[i];
	return sum;
}

static bool fill(struct sleeper *s)
{
	const struct hm_driver *d = s->o->drv;
	int i;

	for (i = 0; i < BLOCKS; i++)
		if (hetmem_alloc(s->res, block_size(s), 0, NULL, &s->block[i]) ||
		    d->cuMemsetD8Async((uintptr_t)s->block[i], 3 + 7 * i, block_size(s), NULL))
			return false;
	return !d->cuStreamSynchronize(NULL);
}

/* Host memory that nobody had before takes a virtual machine longer to make. */
static void warm_up(struct sleeper *s)
{
	void *p;

	if (!hetmem_alloc(s->host, 2 * s->size, 0, HETMEM_STREAM_HOST, &p))
		hetmem_free(s->host, p, 0, HETMEM_STREAM_HOST);
}

static bool begin(struct sleeper *s, const char *spec)
{
	void *copy;

	s->res = bench_make(s->o, spec);
	s->host = s->res ? bench_make(s->o, "pinned") : NULL;
	if (!s->host)
		return false;
	warm_up(s);
	if (!fill(s) || hetmem_alloc(s->host, s->size, 0, HETMEM_STREAM_HOST, &copy)) {
		complain(EXIT_FAILED, "bench", "%s: %s", spec, hetmem_last_error());
		return false;
	}
	s->copy = copy;
	if (copy_all(s) < 0)
		return false;
	s->sum = sum_of(s);
	return true;
}

static void end(struct sleeper *s)
{
	int i;

	for (i = 0; i < BLOCKS && s->res; i++)
		if (s->block[i])
			hetmem_free(s->res, s->block[i], 0, NULL);
	if (s->copy)
		hetmem_free(s->host, s->copy, 0, HETMEM_STREAM_HOST);
	if (s->host)
		hetmem_resource_destroy(s->host);
	if (s->res)
		hetmem_resource_destroy(s->res);
}

static void add(struct bench_pairs *pairs, const char *spec, const char *what, double ns,
		double peer)
{
	struct bench_pair row = {
		.what = what, .threads = 1, .ns = ns, .peer = "a copy, page-locked",
		.peer_ns = peer, .system_calls = -1,
	};

	snprintf(row.spec, sizeof(row.spec), "%s", spec);
	bench_pairs_add(pairs, &row);
}

/*
 * The driver clears the memory that a sleep gives up: on an H200 a wake that follows at once
 * takes 5 to 8% longer. Between the phases of a program there is more time.
 */
#define AWAY_NS	100000000

/* Sleeps, for a while or not, and wakes; @times: of the sleep, and of the wake. */
static bool sleep_and_wake(struct sleeper *s, bool at_once, double times[2])
{
	const struct timespec away = { .tv_nsec = AWAY_NS };
	uint64_t at = bench_now();

	if (hetmem_sleep(s->res, NULL, HETMEM_SLEEP_KEEP))
		return false;
	times[0] = bench_now() - at;
	if (!at_once)
		nanosleep(&away, NULL);
	at = bench_now();
	if (hetmem_wake(s->res, NULL))
		return false;
	times[1] = bench_now() - at;
	return true;
}

static int run(struct bench_options *o, struct bench_pairs *pairs, const char *spec,
	       size_t size)
{
	static const char *const what[ROUNDS][2] = {
		{ "sleep, the first time", "wake, the first time" },
		{ "sleep again", "wake again" },
		{ "sleep, a third time", "wake, at once" },
	};
	struct sleeper s = { .o = o, .size = size };
	double times[2], peer;
	bool good = begin(&s, spec);
	int i;

	for (i = 0; i < ROUNDS && good; i++) {
		peer = copy_all(&s);
		good = sleep_and_wake(&s, i == ROUNDS - 1, times);
		if (!good) {
			complain(EXIT_FAILED, "bench", "%s: %s", spec, hetmem_last_error());
			break;
		}
		good = copy_all(&s) >= 0 && sum_of(&s) == s.sum;
		if (!good)
			complain(EXIT_FAILED, "bench", "%s: contents are not what they were",
				 spec);
		add(pairs, spec, what[i][0], times[0], peer);
		add(pairs, spec, what[i][1], times[1], peer);
	}
	end(&s);
	return good ? EXIT_OK : EXIT_FAILED;
}

/* 8 GiB, or what the machine can spare: device memory once, host memory twice. */
static size_t size_for(const struct bench_options *o)
{
	size_t size = o->size ? o->size : 8 * GIB, available, total;

	if (o->drv->cuMemGetInfo(&available, &total))
		available = GIB;
	while (size > 64 * MIB && (size * 4 > available_memory() || size > available / 2))
		size /= 2;
	return size / (BLOCKS * MIB) * (BLOCKS * MIB);
}

int bench_sleep(int argc, char **argv)
{
	static const char *const presets[] = {
		"pool(vmm,park=keep)", "pool(vmm,park=keep,handle=2M)", NULL,
	};
	struct bench_options o = { 0 };
	int i, status = bench_begin(&o, argc, argv,
		"Usage: hetmem bench sleep [--spec SPEC]... [--size MIB] [--driver DRIVER] [--json]\n"
		"Parks the contents of a pool and brings them back, beside a copy of as much to\n"
		"page-locked memory. NS is of all of it: 8 GiB, or what the machine can spare.", presets);
	struct bench_pairs *pairs;
	size_t size;
	int failed = EXIT_OK, ended;

	if (status >= 0)
		return status;
	size = size_for(&o);
	if (!size)
		return usage_error("bench", "--size must be %d at least", BLOCKS);
	fprintf(stderr, "hetmem: bench: %zu MiB in %d blocks\n", size / MIB, BLOCKS);
	pairs = bench_pairs_new();
	for (i = 0; i < o.nr_specs; i++)
		if (run(&o, pairs, o.specs[i], size))
			failed = EXIT_FAILED;
	ended = bench_end(&o, pairs);
	return failed ? failed : ended;
}
