/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The soft driver: the Driver API in software, for machines without a GPU
 * and for tests.
 *
 * A world holds everything: devices, streams, memory. There is one per
 * process, made by the first hm_soft_open() and gone with the last
 * hm_soft_close(); in a forked child the parent's is forgotten.
 *
 * A stream is a queue of tasks and a thread that executes them in order. A
 * point in a stream is its task: an event refers to the task that recorded
 * it, a wait is a task that depends on another's. A task only ever depends
 * on tasks that were submitted before it, so that there are no cycles.
 *
 * Locking: one lock, world->lock, for all of it, one condition for all that
 * changes. Tasks run without the lock. Fork's lock is taken before it.
 *
 * Device memory is ordinary memory of this process, of limited amount. What
 * is not the device's own is reached through /dev/hetmem_emuN if there is
 * one, so that the device faults and moves pages as a GPU would, else
 * directly.
 */
#ifndef HETMEM_DRIVER_SOFT_H
#define HETMEM_DRIVER_SOFT_H

#include <pthread.h>
#include <stdbool.h>
#include <time.h>

#include "internal.h"

#define SOFT_VERSION		13000
#define SOFT_GRANULARITY	((size_t)2 << 20)
#define SOFT_MAX_DEVICES	16
#define SOFT_MAX_RULES		32
#define SOFT_MAX_POOLS		32

struct soft_task;
struct soft_capture;

/**
 * struct CUgraph_st - tasks in the order in which they are done
 * Executable ones (CUgraphExec) are the same.
 */
