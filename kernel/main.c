// SPDX-License-Identifier: GPL-2.0
/*
 * hetmem.ko: the module, its misc device, and the table of commands.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/nospec.h>
#include <linux/proc_fs.h>
#include <linux/sched/mm.h>
#include <linux/seq_file.h>

#include "device.h"
#include "range.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

/* Allowed from another mm to tracers of everybody, or as its owner allows. */
#define CMD_QUERY	BIT(0)
/* Likewise, to those who may set priorities. */
#define CMD_ASK		BIT(1)
/* Works in the context's address space, which is held for as long. */
#define CMD_MM		BIT(2)
/* head.start is an address, and with _RANGE head.end too. */
#define CMD_ADDR	BIT(3)
#define CMD_RANGE	BIT(4)
/* The struct goes back after an error too. */
#define CMD_PARTIAL	BIT(5)
/* Has no answer: the struct does not go back and may be read-only. */
#define CMD_SILENT	BIT(6)
/* Changes nothing, so a file that is open for reading will do. */
#define CMD_READ	BIT(7)

/**
 * struct hetmem_command - a row of the table of commands
 * @run: carries it out, on the kernel's copy of its struct
 * @size: of the struct as this kernel knows it, and in its first version
 * @reserved: offset of a u32 in the struct that must be zero, or 0
 * @flags: CMD_*
 * @known: flags of the command
 */
struct hetmem_command {
	int (*run)(struct hetmem_context *ctx, void *cmd);
	u16 size;
	u16 reserved;
	u16 flags;
	u16 known;
};

/* The first members of every struct; those without addresses have only size and flags. */
struct hetmem_head {
	u32 size;
	u32 flags;
	u64 start;
	u64 end;
};

/* The largest struct of a command. */
#define HETMEM_MAX_SIZE	sizeof(struct hetmem_cmd_stats)

