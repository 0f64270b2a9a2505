// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * retry(R,times=,wait=): tries again when R has no memory. In between it asks
 * the program's callback, which may free something; without one it reclaims
 * blocks whose work has completed, gives what R caches back to the system,
 * where another resource of the process may have use for it, and waits.
 */
#include <errno.h>
#include <time.h>

#include "adaptor/adaptor.h"
#include "core/shrink.h"

/**
 * struct retry - the adaptor
 * @lock: protects what follows
 * @callback: changed as a whole, never freed before the end: a thread may
 *	be asking the one before
 */
struct retry {
	struct hetmem_resource resource;
	struct hm_lock lock;
	struct hm_retry_options options;
	struct hm_ctl_callback callback;
};

static bool help(struct retry *r, size_t size, unsigned int attempt)
{
	struct hetmem_resource *up = r->resource.upstream;
	struct hm_retry_options options;
	struct hm_ctl_callback callback;
	struct timespec wait;
	size_t keep = 0;

	hm_lock(&r->lock);
	options = r->options;
	callback = r->callback;
	hm_unlock(&r->lock);
	if (attempt > options.times)
		return false;
	if (callback.fn)
		return callback.fn(callback.data, size, attempt);
	up->ops->ctl(up, HM_CTL_POLL, NULL);
	up->ops->ctl(up, HM_CTL_TRIM, &keep);
	wait.tv_sec = options.wait_ns / 1000000000;
	wait.tv_nsec = options.wait_ns % 1000000000;
	if (options.wait_ns)
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
		if (err != -ENOMEM || !help(r, size, attempt))
			return err;
	}
}

static int retry_set(struct retry *r, struct hm_ctl_set *set)
{
	struct hm_retry_options options;
	int err;

	hm_lock(&r->lock);
	options = r->options;
	err = set->change(set, "retry", 0, &options);
	if (!err && !set->try)
		r->options = options;
	hm_unlock(&r->lock);
	return err == -ENOENT ?
		hm_ctl_upstream(&r->resource, HM_CTL_SET, set) : err;
}

static int retry_alloc_with(struct retry *r, struct hm_ctl_alloc *arg)
{
	unsigned int attempt;
	int err;

	for (attempt = 1;; attempt++) {
		err = hm_ctl_upstream(&r->resource, HM_CTL_ALLOC_WITH, arg);
		if (err != -ENOMEM || !help(r, arg->size, attempt))
			return err;
	}
}

static int retry_part(struct retry *r, struct hm_ctl_shrink *arg)
{
	unsigned int attempt;
	int err;

	for (attempt = 1;; attempt++) {
		err = hm_ctl_upstream(&r->resource, HM_CTL_SHRINK, arg);
		if (err != -ENOMEM || arg->what != HM_PART_COMMIT ||
		    !help(r, arg->length, attempt))
			return err;
	}
}

static int retry_ctl(struct hetmem_resource *self, enum hm_ctl op, void *arg)
{
	struct retry *r = (struct retry *)self;
	int err;

	if (op == HM_CTL_ALLOC_WITH)
		return retry_alloc_with(r, arg);
	if (op == HM_CTL_SHRINK)
		return retry_part(r, arg);
	if (op == HM_CTL_SET)
		return retry_set(r, arg);
	err = hm_ctl_upstream(self, op, arg);
	if (op != HM_CTL_ON_FAILURE)
		return err;
	hm_lock(&r->lock);
	r->callback = *(struct hm_ctl_callback *)arg;
	hm_unlock(&r->lock);
	return err == -EOPNOTSUPP ? 0 : err;
}

static void retry_destroy(struct hetmem_resource *self)
{
	struct retry *r = (struct retry *)self;

	hm_lock_destroy(&r->lock);
	hm_resource_free(self);
}

static const struct hm_resource_ops retry_ops = {
	.name = "retry",
	.alloc = retry_alloc,
	.free = hm_adaptor_free,
	.ctl = retry_ctl,
	.destroy = retry_destroy,
};

int hm_retry_create(struct hetmem_resource *upstream,
		    const struct hm_retry_options *options,
		    struct hetmem_resource **res)
{
	struct retry *r = hm_adaptor_new(sizeof(*r), &retry_ops, upstream);

	if (!r)
		return -ENOMEM;
	hm_lock_init(&r->lock, HM_FORK_ADAPTOR);
	r->options = *options;
	*res = &r->resource;
	return 0;
}
