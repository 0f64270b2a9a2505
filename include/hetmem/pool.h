/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Resources and pools beyond alloc and free: the current resource, trim, grow, sleep,
 * captures, other processes, access, and providers of the program's own. A call that makes
 * no sense for a resource returns -EOPNOTSUPP.
 */
#ifndef HETMEM_POOL_H
#define HETMEM_POOL_H

#include <hetmem.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Explains the names in @spec: what each stands for on this machine, and why. @spec NULL
 * means the spec that hetmem_resource_create() takes then. Writes one line for each name
 * into @text (@len bytes), such as "unified is classes(managed(device=0)): device 0 is
 * managed: ...". Writes "" if @spec has no name. Makes no resource. Errors:
 * -EINVAL: @spec is wrong; the text points at the character;
 * -EOPNOTSUPP: this machine can have no such resource;
 * -ENODEV: no such device;
 * -ENOSPC: @len is too small, and @text is "";
 * -ENOMEM.
 */
int hetmem_resource_explain(struct hetmem *hm, const char *spec, char *text,
			    size_t len);

/*
 * Returns in *@res the current resource of @device (-1: of the host), for code
 * that was not given a resource. hetmem_resource_set_current() sets it. If it is
 * not set, the library makes a resource on first use, as hetmem_resource_create()
 * does from a NULL spec on @device ("pool(host)" for the host). hetmem_close()
 * destroys that resource. Errors:
 * -ENODEV: no such device;
 * those of hetmem_resource_create().
 */
int hetmem_resource_current(struct hetmem *hm, int device,
			    struct hetmem_resource **res);

/*
 * Makes @res the current resource of @device. The caller still owns @res. NULL
 * unsets the current resource. *@old (@old may be NULL) becomes the resource that
 * was set before, NULL if none was set or it was the library's own. Set another
 * resource before you destroy @res. Errors:
 * -ENODEV: no such device;
 * -EINVAL: @res belongs to another struct hetmem.
 */
int hetmem_resource_set_current(struct hetmem *hm, int device,
				struct hetmem_resource *res,
				struct hetmem_resource **old);

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
 * Waits for work on freed memory, up to wait= of the pool (1 s). Other threads can
 * allocate and free during the wait. Keeps the blocks freed last on streams that were
 * destroyed without hetmem_stream_retire(). *@freed (@freed may be NULL) becomes the
 * number of bytes given back.
 */
int hetmem_trim(struct hetmem_resource *res, size_t keep, size_t *freed);

/*
 * Grows the block @ptr of a pool to @size bytes at the same address, for use on
 * @stream, and records @stream for the block. With a smaller size it gives back the end,
 * see hetmem_shrink(). The block grows into the addresses that
 * were reserved for it. Otherwise it grows into free memory after it, over vmm() also
 * into new memory. After an error nothing has changed. Errors:
 * -ENOSPC: the addresses after the block are in use, or there are no more;
 * -EBUSY: the block belongs to a capture, or the pool is asleep;
 * -EOPNOTSUPP, -ENOMEM.
 */
int hetmem_grow(struct hetmem_resource *res, void *ptr, size_t size,
		hetmem_stream stream);

/*
 * Gives back bytes [@offset, @offset + @length) of the block @ptr of a pool over vmm(), in the
 * order of @stream, as if they were a block that is freed on @stream. Recorded uses on other
 * streams count: @stream waits for them, the host does not. Memory is in handles, see
 * hetmem_segments(). The block keeps a handle that has other bytes of it, too. Whole handles
 * serve other allocations, at once on @stream, and go back to the driver by a trim. A block of
 * at most 1 MiB keeps its memory until it is freed. A wake joins handles, up to 256 MiB of a
 * block.
 *
 * If the range ends with the block, the block has @offset bytes then: requested statistics fall
 * at once, hetmem_segments() and hetmem_free() take the new size. hetmem_grow() with a smaller
 * size does the same. Of a block that was allocated with reserve, the addresses stay reserved:
 * it can grow into them again. New handles of such a block are at most 1/64 of what it grows
 * by, a granule at least, or have the size that handle= says. Other blocks give back their end
 * to the byte, for the nearest multiple of 512, and lose the addresses.
 *
 * If the range ends before, the block keeps its size and all its addresses: there is a hole.
 * The handle that the block begins in stays. hetmem_free() takes the size of the whole block
 * and ends all of it. hetmem_segments(), sleeps, wakes and hetmem_pin_comm() leave the hole
 * out. Requested statistics and hetmem_walk() count the whole block, reserved ones what it
 * holds. The block can grow at its end, and shrink to an end that is in no hole. It moves to
 * the host no more, and its hole gets no memory again. The program must not use the hole: its
 * addresses have other blocks' memory, or none.
 *
 * After an error nothing has changed. Errors:
 * -EINVAL: @ptr is not the beginning of a live block; the range is all of it; the block is
 *	smaller;
 * -EBUSY: it belongs to a capture, is spilled or moves, or the pool is asleep; a whole handle in
 *	the range has an alias, or a freed one whose last use is not complete; @stream is
 *	HETMEM_STREAM_HOST and a recorded use is not complete, or a recorded use was on a stream
 *	that was destroyed without hetmem_stream_retire();
 * -EOPNOTSUPP: memory that is not over vmm(), exported or pinned for communication; the new end
 *	is in a hole;
 * -ENOMEM: no addresses or descriptors to keep what was given back.
 */
