// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Placement without the module: residency by move_pages(2), prefetch that
 * says what it could and could not do, and arguments that must be refused.
 */
#include <sys/mman.h>

#include "api.h"

#define PAGES	600U
#define LEN	((size_t)PAGES * page)

static struct hetmem *hm;
static size_t page;

/* Pages of each kind in [p, p + size), by calls that have @nr runs of room. */
static unsigned int count(const void *p, size_t size, size_t nr,
			  unsigned int pages[5])
{
	uintptr_t at = (uintptr_t)p, end = at + size, next;
	struct hetmem_run runs[64];
	unsigned int calls = 0;
	ssize_t n, i;

	memset(pages, 0, 5 * sizeof(*pages));
	while (at < end) {
		n = hetmem_residency(hm, (void *)at, end - at, runs, NULL, nr, &next);
		if (n <= 0 || next <= at || runs[0].start != at ||
		    runs[n - 1].end != next)
			return 0;
		for (i = 0; i < n; i++) {
			if (i && runs[i].start != runs[i - 1].end)
				return 0;
			pages[HETMEM_LOC_KIND(runs[i].location)] +=
				(runs[i].end - runs[i].start) / page;
		}
		at = next;
		calls++;
	}
	return calls;
}

static void residency(unsigned char *p)
{
	struct hetmem_run runs[4];
	unsigned int pages[5], i;
	uintptr_t next = 0;

	is(count(p, LEN, 64, pages), 1, "untouched memory in one call");
	is(pages[HETMEM_UNKNOWN], PAGES, "and nothing is known of it");
	for (i = 0; i < PAGES; i += 100)
		p[i * page] = 1;
	count(p, LEN, 64, pages);
	is(pages[HETMEM_HOST], PAGES / 100, "what was written is on the host");
	is(pages[HETMEM_UNKNOWN], PAGES - PAGES / 100, "the rest unknown");
	is(count(p, LEN, 1, pages), 2 * PAGES / 100,
	   "one run a call: as many calls as runs");
	is(pages[HETMEM_HOST], PAGES / 100, "with the same result");
	munmap(p + 10 * page, 5 * page);
	count(p, LEN, 64, pages);
	is(pages[HETMEM_UNMAPPED], 5, "a hole is a hole");
	is(pages[HETMEM_HOST] + pages[HETMEM_UNKNOWN], PAGES - 5,
	   "everything is counted once");
	is(hetmem_residency(hm, p + 1, 1, runs, NULL, 4, &next), 1,
	   "one byte is a page");
	ok(runs[0].start == (uintptr_t)p && runs[0].end == next &&
	   next == (uintptr_t)p + page, "widened to it");
	is(runs[0].location, HETMEM_LOC(HETMEM_HOST, 0), "of node 0");
}

static void bad_residency(unsigned char *p)
{
	struct hetmem_run run;
	uintptr_t next;

	is(hetmem_residency(NULL, p, page, &run, NULL, 1, &next), -EINVAL, "no library");
	is(hetmem_residency(hm, p, 0, &run, NULL, 1, &next), -EINVAL, "no bytes");
	is(hetmem_residency(hm, p, page, NULL, NULL, 1, &next), -EINVAL, "no runs");
	is(hetmem_residency(hm, p, page, &run, NULL, 0, &next), -EINVAL, "no room");
	is(hetmem_residency(hm, p, page, &run, NULL, 1, NULL), -EINVAL, "no next");
	is(hetmem_residency(hm, p, SIZE_MAX, &run, NULL, 1, &next), -EINVAL,
	   "around the end of the address space");
	is(hetmem_residency(hm, (void *)-4096L, 4096, &run, NULL, 1, &next), -EINVAL,
	   "up to its end");
}

