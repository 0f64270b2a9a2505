// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What is live in a private pool, and making it so again.
 *
 * The memory of a private pool stays its own until release: what was live once
 * is live, free or parked there later, whole or in pieces of other blocks. A
 * restore frees what is not to be live, cuts the blocks of the checkpoint out of
 * what is there, and gives the rest back. It calls no driver.
 *
 * One thread at a time has the private pool for itself (graph_id.alone), so that
 * it can release pool->lock after each PIECE of blocks: other threads that
 * allocate there or free to it wait. Nobody else changes free blocks of a private
 * pool, so what is known of them stays true.
 *
 * A restore cannot fail once it has begun. The plan allocates all host memory,
 * and sets names for new blocks aside: two for each, as many as cutting it takes.
 */
#include <stdlib.h>

#include "core/snapshot.h"
#include "pool/graph.h"
#include "pool/uses.h"

/* A block of a checkpoint. */
struct saved_block {
	uint64_t addr;
	uint64_t asked;
	uint32_t units;
	uint16_t part;
};

/**
 * struct saved - a checkpoint of one pool
 * @serial: of the private pool
 */
struct saved {
	struct hm_saved head;
	uint64_t serial;
	size_t nr;
	struct saved_block blocks[];
};

enum piece_kind {
	PIECE_LIVE,
	PIECE_FREE,
	PIECE_PARKED,
};

/**
 * struct piece - a block that the private pool has
 * @asked: live: bytes that were requested
 * @id: of its descriptor; 0: it has gone into another block
 * @next: descriptor of its neighbour in the run
 * @kept: it is live, and stays so
 * @taken: BUSY, in the hands of the restore
 */
struct piece {
	uint64_t addr;
	uint64_t asked;
	uint32_t units;
	uint32_t id;
	uint32_t next;
	uint16_t part;
	uint8_t kind;
	bool kept;
	bool taken;
};

/* Without @piece the blocks are only counted. */
struct pieces {
	struct piece *piece;
	size_t nr;
};

/**
 * struct restore - a restore that is planned
 * @all: the blocks of the private pool, by address
 * @kept: by block of the checkpoint: it is live
 * @names: list of names for blocks
 * @fronts: list of blocks left over, BUSY, before those that were cut out; by
 *	PIECE_FREE and PIECE_PARKED
 * @told: blocks that it reports
 */
struct restore {
	const struct saved *saved;
	struct pieces all;
	bool *kept;
	uint32_t names;
	uint32_t fronts[PIECE_PARKED + 1];
	size_t told;
};

static uint64_t bytes_of(uint32_t units)
{
	return (uint64_t)units << UNIT_SHIFT;
}

static uint64_t piece_end(const struct piece *e)
{
	return e->addr + bytes_of(e->units);
}

/* May release the lock, as what follows. */
static void add_piece(struct pool *p, struct pieces *all,
		      const struct graph *g, const struct block *b,
		      enum piece_kind kind)
{
	if (all->piece)
		all->piece[all->nr] = (struct piece){
			.addr = b->addr,
			.asked = kind == PIECE_LIVE ?
				block_bytes(b) - b->slack : 0,
			.units = b->units,
			.id = block_id(p, b),
			.next = b->next,
			.part = g->index,
			.kind = kind,
		};
	if (++all->nr % PIECE == 0)
		hm_pool_pause(p);
}

static void add_live(struct pool *p, struct pieces *all, const struct graph *g)
{
	const struct block *b;
	uint32_t id;

	for (id = g->live; id; id = graph_live_next(b)) {
		b = block_at(p, id);
		add_piece(p, all, g, b, PIECE_LIVE);
	}
}

static void add_free(struct pool *p, struct pieces *all, const struct graph *g)
{
	const struct block *b;
	unsigned int zone;
	uint32_t id;

	for (zone = 0; zone < NR_ZONES; zone++) {
		const struct arena *a = &g->arenas[zone];

		for (b = hm_arena_best(p, a, 1); b; b = hm_arena_next(p, a, b))
			add_piece(p, all, g, b, PIECE_FREE);
	}
	for (id = g->parked; id; id = b->right) {
		b = block_at(p, id);
		add_piece(p, all, g, b, PIECE_PARKED);
	}
}

