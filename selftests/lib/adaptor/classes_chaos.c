// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Placement classes while everything happens at once: threads allocate in all classes, on
 * the host and on streams, free elsewhere, record uses, prefetch, advise, trim and change
 * max=; the driver fails. Each block keeps its contents, no 2 MiB has two classes,
 * max= holds, and nothing is left. Arguments: a seed, rounds, one spec.
 */
#include <hetmem/snapshot.h>

#include "soft_driver.h"

#define MIB	((size_t)1 << 20)
#define KIB	((size_t)1 << 10)
#define UNIT	(2 * MIB)
#define HOST	HETMEM_STREAM_HOST
#define SLOTS	24
#define THREADS	4
/* Of the table of units, a power of two. */
#define UNITS	(1 << 16)

static const char *const failing[] = {
	"cuMemAdvise", "cuMemPrefetchAsync", "cuMemHostRegister", "cuStreamCreate",
	"cuMemAllocManaged", "cuEventRecord", "cuEventCreate", "cuEventQuery",
	"cuStreamWaitEvent", "cuMemFree", "cuMemHostUnregister", "cuStreamSynchronize",
	"cuStreamGetId", "cuStreamIsCapturing", "cuMemAlloc", "cuPointerGetAttributes",
	"cuMemGetInfo", "cuCtxSetCurrent", "cuCtxGetCurrent", "cuEventDestroy",
	"cuEventSynchronize", "cuThreadExchangeStreamCaptureMode", "cuMemHostGetDevicePointer",
};

struct worker {
	pthread_t thread;
	struct hetmem_resource *res;
	unsigned int seed, rounds;
	bool fails, alone, sets, no_device;
	CUstream stream[2];
	uint64_t max;
	unsigned int wrong, errors, allocs;
};

struct block {
	unsigned char *p;
	size_t size;
	unsigned int class;
	unsigned char value;
	hetmem_stream stream;
};

static unsigned int seed = 1, rounds = 250;

/* Live blocks in a unit, by class. */
static pthread_mutex_t units_lock = PTHREAD_MUTEX_INITIALIZER;
static struct {
	uintptr_t unit;
	unsigned int blocks[6];
} units[UNITS];
static unsigned int shared;

static void units_note(struct block *b, int delta)
{
	const uintptr_t start = (uintptr_t)b->p, end = start + (b->size ? b->size : 1);
	uintptr_t u;
	unsigned int k;
	size_t i;

	pthread_mutex_lock(&units_lock);
	for (u = start / UNIT; u <= (end - 1) / UNIT; u++) {
		i = u * 0x9E3779B97F4A7C15ull >> 48;
		while (units[i].unit && units[i].unit != u)
			i = (i + 1) % UNITS;
		units[i].unit = u;
		units[i].blocks[b->class] += delta;
		for (k = 1; delta > 0 && k < 6; k++)
			shared += k != b->class && units[i].blocks[k];
	}
	pthread_mutex_unlock(&units_lock);
}

static unsigned int below(struct worker *w, unsigned int n)
{
	w->seed = w->seed * 1103515245 + 12345;
	return (w->seed >> 8) % n;
}

static hetmem_stream any_stream(struct worker *w)
{
	unsigned int k = below(w, 8);

	return k < 3 ? HOST : k < 7 ? (hetmem_stream)w->stream[k & 1] : HETMEM_STREAM_LEGACY;
}

static void fill(struct block *b)
{
	struct hm_soft_range r = { (uintptr_t)b->p, b->size, b->value };

	if (!b->size)
		return;
	if (b->stream == HOST)
		memset(b->p, b->value, b->size);
	else
		soft_launch(b->stream, "fill", &r, 1, 0);
}

static void wait_for(hetmem_stream s)
{
	while (s != HOST && drv->cuStreamSynchronize(s))
		;
}

/* @to is ordered after @from. */
static void order(hetmem_stream from, hetmem_stream to)
{
	CUevent e;

	if (from == to || from == HOST)
		return;
	if (to == HOST) {
		wait_for(from);
		return;
	}
	/* A rule can be for one of these. */
	while (drv->cuEventCreate(&e, CU_EVENT_DISABLE_TIMING))
		;
	while (drv->cuEventRecord(e, from))
		;
	while (drv->cuStreamWaitEvent(to, e, 0))
		;
	while (drv->cuEventDestroy(e))
		;
}

static void look(struct worker *w, struct block *b, const char *when)
{
	size_t i;

	wait_for(b->stream);
	for (i = 0; i < b->size; i++)
		if (b->p[i] != b->value)
			break;
	if (i < b->size) {
		w->wrong++;
		printf("# %s: class %u, %zu bytes: byte %zu is %u, not %u\n", when, b->class,
		       b->size, i, b->p[i], b->value);
	}
}

