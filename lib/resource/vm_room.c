// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The VMM pool: blocks that get larger where they are. Addresses that are
 * reserved for a block are a mapping of a handle without memory, which gets
 * shorter from its beginning as the block grows.
 */
#include "resource/vm.h"

static uint32_t pages_of(const struct vm *v, uint64_t units)
{
	uint64_t size = 1ULL << v->shift;

	return ((units << UNIT_SHIFT) + size - 1) >> v->shift;
}

/* Takes @pages from @page on, all holes, for nobody. */
static int set_aside(struct pool *p, uint32_t page, uint32_t pages)
{
	struct vm *v = p->vm;
	uint32_t h, m, i;

	if (!pages)
		return 0;
	h = hm_table_get(&v->handles);
	m = hm_table_get(&v->mappings);
	if (!h || !m) {
		if (h)
			hm_table_put(&v->handles, h);
		if (m)
			hm_table_put(&v->mappings, m);
		return hm_error(-ENOMEM, "pool: too many mappings");
	}
	*handle_at(v, h) = (struct handle){
		.pages = pages, .mapping = m, .flags = HANDLE_RESERVED,
	};
	*mapping_at(v, m) = (struct mapping){ .handle = h, .page = page };
	for (i = 0; i < pages; i++)
		v->map[page + i] = m;
	return 0;
}

/* The first @pages of what is set aside from @page on are holes again. */
static void give_up(struct pool *p, uint32_t page, uint32_t pages)
{
	struct vm *v = p->vm;
	uint32_t m, i, n;

	for (; pages; page += n, pages -= n) {
		struct mapping *map = mapping_at(v, v->map[page]);
		struct handle *h = handle_at(v, map->handle);

		m = v->map[page];
		n = h->pages < pages ? h->pages : pages;
		for (i = 0; i < n; i++)
			v->map[page + i] = 0;
		map->page += n;
		h->pages -= n;
		if (h->pages)
			continue;
		h->mapping = 0;
		hm_table_put(&v->handles, map->handle);
		hm_table_put(&v->mappings, m);
	}
}

/*
 * How many pages are set aside from @page on, behind a block: all of them are
 * that block's, since another's are behind that one.
 */
static uint32_t set_aside_at(const struct vm *v, uint32_t page)
{
	const struct handle *h;
	uint32_t pages = 0;

	while (page + pages < v->nr && v->map[page + pages]) {
		h = handle_of_page(v, page + pages);
		if (!(h->flags & HANDLE_RESERVED))
			break;
		pages += h->pages;
	}
	return pages;
}

/* New handles at [@page, @page + @pages), few and large; how many were made. */
static uint32_t fill(struct pool *p, uint32_t page, uint32_t pages, int *err)
{
	uint32_t done = 0, most = UINT32_MAX, n;

	*err = 0;
	while (done < pages) {
		n = 1U << (31 - __builtin_clz(pages - done));
		if (p->opt.handle && n > p->opt.handle >> p->vm->shift)
			n = p->opt.handle >> p->vm->shift;
		if (n > most)
			n = most;
		*err = hm_vm_create(p, page + done, n);
		if (*err == -ENOMEM && n > 1) {
			most = n / 2;
			continue;
		}
		/* What is free elsewhere may be all that is missing. */
		if (*err == -ENOMEM && hm_vm_trim(p, 0))
			*err = hm_vm_create(p, page + done, n);
		if (*err)
			break;
		done += n;
	}
	return done;
}

int hm_vm_reserve(struct pool *p, uint64_t units, uint64_t reserve,
		  struct block **out)
{
	struct vm *v = p->vm;
	uint32_t pages = pages_of(v, units), all = pages_of(v, reserve);
	uint32_t page, done;
	struct block *b;
	int err;

	if (!hm_vm_find_hole(v, 1, all, &page)) {
		hm_vm_unalias(p, 0, 0);
		if (!hm_vm_find_hole(v, 1, all, &page))
			return hm_error(-ENOMEM, "alloc_reserve: no addresses");
	}
	done = fill(p, page, pages, &err);
	if (done) {
		b = hm_block_new(p, page_addr(v, page), (uint64_t)done <<
				 (v->shift - UNIT_SHIFT), 1);
		if (!b)
			return -ENOMEM;
		if (!err)
			err = set_aside(p, page + done, all - done);
		if (!err) {
			__atomic_store_n(&b->flags, b->flags | BLOCK_RESERVE,
					 __ATOMIC_RELEASE);
			*out = b;
			return 0;
		}
		hm_block_release(p, b);
	}
	return err;
}

void hm_vm_unreserve(struct pool *p, struct block *b)
{
	uint32_t page = page_of(p->vm, block_end(b) - 1) + 1;
	uint32_t pages = b->next ? 0 : set_aside_at(p->vm, page);

	if (pages)
		give_up(p, page, pages);
	__atomic_store_n(&b->flags, b->flags & ~BLOCK_RESERVE,
			 __ATOMIC_RELEASE);
}

/* The free block behind @b, that @s may use at once, becomes part of it. */
static uint64_t swallow(struct pool *p, struct pool_stream *s,
			struct block *b, uint64_t want)
{
	struct block *n = block_at(p, b->next), *rest;
	uint64_t got;

	if (!b->next || block_state(n) != BLOCK_FREE ||
	    n->flags & (BLOCK_GRAPH | BLOCK_WHOLE) ||
	    n->pos > hm_stream_known(&s->s, p->order.streams[n->stream]))
		return 0;
	hm_block_take(p, n);
	if (n->units > want) {
		rest = hm_block_cut(p, n, want);
		if (!rest) {
			hm_block_release(p, n);
			return 0;
		}
		hm_block_release(p, rest);
	}
	got = n->units;
	hm_block_join(p, b, n);
	return got;
}

int hm_vm_enlarge(struct pool *p, struct pool_stream *s, struct block *b,
		  uint64_t units)
{
	struct vm *v = p->vm;
	uint64_t want = units - b->units;
	uint32_t page, pages, done, aside;
	struct block *n;
	int err;

	want -= swallow(p, s, b, want);
	if (!want)
		return 0;
	if (b->next)
		return hm_error(-ENOSPC, "grow: what is behind the block is in use");
	page = page_of(v, block_end(b) - 1) + 1;
	pages = pages_of(v, want);
	aside = set_aside_at(v, page);
	if (aside && !(b->flags & BLOCK_RESERVE))
		aside = 0;
	if (aside ? pages > aside : hm_vm_holes(v, page, pages) < pages)
		return hm_error(-ENOSPC, "grow: there are no more addresses behind the block");
	if (aside)
		give_up(p, page, pages);
	done = fill(p, page, pages, &err);
	if (done) {
		n = hm_block_new(p, page_addr(v, page), (uint64_t)done <<
				 (v->shift - UNIT_SHIFT), block_zone(b));
		if (!n)
			return -ENOMEM;
		hm_block_link(p, b, n);
		hm_block_join(p, b, n);
	}
	/* What is not filled is the block's still; it is all or nothing. */
	if (err && aside)
		set_aside(p, page + done, pages - done);
	return err;
}