static void add_all(struct pool *p, struct pieces *all,
		    const struct graph_id *of, bool live, bool others)
{
	const struct graph *g;

	for (g = of->parts; g; g = g->next) {
		if (live)
			add_live(p, all, g);
		if (others)
			add_free(p, all, g);
	}
}

static int by_address(const void *a, const void *b)
{
	const struct piece *x = a, *y = b;

	return x->addr < y->addr ? -1 : x->addr > y->addr;
}

/* Sorted; releases the lock. Of @of, which is taken. */
static int collect(struct pool *p, const struct graph_id *of, bool others,
		   struct pieces *all)
{
	*all = (struct pieces){ 0 };
	add_all(p, all, of, true, others);
	pthread_mutex_unlock(&p->lock);
	/* One more: none is no error. */
	all->piece = malloc((all->nr + 1) * sizeof(*all->piece));
	pthread_mutex_lock(&p->lock);
	if (!all->piece)
		return hm_error(-ENOMEM, "no host memory for %zu blocks",
				all->nr);
	all->nr = 0;
	add_all(p, all, of, true, others);
	pthread_mutex_unlock(&p->lock);
	qsort(all->piece, all->nr, sizeof(*all->piece), by_address);
	pthread_mutex_lock(&p->lock);
	return 0;
}

/*
 * The private pool @id is the calling thread's alone, until hm_private_let_go().
 * Waits for allocations that are under way. They may wait for memory that others
 * free, who do not wait before the end of that.
 */
int hm_private_take(struct pool *p, uint64_t id, struct graph_id **out)
{
	struct graph_id *of;
	unsigned int naps = 0;

	while ((of = hm_graph_id(p, id)) && of->taken)
		hm_nap(&p->lock, &naps);
	if (!of || !of->private)
		return hm_error(-ENOENT, "private pool %llu is not retained",
				(unsigned long long)id);
	of->taken = true;
	while (of->users)
		hm_nap(&p->lock, &naps);
	of->alone = true;
	*out = of;
	return 0;
}

void hm_private_let_go(struct graph_id *of)
{
	of->taken = false;
	of->alone = false;
}

static int save(struct pool *p, uint64_t serial, const struct pieces *all,
		struct hetmem_checkpoint *checkpoint)
{
	struct saved *saved;
	size_t i;

	saved = malloc(sizeof(*saved) + all->nr * sizeof(*saved->blocks));
	if (!saved)
		return hm_error(-ENOMEM, "no host memory for %zu blocks",
				all->nr);
	*saved = (struct saved){
		.head = { .next = checkpoint->saved, .pool = p->order.serial },
		.serial = serial,
		.nr = all->nr,
	};
	for (i = 0; i < all->nr; i++) {
		const struct piece *e = &all->piece[i];

		saved->blocks[i] = (struct saved_block){
			.addr = e->addr, .asked = e->asked,
			.units = e->units, .part = e->part,
		};
	}
	checkpoint->saved = &saved->head;
	return 0;
}

int hm_private_checkpoint(struct pool *p, struct hm_ctl_checkpoint *arg)
{
	struct graph_id *of;
	struct pieces all = { 0 };
	uint64_t serial = 0;
	size_t i;
	int err;

	pthread_mutex_lock(&p->lock);
	err = hm_private_take(p, arg->checkpoint->id, &of);
	if (!err) {
		serial = of->serial;
		err = collect(p, of, false, &all);
		hm_private_let_go(of);
	}
	pthread_mutex_unlock(&p->lock);
	if (!err)
		err = save(p, serial, &all, arg->checkpoint);
	for (i = 0; !err && i < all.nr; i++, arg->nr++)
		if (arg->nr < arg->room)
			arg->ptrs[arg->nr] = (void *)(uintptr_t)all.piece[i].addr;
	free(all.piece);
	return err;
}

static bool is_same(const struct piece *e, const struct saved_block *b)
{
	return e->kind == PIECE_LIVE && e->addr == b->addr &&
	       e->asked == b->asked && e->units == b->units &&
	       e->part == b->part;
}

