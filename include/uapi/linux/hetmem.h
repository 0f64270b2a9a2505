/* SPDX-License-Identifier: GPL-2.0 WITH Linux-syscall-note */
/*
 * hetmem - memory that CPUs and devices share: the ioctl interface of
 * /dev/hetmem.
 *
 * An open file is a context. It belongs to the address space (mm) of the
 * process that opened it. After fork() the child holds the parent's context
 * and may not use it; after execve() the process holds a context of its former
 * address space. Open with O_CLOEXEC.
 *
 * open() fails with:
 *	-EDQUOT		the user has used up caps/user_kb of kernel memory, or
 *			its part of caps/total_kb (sysfs); or the address
 *			space has 64 contexts
 *	-ENODEV		the module is being loaded
 *	-EAGAIN		a tracer, the freezer or work of io_uring interrupted each
 *			of 64 tries; try again
 *	-ENOMEM, -EINTR	as below
 * The first open() of an address space visits all its mappings. Another open() does
 * not, as long as the last close() was less than 60 s ago. Signals other than SIGKILL
 * wait until open() returns.
 *
 * Every command takes a pointer to its struct. The first member of the struct
 * is the size that the caller was compiled with. Structs grow at the end only:
 *  - A caller older than the kernel: members that the caller lacks count as zero.
 *    The kernel writes only the members that the caller knows.
 *  - A caller newer than the kernel: -E2BIG if a byte that the kernel does not
 *    know is not zero. Otherwise the kernel zeroes those bytes.
 * The same rules hold for the entries of arrays. Each array comes with the size of
 * an entry. A size below that of the entry's first version is -EINVAL. The kernel
 * zeroes bytes that it does not know.
 *
 * Errors that every command shares:
 *	-ENOTTY		no such command
 *	-EINVAL		the size is below the first version of the struct, a
 *			flag is unknown, a reserved member is not zero, another
 *			member has a value that its line does not allow, an
 *			address is not a multiple of the page size, or a range
 *			is empty or backwards
 *	-ERANGE		a range leaves the user address space
 *	-E2BIG		a byte that the kernel does not know is not zero; or the
 *			size of the struct or of an entry is more than a page
 *	-EFAULT		the struct, or an array that it points to, cannot be
 *			read or written
 *	-EPERM		the context belongs to another address space. Allowed
 *			then: INFO, RESIDENCY, STATS and REFRESH, if the owner
 *			allowed HETMEM_SHAREABLE or the caller has CAP_SYS_PTRACE;
 *			HINT, if the owner allowed HETMEM_ALLOW_HINTS or the
 *			caller has CAP_SYS_NICE. Capabilities count in the
 *			initial user namespace.
 *	-EBADF		the file is not open for writing. INFO, RESIDENCY, STATS,
 *			REFRESH and LIST do not need that
 *	-ESRCH		the address space of the context is gone (RESIDENCY,
 *			REFRESH)
 *	-EDQUOT		the user of the context has used up caps/user_kb of
 *			kernel memory, or its part of caps/total_kb (sysfs)
 *	-ENOMEM		the kernel has no memory, or the caller's memory cgroup
 *			is at its limit
 *	-EINTR		a fatal signal arrived
 * A command that fails has changed nothing. There are two exceptions:
 *  - Errors that a command lists as partial: its struct reports how far the
 *    command came. RESIDENCY, MIGRATE, MIGRATE_VECTOR and REFRESH write their
 *    struct back after every error of their own except -EFAULT. They do not write it after an error
 *    of the list above.
 *  - -EFAULT, if the command was carried out and its answer cannot be written.
 * TRACK, UNTRACK, ALLOW, BIND_DEVICE and COMPLETE have no answer. Their struct is
 * only read, so it can be in read-only memory.
 *
 * A command can wait
 *  - for mmap_lock, killably; open() waits for it for writing;
 *  - MIGRATE to the host only: for page faults, and in them for a file system or
 *    a device's driver;
 *  - MIGRATE only: for operations of registered drivers;
 *  - for an invalidation of the pages that it looks at: at most 8 times 10 ms for
 *    each 2 MiB, with PIN for each 256 KiB;
 *  - if 64 threads look at one address space: for one of these threads, and for
 *    the faults that MIGRATE makes it take;
 *  - UNPIN, and MIGRATE with PIN: for pages that are being dropped, at most 64 for
 *    each 256 KiB.
 * Writes to the caller's arrays can also take time, for example in page faults.
 *
 * Times are CLOCK_MONOTONIC as outside of time namespaces.
 *
 * /proc/PID/fdinfo/FD of a context has two lines. "hetmem-pid:" is the process
 * that opened the context, in the reader's pid namespace; 0 if the process is gone
 * or not visible there. "hetmem-ranges:" is the number of tracked ranges.
 */
#ifndef _UAPI_LINUX_HETMEM_H
#define _UAPI_LINUX_HETMEM_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define HETMEM_TYPE	0xE7

