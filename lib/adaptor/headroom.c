// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * headroom(R,keep=): if an allocation would leave less than @keep usable, by
 * hetmem_memory_info(), it trims R; if that does not suffice, it is refused. Memory that
 * the CPU can use counts against the host, other memory against the device. Prefetches
 * to R's device leave the same usable, see hm_headroom_fit().
 *
 * hetmem_memory_info() takes some 100 us, so its answer serves for a while: it sets
 * @limit, the most that @used may become. Both count bytes allocated here. Frees lower
 * @used, because R reuses cached memory. Untouched memory of R still counts as available
 * on the host: mincore(2) finds it, and look() subtracts it.
 *
 * There is no lock. A request raises @pending before @used, and lowers @pending after
 * upstream returned. look() reads @used before @pending. So bytes of a request under way
 * count at least once: the limit can be too low for a moment, never too high.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "adaptor/adaptor.h"
#include "core/snapshot.h"

/* An answer serves for MIN_AGE_NS, or AGE_OF_COST times the time it took, if longer. */
#define MIN_AGE_NS	100000000ULL
#define AGE_OF_COST	50

/* Pages of one mincore(2). */
#define BATCH		4096

/**
 * struct headroom - the adaptor
 * @keep: for prefetches to R's device; keep.device -1: R has none
 * @where: the device whose memory R uses, or -1: the host
 * @bytes: kept usable there
 * @used: bytes allocated and not freed
 * @pending: bytes of requests that upstream has not answered
 * @limit: bound of @used
 * @until: hm_now() when @limit is stale
 * @failed: refused requests
 */
struct headroom {
	struct hetmem_resource resource;
	struct hm_keep keep;
	int where;
	uint64_t bytes;
	int64_t used;
	int64_t pending;
	int64_t limit;
	uint64_t until;
	uint64_t failed;
};

static int64_t clamp(uint64_t bytes)
{
	return bytes < INT64_MAX / 4 ? (int64_t)bytes : INT64_MAX / 4;
}

/* Adds the bytes of a segment that have no page to *@data. */
static int count_untouched(void *data, const struct hetmem_walk_segment *segment)
{
	const size_t page = sysconf(_SC_PAGESIZE);
	uintptr_t at = (uintptr_t)segment->base & ~(page - 1);
	const uintptr_t end = (uintptr_t)segment->base + segment->bytes;
	unsigned char core[BATCH];
	uint64_t *untouched = data;
	size_t n, i;

	for (; at < end; at += n * page) {
		n = (end - at + page - 1) / page;
		if (n > BATCH)
			n = BATCH;
		if (mincore((void *)at, n * page, core))
			continue;
		for (i = 0; i < n; i++)
			*untouched += core[i] & 1 ? 0 : page;
	}
	return 0;
}

static uint64_t untouched(struct headroom *h)
{
	uint64_t bytes = 0;
	const struct hetmem_walk walk = {
		.size = sizeof(walk), .segment = count_untouched, .data = &bytes,
	};
	struct hm_ctl_walk arg = { .walk = &walk };

	hm_ctl_upstream(&h->resource, HM_CTL_WALK, &arg);
	return bytes;
}

static struct hetmem_resource_stats stats_of(struct headroom *h)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };

	if (hm_ctl_upstream(&h->resource, HM_CTL_STATS, &stats))
		stats = (struct hetmem_resource_stats){ 0 };
	return stats;
}

/* Returns the usable bytes beyond those kept; can be negative. Sets @limit. */
static int64_t look(struct headroom *h, struct hetmem_memory_info *info)
{
	const int64_t used = __atomic_load_n(&h->used, __ATOMIC_ACQUIRE);
	const int64_t pending = __atomic_load_n(&h->pending, __ATOMIC_ACQUIRE);
	const uint64_t before = hm_now();
	int64_t room = INT64_MAX / 4, held;
	uint64_t cost;

	*info = (struct hetmem_memory_info){ .size = sizeof(*info) };
	if (!hetmem_memory_info(h->resource.hm, h->where, info) &&
	    info->usable != HETMEM_MEMORY_UNKNOWN) {
		room = clamp(info->usable) - clamp(h->bytes);
		held = h->where < 0 ? clamp(stats_of(h).reserved) : 0;
		/* mincore(2) takes time: only if untouched memory can matter. */
		if (held && room < 2 * held)
			held = clamp(untouched(h));
		room -= held;
	}
	cost = (hm_now() - before) * AGE_OF_COST;
	__atomic_store_n(&h->limit, used + room - pending, __ATOMIC_RELEASE);
	__atomic_store_n(&h->until, before + (cost > MIN_AGE_NS ? cost : MIN_AGE_NS),
			 __ATOMIC_RELEASE);
	return room - pending;
}

static void drop_pending(struct headroom *h, size_t size)
{
	__atomic_sub_fetch(&h->pending, size, __ATOMIC_RELEASE);
}