/* What is live in both, both by address. Returns how many that are. */
static size_t match(struct restore *r)
{
	struct piece *e = r->all.piece, *end = e + r->all.nr;
	size_t i, nr = 0;

	for (i = 0; i < r->saved->nr; i++) {
		const struct saved_block *b = &r->saved->blocks[i];

		while (e < end && e->addr < b->addr)
			e++;
		if (e == end || !is_same(e, b))
			continue;
		e->kept = true;
		r->kept[i] = true;
		nr++;
	}
	return nr;
}

/*
 * Whether the memory of each block that is to be allocated is there, in one run:
 * it is, or this is a bug.
 */
static bool is_there(const struct restore *r)
{
	const struct piece *e = r->all.piece, *end = e + r->all.nr;
	size_t i;

	for (i = 0; i < r->saved->nr; i++) {
		const struct saved_block *b = &r->saved->blocks[i];
		const uint64_t to = b->addr + bytes_of(b->units);

		if (r->kept[i])
			continue;
		while (e < end && piece_end(e) <= b->addr)
			e++;
		if (e == end || e->addr > b->addr || e->kept)
			return false;
		for (; piece_end(e) < to; e++)
			if (e + 1 == end || e->next != e[1].id || e[1].kept)
				return false;
	}
	return true;
}

/* With the lock, which is released between pieces. */
static void put_names(struct pool *p, struct restore *r)
{
	unsigned int n = 0;

	while (r->names) {
		uint32_t id = r->names;

		r->names = block_at(p, id)->left;
		hm_name_put(p, id);
		if (++n % PIECE == 0)
			hm_pool_pause(p);
	}
}

/* Likewise. */
static int get_names(struct pool *p, struct restore *r, size_t nr)
{
	uint32_t id;

	while (nr--) {
		id = hm_name_get(p, 0);
		if (!id)
			return hm_error(-ENOMEM, "private_restore: too many blocks");
		block_at(p, id)->left = r->names;
		r->names = id;
		if (nr % PIECE == 0)
			hm_pool_pause(p);
	}
	return 0;
}

static void tell(const struct pool *p, struct hm_ctl_restore *arg,
		 enum hetmem_restored_kind kind, uint64_t addr, uint64_t asked,
		 uint16_t part)
{
	const struct graph *g = hm_graph_at(p, part);

	arg->blocks[arg->nr++] = (struct hetmem_restored){
		.size = sizeof(struct hetmem_restored),
		.ptr = (void *)(uintptr_t)addr,
		.bytes = asked,
		.stream = hm_stream_here(g->handle, g->thread),
		.kind = kind,
	};
}

/* @kept: of the blocks that are live. */
static int report(struct pool *p, struct restore *r, struct hm_ctl_restore *arg)
{
	struct hetmem_restored *blocks;
	const size_t before = arg->nr;
	size_t i, nr = before + r->all.nr + r->saved->nr;

	blocks = realloc(arg->blocks, (nr + 1) * sizeof(*blocks));
	if (!blocks)
		return hm_error(-ENOMEM, "private_restore: no host memory for %zu blocks",
				nr);
	arg->blocks = blocks;
	for (i = 0; i < r->all.nr; i++) {
		const struct piece *e = &r->all.piece[i];

		if (e->kind == PIECE_LIVE)
			tell(p, arg, e->kept ? HETMEM_RESTORED_KEPT :
			     HETMEM_RESTORED_FREED, e->addr, e->asked, e->part);
	}
	for (i = 0; i < r->saved->nr; i++) {
		const struct saved_block *b = &r->saved->blocks[i];

		if (!r->kept[i])
			tell(p, arg, HETMEM_RESTORED_ALLOCATED, b->addr,
			     b->asked, b->part);
	}
	r->told = arg->nr - before;
	return 0;
}

/* All that can fail. With the lock, which is released meanwhile. */
static int plan(struct pool *p, const struct graph_id *of, struct restore *r,
		struct hm_ctl_restore *arg)
{
	size_t kept;
	int err;

