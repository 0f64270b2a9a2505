// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Arenas of units, for pools that share a provider: see arenas.h.
 *
 * A request takes, in this order: units that are held and free; units that other
 * pools then give back; unused units of the class's own arenas; a new arena; any free
 * units. Units that a pool gives back for another pool stay held. After trim or decay
 * their memory goes back to the system: the whole arena if it is free, else the pages if
 * they are the process's own.
 *
 * The map has one byte for each unit (its class, and whether it is held) and one for
 * each grain of 64 KiB (where its pages may be). Small blocks share a grain, so its
 * bits change atomically. They are a hint: if one is stale, a piece is moved that is
 * there already, or its pages come by faults.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "driver/check.h"
#include "provider/arenas.h"
#include "provider/pages.h"

/* 2^48 bytes of addresses: leaves of 4 GiB. */
#define ADDR_BITS	48
#define LEAF_SHIFT	32
#define NR_LEAVES	(1UL << (ADDR_BITS - LEAF_SHIFT))
#define UNIT_BITS	21

/* In the byte of a unit: its class, and whether it is held. */
#define UNIT_CLASS	0x0f
#define UNIT_BUSY	0x0f	/* class: its pages are being dropped */
#define UNIT_HELD	0x40
/* Advice given to the driver: the device uses it on the host; each side has a copy. */
#define UNIT_REACHED	0x10
#define UNIT_COPIED	0x20
#define UNIT_ADVICE	(UNIT_REACHED | UNIT_COPIED)

/* The classes that one side uses: HETMEM_PLACEMENT_*. */
#define HOST_CLASS	HETMEM_PLACEMENT_HOST
#define DEVICE_CLASS	HETMEM_PLACEMENT_DEVICE
/* A new lazy arena has up to 1/8 of the held bytes, within bounds. */
#define ARENA_SHARE	8
#define MIN_ARENA	((size_t)16 << 20)
#define MAX_ARENA	((size_t)1 << 30)
/* Blocks of own pages from this size on are dropped and populated, not moved. */
#define MIN_DROP	HM_HUGE_SIZE
/* Grains on each side of a block that may move with it. */
#define MAX_MORE	1024

struct leaf {
	uint8_t units[1U << (LEAF_SHIFT - UNIT_BITS)];
	uint8_t grains[1U << (LEAF_SHIFT - HM_GRAIN_SHIFT)];
};

/**
 * struct arena - a region of the provider
 * @range: whole aligned units of it
 * @ptr, @bytes: the provider's region
 * @home: the class that it was made for
 * @free: units without a class
 * @failed: number of the trim in which the provider refused to take it back
 */
struct arena {
	struct hm_range range;
	void *ptr;
	size_t bytes;
	unsigned int home;
	size_t free;
	unsigned int failed;
};

/**
 * struct hm_arenas - see arenas.h
 * @ops: of the providers for pools; the name is the base's
 * @tree: of struct arena
 * @map: leaves by address; a leaf lives from its first arena until destroy
 * @nr_leaves, @nr_arenas: for metadata
 * @held, @peak: bytes
 * @coming: bytes of arenas that the base provider is asked for, to be held then
 * @max: bound of @held and @coming; 0: none
 * @spared: threads that ask other pools for units
 * @trims: number of trims so far
 * @populate: threads that make pages, from the base provider
 * @asked, @calls: as of struct hm_arenas_stats; without the lock
 * @stream: brings memory to the host; made at first use
 * @kind: see hm_arenas_kind()
 */
struct hm_arenas {
	struct hm_arenas *next;
	struct hm_provider_ops ops;
	struct hm_provider *base;
	struct hm_arenas_user *user;
	struct hm_lock lock;
	void *tree;
	struct leaf **map;
	unsigned int nr_leaves, nr_arenas;
	uint64_t held, peak, coming, max;
	unsigned int spared, trims, populate;
	uint64_t asked, calls;
	CUstream stream;
	int kind;
};

/* The provider of a pool. */
struct units {
	struct hm_provider provider;
	struct hm_arenas *arenas;
	unsigned int class;
};

/* The map. */

static struct leaf *leaf_of(const struct hm_arenas *a, uintptr_t addr)
{
	return addr >> ADDR_BITS ? NULL :
		__atomic_load_n(&a->map[addr >> LEAF_SHIFT], __ATOMIC_ACQUIRE);
}

/* NULL: no arena ever had @addr. */
static uint8_t *unit_at(const struct hm_arenas *a, uintptr_t addr)
{
	struct leaf *leaf = leaf_of(a, addr);

	return leaf ? &leaf->units[(addr & ((1UL << LEAF_SHIFT) - 1)) >>
				   UNIT_BITS] : NULL;
}

static uint8_t *grain_at(const struct hm_arenas *a, uintptr_t addr)
{
	struct leaf *leaf = leaf_of(a, addr);

	return leaf ? &leaf->grains[(addr & ((1UL << LEAF_SHIFT) - 1)) >>
				    HM_GRAIN_SHIFT] : NULL;
}

static uint8_t unit_get(const struct hm_arenas *a, uintptr_t addr)
{
	const uint8_t *unit = unit_at(a, addr);

	return unit ? __atomic_load_n(unit, __ATOMIC_RELAXED) : 0;
}

/* Lock held. The bits of advice stay. */
static void unit_set(struct hm_arenas *a, uintptr_t addr, uint8_t value)
{
	value |= unit_get(a, addr) & UNIT_ADVICE;
	__atomic_store_n(unit_at(a, addr), value, __ATOMIC_RELAXED);
}

static uint8_t grain_get(const struct hm_arenas *a, uintptr_t addr)
{
	const uint8_t *grain = grain_at(a, addr);

	return grain ? __atomic_load_n(grain, __ATOMIC_RELAXED) : 0;
}

