/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Recorded programs, step by step: allocations, frees, uses, and the order of streams. No
 * stream has work of its own. Programs that include this are linked with replay/trace.o: see
 * the Makefile.
 */
#ifndef HETMEM_SELFTESTS_POOL_RECORDING_H
#define HETMEM_SELFTESTS_POOL_RECORDING_H

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "replay/trace.h"

/* Of one replay: the resource, and what each number of the recording stands for. */
struct replay {
	struct hetmem_resource *res;
	CUstream *streams;
	void **blocks;
	size_t *sizes;
	CUevent *events;
};

static hetmem_stream stream_of(const struct replay *r, const struct replay_step *s)
{
	return s->stream == REPLAY_STREAM_HOST ? HETMEM_STREAM_HOST :
	       s->stream == REPLAY_STREAM_UNKNOWN ? HETMEM_STREAM_UNKNOWN :
	       r->streams[s->stream];
}

/* A retired stream is destroyed, and another one has its number from then on. */
static void retire(struct replay *r, const struct replay_step *s)
{
	need(!hetmem_stream_retire(r->res, r->streams[s->stream]) &&
	     !drv->cuStreamDestroy(r->streams[s->stream]) &&
	     !drv->cuStreamCreate(&r->streams[s->stream], CU_STREAM_NON_BLOCKING), "a retire: %s",
	     hetmem_last_error());
}

static void replay_step(struct replay *r, const struct replay_step *s)
{
	hetmem_stream stream = stream_of(r, s);
	int err = 0;

	switch (s->op) {
	case REPLAY_ALLOC:
		r->sizes[s->block] = s->size;
		err = hetmem_alloc(r->res, s->size, 0, stream, &r->blocks[s->block]);
		break;
	case REPLAY_FREE:
		err = hetmem_free(r->res, r->blocks[s->block], r->sizes[s->block], stream);
		r->blocks[s->block] = NULL;
		break;
	case REPLAY_RECORD_STREAM:
		err = hetmem_record_stream(r->res, r->blocks[s->block], stream);
		break;
	case REPLAY_RETIRE:
		retire(r, s);
		break;
	case REPLAY_RECORD:
		need(!drv->cuEventCreate(&r->events[s->block], CU_EVENT_DISABLE_TIMING) &&
		     !drv->cuEventRecord(r->events[s->block], stream), "an event");
		break;
	case REPLAY_WAIT:
		need(!drv->cuStreamWaitEvent(stream, r->events[s->block], 0), "a wait");
		break;
	}
	need(!err, "a step: %s", hetmem_last_error());
	/* So that no answer of the driver depends on time. */
	need(!drv->cuCtxSynchronize(), "cuCtxSynchronize");
}

static void replay_free_rest(struct replay *r, const struct replay_trace *t)
{
	size_t i;

	for (i = 0; i < t->blocks; i++) {
		need(!r->blocks[i] ||
		     !hetmem_free(r->res, r->blocks[i], r->sizes[i], HETMEM_STREAM_UNKNOWN),
		     "a free: %s", hetmem_last_error());
		r->blocks[i] = NULL;
	}
}

static void replay_begin(struct replay *r, const struct replay_trace *t)
{
	size_t i;

	*r = (struct replay){
		.streams = calloc(t->streams + 1, sizeof(CUstream)),
		.blocks = calloc(t->blocks + 1, sizeof(void *)),
		.sizes = calloc(t->blocks + 1, sizeof(size_t)),
		.events = calloc(t->events + 1, sizeof(CUevent)),
	};
	need(r->streams && r->blocks && r->sizes && r->events, "memory");
	for (i = 0; i < t->streams; i++)
		need(!drv->cuStreamCreate(&r->streams[i], CU_STREAM_NON_BLOCKING), "a stream");
}

static void replay_end(struct replay *r, const struct replay_trace *t)
{
	size_t i;

	for (i = 0; i < t->streams; i++)
		drv->cuStreamDestroy(r->streams[i]);
	for (i = 0; i < t->events; i++)
		if (r->events[i])
			drv->cuEventDestroy(r->events[i]);
	free(r->streams);
	free(r->blocks);
	free(r->sizes);
	free(r->events);
}

/* The directory of recordings is beside an ancestor of this program. */
static void find_recordings(char *dir, size_t size)
{
	ssize_t len = readlink("/proc/self/exe", dir, size - 32);
	char *slash;

	need(len > 0, "the program's path");
	dir[len] = '\0';
	while ((slash = strrchr(dir, '/'))) {
		strcpy(slash, "/selftests/traces/README.md");
		if (!access(dir, R_OK)) {
			*strrchr(dir, '/') = '\0';
			return;
		}
		*slash = '\0';
	}
	need(false, "selftests/traces is found");
}

#endif /* HETMEM_SELFTESTS_POOL_RECORDING_H */
