/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Where memory is, and moving it.
 *
 * A location to move to is HETMEM_LOC(HETMEM_DEVICE, ordinal of the driver's
 * device) or HETMEM_LOC(HETMEM_HOST, node). A device that only the kernel module
 * knows has the index 0x8000 + its id there. hetmem_residency() also reports the
 * other kinds of <linux/hetmem.h>.
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
 * @moves: 1: pages of that memory can move into the device's own
 * @managed: 1: the device can use managed memory
 * @concurrent: 1: so can the CPU, at the same time
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
 * Fills @platform for a device of the driver in use. The verdict is made once,
 * by hetmem_open(); a forked child may ask, too. Errors: -ENODEV: no such
 * device.
 */
int hetmem_platform(struct hetmem *hm, int device,
		    struct hetmem_platform *platform);

/* "HMM", "ATS", ... for enum hetmem_platform_kind; never NULL. */
const char *hetmem_platform_name(int kind);

/**
 * struct hetmem_evidence - one piece of what a verdict is made of
 * @size: in: sizeof(struct hetmem_evidence)
 * @source: who says it: "driver", "nvml", "kernel", "module"
 * @what: one word
 * @value: "yes", "no", "none", a number, a size; or "unknown: " and why
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
 * Returns the contradiction number @index, from 0, in the evidence about
 * @device: one line that lives until hetmem_close(). NULL: there is no further
 * one, or no such device.
 */
const char *hetmem_contradiction(struct hetmem *hm, int device,
				 unsigned int index);

/*
 * Allocates @size bytes of zeroed system memory at a multiple of 2 MiB (of 512
 * bytes at least, if @size is below 2 MiB). Huge pages are advised, and the
 * module tracks the memory if it is there. Pages are placed on first touch.
 * Errors: -ENOMEM.
 */
int hetmem_system_alloc(struct hetmem *hm, size_t size, void **ptr);

/*
 * Frees memory of hetmem_system_alloc(). All device work on it must be
 * complete. Errors: -EINVAL: @ptr is not allocated, and nothing has changed;
 * NULL too.
 */
int hetmem_system_free(struct hetmem *hm, void *ptr);

/*
 * mremap(2) for memory of hetmem_system_alloc(): *@new_ptr has @new_size
 * bytes, at the same address or another multiple of 2 MiB. Contents are kept
 * up to the smaller size. The module tracks the new range, which mremap(2)
 * alone would lose. After an error nothing has changed. Errors: -ENOMEM.
 */
int hetmem_system_resize(struct hetmem *hm, void *ptr, size_t new_size,
			 void **new_ptr);

/**
 * struct hetmem_moved - what a call did about the place of memory
 * @size: in: sizeof(struct hetmem_moved)
 * @how: who did it: "module", "driver", "move_pages", "mbind", "none"; never NULL
 * @reason: if @how is "none": why nothing was done; else what was done instead of
 *	what was asked, "" if that was done
 * @moved: pages moved, as far as known when the call returns
 * @already: pages that were there
 * @not_moved: pages that stayed where they were
 * @why: HETMEM_WHY_* of the first of these
 * @why_addr: its address
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
 * Moves all pages that overlap [@ptr, @ptr + @size), any memory of this
 * process, to @location (a host node may be HETMEM_NODE_ANY). @moved may be
 * NULL. It is moved by
 * - the module, to its devices and from them to the host. Synchronous:
 *   @stream is ignored;
 * - move_pages(2), between host nodes. Synchronous, too;
 * - cuMemPrefetchAsync() on @stream, if the driver can move this memory.
 * If none of them can, @moved->how is "none": that is no error. On a CDMM device the
 * driver moves memory that is not managed to the host node nearest to the device;
 * @moved->reason says so. What the driver cannot move counts in @moved->not_moved:
 * holes and, with HMM, files, shared memory and pages of hugetlbfs. Where a
 * headroom() of a spec keeps memory of the device free, so does the end that does not fit;
 * @moved->reason has the number that fits, until the thread's next prefetch. Errors:
 * -EINVAL: bad range or location; the range begins in one kind of memory and ends in
 *	another; the driver refuses the range or the stream;
 * -ENODEV: no such device;
 * -EOWNERDEAD: a forked child's @hm;
 * -EIO: the driver failed;
 * -ENOMEM: also if a headroom() leaves no room at all; the text has the number that fits;
 * -EINTR.
 */
