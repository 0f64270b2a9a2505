/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The contents of a pool: a walk over its blocks; the live blocks of a private pool,
 * and checkpoints of them.
 */
#ifndef HETMEM_SNAPSHOT_H
#define HETMEM_SNAPSHOT_H

#include <hetmem.h>

#ifdef __cplusplus
extern "C" {
#endif

enum hetmem_block_state {
	HETMEM_BLOCK_LIVE,	/* allocated */
	HETMEM_BLOCK_PENDING,	/* freed; nobody can have it yet. Or reserved for growth */
	HETMEM_BLOCK_CACHED,	/* freed; its stream keeps it for its own use */
	HETMEM_BLOCK_FREE,	/* its stream, or any, can have it; see @stream */
};

/**
 * struct hetmem_walk_segment - neighbouring blocks
 * @size: bytes of this struct that the library filled
 * @base: address of the first block
 * @bytes: of all its blocks, which have no gaps between them
 * @private_pool: the private pool, or the capture's id, whose memory it is; 0:
 *	everyone's
 * @device: ordinal; -1: the host's
 * @small: 1: it has blocks of up to 1 MiB; 0: larger ones
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
 * @bytes: that it has
 * @requested: that were requested; 0: it is not live
 * @stream: live: that it was allocated on. Else: that it was freed on, for
 *	whose work it waits. HETMEM_STREAM_HOST: none, anyone can have it.
 *	HETMEM_STREAM_UNKNOWN: the stream was retired, or not known.
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
 * struct hetmem_walk - what to walk over, and what to call
 * @size: sizeof(struct hetmem_walk)
 * @private_pool: 0: all memory; else that of this private pool or capture
 * @segment: called for each segment before its blocks. May be NULL.
 * @block: called for each block, from low to high addresses of a pool. May be
 *	NULL.
 * @data: passed to both
 *
 * The structs are valid until the callback returns. A callback that returns
 * other than 0 ends the walk. No lock is held: a callback can call any function,
 * on the same resource too.
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
 * other thread uses @res, this is the state of one moment. Otherwise other
 * threads are held up for about a thousand blocks at a time, and this is true:
 * - a block is reported as it was at one moment, different blocks at different
 *   moments;
 * - a block that is live during all of the walk is reported once;
 * - no byte is reported twice;
 * - memory that changes during the walk can be missing: a segment ends there.
 *
 * The library needs about 64 bytes of host memory a block until the walk ends.
 * Returns 0, or what a callback returned. Errors:
 * -E2BIG: a later version's member is set;
 * -EOPNOTSUPP: @res has no pool;
 * -ENOMEM, -EOWNERDEAD.
 */
int hetmem_walk(struct hetmem_resource *res, const struct hetmem_walk *walk);

/*
 * These functions wait for allocations from the private pool that are under way
 * in other threads, for wait= of the pool at most. Other threads that begin to
 * allocate from it wait until they are done, as do frees.
 */

/*
 * Fills @ptrs (room for @nr) with the live blocks of the private pool @id, from
 * low to high addresses of a pool, as they are at one moment. Returns how many
 * there are; if that is more than @nr, the first @nr are in @ptrs. Errors:
 * -EINVAL: @id is 0;
 * -ENOENT: @id is not retained;
 * -EOPNOTSUPP, -ENOMEM, -EOWNERDEAD.
 */
ssize_t hetmem_private_live(struct hetmem_resource *res, uint64_t id,
			    void **ptrs, size_t nr);

/*
 * A checkpoint remembers which blocks of a private pool are live. A framework
 * makes one after it captured a graph, and restores it before it captures a
 * graph that goes on from there: what earlier graphs leave in memory is
 * allocated then.
 */
struct hetmem_checkpoint;

/*
 * Makes *@checkpoint of the private pool @id at one moment. The caller frees it
 * by hetmem_checkpoint_free(). Errors: those of hetmem_private_live().
 */
int hetmem_private_checkpoint(struct hetmem_resource *res, uint64_t id,
			      struct hetmem_checkpoint **checkpoint);

/* At any time, after hetmem_resource_destroy() too. NULL does nothing. */
void hetmem_checkpoint_free(struct hetmem_checkpoint *checkpoint);

/* The effect of a restore on a block. */
enum hetmem_restored_kind {
	HETMEM_RESTORED_FREED,		/* live before, not in the checkpoint */
	HETMEM_RESTORED_ALLOCATED,	/* in the checkpoint, not live before */
	HETMEM_RESTORED_KEPT,		/* both: nothing was done */
};

/**
 * struct hetmem_restored - a block that a restore looked at
 * @size: bytes of this struct that the library filled
 * @ptr: address
 * @bytes: requested
 * @stream: that it was allocated on, by the handle that the caller can use
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
 * Makes the blocks of @checkpoint live in the private pool, at the same addresses, and
 * no others. A block is kept if it is live with the same address, requested bytes and
 * stream. All others are freed, as by hetmem_free() on HETMEM_STREAM_UNKNOWN, and then
 * those of the checkpoint are allocated. Contents do not change. The driver is not called; streams can be
 * under capture. A checkpoint can be restored any number of times.
 *
 * The caller has ordered the streams that use allocated blocks behind all
 * earlier uses of their memory, also by blocks that were there in between and
 * those that hetmem_record_stream() reported.
 *
 * Calls @fn (may be NULL) for each block of the private pool after all is done:
 * freed ones first, then allocated ones, then kept ones. No lock is held.
 * After an error nothing has changed. Errors:
 * -EINVAL: @checkpoint is not of @res;
 * -ENOENT: the private pool was released since;
 * -EBUSY: the pool is asleep;
 * -ENOMEM: no host memory; or a limit() has no room for what is allocated;
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
