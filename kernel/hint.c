// SPDX-License-Identifier: GPL-2.0
/*
 * Hints: one process asks another to move its memory.
 *
 * Design. Only a process itself can have its GPU's driver move its memory, so
 * the kernel carries the wish and the answer and moves nothing. A context
 * that has bound itself as executor for a device gets hints for its address
 * space as events in its ring, first in, first out, and answers each with
 * COMPLETE. A hint lives in its executor's queue until it is answered, times
 * out, is withdrawn by a signal to who asked, or the executor goes; who takes
 * it out of the queue is who finishes it, and nobody else.
 *
 * Who asks either waits, or names a context of its own that is told by a
 * COMPLETED event. A hint keeps neither context open: the executor's closing
 * ends it, and who asked is looked for, by number, when there is something to
 * tell.
 *
 * Locking. Nothing is shared by all: executor->hints_lock, a spinlock, protects
 * the queue and the roles of one context; hint->executor says whose lock, and
 * is NULL once the hint has left the queue. Between contexts one moves inside of
 * hetmem_contexts_enter(), which keeps those that are found. hints_lock is
 * taken in a notifier callback too (RELEASE: the executor's address space
 * ends), so it obeys their rules; context->lock is taken inside of it. A
 * hint that was taken out of its queue is finished without any lock.
 * hetmem_bind_mutex serializes BIND_DEVICE, which makes sure that nobody else
 * of its address space has a role.
 */
#include <linux/completion.h>
#include <linux/cred.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/mutex.h>
#include <linux/pid.h>
#include <linux/refcount.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

#include "hetmem.h"
#include "trace.h"

/**
 * struct hetmem_hint - a hint under way
 * @node: in executor->hints, or of those that its end ends
 * @refs: the queue's and the asker's or the timeout work's
 * @id: by which the executor answers
 * @executor: in whose queue it is, NULL if in none
 * @asker: process
 * @user: whose it is
 * @reply_mm: whose context is to be told; only compared
 * @reply: number of that context; 0: somebody waits for @done instead
 * @done: @result is valid
 * @result: 0 or a negative errno
 * @moved: pages
 * @start: of the memory
 * @end: of the memory
 * @location: where it is to go
 * @timeout: of a hint that nobody waits for
 */
struct hetmem_hint {
	struct list_head node;
	refcount_t refs;
	u64 id;
	struct hetmem_context *executor;
	struct pid *asker;
	kuid_t user;
	const struct mm_struct *reply_mm;
	u64 reply;
	struct completion done;
	s32 result;
	u64 moved;
	u64 start;
	u64 end;
	u32 location;
	struct delayed_work timeout;
};

static DEFINE_MUTEX(hetmem_bind_mutex);
static atomic64_t hetmem_last_hint;
static void hetmem_hint_put(struct hetmem_hint *hint)
{
	if (!refcount_dec_and_test(&hint->refs))
		return;
	put_pid(hint->asker);
	kfree(hint);
}

static u64 hetmem_hint_pages(const struct hetmem_hint *hint)
{
	return (hint->end - hint->start) >> PAGE_SHIFT;
}

/* Tells who asked, if that is still there. */
static void hetmem_hint_tell(const struct hetmem_hint *hint)
{
	struct hetmem_event event = {
		.type = HETMEM_EVENT_COMPLETED,
		.start = hint->start,
		.end = hint->end,
		.count = min_t(u64, hint->moved, U32_MAX),
		.data = hint->id,
		.result = hint->result,
	};
	struct hetmem_context *ctx;
	int idx;

	idx = hetmem_contexts_enter();
	for (ctx = hetmem_context_next(hint->reply_mm, NULL); ctx;
	     ctx = hetmem_context_next(hint->reply_mm, ctx)) {
		if (ctx->id != hint->reply)
			continue;
		spin_lock(&ctx->lock);
		hetmem_ring_add(ctx, &event);
		spin_unlock(&ctx->lock);
		hetmem_ring_wake(ctx);
		break;
	}
	hetmem_contexts_leave(idx);
}

