/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The soft driver's devices, streams, their tasks, events and captures. soft.h
 * tells the design and the locking.
 */
#ifndef HETMEM_SOFT_STREAM_H
#define HETMEM_SOFT_STREAM_H

#include "driver/check.h"
#include "platform/platform.h"
#include "soft/memory.h"

struct soft_capture;

/**
 * struct soft_fact - a fact about a device, as it is played
 * @played: else, of the kernel, it is that of this machine
 * @fails: whoever is asked does not know
 */
struct soft_fact {
	bool played;
	bool fails;
	int64_t value;
};

/**
 * struct CUctx_st - a device and its primary context
 * @retained: references; not live at 0
 * @error: of work that failed; sticks until the context is released
 * @legacy: the stream that NULL means
 * @gone: clocks of destroyed streams, non-blocking and blocking, for check mode
 * @capacity, @used: bytes of device memory
 * @kind: enum hetmem_platform_kind that it plays, with @facts, see machine.c
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
	int kind;
	struct soft_fact facts[HM_FACT_NR];
	int emu;
	int module_id;
	char name[64];
	struct CUmemPoolHandle_st pool;
};

/**
 * struct CUstream_st - a stream
 * @same_bucket: next of the world's bucket that its handle is in
 * @id: never used twice
 * @live: false after cuStreamDestroy()
 * @ended: its thread has no more to do, to be joined
 * @thread: of whom it is the per-thread stream, 0: an ordinary one
 * @first, @last: queue of tasks not done; @tail: the last one submitted
 * @actor: for check mode
 * @capture: it is in, with work @captured, all of it @joined by others;
 *	@front: what its next node depends on
 */
struct CUstream_st {
	struct CUstream_st *next;
	struct CUstream_st *same_bucket;
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
	struct soft_actor actor;
	struct soft_capture *capture;
	unsigned long captured;
	bool joined;
	struct soft_front front;
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
 * @number: its position in a graph; @after: those that it depends on;
 *	@branch: it is on
 * @actor: whose work it is for check mode, NULL: the stream's
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
	unsigned int number;
	unsigned int branch;
	struct soft_front after;
	struct soft_actor *actor;
};

/**
 * struct CUevent_st - an event
 * @self: its own address, in the tree of events
 * @task: what it recorded last, NULL: never
 * @capture: id of the capture that it was recorded in last, or 0; behind
 *	work @captured of @captured_on, alive as long as the capture is, and
 *	after the nodes of @front
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
	struct soft_front front;
};

/* stream.c: with the lock, where not said otherwise */

void hm_soft_fill_stream(struct hm_api *d);
/* The stream that @stream means, or NULL and why in *@res. */
struct CUstream_st *hm_soft_stream(CUstream stream, CUresult *res);
/* Without the lock. NULL: no memory. */
struct soft_task *hm_soft_task(void);
/* Consumes @task, except the reference that @point (may be NULL) gets. */
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
 * capture.c: with the lock. Of a stream that captures: takes @task;
 * records; waits, also one that may begin to. Whether it is legal now: a call
 * that is unsafe while capturing (in relaxed mode it is); one that asks about
 * @s, or waits for it, or about an event; one that no captured stream may be
 * given, or not while any of a context is captured.
 */
void hm_soft_fill_capture(struct hm_api *d);
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

#endif /* HETMEM_SOFT_STREAM_H */
