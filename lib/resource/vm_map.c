// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The VMM pool's handles: created, mapped, mapped again, released. vm.h tells
 * what is what. Each function calls the driver first and changes what the pool
 * knows when that has succeeded, so that a failure leaves both as they were.
 */
#include <stdlib.h>

#include "resource/vm.h"

static void set_pages(struct vm *v, uint32_t page, uint32_t pages,
		      uint32_t mapping)
{
	uint32_t i;

	for (i = 0; i < pages; i++)
		v->map[page + i] = mapping;
	if (!mapping) {
		v->head[page] = 0;
		v->tail[page + pages - 1] = 0;
	}
}

static uint64_t bytes_of(const struct vm *v, uint32_t pages)
{
	return (uint64_t)pages << v->shift;
}

static int map(struct pool *p, uint32_t page, uint32_t pages, uint64_t handle)
{
	p->calls += 2;
	return p->provider->ops->map(p->provider, page_addr(p->vm, page),
				     bytes_of(p->vm, pages), handle);
}

static int unmap(struct pool *p, uint32_t page, uint32_t pages)
{
	p->calls++;
	return p->provider->ops->unmap(p->provider, page_addr(p->vm, page),
				       bytes_of(p->vm, pages));
}

static int no_room(void)
{
	return hm_error(-ENOMEM, "pool: too many mappings");
}

int hm_vm_create(struct pool *p, uint32_t page, uint32_t pages)
{
	const struct hm_provider_ops *ops = p->provider->ops;
	struct vm *v = p->vm;
	uint32_t h, m;
	uint64_t handle;
	int err;

	h = hm_table_get(&v->handles);
	m = hm_table_get(&v->mappings);
	if (!h || !m) {
		err = no_room();
		goto fail;
	}
	err = hm_pool_reserve(p, bytes_of(v, pages));
	if (err)
		goto fail;
	p->calls++;
	err = ops->create(p->provider, bytes_of(v, pages), true, &handle);
	if (err)
		goto fail_reserve;
	err = map(p, page, pages, handle);
	if (err) {
		ops->release(p->provider, handle);
		goto fail_reserve;
	}
	*handle_at(v, h) = (struct handle){
		.handle = handle, .pages = pages, .mapping = m, .maps = 1,
		.flags = p->opt.comm ? HANDLE_PINNED : 0,
	};
	*mapping_at(v, m) = (struct mapping){ .handle = h, .page = page };
	set_pages(v, page, pages, m);
	v->pages += pages;
	return 0;

fail_reserve:
	hm_pool_unreserve(p, bytes_of(v, pages));
fail:
	if (h)
		hm_table_put(&v->handles, h);
	if (m)
		hm_table_put(&v->mappings, m);
	return err;
}

/* Cuts what is handle @f out of its BUSY block: a BUSY block, or NULL. */
static struct block *cut_out(struct pool *p, const struct vm_free *f,
			     bool *left)
{
	struct vm *v = p->vm;
	struct block *b = block_at(p, f->block), *piece, *rest;
	uint64_t before = (page_addr(v, f->page) - b->addr) >> UNIT_SHIFT;
	uint64_t units = bytes_of(v, f->pages) >> UNIT_SHIFT;

	/* Without success it is left as a whole. */
	*left = true;
	if (before + units < b->units) {
		rest = hm_block_cut(p, b, before + units);
		if (!rest)
			return NULL;
		hm_block_release(p, rest);
	}
	piece = before ? hm_block_cut(p, b, before) : b;
	if (piece)
		*left = before != 0;
	return piece;
}

/* A list of one use: the tag of a block, unless it is complete. -ENOMEM. */
static int uses_of(struct pool *p, const struct block *b, uint32_t *uses)
{
	struct use *u;

	*uses = 0;
	if (hm_block_done(p, b))
		return 0;
	*uses = hm_table_get(&p->uses);
	if (!*uses)
		return no_room();
	u = (struct use *)p->uses.base + *uses;
	u->stream = b->stream;
	u->pos = b->pos;
	return 0;
}

