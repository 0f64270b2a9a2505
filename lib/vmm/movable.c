// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Movable blocks: which of them move by themselves, and when.
 *
 * When the device or max= is full, blocks of the stream that needs memory go to the host:
 * those of the lowest priority first; of one priority, the oldest of the step. In training
 * the backward pass needs the oldest last. Blocks from before the step (weights) go after
 * all of the step's. The pool cannot see uses, so age is all that it knows.
 *
 * A step begins when the bytes of movable blocks rise again after they fell: by a quarter
 * of the step's most, and by a quarter of the way back.
 *
 * When there is room, the blocks that were spilled last come back first: the backward pass
 * needs them first. They come back many at a time, since the host waits for the stream, and
 * leave a margin of free memory. The margin grows when a block that came back has to leave
 * in the same step, and shrinks from step to step.
 */
#include <limits.h>
#include <stdlib.h>

#include "vmm/sharers.h"
#include "vmm/spill.h"

/* Parts of the ceiling: what moves at once at least, each way, and the least margin. */
#define OUT_SHARE	64
#define BACK_SHARE	32
#define MARGIN_SHARE	16
/* Of the ceiling, the most margin; the part by which it grows. */
#define MOST_MARGIN	2
#define MARGIN_GROWTH	8
/* Ages of the blocks of a step: those of one age go by size. */
#define AGES		16
/* Instructions of a look at a block, and at a handle of it, about. */
#define LOOK_WORK	256

static uint64_t ceiling(const struct pool *p)
{
	return p->opt.max ? p->opt.max : spill_of(p)->ceiling;
}

/* Steps. */

static void step_rises(struct pool *p)
{
	struct hm_spill *sp = spill_of(p);
	uint64_t least = ceiling(p) / MARGIN_SHARE;

	if (sp->low < sp->high - sp->high / 4 &&
	    sp->bytes > sp->low + (sp->high - sp->low) / 4) {
		sp->step_birth = sp->low_birth;
		sp->high = sp->bytes;
		sp->low = sp->bytes;
		sp->low_birth = sp->births;
		sp->margin -= sp->margin / 4;
		if (sp->margin < least)
			sp->margin = least;
	}
	if (sp->bytes > sp->high) {
		sp->high = sp->bytes;
		/* What fell before the step's most is no end of a step. */
		sp->low = sp->bytes;
		sp->low_birth = sp->births;
	}
}

static void step_falls(struct hm_spill *sp)
{
	if (sp->bytes >= sp->low)
		return;
	sp->low = sp->bytes;
	sp->low_birth = sp->births;
}

void hm_movable_declare(struct pool *p, struct block *b, int priority)
{
	struct hm_spill *sp = spill_of(p);
	uint32_t id = hm_table_get(&sp->movables);

	if (!id)
		return;
	*movable_at(sp, id) = (struct movable){
		.block = block_id(p, b), .priority = priority, .birth = ++sp->births,
		.bytes = block_bytes(b),
	};
	sp->nr_movables++;
	sp->bytes += block_bytes(b);
	step_rises(p);
	b->right = id;
	__atomic_store_n(&b->flags, b->flags | BLOCK_MOVABLE, __ATOMIC_RELEASE);
}

static void forget(struct pool *p, struct movable *m)
{
	struct hm_spill *sp = spill_of(p);
	struct block *b = block_at(p, m->block);

	sp->nr_movables--;
	m->block = 0;
	hm_table_put(&sp->movables, b->right);
	b->right = 0;
	__atomic_store_n(&b->flags, b->flags & ~BLOCK_MOVABLE, __ATOMIC_RELEASE);
}

bool hm_movable_forget(struct pool *p, struct block *b)
{
	struct hm_spill *sp = spill_of(p);
	struct movable *m = movable_of(sp, b);

	sp->bytes -= m->bytes;
	step_falls(sp);
	if (m->move || m->joined) {
		m->freed = true;
		/* Its slot stays its own until the block is free. */
		stream_at(p, b->stream)->pins++;
		return false;
	}
	forget(p, m);
	return true;
}

