// SPDX-License-Identifier: GPL-2.0
/*
 * /sys/class/misc/hetmem/: what the administrator sets and sees, except what
 * device.c and foreign.c have. One value a file;
 * Documentation/ABI/testing/sysfs-class-misc-hetmem describes each.
 *
 * Settings are plain words, read once per use (READ_ONCE). A lowered cap
 * applies to new requests only.
 */
#include <linux/device.h>
#include <linux/kstrtox.h>

#include "device.h"
#include "range.h"

/*
 * A context takes 93 KiB, most of it slots for thrash; its address space 4 KiB; a
 * ring of 256 events 20 KiB; a tracked TiB 4.1 MiB. So 64 MiB are enough for some
 * 500 contexts of a user, two in each of 256 processes, and their arenas.
 */
unsigned int hetmem_user_kb = 64 << 10;
unsigned int hetmem_total_kb = 256 << 10;
unsigned int hetmem_max_hints = 64;

DEFINE_PER_CPU(struct hetmem_totals, hetmem_totals);

/* As exact as can be while others count. */
s64 hetmem_total_at(size_t offset)
{
	s64 sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += READ_ONCE(*(s64 *)((void *)per_cpu_ptr(&hetmem_totals, cpu) + offset));
	return sum;
}

/* A file with one number: a setting between two bounds, or a statistic. */
struct number_file {
	struct device_attribute attr;
	unsigned int *value;
	unsigned int min;
	unsigned int max;
	size_t total;
};

#define number_file_of(_attr)	container_of(_attr, struct number_file, attr)

static ssize_t setting_show(struct device *device, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%u\n", READ_ONCE(*number_file_of(attr)->value));
}

static ssize_t setting_store(struct device *device, struct device_attribute *attr, const char *buf,
			     size_t count)
{
	const struct number_file *file = number_file_of(attr);
	unsigned int value;
	int ret;

	ret = kstrtouint(buf, 0, &value);
	if (ret)
		return ret;
	if (value < file->min || value > file->max)
		return -ERANGE;
	WRITE_ONCE(*file->value, value);
	return count;
}

static ssize_t statistic_show(struct device *device, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%lld\n", hetmem_total_at(number_file_of(attr)->total));
}

#define SETTING(_name, _value, _min, _max)				\
	(&((struct number_file) {					\
		.attr = __ATTR(_name, 0644, setting_show, setting_store), \
		.value = (_value),					\
		.min = (_min),						\
		.max = (_max),						\
	}).attr.attr)

#define STATISTIC(_name)						\
	(&((struct number_file) {					\
		.attr.attr = { .name = #_name, .mode = 0444 },		\
		.attr.show = statistic_show,				\
		.total = offsetof(struct hetmem_totals, _name),		\
	}).attr.attr)

static ssize_t bytes_show(struct device *device, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%lld\n", atomic64_read(&hetmem_total_bytes));
}

static DEVICE_ATTR_RO(bytes);

#define GROUP(_name, ...)						\
	(&(const struct attribute_group) {				\
		.name = (_name),					\
		.attrs = (struct attribute *[]) { __VA_ARGS__, NULL },	\
	})

const struct attribute_group *hetmem_sysfs_groups[] = {
	GROUP("caps", SETTING(max_hints, &hetmem_max_hints, 1, 1024),
	      SETTING(user_kb, &hetmem_user_kb, 0, UINT_MAX),
	      SETTING(total_kb, &hetmem_total_kb, 0, UINT_MAX),
	      SETTING(pinned_kb, &hetmem_pinned_kb, 0, UINT_MAX)),
	GROUP("thrash", SETTING(count, &hetmem_thrash_count, 2, 1000000),
	      SETTING(window_ms, &hetmem_thrash_window_ms, 1, 3600000)),
	GROUP("stats", &dev_attr_bytes.attr,
	      STATISTIC(contexts), STATISTIC(ranges), STATISTIC(pages_pinned),
	      STATISTIC(callbacks), STATISTIC(decodes), STATISTIC(moving),
	      STATISTIC(pages_to_device), STATISTIC(pages_to_host), STATISTIC(pages_failed),
	      STATISTIC(events), STATISTIC(events_dropped), STATISTIC(thrashed), STATISTIC(hints)),
	&hetmem_foreign_group, NULL
};
