// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The pool's slow path: what a stream's cache has not. The remedies of a
 * missing block, in this order: a free block of the same stream or a complete
 * one; a complete one of another stream; another's, behind which the stream
 * is ordered; what the source can do, see its grow(); blocks that it can move away, see
 * its relieve(); waiting for memory in use, until any of it is complete.
 */
#include <stdio.h>

#include "core/nvtx.h"
#include "pool/counters.h"
#include "pool/graph.h"
#include "pool/hash.h"
#include "pool/show.h"
#include "pool/source.h"
#include "pool/uses.h"
#include "provider/gate.h"

/* How many blocks of another stream are looked at for a complete one. */
#define PROBES		8
/* How many of all other streams together. */
#define ALL_PROBES	128
/* How many other streams with enough free memory a miss searches. */
#define SEARCHED	64
/* Instructions: of a look at a stream, and at one of its blocks, about. */
#define STREAM_WORK	12
#define PROBE_WORK	192
/* Of a growth, which is not cut into pieces: what is before it gets less. */
#define GROW_WORK	12288
/* How many other streams with a block that fits are enough to choose from. */
#define ENOUGH		4
/* Up to so many, the host included, a miss empties whole caches: more merges. */
#define FEW_STREAMS	17
/* A cached block of another stream is at most so many times as large. */
#define CACHED_SHARE	4
/* How many caches are emptied before memory is looked for again. */
#define CUT		8
/* How many streams a miss asks the driver about. */
#define MAX_ASKED	8
/* Units that small blocks may have in excess; and more, by pool. */
#define EXCESS_UNITS	((1 << 20) >> UNIT_SHIFT)
#define EXCESS_SHARE	1024
/* Instead, over all streams together, if there are several. */
#define EXCESS_SHARED	100
/* What all streams together keep cached before memory is made: bytes. */
#define CACHE_KEPT	((uint64_t)2 << 20)
/* Or this part of what is requested, if that is more. */
#define CACHE_SHARE	100
/* While threads wait for the lock: so many times what is requested. */
#define CACHE_CONTENDED	4

/*
 * The bytes that are requested are counted by stream; the pool has their sum as
 * streams published it, which other streams have changed since. A peak of the
 * sum is known for certain at two times only: when all streams are asked; and,
 * of the time since they were asked before, when one stream had the most, while
 * each of the others had its least or more. So the peak is never too high,
 * except by frees under way, and exact while only one stream at a time is used
 * between two slow paths.
 *
 * All are asked when a stream publishes what could be a new peak.
 */

/* Streams from which on a new peak is this part higher: asking takes time. */
#define MANY_STREAMS	32
#define PEAK_SHARE	256
/* What is watched for decay= is this part higher. */
#define DECAY_SHARE	8

static void raise_peak(struct pool *p, int64_t sum)
{
	if (sum > 0 && (uint64_t)sum > p->requested_peak)
		p->requested_peak = sum;
	if (sum > p->decay_high)
		p->decay_high = sum;
}

/* Adds what @s changed since it published. Under both locks. */
static void publish_stream(struct pool *p, struct pool_stream *s)
{
	p->requested += s->requested - s->published;
	s->published = s->requested;
	pool_show_stream(p, s, 0, 0);
}

void hm_pool_sum(struct pool *p)
{
	int64_t low = 0, most = 0;
	unsigned int i;

	hm_pool_collect(p);
	for (i = 0; i < p->order.nr; i++) {
		struct pool_stream *s = stream_at(p, i);

		if (stream_is_published(s)) {
			low += s->published;
			continue;
		}
		hm_stream_lock(p, s);
		low += s->low;
		if (s->high - s->low > most)
			most = s->high - s->low;
		publish_stream(p, s);
		stream_set_counter(&s->high, s->requested);
		stream_set_counter(&s->low, s->requested);
		stream_unlock(s);
	}
	p->sum_due = false;
	raise_peak(p, p->requested);
	raise_peak(p, low + most);
	hm_pool_show(p);
}

/* Whether @sum, which may be too much, is worth asking all streams. */
static bool may_be_peak(const struct pool *p, int64_t sum)
{
	uint64_t peak = p->requested_peak;

	if (p->order.nr > MANY_STREAMS)
		peak += peak / PEAK_SHARE;
	if (sum <= 0)
		return false;
	return (uint64_t)sum > peak ||
	       (p->opt.decay_ms &&
		sum > p->decay_high + p->decay_high / DECAY_SHARE);
}

/*
 * What the small blocks of @s may have in excess: what they have, and of what is
 * left for all streams its part. The cached path reads its own limit only.
 */
static void set_room(struct pool *p, struct pool_stream *s)
{
	const uint64_t units = p->reserved >> UNIT_SHIFT;
	int64_t left, room = EXCESS_UNITS + units / EXCESS_SHARE;

	if (p->order.seen > 1) {
		left = EXCESS_UNITS + units / EXCESS_SHARED - p->room + s->room;
		room = s->excess > 0 ? s->excess : 0;
		if (left > room)
			room += (left - room) / 4;
	}
	p->room += room - s->room;
	s->room = room;
}

/* A second stream has come: the first one had all. @s is locked. */
static void share_room(struct pool *p, const struct pool_stream *s)
{
	unsigned int i;

	p->shared = true;
	p->work += p->order.nr * 3 * STREAM_WORK;
	for (i = 0; i < p->order.nr; i++) {
		struct pool_stream *of = stream_at(p, i);

		if (of == s)
			continue;
		stream_lock(of);
		set_room(p, of);
		stream_unlock(of);
	}
}

