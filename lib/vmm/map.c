// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The VMM pool's memory: one reservation, handles, their mappings. vmm_impl.h tells
 * what is what. Each function calls the driver first, and changes what the pool
 * knows after the driver has succeeded, so that a failure leaves both as they
 * were. All with pool->lock.
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "platform/platform.h"
#include "pool/uses.h"
#include "vmm/grow.h"
#include "vmm/park.h"
#include "vmm/park_file.h"
#include "vmm/ring.h"
#include "vmm/sparse.h"
#include "vmm/spill.h"
#include "vmm/vmm.h"

void *hm_vmm_map(size_t bytes)
{
	void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

	if (p != MAP_FAILED)
		return p;
	hm_error(-ENOMEM, "pool: no host memory");
	return NULL;
}

static uint64_t page_bytes(const struct vmm *v, uint32_t pages)
{
	return (uint64_t)pages << v->shift;
}

static int map_pages(struct pool *p, uint32_t page, uint32_t pages,
		     uint64_t handle)
{
	p->calls += 2;
	return p->provider->ops->map(p->provider, page_addr(vmm_of(p), page),
				     page_bytes(vmm_of(p), pages), handle);
}

static int unmap_pages(struct pool *p, uint32_t page, uint32_t pages)
{
	p->calls++;
	return p->provider->ops->unmap(p->provider, page_addr(vmm_of(p), page),
				       page_bytes(vmm_of(p), pages));
}

static int no_mappings(void)
{
	return hm_error(-ENOMEM, "pool: too many mappings");
}

void hm_vmm_set_small(struct vmm *v, uint32_t id, bool small)
{
	struct handle *h = handle_at(v, id);

	if (small == !!(h->flags & HANDLE_SMALL))
		return;
	h->flags ^= HANDLE_SMALL;
	v->small += small ? h->pages : -(uint64_t)h->pages;
	v->nr_small += small ? 1 : -1;
}

int hm_vmm_drop_handle(struct pool *p, uint32_t id)
{
	struct vmm *v = vmm_of(p);
	struct handle *h = handle_at(v, id);
	int err;

	h->mapping = h->maps = 0;
	/* The device has no memory of it. */
	if (h->flags & HANDLE_HOST || (h->flags & (HANDLE_ASLEEP | HANDLE_STUCK)) == HANDLE_ASLEEP) {
		if (h->flags & HANDLE_HOST)
			hm_part_put(p, h->host);
		hm_vmm_set_small(v, id, false);
		hm_vmm_remove_front(v, id);
		v->pages -= h->pages;
		*h = (struct handle){ 0 };
		hm_table_put(&v->handles, id);
		return 0;
	}
	p->calls++;
	/* Importers can have it for longer, and nobody knows until when: it has not left. */
	err = h->flags & HANDLE_EXPORTED ?
		p->provider->ops->release(p->provider, h->handle) :
		hm_retry_once(hm_provider_release_handle(p->provider, h->handle,
							 page_bytes(v, h->pages)));
	if (err) {
		/* Still held, still counted; destroy tries again. */
		h->flags |= HANDLE_STUCK;
		return err;
	}
	hm_vmm_set_small(v, id, false);
	hm_vmm_remove_front(v, id);
	v->pages -= h->pages;
	hm_pool_unhold(p, page_bytes(v, h->pages));
	hm_table_put(&v->handles, id);
	return 0;
}

int hm_vmm_make_handle(struct pool *p, uint32_t pages, uint32_t *id)
{
	struct vmm *v = vmm_of(p);
	uint64_t handle;
	int err;

	*id = hm_table_get(&v->handles);
	if (!*id)
		return no_mappings();
	hm_tags_lock(p->tags);
	err = hm_pool_may_hold(p, page_bytes(v, pages));
	if (!err) {
		p->calls++;
		err = hm_provider_create_handle(p->provider, page_bytes(v, pages), true,
						&handle);
	}
	if (!err)
		hm_pool_hold(p, page_bytes(v, pages));
	hm_tags_unlock(p->tags);
	if (err) {
		hm_table_put(&v->handles, *id);
		return err;
	}
	*handle_at(v, *id) = (struct handle){
		.handle = handle, .pages = pages,
		.flags = p->opt.comm ? HANDLE_PINNED : 0,
	};
	v->pages += pages;
	return 0;
}

/* Not of the active mapping. */
static bool is_alias(const struct vmm *v, uint32_t m)
{
	return handle_at(v, mapping_at(v, m)->handle)->mapping != m;
}

static void add_alias(struct vmm *v, uint32_t m)
{
	struct handle *h = handle_at(v, mapping_at(v, m)->handle);

	mapping_at(v, m)->same_prev = 0;
	mapping_at(v, m)->same_next = h->aliases;
	if (h->aliases)
		mapping_at(v, h->aliases)->same_prev = m;
	h->aliases = m;
	mapping_at(v, m)->prev = v->last;
	mapping_at(v, m)->next = 0;
	if (v->last)
		mapping_at(v, v->last)->next = m;
	else
		v->first = m;
	v->last = m;
	v->nr_aliases++;
}