int hetmem_prefetch(struct hetmem *hm, const void *ptr, size_t size,
		    uint32_t location, hetmem_stream stream,
		    struct hetmem_moved *moved);

/* The host does not wait: the move is done in the order of the stream. */
#define HETMEM_NONBLOCKING	(1U << 0)

/*
 * hetmem_prefetch() in the order of @stream, without a copy: the address stays. Work
 * that @stream was given before uses the memory where it was. Returns when all of that
 * work and the move are over, also if nothing had to be moved; the CPU may use the
 * memory then. With HETMEM_NONBLOCKING in @flags it returns at once, and work that @stream is
 * given later sees the move done. The module and move_pages(2) know no stream: with
 * HETMEM_NONBLOCKING they move at once, and @moved->reason says so. HETMEM_STREAM_HOST:
 * the caller has no work to wait for.
 *
 * Errors, beside those of hetmem_prefetch():
 * -EINVAL: unknown @flags; @stream is none;
 * -EBUSY: @stream is captured;
 * -EIO: work of @stream, or the driver, failed.
 * After an error of the stream's work the memory may have moved.
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
 * @result: out: 0 or a negative errno, as of hetmem_prefetch()
 * @piece: out: number of the range that has the counts of this one in its @moved:
 *	its own, or that of the first range of the contiguous piece it went with
 * @moved: out: what was done; may be NULL
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
 * hetmem_prefetch() of @nr ranges, of any memory to any locations, all on @stream.
 * Contiguous ranges to one location go as one piece, which is much faster than one by
 * one; their order does not count. All are tried, and each has its own result.
 * Returns 0, or the error of the first range that failed, by number, with the number in
 * hetmem_last_error(). Errors of the call, after which nothing was tried:
 * -EINVAL: @hm or @ranges is NULL, a size is wrong;
 * -EOWNERDEAD: a forked child's @hm;
 * -ENOMEM.
 */
int hetmem_prefetch_batch(struct hetmem *hm, struct hetmem_prefetch_range *ranges,
			  size_t nr, hetmem_stream stream);

/*
 * The contents of [@ptr, @ptr + @size) are dead from here on in the order of @stream:
 * they need not be moved, and are undefined until they are written again. Only pages
 * that are wholly in the range are discarded. @done may be NULL; @done->how is
 * - "driver": cuMemDiscardBatchAsync(), for managed memory;
 * - "none", and @done->reason tells why: nothing changes, the contents stay. So it is
 *   with all memory that the driver did not allocate, and on integrated devices.
 *
 * Discard only what a device writes next. A CPU that touches discarded memory takes
 * faults that are several times slower. Access while the discard runs is undefined.
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
	HETMEM_ADVISE_ACCESSED_BY,	/* the location's processor uses it from afar */
	HETMEM_ADVISE_NOT_ACCESSED_BY,
	HETMEM_ADVISE_READ_MOSTLY,	/* each processor may have a copy */
	HETMEM_ADVISE_NOT_READ_MOSTLY,
};

