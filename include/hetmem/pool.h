/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Pools beyond alloc and free: trimming, growing blocks, sleeping, captures, other
 * processes, statistics, access, and providers of the program's own. A resource
 * that is not a pool returns -EOPNOTSUPP from calls that make no sense for it.
 */
#ifndef HETMEM_POOL_H
#define HETMEM_POOL_H

#include <hetmem.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Reclaims freed memory whose work has completed. Does not block. Exception:
 * after about 2,000 streams were destroyed without hetmem_stream_retire(), it
 * synchronizes their contexts. Errors:
 * -EFAULT: a guard() found damage;
 * the errno of write(2), if a log() could not write.
 */
int hetmem_poll(struct hetmem_resource *res);

/*
 * Gives free memory back to the system until at most @keep bytes are held.
 * Waits for work on freed memory, up to wait= of the pool (1 s); other threads can
 * allocate and free during the wait. Keeps the blocks freed last on streams that were
 * destroyed without hetmem_stream_retire(). *@freed (may be NULL) becomes the bytes
 * given back.
 */
int hetmem_trim(struct hetmem_resource *res, size_t keep, size_t *freed);

/*
 * Grows the block @ptr of a pool to @size bytes at the same address, for use on
 * @stream, which counts as recorded from now on. It grows into the addresses that
 * were reserved for it, else into free memory behind it; over vmm() also into new
 * memory. After an error nothing has changed. Errors:
 * -ENOSPC: the addresses after the block are in use, or there are no more;
 * -EBUSY: the block belongs to a capture, or the pool is asleep;
 * -EOPNOTSUPP, -ENOMEM.
 */
int hetmem_grow(struct hetmem_resource *res, void *ptr, size_t size,
		hetmem_stream stream);

/*
 * The placement class of a block: the side that uses it. In unified and classes(),
 * blocks of two classes never share an aligned 2 MiB: so the CPU and the device do not
 * use one page by turns, and blocks that move together are contiguous.
 */
enum hetmem_placement {
	HETMEM_PLACEMENT_STREAM,	/* host on HETMEM_STREAM_HOST, else device */
	HETMEM_PLACEMENT_HOST,		/* the CPU, most of the time */
	HETMEM_PLACEMENT_DEVICE,	/* the device, most of the time */
	HETMEM_PLACEMENT_BOTH,		/* both, in turns or at one time */
	HETMEM_PLACEMENT_READ_MOSTLY,	/* both read, seldom write: each has a copy */
	HETMEM_PLACEMENT_STREAMING,	/* one writes, the other reads once: on the host */
};

/**
 * struct hetmem_alloc_params - an allocation with options
 * @size: sizeof(struct hetmem_alloc_params)
 * @bytes, @align, @stream: as of hetmem_alloc()
 * @reserve: 0, or bytes of addresses, @bytes at least, that hetmem_grow() can
 *	grow the block to. Pools over vmm() (@align: a granule at most), and over memory
 *	that costs nothing before it is touched: system(), host() and managed(), as
 *	in unified. There all addresses count as held, in max= and in headroom() too.
 * @private_pool: 0, or a private pool that is retained. Not with @reserve.
 * @flags: HETMEM_ALLOC_*
 * @placement: enum hetmem_placement. A resource without classes ignores it.
 * @priority: of a movable block, see hetmem_priority()
 *
 * Zero in a member that a later version adds means the behaviour of this version.
 */
struct hetmem_alloc_params {
	size_t size;
	size_t bytes;
	size_t align;
	hetmem_stream stream;
	size_t reserve;
	uint64_t private_pool;
	unsigned int flags;
	unsigned int placement;
	int priority;
};

/*
 * Flags. A resource that moves no blocks ignores them, and a pool those of blocks of at
 * most 1 MiB.
 */
#define HETMEM_ALLOC_MOVABLE	(1U << 0)	/* may be spilled, see <hetmem/move.h> */
#define HETMEM_ALLOC_KEEP	(1U << 1)	/* never, whatever movable= says */

