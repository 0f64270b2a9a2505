// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * hetmem_pin_comm(): a block gets one handle that other processes can open, at its address and
 * with its contents; what it refuses, and why; its memory, its observers, its waits; pins that
 * count; each driver call that fails.
 */
#include <sys/wait.h>

#include "ring_test.h"
#include "failing_calls.h"

static struct hetmem_segment seg[64];
static CUcontext context;

/* Parts of a block; -1: they are not all of the @types. */
static int parts(struct hetmem_resource *res, const void *p, size_t size, unsigned int types)
{
	ssize_t i, nr = hetmem_segments(res, p, size, seg, 64);

	for (i = 0; i < nr; i++)
		if (seg[i].handle_types != types)
			return -1;
	return nr;
}

static int shared(struct hetmem_resource *res, const void *p, size_t size)
{
	return parts(res, p, size, HETMEM_HANDLE_FD);
}

static void fill(void *p, int value, size_t size, CUstream s)
{
	need(!drv->cuMemsetD8Async((uintptr_t)p, value, size, s), "a fill");
}

/* Through the device, after all work on @s. */
static bool has(const void *p, int value, size_t size, CUstream s)
{
	static unsigned char back[16 * MIB];

	return !drv->cuMemcpyDtoHAsync(back, (uintptr_t)p, size, s) &&
	       !drv->cuStreamSynchronize(s) && all_bytes(back, value, size);
}

static void end(struct hetmem_resource *res)
{
	is(hetmem_resource_destroy(res), 0, "destroyed");
	is(device_used(), 0, "nothing is left");
}

static void refused(int err, int want, const char *text, const char *what)
{
	ok(err == want && strstr(hetmem_last_error(), text), "%s: %d, %s", what, err,
	   hetmem_last_error());
}

/* Any block, and others of its stream beside it, while a kernel writes. */
static void one_handle(const char *spec, size_t size)
{
	struct hetmem_resource *res = make(spec);
	CUstream s = new_stream();
	char *before = get(res, MIB, s), *p = get(res, size, s), *after = get(res, size, s);
	const struct hm_soft_range range = { .ptr = (uintptr_t)p, .size = size, .fill = 9 };
	const uint64_t reserved = stats(res).reserved;
	bool same;

	fill(before, 1, MIB, s);
	fill(after, 3, size, s);
	need(!hm->soft->launch(s, "slow", &range, 1, 5000000), "a kernel");
	is(hetmem_pin_comm(res, p + size / 2), 0, "%s, %zu: pinned: %s", spec, size,
	   hetmem_last_error());
	is(shared(res, p, size), 1, "it is one handle for others");
	same = stats(res).reserved == reserved && device_used() == reserved;
	ok(same, "no more memory is held");
	ok(has(p, 9, size, s) && has(before, 1, MIB, s) && has(after, 3, size, s),
	   "contents are there");
	is(hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), 0, "sleep: %s", hetmem_last_error());
	ok(has(p, 9, size, s), "it stays in a sleep");
	is(hetmem_wake(res, NULL), 0, "wake: %s", hetmem_last_error());
	ok(has(before, 1, MIB, s) && has(after, 3, size, s), "and the others come back");
	is(hetmem_unpin_comm(res, p), 0, "unpinned: %s", hetmem_last_error());
	is(shared(res, p, size), 1, "it stays where it is");
	is(hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), 0, "sleep: %s", hetmem_last_error());
	is(stats(res).reserved, 0, "now all of it sleeps");
	is(hetmem_wake(res, NULL), 0, "wake: %s", hetmem_last_error());
	ok(has(p, 9, size, s) && shared(res, p, size) != 1, "in memory as any other");
	hetmem_free(res, before, 0, s);
	hetmem_free(res, p, 0, s);
	hetmem_free(res, after, 0, s);
	hetmem_stream_retire(res, s);
	drv->cuStreamSynchronize(s);
	hetmem_trim(res, 0, NULL);
	is(stats(res).reserved, 0, "all is given back");
	drv->cuStreamDestroy(s);
	end(res);
}

