// SPDX-License-Identifier: GPL-2.0
/*
 * MIGRATE: moving pages on request.
 *
 * Design. The range is handled in the steps of residency.c. A step is looked
 * at, moved if there is something to move, and looked at again: what is
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

#include "hetmem.h"

/**
 * struct hetmem_migration - a MIGRATE command at work
 * @ctx: the context
 * @cmd: the command; its counters grow
 * @walk: of the range
 * @nid: node wanted on the host, or NUMA_NO_NODE
 * @no_memory: the driver of the last step had no room
 */
struct hetmem_migration {
	struct hetmem_context *ctx;
	struct hetmem_cmd_migrate *cmd;
	struct hetmem_walk walk;
	int nid;
	bool no_memory;
};

/* Mappings that hetmem leaves alone. */
#define HETMEM_WHY_LEAVE (HETMEM_WHY_HUGETLB | HETMEM_WHY_SPECIAL |	\
			  HETMEM_WHY_UFFD | HETMEM_WHY_NOT_READABLE |	\
			  HETMEM_WHY_UNMAPPED)

static bool hetmem_to_host(const struct hetmem_migration *m)
{
	return HETMEM_LOC_KIND(m->cmd->location) == HETMEM_HOST;
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

/* Why pages at @location of the last step were left there. */
static u32 hetmem_why_left(const struct hetmem_migration *m, u32 location)
{
	u32 kind = HETMEM_LOC_KIND(location);
	u32 why = m->walk.why;

	if (why & HETMEM_WHY_LEAVE)
		return why;
	if (kind == HETMEM_UNKNOWN)
		return why | HETMEM_WHY_ABSENT;
	if (m->no_memory)
		return why | HETMEM_WHY_NO_MEMORY;
	if (hetmem_to_host(m) && kind == HETMEM_HOST)
		return why | HETMEM_WHY_OTHER_NODE;
	if (why & (HETMEM_WHY_FILE | HETMEM_WHY_SHMEM))
		return why;
	return why | HETMEM_WHY_BUSY;
}

/* Counts the pages of the last step that were left. */
static void hetmem_count_left(struct hetmem_migration *m)
{
	const struct hetmem_walk *walk = &m->walk;
	unsigned long start = walk->start, end;
	struct hetmem_cmd_migrate *cmd = m->cmd;
	unsigned int i;
	u32 location, why;

	for (i = 0; i < walk->nr; i++, start = end) {
		end = hetmem_piece_end(walk, i, start);
		location = walk->pieces[i].location;
		if (hetmem_has_arrived(m, location))
			continue;
		why = hetmem_why_left(m, location);
		if (!cmd->not_moved) {
			cmd->why = why;
			cmd->why_addr = start;
		}
		cmd->not_moved += (end - start) >> PAGE_SHIFT;
		if (HETMEM_LOC_KIND(location) != HETMEM_UNKNOWN &&
		    HETMEM_LOC_KIND(location) != HETMEM_UNMAPPED)
			hetmem_range_count(m->ctx, start, end - 1,
					   HETMEM_COUNT_FAILED);
	}
}

/*
 * Has @dev's driver move [start, end). A mapping that has changed since it
 * was looked at is left; the second look reports it.
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
	    !(hetmem_vma_why(vma) & HETMEM_WHY_LEAVE)) {
		if (hetmem_to_host(m))
			ret = hetmem_device_to_host(dev, vma, start, end,
						    m->nid);
		else
			ret = hetmem_device_to_device(dev, vma, start, end);
	}
	mmap_read_unlock(mm);
	return ret;
}

static int hetmem_step_to_device(struct hetmem_migration *m)
{
	struct hetmem_device *dev;
	int idx, ret = -ENODEV;

	idx = hetmem_device_lock();
	dev = hetmem_device_find(HETMEM_LOC_INDEX(m->cmd->location));
	if (dev)
		ret = hetmem_call_driver(m, dev, m->walk.start, m->walk.end);
	hetmem_device_unlock(idx);
	return ret;
}

static int hetmem_piece_to_host(struct hetmem_migration *m, u32 id,
				unsigned long start, unsigned long end)
{
	struct hetmem_device *dev;
	int idx, ret = 0;

	idx = hetmem_device_lock();
	dev = hetmem_device_find(id);
	/* A driver that has gone has taken its pages to the host. */
	if (dev)
		ret = hetmem_call_driver(m, dev, start, end);
	hetmem_device_unlock(idx);
	return ret == -ENODEV ? 0 : ret;
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

static int hetmem_step_to_host(struct hetmem_migration *m)
{
	bool populate = m->cmd->flags & HETMEM_MIGRATE_POPULATE;
	const struct hetmem_walk *walk = &m->walk;
	unsigned long start = walk->start, end;
	unsigned int i;
	u32 location;
	int ret = 0;

	for (i = 0; i < walk->nr && !ret; i++, start = end) {
		end = hetmem_piece_end(walk, i, start);
		location = walk->pieces[i].location;
		switch (HETMEM_LOC_KIND(location)) {
		case HETMEM_DEVICE:
			ret = hetmem_piece_to_host(m,
						   HETMEM_LOC_INDEX(location),
						   start, end);
			break;
		case HETMEM_FOREIGN:
			ret = hetmem_piece_fault(m, start, end);
			break;
		case HETMEM_UNKNOWN:
			if (populate)
				ret = hetmem_piece_fault(m, start, end);
			break;
		default:
			break;
		}
	}
	return ret;
}

/* Looks at [start, end) again and counts. @before arrived earlier. */
static int hetmem_step_account(struct hetmem_migration *m, unsigned long start,
			       unsigned long end, u64 before)
{
	u64 arrived = 0;
	int ret = 0;

	while (start < end) {
		ret = hetmem_walk_step(&m->walk, start, end);
		if (ret)
			break;
		arrived += hetmem_count_arrived(m);
		hetmem_count_left(m);
		start = m->walk.end;
		m->cmd->walk_end = start;
	}
	m->cmd->already += min(before, arrived);
	m->cmd->moved += arrived - min(before, arrived);
	return ret;
}

static int hetmem_migrate_step(struct hetmem_migration *m, unsigned long start)
{
	unsigned long end;
	u64 before;
	int ret, err;

	ret = hetmem_walk_step(&m->walk, start, m->cmd->end);
	if (ret)
		return ret;
	end = m->walk.end;
	before = hetmem_count_arrived(m);
	if (before == (end - start) >> PAGE_SHIFT ||
	    (m->walk.why & HETMEM_WHY_LEAVE)) {
		m->cmd->already += before;
		hetmem_count_left(m);
		m->cmd->walk_end = end;
		return 0;
	}

	if (hetmem_to_host(m))
		ret = hetmem_step_to_host(m);
	else
		ret = hetmem_step_to_device(m);
	m->no_memory = ret == -ENOMEM;
	if (m->no_memory)
		ret = 0;
	/* Also after a failure: what did move is said. */
	err = hetmem_step_account(m, start, end, before);
	m->no_memory = false;
	return ret ? ret : err;
}

static int hetmem_migrate_check(struct hetmem_migration *m)
{
	u32 index = HETMEM_LOC_INDEX(m->cmd->location);
	bool known;
	int idx;

	m->nid = NUMA_NO_NODE;
	switch (HETMEM_LOC_KIND(m->cmd->location)) {
	case HETMEM_DEVICE:
		if (m->cmd->flags & HETMEM_MIGRATE_POPULATE)
			return -EINVAL;
		idx = hetmem_device_lock();
		known = hetmem_device_find(index);
		hetmem_device_unlock(idx);
		return known ? 0 : -ENODEV;
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
 * @ctx: of the caller
 * @mm: its mm; the caller holds a reference to its users
 * @cmd: validated but for the location
 * @partial: set if @cmd goes back to the caller in spite of an error
 */
int hetmem_migrate(struct hetmem_context *ctx, struct mm_struct *mm,
		   struct hetmem_cmd_migrate *cmd, bool *partial)
{
	struct hetmem_migration m = {
		.ctx = ctx,
		.cmd = cmd,
	};
	int ret;

	ret = hetmem_migrate_check(&m);
	if (ret)
		return ret;
	ret = hetmem_walk_init(&m.walk, mm);
	if (ret)
		return ret;

	cmd->why = 0;
	cmd->why_addr = 0;
	cmd->moved = 0;
	cmd->already = 0;
	cmd->not_moved = 0;
	cmd->walk_end = cmd->start;
	while (cmd->walk_end < cmd->end) {
		ret = hetmem_migrate_step(&m, cmd->walk_end);
		if (ret)
			break;
		if (fatal_signal_pending(current)) {
			ret = -EINTR;
			break;
		}
		cond_resched();
	}
	*partial = true;
	hetmem_walk_exit(&m.walk);
	return ret;
}
