// SPDX-License-Identifier: GPL-2.0
/*
 * hetmem_emu.ko: an emulated device whose memory has device-private pages,
 * for developing and testing what moves memory to a GPU, without one.
 *
 * The module, its parameters, its devices and what they do for hetmem.ko.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/err.h>
#include <linux/log2.h>
#include <linux/module.h>
#include <linux/rcupdate.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "emu.h"

static unsigned int devices = 1;
module_param(devices, uint, 0444);
MODULE_PARM_DESC(devices, "devices, 1 to 8 (default 1)");

static unsigned long capacity_mb = 64;
module_param(capacity_mb, ulong, 0444);
MODULE_PARM_DESC(capacity_mb, "MiB of memory of each, at least 2 (default 64)");

unsigned int emu_fault_around = 16;
module_param_named(fault_around, emu_fault_around, uint, 0444);
MODULE_PARM_DESC(fault_around, "pages that one CPU fault brings back, a power of two, 1 to 512 (default 16)");

bool emu_huge;
module_param_named(huge, emu_huge, bool, 0644);
MODULE_PARM_DESC(huge, "memory that the CPU maps by 2 MiB comes so, where the kernel can: emu.h says why not always (default N)");

bool emu_huge_host = true;
module_param_named(huge_host, emu_huge_host, bool, 0644);
MODULE_PARM_DESC(huge_host, "the host has 2 MiB in one piece for huge pages that leave, unless it has not; N to test without (default Y)");

/* 1 TiB: what a module parameter can overflow is out of reach. */
#define EMU_MAX_CAPACITY_MB	1048576UL

/* Only its address means something: the owner of all our pages. */
char emu_owner;

unsigned int emu_nr_devices;
bool emu_ready;
static struct emu_device *emu_devices[EMU_MAX_DEVICES];

/*
 * The device that a page belongs to, NULL if it is not of ours. The table is
 * complete before hetmem or a file can ask for the first page, and stays so
 * until the last one is free.
 */
struct emu_device *emu_find_pfn(unsigned long pfn)
{
	unsigned int i;

	for (i = 0; i < emu_nr_devices; i++) {
		if (emu_has_pfn(emu_devices[i], pfn))
			return emu_devices[i];
	}
	return NULL;
}

void emu_report_flush(struct emu_report *report)
{
	struct hetmem_device *registered;

	if (!report->nr)
		return;
	/* Faults and evictions go on after the device has left hetmem. */
	rcu_read_lock();
	registered = rcu_dereference(report->dev->registered);
	if (registered)
		hetmem_device_moved(registered, report->mm, report->addr,
				    report->nr, report->dir);
	rcu_read_unlock();
	mmdrop(report->mm);
	report->nr = 0;
}

void emu_report_add(struct emu_report *report, struct mm_struct *mm,
		    unsigned long addr, unsigned long nr)
{
	if (report->nr && report->mm == mm &&
	    report->addr + (report->nr << PAGE_SHIFT) == addr) {
		report->nr += nr;
		return;
	}
	emu_report_flush(report);
	mmgrab(mm);
	report->mm = mm;
	report->addr = addr;
	report->nr = nr;
}

static int emu_op_to_device(void *drvdata, struct vm_area_struct *vma,
			    unsigned long start, unsigned long end)
{
	int ret;

	if (!emu_can_move(vma))
		return 0;
	ret = emu_move_in(drvdata, vma, start, end);
	return ret == -ENOSPC ? -ENOMEM : ret;
}

static int emu_op_to_host(void *drvdata, struct vm_area_struct *vma,
			  unsigned long start, unsigned long end, int nid)
{
	return emu_move_out(drvdata, vma, start, end, nid);
}

static long emu_op_evict(void *drvdata, unsigned long nr_pages)
{
	return emu_evict(drvdata, nr_pages, NULL);
}

static u64 emu_op_used(void *drvdata)
{
	struct emu_device *dev = drvdata;

	return (u64)READ_ONCE(dev->used) << PAGE_SHIFT;
}

/*
 * Without an owner: unregistering waits until no operation runs. With one, each
 * operation would hold the module, which could not go while it is used.
 */
static const struct hetmem_device_ops emu_ops = {
	.to_device = emu_op_to_device,
	.to_host = emu_op_to_host,
	.evict = emu_op_evict,
	.used = emu_op_used,
};

static int emu_register(struct emu_device *dev)
{
	struct hetmem_device_desc desc = {
		.name = dev->name,
		.pgmap = &dev->pgmap,
		.owner = &emu_owner,
		.capacity = (u64)dev->nr_pages << PAGE_SHIFT,
		.ops = &emu_ops,
		.drvdata = dev,
	};
	struct hetmem_device *registered;

	registered = hetmem_device_register(&desc);
	if (IS_ERR(registered))
		return PTR_ERR(registered);
	dev->id = hetmem_device_id(registered);
	rcu_assign_pointer(dev->registered, registered);
	return 0;
}

