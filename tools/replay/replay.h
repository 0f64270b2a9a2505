/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem replay: what its files share. A trace is read once (trace.h);
 * a run is one spec with one trace (run.c, in one thread;
 * threads.c, in as many as were recorded), beside the driver's own
 * allocator, with streams that may lag (lag.c) and blocks that move (spill.c),
 * and is shown as a table, as JSON (json.c), as pictures (plot.c, curve.c) and as a page (page.c).
 */
#ifndef HETMEM_TOOLS_REPLAY_H
#define HETMEM_TOOLS_REPLAY_H

#include "driver/hetmem.h"
#include "core/resource.h"
#include "busy.h"
#include "time_calls.h"
#include "trace.h"
#include "util.h"

/**
 * struct replay_how - how a trace is replayed
 * @lag_us: streams are so much behind the CPU, 0: they are not
 * @busy_us: each allocation's stream works so long with it, 0: not at all
 * @memory: what is held alone is of interest: no peer, few passes
 * @moves: each move of a block is of interest
 */
struct replay_how {
	bool concurrent;
	unsigned int lag_us;
	unsigned int busy_us;
	bool memory;
	bool moves;
};

#define REPLAY_CALLS	160

/* Peaks of bytes, see needed.c. */
struct replay_needed {
	uint64_t needed;
	uint64_t least;
};

/* Moves of a run that are kept. */
#define REPLAY_MOVES	100000

/**
 * struct replay_move - a move of a block, or of a part of it
 * @event: index of the step that moved it
 * @age: steps since the block was allocated; REPLAY_NONE: not known
 * @back: to the device
 */
struct replay_move {
	uint64_t bytes;
	uint32_t event;
	uint32_t age;
	bool back;
};

/**
 * struct replay_spill - moves of a pass. Pairs are of moves to the host and back
 * @known: the spec has spill=, and a pass was watched
 * @timed: @ns is a GPU's
 * @limit: bytes of max=, 0: not given
 * @ns: time in which one move at least was under way
 * @spilled: bytes on the host now; @most: at most
 * @freed: bytes that were on the host when their block was freed
 * @host: bytes of host memory held at most
 * @log: the first @nr moves; @left_out: moves after them
 */
struct replay_spill {
	bool known;
	bool timed;
	uint64_t limit;
	uint64_t moves[2];
	uint64_t bytes[2];
	uint64_t ns[2];
	uint64_t spilled;
	uint64_t most;
	uint64_t freed;
	uint64_t host;
	uint64_t failures;
	struct replay_move *log;
	size_t nr;
	uint64_t left_out;
};

/* Passes of each kind that are timed. */
#define REPLAY_ROUNDS	4

/* Milliseconds of these passes; median < 0: not taken. */
struct replay_time {
	double median;
	double least;
	double most;
};

/**
 * struct replay_result - the figures of a run; a time that is negative and a count
 *	that is -1 were not taken
 * @soft: the driver is the soft one: no time is a GPU's, and there is no peer
 * @imitated: @spec gets its memory from the soft cuMemAllocAsync: what it holds is no
 *	figure of a driver
 * @why: of the first allocation that failed
 */
struct replay_result {
	const struct replay_trace *trace;
	const char *spec;
	const char *driver;
	bool soft;
	bool imitated;
	double ns_per_event;
	double ns_p99;
	struct replay_time pass[2];
	struct replay_time peer_pass[2];
	struct replay_time device[2];	/* of both passes, until streams are done */
	struct replay_time peer_device[2];
	double host_wait_ms;
	int64_t system_calls;
	bool calls_known;
	uint64_t calls[REPLAY_CALLS];	/* as in count_calls.h */
	bool times_known;	/* of both passes, see time_calls.h */
	uint64_t driver_ns[2][TIME_CALLS];
	uint64_t peak_requested;
	uint64_t peak_reserved;
	int64_t metadata;	/* resident memory for it, -1: not taken */
	uint64_t peak_blocks;	/* when it was looked at: live blocks, */
	uint64_t peak_mapped;	/* ... and bytes held */
	double ratio;
	bool needed_known;
	struct replay_needed needed;
	uint64_t needed_reserved;	/* at most, in that pass */
	uint64_t failures;
	char why[256];
	struct replay_spill spill;
};

/**
 * struct replay_world - what passes run in
 * @streams: the trace's; @events: one for each recording
 * @ptrs: of live blocks
 * @device_ns: of the last pass, from its start until all streams were done
 * @why: text of the first allocation that failed; written once, under @failed
 */
struct replay_world {
	struct hetmem *hm;
	const struct hm_driver *drv;
	const struct replay_trace *trace;
	struct replay_how how;
	CUstream *streams;
	CUevent *events;
	void **ptrs;
	struct replay_lag *lag;
	struct busy *busy;
	uint64_t device_ns;
	bool failed;
	char why[256];
};

int replay_world_open(struct replay_world *world, struct hetmem *hm,
		      const struct replay_trace *trace,
		      const struct replay_how *how);
void replay_world_close(struct replay_world *world);

/*
 * A pass: every step of the trace, then frees what is left and waits for the
 * streams. Nanoseconds of the steps; failed allocations are added to
 * *@failures. @res is NULL for the driver's own allocator.
 */
