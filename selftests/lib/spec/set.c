// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * hetmem_resource_set(): parameters that change while a resource is in use,
 * those that do not, and values that are refused and change nothing.
 */
#include <limits.h>
#include <sys/wait.h>

#include "adaptor/adaptor.h"
#include "by_spec.h"
#include "pool/pool_impl.h"
#include "spec/spec.h"

#define KB	((size_t)1 << 10)
#define MB	((size_t)1 << 20)
#define HOST	HETMEM_STREAM_HOST

static const struct hm_pool_options *opt_of(struct hetmem_resource *res)
{
	while (res->upstream)
		res = res->upstream;
	return &to_pool(res)->opt;
}

static uint64_t reserved(struct hetmem_resource *res)
{
	struct hetmem_resource_stats st = { .size = sizeof(st) };

	need(!hetmem_resource_stats(res, &st), "stats");
	return st.reserved;
}

/* Every parameter, read as by a spec. */
static void test_pool(const char *spec)
{
	struct hetmem_resource *res = make(spec);
	const struct hm_pool_options *opt = opt_of(res);
	uint64_t total = to_pool(res)->provider->total;

	is(hetmem_resource_set(res, "max", "60%"), 0, "%s: max", spec);
	is(opt->max, total * 6 / 10, "of all there is");
	is(hetmem_resource_set(res, "pool.max", "1.5G"), 0, "by its kind");
	is(opt->max, 1536 * MB, "in bytes");
	is(hetmem_resource_set(res, "min", "4M"), 0, "min");
	is(opt->min, 4 * MB, "in bytes");
	is(hetmem_resource_set(res, "wait", "100us"), 0, "wait");
	is(opt->wait_ms, 1, "rounded up");
	is(hetmem_resource_set(res, "wait", "0s"), 0, "no wait");
	is(opt->wait_ms, HM_POOL_NO_WAIT, "as in a spec");
	is(hetmem_resource_set(res, "decay", "7ms"), 0, "decay");
	is(opt->decay_ms, 7, "in milliseconds");
	is(hetmem_resource_set(res, "decay", "0s"), 0, "no decay");
	is(opt->decay_ms, 0, "it is off");
	is(hetmem_resource_set(res, "cache", "1M"), 0, "cache");
	ok(opt->cache == MB && to_pool(res)->cache_max == MB, "in bytes");
	is(hetmem_resource_set(res, "cache", "0"), 0, "no size for it");
	ok(!opt->cache && to_pool(res)->cache_max > MB,
	   "it is chosen, as in a spec");
	hetmem_resource_destroy(res);
}

static void refused(struct hetmem_resource *res, const char *name,
		    const char *value, int err, const char *text)
{
	is(hetmem_resource_set(res, name, value), err, "%s=%s", name, value);
	if (!ok(strstr(hetmem_last_error(), text), "tells %s", text))
		printf("# %s\n", hetmem_last_error());
}

static void test_refused(void)
{
	struct hetmem_resource *res = make("pool(vmm,max=64M,min=2M,wait=5ms)");
	struct hm_pool_options before = *opt_of(res);

	refused(res, "max", "", -EINVAL, "a size like");
	refused(res, "max", "0", -EINVAL, "more than 0");
	refused(res, "max", "101%", -EINVAL, "a percentage");
	refused(res, "max", "-1", -EINVAL, "a size like");
	refused(res, "max", "1 KX", -EINVAL, "a size like");
	refused(res, "max", "99999999999999999999", -EINVAL, "a size like");
	refused(res, "max", "1M", -EINVAL, "min is more than max");
	refused(res, "min", "65M", -EINVAL, "min is more than max");
	refused(res, "wait", "5", -EINVAL, "a time like");
	refused(res, "decay", "soon", -EINVAL, "a time like");
	refused(res, "cache", "50%", -EINVAL, "a size like");
	refused(res, "mx", "1M", -EINVAL, "no parameter 'mx'");
	refused(res, "", "1M", -EINVAL, "no parameter");
	refused(res, "pool.", "1M", -EINVAL, "no parameter");
	refused(res, ".max", "1M", -EINVAL, "no kind");
	refused(res, "pol.max", "1M", -EINVAL, "no kind of resource 'pol'");
	refused(res, "pool.max.max", "1M", -EINVAL, "no parameter");
	refused(res, "averyveryveryveryveryverylongname.max", "1M", -EINVAL,
		"no kind");
	refused(res, "handle", "4M", -EOPNOTSUPP, "does not change");
	refused(res, "comm", "on", -EOPNOTSUPP, "does not change");
	refused(res, "tag", "x", -EOPNOTSUPP, "does not change");
	refused(res, "device", "1", -EOPNOTSUPP, "does not change");
	refused(res, "limit.max", "1M", -EOPNOTSUPP, "nothing in this stack");
	refused(res, "times", "1", -EOPNOTSUPP, "nothing in this stack");
	refused(NULL, "max", "1M", -EINVAL, "res is NULL");
	refused(res, NULL, "1M", -EINVAL, "name is NULL");
	refused(res, "max", NULL, -EINVAL, "value is NULL");
	ok(!memcmp(&before, opt_of(res), sizeof(before)), "nothing changed");
	hetmem_resource_destroy(res);
	res = make("pool(vmm(export=fd))");
	refused(res, "min", "1M", -EINVAL, "no min");
	is(hetmem_resource_set(res, "cache", "1M"), 0, "cache");
	is(to_pool(res)->cache_max, 0, "but there is none");
	hetmem_resource_destroy(res);
	res = make("device");
	refused(res, "max", "1M", -EOPNOTSUPP, "nothing in this stack");
	hetmem_resource_destroy(res);
	res = make("async(max=64M)");
	refused(res, "max", "1M", -EOPNOTSUPP, "nothing in this stack");
	hetmem_resource_destroy(res);
	res = make("fixed(host,size=4K,count=4)");
	refused(res, "size", "8K", -EOPNOTSUPP, "does not change");
	refused(res, "count", "8", -EOPNOTSUPP, "does not change");
	refused(res, "max", "1M", -EOPNOTSUPP, "nothing in this stack");
	hetmem_resource_destroy(res);
}

