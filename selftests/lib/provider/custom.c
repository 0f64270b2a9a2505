// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Providers of the program's own: what is refused when one is registered;
 * callbacks that fail, return garbage, use the resource that they are called
 * for, or fork; threads; a forked child. conformance.c has what every resource
 * does, and conformance_fail.c a driver that fails below the callbacks.
 */
#include <limits.h>
#include <sys/wait.h>

#include "soft_driver.h"
#include "custom_memory.h"

#define KB	((size_t)1 << 10)
#define MB	((size_t)1 << 20)
#define HOST	HETMEM_STREAM_HOST

static struct hetmem_resource *make_over(const struct hetmem_provider *p,
					 const char *spec)
{
	struct hetmem_resource *res = NULL;

	need(!hetmem_provider_register(hm, "mine", p, NULL), "registered: %s",
	     hetmem_last_error());
	need(!hetmem_resource_create(hm, spec, &res), "%s: %s", spec,
	     hetmem_last_error());
	return res;
}

static void unmake(struct hetmem_resource *res)
{
	is(hetmem_resource_destroy(res), 0, "nothing is live");
	is(hetmem_provider_unregister(hm, "mine"), 0, "unregistered");
}

/* Registering. */

static void refused(const struct hetmem_provider *p, int err, const char *what)
{
	int have = hetmem_provider_register(hm, "bad", p, NULL);

	is(have, err, "refused: %s", what);
	if (!have)
		hetmem_provider_unregister(hm, "bad");
	else if (!strstr(hetmem_last_error(), "provider_register"))
		ok(false, "the text: %s", hetmem_last_error());
}

#define REFUSED(from, err, ...) do {					\
	struct hetmem_provider p_ = from;				\
									\
	p_.__VA_ARGS__;							\
	refused(&p_, err, #__VA_ARGS__);				\
} while (0)

static void test_members(void)
{
	REFUSED(custom_host, -EINVAL, size = 0);
	REFUSED(custom_host, -EINVAL, size = sizeof(custom_host) - 1);
	REFUSED(custom_host, -EOPNOTSUPP, version = 0);
	REFUSED(custom_host, -EOPNOTSUPP, version = 2);
	REFUSED(custom_host, -EINVAL, flags = 1U << 9);
	REFUSED(custom_host, -EINVAL, flags = 0);
	REFUSED(custom_host, -EINVAL, flags = HETMEM_PROVIDER_FORK);
	REFUSED(custom_host, -ENODEV, device = -2);
	REFUSED(custom_host, -ENODEV, device = 2);
	REFUSED(custom_host, -ENODEV, devices = 4);
	REFUSED(custom_host, -ENODEV, devices = 1ULL << 63);
	REFUSED(custom_host, -EINVAL, granularity = 0);
	REFUSED(custom_host, -EINVAL, granularity = 256);
	REFUSED(custom_host, -EINVAL, granularity = 3 * KB);
	REFUSED(custom_host, -EINVAL, granularity = (size_t)1 << 41);
	REFUSED(custom_host, -EINVAL, alloc = NULL);
	REFUSED(custom_host, -EINVAL, free = NULL);
	REFUSED(custom_host, -EINVAL, map = memfd_map);
	REFUSED(custom_memfd, -EINVAL, alloc = host_alloc);
	REFUSED(custom_memfd, -EINVAL, reserve = NULL);
	REFUSED(custom_memfd, -EINVAL, unreserve = NULL);
	REFUSED(custom_memfd, -EINVAL, create = NULL);
	REFUSED(custom_memfd, -EINVAL, release = NULL);
	REFUSED(custom_memfd, -EINVAL, map = NULL);
	REFUSED(custom_memfd, -EINVAL, unmap = NULL);
	REFUSED(custom_memfd, -EINVAL, granularity = KB);
	REFUSED(custom_memfd, -EINVAL, total = 0);
	REFUSED(custom_memfd, -EINVAL, total = UINT64_MAX);
	REFUSED(custom_memfd, -EINVAL,
		flags = HETMEM_PROVIDER_HOST | HETMEM_PROVIDER_FORK);
}

