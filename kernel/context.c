// SPDX-License-Identifier: GPL-2.0
/*
 * A context: one open file of /dev/hetmem, bound to the opener's mm, and the
 * table by which a device driver's report about an mm finds its contexts.
 *
 * Lifetime. The context holds mmgrab() only: it keeps the mm_struct, not the
 * address space, so a process can exit while somebody else holds its file.
 * What looks at the address space takes mmget_not_zero() for as long.
 *
 * Locking. hetmem_contexts_lock -> context->lock, both spinlocks. A context
 * is freed only after it has left the table under hetmem_contexts_lock and
 * after mmu_interval_notifier_remove() has waited for running callbacks.
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/hash.h>
#include <linux/hashtable.h>
#include <linux/mm.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include <linux/hetmem_device.h>
#include "hetmem.h"
#include "trace.h"

static DEFINE_SPINLOCK(hetmem_contexts_lock);
static DEFINE_HASHTABLE(hetmem_contexts, 8);

/* Contexts of @uid; hetmem_contexts_lock is held. */
static unsigned int hetmem_contexts_of(kuid_t uid)
{
	struct hetmem_context *ctx;
	unsigned int nr = 0;
	int bucket;

	hash_for_each(hetmem_contexts, bucket, ctx, by_mm) {
		if (uid_eq(ctx->uid, uid))
			nr++;
	}
	return nr;
}

/* Makes the context findable, unless its user has enough of them. */
static int hetmem_context_publish(struct hetmem_context *ctx)
{
	unsigned int max = READ_ONCE(hetmem_caps.max_contexts);
	int ret = 0;

	if (capable(CAP_SYS_RESOURCE))
		max = UINT_MAX;
	spin_lock(&hetmem_contexts_lock);
	if (hetmem_contexts_of(ctx->uid) >= max)
		ret = -EDQUOT;
	else
		hash_add(hetmem_contexts, &ctx->by_mm, (unsigned long)ctx->mm);
	spin_unlock(&hetmem_contexts_lock);
	if (ret)
		trace_hetmem_limit_hit("max_contexts", max);
	return ret;
}

struct hetmem_context *hetmem_context_open(void)
{
	struct hetmem_context *ctx;
	int ret;

	if (!current->mm)
		return ERR_PTR(-EINVAL);

	ctx = kzalloc(sizeof(*ctx), GFP_KERNEL_ACCOUNT);
	if (!ctx)
		return ERR_PTR(-ENOMEM);
	ctx->uid = current_euid();
	INIT_LIST_HEAD(&ctx->executors);
	INIT_LIST_HEAD(&ctx->hints);
	INIT_LIST_HEAD(&ctx->replies);
	/* Before the first callback, which may be traced. */
	ctx->opener = get_pid(task_tgid(current));
	spin_lock_init(&ctx->lock);
	mutex_init(&ctx->refresh);
	init_waitqueue_head(&ctx->wait);
	ctx->ranges = RB_ROOT_CACHED;
	hetmem_pin_init(ctx);
	ctx->mm = current->mm;

	ret = hetmem_thrash_init(ctx);
	if (ret)
		goto free;

	ret = mmu_interval_notifier_insert(&ctx->notifier, ctx->mm, 0,
					   TASK_SIZE_MAX, &hetmem_notifier_ops);
	/* mm_take_all_locks() gives way to any signal: try again. */
	if (ret == -EINTR)
		ret = -ERESTARTNOINTR;
	if (ret)
		goto free;
	ret = hetmem_context_publish(ctx);
	if (ret)
		goto remove;
	mmgrab(ctx->mm);
	atomic64_inc(&hetmem_totals.contexts);
	return ctx;

remove:
	mmu_interval_notifier_remove(&ctx->notifier);
free:
	put_pid(ctx->opener);
	hetmem_thrash_free(ctx);
	kfree(ctx);
	return ERR_PTR(ret);
}

void hetmem_context_close(struct hetmem_context *ctx)
{
	spin_lock(&hetmem_contexts_lock);
	hash_del(&ctx->by_mm);
	spin_unlock(&hetmem_contexts_lock);

	hetmem_hints_close(ctx);
	mmu_interval_notifier_remove(&ctx->notifier);
	hetmem_pin_drop_all(ctx);
	hetmem_range_del_all(ctx);
	hetmem_ring_free(ctx);
	hetmem_thrash_free(ctx);
	atomic64_dec(&hetmem_totals.contexts);
	put_pid(ctx->opener);
	mmdrop(ctx->mm);
	kfree(ctx);
}

