// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * stats(R): counts blocks and bytes, as they were asked for, without a lock:
 * now, peak and total, and the same since a point that was pushed.
 *
 * The counters only ever go on. A level that is pushed remembers where they
 * stood, and begins a peak of its own; when it is popped the outer level's
 * peak is the larger of the two. An allocation that happens meanwhile adds to
 * the value first and raises the peak after; a push stores the peak first and
 * reads the value after: one of the two sees the other.
 */
#include <errno.h>
#include <stdlib.h>

#include "resource/adaptor.h"

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
 * @levels: the counters when each was pushed; with the lock of @blocks
 */
struct statistics {
	struct hetmem_resource resource;
	struct hm_blocks *blocks;
	struct level now;
	uint64_t peak;
	uint64_t allocs;
	uint64_t frees;
	uint64_t failed;
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

/* A block was made: counts it. It is given back if it cannot be known. */
static int add_block(struct statistics *s, const struct hm_known *known)
{
	struct hetmem_resource *up = s->resource.upstream;
	int err = hm_blocks_add(s->blocks, known);

	if (err) {
		up->ops->free(up, known->ptr, 0, known->stream);
		return err;
	}
	raise_to(&s->peak, count(&s->now.bytes, known->size));
	count(&s->now.blocks, 1);
	add(&s->allocs, 1);
	return 0;
}

static int statistics_alloc(struct hetmem_resource *self, size_t size,
			    size_t align, hetmem_stream stream, void **ptr)
{
	struct statistics *s = (struct statistics *)self;
	struct hetmem_resource *up = self->upstream;
	struct hm_known known = { .size = size, .stream = stream };
	int err = up->ops->alloc(up, size, align, stream, &known.ptr);

	if (!err)
		err = add_block(s, &known);
	if (err) {
		add(&s->failed, 1);
		return err;
	}
	*ptr = known.ptr;
	return 0;
}

static int statistics_reserve(struct statistics *s,
			      struct hm_ctl_reserve *arg)
{
	int err = hm_ctl_upstream(&s->resource, HM_CTL_RESERVE, arg);

	if (!err)
		err = add_block(s, &(struct hm_known){
				.ptr = arg->ptr, .size = arg->size,
				.stream = arg->stream });
	if (err)
		add(&s->failed, 1);
	return err;
}

static int statistics_free(struct hetmem_resource *self, void *ptr,
			   size_t size, hetmem_stream stream)
{
	struct statistics *s = (struct statistics *)self;
	struct hetmem_resource *up = self->upstream;
	struct hm_known known;
	int err;

	/* Out first: once it is free the address may come again. */
	err = hm_blocks_take_freed(s->blocks, "stats", ptr, size, &known);
	if (err)
		return err;
	add(&s->now.bytes.value, -known.size);
	add(&s->now.blocks.value, -1ULL);
	add(&s->frees, 1);
	err = up->ops->free(up, ptr, known.size, stream);
	if (hm_unlikely(err)) {
		hm_blocks_add(s->blocks, &known);
		add(&s->now.bytes.value, known.size);
		add(&s->now.blocks.value, 1);
		add(&s->frees, -1ULL);
	}
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

	hm_blocks_lock(s->blocks);
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
	hm_blocks_unlock(s->blocks);
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
	stats->metadata += sizeof(*s) + hm_blocks_bytes(s->blocks);
	return 0;
}

static int statistics_grow(struct statistics *s, struct hm_ctl_grow *grow)
{
	struct hm_known known;
	int err = hm_ctl_upstream(&s->resource, HM_CTL_GROW, grow);

	if (!err && hm_blocks_update(s->blocks, grow->ptr, grow->size, 0,
				     &known) && grow->size > known.size)
		raise_to(&s->peak, count(&s->now.bytes,
					 grow->size - known.size));
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
	case HM_CTL_RESERVE:
		return statistics_reserve(s, arg);
	default:
		return hm_ctl_upstream(self, op, arg);
	}
}

static void statistics_destroy(struct hetmem_resource *self)
{
	struct statistics *s = (struct statistics *)self;

	hm_blocks_free(s->blocks, NULL, NULL);
	free(s);
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
	struct statistics *s = calloc(1, sizeof(*s));

	if (!s)
		return hm_error(-ENOMEM, "stats: no memory");
	s->blocks = hm_blocks_new();
	if (!s->blocks) {
		free(s);
		return -ENOMEM;
	}
	hm_adaptor_init(&s->resource, &statistics_ops, upstream);
	*res = &s->resource;
	return 0;
}
