// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * retry(R,times=,wait=): tries again when R has no memory. In between it asks
 * the program's callback, which may free something; without one it takes
 * back what has completed meanwhile, gives what R caches back to the system,
 * where another resource of the process may have use for it, and waits.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "resource/adaptor.h"

/**
 * struct retry - the adaptor
 * @callback: changed as a whole, never freed before the end: a thread may
 *	be asking the one before
 */
struct retry {
	struct hetmem_resource resource;
	unsigned int times;
	uint64_t wait_ns;
	struct hm_blocks *lock;
	struct hm_ctl_callback callback;
};

static bool help(struct retry *r, size_t size, unsigned int attempt)
{
	struct hetmem_resource *up = r->resource.upstream;
	struct hm_ctl_callback callback;
	struct timespec wait = {
		.tv_sec = r->wait_ns / 1000000000,
		.tv_nsec = r->wait_ns % 1000000000,
	};
	size_t keep = 0;

	hm_blocks_lock(r->lock);
	callback = r->callback;
	hm_blocks_unlock(r->lock);
	if (callback.fn)
		return callback.fn(callback.data, size, attempt);
	up->ops->ctl(up, HM_CTL_POLL, NULL);
	up->ops->ctl(up, HM_CTL_TRIM, &keep);
	if (r->wait_ns)
		nanosleep(&wait, NULL);
	return true;
}

static int retry_alloc(struct hetmem_resource *self, size_t size,
		       size_t align, hetmem_stream stream, void **ptr)
{
	struct retry *r = (struct retry *)self;
	struct hetmem_resource *up = self->upstream;
	unsigned int attempt;
	int err;

	for (attempt = 1;; attempt++) {
		err = up->ops->alloc(up, size, align, stream, ptr);
		if (err != -ENOMEM || attempt > r->times ||
		    !help(r, size, attempt))
			return err;
	}
}

static int retry_free(struct hetmem_resource *self, void *ptr, size_t size,
		      hetmem_stream stream)
{
	struct hetmem_resource *up = self->upstream;

	return up->ops->free(up, ptr, size, stream);
}

static int retry_ctl(struct hetmem_resource *self, enum hm_ctl op, void *arg)
{
	struct retry *r = (struct retry *)self;
	int err = hm_ctl_upstream(self, op, arg);

	if (op != HM_CTL_ON_FAILURE)
		return err;
	hm_blocks_lock(r->lock);
	r->callback = *(struct hm_ctl_callback *)arg;
	hm_blocks_unlock(r->lock);
	return err == -EOPNOTSUPP ? 0 : err;
}

static void retry_destroy(struct hetmem_resource *self)
{
	struct retry *r = (struct retry *)self;

	hm_blocks_free(r->lock, NULL, NULL);
	free(r);
}

static const struct hm_resource_ops retry_ops = {
	.name = "retry",
	.alloc = retry_alloc,
	.free = retry_free,
	.ctl = retry_ctl,
	.destroy = retry_destroy,
};

int hm_retry_create(struct hetmem_resource *upstream, unsigned int times,
		    uint64_t wait_ns, struct hetmem_resource **res)
{
	struct retry *r = calloc(1, sizeof(*r));

	if (!r)
		return hm_error(-ENOMEM, "retry: no memory");
	r->lock = hm_blocks_new();
	if (!r->lock) {
		free(r);
		return -ENOMEM;
	}
	r->times = times;
	r->wait_ns = wait_ns;
	hm_adaptor_init(&r->resource, &retry_ops, upstream);
	*res = &r->resource;
	return 0;
}