/* Only the struct has the size, so a struct that grows keeps its command number. */
#define HETMEM_IOC_INFO		_IO(HETMEM_TYPE, 0x00)
#define HETMEM_IOC_TRACK	_IO(HETMEM_TYPE, 0x01)
#define HETMEM_IOC_UNTRACK	_IO(HETMEM_TYPE, 0x02)
#define HETMEM_IOC_RESIDENCY	_IO(HETMEM_TYPE, 0x03)
#define HETMEM_IOC_MIGRATE	_IO(HETMEM_TYPE, 0x04)
#define HETMEM_IOC_UNPIN	_IO(HETMEM_TYPE, 0x05)
#define HETMEM_IOC_STATS	_IO(HETMEM_TYPE, 0x06)
#define HETMEM_IOC_RING		_IO(HETMEM_TYPE, 0x07)
#define HETMEM_IOC_REFRESH	_IO(HETMEM_TYPE, 0x08)
#define HETMEM_IOC_ALLOW	_IO(HETMEM_TYPE, 0x09)
#define HETMEM_IOC_BIND_DEVICE	_IO(HETMEM_TYPE, 0x0a)
#define HETMEM_IOC_HINT		_IO(HETMEM_TYPE, 0x0b)
#define HETMEM_IOC_COMPLETE	_IO(HETMEM_TYPE, 0x0c)
#define HETMEM_IOC_LIST		_IO(HETMEM_TYPE, 0x0d)
#define HETMEM_IOC_MIGRATE_VECTOR _IO(HETMEM_TYPE, 0x0e)
#define HETMEM_IOC_BACKGROUND	_IO(HETMEM_TYPE, 0x0f)

/* Increases when the meaning of something changes. Growth does not increase it. */
#define HETMEM_VERSION		1

/*
 * A location: where a page is. The kind is in the upper half, an index in the
 * lower half.
 */
#define HETMEM_LOC(kind, index)	(((__u32)(kind) << 16) | ((index) & 0xffff))
#define HETMEM_LOC_KIND(loc)	((__u32)(loc) >> 16)
#define HETMEM_LOC_INDEX(loc)	((__u32)(loc) & 0xffff)

enum hetmem_location_kind {
	/*
	 * Mapped, but no page is visible: never touched, swapped out
	 * (HETMEM_WHY_SWAPPED), moving, not readable, exclusive to a device, or
	 * on a device whose driver has not migrated anything yet. A module cannot
	 * tell the other cases apart.
	 */
	HETMEM_UNKNOWN	= 0,
	/* No mapping at this address. */
	HETMEM_UNMAPPED	= 1,
	/* Host memory; the index is the NUMA node. */
	HETMEM_HOST	= 2,
	/* A device that is registered with hetmem; the index is its id. */
	HETMEM_DEVICE	= 3,
	/*
	 * Memory of another driver's device that the CPU cannot access
	 * (MEMORY_DEVICE_PRIVATE). The index is the number of its pool of pages,
	 * see struct hetmem_pool_info; HETMEM_SEVERAL if the driver has too many
	 * pools.
	 */
	HETMEM_FOREIGN	= 4,
	/*
	 * As HETMEM_FOREIGN, but mapped by the CPU and coherent with it
	 * (MEMORY_DEVICE_COHERENT: Grace with CDMM, AMD over XGMI).
	 */
	HETMEM_COHERENT	= 5,
	/*
	 * The kernel's zero page: the memory was read and never written. It
	 * takes no memory.
	 */
	HETMEM_ZERO	= 6,
};

/* An index of HETMEM_HOST: any node. */
#define HETMEM_NODE_ANY		0xffff
/* An index of HETMEM_FOREIGN and HETMEM_COHERENT: one of several pools. */
#define HETMEM_SEVERAL		0xffff

/*
 * Bits: why memory stays where it is, or why no page is visible. RESIDENCY and
 * MIGRATE use the same bit for the same state.
 */
#define HETMEM_WHY_FILE		(1U << 0)	/* file-backed mapping */
#define HETMEM_WHY_SHMEM	(1U << 1)	/* shared memory, tmpfs */
#define HETMEM_WHY_HUGETLB	(1U << 2)	/* hugetlb pages */
#define HETMEM_WHY_SPECIAL	(1U << 3)	/* VM_SPECIAL, DAX, secret */
#define HETMEM_WHY_UFFD		(1U << 4)	/* userfaultfd is armed */
#define HETMEM_WHY_MLOCKED	(1U << 5)	/* mlock()ed */
#define HETMEM_WHY_NOT_READABLE	(1U << 6)	/* no PROT_READ */
#define HETMEM_WHY_MERGEABLE	(1U << 7)	/* KSM may merge it */
#define HETMEM_WHY_UNMAPPED	(1U << 8)	/* no mapping */
#define HETMEM_WHY_ABSENT	(1U << 9)	/* no page is visible there */
#define HETMEM_WHY_MOVING	(1U << 10)	/* it changed during every look */
/*
 * The last notification for this block of a tracked range came from a device's
 * driver. The driver took pages for exclusive access (atomics), or, on older
 * kernels, gave some back. Changes of protection do not count as notifications
 * here. Such pages are on the host and are reported as UNKNOWN.
 */