static void test_names(void)
{
	static const char *const names[] = {
		"", "a b", "a,b", "a)", "\xc3\xa4", "a=b",
		"abcdefghijklmnopqrstuvwxyz012345",
	};
	struct hetmem_resource *res;
	size_t i;

	for (i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		is(hetmem_provider_register(hm, names[i], &custom_host, NULL),
		   -EINVAL, "a name: '%s'", names[i]);
	is(hetmem_provider_register(NULL, "a", &custom_host, NULL), -EINVAL,
	   "no library");
	is(hetmem_provider_register(hm, NULL, &custom_host, NULL), -EINVAL,
	   "no name");
	is(hetmem_provider_register(hm, "a", NULL, NULL), -EINVAL,
	   "no provider");
	is(hetmem_provider_register(hm, "host", &custom_memfd, NULL), -EEXIST,
	   "a name that is taken");
	is(hetmem_provider_register(hm, "a-1_Z", &custom_host, NULL), 0,
	   "a good name");
	is(hetmem_resource_create(hm, "custom(name=a-1_Z)", &res), 0, "is used");
	is(hetmem_provider_unregister(hm, "a-1_Z"), -EBUSY, "is in use");
	hetmem_resource_destroy(res);
	is(hetmem_provider_unregister(hm, "a-1_Z"), 0, "is not");
	is(hetmem_provider_unregister(hm, "a-1_Z"), -ENOENT, "is gone");
	is(hetmem_provider_unregister(hm, NULL), -EINVAL, "no name to end");
	is(hetmem_provider_unregister(NULL, "a"), -EINVAL, "no library to end");
	is(hetmem_resource_create(hm, "pool(custom(name=a-1_Z))", &res),
	   -EINVAL, "a resource of what is gone");
	ok(strstr(hetmem_last_error(), "hetmem_provider_register()"),
	   "it tells what to do");
	is(hetmem_resource_create(hm, "pool(custom)", &res), -EINVAL,
	   "a spec without a name");
	is(hetmem_resource_create(hm, "custom(name=memfd)", &res), -EINVAL,
	   "mapped memory without a pool");
	is(hetmem_resource_create(hm, "pool(custom(name=host),max=50%)", &res),
	   -EINVAL, "a percentage of an unknown total");
	is(hetmem_resource_create(hm, "pool(custom(name=memfd),max=50%)", &res),
	   0, "a percentage");
	hetmem_resource_destroy(res);
}

/* Programs that were compiled for a later library. */
static void test_larger(void)
{
	struct { struct hetmem_provider p; uint64_t more[2]; } later = {
		.p = custom_host,
	};

	later.p.size = sizeof(later);
	is(hetmem_provider_register(hm, "later", &later.p, NULL), 0,
	   "a later struct, of which nothing new is used");
	is(hetmem_provider_unregister(hm, "later"), 0, "it is gone");
	later.more[1] = 1;
	refused(&later.p, -E2BIG, "a later struct");
}

/*
 * A program that counts what is out, and whose nth callback fails or returns
 * what it should not.
 */
static struct {
	long calls;
	long fail_at;
	unsigned int seed;
	int result;
	long regions;
	long reservations;
	long handles;
	long maps;
	long bytes;
} my;

/* The one to fail; with a seed, a quarter of all. */
static bool fails(void)
{
	if (!my.seed)
		return __atomic_add_fetch(&my.calls, 1, __ATOMIC_RELAXED) ==
			my.fail_at;
	my.seed = my.seed * 1103515245 + 12345;
	return !(my.seed >> 16 & 3);
}

static void count(long *n, long by)
{
	__atomic_add_fetch(n, by, __ATOMIC_RELAXED);
}

static int my_alloc(void *data, size_t size, void **ptr)
{
	int err = fails() ? my.result : host_alloc(data, size, ptr);

	count(&my.regions, !err);
	return err;
}

static int my_free(void *data, void *ptr, size_t size)
{
	int err = fails() ? my.result : host_free(data, ptr, size);

	count(&my.regions, -!err);
	return err;
}

static int my_reserve(void *data, size_t size, size_t align, void **addr)
{
	int err = fails() ? my.result : memfd_reserve(data, size, align, addr);

	count(&my.reservations, !err);
	return err;
}

static int my_unreserve(void *data, void *addr, size_t size)
{
	int err = fails() ? my.result : host_free(data, addr, size);

	count(&my.reservations, -!err);
	return err;
}

static int my_create(void *data, size_t size, uint64_t *handle)
{
	int err = fails() ? my.result : memfd_create_handle(data, size, handle);

	count(&my.handles, !err);
	return err;
}

static int my_release(void *data, uint64_t handle)
{
	int err = fails() ? my.result : memfd_release(data, handle);

	count(&my.handles, -!err);
	return err;
}

static int my_map(void *data, void *addr, size_t size, uint64_t handle)
{
	int err = fails() ? my.result : memfd_map(data, addr, size, handle);

	count(&my.maps, !err);
	return err;
}

static int my_unmap(void *data, void *addr, size_t size)
{
	int err = fails() ? my.result : memfd_unmap(data, addr, size);

	count(&my.maps, -!err);
	return err;
}

static const struct hetmem_provider my_regions = {
	.size = sizeof(my_regions),
	.version = HETMEM_PROVIDER_VERSION,
	.flags = HETMEM_PROVIDER_HOST,
	.device = -1,
	.granularity = 64 << 10,
	.alloc = my_alloc,
	.free = my_free,
};

static const struct hetmem_provider my_mapped = {
	.size = sizeof(my_mapped),
	.version = HETMEM_PROVIDER_VERSION,
	.flags = HETMEM_PROVIDER_HOST,
	.device = -1,
	.granularity = 64 << 10,
	.total = 64 << 20,
	.reserve = my_reserve,
	.unreserve = my_unreserve,
	.create = my_create,
	.release = my_release,
	.map = my_map,
	.unmap = my_unmap,
};

static bool work_failed;

/* 0, or an error that is documented. */
static int must(int err)
{
	if (err && err != -ENOMEM && err != -EIO && !work_failed) {
		printf("# %d: %s\n", err, hetmem_last_error());
		work_failed = true;
	}
	return err;
}

/* Blocks of many sizes that come and go; contents stay what they were. */
static void work(struct hetmem_resource *res)
{
	unsigned char *p[24] = { NULL };
	size_t size[24], freed;
	unsigned int i, n, at = 7;

	for (n = 0; n < 150; n++) {
		at = at * 1103515245 + 12345;
		i = at >> 16 & 15;
		if (p[i]) {
			if (!all_bytes(p[i], i, size[i]))
				work_failed = true;
			if (must(hetmem_free(res, p[i], size[i], HOST)))
				hetmem_free(res, p[i], size[i], HOST);
			p[i] = NULL;
		} else {
			size[i] = ((size_t)1 << (at >> 20 & 15)) * 37;
			if (must(hetmem_alloc(res, size[i], 0, HOST,
					      (void **)&p[i])))
				p[i] = NULL;
			else
				memset(p[i], i, size[i]);
		}
		if (n % 40 == 39)
			must(hetmem_trim(res, 0, &freed));
	}
	for (i = 0; i < 24; i++)
		if (p[i] && must(hetmem_free(res, p[i], size[i], HOST)))
			must(hetmem_free(res, p[i], size[i], HOST));
}

/* Each callback in turn fails once, with @result. */
static void test_failing(const struct hetmem_provider *p, const char *spec,
			 int result, const char *what)
{
	struct hetmem_resource *res;
	long n, last = 1000000;
	int err;

	need(!hetmem_provider_register(hm, "mine", p, NULL), "registered");
	work_failed = false;
	for (n = 1; n < last && !work_failed; n += 1 + n / 40) {
		memset(&my, 0, sizeof(my));
		my.fail_at = n;
		my.result = result;
		err = must(hetmem_resource_create(hm, spec, &res));
		if (!err) {
			work(res);
			must(hetmem_resource_destroy(res));
			last = my.calls;
		}
		if (my.regions || my.reservations || my.handles || my.maps) {
			printf("# call %ld: left: %ld %ld %ld %ld\n", n,
			       my.regions, my.reservations, my.handles, my.maps);
			work_failed = true;
		}
	}
	if (!ok(!work_failed && last < 1000000 && n > 5, "%s: every callback %s once: nothing is lost",
		spec, what))
		printf("# %ld of %ld calls\n", n, last);
	memset(&my, 0, sizeof(my));
	is(hetmem_provider_unregister(hm, "mine"), 0, "nothing holds it");
}

/* A quarter of all callbacks fails, with -ENOMEM or otherwise, until the end. */
static void test_unreliable(const struct hetmem_provider *p, const char *spec)
{
	struct hetmem_resource *res;
	unsigned int seed, made = 0;

	need(!hetmem_provider_register(hm, "mine", p, NULL), "registered");
	work_failed = false;
	for (seed = 1; seed <= 60 && !work_failed; seed++) {
		memset(&my, 0, sizeof(my));
		my.seed = seed * 7919;
		my.result = seed % 2 ? -ENOMEM : -5;
		if (!must(hetmem_resource_create(hm, spec, &res))) {
			made++;
			work(res);
			my.seed = 0;
			must(hetmem_resource_destroy(res));
		}
		if (my.regions || my.reservations || my.handles || my.maps) {
			printf("# seed %u: left: %ld %ld %ld %ld\n", seed,
			       my.regions, my.reservations, my.handles, my.maps);
			work_failed = true;
		}
	}
	ok(!work_failed && made > 20, "%s: callbacks that fail often: nothing is lost",
	   spec);
	memset(&my, 0, sizeof(my));
	is(hetmem_provider_unregister(hm, "mine"), 0, "nothing holds it");
}

/* Garbage: what alloc or reserve returns with 0. */
static uintptr_t garbage;
static long given_back;

static int garbage_alloc(void *data, size_t size, void **ptr)
{
	(void)data;
	(void)size;
	*ptr = (void *)garbage;
	return 0;
}

static int garbage_reserve(void *data, size_t size, size_t align, void **ptr)
{
	(void)align;
	return garbage_alloc(data, size, ptr);
}

static int garbage_free(void *data, void *ptr, size_t size)
{
	(void)data;
	(void)size;
	given_back += ptr == (void *)garbage;
	return 0;
}

static void test_garbage_value(uintptr_t value, long back, const char *what)
{
	struct hetmem_provider regions = my_regions, mapped = my_mapped;
	struct hetmem_resource *res;
	void *p = &p;

	garbage = value;
	given_back = 0;
	regions.alloc = garbage_alloc;
	regions.free = garbage_free;
	mapped.reserve = garbage_reserve;
	mapped.unreserve = garbage_free;
	res = make_over(&regions, "custom(name=mine)");
	is(hetmem_alloc(res, 100, 0, HOST, &p), -EIO, "a region: %s", what);
	ok(p == &p && strstr(hetmem_last_error(), "alloc of mine"),
	   "the text names it");
	is(given_back, back, "how often it was given back");
	unmake(res);
	res = make_over(&regions, "pool(custom(name=mine))");
	is(hetmem_alloc(res, 100, 0, HOST, &p), -EIO, "a pool's: %s", what);
	unmake(res);
	need(!hetmem_provider_register(hm, "mine", &mapped, NULL), "registered");
	given_back = 0;
	is(hetmem_resource_create(hm, "pool(custom(name=mine))", &res), -EIO,
	   "a reservation: %s", what);
	is(given_back, back, "how often it was given back");
	hetmem_provider_unregister(hm, "mine");
}

/* The same region twice. */
static void test_overlap(void)
{
	struct hetmem_provider regions = my_regions;
	struct hetmem_resource *res;
	unsigned char *memory = custom_pages(4 * MB, 2 * MB, PROT_READ |
					     PROT_WRITE);
	void *p, *q = NULL;

	garbage = (uintptr_t)memory;
	given_back = 0;
	regions.alloc = garbage_alloc;
	regions.free = garbage_free;
	res = make_over(&regions, "custom(name=mine)");
	is(hetmem_alloc(res, 100, 0, HOST, &p), 0, "a region");
	is(hetmem_alloc(res, 100, 0, HOST, &q), -EIO, "the same again");
	ok(strstr(hetmem_last_error(), "still out") && !given_back,
	   "it is not freed: it is the first one's");
	garbage += 64 * KB;
	is(hetmem_alloc(res, 100, 0, HOST, &q), 0, "the next one");
	garbage -= 64 * KB;
	is(hetmem_free(res, p, 100, HOST), 0, "the first is freed");
	hetmem_poll(res);
	is(hetmem_alloc(res, 65 * KB, 0, HOST, &p), -EIO,
	   "one that reaches into the second");
	is(hetmem_alloc(res, 64 * KB, 0, HOST, &p), 0, "it is there again");
	hetmem_free(res, p, 0, HOST);
	hetmem_free(res, q, 0, HOST);
	unmake(res);
	munmap(memory, 4 * MB);
}

/* Re-entrance: the callbacks use a resource. */
static struct {
	struct hetmem_resource *res;
	int err[9];
	int nr;
	bool once;
	bool reserves;
} inner;

static void use_inner(void)
{
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };
	struct hetmem_access access = { .size = sizeof(access) };
	void *p = NULL;
	int n = 0;

	if (!inner.res || inner.once)
		return;
	inner.once = true;
	inner.err[n++] = hetmem_alloc(inner.res, 100, 0, HOST, &p);
	inner.err[n++] = hetmem_free(inner.res, p ? p : &p, 100, HOST);
	inner.err[n++] = hetmem_poll(inner.res);
	inner.err[n++] = hetmem_trim(inner.res, 0, NULL);
	inner.err[n++] = hetmem_resource_stats(inner.res, &stats);
	inner.err[n++] = hetmem_resource_access(inner.res, &access);
	inner.err[n++] = hetmem_counters_push(inner.res);
	if (!inner.reserves)
		inner.err[n++] = hetmem_resource_destroy(inner.res);
	inner.nr = n;
}

