// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * headroom(R,keep=): R makes no memory that would leave less than @keep usable, by
 * hetmem_memory_info(). If an allocation needs such memory, R is trimmed; if that does not
 * suffice, it is refused. What R has cached needs none. Memory that the CPU can use
 * counts against the host, other memory against the device. Prefetches to R's device
 * leave the same usable, see hm_headroom_fit().
 *
 * A gate in R's providers does the counting (provider/gate.h). hetmem_memory_info() takes
 * some 100 us, so its answer serves for a while; for a device, until memory is made: then
 * the gate asks whether others have taken some meanwhile. Memory of R that nobody touched yet
 * still counts as usable on the host: mincore(2) finds it, and look() subtracts it.
 */
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "adaptor/gated.h"
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
 * @gate: in R's providers
 * @until: hm_now() when the gate's bound is stale
 * @failed: refused requests
 */
struct headroom {
	struct hetmem_resource resource;
	struct hm_keep keep;
	int where;
	uint64_t bytes;
	struct hm_gate gate;
	uint64_t until;
	uint64_t failed;
};

static int64_t clamp(uint64_t bytes)
{
	return bytes < INT64_MAX / 4 ? (int64_t)bytes : INT64_MAX / 4;
}

/* Bytes of segments that were found, and those of them that have no page. */
struct found {
	uint64_t bytes, untouched;
};

static int count_untouched(void *data, const struct hetmem_walk_segment *segment)
{
	const size_t page = sysconf(_SC_PAGESIZE);
	uintptr_t at = (uintptr_t)segment->base & ~(page - 1);
	const uintptr_t end = (uintptr_t)segment->base + segment->bytes;
	unsigned char core[BATCH];
	struct found *found = data;
	size_t n, i;

	found->bytes += segment->bytes;
	for (; at < end; at += n * page) {
		n = (end - at + page - 1) / page;
		if (n > BATCH)
			n = BATCH;
		if (mincore((void *)at, n * page, core))
			continue;
		for (i = 0; i < n; i++)
			found->untouched += core[i] & 1 ? 0 : page;
	}
	return 0;
}

/*
 * Returns the bytes of R that may be untouched, if R gave back @gone before. What a walk
 * does not find, because threads change it, or nobody has it, counts too.
 */
static int64_t untouched(struct headroom *h, int64_t gone)
{
	struct found found = { 0 };
	const struct hetmem_walk walk = {
		.size = sizeof(walk), .segment = count_untouched, .data = &found,
	};
	struct hm_ctl_walk arg = { .walk = &walk, .regions = true };
	int64_t missed;

	hm_ctl_upstream(&h->resource, HM_CTL_WALK, &arg);
	missed = hm_gate_had(&h->gate, gone) - clamp(found.bytes);
	return clamp(found.untouched) + (missed > 0 ? missed : 0);
}

/* As untouched(), without a look at pages. R can hold memory from before the gate. */
static int64_t held(struct headroom *h, int64_t gone)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };
	int64_t had, reserved;

	if (hm_ctl_upstream(&h->resource, HM_CTL_STATS, &stats))
		stats.reserved = 0;
	reserved = clamp(stats.reserved);
	had = hm_gate_had(&h->gate, gone);
	return had > reserved ? had : reserved;
}

/* Returns the usable bytes; @info: from where. Not known: more than there can be. */
static int64_t usable(const struct headroom *h, struct hetmem_memory_info *info)
{
	*info = (struct hetmem_memory_info){ .size = sizeof(*info) };
	if (hetmem_memory_info(h->resource.hm, h->where, info) ||
	    info->usable == HETMEM_MEMORY_UNKNOWN)
		return INT64_MAX / 4;
	return clamp(info->usable);
}

/* For the gate, after it let memory through. */
static int64_t left(struct hm_gate *gate)
{
	struct headroom *h = (struct headroom *)((char *)gate - offsetof(struct headroom, gate));
	struct hetmem_memory_info info;
	int64_t bytes = usable(h, &info);

	/* Exactly the reserve is left, or less. */
	if (!bytes) {
		bytes = clamp(info.figures[info.least].bytes) - clamp(info.reserve);
		if (info.least == HETMEM_MEMORY_DRIVER && info.figures[HETMEM_MEMORY_CACHE].counts)
			bytes += clamp(info.figures[HETMEM_MEMORY_CACHE].bytes);
	}
	return bytes - clamp(h->bytes);
}

/* Tells the gate how much R may make. */
static void look(struct headroom *h, struct hetmem_memory_info *info)
{
	const int64_t gone = hm_gate_gone(&h->gate);
	const int64_t made = hm_gate_made(&h->gate);
	const uint64_t before = hm_now();
	int64_t room = usable(h, info), promised, again;
	uint64_t cost;

	promised = h->where < 0 ? held(h, gone) : 0;
	/* mincore(2) takes time: only if untouched memory can matter. */
	if (promised && room < clamp(h->bytes) + 2 * promised) {
		promised = untouched(h, gone);
		/* What was touched meanwhile was found by neither. */
		again = usable(h, info);
		room = again < room ? again : room;
	}
	hm_gate_open_to(&h->gate, made, room - clamp(h->bytes) - promised);
	cost = (hm_now() - before) * AGE_OF_COST;
	__atomic_store_n(&h->until, before + (cost > MIN_AGE_NS ? cost : MIN_AGE_NS),
			 __ATOMIC_RELEASE);
}

