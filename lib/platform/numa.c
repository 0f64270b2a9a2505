// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Host nodes by move_pages(2): where pages are and bringing them elsewhere,
 * for machines without the module and for what the module leaves to
 * userspace, which alone may move pages between nodes.
 *
 * move_pages(2) cannot tell a page that was never touched from one that is
 * swapped out or on a device, and calls the zero page and a hole in the
 * address space the same: mincore(2) tells the hole. A range may be mostly holes:
 * beyond one batch they are skipped by a look at the mappings.
 */
#include <errno.h>
#include <numa.h>
#include <numaif.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "platform/platform.h"

/* Pages asked about in one call: three arrays of it are on the stack. */
#define BATCH	512

bool hm_numa_there(void)
{
	return numa_available() >= 0;
}

bool hm_numa_has_node(int node)
{
	if (!hm_numa_there())
		return node == 0;
	return node >= 0 && node <= numa_max_node() &&
	       numa_bitmask_isbitset(numa_nodes_ptr, node);
}

int hm_numa_nodes(void)
{
	int node, nr = 0;

	if (!hm_numa_there())
		return 1;
	for (node = 0; node <= numa_max_node(); node++)
		nr += !!numa_bitmask_isbitset(numa_nodes_ptr, node);
	return nr;
}

static unsigned int fill(void **pages, uintptr_t start, uintptr_t end,
			 size_t page_size)
{
	unsigned int n;

	for (n = 0; n < BATCH && start < end; n++, start += page_size)
		pages[n] = (void *)start;
	return n;
}

static int query(void **pages, int *status, unsigned int n)
{
	if (numa_move_pages(0, n, pages, NULL, status, 0) < 0)
		return -errno;
	return 0;
}

static bool is_hole(uintptr_t addr, size_t page_size)
{
	unsigned char core;

	return mincore((void *)addr, page_size, &core) && errno == ENOMEM;
}

static uint32_t location_of(uintptr_t addr, size_t page_size, int status)
{
	if (status >= 0)
		return HETMEM_LOC(HETMEM_HOST, status);
	if (status == -EFAULT && is_hole(addr, page_size))
		return HETMEM_LOC(HETMEM_UNMAPPED, 0);
	return HETMEM_LOC(HETMEM_UNKNOWN, 0);
}

/**
 * struct walk - over a range that may have holes
 * @looks: @maps is open, @vma the mapping that was found last
 */
struct walk {
	bool looks;
	struct hm_maps maps;
	struct hm_vma vma;
};

static void walk_begin(struct walk *w, uintptr_t start, uintptr_t end, size_t page_size)
{
	w->vma.end = 0;
	w->looks = end - start > BATCH * page_size && !hm_maps_open(&w->maps);
}

static void walk_end(struct walk *w)
{
	if (w->looks)
		hm_maps_close(&w->maps);
}

/* End of the hole that begins at @at; @at: there is none, as far as is known. */
static uintptr_t hole_end(struct walk *w, uintptr_t at, uintptr_t end)
{
	if (!w->looks)
		return at;
	if (w->vma.end <= at && !hm_maps_next(&w->maps, at, &w->vma))
		w->vma = (struct hm_vma){ .start = end, .end = end };
	return w->vma.start <= at ? at : w->vma.start < end ? w->vma.start : end;
}

static ssize_t find_residency(struct walk *w, uintptr_t start, uintptr_t end,
			      size_t page_size, struct hetmem_run *runs, size_t nr,
			      uintptr_t *next)
{
	const bool there = hm_numa_there();
	void *pages[BATCH];
	int status[BATCH];
	size_t filled = 0;
	unsigned int i, n;
	int err;

	for (; start < end; start += n * page_size) {
		struct hetmem_run hole = {
			.start = start, .end = hole_end(w, start, end),
			.location = HETMEM_LOC(HETMEM_UNMAPPED, 0),
		};

		if (hole.end > start && !hm_run_add(runs, nr, &filled, &hole))
			return filled;
		*next = start = hole.end;
		n = fill(pages, start, end, page_size);
		err = there && n ? query(pages, status, n) : 0;
		if (err)
			return hm_error(err, "move_pages: %s", strerror(-err));
		for (i = 0; i < n; i++) {
			struct hetmem_run run = {
				.start = (uintptr_t)pages[i],
				.end = (uintptr_t)pages[i] + page_size,
			};

			if (!there)
				status[i] = is_hole(run.start, page_size) ?
					-EFAULT : -ENOENT;
			run.location = location_of(run.start, page_size,
						   status[i]);
			if (!hm_run_add(runs, nr, &filled, &run))
				return filled;
			*next = run.end;
		}
	}
	return filled;
}

ssize_t hm_numa_residency(uintptr_t start, uintptr_t end, size_t page_size,
			  struct hetmem_run *runs, size_t nr, uintptr_t *next)
{
	struct walk w;
	ssize_t n;

	*next = start;
	walk_begin(&w, start, end, page_size);
	n = find_residency(&w, start, end, page_size, runs, nr, next);
	walk_end(&w);
	return n;
}

