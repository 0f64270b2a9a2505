// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The VMM pool: hetmem_pin_comm(). A transport opens memory of another process handle by handle,
 * if it can at all. So the block gets one new handle that others can open, at its old address.
 *
 * The handles that the block is in are replaced together, with all that is in them: their first
 * and last one may have other blocks, too. The host waits for the block's stream, without a
 * lock. Then the contents are copied to the new handle at a staging address, and the host waits
 * for the copy. The mappings change at last, if no block there was freed since. Until then
 * everything can be undone. A block with holes has several ranges, and each
 * of them gets a handle.
 *
 * Afterwards the handles are pinned: see pool/pins.h. Memory that others can open already, and
 * memory of a driver or a provider that makes no such handles, is only pinned.
 */
#include <stdio.h>
#include <stdlib.h>

#include "driver/check.h"
#include "pool/graph.h"
#include "pool/pins.h"
#include "vmm/pin.h"
#include "vmm/ring.h"
#include "vmm/sharers.h"
#include "vmm/sparse.h"

/* A mapping that has to be put back is tried so often. */
#define TRIES	3

/**
 * struct stage - new memory, and addresses to copy it to
 * @next: of those that the driver did not undo
 * @addr, @bytes: the addresses, 0: none; @mapped: the memory is there
 * @handle: the memory, if @made
 */
struct stage {
	struct stage *next;
	uintptr_t addr;
	uint64_t bytes;
	uint64_t handle;
	bool mapped, made;
};

/* A handle that is replaced. */
struct old {
	uint32_t id;
	uint32_t page, pages;
	uint64_t handle;
};

/**
 * struct gather - one range of a block that gets a new handle
 * @ptr: in the block @b; @s: its stream
 * @page, @pages: the range
 * @old, @nr: its handles, by address
 * @joined, @nr_joined: movable entries of other blocks
 * @sum: see hm_sharers_sum()
 * @stage: the new memory; @replaced: it is the memory of the range
 */
struct gather {
	const void *ptr;
	struct block *b;
	struct pool_stream *s;
	uint32_t page, pages;
	struct old *old;
	uint32_t nr;
	uint32_t *joined, nr_joined;
	uint64_t sum;
	struct stage *stage;
	bool replaced;
};

static int busy(const struct block *b, const char *reason)
{
	return hm_error(-EBUSY, "pin_comm: block %p stays: %s", (void *)(uintptr_t)b->addr, reason);
}

/* What can be pinned at all. */
static int check(const struct pool *p, const struct block *b)
{
	if (block_is_sparse(b))
		return hm_error(-EOPNOTSUPP, "pin_comm: memory of a sparse block comes and goes");
	if (hm_is_ring(vmm_of(p), b))
		return hm_error(-EOPNOTSUPP, "pin_comm: the memory of a ring has two addresses");
	if (b->flags & BLOCK_SPILLED || (b->flags & BLOCK_MOVABLE && hm_movable_moves(p, b)))
		return hm_error(-EBUSY, "pin_comm: the block is on the host or moves: hetmem_fetch()");
	return 0;
}

/* What can get new memory now; *@s: the stream that its uses are on. */
static int check_move(const struct pool *p, const struct block *b, struct pool_stream **s)
{
	*s = hm_block_owner(p, b);
	if (b->flags & BLOCK_GRAPH)
		return busy(b, "it belongs to a capture or a private pool");
	if (p->order.nr_captured || (*s)->graph)
		return busy(b, "a capture is open");
	if ((*s)->s.lost)
		return busy(b, "its stream was destroyed without hetmem_stream_retire()");
	return 0;
}

static bool is_shared(const struct pool *p, const struct handle *h)
{
	return h->flags & HANDLE_SHARED || p->provider->handle_types;
}

