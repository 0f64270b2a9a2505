/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Placement of memory: platforms, system memory, moves in stream order and in batches,
 * advice, attached memory, names, free memory. hetmem_prefetch(), hetmem_residency() and
 * locations are in <hetmem.h>.
 */
#ifndef HETMEM_PLACE_H
#define HETMEM_PLACE_H

#include <hetmem.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * struct hetmem_platform - how a device and the CPU share memory
 * @size: in: sizeof(struct hetmem_platform)
 * @kind: enum hetmem_platform_kind, the verdict
 * @pageable: 1: the device can use all memory of the process
 * @moves: 1: pages of the process can move into the device's own memory
 * @managed: 1: the device can use managed memory
 * @concurrent: 1: the CPU and the device can use managed memory at the same time
 * @registers: 1: host memory can be registered for the device
 * @registered: 1: the device uses registered memory at the CPU's address
 * @node: NUMA node that is the device's memory, -1: none
 * @host_node: nearest NUMA node of the host, -1: unknown
 */
struct hetmem_platform {
	size_t size;
	int kind;
	int pageable;
	int moves;
	int managed;
	int concurrent;
	int registers;
	int registered;
	int node;
	int host_node;
};

/*
 * Fills @platform for a device of the driver in use. hetmem_open() determines the verdict
 * once. A forked child may call this function, too. Errors:
 * -ENODEV: no such device.
 */
int hetmem_platform(struct hetmem *hm, int device,
		    struct hetmem_platform *platform);

/* Returns "HMM", "ATS", ... for enum hetmem_platform_kind; never NULL. */
const char *hetmem_platform_name(int kind);

/**
 * struct hetmem_evidence - one piece of the evidence for a verdict
 * @size: in: sizeof(struct hetmem_evidence)
 * @source: "driver", "nvml", "kernel" or "module"
 * @what: name of the piece, one word
 * @value: "yes", "no", "none", a number, a size; or "unknown: " and the reason
 */
struct hetmem_evidence {
	size_t size;
	const char *source;
	const char *what;
	const char *value;
};

/*
 * Reads the evidence about @device piece by piece: @index counts from 0. Each
 * device has the same pieces in the same order. The strings live until
 * hetmem_close(). Errors:
 * -ENODEV: no such device;
 * -ENOENT: @index is past the last piece.
 */
int hetmem_evidence(struct hetmem *hm, int device, unsigned int index,
		    struct hetmem_evidence *evidence);

/*
 * Returns contradiction @index, counted from 0, in the evidence about @device: one line
 * that lives until hetmem_close(). NULL: there are no more, or no such device.
 */
const char *hetmem_contradiction(struct hetmem *hm, int device,
				 unsigned int index);

/*
 * Allocates @size bytes of zeroed system memory. The address is a multiple of 2 MiB;
 * if @size is below 2 MiB, of at least 512 bytes. Huge pages are advised. If the module
 * is loaded, it tracks the memory. Pages are placed on first touch. Errors:
 * -ENOMEM.
 */
int hetmem_system_alloc(struct hetmem *hm, size_t size, void **ptr);

/*
 * Frees memory of hetmem_system_alloc(). All device work on it must be complete.
 * Errors, after which nothing has changed:
 * -EINVAL: @ptr is not allocated, or NULL.
 */
int hetmem_system_free(struct hetmem *hm, void *ptr);

/*
 * Does mremap(2) for memory of hetmem_system_alloc(): *@new_ptr has @new_size
 * bytes, at the same address or another multiple of 2 MiB. Contents are kept
 * up to the smaller size. The module tracks the new range. After a bare mremap(2) the
 * module does not track it. Errors, after which nothing has changed:
 * -ENOMEM.
 */
int hetmem_system_resize(struct hetmem *hm, void *ptr, size_t new_size,
			 void **new_ptr);

/* hetmem_move() does not wait. The move happens in stream order. */
#define HETMEM_NONBLOCKING	(1U << 0)