/* Sets the bits @set and clears @clear in all grains that overlap. */
static void grains_change(struct hm_arenas *a, uintptr_t start, uintptr_t end,
			  uint8_t set, uint8_t clear)
{
	const uintptr_t grain = 1UL << HM_GRAIN_SHIFT;

	for (start &= ~(grain - 1); start < end; start += grain) {
		uint8_t *g = grain_at(a, start), is;

		if (!g)
			continue;
		is = __atomic_load_n(g, __ATOMIC_RELAXED);
		if (set & ~is)
			__atomic_fetch_or(g, set, __ATOMIC_RELAXED);
		if (clear & is)
			__atomic_fetch_and(g, (uint8_t)~clear,
					   __ATOMIC_RELAXED);
	}
}

/* Makes the leaves of [@start, @end). Lock held. */
static int map_extend(struct hm_arenas *a, uintptr_t start, uintptr_t end)
{
	struct leaf *leaf;
	uintptr_t i;

	if ((end - 1) >> ADDR_BITS)
		return hm_error(-ENOMEM, "%s: address %#lx: classes need addresses below 2^48: use pool(%s)",
				a->ops.name, (unsigned long)start, a->ops.name);
	for (i = start >> LEAF_SHIFT; i <= (end - 1) >> LEAF_SHIFT; i++) {
		if (a->map[i])
			continue;
		leaf = calloc(1, sizeof(*leaf));
		if (!leaf)
			return hm_error(-ENOMEM, "%s: no host memory",
					a->ops.name);
		__atomic_store_n(&a->map[i], leaf, __ATOMIC_RELEASE);
		a->nr_leaves++;
	}
	return 0;
}

unsigned int hm_arenas_class(const struct hm_arenas *a, const void *ptr)
{
	unsigned int class = unit_get(a, (uintptr_t)ptr) & UNIT_CLASS;

	return class <= HM_ARENAS_CLASSES ? class : 0;
}

/* Whether this memory moves to its user, and this process is the owner. */
static bool can_move(const struct hm_arenas *a)
{
	return a->base->caps & HM_PROVIDER_MOVES &&
	       a->base->hm->generation == hm_generation();
}

/* Units. The lock is held, except where a comment says otherwise. */

static size_t units_of(const struct arena *arena)
{
	return (arena->range.end - arena->range.start) / HM_UNIT_SIZE;
}

/* Units to look for. @held: only held ones. @home: 0, or only in arenas of that class. */
struct search {
	const struct hm_arenas *arenas;
	size_t units;
	bool held;
	unsigned int home;
	struct arena *arena;
	uintptr_t start;
};

static void search_arena(struct hm_range *range, void *arg)
{
	struct arena *arena = (struct arena *)range;
	struct search *s = arg;
	uintptr_t at;
	size_t n = 0;

	if (s->arena || arena->free < s->units ||
	    (s->home && s->home != arena->home))
		return;
	for (at = range->start; at < range->end && n < s->units;
	     at += HM_UNIT_SIZE) {
		uint8_t unit = unit_get(s->arenas, at);

		n = unit & UNIT_CLASS || (s->held && !(unit & UNIT_HELD)) ?
			0 : n + 1;
	}
	if (n < s->units)
		return;
	s->arena = arena;
	s->start = at - n * HM_UNIT_SIZE;
}

static bool search_units(struct hm_arenas *a, struct search *s)
{
	s->arenas = a;
	s->arena = NULL;
	hm_range_walk(&a->tree, search_arena, s);
	return s->arena;
}

/* Lock held. Whether @more bytes may be held, and may pass the gate; it is entered then. */
static int may_hold(const struct hm_arenas *a, uint64_t more)
{
	const uint64_t held = a->held + a->coming;
	int err;

	if (more && a->max && (more > a->max || held > a->max - more)) {
		err = hm_gate_advice(a->base, more);
		return err ? err :
			hm_error(-ENOMEM, "%s: %llu of at most %llu bytes are held, and units of 2 MiB take %llu more: raise max",
				 a->ops.name, (unsigned long long)held,
				 (unsigned long long)a->max, (unsigned long long)more);
	}
	return hm_gate_enter(a->base, more);
}

/* Gives the units, of which @more bytes are not held, to @class. */
static void give_units(struct hm_arenas *a, const struct search *s, unsigned int class,
		       uint64_t more)
{
	const uintptr_t end = s->start + s->units * HM_UNIT_SIZE;
	uintptr_t at;

	for (at = s->start; at < end; at += HM_UNIT_SIZE)
		unit_set(a, at, class | UNIT_HELD);
	s->arena->free -= s->units;
	a->held += more;
	if (a->held > a->peak)
		a->peak = a->held;
}

/* As give_units(). Errors: more than max, or than the gate lets through. */
static int take_units(struct hm_arenas *a, const struct search *s,
		      unsigned int class)
{
	const uintptr_t end = s->start + s->units * HM_UNIT_SIZE;
	uint64_t more = 0;
	uintptr_t at;
	int err;

	for (at = s->start; at < end; at += HM_UNIT_SIZE)
		more += unit_get(a, at) & UNIT_HELD ? 0 : HM_UNIT_SIZE;
	err = may_hold(a, more);
	if (err)
		return err;
	give_units(a, s, class, more);
	hm_gate_entered(a->base, more, 0);
	return 0;
}

/* Marks free units of [@start, @end) as not held. Returns the bytes that were held. */
static size_t unhold(struct hm_arenas *a, uintptr_t start, uintptr_t end)
{
	size_t bytes = 0;
	uintptr_t at;

	for (at = start; at < end; at += HM_UNIT_SIZE) {
		bytes += unit_get(a, at) & UNIT_HELD ? HM_UNIT_SIZE : 0;
		unit_set(a, at, 0);
	}
	grains_change(a, start, end, 0, HM_ON_HOST | HM_ON_DEVICE | HM_KEPT);
	a->held -= bytes;
	return bytes;
}

/* Arenas. */

