// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The VMM pool: sparse blocks, which have addresses first and memory where it is committed.
 *
 * Their addresses are a second reservation, made for the first sparse block: the pages after
 * those of the pool. Only sparse blocks lie there, and none is part of a run. All pages of a
 * block that are not committed are set aside, see holes.c, so segments, sleeps and check mode
 * leave them out as they do holes of other blocks.
 *
 * A unit is a handle of unit= bytes. Decommit parks a unit: it stays mapped, its page is set
 * aside, and its mapping has the last use. A commit of the same unit orders the stream after
 * that use, and makes no call of the driver's VMM interface. Whoever else needs memory takes
 * parked units, oldest first: the handle is mapped there first, and the mapping here becomes an
 * alias, which is unmapped when the use is complete. A trim releases complete units.
 *
 * A freed block parks all its units and keeps its addresses while any is mapped. It is idle
 * then, and the next sparse block of the same size is this one.
 *
 * A commit is prepared first: all units get memory, and are parked where no other commit, growth
 * or trim takes them. Then they are committed, which cannot fail. A large commit does both in
 * pieces, between which the lock is released.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "pool/uses.h"
#include "vmm/grow.h"
#include "vmm/sparse.h"

/* Addresses for sparse blocks: this, or a share of what the process has left. */
#define FAR_BYTES	((uint64_t)16 << 40)
#define FAR_SHARE	8
#define FAR_PAGES	(1U << 27)
/* Parked units that a growth looks at, and idle blocks that an allocation does. */
#define PARKED_LOOKS	256
#define IDLE_LOOKS	64
/* The position of an idle block. */
#define IDLE		UINT64_MAX
/* A parked unit with any of these flags stays where it is. */
#define NOT_NOW		(HANDLE_PINNED | HANDLE_ASLEEP | HANDLE_STUCK | HANDLE_CHOSEN)
/* Instructions, about: of a unit that is parked or given back, and of a look at one. */
#define UNIT_WORK	1024
#define LOOK_WORK	64

static uint32_t unit_pages(const struct pool *p)
{
	return p->opt.unit >> vmm_of(p)->shift;
}

/* The second reservation, with room for @pages at least. */
static int make_far(struct pool *p, uint32_t pages)
{
	struct vmm *v = vmm_of(p);
	const uint64_t least = (uint64_t)pages << v->shift;
	uint64_t bytes = hm_vmm_share_of_addresses(FAR_SHARE);
	struct hm_sparse *sp = calloc(1, sizeof(*sp));
	uintptr_t far = 0;
	int err;

	if (!sp)
		return hm_error(-ENOMEM, "pool: no host memory");
	bytes = bytes > FAR_BYTES ? FAR_BYTES : bytes;
	bytes = bytes >> v->shift > FAR_PAGES ? (uint64_t)FAR_PAGES << v->shift : bytes;
	for (;; bytes /= 2) {
		bytes = bytes < least ? least : bytes >> v->shift << v->shift;
		p->calls++;
		err = p->provider->ops->reserve(p->provider, bytes, 1ULL << v->shift, &far);
		if (err != -ENOMEM || bytes == least)
			break;
	}
	if (!err)
		err = hm_holes_add(v, sp, bytes >> v->shift);
	if (err) {
		if (far)
			hm_retry_once(p->provider->ops->unreserve(p->provider, far, bytes));
		free(sp);
		return err;
	}
	sp->bytes = bytes;
	sp->end = v->nr + 1;
	v->far = far;
	v->sparse = sp;
	return 0;
}

void hm_sparse_free(struct pool *p, bool forget)
{
	struct vmm *v = vmm_of(p);

	if (v->sparse && !forget)
		hm_retry_once(p->provider->ops->unreserve(p->provider, v->far, v->sparse->bytes));
}

/* The list of idle blocks of @units. */
static uint32_t *idle_list(const struct vmm *v, uint32_t units)
{
	return &v->sparse->idle[(units >> (v->shift - UNIT_SHIFT)) * 2654435761U % IDLE_LISTS];
}

