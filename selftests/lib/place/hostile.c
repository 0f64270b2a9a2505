// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Placement for a caller that makes mistakes: ranges that are mostly holes, mappings that
 * the kernel does not split, owners that call back, memory that is not there, failures
 * half way. What is reported is what happened.
 */
#include <fcntl.h>
#include <numa.h>
#include <numaif.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "place/foreign_memory.h"
#include "platform/machine.h"

#define NODE0	HETMEM_LOC(HETMEM_HOST, 0)
#define DEVICE(i)	HETMEM_LOC(HETMEM_DEVICE, i)
#define FAR	((size_t)1 << 36)

static struct hetmem *hm;

static void open_as(const char *machine)
{
	hm = open_machine(machine);
	need(hm, "%s: %s", machine, hetmem_last_error());
}

/* In place of the C library's: how often the mappings are looked at from the beginning. */
static unsigned int looked;

int open(const char *path, int flags, ...)
{
	va_list args;
	mode_t mode;

	va_start(args, flags);
	mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(args, mode_t) : 0;
	va_end(args);
	__atomic_add_fetch(&looked, !strcmp(path, "/proc/self/maps"), __ATOMIC_RELAXED);
	return openat(AT_FDCWD, path, flags, mode);
}

/* A look is as long as the process has mappings, with kernels before 6.11. */
static void many_pieces(void)
{
	static struct hetmem_prefetch_range r[1000];
	const size_t nr = sizeof(r) / sizeof(r[0]);
	char *p = pages(2 * nr);
	size_t i, failed = 0;

	open_as("hmm; hmm");
	for (i = 0; i < nr; i++)
		r[i] = (struct hetmem_prefetch_range){
			.size = sizeof(r[i]), .ptr = p + 2 * (i * 7 % nr) * page,
			.bytes = page, .location = DEVICE(i & 1), .result = 1,
		};
	looked = 0;
	is(hetmem_prefetch_batch(hm, r, nr, NULL), 0, "many pieces");
	for (i = 0; i < nr; i++)
		failed += r[i].result != 0;
	is(failed, 0, "all go");
	ok(looked <= 2, "after %u looks at the mappings", looked);
	munmap(p, 2 * nr * page);
	hetmem_close(hm);
}

/* In place of libnuma's: how often the kernel is asked. */
static unsigned int asked;

int numa_move_pages(int pid, unsigned long nr, void **addrs, const int *nodes, int *status,
		    int flags)
{
	asked++;
	return syscall(SYS_move_pages, pid, nr, addrs, nodes, status, flags);
}