/* A second process opens it: what the driver exports is the block's memory. */
static void opened(void)
{
	struct hetmem_resource *res = make("pool(vmm,handle=2M)");
	char *p = get(res, 6 * MIB, NULL), *q = NULL;
	struct hetmem_segment all = { .length = 6 * MIB };
	CUmemGenericAllocationHandle handle;
	int fd = -1;

	fill(p, 5, 6 * MIB, NULL);
	need(!hetmem_pin_comm(res, p), "pinned: %s", hetmem_last_error());
	need(!drv->cuMemRetainAllocationHandle(&handle, p), "its handle");
	is(drv->cuMemExportToShareableHandle(&fd, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
	   CUDA_SUCCESS, "has a descriptor");
	drv->cuMemRelease(handle);
	need(!hetmem_import(hm, 0, &fd, &all, 1, (void **)&q), "import: %s", hetmem_last_error());
	close(fd);
	ok(has(q, 5, 6 * MIB, NULL), "of its contents");
	fill(p, 6, 6 * MIB, NULL);
	ok(has(q, 6, 6 * MIB, NULL), "also later");
	hetmem_import_close(hm, q);
	hetmem_free(res, p, 0, NULL);
	end(res);
}

static void counted(void)
{
	struct hetmem_resource *res = make("pool(vmm)");
	char *p = get(res, 3 * MIB, NULL), *beside = get(res, MIB / 2, NULL), *q;

	refused(hetmem_unpin_comm(res, p), -EINVAL, "not pinned", "unpin of what is not pinned");
	is(hetmem_pin_comm(res, p), 0, "pinned");
	is(hetmem_pin_comm(res, p), 0, "twice");
	refused(hetmem_unpin_comm(res, beside), -EINVAL, "not pinned", "a neighbour");
	is(hetmem_unpin_comm(res, p), 0, "unpinned");
	need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_DISCARD), "sleep");
	ok(stats(res).reserved >= 3 * MIB, "pinned once is pinned");
	need(!hetmem_wake(res, NULL), "wake");
	is(hetmem_unpin_comm(res, p), 0, "unpinned again");
	refused(hetmem_unpin_comm(res, p), -EINVAL, "not pinned", "no more");
	need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_DISCARD), "sleep");
	is(stats(res).reserved, 0, "nothing is pinned");
	need(!hetmem_wake(res, NULL), "wake");
	is(hetmem_pin_comm(res, p), 0, "pinned");
	hetmem_free(res, p, 0, NULL);
	refused(hetmem_unpin_comm(res, p), -EINVAL, "no live block", "a freed block");
	drv->cuCtxSynchronize();
	hetmem_trim(res, 0, NULL);
	ok(stats(res).reserved >= 3 * MIB, "its memory stays");
	q = get(res, 3 * MIB, NULL);
	ok(q == p && shared(res, q, 3 * MIB) == 1, "and serves others");
	is(hetmem_unpin_comm(res, q), 0, "which can take back the pin");
	hetmem_free(res, q, 0, NULL);
	hetmem_free(res, beside, 0, NULL);
	drv->cuCtxSynchronize();
	hetmem_poll(res);
	hetmem_trim(res, 0, NULL);
	is(stats(res).reserved, 0, "then it goes");
	end(res);
}

