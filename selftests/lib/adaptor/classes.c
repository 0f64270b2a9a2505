// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Placement classes: blocks of two classes never share 2 MiB; small programs hold
 * little; free memory of one class serves another; max= is of all classes; a block
 * comes back in one piece; gaps; statistics, trim, walk and options are of all.
 * An argument is the seed of the randomized part.
 */
#include <hetmem/snapshot.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "provider/arenas.h"
#include "below.h"
#include "soft_driver.h"

#define MIB	((size_t)1 << 20)
#define KIB	((size_t)1 << 10)
#define UNIT	(2 * MIB)
#define HOST	HETMEM_STREAM_HOST
#define NR	5	/* classes */

static CUstream a, b;

static struct hetmem_resource *make(const char *spec)
{
	struct hetmem_resource *res = NULL;

	need(!hetmem_resource_create(hm, spec, &res), "%s: %s", spec,
	     hetmem_last_error());
	return res;
}

static void *get_in(struct hetmem_resource *res, unsigned int class, size_t size,
		    hetmem_stream stream)
{
	const struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = size, .stream = stream,
		.placement = class,
	};
	void *p = NULL;

	if (hetmem_alloc_with(res, &params, &p))
		printf("# %s\n", hetmem_last_error());
	return p;
}

static struct hetmem_resource_stats stats_of(struct hetmem_resource *res)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };

	need(!hetmem_resource_stats(res, &stats), "stats");
	return stats;
}

/* How often @call was made since calls_begin(). */
static void calls_begin(const char *call)
{
	char rule[80];

	snprintf(rule, sizeof(rule), "%s:1000000", call);
	need(!soft_rules(rule, NULL), "a rule");
}

static long calls_end(void)
{
	long made = hm->soft->made(0);

	soft_rules(NULL, NULL);
	return made;
}

/* Separation. */

#define NR_BLOCKS	200

struct held {
	uintptr_t ptr;
	size_t size;
	unsigned int class;
	hetmem_stream stream;
};

static struct held held[NR_BLOCKS];

/* For a walk: each live block is one of @held, at its address. */
struct walked {
	unsigned int live, unknown;
	size_t bytes;
};

static int see_block(void *data, const struct hetmem_walk_segment *segment,
		     const struct hetmem_walk_block *block)
{
	struct walked *w = data;
	unsigned int i;

	(void)segment;
	w->bytes += block->bytes;
	if (block->state != HETMEM_BLOCK_LIVE)
		return 0;
	w->live++;
	for (i = 0; i < NR_BLOCKS; i++)
		if (held[i].ptr == (uintptr_t)block->ptr)
			return 0;
	w->unknown++;
	return 0;
}

static unsigned int shared_units(void)
{
	unsigned int i, j, n = 0;

	for (i = 0; i < NR_BLOCKS; i++)
		for (j = 0; held[i].ptr && j < i; j++)
			n += held[j].ptr && held[i].class != held[j].class &&
			     held[i].ptr / UNIT <= (held[j].ptr + held[j].size - 1) / UNIT &&
			     held[j].ptr / UNIT <= (held[i].ptr + held[i].size - 1) / UNIT;
	return n;
}

static void separation(const char *spec, unsigned int steps)
{
	struct hetmem_resource *res = make(spec);
	const hetmem_stream streams[] = { HOST, a, b };
	struct hetmem_walk walk = { .size = sizeof(walk), .block = see_block };
	unsigned int i, step, shared = 0, wrong = 0, none = 0;
	struct hetmem_resource_stats stats;
	struct walked walked;

	memset(held, 0, sizeof(held));
	walk.data = &walked;
	for (step = 0; step < steps; step++) {
		struct held *h = &held[below(NR_BLOCKS)];

		if (h->ptr) {
			wrong += !!hetmem_free(res, (void *)h->ptr,
					       below(2) ? h->size : 0,
					       h->stream);
			h->ptr = 0;
			continue;
		}
		h->class = 1 + below(NR);
		h->size = below(4) ? 1 + below(100000) :
			1 + below(6 * MIB);
		h->stream = streams[below(3)];
		h->ptr = (uintptr_t)get_in(res, h->class, h->size, h->stream);
		none += !h->ptr;
		if (step % 16 && step < steps - 16)
			continue;
		shared += shared_units();
		walked = (struct walked){ 0 };
		wrong += !!hetmem_walk(res, &walk);
		stats = stats_of(res);
		wrong += walked.unknown || walked.live != stats.live ||
			walked.bytes > stats.reserved;
	}
	is(shared, 0, "%s: no 2 MiB with two classes", spec);
	is(wrong, 0, "%s: walks and statistics are of all classes", spec);
	is(none, 0, "%s: there was always memory", spec);
	for (i = 0; i < NR_BLOCKS; i++)
		hetmem_free(res, (void *)held[i].ptr, 0, held[i].stream);
	is(hetmem_trim(res, 0, NULL), 0, "%s: trim", spec);
	is(stats_of(res).reserved, 0, "%s: gives all back", spec);
	is(hetmem_resource_destroy(res), 0, "%s: nothing is live", spec);
}

/* 1 MiB in k classes holds 2k MiB at most, in whatever blocks. */
static void bound(const char *spec)
{
	static const size_t sizes[] = { MIB, 256 * KIB, 4 * KIB, 512 };
	unsigned int k, i, s;
	bool good = true;
	size_t at;

	for (k = 1; k <= NR; k++) {
		for (s = 0; s < 4; s++) {
			struct hetmem_resource *res = make(spec);
			size_t got = 0;

			for (at = 0; at < MIB; at += sizes[s])
				for (i = 1; i <= k; i++)
					got += get_in(res, i, sizes[s], a) ?
						sizes[s] : 0;
			good = good && got == k * MIB &&
				stats_of(res).reserved <= 2 * k * MIB &&
				stats_of(res).reserved_peak <= 2 * k * MIB;
			hetmem_resource_destroy(res);
		}
	}
	ok(good, "%s: 1 MiB in each of k classes holds 2k MiB at most", spec);
}