static void publish_and_unlock(struct pool *p, struct pool_stream *s)
{
	int64_t rise;

	if (hm_unlikely(p->order.seen > 1 && !p->shared))
		share_room(p, s);
	set_room(p, s);
	publish_stream(p, s);
	rise = s->high - s->requested;
	stream_unlock(s);
	p->sum_due |= may_be_peak(p, p->requested + rise);
}

/* Last in a call: what was published may be a new peak. May release the lock. */
static void sum_if_due(struct pool *p)
{
	if (!p->sum_due)
		return;
	p->work += p->order.nr * 3 * STREAM_WORK;
	hm_pool_sum(p);
}

void hm_pool_publish(struct pool *p, struct pool_stream *s)
{
	hm_stream_lock(p, s);
	publish_and_unlock(p, s);
}

/*
 * The caches of streams that were not used since the last look. Releases the lock
 * between pieces.
 */
static void flush_idle(struct pool *p)
{
	unsigned int i;

	for (i = 0; i < p->order.nr; i++) {
		struct pool_stream *s = stream_at(p, i);
		uint64_t used;

		stream_lock(s);
		used = stream_allocs(s) + s->frees;
		stream_unlock(s);
		if (used == s->used && hm_stream_cached(s))
			hm_stream_flush(p, s, 0);
		s->used = used;
		hm_pool_step(p, 4 * STREAM_WORK);
	}
}

void hm_pool_decay(struct pool *p)
{
	uint64_t now, keep;
	bool first;

	if (!p->opt.decay_ms || p->asleep)
		return;
	now = hm_now();
	if (now < p->decay_at)
		return;
	/* No other thread looks too while the lock is released. */
	first = !p->decay_at;
	p->decay_at = now + p->opt.decay_ms * 1000000ULL;
	/* Frees that caches took are counted here, if nowhere before. */
	hm_pool_sum(p);
	flush_idle(p);
	/* The first look only begins to watch. */
	keep = p->decay_high;
	if (!first && p->reserved > keep + keep / 8) {
		hm_pool_flush(p);
		hm_pool_record_all(p);
		hm_pool_poll(p);
		hm_pool_settle_all(p);
		p->source->trim(p, keep > p->opt.min ? keep : p->opt.min);
	}
	p->decay_high = p->requested > 0 ? p->requested : 0;
}

void hm_pool_record_all(struct pool *p)
{
	unsigned int i;

	for (i = 1; i < p->order.nr; i++) {
		hm_stream_record(&p->order, p->order.streams[i]);
		hm_pool_step(p, 4 * STREAM_WORK);
	}
}

int hm_pool_may_hold(const struct pool *p, uint64_t bytes)
{
	const uint64_t held = hm_pool_held(p) + p->busy;
	int err;

	if (p->opt.max && (bytes > p->opt.max || held > p->opt.max - bytes)) {
		err = hm_gate_advice(p->provider, bytes);
		return err ? err : hm_error(-ENOMEM, "pool: %llu of at most %llu bytes are held",
					    (unsigned long long)held,
					    (unsigned long long)p->opt.max);
	}
	return 0;
}

static __thread uint64_t made_here;

uint64_t hm_pool_made_here(void)
{
	return made_here;
}

void hm_pool_hold(struct pool *p, uint64_t bytes)
{
	made_here += bytes;
	p->made++;
	p->made_bytes += bytes;
	p->reserved += bytes;
	if (p->reserved > p->reserved_peak)
		p->reserved_peak = p->reserved;
	hm_tags_hold(p->tags, bytes);
	hm_pool_show(p);
}

void hm_pool_unhold(struct pool *p, uint64_t bytes)
{
	p->given_back++;
	p->reserved -= bytes;
	hm_tags_unhold(p->tags, bytes);
	hm_pool_show(p);
}

/*
 * Walks over all streams except the host, beginning after the one that was asked
 * last: with many streams a miss sees some, and the next one others.
 */
#define for_each_turn(p, i, index)					\
	for (i = 1, index = first_turn(p); i < (p)->order.nr;		\
	     i++, index = index + 1 < (p)->order.nr ? index + 1 : 1)

static unsigned int first_turn(const struct pool *p)
{
	return p->turn + 1 < p->order.nr ? p->turn + 1 : 1;
}

/*
 * The best block of @of for @s, of those whose work is known to be complete or
 * behind which @s is ordered; or NULL.
 */
static struct block *find_known(const struct pool *p,
				const struct pool_stream *s,
				const struct pool_stream *of, unsigned int zone,
				uint64_t units, unsigned int *all_probes)
{
	const uint64_t known = hm_stream_known(&s->s, &of->s);
	struct block *b = hm_arena_best(p, &of->arenas[zone], units);
	unsigned int probes;

	for (probes = 0; b && probes < PROBES; probes++) {
		++*all_probes;
		if (b->pos <= known)
			return b;
		b = hm_arena_next(p, &of->arenas[zone], b);
	}
	return NULL;
}

