/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The VMM pool: which pages of the reservation are holes, and where to look for
 * them. holes.c has the design. All under pool->lock.
 */
#ifndef HETMEM_VMM_HOLES_H
#define HETMEM_VMM_HOLES_H

#include <stdbool.h>
#include <stdint.h>

struct vmm;
struct hm_sparse;

/* Who looks for a hole: blocks of zone 0, of zone 1, blocks with room. */
enum vmm_place {
	VMM_SMALL,
	VMM_LARGE,
	VMM_ROOM,
	NR_PLACES,
};

/* See holes.c: pages that are no holes before the first, after the last, ... */
struct hole_node {
	uint32_t first;
	uint32_t last;
	uint32_t longest;
};

/* Zeroed memory that is there when it is touched, or NULL and the text. */
void *hm_vmm_map(size_t bytes);

int hm_holes_init(struct vmm *v);
void hm_holes_free(struct vmm *v);
/* @pages more, for sparse blocks, which are holes. -ENOMEM: nothing has changed. */
int hm_holes_add(struct vmm *v, struct hm_sparse *sparse, uint32_t pages);
/* As hm_vmm_find_hole(), among these. */
bool hm_vmm_find_far(const struct vmm *v, uint32_t want, uint32_t *page);
/* [@page, @page + @pages) are @mapping's; 0: of nobody, and holes if they are not set aside. */
void hm_vmm_set_pages(struct vmm *v, uint32_t page, uint32_t pages,
		      uint32_t mapping);
/* How many holes there are from @page on, at most @want. */
uint32_t hm_vmm_holes(const struct vmm *v, uint32_t page, uint32_t want);
/*
 * [@page, @page + @pages) are set aside, or no longer: pages of nobody that are no holes. They
 * belong to the block with room before them, or to the live block that they are in.
 */
void hm_vmm_set_apart(struct vmm *v, uint32_t page, uint32_t pages, bool apart);
/* The first page from @page on, up to @end, that is @apart, or that is not. */
uint32_t hm_vmm_find_apart(const struct vmm *v, uint32_t page, uint32_t end, bool apart);
/* The first of the pages from @first to @page that are all set aside, or all not, as @page is. */
uint32_t hm_vmm_same_before(const struct vmm *v, uint32_t page, uint32_t first);
/* Whether any of [@page, @end) is mapped. */
bool hm_vmm_is_mapped(const struct vmm *v, uint32_t page, uint32_t end);
/* How many pages are set aside from @page on. */
uint32_t hm_vmm_apart(const struct vmm *v, uint32_t page);
/* @want holes in a row; false: there are none. */
bool hm_vmm_find_hole(struct vmm *v, enum vmm_place place, uint32_t want,
		      uint32_t *page);

#endif /* HETMEM_VMM_HOLES_H */
