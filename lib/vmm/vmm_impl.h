/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The VMM pool: where the runs of a pool come from, over a mappable provider.
 *
 * There is one reservation, in pages of the provider's granularity; memory is in handles of
 * some pages. A handle has one active mapping, whose addresses are part of a run, and
 * aliases: mappings where it was before. To move memory that is free to where it is
 * missing, its handle is mapped there first; the old addresses stay as an alias, mapped and
 * used for nothing else, until their uses are found complete. So the host never waits, and
 * fragmented address space never wastes memory.
 *
 * Holes are pages without a mapping: see holes.h. grow.c has the plan of what memory goes
 * where, spill.c moves live blocks to the host. All of it is under pool->lock.
 */
#ifndef HETMEM_VMM_VMM_IMPL_H
#define HETMEM_VMM_VMM_IMPL_H

#include "pool/source.h"
#include "vmm/holes.h"

/* Aliases that are left mapped: unmapping takes time, and nobody waits. */
#define VMM_ALIASES	4096

#define HANDLE_PINNED	1	/* stays where it is until destroy */
#define HANDLE_EXPORTED	2	/* goes away when it is free */
#define HANDLE_ASLEEP	4	/* has no memory: addresses only */
#define HANDLE_SMALL	32	/* of blocks of zone 0 */
#define HANDLE_STUCK	8	/* unmapped, and the driver did not release it */
#define HANDLE_HOST	64	/* spilled: host memory */
#define HANDLE_TORN	128	/* a move could not map it: it has memory and addresses */
#define HANDLE_MOVES	256	/* its contents are being copied */
#define HANDLE_CHOSEN	512	/* a parked unit that a commit takes: nobody else does */
#define HANDLE_RING	1024	/* of a ring: mapped again after it */
#define HANDLE_SHARED	4096	/* other processes can open it */
#define HANDLE_LENT	2048	/* pinned as long as it has other addresses, no longer */

/**
 * struct handle - memory
 * @handle: of the provider
 * @pages: of it
 * @mapping: the active one
 * @maps: mappings, aliases included
 * @candidate: while growth goes on: place in the list of free ones, + 1
 * @stamp: the plan it was last seen in; @host: instead, spilled: its part of host memory
 * @aliases: list of its aliases
 * @front: 0, or the list of handles that end runs that it is in, zone + 1;
 *	@front_next, @front_prev: in it
 * @seen, @priority: see movable.c; @others: see ring.c; @pins: ranges of pins.h with it
 */
struct handle {
	uint64_t handle;
	uint32_t pages, mapping, maps, flags, candidate;
	union { uint32_t stamp, host; };
	uint32_t aliases;
	uint32_t front, front_next, front_prev;
	uint32_t seen, others, pins;
	int priority;
};

/**
 * struct mapping - a handle's addresses
 * @handle, @page: of which, and the first
 * @half: no access was given, and the driver did not unmap it. An alias that is never
 *	used, only unmapped; or the mapping of a handle that is asleep.
 * @parked, @fresh, @owner: of a sparse block, see sparse.h; parked: @uses, @next, @prev likewise
 * @uses: alias: what must be complete before it can be unmapped
 * @next, @prev: alias: in the list, oldest first
 * @same_next, @same_prev: alias: in the list of its handle
 */
struct mapping {
	uint32_t handle;
	uint32_t page;
	bool half, parked, fresh;
	uint32_t owner;
	uint32_t uses;
	uint32_t next, prev;
	uint32_t same_next, same_prev;
};