/*
 * Gives @advice about all pages that overlap [@ptr, @ptr + @size), any memory of this
 * process. It moves nothing by itself. @location counts for PREFERRED, ACCESSED_BY and
 * NOT_ACCESSED_BY: a device of the driver, or the host (ACCESSED_BY: whichever
 * node). @done may be NULL; @done->how is
 * - "driver": cuMemAdvise(), for managed memory, and with HMM for all memory;
 * - "mbind": mbind(2), with ATS and CDMM and between host nodes. It replaces the
 *   memory policy of the range; NOT_PREFERRED sets the default one;
 * - "none", and @done->reason tells why: the advice makes no difference here.
 * @done->reason also tells what is done instead of what was asked. With HMM @done->why
 * and @done->not_moved tell of mappings whose pages stay on the host all the same.
 *
 * Takes effect at once, in no order with streams. Any thread may call.
 *
 * Advice in force is remembered: hetmem_advised() reports it. It is forgotten when
 * the library frees or unmaps the memory. Blocks of a pool: the advice about pages
 * that are wholly the block's is taken back by hetmem_free(). It is given again by
 * hetmem_system_resize() and hetmem_grow(); memory added takes the advice of the page
 * before it. Memory that the program unmaps itself keeps it here: give NOT_ advice
 * before.
 *
 * Errors, after which nothing has changed:
 * -EINVAL: bad range, advice or location; part of the range is not mapped; with mbind(2)
 *	the range begins or ends within a mapping that the kernel cannot split, as half a
 *	page of hugetlbfs;
 * -ENODEV: no such device;
 * -ENOSPC: 16,384 separate ranges have advice;
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
 * @end: first byte after it
 * @devices: bit of each device that it is accessed by
 * @preferred: location; of kind HETMEM_UNKNOWN: none
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
 * Reports what was advised about [@ptr, @ptr + @size), as hetmem_residency() reports
 * where it is: fills @ranges (room for @nr) in order of their addresses and returns
 * their number, 0 if there is no advice. *@next becomes where to go on: the
 * page-aligned end once everything is reported. Errors:
 * -EINVAL: bad range, or no room;
 * -EOWNERDEAD: a forked child's @hm.
 */
ssize_t hetmem_advised(struct hetmem *hm, const void *ptr, size_t size,
		       struct hetmem_advised *ranges, size_t nr, uintptr_t *next);

/* The program detaches memory before it unmaps it: nobody need watch. */
#define HETMEM_ATTACH_PROMISE	(1U << 0)
/*
 * A forked child does not get the pages that are wholly in the range. After the last
 * hetmem_detach() children get them, also if the program had kept them from children.
 */
#define HETMEM_ATTACH_DONTFORK	(1U << 1)

/**
 * struct hetmem_attach_params - options of hetmem_attach()
 * @size: sizeof(struct hetmem_attach_params)
 * @flags: HETMEM_ATTACH_*
 * @chunk: register pieces of so many bytes, a multiple of the page size; 0: one piece.
 *	One piece of very large memory can take minutes and hold locks of the driver, and
 *	Linux 6.11 to 6.13 pin at most 2 GB at once. But a copy across two pieces
 *	fails: the program then copies piece by piece
 * @release: called with @owner when the attachment ends, or NULL: the memory stays
 *	mapped until then. By any thread, the library's own too, without locks
 * @owner: a reference to whatever keeps the memory alive
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
 * the devices in place. @params and @done may be NULL; @done->how is
 * - "driver": it is registered, which pins it. Read-only memory: the device may only
 *   read it, and @done->reason says so;
 * - "none", and @done->reason tells why: the devices use it as it is (HMM, ATS, CDMM,
 *   integrated; managed and page-locked memory; part of attached memory).
 * In either case hetmem_detach() with the same @ptr and @size ends it. Memory may be
 * attached many times, and parts of attached memory too; it stays registered until
 * the last of them ends. @params->chunk and HETMEM_ATTACH_DONTFORK are those of the first.
 *
 * What a device writes to memory that was unmapped meanwhile is lost without an error.
 * With the module, memory that the program unmaps or remaps, even in part, is detached by
 * the library, soon after and before the next attachment. Without, @params->release
 * must be set, so that the owner keeps it mapped, or HETMEM_ATTACH_PROMISE.
 *
 * fork() copies pinned memory for the child, at about 1.6 GB/s: the child may use it as
 * any memory, but its devices may not. HETMEM_ATTACH_DONTFORK spares the copy, and a
 * child that touches these pages gets SIGSEGV. It is not the default, because a child may
 * use what it inherits.
 *
 * Any thread may call. The memory must not be discarded with madvise(2) while it is
 * attached. After hetmem_close() nothing is attached, and all owners are released.
 *
 * Errors, after which nothing has changed and the owner is not released:
 * -EINVAL: bad range or @params; part of it is not mapped; memory of a device; nobody
 *	would notice an unmap; it begins or ends within a mapping that cannot be split, which
 *	HETMEM_ATTACH_DONTFORK needs;
 * -EACCES: part of it cannot be read;
 * -EEXIST: it overlaps attached memory and is not within it, or memory that the
 *	program has registered;
 * -EOPNOTSUPP: the device cannot use registered memory, or not this;
 * -ENODEV: there is no device;
 * -EOWNERDEAD: a forked child's @hm;
 * -EIO: the driver failed;
 * -ENOMEM.
 */
