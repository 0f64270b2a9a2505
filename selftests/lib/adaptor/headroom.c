// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * headroom(): what it lets through, what it trims and refuses, and with which number;
 * on device memory, on the host's (files that look like another host), through pools,
 * from threads; and prefetches to the device.
 */
#include <sys/mman.h>
#include <sys/stat.h>

#include "platform/machine.h"

#define MIB	((size_t)1 << 20)
#define KIB	((size_t)1 << 10)

static struct hetmem *hm;
static char root[] = "/tmp/hetmem-headroom-XXXXXX";

static struct hetmem_resource *make(const char *spec)
{
	struct hetmem_resource *res = NULL;

	need(!hetmem_resource_create(hm, spec, &res), "%s: %s", spec,
	     hetmem_last_error());
	return res;
}

static void *get(struct hetmem_resource *res, size_t size)
{
	void *p = NULL;

	return hetmem_alloc(res, size, 0, HETMEM_STREAM_HOST, &p) ? NULL : p;
}

static void put(struct hetmem_resource *res, void *p)
{
	is(hetmem_free(res, p, 0, HETMEM_STREAM_HOST), 0, "free");
}

static uint64_t usable(int device)
{
	struct hetmem_memory_info info = { .size = sizeof(info) };

	need(!hetmem_memory_info(hm, device, &info), "%s", hetmem_last_error());
	return info.usable;
}

/* 64 MiB, of which 2 MiB are the reserve. */
static void open_device(const char *machine)
{
	hm = open_machine(machine);
	need(hm, "opens: %s", hetmem_last_error());
}

static void bare_device(void)
{
	struct hetmem_resource *res;
	void *a, *b;

	open_device("hmm memory=64M");
	res = make("headroom(device,keep=10M)");
	is(usable(0), 62 * MIB, "usable");
	a = get(res, 52 * MIB + 1);
	ok(!a, "a byte too many");
	ok(strstr(hetmem_last_error(), "at most 54525952 bytes fit on device 0") &&
	   strstr(hetmem_last_error(), "less the reserve and keep=10485760)"),
	   "the number: %s", hetmem_last_error());
	a = get(res, 40 * MIB);
	ok(a, "40 MiB: %s", hetmem_last_error());
	b = get(res, 13 * MIB);
	ok(!b && strstr(hetmem_last_error(), "at most 12582912 bytes fit"),
	   "13 more do not fit: %s", b ? "" : hetmem_last_error());
	b = get(res, 12 * MIB);
	ok(b, "12 do");
	is(usable(0), 10 * MIB, "what is kept is left");
	put(res, a);
	a = get(res, 40 * MIB);
	ok(a, "freed, it can be had again");
	put(res, a);
	put(res, b);
	is(hetmem_alloc(res, 52 * MIB, 4 * MIB, HETMEM_STREAM_HOST, &a), -ENOMEM, "aligned");
	ok(strstr(hetmem_last_error(), "with its alignment"), "which takes more: %s",
	   hetmem_last_error());
	is(hetmem_resource_destroy(res), 0, "nothing is left");
	res = make("headroom(device,keep=50%)");
	ok(!get(res, 31 * MIB), "a share");
	a = get(res, 30 * MIB);
	ok(a, "of the device");
	hetmem_resource_destroy(res);
	hetmem_close(hm);
}

/* The adaptor uses what the driver answered for a while: AGE_OF_COST in headroom.c. */
static void answer_expires(void)
{
	/* time: nothing but the clock ends it; 150 ms are more than enough */
	usleep(150000);
}

/* Others take memory while it is in use. */
static void others(void)
{
	struct hetmem_resource *res, *other;
	void *a, *b;

	open_device("hmm memory=64M");
	res = make("headroom(device)");
	other = make("device");
	a = get(res, MIB);
	b = get(other, 60 * MIB);
	need(a && b, "memory");
	answer_expires();
	ok(!get(res, 2 * MIB), "what others took is not usable: %s",
	   hetmem_last_error());
	put(other, b);
	hetmem_trim(other, 0, NULL);
	b = get(res, 40 * MIB);
	ok(b, "when they freed it, it is: %s", hetmem_last_error());
	hetmem_resource_destroy(res);
	hetmem_resource_destroy(other);
	hetmem_close(hm);
}