/* The first range of @b that is not one handle that others can open. false: there is none. */
static bool find_range(const struct pool *p, const struct block *b, uint32_t *from, uint32_t *to)
{
	const struct vmm *v = vmm_of(p);
	const uint32_t end = end_page(v, b);
	uint32_t page = first_page(v, b);
	const struct handle *h;
	unsigned int nr;
	bool shared;

	while (page < end) {
		*from = *to = mapping_at(v, v->map[page])->page;
		shared = true;
		for (nr = 0; *to < end && !hm_vmm_is_apart(v, *to); nr++) {
			h = handle_of_page(v, *to);
			shared &= is_shared(p, h);
			*to += h->pages;
		}
		if (nr > 1 || !shared)
			return true;
		page = *to < end ? hm_vmm_find_apart(v, *to, end, false) : end;
	}
	return false;
}

/* The memory at [@addr, @addr + @bytes) has a pin more, or one less. */
static void count_pin(struct pool *p, uint64_t addr, uint64_t bytes, bool on)
{
	struct vmm *v = vmm_of(p);
	const uint32_t end = page_of(v, addr + bytes - 1) + 1;
	uint32_t page = page_of(v, addr);

	while (page < end) {
		struct mapping *m = mapping_at(v, v->map[page]);
		struct handle *h = handle_at(v, m->handle);

		h->pins += on ? 1 : -1;
		if (on) {
			h->flags |= HANDLE_PINNED;
			h->flags &= ~HANDLE_LENT;
		} else if (!h->pins && h->others) {
			h->flags |= HANDLE_LENT;
		} else if (!h->pins && !p->opt.comm && !(h->flags & HANDLE_EXPORTED)) {
			h->flags &= ~HANDLE_PINNED;
		}
		page = hm_vmm_find_apart(v, m->page + h->pages, end, false);
	}
}

static int pin(struct pool *p, struct block *b)
{
	int err = hm_pins_reserve(p);

	if (err)
		return err;
	if (hm_pins_add(p, b))
		count_pin(p, b->addr, block_bytes(b), true);
	if (b->flags & BLOCK_MOVABLE)
		movable_of(spill_of(p), b)->pinned = true;
	return 0;
}

static int unpin(struct pool *p, struct block *b)
{
	struct hm_pin gone;
	int err = hm_pins_remove(p, b, &gone);

	if (err)
		return err;
	if (!gone.count)
		count_pin(p, gone.addr, gone.bytes, false);
	if (b->flags & BLOCK_MOVABLE)
		movable_of(spill_of(p), b)->pinned = hm_pins_has(p, b);
	return 0;
}

/* The stream of the @n-th recorded use of @b, or NULL: there are fewer. */
static struct pool_stream *nth_use(struct pool *p, const struct block *b, unsigned int n)
{
	uint32_t id = b->flags & BLOCK_USED ? b->left : 0;

	while (id && n--)
		id = use_at(p, id)->next;
	return id ? (struct pool_stream *)stream_by_serial(p, use_at(p, id)->stream,
							   use_at(p, id)->pos) : NULL;
}

/* Waits for the streams that use the block around @ptr, with pool->lock, which it releases. */
static int wait_for_uses(struct pool *p, const void *ptr)
{
	struct pool_stream *s;
	struct block *b;
	unsigned int n;
	int err;

	for (n = 0;; n++) {
		b = hm_pin_block(p, "pin_comm", ptr, &err);
		err = b ? check_move(p, b, &s) : err;
		if (n && !err)
			s = nth_use(p, b, n - 1);
		if (err || !s)
			return err;
		s->pins++;
		err = hm_spill_wait(p, s);
		s->pins--;
		if (err)
			return err;
	}
}

/* New memory, at addresses of its own. With pool->sleep_lock only, in the device's context. */

/* Gives back its addresses. After an error some are left. */
static int stage_unmap(struct pool *p, struct stage *st)
{
	const struct hm_provider_ops *ops = p->provider->ops;
	int err = 0;

	if (st->mapped)
		err = hm_retry_once(ops->unmap(p->provider, st->addr, st->bytes));
	st->mapped = err;
	if (!err && st->addr)
		err = hm_retry_once(ops->unreserve(p->provider, st->addr, st->bytes));
	if (!err)
		st->addr = 0;
	return err;
}

