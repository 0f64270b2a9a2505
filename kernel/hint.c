// SPDX-License-Identifier: GPL-2.0
/*
 * Hints: one process asks another to move its memory.
 *
 * Design. Only a process itself can have its GPU's driver move its memory, so
 * the kernel carries the wish and the answer and moves nothing. A context that
 * has bound itself as executor for a device gets hints for its address space as
 * events in its ring, first in, first out, and answers each with COMPLETE. The
 * asker waits. Its hint is in the executor's queue until it is answered, times
 * out, is withdrawn by a signal, or the executor goes. The asker holds a file of
 * the executor's address space, so that stays.
 *
 * A freezer, a stop or a tracer takes the asker out of the kernel without a signal
 * handler, and the system call is restarted afterwards. Its hint is parked in the
 * asker's context meanwhile, queued or answered, and the restarted call, known by
 * its thread and its arguments, waits for the rest of the time. The next HINT of the
 * thread drops a parked hint that it does not continue, any HINT those of threads
 * that have ended.
 *
 * A user may have caps/max_hints hints in one queue, so that one asker cannot
 * shut others out, and a queue takes HETMEM_QUEUE_MAX.
 *
 * Locking. hm->lock of the executor's address space protects bindings, roles
 * and queues, and a hint until it has left its queue. It is completed under
 * that lock, so when its asker has held the lock again nobody else uses it.
 */
#include "device.h"
#include "range.h"
#include "trace.h"

/* Hints that wait for one executor: each one is looked at by the next. */
#define HETMEM_QUEUE_MAX	1024

/**
 * struct hetmem_hint - a hint under way
 * @node: in executor->hints
 * @parked: in context->parked, while its thread is not here
 * @executor: in whose queue it is; NULL: in none
 * @id: by which the executor answers
 * @asker: as hetmem_current_user() returns it
 * @thread: that asks
 * @deadline: jiffies
 * @cmd: what is asked for, and the outcome
 * @location: where the executor found the device
 * @done: the outcome is there
 * @error: why there is none: a negative errno
 */
struct hetmem_hint {
	struct list_head node;
	struct list_head parked;
	struct hetmem_context *executor;
	u64 id;
	kuid_t asker;
	struct pid *thread;
	unsigned long deadline;
	struct hetmem_cmd_hint cmd;
	u32 location;
	struct completion done;
	int error;
};

static atomic64_t hetmem_last_hint;

/*
 * Takes a hint out of its queue: its outcome is there, or will not come because of
 * @error. hm->lock is held.
 */
static void hint_finish(struct hetmem_hint *hint, int error)
{
	hint->error = error;
	if (error)
		hint->cmd.result = error;
	trace_hetmem_complete(hint->executor, hint->cmd.start, hint->cmd.end, hint->location,
			      hint->id, hint->cmd.result);
	list_del(&hint->node);
	hint->executor->nr_hints--;
	hint->executor = NULL;
	complete(&hint->done);
}

static void hint_free(struct hetmem_hint *hint)
{
	put_pid(hint->thread);
	kfree(hint);
}

/* Ends a parked hint. hm->lock is held. */
static void hint_drop(struct hetmem_hint *hint)
{
	if (hint->executor)
		hint_finish(hint, -EINTR);
	list_del(&hint->parked);
	hint_free(hint);
}

/* At close. hm->lock is held. */
void hetmem_hints_drop(struct hetmem_context *ctx)
{
	struct hetmem_hint *hint, *next;

	list_for_each_entry_safe(hint, next, &ctx->parked, parked)
		hint_drop(hint);
}

/* The executor that a context may be is gone. hm->lock is held. */
void hetmem_hints_fail(struct hetmem_context *ctx)
{
	struct hetmem_hint *hint, *next;
	unsigned int i;

	for (i = 0; i < ctx->nr_bindings; i++)
		ctx->bindings[i].executor = false;
	list_for_each_entry_safe(hint, next, &ctx->hints, node)
		hint_finish(hint, -EOWNERDEAD);
}

