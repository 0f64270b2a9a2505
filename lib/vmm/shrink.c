// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The VMM pool: blocks that give back a part of their memory. Without room, the end is free
 * memory where it is. Memory at the end of a block with room, or inside any block, goes by whole
 * handles: they get other addresses, where they are free memory. The block keeps the old ones,
 * which are aliases until their uses are complete.
 */
#include <stdlib.h>

#include "vmm/grow.h"
#include "vmm/ring.h"
#include "vmm/sparse.h"
#include "vmm/spill.h"

/**
 * struct given - handles that a block gives back
 * @list, @nr: in the order of their addresses; @pages: of all
 */
struct given {
	struct vmm_free *list;
	size_t nr;
	uint64_t pages;
};

/* Whether memory of @h stays with its block. Free memory beside an alias is no other use. */
static int check_pinned(const struct handle *h)
{
	return (h->flags & (HANDLE_PINNED | HANDLE_LENT)) != HANDLE_PINNED ? 0 :
		hm_error(-EOPNOTSUPP, "shrink: memory that the block gives back is pinned for communication");
}

/* Whether @h can get another address. */
static int check_moves(const struct handle *h)
{
	return h->flags & HANDLE_LENT ?
		hm_error(-EBUSY, "shrink: a handle that the block gives back has an alias: free that first") :
		check_pinned(h);
}

/* The first page behind the handle that @page is of. */
static uint32_t behind(const struct vmm *v, uint32_t page)
{
	return mapping_at(v, v->map[page])->page + handle_of_page(v, page)->pages;
}

/* @rest was cut off of @b, and is free memory. */
static void release_end(struct pool *p, const struct pool_stream *s, const struct block *b,
			struct block *rest, uint64_t pos)
{
	__atomic_store_n(&rest->flags, block_zone(b), __ATOMIC_RELAXED);
	rest->stream = s->s.index;
	rest->pos = pos;
	hm_block_release(p, rest);
}

static int shrink_in_place(struct pool *p, struct pool_stream *s, struct block *b,
			   uint64_t units, uint64_t pos)
{
	const struct vmm *v = vmm_of(p);
	const uint32_t last = page_of(v, block_end(b) - 1);
	struct block *rest;
	uint32_t page;
	int err;

	if (!block_zone(b) || b->units - units < BLOCK_REST)
		return 0;
	for (page = page_of(v, b->addr + (units << UNIT_SHIFT)); page <= last; page = behind(v, page)) {
		err = check_pinned(handle_of_page(v, page));
		if (err)
			return err;
	}
	rest = hm_block_cut(p, b, units);
	if (!rest)
		return -ENOMEM;
	release_end(p, s, b, rest, pos);
	return 0;
}

/* The handles of @b that are wholly in [@first, @end), for addresses from page 0 on. */
static int list_whole(struct pool *p, struct given *g, const struct block *b, uint32_t first,
		      uint32_t end)
{
	const struct vmm *v = vmm_of(p);
	uint32_t page = hm_vmm_find_apart(v, first, end, false);
	const struct mapping *m;
	const struct handle *h;
	int err;

	if (page >= end)
		return 0;
	g->list = malloc((end - page) * sizeof(*g->list));
	if (!g->list)
		return hm_error(-ENOMEM, "shrink: no host memory");
	for (; page < end; page = hm_vmm_find_apart(v, m->page + h->pages, end, false)) {
		m = mapping_at(v, v->map[page]);
		h = handle_at(v, m->handle);
		if (m->page < first || m->page + h->pages > end)
			continue;
		err = check_moves(h);
		if (err)
			return err;
		g->list[g->nr++] = (struct vmm_free){
			.handle = m->handle, .page = m->page, .pages = h->pages,
			.block = block_id(p, b), .to = g->pages,
		};
		g->pages += h->pages;
	}
	return 0;
}

static int find_addresses(struct pool *p, struct given *g)
{
	uint32_t to;
	size_t i;

	if (!hm_vmm_find_hole(vmm_of(p), VMM_LARGE, g->pages, &to)) {
		hm_vmm_unalias(p, 0);
		if (!hm_vmm_find_hole(vmm_of(p), VMM_LARGE, g->pages, &to))
			return hm_error(-ENOMEM, "shrink: no addresses");
	}
	for (i = 0; i < g->nr; i++)
		g->list[i].to += to;
	return 0;
}

/* All of them or none. */
static int map_list(struct pool *p, const struct given *g)
{
	int err = 0;
	size_t i;

	for (i = 0; i < g->nr && !err; i++)
		err = hm_vmm_alias(p, g->list[i].handle, g->list[i].to);
	if (!err)
		return 0;
	/* The last was not mapped, or is an alias that waits to be unmapped. */
	for (i--; i--;)
		hm_vmm_unmap_new(p, g->list[i].to);
	return err == -EUCLEAN ? -EIO : err;
}