void hm_movable_ended(struct pool *p, struct movable *m)
{
	struct block *b = block_at(p, m->block);

	if (m->move || m->joined || !m->freed)
		return;
	forget(p, m);
	stream_at(p, b->stream)->pins--;
	hm_pool_let_go(p, b);
}

/* Candidates: movable blocks of one stream, in the order in which they move. */

/**
 * struct candidate - a block that can move
 * @id, @birth: its entry: it may be another one's when the lock was released
 * @old: from before the step
 * @age: of the step
 * @bytes: of it
 */
struct candidate {
	uint32_t id;
	uint64_t birth;
	int priority;
	bool old;
	unsigned int age;
	uint64_t spilled_at;
	uint64_t bytes;
};

struct candidates {
	struct candidate *list;
	size_t nr;
	size_t room;
};

static int by_leaving(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;

	if (x->priority != y->priority)
		return x->priority < y->priority ? -1 : 1;
	if (x->old != y->old)
		return x->old ? 1 : -1;
	if (x->age != y->age)
		return x->age < y->age ? -1 : 1;
	if (x->bytes != y->bytes)
		return x->bytes > y->bytes ? -1 : 1;
	return x->birth < y->birth ? -1 : 1;
}

static int by_return(const void *a, const void *b)
{
	const struct candidate *x = a, *y = b;

	if (x->priority != y->priority)
		return x->priority > y->priority ? -1 : 1;
	return x->spilled_at > y->spilled_at ? -1 : 1;
}

static bool add(struct candidates *c, const struct candidate *one)
{
	size_t room = c->room ? 2 * c->room : 256;
	struct candidate *list;

	if (c->nr == c->room) {
		list = realloc(c->list, room * sizeof(*list));
		if (!list)
			return false;
		c->list = list;
		c->room = room;
	}
	c->list[c->nr++] = *one;
	return true;
}

/* The stream of the block is @s, and no other one that had its slot before. */
static bool is_of(const struct block *b, const struct pool_stream *s)
{
	return b->stream == s->s.index && (!s->s.index || b->pos == s->s.serial);
}

/*
 * Handles as a search sees them. Several blocks of one handle are candidates, and the handle
 * is asked about, and its bytes are counted, once: @seen is twice the number of the search,
 * and one more if the handle stays. A handle on the host can come back.
 */

static bool can_leave(struct pool *p, struct pool_stream *s, const struct block *b,
		      struct handle *h, uint32_t page, uint32_t search)
{
	uint32_t nr;

	if (h->flags & (HANDLE_HOST | HANDLE_PINNED | HANDLE_TORN))
		return false;
	if (hm_spill_is_whole(p, b, page)) {
		h->seen = 2 * search;
		h->priority = INT_MIN;
	} else if (h->seen / 2 != search) {
		h->seen = 2 * search;
		h->seen += hm_sharers_ask(p, s, b, page, &nr, &h->priority) != 0;
	}
	return !(h->seen & 1);
}

/* Whether something of @b can go to the host, or come back. */
static bool has_something(struct pool *p, struct pool_stream *s, const struct block *b,
			  bool spilled, uint32_t search)
{
	uint32_t page = first_page(vmm_of(p), b), at;
	struct handle *h;
	bool has = false;

	while ((h = hm_spill_next_handle(p, b, &page, &at))) {
		p->work += LOOK_WORK;
		if (spilled)
			has |= h->flags & HANDLE_HOST;
		else
			has |= can_leave(p, s, b, h, at, search);
	}
	return has;
}