static void grown(void)
{
	const struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = 4 * MIB, .reserve = 32 * MIB,
	};
	struct hetmem_resource *res = make("pool(vmm,handle=2M)");
	char *p = NULL;

	need(!hetmem_alloc_with(res, &params, (void **)&p), "reserve");
	is(hetmem_pin_comm(res, p), 0, "pinned: %s", hetmem_last_error());
	is(hetmem_grow(res, p, 10 * MIB, NULL), 0, "grown: %s", hetmem_last_error());
	fill(p, 4, 10 * MIB, NULL);
	refused(hetmem_pin_comm(res, p), -EBUSY, "pinned", "it is not one range now");
	is(hetmem_unpin_comm(res, p), 0, "unpinned");
	is(hetmem_pin_comm(res, p), 0, "pinned: %s", hetmem_last_error());
	ok(shared(res, p, 10 * MIB) == 1 && has(p, 4, 10 * MIB, NULL), "as one");
	is(hetmem_shrink(res, p, 4 * MIB, 2 * MIB, NULL), -EOPNOTSUPP, "shrink: %s",
	   hetmem_last_error());
	is(hetmem_unpin_comm(res, p), 0, "unpinned");
	hetmem_free(res, p, 0, NULL);
	end(res);
	res = make("pool(vmm,handle=2M)");
	need(!hetmem_alloc_with(res, &params, (void **)&p), "reserve");
	need(!hetmem_grow(res, p, 16 * MIB, NULL), "grow");
	fill(p, 7, 16 * MIB, NULL);
	need(!hetmem_shrink(res, p, 6 * MIB, 4 * MIB, NULL), "a hole: %s", hetmem_last_error());
	is(hetmem_pin_comm(res, p), 0, "with a hole: %s", hetmem_last_error());
	is(shared(res, p, 16 * MIB), 2, "one handle on each side");
	ok(has(p, 7, 6 * MIB, NULL) && has(p + 10 * MIB, 7, 6 * MIB, NULL), "contents are there");
	is(hetmem_unpin_comm(res, p), 0, "unpinned");
	hetmem_free(res, p, 0, NULL);
	end(res);
}

/* What has only one place, or several, keeps it. */
static void in_place(void)
{
	static const struct { const char *spec; int parts; unsigned int types; } rows[] = {
		{ "pool(vmm(export=fd))", 1, HETMEM_HANDLE_FD }, { "pool(vmm,comm=on,handle=2M)", 4, 0 },
		{ "pool(device)", -EOPNOTSUPP, 0 }, { "fixed(pool(vmm),size=8M,count=1)", 1, HETMEM_HANDLE_FD },
		{ "stats(limit(pool(vmm,handle=2M),max=64M))", 1, HETMEM_HANDLE_FD },
		{ "fallback(pool(vmm,handle=2M),pool(device))", 1, HETMEM_HANDLE_FD },
	};
	CUresult (*export)(void *, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
			   unsigned long long) = hm->driver.cuMemExportToShareableHandle;
	struct hetmem_resource *res;
	size_t i;
	char *p;

	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		res = make(rows[i].spec);
		p = get(res, 8 * MIB, HETMEM_STREAM_HOST);
		is(hetmem_pin_comm(res, p), 0, "%s: %s", rows[i].spec, hetmem_last_error());
		is(hetmem_pin_comm(res, p), 0, "again");
		is(parts(res, p, 8 * MIB, rows[i].types), rows[i].parts, "%s: parts", rows[i].spec);
		is(hetmem_unpin_comm(res, p) | hetmem_unpin_comm(res, p), 0, "unpinned: %s",
		   hetmem_last_error());
		is(hetmem_unpin_comm(res, p), -EINVAL, "no more");
		hetmem_free(res, p, 0, HETMEM_STREAM_HOST);
		end(res);
	}
	hm->driver.cuMemExportToShareableHandle = NULL;
	res = make("pool(vmm,handle=2M)");
	p = get(res, 4 * MIB, NULL);
	is(hetmem_pin_comm(res, p), 0, "a driver that exports nothing");
	is(parts(res, p, 4 * MIB, 0), 2, "it is only pinned");
	is(hetmem_unpin_comm(res, p), 0, "and unpinned");
	hetmem_free(res, p, 0, NULL);
	end(res);
	hm->driver.cuMemExportToShareableHandle = export;
}