static int inner_alloc(void *data, size_t size, void **ptr)
{
	use_inner();
	return host_alloc(data, size, ptr);
}

static int inner_free(void *data, void *ptr, size_t size)
{
	use_inner();
	return host_free(data, ptr, size);
}

static int inner_create(void *data, size_t size, uint64_t *handle)
{
	use_inner();
	return memfd_create_handle(data, size, handle);
}

static int inner_unmap(void *data, void *addr, size_t size)
{
	use_inner();
	return memfd_unmap(data, addr, size);
}

static bool all_inner(int err)
{
	int i;

	for (i = 0; i < inner.nr; i++)
		if (inner.err[i] != err)
			printf("# call %d: %d\n", i, inner.err[i]);
	for (i = 0; i < inner.nr && inner.err[i] == err; i++)
		;
	return inner.nr && i == inner.nr;
}

static void test_reentry(const char *spec, bool mapped)
{
	struct hetmem_provider p = mapped ? custom_memfd : custom_host;
	struct hetmem_resource *res;
	void *block = NULL;

	if (mapped) {
		p.create = inner_create;
		p.unmap = inner_unmap;
	} else {
		p.alloc = inner_alloc;
		p.free = inner_free;
	}
	res = make_over(&p, spec);
	memset(&inner, 0, sizeof(inner));
	inner.res = res;
	is(hetmem_alloc(res, 3 * MB, 0, HOST, &block), 0, "%s: a block", spec);
	ok(all_inner(-EDEADLK), "%s: no call of alloc's callback", spec);
	memset(&inner, 0, sizeof(inner));
	is(hetmem_free(res, block, 0, HOST), 0, "%s: it is freed", spec);
	inner.res = res;
	hetmem_trim(res, 0, NULL);
	hetmem_poll(res);
	ok(!inner.nr || all_inner(-EDEADLK), "%s: nor of free's", spec);
	memset(&inner, 0, sizeof(inner));
	ok(!hetmem_alloc(res, 100, 0, HOST, &block) &&
	   !hetmem_free(res, block, 100, HOST), "%s: it goes on", spec);
	unmake(res);
}

