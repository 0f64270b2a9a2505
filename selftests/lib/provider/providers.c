// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The providers of whole regions over the soft driver: what they promise,
 * every driver call failing in turn, drivers that lack calls, fork.
 */
#include <numaif.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "driver_calls.h"
#include "provider/pages.h"
#include "provider/regions.h"
#include "soft_driver.h"

#define MIB	((size_t)1 << 20)

static int managed(struct hm_provider **p)
{
	return hm_managed_provider(hm, 0, p);
}

static int async(struct hm_provider **p)
{
	return hm_async_provider(hm, 0, NULL, p);
}

static int registered(struct hm_provider **p)
{
	return hm_registered_provider(hm, 0, NULL, p);
}

static int pinned(struct hm_provider **p)
{
	return hm_pinned_provider(hm, 0, NULL, p);
}

static int system_memory(struct hm_provider **p)
{
	return hm_system_provider(hm, 0, NULL, p);
}

static int host(struct hm_provider **p)
{
	return hm_host_provider(hm, p);
}

static const struct {
	const char *name;
	int (*make)(struct hm_provider **p);
	unsigned int caps;
} kinds[] = {
	{ "managed", managed, HM_PROVIDER_HOST | HM_PROVIDER_DEVICE |
	  HM_PROVIDER_LAZY | HM_PROVIDER_MOVES },
	{ "async", async, HM_PROVIDER_DEVICE | HM_PROVIDER_STREAMED },
	{ "pinned", pinned, HM_PROVIDER_HOST | HM_PROVIDER_DEVICE },
	{ "registered", registered, HM_PROVIDER_HOST | HM_PROVIDER_DEVICE },
	{ "system", system_memory, HM_PROVIDER_HOST | HM_PROVIDER_FORK |
	  HM_PROVIDER_LAZY | HM_PROVIDER_PAGES },
	{ "host", host, HM_PROVIDER_HOST | HM_PROVIDER_FORK |
	  HM_PROVIDER_LAZY | HM_PROVIDER_PAGES },
};

#define NR_KINDS	(sizeof(kinds) / sizeof(kinds[0]))

/* Bytes of memory that the soft driver knows. */
static size_t known(void)
{
	drv->cuCtxSynchronize();
	return device_used() + (hm->soft->holds() ? 1 : 0);
}

static void promises(size_t i)
{
	static const size_t sizes[] = { 1, 3 * MIB, 17 * MIB + 1, 33 * MIB };
	unsigned char out[2] = { 0 };
	struct hm_provider *p;
	unsigned char *a, *b;
	size_t j, size;
	void *v, *w;

	need(!kinds[i].make(&p), "%s: %s", kinds[i].name, hetmem_last_error());
	ok(!strcmp(p->ops->name, kinds[i].name), "%s: its name", p->ops->name);
	is(p->caps & ~HM_PROVIDER_DEVICE, kinds[i].caps & ~HM_PROVIDER_DEVICE,
	   "what it can do");
	ok(p->total > 0 && p->granularity >= 512 &&
	   !(p->granularity & (p->granularity - 1)), "total and granularity");
	for (j = 0; j < 4; j++) {
		size = (sizes[j] + p->granularity - 1) & ~(p->granularity - 1);
		need(!p->ops->alloc(p, size, NULL, &v) &&
		     !p->ops->alloc(p, size, HETMEM_STREAM_HOST, &w),
		     "two regions of %zu", size);
		a = v;
		b = w;
		ok(!((uintptr_t)a & (p->granularity - 1)) &&
		   !((uintptr_t)b & (p->granularity - 1)) &&
		   (a + size <= b || b + size <= a), "aligned, and apart");
		drv->cuMemsetD8Async((uintptr_t)v, 0x11, size, NULL);
		drv->cuMemsetD8Async((uintptr_t)w, 0x22, size, NULL);
		drv->cuMemcpyDtoHAsync(&out[0], (uintptr_t)v + size - 1, 1,
				       NULL);
		drv->cuMemcpyDtoHAsync(&out[1], (uintptr_t)w, 1, NULL);
		drv->cuCtxSynchronize();
		ok(out[0] == 0x11 && out[1] == 0x22, "the device uses them");
		if (p->caps & HM_PROVIDER_HOST) {
			ok(a[0] == 0x11 && b[size - 1] == 0x22, "so does the CPU");
			a[size - 1] = 5;
		}
		is(p->ops->free(p, v, size, NULL), 0, "freed");
		is(p->ops->free(p, w, size, HETMEM_STREAM_HOST), 0, "freed");
	}
	p->ops->destroy(p);
	is(known(), 0, "nothing is left");
}