#define HETMEM_WHY_EXCLUSIVE_SEEN (1U << 11)
#define HETMEM_WHY_PINNED_BY_US	(1U << 12)	/* held by MIGRATE with PIN */
#define HETMEM_WHY_BUSY		(1U << 13)	/* locked, pinned, contended */
#define HETMEM_WHY_NO_MEMORY	(1U << 14)	/* no room at the destination */
#define HETMEM_WHY_OTHER_NODE	(1U << 15)	/* on the host: move_pages(2) */
/*
 * Part of a large folio that the CPU maps by pages. Kernels before 7 do not
 * migrate such folios to devices. madvise(2) with MADV_COLD on a page splits the
 * folio.
 */
#define HETMEM_WHY_LARGE_FOLIO	(1U << 16)
#define HETMEM_WHY_SWAPPED	(1U << 17)	/* swapped out; with ABSENT */

/**
 * struct hetmem_device_info - a device that is registered with hetmem
 * @id: number of the device, below 0x8000; the index of its location. Another
 *	device gets the number only after 32,767 others were registered
 * @reserved: 0
 * @capacity: bytes for pages
 * @used: bytes of @capacity in use
 * @name: NUL-terminated
 */
struct hetmem_device_info {
	__u32		id;
	__u32		reserved;
	__aligned_u64	capacity;
	__aligned_u64	used;
	char		name[32];
};

/**
 * struct hetmem_pool_info - a pool of device pages of a driver that is not
 *	registered with hetmem
 * @location: HETMEM_LOC(HETMEM_FOREIGN or HETMEM_COHERENT, index)
 * @flags: HETMEM_POOL_*
 * @capacity: bytes for pages, in use or not
 * @seen: bytes of tracked ranges that REFRESH last saw in the pool, of that context
 *	of this address space that has the most there
 * @uuid: UUID of the device that this context bound to the pool, else zeroes
 *
 * A pool is a dev_pagemap of a driver. The module lists it if the driver migrated
 * memory of a process with a context, or if coherent pages of the pool were seen
 * there. A pool is not always a device: a driver may have one pool for several
 * devices, or several pools for one device. The pools of a driver with more than
 * 4 pools are reported as HETMEM_SEVERAL and not listed. The kernel does not
 * notify modules of the end of a pool. So the module may forget a pool that was
 * not seen for long. It forgets the pools of a driver whose module is unloaded.
 * Another pool gets an index only after 65,534 others had one.
 */
struct hetmem_pool_info {
	__u32		location;
	__u32		flags;
	__aligned_u64	capacity;
	__aligned_u64	seen;
	__u8		uuid[16];
};

/* This context bound the pool to two devices or more: @uuid is one of them. */
#define HETMEM_POOL_SEVERAL	(1U << 0)

/**
 * struct hetmem_cmd_info - HETMEM_IOC_INFO: version, limits, devices and pools
 * @size: sizeof(struct hetmem_cmd_info)
 * @flags: 0
 * @version: out, HETMEM_VERSION
 * @block_shift: out, log2 of the block size; memory is looked at and moved in blocks
 * @features: out, HETMEM_FEATURE_*
 * @max_bytes: out, kernel memory that the user of this context may use, see
 *	caps/user_kb of sysfs
 * @used_bytes: out, bytes of @max_bytes in use
 * @nr_ranges: out, tracked ranges of this context
 * @device_size: in, sizeof(struct hetmem_device_info)
 * @devices: in, array of struct hetmem_device_info, may be 0 if @nr_devices
 *	is 0
 * @nr_devices: in, room in @devices, entries; out, number of devices, which can
 *	be more
 * @pool_size: in, sizeof(struct hetmem_pool_info)
 * @pools: in, array of struct hetmem_pool_info, may be 0 if @nr_pools is 0
 * @nr_pools: in, room in @pools, entries; out, number of pools, which can be more
 * @reserved: 0
 */
struct hetmem_cmd_info {
	__u32		size;
	__u32		flags;
	__u32		version;
	__u32		block_shift;
	__aligned_u64	features;
	__aligned_u64	max_bytes;
	__aligned_u64	used_bytes;
	__u32		nr_ranges;
	__u32		device_size;
	__aligned_u64	devices;
	__u32		nr_devices;
	__u32		pool_size;
	__aligned_u64	pools;
	__u32		nr_pools;
	__u32		reserved;
};

/* The kernel was built with CONFIG_DEVICE_PRIVATE. */
#define HETMEM_FEATURE_DEVICE_PRIVATE	(1ULL << 0)

/**
 * struct hetmem_cmd_track - HETMEM_IOC_TRACK: count the events of a range
 * @size: sizeof(struct hetmem_cmd_track)
 * @flags: 0
 * @start: first byte, page-aligned
 * @end: first byte after it, page-aligned
 *
 * TRACK ignores mappings: a range without mappings can be tracked. The range lasts
 * until UNTRACK or close(). munmap() does not end it. mremap() does not move it.
 * A range costs 216 bytes of kernel memory, and 8.25 bytes for each 2 MiB, rounded
 * up.
 *
 * Errors:
 *	-EEXIST		the range overlaps a tracked range
 *	-EDQUOT		see above
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
 * @start: @start of TRACK
 * @end: @end of TRACK
 *
 * Waits, killably, for a REFRESH of the same context.
 *
 * Errors:
 *	-ENOENT		no range with exactly these bounds is tracked
 */
