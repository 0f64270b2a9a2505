// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Prefetch of many ranges: how few calls of the driver it takes, whatever the order;
 * each range has its own result, also beside ranges that fail.
 */
#include <sys/mman.h>

#include "platform/machine.h"

#define MAX	64U
#define ANY	HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY)
#define DEVICE(i)	HETMEM_LOC(HETMEM_DEVICE, i)

static struct hetmem *hm;
static size_t page;
static struct hetmem_prefetch_range r[MAX];
static struct hetmem_moved moved[MAX];

/* What the library calls, counted. */
static struct hm_driver real;
static unsigned int singles, batches, pieces;

static CUresult count_single(CUdeviceptr ptr, size_t size, CUmemLocation location,
			     unsigned int flags, CUstream stream)
{
	singles++;
	return real.cuMemPrefetchAsync_v2(ptr, size, location, flags, stream);
}

static CUresult count_batch(CUdeviceptr *ptrs, size_t *sizes, size_t count,
			    CUmemLocation *locations, size_t *first, size_t nr,
			    unsigned long long flags, CUstream stream)
{
	batches++;
	pieces += count;
	return real.cuMemPrefetchBatchAsync(ptrs, sizes, count, locations, first, nr,
					    flags, stream);
}

static void set(unsigned int i, const void *p, size_t size, uint32_t location)
{
	moved[i] = (struct hetmem_moved){ .size = sizeof(moved[i]) };
	r[i] = (struct hetmem_prefetch_range){
		.size = sizeof(r[i]), .ptr = p, .bytes = size, .location = location,
		.result = 99, .piece = 99, .moved = &moved[i],
	};
}

static int run(unsigned int nr)
{
	singles = batches = pieces = 0;
	return hetmem_prefetch_batch(hm, r, nr, NULL);
}

static char *managed(size_t size)
{
	CUdeviceptr p;
	struct hm_context saved;

	need(!hm_context_enter(hm, 0, &saved) &&
	     !hm->driver.cuMemAllocManaged(&p, size, CU_MEM_ATTACH_GLOBAL),
	     "managed memory");
	hm_context_leave(hm, &saved);
	return (char *)(uintptr_t)p;
}

static int sent_to(const char *p)
{
	int where = -9;

	hm->driver.cuMemRangeGetAttribute(&where, sizeof(where),
		CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, (uintptr_t)p, page);
	return where;
}

/* 16 blocks that touch, in a strange order, are one piece. */
static void neighbours(void)
{
	const size_t size = 64 << 10;
	char *p = managed(16 * size);
	unsigned int i, bad = 0;

	for (i = 0; i < 16; i++)
		set(i, p + i * 5 % 16 * size, size, DEVICE(0));
	is(run(16), 0, "16 neighbours");
	is(singles + batches, 1, "one call");
	for (i = 0; i < 16; i++)
		bad += r[i].result || strcmp(moved[i].how, "driver") || r[i].piece;
	is(bad, 0, "each has its result, and the piece's number");
	is(sent_to(p + 15 * size), 0, "it arrived");

	for (i = 0; i < 16; i++)
		set(i, p + i * size, size, i == 7 ? DEVICE(1) : DEVICE(0));
	is(run(16), 0, "one in the middle goes elsewhere");
	is(singles + batches, 3, "three calls");
	for (i = 0; i < 16; i++)
		set(i, p + i * size, size / 2, DEVICE(0));
	is(run(16), 0, "gaps");
	is(singles, 16, "a call each: a batch makes small pieces no faster");
	for (i = 0; i < 4; i++)
		set(i, p + i * size, 3 * size, ANY);
	is(run(4), 0, "overlapping");
	is(singles, 1, "one piece");
	set(0, p, 0x1800, DEVICE(0));
	set(1, p + 0x1800, 0x1800, DEVICE(0));
	is(run(2), 0, "neighbours in a page");
	is(singles, 1, "one piece");
}

static void large(void)
{
	const size_t mib = 1 << 20;
	char *p = managed(16 * mib);
	unsigned int i, bad = 0;

	for (i = 0; i < 8; i++)
		set(i, p + i * 2 * mib, mib, DEVICE(i & 1));
	is(run(8), 0, "8 of 1 MiB with gaps to two devices");
	ok(batches == 1 && pieces == 8 && !singles, "one call for %u", pieces);
	for (i = 0; i < 8; i++)
		bad += sent_to(p + i * 2 * mib) != -9 && r[i].result;
	is(bad, 0, "all of them");
	for (i = 0; i < 8; i++)
		set(i, p + i * 2 * mib, mib, ANY);
	is(run(8), 0, "to the host");
	is(singles, 8, "where a batch is no faster");
	for (i = 0; i < 3; i++)
		set(i, p + i * 4 * mib, i == 1 ? mib / 2 : mib, DEVICE(0));
	is(run(3), 0, "a small one among them");
	ok(batches == 1 && pieces == 2 && singles == 1, "goes alone");

	soft_rules("cuMemPrefetchBatchAsync:1=CUDA_ERROR_NOT_SUPPORTED", NULL);
	for (i = 0; i < 8; i++)
		set(i, p + i * 2 * mib, mib, DEVICE(0));
	is(run(8), 0, "a driver whose batch fails");
	is(singles, 8, "one by one then");
	soft_rules(NULL, NULL);
	hm->driver.cuMemPrefetchBatchAsync = NULL;
	is(run(8), 0, "a driver without");
	is(singles, 8, "one by one");
	hm->driver.cuMemPrefetchBatchAsync = count_batch;
	for (i = 0; i < 8; i++)
		r[i].moved = NULL;
	is(run(8), 0, "nobody wants to know");
}