int hetmem_shrink(struct hetmem_resource *res, void *ptr, size_t offset, size_t length,
		  hetmem_stream stream);

/*
 * The placement class of a block: the side that uses it. In unified and classes(),
 * blocks of two classes never share an aligned 2 MiB. So the CPU and the device do not
 * use the same page in turns, and blocks that move together are contiguous.
 */
enum hetmem_placement {
	HETMEM_PLACEMENT_STREAM,	/* host on HETMEM_STREAM_HOST, else device */
	HETMEM_PLACEMENT_HOST,		/* the CPU, most of the time */
	HETMEM_PLACEMENT_DEVICE,	/* the device, most of the time */
	HETMEM_PLACEMENT_BOTH,		/* both, in turns or at the same time */
	HETMEM_PLACEMENT_READ_MOSTLY,	/* both read, seldom write: each has a copy */
	HETMEM_PLACEMENT_STREAMING,	/* one writes, the other reads once: on the host */
};

/**
 * struct hetmem_alloc_params - an allocation with options
 * @size: sizeof(struct hetmem_alloc_params)
 * @bytes, @align, @stream: as of hetmem_alloc()
 * @reserve: 0, or bytes of addresses, at least @bytes, that hetmem_grow() can
 *	grow the block to. For pools over vmm() (@align: at most a granule), and over
 *	memory that costs nothing before it is touched: system(), host() and managed(),
 *	also in unified. Over these three, all reserved addresses count as held, also in
 *	max= and in headroom().
 * @private_pool: 0, or a retained private pool. Not together with @reserve.
 * @flags: HETMEM_ALLOC_*
 * @placement: enum hetmem_placement. A resource without classes ignores it.
 * @priority: of a movable block, see hetmem_priority()
 * @tag: NULL, or the name with which hetmem_sleep() and hetmem_wake() find the block: 1 to
 *	31 bytes. For pools over vmm()
 *
 * Blocks of different tags never share a handle, nor do scratch blocks and others. The pool
 * keeps the memory of each tag apart, also the free memory. What one tag lacks, under max= or
 * on the device, the others give back first, if it is free. The first block of a tag reserves
 * addresses for it. A resource has at most 63 tags; a tag with scratch blocks counts twice.
 * Tagged and scratch blocks are not spilled by the pool itself.
 *
 * A later version can add members. Zero in such a member means the behaviour of this
 * version.
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
	const char *tag;
};

/*
 * Flags. A resource that moves no blocks ignores the first two. A pool ignores these two for
 * blocks of at most 1 MiB.
 *
 * Nobody needs the contents of a scratch block across a sleep. With HETMEM_SLEEP_KEEP they are
 * not parked: the memory goes back, and the wake makes new memory at the same addresses, with
 * undefined contents. A resource that cannot sleep ignores the flag.
 *
 * A whole block has a handle of its own, or a region of a provider without handles. It takes a
 * multiple of 2 MiB, and the private pool reuses it as a whole. Only a @private_pool has such
 * blocks, for transports that register memory by handle.
 *
 * A sparse block is for pools over vmm() without export= and comm=on, and has no @reserve,
 * @private_pool, @tag or other flag. @align is at most a granule.
 *
 * A ring is mapped twice in a row: byte i of the block is also byte i + @bytes, so a range that
 * wraps around needs no second copy. It has no @reserve, @private_pool, @tag or other flag, and
 * @align is at most a granule. @bytes is a multiple of the granularity of
 * hetmem_device_props(), over host memory of a page, over vmm(stripe=) of a page of the stripe:
 * the error has its size. hetmem_free() takes @bytes, and ends both
 * addresses. A ring is for pools over vmm() without export= and comm=on, and over host(),
 * pinned() and registered(). The memory counts once. Two addresses of one byte are not coherent
 * within a kernel, nor between kernels that run at the same time; hetmem_alias() has the rules.
 * A ring keeps its size and its memory: a sleep leaves it as it is. A forked child shares a ring
 * of host() and pinned() with its parent; registered() memory is not in a child.
 */
