/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * A sample: what this machine's processes do with hetmem at one moment. `hetmem status`
 * prints one, `hetmem top` one after the other.
 *
 * It is bounded: in time by a budget, in memory by SAMPLE_PROCESSES. What was left out is
 * said in the sample. What others publish is believed no further than core/publish.h says.
 * Names are escaped.
 */
#ifndef HETMEM_TOOLS_SAMPLE_H
#define HETMEM_TOOLS_SAMPLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/publish.h"
#include "gpus.h"

#define SAMPLE_PROCESSES	1024
#define SAMPLE_LOCATIONS	16
#define SAMPLE_DEVICES		64
/* GPUs of one process. */
#define SAMPLE_GPUS		32
/* Files of statistics of one process: it may have the library twice. */
#define SAMPLE_FILES		4

/* Of memory or of moves: who says so. */
enum sample_source {
	SOURCE_NONE,		/* nobody: the figure is not known */
	SOURCE_MODULE,		/* hetmem.ko */
	SOURCE_PAGEMAP,		/* /proc/PID/pagemap */
	SOURCE_RSS,		/* /proc/PID/statm: pages of the host */
	SOURCE_ESTIMATE,	/* the difference of two samples' residency: at least */
};

/* "module", "pagemap", "rss", "estimated", "-" */
const char *sample_source_name(enum sample_source source);

/**
 * struct sample_location - bytes at a location
 * @location: as of source.h
 */
struct sample_location {
	uint32_t location;
	uint64_t bytes;
};

/* What a process holds on a GPU of NVML; GPU_BYTES_UNKNOWN: NVML does not know. */
struct sample_gpu {
	unsigned int gpu;
	uint64_t bytes;
};

/**
 * struct sample_process - a process that uses hetmem, holds device memory, or was asked for
 * @started: in clock ticks: tells two processes with one PID apart
 * @tracked: it has contexts of the module; @executor: and carries out hints
 * @ranges, @pinned, @waiting: tracked ranges, bytes held, hints that wait for it
 * @largest: ranges of the context that has the most
 * @thrashed: of its ranges; @all_ranges: @largest of them were found
 * @to_device, @to_host: bytes moved since the context was opened, if @counted
 * @residency: SOURCE_NONE: not known, @why says it in words
 * @hidden: neither its pools nor its contexts may be looked at
 * @partial: there is more: time ran out
 * @other: it only holds device memory: of its host memory there is no more than its RSS
 * @gpus: @nr_gpus of them, by index
 * @pools: of @nr_pools, to be freed with the sample; @unlisted: more of them
 */
struct sample_process {
	pid_t pid;
	uid_t uid;
	uint64_t started;
	char name[64];
	bool tracked, executor, counted, all_ranges, partial, hidden, other;
	unsigned int ranges, largest, waiting;
	uint64_t pinned, thrashed;
	uint64_t to_device, to_host;
	enum sample_source residency;
	const char *why;
	unsigned int nr_locations;
	struct sample_location locations[SAMPLE_LOCATIONS];
	unsigned int nr_gpus;
	struct sample_gpu gpus[SAMPLE_GPUS];
	unsigned int nr_pools, unlisted;
	struct hm_published_pool *pools;
};

/* A device that is registered with the module. */
struct sample_device {
	unsigned int id;
	char name[64];
	uint64_t capacity, used, limit;
};

/* The module's own counters, since it was loaded. */
struct sample_module {
	bool loaded;
	uint64_t contexts, ranges, kernel_bytes;
	uint64_t pinned;		/* bytes */
	uint64_t to_device, to_host;	/* bytes */
	uint64_t failed_pages, thrashed, hints, events, events_dropped;
	unsigned int nr_devices;
	struct sample_device devices[SAMPLE_DEVICES];
};

/**
 * struct sample - one moment
 * @time: now() when it began; @took: seconds
 * @hidden: processes that could not be looked into: other users'
 * @left_out: of those that use hetmem, by SAMPLE_PROCESSES or for lack of time
 * @gpus: what NVML reports; not looked at without a budget
 * @elsewhere: processes with device memory that this /proc does not have
 */
struct sample {
	double time, took;
	struct sample_module module;
	struct gpus gpus;
	unsigned int nr, hidden, left_out, elsewhere;
	struct sample_process *processes;
};

/*
 * Takes a sample of @pids, or of all that use hetmem or a GPU if @nr_pids is 0, in about @budget
 * seconds. Processes that have ended are not in it. Free it with sample_free(). 0, or a
 * negative errno: /proc cannot be read; -ENOENT it has not even this process.
 */
int sample_take(struct sample *sample, const pid_t *pids, size_t nr_pids, double budget);
void sample_free(struct sample *sample);

/* The same process in @sample, or NULL. */
const struct sample_process *sample_find(const struct sample *sample,
					 const struct sample_process *process);
/* The same pool in @process (may be NULL), or NULL. */
const struct hm_published_pool *sample_find_pool(const struct sample_process *process,
						 const struct hm_published_pool *pool);

/* Processes that use hetmem, or were asked for. */
unsigned int sample_users(const struct sample *sample);
/* Bytes on all GPUs that NVML knows of. @known: false if it does not know one of them. */
uint64_t sample_on_gpus(const struct sample_process *process, bool *known);
/* "0: 12 MiB, 1: not known", "-"; malloc'd. */
char *sample_gpus_text(const struct sample_process *process);
/* Bytes that are on any device by page tables, and those on the host. */
uint64_t sample_on_device(const struct sample_process *process);
uint64_t sample_on_host(const struct sample_process *process);

/**
 * struct sample_moves - bytes a second
 * @source: SOURCE_MODULE, SOURCE_ESTIMATE; SOURCE_NONE: not known
 */
struct sample_moves {
	double to_device, to_host;
	enum sample_source source;
};

/* Between two samples; @before may be NULL. */
struct sample_moves sample_moves(const struct sample_process *before,
				 const struct sample_process *after, double seconds);

/* A counter's rate, which fits int64_t; 0 where it went backwards, which only a liar's does. */
double sample_rate(uint64_t before, uint64_t after, double seconds);

/* "host 12 MiB, device 0 4 MiB", "not permitted"; malloc'd. */
char *sample_locations_text(const struct sample_process *process);
/* Live blocks, as published: a liar may have freed more than it allocated. */
uint64_t sample_live(const struct hm_published_pool *pool);

/**
 * struct sample_range - a tracked range, see struct hetmem_cmd_stats
 */
struct sample_range {
	uint64_t start, end, on_device, to_device, to_host, thrashed, dirty_blocks;
};

/*
 * Calls @each for the tracked ranges of @pid, in order: @most of them at most, until @end of
 * now(). The module looks again at what changed in them. Exception: it does not if the last look
 * was less than @pause seconds ago.
 * Returns how many were found, or a negative errno: -ESRCH, -EPERM, -ENXIO the process has no context.
 */
ssize_t sample_ranges(pid_t pid, size_t most, double pause, double end,
		      void (*each)(const struct sample_range *range, void *arg), void *arg);

#endif
