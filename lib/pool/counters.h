/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Counters of a stream. They are written under its lock, and read without it: each store is
 * whole. The fast path counts with one instruction where the machine has one.
 */
#ifndef HETMEM_POOL_COUNTERS_H
#define HETMEM_POOL_COUNTERS_H

#include "pool/pool_stream.h"

/* ThreadSanitizer does not see what assembler reads and writes. */
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__)
#define ONE_INSTRUCTION	1
#else
#define ONE_INSTRUCTION	0
#endif

static inline void stream_count(uint64_t *counter, uint64_t more)
{
#if ONE_INSTRUCTION
	__asm__ ("addq %1, %0" : "+m" (*counter) : "er" (more) : "cc");
#else
	__atomic_store_n(counter, *counter + more, __ATOMIC_RELAXED);
#endif
}

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
#if ONE_INSTRUCTION
	bool ends;

	__asm__ ("decl %0" : "+m" (s->batch), "=@ccs" (ends));
	return ends;
#else
	const int32_t batch = s->batch - 1;

	__atomic_store_n(&s->batch, batch, __ATOMIC_RELAXED);
	return batch < 0;
#endif
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
	stream_count(&s->frees, 1);
}

#endif /* HETMEM_POOL_COUNTERS_H */
