// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What each adaptor does beyond what every resource does (conformance.c):
 * over pools of host and device memory, with the soft driver in check mode.
 */
#include <fcntl.h>
#include <sys/mman.h>

#include "alloc_with.h"
#include "adaptor/adaptor.h"
#include "block_of.h"
#include "by_spec.h"

#define KB	((size_t)1 << 10)
#define MB	((size_t)1 << 20)
#define HOST	HETMEM_STREAM_HOST

static CUstream a, b;

static void counters(struct hetmem_resource *res, const char *what,
		     uint64_t value, uint64_t peak, uint64_t total)
{
	struct hetmem_counters c = { .size = sizeof(c) };

	hetmem_counters(res, &c);
	if (!ok(c.bytes.value == value && c.bytes.peak == peak &&
		c.bytes.total == total, "stats: %s", what))
		printf("# %llu %llu %llu\n", (long long)c.bytes.value,
		       (long long)c.bytes.peak, (long long)c.bytes.total);
}

static void test_statistics(void)
{
	struct hetmem_resource *res = make("stats(pool(host))");
	struct hetmem_counters c = { .size = sizeof(c) };
	void *p = get(res, 100, HOST), *q = get(res, 50, HOST), *r;
	int i;

	counters(res, "two", 150, 150, 150);
	hetmem_free(res, q, 50, HOST);
	counters(res, "one was freed", 100, 150, 150);
	is(hetmem_counters_push(res), 0, "stats: push");
	counters(res, "from nothing", 0, 0, 0);
	r = get(res, 30, HOST);
	counters(res, "since the push", 30, 30, 30);
	hetmem_free(res, p, 0, HOST);
	counters(res, "below where it was", -70ULL, 30, 30);
	is(hetmem_counters_pop(res, &c), 0, "stats: pop");
	ok(c.bytes.value == -70ULL && c.blocks.total == 1, "stats: what it read");
	counters(res, "the outer ones went on", 30, 150, 180);
	is(hetmem_counters_pop(res, NULL), -ENOENT, "stats: nothing is pushed");
	for (i = 0; i < 64; i++)
		hetmem_counters_push(res);
	is(hetmem_counters_push(res), -ENOSPC, "stats: 64 are pushed");
	hetmem_free(res, r, 30, HOST);
	is(hetmem_resource_destroy(res), 0, "stats: nothing is live");
	res = make("pool(host)");
	is(hetmem_counters(res, &c), -EOPNOTSUPP, "a pool has no counters");
	hetmem_resource_destroy(res);
}

static void test_limit(void)
{
	struct hetmem_resource *res = make("limit(pool(host),max=1000)");
	void *p = get(res, 600, HOST), *q = NULL;

	is(hetmem_alloc(res, 401, 0, HOST, &q), -ENOMEM, "limit: one too many");
	ok(strstr(hetmem_last_error(), "1000"), "limit: says so");
	q = get(res, 400, HOST);
	ok(q, "limit: to the last byte");
	hetmem_free(res, p, 0, HOST);
	p = get(res, 600, HOST);
	ok(p, "limit: what was freed is there again, its size not told");
	hetmem_free(res, p, 600, HOST);
	hetmem_free(res, q, 400, HOST);
	hetmem_resource_destroy(res);
	is(hetmem_resource_create(hm, "limit(pool(host),max=50%)", &res),
	   -EINVAL, "limit: a percentage of what has no total");
}

static int asked;
static void *spare;
static struct hetmem_resource *spare_res;

/* Gives back what the program can do without; nothing, if there is none. */
static int free_spare(void *data, size_t size, unsigned int attempt)
{
	asked++;
	ok(data == &asked && size == 700 && attempt == 1,
	   "retry: what the callback is told");
	if (!spare)
		return 0;
	hetmem_free(spare_res, spare, 0, HOST);
	spare = NULL;
	return 1;
}

