/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Three devices of the soft driver for a test, each with a stream. Device 0 is current. */
#ifndef HETMEM_SELFTESTS_DEVICES_H
#define HETMEM_SELFTESTS_DEVICES_H

#include "soft_driver.h"

#define DEVICES	3

static CUcontext ctx[DEVICES];
static CUstream streams[DEVICES];

static void open_devices(void)
{
	int i;

	open_soft("");
	for (i = DEVICES - 1; i >= 0; i--)
		need(!drv->cuDevicePrimaryCtxRetain(&ctx[i], i) && !drv->cuCtxSetCurrent(ctx[i]) &&
		     !drv->cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING), "device %d", i);
}

static void close_devices(void)
{
	int i;

	for (i = 0; i < DEVICES; i++) {
		drv->cuCtxSetCurrent(ctx[i]);
		drv->cuStreamDestroy(streams[i]);
		drv->cuDevicePrimaryCtxRelease(i);
	}
	drv->cuCtxSetCurrent(ctx[0]);
	close_soft();
}

static size_t used(int device)
{
	size_t bytes;

	drv->cuCtxSetCurrent(ctx[device]);
	bytes = device_used();
	drv->cuCtxSetCurrent(ctx[0]);
	return bytes;
}

/* Whose memory @ptr is, as the driver says. */
static int owner(const void *ptr)
{
	CUpointer_attribute which = CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL;
	int device = -7;
	void *data = &device;

	drv->cuPointerGetAttributes(1, &which, &data, (uintptr_t)ptr);
	return device;
}

#endif /* HETMEM_SELFTESTS_DEVICES_H */