/* Gives it all back. What the driver does not undo is tried again later. */
static void stage_end(struct pool *p, struct stage *st)
{
	struct hm_spill *sp = spill_of(p);

	if (stage_unmap(p, st)) {
		st->next = sp->stages;
		sp->stages = st;
		return;
	}
	if (st->made)
		hm_spill_release_memory(p, st->handle, st->bytes >> vmm_of(p)->shift);
	free(st);
}

void hm_pin_reap(struct pool *p)
{
	struct stage *st = spill_of(p)->stages, *next;

	spill_of(p)->stages = NULL;
	for (; st; st = next) {
		next = st->next;
		stage_end(p, st);
	}
}

void hm_pin_forget(struct hm_spill *sp)
{
	struct stage *st;

	while ((st = sp->stages)) {
		sp->stages = st->next;
		free(st);
	}
}

static int stage_make(struct pool *p, struct gather *g)
{
	const struct hm_provider_ops *ops = p->provider->ops;
	struct stage *st = calloc(1, sizeof(*st));
	int err;

	if (!st)
		return hm_error(-ENOMEM, "pin_comm: no host memory");
	g->stage = st;
	st->bytes = bytes_of(p, g->pages);
	err = hm_spill_make_memory(p, g->pages, true, &st->handle);
	if (err == -ENOMEM) {
		char reason[160];

		snprintf(reason, sizeof(reason), "%s", hetmem_last_error());
		return hm_error(err, "pin_comm: %llu bytes are needed until the block has moved: %s",
				(unsigned long long)st->bytes, reason);
	}
	if (err)
		return err;
	st->made = true;
	err = ops->reserve(p->provider, st->bytes, p->provider->granularity, &st->addr);
	if (err) {
		st->addr = 0;
		return err;
	}
	err = ops->map(p->provider, st->addr, st->bytes, st->handle);
	st->mapped = !err || err == -EUCLEAN;
	return err == -EUCLEAN ? -EIO : err;
}

/* Copies the contents there, and waits. All uses are complete. */
static int copy(struct pool *p, const struct gather *g)
{
	const struct hm_driver *d = &p->res.hm->driver;
	struct hm_spill *sp = spill_of(p);
	uint64_t to = g->stage->addr;
	CUresult res = CUDA_SUCCESS, end;
	uint32_t i;

	for (i = 0; i < g->nr && !res; i++) {
		const uint64_t bytes = bytes_of(p, g->old[i].pages);

		res = d->cuMemcpyAsync(to, page_addr(vmm_of(p), g->old[i].page), bytes, sp->pins);
		to += bytes;
	}
	end = hm_retry_once(d->cuStreamSynchronize(sp->pins));
	if (res)
		return hm_driver_error(d, "cuMemcpyAsync", res);
	return end ? hm_driver_error(d, "cuStreamSynchronize", end) : 0;
}

/* The change of mappings. With pool->sleep_lock only, since a row of handles takes a while. */

/* @h has no memory that can be used; @half: the driver did not unmap what has no access. */
static void tear(struct pool *p, uint32_t handle, bool half)
{
	struct vmm *v = vmm_of(p);

	pthread_mutex_lock(&p->lock);
	handle_at(v, handle)->flags |= HANDLE_TORN;
	mapping_at(v, handle_at(v, handle)->mapping)->half = half;
	pthread_mutex_unlock(&p->lock);
}

/* @old gets its mapping back. false: the driver does not map it. */
static bool map_again(struct pool *p, const struct old *old)
{
	const struct hm_provider_ops *ops = p->provider->ops;
	const uint64_t addr = page_addr(vmm_of(p), old->page), bytes = bytes_of(p, old->pages);
	bool half = false;
	unsigned int try;
	int err = -EIO;

	for (try = 0; try < TRIES && err && !half; try++) {
		err = ops->map(p->provider, addr, bytes, old->handle);
		if (err == -EUCLEAN)
			half = hm_retry_once(ops->unmap(p->provider, addr, bytes));
	}
	if (err)
		tear(p, old->id, half);
	return !err;
}