/*
 * hetmem_prefetch() in the order of @stream. The address stays. Earlier work of @stream
 * uses the memory at its old location. Returns when that work and the move are complete,
 * also if nothing had to move. Then the CPU may use the memory. With HETMEM_NONBLOCKING
 * in @flags the call returns at once, and later work of @stream runs after the move.
 * Exception: the module and move_pages(2) know no streams. With HETMEM_NONBLOCKING they
 * move at once, and @moved->reason reports this. HETMEM_STREAM_HOST has no work to wait for.
 *
 * Errors, in addition to those of hetmem_prefetch():
 * -EINVAL: unknown @flags; @stream is HETMEM_STREAM_UNKNOWN or no stream;
 * -EBUSY: @stream is captured;
 * -EIO: work of @stream, or the driver, failed.
 * After a failure of the stream's work the memory may have moved.
 */
int hetmem_move(struct hetmem *hm, const void *ptr, size_t size, uint32_t location,
		hetmem_stream stream, unsigned int flags,
		struct hetmem_moved *moved);

/**
 * struct hetmem_prefetch_range - one range of a batch
 * @size: in: sizeof(struct hetmem_prefetch_range)
 * @ptr: in: first byte
 * @bytes: in: length
 * @location: in: where to move it
 * @result: out: 0 or a negative errno, as hetmem_prefetch() returns it
 * @piece: out: index of the range whose @moved has the counts: this range, or the first
 *	range of the contiguous piece with this range
 * @moved: out: the result in numbers; may be NULL
 */
struct hetmem_prefetch_range {
	size_t size;
	const void *ptr;
	size_t bytes;
	uint32_t location;
	int result;
	size_t piece;
	struct hetmem_moved *moved;
};

/*
 * Prefetches @nr ranges of any memory to any locations, all on @stream. Contiguous ranges
 * to one location move as one piece, which is much faster than one by one. @ranges may be
 * in any order. Every range is tried and has its own result. Returns 0, or the error of
 * the failed range with the lowest index; hetmem_last_error() has that index. Errors of
 * the call, after which nothing was tried:
 * -EINVAL: @hm or @ranges is NULL, a size is wrong;
 * -EOWNERDEAD: a forked child's @hm;
 * -ENOMEM.
 */
int hetmem_prefetch_batch(struct hetmem *hm, struct hetmem_prefetch_range *ranges,
			  size_t nr, hetmem_stream stream);

/*
 * Discards the contents of [@ptr, @ptr + @size) in the order of @stream. Discarded contents
 * do not move, and are undefined until they are written again. Only pages that are wholly
 * in the range are discarded. @done may be NULL. @done->how is
 * - "driver": cuMemDiscardBatchAsync(), for managed memory;
 * - "none": the contents stay, and @done->reason has the reason. So it is for all memory
 *   that the driver did not allocate, and on integrated devices.
 *
 * Discard only memory that a device writes next. CPU faults on discarded memory are
 * several times slower. Do not access the memory while the discard runs.
 *
 * Errors, after which nothing has changed:
 * -EINVAL: bad range; part of it is not mapped; the driver refuses it or the stream;
 * -EOWNERDEAD: a forked child's @hm;
 * -EIO: the driver failed;
 * -ENOMEM.
 */
int hetmem_discard(struct hetmem *hm, void *ptr, size_t size, hetmem_stream stream,
		   struct hetmem_moved *done);

enum hetmem_advice {
	HETMEM_ADVISE_PREFERRED,	/* the memory should be at the location */
	HETMEM_ADVISE_NOT_PREFERRED,	/* it may be anywhere */
	HETMEM_ADVISE_ACCESSED_BY,	/* the location's processor uses it in place */
	HETMEM_ADVISE_NOT_ACCESSED_BY,
	HETMEM_ADVISE_READ_MOSTLY,	/* each processor may have a copy */
	HETMEM_ADVISE_NOT_READ_MOSTLY,
};

