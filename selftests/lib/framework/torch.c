// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The functions that frameworks find by name, called as PyTorch and CuPy call
 * them: over the soft driver with two devices, in check mode, which aborts
 * where memory is used again too early.
 */
#include <fcntl.h>
#include <sys/wait.h>

#include "core/resource.h"
#include "driver/hetmem.h"
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

/* PyTorch's predicate, and what it counts. */
struct filter {
	CUstream stream;
	int asked;
};

static int is_stream(void *data, hetmem_stream stream)
{
	struct filter *f = data;

	__atomic_add_fetch(&f->asked, 1, __ATOMIC_RELAXED);
	return f->stream == stream;
}

static unsigned int nr_ids;

static CUresult refuse_id(CUstream stream, unsigned long long *id)
{
	(void)stream;
	(void)id;
	__atomic_add_fetch(&nr_ids, 1, __ATOMIC_RELAXED);
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

static uint64_t nr_live(uint64_t id)
{
	return hetmem_private_live(hetmem_torch_resource(0), id, NULL, 0);
}

/* A graph: the stream that PyTorch captures is asked by nobody who it is. */
static void test_pool(void)
{
	struct filter of_a = { .stream = a }, of_b = { .stream = b };
	struct hetmem *own = hetmem_torch_resource(0)->hm;
	CUresult (*get_id)(CUstream, unsigned long long *) =
		own->driver.cuStreamGetId;
	void *before, *p, *q, *used, *other, *shared, *dropped;
	CUgraph graph = NULL;
	CUevent fork, join;
	uint64_t id, second;

	drv->cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING);
	drv->cuEventCreate(&join, CU_EVENT_DISABLE_TIMING);
	before = hetmem_torch_alloc(MB, 0, a);
	shared = hetmem_torch_alloc(MB, 0, a);
	dropped = hetmem_torch_alloc(5 * MB, 0, a);
	is(hetmem_torch_begin_pool(0, 0, 3, is_stream, &of_a), 0, "a pool");
	id = hetmem_torch_private_pool(0, 0, 3);
	ok(id && !hetmem_torch_private_pool(0, 3, 0) &&
	   !hetmem_torch_private_pool(1, 0, 3), "has a number");
	other = hetmem_torch_alloc(MB, 0, b);
	is(nr_live(id), 0, "another stream's memory is not the pool's");
	need(!drv->cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL),
	     "a capture");
	own->driver.cuStreamGetId = refuse_id;
	p = hetmem_torch_alloc(3 * MB, 0, a);
	fill(p, 1, 3 * MB, a);
	q = hetmem_torch_alloc(700, 0, a);
	used = hetmem_torch_alloc(MB, 0, a);
	is(nr_live(id), 3, "what the filter says is");
	ok(of_a.asked >= 4, "which is asked each time");
	hetmem_torch_free(p, 3 * MB, 0, a);
	ok(hetmem_torch_alloc(3 * MB, 0, a) == p, "used again in the capture");
	hetmem_torch_free(p, 3 * MB, 0, a);
	hetmem_torch_free(before, MB, 0, a);
	hetmem_torch_record_stream(q, a);
	/* A stream that joins the capture uses a block of the pool, and others. */
	drv->cuEventRecord(fork, a);
	drv->cuStreamWaitEvent(b, fork, 0);
	fill(used, 2, MB, b);
	hetmem_torch_record_stream(used, b);
	p = used;
	hetmem_torch_record_stream(shared, b);
	hetmem_torch_record_stream(dropped, b);
	hetmem_torch_record_stream((char *)dropped + 500, b);
	hetmem_torch_free(dropped, 5 * MB, 0, a);
	drv->cuEventRecord(join, b);
	drv->cuStreamWaitEvent(a, join, 0);
	hetmem_torch_free(used, MB, 0, a);
	used = hetmem_torch_alloc(MB, 0, a);
	fill(used, 3, MB, a);
	ok(used != p, "what another branch uses is not used again");
	is(nr_ids, 0, "nobody asks who the stream is");
	own->driver.cuStreamGetId = get_id;
	is(drv->cuStreamEndCapture(a, &graph), 0, "the capture is valid");
	if (graph)
		drv->cuGraphDestroy(graph);
	is(hetmem_torch_begin_pool(0, 9, 9, is_stream, &of_b), 0, "another pool");
	second = hetmem_torch_private_pool(0, 9, 9);
	is(hetmem_torch_begin_pool(0, 0, 3, is_stream, &of_b), 0, "the first again");
	p = hetmem_torch_alloc(MB, 0, b);
	ok(nr_live(id) == 3 && !nr_live(second), "the last begun is asked first");
	hetmem_torch_free(p, MB, 0, b);
	ok(hetmem_torch_end_pool(0, 0, 3) == &of_b, "end returns its data");
	p = hetmem_torch_alloc(MB, 0, b);
	is(nr_live(second), 1, "then the other one is asked");
	hetmem_torch_free(p, MB, 0, b);
	hetmem_torch_release_pool(0, 0, 3);
	is(hetmem_torch_private_pool(0, 0, 3), id, "a reference less");
	hetmem_torch_release_pool(0, 0, 3);
	is(hetmem_torch_private_pool(0, 0, 3), 0, "and the last");
	is(nr_live(id), 2, "its memory stays while something may be captured");
	ok(hetmem_torch_end_pool(0, 0, 3) == &of_a &&
	   hetmem_torch_end_pool(0, 9, 9) == &of_b, "all end");
	ok(!hetmem_torch_end_pool(0, 9, 9), "once");
	is(live(0), 4, "what was freed with a use in the capture is freed then");
	hetmem_torch_free(shared, MB, 0, a);
	drv->cuEventDestroy(fork);
	drv->cuEventDestroy(join);
	is(hetmem_private_live(hetmem_torch_resource(0), id, NULL, 0), -ENOENT,
	   "then it is everyone's");
	is(nr_live(second), 0, "the other one is there");
	hetmem_torch_release_pool(0, 9, 9);
	hetmem_torch_free(q, 700, 0, a);
	hetmem_torch_free(used, MB, 0, a);
	hetmem_torch_free(other, MB, 0, b);
	is(live(0), 0, "all were freed");
	of_a.asked = 0;
	p = hetmem_torch_alloc(MB, 0, a);
	hetmem_torch_free(p, MB, 0, a);
	is(of_a.asked, 0, "no filter is asked any more");
	drv->cuCtxSynchronize();
	hetmem_torch_reset();
	is(held(0), 0, "nothing is held");
}

