/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Uses of regions: streams to wait for, and events that stand for them.
 */
#ifndef HETMEM_RESOURCE_REGION_USE_H
#define HETMEM_RESOURCE_REGION_USE_H

#include "internal.h"

/**
 * struct hm_use - a stream that uses memory
 * @stream: handle, valid until it is retired; HETMEM_STREAM_UNKNOWN then
 * @thread: that named it, as hm_thread(): what CU_STREAM_PER_THREAD means
 *	depends on it
 * @ctx: of it; what NULL and the like mean depends on it
 * @event: of its last work, once it is retired or the memory is freed
 */
struct hm_use {
	hetmem_stream stream;
	uint64_t thread;
	CUcontext ctx;
	CUevent event;
};

/* The use of the calling thread's @stream. -EINVAL: no such stream. */
int hm_use_init(struct hetmem *hm, int device, hetmem_stream stream,
		struct hm_use *use);

/*
 * Records where @use's stream is now, if it has no event yet. -EBUSY: it is
 * being captured; -ENOMEM, -EIO.
 */
int hm_use_record(struct hetmem *hm, struct hm_use *use);

/* Orders @use's stream behind the event of @behind. */
int hm_use_order(struct hetmem *hm, const struct hm_use *use,
		 const struct hm_use *behind);

/* Is it known to be over? Waits for it if @wait, and it is. */
bool hm_use_over(struct hetmem *hm, const struct hm_use *use, bool wait);

/* Destroys its event. */
void hm_use_end(struct hetmem *hm, struct hm_use *use);

/*
 * Lets the calling thread make calls that are illegal while some stream is
 * captured; returns what to hand to hm_capture_mode() afterwards.
 */
CUstreamCaptureMode hm_capture_relaxed(struct hetmem *hm);
void hm_capture_mode(struct hetmem *hm, CUstreamCaptureMode mode);
bool hm_capture_active(struct hetmem *hm, hetmem_stream stream);

#endif /* HETMEM_RESOURCE_REGION_USE_H */
