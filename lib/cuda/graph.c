// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Memory that graphs allocate, charged to the limit().
 *
 * An allocation in a capture, or a node that the program adds, makes no memory: a launch does.
 * A graph is charged as much as its nodes have allocated at one time, in the order in which
 * they were captured or added. It is charged until the graph and its executables are
 * destroyed, since each launch allocates again.
 *
 * The lock covers the trees. No call of the driver or of a resource is made with it.
 */
#include <pthread.h>
#include <stdlib.h>

#include "cuda/cuda.h"
#include "cuda/prototypes.h"

/**
 * struct hm_cuda_graph - the memory of a capture, its graph and its executables
 * @refs: of them
 * @live: what the nodes so far have allocated and not freed
 * @charged: the most of that
 */
struct hm_cuda_graph {
	CUdevice device;
	unsigned int refs;
	size_t live;
	size_t charged;
};

/**
 * struct entry - a capture by its id, a graph or an executable by its handle, a node's address
 * @size: of a node
 */
struct entry {
	struct hm_range range;
	struct entry *next;
	struct hm_cuda_graph *memory;
	size_t size;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *captures, *graphs, *execs, *nodes;

static struct entry *find(void *const *root, uintptr_t key)
{
	return (struct entry *)hm_range_find(root, key, 1);
}

/* With the lock. False: no host memory. A capture, graph or executable takes a reference. */
static bool insert(void **root, uintptr_t key, struct hm_cuda_graph *memory, size_t size)
{
	struct entry *e = malloc(sizeof(*e));

	if (!e)
		return false;
	*e = (struct entry){ .range = { key, key + 1 }, .memory = memory, .size = size };
	if (hm_range_insert(root, &e->range)) {
		free(e);
		return false;
	}
	if (root != &nodes)
		memory->refs++;
	return true;
}

struct search {
	const struct hm_cuda_graph *memory;
	struct entry *found;
};

static void look(struct hm_range *range, void *arg)
{
	struct entry *e = (void *)range;
	struct search *s = arg;

	if (e->memory != s->memory)
		return;
	e->next = s->found;
	s->found = e;
}

/* With the lock: drops a reference. Returns the memory if it was the last, else NULL. */
static struct hm_cuda_graph *put(struct hm_cuda_graph *memory)
{
	struct search s = { .memory = memory };
	struct entry *e;

	if (--memory->refs)
		return NULL;
	hm_range_walk(&nodes, look, &s);
	while ((e = s.found)) {
		s.found = e->next;
		hm_range_erase(&nodes, &e->range);
		free(e);
	}
	return memory;
}

/* Without the lock, what put() returned. */
static void end(struct hm_cuda_graph *memory)
{
	if (memory && memory->charged)
		hm_cuda_uncharge(memory->device, memory->charged);
	free(memory);
}

/* With the lock: removes the entry. */
static struct hm_cuda_graph *take(void **root, uintptr_t key)
{
	struct entry *e = find(root, key);
	struct hm_cuda_graph *memory = e ? e->memory : NULL;

	if (!e)
		return NULL;
	hm_range_erase(root, &e->range);
	free(e);
	return put(memory);
}

static unsigned long long capture_of(CUstream stream)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	cuuint64_t id = 0;

	if (HM_CUDA_NEXT_AS(cuStreamGetCaptureInfo, CUresult (*)(CUstream, CUstreamCaptureStatus *,
			cuuint64_t *))(stream, &status, &id) ||
	    status != CU_STREAM_CAPTURE_STATUS_ACTIVE)
		return 0;
	return id;
}

/* With the lock. NULL: no host memory. */
static struct hm_cuda_graph *get(void **root, uintptr_t key, CUdevice device)
{
	struct entry *e = find(root, key);
	struct hm_cuda_graph *memory;

	if (e)
		return e->memory;
	memory = calloc(1, sizeof(*memory));
	if (!memory)
		return NULL;
	memory->device = device;
	if (insert(root, key, memory, 0))
		return memory;
	free(memory);
	return NULL;
}

/*
 * An allocation of @size bytes begins. False: it is beyond the limit. *@memory: for
 * done(), with a reference; NULL: it is not charged.
 */
static bool begin(void **root, uintptr_t key, CUdevice device, size_t size,
		  struct hm_cuda_graph **memory)
{
	struct hm_cuda_graph *m, *over = NULL;
	size_t more = 0;