/*
 * Takes a hint out of the queue of @executor, whose hints_lock is held, to
 * @ended. Who does that finishes it.
 */
static void hetmem_hint_take(struct hetmem_context *executor,
			     struct hetmem_hint *hint, struct list_head *ended)
{
	lockdep_assert_held(&executor->hints_lock);
	list_move_tail(&hint->node, ended);
	WRITE_ONCE(hint->executor, NULL);
	executor->nr_hints--;
	hetmem_foreign_answered(executor->user, hint->location,
				hetmem_hint_pages(hint));
}

/* Ends what was taken out of a queue, whose reference to it is given up. */
static void hetmem_hints_finish(struct list_head *ended, s32 result, u64 moved)
{
	struct hetmem_hint *hint, *next;

	list_for_each_entry_safe(hint, next, ended, node) {
		hint->result = result;
		hint->moved = moved;
		trace_hetmem_complete(hint->id, moved, result);
		if (hint->reply) {
			hetmem_hint_tell(hint);
			/* The work's reference goes with the work. */
			if (cancel_delayed_work(&hint->timeout))
				hetmem_hint_put(hint);
		}
		complete_all(&hint->done);
		hetmem_hint_put(hint);
	}
}

/* Ends a hint, unless it has ended. Return: whether it was this call. */
static bool hetmem_hint_withdraw(struct hetmem_hint *hint, s32 result)
{
	struct hetmem_context *executor;
	LIST_HEAD(ended);
	int idx;

	idx = hetmem_contexts_enter();
	executor = READ_ONCE(hint->executor);
	if (executor) {
		spin_lock(&executor->hints_lock);
		if (hint->executor)
			hetmem_hint_take(executor, hint, &ended);
		spin_unlock(&executor->hints_lock);
	}
	hetmem_contexts_leave(idx);
	if (list_empty(&ended))
		return false;
	hetmem_hints_finish(&ended, result, 0);
	return true;
}

static void hetmem_hint_timeout(struct work_struct *work)
{
	struct hetmem_hint *hint =
		container_of(work, struct hetmem_hint, timeout.work);

	hetmem_hint_withdraw(hint, -ETIMEDOUT);
	hetmem_hint_put(hint);
}

/**
 * hetmem_hints_fail - the executor that a context may be has gone
 * @ctx: context that is closed, or whose address space ends
 *
 * From a notifier callback too.
 */
void hetmem_hints_fail(struct hetmem_context *ctx)
{
	struct hetmem_hint *hint, *next;
	LIST_HEAD(ended);

	spin_lock(&ctx->hints_lock);
	WRITE_ONCE(ctx->roles, 0);
	list_for_each_entry_safe(hint, next, &ctx->hints, node)
		hetmem_hint_take(ctx, hint, &ended);
	spin_unlock(&ctx->hints_lock);
	hetmem_hints_finish(&ended, -EOWNERDEAD, 0);
}

/* Which of @ctx's bindings @location is, the first unused one if none. */
static unsigned int hetmem_binding_find(const struct hetmem_context *ctx,
					u32 location)
{
	unsigned int i;

	for (i = 0; i < ctx->nr_bindings; i++) {
		if (ctx->bindings[i].location == location)
			break;
	}
	return i;
}

static bool hetmem_executes(const struct hetmem_context *ctx, u32 location)
{
	/* To the host, whoever can move anything. */
	if (HETMEM_LOC_KIND(location) == HETMEM_HOST)
		return ctx->roles;
	return ctx->roles & BIT(hetmem_binding_find(ctx, location));
}

static bool hetmem_is_device(u32 location)
{
	return HETMEM_LOC_KIND(location) == HETMEM_DEVICE ||
	       HETMEM_LOC_KIND(location) == HETMEM_FOREIGN;
}

