// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * At max= no live block strands a large handle: a large block gets the memory between live
 * blocks that end anywhere. A driver that fails in between costs no contents, and all memory
 * is given back.
 */
#include <semaphore.h>

#include "below.h"
#include "by_spec.h"
#include "new_stream.h"

#define MIB	((size_t)1 << 20)
#define PAGE	(2 * MIB)
#define HOST	HETMEM_STREAM_HOST
#define LIMIT	(1024 * MIB)
#define BLOCKS	64
#define EDGE	256

struct live {
	unsigned char *p;
	size_t size;
};

/* The first and last bytes of a block. */
static void mark(const struct live *b, int value)
{
	memset(b->p, value, EDGE);
	memset(b->p + b->size - EDGE, value, EDGE);
}

static bool is_marked(const struct live *b, int value)
{
	return all_bytes(b->p, value, EDGE) && all_bytes(b->p + b->size - EDGE, value, EDGE);
}

/* A pool that holds @limit, of which @large bytes are free on @stream, in large handles. */
static struct hetmem_resource *fill(const char *spec, size_t limit, size_t large, void **rest,
				    hetmem_stream stream)
{
	struct hetmem_resource *res = make(spec);
	void *p = get(res, large, stream);

	need(p, "a large block");
	*rest = get(res, limit - (large + PAGE - 1) / PAGE * PAGE, HOST);
	need(*rest, "the rest of the memory");
	is(stats(res).reserved, limit, "%s: all of max= is held", spec);
	need(!hetmem_free(res, p, 0, stream), "free");
	return res;
}

/* Blocks from @least to @least + @spread bytes fill @bytes. */
static unsigned int cut(struct hetmem_resource *res, struct live *b, size_t bytes,
			size_t least, size_t spread)
{
	unsigned int n;

	for (n = 0; n < BLOCKS && bytes >= least + spread + PAGE; n++) {
		b[n].size = least + (spread ? below(spread / 512) * (size_t)512 : 0);
		b[n].p = get(res, b[n].size, HOST);
		need(b[n].p, "a block of %zu bytes", b[n].size);
		mark(&b[n], n + 1);
		bytes -= (b[n].size + 511) & ~(size_t)511;
	}
	return n;
}

/*
 * Every second block is freed, or some at random. A live block strands less than a page at
 * each of its ends: all the rest is for one block.
 */
static void between(const char *spec, size_t large, size_t least, size_t spread, bool random)
{
	struct live b[BLOCKS] = { 0 };
	unsigned int i, n, live = 0, wrong = 0;
	size_t bytes = large / PAGE * PAGE;
	struct hetmem_resource *res;
	void *rest, *all;

	res = fill(spec, LIMIT, large, &rest, HOST);
	n = cut(res, b, bytes, least, spread);
	for (i = 0; i < n; i++) {
		if (random ? below(2) : i % 2) {
			bytes -= b[i].size;
			live++;
			continue;
		}
		need(!hetmem_free(res, b[i].p, 0, HOST), "free");
		b[i].p = NULL;
	}
	bytes -= (live + 1) * 2 * PAGE;
	all = get(res, bytes, HOST);
	ok(all, "%s: %zu bytes between %u live blocks are one block", spec, bytes, live);
	ok(stats(res).reserved_peak <= LIMIT, "no more than max= was held");
	if (all)
		memset(all, 0xff, PAGE);
	for (i = 0; i < n; i++)
		wrong += b[i].p && !is_marked(&b[i], i + 1);
	is(wrong, 0, "live blocks keep their contents");
	for (i = 0; i < n; i++)
		if (b[i].p)
			need(!hetmem_free(res, b[i].p, 0, HOST), "free");
	if (all)
		need(!hetmem_free(res, all, 0, HOST), "free");
	need(!hetmem_free(res, rest, 0, HOST), "free");
	is(hetmem_resource_destroy(res), 0, "destroyed");
	is(device_used(), 0, "all memory is given back");
}

/* Memory from @bytes on can be had, in one block that is freed again. */
static void is_there(struct hetmem_resource *res, size_t bytes, const char *when)
{
	void *p = get(res, bytes, HOST);

	ok(p, "%s: %zu bytes are one block", when, bytes);
	if (p) {
		memset(p, 0xff, PAGE);
		need(!hetmem_free(res, p, 0, HOST), "free");
	}
}

#define SPLITS	8

/*
 * @rule fails while handles are split: all blocks are there, and live ones keep their
 * contents. If each try fails, the memory is lost to others, and made again later.
 */
static void fails(const char *rule, bool all_tries)
{
	struct live b[SPLITS] = { 0 };
	unsigned int i, wrong = 0;
	struct hetmem_resource *res;
	void *rest;

	res = fill("pool(vmm,max=1G,wait=0s)", LIMIT, 640 * MIB, &rest, HOST);
	need(!soft_rules(rule, NULL), "a rule");
	for (i = 0; i < SPLITS; i++) {
		b[i].size = 17 * MIB + i * 3 * 512;
		b[i].p = get(res, b[i].size, HOST);
		if (b[i].p)
			mark(&b[i], i + 1);
		wrong += !b[i].p;
	}
	soft_rules(NULL, NULL);
	is(wrong, 0, "%s: each block is there", rule);
	is(stats(res).reserved, device_used(), "%s: the pool counts all memory that it holds", rule);
	if (!all_tries)
		is(stats(res).reserved, LIMIT, "%s: no memory is lost", rule);
	is_there(res, 440 * MIB, rule);
	for (i = 0; i < SPLITS; i++)
		wrong += b[i].p && !is_marked(&b[i], i + 1);
	is(wrong, 0, "live blocks keep their contents");
	for (i = 0; i < SPLITS; i++)
		if (b[i].p)
			need(!hetmem_free(res, b[i].p, 0, HOST), "free");
	is_there(res, 620 * MIB, rule);
	need(!hetmem_free(res, rest, 0, HOST), "free");
	is(hetmem_resource_destroy(res), 0, "destroyed");
	is(device_used(), 0, "all memory is given back");
}

