// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver's copies and fills: executed by the stream's thread, piece
 * by piece: the device's own memory is touched directly, the process's by
 * the emulated device if there is one.
 */
#include <stdlib.h>
#include <string.h>

#include "soft/soft.h"

#define BOUNCE_SIZE	((size_t)1 << 20)

/*
 * The longest piece of [@addr, @addr + *@size) that is all the device's own
 * or all the process's: sets *@size, tells which. Managed memory is the
 * process's: it moves.
 */
static bool own_piece(const struct CUctx_st *ctx, uintptr_t addr,
		      size_t *size)
{
	struct soft_memory *m;
	bool own = false;

	if (ctx->emu < 0)
		return true;
	hm_soft_lock();
	for (;;) {
		m = hm_soft_find(addr, *size);
		if (!m)
			break;
		if (m->range.start <= addr) {
			if (*size > m->range.end - addr)
				*size = m->range.end - addr;
			own = m->kind != SOFT_MANAGED;
			break;
		}
		*size = m->range.start - addr;
	}
	hm_soft_unlock();
	return own;
}

static CUresult copy_piece(struct CUctx_st *ctx, uintptr_t dst, uintptr_t src,
			   size_t size, bool own_dst, bool own_src)
{
	CUresult res = CUDA_SUCCESS;
	void *bounce;
	size_t n;

	if (own_dst && own_src) {
		memmove((void *)dst, (void *)src, size);
		return CUDA_SUCCESS;
	}
	if (own_dst)
		return hm_soft_emu_read(ctx, src, (void *)dst, size);
	if (own_src)
		return hm_soft_emu_write(ctx, dst, (void *)src, size);
	bounce = malloc(size < BOUNCE_SIZE ? size : BOUNCE_SIZE);
	if (!bounce)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (; size && !res; size -= n, src += n, dst += n) {
		n = size < BOUNCE_SIZE ? size : BOUNCE_SIZE;
		res = hm_soft_emu_read(ctx, src, bounce, n);
		if (!res)
			res = hm_soft_emu_write(ctx, dst, bounce, n);
	}
	free(bounce);
	return res;
}

static CUresult run_copy(struct CUctx_st *ctx, struct soft_task *task)
{
	uintptr_t dst = task->dst, src = task->src;
	uintptr_t to, from;
	size_t left, n;
	CUresult res;

	for (left = task->size; left; left -= n, dst += n, src += n) {
		bool own_dst, own_src;

		n = left;
		own_dst = own_piece(ctx, dst, &n);
		own_src = own_piece(ctx, src, &n);
		to = hm_soft_reach(dst, &n, true);
		from = hm_soft_reach(src, &n, false);
		res = copy_piece(ctx, to, from, n, own_dst, own_src);
		if (res)
			return res;
	}
	return CUDA_SUCCESS;
}

static void fill_own(uintptr_t dst, uint64_t value, size_t *size)
{
	const unsigned char *bytes = (const unsigned char *)&value;
	unsigned char *p = (unsigned char *)hm_soft_reach(dst, size, true);
	size_t i;

	if ((value & 0xff) * 0x0101010101010101ULL == value) {
		memset(p, value & 0xff, *size);
		return;
	}
	for (i = 0; i < *size; i++)
		p[i] = bytes[(dst + i) & 7];
}

static CUresult run_fill(struct CUctx_st *ctx, struct soft_task *task)
{
	uintptr_t dst = task->dst;
	size_t left, n;
	CUresult res;

	for (left = task->size; left; left -= n, dst += n) {
		n = left;
		if (own_piece(ctx, dst, &n)) {
			fill_own(dst, task->value, &n);
			continue;
		}
		res = hm_soft_emu_fill(ctx, dst, task->value, n);
		if (res)
			return res;
	}
	return CUDA_SUCCESS;
}

