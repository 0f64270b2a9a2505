// SPDX-License-Identifier: GPL-2.0
/*
 * RESIDENCY: the steps of residency.c, as runs and totals for userspace.
 *
 * The caller's arrays are written between steps, when nothing is locked, and
 * no user of the address space is held: it may be another process's, and who
 * has userfaultfd can have the writing take forever.
 * Pieces that have everything in common become one run, across steps too, so
 * the last run is held back until something else follows it. Finished runs go
 * to the caller by the dozen.
 */
#include <linux/mm.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "hetmem.h"

/* Runs that go to the caller at once. */
#define HETMEM_REPORT_RUNS	48

/**
 * struct hetmem_report - a RESIDENCY command at work
 * @ctx: the context
 * @cmd: the command
 * @kinds: bits of the kinds that are to be reported as runs
 * @room: pages that runs may have in addition
 * @nr_runs: finished runs that are not in the caller's array yet; the command
 *	counts them already
 * @growing: the run behind them grows
 * @runs: all of these
 * @nr_totals: locations seen
 * @totals: pages seen there
 */
struct hetmem_report {
	struct hetmem_context *ctx;
	struct hetmem_cmd_residency *cmd;
	u32 kinds;
	u64 room;
	unsigned int nr_runs;
	bool growing;
	struct hetmem_run runs[HETMEM_REPORT_RUNS];
	unsigned int nr_totals;
	struct hetmem_total totals[HETMEM_MAX_TOTALS];
};

static int hetmem_report_total(struct hetmem_report *report, u32 location,
			       u64 nr_pages)
{
	unsigned int i;

	if (!report->cmd->nr_totals)
		return 0;
	for (i = 0; i < report->nr_totals; i++) {
		if (report->totals[i].location == location)
			break;
	}
	if (i == report->cmd->nr_totals)
		return -ENOSPC;
	if (i == report->nr_totals)
		report->totals[report->nr_totals++].location = location;
	report->totals[i].pages += nr_pages;
	return 0;
}

/* Hands the finished runs to the caller. */
static int hetmem_report_copy(struct hetmem_report *report)
{
	struct hetmem_run __user *runs = u64_to_user_ptr(report->cmd->runs);

	runs += report->cmd->filled_runs - report->nr_runs;
	if (copy_to_user(runs, report->runs,
			 report->nr_runs * sizeof(report->runs[0])))
		return -EFAULT;
	report->nr_runs = 0;
	return 0;
}

/* The run that grew is finished. */
static int hetmem_report_flush(struct hetmem_report *report)
{
	if (!report->growing)
		return 0;
	report->growing = false;
	report->nr_runs++;
	report->cmd->filled_runs++;
	if (report->nr_runs < HETMEM_REPORT_RUNS)
		return 0;
	return hetmem_report_copy(report);
}

/*
 * Adds [start, end) of one piece to the runs. Return: how far the caller's
 * limits allow it, @start if not at all; or a negative errno.
 */
static long hetmem_report_run(struct hetmem_report *report,
			      unsigned long start, unsigned long end,
			      const struct hetmem_piece *piece, u32 why)
{
	struct hetmem_run *run = &report->runs[report->nr_runs];
	u64 nr_pages = (end - start) >> PAGE_SHIFT;
	u32 kind = HETMEM_LOC_KIND(piece->location);
	int ret;

	if (!(report->kinds & (1U << kind)))
		return end;

	if (kind == HETMEM_DEVICE || kind == HETMEM_FOREIGN)
		why = 0;
	else if (kind == HETMEM_UNKNOWN && !why)
		why = HETMEM_WHY_UNKNOWN_OWNER;

	if (!report->growing || run->end != start ||
	    run->location != piece->location || run->order != piece->order ||
	    run->why != why) {
		ret = hetmem_report_flush(report);
		if (ret)
			return ret;
		if (report->cmd->filled_runs == report->cmd->nr_runs ||
		    !report->room)
			return start;
		run = &report->runs[report->nr_runs];
		*run = (struct hetmem_run) {
			.start = start,
			.location = piece->location,
			.order = piece->order,
			.why = why,
		};
		report->growing = true;
	}

	if (nr_pages > report->room) {
		nr_pages = report->room;
		end = start + (nr_pages << PAGE_SHIFT);
	}
	report->room -= nr_pages;
	run->end = end;
	return end;
}

