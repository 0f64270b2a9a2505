// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The VMM pool: growth. A request that no free block holds gets addresses
 * behind the largest free block that ends a run, or in the next hole; behind
 * the addresses go handles that are wholly free elsewhere, and only then new
 * ones, whose size grows with the pool.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "resource/vm.h"

/* A new handle is at most this part of what the pool has, rounded down. */
#define HANDLE_SHARE	64
/* What is made at once is at least this part. */
#define GROWTH_SHARE	1024
/* Aliases that are left mapped: unmapping takes time, and nobody waits. */
#define MAX_ALIASES	1024
/* Addresses to reserve, in multiples of the memory; halved if refused. */
#define RESERVE_FACTOR	16
#define MAX_MAPPINGS	(1U << 22)

void hm_vm_edge(struct pool *p, const struct block *b)
{
	struct vm *v = p->vm;

	if (!b->prev)
		v->head[page_of(v, b->addr)] = block_id(p, b);
	if (!b->next)
		v->tail[page_of(v, block_end(b) - 1)] = block_id(p, b);
}

/* How many holes there are from @page on, at most @want. */
static uint32_t holes(const struct vm *v, uint32_t page, uint32_t want)
{
	uint32_t n = 0;

	while (n < want && page + n < v->nr && !v->map[page + n])
		n++;
	return n;
}

static bool find_hole(struct vm *v, unsigned int zone, uint32_t want,
		      uint32_t *page)
{
	uint32_t start = v->cursor[zone], at = start, n;
	bool wrapped = false;

	for (;;) {
		if (at >= v->nr || want > v->nr - at) {
			if (wrapped)
				return false;
			wrapped = true;
			at = 0;
			continue;
		}
		if (wrapped && at >= start)
			return false;
		n = holes(v, at, want);
		if (n == want)
			break;
		at += n;
		while (at < v->nr && v->map[at])
			at = mapping_at(v, v->map[at])->page +
				handle_of_page(v, at)->pages;
	}
	*page = at;
	v->cursor[zone] = at + want;
	return true;
}

/* Whole handles, if they are all of one size. */
static uint32_t pages_for(const struct pool *p, uint64_t units)
{
	uint64_t size = p->opt.handle ? p->opt.handle : p->provider->granularity;

	return (((units << UNIT_SHIFT) + size - 1) & ~(size - 1)) >>
		p->vm->shift;
}

/* The largest block of @a that ends a run before a hole that is enough. */
static struct block *find_end(struct pool *p, struct pool_stream *s,
			      struct arena *a, uint64_t units,
			      struct block *best)
{
	struct vm *v = p->vm;
	struct block *b;

	for (b = hm_arena_best(p, a, 1); b; b = hm_arena_next(p, a, b)) {
		uint32_t want;

		if (b->next || b->flags & (BLOCK_WHOLE | BLOCK_GRAPH) ||
		    (best && b->units <= best->units) ||
		    b->pos > hm_stream_known(&s->s,
					     p->order.streams[b->stream]))
			continue;
		want = pages_for(p, units - b->units);
		if (holes(v, page_of(v, block_end(b) - 1) + 1, want) == want)
			best = b;
	}
	return best;
}

static struct block *extend(struct pool *p, struct pool_stream *s,
			    unsigned int zone, uint64_t units)
{
	struct block *best = NULL;
	unsigned int i;

	for (i = 0; i < p->order.nr; i++)
		best = find_end(p, s, &stream_at(p, i)->arenas[zone], units,
				best);
	return best;
}

static uint32_t power_below(uint64_t n)
{
	return n ? 1U << (31 - __builtin_clz(n > UINT32_MAX ? UINT32_MAX :
					     (uint32_t)n)) : 0;
}

static uint32_t at_least_one(uint32_t n)
{
	return n ? n : 1;
}

/* Pages of the next handle, when @want are missing. */
static uint32_t handle_pages(const struct pool *p, uint32_t want)
{
	const struct vm *v = p->vm;
	uint32_t most;

	if (p->opt.handle)
		return p->opt.handle >> v->shift;
	most = at_least_one(power_below((v->pages + want) / HANDLE_SHARE));
	return want < most ? power_below(want) : most;
}

/* What to grow by, so that a pool does not have thousands of handles. */
static uint32_t round_growth(const struct pool *p, uint32_t want)
{
	const struct vm *v = p->vm;
	uint32_t unit = p->opt.handle ? p->opt.handle >> v->shift :
		at_least_one(power_below(v->pages / GROWTH_SHARE));

	return (want + unit - 1) & ~(unit - 1);
}

