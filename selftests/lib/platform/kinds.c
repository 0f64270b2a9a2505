// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What devices of each kind do, and what the library makes of it: prefetch to the
 * device and to the host, of malloc'd and of managed memory, discard, advice,
 * resources. The driver itself first, as programs call it.
 */
#include <sys/mman.h>

#include "platform/machine.h"

#define SIZE	((size_t)1 << 20)

static const CUmemLocation device0 = { CU_MEM_LOCATION_TYPE_DEVICE, 0 };
static const CUmemLocation host = { CU_MEM_LOCATION_TYPE_HOST, 0 };

struct row {
	const char *machine;
	/* Of malloc'd memory, of managed memory, to the device. */
	CUresult system, managed;
	/* What the library does with it: to the device, to the host. */
	const char *system_how, *managed_how, *system_back, *managed_back;
	/* A part of the reason for the first, NULL: there is none. */
	const char *reason;
	bool unified;		/* the resource can be made */
};

static const struct row rows[] = {
	{ "none", CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED,
	  "none", NULL, "none", NULL, "hetmem.ko", true },
	{ "managed", CUDA_ERROR_INVALID_VALUE, 0,
	  "none", "driver", "none", "driver", "hetmem.ko", true },
	{ "hmm", 0, 0, "driver", "driver", "driver", "driver", NULL, true },
	{ "ats node=0", 0, 0, "driver", "driver", "driver", "driver", NULL,
	  true },
	{ "cdmm", 0, 0, "driver", "driver", "none", "driver", "nearest", true },
	{ "integrated", 0, 0, "none", "none", "none", "none", "one memory",
	  true },
	{ "managed driver.concurrent=no", CUDA_ERROR_INVALID_VALUE,
	  CUDA_ERROR_INVALID_DEVICE, "none", "none", "none", "none", "hetmem.ko",
	  true },
	{ "managed driver.concurrent=no driver.registered=no",
	  CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_INVALID_DEVICE, "none", "none",
	  "none", "none", "hetmem.ko", false },
};

static bool how(struct hetmem *hm, const void *p, uint32_t location,
		const char *want, const char *reason)
{
	struct hetmem_moved m = { .size = sizeof(m) };
	int err = hetmem_prefetch(hm, p, SIZE, location, NULL, &m);

	if (err || strcmp(m.how, want) || !m.reason ||
	    (!strcmp(want, "none") && !*m.reason) ||
	    (reason && !strstr(m.reason, reason)) || (!reason &&
	     !strcmp(want, "driver") && *m.reason)) {
		printf("# %d, by %s: %s\n", err, m.how, m.reason);
		return false;
	}
	return true;
}

static void ask_driver(const struct hm_api *d, const struct row *r, void *p,
		       CUdeviceptr managed)
{
	CUdeviceptr ptr = (uintptr_t)p;
	size_t size = SIZE, first = 0;
	CUmemLocation to = device0;
	int where = -9;

	is(d->cuMemPrefetchAsync_v2(ptr, SIZE, device0, 0, NULL), r->system,
	   "%s: prefetch of malloc'd memory", r->machine);
	is(d->cuMemPrefetchAsync_v1(ptr, SIZE, 0, NULL), r->system,
	   "%s: by the older call", r->machine);
	is(d->cuMemPrefetchAsync_v2(ptr, SIZE, host, 0, NULL), r->system,
	   "%s: to the host", r->machine);
	is(d->cuMemAdvise_v2(ptr, SIZE, CU_MEM_ADVISE_SET_READ_MOSTLY, host),
	   r->system, "%s: advice", r->machine);
	is(d->cuMemDiscardBatchAsync(&ptr, &size, 1, 0, NULL),
	   strstr(r->machine, "none") || strstr(r->machine, "concurrent") ?
	   CUDA_ERROR_NOT_SUPPORTED : r->system, "%s: discard", r->machine);
	is(d->cuStreamSynchronize(NULL), 0, "%s: done", r->machine);
	ok(*(char *)p == 5 && ((char *)p)[SIZE - 1] == 5,
	   "%s: the memory is as it was", r->machine);
	if (!managed)
		return;
	is(d->cuMemPrefetchAsync_v2(managed, SIZE, device0, 0, NULL), r->managed,
	   "%s: prefetch of managed memory", r->machine);
	d->cuMemRangeGetAttribute(&where, sizeof(where),
			CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, managed,
			SIZE);
	is(where, r->managed ? CU_DEVICE_INVALID : 0, "%s: remembered", r->machine);
	is(d->cuMemPrefetchBatchAsync(&managed, &size, 1, &to, &first, 1, 0, NULL),
	   r->managed ? CUDA_ERROR_NOT_SUPPORTED : 0, "%s: as a batch",
	   r->machine);
}

