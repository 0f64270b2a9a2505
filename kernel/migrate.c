// SPDX-License-Identifier: GPL-2.0
/*
 * MIGRATE: moving pages on request.
 *
 * Design. The range is moved in spans. A span is one step of walk.c, or
 * several of one mapping whose pages are all small, since a call of a driver's
 * operation has a cost that does not depend on how much it moves. A span is
 * looked at, moved, and looked at again: the report says where pages are, not
 * what a driver believes that it did. A step with nothing to move needs no
 * second look. Pages move through the driver of the device that they go to or
 * come from; neighbours for one device go in one call (the batch). Pages of
 * drivers that are not registered come back by faulting, as the CPU would,
 * just those addresses that were seen on a device: hmm_range_fault() faults
 * everything up to the end of what it is given.
 *
 * Memory that KSM may merge goes to no device. migrate_vma_setup() unmaps a
 * page where it finds it and maps it again by its reverse mapping; KSM drops
 * a page's reverse mapping when it comes by while the page is unmapped. So
 * the entry of a merged page can be left behind, for good. See "KSM" in
 * Documentation/kernel-interface.md for what remains of that.
 *
 * Locking. mmap_lock for reading is taken for each call of a driver's
 * operation, after the VMA was looked up again: between two steps, and
 * between the look and the move, anything may have happened. Under it only
 * the SRCU of device.c is taken.
 */
#include <linux/nodemask.h>

#include "device.h"
#include "trace.h"
#include "walk.h"

/**
 * struct migration - a MIGRATE command at work
 * @ctx: the context
 * @cmd: the command; its counters grow
 * @walk: of the range
 * @nid: node wanted on the host, or NUMA_NO_NODE
 * @max_span: bytes that may be moved between two looks, except by one step
 * @no_memory: the driver of the last span had no room
 * @id: of the device whose driver is to move the batch
 * @start: of the batch
 * @end: of the batch; equal to @start: empty
 */
struct migration {
	struct hetmem_context *ctx;
	struct hetmem_cmd_migrate *cmd;
	struct hetmem_walk walk;
	int nid;
	unsigned long max_span;
	bool no_memory;
	u32 id;
	unsigned long start;
	unsigned long end;
};

static bool hetmem_to_host(const struct migration *m)
{
	return HETMEM_LOC_KIND(m->cmd->location) == HETMEM_HOST;
}

/* Whether memory of a mapping stays where it is. */
static bool hetmem_leaves(const struct migration *m, u32 why)
{
	return (why & HETMEM_WHY_LEAVE) || ((why & HETMEM_WHY_MERGEABLE) && !hetmem_to_host(m));
}

static bool has_arrived(const struct migration *m, u32 location)
{
	const u32 kind = HETMEM_LOC_KIND(location);

	if (!hetmem_to_host(m))
		return location == m->cmd->location;
	if (kind != HETMEM_HOST)
		return kind == HETMEM_ZERO;
	return m->nid == NUMA_NO_NODE || HETMEM_LOC_INDEX(location) == m->nid;
}

/*
 * Why the pages of @piece of the last step were left where they are. @piece is
 * shortened to those that have that in common.
 */
static u32 why_left(const struct migration *m, struct hetmem_piece *piece)
{
	const u32 kind = HETMEM_LOC_KIND(piece->location);
	const u32 why = hetmem_piece_why(m->ctx, &m->walk, piece);

	if (hetmem_leaves(m, why) || kind == HETMEM_UNKNOWN)
		return why;
	if (m->no_memory)
		return why | HETMEM_WHY_NO_MEMORY;
	if (!(why & HETMEM_WHY_PINNED_BY_US) && hetmem_to_host(m) && kind == HETMEM_HOST)
		return why | HETMEM_WHY_OTHER_NODE;
	if (why & (HETMEM_WHY_FILE | HETMEM_WHY_SHMEM | HETMEM_WHY_PINNED_BY_US))
		return why;
	return why | (piece->mark ? HETMEM_WHY_LARGE_FOLIO : HETMEM_WHY_BUSY);
}

/*
 * Counts the pages of @piece as left. Pages that userspace can bring, or have
 * split, are listed; spans end where room for that does.
 */