/*
 * Whether another context of the address space is executor for @location.
 * hetmem_bind_mutex is held, so that nobody becomes it meanwhile.
 */
static bool hetmem_bind_busy(struct hetmem_context *ctx, u32 location)
{
	struct hetmem_context *other;
	bool busy = false;
	int idx;

	idx = hetmem_contexts_enter();
	for (other = hetmem_context_next(ctx->mm, NULL); other;
	     other = hetmem_context_next(ctx->mm, other)) {
		spin_lock(&other->hints_lock);
		busy |= other != ctx && hetmem_executes(other, location);
		spin_unlock(&other->hints_lock);
	}
	hetmem_contexts_leave(idx);
	return busy;
}

static int hetmem_bind(struct hetmem_context *ctx,
		       struct hetmem_cmd_bind_device *cmd)
{
	struct hetmem_binding *binding;
	unsigned int i;
	int ret = 0;

	spin_lock(&ctx->hints_lock);
	i = hetmem_binding_find(ctx, cmd->location);
	binding = &ctx->bindings[i];
	if (cmd->flags & HETMEM_BIND_GET) {
		if (i < ctx->nr_bindings)
			memcpy(cmd->uuid, binding->uuid, sizeof(cmd->uuid));
		else
			ret = -ENOENT;
	} else if (i == ARRAY_SIZE(ctx->bindings)) {
		ret = -ENOSPC;
	} else {
		ctx->nr_bindings = max(ctx->nr_bindings, i + 1);
		binding->location = cmd->location;
		memcpy(binding->uuid, cmd->uuid, sizeof(binding->uuid));
		if (cmd->flags & HETMEM_BIND_EXECUTOR)
			WRITE_ONCE(ctx->roles, ctx->roles | BIT(i));
		else
			WRITE_ONCE(ctx->roles, ctx->roles & ~BIT(i));
	}
	spin_unlock(&ctx->hints_lock);
	return ret;
}

/* HETMEM_IOC_BIND_DEVICE */
int hetmem_bind_device(struct hetmem_context *ctx,
		       struct hetmem_cmd_bind_device *cmd)
{
	bool executor = cmd->flags & HETMEM_BIND_EXECUTOR;
	bool wants;
	int ret;

	if (cmd->reserved || !hetmem_is_device(cmd->location))
		return -EINVAL;
	if ((cmd->flags & HETMEM_BIND_GET) && executor)
		return -EINVAL;

	spin_lock(&ctx->lock);
	wants = hetmem_ring_wants(ctx, HETMEM_EVENT_HINT);
	spin_unlock(&ctx->lock);
	if (executor && !wants)
		return -ENXIO;

	mutex_lock(&hetmem_bind_mutex);
	if (executor && hetmem_bind_busy(ctx, cmd->location))
		ret = -EBUSY;
	else
		ret = hetmem_bind(ctx, cmd);
	mutex_unlock(&hetmem_bind_mutex);
	return ret;
}

/*
 * Whether @hint's process and user may have one more hint under way at
 * @executor, whose hints_lock is held. Half of what it takes is for the user
 * whose executor it is; of the others each may have as many as it leaves to
 * the rest.
 */
static bool hetmem_hint_share(const struct hetmem_context *executor,
			      const struct hetmem_hint *hint)
{
	unsigned int max = READ_ONCE(hetmem_caps.max_hints);
	unsigned int process = 0, user = 0, others = 0;
	const kuid_t owner = executor->user->uid;
	const struct hetmem_hint *other;

	if (executor->nr_hints >= max)
		goto refused;
	list_for_each_entry(other, &executor->hints, node) {
		process += other->asker == hint->asker;
		user += uid_eq(other->user, hint->user);
		others += !uid_eq(other->user, owner);
	}
	if (process >= HETMEM_HINT_ASKED_MAX)
		return false;
	if (uid_eq(hint->user, owner) || user + others < DIV_ROUND_UP(max, 2))
		return true;
refused:
	trace_hetmem_limit_hit("max_hints", max);
	return false;
}

