// SPDX-License-Identifier: GPL-2.0
/*
 * Other drivers' devices, which are not registered with hetmem, and
 * /sys/class/misc/hetmem/foreign/.
 *
 * Design. Such a device is known by what can be seen of it. First, the owner
 * token that its driver's MMU_NOTIFY_MIGRATE carries, without which no snapshot
 * shows its private pages; one driver usually has one for all its devices.
 * Second, the pgmap of a page: its pool. A pool gets a number, the index of its
 * location. It is not always a device: nvidia-uvm puts several GPUs' pages into
 * one pgmap, nouveau has one for each 2 MiB. So a pool only distinguishes, and
 * an owner with more pools than HETMEM_OWNER_POOLS is HETMEM_SEVERAL.
 *
 * The end of a pgmap is not reported, and holding it would hang its driver. So
 * pointers here are tokens: compared, never followed. A pool is (owner, pgmap,
 * start of the range), read from a page while that page is held; one that was
 * not seen for HETMEM_POOL_IDLE can be forgotten. Of owners the least recently
 * seen is replaced. When a driver's module goes, its owners go: loaded again, it
 * may have all three at the same addresses. A number is not given away again
 * soon, so nothing that was said of one pool (binding, limit) is taken for
 * another's.
 *
 * Nobody but its driver can keep such a device from filling. So a limit bounds
 * only what hints ask for, as far as REFRESH has seen what is there. It belongs
 * to the UUID of the device, by which executors bind, and is set by the
 * administrator.
 *
 * Locking. hetmem_owners_lock, the innermost spinlock, protects all tables
 * here. It is taken in notifications and while pages are decoded. A mutex outside
 * of it serializes the making and removing of the limits' files.
 */
#include <linux/device.h>
#include <linux/kstrtox.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/range.h>
#include <linux/uuid.h>

#include "device.h"
#include "range.h"
#include "trace.h"

#define HETMEM_POOL_IDLE	(60 * HZ)
#define HETMEM_MAX_LIMITS	64

/**
 * struct pool - a pool of pages
 * @pgmap: token; NULL: unused
 * @start: of its first range
 * @location: HETMEM_LOC()
 * @capacity: bytes
 * @used: jiffies, when a page of it was last seen
 */
struct pool {
	const struct dev_pagemap *pgmap;
	u64 start;
	u32 location;
	u64 capacity;
	unsigned long used;
};

/**
 * struct owner - a driver's owner token
 * @token: NULL: unused
 * @ops: of its pools, a token; NULL: none was seen
 * @used: jiffies, when it was last seen
 * @several: it has too many pools
 * @several_used: jiffies, when a page of them was last seen
 * @pools: of it, none if @several
 */
struct owner {
	void *token;
	const struct dev_pagemap_ops *ops;
	unsigned long used;
	bool several;
	unsigned long several_used;
	struct pool pools[HETMEM_OWNER_POOLS];
};

/**
 * struct limit - what hints may fill of a device, for each address space
 * @uuid: of the device; null: unused
 * @bytes: U64_MAX: no limit
 * @attr: its file
 * @name: of that
 */
struct limit {
	uuid_t uuid;
	u64 bytes;
	struct device_attribute attr;
	char name[sizeof("GPU-") + UUID_STRING_LEN];
};

static DEFINE_SPINLOCK(hetmem_owners_lock);
static struct owner hetmem_owner_table[HETMEM_MAX_LEARNED];
static u32 hetmem_last_pool = U16_MAX - 1;
static struct limit hetmem_limits[HETMEM_MAX_LIMITS];
static DEFINE_MUTEX(hetmem_limits_mutex); /* adding and removing them */

static struct owner *owner_find(const void *token)
{
	unsigned int i;

	for (i = 0; i < HETMEM_MAX_LEARNED; i++) {
		if (READ_ONCE(hetmem_owner_table[i].token) == token)
			return &hetmem_owner_table[i];
	}
	return NULL;
}

/* The entry of @token, which is not NULL; made if need be. Lock held. */
static struct owner *owner_get(void *token)
{
	struct owner *owner = owner_find(token);
	unsigned int i;