/*
 * Whether @binding is the device at @location, or with @uuid if it is foreign.
 * To the host, any device's executor can move memory.
 */
static bool binding_is(const struct hetmem_binding *binding, u32 location, const u8 *uuid)
{
	if (hetmem_is_foreign(location) && memchr_inv(uuid, 0, 16))
		return hetmem_is_foreign(binding->location) && !memcmp(binding->uuid, uuid, 16);
	return HETMEM_LOC_KIND(location) == HETMEM_HOST || binding->location == location;
}

/*
 * The executor in @hm for a device, other than @except, and as what it has it
 * bound. Return: NULL, or ERR_PTR(-ENOTUNIQ) if there are several devices.
 */
static struct hetmem_context *executor_find(struct hetmem_mm *hm,
					    const struct hetmem_context *except, u32 location,
					    const u8 *uuid, struct hetmem_binding **binding)
{
	struct hetmem_context *ctx, *found = NULL;
	unsigned int i;

	list_for_each_entry(ctx, &hm->contexts, siblings) {
		for (i = 0; i < ctx->nr_bindings && ctx != except; i++) {
			if (!ctx->bindings[i].executor ||
			    !binding_is(&ctx->bindings[i], location, uuid))
				continue;
			if (HETMEM_LOC_KIND(location) == HETMEM_HOST)
				return ctx;
			if (found)
				return ERR_PTR(-ENOTUNIQ);
			*binding = &ctx->bindings[i];
			found = ctx;
		}
	}
	return found;
}

/* HETMEM_IOC_BIND_DEVICE */
int hetmem_bind_device(struct hetmem_context *ctx, void *arg)
{
	const struct hetmem_cmd_bind_device *cmd = arg;
	const bool executor = cmd->flags & HETMEM_BIND_EXECUTOR;
	struct hetmem_binding *binding;
	unsigned int i;

	if (!hetmem_on_device(cmd->location) ||
	    (hetmem_is_foreign(cmd->location) && !memchr_inv(cmd->uuid, 0, sizeof(cmd->uuid))))
		return -EINVAL;

	guard(spinlock)(&ctx->hm->lock);
	for (i = 0; i < ctx->nr_bindings; i++) {
		if (binding_is(&ctx->bindings[i], cmd->location, cmd->uuid))
			break;
	}
	if (executor && !hetmem_ring_wants(ctx, HETMEM_EVENT_HINT))
		return -ENXIO;
	if (executor && executor_find(ctx->hm, ctx, cmd->location, cmd->uuid, &binding))
		return -EBUSY;
	if (i == HETMEM_MAX_BINDINGS)
		return -ENOSPC;
	ctx->nr_bindings = max(ctx->nr_bindings, i + 1);
	binding = &ctx->bindings[i];
	binding->location = cmd->location;
	binding->executor = executor;
	memcpy(binding->uuid, cmd->uuid, sizeof(binding->uuid));
	return 0;
}

/* Whether @hint's user may have one more of @executor's queue. */
static bool hint_may(const struct hetmem_context *executor, const struct hetmem_hint *hint)
{
	const unsigned int max = READ_ONCE(hetmem_max_hints);
	struct hetmem_hint *other, *next;
	unsigned int nr = 0;

	list_for_each_entry_safe(other, next, &executor->hints, node) {
		/* Nobody else ends one whose thread is not here. */
		if (!list_empty(&other->parked) && time_after(jiffies, other->deadline))
			hint_finish(other, -ETIMEDOUT);
		else
			nr += uid_eq(other->asker, hint->asker);
	}
	if (nr < max && executor->nr_hints < HETMEM_QUEUE_MAX)
		return true;
	trace_hetmem_limit_hit("max_hints", max);
	return false;
}

