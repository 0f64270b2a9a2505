// SPDX-License-Identifier: GPL-2.0
/*
 * An open file of /dev/hetmem_emuN: the way of a command from userspace and
 * back.
 *
 * A file belongs to the address space of its opener, which it keeps by
 * mmgrab() only. Commands run for that address space alone, so for
 * current->mm, which is there as long as they run; INFO, which looks at no
 * address space, is also for who may trace everybody.
 */
#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/module.h>
#include <linux/nospec.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "emu.h"

/* Every struct has the same layout for 32 and 64 bit callers. */
static_assert(sizeof(struct hetmem_emu_cmd_info) == 144);
static_assert(sizeof(struct hetmem_emu_cmd_access) == 64);
static_assert(sizeof(struct hetmem_emu_cmd_evict) == 24);

/**
 * struct emu_file - an open file
 * @dev: device
 * @mm: the opener's, held by mmgrab()
 */
struct emu_file {
	struct emu_device *dev;
	struct mm_struct *mm;
};

union emu_cmd {
	u32 size;
	struct hetmem_emu_cmd_info info;
	struct hetmem_emu_cmd_access access;
	struct hetmem_emu_cmd_evict evict;
};

/**
 * struct emu_ioctl - a command
 * @fn: carries it out; the struct goes back to userspace on success, and on
 *	failure if @partial was set
 * @size: of its struct as this kernel knows it
 * @min_size: of its struct in its first version
 * @query: allowed from another address space to who may trace everybody
 */
struct emu_ioctl {
	int (*fn)(struct emu_file *ef, union emu_cmd *cmd, bool *partial);
	u16 size;
	u16 min_size;
	bool query;
};

static int emu_ioctl_info(struct emu_file *ef, union emu_cmd *cmd,
			  bool *partial)
{
	struct hetmem_emu_cmd_info *info = &cmd->info;
	struct emu_device *dev = ef->dev;

	if (info->flags || info->reserved)
		return -EINVAL;
	info->id = dev->id;
	info->capacity = dev->nr_pages;
	info->used = READ_ONCE(dev->used);
	info->to_device = atomic64_read(&dev->stats[EMU_TO_DEVICE]);
	info->to_host = atomic64_read(&dev->stats[EMU_TO_HOST]);
	info->cpu_faults = atomic64_read(&dev->stats[EMU_CPU_FAULTS]);
	info->cpu_fault_failures =
		atomic64_read(&dev->stats[EMU_CPU_FAULT_FAILURES]);
	info->device_faults = atomic64_read(&dev->stats[EMU_DEVICE_FAULTS]);
	info->device_fault_failures =
		atomic64_read(&dev->stats[EMU_DEVICE_FAULT_FAILURES]);
	info->evicted = atomic64_read(&dev->stats[EMU_EVICTED]);
	info->huge_to_device = atomic64_read(&dev->stats[EMU_HUGE_TO_DEVICE]);
	info->huge_to_host = atomic64_read(&dev->stats[EMU_HUGE_TO_HOST]);
	info->huge_split = atomic64_read(&dev->stats[EMU_HUGE_SPLIT]);
	info->huge_size = emu_makes_huge() ? EMU_HUGE_SIZE : 0;
	info->to_device_rounds =
		atomic64_read(&dev->stats[EMU_TO_DEVICE_ROUNDS]);
	info->cpu_fault_rounds =
		atomic64_read(&dev->stats[EMU_CPU_FAULT_ROUNDS]);
	info->cpu_faults_yielded =
		atomic64_read(&dev->stats[EMU_CPU_FAULTS_YIELDED]);
	return 0;
}

static int emu_check_access(const struct hetmem_emu_cmd_access *access)
{
	if ((access->flags & ~HETMEM_EMU_MIGRATE) || access->reserved ||
	    !access->length)
		return -EINVAL;

	switch (access->op) {
	case HETMEM_EMU_READ:
	case HETMEM_EMU_WRITE:
		if (access->value)
			return -EINVAL;
		break;
	case HETMEM_EMU_FILL:
	case HETMEM_EMU_ADD:
		if (access->data || !IS_ALIGNED(access->addr, sizeof(u64)) ||
		    !IS_ALIGNED(access->length, sizeof(u64)))
			return -EINVAL;
		break;
	default:
		return -EINVAL;
	}

	if (access->addr >= TASK_SIZE_MAX ||
	    access->length > TASK_SIZE_MAX - access->addr)
		return -ERANGE;
	return 0;
}

