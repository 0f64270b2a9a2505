// SPDX-License-Identifier: GPL-2.0
/*
 * BACKGROUND: a MIGRATE that a worker carries out. An eventfd is signalled at its end.
 *
 * Design. A context has one job. Its command is read and checked before the call
 * returns; its answer stays in the job until the next one begins. close() waits for the
 * worker, so the worker never waits for userspace: it touches none of the caller's
 * arrays, and faults private pages of anonymous memory only (walk.c). A worker has all
 * capabilities and no limits, so a job does not pin.
 *
 * End. Between two spans the worker looks whether the context closes, or only jobs use
 * the memory any more: then its process has ended.
 *
 * Locking. hm->lock protects the job, except its command while the job runs.
 */
#include <linux/eventfd.h>
#include <linux/kthread.h>
#include <linux/sched/mm.h>

#include "range.h"

/* Jobs of one user that run at a time. */
#define HETMEM_USER_JOBS	16

static struct workqueue_struct *hetmem_jobs;

/* Whether a MIGRATE of @ctx is to stop because nobody waits for it. */
bool hetmem_job_stops(struct hetmem_context *ctx)
{
	struct hetmem_mm *hm = ctx->hm;

	return READ_ONCE(ctx->job.stop) ||
	       atomic_read(&hm->notifier.mm->mm_users) <= atomic_read(&hm->nr_jobs);
}

static void job_end(struct hetmem_context *ctx, int result)
{
	struct eventfd_ctx *eventfd = ctx->job.eventfd;

	scoped_guard(spinlock, &ctx->hm->lock) {
		ctx->job.result = result;
		ctx->job.runs = false;
	}
	atomic_dec(&ctx->user->nr_jobs);
	hetmem_eventfd_signal(eventfd);
	eventfd_ctx_put(eventfd);
}

static void job_work(struct work_struct *work)
{
	struct hetmem_context *ctx = container_of(work, struct hetmem_context, job.work);
	struct mm_struct *mm = ctx->hm->notifier.mm;
	int ret = -ESRCH;

	if (mmget_not_zero(mm)) {
		atomic_inc(&ctx->hm->nr_jobs);
		kthread_use_mm(mm);
		ret = hetmem_migrate(ctx, &ctx->job.cmd);
		kthread_unuse_mm(mm);
		atomic_dec(&ctx->hm->nr_jobs);
		/* The last one takes down the address space, which takes long. */
		mmput_async(mm);
	}
	job_end(ctx, ret);
}

static int job_begin(struct hetmem_context *ctx, const struct hetmem_cmd_background *cmd)
{
	struct hetmem_job *job = &ctx->job;
	struct hetmem_cmd_migrate move;
	struct eventfd_ctx *eventfd;
	int ret;

	ret = hetmem_read_migrate(&move, u64_to_user_ptr(cmd->command), cmd->command_size);
	if (ret)
		return ret;
	if (move.flags || move.timeout_ms || move.nr_rest)
		return -EINVAL;
	eventfd = eventfd_ctx_fdget(cmd->eventfd);
	if (IS_ERR(eventfd))
		return PTR_ERR(eventfd);
	scoped_guard(spinlock, &ctx->hm->lock) {
		if (!job->runs && atomic_add_unless(&ctx->user->nr_jobs, 1, HETMEM_USER_JOBS)) {
			job->runs = true;
			job->cmd = move;
			job->eventfd = eventfd;
			queue_work(hetmem_jobs, &job->work);
			return 0;
		}
	}
	eventfd_ctx_put(eventfd);
	return -EBUSY;
}

/* HETMEM_IOC_BACKGROUND */
int hetmem_background(struct hetmem_context *ctx, void *arg)
{
	struct hetmem_cmd_background *cmd = arg;
	struct hetmem_cmd_migrate answer;
	int ret;

	if (!(cmd->flags & HETMEM_BACKGROUND_COLLECT))
		return job_begin(ctx, cmd);
	ret = hetmem_check_array(1, cmd->command_size, sizeof(answer));
	if (ret)
		return ret;
	scoped_guard(spinlock, &ctx->hm->lock) {
		if (ctx->job.runs)
			return -EAGAIN;
		answer = ctx->job.cmd;
		cmd->result = ctx->job.result;
	}
	if (!answer.size)
		return -ENOENT;
	answer.size = cmd->command_size;
	return hetmem_copy_out(u64_to_user_ptr(cmd->command), cmd->command_size, &answer,
			       sizeof(answer));
}

void hetmem_job_open(struct hetmem_context *ctx)
{
	INIT_WORK(&ctx->job.work, job_work);
}

/* At close: waits for at most a span of MIGRATE. */
void hetmem_job_close(struct hetmem_context *ctx)
{
	WRITE_ONCE(ctx->job.stop, true);
	if (cancel_work_sync(&ctx->job.work))
		job_end(ctx, -EINTR);
}

int hetmem_job_init(void)
{
	hetmem_jobs = alloc_workqueue("hetmem_jobs", WQ_UNBOUND, 0);
	return hetmem_jobs ? 0 : -ENOMEM;
}

void hetmem_job_exit(void)
{
	destroy_workqueue(hetmem_jobs);
}
