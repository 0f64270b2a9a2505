// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * guard() and the order of streams: memory that another stream uses longer is not poisoned, a
 * graph gets no look at zones, nor does the handle of a stream that was retired, and destroy
 * waits for looks under way.
 */
#include "pool_gate.h"

#define SIZE	((size_t)64 << 10)

static unsigned int nr_looks, nr_unpinned;

static CUresult count_look(CUstream stream, CUhostFn fn, void *data)
{
	nr_looks++;
	return real.cuLaunchHostFunc(stream, fn, data);
}

static CUresult count_unpinned(void *ptr)
{
	nr_unpinned++;
	return real.cuMemFreeHost(ptr);
}

static void begin(void)
{
	need(!hetmem_resource_create(hm, "guard(pool(vmm))", &pool), "a guard: %s",
	     hetmem_last_error());
	nr_looks = 0;
	nr_unpinned = 0;
}

static void recorded(void)
{
	CUstream a = new_stream(), b = new_stream();
	static unsigned char bytes[SIZE];
	void *p;

	begin();
	p = get(SIZE, a);
	need(!drv->cuMemsetD8Async((CUdeviceptr)p, 0x11, SIZE, a) &&
	     !drv->cuStreamSynchronize(a), "contents");
	is(hetmem_record_stream(pool, p, b), 0, "another stream uses a block");
	close_gate(b);
	need(!drv->cuMemcpyDtoHAsync(bytes, (CUdeviceptr)p, SIZE, b), "a copy");
	put(p, SIZE, a);
	need(!drv->cuStreamSynchronize(a), "freed");
	open_gate();
	need(!drv->cuStreamSynchronize(b), "copied");
	ok(all_bytes(bytes, 0x11, SIZE), "which is not poisoned when it is freed");
	is(nr_looks, 1, "but looked at");
	is(hetmem_resource_destroy(pool), 0, "all is freed");
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

static void captured(void)
{
	CUstream s = new_stream();
	CUgraph graph;
	void *p;

	begin();
	p = get(SIZE, s);
	need(!hetmem_capture_begin(pool, s, 1) &&
	     !drv->cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL), "a capture");
	put(p, SIZE, s);
	is(nr_looks, 0, "a block is not looked at in a graph");
	is(drv->cuStreamEndCapture(s, &graph), 0, "the capture is valid");
	is(hetmem_capture_end(pool, s, 1), 0, "and ends");
	drv->cuGraphDestroy(graph);
	is(hetmem_capture_release(pool, s, 1), 0, "and is released");
	is(hetmem_resource_destroy(pool), 0, "all is freed");
	drv->cuStreamDestroy(s);
}

static void retired(void)
{
	CUstream s = new_stream();
	void *p;

	begin();
	p = get(SIZE, s);
	need(!drv->cuStreamSynchronize(s) && !hetmem_stream_retire(pool, s), "retired");
	put(p, SIZE, HETMEM_STREAM_UNKNOWN);
	is(nr_looks, 0, "the handle of a stream that was retired gets no look");
	is(hetmem_resource_destroy(pool), 0, "all is freed");
	drv->cuStreamDestroy(s);
}

static void destroyed(void)
{
	CUstream s = new_stream();
	pthread_t id;
	void *p;

	begin();
	p = get(SIZE, s);
	close_gate(s);
	put(p, SIZE, s);
	is(nr_looks, 1, "a look is under way");
	need(!pthread_create(&id, NULL, open_gate_later, NULL), "a thread");
	is(hetmem_resource_destroy(pool), 0, "destroy");
	ok(nr_unpinned, "waits for it, and gives back what it looks at");
	pthread_join(id, NULL);
	drv->cuStreamDestroy(s);
}

int main(void)
{
	open_soft("");
	count_calls();
	hm->driver.cuLaunchHostFunc = count_look;
	hm->driver.cuMemFreeHost = count_unpinned;
	recorded();
	captured();
	retired();
	destroyed();
	close_soft();
	return tap_end();
}
