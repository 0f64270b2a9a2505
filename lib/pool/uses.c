// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* Uses of a block on further streams: see uses.h. */
#include "pool/source.h"
#include "pool/uses.h"

int hm_block_use(struct pool *p, struct block *b, struct pool_stream *s)
{
	struct use *u;
	uint32_t id;

	for (id = b->left; id; id = u->next) {
		u = use_at(p, id);
		if (u->stream == s->s.index && u->pos == s->s.serial)
			return 0;
	}
	id = hm_table_get(&p->uses);
	if (!id)
		return hm_error(-ENOMEM, "record_stream: too many uses");
	u = use_at(p, id);
	u->stream = s->s.index;
	u->pos = s->s.serial;
	u->next = b->left;
	b->left = id;
	__atomic_store_n(&b->flags, b->flags | BLOCK_USED, __ATOMIC_RELEASE);
	return 0;
}

void hm_uses_put(struct pool *p, uint32_t list)
{
	uint32_t next;

	for (; list; list = next) {
		next = use_at(p, list)->next;
		hm_table_put(&p->uses, list);
	}
}

/* @u of a freed block is behind all others of the stream. */
static void use_add(struct pool *p, struct pool_stream *s, uint32_t id)
{
	struct use *u = use_at(p, id);

	u->earlier = s->last_use;
	u->later = 0;
	if (s->last_use)
		use_at(p, s->last_use)->later = id;
	else
		s->first_use = id;
	s->last_use = id;
}

/* Out of the list of its stream: it is over, or somebody waits for it. */
static void use_remove(struct pool *p, struct use *u)
{
	struct pool_stream *s = stream_at(p, u->stream);

	if (u->earlier)
		use_at(p, u->earlier)->later = u->later;
	else
		s->first_use = u->later;
	if (u->later)
		use_at(p, u->later)->earlier = u->earlier;
	else
		s->last_use = u->earlier;
	u->stream = 0;
}

void hm_block_end_uses(struct pool *p, struct block *b)
{
	/* The parts of a block with holes keep its tag: they are free memory at once. */
	if (!(b->flags & BLOCK_DROPPED)) {
		hm_block_release(p, b);
	} else if ((b->flags & BLOCK_DROPPED & ~BLOCK_RESERVE && !hm_block_done(p, b)) ||
		   !p->source->drop(p, b)) {
		block_set_state(b, BLOCK_PENDING);
		b->right = 0;
		if (p->nr_dropped++)
			block_at(p, p->last_dropped)->right = block_id(p, b);
		else
			p->dropped = block_id(p, b);
		p->last_dropped = block_id(p, b);
	}
}

/* A PENDING block with uses becomes BUSY; its list of them stays. */
static void pending_take(struct pool *p, struct block *b)
{
	if (!(b->flags & BLOCK_DROPPED))
		hm_arena_remove(p, &p->pending[block_zone(b)], b);
	p->nr_pending--;
	block_set_state(b, BLOCK_BUSY);
}

bool hm_uses_settle(struct pool *p, struct pool_stream *s)
{
	unsigned int n;

	for (n = 0; s->first_use; n++) {
		struct use *u = use_at(p, s->first_use);
		struct block *b = block_at(p, u->block);

		if (u->pos > s->s.done)
			return false;
		if (n == PIECE)
			return true;
		p->work += MOVE_WORK;
		use_remove(p, u);
		/* Others of its uses are still to be added. */
		if (block_state(b) != BLOCK_PENDING)
			continue;
		if (--use_at(p, b->slack)->left)
			continue;
		pending_take(p, b);
		hm_uses_put(p, b->slack);
		b->slack = 0;
		hm_block_end_uses(p, b);
	}
	return false;
}

void hm_uses_settle_dropped(struct pool *p)
{
	uint32_t nr = p->nr_dropped;

	for (; nr && p->nr_dropped; nr--) {
		struct block *b = block_at(p, p->dropped);

		p->dropped = b->right;
		p->nr_dropped--;
		hm_stream_record(&p->order, p->order.streams[b->stream]);
		block_set_state(b, BLOCK_BUSY);
		hm_block_end_uses(p, b);
		hm_pool_step(p, MOVE_WORK);
	}
}

/* Instructions that one use of a freed block takes, about. */
#define USE_WORK	64

/*
 * Notes where the uses on further streams end. A use that ends while the lock is
 * released stays in the list, and is of no stream then.
 */
void hm_block_free_used(struct pool *p, struct block *b)
{
	const uint32_t block = block_id(p, b);
	uint32_t *link = &b->left, id;
	struct pool_stream *s;
	unsigned int nr = 0;
	struct use *u;

	__atomic_store_n(&b->flags, b->flags & ~BLOCK_USED, __ATOMIC_RELEASE);
	while ((id = *link)) {
		hm_pool_step(p, USE_WORK);
		u = use_at(p, id);
		s = (struct pool_stream *)stream_by_serial(p, u->stream, u->pos);
		if (!s->s.index || s->s.index == b->stream) {
			*link = u->next;
			hm_table_put(&p->uses, id);
			continue;
		}
		/* A use counts as a free: an event must be behind it. */
		stream_lock(s);
		u->pos = hm_stream_next_pos(&s->s);
		stream_unlock(s);
		u->block = block;
		use_add(p, s, id);
		link = &u->next;
	}
	for (id = b->left; id; id = u->next) {
		u = use_at(p, id);
		nr += !!u->stream;
	}
	if (!nr) {
		hm_uses_put(p, b->left);
		hm_block_end_uses(p, b);
		return;
	}
	b->slack = b->left;
	use_at(p, b->slack)->left = nr;
	p->nr_pending++;
	block_set_state(b, BLOCK_PENDING);
	if (!(b->flags & BLOCK_DROPPED))
		hm_arena_add(p, &p->pending[block_zone(b)], b);
}

int hm_block_wait(struct pool *p, struct pool_stream *s, struct block *b)
{
	bool pending = block_state(b) == BLOCK_PENDING;
	struct use *u;
	uint32_t id;
	int err;

	err = hm_stream_wait(&p->order, &s->s, p->order.streams[b->stream], b->pos);
	for (id = pending ? b->slack : 0; id && !err; id = u->next) {
		u = use_at(p, id);
		if (u->stream)
			err = hm_stream_wait(&p->order, &s->s,
					     p->order.streams[u->stream],
					     u->pos);
	}
	if (err || !pending)
		return err;
	for (id = b->slack; id; id = u->next) {
		u = use_at(p, id);
		if (u->stream)
			use_remove(p, u);
	}
	pending_take(p, b);
	hm_uses_put(p, b->slack);
	b->slack = 0;
	/* What is cut off of it is behind all of these uses too. */
	b->stream = s->s.index;
	b->pos = stream_point(s);
	return 0;
}