/* Cached memory serves before a request is refused, and is given back if that helps. */
static void pools(void)
{
	static const char *const specs[] = {
		"headroom(pool(vmm),keep=10M)", "headroom(pool(device),keep=10M)",
	};
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };
	struct hetmem_resource *res;
	void *p[25], *big;
	size_t i, k;

	for (k = 0; k < 2; k++) {
		open_device("hmm memory=64M");
		res = make(specs[k]);
		for (i = 0; i < 25; i++)
			need((p[i] = get(res, 2 * MIB)), "2 MiB: %s",
			     hetmem_last_error());
		hetmem_resource_stats(res, &stats);
		ok(usable(0) >= 10 * MIB, "%s: %llu bytes are left", specs[k],
		   (long long)usable(0));
		for (i = 0; i < 25; i += 2)
			put(res, p[i]);
		/* Nothing is to be had from the device, half is cached. */
		answer_expires();
		for (i = 0; i < 25; i += 2) {
			p[i] = get(res, 2 * MIB);
			ok(p[i], "from the cache: %s", p[i] ? "" : hetmem_last_error());
		}
		hetmem_resource_stats(res, &stats);
		ok(stats.reserved <= 52 * MIB, "no more is held: %llu",
		   (long long)stats.reserved);
		for (i = 0; i < 25; i++)
			put(res, p[i]);
		answer_expires();
		big = get(res, 50 * MIB);
		ok(big, "small ones are given back for a large one: %s",
		   big ? "" : hetmem_last_error());
		ok(usable(0) >= 10 * MIB, "still %llu bytes are left",
		   (long long)usable(0));
		ok(!get(res, 8 * MIB), "and no more: %s", hetmem_last_error());
		hetmem_resource_stats(res, &stats);
		ok(stats.failed >= 1, "refusals are counted");
		hetmem_resource_destroy(res);
		hetmem_close(hm);
	}
}

static void put_host(size_t total, size_t available)
{
	char path[128];
	FILE *file;

	snprintf(path, sizeof(path), "%s/proc", root);
	mkdir(path, 0700);
	snprintf(path, sizeof(path), "%s/proc/meminfo", root);
	file = fopen(path, "w");
	need(file, "%s", path);
	fprintf(file, "MemTotal: %zu kB\nMemAvailable: %zu kB\n", total / KIB,
		available / KIB);
	fclose(file);
}

/* Memory that the CPU uses is the host's; untouched pages are not missing there yet. */
static void the_hosts(void)
{
	static const char *const specs[] = {
		"headroom(pool(system(device=0)),keep=10M)",
		"headroom(pool(host),keep=10M)",
		"headroom(classes(host),keep=10M)",
		"headroom(stats(classes(system(device=0))),keep=10M)",
		"headroom(headroom(pool(host)),keep=10M)",
		"headroom(host,keep=10M)",
		"headroom(managed,keep=10M)",
		"headroom(stats(fallback(host,pool(host))),keep=10M)",
		"unified(over=managed,keep=10M)",
	};
	struct hetmem_resource *res;
	size_t k;
	void *a;

	for (k = 0; k < sizeof(specs) / sizeof(specs[0]); k++) {
		open_device("hmm memory=8M");
		hm->root = root;
		put_host(320 * MIB, 320 * MIB);
		res = make(specs[k]);
		ok(!get(res, 301 * MIB) && strstr(hetmem_last_error(), "the host"),
		   "%s: beyond the host's: %s", specs[k], hetmem_last_error());
		a = get(res, 200 * MIB);
		ok(a, "more than the device has: %s", hetmem_last_error());
		answer_expires();
		/* Up to 2 MiB may have been made to see how long that takes. */
		ok(!get(res, 103 * MIB), "nobody touched it, but it is promised: %s",
		   hetmem_last_error());
		/* Now it is missing on the host, and is not taken off twice. */
		memset(a, 1, 200 * MIB);
		put_host(320 * MIB, 120 * MIB);
		answer_expires();
		a = get(res, 80 * MIB);
		ok(a, "what was touched counts once: %s", hetmem_last_error());
		ok(!get(res, 30 * MIB), "and no more");
		hetmem_resource_destroy(res);
		hetmem_close(hm);
	}
	open_device("integrated memory=64M");
	hm->root = root;
	put_host(64 * MIB, 20 * MIB);
	res = make("headroom(device,keep=1M)");
	ok(!get(res, 18 * MIB) && strstr(hetmem_last_error(), "figure \"host\""),
	   "one memory: the host's figure counts: %s", hetmem_last_error());
	ok(!get(res, 16 * MIB + 1) &&
	   strstr(hetmem_last_error(), "at most 16777216 bytes fit"),
	   "in multiples of what the driver gives: %s", hetmem_last_error());
	ok(get(res, 16 * MIB), "up to that");
	hetmem_resource_destroy(res);
	hetmem_close(hm);
}

