// SPDX-License-Identifier: GPL-2.0
/*
 * MIGRATE: moving pages on request.
 *
 * Design. The range is looked at in the steps of residency.c, and moved in
 * spans: one step, or several of one mapping whose pages are all small, since
 * what a driver's call costs does not depend on how much it moves. A span is
 * looked at, moved if there is something to move, and looked at again: what is
 * reported is where pages are, not what a driver believes it did. Pages move
 * through the driver of the device that they go to or come from. Pages of
 * drivers that are not registered come back by faulting, as the CPU would,
 * just those addresses that were seen on a device; hmm_range_fault() faults
 * everything up to the end of what it is given, so it is given no more.
 *
 * Locking. mmap_lock for reading is taken for each call of a driver's
 * operation, after the VMA was looked up again: between two steps, and
 * between the look and the move, anything may have happened. Under it only
 * hetmem_device_lock() (SRCU) is held.
 */
#include <linux/mm.h>
#include <linux/nodemask.h>
#include <linux/sched/signal.h>
#include <linux/uaccess.h>

#include "hetmem.h"
#include "trace.h"

/**
 * struct hetmem_migration - a MIGRATE command at work
 * @ctx: the context
 * @cmd: the command; its counters grow
 * @walk: of the range
 * @nid: node wanted on the host, or NUMA_NO_NODE
 * @max_span: bytes that may be moved between two looks, but for one step
 * @no_memory: the driver of the last span had no room
 * @forks: see hetmem_forks(); when the look at the span began
 * @id: of the device whose driver is going to move [@start, @end)
 * @start: equal to @end: nothing
 * @end: grows until something else comes
 */
struct hetmem_migration {
	struct hetmem_context *ctx;
	struct hetmem_cmd_migrate *cmd;
	struct hetmem_walk walk;
	int nid;
	unsigned long max_span;
	bool no_memory;
	unsigned int forks;
	u32 id;
	unsigned long start;
	unsigned long end;
};

/* How often the look at a span may become too old before it was used. */
#define HETMEM_SPAN_TRIES	8

static bool hetmem_to_host(const struct hetmem_migration *m)
{
	return HETMEM_LOC_KIND(m->cmd->location) == HETMEM_HOST;
}

/*
 * Memory that KSM may merge goes to no device. migrate_vma_setup() unmaps a
 * page where it finds it and maps it again by its reverse mapping; KSM drops
 * a page's reverse mapping when it comes by while the page is unmapped. So
 * the entry of a merged page can be left behind, for good.
 *
 * Merged pages are in other mappings, too: where one process of two that share
 * a page since a fork lets KSM merge, it is merged for both. KSM's reverse
 * mapping leads to that process and to its children, not to its parent. So a
 * step's merged pages are left out of what a driver is given.
 *
 * Between that look and the driver's call a page that is the process's own
 * cannot become merged: not in a mapping that KSM may not merge, unless a
 * fork shares it, which hetmem_forks() tells. One that is shared can, under
 * the other process's locks, and we cannot keep it out. So a step with such
 * a page is the last of its span, and a driver that took its time before it
 * unmapped anything has us look again: what is left is the time from the end
 * of one step to its move.
 */
static bool hetmem_leaves(const struct hetmem_migration *m, u32 why)
{
	return (why & HETMEM_WHY_LEAVE) ||
	       ((why & HETMEM_WHY_MERGEABLE) && !hetmem_to_host(m));
}

/*
 * Changes with every fork of @mm that shares pages with the child, and while
 * one is under way.
 */
static unsigned int hetmem_forks(const struct mm_struct *mm)
{
	return raw_read_seqcount(&mm->write_protect_seq);
}

static bool hetmem_has_arrived(const struct hetmem_migration *m, u32 location)
{
	if (!hetmem_to_host(m))
		return location == m->cmd->location;
	if (HETMEM_LOC_KIND(location) != HETMEM_HOST)
		return false;
	return m->nid == NUMA_NO_NODE || HETMEM_LOC_INDEX(location) == m->nid;
}

