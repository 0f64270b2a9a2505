// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Check mode: what is right passes, and each thing that is wrong aborts with
 * a report that names both sides. Every case is a process of its own.
 */
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "driver/check.h"
#include "device_memory.h"
#include "soft_driver.h"

#define G	((size_t)2 << 20)

static CUstream a, b, copies;
static CUevent event;
static CUdeviceptr va;
/* Of the host and the device; both 0 except in cases of moves. */
static CUmemGenericAllocationHandle host, other;

static void *at(size_t offset)
{
	return (void *)(uintptr_t)(va + offset);
}

static void alloc(size_t offset, size_t size, CUstream s)
{
	hm_check_alloc(hm, at(offset), size, s);
}

static void release(size_t offset, size_t size, CUstream s)
{
	hm_check_free(hm, at(offset), size, s);
}

static void kernel(size_t offset, size_t size, CUstream s)
{
	struct hm_soft_range r = { va + offset, size, -1 };

	soft_launch(s, "a kernel", &r, 1, 0);
}

static void writes(size_t offset, size_t size, CUstream s)
{
	struct hm_soft_range r = { va + offset, size, 1 };

	soft_launch(s, "a write", &r, 1, 0);
}

/* [va, va + 2 G) is one handle, mapped again at va + 4 G. */
static void begin(void)
{
	CUmemGenericAllocationHandle h;

	open_soft("");
	drv->cuStreamCreate(&a, CU_STREAM_NON_BLOCKING);
	drv->cuStreamCreate(&b, CU_STREAM_NON_BLOCKING);
	drv->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
	need(!drv->cuMemAddressReserve(&va, 8 * G, 0, 0, 0) &&
	     !drv->cuMemCreate(&h, 2 * G, &prop, 0) &&
	     !drv->cuMemMap(va, 2 * G, 0, h, 0) &&
	     !drv->cuMemMap(va + 4 * G, 2 * G, 0, h, 0) &&
	     !drv->cuMemSetAccess(va, 2 * G, &rw, 1) &&
	     !drv->cuMemSetAccess(va + 4 * G, 2 * G, &rw, 1) &&
	     !drv->cuMemRelease(h), "memory behind two addresses");
}

static void end(void)
{
	CUdeviceptr base;
	size_t size, i;

	drv->cuCtxSynchronize();
	for (i = 0; i < 8 * G; i += 2 * G)
		if (!drv->cuMemGetAddressRange(&base, &size, va + i))
			drv->cuMemUnmap(va + i, 2 * G);
	drv->cuMemAddressFree(va, 8 * G);
	if (host) {
		drv->cuMemRelease(host);
		drv->cuMemRelease(other);
		drv->cuStreamDestroy(copies);
	}
	drv->cuEventDestroy(event);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
	close_soft();
}

static void a_before_b(void)
{
	drv->cuEventRecord(event, a);
	drv->cuStreamWaitEvent(b, event, 0);
}

/* A block used and freed on stream a. */
static void used_on_a(void)
{
	alloc(1000, 5000, a);
	kernel(1000, 5000, a);
	release(1000, 5000, a);
}

static unsigned int nr_threads(void)
{
	DIR *dir = opendir("/proc/self/task");
	unsigned int nr = 0;

	while (dir && readdir(dir))
		nr++;
	if (dir)
		closedir(dir);
	return nr;
}

static void *nothing(void *arg)
{
	return arg;
}

/* A stream, its work on @offset and its end; nothing is left of it after that. */
static void one_that_goes(unsigned int flags, size_t offset)
{
	unsigned int threads;
	pthread_t first;
	CUstream c;

	/* ThreadSanitizer starts a thread of its own with the first one. */
	need(!pthread_create(&first, NULL, nothing, NULL) && !pthread_join(first, NULL), "a thread");
	threads = nr_threads();
	drv->cuStreamCreate(&c, flags);
	alloc(offset, 1000, c);
	kernel(offset, 1000, c);
	release(offset, 1000, c);
	drv->cuStreamDestroy(c);
	need(wait_until(nr_threads() <= threads), "the driver's thread has ended");
	drv->cuStreamCreate(&c, flags);
	drv->cuStreamDestroy(c);
}

/* Cases that are right. */
static void gone(void)
{
	one_that_goes(CU_STREAM_NON_BLOCKING, 0);
	drv->cuCtxSynchronize();
	alloc(0, 1000, b);
}

static void gone_legacy(void)
{
	one_that_goes(0, 0);
	drv->cuMemsetD8Async(va + G, 0, 1, NULL);
	alloc(0, 1000, NULL);
}

static void same_stream(void)
{
	used_on_a();
	alloc(0, 10000, a);
}

static void by_event(void)
{
	used_on_a();
	a_before_b();
	alloc(0, 10000, b);
}

