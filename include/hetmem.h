/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * libhetmem - one allocator for memory that CPUs and GPUs share.
 *
 * Most programs need these twelve calls. They are the first below, in this order:
 *
 *	hetmem_open(&hm, NULL)				open the library
 *	hetmem_close(hm)
 *	hetmem_last_error()				the text of the last error
 *
 *	hetmem_resource_create(hm, spec, &res)		make a pool
 *	hetmem_resource_destroy(res)
 *	hetmem_alloc(res, size, 0, stream, &ptr)	allocate for use on a stream
 *	hetmem_free(res, ptr, size, stream)		free after the stream's work
 *	hetmem_record_stream(res, ptr, stream)		another stream uses the block
 *	hetmem_stream_retire(res, stream)		before a stream is destroyed
 *	hetmem_resource_stats(res, &stats)
 *
 *	hetmem_prefetch(hm, ptr, size, location, stream, &moved)	move memory
 *	hetmem_residency(hm, ptr, size, runs, NULL, nr, &next)		where it is
 *
 * Features and devices follow them. This header includes the rest:
 *
 *	hetmem/pool.h		more about pools: the current resource, trim, grow, sleep,
 *				capture, export; who can use the memory; memory of your own
 *	hetmem/snapshot.h	what a pool holds; checkpoints of private pools
 *	hetmem/adaptor.h	what stats(), retry(), log() and history() of a spec add
 *	hetmem/place.h		platforms, advice, attached memory, memory that is left
 *	hetmem/move.h		blocks that move to the host and back
 *	hetmem/hint.h		asking another process to move its memory
 *	hetmem/keep.h		memory that outlives the process that made it
 *	hetmem/framework.h	entry points for PyTorch, CuPy and NumPy
 *
 * Errors: a function that can fail returns 0 or a negative errno, and
 * hetmem_last_error() has the text. Comments list the errors of each function.
 * In addition any function returns -EINVAL for a NULL or senseless argument.
 *
 * Parameter structs begin with their size: set it to sizeof and all other
 * members to 0 (an initializer does both), so that the struct can grow.
 *
 * Threads: any number of threads may call any function at any time.
 * Exceptions: hetmem_close() and hetmem_resource_destroy() must be the last
 * use of their argument.
 *
 * Fork: in a child, memory is copied on write, functions that need a device or
 * the kernel module return -EOWNERDEAD, and hetmem_close() only releases host
 * memory.
 */
#ifndef HETMEM_H
#define HETMEM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <linux/hetmem.h>	/* HETMEM_LOC(), HETMEM_WHY_*, struct hetmem_run */