struct hetmem_cmd_untrack {
	__u32		size;
	__u32		flags;
	__aligned_u64	start;
	__aligned_u64	end;
};

/**
 * struct hetmem_run - consecutive pages with the same @location, @order, @flags and @why
 * @start: first byte
 * @end: first byte after it
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
 * @end: first byte after it, page-aligned
 * @walk_end: out, end of the walk: @end, or the address to continue at
 * @runs: in, array of struct hetmem_run, may be 0 if @nr_runs is 0
 * @nr_runs: in, entries of @runs; 0: report totals only
 * @run_size: in, sizeof(struct hetmem_run)
 * @filled_runs: out, entries filled
 * @nr_totals: in, entries of @totals, at most HETMEM_MAX_TOTALS
 * @totals: in, array of struct hetmem_total, may be 0 if @nr_totals is 0
 * @total_size: in, sizeof(struct hetmem_total)
 * @filled_totals: out, entries filled: pages in [@start, @walk_end) by location
 *
 * The answer for each block of 2 MiB (see INFO) is a snapshot of one moment;
 * different blocks have different moments. RESIDENCY faults nothing in and moves
 * nothing. If a block changed during each of 8 looks, it is UNKNOWN with
 * HETMEM_WHY_MOVING.
 *
 * Stops early when @runs is full, and returns 0 with @walk_end below @end. To
 * continue, call again from @walk_end. A run is split where a call stops.
 *
 * Errors:
 *	-ENOSPC		there are more locations than @nr_totals
 *	-EINTR		partial: everything up to @walk_end is in place
 */
struct hetmem_cmd_residency {
	__u32		size;
	__u32		flags;
	__aligned_u64	start;
	__aligned_u64	end;
	__aligned_u64	walk_end;
	__aligned_u64	runs;
	__u32		nr_runs;
	__u32		run_size;
	__u32		filled_runs;
	__u32		nr_totals;
	__aligned_u64	totals;
	__u32		total_size;
	__u32		filled_totals;
};

/**
 * struct hetmem_cmd_migrate - HETMEM_IOC_MIGRATE: move pages
 * @size: sizeof(struct hetmem_cmd_migrate)
 * @flags: HETMEM_MIGRATE_*
 * @start: first byte, page-aligned
 * @end: first byte after it, page-aligned
 * @location: in, HETMEM_LOC(HETMEM_DEVICE, id), or HETMEM_LOC(HETMEM_HOST,
 *	node or HETMEM_NODE_ANY). Pages that come from a device go to the node as
 *	far as the device's driver can tell the kernel.
 * @timeout_ms: in, for HETMEM_MIGRATE_PIN, 1 to HETMEM_PIN_TIMEOUT_MAX; else 0
 * @walk_end: out, end of the walk: @end, or the address to continue at
 * @moved: out, pages that this call moved
 * @already: out, pages that were at @location before
 * @not_moved: out, pages that stay where they are; moved + already + not_moved
 *	is the number of pages in [@start, @walk_end)
 * @pinned: out, pages of [@start, @walk_end) that are held
 * @why_addr: out, address of the first page in @not_moved
 * @why: out, HETMEM_WHY_* of that page
 * @rest_size: in, sizeof(struct hetmem_run)
 * @rest: in, array of struct hetmem_run, may be 0 if @nr_rest is 0
 * @nr_rest: in, entries of @rest: 0, or at least HETMEM_REST_MIN; the walk
 *	stops, with 0, when fewer than HETMEM_REST_MIN entries are left
 * @filled_rest: out, entries of @rest filled
 *
 * Pages may move again at any time: @moved counts pages that arrived, not pages
 * that are still there. A page that cannot move, or an address without a page,
 * does not stop MIGRATE. It counts in @not_moved, and @why has the reason. To a
 * device, memory that was never touched gets zeroed device pages, as after a
 * fault of the device. A page that another process maps, too, is moved for both.
 *
 * To the host MIGRATE moves the pages of any device. The drivers of registered
 * devices move their own pages. Pages of other drivers' private memory are
 * faulted in, as by the CPU. Pages of other drivers' coherent memory are pinned
 * for a moment, for which the kernel migrates them. MIGRATE skips memory with
 * userfaultfd in both directions. To devices it skips memory that KSM may merge
 * (MADV_MERGEABLE, PR_SET_MEMORY_MERGE).
 *
 * MIGRATE does not move pages between host nodes. Pages on another host node than
 * @location count in @not_moved with HETMEM_WHY_OTHER_NODE, and @rest lists them:
 * move them with move_pages(2). To devices, on kernels before 7, @rest also lists
 * pages with HETMEM_WHY_LARGE_FOLIO: split their folios, then call MIGRATE again.
 *
 * HETMEM_MIGRATE_PIN (to the host only) holds the pages that are on the host
 * after the move for @timeout_ms. No device's driver, no NUMA balancing and no
 * compaction moves held pages. A context holds a page once. A second pin can
 * prolong the time, never shorten it. Held pages are charged to the address space
 * (VmPin), against RLIMIT_MEMLOCK unless the caller has CAP_IPC_LOCK, and to the
 * user of the context, against caps/pinned_kb of sysfs unless the caller has
 * CAP_SYS_RESOURCE. At such a limit all pages are held that it has room for. Memory
 * of a private mapping, also of a file, that was never written may be copied, as by
 * a write. Not held are pages that the kernel cannot hold, pages of hugetlb, and
 * pages on another node than @location. A pin ends early by UNPIN, with the
 * context, and when its memory is unmapped (mremap() and execve() unmap). The
 * charge ends shortly after. A pin holds a page, not an address. If another page
 * replaces the held page (MADV_DONTNEED, truncation), the old page stays held
 * until its time is over, or until the new page is pinned.
 *
 * Synchronous; a fatal signal ends it.
 *
 * Errors:
 *	-ENODEV		no such device
 *	-EOPNOTSUPP	pages cannot be moved to @location, or the host node is
 *			not online
 * Partial errors; the counters are in place:
 *	-EINTR, -ENOMEM
 *	-ENODEV		the device was removed
 *	-EDQUOT		the pin would exceed RLIMIT_MEMLOCK, caps/pinned_kb or the
 *			kernel memory of the user; or the administrator has
 *			limited the device to less than a page
 *	others		the device failed: the error of its driver
 */
