// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What a spec's parameters come to when it is made: what the pool was told,
 * what the driver is asked for, what retry() does, in which order log() writes.
 */
#include <limits.h>
#include <sys/resource.h>

#include "provider/vmm.h"
#include "adaptor/adaptor.h"
#include "pool/pool_impl.h"
#include "by_spec.h"

#define MIB	((size_t)1 << 20)
#define HOST	HETMEM_STREAM_HOST

static struct hm_driver real;
static size_t largest, smallest;
static unsigned int created;
static bool rdma;
static cuuint64_t threshold;
static size_t pool_max;

static CUresult create(CUmemGenericAllocationHandle *handle, size_t size,
		       const CUmemAllocationProp *prop,
		       unsigned long long flags)
{
	if (size > largest)
		largest = size;
	if (size < smallest)
		smallest = size;
	created++;
	rdma = prop->allocFlags.gpuDirectRDMACapable;
	return real.cuMemCreate(handle, size, prop, flags);
}

static CUresult pool_create(CUmemoryPool *pool, const CUmemPoolProps *props)
{
	pool_max = props->maxSize;
	return real.cuMemPoolCreate(pool, props);
}

static CUresult set_attribute(CUmemoryPool pool, CUmemPool_attribute attribute,
			      void *value)
{
	if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
		threshold = *(cuuint64_t *)value;
	return real.cuMemPoolSetAttribute(pool, attribute, value);
}

static void options(void)
{
	struct hetmem_resource *res =
		make("pool(vmm,max=50%,min=25%,handle=4M,reserve=2G,wait=7ms,decay=9ms,cache=3M,comm=on,streams=retired,check=on,tag=kv)");
	const struct hm_pool_options *opt = &to_pool(res)->opt;
	size_t total;

	need(!drv->cuDeviceTotalMem(&total, hm->devices[0].handle), "a total");
	is(opt->max, total / 2, "max=, of all there is");
	is(opt->min, total / 4, "min=");
	is(opt->handle, 4 * MIB, "handle=");
	is(opt->reserve, 2048 * MIB, "reserve=");
	is(opt->wait_ms, 7, "wait=");
	is(opt->decay_ms, 9, "decay=");
	is(opt->cache, 3 * MIB, "cache=");
	ok(opt->comm && opt->retired && opt->check, "comm=, streams=, check=");
	ok(!strcmp(opt->tag, "kv"), "tag=");
	hetmem_resource_destroy(res);
	res = make("pool(vmm,wait=0s)");
	is(to_pool(res)->opt.wait_ms, HM_POOL_NO_WAIT, "wait=0s: not at all");
	hetmem_resource_destroy(res);
	res = make("pool(vmm,wait=100us,decay=1ns)");
	is(to_pool(res)->opt.wait_ms, 1, "wait=: a little is not nothing");
	is(to_pool(res)->opt.decay_ms, 1, "decay=, too");
	hetmem_resource_destroy(res);
	res = make("pool(vmm,wait=9999999s,decay=9999999s)");
	ok(to_pool(res)->opt.wait_ms == UINT_MAX - 1 &&
	   to_pool(res)->opt.decay_ms == UINT_MAX - 1,
	   "and much is not little");
	hetmem_resource_destroy(res);
	res = make("device-pool(tag='a\"b',handle=4M)");
	ok(!strcmp(to_pool(res)->opt.tag, "a\"b") &&
	   to_pool(res)->opt.handle == 4 * MIB, "what a name passes on");
	hetmem_resource_destroy(res);
}

/* What only shows when it is made is said of a place in the spec, too. */
static void places(void)
{
	static const struct {
		const char *spec;
		const char *where;
	} wrong[] = {
		{ "stats(pool(vmm,handle=4K))", "spec: character 7, at \"pool(" },
		{ "stats(device-pool(min=2M,max=1M))",
		  "spec: character 7, at \"device-pool(" },
		{ "fallback(host,limit(host,max=1%))",
		  "spec: character 15, at \"limit(" },
		{ "pool(pinned(node=1000))",
		  "spec: character 6, at \"pinned(" },
	};
	struct hetmem_resource *res;
	unsigned int i;

	for (i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		const char *text;
		int err = hetmem_resource_create(hm, wrong[i].spec, &res);

		ok(err == -EINVAL && !strncmp(hetmem_last_error(),
					      wrong[i].where,
					      strlen(wrong[i].where)),
		   "%s: %s", wrong[i].spec, hetmem_last_error());
		setenv("HETMEM_RESOURCE", wrong[i].spec, 1);
		err = hetmem_resource_create(hm, NULL, &res);
		text = hetmem_last_error();
		ok(err == -EINVAL && !strncmp(text, "HETMEM_RESOURCE: ", 17) &&
		   !strncmp(text + 17, wrong[i].where, strlen(wrong[i].where)),
		   "from the environment: %s", text);
		unsetenv("HETMEM_RESOURCE");
	}
	is(hetmem_resource_create(hm, "pool(vmm(device=9))", &res), -ENODEV,
	   "what this machine lacks is no mistake of the spec");
	ok(!strstr(hetmem_last_error(), "character"), "%s",
	   hetmem_last_error());
}

