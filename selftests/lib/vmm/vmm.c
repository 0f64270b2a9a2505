// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The pool over vmm: memory that moves, grows, stays, sleeps, belongs to a
 * capture, or is another process's too.
 */
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "alloc_with.h"
#include "kernel/hetmem_fd.h"
#include "device_memory.h"
#include "pool.h"

static sigjmp_buf fault;

static void on_fault(int sig)
{
	siglongjmp(fault, sig);
}

static int touch(void *addr)
{
	int sig = sigsetjmp(fault, 1);

	if (!sig)
		*(volatile unsigned char *)addr = 1;
	return sig;
}

/* Free memory in pieces becomes one block, and costs no memory. */
static void defragment(void)
{
	void *p[64], *q;
	uint64_t before;
	int i;

	make_pool("vmm", NULL);
	for (i = 0; i < 64; i++) {
		p[i] = get(4 * MIB, NULL);
		memset(p[i], i, 4 * MIB);
	}
	before = pool_stats().reserved;
	for (i = 0; i < 64; i += 2)
		put(p[i], 0, NULL);
	q = get(100 * MIB, NULL);
	memset(q, 0xee, 100 * MIB);
	is(pool_stats().reserved, before, "fragments become one block");
	for (i = 1; i < 64; i += 2)
		if (!all_bytes(p[i], i, 4 * MIB))
			break;
	ok(i >= 64, "that is nobody else's");
	is(pool_stats().host_wait_ns, 0, "and nobody waits");
	put(q, 100 * MIB, NULL);
	for (i = 1; i < 64; i += 2)
		put(p[i], 0, NULL);
	is(pool_stats().reserved, device_used(),
	   "reserved is what the driver says");
	hetmem_resource_destroy(pool);
}

static void grow(void)
{
	struct hm_pool_options opt = { .max = 256 * MIB };
	uint64_t before;
	char *p, *q, *r;

	make_pool("vmm", &opt);
	is(alloc_reserve(pool, 3 * MIB, 200 * MIB, NULL, (void **)&p),
	   0, "a block with room");
	memset(p, 1, 3 * MIB);
	q = get(50 * MIB, NULL);
	r = get(1000, NULL);
	is(hetmem_grow(pool, p, 90 * MIB, NULL), 0, "grows in place: %s",
	   hetmem_last_error());
	memset(p + 3 * MIB, 2, 87 * MIB);
	ok(all_bytes(p, 1, 3 * MIB), "and keeps its contents");
	is(pool_stats().requested, 140 * MIB + 1000, "bytes are counted");
	is(hetmem_grow(pool, p + 512, 100 * MIB, NULL), -EINVAL,
	   "not from inside");
	is(hetmem_grow(pool, p, 220 * MIB, NULL), -ENOSPC,
	   "not beyond its room: %s", hetmem_last_error());
	is(hetmem_grow(pool, p, 180 * MIB, NULL), 0, "once more");
	memset(p + 90 * MIB, 3, 90 * MIB);
	is(hetmem_grow(pool, p, 199 * MIB, NULL), 0, "%s", hetmem_last_error());
	is(hetmem_free(pool, p, 180 * MIB, NULL), -EINVAL,
	   "the size is the new one");
	put(p, 199 * MIB, NULL);
	put(q, 0, NULL);
	put(r, 0, NULL);

	/* Into what is free behind it, without new memory. */
	p = get(20 * MIB, NULL);
	q = get(20 * MIB, NULL);
	put(q, 0, NULL);
	if (q == p + 20 * MIB) {
		before = pool_stats().reserved;
		is(hetmem_grow(pool, p, 30 * MIB, NULL), 0,
		   "into a free neighbour");
		is(pool_stats().reserved, before, "without new memory");
		memset(p, 4, 30 * MIB);
	}
	put(p, 0, NULL);
	is(alloc_reserve(pool, MIB, 1000, NULL, (void **)&p), -EINVAL,
	   "less room than size");
	is(hetmem_resource_destroy(pool), 0, "grown blocks are freed");
	is(device_used(), 0, "and given back");

	make_pool("device", NULL);
	p = get(1000, NULL);
	is(hetmem_grow(pool, p, 100 * MIB, NULL), -ENOSPC,
	   "beyond a region there are no addresses");
	put(p, 1000, NULL);
	hetmem_resource_destroy(pool);
}