/* The BUSY block @b is idle. */
static void add_idle(struct pool *p, struct block *b)
{
	uint32_t *list = idle_list(vmm_of(p), b->units);

	b->pos = IDLE;
	b->left = 0;
	b->right = *list;
	if (*list)
		block_at(p, *list)->left = block_id(p, b);
	*list = block_id(p, b);
}

static void remove_idle(struct pool *p, struct block *b)
{
	if (b->left)
		block_at(p, b->left)->right = b->right;
	else
		*idle_list(vmm_of(p), b->units) = b->right;
	if (b->right)
		block_at(p, b->right)->left = b->left;
	b->pos = 0;
}

/* Returns an idle block of @units, or NULL. A list has few blocks of other sizes. */
static struct block *take_idle(struct pool *p, uint64_t units)
{
	uint32_t id = *idle_list(vmm_of(p), units), looks;

	for (looks = 0; id && looks < IDLE_LOOKS; looks++, id = block_at(p, id)->right) {
		if (block_at(p, id)->units != units)
			continue;
		remove_idle(p, block_at(p, id));
		return block_at(p, id);
	}
	return NULL;
}

/* Gives up the addresses of the BUSY block @b. */
static void delete_block(struct pool *p, struct block *b)
{
	struct vmm *v = vmm_of(p);

	hm_vmm_set_apart(v, first_page(v, b), end_page(v, b) - first_page(v, b), false);
	hm_block_delete(p, b);
}

void hm_sparse_unmapped(struct pool *p, uint32_t owner)
{
	struct vmm *v = vmm_of(p);
	struct block *b = block_at(p, owner);

	if (!owner || block_state(b) != BLOCK_BUSY || b->pos != IDLE ||
	    hm_vmm_is_mapped(v, first_page(v, b), end_page(v, b)))
		return;
	remove_idle(p, b);
	delete_block(p, b);
}

/* Releases the lock if there is no hole. */
static int find_far(struct pool *p, uint32_t pages, uint32_t *page)
{
	struct vmm *v = vmm_of(p);

	if (hm_vmm_find_far(v, pages, page))
		return 0;
	hm_vmm_unalias_all(p);
	if (!p->asleep && hm_vmm_find_far(v, pages, page))
		return 0;
	hm_sparse_trim(p, 0, true);
	if (p->asleep)
		return hm_pool_asleep();
	return hm_vmm_find_far(v, pages, page) ? 0 :
		hm_error(-ENOMEM, "alloc_with: sparse blocks have %llu bytes of addresses, and no %llu of them in one piece",
			 (unsigned long long)v->sparse->bytes,
			 (unsigned long long)pages << v->shift);
}

int hm_sparse_alloc(struct pool *p, struct pool_stream *s, uint64_t bytes, struct block **out)
{
	struct vmm *v = vmm_of(p);
	const uint64_t unit = (uint64_t)unit_pages(p) << v->shift;
	const uint64_t units = (bytes + unit - 1) / unit * unit >> UNIT_SHIFT;
	const uint32_t pages = units >> (v->shift - UNIT_SHIFT);
	struct block *b;
	uint32_t page;
	int err = 0;

	(void)s;
	if (!v->sparse)
		err = make_far(p, pages);
	if (err)
		return err;
	b = take_idle(p, units);
	if (!b) {
		err = find_far(p, pages, &page);
		if (err)
			return err;
		b = hm_block_new(p, page_addr(v, page), units, 1);
		if (!b)
			return -ENOMEM;
		hm_vmm_set_apart(v, page, pages, true);
		if (v->sparse->end < page + pages)
			v->sparse->end = page + pages;
	}
	__atomic_store_n(&b->flags, BLOCK_ZONE | BLOCK_WHOLE | BLOCK_RESERVE, __ATOMIC_RELEASE);
	b->stream = 0;
	b->pos = 0;
	b->right = 0;
	v->sparse->addresses += units << UNIT_SHIFT;
	*out = b;
	return 0;
}

/* The mapping @m, which is active and set aside, is parked, with @uses. */
static void park(struct pool *p, uint32_t m, uint32_t uses)
{
	struct vmm *v = vmm_of(p);
	struct hm_sparse *sp = v->sparse;
	struct mapping *a = mapping_at(v, m);

	a->parked = true;
	a->uses = uses;
	a->prev = sp->last;
	a->next = 0;
	if (sp->last)
		mapping_at(v, sp->last)->next = m;
	else
		sp->first = m;
	sp->last = m;
	sp->nr += handle_at(v, a->handle)->pages;
	if (uses)
		stream_at(p, use_at(p, uses)->stream)->parked++;
}