/* The smallest of its own and of the host's. */
static struct block *find_own(const struct pool *p, const struct pool_stream *s,
			      unsigned int zone, uint64_t units)
{
	struct block *best, *b;

	best = hm_arena_best(p, &s->arenas[zone], units);
	if (best && best->units == units)
		return best;
	/* Blocks that own their handle are not cut. */
	if (p->whole)
		best = NULL;
	b = s->s.index ? hm_arena_best(p, &stream_at(p, 0)->arenas[zone], units) : NULL;
	if (p->whole && b && b->units != units)
		b = NULL;
	return !best || (b && b->units < best->units) ? b : best;
}

/* The smallest that @s may use without waiting for anything. */
static struct block *find_ready(struct pool *p, struct pool_stream *s,
				unsigned int zone, uint64_t units)
{
	unsigned int i, index, searched = 0, probes = 0, fit = 0;
	struct block *best = find_own(p, s, zone, units), *b;

	if (best || p->whole || hm_pool_is_apart(p, zone))
		return best;
	for_each_turn(p, i, index) {
		if (index == s->s.index || stream_at(p, index)->arenas[zone].units < units)
			continue;
		if (searched++ == SEARCHED || probes >= ALL_PROBES || fit == ENOUGH)
			break;
		b = find_known(p, s, stream_at(p, index), zone, units, &probes);
		if (b && (!best || b->units < best->units))
			best = b;
		fit += !!b;
	}
	p->work += i * STREAM_WORK + (searched + probes) * PROBE_WORK;
	return best;
}

/*
 * Asks the driver whether streams are complete that have memory; of either
 * zone, since handles move from one to the other. At most MAX_ASKED in one
 * search, each time others. Returns whether any has progressed.
 */
static bool ask_streams(struct pool *p, const struct pool_stream *s)
{
	unsigned int i, index;
	bool changed = false;

	for_each_turn(p, i, index) {
		struct pool_stream *of = stream_at(p, index);

		if (!p->to_ask)
			break;
		p->turn = index;
		if (of == s || of->s.done >= hm_stream_pos(&of->s) ||
		    !(of->arenas[0].units || of->arenas[1].units ||
		      of->first_use))
			continue;
		p->to_ask--;
		if (hm_stream_ask(&p->order, &of->s)) {
			hm_uses_settle(p, of);
			changed = true;
		}
	}
	p->work += 2 * i * STREAM_WORK;
	return changed;
}

/* The smallest of another stream, which @s is ordered behind. */
static struct block *find_waiting(struct pool *p, struct pool_stream *s,
				  unsigned int zone, uint64_t units)
{
	struct block *best = NULL, *b;
	unsigned int i, index, searched = 0;

	if (p->whole)
		return NULL;
	for_each_turn(p, i, index) {
		struct pool_stream *of = stream_at(p, index);

		if (of->s.lost || of->arenas[zone].units < units)
			continue;
		if (searched++ == SEARCHED)
			break;
		b = hm_arena_best(p, &of->arenas[zone], units);
		if (b && (!best || b->units < best->units))
			best = b;
	}
	p->work += i * STREAM_WORK + searched * PROBE_WORK;
	if (best && !hm_block_wait(p, s, best))
		return best;
	b = hm_arena_best(p, &p->pending[zone], units);
	for (i = 0; b && i < PROBES; i++) {
		if (!hm_block_wait(p, s, b))
			return b;
		b = hm_arena_next(p, &p->pending[zone], b);
	}
	return NULL;
}

/* Out of its arena, if it was in one: BUSY. */
static struct block *take_found(struct pool *p, struct block *b)
{
	if (b && block_state(b) == BLOCK_FREE)
		hm_block_take(p, b);
	return b;
}

/*
 * @order: also memory that @s has to be ordered behind, as the last. May release the
 * lock before it looks.
 */
static struct block *find_free(struct pool *p, struct pool_stream *s,
			       unsigned int zone, uint64_t units, bool order)
{
	struct block *b;

	hm_pool_step(p, 0);
	if (p->asleep)
		return NULL;
	b = find_ready(p, s, zone, units);
	/* Host memory is used at once: nothing can be put behind. */
	if (!b && (p->order.seen > 1 || p->nr_pending || !s->s.index)) {
		if (ask_streams(p, s))
			b = find_ready(p, s, zone, units);
		if (!b && order && !hm_pool_is_apart(p, zone))
			b = find_waiting(p, s, zone, units);
	}
	return take_found(p, b);
}

/* Whether @s is ordered behind all uses of PENDING @b; *@looks: of them. */
static bool uses_known(const struct pool *p, const struct pool_stream *s,
		       const struct block *b, unsigned int *looks)
{
	const struct use *u;
	uint32_t id;

	for (id = b->slack; id; id = u->next) {
		u = use_at(p, id);
		++*looks;
		if (u->stream &&
		    u->pos > hm_stream_known(&s->s, p->order.streams[u->stream]))
			return false;
	}
	return true;
}

/* Looks at uses that one claim takes, and instructions of one, about. */
#define CLAIM_LOOKS	1024
#define LOOK_WORK	16