static void add_alias(struct vm *v, uint32_t m)
{
	mapping_at(v, m)->prev = v->last;
	mapping_at(v, m)->next = 0;
	if (v->last)
		mapping_at(v, v->last)->next = m;
	else
		v->first = m;
	v->last = m;
	v->nr_aliases++;
}

static void remove_alias(struct vm *v, uint32_t m)
{
	struct mapping *a = mapping_at(v, m);

	if (a->prev)
		mapping_at(v, a->prev)->next = a->next;
	else
		v->first = a->next;
	if (a->next)
		mapping_at(v, a->next)->prev = a->prev;
	else
		v->last = a->prev;
	v->nr_aliases--;
}

/* An alias at @page, made if there is none. */
static int get_alias(struct pool *p, const struct vm_free *f, uint32_t page,
		     uint32_t *alias)
{
	struct vm *v = p->vm;
	struct handle *h = handle_at(v, f->handle);
	uint32_t m = v->map[page];
	int err;

	*alias = m;
	if (m)
		return 0;
	m = hm_table_get(&v->mappings);
	if (!m)
		return no_room();
	err = map(p, page, f->pages, h->handle);
	if (err) {
		hm_table_put(&v->mappings, m);
		return err;
	}
	*mapping_at(v, m) = (struct mapping){ .handle = f->handle,
					      .page = page };
	set_pages(v, page, f->pages, m);
	h->maps++;
	add_alias(v, m);
	*alias = m;
	return 0;
}

static void free_uses(struct pool *p, uint32_t uses)
{
	uint32_t next;

	for (; uses; uses = next) {
		next = ((struct use *)p->uses.base + uses)->next;
		hm_table_put(&p->uses, uses);
	}
}

int hm_vm_remap(struct pool *p, const struct vm_free *f, uint32_t page,
		bool *left)
{
	struct vm *v = p->vm;
	struct handle *h = handle_at(v, f->handle);
	struct block *piece;
	uint32_t m, uses, old = h->mapping;
	int err;

	*left = true;
	err = uses_of(p, block_at(p, f->block), &uses);
	if (err)
		return err;
	err = get_alias(p, f, page, &m);
	piece = err ? NULL : cut_out(p, f, left);
	if (!piece) {
		/* An alias that was made stays one; it is in nobody's way. */
		free_uses(p, uses);
		return err ? err : -ENOMEM;
	}
	hm_block_delete(p, piece);
	v->head[f->page] = 0;
	v->tail[f->page + f->pages - 1] = 0;
	mapping_at(v, old)->uses = uses;
	add_alias(v, old);
	/* Uses behind this alias are behind those of the handle's since. */
	remove_alias(v, m);
	free_uses(p, mapping_at(v, m)->uses);
	mapping_at(v, m)->uses = 0;
	h->mapping = m;
	return 0;
}

/* Whether all of a list is complete; what is not recorded is, for later. */
static bool uses_done(struct pool *p, uint32_t *uses)
{
	while (*uses) {
		struct use *u = (struct use *)p->uses.base + *uses;
		struct hm_stream *s = p->order.streams[u->stream];
		uint32_t id = *uses;

		if (s->done < u->pos) {
			hm_stream_record(&p->order, s);
			return false;
		}
		*uses = u->next;
		hm_table_put(&p->uses, id);
	}
	return true;
}

void hm_vm_unalias(struct pool *p, uint32_t keep, uint32_t handle)
{
	struct vm *v = p->vm;
	uint32_t m, next;
	struct handle *h;

	for (m = v->first; m && v->nr_aliases > keep; m = next) {
		struct mapping *a = mapping_at(v, m);

		next = a->next;
		h = handle_at(v, a->handle);
		if ((handle && a->handle != handle) ||
		    !uses_done(p, &a->uses) || unmap(p, a->page, h->pages))
			continue;
		remove_alias(v, m);
		set_pages(v, a->page, h->pages, 0);
		h->maps--;
		hm_table_put(&v->mappings, m);
	}
}