/* By a third stream, and to a stream that is made later. */
static void by_way_of(void)
{
	CUstream c;

	used_on_a();
	a_before_b();
	drv->cuStreamCreate(&c, CU_STREAM_NON_BLOCKING);
	drv->cuEventRecord(event, b);
	drv->cuStreamWaitEvent(c, event, 0);
	alloc(0, 10000, c);
	drv->cuStreamDestroy(c);
}

static void by_host(void)
{
	used_on_a();
	drv->cuStreamSynchronize(a);
	alloc(0, 10000, b);
}

static void by_query(void)
{
	used_on_a();
	drv->cuEventRecord(event, a);
	stay_until(drv->cuEventQuery(event) != CUDA_ERROR_NOT_READY);
	alloc(0, 10000, HETMEM_STREAM_HOST);
}

static void by_legacy(void)
{
	CUstream blocking;

	drv->cuStreamCreate(&blocking, 0);
	alloc(0, 1000, blocking);
	kernel(0, 1000, blocking);
	release(0, 1000, blocking);
	drv->cuMemsetD8Async(va + G, 0, 1, NULL);
	alloc(0, 1000, NULL);
	drv->cuStreamDestroy(blocking);
}

static void host_first(void)
{
	alloc(0, 1000, HETMEM_STREAM_HOST);
	kernel(0, 1000, b);
	release(0, 1000, b);
	drv->cuStreamSynchronize(b);
	alloc(0, 1000, HETMEM_STREAM_HOST);
	release(0, 1000, HETMEM_STREAM_HOST);
	alloc(0, 1000, a);
}

static void neighbours(void)
{
	used_on_a();
	alloc(0, 1000, b);
	alloc(6000, 1000, b);
	kernel(6000, 1000, b);
}

static void alias_unmapped(void)
{
	used_on_a();
	drv->cuEventRecord(event, a);
	alloc(4 * G + 1000, 5000, a);
	drv->cuEventSynchronize(event);
	drv->cuMemUnmap(va, 2 * G);
	release(4 * G + 1000, 5000, a);
}

static void async(void)
{
	CUdeviceptr p;

	drv->cuMemAllocAsync(&p, 4096, a);
	drv->cuMemsetD8Async(p, 1, 4096, b);
	drv->cuEventRecord(event, b);
	drv->cuStreamWaitEvent(a, event, 0);
	drv->cuMemFreeAsync(p, a);
}

static void forgotten(void)
{
	void *p = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	hm_check_alloc(hm, p, 1 << 16, a);
	drv->cuMemsetD8Async((uintptr_t)p, 1, 1 << 16, a);
	hm_check_free(hm, p, 1 << 16, a);
	drv->cuStreamSynchronize(a);
	hm_check_forget(hm, p, 1 << 16);
	hm_check_alloc(hm, p, 1 << 16, b);
}

/*
 * A graph of two branches: what is captured on a, and on b, which joins at once
 * and comes back at the end. @use is called in between.
 */
static CUgraphExec two_branches(void (*use)(void))
{
	CUgraphExec exec;
	CUgraph graph;

	need(!drv->cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL),
	     "a capture");
	a_before_b();
	use();
	drv->cuEventRecord(event, b);
	drv->cuStreamWaitEvent(a, event, 0);
	need(!drv->cuStreamEndCapture(a, &graph) &&
	     !drv->cuGraphInstantiateWithFlags(&exec, graph, 0) &&
	     !drv->cuGraphDestroy(graph), "an executable graph");
	return exec;
}

static void launch_some(void (*use)(void))
{
	CUgraphExec exec = two_branches(use);
	int i;

	for (i = 0; i < 4; i++)
		drv->cuGraphLaunch(exec, i & 1 ? a : b);
	drv->cuGraphExecDestroy(exec);
}

static void fill(size_t offset, size_t size, CUstream s)
{
	drv->cuMemsetD8Async(va + offset, 1, size, s);
}

static void both_in_order(void)
{
	fill(0, 1000, a);
	a_before_b();
	fill(0, 1000, b);
	fill(1000, 1000, a);
}

static void both_read(void)
{
	kernel(0, 1000, a);
	kernel(0, 1000, b);
	drv->cuMemcpyAsync(va + G, va, 1000, a);
}

static void both_write(void)
{
	fill(0, 1000, a);
	fill(999, 1000, b);
}

/* Through two addresses. */
static void one_writes(void)
{
	fill(0, 1000, a);
	kernel(0, 1000, a);
	kernel(4 * G + 500, 10, b);
}

static void own_memory(CUstream frees)
{
	CUdeviceptr p;

	drv->cuMemAllocAsync(&p, 4096, a);
	drv->cuMemsetD8Async(p, 1, 4096, a);
	if (frees)
		a_before_b();
	drv->cuMemsetD8Async(p, 1, 4096, frees ? frees : b);
	if (!frees)
		drv->cuMemFreeAsync(p, a);
	else
		drv->cuMemFreeAsync(p, frees);
}

