// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Disjoint address ranges in the C library's search tree, and runs of pages
 * in an array. Two ranges compare as equal when they overlap, which is a
 * proper order as long as those in the tree are disjoint: insertion sees
 * to that.
 */
#include <errno.h>
#include <search.h>

#include "core/core.h"

static int compare(const void *a, const void *b)
{
	const struct hm_range *x = a, *y = b;

	if (x->end <= y->start)
		return -1;
	return x->start >= y->end;
}

int hm_range_insert(void **root, struct hm_range *range)
{
	void *node = tsearch(range, root, compare);

	if (!node)
		return -ENOMEM;
	return *(struct hm_range **)node == range ? 0 : -EEXIST;
}

struct hm_range *hm_range_find(void *const *root, uintptr_t start,
			       size_t size)
{
	struct hm_range key = { start, start + size };
	void *node;

	if (key.end < key.start)
		key.end = UINTPTR_MAX;
	node = tfind(&key, root, compare);
	return node ? *(struct hm_range **)node : NULL;
}

void hm_range_erase(void **root, struct hm_range *range)
{
	tdelete(range, root, compare);
}

/* POSIX: a node is a pointer to what was inserted, first of all. */
struct hm_range *hm_range_any(void *const *root)
{
	return *root ? *(struct hm_range **)*root : NULL;
}

struct walk {
	void (*each)(struct hm_range *range, void *arg);
	void *arg;
};

static void visit(const void *node, VISIT order, void *arg)
{
	const struct walk *walk = arg;

	if (order == postorder || order == leaf)
		walk->each(*(struct hm_range *const *)node, walk->arg);
}

void hm_range_walk(void *const *root,
		   void (*each)(struct hm_range *range, void *arg), void *arg)
{
	struct walk walk = { each, arg };

	twalk_r(*root, visit, &walk);
}

bool hm_run_add(struct hetmem_run *runs, size_t nr, size_t *filled,
		const struct hetmem_run *run)
{
	struct hetmem_run *last = *filled ? &runs[*filled - 1] : NULL;

	if (last && last->end == run->start &&
	    last->location == run->location && last->order == run->order &&
	    last->flags == run->flags && last->why == run->why) {
		last->end = run->end;
		return true;
	}
	if (*filled == nr)
		return false;
	runs[(*filled)++] = *run;
	return true;
}