static void refusals(void)
{
	static const char *const without[] = { "pool(host)", "host", "device", "async" };
	const struct hetmem_alloc_params sparse = {
		.size = sizeof(sparse), .bytes = 4 * MIB, .flags = HETMEM_ALLOC_SPARSE,
	}, movable = {
		.size = sizeof(movable), .bytes = 4 * MIB, .flags = HETMEM_ALLOC_MOVABLE,
	};
	struct hetmem_resource *res = make("pool(vmm,spill=100M,launcher=single)");
	char *p = get(res, 3 * MIB, NULL), *r = get_ring(res, 2 * MIB, NULL), *s, *m, *other;
	void *alias;
	size_t i;

	is(hetmem_pin_comm(NULL, p), -EINVAL, "no resource");
	is(hetmem_pin_comm(res, NULL), -EINVAL, "no block");
	is(hetmem_unpin_comm(res, NULL), -EINVAL, "no block");
	is(hetmem_pin_comm(res, &res), -EINVAL, "no memory of it");
	need(!hetmem_alloc_with(res, &sparse, (void **)&s), "sparse");
	refused(hetmem_pin_comm(res, s), -EOPNOTSUPP, "sparse", "sparse");
	refused(hetmem_pin_comm(res, r), -EOPNOTSUPP, "ring", "ring");
	need(!hetmem_alloc_with(res, &movable, (void **)&m) && !hetmem_spill(res, m), "spill");
	refused(hetmem_pin_comm(res, m), -EBUSY, "hetmem_fetch", "spilled");
	need(!hetmem_fetch(res, m), "fetch");
	fill(m, 8, 4 * MIB, NULL);
	is(hetmem_pin_comm(res, m), 0, "fetched: %s", hetmem_last_error());
	refused(hetmem_spill(res, m), -EBUSY, "pinned", "it moves no more");
	is(hetmem_unpin_comm(res, m), 0, "unpinned");
	is(hetmem_spill(res, m), 0, "it moves again: %s", hetmem_last_error());
	is(parts(res, m, 4 * MIB, 0) > 0, 1, "on the host it is for nobody");
	need(!hetmem_fetch(res, m), "fetch: %s", hetmem_last_error());
	ok(has(m, 8, 4 * MIB, NULL), "contents are there");
	need(!hetmem_alias(res, p, MIB, 0, &alias), "alias: %s", hetmem_last_error());
	refused(hetmem_pin_comm(res, p), -EBUSY, "alias", "a second address");
	hetmem_free(res, alias, 0, NULL);
	drv->cuCtxSynchronize();
	hetmem_poll(res);
	is(hetmem_pin_comm(res, p), 0, "none: %s", hetmem_last_error());
	need(!hetmem_sleep(res, NULL, HETMEM_SLEEP_KEEP), "sleep");
	refused(hetmem_pin_comm(res, m), -EBUSY, "asleep", "asleep");
	need(!hetmem_wake(res, NULL), "wake");
	hetmem_free(res, p, 0, NULL);
	hetmem_free(res, r, 0, NULL);
	hetmem_free(res, s, 0, NULL);
	hetmem_free(res, m, 0, NULL);
	end(res);
	for (i = 0; i < sizeof(without) / sizeof(without[0]); i++) {
		res = make(without[i]);
		other = get(res, MIB, HETMEM_STREAM_HOST);
		is(hetmem_pin_comm(res, other), -EOPNOTSUPP, "%s: %s", without[i], hetmem_last_error());
		ok(hetmem_last_error()[0], "with a reason");
		hetmem_free(res, other, 0, HETMEM_STREAM_HOST);
		hetmem_resource_destroy(res);
	}
}

static int gate;

static void wait_at_gate(void *unused)
{
	(void)unused;
	stay_until(__atomic_load_n(&gate, __ATOMIC_ACQUIRE));
}