static void test_retry(void)
{
	struct hetmem_resource *res =
		make("retry(limit(pool(host),max=1000),times=3)");
	void *p = NULL;

	is(hetmem_alloc(res, 1001, 0, HOST, &p), -ENOMEM, "retry: for nothing");
	spare_res = res;
	spare = get(res, 500, HOST);
	is(hetmem_on_failure(res, free_spare, &asked), 0, "retry: a callback");
	is(hetmem_alloc(res, 700, 0, HOST, &p), 0, "retry: it helps");
	is(asked, 1, "retry: it was asked once");
	is(hetmem_alloc(res, 700, 0, HOST, &spare), -ENOMEM, "retry: it gives up");
	is(asked, 2, "retry: and is not asked again");
	is(hetmem_on_failure(res, NULL, NULL), 0, "retry: no callback");
	hetmem_free(res, p, 700, HOST);
	hetmem_resource_destroy(res);
	res = make("pool(host)");
	is(hetmem_on_failure(res, free_spare, &asked), -EOPNOTSUPP,
	   "a pool asks nobody");
	hetmem_resource_destroy(res);
}

static void test_fallback(void)
{
	struct hetmem_resource *res =
		make("fallback(limit(pool(host),max=1000),limit(pool(host),max=5000))");
	void *p = get(res, 800, HOST), *q = get(res, 4000, HOST), *r = NULL;
	struct hm_ctl_owns block;

	ok(p && q, "fallback: the second has what the first has not");
	is(hetmem_alloc(res, 2000, 0, HOST, &r), -ENOMEM, "fallback: nobody has");
	is(block_of(res, (char *)q + 3999, &block), 0, "fallback: whose");
	ok(block.base == q, "fallback: where it begins");
	is(hetmem_free(res, q, 4000, HOST), 0, "fallback: home to the second");
	is(hetmem_free(res, p, 800, HOST), 0, "fallback: home to the first");
	is(hetmem_free(res, p, 800, HOST), -EINVAL, "fallback: once");
	hetmem_resource_destroy(res);
}

/* A resource without memory, that counts searches for what is around a pointer. */
static unsigned int searches;

static int poor_alloc(struct hetmem_resource *self, size_t size, size_t align,
		      hetmem_stream stream, void **ptr)
{
	(void)self;
	(void)size;
	(void)align;
	(void)stream;
	(void)ptr;
	return -ENOMEM;
}

static int poor_ctl(struct hetmem_resource *self, enum hm_ctl op, void *arg)
{
	const struct hm_ctl_owns *owns = arg;

	(void)self;
	searches += op == HM_CTL_OWNS && !owns->first;
	return op == HM_CTL_OWNS ? -ENOENT : -EOPNOTSUPP;
}

static void poor_destroy(struct hetmem_resource *self)
{
	(void)self;
}

/* Who is not the owner is not made to look through all it has. */
static void test_search(void)
{
	static const struct hm_resource_ops ops = {
		.name = "poor", .alloc = poor_alloc, .ctl = poor_ctl,
		.destroy = poor_destroy,
	};
	struct hetmem_resource poor = { .ops = &ops, .hm = hm, .device = 0 };
	struct hetmem_resource *res, *up[2] = { &poor, make("pool(vmm)") };
	struct hm_ctl_owns block;
	void *p;

	need(!hm_fallback_create(up, 2, &res), "a fallback");
	p = get(res, 1000, a);
	hetmem_record_stream(res, p, b);
	hetmem_grow(res, p, 1001, a);
	is(hetmem_free(res, p, 1001, a), 0, "search: home");
	is(hetmem_free(res, p, 1001, a), -EINVAL, "search: once");
	is(searches, 0, "search: none, for what begins there");
	p = get(res, 1000, a);
	is(block_of(res, (char *)p + 1, &block), 0, "search: interior");
	is(searches, 1, "search: one");
	hetmem_free(res, p, 0, a);
	hm_resource_put(res);
}

static void test_binning(void)
{
	struct hetmem_resource *res =
		make("binning(limit(pool(host),max=100),limit(pool(host),max=1000),pool(host),at=100/1000)");
	void *p = get(res, 100, HOST), *q = get(res, 1000, HOST), *r;

	ok(p && q, "binning: at its bound");
	is(hetmem_alloc(res, 1, 0, HOST, &r), -ENOMEM, "binning: first is full");
	is(hetmem_alloc(res, 101, 0, HOST, &r), -ENOMEM, "binning: second, too");
	r = get(res, 1001, HOST);
	ok(r, "binning: the last has no bound");
	is(hetmem_free(res, q, 0, HOST) || hetmem_free(res, r, 0, HOST) ||
	   hetmem_free(res, p, 0, HOST), 0, "binning: home");
	hetmem_resource_destroy(res);
	is(hetmem_resource_create(hm, "binning(pool(host),pool(host),at=2/1)",
				  &res), -EINVAL, "binning: two bounds for two");
	is(hetmem_resource_create(hm, "binning(pool(host),pool(host),pool(host),at=2/1)",
				  &res), -EINVAL, "binning: bounds descend");
}

