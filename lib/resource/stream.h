/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Stream order: which streams a pool has seen, and what is known of the
 * order between them.
 *
 * A stream's clock is the number of frees on it: what was freed at position p
 * may be reused on the same stream at once. Elsewhere only behind an event
 * that was recorded at p or later, which is found complete, or which the other
 * stream was made to wait for. Events are recorded when somebody asks for
 * such an order, and now and then before, so that they are complete by then;
 * never while there is one stream only. The host never waits, but in
 * hm_stream_sync().
 *
 * A stream's identity is its id, never its handle, which is used again once
 * the stream is destroyed. Each thread remembers the ids of the handles it
 * used last and asks the driver each time whether they still hold; with
 * streams that are retired before they are destroyed it need not ask.
 *
 * Of a stream that is captured the driver says no id, and being asked makes the
 * capture invalid. Its handle is taken at its word from hm_stream_captured()
 * to the end; before an id is asked for that is not remembered, the driver is
 * asked whether it may be.
 *
 * Index 0 is the host: what was freed there is complete.
 *
 * Locking: all but pos is protected by the lock of whom the order belongs to,
 * which every function here is called with, but hm_stream_get(), which takes
 * it for a handle that the thread does not remember. pos goes up under a lock
 * of the owner's choice and may be read at any time.
 */
#ifndef HETMEM_RESOURCE_STREAM_H
#define HETMEM_RESOURCE_STREAM_H

#include "resource/resource.h"

#define HM_MAX_STREAMS	4096

/* A point of a stream that an event stands for. */
struct hm_point {
	CUevent event;
	uint64_t pos;
};

/**
 * struct hm_stream - a stream, the first member of what its user keeps of it
 * @index: in the table; of another stream once this one is retired and done
 * @id: of the driver; 0: not in use
 * @serial: never used twice, unlike index
 * @handle: of the driver, valid until it is retired
 * @thread: that first named it so, as hm_thread()
 * @ctx: it lives in
 * @pos: of the last free
 * @recorded: position that the last event covers
 * @done: position up to which all is known to be complete
 * @retired: will be destroyed or is; the last event covers everything
 * @lost: destroyed without: only a synchronized context is known to be done
 * @synced: lost, and the context was synchronized since
 * @points: recorded, not known to be complete, a ring: oldest at @first
 * @captured: is between the begin and the end of a capture
 * @waited: by index of another stream: position of that one which this one
 *	is ordered behind
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
	bool captured;
	struct hm_point *points;
	unsigned int first;
	unsigned int nr;
	unsigned int room;
	CUevent *spare;
	unsigned int nr_spare;
	uint64_t *waited;
	unsigned int nr_waited;
};

/**
 * struct hm_order - the streams of one user
 * @serial: never used twice, for what threads remember
 * @hm: the library
 * @device: whose context streams must be of, -1: of any
 * @ctx: that context
 * @retired: handles hold until hm_stream_retire()
 * @lock: the owner's
 * @size: bytes of what the user keeps of a stream, zeroed at first
 * @epoch: goes up as streams end, or before the place of one that was lost is given
 *	up, and as captures begin and end
 * @nr_captured: streams that are captured
 * @seen: streams there were, without the host
 * @nr: of @streams, those that are not in use included
 * @calls: of the driver
 * @wait_ns: that the host waited
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
};

/* What a thread remembers of a handle. */
struct hm_stream_key {
	uint64_t order;
	hetmem_stream handle;
	uint64_t id;
	uint64_t epoch;
	struct hm_stream *stream;
};

#define HM_STREAM_SETS	16
#define HM_STREAM_WAYS	4

extern __thread struct hm_stream_key
	hm_stream_keys[HM_STREAM_SETS][HM_STREAM_WAYS];

/* 0, -ENOMEM, or what the driver says of @device's context. */
int hm_order_init(struct hm_order *o, struct hetmem *hm, int device,
		  size_t size, bool retired, pthread_mutex_t *lock);

/* Frees all streams and, unless it is a forked child's, their events. */
void hm_order_destroy(struct hm_order *o, bool forget);

/* hm_stream_get() for a handle that the thread does not remember. */
int hm_stream_lookup(struct hm_order *o, hetmem_stream handle,
		     struct hm_stream **stream);

/* The set in which the thread remembers @handle, the last looked up first. */
static inline struct hm_stream_key *hm_stream_set(const struct hm_order *o,
						  hetmem_stream handle)
{
	uint64_t h = (uintptr_t)handle + o->serial;

	return hm_stream_keys[h * 0x9e3779b97f4a7c15ULL >> 32 &
			      (HM_STREAM_SETS - 1)];
}