static void sleep_and_wake(void)
{
	struct hm_pool_options opt = { .tag = "kv" };
	void *p, *q, *r;

	make_pool("vmm", &opt);
	p = get(30 * MIB, NULL);
	q = get(1000, NULL);
	is(hetmem_sleep(pool, "weights", HETMEM_SLEEP_DISCARD), 0, "another tag");
	is(touch(p), 0, "sleeps not");
	is(hetmem_sleep(pool, "kv", HETMEM_SLEEP_DISCARD), 0, "sleep");
	is(device_used(), 0, "all memory is given back");
	is(pool_stats().reserved, 0, "and counted so");
	is(touch(p), SIGSEGV, "addresses are there, memory is not");
	is(hetmem_alloc(pool, 10, 0, NULL, &r), -EBUSY, "nothing to be had");
	is(hetmem_alloc(pool, 10 * MIB, 0, NULL, &r), -EBUSY, "of any size");
	put(q, 1000, NULL);
	is(hetmem_sleep(pool, NULL, HETMEM_SLEEP_DISCARD), 0, "sleeps already");
	need(!soft_rules("cuMemCreate:1", NULL), "a rule");
	is(hetmem_wake(pool, NULL), -ENOMEM, "no memory to wake with");
	soft_rules(NULL, NULL);
	is(hetmem_wake(pool, NULL), 0, "then there is");
	is(touch(p), 0, "the same addresses");
	memset(p, 5, 30 * MIB);
	r = get(1000, NULL);
	memset(r, 5, 1000);
	put(r, 0, NULL);
	put(p, 30 * MIB, NULL);
	is(hetmem_sleep(pool, NULL, HETMEM_SLEEP_DISCARD), 0, "nothing is allocated");
	is(hetmem_resource_destroy(pool), 0, "destroyed asleep");
	is(device_used(), 0, "nothing is left");
}

static void comm(void)
{
	struct hm_pool_options opt = { .comm = true };
	struct hetmem_segment seg[128];
	uint64_t before;
	size_t freed;
	ssize_t nr;
	void *p, *q;
	int i;

	make_pool("vmm", NULL);
	p = get(10 * MIB, NULL);
	is(hetmem_pin_comm(pool, p), 0, "pin_comm");
	is(hetmem_pin_comm(pool, &p), -EINVAL, "of nothing");
	put(p, 0, NULL);
	for (i = 0; i < 20 && pool_stats().reserved > 10 * MIB; i++) {
		drv->cuCtxSynchronize();
		hetmem_trim(pool, 0, &freed);
	}
	is(touch(p), 0, "stays when it is free and the pool is trimmed");
	q = get(300 * MIB, NULL);
	is(touch(p), 0, "and when others need memory");
	nr = hetmem_segments(pool, q, 300 * MIB, seg, 128);
	ok(nr > 1 && nr <= 128, "a large block has %zd segments", nr);
	freed = 0;
	for (i = 0; i < nr; i++) {
		if (seg[i].offset != freed ||
		    seg[i].base != (char *)q + freed)
			break;
		freed += seg[i].length;
	}
	ok(i == nr && freed == 300 * MIB, "which cover it");
	is(hetmem_segments(pool, q, 300 * MIB, seg, 1), -ENOSPC,
	   "too little room for them");
	is(hetmem_segments(pool, &p, 8, seg, 64), -EINVAL, "of nothing");
	put(q, 0, NULL);
	hetmem_resource_destroy(pool);

	make_pool("vmm", &opt);
	p = get(40 * MIB, NULL);
	is(hetmem_segments(pool, p, 40 * MIB, seg, 128), 3, "comm: handles of 16 MiB");
	is(pool_stats().reserved, 48 * MIB, "comm: of which the last one has room");
	put(p, 0, NULL);
	before = pool_stats().reserved;
	drv->cuCtxSynchronize();
	hetmem_trim(pool, 0, &freed);
	drv->cuCtxSynchronize();
	hetmem_trim(pool, 0, &freed);
	is(pool_stats().reserved, before, "comm: nothing is given back");
	q = get(40 * MIB, NULL);
	ok(p == q, "comm: and comes at the same addresses");
	put(q, 0, NULL);
	is(hetmem_sleep(pool, NULL, HETMEM_SLEEP_DISCARD), -EBUSY, "comm: no sleep");
	hetmem_resource_destroy(pool);
	is(device_used(), 0, "comm: until destroy");

	/* Where max= leaves less than such a handle, a block gets what there is. */
	opt.max = 20 * MIB;
	make_pool("vmm", &opt);
	p = get(18 * MIB, NULL);
	ok(p, "comm: 18 of 20 MiB");
	put(p, 0, NULL);
	hetmem_resource_destroy(pool);
}