static bool is_lazy(const struct hm_arenas *a)
{
	return a->base->caps & HM_PROVIDER_LAZY;
}

static size_t arena_bytes(struct hm_arenas *a, size_t size)
{
	size_t bytes = MIN_ARENA;

	if (!is_lazy(a))
		return size;
	hm_lock(&a->lock);
	while (bytes < MAX_ARENA && bytes * 2 <= a->held / ARENA_SHARE)
		bytes *= 2;
	hm_unlock(&a->lock);
	return bytes > size ? bytes : size;
}

static void count(uint64_t *counter, unsigned int n)
{
	__atomic_fetch_add(counter, n, __ATOMIC_RELAXED);
}

/* A region of @bytes and one unit more, whose memory passes the gate unless it is lazy. */
static int get_larger(struct hm_arenas *a, size_t bytes, hetmem_stream stream, void **ptr)
{
	const uint64_t more = is_lazy(a) ? 0 : HM_UNIT_SIZE;
	int err = hm_gate_enter(a->base, more);

	if (err)
		return err;
	count(&a->calls, 1);
	err = a->base->ops->alloc(a->base, bytes + HM_UNIT_SIZE, stream, ptr);
	hm_gate_entered(a->base, more, err);
	return err;
}

/* Gets a region of @bytes; if it is not aligned, one that is larger by a unit. */
static int region_get(struct hm_arenas *a, size_t bytes, hetmem_stream stream,
		      struct arena *arena)
{
	const struct hm_provider_ops *ops = a->base->ops;
	size_t size = bytes;
	uintptr_t start;
	void *ptr;
	int err = ops->alloc(a->base, size, stream, &ptr);

	count(&a->calls, 1);
	if (!err && (uintptr_t)ptr & (HM_UNIT_SIZE - 1)) {
		count(&a->calls, 1);
		hm_retry_once(ops->free(a->base, ptr, size, stream));
		size += HM_UNIT_SIZE;
		err = get_larger(a, bytes, stream, &ptr);
	}
	if (err)
		return err;
	start = ((uintptr_t)ptr + HM_UNIT_SIZE - 1) & ~(HM_UNIT_SIZE - 1);
	*arena = (struct arena){
		.range = { start, start + bytes },
		.ptr = ptr,
		.bytes = size,
		.free = bytes / HM_UNIT_SIZE,
	};
	return 0;
}

/* The caller sees to the gate, except for what get_larger() made more. */
static int region_put(struct hm_arenas *a, const struct arena *arena)
{
	const uint64_t more = is_lazy(a) ? 0 :
		arena->bytes - (arena->range.end - arena->range.start);
	int err;

	count(&a->calls, 1);
	hm_gate_leave(a->base, more);
	err = a->base->ops->free(a->base, arena->ptr, arena->bytes, HETMEM_STREAM_HOST);
	hm_gate_left(a->base, more, err ? more : 0);
	return err;
}

/* Lock held. After an error @arena is in no tree. */
static int add_arena(struct hm_arenas *a, struct arena *arena)
{
	const struct hm_range *r = &arena->range;
	int err = map_extend(a, r->start, r->end);
	uintptr_t at;

	if (!err) {
		/* Nothing was advised about new memory. */
		for (at = r->start; at < r->end; at += HM_UNIT_SIZE)
			__atomic_store_n(unit_at(a, at), 0, __ATOMIC_RELAXED);
		err = hm_range_insert(&a->tree, &arena->range);
		if (err)
			hm_error(err, "%s: no host memory", a->ops.name);
	}
	if (err)
		return -ENOMEM;
	a->nr_arenas++;
	return 0;
}

/*
 * Times the first huge page of an arena that the CPU will touch. On a fragmented host one
 * can take milliseconds: then the arena gets small pages.
 */
static void probe(struct hm_arenas *a, const struct arena *arena)
{
	const uint64_t slow = a->base->slow_ns ? a->base->slow_ns :
		HM_PAGES_SLOW_NS;
	void *start = (void *)arena->range.start;
	const uint64_t began = hm_now();

	if (slow > 1 && (hm_pages_populate(start, HM_UNIT_SIZE,
					   a->base->hm->page_size, 1, slow) ||
			 hm_now() - began <= slow))
		return;
	/* Fails on a kernel without huge pages, which needs no advice. */
	madvise(start, arena->range.end - arena->range.start, MADV_NOHUGEPAGE);
}

/*
 * Makes an arena of @bytes and gives its first units, of which @size bytes were coming, to
 * @class.
 */
static int make_arena(struct hm_arenas *a, unsigned int class, size_t size,
		      size_t bytes, hetmem_stream stream, uintptr_t *start)
{
	struct arena *arena = malloc(sizeof(*arena));
	struct search s = { .units = size / HM_UNIT_SIZE };
	int err;

	if (!arena)
		return hm_error(-ENOMEM, "%s: no host memory", a->ops.name);
	err = region_get(a, bytes, stream, arena);
	if (err) {
		free(arena);
		return err;
	}
	arena->home = class;
	hm_lock(&a->lock);
	err = add_arena(a, arena);
	if (!err) {
		s.arena = arena;
		s.start = arena->range.start;
		a->coming -= size;
		give_units(a, &s, class, size);
	}
	hm_unlock(&a->lock);
	if (err) {
		hm_retry_once(region_put(a, arena));
		free(arena);
		return err;
	}
	*start = s.start;
	if (a->base->caps & HM_PROVIDER_PAGES && class != DEVICE_CLASS)
		probe(a, arena);
	return 0;
}

/* Lock not held. */
static int grow(struct hm_arenas *a, unsigned int class, size_t size,
		size_t bytes, hetmem_stream stream, uintptr_t *start)
{
	int err;

	hm_lock(&a->lock);
	err = may_hold(a, size);
	a->coming += err ? 0 : size;
	hm_unlock(&a->lock);
	if (err)
		return err;
	err = make_arena(a, class, size, bytes, stream, start);
	hm_gate_entered(a->base, size, err);
	if (!err)
		return 0;
	hm_lock(&a->lock);
	a->coming -= size;
	hm_unlock(&a->lock);
	return err;
}