static void test_fails(void)
{
	static const char *const calls[] = {
		"cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease",
	};
	unsigned int i, nth;
	char rule[128];

	for (i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
		for (nth = 1; nth <= 7; nth++) {
			snprintf(rule, sizeof(rule), "%s:%u=CUDA_ERROR_OUT_OF_MEMORY", calls[i], nth);
			fails(rule, false);
			snprintf(rule, sizeof(rule), "%s:%u,%s:%u", calls[i], nth, calls[i], nth + 1);
			fails(rule, true);
		}
		snprintf(rule, sizeof(rule), "%s:*", calls[i]);
		fails(rule, true);
	}
}

/* Below its limit a pool splits nothing: a block that finds memory asks for no driver call. */
static void test_below(void)
{
	struct hetmem_resource *res = make("pool(vmm,max=1G)");
	void *p = get(res, 960 * MIB, HOST);
	uint64_t calls;
	unsigned int i;

	need(p && !hetmem_free(res, p, 0, HOST), "a large block");
	calls = stats(res).driver_calls;
	for (i = 0; i < SPLITS; i++) {
		p = get(res, 17 * MIB + below(MIB), HOST);
		need(p, "a block");
	}
	is(stats(res).driver_calls, calls, "below the limit no handle is split");
	hetmem_resource_destroy(res);
}

/* Calls of a split: unmap, release, and create, map and access of three parts. */
#define SPLIT_CALLS	11

/* A split makes handles more, and a page is the smallest: blocks that come and go end it. */
static void test_bounded(void)
{
	const size_t large = 640 * MIB;
	struct hetmem_resource *res;
	uint64_t calls, first;
	unsigned int i, round;
	void *rest, *p;

	res = fill("pool(vmm,max=1G)", LIMIT, large, &rest, HOST);
	calls = stats(res).driver_calls;
	for (round = 0; round < 2; round++) {
		seed = 77;
		for (i = 0; i < 2000; i++) {
			p = get(res, 2 * MIB + below(64 * MIB / 512) * (size_t)512, HOST);
			need(p && !hetmem_free(res, p, 0, HOST), "a block that comes and goes");
		}
		if (!round)
			first = stats(res).driver_calls - calls;
	}
	ok(first && first <= large / PAGE * SPLIT_CALLS,
	   "4,000 blocks that come and go cost %llu calls", (unsigned long long)first);
	is(stats(res).driver_calls, calls + first, "the same blocks again cost no call");
	need(!hetmem_free(res, rest, 0, HOST), "free");
	is(hetmem_resource_destroy(res), 0, "destroyed");
}

static sem_t gate;

static void wait_at_gate(void *arg)
{
	(void)arg;
	sem_wait(&gate);
}

/* A stream that still works on free memory has it for a block, and it is not released. */
static void test_busy(void)
{
	CUstream stream = new_stream();
	struct hetmem_resource *res;
	uint64_t calls;
	void *rest, *p, *q;

	res = fill("pool(vmm,max=1G)", LIMIT, 640 * MIB, &rest, stream);
	p = get(res, 100 * MIB, stream);
	need(p && !sem_init(&gate, 0, 0), "a block");
	need(!drv->cuLaunchHostFunc(stream, wait_at_gate, NULL), "work");
	need(!hetmem_free(res, p, 0, stream), "free");
	calls = stats(res).driver_calls;
	p = get(res, 99 * MIB, stream);
	ok(p, "a block in memory that its stream uses");
	ok(stats(res).driver_calls < calls + SPLIT_CALLS, "no handle in use is split");
	sem_post(&gate);
	need(!hetmem_free(res, p, 0, stream) && !drv->cuStreamSynchronize(stream), "the end");
	calls = stats(res).driver_calls;
	p = get(res, 49 * MIB, stream);
	q = get(res, 49 * MIB, stream);
	ok(p && q && stats(res).driver_calls >= calls + SPLIT_CALLS,
	   "after the work it is");
	need(!hetmem_free(res, p, 0, stream) && !hetmem_free(res, q, 0, stream) &&
	     !hetmem_free(res, rest, 0, HOST), "free");
	is(hetmem_resource_destroy(res), 0, "destroyed");
	drv->cuStreamDestroy(stream);
	is(device_used(), 0, "all memory is given back");
}

int main(void)
{
	unsigned int i;

	setenv("HETMEM_SOFT_MEMORY", "2G", 1);
	open_soft("");
	between("pool(vmm,max=1G)", 640 * MIB, 17 * MIB, 0, false);
	for (i = 1; i <= 20; i++) {
		seed = i;
		printf("# seed %u\n", i);
		between("pool(vmm,max=1G)", (560 + below(120)) * MIB, (11 + below(8)) * MIB,
			(1 + below(24)) * MIB, true);
	}
	test_fails();
	test_below();
	test_bounded();
	test_busy();
	close_soft();
	return tap_end();
}
