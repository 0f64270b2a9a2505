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
 * ends it, and the other's closing leaves nobody to tell.
 *
 * Locking. hetmem_hints_lock, a spinlock, protects all queues, all executor
 * roles and who is to be told. It is taken before context->lock. It is taken
 * in notifier callbacks too (RELEASE: the executor's address space ends), so
 * it obeys their rules. Readers of a ring are woken with it held, for nothing
 * else keeps their context: nothing that is woken may come back here.
 */
#include <linux/completion.h>
#include <linux/file.h>
#include <linux/fs.h>
#include <linux/jiffies.h>
#include <linux/mm.h>
#include <linux/pid.h>
#include <linux/refcount.h>
#include <linux/sched.h>
#include <linux/slab.h>
#include <linux/workqueue.h>

#include "hetmem.h"
#include "trace.h"

/**
 * struct hetmem_hint - a hint under way
 * @node: in executor->hints; empty once it has ended
 * @reply_node: in @reply->replies, or empty
 * @refs: the queue's and the asker's or the timeout work's
 * @id: by which the executor answers
 * @executor: whose queue it is in; valid while it is
 * @asker: process
 * @reply: context to be told, or NULL
 * @waits: somebody waits for @done instead
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
	struct list_head reply_node;
	refcount_t refs;
	u64 id;
	struct hetmem_context *executor;
	struct pid *asker;
	struct hetmem_context *reply;
	bool waits;
	struct completion done;
	s32 result;
	u64 moved;
	u64 start;
	u64 end;
	u32 location;
	struct delayed_work timeout;
};

static DEFINE_SPINLOCK(hetmem_hints_lock);
/* Contexts that are executor for some device. */
static LIST_HEAD(hetmem_executors);
static u64 hetmem_last_hint;

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

static void hetmem_hint_tell(struct hetmem_hint *hint)
{
	struct hetmem_context *ctx = hint->reply;
	struct hetmem_event event = {
		.type = HETMEM_EVENT_COMPLETED,
		.start = hint->start,
		.end = hint->end,
		.count = min_t(u64, hint->moved, U32_MAX),
		.data = hint->id,
		.result = hint->result,
	};

	spin_lock(&ctx->lock);
	hetmem_ring_add(ctx, &event);
	spin_unlock(&ctx->lock);
	hetmem_ring_wake(ctx);
}

/*
 * Ends a hint, unless it has ended; gives up the queue's reference. Lock held.
 * Return: whether it was this call that ended it.
 */
static bool hetmem_hint_end(struct hetmem_hint *hint, s32 result, u64 moved)
{
	lockdep_assert_held(&hetmem_hints_lock);
	if (list_empty(&hint->node))
		return false;
	list_del_init(&hint->node);
	hint->executor->nr_hints--;
	hetmem_foreign_answered(hint->location, hetmem_hint_pages(hint));
	hint->result = result;
	hint->moved = moved;
	trace_hetmem_complete(hint->id, moved, result);
	if (hint->reply) {
		hetmem_hint_tell(hint);
		list_del_init(&hint->reply_node);
		hint->reply = NULL;
	}
	/* The work's reference goes with the work. */
	if (!hint->waits && cancel_delayed_work(&hint->timeout))
		hetmem_hint_put(hint);
	complete_all(&hint->done);
	hetmem_hint_put(hint);
	return true;
}

static void hetmem_hint_timeout(struct work_struct *work)
{
	struct hetmem_hint *hint =
		container_of(work, struct hetmem_hint, timeout.work);

	spin_lock(&hetmem_hints_lock);
	hetmem_hint_end(hint, -ETIMEDOUT, 0);
	spin_unlock(&hetmem_hints_lock);
	hetmem_hint_put(hint);
}

/* The executor that @ctx may be has gone; lock held. */
static void hetmem_executor_fail(struct hetmem_context *ctx)
{
	struct hetmem_hint *hint, *next;
	unsigned int i;

	list_del_init(&ctx->executors);
	for (i = 0; i < ctx->nr_bindings; i++)
		ctx->bindings[i].executor = false;
	list_for_each_entry_safe(hint, next, &ctx->hints, node)
		hetmem_hint_end(hint, -EOWNERDEAD, 0);
}

/**
 * hetmem_hints_fail - an address space ends
 * @ctx: its context
 *
 * From a notifier callback too.
 */
void hetmem_hints_fail(struct hetmem_context *ctx)
{
	spin_lock(&hetmem_hints_lock);
	hetmem_executor_fail(ctx);
	spin_unlock(&hetmem_hints_lock);
}

/**
 * hetmem_hints_close - a context is closed
 * @ctx: context
 */
void hetmem_hints_close(struct hetmem_context *ctx)
{
	struct hetmem_hint *hint, *next;

	spin_lock(&hetmem_hints_lock);
	hetmem_executor_fail(ctx);
	list_for_each_entry_safe(hint, next, &ctx->replies, reply_node) {
		list_del_init(&hint->reply_node);
		hint->reply = NULL;
	}
	spin_unlock(&hetmem_hints_lock);
}

static struct hetmem_binding *hetmem_binding_find(struct hetmem_context *ctx,
						  u32 location)
{
	unsigned int i;

	for (i = 0; i < ctx->nr_bindings; i++) {
		if (ctx->bindings[i].location == location)
			return &ctx->bindings[i];
	}
	return NULL;
}

static bool hetmem_executes(struct hetmem_context *ctx, u32 location)
{
	struct hetmem_binding *binding;

	/* To the host, whoever can move anything. */
	if (HETMEM_LOC_KIND(location) == HETMEM_HOST)
		return true;
	binding = hetmem_binding_find(ctx, location);
	return binding && binding->executor;
}

static struct hetmem_context *hetmem_executor_find(const struct mm_struct *mm,
						   u32 location)
{
	struct hetmem_context *ctx;

	lockdep_assert_held(&hetmem_hints_lock);
	list_for_each_entry(ctx, &hetmem_executors, executors) {
		if (ctx->mm == mm && hetmem_executes(ctx, location))
			return ctx;
	}
	return NULL;
}

/* Whether @ctx is executor for any device; lock held. */
static void hetmem_executor_update(struct hetmem_context *ctx)
{
	unsigned int i;

	list_del_init(&ctx->executors);
	for (i = 0; i < ctx->nr_bindings; i++) {
		if (ctx->bindings[i].executor) {
			list_add_tail(&ctx->executors, &hetmem_executors);
			return;
		}
	}
}

static bool hetmem_is_device(u32 location)
{
	return HETMEM_LOC_KIND(location) == HETMEM_DEVICE ||
	       HETMEM_LOC_KIND(location) == HETMEM_FOREIGN;
}

/* HETMEM_IOC_BIND_DEVICE */
int hetmem_bind_device(struct hetmem_context *ctx,
		       struct hetmem_cmd_bind_device *cmd)
{
	bool executor = cmd->flags & HETMEM_BIND_EXECUTOR;
	struct hetmem_binding *binding;
	struct hetmem_context *other;
	bool wants;
	int ret = 0;

	if (cmd->reserved || !hetmem_is_device(cmd->location))
		return -EINVAL;
	if ((cmd->flags & HETMEM_BIND_GET) && executor)
		return -EINVAL;

	spin_lock(&ctx->lock);
	wants = hetmem_ring_wants(ctx, HETMEM_EVENT_HINT);
	spin_unlock(&ctx->lock);
	if (executor && !wants)
		return -ENXIO;

	spin_lock(&hetmem_hints_lock);
	binding = hetmem_binding_find(ctx, cmd->location);
	if (cmd->flags & HETMEM_BIND_GET) {
		if (binding)
			memcpy(cmd->uuid, binding->uuid, sizeof(cmd->uuid));
		else
			ret = -ENOENT;
		goto out;
	}
	other = hetmem_executor_find(ctx->mm, cmd->location);
	if (executor && other && other != ctx) {
		ret = -EBUSY;
		goto out;
	}
	if (!binding) {
		if (ctx->nr_bindings == ARRAY_SIZE(ctx->bindings)) {
			ret = -ENOSPC;
			goto out;
		}
		binding = &ctx->bindings[ctx->nr_bindings++];
		binding->location = cmd->location;
	}
	memcpy(binding->uuid, cmd->uuid, sizeof(binding->uuid));
	binding->executor = executor;
	hetmem_executor_update(ctx);
out:
	spin_unlock(&hetmem_hints_lock);
	return ret;
}

/* Hints of @asker under way at @executor; lock held. */
static unsigned int hetmem_hints_asked(const struct hetmem_context *executor,
				       const struct pid *asker)
{
	const struct hetmem_hint *hint;
	unsigned int nr = 0;

	list_for_each_entry(hint, &executor->hints, node) {
		if (hint->asker == asker)
			nr++;
	}
	return nr;
}

/* What @hint asks for, in @executor's ring. Return: whether it is told. */
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
	if (told)
		hetmem_ring_wake(executor);
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

	ret = hetmem_foreign_ask(hint->location, hetmem_hint_pages(hint));
	if (ret && !executor->limited)
		hetmem_executor_tell(executor, hint, HETMEM_EVENT_LIMIT);
	executor->limited = ret;
	return ret;
}