/* max of a pool: lower, while memory is live and free; higher again. */
static void test_max(const char *spec)
{
	struct hetmem_resource *res = make(spec);
	void *p, *q, *r = NULL;

	p = get(res, 8 * MB, HOST);
	q = get(res, 8 * MB, HOST);
	need(p && q, "two blocks");
	is(hetmem_resource_set(res, "max", "8M"), 0, "%s: max below what is live",
	   spec);
	ok(reserved(res) >= 16 * MB, "takes nothing away");
	is(hetmem_alloc(res, 4 * MB, 0, HOST, &r), -ENOMEM, "nothing new");
	hetmem_free(res, q, 0, HOST);
	is(hetmem_resource_set(res, "max", "9M"), 0, "again, with free memory");
	is(reserved(res), 8 * MB, "it went back");
	is(hetmem_resource_set(res, "max", "32M"), 0, "higher");
	is(hetmem_alloc(res, 16 * MB, 0, HOST, &r), 0, "as much");
	is(hetmem_alloc(res, 16 * MB, 0, HOST, &q), -ENOMEM, "and no more");
	hetmem_free(res, r, 0, HOST);
	hetmem_free(res, p, 0, HOST);
	is(hetmem_resource_set(res, "min", "4M"), 0, "min");
	hetmem_trim(res, 0, NULL);
	ok(reserved(res) >= 4 * MB, "trim leaves it");
	is(hetmem_resource_set(res, "min", "0"), 0, "no min");
	hetmem_trim(res, 0, NULL);
	is(reserved(res), 0, "trim leaves nothing");
	hetmem_resource_destroy(res);
}

/* The largest block of whole MiB that @res has room for. */
static size_t room(struct hetmem_resource *res)
{
	size_t size = 200;
	void *p;

	while (size && hetmem_alloc(res, size * MB, 0, HOST, &p))
		size--;
	if (size)
		hetmem_free(res, p, 0, HOST);
	hetmem_trim(res, 0, NULL);
	return size;
}

/* A limit from outside never lifts max of the spec, or what was set later. */
static void test_within(const char *spec)
{
	struct hetmem_resource *res = make(spec);

	is(hm_resource_set_within(res, 150 * MB), 0, "%s: a limit above max", spec);
	is(room(res), 64, "max stays");
	is(hm_resource_set_within(res, 20 * MB), 0, "one below it");
	is(room(res), 20, "holds");
	is(hm_resource_set_within(res, 40 * MB), 0, "a higher one");
	is(room(res), 40, "replaces it");
	is(hetmem_resource_set(res, "max", "100M"), 0, "another max");
	is(room(res), 100, "ends it");
	is(hm_resource_set_within(res, UINT64_MAX), 0, "no limit");
	is(room(res), 100, "that max stays");
	is(hetmem_resource_set(res, "max", "30M"), 0, "a lower max");
	is(hm_resource_set_within(res, 90 * MB), 0, "a limit above it");
	is(room(res), 30, "it stays");
	hetmem_resource_destroy(res);
}