static void own_memory_in_order(void)
{
	own_memory(b);
}

static void own_memory_in_no_order(void)
{
	own_memory(NULL);
}

static void graph_in_order(void)
{
	launch_some(both_in_order);
}

static void graph_reads(void)
{
	launch_some(both_read);
}

static void graph_memory(void)
{
	launch_some(own_memory_in_order);
}

static void after_graph(void)
{
	CUgraphExec exec = two_branches(both_in_order);

	alloc(0, 3000, a);
	drv->cuGraphLaunch(exec, a);
	release(0, 3000, a);
	a_before_b();
	alloc(0, 3000, b);
	drv->cuGraphExecDestroy(exec);
}

/* Cases that are wrong. */
static void graph_writes(void)
{
	launch_some(both_write);
}

static void graph_writes_and_reads(void)
{
	launch_some(one_writes);
}

static void graph_memory_race(void)
{
	launch_some(own_memory_in_no_order);
}

static void not_after_graph(void)
{
	CUgraphExec exec = two_branches(both_in_order);

	alloc(0, 3000, a);
	drv->cuGraphLaunch(exec, a);
	alloc(2500, 3000, a);
	drv->cuGraphExecDestroy(exec);
}

static void unmapped_under_graph(void)
{
	drv->cuGraphLaunch(two_branches(both_in_order), a);
	drv->cuMemUnmap(va, 2 * G);
}

static void no_order(void)
{
	used_on_a();
	alloc(0, 10000, b);
}

static void note(void *done)
{
	__atomic_store_n((bool *)done, true, __ATOMIC_RELEASE);
}

/* The work is done, only nobody asked the driver. */
static void mere_luck(void)
{
	bool done = false;

	used_on_a();
	drv->cuLaunchHostFunc(a, note, &done);
	stay_until(__atomic_load_n(&done, __ATOMIC_ACQUIRE));
	alloc(0, 10000, b);
}

static void gone_not_waited(void)
{
	one_that_goes(CU_STREAM_NON_BLOCKING, 0);
	drv->cuMemsetD8Async(va + G, 0, 1, NULL);
	alloc(0, 1000, NULL);
}

static void early_event(void)
{
	a_before_b();
	used_on_a();
	alloc(0, 10000, b);
}

static void event_not_waited(void)
{
	used_on_a();
	drv->cuEventRecord(event, a);
	alloc(0, 10000, b);
}

static void to_host(void)
{
	used_on_a();
	alloc(0, 10000, HETMEM_STREAM_HOST);
}

static void alias(void)
{
	used_on_a();
	alloc(4 * G, 10000, b);
}

/* Recorded: the free on a is not behind what b did. */
static void recorded(void)
{
	alloc(0, 1000, a);
	a_before_b();
	kernel(0, 1000, b);
	release(0, 1000, a);
	release(0, 1000, b);
	alloc(0, 1000, a);
}

static void other_stream_free(void)
{
	used_on_a();
	alloc(1000, 5000, a);
	release(1000, 5000, b);
	alloc(1000, 5000, b);
}

static void reused_handle(void)
{
	CUstream gone = a;
	int i;

	used_on_a();
	drv->cuStreamDestroy(a);
	for (i = 0; i < 1000 && drv->cuStreamCreate(&a, 1) == CUDA_SUCCESS; i++)
		if (a == gone)
			break;
	alloc(0, 10000, a);
}

static void twice(void)
{
	alloc(0, 1000, a);
	alloc(500, 1000, a);
}

static void twice_alias(void)
{
	alloc(0, 1000, a);
	alloc(4 * G + 999, 1000, a);
}

static void after_free(void)
{
	used_on_a();
	kernel(5999, 1, a);
}

static void copy_after_free(void)
{
	used_on_a();
	drv->cuMemcpyAsync(va + G, va + 1000, 10, a);
}

static void before_alloc(void)
{
	kernel(0, 1000, a);
	alloc(0, 1000, a);
	kernel(0, 1000, b);
}

static void early_unmap(void)
{
	used_on_a();
	drv->cuMemUnmap(va, 2 * G);
}

static void early_alias_unmap(void)
{
	used_on_a();
	alloc(4 * G + 1000, 5000, a);
	drv->cuMemUnmap(va, 2 * G);
}

/* As a GPU's driver the soft one would do it, and hide the mistake. */
static void unmap_hole(void)
{
	drv->cuMemUnmap(va, 6 * G);
}

static void early_async_free(void)
{
	CUdeviceptr p;

	drv->cuMemAllocAsync(&p, 4096, a);
	drv->cuMemsetD8Async(p, 1, 4096, b);
	drv->cuMemFreeAsync(p, a);
}

static void hole(void)
{
	alloc(3 * G, 1000, a);
}

static void early_forget(void)
{
	static char buffer[4096];

	hm_check_alloc(hm, buffer, 4096, a);
	drv->cuMemsetD8Async((uintptr_t)buffer, 1, 4096, a);
	hm_check_forget(hm, buffer, 4096);
}