static void prefetch(unsigned char *p)
{
	const uint32_t node0 = HETMEM_LOC(HETMEM_HOST, 0);
	const uint32_t device0 = HETMEM_LOC(HETMEM_DEVICE, 0);
	struct hetmem_moved m = { .size = sizeof(m) };

	memset(p, 1, 20 * page);
	is(hetmem_prefetch(hm, p, 40 * page, node0, NULL, &m), 0,
	   "to the node where it is");
	ok(!strcmp(m.how, "move_pages"), "by move_pages");
	is(m.already, 20, "what is there already");
	is(m.moved, 0, "nothing moved");
	is(m.not_moved, 20, "what is nowhere");
	is(m.why, HETMEM_WHY_ABSENT, "why");
	is(m.why_addr, (uintptr_t)p + 20 * page, "from where");
	ok(!*m.reason, "some are where they should be");
	is(hetmem_prefetch(hm, p + 20 * page, page, node0, NULL, &m), 0, "what is nowhere");
	ok(!m.moved && strstr(m.reason, "no page moved: ") && strstr(m.reason, "write to the memory"),
	   "no page moved, and why in words: %s", m.reason);

	is(hetmem_prefetch(hm, p, page, device0, NULL, &m), 0,
	   "to a device that cannot have it is no error");
	ok(!strcmp(m.how, "none") && strstr(m.reason, "hetmem.ko"),
	   "but has a reason: %s", m.reason);
	is(m.moved + m.already + m.not_moved + m.why, 0,
	   "and no old numbers");
	is(hetmem_prefetch(hm, p, page, HETMEM_LOC(HETMEM_HOST,
			   HETMEM_NODE_ANY), NULL, &m), 0, "to any node");
	ok(!strcmp(m.how, "none") && *m.reason, "it is there: %s", m.reason);
	is(hetmem_prefetch(hm, p, page, device0, NULL, NULL), 0,
	   "nobody wants to know");

	is(hetmem_prefetch(hm, p, page, HETMEM_LOC(HETMEM_DEVICE, 1), NULL,
			   &m), -ENODEV, "no such device");
	is(hetmem_prefetch(hm, p, page, HETMEM_LOC(HETMEM_DEVICE, 0x8000),
			   NULL, &m), -ENODEV, "no such device of the module");
	is(hetmem_prefetch(hm, p, page, HETMEM_LOC(HETMEM_HOST, 77), NULL,
			   &m), -EINVAL, "no such node");
	is(hetmem_prefetch(hm, p, page, HETMEM_LOC(HETMEM_FOREIGN, 0), NULL,
			   &m), -EINVAL, "no target");
	is(hetmem_prefetch(hm, p, page, 0, NULL, &m), -EINVAL, "unknown");
	is(hetmem_prefetch(hm, p, 0, node0, NULL, &m), -EINVAL, "no bytes");
	is(hetmem_prefetch(hm, p, SIZE_MAX, node0, NULL, &m), -EINVAL,
	   "too many");
	is(hetmem_prefetch(NULL, p, page, node0, NULL, &m), -EINVAL,
	   "no library");
	m.size = 16;
	is(hetmem_prefetch(hm, p, page, node0, NULL, &m), -EINVAL,
	   "a result too small");
}

/* Managed memory goes to the driver, its own stays. */
static void drivers_memory(void)
{
	const struct hm_api *d = api_of(hm);
	const uint32_t device0 = HETMEM_LOC(HETMEM_DEVICE, 0);
	struct hetmem_moved m = { .size = sizeof(m) };
	CUdeviceptr managed, device;
	CUcontext ctx;
	int where = -9;

	need(!d->cuDevicePrimaryCtxRetain(&ctx, 0) && !d->cuCtxSetCurrent(ctx) &&
	     !d->cuMemAllocManaged(&managed, 1 << 20, CU_MEM_ATTACH_GLOBAL) &&
	     !d->cuMemAlloc(&device, 1 << 20), "memory of the driver");
	d->cuCtxSetCurrent(NULL);
	is(hetmem_prefetch(hm, (void *)(uintptr_t)managed, 1 << 20, device0,
			   NULL, &m), 0, "managed memory, no current context");
	ok(!strcmp(m.how, "driver"), "by the driver");
	d->cuCtxGetCurrent(&ctx);
	ok(!ctx, "and none is current afterwards");
	d->cuMemRangeGetAttribute(&where, sizeof(where),
			CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION,
			managed, 1 << 20);
	is(where, 0, "who was asked to");
	is(hetmem_prefetch(hm, (void *)(uintptr_t)device, 4096, device0, NULL,
			   &m), 0, "device memory");
	ok(!strcmp(m.how, "none") && *m.reason, "stays: %s", m.reason);
	need(!soft_rules("cuMemPrefetchAsync:1=CUDA_ERROR_LAUNCH_FAILED",
			    NULL), "a rule");
	is(hetmem_prefetch(hm, (void *)(uintptr_t)managed, 4096, device0, NULL,
			   &m), -EIO, "a driver that fails");
	ok(strstr(hetmem_last_error(), "CUDA_ERROR_LAUNCH_FAILED"), "says: %s",
	   hetmem_last_error());
	soft_rules("cuMemPrefetchAsync:1=CUDA_ERROR_OUT_OF_MEMORY", NULL);
	is(hetmem_prefetch(hm, (void *)(uintptr_t)managed, 4096, device0, NULL,
			   &m), -ENOMEM, "a driver without memory");
	soft_rules(NULL, NULL);
	is(d->cuMemFree(managed) + d->cuMemFree(device) +
	   d->cuDevicePrimaryCtxRelease(0), 0, "freed");
}

int main(void)
{
	struct hetmem_params params = {
		.size = sizeof(params), .driver = "soft", .module_path = "",
	};
	unsigned char *p;

	page = sysconf(_SC_PAGESIZE);
	need(!hetmem_open(&hm, &params), "opens");
	p = mmap(NULL, LEN, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	need(p != MAP_FAILED, "maps");
	madvise(p, LEN, MADV_NOHUGEPAGE);
	residency(p);
	bad_residency(p);
	munmap(p, LEN);

	p = mmap(NULL, LEN, PROT_READ | PROT_WRITE,
		 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	madvise(p, LEN, MADV_NOHUGEPAGE);
	prefetch(p);
	drivers_memory();
	munmap(p, LEN);
	hetmem_close(hm);
	return tap_end();
}