/* Adds @hint to the executor's ring. Return: whether there was room. */
static bool executor_tell(struct hetmem_context *executor, const struct hetmem_hint *hint,
			  const struct hetmem_binding *binding)
{
	struct hetmem_event event = {
		.type = HETMEM_EVENT_HINT,
		.start = hint->cmd.start,
		.end = hint->cmd.end,
		.location = hint->location,
		.data = hint->id,
	};
	bool told;

	if (binding)
		memcpy(event.uuid, binding->uuid, sizeof(event.uuid));
	told = hetmem_ring_add(executor, &event);
	trace_hetmem_hint(executor, event.start, event.end, event.location, event.data,
			  told ? 0 : -EAGAIN);
	return told;
}

/* Whether the device may be asked for more. */
static int hint_limit(struct hetmem_context *executor, const struct hetmem_hint *hint,
		      const struct hetmem_binding *binding)
{
	u64 pages = (hint->cmd.end - hint->cmd.start) >> PAGE_SHIFT;
	const struct hetmem_hint *other;

	if (!binding || !hetmem_is_foreign(binding->location))
		return 0;
	list_for_each_entry(other, &executor->hints, node) {
		if (other->location == binding->location)
			pages += (other->cmd.end - other->cmd.start) >> PAGE_SHIFT;
	}
	return hetmem_foreign_limit(executor->hm, binding->location, binding->uuid, pages);
}

/* Queues @hint for the executor in @hm. */
static int hint_queue(struct hetmem_mm *hm, struct hetmem_hint *hint)
{
	const struct hetmem_cmd_hint *cmd = &hint->cmd;
	struct hetmem_binding *binding = NULL;
	struct hetmem_context *executor;
	int ret;

	guard(spinlock)(&hm->lock);
	executor = executor_find(hm, NULL, cmd->location, cmd->uuid, &binding);
	if (IS_ERR_OR_NULL(executor))
		return executor ? PTR_ERR(executor) : -ENXIO;
	if (!hint_may(executor, hint))
		return -EAGAIN;
	hint->location = binding ? binding->location : cmd->location;
	ret = hint_limit(executor, hint, binding);
	if (ret)
		return ret;
	hint->id = atomic64_inc_return(&hetmem_last_hint);
	if (!executor_tell(executor, hint, binding))
		return -EAGAIN;
	list_add_tail(&hint->node, &executor->hints);
	hint->executor = executor;
	executor->nr_hints++;
	hetmem_total_add(hints, 1);
	return 0;
}

/* The parked hint that a restarted HINT of current continues, or NULL. */
static struct hetmem_hint *hint_unpark(struct hetmem_context *ctx,
				       const struct hetmem_cmd_hint *cmd)
{
	struct hetmem_hint *hint, *next, *found = NULL;

	guard(spinlock)(&ctx->hm->lock);
	list_for_each_entry_safe(hint, next, &ctx->parked, parked) {
		const bool mine = hint->thread == task_pid(current);

		if (mine && !memcmp(&hint->cmd, cmd, offsetof(typeof(*cmd), id))) {
			list_del_init(&hint->parked);
			found = hint;
		} else if (mine || !pid_has_task(hint->thread, PIDTYPE_PID)) {
			hint_drop(hint);
		}
	}
	return found;
}

/*
 * Whether current, which has been interrupted, may come back without a signal
 * handler having run. A tracer decides that later.
 */
static bool may_restart(void)
{
	/* Current's own: only current itself replaces it, by exec. */
	struct sighand_struct *sighand = rcu_dereference_protected(current->sighand, true);
	const struct k_sigaction *action = sighand->action;
	bool restarts = true;
	sigset_t pending;
	int sig;

	if (fatal_signal_pending(current))
		return false;
	guard(spinlock_irq)(&sighand->siglock);
	sigorsets(&pending, &current->pending.signal, &current->signal->shared_pending.signal);
	sigandnsets(&pending, &pending, &current->blocked);
	for (sig = 1; sig <= _NSIG && !current->ptrace; sig++) {
		const bool ignored = siginmask(sig, SIG_KERNEL_IGNORE_MASK | SIG_KERNEL_STOP_MASK);

		if (sigismember(&pending, sig) && action[sig - 1].sa.sa_handler != SIG_IGN &&
		    (action[sig - 1].sa.sa_handler != SIG_DFL || !ignored))
			restarts = false;
	}
	return restarts;
}

