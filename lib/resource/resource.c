// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Resources as programs see them: arguments are checked here, once for all
 * kinds, and the top of the stack does the rest.
 */
#include <errno.h>

#include "resource/adaptor.h"

static bool bad_align(size_t align)
{
	return align & (align - 1);
}

int hetmem_alloc(struct hetmem_resource *res, size_t size, size_t align,
		 hetmem_stream stream, void **ptr)
{
	if (hm_unlikely(!res || !ptr || bad_align(align) ||
			stream == HETMEM_STREAM_UNKNOWN))
		return hm_error(-EINVAL, "alloc: %s", !res ? "res is NULL" :
				!ptr ? "ptr is NULL" : bad_align(align) ?
				"align is not a power of two" :
				"memory is for a stream that is known");
	if (align < HETMEM_ALIGNMENT)
		align = HETMEM_ALIGNMENT;
	/* A pointer that differs from others; what is behind it is ours. */
	return res->ops->alloc(res, size ? size : 1, align, stream, ptr);
}

int hetmem_free(struct hetmem_resource *res, void *ptr, size_t size,
		hetmem_stream stream)
{
	if (hm_unlikely(!res))
		return hm_error(-EINVAL, "free: res is NULL");
	if (!ptr)
		return 0;
	return res->ops->free(res, ptr, size, stream);
}

static int ctl(struct hetmem_resource *res, const char *what, enum hm_ctl op,
	       void *arg)
{
	int err;

	if (!res)
		return hm_error(-EINVAL, "%s: res is NULL", what);
	err = res->ops->ctl(res, op, arg);
	if (err == -EOPNOTSUPP)
		hm_error(err, "%s: %s cannot", what, res->ops->name);
	return err;
}

int hm_ctl_upstream(struct hetmem_resource *self, enum hm_ctl op, void *arg)
{
	struct hetmem_resource *up = self->upstream;

	return up ? up->ops->ctl(up, op, arg) : -EOPNOTSUPP;
}

int hetmem_record_stream(struct hetmem_resource *res, void *ptr,
			 hetmem_stream stream)
{
	struct hm_ctl_stream arg = { .ptr = ptr, .stream = stream };

	if (!ptr || stream == HETMEM_STREAM_UNKNOWN)
		return hm_error(-EINVAL, "record_stream: %s", ptr ?
				"the stream is not known" : "ptr is NULL");
	return ctl(res, "record_stream", HM_CTL_RECORD, &arg);
}

int hetmem_stream_retire(struct hetmem_resource *res, hetmem_stream stream)
{
	struct hm_ctl_stream arg = { .stream = stream };

	return ctl(res, "stream_retire", HM_CTL_RETIRE, &arg);
}

int hetmem_poll(struct hetmem_resource *res)
{
	return ctl(res, "poll", HM_CTL_POLL, NULL);
}

int hetmem_trim(struct hetmem_resource *res, size_t keep, size_t *freed)
{
	int err = ctl(res, "trim", HM_CTL_TRIM, &keep);

	if (!err && freed)
		*freed = keep;
	return err;
}

int hetmem_grow(struct hetmem_resource *res, void *ptr, size_t size,
		hetmem_stream stream)
{
	struct hm_ctl_grow arg = {
		.ptr = ptr, .size = size, .stream = stream,
	};

	if (!ptr || !size)
		return hm_error(-EINVAL, "grow: %s", ptr ? "size is 0" :
				"ptr is NULL");
	return ctl(res, "grow", HM_CTL_GROW, &arg);
}

int hetmem_owns(struct hetmem_resource *res, const void *ptr,
		struct hetmem_block *block)
{
	struct hm_ctl_owns arg = { .ptr = ptr };
	int err;

	if (!block || block->size < sizeof(*block))
		return hm_error(-EINVAL, "owns: %s", block ?
				"block->size is not sizeof(struct hetmem_block)" :
				"block is NULL");
	err = ctl(res, "owns", HM_CTL_OWNS, &arg);
	if (err)
		return err;
	block->base = arg.base;
	block->usable = arg.size;
	return 0;
}

ssize_t hetmem_segments(struct hetmem_resource *res, const void *ptr,
			size_t size, struct hetmem_segment *segments,
			size_t nr)
{
	struct hm_ctl_segments arg = {
		.ptr = ptr, .size = size, .segments = segments, .nr = nr,
	};
	int err;

	if (!ptr || !size || (nr && !segments))
		return hm_error(-EINVAL, "segments: %s", !ptr ? "ptr is NULL" :
				!size ? "size is 0" : "segments is NULL");
	err = ctl(res, "segments", HM_CTL_SEGMENTS, &arg);
	return err ? err : (ssize_t)arg.nr;
}

int hetmem_resource_stats(struct hetmem_resource *res,
			  struct hetmem_resource_stats *stats)
{
	size_t size = stats ? stats->size : 0;

	if (size < sizeof(*stats))
		return hm_error(-EINVAL, "resource_stats: stats->size is %zu, set it to sizeof(struct hetmem_resource_stats)",
				size);
	*stats = (struct hetmem_resource_stats){ .size = size };
	return ctl(res, "resource_stats", HM_CTL_STATS, stats);
}

static int counters(struct hetmem_resource *res, const char *what,
		    struct hm_ctl_counters *arg)
{
	struct hetmem_counters *out = arg->counters;
	size_t size = out ? out->size : 0;

	if (out && size < sizeof(*out))
		return hm_error(-EINVAL, "%s: counters->size is %zu, set it to sizeof(struct hetmem_counters)",
				what, size);
	return ctl(res, what, HM_CTL_COUNTERS, arg);
}

int hetmem_counters(struct hetmem_resource *res,
		    struct hetmem_counters *out)
{
	struct hm_ctl_counters arg = { .counters = out };

	if (!out)
		return hm_error(-EINVAL, "counters: counters is NULL");
	return counters(res, "counters", &arg);
}

int hetmem_counters_push(struct hetmem_resource *res)
{
	struct hm_ctl_counters arg = { .push = true };

	return counters(res, "counters_push", &arg);
}

int hetmem_counters_pop(struct hetmem_resource *res,
			struct hetmem_counters *out)
{
	struct hm_ctl_counters arg = { .counters = out, .pop = true };

	return counters(res, "counters_pop", &arg);
}

int hetmem_on_failure(struct hetmem_resource *res, hetmem_failure_fn fn,
		      void *data)
{
	struct hm_ctl_callback arg = { .fn = fn, .data = data };

	return ctl(res, "on_failure", HM_CTL_ON_FAILURE, &arg);
}

int hetmem_log_edge(struct hetmem_resource *res, enum hetmem_edge edge,
		    const void *event, hetmem_stream stream)
{
	struct hm_ctl_edge arg = {
		.edge = edge, .event = event, .stream = stream,
	};

	if ((unsigned int)edge > HETMEM_EDGE_SYNC)
		return hm_error(-EINVAL, "log_edge: no such edge");
	return ctl(res, "log_edge", HM_CTL_EDGE, &arg);
}

void hm_resource_put(struct hetmem_resource *top)
{
	struct hetmem_resource *up;

	for (; top; top = up) {
		up = top->upstream;
		top->ops->destroy(top);
	}
}

ssize_t hetmem_resource_destroy(struct hetmem_resource *res)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };
	ssize_t live = 0;

	if (!res)
		return 0;
	if (hm_door_gone(res))
		return hm_error(-EINVAL, "resource_destroy: the resource (%s) was destroyed before",
				res->ops->name);
	if (!res->ops->ctl(res, HM_CTL_STATS, &stats))
		live = stats.live;
	hm_resource_put(res);
	return live;
}
