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
 * As hetmem_torch_alloc(), for a shim that throws: sets *@ptr, and writes nothing to
 * stderr. Errors: those of hetmem_open(), hetmem_resource_current() and hetmem_alloc().
 */
int hetmem_torch_try_alloc(size_t size, int device, hetmem_stream stream,
			   void **ptr);

/*
 * Hooks of its allocator(). base_alloc returns the block that contains @ptr,
 * and its size in *@size (may be NULL). reset is torch.cuda.empty_cache(): it
 * gives back memory that is not allocated.
 */
void hetmem_torch_record_stream(void *ptr, hetmem_stream stream);
void *hetmem_torch_base_alloc(void *ptr, size_t *size);
void hetmem_torch_init(int device_count);
void hetmem_torch_reset(void);

/*
 * CUDA graphs and torch.cuda.use_mem_pool(). PyTorch decides at each allocation
 * whether it is for a pool: returns other than 0 if allocations on @stream are.
 * Called by threads that allocate, several at a time. It must not use this
 * library.
 */
typedef int (*hetmem_torch_filter)(void *data, hetmem_stream stream);

/*
 * beginAllocateToPool(), endAllocateToPool(), releasePool(): a pool is known by
 * the two numbers of its MempoolId_t. Each begin adds a reference, release takes
 * one away. From begin to end an allocation on @device is from the pool if
 * @filter says so; if several pools are between begin and end, the last begun is
 * asked first. No stream is asked who it is, so that it may be captured.
 *
 * begin returns 0 or a negative errno, a line about it goes to stderr. end
 * returns @data of the last begin that it ends, NULL if there is none; @filter is
 * not called any more. The last release gives the memory to everyone. It waits
 * for the device; if a pool is between begin and end, that is done at the last
 * end.
 *
 * hetmem_torch_private_pool() returns the pool's number, for the functions of
 * hetmem/snapshot.h with hetmem_torch_resource(); 0: there is no such pool.
 */
int hetmem_torch_begin_pool(int device, uint64_t first, uint64_t second,
			    hetmem_torch_filter filter, void *data);
void *hetmem_torch_end_pool(int device, uint64_t first, uint64_t second);
void hetmem_torch_release_pool(int device, uint64_t first, uint64_t second);
uint64_t hetmem_torch_private_pool(int device, uint64_t first, uint64_t second);

/*
 * createOrIncrefPool() and getPoolUseCount(). retain adds a reference, as a begin does, and
 * makes the pool if there is none. hetmem_torch_release_pool() takes the reference away.
 * refs returns the number of references; 0: there is no such pool. Errors of retain:
 * -ENODEV: no such device;
 * those of hetmem_torch_try_alloc() and hetmem_private_retain().
 */
int hetmem_torch_retain_pool(int device, uint64_t first, uint64_t second);
int hetmem_torch_pool_refs(int device, uint64_t first, uint64_t second);

/* The resource that they use, for statistics and the like; NULL: none. */
struct hetmem_resource *hetmem_torch_resource(int device);

/*
 * For cupy.cuda.memory.CFunctionAllocator. @stream is the stream to allocate
 * on; NULL is the legacy one. A free knows neither size nor stream: it takes
 * effect after all work on the stream of the allocation and on recorded ones.
 */
void *hetmem_cupy_alloc(void *stream, size_t size, int device);
void hetmem_cupy_free(void *stream, void *ptr, int device);

/*
 * Makes a data-memory handler for NumPy (NEP 49): *@handler becomes a PyDataMem_Handler.
 * Arrays of @least bytes or more get blocks of @res, smaller ones memory of @other, the
 * PyDataMem_Handler in place before. A block is allocated on HETMEM_STREAM_HOST. It is
 * freed after all uses that were recorded for it. The handler, @res and @other must live as
 * long as the arrays, so they are never released. In a forked child that cannot use @res,
 * new arrays are from @other. Errors:
 * -EINVAL: the version of @other is not known;
 * -EOPNOTSUPP: the CPU cannot use all memory of @res;
 * -ENOMEM, -EOWNERDEAD.
 */
int hetmem_numpy_handler(struct hetmem_resource *res, size_t least,
			 const void *other, void **handler);

#ifdef __cplusplus
}
#endif

#endif /* HETMEM_FRAMEWORK_H */
