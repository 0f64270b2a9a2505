// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The async provider: cuMemAllocFromPoolAsync() and cuMemFreeAsync(), from a
 * memory pool of its own, so that the threshold is nobody else's and what
 * the pool has goes back with it.
 *
 * The host is no stream of the driver. What it allocates comes from a stream
 * of ours, which has come so far when the call returns, so that every stream
 * is behind it; what it frees goes to that stream at once.
 */
#include <errno.h>
#include <stdlib.h>

#include "provider/regions.h"

struct async {
	struct hm_provider provider;
	CUmemoryPool pool;
	CUstream stream;
};

/*
 * NULL and the thread's own stream are of the context that is current; only
 * a thread that has none gets the device's. In relaxed capture mode: other
 * streams may be captured.
 */
static int enter(struct hm_provider *self, hetmem_stream stream,
		 struct hm_context *saved)
{
	int err = hm_check_owner(self->hm);

	if (!err)
		err = stream == HETMEM_STREAM_HOST ?
			hm_context_enter(self->hm, self->device, saved) :
			hm_context_default(self->hm, self->device, saved);
	if (!err)
		hm_context_relax(self->hm, saved);
	return err;
}

static int async_alloc(struct hm_provider *self, size_t size,
		       hetmem_stream stream, void **ptr)
{
	const struct hm_driver *d = &self->hm->driver;
	const bool host = stream == HETMEM_STREAM_HOST;
	struct async *a = (struct async *)self;
	const char *call = "cuMemAllocFromPoolAsync";
	CUstream s = host ? a->stream : stream;
	struct hm_context saved;
	CUdeviceptr p = 0;
	CUresult res;
	int err;

	err = enter(self, stream, &saved);
	if (err)
		return err;
	res = d->cuMemAllocFromPoolAsync(&p, size, a->pool, s);
	if (!res && host) {
		call = "cuStreamSynchronize";
		res = d->cuStreamSynchronize(s);
		if (res)
			d->cuMemFreeAsync(p, s);
	}
	hm_context_leave(self->hm, &saved);
	if (res)
		return hm_driver_error(d, call, res);
	*ptr = (void *)(uintptr_t)p;
	return 0;
}

static int async_free(struct hm_provider *self, void *ptr, size_t size,
		      hetmem_stream stream)
{
	const struct hm_driver *d = &self->hm->driver;
	struct async *a = (struct async *)self;
	struct hm_context saved;
	CUresult res;
	int err;

	(void)size;
	err = enter(self, stream, &saved);
	if (err)
		return err;
	res = d->cuMemFreeAsync((uintptr_t)ptr, stream == HETMEM_STREAM_HOST ?
				a->stream : stream);
	hm_context_leave(self->hm, &saved);
	return res ? hm_driver_error(d, "cuMemFreeAsync", res) : 0;
}

/* Drivers before 11.3 do not count. */
static bool async_held(struct hm_provider *self, uint64_t *now, uint64_t *most)
{
	const struct hm_driver *d = &self->hm->driver;
	struct async *a = (struct async *)self;
	cuuint64_t current, high;
	struct hm_context saved;
	CUresult res;

	if (!d->cuMemPoolGetAttribute || hm_provider_enter(self, &saved))
		return false;
	res = d->cuMemPoolGetAttribute(a->pool,
			CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &current);
	if (!res)
		res = d->cuMemPoolGetAttribute(a->pool,
				CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH, &high);
	hm_context_leave(self->hm, &saved);
	if (res)
		return false;
	*now = current;
	*most = high;
	return true;
}

static void async_trim(struct hm_provider *self, size_t keep)
{
	const struct hm_driver *d = &self->hm->driver;
	struct async *a = (struct async *)self;
	struct hm_context saved;

	if (!d->cuMemPoolTrimTo || hm_provider_enter(self, &saved))
		return;
	d->cuMemPoolTrimTo(a->pool, keep);
	hm_context_leave(self->hm, &saved);
}

