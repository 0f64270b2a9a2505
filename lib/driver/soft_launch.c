// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Kernels of the soft driver: a name, a time, and the memory they use.
 */
#include <stdlib.h>
#include <string.h>

#include "driver/soft.h"

/* Whether @ctx has been given access, where it has to be. */
static bool may(const struct CUctx_st *ctx, const struct soft_memory *m,
		bool write)
{
	const int device = ctx->ordinal;

	if (m->kind == SOFT_MAPPING)
		return (write ? m->writers : m->readers) >> device & 1;
	if (m->kind != SOFT_DEVICE || m->ctx == ctx)
		return true;
	return (m->pool ? m->pool->peers >> device :
		ctx->peers >> m->ctx->ordinal) & 1;
}

/* The driver's own memory without a hole, or the process's. */
static bool is_there(const struct CUctx_st *ctx, uintptr_t start, size_t size,
		     bool write)
{
	const uintptr_t end = start + size;
	struct soft_memory *m;
	bool there = true;

	hm_soft_lock();
	while (there && start < end) {
		m = hm_soft_find(start, 1);
		if (m && may(ctx, m, write))
			start = m->range.end;
		else if (m)
			there = false;
		else if (hm_range_find(&hm_soft_world->reserved, start, 1) ||
			 hm_range_find(&hm_soft_world->nodes, start, 1) ||
			 hm_soft_find(start, end - start))
			there = false;
		else
			break;
	}
	hm_soft_unlock();
	return there;
}

static CUresult run_kernel(struct CUctx_st *ctx, struct soft_task *task)
{
	unsigned int i;

	for (i = 0; i < task->nr_ranges; i++) {
		const struct hm_soft_range *r = &task->ranges[i];

		if (!is_there(ctx, r->ptr, r->size, r->fill >= 0))
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		if (r->fill >= 0)
			memset((void *)(uintptr_t)r->ptr, r->fill, r->size);
	}
	return CUDA_SUCCESS;
}

CUresult hm_soft_launch(CUstream stream, const char *name,
			const struct hm_soft_range *ranges, unsigned int nr,
			uint64_t ns)
{
	struct soft_task *task;
	uint64_t delay;
	unsigned int i;

	SOFT_ENTER_WORK(cuLaunchKernel, &delay);
	for (i = 0; i < nr; i++)
		if (!ranges[i].ptr || !ranges[i].size ||
		    ranges[i].ptr + ranges[i].size < ranges[i].ptr)
			return CUDA_ERROR_INVALID_VALUE;
	task = hm_soft_task();
	if (!task)
		return CUDA_ERROR_OUT_OF_MEMORY;
	task->ranges = malloc((nr + 1) * sizeof(*ranges));
	if (!task->ranges) {
		free(task);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (nr)
		memcpy(task->ranges, ranges, nr * sizeof(*ranges));
	task->nr_ranges = nr;
	task->run = run_kernel;
	task->delay = delay + ns;
	task->what = name;
	return hm_soft_submit_to(stream, task);
}
