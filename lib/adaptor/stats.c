// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * stats(R): counts blocks and bytes, as they were asked for, without a lock:
 * now, peak and total, and the same since a point that was pushed.
 *
 * The counters only ever go on. A level that is pushed remembers where they
 * stood, and begins a peak of its own; when it is popped the outer level's
 * peak is the larger of the two. A concurrent allocation adds to
 * the value first and raises the peak after; a push stores the peak first and
 * reads the value after: one of the two sees the other.
 *
 * A free reports the size of its block, so that nothing is kept of blocks. It
 * is counted after it took effect: a peak may include frees under way.
 */
#include <errno.h>

#include "adaptor/adaptor.h"
#include "core/shrink.h"
#include "core/snapshot.h"

#define LEVELS	64

struct counter {
	uint64_t value;
	uint64_t peak;
	uint64_t total;
};

struct level {
	struct counter bytes;
	struct counter blocks;
};

/**
 * struct statistics - the adaptor
 * @now: the counters; their peak is the innermost level's
 * @peak: of bytes, of all time
 * @lock: protects what follows
 * @levels: the counters when each was pushed
 */
struct statistics {
	struct hetmem_resource resource;
	struct level now;
	uint64_t peak;
	uint64_t allocs;
	uint64_t frees;
	uint64_t failed;
	struct hm_lock lock;
	int nr;
	struct level levels[LEVELS];
};

static uint64_t load(const uint64_t *p)
{
	return __atomic_load_n(p, __ATOMIC_SEQ_CST);
}

static void add(uint64_t *p, uint64_t n)
{
	__atomic_add_fetch(p, n, __ATOMIC_SEQ_CST);
}

static void raise_to(uint64_t *peak, uint64_t value)
{
	uint64_t old = load(peak);

	while (old < value &&
	       !__atomic_compare_exchange_n(peak, &old, value, true,
					    __ATOMIC_SEQ_CST,
					    __ATOMIC_SEQ_CST))
		;
}

static uint64_t count(struct counter *c, uint64_t n)
{
	uint64_t value = __atomic_add_fetch(&c->value, n, __ATOMIC_SEQ_CST);

	add(&c->total, n);
	raise_to(&c->peak, value);
	return value;
}

static int count_block(struct statistics *s, size_t size, int err)
{
	if (err) {
		add(&s->failed, 1);
		return err;
	}
	raise_to(&s->peak, count(&s->now.bytes, size));
	count(&s->now.blocks, 1);
	add(&s->allocs, 1);
	return 0;
}

static int statistics_alloc(struct hetmem_resource *self, size_t size,
			    size_t align, hetmem_stream stream, void **ptr)
{
	struct hetmem_resource *up = self->upstream;

	return count_block((struct statistics *)self, size,
			   up->ops->alloc(up, size, align, stream, ptr));
}

static int statistics_alloc_with(struct statistics *s,
			      struct hm_ctl_alloc *arg)
{
	return count_block(s, arg->size, hm_ctl_upstream(&s->resource,
							 HM_CTL_ALLOC_WITH, arg));
}

static void count_free(struct statistics *s, size_t size)
{
	add(&s->now.bytes.value, -size);
	add(&s->now.blocks.value, -1ULL);
	add(&s->frees, 1);
}

static int statistics_restore(struct statistics *s, struct hm_ctl_restore *arg)
{
	size_t from, to, i;
	int err = hm_restore_upstream(&s->resource, arg, &from, &to);

	for (i = from; !err && arg->step == HM_RESTORE_DO && i < to; i++) {
		if (arg->blocks[i].kind == HETMEM_RESTORED_ALLOCATED)
			count_block(s, arg->blocks[i].bytes, 0);
		else if (arg->blocks[i].kind == HETMEM_RESTORED_FREED)
			count_free(s, arg->blocks[i].bytes);
	}
	return err;
}

static int statistics_free(struct hetmem_resource *self, void *ptr,
			   size_t *size, hetmem_stream stream)
{
	struct statistics *s = (struct statistics *)self;
	struct hetmem_resource *up = self->upstream;
	int err = up->ops->free(up, ptr, size, stream);

	if (!err)
		count_free(s, *size);
	return err;
}

static void since(const struct counter *now, const struct counter *base,
		  struct hetmem_counter *out)
{
	uint64_t peak = load(&now->peak);

	*out = (struct hetmem_counter){
		.value = load(&now->value) - base->value,
		.peak = peak > base->value ? peak - base->value : 0,
		.total = load(&now->total) - base->total,
	};
}