/* It is no longer. Its uses are the caller's. */
static uint32_t unpark(struct pool *p, uint32_t m)
{
	struct vmm *v = vmm_of(p);
	struct hm_sparse *sp = v->sparse;
	struct mapping *a = mapping_at(v, m);
	const uint32_t uses = a->uses;

	if (a->prev)
		mapping_at(v, a->prev)->next = a->next;
	else
		sp->first = a->next;
	if (a->next)
		mapping_at(v, a->next)->prev = a->prev;
	else
		sp->last = a->prev;
	if (sp->trim == m)
		sp->trim = a->next;
	a->parked = false;
	a->fresh = false;
	a->uses = 0;
	sp->nr -= handle_at(v, a->handle)->pages;
	if (uses)
		stream_at(p, use_at(p, uses)->stream)->parked--;
	return uses;
}

static int order_after(struct pool *p, struct pool_stream *s, const struct mapping *a,
		       bool *waits)
{
	const struct use *u = use_at(p, a->uses);
	const struct block tag = { .stream = u->stream, .pos = u->pos };

	if (!a->uses || hm_block_done(p, &tag))
		return 0;
	*waits = true;
	return hm_stream_wait(&p->order, &s->s, p->order.streams[u->stream], u->pos);
}

int hm_sparse_order(struct pool *p, struct pool_stream *s, const struct vmm_free *f, bool *waits)
{
	struct vmm *v = vmm_of(p);

	return order_after(p, s, mapping_at(v, handle_at(v, f->handle)->mapping), waits);
}

void hm_sparse_take(struct pool *p, const struct vmm_free *f)
{
	struct vmm *v = vmm_of(p);
	const uint32_t uses = unpark(p, handle_at(v, f->handle)->mapping);

	handle_at(v, f->handle)->flags &= ~HANDLE_CHOSEN;

	hm_vmm_swap(p, f, uses);
}

/* Whether @s can have the parked mapping @a: without a wait, or at all. */
static bool may_have(struct pool *p, const struct pool_stream *s, const struct mapping *a,
		     bool wait)
{
	const struct use *u = use_at(p, a->uses);
	const struct block tag = { .stream = u->stream, .pos = u->pos };

	return !a->uses || source_may_have(p, s, &tag) ||
	       (wait && s->s.index && !p->order.streams[u->stream]->lost);
}

void hm_sparse_collect(struct pool *p, const struct pool_stream *s, bool wait, uint64_t pages,
		       struct vmm_free *list, size_t *nr, size_t room)
{
	struct vmm *v = vmm_of(p);
	uint64_t found = 0;
	uint32_t m, looks = 0;

	for (m = v->sparse->first; m && found < pages && *nr < room && looks < PARKED_LOOKS;
	     m = mapping_at(v, m)->next, looks++) {
		const struct mapping *a = mapping_at(v, m);
		const struct handle *h = handle_at(v, a->handle);

		if (h->flags & NOT_NOW ||
		    !may_have(p, s, a, wait))
			continue;
		list[(*nr)++] = (struct vmm_free){
			.handle = a->handle, .page = a->page, .pages = h->pages, .parked = true,
		};
		found += h->pages;
	}
}

/* Whether the last use of the parked mapping @a is complete. Else it is recorded, for later. */
static bool is_complete(struct pool *p, const struct mapping *a)
{
	const struct use *u = use_at(p, a->uses);
	struct hm_stream *s = p->order.streams[u->stream];

	if (!a->uses || u->pos <= s->done)
		return true;
	hm_stream_record(&p->order, s);
	return false;
}

/* Unmaps and releases the parked unit @m, if that can be. */
static bool release_unit(struct pool *p, uint32_t m)
{
	struct vmm *v = vmm_of(p);
	const uint32_t id = mapping_at(v, m)->handle, page = mapping_at(v, m)->page;

	hm_uses_put(p, unpark(p, m));
	if (hm_vmm_unalias_handle(p, id))
		hm_vmm_unmap_handle(p, id);
	if (v->map[page] != m)
		return true;
	park(p, m, 0);
	return false;
}