/* The handles of the range are one, with the new memory. With pool->lock. */
static void commit(struct pool *p, struct gather *g)
{
	struct vmm *v = vmm_of(p);
	struct handle *h = handle_at(v, g->old[0].id);
	bool small = false;
	uint32_t i;

	for (i = 0; i < g->nr; i++) {
		small |= handle_at(v, g->old[i].id)->flags & HANDLE_SMALL;
		hm_vmm_set_small(v, g->old[i].id, false);
	}
	for (i = 1; i < g->nr; i++)
		hm_vmm_merge_next(p, h, g->old[i].id);
	h->handle = g->stage->handle;
	h->flags = HANDLE_SHARED;
	hm_vmm_set_small(v, g->old[0].id, small);
	g->stage->made = false;
	p->calls += g->nr + 2;
}

/*
 * The range gets its new memory. After an error it has the old memory, and *@torn: not all of
 * it, or the new memory without access, which is there to stay then.
 */
static int swap(struct pool *p, struct gather *g, bool *torn)
{
	const struct hm_provider_ops *ops = p->provider->ops;
	const uint64_t addr = page_addr(vmm_of(p), g->page), bytes = bytes_of(p, g->pages);
	uint32_t i, nr;
	int err = 0;

	for (nr = 0; nr < g->nr && !err; nr += !err)
		err = ops->unmap(p->provider, page_addr(vmm_of(p), g->old[nr].page),
				 bytes_of(p, g->old[nr].pages));
	if (!err)
		err = ops->map(p->provider, addr, bytes, g->stage->handle);
	*torn = err == -EUCLEAN && hm_retry_once(ops->unmap(p->provider, addr, bytes));
	if (err && !*torn)
		for (i = 0; i < nr; i++)
			*torn |= !map_again(p, &g->old[i]);
	else if (!err || *torn)
		g->replaced = true;
	return err == -EUCLEAN ? -EIO : err;
}

/* Blocks at the range are not reused when they are freed: memory of them has no mapping. */
static void set_torn(struct pool *p, const struct gather *g)
{
	const uint64_t from = page_addr(vmm_of(p), g->page), to = from + bytes_of(p, g->pages);
	struct block *b = g->b;

	while (b->addr > from && b->prev)
		b = block_at(p, b->prev);
	for (;;) {
		if (block_state(b) == BLOCK_LIVE)
			__atomic_store_n(&b->flags, b->flags | BLOCK_SPILLED, __ATOMIC_RELEASE);
		if (block_end(b) >= to || !b->next)
			return;
		b = block_at(p, b->next);
	}
}

/* If no block there was freed since plan(). */
static int change(struct pool *p, struct gather *g)
{
	const uint64_t from = page_addr(vmm_of(p), g->page), to = from + bytes_of(p, g->pages);
	bool same, torn;
	int err;

	pthread_mutex_lock(&p->lock);
	same = hm_sharers_sum(p, g->b, from, to) == g->sum;
	pthread_mutex_unlock(&p->lock);
	if (!same)
		return hm_error(-EBUSY, "pin_comm: a block beside %p was freed meanwhile", g->ptr);
	err = swap(p, g, &torn);
	pthread_mutex_lock(&p->lock);
	if (g->replaced)
		commit(p, g);
	if (torn && g->replaced) {
		handle_of_page(vmm_of(p), g->page)->flags |= HANDLE_TORN;
		mapping_at(vmm_of(p), vmm_of(p)->map[g->page])->half = true;
	}
	if (torn)
		set_torn(p, g);
	pthread_mutex_unlock(&p->lock);
	return err;
}

/* What is replaced. */

static int check_handle(const struct block *b, const struct handle *h)
{
	if (h->others)
		return busy(b, "it has an alias, or memory beside it");
	if (h->flags & HANDLE_PINNED)
		return busy(b, "a part of it is pinned with another block: pin the larger block first");
	if (h->flags & (HANDLE_HOST | HANDLE_MOVES | HANDLE_TORN | HANDLE_ASLEEP | HANDLE_STUCK |
			HANDLE_RING))
		return busy(b, "memory beside it is on the host or moves");
	return 0;
}

static uint32_t last_page(const struct gather *g)
{
	return g->old[g->nr - 1].page;
}

