/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * hetmem - memory that CPUs and devices share: the ioctl interface of
 * /dev/hetmem.
 *
 * An open file is a context. It belongs to the address space (mm) of the
 * process that opened it, not to the process or the descriptor: after fork()
 * the child holds the parent's context and may not use it, after execve()
 * the process holds a context of its former self. Open with O_CLOEXEC. open()
 * says -EDQUOT when the user has caps/max_contexts of sysfs open already, and
 * -ENODEV while the module is being loaded.
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
 *			flag, a reserved member that is not zero, another
 *			member that is not what its line allows, an address
 *			that is not a multiple of the page size, or a range
 *			that is empty or backwards
 *	-ERANGE		a range that leaves the user address space
 *	-E2BIG		see above; or the size of the struct, or of an
 *			array's entry, is more than a page
 *	-EFAULT		the struct, or an array it points to, cannot be
 *			read or written
 *	-EPERM		the context belongs to another address space. Only
 *			INFO, RESIDENCY, STATS and GET_ATTR are allowed then,
 *			if the context is SHAREABLE or the caller has
 *			CAP_SYS_PTRACE, and HINT, if the context says
 *			ALLOW_HINTS or the caller has CAP_SYS_NICE; both in
 *			the initial user namespace.
 *	-ESRCH		RESIDENCY: the address space of the context is gone.
 *			INFO, STATS and GET_ATTR, which do not look at it,
 *			still answer, and a HINT finds no executor (-ENXIO).
 *	-ENOMEM		the kernel had no memory, or the caller's memory
 *			cgroup is at its limit
 *	-EINTR		a fatal signal came; commands that work in pieces say
 *			in walk_end how far they got
 * A command that fails with another error than the ones it names as partial
 * has changed nothing, but for -EFAULT where the command was carried out and
 * the answer could not be written.
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
#define HETMEM_IOC_RING		_IO(HETMEM_TYPE, 0x06)
#define HETMEM_IOC_REFRESH	_IO(HETMEM_TYPE, 0x07)
#define HETMEM_IOC_SET_ATTR	_IO(HETMEM_TYPE, 0x08)
#define HETMEM_IOC_GET_ATTR	_IO(HETMEM_TYPE, 0x09)
#define HETMEM_IOC_BIND_DEVICE	_IO(HETMEM_TYPE, 0x0a)
#define HETMEM_IOC_HINT		_IO(HETMEM_TYPE, 0x0b)
#define HETMEM_IOC_COMPLETE	_IO(HETMEM_TYPE, 0x0c)
#define HETMEM_IOC_LIST		_IO(HETMEM_TYPE, 0x0d)

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
#define HETMEM_WHY_SPECIAL	(1U << 3)	/* device memory, DAX, secret */
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
#define HETMEM_WHY_BUSY		(1U << 11)	/* locked, pinned, in use, contended */
#define HETMEM_WHY_NO_MEMORY	(1U << 12)	/* no room, for it or what is before */
#define HETMEM_WHY_OTHER_NODE	(1U << 13)	/* on the host: move_pages(2) */
#define HETMEM_WHY_MERGEABLE	(1U << 14)	/* KSM may merge it, or has */
/*
 * It is part of a large folio that the CPU maps by pages. The kernel does not
 * migrate these to devices; madvise(2) with MADV_COLD on a page has it split.
 */
