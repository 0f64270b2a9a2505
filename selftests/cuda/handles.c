// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * handles [SEED]: physical memory of a program, with limit(POOL,max=64M). What is charged is
 * compared with a model: each allocation counts once, from cuMemCreate() until its last handle
 * and its last mapping are gone.
 */
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cuda/program.h"

#define LIMIT	(64 * MIB)
#define UNIT	(2 * MIB)
#define NR	24
#define STEPS	3000

static const CUmemAllocationProp prop = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED,
	.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR,
	.location = { CU_MEM_LOCATION_TYPE_DEVICE, 0 },
};

static size_t left(void)
{
	size_t available = 0, total = 0;

	cuMemGetInfo_v2(&available, &total);
	return available;
}

static void one_by_one(void)
{
	CUmemGenericAllocationHandle first, more, again;
	CUdeviceptr va = 0, p;
	int fd = -1;

	is(cuMemCreate(&first, 40 * MIB, &prop, 0), 0, "memory of a handle");
	is(left(), 24 * MIB, "is charged");
	is(cuMemCreate(&more, 26 * MIB, &prop, 0), CUDA_ERROR_OUT_OF_MEMORY, "obeys the limit");
	is(cuMemAlloc_v2(&p, 25 * MIB), CUDA_ERROR_OUT_OF_MEMORY, "which is the same for blocks");
	is(cuMemCreate(&more, MIB + 1, &prop, 0), CUDA_ERROR_INVALID_VALUE,
	   "a size that the driver refuses");
	is(left(), 24 * MIB, "is not charged");
	need(!cuMemAddressReserve(&va, 40 * MIB, 0, 0, 0), "addresses");
	is(cuMemMap(va, 40 * MIB, 0, first, 0), 0, "the memory is mapped");
	is(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(va + 5)), 0, "and retained");
	is(left(), 24 * MIB, "it is charged once");
	is(cuMemRelease(first), 0, "one handle is released");
	is(cuMemRelease(again), 0, "the other, too");
	is(left(), 24 * MIB, "a mapping keeps the memory");
	is(cuMemUnmap(va, MIB), CUDA_ERROR_INVALID_VALUE, "half an unmap fails");
	is(left(), 24 * MIB, "and changes nothing");
	is(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)va), 0, "retained again");
	is(cuMemUnmap(va, 40 * MIB), 0, "it is unmapped");
	is(left(), 24 * MIB, "the handle keeps the memory");
	is(cuMemExportToShareableHandle(&fd, again, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0),
	   0, "it is exported");
	is(cuMemImportFromShareableHandle(&more, (void *)(intptr_t)fd,
					  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
	   0, "and imported");
	is(left(), 24 * MIB, "it is charged once still");
	is(cuMemRelease(again), 0, "its first handle goes");
	is(left(), 24 * MIB, "the imported one keeps it");
	is(cuMemRelease(more), 0, "and goes");
	close(fd);
	is(left(), LIMIT, "nothing is charged then");
	ok(cuMemRelease(more), "a handle that is gone is an error");
	is(left(), LIMIT, "and is not counted twice");
}