static void test_align(void)
{
	struct hetmem_resource *res =
		make("align(pool(host),align=64K,min=10000)");
	void *small[8], *large[8];
	uintptr_t bits = 0, small_bits = 0;
	int i;

	for (i = 0; i < 8; i++) {
		small[i] = get(res, 9999, HOST);
		large[i] = get(res, 10000, HOST);
		small_bits |= (uintptr_t)small[i];
		bits |= (uintptr_t)large[i];
	}
	is(bits % (64 * KB), 0, "align: large ones");
	ok(small_bits % (64 * KB), "align: small ones are as they come");
	for (i = 0; i < 8; i++) {
		hetmem_free(res, small[i], 9999, HOST);
		hetmem_free(res, large[i], 10000, HOST);
	}
	hetmem_resource_destroy(res);
	is(hetmem_resource_create(hm, "align(pool(host),align=3K)", &res),
	   -EINVAL, "align: not a power of two");
}

/* What the library writes on stderr in here is not for people. */
static int quiet(int saved)
{
	int null = open("/dev/null", O_WRONLY);

	if (saved < 0) {
		saved = dup(STDERR_FILENO);
		dup2(null, STDERR_FILENO);
	} else {
		dup2(saved, STDERR_FILENO);
		close(saved);
		saved = -1;
	}
	close(null);
	return saved;
}

static void damage(struct hetmem_resource *res, const char *what, long at,
		   hetmem_stream s, const char *says)
{
	char *p = get(res, 1000, s);
	int saved;

	if (s == HOST)
		p[at] = 1;
	else
		drv->cuMemsetD8Async((uintptr_t)p + at, 1, 1, s);
	saved = quiet(-1);
	is(hetmem_free(res, p, 1000, s), 0, "guard: %s: freed", what);
	if (s != HOST)
		drv->cuStreamSynchronize(s);
	quiet(saved);
	is(hetmem_poll(res), -EFAULT, "guard: %s: found", what);
	if (!ok(strstr(hetmem_last_error(), says), "guard: %s: %s", what, says))
		printf("# %s\n", hetmem_last_error());
	is(hetmem_poll(res), 0, "guard: %s: told once", what);
}

static void test_guard(void)
{
	struct hetmem_resource *res = make("guard(pool(host))");
	unsigned char *p = get(res, 1000, HOST), host[2];
	struct hm_ctl_owns block;

	ok(all_bytes(p, 0xcd, 1000), "guard: poison in what is fresh");
	is(block_of(res, p - 1, &block), -ENOENT, "guard: a zone is nobody's");
	is(block_of(res, p + 1000, &block), -ENOENT, "guard: neither");
	block_of(res, p + 999, &block);
	ok(block.base == p && block.size == 1000, "guard: exactly");
	is(hetmem_grow(res, p, 2000, HOST), -EOPNOTSUPP, "guard: no room to grow");
	hetmem_free(res, p, 1000, HOST);
	is(hetmem_poll(res), 0, "guard: nothing was wrong");
	damage(res, "before", -1, HOST, "byte 1 before");
	damage(res, "long before", -512, HOST, "byte 512 before");
	damage(res, "behind", 1000, HOST, "byte 1 after");
	damage(res, "far behind", 1511, HOST, "byte 512 after");
	hetmem_resource_destroy(res);

	res = make("guard(pool(device))");
	p = get(res, 1000, a);
	drv->cuMemcpyDtoHAsync(host, (uintptr_t)p, 1, a);
	drv->cuMemcpyDtoHAsync(host + 1, (uintptr_t)p + 999, 1, a);
	drv->cuStreamSynchronize(a);
	ok(all_bytes(host, 0xcd, 2), "guard: poison on the device");
	hetmem_free(res, p, 1000, a);
	drv->cuStreamSynchronize(a);
	is(hetmem_poll(res), 0, "guard: nothing was wrong there");
	damage(res, "device, before", -1, a, "byte 1 before");
	damage(res, "device, behind", 1000, b, "byte 1 after");
	hetmem_resource_destroy(res);
}