/* Another resource is the program's business, unless it leads back here. */
static void test_others(void)
{
	struct hetmem_provider p = custom_memfd, q = custom_host;
	struct hetmem_resource *res, *other, *own;
	void *block;

	p.create = inner_create;
	need(!hetmem_resource_create(hm, "stats(pool(host))", &other), "other");
	res = make_over(&p, "pool(custom(name=mine))");
	memset(&inner, 0, sizeof(inner));
	inner.res = other;
	inner.reserves = true;
	is(hetmem_alloc(res, 100, 0, HOST, &block), 0, "a block");
	ok(all_inner(0), "a callback uses another resource");
	hetmem_free(res, block, 0, HOST);
	hetmem_resource_destroy(other);
	hetmem_trim(res, 0, NULL);

	/* mine's create uses yours, whose alloc uses mine. */
	q.alloc = inner_alloc;
	need(!hetmem_provider_register(hm, "yours", &q, NULL), "registered");
	need(!hetmem_resource_create(hm, "custom(name=yours)", &own), "own");
	memset(&inner, 0, sizeof(inner));
	inner.res = own;
	inner.reserves = true;
	/* The first use_inner() is of mine's create; own's alloc has its own. */
	is(hetmem_alloc(res, 20 * MB, 0, HOST, &block), 0, "a block");
	ok(inner.nr && !inner.err[0], "the other one's block");
	hetmem_free(res, block, 0, HOST);
	hetmem_resource_destroy(own);
	hetmem_provider_unregister(hm, "yours");
	memset(&inner, 0, sizeof(inner));
	unmake(res);
}