/* Units that one class freed serve another class, without the driver. */
static void handed_over(const char *spec, const char *call)
{
	struct hetmem_resource *res = make(spec);
	void *p[16];
	unsigned int i, class;

	for (i = 0; i < 16; i++)
		p[i] = get_in(res, 1, 4 * MIB, HOST);
	calls_begin(call);
	for (class = 1; class <= NR; class++) {
		for (i = 0; i < 16; i++)
			hetmem_free(res, p[i], 0, HOST);
		for (i = 0; i < 16; i++)
			p[i] = get_in(res, 1 + class % NR, 4 * MIB, HOST);
		ok(p[15], "%s: blocks of class %u", spec, 1 + class % NR);
	}
	is(calls_end(), 0, "%s: without a call of %s", spec, call);
	ok(stats_of(res).driver_calls < 150, "%s: statistics know that: %llu", spec,
	   (unsigned long long)stats_of(res).driver_calls);
	is(stats_of(res).reserved_peak, 64 * MIB, "%s: no more was held", spec);
	hetmem_resource_destroy(res);
}

/* max= is of all classes; what one waits for may be another's. */
static void one_max(void)
{
	struct hetmem_resource *res = make("unified(max=32M)");
	void *p = get_in(res, 2, 20 * MIB, a), *q = NULL;

	need(p, "a block");
	is(hetmem_alloc(res, 16 * MIB, 0, HOST, &q), -ENOMEM, "max is of all");
	ok(strstr(hetmem_last_error(), "of at most 33554432 bytes are held, and units of 2 MiB take"),
	   "%s", hetmem_last_error());
	ok(!q, "and nothing was given");
	need(!soft_launch(a, "busy", NULL, 0, 20000000), "work");
	hetmem_free(res, p, 0, a);
	is(hetmem_alloc(res, 16 * MIB, 0, HOST, &q), 0,
	   "another class's work was waited for");
	is(stats_of(res).reserved <= 32 * MIB, 1, "within max");
	is(hetmem_resource_set(res, "max", "64M"), 0, "a higher max");
	p = get_in(res, 2, 40 * MIB, a);
	ok(p, "can be used");
	hetmem_free(res, p, 0, a);
	is(hetmem_resource_set(res, "max", "24M"), 0, "a lower one");
	is(stats_of(res).reserved <= 24 * MIB, 1, "gives memory back");
	is(hetmem_resource_set(res, "pool.max", "48M"), 0, "by the pool's name");
	is(hetmem_resource_set(res, "max", "0"), -EINVAL, "a bad one");
	is(hetmem_resource_set(res, "min", "1G"), -EINVAL, "min above max");
	is(hetmem_resource_set(res, "wait", "0s"), 0, "wait changes");
	is(hetmem_resource_set(res, "handle", "4M"), -EOPNOTSUPP, "handle does not");
	hetmem_resource_destroy(res);

	res = make("unified(min=8M)");
	is(stats_of(res).reserved, 8 * MIB, "min is there from the start, once");
	hetmem_trim(res, 0, NULL);
	is(stats_of(res).reserved, 8 * MIB, "and stays");
	hetmem_resource_destroy(res);
}

/* Free memory that is held in pieces is given back for a larger block. */
static void in_pieces(const char *spec)
{
	struct hetmem_resource *res = make(spec);
	void *p[16], *q;
	unsigned int i;

	for (i = 0; i < 16; i++)
		p[i] = get_in(res, 1, 2 * MIB, HOST);
	for (i = 0; i < 16; i += 2)
		hetmem_free(res, p[i], 0, HOST);
	q = get_in(res, 2, 4 * MIB, HOST);
	ok(q, "%s: 4 MiB where 16 are free in pieces", spec);
	ok(get_in(res, 3, 12 * MIB, HOST), "%s: and 12", spec);
	ok(stats_of(res).reserved <= 32 * MIB, "%s: within max", spec);
	is(hetmem_free(res, q, 0, HOST), 0, "%s: a free", spec);
	ok(get_in(res, 1, 4 * MIB, HOST), "%s: the first class has them again", spec);
	hetmem_resource_destroy(res);
}

