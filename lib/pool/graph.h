/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Memory of captured work, and of private pools. graph.c tells how it is used
 * again. The caller of every function holds pool->lock, with the exceptions
 * that are named.
 */
#ifndef HETMEM_POOL_GRAPH_H
#define HETMEM_POOL_GRAPH_H

#include "pool/pool_impl.h"

/**
 * struct private_pool - a number that is retained
 * @refs: references
 * @users: allocations under way
 */
struct private_pool {
	struct private_pool *next;
	uint64_t id;
	unsigned int refs;
	unsigned int users;
};

/**
 * struct graph - a part of the memory of an id, until that is released
 * @serial: of the stream whose capture has it; 0: nobody's, between captures
 * @from: of the stream that had it last
 * @owner: of a private pool, else NULL; its parts are told by handle
 * @handle, @thread: of the stream; hm_thread() if the handle is the thread's own
 * @live: list of live blocks
 * @parked: list of freed blocks with uses on further streams, until release
 * @outside: list of blocks that were freed where nothing is captured, while a
 *	stream is; until no stream is
 */
struct graph {
	struct graph *next;
	uint64_t id;
	uint64_t serial;
	uint64_t from;
	struct private_pool *owner;
	hetmem_stream handle;
	uint64_t thread;
	uint16_t index;
	uint32_t live;
	uint32_t parked;
	uint32_t outside;
	struct arena arenas[NR_ZONES];
};

/* Returns the graph that a block of a graph names, or NULL: it was released. */
static inline struct graph *hm_graph_at(const struct pool *p, uint32_t index)
{
	return p->graph_at ? p->graph_at[index & UINT16_MAX] : NULL;
}

/* Returns the stream that live @b was allocated on; the host's if it has gone. */
struct pool_stream *hm_block_owner(const struct pool *p, const struct block *b);
/*
 * Returns a BUSY block of @g, which @s captures or a private pool has, or NULL
 * and *@err. May release the lock. *@waited as hm_pool_find().
 */
struct block *hm_graph_find(struct pool *p, struct pool_stream *s,
			    struct graph *g, unsigned int zone, uint64_t units,
			    int *err, struct hm_stream **waited);
/* A block of a graph is about to be LIVE. */
void hm_graph_give(struct pool *p, struct block *b);
/*
 * A BUSY block that belongs to a graph is freed on @s. @to: the private pool's
 * part that gets it; NULL: the stream tells.
 */
void hm_graph_free(struct pool *p, struct pool_stream *s, struct graph *to,
		   struct block *b);
/* Without the lock: hetmem_alloc_with() from a private pool. */
int hm_private_alloc(struct pool *p, struct hm_ctl_alloc *arg);
/*
 * Without the lock: frees @ptr, if it is of a private pool. As hm_pool_free();
 * -ENOENT: it is not.
 */
int hm_private_free(struct pool *p, void *ptr, size_t *size,
		    hetmem_stream stream);
/* Without the lock. */
int hm_private_ctl(struct pool *p, enum hm_ctl op,
		   const struct hm_ctl_capture *arg);
int hm_graph_ctl(struct pool *p, enum hm_ctl op,
		 const struct hm_ctl_capture *arg);
void hm_graphs_destroy(struct pool *p);

#endif /* HETMEM_POOL_GRAPH_H */