/* Pages of the step that are where they were asked to be. */
static u64 hetmem_count_arrived(const struct hetmem_migration *m)
{
	const struct hetmem_walk *walk = &m->walk;
	unsigned long start = walk->start, end;
	u64 pages = 0;
	unsigned int i;

	for (i = 0; i < walk->nr; i++) {
		end = hetmem_piece_end(walk, i, start);
		if (hetmem_has_arrived(m, walk->pieces[i].location))
			pages += (end - start) >> PAGE_SHIFT;
		start = end;
	}
	return pages;
}

/* Why the pages of @piece of the last step were left where they are. */
static u32 hetmem_why_left(const struct hetmem_migration *m,
			   const struct hetmem_piece *piece)
{
	u32 kind = HETMEM_LOC_KIND(piece->location);
	u32 why = m->walk.why;

	if (hetmem_leaves(m, why))
		return why;
	if (piece->traits & HETMEM_TRAIT_MERGED)
		return why | HETMEM_WHY_MERGEABLE;
	if (kind == HETMEM_UNKNOWN)
		return why | HETMEM_WHY_ABSENT;
	if (m->no_memory)
		return why | HETMEM_WHY_NO_MEMORY;
	if (hetmem_to_host(m) && kind == HETMEM_HOST)
		return why | HETMEM_WHY_OTHER_NODE;
	if (why & (HETMEM_WHY_FILE | HETMEM_WHY_SHMEM))
		return why;
	return why | (piece->traits & HETMEM_TRAIT_PART ?
		      HETMEM_WHY_LARGE_FOLIO : HETMEM_WHY_BUSY);
}

/*
 * Whether each page of @bytes could be listed, should it be left. Towards
 * devices kernels that split large folios leave none that would be.
 */
static bool hetmem_rest_has_room(const struct hetmem_migration *m,
				 unsigned long bytes)
{
	const struct hetmem_cmd_migrate *cmd = m->cmd;

	if (!cmd->nr_rest || (HETMEM_SPLITS_FOLIOS && !hetmem_to_host(m)))
		return true;
	return bytes >> PAGE_SHIFT <= cmd->nr_rest - cmd->filled_rest;
}

/* Pages that userspace can bring, or have split. Spans end where room does. */
static int hetmem_list_rest(struct hetmem_migration *m, unsigned long start,
			    unsigned long end, const struct hetmem_piece *piece,
			    u32 why)
{
	struct hetmem_run __user *rest = u64_to_user_ptr(m->cmd->rest);
	struct hetmem_run run = {
		.start = start,
		.end = end,
		.location = piece->location,
		.order = piece->order,
		.why = why,
	};

	if (m->cmd->filled_rest >= m->cmd->nr_rest)
		return 0;
	if (copy_to_user(&rest[m->cmd->filled_rest], &run, sizeof(run)))
		return -EFAULT;
	m->cmd->filled_rest++;
	return 0;
}

/* Counts the pages of the last step that were left. */
static int hetmem_count_left(struct hetmem_migration *m)
{
	const struct hetmem_walk *walk = &m->walk;
	unsigned long start = walk->start, end;
	struct hetmem_cmd_migrate *cmd = m->cmd;
	unsigned int i;
	u32 location, why;
	int ret;

	for (i = 0; i < walk->nr; i++, start = end) {
		end = hetmem_piece_end(walk, i, start);
		location = walk->pieces[i].location;
		if (hetmem_has_arrived(m, location))
			continue;
		why = hetmem_why_left(m, &walk->pieces[i]);
		if (!cmd->not_moved) {
			cmd->why = why;
			cmd->why_addr = start;
		}
		cmd->not_moved += (end - start) >> PAGE_SHIFT;
		if (HETMEM_LOC_KIND(location) != HETMEM_UNKNOWN &&
		    HETMEM_LOC_KIND(location) != HETMEM_UNMAPPED) {
			hetmem_total_add(HETMEM_TOTAL_FAILED,
					 (end - start) >> PAGE_SHIFT);
			hetmem_range_count(m->ctx, start, end - 1,
					   HETMEM_COUNT_FAILED, location);
		}
		if (!(why & (HETMEM_WHY_OTHER_NODE | HETMEM_WHY_LARGE_FOLIO)))
			continue;
		ret = hetmem_list_rest(m, start, end, &walk->pieces[i], why);
		if (ret)
			return ret;
	}
	return 0;
}