static CUresult submit_copy(const char *what, CUstream stream, uint64_t delay,
			    CUresult (*run)(struct CUctx_st *, struct soft_task *),
			    uintptr_t dst, uintptr_t src, size_t size,
			    uint64_t value)
{
	struct soft_task *task;
	uintptr_t end;

	if (size && (!dst || (run == run_copy && !src)))
		return CUDA_ERROR_INVALID_VALUE;
	if (__builtin_add_overflow(dst, size, &end) ||
	    __builtin_add_overflow(src, size, &end))
		return CUDA_ERROR_INVALID_VALUE;
	task = hm_soft_task();
	if (!task)
		return CUDA_ERROR_OUT_OF_MEMORY;
	task->run = run;
	task->dst = dst;
	task->src = src;
	task->size = size;
	task->value = value;
	task->delay = delay;
	task->what = what;
	task->uses_dst = true;
	task->uses_src = run == run_copy;
	return hm_soft_submit_to(stream, task);
}

static CUresult memcpy_async(CUdeviceptr dst, CUdeviceptr src, size_t size,
			     CUstream stream)
{
	uint64_t delay;

	SOFT_ENTER_WORK(cuMemcpyAsync, &delay);
	return submit_copy("cuMemcpyAsync", stream, delay, run_copy, dst, src, size, 0);
}

static CUresult memcpy_dtoh_async(void *dst, CUdeviceptr src, size_t size,
				  CUstream stream)
{
	uint64_t delay;

	SOFT_ENTER_WORK(cuMemcpyDtoHAsync, &delay);
	return submit_copy("cuMemcpyDtoHAsync", stream, delay, run_copy, (uintptr_t)dst, src, size, 0);
}

static CUresult memcpy_dtod_async(CUdeviceptr dst, CUdeviceptr src,
				  size_t size, CUstream stream)
{
	uint64_t delay;

	SOFT_ENTER_WORK(cuMemcpyDtoDAsync, &delay);
	return submit_copy("cuMemcpyDtoDAsync", stream, delay, run_copy, dst, src, size, 0);
}

static CUresult memset_d8_async(CUdeviceptr dst, unsigned char value,
				size_t n, CUstream stream)
{
	uint64_t delay;

	SOFT_ENTER_WORK(cuMemsetD8Async, &delay);
	return submit_copy("cuMemsetD8Async", stream, delay, run_fill, dst, 0, n,
			   value * 0x0101010101010101ULL);
}

static CUresult memset_d32_async(CUdeviceptr dst, unsigned int value,
				 size_t n, CUstream stream)
{
	uint64_t delay;
	size_t size;

	SOFT_ENTER_WORK(cuMemsetD32Async, &delay);
	if (dst & 3 || __builtin_mul_overflow(n, sizeof(value), &size))
		return CUDA_ERROR_INVALID_VALUE;
	return submit_copy("cuMemsetD32Async", stream, delay, run_fill, dst, 0, size,
			   value | (uint64_t)value << 32);
}

void hm_soft_fill_copy(struct hm_api *d)
{
	d->cuMemcpyAsync = memcpy_async;
	d->cuMemcpyDtoHAsync = memcpy_dtoh_async;
	d->cuMemcpyDtoDAsync = memcpy_dtod_async;
	d->cuMemsetD8Async = memset_d8_async;
	d->cuMemsetD32Async = memset_d32_async;
}

/* Kernels: a name, a time, and the memory they use. */

/* Whether @ctx has been given access, where it has to be. */
static bool may(const struct CUctx_st *ctx, const struct soft_memory *m,
		bool write)
{
	const int device = ctx->ordinal;

	if (m->kind == SOFT_MAPPING)
		return (write ? m->writers : m->readers) >> device & 1;
	return m->kind != SOFT_DEVICE || m->ctx == ctx;
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
	uintptr_t at, reach;
	unsigned int i;
	size_t n;

	for (i = 0; i < task->nr_ranges; i++) {
		const struct hm_soft_range *r = &task->ranges[i];

		if (!is_there(ctx, r->ptr, r->size, r->fill >= 0))
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		for (at = r->ptr; r->fill >= 0 && at < r->ptr + r->size; at += n) {
			n = r->ptr + r->size - at;
			reach = hm_soft_reach(at, &n, true);
			memset((void *)reach, r->fill, n);
		}
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