static bool take(struct headroom *h, size_t size)
{
	int64_t used;

	__atomic_add_fetch(&h->pending, size, __ATOMIC_SEQ_CST);
	used = __atomic_load_n(&h->used, __ATOMIC_RELAXED);
	do {
		if (used + clamp(size) >
		    __atomic_load_n(&h->limit, __ATOMIC_ACQUIRE)) {
			drop_pending(h, size);
			return false;
		}
	} while (!__atomic_compare_exchange_n(&h->used, &used, used + size, true,
					      __ATOMIC_SEQ_CST, __ATOMIC_RELAXED));
	return true;
}

static void put(struct headroom *h, size_t size)
{
	__atomic_sub_fetch(&h->used, size, __ATOMIC_RELAXED);
}

static int refuse(struct headroom *h, const char *what, size_t size, int64_t room,
		  const struct hetmem_memory_info *info)
{
	char place[32] = "the host", keep[48] = "";

	if (h->where >= 0)
		snprintf(place, sizeof(place), "device %d", h->where);
	if (h->bytes)
		snprintf(keep, sizeof(keep), " and keep=%" PRIu64, h->bytes);
	__atomic_add_fetch(&h->failed, 1, __ATOMIC_RELAXED);
	return hm_error(-ENOMEM, "headroom: %s of %zu bytes is too large: at most %" PRId64 " fit on %s (its figure \"%s\" less the reserve%s)",
			what, size, room > 0 ? room : 0, place,
			hetmem_memory_figure_name(info->least), keep);
}

/* An allocation by the ops, or with options (@with). */
struct request {
	size_t size;
	size_t align;
	hetmem_stream stream;
	struct hm_ctl_alloc *with;
	void *ptr;
};

static int ask_upstream(struct headroom *h, struct request *r)
{
	struct hetmem_resource *up = h->resource.upstream;
	int err;

	if (!r->with)
		return up->ops->alloc(up, r->size, r->align, r->stream, &r->ptr);
	err = up->ops->ctl(up, HM_CTL_ALLOC_WITH, r->with);
	if (!err)
		r->ptr = r->with->ptr;
	return err;
}

static int ask_taken(struct headroom *h, struct request *r)
{
	int err = ask_upstream(h, r);

	drop_pending(h, r->size);
	if (err)
		put(h, r->size);
	return err;
}

/*
 * Tries to serve the request from memory that R has cached. If R had to take new memory
 * and too little is left, frees the block again. -EAGAIN: not served.
 */
static int ask_cache(struct headroom *h, struct request *r)
{
	struct hetmem_resource *up = h->resource.upstream;
	struct hetmem_resource_stats before = stats_of(h);
	struct hetmem_memory_info info;
	size_t size = r->size;
	int err;

	if (before.reserved < before.requested ||
	    before.reserved - before.requested < size)
		return -EAGAIN;
	err = ask_upstream(h, r);
	if (err)
		return err == -ENOMEM ? -EAGAIN : err;
	if (stats_of(h).reserved > before.reserved && look(h, &info) < 0) {
		up->ops->free(up, r->ptr, &size, r->stream);
		return -EAGAIN;
	}
	/* After a free, R can serve these bytes again: raise both. */
	__atomic_add_fetch(&h->used, size, __ATOMIC_RELAXED);
	__atomic_add_fetch(&h->limit, size, __ATOMIC_RELAXED);
	return 0;
}

static void trim(struct headroom *h)
{
	size_t none = 0;

	hm_ctl_upstream(&h->resource, HM_CTL_POLL, NULL);
	hm_ctl_upstream(&h->resource, HM_CTL_TRIM, &none);
}

__attribute__((noinline))
static int request_slowly(struct headroom *h, struct request *r)
{
	struct hetmem_memory_info info;
	int64_t room;
	int err;

	look(h, &info);
	if (take(h, r->size))
		return ask_taken(h, r);
	err = ask_cache(h, r);
	if (err != -EAGAIN)
		return err;
	trim(h);
	room = look(h, &info);
	if (take(h, r->size))
		return ask_taken(h, r);
	return refuse(h, "an allocation", r->size, room, &info);
}

static int request(struct headroom *h, struct request *r)
{
	if (hm_now() < __atomic_load_n(&h->until, __ATOMIC_ACQUIRE) &&
	    take(h, r->size))
		return ask_taken(h, r);
	return request_slowly(h, r);
}

static int headroom_alloc(struct hetmem_resource *self, size_t size,
			  size_t align, hetmem_stream stream, void **ptr)
{
	struct request r = { .size = size, .align = align, .stream = stream };
	int err = request((struct headroom *)self, &r);

	if (!err)
		*ptr = r.ptr;
	return err;
}

