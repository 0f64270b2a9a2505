/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Memory and the streams that use it, for owners that list the uses of each
 * block: whole regions, buffers of one size. A use is a stream and, once the
 * memory is freed, a position in it.
 *
 * All of this is called with the order's lock, except where it says otherwise.
 * In a forked child no work goes on: everything is complete, and the driver is
 * not called.
 */
#ifndef HETMEM_STREAM_USES_H
#define HETMEM_STREAM_USES_H

#include "stream/stream.h"

/**
 * struct hm_use - a stream that uses memory, or has used it
 * @stream: as long as its serial is @serial; after that, the use is complete
 * @pos: where the use ended; of a use that goes on, undefined
 * @live: the use goes on
 */
struct hm_use {
	struct hm_stream *stream;
	uint64_t serial;
	uint64_t pos;
	bool live;
};

/**
 * struct hm_uses - of one piece of memory; zeroed at first
 * @own, @serial: stream that it was allocated on
 * @list: @nr uses, with room for @room
 */
struct hm_uses {
	struct hm_stream *own;
	uint64_t serial;
	struct hm_use *list;
	unsigned int nr;
	unsigned int room;
};

/*
 * Takes the lock, which after an error is not held. *@s is the stream of
 * @handle; NULL for HETMEM_STREAM_UNKNOWN. Of a stream that is captured
 * *@s is as of hm_stream_unnamed() if @captured. Errors:
 * -EBUSY: it is captured, and @captured is false;
 * else as hm_stream_get().
 */
int hm_order_enter(struct hm_order *o, hetmem_stream handle, bool captured,
		   struct hm_stream **s);

/*
 * Asks the driver how far all streams are, and frees the slots of those that
 * ended. -EIO: the driver cannot tell.
 */
int hm_order_poll(struct hm_order *o);

/*
 * Waits until some stream may have progressed, without the lock; @naps as
 * hm_order_nap(). If only lost streams are left, synchronizes one. -EIO.
 */
int hm_order_wait(struct hm_order *o, unsigned int *naps);

/*
 * @handle will be destroyed: its tail is recorded. Without the lock. Errors as
 * hm_stream_end() and hm_stream_retire().
 */
int hm_order_retire(struct hm_order *o, hetmem_stream handle);

/*
 * Waits for all work of all devices. Without the lock. Goes on after an error and
 * returns the first:
 * -EBUSY: a stream is being captured; its capture is invalid now;
 * -EIO.
 */
int hm_order_finish(struct hm_order *o);

/* Memory is allocated on @s; earlier uses stay listed. -ENOMEM. */
int hm_uses_begin(struct hm_uses *u, struct hm_stream *s);

/* The stream it was allocated on; the host's if that has ended. */
struct hm_stream *hm_uses_own(const struct hm_order *o,
			      const struct hm_uses *u);

/* The handle of that, or HETMEM_STREAM_UNKNOWN. */
hetmem_stream hm_uses_handle(const struct hm_uses *u);

/* @s uses it, too. -ENOMEM. */
int hm_uses_add(struct hm_order *o, struct hm_uses *u, struct hm_stream *s);

/*
 * Memory is freed on @s: its uses have positions from now on. Check mode is told
 * that @ptr was freed. Errors:
 * -EBUSY: a stream that uses it is captured;
 * -ENOMEM.
 */
int hm_uses_end(struct hm_order *o, struct hm_uses *u, struct hm_stream *s,
		void *ptr, size_t size);

/* Records these positions, as far as the driver does it now. */
void hm_uses_record(struct hm_order *o, struct hm_uses *u);

/* Whether freed memory is known to be complete. */
bool hm_uses_done(struct hm_order *o, struct hm_uses *u);

/* Orders @s after all uses of freed memory. Errors as hm_stream_wait(). */
int hm_uses_order(struct hm_order *o, struct hm_uses *u, struct hm_stream *s);

/*
 * Waits for all uses of freed memory, which is the caller's alone, without the
 * lock. Errors as hm_stream_sync().
 */
int hm_uses_sync(struct hm_order *o, struct hm_uses *u);

#endif /* HETMEM_STREAM_USES_H */
