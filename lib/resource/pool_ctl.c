// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What else a pool can be asked: whose a pointer is, statistics, trim, poll,
 * uses and ends of streams. All of it takes the pool's lock.
 */
#include <string.h>

#include "driver/check.h"
#include "resource/pool_impl.h"

/* The live block that an address is in; interior ones take a search. */
struct block *hm_pool_find_live(struct pool *p, uint64_t addr)
{
	struct block *b = hm_block_find_locked(p, addr);
	uint32_t id;

	if (b)
		return block_state(b) == BLOCK_LIVE ? b : NULL;
	for (id = 1; id < p->blocks.nr; id++) {
		b = block_at(p, id);
		if (block_state(b) == BLOCK_LIVE && addr >= b->addr &&
		    addr < block_end(b))
			return b;
	}
	return NULL;
}

static int owns(struct pool *p, struct hm_ctl_owns *arg)
{
	struct hm_stream *s;
	struct block *b;

	pthread_mutex_lock(&p->lock);
	b = arg->first ? hm_block_find_locked(p, (uintptr_t)arg->ptr) :
		hm_pool_find_live(p, (uintptr_t)arg->ptr);
	if (b && block_state(b) != BLOCK_LIVE)
		b = NULL;
	if (b) {
		s = p->order.streams[b->stream];
		arg->base = (void *)(uintptr_t)b->addr;
		arg->size = block_bytes(b);
		arg->stream = s->serial == b->pos && s->id && !s->retired ?
			hm_stream_handle(s) :
			HETMEM_STREAM_UNKNOWN;
	}
	pthread_mutex_unlock(&p->lock);
	return b ? 0 : hm_error(-ENOENT, "owns: %p is in no block of this pool",
				arg->ptr);
}

/* @s uses live @b, as others may. */
static int use(struct pool *p, struct block *b, struct pool_stream *s)
{
	if (!s->s.index || (s->s.index == b->stream && s->s.serial == b->pos))
		return 0;
	return hm_block_use(p, b, s);
}

static int record(struct pool *p, const struct hm_ctl_stream *arg)
{
	uint64_t epoch = pool_epoch(p);
	struct pool_stream *s;
	struct block *b;
	int err;

	err = hm_stream_get(&p->order, arg->stream, (struct hm_stream **)&s);
	if (!err)
		err = hm_pool_lock(p, arg->stream, epoch, &s);
	if (err)
		return err;
	b = hm_block_find_locked(p, (uintptr_t)arg->ptr);
	if (!b || block_state(b) != BLOCK_LIVE)
		err = hm_error(-EINVAL, "record_stream: %p is not the beginning of a live block",
			       arg->ptr);
	else
		err = use(p, b, s);
	pthread_mutex_unlock(&p->lock);
	return err;
}

static int retire(struct pool *p, const struct hm_ctl_stream *arg)
{
	struct hm_stream *s;
	int err;

	pthread_mutex_lock(&p->lock);
	err = hm_stream_end(&p->order, arg->stream, &s);
	if (!err && s) {
		hm_stream_close(p, (struct pool_stream *)s);
		err = hm_stream_retire(&p->order, s);
		if (!err)
			hm_stream_flush(p, (struct pool_stream *)s, 0);
	}
	pthread_mutex_unlock(&p->lock);
	return err;
}

static int poll(struct pool *p)
{
	pthread_mutex_lock(&p->lock);
	hm_pool_poll(p);
	p->source->poll(p);
	hm_pool_decay(p);
	pthread_mutex_unlock(&p->lock);
	return 0;
}

static int trim(struct pool *p, size_t *arg)
{
	uint64_t keep = *arg;
	unsigned int i;

	if (keep < p->opt.min)
		keep = p->opt.min;
	pthread_mutex_lock(&p->lock);
	hm_pool_flush(p);
	/* A pool with one stream has recorded nothing so far. */
	for (i = 1; i < p->order.nr; i++)
		hm_stream_record(&p->order, p->order.streams[i]);
	hm_pool_poll(p);
	hm_pool_settle(p);
	*arg = p->source->trim(p, keep);
	pthread_mutex_unlock(&p->lock);
	return 0;
}

static int stats(struct pool *p, struct hetmem_resource_stats *st)
{
	unsigned int i;

	pthread_mutex_lock(&p->lock);
	for (i = 0; i < p->order.nr; i++) {
		struct pool_stream *s = stream_at(p, i);

		hm_pool_publish(p, s);
		st->allocs += s->allocs;
		st->frees += s->frees;
	}
	st->live = st->allocs - st->frees;
	st->requested = p->requested;
	st->requested_peak = p->requested_peak;
	st->reserved = p->reserved;
	st->reserved_peak = p->reserved_peak;
	st->metadata = hm_pool_metadata(p);
	st->failed = p->failed;
	st->driver_calls = p->calls + p->order.calls;
	st->host_wait_ns = p->order.wait_ns;
	pthread_mutex_unlock(&p->lock);
	return 0;
}