int hetmem_attach(struct hetmem *hm, void *ptr, size_t size,
		  const struct hetmem_attach_params *params,
		  struct hetmem_moved *done);

/*
 * Ends one attachment of exactly @ptr and @size. All device work on it must be complete.
 * Errors, after which nothing has changed:
 * -ENOENT: it is not attached, or its memory was unmapped, which detached it;
 * -ENODEV: there is no device;
 * -EOWNERDEAD: a forked child's @hm;
 * -EIO: the driver failed: it is still attached. With @params->chunk the devices may have
 *	lost some chunks, if the driver fails to register them again: detach again.
 */
int hetmem_detach(struct hetmem *hm, void *ptr, size_t size);

/* Who says where the pages of a run are. */
enum hetmem_source {
	HETMEM_SOURCE_UNKNOWN,		/* nobody; the location is HETMEM_UNKNOWN */
	HETMEM_SOURCE_MODULE,		/* the kernel, through hetmem.ko */
	HETMEM_SOURCE_MOVE_PAGES,	/* the kernel, by move_pages(2) */
	HETMEM_SOURCE_REQUEST,		/* the driver: where a prefetch last sent them */
};

/*
 * Reports where the pages of [@ptr, @ptr + @size) are: fills @runs (room for
 * @nr) and returns their number. *@next becomes the first address that is not
 * reported, which is the page-aligned end once everything is.
 *
 * With the module, runs are the kernel's truth. Without, move_pages(2) finds host
 * nodes only. A node that is a device's memory (ATS) is reported as that device.
 * Pages that another driver's device shares coherently (CDMM) are HETMEM_COHERENT,
 * which only the module tells.
 *
 * @sources has room for @nr, too, or is NULL: who says so, enum hetmem_source. It
 * is an array of its own because the kernel writes @runs. With @sources, the driver
 * is asked about a run of which the kernel knows nothing. Its answer is a request,
 * not the truth: pages may have moved since. It counts only if all of the run was
 * sent to one place. Without @sources such a run stays HETMEM_UNKNOWN.
 * hetmem_advised() reports what was advised of the same range.
 *
 * Errors:
 * -EINVAL: a bad range;
 * -EOWNERDEAD: a forked child's @hm;
 * -ENOMEM, -EIO, and others of the kernel, if nothing was found before.
 */
ssize_t hetmem_residency(struct hetmem *hm, const void *ptr, size_t size,
			 struct hetmem_run *runs, uint8_t *sources, size_t nr,
			 uintptr_t *next);

/*
 * "host node 0", "device 1", "device 0 (node 2)", ...: at most @len bytes. Returns
 * @buf. With @hm NULL a node that is a device's memory is a host node.
 */
char *hetmem_location_name(struct hetmem *hm, uint32_t location, char *buf,
			   size_t len);