static int stop;

static void *churn(void *arg)
{
	CUcontext ctx = arg;
	CUstream s;
	void *p;

	drv->cuCtxSetCurrent(ctx);
	need(!drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "a stream");
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		p = hetmem_torch_alloc(5000, 0, s);
		hetmem_torch_free(p, 5000, 0, s);
	}
	return NULL;
}

static int refuse_all(void *data, hetmem_stream stream)
{
	(void)stream;
	return *(int *)data;
}

/* The filter's error is the allocation's, and no lock stays held after it. */
static void test_filter_fails(void)
{
	int err = -ECANCELED;
	void *before, *ptr = NULL;

	is(hetmem_torch_try_alloc(1000, 0, a, &before), 0, "an allocation");
	is(hetmem_torch_begin_pool(0, 7, 1, refuse_all, &err), 0, "begin");
	is(hetmem_torch_try_alloc(1000, 0, a, &ptr), -ECANCELED, "the filter's error");
	ok(!ptr, "and no block");
	hetmem_torch_free(before, 1000, 0, a);
	is(live(0), 0, "a free goes on");
	err = 1;
	is(hetmem_torch_try_alloc(1000, 0, a, &ptr), 0, "an allocation after it");
	hetmem_torch_free(ptr, 1000, 0, a);
	ok(hetmem_torch_end_pool(0, 7, 1) == &err, "end takes the lock");
	hetmem_torch_release_pool(0, 7, 1);
	is(hetmem_torch_pool_refs(0, 7, 1), 0, "released");
}