static void put(struct worker *w, struct block *b)
{
	hetmem_stream s = b->stream, other = any_stream(w);
	struct hm_soft_range r = { (uintptr_t)b->p, b->size, -1 };
	int err;

	if (below(w, 3) == 0)
		look(w, b, "free");
	switch (below(w, 4)) {
	case 0:		/* elsewhere */
		order(s, other);
		s = other;
		break;
	case 1:		/* used elsewhere, recorded */
		if (other != HOST && b->size) {
			order(s, other);
			soft_launch(other, "reads", &r, 1, below(w, 3) * 100000);
			if (!hetmem_record_stream(w->res, b->p, other)) {
				if (below(w, 2))
					s = HETMEM_STREAM_UNKNOWN;
			} else {
				wait_for(other);
			}
		}
		break;
	}
	units_note(b, -1);
	err = hetmem_free(w->res, b->p, below(w, 2) ? b->size : 0, s);
	if (err) {
		units_note(b, 1);
		if (!w->fails) {
			w->errors++;
			printf("# free: %d: %s\n", err, hetmem_last_error());
		}
		wait_for(b->stream);
		return;
	}
	b->p = NULL;
}

static uint64_t reserved_of(struct hetmem_resource *res)
{
	struct hetmem_resource_stats s = { .size = sizeof(s) };

	hetmem_resource_stats(res, &s);
	return s.reserved;
}

static void new_block(struct worker *w, struct block *b)
{
	static const size_t aligns[] = { 0, 0, 0, 0, 4096, 64 * KIB, 2 * MIB, 4 * MIB };
	unsigned int placement = below(w, 6), kind = below(w, 10);
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .stream = any_stream(w), .placement = placement,
		.align = aligns[below(w, 8)],
	};
	uint64_t before = 0;
	void *p = NULL;
	int err;

	params.bytes = kind < 5 ? below(w, 100 * KIB) : kind < 8 ? below(w, 3 * MIB) :
		kind < 9 ? MIB * below(w, 8) : below(w, 9 * MIB);
	if (w->alone)
		before = reserved_of(w->res);
	err = hetmem_alloc_with(w->res, &params, &p);
	if (err) {
		if (err != -ENOMEM && !w->fails) {
			w->errors++;
			printf("# alloc: %d %s\n", err, hetmem_last_error());
		}
		if (p)
			w->errors++;
		return;
	}
	w->allocs++;
	if (params.align && (uintptr_t)p % params.align)
		w->errors++;
	if (w->alone && w->max) {
		uint64_t now = reserved_of(w->res);

		if (now > w->max && now > before) {
			w->errors++;
			printf("# max is %llu, %llu bytes are held\n", (long long)w->max,
			       (long long)now);
		}
	}
	if (!placement)
		placement = params.stream == HOST || w->no_device ?
			HETMEM_PLACEMENT_HOST : HETMEM_PLACEMENT_DEVICE;
	*b = (struct block){ p, params.bytes, placement, 1 + below(w, 254), params.stream };
	units_note(b, 1);
	fill(b);
}

struct seen {
	uint64_t live, bytes, requested;
};

static int see(void *data, const struct hetmem_walk_segment *seg,
	       const struct hetmem_walk_block *block)
{
	struct seen *s = data;

	(void)seg;
	s->bytes += block->bytes;
	if (block->state == HETMEM_BLOCK_LIVE) {
		s->live++;
		s->requested += block->requested;
	}
	return 0;
}

/* A walk and the statistics agree. */
static void compare(struct worker *w)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };
	struct seen seen = { 0 };
	struct hetmem_walk walk = { .size = sizeof(walk), .block = see, .data = &seen };

	if (hetmem_walk(w->res, &walk) || !w->alone)
		return;
	hetmem_resource_stats(w->res, &stats);
	w->errors += seen.live != stats.live || seen.requested != stats.requested ||
		     seen.bytes > stats.reserved;
}

/* One or two of the driver's next calls will fail. */
static void fail(struct worker *w)
{
	const unsigned int nr = sizeof(failing) / sizeof(failing[0]);
	char rules[160];

	snprintf(rules, sizeof(rules), "%s:%u,%s:%u", failing[below(w, nr)], 1 + below(w, 3),
		 failing[below(w, nr)], 1 + below(w, 3));
	if (below(w, 2))
		*strchr(rules, ',') = '\0';
	soft_rules(rules, NULL);
}

static void succeeds(struct worker *w, const char *what, int err)
{
	if (!err || w->fails)
		return;
	w->errors++;
	printf("# %s: %d: %s\n", what, err, hetmem_last_error());
}

static void set_max(struct worker *w)
{
	char text[32];

	if (!w->sets)
		return;
	w->max = (48 + 16 * (uint64_t)below(w, 16)) * MIB;
	snprintf(text, sizeof(text), "%llu", (long long)w->max);
	succeeds(w, "set", hetmem_resource_set(w->res, "max", text));
}

static void move(struct worker *w, const struct block *b)
{
	const uint32_t where = below(w, 2) ? HETMEM_LOC(HETMEM_DEVICE, 0) :
		HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY);

	if (!b->p || !b->size)
		return;
	hetmem_prefetch(hm, b->p, b->size, where, b->stream == HOST ? NULL : b->stream, NULL);
	if (b->stream == HOST)
		wait_for(NULL);
}