bool hm_pool_claim(struct pool *p, struct pool_stream *s)
{
	unsigned int i, index, waits = 0, looks = 0;
	bool any = false;
	uint32_t id, next;

	if (!p->nr_pending)
		return false;
	for_each_turn(p, i, index) {
		struct pool_stream *of = stream_at(p, index);

		if (of == s || !of->first_use)
			continue;
		if (waits++ == MAX_ASKED)
			break;
		hm_stream_wait(&p->order, &s->s, &of->s,
			       use_at(p, of->last_use)->pos);
	}
	for (i = 1; i < p->order.nr; i++) {
		for (id = stream_at(p, i)->first_use; id && looks < CLAIM_LOOKS;
		     id = next) {
			struct block *b = block_at(p, use_at(p, id)->block);

			next = use_at(p, id)->later;
			looks += 2;
			if (b->flags & BLOCK_DROPPED ||
			    block_state(b) != BLOCK_PENDING || !uses_known(p, s, b, &looks) ||
			    hm_block_wait(p, s, b))
				continue;
			looks += MOVE_WORK / LOOK_WORK;
			/* It may have had several uses here: begin again. */
			next = stream_at(p, i)->first_use;
			hm_block_release(p, b);
			any = true;
		}
	}
	p->work += 2 * i * STREAM_WORK + looks * LOOK_WORK;
	return any;
}

int hm_pool_asleep(void)
{
	return hm_error(-EBUSY, "the pool is asleep: hetmem_wake()");
}

/*
 * A cached block of another stream that @s may use at once, hardly larger than it
 * has to be: the rest of that cache, and all other caches, stay.
 */
static struct block *take_cached(struct pool *p, struct pool_stream *s,
				 uint64_t units)
{
	uint32_t last = units * CACHED_SHARE < NR_BINS ? units * CACHED_SHARE : NR_BINS - 1;
	unsigned int i, index, searched = 0;
	struct block *b = NULL;

	/* A sleep may be about to empty the caches. */
	if (p->asleep || p->order.nr <= FEW_STREAMS)
		return NULL;
	p->to_ask = MAX_ASKED;
	for_each_turn(p, i, index) {
		struct pool_stream *of = stream_at(p, index);

		if (of == s || hm_stream_cached(of) < units << UNIT_SHIFT ||
		    hm_stream_cached(of) <= hm_stream_budget(p, of))
			continue;
		if (searched++ == SEARCHED)
			break;
		p->turn = index;
		if (p->to_ask && of->s.done < hm_stream_pos(&of->s)) {
			p->to_ask--;
			hm_stream_ask(&p->order, &of->s);
		}
		b = hm_stream_uncache(p, of, units, last,
				      hm_stream_known(&s->s, &of->s));
		if (b)
			break;
	}
	p->work += i * STREAM_WORK + searched * PROBE_WORK;
	return b;
}

/*
 * Cuts the cache of @of to @left, if all have more than @keep: *@total. Releases the
 * lock between pieces.
 */
static bool cut_cache(struct pool *p, struct pool_stream *of, uint64_t left,
		      uint64_t keep, uint64_t *total)
{
	const uint64_t budget = hm_stream_budget(p, of);
	uint64_t bytes = hm_stream_cached(of);

	if (left < budget)
		left = budget;
	if (*total <= keep || bytes <= left)
		return false;
	bytes -= left;
	hm_stream_flush(p, of, left);
	hm_pool_step(p, 0);
	*total -= bytes < *total ? bytes : *total;
	return true;
}

/*
 * Cuts the caches of all streams except @s and the host, until there is what @s lacks.
 * Releases the lock, and looks for a block after that.
 */
static struct block *cut_others(struct pool *p, struct pool_stream *s,
				uint64_t units, uint64_t left, uint64_t keep,
				uint64_t *total)
{
	unsigned int i, index, cut = 0;
	struct block *b;

	for_each_turn(p, i, index) {
		if (*total <= keep)
			break;
		hm_pool_step(p, 3 * STREAM_WORK);
		if (stream_at(p, index) == s ||
		    !cut_cache(p, stream_at(p, index), left, keep, total) ||
		    ++cut % CUT || p->asleep)
			continue;
		b = find_ready(p, s, 0, units);
		if (b)
			return b;
	}
	return NULL;
}

/*
 * Before memory for small blocks is made. What is cached is worth some memory: a stream whose
 * cache is emptied whenever it lacks a size would hardly ever find one. The
 * caches of the others go first, CUT of them at a time, until there is what @s
 * lacks: with many streams a miss does not empty the caches of all. Their large
 * blocks go before the small ones, which hardly count and are asked for as often.
 * Releases the lock; what it returns is found after that.
 */
static struct block *cut_caches(struct pool *p, struct pool_stream *s,
				uint64_t units)
{
	uint64_t keep = p->requested > 0 ? p->requested / CACHE_SHARE : 0;
	struct block *b = NULL;
	bool shared = false;
	uint64_t total = 0;
	int64_t high;
	unsigned int i;

	/* With empty caches all of them would miss, and wait for each other. */
	if (p->requested > 0 && __atomic_load_n(&p->order.waiting, __ATOMIC_RELAXED))
		keep = p->requested * (uint64_t)CACHE_CONTENDED;
	if (keep < CACHE_KEPT)
		keep = CACHE_KEPT;
	p->cuts++;
	for (i = 0; i < p->order.nr; i++) {
		struct pool_stream *of = stream_at(p, i);

		total += hm_stream_cached(of);
		shared |= of != s && hm_stream_budget(p, of);
		hm_pool_step(p, 3 * STREAM_WORK);
	}
	if (s->s.index)
		cut_cache(p, stream_at(p, 0), 0, keep, &total);
	if (p->order.nr > FEW_STREAMS)
		b = cut_others(p, s, units, SMALL_KEPT, keep, &total);
	if (!b)
		b = cut_others(p, s, units, 0, keep, &total);
	/* Other threads keep theirs: so does this one. */
	high = __atomic_load_n(&s->high, __ATOMIC_RELAXED);
	if (shared && high > 0 && (uint64_t)high > keep)
		keep = high;
	if (!b && total > keep)
		hm_stream_flush(p, s, keep);
	return b;
}