/*
 * As hetmem_alloc(), with options. For a private pool @stream may be captured, with or
 * without hetmem_capture_begin(), and the library does not ask the driver for the
 * stream's id. Errors:
 * -EINVAL: a parameter makes no sense; the text names it;
 * -E2BIG: a later version's member is set;
 * -ENOENT: the private pool is not retained;
 * -ENOSPC: there are 65,535 pairs of private pool and stream;
 * -EOPNOTSUPP: not a pool (@private_pool), or over other memory (@reserve);
 * -EBUSY: @stream is being captured, and there is a @reserve; the pool sleeps;
 * -ENOMEM, -EOWNERDEAD.
 */
int hetmem_alloc_with(struct hetmem_resource *res,
		      const struct hetmem_alloc_params *params, void **ptr);

/*
 * Private pools: only allocations with the pool's number get its memory. They are for
 * the graphs of a framework that decides by itself which allocations belong to a
 * capture. @id is any number except 0. Captures have numbers of the same kind: a number
 * is used for a private pool or for captures, never for both.
 *
 * Until release, blocks freed on a stream serve allocations on the same stream,
 * compared by handle: the pool orders no streams and asks the driver nothing about
 * them. So memory may pass from one capture to another on one stream.
 * HETMEM_STREAM_UNKNOWN means the stream of the allocation. Blocks for which
 * hetmem_record_stream() was called are reused after release; exported ones never.
 *
 * Retain adds a reference; the first one makes the pool. The last release gives its
 * memory to all allocations, after @stream. The caller has ordered all uses of freed
 * blocks before @stream. Live blocks stay; free them with a stream. Errors:
 * -EINVAL: @id is 0;
 * -ENOENT: release: @id is not retained;
 * -EBUSY: retain: a capture has that number; release: another thread allocates
 *	from it, lists it, or restores a checkpoint;
 * -ENOSPC: 65,535 numbers, or pairs of number and stream, are not released;
 * -EOPNOTSUPP, -ENOMEM, -EOWNERDEAD.
 */
int hetmem_private_retain(struct hetmem_resource *res, uint64_t id);
int hetmem_private_release(struct hetmem_resource *res, uint64_t id,
			   hetmem_stream stream);

/**
 * struct hetmem_segment - a part of a block with a handle of its own
 * @base: its address
 * @offset: bytes from the start of the block
 * @length: bytes
 */
struct hetmem_segment {
	void *base;
	size_t offset;
	size_t length;
};

/*
 * Fills @segments (room for @nr) with the parts of [@ptr, @ptr + @size) that a
 * transport must register separately. Returns their number. Errors:
 * -ENOSPC: there are more than @nr.
 */
ssize_t hetmem_segments(struct hetmem_resource *res, const void *ptr,
			size_t size, struct hetmem_segment *segments,
			size_t nr);

/*
 * Pins the memory of @ptr to its addresses until the resource is destroyed:
 * it is neither remapped nor given back, even after a free. For transports
 * that register memory and cache the registration. Errors:
 * -EINVAL: @ptr is in no live block;
 * -EBUSY: the pool is asleep;
 * -EOPNOTSUPP.
 */
int hetmem_pin_comm(struct hetmem_resource *res, void *ptr);

/* Flags of hetmem_sleep(). */
#define HETMEM_SLEEP_DISCARD	0U	/* contents are lost */
#define HETMEM_SLEEP_KEEP	1U	/* contents are parked in host memory */

