// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* The blocks of one handle: see sharers.h. */
#include <limits.h>

#include "pool/graph.h"
#include "vmm/sharers.h"
#include "vmm/spill.h"

/* Instructions of a part of a dropped block, about. */
#define DROP_WORK	2048

/* Addresses of a handle. */
struct bounds {
	uint64_t from;
	uint64_t to;
};

static struct bounds bounds_of(const struct pool *p, uint32_t page)
{
	const struct vmm *v = vmm_of(p);
	const struct mapping *m = mapping_at(v, v->map[page]);

	return (struct bounds){
		page_addr(v, m->page), page_addr(v, m->page + handle_at(v, m->handle)->pages),
	};
}

/* The first block of the handle, or NULL: it has too many. */
static struct block *first_of(const struct pool *p, const struct block *b,
			      const struct bounds *h)
{
	unsigned int n = 0;

	for (; b->addr > h->from; b = block_at(p, b->prev))
		if (!b->prev || ++n > HM_MOST_SHARERS)
			return NULL;
	return block_at(p, block_id(p, b));
}

/* The next block of the handle, or NULL. */
static struct block *next_of(const struct pool *p, const struct block *b,
			     const struct bounds *h)
{
	return block_end(b) < h->to && b->next ? block_at(p, b->next) : NULL;
}

static int stays(const struct block *b, const struct block *other, const char *reason)
{
	return hm_error(-EBUSY, "block %p stays: it shares a handle with %p, which %s",
			(void *)(uintptr_t)b->addr, (void *)(uintptr_t)other->addr, reason);
}

/* Whether the live block @other moves with @b. */
static int ask_live(struct pool *p, const struct pool_stream *s, const struct block *b,
		    const struct block *other)
{
	struct pool_stream *of;
	int err;

	if (!(other->flags & BLOCK_MOVABLE))
		return stays(b, other, "is not movable");
	err = hm_spill_check(p, other, &of);
	if (err)
		return err;
	if (of != s)
		return stays(b, other, "is of another stream");
	if (movable_of(spill_of(p), other)->begun)
		return stays(b, other, "moves");
	return 0;
}

/* Likewise, with a block that is pinned. */
static int ask_pin_live(struct pool *p, const struct pool_stream *s, const struct block *b,
			const struct block *other)
{
	if (other->flags & BLOCK_GRAPH)
		return stays(b, other, "belongs to a capture or a private pool");
	if (hm_block_owner(p, other) != s)
		return stays(b, other, "is of another stream: pin it before that one is allocated, or allocate it in a pool with comm=on");
	if (other->flags & BLOCK_USED)
		return stays(b, other, "was recorded on another stream");
	if (other->flags & BLOCK_SPILLED || (other->flags & BLOCK_MOVABLE && hm_movable_moves(p, other)))
		return stays(b, other, "is on the host or moves");
	return 0;
}

/* The driver is asked about its stream. Nothing waits. */
static int ask_free(struct pool *p, const struct block *b, const struct block *other)
{
	if (other->flags & (BLOCK_GRAPH | BLOCK_WHOLE))
		return stays(b, other, "is memory of a capture");
	if (!hm_block_done(p, other))
		hm_stream_ask(&p->order, p->order.streams[other->stream]);
	return hm_block_done(p, other) ? 0 : stays(b, other, "is still in use");
}

static int ask_one(struct pool *p, const struct pool_stream *s, const struct block *b,
		   const struct block *other, bool pin)
{
	switch (block_state(other)) {
	case BLOCK_LIVE:
		return pin ? ask_pin_live(p, s, b, other) : ask_live(p, s, b, other);
	case BLOCK_CACHED:
		return -EAGAIN;
	case BLOCK_HELD:
		return 0;
	case BLOCK_FREE:
		return ask_free(p, b, other);
	default:
		return stays(b, other, "is being freed");
	}
}

