/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * hetmem - memory that CPUs and devices share: the ioctl interface of
 * /dev/hetmem.
 *
 * An open file is a context. It belongs to the address space (mm) of the
 * process that opened it, not to the process or the descriptor: after fork()
 * the child holds the parent's context and may not use it, after execve()
 * the process holds a context of its former self. Open with O_CLOEXEC.
 *
 * Every command takes a pointer to its struct, whose first member is the
 * size that the caller was compiled with. Structs grow at the end only:
 *  - a caller older than the kernel: members it lacks count as zero, and
 *    only the members it knows are written back;
 *  - a caller newer than the kernel: -E2BIG if a byte that the kernel does
 *    not know is not zero, otherwise those bytes come back zeroed.
 *
 * Errors that every command shares:
 *	-ENOTTY		no such command
 *	-EINVAL		size below the first version of the struct, an unknown
 *			flag, a reserved member that is not zero, an address
 *			that is not a multiple of the page size, or a range
 *			that is empty or backwards
 *	-ERANGE		a range that leaves the user address space
 *	-E2BIG		see above
 *	-EFAULT		the struct, or an array it points to, cannot be
 *			read or written
 *	-EPERM		the context belongs to another address space. Only
 *			INFO, RESIDENCY and STATS are allowed then, and only
 *			with CAP_SYS_PTRACE in the initial user namespace.
 *	-ESRCH		the address space of the context is gone; INFO and
 *			STATS, which do not look at it, still answer
 *	-ENOMEM		the kernel had no memory, or the caller's memory
 *			cgroup is at its limit
 *	-EINTR		a fatal signal came; commands that work in pieces say
 *			in walk_end how far they got
 * A command that fails with another error than the ones it names as partial
 * has changed nothing.
 *
 * /proc/PID/fdinfo/FD of a context has the lines "hetmem-pid:", the process
 * that opened it as the reader's pid namespace numbers it, 0 if it has gone,
 * and "hetmem-ranges:", its tracked ranges.
 */
#ifndef _UAPI_LINUX_HETMEM_H
#define _UAPI_LINUX_HETMEM_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define HETMEM_TYPE	0xE7

/*
 * The size is in the struct alone, so that a struct which grows does not
 * change its command's number.
 */
#define HETMEM_IOC_INFO		_IO(HETMEM_TYPE, 0x00)
#define HETMEM_IOC_TRACK	_IO(HETMEM_TYPE, 0x01)
#define HETMEM_IOC_UNTRACK	_IO(HETMEM_TYPE, 0x02)
#define HETMEM_IOC_RESIDENCY	_IO(HETMEM_TYPE, 0x03)
#define HETMEM_IOC_MIGRATE	_IO(HETMEM_TYPE, 0x04)
#define HETMEM_IOC_STATS	_IO(HETMEM_TYPE, 0x05)

/* Raised when the meaning of something changes; growth does not raise it. */
#define HETMEM_VERSION		1

/*
 * A location: where a page is. The kind in the upper half, an index in the
 * lower one.
 */
#define HETMEM_LOC(kind, index)	(((__u32)(kind) << 16) | ((index) & 0xffff))
#define HETMEM_LOC_KIND(loc)	((__u32)(loc) >> 16)
#define HETMEM_LOC_INDEX(loc)	((__u32)(loc) & 0xffff)

enum hetmem_location_kind {
	/*
	 * Mapped, but nothing that can be seen is there: never touched,
	 * swapped out, on its way, in a mapping that may not be read, or on
	 * a device whose driver has not been seen yet. The page tables do
	 * not tell a module which of these it is.
	 */
	HETMEM_UNKNOWN	= 0,
	/* No mapping at this address. */
	HETMEM_UNMAPPED	= 1,
	/* Host memory; the index is the NUMA node. */
	HETMEM_HOST	= 2,
	/* A device registered with hetmem; the index is its id in INFO. */
	HETMEM_DEVICE	= 3,
	/*
	 * Device memory of another driver; the index numbers its pools of
	 * pages (one per GPU) in the order in which they were first seen.
	 */
	HETMEM_FOREIGN	= 4,
};

#define HETMEM_NODE_ANY		0xffff