/* No filter is called when its end has returned: its data is gone. */
static void test_pool_threads(void)
{
	struct filter *f;
	CUcontext ctx;
	pthread_t t[2];
	int i, bad = 0;

	drv->cuCtxGetCurrent(&ctx);
	for (i = 0; i < 2; i++)
		pthread_create(&t[i], NULL, churn, ctx);
	for (i = 0; i < 300; i++) {
		f = calloc(1, sizeof(*f));
		f->stream = a;
		bad += !!hetmem_torch_begin_pool(0, 1, i, is_stream, f);
		hetmem_torch_free(hetmem_torch_alloc(MB, 0, a), MB, 0, a);
		bad += hetmem_torch_end_pool(0, 1, i) != f;
		free(f);
		hetmem_torch_release_pool(0, 1, i);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (i = 0; i < 2; i++)
		pthread_join(t[i], NULL);
	is(bad, 0, "pools come and go while others allocate");
	is(live(0), 0, "all were freed");
}

/* For a shim that throws: the error is returned, and nothing is written. */
static void test_try_alloc(void)
{
	char name[] = "/tmp/hetmem-XXXXXX";
	int file = mkstemp(name), saved = dup(STDERR_FILENO);
	void *ptr = NULL;

	dup2(file, STDERR_FILENO);
	is(hetmem_torch_try_alloc((size_t)1 << 50, 0, a, &ptr), -ENOMEM, "too much is no memory");
	is(hetmem_torch_try_alloc(100, 7, a, &ptr), -ENODEV, "no device");
	is(hetmem_torch_try_alloc(100, -1, a, &ptr), -ENODEV, "no such number");
	ok(!ptr, "nothing is set");
	is(hetmem_torch_try_alloc(MB, 0, a, &ptr), 0, "a block");
	is(live(0), 1, "of the resource");
	hetmem_torch_free(ptr, MB, 0, a);
	dup2(saved, STDERR_FILENO);
	close(saved);
	is(lseek(file, 0, SEEK_END), 0, "stderr is empty");
	close(file);
	unlink(name);
}

/* A pool that is made before anything is allocated from it, as torch.cuda.MemPool does. */
static void test_retain(void)
{
	struct filter of_a = { .stream = a };
	uint64_t id;
	void *p;

	is(hetmem_torch_pool_refs(0, 0, 8), 0, "no pool has no references");
	is(hetmem_torch_retain_pool(0, 0, 8), 0, "a pool without a begin");
	id = hetmem_torch_private_pool(0, 0, 8);
	ok(id && hetmem_torch_pool_refs(0, 0, 8) == 1 &&
	   !hetmem_torch_pool_refs(1, 0, 8), "has a number and one reference");
	p = hetmem_torch_alloc(MB, 0, a);
	is(hetmem_private_live(hetmem_torch_resource(0), id, NULL, 0), 0,
	   "gets no allocation before its begin");
	hetmem_torch_free(p, MB, 0, a);
	is(hetmem_torch_begin_pool(0, 0, 8, is_stream, &of_a), 0, "begin");
	is(hetmem_torch_pool_refs(0, 0, 8), 2, "adds a reference");
	p = hetmem_torch_alloc(MB, 0, a);
	is(hetmem_private_live(hetmem_torch_resource(0), id, NULL, 0), 1,
	   "gets one after it");
	ok(hetmem_torch_end_pool(0, 0, 8) == &of_a, "end");
	hetmem_torch_release_pool(0, 0, 8);
	is(hetmem_torch_private_pool(0, 0, 8), id, "the first reference keeps it");
	hetmem_torch_release_pool(0, 0, 8);
	is(hetmem_torch_pool_refs(0, 0, 8), 0, "the last release ends it");
	hetmem_torch_free(p, MB, 0, a);
	is(live(0), 0, "all were freed");
}

/* The end of a torch.cuda.MemPool: its memory goes to the driver, the cache stays. */
static void test_drop(void)
{
	struct filter of_a = { .stream = a };
	struct hetmem_resource *res = hetmem_torch_resource(0);
	struct hetmem_resource_stats st = { .size = sizeof(st) };
	uint64_t cached;
	void *p;

	hetmem_torch_reset();
	p = hetmem_torch_alloc(20 * MB, 0, b);
	hetmem_torch_free(p, 20 * MB, 0, b);
	need(!hetmem_resource_stats(res, &st), "statistics");
	cached = st.reserved;
	need(!hetmem_torch_begin_pool(0, 0, 9, is_stream, &of_a), "begin");
	need(!hetmem_torch_retain_pool(0, 0, 9), "a second reference");
	p = hetmem_torch_alloc(50 * MB, 0, a);
	hetmem_torch_free(p, 50 * MB, 0, a);
	hetmem_torch_drop_pool(0, 0, 9);
	need(!hetmem_resource_stats(res, &st), "statistics");
	ok(st.reserved > cached, "a pool with a reference keeps its memory");
	hetmem_torch_drop_pool(0, 0, 9);
	need(!hetmem_resource_stats(res, &st), "statistics");
	ok(st.reserved > cached, "also while it is between begin and end");
	ok(hetmem_torch_end_pool(0, 0, 9) == &of_a, "end");
	need(!hetmem_resource_stats(res, &st), "statistics");
	is(st.reserved, cached, "then it goes, and the cache stays");
	is(hetmem_torch_pool_refs(0, 0, 9), 0, "no reference is left");
}

/* A provider whose memory is of the device's own resource. */
static uint64_t parked(void)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };

	hetmem_resource_stats(hetmem_torch_resource(0), &stats);
	return stats.parked;
}

