// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver's stream capture: what goes to a graph, who joins, what is
 * illegal meanwhile and for whom, and what a launch does.
 */
#include "device_memory.h"
#include "soft_driver.h"

static CUstream a, b;
static CUevent event, back;

static CUstreamCaptureStatus status(CUstream s)
{
	CUstreamCaptureStatus st = 77;

	drv->cuStreamIsCapturing(s, &st);
	return st;
}

static void launches(void)
{
	static unsigned char memory[64];
	CUgraphExec exec;
	CUgraph graph;

	is(status(a), CU_STREAM_CAPTURE_STATUS_NONE, "no capture");
	is(drv->cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL), 0,
	   "begun");
	is(drv->cuStreamBeginCapture(a, 0), CUDA_ERROR_ILLEGAL_STATE,
	   "not twice");
	is(status(a), CU_STREAM_CAPTURE_STATUS_ACTIVE, "active");
	is(drv->cuMemsetD8Async((uintptr_t)memory, 1, 64, a), 0, "work");
	is(drv->cuEventRecord(event, a), 0, "an event");
	is(drv->cuStreamWaitEvent(b, event, 0), 0, "another stream joins");
	is(status(b), CU_STREAM_CAPTURE_STATUS_ACTIVE, "and captures");
	is(drv->cuMemsetD8Async((uintptr_t)memory + 32, 2, 32, b), 0,
	   "its work");
	is(drv->cuEventRecord(back, b), 0, "an event");
	is(drv->cuStreamWaitEvent(a, back, 0), 0, "it comes back");
	is(drv->cuMemcpyAsync((uintptr_t)memory, (uintptr_t)memory + 32, 8, a),
	   0, "more work");
	is(drv->cuStreamEndCapture(a, &graph), 0, "a graph");
	ok(all_bytes(memory, 0, 64), "nothing was done");
	is(status(b), CU_STREAM_CAPTURE_STATUS_NONE, "nobody captures");
	is(drv->cuGraphInstantiateWithFlags(&exec, graph, 0), 0, "executable");
	is(drv->cuGraphDestroy(graph), 0, "without the graph");
	is(drv->cuGraphDestroy(graph), CUDA_ERROR_INVALID_VALUE, "not twice");
	is(drv->cuGraphLaunch(exec, b), 0, "launched");
	drv->cuStreamSynchronize(b);
	ok(all_bytes(memory, 2, 8) && all_bytes(memory + 8, 1, 24) &&
	   all_bytes(memory + 32, 2, 32), "it was done in order");
	memset(memory, 0, 64);
	is(drv->cuGraphLaunch(exec, a), 0, "once more");
	drv->cuStreamSynchronize(a);
	ok(all_bytes(memory, 2, 8), "it was done again");
	is(drv->cuGraphExecDestroy(exec), 0, "gone");
	is(drv->cuGraphLaunch(exec, a), CUDA_ERROR_INVALID_VALUE, "really");
	is(drv->cuEventQuery(back), CUDA_ERROR_CAPTURED_EVENT,
	   "a captured event is none to wait for");
	drv->cuEventRecord(back, b);
	is(drv->cuEventSynchronize(back), 0, "until it is recorded anew");
}

/* Ends a capture that is expected to be invalid. */
static void ends(CUresult want, const char *what)
{
	CUgraph graph = (CUgraph)&want;

	is(drv->cuStreamEndCapture(a, &graph), want, "%s", what);
	if (want)
		ok(!graph, "no graph");
	else
		drv->cuGraphDestroy(graph);
	is(status(a), CU_STREAM_CAPTURE_STATUS_NONE, "it is over");
	is(drv->cuStreamSynchronize(a), 0, "the stream works");
}

static void begin(CUstreamCaptureMode mode)
{
	need(!drv->cuStreamBeginCapture(a, mode), "a capture begins");
}