/* Lock held. Returns whether there are such units; then *@err is the result of taking. */
static bool find_units(struct hm_arenas *a, unsigned int class,
		       struct search *s, int *err)
{
	if (!search_units(a, s))
		return false;
	*err = take_units(a, s, class);
	return true;
}

/* Lock held. Looks for held units, in the class's own arenas first. */
static bool find_held(struct hm_arenas *a, unsigned int class,
		      struct search *s, int *err)
{
	s->held = true;
	s->home = class;
	if (find_units(a, class, s, err))
		return true;
	s->home = 0;
	return find_units(a, class, s, err);
}

static int try_units(struct hm_arenas *a, unsigned int class, size_t size,
		     hetmem_stream stream, uintptr_t *start)
{
	struct search s = { .units = size / HM_UNIT_SIZE };
	size_t bytes;
	bool found;
	int err = 0;

	hm_lock(&a->lock);
	found = find_held(a, class, &s, &err);
	a->spared += !found;
	hm_unlock(&a->lock);
	if (!found) {
		a->user->spare(a->user, class, size);
		hm_lock(&a->lock);
		a->spared--;
		found = find_held(a, class, &s, &err);
		s.held = false;
		s.home = class;
		if (!found)
			found = find_units(a, class, &s, &err);
		hm_unlock(&a->lock);
	}
	if (found) {
		*start = s.start;
		return err;
	}
	bytes = arena_bytes(a, size);
	err = grow(a, class, size, bytes, stream, start);
	if (err == -ENOMEM && bytes > size)
		err = grow(a, class, size, size, stream, start);
	if (err != -ENOMEM)
		return err;
	hm_lock(&a->lock);
	s.home = 0;
	if (find_units(a, class, &s, &err))
		*start = s.start;
	hm_unlock(&a->lock);
	return err;
}

/*
 * Lock held; released during the call of the kernel. Drops the pages of the free units
 * [@start, @end) of @arena. Returns the bytes given back, 0 if they cannot be dropped.
 */
static size_t drop_units(struct hm_arenas *a, struct arena *arena,
			 uintptr_t start, uintptr_t end)
{
	const size_t units = (end - start) / HM_UNIT_SIZE;
	uintptr_t at;
	int err;

	if (!(a->base->caps & HM_PROVIDER_PAGES))
		return 0;
	for (at = start; at < end; at += HM_UNIT_SIZE)
		unit_set(a, at, UNIT_BUSY | UNIT_HELD);
	arena->free -= units;
	hm_unlock(&a->lock);
	hm_gate_leave(a->base, end - start);
	err = madvise((void *)start, end - start, MADV_DONTNEED);
	hm_gate_left(a->base, end - start, err ? end - start : 0);
	hm_lock(&a->lock);
	arena->free += units;
	for (at = start; at < end; at += HM_UNIT_SIZE)
		unit_set(a, at, UNIT_HELD);
	return err ? 0 : unhold(a, start, end);
}

/*
 * Lock held; released during the call of the provider. Returns the held bytes given back.
 * A new arena can have the addresses as soon as the provider has them, so the map forgets
 * them first. If the provider refuses the arena, all of it counts as held.
 */
static size_t release_arena(struct hm_arenas *a, struct arena *arena,
			    unsigned int trim)
{
	const struct hm_range *r = &arena->range;
	size_t bytes = unhold(a, r->start, r->end);
	uintptr_t at;
	int err;

	hm_range_erase(&a->tree, &arena->range);
	a->nr_arenas--;
	hm_unlock(&a->lock);
	hm_gate_leave(a->base, bytes);
	err = region_put(a, arena);
	hm_gate_left(a->base, bytes, err ? r->end - r->start : 0);
	hm_lock(&a->lock);
	if (!err) {
		free(arena);
		return bytes;
	}
	arena->failed = trim;
	hm_retry_once(hm_range_insert(&a->tree, &arena->range));
	a->nr_arenas++;
	for (at = r->start; at < r->end; at += HM_UNIT_SIZE)
		unit_set(a, at, UNIT_HELD);
	a->held += r->end - r->start;
	return 0;
}

/* Takes free units from their class, and gives memory back unless a thread waits for it. */
static void put_units(struct hm_arenas *a, uintptr_t start, uintptr_t end)
{
	struct arena *arena;
	uintptr_t at;

	hm_lock(&a->lock);
	arena = (struct arena *)hm_range_find(&a->tree, start, 1);
	for (at = start; at < end; at += HM_UNIT_SIZE)
		unit_set(a, at, UNIT_HELD);
	arena->free += (end - start) / HM_UNIT_SIZE;
	if (!a->spared) {
		if (arena->free == units_of(arena))
			release_arena(a, arena, 0);
		else
			drop_units(a, arena, start, end);
	}
	hm_unlock(&a->lock);
}

/* The first arena in which a trim can give memory back, and which units of it. */
struct victim {
	const struct hm_arenas *arenas;
	unsigned int trim;
	struct arena *arena;
	uintptr_t start, end;
};

static void look_at_arena(struct hm_range *range, void *arg)
{
	struct arena *arena = (struct arena *)range;
	struct victim *v = arg;
	uintptr_t at;

	if (v->arena || arena->failed == v->trim || !arena->free)
		return;
	if (arena->free == units_of(arena)) {
		v->arena = arena;
		v->start = v->end = 0;
		return;
	}
	if (!(v->arenas->base->caps & HM_PROVIDER_PAGES))
		return;
	for (at = range->start; at < range->end; at += HM_UNIT_SIZE) {
		if ((unit_get(v->arenas, at) & ~UNIT_ADVICE) != UNIT_HELD) {
			if (v->arena)
				break;
			continue;
		}
		if (!v->arena)
			v->start = at;
		v->arena = arena;
		v->end = at + HM_UNIT_SIZE;
	}
}