/* Hundreds of gigabytes without a page in them are not looked at page by page. */
static void holes(void)
{
	struct hetmem_moved m = { .size = sizeof(m) };
	struct hetmem_run runs[4];
	uintptr_t next = 0;
	char *first;
	ssize_t n;

	open_as("managed");
	first = mmap(NULL, 4 * FAR, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
		     -1, 0);
	need(first != MAP_FAILED, "addresses");
	munmap(first, 4 * FAR);
	need(mmap(first, page, PROT_READ | PROT_WRITE,
		  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == first &&
	     mmap(first + 2 * FAR, page, PROT_READ | PROT_WRITE,
		  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == first + 2 * FAR,
	     "two pages far apart");
	first[0] = first[2 * FAR] = 1;
	asked = 0;
	is(hetmem_prefetch(hm, first, 3 * FAR, NODE0, NULL, &m), 0, "holes of 192 GiB");
	ok(asked < 8, "in %u calls", asked);
	ok(m.already == 2 && m.not_moved == 3 * FAR / page - 2 &&
	   m.why == HETMEM_WHY_UNMAPPED && m.why_addr == (uintptr_t)first + page,
	   "%llu pages are there, %llu are holes", (unsigned long long)m.already,
	   (unsigned long long)m.not_moved);
	n = hetmem_residency(hm, first, 3 * FAR, runs, NULL, 4, &next);
	ok(n == 4 && next == (uintptr_t)first + 3 * FAR &&
	   runs[1].location == HETMEM_LOC(HETMEM_UNMAPPED, 0) &&
	   runs[1].end == (uintptr_t)first + 2 * FAR && runs[2].location == NODE0,
	   "residency: %zd runs, up to %#lx", n, (long)next);
	n = hetmem_residency(hm, first, 3 * FAR, runs, NULL, 2, &next);
	ok(n == 2 && next == (uintptr_t)first + 2 * FAR, "goes on after a hole: %zd", n);
	munmap(first, page);
	munmap(first + 2 * FAR, page);
	hetmem_close(hm);
}

static int policy_at(const void *p)
{
	unsigned long nodes[16];
	int mode = -1;

	return get_mempolicy(&mode, nodes, sizeof(nodes) * 8, (void *)p, MPOL_F_ADDR) ?
		-errno : mode;
}

/* A mapping of hugetlbfs cannot be split at a small page, so mbind(2) fails at the end. */
static void half_a_policy(void)
{
	const size_t huge = (size_t)2 << 20;
	unsigned long node0 = 1;
	char *p, *q;

	open_as("ats node=0");
	p = mmap(NULL, 3 * huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	need(p != MAP_FAILED, "memory");
	p = (char *)(((uintptr_t)p + huge - 1) & ~(huge - 1));
	q = mmap(p + huge, huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS |
		 MAP_HUGETLB | MAP_NORESERVE | MAP_FIXED, -1, 0);
	if (q == MAP_FAILED) {
		ok(true, "no hugetlbfs here # SKIP");
		hetmem_close(hm);
		return;
	}
	need(!mbind(p, page, MPOL_BIND, &node0, 2, 0), "a policy of the program");
	is(hetmem_advise(hm, p, huge + page, HETMEM_ADVISE_PREFERRED, DEVICE(0), NULL),
	   -EINVAL, "half a huge page: %s", hetmem_last_error());
	ok(policy_at(p) == MPOL_BIND && policy_at(p + page) == MPOL_DEFAULT,
	   "nothing has changed: %d, %d", policy_at(p), policy_at(p + page));
	is(hetmem_advise(hm, p + huge + page, huge, HETMEM_ADVISE_PREFERRED, DEVICE(0),
			 NULL), -EINVAL, "the other half");
	is(policy_at(p + 2 * huge), MPOL_DEFAULT, "nothing has changed");
	is(hetmem_advise(hm, p, 2 * huge + page, HETMEM_ADVISE_PREFERRED, DEVICE(0), NULL),
	   0, "all of it");
	ok(policy_at(p) == MPOL_PREFERRED && policy_at(p + huge) == MPOL_PREFERRED &&
	   policy_at(p + 2 * huge) == MPOL_PREFERRED &&
	   policy_at(p + 2 * huge + page) == MPOL_DEFAULT, "everywhere");
	munmap(p, 3 * huge - page);
	hetmem_close(hm);
}

/* A thread without a context: the move is waited for in the context that it is made in. */
static void other_device(void)
{
	static const hetmem_stream streams[] = {
		NULL, HETMEM_STREAM_HOST, HETMEM_STREAM_LEGACY, HETMEM_STREAM_PER_THREAD,
	};
	const struct hm_api *d;
	CUdeviceptr p;
	CUcontext ctx;
	size_t i;

	open_as("managed; managed");
	d = api_of(hm);
	need(!d->cuDevicePrimaryCtxRetain(&ctx, 1) && !d->cuCtxSetCurrent(ctx) &&
	     !d->cuMemAllocManaged(&p, 16 * page, CU_MEM_ATTACH_GLOBAL), "managed memory");
	soft_rules(NULL, "cuMemPrefetchAsync:200ms");
	for (i = 0; i < sizeof(streams) / sizeof(streams[0]); i++) {
		const hetmem_stream s = streams[i] == HETMEM_STREAM_HOST ? NULL : streams[i];

		d->cuCtxSetCurrent(NULL);
		is(hetmem_move(hm, (void *)(uintptr_t)p, 16 * page, DEVICE(1), streams[i], 0,
			       NULL), 0, "moved to device 1");
		d->cuCtxSetCurrent(ctx);
		is(d->cuStreamQuery(s), CUDA_SUCCESS, "and that is over (stream %zu)", i);
		d->cuStreamSynchronize(s);
	}
	soft_rules(NULL, NULL);
	d->cuMemFree(p);
	d->cuCtxSetCurrent(NULL);
	d->cuDevicePrimaryCtxRelease(1);
	hetmem_close(hm);
}

/* Where devices use all memory there is nothing to do; but memory must be there. */
static void attach_nothing(void)
{
	static const char *const machines[] = {
		"managed", "hmm", "ats node=0", "cdmm", "integrated",
	};
	char *p = pages(4);
	size_t i;

	munmap(p + page, page);
	mprotect(p + 3 * page, page, PROT_NONE);
	for (i = 0; i < sizeof(machines) / sizeof(machines[0]); i++) {
		open_as(machines[i]);
		is(hetmem_attach(hm, p, 3 * page, &owned, NULL), -EINVAL, "%s: a hole",
		   machines[i]);
		is(hetmem_attach(hm, NULL, page, &owned, NULL), -EINVAL, "nothing");
		is(hetmem_attach(hm, p + 2 * page, 2 * page, &owned, NULL), -EACCES,
		   "not readable");
		hetmem_close(hm);
	}
	munmap(p, 4 * page);
}

/* A chunk that the driver does not unregister: all is as it was. */
static void chunk_stays(void)
{
	struct hetmem_attach_params params = owned;
	char *p = pages(8);
	unsigned int i, pinned = 0;

	open_as("managed");
	released = 0;
	params.chunk = 2 * page;
	need(!hetmem_attach(hm, p, 8 * page, &params, NULL), "attached in chunks");
	/* Twice, so that trying once more is of no use. */
	soft_rules("cuMemHostUnregister:2=CUDA_ERROR_LAUNCH_FAILED,"
		   "cuMemHostUnregister:3=CUDA_ERROR_LAUNCH_FAILED", NULL);
	is(hetmem_detach(hm, p, 8 * page), -EIO, "the second fails: %s",
	   hetmem_last_error());
	soft_rules(NULL, NULL);
	for (i = 0; i < 8; i++)
		pinned += is_pinned(hm, p + i * page);
	is(pinned, 8, "all of it is still registered");
	is(released, 0, "and the owner kept");
	is(hetmem_detach(hm, p, 8 * page), 0, "again");
	is(released, 1, "now it is released");
	for (i = 0, pinned = 0; i < 8; i++)
		pinned += is_pinned(hm, p + i * page);
	is(pinned, 0, "and all of it unregistered");
	munmap(p, 8 * page);
	hetmem_close(hm);
}

/* An owner that detaches its friends when the library is closed. */
static char *friends;

static void detach_friend(void *owner)
{
	released++;
	(void)owner;
	hetmem_detach(hm, friends, page);
	hetmem_detach(hm, friends + page, page);
}

static void owner_calls(void)
{
	const struct hetmem_attach_params params = {
		.size = sizeof(params), .release = detach_friend,
	};

	friends = pages(2);
	open_as("managed");
	released = 0;
	need(!hetmem_attach(hm, friends, page, &params, NULL) &&
	     !hetmem_attach(hm, friends + page, page, &params, NULL), "attached");
	is(hetmem_detach(hm, friends, page), 0, "an owner that detaches others");
	is(released, 2, "each is released once");
	need(!hetmem_attach(hm, friends, page, &params, NULL) &&
	     !hetmem_attach(hm, friends + page, page, &params, NULL), "attached");
	hetmem_close(hm);
	is(released, 4, "at the end, too");
	munmap(friends, 2 * page);
}

/* What cannot be kept from children is not attached, and they have all of it. */
static void fork_half(void)
{
	const size_t huge = (size_t)2 << 20;
	struct hetmem_attach_params params = owned;
	char *p = mmap(NULL, 3 * huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		       -1, 0), *q;
	int status;

	need(p != MAP_FAILED, "memory");
	q = (char *)(((uintptr_t)p + 2 * huge - 1) & ~(huge - 1));
	if (mmap(q, huge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB |
		 MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED) {
		ok(true, "no hugetlbfs here # SKIP");
		return;
	}
	open_as("managed");
	released = 0;
	params.flags = HETMEM_ATTACH_DONTFORK;
	/* A driver that could pin it: only the children are in the way. */
	is(hetmem_attach(hm, q - page, 2 * page, &params, NULL), -EINVAL,
	   "half a huge page: %s", hetmem_last_error());
	ok(strstr(hetmem_last_error(), "DONTFORK"), "for that reason");
	fflush(stdout);
	if (!fork()) {
		unsigned char core;

		_exit(!!mincore(q - page, page, &core));
	}
	wait(&status);
	is(status, 0, "a child has all of it");
	is(released, 0, "the owner is not released");
	hetmem_close(hm);
	munmap(p, q - p);
	munmap(q, huge);
}

/* Two blocks of page-locked memory with something else between them are not one. */
static void between(void)
{
	struct hetmem_moved m = { .size = sizeof(m) };
	const struct hm_api *d;
	char *p = pages(6);
	CUcontext ctx;

	open_as("managed");
	d = api_of(hm);
	need(!d->cuDevicePrimaryCtxRetain(&ctx, 0) && !d->cuCtxSetCurrent(ctx) &&
	     !d->cuMemHostRegister(p, 2 * page, 0) &&
	     !d->cuMemHostRegister(p + 2 * page, page, 0) &&
	     !d->cuMemHostRegister(p + 4 * page, page, 0), "the program's");
	is(hetmem_attach(hm, p + page, 2 * page, &owned, &m), 0, "across two: %s", m.reason);
	is(hetmem_detach(hm, p + page, 2 * page), 0, "detached");
	is(hetmem_attach(hm, p, 5 * page, &owned, &m), -EEXIST,
	   "a page in the middle that is not registered: %s", hetmem_last_error());
	need(!d->cuMemHostUnregister(p) && !d->cuMemHostUnregister(p + 2 * page) &&
	     !d->cuMemHostUnregister(p + 4 * page), "unregistered");
	d->cuCtxSetCurrent(NULL);
	d->cuDevicePrimaryCtxRelease(0);
	hetmem_close(hm);
	munmap(p, 6 * page);
}

/* Advice and resize at once, for ThreadSanitizer. */
static void *resizes(void *arg)
{
	void *p;
	int i;

	(void)arg;
	if (hetmem_system_alloc(hm, 4 * page, &p))
		return hm;
	for (i = 0; i < 50; i++)
		if (hetmem_advise(hm, p, page, HETMEM_ADVISE_PREFERRED, DEVICE(0), NULL) ||
		    hetmem_system_resize(hm, p, (4 + i % 3) * page, &p))
			return p;
	return hetmem_system_free(hm, p) ? p : NULL;
}

static void threads(void)
{
	void *bad = NULL, *ret;
	pthread_t t[4];
	int i;

	open_as("hmm");
	for (i = 0; i < 4; i++)
		pthread_create(&t[i], NULL, resizes, NULL);
	for (i = 0; i < 4; i++) {
		pthread_join(t[i], &ret);
		bad = bad ? bad : ret;
	}
	ok(!bad, "threads resize what has advice");
	hetmem_close(hm);
}

int main(void)
{
	page = sysconf(_SC_PAGESIZE);
	hang_limit(true);
	half_a_policy();
	other_device();
	attach_nothing();
	chunk_stays();
	fork_half();
	between();
	threads();
	many_pieces();
	holes();
	owner_calls();
	return tap_end();
}
