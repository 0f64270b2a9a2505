// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The VMM pool: a second address of a block. It is a reservation of its own, where the handles
 * that the block is in are mapped again, in the same order: the block can begin inside a handle.
 * The handles are pinned as long as they are mapped here, so memory and contents stay. A block
 * with replicas has the pin without the address. Nothing of it is a block: see core/alias.h. A
 * freed alias waits in the list until its last use is complete; then it is unmapped.
 */
#include <stdlib.h>

#include "pool/hash.h"
#include "vmm/ring.h"
#include "vmm/sparse.h"
#include "vmm/spill.h"

/**
 * struct hm_other - a second address
 * @alias: the program's address
 * @next: of its list; @link: what points to it, while it is live
 * @base, @bytes: the reservation, 0: none
 * @uses: once it is freed: after these uses it can be unmapped
 * @nr: handles; @mapped: how many of them are, from the first on
 */
struct hm_other {
	struct hm_alias alias;
	struct hm_other *next, **link;
	struct pool *p;
	uintptr_t base;
	size_t bytes;
	uint32_t uses;
	uint32_t nr, mapped;
	struct {
		uint32_t handle;
		uint64_t offset;
	} parts[];
};

/**
 * struct hm_others - all of a pool
 * @live: the program has them
 * @freed, @last, @nr_freed: the program freed them: the next one to look at, the last one
 */
struct hm_others {
	struct hm_other *live;
	struct hm_other *freed, *last;
	unsigned int nr_freed;
};

/* Freed aliases that a call looks at with the lock; instructions of a look, about. */
#define REAP_LOOKS	64
#define REAP_WORK	256

static void add_live(struct hm_others *all, struct hm_other *o)
{
	o->next = all->live;
	o->link = &all->live;
	if (o->next)
		o->next->link = &o->next;
	all->live = o;
}

static void remove_live(struct hm_other *o)
{
	*o->link = o->next;
	if (o->next)
		o->next->link = o->link;
}

static void add_freed(struct hm_others *all, struct hm_other *o)
{
	o->next = NULL;
	*(all->freed ? &all->last->next : &all->freed) = o;
	all->last = o;
	all->nr_freed++;
}

static struct hm_other *take_freed(struct hm_others *all)
{
	struct hm_other *o = all->freed;

	all->freed = o->next;
	all->nr_freed--;
	return o;
}

/* Unmaps as much as the driver lets it. Returns whether nothing is left. */
static bool unmap_other(struct pool *p, struct hm_other *o)
{
	struct hm_provider *from = p->provider;

	while (o->mapped) {
		const uint32_t i = o->mapped - 1;
		struct handle *h = handle_at(vmm_of(p), o->parts[i].handle);

		p->calls++;
		if (o->base &&
		    from->ops->unmap(from, o->base + o->parts[i].offset, bytes_of(p, h->pages)))
			return false;
		hm_vmm_unlend(h);
		o->mapped--;
	}
	if (o->base) {
		p->calls++;
		if (from->ops->unreserve(from, o->base, o->bytes))
			return false;
		o->base = 0;
	}
	return true;
}

/* Looks at @nr freed ones. Those that are left are looked at after all others. */
static void reap(struct pool *p, unsigned int nr)
{
	struct hm_others *all = vmm_of(p)->others;
	struct hm_other *o;

	for (; nr && all && all->freed; nr--) {
		o = take_freed(all);
		if (hm_vmm_uses_done(p, &o->uses) && unmap_other(p, o))
			free(o);
		else
			add_freed(all, o);
	}
}

void hm_vmm_unpin_others(struct pool *p)
{
	if (vmm_of(p)->others)
		reap(p, vmm_of(p)->others->nr_freed);
}

void hm_vmm_reap_others(struct pool *p)
{
	if (!p->asleep)
		reap(p, REAP_LOOKS);
}

