/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Replays a trace in one thread, in the order in which it was recorded, which
 * gives the same addresses every time when the streams are idle; and takes
 * the figures: us, the peer, the peer, us, in one process, so that other
 * load on the machine hits both.
 *
 * A pass is timed as a whole, with the trace read and the arrays touched
 * before; the time of each step and the calls are taken in passes of their
 * own.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "count_calls.h"
#include "count_system.h"
#include "replay.h"
#include "resident.h"

uint64_t replay_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ULL + ts.tv_nsec;
}

static hetmem_stream stream_of(const struct replay_world *w,
			       const struct hetmem_resource *res,
			       unsigned int stream)
{
	if (stream == REPLAY_STREAM_UNKNOWN)
		return HETMEM_STREAM_UNKNOWN;
	if (stream == REPLAY_STREAM_HOST || (res && res->device < 0))
		return HETMEM_STREAM_HOST;
	return w->streams[stream];
}

/* The stream works with the block that @s allocated. */
static void work_with(struct replay_world *w, const struct replay_step *s,
		      hetmem_stream stream)
{
	if (stream != HETMEM_STREAM_HOST && stream != HETMEM_STREAM_UNKNOWN)
		busy_run(w->busy, stream, w->ptrs[s->block], s->size,
			 w->how.busy_us * UINT64_C(1000));
}

/* The driver's own allocator has no host stream, nor records. */
static int peer_step(struct replay_world *w, const struct replay_step *s)
{
	CUstream stream = s->stream < w->trace->streams ?
		w->streams[s->stream] : w->streams[0];
	CUdeviceptr ptr;

	if (s->op == REPLAY_ALLOC) {
		if (w->drv->cuMemAllocAsync(&ptr, s->size ? s->size : 1,
					    stream))
			return -ENOMEM;
		w->ptrs[s->block] = (void *)(uintptr_t)ptr;
		if (w->busy)
			work_with(w, s, stream);
	} else if (s->op == REPLAY_FREE && w->ptrs[s->block]) {
		w->drv->cuMemFreeAsync((uintptr_t)w->ptrs[s->block], stream);
		w->ptrs[s->block] = NULL;
	}
	return 0;
}

static void edge(struct replay_world *w, struct hetmem_resource *res,
		 const struct replay_step *s)
{
	CUstream stream = s->stream < w->trace->streams ?
		w->streams[s->stream] : NULL;

	if (s->op == REPLAY_RETIRE && res)
		hetmem_stream_retire(res, stream_of(w, res, s->stream));
	else if (s->op == REPLAY_RECORD && stream)
		w->drv->cuEventRecord(w->events[s->block], stream);
	else if (s->op == REPLAY_WAIT && stream && s->block != REPLAY_NONE)
		w->drv->cuStreamWaitEvent(stream, w->events[s->block], 0);
	else if (s->op == REPLAY_SYNC && s->block != REPLAY_NONE)
		w->drv->cuEventSynchronize(w->events[s->block]);
	else if (s->op == REPLAY_SYNC && stream)
		w->drv->cuStreamSynchronize(stream);
}

static int other_step(struct replay_world *w, struct hetmem_resource *res,
		      const struct replay_step *s)
{
	if (s->op != REPLAY_RECORD_STREAM) {
		edge(w, res, s);
		return 0;
	}
	if (res && w->ptrs[s->block])
		hetmem_record_stream(res, w->ptrs[s->block],
				     stream_of(w, res, s->stream));
	return 0;
}

static int allocate(struct replay_world *w, struct hetmem_resource *res,
		    const struct replay_step *s)
{
	hetmem_stream stream = stream_of(w, res, s->stream);
	int err = hetmem_alloc(res, s->size, 0, stream, &w->ptrs[s->block]);

	if (hm_unlikely(w->busy) && !err)
		work_with(w, s, stream);
	return err;
}

int replay_step(struct replay_world *w, struct hetmem_resource *res,
		const struct replay_step *s)
{
	if (w->lag)
		replay_lag_step(w->lag, s->stream);
	if (hm_unlikely(s->op > REPLAY_FREE))
		return other_step(w, res, s);
	if (!res)
		return peer_step(w, s);
	if (s->op == REPLAY_ALLOC)
		return allocate(w, res, s);
	if (w->ptrs[s->block]) {
		hetmem_free(res, w->ptrs[s->block], s->size,
			    stream_of(w, res, s->stream));
		w->ptrs[s->block] = NULL;
	}
	return 0;
}