static int ask(struct pool *p, const struct pool_stream *s, const struct block *b,
	       uint32_t page, bool pin, uint32_t *nr, int *priority)
{
	const struct bounds h = bounds_of(p, page);
	const struct block *other = first_of(p, b, &h);
	const struct hm_spill *sp = spill_of(p);
	unsigned int n;
	int err = 0;

	*nr = 0;
	*priority = INT_MIN;
	if (handle_of_page(vmm_of(p), page)->flags & HANDLE_PINNED)
		return stays(b, b, "is pinned");
	for (n = 0; other && !err; other = next_of(p, other, &h)) {
		if (n++ == HM_MOST_SHARERS)
			break;
		if (other != b)
			err = ask_one(p, s, b, other, pin);
		/* A block can be freed by now: it is movable until the freeing thread has the lock. */
		if (err || !(other->flags & BLOCK_MOVABLE))
			continue;
		++*nr;
		if (movable_of(sp, other)->priority > *priority)
			*priority = movable_of(sp, other)->priority;
	}
	if (err)
		return err;
	return n && n <= HM_MOST_SHARERS && !other ? 0 : stays(b, b, "has too many blocks");
}

int hm_sharers_ask(struct pool *p, const struct pool_stream *s, const struct block *b,
		   uint32_t page, uint32_t *nr, int *priority)
{
	return ask(p, s, b, page, false, nr, priority);
}

int hm_sharers_ask_pin(struct pool *p, const struct pool_stream *s, const struct block *b,
		       uint32_t page, uint32_t *nr)
{
	int priority;

	return ask(p, s, b, page, true, nr, &priority);
}

uint64_t hm_sharers_sum(const struct pool *p, const struct block *b, uint64_t from, uint64_t to)
{
	uint64_t sum = 0;

	while (b->addr > from && b->prev)
		b = block_at(p, b->prev);
	for (;;) {
		sum = (sum ^ b->addr) * 0x9e3779b97f4a7c15ULL;
		sum = (sum ^ b->units ^ (uint64_t)block_state(b) << 32) * 0x9e3779b97f4a7c15ULL;
		if (block_end(b) >= to || !b->next)
			return sum;
		b = block_at(p, b->next);
	}
}

/* The piece of BUSY @b that is in @h, what is outside is released; NULL: no memory. */
static struct block *cut_to(struct pool *p, struct block *b, const struct bounds *h)
{
	struct block *rest;

	if (block_end(b) > h->to) {
		rest = hm_block_cut(p, b, (h->to - b->addr) >> UNIT_SHIFT);
		if (!rest)
			return NULL;
		hm_block_release(p, rest);
	}
	if (b->addr < h->from) {
		rest = hm_block_cut(p, b, (h->from - b->addr) >> UNIT_SHIFT);
		if (!rest)
			return NULL;
		hm_block_release(p, b);
		b = rest;
	}
	return b;
}

/* BUSY @b is complete, and within one handle. */
static void hold(struct pool *p, struct block *b)
{
	b->stream = 0;
	b->pos = 0;
	b->slack = 0;
	__atomic_store_n(&b->flags, block_zone(b), __ATOMIC_RELAXED);
	block_set_state(b, BLOCK_HELD);
	spill_of(p)->held += block_bytes(b);
}

/* It is BUSY again. */
static void let_go(struct pool *p, struct block *b)
{
	block_set_state(b, BLOCK_BUSY);
	spill_of(p)->held -= block_bytes(b);
}

int hm_sharers_join(struct pool *p, const struct block *b, uint32_t page, uint32_t *list,
		    uint32_t *nr)
{
	const struct bounds h = bounds_of(p, page);
	struct block *other = first_of(p, b, &h), *piece;
	const uint32_t before = *nr;

	for (; other; other = next_of(p, other, &h)) {
		if (other->flags & BLOCK_MOVABLE && other != b) {
			movable_of(spill_of(p), other)->joined++;
			list[(*nr)++] = other->right;
		}
		if (block_state(other) != BLOCK_FREE)
			continue;
		hm_block_take(p, other);
		piece = cut_to(p, other, &h);
		if (!piece) {
			hm_block_release(p, other);
			while (*nr > before)
				movable_at(spill_of(p), list[--*nr])->joined--;
			hm_sharers_release(p, b, page);
			return -ENOMEM;
		}
		hold(p, piece);
		other = piece;
	}
	return 0;
}