/* Coming back, and the other way: as few calls as there are pieces. */
static void in_one_piece(void)
{
	struct hetmem_resource *res = make("unified(over=managed)");
	char *p, *q;
	unsigned int i;
	void *small[64];

	/* The same memory, class both: the device, the host, the device. */
	p = get_in(res, 4, 32 * MIB, a);
	calls_begin("cuMemPrefetchAsync");
	hetmem_free(res, p, 0, a);
	is(calls_end(), 0, "freed memory moves nowhere");
	drv->cuStreamSynchronize(a);
	calls_begin("cuMemPrefetchAsync");
	q = get_in(res, 4, 32 * MIB, HOST);
	ok(q == p, "the same block");
	is(calls_end(), 1, "it comes back in one piece");
	memset(q, 1, 32 * MIB);
	calls_begin("cuMemPrefetchAsync");
	hetmem_free(res, q, 0, HOST);
	q = get_in(res, 4, 32 * MIB, HOST);
	is(calls_end(), 0, "and stays there");
	calls_begin("cuStreamSynchronize");
	hetmem_free(res, q, 0, HOST);
	q = get_in(res, 4, 32 * MIB, a);
	is(calls_end(), 0, "to the device nobody waits");
	calls_begin("cuMemPrefetchAsync");
	hetmem_free(res, q, 0, a);
	q = get_in(res, 4, 32 * MIB, a);
	is(calls_end(), 0, "the device has it");
	hetmem_free(res, q, 0, HOST);
	hetmem_trim(res, 0, NULL);

	/* Units of the device's class become the host's: small blocks, one call. */
	p = get_in(res, 2, 32 * MIB, a);
	hetmem_free(res, p, 0, a);
	drv->cuStreamSynchronize(a);
	calls_begin("cuMemPrefetchAsync");
	for (i = 0; i < 64; i++)
		small[i] = get_in(res, 1, 500 * KIB, HOST);
	is(calls_end(), 16, "small blocks of the host: a piece for each 2 MiB");
	is(stats_of(res).reserved, 32 * MIB, "of the memory that the device had");
	for (i = 0; i < 64; i++)
		hetmem_free(res, small[i], 0, HOST);

	/* A use that was reported, or a free on a stream of the device. */
	p = get_in(res, 1, 8 * MIB, HOST);
	is(hetmem_record_stream(res, p, b), 0, "a use");
	hetmem_free(res, p, 0, HOST);
	drv->cuStreamSynchronize(b);
	hetmem_poll(res);
	calls_begin("cuMemPrefetchAsync");
	q = get_in(res, 1, 8 * MIB, HOST);
	is(calls_end(), q == p, "a block that was recorded comes back");
	hetmem_free(res, q, 8 * MIB, a);
	drv->cuStreamSynchronize(a);
	calls_begin("cuMemPrefetchAsync");
	p = get_in(res, 1, 8 * MIB, HOST);
	is(calls_end(), p == q, "one that was freed on a stream, too");
	ok(p == q, "it is the same");

	/* The driver fails: the block is there all the same. */
	hetmem_free(res, p, 8 * MIB, a);
	drv->cuStreamSynchronize(a);
	need(!soft_rules("cuMemPrefetchAsync:1", NULL), "a rule");
	p = get_in(res, 1, 8 * MIB, HOST);
	ok(p, "the driver does not bring it");
	soft_rules(NULL, NULL);
	hetmem_free(res, p, 0, HOST);
	calls_begin("cuMemPrefetchAsync");
	p = get_in(res, 1, 8 * MIB, HOST);
	is(calls_end(), 1, "the next time it does");
	hetmem_resource_destroy(res);
}

/* Own pages are dropped and made anew, without the driver; nothing that is live is. */
static void dropped(void)
{
	struct hetmem_resource *res = make("unified(over=system)");
	char *p, *before, *after;

	/* They are cut from one region, so none but the first begins a page. */
	p = get_in(res, 4, 20 * MIB, a);
	hetmem_free(res, p, 0, a);
	before = get_in(res, 4, 3 * MIB + 512, a);
	p = get_in(res, 4, 8 * MIB, a);
	after = get_in(res, 4, 3 * MIB + 512, a);
	need(p == before + 3 * MIB + 512 && after == p + 8 * MIB, "in a row");
	memset(before, 1, 3 * MIB + 512);
	memset(p, 2, 8 * MIB);
	memset(after, 3, 3 * MIB + 512);
	hetmem_free(res, p, 0, a);
	drv->cuStreamSynchronize(a);
	calls_begin("cuMemPrefetchAsync");
	ok(get_in(res, 4, 8 * MIB, HOST) == p, "the same block");
	is(calls_end(), 0, "without a call of the driver");
	ok(all_bytes(before, 1, 3 * MIB + 512) &&
	   all_bytes(after, 3, 3 * MIB + 512), "its neighbours are as they were");
	is(p[4 * MIB], 0, "its own pages are new");
	hetmem_resource_destroy(res);
}

/* Bytes of pages that are there. */
static size_t present(const void *p, size_t size)
{
	static unsigned char core[16 * 256];
	size_t i, n = 0;

	need(size <= 16 * MIB && !mincore((void *)p, size, core), "pages");
	for (i = 0; i < size / 4096; i++)
		n += (core[i] & 1) * 4096;
	return n;
}

/* Single units of own pages go back to the system; of other memory only arenas do. */
static void given_back(void)
{
	struct hetmem_resource *res = make("unified(over=system)");
	char *p = get_in(res, 1, 4 * MIB, HOST), *q = get_in(res, 1, 4 * MIB, HOST);

	need(q == p + 4 * MIB, "two blocks of one arena");
	memset(p, 1, 8 * MIB);
	hetmem_free(res, p, 0, HOST);
	is(stats_of(res).reserved, 8 * MIB, "a free gives nothing back");
	hetmem_trim(res, 0, NULL);
	is(stats_of(res).reserved, 4 * MIB, "trim does");
	is(present(p, 4 * MIB), 0, "the pages are gone");
	ok(all_bytes(q, 1, 4 * MIB), "and the others are not");
	hetmem_resource_destroy(res);

	res = make("unified(over=managed)");
	p = get_in(res, 1, 4 * MIB, HOST);
	q = get_in(res, 1, 4 * MIB, HOST);
	hetmem_free(res, p, 0, HOST);
	hetmem_trim(res, 0, NULL);
	is(stats_of(res).reserved, 8 * MIB, "a live block keeps its arena");
	calls_begin("cuMemFree");
	hetmem_free(res, q, 0, HOST);
	hetmem_trim(res, 0, NULL);
	is(calls_end(), 1, "which is given back as a whole");
	is(stats_of(res).reserved, 0, "then nothing is held");
	hetmem_resource_destroy(res);
}