/* Another thread has no region, and its end takes none from this one. */
static void *without_region(void *arg)
{
	*(void **)arg = hetmem_torch_alloc(MB, 0, NULL);
	hetmem_torch_region("other", 0);
	return NULL;
}

static void test_region(void)
{
	struct hetmem_resource *res = hetmem_torch_resource(0);
	void *weights, *cache, *plain, *other = NULL, *pooled, *captured, *none;
	struct filter of_a = { .stream = a };
	pthread_t thread;

	is(hetmem_torch_region("", 0), -EINVAL, "an empty tag");
	is(hetmem_torch_region("0123456789012345678901234567890x", 0), -EINVAL, "a long one");
	is(hetmem_torch_region("weights", HETMEM_ALLOC_WHOLE), -EINVAL, "another flag");
	plain = hetmem_torch_alloc(4 * MB, 0, a);
	is(hetmem_torch_region("weights", 0), 0, "weights");
	weights = hetmem_torch_alloc(4 * MB, 0, a);
	need(!pthread_create(&thread, NULL, without_region, &other), "a thread");
	pthread_join(thread, NULL);
	is(hetmem_torch_begin_pool(0, 7, 8, is_stream, &of_a), 0, "a pool");
	pooled = hetmem_torch_alloc(2 * MB, 0, a);
	is(hetmem_torch_region("kv", HETMEM_ALLOC_SCRATCH), 0, "a cache");
	cache = hetmem_torch_alloc(8 * MB, 0, b);
	captured = hetmem_torch_alloc(2 * MB, 0, a);
	ok(hetmem_torch_end_pool(0, 7, 8), "its end");
	is(hetmem_torch_region(NULL, 0), 0, "no region");
	need(weights && plain && other && pooled && cache && captured, "memory");
	is(nr_live(hetmem_torch_private_pool(0, 7, 8)), 2, "pools have tagged blocks");
	fill(weights, 3, 4 * MB, a);
	fill(pooled, 4, 2 * MB, a);
	drv->cuStreamSynchronize(a);
	is(hetmem_sleep(res, "kv", HETMEM_SLEEP_KEEP), 0, "the cache sleeps: %s",
	   hetmem_last_error());
	is(parked(), 0, "it is scratch");
	is(hetmem_sleep(res, "weights", HETMEM_SLEEP_KEEP), 0, "the weights sleep");
	ok(parked() >= 6 * MB && parked() < 8 * MB, "with those of the pool, and no others: %llu",
	   (unsigned long long)parked());
	fill(plain, 5, 4 * MB, a);
	fill(other, 6, MB, NULL);
	hetmem_torch_free(hetmem_torch_alloc(MB, 0, b), MB, 0, b);
	drv->cuStreamSynchronize(a);
	is(hetmem_torch_region("weights", 0), 0, "weights again");
	is(hetmem_torch_try_alloc(MB, 0, a, &none), -EBUSY, "they sleep: %s",
	   hetmem_last_error());
	is(hetmem_torch_region(NULL, 0), 0, "no region");
	is(hetmem_wake(res, "weights"), 0, "the weights wake");
	is(hetmem_wake(res, "kv"), 0, "and the cache");
	is(((unsigned char *)weights)[4 * MB - 1], 3, "with contents");
	is(((unsigned char *)pooled)[2 * MB - 1], 4, "those of the pool, too");
	hetmem_torch_free(weights, 4 * MB, 0, a);
	hetmem_torch_free(cache, 8 * MB, 0, b);
	hetmem_torch_free(plain, 4 * MB, 0, a);
	hetmem_torch_free(other, MB, 0, NULL);
	hetmem_torch_free(pooled, 2 * MB, 0, a);
	hetmem_torch_free(captured, 2 * MB, 0, a);
	hetmem_torch_release_pool(0, 7, 8);
	is(live(0), 0, "all were freed");
}