/*
 * Why memory stays on the host or could not be moved, as far as its mapping
 * tells. Bits.
 */
#define HETMEM_WHY_FILE		(1U << 0)	/* file-backed mapping */
#define HETMEM_WHY_SHMEM	(1U << 1)	/* shared memory, tmpfs */
#define HETMEM_WHY_HUGETLB	(1U << 2)	/* hugetlb pages */
#define HETMEM_WHY_SPECIAL	(1U << 3)	/* device memory, PFNMAP, DAX */
#define HETMEM_WHY_UFFD		(1U << 4)	/* userfaultfd is armed */
#define HETMEM_WHY_MLOCKED	(1U << 5)	/* mlock()ed */
#define HETMEM_WHY_NOT_READABLE	(1U << 6)	/* no PROT_READ */
#define HETMEM_WHY_PINNED_BY_US	(1U << 7)	/* held by MIGRATE with PIN */
/*
 * Nothing is visible in an ordinary mapping: never touched, swapped out, or
 * maybe on a device whose driver has not been seen so far.
 */
#define HETMEM_WHY_UNKNOWN_OWNER (1U << 8)
#define HETMEM_WHY_UNMAPPED	(1U << 9)	/* no mapping */
#define HETMEM_WHY_ABSENT	(1U << 10)	/* no page there to move */
#define HETMEM_WHY_BUSY		(1U << 11)	/* locked, pinned or in use */
#define HETMEM_WHY_NO_MEMORY	(1U << 12)	/* the target has no room */
#define HETMEM_WHY_OTHER_NODE	(1U << 13)	/* on the host: move_pages(2) */

/**
 * struct hetmem_device_info - one device that is registered with hetmem
 * @id: its number, the index of its location
 * @caps: HETMEM_DEVICE_*
 * @capacity: bytes it has for pages
 * @used: bytes of them in use
 * @name: NUL-terminated
 */
struct hetmem_device_info {
	__u32		id;
	__u32		caps;
	__aligned_u64	capacity;
	__aligned_u64	used;
	char		name[32];
};

#define HETMEM_DEVICE_EVICTS	(1U << 0)	/* makes room by itself */
#define HETMEM_DEVICE_TO_NODE	(1U << 1)	/* honours a NUMA node */

/**
 * struct hetmem_cmd_info - HETMEM_IOC_INFO: what this module is and has
 * @size: sizeof(struct hetmem_cmd_info)
 * @flags: 0
 * @version: out, HETMEM_VERSION
 * @block_shift: out, log2 of the block in which residency is walked and
 *	pages are moved
 * @features: out, HETMEM_FEATURE_*
 * @max_ranges: out, tracked ranges that one context may have
 * @nr_ranges: out, tracked ranges that this context has
 * @devices: in, array of struct hetmem_device_info, may be 0 if @nr_devices
 *	is 0
 * @device_size: in, sizeof(struct hetmem_device_info): less than that is
 *	-EINVAL if @nr_devices is not 0, more comes back zeroed
 * @nr_devices: in, entries that @devices has room for; out, devices that
 *	there are, which can be more
 */
struct hetmem_cmd_info {
	__u32		size;
	__u32		flags;
	__u32		version;
	__u32		block_shift;
	__aligned_u64	features;
	__u32		max_ranges;
	__u32		nr_ranges;
	__aligned_u64	devices;
	__u32		device_size;
	__u32		nr_devices;
};

/* The kernel was built with CONFIG_DEVICE_PRIVATE. */
#define HETMEM_FEATURE_DEVICE_PRIVATE	(1ULL << 0)

/**
 * struct hetmem_cmd_track - HETMEM_IOC_TRACK: count what happens to a range
 * @size: sizeof(struct hetmem_cmd_track)
 * @flags: 0
 * @start: first byte, page-aligned
 * @end: first byte behind it, page-aligned
 *
 * Mappings are not looked at: what is not mapped (yet, or any more) is
 * tracked like the rest. The range lasts until UNTRACK or close(); munmap()
 * leaves it, and mremap() does not take it along.
 *
 * Errors: -EEXIST it overlaps a tracked range, -ENOSPC the context has
 * max_ranges.
 */
