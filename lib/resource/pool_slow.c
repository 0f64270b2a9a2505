// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The pool's slow path: what a stream's cache has not. The remedies of a
 * missing block, in this order: a free block of the same stream or a complete
 * one; a complete one of another stream; another's, behind which the stream
 * is ordered; what the source can do, see its grow(); waiting for memory in
 * use, until any of it is complete.
 */
#include <stdio.h>
#include <time.h>

#include "resource/pool_impl.h"

/* How many blocks of another stream are looked at for a complete one. */
#define PROBES		8
/* Units that a stream's small blocks may have in excess; and more, by pool. */
#define EXCESS_UNITS	((1 << 20) >> UNIT_SHIFT)
#define EXCESS_SHARE	1024
/* What a stream keeps cached before the pool looks elsewhere. */
#define CACHE_KEPT	((uint64_t)8 << 20)
/* A rest of a large block that is not worth a descriptor. */
#define SMALLEST_REST	((4 << 10) >> UNIT_SHIFT)

/* Before the stream's lock: a pool that sleeps has empty caches. */
static void lock_stream(struct pool *p, struct pool_stream *s)
{
	if (hm_unlikely(!p->cache_max))
		hm_stream_flush(p, s, 0);
	stream_lock(s);
	if (p->cache_max)
		hm_stream_collect(p, s);
}

static void publish_and_unlock(struct pool *p, struct pool_stream *s)
{
	int64_t high = p->requested + (s->high - s->published);

	s->room = EXCESS_UNITS + (p->reserved >> UNIT_SHIFT) / EXCESS_SHARE;
	p->requested += s->requested - s->published;
	s->published = s->requested;
	s->high = s->requested;
	stream_unlock(s);
	if (high > 0 && (uint64_t)high > p->requested_peak)
		p->requested_peak = high;
	if (p->requested > 0 && (uint64_t)p->requested > p->requested_peak)
		p->requested_peak = p->requested;
}

void hm_pool_publish(struct pool *p, struct pool_stream *s)
{
	lock_stream(p, s);
	publish_and_unlock(p, s);
}

void hm_pool_decay(struct pool *p)
{
	uint64_t now, keep;

	if (!p->opt.decay_ms || p->asleep)
		return;
	if (p->requested > p->decay_high)
		p->decay_high = p->requested;
	now = hm_now();
	if (now < p->decay_at)
		return;
	/* The first look only begins to watch. */
	keep = p->decay_high > 0 ? p->decay_high : 0;
	if (p->decay_at && p->reserved > keep + keep / 8) {
		unsigned int i;

		hm_pool_flush(p);
		for (i = 1; i < p->order.nr; i++)
			hm_stream_record(&p->order, p->order.streams[i]);
		hm_pool_poll(p);
		hm_pool_settle(p);
		p->source->trim(p, keep > p->opt.min ? keep : p->opt.min);
	}
	p->decay_at = now + p->opt.decay_ms * 1000000ULL;
	p->decay_high = p->requested;
}

int hm_pool_reserve(struct pool *p, uint64_t bytes)
{
	if (p->opt.max && (bytes > p->opt.max ||
			   p->reserved > p->opt.max - bytes))
		return hm_error(-ENOMEM, "pool: %llu of at most %llu bytes are held",
				(unsigned long long)p->reserved,
				(unsigned long long)p->opt.max);
	p->reserved += bytes;
	if (p->reserved > p->reserved_peak)
		p->reserved_peak = p->reserved;
	return 0;
}

void hm_pool_unreserve(struct pool *p, uint64_t bytes)
{
	p->reserved -= bytes;
}