/*
 * What @hint asks for, in @executor's ring, whose reader is woken later.
 * Return: whether it is told.
 */
static bool hetmem_executor_tell(struct hetmem_context *executor,
				 const struct hetmem_hint *hint, u32 type)
{
	struct hetmem_event event = {
		.type = type,
		.start = hint->start,
		.end = hint->end,
		.location = hint->location,
		.data = hint->id,
	};
	bool told;

	spin_lock(&executor->lock);
	told = hetmem_ring_wants(executor, type) &&
	       hetmem_ring_add(executor, &event);
	spin_unlock(&executor->lock);
	if (type == HETMEM_EVENT_HINT)
		trace_hetmem_hint(executor, &event, told ? 0 : -EAGAIN);
	return told;
}

/*
 * Whether the location may be asked for more. The executor is told of the
 * first hint that is refused, not of each: askers shall not fill its ring.
 */
static int hetmem_hint_limit(struct hetmem_context *executor,
			     const struct hetmem_hint *hint)
{
	int ret;

	ret = hetmem_foreign_ask(executor->user, hint->location,
				 hetmem_hint_pages(hint));
	if (ret && !executor->limited)
		hetmem_executor_tell(executor, hint, HETMEM_EVENT_LIMIT);
	executor->limited = ret;
	return ret;
}

/* Return: 0 or a negative errno. The executor's hints_lock is held. */
static int hetmem_hint_queue(struct hetmem_context *executor,
			     struct hetmem_hint *hint)
{
	int ret;

	if (!hetmem_hint_share(executor, hint))
		return -EAGAIN;
	ret = hetmem_hint_limit(executor, hint);
	if (ret)
		return ret;
	hint->id = atomic64_inc_return(&hetmem_last_hint);
	if (!hetmem_executor_tell(executor, hint, HETMEM_EVENT_HINT)) {
		hetmem_foreign_answered(executor->user, hint->location,
					hetmem_hint_pages(hint));
		return -EAGAIN;
	}
	hint->executor = executor;
	list_add_tail(&hint->node, &executor->hints);
	executor->nr_hints++;
	hetmem_total_add(HETMEM_TOTAL_HINTS, 1);
	/* The queue's. */
	refcount_inc(&hint->refs);
	return 0;
}

static struct hetmem_hint *
hetmem_hint_alloc(const struct hetmem_cmd_hint *cmd)
{
	struct hetmem_hint *hint;

	hint = kzalloc(sizeof(*hint), GFP_KERNEL_ACCOUNT);
	if (!hint)
		return NULL;
	INIT_LIST_HEAD(&hint->node);
	INIT_DELAYED_WORK(&hint->timeout, hetmem_hint_timeout);
	init_completion(&hint->done);
	refcount_set(&hint->refs, 1);
	hint->start = cmd->start;
	hint->end = cmd->end;
	hint->location = cmd->location;
	hint->asker = get_pid(task_tgid(current));
	hint->user = current_euid();
	return hint;
}

/* The context @fd of the caller is to be told. Return: 0 or an errno. */
static int hetmem_hint_reply(struct hetmem_hint *hint, int fd)
{
	struct file *file = fget(fd);
	struct hetmem_context *ctx;
	int ret = -EBADF;

	if (!file)
		return ret;
	ctx = hetmem_context_of(file);
	if (ctx && ctx->mm == current->mm) {
		spin_lock(&ctx->lock);
		ret = hetmem_ring_wants(ctx, HETMEM_EVENT_COMPLETED) ? 0 :
								       -ENXIO;
		spin_unlock(&ctx->lock);
		hint->reply_mm = ctx->mm;
		hint->reply = ctx->id;
	}
	fput(file);
	return ret;
}

/* Queues @hint if @ctx is executor for it, or returns -ENXIO. */
static int hetmem_hint_offer(struct hetmem_context *ctx,
			     struct hetmem_hint *hint, unsigned int timeout_ms)
{
	int ret = -ENXIO;