/* What the trace leaves, and what the streams still have to do. */
uint64_t replay_drain(struct replay_world *w, struct hetmem_resource *res)
{
	struct replay_step s = { .op = REPLAY_FREE };
	uint64_t done;
	uint32_t i;

	for (i = 0; i < w->trace->blocks; i++) {
		if (!w->ptrs[i])
			continue;
		if (res)
			hetmem_free(res, w->ptrs[i], 0,
				    stream_of(w, res, 0));
		else {
			s.block = i;
			peer_step(w, &s);
		}
		w->ptrs[i] = NULL;
	}
	w->drv->cuCtxSynchronize();
	done = replay_now();
	if (res)
		hetmem_poll(res);
	return done;
}

uint64_t replay_pass(struct replay_world *w, struct hetmem_resource *res,
		     uint64_t *failures)
{
	const struct replay_trace *t = w->trace;
	uint64_t start, ns, failed = 0;
	size_t i;

	if (w->how.concurrent)
		return replay_pass_threads(w, res, failures);
	start = replay_now();
	for (i = 0; i < t->nr; i++)
		failed += !!replay_step(w, res, &t->steps[i]);
	ns = replay_now() - start;
	w->device_ns = replay_drain(w, res) - start;
	*failures += failed;
	return ns;
}

void replay_pass_timed(struct replay_world *w, struct hetmem_resource *res,
		       uint32_t *ns)
{
	const struct replay_trace *t = w->trace;
	uint64_t before = replay_now(), after;
	size_t i;

	for (i = 0; i < t->nr; i++) {
		replay_step(w, res, &t->steps[i]);
		after = replay_now();
		ns[i] = after - before < UINT32_MAX ? after - before :
			UINT32_MAX;
		before = after;
	}
	replay_drain(w, res);
}

int replay_world_open(struct replay_world *w, struct hetmem *hm,
		      const struct replay_trace *t,
		      const struct replay_how *how)
{
	struct hm_context saved;
	uint32_t i;

	*w = (struct replay_world){
		.hm = hm, .drv = hetmem_driver_table(hm), .trace = t,
		.how = *how,
	};
	if (hm_context_enter(hm, 0, &saved))
		return complain(EXIT_FAILED, "replay", "%s",
				hetmem_last_error());
	w->streams = xcalloc(t->streams + 1, sizeof(*w->streams));
	w->events = xcalloc(t->events, sizeof(*w->events));
	w->ptrs = xcalloc(t->blocks, sizeof(*w->ptrs));
	memset(w->ptrs, 0, t->blocks * sizeof(*w->ptrs));
	for (i = 0; i < t->streams + !t->streams; i++)
		if (w->drv->cuStreamCreate(&w->streams[i],
					   CU_STREAM_NON_BLOCKING))
			return complain(EXIT_FAILED, "replay",
					"the driver makes no stream");
	for (i = 0; i < t->events; i++)
		if (w->drv->cuEventCreate(&w->events[i],
					  CU_EVENT_DISABLE_TIMING))
			return complain(EXIT_FAILED, "replay",
					"the driver makes no event");
	w->lag = replay_lag_new(w);
	if (how->busy_us)
		w->busy = busy_open(hm, "replay");
	return how->busy_us && !w->busy ? EXIT_FAILED : 0;
}

void replay_world_close(struct replay_world *w)
{
	uint32_t i;

	for (i = 0; w->streams && i < w->trace->streams + !w->trace->streams;
	     i++)
		if (w->streams[i])
			w->drv->cuStreamDestroy(w->streams[i]);
	for (i = 0; w->events && i < w->trace->events; i++)
		if (w->events[i])
			w->drv->cuEventDestroy(w->events[i]);
	replay_lag_free(w->lag);
	busy_close(w->busy);
	free(w->streams);
	free(w->events);
	free(w->ptrs);
}