static int count_part(struct migration *m, const struct hetmem_piece *piece, u32 why)
{
	struct hetmem_cmd_migrate *cmd = m->cmd;
	const struct hetmem_run run = {
		.start = piece->start,
		.end = piece->end,
		.location = piece->location,
		.order = piece->order,
		.why = why,
	};

	if (!cmd->not_moved) {
		cmd->why = why;
		cmd->why_addr = piece->start;
	}
	cmd->not_moved += hetmem_piece_pages(piece);
	if (!(why & (HETMEM_WHY_ABSENT | HETMEM_WHY_UNMAPPED))) {
		hetmem_total_add(pages_failed, hetmem_piece_pages(piece));
		guard(spinlock)(&m->ctx->hm->lock);
		hetmem_context_count(m->ctx, piece->start, piece->end - 1, HETMEM_COUNT_FAILED,
				     piece->location);
	}
	if (cmd->filled_rest >= cmd->nr_rest ||
	    !(why & (HETMEM_WHY_OTHER_NODE | HETMEM_WHY_LARGE_FOLIO)))
		return 0;
	return hetmem_copy_array(cmd->rest, cmd->rest_size, cmd->filled_rest++, &run, sizeof(run),
				 1);
}

static int count_left(struct migration *m, const struct hetmem_piece *piece)
{
	struct hetmem_piece part = *piece;
	int ret = 0;
	u32 why;

	for (; part.start < piece->end && !ret; part.start = part.end) {
		part.end = piece->end;
		why = why_left(m, &part);
		ret = count_part(m, &part, why);
	}
	return ret;
}

/* Holds pages that have arrived. On failure shortens @piece to those it holds. */
static int pin_piece(struct migration *m, struct hetmem_piece *piece)
{
	const struct hetmem_walk *walk = &m->walk;

	if (!(m->cmd->flags & HETMEM_MIGRATE_PIN) || (walk->why & HETMEM_WHY_LEAVE) ||
	    !has_arrived(m, piece->location))
		return 0;
	/* A file is not to be written to because it is looked at. */
	return hetmem_pin(m->ctx, piece->start, &piece->end, m->cmd->timeout_ms,
			  !(walk->shared && (walk->why & HETMEM_WHY_FILE)), &m->cmd->pinned);
}

/*
 * Accounts for the last step, piece by piece, and pins what it finds on the
 * host. @arrived grows by the pages that are where they were asked to be.
 */
static int step_account(struct migration *m, u64 *arrived)
{
	struct hetmem_piece piece = {};
	int ret, err;

	while (hetmem_piece_next(&m->walk, &piece)) {
		ret = pin_piece(m, &piece);
		if (has_arrived(m, piece.location)) {
			*arrived += hetmem_piece_pages(&piece);
		} else {
			err = count_left(m, &piece);
			ret = ret ? ret : err;
		}
		m->cmd->walk_end = piece.end;
		if (ret)
			return ret;
	}
	return 0;
}

/* Looks again and accounts, up to @end. @before arrived earlier. */
static int span_account(struct migration *m, unsigned long end, u64 before)
{
	u64 arrived = 0;
	int ret = 0;

	m->walk.look_for_parts = !HETMEM_SPLITS_FOLIOS && !hetmem_to_host(m);
	while (m->cmd->walk_end < end && !ret) {
		ret = hetmem_walk_step(&m->walk, m->cmd->walk_end, end);
		if (!ret)
			ret = step_account(m, &arrived);
	}
	m->walk.look_for_parts = false;
	m->cmd->already += min(before, arrived);
	m->cmd->moved += arrived - min(before, arrived);
	return ret;
}

/*
 * Has the driver move the batch, if any. A mapping that has changed since it was
 * looked at is left; the second look reports it.
 */
