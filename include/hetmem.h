/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * libhetmem - one allocator for memory that CPUs and GPUs share.
 *
 * This header has the calls that most programs need, and includes the rest:
 *
 *	hetmem/pool.h		more about pools: trim, grow, sleep, capture, export;
 *				who can use the memory; memory of your own
 *	hetmem/snapshot.h	what a pool holds; checkpoints of private pools
 *	hetmem/adaptor.h	what stats(), retry(), log() and history() of a spec
 *				add
 *	hetmem/place.h		where memory is, and moving it
 *	hetmem/hint.h		asking another process to move its memory
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
 * @driver: "cuda", "soft", or NULL: HETMEM_DRIVER of the environment (ignored
 *	in a set-user-ID program). If that is not set, CUDA if libcuda.so.1 has
 *	a device. Otherwise there is no device; host memory works.
 * @module_path: device node of the module; NULL: /dev/hetmem; "": none
 */
struct hetmem_params {
	size_t size;
	const char *driver;
	const char *module_path;
};

/*
 * Opens the library, the kernel module and the driver. A missing module is no
 * error, nor is a missing driver that was not asked for: hetmem_feature()
 * reports both. @params may be NULL. Errors:
 * -EINVAL: unknown driver name;
 * -ENODEV: the driver that was asked for is missing;
 * -ENOMEM.
 */
int hetmem_open(struct hetmem **hm, const struct hetmem_params *params);

/* Memory that is still allocated stays valid. NULL does nothing. */
void hetmem_close(struct hetmem *hm);

/* The calling thread's last error: one line without a newline, never NULL. */
const char *hetmem_last_error(void);

/*
 * Resources: where a program gets memory from. A resource is made from a spec
 * such as "stats(pool(vmm(device=0),max=90%))"; `hetmem spec --help` has the
 * grammar.
 *
 * Streams: memory may be used on the stream that it was allocated on, and on
 * streams ordered after that. A free never waits. Before it, the caller orders
 * the free's stream after all uses, or reports them by
 * hetmem_record_stream(). The host is a stream of its own: memory allocated or
 * freed on HETMEM_STREAM_HOST is used by the CPU at once. Call
 * hetmem_stream_retire() before you destroy a stream.
 *
 * HETMEM_STREAM_PER_THREAD means the calling thread's stream in every call; a
 * thread retires it before it exits. To order another thread after it, use the
 * legacy stream, which waits for all streams without CU_STREAM_NON_BLOCKING.
 */
struct hetmem_resource;

/* A stream of the driver in use (CUstream). */
typedef void *hetmem_stream;

/* The driver's own streams: the legacy one, and the calling thread's. */
#define HETMEM_STREAM_LEGACY	((hetmem_stream)0x1)
#define HETMEM_STREAM_PER_THREAD ((hetmem_stream)0x2)
/* The CPU. */
#define HETMEM_STREAM_HOST	((hetmem_stream)-1)
/* For free: the stream of the allocation, and all that were recorded. */
#define HETMEM_STREAM_UNKNOWN	((hetmem_stream)-2)

/* Least alignment of an allocation, bytes. */
#define HETMEM_ALIGNMENT	512

/*
 * Makes the resource that @spec describes. NULL: HETMEM_RESOURCE of the
 * environment (ignored in a set-user-ID program), "device-pool" if that is not
 * set. @hm must stay open until the resource is destroyed. Errors:
 * -EINVAL: @spec is wrong; the text points at the character;
 * -EOPNOTSUPP: this machine or driver cannot;
 * -ENODEV: no such device;
 * -ENOMEM.
 */
int hetmem_resource_create(struct hetmem *hm, const char *spec,
			   struct hetmem_resource **res);

/*
 * Writes what the names in @spec (NULL: as above) stand for on this machine, and why:
 * one line for each, such as "unified is classes(managed(device=0)): device 0 is managed:
 * ...", into @text, @len bytes. "": @spec has no name. Makes nothing. Errors:
 * -EINVAL: @spec is wrong; the text points at the character;
 * -EOPNOTSUPP: this machine can have no such resource;
 * -ENODEV: no such device;
 * -ENOSPC: @len is too small, and @text is "";
 * -ENOMEM.
 */
int hetmem_resource_explain(struct hetmem *hm, const char *spec, char *text,
			    size_t len);

/*
 * Synchronizes with all work on the memory and releases everything, blocks
 * still allocated included. Returns the number of such blocks;
 * hetmem_last_error() names the first. In check mode, and if the spec has a
 * guard(), a later use of @res returns -EINVAL until hetmem_close().
 */
