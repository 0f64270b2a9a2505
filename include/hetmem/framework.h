/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Entry points that frameworks find by name. The first call opens a library for
 * the process. Each entry point uses the current resource of its device in that
 * library: the spec in HETMEM_RESOURCE, or device-pool. Errors go to stderr.
 * Documentation/pytorch.md describes the use.
 */
#ifndef HETMEM_FRAMEWORK_H
#define HETMEM_FRAMEWORK_H

#include <hetmem.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * For torch.cuda.memory.CUDAPluggableAllocator. alloc returns NULL if there is
 * no memory. free accepts a @size of 0 (unknown) and HETMEM_STREAM_UNKNOWN. In a forked
 * child, free and the releases of pools do nothing: inherited memory is the parent's.
 */
void *hetmem_torch_alloc(size_t size, int device, hetmem_stream stream);
void hetmem_torch_free(void *ptr, size_t size, int device,
		       hetmem_stream stream);

/*
 * hetmem_torch_alloc() for a shim that throws exceptions. Sets *@ptr, and writes nothing
 * to stderr. Errors:
 * those of hetmem_open(), hetmem_resource_current() and hetmem_alloc().
 */
int hetmem_torch_try_alloc(size_t size, int device, hetmem_stream stream,
			   void **ptr);

/*
 * Hooks for the object that CUDAPluggableAllocator.allocator() returns. base_alloc
 * returns the block that contains @ptr, and sets *@size to the block's size (@size
 * may be NULL). torch.cuda.empty_cache() calls reset, which gives free memory back.
 */
void hetmem_torch_record_stream(void *ptr, hetmem_stream stream);
void *hetmem_torch_base_alloc(void *ptr, size_t *size);
void hetmem_torch_init(int device_count);
void hetmem_torch_reset(void);

/*
 * The filter of CUDA graphs and torch.cuda.use_mem_pool(). At each allocation
 * PyTorch decides by it whether the memory comes from a pool. Returns a positive number
 * if allocations on @stream do, 0 if not. A negative errno fails the allocation with
 * this error; a free ignores it. Several allocating threads may call the filter at the
 * same time. The filter must not use this library, and no C++ exception may leave it.
 */
typedef int (*hetmem_torch_filter)(void *data, hetmem_stream stream);

/*
 * beginAllocateToPool(), endAllocateToPool(), releasePool(). The two numbers of a
 * MempoolId_t identify a pool. Each begin adds a reference, each release drops one.
 * Between begin and end an allocation on @device comes from the pool if @filter
 * accepts its stream. If several pools are between begin and end, the filter of the
 * last one is called first. The driver is not asked for a stream's id, so streams
 * may be captured.
 *
 * begin returns 0 or a negative errno, and writes a line about the error to stderr.
 * end returns @data of the last begin that it ends, NULL if there is none. After
 * that @filter is not called. The last release makes the memory available to all
 * allocations and waits for the device. If a pool is between begin and end, the last
 * end does this.
 *
 * drop is release, for a pool whose memory nobody uses later, as torch.cuda.MemPool: the last
 * one also calls hetmem_private_trim().
 *
 * hetmem_torch_private_pool() returns the pool's number, for the functions of
 * hetmem/snapshot.h with hetmem_torch_resource(). 0: there is no such pool.
 */
int hetmem_torch_begin_pool(int device, uint64_t first, uint64_t second,
			    hetmem_torch_filter filter, void *data);
void *hetmem_torch_end_pool(int device, uint64_t first, uint64_t second);
void hetmem_torch_release_pool(int device, uint64_t first, uint64_t second);
void hetmem_torch_drop_pool(int device, uint64_t first, uint64_t second);
uint64_t hetmem_torch_private_pool(int device, uint64_t first, uint64_t second);

/*
 * createOrIncrefPool() and getPoolUseCount(). retain adds a reference, as begin does, and
 * makes the pool if there is none. hetmem_torch_release_pool() drops the reference.
 * refs returns the number of references; 0: there is no such pool. Errors of retain:
 * -ENODEV: no such device;
 * those of hetmem_torch_try_alloc() and hetmem_private_retain().
 */
int hetmem_torch_retain_pool(int device, uint64_t first, uint64_t second);
int hetmem_torch_pool_refs(int device, uint64_t first, uint64_t second);

/*
 * Pools with memory of their own, to be called after a retain and before the first
 * allocation.
 *
 * over: the pool allocates from @res, which has private pools. Free such blocks with
 * hetmem_free() of @res. When the pool has ended, @gone (may be NULL) is called with @data,
 * without a lock. From then on @res is not used. Live blocks stay live.
 *
 * flags: allocations from the pool have the flags @flags. Only HETMEM_ALLOC_WHOLE is allowed.
 *
 * alloc: allocates from the pool, whatever the filters say.
 *
 * Errors:
 * -ENOENT: there is no such pool;
 * -EBUSY: over: the pool has a resource;
 * those of hetmem_private_retain() and hetmem_alloc_with().
 */
int hetmem_torch_pool_over(int device, uint64_t first, uint64_t second,
			   struct hetmem_resource *res, void (*gone)(void *data),
			   void *data);
int hetmem_torch_pool_flags(int device, uint64_t first, uint64_t second,
			    unsigned int flags);
int hetmem_torch_pool_alloc(int device, uint64_t first, uint64_t second,
			    size_t size, hetmem_stream stream, void **ptr);

/*
 * Allocations of the calling thread by these functions get @tag and @flags from now on, as in
 * struct hetmem_alloc_params. hetmem_sleep() and hetmem_wake() then find the blocks by @tag.
 * NULL and 0: none, as in a thread that did not call. @flags: 0 or HETMEM_ALLOC_SCRATCH. A
 * pool with memory of its own ignores both. Errors:
 * -EINVAL: @tag is empty or has more than 31 bytes; @flags.
 */
int hetmem_torch_region(const char *tag, unsigned int flags);

/*
 * Limits what the resource of @device holds to @max bytes, for setMemoryFraction(). max= of
 * the spec stays a limit: a higher @max has no effect beyond it. A later call replaces the
 * limit; hetmem_resource_set() of "max" ends it. Errors:
 * -ENODEV: no such device;
 * those of hetmem_resource_set().
 */
int hetmem_torch_set_limit(int device, uint64_t max);

/* Returns the resource that these functions use on @device, e.g. for statistics; NULL: none. */
struct hetmem_resource *hetmem_torch_resource(int device);

/*
 * For cupy.cuda.memory.CFunctionAllocator. @stream is the stream to allocate
 * on; NULL is the legacy stream. CuPy frees without a size or a stream: the free
 * takes effect after all work on the stream of the allocation and on recorded
 * streams.
 */
void *hetmem_cupy_alloc(void *stream, size_t size, int device);
void hetmem_cupy_free(void *stream, void *ptr, int device);

/*
 * Makes a data-memory handler for NumPy (NEP 49): *@handler becomes a PyDataMem_Handler.
 * Arrays of @least bytes or more get blocks of @res. Smaller arrays get memory of @other,
 * the PyDataMem_Handler in use before. A block is allocated on HETMEM_STREAM_HOST. It is
 * freed after all uses that were recorded for it. The handler, @res and @other must live as
 * long as the arrays, so they are never released. In a forked child that cannot use @res,
 * new arrays get memory of @other. Errors:
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
