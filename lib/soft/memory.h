/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The soft driver's memory: allocations, pools, handles and their mappings,
 * memory of graphs. soft.h tells the design and the locking.
 */
#ifndef HETMEM_SOFT_MEMORY_H
#define HETMEM_SOFT_MEMORY_H

#include "soft/calls.h"
#include "core/core.h"

#define SOFT_GRANULARITY	((size_t)2 << 20)

struct soft_task;
struct soft_world;

/* What is ordered before a point, see check.c. Empty without check mode. */
struct soft_clock {
	unsigned int nr;
	uint64_t *at;
};

/**
 * struct soft_actor - for check mode: a stream, or one branch of a graph
 * @index: in clocks; 0: none yet
 * @clock: what its next work is ordered after
 * @worked: number of its last work that does something: events do nothing
 * @parks: it may use freed memory, see hm_check_parks()
 */
struct soft_actor {
	unsigned int index;
	uint64_t worked;
	bool parks;
	struct soft_clock clock;
};

/* Nodes of a graph by number: what comes next depends on them. */
struct soft_front {
	unsigned int nr;
	unsigned int *nodes;
};

/**
 * struct CUgraph_st - tasks in the order in which they were captured
 * @nr: how many; each depends on some of those before it, see soft_task.after
 *
 * Executable ones (CUgraphExec) have more:
 * @id: never used twice; @launches: how many there were
 * @done: the end of the last launch, or NULL; @clock: what is ordered before it
 * @actors: for check mode, of @nr_branches: chains of tasks, each of which
 *	depends on the one before
 */
struct CUgraph_st {
	struct CUgraph_st *next;
	struct soft_task *first;
	struct soft_task *last;
	unsigned int nr;
	bool auto_free;
	unsigned long long id;
	unsigned long launches;
	struct soft_task *done;
	struct soft_clock clock;
	unsigned int nr_branches;
	struct soft_actor *actors;
};

/**
 * struct CUmemPoolHandle_st - a memory pool: what is counted of it
 * @used: what it has of the device, until a free is done
 * @given: until a free is called, as a pool has it that uses memory again in
 *	stream order; @given_high: the most of that
 */
struct CUmemPoolHandle_st {
	bool live;
	bool dying;
	bool host;
	int device;
	cuuint64_t threshold;
	cuuint64_t used;
	cuuint64_t given;
	cuuint64_t given_high;
	size_t max_size;
	int reuse[3];
};

/**
 * struct soft_node - memory that a graph allocates
 * @range: its addresses; @size: as it was asked for
 * @refs: of tasks and of @memory
 * @execs: executable graphs that allocate it
 * @live: launches that allocated it and have not freed it yet
 * @memory: behind the addresses, or NULL; @fresh: since this launch
 */
struct soft_node {
	struct hm_range range;
	size_t size;
	struct CUctx_st *ctx;
	unsigned int refs;
	unsigned int execs;
	unsigned int live;
	struct soft_memory *memory;
	bool fresh;
};

enum soft_kind {
	SOFT_DEVICE,	/* cuMemAlloc, cuMemAllocAsync */
	SOFT_MANAGED,
	SOFT_HOST,	/* cuMemHostAlloc */
	SOFT_REGISTERED,
	SOFT_MAPPING,	/* cuMemMap */
};

/**
 * struct soft_memory - memory the driver knows, in world->memory
 * @range: whole pages
 * @size: as it was asked for
 * @id: never used twice
 * @pool: it came from, or NULL
 * @freeing: cuMemFreeAsync() was called
 * @node: of a graph, it is the memory of
 * @offset: of device memory in world->fd, except a graph's
 * @handle: of a mapping; @readers, @writers: masks of devices, and one more
 *	bit for the host
 * @advice: of managed memory
 * @clock: uses at these addresses; @uses: of this memory, except a mapping's
 */
struct soft_memory {
	struct hm_range range;
	size_t size;
	enum soft_kind kind;
	struct CUctx_st *ctx;
	unsigned long long id;
	struct CUmemPoolHandle_st *pool;
	bool freeing;
	uint64_t offset;
	struct soft_node *node;
	struct soft_handle *handle;
	uint32_t readers;
	uint32_t writers;
	struct {
		int read_mostly;
		int preferred;
		int prefetched;
		uint32_t accessed_by;
	} advice;
	struct soft_clock clock;
	void *uses;
};