/*
 * Has @dev's driver move [start, end). A mapping that has changed since it
 * was looked at is left; the second look reports it. Return: what the driver
 * does; -EAGAIN also if a fork has made the look worthless.
 */
static int hetmem_call_driver(struct hetmem_migration *m,
			      struct hetmem_device *dev, unsigned long start,
			      unsigned long end)
{
	struct mm_struct *mm = m->walk.mm;
	struct vm_area_struct *vma;
	int ret = 0;

	if (mmap_read_lock_killable(mm))
		return -EINTR;
	vma = vma_lookup(mm, start);
	if (vma && end <= vma->vm_end &&
	    !hetmem_leaves(m, hetmem_vma_why(vma))) {
		if (hetmem_to_host(m) || hetmem_forks(mm) == m->forks)
			ret = hetmem_device_move(dev, vma, start, end,
						 hetmem_to_host(m), m->nid);
		else
			ret = -EAGAIN;
	}
	mmap_read_unlock(mm);
	return ret;
}

/* Has what is waiting for it moved. */
static int hetmem_move_now(struct hetmem_migration *m)
{
	unsigned long start = m->start;
	struct hetmem_device *dev;
	int idx, ret = -ENODEV;

	if (start == m->end)
		return 0;
	m->start = m->end;
	idx = hetmem_device_lock();
	dev = hetmem_device_find(m->id);
	if (dev)
		ret = hetmem_call_driver(m, dev, start, m->end);
	hetmem_device_unlock(idx);
	/* A driver that has gone has taken its pages to the host. */
	return ret == -ENODEV && hetmem_to_host(m) ? 0 : ret;
}

/*
 * The driver of device @id is to move [start, end), with what is before it if
 * that is waiting too. After an error nothing waits.
 */
static int hetmem_move(struct hetmem_migration *m, u32 id, unsigned long start,
		       unsigned long end)
{
	int ret;

	if (m->end != start || m->id != id) {
		ret = hetmem_move_now(m);
		if (ret)
			return ret;
	}
	if (m->start == m->end)
		m->start = start;
	m->id = id;
	m->end = end;
	return 0;
}

/* One address that cannot be faulted must not stop its neighbours. */
static int hetmem_piece_fault(struct hetmem_migration *m, unsigned long start,
			      unsigned long end)
{
	int ret;

	ret = hetmem_walk_fault(&m->walk, start, end);
	if (ret != -EFAULT)
		return ret;
	for (; start < end; start += PAGE_SIZE) {
		ret = hetmem_walk_fault(&m->walk, start, start + PAGE_SIZE);
		if (ret && ret != -EFAULT)
			return ret;
		if (fatal_signal_pending(current))
			return -EINTR;
	}
	return 0;
}

/* Moves the last step, or has it wait for what comes behind it. */
static int hetmem_step_move(struct hetmem_migration *m)
{
	bool populate = m->cmd->flags & HETMEM_MIGRATE_POPULATE;
	const struct hetmem_walk *walk = &m->walk;
	unsigned long start = walk->start, end;
	bool to_host = hetmem_to_host(m);
	u32 location, kind;
	unsigned int i;
	int ret = 0;

	for (i = 0; i < walk->nr && !ret; i++, start = end) {
		end = hetmem_piece_end(walk, i, start);
		location = to_host ? walk->pieces[i].location :
				     m->cmd->location;
		kind = HETMEM_LOC_KIND(location);
		if (walk->pieces[i].traits & HETMEM_TRAIT_MERGED)
			continue;
		if (kind == HETMEM_DEVICE)
			ret = hetmem_move(m, HETMEM_LOC_INDEX(location), start,
					  end);
		else if (kind == HETMEM_FOREIGN ||
			 (kind == HETMEM_UNKNOWN && populate))
			ret = hetmem_piece_fault(m, start, end);
	}
	return ret;
}

