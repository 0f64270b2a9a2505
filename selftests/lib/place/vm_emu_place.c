// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The library with the emulated device: memory that goes to the device and
 * comes back, by prefetch, by the soft driver's copies, by its stream, with
 * twice as much as the device has; contents are checked every time.
 */
#include <sys/mman.h>

#include "numbers.h"

#define MIB	((size_t)1 << 20)

static size_t page;
static const uint32_t device0 = HETMEM_LOC(HETMEM_DEVICE, 0);
static const uint32_t host = HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY);

/*
 * A page now and then stays, for reasons of the kernel's own: asked again,
 * it goes.
 */
static void all_to(const char *name, unsigned char *p, size_t size,
		   uint32_t location)
{
	struct hetmem_moved m = { .size = sizeof(m) };
	int err = 0, i;

	for (i = 0; i < 20; i++) {
		err = hetmem_prefetch(hm, p, size, location, NULL, &m);
		if (err || !m.not_moved)
			break;
	}
	is(err, 0, "prefetch %s", name);
	ok(!strcmp(m.how, "module"), "by the module");
	is(m.moved + m.already, size / page, "all pages");
	is(pages_at(p, size, HETMEM_LOC_KIND(location)), size / page,
	   "are there");
}

static void devices(void)
{
	struct hetmem_device_props props = { .size = sizeof(props) };
	struct hetmem_feature f;

	is(hetmem_device_props(hm, 0, &props), 0, "device 0");
	ok(!strncmp(props.name, "hetmem_emu", 10), "is %s", props.name);
	ok(props.module_id >= 0, "known to the module");
	ok(props.total >= 2 * MIB, "of %llu MiB",
	   (unsigned long long)props.total >> 20);
	hetmem_feature(hm, HETMEM_FEATURE_MIGRATION, &f);
	ok(f.available, "migration: %s", f.reason);
	hetmem_feature(hm, HETMEM_FEATURE_PAGEABLE, &f);
	ok(f.available, "pageable: %s", f.reason);
}

static void there_and_back(void)
{
	const size_t size = 8 * MIB;
	struct hetmem_cmd_stats stats;
	struct hetmem_run run;
	unsigned char *p;
	uintptr_t next;

	need(!hetmem_system_alloc(hm, size, (void **)&p), "memory");
	write_numbers(p, size, 1);
	all_to("to the device", p, size, device0);
	is(hetmem_residency(hm, p, size, &run, NULL, 1, &next), 1, "one run");
	is(run.location, device0, "by the driver's ordinal");
	is(wrong_numbers(p, page, 1), 0, "the CPU reads");
	ok(pages_at(p, size, HETMEM_HOST) > 0, "which brings pages back");
	all_to("to the device again", p, size, device0);
	all_to("to the host", p, size, host);
	is(wrong_numbers(p, size, 1), 0, "contents");
	is(hm_kmod_stats(hetmem_kmod(hm), p, &stats), 0, "statistics");
	ok(stats.to_device >= size / page, "to the device: %llu pages",
	   (unsigned long long)stats.to_device);
	ok(stats.to_host >= size / page, "to the host: %llu",
	   (unsigned long long)stats.to_host);
	hetmem_system_free(hm, p);
}