/* What another process made is charged there. */
static void of_another(void)
{
	CUmemGenericAllocationHandle theirs;
	int fd = memfd_create("theirs", 0);

	need(fd >= 0 && !ftruncate(fd, 8 * MIB), "memory of another process");
	is(cuMemImportFromShareableHandle(&theirs, (void *)(intptr_t)fd,
					  CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
	   0, "is imported");
	is(left(), LIMIT, "and not charged");
	is(cuMemRelease(theirs), 0, "it is released");
	is(left(), LIMIT, "which changes nothing");
	close(fd);
}

/* The memory lives on; the device is opened again with it. */
static void over_a_reset(void)
{
	CUmemGenericAllocationHandle kept;
	CUcontext ctx;

	is(cuMemCreate(&kept, 10 * MIB, &prop, 0), 0, "memory that is kept");
	is(cuDevicePrimaryCtxRelease_v2(0), 0, "over the end of the context");
	cuDevicePrimaryCtxRetain(&ctx, 0);
	cuCtxSetCurrent(ctx);
	is(left(), LIMIT - 10 * MIB, "is charged after it");
	is(cuMemRelease(kept), 0, "until it is released");
	is(left(), LIMIT, "then not");
}

/**
 * struct model - one allocation as it should be
 * @refs: handles; @at: unit of the addresses where it is mapped; -1: it is not
 */
struct model {
	CUmemGenericAllocationHandle handle;
	size_t size;
	unsigned int refs;
	int at;
};

static struct model model[NR];
static CUdeviceptr base;
static size_t used;

/* Each allocation has addresses of its own: NR times the limit. */
static CUdeviceptr place_of(size_t i)
{
	return base + i * LIMIT;
}

static bool make(size_t i, unsigned int *seed)
{
	struct model *m = &model[i];
	const size_t size = UNIT * (1 + rand_r(seed) % 12);
	const CUresult res = cuMemCreate(&m->handle, size, &prop, 0);

	if (used + size > LIMIT)
		return res == CUDA_ERROR_OUT_OF_MEMORY;
	m->size = size;
	m->refs = 1;
	m->at = -1;
	used += size;
	return !res;
}

static void check_over(struct model *m)
{
	if (m->refs || m->at >= 0)
		return;
	used -= m->size;
	m->size = 0;
}

static bool step(size_t i, unsigned int *seed)
{
	struct model *m = &model[i];
	CUmemGenericAllocationHandle handle;
	bool good = true;

	if (!m->size)
		return make(i, seed);
	switch (rand_r(seed) % 4) {
	case 0:
		if (m->refs) {
			m->refs--;
			good = !cuMemRelease(m->handle);
		}
		break;
	case 1:
		if (m->at < 0 && m->refs) {
			m->at = i;
			good = !cuMemMap(place_of(i), m->size, 0, m->handle, 0);
		}
		break;
	case 2:
		if (m->at >= 0) {
			m->at = -1;
			good = !cuMemUnmap(place_of(i), m->size);
		}
		break;
	default:
		if (m->at >= 0) {
			good = !cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)
				(place_of(i) + rand_r(seed) % m->size)) && handle == m->handle;
			m->refs++;
		}
	}
	check_over(m);
	return good;
}

static void at_random(unsigned int seed)
{
	unsigned int i, failed = 0, wrong = 0;

	need(!cuMemAddressReserve(&base, NR * LIMIT, 0, 0, 0), "addresses for %d", NR);
	for (i = 0; i < STEPS; i++) {
		if (!step(rand_r(&seed) % NR, &seed))
			failed++;
		if (left() != LIMIT - used)
			wrong++;
	}
	is(failed, 0, "each of %d steps is as the model says", STEPS);
	is(wrong, 0, "so is what is charged");
	for (i = 0; i < NR; i++) {
		if (model[i].at >= 0)
			cuMemUnmap(place_of(i), model[i].size);
		for (; model[i].refs; model[i].refs--)
			cuMemRelease(model[i].handle);
	}
	is(left(), LIMIT, "nothing is charged at the end");
}

static void *make_and_drop(void *arg)
{
	CUmemGenericAllocationHandle handle;
	unsigned int seed = (uintptr_t)arg, i;
	CUcontext ctx;

	cuDevicePrimaryCtxRetain(&ctx, 0);
	cuCtxSetCurrent(ctx);
	for (i = 0; i < 500; i++) {
		if (cuMemCreate(&handle, UNIT * (1 + rand_r(&seed) % 20), &prop, 0))
			continue;
		if (cuMemRelease(handle))
			break;
	}
	cuDevicePrimaryCtxRelease_v2(0);
	return (void *)(uintptr_t)(i != 500);
}

static void in_threads(void)
{
	pthread_t threads[8];
	void *failed, *any = NULL;
	uintptr_t i;

	for (i = 0; i < 8; i++)
		pthread_create(&threads[i], NULL, make_and_drop, (void *)(i + 1));
	for (i = 0; i < 8; i++) {
		pthread_join(threads[i], &failed);
		any = any ? any : failed;
	}
	ok(!any, "eight threads make and release");
	is(left(), LIMIT, "and leave nothing charged");
}

static void in_a_child(void)
{
	CUmemGenericAllocationHandle handle;
	int status = -1;
	pid_t child = fork();

	if (!child)
		_exit(cuMemCreate(&handle, UNIT, &prop, 0) != CUDA_ERROR_NOT_INITIALIZED);
	waitpid(child, &status, 0);
	is(status, 0, "a forked child gets the driver's error");
}

int main(int argc, char **argv)
{
	need(start(), "a context");
	one_by_one();
	of_another();
	at_random(argc > 1 ? atoi(argv[1]) : 1);
	in_threads();
	in_a_child();
	over_a_reset();
	return tap_end();
}