/*
 * New memory, and memory that is put together anew. Releases the lock before that:
 * looks again for what others freed.
 */
static struct block *grow(struct pool *p, struct pool_stream *s,
			  unsigned int zone, uint64_t units, bool order,
			  int *err)
{
	struct block *b;

	while (order && s->s.index && hm_pool_claim(p, s)) {
		b = find_free(p, s, zone, units, order);
		if (b)
			return b;
	}
	hm_pool_step(p, 0);
	if (p->source->prepare && !p->asleep)
		p->source->prepare(p, s, order);
	hm_pool_step(p, GROW_WORK);
	if (p->asleep) {
		*err = hm_pool_asleep();
		return NULL;
	}
	b = take_found(p, find_own(p, s, zone, units));
	if (b)
		return b;
	*err = p->source->grow(p, s, zone, units, order, &b);
	return *err ? NULL : b;
}

void hm_pool_make_ready(struct pool *p)
{
	hm_pool_flush(p);
	if (p->order.seen > 1)
		hm_pool_poll(p);
	hm_pool_settle(p);
}

/* Small blocks from here on can be taken from the large ones' memory: units. */
#define LARGER		((256 << 10) >> UNIT_SHIFT)
/* If more than this part of the pool is free for small ones, and none of it serves. */
#define PIECES_SHARE	32
#define PIECES_BYTES	((uint64_t)8 << 20)

/* Memory for small blocks is in pieces: more of it would be, too. */
static bool is_in_pieces(const struct pool *p, const struct pool_stream *s)
{
	const uint64_t free = (s->arenas[0].units + stream_at(p, 0)->arenas[0].units) <<
		UNIT_SHIFT;

	return free > PIECES_BYTES && free > p->reserved / PIECES_SHARE;
}

/*
 * A stream that frees and allocates in turn, and takes memory of others each time, lost what it
 * freed to others. After so many times it gets memory of its own.
 */
#define STEALS		4

/* Before memory for small blocks is made. May release the lock. */
static struct block *find_for_small(struct pool *p, struct pool_stream *s,
				    uint64_t units, bool order)
{
	const uint64_t frees = __atomic_load_n(&s->frees, __ATOMIC_RELAXED);
	const uint64_t allocs = stream_allocs(s);
	struct block *b;

	if (allocs != s->stolen_at + 1 || frees == s->stolen_frees)
		s->steals = 0;
	if (s->steals == STEALS) {
		s->steals = 0;
		return NULL;
	}
	b = take_cached(p, s, units);
	if (!b)
		b = take_found(p, cut_caches(p, s, units));
	if (!b)
		b = find_free(p, s, 0, units, order);
	if (b && b->stream && b->stream != s->s.index) {
		s->steals++;
		s->stolen_at = allocs;
		s->stolen_frees = frees;
	}
	if (!b && units >= LARGER && is_in_pieces(p, s))
		b = find_free(p, s, 1, units, order);
	return b;
}

struct block *hm_pool_find_now(struct pool *p, struct pool_stream *s, unsigned int zone,
			       uint64_t units, int *err)
{
	bool order = p->opt.reuse_order;
	struct block *b;
	unsigned int i;

	p->to_ask = MAX_ASKED;
	b = find_free(p, s, zone, units, order);
	if (b)
		return b;
	if (!zone && !p->whole) {
		b = find_for_small(p, s, units, order);
		if (!b)
			b = grow(p, s, zone, units, order, err);
		if (b)
			return b;
	}
	hm_pool_flush(p);
	hm_pool_settle(p);
	/* The lock may have been released. */
	if (p->asleep) {
		*err = hm_pool_asleep();
		return NULL;
	}
	b = find_free(p, s, zone, units, order);
	if (!b)
		b = grow(p, s, zone, units, order, err);
	if (b || order || *err != -ENOMEM)
		return b;
	/* There is no room: at the price of an order, or of a wait of the driver. */
	for (i = 0; i < p->order.nr && !b; i += SEARCHED) {
		b = find_free(p, s, zone, units, true);
		p->turn = first_turn(p) + SEARCHED;
	}
	return b ? b : grow(p, s, zone, units, true, err);
}

/* Whether memory that is in sight waits for @s. */
static bool stream_has_memory(const struct pool_stream *s)
{
	unsigned int zone;

	if (s->s.done >= hm_stream_pos(&s->s))
		return false;
	for (zone = 0; zone < NR_ZONES; zone++)
		if (s->arenas[zone].units)
			return true;
	return s->first_use || s->parked || s->s.nr;
}

