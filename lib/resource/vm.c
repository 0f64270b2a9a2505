// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The VMM pool: its reservation, holes in it, memory given back. Growth is
 * vm_grow.c.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "resource/vm.h"

/* Addresses to reserve, in multiples of the memory; halved if refused. */
#define RESERVE_FACTOR	16
/* Holes that are left between runs are at most this part of them. */
#define GAP_SHARE	64
/* A run smaller than this part of the pool needs none. */
#define SMALL_RUN	1024
#define MAX_MAPPINGS	(1U << 22)

void hm_vm_edge(struct pool *p, const struct block *b)
{
	struct vm *v = p->vm;

	if (!b->prev)
		v->head[page_of(v, b->addr)] = block_id(p, b);
	if (!b->next)
		v->tail[page_of(v, block_end(b) - 1)] = block_id(p, b);
}

/* The first page from @page on that a handle begins with. */
static uint32_t boundary_from(const struct vm *v, uint32_t page)
{
	const struct mapping *m = mapping_at(v, v->map[page]);

	return m->page == page ? page :
		m->page + handle_at(v, m->handle)->pages;
}

/* The last page up to @page that a handle ends before. */
static uint32_t boundary_to(const struct vm *v, uint32_t page)
{
	const struct mapping *m = mapping_at(v, v->map[page - 1]);

	return m->page + handle_at(v, m->handle)->pages == page ? page :
		m->page;
}

/*
 * Pages of handles that are wholly in [@start, @end): a run has no holes, all
 * between the outer boundaries are.
 */
static uint32_t whole(const struct pool *p, uint64_t start, uint64_t end)
{
	const struct vm *v = p->vm;
	uint32_t first = page_of(v, start + (1ULL << v->shift) - 1);
	uint32_t last = page_of(v, end);

	if (first >= last)
		return 0;
	first = boundary_from(v, first);
	last = boundary_to(v, last);
	return first < last ? last - first : 0;
}

uint64_t hm_vm_place(const struct pool *p, const struct block *b,
		     uint64_t units)
{
	uint64_t bytes = units << UNIT_SHIFT, end = block_end(b);

	return whole(p, b->addr + bytes, end) >=
	       whole(p, b->addr, end - bytes) ? b->addr : end - bytes;
}

uint32_t hm_vm_holes(const struct vm *v, uint32_t page, uint32_t want)
{
	uint32_t n = 0;

	while (n < want && page + n < v->nr && !v->map[page + n])
		n++;
	return n;
}

bool hm_vm_find_hole(struct vm *v, unsigned int zone, uint32_t want,
		     uint32_t *page)
{
	uint32_t start = v->cursor[zone], at = start, n, gap;
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
		n = hm_vm_holes(v, at, want);
		if (n == want)
			break;
		at += n;
		while (at < v->nr && v->map[at])
			at = mapping_at(v, v->map[at])->page +
				handle_of_page(v, at)->pages;
	}
	*page = at;
	/* A large run that can grow where it is saves moving all of it. */
	gap = want < v->pages / SMALL_RUN ? 0 :
		v->pages > want ? v->pages : want;
	v->cursor[zone] = at + want + (gap < v->nr / GAP_SHARE ? gap :
				       v->nr / GAP_SHARE);
	return true;
}

int hm_vm_by_block(const void *a, const void *b)
{
	const struct vm_free *x = a, *y = b;

	if (x->block != y->block)
		return x->block < y->block ? -1 : 1;
	return x->page < y->page ? 1 : -1;
}

/* How many of @list from @i on are of one block. */
static size_t same_block(const struct vm_free *list, size_t i, size_t nr)
{
	size_t j;

	for (j = i + 1; j < nr && list[j].block == list[i].block; j++)
		;
	return j - i;
}

void hm_vm_take_all(struct pool *p, const struct vm_free *list, size_t nr)
{
	size_t i;

	for (i = 0; i < nr; i += same_block(list, i, nr))
		hm_block_take(p, block_at(p, list[i].block));
}

size_t hm_vm_trim(struct pool *p, uint64_t keep)
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
	qsort(list, nr, sizeof(*list), hm_vm_by_block);
	hm_vm_take_all(p, list, nr);
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

/* Of the maps, what was touched: pages in use, and aliases of some. */
static uint64_t vm_metadata(const struct pool *p)
{
	const struct vm *v = p->vm;

	return sizeof(*v) + (uint64_t)v->handles.nr * v->handles.size +
		(uint64_t)v->mappings.nr * v->mappings.size +
		v->pages * 3 * sizeof(*v->map) * v->mappings.nr /
		v->handles.nr;
}

/* Aliases are cheap to have and dear to make: most are left. */
static void vm_poll(struct pool *p)
{
	hm_vm_unalias(p, VM_ALIASES / 2, 0);
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

/* What fails once is tried once more: there is no later. */
static void unmap(struct pool *p, uint32_t page, uint32_t pages)
{
	const struct hm_provider_ops *ops = p->provider->ops;
	uint64_t addr = page_addr(p->vm, page);
	uint64_t bytes = (uint64_t)pages << p->vm->shift;

	if (ops->unmap(p->provider, addr, bytes))
		ops->unmap(p->provider, addr, bytes);
}

static void release(struct pool *p, uint64_t handle)
{
	const struct hm_provider_ops *ops = p->provider->ops;

	if (ops->release(p->provider, handle))
		ops->release(p->provider, handle);
}

static void unreserve(struct pool *p, const struct vm *v)
{
	const struct hm_provider_ops *ops = p->provider->ops;
	uint64_t bytes = (uint64_t)v->nr << v->shift;

	if (ops->unreserve(p->provider, v->base, bytes))
		ops->unreserve(p->provider, v->base, bytes);
}

/* The driver's objects; a forked child has none. */
static void give_back(struct pool *p)
{
	struct vm *v = p->vm;
	uint32_t page = 0, id;

	while (page < v->nr && v->pages) {
		struct handle *h;

		if (!v->map[page]) {
			page++;
			continue;
		}
		h = handle_of_page(v, page);
		if (h->flags & HANDLE_RESERVED) {
			page += h->pages;
			continue;
		}
		if (!(h->flags & HANDLE_ASLEEP))
			unmap(p, page, h->pages);
		page += h->pages;
		h->maps--;
		/* A mapping of it may come before this one, and one behind. */
		if (h->maps)
			continue;
		if (!(h->flags & HANDLE_ASLEEP))
			release(p, h->handle);
		v->pages -= h->pages;
	}
	for (id = 1; id < v->handles.nr; id++)
		if (handle_at(v, id)->flags & HANDLE_STUCK)
			release(p, handle_at(v, id)->handle);
	unreserve(p, v);
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
	.grow = hm_vm_grow,
	.trim = hm_vm_trim,
	.poll = vm_poll,
	.destroy = vm_destroy,
	.segments = vm_segments,
	.metadata = vm_metadata,
	.pin = hm_vm_pin,
	.enlarge = hm_vm_enlarge,
	.reserve = hm_vm_reserve,
	.unreserve = hm_vm_unreserve,
	.sleep = hm_vm_sleep,
	.wake = hm_vm_wake,
	.export = hm_vm_export,
	.drop = hm_vm_drop,
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
	unreserve(p, v);
fail:
	free_vm(v);
	return err;
}
