// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The VMM pool: memory that stays (pin), and memory that goes while addresses
 * stay (sleep, wake).
 */
#include "vmm/vmm_impl.h"

static uint64_t bytes_of(const struct vmm *v, const struct handle *h)
{
	return (uint64_t)h->pages << v->shift;
}

int hm_vmm_pin(struct pool *p, struct block *b)
{
	struct vmm *v = vmm_of(p);
	uint32_t page = page_of(v, b->addr);
	uint32_t end = page_of(v, block_end(b) - 1);

	while (page <= end) {
		struct mapping *m = mapping_at(v, v->map[page]);
		struct handle *h = handle_at(v, m->handle);

		h->flags |= HANDLE_PINNED;
		page = m->page + h->pages;
	}
	return 0;
}

static int put_to_sleep(struct pool *p, struct handle *h)
{
	const struct hm_provider_ops *ops = p->provider->ops;
	struct vmm *v = vmm_of(p);
	uint64_t addr = page_addr(v, mapping_at(v, h->mapping)->page);
	int err;

	p->calls += 2;
	err = ops->unmap(p->provider, addr, bytes_of(v, h));
	if (err)
		return err;
	h->flags |= HANDLE_ASLEEP;
	err = hm_provider_release_handle(p->provider, h->handle, bytes_of(v, h));
	if (err) {
		/* Wake maps what is still there. */
		h->flags |= HANDLE_STUCK;
		return err;
	}
	hm_pool_unhold(p, bytes_of(v, h));
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
		    h->flags & (HANDLE_PINNED | HANDLE_ASLEEP |
				HANDLE_RESERVED))
			continue;
		one = put_to_sleep(p, h);
		err = err ? err : one;
	}
	return err;
}

static int wake_up(struct pool *p, struct handle *h)
{
	const struct hm_provider_ops *ops = p->provider->ops;
	struct vmm *v = vmm_of(p);
	struct mapping *m = mapping_at(v, h->mapping);
	uint64_t addr = page_addr(v, m->page);
	int err = 0;

	if (m->half) {
		p->calls++;
		err = ops->unmap(p->provider, addr, bytes_of(v, h));
		if (err)
			return err;
		m->half = false;
	}
	if (!(h->flags & HANDLE_STUCK)) {
		err = hm_pool_may_hold(p, bytes_of(v, h));
		if (err)
			return err;
		p->calls++;
		err = hm_provider_create_handle(p->provider, bytes_of(v, h), true,
						&h->handle);
		if (err)
			return err;
		hm_pool_hold(p, bytes_of(v, h));
	}
	p->calls += 2;
	err = ops->map(p->provider, addr, bytes_of(v, h), h->handle);
	if (err) {
		/* Memory without addresses until the next try. */
		h->flags |= HANDLE_STUCK;
		m->half = err == -EUCLEAN;
		return m->half ? -EIO : err;
	}
	h->flags &= ~(HANDLE_ASLEEP | HANDLE_STUCK);
	return 0;
}

int hm_vmm_wake(struct pool *p)
{
	struct vmm *v = vmm_of(p);
	int err = 0, one;
	uint32_t id;

	for (id = 1; id < v->handles.nr; id++) {
		struct handle *h = handle_at(v, id);

		if (!h->mapping || !(h->flags & HANDLE_ASLEEP))
			continue;
		one = wake_up(p, h);
		err = err ? err : one;
	}
	return err;
}