/* Looks at [start, end) again and counts. @before arrived earlier. */
static int hetmem_step_account(struct hetmem_migration *m, unsigned long start,
			       unsigned long end, u64 before)
{
	u64 arrived = 0;
	int ret = 0;

	if (!HETMEM_SPLITS_FOLIOS && !hetmem_to_host(m))
		m->walk.look_for |= HETMEM_TRAIT_PART;
	while (start < end) {
		ret = hetmem_walk_step(&m->walk, start, end);
		if (ret)
			break;
		arrived += hetmem_count_arrived(m);
		ret = hetmem_count_left(m);
		start = m->walk.end;
		m->cmd->walk_end = start;
		if (ret)
			break;
	}
	m->walk.look_for &= ~HETMEM_TRAIT_PART;
	m->cmd->already += min(before, arrived);
	m->cmd->moved += arrived - min(before, arrived);
	return ret;
}

/*
 * Whether the next step may be moved with the last one. Huge pages, and what
 * may become one, are a driver's business block by block. Shared pages do not
 * wait.
 */
static bool hetmem_step_goes_on(const struct hetmem_migration *m)
{
	const struct hetmem_walk *walk = &m->walk;
	bool any = false;
	unsigned int i;

	if (walk->end == walk->vma_end || walk->shared)
		return false;
	for (i = 0; i < walk->nr; i++) {
		if (walk->pieces[i].order)
			return false;
		any |= HETMEM_LOC_KIND(walk->pieces[i].location) !=
		       HETMEM_UNKNOWN;
	}
	return any;
}

/*
 * Goes on where a look had become too old, each step by itself. Where that
 * happens again and again the rest is left.
 */
static int hetmem_span_again(struct hetmem_migration *m, unsigned long start,
			     unsigned long end)
{
	unsigned int tries = 0;
	int ret = 0;

	while (!ret && start < end && tries < HETMEM_SPAN_TRIES) {
		m->forks = hetmem_forks(m->walk.mm);
		ret = hetmem_walk_step(&m->walk, start, end);
		if (!ret)
			ret = hetmem_step_move(m);
		if (!ret)
			ret = hetmem_move_now(m);
		if (!ret) {
			start = m->walk.end;
		} else if (ret == -EAGAIN) {
			ret = 0;
			tries++;
		}
	}
	/* What could not be looked at is left, like what could not be moved. */
	return ret == -EBUSY ? 0 : ret;
}

/* Looks at a span from @start on, moves it, and counts. */
static int hetmem_migrate_span(struct hetmem_migration *m, unsigned long start)
{
	unsigned long end = start;
	u64 arrived, before = 0;
	bool goes_on;
	int ret, err;

	m->forks = hetmem_forks(m->walk.mm);
	do {
		ret = hetmem_walk_step(&m->walk, end, m->cmd->end);
		if (ret == -EBUSY && end > start) {
			/* Moves what was looked at, and then fails. */
			ret = 0;
			break;
		}
		if (ret)
			break;
		arrived = hetmem_count_arrived(m);
		if (arrived == (m->walk.end - end) >> PAGE_SHIFT ||
		    hetmem_leaves(m, m->walk.why)) {
			/* The next span begins with it. */
			if (end > start)
				break;
			m->cmd->already += arrived;
			m->cmd->walk_end = m->walk.end;
			return hetmem_count_left(m);
		}
		before += arrived;
		goes_on = hetmem_step_goes_on(m);
		ret = hetmem_step_move(m);
		end = m->walk.end;
	} while (!ret && goes_on && end < m->cmd->end &&
		 end - start + HETMEM_BLOCK_SIZE <= m->max_span &&
		 hetmem_rest_has_room(m, end - start + HETMEM_BLOCK_SIZE));
	if (end == start)
		return ret;

	if (ret)
		m->start = m->end;
	else
		ret = hetmem_move_now(m);
	if (ret == -EAGAIN && !hetmem_to_host(m))
		ret = hetmem_span_again(m, start, end);
	m->no_memory = ret == -ENOMEM;
	if (m->no_memory)
		ret = 0;
	/* Also after a failure: what did move is said. */
	err = hetmem_step_account(m, start, end, before);
	m->no_memory = false;
	return ret ? ret : err;
}

