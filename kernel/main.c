// SPDX-License-Identifier: GPL-2.0
/*
 * hetmem.ko: the module, its misc device, and the way of a command from
 * userspace to the file that carries it out and back.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/capability.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/nospec.h>
#include <linux/pid_namespace.h>
#include <linux/proc_fs.h>
#include <linux/sched/mm.h>
#include <linux/seq_file.h>
#include <linux/uaccess.h>
#include <linux/workqueue.h>

#include "hetmem.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

/* Every struct has the same layout for 32 and 64 bit callers. */
#define HETMEM_CHECK_SIZE(name, bytes) \
	static_assert(sizeof(struct name) == (bytes))

HETMEM_CHECK_SIZE(hetmem_device_info, 56);
HETMEM_CHECK_SIZE(hetmem_cmd_info, 48);
HETMEM_CHECK_SIZE(hetmem_cmd_track, 24);
HETMEM_CHECK_SIZE(hetmem_cmd_untrack, 24);
HETMEM_CHECK_SIZE(hetmem_run, 32);
HETMEM_CHECK_SIZE(hetmem_total, 16);
HETMEM_CHECK_SIZE(hetmem_cmd_residency, 80);
HETMEM_CHECK_SIZE(hetmem_cmd_migrate, 104);
HETMEM_CHECK_SIZE(hetmem_cmd_stats, 144);
HETMEM_CHECK_SIZE(hetmem_event, 64);
HETMEM_CHECK_SIZE(hetmem_ring_header, 520);
HETMEM_CHECK_SIZE(hetmem_cmd_ring, 32);
HETMEM_CHECK_SIZE(hetmem_cmd_refresh, 48);
HETMEM_CHECK_SIZE(hetmem_cmd_attr, 32);
HETMEM_CHECK_SIZE(hetmem_cmd_bind_device, 32);
HETMEM_CHECK_SIZE(hetmem_cmd_hint, 56);
HETMEM_CHECK_SIZE(hetmem_cmd_complete, 32);
HETMEM_CHECK_SIZE(hetmem_list_entry, 32);
HETMEM_CHECK_SIZE(hetmem_cmd_list, 24);

/* -EINVAL and -ERANGE as the uapi header promises them. */
static int hetmem_check_range(u64 start, u64 end)
{
	if (!PAGE_ALIGNED(start) || !PAGE_ALIGNED(end) || start >= end)
		return -EINVAL;
	if (end > TASK_SIZE_MAX)
		return -ERANGE;
	return 0;
}

static int hetmem_ioctl_info(struct hetmem_context *ctx, struct mm_struct *mm,
			     void *arg, bool *partial)
{
	struct hetmem_cmd_info *cmd = arg;

	if (cmd->flags)
		return -EINVAL;

	cmd->version = HETMEM_VERSION;
	cmd->block_shift = HETMEM_BLOCK_SHIFT;
	cmd->features = 0;
	if (IS_ENABLED(CONFIG_DEVICE_PRIVATE))
		cmd->features |= HETMEM_FEATURE_DEVICE_PRIVATE;
	cmd->max_ranges = READ_ONCE(hetmem_caps.max_ranges);
	cmd->nr_ranges = READ_ONCE(ctx->nr_ranges);
	return hetmem_device_list(cmd);
}

static int hetmem_ioctl_track(struct hetmem_context *ctx, struct mm_struct *mm,
			      void *arg, bool *partial)
{
	struct hetmem_cmd_track *cmd = arg;
	int ret;

	if (cmd->flags)
		return -EINVAL;
	ret = hetmem_check_range(cmd->start, cmd->end);
	if (ret)
		return ret;
	return hetmem_range_add(ctx, cmd->start, cmd->end);
}

static int hetmem_ioctl_untrack(struct hetmem_context *ctx,
				struct mm_struct *mm, void *arg, bool *partial)
{
	struct hetmem_cmd_untrack *cmd = arg;
	int ret;

	if (cmd->flags)
		return -EINVAL;
	ret = hetmem_check_range(cmd->start, cmd->end);
	if (ret)
		return ret;
	return hetmem_range_del(ctx, cmd->start, cmd->end);
}

