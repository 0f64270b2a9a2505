// SPDX-License-Identifier: GPL-2.0
/*
 * /sys/class/misc/hetmem/: what the administrator sets and sees. One value a
 * file; Documentation/ABI/testing/sysfs-class-misc-hetmem describes each.
 *
 * Settings are plain words, read once where they count (READ_ONCE); a cap
 * that is lowered does not take away what is there already.
 */
#include <linux/device.h>
#include <linux/kobject.h>
#include <linux/kstrtox.h>
#include <linux/slab.h>
#include <linux/sysfs.h>

#include "hetmem.h"

struct hetmem_caps hetmem_caps = {
	.max_contexts = 64,
	.max_ranges = HETMEM_MAX_RANGES,
	.max_blocks = HETMEM_MAX_BLOCKS,
	.max_ring_entries = HETMEM_RING_MAX,
	.max_hints = 256,
	.max_pins = 16384,
};

DEFINE_PER_CPU(struct hetmem_totals, hetmem_totals);

/* As exact as can be while others count. */
s64 hetmem_total(enum hetmem_total_nr what)
{
	s64 sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(per_cpu(hetmem_totals, cpu).nr[what]);
	return sum;
}

/* A setting: a file that holds one unsigned int between two bounds. */
struct hetmem_setting {
	struct device_attribute attr;
	unsigned int *value;
	unsigned int min;
	unsigned int max;
};

static ssize_t hetmem_setting_show(struct device *device,
				   struct device_attribute *attr, char *buf)
{
	struct hetmem_setting *s =
		container_of(attr, struct hetmem_setting, attr);

	return sysfs_emit(buf, "%u\n", READ_ONCE(*s->value));
}

static ssize_t hetmem_setting_store(struct device *device,
				    struct device_attribute *attr,
				    const char *buf, size_t count)
{
	struct hetmem_setting *s =
		container_of(attr, struct hetmem_setting, attr);
	unsigned int value;
	int ret;

	ret = kstrtouint(buf, 0, &value);
	if (ret)
		return ret;
	if (value < s->min || value > s->max)
		return -ERANGE;
	WRITE_ONCE(*s->value, value);
	return count;
}

#define HETMEM_SETTING(_name, _value, _min, _max)			\
	(&((struct hetmem_setting) {					\
		.attr = __ATTR(_name, 0644, hetmem_setting_show,	\
			       hetmem_setting_store),			\
		.value = (_value),					\
		.min = (_min),						\
		.max = (_max),						\
	}).attr.attr)

static struct attribute *hetmem_caps_attrs[] = {
	HETMEM_SETTING(max_contexts, &hetmem_caps.max_contexts, 1, 65536),
	HETMEM_SETTING(max_ranges, &hetmem_caps.max_ranges, 1, 1U << 22),
	HETMEM_SETTING(max_blocks, &hetmem_caps.max_blocks, 1, 1U << 26),
	HETMEM_SETTING(max_ring_entries, &hetmem_caps.max_ring_entries,
		       HETMEM_RING_MIN, HETMEM_RING_MAX),
	HETMEM_SETTING(max_hints, &hetmem_caps.max_hints, 1, 65536),
	HETMEM_SETTING(max_pins, &hetmem_caps.max_pins, 1, 1U << 20),
	NULL
};

static const struct attribute_group hetmem_caps_group = {
	.name = "caps",
	.attrs = hetmem_caps_attrs,
};

static struct attribute *hetmem_thrash_attrs[] = {
	HETMEM_SETTING(count, &hetmem_thrash_count, 2, 1000000),
	HETMEM_SETTING(window_ms, &hetmem_thrash_window_ms, 1, 3600000),
	NULL
};

static const struct attribute_group hetmem_thrash_group = {
	.name = "thrash",
	.attrs = hetmem_thrash_attrs,
};

/* A statistic: a file that shows one counter. */
struct hetmem_statistic {
	struct device_attribute attr;
	enum hetmem_total_nr what;
};

static ssize_t hetmem_statistic_show(struct device *device,
				     struct device_attribute *attr, char *buf)
{
	struct hetmem_statistic *s =
		container_of(attr, struct hetmem_statistic, attr);

