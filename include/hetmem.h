/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * libhetmem - one allocator for memory that CPUs and GPUs share.
 *
 * Every function that can fail returns 0 or a negative errno; the text of
 * the calling thread's last error is hetmem_last_error(). Every parameter
 * struct starts with its size: set it to sizeof, zero the rest (an
 * initializer does both), so that the struct can grow.
 *
 * Threads: a struct hetmem may be used by any number of threads at once;
 * hetmem_close() must be the last use. Fork: in a child every function that
 * needs a device or the kernel module returns -EOWNERDEAD; memory goes on
 * copy-on-write; hetmem_close() only forgets.
 */
#ifndef HETMEM_H
#define HETMEM_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include <linux/hetmem.h>	/* locations (HETMEM_LOC), why, struct hetmem_run */

#ifdef __cplusplus
extern "C" {
#endif

#define HETMEM_API_VERSION	1

struct hetmem;

/* A stream of the driver in use (CUstream). */
typedef void *hetmem_stream;

/**
 * struct hetmem_params - how to open
 * @size: sizeof(struct hetmem_params)
 * @driver: "cuda", "soft" or NULL: the environment's HETMEM_DRIVER, else
 *	CUDA if libcuda.so.1 has a device, else the soft driver
 * @module_path: the module's device node, NULL for /dev/hetmem; "" for none
 */
struct hetmem_params {
	size_t size;
	const char *driver;
	const char *module_path;
};

/*
 * Opens the library: the kernel module if it is there and the driver. What
 * is missing is not an error, see hetmem_feature(). @params may be NULL.
 * -EINVAL unknown driver name; -ENODEV driver "cuda" asked for and not there.
 */
int hetmem_open(struct hetmem **hm, const struct hetmem_params *params);

/* Memory that was allocated and not freed stays valid. NULL does nothing. */
void hetmem_close(struct hetmem *hm);

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
 * struct hetmem_feature - one thing this machine can do, or cannot
 * @name: one word
 * @available: 1 or 0
 * @reason: why not, or by what; what to do about it; never NULL
 */
struct hetmem_feature {
	const char *name;
	int available;
	const char *reason;
};

/*
 * The strings live until hetmem_close(). -EINVAL no such id, so that a
 * program compiled for a later library can ask.
 */
int hetmem_feature(struct hetmem *hm, enum hetmem_feature_id id,
		   struct hetmem_feature *feature);

/* Addressing mode of a device: how it reaches system memory. */
enum hetmem_addressing {
	HETMEM_ADDRESSING_NONE,		/* not at all */
	HETMEM_ADDRESSING_HMM,		/* faults and migration by software */
	HETMEM_ADDRESSING_ATS,		/* through the CPU's page tables */
	HETMEM_ADDRESSING_CDMM,		/* ATS, device memory no NUMA node */
	HETMEM_ADDRESSING_SOFT,		/* the soft driver: same process */
};

/**
 * struct hetmem_device_props - one device of the driver in use
 * @size: in, sizeof(struct hetmem_device_props)
 * @addressing: enum hetmem_addressing
 * @managed: concurrent managed access
 * @vmm: virtual memory management calls
 * @host_node: NUMA node nearest to it, -1 if unknown
 * @total: bytes of device memory
 * @granularity: of VMM handles, bytes, 0 if there is no VMM
 * @module_id: its id in hetmem.ko, -1 if it is not registered there
 * @name: NUL-terminated
 */
struct hetmem_device_props {
	size_t size;
	int addressing;
	int managed;
	int vmm;
	int host_node;
	uint64_t total;
	uint64_t granularity;
	int module_id;
	char name[96];
};

/* Number of devices of the driver in use, 0 or more. */
int hetmem_device_count(struct hetmem *hm);
int hetmem_device_props(struct hetmem *hm, int device,
			struct hetmem_device_props *props);

/* Name of the driver in use: "cuda", "soft". */
const char *hetmem_driver_name(struct hetmem *hm);

/*
 * Allocates @size bytes of zeroed system memory: aligned to 2 MiB (sizes
 * below 2 MiB: to 512 bytes at least), huge pages advised, tracked by the
 * module if it is there. Not touched: pages go where they are first used.
 * -EINVAL @size is 0; -ENOMEM.
 */
int hetmem_system_alloc(struct hetmem *hm, size_t size, void **ptr);

/*
 * Frees what hetmem_system_alloc() returned. Does not wait for a device:
 * the caller's work on it is complete. NULL is -EINVAL, so is a pointer
 * that is not allocated (nothing is changed then).
 */
int hetmem_system_free(struct hetmem *hm, void *ptr);

/*
 * mremap() for memory of hetmem_system_alloc(): gives it @new_size bytes, in
 * place or at another address, 2 MiB aligned still, and moves the tracking
 * along, which the kernel cannot do. The contents up to the smaller size
 * are kept. On error nothing has changed.
 */
int hetmem_system_resize(struct hetmem *hm, void *ptr, size_t new_size,
			 void **new_ptr);

/*
 * Tracks other memory of this process (malloc, mmap) with the module; whole
 * pages, the range is widened to them. -EOPNOTSUPP without the module,
 * -EEXIST it overlaps what is tracked, -ENOSPC too many ranges. Untrack
 * takes the same arguments; -ENOENT.
 */
int hetmem_track(struct hetmem *hm, const void *ptr, size_t size);
int hetmem_untrack(struct hetmem *hm, const void *ptr, size_t size);

/**
 * struct hetmem_moved - what a prefetch did
 * @size: in, sizeof(struct hetmem_moved)
 * @how: by whom: "module", "driver", "move_pages", "none"; never NULL
 * @reason: if @how is "none": why there was nothing to be done
 * @moved: pages moved, as far as known when the call returns
 * @already: pages that were there
 * @not_moved: pages left where they are
 * @why: HETMEM_WHY_* of the first of those
 * @why_addr: its address
 * The driver works asynchronously and tells no counts.
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
 * Moves [@ptr, @ptr + @size) to @location: HETMEM_LOC(HETMEM_DEVICE, driver's
 * device ordinal) or HETMEM_LOC(HETMEM_HOST, node or HETMEM_NODE_ANY). Any
 * memory of this process; whole pages that overlap it. By the module for
 * its devices and to the host (synchronous, @stream is ignored), by
 * move_pages(2) between host nodes, by cuMemPrefetchAsync on @stream where
 * the driver reaches this memory, and otherwise not at all, which is no
 * error: @moved->how is "none" and @moved->reason says why. @moved may be
 * NULL.
 * -EINVAL bad range or location, -ENODEV no such device, -ENOMEM, -EINTR,
 * -EIO the driver failed.
 */
int hetmem_prefetch(struct hetmem *hm, const void *ptr, size_t size,
		    uint32_t location, hetmem_stream stream,
		    struct hetmem_moved *moved);

/*
 * Where [@ptr, @ptr + @size) is: fills @runs (at most @nr), widened to whole
 * pages, and sets *@next to the first address not reported, which is the
 * (page-aligned) end when everything is. Returns the number of runs. With
 * the module: the kernel's truth, device index = the driver's ordinal where
 * the device is one of the driver's, else 0x8000 + its id in the module
 * (hetmem_prefetch() takes that too). Without: host nodes by move_pages(2);
 * what that cannot see is HETMEM_UNKNOWN.
 */
ssize_t hetmem_residency(struct hetmem *hm, const void *ptr, size_t size,
			 struct hetmem_run *runs, size_t nr, uintptr_t *next);

/*
 * Hints: one process asks another to move its memory, which only that one can
 * have its driver do. Who asks has a peer, who is asked an executor. Locations
 * are the module's own on both sides of the wire, as `hetmem map PID` shows
 * them: HETMEM_DEVICE with the id in the module, HETMEM_FOREIGN with the index
 * of another driver's device, or HETMEM_HOST.
 */
struct hetmem_executor;

/* Whoever has a file of this process's may ask, without CAP_SYS_NICE. */
#define HETMEM_EXECUTOR_ALLOW	(1U << 0)
/* A thread of the library's own carries hints out. */
#define HETMEM_EXECUTOR_THREAD	(1U << 1)

/**
 * struct hetmem_executor_params - how to carry out hints
 * @size: sizeof(struct hetmem_executor_params)
 * @flags: HETMEM_EXECUTOR_*
 * @accept: asked before each hint is carried out, with a location as
 *	hetmem_prefetch() takes it: 0, or a negative errno that the asker gets;
 *	NULL: all are accepted. It must not call hetmem_executor_*().
 * @arg: for @accept
 */
struct hetmem_executor_params {
	size_t size;
	unsigned int flags;
	int (*accept)(void *arg, const void *ptr, size_t size,
		      uint32_t location);
	void *arg;
};

/*
 * Makes this process one that can be asked: finds out which device is which
 * (by moving a scratch page to each where the module cannot know), and binds
 * them. There is one executor for a device and process. @params may be NULL.
 * -EOPNOTSUPP without the module; -ENODEV no device that memory can move to;
 * -EBUSY there is an executor for a device; -EDQUOT a cap of the
 * administrator's; -ENOMEM, -EIO.
 */
int hetmem_executor_open(struct hetmem *hm,
			 const struct hetmem_executor_params *params,
			 struct hetmem_executor **executor);

/*
 * Hints under way end with -EOWNERDEAD for who asked. To be called before
 * hetmem_close(). NULL does nothing. In a forked child it only forgets.
 */
void hetmem_executor_close(struct hetmem_executor *executor);

/*
 * The file to wait on with poll(2), POLLIN, before hetmem_executor_run(), and to
 * pass to a process that may ask (see hetmem_peer_adopt()). It stays the
 * executor's.
 */
int hetmem_executor_fd(struct hetmem_executor *executor);

/*
 * Carries out the hints that are waiting, in order, those that overlap at
 * once, and answers them. Waits for none to come, and for what it moves. At
 * most one thread at a time; -EINVAL if the executor has a thread of its own.
 * Returns the number of hints that it answered.
 */
ssize_t hetmem_executor_run(struct hetmem_executor *executor);

/**
 * struct hetmem_executor_stats - what an executor did
 * @size: in, sizeof(struct hetmem_executor_stats)
 * @hints: that were answered
 * @moves: that were made for them: overlapping hints are moved once
 * @refused: hints that @accept refused
 * @failed: hints answered with an error, the refused ones included
 * @withdrawn: hints that nobody waited for any more
 * @moved: pages, as far as known
 */
struct hetmem_executor_stats {
	size_t size;
	uint64_t hints;
	uint64_t moves;
	uint64_t refused;
	uint64_t failed;
	uint64_t withdrawn;
	uint64_t moved;
};

int hetmem_executor_stats(struct hetmem_executor *executor,
			  struct hetmem_executor_stats *stats);

/* Another process, as it can be asked. Any thread, any number at once. */
struct hetmem_peer;

/*
 * The process @pid, through a copy of its file of the module, which needs the
 * rights of ptrace(2) on it. -ESRCH no such process; -ENXIO it has no such
 * file; -EPERM; -EOPNOTSUPP no module here.
 */
int hetmem_peer_open(pid_t pid, struct hetmem_peer **peer);

/*
 * The process that @fd, its hetmem_executor_fd(), came from, over a socket for
 * one. @fd is the peer's from then on. -EINVAL it is no such file.
 */
int hetmem_peer_adopt(int fd, struct hetmem_peer **peer);
void hetmem_peer_close(struct hetmem_peer *peer);

/**
 * struct hetmem_hinted - what came of a hint
 * @size: in, sizeof(struct hetmem_hinted)
 * @answered: 1: the executor answered, an error is its own; 0: it did not
 * @reserved: 0
 * @moved: pages that it moved, as far as it knows
 */
struct hetmem_hinted {
	size_t size;
	uint32_t answered;
	uint32_t reserved;
	uint64_t moved;
};

/*
 * Asks @peer to move [@start, @start + @size) of its memory, widened to whole
 * pages, to @location, and waits for the answer, @timeout_ms (1 to
 * HETMEM_HINT_TIMEOUT_MAX) at most. Pages that cannot move, or were never
 * touched, are no error: @hinted, which may be NULL, tells how many did.
 * Errors of the kernel: -EPERM the process does not allow it; -ENXIO it has no
 * executor for that location, or has gone; -EAGAIN too many hints are under
 * way; -EDQUOT the administrator's limit for that device; -ETIMEDOUT;
 * -EOWNERDEAD it went meanwhile; -EINTR; -EINVAL. Otherwise the executor's:
 * -EOPNOTSUPP this memory does not move there; what hetmem_prefetch() or its
 * owner says.
 */
int hetmem_hint(struct hetmem_peer *peer, uint64_t start, uint64_t size,
		uint32_t location, unsigned int timeout_ms,
		struct hetmem_hinted *hinted);

/*
 * The contexts of the module that the caller may know of: those of its own
 * user, with CAP_SYS_PTRACE all. Fills at most @nr; returns how many there are,
 * which can be more. -EOPNOTSUPP without the module.
 */
ssize_t hetmem_list(struct hetmem *hm, struct hetmem_list_entry *entries,
		    size_t nr);

/*
 * Resources: where programs get memory from, made from a spec such as
 * "stats(pool(vmm(device=0),max=90%))"; `hetmem spec --help` has the grammar.
 *
 * Streams. Memory that is allocated on a stream may be used on it and on what
 * is ordered behind it. Freeing never waits: the caller has ordered @stream
 * behind all uses, or told the others with hetmem_record_stream(). The host
 * is a stream of its own: memory allocated or freed on HETMEM_STREAM_HOST is
 * used by the CPU at once. Before a stream is destroyed, whoever destroys it
 * calls hetmem_stream_retire().
 *
 * HETMEM_STREAM_PER_THREAD is the calling thread's stream in every call, and a
 * thread retires it before it ends. Where another thread is to be ordered
 * behind it, the legacy stream is, which waits for all streams that were not
 * made with CU_STREAM_NON_BLOCKING.
 *
 * Threads: all functions may be called at any time on any thread, but for
 * hetmem_resource_destroy(), which must be the last use.
 */
struct hetmem_resource;

/* The driver's own streams: the legacy one, and the calling thread's. */
#define HETMEM_STREAM_LEGACY	((hetmem_stream)0x1)
#define HETMEM_STREAM_PER_THREAD ((hetmem_stream)0x2)
/* The CPU: what is given here is used, or was used, by the calling thread. */
#define HETMEM_STREAM_HOST	((hetmem_stream)-1)
/* For free: all streams that are known of. */
#define HETMEM_STREAM_UNKNOWN	((hetmem_stream)-2)

/* Of every allocation, unless more is asked for. */
#define HETMEM_ALIGNMENT	512

/*
 * Makes the resource that @spec names; NULL: the one of HETMEM_RESOURCE in the
 * environment, "device-pool" if that is not set. The library must stay open
 * as long. -EINVAL @spec is not one, and the error's text points at the
 * character; -EOPNOTSUPP, -ENODEV this machine or driver cannot; -ENOMEM.
 */
int hetmem_resource_create(struct hetmem *hm, const char *spec,
			   struct hetmem_resource **res);

/*
 * The current resource of @device (-1: the host's), for those who are not
 * told another: set by hetmem_resource_set_current(), else made when it is
 * first asked for, as hetmem_resource_create() makes it with a spec of NULL
 * ("pool(host)" for the host), on @device where that spec says none, and
 * destroyed by hetmem_close().
 * -ENODEV no such device, and what creating it can fail with.
 */
int hetmem_resource_current(struct hetmem *hm, int device,
			    struct hetmem_resource **res);

/*
 * Makes @res, which stays the caller's, the current resource of @device; NULL:
 * none, as at first. *@old, which may be NULL, is what it was, NULL if it was
 * none or the library's own. Before @res is destroyed another takes its place.
 * -ENODEV no such device; -EINVAL @res is of another struct hetmem.
 */
int hetmem_resource_set_current(struct hetmem *hm, int device,
				struct hetmem_resource *res,
				struct hetmem_resource **old);

/*
 * Waits for what is under way and gives everything back. Returns the number
 * of blocks that were still allocated, which are gone too; the text of
 * hetmem_last_error() names the first of them. It must be the last use; in
 * check mode, and where the spec has a guard(), later ones are -EINVAL, until
 * hetmem_close().
 */
ssize_t hetmem_resource_destroy(struct hetmem_resource *res);

/*
 * Allocates @size bytes at a multiple of @align (0: HETMEM_ALIGNMENT, else a
 * power of two) for use on @stream. Contents are undefined; size 0 gives a
 * pointer that can be freed and nothing else. -EINVAL; -ENOMEM, and the text
 * says what was tried; -EBUSY the pool is asleep, or @stream is captured and
 * hetmem_capture_begin() was not told; -EOWNERDEAD.
 */
int hetmem_alloc(struct hetmem_resource *res, size_t size, size_t align,
		 hetmem_stream stream, void **ptr);

/*
 * Frees @ptr as hetmem_alloc() returned it; @size as it was asked for, or 0 if
 * it is not known. NULL does nothing. -EINVAL @ptr is not allocated here, or
 * @size is wrong; nothing has changed then.
 */
int hetmem_free(struct hetmem_resource *res, void *ptr, size_t size,
		hetmem_stream stream);

/* Tells of a use of @ptr on another stream than the allocation's. */
int hetmem_record_stream(struct hetmem_resource *res, void *ptr,
			 hetmem_stream stream);

/* @stream is about to be destroyed: what was freed on it stays usable. */
int hetmem_stream_retire(struct hetmem_resource *res, hetmem_stream stream);

/*
 * Moves along what has completed meanwhile; waits for nothing, but for the device once
 * in 2,000 streams that were destroyed without hetmem_stream_retire(). -EFAULT a
 * guard() found damage; what a log() could not write its lines for.
 */
int hetmem_poll(struct hetmem_resource *res);

/*
 * Gives memory that is not allocated back to the system, all but @keep bytes.
 * Returns 0; *@freed, which may be NULL, is what was given back.
 */
int hetmem_trim(struct hetmem_resource *res, size_t keep, size_t *freed);

/*
 * Makes a block larger where it is, for use on @stream, which uses all of it
 * from now on as after hetmem_record_stream(). -ENOSPC what is behind it is not
 * free; -EOPNOTSUPP this resource cannot; -EBUSY it belongs to a capture, or the
 * pool is asleep; -EINVAL; -ENOMEM.
 */
int hetmem_grow(struct hetmem_resource *res, void *ptr, size_t size,
		hetmem_stream stream);

/**
 * struct hetmem_block - what a resource knows of a pointer
 * @size: in, sizeof(struct hetmem_block)
 * @base: as hetmem_alloc() returned it
 * @usable: bytes
 */
struct hetmem_block {
	size_t size;
	void *base;
	size_t usable;
};

/*
 * The block that @ptr is in, which may be interior: a pool looks through its
 * blocks for that one. -ENOENT: not ours.
 */
int hetmem_owns(struct hetmem_resource *res, const void *ptr,
		struct hetmem_block *block);

/**
 * struct hetmem_segment - a part of a block that has a handle of its own
 * @base: address
 * @offset: in the block
 * @length: bytes
 */
struct hetmem_segment {
	void *base;
	size_t offset;
	size_t length;
};

/*
 * The parts of [@ptr, @ptr + @size) that a transport must register one by
 * one. Returns their number; -ENOSPC more than @nr.
 */
ssize_t hetmem_segments(struct hetmem_resource *res, const void *ptr,
			size_t size, struct hetmem_segment *segments,
			size_t nr);

/*
 * Allocates @size bytes with addresses for @reserve, so that hetmem_grow() can
 * make it that large where it is. -EOPNOTSUPP: not a pool over vmm; -EBUSY:
 * @stream is being captured; -ENOMEM.
 */
int hetmem_alloc_reserve(struct hetmem_resource *res, size_t size,
			 size_t reserve, hetmem_stream stream, void **ptr);

/*
 * The memory of @ptr keeps its addresses until the resource is destroyed: it
 * is not mapped elsewhere and not given back, even after it is freed. For
 * transports that register memory and cache that. -EINVAL.
 */
int hetmem_pin_comm(struct hetmem_resource *res, void *ptr);

/*
 * Gives back the memory of the pools whose tag= is @tag (NULL: of all), what
 * is allocated included; contents are lost, addresses are kept. Waits for
 * what is under way. Until hetmem_wake() gives memory to the same addresses
 * (-ENOMEM: to some; it can be tried again), allocating there is -EBUSY, and
 * touching what was allocated is a fault. -EOPNOTSUPP: not a pool over vmm;
 * -EBUSY: of one with comm=on the memory stays, or a stream is being captured.
 */
int hetmem_sleep(struct hetmem_resource *res, const char *tag);
int hetmem_wake(struct hetmem_resource *res, const char *tag);

/*
 * Between begin and end, what is allocated on @stream, which is about to be
 * captured, belongs to graphs @id: once freed it is used again for @id alone,
 * as the graphs may be launched again, until release, behind which @stream
 * is ordered. More than one capture can have the same @id. Begin comes before
 * the driver's capture does, for every stream that takes part in it; from then
 * to end the stream must not be destroyed.
 * -EBUSY @stream is between begin and end; -EINVAL it is not; -ENOENT no @id;
 * -ENOSPC 65536 ids are not released.
 */
int hetmem_capture_begin(struct hetmem_resource *res, hetmem_stream stream,
			 uint64_t id);
int hetmem_capture_end(struct hetmem_resource *res, hetmem_stream stream,
		       uint64_t id);
int hetmem_capture_release(struct hetmem_resource *res, hetmem_stream stream,
			   uint64_t id);

/*
 * Descriptors for the memory of @ptr, for another process, over a UNIX socket
 * (SCM_RIGHTS): one for each of @segments, of which there are @nr. They are
 * the caller's, to be closed. The memory stays where it is until @ptr is freed
 * and all that use it elsewhere are done. Returns their number; -ENOSPC more
 * than @nr; -EBUSY: the pool is asleep; -EOPNOTSUPP: not a pool over
 * vmm(export=fd).
 */
ssize_t hetmem_export(struct hetmem_resource *res, void *ptr, int *fds,
		      struct hetmem_segment *segments, size_t nr);

/*
 * Maps what another process exported, for @device: @segments in its order,
 * their bases are not looked at. The descriptors stay the caller's. -EINVAL;
 * -ENODEV; -ENOMEM; -EOPNOTSUPP. hetmem_import_close() takes *@ptr; all uses
 * are complete.
 */
int hetmem_import(struct hetmem *hm, int device, const int *fds,
		  const struct hetmem_segment *segments, size_t nr,
		  void **ptr);
int hetmem_import_close(struct hetmem *hm, void *ptr);

/**
 * struct hetmem_resource_stats - what a resource has
 * @size: in, sizeof(struct hetmem_resource_stats)
 * @live: blocks allocated
 * @requested: bytes of them, as they were asked for
 * @requested_peak: the most that ever was
 * @reserved: bytes of physical memory held: mapped, cached, waiting for
 *	unmap, exported
 * @reserved_peak: the most that ever was
 * @metadata: bytes of host memory that the resource itself uses
 * @allocs: calls that succeeded
 * @frees: calls that succeeded
 * @failed: allocations that did not
 * @driver_calls: that the resource made
 * @host_wait_ns: time that calls waited for a device
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
};

int hetmem_resource_stats(struct hetmem_resource *res,
			  struct hetmem_resource_stats *stats);

/**
 * struct hetmem_counter - of stats() in a spec
 * @value: now
 * @peak: the most that it was
 * @total: everything that was ever added
 */
struct hetmem_counter {
	uint64_t value;
	uint64_t peak;
	uint64_t total;
};

/**
 * struct hetmem_counters - what went through a resource
 * @size: in, sizeof(struct hetmem_counters)
 * @bytes: as they were asked for
 * @blocks: allocations
 */
struct hetmem_counters {
	size_t size;
	struct hetmem_counter bytes;
	struct hetmem_counter blocks;
};

/*
 * Counters since the last push that was not popped, else since the resource
 * was made; a value can be below 0 then, as a two's complement. Pop reads
 * (@counters may be NULL) and goes back to the outer ones, which have gone on
 * counting. All threads share them. -EOPNOTSUPP there is no stats() in the
 * stack; -ENOSPC 64 are pushed; -ENOENT nothing is.
 */
int hetmem_counters(struct hetmem_resource *res,
		    struct hetmem_counters *counters);
int hetmem_counters_push(struct hetmem_resource *res);
int hetmem_counters_pop(struct hetmem_resource *res,
			struct hetmem_counters *counters);

/*
 * Asked by retry() in a spec when there is no memory: @attempt is 1, 2, ... It
 * may free memory, through the same resource too, on the thread that wants
 * some. Returns other than 0 to try again, 0 to give up.
 */
typedef int (*hetmem_failure_fn)(void *data, size_t size, unsigned int attempt);

/*
 * Sets it, NULL for what retry() does itself. May be called at any time, but
 * one that is being asked is not waited for. -EOPNOTSUPP no retry() there.
 */
int hetmem_on_failure(struct hetmem_resource *res, hetmem_failure_fn fn,
		      void *data);

/* What a program orders its streams by. */
enum hetmem_edge {
	HETMEM_EDGE_RECORD,	/* an event is recorded on a stream */
	HETMEM_EDGE_WAIT,	/* a stream waits for an event */
	HETMEM_EDGE_SYNC,	/* the CPU waits for an event, or a stream */
};

/*
 * For a log that can be replayed in the order that a program really has: a
 * resource does not see events, so the program tells of them after it has
 * done each. @event is any value that names it; for HETMEM_EDGE_SYNC it is
 * NULL if the CPU waits for @stream. -EOPNOTSUPP no log(full=on) there.
 */
int hetmem_log_edge(struct hetmem_resource *res, enum hetmem_edge edge,
		    const void *event, hetmem_stream stream);

/*
 * For frameworks, which find these by name and use the current resource of
 * the device in a library of the process's own: HETMEM_RESOURCE, or
 * device-pool. What fails is said on stderr. Documentation/pytorch.md.
 *
 * torch.cuda.memory.CUDAPluggableAllocator: alloc is NULL if there is no
 * memory; free takes a size of 0 that is not known and HETMEM_STREAM_UNKNOWN.
 * The hooks of its allocator(): record_stream, base_alloc (the block that @ptr
 * is in, and *@size, which may be NULL), init, and reset, which is what
 * torch.cuda.empty_cache() calls: gives back what is not allocated.
 */
void *hetmem_torch_alloc(size_t size, int device, hetmem_stream stream);
void hetmem_torch_free(void *ptr, size_t size, int device,
		       hetmem_stream stream);
void hetmem_torch_record_stream(void *ptr, hetmem_stream stream);
void *hetmem_torch_base_alloc(void *ptr, size_t *size);
void hetmem_torch_init(int device_count);
void hetmem_torch_reset(void);

/* The resource behind them, for statistics and the like; NULL: none. */
struct hetmem_resource *hetmem_torch_resource(int device);

/*
 * cupy.cuda.memory.CFunctionAllocator: its first argument is the stream to
 * allocate on, NULL for the legacy one. A free knows neither size nor stream:
 * the memory is free behind all that its stream, and those recorded, were
 * given.
 */
void *hetmem_cupy_alloc(void *stream, size_t size, int device);
void hetmem_cupy_free(void *stream, void *ptr, int device);

/* Text of this thread's last error: one line, no newline; never NULL. */
const char *hetmem_last_error(void);

/* "host node 0", "device 1", ...; writes at most @len bytes, returns @buf. */
char *hetmem_location_name(uint32_t location, char *buf, size_t len);

/* "file, mlocked", ... for HETMEM_WHY_*; "" for 0. Returns @buf. */
char *hetmem_why_names(uint32_t why, char *buf, size_t len);

#ifdef __cplusplus
}
#endif

#endif /* HETMEM_H */