static void device_work(void)
{
	const size_t size = 4 * MIB;
	unsigned char *p, *back = malloc(size);
	CUdeviceptr d;
	CUstream s;

	hetmem_system_alloc(hm, size, (void **)&p);
	write_numbers(p, size, 2);
	need(!drv->cuMemAlloc(&d, size) && !drv->cuStreamCreate(&s, 0),
	     "device memory, a stream");
	is(drv->cuMemcpyAsync(d, (uintptr_t)p, size, s), 0, "the device reads");
	is(drv->cuStreamSynchronize(s), 0, "all of it");
	ok(pages_at(p, size, HETMEM_DEVICE) > 0, "which brought pages to it");
	memset(back, 0, size);
	drv->cuMemcpyDtoHAsync(back, d, size, s);
	drv->cuStreamSynchronize(s);
	is(wrong_numbers(back, size, 2), 0, "contents");

	is(drv->cuMemsetD8Async((uintptr_t)p + 3, 0xee, 2 * page + 1, s), 0,
	   "the device writes, unaligned");
	is(drv->cuMemsetD32Async((uintptr_t)p + MIB + 4, 0x01020304, 1001, s),
	   0, "and words");
	is(drv->cuStreamSynchronize(s), 0, "done");
	ok(all_bytes(p + 3, 0xee, 2 * page + 1) && p[2] == back[2] &&
	   p[2 * page + 4] == back[2 * page + 4], "the CPU sees each byte");
	{
		uint32_t *w = (uint32_t *)(p + MIB);
		size_t i, bad = 0;

		for (i = 1; i <= 1001; i++)
			bad += w[i] != 0x01020304;
		is(bad, 0, "each word");
		ok(!memcmp(w, back + MIB, 4) &&
		   !memcmp(w + 1002, back + MIB + 4 * 1002, 4),
		   "and what is around");
	}
	drv->cuMemcpyAsync((uintptr_t)p, (uintptr_t)back, size, s);
	drv->cuStreamSynchronize(s);
	is(wrong_numbers(p, size, 2), 0, "system memory to system memory");

	is(drv->cuMemsetD8Async(page, 1, 8, s), 0, "an address that is none");
	is(drv->cuStreamSynchronize(s), CUDA_ERROR_ILLEGAL_ADDRESS,
	   "is the device's fault");
	is(drv->cuMemsetD8Async(d, 1, 8, s), CUDA_ERROR_ILLEGAL_ADDRESS,
	   "and stays so");
	drv->cuStreamDestroy(s);
	drv->cuMemFree(d);
	drv->cuDevicePrimaryCtxRelease(0);
	{
		CUcontext ctx;

		drv->cuDevicePrimaryCtxRetain(&ctx, 0);
		is(drv->cuCtxSynchronize(), 0, "until the context is new");
	}
	hetmem_system_free(hm, p);
	free(back);
}

static void stream_prefetch(void)
{
	const CUmemLocation device = { CU_MEM_LOCATION_TYPE_DEVICE, 0 };
	const CUmemLocation cpu = { CU_MEM_LOCATION_TYPE_HOST, 0 };
	const size_t size = 2 * MIB;
	unsigned char *p;
	CUdeviceptr m;

	hetmem_system_alloc(hm, size, (void **)&p);
	write_numbers(p, size, 3);
	is(drv->cuMemPrefetchAsync_v2((uintptr_t)p, size, device, 0, NULL), 0,
	   "prefetch on a stream");
	is(drv->cuStreamSynchronize(NULL), 0, "done");
	ok(pages_at(p, size, HETMEM_DEVICE) >= size / page * 9 / 10,
	   "on the device");
	is(drv->cuMemPrefetchAsync_v2((uintptr_t)p, size, cpu, 0, NULL), 0,
	   "back");
	drv->cuStreamSynchronize(NULL);
	is(pages_at(p, size, HETMEM_DEVICE), 0, "on the host");
	is(wrong_numbers(p, size, 3), 0, "contents");
	hetmem_system_free(hm, p);

	need(!drv->cuMemAllocManaged(&m, size, CU_MEM_ATTACH_GLOBAL),
	     "managed memory");
	write_numbers((void *)(uintptr_t)m, size, 4);
	drv->cuMemPrefetchAsync_v1(m, size, 0, NULL);
	drv->cuStreamSynchronize(NULL);
	ok(pages_at((void *)(uintptr_t)m, size, HETMEM_DEVICE) > 0,
	   "moves too");
	is(wrong_numbers((void *)(uintptr_t)m, size, 4), 0, "contents");
	drv->cuMemFree(m);
}

/* What is on the device stays right through growing, moving and shrinking. */
static void resize(void)
{
	unsigned char *p;
	void *q;

	hetmem_system_alloc(hm, 4 * MIB, (void **)&p);
	write_numbers(p, 4 * MIB, 5);
	all_to("to the device", p, 4 * MIB, device0);
	is(hetmem_system_resize(hm, p, 6 * MIB, &q), 0, "grown on the device");
	is(wrong_numbers(q, 4 * MIB, 5), 0, "contents");
	write_numbers(q, 6 * MIB, 6);
	all_to("the grown", q, 6 * MIB, device0);
	is(hetmem_system_resize(hm, q, 2 * MIB, &q), 0, "shrunk on the device");
	is(wrong_numbers(q, 2 * MIB, 6), 0, "contents");
	hetmem_system_free(hm, q);
}