static uint32_t why_of(uintptr_t addr, size_t page_size, int status)
{
	switch (status) {
	case -ENOENT:
		return HETMEM_WHY_ABSENT;
	case -EFAULT:
		return is_hole(addr, page_size) ? HETMEM_WHY_UNMAPPED :
			HETMEM_WHY_ABSENT;
	case -ENOMEM:
		return HETMEM_WHY_NO_MEMORY;
	default:
		return HETMEM_WHY_BUSY;
	}
}

static void move_batch(void **pages, unsigned int n, size_t page_size,
		       int node, struct hetmem_moved *moved)
{
	int before[BATCH], asked[BATCH], after[BATCH], nodes[BATCH];
	void *away[BATCH];
	unsigned int i, k = 0;

	if (query(pages, before, n))
		memset(before, 0x80, sizeof(before));
	for (i = 0; i < n; i++) {
		if (before[i] >= 0 && before[i] != node) {
			nodes[k] = node;
			asked[k] = -EBUSY;
			away[k++] = pages[i];
		}
	}
	/*
	 * The status of a huge page is not to be relied on (-EBUSY for one
	 * of its pages that did move): only asking again tells.
	 */
	if (k && numa_move_pages(0, k, away, nodes, asked, MPOL_MF_MOVE) < 0 &&
	    errno == ENOMEM)
		for (i = 0; i < k; i++)
			asked[i] = -ENOMEM;
	if (k && query(away, after, k))
		memset(after, 0x80, sizeof(after));
	for (i = k = 0; i < n; i++) {
		int status = before[i];

		if (status == node) {
			moved->already++;
			continue;
		}
		if (status >= 0) {
			if (after[k] == node) {
				moved->moved++;
				k++;
				continue;
			}
			status = asked[k++];
		}
		if (!moved->not_moved++) {
			moved->why = why_of((uintptr_t)pages[i], page_size,
					    status);
			moved->why_addr = (uintptr_t)pages[i];
		}
	}
}

int hm_numa_move(uintptr_t start, uintptr_t end, size_t page_size, int node,
		 struct hetmem_moved *moved)
{
	void *pages[BATCH];
	unsigned int n;
	uintptr_t hole;
	struct walk w;

	walk_begin(&w, start, end, page_size);
	for (; start < end; start += n * page_size) {
		hole = hole_end(&w, start, end);
		if (hole > start) {
			if (!moved->not_moved) {
				moved->why = HETMEM_WHY_UNMAPPED;
				moved->why_addr = start;
			}
			moved->not_moved += (hole - start) / page_size;
			start = hole;
		}
		n = fill(pages, start, end, page_size);
		move_batch(pages, n, page_size, node, moved);
	}
	walk_end(&w);
	return 0;
}

/* The start of the mapping that has the last page of [@start, @end), if it has less. */
static uintptr_t last_mapping(uintptr_t start, uintptr_t end)
{
	struct hm_maps maps;
	struct hm_vma vma;

	if (hm_maps_open(&maps))
		return start;
	if (!hm_maps_next(&maps, end - 1, &vma) || vma.start >= end || vma.start < start)
		vma.start = start;
	hm_maps_close(&maps);
	return vma.start;
}

static int set_policy(uintptr_t start, uintptr_t end, int mode, const struct bitmask *nodes)
{
	return mbind((void *)start, end - start, mode, nodes->maskp, nodes->size + 1, 0) ?
		-errno : 0;
}

/*
 * mbind(2) goes from mapping to mapping, and fails where one cannot be split: at the
 * first or the last. What it has done before stays. So the last mapping comes first,
 * and gets its policy back if the rest fails.
 */
static int set_whole_policy(uintptr_t start, uintptr_t end, int mode,
			    const struct bitmask *nodes, struct bitmask *before)
{
	const uintptr_t last = last_mapping(start, end);
	int old = MPOL_DEFAULT, err;

	if (last == start)
		return set_policy(start, end, mode, nodes);
	if (get_mempolicy(&old, before->maskp, before->size + 1, (void *)last, MPOL_F_ADDR))
		return -errno;
	err = set_policy(last, end, mode, nodes);
	if (err)
		return err;
	err = set_policy(start, last, mode, nodes);
	if (err)
		set_policy(last, end, old, before);
	return err;
}

int hm_numa_prefer(uintptr_t start, uintptr_t end, int node)
{
	struct bitmask *nodes, *before;
	int err = -ENOMEM;

	if (!hm_numa_there())
		return -ENOSYS;
	nodes = numa_allocate_nodemask();
	before = numa_allocate_nodemask();
	if (nodes && before) {
		if (node >= 0)
			numa_bitmask_setbit(nodes, node);
		err = set_whole_policy(start, end, node < 0 ? MPOL_DEFAULT :
				       MPOL_PREFERRED, nodes, before);
	}
	if (nodes)
		numa_bitmask_free(nodes);
	if (before)
		numa_bitmask_free(before);
	return err;
}
