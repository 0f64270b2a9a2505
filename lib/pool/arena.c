// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Arenas: the free blocks of one stream, found by size. Best fit: small ones
 * in a list for every size with a bit for every list, others in a treap by
 * size and address, whose priorities are the descriptors' names, hashed.
 */
#include <stdlib.h>

#include "pool/pool_impl.h"

/* No block's name: a walk is at its end. */
#define WALK_END	UINT32_MAX

static bool has_bin(const struct arena *a, const struct block *b)
{
	return !block_zone(b) && b->units < NR_BINS && !a->no_bins;
}

static uint32_t tree_priority(uint32_t id)
{
	return id * 0x9e3779b1U;
}

/* By size, then address. */
static bool is_before(const struct block *a, const struct block *b)
{
	return a->units != b->units ? a->units < b->units : a->addr < b->addr;
}

void hm_arena_free(struct arena *a)
{
	free(a->bins);
	a->bins = NULL;
}

/* Splits @root into what is before @b and the rest. */
static void tree_split(const struct pool *p, uint32_t root,
		       const struct block *b, uint32_t *before, uint32_t *rest)
{
	while (root) {
		struct block *r = block_at(p, root);

		if (is_before(r, b)) {
			*before = root;
			before = &r->right;
			root = r->right;
		} else {
			*rest = root;
			rest = &r->left;
			root = r->left;
		}
	}
	*before = 0;
	*rest = 0;
}

static void tree_add(const struct pool *p, uint32_t *root, struct block *b)
{
	uint32_t id = block_id(p, b);

	while (*root && tree_priority(*root) >= tree_priority(id)) {
		struct block *r = block_at(p, *root);

		root = is_before(b, r) ? &r->left : &r->right;
	}
	tree_split(p, *root, b, &b->left, &b->right);
	*root = id;
}

/* All of @a is before all of @b. */
static uint32_t tree_merge(const struct pool *p, uint32_t a, uint32_t b)
{
	uint32_t root = 0, *to = &root;

	while (a && b) {
		if (tree_priority(a) >= tree_priority(b)) {
			*to = a;
			to = &block_at(p, a)->right;
			a = *to;
		} else {
			*to = b;
			to = &block_at(p, b)->left;
			b = *to;
		}
	}
	*to = a ? a : b;
	return root;
}

static void tree_remove(const struct pool *p, uint32_t *root, struct block *b)
{
	uint32_t id = block_id(p, b);

	while (*root != id) {
		struct block *r = block_at(p, *root);

		root = is_before(b, r) ? &r->left : &r->right;
	}
	*root = tree_merge(p, b->left, b->right);
}

static struct block *tree_first(const struct pool *p, uint32_t root,
				uint64_t units)
{
	struct block *best = NULL;

	while (root) {
		struct block *r = block_at(p, root);

		if (r->units < units) {
			root = r->right;
		} else {
			best = r;
			root = r->left;
		}
	}
	return best;
}

static struct block *tree_next(const struct pool *p, uint32_t root,
			       const struct block *b)
{
	struct block *best = NULL;

	while (root) {
		struct block *r = block_at(p, root);

		if (is_before(b, r)) {
			best = r;
			root = r->left;
		} else {
			root = r->right;
		}
	}
	return best;
}

static void bin_add(const struct pool *p, struct arena *a, struct block *b)
{
	uint32_t *head = &a->bins[b->units], id = block_id(p, b);

	b->left = 0;
	b->right = *head;
	if (*head)
		block_at(p, *head)->left = id;
	*head = id;
	a->map[b->units / 64] |= 1ULL << b->units % 64;
	a->summary |= 1ULL << b->units / 64;
}

static void bin_remove(const struct pool *p, struct arena *a, struct block *b)
{
	if (b->right)
		block_at(p, b->right)->left = b->left;
	if (b->left) {
		block_at(p, b->left)->right = b->right;
		return;
	}
	a->bins[b->units] = b->right;
	if (b->right)
		return;
	a->map[b->units / 64] &= ~(1ULL << b->units % 64);
	if (!a->map[b->units / 64])
		a->summary &= ~(1ULL << b->units / 64);
}