static void oversubscribe(void)
{
	struct hetmem_device_props props = { .size = sizeof(props) };
	struct hetmem_moved m = { .size = sizeof(m) };
	unsigned char *p;
	CUdeviceptr d;
	uint64_t there;
	size_t size, at;

	hetmem_device_props(hm, 0, &props);
	size = 2 * props.total;
	need(!hetmem_system_alloc(hm, size, (void **)&p), "%zu MiB",
	     size >> 20);
	write_numbers(p, size, 7);
	is(hetmem_prefetch(hm, p, size, device0, NULL, &m), 0,
	   "twice as much as the device has");
	there = pages_at(p, size, HETMEM_DEVICE);
	ok(there > 0 && there <= props.total / page, "%llu pages are there",
	   (unsigned long long)there);
	need(!drv->cuMemAlloc(&d, MIB), "device memory");
	for (at = 0; at < size; at += MIB)
		if (drv->cuMemcpyAsync(d, (uintptr_t)p + at, MIB, NULL))
			break;
	is(drv->cuStreamSynchronize(NULL), 0, "the device reads it all");
	is(at, size, "in order");
	is(drv->cuMemsetD8Async((uintptr_t)p, 0, size / 2, NULL), 0,
	   "and writes half");
	is(drv->cuStreamSynchronize(NULL), 0, "done");
	ok(all_bytes(p, 0, size / 2), "the CPU sees what was written");
	for (at = size / 2 / 8; at < size / 8; at++)
		if (((uint64_t *)p)[at] != at * 0x9e3779b97f4a7c15ULL + 7)
			break;
	is(at, size / 8, "and what was not");
	drv->cuMemFree(d);
	hetmem_system_free(hm, p);
}

/* Malloc'd blocks that touch go as one piece, and are told where they are. */
static void many_blocks(void)
{
	enum { NR = 16 };
	const size_t size = 64 << 10;
	struct hetmem_prefetch_range r[NR + 1];
	struct hetmem_moved m[NR + 1];
	unsigned char *p = aligned_alloc(2 * MIB, 2 * MIB);
	unsigned int i, bad = 0, try;

	need(p, "malloc'd memory");
	write_numbers(p, 2 * MIB, 11);
	for (try = 0; try < 20; try++) {
		for (i = 0; i < NR; i++) {
			m[i].size = sizeof(m[i]);
			r[i] = (struct hetmem_prefetch_range){
				.size = sizeof(r[i]), .ptr = p + i * 5 % NR * size,
				.bytes = size, .location = device0, .moved = &m[i],
			};
		}
		m[NR].size = sizeof(m[NR]);
		r[NR] = r[0];
		r[NR].ptr = p + MIB;
		r[NR].location = host;
		r[NR].moved = &m[NR];
		is(hetmem_prefetch_batch(hm, r, NR + 1, NULL), 0, "a batch");
		if (!m[0].not_moved)
			break;
	}
	for (i = 0; i < NR; i++)
		bad += r[i].result || r[i].piece || strcmp(m[i].how, "module");
	is(bad, 0, "16 blocks are one piece");
	is(m[0].moved + m[0].already, NR * size / page, "all pages of it");
	is(pages_at(p, NR * size, HETMEM_DEVICE), NR * size / page, "are on the device");
	is(pages_at(p + MIB, MIB, HETMEM_DEVICE), 0, "the others are not");
	is(r[NR].piece, NR, "they were another piece");
	is(wrong_numbers(p, 2 * MIB, 11), 0, "contents");
	free(p);
}