	if (!owner) {
		owner = &hetmem_owner_table[0];
		for (i = 0; i < HETMEM_MAX_LEARNED && owner->token; i++) {
			if (!hetmem_owner_table[i].token ||
			    time_before(hetmem_owner_table[i].used, owner->used))
				owner = &hetmem_owner_table[i];
		}
		/* Readers without the lock never see it without a token. */
		owner->ops = NULL;
		owner->several = false;
		memset(owner->pools, 0, sizeof(owner->pools));
		WRITE_ONCE(owner->token, token);
	}
	WRITE_ONCE(owner->used, jiffies);
	return owner;
}

/* A driver is about to migrate with @token; in a notification. */
void hetmem_owner_learn(void *token)
{
	struct owner *owner;

	if (!token)
		return;
	owner = owner_find(token);
	if (likely(owner)) {
		WRITE_ONCE(owner->used, jiffies);
		return;
	}
	guard(spinlock)(&hetmem_owners_lock);
	owner_get(token);
}

/* Fills @owners, with room for HETMEM_MAX_LEARNED. Return: how many. */
unsigned int hetmem_owners_learned(void **owners)
{
	unsigned int i, nr = 0;
	void *token;

	for (i = 0; i < HETMEM_MAX_LEARNED; i++) {
		token = READ_ONCE(hetmem_owner_table[i].token);
		if (token)
			owners[nr++] = token;
	}
	return nr;
}

/* Pool @i of HETMEM_MAX_POOLS. */
static struct pool *pool_nr(unsigned int i)
{
	return &hetmem_owner_table[i / HETMEM_OWNER_POOLS].pools[i % HETMEM_OWNER_POOLS];
}

/* Whether pool number @index is in use, of either kind. */
static bool pool_is_used(u32 index)
{
	unsigned int i;

	for (i = 0; i < HETMEM_MAX_POOLS; i++) {
		if (pool_nr(i)->pgmap && HETMEM_LOC_INDEX(pool_nr(i)->location) == index)
			return true;
	}
	return false;
}

/* A new number; the lock is held. */
static u32 pool_number(enum hetmem_location_kind kind)
{
	do {
		hetmem_last_pool = (hetmem_last_pool + 1) % U16_MAX;
	} while (pool_is_used(hetmem_last_pool));
	return HETMEM_LOC(kind, hetmem_last_pool);
}

static void pool_make(struct pool *pool, const struct dev_pagemap *pgmap,
		      enum hetmem_location_kind kind)
{
	int i;

	memset(pool, 0, sizeof(*pool));
	pool->location = pool_number(kind);
	pool->pgmap = pgmap;
	pool->start = pgmap->range.start;
	pool->used = jiffies;
	for (i = 0; i < pgmap->nr_range; i++)
		pool->capacity += range_len(&pgmap->ranges[i]);
}

/* The location of a page of @owner; the lock is held. */
static u32 owner_pool(struct owner *owner, const struct dev_pagemap *pgmap,
		      enum hetmem_location_kind kind)
{
	struct pool *pool, *free = NULL;
	unsigned int i;

	if (owner->several && time_after(jiffies, owner->several_used + HETMEM_POOL_IDLE))
		owner->several = false;
	for (i = 0; i < HETMEM_OWNER_POOLS && !owner->several; i++) {
		pool = &owner->pools[i];
		if (pool->pgmap == pgmap && pool->start == pgmap->range.start) {
			pool->used = jiffies;
			return pool->location;
		}
		/* The same place is not two pools at once. */
		if (!pool->pgmap || pool->pgmap == pgmap ||
		    time_after(jiffies, pool->used + HETMEM_POOL_IDLE))
			free = pool;
	}
	if (!free) {
		owner->several = true;
		owner->several_used = jiffies;
		memset(owner->pools, 0, sizeof(owner->pools));
		return HETMEM_LOC(kind, HETMEM_SEVERAL);
	}
	pool_make(free, pgmap, kind);
	return free->location;
}

/*
 * The location of a device page of a driver that is not registered. The caller
 * holds the lock that keeps the page, and with it the pgmap, from going away.
 */
