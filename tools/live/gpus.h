/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The memory of GPUs and who holds it, as NVML reports it. NVML counts every process, with
 * hetmem or without. It is loaded at run time: without libnvidia-ml.so.1 there are no GPUs.
 */
#ifndef HETMEM_TOOLS_GPUS_H
#define HETMEM_TOOLS_GPUS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define GPUS_MOST	64
#define GPU_USES_MOST	4096
/* Of struct gpu_use: NVML does not know it. */
#define GPU_BYTES_UNKNOWN	UINT64_MAX

/* @known: @total and @used are. */
struct gpu {
	char name[96 * 4];
	bool known;
	uint64_t total, used;
};

/* What one process holds on one GPU. @pid: NVML's word, which nothing has checked. */
struct gpu_use {
	pid_t pid;
	unsigned int gpu;
	uint64_t bytes;
};

/**
 * struct gpus - one look
 * @there: the library is
 * @why: why nothing is known although it is there; empty: it is known
 * @gpus: by NVML's index, which nvidia-smi shows; @nr of them
 * @uses: @nr_uses of them, by GPU, then by PID
 * @left_out: uses that found no room
 */
struct gpus {
	bool there;
	char why[64];
	unsigned int nr, nr_uses, left_out;
	struct gpu gpus[GPUS_MOST];
	struct gpu_use *uses;
};

/* Looks until @end of now(), and reports in @why that NVML takes longer. */
void gpus_look(struct gpus *gpus, double end);
void gpus_free(struct gpus *gpus);

#endif