ssize_t hetmem_resource_destroy(struct hetmem_resource *res);

/*
 * Allocates @size bytes at a multiple of @align, a power of two, for use on
 * @stream. The contents are undefined. @align 0 means HETMEM_ALIGNMENT, and so
 * does less. @size 0 returns a pointer that can only be freed. Errors:
 * -ENOMEM: the text tells what was tried;
 * -EBUSY: the pool is asleep, or @stream is being captured without
 *	hetmem_capture_begin();
 * -EOWNERDEAD.
 */
int hetmem_alloc(struct hetmem_resource *res, size_t size, size_t align,
		 hetmem_stream stream, void **ptr);

/*
 * Frees @ptr, a pointer that hetmem_alloc() returned. @size is the requested
 * size, or 0 if unknown. NULL does nothing. After an error nothing has
 * changed. Errors:
 * -EINVAL: @ptr is not allocated here, or @size is wrong.
 */
int hetmem_free(struct hetmem_resource *res, void *ptr, size_t size,
		hetmem_stream stream);

/*
 * Reports a use of @ptr on a stream other than that of the allocation: a free
 * takes effect after it too. Errors:
 * -EINVAL: @ptr is not allocated here;
 * -EBUSY: @stream is being captured without hetmem_capture_begin(). Blocks of
 *	private pools are recorded all the same;
 * -ENOMEM.
 */
int hetmem_record_stream(struct hetmem_resource *res, void *ptr,
			 hetmem_stream stream);

/* Call it before @stream is destroyed: memory freed on it stays reusable. */
int hetmem_stream_retire(struct hetmem_resource *res, hetmem_stream stream);

/*
 * The current resource of @device (-1: of the host), for code that was not
 * given a resource: the one set by hetmem_resource_set_current(), otherwise
 * one made on first use. That one is what hetmem_resource_create() makes of a
 * NULL spec on @device ("pool(host)" for the host); hetmem_close() destroys
 * it. Errors: -ENODEV: no such device; those of hetmem_resource_create().
 */
int hetmem_resource_current(struct hetmem *hm, int device,
			    struct hetmem_resource **res);

/*
 * Makes @res the current resource of @device; it stays the caller's. NULL:
 * none, as at first. *@old (may be NULL) becomes the one before, NULL if there
 * was none or it was the library's own. Set another before you destroy @res.
 * Errors:
 * -ENODEV: no such device;
 * -EINVAL: @res belongs to another struct hetmem.
 */
int hetmem_resource_set_current(struct hetmem *hm, int device,
				struct hetmem_resource *res,
				struct hetmem_resource **old);

/* What this machine can do. */
enum hetmem_feature_id {
	HETMEM_FEATURE_MODULE,		/* hetmem.ko answers */
	HETMEM_FEATURE_RESIDENCY,	/* where pages really are */
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
 * struct hetmem_feature - one thing that this machine can or cannot do
 * @name: one word
 * @available: 1 or 0
 * @reason: what provides it; or why it is missing and what to do; never NULL
 */
struct hetmem_feature {
	const char *name;
	int available;
	const char *reason;
};

/*
 * The strings live until hetmem_close(). Errors: -EINVAL: no such id. So a
 * program compiled for a later library can ask.
 */
int hetmem_feature(struct hetmem *hm, enum hetmem_feature_id id,
		   struct hetmem_feature *feature);

/* How a device and the CPU share memory; hetmem_platform() tells why. */
enum hetmem_platform_kind {
	HETMEM_PLATFORM_NONE,		/* not at the same time */
	HETMEM_PLATFORM_MANAGED,	/* managed memory only */
	HETMEM_PLATFORM_HMM,		/* all memory; pages move by faults */
	HETMEM_PLATFORM_ATS,		/* all memory; the device's is a NUMA node */
	HETMEM_PLATFORM_CDMM,		/* all memory; the device's is no NUMA node */
	HETMEM_PLATFORM_INTEGRATED,	/* there is one memory */
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
 * @module_id: its id in hetmem.ko, -1 if it is not registered there
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

/* Errors: -ENODEV: no such device. */
int hetmem_device_props(struct hetmem *hm, int device,
			struct hetmem_device_props *props);

/* Name of the driver in use: "cuda", "soft", "none". */
const char *hetmem_driver_name(struct hetmem *hm);

#ifdef __cplusplus
}
#endif

#include <hetmem/adaptor.h>
#include <hetmem/framework.h>
#include <hetmem/hint.h>
#include <hetmem/move.h>
#include <hetmem/place.h>
#include <hetmem/pool.h>
#include <hetmem/snapshot.h>

#endif /* HETMEM_H */