/* populate= makes pages for the CPU's classes, unit by unit; huge= bounds its cost. */
static void populated(void)
{
	struct hetmem_resource *res = make("unified(over=system,populate=3)");
	char *p;

	p = get_in(res, 1, 8 * MIB, HOST);
	is(present(p, 8 * MIB), 8 * MIB, "populated");
	ok(present(p + 8 * MIB, 4 * MIB) == 0, "but not all of the arena");
	p = get_in(res, 2, 8 * MIB, a);
	is(present(p, 8 * MIB), 0, "what the device touches first is not");
	hetmem_resource_destroy(res);

	/* Without huge pages each touch makes one small page. */
	res = make("unified(over=system,huge=0s)");
	p = get_in(res, 1, 8 * MIB, HOST);
	p[5 * MIB] = 1;
	is(present(p, 8 * MIB), 4096, "huge=0s: small pages");
	hetmem_resource_destroy(res);
	is(hetmem_resource_create(hm, "unified(over=system,populate=0)", &res),
	   -EINVAL, "no threads");
	is(hetmem_resource_create(hm, "unified(over=system,populate=65)", &res),
	   -EINVAL, "too many");
	is(hetmem_resource_create(hm, "unified(over=system,populate=4x)", &res),
	   -EINVAL, "no number");
	ok(strstr(hetmem_last_error(), "on, off or 1 to 64"), "%s",
	   hetmem_last_error());
	is(hetmem_resource_create(hm, "unified(over=system,node=900)", &res),
	   -EINVAL, "no such node");
	is(hetmem_resource_create(hm, "unified(over=system,huge=x)", &res),
	   -EINVAL, "no time");
}

/* On a stream that is captured nothing moves: the capture stays valid. */
static void captured(void)
{
	struct hetmem_resource *res = make("unified(over=managed)");
	CUgraph graph;
	char *p;

	p = get_in(res, 4, 4 * MIB, HOST);
	hetmem_free(res, p, 0, HOST);
	is(hetmem_capture_begin(res, a, 7), 0, "begins");
	need(!drv->cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL),
	     "a capture");
	calls_begin("cuMemPrefetchAsync");
	ok(get_in(res, 4, 4 * MIB, a) == p, "the host's memory");
	is(calls_end(), 0, "is not moved");
	is(drv->cuStreamEndCapture(a, &graph), 0, "the capture is valid");
	drv->cuGraphDestroy(graph);
	is(hetmem_capture_end(res, a, 7) | hetmem_free(res, p, 0, a) |
	   hetmem_capture_release(res, a, 7), 0, "released");
	is(hetmem_resource_destroy(res), 0, "nothing is live");
}

/* Memory that a transport registered keeps its pages, freed or not. */
static void kept(const char *spec)
{
	struct hetmem_resource *res = make(spec);
	char *p = get_in(res, 4, 8 * MIB, a);

	memset(p, 7, 8 * MIB);
	is(hetmem_pin_comm(res, p + 5), 0, "%s: pinned", spec);
	is(hetmem_pin_comm(res, &res), -EINVAL, "%s: not ours", spec);
	hetmem_free(res, p, 0, a);
	drv->cuStreamSynchronize(a);
	calls_begin("cuMemPrefetchAsync");
	ok(get_in(res, 4, 8 * MIB, HOST) == p, "%s: the same block", spec);
	is(calls_end(), 0, "%s: is not moved", spec);
	ok(all_bytes(p, 7, 8 * MIB), "%s: nor are its pages new", spec);
	hetmem_free(res, p, 0, HOST);
	hetmem_trim(res, 0, NULL);
	is(stats_of(res).reserved, 8 * MIB, "%s: nor given back", spec);
	hetmem_resource_destroy(res);
}

/* Nor does what is beside them take them along. */
static void kept_beside(void)
{
	struct hetmem_resource *res = make("unified(over=system)");
	char *p, *q;

	p = get_in(res, 3, 20 * MIB, HOST);
	hetmem_free(res, p, 0, HOST);
	p = get_in(res, 3, 8 * MIB, HOST);
	q = get_in(res, 3, 8 * MIB, a);
	need(q == p + 8 * MIB, "in a row");
	memset(p, 7, 8 * MIB);
	is(hetmem_pin_comm(res, p), 0, "pinned");
	hetmem_free(res, p, 0, HOST);
	hetmem_free(res, q, 0, a);
	drv->cuStreamSynchronize(a);
	hetmem_poll(res);
	ok(get_in(res, 3, 16 * MIB, HOST) == p, "one block where two were");
	ok(all_bytes(p, 7, 8 * MIB), "pages that are registered stay");
	hetmem_resource_destroy(res);
}

/* Units that a device had are dropped when they become the host's. */
static void dropped_units(void)
{
	struct hetmem_resource *res = make("unified(over=system)");
	char *p = get_in(res, 2, 8 * MIB, a);

	memset(p, 1, 8 * MIB);
	hetmem_free(res, p, 0, a);
	drv->cuStreamSynchronize(a);
	calls_begin("cuMemPrefetchAsync");
	ok(get_in(res, 1, 500 * KIB, HOST) == p, "the host has the units");
	is(calls_end(), 0, "without a call of the driver");
	is(p[MIB], 0, "and new pages");
	hetmem_resource_destroy(res);
}

static bool gap(const char *left, const char *right)
{
	return hm_arenas_gap(hm, (uintptr_t)left, (uintptr_t)right);
}

/* Two arenas can have contiguous addresses: that is no gap. */
static void borders(struct hetmem_resource *res)
{
	char *p[24];
	unsigned int i, j, met = 0, wrong = 0;

	for (i = 0; i < 24; i++)
		p[i] = get_in(res, 3, 3 * MIB, a);
	for (i = 0; i < 24; i++) {
		for (j = 0; j < 24; j++) {
			if (p[j] != p[i] + 4 * MIB ||
			    !hm_arenas_border(hm, (uintptr_t)p[j]))
				continue;
			met++;
			wrong += gap(p[i], p[j]);
		}
	}
	printf("# %u arenas have contiguous addresses\n", met);
	is(wrong, 0, "no gap between two arenas");
}

/* The driver refuses a piece that crosses two arenas. */
static hm_prefetch_v2_fn *real_prefetch;
static unsigned int pieces, crossing;