	*memory = NULL;
	if (!key || !size)
		return true;
	pthread_mutex_lock(&lock);
	m = get(root, key, device);
	if (m) {
		m->refs++;
		m->live += size;
		more = m->live > m->charged ? m->live - m->charged : 0;
		m->charged += more;
	}
	pthread_mutex_unlock(&lock);
	*memory = m;
	if (!m || !more || hm_cuda_charge(device, more))
		return true;
	pthread_mutex_lock(&lock);
	m->charged -= more;
	m->live -= size;
	over = put(m);
	pthread_mutex_unlock(&lock);
	end(over);
	return false;
}

/* It has ended with @res. @ptr: the node's address. */
static void done(struct hm_cuda_graph *memory, size_t size, CUresult res, CUdeviceptr ptr)
{
	struct hm_cuda_graph *over;
	struct entry *e;

	if (!memory)
		return;
	pthread_mutex_lock(&lock);
	/* A node whose graph is gone had this address before. */
	e = res ? NULL : find(&nodes, ptr);
	if (e) {
		hm_range_erase(&nodes, &e->range);
		free(e);
	}
	if (res)
		memory->live -= size;
	else
		insert(&nodes, ptr, memory, size);
	over = put(memory);
	pthread_mutex_unlock(&lock);
	end(over);
}

bool hm_cuda_graph_begin(CUstream stream, size_t size, struct hm_cuda_graph **memory)
{
	CUdevice device;

	*memory = NULL;
	return hm_cuda_is_child() || !hm_cuda_current_device(&device) ||
		begin(&captures, capture_of(stream), device, size, memory);
}

void hm_cuda_graph_done(struct hm_cuda_graph *memory, size_t size, CUresult res, CUdeviceptr ptr)
{
	done(memory, size, res, ptr);
}

void hm_cuda_graph_freed(CUdeviceptr ptr)
{
	struct entry *e;

	pthread_mutex_lock(&lock);
	e = find(&nodes, ptr);
	if (e) {
		e->memory->live -= e->size;
		hm_range_erase(&nodes, &e->range);
		free(e);
	}
	pthread_mutex_unlock(&lock);
}

unsigned long long hm_cuda_graph_capture(CUstream stream)
{
	return hm_cuda_is_child() ? 0 : capture_of(stream);
}

/* A capture that became invalid has no id any more: none is left once no stream is captured. */
static void drop_captures(void)
{
	struct hm_cuda_graph *over;
	struct hm_range *any;

	do {
		pthread_mutex_lock(&lock);
		any = hm_range_any(&captures);
		over = any ? take(&captures, any->start) : NULL;
		pthread_mutex_unlock(&lock);
		end(over);
	} while (any);
}

void hm_cuda_graph_captured(unsigned long long id, CUresult res, CUgraph graph)
{
	struct hm_cuda_graph *over;
	struct entry *e;

	pthread_mutex_lock(&lock);
	e = find(&captures, id);
	/* Captured into a graph that has memory: each of them is charged until both are gone. */
	if (e && !res && graph && !find(&graphs, (uintptr_t)graph))
		insert(&graphs, (uintptr_t)graph, e->memory, 0);
	over = take(&captures, id);
	pthread_mutex_unlock(&lock);
	end(over);
	if (!hm_cuda_is_capturing())
		drop_captures();
}

static void forget_one(struct hm_range *range, void *arg)
{
	struct entry *e = (void *)range;

	if (e->memory->device == *(CUdevice *)arg)
		e->memory->charged = 0;
}

void hm_cuda_graph_forget(CUdevice device)
{
	void *const *const roots[] = { &captures, &graphs, &execs };
	size_t i;

	pthread_mutex_lock(&lock);
	for (i = 0; i < sizeof(roots) / sizeof(roots[0]); i++)
		hm_range_walk(roots[i], forget_one, &device);
	pthread_mutex_unlock(&lock);
}

static CUresult note_exec(CUresult res, const CUgraphExec *exec, CUgraph graph)
{
	struct entry *e;

	if (res || !exec || hm_cuda_is_child())
		return res;
	pthread_mutex_lock(&lock);
	e = find(&graphs, (uintptr_t)graph);
	if (e)
		insert(&execs, (uintptr_t)*exec, e->memory, 0);
	pthread_mutex_unlock(&lock);
	return res;
}

