/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * What every resource must do, for each of rows.h. conformance.c runs this over the soft
 * driver in check mode, which aborts when memory is given out before its last use is over;
 * conformance_fail.c lets every driver call fail in turn; gpu_conformance.c runs it over
 * CUDA.
 */
#ifndef HETMEM_SELFTESTS_CONFORMANCE_H
#define HETMEM_SELFTESTS_CONFORMANCE_H

#include <sys/wait.h>

#include "block_of.h"
#include "custom_memory.h"
#include "rows.h"

static struct hetmem *hm;
static const struct row *row;
static struct hetmem_resource *res;
static CUstream streams[4];
static int failures;

__attribute__((format(printf, 3, 4)))
static bool expect_at(bool good, int line, const char *fmt, ...)
{
	va_list args;

	if (good)
		return true;
	if (__atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED) < 20) {
		flockfile(stdout);
		printf("# %s: line %d: ", row->spec, line);
		va_start(args, fmt);
		vprintf(fmt, args);
		va_end(args);
		printf(" (%s)\n", hetmem_last_error());
		funlockfile(stdout);
	}
	return false;
}

#define expect(cond)		expect_at(!!(cond), __LINE__, "%s", #cond)

static bool same_at(long long have, long long want, int line,
		    const char *what)
{
	return expect_at(have == want, line, "%s is %lld, not %lld", what,
			 have, want);
}

#define same(have, want)	same_at(have, want, __LINE__, #have)

/* The stream for one of several users: the host where that is the only one. */
static hetmem_stream stream_of(int i)
{
	return row->flags & CPU_ONLY ? HETMEM_STREAM_HOST : streams[i];
}

/* Writes all of it, as a program would: in the order of @stream. */
static void fill(void *ptr, size_t size, unsigned char value,
		 hetmem_stream stream)
{
	if (stream == HETMEM_STREAM_HOST && row->flags & CPU_ONLY)
		memset(ptr, value, size);
	else if (stream == HETMEM_STREAM_HOST)
		expect(!drv->cuMemsetD8Async((uintptr_t)ptr, value, size,
					     streams[3]) &&
		       !drv->cuStreamSynchronize(streams[3]));
	else
		expect(!drv->cuMemsetD8Async((uintptr_t)ptr, value, size,
					     stream));
}

/* Whether first and last byte are @value, when @stream got there. */
static bool holds(void *ptr, size_t size, unsigned char value,
		  hetmem_stream stream)
{
	unsigned char ends[2];

	if (row->flags & CPU_ONLY)
		return ((unsigned char *)ptr)[0] == value &&
		       ((unsigned char *)ptr)[size - 1] == value;
	if (stream == HETMEM_STREAM_HOST)
		stream = streams[3];
	return !drv->cuMemcpyDtoHAsync(&ends[0], (uintptr_t)ptr, 1, stream) &&
	       !drv->cuMemcpyDtoHAsync(&ends[1], (uintptr_t)ptr + size - 1, 1,
				       stream) &&
	       !drv->cuStreamSynchronize(stream) && ends[0] == value &&
	       ends[1] == value;
}

static size_t largest(void)
{
	return row->largest ? row->largest : 4 * MB;
}

#include "conformance_tests.h"

static const struct {
	const char *name;
	void (*run)(void);
} tests[] = {
	{ "basic", test_basic },
	{ "alignment", test_alignment },
	{ "sizes", test_sizes },
	{ "bad frees", test_bad_frees },
	{ "stats", test_stats },
	{ "streams", test_streams },
	{ "cross-stream", test_cross_stream },
	{ "retire", test_retire },
	{ "many retired streams", test_many_retired },
	{ "a thread's own stream", test_own_stream },
	{ "threads", test_threads },
	{ "exhaustion", test_exhaustion },
	{ "fork", test_fork },
	{ "trim", test_trim },
	{ "sparse blocks", test_sparse },
	{ "rings", test_ring },
	{ "replicas", test_replica },
	{ "destroy with live blocks", test_destroy },
};

/* Every test on @row, in the library that is open; the last destroys it. */
__attribute__((unused))
static void run_row(void)
{
	size_t i;
	int err;

	err = hetmem_resource_create(hm, row->spec, &res);
	if (!ok(!err, "%s: created", row->spec)) {
		printf("# %s\n", hetmem_last_error());
		return;
	}
	for (i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
		failures = 0;
		tests[i].run();
		ok(!failures, "%s: %s", row->spec, tests[i].name);
	}
}

__attribute__((unused))
static void open_driver(const char *name)
{
	struct hetmem_params params = {
		.size = sizeof(params), .driver = name, .module_path = "",
	};
	struct hm_context saved;
	int i;

	need(!hetmem_open(&hm, &params), "opens: %s", hetmem_last_error());
	drv = api_of(hm);
	need(!hm_context_enter(hm, 0, &saved), "device 0 is current");
	custom_register(hm);
	for (i = 0; i < 4; i++)
		need(!drv->cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING),
		     "a stream");
}

__attribute__((unused))
static void close_driver(void)
{
	int i;

	for (i = 0; i < 4; i++)
		drv->cuStreamDestroy(streams[i]);
	drv->cuCtxSetCurrent(NULL);
	hetmem_close(hm);
}

#endif /* HETMEM_SELFTESTS_CONFORMANCE_H */