static void capture(void)
{
	CUstream a, b;
	void *p, *q, *r, *s;

	need(!drv->cuStreamCreate(&a, CU_STREAM_NON_BLOCKING) &&
	     !drv->cuStreamCreate(&b, CU_STREAM_NON_BLOCKING), "streams");
	make_pool("vmm", NULL);
	put(get(512, b), 512, b);
	is(hetmem_capture_end(pool, a, 1), -EINVAL, "end without begin");
	is(hetmem_capture_release(pool, a, 1), -ENOENT, "release of none");
	is(hetmem_capture_begin(pool, a, 1), 0, "begin");
	is(hetmem_capture_begin(pool, a, 1), -EBUSY, "twice");
	need(!drv->cuStreamBeginCapture ||
	     !drv->cuStreamBeginCapture(a, CU_STREAM_CAPTURE_MODE_GLOBAL),
	     "the driver captures");
	p = get(3 * MIB, a);
	q = get(700, a);
	put(p, 0, a);
	r = get(3 * MIB, a);
	ok(r == p, "used again in the same capture");
	put(r, 0, a);
	put(q, 700, a);
	s = get(700, a);
	ok(s == q, "small ones too");
	put(s, 0, a);
	if (drv->cuStreamEndCapture) {
		CUgraph graph;

		need(!drv->cuStreamEndCapture(a, &graph) &&
		     !drv->cuGraphDestroy(graph), "a graph");
	}
	is(hetmem_capture_release(pool, a, 1), -EBUSY, "not before the end");
	is(hetmem_capture_end(pool, a, 2), -EINVAL, "another id");
	is(hetmem_capture_end(pool, a, 1), 0, "end");
	s = get(3 * MIB, a);
	ok(s != p, "others do not get it");
	r = get(3 * MIB, b);
	ok(r != p, "on no stream");
	put(s, 0, a);
	put(r, 0, b);
	is(hetmem_capture_begin(pool, b, 1), 0, "the same id again");
	s = get(3 * MIB, b);
	ok(s == p, "has it");
	is(hetmem_capture_end(pool, b, 1), 0, "end");
	is(hetmem_capture_release(pool, a, 1), 0, "release");
	put(s, 0, a);
	hetmem_capture_begin(pool, a, 3);
	get(3 * MIB, a);
	is(hetmem_resource_destroy(pool), 1, "destroyed in a capture");
	is(device_used(), 0, "and given back");
	drv->cuStreamDestroy(a);
	drv->cuStreamDestroy(b);
}

static uint64_t imported(struct hetmem *other)
{
	struct hetmem_memory_info info = { .size = sizeof(info) };

	return hetmem_memory_info(other, 0, &info) ? UINT64_MAX : info.imported;
}