uint64_t replay_pass(struct replay_world *world, struct hetmem_resource *res,
		     uint64_t *failures);
uint64_t replay_pass_threads(struct replay_world *world,
			     struct hetmem_resource *res, uint64_t *failures);

/* One step; 0, or the error of an allocation. */
int replay_step(struct replay_world *world, struct hetmem_resource *res,
		const struct replay_step *step);
/* Returns when the streams were done. */
uint64_t replay_drain(struct replay_world *world, struct hetmem_resource *res);

/* A time for each step, to be sorted. The same as a pass otherwise. */
void replay_pass_timed(struct replay_world *world, struct hetmem_resource *res,
		       uint32_t *ns);

uint64_t replay_now(void);

/* Why the peer is left out, why no figure is a GPU's; NULL where they are. */
const char *replay_peer_why(const struct replay_result *result);
const char *replay_times_why(const struct replay_result *result);
const char *replay_ratio_why(const struct replay_result *result);

/* needed.c: a pass that finds *@peak. False: the driver makes no event. */
bool replay_pass_needed(struct replay_world *world,
			struct hetmem_resource *res,
			struct replay_needed *peak);

/* spill.c */

/* --spill, --max and --movable as they were typed; NULL: not given. */
struct replay_spill_options {
	const char *spill;
	const char *max;
	const char *movable;
};

/* 0, or EXIT_USAGE and one line was written. */
int replay_spill_check(const struct replay_spill_options *o);
/* The spec that they stand for: device-pool with parameters. The caller frees it. */
char *replay_spill_spec(const struct replay_spill_options *o,
			const struct replay_trace *trace);

/* Whether both are the same file; false if @path is NULL, or @other is no regular file. */
bool replay_same_file(const char *path, const char *other);
/* Whether a log() of @spec writes to the file @path. */
bool replay_logs_to(const char *spec, const char *path);
/* Whether @spec has a resource of this kind. */
bool replay_has_kind(const char *spec, const char *kind);
/* Whether @spec has spill=. *@limit: its max= in bytes, 0: none. @total: of the device. */
bool replay_has_spill(const char *spec, uint64_t total, uint64_t *limit);

/* A block that may move. */
struct replay_watched {
	size_t size;
	uint64_t spilled;
	uint32_t made;		/* index of its step */
	uint32_t slot;		/* in replay_watch.live */
};

/**
 * struct replay_watch - follows the moves of a pass
 * @keep: moves are logged
 * @at: the current step
 * @blocks: by block; @live: @nr_live of them
 * @under_way, @since: moves each way, and since when there are any
 * @recent, @recent_moves: most spilled, and moves, since the caller set them to 0
 */
struct replay_watch {
	struct replay_world *world;
	struct hetmem_resource *res;
	struct replay_spill *spill;
	bool keep;
	uint32_t at;
	struct replay_watched *blocks;
	uint32_t *live;
	uint32_t nr_live;
	uint32_t under_way[2];
	uint64_t since[2];
	uint64_t recent;
	uint32_t recent_moves[2];
};

/* 0, or the exit status, and then one line was written. */
int replay_watch_open(struct replay_watch *watch, struct replay_world *world,
		      struct hetmem_resource *res, const char *spec, bool keep,
		      struct replay_spill *spill);
/* As replay_step() with step @at. */
int replay_watch_step(struct replay_watch *watch, size_t at);
/* Does nothing if it was not opened. */
void replay_watch_close(struct replay_watch *watch);

/* A watched pass, if @spec has spill=. 0 or the exit status. */
int replay_spill_pass(struct replay_world *world, const char *spec, bool keep,
		      struct replay_spill *spill);
/* Tables of what moved in the @nr runs, if anything could. */
void replay_spill_print(const struct replay_result *results, size_t nr);

/* lag.c: keeps streams behind the CPU. NULL: no lag. */
struct replay_lag *replay_lag_new(struct replay_world *world);
/* To be called often; puts a gate on @stream when it is time for one. */
void replay_lag_step(struct replay_lag *lag, unsigned int stream);
void replay_lag_free(struct replay_lag *lag);

/*
 * Everything about one spec and one trace. 0 or the exit status, and then one
 * line was written.
 */
int replay_measure(struct hetmem *hm, const struct replay_trace *trace,
		   const char *spec, const struct replay_how *how,
		   struct replay_result *result);

/* json.c */
int replay_json(const struct replay_result *results, size_t nr,
		const struct replay_how *how);

/* curve.c: @nr results, @specs in a row for each trace. */
void replay_curve(FILE *f, const struct replay_result *results, size_t nr,
		  size_t specs);

/* plot.c: one panel a run; each replays once more for its samples. */
int replay_plot(FILE *f, struct hetmem *hm,
		const struct replay_result *results, size_t nr,
		const struct replay_how *how);

/* page.c: one page of all, with the @paths of the traces, @specs runs each; replays likewise. */
int replay_page(FILE *f, struct hetmem *hm, const struct replay_result *results, size_t nr,
		char *const *paths, size_t specs, const struct replay_how *how);

#endif
