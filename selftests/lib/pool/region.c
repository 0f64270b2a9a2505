// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A resource over each provider of regions, in check mode: order of streams,
 * recorded and retired ones, exhaustion, capture, every driver call failing in
 * turn, threads, fork.
 */
#include <sys/wait.h>

#include "block_of.h"
#include "driver_calls.h"
#include "provider/regions.h"
#include "pool/region.h"
#include "provider/vmm.h"
#include "soft_driver.h"

#define MIB	((size_t)1 << 20)

enum { MANAGED, ASYNC, PINNED, SYSTEM, HOST, NR_KINDS, DEVICE = NR_KINDS };

static const char *const names[] = {
	"managed", "async", "pinned", "system", "host", "device",
};

static int make(int kind, struct hetmem_resource **res)
{
	struct hm_provider *p = NULL;
	int err = -EINVAL;

	switch (kind) {
	case DEVICE:
		err = hm_device_provider(hm, 0, &p);
		break;
	case MANAGED:
		err = hm_managed_provider(hm, 0, &p);
		break;
	case ASYNC:
		err = hm_async_provider(hm, 0, NULL, &p);
		break;
	case PINNED:
		err = hm_pinned_provider(hm, 0, NULL, &p);
		break;
	case SYSTEM:
		err = hm_system_provider(hm, 0, NULL, &p);
		break;
	case HOST:
		err = hm_host_provider(hm, &p);
		break;
	}
	if (err)
		return err;
	err = hm_region_create(p, res);
	if (err)
		p->ops->destroy(p);
	return err;
}

static size_t live(struct hetmem_resource *res)
{
	struct hetmem_resource_stats s = { .size = sizeof(s) };

	hetmem_resource_stats(res, &s);
	return s.live;
}

static size_t reserved(struct hetmem_resource *res)
{
	struct hetmem_resource_stats s = { .size = sizeof(s) };

	hetmem_resource_stats(res, &s);
	return s.reserved;
}

static void use(void *p, size_t size, CUstream s)
{
	struct hm_soft_range r = { (uintptr_t)p, size, -1 };

	soft_launch(s, "a kernel", &r, 1, 2000000);
}

static void basics(int kind)
{
	static const size_t sizes[] = { 1, 511, 4096, 3 * MIB };
	struct hm_ctl_owns block;
	struct hetmem_segment segment;
	struct hetmem_resource *res;
	void *p, *q;
	size_t i;

	need(!make(kind, &res), "%s: %s", names[kind], hetmem_last_error());
	for (i = 0; i < 4; i++) {
		need(!hetmem_alloc(res, sizes[i], 0, NULL, &p), "%zu bytes",
		     sizes[i]);
		need(!hetmem_alloc(res, sizes[i], 1 << 16, NULL, &q),
		     "at a multiple of 64 KiB");
		ok(!((uintptr_t)p & 511) && !((uintptr_t)q & 0xffff),
		   "as it was asked for");
		use(q, sizes[i], NULL);
		is(block_of(res, (char *)q + sizes[i] - 1, &block), 0,
		   "it knows");
		ok(block.base == q && block.size >= sizes[i], "which one");
		is(hetmem_segments(res, q, sizes[i], &segment, 1), 1,
		   "one segment");
		ok(segment.base == q && segment.length == sizes[i], "all of it");
		is(hetmem_free(res, (char *)q + 1, 0, NULL), -EINVAL,
		   "an interior pointer");
		is(hetmem_free(res, q, sizes[i] + 1, NULL), -EINVAL,
		   "a wrong size");
		is(hetmem_free(res, q, sizes[i], NULL), 0, "freed");
		is(hetmem_free(res, q, 0, NULL), -EINVAL, "not twice");
		is(block_of(res, q, &block), -ENOENT, "nobody's");
		is(hetmem_free(res, p, 0, NULL), 0, "freed without a size");
	}
	is(live(res), 0, "none is left");
	is(hetmem_trim(res, 0, NULL), 0, "trimmed");
	is(reserved(res), 0, "nothing is held");
	need(!hetmem_alloc(res, 5, 0, HETMEM_STREAM_HOST, &p), "one more");
	is(hetmem_resource_destroy(res), 1, "which is reported");
	ok(strstr(hetmem_last_error(), "still allocated"), "%s",
	   hetmem_last_error());
}

