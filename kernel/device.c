// SPDX-License-Identifier: GPL-2.0
/*
 * The registry of devices whose drivers have registered with hetmem, the way
 * from a command to such a driver, and /sys/class/misc/hetmem/devices/.
 *
 * Locking. hetmem_devices_mutex serializes changes. Readers of the list hold
 * RCU; those that run a driver's operation, which may sleep, hold
 * hetmem_devices_srcu. Unregistering removes the entry and waits for both, so
 * that afterwards no operation runs and nobody compares the driver's pgmap any
 * more. That is also what keeps the driver's module: it unregisters before it
 * goes, so an operation needs no reference to it, and unloading never fails
 * because one is running. SRCU is never held while waiting for mmap_lock.
 */
#include <linux/kstrtox.h>
#include <linux/module.h>
#include <linux/srcu.h>

#include "device.h"
#include "range.h"
#include "trace.h"

/**
 * struct hetmem_device - a registered device
 * @node: in the list of all
 * @id: by which userspace knows it
 * @desc: as its driver described it
 * @name: of @desc
 * @limit: bytes of it that may be used, set through sysfs
 * @kobj: its directory in sysfs; frees the device
 * @rcu: for readers of the list
 */
struct hetmem_device {
	struct list_head node;
	u32 id;
	struct hetmem_device_desc desc;
	char name[sizeof_field(struct hetmem_device_info, name)];
	u64 limit;
	struct kobject kobj;
	struct rcu_head rcu;
};

/* libhetmem has the upper half of the index for its own numbers. */
#define HETMEM_DEVICE_IDS	0x8000

static DEFINE_MUTEX(hetmem_devices_mutex);
DEFINE_STATIC_SRCU(hetmem_devices_srcu);
static LIST_HEAD(hetmem_devices);
static unsigned int hetmem_nr_devices;
static u32 hetmem_last_device = HETMEM_DEVICE_IDS - 1;
static struct kobject *hetmem_devices_kobj;

/* In the scope of RCU, of SRCU, or of the mutex. */
#define for_each_device(_dev)						\
	list_for_each_entry_rcu(_dev, &hetmem_devices, node,		\
				srcu_read_lock_held(&hetmem_devices_srcu) || \
					lockdep_is_held(&hetmem_devices_mutex))

static struct hetmem_device *device_find(u32 id)
{
	struct hetmem_device *dev;

	for_each_device(dev) {
		if (dev->id == id)
			return dev;
	}
	return NULL;
}

/* A number that was not given away lately, nor is in use. */
static u32 device_number(void)
{
	do {
		hetmem_last_device = (hetmem_last_device + 1) % HETMEM_DEVICE_IDS;
	} while (device_find(hetmem_last_device));
	return hetmem_last_device;
}

static u64 device_used(const struct hetmem_device *dev)
{
	return dev->desc.ops->used ? dev->desc.ops->used(dev->desc.drvdata) : 0;
}

/*
 * Evicts what is in use beyond the new limit. The files of sysfs are gone
 * before the device is. Return: 0, or the driver's error.
 */
static int device_set_limit(struct hetmem_device *dev, u64 limit)
{
	const struct hetmem_device_ops *ops = dev->desc.ops;
	u64 used;

	if (limit > dev->desc.capacity)
		return -ERANGE;
	WRITE_ONCE(dev->limit, limit);
	used = device_used(dev);
	if (!ops->evict || used <= limit)
		return 0;
	return min(ops->evict(dev->desc.drvdata, DIV_ROUND_UP(used - limit, PAGE_SIZE)), 0L);
}

#define device_of(_kobj)	container_of(_kobj, struct hetmem_device, kobj)

/* A file of the device's directory, which shows @_value of @dev. */
#define DEVICE_FILE(_name, _mode, _format, _value)			\
static ssize_t _name##_show(struct kobject *kobj,			\
			    struct kobj_attribute *attr, char *buf)	\
{									\
	const struct hetmem_device *dev = device_of(kobj);		\
									\
	return sysfs_emit(buf, _format "\n", _value);			\
}									\
static struct kobj_attribute _name##_attr = __ATTR_##_mode(_name)

static ssize_t limit_store(struct kobject *kobj, struct kobj_attribute *attr, const char *buf,
			   size_t count)
{
	u64 limit;
	int ret;

	ret = kstrtou64(buf, 0, &limit);
	if (!ret)
		ret = device_set_limit(device_of(kobj), limit);
	return ret ? ret : count;
}