/**
 * struct soft_handle - physical memory: a part of a file
 * @self: its own address, in the tree of handles
 * @fd: of its own, if it can be exported or was imported; else -1, and it is
 *	@size bytes at @offset of world->fd, which are used once
 * @refs: held by handles that the user has
 * @mappings: of it
 * @charged: counts against the device or the host; what was imported does not
 * @shared: exported or imported
 * @streams: of the host, once it was mapped: where streams reach it
 * @id: never used twice
 * @uses: of it, for check mode
 */
struct soft_handle {
	struct hm_range self;
	int fd;
	uint64_t offset;
	size_t size;
	unsigned int refs;
	unsigned int mappings;
	bool charged;
	bool shared;
	uintptr_t streams;
	CUmemAllocationProp prop;
	unsigned long long id;
	void *uses;
};

/* memory.c */

void hm_soft_fill_memory(struct hm_api *d);
struct soft_memory *hm_soft_find(uintptr_t addr, size_t size);
CUresult hm_soft_charge(struct CUctx_st *device, size_t size);
/*
 * shared.c, likewise: memory that goes, and what is left. A device can be one of several processes:
 * hm_soft_share() joins those of HETMEM_SOFT_SHARED, -EINVAL and @reason: it cannot.
 */
void hm_soft_uncharge(struct CUctx_st *device, size_t size);
size_t hm_soft_available(const struct CUctx_st *device);
int hm_soft_share(char *reason, size_t len);
void hm_soft_unshare(void);
void hm_soft_free_memory(struct soft_world *w);
void hm_soft_drop_memory(struct soft_memory *m);
CUresult hm_soft_map_memory(struct CUctx_st *ctx, enum soft_kind kind,
			    size_t size, struct soft_memory **out);

/* pool.c */

void hm_soft_fill_pool(struct hm_api *d);
bool hm_soft_is_pool(CUmemoryPool pool);

/*
 * vmm.c: with the lock. Device memory is a part of the world's file. Parts are used once, with
 * gaps between them: the kernel would make one mapping of two neighbours, and parting them needs
 * one more. Descriptors are too few for one each.
 */
void hm_soft_fill_vmm(struct hm_api *d);
static inline bool hm_soft_granular(size_t size)
{
	return size && !(size & (SOFT_GRANULARITY - 1));
}

CUresult hm_soft_file_take(size_t size, uint64_t *offset);
void hm_soft_file_put(uint64_t offset, size_t size);
struct soft_handle *hm_soft_handle(CUmemGenericAllocationHandle handle);
int hm_soft_handle_fd(const struct soft_handle *h);
bool hm_soft_handle_host(const struct soft_handle *h);
/* Frees it if neither handles nor mappings are left. */
void hm_soft_handle_put(struct soft_handle *h);
void hm_soft_free_handles(struct soft_world *w);
/* Whether @location is memory of the host that there is. */
bool hm_soft_place_host(const CUmemLocation *location);
/* CUDA_ERROR_OUT_OF_MEMORY: it stays the caller's. */
CUresult hm_soft_add_handle(struct soft_handle *h);
/*
 * Without the lock, for a task that uses [@addr, @addr + *@size): where it reaches the
 * beginning of that, *@size bytes of it.
 */
uintptr_t hm_soft_reach(uintptr_t addr, size_t *size, bool write);
void hm_soft_unmap(struct soft_memory *m);
/* No memory any more at these addresses, which stay ours. */
void hm_soft_unmap_pages(uintptr_t start, size_t size);
void hm_soft_free_vmm(struct soft_world *w);

/*
 * graph.c: with the lock. A graph of w->graphs or w->execs; memory that
 * a stream that captures allocates and frees.
 */
void hm_soft_fill_graph(struct hm_api *d);
struct CUgraph_st *hm_soft_graph_new(struct CUgraph_st **list);
void hm_soft_graph_append(struct CUgraph_st *g, struct soft_task *task);
void hm_soft_graph_free(struct CUgraph_st **list, struct CUgraph_st *g);
CUresult hm_soft_graph_alloc(struct CUstream_st *s, size_t size, CUdeviceptr *ptr);
CUresult hm_soft_graph_mem_free(struct CUstream_st *s, uintptr_t ptr);
/* Adds the nodes of @with to @front. False: no memory. */
bool hm_soft_front_join(struct soft_front *front, const struct soft_front *with);
void hm_soft_front_free(struct soft_front *front);
void hm_soft_node_put(struct soft_node *node);
void hm_soft_free_graphs(struct soft_world *w);

#endif /* HETMEM_SOFT_MEMORY_H */