/* Freed while it is used: nothing waits, and nothing is lost. */
static void order(int kind)
{
	struct hetmem_resource *res;
	CUstream a, b, c;
	void *p, *q;

	need(!make(kind, &res), "%s", names[kind]);
	drv->cuStreamCreate(&a, CU_STREAM_NON_BLOCKING);
	drv->cuStreamCreate(&b, CU_STREAM_NON_BLOCKING);
	drv->cuStreamCreate(&c, CU_STREAM_NON_BLOCKING);
	soft_rules(NULL, "cuLaunchKernel:50ms");
	need(!hetmem_alloc(res, MIB, 0, a, &p), "a block");
	use(p, MIB, a);
	is(hetmem_free(res, p, MIB, a), 0, "freed behind its use");
	is(drv->cuStreamQuery(a), CUDA_ERROR_NOT_READY, "without waiting");
	need(!hetmem_alloc(res, MIB, 0, HETMEM_STREAM_HOST, &p), "for the host");
	use(p, MIB, b);
	use(p, MIB, c);
	is(hetmem_record_stream(res, p, b), 0, "recorded");
	is(hetmem_record_stream(res, p, b), 0, "twice");
	is(hetmem_record_stream(res, p, c), 0, "another");
	is(hetmem_record_stream(res, (char *)p + 1, c), -EINVAL, "no block");
	use(p, MIB, c);
	is(hetmem_free(res, p, MIB, a), 0, "freed on a third");
	is(drv->cuStreamQuery(c), CUDA_ERROR_NOT_READY, "without waiting");
	need(!hetmem_alloc(res, MIB, 0, HETMEM_STREAM_HOST, &q), "a block");
	use(q, MIB, a);
	is(hetmem_record_stream(res, q, a), 0, "recorded");
	is(hetmem_record_stream(res, q, CU_STREAM_PER_THREAD), 0, "recorded");
	use(q, MIB, CU_STREAM_PER_THREAD);
	is(hetmem_free(res, q, 0, HETMEM_STREAM_UNKNOWN), 0,
	   "freed by who does not know");
	need(!hetmem_alloc(res, MIB, 0, a, &q), "a block");
	is(hetmem_record_stream(res, q, b), 0, "recorded");
	use(q, MIB, a);
	drv->cuStreamSynchronize(c);
	is(hetmem_stream_retire(res, a), 0, "its stream goes");
	is(hetmem_stream_retire(res, b), 0, "another too");
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
	is(hetmem_free(res, q, MIB, HETMEM_STREAM_UNKNOWN), 0, "freed then");
	soft_rules(NULL, NULL);
	is(hetmem_poll(res), 0, "polled");
	is(hetmem_trim(res, 0, NULL), 0, "trimmed");
	/* What went in stream order need not be there yet, to the driver. */
	is(reserved(res), 0, "nothing is held");
	drv->cuStreamDestroy(c);
	is(hetmem_resource_destroy(res), 0, "nothing was left");
}