#define HETMEM_WHY_LARGE_FOLIO	(1U << 15)

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
 * max_ranges, or its ranges would have more blocks of 2 MiB than
 * caps/max_blocks of sysfs: by default 1048576, and a range of more than 2 TiB
 * is refused.
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
 * @timeout_ms: in, for HETMEM_MIGRATE_PIN, 1 to HETMEM_PIN_TIMEOUT_MAX; else 0
 * @filled_rest: out, entries of @rest filled
 * @pinned: out, pages that are held
 * @rest: in, array of struct hetmem_run, may be 0 if @nr_rest is 0
 * @nr_rest: in, entries of @rest: 0, or at least HETMEM_REST_MIN; the walk
 *	stops, with 0, when fewer than that are left
 * @reserved: 0
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
 * left alone in both directions, memory that KSM may merge (MADV_MERGEABLE,
 * PR_SET_MEMORY_MERGE) towards devices. So is, until it is written to, a page
 * of other memory that was shared by fork() with a process where it could be
 * merged, and was.
 *
 * A host node is honoured for what comes from devices that can; pages of the
 * host on another node userspace must move itself, with move_pages(2): they
 * count as not_moved, and @rest lists them, so that it need not look again.
 * So it does with HETMEM_WHY_LARGE_FOLIO towards devices, on kernels before 7:
 * userspace has them split and asks again.
 *
 * HETMEM_MIGRATE_PIN (to the host only) holds the pages that are there
 * afterwards for @timeout_ms: no device's driver, no NUMA balancing and no
 * compaction moves them. They are charged to the address space's pinned
 * pages (VmPin), twice if they are pinned twice, and RLIMIT_MEMLOCK applies
 * unless the caller has CAP_IPC_LOCK. What is not there is left out; memory
 * that is not written may be copied, as by a write. A pin ends early where its
 * memory is unmapped (mremap() and execve() unmap), and with the context; the
 * charge ends shortly after.
 *
 * Synchronous; a fatal signal ends it.
 *
 * Errors: -ENODEV no such device, -EOPNOTSUPP a location that nothing can be
 * moved to (or a host node that is not online); partial, with the counters
 * in place: -EBUSY the memory was changing all the time, -EINTR, -EDQUOT
 * RLIMIT_MEMLOCK or caps/max_pins of sysfs does not allow the pin, or the
 * administrator has limited the device to less than a page, and what else the
 * device's driver says when the device fails.
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
	__u32		timeout_ms;
	__u32		filled_rest;
	__aligned_u64	pinned;
	__aligned_u64	rest;
	__u32		nr_rest;
	__u32		reserved;
};

#define HETMEM_MIGRATE_POPULATE	(1U << 0)
#define HETMEM_MIGRATE_PIN	(1U << 1)

#define HETMEM_PIN_TIMEOUT_MAX	3600000
#define HETMEM_REST_MIN		512

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
 * @on_device: out, pages of the range on a device when last known: told by
 *	the device's driver, or seen by REFRESH; 0 for a context
 * @dirty_blocks: out, blocks that changed since they were last looked at
 * @as_of: out, CLOCK_MONOTONIC in ns, when the last complete REFRESH began
 * @thrashed: out, how often a block of it was found to thrash
 *
 * The last three, too, are 0 for a context.
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
	__aligned_u64	on_device;
	__aligned_u64	dirty_blocks;
	__aligned_u64	as_of;
	__aligned_u64	thrashed;
};

#define HETMEM_STATS_CONTEXT	(1U << 0)

/* What an event tells; bit (1 << type) in hetmem_cmd_ring.events. */
enum hetmem_event_type {
	/* A tracked range, or part of it, was invalidated; cause says why. */
	HETMEM_EVENT_INVALIDATED = 0,
	/*
	 * A device's driver is about to move pages of a tracked range, one
	 * way or the other: it does not say which, nor whether it worked.
	 */
	HETMEM_EVENT_MIGRATE_SEEN = 1,
	/*
	 * Pages arrived: count of them at location. From devices registered
	 * with hetmem at once, from others when REFRESH finds them. What
	 * was unmapped or dropped on a device arrives nowhere.
	 */
	HETMEM_EVENT_TO_DEVICE	= 2,
	HETMEM_EVENT_TO_HOST	= 3,
	/*
	 * A block goes back and forth: count bounces between host and a
	 * registered device, or attempts of another driver to move it,
	 * within the window that the administrator has set.
	 */
	HETMEM_EVENT_THRASH	= 4,
	/* For an executor: please move; data is the id for COMPLETE. */
	HETMEM_EVENT_HINT	= 5,
	/* For an asker: the hint of id data has ended with result. */
	HETMEM_EVENT_COMPLETED	= 6,
	/*
	 * For an executor: a hint to location was refused, because of the
	 * limit that the administrator has set there. Told of the first one,
	 * and then not before another hint got through.
	 */
	HETMEM_EVENT_LIMIT	= 7,
	HETMEM_EVENT_NR		= 8,
};