DEVICE_FILE(name, RO, "%s", dev->name);
DEVICE_FILE(capacity, RO, "%llu", dev->desc.capacity);
DEVICE_FILE(used, RO, "%llu", device_used(dev));
DEVICE_FILE(limit, RW, "%llu", READ_ONCE(dev->limit));

static struct attribute *hetmem_device_attrs[] = {
	&name_attr.attr, &capacity_attr.attr, &used_attr.attr, &limit_attr.attr, NULL
};
ATTRIBUTE_GROUPS(hetmem_device);

static void device_free(struct kobject *kobj)
{
	kfree_rcu(device_of(kobj), rcu);
}

static const struct kobj_type hetmem_device_ktype = {
	.release = device_free,
	.sysfs_ops = &kobj_sysfs_ops,
	.default_groups = hetmem_device_groups,
};

/* Makes @dev known. */
static int device_publish(struct hetmem_device *dev)
{
	const struct hetmem_device *other;
	int ret;

	guard(mutex)(&hetmem_devices_mutex);
	if (hetmem_nr_devices == HETMEM_MAX_DEVICES)
		return -ENOSPC;
	for_each_device(other) {
		if (other->desc.pgmap == dev->desc.pgmap)
			return -EEXIST;
	}
	dev->id = device_number();
	ret = kobject_add(&dev->kobj, hetmem_devices_kobj, "%u", dev->id);
	if (ret)
		return ret;
	list_add_tail_rcu(&dev->node, &hetmem_devices);
	hetmem_nr_devices++;
	return 0;
}

/**
 * hetmem_device_register - make a device known to hetmem and its users
 * @desc: copied; see there
 *
 * Context: process, may sleep.
 * Return: the device, or ERR_PTR: -EINVAL a member is missing, -EEXIST the
 * pgmap is registered, -ENOSPC there are HETMEM_MAX_DEVICES, -ENOMEM.
 */
struct hetmem_device *hetmem_device_register(const struct hetmem_device_desc *desc)
{
	struct hetmem_device *dev;
	int ret;

	if (!desc->name || !desc->pgmap || !desc->owner || !desc->ops || !desc->ops->to_device ||
	    !desc->ops->to_host)
		return ERR_PTR(-EINVAL);
	dev = kzalloc(sizeof(*dev), GFP_KERNEL);
	if (!dev)
		return ERR_PTR(-ENOMEM);
	/* Kernels before 5.18 take no const. */
	kobject_init(&dev->kobj, (void *)&hetmem_device_ktype);
	dev->desc = *desc;
	strscpy(dev->name, desc->name, sizeof(dev->name));
	dev->desc.name = dev->name;
	dev->limit = desc->capacity;

	ret = device_publish(dev);
	if (!ret)
		return dev;
	kobject_put(&dev->kobj);
	return ERR_PTR(ret);
}
EXPORT_SYMBOL_GPL(hetmem_device_register);

/**
 * hetmem_device_unregister - the device goes away
 * @dev: from hetmem_device_register()
 *
 * Waits for the device's operations that run, and for nothing else that could
 * take long. Afterwards none runs or will run. The device's pages may still be
 * in use: bringing them back is the driver's business.
 *
 * Context: process, may sleep; not from one of the device's operations.
 */