static void test_fixed(void)
{
	struct hetmem_resource *res =
		make("fixed(pool(device),size=64K,count=2)");
	void *p = get(res, 64 * KB, a), *q = get(res, 1, a), *r = NULL;
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };

	ok(p && q && p != q, "fixed: two");
	is(hetmem_alloc(res, 1, 0, a, &r), -ENOMEM, "fixed: not three");
	is(hetmem_free(res, p, 0, a), 0, "fixed: freed");
	is(hetmem_alloc(res, 64 * KB + 1, 0, a, &r), -ENOMEM, "fixed: not larger");
	/* On another stream: behind an event, which check mode looks at. */
	drv->cuMemsetD8Async((uintptr_t)q, 1, 64 * KB, a);
	r = get(res, 1000, b);
	ok(r == p, "fixed: the same again");
	drv->cuMemsetD8Async((uintptr_t)r, 2, 64 * KB, b);
	is(hetmem_record_stream(res, q, b), 0, "fixed: used on another stream");
	drv->cuMemsetD8Async((uintptr_t)r, 3, 64 * KB, b);
	hetmem_free(res, q, 1, HETMEM_STREAM_UNKNOWN);
	q = get(res, 5, HOST);
	ok(q, "fixed: for the host, which waits");
	hetmem_resource_stats(res, &stats);
	ok(stats.live == 2 && stats.requested == 1005 &&
	   stats.reserved >= 128 * KB, "fixed: what it has");
	hetmem_free(res, q, 5, HOST);
	hetmem_free(res, r, 1000, b);
	is(hetmem_resource_destroy(res), 0, "fixed: nothing is live");
	is(hetmem_resource_create(hm, "fixed(pool(device),size=0,count=1)", &res),
	   -EINVAL, "fixed: of no size");
	is(hetmem_resource_create(hm, "fixed(pool(device),size=1T,count=9)", &res),
	   -ENOMEM, "fixed: more than there is");
	is(hetmem_resource_create(hm, "fixed(pool(host),size=1M,count=2,comm=on)",
				  &res), -EOPNOTSUPP, "fixed: comm=on of host memory");
}

/* Two do not write one file, of which there is still what was. */
static void test_two_logs(const char *path, int fd)
{
	struct hetmem_resource *res, *second = NULL;
	char spec[160], numbered[80] = "";
	off_t size;

	snprintf(spec, sizeof(spec), "log(pool(host),file=%s)", path);
	res = make(spec);
	is(hetmem_resource_create(hm, spec, &second), -EBUSY,
	   "log: of a file that is written");
	ok(strstr(hetmem_last_error(), "%n"), "log: says what helps");
	hetmem_free(res, get(res, 9, HOST), 9, HOST);
	hetmem_resource_destroy(res);
	size = lseek(fd, 0, SEEK_END);
	ok(size > 60 && size < 200, "log: is whole");
	snprintf(spec, sizeof(spec), "log(pool(host),file=%s-%%n)", path);
	res = make(spec);
	second = make(spec);
	hetmem_resource_destroy(res);
	hetmem_resource_destroy(second);
	for (size = 1; size < 9; size++) {
		snprintf(numbered, sizeof(numbered), "%s-%d", path, (int)size);
		if (!unlink(numbered))
			break;
	}
	snprintf(numbered, sizeof(numbered), "%s-%d", path, (int)size + 1);
	is(unlink(numbered), 0, "log: one after the other has a number");
}