#define HETMEM_ALLOC_MOVABLE	(1U << 0)	/* may be spilled, see <hetmem/move.h> */
#define HETMEM_ALLOC_KEEP	(1U << 1)	/* is never spilled, also with movable= */
#define HETMEM_ALLOC_WHOLE	(1U << 2)	/* shares no handle with another block */
#define HETMEM_ALLOC_SCRATCH	(1U << 3)	/* a sleep need not keep the contents */
#define HETMEM_ALLOC_SPARSE	(1U << 4)	/* addresses only, see hetmem_commit() */
#define HETMEM_ALLOC_RING	(1U << 5)	/* is mapped twice in a row */

/*
 * hetmem_alloc() with options. For a private pool @stream may be captured, with or
 * without hetmem_capture_begin(), and the library does not ask the driver for the
 * stream's id. Errors:
 * -EINVAL: a parameter makes no sense; the text names it;
 * -E2BIG: a member of a later version is set;
 * -ENOENT: the private pool is not retained;
 * -ENOSPC: there are 65,535 pairs of private pool and stream, or 63 tags;
 * -EOPNOTSUPP: @private_pool: not a pool; @reserve, @tag, sparse, ring: a pool over other
 *	memory;
 * -EBUSY: the pool is asleep, or the blocks of @tag are; @reserve is not 0 or the block is
 *	sparse or a ring, and @stream is being captured; the first block of a tag, between
 *	hetmem_capture_begin() and end;
 * -EDEADLK: the first block of a tag, in a function of hetmem_on_remap();
 * -ENOMEM, -EOWNERDEAD.
 */
int hetmem_alloc_with(struct hetmem_resource *res,
		      const struct hetmem_alloc_params *params, void **ptr);

/*
 * Private pools: only allocations with the pool's number get its memory. They are for
 * the graphs of a framework that decides by itself which allocations belong to a
 * capture. @id is any number except 0. Private pools and captures share one set of
 * numbers: a number is used for a private pool or for captures, never for both.
 *
 * Until release, blocks freed on a stream serve allocations on the same stream. The pool
 * compares streams by handle, orders no streams and makes no driver call about them. So
 * memory may pass from one capture to another on one stream. HETMEM_STREAM_UNKNOWN means
 * the stream of the allocation. Blocks for which hetmem_record_stream() was called are
 * reused after release. Exported blocks are never reused.
 *
 * Retain adds a reference; the first retain makes the pool. The last release makes the
 * memory available to all allocations, after @stream. Order all uses of freed blocks
 * before @stream. Live blocks stay; free them with a stream. Errors:
 * -EINVAL: @id is 0;
 * -ENOENT: release: @id is not retained;
 * -EBUSY: retain: a capture has the number @id; release: another thread allocates
 *	from the private pool, lists it, or restores a checkpoint;
 * -ENOSPC: 65,535 numbers, or pairs of number and stream, are not released;
 * -EOPNOTSUPP, -ENOMEM, -EOWNERDEAD.
 */
int hetmem_private_retain(struct hetmem_resource *res, uint64_t id);
int hetmem_private_release(struct hetmem_resource *res, uint64_t id,
			   hetmem_stream stream);

/*
 * Gives back the free memory of the private pool @id: what was made for the pool goes to the
 * driver, the rest becomes available to all allocations. A piece of memory that other blocks
 * use too stays held. Call it when all work that uses freed blocks of the pool is complete,
 * also that of graphs that can be launched again. Live blocks and other private pools keep
 * their memory. A checkpoint of a freed block can then not be restored (-ENOENT). *@freed
 * (@freed may be NULL) becomes the number of bytes given to the driver. Errors:
 * -EINVAL: @id is 0;
 * -ENOENT: @id is not retained;
 * -EBUSY: the pool is asleep;
 * -EOPNOTSUPP, -EOWNERDEAD.
 */
int hetmem_private_trim(struct hetmem_resource *res, uint64_t id, size_t *freed);