/* The smallest that @s may use without waiting for anything. */
static struct block *find_ready(struct pool *p, struct pool_stream *s,
				unsigned int zone, uint64_t units)
{
	struct block *best, *b;
	unsigned int i, probes;

	best = hm_arena_best(p, &s->arenas[zone], units);
	if (best && best->units == units)
		return best;
	/* Blocks that own their handle are not cut. */
	if (p->whole)
		best = NULL;
	b = s->s.index ? hm_arena_best(p, &stream_at(p, 0)->arenas[zone],
				       units) : NULL;
	if (p->whole && b && b->units != units)
		b = NULL;
	if (!best || (b && b->units < best->units))
		best = b;
	if (best || p->order.nr <= 2 || p->whole)
		return best;
	for (i = 1; i < p->order.nr; i++) {
		struct pool_stream *of = stream_at(p, i);
		uint64_t known;

		if (of == s || of->arenas[zone].units < units)
			continue;
		known = hm_stream_known(&s->s, &of->s);
		b = hm_arena_best(p, &of->arenas[zone], units);
		for (probes = 0; b && probes < PROBES; probes++) {
			if (b->pos <= known)
				break;
			b = hm_arena_next(p, &of->arenas[zone], b);
		}
		if (b && b->pos <= known && (!best || b->units < best->units))
			best = b;
	}
	return best;
}

/* The smallest of another stream, which @s is ordered behind. */
static struct block *find_waiting(struct pool *p, struct pool_stream *s,
				  unsigned int zone, uint64_t units)
{
	struct block *best = NULL, *b;
	unsigned int i;
	uint32_t id;

	if (p->whole)
		return NULL;
	for (i = 1; i < p->order.nr; i++) {
		struct pool_stream *of = stream_at(p, i);

		b = hm_arena_best(p, &of->arenas[zone], units);
		if (b && (!best || b->units < best->units) && !of->s.lost)
			best = b;
	}
	for (id = best ? 0 : p->pending; id; id = b->right) {
		b = block_at(p, id);
		if (b->units >= units && block_zone(b) == zone &&
		    !(b->flags & BLOCK_EXPORTED) && (!best || b->units < best->units))
			best = b;
	}
	return best && !hm_block_wait(p, s, best) ? best : NULL;
}

/* Out of its arena, if it was in one: BUSY. */
static struct block *take(struct pool *p, struct block *b)
{
	if (b && block_state(b) == BLOCK_FREE)
		hm_block_take(p, b);
	return b;
}

static struct block *find(struct pool *p, struct pool_stream *s,
			  unsigned int zone, uint64_t units)
{
	struct block *b = find_ready(p, s, zone, units);

	if (b)
		return take(p, b);
	if (p->order.seen > 1 || p->pending) {
		/* Host memory is used at once: nothing can be put behind. */
		if (hm_pool_poll(p)) {
			b = find_ready(p, s, zone, units);
			if (b)
				return take(p, b);
		}
		b = find_waiting(p, s, zone, units);
		if (b)
			return take(p, b);
	}
	return NULL;
}

struct block *hm_pool_find_or_grow(struct pool *p, struct pool_stream *s,
				   unsigned int zone, uint64_t units,
				   int *err)
{
	struct block *b = find(p, s, zone, units);

	if (b)
		return b;
	/*
	 * What is cached is worth some memory: a stream whose cache is emptied
	 * whenever it lacks a size would hardly ever find one.
	 */
	if (!zone && !p->whole) {
		hm_stream_flush(p, s, CACHE_KEPT);
		b = find(p, s, zone, units);
		if (!b && !p->source->grow(p, s, zone, units))
			b = find(p, s, zone, units);
		if (b)
			return b;
	}
	hm_pool_flush(p);
	if (p->order.seen > 1)
		hm_pool_poll(p);
	hm_pool_settle(p);
	b = find(p, s, zone, units);
	if (b)
		return b;
	*err = p->source->grow(p, s, zone, units);
	b = *err ? NULL : find(p, s, zone, units);
	if (!b && !*err)
		*err = hm_error(-ENOMEM, "what was made is not for this stream");
	return b;
}

/* Whether memory that is in sight waits for @s. */
static bool has_memory(const struct pool *p, const struct pool_stream *s)
{
	unsigned int zone;

	if (s->s.done >= hm_stream_pos(&s->s))
		return false;
	for (zone = 0; zone < NR_ZONES; zone++)
		if (s->arenas[zone].units)
			return true;
	return p->pending || s->s.nr;
}

/*
 * Streams that memory waits for, with an event where they are now: *@of is
 * one, and *@lost one that no event can be recorded on.
 */
static void record_all(struct pool *p, struct hm_stream **of,
		       struct hm_stream **lost)
{
	unsigned int i;

