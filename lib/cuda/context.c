// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Primary contexts, captures and streams of the program.
 *
 * The library retains a primary context, too. So the driver would not destroy it at the
 * program's last release: releases are counted here, and the last one first ends the blocks
 * of the device. A reset does the same.
 *
 * Captures are counted, since no call asks the driver whether any stream is captured. A stream
 * that is destroyed during its capture leaves the number too high: cuMemFree() then takes its
 * slow way, and remains right.
 */
#include <pthread.h>

#include "cuda/cuda.h"
#include "cuda/prototypes.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Retains of the program without release. */
static unsigned int retained[HM_MAX_DEVICES];
static unsigned int captures;

CUcontext hm_cuda_current(void)
{
	CUcontext ctx = NULL;

	if (HM_CUDA_NEXT_AS(cuCtxGetCurrent, CUresult (*)(CUcontext *))(&ctx))
		return NULL;
	return ctx;
}

bool hm_cuda_is_capturing(void)
{
	return __atomic_load_n(&captures, __ATOMIC_RELAXED);
}

CUresult HM_CUDA_EXPORT cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice device)
{
	CUresult res = HM_CUDA_NEXT(cuDevicePrimaryCtxRetain)(ctx, device);

	if (!hm_cuda_is_active())
		return res;
	HM_CUDA_COUNT(cuDevicePrimaryCtxRetain);
	if (!res && device >= 0 && device < HM_MAX_DEVICES) {
		pthread_mutex_lock(&lock);
		retained[device]++;
		pthread_mutex_unlock(&lock);
	}
	return res;
}

/* Before the driver releases it. */
static void note_release(CUdevice device)
{
	bool last;

	if (device < 0 || device >= HM_MAX_DEVICES)
		return;
	pthread_mutex_lock(&lock);
	last = retained[device] == 1;
	if (retained[device])
		retained[device]--;
	pthread_mutex_unlock(&lock);
	if (last)
		hm_cuda_end_device(device);
}

static void note_reset(CUdevice device)
{
	if (device < 0 || device >= HM_MAX_DEVICES)
		return;
	hm_cuda_end_device(device);
}

#define RELEASE(name, note)						\
CUresult HM_CUDA_EXPORT name(CUdevice device)				\
{									\
	if (hm_cuda_is_active()) {					\
		HM_CUDA_COUNT(name);					\
		note(device);						\
	}								\
	return HM_CUDA_NEXT(name)(device);				\
}

RELEASE(cuDevicePrimaryCtxRelease, note_release)
RELEASE(cuDevicePrimaryCtxRelease_v2, note_release)
RELEASE(cuDevicePrimaryCtxReset, note_reset)
RELEASE(cuDevicePrimaryCtxReset_v2, note_reset)

static CUresult note_begin(CUresult res)
{
	if (!res)
		__atomic_add_fetch(&captures, 1, __ATOMIC_RELAXED);
	return res;
}

static CUresult note_end(CUresult res)
{
	if (!res || res == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED)
		__atomic_sub_fetch(&captures, 1, __ATOMIC_RELAXED);
	return res;
}

#define BEGIN(name)							\
CUresult HM_CUDA_EXPORT name(CUstream stream, CUstreamCaptureMode mode)	\
{									\
	if (!hm_cuda_is_active())					\
		return HM_CUDA_NEXT(name)(stream, mode);		\
	HM_CUDA_COUNT(name);						\
	return note_begin(HM_CUDA_NEXT(name)(stream, mode));		\
}

BEGIN(cuStreamBeginCapture_v2)
BEGIN(cuStreamBeginCapture_v2_ptsz)

/* Before CUDA 10.1 there was one mode. */
#define BEGIN_V1(name)							\
CUresult HM_CUDA_EXPORT name(CUstream stream)				\
{									\
	if (!hm_cuda_is_active())					\
		return HM_CUDA_NEXT(name)(stream);			\
	HM_CUDA_COUNT(name);						\
	return note_begin(HM_CUDA_NEXT(name)(stream));			\
}

BEGIN_V1(cuStreamBeginCapture)
BEGIN_V1(cuStreamBeginCapture_ptsz)

#define BEGIN_TO(name)							\
CUresult HM_CUDA_EXPORT name(CUstream stream, CUgraph graph, const void *nodes,	\
			     const void *edges, size_t nr,		\
			     CUstreamCaptureMode mode)			\
{									\
	if (!hm_cuda_is_active())					\
		return HM_CUDA_NEXT(name)(stream, graph, nodes, edges, nr, mode); \
	HM_CUDA_COUNT(name);						\
	return note_begin(HM_CUDA_NEXT(name)(stream, graph, nodes, edges, nr, mode)); \
}

BEGIN_TO(cuStreamBeginCaptureToGraph)
BEGIN_TO(cuStreamBeginCaptureToGraph_ptsz)

/* @meant: the stream that a NULL @stream is. */
#define END(name, meant)						\
CUresult HM_CUDA_EXPORT name(CUstream stream, CUgraph *graph)		\
{									\
	unsigned long long id;						\
	CUresult res;							\
									\
	if (!hm_cuda_is_active())					\
		return HM_CUDA_NEXT(name)(stream, graph);		\
	HM_CUDA_COUNT(name);						\
	id = hm_cuda_graph_capture(stream ? stream : (meant));		\
	res = note_end(HM_CUDA_NEXT(name)(stream, graph));		\
	if (!hm_cuda_is_child())					\
		hm_cuda_graph_captured(id, res, graph && !res ? *graph : NULL); \
	return res;							\
}

END(cuStreamEndCapture, CU_STREAM_LEGACY)
END(cuStreamEndCapture_ptsz, CU_STREAM_PER_THREAD)

/* A stream that is captured is not looked up: that would end its capture. */
static bool is_captured(CUstream stream)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;

	return hm_cuda_is_capturing() && (HM_CUDA_NEXT_AS(cuStreamIsCapturing, CUresult (*)
			(CUstream, CUstreamCaptureStatus *))(stream, &status) ||
			status != CU_STREAM_CAPTURE_STATUS_NONE);
}

static void retire(struct hm_cuda_device *device, void *stream)
{
	/* A stream of another device's context is an error there, and changes nothing. */
	hetmem_stream_retire(device->resource, stream);
}

/* The handle can be another stream's right after its end. */
#define DESTROY(name)							\
CUresult HM_CUDA_EXPORT name(CUstream stream)				\
{									\
	if (hm_cuda_is_active()) {					\
		HM_CUDA_COUNT(name);					\
		if (!hm_stream_special(stream) && !hm_cuda_is_child() && !is_captured(stream)) \
			hm_cuda_each_device(retire, stream);		\
	}								\
	return HM_CUDA_NEXT(name)(stream);				\
}

DESTROY(cuStreamDestroy)
DESTROY(cuStreamDestroy_v2)