static CUresult note_piece(CUdeviceptr ptr, size_t size, CUmemLocation where,
			   unsigned int flags, CUstream stream)
{
	uintptr_t at;

	pieces++;
	for (at = (ptr & ~(UNIT - 1)) + UNIT; at < ptr + size; at += UNIT)
		crossing += hm_arenas_border(hm, at);
	return real_prefetch(ptr, size, where, flags, stream);
}

static void not_crossed(unsigned int class)
{
	struct hetmem_resource *res = make("unified(over=managed)");
	const hetmem_stream first = class == 1 ? a : HOST, then = class == 1 ? HOST : a;
	char *p[64];
	unsigned int i;

	for (i = 0; i < 64; i++)
		p[i] = get_in(res, class, UNIT, first);
	for (i = 0; i < 64; i++)
		hetmem_free(res, p[i], 0, first);
	drv->cuStreamSynchronize(a);
	hetmem_poll(res);
	real_prefetch = hm->driver.cuMemPrefetchAsync_v2;
	hm->driver.cuMemPrefetchAsync_v2 = note_piece;
	pieces = crossing = 0;
	for (i = 0; i < 64; i++)
		p[i] = get_in(res, class, UNIT, then);
	hm->driver.cuMemPrefetchAsync_v2 = real_prefetch;
	is(crossing, 0, "class %u: no piece crosses two arenas", class);
	ok(pieces && pieces <= 16, "class %u: what comes with a block comes once: %u pieces",
	   class, pieces);
	hetmem_resource_destroy(res);
}

/* Free memory between two blocks of a class. */
static void gaps(void)
{
	struct hetmem_resource *res = make("unified(over=managed)");
	char *p[8], *l[3], *other;
	int i;

	for (i = 0; i < 8; i++)
		p[i] = get_in(res, 2, 64 * KIB, a);
	for (i = 1; i < 8; i++)
		need(p[i] == p[i - 1] + 64 * KIB, "blocks in a row");
	ok(gap(p[0], p[1]), "neighbours");
	ok(!gap(p[0], p[2]), "a live block");
	hetmem_free(res, p[1], 0, a);
	hetmem_free(res, p[2], 0, a);
	ok(gap(p[0], p[3]), "freed ones");
	ok(!gap(p[0], p[4]), "and one that is not");
	ok(!gap(p[3], p[3]) && !gap(p[3], p[0]), "no range");
	ok(!gap(p[0], p[2]) && !gap(p[1], p[3]), "no block");
	ok(!gap(p[0], p[3] + 512), "not its beginning");
	ok(!gap((char *)&i, (char *)(&i + 1)), "memory of nobody's");
	/* Large blocks have regions of their own, in the same arena. */
	for (i = 0; i < 3; i++)
		l[i] = get_in(res, 2, 3 * MIB, a);
	need(l[2] == l[1] + 4 * MIB && l[1] == l[0] + 4 * MIB, "regions");
	ok(gap(p[7], l[0]), "the ends of two regions");
	ok(gap(l[0], l[1]), "of large blocks");
	ok(!gap(l[0], l[2]), "and a block");
	/* The first block of an arena is the arena's border. */
	ok(hm_arenas_border(hm, (uintptr_t)p[0]), "an arena begins");
	ok(!hm_arenas_border(hm, (uintptr_t)p[3]) &&
	   !hm_arenas_border(hm, (uintptr_t)l[0]), "none does in it");
	ok(!hm_arenas_border(hm, (uintptr_t)&i / 4096 * 4096), "nor elsewhere");
	borders(res);
	other = get_in(res, 1, 64 * KIB, a);
	ok(!gap(p[7], other) && !gap(other, p[7]), "two classes");

	/* A prefetch counts as a use. */
	hm_arenas_moved(hm, (uintptr_t)p[4], (uintptr_t)p[5], false);
	hetmem_free(res, p[4], 0, a);
	calls_begin("cuMemPrefetchAsync");
	p[4] = get_in(res, 2, 64 * KIB, a);
	is(calls_end(), 1, "what a prefetch took away is brought");
	hetmem_resource_destroy(res);
	ok(!gap(p[0], p[3]), "destroyed");
}

/* A class passes through adaptors. */
static void through_adaptors(void)
{
	static const char *const specs[] = {
		"stats(unified)", "limit(unified,max=1G)", "guard(unified)",
		"align(unified,align=4K)", "retry(unified)", "history(unified)",
		"log(unified,file=/dev/null)",
	};
	struct hetmem_resource *res;
	char *p[1 + NR];
	unsigned int i, j, same;
	size_t s;

	for (s = 0; s < sizeof(specs) / sizeof(specs[0]); s++) {
		res = make(specs[s]);
		for (i = 1; i <= NR; i++)
			p[i] = get_in(res, i, 1000, a);
		for (i = 1, same = 0; i <= NR; i++)
			for (j = 1; j < i; j++)
				same += (uintptr_t)p[i] / UNIT == (uintptr_t)p[j] / UNIT;
		is(same, 0, "%s: classes", specs[s]);
		for (i = 1; i <= NR; i++)
			hetmem_free(res, p[i], 1000, a);
		is(hetmem_resource_destroy(res), 0, "%s: none is live", specs[s]);
	}
}