/* Tells the executor. Return: 0 or a negative errno; lock held. */
static int hetmem_hint_queue(struct hetmem_context *executor,
			     struct hetmem_hint *hint)
{
	unsigned int max = READ_ONCE(hetmem_caps.max_hints);
	int ret;

	if (executor->nr_hints >= max) {
		trace_hetmem_limit_hit("max_hints", max);
		return -EAGAIN;
	}
	if (hetmem_hints_asked(executor, hint->asker) >= HETMEM_HINT_ASKED_MAX)
		return -EAGAIN;
	ret = hetmem_hint_limit(executor, hint);
	if (ret)
		return ret;
	hint->id = ++hetmem_last_hint;
	if (!hetmem_executor_tell(executor, hint, HETMEM_EVENT_HINT)) {
		hetmem_foreign_answered(hint->location,
					hetmem_hint_pages(hint));
		return -EAGAIN;
	}
	hint->executor = executor;
	list_add_tail(&hint->node, &executor->hints);
	executor->nr_hints++;
	atomic64_inc(&hetmem_totals.hints);
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
	INIT_LIST_HEAD(&hint->reply_node);
	INIT_DELAYED_WORK(&hint->timeout, hetmem_hint_timeout);
	init_completion(&hint->done);
	refcount_set(&hint->refs, 1);
	hint->start = cmd->start;
	hint->end = cmd->end;
	hint->location = cmd->location;
	hint->asker = get_pid(task_tgid(current));
	return hint;
}