/* Of the innermost level. With the lock. */
static void read_counters(struct statistics *s, struct hetmem_counters *out)
{
	static const struct level none;
	const struct level *base = s->nr ? &s->levels[s->nr - 1] : &none;

	since(&s->now.bytes, &base->bytes, &out->bytes);
	since(&s->now.blocks, &base->blocks, &out->blocks);
}

static void push(struct counter *now, struct counter *base)
{
	uint64_t value = load(&now->value);

	*base = (struct counter){
		.value = value,
		.peak = load(&now->peak),
		.total = load(&now->total),
	};
	__atomic_store_n(&now->peak, value, __ATOMIC_SEQ_CST);
	raise_to(&now->peak, load(&now->value));
}

static int counters(struct statistics *s, struct hm_ctl_counters *arg)
{
	int err = 0;

	hm_lock(&s->lock);
	if (arg->counters)
		read_counters(s, arg->counters);
	if (arg->push) {
		if (s->nr < LEVELS) {
			push(&s->now.bytes, &s->levels[s->nr].bytes);
			push(&s->now.blocks, &s->levels[s->nr].blocks);
			s->nr++;
		} else {
			err = hm_error(-ENOSPC, "counters_push: %d are pushed",
				       LEVELS);
		}
	} else if (arg->pop) {
		if (s->nr) {
			s->nr--;
			raise_to(&s->now.bytes.peak,
				 s->levels[s->nr].bytes.peak);
			raise_to(&s->now.blocks.peak,
				 s->levels[s->nr].blocks.peak);
		} else {
			err = hm_error(-ENOENT, "counters_pop: nothing is pushed");
		}
	}
	hm_unlock(&s->lock);
	return err;
}

/* What is below adds what it holds; blocks and bytes are counted here. */
static int statistics_stats(struct statistics *s,
			    struct hetmem_resource_stats *stats)
{
	int err = hm_ctl_upstream(&s->resource, HM_CTL_STATS, stats);

	if (err && err != -EOPNOTSUPP)
		return err;
	stats->live = load(&s->now.blocks.value);
	stats->requested = load(&s->now.bytes.value);
	stats->requested_peak = load(&s->peak);
	stats->allocs = load(&s->allocs);
	stats->frees = load(&s->frees);
	stats->failed = load(&s->failed);
	stats->metadata += sizeof(*s);
	return 0;
}

static int statistics_grow(struct statistics *s, struct hm_ctl_grow *grow)
{
	int err = hm_ctl_upstream(&s->resource, HM_CTL_GROW, grow);

	if (err)
		return err;
	if (grow->size < grow->was)
		__atomic_sub_fetch(&s->now.bytes.value, grow->was - grow->size, __ATOMIC_SEQ_CST);
	else
		raise_to(&s->peak, count(&s->now.bytes, grow->size - grow->was));
	return 0;
}

static int statistics_part(struct statistics *s, struct hm_ctl_shrink *arg)
{
	int err = hm_ctl_upstream(&s->resource, HM_CTL_SHRINK, arg);

	if (!err && arg->what == HM_PART_COMMIT)
		raise_to(&s->peak, count(&s->now.bytes, arg->counted));
	else if (!err && arg->what == HM_PART_DECOMMIT)
		__atomic_sub_fetch(&s->now.bytes.value, arg->counted, __ATOMIC_SEQ_CST);
	return err;
}

static int statistics_ctl(struct hetmem_resource *self, enum hm_ctl op,
			  void *arg)
{
	struct statistics *s = (struct statistics *)self;

	switch (op) {
	case HM_CTL_COUNTERS:
		return counters(s, arg);
	case HM_CTL_STATS:
		return statistics_stats(s, arg);
	case HM_CTL_GROW:
		return statistics_grow(s, arg);
	case HM_CTL_SHRINK:
		return statistics_part(s, arg);
	case HM_CTL_ALLOC_WITH:
		return statistics_alloc_with(s, arg);
	case HM_CTL_RESTORE:
		return statistics_restore(s, arg);
	default:
		return hm_ctl_upstream(self, op, arg);
	}
}

static void statistics_destroy(struct hetmem_resource *self)
{
	struct statistics *s = (struct statistics *)self;

	hm_lock_destroy(&s->lock);
	hm_resource_free(self);
}

static const struct hm_resource_ops statistics_ops = {
	.name = "stats",
	.alloc = statistics_alloc,
	.free = statistics_free,
	.ctl = statistics_ctl,
	.destroy = statistics_destroy,
};

int hm_statistics_create(struct hetmem_resource *upstream,
			 struct hetmem_resource **res)
{
	struct statistics *s = hm_adaptor_new(sizeof(*s), &statistics_ops,
					      upstream);

	if (!s)
		return -ENOMEM;
	hm_lock_init(&s->lock, HM_FORK_ADAPTOR);
	*res = &s->resource;
	return 0;
}