/**
 * struct vmm - the reservation
 * @base, @nr: address, pages; @shift: of a page
 * @far: addresses of sparse blocks, which have pages [@nr + 1, @all), see sparse.c
 * @map: by page: its mapping, 0: a hole
 * @head, @tail: by page: the block that begins (ends) a run with it
 * @holes, @nr_holes: tree of the holes; leaves of it; @apart: by page: set aside
 * @cursor: by place: page where holes are looked for
 * @first, @last, @nr_aliases: list of aliases; @nr_half: of them
 * @fronts, @nr_fronts: by zone: ring of handles that end a run, or did
 * @join_next: arena where join_handles() goes on; @collect_next, @collect_below: arena
 *	and block where hm_vmm_collect() does; @ask_next: stream that is asked next
 * @more: a growth left out some of what is free
 * @ahead: bytes that blocks grew by while free memory could not be given back for them
 * @pages: held; @small: of blocks of zone 0
 * @park: contents while the pool sleeps, or NULL; @copying: mappings stay as they are
 * @spill: of blocks that move; @sparse: of sparse ones, or NULL: there was none; @others: alias.c
 */
struct vmm {
	uint64_t base;
	uint32_t nr;
	uint64_t far;
	uint32_t all;
	unsigned int shift;
	uint32_t *map, *head, *tail;
	struct table handles;
	struct table mappings;
	struct hole_node *holes;
	uint32_t nr_holes;
	uint64_t *apart;
	uint32_t cursor[NR_PLACES];
	uint32_t first, last, nr_aliases, nr_half;
	uint32_t fronts[NR_ZONES], nr_fronts[NR_ZONES];
	unsigned int join_next, collect_next, ask_next;
	struct block collect_below;
	bool more;
	uint64_t ahead;
	uint64_t pages;
	uint64_t small, nr_small;
	uint32_t stamp;
	struct hm_park *park;
	struct hm_spill *spill;
	struct hm_sparse *sparse;
	struct hm_others *others;
	bool copying;
};

static inline struct vmm *vmm_of(const struct pool *p)
{
	return p->memory;
}

static inline struct handle *handle_at(const struct vmm *v, uint32_t id)
{
	return (struct handle *)v->handles.base + id;
}

static inline struct mapping *mapping_at(const struct vmm *v, uint32_t id)
{
	return (struct mapping *)v->mappings.base + id;
}

static inline uint64_t page_addr(const struct vmm *v, uint32_t page)
{
	return page <= v->nr ? v->base + ((uint64_t)page << v->shift) :
		v->far + ((uint64_t)(page - v->nr - 1) << v->shift);
}

static inline uint32_t page_of(const struct vmm *v, uint64_t addr)
{
	const uint64_t page = (addr - v->base) >> v->shift;

	return page <= v->nr ? page : v->nr + 1 + ((addr - v->far) >> v->shift);
}

/* The pages of @b: the first, and the one after the last. */
static inline uint32_t first_page(const struct vmm *v, const struct block *b)
{
	return page_of(v, b->addr);
}

static inline uint32_t end_page(const struct vmm *v, const struct block *b)
{
	return page_of(v, block_end(b) - 1) + 1;
}

static inline struct handle *handle_of_page(const struct vmm *v, uint32_t page)
{
	return handle_at(v, mapping_at(v, v->map[page])->handle);
}

/**
 * struct vmm_free - a handle that a plan moves or creates
 * @handle, @page, @pages: which, where, of how many
 * @block: the free block that it is in. 0: it is created.
 * @to: page where it goes; @chosen: it does
 * @mapped: by the plan, there; @moved: its memory is no more in @block
 * @parked: instead of @block: a unit of a sparse block; @uses: of the alias that it leaves
 */
struct vmm_free {
	uint32_t handle, page, pages, block, to, uses;
	bool chosen, mapped, moved, parked;
};

/* map.c */

/* Counts memory of blocks of zone 0. */
void hm_vmm_set_small(struct vmm *v, uint32_t handle, bool small);
/* A handle of @pages, mapped nowhere. */
int hm_vmm_make_handle(struct pool *p, uint32_t pages, uint32_t *id);
/* Releases memory that is mapped nowhere, and forgets it. */
int hm_vmm_drop_handle(struct pool *p, uint32_t id);
/*
 * The first mapping of @handle, at @page, where there are holes. -EUCLEAN: it is half
 * mapped, an alias that waits to be unmapped, and then released.
 */