/* The driver's pool holds whole pages, and what its statistics say counts. */
static void held(int kind)
{
	struct hetmem_resource_stats s = { .size = sizeof(s) };
	CUresult (*attribute)(CUmemoryPool pool, CUmemPool_attribute which,
			      void *value) = drv->cuMemPoolGetAttribute;
	struct hetmem_resource *res;
	void *p, *q;
	size_t was;

	if (kind != ASYNC)
		return;
	need(!make(kind, &res), "%s", names[kind]);
	need(!hetmem_alloc(res, 600, 0, NULL, &p) &&
	     !hetmem_alloc(res, MIB + 1, 0, NULL, &q), "two blocks");
	is(reserved(res), MIB + 8192, "reserved is what the driver holds");
	is(hetmem_free(res, q, 0, NULL), 0, "one is freed");
	hetmem_resource_stats(res, &s);
	is(s.reserved, 4096, "less is held");
	is(s.reserved_peak, MIB + 8192, "than was");
	is(s.requested_peak, MIB + 601, "for what was asked");
	was = s.reserved;
	is(hetmem_trim(res, 0, &was), 0, "trimmed");
	is(was, 0, "the driver kept nothing");
	hm->driver.cuMemPoolGetAttribute = NULL;
	is(reserved(res), 1024, "one that does not count: what was asked of it");
	hm->driver.cuMemPoolGetAttribute = attribute;
	is(hetmem_free(res, p, 0, NULL), 0, "the other, too");
	is(hetmem_resource_destroy(res), 0, "nothing was left");
}

static void recovers(int kind)
{
	struct hetmem_resource *res;
	CUdeviceptr hog;
	CUstream s;
	void *p, *q;

	if (kind != ASYNC && kind != MANAGED)
		return;
	need(!make(kind, &res), "%s", names[kind]);
	drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
	drv->cuMemAlloc(&hog, 250 * MIB);
	is(hetmem_alloc(res, SIZE_MAX / 4, 0, s, &p), -ENOMEM,
	   "more than there is");
	is(hetmem_alloc(res, SIZE_MAX - 5, 0, s, &p), -ENOMEM,
	   "more than can be");
	need(!hetmem_alloc(res, 4 * MIB, 0, s, &p), "a block");
	use(p, 4 * MIB, s);
	is(hetmem_free(res, p, 4 * MIB, s), 0, "freed behind work");
	soft_rules("cuMemAllocManaged:1", NULL);
	is(hetmem_alloc(res, 4 * MIB, 0, s, &q), 0,
	   "what was freed is waited for");
	soft_rules(NULL, NULL);
	is(hetmem_free(res, q, 0, s), 0, "freed");
	drv->cuMemFree(hog);
	drv->cuStreamSynchronize(s);
	drv->cuStreamDestroy(s);
	is(hetmem_resource_destroy(res), 0, "nothing was left");
}

static void captures(int kind)
{
	struct hetmem_resource *res;
	CUgraph graph;
	CUstream s;
	void *p, *q;
	int err;

	need(!make(kind, &res), "%s", names[kind]);
	drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
	need(!hetmem_alloc(res, MIB, 0, HETMEM_STREAM_HOST, &p), "a block");
	drv->cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL);
	err = hetmem_alloc(res, MIB, 0, s, &q);
	is(err, kind == ASYNC ? -EBUSY : 0, "an allocation meanwhile");
	if (kind != ASYNC)
		is(hetmem_free(res, p, 0, s), -EBUSY,
		   "a free where the stream captures");
	is(hetmem_free(res, p, 0, HETMEM_STREAM_HOST), 0, "elsewhere");
	is(hetmem_poll(res), 0, "polled");
	is(hetmem_trim(res, 0, NULL), 0, "trimmed");
	is(drv->cuStreamEndCapture(s, &graph), 0, "which hurt the capture not");
	drv->cuGraphDestroy(graph);
	if (!err)
		is(hetmem_free(res, q, 0, s), 0, "freed");
	drv->cuStreamSynchronize(s);
	drv->cuStreamDestroy(s);
	is(hetmem_resource_destroy(res), 0, "nothing was left");
}