void hm_vmm_reap_all_others(struct pool *p)
{
	const struct hm_others *all = vmm_of(p)->others;
	unsigned int left = all ? all->nr_freed : 0;

	for (; left && !p->asleep; left -= left < REAP_LOOKS ? left : REAP_LOOKS) {
		hm_vmm_reap_others(p);
		hm_pool_step(p, REAP_LOOKS * REAP_WORK);
	}
}

static void end_others(struct pool *p, struct hm_other *o, bool forget)
{
	struct hm_other *next;

	for (; o; o = next) {
		next = o->next;
		hm_alias_remove(&o->alias);
		if (!forget)
			hm_retry_once(!unmap_other(p, o));
		free(o);
	}
}

void hm_vmm_free_others(struct pool *p, bool forget)
{
	struct hm_others *all = vmm_of(p)->others;

	if (!all)
		return;
	end_others(p, all->live, forget);
	end_others(p, all->freed, forget);
	free(all);
	vmm_of(p)->others = NULL;
}

static int free_other(struct hm_alias *alias, hetmem_stream stream)
{
	struct hm_other *o = hm_container(alias, struct hm_other, alias);
	struct pool *p = o->p;
	struct pool_stream *s;
	uint64_t pos = 0;
	int err;

	if (stream == HETMEM_STREAM_UNKNOWN)
		return hm_error(-EINVAL, "free: give the stream of the last use of an alias");
	err = hm_pool_lock_stream(p, stream, &s);
	if (err)
		return err;
	if (s->graph)
		err = hm_error(-EBUSY, "free: a capture frees no alias");
	stream_lock(s);
	if (s->s.index)
		pos = hm_stream_next_pos(&s->s);
	stream_unlock(s);
	if (!err)
		err = hm_vmm_use(p, s->s.index, pos, &o->uses);
	if (!err) {
		remove_live(o);
		add_freed(vmm_of(p)->others, o);
	}
	hm_vmm_reap_others(p);
	pthread_mutex_unlock(&p->lock);
	return err;
}

static bool is_pin(const struct hm_ctl_move *arg)
{
	return arg->move == HM_MOVE_PIN;
}

static const char *call_of(const struct hm_ctl_move *arg)
{
	return is_pin(arg) ? "replicate" : "alias";
}

static struct block *find(struct pool *p, const struct hm_ctl_move *arg, size_t *size, int *err)
{
	const char *what = call_of(arg);
	const struct vmm *v = vmm_of(p);
	struct block *b = hm_block_find_live(p, (uintptr_t)arg->ptr);
	uint32_t page, end;

	*err = 0;
	if (p->asleep)
		*err = hm_pool_asleep();
	else if (!b)
		*err = hm_error(-EINVAL, "%s: %p is not the beginning of a live block", what,
				arg->ptr);
	else if (block_is_sparse(b))
		*err = hm_error(-EOPNOTSUPP, "%s: memory of a sparse block comes and goes", what);
	else if (is_pin(arg) && p->res.device < 0)
		*err = hm_error(-EOPNOTSUPP, "%s: the block is of no device", what);
	else if (is_pin(arg) && arg->device == p->res.device && !p->provider->ops->device)
		*err = hm_error(-EINVAL, "%s: the block is on device %d", what, arg->device);
	else if (arg->size > block_bytes(b) - b->slack)
		*err = hm_error(-EINVAL, "%s: %p has %llu bytes", what, arg->ptr,
				(unsigned long long)(block_bytes(b) - b->slack));
	else if (b->flags & BLOCK_SPILLED || (b->flags & BLOCK_MOVABLE && hm_movable_moves(p, b)))
		*err = hm_error(-EBUSY, "%s: the block is on the host or moves: hetmem_fetch()", what);
	else if (b->flags & BLOCK_GRAPH)
		*err = hm_error(-EBUSY, "%s: the block belongs to a capture or a private pool",
				what);
	if (*err)
		return NULL;
	*size = is_pin(arg) ? block_bytes(b) - b->slack : arg->size;
	end = page_of(v, b->addr + *size - 1) + 1;
	for (page = first_page(v, b); page < end; page = mapping_at(v, v->map[page])->page +
	     handle_of_page(v, page)->pages) {
		if (hm_vmm_is_apart(v, page))
			*err = hm_error(-EOPNOTSUPP, "%s: the block gave back memory here",
					what);
		else if (handle_of_page(v, page)->flags & (HANDLE_HOST | HANDLE_TORN | HANDLE_MOVES))
			*err = hm_error(-EBUSY, "%s: memory beside the block moves", what);
		if (*err)
			return NULL;
	}
	return b;
}