static int hetmem_ioctl_residency(struct hetmem_context *ctx,
				  struct mm_struct *mm, void *arg,
				  bool *partial)
{
	struct hetmem_cmd_residency *cmd = arg;
	int ret;

	if (cmd->flags || cmd->reserved)
		return -EINVAL;
	if (cmd->kinds >> (HETMEM_FOREIGN + 1))
		return -EINVAL;
	if (cmd->nr_totals > HETMEM_MAX_TOTALS)
		return -EINVAL;
	ret = hetmem_check_range(cmd->start, cmd->end);
	if (ret)
		return ret;
	return hetmem_residency(ctx, mm, cmd, partial);
}

static int hetmem_ioctl_migrate(struct hetmem_context *ctx,
				struct mm_struct *mm, void *arg, bool *partial)
{
	struct hetmem_cmd_migrate *cmd = arg;
	int ret;

	if (cmd->flags & ~(HETMEM_MIGRATE_POPULATE | HETMEM_MIGRATE_PIN))
		return -EINVAL;
	if (cmd->flags & HETMEM_MIGRATE_PIN) {
		if (!cmd->timeout_ms || cmd->timeout_ms > HETMEM_PIN_TIMEOUT_MAX)
			return -EINVAL;
	} else if (cmd->timeout_ms) {
		return -EINVAL;
	}
	if (cmd->reserved || (cmd->nr_rest && cmd->nr_rest < HETMEM_REST_MIN))
		return -EINVAL;
	ret = hetmem_check_range(cmd->start, cmd->end);
	if (ret)
		return ret;
	return hetmem_migrate(ctx, mm, cmd, partial);
}

static int hetmem_ioctl_stats(struct hetmem_context *ctx, struct mm_struct *mm,
			      void *arg, bool *partial)
{
	struct hetmem_cmd_stats *cmd = arg;

	if (cmd->flags & ~HETMEM_STATS_CONTEXT)
		return -EINVAL;
	if (cmd->flags & HETMEM_STATS_CONTEXT) {
		if (cmd->start)
			return -EINVAL;
	} else {
		if (!PAGE_ALIGNED(cmd->start))
			return -EINVAL;
		if (cmd->start >= TASK_SIZE_MAX)
			return -ERANGE;
	}
	return hetmem_range_stats(ctx, cmd->start, cmd);
}

static int hetmem_ioctl_ring(struct hetmem_context *ctx, struct mm_struct *mm,
			     void *arg, bool *partial)
{
	struct hetmem_cmd_ring *cmd = arg;

	if (cmd->flags)
		return -EINVAL;
	return hetmem_ring_setup(ctx, cmd);
}

static int hetmem_ioctl_refresh(struct hetmem_context *ctx,
				struct mm_struct *mm, void *arg, bool *partial)
{
	struct hetmem_cmd_refresh *cmd = arg;

	if (cmd->flags || !PAGE_ALIGNED(cmd->start))
		return -EINVAL;
	if (cmd->start >= TASK_SIZE_MAX)
		return -ERANGE;
	return hetmem_refresh(ctx, mm, cmd, partial);
}

static int hetmem_ioctl_attr(struct hetmem_context *ctx, void *arg, bool set)
{
	struct hetmem_cmd_attr *cmd = arg;

	if (cmd->flags || cmd->reserved || !PAGE_ALIGNED(cmd->start))
		return -EINVAL;
	if (cmd->start >= TASK_SIZE_MAX)
		return -ERANGE;
	return hetmem_attr(ctx, cmd, set);
}

static int hetmem_ioctl_set_attr(struct hetmem_context *ctx,
				 struct mm_struct *mm, void *arg,
				 bool *partial)
{
	return hetmem_ioctl_attr(ctx, arg, true);
}

static int hetmem_ioctl_get_attr(struct hetmem_context *ctx,
				 struct mm_struct *mm, void *arg,
				 bool *partial)
{
	return hetmem_ioctl_attr(ctx, arg, false);
}

