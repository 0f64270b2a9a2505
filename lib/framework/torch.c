// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Frameworks that load an allocator by name: PyTorch
 * (torch.cuda.memory.CUDAPluggableAllocator) and CuPy (CFunctionAllocator).
 *
 * They pass no handle of ours, so there is one library for the process,
 * opened at the first call, and the current resource of each device. It
 * is never closed: frameworks free what their statics hold after main() has
 * returned. Errors have nowhere to go but stderr, a line each.
 */
#include <errno.h>
#include <stdio.h>

#include "driver/hetmem.h"
#include "core/resource.h"

static pthread_mutex_t torch_lock = PTHREAD_MUTEX_INITIALIZER;
static struct hetmem *torch_hm;
static struct hetmem_resource *torch_resources[HM_MAX_DEVICES];

static void complain(const char *what)
{
	fprintf(stderr, "hetmem: %s: %s\n", what, hetmem_last_error());
}

static int open_once(struct hetmem **hm)
{
	int err = 0;

	pthread_mutex_lock(&torch_lock);
	if (!torch_hm)
		err = hetmem_open(&torch_hm, NULL);
	*hm = torch_hm;
	pthread_mutex_unlock(&torch_lock);
	return err;
}

struct hetmem_resource *hetmem_torch_resource(int device)
{
	struct hetmem_resource *res = NULL;
	struct hetmem *hm;

	if (device < 0 || device >= HM_MAX_DEVICES) {
		hm_error(-ENODEV, "torch: no device %d", device);
		return NULL;
	}
	res = __atomic_load_n(&torch_resources[device], __ATOMIC_ACQUIRE);
	if (res)
		return res;
	if (open_once(&hm) || hetmem_resource_current(hm, device, &res))
		return NULL;
	__atomic_store_n(&torch_resources[device], res, __ATOMIC_RELEASE);
	return res;
}

/*
 * A null stream is that of the current context. Where there are several
 * devices the one that is meant may not be current.
 */
static bool enter(struct hetmem_resource *res, int device,
		  struct hm_context *saved)
{
	*saved = (struct hm_context){ 0 };
	return res->hm->nr_devices == 1 ||
	       !hm_context_enter(res->hm, device, saved);
}

void *hetmem_torch_alloc(size_t size, int device, hetmem_stream stream)
{
	struct hetmem_resource *res = hetmem_torch_resource(device);
	struct hm_context saved;
	void *ptr = NULL;

	if (res && enter(res, device, &saved)) {
		hetmem_alloc(res, size, 0, stream, &ptr);
		hm_context_leave(res->hm, &saved);
	}
	if (hm_unlikely(!ptr))
		complain("alloc");
	return ptr;
}

void hetmem_torch_free(void *ptr, size_t size, int device,
		       hetmem_stream stream)
{
	struct hetmem_resource *res;
	struct hm_context saved;
	int err = -ENODEV;

	if (!ptr)
		return;
	res = hetmem_torch_resource(device);
	if (res && enter(res, device, &saved)) {
		err = hetmem_free(res, ptr, size, stream);
		hm_context_leave(res->hm, &saved);
	}
	/* At the end of a process the driver may be gone before its memory. */
	if (hm_unlikely(err) && err != -EIO)
		complain("free");
}

/*
 * PyTorch does not say whose a pointer is: that of whom a block begins there,
 * else is around it. *@ptr is where it begins then, *@size what it has.
 */
static struct hetmem_resource *whose(void **ptr, size_t *size)
{
	struct hetmem_resource *res;
	int i, first;

	for (first = 1; first >= 0; first--) {
		for (i = 0; i < HM_MAX_DEVICES; i++) {
			struct hm_ctl_owns owns = {
				.ptr = *ptr, .first = first,
			};

			res = __atomic_load_n(&torch_resources[i],
					      __ATOMIC_ACQUIRE);
			if (!res || res->ops->ctl(res, HM_CTL_OWNS, &owns))
				continue;
			*ptr = owns.base;
			if (size)
				*size = owns.size;
			return res;
		}
	}
	return NULL;
}

void hetmem_torch_record_stream(void *ptr, hetmem_stream stream)
{
	struct hetmem_resource *res;
	void *base = ptr;

	if (!ptr)
		return;
	res = whose(&base, NULL);
	if (!res || hetmem_record_stream(res, base, stream))
		complain("record_stream");
}

void *hetmem_torch_base_alloc(void *ptr, size_t *size)
{
	return whose(&ptr, size) ? ptr : NULL;
}

void hetmem_torch_init(int device_count)
{
	struct hetmem *hm;

	(void)device_count;
	if (open_once(&hm))
		complain("init");
}

void hetmem_torch_reset(void)
{
	struct hetmem_resource *res;
	int i;

	for (i = 0; i < HM_MAX_DEVICES; i++) {
		res = __atomic_load_n(&torch_resources[i], __ATOMIC_ACQUIRE);
		if (!res)
			continue;
		hetmem_poll(res);
		if (hetmem_trim(res, 0, NULL) < 0)
			complain("reset");
	}
}

void *hetmem_cupy_alloc(void *stream, size_t size, int device)
{
	return size ? hetmem_torch_alloc(size, device, stream) : NULL;
}

void hetmem_cupy_free(void *stream, void *ptr, int device)
{
	(void)stream;
	hetmem_torch_free(ptr, 0, device, HETMEM_STREAM_UNKNOWN);
}