#ifdef __cplusplus
extern "C" {
#endif

#define HETMEM_API_VERSION	1

/* The library, opened. */
struct hetmem;

/**
 * struct hetmem_params - how to open
 * @size: sizeof(struct hetmem_params)
 * @driver: "cuda", "soft", or NULL. NULL: HETMEM_DRIVER of the environment
 *	(ignored in a set-user-ID program). If HETMEM_DRIVER is not set: CUDA if
 *	libcuda.so.1 has a device, else no device. Host memory always works.
 * @module_path: device node of the module; NULL: /dev/hetmem; "": none
 */
struct hetmem_params {
	size_t size;
	const char *driver;
	const char *module_path;
};

/*
 * Opens the library, the kernel module and the driver. A missing module is no
 * error. A missing driver is an error only if @params or HETMEM_DRIVER names it.
 * hetmem_feature() reports what is missing. @params may be NULL. Errors:
 * -EINVAL: unknown driver name;
 * -ENODEV: the named driver is missing;
 * -ENOMEM.
 */
int hetmem_open(struct hetmem **hm, const struct hetmem_params *params);

/* Closes the library. Memory that is still allocated stays valid. NULL does nothing. */
void hetmem_close(struct hetmem *hm);

/* Returns the calling thread's last error: one line without a newline, never NULL. */
const char *hetmem_last_error(void);

/*
 * Resources: a program allocates memory from a resource. A spec such as
 * "stats(pool(vmm(device=0),max=90%))" describes a resource;
 * `hetmem spec --help` has the grammar.
 *
 * Streams: a program may use memory on the stream of the allocation, and on
 * streams ordered after that stream. A free never waits. Before the free, order
 * its stream after all uses, or report the uses by hetmem_record_stream(). The
 * host is a stream of its own: the CPU uses memory that is allocated or freed on
 * HETMEM_STREAM_HOST at once. Call hetmem_stream_retire() before you destroy a
 * stream.
 *
 * HETMEM_STREAM_PER_THREAD means the calling thread's stream in every call. A
 * thread retires this stream before it exits. To order another thread after it,
 * use the legacy stream, which waits for all streams without
 * CU_STREAM_NON_BLOCKING.
 */
struct hetmem_resource;

/* A stream of the driver in use (CUstream). */
typedef void *hetmem_stream;

/* The driver's own streams: the legacy stream, and the calling thread's stream. */
#define HETMEM_STREAM_LEGACY	((hetmem_stream)0x1)
#define HETMEM_STREAM_PER_THREAD ((hetmem_stream)0x2)
/* The CPU. */
#define HETMEM_STREAM_HOST	((hetmem_stream)-1)
/* For free: the stream of the allocation, and all recorded streams. */
#define HETMEM_STREAM_UNKNOWN	((hetmem_stream)-2)

/* Minimum alignment of an allocation, bytes. */
#define HETMEM_ALIGNMENT	512

/*
 * Makes the resource that @spec describes. NULL: HETMEM_RESOURCE of the
 * environment (ignored in a set-user-ID program), or "device-pool" if that is
 * not set. @hm must stay open until the resource is destroyed. Errors:
 * -EINVAL: @spec is wrong; the text points at the character;
 * -EOPNOTSUPP: this machine or driver cannot provide the resource;
 * -ENODEV: no such device;
 * -ENOMEM.
 */
int hetmem_resource_create(struct hetmem *hm, const char *spec,
			   struct hetmem_resource **res);

/*
 * Synchronizes with all work on the memory and releases everything, including
 * blocks that are still allocated. Returns the number of such blocks;
 * hetmem_last_error() names the first one. In check mode, and if the spec has a
 * guard(), a later use of @res returns -EINVAL until hetmem_close().
 */
ssize_t hetmem_resource_destroy(struct hetmem_resource *res);

/*
 * Allocates @size bytes at a multiple of @align, a power of two, for use on
 * @stream. The contents are undefined. An @align below HETMEM_ALIGNMENT, also 0,
 * means HETMEM_ALIGNMENT. @size 0 returns a pointer that can only be freed.
 * Errors:
 * -ENOMEM: the text lists what was tried;
 * -EBUSY: the pool is asleep, or @stream is being captured without
 *	hetmem_capture_begin();
 * -EOWNERDEAD.
 */
int hetmem_alloc(struct hetmem_resource *res, size_t size, size_t align,
		 hetmem_stream stream, void **ptr);

/*
 * Frees @ptr, a pointer that hetmem_alloc(), hetmem_alias() or hetmem_replicate() returned, with
 * the replicas of a block. @size is the requested size, or 0 if unknown. NULL does nothing. After
 * an error nothing has changed. Errors:
 * -EINVAL: @ptr is not allocated here, or @size is wrong; an alias, a replica, or a block with
 *	replicas: @stream is unknown;
 * -EBUSY: memory of a provider without a pool, or of fixed(): a stream that uses the
 *	memory is being captured; a block with replicas: @stream is, or another thread works on
 *	its replicas.
 */
int hetmem_free(struct hetmem_resource *res, void *ptr, size_t size,
		hetmem_stream stream);

/*
 * Reports a use of @ptr on a stream other than the stream of the allocation. A
 * later free takes effect after this use, too. Errors:
 * -EINVAL: @ptr is not allocated here;
 * -EBUSY: @stream is being captured without hetmem_capture_begin(). Exception:
 *	blocks of private pools are recorded;
 * -ENOMEM.
 */
int hetmem_record_stream(struct hetmem_resource *res, void *ptr,
			 hetmem_stream stream);

/* Call it before you destroy @stream, so that memory freed on @stream stays reusable. */
int hetmem_stream_retire(struct hetmem_resource *res, hetmem_stream stream);

/**
 * struct hetmem_resource_stats - counters of a resource
 * @size: in: sizeof(struct hetmem_resource_stats)
 * @live: allocated blocks
 * @requested: requested bytes of live blocks; 1 for a block of size 0
 * @requested_peak: highest value of @requested. Frees under way can make it too high.
 *	With several streams it can be too low. With tags it is the sum of the tags' highest
 *	values, which can be too high
 * @reserved: bytes of physical memory held: mapped, cached, waiting for
 *	unmap, exported
 * @reserved_peak: highest value of @reserved
 * @metadata: bytes of host memory for bookkeeping
 * @allocs: successful allocations
 * @frees: successful frees
 * @failed: failed allocations
 * @driver_calls: driver calls of the resource
 * @host_wait_ns: nanoseconds that calls waited for a device
 * @parked: bytes of host memory for parked contents, see hetmem_sleep(); @parked_file has
 *	those in files
 * @spilled: bytes of blocks that are on the host, see hetmem_spill(). A freed block counts
 *	until the pool takes its host memory back. @reserved excludes these bytes
 * @spill_host: bytes of host memory for spilled blocks, including memory kept for reuse
 * @spill_host_peak: highest value of @spill_host
 * @spilled_total, @fetched_total: bytes moved to the host, bytes moved back
 * @spilled_peak: highest value of @spilled
 * @parked_file: bytes of parked contents in files, see park=PATH of a pool
 * @pressures: calls of functions of hetmem_on_pressure()
 * @addresses: bytes of live sparse blocks, committed or not, see hetmem_commit()
 * @replicas: bytes of memory of replicas, see hetmem_replicate(). @reserved excludes these bytes
 *
 * Programs that were built before @parked_file, @pressures, @addresses or @replicas was added do
 * not get it.
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
	uint64_t spilled_peak;
	uint64_t parked_file;
	uint64_t pressures;
	uint64_t addresses;
	uint64_t replicas;
};

/*
 * Reads the counters. The counters of an adaptor are sums over the pools and providers
 * below it. The zones of a guard() count as requested bytes. @failed includes failed
 * attempts after which fallback(), retry() or watermark() served the allocation.
 */
int hetmem_resource_stats(struct hetmem_resource *res,
			  struct hetmem_resource_stats *stats);

/*
 * Location of memory, and moves.
 *
 * A location to move to is HETMEM_LOC(HETMEM_DEVICE, ordinal), with the ordinal of the
 * driver's device, or HETMEM_LOC(HETMEM_HOST, node). A device that only the kernel
 * module knows has the ordinal 0x8000 + its id in the module. hetmem_residency() also
 * reports the other kinds of <linux/hetmem.h>.
 */

/**
 * struct hetmem_moved - what a call did about the location of memory
 * @size: in: sizeof(struct hetmem_moved)
 * @how: the mover: "module", "driver", "move_pages", "mbind", "none"; never NULL
 * @reason: if @how is "none", or no page moved: the reason, in words. Otherwise the action
 *	that replaced the request, "" if the request was carried out
 * @moved: pages moved, as far as known when the call returns
 * @already: pages that were at the location before
 * @not_moved: pages that stayed where they were
 * @why: HETMEM_WHY_* of the first page of @not_moved
 * @why_addr: address of that page
 *
 * The driver works asynchronously and reports no counts.
 */
struct hetmem_moved {
	size_t size;
	const char *how;
	const char *reason;
	uint64_t moved;
	uint64_t already;
	uint64_t not_moved;
	uint32_t why;
	uint32_t reserved;
	uint64_t why_addr;
};

/*
 * Moves all pages that overlap [@ptr, @ptr + @size), any memory of this process, to
 * @location (a host node may be HETMEM_NODE_ANY). @moved may be NULL. The mover is
 * - the module, to its devices and from them to the host. Synchronous; @stream is
 *   ignored;
 * - move_pages(2), between host nodes. Synchronous; @stream is ignored;
 * - cuMemPrefetchAsync() on @stream, if the driver can move this memory.
 * If none of these can move the memory, @moved->how is "none", and the call returns 0. On
 * a CDMM device the driver moves memory that is not managed to the host node nearest to
 * the device; @moved->reason reports this. Pages that the driver cannot move count in
 * @moved->not_moved: holes and, with HMM, files, shared memory and pages of hugetlbfs.
 * If the range does not fit on the device, a headroom() of a spec can cut off its end.
 * That end counts in @moved->not_moved, too. @moved->reason has the number of bytes that
 * fit, and is valid until the thread's next prefetch. Errors:
 * -EINVAL: bad range or location; the range begins in one kind of memory and ends in
 *	another; the driver refuses the range or the stream;
 * -ENODEV: no such device;
 * -EOWNERDEAD: a forked child's @hm;
 * -EIO: the driver failed;
 * -ENOMEM: no memory; or a headroom() leaves no room: hetmem_last_error() has the number
 *	of bytes that fit;
 * -EINTR: a signal interrupted the module.
 */
int hetmem_prefetch(struct hetmem *hm, const void *ptr, size_t size,
		    uint32_t location, hetmem_stream stream,
		    struct hetmem_moved *moved);

/* The source of a run's location. */
enum hetmem_source {
	HETMEM_SOURCE_UNKNOWN,		/* none: the location is HETMEM_UNKNOWN */
	HETMEM_SOURCE_MODULE,		/* the kernel, through hetmem.ko */
	HETMEM_SOURCE_MOVE_PAGES,	/* the kernel, by move_pages(2) */
	HETMEM_SOURCE_REQUEST,		/* the driver: the target of the last prefetch */
	HETMEM_SOURCE_DRIVER,		/* the driver: the device whose memory it is */
};

/*
 * Reports the locations of the pages of [@ptr, @ptr + @size). Fills @runs (room
 * for @nr) and returns their number. *@next becomes the first address that is not
 * reported. It is the page-aligned end once everything is reported.
 *
 * With the module, runs report where the kernel has the pages. Without the module,
 * move_pages(2) finds host nodes only. A node that is a device's memory (ATS) is reported
 * as that device. Only the module reports pages that another driver's device shares
 * coherently (CDMM), as HETMEM_COHERENT.
 *
 * @sources is NULL or has room for @nr values of enum hetmem_source, the source of each
 * run. With @sources, the library asks the driver about runs that the kernel does not
 * know. The driver returns the target of the last prefetch of the whole run; pages may
 * have moved since. Of device memory, that of pool(vmm) included, it returns the device, for
 * each 2 MiB: a run ends where another device has the memory. Without @sources such a run
 * stays HETMEM_UNKNOWN. hetmem_advised() reports the advice about the same range.
 *
 * Errors:
 * -EINVAL: a bad range;
 * -EOWNERDEAD: a forked child's @hm;
 * -ENOMEM, -EIO, and others of the kernel, if nothing was found before.
 */
ssize_t hetmem_residency(struct hetmem *hm, const void *ptr, size_t size,
			 struct hetmem_run *runs, uint8_t *sources, size_t nr,
			 uintptr_t *next);

/* Features of this machine. */
enum hetmem_feature_id {
	HETMEM_FEATURE_MODULE,		/* hetmem.ko answers */
	HETMEM_FEATURE_RESIDENCY,	/* locations of pages, from the kernel */
	HETMEM_FEATURE_CUDA,		/* libcuda.so.1 with a device */
	HETMEM_FEATURE_DEVICE,		/* any device: CUDA, emulated, soft */
	HETMEM_FEATURE_PAGEABLE,	/* devices reach malloc'd memory */
	HETMEM_FEATURE_MIGRATION,	/* malloc'd memory moves to devices */
	HETMEM_FEATURE_MANAGED,		/* managed memory */
	HETMEM_FEATURE_VMM,		/* virtual memory management calls */
	HETMEM_FEATURE_NUMA,		/* more than one host node */
	HETMEM_FEATURE_NR
};

/**
 * struct hetmem_feature - a feature that this machine has or lacks
 * @name: one word
 * @available: 1 or 0
 * @reason: the provider of the feature; or why it is missing and what to do; never NULL
 */
struct hetmem_feature {
	const char *name;
	int available;
	const char *reason;
};

/*
 * Reports one feature. The strings live until hetmem_close(). A program compiled for a
 * later library can pass an id that this library does not know. Errors:
 * -EINVAL: no such id.
 */
int hetmem_feature(struct hetmem *hm, enum hetmem_feature_id id,
		   struct hetmem_feature *feature);

/* How a device and the CPU share memory. hetmem_platform() has more, hetmem_evidence() why. */
enum hetmem_platform_kind {
	HETMEM_PLATFORM_NONE,		/* not at the same time */
	HETMEM_PLATFORM_MANAGED,	/* managed memory only */
	HETMEM_PLATFORM_HMM,		/* all memory; pages move by faults */
	HETMEM_PLATFORM_ATS,		/* all memory; the device's is a NUMA node */
	HETMEM_PLATFORM_CDMM,		/* all memory; the device's is no NUMA node */
	HETMEM_PLATFORM_INTEGRATED,	/* the device and the CPU have the same memory */
};

/**
 * struct hetmem_device_props - one device of the driver in use
 * @size: in: sizeof(struct hetmem_device_props)
 * @platform: enum hetmem_platform_kind
 * @managed: concurrent managed access
 * @vmm: virtual memory management calls
 * @host_node: nearest NUMA node, -1 if unknown
 * @total: bytes of device memory
 * @granularity: bytes, of VMM handles; 0 without VMM
 * @module_id: id of the device in hetmem.ko, -1 if it is not registered there
 * @name: NUL-terminated
 */
struct hetmem_device_props {
	size_t size;
	int platform;
	int managed;
	int vmm;
	int host_node;
	uint64_t total;
	uint64_t granularity;
	int module_id;
	char name[96];
};

/* Returns the number of devices of the driver in use. */
int hetmem_device_count(struct hetmem *hm);

/* Fills @props. Errors: -ENODEV: no such device. */
int hetmem_device_props(struct hetmem *hm, int device,
			struct hetmem_device_props *props);

/* Returns the name of the driver in use: "cuda", "soft", "none". */
const char *hetmem_driver_name(struct hetmem *hm);

#ifdef __cplusplus
}
#endif

#include <hetmem/adaptor.h>
#include <hetmem/framework.h>
#include <hetmem/hint.h>
#include <hetmem/keep.h>
#include <hetmem/move.h>
#include <hetmem/place.h>
#include <hetmem/pool.h>
#include <hetmem/snapshot.h>

#endif /* HETMEM_H */