/*
 * Moves. A block is at va, and the host's memory at va + 6 G, where a pool copies to and
 * from. More memory of the device is at va + 2 G.
 */
#define STAGING	(6 * G)

static void map_at(size_t offset, CUmemGenericAllocationHandle h)
{
	need(!drv->cuMemMap(va + offset, 2 * G, 0, h, 0) &&
	     !drv->cuMemSetAccess(va + offset, 2 * G, &rw, 1), "a mapping");
}

static void remap(size_t offset, CUmemGenericAllocationHandle h)
{
	need(!drv->cuMemUnmap(va + offset, 2 * G), "an unmap");
	map_at(offset, h);
}

/* A block of stream a, used there. */
static void movable(void)
{
	CUmemAllocationProp p = prop;

	p.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA;
	need(!drv->cuMemCreate(&host, 2 * G, &p, 0) &&
	     !drv->cuMemCreate(&other, 2 * G, &prop, 0) &&
	     !drv->cuStreamCreate(&copies, CU_STREAM_NON_BLOCKING),
	     "memory to move to");
	map_at(STAGING, host);
	map_at(2 * G, other);
	alloc(0, 2 * G, a);
	fill(0, 2 * G, a);
}

static void begin_move(size_t offset, bool frozen)
{
	hm_check_move_begin(hm, at(offset), 2 * G, a, copies, frozen);
}

static void end_move(size_t offset)
{
	hm_check_move_end(hm, at(offset), 2 * G);
}

static void copy(size_t to, size_t from, CUstream s)
{
	drv->cuMemcpyAsync(va + to, va + from, 2 * G, s);
}

static void a_before_copies(void)
{
	drv->cuEventRecord(event, a);
	drv->cuStreamWaitEvent(copies, event, 0);
}

static void frozen(void)
{
	movable();
	drv->cuStreamSynchronize(a);
	begin_move(0, true);
}

static void in_the_background(void)
{
	movable();
	begin_move(0, false);
	a_before_copies();
	copy(STAGING, 0, copies);
}

static void spilled(void)
{
	drv->cuStreamSynchronize(copies);
	remap(0, host);
	end_move(0);
}

static void spill(void)
{
	frozen();
	copy(STAGING, 0, copies);
	spilled();
}

static CUcontext context;
static CUgraphExec one_exec;

static void launch_on_a(void)
{
	drv->cuGraphLaunch(one_exec, a);
}

static void *run_thread(void *arg)
{
	void (*const *fn)(void) = arg;

	need(!drv->cuCtxSetCurrent(context), "a context");
	(*fn)();
	return NULL;
}

static void by_thread(void (*fn)(void))
{
	pthread_t thread;

	drv->cuCtxGetCurrent(&context);
	need(!pthread_create(&thread, NULL, run_thread, &fn), "a thread");
	pthread_join(thread, NULL);
}

static void others_on_a(void)
{
	kernel(2 * G, 1000, a);
}

static void others_on_b(void)
{
	kernel(2 * G, 1000, b);
}

static void its_on_a(void)
{
	kernel(1000, 1000, a);
}

static void its_on_b(void)
{
	kernel(1000, 1000, b);
}

static void its_on_copies(void)
{
	kernel(1000, 1000, copies);
}

/* Moves that are right. */
static void spilled_and_used(void)
{
	spill();
	its_on_a();
	release(0, 2 * G, a);
	/* What it left is nobody's. */
	alloc(4 * G, 2 * G, b);
}

static void there_and_back(void)
{
	spill();
	its_on_a();
	drv->cuStreamSynchronize(a);
	begin_move(0, true);
	copy(2 * G, STAGING, copies);
	drv->cuStreamSynchronize(copies);
	remap(0, other);
	end_move(0);
	its_on_a();
	release(0, 2 * G, a);
	alloc(0, 2 * G, a);
	alloc(STAGING, 2 * G, b);
}

static void joined_before(void)
{
	movable();
	drv->cuEventRecord(event, a);
	drv->cuStreamWaitEvent(b, event, 0);
	its_on_b();
	drv->cuEventRecord(event, b);
	drv->cuStreamWaitEvent(a, event, 0);
	drv->cuStreamSynchronize(a);
	begin_move(0, true);
	copy(STAGING, 0, copies);
	spilled();
	its_on_b();
}

static void others_while_frozen(void)
{
	frozen();
	copy(STAGING, 0, copies);
	others_on_a();
	by_thread(others_on_b);
	by_thread(a_before_b);
	spilled();
	by_thread(its_on_a);
}

static void others_meanwhile(void)
{
	in_the_background();
	by_thread(others_on_a);
	others_on_b();
	spilled();
}