static struct hetmem_resource *circle[2];
static int circle_err, circle_depth;

static int circle_alloc(void *data, size_t size, void **ptr)
{
	void *p = NULL;
	int err;

	circle_depth++;
	err = hetmem_alloc(circle[data == &circle[0]], 100, 0, HOST, &p);
	if (err)
		circle_err = err;
	else
		hetmem_free(circle[data == &circle[0]], p, 100, HOST);
	return host_alloc(NULL, size, ptr);
}

static void test_circle(void)
{
	struct hetmem_provider p = custom_host;
	void *block;
	int i;

	p.alloc = circle_alloc;
	for (i = 0; i < 2; i++) {
		char name[] = "circleN", spec[40];

		name[6] = '0' + i;
		need(!hetmem_provider_register(hm, name, &p, &circle[i]),
		     "registered");
		snprintf(spec, sizeof(spec), "stats(pool(custom(name=%s)))",
			 name);
		need(!hetmem_resource_create(hm, spec, &circle[i]), "made");
	}
	is(hetmem_alloc(circle[0], 100, 0, HOST, &block), 0, "a block");
	is(circle_err, -EDEADLK, "a circle of two ends where it closes");
	is(circle_depth, 2, "after one round");
	hetmem_free(circle[0], block, 100, HOST);
	for (i = 0; i < 2; i++)
		hetmem_resource_destroy(circle[i]);
}

