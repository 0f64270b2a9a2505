// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The VMM pool: which pages of the reservation are holes.
 *
 * A binary tree over the pages. Each node has the longest hole in its pages, and
 * the holes that these begin and end with, as what they lack of the node's length:
 * memory that was never touched is a hole. A node whose pages are all the same is
 * right for all below it, which may be stale. Every search, and every change, of
 * any number of pages, visits a few nodes of each level.
 *
 * Addresses of a block with room are set aside behind it, by a bit for each page, and so
 * are those in a block that gave back memory there. They may have aliases of memory that the
 * block gave back: once unmapped, these are no holes either.
 */
#include <string.h>
#include <sys/mman.h>
#include <wchar.h>

#include "vmm/sparse.h"

static uint32_t at_most(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static bool is_hole(const struct hole_node *n)
{
	return !n->longest;
}

static bool is_used(const struct hole_node *n, uint32_t len)
{
	return n->longest == len;
}

static void set_node(struct hole_node *n, uint32_t lacks)
{
	*n = (struct hole_node){ lacks, lacks, lacks };
}

/* What the children say of the node @id of @len pages. */
static void pull_node(struct hole_node *nodes, uint32_t id, uint32_t len)
{
	const struct hole_node *l = &nodes[2 * id], *r = l + 1;
	uint32_t middle = l->last + r->first;

	nodes[id].first = is_hole(l) ? r->first : l->first + len / 2;
	nodes[id].last = is_hole(r) ? l->last : r->last + len / 2;
	nodes[id].longest = at_most(at_most(l->longest, r->longest) + len / 2,
				    middle);
}

/* [@from, @to) of the node @id, which has [@lo, @lo + @len), are holes or not. */
static void set_holes(struct hole_node *nodes, uint32_t id, uint32_t lo,
		      uint32_t len, uint32_t from, uint32_t to, bool hole)
{
	struct hole_node *n = &nodes[id];
	uint32_t half = len / 2;

	if (from <= lo && to >= lo + len) {
		set_node(n, hole ? 0 : len);
		return;
	}
	if (is_hole(n) || is_used(n, len)) {
		set_node(&nodes[2 * id], is_hole(n) ? 0 : half);
		set_node(&nodes[2 * id + 1], is_hole(n) ? 0 : half);
	}
	if (from < lo + half)
		set_holes(nodes, 2 * id, lo, half, from, to, hole);
	if (to > lo + half)
		set_holes(nodes, 2 * id + 1, lo + half, half, from, to, hole);
	pull_node(nodes, id, len);
}

/*
 * The first hole of @want pages from @from on, or true and *@run pages at the end
 * of the node: *@run at first, those before it.
 */
static bool find_hole(const struct hole_node *nodes, uint32_t id, uint32_t lo,
		      uint32_t len, uint32_t from, uint32_t want, uint32_t *run,
		      uint32_t *page)
{
	const struct hole_node *n = &nodes[id];

	if (lo + len <= from)
		return false;
	if (lo >= from && *run + len - n->first >= want) {
		*page = lo - *run;
		return true;
	}
	if (is_used(n, len) || (lo >= from && len - n->longest < want)) {
		*run = is_hole(n) ? *run + len : len - n->last;
		return false;
	}
	if (is_hole(n)) {
		*run = lo + len - from;
		*page = from;
		return *run >= want;
	}
	return find_hole(nodes, 2 * id, lo, len / 2, from, want, run, page) ||
	       find_hole(nodes, 2 * id + 1, lo + len / 2, len / 2, from, want,
			 run, page);
}

/* The first page from @from on that is no hole. */
static bool find_used(const struct hole_node *nodes, uint32_t id, uint32_t lo,
		      uint32_t len, uint32_t from, uint32_t *page)
{
	const struct hole_node *n = &nodes[id];

	if (lo + len <= from || is_hole(n))
		return false;
	if (lo >= from || is_used(n, len)) {
		*page = lo >= from ? lo + len - n->first : from;
		return true;
	}
	return find_used(nodes, 2 * id, lo, len / 2, from, page) ||
	       find_used(nodes, 2 * id + 1, lo + len / 2, len / 2, from, page);
}

static size_t bytes_of_nodes(uint32_t nr)
{
	return 2 * (size_t)nr * sizeof(struct hole_node);
}

static size_t bytes_of_bits(uint32_t nr)
{
	return nr / 8 + sizeof(uint64_t);
}

/* A tree over @nr pages, all of them holes. *@leaves: of it. */
static int make_tree(uint32_t nr, struct hole_node **nodes, uint32_t *leaves)
{
	void *p;

	for (*leaves = 2; *leaves < nr; *leaves *= 2)
		;
	p = hm_vmm_map(bytes_of_nodes(*leaves));
	if (!p)
		return -ENOMEM;
	*nodes = p;
	if (nr < *leaves)
		set_holes(*nodes, 1, 0, *leaves, nr, *leaves, false);
	return 0;
}

/* Pages [@page, @end) of sparse blocks are mapped, or not. */
static void set_mapped(struct vmm *v, uint32_t page, uint32_t end, bool mapped)
{
	set_holes(v->sparse->unmapped, 1, 0, v->sparse->nr_holes, page - v->nr - 1,
		  end - v->nr - 1, !mapped);
}

/* The first page from @page on, up to @end, that is mapped. */
static uint32_t next_mapped(const struct vmm *v, uint32_t page, uint32_t end)
{
	uint32_t at = end - v->nr - 1;

	if (page > v->nr) {
		find_used(v->sparse->unmapped, 1, 0, v->sparse->nr_holes, page - v->nr - 1, &at);
		return at_most(at + v->nr + 1, end);
	}
	while (page < end && !v->map[page])
		page++;
	return page;
}

bool hm_vmm_is_mapped(const struct vmm *v, uint32_t page, uint32_t end)
{
	return next_mapped(v, page, end) < end;
}

/* Pages [@page, @end) are holes, or not. All are of the pool, or all of sparse blocks. */
static void mark(struct vmm *v, uint32_t page, uint32_t end, bool hole)
{
	if (page < v->nr)
		set_holes(v->holes, 1, 0, v->nr_holes, page, end, hole);
	else
		set_holes(v->sparse->holes, 1, 0, v->sparse->nr_holes, page - v->nr - 1,
			  end - v->nr - 1, hole);
}

int hm_holes_init(struct vmm *v)
{
	v->apart = hm_vmm_map(bytes_of_bits(v->nr));
	return v->apart ? make_tree(v->nr, &v->holes, &v->nr_holes) : -ENOMEM;
}

int hm_holes_add(struct vmm *v, struct hm_sparse *sparse, uint32_t pages)
{
	const uint32_t all = v->nr + 1 + pages;
	void *map, *apart;
	int err = make_tree(pages, &sparse->holes, &sparse->nr_holes);

	if (err)
		return err;
	err = make_tree(pages, &sparse->unmapped, &sparse->nr_holes);
	if (err) {
		munmap(sparse->holes, bytes_of_nodes(sparse->nr_holes));
		return err;
	}
	map = hm_vmm_map(all * sizeof(*v->map));
	apart = hm_vmm_map(bytes_of_bits(all));
	if (!map || !apart) {
		if (map)
			munmap(map, all * sizeof(*v->map));
		if (apart)
			munmap(apart, bytes_of_bits(all));
		munmap(sparse->holes, bytes_of_nodes(sparse->nr_holes));
		munmap(sparse->unmapped, bytes_of_nodes(sparse->nr_holes));
		return -ENOMEM;
	}
	memcpy(map, v->map, v->nr * sizeof(*v->map));
	memcpy(apart, v->apart, bytes_of_bits(v->nr));
	munmap(v->map, v->nr * sizeof(*v->map));
	munmap(v->apart, bytes_of_bits(v->nr));
	v->map = map;
	v->apart = apart;
	v->all = all;
	return 0;
}

bool hm_vmm_find_far(const struct vmm *v, uint32_t want, uint32_t *page)
{
	uint32_t run = 0;

	if (!find_hole(v->sparse->holes, 1, 0, v->sparse->nr_holes, 0, want, &run, page))
		return false;
	*page += v->nr + 1;
	return true;
}

void hm_holes_free(struct vmm *v)
{
	if (v->holes)
		munmap(v->holes, bytes_of_nodes(v->nr_holes));
	if (v->apart)
		munmap(v->apart, bytes_of_bits(v->all));
	if (v->sparse) {
		munmap(v->sparse->holes, bytes_of_nodes(v->sparse->nr_holes));
		munmap(v->sparse->unmapped, bytes_of_nodes(v->sparse->nr_holes));
	}
	v->holes = NULL;
	v->apart = NULL;
}

/* The first page from @page on, up to @end, that is not set aside, or not not, as @page is. */
static uint32_t end_of_same(const struct vmm *v, uint32_t page, uint32_t end)
{
	const uint64_t flip = hm_vmm_is_apart(v, page) ? ~0ULL : 0;
	uint64_t others;

	while (page < end) {
		others = (v->apart[page / 64] ^ flip) >> page % 64;
		if (others)
			return at_most(page + __builtin_ctzll(others), end);
		page = (page | 63) + 1;
	}
	return end;
}

uint32_t hm_vmm_same_before(const struct vmm *v, uint32_t page, uint32_t first)
{
	const uint64_t flip = hm_vmm_is_apart(v, page) ? ~0ULL : 0;
	uint64_t others;

	for (;;) {
		others = (v->apart[page / 64] ^ flip) << (63 - page % 64);
		if (others)
			page -= __builtin_clzll(others) - 1;
		if (others || page / 64 <= first / 64)
			break;
		page = (page & ~63U) - 1;
	}
	return others && page > first ? page : first;
}

uint32_t hm_vmm_find_apart(const struct vmm *v, uint32_t page, uint32_t end, bool apart)
{
	return page >= end || hm_vmm_is_apart(v, page) == apart ? page : end_of_same(v, page, end);
}

uint32_t hm_vmm_apart(const struct vmm *v, uint32_t page)
{
	return hm_vmm_find_apart(v, page, page < v->nr ? v->nr : v->all, false) - page;
}

void hm_vmm_set_apart(struct vmm *v, uint32_t page, uint32_t pages, bool apart)
{
	const uint32_t end = page + pages;
	uint32_t at, next;
	uint64_t bits;

	for (at = page; at < end; at = next) {
		next = at_most((at | 63) + 1, end);
		bits = (next - at == 64 ? ~0ULL : (1ULL << (next - at)) - 1) << at % 64;
		v->apart[at / 64] = apart ? v->apart[at / 64] | bits : v->apart[at / 64] & ~bits;
	}
	for (at = page; at < end; at = next) {
		next = v->map[at] ? at : next_mapped(v, at, end);
		if (next > at)
			mark(v, at, next, !apart);
		if (next < end)
			next = mapping_at(v, v->map[next])->page + handle_of_page(v, next)->pages;
	}
}

void hm_vmm_set_pages(struct vmm *v, uint32_t page, uint32_t pages,
		      uint32_t mapping)
{
	const uint32_t end = page + pages;
	uint32_t at, next;

	_Static_assert(sizeof(wchar_t) == sizeof(*v->map), "wmemset()");

	if (!pages)
		return;
	/* Vectors of it: there may be many pages. */
	wmemset((wchar_t *)&v->map[page], mapping, pages);
	if (page > v->nr)
		set_mapped(v, page, end, mapping);
	if (mapping) {
		mark(v, page, end, false);
		return;
	}
	hm_vmm_set_ends(v, page, pages);
	for (at = page; at < end; at = next) {
		next = end_of_same(v, at, end);
		mark(v, at, next, !hm_vmm_is_apart(v, at));
	}
}

/* Pages that are looked at one by one: most holes are small. */
#define NEAR	16

uint32_t hm_vmm_holes(const struct vmm *v, uint32_t page, uint32_t want)
{
	uint32_t end = v->nr, n = 0;

	while (n < NEAR && n < want && page + n < v->nr && !v->map[page + n] &&
	       !hm_vmm_is_apart(v, page + n))
		n++;
	if (n < NEAR)
		return n;
	find_used(v->holes, 1, 0, v->nr_holes, page, &end);
	return at_most(end - page, want);
}

/*
 * Who looks where. What has no room of its own leaves room between runs, and
 * would leave no large hole if it did so everywhere; small blocks and blocks with
 * room are apart.
 */
static void limits_of(const struct vmm *v, enum vmm_place place, uint32_t *first,
		      uint32_t *end)
{
	const uint32_t rooms = v->nr / 2, small = v->nr - v->nr / 16;

	*first = place == VMM_LARGE ? 0 : place == VMM_ROOM ? rooms : small;
	*end = place == VMM_LARGE ? rooms : place == VMM_ROOM ? small : v->nr;
}

/* Holes that are left between runs are at most this part of the pages. */
#define GAP_SHARE	64
/* A run smaller than this part of the pool needs none. */
#define SMALL_RUN	1024

static uint32_t gap_after(const struct vmm *v, enum vmm_place place,
			  uint32_t want)
{
	if (place == VMM_ROOM || want < v->pages / SMALL_RUN)
		return 0;
	/* A large run that can grow where it is saves moving all of it. */
	return at_most(v->pages > want ? v->pages : want, v->nr / GAP_SHARE);
}

static bool hole_from(const struct vmm *v, uint32_t from, uint32_t want,
		      uint32_t *page)
{
	uint32_t run = 0;

	return from < v->nr &&
	       find_hole(v->holes, 1, 0, v->nr_holes, from, want, &run, page);
}

bool hm_vmm_find_hole(struct vmm *v, enum vmm_place place, uint32_t want,
		      uint32_t *page)
{
	uint32_t first, end;

	limits_of(v, place, &first, &end);
	if (!hole_from(v, first + v->cursor[place], want, page) ||
	    *page + want > end) {
		if ((!hole_from(v, first, want, page) || *page + want > end) &&
		    !hole_from(v, 0, want, page))
			return false;
	}
	if (*page >= first && *page < end)
		v->cursor[place] = *page - first + want + gap_after(v, place, want);
	return true;
}