static void ask_library(struct hetmem *hm, const struct row *r, void *p,
			void *managed)
{
	const uint32_t to = HETMEM_LOC(HETMEM_DEVICE, 0);
	const uint32_t back = HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY);
	struct hetmem_resource *res = NULL;
	int err;

	ok(how(hm, p, to, r->system_how, r->reason), "%s: malloc'd memory to the device: %s",
	   r->machine, r->system_how);
	ok(how(hm, p, back, r->system_back, NULL), "%s: and back: %s", r->machine,
	   r->system_back);
	if (managed) {
		ok(how(hm, managed, to, r->managed_how, NULL),
		   "%s: managed memory to the device: %s", r->machine,
		   r->managed_how);
		ok(how(hm, managed, back, r->managed_back, NULL),
		   "%s: and back: %s", r->machine, r->managed_back);
	}
	err = hetmem_resource_create(hm, "unified", &res);
	is(err, r->unified ? 0 : -EOPNOTSUPP, "%s: unified", r->machine);
	if (err)
		return;
	hetmem_resource_destroy(res);
}

static void play(const struct row *r)
{
	struct hetmem *hm = open_machine(r->machine);
	const struct hm_api *d;
	CUdeviceptr managed = 0;
	CUresult res;
	CUcontext ctx;
	void *p;

	need(hm, "%s: %s", r->machine, hetmem_last_error());
	d = api_of(hm);
	p = aligned_alloc(SIZE, SIZE);
	need(p && !d->cuDevicePrimaryCtxRetain(&ctx, 0) &&
	     !d->cuCtxSetCurrent(ctx), "memory and a context");
	memset(p, 5, SIZE);
	res = d->cuMemAllocManaged(&managed, SIZE, CU_MEM_ATTACH_GLOBAL);
	is(res, r->managed_how ? 0 : CUDA_ERROR_NOT_SUPPORTED,
	   "%s: managed memory", r->machine);
	ask_driver(d, r, p, managed);
	ask_library(hm, r, p, (void *)(uintptr_t)managed);
	if (managed)
		d->cuMemFree(managed);
	d->cuCtxSetCurrent(NULL);
	d->cuDevicePrimaryCtxRelease(0);
	free(p);
	hetmem_close(hm);
}

/* In one machine each device is asked about itself. */
static void mixed(void)
{
	struct hetmem *hm = open_machine("hmm; managed; none; integrated");
	struct hetmem_access a = { .size = sizeof(a) };
	struct hetmem_resource *res;
	char *p = aligned_alloc(SIZE, SIZE);

	need(hm && p, "opens: %s", hetmem_last_error());
	memset(p, 5, SIZE);
	ok(how(hm, p, HETMEM_LOC(HETMEM_DEVICE, 0), "driver", NULL), "HMM");
	ok(how(hm, p, HETMEM_LOC(HETMEM_DEVICE, 1), "none", "managed memory only"),
	   "managed memory only, beside HMM");
	ok(how(hm, p, HETMEM_LOC(HETMEM_DEVICE, 2), "none", "shares no memory"),
	   "none, beside HMM");
	ok(how(hm, p, HETMEM_LOC(HETMEM_DEVICE, 3), "none", "one memory"),
	   "integrated, beside HMM");
	need(!hetmem_resource_create(hm, "system", &res), "system memory");
	need(!hetmem_resource_access(res, &a), "its access");
	is(a.devices, 9, "system memory is for those that are pageable");
	hetmem_resource_destroy(res);
	need(!hetmem_resource_create(hm, "managed", &res), "managed memory");
	need(!hetmem_resource_access(res, &a), "its access");
	is(a.devices, 11, "managed memory is for those that have it");
	hetmem_resource_destroy(res);
	is(hetmem_resource_create(hm, "managed(device=2)", &res), -EOPNOTSUPP,
	   "the device that has none");
	free(p);
	hetmem_close(hm);
}

int main(void)
{
	size_t i;

	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		play(&rows[i]);
	mixed();
	return tap_end();
}