/* The other process: reads what is there and writes its own. */
static int other_process(int sock)
{
	struct hetmem_params params = { sizeof(params), "soft", "" };
	struct hetmem_segment seg = { .length = 6 * MIB };
	struct hetmem *other;
	unsigned char *p;
	char done = 0;
	int fd = receive_fd(sock);
	bool good;

	if (fd < 0 || hetmem_open(&other, &params) ||
	    hetmem_import(other, 0, &fd, &seg, 1, (void **)&p))
		return 1;
	good = all_bytes(p, 0x5a, 6 * MIB) && imported(other) == 6 * MIB;
	memset(p, 0xa5, 6 * MIB);
	seg.length = 4 * MIB;
	if (hetmem_import(other, 0, &fd, &seg, 1, (void **)&p) != -EINVAL)
		return 2;
	if (write(sock, &done, 1) != 1 || read(sock, &done, 1) != 1)
		return 3;
	/* The exporter has freed it: it is here still. */
	good &= all_bytes(p, 0xa5, 6 * MIB);
	if (hetmem_import_close(other, p) ||
	    hetmem_import_close(other, p) != -EINVAL || imported(other))
		return 4;
	/* An import ends with its library: a later one, perhaps at the same place, has none. */
	seg.length = 6 * MIB;
	if (hetmem_import(other, 0, &fd, &seg, 1, (void **)&p))
		return 6;
	hetmem_close(other);
	if (hetmem_open(&other, &params) || hetmem_import_close(other, p) != -EINVAL ||
	    imported(other))
		return 7;
	close(fd);
	hetmem_close(other);
	return good ? 0 : 5;
}

static void export_import(void)
{
	struct hm_vmm_options options = { .export = HM_VMM_EXPORT_FD };
	struct hetmem_segment seg;
	struct hm_provider *provider;
	int fd = -1, sock[2], status;
	char done = 0;
	void *p, *q;
	pid_t pid;

	need(!socketpair(AF_UNIX, SOCK_STREAM, 0, sock), "sockets");
	fflush(stdout);
	pid = fork();
	if (!pid)
		_exit(other_process(sock[1]));
	need(!hm_vmm_provider(hm, 0, &options, &provider) &&
	     !hm_vmm_pool_create(provider, NULL, &pool), "an exporting pool: %s",
	     hetmem_last_error());
	p = get(5 * MIB, NULL);
	q = get(1000, NULL);
	memset(q, 1, 1000);
	memset(p, 0x5a, 5 * MIB);
	memset((char *)p + 5 * MIB, 0x5a, MIB);
	is(hetmem_export(pool, p, NULL, NULL, 0), -ENOSPC, "one is needed");
	is(hetmem_export(pool, p, &fd, &seg, 1), 1, "export: %s",
	   hetmem_last_error());
	ok(seg.base == p && seg.length == 6 * MIB, "a handle of its own");
	is(hetmem_export(pool, &p, &fd, &seg, 1), -EINVAL, "of nothing");
	need(!send_fd(sock[0], fd), "a descriptor is sent");
	need(read(sock[0], &done, 1) == 1, "and mapped");
	ok(all_bytes(p, 0xa5, 5 * MIB), "both have the same memory");
	put(p, 5 * MIB, NULL);
	drv->cuCtxSynchronize();
	hetmem_poll(pool);
	drv->cuCtxSynchronize();
	hetmem_poll(pool);
	is(pool_stats().reserved, 2 * MIB, "never cached");
	need(write(sock[0], &done, 1) == 1 &&
	     waitpid(pid, &status, 0) == pid, "the other process");
	is(status, 0, "the other process has had it");
	put(q, 0, NULL);
	p = get(1000, NULL);
	ok(p == q, "what was not exported is cached");
	put(p, 1000, NULL);
	is(hetmem_resource_destroy(pool), 0, "all is freed");
	close(fd);
	is(device_used(), 0, "and given back");

	make_pool("vmm", NULL);
	p = get(1000, NULL);
	is(hetmem_export(pool, p, &fd, &seg, 1), -EOPNOTSUPP,
	   "others do not export");
	put(p, 0, NULL);
	hetmem_resource_destroy(pool);
}

