// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Blocks and streams: uses on further streams, streams that come to an end,
 * when an event is recorded.
 */
#include "resource/pool_impl.h"

/* What a free block may stay behind the last event: see stream.h. */
#define RECORD_FREES	64
#define RECORD_BYTES	((uint64_t)64 << 20)
/* Or this part of the pool, if that is more. */
#define RECORD_SHARE	16
/* Streams that were lost: of more, the host waits for their context. */
#define MAX_LOST	(HM_MAX_STREAMS / 2)

int hm_pool_lock(struct pool *p, hetmem_stream stream, uint64_t epoch,
		 struct pool_stream **s)
{
	int err;

	pthread_mutex_lock(&p->lock);
	while (hm_unlikely(epoch != p->order.epoch)) {
		epoch = p->order.epoch;
		pthread_mutex_unlock(&p->lock);
		err = hm_stream_get(&p->order, stream, (struct hm_stream **)s);
		if (err)
			return err;
		pthread_mutex_lock(&p->lock);
	}
	return 0;
}

void hm_pool_record(struct pool *p, struct pool_stream *s, uint64_t bytes)
{
	if (p->order.seen <= 1 || !s->s.index || s->s.retired)
		return;
	s->unrecorded_bytes += bytes;
	if (hm_stream_pos(&s->s) - s->s.recorded < RECORD_FREES &&
	    (s->unrecorded_bytes < RECORD_BYTES ||
	     s->unrecorded_bytes < p->reserved / RECORD_SHARE))
		return;
	/* Whoever needs it tries again and says why it failed. */
	if (!hm_stream_record(&p->order, &s->s))
		s->unrecorded_bytes = 0;
}

static void settle_pending(struct pool *p)
{
	uint32_t *link = &p->pending, *use;

	while (*link) {
		struct block *b = block_at(p, *link);

		for (use = &b->left; *use;) {
			struct use *u = (struct use *)p->uses.base + *use;
			struct hm_stream *s = p->order.streams[u->stream];
			uint32_t id = *use;

			if (s->done < u->pos) {
				use = &u->next;
				continue;
			}
			*use = u->next;
			hm_table_put(&p->uses, id);
		}
		if (b->left) {
			link = &b->right;
			continue;
		}
		*link = b->right;
		set_state(b, BLOCK_BUSY);
		if (b->flags & BLOCK_EXPORTED)
			p->source->drop(p, b);
		else
			hm_block_release(p, b);
	}
}

/* A retired stream has an end; behind it, it is nobody. */
static void bury(struct pool *p, struct pool_stream *s)
{
	unsigned int zone;

	if (!s->s.retired || !s->s.id || s->s.done < hm_stream_pos(&s->s))
		return;
	/* What still uses live memory of one that was lost has no position. */
	if (s->s.lost && !s->s.synced)
		return;
	/* As for one that is retired: before its lock is taken. */
	if (s->s.lost)
		__atomic_add_fetch(&p->order.epoch, 1, __ATOMIC_ACQ_REL);
	hm_stream_flush(p, s, 0);
	for (zone = 0; zone < NR_ZONES; zone++)
		if (s->arenas[zone].units)
			return;
	hm_pool_publish(p, s);
	hm_stream_recycle(&p->order, &s->s);
}

/* There is room for so many streams only. */
static void sync_lost(struct pool *p)
{
	unsigned int i;

	for (i = 1; i < p->order.nr; i++) {
		struct hm_stream *s = p->order.streams[i];

		if (s->id && s->lost && !s->synced)
			hm_stream_sync_lost(&p->order, s);
	}
}

bool hm_pool_poll(struct pool *p)
{
	bool changed = false, retired = false;
	unsigned int i, lost = 0;
	uint32_t id, use;

	for (id = p->pending; id; id = block_at(p, id)->right) {
		for (use = block_at(p, id)->left; use;) {
			struct use *u = (struct use *)p->uses.base + use;
			struct hm_stream *s = p->order.streams[u->stream];

			if (s->recorded < u->pos && s->done < u->pos)
				hm_stream_record(&p->order, s);
			use = u->next;
		}
	}
	for (i = 1; i < p->order.nr; i++) {
		struct hm_stream *s = p->order.streams[i];

		changed |= hm_stream_poll(&p->order, s);
		retired |= s->retired && s->id;
		lost += s->id && s->lost && !s->synced;
	}
	if (lost > MAX_LOST)
		sync_lost(p);
	if (changed || p->pending)
		settle_pending(p);
	if (retired) {
		hm_pool_settle(p);
		for (i = 1; i < p->order.nr; i++)
			bury(p, stream_at(p, i));
	}
	return changed;
}