/**
 * struct hetmem_event - an entry of the ring
 * @type: enum hetmem_event_type
 * @cause: enum hetmem_notification for INVALIDATED and MIGRATE_SEEN, else 0
 * @time: CLOCK_MONOTONIC in ns
 * @start: first byte, inside one tracked range or as a hint says
 * @end: first byte behind it
 * @location: HETMEM_LOC() for TO_DEVICE, TO_HOST, THRASH, HINT and LIMIT, else 0
 * @count: pages for TO_DEVICE, TO_HOST and COMPLETED, bounces or attempts for
 *	THRASH, else 0
 * @data: the hint's id for HINT and COMPLETED, else 0
 * @result: for COMPLETED: 0 or a negative errno
 * @reserved: 0
 */
struct hetmem_event {
	__u32		type;
	__u32		cause;
	__aligned_u64	time;
	__aligned_u64	start;
	__aligned_u64	end;
	__u32		location;
	__u32		count;
	__aligned_u64	data;
	__s32		result;
	__u32		reserved;
	__aligned_u64	reserved2;
};

#define HETMEM_RING_VERSION	1
#define HETMEM_RING_TYPES	32

/**
 * struct hetmem_ring_header - the first page of the mapped ring
 * @version: HETMEM_RING_VERSION
 * @entry_size: bytes from one entry to the next
 * @nr_entries: a power of two
 * @data_offset: of the first entry, from the start of the mapping
 * @head: entries that were ever added
 * @dropped: events lost for want of room, by type
 * @tail: entries that the reader has finished with; the only member that the
 *	reader writes
 *
 * To read: load head (acquire); entry number n is at data_offset +
 * (n & (nr_entries - 1)) * entry_size, for tail <= n < head; store the new
 * tail (release). One reader. The kernel keeps its own head and geometry and
 * only publishes them: what a reader writes there harms nobody but itself.
 * An entry may grow; @entry_size says by how much.
 */
struct hetmem_ring_header {
	__u32		version;
	__u32		entry_size;
	__u32		nr_entries;
	__u32		data_offset;
	__aligned_u64	head;
	__aligned_u64	dropped[HETMEM_RING_TYPES];
	__aligned_u64	pad[29];
	__aligned_u64	tail;
};

/**
 * struct hetmem_cmd_ring - HETMEM_IOC_RING: have events told
 * @size: sizeof(struct hetmem_cmd_ring)
 * @flags: 0
 * @nr_entries: in, a power of two from HETMEM_RING_MIN to HETMEM_RING_MAX
 * @eventfd: in, an eventfd to signal when an event was added, or -1
 * @events: in, bits of enum hetmem_event_type, not 0
 * @map_size: out, what to mmap(), shared, at offset 0 of this file
 *
 * A context has one ring, for as long as it lives. poll() says POLLIN while
 * there is something to read, and POLLERR while there is no ring. Who does not
 * read loses the newest events and finds them counted.
 *
 * mmap() wants the ring (-ENXIO), the context's own address space (-EPERM), and
 * MAP_SHARED, no PROT_EXEC, offset 0 and exactly @map_size (-EINVAL). A child
 * does not inherit the mapping.
 *
 * Errors: -EEXIST there is a ring, -EBADF or -EINVAL no eventfd, -EDQUOT more
 * entries than caps/max_ring_entries of sysfs.
 */
struct hetmem_cmd_ring {
	__u32		size;
	__u32		flags;
	__u32		nr_entries;
	__s32		eventfd;
	__aligned_u64	events;
	__aligned_u64	map_size;
};

#define HETMEM_RING_MIN		16
#define HETMEM_RING_MAX		65536

/**
 * struct hetmem_cmd_refresh - HETMEM_IOC_REFRESH: look again where it changed
 * @size: sizeof(struct hetmem_cmd_refresh)
 * @flags: 0
 * @start: in, any page-aligned address inside a tracked range
 * @dirty_blocks: out, blocks that are dirty still: changed again meanwhile, or
 *	being moved by a driver as far as can be told
 * @walked_blocks: out, blocks looked at
 * @as_of: out, CLOCK_MONOTONIC in ns of the oldest look that counts
 * @on_device: out, pages of the range that are on a device
 *
 * Looks, in the caller's context, at the blocks of the range that
 * notifications have marked since they were last looked at, and adds
 * TO_DEVICE and TO_HOST events for what changed. The counters are exact if
 * dirty_blocks is 0 and nothing has moved since as_of.
 *
 * Errors: -ENOENT no tracked range is there; partial: -EBUSY, -EINTR.
 */