/* One piece, in parts if only some of it is pinned. As hetmem_report_run(). */
static long hetmem_report_piece(struct hetmem_report *report,
				unsigned long start, unsigned long end,
				const struct hetmem_piece *piece, u32 why)
{
	unsigned long part;
	long reached;
	u32 pinned;

	/* As hetmem_pin_at() does, for nearly everybody and at once. */
	if (!READ_ONCE(report->ctx->nr_pinned))
		return hetmem_report_run(report, start, end, piece, why);
	for (; start < end; start = part) {
		part = end;
		pinned = hetmem_pin_at(report->ctx, start, &part) ?
			 HETMEM_WHY_PINNED_BY_US : 0;
		reached = hetmem_report_run(report, start, part, piece,
					    why | pinned);
		if (reached < 0 || reached != part)
			return reached;
		/* What cannot be looked into is one piece, of any size. */
		if (fatal_signal_pending(current))
			return part;
		cond_resched();
	}
	return end;
}

/* Reports what the last step found. Return: 0, 1 to stop, or an errno. */
static int hetmem_report_step(struct hetmem_report *report,
			      const struct hetmem_walk *walk)
{
	unsigned long start = walk->start, end;
	unsigned int i;
	long reached;
	int ret;

	for (i = 0; i < walk->nr; i++) {
		end = hetmem_piece_end(walk, i, start);
		reached = hetmem_report_piece(report, start, end,
					      &walk->pieces[i], walk->why);
		if (reached < 0)
			return reached;
		if (reached != start) {
			ret = hetmem_report_total(report,
						  walk->pieces[i].location,
						  (reached - start) >>
						  PAGE_SHIFT);
			if (ret)
				return ret;
		}
		report->cmd->walk_end = reached;
		if (reached != end)
			return 1;
		start = end;
	}
	return 0;
}

/* The next step. Return: also -ESRCH the memory is gone. */
static int hetmem_report_look(struct hetmem_report *report,
			      struct hetmem_walk *walk)
{
	int ret;

	if (!mmget_not_zero(walk->mm))
		return -ESRCH;
	ret = hetmem_walk_step(walk, report->cmd->walk_end, report->cmd->end);
	mmput(walk->mm);
	return ret;
}

static int hetmem_report_finish(struct hetmem_report *report)
{
	struct hetmem_cmd_residency *cmd = report->cmd;
	int ret;

	ret = hetmem_report_flush(report);
	if (!ret)
		ret = hetmem_report_copy(report);
	if (ret)
		return ret;
	if (copy_to_user(u64_to_user_ptr(cmd->totals), report->totals,
			 report->nr_totals * sizeof(report->totals[0])))
		return -EFAULT;
	cmd->filled_totals = report->nr_totals;
	return 0;
}

/**
 * hetmem_residency - HETMEM_IOC_RESIDENCY
 * @ctx: context, of the caller or not
 * @cmd: validated
 * @partial: set if @cmd goes back to the caller in spite of an error
 */
int hetmem_residency(struct hetmem_context *ctx,
		     struct hetmem_cmd_residency *cmd, bool *partial)
{
	struct hetmem_report *report;
	struct hetmem_walk walk;
	int ret, err;

	if (cmd->kinds >> (HETMEM_FOREIGN + 1) ||
	    cmd->nr_totals > HETMEM_MAX_TOTALS)
		return -EINVAL;
	report = kzalloc(sizeof(*report), GFP_KERNEL_ACCOUNT);
	if (!report)
		return -ENOMEM;
	ret = hetmem_walk_init(&walk, ctx->mm);
	if (ret)
		goto out;

	report->ctx = ctx;
	report->cmd = cmd;
	if (cmd->nr_runs)
		report->kinds = cmd->kinds ? cmd->kinds : U32_MAX;
	report->room = cmd->max_pages ? cmd->max_pages : U64_MAX;
	cmd->walk_end = cmd->start;
	cmd->filled_runs = 0;
	cmd->filled_totals = 0;
	while (cmd->walk_end < cmd->end) {
		ret = hetmem_report_look(report, &walk);
		if (ret)
			break;
		ret = hetmem_report_step(report, &walk);
		if (ret)
			break;
		if (fatal_signal_pending(current)) {
			ret = -EINTR;
			break;
		}
		cond_resched();
	}

	if (ret >= 0 || ret == -EBUSY || ret == -EINTR) {
		*partial = ret < 0;
		err = hetmem_report_finish(report);
		if (err)
			ret = err;
		else if (ret > 0)
			ret = 0;
	}
	hetmem_walk_exit(&walk);
out:
	kfree(report);
	return ret;
}
