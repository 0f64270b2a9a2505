// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The VMM pool: rings. A ring is a block with room of its own size, in whole handles, which are
 * mapped in the room again, in the same order. These mappings are in no list of aliases, so
 * nothing unmaps them. The handles are pinned, so nothing moves them. A freed ring is ordinary
 * free memory: the second mappings become aliases, and are unmapped when its last use is
 * complete.
 */
#include "vmm/grow.h"
#include "vmm/ring.h"
#include "vmm/sparse.h"

int hm_ring_check(const struct pool *p, const struct hm_ctl_alloc *arg)
{
	if (p->opt.comm)
		return hm_error(-EOPNOTSUPP, "alloc_with: a pool with comm=on has no rings");
	if (arg->size % p->provider->granularity)
		return hm_error(-EINVAL, "alloc_with: a ring has a multiple of %zu bytes",
				p->provider->granularity);
	return 0;
}

/* Unmaps what was mapped for pages [@page, @end). */
static void unmap_again(struct pool *p, uint32_t page, uint32_t end, uint32_t nr)
{
	struct vmm *v = vmm_of(p);

	for (; page < end; page += handle_of_page(v, page)->pages)
		hm_vmm_unmap_new(p, page + nr);
}

int hm_ring_map(struct pool *p, const struct block *b)
{
	struct vmm *v = vmm_of(p);
	const uint32_t first = first_page(v, b), end = end_page(v, b), nr = end - first;
	uint32_t page;
	int err = 0;

	hm_vmm_clear(p, end, nr);
	for (page = first; page < end; page += handle_of_page(v, page)->pages) {
		err = hm_vmm_alias(p, mapping_at(v, v->map[page])->handle, page + nr);
		if (err)
			break;
	}
	/* The failed one is not mapped, or is an alias that waits to be unmapped. */
	if (err) {
		unmap_again(p, first, page, nr);
		return err == -EUCLEAN ? -EIO : err;
	}
	for (page = first; page < end; page += handle_of_page(v, page)->pages) {
		hm_vmm_set_alias(v, v->map[page + nr], false);
		handle_of_page(v, page)->flags |= HANDLE_RING;
		hm_vmm_lend(handle_of_page(v, page));
	}
	return 0;
}

bool hm_ring_drop(struct pool *p, struct block *b)
{
	struct vmm *v = vmm_of(p);
	const uint32_t first = first_page(v, b), nr = end_page(v, b) - first;
	uint32_t page, uses;

	if (hm_vmm_has_descriptors(p, nr))
		return false;
	for (page = first; page < first + nr; page += handle_of_page(v, page)->pages) {
		hm_vmm_use(p, b->stream, b->pos, &uses);
		mapping_at(v, v->map[page + nr])->uses = uses;
		hm_vmm_set_alias(v, v->map[page + nr], true);
		handle_of_page(v, page)->flags &= ~HANDLE_RING;
		hm_vmm_unlend(handle_of_page(v, page));
	}
	hm_vmm_set_apart(v, first + nr, nr, false);
	__atomic_store_n(&b->flags, block_zone(b), __ATOMIC_RELEASE);
	hm_block_release(p, b);
	return true;
}
