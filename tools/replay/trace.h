/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A recording of allocations, read from a file into an array of steps. This
 * header needs nothing of the library, and C++ may include it as extern "C".
 */
#ifndef HETMEM_TOOLS_REPLAY_TRACE_H
#define HETMEM_TOOLS_REPLAY_TRACE_H

#include <stddef.h>
#include <stdint.h>

enum replay_op {
	REPLAY_ALLOC,		/* block, stream, size */
	REPLAY_FREE,		/* block, stream */
	REPLAY_RECORD_STREAM,	/* block, stream */
	REPLAY_RETIRE,		/* stream */
	REPLAY_RECORD,		/* event in .block, stream */
	REPLAY_WAIT,		/* event in .block, stream */
	REPLAY_SYNC,		/* event in .block, or REPLAY_NONE: stream */
};

#define REPLAY_NONE	UINT32_MAX

/* One row. Blocks, events, streams and threads are indices. */
struct replay_step {
	size_t size;
	uint32_t block;
	uint16_t stream;
	uint16_t thread;
	uint8_t op;
};

/* Indices of streams that the driver does not have. */
#define REPLAY_STREAM_HOST	UINT16_MAX
#define REPLAY_STREAM_UNKNOWN	(UINT16_MAX - 1)

/**
 * struct replay_trace - a file, read
 * @name: last part of its path, without .csv or .csv.gz
 * @steps: in the order of the file, @nr of them
 * @blocks: allocations, each a number of its own
 * @streams, @threads: how many were seen; @events: recordings of events, each a
 *	number of its own
 * @peak_requested: most bytes live at once, as they were asked for
 * @peak_step: index of the step after which they were
 * @ignored: rows that had no meaning here: frees of what was not allocated
 */
struct replay_trace {
	char *name;
	struct replay_step *steps;
	size_t nr;
	uint32_t blocks;
	uint32_t events;
	unsigned int streams;
	unsigned int threads;
	uint64_t peak_requested;
	size_t peak_step;
	size_t ignored;
};

/* @path "-": standard input. On failure NULL; one line on stderr has the reason. */
struct replay_trace *replay_trace_read(const char *path);
void replay_trace_free(struct replay_trace *trace);

#endif