/* Memory beside the block, in one handle with it. */
static void neighbours(void)
{
	struct hetmem_resource *res = make("pool(vmm,handle=16M,max=16M,wait=10ms)");
	CUstream a = new_stream(), b = new_stream();
	char *p = get(res, 4 * MIB, a), *q = get(res, 4 * MIB, b), *big;

	fill(p, 1, 4 * MIB, a);
	fill(q, 2, 4 * MIB, b);
	drv->cuCtxSynchronize();
	refused(hetmem_pin_comm(res, p), -EBUSY, "another stream", "of another stream");
	ok(shared(res, p, 4 * MIB) < 0, "it is as before");
	gate = 0;
	need(!drv->cuLaunchHostFunc(b, wait_at_gate, NULL), "work");
	hetmem_free(res, q, 0, b);
	refused(hetmem_pin_comm(res, p), -EBUSY, "in use", "freed, and in use");
	__atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
	drv->cuStreamSynchronize(b);
	refused(hetmem_pin_comm(res, p), -ENOMEM, "16777216 bytes", "max=");
	ok(has(p, 1, 4 * MIB, a) && stats(res).reserved == 16 * MIB, "nothing has changed");
	need(!hetmem_resource_set(res, "max", "32M"), "max");
	is(hetmem_pin_comm(res, p), 0, "there is room: %s", hetmem_last_error());
	is(hetmem_unpin_comm(res, p), 0, "unpinned");
	gate = 0;
	need(!drv->cuLaunchHostFunc(a, wait_at_gate, NULL), "work");
	hetmem_free(res, p, 0, a);
	p = get(res, 16 * MIB, a);
	hetmem_free(res, p, 0, a);
	p = get(res, 3 * MIB, a);
	q = get(res, 9 * MIB, a);
	is(hetmem_pin_comm(res, p), 0, "of one handle for others: no wait: %s", hetmem_last_error());
	__atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
	hetmem_free(res, q, 0, a);
	hetmem_free(res, p, 0, a);
	end(res);
	/* Two pins in one handle, and a block that goes on beyond it. */
	res = make("pool(vmm,handle=8M)");
	p = get(res, 2 * MIB, a);
	q = get(res, 2 * MIB, a);
	big = get(res, 12 * MIB, a);
	fill(big, 3, 12 * MIB, a);
	is(hetmem_pin_comm(res, p) | hetmem_pin_comm(res, q), 0, "two pins: %s", hetmem_last_error());
	if (hetmem_pin_comm(res, big))
		refused(-EBUSY, -EBUSY, "pin the larger block first", "a larger one");
	ok(has(big, 3, 12 * MIB, a), "contents are there");
	hetmem_free(res, p, 0, a);
	hetmem_free(res, q, 0, a);
	hetmem_free(res, big, 0, a);
	end(res);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

/* Its own uses: of its stream, and recorded ones; for no longer than wait=. */
static void waits(void)
{
	struct hetmem_resource *res = make("pool(vmm,handle=2M,wait=10ms)");
	CUstream a = new_stream(), b = new_stream();
	char *p = get(res, 4 * MIB, a);
	struct hm_soft_range range = { .ptr = (uintptr_t)p, .size = 4 * MIB, .fill = 3 };

	gate = 0;
	need(!drv->cuLaunchHostFunc(a, wait_at_gate, NULL), "work");
	refused(hetmem_pin_comm(res, p), -EBUSY, "wait=", "its stream does not end");
	__atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
	drv->cuStreamSynchronize(a);
	need(!hetmem_record_stream(res, p, b), "record");
	gate = 0;
	need(!drv->cuLaunchHostFunc(b, wait_at_gate, NULL), "work");
	refused(hetmem_pin_comm(res, p), -EBUSY, "wait=", "a recorded one does not");
	is(shared(res, p, 4 * MIB), -1, "nothing has changed");
	__atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
	drv->cuStreamSynchronize(b);
	need(!hetmem_resource_set(res, "wait", "60s"), "wait");
	need(!hm->soft->launch(b, "slow", &range, 1, 5000000), "a kernel");
	is(hetmem_pin_comm(res, p), 0, "it does: %s", hetmem_last_error());
	ok(has(p, 3, 4 * MIB, a), "what the recorded stream wrote is there");
	hetmem_free(res, p, 0, a);
	end(res);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

static void captures(void)
{
	struct hetmem_resource *res = make("pool(vmm,handle=2M)");
	CUstream a = new_stream();
	char *p = get(res, 4 * MIB, a), *q;
	CUgraph graph;

	need(!hetmem_capture_begin(res, a, 7), "begin");
	need(!drv->cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL), "a capture");
	refused(hetmem_pin_comm(res, p), -EBUSY, "capture", "a capture is open");
	q = get(res, 2 * MIB, a);
	hetmem_free(res, q, 0, a);
	is(drv->cuStreamEndCapture(a, &graph), 0, "which stays valid");
	drv->cuGraphDestroy(graph);
	need(!hetmem_capture_end(res, a, 7), "end");
	is(hetmem_pin_comm(res, p), 0, "none is open: %s", hetmem_last_error());
	need(!hetmem_capture_release(res, a, 7), "release");
	hetmem_free(res, p, 0, a);
	q = get(res, 6 * MIB, a);
	need(!drv->cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL), "a capture");
	is(hetmem_pin_comm(res, q), -EBUSY, "one that was not declared: %s", hetmem_last_error());
	is(drv->cuStreamEndCapture(a, &graph), 0, "which stays valid");
	drv->cuGraphDestroy(graph);
	need(!hetmem_private_retain(res, 9), "private");
	need(!alloc_private(res, 9, 4 * MIB, a, (void **)&p), "a block: %s", hetmem_last_error());
	refused(hetmem_pin_comm(res, p), -EBUSY, "private pool", "of a private pool");
	hetmem_free(res, p, 0, a);
	need(!hetmem_private_release(res, 9, a), "release");
	hetmem_free(res, q, 0, a);
	end(res);
	drv->cuStreamDestroy(a);
}