/* The first bin from @units on, 0: all are empty. */
static uint32_t bin_first(const struct arena *a, uint64_t units)
{
	unsigned int word = units / 64;
	uint64_t bits;

	if (units >= NR_BINS)
		return 0;
	bits = a->map[word] & ~0ULL << units % 64;
	if (!bits) {
		bits = word + 1 < MAP_WORDS ? a->summary & ~0ULL << (word + 1) :
			0;
		if (!bits)
			return 0;
		word = __builtin_ctzll(bits);
		bits = a->map[word];
	}
	return word * 64 + __builtin_ctzll(bits);
}

void hm_arena_add(struct pool *p, struct arena *a, struct block *b)
{
	if (has_bin(a, b) && !a->bins) {
		/* Without, the tree takes small ones as well, from now on. */
		a->bins = calloc(NR_BINS, sizeof(*a->bins));
		p->work += NR_BINS;
		a->no_bins = !a->bins;
	}
	if (has_bin(a, b))
		bin_add(p, a, b);
	else
		tree_add(p, &a->root, b);
	a->units += b->units;
	a->nr++;
	if (b->pos < a->settled)
		a->settled = 0;
}

void hm_arena_remove(struct pool *p, struct arena *a, struct block *b)
{
	const uint32_t id = block_id(p, b);
	unsigned int i;

	for (i = 0; i < NR_WALKS; i++) {
		if (a->walks[i] == id) {
			struct block *next = hm_arena_next(p, a, b);

			a->walks[i] = next ? block_id(p, next) : WALK_END;
		}
	}
	if (has_bin(a, b))
		bin_remove(p, a, b);
	else
		tree_remove(p, &a->root, b);
	a->units -= b->units;
	a->nr--;
}

struct block *hm_arena_best(const struct pool *p, const struct arena *a,
			    uint64_t units)
{
	uint32_t bin;

	if (a->units < units)
		return NULL;
	bin = a->bins ? bin_first(a, units) : 0;
	return bin ? block_at(p, a->bins[bin]) :
		tree_first(p, a->root, units);
}

struct block *hm_arena_next(const struct pool *p, const struct arena *a,
			    const struct block *b)
{
	uint32_t bin;

	if (!has_bin(a, b))
		return tree_next(p, a->root, b);
	if (b->right)
		return block_at(p, b->right);
	bin = bin_first(a, b->units + 1);
	return bin ? block_at(p, a->bins[bin]) :
		tree_first(p, a->root, b->units);
}

struct block *hm_arena_walk(const struct pool *p, struct arena *a,
			    enum arena_walk walk)
{
	uint32_t *at = &a->walks[walk];
	struct block *b = NULL, *next;

	if (!*at)
		b = hm_arena_best(p, a, 1);
	else if (*at != WALK_END)
		b = block_at(p, *at);
	if (!b) {
		*at = 0;
		return NULL;
	}
	next = hm_arena_next(p, a, b);
	*at = next ? block_id(p, next) : WALK_END;
	return b;
}

/* The arguments of hm_arena_each(). */
struct each {
	const struct pool *p;
	const struct block *below;
	uint64_t units;
	bool (*look)(const struct pool *p, struct block *b, void *arg);
	void *arg;
};

static bool tree_each(const struct each *e, uint32_t root)
{
	while (root) {
		struct block *r = block_at(e->p, root);

		if (r->units < e->units) {
			root = r->right;
			continue;
		}
		if (is_before(r, e->below) &&
		    ((r->right && !tree_each(e, r->right)) ||
		     !e->look(e->p, r, e->arg)))
			return false;
		root = r->left;
	}
	return true;
}

bool hm_arena_each(const struct pool *p, const struct arena *a,
		   const struct block *below, uint64_t units,
		   bool (*look)(const struct pool *p, struct block *b,
				void *arg),
		   void *arg)
{
	const struct each e = { p, below, units, look, arg };

	return a->units < units || tree_each(&e, a->root);
}