/*
 * Sparse blocks: addresses first, memory when it is needed. hetmem_alloc_with() with
 * HETMEM_ALLOC_SPARSE reserves @bytes of addresses and makes no memory. Commit backs bytes
 * [@offset, @offset + @length) of the block @ptr with memory, for use on @stream. Decommit gives
 * this memory back, in the order of @stream. Both work in whole units: unit= of the pool, 2 MiB
 * by default. @bytes that are no multiple of the unit are rounded up to whole units: a commit of
 * the end backs and counts the last unit whole. Do not use the bytes after @bytes. @offset and
 * @length are multiples of the unit; a range may also end with @bytes. The contents of committed
 * memory are undefined. A length of 0 does nothing.
 *
 * A decommit parks its units: they stay mapped until other allocations or commits need memory.
 * A commit of parked units makes no call of the driver for memory. It orders @stream after
 * their last use, as a stream that gets a freed block. A commit of other units takes free
 * memory, then units that are parked elsewhere, then new memory. The pool maps a unit at its
 * new address first. It unmaps the old address when the last use there is complete. A trim
 * gives parked units back to the driver.
 *
 * Decommit orders after the work on @stream only, so order all other uses of these units before
 * it. An access to a unit that is not committed is undefined: it reads or writes memory of
 * others while the unit is parked, and faults later. Check mode reports such accesses as uses
 * after a free.
 *
 * hetmem_free() takes the size of the addresses and ends all units, in stream order. Requested
 * statistics and limit() count committed units. Held bytes and max= count parked units, too.
 * Sleep and wake include committed units. A sparse block is neither
 * spilled, exported, grown, shrunk nor pinned for communication: -EOPNOTSUPP. Captures use
 * committed units, but a captured stream commits and decommits nothing.
 *
 * After an error nothing has changed. Errors of commit and decommit:
 * -EINVAL: @ptr is not the beginning of a live sparse block; the range is not whole units, or
 *	is beyond the block;
 * -EEXIST: commit: a unit of the range is committed, or another thread commits it;
 * -ENOENT: decommit: a unit of the range is not committed;
 * -EBUSY: the pool is asleep, or a stream of the block is being captured or is used by a graph;
 * -EOPNOTSUPP, -ENOMEM, -EIO, -EOWNERDEAD.
 */
int hetmem_commit(struct hetmem_resource *res, void *ptr, size_t offset, size_t length,
		  hetmem_stream stream);
int hetmem_decommit(struct hetmem_resource *res, void *ptr, size_t offset, size_t length,
		    hetmem_stream stream);

/*
 * hetmem_commit() with @flags, for tasks that share less memory than they have addresses. With
 * HETMEM_COMMIT_WAIT the stream waits and the host does not. Units whose decommit is enqueued on
 * another stream count as memory, and so do freed blocks: @stream is ordered after their last
 * use. HETMEM_STREAM_HOST is not ordered: it gets memory whose last use is complete. Errors with
 * HETMEM_COMMIT_WAIT, beside those of hetmem_commit():
 * -EINVAL: @flags has other bits;
 * -EAGAIN: too little memory is free or decommitted; try again after a decommit;
 * -ENOMEM: @length is beyond max= of the pool, or beyond what a limit() leaves.
 */
#define HETMEM_COMMIT_WAIT	(1U << 0)	/* on the stream, not on the host */

int hetmem_commit_with(struct hetmem_resource *res, void *ptr, size_t offset, size_t length,
		       unsigned int flags, hetmem_stream stream);

/**
 * struct hetmem_extent - a committed range of a sparse block
 * @offset: bytes from the start of the block
 * @length: bytes, whole units
 */
struct hetmem_extent {
	size_t offset;
	size_t length;
};

/*
 * Fills @extents (room for @nr) with the committed ranges of the sparse block @ptr, in the order
 * of addresses. Neighbours are one range. Returns their number. Works during a sleep, too.
 * Commits and decommits of other threads during the call may be missing, in whole or in part.
 * Errors:
 * -EINVAL: @ptr is not the beginning of a live sparse block;
 * -ENOSPC: there are more than @nr ranges;
 * -EOPNOTSUPP, -EOWNERDEAD.
 */
ssize_t hetmem_committed(struct hetmem_resource *res, const void *ptr,
			 struct hetmem_extent *extents, size_t nr);

/*
 * Gives the first @size bytes of the live block @ptr of a pool over vmm() a second address,
 * *@other: the same memory, no copy. Devices that can use the block can use it there, and with
 * HETMEM_ALIAS_READ only read it: a write fails their context. The CPU has no access there
 * unless it has at @ptr.
 *
 * Coherence: within a kernel an access by one address is in no order with an access of the same
 * bytes by the other, except after a fence of the alias proxy (fence.proxy.alias in PTX). Work
 * that runs at the same time must not write by one address what it uses by the other. The
 * order of streams and events is enough between kernels. Check mode reports such work without
 * an order.
 *
 * hetmem_free(@res, *@other) ends the alias, in the order of a stream that the caller gives;
 * its size is @size, or 0. It stays mapped until the last use on that stream is complete. No
 * other call takes *@other. The block and its aliases can be freed in any order, but after the
 * free of the block an access by any address is a use of freed memory. As long as the alias is
 * there, the memory stays where it is: it is neither moved, nor spilled, nor given back, and a
 * sleep leaves it as it is, with its contents. That holds for all of the handles that the block
 * is in, see hetmem_segments(). An alias counts no bytes. hetmem_resource_destroy() ends
 * aliases, and does not count them. After an error nothing has changed. Errors:
 * -EINVAL: @ptr is not the beginning of a live block, or is an alias; @size is 0 or more than
 *	the block has; unknown @flags;
 * -EBUSY: the pool is asleep; the block or memory beside it is spilled or moves; the block
 *	belongs to a capture or a private pool;
 * -EOPNOTSUPP: not a pool over vmm(), or one with export= or comm=on; a sparse block, or one
 *	that gave back memory in the range; HETMEM_ALIAS_READ of memory of custom();
 * -ENOMEM: no addresses;
 * -EIO, -EOWNERDEAD.
 */
