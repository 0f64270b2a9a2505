// SPDX-License-Identifier: GPL-2.0
/*
 * RESIDENCY: the steps of walk.c, as runs and totals for userspace.
 *
 * The caller's arrays are written between steps, when nothing is locked and
 * no user of the address space is held: the memory may be another process's,
 * and a caller with userfaultfd can make the writing take forever. Pieces that
 * have everything in common become one run, across steps too; runs go to the
 * caller by the dozen.
 */
#include <linux/sched/mm.h>

#include "device.h"
#include "walk.h"

/* Runs that go to the caller at once. */
#define HETMEM_REPORT_RUNS	48

/**
 * struct report - a RESIDENCY command at work
 * @ctx: the context
 * @cmd: the command
 * @walk: through the memory
 * @nr_runs: that are not in the caller's array yet; the last one may grow
 * @runs: these
 * @nr_totals: locations seen
 * @totals: pages seen there
 */
struct report {
	struct hetmem_context *ctx;
	struct hetmem_cmd_residency *cmd;
	struct hetmem_walk walk;
	unsigned int nr_runs;
	struct hetmem_run runs[HETMEM_REPORT_RUNS];
	unsigned int nr_totals;
	struct hetmem_total totals[HETMEM_MAX_TOTALS];
};

static int report_total(struct report *report, u32 location, u64 nr_pages)
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

/* Runs that are finished go to the caller. */
static int report_flush(struct report *report)
{
	struct hetmem_cmd_residency *cmd = report->cmd;
	const unsigned int nr = report->nr_runs;

	report->nr_runs = 0;
	cmd->filled_runs += nr;
	return hetmem_copy_array(cmd->runs, cmd->run_size, cmd->filled_runs - nr, report->runs,
				 sizeof(report->runs[0]), nr);
}

/* Adds @part to the runs. Return: 0, 1: the caller has room for no more, or an errno. */
static int report_run(struct report *report, const struct hetmem_piece *part, u32 why)
{
	struct hetmem_run *run = report->runs;
	int ret;

	if (report->nr_runs)
		run += report->nr_runs - 1;
	if (!report->nr_runs || run->end != part->start || run->location != part->location ||
	    run->order != part->order || run->why != why) {
		if (report->cmd->filled_runs + report->nr_runs == report->cmd->nr_runs)
			return 1;
		if (report->nr_runs == ARRAY_SIZE(report->runs)) {
			ret = report_flush(report);
			if (ret)
				return ret;
		}
		run = &report->runs[report->nr_runs++];
		*run = (struct hetmem_run) {
			.start = part->start,
			.location = part->location,
			.order = part->order,
			.why = why,
		};
	}
	run->end = part->end;
	return 0;
}

/*
 * A piece, or what is left of it. @part is shortened to what has one reason. As
 * report_run().
 */
static int report_part(struct report *report, struct hetmem_piece *part)
{
	int ret = 0;
	u32 why;

	if (report->cmd->nr_runs) {
		why = hetmem_piece_why(report->ctx, &report->walk, part);
		ret = report_run(report, part, hetmem_on_device(part->location) ? 0 : why);
	}
	if (!ret)
		ret = report_total(report, part->location, hetmem_piece_pages(part));
	if (!ret)
		report->cmd->walk_end = part->end;
	return ret;
}

/* Reports what the last step found. As report_run(). */
static int report_step(struct report *report)
{
	struct hetmem_piece piece = {}, part;
	int ret = 0;

	while (!ret && hetmem_piece_next(&report->walk, &piece)) {
		for (part = piece; part.start < piece.end && !ret; part.start = part.end) {
			part.end = piece.end;
			ret = report_part(report, &part);
		}
	}
	return ret;
}

/* The next step. Return: also -ESRCH the memory is gone. */
static int report_look(struct report *report)
{
	struct mm_struct *mm = report->ctx->hm->notifier.mm;
	int ret;

	if (!mmget_not_zero(mm))
		return -ESRCH;
	ret = hetmem_walk_step(&report->walk, report->cmd->walk_end, report->cmd->end);
	mmput(mm);
	if (!ret)
		ret = report_step(report);
	if (!ret && fatal_signal_pending(current))
		ret = -EINTR;
	return ret;
}

static int report_check(const struct hetmem_cmd_residency *cmd)
{
	int ret;

	if (cmd->nr_totals > HETMEM_MAX_TOTALS)
		return -EINVAL;
	ret = hetmem_check_array(cmd->nr_runs, cmd->run_size, sizeof(struct hetmem_run));
	return ret ? ret : hetmem_check_array(cmd->nr_totals, cmd->total_size,
					      sizeof(struct hetmem_total));
}

/* HETMEM_IOC_RESIDENCY */
int hetmem_residency(struct hetmem_context *ctx, void *arg)
{
	struct hetmem_cmd_residency *cmd = arg;
	struct report *report;
	int ret, err;

	cmd->walk_end = cmd->start;
	cmd->filled_runs = 0;
	cmd->filled_totals = 0;
	ret = report_check(cmd);
	if (ret)
		return ret;
	report = kzalloc(sizeof(*report), HETMEM_GFP);
	if (!report)
		return -ENOMEM;
	ret = hetmem_walk_init(&report->walk, ctx->hm);
	if (ret)
		goto out;

	report->ctx = ctx;
	report->cmd = cmd;
	report->walk.skip_gaps = true;
	report->walk.tell_swapped = true;
	while (cmd->walk_end < cmd->end && !ret) {
		ret = report_look(report);
		cond_resched();
	}
	if (ret >= 0 || ret == -EINTR) {
		err = report_flush(report);
		if (!err)
			err = hetmem_copy_array(cmd->totals, cmd->total_size, 0, report->totals,
						sizeof(report->totals[0]), report->nr_totals);
		cmd->filled_totals = report->nr_totals;
		ret = err ? err : min(ret, 0);
	}
	hetmem_walk_exit(&report->walk);
out:
	kfree(report);
	return ret;
}