/*
 * Sleep synchronizes with all work of all devices. Then it gives back the memory of all
 * pools whose tag= is @tag (NULL: of all pools), allocated memory included. Addresses are
 * kept: an allocation returns -EBUSY, an access faults. Wake gives the addresses memory
 * again. After -ENOMEM only some have memory; call wake again. Pinned and exported memory
 * stays, with its contents.
 *
 * With HETMEM_SLEEP_KEEP, the contents of allocated memory are copied to page-locked host
 * memory before any device memory goes, and back by the wake: exactly as many bytes, rounded
 * up to 2 MiB. max_host= of the pool bounds that. After the wake, park= of it are kept for
 * the next sleep (a quarter of the host's available memory, if not given); each
 * hetmem_poll() gives back 64 MiB of the rest, hetmem_trim() all. A forked child lacks it.
 * If a sleep fails before device memory goes, nothing has changed. To sleep once more is no
 * error, and contents that are parked stay so.
 *
 * Other threads can free blocks meanwhile. Errors:
 * -EOPNOTSUPP: not a pool over vmm();
 * -EBUSY: the pool has comm=on, or a stream is being captured. If the pool does not know
 *	that stream, its capture is invalid now. With HETMEM_SLEEP_KEEP also: the pool is
 *	asleep without its contents;
 * -EINVAL: unknown flags;
 * -ENOMEM: of a wake: device memory; of a sleep: there is no room for the contents, and
 *	the text has the number of bytes that fit;
 * -EIO.
 */
int hetmem_sleep(struct hetmem_resource *res, const char *tag, unsigned int flags);
int hetmem_wake(struct hetmem_resource *res, const char *tag);

/*
 * Memory of captured graphs. Allocations on @stream between begin and end belong to
 * the graphs @id. Graphs can be launched many times, so after a free only @id reuses
 * that memory. Release ends this: all allocations can reuse the memory after @stream.
 * Several captures may share an @id if their graphs are launched one after the other,
 * in the order of the captures. Memory freed on one captured stream is not reused on
 * another before all captures have ended.
 *
 * Call begin before the driver's capture begins, for every stream that takes
 * part. The stream must not be destroyed before end. Errors:
 * -EBUSY: begin: @stream is between begin and end;
 * -EINVAL: end: @stream is not between begin and end;
 * -ENOENT: release: no such @id;
 * -ENOSPC: begin: 65,535 pairs of @id and stream are not released. Private
 *	pools count too.
 */
int hetmem_capture_begin(struct hetmem_resource *res, hetmem_stream stream,
			 uint64_t id);
int hetmem_capture_end(struct hetmem_resource *res, hetmem_stream stream,
		       uint64_t id);
int hetmem_capture_release(struct hetmem_resource *res, hetmem_stream stream,
			   uint64_t id);

/*
 * Exports the memory of @ptr to other processes: one descriptor for each
 * segment, to be sent over a UNIX socket (SCM_RIGHTS). Fills @fds and
 * @segments (room for @nr) and returns their number. The caller closes the
 * descriptors. The memory is released once @ptr is freed and every importer
 * has closed it. Errors:
 * -ENOSPC: there are more segments than @nr;
 * -EBUSY: the pool is asleep;
 * -EOPNOTSUPP: not a pool over vmm(export=fd).
 */
ssize_t hetmem_export(struct hetmem_resource *res, void *ptr, int *fds,
		      struct hetmem_segment *segments, size_t nr);

/*
 * Maps exported memory for @device. @segments come in the exporter's order;
 * their base is ignored. The descriptors stay the caller's. Errors:
 * -ENODEV, -ENOMEM, -EOPNOTSUPP.
 *
 * hetmem_import_close() unmaps *@ptr; all uses must be complete.
 */
int hetmem_import(struct hetmem *hm, int device, const int *fds,
		  const struct hetmem_segment *segments, size_t nr,
		  void **ptr);
int hetmem_import_close(struct hetmem *hm, void *ptr);

/**
 * struct hetmem_resource_stats - counters of a resource
 * @size: in: sizeof(struct hetmem_resource_stats)
 * @live: allocated blocks
 * @requested: requested bytes of live blocks; 1 for a block of size 0
 * @requested_peak: highest value of @requested. Never more than was requested at once,
 *	except by frees under way. Can be less where several streams are used.
 * @reserved: bytes of physical memory held: mapped, cached, waiting for
 *	unmap, exported
 * @reserved_peak: highest value of @reserved
 * @metadata: bytes of host memory for bookkeeping
 * @allocs: successful allocations
 * @frees: successful frees
 * @failed: failed allocations
 * @driver_calls: made by the resource
 * @host_wait_ns: nanoseconds that calls waited for a device
 * @parked: bytes of host memory for contents, see hetmem_sleep()
 * @spilled: bytes of blocks that are on the host, see hetmem_spill(). A freed block counts
 *	until the pool takes its host memory back. @reserved does not include them
 * @spill_host: bytes of host memory for that, kept ones included
 * @spill_host_peak: highest value of @spill_host
 * @spilled_total, @fetched_total: bytes that were moved, each way
 */