/* What the pool asks the driver for as it grows. */
static void handles(void)
{
	struct hetmem_resource *res;
	void *p[20];
	int i, j;

	for (i = 0; i < 2; i++) {
		res = make(i ? "pool(vmm)" : "pool(vmm,handle=4M)");
		largest = 0;
		smallest = SIZE_MAX;
		rdma = false;
		for (j = 0; j < 20; j++)
			p[j] = get(res, (j == 10 ? 100 : 7) * MIB, HOST);
		for (j = 0; j < 20; j++)
			hetmem_free(res, p[j], 0, HOST);
		if (i)
			ok(smallest < largest, "handles of several sizes: %zu to %zu",
			   smallest, largest);
		else
			ok(smallest == 4 * MIB && largest == 4 * MIB,
			   "handle=: all have that size: %zu to %zu", smallest,
			   largest);
		ok(rdma, "which a network card may reach");
		hetmem_resource_destroy(res);
	}
}

/* Handles that @spec asks for until 32 blocks of 31 MiB are there. */
static unsigned int handles_of(const char *spec)
{
	struct hetmem_resource *res = make(spec);
	void *p[32];
	int i;

	created = 0;
	for (i = 0; i < 32; i++)
		p[i] = get(res, 31 * MIB, HOST);
	for (i = 0; i < 32; i++)
		hetmem_free(res, p[i], 0, HOST);
	hetmem_resource_destroy(res);
	return created;
}

static void prefer(void)
{
	unsigned int memory = handles_of("pool(vmm,prefer=memory)");
	unsigned int time = handles_of("pool(vmm,prefer=time)");

	ok(memory == handles_of("pool(vmm)"), "prefer=memory is the default");
	ok(2 * time < memory, "prefer=time: %u handles, not %u", time, memory);
}

/* A stream keeps no more than it may. */
static void cache(void)
{
	struct hetmem_resource *res = make("pool(vmm,cache=1M)");
	struct pool *pool = to_pool(res);
	uint64_t most = 0;
	unsigned int s;
	void *p[64];
	int i;

	for (i = 0; i < 64; i++)
		p[i] = get(res, 64 << 10, NULL);
	for (i = 0; i < 64; i++) {
		hetmem_free(res, p[i], 64 << 10, NULL);
		for (s = 0; s < pool->order.nr; s++)
			if (stream_at(pool, s)->cached > most)
				most = stream_at(pool, s)->cached;
	}
	ok(most > 512 << 10 && most <= MIB, "cache=: %llu bytes at most",
	   (unsigned long long)most);
	hetmem_resource_destroy(res);
}

static void async(void)
{
	size_t total;

	need(!drv->cuDeviceTotalMem(&total, hm->devices[0].handle), "a total");
	hetmem_resource_destroy(make("async"));
	ok(threshold == UINT64_MAX && !pool_max, "async: keeps all there is");
	hetmem_resource_destroy(make("async(threshold=64M,max=25%)"));
	is(threshold, 64 * MIB, "async: threshold=");
	is(pool_max, total / 4, "async: max=");
	hetmem_resource_destroy(make("async(threshold=0)"));
	ok(threshold <= 1, "async: threshold=0 keeps nothing");
}

static long faults(int who)
{
	struct rusage usage;

	getrusage(who, &usage);
	return usage.ru_minflt;
}

static void pinned(void)
{
	struct hetmem_resource *res;
	long all, mine;

	res = make("pinned(threads=1)");
	all = faults(RUSAGE_SELF);
	mine = faults(RUSAGE_THREAD);
	hetmem_free(res, get(res, 64 * MIB, HOST), 0, HOST);
	all = faults(RUSAGE_SELF) - all;
	mine = faults(RUSAGE_THREAD) - mine;
	ok(mine >= 32 && mine > all * 3 / 4,
	   "pinned: threads=1: the caller makes the pages: %ld of %ld", mine,
	   all);
	hetmem_resource_destroy(res);
	is(hetmem_resource_create(hm, "pinned(node=1000)", &res), -EINVAL,
	   "pinned: node=");
}

/* A resource whose calls are counted, and written down before they are made. */
static unsigned int allocs, polls, trims;
static int fails_with = -ENOMEM;
static struct hetmem_resource *logged;
static char block[16];

static int fake_alloc(struct hetmem_resource *self, size_t size, size_t align,
		      hetmem_stream stream, void **ptr)
{
	(void)self;
	(void)size;
	(void)align;
	allocs++;
	if (!logged)
		return hm_error(fails_with, "there is none");
	hetmem_log_edge(logged, HETMEM_EDGE_RECORD, (void *)1, stream);
	*ptr = block;
	return 0;
}