static void step(struct worker *w, struct block *b)
{
	switch (below(w, 64)) {
	case 0:
		succeeds(w, "trim", hetmem_trim(w->res, below(w, 3) * 8 * MIB, NULL));
		break;
	case 1:
		hetmem_poll(w->res);
		break;
	case 2:
		set_max(w);
		break;
	case 3:
	case 4:
		move(w, b);
		break;
	case 5:
		compare(w);
		break;
	case 6:
		if (b->p && b->size > 8192)
			hetmem_advise(hm, b->p, b->size, HETMEM_ADVISE_READ_MOSTLY, 0, NULL);
		break;
	case 7:
	case 8:
		if (b->p)
			look(w, b, "live");
		break;
	default:
		if (b->p)
			put(w, b);
		else
			new_block(w, b);
	}
}

static void *work(void *arg)
{
	struct block blocks[SLOTS] = { 0 };
	struct worker *w = arg;
	CUcontext ctx;
	unsigned int i;

	need(!drv->cuDevicePrimaryCtxRetain(&ctx, 0), "a context");
	/* A rule of another thread's. */
	while (drv->cuCtxSetCurrent(ctx))
		;
	for (i = 0; i < w->rounds; i++) {
		if (w->fails && !below(w, 4))
			fail(w);
		step(w, &blocks[below(w, SLOTS)]);
	}
	for (i = 0; i < SLOTS; i++) {
		if (!blocks[i].p)
			continue;
		look(w, &blocks[i], "end");
		units_note(&blocks[i], -1);
		/* A rule of another thread's. */
		while (hetmem_free(w->res, blocks[i].p, 0, blocks[i].stream) && w->fails)
			;
	}
	while (drv->cuCtxSetCurrent(NULL))
		;
	drv->cuDevicePrimaryCtxRelease(0);
	return NULL;
}

static void chaos(const char *spec, unsigned int threads, bool fails)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };
	struct worker w[THREADS] = { 0 }, all = { 0 };
	struct hetmem_resource *res = NULL;
	unsigned int i, k;

	need(!hetmem_resource_create(hm, spec, &res), "%s: %s", spec, hetmem_last_error());
	shared = 0;
	memset(units, 0, sizeof(units));
	for (i = 0; i < threads; i++) {
		w[i] = (struct worker){
			.res = res, .seed = seed * 7919 + i, .rounds = rounds,
			.fails = fails, .alone = threads == 1, .sets = !i,
			.no_device = strstr(spec, "(host"),
		};
		for (k = 0; k < 2; k++)
			need(!drv->cuStreamCreate(&w[i].stream[k], CU_STREAM_NON_BLOCKING),
			     "a stream");
	}
	for (i = 0; i < threads; i++)
		need(!pthread_create(&w[i].thread, NULL, work, &w[i]), "a thread");
	for (i = 0; i < threads; i++)
		pthread_join(w[i].thread, NULL);
	soft_rules(NULL, NULL);
	wait_for(HETMEM_STREAM_LEGACY);
	for (i = 0; i < threads; i++) {
		all.wrong += w[i].wrong;
		all.errors += w[i].errors;
		all.allocs += w[i].allocs;
		for (k = 0; k < 2; k++) {
			wait_for(w[i].stream[k]);
			hetmem_stream_retire(res, w[i].stream[k]);
			drv->cuStreamDestroy(w[i].stream[k]);
		}
	}
	printf("# %s, %u threads%s: %u allocations\n", spec, threads,
	       fails ? ", the driver fails" : "", all.allocs);
	ok(all.allocs, "%s: memory", spec);
	is(all.wrong, 0, "%s: contents stay", spec);
	is(all.errors, 0, "%s: no errors, and max holds", spec);
	is(shared, 0, "%s: no 2 MiB with two classes", spec);
	is(hetmem_trim(res, 0, NULL), 0, "%s: trim", spec);
	hetmem_resource_stats(res, &stats);
	ok(!stats.live && !stats.requested && !stats.reserved, "%s: gives all back", spec);
	is(hetmem_resource_destroy(res), 0, "%s: nothing is live", spec);
}

int main(int argc, char **argv)
{
	static const char *const specs[] = {
		"classes(managed,max=160M)", "classes(system(device=0),max=160M)",
		"classes(registered,max=160M)", "classes(host,max=160M)",
		"unified(over=managed,max=160M,decay=1ms)",
		"classes(system(device=0,populate=2),max=160M,reuse=order)",
	};
	size_t i;

	if (argc > 1)
		seed = strtoul(argv[1], NULL, 0);
	if (argc > 2)
		rounds = strtoul(argv[2], NULL, 0);
	printf("# seed %u\n", seed);
	setenv("HETMEM_SOFT_DEBUG", "1", 1);
	setenv("HETMEM_SOFT_MACHINE", "hmm memory=1G", 0);
	open_soft("");
	for (i = 0; i < sizeof(specs) / sizeof(specs[0]); i++) {
		const char *spec = argc > 3 ? argv[3] : specs[i];

		chaos(spec, 1, false);
		chaos(spec, THREADS, false);
		chaos(spec, THREADS, true);
		if (argc > 3)
			break;
	}
	is(device_used(), 0, "nothing is left");
	close_soft();
	return tap_end();
}