void hm_sparse_trim(struct pool *p, uint64_t keep, bool pauses)
{
	struct vmm *v = vmm_of(p);
	const uint64_t unit = (uint64_t)unit_pages(p) << v->shift;
	/* A unit that stays is the last one then. */
	uint64_t looks = v->sparse ? v->sparse->nr / unit_pages(p) : 0;

	if (!pauses && looks > PARKED_LOOKS)
		looks = PARKED_LOOKS;
	if (looks)
		v->sparse->trim = v->sparse->first;
	/* A sleep can begin wherever the lock is released. */
	while (looks-- && v->sparse->trim && !v->copying && p->reserved >= keep + unit) {
		const uint32_t m = v->sparse->trim;
		const struct mapping *a = mapping_at(v, m);
		bool released = false;

		v->sparse->trim = a->next;
		if (!(handle_at(v, a->handle)->flags & NOT_NOW) && is_complete(p, a))
			released = release_unit(p, m);
		if (pauses)
			hm_pool_step(p, released ? UNIT_WORK : LOOK_WORK);
	}
}

/* Each of the parked, the free, the new handles of a commit. */
struct change {
	struct vmm_free *list;
	size_t nr;
	size_t room;
};

/*
 * Whether [@page, @end) can be committed now. *@missing: pages that have no parked unit.
 * Addresses of memory that others took are waited for.
 */
static int look_at(struct pool *p, uint32_t page, uint32_t end, uint32_t *missing)
{
	struct vmm *v = vmm_of(p);
	const uint32_t unit = unit_pages(p);

	*missing = 0;
	for (; page < end; page += unit) {
		if (!hm_vmm_is_apart(v, page))
			return hm_error(-EEXIST, "commit: the unit at %#llx is committed",
					(unsigned long long)page_addr(v, page));
		if (v->map[page] && mapping_at(v, v->map[page])->parked) {
			if (handle_of_page(v, page)->flags & HANDLE_CHOSEN)
				return hm_error(-EEXIST, "commit: another thread commits the unit at %#llx",
						(unsigned long long)page_addr(v, page));
			continue;
		}
		*missing += unit;
		if (v->map[page])
			hm_vmm_clear(p, page, unit);
		if (v->map[page])
			return hm_error(-ENOMEM, "commit: memory that was here is still in use at %#llx",
					(unsigned long long)page_addr(v, page));
	}
	return 0;
}

/* Orders @s after the last uses of units that are parked in [@page, @end). */
static int order_here(struct pool *p, struct pool_stream *s, uint32_t page, uint32_t end)
{
	struct vmm *v = vmm_of(p);
	bool waits = false;
	int err = 0;

	for (; page < end && !err; page += unit_pages(p))
		if (v->map[page] && mapping_at(v, v->map[page])->parked)
			err = order_after(p, s, mapping_at(v, v->map[page]), &waits);
	return err == -EAGAIN ? hm_error(-ENOMEM, "commit: the unit is in use") : err;
}

/*
 * Keeps units that are parked in [@page, @end) for a commit: no other commit, growth or trim
 * takes them. They become the last ones of the list.
 */
static void keep_here(struct pool *p, uint32_t page, uint32_t end)
{
	struct vmm *v = vmm_of(p);

	for (; page < end; page += unit_pages(p)) {
		const uint32_t m = v->map[page];

		if (!m || !mapping_at(v, m)->parked)
			continue;
		park(p, m, unpark(p, m));
		handle_of_page(v, page)->flags |= HANDLE_CHOSEN;
	}
}

