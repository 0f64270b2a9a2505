/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What a pool holds: a walk over its blocks.
 */
#ifndef HETMEM_SNAPSHOT_H
#define HETMEM_SNAPSHOT_H

#include <hetmem.h>

#ifdef __cplusplus
extern "C" {
#endif

enum hetmem_block_state {
	HETMEM_BLOCK_LIVE,	/* allocated */
	HETMEM_BLOCK_PENDING,	/* freed; nobody can have it yet */
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

#ifdef __cplusplus
}
#endif

#endif /* HETMEM_SNAPSHOT_H */
