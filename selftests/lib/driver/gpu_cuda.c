// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The library over a real libcuda.so.1, on a machine with a GPU: `make
 * check-gpu`. What the soft driver claims to be like is asked here of the
 * driver that it imitates.
 */
#include "api.h"
#include "driver/calls.h"
#include "tap.h"

#define SMALL	((size_t)4 << 20)
#define LARGE	((size_t)64 << 20)

static struct hetmem *hm;
static const struct hm_api *drv;

static bool all_bytes(const unsigned char *p, unsigned char value, size_t size)
{
	return p[0] == value && !memcmp(p, p + 1, size - 1);
}

static void features(void)
{
	struct hetmem_device_props props = { .size = sizeof(props) };
	struct hetmem_feature f;
	int i;

	for (i = 0; i < HETMEM_FEATURE_NR; i++) {
		is(hetmem_feature(hm, i, &f), 0, "feature %d", i);
		printf("# %s: %s, %s\n", f.name,
		       f.available ? "yes" : "no", f.reason);
	}
	ok(hetmem_device_count(hm) > 0, "there are devices");
	is(hetmem_device_props(hm, 0, &props), 0, "properties");
	printf("# %s, %llu MiB, platform %d, driver %d\n", props.name,
	       (unsigned long long)props.total >> 20, props.platform,
	       hm->driver.version);
	ok(props.total > 0, "it has memory");
	ok(!props.vmm || props.granularity >= 4096, "VMM has a granularity");
}

/* Every call that this driver version promises is there. */
static void calls(void)
{
	int absent = 0;

#define ASK(member, base, symbol, since, use) do {			\
	if (!hm->driver.member && (since) <= hm->driver.version) {		\
		printf("# absent: %s\n", #member);			\
		absent++;						\
	}								\
} while (0);
	HM_DRIVER_CALLS(ASK)
#undef ASK
	is(absent, 0, "calls that are absent");
}

static void system_memory(void)
{
	struct hetmem_moved moved = { .size = sizeof(moved) };
	struct hetmem_feature f;
	unsigned char *p;
	CUdeviceptr d = 0;
	void *v;

	is(hetmem_system_alloc(hm, SMALL, &v), 0, "system memory");
	p = v;
	memset(p, 7, SMALL);
	is(hetmem_feature(hm, HETMEM_FEATURE_PAGEABLE, &f), 0, "asked");
	is(hetmem_prefetch(hm, p, SMALL, HETMEM_LOC(HETMEM_DEVICE, 0), NULL,
			   &moved), 0, "prefetch of system memory");
	printf("# by %s: %s\n", moved.how, moved.reason ? moved.reason : "");
	if (f.available)
		ok(!strcmp(moved.how, "driver"), "by the driver");
	else
		ok(!strcmp(moved.how, "none") && moved.reason[0],
		   "not at all, and it says why");

	is(drv->cuMemAlloc(&d, SMALL), CUDA_SUCCESS, "device memory");
	is(drv->cuMemcpyAsync(d, (uintptr_t)p, SMALL, NULL), CUDA_SUCCESS,
	   "copied there");
	is(drv->cuMemsetD8Async(d + 100, 9, 100, NULL), CUDA_SUCCESS, "changed");
	memset(p, 0, SMALL);
	is(drv->cuMemcpyAsync((uintptr_t)p, d, SMALL, NULL), CUDA_SUCCESS,
	   "and back");
	is(drv->cuCtxSynchronize(), CUDA_SUCCESS, "done");
	ok(all_bytes(p, 7, 100) && all_bytes(p + 100, 9, 100) &&
	   all_bytes(p + 200, 7, SMALL - 200), "contents are right");
	is(drv->cuMemFree(d), CUDA_SUCCESS, "device memory freed");
	is(hetmem_system_free(hm, p), 0, "system memory freed");
}

static void managed_memory(void)
{
	struct hetmem_moved moved = { .size = sizeof(moved) };
	CUdeviceptr m;

	if (drv->cuMemAllocManaged(&m, LARGE, CU_MEM_ATTACH_GLOBAL)) {
		printf("# no managed memory here\n");
		return;
	}
	memset((void *)(uintptr_t)m, 3, LARGE);
	is(hetmem_prefetch(hm, (void *)(uintptr_t)m, LARGE,
			   HETMEM_LOC(HETMEM_DEVICE, 0), NULL, &moved), 0,
	   "prefetch of managed memory to the device");
	ok(!strcmp(moved.how, "driver"), "by the driver");
	is(hetmem_prefetch(hm, (void *)(uintptr_t)m, LARGE,
			   HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY), NULL,
			   &moved), 0, "and to the host");
	is(drv->cuCtxSynchronize(), CUDA_SUCCESS, "done");
	ok(all_bytes((void *)(uintptr_t)m, 3, LARGE), "contents are right");
	is(drv->cuMemFree(m), CUDA_SUCCESS, "freed");
}

int main(void)
{
	struct hetmem_params params = {
		.size = sizeof(params), .driver = "cuda",
	};
	CUcontext ctx;
	int ret;

	ret = hetmem_open(&hm, &params);
	need(!ret, "open: %s", ret ? hetmem_last_error() : "");
	drv = api_of(hm);
	need(!drv->cuDevicePrimaryCtxRetain(&ctx, 0) &&
	     !drv->cuCtxSetCurrent(ctx), "a context");
	features();
	calls();
	system_memory();
	managed_memory();
	drv->cuDevicePrimaryCtxRelease(0);
	hetmem_close(hm);
	return tap_end();
}