static void one_while_another(void)
{
	frozen();
	alloc(2 * G, 2 * G, a);
	others_on_a();
	drv->cuStreamSynchronize(a);
	begin_move(2 * G, true);
	copy(STAGING, 0, copies);
	end_move(2 * G);
	others_on_a();
	spilled();
	its_on_a();
}

static void freed_on_the_way(void)
{
	in_the_background();
	release(0, 2 * G, a);
	spilled();
	alloc(0, 2 * G, a);
}

static void failed(void)
{
	frozen();
	copy(STAGING, 0, copies);
	end_move(0);
	its_on_a();
	release(0, 2 * G, a);
}

/* The host's memory was a block that was freed. */
static void host_again(void)
{
	spill();
	release(0, 2 * G, a);
	drv->cuStreamSynchronize(a);
	remap(0, other);
	alloc(0, 2 * G, a);
	begin_move(0, true);
	copy(STAGING, 0, copies);
	spilled();
}

/* And moves that are wrong. */
static void work_while_frozen(void)
{
	frozen();
	by_thread(others_on_a);
}

static void graph_while_frozen(void)
{
	one_exec = two_branches(both_read);
	frozen();
	by_thread(launch_on_a);
}

static void not_joined(void)
{
	movable();
	its_on_b();
	drv->cuStreamSynchronize(a);
	begin_move(0, true);
}

static void not_joined_alias(void)
{
	movable();
	drv->cuEventRecord(event, a);
	drv->cuStreamWaitEvent(b, event, 0);
	kernel(4 * G + 10, 1, b);
	begin_move(0, false);
}

static void used_while_frozen(void)
{
	frozen();
	by_thread(its_on_b);
}

static void copied_by_another(void)
{
	frozen();
	by_thread(its_on_copies);
}

static void used_meanwhile(void)
{
	in_the_background();
	its_on_a();
}

/* It may run after the end. */
static void used_meanwhile_late(void)
{
	struct hm_soft_range r = { va, 1, 1 };

	in_the_background();
	soft_launch(b, "a late kernel", &r, 1, 50000000);
	spilled();
}

static void alias_meanwhile(void)
{
	in_the_background();
	drv->cuMemcpyAsync(va + 2 * G, va + 4 * G, 1, b);
}

static void graph_meanwhile(void)
{
	one_exec = two_branches(both_in_order);
	in_the_background();
	launch_on_a();
}

static void new_memory_meanwhile(void)
{
	in_the_background();
	drv->cuStreamSynchronize(copies);
	remap(0, host);
	its_on_a();
}

static void copied_too_early(void)
{
	movable();
	begin_move(0, false);
	copy(STAGING, 0, copies);
}

/* The host's memory is still read by b. */
static void copied_to_what_is_used(void)
{
	movable();
	kernel(STAGING, 1, b);
	drv->cuStreamSynchronize(a);
	begin_move(0, true);
	copy(STAGING, 0, copies);
}

/* From another address, so that the unmap does not find it. */
static void not_waited(void)
{
	frozen();
	copy(STAGING, 4 * G, copies);
	remap(0, host);
	end_move(0);
}

/* Once more, to the host's memory or from the device's. */
static void copied_again(void)
{
	frozen();
	copy(STAGING, 0, copies);
	drv->cuStreamSynchronize(copies);
	fill(STAGING, 10, copies);
	remap(0, host);
	end_move(0);
}

static void read_again(void)
{
	frozen();
	copy(STAGING, 0, copies);
	drv->cuStreamSynchronize(copies);
	copy(2 * G, 4 * G, copies);
	remap(0, host);
	end_move(0);
}

/* What the block left goes before the end, and new memory comes, as the same handle. */
static void left_and_gone(void)
{
	CUmemGenericAllocationHandle left, h[32];
	int i, nr = 0;

	movable();
	alloc(2 * G, 2 * G, a);
	drv->cuStreamSynchronize(a);
	begin_move(2 * G, true);
	copy(STAGING, 2 * G, copies);
	drv->cuStreamSynchronize(copies);
	remap(2 * G, host);
	/* calloc() does not take what a thread's cache has: fill that. */
	for (i = 0; i < 8; i++)
		drv->cuMemCreate(&h[i], 2 * G, &prop, 0);
	for (i = 0; i < 8; i++)
		drv->cuMemRelease(h[i]);
	left = other;
	drv->cuMemRelease(left);
	do
		need(!drv->cuMemCreate(&h[nr], 2 * G, &prop, 0), "new memory");
	while (h[nr++] != left && nr < 32);
	other = h[nr - 1];
	for (i = 0; i < nr - 1; i++)
		drv->cuMemRelease(h[i]);
	need(!drv->cuMemUnmap(va + 4 * G, 2 * G), "an unmap");
	map_at(4 * G, other);
	alloc(4 * G, G, a);
	end_move(2 * G);
	alloc(5 * G, G, a);
}

static void new_allocated_twice(void)
{
	left_and_gone();
	alloc(4 * G, G, a);
}

