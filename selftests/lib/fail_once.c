// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * One call of the driver fails once where it is the last of its object: when a
 * resource is destroyed, awake or not, or an import closed. It is made again,
 * or can be: the driver, which says on stderr what is left when it is closed,
 * has nothing to say.
 */
#include <fcntl.h>

#include "by_spec.h"

#define MIB	((size_t)1 << 20)
#define HOST	HETMEM_STREAM_HOST

static char path[] = "/tmp/hetmem-once-XXXXXX";
static int out;

static void begin(void)
{
	open_soft("");
}

static void nothing_left(const char *what, const char *rule)
{
	char text[2048] = "";
	ssize_t n = tap_stderr_of(close_soft, out, text, sizeof(text));

	if (!ok(!n, "%s: %s: nothing is left", what, rule))
		printf("# %s", text);
}

static CUstream stream(void)
{
	CUstream s;

	need(!drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "a stream");
	return s;
}

/* Blocks on two streams, one freed where it was used, one where it was not. */
static void destroy(const char *spec, const char *call, unsigned int nth)
{
	struct hetmem_resource *res;
	CUstream a, b;
	char rule[80];
	void *p, *q;

	begin();
	res = make(spec);
	a = stream();
	b = stream();
	p = get(res, 3 * MIB, a);
	q = get(res, 2 * MIB, b);
	hetmem_record_stream(res, p, b);
	hetmem_free(res, p, 0, a);
	hetmem_free(res, q, 0, b);
	p = get(res, 5 * MIB, b);
	q = get(res, 3 * MIB, HOST);
	hetmem_free(res, p, 0, a);
	snprintf(rule, sizeof(rule), "%s:%u", call, nth);
	need(!soft_rules(rule, NULL), "a rule");
	hetmem_resource_destroy(res);
	soft_rules(NULL, NULL);
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
	nothing_left(spec, rule);
}

/* Asleep in part: memory that the call failed for has no addresses. */
static void asleep(const char *rule, bool sleeps, bool wakes)
{
	struct hetmem_resource *res;
	void *p[4];
	int i;

	begin();
	res = make("pool(vmm,handle=2M)");
	/* A wake makes one handle of those that are in one block. */
	for (i = 0; i < 4; i++)
		p[i] = get(res, 2 * MIB, HOST);
	if (!sleeps)
		need(!soft_rules(rule, NULL), "a rule");
	is(!hetmem_sleep(res, NULL, HETMEM_SLEEP_DISCARD), sleeps, "%s: sleep", rule);
	if (sleeps)
		need(!soft_rules(rule, NULL), "a rule");
	is(!hetmem_wake(res, NULL), wakes, "%s: wake", rule);
	soft_rules(NULL, NULL);
	for (i = 0; i < 4; i++)
		hetmem_free(res, p[i], 0, HOST);
	hetmem_resource_destroy(res);
	nothing_left("destroyed in part asleep", rule);
}

/*
 * Memory that was moved has its old addresses still: those are unmapped, or
 * what could not be is told.
 */
static void moved(unsigned int nth)
{
	struct hetmem_resource *res;
	void *p[16], *q;
	char rule[40];
	size_t held;
	int i, err;

	begin();
	res = make("pool(vmm,handle=2M)");
	for (i = 0; i < 16; i++)
		p[i] = get(res, 2 * MIB, HOST);
	for (i = 0; i < 16; i += 2)
		hetmem_free(res, p[i], 0, HOST);
	q = get(res, 16 * MIB, HOST);
	snprintf(rule, sizeof(rule), nth ? "cuMemUnmap:%u" : "cuMemUnmap:*",
		 nth);
	need(!soft_rules(rule, NULL), "a rule");
	err = hetmem_sleep(res, NULL, HETMEM_SLEEP_DISCARD);
	held = device_used();
	soft_rules(NULL, NULL);
	ok(err ? held : !held, "%s: sleep is %d, %zu bytes are left", rule, err,
	   held);
	is(hetmem_sleep(res, NULL, HETMEM_SLEEP_DISCARD), 0, "%s: sleeps when it is told again", rule);
	is(device_used(), 0, "%s: and nothing is left", rule);
	is(hetmem_wake(res, NULL), 0, "%s: wakes", rule);
	memset(q, 1, 16 * MIB);
	hetmem_resource_destroy(res);
	nothing_left("asleep in part", rule);
}

static void import(const char *rule, int first, int again)
{
	struct hetmem_segment segment;
	struct hetmem_resource *res;
	void *p, *q;
	int fd;

	begin();
	res = make("pool(vmm(export=fd))");
	p = get(res, 2 * MIB, HOST);
	is(hetmem_export(res, p, &fd, &segment, 1), 1, "an export");
	is(hetmem_import(hm, 0, &fd, &segment, 1, &q), 0, "its import");
	close(fd);
	need(!soft_rules(rule, NULL), "a rule");
	is(hetmem_import_close(hm, q), first, "%s: import_close", rule);
	soft_rules(NULL, NULL);
	is(hetmem_import_close(hm, q), again, "%s: once more", rule);
	hetmem_free(res, p, 0, HOST);
	hetmem_resource_destroy(res);
	nothing_left("import", rule);
}

int main(void)
{
	static const struct {
		const char *spec;
		const char *call;
	} rows[] = {
		{ "device", "cuMemFree" },
		{ "managed", "cuMemFree" },
		{ "managed", "cuEventDestroy" },
		{ "pinned", "cuMemHostUnregister" },
		{ "registered", "cuMemHostRegister" },
		{ "registered", "cuMemHostUnregister" },
		{ "async", "cuMemFreeAsync" },
		{ "pool(device)", "cuMemFree" },
		{ "pool(vmm)", "cuEventDestroy" },
		{ "pool(vmm)", "cuMemUnmap" },
		{ "pool(vmm)", "cuMemRelease" },
		{ "pool(vmm)", "cuMemAddressFree" },
		{ "pool(async)", "cuMemFreeAsync" },
	};
	unsigned int nth;
	size_t i;

	setenv("HETMEM_SOFT_DEBUG", "1", 1);
	out = mkstemp(path);
	need(out >= 0, "a file");
	unlink(path);
	for (i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		for (nth = 1; nth <= 3; nth++)
			destroy(rows[i].spec, rows[i].call, nth);
	asleep("cuMemMap:1", true, false);
	asleep("cuMemMap:3", true, false);
	asleep("cuMemSetAccess:2", true, false);
	asleep("cuMemCreate:2", true, false);
	asleep("cuMemUnmap:2", false, true);
	asleep("cuMemRelease:2", false, true);
	for (nth = 0; nth <= 10; nth++)
		moved(nth);
	import("cuCtxGetCurrent:1", -EIO, 0);
	import("cuMemUnmap:1", 0, -EINVAL);
	import("cuMemRelease:1", 0, -EINVAL);
	return tap_end();
}