static void bad_input(void)
{
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = 1, .stream = HOST,
		.placement = NR + 1,
	};
	static const char *const plain[] = {
		"device", "pool(vmm)", "fixed(pool(host),size=4K,count=2)",
		"stats(binning(pool(host),managed,at=1K))", "guard(pool(host))",
		"fallback(device,unified)", "retry(managed)",
	};
	struct hetmem_resource *res = make("unified");
	void *p = NULL;
	size_t i;

	is(hetmem_alloc_with(res, &params, &p), -EINVAL, "no such class");
	ok(strstr(hetmem_last_error(), "placement 6") && !p, "%s",
	   hetmem_last_error());
	is(hetmem_free(res, &params, 0, HOST), -EINVAL, "memory of nobody's");
	is(hetmem_record_stream(res, &params, a), -EINVAL, "nor can it be used");
	p = get_in(res, 2, 1000, a);
	is(hetmem_grow(res, (char *)p + 512, 5000, a), -EINVAL, "no block begins here");
	is(hetmem_grow(res, &params, 5000, a), -EINVAL, "nor in memory of nobody's");
	is(hetmem_resource_destroy(res), 1, "one is live");
	is(hetmem_resource_create(hm, "classes(async)", &res), -EOPNOTSUPP,
	   "memory in the order of streams");
	is(hetmem_resource_create(hm, "classes(vmm)", &res), -EOPNOTSUPP,
	   "memory that is mapped");
	is(hetmem_resource_create(hm, "classes(host,max=1M,min=2M)", &res),
	   -EINVAL, "min above max");
	is(hetmem_resource_create(hm, "classes(host,comm=on)", &res),
	   -EOPNOTSUPP, "an option of other pools");
	is(hetmem_resource_create(hm, "classes(host,handle=1M)", &res), -EINVAL,
	   "regions below 2 MiB");
	for (i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
		res = make(plain[i]);
		p = get_in(res, 3, 1000, HOST);
		ok(p && !stats_of(res).failed &&
		   !hetmem_free(res, p, 1000, HOST), "%s: has no classes",
		   plain[i]);
		hetmem_resource_destroy(res);
	}
}

/* Calls of the driver for a prefetch of @nr blocks of 64 KiB to the device. */
static long prefetched(char **p, unsigned int nr)
{
	static struct hetmem_prefetch_range ranges[256];
	unsigned int i;
	int err;

	for (i = 0; i < nr; i++)
		ranges[i] = (struct hetmem_prefetch_range){
			.size = sizeof(ranges[i]), .ptr = p[i],
			.bytes = 64 * KIB,
			.location = HETMEM_LOC(HETMEM_DEVICE, 0),
		};
	calls_begin("cuMemPrefetchAsync");
	err = hetmem_prefetch_batch(hm, ranges, nr, a);
	if (err)
		printf("# %d: %s\n", err, hetmem_last_error());
	return err ? err : calls_end();
}

/* Blocks of a class are prefetched as few pieces, across what was freed between them. */
static void prefetch(void)
{
	struct hetmem_resource *res = make("unified(over=managed)");
	char *p[256], *every[8], *q;
	unsigned int i;

	for (i = 0; i < 16; i++)
		p[i] = get_in(res, 2, 64 * KIB, a);
	for (i = 0; i < 8; i++)
		every[i] = p[2 * i];
	is(prefetched(every, 8), 8, "live blocks between them stay where they are");
	for (i = 0; i < 7; i++)
		hetmem_free(res, p[2 * i + 1], 0, a);
	is(prefetched(every, 8), 1, "freed ones are crossed");
	ok(get_in(res, 2, 64 * KIB, a), "one gap is used again");
	is(prefetched(every, 8), 2, "and no longer crossed");
	/* 16 MiB are more than an arena: pieces end where it does. */
	for (i = 0; i < 256; i++)
		p[i] = get_in(res, 3, 64 * KIB, a);
	ok(prefetched(p, 256) <= 8, "blocks of several arenas");
	calls_begin("cuPointerGetAttributes");
	for (i = 0; i < 256; i++)
		need(!hetmem_prefetch(hm, p[i], 64 * KIB, HETMEM_LOC(HETMEM_DEVICE, 0), a,
				      NULL), "a prefetch");
	is(calls_end(), 0, "what memory it is was asked once for all");
	/* The host's block that a program sent to the device comes back. */
	q = get_in(res, 1, 64 * KIB, HOST);
	is(prefetched(&q, 1), 1, "a block of the host goes to the device");
	hetmem_free(res, q, 0, HOST);
	calls_begin("cuMemPrefetchAsync");
	ok(get_in(res, 1, 64 * KIB, HOST) == q, "it is the host's again");
	is(calls_end(), 1, "and is brought");
	hetmem_resource_destroy(res);
}

/* Threads: all classes, all streams, and one that trims. */

#define THREADS		4
#define ROUNDS		300

struct worker {
	struct hetmem_resource *res;
	unsigned int nr;
	CUstream stream;
	unsigned int failed;
};

static void *work(void *arg)
{
	struct worker *w = arg;
	unsigned int i, mine = w->nr * 7919 + 1;
	unsigned char *p[8] = { NULL };

	for (i = 0; i < ROUNDS; i++) {
		unsigned int slot = i % 8;
		size_t size;

		mine = mine * 1103515245 + 12345;
		size = 1 + (mine >> 8) % (mine & 0x800000 ? 3 * MIB : 60000);
		if (p[slot]) {
			w->failed += *p[slot] != w->nr;
			w->failed += !!hetmem_free(w->res, p[slot], 0,
					slot & 1 ? HOST : w->stream);
		}
		p[slot] = get_in(w->res, 1 + (mine >> 16) % NR, size,
				 slot & 1 ? HOST : w->stream);
		if (p[slot])
			*p[slot] = w->nr;
		else
			w->failed++;
		if (w->nr == 1 && i % 32 == 0)
			w->failed += !!hetmem_trim(w->res, 0, NULL);
		if (w->nr == 2 && i % 16 == 0)
			hm_arenas_gap(hm, (uintptr_t)p[0], (uintptr_t)p[slot]);
	}
	for (i = 0; i < 8; i++)
		w->failed += !!hetmem_free(w->res, p[i], 0, HOST);
	return NULL;
}