/* Two passes of the resource, made for them: half of what they take is added. */
static int two_passes(struct replay_world *w, const char *spec,
		      struct replay_result *r, double *ms)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };
	struct hetmem_resource *res;
	double wait;
	int i;

	if (hetmem_resource_create(w->hm, spec, &res))
		return complain(EXIT_FAILED, "replay", "%s: %s", spec,
				hetmem_last_error());
	for (i = 0; i < 2; i++) {
		ms[i] += replay_pass(w, res, &r->failures) / 2e6;
		r->device_ms[i] += w->device_ns / 2e6;
	}
	if (!hetmem_resource_stats(res, &stats)) {
		if (stats.reserved_peak > r->peak_reserved)
			r->peak_reserved = stats.reserved_peak;
		/* Threads that run freely ask for more at once, or less. */
		if (w->how.concurrent &&
		    stats.requested_peak > r->peak_requested)
			r->peak_requested = stats.requested_peak;
		/* What was not given is not held against what was. */
		if (r->failures && stats.requested_peak < r->peak_requested)
			r->peak_requested = stats.requested_peak;
		wait = stats.host_wait_ns / 1e6;
		if (wait > r->host_wait_ms)
			r->host_wait_ms = wait;
	}
	hetmem_resource_destroy(res);
	return 0;
}

/* The driver's pool as it is at its best: it keeps what it has. */
static bool peer_passes(struct replay_world *w, struct replay_result *r,
			double *ms)
{
	cuuint64_t keep = UINT64_MAX;
	uint64_t failures = 0;
	CUmemoryPool pool;
	int i;

	if (!w->drv->cuMemAllocAsync || !w->drv->cuDeviceGetDefaultMemPool ||
	    w->drv->cuDeviceGetDefaultMemPool(&pool, w->hm->devices[0].handle))
		return false;
	w->drv->cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD,
				      &keep);
	w->drv->cuMemPoolTrimTo(pool, 0);
	for (i = 0; i < 2; i++) {
		ms[i] += replay_pass(w, NULL, &failures) / 2e6;
		r->peer_device_ms[i] += w->device_ns / 2e6;
	}
	w->drv->cuMemPoolTrimTo(pool, 0);
	return !failures;
}

static int by_number(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

/* A pass counted from outside, one counted in the driver, one step by step. */
static int counted_passes(struct replay_world *w, const char *spec,
			  struct replay_result *r)
{
	uint32_t *ns = xcalloc(w->trace->nr, sizeof(*ns));
	struct hetmem_resource *res;
	uint64_t failures = 0;
	size_t i;

	memset(ns, 0, w->trace->nr * sizeof(*ns));
	r->calls_known = count_calls_begin(w->hm);
	if (hetmem_resource_create(w->hm, spec, &res)) {
		count_calls_end(w->hm, r->calls);
		free(ns);
		return complain(EXIT_FAILED, "replay", "%s: %s", spec,
				hetmem_last_error());
	}
	replay_pass(w, res, &failures);
	count_calls_end(w->hm, r->calls);
	if (!w->how.concurrent) {
		/* A stream's work wakes its thread, which is not the pool's. */
		if (!w->busy && count_system_begin()) {
			for (i = 0; i < w->trace->nr; i++)
				replay_step(w, res, &w->trace->steps[i]);
			r->system_calls = count_system_end();
			replay_drain(w, res);
		}
		replay_pass_timed(w, res, ns);
		qsort(ns, w->trace->nr, sizeof(*ns), by_number);
		r->ns_p99 = ns[w->trace->nr * 99 / 100];
	}
	hetmem_resource_destroy(res);
	free(ns);
	return 0;
}

/*
 * What the process's own memory grows by until most is requested, the driver's
 * part included. Before any other pass, which would leave free memory behind.
 */
static int resident_pass(struct replay_world *w, const char *spec,
			 struct replay_result *r)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };
	const struct replay_trace *t = w->trace;
	struct hetmem_resource *res;
	int64_t before, after;
	size_t i;

	resident_begin();
	before = resident_anonymous();
	if (hetmem_resource_create(w->hm, spec, &res))
		return complain(EXIT_FAILED, "replay", "%s: %s", spec,
				hetmem_last_error());
	for (i = 0; i < t->nr; i++) {
		replay_step(w, res, &t->steps[i]);
		if (i != t->peak_step)
			continue;
		after = resident_anonymous();
		if (before < 0 || after < 0 ||
		    hetmem_resource_stats(res, &stats))
			continue;
		r->metadata = after > before ? after - before : 0;
		r->peak_blocks = stats.live;
		r->peak_mapped = stats.reserved;
	}
	replay_drain(w, res);
	hetmem_resource_destroy(res);
	return 0;
}

