// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Hints for devices of another driver. The kernel's own test_hmm plays two
 * GPUs, which the driver's prefetch reaches and the module knows nothing of:
 * the executor has to find out which is which, have the driver move, and say
 * how much did.
 */
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>

#include <test_hmm_uapi.h>

#include "hint/executor.h"
#include "soft_driver.h"

#define SIZE		((size_t)1 << 20)
#define ANY_HOST	HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY)

static int gpus[2];
static int calls, last_device;
static CUresult fail_with;
static struct hetmem_peer *self;

static int gpu_call(int gpu, unsigned long nr, uintptr_t addr, size_t size)
{
	void *data = malloc(size);
	struct hmm_dmirror_cmd cmd = {
		.addr = addr,
		.ptr = (uintptr_t)data,
		.npages = size / sysconf(_SC_PAGESIZE),
	};
	int ret = ioctl(gpu, nr, &cmd) ? -errno : 0;

	free(data);
	return ret;
}

/*
 * What a GPU's driver would do, but at once. A page that is busy for a moment
 * stays, and is no error to this API.
 */
static CUresult prefetch(CUdeviceptr ptr, size_t size, CUmemLocation location,
			 unsigned int flags, CUstream stream)
{
	int i, ret = 0;

	calls++;
	last_device = location.id;
	if (fail_with || flags || !stream ||
	    location.type != CU_MEM_LOCATION_TYPE_DEVICE || location.id > 1)
		return fail_with ? fail_with : CUDA_ERROR_INVALID_VALUE;
	for (i = 0; i < 50; i++) {
		ret = gpu_call(gpus[location.id], HMM_DMIRROR_MIGRATE_TO_DEV,
			       ptr, size);
		if (ret != -ENOENT)
			break;
		wait_nap();
	}
	return ret ? CUDA_ERROR_UNKNOWN : CUDA_SUCCESS;
}

/* The soft driver's devices become GPUs that the module has not heard of. */
static void pretend(void)
{
	struct hm_driver *d = (struct hm_driver *)hetmem_driver_table(hm);
	char path[32];
	int i;

	need(hm->nr_devices >= 2, "two devices");
	for (i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "/dev/hmm_dmirror%d", i);
		gpus[i] = open(path, O_RDWR | O_CLOEXEC);
		need(gpus[i] >= 0, "%s: test_hmm is loaded", path);
		hm->devices[i].module_id = -1;
		hm->devices[i].platform.moves = true;
	}
	d->cuMemPrefetchAsync_v2 = prefetch;
}

static uint32_t location_of(const char *p)
{
	struct hetmem_run run;
	uintptr_t next;

	if (hetmem_residency(hm, p, 1, &run, NULL, 1, &next) != 1)
		return 0;
	return run.location;
}

static uint64_t pages_at(const char *p, uint32_t location)
{
	return hm_kmod_pages_at(hetmem_kmod(hm)->fd, (uintptr_t)p,
				(uintptr_t)p + SIZE, location);
}

static size_t wrong(const char *p)
{
	size_t i, bad = 0;

	for (i = 0; i < SIZE; i++)
		bad += p[i] != (char)(i * 7 + i / 4096);
	return bad;
}

static int ask_uuid(const char *p, uint32_t location, const unsigned char *uuid,
		    struct hetmem_hinted *h)
{
	*h = (struct hetmem_hinted){ .size = sizeof(*h) };
	return hetmem_hint(self, (uintptr_t)p, SIZE, location, uuid, 60000, h);
}

static int ask(const char *p, uint32_t location, struct hetmem_hinted *h)
{
	return ask_uuid(p, location, NULL, h);
}

/* Who names the device needs no index, and one that is stale does no harm. */
static void by_uuid(struct hetmem_executor *x, const char *p,
		    const uint32_t loc[2])
{
	const uint64_t all = SIZE / sysconf(_SC_PAGESIZE);
	unsigned char unknown[16] = "none of them";
	struct hetmem_hinted h;
	int i;

	ok(memcmp(x->bindings[0].uuid, x->bindings[1].uuid, 16),
	   "two devices have two UUIDs");
	for (i = 0; i < 2; i++) {
		is(ask_uuid(p, loc[!i], x->bindings[i].uuid, &h), 0,
		   "to device %d, by its UUID", i);
		is(h.moved, all, "all of it");
		is(pages_at(p, loc[i]), all, "is there");
		is(ask(p, ANY_HOST, &h), 0, "back");
	}
	is(ask_uuid(p, loc[0], unknown, &h), -ENXIO, "no device has this UUID: %s",
	   hetmem_last_error());
	is(ask_uuid(p, ANY_HOST, unknown, &h), -EINVAL, "the host has none");
}