/* Waits for the outcome of a hint. Return: -ERESTARTNOHAND: it is parked. */
static int hint_wait(struct hetmem_context *ctx, struct hetmem_hint *hint)
{
	const long timeout = max((long)(hint->deadline - jiffies), 0L);
	const long left = wait_for_completion_interruptible_timeout(&hint->done, timeout);
	const bool parks = left < 0 && may_restart();

	/* Also where it was completed: by then nobody uses it any more. */
	guard(spinlock)(&ctx->hm->lock);
	if (hint->executor && parks)
		list_add_tail(&hint->parked, &ctx->parked);
	else if (hint->executor)
		hint_finish(hint, left ? -EINTR : -ETIMEDOUT);
	return hint->executor ? -ERESTARTNOHAND : hint->error;
}

/* A hint of current's that is in no queue, or NULL. */
static struct hetmem_hint *hint_make(const struct hetmem_cmd_hint *cmd)
{
	struct hetmem_hint *hint = kzalloc(sizeof(*hint), HETMEM_GFP);

	if (!hint)
		return NULL;
	hint->cmd = *cmd;
	hint->cmd.moved = 0;
	hint->cmd.result = 0;
	hint->asker = hetmem_current_user();
	hint->thread = get_pid(task_pid(current));
	hint->deadline = jiffies + msecs_to_jiffies(cmd->timeout_ms);
	INIT_LIST_HEAD(&hint->parked);
	init_completion(&hint->done);
	return hint;
}

/* HETMEM_IOC_HINT; that the caller may was checked. */
int hetmem_hint(struct hetmem_context *ctx, void *arg)
{
	struct hetmem_cmd_hint *cmd = arg;
	const u32 kind = HETMEM_LOC_KIND(cmd->location);
	struct hetmem_hint *hint;
	int ret = 0;

	if (!cmd->timeout_ms || cmd->timeout_ms > HETMEM_HINT_TIMEOUT_MAX ||
	    (kind != HETMEM_HOST && !hetmem_on_device(cmd->location)) ||
	    (!hetmem_is_foreign(cmd->location) && memchr_inv(cmd->uuid, 0, sizeof(cmd->uuid))))
		return -EINVAL;

	hint = hint_unpark(ctx, cmd);
	if (!hint) {
		hint = hint_make(cmd);
		if (!hint)
			return -ENOMEM;
		ret = hint_queue(ctx->hm, hint);
	}
	if (!ret)
		ret = hint_wait(ctx, hint);
	if (ret == -ERESTARTNOHAND)
		return ret;
	cmd->id = hint->id;
	cmd->moved = hint->cmd.moved;
	cmd->result = hint->cmd.result;
	hint_free(hint);
	return ret;
}

/* HETMEM_IOC_COMPLETE */
int hetmem_complete(struct hetmem_context *ctx, void *arg)
{
	const struct hetmem_cmd_complete *cmd = arg;
	struct hetmem_hint *hint;

	if (cmd->result > 0 || cmd->result < -MAX_ERRNO)
		return -EINVAL;
	guard(spinlock)(&ctx->hm->lock);
	list_for_each_entry(hint, &ctx->hints, node) {
		if (hint->id != cmd->id)
			continue;
		hint->cmd.result = cmd->result;
		hint->cmd.moved = cmd->moved;
		hint_finish(hint, 0);
		return 0;
	}
	return -ENOENT;
}
