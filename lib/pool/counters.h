/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Counters of a stream. They are written under its lock, and read without it: each store is
 * whole.
 */
#ifndef HETMEM_POOL_COUNTERS_H
#define HETMEM_POOL_COUNTERS_H

#include "pool/pool_stream.h"

static inline void stream_set_counter(int64_t *counter, int64_t value)
{
	__atomic_store_n(counter, value, __ATOMIC_RELAXED);
}

static inline void stream_add_requested(struct pool_stream *s, uint64_t bytes)
{
	const int64_t sum = s->requested + bytes;

	stream_set_counter(&s->requested, sum);
	if (hm_unlikely(sum > s->high))
		stream_set_counter(&s->high, sum);
}

static inline void stream_sub_requested(struct pool_stream *s, uint64_t bytes)
{
	const int64_t sum = s->requested - bytes;

	stream_set_counter(&s->requested, sum);
	if (hm_unlikely(sum < s->low))
		stream_set_counter(&s->low, sum);
}

static inline uint64_t stream_allocs(const struct pool_stream *s)
{
	return __atomic_load_n(&s->batches, __ATOMIC_RELAXED) -
		__atomic_load_n(&s->batch, __ATOMIC_RELAXED);
}

/* Counts a cached allocation. Returns whether hm_stream_end_batch() is to be called. */
static inline bool stream_count_alloc(struct pool_stream *s)
{
	const int32_t batch = s->batch - 1;

	__atomic_store_n(&s->batch, batch, __ATOMIC_RELAXED);
	return batch < 0;
}

static inline void stream_set_cached(struct pool_stream *s, uint64_t bytes)
{
	__atomic_store_n(&s->cached, bytes, __ATOMIC_RELAXED);
}

static inline void stream_set_overflows(struct pool_stream *s, uint32_t nr)
{
	__atomic_store_n(&s->overflows, nr, __ATOMIC_RELAXED);
}

static inline void stream_count_free(struct pool_stream *s)
{
	__atomic_store_n(&s->frees, s->frees + 1, __ATOMIC_RELAXED);
}

#endif /* HETMEM_POOL_COUNTERS_H */
