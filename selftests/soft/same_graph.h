/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What drivers say of memory that is allocated while capturing: nodes of a
 * graph, which have memory from one launch to the free.
 */
#ifndef HETMEM_SELFTESTS_SAME_GRAPH_H
#define HETMEM_SELFTESTS_SAME_GRAPH_H

#include "same.h"

#define AUTO_FREE	1	/* CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH */

static void drop(CUgraph graph)
{
	if (graph)
		d->cuGraphDestroy(graph);
}

static CUgraph end_capture(void)
{
	CUgraph graph = NULL;
	int res = d->cuStreamEndCapture(a, &graph);

	if (res)
		say("end:%d", res);
	return graph;
}

static void begin(void)
{
	need(!d->cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL),
	     "a capture");
}

static unsigned int byte_at(CUdeviceptr p)
{
	unsigned char byte = 0;
	int res = d->cuMemcpyDtoHAsync(&byte, p, 1, b);

	res = res ? res : (int)d->cuStreamSynchronize(b);
	return res ? 1000 + res : byte;
}

/* Allocated, used and freed in one graph; launched twice. */
static void graph_whole(void)
{
	CUdeviceptr p = 0, base;
	CUgraphExec exec = NULL;
	CUgraph graph;
	size_t size;

	begin();
	say("%d", d->cuMemAllocAsync(&p, 4096, a));
	say("%d", d->cuMemsetD8Async(p, 5, 4096, a));
	say("%d", d->cuMemcpyDtoDAsync(va + 2 * G, p, 4096, a));
	say("%d", d->cuMemFreeAsync(p, a));
	graph = end_capture();
	say("%d", d->cuMemGetAddressRange(&base, &size, p));
	say("%d", d->cuGraphInstantiateWithFlags(&exec, graph, 0));
	say("%d", d->cuMemGetAddressRange(&base, &size, p));
	say("%d", d->cuGraphLaunch(exec, a));
	say("%d", d->cuGraphLaunch(exec, a));
	say("%d", d->cuStreamSynchronize(a));
	say("%u", byte_at(va + 2 * G));
	say("%d", d->cuGraphExecDestroy(exec));
	say("%d", d->cuGraphDestroy(graph));
}

/* Allocated in a graph, freed outside. */
static void graph_kept(void)
{
	CUgraphExec exec = NULL, second = NULL;
	CUdeviceptr p = 0, base;
	CUgraph graph;
	size_t size;

	begin();
	say("%d", d->cuMemAllocAsync(&p, 3 << 20, a));
	say("%d", d->cuMemsetD8Async(p, 7, 4096, a));
	graph = end_capture();
	say("%d", d->cuGraphInstantiateWithFlags(&exec, graph, 0));
	say("second:%d", d->cuGraphInstantiateWithFlags(&second, graph, 0));
	say("%d", d->cuMemGetAddressRange(&base, &size, p));
	say("free:%d", d->cuMemFreeAsync(p, a));
	say("launch:%d", d->cuGraphLaunch(exec, a));
	say("again:%d", d->cuGraphLaunch(exec, a));
	say("%d", d->cuStreamSynchronize(a));
	say("%u", byte_at(p));
	say("%d", d->cuMemGetAddressRange(&base, &size, p));
	say("%d,%zu", base == p, size);
	say("free:%d", d->cuMemFreeAsync(p, b));
	say("%d", d->cuStreamSynchronize(b));
	say("free:%d", d->cuMemFreeAsync(p, b));
	say("launch:%d", d->cuGraphLaunch(exec, a));
	say("%d", d->cuStreamSynchronize(a));
	say("cuMemFree:%d", d->cuMemFree(p));
	say("launch:%d", d->cuGraphLaunch(exec, a));
	say("%d", d->cuStreamSynchronize(a));
	say("%d", d->cuGraphExecDestroy(exec));
	say("%d", d->cuGraphDestroy(graph));
	say("free:%d", d->cuMemFreeAsync(p, a));
	say("%d", d->cuStreamSynchronize(a));
}

static void graph_auto_free(void)
{
	CUgraphExec exec = NULL;
	CUdeviceptr p = 0;
	CUgraph graph;

	begin();
	say("%d", d->cuMemAllocAsync(&p, 4096, a));
	say("%d", d->cuMemsetD8Async(p, 7, 4096, a));
	graph = end_capture();
	say("%d", d->cuGraphInstantiateWithFlags(&exec, graph, AUTO_FREE));
	say("%d", d->cuGraphLaunch(exec, a));
	say("%d", d->cuGraphLaunch(exec, a));
	say("%d", d->cuStreamSynchronize(a));
	say("%u", byte_at(p));
	say("%d", d->cuMemFreeAsync(p, a));
	say("%d", d->cuStreamSynchronize(a));
	d->cuGraphExecDestroy(exec);
	d->cuGraphDestroy(graph);
}