bool hm_pool_awaits(struct pool *p)
{
	unsigned int i, zone;

	p->work += p->order.nr * STREAM_WORK;
	for (i = 1; i < p->order.nr; i++) {
		const struct pool_stream *s = stream_at(p, i);

		if (!s->s.nr || s->s.lost)
			continue;
		if (s->first_use || s->parked || p->nr_dropped)
			return true;
		for (zone = 0; zone < NR_ZONES; zone++)
			if (s->arenas[zone].units)
				return true;
	}
	return false;
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
	p->work += p->order.nr * STREAM_WORK;
	for (i = 1; i < p->order.nr; i++) {
		struct pool_stream *s = stream_at(p, i);

		if (!stream_has_memory(s))
			continue;
		/* One that is captured goes on later; the others do not wait. */
		if (!s->s.lost && !hm_stream_record(&p->order, &s->s))
			*of = *of ? *of : &s->s;
		else if (s->s.lost)
			*lost = &s->s;
	}
}

/* How many blocks were freed so far, about: it changes when one is freed. */
static uint64_t count_frees(struct pool *p)
{
	uint64_t frees = 0;
	unsigned int i;

	hm_pool_collect(p);
	for (i = 0; i < p->order.nr; i++)
		frees += __atomic_load_n(&stream_at(p, i)->frees,
					 __ATOMIC_RELAXED);
	return frees;
}

/*
 * Until any stream has progressed or a block was freed; *@last: a stream that
 * was waited for. Without the lock in between. Errors:
 * -ENOENT: there is nothing to wait for;
 * -EBUSY: the pool was put to sleep;
 * -ETIMEDOUT, -EIO.
 */
static int wait_for_change(struct pool *p, uint64_t deadline,
			   struct hm_stream **last)
{
	uint64_t frees = count_frees(p);
	struct hm_stream *of, *lost;
	unsigned int naps = 0;
	HM_RANGE("wait", 0);

	record_all(p, &of, &lost);
	if (!of && !lost)
		return -ENOENT;
	*last = of ? of : lost;
	if (!of)
		return hm_stream_sync_lost(&p->order, lost);
	while (!hm_pool_poll(p) && count_frees(p) == frees) {
		if (hm_now() >= deadline)
			return -ETIMEDOUT;
		hm_order_nap(&p->order, &naps);
		if (p->asleep)
			return -EBUSY;
	}
	return 0;
}

/*
 * Asks the driver about all streams: one search asked about some. Releases the lock
 * between pieces.
 */
static bool ask_all(struct pool *p)
{
	bool changed = false;
	unsigned int i;

	for (i = 1; i < p->order.nr; i++) {
		struct pool_stream *s = stream_at(p, i);

		if (stream_has_memory(s) && hm_stream_ask(&p->order, &s->s)) {
			changed = true;
			while (hm_uses_settle(p, s))
				hm_pool_pause(p);
		}
		hm_pool_step(p, 2 * STREAM_WORK);
	}
	return changed;
}

/* All pieces of what a growth does: whether it is worth another one. */
static bool retry_source(struct pool *p)
{
	bool changed = ask_all(p);

	if (hm_pool_settle(p)) {
		hm_pool_settle_all(p);
		changed = true;
	}
	return (p->source->retry && p->source->retry(p)) || changed;
}

/* As hm_pool_attempt(). What other tags have freed is tried only while no work uses it. */
static int attempt_and_wait(struct pool *p, struct pool_stream *s, uint64_t bytes,
			    int (*attempt)(struct pool *p, struct pool_stream *s, void *arg),
			    void *arg, struct hm_stream **waited)
{
	int err = attempt(p, s, arg), wait;
	uint64_t deadline;

	if (err == -ENOMEM && retry_source(p))
		err = attempt(p, s, arg);
	if (err == -ENOMEM && hm_tags_relieve(p, 0))
		err = p->asleep ? hm_pool_asleep() : attempt(p, s, arg);
	while (err == -ENOMEM && p->source->relieve && p->source->relieve(p, s, bytes))
		err = attempt(p, s, arg);
	if (err != -ENOMEM || p->opt.wait_ms == HM_POOL_NO_WAIT)
		return err;
	deadline = hm_now() + hm_pool_most_wait_on(p, s);
	do {
		wait = wait_for_change(p, deadline, waited);
		if (p->asleep)
			return hm_pool_asleep();
		if (wait && wait != -ETIMEDOUT)
			return err;
		p->source->poll(p);
		/* After the time is up as well: other threads freed meanwhile. */
		err = attempt(p, s, arg);
		/* The host may have room now, for blocks that had to stay. */
		if (err == -ENOMEM && !wait && p->source->relieve && p->source->relieve(p, s, bytes))
			err = attempt(p, s, arg);
	} while (err && !wait);
	return err;
}

int hm_pool_attempt(struct pool *p, struct pool_stream *s, uint64_t bytes,
		    int (*attempt)(struct pool *p, struct pool_stream *s,
				   void *arg),
		    void *arg, struct hm_stream **waited)
{
	const uint64_t deadline = hm_now() + hm_pool_most_wait_on(p, s);
	int err = attempt_and_wait(p, s, bytes, attempt, arg, waited);

	while (err == -ENOMEM && p->opt.wait_ms != HM_POOL_NO_WAIT && hm_tags_relieve(p, deadline))
		err = p->asleep ? hm_pool_asleep() : attempt(p, s, arg);
	return err;
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
	if (b->flags & BLOCK_GRAPH)
		hm_graph_give(p, b);
	hm_hash_add(p, b);
	hm_stream_lock(p, s);
	s->excess += block_excess(b);
	stream_add_requested(s, b->flags & BLOCK_WHOLE ? block_asked(p, b) : size);
	__atomic_store_n(&s->batches, s->batches + 1, __ATOMIC_RELAXED);
	publish_and_unlock(p, s);
	block_set_state(b, BLOCK_LIVE);
}

