/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The contents of a pool: a walk over its blocks, the live blocks of a private pool, and
 * checkpoints of these blocks.
 */
#ifndef HETMEM_SNAPSHOT_H
#define HETMEM_SNAPSHOT_H

#include <hetmem.h>

#ifdef __cplusplus
extern "C" {
#endif

enum hetmem_block_state {
	HETMEM_BLOCK_LIVE,	/* allocated */
	HETMEM_BLOCK_PENDING,	/* freed, but its work is not complete; or reserved to grow */
	HETMEM_BLOCK_CACHED,	/* freed; only its stream can allocate it */
	HETMEM_BLOCK_FREE,	/* its stream, or any stream, can allocate it; see @stream */
};

/**
 * struct hetmem_walk_segment - neighbouring blocks
 * @size: bytes of this struct that the library filled
 * @base: address of the first block
 * @bytes: sum of its blocks, which have no gaps between them
 * @private_pool: the private pool or the capture id that owns the memory; 0: all
 *	allocations can use it
 * @device: ordinal; -1: host memory
 * @small: 1: the segment has blocks of up to 1 MiB; 0: larger blocks
 */
struct hetmem_walk_segment {
	size_t size;
	void *base;
	size_t bytes;
	uint64_t private_pool;
	int device;
	int small;
};

/**
 * struct hetmem_walk_block - one block
 * @size: bytes of this struct that the library filled
 * @ptr: address
 * @bytes: size of the block; of a sparse block its addresses
 * @requested: requested bytes, of a sparse block the committed ones; 0: the block is not live,
 *	or is sparse without memory
 * @stream: live block: stream of the allocation. Other block: stream of the free, whose
 *	work must complete first. HETMEM_STREAM_HOST: no stream; any stream can allocate
 *	the block. HETMEM_STREAM_UNKNOWN: the stream was retired, or is not known.
 * @state: enum hetmem_block_state
 */
struct hetmem_walk_block {
	size_t size;
	void *ptr;
	size_t bytes;
	size_t requested;
	hetmem_stream stream;
	int state;
};

/**
 * struct hetmem_walk - parameters of a walk
 * @size: sizeof(struct hetmem_walk)
 * @private_pool: 0: all memory; else only memory of this private pool or capture
 * @segment: called for each segment before its blocks. May be NULL.
 * @block: called for each block, from low to high addresses of a pool. May be
 *	NULL.
 * @data: passed to both
 *
 * The structs are valid until the callback returns. A callback that returns
 * other than 0 ends the walk. No lock is held: a callback can call any function,
 * also on the same resource.
 */
struct hetmem_walk {
	size_t size;
	uint64_t private_pool;
	int (*segment)(void *data, const struct hetmem_walk_segment *segment);
	int (*block)(void *data, const struct hetmem_walk_segment *segment,
		     const struct hetmem_walk_block *block);
	void *data;
};

/*
 * Walks over the blocks of the pools of @res, one pool after another. While no
 * other thread uses @res, the walk reports the state of one moment. Otherwise the
 * walk blocks other threads for about a thousand blocks at a time, and guarantees:
 * - a block is reported as it was at one moment, different blocks at different
 *   moments;
 * - a block that is live during the whole walk is reported once;
 * - no byte is reported twice;
 * - memory that changes during the walk can be missing. A segment ends there.
 *
 * Until the walk ends, the library needs about 64 bytes of host memory for each
 * block. Returns 0, or the value with which a callback ended the walk. Errors:
 * -E2BIG: a member of a later version is set;
 * -EOPNOTSUPP: @res has no pool;
 * -ENOMEM, -EOWNERDEAD.
 */
int hetmem_walk(struct hetmem_resource *res, const struct hetmem_walk *walk);

/**
 * struct hetmem_sums - sums over a pool's memory, of blocks of up to 1 MiB and of larger ones
 * @size: in: sizeof(struct hetmem_sums)
 * @made, @made_bytes: handles and regions that were made so far, and their bytes
 * @given_back, @given_back_bytes: of these, the ones that went back to the driver
 * @held, @held_bytes: handles and regions now. Index 0: for small blocks; 1: for larger ones
 * @pending, @pending_bytes: blocks that were freed while another stream used them, and still
 *	wait for it; by index likewise
 * @free: free blocks that any stream, or its stream, can allocate; by index likewise.
 *	Blocks that a stream caches and those of private pools are not counted.
 */
struct hetmem_sums {
	size_t size;
	uint64_t made;
	uint64_t made_bytes;
	uint64_t given_back;
	uint64_t given_back_bytes;
	uint64_t held[2];
	uint64_t held_bytes[2];
	uint64_t pending[2];
	uint64_t pending_bytes[2];
	uint64_t free[2];
};

/*
 * Sums over the pools of @res. The pools keep them: the call takes a time for each stream, and
 * none for a block. Errors:
 * -E2BIG: @sums is of a later version;
 * -EOPNOTSUPP: @res has no pool;
 * -EOWNERDEAD.
 */
int hetmem_pool_sums(struct hetmem_resource *res, struct hetmem_sums *sums);

/*
 * The functions below wait for allocations from the private pool that are under
 * way in other threads, up to wait= of the pool. Later allocations and frees of
 * other threads in this private pool wait until the function returns.
 */

/*
 * Fills @ptrs (room for @nr) with the live blocks of the private pool @id, from
 * low to high addresses of a pool, as they are at one moment. Returns the number
 * of live blocks. If there are more than @nr, @ptrs has the first @nr. Errors:
 * -EINVAL: @id is 0;
 * -ENOENT: @id is not retained;
 * -EOPNOTSUPP, -ENOMEM, -EOWNERDEAD.
 */
ssize_t hetmem_private_live(struct hetmem_resource *res, uint64_t id,
			    void **ptrs, size_t nr);

/*
 * A checkpoint remembers which blocks of a private pool are live. A framework
 * makes a checkpoint after it captured a graph. It restores the checkpoint before
 * it captures a graph that continues from there. Then the blocks that earlier
 * graphs leave in use are allocated.
 */
struct hetmem_checkpoint;

/*
 * Makes a checkpoint of the private pool @id at one moment. Free it with
 * hetmem_checkpoint_free(). Errors: those of hetmem_private_live().
 */
int hetmem_private_checkpoint(struct hetmem_resource *res, uint64_t id,
			      struct hetmem_checkpoint **checkpoint);

/* Call it at any time, also after hetmem_resource_destroy(). NULL does nothing. */
void hetmem_checkpoint_free(struct hetmem_checkpoint *checkpoint);

/* The effect of a restore on a block. */
enum hetmem_restored_kind {
	HETMEM_RESTORED_FREED,		/* live before, not in the checkpoint */
	HETMEM_RESTORED_ALLOCATED,	/* in the checkpoint, not live before */
	HETMEM_RESTORED_KEPT,		/* live before, and in the checkpoint: unchanged */
};

/**
 * struct hetmem_restored - a block in the report of a restore
 * @size: bytes of this struct that the library filled
 * @ptr: address
 * @bytes: requested bytes
 * @stream: stream of the allocation, as a handle that the caller can use
 * @kind: enum hetmem_restored_kind
 */
struct hetmem_restored {
	size_t size;
	void *ptr;
	size_t bytes;
	hetmem_stream stream;
	int kind;
};

/*
 * Restores a private pool: the blocks of @checkpoint become its only live blocks, at the
 * same addresses. A block is kept if it is live with the same address, requested bytes and
 * stream. Other live blocks are freed, as by hetmem_free() on HETMEM_STREAM_UNKNOWN. Then
 * the missing blocks of the checkpoint are allocated. Contents do not change. The call makes
 * no driver call, so streams can be under capture. A checkpoint can be restored any number
 * of times.
 *
 * Order the streams that use allocated blocks after all earlier uses of their memory. These
 * include uses by blocks that were there in between, and uses that hetmem_record_stream()
 * reported.
 *
 * At the end calls @fn (may be NULL) for each block of the private pool: first the freed
 * blocks, then the allocated ones, then the kept ones. No lock is held. After an error
 * nothing has changed. Errors:
 * -EINVAL: @checkpoint is not of @res;
 * -ENOENT: the private pool was released after the checkpoint;
 * -EBUSY: the pool is asleep;
 * -ENOMEM: no host memory; or a limit() has no room for the allocated blocks;
 * -EOWNERDEAD.
 */
int hetmem_private_restore(struct hetmem_resource *res,
			   const struct hetmem_checkpoint *checkpoint,
			   void (*fn)(void *data,
				      const struct hetmem_restored *block),
			   void *data);

#ifdef __cplusplus
}
#endif

#endif /* HETMEM_SNAPSHOT_H */
