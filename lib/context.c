// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The calling thread: its context, of which the library makes a device's primary
 * one current where a call needs it, and puts back what the program had; and
 * the handles of streams that mean a stream of the thread or of its context.
 */
#include <errno.h>

#include "internal.h"

uint64_t hm_thread(void)
{
	static uint64_t nr;
	static __thread uint64_t id;

	if (!id)
		id = __atomic_add_fetch(&nr, 1, __ATOMIC_RELAXED);
	return id;
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

int hm_device_context(struct hetmem *hm, int device, CUcontext *ctx)
{
	struct hm_device *dev;
	CUresult res = CUDA_SUCCESS;

	if (device < 0 || device >= hm->nr_devices)
		return hm_error(-ENODEV, "no device %d: there are %d", device,
				hm->nr_devices);
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

int hm_stream_of_device(struct hetmem *hm, int device, hetmem_stream stream)
{
	const struct hm_driver *d = &hm->driver;
	CUcontext ctx, its;
	CUresult res;
	int err;

	if (stream == HETMEM_STREAM_HOST || stream == HETMEM_STREAM_UNKNOWN ||
	    hm_stream_special(stream) || !d->cuStreamGetCtx)
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