static int emu_ioctl_access(struct emu_file *ef, union emu_cmd *cmd,
			    bool *partial)
{
	struct hetmem_emu_cmd_access *access = &cmd->access;
	int ret;

	ret = emu_check_access(access);
	if (ret)
		return ret;
	access->done = 0;
	access->faults = 0;
	*partial = true;
	return emu_access(ef->dev, ef->mm, access);
}

static int emu_ioctl_evict(struct emu_file *ef, union emu_cmd *cmd,
			   bool *partial)
{
	struct hetmem_emu_cmd_evict *evict = &cmd->evict;
	long moved;

	if (evict->flags)
		return -EINVAL;
	if (!capable(CAP_SYS_ADMIN))
		return -EPERM;
	moved = emu_evict(ef->dev, min_t(u64, evict->nr_pages, ULONG_MAX),
			  NULL);
	if (moved < 0)
		return moved;
	evict->evicted = moved;
	return 0;
}

#define EMU_IOCTL(nr, name, first_size, _query)				\
	[_IOC_NR(nr)] = {						\
		.fn = emu_ioctl_##name,					\
		.size = sizeof(struct hetmem_emu_cmd_##name),		\
		.min_size = (first_size),				\
		.query = (_query),					\
	}

static const struct emu_ioctl emu_ioctls[] = {
	EMU_IOCTL(HETMEM_EMU_IOC_INFO, info, 88, true),
	EMU_IOCTL(HETMEM_EMU_IOC_ACCESS, access, 64, false),
	EMU_IOCTL(HETMEM_EMU_IOC_EVICT, evict, 24, false),
};

static int emu_copy_out(void __user *uarg, const union emu_cmd *cmd,
			size_t ksize, size_t usize)
{
	if (copy_to_user(uarg, cmd, min(ksize, usize)))
		return -EFAULT;
	if (usize > ksize && clear_user(uarg + ksize, usize - ksize))
		return -EFAULT;
	return 0;
}

static long emu_ioctl(struct file *file, unsigned int nr, unsigned long arg)
{
	struct emu_file *ef = file->private_data;
	void __user *uarg = (void __user *)arg;
	const struct emu_ioctl *ioctl;
	bool partial = false;
	union emu_cmd cmd;
	u32 usize;
	int ret;

	if (nr != _IO(HETMEM_EMU_TYPE, _IOC_NR(nr)) ||
	    _IOC_NR(nr) >= ARRAY_SIZE(emu_ioctls))
		return -ENOTTY;
	ioctl = &emu_ioctls[array_index_nospec(_IOC_NR(nr),
					       ARRAY_SIZE(emu_ioctls))];

	if (current->mm != ef->mm &&
	    !(ioctl->query && capable(CAP_SYS_PTRACE)))
		return -EPERM;

	if (get_user(usize, (u32 __user *)uarg))
		return -EFAULT;
	if (usize < ioctl->min_size)
		return -EINVAL;
	if (usize > PAGE_SIZE)
		return -E2BIG;
	memset(&cmd, 0, sizeof(cmd));
	ret = copy_struct_from_user(&cmd, ioctl->size, uarg, usize);
	if (ret)
		return ret;
	/* What another thread has written there since does not count. */
	cmd.size = usize;

	ret = ioctl->fn(ef, &cmd, &partial);
	if ((!ret || partial) &&
	    emu_copy_out(uarg, &cmd, ioctl->size, usize))
		return -EFAULT;
	return ret;
}

static int emu_open(struct inode *inode, struct file *file)
{
	struct miscdevice *misc = file->private_data;
	struct emu_file *ef;
	int ret;

	/* Pairs with the store in emu_init(). */
	if (!smp_load_acquire(&emu_ready))
		return -ENODEV;
	if (!current->mm)
		return -EINVAL;
	ret = emu_access_prepare(current->mm);
	if (ret)
		return ret;
	ef = kzalloc(sizeof(*ef), GFP_KERNEL_ACCOUNT);
	if (!ef)
		return -ENOMEM;
	ef->dev = container_of(misc, struct emu_device, misc);
	ef->mm = current->mm;
	mmgrab(ef->mm);
	file->private_data = ef;
	return nonseekable_open(inode, file);
}

static int emu_release(struct inode *inode, struct file *file)
{
	struct emu_file *ef = file->private_data;

	mmdrop(ef->mm);
	kfree(ef);
	return 0;
}

/* Its owner counts open files: with one the module cannot be unloaded. */
const struct file_operations emu_fops = {
	.owner = THIS_MODULE,
	.open = emu_open,
	.release = emu_release,
	.unlocked_ioctl = emu_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};