/* What of both passes is the driver's. */
static int driver_passes(struct replay_world *w, const char *spec,
			 struct replay_result *r)
{
	struct hetmem_resource *res;
	uint64_t failures = 0;
	int pass;

	if (hetmem_resource_create(w->hm, spec, &res))
		return complain(EXIT_FAILED, "replay", "%s: %s", spec,
				hetmem_last_error());
	for (pass = 0; pass < 2; pass++) {
		time_calls_begin(w->hm);
		replay_pass(w, res, &failures);
		time_calls_end(w->hm, r->driver_ns[pass]);
	}
	r->times_known = true;
	hetmem_resource_destroy(res);
	return 0;
}

/* The memory that is needed, and the memory that is reserved for it. */
static int needed_pass(struct replay_world *w, const char *spec,
		       struct replay_result *r)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };
	struct hetmem_resource *res;

	if (hetmem_resource_create(w->hm, spec, &res))
		return complain(EXIT_FAILED, "replay", "%s: %s", spec,
				hetmem_last_error());
	r->needed_known = replay_pass_needed(w, res, &r->needed) &&
		!hetmem_resource_stats(res, &stats) && r->needed.least;
	r->needed_reserved = stats.reserved_peak;
	hetmem_resource_destroy(res);
	return 0;
}

int replay_measure(struct hetmem *hm, const struct replay_trace *t,
		   const char *spec, const struct replay_how *how,
		   struct replay_result *r)
{
	double us[2] = { 0, 0 }, peer[2] = { 0, 0 };
	bool has_peer = true;
	struct replay_world w;
	int status, round;

	*r = (struct replay_result){
		.trace = t, .spec = spec, .driver = hetmem_driver_name(hm),
		.peak_requested = how->concurrent ? 0 : t->peak_requested,
		.system_calls = -1, .metadata = -1,
		.ns_p99 = -1, .peer_first_pass_ms = -1,
		.peer_second_pass_ms = -1,
	};
	status = replay_world_open(&w, hm, t, how);
	has_peer = !how->memory;
	if (!status && !how->concurrent && !how->busy_us && !how->memory)
		status = resident_pass(&w, spec, r);
	for (round = 0; !status && round < 2 && !how->memory; round++) {
		if (round)
			has_peer = has_peer && peer_passes(&w, r, peer);
		status = two_passes(&w, spec, r, us);
		if (!round)
			has_peer = !status && peer_passes(&w, r, peer);
	}
	if (!status && how->memory)
		status = two_passes(&w, spec, r, us);
	if (!status && !how->memory)
		status = counted_passes(&w, spec, r);
	if (!status && !how->concurrent && !how->memory)
		status = driver_passes(&w, spec, r);
	if (!status && !how->concurrent)
		status = needed_pass(&w, spec, r);
	if (!status && !how->concurrent)
		status = replay_spill_pass(&w, spec, how->moves, &r->spill);
	replay_world_close(&w);
	r->failures /= how->memory ? 2 : 4;	/* passes */
	if (how->memory) {
		us[0] = us[1] = r->host_wait_ms = -1;
		r->device_ms[0] = r->device_ms[1] = -1;
	}
	r->first_pass_ms = us[0];
	r->second_pass_ms = us[1];
	r->ns_per_event = us[1] < 0 ? -1 : us[1] * 1e6 / t->nr;
	if (has_peer) {
		r->peer_first_pass_ms = peer[0];
		r->peer_second_pass_ms = peer[1];
	} else {
		r->peer_device_ms[0] = r->peer_device_ms[1] = -1;
	}
	r->ratio = r->peak_requested ?
		(double)r->peak_reserved / r->peak_requested : 0;
	return status;
}