static int hetmem_ioctl_bind_device(struct hetmem_context *ctx,
				    struct mm_struct *mm, void *arg,
				    bool *partial)
{
	struct hetmem_cmd_bind_device *cmd = arg;

	if (cmd->flags & ~(HETMEM_BIND_EXECUTOR | HETMEM_BIND_GET))
		return -EINVAL;
	return hetmem_bind_device(ctx, cmd);
}

static int hetmem_ioctl_hint(struct hetmem_context *ctx, struct mm_struct *mm,
			     void *arg, bool *partial)
{
	struct hetmem_cmd_hint *cmd = arg;
	int ret;

	if (cmd->flags)
		return -EINVAL;
	ret = hetmem_check_range(cmd->start, cmd->end);
	if (ret)
		return ret;
	return hetmem_hint(ctx, cmd);
}

static int hetmem_ioctl_complete(struct hetmem_context *ctx,
				 struct mm_struct *mm, void *arg,
				 bool *partial)
{
	struct hetmem_cmd_complete *cmd = arg;

	if (cmd->flags || cmd->reserved)
		return -EINVAL;
	return hetmem_complete(ctx, cmd);
}

static int hetmem_ioctl_list(struct hetmem_context *ctx, struct mm_struct *mm,
			     void *arg, bool *partial)
{
	struct hetmem_cmd_list *cmd = arg;

	if (cmd->flags)
		return -EINVAL;
	if (cmd->nr && cmd->entry_size < sizeof(struct hetmem_list_entry))
		return -EINVAL;
	if (cmd->entry_size > PAGE_SIZE)
		return -E2BIG;
	return hetmem_context_list(cmd);
}

/**
 * struct hetmem_ioctl - a command
 * @fn: carries it out. @arg is the kernel's copy of the struct; it goes back
 *	to userspace on success, and on failure if @partial was set
 * @size: of the struct as this kernel knows it
 * @min_size: of the struct in its first version
 * @flags: HETMEM_IOCTL_*
 */
struct hetmem_ioctl {
	int (*fn)(struct hetmem_context *ctx, struct mm_struct *mm, void *arg,
		  bool *partial);
	u16 size;
	u16 min_size;
	u16 flags;
};

/* Allowed from another mm to who may trace everybody. */
#define HETMEM_IOCTL_QUERY	BIT(0)
/* Something comes back. */
#define HETMEM_IOCTL_OUT	BIT(1)
/* Looks at the address space: it must still be there. */
#define HETMEM_IOCTL_MM		BIT(2)

/* Allowed from another mm as its owner says, or to who may set priorities. */
#define HETMEM_IOCTL_ASK	BIT(3)

/* Two commands on one struct. */
#define hetmem_cmd_set_attr	hetmem_cmd_attr
#define hetmem_cmd_get_attr	hetmem_cmd_attr