/* Many events in few addresses: everything there is is used again. */
static void many_events(void)
{
	struct hm_pool_options opt = { .reserve = 64 * MIB, .wait_ms = 5000 };
	void *p[24] = { 0 };
	size_t size[24];
	unsigned int i, seed = 1, failed = 0;

	make_pool("vmm", &opt);
	for (i = 0; i < 1000000; i++) {
		unsigned int at;

		seed = seed * 1664525 + 1013904223;
		at = seed >> 16 & 15;
		if (p[at]) {
			put(p[at], size[at], NULL);
			p[at] = NULL;
			continue;
		}
		size[at] = 1 + (seed >> 4) % ((seed & 0x3000000) ? 200000 :
					      4000000);
		if (hetmem_alloc(pool, size[at], 0, NULL, &p[at])) {
			p[at] = NULL;
			failed++;
		}
	}
	is(failed, 0, "10^6 events in a reservation of 64 MiB");
	for (i = 0; i < 24; i++)
		put(p[i], 0, NULL);
	ok(pool_stats().metadata < 512 * 1024, "%llu bytes of metadata",
	   (unsigned long long)pool_stats().metadata);
	is(hetmem_resource_destroy(pool), 0, "all freed");
}

/* Many handles: a mapping each, as far as the process may have them. */
static void many_handles(void)
{
	struct hm_pool_options opt = { .handle = 2 * MIB,
				       .wait_ms = HM_POOL_NO_WAIT };
	static void *p[40000];
	unsigned int i, nr = 0;
	int err = 0;

	make_pool("vmm", &opt);
	while (nr < 40000 && !err) {
		err = hetmem_alloc(pool, 2 * MIB, 0, NULL, &p[nr]);
		nr += !err;
	}
	ok(err == -ENOMEM || nr == 40000, "%u handles, then %d", nr, err);
	for (i = 0; i < nr; i += 2)
		put(p[i], 2 * MIB, NULL);
	p[0] = get(64 * MIB, NULL);
	is(touch(p[0]), 0, "the pool goes on");
	put(p[0], 0, NULL);
	for (i = 1; i < nr; i += 2)
		put(p[i], 2 * MIB, NULL);
	is(hetmem_resource_destroy(pool), 0, "and is freed");
	is(device_used(), 0, "wholly");
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED	true	/* they cannot do without mappings */
#else
#define SANITIZED	false
#endif

#define EATEN	70000

static bool can_eat_mappings(void)
{
	FILE *f = SANITIZED ? NULL : fopen("/proc/sys/vm/max_map_count", "r");
	long max = 0;

	if (f) {
		if (fscanf(f, "%ld", &max) != 1)
			max = 0;
		fclose(f);
	}
	if (max <= 0 || max >= EATEN)
		printf("# vm.max_map_count is %ld: not tested at its limit\n",
		       max);
	return max > 0 && max < EATEN;
}

/* All the mappings that the process may have, but for @left. @nr are eaten. */
static unsigned int eat_mappings(void **eaten, unsigned int nr,
				 unsigned int left)
{
	while (nr < EATEN) {
		eaten[nr] = mmap(NULL, 4096, nr % 2 ? PROT_READ : PROT_NONE,
				 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (eaten[nr] == MAP_FAILED)
			break;
		nr++;
	}
	while (left-- && nr)
		munmap(eaten[--nr], 4096);
	return nr;
}

/*
 * The process has no mappings left: what needs one fails and nothing is lost;
 * when there are some again the pool goes on.
 */
static void mapping_limit(void)
{
	struct hm_pool_options opt = { .handle = 2 * MIB,
				       .wait_ms = HM_POOL_NO_WAIT };
	static void *eaten[EATEN], *p[64];
	CUmemGenericAllocationHandle between[32];
	unsigned int i, nr, failed = 0, bad = 0;
	size_t freed;
	int err;

	if (!can_eat_mappings())
		return;
	make_pool("vmm", &opt);
	for (i = 0; i < 64; i++) {
		p[i] = get(2 * MIB, NULL);
		memset(p[i], i, 2 * MIB);
	}
	nr = eat_mappings(eaten, 0, 6);
	ok(nr > 1000 && nr < EATEN - 6, "the process has all its mappings");
	for (i = 0; i < 64; i += 2) {
		put(p[i], 2 * MIB, NULL);
		p[i] = NULL;
	}
	/* Each hole that is unmapped is two more; or it joins another one. */
	hetmem_trim(pool, 0, &freed);
	nr = eat_mappings(eaten, nr, 6);
	/* Blocks whose memory is not side by side have mappings of their own. */
	for (i = 0; i < 64; i += 2) {
		need(!drv->cuMemCreate(&between[i / 2], 2 * MIB, &prop, 0),
		     "a handle");
		err = hetmem_alloc(pool, (2 + i) * MIB, 0, NULL, &p[i]);
		failed += !!err;
		bad += err && err != -ENOMEM;
	}
	is(bad, 0, "as where there is no memory");
	ok(failed, "%u blocks could not be made: %s", failed,
	   hetmem_last_error());
	for (i = 1; i < 64; i += 2)
		bad += !all_bytes(p[i], i, 2 * MIB);
	is(bad, 0, "what was allocated is as it was");
	while (nr)
		munmap(eaten[--nr], 4096);
	for (i = 0; i < 64; i += 2) {
		if (!p[i])
			p[i] = get((2 + i) * MIB, NULL);
		memset(p[i], i, (2 + i) * MIB);
	}
	for (i = 1; i < 64; i += 2)
		bad += !all_bytes(p[i], i, 2 * MIB);
	is(bad, 0, "with mappings the pool goes on");
	for (i = 0; i < 64; i++)
		put(p[i], 0, NULL);
	for (i = 0; i < 32; i++)
		drv->cuMemRelease(between[i]);
	is(hetmem_resource_destroy(pool), 0, "and is freed");
	is(device_used(), 0, "wholly");
}

struct eaten {
	void *pages[EATEN];
	unsigned int nr;
	unsigned int asked;
};

static int give_mappings(void *data, size_t size, unsigned int attempt)
{
	struct eaten *e = data;

	(void)size;
	(void)attempt;
	e->asked++;
	while (e->nr)
		munmap(e->pages[--e->nr], 4096);
	return 1;
}

/* What helps where there is no memory helps where there are no mappings. */
static void mapping_remedies(void)
{
	static struct eaten e;
	struct hetmem_resource *retry, *fallback;
	void *p, *q;

	if (!can_eat_mappings())
		return;
	need(!hetmem_resource_create(hm, "retry(pool(vmm,handle=2M,wait=0s),times=1)",
				     &retry) &&
	     !hetmem_resource_create(hm, "fallback(pool(vmm,handle=2M,wait=0s),fixed(device,size=64M,count=1))",
				     &fallback), "%s", hetmem_last_error());
	is(hetmem_on_failure(retry, give_mappings, &e), 0, "a callback");
	e.nr = eat_mappings(e.pages, 0, 6);
	is(hetmem_alloc(fallback, 64 * MIB, 0, NULL, &p), 0,
	   "no mappings: fallback() has another: %s", hetmem_last_error());
	is(hetmem_alloc(retry, 64 * MIB, 0, NULL, &q), 0,
	   "no mappings: retry() tries again: %s", hetmem_last_error());
	is(e.asked, 1, "after it has asked");
	is(touch(q), 0, "and it is memory");
	is(hetmem_free(fallback, p, 64 * MIB, NULL), 0, "freed");
	is(hetmem_free(retry, q, 64 * MIB, NULL), 0, "freed");
	is(hetmem_alloc(fallback, 64 * MIB, 0, NULL, &p), 0, "with mappings");
	is(touch(p), 0, "it is memory, too");
	is(hetmem_free(fallback, p, 64 * MIB, NULL), 0, "freed");
	is(hetmem_resource_destroy(fallback), 0, "nothing is left");
	is(hetmem_resource_destroy(retry), 0, "nothing is left");
	is(device_used(), 0, "wholly");
}

int main(void)
{
	setenv("HETMEM_SOFT_MEMORY", "128G", 1);
	signal(SIGSEGV, on_fault);
	open_soft("");
	defragment();
	grow();
	sleep_and_wake();
	comm();
	capture();
	export_import();
	many_events();
	many_handles();
	mapping_limit();
	mapping_remedies();
	close_soft();
	return tap_end();
}