	*of = NULL;
	*lost = NULL;
	for (i = 1; i < p->order.nr; i++) {
		struct pool_stream *s = stream_at(p, i);

		if (!has_memory(p, s))
			continue;
		/* One that is captured goes on later; the others do not wait. */
		if (!s->s.lost && !hm_stream_record(&p->order, &s->s))
			*of = *of ? *of : &s->s;
		else if (s->s.lost)
			*lost = &s->s;
	}
}

/*
 * Until any stream has come further; *@last: one that was waited for. -ENOENT:
 * there is none; -ETIMEDOUT; -EIO.
 */
static int wait_any(struct pool *p, uint64_t deadline, struct hm_stream **last)
{
	const struct timespec nap = { .tv_nsec = 20000 };
	struct hm_stream *of, *lost;
	uint64_t start = hm_now();
	int err = 0;

	record_all(p, &of, &lost);
	if (!of && !lost)
		return -ENOENT;
	*last = of ? of : lost;
	if (!of)
		return hm_stream_sync(&p->order, lost, hm_stream_pos(lost),
				      deadline);
	while (!err && !hm_pool_poll(p)) {
		if (hm_now() >= deadline)
			err = -ETIMEDOUT;
		else
			nanosleep(&nap, NULL);
	}
	p->order.wait_ns += hm_now() - start;
	return err;
}

/*
 * Waits until there is what is missing; NULL: there is nothing to wait for.
 * *@last: a stream that was waited for last.
 */
static struct block *wait_for(struct pool *p, struct pool_stream *s,
			      unsigned int zone, uint64_t units, int *err,
			      struct hm_stream **last)
{
	uint64_t deadline;
	struct block *b;
	int wait;

	if (p->opt.wait_ms == HM_POOL_NO_WAIT)
		return NULL;
	deadline = hm_now() + p->opt.wait_ms * 1000000ULL;
	do {
		wait = wait_any(p, deadline, last);
		if (wait && wait != -ETIMEDOUT)
			return NULL;
		p->source->poll(p);
		/* After the time is up as well: other threads freed meanwhile. */
		b = hm_pool_find_or_grow(p, s, zone, units, err);
	} while (!b && !wait);
	return b;
}

/* Gives back what is behind @units, and what is before @addr. */
static struct block *trim_to(struct pool *p, struct block *b, uint64_t addr,
			     uint64_t units, uint64_t smallest)
{
	uint64_t before = (addr - b->addr) >> UNIT_SHIFT;
	struct block *front = b, *rest;

	if (before) {
		b = hm_block_cut(p, front, before);
		if (!b) {
			hm_block_release(p, front);
			return NULL;
		}
		hm_block_release(p, front);
	}
	if (b->units >= units + smallest && !(b->flags & BLOCK_WHOLE)) {
		rest = hm_block_cut(p, b, units);
		if (!rest) {
			hm_block_release(p, b);
			return NULL;
		}
		hm_block_release(p, rest);
	}
	return b;
}

/* @on: what was waited for, the last of it; NULL: nothing. */
static int explain(struct pool *p, size_t size, int err, uint64_t waited,
		   const struct hm_stream *on)
{
	char reason[256], wait[80] = "";

	snprintf(reason, sizeof(reason), "%s", hetmem_last_error());
	if (on)
		snprintf(wait, sizeof(wait), ", waited %llu ms, at last for memory in use on stream %llu",
			 (unsigned long long)waited / 1000000,
			 (unsigned long long)on->id);
	return hm_error(err, "alloc of %zu bytes: %s; %llu bytes held, %lld live%s",
			size, reason, (unsigned long long)p->reserved,
			(long long)p->requested, wait);
}

void hm_pool_give(struct pool *p, struct pool_stream *s, struct block *b,
		  size_t size)
{
	/* One that will be cached, when there is somebody to keep apart from. */
	if (b->units < NR_BINS && p->order.seen > 1)
		b = hm_block_rehome(p, s, b);
	b->slack = block_bytes(b) - size;
	b->left = 0;
	b->stream = s->s.index;
	b->pos = s->s.serial;
	hm_hash_add(p, b);
	lock_stream(p, s);
	s->excess += block_excess(b);
	s->requested += size;
	if (s->requested > s->high)
		s->high = s->requested;
	s->allocs++;
	publish_and_unlock(p, s);
	set_state(b, BLOCK_LIVE);
}

