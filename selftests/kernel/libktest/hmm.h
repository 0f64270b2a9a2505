/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Another driver's device memory: the kernel's own test_hmm, which knows
 * nothing of hetmem, as two GPUs. Its commands as plain functions.
 */
#ifndef LIBKTEST_HMM_H
#define LIBKTEST_HMM_H

#include "libktest/commands.h"

#include <test_hmm_uapi.h>

#define NO_LOC	HETMEM_LOC(HETMEM_UNKNOWN, 0)

/* One of test_hmm's devices, for this process. Closing it evicts its pages. */
int gpu_open(int nr);

/* The first of those whose memory is coherent with the CPUs. */
#define GPU_COHERENT	2

/* The same of one with a pgmap for each GPU_CHUNK of memory. */
int gpu_open_2m(int nr);

#define GPU_CHUNK	(2 * MiB)
int gpu_call(int gpu, unsigned long nr, void *p, size_t size, void *data,
	     struct hmm_dmirror_cmd *cmd);

/*
 * Prefetch to the GPU. It answers with the data that it has there, which must
 * be the pattern. Return: 0 or a negative errno.
 */
int to_gpu_at(int gpu, char *p, size_t size, uint64_t seed, size_t offset);
int to_gpu(int gpu, char *p, size_t size, uint64_t seed);

/* The GPU's driver brings pages back of its own accord. */
int from_gpu(int gpu, char *p, size_t size);

/* Where the page at @p is if that is HETMEM_FOREIGN, or NO_LOC. */
uint32_t foreign_at(int fd, const void *p);

/* The pool at @location as INFO has it, or -ENOENT, or another errno. */
int pool_at(int fd, uint32_t location, struct hetmem_pool_info *pool);

#endif
