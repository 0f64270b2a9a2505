/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * How long a call holds the pool's lock, in basic blocks of the library: see count_blocks.h.
 * A hold counts as a whole, and in stretches between calls of the driver. The driver does not
 * count. A sort counts its comparisons.
 */
#ifndef HETMEM_SELFTESTS_POOL_HOLDS_H
#define HETMEM_SELFTESTS_POOL_HOLDS_H

#include <dlfcn.h>

#include "pool/pool_impl.h"
#include "pool_gate.h"
#include "count_blocks.h"

/**
 * struct counted - what the child reports
 * @holds: of the lock; @all: blocks of all of them
 * @longest, @longest_calls: of the hold with most blocks: these, and calls of the driver
 * @stretch: the most blocks of a hold without a call of the driver
 * @calls: of this hold; @most_calls: of any
 * @before: blocks of this hold before its last call
 */
struct counted {
	unsigned long holds, all;
	unsigned long longest, longest_calls;
	unsigned long stretch;
	unsigned long calls, most_calls;
	unsigned long before;
	bool failed;
};

static struct counted *counted;
static pthread_mutex_t *watched;

static void end_of_stretch(struct counted *c)
{
	if (nr_blocks - c->before > c->stretch)
		c->stretch = nr_blocks - c->before;
	c->before = nr_blocks;
}

static void end_of_hold(struct counted *c)
{
	end_of_stretch(c);
	if (nr_blocks > c->longest) {
		c->longest = nr_blocks;
		c->longest_calls = c->calls;
	}
	if (c->calls > c->most_calls)
		c->most_calls = c->calls;
	c->all += nr_blocks;
}

int pthread_mutex_lock(pthread_mutex_t *m)
{
	static int (*real_lock)(pthread_mutex_t *m);
	int err;

	if (!real_lock)
		*(void **)&real_lock = dlsym(RTLD_NEXT, "pthread_mutex_lock");
	err = real_lock(m);
	if (m == watched) {
		counted->calls = 0;
		counted->before = 0;
		counted->holds++;
		nr_blocks = 0;
		counts_blocks = true;
	}
	return err;
}

int pthread_mutex_unlock(pthread_mutex_t *m)
{
	static int (*real_unlock)(pthread_mutex_t *m);

	if (!real_unlock)
		*(void **)&real_unlock = dlsym(RTLD_NEXT, "pthread_mutex_unlock");
	if (m == watched && counts_blocks) {
		counts_blocks = false;
		end_of_hold(counted);
	}
	return real_unlock(m);
}

static struct hm_driver real_driver;

/* The driver does not count. */
#define WRAP(name, params, ...)						\
static CUresult count_##name params					\
{									\
	CUresult res;							\
									\
	if (!counts_blocks)						\
		return real_driver.name(__VA_ARGS__);			\
	counted->calls++;						\
	end_of_stretch(counted);					\
	counts_blocks = false;						\
	res = real_driver.name(__VA_ARGS__);				\
	counts_blocks = true;						\
	return res;							\
}

WRAP(cuMemCreate, (CUmemGenericAllocationHandle *h, size_t size,
		   const CUmemAllocationProp *prop, unsigned long long flags),
     h, size, prop, flags)
WRAP(cuMemRelease, (CUmemGenericAllocationHandle h), h)
WRAP(cuMemMap, (CUdeviceptr ptr, size_t size, size_t offset,
		CUmemGenericAllocationHandle h, unsigned long long flags),
     ptr, size, offset, h, flags)
WRAP(cuMemUnmap, (CUdeviceptr ptr, size_t size), ptr, size)
WRAP(cuMemSetAccess, (CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc,
		      size_t count), ptr, size, desc, count)
WRAP(cuEventRecord, (CUevent event, CUstream stream), event, stream)
WRAP(cuEventQuery, (CUevent event), event)
WRAP(cuEventCreate, (CUevent *event, unsigned int flags), event, flags)
WRAP(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int flags),
     stream, event, flags)
WRAP(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus *status),
     stream, status)
WRAP(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode *mode), mode)
WRAP(cuStreamGetId, (CUstream stream, unsigned long long *id), stream, id)
WRAP(cuStreamQuery, (CUstream stream), stream)
WRAP(cuEventDestroy, (CUevent event), event)
WRAP(cuCtxGetCurrent, (CUcontext *ctx), ctx)
WRAP(cuCtxSetCurrent, (CUcontext ctx), ctx)

static void watch(void)
{
	struct hm_driver *d = &hm->driver;

	if (!real_driver.cuMemCreate)
		real_driver = *d;
#define SET(name)	d->name = count_##name
	SET(cuMemCreate);
	SET(cuMemRelease);
	SET(cuMemMap);
	SET(cuMemUnmap);
	SET(cuMemSetAccess);
	SET(cuEventRecord);
	SET(cuEventQuery);
	SET(cuEventCreate);
	SET(cuEventDestroy);
	SET(cuStreamWaitEvent);
	SET(cuStreamQuery);
	SET(cuStreamIsCapturing);
	SET(cuThreadExchangeStreamCaptureMode);
	SET(cuStreamGetId);
	SET(cuCtxGetCurrent);
	SET(cuCtxSetCurrent);
	watched = &((struct pool *)pool)->lock;
}

static void unwatch(void)
{
	watched = NULL;
}

#endif /* HETMEM_SELFTESTS_POOL_HOLDS_H */