/* "file, mlocked", ... for HETMEM_WHY_*; "" for 0. Returns @buf. */
char *hetmem_why_names(uint32_t why, char *buf, size_t len);

/*
 * How much memory is left. No single figure can be trusted: the driver of an integrated
 * device leaves out what the page cache would give back, the kernel's figure knows no
 * cgroup, and a full host hangs. So hetmem_memory_info() takes the least of several,
 * less a reserve, and shows each one.
 */

/* A figure that nobody told, or a limit that does not exist. */
#define HETMEM_MEMORY_UNKNOWN	UINT64_MAX

/* For struct hetmem_memory_info.reserve: keep nothing back. */
#define HETMEM_RESERVE_NONE	UINT64_MAX

enum hetmem_memory_figure_id {
	HETMEM_MEMORY_DRIVER,	/* free, as the driver tells (cuMemGetInfo) */
	HETMEM_MEMORY_MODULE,	/* not used by device pages, as hetmem.ko tells */
	HETMEM_MEMORY_NODE,	/* free in the node that is the device's memory */
	HETMEM_MEMORY_HOST,	/* available on the host */
	HETMEM_MEMORY_CGROUP,	/* that the process's cgroups allow in addition */
	HETMEM_MEMORY_CACHE,	/* page cache that the kernel can drop */
	HETMEM_MEMORY_NR
};

/**
 * struct hetmem_memory_figure - one figure
 * @bytes: HETMEM_MEMORY_UNKNOWN: not known, @source tells why
 * @counts: 1: @usable depends on it
 * @reserved: 0
 * @source: who tells it, and from what
 */
struct hetmem_memory_figure {
	uint64_t bytes;
	int counts;
	int reserved;
	char source[112];
};

/**
 * struct hetmem_memory_info - how much memory a device, or the host, has left
 * @size: in: sizeof(struct hetmem_memory_info)
 * @reserve: in: bytes to keep back; 0: HETMEM_RESERVE of the environment, else the
 *	default; HETMEM_RESERVE_NONE: none. out: bytes that are kept back
 * @total: of the device, or of the host
 * @usable: least of the figures that count, less @reserve, or 0;
 *	HETMEM_MEMORY_UNKNOWN: nobody told one
 * @least: enum hetmem_memory_figure_id of the least, -1 if there is none
 * @reserved: 0
 * @figures: by enum hetmem_memory_figure_id
 *
 * These count: for a device with memory of its own DRIVER, MODULE and NODE; for an
 * integrated device the sum of DRIVER and CACHE, and MODULE, HOST and CGROUP; for the
 * host HOST and CGROUP. MODULE is known for devices that are registered with hetmem.ko.
 *
 * The default reserve is 1/32 of @total, and at most 1 GiB for a device with memory of
 * its own. HETMEM_RESERVE is "512M", "4G", bytes or "5%"; hetmem_open() reads it.
 */
struct hetmem_memory_info {
	size_t size;
	uint64_t reserve;
	uint64_t total;
	uint64_t usable;
	int least;
	int reserved;
	struct hetmem_memory_figure figures[HETMEM_MEMORY_NR];
};

/*
 * Asks how much memory @device has left; -1: the host. Any thread may ask, at any
 * time; it takes about 100 us, and creates the device's primary context if need be. What is
 * free can be gone when the call returns. Errors:
 * -EINVAL: a NULL pointer or a short struct;
 * -ENODEV: no such device;
 * -EOWNERDEAD: a device, in a forked child.
 * A figure that cannot be told, because of the driver's error for example, is no error.
 */
int hetmem_memory_info(struct hetmem *hm, int device,
		       struct hetmem_memory_info *info);

/* "driver", "module", ... for enum hetmem_memory_figure_id; never NULL. */
const char *hetmem_memory_figure_name(int id);

#ifdef __cplusplus
}
#endif

#endif /* HETMEM_PLACE_H */