struct hetmem_resource_stats {
	size_t size;
	uint64_t live;
	uint64_t requested;
	uint64_t requested_peak;
	uint64_t reserved;
	uint64_t reserved_peak;
	uint64_t metadata;
	uint64_t allocs;
	uint64_t frees;
	uint64_t failed;
	uint64_t driver_calls;
	uint64_t host_wait_ns;
	uint64_t parked;
	uint64_t spilled;
	uint64_t spill_host;
	uint64_t spill_host_peak;
	uint64_t spilled_total;
	uint64_t fetched_total;
};

/*
 * Statistics of an adaptor are sums of the pools and providers below it. Zones of a
 * guard() count as requested bytes there. @failed includes allocations that fallback()
 * or retry() then served.
 */
int hetmem_resource_stats(struct hetmem_resource *res,
			  struct hetmem_resource_stats *stats);

/*
 * Gives the parameter @name of a spec the value @value, which is written as in
 * the spec: hetmem_resource_set(res, "max", "60%"). These can change: max, min,
 * wait, decay and cache of pool; max of limit; times and wait of retry.
 *
 * The first resource from the top that has the parameter takes it; "pool.max"
 * names the kind. Of several resources side by side (fallback, binning), all
 * that have it take it, or none.
 *
 * A lower max takes no live memory away. A pool gives free memory back until at
 * most max is held, and waits for work on that memory, up to twice wait=. A
 * pool over vmm() has addresses for 16 times its first max and twice its spill: give
 * reserve= to raise max further. A higher min keeps memory, but allocates none. Errors:
 * -EINVAL: no such parameter, or a bad value; the text has the valid ones;
 * -EOPNOTSUPP: the parameter cannot change, or no resource of @res has it;
 * -EOWNERDEAD.
 */
int hetmem_resource_set(struct hetmem_resource *res, const char *name,
			const char *value);

/**
 * struct hetmem_access - the processors that can use the memory of a resource
 * @size: in: sizeof(struct hetmem_access)
 * @host: 1: the CPU can use every block
 * @some_host: 1: the CPU can use some blocks. Differs from @host where
 *	fallback() or binning() mixes memory
 * @devices: bit N: device N can use every block
 * @some_devices: bit N: device N can use some blocks
 *
 * A device counts if it uses the block at the address that hetmem_alloc() returned,
 * without a driver call before. If one of the devices has no concurrent managed access
 * (hetmem_device_props()), the CPU can use managed memory only while no device works.
 */
struct hetmem_access {
	size_t size;
	int host;
	int some_host;
	uint64_t devices;
	uint64_t some_devices;
};

/* Errors: -EOWNERDEAD. */
int hetmem_resource_access(struct hetmem_resource *res,
			   struct hetmem_access *access);

/*
 * A provider of the program's own: callbacks that hand out memory. The spec
 * "custom(name=N)" makes a resource of it, one region for each allocation;
 * "pool(custom(name=N),max=1G)" cuts its memory into blocks, in stream order.
 */

/* Version of the callbacks of struct hetmem_provider. */
#define HETMEM_PROVIDER_VERSION	1

/* The CPU can use the memory. */
#define HETMEM_PROVIDER_HOST	(1U << 0)
/*
 * A forked child has the memory, copied on write, and may call @alloc and
 * @free. Without this flag calls of a resource return -EOWNERDEAD there, and no callback
 * is called. Not for memory that is mapped.
 */
#define HETMEM_PROVIDER_FORK	(1U << 1)