/* Free handles of the size of a unit, then units that are parked elsewhere. */
static int choose(struct pool *p, struct pool_stream *s, struct change *c, bool wait)
{
	struct vmm_free *found = NULL;
	const uint32_t unit = unit_pages(p);
	ssize_t nr, i;
	size_t j, kept;

	nr = hm_vmm_collect(p, s, wait, (uint64_t)c->room * unit, &found);
	if (nr < 0)
		return nr;
	for (i = 0; i < nr && c->nr < c->room; i++)
		if (found[i].pages == unit)
			c->list[c->nr++] = found[i];
	free(nr ? found : NULL);
	kept = c->nr;
	hm_sparse_collect(p, s, wait, UINT64_MAX, c->list, &c->nr, c->room);
	for (j = kept; j < c->nr; j++)
		if (c->list[j].pages == unit)
			c->list[kept++] = c->list[j];
	c->nr = kept;
	qsort(c->list, c->nr, sizeof(*c->list), hm_vmm_by_block);
	hm_vmm_take_all(p, c->list, c->nr);
	for (j = 0; j < c->nr; j++)
		if (c->list[j].parked)
			handle_at(vmm_of(p), c->list[j].handle)->flags |= HANDLE_CHOSEN;
	return 0;
}

/* The rest is new. Larger free handles are given back for it. */
static int create(struct pool *p, struct change *c)
{
	const uint32_t unit = unit_pages(p);
	const uint64_t bytes = (uint64_t)unit << vmm_of(p)->shift;
	uint32_t h;
	int err;

	while (c->nr < c->room) {
		err = hm_vmm_make_handle(p, unit, &h);
		if (err == -ENOMEM && hm_vmm_give_back(p, (c->room - c->nr) * bytes))
			err = hm_vmm_make_handle(p, unit, &h);
		if (err)
			return err;
		c->list[c->nr++] = (struct vmm_free){ .handle = h, .pages = unit };
	}
	return 0;
}

static int order_change(struct pool *p, struct pool_stream *s, const struct change *c)
{
	bool waits = false;
	int err = 0;
	size_t i;

	for (i = 0; i < c->nr && !err; i++) {
		const struct block *b = block_at(p, c->list[i].block);

		if (c->list[i].parked)
			err = hm_sparse_order(p, s, &c->list[i], &waits);
		else if (c->list[i].block && !hm_block_done(p, b))
			err = hm_stream_wait(&p->order, &s->s, p->order.streams[b->stream], b->pos);
	}
	return err == -EAGAIN ? hm_error(-ENOMEM, "commit: free memory is in use") : err;
}

/* Maps each at the next page of @b from @page on that has no memory. */
static int map_change(struct pool *p, struct change *c, const struct block *b, uint32_t page)
{
	struct vmm *v = vmm_of(p);
	int err = 0;
	size_t i;

	for (i = 0; i < c->nr && !err; i++) {
		struct vmm_free *f = &c->list[i];

		while (v->map[page])
			page += unit_pages(p);
		f->to = page;
		err = f->block || f->parked ? hm_vmm_alias(p, f->handle, page) :
			hm_vmm_map_handle(p, f->handle, page);
		if (v->map[page])
			mapping_at(v, v->map[page])->owner = block_id(p, b);
		/* It is an alias that waits to be unmapped, and then released. */
		if (err == -EUCLEAN && !f->block && !f->parked)
			f->handle = 0;
		f->mapped = !err;
	}
	return err == -EUCLEAN ? -EIO : err;
}

/* As it was. @err stays the text. */
static void undo(struct pool *p, struct change *c)
{
	struct vmm *v = vmm_of(p);
	size_t i;

	for (i = c->nr; i--;) {
		struct vmm_free *f = &c->list[i];

		if (f->parked)
			handle_at(v, f->handle)->flags &= ~HANDLE_CHOSEN;
		if (f->mapped)
			hm_vmm_unmap_new(p, f->to);
		else if (!f->block && !f->parked && f->handle)
			hm_vmm_drop_handle(p, f->handle);
		if (f->block && (!i || c->list[i - 1].block != f->block))
			hm_block_release(p, block_at(p, f->block));
	}
}

/* They are mapped at both addresses: it cannot fail. */
static void finish(struct pool *p, const struct change *c)
{
	struct vmm *v = vmm_of(p);
	size_t i;

	for (i = 0; i < c->nr; i++) {
		struct vmm_free *f = &c->list[i];
		bool left = true;

		hm_vmm_set_small(v, f->handle, false);
		if (f->parked) {
			hm_sparse_take(p, f);
		} else if (f->block) {
			hm_vmm_move(p, f, 1, &left);
			if (left && (i + 1 == c->nr || c->list[i + 1].block != f->block))
				hm_block_release(p, block_at(p, f->block));
		}
		/* A cut can have made it the end of a run. */
		hm_vmm_remove_front(v, f->handle);
	}
}

