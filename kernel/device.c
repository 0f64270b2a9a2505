// SPDX-License-Identifier: GPL-2.0
/*
 * The registry of devices whose drivers have registered with hetmem, and the
 * way from a command to such a driver.
 *
 * Locking. hetmem_devices_mutex serializes changes. Readers, which may sleep
 * (they run the drivers' operations), hold hetmem_devices_srcu. Unregistering
 * removes the entry and then waits for all readers, so that afterwards no
 * operation runs and nobody compares the driver's pgmap any more. The module
 * that owns the operations is pinned while one runs; one that is on its way
 * out is a device that is not there.
 */
#include <linux/err.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/nospec.h>
#include <linux/slab.h>
#include <linux/srcu.h>
#include <linux/string.h>
#include <linux/uaccess.h>

#include <linux/hetmem_device.h>
#include "hetmem.h"
#include "trace.h"

static DEFINE_MUTEX(hetmem_devices_mutex);
DEFINE_STATIC_SRCU(hetmem_devices_srcu);
static struct hetmem_device __rcu *hetmem_devices[HETMEM_MAX_DEVICES];

/* Until hetmem_device_unlock() devices that were found stay. May sleep. */
int hetmem_device_lock(void)
	__acquires(hetmem_devices_srcu)
{
	return srcu_read_lock(&hetmem_devices_srcu);
}

void hetmem_device_unlock(int idx)
	__releases(hetmem_devices_srcu)
{
	srcu_read_unlock(&hetmem_devices_srcu, idx);
}

struct hetmem_device *hetmem_device_find(u32 id)
{
	if (id >= HETMEM_MAX_DEVICES)
		return NULL;
	id = array_index_nospec(id, HETMEM_MAX_DEVICES);
	return srcu_dereference(hetmem_devices[id], &hetmem_devices_srcu);
}

/**
 * hetmem_device_register - make a device known to hetmem and its users
 * @desc: copied; see there
 *
 * Context: process, may sleep.
 * Return: the device, or ERR_PTR: -EINVAL a member is missing, -EEXIST the
 * pgmap is registered, -ENOSPC there are HETMEM_MAX_DEVICES, -ENOMEM.
 */
struct hetmem_device *
hetmem_device_register(const struct hetmem_device_desc *desc)
{
	struct hetmem_device *dev, *other;
	struct mutex *lock = &hetmem_devices_mutex;
	u32 id, free = HETMEM_MAX_DEVICES;
	int ret = 0;

	if (!desc->name || !desc->pgmap || !desc->owner || !desc->ops ||
	    !desc->ops->to_device || !desc->ops->to_host)
		return ERR_PTR(-EINVAL);
	dev = kzalloc(sizeof(*dev), GFP_KERNEL);
	if (!dev)
		return ERR_PTR(-ENOMEM);
	dev->desc = *desc;
	strscpy(dev->name, desc->name, sizeof(dev->name));
	dev->desc.name = dev->name;
	dev->limit = desc->capacity;

	mutex_lock(&hetmem_devices_mutex);
	for (id = 0; id < HETMEM_MAX_DEVICES; id++) {
		other = rcu_dereference_protected(hetmem_devices[id],
						  lockdep_is_held(lock));
		if (!other)
			free = min(free, id);
		else if (other->desc.pgmap == desc->pgmap)
			ret = -EEXIST;
	}
	if (!ret && free == HETMEM_MAX_DEVICES)
		ret = -ENOSPC;
	if (ret) {
		kfree(dev);
		dev = ERR_PTR(ret);
		goto out;
	}
	dev->id = free;
	ret = hetmem_sysfs_add(dev);
	if (ret)
		dev = ERR_PTR(ret);
	else
		rcu_assign_pointer(hetmem_devices[free], dev);
out:
	mutex_unlock(&hetmem_devices_mutex);
	return dev;
}
EXPORT_SYMBOL_GPL(hetmem_device_register);

/**
 * hetmem_device_unregister - the device goes away
 * @dev: from hetmem_device_register()
 *
 * Afterwards no operation of the device runs or will run. Its pages may
 * still be in use: bringing them back is the driver's business.
 *
 * Context: process, may sleep; not from one of the device's operations.
 */
