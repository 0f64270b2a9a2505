/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Check mode: the soft driver proves that memory is never given out before
 * its last use is over. HETMEM_SOFT_CHECK=1 turns it on.
 *
 * Every stream has a vector clock: which work of each other stream its next
 * work is ordered behind. Record, wait, synchronize and a query that says
 * done move it along, and nothing else does: that work happens to be done by
 * then is no order. The host is a stream too, and work is ordered behind all
 * that the host did before it gave it (as if there were one host thread).
 *
 * Uses are kept by physical memory, handle and offset, so that a block is
 * the same memory behind whatever address it is mapped. A use is work of
 * the driver on a range (copy, fill, hm_soft_launch()), and what a resource
 * tells with the calls below. What is wrong aborts the process with a report
 * that names both sides:
 *
 * - memory is allocated on a stream that is not ordered behind its last use,
 *   or while it is allocated, behind this address or another;
 * - it is used after it was freed, or on a stream that is not ordered behind
 *   its allocation;
 * - an address is unmapped, or memory given back, while a stream may still
 *   use it.
 *
 * The calls do nothing unless check mode is on, and may be called on every
 * path. They resolve streams as the driver does: NULL and the thread's own
 * are of the current context. A dead stream says nothing of order.
 * They take the soft driver's lock and no other.
 */
#ifndef HETMEM_DRIVER_CHECK_H
#define HETMEM_DRIVER_CHECK_H

#include "internal.h"

/* Check mode is on: as of the soft driver's start. */
extern bool hm_check_enabled;

/* The calls of the same name, without asking whether check mode is on. */
void hm_check_do_alloc(struct hetmem *hm, const void *ptr, size_t size,
		       hetmem_stream stream);
void hm_check_do_free(struct hetmem *hm, const void *ptr, size_t size,
		      hetmem_stream stream);
void hm_check_do_forget(struct hetmem *hm, const void *ptr, size_t size);

/*
 * [@ptr, @ptr + @size), mapped, is given out for use on @stream. To be called
 * when the block is the caller's to give, and after the waits for other
 * streams that this needed were given to @stream.
 */
static inline void hm_check_alloc(struct hetmem *hm, const void *ptr,
				  size_t size, hetmem_stream stream)
{
	if (hm_unlikely(hm_check_enabled))
		hm_check_do_alloc(hm, ptr, size, stream);
}

/*
 * It was freed on @stream: all uses are ordered before what is given to it
 * next. With recorded streams, once for each; what a stream is given until
 * then counts as a use. A block that a captured graph goes on using is freed
 * when its capture is released.
 *
 * Who cuts blocks from a block that a checked resource gave tells that one
 * free first, and its own as they come and go; before it gives the whole
 * back it tells nothing.
 */
static inline void hm_check_free(struct hetmem *hm, const void *ptr,
				 size_t size, hetmem_stream stream)
{
	if (hm_unlikely(hm_check_enabled))
		hm_check_do_free(hm, ptr, size, stream);
}

/*
 * Memory that the driver does not know is about to go back to the system: its
 * uses must be over, and its addresses mean something else then.
 */
static inline void hm_check_forget(struct hetmem *hm, const void *ptr,
				   size_t size)
{
	if (hm_unlikely(hm_check_enabled))
		hm_check_do_forget(hm, ptr, size);
}

#endif /* HETMEM_DRIVER_CHECK_H */
