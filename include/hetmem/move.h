/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Blocks that move: spill a block to the host and fetch it back at the same address. For
 * pools over vmm(). <hetmem.h> includes this header.
 *
 * A spilled block keeps its address. Kernels go on using it over the bus; its device memory
 * is free. Handles of memory move as a whole. A handle with several blocks moves with any of
 * them: the others go along, or come back. Exception: the handle stays if another block in
 * it may not move or is of another stream, or if free memory in it is still in use. Memory
 * that is freed in a handle on the host can be reused when the handle is back.
 *
 * Only movable blocks move: those allocated with HETMEM_ALLOC_MOVABLE, of any size, and, if
 * the spec has movable=, those of at least that size and 1 MiB. With spill= in its spec a
 * pool spills movable blocks when the device or max= is full, and fetches them when there is
 * room. It moves only blocks of the allocating stream.
 *
 * A move is safe only under this promise. A block's stream is the stream of its allocation.
 * - All uses of a movable block are on its stream, or joined into it (by events) before the
 *   next call of the pool on that stream.
 * - While one thread is in a call of the pool on a stream, no other thread gives that
 *   stream work.
 * Calls of the pool are hetmem_alloc(), hetmem_alloc_with() and the functions below. A
 * program that breaks the promise loses data. Check mode of the soft driver
 * (HETMEM_SOFT_CHECK=1) finds such programs.
 *
 * These blocks never move:
 * - recorded on another stream, exported, or pinned for communication;
 * - allocated with HETMEM_ALLOC_KEEP;
 * - in a private pool, or in a capture that is not released;
 * - on a stream that was destroyed without hetmem_stream_retire();
 * - on the legacy stream. Exception: the spec has launcher=single, which promises that one
 *   thread gives work to the device;
 * - of a pool that peers map.
 * While any stream is between hetmem_capture_begin() and hetmem_capture_end(), no block moves.
 */
#ifndef HETMEM_MOVE_H
#define HETMEM_MOVE_H

#include <hetmem/pool.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Moves the block that begins at @ptr to the host (spill), or to the device (fetch). Waits
 * on the host for the block's stream, up to wait= of the pool, and then for the copy. Holds
 * no lock during the wait. Spilling a spilled block is no error, nor is fetching a block
 * that is on the device. After an error each handle is wholly on the host or wholly on the
 * device, and the pool is usable.
 *
 * The pool keeps handles of host memory and reuses them; min_host= of the spec makes them
 * in advance. Errors:
 * -EINVAL: @ptr is not the beginning of a live block;
 * -EBUSY: the text has the reason: the block may not move; all of its handles stay; fetch:
 *	one of them cannot come back; its stream has not finished after wait=; the pool is
 *	asleep; another thread's move, sleep or wake has not ended after wait=;
 * -ENOMEM: spill: no host memory, or more than spill=; fetch: no device memory;
 * -EDEADLK: called by a function of hetmem_on_remap();
 * -EOPNOTSUPP: not a pool over vmm(), or one with stripe=, export= or comm=on;
 *	hetmem_spill() also: on an integrated device, and the text has the reason;
 * -EIO, -EOWNERDEAD.
 */
int hetmem_spill(struct hetmem_resource *res, void *ptr);
int hetmem_fetch(struct hetmem_resource *res, void *ptr);

/*
 * Begins a move and returns. The copy starts after the pending work of the block's stream,
 * and overlaps with later work of all streams. Do not use the block before the move has
 * ended. Handles that the block shares with others stay, since the others may be in use. The
 * synchronous function of the same direction ends the move. Once the copy is complete,
 * hetmem_poll() or another move of the block ends it, too; before that another
 * move returns -EBUSY. A block can be freed while it moves. If another thread ends the
 * move, that is no error. A copy that fails leaves the block where it was. Errors: those
 * of hetmem_spill() and hetmem_fetch(), and
 * -EBUSY: the block shares all of its handles.
 */
int hetmem_spill_async(struct hetmem_resource *res, void *ptr);
int hetmem_fetch_async(struct hetmem_resource *res, void *ptr);

/*
 * Lets the CPU use the spilled parts of the block @ptr at their address, until the block is
 * fetched. A CPU access to other parts faults. Page tables cost about 20 us per MiB.
 * hetmem_segments() and hetmem_residency() tell the parts apart. Errors: those of
 * hetmem_spill(), and
 * -EBUSY: no part of the block is spilled.
 */
int hetmem_host_access(struct hetmem_resource *res, void *ptr);

/*
 * Sets the priority of the movable block @ptr, initially 0. If the device is full, a pool
 * with spill= spills blocks in this order:
 * 1. the lowest priority;
 * 2. within a priority, the oldest block of the current step;
 * 3. within an age, the largest block.
 * A handle of several blocks has the highest of their priorities. The pool fetches the
 * highest priority first, and within a priority the block spilled last. It detects a step: a
 * step begins when the bytes of movable blocks rise again after they fell. Blocks from
 * before the step are spilled last. The pool cannot see uses. Errors:
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
	HETMEM_REMAP_PIN,	/* hetmem_pin_comm() */
};

/* What changes for an address: pointer attributes, exported handles and registrations. */
#define HETMEM_REMAP_MEMORY_TYPE	(1U << 0)	/* device or host memory */
#define HETMEM_REMAP_BUFFER_ID		(1U << 1)
#define HETMEM_REMAP_IPC		(1U << 2)	/* exports refer to the old memory */
#define HETMEM_REMAP_DMABUF		(1U << 3)	/* registrations refer to the old memory */

/**
 * struct hetmem_remap - the memory at a range of addresses changes
 * @size: sizeof(struct hetmem_remap)
 * @ptr, @bytes: the range
 * @cause: enum hetmem_remap_cause
 * @changes: HETMEM_REMAP_*
 * @after: 0: the change has not begun; 1: the change has ended
 * @error: 0, or a negative errno: the change failed, and nothing changed. Exception: a
 *	failed sleep or wake can have changed a part.
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
 * Calls @fn before and after the memory at addresses of @res changes. For code that
 * registers addresses (RDMA, IPC, cuMemHostRegister, dma-buf). Each call before has exactly
 * one call after, for the same range. The thread that moves the memory calls @fn, without a
 * lock of the pool. @fn may allocate and free. Inside @fn, moves, sleep, wake and the two
 * functions below return -EDEADLK, and poll and trim end no move. @fn must give up
 * registrations of the range before it returns from the first call.
 *
 * hetmem_off_remap() removes a callback that was added with the same @fn and @arg. It waits
 * for running calls of @fn in other threads. Errors:
 * -EINVAL: @fn is NULL; off: @fn and @arg were not added;
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
