/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Blocks that move: spill a block to the host and fetch it back, behind its address. For
 * pools over vmm(). <hetmem.h> includes this header.
 *
 * A spilled block keeps its address. Kernels go on using it over the bus; its device memory
 * is free. Whole handles of memory move: the ends of a block that share a handle with other
 * blocks stay. Device memory that moved once has handles of its own.
 *
 * Only movable blocks move: larger than 1 MiB, and allocated with HETMEM_ALLOC_MOVABLE, or
 * of movable= bytes or more where the spec says so. With spill= in its spec a pool moves
 * them by itself when the device or max= is full, and back when there is room. It moves
 * only blocks of the stream that allocates.
 *
 * The promise that makes it safe. The stream of a block is the one it was allocated on.
 * - All uses of a movable block are on its stream, or joined into it (by events) before the
 *   next call of the pool on that stream.
 * - While one thread is in a call of the pool on a stream, no other thread gives that
 *   stream work.
 * Calls of the pool are hetmem_alloc(), hetmem_alloc_with() and the functions below. A
 * program that breaks the promise loses data. Check mode of the soft driver finds it
 * (HETMEM_SOFT_CHECK=1).
 *
 * A block never moves if it was recorded on another stream, exported, pinned for
 * communication, allocated with HETMEM_ALLOC_KEEP, in a private pool or in a capture that
 * is not released, if its stream was destroyed without hetmem_stream_retire(), or if peers
 * map the pool. No block moves between hetmem_capture_begin() and hetmem_capture_end() of
 * any stream, or on the legacy stream unless the spec says launcher=single: one thread gives
 * work to the device.
 */
#ifndef HETMEM_MOVE_H
#define HETMEM_MOVE_H

#include <hetmem/pool.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Moves the block that begins at @ptr to the host, or back to the device. Waits on the
 * host for the block's stream, at most wait= of the pool, and then for the copy; holds no
 * lock while it waits. To spill what is spilled, or to fetch what is on the device, is no
 * error. After an error every handle is either here or there, whole, and the pool goes on.
 *
 * Host memory comes from handles that the pool keeps for the next time; min_host= of the
 * spec makes them beforehand. Errors:
 * -EINVAL: @ptr is not the beginning of a live block;
 * -EBUSY: the block may not move, or its stream has not finished after wait=, or the pool
 *	is asleep, or another thread's move, sleep or wake has not ended after wait=; the
 *	text has the reason;
 * -ENOMEM: no host memory, or more than spill=; of a fetch: no device memory;
 * -EDEADLK: called by a function of hetmem_on_remap();
 * -EOPNOTSUPP: not a pool over vmm(), or one with export= or comm=on;
 * -EIO, -EOWNERDEAD.
 */
int hetmem_spill(struct hetmem_resource *res, void *ptr);
int hetmem_fetch(struct hetmem_resource *res, void *ptr);

/*
 * Begins a move and returns. The copy is ordered behind the work that the block's stream
 * has, and overlaps with what streams get from then on. The block must not be used until
 * the move has ended. It ends by the synchronous function of the same direction; or, once
 * the copy is complete, by hetmem_poll() or by another move of the block, which is -EBUSY
 * until then. A block can be freed while it moves. A move that another thread ends is no
 * error. Errors as above; a copy that fails leaves the block where it was.
 */
int hetmem_spill_async(struct hetmem_resource *res, void *ptr);
int hetmem_fetch_async(struct hetmem_resource *res, void *ptr);

/*
 * Lets the CPU use the spilled parts of the block @ptr at their address, until it is
 * fetched; an access to the rest faults. Page tables cost about 20 us per MiB. hetmem_segments()
 * and the residency of a block tell the parts apart. Errors as above, and
 * -EBUSY: no part of the block is spilled.
 */
int hetmem_host_access(struct hetmem_resource *res, void *ptr);

/*
 * Sets the priority of the movable block @ptr, 0 at first. If the device is full, a pool
 * with spill= moves blocks of the lowest priority first; of one priority, the oldest of the
 * current step; of one age, the largest. It fetches the highest priority first, then what
 * was spilled last. A step is found by itself: it begins when the bytes of movable blocks
 * rise again after they fell. Blocks that were there before it are moved last. The pool
 * cannot see uses. Errors:
 * -EINVAL: @ptr is not the beginning of a live block;
 * -EBUSY: the block is not movable;
 * -EOPNOTSUPP, -EOWNERDEAD.
 */
int hetmem_priority(struct hetmem_resource *res, void *ptr, int priority);

enum hetmem_remap_cause {
	HETMEM_REMAP_SPILL,
	HETMEM_REMAP_FETCH,
	HETMEM_REMAP_SLEEP,
	HETMEM_REMAP_WAKE,
};

/* What changes behind an address: pointer attributes, and what others have of it. */
#define HETMEM_REMAP_MEMORY_TYPE	(1U << 0)	/* device or host memory */
#define HETMEM_REMAP_BUFFER_ID		(1U << 1)
#define HETMEM_REMAP_IPC		(1U << 2)	/* exported handles are of the old memory */
#define HETMEM_REMAP_DMABUF		(1U << 3)	/* registrations are of the old memory */

/**
 * struct hetmem_remap - memory behind an address changes
 * @size: sizeof(struct hetmem_remap)
 * @ptr, @bytes: the addresses
 * @cause: enum hetmem_remap_cause
 * @changes: HETMEM_REMAP_*
 * @after: 0: the change is about to begin, and nothing has changed yet; 1: it has ended.
 *	If it failed, @error is not 0: nothing changed, or, of a sleep or a wake, a part.
 * @error: 0, or a negative errno
 */
struct hetmem_remap {
	size_t size;
	void *ptr;
	size_t bytes;
	unsigned int cause;
	unsigned int changes;
	int after;
	int error;
};

/*
 * Calls @fn before and after memory behind addresses of @res changes: for those who
 * registered an address (RDMA, IPC, cuMemHostRegister, dma-buf). Each call before has
 * exactly one call after, of the same range. @fn runs in the thread that moves the memory,
 * without a lock of the pool, and may allocate and free. Moves, sleep, wake and the two
 * functions below return -EDEADLK in it. Poll and trim end no move there. @fn must give up
 * registrations of the range before it returns from the first call.
 *
 * hetmem_off_remap() removes what was added with the same @fn and @arg. It waits for calls
 * of @fn by other threads that have begun. Errors:
 * -EINVAL: @fn is NULL; off: it was not added;
 * -EDEADLK: called by a function of hetmem_on_remap();
 * -EOPNOTSUPP: not a pool over vmm();
 * -ENOMEM, -EOWNERDEAD.
 */
typedef void (*hetmem_remap_fn)(const struct hetmem_remap *remap, void *arg);

int hetmem_on_remap(struct hetmem_resource *res, hetmem_remap_fn fn, void *arg);
int hetmem_off_remap(struct hetmem_resource *res, hetmem_remap_fn fn, void *arg);

#ifdef __cplusplus
}
#endif

#endif /* HETMEM_MOVE_H */