static struct {
	struct hetmem_resource *res;
	char *p;
	unsigned int before, after, wrong;
	int error;
} seen;

static void observe(const struct hetmem_remap *remap, void *arg)
{
	void *p = NULL;

	(void)arg;
	seen.wrong += remap->cause != HETMEM_REMAP_PIN || remap->ptr > (void *)seen.p ||
		(char *)remap->ptr + remap->bytes < seen.p + 6 * MIB;
	seen.wrong += shared(seen.res, seen.p, 6 * MIB) != (remap->after && !remap->error ? 1 : -1);
	seen.wrong += hetmem_pin_comm(seen.res, seen.p) != (remap->after && !remap->error ? 0 : -EDEADLK);
	seen.wrong += hetmem_alloc(seen.res, 512, 0, NULL, &p) || hetmem_free(seen.res, p, 512, NULL);
	seen.before += !remap->after;
	seen.after += remap->after;
	seen.error = remap->error;
}

static void observers(void)
{
	seen.res = make("pool(vmm,handle=2M,max=10M)");
	seen.p = get(seen.res, 6 * MIB, NULL);
	need(!hetmem_on_remap(seen.res, observe, NULL), "observe");
	is(hetmem_pin_comm(seen.res, seen.p), -ENOMEM, "too little memory");
	ok(seen.before == 1 && seen.after == 1 && seen.error == -ENOMEM, "observers know");
	need(!hetmem_resource_set(seen.res, "max", "20M"), "max");
	is(hetmem_pin_comm(seen.res, seen.p), 0, "pinned: %s", hetmem_last_error());
	ok(seen.before == 2 && seen.after == 2 && !seen.error, "before and after");
	is(seen.wrong, 0, "of all that changes, in order");
	is(hetmem_pin_comm(seen.res, seen.p), 0, "again");
	is(seen.before, 2, "nothing changes");
	hetmem_free(seen.res, seen.p, 0, NULL);
	end(seen.res);
}

