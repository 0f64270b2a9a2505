// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * HETMEM_COMMIT_WAIT: a commit takes memory whose decommit is enqueued, in the order of the
 * streams, and the host waits for nothing. Tasks with more addresses than there is memory.
 */
#include "sparse_test.h"

static pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;

static void wait_for_gate(void *unused)
{
	(void)unused;
	pthread_mutex_lock(&gate);
	pthread_mutex_unlock(&gate);
}

/* What is enqueued on the stream from now on waits for open_gate(). */
static void close_gate(CUstream s)
{
	pthread_mutex_lock(&gate);
	need(!drv->cuLaunchHostFunc(s, wait_for_gate, NULL), "a stream waits");
}

static void open_gate(void)
{
	pthread_mutex_unlock(&gate);
}

static int commit_wait(struct hetmem_resource *res, char *p, unsigned int from, unsigned int nr,
		       hetmem_stream s)
{
	return hetmem_commit_with(res, p, from * GRANULE, nr * GRANULE, HETMEM_COMMIT_WAIT, s);
}

/* A host that waited here would wait for the gate. */
static void enqueued(void)
{
	struct hetmem_resource *res = make("pool(vmm,max=16M,wait=600s)");
	CUstream s[2] = { new_stream(), new_stream() };
	char *p = get_sparse(res, 64 * GRANULE), *q = get_sparse(res, 64 * GRANULE);
	struct hetmem_extent e;
	unsigned char last = 0;

	need(!hetmem_commit(res, p, 0, 6 * GRANULE, s[0]), "commit: %s", hetmem_last_error());
	close_gate(s[0]);
	need(!drv->cuMemsetD8Async((uintptr_t)p, 1, 6 * GRANULE, s[0]), "work");
	is(commit_wait(res, q, 0, 4, s[1]), -EAGAIN, "two units are free: %s", hetmem_last_error());
	is(hetmem_committed(res, q, &e, 1), 0, "all or nothing");
	is(held(res), 6 * GRANULE, "nothing was made");
	is(commit_wait(res, q, 0, 2, s[1]), 0, "two: %s", hetmem_last_error());
	is(hetmem_decommit(res, p, 0, 6 * GRANULE, s[0]), 0, "enqueued");
	is(commit_wait(res, q, 10, 1, HETMEM_STREAM_HOST), -EAGAIN, "the host's stream has no order");
	is(commit_wait(res, q, 2, 4, s[1]), 0, "and taken at once: %s", hetmem_last_error());
	is(commit_wait(res, q, 5, 2, s[1]), -EEXIST, "a unit twice");
	is(commit_wait(res, q, 20, 9, s[1]), -ENOMEM, "more than max=");
	is(hetmem_commit_with(res, q, 20 * GRANULE, GRANULE, 2, s[1]), -EINVAL, "unknown flags");
	need(!drv->cuMemsetD8Async((uintptr_t)q, 2, 6 * GRANULE, s[1]), "work");
	is(drv->cuStreamQuery(s[1]), CUDA_ERROR_NOT_READY, "the stream waits");
	is(held(res), 8 * GRANULE, "within max=");
	open_gate();
	need(!drv->cuMemcpyDtoHAsync(&last, (uintptr_t)q + 6 * GRANULE - 1, 1, s[1]) &&
	     !drv->cuStreamSynchronize(s[1]) && !drv->cuStreamSynchronize(s[0]), "read");
	is(last, 2, "what was written last");
	hetmem_free(res, p, 0, s[0]);
	hetmem_free(res, q, 0, s[1]);
	is(hetmem_resource_destroy(res), 0, "destroyed");
	drv->cuStreamDestroy(s[0]);
	drv->cuStreamDestroy(s[1]);
}

#define TASKS	40
#define RUNNING	3
#define MOST	5	/* sixteenths of the memory that a task has */

/* Tasks of three to five sixteenths of the memory, three at once. */
static void tasks(const char *spec, size_t unit)
{
	struct hetmem_resource *res = make(spec);
	CUstream s[RUNNING];
	unsigned char *ends = calloc(TASKS, 2 * MOST);
	unsigned int t, part, refused = 0, wrong = 0;
	size_t parts[TASKS];
	char *p[TASKS];

	need(ends, "memory");
	for (t = 0; t < RUNNING; t++)
		s[t] = new_stream();
	close_gate(s[0]);
	for (t = 0; t < TASKS; t++) {
		const CUstream on = s[t % RUNNING];

		parts[t] = 3 + below(3);
		p[t] = NULL;
		need(!sparse(res, parts[t] * unit, on, &p[t]), "addresses: %s", hetmem_last_error());
		/* The task before it on this stream has decommitted. */
		refused += !!hetmem_commit_with(res, p[t], 0, parts[t] * unit, HETMEM_COMMIT_WAIT, on);
		drv->cuMemsetD8Async((uintptr_t)p[t], t + 1, parts[t] * unit, on);
		for (part = 0; part < parts[t]; part++) {
			drv->cuMemcpyDtoHAsync(&ends[2 * (t * MOST + part)], (uintptr_t)p[t] + part * unit, 1, on);
			drv->cuMemcpyDtoHAsync(&ends[2 * (t * MOST + part) + 1],
					       (uintptr_t)p[t] + (part + 1) * unit - 1, 1, on);
		}
		refused += !!hetmem_decommit(res, p[t], 0, parts[t] * unit, on);
		/* The first tasks are all enqueued before one of them runs. */
		if (t == RUNNING - 1)
			open_gate();
	}
	drv->cuCtxSynchronize();
	for (t = 0; t < TASKS; t++)
		for (part = 0; part < parts[t]; part++)
			wrong += ends[2 * (t * MOST + part)] != t + 1 || ends[2 * (t * MOST + part) + 1] != t + 1;
	is(refused, 0, "%s: no task waits on the host: %s", spec, hetmem_last_error());
	is(wrong, 0, "%s: contents", spec);
	ok(stats(res).reserved_peak <= 16 * unit, "%s: within max=", spec);
	for (t = 0; t < TASKS; t++)
		hetmem_free(res, p[t], 0, s[t % RUNNING]);
	is(hetmem_resource_destroy(res), 0, "%s: destroyed", spec);
	is(device_used(), 0, "%s: all is given back", spec);
	for (t = 0; t < RUNNING; t++)
		drv->cuStreamDestroy(s[t]);
	free(ends);
}

int main(void)
{
	open_soft("");
	enqueued();
	tasks("pool(vmm,max=32M,wait=600s)", GRANULE);
	tasks("pool(vmm,unit=4M,max=64M,wait=600s)", 2 * GRANULE);
	close_soft();
	return tap_end();
}