/* The handles of @size bytes at @addr; their offsets begin with the first one. */
static struct hm_other *list_handles(struct pool *p, uint64_t addr, size_t size)
{
	const struct vmm *v = vmm_of(p);
	const uint32_t first = mapping_at(v, v->map[page_of(v, addr)])->page;
	const uint32_t end = page_of(v, addr + size - 1) + 1;
	const struct handle *h;
	struct hm_other *o = calloc(1, sizeof(*o) + (end - first) * sizeof(o->parts[0]));
	uint32_t page;

	if (!o) {
		hm_error(-ENOMEM, "alias: no host memory");
		return NULL;
	}
	for (page = first; page < end; page += h->pages) {
		h = handle_of_page(v, page);
		o->parts[o->nr].handle = mapping_at(v, v->map[page])->handle;
		o->parts[o->nr++].offset = o->bytes;
		o->bytes += bytes_of(p, h->pages);
	}
	o->p = p;
	o->alias.addr = addr - page_addr(v, first);
	o->alias.size = size;
	o->alias.free = free_other;
	return o;
}

/* After an error some can be mapped. */
static int map_other(struct pool *p, struct hm_other *o, bool read)
{
	struct hm_provider *from = p->provider;
	int err;

	p->calls++;
	err = from->ops->reserve(from, o->bytes, from->granularity, &o->base);
	if (err) {
		o->base = 0;
		return err;
	}
	while (!err && o->mapped < o->nr) {
		struct handle *h = handle_at(vmm_of(p), o->parts[o->mapped].handle);

		p->calls += 2;
		err = (read ? from->ops->map_read : from->ops->map)
			(from, o->base + o->parts[o->mapped].offset, bytes_of(p, h->pages), h->handle);
		if (err && err != -EUCLEAN)
			break;
		hm_vmm_lend(h);
		o->mapped++;
	}
	return err == -EUCLEAN ? -EIO : err;
}

/* As map_other(), without addresses. */
static void pin_other(struct pool *p, struct hm_other *o)
{
	for (; o->mapped < o->nr; o->mapped++)
		hm_vmm_lend(handle_at(vmm_of(p), o->parts[o->mapped].handle));
}

int hm_vmm_make_other(struct pool *p, struct hm_ctl_move *arg)
{
	const bool read = arg->flags & HETMEM_ALIAS_READ;
	struct vmm *v = vmm_of(p);
	struct hm_other *o = NULL;
	const struct block *b;
	size_t size = 0;
	int err;

	if (read && !p->provider->ops->map_read)
		return hm_error(-EOPNOTSUPP, "alias: %s cannot map for reading only",
				p->provider->ops->name);
	pthread_mutex_lock(&p->lock);
	hm_vmm_reap_others(p);
	b = find(p, arg, &size, &err);
	if (b && !v->others) {
		v->others = calloc(1, sizeof(*v->others));
		if (!v->others)
			err = hm_error(-ENOMEM, "%s: no host memory", call_of(arg));
	}
	if (b && !err) {
		o = list_handles(p, b->addr, size);
		err = !o ? -ENOMEM : is_pin(arg) ? 0 : map_other(p, o, read);
	}
	if (o && is_pin(arg)) {
		pin_other(p, o);
		arg->device = p->res.device;
		arg->size = size;
	}
	if (o && !err) {
		add_live(v->others, o);
		o->alias.addr += o->base;
		arg->alias = &o->alias;
	} else if (o) {
		/* Retry later: the driver can have refused to unmap some. */
		add_freed(v->others, o);
		hm_vmm_reap_others(p);
	}
	pthread_mutex_unlock(&p->lock);
	return err;
}
