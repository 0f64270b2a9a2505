// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Streams of another context, and such as have been destroyed, where they are
 * named: it is an error, and the block is as it was. In check mode: memory
 * that was touched on such a stream would abort.
 */
#include "soft_driver.h"

#define SIZE	5000

static const char *const specs[] = {
	"pool(vmm)", "pool(device)", "stats(pool(vmm))",
	"limit(pool(vmm),max=64M)", "retry(pool(vmm),times=1)",
	"fallback(pool(vmm),pool(managed))", "align(pool(vmm),align=4K)",
	"guard(pool(vmm))", "guard(device)",
	"fixed(pool(vmm),size=64K,count=2)", "fixed(device,size=64K,count=2)",
	"device-pool",
};

static void refuses(struct hetmem_resource *res, const char *spec,
		    CUstream good, CUstream bad, const char *which)
{
	unsigned char byte = 0;
	void *p, *q;

	need(!hetmem_alloc(res, SIZE, 0, good, &p), "%s: %s", spec,
	     hetmem_last_error());
	drv->cuMemsetD8Async((uintptr_t)p, 77, SIZE, good);
	is(hetmem_alloc(res, SIZE, 0, bad, &q), -EINVAL, "%s: alloc, %s: %s",
	   spec, which, hetmem_last_error());
	is(hetmem_free(res, p, SIZE, bad), -EINVAL, "%s: free, %s: %s", spec,
	   which, hetmem_last_error());
	drv->cuMemcpyDtoHAsync(&byte, (uintptr_t)p, 1, good);
	drv->cuStreamSynchronize(good);
	is(byte, 77, "%s: the block is as it was", spec);
	is(hetmem_free(res, p, SIZE, good), 0, "%s: and is freed", spec);
}

static void run(const char *spec)
{
	struct hetmem_resource *res;
	CUcontext before, ctx;
	CUstream good, other, gone;

	need(!hetmem_resource_create(hm, spec, &res), "%s: %s", spec,
	     hetmem_last_error());
	drv->cuCtxGetCurrent(&before);
	need(!drv->cuDevicePrimaryCtxRetain(&ctx, 1) &&
	     !drv->cuCtxSetCurrent(ctx) &&
	     !drv->cuStreamCreate(&other, CU_STREAM_NON_BLOCKING) &&
	     !drv->cuCtxSetCurrent(before) &&
	     !drv->cuStreamCreate(&good, CU_STREAM_NON_BLOCKING) &&
	     !drv->cuStreamCreate(&gone, CU_STREAM_NON_BLOCKING), "streams");
	drv->cuStreamDestroy(gone);
	refuses(res, spec, good, other, "another context");
	refuses(res, spec, good, gone, "destroyed");
	hetmem_stream_retire(res, good);
	is(hetmem_resource_destroy(res), 0, "%s: nothing is live", spec);
	drv->cuStreamDestroy(good);
	drv->cuStreamDestroy(other);
	drv->cuDevicePrimaryCtxRelease(1);
}

int main(void)
{
	unsigned int i;

	setenv("HETMEM_SOFT_CHECK", "1", 1);
	setenv("HETMEM_SOFT_DEVICES", "2", 1);
	setenv("HETMEM_SOFT_MEMORY", "512M", 1);
	open_soft("");
	for (i = 0; i < sizeof(specs) / sizeof(specs[0]); i++)
		run(specs[i]);
	close_soft();
	return tap_end();
}