/* Asks for the first and the last handle, which other blocks may have, too. */
static int ask_ends(struct pool *p, struct block *b, const struct gather *g, uint32_t *room)
{
	uint32_t nr;
	int err = 0;

	*room = 1;
	if (!hm_spill_is_whole(p, b, g->page)) {
		err = hm_sharers_ask_pin(p, g->s, b, g->page, &nr);
		*room += err ? 0 : nr;
	}
	if (!err && g->nr > 1 && !hm_spill_is_whole(p, b, last_page(g))) {
		err = hm_sharers_ask_pin(p, g->s, b, last_page(g), &nr);
		*room += err ? 0 : nr;
	}
	return err;
}

static void release_ends(struct pool *p, const struct gather *g)
{
	const struct vmm *v = vmm_of(p);

	if (!(handle_of_page(v, g->page)->flags & HANDLE_TORN))
		hm_sharers_release(p, g->b, g->page);
	if (v->map[last_page(g)] != v->map[g->page] &&
	    !(handle_of_page(v, last_page(g))->flags & HANDLE_TORN))
		hm_sharers_release(p, g->b, last_page(g));
}

static int join_ends(struct pool *p, struct block *b, struct gather *g)
{
	int err = 0;

	if (!hm_spill_is_whole(p, b, g->page))
		err = hm_sharers_join(p, b, g->page, g->joined, &g->nr_joined);
	if (!err && g->nr > 1 && !hm_spill_is_whole(p, b, last_page(g))) {
		err = hm_sharers_join(p, b, last_page(g), g->joined, &g->nr_joined);
		if (err)
			release_ends(p, g);
	}
	return err == -ENOMEM ? hm_error(err, "pin_comm: no host memory") : err;
}

/* The handles of the range. */
static int list_old(struct pool *p, struct block *b, struct gather *g)
{
	struct vmm *v = vmm_of(p);
	uint32_t page;
	int err = 0;

	g->nr = 0;
	for (page = g->page; page < g->page + g->pages && !err; g->nr++) {
		const uint32_t id = mapping_at(v, v->map[page])->handle;
		const struct handle *h = handle_at(v, id);

		err = check_handle(b, h);
		if (!err && !hm_vmm_unalias_handle(p, id))
			err = busy(b, "its memory is in use at another address, too");
		g->old[g->nr] = (struct old){ id, page, h->pages, h->handle };
		page += h->pages;
	}
	return err;
}

/* Nothing else gets memory of the range from now on. 0 and no handles: there is nothing to do. */
static int plan(struct pool *p, struct gather *g)
{
	uint32_t to, room, i;
	struct block *b;
	int err;

	b = hm_pin_block(p, "pin_comm", g->ptr, &err);
	if (b)
		err = check(p, b);
	if (!err)
		err = check_move(p, b, &g->s);
	if (err || !find_range(p, b, &g->page, &to))
		return err;
	g->b = b;
	g->pages = to - g->page;
	free(g->old);
	g->old = malloc(g->pages * sizeof(*g->old));
	if (!g->old)
		return hm_error(-ENOMEM, "pin_comm: no host memory");
	err = list_old(p, b, g);
	if (!err)
		err = ask_ends(p, b, g, &room);
	if (!err) {
		g->joined = malloc(room * sizeof(*g->joined));
		err = g->joined ? join_ends(p, b, g) :
			hm_error(-ENOMEM, "pin_comm: no host memory");
	}
	if (err) {
		g->nr = 0;
		return err;
	}
	for (i = 0; i < g->nr; i++)
		handle_at(vmm_of(p), g->old[i].id)->flags |= HANDLE_MOVES;
	g->sum = hm_sharers_sum(p, b, page_addr(vmm_of(p), g->page), page_addr(vmm_of(p), to));
	return 0;
}

/* Undoes plan(), whether the memory is new or not. */
static void unplan(struct pool *p, struct gather *g)
{
	struct hm_spill *sp = spill_of(p);
	uint32_t page, i;

	for (page = g->page; page < g->page + g->pages; page += handle_of_page(vmm_of(p), page)->pages)
		handle_of_page(vmm_of(p), page)->flags &= ~HANDLE_MOVES;
	release_ends(p, g);
	for (i = 0; i < g->nr_joined; i++)
		movable_at(sp, g->joined[i])->joined--;
	for (i = 0; i < g->nr_joined; i++)
		hm_movable_ended(p, movable_at(sp, g->joined[i]));
}