struct CUgraph_st {
	struct CUgraph_st *next;
	struct soft_task *first;
	struct soft_task *last;
	bool auto_free;
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

/* What is ordered before a point, see check.c. Empty without check mode. */
struct soft_clock {
	unsigned int nr;
	uint64_t *at;
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
	uint32_t peers;
	int reuse[3];
};

/**
 * struct CUctx_st - a device and its primary context
 * @retained: references; not live at 0
 * @error: of work that failed; sticks until the context is released
 * @legacy: the stream that NULL means
 * @gone: clocks of destroyed streams, non-blocking and blocking, for check mode
 * @capacity, @used: bytes of device memory
 * @peers: mask of devices whose memory it reaches
 * @emu: /dev/hetmem_emuN or -1; @module_id: its id in hetmem.ko or -1
 */
struct CUctx_st {
	int ordinal;
	unsigned int retained;
	CUresult error;
	struct CUstream_st *legacy;
	struct soft_clock gone[2];
	size_t capacity;
	size_t used;
	uint32_t peers;
	int emu;
	int module_id;
	char name[64];
	struct CUmemPoolHandle_st pool;
};

/**
 * struct CUstream_st - a stream
 * @id: never used twice
 * @live: false after cuStreamDestroy()
 * @ended: its thread has no more to do, to be joined
 * @thread: of whom it is the per-thread stream, 0: an ordinary one
 * @first, @last: queue of tasks not done; @tail: the last one submitted
 * @index, @clock: for check mode
 * @capture: it is in, with work @captured, all of it @joined by others
 */
struct CUstream_st {
	struct CUstream_st *next;
	struct CUctx_st *ctx;
	unsigned long long id;
	unsigned long long thread;
	bool live;
	bool blocking;
	bool started;
	bool stop;
	bool ended;
	pthread_t worker;
	struct soft_task *first;
	struct soft_task *last;
	struct soft_task *tail;
	unsigned int index;
	struct soft_clock clock;
	struct soft_capture *capture;
	unsigned long captured;
	bool joined;
};

/**
 * struct soft_task - work on a stream, and the point where it is done
 * @refs: of the queue, of streams, events and later tasks
 * @run: executes it without the lock; NULL: a mere point
 * @always: @run even if the context has failed: it gives something back
 * @deps: tasks that must be done first
 * @delay: nanoseconds that it takes longer
 * @when: nanoseconds, when it was done
 * @what: the call, of work that uses memory: @uses_dst, @uses_src, @ranges
 * @node: of a graph that is allocated here or, with @run, freed
 */
struct soft_task {
	struct soft_task *next;
	unsigned int refs;
	bool done;
	bool always;
	CUresult (*run)(struct CUctx_st *ctx, struct soft_task *task);
	struct soft_task **deps;
	unsigned int nr_deps;
	uint64_t delay;
	uint64_t when;
	uintptr_t dst;
	uintptr_t src;
	size_t size;
	uint64_t value;
	CUhostFn fn;
	const char *what;
	bool uses_dst;
	bool uses_src;
	struct hm_soft_range *ranges;
	unsigned int nr_ranges;
	struct soft_node *node;
};

/**
 * struct CUevent_st - an event
 * @self: its own address, in the tree of events
 * @task: what it recorded last, NULL: never
 * @capture: id of the capture that it was recorded in last, or 0; behind
 *	work @captured of @captured_on, alive as long as the capture is
 */
struct CUevent_st {
	struct hm_range self;
	struct CUctx_st *ctx;
	unsigned int flags;
	struct soft_task *task;
	struct soft_clock clock;
	unsigned long long capture;
	struct CUstream_st *captured_on;
	unsigned long captured;
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
 * @offset: of device memory in world->fd, but for a graph's
 * @imported: opened by cuIpcOpenMemHandle(), another process's
 * @handle: of a mapping; @readers, @writers: masks of devices, and one more
 *	bit for the host
 * @advice: of managed memory
 * @clock: uses at these addresses; @uses: of this memory, but for a mapping
 */
struct soft_memory {
	struct hm_range range;
	size_t size;
	enum soft_kind kind;
	struct CUctx_st *ctx;
	unsigned long long id;
	struct CUmemPoolHandle_st *pool;
	bool freeing;
	bool imported;
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
 * @charged: counts against the device; what was imported does not
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
	CUmemAllocationProp prop;
	unsigned long long id;
	void *uses;
};

struct soft_rule {
	char call[48];
	unsigned long nth;	/* 0: every call */
	unsigned long count;
	CUresult error;
	uint64_t delay;
};

struct soft_world {
	unsigned int generation;
	unsigned int refs;
	bool initialized;
	bool debug;
	bool check;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	size_t page_size;
	int nr_devices;
	struct CUctx_st devices[SOFT_MAX_DEVICES];
	struct CUstream_st *streams;
	void *events;		/* tree of struct CUevent_st */
	struct soft_capture *captures;
	struct CUgraph_st *graphs;
	struct CUgraph_st *execs;
	void *nodes;		/* tree of struct soft_node */
	void *handles;		/* tree of struct soft_handle */
	int fd;			/* a memfd, with the end of what was used of it */
	uint64_t file_end;
	uint64_t file_size;
	void *memory;		/* tree of struct soft_memory */
	void *reserved;		/* tree of struct hm_range */
	unsigned long long next_id;
	struct CUmemPoolHandle_st pools[SOFT_MAX_POOLS];
	struct hm_kmod kmod;
	unsigned int nr_rules;
	struct soft_rule rules[SOFT_MAX_RULES];
	/* Check mode: what the host is behind, memory that is not the driver's. */
	struct soft_clock host;
	void *process_uses;
	unsigned int nr_indices;
	unsigned long long *stream_ids;
};

/* Of this process; NULL after the last hm_soft_close(). */
extern struct soft_world *hm_soft_world;

/* soft.c */

/*
 * Begins a call: counts it for the rules. CUDA_SUCCESS, or what it shall
 * fail with. *@delay is how long it takes; NULL: waited for here.
 */
CUresult hm_soft_enter(const char *call, uint64_t *delay);

#define SOFT_ENTER(call) do {						\
	CUresult entered = hm_soft_enter(#call, NULL);			\
	if (entered)							\
		return entered;						\
} while (0)

#define SOFT_ENTER_WORK(call, delay) do {				\
	CUresult entered = hm_soft_enter(#call, delay);			\
	if (entered)							\
		return entered;						\
} while (0)

uint64_t hm_soft_now(void);
void hm_soft_sleep(uint64_t ns);
void hm_soft_lock(void);
void hm_soft_unlock(void);
/* Says on stderr that something was not freed. */
void hm_soft_leak(const char *what, unsigned long long which, size_t size);
bool hm_soft_error_by_name(const char *name, CUresult *res);

/* soft_config.c: from the environment; on failure why in @reason. */
int hm_soft_configure(struct soft_world *w, char *reason, size_t len);
int hm_soft_parse_rules(struct soft_rule *rules, unsigned int *nr,
			const char *fail, const char *delay);
bool hm_soft_parse_size(const char *text, size_t *size);

/* soft_device.c */
void hm_soft_fill_device(struct hm_driver *d);
/* The device of the thread's current context, NULL if there is none. */
struct CUctx_st *hm_soft_current(void);

/* soft_stream.c, soft_event.c: with the lock, where not said otherwise */
void hm_soft_fill_stream(struct hm_driver *d);
void hm_soft_fill_event(struct hm_driver *d);
/* The stream that @stream means, or NULL and why in *@res. */
struct CUstream_st *hm_soft_stream(CUstream stream, CUresult *res);
/* Without the lock. Never NULL but for no memory. */
struct soft_task *hm_soft_task(void);
/* Consumes @task, but for the reference that @point (may be NULL) gets. */
CUresult hm_soft_submit(struct CUstream_st *s, struct soft_task *task,
			struct soft_task *after, struct soft_task **point);
/* Without the lock: @task is the next on the stream that @stream means. */
CUresult hm_soft_submit_to(CUstream stream, struct soft_task *task);
void hm_soft_task_put(struct soft_task *task);
/* Waits until @task (may be NULL) is done. */
void hm_soft_wait(struct soft_task *task);
/* Waits for what @s was given; the host is behind it then. */
void hm_soft_sync(struct CUstream_st *s);
/* Waits for all work of @ctx, NULL: of all. */
void hm_soft_drain(struct CUctx_st *ctx);
/* Without the lock: ends all threads and frees all streams and events. */
void hm_soft_stop_streams(struct soft_world *w);
void hm_soft_free_events(struct soft_world *w);

/*
 * soft_capture.c: with the lock. Of a stream that captures: takes @task;
 * records; waits, also one that may begin to. Whether it is legal now: a call
 * that is unsafe while capturing (in relaxed mode it is); one that asks about
 * @s, or waits for it, or about an event; one that no captured stream may be
 * given, or not while any of a context is captured.
 */
void hm_soft_fill_capture(struct hm_driver *d);
CUresult hm_soft_capture_task(struct CUstream_st *s, struct soft_task *task);
CUresult hm_soft_capture_record(struct CUstream_st *s, struct CUevent_st *e);
CUresult hm_soft_capture_wait(struct CUstream_st *s, struct CUevent_st *e);
CUresult hm_soft_unsafe(void);
CUresult hm_soft_capture_asked(struct CUstream_st *s);
CUresult hm_soft_capture_event(struct CUevent_st *e);
CUresult hm_soft_capture_never(struct CUstream_st *s);
CUresult hm_soft_capture_none(const struct CUctx_st *ctx);
bool hm_soft_capture_broken(const struct CUstream_st *s);
struct CUgraph_st *hm_soft_capture_graph(struct CUstream_st *s);
void hm_soft_capture_destroyed(struct CUstream_st *s);
void hm_soft_free_captures(struct soft_world *w);

/*
 * soft_graph.c: with the lock. A graph of w->graphs or w->execs; memory that
 * a stream that captures allocates and frees.
 */
void hm_soft_fill_graph(struct hm_driver *d);
struct CUgraph_st *hm_soft_graph_new(struct CUgraph_st **list);
void hm_soft_graph_append(struct CUgraph_st *g, struct soft_task *task);
void hm_soft_graph_free(struct CUgraph_st **list, struct CUgraph_st *g);
CUresult hm_soft_graph_alloc(struct CUstream_st *s, size_t size,
			     CUdeviceptr *ptr);
CUresult hm_soft_graph_mem_free(struct CUstream_st *s, uintptr_t ptr);
void hm_soft_node_put(struct soft_node *node);
void hm_soft_free_graphs(struct soft_world *w);

/* soft_memory.c */
void hm_soft_fill_memory(struct hm_driver *d);
struct soft_memory *hm_soft_find(uintptr_t addr, size_t size);
CUresult hm_soft_charge(struct CUctx_st *ctx, size_t size);
void hm_soft_free_memory(struct soft_world *w);
void hm_soft_drop_memory(struct soft_memory *m);
CUresult hm_soft_map_memory(struct CUctx_st *ctx, enum soft_kind kind,
			    size_t size, struct soft_memory **out);

/* soft_pointer.c, soft_pool.c, soft_vmm.c */
void hm_soft_fill_pointer(struct hm_driver *d);
void hm_soft_fill_pool(struct hm_driver *d);
void hm_soft_fill_vmm(struct hm_driver *d);
void hm_soft_fill_share(struct hm_driver *d);
/* Whether cuIpcGetMemHandle() has a name for it. */
bool hm_soft_is_legacy_ipc(const struct soft_memory *m);
void hm_soft_fill_peer(struct hm_driver *d);
static inline bool hm_soft_granular(size_t size)
{
	return size && !(size & (SOFT_GRANULARITY - 1));
}
bool hm_soft_is_pool(CUmemoryPool pool);

/*
 * soft_handle.c: with the lock. A part of the world's file: parts are used
 * once, with gaps between them, or the kernel would make one mapping of two
 * neighbours, which to part again is one more; descriptors are too few for
 * one each.
 */
void hm_soft_fill_handle(struct hm_driver *d);
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
void hm_soft_unmap(struct soft_memory *m);
/* No memory any more at these addresses, which stay ours. */
void hm_soft_unmap_pages(uintptr_t start, size_t size);
void hm_soft_free_vmm(struct soft_world *w);

/* soft_copy.c, soft_place.c */
void hm_soft_fill_copy(struct hm_driver *d);
void hm_soft_fill_place(struct hm_driver *d);

/*
 * check.c: with the lock; all do nothing without check mode. A stream begins,
 * is given work, goes behind a clock; a clock goes behind one; the host has waited
 * for one; work uses memory; @m's addresses go, on a stream or (NULL) now.
 */
void hm_check_stream(struct CUstream_st *s);
void hm_check_submit(struct CUstream_st *s);
void hm_check_behind(struct CUstream_st *s, const struct soft_clock *clock);
void hm_check_join(struct soft_clock *c, const struct soft_clock *with);
void hm_check_host(const struct soft_clock *clock);
void hm_check_use(struct CUstream_st *s, uintptr_t addr, size_t size,
		  const char *what);
void hm_check_gone(struct soft_memory *m, struct CUstream_st *s,
		   const char *what);
/* The driver does not mind, but nobody means to: there is no memory. */
void hm_check_hole(uintptr_t addr, size_t size, const char *what);
void hm_check_clock_free(struct soft_clock *c);
void hm_check_free_uses(void **root);

/* soft_emu.c: without the lock; @addr is not the device's own memory */
void hm_soft_emu_open(struct soft_world *w);
void hm_soft_emu_close(struct soft_world *w);
CUresult hm_soft_emu_read(struct CUctx_st *ctx, uintptr_t addr, void *data,
			  size_t size);
CUresult hm_soft_emu_write(struct CUctx_st *ctx, uintptr_t addr,
			   const void *data, size_t size);
CUresult hm_soft_emu_fill(struct CUctx_st *ctx, uintptr_t addr,
			  uint64_t value, size_t size);

#endif /* HETMEM_DRIVER_SOFT_H */