static bool scenario(int kind, bool *failed)
{
	struct hetmem_resource *res;
	void *p = NULL, *q = NULL;
	bool good = true;
	CUstream a, b;

	if (make(kind, &res)) {
		*failed = true;
		return true;
	}
	drv->cuDevicePrimaryCtxRetain((CUcontext[1]){}, 0);
	if (drv->cuStreamCreate(&a, CU_STREAM_NON_BLOCKING))
		a = NULL;
	if (drv->cuStreamCreate(&b, CU_STREAM_NON_BLOCKING))
		b = NULL;
	*failed |= !a || !b || hetmem_alloc(res, MIB, 0, a, &p);
	*failed |= !!hetmem_alloc(res, MIB, 0, HETMEM_STREAM_HOST, &q);
	if (p) {
		*failed |= !!hetmem_record_stream(res, p, b);
		use(p, 1, a);
		if (hetmem_free(res, p, MIB, a)) {
			*failed = true;
			good &= !hetmem_free(res, p, MIB, a);
		}
	}
	*failed |= hetmem_stream_retire(res, b) || hetmem_poll(res);
	if (q && hetmem_free(res, q, MIB, a)) {
		*failed = true;
		good &= !hetmem_free(res, q, MIB, a);
	}
	hetmem_trim(res, 0, NULL);
	good &= !live(res);
	soft_rules(NULL, NULL);
	hetmem_resource_destroy(res);
	drv->cuCtxSynchronize();
	if (a)
		drv->cuStreamDestroy(a);
	if (b)
		drv->cuStreamDestroy(b);
	drv->cuDevicePrimaryCtxRelease(0);
	return good;
}

static void failures(int kind)
{
	int nth, fails = 0, bad = 0, left = 0;
	char rule[96];
	bool failed;
	size_t j;

	for (j = 0; j < NR_CALLS; j++) {
		if (!strcmp(calls[j], "cuDevicePrimaryCtxRelease"))
			continue;
		for (nth = 1; nth < 30; nth++) {
			failed = false;
			snprintf(rule, sizeof(rule), "%s:%d", calls[j], nth);
			soft_rules(rule, NULL);
			if (!scenario(kind, &failed)) {
				printf("# %s: %s\n", rule, hetmem_last_error());
				bad++;
			}
			soft_rules(NULL, NULL);
			if (hm->soft->holds()) {
				printf("# left by %s\n", rule);
				left++;
			}
			if (!failed)
				break;
			fails++;
		}
	}
	is(bad, 0, "%s: %d calls failed", names[kind], fails);
	is(left, 0, "nothing was left");
	ok(fails >= 4, "some really did");
}

struct worker {
	struct hetmem_resource *res;
	pthread_t thread;
	unsigned int seed;
	int bad;
};

static void *work(void *arg)
{
	struct worker *w = arg;
	CUcontext ctx;
	CUstream s;
	void *p[8];
	int i, j;

	drv->cuDevicePrimaryCtxRetain(&ctx, 0);
	drv->cuCtxSetCurrent(ctx);
	drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
	for (i = 0; i < 20; i++) {
		for (j = 0; j < 8; j++) {
			p[j] = NULL;
			w->bad += !!hetmem_alloc(w->res, 1 + w->seed * 777 % 9999,
						 0, s, &p[j]);
		}
		for (j = 0; j < 8; j++) {
			if (!p[j])
				continue;
			drv->cuMemsetD8Async((uintptr_t)p[j], j, 1, s);
			w->bad += !!hetmem_free(w->res, p[j], 0, s);
			w->seed++;
		}
	}
	hetmem_stream_retire(w->res, s);
	drv->cuStreamDestroy(s);
	drv->cuDevicePrimaryCtxRelease(0);
	return NULL;
}

static void threads(int kind)
{
	struct worker workers[4] = { 0 };
	struct hetmem_resource *res;
	int i, bad = 0;

	need(!make(kind, &res), "%s", names[kind]);
	for (i = 0; i < 4; i++) {
		workers[i].res = res;
		workers[i].seed = i;
		pthread_create(&workers[i].thread, NULL, work, &workers[i]);
	}
	for (i = 0; i < 4; i++) {
		pthread_join(workers[i].thread, NULL);
		bad += workers[i].bad;
	}
	is(bad, 0, "%s: four threads", names[kind]);
	is(hetmem_resource_destroy(res), 0, "nothing was left");
}