#define HETMEM_ALIAS_READ	(1U << 0)	/* no writes at *@other */

int hetmem_alias(struct hetmem_resource *res, void *ptr, size_t size, unsigned int flags,
		 void **other);

/*
 * Makes *@replica: memory of @device for a copy of the live block @ptr of a pool over vmm(), for
 * data that is read mostly. Its contents are undefined until the first hetmem_refresh(). @device
 * can use it, and the device of the block can. It has as many bytes as were requested for the
 * block, and is in a handle of its own. A block has at most one replica on each device. A
 * stripe can have one on a device of its own.
 *
 * hetmem_free(@res, *@replica) frees a replica alone, in the order of a stream that the caller
 * gives, of any device. hetmem_free() of the block frees all of its replicas in the order of the
 * same stream. So order all uses of the replicas before it, too; HETMEM_STREAM_UNKNOWN is
 * refused. The memory goes back to the driver when its last use is complete: hetmem_poll(),
 * hetmem_trim() and the calls of replicas see to that. hetmem_resource_destroy() frees replicas
 * after all work of their devices, and does not count them. No other call takes *@replica.
 *
 * As long as there are replicas, the memory of the block stays where it is, as with an alias: it
 * is neither moved nor spilled, and a sleep leaves it and the replicas as they are. The block
 * keeps the bytes that its replicas have. Calls for the replicas of one block are for one thread
 * at a time. After an error nothing has changed. Errors:
 * -EINVAL: @ptr is not the beginning of a live block, or is in an alias or a replica; the block
 *	is on @device;
 * -ENODEV: no such device;
 * -EEXIST: the block has a replica on @device;
 * -EBUSY: the pool is asleep; the block or memory beside it is spilled or moves; the block
 *	belongs to a capture or a private pool; another thread works on its replicas;
 * -EOPNOTSUPP: not a pool over vmm(), or one with export= or comm=on; a sparse block, or one
 *	that gave back memory; @device has no VMM;
 * -ENOMEM: no memory or addresses on @device;
 * -EIO, -EOWNERDEAD.
 */
int hetmem_replicate(struct hetmem_resource *res, void *ptr, int device, void **replica);

/*
 * Copies the block @ptr to all of its replicas, in the order of @stream: after the work that
 * @stream has, and before work that it gets later. @stream is of any device. The copies to all
 * devices are under way at once, and the host does not wait. Order readers of the replicas on
 * other streams before and after, by events. The block's device makes the copies. If it cannot
 * reach @device, the driver has a slower way of its own. Errors:
 * -EINVAL: @ptr has no replicas, or is in one; @stream is the host's, unknown, or none;
 * -EBUSY: @stream is being captured; another thread works on the replicas of @ptr;
 * -ENOMEM, -EIO: the driver refuses a copy. Each replica has its old contents or new ones, and
 *	@stream is ordered after the copies that began: if the driver refuses that, too, the host
 *	waits for them. Refresh again;
 * -EOWNERDEAD.
 */
int hetmem_refresh(struct hetmem_resource *res, void *ptr, hetmem_stream stream);

/**
 * struct hetmem_segment - a part of a block with a handle of its own
 * @base: address of the part
 * @offset: bytes from the start of the range that was asked about
 * @length: bytes
 * @device: ordinal of the device that has the memory; -1: the host has it, or nobody is known
 *	to. hetmem_import() does not look at it.
 * @handle_types: HETMEM_HANDLE_*: as what the driver exports the handle to other processes. 0:
 *	as nothing, or the memory has no handle. hetmem_import() does not look at it. Older
 *	programs know the member as reserved.
 */
struct hetmem_segment {
	void *base;
	size_t offset;
	size_t length;
	int device;
	unsigned int handle_types;
};

/* Types of handles, with the values that CUmemAllocationHandleType has. */
#define HETMEM_HANDLE_FD	(1U << 0)	/* a POSIX file descriptor */
#define HETMEM_HANDLE_FABRIC	(1U << 3)

/*
 * Fills @segments (room for @nr) with the parts of [@ptr, @ptr + @size) that a
 * transport must register separately. Returns their number. Errors:
 * -ENOSPC: there are more than @nr parts.
 */
ssize_t hetmem_segments(struct hetmem_resource *res, const void *ptr,
			size_t size, struct hetmem_segment *segments,
			size_t nr);