	spin_lock(&ctx->hints_lock);
	if (hetmem_executes(ctx, hint->location))
		ret = hetmem_hint_queue(ctx, hint);
	if (!ret && hint->reply) {
		/* The work's. */
		refcount_inc(&hint->refs);
		queue_delayed_work(hetmem_wq, &hint->timeout,
				   msecs_to_jiffies(timeout_ms));
	}
	spin_unlock(&ctx->hints_lock);
	hetmem_ring_wake(ctx);
	return ret;
}

/* Queues @hint for whoever is executor for @ctx's address space. */
static int hetmem_hint_send(struct hetmem_context *ctx,
			    struct hetmem_hint *hint, unsigned int timeout_ms)
{
	struct hetmem_context *executor;
	int idx, ret = -ENXIO;

	idx = hetmem_contexts_enter();
	for (executor = hetmem_context_next(ctx->mm, NULL);
	     executor && ret == -ENXIO;
	     executor = hetmem_context_next(ctx->mm, executor))
		ret = hetmem_hint_offer(executor, hint, timeout_ms);
	hetmem_contexts_leave(idx);
	return ret;
}

/* Waits for the outcome of a hint that was queued. */
static int hetmem_hint_wait(struct hetmem_hint *hint,
			    struct hetmem_cmd_hint *cmd)
{
	unsigned long timeout = msecs_to_jiffies(cmd->timeout_ms);
	int err;
	long left;

	left = wait_for_completion_interruptible_timeout(&hint->done, timeout);
	if (left <= 0) {
		err = left ? -EINTR : -ETIMEDOUT;
		if (hetmem_hint_withdraw(hint, err))
			return err;
		/* Somebody else has ended it, and is about to say so. */
		wait_for_completion(&hint->done);
	}
	if (hint->result == -EOWNERDEAD)
		return -EOWNERDEAD;
	cmd->result = hint->result;
	cmd->moved = hint->moved;
	return 0;
}

/* HETMEM_IOC_HINT; that the caller may was checked. */
int hetmem_hint(struct hetmem_context *ctx, struct hetmem_cmd_hint *cmd)
{
	struct hetmem_hint *hint;
	int ret = 0;

	if (!cmd->timeout_ms || cmd->timeout_ms > HETMEM_HINT_TIMEOUT_MAX ||
	    cmd->reply_fd < -1)
		return -EINVAL;
	if (HETMEM_LOC_KIND(cmd->location) != HETMEM_HOST &&
	    !hetmem_is_device(cmd->location))
		return -EINVAL;
	cmd->result = 0;
	cmd->moved = 0;

	hint = hetmem_hint_alloc(cmd);
	if (!hint)
		return -ENOMEM;
	if (cmd->reply_fd != -1)
		ret = hetmem_hint_reply(hint, cmd->reply_fd);
	if (!ret)
		ret = hetmem_hint_send(ctx, hint, cmd->timeout_ms);
	if (!ret) {
		cmd->id = hint->id;
		if (!hint->reply)
			ret = hetmem_hint_wait(hint, cmd);
	}
	hetmem_hint_put(hint);
	return ret;
}

/* HETMEM_IOC_COMPLETE */
int hetmem_complete(struct hetmem_context *ctx,
		    struct hetmem_cmd_complete *cmd)
{
	struct hetmem_hint *hint;
	LIST_HEAD(ended);

	if (cmd->result > 0 || cmd->result < -MAX_ERRNO)
		return -EINVAL;

	spin_lock(&ctx->hints_lock);
	list_for_each_entry(hint, &ctx->hints, node) {
		if (hint->id == cmd->id) {
			hetmem_hint_take(ctx, hint, &ended);
			break;
		}
	}
	spin_unlock(&ctx->hints_lock);
	if (list_empty(&ended))
		return -ENOENT;
	hetmem_hints_finish(&ended, cmd->result, cmd->moved);
	return 0;
}