void hetmem_device_unregister(struct hetmem_device *dev)
{
	/* Waits for readers and writers of its files. */
	kobject_del(&dev->kobj);
	scoped_guard(mutex, &hetmem_devices_mutex) {
		list_del_rcu(&dev->node);
		hetmem_nr_devices--;
	}
	synchronize_srcu(&hetmem_devices_srcu);
	synchronize_rcu();
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
void hetmem_device_moved(struct hetmem_device *dev, const struct mm_struct *mm, unsigned long addr,
			 unsigned long nr_pages, enum hetmem_direction dir)
{
	const enum hetmem_counter what = dir == HETMEM_TO_HOST ?
		HETMEM_COUNT_TO_HOST : HETMEM_COUNT_TO_DEVICE;
	const unsigned long last = addr + (nr_pages << PAGE_SHIFT) - 1;
	struct hetmem_context *ctx;
	struct hetmem_mm *hm;

	if (!nr_pages)
		return;
	if (dir == HETMEM_TO_HOST)
		hetmem_total_add(pages_to_host, nr_pages);
	else
		hetmem_total_add(pages_to_device, nr_pages);
	guard(rcu)();
	hm = hetmem_mm_find(mm);
	if (!hm)
		return;
	guard(spinlock)(&hm->lock);
	list_for_each_entry(ctx, &hm->contexts, siblings)
		hetmem_context_count(ctx, addr, last, what, HETMEM_LOC(HETMEM_DEVICE, dev->id));
}
EXPORT_SYMBOL_GPL(hetmem_device_moved);

/*
 * The location of a page in ZONE_DEVICE; under the lock that keeps the page
 * from going away. A registered pgmap is compared, never followed.
 */
u32 hetmem_page_location(const struct page *page)
{
	const struct dev_pagemap *pgmap = hetmem_page_pgmap(page);
	const struct hetmem_device *dev;

	guard(rcu)();
	for_each_device(dev) {
		if (dev->desc.pgmap == pgmap)
			return HETMEM_LOC(HETMEM_DEVICE, dev->id);
	}
	if (is_device_private_page(page) || is_device_coherent_page(page))
		return hetmem_foreign_location(page);
	/* Persistent memory and the like: the host's, on a node. */
	return HETMEM_LOC(HETMEM_HOST, page_to_nid(page));
}

/*
 * A driver is about to migrate with @owner; in a notification. Return: whether
 * it is not registered, and so does not report itself what arrives.
 */
bool hetmem_owner_seen(void *owner)
{
	const struct hetmem_device *dev;

	guard(rcu)();
	for_each_device(dev) {
		if (dev->desc.owner == owner)
			return false;
	}
	hetmem_owner_learn(owner);
	return true;
}

/*
 * Fills @owners, with room for HETMEM_MAX_OWNERS, with the owners of device
 * pages, with which hmm_range_fault() shows them. Return: how many; the first one
 * is NULL if there is none.
 */
unsigned int hetmem_owners(void **owners)
{
	unsigned int o, nr = hetmem_owners_learned(owners);
	const struct hetmem_device *dev;

	if (!nr)
		owners[0] = NULL;
	guard(rcu)();
	for_each_device(dev) {
		for (o = 0; o < nr && owners[o] != dev->desc.owner; o++)
			;
		/* More than there may be are being replaced. */
		if (o == nr && nr < HETMEM_MAX_OWNERS)
			owners[nr++] = dev->desc.owner;
	}
	return nr;
}

/**
 * hetmem_device_move - have a driver move pages
 * @id: of the device
 * @vma: as for struct hetmem_device_ops, as are the others
 * @start: first byte
 * @end: first byte behind it
 * @to_host: from the device, else to it
 * @nid: node, or NUMA_NO_NODE
 *
 * Return: what the operation returns, or -ENODEV, -EDQUOT.
 */
int hetmem_device_move(u32 id, struct vm_area_struct *vma, unsigned long start, unsigned long end,
		       bool to_host, int nid)
{
	struct hetmem_device *dev;

	guard(srcu)(&hetmem_devices_srcu);
	dev = device_find(id);
	if (!dev)
		return -ENODEV;
	if (to_host)
		return dev->desc.ops->to_host(dev->desc.drvdata, vma, start, end, nid);
	if (READ_ONCE(dev->limit) >= PAGE_SIZE)
		return dev->desc.ops->to_device(dev->desc.drvdata, vma, start, end);
	trace_hetmem_limit_hit("devices/limit", dev->limit);
	return -EDQUOT;
}

/*
 * Bytes that may be moved to device @id between two looks; 0: no such device.
 * Pages are counted after the move. A longer step would make a small device
 * evict pages of the same step.
 */
unsigned long hetmem_device_span(u32 id)
{
	struct hetmem_device *dev;

	guard(rcu)();
	dev = device_find(id);
	if (!dev)
		return 0;
	return clamp(ALIGN_DOWN(min(dev->desc.capacity, dev->limit) / 8, HETMEM_BLOCK_SIZE),
		     (u64)HETMEM_BLOCK_SIZE, (u64)HETMEM_DEVICE_SPAN);
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

/* Fills @info, with room for HETMEM_MAX_DEVICES, for INFO. Return: how many. */
unsigned int hetmem_device_list(struct hetmem_device_info *info)
{
	struct hetmem_device *dev;
	unsigned int nr = 0;

	guard(srcu)(&hetmem_devices_srcu);
	for_each_device(dev) {
		if (nr == HETMEM_MAX_DEVICES)
			break;
		info[nr].id = dev->id;
		info[nr].capacity = dev->desc.capacity;
		info[nr].used = device_used(dev);
		strscpy(info[nr++].name, dev->name, sizeof(dev->name));
	}
	return nr;
}

int hetmem_device_init(struct kobject *misc)
{
	hetmem_devices_kobj = kobject_create_and_add("devices", misc);
	return hetmem_devices_kobj ? 0 : -ENOMEM;
}

void hetmem_device_exit(void)
{
	kobject_put(hetmem_devices_kobj);
}