/*
 * Pins the memory of the block around @ptr to its addresses. The memory is not remapped and not
 * given back, even after a free. For transports that register memory and cache the registration.
 *
 * Over vmm() the block also gets one handle that other processes can open, at the same address
 * and with the same contents: hetmem_segments() is one part with HETMEM_HANDLE_FD, or one on
 * each side of a hole of hetmem_shrink(). For this the call waits on the host for the streams of
 * the block, each up to wait= of the pool, and copies the block. During the call no other thread
 * may give these streams work, or free blocks of theirs. Other blocks in the same handles get
 * the new memory, too, if they are of the same stream. Until the call returns the pool holds
 * these handles twice. Observers of hetmem_on_remap() see the change as HETMEM_REMAP_PIN. A
 * block that is in such a handle already stays where it is. So do blocks with comm=on, and of a
 * driver or provider that makes no such handles: stripe= and custom(), for example.
 *
 * A pool pins at most 65,536 ranges. Pins count: hetmem_unpin_comm() takes back one of the block
 * that begins where the pinned one did. After the last one the memory stays where it is until
 * the pool needs it elsewhere. hetmem_free() of a pinned block takes no pin back: the memory
 * serves other blocks at its addresses until the resource is destroyed. In unified and
 * classes() memory without handles stays pinned.
 *
 * After an error nothing has changed. Errors:
 * -EINVAL: @ptr is in no live block; unpin: it is not pinned;
 * -EBUSY: the text has the reason: the pool is asleep; the block is spilled, moves, has an alias
 *	or belongs to a capture or a private pool; a capture is open; a stream has not finished
 *	after wait=; another thread's move, sleep or wake has not ended after wait=; memory beside
 *	the block is of another stream, recorded on one, in use, or pinned with another block;
 * -ENOMEM: no memory for the second handle, within max= and headroom(); the text has the bytes;
 * -ENOSPC: 65,536 ranges are pinned;
 * -EDEADLK: called by a function of hetmem_on_remap();
 * -EOPNOTSUPP: memory of the host, without a pool, of a sparse block or a ring;
 * -EIO, -EOWNERDEAD.
 */
int hetmem_pin_comm(struct hetmem_resource *res, void *ptr);
int hetmem_unpin_comm(struct hetmem_resource *res, void *ptr);

/* Flags of hetmem_sleep(). */
#define HETMEM_SLEEP_DISCARD	0U	/* contents are lost */
#define HETMEM_SLEEP_KEEP	1U	/* contents are parked in host memory, or in a file */

/*
 * Sleep synchronizes with all work of all devices. Then it gives back the memory of all
 * pools whose tag= is @tag (NULL: of all pools), including allocated memory. Addresses are
 * kept. During sleep an allocation returns -EBUSY, and an access faults. Wake gives the
 * addresses memory again. After an error the pools are asleep as before and hold nothing:
 * call wake again. Pinned and exported memory stays, with its contents.
 *
 * @tag also finds the blocks that were allocated with it, see struct hetmem_alloc_params. They
 * sleep and wake alone: the rest of their pool stays as it is, and serves allocations. A pool
 * that @tag names, or NULL, includes its blocks of all tags. So after a sleep of everything a
 * program can wake one tag after the other. A tag that nothing has does nothing. "" names the
 * pools without tag=. A wake stays within max=. Exception: if all blocks of the pool sleep, memory
 * that was held at once wakes together, whatever max= is now.
 *
 * With HETMEM_SLEEP_KEEP, sleep copies the contents of allocated memory to page-locked host
 * memory before it gives device memory back. Wake copies them back. The host memory has
 * exactly the size of the contents, rounded up to 2 MiB; max_host= of the pool bounds it, and
 * what the host can spare: hetmem_memory_info() of the host.
 * After the wake the pool keeps park= bytes of it for the next sleep (default: a quarter of
 * the host's available memory); with park=release the wake gives all of it back. Each
 * hetmem_poll() gives back 64 MiB of the rest; hetmem_trim() gives back all. A forked child does not have this host memory. If a sleep
 * fails before device memory is given back, nothing has changed. A second sleep is no
 * error, and keeps the parked contents.
 *
 * With park=PATH of the pool the contents go to a file in the directory PATH instead. The file
 * has no name, and ends with the process. On an integrated device, whose memory is the host's
 * own, contents are kept only in this way.
 *
 * Other threads can free blocks during both calls. Errors:
 * -EOPNOTSUPP: not a pool over vmm(); with HETMEM_SLEEP_KEEP also: an integrated device, and
 *	the text has the reason;
 * -EBUSY: the pool has comm=on, or a stream is being captured. If the pool does not know
 *	that stream, its capture is invalid now. With HETMEM_SLEEP_KEEP also: the pool is
 *	asleep without its contents;
 * -EINVAL: unknown flags;
 * -ENOMEM: wake: too little device memory, and the text has the missing bytes; sleep: no
 *	room for the contents, and the text has the number of bytes that fit;
 * -ENOSPC: likewise, in the directory of park=PATH;
 * -EACCES, -EROFS, -EMFILE, -ENFILE: no file can be made there any more;
 * -EIO: the driver or the file failed.
 */
