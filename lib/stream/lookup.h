/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * From a handle to a stream. Each thread caches the ids of the handles that it
 * used last, in a table that grows with their number; stream.c has the rules.
 */
#ifndef HETMEM_STREAM_LOOKUP_H
#define HETMEM_STREAM_LOOKUP_H

#include "stream/stream.h"

/* The driver table's entry for cuStreamGetId(): tools and tests replace what it has. */
typedef CUresult (*const hm_get_id)(CUstream stream, unsigned long long *id);
/* No stream's id. */
#define HM_STREAM_NO_ID		0

/*
 * An entry of a thread's lookup cache: the stream that @handle was when it was last used.
 * While @get_id returns @id, it is the same stream. Without @get_id, in an order whose streams
 * are @retired, it always is.
 */
struct hm_stream_key {
	uint64_t order;
	hetmem_stream handle;
	uint64_t id;
	uint64_t epoch;
	struct hm_stream *stream;
	hm_get_id *get_id;
};

#define HM_STREAM_WAYS	4

/**
 * struct hm_stream_keys - a thread's lookup cache
 * @shift: of a hash, which leaves the number of a set
 * @evicted: entries that gave way to others since the table was made
 * @factor: of the hash; @factors: how many the thread has tried
 * @sets: in each the last looked up comes first
 */
struct hm_stream_keys {
	unsigned int shift;
	unsigned int evicted;
	uint64_t factor;
	unsigned int factors;
	struct hm_stream_key sets[][HM_STREAM_WAYS];
};

/**
 * struct hm_stream_front - the calling thread's
 * @last: an entry of @keys: that of the last quick lookup
 * @keys: the first table is empty, constant, and all threads' own
 *
 * Its address stands for the thread. It is in the static TLS block: no call finds it.
 */
struct hm_stream_front {
	const struct hm_stream_key *last;
	struct hm_stream_keys *keys;
};

extern __thread struct hm_stream_front hm_stream_front
	__attribute__((tls_model("initial-exec")));

/* hm_stream_get() for a handle that is not in the thread's lookup cache. */
int hm_stream_lookup(struct hm_order *o, hetmem_stream handle,
		     struct hm_stream **stream);

/* The set of @handle for the order @serial, the last looked up first. */
static inline struct hm_stream_key *hm_stream_set_of(struct hm_stream_keys *keys, uint64_t serial,
						     hetmem_stream handle)
{
	return keys->sets[((uintptr_t)handle + serial) * keys->factor >> keys->shift];
}

static inline bool hm_stream_is(const struct hm_stream_key *key,
				const struct hm_order *o, hetmem_stream handle)
{
	return key->handle == handle && key->order == o->serial;
}

/*
 * Looks up the stream of @handle; takes o->lock on a miss. Errors:
 * -EINVAL: no such stream, or of another context than the memory;
 * -EBUSY: it is captured without hm_stream_captured();
 * -EMFILE: too many streams that were not retired;
 * -ENOMEM.
 */
static inline int hm_stream_get(struct hm_order *o, hetmem_stream handle,
				struct hm_stream **stream)
{
	const struct hm_stream_key *key = hm_stream_set_of(hm_stream_front.keys, o->serial, handle);
	const struct hm_stream_key *last = key + HM_STREAM_WAYS - 1;
	struct hm_stream *found;
	unsigned long long id;
	uint64_t known;

	while (!hm_stream_is(key, o, handle) && key < last)
		key++;
	if (hm_unlikely(!hm_stream_is(key, o, handle) ||
			key->epoch != __atomic_load_n(&o->epoch,
						      __ATOMIC_ACQUIRE)))
		return hm_stream_lookup(o, handle, stream);
	/* The driver may call back, and a lookup may replace the table. */
	found = key->stream;
	known = key->id;
	if (key->get_id && hm_unlikely((*key->get_id)(handle, &id) || id != known))
		return hm_stream_lookup(o, handle, stream);
	*stream = found;
	return 0;
}

/*
 * Returns the thread's entry for @handle, which becomes its last, or NULL. With it the library
 * is no parent process's, and at the entry's epoch, which is the order's, @handle was not
 * captured and the stream not retired: ask @get_id, if there is one, whether it still is @id.
 * The driver may call back, and that call move or free the entries.
 */
static inline const struct hm_stream_key *hm_stream_last(const struct hm_order *o,
							 hetmem_stream handle)
{
	const uint64_t epoch = __atomic_load_n(&o->epoch, __ATOMIC_ACQUIRE);
	const struct hm_stream_key *key = hm_stream_front.last;
	unsigned int i;

	if (hm_likely(key->handle == handle && key->epoch == epoch))
		return key;
	key = hm_stream_set_of(hm_stream_front.keys, o->serial, handle);
	for (i = 0; i < HM_STREAM_WAYS; i++, key++) {
		if (key->handle == handle && key->epoch == epoch) {
			hm_stream_front.last = key;
			return key;
		}
	}
	return NULL;
}

/*
 * Takes o->lock, and looks @handle up again if the epoch is not @epoch any more:
 * *@stream was looked up at @epoch. Errors as hm_stream_get(), then the lock is
 * not held.
 */
int hm_order_lock(struct hm_order *o, hetmem_stream handle, uint64_t epoch,
		  struct hm_stream **stream);

#endif /* HETMEM_STREAM_LOOKUP_H */