static void remove_alias(struct vmm *v, uint32_t m)
{
	struct mapping *a = mapping_at(v, m);

	if (a->same_prev)
		mapping_at(v, a->same_prev)->same_next = a->same_next;
	else
		handle_at(v, a->handle)->aliases = a->same_next;
	if (a->same_next)
		mapping_at(v, a->same_next)->same_prev = a->same_prev;
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

void hm_vmm_set_alias(struct vmm *v, uint32_t m, bool alias)
{
	if (alias)
		add_alias(v, m);
	else
		remove_alias(v, m);
}

/*
 * Maps handle @h at @page by @m. After -EUCLEAN @m is an alias that waits to be
 * unmapped; after any other error it is nothing.
 */
static int map_handle(struct pool *p, uint32_t h, uint32_t page, uint32_t m)
{
	struct vmm *v = vmm_of(p);
	uint32_t pages = handle_at(v, h)->pages;
	int err = map_pages(p, page, pages, handle_at(v, h)->handle);

	if (err && err != -EUCLEAN) {
		hm_table_put(&v->mappings, m);
		return err;
	}
	*mapping_at(v, m) = (struct mapping){
		.handle = h, .page = page, .half = err,
	};
	hm_vmm_set_pages(v, page, pages, m);
	handle_at(v, h)->maps++;
	if (err) {
		add_alias(v, m);
		v->nr_half++;
	}
	return err;
}

int hm_vmm_map_handle(struct pool *p, uint32_t h, uint32_t page)
{
	struct vmm *v = vmm_of(p);
	uint32_t m = hm_table_get(&v->mappings);
	int err;

	if (!m)
		return no_mappings();
	err = map_handle(p, h, page, m);
	if (!err)
		handle_at(v, h)->mapping = m;
	return err;
}

int hm_vmm_create(struct pool *p, uint32_t page, uint32_t pages)
{
	uint32_t h;
	int err;

	err = hm_vmm_make_handle(p, pages, &h);
	if (err)
		return err;
	err = hm_vmm_map_handle(p, h, page);
	if (err && err != -EUCLEAN)
		hm_vmm_drop_handle(p, h);
	return err == -EUCLEAN ? -EIO : err;
}

/* Cuts @pages from the page of handle @f on out of its BUSY block: a BUSY block, or NULL. */
static struct block *cut_out(struct pool *p, const struct vmm_free *f, uint32_t pages,
			     bool *left)
{
	struct vmm *v = vmm_of(p);
	struct block *b = block_at(p, f->block), *piece, *rest;
	uint64_t before = (page_addr(v, f->page) - b->addr) >> UNIT_SHIFT;
	uint64_t units = page_bytes(v, pages) >> UNIT_SHIFT;

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

int hm_vmm_use(struct pool *p, unsigned int stream, uint64_t pos, uint32_t *uses)
{
	const struct block tag = { .stream = stream, .pos = pos };
	struct use *u;

	*uses = 0;
	if (hm_block_done(p, &tag))
		return 0;
	*uses = hm_table_get(&p->uses);
	if (!*uses)
		return no_mappings();
	u = (struct use *)p->uses.base + *uses;
	u->stream = stream;
	u->pos = pos;
	return 0;
}

int hm_vmm_alias(struct pool *p, uint32_t handle, uint32_t page)
{
	struct vmm *v = vmm_of(p);
	uint32_t m = hm_table_get(&v->mappings);
	int err;

	if (!m)
		return no_mappings();
	err = map_handle(p, handle, page, m);
	if (!err)
		add_alias(v, m);
	return err;
}

void hm_vmm_swap(struct pool *p, const struct vmm_free *f, uint32_t uses)
{
	struct vmm *v = vmm_of(p);
	struct handle *h = handle_at(v, f->handle);
	uint32_t m = v->map[f->to], old = h->mapping;

	hm_vmm_set_ends(v, f->page, f->pages);
	mapping_at(v, old)->uses = uses;
	add_alias(v, old);
	/* Uses behind this alias are behind those of the handle's since. */
	remove_alias(v, m);
	hm_uses_put(p, mapping_at(v, m)->uses);
	mapping_at(v, m)->uses = 0;
	h->mapping = m;
}

void hm_vmm_take(struct pool *p, const struct vmm_free *f, struct pool_stream *s, uint64_t pos)
{
	uint32_t uses;

	hm_vmm_use(p, s->s.index, pos, &uses);
	hm_vmm_swap(p, f, uses);
}

int hm_vmm_move(struct pool *p, struct vmm_free *list, size_t nr, bool *left)
{
	const struct vmm_free *first = &list[nr - 1];
	const struct block *b = block_at(p, first->block);
	struct block *piece = NULL;
	size_t i;
	int err = 0;

	*left = true;
	for (i = 0; i < nr && !err; i++)
		err = hm_vmm_use(p, b->stream, b->pos, &list[i].uses);
	if (!err)
		piece = cut_out(p, first, list[0].page + list[0].pages - first->page, left);
	if (!piece) {
		while (i--)
			hm_uses_put(p, list[i].uses);
		return -ENOMEM;
	}
	hm_block_delete(p, piece);
	for (i = 0; i < nr; i++)
		hm_vmm_swap(p, &list[i], list[i].uses);
	return 0;
}

bool hm_vmm_uses_done(struct pool *p, uint32_t *uses)
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

/* The alias @m, which was unmapped: its pages are holes. */
static void forget_alias(struct pool *p, uint32_t m)
{
	struct vmm *v = vmm_of(p);
	struct mapping *a = mapping_at(v, m);
	const uint32_t id = a->handle, owner = a->owner;
	struct handle *h = handle_at(v, id);

	remove_alias(v, m);
	v->nr_half -= a->half;
	hm_vmm_set_pages(v, a->page, h->pages, 0);
	hm_table_put(&v->mappings, m);
	hm_sparse_unmapped(p, owner);
	h->maps--;
	/* Created, and never mapped with success. */
	if (!h->maps)
		hm_vmm_drop_handle(p, id);
}

/* Unmaps the alias @m, if its uses are complete. */
static void unmap_alias(struct pool *p, uint32_t m)
{
	struct mapping *a = mapping_at(vmm_of(p), m);

	if (hm_vmm_uses_done(p, &a->uses) &&
	    !unmap_pages(p, a->page, handle_at(vmm_of(p), a->handle)->pages))
		forget_alias(p, m);
}

/* Aliases that are looked at, and that are unmapped, with the lock. */
#define ALIAS_LOOKS	256
#define ALIAS_UNMAPS	64
/* Instructions of a look, and of an unmapping, about. */
#define ALIAS_LOOK_WORK	64
#define ALIAS_UNMAP_WORK	512

/* The first alias is the last one. */
static void rotate_aliases(struct vmm *v)
{
	uint32_t m = v->first;

	if (m == v->last)
		return;
	v->first = mapping_at(v, m)->next;
	mapping_at(v, v->first)->prev = 0;
	mapping_at(v, m)->prev = v->last;
	mapping_at(v, m)->next = 0;
	mapping_at(v, v->last)->next = m;
	v->last = m;
}

void hm_vmm_unalias(struct pool *p, uint32_t keep)
{
	struct vmm *v = vmm_of(p);
	unsigned int looks, unmaps = 0;
	uint32_t m, next, before;

	m = v->first;
	for (looks = 0; m && v->nr_aliases > keep && looks < ALIAS_LOOKS &&
	     unmaps < ALIAS_UNMAPS; looks++) {
		next = mapping_at(v, m)->next;
		before = v->nr_aliases;
		unmap_alias(p, m);
		unmaps += v->nr_aliases < before;
		m = next;
	}
	p->work += looks * ALIAS_LOOK_WORK + unmaps * ALIAS_UNMAP_WORK;
}

void hm_vmm_unalias_all(struct pool *p)
{
	struct vmm *v = vmm_of(p);
	uint32_t i, nr = v->nr_aliases, before;

	for (i = 0; i < nr && v->first; i++) {
		before = v->nr_aliases;
		unmap_alias(p, v->first);
		if (v->nr_aliases == before)
			rotate_aliases(v);
		if (i % ALIAS_UNMAPS == ALIAS_UNMAPS - 1)
			hm_pool_pause(p);
	}
}

/* What could not be unmapped when it could not be mapped either. */
static void unmap_half(struct pool *p)
{
	struct vmm *v = vmm_of(p);
	uint32_t m, next;

	for (m = v->nr_half ? v->first : 0; m; m = next) {
		next = mapping_at(v, m)->next;
		if (mapping_at(v, m)->half)
			unmap_alias(p, m);
	}
}

/* A mapping that cannot be unmapped now, and that nobody uses. */
static void leave_half(struct vmm *v, uint32_t m)
{
	mapping_at(v, m)->half = true;
	v->nr_half++;
}

void hm_vmm_unmap_new(struct pool *p, uint32_t page)
{
	struct vmm *v = vmm_of(p);
	uint32_t m = v->map[page], id = mapping_at(v, m)->handle;
	struct handle *h = handle_at(v, id);
	bool active = h->mapping == m;

	if (active) {
		h->mapping = 0;
		add_alias(v, m);
	}
	if (hm_retry_once(unmap_pages(p, page, h->pages))) {
		leave_half(v, m);
		return;
	}
	forget_alias(p, m);
}

void hm_vmm_clear(struct pool *p, uint32_t page, uint32_t pages)
{
	struct vmm *v = vmm_of(p);
	const uint32_t most = page < v->nr ? v->nr : v->all;
	uint32_t end = page + pages < most ? page + pages : most, m;

	while (page < end) {
		m = v->map[page];
		if (!m) {
			page++;
			continue;
		}
		page = mapping_at(v, m)->page + handle_of_page(v, page)->pages;
		if (is_alias(v, m))
			unmap_alias(p, m);
	}
}

bool hm_vmm_unalias_handle(struct pool *p, uint32_t id)
{
	struct vmm *v = vmm_of(p);
	struct handle *h = handle_at(v, id);
	uint32_t m, next;

	for (m = h->aliases; m; m = next) {
		next = mapping_at(v, m)->same_next;
		unmap_alias(p, m);
	}
	return h->maps <= 1;
}

int hm_vmm_release(struct pool *p, const struct vmm_free *f, bool *left)
{
	struct vmm *v = vmm_of(p);
	struct handle *h = handle_at(v, f->handle);
	struct block *piece;
	int err;

	*left = true;
	if (!hm_vmm_unalias_handle(p, f->handle))
		return -EBUSY;
	piece = cut_out(p, f, f->pages, left);
	if (!piece)
		return -ENOMEM;
	err = unmap_pages(p, f->page, f->pages);
	if (err) {
		/* As it was, but for a cut that heals when it is released. */
		hm_block_release(p, piece);
		return err;
	}
	hm_block_delete(p, piece);
	hm_vmm_set_pages(v, f->page, f->pages, 0);
	hm_table_put(&v->mappings, h->mapping);
	return hm_vmm_drop_handle(p, f->handle);
}

int hm_vmm_unmap_handle(struct pool *p, uint32_t id)
{
	struct vmm *v = vmm_of(p);
	const struct handle *h = handle_at(v, id);
	const struct mapping *m = mapping_at(v, h->mapping);
	const uint32_t owner = m->owner;
	int err = unmap_pages(p, m->page, h->pages);

	if (err)
		return err;
	hm_vmm_set_pages(v, m->page, h->pages, 0);
	hm_table_put(&v->mappings, h->mapping);
	hm_sparse_unmapped(p, owner);
	return hm_vmm_drop_handle(p, id);
}

int hm_vmm_empty(struct pool *p, uint32_t id)
{
	struct handle *h = handle_at(vmm_of(p), id);
	const uint32_t page = mapping_at(vmm_of(p), h->mapping)->page;
	int err = hm_vmm_unmap_handle(p, id), again;

	if (!err || h->mapping)
		return err;
	again = hm_vmm_map_handle(p, id, page);
	/* What is half mapped is released once it is unmapped. */
	if (!again || again == -EUCLEAN)
		h->flags &= ~HANDLE_STUCK;
	return again ? 0 : err;
}

bool hm_vmm_discard(struct pool *p, const struct vmm_free *f, bool *left)
{
	struct vmm *v = vmm_of(p);
	struct handle *h = handle_at(v, f->handle);
	const uint32_t m = h->mapping;
	struct block *piece = cut_out(p, f, f->pages, left);

	if (!piece)
		return false;
	hm_block_delete(p, piece);
	h->mapping = 0;
	if ((!(h->flags & (HANDLE_TORN | HANDLE_ASLEEP)) || mapping_at(v, m)->half) &&
	    hm_retry_once(unmap_pages(p, f->page, f->pages))) {
		add_alias(v, m);
		leave_half(v, m);
		return true;
	}
	hm_vmm_set_pages(v, f->page, f->pages, 0);
	hm_table_put(&v->mappings, m);
	hm_vmm_drop_handle(p, f->handle);
	return true;
}

/*
 * Free blocks that are looked at with the lock: the largest, and some from where the
 * last growth stopped,
 */
#define COLLECT_LOOKS	200
#define COLLECT_MORE	130
/* and handles that are found in them; more, if that is not enough. */
#define COLLECT_MOST	256
/* Arenas that are looked at, and of these such with enough memory. */
#define COLLECT_ARENAS	256
#define COLLECT_FULL	96

/*
 * struct collection - a search for handles that are wholly free
 * @known: positions of the arena up to this one can be had
 */
struct collection {
	struct pool_stream *s;
	bool wait;
	uint64_t known;
	uint64_t want;
	uint64_t pages;
	unsigned int looks;
	const struct block *last;
	struct vmm_free *list;
	size_t nr;
	size_t room;
	int err;
};

static int add_room(struct collection *c)
{
	size_t room = c->room ? 2 * c->room : 64;
	struct vmm_free *list = realloc(c->list, room * sizeof(*list));

	if (!list)
		return hm_error(-ENOMEM, "pool: no host memory");
	c->list = list;
	c->room = room;
	return 0;
}

static bool has_enough(const struct collection *c)
{
	return (c->nr >= COLLECT_MOST) & (c->pages >= c->want);
}

/* Whether a handle may be wholly in @b: most small blocks are parts of one. */
static bool has_boundary(const struct vmm *v, const struct block *b)
{
	const uint32_t page = (b->addr - v->base) >> v->shift;
	const struct mapping *m = mapping_at(v, v->map[page]);
	const uint32_t next = m->page + handle_at(v, m->handle)->pages;

	return (v->base + page_bytes(v, next) < block_end(b)) | (m->page == page);
}

static int collect_block(const struct pool *p, const struct block *b,
			 struct collection *c)
{
	const struct vmm *v = vmm_of(p);
	const uint64_t size = page_bytes(v, 1);
	uint32_t page = page_of(v, b->addr + size - 1);
	const uint32_t end = page_of(v, block_end(b));
	uint32_t next;

	for (; page < end && !has_enough(c); page = next) {
		const struct mapping *m = mapping_at(v, v->map[page]);
		const struct handle *h = handle_at(v, m->handle);

		next = m->page + h->pages;
		if ((m->page != page) | (next > end) |
		    !!(h->flags & (HANDLE_PINNED | HANDLE_ASLEEP)))
			continue;
		if (c->nr == c->room && add_room(c))
			return -ENOMEM;
		c->list[c->nr++] = (struct vmm_free){
			.handle = m->handle, .page = page, .pages = h->pages, .block = block_id(p, b),
		};
		c->pages += h->pages;
	}
	return 0;
}

/* Whether to look at more. */
static bool collect_look(const struct pool *p, struct block *b, void *arg)
{
	struct collection *c = arg;

	c->last = b;
	c->looks--;
	if ((b->pos <= c->known) & has_boundary(vmm_of(p), b)) {
		c->err = collect_block(p, b, c);
		if (c->err || has_enough(c))
			return false;
	}
	return c->looks;
}

static const struct block above_all = { .units = UINT32_MAX, .addr = UINT64_MAX };

/* From *@arena, below *@below, on; false: where it stopped is in them. */
static bool collect_from(struct pool *p, struct collection *c,
			 unsigned int *arena, struct block *below)
{
	const uint32_t page_units = page_bytes(vmm_of(p), 1) >> UNIT_SHIFT;
	const unsigned int nr = p->order.nr * NR_ZONES;
	unsigned int i = *arena, last = i + COLLECT_ARENAS, full = 0;
	const struct block *from = below;

	for (; i < nr && i != last && full < COLLECT_FULL;
	     i++, from = &above_all) {
		const struct pool_stream *of = stream_at(p, i / NR_ZONES);
		const struct arena *a = &of->arenas[i % NR_ZONES];

		if (a->units < page_units)
			continue;
		full++;
		c->known = c->wait && c->s->s.index && !of->s.lost ? UINT64_MAX :
			hm_stream_known(&c->s->s, &of->s);
		if (!hm_arena_each(p, a, from, page_units, collect_look, c)) {
			from = c->last;
			break;
		}
	}
	*arena = i;
	below->units = from->units;
	below->addr = from->addr;
	return i >= nr;
}

/* Whether what begins at (@arena, @below) comes after (@than, @than_below). */
static bool is_later(unsigned int arena, const struct block *below,
		     unsigned int than, const struct block *than_below)
{
	if (arena != than)
		return arena > than;
	return below->units != than_below->units ?
		below->units < than_below->units :
		below->addr < than_below->addr;
}

ssize_t hm_vmm_collect(struct pool *p, struct pool_stream *s, bool wait,
		       uint64_t want, struct vmm_free **list)
{
	struct vmm *v = vmm_of(p);
	struct collection c = {
		.s = s, .wait = wait, .want = want, .looks = COLLECT_LOOKS,
	};
	struct block below = above_all;
	unsigned int arena = 0;

	if (!collect_from(p, &c, &arena, &below)) {
		v->more = true;
		if (!is_later(v->collect_next, &v->collect_below, arena, &below)) {
			v->collect_next = arena;
			v->collect_below = below;
		}
		c.looks = COLLECT_MORE;
		if (!c.err && !has_enough(&c) &&
		    collect_from(p, &c, &v->collect_next, &v->collect_below))
			v->collect_next = 0;
	}
	if (c.err) {
		free(c.list);
		return c.err;
	}
	*list = c.list;
	return c.nr;
}

/* The reservation: holes in it, memory given back. */

/* Addresses to reserve, in multiples of the memory and of spill=; halved if refused. */
#define RESERVE_FACTOR	16
#define SPILL_FACTOR	2
/*
 * A pool takes a share of the addresses that the process has left, and a quarter of this share
 * once half of them are gone: so a process has room for 1,000 pools on a large device, and below
 * a RLIMIT_AS for the rest of itself. A pool of less than LEAST is of little use: while 16 of them
 * fit, it takes that. The kernel gives x86 programs 2^47 bytes of addresses. A process that has
 * more mapped, as sanitizers do, shows no share: a pool takes ENOUGH and sees what is there.
 *
 * Below a RLIMIT_AS the first pools take a quarter of what is left, so that one pool has enough.
 * Once half is gone, others take a small part.
 */
#define ADDRESSES	((uint64_t)1 << 47)
#define RESERVE_SHARE	128
#define LATE_SHARE	4
#define ENOUGH		(ADDRESSES / 1024)
#define LEAST		(ADDRESSES / 4096)
#define LEAST_SHARE	16
#define LIMIT_SHARE	4
#define LATE_LIMIT	64
#define RESERVE_LEAST	64	/* units */
#define MAX_MAPPINGS	(1U << 22)

static void vmm_edge(struct pool *p, const struct block *b)
{
	struct vmm *v = vmm_of(p);

	/* Sparse blocks are in no run. */
	if (first_page(v, b) > v->nr)
		return;
	if (!b->prev)
		v->head[first_page(v, b)] = block_id(p, b);
	if (!b->next) {
		v->tail[page_of(v, block_end(b) - 1)] = block_id(p, b);
		hm_vmm_add_front(p, b);
	}
}

void hm_vmm_remove_front(struct vmm *v, uint32_t handle)
{
	struct handle *h = handle_at(v, handle);
	uint32_t *first;

	if (!h->front)
		return;
	first = &v->fronts[h->front - 1];
	handle_at(v, h->front_next)->front_prev = h->front_prev;
	handle_at(v, h->front_prev)->front_next = h->front_next;
	if (*first == handle)
		*first = h->front_next == handle ? 0 : h->front_next;
	v->nr_fronts[h->front - 1]--;
	h->front = 0;
}

void hm_vmm_add_front(struct pool *p, const struct block *b)
{
	struct vmm *v = vmm_of(p);
	uint32_t id = mapping_at(v, v->map[page_of(v, block_end(b) - 1)])->handle;
	struct handle *h = handle_at(v, id), *first;
	uint32_t *head = &v->fronts[block_zone(b)];

	if (h->front == block_zone(b) + 1)
		return;
	hm_vmm_remove_front(v, id);
	/* The last of the ring, before the first. */
	if (!*head) {
		*head = id;
		h->front_next = id;
		h->front_prev = id;
	} else {
		first = handle_at(v, *head);
		h->front_next = *head;
		h->front_prev = first->front_prev;
		handle_at(v, first->front_prev)->front_next = id;
		first->front_prev = id;
	}
	h->front = block_zone(b) + 1;
	v->nr_fronts[block_zone(b)]++;
}

/* The first page from @page on that a handle begins with. */
static uint32_t boundary_from(const struct vmm *v, uint32_t page)
{
	const struct mapping *m = mapping_at(v, v->map[page]);

	return m->page == page ? page :
		m->page + handle_at(v, m->handle)->pages;
}

/* The last page up to @page that a handle ends before. */
static uint32_t boundary_to(const struct vmm *v, uint32_t page)
{
	const struct mapping *m = mapping_at(v, v->map[page - 1]);

	return m->page + handle_at(v, m->handle)->pages == page ? page :
		m->page;
}

/*
 * Pages of handles that are wholly in [@start, @end): a run has no holes, all
 * between the outer boundaries are.
 */
static uint32_t handles_within(const struct pool *p, uint64_t start,
			       uint64_t end)
{
	const struct vmm *v = vmm_of(p);
	uint32_t first = page_of(v, start + (1ULL << v->shift) - 1);
	uint32_t last = page_of(v, end);

	if (first >= last)
		return 0;
	first = boundary_from(v, first);
	last = boundary_to(v, last);
	return first < last ? last - first : 0;
}

/* Of two, the address at which @bytes have more whole handles. */
static uint64_t with_more(const struct pool *p, uint64_t one, uint64_t other, uint64_t bytes)
{
	return handles_within(p, other, other + bytes) > handles_within(p, one, one + bytes) ?
		other : one;
}

/* The rest of the block has as many handles as can be; a movable block itself has. */
static uint64_t vmm_place(const struct pool *p, const struct block *b, uint64_t units,
			  bool movable)
{
	const struct vmm *v = vmm_of(p);
	const uint64_t bytes = units << UNIT_SHIFT, end = block_end(b);
	uint32_t first, last;
	uint64_t addr, at;

	addr = handles_within(p, b->addr + bytes, end) >=
	       handles_within(p, b->addr, end - bytes) ? b->addr : end - bytes;
	/* A page of the block is one of a handle, those around it may be holes. */
	first = page_of(v, b->addr + page_bytes(v, 1) - 1);
	last = page_of(v, end);
	if (!movable || first >= last)
		return addr;
	at = page_addr(v, boundary_from(v, first));
	if (at + bytes <= end)
		addr = with_more(p, addr, at, bytes);
	at = page_addr(v, boundary_to(v, last));
	return at >= b->addr + bytes ? with_more(p, addr, at - bytes, bytes) : addr;
}

int hm_vmm_by_block(const void *a, const void *b)
{
	const struct vmm_free *x = a, *y = b;
	const uint64_t of_x = (uint64_t)x->block << 32 | (uint32_t)~x->page;
	const uint64_t of_y = (uint64_t)y->block << 32 | (uint32_t)~y->page;

	return (of_x > of_y) - (of_x < of_y);
}

/* How many of @list from @i on are of one block. */
static size_t same_block(const struct vmm_free *list, size_t i, size_t nr)
{
	size_t j;

	for (j = i + 1; j < nr && list[j].block == list[i].block; j++)
		;
	return j - i;
}

void hm_vmm_take_all(struct pool *p, const struct vmm_free *list, size_t nr)
{
	size_t i;

	for (i = 0; i < nr; i += same_block(list, i, nr))
		if (list[i].block)
			hm_block_take(p, block_at(p, list[i].block));
}

/* Instructions: of a look at a block, at an arena, of a handle that is given back. */
#define TRIM_WORK	256
#define ARENA_WORK	40
#define RELEASE_WORK	1024

/*
 * Gives back handles of @list, which are of one block that is BUSY, until at most
 * @keep bytes are held.
 */
static void release_handles(struct pool *p, const struct vmm_free *list,
			    size_t nr, uint64_t keep)
{
	bool left = true;
	size_t i;

	for (i = 0; i < nr && left; i++)
		if (p->reserved >= keep + page_bytes(vmm_of(p), list[i].pages))
			hm_vmm_release(p, &list[i], &left);
	if (left)
		hm_block_release(p, block_at(p, list[0].block));
}

static int trim_block(struct pool *p, struct block *b, uint64_t keep)
{
	struct collection c = { .want = UINT64_MAX };
	int err = collect_block(p, b, &c);

	if (!err && c.nr) {
		qsort(c.list, c.nr, sizeof(*c.list), hm_vmm_by_block);
		hm_block_take(p, b);
		release_handles(p, c.list, c.nr, keep);
	}
	free(c.list);
	return err ? err : (int)c.nr;
}

static size_t vmm_shed(struct pool *p, struct block *b, uint64_t from, uint64_t to,
		       uint64_t most)
{
	const struct vmm *v = vmm_of(p);
	const uint64_t before = p->reserved;
	struct collection c = { .want = UINT64_MAX };
	size_t i, nr = 0;

	if (collect_block(p, b, &c)) {
		free(c.list);
		return 0;
	}
	for (i = 0; i < c.nr; i++)
		if (page_addr(v, c.list[i].page) < to &&
		    page_addr(v, c.list[i].page + c.list[i].pages) > from)
			c.list[nr++] = c.list[i];
	if (nr) {
		qsort(c.list, nr, sizeof(*c.list), hm_vmm_by_block);
		hm_block_take(p, b);
		release_handles(p, c.list, nr, before > most ? before - most : 0);
	}
	free(c.list);
	return before - p->reserved;
}

/* What is complete in one arena, in pieces. */
static int trim_arena(struct pool *p, struct arena *a, uint64_t keep)
{
	const uint64_t page = page_bytes(vmm_of(p), 1);
	struct block *b;
	int nr;

	hm_pool_step(p, ARENA_WORK);
	/* A sleep can begin wherever the lock is released. */
	while (!vmm_of(p)->copying && p->reserved > keep && a->units >= page >> UNIT_SHIFT &&
	       (b = hm_arena_walk(p, a, WALK_TRIM))) {
		nr = block_bytes(b) >= page && hm_block_done(p, b) ?
			trim_block(p, b, keep) : 0;
		if (nr < 0)
			return nr;
		hm_pool_step(p, TRIM_WORK + nr * RELEASE_WORK);
	}
	a->walks[WALK_TRIM] = 0;
	return 0;
}

size_t hm_vmm_trim(struct pool *p, uint64_t keep)
{
	uint64_t before = p->reserved;
	unsigned int i;

	unmap_half(p);
	hm_vmm_reap_all_others(p);
	for (i = 0; i < p->order.nr * NR_ZONES && !p->opt.comm; i++)
		if (trim_arena(p, &stream_at(p, i / NR_ZONES)->arenas[
				       i % NR_ZONES], keep))
			break;
	hm_sparse_trim(p, keep, true);
	return before > p->reserved ? before - p->reserved : 0;
}

size_t hm_vmm_give_back(struct pool *p, uint64_t bytes)
{
	const unsigned int shift = vmm_of(p)->shift;
	uint64_t before = p->reserved, pages = 0;
	struct vmm_free *list;
	size_t i, n, found;
	ssize_t nr;

	unmap_half(p);
	nr = p->opt.comm ? 0 :
		hm_vmm_collect(p, stream_at(p, 0), false,
			       ((bytes - 1) >> shift) + 1, &list);
	if (nr < 0)
		return 0;
	found = nr;
	if (nr)
		qsort(list, found, sizeof(*list), hm_vmm_by_block);
	else
		list = NULL;
	for (n = 0; n < found && pages << shift < bytes; n++)
		pages += list[n].pages;
	found = n;
	hm_vmm_take_all(p, list, found);
	for (i = 0; i < found; i += n) {
		n = same_block(list, i, found);
		release_handles(p, list + i, n, 0);
	}
	free(list);
	if (before - p->reserved < bytes)
		hm_sparse_trim(p, before > bytes ? before - bytes : 0, false);
	return before - p->reserved;
}

/* Of the maps, what was touched: pages in use, and aliases of some. */
static uint64_t vmm_metadata(const struct pool *p)
{
	const struct vmm *v = vmm_of(p);

	return sizeof(*v) + (uint64_t)v->handles.nr * v->handles.size +
		(uint64_t)v->mappings.nr * v->mappings.size +
		v->pages * (3 * sizeof(*v->map) + 2 * sizeof(*v->holes)) *
		v->mappings.nr / v->handles.nr;
}

/* Aliases are cheap to have and dear to make: most are left. */
static void vmm_poll(struct pool *p)
{
	unmap_half(p);
	hm_vmm_reap_others(p);
	hm_vmm_unalias(p, VMM_ALIASES / 2);
}

/* The end of the part of @m that @addr is in, and which *@device has it. */
static uint64_t part_end(const struct pool *p, const struct mapping *m, uint64_t addr, int *device)
{
	const struct vmm *v = vmm_of(p);
	const struct handle *h = handle_at(v, m->handle);
	const uint64_t start = page_addr(v, m->page);
	size_t length;

	*device = h->flags & HANDLE_HOST ? -1 : p->provider->device;
	if (!p->provider->ops->device || h->flags & HANDLE_ASLEEP)
		return start + page_bytes(v, h->pages);
	*device = p->provider->ops->device(p->provider, h->handle, addr - start, &length);
	return addr + length;
}

/* HETMEM_HANDLE_* of the memory of @h. */
static unsigned int handle_types(const struct pool *p, const struct handle *h)
{
	if (h->flags & (HANDLE_HOST | HANDLE_ASLEEP | HANDLE_TORN))
		return 0;
	return h->flags & HANDLE_SHARED ? HETMEM_HANDLE_FD : p->provider->handle_types;
}

static int vmm_segments(struct pool *p, struct hm_ctl_segments *arg)
{
	const uint64_t start = (uintptr_t)arg->ptr, end = start + arg->size;
	uint64_t addr = start;
	struct vmm *v = vmm_of(p);
	size_t nr = 0;
	int device;

	while (addr < end) {
		const uint32_t page = page_of(v, addr);
		const struct mapping *m = mapping_at(v, v->map[page]);
		uint64_t stop;

		if (hm_vmm_is_apart(v, page)) {
			addr = page_addr(v, page + hm_vmm_apart(v, page));
			continue;
		}
		stop = part_end(p, m, addr, &device);
		if (stop > end)
			stop = end;
		if (nr < arg->nr)
			arg->segments[nr] = (struct hetmem_segment){
				.base = (void *)(uintptr_t)addr,
				.offset = addr - start, .length = stop - addr, .device = device,
				.handle_types = handle_types(p, handle_at(v, m->handle)),
			};
		nr++;
		addr = stop;
	}
	addr = nr > arg->nr;
	arg->nr = nr;
	return addr ? hm_error(-ENOSPC, "segments: there are %zu", nr) : 0;
}

static uint64_t vmm_part(const struct pool *p, const struct block *b, uint64_t *from, uint64_t to)
{
	const struct vmm *v = vmm_of(p);
	const uint32_t end = end_page(v, b);
	uint64_t start = b->addr + *from, stop = b->addr + to;
	uint32_t page;

	if (*from >= to)
		return 0;
	page = hm_vmm_find_apart(v, page_of(v, start), end, false);
	if (page_addr(v, page) > start)
		start = page_addr(v, page);
	page = hm_vmm_find_apart(v, page, end, true);
	if (page < end && page_addr(v, page) < stop)
		stop = page_addr(v, page);
	*from = start - b->addr;
	return start < stop ? stop - start : 0;
}

static void destroy_mapping(struct pool *p, uint32_t page, uint32_t pages)
{
	struct vmm *v = vmm_of(p);

	hm_retry_once(p->provider->ops->unmap(p->provider, page_addr(v, page),
					      page_bytes(v, pages)));
}

static void destroy_handle(struct pool *p, const struct handle *h)
{
	hm_retry_once(hm_provider_release_handle(p->provider, h->handle,
						 page_bytes(vmm_of(p), h->pages)));
}

static void destroy_reservation(struct pool *p, const struct vmm *v)
{
	hm_retry_once(p->provider->ops->unreserve(p->provider, v->base,
						  page_bytes(v, v->nr)));
}

/* The driver's objects; a forked child has none. */
static void destroy_all(struct pool *p)
{
	struct vmm *v = vmm_of(p);
	uint32_t page = 0, id;

	while (page < v->all && v->pages) {
		struct handle *h;

		if (!v->map[page]) {
			page++;
			continue;
		}
		h = handle_of_page(v, page);
		if (!(h->flags & (HANDLE_ASLEEP | HANDLE_TORN)) ||
		    mapping_at(v, v->map[page])->half)
			destroy_mapping(p, page, h->pages);
		page += h->pages;
		h->maps--;
		/* A mapping of it may come before this one, and one behind. */
		if (h->maps)
			continue;
		if (!(h->flags & (HANDLE_ASLEEP | HANDLE_HOST)))
			destroy_handle(p, h);
		v->pages -= h->pages;
	}
	for (id = 1; id < v->handles.nr; id++)
		if (handle_at(v, id)->flags & HANDLE_STUCK)
			destroy_handle(p, handle_at(v, id));
	destroy_reservation(p, v);
}

static const char *vmm_refuses(const struct pool *p)
{
	return p->opt.park_dir || !hm_has_one_memory(p->res.hm, p->res.device) ? NULL :
		HM_ONE_MEMORY ": give park=PATH, a directory on a disk, or let the contents go (HETMEM_SLEEP_DISCARD)";
}

static int vmm_save(struct pool *p)
{
	hm_vmm_unpin_others(p);
	return hm_park_save(p, &vmm_of(p)->park);
}

static int vmm_load(struct pool *p)
{
	return hm_park_load(p, vmm_of(p)->park);
}

static void vmm_loaded(struct pool *p, bool undo)
{
	hm_park_end(p, vmm_of(p)->park, undo);
}

static int vmm_read(struct pool *p, const struct hm_ctl_parked *arg)
{
	return hm_park_read(p, vmm_of(p)->park, arg);
}

static bool vmm_idle(struct pool *p, bool all)
{
	bool more = hm_park_shrink(p, vmm_of(p)->park, all);

	hm_spill_end(p, false);
	return (all && hm_parts_shrink(p)) || more;
}

static int vmm_end_moves(struct pool *p)
{
	hm_vmm_reap_others(p);
	hm_spill_end(p, true);
	return vmm_of(p)->spill->pending ?
		hm_error(-EIO, "pool: moves that are under way could not be ended") : 0;
}

static void vmm_moved(const struct pool *p, struct hetmem_resource_stats *st)
{
	const struct hm_spill *sp = vmm_of(p)->spill;

	st->spilled = sp->spilled;
	st->spill_host = sp->host_bytes;
	st->spill_host_peak = sp->host_peak;
	st->spilled_total = sp->out_total;
	st->fetched_total = sp->in_total;
	st->spilled_peak = sp->spilled_peak;
	st->parked_file = hm_park_in_file(vmm_of(p)->park);
}

static uint64_t vmm_addresses(const struct pool *p)
{
	return (uint64_t)vmm_of(p)->nr << vmm_of(p)->shift;
}

static uint64_t vmm_far(const struct pool *p)
{
	return vmm_of(p)->sparse ? vmm_of(p)->sparse->addresses : 0;
}

static uint64_t vmm_parked(const struct pool *p)
{
	return hm_park_held(vmm_of(p)->park);
}

static void vmm_destroy(struct pool *p, bool forget)
{
	struct vmm *v = vmm_of(p);

	hm_park_free(p, v->park, forget);
	hm_spill_stop(p, forget);
	hm_vmm_free_others(p, forget);
	if (!forget && v->nr)
		destroy_all(p);
	hm_spill_free(p, forget);
	hm_sparse_free(p, forget);
	if (v->map)
		munmap(v->map, v->all * sizeof(*v->map));
	if (v->head)
		munmap(v->head, 2 * (size_t)v->nr * sizeof(*v->head));
	hm_holes_free(v);
	free(v->sparse);
	hm_table_free(&v->handles);
	hm_table_free(&v->mappings);
	free((char *)p->opt.park_dir);
	free(v);
	p->memory = NULL;
}

/* A pool takes them if it is not told how many. */
uint64_t hm_vmm_share_of_addresses(unsigned int part)
{
	const uint64_t used = hm_addresses_used();
	uint64_t all = ADDRESSES, left, share;
	struct rlimit limit;

	if (!getrlimit(RLIMIT_AS, &limit) && limit.rlim_cur < all)
		all = limit.rlim_cur;
	left = used < all ? all - used : 0;
	if (all < ADDRESSES)
		return left / (left < all / 2 ? LATE_LIMIT : LIMIT_SHARE);
	if (!left)
		return ENOUGH;
	share = left / (left < ADDRESSES / 2 ? part * LATE_SHARE : part);
	if (share < LEAST)
		share = left / LEAST_SHARE < LEAST ? left / LEAST_SHARE : LEAST;
	return share;
}

/* As many addresses as are wanted, or fewer: see above. */
static int reserve_addresses(struct pool *p, struct vmm *v)
{
	const size_t size = p->provider->granularity;
	const uint64_t least = p->opt.reserve ? p->opt.reserve : RESERVE_LEAST * size;
	uint64_t total = p->opt.max ? p->opt.max : p->provider->total;
	uint64_t bytes = p->opt.reserve, share;
	uintptr_t base;
	int err;

	if (!bytes) {
		bytes = total * RESERVE_FACTOR + p->opt.spill * SPILL_FACTOR;
		share = hm_vmm_share_of_addresses(RESERVE_SHARE);
		if (bytes > share)
			bytes = share;
		if (bytes < least)
			bytes = least;
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
	v->all = v->nr;
	return 0;
}

/* The program may change its directory, and the text is the caller's. vmm_destroy() frees it. */
static int copy_park_dir(struct pool *p)
{
	char *real = NULL;
	int err = 0;

	if (p->opt.park_dir)
		err = hm_park_directory(p->opt.park_dir,
					hm_has_one_memory(p->res.hm, p->res.device), &real);
	p->opt.park_dir = real;
	return err;
}

/* After an error vmm_destroy() frees what was made. */
static int vmm_init(struct pool *p)
{
	struct vmm *v = calloc(1, sizeof(*v));
	int err;

	if (!v)
		return hm_error(-ENOMEM, "pool: no host memory");
	p->memory = v;
	v->shift = __builtin_ctzll(p->provider->granularity);
	err = copy_park_dir(p);
	if (!err)
		err = reserve_addresses(p, v);
	if (err)
		return err;
	v->map = hm_vmm_map(v->nr * sizeof(*v->map));
	v->head = v->map ? hm_vmm_map(2 * (size_t)v->nr * sizeof(*v->head)) : NULL;
	if (!v->head)
		return -ENOMEM;
	v->tail = v->head + v->nr;
	err = hm_holes_init(v);
	if (err)
		return err;
	err = hm_table_init(&v->handles, sizeof(struct handle),
			    offsetof(struct handle, mapping), MAX_MAPPINGS);
	if (!err)
		err = hm_table_init(&v->mappings, sizeof(struct mapping),
				    offsetof(struct mapping, next), MAX_MAPPINGS);
	return err ? err : hm_spill_init(p, &v->spill);
}

static void vmm_small(const struct pool *p, uint64_t *bytes, uint64_t *nr)
{
	const struct vmm *v = vmm_of(p);

	*bytes = page_bytes(v, v->small);
	*nr = v->nr_small;
}

static const struct source vmm_source = {
	.init = vmm_init,
	.edge = vmm_edge,
	.place = vmm_place,
	.fit = hm_vmm_fit,
	.prepare = hm_vmm_prepare,
	.grow = hm_vmm_grow,
	.grow_whole = hm_vmm_grow_whole,
	.retry = hm_vmm_retry,
	.trim = hm_vmm_trim,
	.shed = vmm_shed,
	.poll = vmm_poll,
	.destroy = vmm_destroy,
	.segments = vmm_segments,
	.metadata = vmm_metadata,
	.pin = hm_vmm_pin,
	.enlarge = hm_vmm_enlarge,
	.shrink = hm_vmm_shrink,
	.part = vmm_part,
	.reserve = hm_vmm_reserve,
	.unreserve = hm_vmm_unreserve,
	.sparse = hm_sparse_alloc,
	.prepare_commit = hm_sparse_prepare,
	.commit = hm_sparse_commit,
	.cancel_commit = hm_sparse_cancel,
	.decommit = hm_sparse_decommit,
	.sleep = hm_vmm_sleep,
	.wake = hm_vmm_wake,
	.refuses = vmm_refuses,
	.save = vmm_save,
	.load = vmm_load,
	.loaded = vmm_loaded,
	.read = vmm_read,
	.idle = vmm_idle,
	.parked = vmm_parked,
	.small = vmm_small,
	.addresses = vmm_addresses,
	.far = vmm_far,
	.export = hm_vmm_export,
	.drop = hm_vmm_drop,
	.declare = hm_movable_declare,
	.forget = hm_movable_forget,
	.relieve = hm_movable_relieve,
	.regain = hm_movable_regain,
	.end_moves = vmm_end_moves,
	.move = hm_spill_ctl,
	.observe = hm_spill_observe,
	.tell = hm_spill_tell,
	.moved = vmm_moved,
};

void hm_vmm_range(const struct hetmem_resource *res, uintptr_t *from, uintptr_t *to)
{
	const struct pool *p = to_pool((struct hetmem_resource *)res);

	*from = vmm_of(p)->base;
	*to = *from + vmm_addresses(p);
}

uint64_t hm_vmm_parked(const struct hetmem_resource *res)
{
	return vmm_parked(to_pool((struct hetmem_resource *)res));
}

int hm_vmm_pool_create(struct hm_provider *provider,
		       const struct hm_pool_options *options,
		       struct hetmem_resource **out)
{
	if (!(provider->caps & HM_PROVIDER_MAPPABLE))
		return hm_error(-EINVAL, "pool: %s gives whole regions",
				provider->ops->name);
	if (options && (options->spill || options->min_host) &&
	    hm_has_one_memory(provider->hm, provider->device))
		return hm_error(-EOPNOTSUPP, "pool: spill= and min_host= are refused: "
				HM_ONE_MEMORY ": leave them out");
	if (options && options->park_dir && options->max_host)
		return hm_error(-EINVAL, "pool: max_host= bounds host memory, and with park=PATH a sleep takes none: leave out one");
	return hm_pool_create_over(provider, &vmm_source, options, out);
}