static int headroom_free(struct hetmem_resource *self, void *ptr, size_t *size,
			 hetmem_stream stream)
{
	struct hetmem_resource *up = self->upstream;
	int err = up->ops->free(up, ptr, size, stream);

	if (!err)
		put((struct headroom *)self, *size);
	return err;
}

static int headroom_grow(struct headroom *h, struct hm_ctl_grow *grow)
{
	struct hm_ctl_owns block = { .ptr = grow->ptr, .first = true };
	struct hetmem_memory_info info;
	size_t more = 0;
	int64_t room;
	int err;

	err = hm_ctl_upstream(&h->resource, HM_CTL_OWNS, &block);
	if (err || block.base != grow->ptr)
		return err && err != -ENOENT ? err :
			hm_error(-EINVAL, "grow: %p is not allocated from this headroom",
				 grow->ptr);
	if (grow->size > block.asked)
		more = grow->size - block.asked;
	if (hm_now() >= __atomic_load_n(&h->until, __ATOMIC_ACQUIRE) ||
	    !take(h, more)) {
		look(h, &info);
		if (!take(h, more)) {
			trim(h);
			room = look(h, &info);
			if (!take(h, more))
				return refuse(h, "growth", more, room, &info);
		}
	}
	err = hm_ctl_upstream(&h->resource, HM_CTL_GROW, grow);
	drop_pending(h, more);
	if (err)
		put(h, more);
	return err;
}

static int headroom_alloc_with(struct headroom *h, struct hm_ctl_alloc *arg)
{
	struct request r = {
		.size = arg->size, .align = arg->align, .stream = arg->stream,
		.with = arg,
	};

	return request(h, &r);
}

static int headroom_ctl(struct hetmem_resource *self, enum hm_ctl op, void *arg)
{
	struct headroom *h = (struct headroom *)self;
	struct hetmem_resource_stats *stats = arg;
	int err;

	if (op == HM_CTL_GROW)
		return headroom_grow(h, arg);
	if (op == HM_CTL_ALLOC_WITH)
		return headroom_alloc_with(h, arg);
	err = hm_ctl_upstream(self, op, arg);
	if (op == HM_CTL_STATS && !err) {
		stats->failed += __atomic_load_n(&h->failed, __ATOMIC_RELAXED);
		stats->metadata += sizeof(*h);
	}
	/* Other processes may have taken memory given back: make the limit stale. */
	if ((op == HM_CTL_TRIM || op == HM_CTL_RESTORE || op == HM_CTL_WAKE) && !err)
		__atomic_store_n(&h->until, 0, __ATOMIC_RELEASE);
	return err;
}

static void headroom_destroy(struct hetmem_resource *self)
{
	struct headroom *h = (struct headroom *)self;

	if (h->keep.device >= 0)
		hm_keep_remove(self->hm, &h->keep);
	hm_resource_free(self);
}

static const struct hm_resource_ops headroom_ops = {
	.name = "headroom",
	.alloc = headroom_alloc,
	.free = headroom_free,
	.ctl = headroom_ctl,
	.destroy = headroom_destroy,
};

/* *@where becomes the device whose memory @upstream uses, or -1. False: mixed memory. */
static bool find_where(struct hetmem_resource *upstream, int *where)
{
	const int device = upstream->device;
	struct hetmem_access access = { .size = sizeof(access) };
	struct hm_ctl_access arg = { .access = &access };

	*where = device;
	if (device < 0 || upstream->ops->ctl(upstream, HM_CTL_ACCESS, &arg))
		return true;
	if (access.host != access.some_host)
		return false;
	/* Memory that the CPU can use is on the host, or comes back to it. */
	if (access.host && upstream->hm->devices[device].platform.kind !=
	    HETMEM_PLATFORM_INTEGRATED)
		*where = -1;
	return true;
}

int hm_headroom_where(struct hetmem_resource *upstream, uint64_t *total)
{
	struct hetmem_memory_info info = { .size = sizeof(info) };
	int where;

	if (!find_where(upstream, &where))
		return hm_error(-EINVAL, "headroom: only some of this memory is the host's: put a headroom() around each part");
	*total = 0;
	if (!hetmem_memory_info(upstream->hm, where, &info) &&
	    info.total != HETMEM_MEMORY_UNKNOWN)
		*total = info.total;
	return 0;
}

int hm_headroom_create(struct hetmem_resource *upstream, uint64_t bytes,
		       uint64_t on_device, struct hetmem_resource **res)
{
	struct headroom *h = hm_adaptor_new(sizeof(*h), &headroom_ops, upstream);

	if (!h)
		return -ENOMEM;
	find_where(upstream, &h->where);
	h->bytes = bytes;
	h->keep.device = upstream->device;
	h->keep.bytes = on_device;
	if (h->keep.device >= 0)
		hm_keep_add(upstream->hm, &h->keep);
	*res = &h->resource;
	return 0;
}