	err = collect(p, of, true, &r->all);
	if (err)
		return err;
	pthread_mutex_unlock(&p->lock);
	kept = match(r);
	if (!is_there(r))
		err = hm_error(-ENOENT, "private_restore: memory of the checkpoint is not in the private pool");
	pthread_mutex_lock(&p->lock);
	if (!err)
		err = get_names(p, r, 2 * (r->saved->nr - kept));
	if (err)
		return err;
	pthread_mutex_unlock(&p->lock);
	err = report(p, r, arg);
	pthread_mutex_lock(&p->lock);
	return err;
}

static void restore_free(struct restore *r)
{
	free(r->all.piece);
	free(r->kept);
	free(r);
}

static struct restore *restore_new(const struct saved *saved)
{
	struct restore *r = calloc(1, sizeof(*r));

	if (!r)
		return NULL;
	r->saved = saved;
	r->kept = calloc(saved->nr + 1, sizeof(*r->kept));
	if (!r->kept) {
		free(r);
		return NULL;
	}
	return r;
}

static int restore_plan(struct pool *p, const struct saved *saved,
			struct hm_ctl_restore *arg)
{
	struct restore *r = restore_new(saved);
	struct graph_id *of;
	int err;

	if (!r)
		return hm_error(-ENOMEM, "private_restore: no host memory");
	pthread_mutex_lock(&p->lock);
	err = hm_private_take(p, arg->checkpoint->id, &of);
	if (err)
		goto out;
	if (p->asleep)
		err = hm_pool_asleep();
	else if (of->serial == saved->serial)
		err = plan(p, of, r, arg);
	else
		err = hm_error(-ENOENT, "private_restore: private pool %llu was released since the checkpoint",
			       (unsigned long long)of->id);
	if (!err) {
		of->restore = r;
		pthread_mutex_unlock(&p->lock);
		return 0;
	}
	put_names(p, r);
	hm_private_let_go(of);
out:
	pthread_mutex_unlock(&p->lock);
	restore_free(r);
	return err;
}

/* Restored contents are written by nobody before: no use of @list of parked blocks matters. */
static void drop_uses(struct pool *p, uint32_t list)
{
	struct block *b;

	for (; list; list = b->right) {
		b = block_at(p, list);
		hm_uses_put(p, b->left);
		b->left = 0;
		__atomic_store_n(&b->flags, b->flags & ~BLOCK_USED, __ATOMIC_RELEASE);
	}
}

/* As many pieces as are left are fewer than there were, so that there is room. */
static void free_blocks(struct pool *p, struct graph_id *of, struct restore *r)
{
	struct graph *g;
	size_t i;

	for (i = 0; i < r->all.nr; i++) {
		struct piece *e = &r->all.piece[i];

		if (e->kind != PIECE_LIVE || e->kept)
			continue;
		block_set_state(block_at(p, e->id), BLOCK_BUSY);
		hm_pool_free_slow(p, stream_at(p, 0), hm_graph_at(p, e->part),
				  block_at(p, e->id));
		if (i % PIECE == 0)
			hm_pool_pause(p);
	}
	r->all.nr = 0;
	add_all(p, &r->all, of, false, true);
	/* Parked ones are in the hands of the restore until its end. */
	for (g = of->parts; g; g = g->next) {
		drop_uses(p, g->parked);
		g->parked = 0;
	}
	pthread_mutex_unlock(&p->lock);
	qsort(r->all.piece, r->all.nr, sizeof(*r->all.piece), by_address);
	pthread_mutex_lock(&p->lock);
}

/* The name that was set aside is the next one that the cut finds. */
static struct block *cut(struct pool *p, struct restore *r, struct block *b,
			 uint64_t units)
{
	uint32_t id = r->names;

	r->names = block_at(p, id)->left;
	hm_name_put(p, id);
	return hm_block_cut(p, b, units);
}

static struct block *take_piece(struct pool *p, struct piece *e)
{
	struct block *b = block_at(p, e->id);

	if (e->kind == PIECE_FREE && !e->taken)
		hm_block_take(p, b);
	e->taken = true;
	return b;
}

/*
 * The BUSY block @to, cut out of the pieces from *@at on, which becomes the last
 * of them: what is left of it, if anything.
 */