struct hetmem_cmd_track {
	__u32		size;
	__u32		flags;
	__aligned_u64	start;
	__aligned_u64	end;
};

/**
 * struct hetmem_cmd_untrack - HETMEM_IOC_UNTRACK: end a tracked range
 * @size: sizeof(struct hetmem_cmd_untrack)
 * @flags: 0
 * @start: as it was tracked
 * @end: as it was tracked
 *
 * Errors: -ENOENT no range with exactly these bounds is tracked.
 */
struct hetmem_cmd_untrack {
	__u32		size;
	__u32		flags;
	__aligned_u64	start;
	__aligned_u64	end;
};

/**
 * struct hetmem_run - consecutive pages that have everything in common
 * @start: first byte
 * @end: first byte behind it
 * @location: HETMEM_LOC()
 * @order: log2 of the pages that one page table entry maps
 * @flags: 0
 * @why: HETMEM_WHY_*, 0 for pages on a device
 * @reserved: 0
 */
struct hetmem_run {
	__aligned_u64	start;
	__aligned_u64	end;
	__u32		location;
	__u16		order;
	__u16		flags;
	__u32		why;
	__u32		reserved;
};

/**
 * struct hetmem_total - pages seen at one location
 * @location: HETMEM_LOC()
 * @reserved: 0
 * @pages: base pages
 */
struct hetmem_total {
	__u32		location;
	__u32		reserved;
	__aligned_u64	pages;
};

/* Locations that one call can total. */
#define HETMEM_MAX_TOTALS	64

/**
 * struct hetmem_cmd_residency - HETMEM_IOC_RESIDENCY: where pages are
 * @size: sizeof(struct hetmem_cmd_residency)
 * @flags: 0
 * @start: first byte, page-aligned; tracked or not
 * @end: first byte behind it, page-aligned
 * @walk_end: out, how far the walk came: @end, or where to go on
 * @runs: in, array of struct hetmem_run, may be 0 if @nr_runs is 0
 * @nr_runs: in, entries of @runs; 0 asks for totals only
 * @filled_runs: out, entries filled
 * @kinds: in, bit (1 << kind) set: report runs of this kind; 0 means all
 * @reserved: 0
 * @max_pages: in, stop after reporting this many pages; 0 means no limit
 * @totals: in, array of struct hetmem_total, may be 0 if @nr_totals is 0
 * @nr_totals: in, entries of @totals, at most HETMEM_MAX_TOTALS
 * @filled_totals: out, entries filled: pages in [@start, @walk_end) by
 *	location, of all kinds, whatever @kinds says
 *
 * The answer for each block of 2 MiB (see INFO) is a snapshot that was true
 * at one moment; different blocks have different moments. Nothing is
 * faulted in and nothing moves.
 *
 * Stops early, with 0 and @walk_end below @end, when @runs is full or
 * @max_pages is reached; to go on, call again from @walk_end. A run is
 * split where a call stops.
 *
 * Errors: -ENOSPC more locations than @nr_totals; partial, with everything
 * up to @walk_end in place: -EBUSY the range was changing all the time,
 * -EINTR.
 */
struct hetmem_cmd_residency {
	__u32		size;
	__u32		flags;
	__aligned_u64	start;
	__aligned_u64	end;
	__aligned_u64	walk_end;
	__aligned_u64	runs;
	__u32		nr_runs;
	__u32		filled_runs;
	__u32		kinds;
	__u32		reserved;
	__aligned_u64	max_pages;
	__aligned_u64	totals;
	__u32		nr_totals;
	__u32		filled_totals;
};

