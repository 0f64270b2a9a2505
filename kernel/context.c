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
#include <linux/hash.h>
#include <linux/hashtable.h>
#include <linux/mm.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include "hetmem.h"

static DEFINE_SPINLOCK(hetmem_contexts_lock);
static DEFINE_HASHTABLE(hetmem_contexts, 8);

struct hetmem_context *hetmem_context_open(void)
{
	struct hetmem_context *ctx;
	int ret;

	if (!current->mm)
		return ERR_PTR(-EINVAL);

	ctx = kzalloc(sizeof(*ctx), GFP_KERNEL_ACCOUNT);
	if (!ctx)
		return ERR_PTR(-ENOMEM);
	spin_lock_init(&ctx->lock);
	ctx->ranges = RB_ROOT_CACHED;
	ctx->mm = current->mm;

	ret = mmu_interval_notifier_insert(&ctx->notifier, ctx->mm, 0,
					   TASK_SIZE_MAX, &hetmem_notifier_ops);
	if (ret) {
		kfree(ctx);
		/* mm_take_all_locks() gives way to any signal: try again. */
		return ERR_PTR(ret == -EINTR ? -ERESTARTNOINTR : ret);
	}
	mmgrab(ctx->mm);
	ctx->opener = get_pid(task_tgid(current));

	spin_lock(&hetmem_contexts_lock);
	hash_add(hetmem_contexts, &ctx->by_mm, (unsigned long)ctx->mm);
	spin_unlock(&hetmem_contexts_lock);
	return ctx;
}

void hetmem_context_close(struct hetmem_context *ctx)
{
	spin_lock(&hetmem_contexts_lock);
	hash_del(&ctx->by_mm);
	spin_unlock(&hetmem_contexts_lock);

	mmu_interval_notifier_remove(&ctx->notifier);
	hetmem_range_del_all(ctx);
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

/* Counts pages [@start, @last] in every context of @mm, which may be stale. */
void hetmem_mm_count(const struct mm_struct *mm, unsigned long start,
		     unsigned long last, enum hetmem_counter what)
{
	struct hetmem_context *ctx;

	spin_lock(&hetmem_contexts_lock);
	hash_for_each_possible(hetmem_contexts, ctx, by_mm,
			       (unsigned long)mm) {
		if (ctx->mm == mm)
			hetmem_range_count(ctx, start, last, what);
	}
	spin_unlock(&hetmem_contexts_lock);
}