static int refuse(struct headroom *h, enum hm_ctl op, size_t size,
		  const struct hetmem_memory_info *info)
{
	char what[96] = "more memory is needed", place[32] = "the host", keep[48] = "", has[512] = "";
	const uint64_t room = hm_gate_room(&h->gate);

	if (op == HM_CTL_ALLOC_WITH)
		snprintf(what, sizeof(what), "an allocation of %zu bytes%s is too large", size,
			 size <= room ? ", with its alignment and guards," : "");
	else if (op == HM_CTL_GROW)
		snprintf(what, sizeof(what), "growth to %zu bytes is too much", size);
	else if (op == HM_CTL_SHRINK)
		snprintf(what, sizeof(what), "a commit of %zu bytes is too much", size);

	if (h->where >= 0)
		snprintf(place, sizeof(place), "device %d", h->where);
	if (h->bytes)
		snprintf(keep, sizeof(keep), " and keep=%" PRIu64, h->bytes);
	/* R has said what it has free. */
	if (strstr(hetmem_last_error(), HM_FREE_BYTES))
		snprintf(has, sizeof(has), "%s", strstr(hetmem_last_error(), HM_FREE_BYTES));
	__atomic_add_fetch(&h->failed, 1, __ATOMIC_RELAXED);
	return hm_error(-ENOMEM, "headroom: %s: at most %" PRIu64 "%s bytes fit on %s (its figure \"%s\" less the reserve%s): free memory, or lower keep=%s",
			what, room,
			op == HM_CTL_ALLOC_WITH ? "" : " more", place,
			hetmem_memory_figure_name(info->least), keep, has);
}

static int ask(struct headroom *h, const struct hm_request *r, bool *refused)
{
	return hm_request_watch(h->resource.upstream, r, &h->gate, -ENOMEM, refused);
}

static void trim(struct headroom *h)
{
	size_t none = 0;

	hm_ctl_upstream(&h->resource, HM_CTL_POLL, NULL);
	hm_ctl_upstream(&h->resource, HM_CTL_TRIM, &none);
}

/* The gate refused: looks again, then trims R, before the request is refused. */
__attribute__((noinline))
static int ask_again(struct headroom *h, const struct hm_request *r)
{
	struct hetmem_memory_info info;
	bool refused = true;
	int err = -ENOMEM;
	int i;

	for (i = 0; i < 2 && refused; i++) {
		if (i)
			trim(h);
		look(h, &info);
		err = ask(h, r, &refused);
	}
	return refused ? refuse(h, r->op, r->size, &info) : err;
}

static int request(struct headroom *h, const struct hm_request *r)
{
	struct hetmem_memory_info info;
	bool refused;
	int err;

	if (hm_now() >= __atomic_load_n(&h->until, __ATOMIC_ACQUIRE))
		look(h, &info);
	err = ask(h, r, &refused);
	return refused ? ask_again(h, r) : err;
}

static int headroom_alloc(struct hetmem_resource *self, size_t size,
			  size_t align, hetmem_stream stream, void **ptr)
{
	const struct hm_request r = hm_request_alloc(size, align, stream, ptr);

	return request((struct headroom *)self, &r);
}

static int headroom_ctl(struct hetmem_resource *self, enum hm_ctl op, void *arg)
{
	struct headroom *h = (struct headroom *)self;
	struct hetmem_resource_stats *stats = arg;
	struct hm_request r;
	int err;

	if (hm_request_of(&r, op, arg))
		return request(h, &r);
	err = hm_ctl_upstream(self, op, arg);
	if (op == HM_CTL_STATS && !err) {
		stats->failed += __atomic_load_n(&h->failed, __ATOMIC_RELAXED);
		stats->metadata += sizeof(*h);
	}
	return err;
}

static void headroom_destroy(struct hetmem_resource *self)
{
	struct headroom *h = (struct headroom *)self;

	hm_gate_pass(self, &h->gate, false);
	if (h->keep.device >= 0)
		hm_keep_remove(self->hm, &h->keep);
	hm_resource_free(self);
}

static const struct hm_resource_ops headroom_ops = {
	.name = "headroom",
	.alloc = headroom_alloc,
	.free = hm_adaptor_free,
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
	if (h->where >= 0)
		h->gate.usable = left;
	h->keep.device = upstream->device;
	h->keep.bytes = on_device;
	if (h->keep.device >= 0)
		hm_keep_add(upstream->hm, &h->keep);
	hm_gate_pass(&h->resource, &h->gate, true);
	*res = &h->resource;
	return 0;
}