static int segments(struct pool *p, struct hm_ctl_segments *arg)
{
	uint64_t addr = (uintptr_t)arg->ptr;
	struct block *b;
	int err = 0;

	if (!p->source->segments)
		return -EOPNOTSUPP;
	pthread_mutex_lock(&p->lock);
	b = hm_pool_find_live(p, addr);
	if (!b || arg->size > block_end(b) - addr)
		err = hm_error(-EINVAL, "segments: %p and %zu bytes are not in one block of this pool",
			       arg->ptr, arg->size);
	else
		err = p->source->segments(p, arg);
	pthread_mutex_unlock(&p->lock);
	return err;
}

static int reserve(struct pool *p, struct hm_ctl_reserve *arg)
{
	const uint64_t most = (uint64_t)(UINT32_MAX / 2) << UNIT_SHIFT;
	uint64_t epoch = pool_epoch(p);
	struct pool_stream *s;
	struct block *b;
	int err;

	if (!p->source->reserve || p->whole)
		return -EOPNOTSUPP;
	if (arg->size > most || arg->reserve > most)
		return hm_error(-ENOMEM, "alloc_reserve: more than there can be");
	err = hm_stream_get(&p->order, arg->stream, (struct hm_stream **)&s);
	if (!err)
		err = hm_pool_lock(p, arg->stream, epoch, &s);
	if (err)
		return err;
	if (p->asleep)
		err = hm_error(-EBUSY, "the pool is asleep: hetmem_wake()");
	else if (s->graph)
		err = hm_error(-EBUSY, "alloc_reserve: what a capture has does not grow");
	else
		err = p->source->reserve(p, (arg->size + UNIT - 1) >> UNIT_SHIFT,
					 (arg->reserve + UNIT - 1) >> UNIT_SHIFT,
					 &b);
	if (!err) {
		arg->ptr = (void *)(uintptr_t)b->addr;
		hm_pool_give(p, s, b, arg->size);
	}
	pthread_mutex_unlock(&p->lock);
	if (hm_unlikely(hm_check_enabled) && !err)
		hm_pool_tell_alloc(p, arg->ptr, arg->size, arg->stream);
	return err;
}

/*
 * To @units, and what is more than that is cut off, but for a block with room
 * of its own. Of one that was large enough the rest may be in use.
 */
static int enlarge(struct pool *p, struct pool_stream *s, struct block *b,
		   uint64_t units)
{
	int err = p->source->enlarge(p, s, b, units);
	struct block *rest;

	if (err || b->units <= units || b->flags & BLOCK_RESERVE)
		return err;
	rest = hm_block_cut(p, b, units);
	if (rest) {
		rest->stream = 0;
		rest->pos = 0;
		hm_block_release(p, rest);
	}
	return 0;
}

static int grow(struct pool *p, const struct hm_ctl_grow *arg)
{
	uint64_t units = (arg->size + UNIT - 1) >> UNIT_SHIFT, asked, more = 0;
	uint64_t epoch = pool_epoch(p);
	int64_t excess;
	struct pool_stream *s;
	struct block *b;
	int err;

	if (!p->source->enlarge || p->whole)
		return -EOPNOTSUPP;
	if (arg->size > PTRDIFF_MAX || units > UINT32_MAX / 2)
		return hm_error(-ENOMEM, "grow: more than there can be");
	err = hm_stream_get(&p->order, arg->stream, (struct hm_stream **)&s);
	if (!err)
		err = hm_pool_lock(p, arg->stream, epoch, &s);
	if (err)
		return err;
	b = hm_block_find_locked(p, (uintptr_t)arg->ptr);
	asked = b ? block_bytes(b) - b->slack : 0;
	excess = b ? block_excess(b) : 0;
	if (!b || block_state(b) != BLOCK_LIVE)
		err = hm_error(-EINVAL, "grow: %p is not the beginning of a live block",
			       arg->ptr);
	else if (arg->size < asked)
		err = hm_error(-EINVAL, "grow: %p has %llu bytes already",
			       arg->ptr, (unsigned long long)asked);
	else if (b->flags & BLOCK_GRAPH)
		err = hm_error(-EBUSY, "grow: %p belongs to a capture",
			       arg->ptr);
	else if (p->asleep)
		err = hm_error(-EBUSY, "the pool is asleep: hetmem_wake()");
	else
		err = use(p, b, s);
	if (!err && units > b->units)
		err = enlarge(p, s, b, units);
	if (!err) {
		more = arg->size - asked;
		stream_lock(s);
		s->requested += more;
		if (s->requested > s->high)
			s->high = s->requested;
		stream_unlock(s);
		b->slack = block_bytes(b) - arg->size;
	} else if (b && block_state(b) == BLOCK_LIVE) {
		b->slack = block_bytes(b) - asked;
	}
	if (b && block_state(b) == BLOCK_LIVE && !(b->flags & BLOCK_GRAPH))
		__atomic_fetch_add(&stream_at(p, b->stream)->returned,
				   block_excess(b) - excess, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&p->lock);
	if (hm_unlikely(hm_check_enabled) && more)
		hm_pool_tell_alloc(p, (char *)arg->ptr + asked, more,
				   arg->stream);
	return err;
}

