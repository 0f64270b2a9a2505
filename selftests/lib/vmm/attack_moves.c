// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Blocks that move, where a program is unkind: a freed block holds the host memory; no move
 * can help an allocation; addresses for all that spill= allows; a guard looks at a block that
 * moves; a stream never finishes; functions of hetmem_on_remap() take long, or allocate from
 * each other's pools.
 */
#include <semaphore.h>

#include "spill_test.h"

#define MS	1000000

static sem_t gate;

static int get(void **p, size_t bytes, hetmem_stream stream, unsigned int flags)
{
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = bytes, .stream = stream, .flags = flags,
	};

	*p = NULL;
	return hetmem_alloc_with(res, &params, p);
}

static void *movable(size_t bytes, CUstream stream)
{
	void *p;

	need(!get(&p, bytes, stream, HETMEM_ALLOC_MOVABLE), "%zu bytes: %s", bytes,
	     hetmem_last_error());
	return p;
}

static void set(void *p, size_t bytes, int value, CUstream stream)
{
	struct hm_soft_range range = { (uintptr_t)p, bytes, value };

	need(!soft_launch(stream, "fill", &range, 1, 0) && !drv->cuStreamSynchronize(stream),
	     "a kernel");
}

static bool has(const void *p, size_t bytes, int value, CUstream stream)
{
	need(!drv->cuMemcpyAsync((uintptr_t)image, (uintptr_t)p, bytes, stream) &&
	     !drv->cuStreamSynchronize(stream), "a copy");
	return all_bytes(image, value, bytes);
}

/* Without a poll or a trim before. */
static void gone(void)
{
	is(hetmem_resource_destroy(res), 0, "nothing is live");
	is(device_used(), 0, "no device memory is left");
}

/* All host memory that spill= allows is of a block that was freed, whose stream works. */
static void freed_holds_host(void)
{
	void *a, *b, *c;
	int err;

	make("pool(vmm,max=20M,spill=20M,handle=2M,wait=20s)");
	a = movable(20 * MIB, streams[0]);
	is(hetmem_spill(res, a), 0, "one is spilled");
	soft_launch(streams[0], "busy", NULL, 0, 50 * MS);
	hetmem_free(res, a, 0, streams[0]);
	b = movable(20 * MIB, streams[1]);
	set(b, 20 * MIB, 2, streams[1]);
	err = get(&c, 20 * MIB, streams[1], HETMEM_ALLOC_MOVABLE);
	is(err, 0, "after the work its host memory serves another one: %s",
	   err ? hetmem_last_error() : "");
	ok(has(b, 20 * MIB, 2, streams[1]), "contents are there");
	hetmem_free(res, b, 0, streams[1]);
	if (!err)
		hetmem_free(res, c, 0, streams[1]);
	gone();
}

/* Nothing moves for an allocation that is larger than max=. */
static void too_large(void)
{
	void *a, *b, *c;

	make("pool(vmm,max=40M,spill=100M,handle=2M)");
	a = movable(20 * MIB, streams[0]);
	b = movable(20 * MIB, streams[0]);
	is(get(&c, 41 * MIB, streams[0], 0), -ENOMEM, "more than max=: %s", hetmem_last_error());
	is(stats().spilled_total, 0, "nothing moved for it");
	is(hetmem_grow(res, b, 70 * MIB, streams[0]), -ENOMEM, "likewise growth: %s",
	   hetmem_last_error());
	is(stats().spilled_total, 0, "nothing moved for it");
	hetmem_free(res, a, 0, streams[0]);
	hetmem_free(res, b, 0, streams[0]);
	gone();
}

/* Blocks on the host have addresses, too: for all that spill= allows. */
static void addresses(void)
{
	void *blocks[512];
	unsigned int k, n;

	make("pool(vmm,max=20M,spill=1G,handle=2M)");
	for (n = 0; n < 512; n++)
		if (get(&blocks[n], 2 * MIB, streams[0], HETMEM_ALLOC_MOVABLE))
			break;
	is(n, 512, "1 GiB in 20 MiB: %s", n < 512 ? hetmem_last_error() : "");
	for (k = 0; k < n; k++)
		hetmem_free(res, blocks[k], 2 * MIB, streams[0]);
	gone();
}