/* Good and bad together. */
static void each_its_own(void)
{
	char *p = managed(64 * page), *q = mmap(NULL, 4 * page, PROT_READ | PROT_WRITE,
					      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	need(q != MAP_FAILED, "memory");
	set(0, p, page, DEVICE(0));
	set(1, p, 0, DEVICE(0));
	set(2, p, page, DEVICE(9));
	set(3, q, page, HETMEM_LOC(HETMEM_HOST, 77));
	set(4, q, page, DEVICE(0));
	set(5, p + 2 * page, 1 << 30, DEVICE(0));
	set(6, p + page, page, DEVICE(0));
	is(run(7), -EINVAL, "the first that failed");
	ok(!strncmp(hetmem_last_error(), "range 1: ", 9), "%s", hetmem_last_error());
	ok(!r[0].result && r[1].result == -EINVAL && r[2].result == -ENODEV &&
	   r[3].result == -EINVAL && !r[4].result && r[5].result == -EINVAL &&
	   !r[6].result, "each: %d %d %d %d %d %d %d", r[0].result, r[1].result,
	   r[2].result, r[3].result, r[4].result, r[5].result, r[6].result);
	ok(!strcmp(moved[0].how, "driver") && !strcmp(moved[6].how, "driver"),
	   "the neighbours of one that failed went");
	ok(!strcmp(moved[4].how, "none") && *moved[4].reason, "no way: %s",
	   moved[4].reason);
	ok(!strcmp(moved[1].how, "none"), "nothing was done");

	soft_rules("cuMemPrefetchAsync:1=CUDA_ERROR_LAUNCH_FAILED", NULL);
	set(0, p, page, DEVICE(0));
	set(1, p + page, page, DEVICE(0));
	is(run(2), 0, "a piece that fails once");
	is(singles, 3, "is tried range by range");
	soft_rules("cuMemPrefetchAsync:*=CUDA_ERROR_LAUNCH_FAILED", NULL);
	is(run(2), -EIO, "and that fails always");
	ok(r[0].result == -EIO && r[1].result == -EIO, "both");
	soft_rules(NULL, NULL);
	is(hetmem_prefetch_batch(hm, r, 2, HETMEM_STREAM_HOST), -EINVAL, "no stream of it");
	munmap(q, 4 * page);
}

/* Between host nodes the counts are the piece's, at its first range. */
static void counts(void)
{
	char *q = mmap(NULL, 8 * page, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	unsigned int i;

	need(q != MAP_FAILED, "memory");
	memset(q, 1, 6 * page);
	for (i = 0; i < 4; i++)
		set(i, q + (3 - i) * 2 * page, 2 * page, HETMEM_LOC(HETMEM_HOST, 0));
	is(run(4), 0, "host memory to its node");
	ok(r[0].piece == 3 && r[3].piece == 3 && moved[3].already == 6 &&
	   moved[3].not_moved == 2 && moved[3].why == HETMEM_WHY_ABSENT &&
	   !moved[0].already, "piece %zu has %llu", r[0].piece,
	   (unsigned long long)moved[3].already);
	munmap(q, 8 * page);
}

static void bad_calls(void)
{
	set(0, "", 1, ANY);
	is(hetmem_prefetch_batch(NULL, r, 1, NULL), -EINVAL, "no library");
	is(hetmem_prefetch_batch(hm, NULL, 1, NULL), -EINVAL, "no ranges");
	is(hetmem_prefetch_batch(hm, NULL, 0, NULL), 0, "none at all");
	r[0].size = 8;
	is(run(1), -EINVAL, "of another size");
	set(0, "", 1, ANY);
	moved[0].size = 8;
	is(run(1), -EINVAL, "a result too small");
	is(r[0].result, 99, "nothing was tried");
}

int main(void)
{
	page = sysconf(_SC_PAGESIZE);
	hm = open_machine("managed; managed");
	need(hm, "opens: %s", hetmem_last_error());
	real = hm->driver;
	hm->driver.cuMemPrefetchAsync_v2 = count_single;
	hm->driver.cuMemPrefetchBatchAsync = count_batch;
	neighbours();
	large();
	each_its_own();
	counts();
	bad_calls();
	hetmem_close(hm);
	return tap_end();
}
