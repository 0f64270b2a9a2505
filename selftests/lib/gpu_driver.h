/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A driver for a test on a machine with a GPU: opened, device 0 current.
 * -DDRIVER='"soft"' compiles such a test for a machine without.
 */
#ifndef HETMEM_SELFTESTS_GPU_DRIVER_H
#define HETMEM_SELFTESTS_GPU_DRIVER_H

#include <time.h>

#include "api.h"

#ifndef DRIVER
#define DRIVER	"cuda"
#endif

__attribute__((unused))
static const struct hm_api *open_driver(const char *name, struct hetmem **hm)
{
	struct hetmem_params params = {
		.size = sizeof(params), .driver = name,
	};
	const struct hm_api *d;
	CUcontext ctx;
	int err = hetmem_open(hm, &params);

	need(!err, "open: %s", err ? hetmem_last_error() : name);
	d = api_of(*hm);
	need(!d->cuDevicePrimaryCtxRetain(&ctx, 0) && !d->cuCtxSetCurrent(ctx),
	     "a context");
	return d;
}

__attribute__((unused))
static void close_driver(const struct hm_api *d, struct hetmem *hm)
{
	d->cuCtxSetCurrent(NULL);
	d->cuDevicePrimaryCtxRelease(0);
	hetmem_close(hm);
}

__attribute__((unused))
static double ms_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1e3 + ts.tv_nsec / 1e6;
}

#endif /* HETMEM_SELFTESTS_GPU_DRIVER_H */
