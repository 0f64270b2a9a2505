// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * peers: two devices. A program gives one access to the memory of the other, and takes it. The
 * driver is asked what it is for present and later blocks.
 */
#include <stdatomic.h>

#include "cuda/program.h"

#define NR	12

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr ptr);

static CUcontext ctx[2];
static CUdeviceptr blocks[NR];

/* Blocks that @device may write to. */
static unsigned int accessible(int device, unsigned int nr)
{
	const CUmemLocation location = { CU_MEM_LOCATION_TYPE_DEVICE, device };
	unsigned long long flags;
	unsigned int i, n = 0;

	for (i = 0; i < nr; i++) {
		flags = 0;
		if (!cuMemGetAccess(&flags, &location, blocks[i]) &&
		    flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			n++;
	}
	return n;
}

/* Blocks of device 0, of very different sizes. */
static void make(unsigned int from, unsigned int to)
{
	unsigned int i;

	cuCtxSetCurrent(ctx[0]);
	for (i = from; i < to; i++)
		need(!cuMemAlloc_v2(&blocks[i], (size_t)1000 << i), "block %u", i);
}

static void drop(unsigned int nr)
{
	unsigned int i;

	cuCtxSetCurrent(ctx[0]);
	for (i = 0; i < nr; i++)
		need(!cuMemFree_v2(blocks[i]), "block %u is freed", i);
}

static void contexts(void)
{
	make(0, NR / 2);
	is(accessible(0, NR / 2), NR / 2, "a device has its own memory");
	is(accessible(1, NR / 2), 0, "another one has not");
	cuCtxSetCurrent(ctx[1]);
	is(cuCtxEnablePeerAccess(ctx[0], 0), 0, "it gets access");
	is(accessible(1, NR / 2), NR / 2, "to present blocks");
	make(NR / 2, NR);
	is(accessible(1, NR), NR, "and to later ones");
	is(accessible(0, NR), NR, "its own device keeps it");
	cuCtxSetCurrent(ctx[1]);
	is(cuCtxEnablePeerAccess(ctx[0], 0), 704, "not twice");
	is(accessible(1, NR), NR, "which changes nothing");
	is(cuCtxDisablePeerAccess(ctx[0]), 0, "access is taken");
	is(accessible(1, NR), 0, "from all");
	is(accessible(0, NR), NR, "but not from the device");
	is(cuCtxDisablePeerAccess(ctx[0]), 705, "not twice");
	ok(cuCtxEnablePeerAccess(NULL, 0) && cuCtxEnablePeerAccess(ctx[1], 0),
	   "no context, and its own");
	drop(NR);
}

static void default_pool(void)
{
	CUmemAccessDesc desc = {
		{ CU_MEM_LOCATION_TYPE_DEVICE, 1 }, CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
	};
	CUmemoryPool pool;

	cuDeviceGetDefaultMemPool(&pool, 0);
	make(0, NR / 2);
	is(cuMemPoolSetAccess(pool, &desc, 1), 0, "the default pool gives access");
	make(NR / 2, NR);
	is(accessible(1, NR), NR, "to all blocks");
	cuCtxSetCurrent(ctx[1]);
	is(cuCtxEnablePeerAccess(ctx[0], 0), 0, "the context, too");
	desc.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
	is(cuMemPoolSetAccess(pool, &desc, 1), 0, "the pool takes it");
	is(accessible(1, NR), NR, "the context still has it");
	is(cuCtxDisablePeerAccess(ctx[0]), 0, "until it gives it up");
	is(accessible(1, NR), 0, "then nobody else has");
	drop(NR);
}

/* The end of either context ends the access. */
static void ends(void)
{
	make(0, NR);
	cuCtxSetCurrent(ctx[1]);
	is(cuCtxEnablePeerAccess(ctx[0], 0), 0, "access again");
	is(accessible(1, NR), NR, "to all");
	is(cuDevicePrimaryCtxRelease_v2(1), 0, "the context that has it ends");
	is(accessible(1, NR), 0, "and its access");
	cuDevicePrimaryCtxRetain(&ctx[1], 1);
	drop(NR);
}

static atomic_int ended;
static atomic_uint failures;

static void *churn(void *arg)
{
	unsigned int seed = (uintptr_t)arg;
	CUdeviceptr p;

	cuCtxSetCurrent(ctx[0]);
	while (!atomic_load(&ended)) {
		if (cuMemAlloc_v2(&p, 1 + rand_r(&seed) % (8 * MIB)))
			failures++;
		else if (cuMemFree_v2(p))
			failures++;
	}
	return NULL;
}

/* Access changes while other threads allocate and free. */
static void in_threads(void)
{
	pthread_t threads[4];
	unsigned int bad = 0;
	uintptr_t i;

	make(0, NR / 2);
	for (i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, churn, (void *)(i + 1));
	cuCtxSetCurrent(ctx[1]);
	for (i = 0; i < 40; i++) {
		if (cuCtxEnablePeerAccess(ctx[0], 0) || accessible(1, NR / 2) != NR / 2)
			bad++;
		if (cuCtxDisablePeerAccess(ctx[0]) || accessible(1, NR / 2))
			bad++;
	}
	atomic_store(&ended, 1);
	for (i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	is(bad, 0, "access given and taken 40 times");
	is(failures, 0, "while four threads allocate and free");
	drop(NR / 2);
}

int main(int argc, char **argv)
{
	const bool by_spec = argc > 1 && !strcmp(argv[1], "spec");

	ctx[0] = start();
	need(ctx[0] && !cuDevicePrimaryCtxRetain(&ctx[1], 1), "two contexts");
	/* Device 1 is used, too. */
	cuCtxSetCurrent(ctx[1]);
	need(!cuMemAlloc_v2(&blocks[0], MIB) && !cuMemFree_v2(blocks[0]), "a block of device 1");
	if (by_spec) {
		make(0, NR);
		is(accessible(1, NR), NR, "the spec gives access");
		cuCtxSetCurrent(ctx[1]);
		is(cuCtxEnablePeerAccess(ctx[0], 0) || cuCtxDisablePeerAccess(ctx[0]), 0,
		   "the program gives and takes it");
		is(accessible(1, NR), NR, "which takes nothing of the spec's");
		drop(NR);
		return tap_end();
	}
	contexts();
	default_pool();
	in_threads();
	ends();
	return tap_end();
}