/* Whether @file can be told of an outcome. Return: 0 or a negative errno. */
static int hetmem_reply_check(const struct file *file)
{
	struct hetmem_context *ctx = file ? hetmem_context_of(file) : NULL;
	bool wants;

	if (!ctx || ctx->mm != current->mm)
		return -EBADF;
	spin_lock(&ctx->lock);
	wants = hetmem_ring_wants(ctx, HETMEM_EVENT_COMPLETED);
	spin_unlock(&ctx->lock);
	return wants ? 0 : -ENXIO;
}

/* Waits for the outcome of a hint that was queued. */
static int hetmem_hint_wait(struct hetmem_hint *hint,
			    struct hetmem_cmd_hint *cmd)
{
	unsigned long timeout = msecs_to_jiffies(cmd->timeout_ms);
	bool withdrawn;
	int err;
	long left;

	left = wait_for_completion_interruptible_timeout(&hint->done, timeout);
	if (left <= 0) {
		err = left ? -EINTR : -ETIMEDOUT;
		spin_lock(&hetmem_hints_lock);
		withdrawn = hetmem_hint_end(hint, err, 0);
		spin_unlock(&hetmem_hints_lock);
		if (withdrawn)
			return err;
	}
	if (hint->result == -EOWNERDEAD)
		return -EOWNERDEAD;
	cmd->result = hint->result;
	cmd->moved = hint->moved;
	return 0;
}

/* Queues @hint, to be told to @reply or to be waited for if that is NULL. */
static int hetmem_hint_send(struct hetmem_context *ctx,
			    struct hetmem_hint *hint,
			    struct hetmem_context *reply,
			    const struct hetmem_cmd_hint *cmd)
{
	struct hetmem_context *executor;
	int ret = -ENXIO;

	hint->waits = !reply;
	spin_lock(&hetmem_hints_lock);
	executor = hetmem_executor_find(ctx->mm, cmd->location);
	if (executor)
		ret = hetmem_hint_queue(executor, hint);
	if (!ret && reply) {
		hint->reply = reply;
		list_add_tail(&hint->reply_node, &reply->replies);
		/* The work's. */
		refcount_inc(&hint->refs);
		queue_delayed_work(hetmem_wq, &hint->timeout,
				   msecs_to_jiffies(cmd->timeout_ms));
	}
	spin_unlock(&hetmem_hints_lock);
	return ret;
}

/* HETMEM_IOC_HINT; that the caller may was checked. */
int hetmem_hint(struct hetmem_context *ctx, struct hetmem_cmd_hint *cmd)
{
	struct file *file = NULL;
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
	if (cmd->reply_fd != -1) {
		/* Until the hint is in its list of replies. */
		file = fget(cmd->reply_fd);
		ret = hetmem_reply_check(file);
	}
	if (!ret)
		ret = hetmem_hint_send(ctx, hint,
				       file ? hetmem_context_of(file) : NULL,
				       cmd);
	if (file)
		fput(file);
	if (!ret) {
		cmd->id = hint->id;
		if (hint->waits)
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
	int ret = -ENOENT;

	if (cmd->result > 0 || cmd->result < -MAX_ERRNO)
		return -EINVAL;

	spin_lock(&hetmem_hints_lock);
	list_for_each_entry(hint, &ctx->hints, node) {
		if (hint->id == cmd->id) {
			hetmem_hint_end(hint, cmd->result, cmd->moved);
			ret = 0;
			break;
		}
	}
	spin_unlock(&hetmem_hints_lock);
	return ret;
}
