// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The functions that frameworks find by name, called as PyTorch and CuPy call
 * them: over the soft driver with two devices, in check mode, which aborts
 * where memory is used again too early.
 */
#include <fcntl.h>

#include "soft_driver.h"

#define MB	((size_t)1 << 20)

static CUstream a, b;

static void fill(void *p, int value, size_t size, CUstream s)
{
	if (drv->cuMemsetD8Async((uintptr_t)p, value, size, s))
		ok(false, "fill");
}

static uint64_t live(int device)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };

	hetmem_resource_stats(hetmem_torch_resource(device), &stats);
	return stats.live;
}

static uint64_t held(int device)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };

	hetmem_resource_stats(hetmem_torch_resource(device), &stats);
	return stats.reserved;
}

static void test_one_stream(void)
{
	void *p[32];
	int i, round;

	for (round = 0; round < 3; round++) {
		for (i = 0; i < 32; i++) {
			p[i] = hetmem_torch_alloc(1000 << i % 10, 0, NULL);
			fill(p[i], i, 1000, NULL);
		}
		is(live(0), 32, "all are there");
		for (i = 0; i < 32; i++)
			hetmem_torch_free(p[i], 1000 << i % 10, 0, NULL);
	}
	is(live(0), 0, "all were freed");
	p[0] = hetmem_torch_alloc(0, 0, NULL);
	ok(p[0], "nothing has an address, too");
	hetmem_torch_free(p[0], 0, 0, NULL);
	hetmem_torch_free(NULL, 0, 0, NULL);
}

/*
 * What a data loader does: a batch is made on one stream, used on another
 * and dropped where it was made. Only record_stream() keeps it until its user
 * is done with it.
 */
static void test_record_stream(void)
{
	CUevent made;
	void *batch, *again;
	int i;

	drv->cuEventCreate(&made, CU_EVENT_DISABLE_TIMING);
	for (i = 0; i < 20; i++) {
		batch = hetmem_torch_alloc(MB, 0, a);
		fill(batch, i, MB, a);
		drv->cuEventRecord(made, a);
		drv->cuStreamWaitEvent(b, made, 0);
		/* A view is recorded by its own address. */
		hetmem_torch_record_stream((char *)batch + 4096, b);
		fill(batch, i + 1, MB, b);
		hetmem_torch_free(batch, MB, 0, a);
		again = hetmem_torch_alloc(MB, 0, a);
		fill(again, 0, MB, a);
		hetmem_torch_free(again, 0, 0, a);
	}
	drv->cuEventDestroy(made);
	is(live(0), 0, "batches were dropped");
}

static void test_cupy(void)
{
	void *p, *q;
	int i;

	for (i = 0; i < 20; i++) {
		p = hetmem_cupy_alloc(a, MB, 0);
		fill(p, i, MB, a);
		q = hetmem_cupy_alloc(NULL, 1000, 0);
		fill(q, i, 1000, NULL);
		hetmem_cupy_free(a, p, 0);
		hetmem_cupy_free(NULL, q, 0);
		p = hetmem_cupy_alloc(b, MB, 0);
		fill(p, i, MB, b);
		hetmem_cupy_free(b, p, 0);
	}
	ok(!hetmem_cupy_alloc(NULL, 0, 0), "CuPy: nothing is NULL");
	is(live(0), 0, "CuPy: free without size and stream");
}

static void test_hooks(void)
{
	size_t size = 0;
	char *p = hetmem_torch_alloc(10000, 0, a);

	hetmem_torch_init(2);
	ok(hetmem_torch_base_alloc(p + 9999, &size) == p && size >= 10000,
	   "base_alloc");
	ok(!hetmem_torch_base_alloc(&size, NULL), "of what is not ours");
	hetmem_torch_free(p, 10000, 0, a);
	drv->cuCtxSynchronize();
	hetmem_torch_reset();
	is(held(0), 0, "reset gives back what is not allocated");
}

static void test_two_devices(void)
{
	void *p = hetmem_torch_alloc(MB, 1, NULL);
	CUcontext before, after;

	drv->cuCtxGetCurrent(&before);
	ok(p && hetmem_torch_resource(1) != hetmem_torch_resource(0),
	   "each device has its own");
	is(live(0), 0, "it is the other's");
	is(live(1), 1, "it is there");
	hetmem_torch_free(p, MB, 1, NULL);
	is(live(1), 0, "and gone");
	drv->cuCtxGetCurrent(&after);
	ok(before == after, "the program's device stays current");
}

static void test_errors(void)
{
	int null = open("/dev/null", O_WRONLY), saved = dup(STDERR_FILENO);
	int x;

	dup2(null, STDERR_FILENO);
	ok(!hetmem_torch_alloc((size_t)1 << 50, 0, a), "too much is NULL");
	ok(!hetmem_torch_alloc(100, 7, a), "so is no device");
	ok(!hetmem_torch_alloc(100, -1, a), "and no such number");
	hetmem_torch_free(&x, 4, 0, a);
	hetmem_torch_record_stream(&x, a);
	dup2(saved, STDERR_FILENO);
	close(saved);
	close(null);
	is(live(0), 0, "nothing has changed");
}

#ifdef __SANITIZE_THREAD__
/* The library for frameworks is never closed, nor are its device's streams. */
const char *__tsan_default_options(void)
	__attribute__((visibility("default")));

const char *__tsan_default_options(void)
{
	return "report_thread_leaks=0";
}
#endif

int main(void)
{
	setenv("HETMEM_DRIVER", "soft", 1);
	setenv("HETMEM_SOFT_DEVICES", "2", 1);
	setenv("HETMEM_SOFT_CHECK", "1", 1);
	open_soft("");
	need(!drv->cuStreamCreate(&a, CU_STREAM_NON_BLOCKING) &&
	     !drv->cuStreamCreate(&b, CU_STREAM_NON_BLOCKING), "streams");
	test_one_stream();
	test_record_stream();
	test_cupy();
	test_hooks();
	test_two_devices();
	test_errors();
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
	close_soft();
	return tap_end();
}