static void threads(const char *spec)
{
	struct hetmem_resource *res = make(spec);
	struct worker workers[THREADS];
	pthread_t ids[THREADS];
	unsigned int i, failed = 0;

	for (i = 0; i < THREADS; i++) {
		workers[i] = (struct worker){ .res = res, .nr = i + 1 };
		need(!drv->cuStreamCreate(&workers[i].stream,
					  CU_STREAM_NON_BLOCKING) &&
		     !pthread_create(&ids[i], NULL, work, &workers[i]),
		     "a thread");
	}
	for (i = 0; i < THREADS; i++) {
		pthread_join(ids[i], NULL);
		failed += workers[i].failed;
		hetmem_stream_retire(res, workers[i].stream);
		drv->cuStreamDestroy(workers[i].stream);
	}
	is(failed, 0, "%s: %d threads", spec, THREADS);
	is(hetmem_trim(res, 0, NULL), 0, "%s: trim", spec);
	is(stats_of(res).reserved, 0, "%s: all is given back", spec);
	is(hetmem_resource_destroy(res), 0, "%s: nothing is live", spec);
}

/* A child goes on with its copy; the parent does not notice. */
static void forked(void)
{
	struct hetmem_resource *res = make("unified(over=system)");
	char *p = get_in(res, 2, 3 * MIB, a), *q;
	int status;
	pid_t pid;

	memset(p, 5, 3 * MIB);
	pid = fork();
	if (!pid) {
		q = get_in(res, 1, 20 * MIB, HOST);
		if (!q)
			_exit(1);
		memset(q, 6, 20 * MIB);
		if (p[MIB] != 5 || hetmem_free(res, p, 0, HOST) ||
		    hetmem_free(res, q, 0, HOST) ||
		    hetmem_trim(res, 0, NULL) || stats_of(res).reserved)
			_exit(2);
		_exit(hetmem_resource_destroy(res) ? 3 : 0);
	}
	waitpid(pid, &status, 0);
	ok(WIFEXITED(status) && !WEXITSTATUS(status), "a child goes on: %d", status);
	ok(all_bytes(p, 5, 3 * MIB), "the parent has what it had");
	is(hetmem_free(res, p, 0, a), 0, "and frees it");
	is(hetmem_resource_destroy(res), 0, "nothing is live");
}

/* The advice to the driver about units of a class. */

#define ADVISED	64

static struct {
	CUmem_advise what;
	int where;
	CUdeviceptr ptr;
	size_t size;
} advised[ADVISED];
static unsigned int nr_advised, refuse_from;

