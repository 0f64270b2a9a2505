/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Blocks that processes share by handles of ours, see ipc.c.
 */
#ifndef HETMEM_CUDA_IPC_H
#define HETMEM_CUDA_IPC_H

#include "cuda/cuda.h"

struct hm_cuda_memory;

/*
 * Exports the block of @token. Returns a descriptor that the caller owns, or -1 and an error in
 * @memory.
 */
int hm_cuda_ipc_export(const unsigned char *token, struct hm_cuda_memory *memory);
/* Whether a handle of ours can be made for the block. */
bool hm_cuda_ipc_can_share(const struct hm_cuda_block *block);
/* The block is about to be freed: its handle ends. Processes that have opened it keep it. */
void hm_cuda_ipc_forget(CUdeviceptr ptr);
/* The device's context ends: its handles do, and what was opened there is unmapped. */
void hm_cuda_ipc_end(CUdevice device);

#endif /* HETMEM_CUDA_IPC_H */