int hm_vm_release(struct pool *p, const struct vm_free *f, bool *left)
{
	struct vm *v = p->vm;
	struct handle *h = handle_at(v, f->handle);
	struct block *piece;
	int err;

	*left = true;
	if (h->maps > 1)
		hm_vm_unalias(p, 0, f->handle);
	if (h->maps > 1)
		return -EBUSY;
	piece = cut_out(p, f, left);
	if (!piece)
		return -ENOMEM;
	err = unmap(p, f->page, f->pages);
	if (err) {
		/* As it was, but for a cut that heals when it is released. */
		hm_block_release(p, piece);
		return err;
	}
	hm_block_delete(p, piece);
	set_pages(v, f->page, f->pages, 0);
	hm_table_put(&v->mappings, h->mapping);
	h->mapping = 0;
	h->maps = 0;
	p->calls++;
	err = p->provider->ops->release(p->provider, h->handle);
	if (err) {
		/* Still held, still counted; destroy tries again. */
		h->flags |= HANDLE_STUCK;
		return err;
	}
	v->pages -= f->pages;
	hm_pool_unreserve(p, bytes_of(v, f->pages));
	hm_table_put(&v->handles, f->handle);
	return 0;
}

struct collection {
	struct vm_free *list;
	size_t nr;
	size_t room;
};

static int add_free(struct collection *c, const struct vm_free *f)
{
	size_t room = c->room ? 2 * c->room : 64;
	struct vm_free *list;

	if (c->nr == c->room) {
		list = realloc(c->list, room * sizeof(*list));
		if (!list)
			return hm_error(-ENOMEM, "pool: no host memory");
		c->list = list;
		c->room = room;
	}
	c->list[c->nr++] = *f;
	return 0;
}

static int collect_block(struct pool *p, struct block *b,
			 struct collection *c)
{
	struct vm *v = p->vm;
	uint64_t size = bytes_of(v, 1);
	uint32_t page = page_of(v, b->addr + size - 1);
	uint32_t end = page_of(v, block_end(b));
	int err = 0;

	while (page < end && !err) {
		struct mapping *m = mapping_at(v, v->map[page]);
		struct handle *h = handle_at(v, m->handle);
		uint32_t next = m->page + h->pages;

		if (m->page == page && next <= end &&
		    !(h->flags & (HANDLE_PINNED | HANDLE_ASLEEP))) {
			struct vm_free f = {
				.handle = m->handle, .page = page,
				.pages = h->pages, .block = block_id(p, b),
			};

			err = add_free(c, &f);
		}
		page = next;
	}
	return err;
}

ssize_t hm_vm_collect(struct pool *p, struct pool_stream *s, bool wait,
		      struct vm_free **list)
{
	uint32_t page_units = bytes_of(p->vm, 1) >> UNIT_SHIFT;
	struct collection c = { NULL, 0, 0 };
	unsigned int i;
	struct block *b;
	int err = 0;

	for (i = 0; i < p->order.nr * NR_ZONES && !err; i++) {
		struct pool_stream *of = stream_at(p, i / NR_ZONES);
		struct arena *a = &of->arenas[i % NR_ZONES];
		uint64_t known = hm_stream_known(&s->s, &of->s);

		if (wait && s->s.index && !of->s.lost)
			known = UINT64_MAX;
		for (b = hm_arena_best(p, a, page_units); b && !err;
		     b = hm_arena_next(p, a, b))
			if (b->pos <= known || hm_block_done(p, b))
				err = collect_block(p, b, &c);
	}
	if (err) {
		free(c.list);
		return err;
	}
	*list = c.list;
	return c.nr;
}