/* Large ones first. */
static int by_size(const void *a, const void *b)
{
	const struct vm_free *x = a, *y = b;

	return x->pages < y->pages ? 1 : x->pages > y->pages ? -1 :
		x->page < y->page ? -1 : 1;
}

/* By block, from its end on: what is before keeps its name. */
static int by_block(const void *a, const void *b)
{
	const struct vm_free *x = a, *y = b;

	if (x->block != y->block)
		return x->block < y->block ? -1 : 1;
	return x->page < y->page ? 1 : -1;
}

/*
 * Moves some of @list, at most @want pages in all but for the last one, to
 * the front: large handles first, then the smallest that fills the rest, of
 * @room pages at most.
 */
static size_t choose(struct vm_free *list, size_t nr, uint32_t want,
		     uint32_t room)
{
	size_t i, chosen = 0;
	struct vm_free f;

	qsort(list, nr, sizeof(*list), by_size);
	for (i = 0; i < nr && want; i++) {
		if (list[i].pages > want)
			continue;
		want -= list[i].pages;
		room -= list[i].pages;
		f = list[chosen];
		list[chosen++] = list[i];
		list[i] = f;
	}
	if (want && chosen < nr) {
		for (i = chosen + 1; i < nr; i++) {
			if (list[i].pages >= list[chosen].pages)
				continue;
			f = list[chosen];
			list[chosen] = list[i];
			list[i] = f;
		}
		chosen += list[chosen].pages <= room;
	}
	qsort(list, chosen, sizeof(*list), by_block);
	return chosen;
}

/* One block's, which is BUSY; @s is ordered behind what was done with it. */
static int remap_block(struct pool *p, struct pool_stream *s,
		       const struct vm_free *list, size_t nr, uint32_t *page,
		       bool *left)
{
	struct block *b = block_at(p, list[0].block);
	int err = 0;
	size_t i;

	*left = true;
	if (!hm_block_done(p, b))
		err = hm_stream_wait(&p->order, &s->s,
				     p->order.streams[b->stream], b->pos);
	for (i = 0; i < nr && !err; i++) {
		err = hm_vm_remap(p, &list[i], *page, left);
		if (!err)
			*page += list[i].pages;
	}
	return err;
}

/* How many of @list from @i on are of one block. */
static size_t same_block(const struct vm_free *list, size_t i, size_t nr)
{
	size_t j;

	for (j = i + 1; j < nr && list[j].block == list[i].block; j++)
		;
	return j - i;
}

/* All blocks of @list, before one that is released could swallow another. */
static void take_all(struct pool *p, const struct vm_free *list, size_t nr)
{
	size_t i;

	for (i = 0; i < nr; i += same_block(list, i, nr))
		hm_block_take(p, block_at(p, list[i].block));
}

/* Free handles, to @page and on, until *@page is @end. */
static int remap(struct pool *p, struct pool_stream *s, uint32_t *page,
		 uint32_t end, bool *waits)
{
	size_t i, n, chosen;
	struct vm_free *list;
	bool left;
	ssize_t nr;
	int err = 0;

	if (p->opt.comm)
		return 0;
	nr = hm_vm_collect(p, s, true, &list);
	if (nr <= 0)
		return nr;
	chosen = choose(list, nr, end - *page,
			holes(p->vm, *page, p->vm->nr));
	take_all(p, list, chosen);
	for (i = 0; i < chosen; i += n) {
		n = same_block(list, i, chosen);
		if (!hm_block_done(p, block_at(p, list[i].block)))
			*waits = true;
		left = true;
		if (!err)
			err = remap_block(p, s, list + i, n, page, &left);
		/* Nothing is merged with the next ones: they are BUSY. */
		if (left)
			hm_block_release(p, block_at(p, list[i].block));
	}
	free(list);
	return err;
}

static int create(struct pool *p, uint32_t *page, uint32_t end)
{
	uint32_t most = UINT32_MAX, pages;
	int err;

	while (*page < end) {
		pages = handle_pages(p, end - *page);
		if (pages > most)
			pages = most;
		err = hm_vm_create(p, *page, pages);
		if (err == -ENOMEM && pages > 1 && !p->opt.handle) {
			most = pages / 2;
			continue;
		}
		if (err)
			return err;
		*page += pages;
	}
	return 0;
}

