/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the driver allocates for a program, charged to the limit() of the spec: blocks
 * (charge.c), physical memory (handle.c), arrays (array.c), graphs (graph.c); and what the
 * default pool has (pool.c).
 */
#ifndef HETMEM_CUDA_CHARGE_H
#define HETMEM_CUDA_CHARGE_H

#include "cuda/cuda.h"

/* charge.c */

/* Charges @size bytes to the limit() of the device's spec. False: they are beyond it. */
bool hm_cuda_charge(CUdevice device, size_t size);
void hm_cuda_uncharge(CUdevice device, size_t size);

/* The device of the current context. False: there is none. */
bool hm_cuda_current_device(CUdevice *device);

/*
 * Notes @size bytes at @ptr that the driver has allocated, already charged to @device.
 * @ctx: whose end frees them; NULL: nobody's.
 */
void hm_cuda_note_charged(CUdevice device, CUcontext ctx, CUdeviceptr ptr, size_t size);

/* cuMemAlloc() and cuMemFree() of the driver, charged. */
CUresult hm_cuda_alloc_charged(CUdeviceptr *ptr, size_t size);
CUresult hm_cuda_free_charged(CUdeviceptr ptr);

/* handle.c */

/* Charges the memory of the program's handles to a device that was just opened. */
void hm_cuda_recharge(struct hm_cuda_device *device);
/* Device memory that the program has made by cuMemCreate(). */
uint64_t hm_cuda_handle_bytes(void);

/* array.c */

/* Forgets the arrays of @ctx, and takes them off the limit; NULL: those of the device. */
void hm_cuda_array_drop(CUdevice device, CUcontext ctx);
/* The size of all arrays. */
uint64_t hm_cuda_array_bytes(void);

/* pool.c: what the program has by cuMemAllocAsync() */
void hm_cuda_pool_add(CUdevice device, size_t size);
void hm_cuda_pool_sub(CUdevice device, size_t size);
void hm_cuda_pool_forget(CUdevice device);

/* graph.c */

struct hm_cuda_graph;

/*
 * An allocation in the capture of @stream begins, and has ended with @res. False: it is beyond
 * the limit. *@memory: NULL: it is not charged.
 */
bool hm_cuda_graph_begin(CUstream stream, size_t size, struct hm_cuda_graph **memory);
void hm_cuda_graph_done(struct hm_cuda_graph *memory, size_t size, CUresult res, CUdeviceptr ptr);
/* A capture has freed what a node allocates at @ptr. */
void hm_cuda_graph_freed(CUdeviceptr ptr);
/* The capture that the stream is in, 0: none; and its end. */
unsigned long long hm_cuda_graph_capture(CUstream stream);
void hm_cuda_graph_captured(unsigned long long id, CUresult res, CUgraph graph);
/* The device's context ends: nothing of its graphs is charged any more. */
void hm_cuda_graph_forget(CUdevice device);

#endif /* HETMEM_CUDA_CHARGE_H */