/* Parks the mappings of @c for the commit. @uses has a use of each handle that is not new. */
static void park_change(struct pool *p, const struct change *c, const uint32_t *uses)
{
	struct vmm *v = vmm_of(p);
	size_t i;

	for (i = 0; i < c->nr; i++) {
		const uint32_t m = v->map[c->list[i].to];

		park(p, m, uses[i]);
		mapping_at(v, m)->fresh = !c->list[i].block && !c->list[i].parked;
		handle_at(v, c->list[i].handle)->flags |= HANDLE_CHOSEN;
	}
}

/* Makes a use until @pos of @s for each handle that is not new. Makes none if it fails: -ENOMEM. */
static int make_uses(struct pool *p, const struct pool_stream *s, const struct change *c,
		     uint64_t pos, uint32_t *uses)
{
	size_t i;
	int err = 0;

	for (i = 0; i < c->nr && !err; i++)
		if (c->list[i].block || c->list[i].parked)
			err = hm_vmm_use(p, s->s.index, pos, &uses[i]);
	while (err && i--)
		hm_uses_put(p, uses[i]);
	return err;
}

static int gather(struct pool *p, struct pool_stream *s, struct change *c, bool wait)
{
	int err = choose(p, s, c, wait);

	return err ? err : create(p, c);
}

/*
 * Calls gather(). A block of which handles are chosen cannot give back the rest. So after -ENOMEM
 * the choice is undone, larger handles are given back, and gather() is called again.
 */
static int gather_or_make_room(struct pool *p, struct pool_stream *s, struct change *c, bool wait)
{
	const uint64_t unit = (uint64_t)unit_pages(p) << vmm_of(p)->shift;
	int err = gather(p, s, c, wait);
	char text[256];
	size_t i, made = 0;

	if (err != -ENOMEM)
		return err;
	snprintf(text, sizeof(text), "%s", hetmem_last_error());
	for (i = 0; i < c->nr; i++)
		made += !c->list[i].block && !c->list[i].parked;
	undo(p, c);
	memset(c->list, 0, c->nr * sizeof(*c->list));
	c->nr = 0;
	if (hm_vmm_give_back(p, (c->room - made) * unit))
		return gather(p, s, c, wait);
	return hm_error(err, "%s", text);
}

/* Memory for @missing pages of @b, in [@page, @end), all or none. */
static int fill(struct pool *p, struct pool_stream *s, const struct block *b, uint32_t page,
		uint32_t missing, bool wait, uint64_t pos)
{
	struct change c = { .room = missing / unit_pages(p) };
	uint32_t *uses;
	char text[256];
	int err;

	hm_vmm_prepare_at_once(p, s, wait);
	c.list = calloc(c.room, sizeof(*c.list) + sizeof(*uses));
	if (!c.list)
		return hm_error(-ENOMEM, "commit: no host memory");
	uses = (uint32_t *)(c.list + c.room);
	err = gather_or_make_room(p, s, &c, wait);
	if (!err)
		err = order_change(p, s, &c);
	if (!err)
		err = hm_vmm_has_descriptors(p, 2 * c.nr);
	if (!err)
		err = map_change(p, &c, b, page);
	if (!err)
		err = make_uses(p, s, &c, pos, uses);
	if (err) {
		snprintf(text, sizeof(text), "%s", hetmem_last_error());
		undo(p, &c);
		hm_error(err, "%s", text);
	} else {
		finish(p, &c);
		park_change(p, &c, uses);
	}
	free(c.list);
	return err;
}

