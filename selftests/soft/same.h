/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The same calls to any driver, and what each says, as text. gpu_same.c puts
 * the soft driver beside the real one; same.c puts it beside what the
 * real one said on an NVIDIA H200 (same_h200.h), where there is none.
 *
 * Every probe begins with the same: two streams, an event that is complete,
 * 12 units of addresses, a handle of 2 units mapped behind the first 2.
 */
#ifndef HETMEM_SELFTESTS_SAME_H
#define HETMEM_SELFTESTS_SAME_H

#include "device_memory.h"
#include "gpu_driver.h"

#define G	((size_t)2 << 20)
#define TEXT	400

/**
 * struct probe - a few calls
 * @fn: says what they said
 */
struct probe {
	const char *name;
	void (*fn)(void);
};

static const struct hm_api *d;
static CUcontext ctx;
static CUstream a, b;
static CUevent event;
static CUdeviceptr va;
static CUmemGenericAllocationHandle handle;
static char *said;

/* One more word of what the probe says. */
__attribute__((format(printf, 1, 2)))
static void say(const char *fmt, ...)
{
	size_t len = strlen(said);
	va_list args;

	if (len && len < TEXT - 1)
		said[len++] = ' ';
	va_start(args, fmt);
	vsnprintf(said + len, TEXT - len, fmt, args);
	va_end(args);
}

/* Nobody else's addresses are beside ours: what is beyond them is known. */
static bool reserve_alone(void)
{
	CUdeviceptr wide;

	return !d->cuMemAddressReserve(&wide, 64 * G, 0, 0, 0) &&
	       !d->cuMemAddressFree(wide, 64 * G) &&
	       !d->cuMemAddressReserve(&va, 12 * G, 0, wide + 26 * G, 0);
}

static void prepare(void)
{
	d->cuStreamCreate(&a, CU_STREAM_NON_BLOCKING);
	d->cuStreamCreate(&b, CU_STREAM_NON_BLOCKING);
	d->cuEventCreate(&event, CU_EVENT_DISABLE_TIMING);
	d->cuEventRecord(event, b);
	d->cuStreamSynchronize(b);
	need(reserve_alone() &&
	     !d->cuMemCreate(&handle, 2 * G, &prop, 0) &&
	     !d->cuMemMap(va + 2 * G, 2 * G, 0, handle, 0) &&
	     !d->cuMemSetAccess(va + 2 * G, 2 * G, &rw, 1), "VMM");
}

/* Some of it may be gone: what that says was not asked for. */
static void finish(void)
{
	int res = d->cuCtxSynchronize();
	unsigned int i;

	if (res)
		say("then %d", res);
	for (i = 0; i < 11; i++) {
		d->cuMemUnmap(va + i * G, 2 * G);
		d->cuMemUnmap(va + i * G, G);
	}
	d->cuMemUnmap(va + 11 * G, G);
	d->cuMemRelease(handle);
	d->cuMemAddressFree(va, 12 * G);
	d->cuEventDestroy(event);
	d->cuStreamDestroy(a);
	d->cuStreamDestroy(b);
}

#endif /* HETMEM_SELFTESTS_SAME_H */