/* The opener, as @ns numbers it; 0 if it is not visible there or has gone. */
pid_t hetmem_context_pid(const struct hetmem_context *ctx,
			 struct pid_namespace *ns)
{
	pid_t pid = 0;

	rcu_read_lock();
	/* A struct pid that is held keeps a number that others may get. */
	if (pid_task(ctx->opener, PIDTYPE_TGID))
		pid = pid_nr_ns(ctx->opener, ns);
	rcu_read_unlock();
	return pid;
}

/* hetmem_range_count() for every context of @mm, which may be stale. */
void hetmem_mm_count(const struct mm_struct *mm, unsigned long start,
		     unsigned long last, enum hetmem_counter what,
		     u32 location)
{
	struct hetmem_context *ctx;

	spin_lock(&hetmem_contexts_lock);
	hash_for_each_possible(hetmem_contexts, ctx, by_mm,
			       (unsigned long)mm) {
		if (ctx->mm == mm)
			hetmem_range_count(ctx, start, last, what, location);
	}
	spin_unlock(&hetmem_contexts_lock);
}

/* Fills @entry with @ctx as current sees it; hetmem_contexts_lock is held. */
static void hetmem_context_describe(const struct hetmem_context *ctx,
				    struct hetmem_list_entry *entry)
{
	*entry = (struct hetmem_list_entry) {
		.pid = hetmem_context_pid(ctx, task_active_pid_ns(current)),
		.uid = from_kuid_munged(current_user_ns(), ctx->uid),
		.nr_ranges = READ_ONCE(ctx->nr_ranges),
		.nr_pinned = READ_ONCE(ctx->nr_pinned),
		.nr_hints = READ_ONCE(ctx->nr_hints),
	};
	if (READ_ONCE(ctx->shareable))
		entry->flags |= HETMEM_LIST_SHAREABLE;
	if (READ_ONCE(ctx->allow_hints))
		entry->flags |= HETMEM_LIST_ALLOW_HINTS;
	if (!list_empty_careful(&ctx->executors))
		entry->flags |= HETMEM_LIST_EXECUTOR;
}

static int hetmem_list_copy_out(const struct hetmem_cmd_list *cmd,
				const struct hetmem_list_entry *entries,
				unsigned int nr)
{
	char __user *to = u64_to_user_ptr(cmd->entries);
	size_t size = sizeof(*entries);
	unsigned int i;

	for (i = 0; i < nr; i++, to += cmd->entry_size) {
		if (copy_to_user(to, &entries[i], size) ||
		    clear_user(to + size, cmd->entry_size - size))
			return -EFAULT;
	}
	return 0;
}

/* HETMEM_IOC_LIST, validated. */
int hetmem_context_list(struct hetmem_cmd_list *cmd)
{
	bool all = capable(CAP_SYS_PTRACE);
	struct hetmem_list_entry *entries;
	struct hetmem_context *ctx;
	unsigned int nr = 0, room;
	int bucket, ret;

	/* More than there are need no memory. */
	room = min_t(u64, cmd->nr, atomic64_read(&hetmem_totals.contexts) + 16);
	entries = kvcalloc(room, sizeof(*entries), GFP_KERNEL_ACCOUNT);
	if (!entries)
		return -ENOMEM;

	spin_lock(&hetmem_contexts_lock);
	hash_for_each(hetmem_contexts, bucket, ctx, by_mm) {
		if (!all && !uid_eq(ctx->uid, current_euid()))
			continue;
		if (nr < room)
			hetmem_context_describe(ctx, &entries[nr]);
		nr++;
	}
	spin_unlock(&hetmem_contexts_lock);

	ret = hetmem_list_copy_out(cmd, entries, min(nr, room));
	kvfree(entries);
	cmd->nr = nr;
	return ret;
}

/**
 * hetmem_device_preferred - where the owner of memory wants it
 * @mm: whose memory; only compared
 * @addr: of the memory
 *
 * For a device's fault handler. Takes spinlocks only.
 *
 * Return: HETMEM_LOC(HETMEM_HOST or HETMEM_DEVICE, ...), or 0 if no context
 * of @mm prefers anything there.
 */
u32 hetmem_device_preferred(const struct mm_struct *mm, unsigned long addr)
{
	struct hetmem_context *ctx;
	u32 location = 0;

	spin_lock(&hetmem_contexts_lock);
	hash_for_each_possible(hetmem_contexts, ctx, by_mm,
			       (unsigned long)mm) {
		if (ctx->mm == mm && !location)
			location = hetmem_range_preferred(ctx, addr);
	}
	spin_unlock(&hetmem_contexts_lock);
	return location;
}
EXPORT_SYMBOL_GPL(hetmem_device_preferred);