/* A guard looks at the zones of a block in its free. */
static void guarded(void)
{
	void *a;
	int k;

	make("guard(pool(vmm,max=40M,spill=100M,handle=2M))");
	for (k = 0; k < 2; k++) {
		a = movable(20 * MIB, streams[0]);
		set(a, 20 * MIB, 1, streams[0]);
		if (k)
			is(hetmem_spill(res, a), 0, "spilled");
		is(k ? hetmem_fetch_async(res, a) : hetmem_spill_async(res, a), 0,
		   "a move is begun: %s", hetmem_last_error());
		is(hetmem_free(res, a, 20 * MIB, streams[0]), 0, "freed while it moves");
		drv->cuStreamSynchronize(streams[0]);
		is(hetmem_poll(res), 0, "no damage");
	}
	gone();
}

static void pass_gate(void *arg)
{
	(void)arg;
	sem_wait(&gate);
}

/* No call waits longer than wait= for a stream that never finishes. */
static void stuck(void)
{
	void *a, *b, *c;

	make("pool(vmm,max=40M,spill=100M,handle=2M,wait=20ms)");
	a = movable(20 * MIB, streams[0]);
	b = movable(20 * MIB, streams[1]);
	set(a, 20 * MIB, 1, streams[0]);
	set(b, 20 * MIB, 2, streams[1]);
	need(!drv->cuLaunchHostFunc(streams[0], pass_gate, NULL), "work without an end");
	hang_limit(true);
	is(hetmem_spill(res, a), -EBUSY, "its stream works: %s", hetmem_last_error());
	is(get(&c, 30 * MIB, streams[0], 0), -ENOMEM, "nor for an allocation: %s",
	   hetmem_last_error());
	is(get(&c, 20 * MIB, streams[1], 0), 0, "the other stream goes on: %s",
	   hetmem_last_error());
	hetmem_free(res, c, 0, streams[1]);
	is(hetmem_spill_async(res, a), 0, "begun: %s", hetmem_last_error());
	is(hetmem_poll(res), 0, "a poll ends without the move");
	is(hetmem_trim(res, 0, NULL), 0, "so does a trim");
	is(hetmem_spill(res, a), -EBUSY, "and the synchronous one: %s", hetmem_last_error());
	is(hetmem_fetch(res, a), -EBUSY, "of either direction: %s", hetmem_last_error());
	is(hetmem_host_access(res, a), -EBUSY, "and the host's access: %s", hetmem_last_error());
	is(get(&c, MIB, streams[1], 0), 0, "allocations go on: %s", hetmem_last_error());
	hetmem_free(res, c, 0, streams[1]);
	is(hetmem_free(res, a, 0, streams[0]), 0, "freed while it moves");
	is(hetmem_trim(res, 0, NULL), 0, "a trim");
	sem_post(&gate);
	drv->cuStreamSynchronize(streams[0]);
	hang_limit(false);
	ok(has(b, 20 * MIB, 2, streams[1]), "contents are there");
	hetmem_free(res, b, 0, streams[1]);
	gone();
}

static sem_t entered[2];

/* A function of hetmem_on_remap(): waits for the gate once. */
static void wait_once(const struct hetmem_remap *remap, void *arg)
{
	bool *waited = arg;

	if (remap->after || *waited)
		return;
	*waited = true;
	sem_post(&entered[0]);
	sem_wait(&gate);
}

static void *spill_it(void *p)
{
	need(!drv->cuCtxSetCurrent(context), "the context");
	is(hetmem_spill(res, p), 0, "the slow one moves: %s", hetmem_last_error());
	return NULL;
}