static void test_log(void)
{
	char text[4096] = "", path[] = "/tmp/hetmem-log-XXXXXX", spec[160];
	struct hetmem_resource *res;
	int fd = mkstemp(path);
	void *p, *q;

	snprintf(spec, sizeof(spec), "log(limit(pool(device),max=1000),file=%s,full=on)",
		 path);
	res = make(spec);
	p = get(res, 700, a);
	hetmem_alloc(res, 500, 0, a, &q);
	hetmem_record_stream(res, p, b);
	hetmem_log_edge(res, HETMEM_EDGE_RECORD, (void *)7, b);
	hetmem_log_edge(res, HETMEM_EDGE_WAIT, (void *)7, a);
	hetmem_log_edge(res, HETMEM_EDGE_SYNC, NULL, HOST);
	hetmem_free(res, p, 700, a);
	hetmem_stream_retire(res, b);
	is(hetmem_poll(res), 0, "log: could be written");
	hetmem_resource_destroy(res);
	ok(read(fd, text, sizeof(text) - 1) > 100, "log: is there");
	ok(!strncmp(text, "Thread,Time,Action,Pointer,Size,Stream\n", 39) &&
	   strstr(text, ",allocate,") && strstr(text, ",700,") &&
	   strstr(text, ",allocate failure,0x0,500,") &&
	   strstr(text, ",record_stream,") && strstr(text, ",record,0x7,0,") &&
	   strstr(text, ",wait,0x7,0,") && strstr(text, ",sync,0x0,0,1844") &&
	   strstr(text, ",free,") && strstr(text, ",retire,0x0,0,"),
	   "log: every row");
	test_two_logs(path, fd);
	close(fd);
	unlink(path);
	is(hetmem_resource_create(hm, "log(pool(host),file=/nonexistent/x)", &res),
	   -ENOENT, "log: a file that cannot be");
	res = make("log(pool(host),file=/dev/full)");
	hetmem_free(res, get(res, 9, HOST), 9, HOST);
	is(hetmem_log_edge(res, HETMEM_EDGE_WAIT, NULL, a), -EOPNOTSUPP,
	   "log: no edges without full=on");
	hetmem_resource_destroy(res);
}

static void test_current(void)
{
	struct hetmem_resource *mine = make("pool(device)"), *r = NULL, *old;

	is(hetmem_resource_current(hm, 0, &r), 0, "current: the library's own");
	ok(r && r != mine, "current: it is one");
	is(hetmem_resource_set_current(hm, 0, mine, &old), 0, "current: set");
	ok(!old, "current: none was set");
	hetmem_resource_current(hm, 0, &r);
	ok(r == mine, "current: it is mine");
	is(hetmem_resource_set_current(hm, 0, NULL, &old), 0, "current: reset");
	ok(old == mine, "current: mine comes back");
	is(hetmem_resource_current(hm, -1, &r), 0, "current: the host's");
	is(hetmem_resource_current(hm, 99, &r), -ENODEV, "current: no device");
	hetmem_resource_destroy(mine);
	setenv("HETMEM_RESOURCE", "stats(pool(device))", 1);
	is(hetmem_resource_create(hm, NULL, &r), 0, "create: from the environment");
	is(hetmem_counters_push(r), 0, "create: as it says");
	hetmem_resource_destroy(r);
	setenv("HETMEM_RESOURCE", "frob", 1);
	is(hetmem_resource_create(hm, NULL, &r), -EINVAL, "create: nonsense there");
	ok(strstr(hetmem_last_error(), "HETMEM_RESOURCE: ") &&
	   strstr(hetmem_last_error(), "character 1"), "create: says where");
	unsetenv("HETMEM_RESOURCE");
	is(hetmem_resource_create(hm, "pool(vmm(device=9))", &r), -ENODEV,
	   "create: no such device");
	is(hetmem_resource_create(hm, "device-pool(device=9)", &r), -ENODEV,
	   "create: by name, neither");
}

/* Where a block of the current resource of device 1 is, by the environment. */
static void test_current_device(const char *spec, int want)
{
	struct hetmem_params params = {
		.size = sizeof(params), .driver = "soft", .module_path = "",
	};
	struct hetmem_resource *r = NULL;
	struct hetmem *other;
	int device = -1;
	void *p;

	setenv("HETMEM_RESOURCE", spec, 1);
	need(!hetmem_open(&other, &params), "a library");
	is(hetmem_resource_current(other, 1, &r), 0, "current of 1: %s", spec);
	p = r ? get(r, MB, HOST) : NULL;
	is(drv->cuPointerGetAttribute(&device,
				      CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
				      (uintptr_t)p), 0, "current of 1: a block");
	is(device, want, "current of 1: of device %d", want);
	hetmem_free(r, p, MB, HOST);
	hetmem_close(other);
	unsetenv("HETMEM_RESOURCE");
}

/* Bounce buffers that a transport registers once. */
static void test_bounce(void)
{
	struct hetmem_resource *res =
		make("fixed(pool(vmm),size=256K,count=8,comm=on)");
	struct hetmem_segment seg[4];
	void *p[8], *q;
	int i, same = 0;

	for (i = 0; i < 8; i++)
		p[i] = get(res, 256 * KB, a);
	is(hetmem_segments(res, p[7], 256 * KB, seg, 4), 1,
	   "bounce: in one handle");
	for (i = 0; i < 8; i++)
		hetmem_free(res, p[i], 0, a);
	drv->cuStreamSynchronize(a);
	is(hetmem_trim(res, 0, NULL), 0, "bounce: trim");
	q = get(res, 256 * KB, a);
	for (i = 0; i < 8; i++)
		same += p[i] == q;
	is(same, 1, "bounce: where it was");
	hetmem_free(res, q, 0, a);
	hetmem_resource_destroy(res);
}