/* Threads: one thread's callback does not keep the others out. */

static struct hetmem_resource *shared;

static void *one_thread(void *arg)
{
	unsigned int at = (uintptr_t)arg, n;
	void *p[8] = { NULL }, *bad = NULL;
	size_t size[8];

	for (n = 0; n < 2000; n++) {
		unsigned int i = n % 8;

		at = at * 1103515245 + 12345;
		if (p[i] && hetmem_free(shared, p[i], size[i], HOST))
			bad = "free";
		size[i] = (at >> 16 & 0x3ff) * 700 + 1;
		if (hetmem_alloc(shared, size[i], 0, HOST, &p[i])) {
			p[i] = NULL;
			bad = "alloc";
		} else {
			memset(p[i], i, 64 < size[i] ? 64 : size[i]);
		}
		if (n % 500 == 499)
			hetmem_trim(shared, 0, NULL);
	}
	for (n = 0; n < 8; n++)
		hetmem_free(shared, p[n], 0, HOST);
	return bad;
}

static void test_threads(const struct hetmem_provider *p, const char *spec)
{
	pthread_t threads[4];
	uintptr_t i;
	void *bad = NULL, *result;

	memset(&my, 0, sizeof(my));
	shared = make_over(p, spec);
	for (i = 0; i < 4; i++)
		need(!pthread_create(&threads[i], NULL, one_thread,
				     (void *)(i + 1)), "a thread");
	for (i = 0; i < 4; i++) {
		pthread_join(threads[i], &result);
		bad = result ? result : bad;
	}
	ok(!bad, "%s: four threads: %s", spec, bad ? (char *)bad : "all right");
	unmake(shared);
	is(my.regions + my.handles + my.maps + my.reservations, 0,
	   "%s: nothing is left", spec);
}

