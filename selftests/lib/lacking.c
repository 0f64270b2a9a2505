// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Drivers that lack an optional call, one at a time: whatever resource is made
 * from a spec works all the same or says that it cannot. Each case is a process
 * of its own, over the soft driver with a hole in its table.
 */
#include <sys/wait.h>

#include "driver/calls.h"
#include "soft_driver.h"

#define MIB	((size_t)1 << 20)

static const char *const specs[] = {
	"device", "managed", "async", "pinned", "system", "host",
	"pool(device)", "pool(managed)", "pool(vmm)",
	"pool(vmm,comm=on)", "pool(pinned)", "stats(pool(host))",
	"device-pool", "unified",
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

/* 0, or the line that went wrong. */
static int use(const char *spec)
{
	struct hetmem_resource *res;
	CUstream a, b;
	void *p, *q;
	int err;

#define MUST(cond) do { if (!(cond)) return __LINE__; } while (0)
	err = hetmem_resource_create(hm, spec, &res);
	if (err) {
		MUST(err == -EOPNOTSUPP);
		MUST(hetmem_last_error()[0]);
		return 0;
	}
	MUST(!drv->cuStreamCreate(&a, CU_STREAM_NON_BLOCKING) &&
	     !drv->cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
	err = hetmem_alloc(res, 3 * MIB, 0, a, &p);
	MUST(!err);
	MUST(!drv->cuMemsetD8Async((uintptr_t)p, 1, 3 * MIB, a));
	MUST(!hetmem_alloc(res, 1000, 0, HETMEM_STREAM_HOST, &q));
	MUST(!hetmem_record_stream(res, q, b));
	MUST(!drv->cuMemsetD8Async((uintptr_t)q, 1, 1000, b));
	MUST(!hetmem_free(res, q, 0, HETMEM_STREAM_UNKNOWN));
	MUST(!hetmem_free(res, p, 3 * MIB, a));
	MUST(!hetmem_alloc(res, 2 * MIB, 0, b, &p));
	MUST(!hetmem_free(res, p, 0, b));
	MUST(!hetmem_stream_retire(res, a) && !hetmem_stream_retire(res, b));
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