struct hetmem_cmd_refresh {
	__u32		size;
	__u32		flags;
	__aligned_u64	start;
	__aligned_u64	dirty_blocks;
	__aligned_u64	walked_blocks;
	__aligned_u64	as_of;
	__aligned_u64	on_device;
};

enum hetmem_attr {
	/*
	 * Of a context: 1 lets everybody who has the file ask INFO,
	 * RESIDENCY, STATS and GET_ATTR.
	 */
	HETMEM_ATTR_SHAREABLE	= 0,
	/* Of a context: 1 lets everybody who has the file ask by HINT. */
	HETMEM_ATTR_ALLOW_HINTS	= 1,
	/* Of a tracked range: 1 means that no THRASH is told of it. */
	HETMEM_ATTR_NO_THRASH	= 2,
	/*
	 * Of a tracked range: the location, HETMEM_HOST or HETMEM_DEVICE,
	 * where a registered device's driver should leave its pages when the
	 * device faults; 0 means no preference.
	 */
	HETMEM_ATTR_PREFERRED	= 3,
};

/**
 * struct hetmem_cmd_attr - HETMEM_IOC_SET_ATTR, HETMEM_IOC_GET_ATTR
 * @size: sizeof(struct hetmem_cmd_attr)
 * @flags: 0
 * @start: any page-aligned address inside a tracked range; 0 for a context's
 * @attr: enum hetmem_attr
 * @reserved: 0
 * @value: in for SET_ATTR, out for GET_ATTR
 *
 * Errors: -EINVAL no such attribute or value, -ENOENT no tracked range is
 * there.
 */
struct hetmem_cmd_attr {
	__u32		size;
	__u32		flags;
	__aligned_u64	start;
	__u32		attr;
	__u32		reserved;
	__aligned_u64	value;
};

/**
 * struct hetmem_cmd_bind_device - HETMEM_IOC_BIND_DEVICE: name a device
 * @size: sizeof(struct hetmem_cmd_bind_device)
 * @flags: HETMEM_BIND_*
 * @location: HETMEM_LOC(HETMEM_DEVICE or HETMEM_FOREIGN, index)
 * @reserved: 0
 * @uuid: of the device, as its driver's API has it; in, and with
 *	HETMEM_BIND_GET out
 *
 * What a foreign location is only userspace can find out: it has its driver
 * move a page there and asks RESIDENCY. Bindings belong to the context.
 * HETMEM_BIND_EXECUTOR makes the context the one that HINTs for this
 * device and address space are told to; it needs a ring with HINT in its
 * events. Binding again replaces the uuid, and without the flag gives the
 * role up.
 *
 * Errors: -EBUSY another context of this address space is the executor for
 * the device, -ENXIO no ring with HINT, -ENOSPC too many bindings, -ENOENT
 * (GET) not bound.
 */
struct hetmem_cmd_bind_device {
	__u32		size;
	__u32		flags;
	__u32		location;
	__u32		reserved;
	__u8		uuid[16];
};

#define HETMEM_BIND_EXECUTOR	(1U << 0)
#define HETMEM_BIND_GET		(1U << 1)