void hm_sharers_release(struct pool *p, const struct block *b, uint32_t page)
{
	const struct bounds h = bounds_of(p, page);
	struct block *other = first_of(p, b, &h);

	for (; other; other = next_of(p, other, &h)) {
		if (block_state(other) != BLOCK_HELD)
			continue;
		let_go(p, other);
		other = hm_block_release(p, other);
	}
}

/* Gives back the handle at @page, on the host, if all of it is held. @b is one of its blocks. */
static void discard_held(struct pool *p, const struct block *b, uint32_t page)
{
	const struct vmm *v = vmm_of(p);
	const struct mapping *m = mapping_at(v, v->map[page]);
	const struct bounds h = bounds_of(p, page);
	struct block *first = first_of(p, b, &h), *other;
	struct vmm_free f = {
		.handle = m->handle, .page = m->page, .pages = handle_at(v, m->handle)->pages,
	};
	bool left;

	for (other = first; other; other = next_of(p, other, &h))
		if (block_state(other) != BLOCK_HELD)
			return;
	if (!first)
		return;
	let_go(p, first);
	while ((other = next_of(p, first, &h))) {
		let_go(p, other);
		hm_block_join(p, first, other);
	}
	f.block = block_id(p, first);
	/* It is exactly the handle: nothing is cut, and that cannot fail. */
	hm_vmm_discard(p, &f, &left);
}

/*
 * The last part of BUSY @b is in the handle at @page, on the host, with other blocks. *@left:
 * there is more of @b. false: no memory.
 */
static bool hold_part(struct pool *p, struct block *b, uint32_t page, bool *left)
{
	const struct bounds h = bounds_of(p, page);
	struct block *rest, *piece = b;

	if (block_end(b) > h.to) {
		rest = hm_block_cut(p, b, (h.to - b->addr) >> UNIT_SHIFT);
		if (!rest)
			return false;
		hm_block_release(p, rest);
	}
	*left = b->addr < h.from;
	if (*left)
		piece = hm_block_cut(p, b, (h.from - b->addr) >> UNIT_SHIFT);
	if (!piece)
		return false;
	hold(p, piece);
	discard_held(p, piece, page);
	return true;
}

/* All of @b's handle is in it. */
static bool discard_whole(struct pool *p, struct block *b, uint32_t page, bool *left)
{
	const struct vmm *v = vmm_of(p);
	const struct mapping *m = mapping_at(v, v->map[page]);
	const struct vmm_free f = {
		.handle = m->handle, .page = m->page,
		.pages = handle_at(v, m->handle)->pages, .block = block_id(p, b),
	};

	return hm_vmm_discard(p, &f, left);
}

bool hm_sharers_drop(struct pool *p, struct block *b)
{
	const struct vmm *v = vmm_of(p);
	const uint32_t first = first_page(v, b);
	uint32_t page = end_page(v, b);
	bool left = true, done;

	__atomic_store_n(&b->flags, b->flags & ~BLOCK_SPILLED, __ATOMIC_RELEASE);
	/* From the end on: what is before keeps its name. */
	while (left && page > first) {
		const struct mapping *m = mapping_at(v, v->map[page - 1]);
		const struct bounds h = bounds_of(p, m->page);

		page = m->page;
		if (!(handle_at(v, m->handle)->flags & (HANDLE_HOST | HANDLE_TORN)))
			continue;
		done = h.from < b->addr || h.to > block_end(b) ?
			hold_part(p, b, page, &left) : discard_whole(p, b, page, &left);
		if (!done) {
			__atomic_store_n(&b->flags, b->flags | BLOCK_SPILLED, __ATOMIC_RELEASE);
			return false;
		}
		hm_pool_step(p, DROP_WORK);
	}
	if (left)
		hm_block_release(p, b);
	return true;
}
