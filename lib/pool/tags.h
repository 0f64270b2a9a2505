/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Tags. The blocks of a tag are in a pool of their own, a member of the pool that the program
 * made. Scratch blocks of the tag are in another member. So they share no handle with other
 * blocks, and a member sleeps and wakes as any pool does. The pool itself has the blocks without
 * a tag. All members have one provider, and max= bounds all of them together.
 *
 * adaptor/tags.c makes the members and passes on requests. This is the part that pools know.
 * A pool without tagged blocks pays for a flag at each free.
 */
#ifndef HETMEM_POOL_TAGS_H
#define HETMEM_POOL_TAGS_H

#include "core/snapshot.h"

struct pool;
struct hm_tags;

/**
 * struct hm_tags_ops - what adaptor/tags.c does for the pools
 * @ctl: a request to all members; without a lock
 * @owner: the pool whose addresses have @ptr; without a lock
 * @spare: members other than @p give back free memory. @all: also what they would keep for
 *	themselves. Returns whether some more is in use by earlier work. Without a lock
 * @parked: bytes of host memory that members other than @p hold for contents; during a sleep
 *	or a wake
 * @tell: appends the free bytes of members other than @p to @text, up to @size. Without a lock
 * @destroy: destroys the members, except the pool itself
 */
struct hm_tags_ops {
	int (*ctl)(struct hm_tags *tags, enum hm_ctl op, void *arg);
	struct hetmem_resource *(*owner)(struct hm_tags *tags, const void *ptr);
	bool (*spare)(struct hm_tags *tags, const struct pool *p, bool all);
	uint64_t (*parked)(struct hm_tags *tags, const struct pool *p);
	void (*tell)(struct hm_tags *tags, const struct pool *p, char *text, size_t size);
	void (*destroy)(struct hm_tags *tags);
};

/**
 * struct hm_tags - what the members of a pool share
 * @pool: that the program made, a member, too
 * @limit: held from the comparison with max= until the bytes are counted. Taken after pool->lock
 * @held, @held_peak: bytes of all members
 * @bounded: a wake under way stays within max=; else within the higher of max= and @held_peak
 */
struct hm_tags {
	const struct hm_tags_ops *ops;
	struct pool *pool;
	pthread_mutex_t limit;
	uint64_t held, held_peak;
	bool bounded;
};

/* The comparison and the counting of one thread; NULL does nothing. */
static inline void hm_tags_lock(struct hm_tags *t)
{
	if (t)
		pthread_mutex_lock(&t->limit);
}

static inline void hm_tags_unlock(struct hm_tags *t)
{
	if (t)
		pthread_mutex_unlock(&t->limit);
}

static inline uint64_t hm_tags_held(const struct hm_tags *t)
{
	return __atomic_load_n(&t->held, __ATOMIC_RELAXED);
}

/* Counts bytes that a member holds, or not any more. NULL does nothing. */
void hm_tags_hold(struct hm_tags *t, uint64_t bytes);
void hm_tags_unhold(struct hm_tags *t, uint64_t bytes);

/* Bytes that count towards max= of @p. With pool->lock. */
uint64_t hm_pool_held(const struct pool *p);

/*
 * Other members give back free memory, as in struct hm_tags_ops. @until is not 0: all of it, and
 * waits for one of them until hm_now() is @until. With pool->lock, which it releases. Returns
 * whether any did.
 */
bool hm_tags_relieve(struct pool *p, uint64_t until);

/* Bytes of host memory of other members' contents. */
uint64_t hm_tags_parked(const struct pool *p);

/* pool.c: a request to the pool @p alone, whose process owns it. */
int hm_pool_ctl(struct pool *p, enum hm_ctl op, void *arg);

/* HM_CTL_TAG_STATS of the pool @p alone. */
int hm_pool_tag_stats(struct pool *p, struct hm_ctl_tag_stats *arg);

/* pool.c: as HM_CTL_TRIM to 0, without a wait. Returns whether more is in use by earlier work. */
bool hm_pool_trim_now(struct pool *p);

/* The calling thread is in a function of hetmem_on_remap() of @p: -EDEADLK. */
int hm_pool_in_observer(const struct pool *p);

/*
 * explain.c: "; free: 123 in private pools ..." of @p, or "". With pool->lock, which it releases
 * between looks.
 */
void hm_pool_tell_free_bytes(struct pool *p, char *text, size_t size);

/* @p becomes a member: of its options, those that can be set are as in the pool @of. */
void hm_tags_adopt(struct pool *p, const struct pool *of);

/* graph.c: the new pool @to retains the private pools of @from. With the lock of @from. */
int hm_private_copy(const struct pool *from, struct pool *to);

#endif /* HETMEM_POOL_TAGS_H */
