/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * Blocks of a VMM pool that move. spill.c moves the memory of a block to the host and back;
 * parts.c has the host memory; movable.c remembers the movable blocks, and chooses those
 * that move by themselves.
 *
 * Locking: a move holds pool->sleep_lock, and pool->lock only while descriptors change:
 * never during a copy. The wait for a stream comes before, without both: the stream may
 * need another thread that moves blocks. A block that moves is LIVE, or BUSY if it was
 * freed; nobody else changes its handles then.
 */
#ifndef HETMEM_VMM_SPILL_H
#define HETMEM_VMM_SPILL_H

#include "core/move.h"
#include "vmm/vmm_impl.h"

/**
 * struct host_part - a handle of host memory
 * @handle: of the provider
 * @addr: where it is always mapped, to copy from and to; behind it are addresses for
 *	device memory of the same size, of a fetch
 * @pages: of it
 * @next: of those of its size that are not in use
 * @mapped: the handle is mapped at @addr
 * @staged: device memory is mapped behind it, and could not be unmapped
 */
struct host_part {
	uint64_t handle;
	uint64_t addr;
	uint32_t pages;
	uint32_t next;
	bool mapped;
	bool staged;
};

/* Parts of one size that are not in use. */
struct host_size {
	uint32_t pages;
	uint32_t first;
};

/* See spill.c, pin.c. */
struct move;
struct stage;

/**
 * struct movable - a movable block
 * @block: its name, 0: the entry is not in use; @next: of those
 * @pinned: it stays
 * @birth: never reused; grows
 * @spilled_at: when it was spilled, in moves; 0: it is not
 * @bytes: of the block when it was declared: it may grow
 * @priority: see hetmem_priority()
 * @move: under way, or NULL; @begun: it ends later; @joined: moves of blocks that share a
 *	handle with it
 * @freed: while any of these was
 * @returned: the pool fetched it in this step
 */
struct movable {
	uint32_t block;
	uint32_t next;
	int priority;
	uint64_t birth;
	uint64_t bytes;
	uint64_t spilled_at;
	struct move *move;
	unsigned int joined;
	bool begun;
	bool freed;
	bool returned;
	bool pinned;
};

struct observer {
	hetmem_remap_fn fn;
	void *arg;
};

/* Addresses that observers were told of. */
struct told {
	uint64_t addr;
	uint64_t bytes;
};

/**
 * struct hm_spill - what a pool has for moves
 *
 * Under pool->lock:
 * @movables: entries; @nr_movables: in use; @births: so far
 * @moves: so far
 * @bytes: of movable blocks; @high, @low: most and least of the step; @low_birth: @births
 *	at the least; @step_birth: of the first block of the step
 * @ceiling: bytes that the pool held when the device was full; 0: it was not yet
 * @margin: bytes that stay free when blocks return; @tried_on, @tried_moves, @tried_room:
 *	none did on that stream (serial), after these moves, with this room
 * @hosts: parts; @sizes, @nr_sizes: those that are not in use; @broken: list of those that
 *	the driver did not give up
 * @host_bytes, @host_peak: of parts
 * @spilled, @spilled_peak: of parts in use; @held: of these, what is of no block
 * @out_total, @in_total: bytes that were moved
 * @stuck, @nr_stuck: device memory that the driver did not release, and its pages
 *
 * Under pool->sleep_lock:
 * @out, @in: streams of the copies; @pins: of those of pin.c; @stages: see there
 * @events, @nr_events: not in use
 * @pending: moves that were begun
 * @observers, @nr_observers; @told, @nr_told: of a sleep or a wake
 */
struct hm_spill {
	struct table movables;
	uint32_t nr_movables;
	uint64_t births;
	uint64_t moves;
	uint64_t bytes, high, low;
	uint64_t low_birth, step_birth;
	uint64_t ceiling;
	uint64_t margin;
	uint64_t tried_on, tried_moves, tried_room;
	struct table hosts;
	struct host_size *sizes;
	unsigned int nr_sizes;
	uint32_t broken;
	uint64_t host_bytes, host_peak;
	uint64_t spilled, spilled_peak, held;
	uint64_t out_total, in_total;
	struct {
		uint64_t handle;
		uint32_t pages;
	} *stuck;
	unsigned int nr_stuck;
	CUstream out, in, pins;
	struct stage *stages;
	CUevent *events;
	unsigned int nr_events;
	struct move *pending;
	struct observer *observers;
	unsigned int nr_observers;
	struct told *told;
	size_t nr_told;
};