/* fork(), also by a callback. */

static int status_of(pid_t pid)
{
	int status = -1;

	waitpid(pid, &status, 0);
	return status;
}

static int child_goes_on(struct hetmem_resource *res, void *p)
{
	void *q;

	if (*(unsigned char *)p != 3 || hetmem_free(res, p, 0, HOST) ||
	    hetmem_alloc(res, 5 * MB, 0, HOST, &q))
		return 1;
	memset(q, 1, 5 * MB);
	return hetmem_free(res, q, 5 * MB, HOST) ||
	       hetmem_resource_destroy(res);
}

static int child_is_refused(struct hetmem_resource *res, void *p)
{
	long calls = my.calls;
	void *q;

	return hetmem_alloc(res, 5 * MB, 0, HOST, &q) != -EOWNERDEAD ||
	       hetmem_free(res, p, 0, HOST) != -EOWNERDEAD ||
	       hetmem_trim(res, 0, NULL) != -EOWNERDEAD ||
	       hetmem_resource_destroy(res) < 0 ||
	       hetmem_provider_register(hm, "x", &my_regions, NULL) !=
	       -EOWNERDEAD || my.calls != calls;
}

static void test_fork(const struct hetmem_provider *p, const char *spec,
		      int (*child)(struct hetmem_resource *res, void *p))
{
	struct hetmem_resource *res = make_over(p, spec);
	void *block;
	pid_t pid;

	need(!hetmem_alloc(res, 1000, 0, HOST, &block), "a block");
	memset(block, 3, 1000);
	fflush(stdout);
	pid = fork();
	if (!pid)
		_exit(child(res, block));
	is(status_of(pid), 0, "%s: a forked child", spec);
	is(*(unsigned char *)block, 3, "the parent's is what it was");
	hetmem_free(res, block, 0, HOST);
	unmake(res);
}

static int forked = -1;

static void fork_here(void)
{
	pid_t pid;

	if (forked >= 0)
		return;
	fflush(stdout);
	pid = fork();
	if (!pid)
		_exit(0);
	forked = status_of(pid);
}

static int forking_alloc(void *data, size_t size, void **ptr)
{
	fork_here();
	return host_alloc(data, size, ptr);
}

static int forking_create(void *data, size_t size, uint64_t *handle)
{
	fork_here();
	return memfd_create_handle(data, size, handle);
}

static void test_forking(const struct hetmem_provider *base, const char *spec)
{
	struct hetmem_provider p = *base;
	struct hetmem_resource *res;
	void *block;

	if (p.alloc)
		p.alloc = forking_alloc;
	else
		p.create = forking_create;
	forked = -1;
	res = make_over(&p, spec);
	is(hetmem_alloc(res, 1000, 0, HOST, &block), 0, "%s: a block", spec);
	is(forked, 0, "%s: a callback that forks", spec);
	hetmem_free(res, block, 0, HOST);
	unmake(res);
}

/* What is current in a callback. */
static CUcontext seen, wanted;
static bool relaxed;

