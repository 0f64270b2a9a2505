// SPDX-License-Identifier: GPL-2.0
/*
 * Other drivers' devices, which never told hetmem of themselves, and
 * /sys/class/misc/hetmem/foreign/.
 *
 * Design. Such a device is known by what can be seen of it: the owner that
 * its driver's MMU_NOTIFY_MIGRATE carries, without which no snapshot shows its
 * pages, and the pgmap of a page, one for each pool of pages, which mostly
 * means one for each GPU. Both are kept as tokens in the order in which they
 * were first seen. A pool's number is the index of its location and the name
 * of its directory in sysfs.
 *
 * What such a device holds only its driver knows, and nobody but its driver
 * can keep it from filling. So its limit is advisory: it bounds what hints ask
 * for, as far as REFRESH has seen what is there. It bounds that for each user
 * by itself: what one tracks, or leaves unanswered, must not have the hints of
 * others refused. A hint counts for whose memory it would move.
 *
 * Locking. Readers look at the tables without a lock, for they only grow; the
 * spinlocks that serialize growth are innermost, and are taken in notifier
 * callbacks. A work item makes the directories, since pools are found where
 * nothing may sleep.
 */
#include <linux/kobject.h>
#include <linux/kstrtox.h>
#include <linux/memremap.h>
#include <linux/mm.h>
#include <linux/nospec.h>
#include <linux/range.h>
#include <linux/sysfs.h>
#include <linux/workqueue.h>

#include "hetmem.h"
#include "trace.h"

/* An entry is written once, before @nr says that it is there. */
struct hetmem_tokens {
	spinlock_t lock;	/* serializes adding */
	unsigned int nr;
	unsigned int max;
	const void *tokens[HETMEM_MAX_POOLS];
};

static struct hetmem_tokens hetmem_owners = {
	.lock = __SPIN_LOCK_UNLOCKED(hetmem_owners.lock),
	.max = HETMEM_MAX_LEARNED,
};

static struct hetmem_tokens hetmem_pool_numbers = {
	.lock = __SPIN_LOCK_UNLOCKED(hetmem_pool_numbers.lock),
	.max = HETMEM_MAX_POOLS,
};

/**
 * struct hetmem_pool - what is known of a pool of pages
 * @dir: in sysfs, once there is one
 * @capacity: bytes
 * @limit: bytes that hints may fill for one user, set through sysfs
 * @seen: pages of tracked ranges that REFRESH last saw there
 */
struct hetmem_pool {
	struct kobject *dir;
	u64 capacity;
	u64 limit;
	atomic64_t seen;
};

static struct hetmem_pool hetmem_pools[HETMEM_MAX_POOLS] = {
	[0 ... HETMEM_MAX_POOLS - 1] = { .limit = U64_MAX },
};

static struct kobject *hetmem_pools_kobj;

static int hetmem_token_find(const struct hetmem_tokens *t, const void *token)
{
	/* Pairs with the release in hetmem_token_number(). */
	unsigned int i, nr = smp_load_acquire(&t->nr);

	for (i = 0; i < nr; i++) {
		if (t->tokens[i] == token)
			return i;
	}
	return -ENOENT;
}

/* The number of @token, a new one if need be; -ENOSPC if they are used up. */
static int hetmem_token_number(struct hetmem_tokens *t, const void *token)
{
	int i = hetmem_token_find(t, token);

	if (i >= 0)
		return i;
	spin_lock(&t->lock);
	i = hetmem_token_find(t, token);
	if (i < 0 && t->nr < t->max) {
		i = t->nr;
		t->tokens[i] = token;
		/* Pairs with the acquire of readers: the token is there. */
		smp_store_release(&t->nr, i + 1);
	}
	spin_unlock(&t->lock);
	return i < 0 ? -ENOSPC : i;
}

/* A driver is about to migrate with @owner; from a notifier callback. */
void hetmem_owner_learn(void *owner)
{
	/* With all numbers given away its pages stay unknown: say nothing. */
	if (owner)
		hetmem_token_number(&hetmem_owners, owner);
}

/* The owner that was learned @i-th, or NULL. */
void *hetmem_owner_learned(unsigned int i)
{
	/* Pairs with the release in hetmem_token_number(). */
	if (i >= smp_load_acquire(&hetmem_owners.nr))
		return NULL;
	return (void *)hetmem_owners.tokens[i];
}

/* The pool that @location is, or -ENOENT if it is something else. */
static int hetmem_pool_at(u32 location)
{
	u32 index = HETMEM_LOC_INDEX(location);

	if (HETMEM_LOC_KIND(location) != HETMEM_FOREIGN ||
	    index >= HETMEM_MAX_POOLS)
		return -ENOENT;
	return array_index_nospec(index, HETMEM_MAX_POOLS);
}

/* By the name of its directory, which we gave it. */
static struct hetmem_pool *hetmem_pool_of_kobj(struct kobject *kobj)
{
	unsigned int i = 0;