/*
 * Whatever call fails: an error is told, nothing has changed, and the same
 * again works when the driver does.
 */
static bool scenario(size_t i, bool *failed)
{
	struct hm_provider *p;
	bool good = true;
	void *v, *w;
	int err;

	if (kinds[i].make(&p)) {
		*failed = true;
		return hetmem_last_error()[0];
	}
	err = p->ops->alloc(p, 2 * MIB, HETMEM_STREAM_HOST, &v);
	if (!err) {
		err = p->ops->alloc(p, 2 * MIB, NULL, &w);
		if (!err && p->ops->free(p, w, 2 * MIB, NULL)) {
			*failed = true;
			good &= !p->ops->free(p, w, 2 * MIB, NULL);
		}
		*failed |= err;
		if (p->ops->free(p, v, 2 * MIB, HETMEM_STREAM_HOST)) {
			*failed = true;
			good &= !p->ops->free(p, v, 2 * MIB,
					      HETMEM_STREAM_HOST);
		}
	}
	*failed |= err;
	p->ops->destroy(p);
	return good;
}

static void failures(size_t i)
{
	int nth, fails = 0, bad = 0, left = 0;
	char rule[96];
	bool failed;
	size_t j;

	for (j = 0; j < NR_CALLS; j++) {
		for (nth = 1; nth < 20; nth++) {
			snprintf(rule, sizeof(rule), "%s:%d", calls[j], nth);
			soft_rules(rule, NULL);
			failed = false;
			if (!scenario(i, &failed)) {
				printf("# %s %s\n", kinds[i].name, rule);
				bad++;
			}
			soft_rules(NULL, NULL);
			if (known()) {
				printf("# left by %s\n", rule);
				left++;
			}
			if (!failed)
				break;
			fails++;
		}
	}
	is(bad, 0, "%s: %d calls failed", kinds[i].name, fails);
	is(left, 0, "nothing was left");
	if (kinds[i].caps & HM_PROVIDER_FORK)
		is(fails, 0, "it needs no driver");
	else
		ok(fails >= 4, "some really did");
}

static void streamed(void)
{
	struct hm_async_options options = { .max = 4 * MIB };
	struct hm_provider *p;
	CUstream s;
	void *v, *w;

	need(!hm_async_provider(hm, 0, &options, &p), "async with a limit");
	drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING);
	need(!p->ops->alloc(p, 3 * MIB, s, &v), "3 MiB");
	is(p->ops->alloc(p, 3 * MIB, s, &w), -ENOMEM, "6 are too many");
	soft_rules(NULL, "cuMemsetD8Async:50ms");
	drv->cuMemsetD8Async((uintptr_t)v, 1, 3 * MIB, s);
	is(p->ops->free(p, v, 3 * MIB, s), 0, "freed in stream order");
	is(drv->cuStreamQuery(s), CUDA_ERROR_NOT_READY, "which waits for nothing");
	is(p->ops->alloc(p, 3 * MIB, s, &v), 0, "and there again");
	soft_rules(NULL, NULL);
	is(p->ops->free(p, v, 3 * MIB, s), 0, "freed");
	drv->cuStreamSynchronize(s);
	drv->cuStreamDestroy(s);
	p->ops->destroy(p);
	is(known(), 0, "nothing is left");
}

static void lacking(void)
{
	struct hm_async_options limited = { .max = MIB };
	struct hm_pinned_options nowhere = { .node = 1000 };
	struct hm_driver whole = hm->driver;
	struct hm_provider *p;

	hm->driver.cuMemPoolCreate = NULL;
	is(hm_async_provider(hm, 0, NULL, &p), -EOPNOTSUPP,
	   "a driver without memory pools");
	ok(strstr(hetmem_last_error(), "no memory pools"), "%s",
	   hetmem_last_error());
	hm->driver = whole;
	hm->driver.version = 12020;
	is(hm_async_provider(hm, 0, &limited, &p), -EOPNOTSUPP,
	   "one that cannot limit them");
	hm->driver = whole;
	is(hm_managed_provider(hm, 7, &p), -ENODEV, "no such device");
	is(hm_async_provider(hm, -1, NULL, &p), -ENODEV, "no such device");
	is(hm_pinned_provider(hm, 7, NULL, &p), -ENODEV, "no such device");
	is(hm_system_provider(hm, 7, NULL, &p), -ENODEV, "no such device");
	is(hm_pinned_provider(hm, 0, &nowhere, &p), -EINVAL, "no such node");
}