static void illegal(void)
{
	CUstream blocking;
	CUgraph graph;
	CUdeviceptr p;

	begin(0);
	is(drv->cuStreamSynchronize(a), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
	   "waiting for it");
	is(status(a), CU_STREAM_CAPTURE_STATUS_INVALIDATED, "makes it invalid");
	is(drv->cuMemsetD8Async((uintptr_t)&p, 0, 1, a),
	   CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "no more work");
	ends(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "invalid");

	begin(0);
	is(drv->cuStreamQuery(a), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
	   "asking");
	ends(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "invalid");

	drv->cuEventRecord(back, b);
	begin(0);
	is(drv->cuStreamWaitEvent(a, back, 0),
	   CUDA_ERROR_STREAM_CAPTURE_ISOLATION, "an event from outside");
	ends(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "invalid");

	begin(0);
	drv->cuEventRecord(event, a);
	drv->cuStreamWaitEvent(b, event, 0);
	drv->cuEventRecord(back, b);
	drv->cuMemsetD8Async((uintptr_t)&p, 0, 1, b);
	drv->cuStreamWaitEvent(a, back, 0);
	ends(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, "work that has not come back");
	is(status(b), CU_STREAM_CAPTURE_STATUS_NONE, "nor is b in it");

	begin(0);
	is(drv->cuStreamBeginCapture(b, 0), 0, "a second one");
	drv->cuEventRecord(event, a);
	is(drv->cuStreamWaitEvent(b, event, 0),
	   CUDA_ERROR_STREAM_CAPTURE_MERGE, "two do not merge");
	is(drv->cuStreamEndCapture(b, &graph),
	   CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "both");
	is(drv->cuStreamEndCapture(b, &graph),
	   CUDA_ERROR_ILLEGAL_STATE, "over is over");
	ends(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "invalid");

	drv->cuStreamCreate(&blocking, CU_STREAM_DEFAULT);
	is(drv->cuStreamBeginCapture(NULL, 0),
	   CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "not the legacy stream");
	drv->cuStreamBeginCapture(blocking, 0);
	is(drv->cuMemsetD8Async((uintptr_t)&p, 0, 1, NULL),
	   CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, "which would wait for one");
	drv->cuStreamDestroy(blocking);
	is(drv->cuMemsetD8Async((uintptr_t)&p, 0, 1, NULL), 0,
	   "that is destroyed");
	drv->cuStreamSynchronize(NULL);
}

static CUstreamCaptureMode thread_mode;
static CUresult thread_result;

static void *allocates(void *arg)
{
	CUstreamCaptureMode mode = thread_mode;
	CUcontext ctx;
	CUdeviceptr p;

	(void)arg;
	drv->cuDevicePrimaryCtxRetain(&ctx, 0);
	drv->cuCtxSetCurrent(ctx);
	drv->cuThreadExchangeStreamCaptureMode(&mode);
	thread_result = drv->cuMemAlloc(&p, 4096);
	if (!thread_result)
		drv->cuMemFree(p);
	drv->cuDevicePrimaryCtxRelease(0);
	return NULL;
}

static CUresult other_thread(CUstreamCaptureMode mode)
{
	pthread_t thread;

	thread_mode = mode;
	pthread_create(&thread, NULL, allocates, NULL);
	pthread_join(thread, NULL);
	return thread_result;
}

static void modes(void)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUmemGenericAllocationHandle h;
	CUdeviceptr p;

	begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
	is(drv->cuMemAlloc(&p, 4096), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
	   "allocating");
	ends(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "invalid");
	begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
	is(drv->cuMemCreate(&h, 2 << 20, &prop, 0),
	   CUDA_SUCCESS, "a handle is no matter of streams");
	is(drv->cuMemRelease(h), 0, "nor is its release");
	ends(0, "valid");
	drv->cuEventRecord(back, b);
	begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
	is(drv->cuEventQuery(back), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
	   "asking for any event");
	ends(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "invalid");

	begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
	is(other_thread(CU_STREAM_CAPTURE_MODE_GLOBAL),
	   CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "another thread neither");
	ends(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, "invalid");
	begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
	is(other_thread(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL), 0,
	   "it may if it says so");
	ends(0, "valid");
	begin(CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
	is(other_thread(CU_STREAM_CAPTURE_MODE_GLOBAL), 0,
	   "or the capture does");
	ends(0, "valid");

	is(drv->cuThreadExchangeStreamCaptureMode(&mode), 0, "relaxed");
	is(mode, CU_STREAM_CAPTURE_MODE_GLOBAL, "what it was");
	begin(CU_STREAM_CAPTURE_MODE_GLOBAL);
	is(drv->cuMemAlloc(&p, 4096), 0, "allocating is legal then");
	is(drv->cuMemFree(p), 0, "freeing too");
	is(drv->cuThreadExchangeStreamCaptureMode(&mode), 0, "as it was");
	is(mode, CU_STREAM_CAPTURE_MODE_RELAXED, "what it was");
	ends(0, "valid");
	mode = 3;
	is(drv->cuThreadExchangeStreamCaptureMode(&mode),
	   CUDA_ERROR_INVALID_VALUE, "no such mode");
}

int main(void)
{
	setenv("HETMEM_SOFT_DEBUG", "1", 1);
	open_soft("");
	drv->cuStreamCreate(&a, CU_STREAM_NON_BLOCKING);
	drv->cuStreamCreate(&b, CU_STREAM_NON_BLOCKING);
	drv->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
	drv->cuEventCreate(&back, CU_EVENT_DISABLE_TIMING);
	launches();
	illegal();
	modes();
	drv->cuEventDestroy(event);
	drv->cuEventDestroy(back);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
	close_soft();
	return tap_end();
}
