// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Ranges that observers are told of: addresses that lose their memory by a sleep, or get some by
 * a wake. Neighbours are one range. Units of sparse blocks are ranges of their own.
 */
#include <stdlib.h>

#include "vmm/spill.h"

/* Instructions, about, of a look at a handle. */
#define LOOK_WORK	64

static bool is_told(const struct handle *h, bool sleep)
{
	if (h->flags & (HANDLE_PINNED | HANDLE_HOST | HANDLE_TORN))
		return false;
	return !(h->flags & HANDLE_ASLEEP) == sleep;
}

static struct told *add_told(struct hm_spill *sp, uint64_t addr, uint64_t bytes)
{
	struct told *more = realloc(sp->told, (sp->nr_told + 1) * sizeof(*more));

	if (!more)
		return NULL;
	sp->told = more;
	more += sp->nr_told++;
	*more = (struct told){ addr, bytes };
	return more;
}

/* Units of sparse blocks: by handle, since their addresses are many. */
static int find_sparse_told(struct pool *p, bool sleep)
{
	struct vmm *v = vmm_of(p);
	const struct handle *h;
	uint32_t id, page;

	for (id = 1; id < v->handles.nr; id++) {
		h = handle_at(v, id);
		page = h->mapping ? mapping_at(v, h->mapping)->page : 0;
		if (page > v->nr && is_told(h, sleep) &&
		    !add_told(spill_of(p), page_addr(v, page), bytes_of(p, h->pages)))
			return hm_error(-ENOMEM, "spill: no host memory");
	}
	return 0;
}

int hm_spill_find_told(struct pool *p, bool sleep)
{
	struct hm_spill *sp = spill_of(p);
	struct vmm *v = vmm_of(p);
	struct told *last = NULL;
	uint32_t page = 0;

	sp->nr_told = 0;
	while (page < v->nr) {
		const struct mapping *m = mapping_at(v, v->map[page]);
		const struct handle *h = handle_at(v, m->handle);
		const uint32_t pages = v->map[page] ? h->pages : 1;

		if (!v->map[page] || h->mapping != v->map[page] || !is_told(h, sleep)) {
			last = NULL;
		} else if (last) {
			last->bytes += bytes_of(p, pages);
		} else {
			last = add_told(sp, page_addr(v, page), bytes_of(p, pages));
			if (!last)
				return hm_error(-ENOMEM, "spill: no host memory");
		}
		page += pages;
		hm_pool_step(p, LOOK_WORK);
	}
	return v->sparse ? find_sparse_told(p, sleep) : 0;
}