size_t hm_arenas_trim(struct hm_arenas *a, uint64_t keep)
{
	struct victim v = { .arenas = a };
	size_t freed = 0;

	hm_lock(&a->lock);
	v.trim = ++a->trims;
	while (a->held > keep) {
		v.arena = NULL;
		hm_range_walk(&a->tree, look_at_arena, &v);
		if (!v.arena)
			break;
		if (v.end) {
			size_t dropped = drop_units(a, v.arena, v.start, v.end);

			freed += dropped;
			if (!dropped)
				v.arena->failed = v.trim;
		} else {
			freed += release_arena(a, v.arena, v.trim);
		}
	}
	hm_unlock(&a->lock);
	return freed;
}

/*
 * Free units that are held count against max and use the provider's memory, but may not
 * be in one piece: without any other memory they are given back.
 */
static int get_units(struct hm_arenas *a, unsigned int class, size_t size,
		     hetmem_stream stream, uintptr_t *start)
{
	int err = try_units(a, class, size, stream, start);
	uint64_t max;

	if (err != -ENOMEM)
		return err;
	hm_lock(&a->lock);
	max = a->max;
	hm_unlock(&a->lock);
	if (max && size > max)
		return err;
	if (max && hm_arenas_trim(a, max - size))
		err = try_units(a, class, size, stream, start);
	if (err == -ENOMEM && hm_arenas_trim(a, 0))
		err = try_units(a, class, size, stream, start);
	return err;
}

void hm_arenas_set_max(struct hm_arenas *a, uint64_t max)
{
	hm_lock(&a->lock);
	a->max = max;
	hm_unlock(&a->lock);
}

void hm_arenas_get_stats(struct hm_arenas *a, struct hm_arenas_stats *stats)
{
	hm_lock(&a->lock);
	*stats = (struct hm_arenas_stats){
		.held = a->held,
		.peak = a->peak,
		.metadata = sizeof(*a) + a->nr_leaves * sizeof(struct leaf) +
			a->nr_arenas * sizeof(struct arena),
		.asked = __atomic_load_n(&a->asked, __ATOMIC_RELAXED),
		.calls = __atomic_load_n(&a->calls, __ATOMIC_RELAXED),
	};
	hm_unlock(&a->lock);
}

/*
 * Drops own pages of dead units if some are on the device: for the CPU, new pages take
 * less time than bringing these back.
 */
static void renew_units(struct hm_arenas *a, uintptr_t start, uintptr_t end)
{
	uintptr_t at;

	if (!can_move(a) || !(a->base->caps & HM_PROVIDER_PAGES))
		return;
	for (at = start; at < end; at += 1UL << HM_GRAIN_SHIFT)
		if (grain_get(a, at) & HM_ON_DEVICE)
			break;
	if (at < end && !madvise((void *)start, end - start, MADV_DONTNEED))
		grains_change(a, start, end, 0, HM_ON_HOST | HM_ON_DEVICE);
}

/* The device, or the host. */
static uint32_t location_of(const struct hm_arenas *a, bool device)
{
	return device ? HETMEM_LOC(HETMEM_DEVICE, a->base->device) :
		HETMEM_LOC(HETMEM_HOST, HETMEM_NODE_ANY);
}

/* Advice by class. */

/*
 * Only the classes that a program must name get advice. A block of the class host may
 * still be used by the device many times, and is faster there.
 */
static uint8_t wanted_advice(unsigned int class)
{
	switch (class) {
	case HETMEM_PLACEMENT_STREAMING:
		return UNIT_REACHED;
	case HETMEM_PLACEMENT_READ_MOSTLY:
		return UNIT_COPIED;
	default:
		return 0;
	}
}

/* Whether the driver places this memory: managed memory, and own pages with HMM. */
static bool can_advise(const struct hm_arenas *a)
{
	const struct hetmem *hm = a->base->hm;

	return can_move(a) && hm_driver_can_advise(hm) &&
		(!(a->base->caps & HM_PROVIDER_PAGES) ||
		 hm->devices[a->base->device].platform.kind == HETMEM_PLATFORM_HMM);
}

/* In the device's context. */
static CUresult advise(struct hm_arenas *a, uintptr_t start, uintptr_t end,
		       CUmem_advise what, bool device)
{
	count(&a->calls, 1);
	return hm_driver_advise(a->base->hm, start, end - start, what,
				location_of(a, device));
}

/* In the device's context. Changes the advice @is to @wanted. */
static CUresult change_advice(struct hm_arenas *a, uintptr_t start, uintptr_t end,
			      uint8_t is, uint8_t wanted)
{
	const uint8_t set = wanted & ~is, unset = is & ~wanted;
	CUresult res = CUDA_SUCCESS;

	if (unset & UNIT_REACHED)
		res = advise(a, start, end, CU_MEM_ADVISE_UNSET_ACCESSED_BY, true);
	if (!res && unset & UNIT_REACHED)
		res = advise(a, start, end, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, false);
	if (!res && unset & UNIT_COPIED)
		res = advise(a, start, end, CU_MEM_ADVISE_UNSET_READ_MOSTLY, true);
	if (!res && set & UNIT_REACHED)
		res = advise(a, start, end, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, false);
	if (!res && set & UNIT_REACHED) {
		res = advise(a, start, end, CU_MEM_ADVISE_SET_ACCESSED_BY, true);
		/* Nobody would take it back: the next class's memory must not stay here. */
		if (res)
			advise(a, start, end, CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION, false);
	}
	if (!res && set & UNIT_COPIED)
		res = advise(a, start, end, CU_MEM_ADVISE_SET_READ_MOSTLY, true);
	return res;
}