/**
 * struct hetmem_provider - memory of the program's own
 * @size: sizeof(struct hetmem_provider)
 * @version: HETMEM_PROVIDER_VERSION
 * @flags: HETMEM_PROVIDER_*
 * @device: ordinal of the device whose streams order the uses; -1: the host's
 * @devices: bit N: device N can use the memory; @device is implied
 * @granularity: bytes, a power of two, 512 at least; for memory that is
 *	mapped, a page at least
 * @total: bytes in all, for percentages of a spec; 0: not known. Required for memory
 *	that is mapped: the pool reserves several times as many addresses.
 *
 * Either whole regions:
 * @alloc: allocates @size bytes at a multiple of @granularity; sets *@ptr
 * @free: frees one region. Its uses are complete.
 *
 * or addresses and memory apart, for a pool only:
 * @reserve: reserves @size bytes of addresses at a multiple of @align; sets
 *	*@addr
 * @unreserve: releases one reservation. Nothing is mapped there.
 * @create: makes @size bytes of memory without an address; sets *@handle
 * @release: the library no longer needs the handle. The memory is freed with its
 *	last mapping.
 * @map: maps the whole handle at @addr, readable and writable. A handle can be
 *	mapped at several addresses at once.
 * @unmap: undoes one @map
 *
 * Set the callbacks of one kind; the others are NULL. Every size is a multiple
 * of @granularity. @data is that of hetmem_provider_register().
 *
 * Return values:
 * 0: success;
 * -ENOMEM: there is no memory; the pool tries its other remedies;
 * anything else: failure, which becomes -EIO.
 *
 * A callback that fails changes nothing. If one of @free, @unreserve, @release
 * and @unmap fails, the library calls it again, at the latest in destroy. A
 * region or reservation that is not aligned becomes -EIO, and is freed at once.
 * One that overlaps another becomes -EIO, and is not freed.
 *
 * Rules for callbacks:
 * - Any thread can call them, several at a time.
 * - The pool can hold a lock during the call. A callback must not wait for a
 *   thread that uses the resource, must return, and should be quick.
 * - A callback must not use the resource that it is called for: every call
 *   returns -EDEADLK. Other resources are allowed. Do not build a circle of
 *   two resources whose callbacks use each other.
 * - If @device is not -1, its primary context is current, and the thread's
 *   capture mode is relaxed. A callback leaves the context as it finds it.
 */
struct hetmem_provider {
	size_t size;
	unsigned int version;
	unsigned int flags;
	int device;
	uint64_t devices;
	size_t granularity;
	uint64_t total;
	int (*alloc)(void *data, size_t size, void **ptr);
	int (*free)(void *data, void *ptr, size_t size);
	int (*reserve)(void *data, size_t size, size_t align, void **addr);
	int (*unreserve)(void *data, void *addr, size_t size);
	int (*create)(void *data, size_t size, uint64_t *handle);
	int (*release)(void *data, uint64_t handle);
	int (*map)(void *data, void *addr, size_t size, uint64_t handle);
	int (*unmap)(void *data, void *addr, size_t size);
};

/*
 * Registers @provider, which is copied, as @name: up to 31 letters, digits, '-'
 * and '_'. @data must live as long as the registration. hetmem_close() ends it.
 * Errors:
 * -EINVAL: a member makes no sense, or callbacks are missing; the text names it;
 * -E2BIG: a larger struct than this library knows has members set;
 * -EOPNOTSUPP: @provider->version is not known;
 * -ENODEV: no such device;
 * -EEXIST: @name is registered;
 * -ENOMEM.
 */
int hetmem_provider_register(struct hetmem *hm, const char *name,
			     const struct hetmem_provider *provider,
			     void *data);

/*
 * Errors:
 * -ENOENT: @name is not registered;
 * -EBUSY: a resource is made of it.
 */
int hetmem_provider_unregister(struct hetmem *hm, const char *name);

#ifdef __cplusplus
}
#endif

#endif /* HETMEM_POOL_H */