/* More pieces than one call of the module takes, the last of them nowhere. */
static void scattered_batch(void)
{
	enum { NR = 600 };
	static struct hetmem_prefetch_range r[NR + 1];
	static struct hetmem_moved m[NR + 1];
	unsigned char *p = aligned_alloc(2 * MIB, 6 * MIB);
	uint64_t moved = 0, already = 0, stayed = 1;
	unsigned int i, bad = 0, try;

	need(p, "malloc'd memory");
	write_numbers(p, 6 * MIB, 12);
	for (try = 0; try < 20 && stayed; try++) {
		for (i = 0; i <= NR; i++) {
			m[i].size = sizeof(m[i]);
			r[i] = (struct hetmem_prefetch_range){
				.size = sizeof(r[i]), .ptr = p + i * 2 * page, .bytes = page,
				.location = device0, .moved = &m[i],
			};
		}
		r[NR].ptr = (void *)(page * 16);
		is(hetmem_prefetch_batch(hm, r, NR + 1, NULL), 0, "a batch of 601 pieces");
		for (i = already = stayed = 0; i < NR; i++) {
			moved += m[i].moved;
			already += m[i].already;
			stayed += m[i].not_moved;
		}
	}
	is(stayed, 0, "all are there");
	is(pages_at(p, 6 * MIB, HETMEM_DEVICE), NR, "and no others");
	ok(moved >= NR && moved + already >= NR, "%llu pages moved", (unsigned long long)moved);
	for (i = 0; i < NR; i++)
		bad += r[i].result || r[i].piece != i || strcmp(m[i].how, "module") ||
		       m[i].moved + m[i].already != 1;
	is(bad, 0, "each is a piece of its own");
	is(m[NR].not_moved, 1, "the last is not mapped");
	ok(*m[NR].reason, "which has a reason: %s", m[NR].reason);
	is(wrong_numbers(p, 6 * MIB, 12), 0, "contents");
	free(p);
}

/* A move is over when the call returns, and after what the stream did before. */
static void move(void)
{
	struct hetmem_moved m = { .size = sizeof(m) };
	struct hetmem_advised a;
	unsigned char *p;
	uintptr_t next;
	CUstream s;

	hetmem_system_alloc(hm, 2 * MIB, (void **)&p);
	memset(p, 1, 2 * MIB);
	need(!drv->cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "a stream");
	is(hetmem_advise(hm, p, 2 * MIB, HETMEM_ADVISE_PREFERRED, device0, &m), 0,
	   "advised");
	is(hetmem_advised(hm, p, 2 * MIB, &a, 1, &next), 1, "is told");
	ok(a.preferred == device0, "beside where it is");
	is(pages_at(p, 2 * MIB, HETMEM_HOST), 2 * MIB / page, "which is the host");
	need(!drv->cuMemsetD8Async((uintptr_t)p, 2, 2 * MIB, s), "work");
	is(hetmem_move(hm, p, 2 * MIB, host, s, 0, &m), 0, "moved to the host");
	is(pages_at(p, 2 * MIB, HETMEM_DEVICE), 0, "all of it");
	ok(all_bytes(p, 2, 2 * MIB), "after the work");
	is(hetmem_move(hm, p, 2 * MIB, device0, s, HETMEM_NONBLOCKING, &m), 0, "back");
	ok(!strcmp(m.how, "module") && *m.reason, "%s: %s", m.how, m.reason);
	is(hetmem_attach(hm, p, 2 * MIB, NULL, &m), 0, "attached");
	ok(!strcmp(m.how, "none") && *m.reason, "which needs nothing: %s", m.reason);
	is(hetmem_detach(hm, p, 2 * MIB), 0, "detached");
	drv->cuStreamDestroy(s);
	hetmem_system_free(hm, p);
}

/* Without the module path nothing of it is used. */
static void without(void)
{
	struct hetmem_params params = { .size = sizeof(params),
					.driver = "soft", .module_path = "" };
	struct hetmem_device_props props = { .size = sizeof(props) };
	struct hetmem *other;

	close_soft();
	need(!hetmem_open(&other, &params), "opened without the module");
	hetmem_device_props(other, 0, &props);
	is(props.module_id, -1, "device 0 is not emulated");
	hetmem_close(other);
}

/*
 * A huge page of which one page is read only is mapped by pages: kernels that
 * do not migrate that leave it to the library to have it split.
 */
static void split_page(void)
{
	const size_t size = 2 * MIB;
	unsigned char *map, *p;

	map = mmap(NULL, 2 * size, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	ok(map != MAP_FAILED, "mmap");
	p = (unsigned char *)(((uintptr_t)map + size - 1) & ~(size - 1));
	madvise(p, size, MADV_HUGEPAGE);
	write_numbers(p, size, 7);
	is(mprotect(p + size / 2, page, PROT_READ), 0, "a page is read only");
	all_to("to the device", p, size, device0);
	is(wrong_numbers(p, size, 7), 0, "contents");
	munmap(map, 2 * size);
}

int main(void)
{
	page = sysconf(_SC_PAGESIZE);
	open_soft(NULL);
	devices();
	there_and_back();
	device_work();
	stream_prefetch();
	resize();
	split_page();
	many_blocks();
	scattered_batch();
	move();
	oversubscribe();
	without();
	return tap_end();
}
