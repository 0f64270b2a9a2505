// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The soft driver's copies and fills: executed by the stream's thread, piece
 * by piece: the device's own memory is touched directly, the process's by
 * the emulated device if there is one.
 */
#include <stdlib.h>
#include <string.h>

#include "driver/soft.h"

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
	size_t left, n;
	CUresult res;

	for (left = task->size; left; left -= n, dst += n, src += n) {
		bool own_dst, own_src;

		n = left;
		own_dst = own_piece(ctx, dst, &n);
		own_src = own_piece(ctx, src, &n);
		res = copy_piece(ctx, dst, src, n, own_dst, own_src);
		if (res)
			return res;
	}
	return CUDA_SUCCESS;
}

static void fill_own(uintptr_t dst, uint64_t value, size_t size)
{
	const unsigned char *bytes = (const unsigned char *)&value;
	unsigned char *p = (unsigned char *)dst;
	size_t i;

	if ((value & 0xff) * 0x0101010101010101ULL == value) {
		memset(p, value & 0xff, size);
		return;
	}
	for (i = 0; i < size; i++)
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
			fill_own(dst, task->value, n);
			continue;
		}
		res = hm_soft_emu_fill(ctx, dst, task->value, n);
		if (res)
			return res;
	}
	return CUDA_SUCCESS;
}

static CUresult submit(const char *what, CUstream stream, uint64_t delay,
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
	return submit("cuMemcpyAsync", stream, delay, run_copy, dst, src, size, 0);
}

static CUresult memcpy_sync(CUdeviceptr dst, CUdeviceptr src, size_t size)
{
	struct CUctx_st *ctx = hm_soft_current();
	uint64_t delay;
	CUresult res;

	SOFT_ENTER_WORK(cuMemcpy, &delay);
	if (!ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	res = submit("cuMemcpy", NULL, delay, run_copy, dst, src, size, 0);
	if (res)
		return res;
	hm_soft_lock();
	hm_soft_sync(ctx->legacy);
	res = ctx->error;
	hm_soft_unlock();
	return res;
}

static CUresult memcpy_htod_async(CUdeviceptr dst, const void *src,
				  size_t size, CUstream stream)
{
	uint64_t delay;

	SOFT_ENTER_WORK(cuMemcpyHtoDAsync, &delay);
	return submit("cuMemcpyHtoDAsync", stream, delay, run_copy, dst, (uintptr_t)src, size, 0);
}

static CUresult memcpy_dtoh_async(void *dst, CUdeviceptr src, size_t size,
				  CUstream stream)
{
	uint64_t delay;

	SOFT_ENTER_WORK(cuMemcpyDtoHAsync, &delay);
	return submit("cuMemcpyDtoHAsync", stream, delay, run_copy, (uintptr_t)dst, src, size, 0);
}

static CUresult memcpy_dtod_async(CUdeviceptr dst, CUdeviceptr src,
				  size_t size, CUstream stream)
{
	uint64_t delay;

	SOFT_ENTER_WORK(cuMemcpyDtoDAsync, &delay);
	return submit("cuMemcpyDtoDAsync", stream, delay, run_copy, dst, src, size, 0);
}

static CUresult memset_d8_async(CUdeviceptr dst, unsigned char value,
				size_t n, CUstream stream)
{
	uint64_t delay;

	SOFT_ENTER_WORK(cuMemsetD8Async, &delay);
	return submit("cuMemsetD8Async", stream, delay, run_fill, dst, 0, n,
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
	return submit("cuMemsetD32Async", stream, delay, run_fill, dst, 0, size,
		      value | (uint64_t)value << 32);
}

void hm_soft_fill_copy(struct hm_driver *d)
{
	d->cuMemcpy = memcpy_sync;
	d->cuMemcpyAsync = memcpy_async;
	d->cuMemcpyHtoDAsync = memcpy_htod_async;
	d->cuMemcpyDtoHAsync = memcpy_dtoh_async;
	d->cuMemcpyDtoDAsync = memcpy_dtod_async;
	d->cuMemsetD8Async = memset_d8_async;
	d->cuMemsetD32Async = memset_d32_async;
}