void hetmem_device_unregister(struct hetmem_device *dev)
{
	/* Before the number is free, which is its directory's name. */
	hetmem_sysfs_del(dev);
	mutex_lock(&hetmem_devices_mutex);
	RCU_INIT_POINTER(hetmem_devices[dev->id], NULL);
	mutex_unlock(&hetmem_devices_mutex);
	synchronize_srcu(&hetmem_devices_srcu);
	kobject_put(&dev->kobj);
}
EXPORT_SYMBOL_GPL(hetmem_device_unregister);

/**
 * hetmem_device_id - the number by which userspace knows a device
 * @dev: from hetmem_device_register()
 */
u32 hetmem_device_id(const struct hetmem_device *dev)
{
	return dev->id;
}
EXPORT_SYMBOL_GPL(hetmem_device_id);

/* Documented in hetmem_device.h. */
void hetmem_device_moved(struct hetmem_device *dev, const struct mm_struct *mm,
			 unsigned long addr, unsigned long nr_pages,
			 enum hetmem_direction dir)
{
	const bool to_host = dir == HETMEM_TO_HOST;

	if (!nr_pages)
		return;
	hetmem_total_add(to_host ? HETMEM_TOTAL_TO_HOST :
				   HETMEM_TOTAL_TO_DEVICE, nr_pages);
	hetmem_mm_count(mm, addr, addr + (nr_pages << PAGE_SHIFT) - 1,
			to_host ? HETMEM_COUNT_TO_HOST : HETMEM_COUNT_TO_DEVICE,
			HETMEM_LOC(HETMEM_DEVICE, dev->id));
}
EXPORT_SYMBOL_GPL(hetmem_device_moved);

/*
 * The location of a page in ZONE_DEVICE. The caller holds the lock that keeps
 * the page from going away, and hetmem_device_lock(). The pgmap is compared,
 * never followed.
 */
u32 hetmem_device_location(const struct page *page)
{
	const struct dev_pagemap *pgmap = hetmem_page_pgmap(page);
	const struct hetmem_device *dev;
	u32 id;

	for (id = 0; id < HETMEM_MAX_DEVICES; id++) {
		dev = hetmem_device_find(id);
		if (dev && dev->desc.pgmap == pgmap)
			return HETMEM_LOC(HETMEM_DEVICE, id);
	}
	if (is_device_private_page(page) || is_device_coherent_page(page))
		return hetmem_foreign_location(pgmap);
	/* Persistent memory and the like: the host's, on a node. */
	return HETMEM_LOC(HETMEM_HOST, page_to_nid(page));
}

/* Whether the device that migrates tells us itself; from a callback too. */
bool hetmem_owner_is_registered(const void *owner)
{
	const struct hetmem_device *dev;
	bool found = false;
	int idx;
	u32 id;

	idx = hetmem_device_lock();
	for (id = 0; id < HETMEM_MAX_DEVICES && !found; id++) {
		dev = hetmem_device_find(id);
		found = dev && dev->desc.owner == owner;
	}
	hetmem_device_unlock(idx);
	return found;
}

static void hetmem_owner_add(void **owners, unsigned int *nr, void *owner)
{
	unsigned int i;

	for (i = 0; i < *nr; i++) {
		if (owners[i] == owner)
			return;
	}
	owners[(*nr)++] = owner;
}

/*
 * Fills @owners, with room for HETMEM_MAX_OWNERS, with the distinct owners
 * of device pages, by which hmm_range_fault() is told to show them. Under
 * hetmem_device_lock(). Return: how many.
 */
unsigned int hetmem_device_owners(void **owners)
{
	const struct hetmem_device *dev;
	unsigned int i, nr = 0;
	void *owner;
	u32 id;

	for (id = 0; id < HETMEM_MAX_DEVICES; id++) {
		dev = hetmem_device_find(id);
		if (dev)
			hetmem_owner_add(owners, &nr, dev->desc.owner);
	}
	for (i = 0; (owner = hetmem_owner_learned(i)); i++)
		hetmem_owner_add(owners, &nr, owner);
	return nr;
}