static void emu_unregister(struct emu_device *dev)
{
	struct hetmem_device *registered;

	registered = rcu_replace_pointer(dev->registered, NULL, true);
	if (!registered)
		return;
	/* Reports that are on their way still use it. */
	synchronize_rcu();
	hetmem_device_unregister(registered);
}

static int emu_device_create(unsigned int index)
{
	struct emu_device *dev;
	int ret;

	dev = kzalloc(sizeof(*dev), GFP_KERNEL);
	if (!dev)
		return -ENOMEM;
	dev->index = index;
	snprintf(dev->name, sizeof(dev->name), "hetmem_emu%u", index);

	ret = emu_memory_init(dev, capacity_mb << (20 - PAGE_SHIFT));
	if (ret) {
		pr_err("%s: no %lu MiB of device memory: %d\n", dev->name,
		       capacity_mb, ret);
		kfree(dev);
		return ret;
	}
	emu_devices[index] = dev;
	emu_nr_devices = index + 1;
	return 0;
}

/*
 * All devices are of one owner and pages go from one to another: all of them
 * have left hetmem before the pages of any go, and all pages have gone before
 * any device goes.
 */
static void emu_devices_destroy(void)
{
	unsigned int i;

	for (i = 0; i < emu_nr_devices; i++)
		emu_unregister(emu_devices[i]);
	for (i = 0; i < emu_nr_devices; i++)
		emu_evict_all(emu_devices[i]);
	for (i = 0; i < emu_nr_devices; i++)
		emu_memory_exit(emu_devices[i]);
	for (i = 0; i < emu_nr_devices; i++)
		kfree(emu_devices[i]);
	emu_nr_devices = 0;
}

static int emu_file_create(struct emu_device *dev)
{
	dev->misc.minor = MISC_DYNAMIC_MINOR;
	dev->misc.name = dev->name;
	dev->misc.fops = &emu_fops;
	/* Open to everybody, as the device nodes of GPUs are. */
	dev->misc.mode = 0666;
	return misc_register(&dev->misc);
}

static int emu_check_params(void)
{
	if (devices < 1 || devices > EMU_MAX_DEVICES) {
		pr_err("devices=%u: must be 1 to %u\n", devices,
		       EMU_MAX_DEVICES);
		return -EINVAL;
	}
	if (capacity_mb < 2 || capacity_mb > EMU_MAX_CAPACITY_MB) {
		pr_err("capacity_mb=%lu: must be 2 to %lu\n", capacity_mb,
		       EMU_MAX_CAPACITY_MB);
		return -EINVAL;
	}
	if (emu_fault_around < 1 || emu_fault_around > EMU_BATCH ||
	    !is_power_of_2(emu_fault_around)) {
		pr_err("fault_around=%u: must be a power of two, 1 to %u\n",
		       emu_fault_around, EMU_BATCH);
		return -EINVAL;
	}
	return 0;
}

static int __init emu_init(void)
{
	unsigned int i;
	int ret;

	if (!HETMEM_EMULATES) {
		pr_err("needs Linux 6.1 or later with device-private memory (CONFIG_DEVICE_PRIVATE)\n");
		return -EOPNOTSUPP;
	}
	ret = emu_check_params();
	if (ret)
		return ret;

	for (i = 0; i < devices; i++) {
		ret = emu_device_create(i);
		if (ret)
			goto err_devices;
	}
	for (i = 0; i < devices; i++) {
		ret = emu_register(emu_devices[i]);
		if (ret)
			goto err_devices;
	}
	for (i = 0; i < devices; i++) {
		ret = emu_file_create(emu_devices[i]);
		if (ret)
			goto err_files;
	}
	/* Opened earlier, a file would outlive a module that fails to load. */
	smp_store_release(&emu_ready, true);
	return 0;

err_files:
	while (i--)
		misc_deregister(&emu_devices[i]->misc);
err_devices:
	emu_devices_destroy();
	return ret;
}

static void __exit emu_exit(void)
{
	unsigned int i;

	/* What the compiler drops then is not there to be linked. */
	if (!HETMEM_EMULATES)
		return;
	for (i = 0; i < emu_nr_devices; i++)
		misc_deregister(&emu_devices[i]->misc);
	emu_devices_destroy();
}

module_init(emu_init);
module_exit(emu_exit);

MODULE_AUTHOR("The hetmem authors");
MODULE_DESCRIPTION("An emulated device with device-private memory for hetmem");
MODULE_LICENSE("GPL");