static struct block *find_block(struct pool *p, struct pool_stream *s,
				struct graph *g, unsigned int zone, uint64_t units, bool whole,
				int *err, struct hm_stream **waited)
{
	if (p->asleep) {
		*err = hm_pool_asleep();
		return NULL;
	}
	if (units > UINT32_MAX / 2) {
		*err = hm_error(-ENOMEM, "more than there can be");
		return NULL;
	}
	if (!g)
		g = s->graph;
	if (g)
		return hm_graph_find(p, s, g, zone, units, whole, err, waited);
	return hm_pool_find(p, s, zone, units, err, waited);
}

/* Cuts the block out of @b, which was found. NULL, only with @fit: @b is lost. */
static struct block *place_block(struct pool *p, struct block *b,
				 uint64_t units, size_t align, bool movable, bool fit)
{
	uint64_t addr = (b->addr + align - 1) & ~(uint64_t)(align - 1);
	unsigned int zone = block_zone(b);

	/* The end of a run is where it can grow. */
	if (p->source->place && align == UNIT && zone && b->units > units &&
	    (b->next || movable) && !(b->flags & BLOCK_GRAPH))
		addr = p->source->place(p, b, units, movable);
	if (zone && fit && p->source->fit && !p->source->fit(p, b, addr, units))
		return NULL;
	return hm_block_trim(p, b, addr, units, zone ? BLOCK_REST : 1);
}

/* A capture's blocks never move. Smaller blocks than SMALL_MAX are movable by a flag only. */
static bool is_movable(const struct pool *p, const struct pool_stream *s,
		       const struct graph *g, const struct hm_ctl_alloc *with, size_t size)
{
	const unsigned int flags = with ? with->flags : 0;

	if (!p->source->declare || g || s->graph || flags & HETMEM_ALLOC_KEEP)
		return false;
	return flags & HETMEM_ALLOC_MOVABLE ||
	       (p->opt.movable && size >= SMALL_MAX && size >= p->opt.movable);
}

/* Whole blocks have multiples of it. */
static size_t whole_granule(const struct pool *p)
{
	const size_t granule = p->provider->granularity;

	return p->whole || granule > WHOLE_LEAST ? granule : WHOLE_LEAST;
}

int hm_pool_alloc_slow(struct pool *p, struct pool_stream *s, struct graph *g,
		       const struct hm_ctl_alloc *with, size_t size, size_t align, void **ptr)
{
	const bool whole = p->whole || (with && with->flags & HETMEM_ALLOC_WHOLE);
	const bool movable = is_movable(p, s, g, with, size);
	const unsigned int zone = size > SMALL_MAX || whole || movable;
	const size_t granule = whole_granule(p);
	struct hm_stream *waited = NULL;
	uint64_t units, room, wait_ns;
	struct block *b = NULL;
	int err = -ENOMEM, i;
	HM_RANGE("alloc", size);

	if (whole && align > p->provider->granularity)
		return hm_error(-EINVAL, "alloc: %s is aligned to %zu",
				p->whole ? "exportable memory" : "a whole block",
				p->provider->granularity);
	/* What follows may release the lock for a while. */
	s->pins++;
	hm_pool_sync_lost(p);
	hm_pool_decay(p);
	wait_ns = p->order.wait_ns;
	if (size > PTRDIFF_MAX) {
		hm_error(err, "more than there can be");
	} else {
		units = units_of(size);
		if (whole)
			units = ((size + granule - 1) & ~(granule - 1)) >>
				UNIT_SHIFT;
		room = units + (whole ? 0 : (align - UNIT) >> UNIT_SHIFT);
		/* Twice, if the memory was lost while it was fitted. */
		for (i = 0; !b && i < 2; i++) {
			b = find_block(p, s, g, zone, room, whole, &err, &waited);
			if (!b)
				break;
			b = place_block(p, b, units, align, movable, !i);
		}
	}
	s->pins--;
	if (!b) {
		p->failed++;
		hm_pool_show(p);
		return hm_pool_explain(p, s, "alloc of", size, err,
				       p->order.wait_ns - wait_ns, waited);
	}
	*ptr = (void *)(uintptr_t)b->addr;
	hm_pool_give(p, s, b, size);
	/* A small block has another descriptor now. */
	b = movable ? hm_block_find_locked(p, (uintptr_t)*ptr) : NULL;
	if (b && !(b->flags & BLOCK_GRAPH))
		p->source->declare(p, b, with ? with->priority : 0);
	sum_if_due(p);
	/* Last: it waits, and other threads go on. */
	if (zone && p->source->regain) {
		s->pins++;
		p->source->regain(p, s);
		s->pins--;
	}
	return 0;
}

/* Freed on @s, with its tag. */
static void let_go(struct pool *p, struct pool_stream *s, struct graph *to,
		   struct block *b)
{
	if (b->flags & BLOCK_RESERVE)
		p->source->unreserve(p, b);
	if (b->flags & BLOCK_GRAPH)
		hm_graph_free(p, s, to, b);
	else if (b->flags & (BLOCK_USED | BLOCK_DROPPED))
		hm_block_free_used(p, b);
	else
		hm_block_release(p, b);
}

void hm_pool_let_go(struct pool *p, struct block *b)
{
	let_go(p, stream_at(p, b->stream), NULL, b);
}