static int fake_free(struct hetmem_resource *self, void *ptr, size_t *size,
		     hetmem_stream stream)
{
	(void)self;
	(void)ptr;
	(void)size;
	return hetmem_log_edge(logged, HETMEM_EDGE_RECORD, (void *)2, stream);
}

static int fake_ctl(struct hetmem_resource *self, enum hm_ctl op, void *arg)
{
	(void)self;
	(void)arg;
	polls += op == HM_CTL_POLL;
	trims += op == HM_CTL_TRIM;
	return -EOPNOTSUPP;
}

static void fake_destroy(struct hetmem_resource *self)
{
	(void)self;
}

static const struct hm_resource_ops fake_ops = {
	.name = "fake", .alloc = fake_alloc, .free = fake_free,
	.ctl = fake_ctl, .destroy = fake_destroy,
};

static void retry(void)
{
	struct hetmem_resource fake = { .ops = &fake_ops, .hm = hm };
	const struct hm_retry_options options = {
		.times = 3, .wait_ns = 20000000,
	};
	struct hetmem_resource *res;
	struct timespec from, to;
	void *p;

	need(!hm_retry_create(&fake, &options, &res), "retry");
	clock_gettime(CLOCK_MONOTONIC, &from);
	is(hetmem_alloc(res, 1, 0, HOST, &p), -ENOMEM, "retry: in vain");
	clock_gettime(CLOCK_MONOTONIC, &to);
	is(allocs, 4, "retry: times=");
	ok(polls == 3 && trims == 3, "retry: takes back what is done, gives back what is cached");
	ok((to.tv_sec - from.tv_sec) * 1000000000LL + to.tv_nsec -
	   from.tv_nsec >= 60000000, "retry: wait=");
	hm_resource_put(res);
}

/* Only who has no memory is passed over: what is wrong is wrong for all. */
static void fallback(void)
{
	struct hetmem_resource fake = { .ops = &fake_ops, .hm = hm };
	struct hetmem_resource *up[2] = { &fake, make("pool(host)") }, *res;
	void *p = NULL;

	need(!hm_fallback_create(up, 2, &res), "a fallback");
	fails_with = -EBUSY;
	is(hetmem_alloc(res, 1, 0, HOST, &p), -EBUSY, "fallback: an error");
	ok(!p, "fallback: is none of the second's");
	fails_with = -ENOMEM;
	is(hetmem_alloc(res, 1, 0, HOST, &p), 0, "fallback: no memory is");
	hetmem_free(res, p, 1, HOST);
	hm_resource_put(res);
}

/* No address is given out in a log while it is in use there. */
static void log_order(void)
{
	struct hetmem_resource fake = { .ops = &fake_ops, .hm = hm };
	char path[] = "/tmp/hetmem-log-XXXXXX", text[2048] = "";
	const char *made, *known, *gone, *freed;
	int fd = mkstemp(path);
	void *p = NULL;

	need(!hm_log_create(&fake, path, true, &logged), "a log");
	is(hetmem_alloc(logged, 1, 0, HOST, &p), 0, "log: a block");
	is(hetmem_free(logged, p, 1, HOST), 0, "log: freed");
	hm_resource_put(logged);
	need(read(fd, text, sizeof(text) - 1) > 0, "the log");
	made = strstr(text, ",record,0x1,");
	known = strstr(text, ",allocate,");
	gone = strstr(text, ",free,");
	freed = strstr(text, ",record,0x2,");
	ok(made && known && gone && freed, "log: four rows");
	ok(made < known && known < gone, "log: allocations when they were made");
	ok(gone < freed, "log: frees before they are");
	close(fd);
	unlink(path);
}

/* What is freed has another poison than what is fresh. */
static void poison(void)
{
	struct hetmem_resource *res = make("guard(pool(host))");
	unsigned char *p = get(res, 3000, HOST);
	CUstream s;

	hetmem_free(res, p, 3000, HOST);
	ok(all_bytes(p, 0xdd, 3000), "guard: poison in what was freed");
	hetmem_resource_destroy(res);
	need(!drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "a stream");
	res = make("guard(pool(device))");
	p = get(res, 3000, s);
	drv->cuStreamSynchronize(s);
	ok(all_bytes(p, 0xcd, 3000), "guard: on the device, fresh");
	hetmem_free(res, p, 3000, s);
	drv->cuStreamSynchronize(s);
	ok(all_bytes(p, 0xdd, 3000), "guard: and freed");
	hetmem_resource_destroy(res);
	drv->cuStreamDestroy(s);
}

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "1G", 1);
	open_soft("");
	real = hm->driver;
	hm->driver.cuMemCreate = create;
	hm->driver.cuMemPoolCreate = pool_create;
	hm->driver.cuMemPoolSetAttribute = set_attribute;
	options();
	places();
	handles();
	prefer();
	cache();
	async();
	pinned();
	retry();
	fallback();
	log_order();
	poison();
	close_soft();
	return tap_end();
}