struct hetmem_cmd_migrate {
	__u32		size;
	__u32		flags;
	__aligned_u64	start;
	__aligned_u64	end;
	__u32		location;
	__u32		timeout_ms;
	__aligned_u64	walk_end;
	__aligned_u64	moved;
	__aligned_u64	already;
	__aligned_u64	not_moved;
	__aligned_u64	pinned;
	__aligned_u64	why_addr;
	__u32		why;
	__u32		rest_size;
	__aligned_u64	rest;
	__u32		nr_rest;
	__u32		filled_rest;
};

#define HETMEM_MIGRATE_PIN	(1U << 0)

#define HETMEM_PIN_TIMEOUT_MAX	3600000
#define HETMEM_REST_MIN		512

/**
 * struct hetmem_cmd_migrate_vector - HETMEM_IOC_MIGRATE_VECTOR: MIGRATE for many ranges
 * @size: sizeof(struct hetmem_cmd_migrate_vector)
 * @flags: 0
 * @commands: in, array of struct hetmem_cmd_migrate
 * @results: in, array of @nr __s32; each gets 0, or the errno of its command
 * @command_size: in, sizeof(struct hetmem_cmd_migrate). It replaces the @size of
 *	each command
 * @nr: in, entries of both arrays, 1 to HETMEM_VECTOR_MAX
 * @done: out, commands that have a result
 * @reserved: 0
 *
 * Carries out the commands one after the other. Each one has its own flags, location
 * and @rest, and returns in its result what MIGRATE alone would return. A command that
 * fails does not stop the next one. Ranges can overlap: pages that an earlier command
 * moved count in @already of a later one. A struct that cannot be read or written has
 * the result -EFAULT.
 *
 * Errors:
 *	-EFAULT		a result cannot be written. The command that it belongs to
 *			and those before it were carried out
 *	-EINTR		partial: @done commands have a result, and no other was begun
 */
struct hetmem_cmd_migrate_vector {
	__u32		size;
	__u32		flags;
	__aligned_u64	commands;
	__aligned_u64	results;
	__u32		command_size;
	__u32		nr;
	__u32		done;
	__u32		reserved;
};

#define HETMEM_VECTOR_MAX	512

/**
 * struct hetmem_cmd_background - HETMEM_IOC_BACKGROUND: MIGRATE in the background
 * @size: sizeof(struct hetmem_cmd_background)
 * @flags: HETMEM_BACKGROUND_*
 * @command: in, a struct hetmem_cmd_migrate; with HETMEM_BACKGROUND_COLLECT out
 * @command_size: in, sizeof(struct hetmem_cmd_migrate). It replaces the @size of the
 *	command
 * @eventfd: in, an eventfd; ignored with HETMEM_BACKGROUND_COLLECT
 * @result: out, with HETMEM_BACKGROUND_COLLECT: 0, or the errno of the command
 * @reserved: 0
 *
 * Reads the command and returns. A worker of the kernel carries it out: one for each
 * context, 16 at most for each user. At its end, however it ends, the kernel adds 1 to
 * @eventfd. HETMEM_BACKGROUND_COLLECT then returns the command's answer and result, any
 * number of times, until the next command is given.
 *
 * The command cannot have flags, @timeout_ms or @nr_rest. It does what MIGRATE does, with
 * one exception: a worker faults no pages of files, nor coherent ones. So pages that are
 * on the device of a driver that is not registered stay there if they belong to a file, or
 * if they are coherent and shared since fork().
 *
 * close() of the context ends the command and waits until the worker has stopped, at most
 * for as long as MIGRATE needs for one span (16 MiB at most). The
 * command also ends, with -EINTR, when the process of the address space ends.
 *
 * Errors:
 *	-EBUSY		a command is in progress, or 16 of the user's are
 *	-EBADF		@eventfd is not open
 *	-EINVAL		@eventfd is no eventfd, or the command has what it cannot have
 *	-EAGAIN		with COLLECT: the command is in progress
 *	-ENOENT		with COLLECT: there was no command
 *	others		the command is not as MIGRATE wants it, and was not begun
 */
