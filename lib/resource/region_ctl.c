// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * One region for each allocation: recorded and retired streams, and what is
 * known of a pointer.
 */
#include <errno.h>
#include <stdlib.h>

#include "resource/region_impl.h"

/* Is it the stream that the calling thread calls @stream? */
static bool is_named(const struct hm_use *use, hetmem_stream stream)
{
	return use->stream == stream &&
	       hm_stream_here(use->stream, use->thread) == stream;
}

int region_record(struct region *r, const struct hm_ctl_stream *arg)
{
	struct hm_use use, *more;
	struct block *b;
	unsigned int i;
	int err = 0;

	if (arg->stream == HETMEM_STREAM_HOST || !region_has_streams(r))
		return region_check_owner(r);
	err = hm_use_init(r->resource.hm, r->resource.device, arg->stream,
			  &use);
	if (err)
		return err;
	region_lock(r);
	b = region_find(r, arg->ptr);
	if (!b) {
		region_unlock(r);
		return hm_error(-EINVAL, "record_stream: %p is not allocated here",
				arg->ptr);
	}
	for (i = 0; i < b->nr_uses; i++)
		if (is_named(&b->uses[i], use.stream) &&
		    b->uses[i].ctx == use.ctx && !b->uses[i].event)
			goto out;
	more = realloc(b->uses, (b->nr_uses + 1) * sizeof(*more));
	if (more) {
		b->uses = more;
		b->uses[b->nr_uses++] = use;
	} else {
		err = hm_error(-ENOMEM, "record_stream: no memory for metadata");
	}
out:
	region_unlock(r);
	return err;
}

struct retire {
	struct region *region;
	hetmem_stream stream;
	int err;
};

/* With the lock, which the driver's calls do not take. */
static void retire_use(struct retire *retire, struct hm_use *use)
{
	struct hetmem *hm = retire->region->resource.hm;
	int err;

	if (use->event || !is_named(use, retire->stream) || !use->ctx)
		return;
	err = hm_use_record(hm, use);
	if (err)
		retire->err = err;
	else
		use->stream = HETMEM_STREAM_UNKNOWN;
}

static void retire_each(struct region *r, struct retire *retire)
{
	struct hm_range *range;
	struct block *b, *list = NULL;
	unsigned int i;

	/* All out of the tree, and in again: it cannot be walked otherwise. */
	while ((range = hm_range_any(&r->live))) {
		hm_range_erase(&r->live, range);
		b = (struct block *)range;
		b->next = list;
		list = b;
		retire_use(retire, &b->own);
		for (i = 0; i < b->nr_uses; i++)
			retire_use(retire, &b->uses[i]);
	}
	while ((b = list)) {
		list = b->next;
		if (hm_range_insert(&r->live, &b->range))
			region_append(r, b);
	}
}

int region_retire(struct region *r, hetmem_stream stream)
{
	struct retire retire = { .region = r, .stream = stream };
	int err = region_check_owner(r);

	if (err || stream == HETMEM_STREAM_HOST || !region_has_streams(r))
		return err;
	region_lock(r);
	retire_each(r, &retire);
	region_unlock(r);
	return retire.err;
}

int region_owns(struct region *r, struct hm_ctl_owns *arg)
{
	struct block *b;
	int err = -ENOENT;

	region_lock(r);
	b = (void *)hm_range_find(&r->live, (uintptr_t)arg->ptr, 1);
	if (b) {
		arg->base = (void *)b->range.start;
		arg->size = b->range.end - b->range.start;
		arg->stream = hm_stream_here(b->own.stream, b->own.thread);
		err = 0;
	}
	region_unlock(r);
	return err;
}

int region_segments(struct region *r, struct hm_ctl_segments *arg)
{
	struct hm_ctl_owns block = { .ptr = arg->ptr };
	size_t room = arg->nr, offset;
	int err = region_owns(r, &block);

	if (err)
		return hm_error(-EINVAL, "segments: %p is not allocated here",
				arg->ptr);
	offset = (const char *)arg->ptr - (char *)block.base;
	if (arg->size > block.size - offset)
		return hm_error(-EINVAL, "segments: beyond the block's end");
	arg->nr = 1;
	if (!room)
		return -ENOSPC;
	arg->segments[0].base = (void *)arg->ptr;
	arg->segments[0].offset = offset;
	arg->segments[0].length = arg->size;
	return 0;
}

void region_get_stats(struct region *r, struct hetmem_resource_stats *stats)
{
	struct hm_provider *p = r->provider;
	uint64_t held, most;
	size_t size = stats->size;

	region_lock(r);
	*stats = r->stats;
	region_unlock(r);
	stats->size = size;
	if (p->ops->held && p->ops->held(p, &held, &most)) {
		stats->reserved = held;
		stats->reserved_peak = most;
	}
}