static inline bool hm_stream_is(const struct hm_stream_key *key,
				const struct hm_order *o, hetmem_stream handle)
{
	return key->handle == handle && key->order == o->serial;
}

/*
 * The stream that @handle is. -EINVAL: it is none, or of another context than
 * the memory; -EBUSY: it is captured and hm_stream_captured() was not told;
 * -EMFILE too many that were not retired; -ENOMEM.
 */
static inline int hm_stream_get(struct hm_order *o, hetmem_stream handle,
				struct hm_stream **stream)
{
	const struct hm_stream_key *key = hm_stream_set(o, handle);
	const struct hm_stream_key *last = key + HM_STREAM_WAYS - 1;
	unsigned long long id;

	while (!hm_stream_is(key, o, handle) && key < last)
		key++;
	if (hm_unlikely(!hm_stream_is(key, o, handle) ||
			key->epoch != __atomic_load_n(&o->epoch,
						      __ATOMIC_ACQUIRE)))
		return hm_stream_lookup(o, handle, stream);
	if (!o->retired &&
	    hm_unlikely(!o->hm->driver.cuStreamGetId ||
			o->hm->driver.cuStreamGetId(handle, &id) ||
			id != key->id))
		return hm_stream_lookup(o, handle, stream);
	*stream = key->stream;
	return 0;
}

/* A capture of @s begins (@captured) or ends. */
void hm_stream_captured(struct hm_order *o, struct hm_stream *s,
			bool captured);

/* The host's. */
static inline struct hm_stream *hm_stream_host(const struct hm_order *o)
{
	return o->streams[0];
}

/* What reaches it from the calling thread, in its context. */
static inline hetmem_stream hm_stream_handle(const struct hm_stream *s)
{
	return hm_stream_here(s->handle, s->thread);
}

/* Up to which position of @of the stream @s is known to be behind it. */
static inline uint64_t hm_stream_known(const struct hm_stream *s,
				       const struct hm_stream *of)
{
	uint64_t pos = of->done;

	if (s == of || !of->index)
		return UINT64_MAX;
	if (of->index < s->nr_waited && s->waited[of->index] > pos)
		pos = s->waited[of->index];
	return pos;
}

/* The position of the next free on @s; under the lock that guards pos. */
static inline uint64_t hm_stream_step(struct hm_stream *s)
{
	uint64_t pos = s->pos + 1;

	__atomic_store_n(&s->pos, pos, __ATOMIC_RELEASE);
	return pos;
}

static inline uint64_t hm_stream_pos(const struct hm_stream *s)
{
	return __atomic_load_n(&s->pos, __ATOMIC_ACQUIRE);
}

/*
 * Sees to it that an event covers what was freed on @s up to now. -EBUSY: @s
 * is being captured; -EAGAIN: it is lost; -EIO; -ENOMEM.
 */
int hm_stream_record(struct hm_order *o, struct hm_stream *s);

/*
 * Orders @s behind position @pos of @of, without waiting. -EBUSY: @s is being
 * captured; -EAGAIN: @s is the host and it is not complete, or @of is being
 * captured or lost; -EIO.
 */
int hm_stream_wait(struct hm_order *o, struct hm_stream *s,
		   struct hm_stream *of, uint64_t pos);

/* Asks the driver how far @s has come; true: further than before. */
bool hm_stream_poll(struct hm_order *o, struct hm_stream *s);

/*
 * Waits on the host until position @pos of @s is complete, at most until
 * @deadline (CLOCK_MONOTONIC, ns; UINT64_MAX: without end). -ETIMEDOUT.
 */
int hm_stream_sync(struct hm_order *o, struct hm_stream *s, uint64_t pos,
		   uint64_t deadline);

/*
 * Waits for all of the context of @s, which has nothing under way then. -EIO.
 */
int hm_stream_sync_lost(struct hm_order *o, struct hm_stream *s);

/*
 * @handle will be destroyed. Its stream is put in *@stream, NULL if there is
 * none. From now on @epoch tells whoever looked a stream up before to do so
 * again, which waits for the lock; then hm_stream_retire(). -EINVAL, -EBUSY.
 */
int hm_stream_end(struct hm_order *o, hetmem_stream handle,
		  struct hm_stream **stream);

/*
 * Its end is now, at a position of its own, so that an event is recorded even
 * if nothing was freed since the last one. -EIO it could not be recorded,
 * and the stream goes on.
 */
int hm_stream_retire(struct hm_order *o, struct hm_stream *s);

/*
 * A retired stream that is complete: its index may be another's. Nothing of
 * the user's is kept under it any more.
 */
void hm_stream_recycle(struct hm_order *o, struct hm_stream *s);

uint64_t hm_now(void);

#endif /* HETMEM_RESOURCE_STREAM_H */
