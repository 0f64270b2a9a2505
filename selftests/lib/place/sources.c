// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Residency tells who says so: the kernel, the driver's last request, nobody; and
 * what is a request is never sold as where pages are. Without the module. Names of
 * nodes that are a device's memory.
 */
#include <sys/mman.h>

#include "platform/machine.h"

#define PAGES	16U

static struct hetmem *hm;
static size_t page;

/* The one run of [@p, @p + @pages), and its source. */
static struct hetmem_run run_of(const void *p, size_t pages, uint8_t *source)
{
	uint8_t sources[4] = { 99, 99, 99, 99 };
	struct hetmem_run runs[4];
	uintptr_t next = 0;
	ssize_t n = hetmem_residency(hm, p, pages * page, runs, sources, 4, &next);

	need(n == 1 && next == (uintptr_t)p + pages * page, "one run, not %d: %s",
	     (int)n, hetmem_last_error());
	ok(sources[1] == 99, "no more sources than runs");
	*source = sources[0];
	return runs[0];
}

static void is_at(const void *p, size_t pages, uint32_t location, int source,
		  const char *what)
{
	uint8_t told = 99;
	struct hetmem_run run = run_of(p, pages, &told);
	char name[64];

	ok(run.location == location && told == source, "%s: %s, source %d", what,
	   hetmem_location_name(hm, run.location, name, sizeof(name)), told);
}

static void malloced(void)
{
	char *p = mmap(NULL, PAGES * page, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	uint8_t sources[8] = { 0 };
	struct hetmem_run runs[8];
	uintptr_t next;

	need(p != MAP_FAILED, "memory");
	madvise(p, PAGES * page, MADV_NOHUGEPAGE);
	is_at(p, PAGES, HETMEM_LOC(HETMEM_UNKNOWN, 0), HETMEM_SOURCE_UNKNOWN,
	      "never touched");
	memset(p + 4 * page, 1, 4 * page);
	munmap(p + 12 * page, 2 * page);
	is(hetmem_residency(hm, p, PAGES * page, runs, sources, 8, &next), 5,
	   "a run for each");
	ok(sources[0] == HETMEM_SOURCE_UNKNOWN &&
	   sources[1] == HETMEM_SOURCE_MOVE_PAGES &&
	   sources[2] == HETMEM_SOURCE_UNKNOWN &&
	   sources[3] == HETMEM_SOURCE_MOVE_PAGES &&
	   sources[4] == HETMEM_SOURCE_UNKNOWN, "each has its source: %d %d %d %d %d",
	   sources[0], sources[1], sources[2], sources[3], sources[4]);
	ok(HETMEM_LOC_KIND(runs[1].location) == HETMEM_HOST &&
	   HETMEM_LOC_KIND(runs[3].location) == HETMEM_UNMAPPED,
	   "what was touched, and the hole");
	memset(sources, 77, sizeof(sources));
	is(hetmem_residency(hm, p, PAGES * page, runs, sources, 2, &next), 2,
	   "room for two");
	ok(sources[1] == HETMEM_SOURCE_MOVE_PAGES && sources[2] == 77,
	   "two sources");
	munmap(p, PAGES * page);
}

static void to(void *p, uint32_t location)
{
	struct hetmem_moved m = { .size = sizeof(m) };

	need(!hetmem_prefetch(hm, p, PAGES * page, location, NULL, &m) &&
	     !strcmp(m.how, "driver"), "prefetch: %s", hetmem_last_error());
}

/* Managed memory that no CPU has touched: the kernel knows nothing of it. */
static void managed(void)
{
	const struct hm_api *d = api_of(hm);
	const uint32_t any = HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY);
	struct hetmem_run run;
	CUdeviceptr managed;
	uintptr_t next;
	CUcontext ctx;
	CUresult (*ask)(void *data, size_t size, CUmem_range_attribute which,
			CUdeviceptr ptr, size_t bytes);
	void *p;

	need(!d->cuDevicePrimaryCtxRetain(&ctx, 0) && !d->cuCtxSetCurrent(ctx) &&
	     !d->cuMemAllocManaged(&managed, PAGES * page, CU_MEM_ATTACH_GLOBAL),
	     "managed memory");
	d->cuCtxSetCurrent(NULL);
	p = (void *)(uintptr_t)managed;
	is_at(p, PAGES, HETMEM_LOC(HETMEM_UNKNOWN, 0), HETMEM_SOURCE_UNKNOWN,
	      "never sent anywhere");
	to(p, HETMEM_LOC(HETMEM_DEVICE, 1));
	is_at(p, PAGES, HETMEM_LOC(HETMEM_DEVICE, 1), HETMEM_SOURCE_REQUEST,
	      "sent to device 1");
	is_at((char *)p + page, 2, HETMEM_LOC(HETMEM_DEVICE, 1),
	      HETMEM_SOURCE_REQUEST, "a part of it");
	is(hetmem_residency(hm, p, page, &run, NULL, 1, &next), 1, "no sources");
	is(run.location, HETMEM_LOC(HETMEM_UNKNOWN, 0),
	   "a request is not where it is");
	to(p, any);
	is_at(p, PAGES, any, HETMEM_SOURCE_REQUEST, "sent to the host");
	to(p, HETMEM_LOC(HETMEM_DEVICE, 0));
	d->cuCtxGetCurrent(&ctx);
	ok(!ctx, "no context is current afterwards");

	soft_rules("cuMemRangeGetAttribute:*", NULL);
	is_at(p, PAGES, HETMEM_LOC(HETMEM_UNKNOWN, 0), HETMEM_SOURCE_UNKNOWN,
	      "a driver that fails");
	soft_rules(NULL, NULL);
	ask = hm->driver.cuMemRangeGetAttribute;
	hm->driver.cuMemRangeGetAttribute = NULL;
	is_at(p, PAGES, HETMEM_LOC(HETMEM_UNKNOWN, 0), HETMEM_SOURCE_UNKNOWN,
	      "a driver that has no such call");
	hm->driver.cuMemRangeGetAttribute = ask;

	memset(p, 1, PAGES * page);
	is_at(p, PAGES, HETMEM_LOC(HETMEM_HOST, 0), HETMEM_SOURCE_MOVE_PAGES,
	      "the kernel's word comes first");
	d->cuMemFree(managed);
	d->cuDevicePrimaryCtxRelease(0);
}