int hetmem_sleep(struct hetmem_resource *res, const char *tag, unsigned int flags);
int hetmem_wake(struct hetmem_resource *res, const char *tag);

/*
 * hetmem_wake() that waits up to @wait_ms for room: after -ENOMEM it tries again until then.
 * The last attempt begins at the deadline or later. Between two attempts the pools are
 * asleep and hold no device memory, so others can use it. Observers of hetmem_on_remap() see
 * each attempt.
 * Errors: as hetmem_wake(); -ENOMEM has the text of the last attempt.
 */
int hetmem_wake_within(struct hetmem_resource *res, const char *tag, unsigned int wait_ms);

/*
 * Reads the counters of what hetmem_sleep() would find by @tag: blocks with this tag, and pools
 * whose tag= it is. NULL: all pools. @stats->reserved_peak is the sum of the pools' and tags'
 * highest values. Errors:
 * -ENOENT: nothing has this tag;
 * -E2BIG: @stats is of a later version;
 * -EOPNOTSUPP: @res has no pool;
 * -EOWNERDEAD.
 */
int hetmem_tag_stats(struct hetmem_resource *res, const char *tag,
		     struct hetmem_resource_stats *stats);

/*
 * Copies [@ptr, @ptr + @size) of one live block to host memory at @to, as it was when the pool
 * went to sleep with HETMEM_SLEEP_KEEP. The pool stays asleep: a checkpoint of a sleeping
 * model takes no device memory. @ptr may be inside the block; the range ends within the bytes
 * that were requested. Pinned, exported and spilled memory is read where it is. The call waits
 * for a sleep or a wake of another thread. With park=PATH it reads the file. Errors, after
 * which @to has any contents:
 * -EINVAL: @ptr or @to is NULL; the range is not in one live block;
 * -ENODATA: the pool is awake, or asleep without its contents, as scratch blocks are; or
 *	hetmem_shrink() gave back memory in the range;
 * -EDEADLK: called by a function of hetmem_on_remap();
 * -EOPNOTSUPP: not a pool over vmm();
 * -EIO: the driver or the file failed;
 * -ENOMEM: no host memory for the copy;
 * -EOWNERDEAD.
 */
int hetmem_parked_read(struct hetmem_resource *res, const void *ptr, void *to, size_t size);

/*
 * Memory of captured graphs. Allocations on @stream between begin and end belong to
 * the graphs @id. Graphs can be launched many times, so only captures with @id reuse
 * that memory after a free. Release ends this: all allocations can reuse the memory
 * after @stream. Several captures may share an @id if their graphs are launched one after
 * the other, in the order of the captures. Memory freed on one captured stream is not
 * reused on another stream before all captures have ended.
 *
 * Below binning() and fallback() this holds for the memory of pools. A provider without a
 * pool takes its memory back at the free: free it after the graphs are destroyed.
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
 * segment. Send the descriptors over a UNIX socket (SCM_RIGHTS), then close
 * them. Fills @fds and @segments (room for @nr) and returns their number. The
 * memory is released once @ptr is freed and every importer has closed it.
 * Errors:
 * -ENOSPC: there are more segments than @nr;
 * -EBUSY: the pool is asleep;
 * -EOPNOTSUPP: not a pool over vmm(export=fd).
 */
ssize_t hetmem_export(struct hetmem_resource *res, void *ptr, int *fds,
		      struct hetmem_segment *segments, size_t nr);

/*
 * Maps exported memory for @device at *@ptr. @segments are in the exporter's order;
 * their base is ignored. The caller still owns the descriptors. Errors:
 * -ENODEV, -ENOMEM, -EOPNOTSUPP.
 *
 * hetmem_import_close() unmaps the memory at @ptr. All its uses must be complete. What is
 * still mapped at hetmem_close() stays mapped until the process ends.
 */
int hetmem_import(struct hetmem *hm, int device, const int *fds,
		  const struct hetmem_segment *segments, size_t nr,
		  void **ptr);
int hetmem_import_close(struct hetmem *hm, void *ptr);

