// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The VMM pool: memory that stays, memory that goes while addresses stay
 * (sleep, wake), memory that others have too (export).
 */
#include <unistd.h>

#include "resource/vm.h"

static uint64_t bytes_of(const struct vm *v, const struct handle *h)
{
	return (uint64_t)h->pages << v->shift;
}

int hm_vm_pin(struct pool *p, struct block *b)
{
	struct vm *v = p->vm;
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
	struct vm *v = p->vm;
	uint64_t addr = page_addr(v, mapping_at(v, h->mapping)->page);
	int err;

	p->calls += 2;
	err = ops->unmap(p->provider, addr, bytes_of(v, h));
	if (err)
		return err;
	h->flags |= HANDLE_ASLEEP;
	err = ops->release(p->provider, h->handle);
	if (err) {
		/* Wake maps what is still there. */
		h->flags |= HANDLE_STUCK;
		return err;
	}
	hm_pool_unreserve(p, bytes_of(v, h));
	return 0;
}

int hm_vm_sleep(struct pool *p)
{
	struct vm *v = p->vm;
	int err = 0, one;
	uint32_t id;

	hm_vm_trim(p, 0);
	/* All are complete: what fails once is tried once more. */
	hm_vm_unalias(p, 0, 0);
	hm_vm_unalias(p, 0, 0);
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
	struct vm *v = p->vm;
	uint64_t addr = page_addr(v, mapping_at(v, h->mapping)->page);
	int err = 0;

	if (!(h->flags & HANDLE_STUCK)) {
		err = hm_pool_reserve(p, bytes_of(v, h));
		if (err)
			return err;
		p->calls++;
		err = ops->create(p->provider, bytes_of(v, h), true,
				  &h->handle);
		if (err) {
			hm_pool_unreserve(p, bytes_of(v, h));
			return err;
		}
	}
	p->calls += 2;
	err = ops->map(p->provider, addr, bytes_of(v, h), h->handle);
	if (err) {
		/* Memory without addresses until the next try. */
		h->flags |= HANDLE_STUCK;
		return err;
	}
	h->flags &= ~(HANDLE_ASLEEP | HANDLE_STUCK);
	return 0;
}

int hm_vm_wake(struct pool *p)
{
	struct vm *v = p->vm;
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

int hm_vm_export(struct pool *p, struct block *b, struct hm_ctl_export *arg)
{
	struct vm *v = p->vm;
	struct handle *h = handle_of_page(v, page_of(v, b->addr));
	size_t room = arg->nr;
	int err;

	arg->nr = 1;
	if (!room)
		return hm_error(-ENOSPC, "export: there is 1");
	err = p->provider->ops->export_fd(p->provider, h->handle, arg->fds);
	if (err)
		return err;
	arg->segments[0] = (struct hetmem_segment){
		.base = (void *)(uintptr_t)b->addr, .offset = 0,
		.length = block_bytes(b),
	};
	h->flags |= HANDLE_PINNED | HANDLE_EXPORTED;
	__atomic_store_n(&b->flags, b->flags | BLOCK_EXPORTED,
			 __ATOMIC_RELEASE);
	return 0;
}

void hm_vm_drop(struct pool *p, struct block *b)
{
	struct vm *v = p->vm;
	uint32_t page = page_of(v, b->addr);
	struct vm_free f = {
		.handle = mapping_at(v, v->map[page])->handle, .page = page,
		.pages = handle_of_page(v, page)->pages,
		.block = block_id(p, b),
	};
	bool left;

	/* Without success it is free memory; nobody else has it for long. */
	__atomic_store_n(&b->flags, b->flags & ~BLOCK_EXPORTED,
			 __ATOMIC_RELEASE);
	if (hm_vm_release(p, &f, &left) && left)
		hm_block_release(p, b);
}
