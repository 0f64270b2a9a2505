// SPDX-License-Identifier: GPL-2.0
/*
 * A context: one open file of /dev/hetmem, bound to the opener's mm, and the
 * table by which a device driver's report about an mm finds its contexts.
 *
 * Lifetime. The context holds mmgrab() only: it keeps the mm_struct, not the
 * address space, so a process can exit while somebody else holds its file.
 * What looks at the address space takes mmget_not_zero() for as long.
 *
 * Locking. hetmem_contexts_lock, a spinlock, serializes changes of the table and
 * of what users have; only opening and closing take it. Who looks for contexts
 * of others, device drivers' reports first of all, takes no lock that they
 * share: hetmem_contexts_srcu keeps what is found. Closing takes a context
 * out of the table and waits for who is inside before anything of it is freed,
 * so nobody inside may sleep. Notifier callbacks and what they take go on
 * until mmu_interval_notifier_remove() has waited for them.
 */
#include <linux/capability.h>
#include <linux/cred.h>
#include <linux/hash.h>
#include <linux/hashtable.h>
#include <linux/mm.h>
#include <linux/pid.h>
#include <linux/pid_namespace.h>
#include <linux/rculist.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/srcu.h>
#include <linux/uaccess.h>

#include <linux/hetmem_device.h>
#include "hetmem.h"
#include "trace.h"

static DEFINE_SPINLOCK(hetmem_contexts_lock);
static DEFINE_HASHTABLE(hetmem_contexts, 8);
static DEFINE_HASHTABLE(hetmem_users, 6);
static u64 hetmem_last_context;
DEFINE_STATIC_SRCU(hetmem_contexts_srcu);

/* Until hetmem_contexts_leave() contexts that are found stay. */
int hetmem_contexts_enter(void)
	__acquires(hetmem_contexts_srcu)
{
	return srcu_read_lock(&hetmem_contexts_srcu);
}

void hetmem_contexts_leave(int idx)
	__releases(hetmem_contexts_srcu)
{
	srcu_read_unlock(&hetmem_contexts_srcu, idx);
}

static struct hlist_head *hetmem_contexts_of(const struct mm_struct *mm)
{
	return &hetmem_contexts[hash_min((unsigned long)mm,
					 HASH_BITS(hetmem_contexts))];
}

/* The first context of @mm, or the one after @ctx; NULL if there is none. */
struct hetmem_context *hetmem_context_next(const struct mm_struct *mm,
					   struct hetmem_context *ctx)
{
	struct hlist_head *head = hetmem_contexts_of(mm);
	struct hlist_node *node;

	do {
		if (ctx)
			node = srcu_dereference(hlist_next_rcu(&ctx->by_mm),
						&hetmem_contexts_srcu);
		else
			node = srcu_dereference(hlist_first_rcu(head),
						&hetmem_contexts_srcu);
		ctx = hlist_entry_safe(node, struct hetmem_context, by_mm);
	} while (ctx && ctx->mm != mm);
	return ctx;
}

/* The entry of @uid: @new if there was none. hetmem_contexts_lock is held. */
static struct hetmem_user *hetmem_user_get(kuid_t uid, struct hetmem_user *new)
{
	struct hetmem_user *user;

	hash_for_each_possible(hetmem_users, user, node, __kuid_val(uid)) {
		if (uid_eq(user->uid, uid))
			return user;
	}
	new->uid = uid;
	hash_add(hetmem_users, &new->node, __kuid_val(uid));
	return new;
}

/* Makes the context findable, unless its user has enough of them. */
static int hetmem_context_publish(struct hetmem_context *ctx)
{
	unsigned int max = READ_ONCE(hetmem_caps.max_contexts);
	struct hetmem_user *user, *new;
	int ret = 0;

	new = kzalloc(sizeof(*new), GFP_KERNEL_ACCOUNT);
	if (!new)
		return -ENOMEM;
	spin_lock(&hetmem_contexts_lock);
	user = hetmem_user_get(current_euid(), new);
	/* Asked only where it matters: a refusal goes to the audit log. */
	if (user->nr_contexts < max || capable(CAP_SYS_RESOURCE)) {
		user->nr_contexts++;
		ctx->user = user;
		ctx->id = ++hetmem_last_context;
		hlist_add_head_rcu(&ctx->by_mm, hetmem_contexts_of(ctx->mm));
	} else {
		ret = -EDQUOT;
	}
	spin_unlock(&hetmem_contexts_lock);
	if (user != new)
		kfree(new);
	if (ret)
		trace_hetmem_limit_hit("max_contexts", max);
	return ret;
}

/* Afterwards nobody finds the context, or has found it and is at work. */
static void hetmem_context_unpublish(struct hetmem_context *ctx)
{
	spin_lock(&hetmem_contexts_lock);
	hlist_del_rcu(&ctx->by_mm);
	spin_unlock(&hetmem_contexts_lock);
	/* Without the pauses that spare others: nobody inside sleeps. */
	synchronize_srcu_expedited(&hetmem_contexts_srcu);
}