/**
 * struct hetmem_cmd_migrate - HETMEM_IOC_MIGRATE: move pages
 * @size: sizeof(struct hetmem_cmd_migrate)
 * @flags: HETMEM_MIGRATE_*; HETMEM_MIGRATE_POPULATE goes with the host only
 * @start: first byte, page-aligned
 * @end: first byte behind it, page-aligned
 * @location: in, HETMEM_LOC(HETMEM_DEVICE, id), or HETMEM_LOC(HETMEM_HOST,
 *	node or HETMEM_NODE_ANY). A node is honoured for pages that come from
 *	a device with HETMEM_DEVICE_TO_NODE.
 * @why: out, HETMEM_WHY_* of the first page in @not_moved, at @why_addr
 * @walk_end: out, how far it came: @end, or where to go on
 * @moved: out, pages that this call moved
 * @already: out, pages that were there before
 * @not_moved: out, pages left where they are; moved + already + not_moved
 *	is the number of pages in [@start, @walk_end)
 * @why_addr: out, address of the first page in @not_moved
 *
 * Pages may move again at any time: what was moved is what arrived, not
 * what is still there. A page that cannot move, or an address where nothing
 * is, stops nothing: it is counted in @not_moved and @why says why. To a
 * device, memory that was never touched is given device pages (zeroed) as a
 * device's own fault would; a page that another process maps too is moved
 * for both.
 *
 * To the host, works for the pages of any device, first the ones of devices
 * registered with hetmem through their drivers, then others by faulting, as
 * the CPU would, what was seen on a device; with HETMEM_MIGRATE_POPULATE
 * every page that is absent is faulted in too. Memory with userfaultfd is
 * left alone in both directions.
 *
 * Synchronous; a fatal signal ends it.
 *
 * Errors: -ENODEV no such device, -EOPNOTSUPP a location that nothing can be
 * moved to (or a host node that is not online); partial, with the counters
 * in place: -EBUSY the memory was changing all the time, -EINTR, and what
 * else the device's driver says when the device fails.
 */
struct hetmem_cmd_migrate {
	__u32		size;
	__u32		flags;
	__aligned_u64	start;
	__aligned_u64	end;
	__u32		location;
	__u32		why;
	__aligned_u64	walk_end;
	__aligned_u64	moved;
	__aligned_u64	already;
	__aligned_u64	not_moved;
	__aligned_u64	why_addr;
};

#define HETMEM_MIGRATE_POPULATE	(1U << 0)

/* What an MMU notification said; index of hetmem_cmd_stats.notified. */
enum hetmem_notification {
	HETMEM_NOTIFY_UNMAP	= 0,	/* munmap, mremap, exit */
	HETMEM_NOTIFY_CLEAR	= 1,	/* reclaim, COW, KSM, eviction */
	HETMEM_NOTIFY_PROTECTION = 2,	/* mprotect, write protection */
	HETMEM_NOTIFY_SOFT_DIRTY = 3,
	HETMEM_NOTIFY_RELEASE	= 4,	/* the address space ends */
	HETMEM_NOTIFY_MIGRATE	= 5,	/* a device's driver moves pages */
	HETMEM_NOTIFY_EXCLUSIVE	= 6,	/* a device's driver wants atomics */
	HETMEM_NOTIFY_OTHER	= 7,	/* a type younger than this module */
	HETMEM_NOTIFY_NR	= 8,
};

/**
 * struct hetmem_cmd_stats - HETMEM_IOC_STATS: what happened to a range
 * @size: sizeof(struct hetmem_cmd_stats)
 * @flags: HETMEM_STATS_*
 * @start: in, any page-aligned address inside a tracked range; out, its first byte
 * @end: out, the first byte behind it
 * @notified: out, notifications that overlapped it, by type
 * @to_device: out, pages moved to devices registered with hetmem
 * @to_host: out, pages moved to the host: asked for here, faulted by the
 *	CPU or evicted, as far as their driver told
 * @failed: out, pages that MIGRATE left in not_moved and were not absent
 *
 * With HETMEM_STATS_CONTEXT the whole context is meant, ranges that ended
 * and memory that is not tracked included; @start must be 0.
 *
 * Errors: -ENOENT no tracked range is there.
 */
struct hetmem_cmd_stats {
	__u32		size;
	__u32		flags;
	__aligned_u64	start;
	__aligned_u64	end;
	__aligned_u64	notified[HETMEM_NOTIFY_NR];
	__aligned_u64	to_device;
	__aligned_u64	to_host;
	__aligned_u64	failed;
};

#define HETMEM_STATS_CONTEXT	(1U << 0)

#endif /* _UAPI_LINUX_HETMEM_H */