/*
 * The stream that a live block was allocated on, or the host's if that has
 * come to its end: complete.
 */
static struct hm_stream *stream_by_serial(struct pool *p, unsigned int index,
					  uint64_t serial)
{
	struct hm_stream *s = p->order.streams[index];

	return s->serial == serial && s->id ? s : hm_stream_host(&p->order);
}

int hm_block_use(struct pool *p, struct block *b, struct pool_stream *s)
{
	struct use *u;
	uint32_t id;

	for (id = b->left; id; id = u->next) {
		u = (struct use *)p->uses.base + id;
		if (u->stream == s->s.index && u->pos == s->s.serial)
			return 0;
	}
	id = hm_table_get(&p->uses);
	if (!id)
		return hm_error(-ENOMEM, "record_stream: too many uses");
	u = (struct use *)p->uses.base + id;
	u->stream = s->s.index;
	u->pos = s->s.serial;
	u->next = b->left;
	b->left = id;
	__atomic_store_n(&b->flags, b->flags | BLOCK_USED, __ATOMIC_RELEASE);
	return 0;
}

void hm_block_pend(struct pool *p, struct block *b)
{
	uint32_t *link = &b->left, id;
	struct use *u;

	__atomic_store_n(&b->flags, b->flags & ~BLOCK_USED, __ATOMIC_RELEASE);
	while ((id = *link)) {
		struct hm_stream *s;
		struct pool_stream *ps;

		u = (struct use *)p->uses.base + id;
		s = stream_by_serial(p, u->stream, u->pos);
		ps = (struct pool_stream *)s;
		if (!s->index || s->index == b->stream) {
			*link = u->next;
			hm_table_put(&p->uses, id);
			continue;
		}
		/* A use counts as a free: an event must be behind it. */
		stream_lock(ps);
		u->pos = stream_next_pos(s);
		stream_unlock(ps);
		link = &u->next;
	}
	if (b->flags & BLOCK_EXPORTED && !hm_block_done(p, b)) {
		/* It waits for its own stream as well; without room, here. */
		id = hm_table_get(&p->uses);
		if (id) {
			u = (struct use *)p->uses.base + id;
			*u = (struct use){ b->left, b->stream, 0, b->pos };
			b->left = id;
		} else {
			hm_stream_sync(&p->order, p->order.streams[b->stream],
				       b->pos, UINT64_MAX);
		}
	}
	if (!b->left) {
		if (b->flags & BLOCK_EXPORTED)
			p->source->drop(p, b);
		else
			hm_block_release(p, b);
		return;
	}
	set_state(b, BLOCK_PENDING);
	b->right = p->pending;
	p->pending = block_id(p, b);
}

int hm_pool_sync(struct pool *p, bool live)
{
	unsigned int i;
	int err = 0, one;

	for (i = 1; i < p->order.nr; i++) {
		struct pool_stream *s = stream_at(p, i);

		if (!s->s.id)
			continue;
		/* What uses live memory has no position: there was no free. */
		if (live) {
			stream_lock(s);
			stream_next_pos(&s->s);
			stream_unlock(s);
		}
		one = hm_stream_sync(&p->order, &s->s, hm_stream_pos(&s->s),
				     UINT64_MAX);
		err = err ? err : one;
	}
	return err;
}

int hm_block_wait(struct pool *p, struct pool_stream *s, struct block *b)
{
	uint32_t *link, id;
	struct use *u;
	int err;

	err = hm_stream_wait(&p->order, &s->s, p->order.streams[b->stream],
			     b->pos);
	if (err || block_state(b) != BLOCK_PENDING)
		return err;
	for (id = b->left; id; id = u->next) {
		u = (struct use *)p->uses.base + id;
		err = hm_stream_wait(&p->order, &s->s,
				     p->order.streams[u->stream], u->pos);
		if (err)
			return err;
	}
	while ((id = b->left)) {
		b->left = ((struct use *)p->uses.base + id)->next;
		hm_table_put(&p->uses, id);
	}
	for (link = &p->pending; *link != block_id(p, b);
	     link = &block_at(p, *link)->right)
		;
	*link = b->right;
	/* What is cut off of it is behind all of these uses too. */
	stream_lock(s);
	b->stream = s->s.index;
	b->pos = s->s.index ? hm_stream_step(&s->s) : 0;
	stream_unlock(s);
	set_state(b, BLOCK_BUSY);
	return 0;
}