/* The whole change, in the device's context. With pool->sleep_lock only. */
static int replace(struct pool *p, struct gather *g)
{
	const struct hm_driver *d = &p->res.hm->driver;
	struct hm_spill *sp = spill_of(p);
	const uint64_t from = page_addr(vmm_of(p), g->page), bytes = bytes_of(p, g->pages);
	CUresult res = sp->pins ? CUDA_SUCCESS :
		d->cuStreamCreate(&sp->pins, CU_STREAM_NON_BLOCKING);
	const hetmem_stream s = g->s->s.retired ? HETMEM_STREAM_HOST : hm_stream_handle(&g->s->s);
	int err;

	if (res) {
		sp->pins = NULL;
		return hm_driver_error(d, "cuStreamCreate", res);
	}
	hm_pin_reap(p);
	hm_check_move_begin(p->res.hm, (void *)(uintptr_t)from, bytes, s, sp->pins, true);
	err = stage_make(p, g);
	if (!err)
		err = copy(p, g);
	if (!err)
		err = stage_unmap(p, g->stage);
	if (!err)
		err = change(p, g);
	hm_check_move_end(p->res.hm, (void *)(uintptr_t)from, bytes);
	return err;
}

/* Gives the block around @ptr one new handle, or one to a range of it. All or nothing. */
static int gather(struct pool *p, const void *ptr)
{
	struct gather g = { .ptr = ptr };
	struct hm_context saved;
	uint64_t addr;
	uint32_t i;
	int err = hm_pool_lock_moves_within(p, hm_pool_most_wait(p));

	if (err)
		return err;
	p->work = 0;
	hm_pool_poll(p);
	err = plan(p, &g);
	if (err == -EAGAIN) {
		hm_pool_flush(p);
		free(g.joined);
		g.joined = NULL;
		err = plan(p, &g);
		if (err == -EAGAIN)
			err = hm_error(-EBUSY, "pin_comm: block around %p stays: it shares a handle with cached blocks",
				       ptr);
	}
	if (g.nr) {
		addr = page_addr(vmm_of(p), g.page);
		pthread_mutex_unlock(&p->lock);
		hm_spill_observe_one(p, HETMEM_REMAP_PIN, addr, bytes_of(p, g.pages), false, 0);
		err = hm_provider_enter(p->provider, &saved);
		if (!err) {
			err = replace(p, &g);
			if (g.stage)
				stage_end(p, g.stage);
			for (i = 0; i < g.nr && g.replaced; i++)
				hm_spill_release_memory(p, g.old[i].handle, g.old[i].pages);
			hm_context_leave(p->res.hm, &saved);
		}
		hm_spill_observe_one(p, HETMEM_REMAP_PIN, addr, bytes_of(p, g.pages), true, err);
		pthread_mutex_lock(&p->lock);
		unplan(p, &g);
	}
	hm_pool_unlock_moves(p);
	free(g.joined);
	free(g.old);
	return err;
}

int hm_vmm_pin(struct pool *p, const void *ptr, bool on)
{
	bool gathers = on && p->provider->ops->create_shared && !p->opt.comm, again;
	uint32_t from, to;
	struct block *b;
	int err;

	do {
		pthread_mutex_lock(&p->lock);
		b = hm_pin_block(p, on ? "pin_comm" : "unpin_comm", ptr, &err);
		if (b && on)
			err = check(p, b);
		again = !err && gathers && find_range(p, b, &from, &to);
		if (again)
			err = wait_for_uses(p, ptr);
		else if (!err)
			err = on ? pin(p, b) : unpin(p, b);
		pthread_mutex_unlock(&p->lock);
		if (again && !err) {
			err = gather(p, ptr);
			/* The driver makes no handles for others: what there is, is pinned. */
			gathers = err != -EOPNOTSUPP;
			err = gathers ? err : 0;
		}
	} while (again && !err);
	return err;
}
