// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * threads: eight threads allocate, free and ask at the same time, by both kinds of calls; a
 * fork() in between; a program that is executed.
 */
#include <stdatomic.h>
#include <sys/wait.h>

#include "cuda/libcuda.h"
#include "cuda/program.h"

#define THREADS	8
#define ROUNDS	1500

static CUcontext ctx;
static atomic_uint failures;

static void *work(void *arg)
{
	const uintptr_t self = (uintptr_t)arg;
	CUdeviceptr live[16] = { 0 };
	unsigned int i, seed = self;
	CUstream stream;
	size_t size;

	if (cuCtxSetCurrent(ctx) || cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING)) {
		failures++;
		return NULL;
	}
	for (i = 0; i < ROUNDS; i++) {
		const unsigned int slot = rand_r(&seed) % 16;
		const bool async = rand_r(&seed) % 2;
		CUdeviceptr base;

		size = 1 + rand_r(&seed) % (256 << 10);
		if (live[slot]) {
			if (cuMemGetAddressRange_v2(&base, &size, live[slot] + size % 1) ||
			    base != live[slot])
				failures++;
			if (async ? cuMemFreeAsync(live[slot], stream) : cuMemFree_v2(live[slot]))
				failures++;
			live[slot] = 0;
		} else if (async ? cuMemAllocAsync(&live[slot], size, stream) :
			   cuMemAlloc_v2(&live[slot], size)) {
			failures++;
			live[slot] = 0;
		} else if (cuMemsetD8Async(live[slot], self, size, stream)) {
			failures++;
		}
	}
	for (i = 0; i < 16; i++)
		if (live[i] && cuMemFree_v2(live[i]))
			failures++;
	if (cuStreamSynchronize(stream) || cuStreamDestroy_v2(stream))
		failures++;
	return NULL;
}

/* Returns the status of a child that makes calls which a child cannot make. */
static int forked(CUdeviceptr p)
{
	CUdeviceptr q;
	pid_t child = fork();
	int status = -1;

	if (!child)
		_exit(cuMemAlloc_v2(&q, 1) != CUDA_ERROR_NOT_INITIALIZED ||
		      !cuMemFree_v2(p) || !cuMemFreeAsync(p, NULL));
	waitpid(child, &status, 0);
	return status;
}

static int executed(const char *program)
{
	pid_t child = fork();
	int status = -1;

	if (!child) {
		execl(program, program, "child", (char *)NULL);
		_exit(9);
	}
	waitpid(child, &status, 0);
	return status;
}

int main(int argc, char **argv)
{
	pthread_t threads[THREADS];
	CUdeviceptr p;
	uintptr_t i;

	ctx = start();
	need(ctx, "a context");
	if (argc > 1)
		return cuMemAlloc_v2(&p, MIB) || cuMemFree_v2(p) || counted("cuMemAlloc_v2") != 1;
	need(!cuMemAlloc_v2(&p, MIB), "a block");
	for (i = 0; i < THREADS; i++)
		pthread_create(&threads[i], NULL, work, (void *)(i + 1));
	for (i = 0; i < 20; i++)
		if (forked(p))
			break;
	is(i, 20, "children get the driver's errors");
	for (i = 0; i < THREADS; i++)
		pthread_join(threads[i], NULL);
	is(failures, 0, "no call failed in %d threads", THREADS);
	is(cuMemFree_v2(p), 0, "the block is still the parent's");
	is(executed(argv[0]), 0, "a program that is executed is served");
	return tap_end();
}