static void forked(int kind)
{
	const int want = kind < SYSTEM ? -EOWNERDEAD : 0;
	struct hetmem_resource *res;
	int status;
	void *p, *q;

	need(!make(kind, &res), "%s", names[kind]);
	need(!hetmem_alloc(res, MIB, 0, HETMEM_STREAM_HOST, &p), "a block");
	fflush(stdout);
	if (!fork()) {
		if (hetmem_alloc(res, MIB, 0, HETMEM_STREAM_HOST, &q) != want ||
		    hetmem_free(res, p, MIB, HETMEM_STREAM_HOST) != want)
			_exit(1);
		hetmem_resource_destroy(res);
		_exit(0);
	}
	wait(&status);
	is(WIFEXITED(status) ? WEXITSTATUS(status) : 99, 0, "%s: in a child",
	   names[kind]);
	is(hetmem_free(res, p, MIB, HETMEM_STREAM_HOST), 0, "in the parent");
	is(hetmem_resource_destroy(res), 0, "nothing was left");
}

/* Alignments that no sum with them holds. */
static void huge_alignment(int kind)
{
	const size_t top = (size_t)1 << 63;
	static const size_t more[] = { 0, 1, 4096, 8192, (size_t)2 << 20 };
	struct hetmem_resource *res;
	void *p = NULL;
	size_t i, bad = 0;

	need(!make(kind, &res), "%s", names[kind]);
	for (i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
		bad += hetmem_alloc(res, more[i], top, HETMEM_STREAM_HOST,
				    &p) != -ENOMEM;
		bad += hetmem_alloc(res, top + more[i], top,
				    HETMEM_STREAM_HOST, &p) != -ENOMEM;
		bad += hetmem_alloc(res, more[i], top / 2, HETMEM_STREAM_HOST,
				    &p) != -ENOMEM;
		bad += hetmem_alloc(res, top - more[i], top / 2,
				    HETMEM_STREAM_HOST, &p) != -ENOMEM;
	}
	is(bad, 0, "%s: alignments of an address space: %s", names[kind],
	   hetmem_last_error());
	is(live(res), 0, "%s: are not counted", names[kind]);
	is(hetmem_resource_destroy(res), 0, "nothing was left");
}

/* Larger than what a driver aligns to, up to what it rounds to. */
static void aligned(int kind)
{
	static const size_t aligns[] = { 64 << 10, MIB, 2 * MIB };
	struct hetmem_resource *res;
	size_t i, bad = 0;
	char *p[6];

	need(!make(kind, &res), "%s", names[kind]);
	for (i = 0; i < 6; i++) {
		need(!hetmem_alloc(res, 2 * MIB, aligns[i % 3], HETMEM_STREAM_HOST,
				   (void **)&p[i]), "%s: a block: %s", names[kind],
		     hetmem_last_error());
		bad += (uintptr_t)p[i] & (aligns[i % 3] - 1);
		memset(p[i], i + 1, 2 * MIB);
	}
	is(bad, 0, "%s: blocks are aligned", names[kind]);
	for (i = 0; i < 6; i++) {
		bad += !all_bytes(p[i], i + 1, 2 * MIB);
		bad += !!hetmem_free(res, p[i], 2 * MIB, HETMEM_STREAM_HOST);
	}
	is(bad, 0, "%s: each has all of its bytes", names[kind]);
	is(hetmem_resource_destroy(res), 0, "nothing was left");
}

int main(void)
{
	int kind;

	setenv("HETMEM_SOFT_CHECK", "1", 1);
	open_soft("");
	for (kind = 0; kind < NR_KINDS; kind++) {
		basics(kind);
		huge_alignment(kind);
		aligned(kind);
		order(kind);
		recovers(kind);
		held(kind);
		captures(kind);
		failures(kind);
		threads(kind);
		forked(kind);
	}
	aligned(DEVICE);
	/* Each region has 2 MiB there: what is freed must come back for others. */
	threads(DEVICE);
	close_soft();
	return tap_end();
}
