/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The soft driver for a test: opened, device 0 current.
 */
#ifndef HETMEM_SELFTESTS_SOFT_DRIVER_H
#define HETMEM_SELFTESTS_SOFT_DRIVER_H

#include "api.h"

static struct hetmem *hm;
static const struct hm_api *drv;

__attribute__((unused))
static void open_soft(const char *module_path)
{
	struct hetmem_params params = {
		.size = sizeof(params),
		.driver = "soft",
		.module_path = module_path,
	};
	CUcontext ctx;

	need(!hetmem_open(&hm, &params), "opens: %s", hetmem_last_error());
	drv = api_of(hm);
	need(!drv->cuDevicePrimaryCtxRetain(&ctx, 0) &&
	     !drv->cuCtxSetCurrent(ctx), "device 0 is current");
}

__attribute__((unused))
static void close_soft(void)
{
	drv->cuCtxSetCurrent(NULL);
	drv->cuDevicePrimaryCtxRelease(0);
	hetmem_close(hm);
}

__attribute__((unused))
static bool all_bytes(const void *p, unsigned char value, size_t n)
{
	const unsigned char *c = p;

	/* One memcmp(): a sanitizer looks at each access of a loop. */
	return !n || (*c == value && !memcmp(c, c + 1, n - 1));
}

/* Device memory that is in use, of the current device. */
__attribute__((unused))
static size_t device_used(void)
{
	size_t available, total;

	need(!drv->cuMemGetInfo(&available, &total), "cuMemGetInfo");
	return total - available;
}

/* Orders @to after the work that @from has now. */
__attribute__((unused))
static void follow(CUstream to, CUstream from)
{
	CUevent e;

	need(!drv->cuEventCreate(&e, CU_EVENT_DISABLE_TIMING) && !drv->cuEventRecord(e, from) &&
	     !drv->cuStreamWaitEvent(to, e, 0) && !drv->cuEventDestroy(e), "an order");
}

#endif /* HETMEM_SELFTESTS_SOFT_DRIVER_H */