/* A function that takes long holds up other threads for wait= at most. */
static void slow_function(void)
{
	bool waited = false;
	pthread_t thread;
	void *a, *b, *c;

	make("pool(vmm,max=40M,spill=100M,handle=2M,wait=20ms)");
	a = movable(20 * MIB, streams[0]);
	b = movable(20 * MIB, streams[1]);
	need(!hetmem_on_remap(res, wait_once, &waited) &&
	     !pthread_create(&thread, NULL, spill_it, a), "a thread");
	sem_wait(&entered[0]);
	hang_limit(true);
	is(get(&c, 10 * MIB, streams[1], 0), -ENOMEM, "an allocation ends: %s",
	   hetmem_last_error());
	is(hetmem_spill(res, b), -EBUSY, "so does a move: %s", hetmem_last_error());
	is(hetmem_poll(res), 0, "and a poll");
	hang_limit(false);
	sem_post(&gate);
	pthread_join(thread, NULL);
	is(get(&c, 10 * MIB, streams[1], 0), 0, "there is room now: %s", hetmem_last_error());
	hetmem_free(res, c, 0, streams[1]);
	hetmem_free(res, b, 0, streams[1]);
	hetmem_free(res, a, 0, streams[0]);
	gone();
}

/**
 * struct side - a pool whose observer allocates from the other pool, and the thread that
 *	moves its block
 */
struct side {
	struct hetmem_resource *res, *other;
	CUstream stream;
	sem_t *mine, *theirs;
	void *block;
	bool entered;
};

static void allocate_there(const struct hetmem_remap *remap, void *arg)
{
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = 10 * MIB,
	};
	struct side *side = arg;
	void *p;

	if (remap->after || side->entered)
		return;
	side->entered = true;
	sem_post(side->mine);
	sem_wait(side->theirs);
	params.stream = side->stream;
	/* Whether it succeeds depends on which of the two gives up first. */
	if (!hetmem_alloc_with(side->other, &params, &p))
		hetmem_free(side->other, p, 0, side->stream);
}

static void *move_here(void *arg)
{
	struct side *side = arg;

	need(!drv->cuCtxSetCurrent(context), "the context");
	is(hetmem_spill(side->res, side->block), 0, "a block moves: %s", hetmem_last_error());
	return NULL;
}

/* Two pools whose functions allocate from each other, where both are full. */
static void functions_cross(void)
{
	struct hetmem_resource *both[2];
	struct side sides[2];
	pthread_t threads[2];
	void *second[2];
	int k;

	for (k = 0; k < 2; k++) {
		make("pool(vmm,max=40M,spill=100M,handle=2M,wait=20ms)");
		both[k] = res;
		sides[k] = (struct side){ .stream = streams[k], .mine = &entered[k],
					  .theirs = &entered[!k],
					  .block = movable(20 * MIB, streams[k]) };
		/* The other thread's: it can make room. */
		second[k] = movable(20 * MIB, streams[!k]);
	}
	for (k = 0; k < 2; k++) {
		sides[k].res = both[k];
		sides[k].other = both[!k];
		need(!hetmem_on_remap(both[k], allocate_there, &sides[k]), "a function");
	}
	hang_limit(true);
	for (k = 0; k < 2; k++)
		need(!pthread_create(&threads[k], NULL, move_here, &sides[k]), "a thread");
	for (k = 0; k < 2; k++)
		pthread_join(threads[k], NULL);
	hang_limit(false);
	for (k = 0; k < 2; k++) {
		hetmem_free(both[k], sides[k].block, 0, streams[k]);
		hetmem_free(both[k], second[k], 0, streams[!k]);
		is(hetmem_resource_destroy(both[k]), 0, "nothing is live");
	}
	is(device_used(), 0, "no device memory is left");
}

int main(void)
{
	open_moves("1");
	need(!sem_init(&gate, 0, 0) && !sem_init(&entered[0], 0, 0) &&
	     !sem_init(&entered[1], 0, 0), "semaphores");
	freed_holds_host();
	too_large();
	addresses();
	guarded();
	slow_function();
	functions_cross();
	stuck();
	close_moves();
	free(image);
	return tap_end();
}