static int pin_comm(struct pool *p, const struct hm_ctl_stream *arg)
{
	struct block *b;
	int err;

	if (!p->source->pin || !(p->provider->caps & HM_PROVIDER_DEVICE))
		return -EOPNOTSUPP;
	pthread_mutex_lock(&p->lock);
	b = hm_pool_find_live(p, (uintptr_t)arg->ptr);
	err = b ? p->source->pin(p, b) :
		hm_error(-EINVAL, "pin_comm: %p is in no live block",
			 arg->ptr);
	pthread_mutex_unlock(&p->lock);
	return err;
}

static void awake(struct pool *p)
{
	p->asleep = false;
	if (!p->whole)
		__atomic_store_n(&p->cache_max, p->opt.cache, __ATOMIC_RELAXED);
}

static int sleep_or_wake(struct pool *p, const char *tag, bool wake)
{
	int err = 0;

	if (!p->source->sleep)
		return -EOPNOTSUPP;
	if (tag && strcmp(tag, p->opt.tag))
		return 0;
	pthread_mutex_lock(&p->lock);
	if (wake && p->asleep) {
		err = p->source->wake(p);
		if (!err)
			awake(p);
	} else if (!wake && p->opt.comm) {
		err = hm_error(-EBUSY, "sleep: memory for communication stays");
	} else if (!wake && p->asleep) {
		/* What failed is tried again. */
		err = p->source->sleep(p);
	} else if (!wake) {
		__atomic_store_n(&p->cache_max, 0, __ATOMIC_RELAXED);
		p->asleep = true;
		hm_pool_flush(p);
		err = hm_pool_sync(p, true);
		hm_pool_poll(p);
		hm_pool_settle(p);
		if (!err)
			err = p->source->sleep(p);
		else
			awake(p);
	}
	pthread_mutex_unlock(&p->lock);
	return err;
}

static int export(struct pool *p, struct hm_ctl_export *arg)
{
	struct block *b;
	int err;

	if (!p->whole)
		return -EOPNOTSUPP;
	pthread_mutex_lock(&p->lock);
	b = hm_block_find_locked(p, (uintptr_t)arg->ptr);
	if (!b || block_state(b) != BLOCK_LIVE)
		err = hm_error(-EINVAL, "export: %p is not the beginning of a live block",
			       arg->ptr);
	else if (p->asleep)
		err = hm_error(-EBUSY, "the pool is asleep: hetmem_wake()");
	else
		err = p->source->export(p, b, arg);
	pthread_mutex_unlock(&p->lock);
	return err;
}

int hm_pool_ctl(struct hetmem_resource *res, enum hm_ctl op, void *arg)
{
	struct pool *p = to_pool(res);
	int err = p->host ? 0 : hm_check_owner(res->hm);

	if (err)
		return err;
	switch (op) {
	case HM_CTL_OWNS:
		return owns(p, arg);
	case HM_CTL_RECORD:
		return record(p, arg);
	case HM_CTL_RETIRE:
		return retire(p, arg);
	case HM_CTL_POLL:
		return poll(p);
	case HM_CTL_TRIM:
		return trim(p, arg);
	case HM_CTL_STATS:
		return stats(p, arg);
	case HM_CTL_SEGMENTS:
		return segments(p, arg);
	case HM_CTL_RESERVE:
		return reserve(p, arg);
	case HM_CTL_GROW:
		return grow(p, arg);
	case HM_CTL_PIN_COMM:
		return pin_comm(p, arg);
	case HM_CTL_SLEEP:
	case HM_CTL_WAKE:
		return sleep_or_wake(p, arg, op == HM_CTL_WAKE);
	case HM_CTL_EXPORT:
		return export(p, arg);
	case HM_CTL_CAPTURE_BEGIN:
	case HM_CTL_CAPTURE_END:
	case HM_CTL_CAPTURE_RELEASE:
		return hm_graph_ctl(p, op, arg);
	default:
		return -EOPNOTSUPP;
	}
}