/* A driver that has the pages of both devices in one pool. */
static void one_pool(const char *p)
{
	struct hetmem_executor_params params = {
		.size = sizeof(params), .flags = HETMEM_EXECUTOR_THREAD,
	};
	const uint64_t all = SIZE / sysconf(_SC_PAGESIZE);
	const int other = gpus[1];
	struct hetmem_executor *x = NULL;
	struct hetmem_hinted h;
	uint32_t location;
	int i;

	gpus[1] = gpus[0];
	need(!hetmem_executor_open(hm, &params, &x), "an executor: %s",
	     hetmem_last_error());
	location = x->bindings[0].location;
	is(x->bindings[1].location, location, "both are at one location");
	is(ask(p, location, &h), -ENOTUNIQ, "which of them? %s",
	   hetmem_last_error());
	is(h.answered, 0, "nobody was asked");
	for (i = 0; i < 2; i++) {
		is(ask_uuid(p, location, x->bindings[i].uuid, &h), 0,
		   "by its UUID: device %d", i);
		is(last_device, i, "is the one that the driver moves to");
		is(h.moved, all, "all of it");
		is(ask(p, ANY_HOST, &h), 0, "back");
		is(h.moved, all, "all of it");
	}
	is(wrong(p), 0, "contents");
	hetmem_executor_close(x);
	gpus[1] = other;
}

int main(void)
{
	const uint64_t all = SIZE / sysconf(_SC_PAGESIZE);
	struct hetmem_executor_params params = {
		.size = sizeof(params), .flags = HETMEM_EXECUTOR_THREAD,
	};
	struct hetmem_executor_stats s = { .size = sizeof(s) };
	struct hetmem_executor *x = NULL;
	struct hetmem_hinted h;
	uint32_t loc[2];
	size_t i;
	char *p;

	open_soft(NULL);
	pretend();
	p = mmap(NULL, SIZE, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	need(p != MAP_FAILED && !hetmem_peer_open(getpid(), &self), "memory");
	madvise(p, SIZE, MADV_NOHUGEPAGE);
	for (i = 0; i < SIZE; i++)
		p[i] = i * 7 + i / 4096;

	need(!hetmem_executor_open(hm, &params, &x), "an executor: %s",
	     hetmem_last_error());
	ok(calls >= 2, "the driver has moved something to each device");
	for (i = 0; i < 2; i++) {
		const struct hm_binding *b = &x->bindings[i];

		loc[i] = b->location;
		is(HETMEM_LOC_KIND(loc[i]), HETMEM_FOREIGN,
		   "device %zu is another driver's device %u", i,
		   HETMEM_LOC_INDEX(loc[i]));
		is(b->target, HETMEM_LOC(HETMEM_DEVICE, i), "and this one");
	}
	ok(loc[0] != loc[1], "they are two");
	is(gpu_call(gpus[1], HMM_DMIRROR_MIGRATE_TO_DEV, (uintptr_t)p, SIZE), 0,
	   "the second one moves memory");
	is(location_of(p), loc[1], "which is where it was found to be");
	is(ask(p, ANY_HOST, &h), 0, "a hint brings it back");
	is(h.moved, all, "all of it");

	for (i = 0; i < 2; i++) {
		calls = 0;
		is(ask(p, loc[i], &h), 0, "to device %zu", i);
		is(calls, 1, "by the driver");
		is(h.moved, all, "all of it, it says");
		is(pages_at(p, loc[i]), all, "and is right");
		is(ask(p, loc[i], &h), 0, "again");
		is(h.moved, 0, "nothing was to be done");
		is(ask(p, ANY_HOST, &h), 0, "back");
		is(h.moved, all, "all of it");
		is(wrong(p), 0, "contents");
	}
	by_uuid(x, p, loc);
	fail_with = CUDA_ERROR_OUT_OF_MEMORY;
	is(ask(p, loc[0], &h), -ENOMEM, "a driver that has no room: %s",
	   hetmem_last_error());
	is(h.answered, 1, "is the executor's answer");
	fail_with = CUDA_ERROR_UNKNOWN;
	is(ask(p, loc[0], &h), -EIO, "a driver that fails: %s",
	   hetmem_last_error());
	is(h.moved, 0, "nothing moved");
	hetmem_executor_stats(x, &s);
	is(s.failed, 2, "both are counted");
	hetmem_executor_close(x);
	is(ask(p, loc[0], &h), -ENXIO, "nobody is left to ask");
	fail_with = CUDA_SUCCESS;
	one_pool(p);
	fail_with = CUDA_ERROR_UNKNOWN;

	/* A driver that moves nothing is none to find. */
	need(!hetmem_executor_open(hm, &params, &x), "an executor: %s",
	     hetmem_last_error());
	is(ask(p, loc[0], &h), -ENXIO, "without those devices");
	is(ask(p, ANY_HOST, &h), 0, "but with the module's own");
	hetmem_executor_close(x);
	hetmem_peer_close(self);
	munmap(p, SIZE);
	close_soft();
	return tap_end();
}