/* What was mapped at [@from, @to) is a free block that @s may use. */
static int add_run(struct pool *p, struct pool_stream *s, unsigned int zone,
		   uint32_t from, uint32_t to, bool waits, struct block *front)
{
	struct vm *v = p->vm;
	struct block *b = NULL;
	uint32_t n;

	if (to > from) {
		b = hm_block_new(p, page_addr(v, from), (uint64_t)(to - from)
				 << (v->shift - UNIT_SHIFT), zone);
		if (!b)
			return -ENOMEM;
		n = from ? v->tail[from - 1] : 0;
		if (n && block_zone(block_at(p, n)) == zone)
			hm_block_link(p, block_at(p, n), b);
		n = to < v->nr ? v->head[to] : 0;
		if (n && block_zone(block_at(p, n)) == zone)
			hm_block_link(p, b, block_at(p, n));
	}
	if (waits || (front && !hm_block_done(p, front))) {
		stream_lock(s);
		hm_stream_step(&s->s);
		stream_unlock(s);
		if (b) {
			b->stream = s->s.index;
			b->pos = s->s.pos;
		}
		if (front) {
			front->stream = s->s.index;
			front->pos = s->s.pos;
		}
	}
	if (front)
		hm_block_release(p, front);
	if (b)
		hm_block_release(p, b);
	return 0;
}

static size_t vm_trim(struct pool *p, uint64_t keep);

/* Addresses for @want pages; *@front is a block that they go on. */
static int place(struct pool *p, struct pool_stream *s, unsigned int zone,
		 uint64_t units, uint32_t *page, uint32_t *want,
		 struct block **front)
{
	struct vm *v = p->vm;

	*front = extend(p, s, zone, units);
	if (*front) {
		*page = page_of(v, block_end(*front) - 1) + 1;
		*want = pages_for(p, units - (*front)->units);
		return 0;
	}
	*want = pages_for(p, units);
	if (find_hole(v, zone, *want, page))
		return 0;
	hm_vm_unalias(p, 0, 0);
	if (find_hole(v, zone, *want, page))
		return 0;
	/* Free memory between the holes makes one of them. */
	vm_trim(p, 0);
	hm_vm_unalias(p, 0, 0);
	if (find_hole(v, zone, *want, page))
		return 0;
	return hm_error(-ENOMEM, "pool: no %llu bytes of addresses in one piece, reserve= says how many there are",
			(unsigned long long)*want << v->shift);
}

static int vm_grow(struct pool *p, struct pool_stream *s, unsigned int zone,
		   uint64_t units)
{
	struct vm *v = p->vm;
	uint32_t page, at, want, more;
	struct block *front;
	bool waits = false;
	int err, add;

	if (v->nr_aliases > MAX_ALIASES)
		hm_vm_unalias(p, MAX_ALIASES * 3 / 4, 0);
	err = place(p, s, zone, units, &page, &want, &front);
	if (err)
		return err;
	if (front)
		hm_block_take(p, front);
	at = page;
	err = remap(p, s, &at, page + want, &waits);
	if (!err && at < page + want) {
		more = round_growth(p, page + want - at);
		if (holes(v, at, more) < more)
			more = page + want - at;
		err = create(p, &at, at + more);
		if (at >= page + want)
			err = 0;
	}
	add = add_run(p, s, zone, page, at, waits, front);
	return err ? err : add;
}

static size_t vm_trim(struct pool *p, uint64_t keep)
{
	struct vm *v = p->vm;
	uint64_t before = p->reserved;
	struct vm_free *list;
	size_t i, n;
	ssize_t nr;

	nr = p->opt.comm ? 0 :
		hm_vm_collect(p, stream_at(p, 0), false, &list);
	if (nr <= 0)
		return 0;
	qsort(list, nr, sizeof(*list), by_block);
	take_all(p, list, nr);
	for (i = 0; i < (size_t)nr; i += n) {
		bool left = true;
		size_t j;

		n = same_block(list, i, nr);
		for (j = i; j < i + n && left; j++)
			if (p->reserved >= keep +
			    ((uint64_t)list[j].pages << v->shift))
				hm_vm_release(p, &list[j], &left);
		if (left)
			hm_block_release(p, block_at(p, list[i].block));
	}
	free(list);
	return before - p->reserved;
}

static void vm_poll(struct pool *p)
{
	hm_vm_unalias(p, 0, 0);
}

