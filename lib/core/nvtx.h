/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * NVTX ranges of slow paths, for profilers such as Nsight Systems: HETMEM_NVTX=1 turns them
 * on at the first hetmem_open(). They are in the domain "hetmem", nest by thread, and carry
 * a number of bytes. Without a profiler each costs one test of a flag.
 */
#ifndef HETMEM_CORE_NVTX_H
#define HETMEM_CORE_NVTX_H

#include <stdbool.h>
#include <stdint.h>

extern bool hm_nvtx_on;

/* Finds the profiler, once in the life of the process. */
void hm_nvtx_open(void);

/* The source of the profiler's functions; NULL with the reason in @why: there are no ranges. */
const char *hm_nvtx_source(const char **why);

void hm_nvtx_push(const char *name, uint64_t bytes);
void hm_nvtx_pop(void);

static inline bool hm_range_begin(const char *name, uint64_t bytes)
{
	if (!__atomic_load_n(&hm_nvtx_on, __ATOMIC_ACQUIRE))
		return false;
	hm_nvtx_push(name, bytes);
	return true;
}

static inline void hm_range_end(const bool *begun)
{
	if (*begun)
		hm_nvtx_pop();
}

/* The last declaration of a function: its rest is the range @name. */
#define HM_RANGE(name, bytes) \
	__attribute__((cleanup(hm_range_end), unused)) const bool hm_range = hm_range_begin(name, bytes)

#endif /* HETMEM_CORE_NVTX_H */