/* A block of two handles, of which one moves, is freed as a whole. */
static void half_of_a_block(size_t moves)
{
	movable();
	release(0, 2 * G, a);
	alloc(0, 4 * G, a);
	drv->cuStreamSynchronize(a);
	begin_move(moves, true);
	copy(STAGING, moves, copies);
	release(0, 4 * G, a);
	drv->cuStreamSynchronize(copies);
	remap(moves, host);
	end_move(moves);
}

static void first_half(void)
{
	half_of_a_block(0);
	alloc(0, 4 * G, a);
}

static void first_half_used(void)
{
	half_of_a_block(0);
	others_on_a();
}

static void second_half_used(void)
{
	half_of_a_block(2 * G);
	its_on_a();
}

/* A block of two handles, of which the first moves and the second fails to. */
static void half_failed(void)
{
	movable();
	release(0, 2 * G, a);
	alloc(0, 4 * G, a);
	drv->cuStreamSynchronize(a);
	hm_check_move_begin(hm, at(0), 4 * G, a, copies, true);
	copy(STAGING, 0, copies);
	drv->cuStreamSynchronize(copies);
	remap(0, host);
	hm_check_move_end(hm, at(0), 4 * G);
	alloc(4 * G, 2 * G, b);
	kernel(0, 4 * G, a);
}

static void moved_half_allocated(void)
{
	half_failed();
	alloc(STAGING, 1, a);
}

static void failed_half_allocated(void)
{
	half_failed();
	alloc(2 * G, 1, a);
}

/* Its own stream copies, after the free: b is behind the free only. */
static void freed_then_copied(void)
{
	movable();
	drv->cuStreamSynchronize(a);
	hm_check_move_begin(hm, at(0), 2 * G, a, a, true);
	release(0, 2 * G, a);
	a_before_b();
	copy(STAGING, 0, a);
	end_move(0);
	alloc(0, 2 * G, b);
}

static void unmapped_under_copy(void)
{
	frozen();
	copy(STAGING, 0, copies);
	remap(0, host);
}

static void host_unmapped_under_copy(void)
{
	frozen();
	copy(STAGING, 0, copies);
	drv->cuMemUnmap(va + STAGING, 2 * G);
}

static void allocated_meanwhile(void)
{
	in_the_background();
	release(0, 2 * G, a);
	alloc(0, 10, a);
}

static void moved_twice(void)
{
	in_the_background();
	begin_move(0, true);
}

static void moved_nothing(void)
{
	movable();
	drv->cuCtxSynchronize();
	drv->cuMemUnmap(va, 2 * G);
	begin_move(0, true);
}

static void moved_to_a_block(void)
{
	movable();
	alloc(STAGING + 5, 10, a);
	drv->cuStreamSynchronize(a);
	begin_move(0, true);
	copy(STAGING, 0, copies);
	spilled();
}

static void not_begun(void)
{
	frozen();
	hm_check_move_end(hm, at(0), G);
}

static void still_allocated(void)
{
	spill();
	alloc(STAGING + 100, 10, a);
}

static void freed_and_moved(void)
{
	in_the_background();
	release(0, 2 * G, a);
	spilled();
	its_on_a();
}

static void freed_on_the_way_elsewhere(void)
{
	in_the_background();
	others_on_a();
	release(0, 2 * G, a);
	spilled();
	alloc(0, 2 * G, b);
}

static void alias_in_order(void)
{
	alloc(0, 2 * G, a);
	writes(0, 100, a);
	drv->cuEventRecord(event, a);
	drv->cuStreamWaitEvent(b, event, 0);
	writes(4 * G, 100, b);
}

static void alias_reads(void)
{
	alias_in_order();
	drv->cuCtxSynchronize();
	kernel(0, 100, a);
	kernel(4 * G, 100, b);
}

/* Ordered after the allocation, and not with each other. */
static void alias_at_once(void)
{
	alias_in_order();
	writes(4 * G + 50, 100, b);
	writes(0, 100, a);
}

static void alias_read_at_once(void)
{
	alias_in_order();
	kernel(0, 100, a);
}

#define SAYS_TWICE	"used at two addresses without an order"
#define SAYS_BRANCHES	"used by two branches of a graph without an order"
#define SAYS_LEFT	"not freed: move 0x"
#define SAYS_ORDER	"on a stream that is not ordered behind its last use"

