/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Resources while a stream is captured: nothing they do makes a capture
 * invalid, on the captured stream, on others, or by other threads.
 * capture.c runs this over the soft driver in check mode, gpu_capture.c
 * over CUDA.
 */
#ifndef HETMEM_SELFTESTS_CAPTURE_H
#define HETMEM_SELFTESTS_CAPTURE_H

#include "gpu_driver.h"

#define KB	((size_t)1 << 10)
#define MB	((size_t)1 << 20)

static struct hetmem *hm;
static const struct hm_api *drv;
static struct hetmem_resource *pool;
static const char *spec;
static CUcontext ctx;

static void *get(size_t size, CUstream stream)
{
	void *p = NULL;

	need(!hetmem_alloc(pool, size, 0, stream, &p), "%s: %zu bytes: %s",
	     spec, size, hetmem_last_error());
	return p;
}

static void put(void *p, size_t size, CUstream stream)
{
	need(!hetmem_free(pool, p, size, stream), "%s: free: %s", spec,
	     hetmem_last_error());
}

static bool is_of(const char *kind)
{
	return !strncmp(spec, kind, strlen(kind));
}

/* New memory and memory used again; what was freed elsewhere; all looked at. */
static void use(CUstream stream, CUstream other)
{
	static const size_t sizes[] = { 512, 100 * KB, 3 * MB, 9 * MB };
	void *p[4], *q;
	int i, err;

	/* It writes there itself: on the stream of both. */
	if (is_of("guard"))
		other = stream;
	for (i = 0; i < 4; i++)
		p[i] = get(sizes[i], stream);
	for (i = 0; i < 4; i++)
		put(p[i], sizes[i], i & 1 ? stream : other);
	for (i = 0; i < 4; i++) {
		q = get(sizes[i], stream);
		put(q, sizes[i], stream);
	}
	hetmem_poll(pool);
	err = hetmem_trim(pool, 0, NULL);
	need(!err || err == -EOPNOTSUPP, "%s: trim: %s", spec,
	     hetmem_last_error());
}

static CUstream new_stream(void)
{
	CUstream s;

	need(!drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "a stream");
	return s;
}

static void drop_stream(CUstream s)
{
	hetmem_stream_retire(pool, s);
	drv->cuStreamDestroy(s);
}

static void begin(CUstream s)
{
	need(!drv->cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL),
	     "a capture");
}

static CUresult end(CUstream s)
{
	CUgraph graph = NULL;
	CUresult res = drv->cuStreamEndCapture(s, &graph);

	if (graph)
		drv->cuGraphDestroy(graph);
	return res;
}

static void *thread(void *arg)
{
	CUstream s, other;

	(void)arg;
	need(!drv->cuCtxSetCurrent(ctx), "the context");
	s = new_stream();
	other = new_stream();
	use(s, other);
	use(CU_STREAM_PER_THREAD, other);
	drop_stream(s);
	drop_stream(other);
	hetmem_stream_retire(pool, CU_STREAM_PER_THREAD);
	return NULL;
}

/* While one captures, another thread and another stream are served. */
static void others(CUstream captured)
{
	CUstream s = new_stream(), other = new_stream();
	pthread_t id;

	use(s, other);
	begin(captured);
	use(s, other);
	use(HETMEM_STREAM_HOST, HETMEM_STREAM_HOST);
	pthread_create(&id, NULL, thread, NULL);
	pthread_join(id, NULL);
	is(end(captured), 0, "%s: others leave a capture valid", spec);
	drop_stream(s);
	drop_stream(other);
}

static void undeclared(void)
{
	CUstream s = new_stream();
	void *p = NULL;
	int err;

	begin(s);
	err = hetmem_alloc(pool, 3 * MB, 0, s, &p);
	ok(err == -EBUSY || !err, "%s: undeclared: %s", spec,
	   err ? hetmem_last_error() : "memory");
	is(end(s), 0, "%s: and the capture is valid", spec);
	if (!err)
		put(p, 3 * MB, s);
	drop_stream(s);
}