/*
 * Gives @advice about all pages that overlap [@ptr, @ptr + @size), any memory of this
 * process. Moves nothing by itself. PREFERRED, ACCESSED_BY and NOT_ACCESSED_BY use
 * @location: a device of the driver, or the host (ACCESSED_BY treats all nodes alike).
 * @done may be NULL. @done->how is
 * - "driver": cuMemAdvise(), for managed memory, and with HMM for all memory;
 * - "mbind": mbind(2), with ATS and CDMM and between host nodes. It replaces the
 *   memory policy of the range; NOT_PREFERRED sets the default policy;
 * - "none": the advice makes no difference here, and @done->reason has the reason.
 * @done->reason also describes an action other than the requested one. With HMM, @done->why
 * and @done->not_moved report mappings whose pages stay on the host nevertheless.
 *
 * Takes effect at once, in no order with streams. Any thread may call.
 *
 * The library remembers the advice in force; hetmem_advised() reports it. When the library
 * frees or unmaps memory, it forgets the advice about it. hetmem_free() of a pool's block
 * undoes the advice about pages that are wholly in the block. hetmem_system_resize() and
 * hetmem_grow() renew the advice; added memory takes the advice of the page before it.
 *
 * If the program unmaps memory itself, the library keeps the advice. Give NOT_ advice before
 * the unmap. Otherwise hetmem_advised() reports the advice about new memory at the same
 * address. A call that finds no room for more advice checks the mappings once, in some
 * milliseconds, and forgets advice about unmapped memory. With the module, the library
 * forgets advice about attached memory at once.
 *
 * Errors, after which nothing has changed:
 * -EINVAL: bad range, advice or location; part of the range is not mapped; with mbind(2)
 *	the range begins or ends within a mapping that the kernel cannot split, for example
 *	in a page of hugetlbfs;
 * -ENODEV: no such device;
 * -ENOSPC: 16,384 separate ranges of mapped memory have advice (32,768 if @advice undoes
 *	the advice about a part of a range);
 * -EOWNERDEAD: a forked child's @hm;
 * -EIO: the driver or the kernel failed;
 * -ENOMEM.
 */
int hetmem_advise(struct hetmem *hm, const void *ptr, size_t size,
		  enum hetmem_advice advice, uint32_t location,
		  struct hetmem_moved *done);

#define HETMEM_ADVISED_READ_MOSTLY	(1U << 0)
#define HETMEM_ADVISED_BY_HOST		(1U << 1)	/* accessed by the CPU */

/**
 * struct hetmem_advised - a range of pages with the same advice
 * @start: first byte
 * @end: first byte after the range
 * @devices: bit N: device N is advised as a user (ACCESSED_BY)
 * @preferred: the preferred location; one of kind HETMEM_UNKNOWN: there is none
 * @flags: HETMEM_ADVISED_*
 */
struct hetmem_advised {
	uint64_t start;
	uint64_t end;
	uint64_t devices;
	uint32_t preferred;
	uint32_t flags;
};

/*
 * Reports the advice in force about [@ptr, @ptr + @size), as hetmem_residency() reports
 * locations. Fills @ranges (room for @nr) in the order of addresses. Returns the number of
 * ranges, 0 if there is no advice. *@next becomes the address to continue at. It is the
 * page-aligned end once everything is reported. Errors:
 * -EINVAL: bad range, or no room;
 * -EOWNERDEAD: a forked child's @hm.
 */
ssize_t hetmem_advised(struct hetmem *hm, const void *ptr, size_t size,
		       struct hetmem_advised *ranges, size_t nr, uintptr_t *next);

/* The program promises to detach the memory before it unmaps it. */
#define HETMEM_ATTACH_PROMISE	(1U << 0)
/*
 * A forked child does not inherit the pages that are wholly in the range. After the last
 * hetmem_detach() children inherit these pages, even if the program itself had set
 * MADV_DONTFORK. When the library detaches memory that was unmapped in part, children
 * inherit the rest. If the program breaks its promise to detach before it unmaps, other
 * memory can be mapped in the range. hetmem_detach() cannot recognize such memory: children
 * inherit it, too.
 */
#define HETMEM_ATTACH_DONTFORK	(1U << 1)

