/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Memory of captured work, and of private pools. graph.c tells how it is used
 * again. The caller of every function holds pool->lock, with the exceptions
 * that are named.
 */
#ifndef HETMEM_POOL_GRAPH_H
#define HETMEM_POOL_GRAPH_H

#include "pool/pool_impl.h"

/* Ids and their parts are found in tables of this size: of 65,535 16 share a list. */
#define GRAPH_LISTS	4096
/* As many parts as a block's index of one can tell apart, and 0 is none. */
#define MAX_GRAPHS	UINT16_MAX

struct restore;

/**
 * struct graph_id - what has an id: a private pool, or captures
 * @next: in its list of struct graphs
 * @serial: never reused
 * @parts: list of its parts
 * @captured: streams that are captured with it
 * @private: a private pool. The rest is for those.
 * @refs: references
 * @users: allocations under way
 * @made: bytes that were made for it, and not given back
 * @taken: a thread wants it for itself: others that allocate wait
 * @alone: it has it: others that free wait, too. See checkpoint.c
 * @restore: what is planned meanwhile
 */
struct graph_id {
	struct graph_id *next;
	uint64_t id;
	uint64_t serial;
	struct graph *parts;
	unsigned int captured;
	bool private;
	bool taken;
	bool alone;
	unsigned int refs;
	unsigned int users;
	uint64_t made;
	struct restore *restore;
};

/**
 * struct graph - a part of the memory of an id, until that is released
 * @of: the id; @next: part of the same one
 * @chain: in its list of struct graphs, of a private pool
 * @serial: of the stream whose capture has it; 0: nobody's, between captures
 * @from: of the stream that had it last; @from_index: of that one
 * @handle, @thread: of a private pool's stream; hm_thread() if the handle is the
 *	thread's own
 * @live: list of live blocks
 * @parked: list of freed blocks with uses on further streams, or exported, until
 *	release
 * @outside: list of blocks that were freed where nothing is captured, while a
 *	stream is; until no stream is
 */
struct graph {
	struct graph_id *of;
	struct graph *next;
	struct graph *chain;
	uint64_t serial;
	uint64_t from;
	hetmem_stream handle;
	uint64_t thread;
	uint16_t index;
	uint16_t from_index;
	uint32_t live;
	uint32_t parked;
	uint32_t outside;
	struct arena arenas[NR_ZONES];
};

/**
 * struct graphs - the ids of a pool, and their parts
 * @at: by index: parts
 * @parts: by stream: parts of private pools; @ids: by id
 * @nr: of parts; @nr_ids: of ids
 * @last: index given out last; @last_serial: of an id
 */
struct graphs {
	struct graph *at[MAX_GRAPHS + 1];
	struct graph *parts[GRAPH_LISTS];
	struct graph_id *ids[GRAPH_LISTS];
	uint32_t nr;
	uint32_t nr_ids;
	uint16_t last;
	uint64_t last_serial;
};

/* Returns the graph that a block of a graph names, or NULL: it was released. */
static inline struct graph *hm_graph_at(const struct pool *p, uint32_t index)
{
	return p->graphs ? p->graphs->at[index & UINT16_MAX] : NULL;
}

/* The links of a live block of a graph: its part's list, in place of a serial. */
static inline uint32_t graph_live_next(const struct block *b)
{
	return b->pos;
}

/* Returns the stream that live @b was allocated on; the host's if it has gone. */
struct pool_stream *hm_block_owner(const struct pool *p, const struct block *b);
/*
 * Returns a BUSY block of @g, which @s captures or a private pool has, or NULL
 * and *@err. @whole: a BLOCK_WHOLE. May release the lock. *@waited as hm_pool_find().
 */
struct block *hm_graph_find(struct pool *p, struct pool_stream *s,
			    struct graph *g, unsigned int zone, uint64_t units,
			    bool whole, int *err, struct hm_stream **waited);
/* A block of a graph is about to be LIVE. */
void hm_graph_give(struct pool *p, struct block *b);
/*
 * A BUSY block that belongs to a graph is freed on @s. @to: the private pool's
 * part that gets it; NULL: the stream tells.
 */
void hm_graph_free(struct pool *p, struct pool_stream *s, struct graph *to,
		   struct block *b);
/* Without the lock, walk.c: HM_CTL_WALK. */
struct hm_ctl_walk;
int hm_pool_walk(struct pool *p, struct hm_ctl_walk *arg);

/* Without the lock, checkpoint.c: HM_CTL_CHECKPOINT, HM_CTL_RESTORE. */
struct hm_ctl_checkpoint;
struct hm_ctl_restore;
int hm_private_checkpoint(struct pool *p, struct hm_ctl_checkpoint *arg);
int hm_private_restore(struct pool *p, struct hm_ctl_restore *arg);
/*
 * With the lock: the private pool @id is the calling thread's alone, until
 * hm_private_let_go(). -ENOENT.
 */
int hm_private_take(struct pool *p, uint64_t id, struct graph_id **out);
void hm_private_let_go(struct graph_id *of);
/* In a forked child: threads that used a private pool are not there. */
void hm_private_forked(struct pool *p);

/* Without the lock: hetmem_alloc_with() from a private pool. */
int hm_private_alloc(struct pool *p, struct hm_ctl_alloc *arg);
/*
 * Without the lock: frees @ptr, if it is of a private pool. As hm_pool_free();
 * -ENOENT: it is not.
 */
int hm_private_free(struct pool *p, void *ptr, size_t *size,
		    hetmem_stream stream);
/* alloc.c: returns the bytes that the calling thread has passed to hm_pool_hold(). */
uint64_t hm_pool_made_here(void);
/* Without the lock: HM_CTL_PRIVATE_TRIM. */
struct hm_ctl_private_trim;
int hm_private_trim(struct pool *p, struct hm_ctl_private_trim *arg);
/*
 * Without the lock: a use of a block of a private pool, if the stream is captured:
 * nobody asks who that is. -EBUSY: the block is not, and no capture was declared;
 * -ENOENT: the block or the stream is not.
 */
int hm_private_record(struct pool *p, const struct hm_ctl_stream *arg);
/* Without the lock: captures and private pools. */
int hm_graph_ctl(struct pool *p, enum hm_ctl op,
		 const struct hm_ctl_capture *arg);
/* Returns what has @id, or NULL. */
struct graph_id *hm_graph_id(const struct pool *p, uint64_t id);
void hm_graphs_destroy(struct pool *p);

#endif /* HETMEM_POOL_GRAPH_H */