/* Bytes of handles that move with @b and were not counted, if @seen is that of none. */
static uint64_t count_bytes(struct pool *p, const struct block *b, int priority, bool spill,
			    uint32_t search)
{
	uint32_t page = first_page(vmm_of(p), b), at;
	uint64_t sum = 0;
	struct handle *h;

	while ((h = hm_spill_next_handle(p, b, &page, &at))) {
		if (!(h->flags & HANDLE_HOST) != spill || h->seen == 2 * search)
			continue;
		if (spill && (h->seen & 1 || h->priority > priority ||
			      h->flags & (HANDLE_PINNED | HANDLE_TORN)))
			continue;
		h->seen = 2 * search;
		sum += bytes_of(p, h->pages);
	}
	return sum;
}

static void consider(struct pool *p, struct pool_stream *s, uint32_t id, bool spilled,
		     uint32_t search, struct candidates *c)
{
	const struct hm_spill *sp = spill_of(p);
	const struct movable *m = movable_at(sp, id);
	const struct block *b = block_at(p, m->block);
	struct candidate one = {
		.id = id, .birth = m->birth, .priority = m->priority,
		.spilled_at = m->spilled_at, .old = m->birth < sp->step_birth,
	};
	struct pool_stream *of;

	if (m->move || (spilled && !m->spilled_at) || block_state(b) != BLOCK_LIVE ||
	    !is_of(b, s) || hm_spill_check(p, b, &of) || !has_something(p, s, b, spilled, search))
		return;
	one.bytes = block_bytes(b);
	if (!one.old)
		one.age = (m->birth - sp->step_birth) * AGES / (sp->births - sp->step_birth + 1);
	add(c, &one);
}

/* Those of @s that are @spilled, or are not. Releases the lock between pieces. */
static void find_candidates(struct pool *p, struct pool_stream *s, bool spilled,
			    struct candidates *c)
{
	const uint32_t search = ++vmm_of(p)->stamp;
	struct hm_spill *sp = spill_of(p);
	uint32_t id;

	for (id = 1; id < sp->movables.nr; id++) {
		if (movable_at(sp, id)->block)
			consider(p, s, id, spilled, search, c);
		hm_pool_step(p, LOOK_WORK);
	}
}

/* Moves the first of @c that have @bytes together, with both locks. Returns the bytes. */
static uint64_t move_first(struct pool *p, struct pool_stream *s, struct candidates *c,
			   bool spill, uint64_t bytes)
{
	struct hm_spill *sp = spill_of(p);
	uint32_t *ids = malloc((c->nr ? c->nr : 1) * sizeof(*ids));
	const uint32_t search = ++vmm_of(p)->stamp;
	uint64_t sum = 0, moved = 0, one_sum;
	size_t i, n = 0;

	for (i = 0; ids && i < c->nr && (spill ? sum < bytes : true); i++) {
		const struct candidate *one = &c->list[i];
		struct movable *m = movable_at(sp, one->id);
		struct pool_stream *of;

		/* The lock was released since. */
		if (!m->block || m->birth != one->birth || m->move || m->freed ||
		    hm_spill_check(p, block_at(p, m->block), &of))
			continue;
		one_sum = count_bytes(p, block_at(p, m->block), m->priority, spill, search);
		/* What comes back has to fit, and nothing overtakes what does not. */
		if (!spill && sum + one_sum > bytes)
			break;
		if (!one_sum || (spill && sp->spilled + sum + one_sum > p->opt.spill))
			continue;
		if (spill && m->returned && m->birth >= sp->step_birth &&
		    sp->margin < ceiling(p) / MOST_MARGIN)
			sp->margin += sp->margin / MARGIN_GROWTH;
		m->returned = !spill;
		ids[n++] = one->id;
		sum += one_sum;
	}
	if (n)
		hm_spill_move(p, s, ids, n, spill, true, &moved);
	free(ids);
	return moved;
}