int hm_vmm_map_handle(struct pool *p, uint32_t handle, uint32_t page);
/* An alias of @handle at @page, where there are holes. -EUCLEAN likewise. */
int hm_vmm_alias(struct pool *p, uint32_t handle, uint32_t page);
/*
 * Unmaps what one of these two just mapped at @page, and releases a handle that is mapped
 * nowhere else. What cannot be unmapped is an alias that waits for it.
 */
void hm_vmm_unmap_new(struct pool *p, uint32_t page);
int hm_vmm_create(struct pool *p, uint32_t page, uint32_t pages);	/* both */
/*
 * @nr handles of one run, the last first, whose block is BUSY and keeps its name if anything is
 * left of it before them, have aliases at their @to, which become their active mappings: the
 * others are aliases, and no block. *@left: whether anything is.
 */
int hm_vmm_move(struct pool *p, struct vmm_free *list, size_t nr, bool *left);
/* Likewise, of a live block, which keeps the addresses. The alias is in use until @pos of @s. */
void hm_vmm_take(struct pool *p, const struct vmm_free *f, struct pool_stream *s, uint64_t pos);
/* It is unmapped everywhere and released; *@left likewise. */
int hm_vmm_release(struct pool *p, const struct vmm_free *f, bool *left);
/* So is host memory, at last by hm_vmm_trim(), and what has no memory in a sleep. false: no memory, nothing has changed. */
bool hm_vmm_discard(struct pool *p, const struct vmm_free *f, bool *left);
/* Unmaps aliases that are complete, the oldest first, until @keep are left: some of them. */
void hm_vmm_unalias(struct pool *p, uint32_t keep);
bool hm_vmm_unalias_handle(struct pool *p, uint32_t id);	/* of one: false, if any is left */
void hm_vmm_unalias_all(struct pool *p);	/* releases the lock now and then */
/* Unmaps those at [@page, @page + @pages). */
void hm_vmm_clear(struct pool *p, uint32_t page, uint32_t pages);
/*
 * Handles that are wholly free and not pinned, in blocks that @s may use: at once, or after
 * a wait that does not concern the host. Those in large blocks first: @want pages, if there
 * are so many, and some more. *@list is to be freed. Returns their number, -ENOMEM.
 */
ssize_t hm_vmm_collect(struct pool *p, struct pool_stream *s, bool wait, uint64_t want,
		       struct vmm_free **list);
/* A run ends with the block @b; lists its handle. */
void hm_vmm_add_front(struct pool *p, const struct block *b);
void hm_vmm_remove_front(struct vmm *v, uint32_t handle);
/* By block, from its end on: what is before keeps its name. */
int hm_vmm_by_block(const void *a, const void *b);
/* All blocks of @list, sorted by block, before one that is released could swallow another. */
void hm_vmm_take_all(struct pool *p, const struct vmm_free *list, size_t nr);
size_t hm_vmm_trim(struct pool *p, uint64_t keep);	/* as in struct source */
/* Gives back @bytes, if so many are free and complete. Returns the bytes. */
size_t hm_vmm_give_back(struct pool *p, uint64_t bytes);

/* join.c, pin.c, sleep.c, share.c: as in struct source. */
void hm_vmm_prepare(struct pool *p, struct pool_stream *s, bool order);
void hm_vmm_prepare_at_once(struct pool *p, struct pool_stream *s, bool order);
int hm_vmm_pin(struct pool *p, const void *ptr, bool on);
int hm_vmm_sleep(struct pool *p);
int hm_vmm_wake(struct pool *p);
int hm_vmm_export(struct pool *p, struct block *b, struct hm_ctl_export *arg);
bool hm_vmm_drop(struct pool *p, struct block *b);

#endif /* HETMEM_VMM_VMM_IMPL_H */