/*
 * Gives the driver the advice of @class about the caller's units, in runs that have the
 * same advice so far. Advice that the driver refuses is tried again when the units are
 * handed out again.
 */
static void advise_units(struct hm_arenas *a, uintptr_t start, uintptr_t end,
			 unsigned int class)
{
	const uint8_t wanted = wanted_advice(class);
	struct hm_context saved;
	uintptr_t at, stop;
	uint8_t is;

	for (at = start; at < end && (unit_get(a, at) & UNIT_ADVICE) == wanted;)
		at += HM_UNIT_SIZE;
	if (at == end || !can_advise(a) || hm_provider_enter(a->base, &saved))
		return;
	for (; at < end; at = stop) {
		is = unit_get(a, at) & UNIT_ADVICE;
		for (stop = at + HM_UNIT_SIZE;
		     stop < end && (unit_get(a, stop) & UNIT_ADVICE) == is;)
			stop += HM_UNIT_SIZE;
		if (is == wanted || change_advice(a, at, stop, is, wanted))
			continue;
		for (; at < stop; at += HM_UNIT_SIZE)
			__atomic_store_n(unit_at(a, at), (unit_get(a, at) & ~UNIT_ADVICE) |
					 wanted, __ATOMIC_RELAXED);
	}
	hm_context_leave(a->base->hm, &saved);
}

/* The providers of the pools. */

static int units_alloc(struct hm_provider *self, size_t size,
		       hetmem_stream stream, void **ptr)
{
	struct units *u = (struct units *)self;
	struct hm_arenas *a = u->arenas;
	uintptr_t start;
	int err = get_units(a, u->class, size, stream, &start);

	count(&a->asked, 1);
	if (err)
		return err;
	if (u->class != DEVICE_CLASS)
		renew_units(a, start, start + size);
	advise_units(a, start, start + size, u->class);
	/* Pages of the class device are best made by the device's first touch. */
	if (a->populate && u->class != DEVICE_CLASS) {
		err = hm_pages_populate((void *)start, size,
					self->hm->page_size, a->populate,
					a->base->slow_ns);
		if (err) {
			put_units(a, start, start + size);
			return hm_error(err, "%s: no pages for %zu bytes: free memory, or leave out populate=",
					a->ops.name, size);
		}
		hm_arenas_used(a, (void *)start, size, HETMEM_STREAM_HOST);
	}
	*ptr = (void *)start;
	return 0;
}

/* Never fails: units that the base provider refuses stay here, free. */
static int units_free(struct hm_provider *self, void *ptr, size_t size,
		      hetmem_stream stream)
{
	struct units *u = (struct units *)self;

	(void)stream;
	hm_check_forget(self->hm, ptr, size);
	count(&u->arenas->asked, 1);
	put_units(u->arenas, (uintptr_t)ptr, (uintptr_t)ptr + size);
	return 0;
}

struct hm_provider *hm_arenas_provider(struct hm_arenas *a, unsigned int class)
{
	struct units *u = calloc(1, sizeof(*u));

	if (!u) {
		hm_error(-ENOMEM, "%s: no host memory", a->ops.name);
		return NULL;
	}
	u->provider = *a->base;
	u->provider.ops = &a->ops;
	u->provider.granularity = HM_UNIT_SIZE;
	u->arenas = a;
	u->class = class;
	return &u->provider;
}

const struct hm_provider *hm_arenas_base(const struct hm_arenas *a)
{
	return a->base;
}

int hm_arenas_gate(struct hm_arenas *a, const struct hm_ctl_gate *arg)
{
	const int err = hm_gate_ctl(a->base, arg);

	if (arg->attach && arg->gate->granule < HM_UNIT_SIZE)
		arg->gate->granule = HM_UNIT_SIZE;
	return err;
}

int hm_arenas_create(struct hm_provider *base, uint64_t max,
		     struct hm_arenas_user *user, struct hm_arenas **out)
{
	struct hm_arenas *a;

	if (base->caps & (HM_PROVIDER_MAPPABLE | HM_PROVIDER_STREAMED))
		return hm_error(-EOPNOTSUPP, "classes: %s gives no regions that any class can use: leave out classes()",
				base->ops->name);
	a = calloc(1, sizeof(*a));
	if (a)
		a->map = calloc(NR_LEAVES, sizeof(*a->map));
	if (!a || !a->map) {
		free(a);
		return hm_error(-ENOMEM, "classes: no host memory");
	}
	a->ops = (struct hm_provider_ops){
		.name = base->ops->name,
		.alloc = units_alloc,
		.free = units_free,
		.destroy = hm_provider_free,
	};
	a->base = base;
	a->user = user;
	/* units_alloc() populates units; the base provider would populate whole arenas. */
	a->populate = base->populate;
	base->populate = 0;
	a->max = max;
	hm_lock_init(&a->lock, HM_FORK_PROVIDER);
	hm_lock(&base->hm->arenas_lock);
	a->next = base->hm->arenas;
	base->hm->arenas = a;
	hm_unlock(&base->hm->arenas_lock);
	*out = a;
	return 0;
}

static void unlist(struct hm_arenas *a)
{
	struct hm_arenas **link = &a->base->hm->arenas;

	hm_lock(&a->base->hm->arenas_lock);
	while (*link != a)
		link = &(*link)->next;
	*link = a->next;
	hm_unlock(&a->base->hm->arenas_lock);
}

struct hm_provider *hm_arenas_destroy(struct hm_arenas *a)
{
	struct hm_provider *base = a->base;
	const bool forget = hm_generation() != base->hm->generation;
	struct hm_context saved;
	struct hm_range *r;
	size_t i;