static void test_within_each(void)
{
	struct hetmem_resource *res =
		make("fallback(pool(vmm,max=32M),pool(pinned,max=64M))");
	void *p, *q, *r;

	is(hm_resource_set_within(res, 128 * MB), 0, "a limit for two pools");
	p = get(res, 64 * MB, HOST);
	q = get(res, 32 * MB, HOST);
	ok(p && q, "both have their memory");
	is(hetmem_alloc(res, 20 * MB, 0, HOST, &r), -ENOMEM, "and each its own max");
	hetmem_free(res, p, 0, HOST);
	hetmem_free(res, q, 0, HOST);
	hetmem_resource_destroy(res);
	res = make("pool(vmm)");
	is(hm_resource_set_within(res, 8 * MB), 0, "without a max");
	is(room(res), 8, "the limit holds");
	is(hm_resource_set_within(res, 150 * MB), 0, "a higher one");
	is(room(res), 150, "is the only one");
	hetmem_resource_destroy(res);
	res = make("device");
	is(hm_resource_set_within(res, MB), -EOPNOTSUPP, "memory without a max");
	hetmem_resource_destroy(res);
}

/* Asleep a pool caches nothing, whatever is set meanwhile. */
static void test_asleep(void)
{
	struct hetmem_resource *res = make("pool(vmm)");
	struct pool *p = to_pool(res);

	hetmem_free(res, get(res, 1000, HOST), 0, HOST);
	is(hetmem_sleep(res, NULL, HETMEM_SLEEP_DISCARD), 0, "asleep");
	is(hetmem_resource_set(res, "cache", "3M"), 0, "cache");
	is(p->cache_max, 0, "nothing is cached yet");
	is(hetmem_wake(res, NULL), 0, "awake");
	is(p->cache_max, 3 * MB, "now it is");
	hetmem_resource_destroy(res);
}

static void test_stack(void)
{
	struct hetmem_resource *res =
		make("stats(retry(limit(pool(vmm,max=64M),max=1M),times=1))");
	void *p = NULL;

	is(hetmem_resource_set(res, "max", "2M"), 0, "the first from the top");
	is(opt_of(res)->max, 64 * MB, "the pool's is what it was");
	p = get(res, 2 * MB, HOST);
	ok(p, "the limit's is higher");
	is(hetmem_resource_set(res, "limit.max", "1M"), 0, "below what is live");
	is(hetmem_alloc(res, 1, 0, HOST, &p), -ENOMEM, "nothing new");
	hetmem_free(res, p, 0, HOST);
	p = get(res, MB, HOST);
	ok(p, "up to it");
	hetmem_free(res, p, 0, HOST);
	is(hetmem_resource_set(res, "limit.max", "50%"), 0, "a percentage");
	is(hetmem_resource_set(res, "pool.max", "32M"), 0, "the pool's");
	is(opt_of(res)->max, 32 * MB, "by its kind");
	is(hetmem_resource_set(res, "times", "0"), 0, "retry's");
	is(hetmem_resource_set(res, "wait", "1ms"), 0, "retry has a wait, too");
	is(opt_of(res)->wait_ms, 0, "the pool's is what it was");
	hetmem_resource_destroy(res);
	res = make("limit(pool(host),max=1M)");
	refused(res, "max", "50%", -EINVAL, "no total");
	hetmem_resource_destroy(res);
	res = make("fixed(pool(vmm,max=64M),size=64K,count=4)");
	is(hetmem_resource_set(res, "max", "48M"), 0, "below fixed");
	is(opt_of(res)->max, 48 * MB, "the pool's");
	hetmem_resource_destroy(res);
}

static int asked;

static int give_up_late(void *data, size_t size, unsigned int attempt)
{
	(void)data;
	(void)size;
	(void)attempt;
	asked++;
	return 1;
}

static void test_retry(void)
{
	struct hetmem_resource *res =
		make("retry(limit(pool(host),max=1K),times=2)");
	void *p;

	hetmem_on_failure(res, give_up_late, NULL);
	is(hetmem_alloc(res, 2 * KB, 0, HOST, &p), -ENOMEM, "no memory");
	is(asked, 2, "asked as often as the spec says");
	is(hetmem_resource_set(res, "times", "5"), 0, "times");
	is(hetmem_alloc(res, 2 * KB, 0, HOST, &p), -ENOMEM, "no memory");
	is(asked, 2 + 5, "asked more often");
	hetmem_resource_destroy(res);
}