/* The legacy stream would wait for a blocking one. */
static void legacy(void)
{
	CUstream s;
	void *p = NULL;
	int err;

	need(!drv->cuStreamCreate(&s, CU_STREAM_DEFAULT), "a stream");
	begin(s);
	err = hetmem_alloc(pool, 3 * MB, 0, NULL, &p);
	ok(err == -EBUSY || !err, "%s: legacy: %s", spec,
	   err ? hetmem_last_error() : "memory");
	is(end(s), 0, "%s: and the capture is valid", spec);
	if (!err)
		put(p, 3 * MB, NULL);
	drop_stream(s);
}

static void declared(CUstream s)
{
	CUstream other = new_stream();
	void *p, *q;
	pthread_t id;

	use(s, other);
	need(!hetmem_capture_begin(pool, s, 7), "%s: capture_begin: %s", spec,
	     hetmem_last_error());
	begin(s);
	p = get(9 * MB, s);
	drv->cuMemsetD8Async((uintptr_t)p, 1, 9 * MB, s);
	put(p, 9 * MB, s);
	q = get(9 * MB, s);
	ok(q == p, "%s: used again in the graph", spec);
	q = get(700, s);
	put(q, 700, s);
	use(other, other);
	pthread_create(&id, NULL, thread, NULL);
	pthread_join(id, NULL);
	is(end(s), 0, "%s: a declared capture is valid", spec);
	put(p, 9 * MB, s);
	is(hetmem_capture_end(pool, s, 7), 0, "%s: capture_end", spec);
	use(s, other);
	is(hetmem_capture_release(pool, s, 7), 0, "%s: release", spec);
	use(s, other);
	drop_stream(other);
}

/* Slow paths change the thread's mode for as long as they take. */
static void mode(CUstream s)
{
	CUstreamCaptureMode was = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

	need(!drv->cuThreadExchangeStreamCaptureMode(&was), "the mode");
	use(s, s);
	need(!drv->cuThreadExchangeStreamCaptureMode(&was), "the mode");
	is(was, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, "%s: the thread's mode stays", spec);
}

static void nap(void *unused)
{
	(void)unused;
	/* time: how long the work lasts, so that destroy finds it under way */
	usleep(20000);
}

/*
 * Destroy waits for what was freed, and asks the driver whether it is complete. A guard whose
 * looks are not over synchronizes the context.
 */
static void destroyed(CUstream captured)
{
	CUstream other = new_stream();
	void *p;

	use(captured, other);
	p = get(3 * MB, other);
	need(!drv->cuLaunchHostFunc(other, nap, NULL), "work");
	put(p, 3 * MB, other);
	if (is_of("guard"))
		drv->cuStreamSynchronize(other);
	begin(captured);
	is(hetmem_resource_destroy(pool), 0, "%s: all is freed", spec);
	is(end(captured), 0, "%s: and a capture meanwhile is valid", spec);
	drv->cuStreamDestroy(other);
}

static void run(const char *which)
{
	CUstream s = new_stream(), last = new_stream();

	spec = which;
	need(!hetmem_resource_create(hm, spec, &pool), "%s: %s", spec,
	     hetmem_last_error());
	others(s);
	undeclared();
	if (strcmp(spec, "async"))
		legacy();
	if (!is_of("fixed") && strstr(spec, "pool")) {
		declared(s);
		declared(CU_STREAM_PER_THREAD);
		hetmem_stream_retire(pool, CU_STREAM_PER_THREAD);
	}
	mode(s);
	drop_stream(s);
	destroyed(last);
	drv->cuStreamDestroy(last);
}

static void run_all(const char *driver)
{
	static const char *const specs[] = {
		"pool(vmm)", "pool(vmm,streams=retired)", "pool(device)",
		"pool(managed)", "pool(pinned)", "pool(async)", "device",
		"managed", "async", "pinned",
		"guard(pool(vmm))", "guard(pool(pinned))",
		"fixed(pool(vmm),size=9M,count=8)", "log(pool(vmm),file=/dev/null,full=on)",
		"stats(pool(vmm))",
	};
	size_t i;

	drv = open_driver(driver, &hm);
	drv->cuCtxGetCurrent(&ctx);
	for (i = 0; i < sizeof(specs) / sizeof(specs[0]); i++)
		run(specs[i]);
	close_driver(drv, hm);
}

#endif /* HETMEM_SELFTESTS_CAPTURE_H */
