// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Uses of regions: see region_use.h.
 */
#include <errno.h>

#include "resource/region_use.h"

int hm_use_init(struct hetmem *hm, int device, hetmem_stream stream,
		struct hm_use *use)
{
	const struct hm_driver *d = &hm->driver;
	CUcontext ctx = NULL;
	CUresult res;

	*use = (struct hm_use){ .stream = stream, .thread = hm_thread() };
	if (!hm_stream_special(stream) && d->cuStreamGetCtx) {
		res = d->cuStreamGetCtx(stream, &use->ctx);
		return res ? hm_error(-EINVAL, "stream %p is none: %s", stream,
				      hm_cuda_name(d, res)) : 0;
	}
	res = d->cuCtxGetCurrent(&ctx);
	if (res)
		return hm_driver_error(d, "cuCtxGetCurrent", res);
	use->ctx = ctx;
	return ctx ? 0 : hm_device_context(hm, device < 0 ? 0 : device,
					   &use->ctx);
}

/* Once more, should it fail: there is nobody to tell who could. */
static void destroy(struct hetmem *hm, CUevent event)
{
	if (hm->driver.cuEventDestroy(event))
		hm->driver.cuEventDestroy(event);
}

static int record(struct hetmem *hm, struct hm_use *use, CUstream stream)
{
	const struct hm_driver *d = &hm->driver;
	const char *call = "cuEventCreate";
	CUevent event;
	CUresult res;

	if (hm_capture_active(hm, stream))
		return hm_error(-EBUSY, "stream %p is being captured, and the resource was not told (hetmem_capture_begin)",
				stream);
	res = d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
	if (!res) {
		call = "cuEventRecord";
		res = d->cuEventRecord(event, stream);
		if (res)
			destroy(hm, event);
	}
	if (res)
		return hm_driver_error(d, call, res);
	use->event = event;
	return 0;
}

int hm_use_record(struct hetmem *hm, struct hm_use *use)
{
	const struct hm_driver *d = &hm->driver;
	CUcontext before;
	CUresult res;
	int err;

	if (use->event)
		return 0;
	res = hm_current_enter(d, use->ctx, &before);
	if (res)
		return hm_driver_error(d, "cuCtxSetCurrent", res);
	err = record(hm, use, hm_stream_here(use->stream, use->thread));
	hm_current_leave(d, use->ctx, before);
	return err;
}

int hm_use_order(struct hetmem *hm, const struct hm_use *use,
		 const struct hm_use *behind)
{
	const struct hm_driver *d = &hm->driver;
	CUcontext before;
	CUresult res;

	res = hm_current_enter(d, use->ctx, &before);
	if (res)
		return hm_driver_error(d, "cuCtxSetCurrent", res);
	res = d->cuStreamWaitEvent(hm_stream_here(use->stream, use->thread),
				   behind->event, 0);
	hm_current_leave(d, use->ctx, before);
	return res ? hm_driver_error(d, "cuStreamWaitEvent", res) : 0;
}

bool hm_use_over(struct hetmem *hm, const struct hm_use *use, bool wait)
{
	if (!use->event)
		return true;
	if (!wait)
		return !hm->driver.cuEventQuery(use->event);
	/* What fails twice has failed for good: no work is done any more. */
	if (hm->driver.cuEventSynchronize(use->event))
		hm->driver.cuEventSynchronize(use->event);
	return true;
}

void hm_use_end(struct hetmem *hm, struct hm_use *use)
{
	if (use->event)
		destroy(hm, use->event);
	use->event = NULL;
}

CUstreamCaptureMode hm_capture_relaxed(struct hetmem *hm)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	if (hm->driver.cuThreadExchangeStreamCaptureMode)
		hm->driver.cuThreadExchangeStreamCaptureMode(&mode);
	return mode;
}

void hm_capture_mode(struct hetmem *hm, CUstreamCaptureMode mode)
{
	if (hm->driver.cuThreadExchangeStreamCaptureMode)
		hm->driver.cuThreadExchangeStreamCaptureMode(&mode);
}

bool hm_capture_active(struct hetmem *hm, hetmem_stream stream)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult res = CUDA_SUCCESS;

	if (hm->driver.cuStreamIsCapturing)
		res = hm->driver.cuStreamIsCapturing(stream, &status);
	/* Or the legacy stream, which would wait for one that is captured. */
	return res == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT ||
	       (!res && status != CU_STREAM_CAPTURE_STATUS_NONE);
}
