/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * hetmem replay: what its files share. A trace is read once (trace.h);
 * a run is one spec with one trace (run.c, in one thread;
 * threads.c, in as many as were recorded), beside the driver's own
 * allocator, with streams that may lag (lag.c), and is shown as a table,
 * as JSON (json.c) and as pictures (plot.c, curve.c).
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
 */
struct replay_how {
	bool concurrent;
	unsigned int lag_us;
	unsigned int busy_us;
	bool memory;
};

#define REPLAY_CALLS	160

/* Peaks of bytes, see needed.c. */
struct replay_needed {
	uint64_t needed;
	uint64_t least;
};

/**
 * struct replay_result - what a run gave; a time that is negative and a count
 *	that is -1 were not taken
 */
struct replay_result {
	const struct replay_trace *trace;
	const char *spec;
	const char *driver;
	double ns_per_event;
	double ns_p99;
	double first_pass_ms;
	double second_pass_ms;
	double peer_first_pass_ms;
	double peer_second_pass_ms;
	double device_ms[2];		/* of both passes, until streams are done */
	double peer_device_ms[2];
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
};

/**
 * struct replay_world - what passes run in
 * @streams: the trace's; @events: one for each recording
 * @ptrs: of live blocks
 * @device_ns: of the last pass, from its start until all streams were done
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

/* needed.c: a pass that finds *@peak. False: the driver makes no event. */
bool replay_pass_needed(struct replay_world *world,
			struct hetmem_resource *res,
			struct replay_needed *peak);

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
int replay_json(const struct replay_result *results, size_t nr);

/* curve.c: @nr results, @specs in a row for each trace. */
void replay_curve(FILE *f, const struct replay_result *results, size_t nr,
		  size_t specs);

/* plot.c: one panel a run; each replays once more for its samples. */
int replay_plot(FILE *f, struct hetmem *hm,
		const struct replay_result *results, size_t nr,
		const struct replay_how *how);

#endif
