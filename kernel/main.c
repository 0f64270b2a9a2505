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

/* What all commands begin with, as far as they have addresses. */
struct hetmem_cmd_head {
	u32 size;
	u32 flags;
	u64 start;
	u64 end;
};

union hetmem_cmd {
	struct hetmem_cmd_head head;
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

/* Allowed from another mm to who may trace everybody. */
#define HETMEM_IOCTL_QUERY	BIT(0)
/* Something comes back. */
#define HETMEM_IOCTL_OUT	BIT(1)
/* Works in the caller's own address space, which is held meanwhile. */
#define HETMEM_IOCTL_MM		BIT(2)
/* Allowed from another mm as its owner says, or to who may set priorities. */
#define HETMEM_IOCTL_ASK	BIT(3)
/* head.start is an address, and with _RANGE head.end too. */
#define HETMEM_IOCTL_ADDR	BIT(4)
#define HETMEM_IOCTL_RANGE	BIT(5)

/**
 * struct hetmem_ioctl - what a command's struct must be like
 * @size: as this kernel knows it
 * @min_size: in its first version
 * @flags: HETMEM_IOCTL_*
 * @known: flags of the command
 * @reserved: offset of a u32 that must be zero, or 0
 */
struct hetmem_ioctl {
	u16 size;
	u16 min_size;
	u16 flags;
	u16 known;
	u16 reserved;
};

#define HETMEM_IOCTL(nr, name, first_size, _flags, ...)			\
	[_IOC_NR(HETMEM_IOC_##nr)] = {					\
		.size = sizeof(struct hetmem_cmd_##name),		\
		.min_size = (first_size),				\
		.flags = (_flags),					\
		__VA_ARGS__						\
	}
#define HETMEM_RESERVED(name) \
	.reserved = offsetof(struct hetmem_cmd_##name, reserved)

static const struct hetmem_ioctl hetmem_ioctls[] = {
	HETMEM_IOCTL(INFO, info, 48, HETMEM_IOCTL_QUERY | HETMEM_IOCTL_OUT),
	HETMEM_IOCTL(TRACK, track, 24, HETMEM_IOCTL_RANGE),
	HETMEM_IOCTL(UNTRACK, untrack, 24, HETMEM_IOCTL_RANGE),
	HETMEM_IOCTL(RESIDENCY, residency, 80, HETMEM_IOCTL_QUERY |
		     HETMEM_IOCTL_OUT | HETMEM_IOCTL_RANGE,
		     HETMEM_RESERVED(residency)),
	HETMEM_IOCTL(MIGRATE, migrate, 72, HETMEM_IOCTL_OUT |
		     HETMEM_IOCTL_MM | HETMEM_IOCTL_RANGE,
		     .known = HETMEM_MIGRATE_POPULATE | HETMEM_MIGRATE_PIN,
		     HETMEM_RESERVED(migrate)),
	HETMEM_IOCTL(STATS, stats, 112, HETMEM_IOCTL_QUERY |
		     HETMEM_IOCTL_OUT | HETMEM_IOCTL_ADDR,
		     .known = HETMEM_STATS_CONTEXT),
	HETMEM_IOCTL(RING, ring, 32, HETMEM_IOCTL_OUT),
	HETMEM_IOCTL(REFRESH, refresh, 48, HETMEM_IOCTL_OUT |
		     HETMEM_IOCTL_MM | HETMEM_IOCTL_ADDR),
	HETMEM_IOCTL(SET_ATTR, attr, 32, HETMEM_IOCTL_ADDR,
		     HETMEM_RESERVED(attr)),
	HETMEM_IOCTL(GET_ATTR, attr, 32, HETMEM_IOCTL_QUERY |
		     HETMEM_IOCTL_OUT | HETMEM_IOCTL_ADDR,
		     HETMEM_RESERVED(attr)),
	HETMEM_IOCTL(BIND_DEVICE, bind_device, 32, HETMEM_IOCTL_OUT,
		     .known = HETMEM_BIND_EXECUTOR | HETMEM_BIND_GET,
		     HETMEM_RESERVED(bind_device)),
	HETMEM_IOCTL(HINT, hint, 56, HETMEM_IOCTL_ASK | HETMEM_IOCTL_OUT |
		     HETMEM_IOCTL_RANGE),
	HETMEM_IOCTL(COMPLETE, complete, 32, 0, HETMEM_RESERVED(complete)),
	HETMEM_IOCTL(LIST, list, 24, HETMEM_IOCTL_OUT),
};

/* -EINVAL and -ERANGE as the uapi header promises them to all commands. */
static int hetmem_check(const struct hetmem_ioctl *ioctl,
			const union hetmem_cmd *cmd)
{
	const struct hetmem_cmd_head *head = &cmd->head;

	if (head->flags & ~ioctl->known)
		return -EINVAL;
	if (ioctl->reserved && *(u32 *)((char *)cmd + ioctl->reserved))
		return -EINVAL;
	if (ioctl->flags & HETMEM_IOCTL_RANGE) {
		if (!PAGE_ALIGNED(head->start | head->end) ||
		    head->start >= head->end)
			return -EINVAL;
		if (head->end > TASK_SIZE_MAX)
			return -ERANGE;
	}
	if (ioctl->flags & HETMEM_IOCTL_ADDR) {
		if (!PAGE_ALIGNED(head->start))
			return -EINVAL;
		if (head->start >= TASK_SIZE_MAX)
			return -ERANGE;
	}
	return 0;
}

static int hetmem_info(struct hetmem_context *ctx, struct hetmem_cmd_info *cmd)
{
	cmd->version = HETMEM_VERSION;
	cmd->block_shift = HETMEM_BLOCK_SHIFT;
	cmd->features = 0;
	if (IS_ENABLED(CONFIG_DEVICE_PRIVATE))
		cmd->features |= HETMEM_FEATURE_DEVICE_PRIVATE;
	cmd->max_ranges = READ_ONCE(hetmem_caps.max_ranges);
	cmd->nr_ranges = READ_ONCE(ctx->nr_ranges);
	return hetmem_device_list(cmd);
}

static int hetmem_check_migrate(const struct hetmem_cmd_migrate *cmd)
{
	bool pin = cmd->flags & HETMEM_MIGRATE_PIN;

	if (pin != !!cmd->timeout_ms ||
	    cmd->timeout_ms > HETMEM_PIN_TIMEOUT_MAX)
		return -EINVAL;
	if (cmd->nr_rest && cmd->nr_rest < HETMEM_REST_MIN)
		return -EINVAL;
	return 0;
}

/*
 * Carries a command out. @cmd is the kernel's copy of the struct; it goes back
 * to userspace on success, and on failure if @partial was set.
 */
static int hetmem_command(struct hetmem_context *ctx, unsigned int nr,
			  union hetmem_cmd *cmd, bool *partial)
{
	switch (nr) {
	case HETMEM_IOC_INFO:
		return hetmem_info(ctx, &cmd->info);
	case HETMEM_IOC_TRACK:
		return hetmem_range_add(ctx, cmd->track.start, cmd->track.end);
	case HETMEM_IOC_UNTRACK:
		return hetmem_range_del(ctx, cmd->untrack.start,
					cmd->untrack.end);
	case HETMEM_IOC_RESIDENCY:
		return hetmem_residency(ctx, &cmd->residency, partial);
	case HETMEM_IOC_MIGRATE:
		return hetmem_check_migrate(&cmd->migrate) ?:
		       hetmem_migrate(ctx, &cmd->migrate, partial);
	case HETMEM_IOC_STATS:
		return hetmem_range_stats(ctx, &cmd->stats);
	case HETMEM_IOC_RING:
		return hetmem_ring_setup(ctx, &cmd->ring);
	case HETMEM_IOC_REFRESH:
		return hetmem_refresh(ctx, &cmd->refresh, partial);
	case HETMEM_IOC_SET_ATTR:
	case HETMEM_IOC_GET_ATTR:
		return hetmem_attr(ctx, &cmd->attr, nr == HETMEM_IOC_SET_ATTR);
	case HETMEM_IOC_BIND_DEVICE:
		return hetmem_bind_device(ctx, &cmd->bind_device);
	case HETMEM_IOC_HINT:
		return hetmem_hint(ctx, &cmd->hint);
	case HETMEM_IOC_COMPLETE:
		return hetmem_complete(ctx, &cmd->complete);
	case HETMEM_IOC_LIST:
		return hetmem_context_list(&cmd->list);
	default:
		return -ENOTTY;
	}
}

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

/*
 * Copies a struct of @ksize bytes to a caller whose own has @usize: what that
 * lacks is left out, what it has beyond is cleared.
 */
int hetmem_copy_out(void __user *to, size_t usize, const void *from,
		    size_t ksize)
{
	if (copy_to_user(to, from, min(ksize, usize)) ||
	    (usize > ksize && clear_user(to + ksize, usize - ksize)))
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
	cmd.head.size = usize;
	ret = hetmem_check(ioctl, &cmd);
	if (ret)
		return ret;

	if ((ioctl->flags & HETMEM_IOCTL_MM) && !mmget_not_zero(ctx->mm))
		return -ESRCH;
	ret = hetmem_command(ctx, nr, &cmd, &partial);
	if (ioctl->flags & HETMEM_IOCTL_MM)
		mmput(ctx->mm);

	if ((ioctl->flags & HETMEM_IOCTL_OUT) && (!ret || partial) &&
	    hetmem_copy_out(uarg, usize, &cmd, ioctl->size))
		return -EFAULT;
	return ret;
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
	.poll = hetmem_ring_poll,
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