static unsigned int given, taken;

static int nested_alloc(void *data, size_t size, void **ptr)
{
	int err = hetmem_alloc(data, size, 0, HETMEM_STREAM_HOST, ptr);

	given += !err;
	return err;
}

static int nested_free(void *data, void *ptr, size_t size)
{
	taken++;
	return hetmem_free(data, ptr, size, HETMEM_STREAM_HOST);
}

static void count_gone(void *data)
{
	++*(int *)data;
}

/* Pools over another resource, pools of whole blocks, and memory of a pool that is named. */
static void test_own_memory(void)
{
	const struct hetmem_provider nested = {
		.size = sizeof(nested), .version = HETMEM_PROVIDER_VERSION, .device = 0,
		.granularity = HETMEM_ALIGNMENT, .alloc = nested_alloc, .free = nested_free,
	};
	struct filter of_a = { .stream = a };
	struct hetmem_resource *res;
	uint64_t before = live(0);
	void *p, *q, *r;
	int gone = 0;

	need(!hetmem_provider_register(hm, "nested", &nested, hetmem_torch_resource(0)) &&
	     !hetmem_resource_create(hm, "pool(custom(name=nested))", &res), "a resource: %s",
	     hetmem_last_error());
	is(hetmem_torch_pool_over(0, 0, 20, res, count_gone, &gone), -ENOENT, "no such pool");
	is(hetmem_torch_pool_flags(0, 0, 20, HETMEM_ALLOC_WHOLE), -ENOENT, "for flags, too");
	is(hetmem_torch_pool_alloc(0, 0, 20, MB, a, &p), -ENOENT, "and for memory");
	need(!hetmem_torch_begin_pool(0, 0, 20, is_stream, &of_a), "begin");
	is(hetmem_torch_pool_over(0, 0, 20, NULL, NULL, NULL), -EINVAL, "over nothing");
	is(hetmem_torch_pool_flags(0, 0, 20, HETMEM_ALLOC_KEEP), -EINVAL, "another flag");
	is(hetmem_torch_pool_over(0, 0, 20, res, count_gone, &gone), 0, "a pool over it");
	is(hetmem_torch_pool_over(0, 0, 20, res, NULL, NULL), -EBUSY, "once");
	p = hetmem_torch_alloc(3 * MB, 0, a);
	q = hetmem_torch_alloc(3 * MB, 0, b);
	is(given, 1, "the pool's block is of the provider, no other is");
	fill(p, 1, 3 * MB, a);
	is(hetmem_torch_pool_alloc(0, 0, 20, 3 * MB, b, &r), 0, "memory of the pool, by its name");
	is(given, 2, "is of the provider");
	is(hetmem_free(res, r, 3 * MB, HETMEM_STREAM_UNKNOWN), 0, "freed");
	hetmem_torch_free(q, 3 * MB, 0, b);
	ok(hetmem_torch_end_pool(0, 0, 20) == &of_a && !gone, "end");
	drv->cuCtxSynchronize();
	hetmem_torch_drop_pool(0, 0, 20);
	is(gone, 1, "the pool has ended");
	is(taken, 1, "free memory went back");
	fill(p, 2, 3 * MB, a);
	is(hetmem_free(res, p, 3 * MB, HETMEM_STREAM_UNKNOWN), 0, "the live block, freed later");
	is(hetmem_resource_destroy(res), 0, "nothing is left");
	is(taken, 2, "all went back");
	is(hetmem_provider_unregister(hm, "nested"), 0, "of no more use");
	need(!hetmem_torch_retain_pool(0, 0, 21) &&
	     !hetmem_torch_pool_flags(0, 0, 21, HETMEM_ALLOC_WHOLE), "whole blocks");
	is(hetmem_torch_pool_alloc(0, 0, 21, 700, a, &p), 0, "one");
	is(hetmem_torch_pool_alloc(0, 0, 21, 700, a, &q), 0, "another");
	ok((uintptr_t)p % (2 * MB) == 0 && (uintptr_t)q % (2 * MB) == 0, "each has a handle");
	hetmem_torch_free(p, 700, 0, a);
	hetmem_torch_free(q, 700, 0, a);
	hetmem_torch_drop_pool(0, 0, 21);
	is(live(0), before, "all were freed");
}

