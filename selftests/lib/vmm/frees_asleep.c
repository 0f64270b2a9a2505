// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Other threads free blocks while a sleep and a wake copy contents: check mode sees nothing
 * wrong, what is live keeps its contents, and what was freed is reused in order.
 */
#include <sched.h>

#include "by_spec.h"

#define MIB	((size_t)1 << 20)
#define BLOCKS	48
#define ROUNDS	6

static struct hetmem_resource *res;
static CUcontext context;
static CUstream streams[2];
static unsigned char *blocks[BLOCKS];
static unsigned int started, failed;

static size_t size_of(unsigned int i)
{
	return (i % 3 ? 64 << 10 : MIB + 512) + i * 4096;
}

/* Every second block, the last first, on the stream of its number. */
static void *free_some(void *arg)
{
	const unsigned int which = (uintptr_t)arg;
	int i;

	drv->cuCtxSetCurrent(context);
	while (!__atomic_load_n(&started, __ATOMIC_ACQUIRE))
		sched_yield();
	for (i = BLOCKS - 1; i >= 0; i--) {
		if (i % 4 != (int)which)
			continue;
		if (hetmem_free(res, blocks[i], 0, streams[which]))
			__atomic_add_fetch(&failed, 1, __ATOMIC_RELAXED);
		blocks[i] = NULL;
		sched_yield();
	}
	return NULL;
}

static void start(void)
{
	__atomic_store_n(&started, 1, __ATOMIC_RELEASE);
}

static bool right(void)
{
	unsigned int i;

	for (i = 0; i < BLOCKS; i++)
		if (blocks[i] && !all_bytes(blocks[i], i + 1, size_of(i)))
			return false;
	return true;
}

static void rounds(const char *spec, bool in_wake)
{
	unsigned int round, i, wrong = 0;
	pthread_t threads[2];

	res = make(spec);
	for (round = 0; round < ROUNDS; round++) {
		started = 0;
		for (i = 0; i < BLOCKS; i++) {
			const CUstream s = streams[i % 4 % 2];

			if (!blocks[i])
				blocks[i] = get(res, size_of(i), s);
			need(blocks[i] && !drv->cuMemsetD8Async((uintptr_t)blocks[i], i + 1,
								size_of(i), s), "a block");
		}
		for (i = 0; i < 2; i++)
			need(!pthread_create(&threads[i], NULL, free_some, (void *)(uintptr_t)i),
			     "a thread");
		if (!in_wake)
			start();
		need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), "sleep: %s",
		     hetmem_last_error());
		start();
		need(!hetmem_wake(res, NULL), "wake: %s", hetmem_last_error());
		for (i = 0; i < 2; i++)
			pthread_join(threads[i], NULL);
		drv->cuCtxSynchronize();
		wrong += !right();
	}
	ok(!wrong && !failed, "%s: frees during %s: %u rounds, %u wrong", spec,
	   in_wake ? "wakes" : "sleeps", ROUNDS, wrong);
	for (i = 0; i < BLOCKS; i++) {
		if (blocks[i])
			hetmem_free(res, blocks[i], 0, streams[i % 4 % 2]);
		blocks[i] = NULL;
	}
	is(hetmem_resource_destroy(res), 0, "all is freed");
}

static void *get_tagged(const char *tag)
{
	const struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = 4 * MIB, .stream = HETMEM_STREAM_HOST, .tag = tag,
	};
	void *p;

	need(!hetmem_alloc_with(res, &params, &p), "alloc_with: %s", hetmem_last_error());
	return p;
}

/* A wake makes memory for live blocks alone, so it stays within a max= that has room for them. */
static void needs_live_only(const char *spec, unsigned int nr)
{
	unsigned char *p[8], *awake;
	unsigned int i;

	res = make(spec);
	awake = get_tagged(NULL);
	for (i = 0; i < nr; i++) {
		p[i] = get_tagged("a");
		memset(p[i], i + 1, 4 * MIB);
	}
	memset(awake, 99, 4 * MIB);
	need(!hetmem_sleep(res, "a", HETMEM_SLEEP_KEEP), "sleep: %s", hetmem_last_error());
	need(!hetmem_resource_set(res, "max", "8M"), "set: %s", hetmem_last_error());
	is(hetmem_wake(res, "a"), -ENOMEM, "%s: %u blocks do not fit", spec, nr);
	for (i = 0; i < nr; i++)
		if (i != 1)
			hetmem_free(res, p[i], 4 * MIB, HETMEM_STREAM_HOST);
	is(hetmem_wake(res, "a"), 0, "%s: the one that is left fits", spec);
	ok(all_bytes(p[1], 2, 4 * MIB) && all_bytes(awake, 99, 4 * MIB), "with its contents");
	is(stats(res).reserved, 8 * MIB, "no more is held");
	need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), "sleep: %s", hetmem_last_error());
	hetmem_free(res, p[1], 4 * MIB, HETMEM_STREAM_HOST);
	hetmem_free(res, awake, 4 * MIB, HETMEM_STREAM_HOST);
	is(hetmem_wake(res, NULL), 0, "nothing is live");
	is(stats(res).reserved, 0, "nothing is held");
	awake = get_tagged("a");
	memset(awake, 1, 4 * MIB);
	hetmem_free(res, awake, 4 * MIB, HETMEM_STREAM_HOST);
	is(hetmem_resource_destroy(res), 0, "destroyed");
}

int main(void)
{
	setenv("HETMEM_SOFT_CHECK", "1", 1);
	setenv("HETMEM_SOFT_MEMORY", "512M", 1);
	open_soft("");
	need(!drv->cuCtxGetCurrent(&context), "a context");
	need(!drv->cuStreamCreate(&streams[0], CU_STREAM_NON_BLOCKING) &&
	     !drv->cuStreamCreate(&streams[1], CU_STREAM_NON_BLOCKING), "streams");
	rounds("pool(vmm)", false);
	rounds("pool(vmm)", true);
	rounds("pool(vmm,park=release)", true);
	rounds("stats(pool(vmm,handle=2M,park=keep))", false);
	rounds("stats(pool(vmm,handle=2M,park=keep))", true);
	needs_live_only("pool(vmm,handle=4M)", 3);
	needs_live_only("pool(vmm,handle=2M)", 8);
	needs_live_only("pool(vmm)", 8);
	close_soft();
	return tap_end();
}