	WARN_ON_ONCE(kstrtouint(kobject_name(kobj), 10, &i));
	return &hetmem_pools[i];
}

HETMEM_SHOW(capacity, "%llu", hetmem_pool_of_kobj(kobj)->capacity)
HETMEM_SHOW(seen, "%llu", (u64)atomic64_read(&hetmem_pool_of_kobj(kobj)->seen)
	    << PAGE_SHIFT)
HETMEM_SHOW(advisory_limit, "%llu",
	    READ_ONCE(hetmem_pool_of_kobj(kobj)->limit))

static ssize_t advisory_limit_store(struct kobject *kobj,
				    struct kobj_attribute *attr,
				    const char *buf, size_t count)
{
	u64 limit;
	int ret;

	ret = kstrtou64(buf, 0, &limit);
	if (ret)
		return ret;
	WRITE_ONCE(hetmem_pool_of_kobj(kobj)->limit, limit);
	return count;
}

static const struct attribute *hetmem_pool_attrs[] = {
	HETMEM_ATTR(RO, capacity),
	HETMEM_ATTR(RO, seen),
	HETMEM_ATTR(RW, advisory_limit),
	NULL
};

/* Makes the directories that are not there yet; one at a time. */
static void hetmem_pools_show(struct work_struct *work)
{
	/* Pairs with the release in hetmem_token_number(). */
	unsigned int i, nr = smp_load_acquire(&hetmem_pool_numbers.nr);
	struct kobject *dir;
	char name[12];

	for (i = 0; i < nr; i++) {
		if (hetmem_pools[i].dir)
			continue;
		snprintf(name, sizeof(name), "%u", i);
		dir = kobject_create_and_add(name, hetmem_pools_kobj);
		if (!dir)
			return;
		if (sysfs_create_files(dir, hetmem_pool_attrs)) {
			kobject_put(dir);
			return;
		}
		hetmem_pools[i].dir = dir;
	}
}

static DECLARE_WORK(hetmem_pools_work, hetmem_pools_show);

/*
 * The location of a device page of a driver that is not registered. The caller
 * holds the lock that keeps the page, and with it the pgmap, from going away.
 */
u32 hetmem_foreign_location(const struct dev_pagemap *pgmap)
{
	int i = hetmem_token_find(&hetmem_pool_numbers, pgmap), r;
	u64 capacity = 0;

	if (i < 0) {
		i = hetmem_token_number(&hetmem_pool_numbers, pgmap);
		if (i < 0)
			return HETMEM_LOC(HETMEM_UNKNOWN, 0);
		for (r = 0; r < pgmap->nr_range; r++)
			capacity += range_len(&pgmap->ranges[r]);
		hetmem_pools[i].capacity = capacity;
		schedule_work(&hetmem_pools_work);
	}
	return HETMEM_LOC(HETMEM_FOREIGN, i);
}

/* REFRESH sees @nr_pages more of @user's, or fewer, than before. */
void hetmem_foreign_seen(struct hetmem_user *user, u32 location, long nr_pages)
{
	int i = hetmem_pool_at(location);

	if (i < 0)
		return;
	atomic64_add(nr_pages, &hetmem_pools[i].seen);
	atomic64_add(nr_pages, &user->foreign[i]);
}

/*
 * A hint asks for @nr_pages of @user's to be moved to @location. Return: 0, or
 * -EDQUOT if that is more than should be there.
 */
int hetmem_foreign_ask(struct hetmem_user *user, u32 location, u64 nr_pages)
{
	int i = hetmem_pool_at(location);
	u64 limit;
	s64 there;

	if (i < 0)
		return 0;
	limit = READ_ONCE(hetmem_pools[i].limit);
	there = atomic64_read(&user->foreign[i]);
	do {
		if (there + nr_pages > limit >> PAGE_SHIFT) {
			trace_hetmem_limit_hit("foreign/advisory_limit", limit);
			return -EDQUOT;
		}
	} while (!atomic64_try_cmpxchg(&user->foreign[i], &there,
				       there + nr_pages));
	return 0;
}

/* Such a hint has ended. */
void hetmem_foreign_answered(struct hetmem_user *user, u32 location,
			     u64 nr_pages)
{
	int i = hetmem_pool_at(location);

	if (i >= 0)
		atomic64_sub(nr_pages, &user->foreign[i]);
}

int hetmem_foreign_init(struct kobject *misc)
{
	hetmem_pools_kobj = kobject_create_and_add("foreign", misc);
	return hetmem_pools_kobj ? 0 : -ENOMEM;
}

/* When no context is left that could find a pool. */
void hetmem_foreign_exit(void)
{
	unsigned int i;

	cancel_work_sync(&hetmem_pools_work);
	for (i = 0; i < HETMEM_MAX_POOLS; i++)
		kobject_put(hetmem_pools[i].dir);
	kobject_put(hetmem_pools_kobj);
}