u32 hetmem_foreign_location(const struct page *page)
{
	const struct dev_pagemap *pgmap = hetmem_page_pgmap(page);
	const enum hetmem_location_kind kind = is_device_coherent_page(page) ?
		HETMEM_COHERENT : HETMEM_FOREIGN;
	struct owner *owner;

	if (!pgmap->owner)
		return HETMEM_LOC(kind, HETMEM_SEVERAL);
	guard(spinlock)(&hetmem_owners_lock);
	owner = owner_get(pgmap->owner);
	owner->ops = pgmap->ops;
	return owner_pool(owner, pgmap, kind);
}

/* The entry of @ctx for @location, or a free one, which has no pages, or NULL. */
static struct hetmem_seen *seen_at(struct hetmem_context *ctx, u32 location)
{
	struct hetmem_seen *seen = NULL;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(ctx->seen); i++) {
		if (ctx->seen[i].pages && ctx->seen[i].location == location)
			return &ctx->seen[i];
		if (!ctx->seen[i].pages)
			seen = &ctx->seen[i];
	}
	return seen;
}

/*
 * Pages of @hm's that were seen at @location. Two contexts can track the same memory,
 * so the one that saw the most counts. hm->lock is held.
 */
static u64 pages_seen(struct hetmem_mm *hm, u32 location)
{
	const struct hetmem_seen *seen;
	struct hetmem_context *ctx;
	u64 pages = 0;

	list_for_each_entry(ctx, &hm->contexts, siblings) {
		seen = seen_at(ctx, location);
		pages = max(pages, seen ? seen->pages : 0);
	}
	return pages;
}

/* @nr pages more, or fewer, of @ctx's are seen at @location. hm->lock is held. */
void hetmem_foreign_seen(struct hetmem_context *ctx, u32 location, long nr)
{
	struct hetmem_seen *seen = seen_at(ctx, location);

	/* Of more pools than that, those that came last are not counted. */
	if (!seen || !hetmem_is_foreign(location))
		return;
	seen->location = location;
	seen->pages += max_t(s64, nr, -(s64)seen->pages);
}

/* The limit of a device, or NULL. hetmem_owners_lock or hetmem_limits_mutex is held. */
static struct limit *limit_find(const u8 uuid[16])
{
	unsigned int i;

	for (i = 0; i < HETMEM_MAX_LIMITS; i++) {
		if (!memcmp(&hetmem_limits[i].uuid, uuid, sizeof(uuid_t)))
			return &hetmem_limits[i];
	}
	return NULL;
}

/**
 * hetmem_foreign_limit - whether hints may ask for so much of a device
 * @hm: whose memory is to be moved; its lock is held
 * @location: where the device was found
 * @uuid: of the device
 * @nr_pages: all that hints under way ask for
 *
 * Return: 0, or -EDQUOT.
 */
int hetmem_foreign_limit(struct hetmem_mm *hm, u32 location, const u8 uuid[16], u64 nr_pages)
{
	const struct limit *entry;
	u64 limit;

	guard(spinlock)(&hetmem_owners_lock);
	entry = limit_find(uuid);
	limit = entry ? READ_ONCE(entry->bytes) : U64_MAX;
	if (pages_seen(hm, location) + nr_pages <= limit >> PAGE_SHIFT)
		return 0;
	trace_hetmem_limit_hit("foreign/GPU-UUID", limit);
	return -EDQUOT;
}

#define limit_of(_attr)	container_of(_attr, struct limit, attr)

static ssize_t limit_show(struct device *device, struct device_attribute *attr, char *buf)
{
	const u64 bytes = READ_ONCE(limit_of(attr)->bytes);

	return bytes == U64_MAX ? sysfs_emit(buf, "max\n") : sysfs_emit(buf, "%llu\n", bytes);
}

static ssize_t limit_store(struct device *device, struct device_attribute *attr, const char *buf,
			   size_t count)
{
	u64 bytes = U64_MAX;
	int ret;

	ret = sysfs_streq(buf, "max") ? 0 : kstrtou64(buf, 0, &bytes);
	if (ret)
		return ret;
	WRITE_ONCE(limit_of(attr)->bytes, bytes);
	return count;
}