	return sysfs_emit(buf, "%lld\n", hetmem_total(s->what));
}

#define HETMEM_STATISTIC(_name, _what)					\
	(&((struct hetmem_statistic) {					\
		.attr = __ATTR(_name, 0444, hetmem_statistic_show, NULL), \
		.what = HETMEM_TOTAL_##_what,				\
	}).attr.attr)

static struct attribute *hetmem_stats_attrs[] = {
	HETMEM_STATISTIC(contexts, CONTEXTS),
	HETMEM_STATISTIC(ranges, RANGES),
	HETMEM_STATISTIC(callbacks, CALLBACKS),
	HETMEM_STATISTIC(decodes, DECODES),
	HETMEM_STATISTIC(pages_to_device, TO_DEVICE),
	HETMEM_STATISTIC(pages_to_host, TO_HOST),
	HETMEM_STATISTIC(pages_failed, FAILED),
	HETMEM_STATISTIC(events, EVENTS),
	HETMEM_STATISTIC(events_dropped, EVENTS_DROPPED),
	HETMEM_STATISTIC(thrashed, THRASHED),
	HETMEM_STATISTIC(hints, HINTS),
	NULL
};

static const struct attribute_group hetmem_stats_group = {
	.name = "stats",
	.attrs = hetmem_stats_attrs,
};

const struct attribute_group *hetmem_sysfs_groups[] = {
	&hetmem_caps_group,
	&hetmem_thrash_group,
	&hetmem_stats_group,
	NULL
};

/* devices/ID/: name, capacity, used, limit. */
static struct kobject *hetmem_devices_kobj;

static struct hetmem_device *hetmem_device_of(struct kobject *kobj)
{
	return container_of(kobj, struct hetmem_device, kobj);
}

HETMEM_SHOW(name, "%s", hetmem_device_of(kobj)->name)
HETMEM_SHOW(capacity, "%llu", hetmem_device_of(kobj)->desc.capacity)
HETMEM_SHOW(used, "%llu", hetmem_device_used(hetmem_device_of(kobj)))
HETMEM_SHOW(limit, "%llu", READ_ONCE(hetmem_device_of(kobj)->limit))

static ssize_t limit_store(struct kobject *kobj, struct kobj_attribute *attr,
			   const char *buf, size_t count)
{
	u64 limit;
	int ret;

	ret = kstrtou64(buf, 0, &limit);
	if (!ret)
		ret = hetmem_device_set_limit(hetmem_device_of(kobj), limit);
	return ret ? ret : count;
}

static struct attribute *hetmem_device_attrs[] = {
	HETMEM_ATTR(RO, name),
	HETMEM_ATTR(RO, capacity),
	HETMEM_ATTR(RO, used),
	HETMEM_ATTR(RW, limit),
	NULL
};
ATTRIBUTE_GROUPS(hetmem_device);

static void hetmem_device_release(struct kobject *kobj)
{
	kfree(hetmem_device_of(kobj));
}

static const struct kobj_type hetmem_device_ktype = {
	.release = hetmem_device_release,
	.sysfs_ops = &kobj_sysfs_ops,
	.default_groups = hetmem_device_groups,
};

int hetmem_sysfs_init(struct device *misc)
{
	int ret;

	hetmem_devices_kobj = kobject_create_and_add("devices", &misc->kobj);
	if (!hetmem_devices_kobj)
		return -ENOMEM;
	ret = hetmem_foreign_init(&misc->kobj);
	if (ret)
		kobject_put(hetmem_devices_kobj);
	return ret;
}

void hetmem_sysfs_exit(void)
{
	hetmem_foreign_exit();
	kobject_put(hetmem_devices_kobj);
}

/* On failure the device has been freed. */
int hetmem_sysfs_add(struct hetmem_device *dev)
{
	int ret;

	ret = kobject_init_and_add(&dev->kobj, &hetmem_device_ktype,
				   hetmem_devices_kobj, "%u", dev->id);
	if (ret)
		kobject_put(&dev->kobj);
	return ret;
}

/* Waits for who is in one of the files. Who put the device there frees it. */
void hetmem_sysfs_del(struct hetmem_device *dev)
{
	kobject_del(&dev->kobj);
}