static void name(uint32_t location, const char *want)
{
	char buf[64];

	ok(!strcmp(hetmem_location_name(hm, location, buf, sizeof(buf)), want),
	   "%s: %s", want, buf);
}

/* Node 0 plays the memory of device 1. */
static void coherent_node(void)
{
	const uint32_t node0 = HETMEM_LOC(HETMEM_HOST, 0);
	char *p = mmap(NULL, page, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0), buf[64] = "x";

	need(p != MAP_FAILED, "memory");
	*p = 1;
	is_at(p, 1, HETMEM_LOC(HETMEM_DEVICE, 1), HETMEM_SOURCE_MOVE_PAGES,
	      "a device's node is the device");
	name(HETMEM_LOC(HETMEM_DEVICE, 1), "device 1 (node 0)");
	name(node0, "device 1 (node 0)");
	name(HETMEM_LOC(HETMEM_DEVICE, 0), "device 0");
	name(HETMEM_LOC(HETMEM_DEVICE, 7), "device 7");
	name(HETMEM_LOC(HETMEM_DEVICE, 0x8001), "kernel device 1");
	name(HETMEM_LOC(HETMEM_HOST, 1), "host node 1");
	name(HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY), "host");
	name(HETMEM_LOC(HETMEM_COHERENT, 0), "other driver's coherent device 0");
	ok(!strcmp(hetmem_location_name(NULL, node0, buf, sizeof(buf)),
		   "host node 0"), "nobody's node: %s", buf);
	buf[0] = 'x';
	hetmem_location_name(hm, node0, buf, 0);
	ok(buf[0] == 'x' && !hetmem_location_name(hm, node0, NULL, 9), "no room");
	munmap(p, page);
}

int main(void)
{
	page = sysconf(_SC_PAGESIZE);
	hm = open_machine("managed; managed");
	need(hm, "opens: %s", hetmem_last_error());
	malloced();
	managed();
	hetmem_close(hm);
	hm = open_machine("hmm; ats node=0");
	need(hm, "opens: %s", hetmem_last_error());
	coherent_node();
	hetmem_close(hm);
	return tap_end();
}