static const struct {
	const char *name;
	void (*fn)(void);
	const char *says[3];
} cases[] = {
	{ "the same stream", same_stream, { 0 } },
	{ "behind an event", by_event, { 0 } },
	{ "behind one that is behind it", by_way_of, { 0 } },
	{ "the host waited", by_host, { 0 } },
	{ "the host asked", by_query, { 0 } },
	{ "the legacy stream waits", by_legacy, { 0 } },
	{ "one that has gone", gone, { 0 } },
	{ "the legacy stream waits for one that has gone", gone_legacy, { 0 } },
	{ "the host before", host_first, { 0 } },
	{ "neighbours", neighbours, { 0 } },
	{ "an alias that is done with", alias_unmapped, { 0 } },
	{ "freed in order", async, { 0 } },
	{ "given back and come again", forgotten, { 0 } },
	{ "a graph whose branches are ordered", graph_in_order, { 0 } },
	{ "a graph whose branches only read", graph_reads, { 0 } },
	{ "a graph's own memory", graph_memory, { 0 } },
	{ "memory that is ordered after a graph", after_graph, { 0 } },
	{ "spilled and used", spilled_and_used, { 0 } },
	{ "spilled and fetched", there_and_back, { 0 } },
	{ "a use that was joined before its move", joined_before, { 0 } },
	{ "other memory during a synchronous move", others_while_frozen, { 0 } },
	{ "other work during an asynchronous move", others_meanwhile, { 0 } },
	{ "a move during another", one_while_another, { 0 } },
	{ "freed while it moves", freed_on_the_way, { 0 } },
	{ "a move that failed", failed, { 0 } },
	{ "a move of which half failed", half_failed, { 0 } },
	{ "what it left goes before the end", left_and_gone, { 0 } },
	{ "half of a block that is freed", first_half, { 0 } },
	{ "the host's memory used again", host_again, { 0 } },
	{ "an alias that is written in order", alias_in_order, { 0 } },
	{ "an alias that is only read", alias_reads, { 0 } },
	{ "an alias that is written at once", alias_at_once,
	  { SAYS_TWICE, "now:    a write", "before: a write" } },
	{ "an alias that is written while the other is read", alias_read_at_once,
	  { SAYS_TWICE, "now:    a kernel", "before: a write" } },
	{ "work by another thread during a synchronous move", work_while_frozen,
	  { "given work by another thread", "now:    a kernel on stream",
	    "before: the beginning of a move on stream" } },
	{ "a graph by another thread", graph_while_frozen,
	  { "given work by another thread" } },
	{ "a move before another stream is done", not_joined,
	  { "moved whose stream is not ordered behind", "before: a kernel",
	    "1000 bytes" } },
	{ "which used another address", not_joined_alias,
	  { "moved whose stream is not ordered behind", "offset 0xa", "order:" } },
	{ "a use during a synchronous move", used_while_frozen,
	  { "used while it moves", "now:    a kernel",
	    "before: the beginning of a move" } },
	{ "another thread on the stream of copies", copied_by_another,
	  { "used while it moves" } },
	{ "a use during an asynchronous move", used_meanwhile,
	  { "used while it moves", "offset 0x3e8" } },
	{ "a use that runs after the end", used_meanwhile_late,
	  { "used while it moves", "a late kernel" } },
	{ "a use of an alias during a move", alias_meanwhile,
	  { "used while it moves", "now:    cuMemcpyAsync", "offset 0" } },
	{ "a graph during a move", graph_meanwhile,
	  { "used while it moves", "on branch" } },
	{ "a use of the new memory before the end", new_memory_meanwhile,
	  { "used while it moves" } },
	{ "a copy before the stream is done", copied_too_early,
	  { "copied by a move that is not ordered", "before: cuMemsetD8Async" } },
	{ "a copy to what is used", copied_to_what_is_used,
	  { "copied by a move that is not ordered", "before: a kernel" } },
	{ "the end before the copy is done", not_waited,
	  { "ends before the host has waited", "before: cuMemcpyAsync" } },
	{ "and one more copy", copied_again,
	  { "ends before the host has waited", "before: cuMemsetD8Async", "10 bytes" } },
	{ "and what it left is read", read_again,
	  { "ends before the host has waited", "before: cuMemcpyAsync" } },
	{ "new memory that is allocated during a move", new_allocated_twice,
	  { "that is allocated" } },
	{ "used after it was freed whole, and its beginning moved", first_half_used,
	  { "after it was freed", "before: free" } },
	{ "used after it was freed whole, and its end moved", second_half_used,
	  { "after it was freed", "before: free" } },
	{ "the half that moved is allocated", moved_half_allocated,
	  { "that is allocated" } },
	{ "the half that failed is allocated", failed_half_allocated,
	  { "that is allocated" } },
	{ "copied after it was freed", freed_then_copied,
	  { SAYS_ORDER, "before: cuMemcpyAsync" } },
	{ "a move that does not end", frozen, { SAYS_LEFT } },
	{ "an unmap under the copy", unmapped_under_copy,
	  { "addresses go away", "cuMemUnmap" } },
	{ "of the host's memory", host_unmapped_under_copy,
	  { "addresses go away", "cuMemUnmap" } },
	{ "allocated while it moves", allocated_meanwhile,
	  { "allocated while it moves" } },
	{ "moved while it moves", moved_twice, { "moved that is moving" } },
	{ "a move of nothing", moved_nothing, { "where nothing is mapped" } },
	{ "a move to a block", moved_to_a_block,
	  { "moved to where memory is allocated", "10 bytes", "offset 0x5" } },
	{ "an end without a beginning", not_begun, { "has not begun" } },
	{ "allocated after it moved", still_allocated, { "that is allocated" } },
	{ "used after it was freed and moved", freed_and_moved,
	  { "after it was freed", "before: free on stream" } },
	{ "freed while it moved, and no order", freed_on_the_way_elsewhere,
	  { SAYS_ORDER, "before: free on stream" } },
	{ "branches that write the same", graph_writes,
	  { SAYS_BRANCHES, "now:    cuMemsetD8Async on branch", "1 bytes" } },
	{ "branches of which one writes", graph_writes_and_reads,
	  { SAYS_BRANCHES, "offset 0x1f4", "branch 2 of graph" } },
	{ "branches and a graph's own memory", graph_memory_race, { "branch" } },
	{ "allocated while a graph has it", not_after_graph,
	  { "that is allocated", "500 bytes" } },
	{ "unmapped under a graph", unmapped_under_graph,
	  { "addresses go away", "before: its last use on branch" } },
	{ "no order", no_order, { SAYS_ORDER, "now:    allocation on stream",
				  "before: free on stream" } },
	{ "done by luck", mere_luck, { SAYS_ORDER, "before: free on stream" } },
	{ "one that has gone, and the host did not wait", gone_not_waited,
	  { SAYS_ORDER } },
	{ "an event from before", early_event, { SAYS_ORDER, "order:  stream" } },
	{ "an event that is not waited for", event_not_waited, { SAYS_ORDER } },
	{ "the host at once", to_host, { SAYS_ORDER,
					 "now:    allocation on the host" } },
	{ "an alias", alias, { SAYS_ORDER, "handle", "offset 0x3e8" } },
	{ "a recorded stream", recorded, { SAYS_ORDER } },
	{ "a free that is behind nothing", other_stream_free, { SAYS_ORDER } },
	{ "a handle that is another stream", reused_handle, { SAYS_ORDER } },
	{ "twice", twice, { "that is allocated", "offset 0x1f4", "500 bytes" } },
	{ "twice through an alias", twice_alias, { "that is allocated",
						   "1 bytes" } },
	{ "a kernel after the free", after_free, { "after it was freed",
						   "now:    a kernel",
						   "before: free" } },
	{ "a copy after the free", copy_after_free, { "after it was freed",
						      "now:    cuMemcpyAsync" } },
	{ "another stream before it is there", before_alloc,
	  { "not ordered behind its allocation", "before: allocation" } },
	{ "an unmap too early", early_unmap, { "addresses go away",
					       "now:    cuMemUnmap on the host" } },
	{ "of an alias too early", early_alias_unmap, { "addresses go away" } },
	{ "an unmap of what is not mapped", unmap_hole,
	  { "some of which is not mapped", "cuMemUnmap" } },
	{ "a free in no order", early_async_free, { "addresses go away",
						    "cuMemFreeAsync on stream" } },
	{ "where nothing is mapped", hole, { "where nothing is mapped" } },
	{ "given back too early", early_forget, { "memory goes back",
						  "process memory" } },
};

