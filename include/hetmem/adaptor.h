/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Calls for the adaptors of a spec: counters of stats(), the callback of
 * retry() and watermark(), edges of log(full=on), events of history(). Without the
 * adaptor they return -EOPNOTSUPP.
 */
#ifndef HETMEM_ADAPTOR_H
#define HETMEM_ADAPTOR_H

#include <hetmem.h>

#ifdef __cplusplus
extern "C" {
#endif

/**
 * struct hetmem_counter - one count of stats()
 * @value: now
 * @peak: highest @value; can include frees that are under way
 * @total: sum of everything ever added
 */
struct hetmem_counter {
	uint64_t value;
	uint64_t peak;
	uint64_t total;
};

/**
 * struct hetmem_counters - counters of stats()
 * @size: in: sizeof(struct hetmem_counters)
 * @bytes: requested
 * @blocks: allocated
 */
struct hetmem_counters {
	size_t size;
	struct hetmem_counter bytes;
	struct hetmem_counter blocks;
};

/*
 * Reads the counters. They count since the innermost push, or since the
 * resource was made. After a push a value can be negative, in two's
 * complement. All threads share the counters.
 *
 * Push starts inner counters at 0; the outer counters go on counting. Pop reads
 * the inner counters (@counters may be NULL) and returns to the outer ones.
 * Errors:
 * -ENOSPC: push: 64 sets of counters are pushed;
 * -ENOENT: pop: no counters are pushed.
 */
int hetmem_counters(struct hetmem_resource *res,
		    struct hetmem_counters *counters);
int hetmem_counters_push(struct hetmem_resource *res);
int hetmem_counters_pop(struct hetmem_resource *res,
			struct hetmem_counters *counters);

/*
 * retry() calls this function when an allocation of @size bytes found no memory,
 * on the allocating thread. @attempt counts from 1. The callback may free memory,
 * also of the same resource. Return 0 to give up, another value to try again.
 */
typedef int (*hetmem_failure_fn)(void *data, size_t size, unsigned int attempt);

/*
 * Sets the callback of retry(). NULL: retry() polls, trims and waits. A running
 * callback is not waited for.
 */
int hetmem_on_failure(struct hetmem_resource *res, hetmem_failure_fn fn,
		      void *data);

/**
 * struct hetmem_pressure - why watermark() calls the program
 * @size: sizeof(struct hetmem_pressure)
 * @bytes: size of the allocation, of the block that grows, or of the commit; 0: memory is woken, fetched
 *	or restored
 * @held: physical memory that the resource holds
 * @at: the watermark: @held would exceed it
 */
struct hetmem_pressure {
	size_t size;
	uint64_t bytes;
	uint64_t held;
	uint64_t at;
};

/*
 * watermark() calls this function before its resource makes memory beyond at=, on the
 * thread that needs the memory. The library holds no lock. The function may free memory,
 * trim and allocate, also on the same resource; its own calls do not call it again. It
 * must not destroy that resource. After its return the allocation goes on, and may exceed
 * the watermark.
 */
typedef void (*hetmem_pressure_fn)(void *data, const struct hetmem_pressure *pressure);

/*
 * Sets the function of every watermark() in @res. NULL: none is called. A running
 * function is not waited for, and has the @data that it was set with.
 * One thread at a time calls the function. The next call begins at least every= after the
 * end of the last one. Other threads do not wait: their allocations pass meanwhile. An
 * allocation on a stream that is being captured passes, too.
 */
int hetmem_on_pressure(struct hetmem_resource *res, hetmem_pressure_fn fn, void *data);

/* How a program orders its streams. */
enum hetmem_edge {
	HETMEM_EDGE_RECORD,	/* an event is recorded on a stream */
	HETMEM_EDGE_WAIT,	/* a stream waits for an event */
	HETMEM_EDGE_SYNC,	/* the CPU waits for an event, or a stream */
};

/*
 * Adds an edge to the log, so that `hetmem replay` can repeat the order. A
 * resource cannot see the program's events. Call it right after the driver's
 * call. @event is any value that identifies the event. For HETMEM_EDGE_SYNC, an
 * @event of NULL means that the CPU waited for @stream.
 */
int hetmem_log_edge(struct hetmem_resource *res, enum hetmem_edge edge,
		    const void *event, hetmem_stream stream);

/* Kinds of events of history(). */
enum hetmem_history_kind {
	HETMEM_HISTORY_ALLOC,	/* hetmem_alloc(), hetmem_alloc_with() */
	HETMEM_HISTORY_FREE,
	HETMEM_HISTORY_GROW,
	HETMEM_HISTORY_TRIM,
};

/* Maximum number of return addresses of an event. */
#define HETMEM_HISTORY_CALLERS	16

/**
 * struct hetmem_history_event - one event of history()
 * @nr: number of the event, from 1. A gap means that events were lost
 * @time: CLOCK_MONOTONIC, nanoseconds
 * @ptr: the block; NULL: there is none, for example after a failed allocation
 * @bytes: alloc, free: the requested bytes; grow: the new size; trim: the bytes
 *	given back. 0: unknown
 * @stream: the handle that the caller passed; the driver reuses handles
 * @kind: enum hetmem_history_kind
 * @error: 0, or the negative errno of a failure
 * @nr_callers: used part of @callers
 * @callers: return addresses, the innermost first. Functions of libhetmem.so
 *	are left out.
 */
struct hetmem_history_event {
	uint64_t nr;
	uint64_t time;
	const void *ptr;
	size_t bytes;
	hetmem_stream stream;
	int kind;
	int error;
	unsigned int nr_callers;
	void *callers[HETMEM_HISTORY_CALLERS];
};

/*
 * Copies the last @nr events (at most events= of the spec), the oldest first.
 * Returns the number of copied events. Other threads may add events during the
 * copy: an event that is overwritten then is left out.
 */
ssize_t hetmem_history(struct hetmem_resource *res,
		       struct hetmem_history_event *events, size_t nr);

#ifdef __cplusplus
}
#endif

#endif /* HETMEM_ADAPTOR_H */
