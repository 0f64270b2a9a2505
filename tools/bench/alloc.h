/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What the benchmarks of resources share: opening the library, options, a
 * thread's work, and rows of one form, ours beside the peer's.
 */
#ifndef HETMEM_TOOLS_BENCH_ALLOC_H
#define HETMEM_TOOLS_BENCH_ALLOC_H

#include "busy.h"
#include "driver/hetmem.h"
#include "core/resource.h"
#include "spec/spec.h"
#include "util.h"

#define BENCH_SPECS	16
#define BENCH_CALLS	160
#define BENCH_COUNTED	20000	/* pairs in which calls are counted */

/**
 * struct bench_options - of every benchmark of resources
 * @specs: that were given, @nr_specs of them
 * @max_threads: the most threads
 * @busy_us: each allocation's stream works so long with it, 0: not at all
 * @size: bytes, 0: not given
 * @runs_kernels: @busy is there in any case
 * @uses_module: the library is opened with the kernel module
 */
struct bench_options {
	const char *name;
	const char *specs[BENCH_SPECS];
	int nr_specs;
	const char *driver;
	bool json;
	int max_threads;
	unsigned int busy_us;
	uint64_t size;
	bool runs_kernels;
	bool uses_module;
	struct busy *busy;
	double seconds;
	struct hetmem *hm;
	const struct hm_driver *drv;
};

/**
 * struct bench_pair - one row: pairs of an allocation and its free, or what
 *	@what says
 * @ns: of one of ours, @peer_ns of the peer's; < 0: not taken
 * @device_ns, @peer_device_ns: likewise, until the streams are done; 0: not taken
 * @system_calls: in @counted pairs, by one thread; -1: not taken
 * @calls: of the driver in as many, if @calls_known
 * @blocks: live ones, 0 where metadata was not looked at; @mapped bytes then,
 *	and @resident ones of the process's own memory for it
 */
struct bench_pair {
	const char *what;
	char spec[HM_SPEC_LEN + 1];
	int threads;
	double ns;
	const char *peer;
	double peer_ns;
	double device_ns;
	double peer_device_ns;
	bool calls_known;
	uint64_t counted;
	int64_t system_calls;
	uint64_t calls[BENCH_CALLS];
	uint64_t blocks;
	uint64_t mapped;
	int64_t resident;
};

struct bench_pairs;

/* The options alone. Nothing is opened. As bench_begin(), without specs of its own. */
int bench_parse(struct bench_options *o, int argc, char **argv, const char *help);

/*
 * Parses the options and opens the library: < 0 go on; else the exit status.
 * @help is printed for --help; @presets are the specs if none is given.
 */
int bench_begin(struct bench_options *o, int argc, char **argv,
		const char *help, const char *const *presets);

struct bench_pairs *bench_pairs_new(void);
/* One that was not measured is a line on stderr instead. */
void bench_pairs_add(struct bench_pairs *pairs, const struct bench_pair *row);
/* With the soft driver, the first line of a table: no figure is a GPU's. */
void bench_print_driver(const struct bench_options *o);
/* Closes the library. */
void bench_close(struct bench_options *o);
/* Prints the rows, frees them and closes the library. The exit status. */
int bench_end(struct bench_options *o, struct bench_pairs *pairs);

/*
 * The driver alone: a handle of @size made, mapped at @at, which is reserved,
 * and made accessible, in ns; it is given back behind that. < 0: cannot.
 */
double bench_map_handle(const struct bench_options *o, CUdeviceptr at,
			size_t size);

/* Calls with one line on stderr when @spec cannot be made; NULL then. */
struct hetmem_resource *bench_make(struct bench_options *o, const char *spec);

uint64_t bench_now(void);

/* Sorts @ns, and returns the middle one; -1: there are none. */
double bench_median(double *ns, int nr);

#define BENCH_LIVE	16
#define BENCH_SIZES	4096

/* 256 B to 1 MiB, as many of each power of two; the same every time. */
extern size_t bench_sizes[BENCH_SIZES];

/**
 * struct bench_thread - one thread's work: @pairs times free the oldest of 16
 *	live blocks and allocate another
 * @res: NULL: the driver's cuMemAllocAsync()
 * @streams: @nr_streams to go round; a block is freed on the stream of its
 *	free's turn if @cross, which is ordered behind its own
 */
struct bench_thread {
	struct bench_options *o;
	struct hetmem_resource *res;
	CUstream streams[16];
	CUevent event;
	int nr_streams;
	bool cross;
	uint64_t pairs;
	int failures;
	void *live[BENCH_LIVE];
	size_t sizes[BENCH_LIVE];
	int on[BENCH_LIVE];
};

void bench_thread_run(struct bench_thread *t, uint64_t pairs);
void bench_thread_end(struct bench_thread *t);
/* Streams and event; false: the driver failed. */
bool bench_thread_init(struct bench_thread *t, struct bench_options *o,
		       struct hetmem_resource *res, int nr_streams);

/* Binds the calling thread to a core, another one for each index if it can. */
void bench_own_core(int index);

/* Fills calls and system calls of @row from a run of @t. */
void bench_count(struct bench_thread *t, struct bench_pair *row);

#endif