/*
 * Sets the parameter @name of a spec to @value, in the notation of a spec:
 * hetmem_resource_set(res, "max", "60%"). These parameters can change: max, min,
 * wait, decay and cache of pool; max of limit; times and wait of retry.
 *
 * The first resource from the top that has the parameter takes the value;
 * "pool.max" names the kind, too. Below fallback or binning, either all resources
 * that have the parameter take the value, or none.
 *
 * A lower max takes no live memory away. The pool gives free memory back until at
 * most max is held, and waits for work on that memory, up to twice wait=. A
 * pool over vmm() has addresses for 16 times its first max and twice its spill, less in a
 * process that has few left: set reserve= to raise max further. A higher min keeps memory,
 * but allocates none. Errors:
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
 * @unit: bytes of a unit of sparse blocks: see hetmem_commit(). 0: there are none. The least
 *	common multiple, if the units of several pools differ
 *
 * Programs that were built before @unit was added do not get it.
 *
 * A device counts if it can use the block at the address that hetmem_alloc() returned,
 * without another driver call. If one of the devices has no concurrent managed access
 * (hetmem_device_props()), the CPU can use managed memory only while no device works.
 */
struct hetmem_access {
	size_t size;
	int host;
	int some_host;
	uint64_t devices;
	uint64_t some_devices;
	uint64_t unit;
};

/* Errors: -EOWNERDEAD. */
int hetmem_resource_access(struct hetmem_resource *res,
			   struct hetmem_access *access);

/*
 * A provider of the program's own: callbacks that hand out memory. The spec
 * "custom(name=N)" makes a resource with one region for each allocation.
 * "pool(custom(name=N),max=1G)" cuts regions into blocks, in stream order.
 */

/* Version of the callbacks of struct hetmem_provider. */
#define HETMEM_PROVIDER_VERSION	1

/* The CPU can use the memory. */
#define HETMEM_PROVIDER_HOST	(1U << 0)
/*
 * A forked child inherits the memory, copied on write, and may call @alloc and
 * @free. Without this flag a resource's calls return -EOWNERDEAD in a child, and call no
 * callback. Not together with @map.
 */
#define HETMEM_PROVIDER_FORK	(1U << 1)

/**
 * struct hetmem_provider - memory of the program's own
 * @size: sizeof(struct hetmem_provider)
 * @version: HETMEM_PROVIDER_VERSION
 * @flags: HETMEM_PROVIDER_*
 * @device: ordinal of the device whose streams order the uses; -1: the host
 * @devices: bit N: device N can use the memory; @device is implied
 * @granularity: bytes, a power of two, at least 512; with @map at least a page
 * @total: bytes in all, for percentages of a spec; 0: not known. Required with @map:
 *	the pool reserves several times as many addresses.
 *
 * Either whole regions:
 * @alloc: allocates @size bytes at a multiple of @granularity; sets *@ptr
 * @free: frees one region. All its uses are complete.
 *
 * or addresses and memory apart, for a pool only:
 * @reserve: reserves @size bytes of addresses at a multiple of @align; sets
 *	*@addr
 * @unreserve: releases one reservation. Nothing is mapped in it.
 * @create: makes @size bytes of memory without an address; sets *@handle
 * @release: releases a handle. Free the memory with the handle's last mapping.
 * @map: maps the whole handle at @addr, readable and writable. A handle can be
 *	mapped at several addresses at the same time.
 * @unmap: undoes one @map
 *
 * Set the callbacks of one kind, and the others to NULL. Every size is a multiple
 * of @granularity. @data is the argument of hetmem_provider_register().
 *
 * Return values:
 * 0: success;
 * -ENOMEM: there is no memory; the pool tries its other remedies;
 * another value: failure; the library returns -EIO.
 *
 * A callback that fails must change nothing. If @free, @unreserve, @release or @unmap
 * fails, the library calls it again, at the latest in destroy. If a region or
 * reservation is not aligned, the library frees it at once and returns -EIO. If it
 * overlaps another, the library returns -EIO and does not free it.
 *
 * Rules for callbacks:
 * - Any thread can call them, several threads at the same time.
 * - The pool can hold a lock during the call. A callback must not wait for a
 *   thread that uses the resource, must return, and should be quick.
 * - A callback must not use the resource that called it: every such call
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
 * Registers a copy of @provider as @name: up to 31 letters, digits, '-' and '_'.
 * @data must live as long as the registration. hetmem_close() ends the
 * registration. Errors:
 * -EINVAL: a member makes no sense, or callbacks are missing; the text names them;
 * -E2BIG: a member of a later version is set;
 * -EOPNOTSUPP: @provider->version is not known;
 * -ENODEV: no such device;
 * -EEXIST: @name is registered;
 * -ENOMEM.
 */
int hetmem_provider_register(struct hetmem *hm, const char *name,
			     const struct hetmem_provider *provider,
			     void *data);

/*
 * Ends a registration. Errors:
 * -ENOENT: @name is not registered;
 * -EBUSY: a resource uses it.
 */
int hetmem_provider_unregister(struct hetmem *hm, const char *name);

#ifdef __cplusplus
}
#endif

#endif /* HETMEM_POOL_H */