/* Side by side: all or none. */
static void test_several(void)
{
	struct hetmem_resource *res =
		make("fallback(pool(vmm,max=32M),pool(pinned,max=32M,min=4M),host)");
	const struct hm_several *s = (struct hm_several *)res;
	const struct hm_pool_options *a = opt_of(s->upstreams[0]);
	const struct hm_pool_options *b = opt_of(s->upstreams[1]);

	is(hetmem_resource_set(res, "max", "16M"), 0, "all that have it");
	ok(a->max == 16 * MB && b->max == 16 * MB, "have it");
	refused(res, "max", "2M", -EINVAL, "min is more than max");
	ok(a->max == 16 * MB && b->max == 16 * MB,
	   "one refuses: none has changed");
	refused(res, "times", "2", -EOPNOTSUPP, "nothing in this stack");
	hetmem_resource_destroy(res);
}

/* decay= that is switched on works; wait= is looked up anew. */
static void test_decay(void)
{
	struct hetmem_resource *res = make("pool(vmm)");

	hetmem_free(res, get(res, 32 * MB, HOST), 0, HOST);
	hetmem_poll(res);
	ok(reserved(res) >= 32 * MB, "free memory stays");
	is(hetmem_resource_set(res, "decay", "1ms"), 0, "decay");
	ok(wait_until(!hetmem_poll(res) && !reserved(res)), "it goes back: %zu are left",
	   (size_t)reserved(res));
	hetmem_resource_destroy(res);
}

static int child(struct hetmem_resource *host, struct hetmem_resource *device)
{
	return hetmem_resource_set(host, "max", "3M") ||
	       opt_of(host)->max != 3 * MB ||
	       hetmem_resource_set(device, "max", "3M") != -EOWNERDEAD;
}

static void test_fork(void)
{
	struct hetmem_resource *host = make("stats(pool(host))");
	struct hetmem_resource *device = make("pool(vmm)");
	int status = -1;
	pid_t pid;

	fflush(stdout);
	pid = fork();
	if (!pid)
		_exit(child(host, device));
	waitpid(pid, &status, 0);
	is(status, 0, "a forked child: the host's pool, not the device's");
	hetmem_resource_destroy(host);
	hetmem_resource_destroy(device);
}

/* Threads allocate while another changes everything. */
static struct hetmem_resource *shared;
static bool stop;

static void *allocates(void *arg)
{
	size_t size = (uintptr_t)arg * 10000;
	void *p, *bad = NULL;
	int err;

	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		err = hetmem_alloc(shared, size, 0, HOST, &p);
		if (!err)
			err = hetmem_free(shared, p, size, HOST);
		if (err && err != -ENOMEM)
			bad = "failed";
		size = size * 7 % (4 * MB) + 1;
	}
	return bad;
}

static void test_threads(const char *spec)
{
	static const char *const sets[][2] = {
		{ "pool.max", "2M" }, { "cache", "1" }, { "pool.max", "64M" },
		{ "min", "1M" }, { "decay", "1ms" }, { "pool.wait", "1ms" },
		{ "cache", "0" }, { "min", "0" }, { "decay", "0s" },
		{ "limit.max", "1M" }, { "times", "1" }, { "limit.max", "64M" },
		{ "retry.wait", "1us" }, { "pool.wait", "0s" },
	};
	const size_t nr = sizeof(sets) / sizeof(sets[0]);
	pthread_t threads[3];
	void *bad = NULL, *result;
	bool good = true;
	uintptr_t i;

	shared = make(spec);
	stop = false;
	for (i = 0; i < 3; i++)
		need(!pthread_create(&threads[i], NULL, allocates,
				     (void *)(i + 1)), "a thread");
	for (i = 0; i < 20 * nr; i++)
		good &= !hetmem_resource_set(shared, sets[i % nr][0],
					     sets[i % nr][1]);
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	for (i = 0; i < 3; i++) {
		pthread_join(threads[i], &result);
		bad = result ? result : bad;
	}
	ok(good && !bad, "%s: changes while threads allocate", spec);
	hetmem_resource_destroy(shared);
}

int main(void)
{
	setenv("HETMEM_SOFT_CHECK", "1", 1);
	open_soft("");
	test_pool("pool(vmm)");
	test_pool("pool(host)");
	test_pool("device-pool");
	test_refused();
	test_max("pool(vmm,handle=2M,max=64M)");
	test_max("pool(host,handle=2M)");
	test_within("pool(vmm,max=64M,handle=2M)");
	test_within("pool(device,max=64M,handle=2M)");
	test_within("limit(pool(host),max=64M)");
	test_within("classes(managed,max=64M)");
	test_within_each();
	test_asleep();
	test_stack();
	test_retry();
	test_several();
	test_decay();
	test_fork();
	test_threads("retry(limit(pool(host),max=64M),times=1)");
	test_threads("retry(limit(pool(vmm),max=64M),times=1)");
	close_soft();
	return tap_end();
}