static struct block *carve(struct pool *p, struct restore *r, struct piece **at,
			   const struct saved_block *to)
{
	const uint64_t end = to->addr + bytes_of(to->units);
	struct piece *e = *at, *first;
	struct block *b, *rest;

	while (piece_end(e) <= to->addr)
		e++;
	first = e;
	b = take_piece(p, e);
	while (piece_end(e) < end) {
		e->id = 0;
		e++;
		hm_block_join(p, b, take_piece(p, e));
	}
	if (first->addr < to->addr) {
		rest = cut(p, r, b, (to->addr - first->addr) >> UNIT_SHIFT);
		b->stream = first->part;
		b->right = r->fronts[first->kind];
		r->fronts[first->kind] = block_id(p, b);
		b = rest;
	}
	e->id = 0;
	if (piece_end(e) > end) {
		rest = cut(p, r, b, to->units);
		rest->stream = e->part;
		e->units = rest->units;
		e->addr = end;
		e->id = block_id(p, rest);
	}
	*at = e;
	return b;
}

static void alloc_blocks(struct pool *p, struct restore *r)
{
	struct piece *at = r->all.piece;
	struct block *b;
	size_t i;

	for (i = 0; i < r->saved->nr; i++) {
		const struct saved_block *to = &r->saved->blocks[i];

		if (r->kept[i])
			continue;
		b = carve(p, r, &at, to);
		b->stream = to->part;
		b->pos = 0;
		b->right = to->part;
		hm_pool_give(p, stream_at(p, 0), b, to->asked);
		if (i % PIECE == 0)
			hm_pool_pause(p);
	}
}

static void give_back(struct pool *p, struct block *b, enum piece_kind kind)
{
	struct graph *g = hm_graph_at(p, b->stream);

	b->pos = 0;
	if (kind == PIECE_FREE) {
		hm_block_release(p, b);
		return;
	}
	b->right = g->parked;
	g->parked = block_id(p, b);
}

/* What is left over. */
static void give_rest(struct pool *p, struct restore *r)
{
	unsigned int kind;
	uint32_t id, next;
	size_t i;

	for (i = 0; i < r->all.nr; i++) {
		const struct piece *e = &r->all.piece[i];

		if (e->id && (e->taken || e->kind == PIECE_PARKED))
			give_back(p, block_at(p, e->id), e->kind);
		if (i % PIECE == 0)
			hm_pool_pause(p);
	}
	for (kind = PIECE_FREE; kind <= PIECE_PARKED; kind++) {
		for (id = r->fronts[kind]; id; id = next) {
			next = block_at(p, id)->right;
			give_back(p, block_at(p, id), kind);
			if (++i % PIECE == 0)
				hm_pool_pause(p);
		}
	}
}

static int restore_end(struct pool *p, struct hm_ctl_restore *arg)
{
	CUstreamCaptureMode mode = hm_capture_relaxed(p->res.hm);
	struct graph_id *of;
	struct restore *r;

	pthread_mutex_lock(&p->lock);
	of = hm_graph_id(p, arg->checkpoint->id);
	r = of->restore;
	if (arg->step == HM_RESTORE_DO) {
		free_blocks(p, of, r);
		alloc_blocks(p, r);
		give_rest(p, r);
	}
	put_names(p, r);
	of->restore = NULL;
	hm_private_let_go(of);
	pthread_mutex_unlock(&p->lock);
	hm_capture_mode(p->res.hm, mode);
	arg->at += r->told;
	restore_free(r);
	return 0;
}

int hm_private_restore(struct pool *p, struct hm_ctl_restore *arg)
{
	const struct hm_saved *s = arg->checkpoint->saved;

	if (arg->step != HM_RESTORE_PLAN)
		return restore_end(p, arg);
	while (s && s->pool != p->order.serial)
		s = s->next;
	if (!s)
		return hm_error(-EINVAL, "private_restore: the checkpoint is of another resource");
	return restore_plan(p, (const struct saved *)s, arg);
}

void hm_private_forked(struct pool *p)
{
	struct graph_id *of;
	unsigned int i;

	for (i = 0; p->graphs && i < GRAPH_LISTS; i++) {
		for (of = p->graphs->ids[i]; of; of = of->next) {
			of->users = 0;
			of->taken = false;
			of->alone = false;
		}
	}
}