static int batch_flush(struct migration *m)
{
	struct mm_struct *mm = m->ctx->hm->notifier.mm;
	const unsigned long start = m->start;
	struct vm_area_struct *vma;
	int ret = 0;

	if (start == m->end)
		return 0;
	m->start = m->end;
	if (mmap_read_lock_killable(mm))
		return -EINTR;
	vma = vma_lookup(mm, start);
	if (vma && m->end <= vma->vm_end && !hetmem_leaves(m, hetmem_vma_why(vma)))
		ret = hetmem_device_move(m->id, vma, start, m->end, hetmem_to_host(m), m->nid);
	mmap_read_unlock(mm);
	/* A driver that has gone has taken its pages to the host. */
	return ret == -ENODEV && hetmem_to_host(m) ? 0 : ret;
}

/* Adds [@start, @end) for device @id. A batch that is not adjacent is sent first. */
static int batch_add(struct migration *m, u32 id, unsigned long start, unsigned long end)
{
	int ret = 0;

	if (m->end != start || m->id != id)
		ret = batch_flush(m);
	if (m->start == m->end)
		m->start = start;
	m->id = id;
	m->end = end;
	return ret;
}

/* Has a piece come to the host, or wait for that in the batch. */
static int piece_to_host(struct migration *m, const struct hetmem_piece *piece)
{
	unsigned long start = piece->start;
	int ret;

	switch (HETMEM_LOC_KIND(piece->location)) {
	case HETMEM_DEVICE:
		return batch_add(m, HETMEM_LOC_INDEX(piece->location), start, piece->end);
	case HETMEM_COHERENT:
		return hetmem_walk_pull(&m->walk, start, piece->end);
	case HETMEM_FOREIGN:
		ret = hetmem_walk_fault(&m->walk, start, piece->end);
		break;
	default:
		return 0;
	}
	if (ret == -EFAULT) {
		/* One address that cannot be faulted must not stop its neighbours, one that
		 * keeps changing does: it may have taken all the time that there is.
		 */
		for (ret = 0; start < piece->end && (!ret || ret == -EFAULT); start += PAGE_SIZE)
			ret = hetmem_walk_fault(&m->walk, start, start + PAGE_SIZE);
	}
	return ret == -EFAULT || ret == -EBUSY ? 0 : ret;
}

/* Moves the last step, as far as it does not wait in the batch. */
static int step_move(struct migration *m)
{
	struct hetmem_piece piece = {};
	int ret = 0;

	if (!hetmem_to_host(m))
		return batch_add(m, HETMEM_LOC_INDEX(m->cmd->location), m->walk.start, m->walk.end);
	/* The pieces stay as they are while pages are faulted. */
	while (hetmem_piece_next(&m->walk, &piece)) {
		ret = piece_to_host(m, &piece);
		if (ret)
			break;
	}
	return ret;
}

/**
 * struct outlook - what the last step means for its span
 * @arrived: pages that are where they were asked to be
 * @moves: others are to be moved
 * @goes_on: the next step may be moved with it. Huge pages, and what may become
 *	one, are a driver's business block by block.
 */
struct outlook {
	u64 arrived;
	bool moves;
	bool goes_on;
};

static struct outlook step_outlook(const struct migration *m)
{
	const struct hetmem_walk *walk = &m->walk;
	struct hetmem_piece piece = {};
	struct outlook o = {};
	bool huge = false;

	while (hetmem_piece_next(walk, &piece)) {
		huge |= piece.order;
		o.goes_on |= HETMEM_LOC_KIND(piece.location) != HETMEM_UNKNOWN;
		if (has_arrived(m, piece.location))
			o.arrived += hetmem_piece_pages(&piece);
		else
			o.moves |= !hetmem_to_host(m) || hetmem_on_device(piece.location);
	}
	o.moves &= !hetmem_leaves(m, walk->why);
	o.goes_on &= !huge && walk->end < min_t(u64, m->cmd->end, walk->vma_end);
	return o;
}

/*
 * Whether a span may become @bytes long. Each page that is left may have to be
 * listed; towards devices kernels that split large folios leave none that
 * would be.
 */
static bool span_has_room(const struct migration *m, u64 bytes)
{
	const struct hetmem_cmd_migrate *cmd = m->cmd;

	if (cmd->nr_rest && (hetmem_to_host(m) || !HETMEM_SPLITS_FOLIOS) &&
	    bytes >> PAGE_SHIFT > cmd->nr_rest - cmd->filled_rest)
		return false;
	return bytes <= m->max_span;
}

