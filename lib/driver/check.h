/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The soft driver as the library sees it: libhetmem-soft.so exports one table,
 * hetmem_soft, beside what libcuda.so.1 exports. It starts the driver and ends
 * it, plays kernels, and has check mode.
 *
 * Check mode (HETMEM_SOFT_CHECK=1) proves that memory is never given out before
 * its last use is over; lib/soft/check.c tells how. A resource reports what it
 * gives out and takes back with the inline functions below. They do nothing
 * unless check mode is on, and may be called on every path. They resolve streams
 * as the driver does: NULL and the thread's own are of the current context. A
 * dead stream says nothing of order. They take the soft driver's lock and no
 * other.
 */
#ifndef HETMEM_DRIVER_CHECK_H
#define HETMEM_DRIVER_CHECK_H

#include "driver/hetmem.h"
#include "platform/nvml.h"

/* Both sides must have been built with the same. */
#define HM_SOFT_VERSION		4
#define HM_SOFT_SYMBOL		"hetmem_soft"

/**
 * struct hm_soft_range - memory that a soft kernel uses
 * @ptr: first byte
 * @size: bytes, not 0
 * @fill: what it writes to each byte, or -1: it only reads
 */
struct hm_soft_range {
	CUdeviceptr ptr;
	size_t size;
	int fill;
};

/**
 * struct hm_soft - what the soft driver has beside the Driver API
 * @version: HM_SOFT_VERSION; nothing else is looked at if it differs
 * @open: starts the driver, or takes a reference if it runs: there is one per
 *	process, as of CUDA. @module_path as in struct hetmem_params, of the
 *	first opener. 0; -EINVAL a bad HETMEM_SOFT_* variable; -ENOMEM. @reason
 *	is set on an error.
 * @close: drops a reference. The last one waits for all streams and frees
 *	everything.
 * @is_checking: check mode is on, as of the driver's start
 * @module_id: id of a device in hetmem.ko, -1 if it is not an emulated one
 * @nvml: NVML of the machine that is played
 * @fact: whether the machine plays a fact of the kernel (enum hm_fact_id) for a
 *	device; it is in @p then
 * @rules: replaces HETMEM_SOFT_FAIL and HETMEM_SOFT_DELAY, NULL: none. -EINVAL:
 *	cannot be read, nothing has changed then.
 * @made: how often the call of a rule was made, by its position in the list
 * @holds: memory is left that the driver knows
 * @launch: plays a kernel on @stream: work of that name (static text) that
 *	takes @ns nanoseconds, then reads and writes @ranges. Memory that is not
 *	mapped when it runs fails the context with CUDA_ERROR_ILLEGAL_ADDRESS;
 *	memory that it must not use aborts at once in check mode. The rules know
 *	it as cuLaunchKernel.
 * @alloc, @free, @forget, @move_begin, @move_end, @parks: hm_check_alloc() and so on,
 *	in check mode
 */
struct hm_soft {
	unsigned int version;
	int (*open)(const char *module_path, char *reason, size_t len);
	void (*close)(void);
	bool (*is_checking)(void);
	int (*module_id)(int ordinal);
	const struct hm_nvml *nvml;
	bool (*fact)(int ordinal, int id, struct hm_platform *p);
	int (*rules)(const char *fail, const char *delay);
	unsigned long (*made)(unsigned int rule);
	bool (*holds)(void);
	CUresult (*launch)(CUstream stream, const char *name,
			   const struct hm_soft_range *ranges, unsigned int nr,
			   uint64_t ns);
	void (*alloc)(const void *ptr, size_t size, hetmem_stream stream);
	void (*free)(const void *ptr, size_t size, hetmem_stream stream);
	void (*forget)(const void *ptr, size_t size);
	void (*move_begin)(const void *ptr, size_t size, hetmem_stream stream,
			   hetmem_stream copies, bool frozen);
	void (*move_end)(const void *ptr, size_t size);
	void (*parks)(hetmem_stream copies, bool on);
};

/*
 * [@ptr, @ptr + @size), mapped, is given out for use on @stream. Call it when
 * the block is the caller's to give, and after the waits for other streams that
 * this needed were given to @stream.
 */
static inline void hm_check_alloc(struct hetmem *hm, const void *ptr,
				  size_t size, hetmem_stream stream)
{
	if (hm_unlikely(hm->check))
		hm->check->alloc(ptr, size, stream);
}

/*
 * It was freed on @stream: all uses are ordered before what is given to it
 * next. With recorded streams, once for each; what a stream is given until
 * then counts as a use. A block that a captured graph goes on using is freed
 * when its capture is released.
 *
 * A resource that cuts blocks from a block of a checked resource reports that
 * one as freed first, and its own as they come and go; it reports nothing
 * before it gives the whole back.
 */
static inline void hm_check_free(struct hetmem *hm, const void *ptr,
				 size_t size, hetmem_stream stream)
{
	if (hm_unlikely(hm->check))
		hm->check->free(ptr, size, stream);
}

/*
 * Memory that the driver does not know is about to go back to the system: its
 * uses must be over, and its addresses mean something else then.
 */
static inline void hm_check_forget(struct hetmem *hm, const void *ptr,
				   size_t size)
{
	if (hm_unlikely(hm->check))
		hm->check->forget(ptr, size);
}

/*
 * A move of a block begins: the memory behind [@ptr, @ptr + @size), whole mappings, is
 * about to be replaced. Call this before the copy. @stream: the block's. @copies: the
 * stream that copies. @frozen: the move is synchronous.
 *
 * All uses so far must be ordered before the next work of @stream. From now until
 * hm_check_move_end()
 * - only work of @copies may use the memory, at these addresses or others. It may use
 *   freed memory, too. It must be ordered after all uses of the memory that it uses;
 * - if @frozen, only this thread may give @stream work, or use the memory by @copies.
 *   Events are no work;
 * - the block may be freed, but not allocated.
 *
 * Moves of different memory may overlap in time, and may share streams. @copies is not
 * @stream unless @frozen.
 */
static inline void hm_check_move_begin(struct hetmem *hm, const void *ptr,
				       size_t size, hetmem_stream stream,
				       hetmem_stream copies, bool frozen)
{
	if (hm_unlikely(hm->check))
		hm->check->move_begin(ptr, size, stream, copies, frozen);
}

/*
 * The move of exactly this range has ended, done or failed. Any thread may call this.
 *
 * Mappings that are the same as at the beginning have not moved. For the others, the host
 * must have waited for the copy. The new memory is the block then, last written by the
 * host, and is not reported by hm_check_alloc(). It must not be allocated before. The old
 * memory is not allocated.
 */
static inline void hm_check_move_end(struct hetmem *hm, const void *ptr,
				     size_t size)
{
	if (hm_unlikely(hm->check))
		hm->check->move_end(ptr, size);
}

/*
 * From @on to off, work of @copies saves or restores the contents of memory that nobody is
 * given meanwhile. Blocks may be freed meanwhile: @copies may use freed memory. The host
 * waits for @copies before the memory is given to anybody.
 */
static inline void hm_check_parks(struct hetmem *hm, hetmem_stream copies, bool on)
{
	if (hm_unlikely(hm->check))
		hm->check->parks(copies, on);
}

#endif /* HETMEM_DRIVER_CHECK_H */