/* The user has one context less, of which nothing is left that counts. */
static void hetmem_user_put(struct hetmem_user *user)
{
	spin_lock(&hetmem_contexts_lock);
	if (--user->nr_contexts)
		user = NULL;
	else
		hash_del(&user->node);
	spin_unlock(&hetmem_contexts_lock);
	kfree(user);
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
	ctx->thrash = kvcalloc(1 << HETMEM_THRASH_BITS, sizeof(*ctx->thrash),
			       GFP_KERNEL_ACCOUNT);
	if (!ctx->thrash) {
		ret = -ENOMEM;
		goto free;
	}
	spin_lock_init(&ctx->hints_lock);
	INIT_LIST_HEAD(&ctx->hints);
	/* Before the first callback, which may be traced. */
	ctx->opener = get_pid(task_tgid(current));
	spin_lock_init(&ctx->lock);
	mutex_init(&ctx->refresh);
	init_waitqueue_head(&ctx->wait);
	ctx->ranges = RB_ROOT_CACHED;
	hetmem_pin_init(ctx);
	ctx->mm = current->mm;

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
	hetmem_total_add(HETMEM_TOTAL_CONTEXTS, 1);
	return ctx;

remove:
	mmu_interval_notifier_remove(&ctx->notifier);
free:
	put_pid(ctx->opener);
	kvfree(ctx->thrash);
	kfree(ctx);
	return ERR_PTR(ret);
}

void hetmem_context_close(struct hetmem_context *ctx)
{
	hetmem_hints_fail(ctx);
	hetmem_context_unpublish(ctx);
	mmu_interval_notifier_remove(&ctx->notifier);
	hetmem_pin_drop_all(ctx);
	hetmem_range_del_all(ctx);
	hetmem_ring_free(ctx);
	hetmem_user_put(ctx->user);
	hetmem_total_add(HETMEM_TOTAL_CONTEXTS, -1);
	put_pid(ctx->opener);
	mmdrop(ctx->mm);
	kvfree(ctx->thrash);
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

/* hetmem_range_count() for every context of @mm, which may have no users. */
void hetmem_mm_count(const struct mm_struct *mm, unsigned long start,
		     unsigned long last, enum hetmem_counter what,
		     u32 location)
{
	struct hetmem_context *ctx;
	int idx;

	idx = hetmem_contexts_enter();
	for (ctx = hetmem_context_next(mm, NULL); ctx;
	     ctx = hetmem_context_next(mm, ctx))
		hetmem_range_count(ctx, start, last, what, location);
	hetmem_contexts_leave(idx);
}

/* Fills @entry with @ctx as current sees it. */
static void hetmem_context_describe(const struct hetmem_context *ctx,
				    struct hetmem_list_entry *entry)
{
	*entry = (struct hetmem_list_entry) {
		.pid = hetmem_context_pid(ctx, task_active_pid_ns(current)),
		.uid = from_kuid_munged(current_user_ns(), ctx->user->uid),
		.nr_ranges = READ_ONCE(ctx->nr_ranges),
		.nr_pinned = READ_ONCE(ctx->nr_pinned),
		.nr_hints = READ_ONCE(ctx->nr_hints),
	};
	if (READ_ONCE(ctx->shareable))
		entry->flags |= HETMEM_LIST_SHAREABLE;
	if (READ_ONCE(ctx->allow_hints))
		entry->flags |= HETMEM_LIST_ALLOW_HINTS;
	if (READ_ONCE(ctx->roles))
		entry->flags |= HETMEM_LIST_EXECUTOR;
}

/* HETMEM_IOC_LIST */
int hetmem_context_list(struct hetmem_cmd_list *cmd)
{
	char __user *to = u64_to_user_ptr(cmd->entries);
	bool all = ns_capable_noaudit(&init_user_ns, CAP_SYS_PTRACE);
	struct hetmem_list_entry *entries;
	struct hetmem_context *ctx;
	unsigned int i, nr = 0, room;
	int bucket, idx, ret = 0;

	if (cmd->nr && cmd->entry_size < sizeof(*entries))
		return -EINVAL;
	if (cmd->entry_size > PAGE_SIZE)
		return -E2BIG;
	/* More than there are need no memory. The sum is not of one moment. */
	room = min_t(u64, cmd->nr,
		     max_t(s64, hetmem_total(HETMEM_TOTAL_CONTEXTS), 0) + 16);
	entries = kvcalloc(room, sizeof(*entries), GFP_KERNEL_ACCOUNT);
	if (!entries)
		return -ENOMEM;

	idx = hetmem_contexts_enter();
	for (bucket = 0; bucket < HASH_SIZE(hetmem_contexts); bucket++) {
		hlist_for_each_entry_srcu(ctx, &hetmem_contexts[bucket], by_mm,
					  srcu_read_lock_held(&hetmem_contexts_srcu)) {
			if (!all && !uid_eq(ctx->user->uid, current_euid()))
				continue;
			if (nr < room)
				hetmem_context_describe(ctx, &entries[nr]);
			nr++;
		}
	}
	hetmem_contexts_leave(idx);

	for (i = 0; i < min(nr, room) && !ret; i++, to += cmd->entry_size)
		ret = hetmem_copy_out(to, cmd->entry_size, &entries[i],
				      sizeof(entries[i]));
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
	struct hetmem_range *range;
	u32 location = 0;
	int idx;

	idx = hetmem_contexts_enter();
	for (ctx = hetmem_context_next(mm, NULL); ctx && !location;
	     ctx = hetmem_context_next(mm, ctx)) {
		spin_lock(&ctx->lock);
		range = hetmem_range_first(ctx, addr, addr);
		if (range)
			location = range->preferred;
		spin_unlock(&ctx->lock);
	}
	hetmem_contexts_leave(idx);
	return location;
}
EXPORT_SYMBOL_GPL(hetmem_device_preferred);