struct hetmem_cmd_background {
	__u32		size;
	__u32		flags;
	__aligned_u64	command;
	__u32		command_size;
	__s32		eventfd;
	__s32		result;
	__u32		reserved;
};

#define HETMEM_BACKGROUND_COLLECT	(1U << 0)

/**
 * struct hetmem_cmd_unpin - HETMEM_IOC_UNPIN: end pins before their time
 * @size: sizeof(struct hetmem_cmd_unpin)
 * @flags: 0
 * @start: first byte, page-aligned
 * @end: first byte after it, page-aligned
 * @unpinned: out, pages of the range that this context held and that can move now
 */
struct hetmem_cmd_unpin {
	__u32		size;
	__u32		flags;
	__aligned_u64	start;
	__aligned_u64	end;
	__aligned_u64	unpinned;
};

/* Causes of MMU notifications. */
enum hetmem_change {
	HETMEM_CHANGE_OTHER	= 0,	/* a cause newer than this module */
	HETMEM_CHANGE_UNMAP	= 1,	/* munmap, mremap */
	HETMEM_CHANGE_REPLACE	= 2,	/* reclaim, COW, KSM, eviction, DONTNEED */
	HETMEM_CHANGE_PROTECT	= 3,	/* mprotect, write protection, soft-dirty */
	HETMEM_CHANGE_MIGRATE	= 4,	/* a device's driver moves pages */
	HETMEM_CHANGE_EXCLUSIVE	= 5,	/* a device's driver wants atomics */
	HETMEM_CHANGE_EXIT	= 6,	/* the address space ends */
	HETMEM_CHANGE_NR	= 7,
};

/**
 * struct hetmem_cmd_stats - HETMEM_IOC_STATS: counters of a range
 * @size: sizeof(struct hetmem_cmd_stats)
 * @flags: HETMEM_STATS_*
 * @start: in, any page-aligned address inside a tracked range, with
 *	HETMEM_STATS_NEXT any page-aligned address; out, first byte of the range
 * @end: out, first byte after the range
 * @to_device: out, pages moved to devices registered with hetmem
 * @to_host: out, pages moved from these devices to the host: by MIGRATE, by faults
 *	of the CPU or by eviction
 * @failed: out, pages that MIGRATE counted in not_moved and that were not absent
 * @on_device: out, pages of the range that REFRESH last saw on a device; 0 for
 *	a context
 * @dirty_blocks: out, blocks that changed since the last look at them; 0
 *	for a context
 * @as_of: out, CLOCK_MONOTONIC in ns, when the last complete REFRESH began; 0
 *	for a context
 * @thrashed: out, how often a block of the range thrashed; 0 for a context
 * @nr_changes: out, entries of @changes that this kernel fills
 * @reserved: 0
 * @changes: out, notifications that touched the range, by enum hetmem_change
 *
 * With HETMEM_STATS_CONTEXT the counters are those of the whole context, including
 * ranges that ended and memory that is not tracked. @start must be 0, and @end is
 * the end of the user address space. CHANGE_EXIT is always the count of the
 * context.
 *
 * With HETMEM_STATS_NEXT the range is the first one that ends after @start, so
 * a caller can list all ranges of a context.
 *
 * A notification, a move or a failure that touches more than 64 ranges of a
 * context counts for the context and for 64 of the ranges.
 *
 * Errors:
 *	-ENOENT		@start is in no tracked range, or no range ends after it
 *	-EINVAL		both flags
 */
struct hetmem_cmd_stats {
	__u32		size;
	__u32		flags;
	__aligned_u64	start;
	__aligned_u64	end;
	__aligned_u64	to_device;
	__aligned_u64	to_host;
	__aligned_u64	failed;
	__aligned_u64	on_device;
	__aligned_u64	dirty_blocks;
	__aligned_u64	as_of;
	__aligned_u64	thrashed;
	__u32		nr_changes;
	__u32		reserved;
	__aligned_u64	changes[HETMEM_CHANGE_NR];
};

#define HETMEM_STATS_CONTEXT	(1U << 0)
#define HETMEM_STATS_NEXT	(1U << 1)

/* Types of events; bit (1 << type) in hetmem_cmd_ring.events. */
enum hetmem_event_type {
	/*
	 * A tracked range, or part of it, was invalidated; cause has the reason.
	 * HETMEM_CHANGE_MIGRATE: a driver is about to move pages, in either
	 * direction. The event has neither the direction nor the success. If a
	 * notification touches more than 64 ranges, one event covers the rest
	 * of its addresses.
	 */
	HETMEM_EVENT_INVALIDATED = 0,
	/*
	 * A block goes back and forth, within the window that the administrator
	 * has set. Registered device: count is the number of bounces between
	 * host and device. Another driver: count is how often the driver
	 * migrated pages that it had migrated before.
	 */
	HETMEM_EVENT_THRASH	= 1,
	/* For an executor: a request to move; data is the id for COMPLETE. */
	HETMEM_EVENT_HINT	= 2,
	HETMEM_EVENT_NR		= 3,
};

