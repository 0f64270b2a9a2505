// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The VMM pool: memory that goes while addresses stay (sleep, wake).
 */
#include <stdio.h>

#include "vmm/pin.h"
#include "vmm/ring.h"
#include "vmm/sparse.h"
#include "vmm/spill.h"

static bool lacks_memory(const struct handle *h)
{
	return h->mapping && (h->flags & (HANDLE_ASLEEP | HANDLE_STUCK)) == HANDLE_ASLEEP;
}

/* The addresses of @h have no memory from now on, wholly or in part. */
static int unmap(struct pool *p, struct handle *h)
{
	struct vmm *v = vmm_of(p);
	struct mapping *m = mapping_at(v, h->mapping);
	int err;

	p->calls++;
	err = p->provider->ops->unmap(p->provider, page_addr(v, m->page), bytes_of(p, h->pages));
	if (err)
		return err;
	m->half = false;
	h->flags |= HANDLE_ASLEEP;
	return 0;
}

/* Gives back the memory of @h, which is awake, or asleep and stuck. */
static int put_to_sleep(struct pool *p, struct handle *h)
{
	int err = 0;

	if (!(h->flags & HANDLE_ASLEEP) || mapping_at(vmm_of(p), h->mapping)->half)
		err = unmap(p, h);
	if (err)
		return err;
	p->calls++;
	err = hm_provider_release_handle(p->provider, h->handle, bytes_of(p, h->pages));
	if (err) {
		/* Wake maps what is still there. */
		h->flags |= HANDLE_STUCK;
		return err;
	}
	h->flags &= ~(HANDLE_STUCK | HANDLE_SHARED);
	hm_pool_unhold(p, bytes_of(p, h->pages));
	return 0;
}

int hm_vmm_sleep(struct pool *p)
{
	struct vmm *v = vmm_of(p);
	int err = 0, one;
	uint32_t id;

	hm_vmm_trim(p, 0);
	/* All are complete: what fails once is tried once more. */
	hm_vmm_unalias_all(p);
	hm_vmm_unalias_all(p);
	if (v->nr_aliases)
		err = hm_error(-EIO, "sleep: %u addresses could not be unmapped, whose memory stays",
			       v->nr_aliases);
	for (id = 1; id < v->handles.nr; id++) {
		struct handle *h = handle_at(v, id);

		if (!h->mapping || h->maps != 1 || !h->pages ||
		    h->flags & (HANDLE_PINNED | HANDLE_HOST | HANDLE_TORN) ||
		    lacks_memory(h))
			continue;
		one = put_to_sleep(p, h);
		err = err ? err : one;
	}
	return err;
}

/* Memory that was held at once is not refused to a wake of all, whatever max= is now. */
static bool is_bounded(const struct hm_tags *t, uint64_t bytes)
{
	const uint64_t peak = t ? __atomic_load_n(&t->held_peak, __ATOMIC_RELAXED) : 0;

	return t && (t->bounded || hm_tags_held(t) + bytes > peak);
}

static int make_memory(struct pool *p, struct handle *h)
{
	int err = 0;

	hm_tags_lock(p->tags);
	if (is_bounded(p->tags, bytes_of(p, h->pages)))
		err = hm_pool_may_hold(p, bytes_of(p, h->pages));
	if (!err) {
		p->calls++;
		err = hm_provider_create_handle(p->provider, bytes_of(p, h->pages), true,
						&h->handle);
	}
	if (!err) {
		h->flags |= HANDLE_STUCK;
		hm_pool_hold(p, bytes_of(p, h->pages));
	}
	hm_tags_unlock(p->tags);
	return err;
}

/* Maps @h, which has memory. */
static int wake_up(struct pool *p, struct handle *h)
{
	struct vmm *v = vmm_of(p);
	struct mapping *m = mapping_at(v, h->mapping);
	int err = m->half ? unmap(p, h) : 0;

	if (err)
		return err;
	p->calls += 2;
	err = p->provider->ops->map(p->provider, page_addr(v, m->page), bytes_of(p, h->pages),
				    h->handle);
	if (err) {
		m->half = err == -EUCLEAN;
		return m->half ? -EIO : err;
	}
	h->flags &= ~(HANDLE_ASLEEP | HANDLE_STUCK);
	return 0;
}

/*
 * Handles of 2 MiB take as long to make and to map as large ones do: on an H200 some 50 us
 * each, 190 ms for 8 GiB. So a wake makes one handle of those that are wholly in one live
 * block, up to this size; they become free together.
 */
#define MERGED_BYTES	((uint64_t)256 << 20)
/* Instructions, about: of a merge, and of a look at a block. */
#define MERGE_WORK	512
#define LOOK_WORK	32

static bool can_merge(const struct vmm *v, const struct handle *h)
{
	return (h->flags & ~HANDLE_SMALL) == HANDLE_ASLEEP && h->maps == 1 && !h->aliases &&
	       !mapping_at(v, h->mapping)->half;
}