/* One graph allocates, another one frees. */
static void graph_other_frees(void)
{
	CUgraphExec first = NULL, second = NULL;
	CUgraph graph, frees;
	CUdeviceptr p = 0;

	begin();
	say("%d", d->cuMemAllocAsync(&p, 4096, a));
	say("%d", d->cuMemsetD8Async(p, 9, 4096, a));
	graph = end_capture();
	begin();
	say("%d", d->cuMemcpyDtoDAsync(va + 2 * G, p, 64, a));
	say("%d", d->cuMemFreeAsync(p, a));
	frees = end_capture();
	say("%d", d->cuGraphInstantiateWithFlags(&first, graph, 0));
	say("%d", d->cuGraphInstantiateWithFlags(&second, frees, 0));
	say("%d", d->cuGraphLaunch(first, a));
	say("%d", d->cuGraphLaunch(second, a));
	say("%d", d->cuStreamSynchronize(a));
	say("%u", byte_at(va + 2 * G));
	say("again:%d", d->cuGraphLaunch(first, a));
	say("%d", d->cuGraphLaunch(second, a));
	say("%d", d->cuStreamSynchronize(a));
	d->cuGraphExecDestroy(first);
	d->cuGraphExecDestroy(second);
	d->cuGraphDestroy(graph);
	d->cuGraphDestroy(frees);
}

/* What is freed while capturing, and does not come of a graph. */
static void graph_frees_foreign(void)
{
	CUdeviceptr async = 0, plain = 0;

	d->cuMemAllocAsync(&async, 4096, a);
	d->cuMemAlloc(&plain, 4096);
	d->cuStreamSynchronize(a);
	begin();
	say("async:%d", d->cuMemFreeAsync(async, a));
	drop(end_capture());
	begin();
	say("plain:%d", d->cuMemFreeAsync(plain, a));
	drop(end_capture());
	begin();
	say("nothing:%d", d->cuMemFreeAsync(va + 2 * G, a));
	drop(end_capture());
	say("%d", d->cuMemFreeAsync(async, a));
	say("%d", d->cuMemFree(plain));
}

static void graph_odd(void)
{
	CUdeviceptr p = 0, q = 0;
	CUgraph graph;

	begin();
	p = 9;
	say("size 0:%d", d->cuMemAllocAsync(&p, 0, a));
	say("ptr:%d", !p ? 0 : p == 9 ? 9 : 1);
	drop(end_capture());
	begin();
	say("huge:%d", d->cuMemAllocAsync(&p, (size_t)1 << 50, a));
	drop(end_capture());
	begin();
	say("%d", d->cuMemAllocAsync(&p, 4096, a));
	say("%d", d->cuMemFreeAsync(p, a));
	say("twice:%d", d->cuMemFreeAsync(p, a));
	drop(end_capture());
	begin();
	say("%d", d->cuMemAllocAsync(&p, 4096, a));
	say("%d", d->cuMemAllocAsync(&q, 4096, a));
	say("differ:%d", p != q);
	graph = end_capture();
	/* Of a graph that was never launched. */
	say("%d", d->cuMemFreeAsync(p, a));
	drop(graph);
	d->cuStreamSynchronize(a);
}

/* A pool's attributes and a pointer's, of memory that a graph has. */
static void graph_attributes(void)
{
	unsigned int type = 0;
	CUgraphExec exec = NULL;
	void *pool = NULL;
	CUdeviceptr p = 0;
	CUgraph graph;
	int res;

	begin();
	d->cuMemAllocAsync(&p, 4096, a);
	d->cuMemsetD8Async(p, 7, 4096, a);
	graph = end_capture();
	res = d->cuPointerGetAttribute(&type,
				       CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p);
	say("%d,%u", res, type);
	say("%d", d->cuGraphInstantiateWithFlags(&exec, graph, 0));
	say("%d", d->cuGraphLaunch(exec, a));
	d->cuStreamSynchronize(a);
	res = d->cuPointerGetAttribute(&type,
				       CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p);
	say("%d,%u", res, type);
	res = d->cuPointerGetAttribute(&pool,
				       CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p);
	say("%d,%d", res, !!pool);
	d->cuMemFreeAsync(p, a);
	d->cuStreamSynchronize(a);
	d->cuGraphExecDestroy(exec);
	d->cuGraphDestroy(graph);
}

/* The executable goes while its memory is allocated. */
static void graph_gone(void)
{
	CUgraphExec exec = NULL;
	CUdeviceptr p = 0;
	CUgraph graph;

	begin();
	d->cuMemAllocAsync(&p, 4096, a);
	d->cuMemsetD8Async(p, 7, 4096, a);
	graph = end_capture();
	d->cuGraphInstantiateWithFlags(&exec, graph, 0);
	say("%d", d->cuGraphLaunch(exec, a));
	say("%d", d->cuStreamSynchronize(a));
	say("%d", d->cuGraphExecDestroy(exec));
	say("%d", d->cuGraphDestroy(graph));
	say("%u", byte_at(p));
	say("%d", d->cuMemFreeAsync(p, a));
	say("%d", d->cuStreamSynchronize(a));
}

static const struct probe graph_probes[] = {
#define P(fn)	{ #fn, fn }
	P(graph_whole), P(graph_kept), P(graph_auto_free),
	P(graph_other_frees), P(graph_frees_foreign), P(graph_odd),
	P(graph_attributes), P(graph_gone),
#undef P
};

#endif /* HETMEM_SELFTESTS_SAME_GRAPH_H */