/* In a child: host memory goes on, all else is the parent's. */
static void forked(size_t i)
{
	const bool fork_too = kinds[i].caps & HM_PROVIDER_FORK;
	struct hm_provider *p;
	void *v, *w;
	int status;

	need(!kinds[i].make(&p), "%s", kinds[i].name);
	need(!p->ops->alloc(p, 2 * MIB, HETMEM_STREAM_HOST, &v), "a region");
	fflush(stdout);
	if (!fork()) {
		const int want = fork_too ? 0 : -EOWNERDEAD;

		if (p->ops->alloc(p, 2 * MIB, HETMEM_STREAM_HOST, &w) != want)
			_exit(1);
		if (p->ops->free(p, v, 2 * MIB, HETMEM_STREAM_HOST) != want)
			_exit(2);
		if (fork_too)
			p->ops->free(p, w, 2 * MIB, HETMEM_STREAM_HOST);
		p->ops->destroy(p);
		_exit(0);
	}
	wait(&status);
	is(WIFEXITED(status) ? WEXITSTATUS(status) : 99, 0,
	   "%s: a forked child has it: %s", kinds[i].name,
	   fork_too ? "yes" : "no");
	is(p->ops->free(p, v, 2 * MIB, HETMEM_STREAM_HOST), 0,
	   "the parent does");
	p->ops->destroy(p);
}

/* Whether each page is there, by the page table. */
static size_t present(const unsigned char *p, size_t size)
{
	static unsigned char core[64 * 256];
	size_t i, n = 0;

	mincore((void *)p, size, core);
	for (i = 0; i < size / 4096; i++)
		n += core[i] & 1;
	return n * 4096;
}

static void pages(void)
{
	const size_t size = 40 * MIB;
	unsigned int threads;
	unsigned char *p;

	for (threads = 0; threads < 100; threads += 7) {
		p = hm_pages_map(size + 4096, 4096);
		ok(p && !((uintptr_t)p & (2 * MIB - 1)), "aligned to huge pages");
		is(hm_pages_populate(p, size, 4096, threads, 0), 0, "%u threads",
		   threads);
		is(present(p, size), size, "all pages are there");
		munmap(p, size + 4096);
	}
	ok(!hm_pages_map(PTRDIFF_MAX & ~4095UL, 4096), "more than there can be");
	p = hm_pages_map(3 * 4096, 4096);
	need(p, "three pages");
	munmap(p + 4096, 4096);
	is(hm_pages_populate(p, 3 * 4096, 4096, 1, 0), -ENOMEM,
	   "pages that cannot be");
	munmap(p, 3 * 4096);
}

/* Whether the kernel knows of the mapping at @p that it may have huge pages. */
static bool is_huge(const void *p)
{
	FILE *smaps = fopen("/proc/self/smaps", "r");
	unsigned long from, to;
	bool here = false, huge = false;
	char line[512];

	need(smaps, "smaps");
	while (fgets(line, sizeof(line), smaps)) {
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			here = (uintptr_t)p >= from && (uintptr_t)p < to;
		else if (here && !strncmp(line, "VmFlags:", 8))
			huge = strstr(line, " hg");
	}
	fclose(smaps);
	return huge;
}

/* Pages that the threads of this process, or this one, made to be there. */
static long faults(int who)
{
	struct rusage usage;

	getrusage(who, &usage);
	return usage.ru_minflt;
}

/* Memory whose pages are there, most of them made by other threads. */
static void *alloc_populated(struct hm_provider *p, size_t size, const char *name)
{
	long all = faults(RUSAGE_SELF), mine = faults(RUSAGE_THREAD);
	void *v;

	need(!p->ops->alloc(p, size, NULL, &v), "%s: %zu bytes", name, size);
	all = faults(RUSAGE_SELF) - all;
	mine = faults(RUSAGE_THREAD) - mine;
	is(present(v, size), size, "%s: all pages are there", name);
	ok(all >= 32 && mine < all * 3 / 4,
	   "%s: others made most of the pages: %ld of %ld", name, all - mine, all);
	return v;
}

