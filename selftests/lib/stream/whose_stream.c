// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Which stream a call goes to: NULL where another device's context is current,
 * and the free that does not know its stream, of a block whose stream was
 * retired and destroyed.
 */
#include "pool_gate.h"

static CUcontext home;
static unsigned int at_home, abroad;

static void count(CUstream stream)
{
	CUcontext current = NULL;

	drv->cuCtxGetCurrent(&current);
	if (hm_stream_special(stream))
		++*(current == home ? &at_home : &abroad);
}

static CUresult where(CUdeviceptr *ptr, size_t size, CUmemoryPool from,
		      CUstream stream)
{
	count(stream);
	return real.cuMemAllocFromPoolAsync(ptr, size, from, stream);
}

static void make(const char *spec)
{
	need(!hetmem_resource_create(hm, spec, &pool), "%s: %s", spec,
	     hetmem_last_error());
}

/* Nothing counted: @home, and another's, and what is current. */
static CUcontext two_devices(CUcontext *before)
{
	CUcontext other;

	drv->cuCtxGetCurrent(before);
	need(!drv->cuDevicePrimaryCtxRetain(&home, 0) &&
	     !drv->cuDevicePrimaryCtxRetain(&other, 1), "two devices");
	at_home = 0;
	abroad = 0;
	return other;
}

static void one_device(void)
{
	drv->cuDevicePrimaryCtxRelease(0);
	drv->cuDevicePrimaryCtxRelease(1);
}

/* The pool's stream 0 is its device's; what it grows by is ordered there. */
static void growth(void)
{
	CUcontext before, other = two_devices(&before);
	void *p;

	hm->driver.cuMemAllocFromPoolAsync = where;
	make("pool(async(device=0))");
	drv->cuCtxSetCurrent(other);
	p = get(3 * MIB, NULL);
	put(p, 0, NULL);
	is(abroad, 0, "a pool grows on the stream 0 of its own device");
	ok(at_home, "which is where it grew");
	drv->cuCtxGetCurrent(&home);
	ok(home == other, "and leaves the thread's context as it was");
	drv->cuCtxSetCurrent(before);
	is(hetmem_resource_destroy(pool), 0, "that pool is done with");
	hm->driver.cuMemAllocFromPoolAsync = real.cuMemAllocFromPoolAsync;
	one_device();
}

static CUresult where_freed(CUdeviceptr ptr, CUstream stream)
{
	count(stream);
	return real.cuMemFreeAsync(ptr, stream);
}

/* Memory of stream 0, freed where another device's context is current. */
static void streamed(void)
{
	CUcontext before, other = two_devices(&before);
	void *p;

	hm->driver.cuMemFreeAsync = where_freed;
	make("async(device=0)");
	drv->cuCtxSetCurrent(home);
	p = get(3 * MIB, NULL);
	drv->cuCtxSetCurrent(other);
	is(hetmem_free(pool, p, 0, HETMEM_STREAM_UNKNOWN), 0, "async: freed");
	is(abroad, 0, "on the stream 0 that it was allocated on");
	is(at_home, 1, "which is its own device's");
	drv->cuCtxSetCurrent(before);
	is(hetmem_resource_destroy(pool), 0, "and that is all there was");
	hm->driver.cuMemFreeAsync = real.cuMemFreeAsync;
	one_device();
}

/* The driver may have given the handle to another stream since. */
static void unknown(const char *spec)
{
	CUstream a = new_stream(), b = new_stream(), c;
	char *p;

	make(spec);
	put(get(512, a), 512, a);
	p = get(3 * MIB, b);
	drv->cuStreamSynchronize(b);
	is(hetmem_stream_retire(pool, b), 0, "a stream is retired");
	drv->cuStreamDestroy(b);
	c = new_stream();
	close_gate(c);
	is(hetmem_free(pool, p, 0, HETMEM_STREAM_UNKNOWN), 0,
	   "%s: its block is freed after it was destroyed: %s", spec,
	   hetmem_last_error());
	p = get(3 * MIB, a);
	drv->cuStreamSynchronize(a);
	memset(p, 1, 3 * MIB);
	open_gate();
	drv->cuStreamSynchronize(c);
	is(p[MIB], 1, "a stream that has its handle does nothing to the memory");
	put(p, 0, a);
	is(hetmem_resource_destroy(pool), 0, "that guard is done with");
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(c);
}

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "1G", 1);
	setenv("HETMEM_SOFT_DEVICES", "2", 1);
	open_soft("");
	count_calls();
	growth();
	streamed();
	unknown("guard(pool(vmm))");
	unknown("guard(fixed(pool(vmm),size=4M,count=2))");
	close_soft();
	return tap_end();
}