#define COMMAND(_nr, _name, _bytes, _flags, ...)			\
	[_IOC_NR(HETMEM_IOC_##_nr)] = {					\
		.run = hetmem_##_name,					\
		.size = sizeof(struct hetmem_cmd_##_name) +		\
			BUILD_BUG_ON_ZERO(sizeof(struct hetmem_cmd_##_name) != \
					  (_bytes)) +			\
			BUILD_BUG_ON_ZERO(sizeof(struct hetmem_cmd_##_name) > \
					  HETMEM_MAX_SIZE),		\
		.flags = (_flags),					\
		__VA_ARGS__						\
	}
static int hetmem_migrate_vector(struct hetmem_context *ctx, void *arg);

#define RESERVED(_name) .reserved = offsetof(struct hetmem_cmd_##_name, reserved)

static const struct hetmem_command hetmem_commands[] = {
	COMMAND(INFO, info, 80, CMD_QUERY | CMD_READ, RESERVED(info)),
	COMMAND(TRACK, track, 24, CMD_RANGE | CMD_SILENT),
	COMMAND(UNTRACK, untrack, 24, CMD_RANGE | CMD_SILENT),
	COMMAND(RESIDENCY, residency, 72, CMD_QUERY | CMD_RANGE | CMD_PARTIAL | CMD_READ),
	COMMAND(MIGRATE, migrate, 104, CMD_MM | CMD_RANGE | CMD_PARTIAL,
		.known = HETMEM_MIGRATE_PIN),
	COMMAND(UNPIN, unpin, 32, CMD_RANGE),
	COMMAND(STATS, stats, 144, CMD_QUERY | CMD_ADDR | CMD_READ, RESERVED(stats),
		.known = HETMEM_STATS_CONTEXT | HETMEM_STATS_NEXT),
	COMMAND(RING, ring, 32, 0, RESERVED(ring)),
	COMMAND(REFRESH, refresh, 48, CMD_QUERY | CMD_MM | CMD_ADDR | CMD_PARTIAL | CMD_READ),
	COMMAND(ALLOW, allow, 16, CMD_SILENT, RESERVED(allow)),
	COMMAND(BIND_DEVICE, bind_device, 32, CMD_SILENT, RESERVED(bind_device),
		.known = HETMEM_BIND_EXECUTOR),
	COMMAND(HINT, hint, 72, CMD_ASK | CMD_RANGE, RESERVED(hint)),
	COMMAND(COMPLETE, complete, 32, CMD_SILENT, RESERVED(complete)),
	COMMAND(LIST, list, 24, CMD_READ),
	COMMAND(MIGRATE_VECTOR, migrate_vector, 40, CMD_PARTIAL, RESERVED(migrate_vector)),
	COMMAND(BACKGROUND, background, 32, 0, RESERVED(background),
		.known = HETMEM_BACKGROUND_COLLECT),
};

/* -EINVAL and -ERANGE as the uapi header promises them to all commands. */
static int hetmem_check(const struct hetmem_command *command, const struct hetmem_head *head)
{
	if ((head->flags & ~command->known) ||
	    (command->reserved && *(u32 *)((char *)head + command->reserved)))
		return -EINVAL;
	if (command->flags & CMD_RANGE) {
		if (!PAGE_ALIGNED(head->start | head->end) || head->start >= head->end)
			return -EINVAL;
		if (head->end > TASK_SIZE_MAX)
			return -ERANGE;
	}
	if (command->flags & CMD_ADDR) {
		if (!PAGE_ALIGNED(head->start))
			return -EINVAL;
		if (head->start >= TASK_SIZE_MAX)
			return -ERANGE;
	}
	return 0;
}

static bool hetmem_permitted(const struct hetmem_context *ctx, const struct hetmem_command *command)
{
	u32 allowed = READ_ONCE(ctx->allowed);

	if (current->mm == ctx->hm->notifier.mm)
		return true;
	if (command->flags & CMD_QUERY)
		return (allowed & HETMEM_SHAREABLE) || capable(CAP_SYS_PTRACE);
	if (command->flags & CMD_ASK)
		return (allowed & HETMEM_ALLOW_HINTS) || capable(CAP_SYS_NICE);
	return false;
}

/* Copies a struct of @usize bytes from @uarg to @cmd, and checks it. */
static int hetmem_read(const struct hetmem_command *command, void *cmd,
		       const void __user *uarg, u32 usize)
{
	int ret;

	if (usize < command->size)
		return -EINVAL;
	if (usize > PAGE_SIZE)
		return -E2BIG;
	ret = copy_struct_from_user(cmd, command->size, uarg, usize);
	if (ret)
		return ret;
	/* Another thread can have changed it since it was read. */
	*(u32 *)cmd = usize;
	return hetmem_check(command, cmd);
}

/* Carries out @command, whose struct of @usize bytes is at @uarg. */
static int hetmem_run(struct hetmem_context *ctx, const struct hetmem_command *command,
		      void __user *uarg, u32 usize)
{
	struct mm_struct *mm = ctx->hm->notifier.mm;
	u64 cmd[HETMEM_MAX_SIZE / sizeof(u64)];
	int ret;

	ret = hetmem_read(command, cmd, uarg, usize);
	if (ret)
		return ret;

	if ((command->flags & CMD_MM) && !mmget_not_zero(mm))
		return -ESRCH;
	ret = command->run(ctx, cmd);
	if (command->flags & CMD_MM)
		mmput(mm);
	if (command->flags & CMD_SILENT)
		return ret;
	if (ret && (ret == -EFAULT || !(command->flags & CMD_PARTIAL)))
		return ret;
	if (hetmem_copy_out(uarg, usize, cmd, command->size))
		return -EFAULT;
	return ret;
}

int hetmem_read_migrate(struct hetmem_cmd_migrate *cmd, const void __user *uarg, u32 usize)
{
	return hetmem_read(&hetmem_commands[_IOC_NR(HETMEM_IOC_MIGRATE)], cmd, uarg, usize);
}

/* HETMEM_IOC_MIGRATE_VECTOR: each command goes the way that it goes alone. */
static int hetmem_migrate_vector(struct hetmem_context *ctx, void *arg)
{
	const struct hetmem_command *migrate = &hetmem_commands[_IOC_NR(HETMEM_IOC_MIGRATE)];
	struct hetmem_cmd_migrate_vector *cmd = arg;
	int ret;

	cmd->done = 0;
	if (!cmd->nr || cmd->nr > HETMEM_VECTOR_MAX)
		return -EINVAL;
	ret = hetmem_check_array(cmd->nr, cmd->command_size, migrate->size);
	while (!ret && cmd->done < cmd->nr) {
		const u64 at = cmd->commands + (u64)cmd->done * cmd->command_size;
		s32 result = hetmem_run(ctx, migrate, u64_to_user_ptr(at), cmd->command_size);

		if (put_user(result, (s32 __user *)u64_to_user_ptr(cmd->results) + cmd->done))
			return -EFAULT;
		cmd->done++;
		if (fatal_signal_pending(current))
			ret = -EINTR;
		cond_resched();
	}
	return ret;
}

static long hetmem_ioctl(struct file *file, unsigned int nr, unsigned long arg)
{
	struct hetmem_context *ctx = file->private_data;
	void __user *uarg = (void __user *)arg;
	const struct hetmem_command *command;
	u32 usize;

	if (nr != _IO(HETMEM_TYPE, _IOC_NR(nr)) || _IOC_NR(nr) >= ARRAY_SIZE(hetmem_commands))
		return -ENOTTY;
	nr = array_index_nospec(_IOC_NR(nr), ARRAY_SIZE(hetmem_commands));
	command = &hetmem_commands[nr];

	if (!hetmem_permitted(ctx, command))
		return -EPERM;
	if (!(command->flags & CMD_READ) && !(file->f_mode & FMODE_WRITE))
		return -EBADF;
	if (get_user(usize, (u32 __user *)uarg))
		return -EFAULT;
	return hetmem_run(ctx, command, uarg, usize);
}

/* Set when module init can no longer fail. */
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

/*
 * Whose memory the context shows, in /proc/PID/fdinfo: after fork() the child
 * has the file too, and a process that takes it from there should know.
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
	.release = hetmem_context_close,
	.unlocked_ioctl = hetmem_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.poll = hetmem_ring_poll,
	.mmap = hetmem_ring_mmap,
	.show_fdinfo = hetmem_show_fdinfo,
};

/*
 * Open to everybody: a context shows and moves nothing but the opener's own
 * memory, and the kernel memory that it costs is charged and bounded.
 */
static struct miscdevice hetmem_misc = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = "hetmem",
	.fops = &hetmem_fops,
	.mode = 0666,
	.groups = hetmem_sysfs_groups,
};

static int __init hetmem_init(void)
{
	int ret;

	ret = hetmem_pin_init();
	if (ret)
		return ret;
	ret = hetmem_job_init();
	if (ret)
		goto exit_pin;
	ret = hetmem_foreign_init();
	if (ret)
		goto exit_job;
	ret = misc_register(&hetmem_misc);
	if (ret)
		goto exit_foreign;
	ret = hetmem_device_init(&hetmem_misc.this_device->kobj);
	if (ret)
		goto exit_misc;
	/* Pairs with the acquire in hetmem_open(). */
	smp_store_release(&hetmem_ready, true);
	return 0;

exit_misc:
	misc_deregister(&hetmem_misc);
exit_foreign:
	hetmem_foreign_exit();
exit_job:
	hetmem_job_exit();
exit_pin:
	hetmem_pin_exit();
	return ret;
}

static void __exit hetmem_exit(void)
{
	hetmem_device_exit();
	misc_deregister(&hetmem_misc);
	hetmem_foreign_exit();
	hetmem_mm_exit();
	hetmem_job_exit();
	hetmem_pin_exit();
}

module_init(hetmem_init);
module_exit(hetmem_exit);

MODULE_AUTHOR("The hetmem authors");
MODULE_DESCRIPTION("Memory shared by CPUs and devices: residency, migration");
MODULE_LICENSE("GPL");
