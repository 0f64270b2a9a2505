/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Stream order: the streams that a pool has seen, and what is known of the
 * order between them. stream.c has the design and the locking.
 */
#ifndef HETMEM_STREAM_STREAM_H
#define HETMEM_STREAM_STREAM_H

#include "core/resource.h"
#include "driver/hetmem.h"

#define HM_MAX_STREAMS	4096
/* Lists of an order's hash of streams: bits. */
#define HM_STREAM_HASH	10

struct hm_point {
	CUevent event;
	uint64_t pos;
};

/**
 * struct hm_stream - a stream; first member of what the owner keeps of it
 * @index: in the table; reused once the stream is retired and complete
 * @id: of the driver; 0: slot not in use
 * @serial: never reused
 * @handle: of the driver, valid until it is retired
 * @thread: hm_thread() of the first to name it so
 * @ctx: its context
 * @pos: of the last free
 * @recorded: position that the last event covers
 * @done: everything up to this position is known to be complete
 * @retired: destroyed, or about to be; the last event covers everything
 * @lost: destroyed without retire: only synchronizing @ctx completes it
 * @synced: lost, and @ctx was synchronized since
 * @points: ring of events not known to be complete, the oldest at @first
 * @unnamed: see hm_stream_unnamed()
 * @captured: between begin and end of a capture
 * @calls: under way without the lock, with @handle: until they end it is not retired
 * @next_id, @next_handle: in the order's lists by id and by handle: indices
 * @waited: by index of another stream: this one is ordered after that position
 */
struct hm_stream {
	unsigned int index;
	uint64_t id;
	uint64_t serial;
	hetmem_stream handle;
	uint64_t thread;
	CUcontext ctx;
	uint64_t pos;
	uint64_t recorded;
	uint64_t done;
	bool retired;
	bool lost;
	bool synced;
	bool unnamed;
	bool captured;
	unsigned int calls;
	struct hm_point *points;
	unsigned int first;
	unsigned int nr;
	unsigned int room;
	CUevent *spare;
	unsigned int nr_spare;
	uint16_t next_id;
	uint16_t next_handle;
	uint64_t *waited;
	unsigned int nr_waited;
};

/**
 * struct hm_order - the streams of one owner
 * @serial: never reused: threads remember it
 * @ctx: streams must be of this context; NULL: of any
 * @device: of @ctx; without one, of a thread that has no context; -1: the first
 * @retired: handles are valid until hm_stream_retire()
 * @lock: the owner's
 * @size: bytes that the owner keeps of a stream, zeroed at first
 * @epoch: changes when a stream ends, before a lost stream's slot is reused,
 *	and when a capture begins or ends. No other order ever has the same
 * @nr_captured: streams being captured
 * @seen: streams ever seen, without the host
 * @nr: of @streams, unused slots included
 * @calls, @wait_ns: calls of the driver; time that the host waited
 * @by_id, @by_handle: lists of streams by hash; @nr_unused: slots not in use
 * @waiting: threads in hm_order_wait_lock()
 */
struct hm_order {
	/* Read by every allocation and free, seldom written. */
	uint64_t serial;
	struct hetmem *hm;
	CUcontext ctx;
	pthread_mutex_t *lock;
	struct hm_stream **streams;
	size_t size;
	uint64_t epoch;
	int device;
	bool retired;
	unsigned int nr_captured;
	unsigned int seen;
	unsigned int nr;
	/* Written by the slow path. */
	uint64_t next_serial __attribute__((aligned(64)));
	uint64_t calls;
	uint64_t wait_ns;
	uint16_t *by_id;
	uint16_t *by_handle;
	unsigned int nr_unused;
	unsigned int waiting;
};

/* Takes the lock; its holder can see that a thread waits for it. */
static inline void hm_order_wait_lock(struct hm_order *o)
{
	__atomic_add_fetch(&o->waiting, 1, __ATOMIC_RELAXED);
	pthread_mutex_lock(o->lock);
	__atomic_sub_fetch(&o->waiting, 1, __ATOMIC_RELAXED);
}

/* -ENOMEM, or the driver's error for @device's context. */
int hm_order_init(struct hm_order *o, struct hetmem *hm, int device,
		  size_t size, bool retired, pthread_mutex_t *lock);

/* Frees all streams and, unless @forget (in a forked child), their events. */
void hm_order_destroy(struct hm_order *o, bool forget);

/* Gives @o another epoch: what threads know of its streams is void. With the lock. */
void hm_order_change(struct hm_order *o);

