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
 * struct hetmem_moved - what a prefetch did
 * @size: in: sizeof(struct hetmem_moved)
 * @how: what moved it: "module", "driver", "move_pages", "none"; never NULL
 * @reason: if @how is "none": why nothing was done; if @how is "driver": what the
 *	driver does instead of what was asked, "" if it does that
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
 * @moved->reason says so. Errors:
 * -EINVAL: bad range or location;
 * -ENODEV: no such device;
 * -EIO: the driver failed;
 * -ENOMEM, -EINTR.
 */
int hetmem_prefetch(struct hetmem *hm, const void *ptr, size_t size,
		    uint32_t location, hetmem_stream stream,
		    struct hetmem_moved *moved);

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

#ifdef __cplusplus
}
#endif

#endif /* HETMEM_PLACE_H */
