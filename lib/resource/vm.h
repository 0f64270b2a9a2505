/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The VMM pool: where the runs of a pool come from, over a mappable provider.
 *
 * There is one reservation, in pages of the provider's granularity; memory is
 * in handles of some pages. A handle has one active mapping, whose addresses
 * are part of a run, and aliases: mappings where it was before. To move memory
 * that is free to where it is missing, its handle is mapped there first; the
 * old addresses stay as an alias, until what used them is found complete, and
 * are mapped or used for nothing else meanwhile. So nothing ever waits, and
 * fragmentation of addresses is none of memory.
 *
 * Holes are pages without a mapping. Growth goes behind a free block that
 * ends a run, if the hole there is large enough, else to the next hole that
 * is, round and round the reservation.
 *
 * All of it is under pool->lock.
 */
#ifndef HETMEM_RESOURCE_VM_H
#define HETMEM_RESOURCE_VM_H

#include "resource/pool_impl.h"

/* Aliases that are left mapped: unmapping takes time, and nobody waits. */
#define VM_ALIASES	4096

#define HANDLE_PINNED	1	/* stays where it is until destroy */
#define HANDLE_EXPORTED	2	/* goes away when it is free */
#define HANDLE_ASLEEP	4	/* has no memory: addresses only */
#define HANDLE_RESERVED	16	/* addresses set aside, no memory ever */
#define HANDLE_STUCK	8	/* unmapped, and the driver did not release it */

/**
 * struct handle - memory
 * @handle: of the provider
 * @pages: of it
 * @mapping: the active one
 * @maps: mappings, aliases included
 * @candidate: while growth goes on: place in the list of free ones, + 1
 * @stamp: the plan it was last seen in
 */
struct handle {
	uint64_t handle;
	uint32_t pages;
	uint32_t mapping;
	uint32_t maps;
	uint32_t flags;
	uint32_t candidate;
	uint32_t stamp;
};

/**
 * struct mapping - a handle's addresses
 * @handle: of which
 * @page: the first
 * @uses: alias: what must be complete before it can be unmapped
 * @next, @prev: alias: in the list, oldest first
 */
struct mapping {
	uint32_t handle;
	uint32_t page;
	uint32_t uses;
	uint32_t next;
	uint32_t prev;
};

/**
 * struct vm - the reservation
 * @base, @nr: address, pages; @shift: of a page
 * @map: by page: its mapping, 0: a hole
 * @head, @tail: by page: the block that begins (ends) a run with it
 * @cursor: by zone: page where holes are looked for
 * @first, @last: list of aliases; @nr_aliases
 * @pages: held
 */
struct vm {
	uint64_t base;
	uint32_t nr;
	unsigned int shift;
	uint32_t *map;
	uint32_t *head;
	uint32_t *tail;
	size_t map_bytes;
	struct table handles;
	struct table mappings;
	uint32_t cursor[NR_ZONES];
	uint32_t first;
	uint32_t last;
	uint32_t nr_aliases;
	uint64_t pages;
	uint32_t stamp;
};

static inline struct handle *handle_at(const struct vm *v, uint32_t id)
{
	return (struct handle *)v->handles.base + id;
}

static inline struct mapping *mapping_at(const struct vm *v, uint32_t id)
{
	return (struct mapping *)v->mappings.base + id;
}

static inline uint64_t page_addr(const struct vm *v, uint32_t page)
{
	return v->base + ((uint64_t)page << v->shift);
}

static inline uint32_t page_of(const struct vm *v, uint64_t addr)
{
	return (addr - v->base) >> v->shift;
}

static inline struct handle *handle_of_page(const struct vm *v, uint32_t page)
{
	return handle_at(v, mapping_at(v, v->map[page])->handle);
}

/* A handle that is wholly free, the free block that it is in, where it goes. */
struct vm_free {
	uint32_t handle;
	uint32_t page;
	uint32_t pages;
	uint32_t block;
	uint32_t to;
	bool chosen;
	bool moved;
};

/* vm_map.c: handles and mappings */