static int vm_segments(struct pool *p, struct hm_ctl_segments *arg)
{
	uint64_t addr = (uintptr_t)arg->ptr, end = addr + arg->size, start;
	struct vm *v = p->vm;
	size_t nr = 0;

	start = addr;
	while (addr < end) {
		uint32_t page = page_of(v, addr);
		struct mapping *m = mapping_at(v, v->map[page]);
		uint64_t stop = page_addr(v, m->page +
					  handle_at(v, m->handle)->pages);

		if (stop > end)
			stop = end;
		if (nr < arg->nr)
			arg->segments[nr] = (struct hetmem_segment){
				.base = (void *)(uintptr_t)addr,
				.offset = addr - start,
				.length = stop - addr,
			};
		nr++;
		addr = stop;
	}
	addr = nr > arg->nr;
	arg->nr = nr;
	return addr ? hm_error(-ENOSPC, "segments: there are %zu", nr) : 0;
}

/* The driver's objects; a forked child has none. */
static void give_back(struct pool *p)
{
	const struct hm_provider_ops *ops = p->provider->ops;
	struct vm *v = p->vm;
	uint32_t page = 0, id;

	while (page < v->nr && v->pages) {
		struct handle *h;

		if (!v->map[page]) {
			page++;
			continue;
		}
		h = handle_of_page(v, page);
		if (!(h->flags & HANDLE_ASLEEP))
			ops->unmap(p->provider, page_addr(v, page),
				   (uint64_t)h->pages << v->shift);
		page += h->pages;
		h->maps--;
		/* A mapping of it may come before this one, and one behind. */
		if (h->maps)
			continue;
		if (!(h->flags & HANDLE_ASLEEP))
			ops->release(p->provider, h->handle);
		h->handle = 0;
		v->pages -= h->pages;
	}
	for (id = 1; id < v->handles.nr; id++)
		if (handle_at(v, id)->flags & HANDLE_STUCK)
			ops->release(p->provider, handle_at(v, id)->handle);
	ops->unreserve(p->provider, v->base, (uint64_t)v->nr << v->shift);
}

static void free_vm(struct vm *v)
{
	if (v->map)
		munmap(v->map, v->map_bytes);
	hm_table_free(&v->handles);
	hm_table_free(&v->mappings);
	free(v);
}

static void vm_destroy(struct pool *p, bool forget)
{
	if (!forget)
		give_back(p);
	free_vm(p->vm);
	p->vm = NULL;
}

static const struct source vm_source = {
	.grow = vm_grow,
	.trim = vm_trim,
	.poll = vm_poll,
	.destroy = vm_destroy,
	.segments = vm_segments,
};

/* As many addresses as are wanted, or fewer: all memory once at least. */
static int reserve(struct pool *p, struct vm *v)
{
	const size_t size = p->provider->granularity;
	uint64_t total = p->opt.max ? p->opt.max : p->provider->total;
	uint64_t bytes = p->opt.reserve, least = p->opt.reserve;
	uintptr_t base;
	int err;

	if (!bytes) {
		least = total ? total : size;
		bytes = least * RESERVE_FACTOR;
		if (bytes < 64 * size)
			bytes = 64 * size;
	}
	for (;; bytes /= 2) {
		bytes = (bytes + size - 1) & ~(uint64_t)(size - 1);
		p->calls++;
		err = p->provider->ops->reserve(p->provider, bytes, size,
						&base);
		if (!err || err != -ENOMEM || bytes / 2 < least)
			break;
	}
	if (err)
		return err;
	v->base = base;
	v->nr = bytes >> v->shift;
	v->cursor[0] = v->nr - v->nr / 16;
	v->cursor[1] = 0;
	return 0;
}

int hm_vm_init(struct pool *p)
{
	struct vm *v = calloc(1, sizeof(*v));
	void *map;
	int err;

	if (!v)
		return hm_error(-ENOMEM, "pool: no host memory");
	v->shift = __builtin_ctzll(p->provider->granularity);
	err = reserve(p, v);
	if (err)
		goto fail;
	v->map_bytes = 3 * (size_t)v->nr * sizeof(*v->map);
	map = mmap(NULL, v->map_bytes, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (map == MAP_FAILED) {
		err = hm_error(-ENOMEM, "pool: no host memory");
		goto fail_reserve;
	}
	v->map = map;
	v->head = v->map + v->nr;
	v->tail = v->head + v->nr;
	err = hm_table_init(&v->handles, sizeof(struct handle),
			    offsetof(struct handle, mapping), MAX_MAPPINGS);
	if (!err)
		err = hm_table_init(&v->mappings, sizeof(struct mapping),
				    offsetof(struct mapping, next),
				    MAX_MAPPINGS);
	if (err)
		goto fail_reserve;
	p->vm = v;
	p->source = &vm_source;
	return 0;

fail_reserve:
	p->provider->ops->unreserve(p->provider, v->base,
				    (uint64_t)v->nr << v->shift);
fail:
	free_vm(v);
	return err;
}
