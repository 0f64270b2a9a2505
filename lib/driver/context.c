// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The calling thread and the open library. The thread's context: where a call
 * needs it, the library makes a device's primary context current and puts back
 * what the program had. The handles that mean a stream of the thread or of its
 * context. What a driver's errors are called.
 */
#include <errno.h>

#include "driver/hetmem.h"

int hm_check_owner(struct hetmem *hm)
{
	if (hm_unlikely(hm->generation != hm_generation()))
		return hm_error(-EOWNERDEAD, "this is a forked child: open the library again");
	return 0;
}

const struct hm_driver *hetmem_driver_table(struct hetmem *hm)
{
	return &hm->driver;
}

const struct hm_kmod *hetmem_kmod(struct hetmem *hm)
{
	return &hm->kmod;
}

hetmem_stream hm_stream_here(hetmem_stream stream, uint64_t thread)
{
	return stream == HETMEM_STREAM_PER_THREAD && thread != hm_thread() ?
		HETMEM_STREAM_LEGACY : stream;
}

CUresult hm_current_enter(const struct hm_driver *d, CUcontext ctx,
			  CUcontext *before)
{
	CUresult res = d->cuCtxGetCurrent(before);

	if (res || *before == ctx)
		return res;
	return d->cuCtxSetCurrent(ctx);
}

void hm_current_leave(const struct hm_driver *d, CUcontext ctx,
		      CUcontext before)
{
	if (before != ctx)
		d->cuCtxSetCurrent(before);
}

int hm_no_device(const struct hetmem *hm, const char *what, int device)
{
	const char *colon = what ? ": " : "";

	what = what ? what : "";
	if (hm->nr_devices)
		return hm_error(-ENODEV, "%s%sno device %d: there are %d, numbered from 0",
				what, colon, device, hm->nr_devices);
	return hm_error(-ENODEV, "%s%sno device %d: %s", what, colon, device,
			hm->reasons[HETMEM_FEATURE_DEVICE]);
}

int hm_device_context(struct hetmem *hm, int device, CUcontext *ctx)
{
	struct hm_device *dev;
	CUresult res = CUDA_SUCCESS;

	if (device < 0 || device >= hm->nr_devices)
		return hm_no_device(hm, NULL, device);
	dev = &hm->devices[device];
	pthread_mutex_lock(&hm->lock);
	if (!dev->ctx) {
		res = hm->driver.cuDevicePrimaryCtxRetain(ctx, dev->handle);
		if (!res)
			dev->ctx = *ctx;
	}
	*ctx = dev->ctx;
	pthread_mutex_unlock(&hm->lock);
	return res ? hm_driver_error(&hm->driver, "cuDevicePrimaryCtxRetain",
				     res) : 0;
}

void hm_device_release(struct hetmem *hm, int device)
{
	struct hm_device *dev;

	if (device < 0 || device >= hm->nr_devices)
		return;
	dev = &hm->devices[device];
	pthread_mutex_lock(&hm->lock);
	if (dev->ctx)
		hm->driver.cuDevicePrimaryCtxRelease(dev->handle);
	dev->ctx = NULL;
	pthread_mutex_unlock(&hm->lock);
}

int hm_stream_of_device(struct hetmem *hm, int device, hetmem_stream stream)
{
	const struct hm_driver *d = &hm->driver;
	CUcontext ctx, its;
	CUresult res;
	int err;

	if (stream == HETMEM_STREAM_HOST || stream == HETMEM_STREAM_UNKNOWN ||
	    hm_stream_special(stream))
		return 0;
	if (!hm->nr_devices)
		return hm_error(-EINVAL, "stream %p is none: there is no device",
				stream);
	if (!d->cuStreamGetCtx)
		return 0;
	err = hm_device_context(hm, device, &ctx);
	if (err)
		return err;
	res = d->cuStreamGetCtx(stream, &its);
	if (res)
		return hm_error(-EINVAL, "stream %p is none: %s", stream,
				hm_cuda_name(d, res));
	return its == ctx ? 0 :
		hm_error(-EINVAL, "stream %p is of another context than device %d's",
			 stream, device);
}

int hm_context_enter(struct hetmem *hm, int device, struct hm_context *saved)
{
	CUcontext ctx;
	CUresult res;
	int err;

	err = hm_device_context(hm, device, &ctx);
	if (err)
		return err;
	res = hm->driver.cuCtxGetCurrent(&saved->before);
	if (res)
		return hm_driver_error(&hm->driver, "cuCtxGetCurrent", res);
	saved->relaxed = false;
	saved->changed = saved->before != ctx;
	if (!saved->changed)
		return 0;
	res = hm->driver.cuCtxSetCurrent(ctx);
	return res ? hm_driver_error(&hm->driver, "cuCtxSetCurrent", res) : 0;
}

int hm_context_default(struct hetmem *hm, int device,
		       struct hm_context *saved)
{
	CUresult res;

	*saved = (struct hm_context){ 0 };
	res = hm->driver.cuCtxGetCurrent(&saved->before);
	if (res)
		return hm_driver_error(&hm->driver, "cuCtxGetCurrent", res);
	return saved->before ? 0 : hm_context_enter(hm, device, saved);
}

void hm_context_relax(struct hetmem *hm, struct hm_context *saved)
{
	if (!hm->driver.cuThreadExchangeStreamCaptureMode)
		return;
	saved->mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	saved->relaxed =
		!hm->driver.cuThreadExchangeStreamCaptureMode(&saved->mode);
}

void hm_context_leave(struct hetmem *hm, const struct hm_context *saved)
{
	CUstreamCaptureMode mode = saved->mode;

	if (saved->relaxed)
		hm->driver.cuThreadExchangeStreamCaptureMode(&mode);
	if (saved->changed)
		hm->driver.cuCtxSetCurrent(saved->before);
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

int hm_capture_ask(struct hetmem *hm, hetmem_stream stream)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult res = CUDA_SUCCESS;

	if (hm->driver.cuStreamIsCapturing)
		res = hm->driver.cuStreamIsCapturing(stream, &status);
	/* The legacy stream would wait for one that is captured. */
	if (res == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT)
		return 1;
	/* Without a current context the thread has no special stream. */
	if (res == CUDA_ERROR_INVALID_CONTEXT && hm_stream_special(stream))
		return 0;
	if (res == CUDA_ERROR_INVALID_HANDLE)
		return hm_error(-EINVAL, "stream %p is none: %s", stream,
				hm_cuda_name(&hm->driver, res));
	if (res)
		return hm_driver_error(&hm->driver, "cuStreamIsCapturing", res);
	return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

bool hm_capture_active(struct hetmem *hm, hetmem_stream stream)
{
	return hm_capture_ask(hm, stream) > 0;
}

const char *hm_cuda_name(const struct hm_driver *driver, CUresult res)
{
	const char *name = NULL;

	if (!driver->cuGetErrorName || driver->cuGetErrorName(res, &name) ||
	    !name)
		return "an error without a name";
	return name;
}

int hm_driver_error(const struct hm_driver *driver, const char *call,
		    CUresult res)
{
	int err = res == CUDA_ERROR_OUT_OF_MEMORY ? -ENOMEM : -EIO;

	return hm_error(err, "%s driver: %s: %s", driver->name, call,
			hm_cuda_name(driver, res));
}