void hm_vmm_merge_next(struct pool *p, struct handle *h, uint32_t id)
{
	struct vmm *v = vmm_of(p);
	struct handle *next = handle_at(v, id);
	const uint32_t m = next->mapping, page = mapping_at(v, m)->page;
	const uint32_t last = page + next->pages - 1;
	const bool ends_run = next->front;

	hm_vmm_remove_front(v, id);
	hm_vmm_set_pages(v, page, next->pages, h->mapping);
	/* A run may have ended here before. Unmapping clears the ends of a handle only. */
	v->head[page] = 0;
	v->tail[page - 1] = 0;
	h->pages += next->pages;
	*next = (struct handle){ 0 };
	hm_table_put(&v->handles, id);
	hm_table_put(&v->mappings, m);
	if (ends_run && v->tail[last] && block_state(block_at(p, v->tail[last])) != BLOCK_NONE)
		hm_vmm_add_front(p, block_at(p, v->tail[last]));
}

/* The handles that are wholly in the live block @b. May release the lock. */
static void merge_block(struct pool *p, const struct block *b)
{
	struct vmm *v = vmm_of(p);
	const uint64_t addr = b->addr;
	const uint32_t end = page_of(v, block_end(b));
	uint32_t page = page_of(v, addr + page_addr(v, 1) - v->base - 1);
	struct handle *into = NULL, *h;

	/* What is freed meanwhile can be cut, and no longer is one. */
	while (page < end && block_state(b) == BLOCK_LIVE && b->addr == addr &&
	       !block_is_sparse(b)) {
		const struct mapping *m = mapping_at(v, v->map[page]);
		uint32_t next;

		if (hm_vmm_is_apart(v, page)) {
			into = NULL;
			page += hm_vmm_apart(v, page);
			continue;
		}
		h = handle_at(v, m->handle);
		next = m->page + h->pages;
		if (m->page != page || next > end || !can_merge(v, h)) {
			into = NULL;
		} else if (into && into->flags == h->flags &&
			   bytes_of(p, into->pages) + bytes_of(p, h->pages) <= MERGED_BYTES) {
			hm_vmm_merge_next(p, into, m->handle);
		} else {
			into = h;
		}
		page = next;
		hm_pool_step(p, MERGE_WORK);
	}
}

static void merge_all(struct pool *p)
{
	uint32_t id;

	for (id = 1; id < p->blocks.nr; id++) {
		if (block_state(block_at(p, id)) == BLOCK_LIVE)
			merge_block(p, block_at(p, id));
		hm_pool_step(p, LOOK_WORK);
	}
}

/* Handles that are wholly in the free block @b lose their addresses, the last first. */
static void forget_block(struct pool *p, struct block *b)
{
	struct vmm *v = vmm_of(p);
	const uint32_t first = page_of(v, b->addr + page_addr(v, 1) - v->base - 1);
	uint32_t page = page_of(v, block_end(b));
	bool left = true;

	hm_block_take(p, b);
	while (left && page > first) {
		const uint32_t last = page - 1;
		const struct mapping *m = mapping_at(v, v->map[last]);
		const struct handle *h = handle_at(v, m->handle);
		const struct vmm_free f = {
			.handle = m->handle, .page = m->page, .pages = h->pages,
			.block = block_id(p, b),
		};

		if (m->page < first)
			break;
		page = m->page;
		if (m->page + h->pages == last + 1 && can_merge(v, h) &&
		    !hm_vmm_discard(p, &f, &left))
			break;
	}
	if (left)
		hm_block_release(p, b);
}

/* Blocks that were freed in the sleep need no memory. Releases the lock now and then. */
static void forget_free(struct pool *p)
{
	const uint64_t least = page_addr(vmm_of(p), 1) - vmm_of(p)->base;
	unsigned int i;

	hm_pool_settle_all(p);
	for (i = 0; i < p->order.nr * NR_ZONES; i++) {
		struct arena *a = &stream_at(p, i / NR_ZONES)->arenas[i % NR_ZONES];
		struct block *b;

		a->walks[WALK_TRIM] = 0;
		while ((b = hm_arena_walk(p, a, WALK_TRIM))) {
			if (block_bytes(b) >= least)
				forget_block(p, b);
			hm_pool_step(p, MERGE_WORK);
		}
		a->walks[WALK_TRIM] = 0;
		hm_pool_step(p, LOOK_WORK);
	}
}

/* The text names the bytes that are missing, before they are given back. */
static int no_memory(uint64_t need, uint64_t made)
{
	char reason[160];

	snprintf(reason, sizeof(reason), "%s", hetmem_last_error());
	return hm_error(-ENOMEM, "wake: %llu bytes are needed, %llu of them could be made, %llu are missing: %s",
			(unsigned long long)need, (unsigned long long)made,
			(unsigned long long)(need - made), reason);
}

/* Memory for all comes before anything is mapped. After an error the caller sleeps again. */
int hm_vmm_wake(struct pool *p)
{
	struct vmm *v = vmm_of(p);
	uint64_t need = 0, made = 0;
	int err = 0;
	uint32_t id;

	forget_free(p);
	merge_all(p);
	for (id = 1; id < v->handles.nr; id++)
		if (lacks_memory(handle_at(v, id)))
			need += bytes_of(p, handle_at(v, id)->pages);
	for (id = 1; id < v->handles.nr; id++) {
		if (!lacks_memory(handle_at(v, id)))
			continue;
		err = make_memory(p, handle_at(v, id));
		if (err)
			return err == -ENOMEM ? no_memory(need, made) : err;
		made += bytes_of(p, handle_at(v, id)->pages);
	}
	for (id = 1; id < v->handles.nr && !err; id++) {
		struct handle *h = handle_at(v, id);

		if (h->mapping && h->flags & HANDLE_ASLEEP)
			err = wake_up(p, h);
	}
	return err;
}