/* The default is memory of the device, whatever the driver lacks. */
static void test_default(void)
{
	struct hetmem_resource *res = make("device-pool(max=50%)");
	CUresult (*create)(CUmemGenericAllocationHandle *handle, size_t size,
			   const CUmemAllocationProp *prop,
			   unsigned long long flags) = drv->cuMemCreate;
	unsigned int managed = 1;
	char text[64];
	size_t total;
	void *p = NULL, *none;

	need(!drv->cuDeviceTotalMem(&total, hm->devices[0].handle), "a total");
	snprintf(text, sizeof(text), "of at most %zu", total / 2);
	is(hetmem_alloc(res, total / 2 + MB, 0, a, &p), -ENOMEM,
	   "default: max=50%%");
	if (!ok(strstr(hetmem_last_error(), text), "default: of all there is"))
		printf("# %s\n", hetmem_last_error());
	hetmem_resource_destroy(res);

	/* As it is when a driver without it is opened. */
	hm->driver.cuMemCreate = NULL;
	need(!hm_probe_devices(hm), "devices");
	res = make("device-pool");
	p = get(res, 3 * MB, a);
	is(drv->cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED,
				      (uintptr_t)p) || managed, 0,
	   "default: never managed memory");
	is(alloc_reserve(res, MB, 2 * MB, a, &none), -EOPNOTSUPP,
	   "default: regions where there are no handles");
	hetmem_free(res, p, 3 * MB, a);
	hetmem_resource_destroy(res);
	hm->driver.cuMemCreate = create;
	need(!hm_probe_devices(hm), "devices");
}

/* What grows is known to every adaptor above it, before and after. */
static void test_reserve(void)
{
	struct hetmem_resource *res =
		make("stats(limit(fallback(fixed(device,size=4K,count=2),pool(vmm)),max=8M))");
	void *p = NULL, *q = NULL;

	is(alloc_reserve(res, 2 * MB, 64 * MB, a, &p), 0,
	   "reserve: through a stack");
	counters(res, "what was reserved", 2 * MB, 2 * MB, 2 * MB);
	is(hetmem_grow(res, p, 6 * MB, a), 0, "reserve: grows");
	counters(res, "what has grown", 6 * MB, 6 * MB, 6 * MB);
	is(hetmem_grow(res, p, 9 * MB, a), -ENOMEM, "reserve: to the limit");
	is(hetmem_alloc(res, 3 * MB, 0, a, &q), -ENOMEM, "reserve: counted");
	is(hetmem_free(res, p, 6 * MB, a), 0, "reserve: freed as it is");
	is(hetmem_resource_destroy(res), 0, "reserve: nothing is live");
	res = make("guard(pool(vmm))");
	is(alloc_reserve(res, MB, 2 * MB, a, &p), -EOPNOTSUPP,
	   "reserve: not between zones");
	hetmem_resource_destroy(res);
}

int main(void)
{
	setenv("HETMEM_SOFT_CHECK", "1", 0);
	setenv("HETMEM_SOFT_DEVICES", "2", 1);
	open_soft("");
	need(!drv->cuStreamCreate(&a, CU_STREAM_NON_BLOCKING) &&
	     !drv->cuStreamCreate(&b, CU_STREAM_NON_BLOCKING), "streams");
	test_statistics();
	test_limit();
	test_retry();
	test_fallback();
	test_search();
	test_binning();
	test_align();
	test_guard();
	test_fixed();
	test_log();
	test_current();
	test_current_device("", 1);
	test_current_device("stats(device-pool(max=50%))", 1);
	test_current_device("limit(fallback(fixed(device,size=2M,count=2),pool(vmm)),max=1G)", 1);
	test_current_device("pool(async)", 1);
	test_current_device("fallback(pool(vmm(device=0)),pool(vmm))", 0);
	test_bounce();
	test_default();
	test_reserve();
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
	close_soft();
	return tap_end();
}