/* What one class gave back, and no other took, is held: nobody touched it either. */
static void held_by_no_class(void)
{
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = 20 * MIB, .stream = HETMEM_STREAM_HOST,
		.placement = HETMEM_PLACEMENT_BOTH,
	};
	struct hetmem_resource_stats stats = { .size = sizeof(stats) };
	struct hetmem_resource *res;
	void *p;

	open_device("hmm memory=8M");
	hm->root = root;
	put_host(320 * MIB, 320 * MIB);
	res = make("headroom(classes(host),keep=10M)");
	put(res, get(res, 240 * MIB));
	is(hetmem_alloc_with(res, &params, &p), 0, "another class: %s", hetmem_last_error());
	hetmem_resource_stats(res, &stats);
	is(stats.reserved, 240 * MIB, "takes a part of it");
	answer_expires();
	params.bytes = 230 * MIB;
	is(hetmem_alloc_with(res, &params, &p), 0, "more in one piece: %s", hetmem_last_error());
	hetmem_resource_stats(res, &stats);
	ok(stats.reserved <= 300 * MIB, "%llu MiB are held", (long long)stats.reserved / MIB);
	hetmem_resource_destroy(res);
	hetmem_close(hm);
}

/* Memory that begins a page after a multiple of 2 MiB, and how much of it there is. */
static size_t crooked;

static int crooked_alloc(void *unused, size_t size, void **ptr)
{
	char *p = mmap(NULL, size + 4 * MIB, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char *at = p + (-(uintptr_t)p & (2 * MIB - 1));

	(void)unused;
	if (p == MAP_FAILED)
		return -ENOMEM;
	*(char **)at = p;
	*ptr = at + 4 * KIB;
	crooked += size;
	return 0;
}

static int crooked_free(void *unused, void *ptr, size_t size)
{
	char *p = *(char **)((char *)ptr - 4 * KIB);

	(void)unused;
	if (munmap(p, size + 4 * MIB))
		return -errno;
	crooked -= size;
	return 0;
}

/* Regions that are larger than what is held in them, to be aligned, count as a whole. */
static void larger_regions(void)
{
	const struct hetmem_provider provider = {
		.size = sizeof(provider), .version = HETMEM_PROVIDER_VERSION,
		.flags = HETMEM_PROVIDER_HOST, .device = -1, .granularity = 4 * KIB,
		.alloc = crooked_alloc, .free = crooked_free,
	};
	struct hetmem_resource *res;
	unsigned int i;
	void *p[20];

	open_device("hmm memory=8M");
	hm->root = root;
	put_host(320 * MIB, 320 * MIB);
	need(!hetmem_provider_register(hm, "crooked", &provider, NULL), "registers");
	res = make("headroom(classes(custom(name=crooked)),keep=10M)");
	for (i = 0; i < 20 && (p[i] = get(res, 18 * MIB)); i++)
		;
	ok(i && crooked <= 300 * MIB, "%u blocks in %zu MiB", i, crooked / MIB);
	while (i)
		put(res, p[--i]);
	hetmem_trim(res, 0, NULL);
	is(crooked, 0, "all is given back");
	ok(get(res, 298 * MIB), "and can be had again: %s", hetmem_last_error());
	is(crooked, 300 * MIB, "in a larger region");
	hetmem_resource_destroy(res);
	hetmem_close(hm);
}

/* Bytes that an importer has, which the soft driver does not count. */
static size_t imported;
static CUresult (*mem_get_info)(size_t *available, size_t *total);

static CUresult count_imported(size_t *available, size_t *total)
{
	const CUresult res = mem_get_info(available, total);

	*available -= res ? 0 : imported;
	return res;
}

/* Exported memory that is freed stays with its importers, at once and later. */
static void exports(void)
{
	struct hetmem_segment segment;
	struct hetmem_resource *res;
	int fd;
	void *p;

	open_device("hmm memory=64M");
	mem_get_info = hm->driver.cuMemGetInfo;
	hm->driver.cuMemGetInfo = count_imported;
	res = make("headroom(pool(vmm(export=fd)),keep=10M)");
	p = get(res, 20 * MIB);
	need(p && hetmem_export(res, p, &fd, &segment, 1) == 1, "an export: %s",
	     hetmem_last_error());
	imported = 20 * MIB;
	put(res, p);
	ok(!get(res, 34 * MIB), "20 MiB are in use: %s", hetmem_last_error());
	p = get(res, 32 * MIB);
	ok(p && usable(0) == 10 * MIB, "what is kept is left");
	put(res, p);
	imported = 0;
	close(fd);
	answer_expires();
	ok(get(res, 52 * MIB), "when they are gone, all is there: %s", hetmem_last_error());
	hetmem_resource_destroy(res);
	hetmem_close(hm);
}

static void growth(void)
{
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = 10 * MIB, .reserve = 64 * MIB,
		.stream = HETMEM_STREAM_HOST,
	};
	struct hetmem_resource *res;
	void *p;

	open_device("hmm memory=64M");
	res = make("headroom(pool(vmm),keep=10M)");
	need(!hetmem_alloc_with(res, &params, &p), "a block that can grow: %s",
	     hetmem_last_error());
	is(hetmem_grow(res, p, 40 * MIB, HETMEM_STREAM_HOST), 0, "grows: %s",
	   hetmem_last_error());
	is(hetmem_grow(res, p, 60 * MIB, HETMEM_STREAM_HOST), -ENOMEM,
	   "no further: %s", hetmem_last_error());
	ok(strstr(hetmem_last_error(), "fit"), "with the number");
	is(hetmem_grow(res, (char *)p + 512, 60 * MIB, HETMEM_STREAM_HOST), -EINVAL,
	   "not a block");
	params.bytes = 20 * MIB;
	params.reserve = 20 * MIB;
	is(hetmem_alloc_with(res, &params, &p), -ENOMEM, "with options, too: %s",
	   hetmem_last_error());
	hetmem_resource_destroy(res);
	hetmem_close(hm);
}