static void run(size_t i)
{
	const bool good = !cases[i].says[0];
	char text[4096];
	int fds[2], status;
	ssize_t n, len = 0;
	size_t j;

	need(!pipe(fds), "a pipe");
	fflush(stdout);
	if (!fork()) {
		dup2(fds[1], 2);
		close(fds[1]);
		begin();
		cases[i].fn();
		end();
		_exit(0);
	}
	close(fds[1]);
	while ((n = read(fds[0], text + len, sizeof(text) - 1 - len)) > 0)
		len += n;
	text[len] = '\0';
	close(fds[0]);
	wait(&status);
	if (good) {
		ok(WIFEXITED(status) && !WEXITSTATUS(status) && !len,
		   "right: %s", cases[i].name);
	} else {
		ok(!strcmp(cases[i].says[0], SAYS_LEFT) ?
		   WIFEXITED(status) && !WEXITSTATUS(status) :
		   WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT,
		   "wrong: %s", cases[i].name);
		for (j = 0; j < 3 && cases[i].says[j]; j++)
			ok(strstr(text, cases[i].says[j]), "it says %s",
			   cases[i].says[j]);
	}
	if (len && good)
		printf("# %s\n", text);
}

/* Without check mode the same is nobody's business. */
static void off(void)
{
	setenv("HETMEM_SOFT_CHECK", "0", 1);
	begin();
	no_order();
	twice();
	ok(!hm->check, "off, nothing is checked");
	end();
}

int main(void)
{
	size_t i;

	setenv("HETMEM_SOFT_CHECK", "1", 1);
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		run(i);
	off();
	return tap_end();
}