static void forked(void)
{
	struct hetmem_resource *res = make("pool(vmm,handle=2M)");
	char *p = get(res, 4 * MIB, NULL);
	int status = 1;
	pid_t pid = fork();

	if (!pid)
		_exit(hetmem_pin_comm(res, p) != -EOWNERDEAD ||
		      hetmem_unpin_comm(res, p) != -EOWNERDEAD);
	need(waitpid(pid, &status, 0) == pid, "a child");
	is(status, 0, "a child has no pins");
	is(hetmem_pin_comm(res, p), 0, "the parent has");
	hetmem_free(res, p, 0, NULL);
	end(res);
}

/* Each call of the driver fails once: the block is as before, or pinned. */
static long fail_nth(const char *call, unsigned int nth, unsigned int *wrong)
{
	struct hetmem_resource *res = make("pool(vmm,handle=2M)");
	CUstream s = new_stream();
	char *p = get(res, 5 * MIB, s), *beside = get(res, MIB + MIB / 2, s);
	const char *rule = failing_rule(call, nth);
	const uint64_t reserved = stats(res).reserved;
	int err, nr, again;
	long made;

	*wrong += drv->cuMemsetD8Async((uintptr_t)p, 4, 5 * MIB, s) ||
		drv->cuMemsetD8Async((uintptr_t)beside, 5, MIB, s) || drv->cuStreamSynchronize(s);
	soft_rules(rule, NULL);
	err = hetmem_pin_comm(res, p);
	made = failing_made(call, nth);
	soft_rules(NULL, NULL);
	*wrong += err && !hetmem_last_error()[0];
	nr = shared(res, p, 5 * MIB);
	*wrong += err ? nr == 1 : nr != 1;
	*wrong += !has(p, 4, 5 * MIB, s) || !has(beside, 5, MIB, s);
	again = err ? hetmem_pin_comm(res, p) : 0;
	*wrong += again || stats(res).reserved != reserved || shared(res, p, 5 * MIB) != 1;
	*wrong += !has(p, 4, 5 * MIB, s) || !has(beside, 5, MIB, s);
	*wrong += hetmem_unpin_comm(res, p) != 0;
	hetmem_free(res, p, 0, s);
	hetmem_free(res, beside, 0, s);
	drv->cuCtxSynchronize();
	hetmem_poll(res);
	hetmem_trim(res, 0, NULL);
	*wrong += stats(res).reserved != 0;
	*wrong += hetmem_resource_destroy(res) != 0 || device_used();
	drv->cuStreamDestroy(s);
	if (*wrong)
		printf("# %s: %d, %d: %s\n", rule, err, again, hetmem_last_error());
	return made;
}

static void failing(void)
{
	unsigned int nth, wrong = 0, all = 0;
	long made;
	size_t i;

	count_made(from)
		fail_nth(NULL, from, &wrong);
	ok(!wrong, "no call fails");
	for (i = 0; i < NR_CALLS; i++) {
		if (!is_made[i])
			continue;
		for (made = nth = 1, wrong = 0; nth <= 8 && nth <= made && !wrong; nth++)
			made = fail_nth(calls[i], nth, &wrong);
		all += made > 0;
		if (made || wrong)
			ok(!wrong, "%s fails, %u of %ld", calls[i], nth - 1, made);
	}
	ok(all > 8, "%u calls were made", all);
}