static void failures(void)
{
	struct hetmem_resource *res = NULL;
	void *p;

	open_device("hmm memory=64M");
	is(hetmem_resource_create(hm, "headroom(fallback(pool(vmm),pool(managed)))", &res),
	   -EINVAL, "two memories: %s", hetmem_last_error());
	is(hetmem_resource_create(hm, "headroom(device,keep=x)", &res), -EINVAL,
	   "no size");
	res = make("headroom(device,keep=10M)");
	need(!hm->soft->rules("cuMemAlloc:1=CUDA_ERROR_UNKNOWN", NULL), "a rule");
	ok(!get(res, 50 * MIB), "upstream fails: %s", hetmem_last_error());
	hm->soft->rules(NULL, NULL);
	p = get(res, 50 * MIB);
	ok(p, "nothing was taken: %s", hetmem_last_error());
	put(res, p);
	/* Nobody tells how much there is: it is not the headroom that refuses. */
	answer_expires();
	need(!hm->soft->rules("cuMemGetInfo:*=CUDA_ERROR_UNKNOWN", NULL), "a rule");
	p = get(res, 60 * MIB);
	ok(p, "what is not known does not count: %s", hetmem_last_error());
	hm->soft->rules(NULL, NULL);
	hetmem_resource_destroy(res);
	hetmem_close(hm);
}

struct worker {
	pthread_t thread;
	struct hetmem_resource *res;
	unsigned int got, refused, other;
};

/* 8 at a time of up to 4 MiB: together more than there is. */
static void *work(void *arg)
{
	struct worker *w = arg;
	unsigned int seed = (uintptr_t)w, i, k;
	void *held[8] = { NULL };
	int err;

	for (i = 0; i < 2000; i++) {
		seed = seed * 1103515245 + 12345;
		k = seed >> 16 & 7;
		if (held[k]) {
			w->other += !!hetmem_free(w->res, held[k], 0,
						  HETMEM_STREAM_HOST);
			held[k] = NULL;
			continue;
		}
		err = hetmem_alloc(w->res, (seed >> 8) % (4 * MIB) + 1, 0,
				   HETMEM_STREAM_HOST, &held[k]);
		if (!err)
			w->got++;
		else if (err == -ENOMEM)
			w->refused++;
		else
			w->other++;
	}
	for (k = 0; k < 8; k++)
		if (held[k])
			hetmem_free(w->res, held[k], 0, HETMEM_STREAM_HOST);
	return NULL;
}

#define WORKERS	6

static bool watches;