#define HETMEM_IOCTL(nr, name, first_size, _flags)			\
	[_IOC_NR(nr)] = {						\
		.fn = hetmem_ioctl_##name,				\
		.size = sizeof(struct hetmem_cmd_##name),		\
		.min_size = (first_size),				\
		.flags = (_flags),					\
	}

static const struct hetmem_ioctl hetmem_ioctls[] = {
	HETMEM_IOCTL(HETMEM_IOC_INFO, info, 48,
		     HETMEM_IOCTL_QUERY | HETMEM_IOCTL_OUT),
	HETMEM_IOCTL(HETMEM_IOC_TRACK, track, 24, 0),
	HETMEM_IOCTL(HETMEM_IOC_UNTRACK, untrack, 24, 0),
	HETMEM_IOCTL(HETMEM_IOC_RESIDENCY, residency, 80,
		     HETMEM_IOCTL_QUERY | HETMEM_IOCTL_OUT | HETMEM_IOCTL_MM),
	HETMEM_IOCTL(HETMEM_IOC_MIGRATE, migrate, 72,
		     HETMEM_IOCTL_OUT | HETMEM_IOCTL_MM),
	HETMEM_IOCTL(HETMEM_IOC_STATS, stats, 112,
		     HETMEM_IOCTL_QUERY | HETMEM_IOCTL_OUT),
	HETMEM_IOCTL(HETMEM_IOC_RING, ring, 32, HETMEM_IOCTL_OUT),
	HETMEM_IOCTL(HETMEM_IOC_REFRESH, refresh, 48,
		     HETMEM_IOCTL_OUT | HETMEM_IOCTL_MM),
	HETMEM_IOCTL(HETMEM_IOC_SET_ATTR, set_attr, 32, 0),
	HETMEM_IOCTL(HETMEM_IOC_GET_ATTR, get_attr, 32,
		     HETMEM_IOCTL_QUERY | HETMEM_IOCTL_OUT),
	HETMEM_IOCTL(HETMEM_IOC_BIND_DEVICE, bind_device, 32,
		     HETMEM_IOCTL_OUT),
	HETMEM_IOCTL(HETMEM_IOC_HINT, hint, 56,
		     HETMEM_IOCTL_ASK | HETMEM_IOCTL_OUT),
	HETMEM_IOCTL(HETMEM_IOC_COMPLETE, complete, 32, 0),
	HETMEM_IOCTL(HETMEM_IOC_LIST, list, 24, HETMEM_IOCTL_OUT),
};

union hetmem_cmd {
	u32 size;
	struct hetmem_cmd_info info;
	struct hetmem_cmd_track track;
	struct hetmem_cmd_untrack untrack;
	struct hetmem_cmd_residency residency;
	struct hetmem_cmd_migrate migrate;
	struct hetmem_cmd_stats stats;
	struct hetmem_cmd_ring ring;
	struct hetmem_cmd_refresh refresh;
	struct hetmem_cmd_attr attr;
	struct hetmem_cmd_bind_device bind_device;
	struct hetmem_cmd_hint hint;
	struct hetmem_cmd_complete complete;
	struct hetmem_cmd_list list;
};

static bool hetmem_permitted(const struct hetmem_context *ctx,
			     const struct hetmem_ioctl *ioctl)
{
	if (current->mm == ctx->mm)
		return true;
	if (ioctl->flags & HETMEM_IOCTL_QUERY)
		return READ_ONCE(ctx->shareable) || capable(CAP_SYS_PTRACE);
	if (ioctl->flags & HETMEM_IOCTL_ASK)
		return READ_ONCE(ctx->allow_hints) || capable(CAP_SYS_NICE);
	return false;
}

static int hetmem_copy_out(void __user *uarg, const union hetmem_cmd *cmd,
			   size_t ksize, size_t usize)
{
	if (copy_to_user(uarg, cmd, min(ksize, usize)))
		return -EFAULT;
	if (usize > ksize && clear_user(uarg + ksize, usize - ksize))
		return -EFAULT;
	return 0;
}

static long hetmem_ioctl(struct file *file, unsigned int nr, unsigned long arg)
{
	struct hetmem_context *ctx = file->private_data;
	void __user *uarg = (void __user *)arg;
	const struct hetmem_ioctl *ioctl;
	union hetmem_cmd cmd;
	bool partial = false;
	u32 usize;
	int ret;

	if (_IOC_TYPE(nr) != HETMEM_TYPE || nr != _IO(HETMEM_TYPE, _IOC_NR(nr)))
		return -ENOTTY;
	if (_IOC_NR(nr) >= ARRAY_SIZE(hetmem_ioctls))
		return -ENOTTY;
	ioctl = &hetmem_ioctls[array_index_nospec(_IOC_NR(nr),
						  ARRAY_SIZE(hetmem_ioctls))];

	if (!hetmem_permitted(ctx, ioctl))
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

	if (ioctl->flags & HETMEM_IOCTL_MM) {
		if (!mmget_not_zero(ctx->mm))
			return -ESRCH;
		ret = ioctl->fn(ctx, ctx->mm, &cmd, &partial);
		mmput(ctx->mm);
	} else {
		ret = ioctl->fn(ctx, NULL, &cmd, &partial);
	}

	if ((ioctl->flags & HETMEM_IOCTL_OUT) && (!ret || partial) &&
	    hetmem_copy_out(uarg, &cmd, ioctl->size, usize))
		return -EFAULT;
	return ret;
}

static __poll_t hetmem_poll(struct file *file, struct poll_table_struct *wait)
{
	return hetmem_ring_poll(file->private_data, file, wait);
}

/* Events are for whose memory they tell of. */
static int hetmem_mmap(struct file *file, struct vm_area_struct *vma)
{
	struct hetmem_context *ctx = file->private_data;

	if (current->mm != ctx->mm)
		return -EPERM;
	return hetmem_ring_mmap(ctx, vma);
}

/* What loading the module makes is there: it can no more fail. */
static bool hetmem_ready;

static int hetmem_open(struct inode *inode, struct file *file)
{
	struct hetmem_context *ctx;

	/* Opened earlier, a file would outlive a module that fails to load. */
	if (!smp_load_acquire(&hetmem_ready))
		return -ENODEV;
	ctx = hetmem_context_open();
	if (IS_ERR(ctx))
		return PTR_ERR(ctx);
	file->private_data = ctx;
	return nonseekable_open(inode, file);
}

static int hetmem_release(struct inode *inode, struct file *file)
{
	hetmem_context_close(file->private_data);
	return 0;
}

/*
 * Whose memory the context shows, in /proc/PID/fdinfo: after fork() the child
 * has the file too, and who takes it from there should know.
 */
static void hetmem_show_fdinfo(struct seq_file *m, struct file *file)
{
	struct hetmem_context *ctx = file->private_data;
	struct pid_namespace *ns = proc_pid_ns(file_inode(m->file)->i_sb);

	seq_printf(m, "hetmem-pid:\t%d\n", hetmem_context_pid(ctx, ns));
	seq_printf(m, "hetmem-ranges:\t%u\n", READ_ONCE(ctx->nr_ranges));
}

static const struct file_operations hetmem_fops = {
	.owner = THIS_MODULE,
	.open = hetmem_open,
	.release = hetmem_release,
	.unlocked_ioctl = hetmem_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.poll = hetmem_poll,
	.mmap = hetmem_mmap,
	.show_fdinfo = hetmem_show_fdinfo,
};

/*
 * Open to everybody: a context shows and moves nothing but the opener's own
 * memory, and what it makes the kernel allocate is charged to the opener.
 */
static struct miscdevice hetmem_misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "hetmem",
	.fops = &hetmem_fops,
	.mode = 0666,
	.groups = hetmem_sysfs_groups,
};