/* A forked child frees what it inherits, while the parent's other thread has the locks. */
static void *come_and_go(void *done)
{
	struct filter of_b = { .stream = b };
	unsigned long i;

	for (i = 0; !__atomic_load_n((bool *)done, __ATOMIC_ACQUIRE); i++) {
		hetmem_torch_begin_pool(0, 2, i, is_stream, &of_b);
		hetmem_torch_end_pool(0, 2, i);
		hetmem_torch_release_pool(0, 2, i);
	}
	return NULL;
}

static void test_forked(void)
{
	char name[] = "/tmp/hetmem-XXXXXX";
	int file = mkstemp(name), status, bad = 0, i;
	bool done = false;
	pthread_t t;
	void *p, *q;
	pid_t pid;

	need(!hetmem_torch_retain_pool(0, 0, 10), "a pool");
	p = hetmem_torch_alloc(MB, 0, a);
	q = hetmem_torch_alloc(700, 0, b);
	need(!pthread_create(&t, NULL, come_and_go, &done), "a thread");
	for (i = 0; i < 30; i++) {
		pid = fork();
		if (!pid) {
			dup2(file, STDERR_FILENO);
			hetmem_torch_free(p, MB, 0, a);
			hetmem_cupy_free(b, q, 0);
			hetmem_torch_release_pool(0, 0, 10);
			hetmem_torch_drop_pool(0, 0, 10);
			_exit(0);
		}
		bad += waitpid(pid, &status, 0) != pid || status;
	}
	__atomic_store_n(&done, true, __ATOMIC_RELEASE);
	pthread_join(t, NULL);
	is(bad, 0, "children free inherited blocks and pools");
	is(lseek(file, 0, SEEK_END), 0, "in silence");
	is(live(0), 2, "the parent has its blocks");
	hetmem_torch_free(p, MB, 0, a);
	hetmem_torch_free(q, 700, 0, b);
	hetmem_torch_release_pool(0, 0, 10);
	is(live(0), 0, "all were freed");
	close(file);
	unlink(name);
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
	is(hetmem_torch_begin_pool(0, 1, 1, NULL, NULL), -EINVAL, "no filter");
	ok(hetmem_torch_begin_pool(7, 1, 1, is_stream, NULL) < 0, "no device");
	is(hetmem_torch_retain_pool(7, 1, 1), -ENODEV, "retain: no device");
	is(hetmem_torch_pool_refs(7, 1, 1), 0, "and no reference");
	hetmem_torch_release_pool(0, 1, 1);
	ok(!hetmem_torch_end_pool(0, 1, 1), "no pool");
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
	test_pool();
	test_filter_fails();
	test_pool_threads();
	test_retain();
	test_drop();
	test_own_memory();
	test_region();
	test_forked();
	test_try_alloc();
	test_errors();
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
	close_soft();
	return tap_end();
}
