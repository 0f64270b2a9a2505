/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Entry points that frameworks find by name. They use the current resource of
 * a device in a library that the process opens once: HETMEM_RESOURCE, or
 * device-pool. Errors go to stderr. Documentation/pytorch.md tells how to use
 * them.
 */
#ifndef HETMEM_FRAMEWORK_H
#define HETMEM_FRAMEWORK_H

#include <hetmem.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * For torch.cuda.memory.CUDAPluggableAllocator. alloc returns NULL if there is
 * no memory. free takes a @size of 0 (unknown) and HETMEM_STREAM_UNKNOWN.
 */
void *hetmem_torch_alloc(size_t size, int device, hetmem_stream stream);
void hetmem_torch_free(void *ptr, size_t size, int device,
		       hetmem_stream stream);

/*
 * Hooks of its allocator(). base_alloc returns the block that contains @ptr,
 * and its size in *@size (may be NULL). reset is torch.cuda.empty_cache(): it
 * gives back memory that is not allocated.
 */
void hetmem_torch_record_stream(void *ptr, hetmem_stream stream);
void *hetmem_torch_base_alloc(void *ptr, size_t *size);
void hetmem_torch_init(int device_count);
void hetmem_torch_reset(void);

/* The resource that they use, for statistics and the like; NULL: none. */
struct hetmem_resource *hetmem_torch_resource(int device);

/*
 * For cupy.cuda.memory.CFunctionAllocator. @stream is the stream to allocate
 * on; NULL is the legacy one. A free knows neither size nor stream: it takes
 * effect after all work on the stream of the allocation and on recorded ones.
 */
void *hetmem_cupy_alloc(void *stream, size_t size, int device);
void hetmem_cupy_free(void *stream, void *ptr, int device);

#ifdef __cplusplus
}
#endif

#endif /* HETMEM_FRAMEWORK_H */