/* Returns the least that was usable while @watches, in KiB. */
static void *watch(void *arg)
{
	uint64_t least = UINT64_MAX, now;

	while (__atomic_load_n(&watches, __ATOMIC_ACQUIRE)) {
		now = usable(0);
		least = now < least ? now : least;
	}
	return (char *)arg + least / KIB;
}

static void threads(const char *spec, size_t keep)
{
	struct worker w[WORKERS] = { 0 };
	struct hetmem_resource *res;
	unsigned int got = 0, refused = 0;
	pthread_t watcher;
	void *p, *least;
	size_t i;

	open_device("hmm memory=32M");
	res = make(spec);
	watches = true;
	need(!pthread_create(&watcher, NULL, watch, NULL), "a thread");
	for (i = 0; i < WORKERS; i++) {
		w[i].res = res;
		need(!pthread_create(&w[i].thread, NULL, work, &w[i]), "a thread");
	}
	for (i = 0; i < WORKERS; i++) {
		pthread_join(w[i].thread, NULL);
		got += w[i].got;
		refused += w[i].refused;
		is(w[i].other, 0, "%s: no other errors", spec);
	}
	__atomic_store_n(&watches, false, __ATOMIC_RELEASE);
	pthread_join(watcher, &least);
	ok(got > 0, "%u allocations, %u refused", got, refused);
	ok((uintptr_t)least >= keep / KIB, "never fewer than %zu KiB are usable, but %zu",
	   keep / KIB, (size_t)least);
	answer_expires();
	p = get(res, 28 * MIB - keep);
	ok(p, "all is there again: %s", p ? "" : hetmem_last_error());
	hetmem_resource_destroy(res);
	hetmem_close(hm);
}

/* Without the module nobody knows what is on the device: each page counts. */
static void prefetches(void)
{
	const uint32_t device = HETMEM_LOC(HETMEM_DEVICE, 0);
	struct hetmem_moved moved = { .size = sizeof(moved) };
	struct hetmem_resource *res, *held;
	const size_t size = 64 * MIB;
	char *p;

	open_device("hmm memory=64M");
	p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	need(p != MAP_FAILED, "memory");
	is(hetmem_prefetch(hm, p, size, device, NULL, &moved), 0, "no headroom");
	is(moved.not_moved, 0, "all of it: %s", moved.reason);
	res = make("headroom(pool(system(device=0)),keep=2M)");
	is(hetmem_prefetch(hm, p, 60 * MIB, device, NULL, &moved), 0, "what fits");
	is(moved.not_moved, 0, "goes: %s", moved.reason);
	is(hetmem_prefetch(hm, p, size, device, NULL, &moved), 0, "more");
	is(moved.not_moved, 4 * MIB / hm->page_size, "is trimmed");
	is(moved.why, HETMEM_WHY_NO_MEMORY, "for want of room");
	is(moved.why_addr, (uintptr_t)p + 60 * MIB, "from there on");
	ok(!strcmp(moved.how, "driver") && strstr(moved.reason, "62914560 fit"),
	   "with the number: %s", moved.reason);
	is(hetmem_prefetch(hm, p, size, HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY), NULL,
			   &moved), 0, "to the host");
	is(moved.not_moved, 0, "all of it");
	held = make("device");
	need(get(held, 60 * MIB), "the device is full");
	is(hetmem_prefetch(hm, p, size, device, NULL, &moved), -ENOMEM,
	   "refused: %s", hetmem_last_error());
	ok(strstr(hetmem_last_error(), "at most 0 fit"), "with the number");
	hetmem_resource_destroy(res);
	is(hetmem_prefetch(hm, p, size, device, NULL, &moved), 0,
	   "without the headroom the driver sees to it");
	hetmem_resource_destroy(held);
	munmap(p, size);
	hetmem_close(hm);
}

int main(void)
{
	char command[64];

	need(mkdtemp(root), "a directory");
	bare_device();
	others();
	pools();
	the_hosts();
	held_by_no_class();
	larger_regions();
	exports();
	growth();
	failures();
	threads("headroom(pool(vmm),keep=2M)", 2 * MIB);
	threads("headroom(device,keep=2M)", 2 * MIB);
	threads("headroom(pool(device),keep=12M)", 12 * MIB);
	threads("stats(headroom(binning(pool(vmm),pool(device),at=1M),keep=3M))", 3 * MIB);
	prefetches();
	snprintf(command, sizeof(command), "rm -rf %s", root);
	need(!system(command), "clean");
	return tap_end();
}