/**
 * struct hetmem_attach_params - options of hetmem_attach()
 * @size: sizeof(struct hetmem_attach_params)
 * @flags: HETMEM_ATTACH_*
 * @chunk: bytes of each registered piece, a multiple of the page size; 0: one piece.
 *	One piece of very large memory can take minutes and hold locks of the driver.
 *	Linux 6.11 to 6.13 pin at most 2 GB at once. A copy across two pieces fails: copy
 *	piece by piece
 * @release: NULL, or a function that the library calls with @owner when the attachment
 *	ends. Any thread can call it, also a thread of the library; no lock is held. The
 *	owner keeps the memory mapped until this call
 * @owner: a reference to the object that keeps the memory mapped
 */
struct hetmem_attach_params {
	size_t size;
	unsigned int flags;
	size_t chunk;
	void (*release)(void *owner);
	void *owner;
};

/*
 * Makes host memory that the library did not allocate, [@ptr, @ptr + @size), usable by
 * the devices in place. @params and @done may be NULL. @done->how is
 * - "driver": the memory is registered, which pins it. A device may only read read-only
 *   memory; @done->reason reports this;
 * - "none": the devices use the memory as it is (HMM, ATS, CDMM, integrated; managed and
 *   page-locked memory; part of attached memory). @done->reason has the reason.
 * In either case hetmem_detach() with the same @ptr and @size ends the attachment. Memory
 * and parts of it may be attached many times. The memory stays registered until the last
 * attachment ends. The first attachment's @params->chunk and HETMEM_ATTACH_DONTFORK count.
 *
 * If attached memory is unmapped, a device's writes to it are lost without an error. With
 * the module, the library detaches memory that the program unmaps or remaps, even in part,
 * at the latest before the next attachment. Without the module, set @params->release, so
 * that the owner keeps the memory mapped, or set HETMEM_ATTACH_PROMISE.
 *
 * fork() copies pinned memory for the child, at about 1.6 GB/s. The child may use the copy
 * like other memory; devices may not use it. With HETMEM_ATTACH_DONTFORK nothing is copied,
 * and a child that touches these pages gets SIGSEGV.
 *
 * Any thread may call. Do not discard attached memory with madvise(2). hetmem_close() ends
 * all attachments and releases all owners.
 *
 * Errors, after which nothing has changed and the owner is not released:
 * -EINVAL: bad range or @params; part of the range is not mapped; memory of a device;
 *	no module, no @params->release and no HETMEM_ATTACH_PROMISE; with
 *	HETMEM_ATTACH_DONTFORK the range begins or ends within a mapping that the kernel
 *	cannot split;
 * -EACCES: part of the range cannot be read;
 * -EEXIST: the range overlaps attached memory and is not within it, or overlaps memory
 *	that the program has registered;
 * -EOPNOTSUPP: the device cannot use registered memory, or cannot use this kind of memory;
 * -ENODEV: there is no device;
 * -EOWNERDEAD: a forked child's @hm;
 * -EIO: the driver failed;
 * -ENOMEM.
 */
int hetmem_attach(struct hetmem *hm, void *ptr, size_t size,
		  const struct hetmem_attach_params *params,
		  struct hetmem_moved *done);

/*
 * Ends one attachment of exactly @ptr and @size. All device work on the memory must be
 * complete. Errors, after which nothing has changed:
 * -ENOENT: the range is not attached, or was detached because it was unmapped;
 * -ENODEV: there is no device;
 * -EOWNERDEAD: a forked child's @hm;
 * -EIO: the driver failed; the range is still attached. With @params->chunk the devices
 *	may have lost some chunks, if the driver failed to register them again: detach again.
 */
int hetmem_detach(struct hetmem *hm, void *ptr, size_t size);

/*
 * Writes "host node 0", "device 1", "device 0 (node 2)", ... into @buf, at most @len
 * bytes. Returns @buf. If @hm is NULL, a node that is a device's memory is written as a
 * host node.
 */
char *hetmem_location_name(struct hetmem *hm, uint32_t location, char *buf,
			   size_t len);

/* Writes "file, mlocked", ... for HETMEM_WHY_*, "" for 0. Returns @buf. */
char *hetmem_why_names(uint32_t why, char *buf, size_t len);