/* Under hetmem_device_lock(); else as hetmem_device_ops has it. */
int hetmem_device_move(struct hetmem_device *dev, struct vm_area_struct *vma,
		       unsigned long start, unsigned long end, bool to_host,
		       int nid)
{
	const struct hetmem_device_ops *ops = dev->desc.ops;
	void *drvdata = dev->desc.drvdata;
	u64 limit = READ_ONCE(dev->limit);
	int ret;

	if (!to_host && limit < PAGE_SIZE) {
		trace_hetmem_limit_hit("devices/limit", limit);
		return -EDQUOT;
	}
	if (!try_module_get(ops->owner))
		return -ENODEV;
	ret = to_host ? ops->to_host(drvdata, vma, start, end, nid) :
			ops->to_device(drvdata, vma, start, end);
	module_put(ops->owner);
	return ret;
}

u64 hetmem_device_used(const struct hetmem_device *dev)
{
	const struct hetmem_device_ops *ops = dev->desc.ops;
	u64 used;

	if (!ops->used || !try_module_get(ops->owner))
		return 0;
	used = ops->used(dev->desc.drvdata);
	module_put(ops->owner);
	return used;
}

/**
 * hetmem_device_limit - how much of a device may be used
 * @dev: from hetmem_device_register()
 *
 * The driver makes room, by evicting, before it goes beyond. Bytes; any
 * context.
 */
u64 hetmem_device_limit(const struct hetmem_device *dev)
{
	return READ_ONCE(dev->limit);
}
EXPORT_SYMBOL_GPL(hetmem_device_limit);

/*
 * For sysfs, whose files are gone before the device is: evicts what is in use
 * beyond the new limit. Return: 0, or what the driver says.
 */
int hetmem_device_set_limit(struct hetmem_device *dev, u64 limit)
{
	const struct hetmem_device_ops *ops = dev->desc.ops;
	long ret = 0;
	u64 used;

	if (limit > dev->desc.capacity)
		return -ERANGE;
	WRITE_ONCE(dev->limit, limit);
	if (!ops->evict || !try_module_get(ops->owner))
		return 0;
	used = hetmem_device_used(dev);
	if (used > limit)
		ret = ops->evict(dev->desc.drvdata,
				 DIV_ROUND_UP(used - limit, PAGE_SIZE));
	module_put(ops->owner);
	return min(ret, 0L);
}

/* Fills @info with device @id. Return: whether there is one. */
static bool hetmem_device_describe(u32 id, struct hetmem_device_info *info)
{
	struct hetmem_device *dev;
	int idx;

	memset(info, 0, sizeof(*info));
	idx = hetmem_device_lock();
	dev = hetmem_device_find(id);
	if (dev) {
		info->id = id;
		info->caps = dev->desc.caps;
		info->capacity = dev->desc.capacity;
		info->used = hetmem_device_used(dev);
		memcpy(info->name, dev->name, sizeof(info->name));
	}
	hetmem_device_unlock(idx);
	return dev;
}

/*
 * The device part of HETMEM_IOC_INFO. The caller's array is written with no
 * lock held: who has userfaultfd can have that take forever, and a device
 * must be able to go.
 */
int hetmem_device_list(struct hetmem_cmd_info *cmd)
{
	struct hetmem_device_info info;
	char __user *to = u64_to_user_ptr(cmd->devices);
	u32 id, nr = 0;

	if (cmd->nr_devices && cmd->device_size < sizeof(info))
		return -EINVAL;
	if (cmd->device_size > PAGE_SIZE)
		return -E2BIG;

	for (id = 0; id < HETMEM_MAX_DEVICES; id++) {
		if (!hetmem_device_describe(id, &info) ||
		    nr++ >= cmd->nr_devices)
			continue;
		if (hetmem_copy_out(to, cmd->device_size, &info, sizeof(info)))
			return -EFAULT;
		to += cmd->device_size;
	}
	cmd->nr_devices = nr;
	return 0;
}