/* Work on @s is complete. With both locks. */
static uint64_t move_some(struct pool *p, struct pool_stream *s, bool spill, uint64_t bytes)
{
	struct candidates c = { 0 };
	uint64_t moved = 0;

	hm_pool_poll(p);
	if (!hm_pool_is_apart(p, 1))
		hm_pool_settle_all(p);
	find_candidates(p, s, !spill, &c);
	if (c.nr && !p->asleep) {
		qsort(c.list, c.nr, sizeof(*c.list), spill ? by_leaving : by_return);
		moved = move_first(p, s, &c, spill, bytes);
	}
	free(c.list);
	return moved;
}

/*
 * The moves' lock, while the caller holds pool->lock only, which is released. false: this
 * thread has it, in a function of hetmem_on_remap(), or another one has it for longer than
 * @ns. That one may be in such a function, which waits for this thread.
 */
static bool lock_moves(struct pool *p, uint64_t ns)
{
	pthread_mutex_unlock(&p->lock);
	if (!hm_pool_lock_moves_within(p, ns))
		return true;
	pthread_mutex_lock(&p->lock);
	return false;
}

/* And back to pool->lock. */
static void unlock_moves(struct pool *p)
{
	hm_pool_unlock_moves(p);
	pthread_mutex_lock(&p->lock);
}

static bool may_move(const struct pool *p, const struct pool_stream *s)
{
	return p->opt.spill && !p->asleep && !s->graph && !p->order.nr_captured;
}

bool hm_movable_relieve(struct pool *p, struct pool_stream *s, uint64_t bytes)
{
	struct hm_spill *sp = spill_of(p);
	bool pending = sp->pending;
	const struct move *before;
	uint64_t free, moved;

	/* However many blocks move, there is no room for that. */
	if (p->opt.max && bytes > p->opt.max)
		return false;
	if (!may_move(p, s) || !sp->nr_movables)
		return false;
	if (pending ? hm_spill_wait_pending(p) : hm_spill_wait(p, s))
		return false;
	if (!lock_moves(p, hm_pool_most_wait(p)))
		return false;
	if (sp->ceiling < p->reserved)
		sp->ceiling = p->reserved;
	if (!sp->margin)
		sp->margin = ceiling(p) / MARGIN_SHARE;
	if (pending) {
		/* Memory of a move that has ended may do. */
		before = sp->pending;
		hm_spill_end(p, false);
		moved = !before || sp->pending != before;
	} else {
		free = ceiling(p) > p->reserved ? ceiling(p) - p->reserved : 0;
		bytes = bytes > free ? bytes - free : 0;
		moved = move_some(p, s, true, bytes + ceiling(p) / OUT_SHARE);
	}
	unlock_moves(p);
	return moved;
}

/* What live blocks leave free of the ceiling, without the margin. */
static uint64_t room(const struct pool *p)
{
	const struct hm_spill *sp = spill_of(p);
	const uint64_t used = p->requested > 0 ? p->requested : 0;
	const uint64_t spilled = sp->spilled - sp->held;
	uint64_t live = used > spilled ? used - spilled : 0;

	live += sp->margin;
	return ceiling(p) > live ? ceiling(p) - live : 0;
}

/* No block of @s came back, and nothing has changed since that could. */
static bool was_tried(const struct pool *p, const struct pool_stream *s, uint64_t least)
{
	const struct hm_spill *sp = spill_of(p);

	return sp->tried_on == s->s.serial && sp->tried_moves == sp->moves &&
	       room(p) < sp->tried_room + least;
}

void hm_movable_regain(struct pool *p, struct pool_stream *s)
{
	struct hm_spill *sp = spill_of(p);
	uint64_t least = ceiling(p) / BACK_SHARE;

	if (!sp->spilled || !may_move(p, s) || sp->pending)
		return;
	if (least > sp->spilled)
		least = sp->spilled;
	if (room(p) < least || was_tried(p, s, least) || hm_spill_wait(p, s) || !lock_moves(p, 0))
		return;
	if (room(p) >= least && !move_some(p, s, false, room(p))) {
		sp->tried_on = s->s.serial;
		sp->tried_moves = sp->moves;
		sp->tried_room = room(p);
	}
	unlock_moves(p);
}