/* What pinned does beyond registering: huge pages, near the device, in threads. */
static void pinned_pages(void)
{
	const size_t size = 64 * MIB;
	struct hm_pinned_options options = { .threads = 4, .node = 1 };
	unsigned long mask[16] = { 0 };
	struct hm_provider *p;
	int mode = -1;
	void *v;

	need(!hm_pinned_provider(hm, 0, &options, &p), "pinned, on node 0");
	v = alloc_populated(p, size, "pinned");
	if (access("/sys/kernel/mm/transparent_hugepage", F_OK))
		printf("# no huge pages in this kernel\n");
	else
		ok(is_huge(v), "pinned: huge ones, where there are some");
	if (get_mempolicy(&mode, mask, 8 * sizeof(mask), v, MPOL_F_ADDR))
		printf("# no memory nodes in this kernel\n");
	else
		ok(mode == MPOL_PREFERRED && mask[0] == 1,
		   "pinned: from node 0: %d, %lx", mode, mask[0]);
	is(p->ops->free(p, v, size, NULL), 0, "pinned: freed");
	p->ops->destroy(p);
	/* Not told, it is the node that the device is at. */
	hm->devices[0].platform.host_node = 0;
	need(!hm_pinned_provider(hm, 0, NULL, &p) &&
	     !p->ops->alloc(p, 2 * MIB, NULL, &v), "2 MiB");
	if (mode >= 0)
		ok(!get_mempolicy(&mode, mask, 8 * sizeof(mask), v,
				  MPOL_F_ADDR) && mode == MPOL_PREFERRED,
		   "pinned: the device's");
	p->ops->free(p, v, 2 * MIB, NULL);
	p->ops->destroy(p);
}

/* Huge pages that take too long: the rest is small ones, and all is there. */
static void slow_pages(void)
{
	const size_t size = 40 * MIB;
	unsigned char *p = hm_pages_map(size, 4096);

	need(p, "40 MiB");
	is(hm_pages_populate(p, size, 4096, 1, 1), 0, "each takes too long");
	is(present(p, size), size, "all pages are there");
	if (!access("/sys/kernel/mm/transparent_hugepage", F_OK)) {
		ok(is_huge(p) && is_huge(p + 7 * MIB), "four were tried");
		ok(!is_huge(p + 8 * MIB) && !is_huge(p + size - 1),
		   "the rest is not");
	}
	munmap(p, size);
}

/* The options of system: node, threads, huge pages. */
static void system_pages(void)
{
	const size_t size = 64 * MIB;
	struct hm_system_options options = { .node = 1, .populate = 4 };
	struct hm_system_options nowhere = { .node = 1000 };
	unsigned long mask[16] = { 0 };
	struct hm_provider *p;
	int mode = -1;
	void *v;

	is(hm_system_provider(hm, 0, &nowhere, &p), -EINVAL, "no such node");
	need(!hm_system_provider(hm, 0, &options, &p), "system, on node 0");
	v = alloc_populated(p, size, "system");
	if (get_mempolicy(&mode, mask, 8 * sizeof(mask), v, MPOL_F_ADDR))
		printf("# no memory nodes in this kernel\n");
	else
		ok(mode == MPOL_PREFERRED && mask[0] == 1, "system: from node 0");
	is(p->ops->free(p, v, size, NULL), 0, "system: freed");
	p->ops->destroy(p);
	need(!hm_system_provider(hm, 0, NULL, &p) &&
	     !p->ops->alloc(p, size, NULL, &v), "64 MiB");
	is(present(v, size), 0, "system: not populated unless it is told to be");
	p->ops->free(p, v, size, NULL);
	p->ops->destroy(p);
}

int main(void)
{
	size_t i;

	setenv("HETMEM_SOFT_DEBUG", "1", 1);
	open_soft("");
	for (i = 0; i < NR_KINDS; i++) {
		promises(i);
		failures(i);
		forked(i);
	}
	streamed();
	lacking();
	pages();
	pinned_pages();
	slow_pages();
	system_pages();
	close_soft();
	return tap_end();
}
