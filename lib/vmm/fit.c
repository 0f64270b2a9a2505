// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The VMM pool at its limit: a new block strands less memory at its ends.
 *
 * A live block keeps every handle that it is in, and no large block can have the free rest of
 * a large handle. Below the limit the pool makes other memory instead. At the limit there is
 * none, so the pool splits a wholly free handle that a new block would cover in part. The pool
 * releases the handle, and makes it again at the same addresses in two or three parts. One part
 * is around the end of the block. The others stay wholly free, or are wholly the block's.
 *
 * Only complete memory is made again, so nothing waits. Parts are multiples of a grain, so a
 * pool has at most max= / grain of them. A split makes one or two handles more, and only a
 * release makes them fewer: splits cost calls of the driver in proportion to other releases.
 *
 * Another process can take the memory between the release and the creation. Then the addresses
 * become holes, the rest of the free block stays, and the allocation looks for another block.
 */
#include "provider/gate.h"
#include "vmm/grow.h"

/*
 * A pool is at its limit when less than this share of max= is left to be made. With 1/100
 * recordings take up to three times the calls of the driver, and none fails more rarely.
 */
#define LIMIT_LEFT	200
/*
 * A part is a multiple of this share of max=, rounded down to a power of two. Larger parts
 * strand more: with 1/450 two recordings fail at 1.03 times what they request.
 */
#define FIT_SHARE	900
/* A split handle is at most three. */
#define FIT_PARTS	3

static bool is_at_limit(const struct pool *p)
{
	const uint64_t held = hm_pool_held(p);

	return p->opt.max && held <= p->opt.max && p->opt.max - held < p->opt.max / LIMIT_LEFT;
}

/* Pages, a power of two. */
static uint32_t grain(const struct pool *p)
{
	const uint64_t pages = (p->opt.max >> vmm_of(p)->shift) / FIT_SHARE;

	return pages ? 1U << (31 - __builtin_clz((uint32_t)pages)) : 1;
}

/* Whether the handle of @m is ordinary memory, and wholly in BUSY @b. */
static bool is_within(const struct pool *p, const struct block *b, const struct mapping *m)
{
	const struct vmm *v = vmm_of(p);
	const struct handle *h = handle_at(v, m->handle);

	return !(h->flags & ~HANDLE_SMALL) && !m->half && h->mapping == v->map[m->page] &&
	       page_addr(v, m->page) >= b->addr &&
	       page_addr(v, m->page + h->pages) <= block_end(b);
}

/* Whether all work on BUSY @b is complete. Asks the driver, and does not wait. */
static bool is_done(struct pool *p, const struct block *b)
{
	if (!hm_block_done(p, b))
		hm_stream_ask(&p->order, p->order.streams[b->stream]);
	return hm_block_done(p, b);
}

/* Pages [@page, @end) of BUSY @b have no memory. The rest of @b is released. */
static void lose(struct pool *p, struct block *b, uint32_t page, uint32_t end)
{
	const struct vmm *v = vmm_of(p);
	const uint64_t from = page_addr(v, page), to = page_addr(v, end);
	struct block *rest;

	if (block_end(b) > to) {
		rest = hm_block_cut(p, b, (to - b->addr) >> UNIT_SHIFT);
		hm_block_release(p, rest);
	}
	if (b->addr < from) {
		rest = hm_block_cut(p, b, (from - b->addr) >> UNIT_SHIFT);
		hm_block_release(p, b);
		b = rest;
	}
	hm_block_delete(p, b);
}

/*
 * Makes [@at, @end) of BUSY @b anew, whose handle was released. A second try covers a driver
 * that fails once. A mapping that could not be undone keeps the addresses.
 */
static int make_part(struct pool *p, uint32_t at, uint32_t end, bool small)
{
	struct vmm *v = vmm_of(p);
	int err = hm_vmm_create(p, at, end - at);

	if (err && !v->map[at])
		err = hm_vmm_create(p, at, end - at);
	if (!err)
		hm_vmm_set_small(v, mapping_at(v, v->map[at])->handle, small);
	return err;
}

/*
 * Splits the handle around @addr, which is in BUSY @b, so that the smallest part has the page
 * of @addr. false: @b is gone.
 */
static bool split(struct pool *p, struct block *b, uint64_t addr)
{
	struct vmm *v = vmm_of(p);
	const uint32_t page = page_of(v, addr);
	const struct mapping m = *mapping_at(v, v->map[page]);
	const bool small = handle_at(v, m.handle)->flags & HANDLE_SMALL;
	const uint32_t end = m.page + handle_at(v, m.handle)->pages, unit = grain(p);
	const uint32_t from = m.page + ((page - m.page) & ~(unit - 1));
	/* An end at the first byte of a page is in no page. */
	const uint32_t to = from + (addr > page_addr(v, from) ? unit : 0);
	uint32_t at, next;

	if ((from == m.page && (to == from || to >= end)) || !is_within(p, b, &m) ||
	    !is_done(p, b) || hm_vmm_has_descriptors(p, FIT_PARTS) ||
	    !hm_vmm_unalias_handle(p, m.handle))
		return true;
	at = hm_vmm_empty(p, m.handle) ? end : m.page;
	for (; at < end; at = next) {
		next = at < from ? from : at < to && to < end ? to : end;
		if (make_part(p, at, next, small)) {
			lose(p, b, at, end);
			return false;
		}
	}
	/* The addresses were holes for a moment. */
	p->source->edge(p, b);
	return true;
}

bool hm_vmm_fit(struct pool *p, struct block *b, uint64_t addr, uint64_t units)
{
	const uint64_t end = addr + (units << UNIT_SHIFT);

	if (!is_at_limit(p) || vmm_of(p)->copying || p->opt.comm || p->opt.handle ||
	    b->flags & (BLOCK_GRAPH | BLOCK_WHOLE) ||
	    hm_gate_advice(p->provider, p->provider->granularity))
		return true;
	if (addr > b->addr && !split(p, b, addr))
		return false;
	return end == block_end(b) || split(p, b, end);
}