/* A call fails for good, from the @nth on: blocks can be freed, and the pool destroyed. */
static void broken(const char *call, unsigned int nth)
{
	struct hetmem_resource *res = make("pool(vmm,handle=2M)");
	CUstream s = new_stream();
	char *p = get(res, 5 * MIB, s), *beside = get(res, MIB + MIB / 2, s);
	char rule[256] = "";
	unsigned int i;

	for (i = nth; i < nth + 8; i++)
		snprintf(rule + strlen(rule), sizeof(rule) - strlen(rule), "%s%s:%u", i > nth ? "," : "",
			 call, i);
	fill(p, 4, 5 * MIB, s);
	drv->cuStreamSynchronize(s);
	soft_rules(rule, NULL);
	ok(hetmem_pin_comm(res, p) < 0, "%s: %s", rule, hetmem_last_error());
	soft_rules(NULL, NULL);
	if (parts(res, p, 5 * MIB, 0) > 1 && !hetmem_pin_comm(res, p))
		ok(has(p, 4, 5 * MIB, s), "contents are there");
	is(hetmem_free(res, p, 0, s) | hetmem_free(res, beside, 0, s), 0, "freed");
	drv->cuCtxSynchronize();
	hetmem_poll(res);
	p = get(res, 9 * MIB, s);
	ok(p && !drv->cuMemsetD8Async((uintptr_t)p, 1, 9 * MIB, s) && has(p, 1, 9 * MIB, s),
	   "other memory can be used");
	hetmem_free(res, p, 0, s);
	end(res);
	drv->cuStreamDestroy(s);
}

struct thread {
	struct hetmem_resource *res;
	pthread_t id;
	unsigned int nr, wrong, pinned;
};

static void *pin_and_free(void *data)
{
	struct thread *t = data;
	unsigned int i;
	CUstream s;
	char *p;
	int err;

	need(!drv->cuCtxSetCurrent(context), "a context");
	s = new_stream();
	for (i = 0; i < 25; i++) {
		p = get(t->res, (1 + i % 5) * MIB, s);
		t->wrong += !p || drv->cuMemsetD8Async((uintptr_t)p, t->nr, (1 + i % 5) * MIB, s);
		err = hetmem_pin_comm(t->res, p);
		t->pinned += !err;
		t->wrong += (err && err != -EBUSY) || (!err && hetmem_unpin_comm(t->res, p));
		t->wrong += drv->cuStreamSynchronize(s) || !all_bytes(p, t->nr, (1 + i % 5) * MIB);
		hetmem_free(t->res, p, 0, s);
	}
	hetmem_stream_retire(t->res, s);
	drv->cuStreamDestroy(s);
	return NULL;
}

static void threads(void)
{
	struct hetmem_resource *res = make("pool(vmm,handle=2M)");
	unsigned int i, wrong = 0, pinned = 0;
	struct thread t[3];

	for (i = 0; i < 3; i++) {
		t[i] = (struct thread){ .res = res, .nr = i };
		need(!pthread_create(&t[i].id, NULL, pin_and_free, &t[i]), "a thread");
	}
	for (i = 0; i < 3; i++) {
		pthread_join(t[i].id, NULL);
		wrong += t[i].wrong;
		pinned += t[i].pinned;
	}
	is(wrong, 0, "threads that pin their blocks");
	ok(pinned > 0, "%u pins", pinned);
	end(res);
}

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "256M", 1);
	setenv("HETMEM_SOFT_CHECK", "1", 1);
	setenv("HETMEM_SOFT_DEBUG", "1", 1);
	open_soft("");
	need(!drv->cuCtxGetCurrent(&context), "a context");
	one_handle("pool(vmm)", 3 * MIB);
	one_handle("pool(vmm,handle=2M)", 9 * MIB + 512);
	one_handle("pool(vmm,handle=2M)", 100000);
	opened();
	counted();
	grown();
	in_place();
	refusals();
	neighbours();
	waits();
	captures();
	observers();
	forked();
	failing();
	threads();
	close_soft();
	/* Check mode does not take it that memory has no mapping after a move. */
	setenv("HETMEM_SOFT_CHECK", "", 1);
	open_soft("");
	broken("cuMemMap", 2);
	broken("cuMemMap", 1);
	broken("cuMemUnmap", 1);
	broken("cuMemUnmap", 2);
	broken("cuMemSetAccess", 2);
	close_soft();
	return tap_end();
}