/**
 * struct hetmem_event - an entry of the ring
 * @type: enum hetmem_event_type
 * @cause: enum hetmem_change for INVALIDATED, else 0
 * @time: CLOCK_MONOTONIC in ns
 * @start: first byte
 * @end: first byte after it
 * @location: HETMEM_LOC() for THRASH and HINT, else 0
 * @count: bounces for THRASH, else 0
 * @data: the hint's id for HINT, else 0
 * @uuid: HINT: UUID of the device, if the device was bound with one; else zeroes
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
	__u8		uuid[16];
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
 * @dropped: events lost because the ring was full, by type
 * @pad: 0
 * @tail: entries that the reader has finished with; the only member that the
 *	reader writes
 *
 * To read: load head (acquire); entry number n is at data_offset +
 * (n & (nr_entries - 1)) * entry_size, for tail <= n < head; store the new
 * tail (release). A ring has one reader. The kernel keeps its own copy of head and
 * geometry: a reader that overwrites the published ones harms only itself. An
 * entry may grow; @entry_size is its size.
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
 * struct hetmem_cmd_ring - HETMEM_IOC_RING: get events
 * @size: sizeof(struct hetmem_cmd_ring)
 * @flags: 0
 * @nr_entries: in, a power of two from HETMEM_RING_MIN to HETMEM_RING_MAX
 * @reserved: 0
 * @events: in, bits of enum hetmem_event_type, not 0
 * @map_size: out, bytes to mmap(), shared, at offset 0 of this file
 *
 * A context has one ring, as long as the context exists. poll() returns POLLIN
 * while there is something to read, and POLLERR while there is no ring. A reader
 * that is too slow loses the newest events; the header's @dropped counts them.
 *
 * mmap() needs MAP_SHARED, no PROT_EXEC, offset 0 and exactly @map_size. A process
 * with the personality READ_IMPLIES_EXEC can map the ring; the mapping is not
 * executable there either. A child does not inherit the mapping. Errors of mmap():
 *	-ENXIO		there is no ring
 *	-EPERM		the context belongs to another address space
 *	-EINVAL		another flag, protection, offset or size
 *
 * Errors:
 *	-EEXIST		there is a ring
 */
struct hetmem_cmd_ring {
	__u32		size;
	__u32		flags;
	__u32		nr_entries;
	__u32		reserved;
	__aligned_u64	events;
	__aligned_u64	map_size;
};

#define HETMEM_RING_MIN		16
#define HETMEM_RING_MAX		65536

/**
 * struct hetmem_cmd_refresh - HETMEM_IOC_REFRESH: look at changed blocks again
 * @size: sizeof(struct hetmem_cmd_refresh)
 * @flags: 0
 * @start: in, any page-aligned address inside a tracked range
 * @dirty_blocks: out, blocks that are still dirty: they were not reached, they
 *	changed again, or a driver seems to be moving them
 * @walked_blocks: out, blocks looked at, at most HETMEM_REFRESH_BLOCKS
 * @as_of: out, CLOCK_MONOTONIC in ns of the oldest look that counts
 * @on_device: out, pages of the range that are on a device
 *
 * Looks, in the caller's context, at the blocks of the range that notifications
 * have marked since the last look. One call looks at HETMEM_REFRESH_BLOCKS of them at
 * most, and the next call goes on after them. The counters are exact under three
 * conditions. dirty_blocks is 0. Nothing has moved since as_of. No migration by a
 * driver that is not registered was under way for more than 100 ms: the kernel does
 * not report its end.
 *
 * Errors:
 *	-ENOENT		@start is in no tracked range
 *	-EINTR, -ENOMEM	partial
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

#define HETMEM_REFRESH_BLOCKS	4096

/**
 * struct hetmem_cmd_allow - HETMEM_IOC_ALLOW: what other processes may do
 * @size: sizeof(struct hetmem_cmd_allow)
 * @flags: 0
 * @allowed: HETMEM_SHAREABLE, HETMEM_ALLOW_HINTS, both or 0; replaces the value
 *	of the last ALLOW
 * @reserved: 0
 */
struct hetmem_cmd_allow {
	__u32		size;
	__u32		flags;
	__u32		allowed;
	__u32		reserved;
};

/* Every process that has the file may use INFO, RESIDENCY, STATS and REFRESH. */
#define HETMEM_SHAREABLE	(1U << 0)
/* Every process that has the file may use HINT. */
#define HETMEM_ALLOW_HINTS	(1U << 1)

/**
 * struct hetmem_cmd_bind_device - HETMEM_IOC_BIND_DEVICE: bind a location to a device
 * @size: sizeof(struct hetmem_cmd_bind_device)
 * @flags: HETMEM_BIND_*
 * @location: HETMEM_LOC(HETMEM_DEVICE, HETMEM_FOREIGN or HETMEM_COHERENT, index)
 * @reserved: 0
 * @uuid: UUID of the device, as the API of its driver returns it; not zero for
 *	FOREIGN and COHERENT
 *
 * Only userspace can find out which device a foreign location is: it lets the
 * driver move a page to the device, then calls RESIDENCY. A driver may put pages
 * of several devices into one pool, even later. The kernel cannot see this: check
 * again after a device's context was created or reset. Bindings belong to the
 * context. For FOREIGN and COHERENT the UUID identifies the device: binding the
 * UUID again moves it to @location, and two UUIDs at one location are two devices.
 * For DEVICE, binding the location again replaces the UUID.
 *
 * HETMEM_BIND_EXECUTOR makes this context receive the HINTs for this device and
 * address space. The context needs a ring with HINT in its events. Binding again
 * without the flag ends this role.
 *
 * Errors:
 *	-EBUSY		another context of this address space is the executor for
 *			the device
 *	-ENXIO		the context has no ring with HINT
 *	-ENOSPC		the context has HETMEM_MAX_BINDINGS bindings
 */