	unlist(a);
	if (a->stream && !forget && !hm_provider_enter(base, &saved)) {
		hm_retry_once(base->hm->driver.cuStreamDestroy(a->stream));
		hm_context_leave(base->hm, &saved);
	}
	while ((r = hm_range_any(&a->tree))) {
		hm_range_erase(&a->tree, r);
		if (!forget)
			hm_retry_once(region_put(a, (struct arena *)r));
		free(r);
	}
	for (i = 0; i < NR_LEAVES; i++)
		free(a->map[i]);
	free(a->map);
	hm_lock_destroy(&a->lock);
	free(a);
	return base;
}

/* Whereabouts. */

static uint8_t side_of(hetmem_stream stream)
{
	return stream == HETMEM_STREAM_HOST ? HM_ON_HOST : HM_ON_DEVICE;
}

/* Returns the side that has the pages after a use: the host, if the driver is so advised. */
static uint8_t used_at(const struct hm_arenas *a, uintptr_t addr, hetmem_stream stream)
{
	return unit_get(a, addr) & UNIT_REACHED ? HM_ON_HOST : side_of(stream);
}

static bool is_one_grain(uintptr_t start, size_t size)
{
	return start >> HM_GRAIN_SHIFT == (start + size - 1) >> HM_GRAIN_SHIFT;
}

void hm_arenas_keep(struct hm_arenas *a, const void *ptr, size_t size)
{
	const uintptr_t start = (uintptr_t)ptr;

	grains_change(a, start, start + size, HM_KEPT, 0);
}

void hm_arenas_used(struct hm_arenas *a, const void *ptr, size_t size,
		    hetmem_stream stream)
{
	const uintptr_t start = (uintptr_t)ptr;
	const uint8_t side = used_at(a, start, stream);

	if (!(a->base->caps & HM_PROVIDER_MOVES) ||
	    (is_one_grain(start, size) && grain_get(a, start) & side))
		return;
	if (can_move(a))
		grains_change(a, start, start + size, side, 0);
}

static bool is_movable(const struct hm_arenas *a, uintptr_t addr, uint8_t where)
{
	return (grain_get(a, addr) & (where | HM_KEPT)) == where;
}

/*
 * Shrinks and extends the grains [*@start, *@end) of a block, within @in, to those that
 * are to move.
 */
static bool find_piece(const struct hm_arenas *a, uintptr_t *start,
		       uintptr_t *end, uint8_t where, const struct hm_range *in)
{
	const uintptr_t grain = 1UL << HM_GRAIN_SHIFT;
	const uint8_t class = unit_get(a, *start);
	unsigned int i;
	uintptr_t at;

	while (*start < *end && !(grain_get(a, *start) & where))
		*start += grain;
	while (*end > *start && !(grain_get(a, *end - grain) & where))
		*end -= grain;
	if (*start == *end)
		return false;
	for (at = *start; at < *end; at += grain)
		if (grain_get(a, at) & HM_KEPT)
			return false;
	for (i = 0; *start > in->start && i < MAX_MORE; i++) {
		if (unit_get(a, *start - grain) != class ||
		    !is_movable(a, *start - grain, where))
			break;
		*start -= grain;
	}
	for (i = 0; *end < in->end && i < MAX_MORE; i++) {
		if (unit_get(a, *end) != class || !is_movable(a, *end, where))
			break;
		*end += grain;
	}
	return true;
}

/* Lock not held. NULL: it cannot be made. */
static CUstream own_stream(struct hm_arenas *a)
{
	const struct hm_driver *d = &a->base->hm->driver;

	hm_lock(&a->lock);
	if (!a->stream && d->cuStreamCreate(&a->stream, CU_STREAM_NON_BLOCKING))
		a->stream = NULL;
	hm_unlock(&a->lock);
	return a->stream;
}

static bool by_driver(struct hm_arenas *a, uintptr_t start, uintptr_t end,
		      hetmem_stream stream)
{
	const bool device = stream != HETMEM_STREAM_HOST;
	struct hetmem *hm = a->base->hm;
	struct hm_context saved;
	CUresult res = CUDA_ERROR_NOT_SUPPORTED;

	if (device && hm_capture_active(hm, stream))
		return false;
	/* A special handle means a stream of the current context: use the device's. */
	if (device && !hm_stream_special(stream) ?
	    hm_context_default(hm, a->base->device, &saved) :
	    hm_provider_enter(a->base, &saved))
		return false;
	count(&a->calls, device ? 1 : 2);
	if (!device)
		stream = own_stream(a);
	if (device || stream)
		res = hm_driver_prefetch(hm, start, end - start, location_of(a, device),
					 stream);
	if (!res && !device)
		res = hm->driver.cuStreamSynchronize(stream);
	hm_context_leave(hm, &saved);
	return !res;
}

/* Drops the whole pages of a dead block and makes new ones on the host. */
static bool renew(struct hm_arenas *a, uintptr_t start, uintptr_t end)
{
	const size_t page = a->base->hm->page_size;

	start = (start + page - 1) & ~(page - 1);
	end &= ~(page - 1);
	return !madvise((void *)start, end - start, MADV_DONTNEED) &&
	       !hm_pages_populate((void *)start, end - start, page, 0,
				  a->base->slow_ns);
}

/* To the host. Not with ATS: to the module, the node of the device is a node of the host. */
static bool by_module(const struct hm_arenas *a, uintptr_t start, uintptr_t end)
{
	const struct hetmem *hm = a->base->hm;
	struct hetmem_moved moved = { 0 };

	return a->base->caps & HM_PROVIDER_PAGES && hm_kmod_there(&hm->kmod) &&
	       hm->devices[a->base->device].platform.node < 0 &&
	       !hm_kmod_migrate(&hm->kmod, start, end, location_of(a, false), 0, &moved);
}

/* Returns the addresses of the arena that @addr is in; { 0 }: none. */
static struct hm_range arena_at(struct hm_arenas *a, uintptr_t addr)
{
	struct hm_range is = { 0 }, *range;

	hm_lock(&a->lock);
	range = hm_range_find(&a->tree, addr, 1);
	if (range)
		is = *range;
	hm_unlock(&a->lock);
	return is;
}