/* Looks at a span from walk_end on, moves it, and accounts for it. */
static int migrate_span(struct migration *m)
{
	struct hetmem_cmd_migrate *cmd = m->cmd;
	const unsigned long start = cmd->walk_end;
	unsigned long end = start;
	struct outlook o;
	u64 before = 0;
	int ret, err;

	do {
		ret = hetmem_walk_step(&m->walk, end, cmd->end);
		if (ret)
			break;
		o = step_outlook(m);
		if (!o.moves && end == start)
			return step_account(m, &cmd->already);
		/* The next span begins with a step that does not move. */
		if (!o.moves)
			break;
		before += o.arrived;
		end = m->walk.end;
		ret = step_move(m);
	} while (!ret && o.goes_on && span_has_room(m, end - start + HETMEM_BLOCK_SIZE));

	if (!ret)
		ret = batch_flush(m);
	m->start = m->end;
	m->no_memory = ret == -ENOMEM;
	/* Also after a failure: what did move is reported. */
	err = span_account(m, end, before);
	if (m->no_memory)
		ret = 0;
	m->no_memory = false;
	return ret ? ret : err;
}

static int migrate_check(struct migration *m)
{
	const struct hetmem_cmd_migrate *cmd = m->cmd;
	const u32 kind = HETMEM_LOC_KIND(cmd->location);
	const u32 index = HETMEM_LOC_INDEX(cmd->location);
	const bool pin = cmd->flags & HETMEM_MIGRATE_PIN;
	int ret;

	if (pin != !!cmd->timeout_ms || cmd->timeout_ms > HETMEM_PIN_TIMEOUT_MAX ||
	    (cmd->nr_rest && cmd->nr_rest < HETMEM_REST_MIN))
		return -EINVAL;
	ret = hetmem_check_array(cmd->nr_rest, cmd->rest_size, sizeof(struct hetmem_run));
	if (ret)
		return ret;

	m->nid = NUMA_NO_NODE;
	m->max_span = HETMEM_DEVICE_SPAN;
	if (kind == HETMEM_DEVICE) {
		if (pin)
			return -EINVAL;
		m->max_span = hetmem_device_span(index);
		return m->max_span ? 0 : -ENODEV;
	}
	if (kind != HETMEM_HOST)
		return -EOPNOTSUPP;
	if (index == HETMEM_NODE_ANY)
		return 0;
	if (index >= MAX_NUMNODES || !node_online(index))
		return -EOPNOTSUPP;
	m->nid = index;
	return 0;
}

/* HETMEM_IOC_MIGRATE; the caller holds a reference to the users of its mm. */
int hetmem_migrate(struct hetmem_context *ctx, void *arg)
{
	struct hetmem_cmd_migrate *cmd = arg;
	struct migration m = {
		.ctx = ctx,
		.cmd = cmd,
	};
	int ret;

	memset((void *)cmd + offsetof(typeof(*cmd), walk_end), 0,
	       offsetofend(typeof(*cmd), why) - offsetof(typeof(*cmd), walk_end));
	cmd->walk_end = cmd->start;
	cmd->filled_rest = 0;
	ret = migrate_check(&m);
	if (ret)
		return ret;
	ret = hetmem_walk_init(&m.walk, ctx->hm);
	if (ret)
		return ret;
	/* To a device goes also what was never touched, block by block. */
	m.walk.skip_gaps = hetmem_to_host(&m);
	trace_hetmem_migrate_begin(ctx, cmd->start, cmd->end, cmd->location, 0, 0);
	while (cmd->walk_end < cmd->end && !ret) {
		/* A step lists at most a block's pages. */
		if (cmd->nr_rest && cmd->nr_rest - cmd->filled_rest < HETMEM_REST_MIN)
			break;
		ret = migrate_span(&m);
		if (!ret && (fatal_signal_pending(current) || hetmem_job_stops(ctx)))
			ret = -EINTR;
		cond_resched();
	}
	trace_hetmem_migrate_end(ctx, cmd, ret);
	hetmem_walk_exit(&m.walk);
	return ret;
}