/* They are mapped at both addresses. It cannot fail: descriptors were counted. */
static void free_list(struct pool *p, struct pool_stream *s, const struct given *g, uint64_t pos)
{
	const uint32_t to = g->list[0].to;
	struct block *rest;
	size_t i;

	for (i = 0; i < g->nr; i++) {
		hm_vmm_take(p, &g->list[i], s, pos);
		hm_vmm_set_apart(vmm_of(p), g->list[i].page, g->list[i].pages, true);
	}
	rest = hm_vmm_add_run(p, 1, to, to + g->pages);
	rest->stream = s->s.index;
	rest->pos = pos;
	hm_block_release(p, rest);
}

/* *@pages of @b in [@first, @end), in whole handles, become free memory. */
static int free_pages(struct pool *p, struct pool_stream *s, struct block *b, uint32_t first,
		      uint32_t end, uint64_t pos, uint64_t *pages)
{
	struct given g = { 0 };
	int err = list_whole(p, &g, b, first, end);

	*pages = g.pages;
	if (!err && g.nr) {
		err = find_addresses(p, &g);
		if (!err)
			err = hm_vmm_has_descriptors(p, g.nr);
		if (!err)
			err = map_list(p, &g);
		if (!err)
			free_list(p, s, &g, pos);
	}
	free(g.list);
	return err;
}

/* Cuts off what @b has of the handle that @last is of, which is partly another block's. */
static int cut_shared(struct pool *p, struct block *b, uint32_t last, struct block **rest)
{
	const struct vmm *v = vmm_of(p);
	const uint32_t page = mapping_at(v, v->map[last])->page;
	int err = check_pinned(handle_of_page(v, last));

	if (err)
		return err;
	*rest = hm_block_cut(p, b, (page_addr(v, page) - b->addr) >> UNIT_SHIFT);
	return *rest ? 0 : -ENOMEM;
}

static int shrink_into_room(struct pool *p, struct pool_stream *s, struct block *b,
			    uint64_t units, uint64_t pos)
{
	struct vmm *v = vmm_of(p);
	const uint64_t stays = b->addr + (units << UNIT_SHIFT);
	const uint32_t kept = page_of(v, stays - 1), last = page_of(v, block_end(b) - 1);
	const bool whole = block_end(b) == page_addr(v, behind(v, last));
	struct block *rest = NULL;
	uint64_t pages;
	uint32_t page;
	int err = 0;

	if (hm_vmm_is_apart(v, kept))
		return hm_error(-EOPNOTSUPP, "shrink: the block gave back the memory at its new end");
	page = behind(v, kept);
	if (page > last && !whole)
		return shrink_in_place(p, s, b, units, pos);
	if (page_addr(v, page) - stays > UINT32_MAX - UNIT)
		return hm_error(-EOPNOTSUPP, "shrink: the handle at the new end is too large");
	if (page > last)
		return 0;
	if (!whole)
		err = cut_shared(p, b, last, &rest);
	if (!err)
		err = free_pages(p, s, b, page, end_page(v, b), pos, &pages);
	if (err) {
		if (rest)
			hm_block_join(p, b, rest);
		return err;
	}
	pages = end_page(v, b) - page;
	hm_block_shorten(p, b, (page_addr(v, page) - b->addr) >> UNIT_SHIFT);
	hm_vmm_set_apart(v, page, pages, true);
	if (rest)
		release_end(p, s, b, rest, pos);
	return 0;
}

/* The handle that @b begins in stays. So addresses before a run are never set aside for it. */
static int shrink_inside(struct pool *p, struct pool_stream *s, struct block *b, uint64_t from,
			 uint64_t to, uint64_t pos)
{
	struct vmm *v = vmm_of(p);
	uint32_t first = page_of(v, b->addr + from + page_addr(v, 1) - v->base - 1);
	uint64_t pages;
	int err;

	if (first < behind(v, first_page(v, b)))
		first = behind(v, first_page(v, b));
	err = free_pages(p, s, b, first, page_of(v, b->addr + to), pos, &pages);
	if (err || !pages)
		return err;
	/* Only contiguous memory moves. */
	if (b->flags & BLOCK_MOVABLE)
		hm_movable_forget(p, b);
	__atomic_store_n(&b->flags, b->flags | BLOCK_RESERVE, __ATOMIC_RELEASE);
	return 0;
}

int hm_vmm_shrink(struct pool *p, struct pool_stream *s, struct block *b, uint64_t from,
		  uint64_t to, uint64_t pos)
{
	if (hm_is_ring(vmm_of(p), b))
		return hm_error(-EOPNOTSUPP, "shrink: a ring keeps its size");
	hm_vmm_reap_others(p);
	if (b->flags & BLOCK_SPILLED || (b->flags & BLOCK_MOVABLE && hm_movable_moves(p, b)))
		return hm_error(-EBUSY, "shrink: the block is spilled, or moves");
	if (to < block_bytes(b))
		return block_zone(b) ? shrink_inside(p, s, b, from, to, pos) : 0;
	return b->flags & BLOCK_RESERVE ? shrink_into_room(p, s, b, units_of(from), pos) :
		shrink_in_place(p, s, b, units_of(from), pos);
}