static inline struct hm_spill *spill_of(const struct pool *p)
{
	return vmm_of(p)->spill;
}

static inline uint64_t bytes_of(const struct pool *p, uint32_t pages)
{
	return (uint64_t)pages << vmm_of(p)->shift;
}

static inline struct host_part *part_at(const struct hm_spill *sp, uint32_t id)
{
	return (struct host_part *)sp->hosts.base + id;
}

static inline struct movable *movable_at(const struct hm_spill *sp, uint32_t id)
{
	return (struct movable *)sp->movables.base + id;
}

/* Of a LIVE block that is movable, or one that moves. */
static inline struct movable *movable_of(const struct hm_spill *sp, const struct block *b)
{
	return movable_at(sp, b->right);
}

/* spill.c */

/* Makes min_host= too. After an error hm_spill_free() follows. */
int hm_spill_init(struct pool *p, struct hm_spill **out);
/*
 * Ends what is under way and gives up all that is of the driver, unless @forget: first
 * what moves use, then, with all handles of the pool gone, host memory.
 */
void hm_spill_stop(struct pool *p, bool forget);
void hm_spill_free(struct pool *p, bool forget);
/* Ends moves whose copies are complete; @wait: all of them. With both locks. */
void hm_spill_end(struct pool *p, bool wait);
/*
 * Moves blocks of @s, @nr of them, which are in @ids and not moving, with both locks, and
 * releases pool->lock. Blocks that cannot move are left out. Handles of several blocks move,
 * too; with @by_priority, not with a block whose priority is lower than another one's.
 * *@bytes: that moved. Returns the first error.
 */
int hm_spill_move(struct pool *p, struct pool_stream *s, const uint32_t *ids, size_t nr,
		  bool spill, bool by_priority, uint64_t *bytes);
/*
 * These wait with pool->lock alone, which they release: for all work on @s; for the copies of
 * all pending moves. -EBUSY: wait= is over; -EIO.
 */
int hm_spill_wait(struct pool *p, struct pool_stream *s);
int hm_spill_wait_pending(struct pool *p);
/* Why the live block @b cannot move now: -EBUSY; or 0 and its stream. */
int hm_spill_check(struct pool *p, const struct block *b, struct pool_stream **s);
/*
 * The next handle of @b from *@page on, or NULL: @b has no more. Its first page is *@at, and
 * *@page is behind it.
 */
struct handle *hm_spill_next_handle(const struct pool *p, const struct block *b,
				    uint32_t *page, uint32_t *at);
/* Whether the handle at @page is wholly in @b. */
bool hm_spill_is_whole(const struct pool *p, const struct block *b, uint32_t page);

/* As in struct source. */
int hm_spill_ctl(struct pool *p, struct hm_ctl_move *arg);
int hm_spill_observe(struct pool *p, const struct hm_ctl_observe *arg);
void hm_spill_tell(struct pool *p, enum hetmem_remap_cause cause, bool after, int err);

/* told.c: fills sp->told for a sleep or a wake. With both locks, may release pool->lock. */
int hm_spill_find_told(struct pool *p, bool sleep);

/* parts.c, with pool->lock, which all but put and free may release. */

int hm_parts_init(struct pool *p);
void hm_parts_free(struct pool *p, bool forget);
/* A part of @pages for use. -ENOMEM, -EOPNOTSUPP; the driver's error. */
int hm_part_get(struct pool *p, uint32_t pages, uint32_t *id);
void hm_part_put(struct pool *p, uint32_t id);
/* Gives back a part that is not in use, and not of min_host=. Whether there may be more. */
bool hm_parts_shrink(struct pool *p);

/* movable.c */

/* As in struct source. */
void hm_movable_declare(struct pool *p, struct block *b, int priority);
bool hm_movable_forget(struct pool *p, struct block *b);
bool hm_movable_relieve(struct pool *p, struct pool_stream *s, uint64_t bytes);
void hm_movable_regain(struct pool *p, struct pool_stream *s);
/* Whether the movable block @b is under way. */
static inline bool hm_movable_moves(const struct pool *p, const struct block *b)
{
	return movable_of(spill_of(p), b)->move || movable_of(spill_of(p), b)->joined;
}
/* @m has ended its move: it is freed now, if it was meanwhile. */
void hm_movable_ended(struct pool *p, struct movable *m);

#endif /* HETMEM_VMM_SPILL_H */