static void put_driver(struct async *a)
{
	const struct hm_driver *d = &a->provider.hm->driver;
	struct hm_context saved;

	if (hm_context_enter(a->provider.hm, a->provider.device, &saved))
		return;
	hm_context_relax(a->provider.hm, &saved);
	if (a->stream) {
		d->cuStreamSynchronize(a->stream);
		d->cuStreamDestroy(a->stream);
	}
	if (a->pool)
		d->cuMemPoolDestroy(a->pool);
	hm_context_leave(a->provider.hm, &saved);
}

static void async_destroy(struct hm_provider *self)
{
	if (self->hm->generation == hm_generation())
		put_driver((struct async *)self);
	free(self);
}

static const struct hm_provider_ops async_ops = {
	.name = "async",
	.alloc = async_alloc,
	.free = async_free,
	.held = async_held,
	.trim = async_trim,
	.destroy = async_destroy,
};

static int make_pool(struct async *a, const struct hm_async_options *options)
{
	struct hetmem *hm = a->provider.hm;
	const struct hm_driver *d = &hm->driver;
	CUmemPoolProps props = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
		.location = { CU_MEM_LOCATION_TYPE_DEVICE,
			      hm->devices[a->provider.device].handle },
		.maxSize = options->max,
	};
	cuuint64_t threshold = options->threshold ? options->threshold :
		UINT64_MAX;
	const char *call = "cuMemPoolCreate";
	struct hm_context saved;
	CUresult res;
	int err;

	err = hm_context_enter(hm, a->provider.device, &saved);
	if (err)
		return err;
	hm_context_relax(hm, &saved);
	res = d->cuMemPoolCreate(&a->pool, &props);
	if (res)
		a->pool = NULL;
	if (!res) {
		call = "cuMemPoolSetAttribute";
		res = d->cuMemPoolSetAttribute(a->pool,
				CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
	}
	if (!res) {
		call = "cuStreamCreate";
		res = d->cuStreamCreate(&a->stream, CU_STREAM_NON_BLOCKING);
		if (res)
			a->stream = NULL;
	}
	hm_context_leave(hm, &saved);
	return res ? hm_driver_error(d, call, res) : 0;
}

static int can_async(struct hetmem *hm, int device,
		     const struct hm_async_options *options)
{
	const struct hm_driver *d = &hm->driver;
	CUresult res;
	int can = 0;

	if (!d->cuMemAllocFromPoolAsync || !d->cuMemFreeAsync ||
	    !d->cuMemPoolCreate || !d->cuMemPoolDestroy ||
	    !d->cuMemPoolSetAttribute)
		return hm_error(-EOPNOTSUPP, "async: the driver (CUDA %d.%d) has no memory pools, 11.2 has",
				d->version / 1000, d->version % 1000 / 10);
	if (options->max && d->version < 12030)
		return hm_error(-EOPNOTSUPP, "async: this driver (CUDA %d.%d) cannot limit a memory pool, 12.3 can",
				d->version / 1000, d->version % 1000 / 10);
	res = d->cuDeviceGetAttribute(&can,
				      CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED,
				      hm->devices[device].handle);
	if (res)
		return hm_driver_error(d, "cuDeviceGetAttribute", res);
	return can ? 0 : hm_error(-EOPNOTSUPP, "device %d has no memory pools",
				  device);
}

int hm_async_provider(struct hetmem *hm, int device,
		      const struct hm_async_options *options,
		      struct hm_provider **out)
{
	static const struct hm_async_options none;
	struct async *a;
	int err;

	if (!options)
		options = &none;
	err = hm_provider_check(hm, device);
	if (!err)
		err = can_async(hm, device, options);
	if (err)
		return err;
	a = hm_provider_new(hm, device, &async_ops,
			    HM_PROVIDER_DEVICE | HM_PROVIDER_STREAMED,
			    sizeof(*a));
	if (!a)
		return -ENOMEM;
	err = make_pool(a, options);
	if (err) {
		put_driver(a);
		free(a);
		return err;
	}
	*out = &a->provider;
	return 0;
}