/* Makes or removes the file of the UUID in @buf, which has "GPU-" before it or not. */
static ssize_t limit_change(struct device *device, const char *buf, size_t count, bool add)
{
	struct limit *limit;
	uuid_t uuid;
	int ret;

	buf += 4 * !strncmp(buf, "GPU-", 4);
	if (uuid_parse(buf, &uuid) || !sysfs_streq(buf + UUID_STRING_LEN, "") ||
	    uuid_is_null(&uuid))
		return -EINVAL;
	guard(mutex)(&hetmem_limits_mutex);
	limit = limit_find(uuid.b);
	if (add && limit)
		return -EEXIST;
	if (add)
		limit = limit_find(uuid_null.b);
	if (!limit)
		return add ? -ENOSPC : -ENOENT;
	if (add) {
		snprintf(limit->name, sizeof(limit->name), "GPU-%pUb", &uuid);
		limit->bytes = U64_MAX;
		limit->attr = (struct device_attribute)__ATTR(, 0644, limit_show, limit_store);
		limit->attr.attr.name = limit->name;
		sysfs_attr_init(&limit->attr.attr);
		ret = sysfs_add_file_to_group(&device->kobj, &limit->attr.attr, "foreign");
		if (ret)
			return ret;
	} else {
		sysfs_remove_file_from_group(&device->kobj, &limit->attr.attr, "foreign");
	}
	guard(spinlock)(&hetmem_owners_lock);
	limit->uuid = add ? uuid : uuid_null;
	return count;
}

static ssize_t add_store(struct device *device, struct device_attribute *attr, const char *buf,
			 size_t count)
{
	return limit_change(device, buf, count, true);
}

static ssize_t remove_store(struct device *device, struct device_attribute *attr, const char *buf,
			    size_t count)
{
	return limit_change(device, buf, count, false);
}

static DEVICE_ATTR_WO(add);
static DEVICE_ATTR_WO(remove);

static struct attribute *hetmem_foreign_attrs[] = {
	&dev_attr_add.attr, &dev_attr_remove.attr, NULL
};

const struct attribute_group hetmem_foreign_group = {
	.name = "foreign",
	.attrs = hetmem_foreign_attrs,
};

/* Fills @info, with room for HETMEM_MAX_POOLS, for INFO. Return: how many. */
unsigned int hetmem_foreign_list(struct hetmem_context *ctx, struct hetmem_pool_info *info)
{
	const struct hetmem_binding *binding;
	const struct pool *pool;
	unsigned int i, nr = 0, bound;

	guard(spinlock)(&ctx->hm->lock);
	guard(spinlock)(&hetmem_owners_lock);
	for (i = 0; i < HETMEM_MAX_POOLS; i++) {
		pool = pool_nr(i);
		if (!pool->pgmap)
			continue;
		info[nr].location = pool->location;
		info[nr].capacity = pool->capacity;
		info[nr].seen = pages_seen(ctx->hm, pool->location) << PAGE_SHIFT;
		bound = 0;
		for (binding = ctx->bindings; binding < ctx->bindings + ctx->nr_bindings;
		     binding++) {
			if (binding->location != pool->location)
				continue;
			memcpy(info[nr].uuid, binding->uuid, 16);
			if (bound++)
				info[nr].flags |= HETMEM_POOL_SEVERAL;
		}
		nr++;
	}
	return nr;
}

static int module_changed(struct notifier_block *block, unsigned long state, void *module)
{
	struct owner *owner;

	if (state != MODULE_STATE_GOING)
		return NOTIFY_DONE;
	guard(spinlock)(&hetmem_owners_lock);
	for (owner = hetmem_owner_table; owner < hetmem_owner_table + HETMEM_MAX_LEARNED; owner++) {
		if (within_module((unsigned long)owner->ops, module))
			memset(owner, 0, sizeof(*owner));
	}
	return NOTIFY_DONE;
}

static struct notifier_block hetmem_modules = {
	.notifier_call = module_changed,
};

int hetmem_foreign_init(void)
{
	return register_module_notifier(&hetmem_modules);
}

void hetmem_foreign_exit(void)
{
	unregister_module_notifier(&hetmem_modules);
}
