// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Drivers that lack an optional call, one at a time: whatever resource is made
 * from a spec works all the same, or is refused where it is made of that call.
 * Each case is a process of its own, over the soft driver with a hole in its
 * table.
 */
#include <fnmatch.h>
#include <sys/wait.h>

#include "driver/calls.h"
#include "soft_driver.h"

#define MIB	((size_t)1 << 20)

static const char *const specs[] = {
	"device", "managed", "async", "pinned", "system", "host",
	"pool(device)", "pool(managed)", "pool(vmm)",
	"pool(vmm,comm=on)", "pool(pinned)", "stats(pool(host))",
	"device-pool", "unified", "pool(vmm(export=fd))", "pool(async)",
	"guard(pool(vmm))", "fixed(pool(vmm),size=4M,count=3)",
	"log(retry(fallback(pool(vmm),pool(managed))),file=/dev/null,full=on)",
};

#define NR_SPECS	(sizeof(specs) / sizeof(specs[0]))

struct call {
	const char *name;
	size_t offset;
	bool optional;
};

enum need { REQUIRED, OPTIONAL };

static const struct call calls[] = {
#define CALL(member, base, symbol, version, need) \
	{ #member, offsetof(struct hm_driver, member), need == OPTIONAL },
	HM_DRIVER_CALLS(CALL)
#undef CALL
};

#define NR_CALLS	(sizeof(calls) / sizeof(calls[0]))

/* What is made of what: the calls as patterns, up to one that is NULL. */
static const struct {
	const char *spec;
	const char *calls[10];
} needs[] = {
	{ "*pool(vmm*", { "cuMemGetAllocationGranularity", "cuMemAddress*",
			  "cuMemCreate", "cuMemRelease", "cuMemMap",
			  "cuMemUnmap", "cuMemSetAccess" } },
	{ "*async*", { "cuMemAllocFromPoolAsync", "cuMemFreeAsync",
		       "cuMemPoolCreate", "cuMemPoolDestroy",
		       "cuMemPoolSetAttribute", "cuMemPoolTrimTo" } },
	{ "*export=fd*", { "cuMemExportToShareableHandle" } },
};

static bool may_refuse(const char *spec, const char *call)
{
	size_t i, j;

	for (i = 0; call && i < sizeof(needs) / sizeof(needs[0]); i++)
		for (j = 0; needs[i].calls[j]; j++)
			if (!fnmatch(needs[i].spec, spec, 0) &&
			    !fnmatch(needs[i].calls[j], call, 0))
				return true;
	return false;
}

static const char *lacks;

/* 0, or the line that went wrong. */
static int use(const char *spec)
{
	const bool unified = strstr(spec, "managed") || strstr(spec, "unified");
	struct hetmem_moved moved = { .size = sizeof(moved) };
	struct hetmem_segment seg[4];
	CUgraph graph;
	int fds[4];
	struct hetmem_resource *res;
	CUstream a, b;
	void *p, *q;
	int err;

#define MUST(cond) do { if (!(cond)) return __LINE__; } while (0)
	err = hetmem_resource_create(hm, spec, &res);
	if (err) {
		MUST(err == -EOPNOTSUPP);
		MUST(hetmem_last_error()[0]);
		MUST(may_refuse(spec, lacks));
		return 0;
	}
	MUST(!drv->cuStreamCreate(&a, CU_STREAM_NON_BLOCKING) &&
	     !drv->cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
	/* Handles that are numbers, of streams that must not be confused. */
	MUST(!hetmem_alloc(res, 700, 0, NULL, &p));
	MUST(!hetmem_alloc(res, 700, 0, CU_STREAM_PER_THREAD, &q));
	MUST(!drv->cuMemsetD8Async((uintptr_t)p, 1, 700, NULL));
	MUST(!drv->cuMemsetD8Async((uintptr_t)q, 1, 700,
				   CU_STREAM_PER_THREAD));
	MUST(!hetmem_free(res, p, 0, HETMEM_STREAM_UNKNOWN));
	MUST(!hetmem_free(res, q, 0, HETMEM_STREAM_UNKNOWN));
	MUST(!hetmem_alloc(res, 700, 0, a, &p));
	MUST(!hetmem_alloc(res, 700, 0, a, &q));
	MUST(!hetmem_free(res, p, 0, a));
	MUST(!hetmem_free(res, q, 0, a));
	err = hetmem_alloc(res, 3 * MIB, 0, a, &p);
	MUST(!err);
	MUST(!drv->cuMemsetD8Async((uintptr_t)p, 1, 3 * MIB, a));
	MUST(!hetmem_alloc(res, 1000, 0, HETMEM_STREAM_HOST, &q));
	MUST(!hetmem_record_stream(res, q, b));
	MUST(!drv->cuMemsetD8Async((uintptr_t)q, 1, 1000, b));
	MUST(!hetmem_free(res, q, 0, HETMEM_STREAM_UNKNOWN));
	/* Placement takes whichever of two versions there is. */
	if (unified && !strstr(spec, "fallback")) {
		MUST(!hetmem_prefetch(hm, p, 3 * MIB,
				      HETMEM_LOC(HETMEM_DEVICE, 0), a, &moved));
		MUST(!strcmp(moved.how, "driver"));
	}
	if (strstr(spec, "export=fd")) {
		MUST(hetmem_export(res, p, fds, seg, 4) == 1);
		close(fds[0]);
	}
	MUST(!hetmem_free(res, p, 3 * MIB, a));
	/* They came together: a driver that captures can be asked, too. */
	if (hm->driver.cuStreamIsCapturing &&
	    hm->driver.cuThreadExchangeStreamCaptureMode &&
	    !hetmem_capture_begin(res, a, 1)) {
		MUST(!drv->cuStreamBeginCapture(a,
				CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
		MUST(!hetmem_alloc(res, MIB, 0, a, &p));
		MUST(!hetmem_free(res, p, MIB, a));
		MUST(!drv->cuStreamEndCapture(a, &graph));
		MUST(!hetmem_capture_end(res, a, 1) &&
		     !hetmem_capture_release(res, a, 1));
		MUST(!drv->cuGraphDestroy(graph));
	}
	MUST(!hetmem_alloc(res, 2 * MIB, 0, b, &p));
	MUST(!hetmem_free(res, p, 0, b));
	MUST(!hetmem_stream_retire(res, a) && !hetmem_stream_retire(res, b));
	MUST(!drv->cuCtxSynchronize());
	MUST(!drv->cuStreamDestroy(a) && !drv->cuStreamDestroy(b));
	MUST(!hetmem_poll(res));
	MUST(!hetmem_trim(res, 0, NULL));
	MUST(!hetmem_resource_destroy(res));
#undef MUST
	return 0;
}

static int without(const struct call *call)
{
	const void *none = NULL;
	int line, bad = 0;
	size_t i;

	lacks = call ? call->name : NULL;
	open_soft("");
	if (call)
		memcpy((char *)&hm->driver + call->offset, &none,
		       sizeof(none));
	need(!hm_probe_devices(hm), "devices");
	for (i = 0; i < NR_SPECS; i++) {
		line = use(specs[i]);
		if (line) {
			printf("# without %s: %s: line %d: %s\n",
			       call ? call->name : "nothing", specs[i], line,
			       hetmem_last_error());
			bad++;
		}
	}
	close_soft();
	fflush(stdout);
	_exit(bad ? 1 : 0);
}

static void run(const struct call *call)
{
	int status = 0;

	fflush(stdout);
	if (!fork())
		without(call);
	wait(&status);
	is(WIFEXITED(status) ? WEXITSTATUS(status) : 100 + WTERMSIG(status),
	   0, "without %s", call ? call->name : "lacking anything");
}

int main(void)
{
	size_t i;

	setenv("HETMEM_SOFT_CHECK", "1", 1);
	run(NULL);
	for (i = 0; i < NR_CALLS; i++)
		if (calls[i].optional)
			run(&calls[i]);
	return tap_end();
}