/* @log: the arguments before version 12. */
#define INSTANTIATE_V1(name)						\
CUresult HM_CUDA_EXPORT name(CUgraphExec *exec, CUgraph graph, void *node, char *log, size_t size) \
{									\
	if (!hm_cuda_is_active())					\
		return HM_CUDA_NEXT(name)(exec, graph, node, log, size); \
	HM_CUDA_COUNT(name);						\
	return note_exec(HM_CUDA_NEXT(name)(exec, graph, node, log, size), exec, graph); \
}

INSTANTIATE_V1(cuGraphInstantiate)
INSTANTIATE_V1(cuGraphInstantiate_v2)

CUresult HM_CUDA_EXPORT cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph,
						    unsigned long long flags)
{
	if (!hm_cuda_is_active())
		return HM_CUDA_NEXT(cuGraphInstantiateWithFlags)(exec, graph, flags);
	HM_CUDA_COUNT(cuGraphInstantiateWithFlags);
	return note_exec(HM_CUDA_NEXT(cuGraphInstantiateWithFlags)(exec, graph, flags), exec, graph);
}

#define INSTANTIATE(name)						\
CUresult HM_CUDA_EXPORT name(CUgraphExec *exec, CUgraph graph, void *params) \
{									\
	if (!hm_cuda_is_active())					\
		return HM_CUDA_NEXT(name)(exec, graph, params);		\
	HM_CUDA_COUNT(name);						\
	return note_exec(HM_CUDA_NEXT(name)(exec, graph, params), exec, graph); \
}

INSTANTIATE(cuGraphInstantiateWithParams)
INSTANTIATE(cuGraphInstantiateWithParams_ptsz)

/*
 * The driver takes a handle only once, so the entry goes first: another thread can get the
 * handle right afterwards. A destroy that fails is one of a handle that is not alive.
 */
static void destroyed(void **root, const void *handle)
{
	struct hm_cuda_graph *over;

	if (hm_cuda_is_child())
		return;
	pthread_mutex_lock(&lock);
	over = take(root, (uintptr_t)handle);
	pthread_mutex_unlock(&lock);
	end(over);
}

CUresult HM_CUDA_EXPORT cuGraphDestroy(CUgraph graph)
{
	if (hm_cuda_is_active()) {
		HM_CUDA_COUNT(cuGraphDestroy);
		destroyed(&graphs, graph);
	}
	return HM_CUDA_NEXT(cuGraphDestroy)(graph);
}

CUresult HM_CUDA_EXPORT cuGraphExecDestroy(CUgraphExec exec)
{
	if (hm_cuda_is_active()) {
		HM_CUDA_COUNT(cuGraphExecDestroy);
		destroyed(&execs, exec);
	}
	return HM_CUDA_NEXT(cuGraphExecDestroy)(exec);
}

CUresult HM_CUDA_EXPORT cuGraphAddMemAllocNode(void **node, CUgraph graph, void *const *deps,
					       size_t nr, struct hm_cuda_node_alloc *params)
{
	struct hm_cuda_graph *memory = NULL;
	CUresult res;

	if (!hm_cuda_is_active())
		return HM_CUDA_NEXT(cuGraphAddMemAllocNode)(node, graph, deps, nr, params);
	HM_CUDA_COUNT(cuGraphAddMemAllocNode);
	if (graph && params && params->pool.location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
	    !hm_cuda_is_child() && !begin(&graphs, (uintptr_t)graph, params->pool.location.id,
					   params->bytes, &memory))
		return CUDA_ERROR_OUT_OF_MEMORY;
	res = HM_CUDA_NEXT(cuGraphAddMemAllocNode)(node, graph, deps, nr, params);
	done(memory, params ? params->bytes : 0, res, params && !res ? params->ptr : 0);
	return res;
}

CUresult HM_CUDA_EXPORT cuGraphAddMemFreeNode(void **node, CUgraph graph, void *const *deps,
					      size_t nr, CUdeviceptr ptr)
{
	CUresult res = HM_CUDA_NEXT(cuGraphAddMemFreeNode)(node, graph, deps, nr, ptr);

	if (!hm_cuda_is_active())
		return res;
	HM_CUDA_COUNT(cuGraphAddMemFreeNode);
	if (!res && !hm_cuda_is_child())
		hm_cuda_graph_freed(ptr);
	return res;
}
