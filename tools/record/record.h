/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Between the parts of `hetmem record`. */
#ifndef HETMEM_TOOLS_RECORD_H
#define HETMEM_TOOLS_RECORD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "bounded.h"
#include "format.h"

/*
 * The file. Events may take a quarter of it, the end has a reserve, samples have the rest.
 * So that a file that is too small still covers the whole time, samples become rarer: each
 * time half of the room that was left is used, the interval doubles.
 */
struct record_file {
	const char *path, *option;
	int fd;
	bool created, replace;
	uint64_t max, used, events;
	uint64_t half;		/* of the samples: there the interval doubles */
	uint32_t sequence;
	uint32_t interval_ms;
	uint64_t skipped, dropped;
};

/*
 * Opens @path, which @option named, for an output; @force: an existing file of the caller's own
 * will be replaced by record_file_replace(). 0, or an exit status after a complaint.
 */
int record_file_open(struct record_file *file, const char *option, const char *path, bool force,
		     uint64_t max);
/* Empties a file that is replaced. Before it, the file is as it was. 0, or an exit status. */
int record_file_replace(struct record_file *file);
/* Calls it, and writes the header of a recording. */
int record_file_begin(struct record_file *file, const struct record_header *header);
/*
 * Appends a frame: @head and, if not NULL, @rest. 0, or an exit status after a complaint. A
 * sample or an event that finds no room is counted, and that is no error.
 */
int record_file_add(struct record_file *file, enum record_type type, const void *head,
		    size_t head_len, const void *rest, size_t rest_len);
/* Closes it. @keep: false removes a file that did not exist before. */
void record_file_close(struct record_file *file, bool keep);

/* Samples of one process. */
struct record_taker;

struct record_taker *record_taker_new(pid_t pid);
void record_taker_free(struct record_taker *taker);
/*
 * Looks at the process for about @budget seconds, and adds what it saw. The next look goes on
 * where this one ran out of time. *@err: 0, or a negative errno of the look: -ESRCH,
 * -ENODATA it has no memory (any more), -EACCES. Returns 0 or an exit status.
 *
 * @wait is called with @arg while another thread looks. If it returns before that (see
 * bounded.h), *@err is -ETIMEDOUT, and *@taker NULL: there can be no further look.
 */
int record_take(struct record_taker **taker, struct record_file *file, uint64_t time,
		double budget, void (*wait)(void *arg, const struct bounded *call), void *arg,
		int *err);
/* The addresses belong to another program now. */
void record_taker_exec(struct record_taker *taker);

/* The module's tracepoints, by perf_event_open(2). */
struct record_trace;

/*
 * NULL: there are none, or they may not be read; *@why then is a sentence for the user, and
 * NULL if the module is not loaded. @began: CLOCK_MONOTONIC in ns that times count from.
 */
struct record_trace *record_trace_open(pid_t pid, uint64_t began, const char **why);
void record_trace_close(struct record_trace *trace);
/* Adds what happened since the last call. 0 or an exit status. */
int record_trace_read(struct record_trace *trace, struct record_file *file);

#endif