static struct block *find_for(struct pool *p, struct pool_stream *s,
			      unsigned int zone, uint64_t units, int *err,
			      struct hm_stream **waited)
{
	struct block *b;

	if (p->asleep) {
		*err = hm_error(-EBUSY, "the pool is asleep: hetmem_wake()");
		return NULL;
	}
	if (units > UINT32_MAX / 2) {
		*err = hm_error(-ENOMEM, "more than there can be");
		return NULL;
	}
	if (s->graph)
		return hm_graph_find(p, s, zone, units, err);
	b = hm_pool_find_or_grow(p, s, zone, units, err);
	if (!b && *err == -ENOMEM)
		b = wait_for(p, s, zone, units, err, waited);
	return b;
}

/* Where the block begins in what was found; its end is cut off. */
static struct block *fit(struct pool *p, struct block *b, uint64_t units,
			 size_t align)
{
	uint64_t addr = (b->addr + align - 1) & ~(uint64_t)(align - 1);
	unsigned int zone = block_zone(b);

	/* The end of a run is where it can grow. */
	if (p->vm && align == UNIT && zone && b->units > units && b->next &&
	    !(b->flags & BLOCK_GRAPH))
		addr = hm_vm_place(p, b, units);
	return trim_to(p, b, addr, units, zone ? SMALLEST_REST : 1);
}

int hm_pool_alloc_slow(struct pool *p, struct pool_stream *s, size_t size,
		       size_t align, void **ptr)
{
	const size_t whole = p->provider->granularity;
	unsigned int zone = size > SMALL_MAX || p->whole;
	struct hm_stream *waited = NULL;
	uint64_t units, room, wait_ns;
	struct block *b = NULL;
	int err = -ENOMEM;

	if (p->whole && align > whole)
		return hm_error(-EINVAL, "alloc: exportable memory is aligned to %zu",
				whole);
	wait_ns = p->order.wait_ns;
	if (size > PTRDIFF_MAX) {
		hm_error(err, "more than there can be");
	} else {
		units = (size + UNIT - 1) >> UNIT_SHIFT;
		if (p->whole)
			units = ((size + whole - 1) & ~(whole - 1)) >>
				UNIT_SHIFT;
		room = units + (p->whole ? 0 : (align - UNIT) >> UNIT_SHIFT);
		b = find_for(p, s, zone, room, &err, &waited);
		if (b)
			b = fit(p, b, units, align);
	}
	if (!b) {
		p->failed++;
		return explain(p, size, err, p->order.wait_ns - wait_ns, waited);
	}
	*ptr = (void *)(uintptr_t)b->addr;
	hm_pool_give(p, s, b, size);
	return 0;
}

/* Out of the program's hands, with its tag. */
static void let_go(struct pool *p, struct block *b)
{
	if (b->flags & BLOCK_RESERVE)
		p->source->unreserve(p, b);
	/* Released while this free waited for the lock: an ordinary block. */
	if (b->flags & BLOCK_GRAPH && !hm_graph_by_index(p, b->right))
		__atomic_store_n(&b->flags, b->flags & ~BLOCK_GRAPH,
				 __ATOMIC_RELAXED);
	if (b->flags & BLOCK_GRAPH)
		hm_graph_free(p, b);
	else if (b->flags & (BLOCK_USED | BLOCK_EXPORTED))
		hm_block_pend(p, b);
	else
		hm_block_release(p, b);
}

void hm_pool_free_slow(struct pool *p, struct pool_stream *s,
		       struct block *b)
{
	uint64_t bytes = block_bytes(b);

	if (!s) {
		s = stream_at(p, b->stream);
		if (s->s.serial != b->pos || !s->s.id)
			s = stream_at(p, 0);
	}
	hm_hash_remove(p, b);
	lock_stream(p, s);
	hm_pool_return_excess(p, s, b);
	b->stream = s->s.index;
	b->pos = s->s.index ? stream_next_pos(&s->s) : 0;
	s->requested -= bytes - b->slack;
	s->frees++;
	publish_and_unlock(p, s);
	let_go(p, b);
	hm_pool_record(p, s, bytes);
	hm_pool_decay(p);
}