void hm_pool_free_slow(struct pool *p, struct pool_stream *s, struct graph *to,
		       struct block *b)
{
	uint64_t bytes = block_bytes(b), pos;

	if (!s)
		s = hm_block_owner(p, b);
	hm_hash_remove(p, b);
	hm_stream_lock(p, s);
	hm_pool_return_excess(p, s, b);
	pos = s->s.index ? hm_stream_next_pos(&s->s) : 0;
	if (!(b->flags & BLOCK_GRAPH)) {
		b->stream = s->s.index;
		b->pos = pos;
	}
	stream_sub_requested(s, block_asked(p, b));
	stream_count_free(s);
	s->calm++;
	publish_and_unlock(p, s);
	/* The lock may be released. */
	s->pins++;
	if (!(b->flags & BLOCK_MOVABLE) || p->source->forget(p, b))
		let_go(p, s, to, b);
	s->pins--;
	hm_pool_record(p, s, 1, bytes);
	/* Others may wait for the device when they take memory back. */
	if (p->provider->caps & HM_PROVIDER_MAPPABLE)
		hm_pool_decay(p);
	sum_if_due(p);
}

/*
 * Blocks and streams: uses on further streams, streams that come to an end,
 * when an event is recorded.
 */

/* What a free block may stay behind the last event: see stream.c. */
#define RECORD_FREES	64
#define RECORD_BYTES	((uint64_t)64 << 20)
/* Or this part of the pool, if that is more. */
#define RECORD_SHARE	16
/* Streams that were lost: of more, the host waits for their context. */
#define MAX_LOST	(HM_MAX_STREAMS / 2)

int hm_pool_lock(struct pool *p, hetmem_stream stream, uint64_t epoch,
		 struct pool_stream **s)
{
	int err = hm_order_lock(&p->order, stream, epoch, (struct hm_stream **)s);

	if (!err)
		p->work = 0;
	return err;
}

int hm_pool_lock_stream(struct pool *p, hetmem_stream stream,
			struct pool_stream **s)
{
	uint64_t epoch = pool_epoch(p);
	int err = hm_stream_get(&p->order, stream, (struct hm_stream **)s);

	return err ? err : hm_pool_lock(p, stream, epoch, s);
}

void hm_pool_record(struct pool *p, struct pool_stream *s, unsigned int nr,
		    uint64_t bytes)
{
	if (p->order.seen <= 1 || !s->s.index || s->s.retired)
		return;
	s->unrecorded += nr;
	s->unrecorded_bytes += bytes;
	if (s->unrecorded < RECORD_FREES &&
	    (s->unrecorded_bytes < RECORD_BYTES ||
	     s->unrecorded_bytes < p->reserved / RECORD_SHARE))
		return;
	/* Whoever needs it tries again and says why it failed. */
	if (!hm_stream_record(&p->order, &s->s)) {
		s->unrecorded_bytes = 0;
		s->unrecorded = 0;
	}
}

/* A retired stream has an end; behind it, it is nobody. */
static void bury_stream(struct pool *p, struct pool_stream *s)
{
	unsigned int zone;

	if (!s->s.retired || !s->s.id || s->pins ||
	    s->s.done < hm_stream_pos(&s->s))
		return;
	/* What still uses live memory of one that was lost has no position. */
	if (s->s.lost && !s->s.synced)
		return;
	/* As for one that is retired: before its lock is taken. */
	if (s->s.lost) {
		hm_order_change(&p->order);
		hm_stream_unhit(s);
	}
	if (s->first_use || hm_stream_flush_piece(p, s, 0))
		return;
	for (zone = 0; zone < NR_ZONES; zone++)
		if (s->arenas[zone].units)
			return;
	hm_pool_publish(p, s);
	hm_stream_recycle(&p->order, &s->s);
	p->work += 2 * MOVE_WORK;
}

void hm_pool_sync_lost(struct pool *p)
{
	unsigned int i;

	if (p->nr_lost <= MAX_LOST)
		return;
	p->nr_lost = 0;
	for (i = 1; i < p->order.nr; i++) {
		struct hm_stream *s = p->order.streams[i];

		if (s->id && s->lost && !s->synced)
			hm_stream_sync_lost(&p->order, s);
	}
	hm_pool_poll(p);
}

bool hm_pool_poll(struct pool *p)
{
	bool changed = false, retired = false;
	unsigned int i, lost = 0;

	for (i = 1; i < p->order.nr; i++) {
		struct pool_stream *s = stream_at(p, i);
		const unsigned int points = s->s.nr;

		if (s->first_use &&
		    s->s.recorded < use_at(p, s->first_use)->pos)
			hm_stream_record(&p->order, &s->s);
		changed |= hm_stream_poll(&p->order, &s->s);
		while (hm_uses_settle(p, s))
			hm_pool_pause(p);
		p->work += (points - s->s.nr) * STREAM_WORK;
		hm_pool_step(p, 8 * STREAM_WORK);
		retired |= s->s.retired && s->s.id;
		lost += s->s.id && s->s.lost && !s->s.synced;
	}
	p->nr_lost = lost;
	hm_uses_settle_dropped(p);
	if (retired) {
		hm_pool_settle(p);
		for (i = 1; i < p->order.nr; i++) {
			bury_stream(p, stream_at(p, i));
			hm_pool_step(p, STREAM_WORK);
		}
	}
	return changed;
}