static CUresult note_advice(CUdeviceptr ptr, size_t size, CUmem_advise what,
			    CUmemLocation where)
{
	if (nr_advised < ADVISED) {
		advised[nr_advised].what = what;
		advised[nr_advised].where = where.type;
		advised[nr_advised].ptr = ptr;
		advised[nr_advised].size = size;
	}
	return ++nr_advised > refuse_from ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

static bool was_advised(unsigned int i, CUmem_advise what, const void *p)
{
	return i < nr_advised && advised[i].what == what &&
		advised[i].ptr == ((uintptr_t)p & ~(UNIT - 1)) && advised[i].size == UNIT;
}

static void frees(struct hetmem_resource *res, void *p, size_t size)
{
	need(!hetmem_free(res, p, size, a), "a free");
	drv->cuStreamSynchronize(a);
	need(!hetmem_trim(res, UNIT, NULL), "a trim");
}

static void advice(const char *spec)
{
	struct hetmem_resource *res = make(spec);
	hm_advise_v2_fn *real = hm->driver.cuMemAdvise_v2;
	void *p, *q, *first;

	hm->driver.cuMemAdvise_v2 = note_advice;
	nr_advised = 0;
	refuse_from = ADVISED;
	p = get_in(res, HETMEM_PLACEMENT_DEVICE, 4096, a);
	q = get_in(res, HETMEM_PLACEMENT_BOTH, 4096, a);
	is(nr_advised, 0, "%s: of the classes device and both the driver is told nothing",
	   spec);
	frees(res, p, 4096);
	frees(res, q, 4096);
	first = p = get_in(res, HETMEM_PLACEMENT_STREAMING, 4096, a);
	ok(nr_advised == 2 && was_advised(0, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, p) &&
	   was_advised(1, CU_MEM_ADVISE_SET_ACCESSED_BY, p) &&
	   advised[0].where == CU_MEM_LOCATION_TYPE_HOST &&
	   advised[1].where == CU_MEM_LOCATION_TYPE_DEVICE,
	   "%s: streaming stays on the host, the device reaches it there", spec);
	q = get_in(res, HETMEM_PLACEMENT_STREAMING, 4096, a);
	is(nr_advised, 2, "%s: a second block of that unit is told nothing", spec);
	frees(res, q, 4096);
	frees(res, p, 4096);
	p = get_in(res, HETMEM_PLACEMENT_HOST, 4096, HOST);
	ok(p != first || nr_advised == 4,
	   "%s: the class host is told nothing, and what was told is taken back", spec);
	frees(res, p, 4096);
	nr_advised = 0;
	p = get_in(res, HETMEM_PLACEMENT_READ_MOSTLY, 4096, a);
	ok(was_advised(nr_advised - 1, CU_MEM_ADVISE_SET_READ_MOSTLY, p),
	   "%s: read-mostly may be copied", spec);
	ok(nr_advised == 1 || (nr_advised == 3 &&
	   was_advised(0, CU_MEM_ADVISE_UNSET_ACCESSED_BY, p) &&
	   was_advised(1, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, p)),
	   "%s: what the unit was before is taken back", spec);
	frees(res, p, 4096);
	nr_advised = 0;
	p = get_in(res, HETMEM_PLACEMENT_DEVICE, 4096, a);
	ok(!nr_advised || was_advised(0, CU_MEM_ADVISE_UNSET_READ_MOSTLY, p),
	   "%s: and again", spec);
	frees(res, p, 4096);
	/* The second of two is refused: when the unit comes back it is told both. */
	nr_advised = 0;
	refuse_from = 1;
	p = get_in(res, HETMEM_PLACEMENT_STREAMING, 4096, a);
	ok(p, "%s: an allocation does not fail because advice does", spec);
	ok(was_advised(nr_advised - 1, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, p),
	   "%s: half of it is taken back, or the next class's memory stays on the host", spec);
	frees(res, p, 4096);
	refuse_from = ADVISED;
	q = get_in(res, HETMEM_PLACEMENT_DEVICE, 4096, a);
	frees(res, q, 4096);
	nr_advised = 0;
	q = get_in(res, HETMEM_PLACEMENT_STREAMING, 4096, a);
	ok(q != p || nr_advised == 2, "%s: it is given again", spec);
	frees(res, q, 4096);
	hm->driver.cuMemAdvise_v2 = real;
	is(hetmem_resource_destroy(res), 0, "%s: all is freed", spec);
}

/* Placement takes advice back while another thread, with the library open, frees memory. */
static hm_advise_v2_fn *real_advise;
static void *others_memory;
static pthread_t other;

static void *free_others(void *arg)
{
	(void)arg;
	hetmem_system_free(hm, others_memory);
	return NULL;
}

/* The first time: until that thread has the library's lock, and waits for placement's. */
static CUresult advise_meanwhile(CUdeviceptr ptr, size_t size, CUmem_advise what,
				 CUmemLocation where)
{
	if (!nr_advised++) {
		need(!pthread_create(&other, NULL, free_others, NULL), "a thread");
		while (!pthread_mutex_trylock(&hm->lock)) {
			pthread_mutex_unlock(&hm->lock);
			sched_yield();
		}
	}
	return real_advise(ptr, size, what, where);
}

static void advised_and_freed(void)
{
	struct hetmem_resource *res = make("unified(over=system)");
	char *p = get_in(res, HETMEM_PLACEMENT_DEVICE, 2 * MIB, HOST);

	is(hetmem_system_alloc(hm, MIB, &others_memory), 0, "memory of another's");
	is(hetmem_advise(hm, p, MIB, HETMEM_ADVISE_READ_MOSTLY, 0, NULL), 0, "advice");
	is(hetmem_advise(hm, p + MIB, MIB, HETMEM_ADVISE_PREFERRED,
			 HETMEM_LOC(HETMEM_DEVICE, 0), NULL), 0, "and other advice");
	real_advise = hm->driver.cuMemAdvise_v2;
	hm->driver.cuMemAdvise_v2 = advise_meanwhile;
	nr_advised = 0;
	is(hetmem_free(res, p, 0, HOST), 0, "a free takes back both, and does not hang");
	hm->driver.cuMemAdvise_v2 = real_advise;
	is(nr_advised, 2, "the driver knows");
	pthread_join(other, NULL);
	hetmem_resource_destroy(res);
}

/* A block that the device reaches is brought nowhere. */
static void stays(void)
{
	struct hetmem_resource *res = make("classes(managed)");
	unsigned long before;
	void *p;

	p = get_in(res, HETMEM_PLACEMENT_STREAMING, MIB, HOST);
	need(!hetmem_free(res, p, MIB, HOST), "a free");
	before = stats_of(res).driver_calls;
	p = get_in(res, HETMEM_PLACEMENT_STREAMING, MIB, a);
	is(stats_of(res).driver_calls - before, 0, "the device uses a streaming block where it is");
	need(!hetmem_free(res, p, MIB, a), "a free");
	drv->cuStreamSynchronize(a);
	before = stats_of(res).driver_calls;
	p = get_in(res, HETMEM_PLACEMENT_STREAMING, MIB, HOST);
	is(stats_of(res).driver_calls - before, 0, "and so does the CPU, after it");
	need(!hetmem_free(res, p, MIB, HOST), "a free");
	is(hetmem_resource_destroy(res), 0, "all is freed");
}

int main(int argc, char **argv)
{
	if (argc > 1)
		seed = strtoull(argv[1], NULL, 0);
	printf("# seed %llu\n", (unsigned long long)seed);
	setenv("HETMEM_SOFT_DEBUG", "1", 1);
	setenv("HETMEM_SOFT_MACHINE", "hmm memory=4G", 1);
	open_soft("");
	need(!drv->cuStreamCreate(&a, CU_STREAM_NON_BLOCKING) &&
	     !drv->cuStreamCreate(&b, CU_STREAM_NON_BLOCKING), "streams");
	separation("classes(managed)", 1500);
	separation("classes(system(device=0))", 1500);
	separation("classes(registered)", 600);
	separation("classes(host)", 600);
	separation("classes(device)", 600);
	bound("classes(managed)");
	bound("classes(system)");
	bound("classes(registered)");
	handed_over("classes(managed)", "cuMemAllocManaged");
	handed_over("classes(registered)", "cuMemHostRegister");
	one_max();
	in_pieces("classes(system(device=0),max=32M)");
	in_pieces("classes(host,max=32M)");
	in_one_piece();
	dropped();
	dropped_units();
	captured();
	kept("unified(over=system)");
	kept("unified(over=managed)");
	kept_beside();
	populated();
	given_back();
	gaps();
	not_crossed(1);
	not_crossed(2);
	prefetch();
	through_adaptors();
	bad_input();
	advice("classes(managed)");
	advice("classes(system(device=0))");
	advised_and_freed();
	stays();
	threads("unified(over=managed)");
	threads("unified(over=system,decay=1ms)");
	threads("unified(over=registered,max=256M)");
	forked();
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
	is(device_used(), 0, "nothing is left");
	close_soft();
	return tap_end();
}