/* A capture of @s begins (@captured) or ends. */
void hm_stream_captured(struct hm_order *o, struct hm_stream *s,
			bool captured);

/*
 * Takes o->lock. *@stream stands for the streams that are captured as @handle,
 * whose ids cannot be asked. It is lost, and stays so: synchronizing its context
 * completes what it has done until then. After an error the lock is not held.
 * Errors as hm_stream_get(), without -EBUSY.
 */
int hm_stream_unnamed(struct hm_order *o, hetmem_stream handle,
		      struct hm_stream **stream);

static inline struct hm_stream *hm_stream_host(const struct hm_order *o)
{
	return o->streams[0];
}

/* The handle by which the calling thread reaches @s, in its context. */
static inline hetmem_stream hm_stream_handle(const struct hm_stream *s)
{
	return hm_stream_here(s->handle, s->thread);
}

/*
 * *@here reaches @s from the calling thread until hm_stream_leave(): in between
 * the context that a special handle is of is current. -EIO.
 */
int hm_stream_enter(struct hm_order *o, const struct hm_stream *s,
		    CUstream *here, CUcontext *before);
void hm_stream_leave(struct hm_order *o, const struct hm_stream *s,
		     CUcontext before);

/* Returns the last position of @of that @s is known to be ordered after. */
uint64_t hm_stream_known(const struct hm_stream *s,
			 const struct hm_stream *of);

/* Returns the position of the next free on @s. Under the lock of pos. */
static inline uint64_t hm_stream_step(struct hm_stream *s)
{
	uint64_t pos = s->pos + 1;

	__atomic_store_n(&s->pos, pos, __ATOMIC_RELEASE);
	return pos;
}

/*
 * Returns the position of the next free on @s. The last event of a retired
 * stream covers everything; a lost stream has no such event.
 */
static inline uint64_t hm_stream_next_pos(struct hm_stream *s)
{
	return hm_unlikely(s->retired && !s->lost) ? s->pos : hm_stream_step(s);
}

static inline uint64_t hm_stream_pos(const struct hm_stream *s)
{
	return __atomic_load_n(&s->pos, __ATOMIC_ACQUIRE);
}

/* 0: @s can be given work. -EBUSY, -EAGAIN, -EIO as hm_stream_record(). */
int hm_stream_check(struct hm_order *o, struct hm_stream *s);

/*
 * An event covers, from now on, everything that was freed on @s. Errors:
 * -EBUSY: @s is being captured;
 * -EAGAIN: it is lost;
 * -EIO, -ENOMEM.
 */
int hm_stream_record(struct hm_order *o, struct hm_stream *s);

/*
 * Orders @s after position @pos of @of, without waiting. Errors:
 * -EBUSY: @s is being captured;
 * -EAGAIN: @s is the host and @pos is not complete, or @of is being captured
 *	or lost;
 * -EIO.
 */
int hm_stream_wait(struct hm_order *o, struct hm_stream *s,
		   struct hm_stream *of, uint64_t pos);

/* Asks the driver how far @s is. 1: it progressed; 0; -EIO. */
int hm_stream_query(struct hm_order *o, struct hm_stream *s);

/* Returns whether @s progressed, as far as the driver tells. */
bool hm_stream_poll(struct hm_order *o, struct hm_stream *s);

/* Likewise, further than the last event; records one if there is work. */
bool hm_stream_ask(struct hm_order *o, struct hm_stream *s);

/*
 * These three release the lock while the host waits: then anything may change,
 * and a stream that is not pinned by the owner may become another one.
 */

/* As hm_nap(), and counts the time. */
void hm_order_nap(struct hm_order *o, unsigned int *naps);

/* Waits until position @pos of @s is complete. -EBUSY: a capture; -EIO. */
int hm_stream_sync(struct hm_order *o, struct hm_stream *s, uint64_t pos);

/* Synchronizes the context of the lost stream @s. -EIO. */
int hm_stream_sync_lost(struct hm_order *o, struct hm_stream *s);

/*
 * First step of a retire: *@stream is the stream of @handle, or NULL. The
 * changed epoch makes others look up again, under the lock. -EINVAL, -EBUSY.
 */
int hm_stream_end(struct hm_order *o, hetmem_stream handle,
		  struct hm_stream **stream);

/* Records the last event of @s. -EIO: it has failed, @s is not retired. */
int hm_stream_retire(struct hm_order *o, struct hm_stream *s);

/* Frees the slot of a stream that is retired and complete for reuse. */
void hm_stream_recycle(struct hm_order *o, struct hm_stream *s);

#endif /* HETMEM_STREAM_STREAM_H */