/*
 * A device that is small for it would evict what has just come, and what is
 * there is counted afterwards.
 */
static unsigned long hetmem_device_span(const struct hetmem_device *dev)
{
	u64 room = min(dev->desc.capacity, READ_ONCE(dev->limit));

	return clamp_t(u64, ALIGN_DOWN(room / 8, HETMEM_BLOCK_SIZE),
		       HETMEM_BLOCK_SIZE, HETMEM_DEVICE_SPAN);
}

static int hetmem_migrate_check(struct hetmem_migration *m)
{
	u32 index = HETMEM_LOC_INDEX(m->cmd->location);
	struct hetmem_device *dev;
	int idx;

	m->nid = NUMA_NO_NODE;
	m->max_span = HETMEM_DEVICE_SPAN;
	switch (HETMEM_LOC_KIND(m->cmd->location)) {
	case HETMEM_DEVICE:
		if (m->cmd->flags)
			return -EINVAL;
		idx = hetmem_device_lock();
		dev = hetmem_device_find(index);
		if (dev)
			m->max_span = hetmem_device_span(dev);
		hetmem_device_unlock(idx);
		return dev ? 0 : -ENODEV;
	case HETMEM_HOST:
		if (index == HETMEM_NODE_ANY)
			return 0;
		if (index >= MAX_NUMNODES || !node_online(index))
			return -EOPNOTSUPP;
		m->nid = index;
		return 0;
	default:
		return -EOPNOTSUPP;
	}
}

/**
 * hetmem_migrate - HETMEM_IOC_MIGRATE
 * @ctx: of the caller, who holds a reference to the users of its mm
 * @cmd: validated but for the location
 * @partial: set if @cmd goes back to the caller in spite of an error
 */
int hetmem_migrate(struct hetmem_context *ctx, struct hetmem_cmd_migrate *cmd,
		   bool *partial)
{
	struct hetmem_migration m = {
		.ctx = ctx,
		.cmd = cmd,
	};
	int ret;

	ret = hetmem_migrate_check(&m);
	if (ret)
		return ret;
	ret = hetmem_walk_init(&m.walk, ctx->mm);
	if (ret)
		return ret;
	if (!hetmem_to_host(&m))
		m.walk.look_for = HETMEM_TRAIT_MERGED;

	cmd->why = 0;
	cmd->why_addr = 0;
	cmd->moved = 0;
	cmd->already = 0;
	cmd->not_moved = 0;
	cmd->walk_end = cmd->start;
	cmd->pinned = 0;
	cmd->filled_rest = 0;
	trace_hetmem_migrate_begin(ctx, cmd);
	while (cmd->walk_end < cmd->end) {
		unsigned long start = cmd->walk_end;

		/* A step lists at most a block's pages. */
		if (cmd->nr_rest &&
		    cmd->nr_rest - cmd->filled_rest < HETMEM_REST_MIN)
			break;
		ret = hetmem_migrate_span(&m, start);
		if (!ret && (cmd->flags & HETMEM_MIGRATE_PIN))
			ret = hetmem_pin_walk(ctx, &m.walk, cmd, start);
		if (ret)
			break;
		if (fatal_signal_pending(current)) {
			ret = -EINTR;
			break;
		}
		cond_resched();
	}
	*partial = true;
	trace_hetmem_migrate_end(ctx, cmd, ret);
	hetmem_walk_exit(&m.walk);
	return ret;
}