/*
 * Free memory. No single figure is enough. The driver of an integrated device omits page
 * cache that the kernel would drop. The kernel's figure ignores cgroups. A full host hangs.
 * So hetmem_memory_info() takes the smallest of several figures, less a reserve, and
 * reports each figure.
 */

/* An unknown figure, or a limit that does not exist. */
#define HETMEM_MEMORY_UNKNOWN	UINT64_MAX

/* For struct hetmem_memory_info.reserve: keep nothing unused. */
#define HETMEM_RESERVE_NONE	UINT64_MAX

enum hetmem_memory_figure_id {
	HETMEM_MEMORY_DRIVER,	/* free, from the driver (cuMemGetInfo) */
	HETMEM_MEMORY_MODULE,	/* not used by device pages, from hetmem.ko */
	HETMEM_MEMORY_NODE,	/* free in the node that is the device's memory */
	HETMEM_MEMORY_HOST,	/* available on the host */
	HETMEM_MEMORY_CGROUP,	/* still allowed by the process's cgroups */
	HETMEM_MEMORY_CACHE,	/* page cache that the kernel can drop */
	HETMEM_MEMORY_NR
};

/**
 * struct hetmem_memory_figure - one figure
 * @bytes: the figure; HETMEM_MEMORY_UNKNOWN: not known, and @source has the reason
 * @counts: 1: @usable of struct hetmem_memory_info depends on it
 * @reserved: 0
 * @source: the call or file that returned it
 */
struct hetmem_memory_figure {
	uint64_t bytes;
	int counts;
	int reserved;
	char source[112];
};

/**
 * struct hetmem_memory_info - free memory of a device, or of the host
 * @size: in: sizeof(struct hetmem_memory_info). Programs that were built before @imported was
 *	added do not get it
 * @reserve: in: bytes to keep unused; 0: HETMEM_RESERVE of the environment, else the
 *	default; HETMEM_RESERVE_NONE: no bytes. out: bytes kept unused
 * @total: bytes of the device, or of the host
 * @usable: the smallest figure that counts, less @reserve, or 0;
 *	HETMEM_MEMORY_UNKNOWN: no figure that counts is known
 * @least: enum hetmem_memory_figure_id of the smallest, -1 if there is none
 * @pressures: calls of functions of hetmem_on_pressure(), see <hetmem/adaptor.h>: of all
 *	watermark()s of @device's memory, or the host's, since hetmem_open()
 * @figures: by enum hetmem_memory_figure_id
 * @imported: bytes that hetmem_import() maps for @device in this process. They are others'
 *	memory: no limit and no pool's statistics have them
 *
 * These figures count:
 * - for a device with memory of its own: DRIVER, MODULE and NODE;
 * - for an integrated device: the sum of DRIVER and CACHE, at most @total; and MODULE, HOST
 *   and CGROUP;
 * - for the host: HOST and CGROUP.
 * MODULE is known for devices that are registered with hetmem.ko.
 *
 * The default reserve is 1/32 of @total. For a device with memory of its own it is at most
 * 1 GiB. HETMEM_RESERVE is "512M", "4G", bytes or "5%"; hetmem_open() reads it.
 */
struct hetmem_memory_info {
	size_t size;
	uint64_t reserve;
	uint64_t total;
	uint64_t usable;
	int least;
	unsigned int pressures;
	struct hetmem_memory_figure figures[HETMEM_MEMORY_NR];
	uint64_t imported;
};

/*
 * Reports the free memory of @device; -1: of the host. Any thread may call, at any
 * time. The call takes about 100 us, and creates the device's primary context if there is
 * none.
 * Another process can take the memory before the call returns. An unknown figure, for
 * example because the driver failed, is no error. Errors:
 * -EINVAL: a NULL pointer or a short struct;
 * -ENODEV: no such device;
 * -EOWNERDEAD: @device is not -1, in a forked child.
 */
int hetmem_memory_info(struct hetmem *hm, int device,
		       struct hetmem_memory_info *info);

/* Returns "driver", "module", ... for enum hetmem_memory_figure_id; never NULL. */
const char *hetmem_memory_figure_name(int id);

#ifdef __cplusplus
}
#endif

#endif /* HETMEM_PLACE_H */