struct hetmem_cmd_bind_device {
	__u32		size;
	__u32		flags;
	__u32		location;
	__u32		reserved;
	__u8		uuid[16];
};

#define HETMEM_BIND_EXECUTOR	(1U << 0)

#define HETMEM_MAX_BINDINGS	16

/**
 * struct hetmem_cmd_hint - HETMEM_IOC_HINT: ask a process to move its memory
 * @size: sizeof(struct hetmem_cmd_hint)
 * @flags: 0
 * @start: first byte, in the address space of the context, page-aligned
 * @end: first byte after it
 * @location: target of the move: HETMEM_LOC(HETMEM_DEVICE, HETMEM_FOREIGN or
 *	HETMEM_COHERENT, index), or HETMEM_LOC(HETMEM_HOST, node or
 *	HETMEM_NODE_ANY)
 * @timeout_ms: 1 to HETMEM_HINT_TIMEOUT_MAX: maximum time of the hint
 * @uuid: UUID of the device, as the executor bound it, or zeroes. With FOREIGN and
 *	COHERENT it replaces the index; with other kinds it must be zeroes
 * @id: out, id of the hint
 * @moved: out, pages moved, as the executor reported
 * @result: out, 0 or a negative errno, as the executor reported
 * @reserved: 0
 *
 * Only a process itself can make its driver move its memory. The executor of the
 * process for the device (to the host: for any device) receives the hint and
 * answers with COMPLETE. The caller waits for the answer.
 *
 * Errors:
 *	-ENXIO		there is no executor for the location
 *	-ENOTUNIQ	the location is bound to several devices: pass @uuid
 *	-EAGAIN		the executor's ring or its queue is full, or the caller's
 *			user has caps/max_hints hints waiting there
 *	-EDQUOT		the hint exceeds foreign/GPU-UUID of sysfs
 *	-ETIMEDOUT	no answer in time
 *	-EOWNERDEAD	the executor's address space or its context is gone
 *	-EINTR		a signal that has a handler, or a fatal one
 * After -ETIMEDOUT and -EINTR the hint is withdrawn. The executor may still carry
 * it out.
 *
 * A freezer, a stop (SIGSTOP) and a tracer do not end HINT. The hint stays queued,
 * and the thread waits for it again afterwards, for what is left of @timeout_ms. If a
 * tracer lets a handler run, HINT returns -EINTR and the hint stays queued until the
 * thread makes another HINT or @timeout_ms is over. The same HINT again waits for that hint.
 */
struct hetmem_cmd_hint {
	__u32		size;
	__u32		flags;
	__aligned_u64	start;
	__aligned_u64	end;
	__u32		location;
	__u32		timeout_ms;
	__u8		uuid[16];
	__aligned_u64	id;
	__aligned_u64	moved;
	__s32		result;
	__u32		reserved;
};

#define HETMEM_HINT_TIMEOUT_MAX	600000

/**
 * struct hetmem_cmd_complete - HETMEM_IOC_COMPLETE: answer a hint
 * @size: sizeof(struct hetmem_cmd_complete)
 * @flags: 0
 * @id: data of the HINT event
 * @moved: pages that were moved, as far as known
 * @result: 0 or a negative errno, down to -4095
 * @reserved: 0
 *
 * Errors:
 *	-ENOENT		no such hint, or the hint has ended
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
 * @pid: the process that opened the context, in the caller's pid namespace; 0 if
 *	the process is not visible there or is gone
 * @uid: user of that process, in the caller's user namespace
 * @flags: HETMEM_LIST_*
 * @nr_ranges: tracked ranges
 * @nr_pinned: pages held by MIGRATE with PIN
 * @nr_hints: hints that wait for the context as executor
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

#define HETMEM_LIST_SHAREABLE	HETMEM_SHAREABLE
#define HETMEM_LIST_ALLOW_HINTS	HETMEM_ALLOW_HINTS
#define HETMEM_LIST_EXECUTOR	(1U << 2)

/**
 * struct hetmem_cmd_list - HETMEM_IOC_LIST: who uses hetmem
 * @size: sizeof(struct hetmem_cmd_list)
 * @flags: 0
 * @entries: in, array of struct hetmem_list_entry, may be 0 if @nr is 0
 * @entry_size: in, sizeof(struct hetmem_list_entry)
 * @nr: in, room in @entries, entries; out, number of contexts, which can be more
 *
 * Lists the contexts whose opener had the caller's effective uid. With
 * CAP_SYS_PTRACE in the initial user namespace, lists all contexts.
 */
struct hetmem_cmd_list {
	__u32		size;
	__u32		flags;
	__aligned_u64	entries;
	__u32		entry_size;
	__u32		nr;
};

#endif /* _UAPI_LINUX_HETMEM_H */