int hm_sparse_prepare(struct pool *p, struct pool_stream *s, struct block *b, uint64_t from,
		      uint64_t to, enum hm_commit how, uint64_t pos)
{
	struct vmm *v = vmm_of(p);
	const uint32_t first = page_of(v, b->addr + from), end = page_of(v, b->addr + to - 1) + 1;
	uint32_t missing;
	int err = look_at(p, first, end, &missing);

	if (!err && missing && how == HM_COMMIT_HERE)
		return -EAGAIN;
	if (!err)
		err = order_here(p, s, first, end);
	if (err)
		return err;
	keep_here(p, first, end);
	if (missing)
		err = fill(p, s, b, first, missing, how == HM_COMMIT_ANY, pos);
	if (err)
		hm_sparse_cancel(p, b->addr + from, b->addr + to);
	return err;
}

/* Whether a unit at @page was prepared for a commit. */
static bool is_prepared(const struct vmm *v, uint32_t page)
{
	return v->map[page] && mapping_at(v, v->map[page])->parked &&
	       handle_of_page(v, page)->flags & HANDLE_CHOSEN;
}

void hm_sparse_cancel(struct pool *p, uint64_t from, uint64_t to)
{
	struct vmm *v = vmm_of(p);
	const uint32_t end = page_of(v, to - 1) + 1;
	uint32_t page;

	for (page = page_of(v, from); page < end; page += unit_pages(p)) {
		if (!is_prepared(v, page))
			continue;
		handle_of_page(v, page)->flags &= ~HANDLE_CHOSEN;
		if (mapping_at(v, v->map[page])->fresh && !(handle_of_page(v, page)->flags & NOT_NOW))
			release_unit(p, v->map[page]);
	}
}

int hm_sparse_commit(struct pool *p, struct block *b, uint64_t from, uint64_t to)
{
	struct vmm *v = vmm_of(p);
	const uint32_t first = page_of(v, b->addr + from), end = page_of(v, b->addr + to - 1) + 1;
	const uint32_t unit = unit_pages(p);
	uint32_t page;

	for (page = first; page < end && is_prepared(v, page); page += unit) {
		handle_of_page(v, page)->flags &= ~HANDLE_CHOSEN;
		hm_uses_put(p, unpark(p, v->map[page]));
	}
	hm_vmm_set_apart(v, first, page - first, false);
	__atomic_store_n(&b->right, b->right + (page - first) / unit, __ATOMIC_RELAXED);
	return page < end ? hm_error(-EINVAL, "commit: another thread freed the block") : 0;
}

int hm_sparse_decommit(struct pool *p, struct pool_stream *s, struct block *b, uint64_t from,
		       uint64_t to, uint64_t pos, bool keep)
{
	struct vmm *v = vmm_of(p);
	const uint32_t first = page_of(v, b->addr + from), end = page_of(v, b->addr + to - 1) + 1;
	const uint32_t unit = unit_pages(p);
	uint32_t page = hm_vmm_find_apart(v, first, end, true), uses;

	if (page < end)
		return hm_error(-ENOENT, "decommit: the unit at %#llx is not committed",
				(unsigned long long)page_addr(v, page));
	if (hm_vmm_has_descriptors(p, (end - first) / unit))
		return -ENOMEM;
	for (page = first; page < end; page += unit) {
		hm_vmm_use(p, s->s.index, pos, &uses);
		park(p, v->map[page], uses);
		if (keep)
			handle_of_page(v, page)->flags |= HANDLE_CHOSEN;
	}
	hm_vmm_set_apart(v, first, end - first, true);
	__atomic_store_n(&b->right, b->right - (end - first) / unit, __ATOMIC_RELAXED);
	return 0;
}

bool hm_sparse_drop(struct pool *p, struct block *b)
{
	struct vmm *v = vmm_of(p);
	const uint32_t end = end_page(v, b);
	uint32_t page = first_page(v, b), uses;

	for (;; page += unit_pages(p)) {
		page = hm_vmm_find_apart(v, page, end, false);
		if (page >= end)
			break;
		if (hm_vmm_use(p, b->stream, b->pos, &uses))
			return false;
		park(p, v->map[page], uses);
		hm_vmm_set_apart(v, page, unit_pages(p), true);
		hm_pool_step(p, UNIT_WORK);
	}
	v->sparse->addresses -= block_bytes(b);
	if (hm_vmm_is_mapped(v, first_page(v, b), end_page(v, b)))
		add_idle(p, b);
	else
		delete_block(p, b);
	return true;
}