/* The context of @file, or NULL if it is something else. */
struct hetmem_context *hetmem_context_of(const struct file *file)
{
	return file->f_op == &hetmem_fops ? file->private_data : NULL;
}

/* Time-outs of hints and pins. */
struct workqueue_struct *hetmem_wq;

static int __init hetmem_init(void)
{
	int ret;

	ret = hetmem_range_init();
	if (ret)
		return ret;
	hetmem_wq = alloc_workqueue("hetmem", WQ_UNBOUND, 0);
	if (!hetmem_wq) {
		ret = -ENOMEM;
		goto exit_range;
	}
	ret = misc_register(&hetmem_misc);
	if (ret)
		goto exit_wq;
	ret = hetmem_sysfs_init(hetmem_misc.this_device);
	if (ret)
		goto exit_misc;
	/* Pairs with the acquire in hetmem_open(). */
	smp_store_release(&hetmem_ready, true);
	return 0;

exit_misc:
	misc_deregister(&hetmem_misc);
exit_wq:
	destroy_workqueue(hetmem_wq);
exit_range:
	hetmem_range_exit();
	return ret;
}

static void __exit hetmem_exit(void)
{
	hetmem_sysfs_exit();
	misc_deregister(&hetmem_misc);
	destroy_workqueue(hetmem_wq);
	hetmem_range_exit();
}

module_init(hetmem_init);
module_exit(hetmem_exit);

MODULE_AUTHOR("The hetmem authors");
MODULE_DESCRIPTION("Memory shared by CPUs and devices: residency, migration");
MODULE_LICENSE("GPL");