/* Moves the pages of a block that may be on the other side. */
static void bring(struct hm_arenas *a, const void *ptr, size_t size,
		  hetmem_stream stream)
{
	const bool host = stream == HETMEM_STREAM_HOST;
	const uintptr_t grain = 1UL << HM_GRAIN_SHIFT;
	const uint8_t from = HM_ON_HOST + HM_ON_DEVICE - side_of(stream);
	uintptr_t block = (uintptr_t)ptr, start, end;
	struct hm_range in;
	bool done;

	start = block & ~(grain - 1);
	end = (block + size + grain - 1) & ~(grain - 1);
	/* The driver refuses a piece of two arenas. */
	in = (struct hm_range){ start, end };
	if (hm_arenas_class(a, ptr) == (host ? HOST_CLASS : DEVICE_CLASS))
		in = arena_at(a, block);
	if (!find_piece(a, &start, &end, from, &in))
		return;
	if (host && size >= MIN_DROP && a->base->caps & HM_PROVIDER_PAGES) {
		/* Of the block only what is to be moved: the rest can be kept. */
		start = start > block ? start : block;
		end = end < block + size ? end : block + size;
		done = renew(a, start, end);
		start = (start + grain - 1) & ~(grain - 1);
		end &= ~(grain - 1);
	} else {
		done = (host && by_module(a, start, end)) ||
			by_driver(a, start, end, stream);
	}
	if (done)
		grains_change(a, start, end, host ? HM_ON_HOST : HM_ON_DEVICE,
			      from);
}

void hm_arenas_given(struct hm_arenas *a, const void *ptr, size_t size,
		     hetmem_stream stream)
{
	const uintptr_t start = (uintptr_t)ptr;
	const uint8_t side = used_at(a, start, stream);

	if (!(a->base->caps & HM_PROVIDER_MOVES) || side != side_of(stream) ||
	    (is_one_grain(start, size) && grain_get(a, start) == side) ||
	    !can_move(a))
		return;
	bring(a, ptr, size, stream);
	grains_change(a, start, start + size, side, 0);
}

/* For placement. */

/* Returns the arenas in which a class has @addr, and *@class; or NULL. */
static struct hm_arenas *find_arenas(struct hetmem *hm, uintptr_t addr,
				     unsigned int *class)
{
	struct hm_arenas *a;

	hm_lock(&hm->arenas_lock);
	for (a = hm->arenas; a; a = a->next) {
		*class = hm_arenas_class(a, (void *)addr);
		if (*class)
			break;
	}
	hm_unlock(&hm->arenas_lock);
	return a;
}

int hm_arenas_kind(struct hetmem *hm, uintptr_t addr)
{
	unsigned int class;
	struct hm_arenas *a = find_arenas(hm, addr, &class);

	return a ? __atomic_load_n(&a->kind, __ATOMIC_RELAXED) : 0;
}

void hm_arenas_set_kind(struct hetmem *hm, uintptr_t addr, int kind)
{
	unsigned int class;
	struct hm_arenas *a = find_arenas(hm, addr, &class);

	if (a)
		__atomic_store_n(&a->kind, kind, __ATOMIC_RELAXED);
}

bool hm_arenas_gap(struct hetmem *hm, uintptr_t left, uintptr_t right)
{
	unsigned int class = 0;
	struct hm_arenas *a = find_arenas(hm, left, &class);
	uintptr_t at;

	if (!a || left >= right || right >= arena_at(a, left).end)
		return false;
	for (at = left & ~(HM_UNIT_SIZE - 1); at <= right; at += HM_UNIT_SIZE)
		if (hm_arenas_class(a, (void *)at) != class)
			return false;
	return a->user->is_gap(a->user, class, left, right);
}

bool hm_arenas_border(struct hetmem *hm, uintptr_t addr)
{
	unsigned int class = 0;
	struct hm_arenas *a = find_arenas(hm, addr, &class);

	return a && arena_at(a, addr).start == addr;
}

bool hm_arenas_advised(struct hetmem *hm, uintptr_t start, uintptr_t end)
{
	bool advised = false;
	struct hm_arenas *a;
	uintptr_t at;

	hm_lock(&hm->arenas_lock);
	for (a = hm->arenas; a; a = a->next)
		for (at = start & ~(HM_UNIT_SIZE - 1); at < end; at += HM_UNIT_SIZE)
			advised = advised || unit_get(a, at) & UNIT_ADVICE;
	hm_unlock(&hm->arenas_lock);
	return advised;
}

void hm_arenas_advise(struct hetmem *hm, uintptr_t start, uintptr_t end)
{
	unsigned int class;
	struct hm_arenas *a = find_arenas(hm, start, &class);
	struct hm_context saved;
	uintptr_t stop;
	uint8_t is;

	if (!a || !hm_arenas_advised(hm, start, end) || !can_advise(a) ||
	    hm_provider_enter(a->base, &saved))
		return;
	for (; start < end; start = stop) {
		is = unit_get(a, start) & UNIT_ADVICE;
		for (stop = (start & ~(HM_UNIT_SIZE - 1)) + HM_UNIT_SIZE;
		     stop < end && (unit_get(a, stop) & UNIT_ADVICE) == is;)
			stop += HM_UNIT_SIZE;
		if (stop > end)
			stop = end;
		hm_retry_once(change_advice(a, start, stop, 0, is));
	}
	hm_context_leave(hm, &saved);
}

void hm_arenas_moved(struct hetmem *hm, uintptr_t start, uintptr_t end,
		     bool device)
{
	struct hm_arenas *a;

	hm_lock(&hm->arenas_lock);
	for (a = hm->arenas; a; a = a->next)
		if (hm_arenas_class(a, (void *)start))
			grains_change(a, start, end, device ? HM_ON_DEVICE :
				      HM_ON_HOST, 0);
	hm_unlock(&hm->arenas_lock);
}