static int looking_alloc(void *data, size_t size, void **ptr)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;

	drv->cuCtxGetCurrent(&seen);
	drv->cuThreadExchangeStreamCaptureMode(&mode);
	relaxed = mode == CU_STREAM_CAPTURE_MODE_RELAXED;
	drv->cuThreadExchangeStreamCaptureMode(&mode);
	return host_alloc(data, size, ptr);
}

static void test_context(void)
{
	struct hetmem_provider p = custom_host;
	struct hetmem_access access = { .size = sizeof(access) };
	struct hetmem_resource *res;
	CUcontext before, after;
	void *block;

	p.device = 1;
	p.alloc = looking_alloc;
	res = make_over(&p, "stats(pool(custom(name=mine)))");
	drv->cuCtxGetCurrent(&before);
	need(!hm_device_context(hm, 1, &wanted), "a context");
	is(hetmem_alloc(res, 1000, 0, HOST, &block), 0, "a block");
	drv->cuCtxGetCurrent(&after);
	ok(seen == wanted && relaxed, "device 1's context, relaxed");
	ok(before == after && before != wanted, "and the caller's, as it was");
	is(hetmem_resource_access(res, &access), 0, "who can use it");
	ok(access.host && access.devices == 2, "the CPU and device 1");
	hetmem_free(res, block, 0, HOST);
	unmake(res);
}

int main(void)
{
	setenv("HETMEM_SOFT_CHECK", "1", 1);
	setenv("HETMEM_SOFT_DEVICES", "2", 1);
	open_soft("");
	custom_register(hm);
	test_members();
	test_names();
	test_larger();
	test_failing(&my_regions, "custom(name=mine)", -ENOMEM, "has no memory");
	test_failing(&my_regions, "custom(name=mine)", 17, "returns 17");
	test_failing(&my_regions, "pool(custom(name=mine))", -ENOMEM,
		     "has no memory");
	test_failing(&my_regions, "pool(custom(name=mine))", -EUCLEAN,
		     "returns -EUCLEAN");
	test_failing(&my_mapped, "pool(custom(name=mine))", -ENOMEM,
		     "has no memory");
	test_failing(&my_mapped, "pool(custom(name=mine))", -EUCLEAN,
		     "returns -EUCLEAN");
	test_failing(&my_mapped, "guard(pool(custom(name=mine),min=1M))",
		     INT_MIN, "returns INT_MIN");
	test_unreliable(&my_regions, "custom(name=mine)");
	test_unreliable(&my_regions, "pool(custom(name=mine))");
	test_unreliable(&my_mapped, "pool(custom(name=mine))");
	test_garbage_value(0, 0, "NULL");
	test_garbage_value(123456789, 1, "not aligned");
	test_garbage_value(-(uintptr_t)64 * KB, 0, "beyond the end");
	test_overlap();
	test_reentry("custom(name=mine)", false);
	test_reentry("pool(custom(name=mine))", false);
	test_reentry("stats(limit(pool(custom(name=mine)),max=1G))", false);
	test_reentry("fallback(pool(host,max=1M,wait=0s),guard(pool(custom(name=mine))))",
		     false);
	test_reentry("pool(custom(name=mine))", true);
	test_reentry("log(pool(custom(name=mine)),file=/dev/null)", true);
	test_others();
	test_circle();
	test_threads(&my_regions, "custom(name=mine)");
	test_threads(&my_regions, "pool(custom(name=mine))");
	test_threads(&my_mapped, "pool(custom(name=mine))");
	test_fork(&custom_host, "custom(name=mine)", child_goes_on);
	test_fork(&custom_host, "pool(custom(name=mine))", child_goes_on);
	test_fork(&my_regions, "custom(name=mine)", child_is_refused);
	test_fork(&my_regions, "pool(custom(name=mine))", child_is_refused);
	test_fork(&my_mapped, "pool(custom(name=mine))", child_is_refused);
	test_forking(&custom_host, "pool(custom(name=mine))");
	test_forking(&custom_host, "custom(name=mine)");
	test_forking(&custom_memfd, "pool(custom(name=mine))");
	test_context();
	close_soft();
	return tap_end();
}