/* A handle of @pages mapped at @page, where there are holes. */
int hm_vm_create(struct pool *p, uint32_t page, uint32_t pages);
/*
 * The handle of @f, whose block is BUSY and keeps its name if anything is
 * left of it before the handle, is mapped at @page as well: what was its
 * active mapping is an alias, and no block. *@left: whether it was so. If
 * there is an alias of it at @page already, the driver is not asked.
 */
int hm_vm_remap(struct pool *p, const struct vm_free *f, uint32_t page,
		bool *left);
/* The same, but it is unmapped everywhere and released. */
int hm_vm_release(struct pool *p, const struct vm_free *f, bool *left);
/*
 * Unmaps aliases that are complete, the oldest first, until at most @keep
 * are left. Those of @handle only, if that is not 0.
 */
void hm_vm_unalias(struct pool *p, uint32_t keep, uint32_t handle);
/*
 * All handles that are wholly free and not pinned, in blocks that @s may
 * use: at once, or after a wait that does not concern the host. *@list is to
 * be freed. Returns their number, -ENOMEM.
 */
ssize_t hm_vm_collect(struct pool *p, struct pool_stream *s, bool wait,
		      struct vm_free **list);

#define VM_PIECES	64

/* Addresses of a plan: a free block, or holes to be filled. */
struct vm_piece {
	uint32_t block;
	uint32_t page;
	uint32_t pages;
};

/**
 * struct vm_plan - where to grow: an interval without live blocks
 * @list, @nr: wholly free handles
 * @pieces: of the interval that are not aliases, in order
 * @page, @end: what of it is whole pages outside of the first block
 * @fresh: pages of holes
 * @room: units of the first block
 * @zone: of the blocks
 */
struct vm_plan {
	struct vm_free *list;
	size_t nr;
	struct vm_piece pieces[VM_PIECES];
	unsigned int nr_pieces;
	uint32_t page;
	uint32_t end;
	uint32_t fresh;
	uint64_t room;
	unsigned int zone;
};

/*
 * vm_plan.c: @wait: memory that @s has to be ordered behind counts. @plan is
 * to be freed if it is 0. -ENOMEM: no addresses.
 */
int hm_vm_plan(struct pool *p, struct pool_stream *s, unsigned int zone,
	       uint64_t units, bool wait, struct vm_plan *plan);
void hm_vm_plan_free(struct pool *p, struct vm_plan *plan);

/* vm_grow.c: what a source's grow is. */
int hm_vm_grow(struct pool *p, struct pool_stream *s, unsigned int zone,
	       uint64_t units);

/* vm_sleep.c, vm_room.c: as in struct source. */
int hm_vm_pin(struct pool *p, struct block *b);
int hm_vm_sleep(struct pool *p);
int hm_vm_wake(struct pool *p);
int hm_vm_export(struct pool *p, struct block *b, struct hm_ctl_export *arg);
void hm_vm_drop(struct pool *p, struct block *b);
int hm_vm_reserve(struct pool *p, uint64_t units, uint64_t reserve,
		  struct block **out);
void hm_vm_unreserve(struct pool *p, struct block *b);
int hm_vm_enlarge(struct pool *p, struct pool_stream *s, struct block *b,
		  uint64_t units);

/* vm_join.c: makes handles movable that are free for several streams. */
void hm_vm_join(struct pool *p, struct pool_stream *s);

/* vm.c */

/* How many holes there are from @page on, at most @want. */
uint32_t hm_vm_holes(const struct vm *v, uint32_t page, uint32_t want);
/* @want holes in a row; false: there are none. */
bool hm_vm_find_hole(struct vm *v, unsigned int zone, uint32_t want,
		     uint32_t *page);
/* By block, from its end on: what is before keeps its name. */
int hm_vm_by_block(const void *a, const void *b);
/* All blocks of @list, before one that is released could swallow another. */
void hm_vm_take_all(struct pool *p, const struct vm_free *list, size_t nr);
size_t hm_vm_trim(struct pool *p, uint64_t keep);

#endif /* HETMEM_RESOURCE_VM_H */