/**
 * struct hetmem_cmd_hint - HETMEM_IOC_HINT: ask a process to move its memory
 * @size: sizeof(struct hetmem_cmd_hint)
 * @flags: 0
 * @start: first byte, in the address space of the context, page-aligned
 * @end: first byte behind it
 * @location: where to: HETMEM_LOC(HETMEM_DEVICE or HETMEM_FOREIGN, index), or
 *	HETMEM_LOC(HETMEM_HOST, node or HETMEM_NODE_ANY)
 * @timeout_ms: 1 to HETMEM_HINT_TIMEOUT_MAX: how long it may take
 * @reply_fd: -1 to wait for the outcome; or a context of the caller, with a
 *	ring, that is to be told by COMPLETED: for who has many hints under
 *	way and no thread for each
 * @result: out, what the executor said: 0 or a negative errno
 * @id: out, of the hint
 * @moved: out, pages, as the executor said
 *
 * Only the process itself can have its driver move its memory: its executor
 * for the device (to the host: for any device) is told and answers with
 * COMPLETE. The caller needs the file of a context of that process and must
 * be that process, or the context allows it (ALLOW_HINTS), or the caller has
 * CAP_SYS_NICE in the initial user namespace.
 *
 * COMPLETED may be there before the call returns; its result can be -ETIMEDOUT
 * and -EOWNERDEAD too. Closing @reply_fd's context does not withdraw the hint,
 * but nobody is told any more.
 *
 * Errors: -EPERM; -ENXIO there is no executor, or @reply_fd has no ring with
 * COMPLETED; -EBADF @reply_fd is no context of the caller; -EAGAIN the
 * executor's ring or its queue (max_hints) is full, or the calling process
 * has HETMEM_HINT_ASKED_MAX hints under way there, or its user its share of
 * max_hints (of half of them, which the users have that are not the executor's,
 * each as many as it leaves to the rest); -EDQUOT it is more than
 * foreign/N/advisory_limit of sysfs leaves room for, to the user whose context
 * the executor is; -ETIMEDOUT; -EOWNERDEAD
 * the executor's address space or its context has gone; -EINTR any signal. After
 * -ETIMEDOUT and -EINTR the hint is withdrawn: the executor may carry it out
 * all the same.
 */
struct hetmem_cmd_hint {
	__u32		size;
	__u32		flags;
	__aligned_u64	start;
	__aligned_u64	end;
	__u32		location;
	__u32		timeout_ms;
	__s32		reply_fd;
	__s32		result;
	__aligned_u64	id;
	__aligned_u64	moved;
};

#define HETMEM_HINT_TIMEOUT_MAX	600000
/* Of one process, under way at one executor. */
#define HETMEM_HINT_ASKED_MAX	16

/**
 * struct hetmem_cmd_complete - HETMEM_IOC_COMPLETE: answer a hint
 * @size: sizeof(struct hetmem_cmd_complete)
 * @flags: 0
 * @id: of the HINT event
 * @moved: pages that were moved, as far as known
 * @result: 0 or a negative errno, down to -4095
 * @reserved: 0
 *
 * Errors: -ENOENT no such hint, or not any more.
 */
struct hetmem_cmd_complete {
	__u32		size;
	__u32		flags;
	__aligned_u64	id;
	__aligned_u64	moved;
	__s32		result;
	__u32		reserved;
};

/**
 * struct hetmem_list_entry - a context
 * @pid: of the process that opened it, in the caller's pid namespace; 0 if it
 *	is not visible there or has gone
 * @uid: of the opener, in the caller's user namespace
 * @flags: HETMEM_LIST_*
 * @nr_ranges: tracked ranges
 * @nr_pinned: pages held by MIGRATE with PIN
 * @nr_hints: hints that wait for it as executor
 * @reserved: 0
 */
struct hetmem_list_entry {
	__u32		pid;
	__u32		uid;
	__u32		flags;
	__u32		nr_ranges;
	__aligned_u64	nr_pinned;
	__u32		nr_hints;
	__u32		reserved;
};

#define HETMEM_LIST_SHAREABLE	(1U << 0)
#define HETMEM_LIST_ALLOW_HINTS	(1U << 1)
#define HETMEM_LIST_EXECUTOR	(1U << 2)

/**
 * struct hetmem_cmd_list - HETMEM_IOC_LIST: who uses hetmem
 * @size: sizeof(struct hetmem_cmd_list)
 * @flags: 0
 * @entries: in, array of struct hetmem_list_entry, may be 0 if @nr is 0
 * @entry_size: in, sizeof(struct hetmem_list_entry): less than that is
 *	-EINVAL if @nr is not 0, more comes back zeroed
 * @nr: in, entries that @entries has room for; out, contexts that there are,
 *	which can be more
 *
 * Contexts whose opener had the caller's effective uid; all of them with
 * CAP_SYS_PTRACE in the initial user namespace.
 */
struct hetmem_cmd_list {
	__u32		size;
	__u32		flags;
	__aligned_u64	entries;
	__u32		entry_size;
	__u32		nr;
};

#endif /* _UAPI_LINUX_HETMEM_H */
