// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Sparse blocks: addresses are allocated, and units of them committed and decommitted on
 * streams. vmm/sparse.c has the memory. This has the order of streams, the counts and check
 * mode. A commit is the allocation of units, and a decommit the free of them.
 */
#include <stdio.h>

#include "driver/check.h"
#include "pool/graph.h"
#include "pool/hash.h"
#include "pool/show.h"
#include "pool/sparse.h"

/* Ranges that are listed in one hold of the lock. */
#define LISTED	64

/* As hm_pool_attempt() for @s; -ENOMEM is explained. */
static int attempt(struct pool *p, struct pool_stream *s,
		   int (*one)(struct pool *p, struct pool_stream *s, void *arg),
		   void *arg, const char *what, size_t size)
{
	const uint64_t wait_ns = p->order.wait_ns;
	struct hm_stream *waited = NULL;
	int err;

	s->pins++;
	err = hm_pool_attempt(p, s, size, one, arg, &waited);
	s->pins--;
	return err != -ENOMEM ? err :
		hm_pool_explain(p, s, what, size, err, p->order.wait_ns - wait_ns, waited);
}

static int alloc_attempt(struct pool *p, struct pool_stream *s, void *arg)
{
	struct hm_ctl_alloc *a = arg;
	struct block *b;
	int err;

	if (p->asleep)
		return hm_pool_asleep();
	if (s->graph)
		return hm_error(-EBUSY, "alloc_with: a capture has no sparse blocks");
	err = p->source->sparse(p, s, a->reserve, &b);
	if (err)
		return err;
	a->ptr = (void *)(uintptr_t)b->addr;
	hm_pool_give(p, s, b, a->reserve);
	return 0;
}

int hm_pool_alloc_sparse(struct pool *p, struct hm_ctl_alloc *arg)
{
	struct pool_stream *s;
	int err;

	if (!p->source->sparse || p->whole || p->opt.comm)
		return hm_error(-EOPNOTSUPP, "alloc_with: only a pool over vmm() without export= and comm=on has sparse blocks");
	if (arg->align > p->provider->granularity)
		return hm_error(-EINVAL, "alloc_with: a sparse block is aligned to %zu",
				p->provider->granularity);
	if (arg->reserve > BLOCK_MAX - HM_POOL_UNIT_MAX)
		return hm_error(-ENOMEM, "alloc_with: more than there can be");
	err = hm_pool_lock_stream(p, arg->stream, &s);
	if (err)
		return err;
	err = attempt(p, s, alloc_attempt, arg, "alloc_with of", arg->reserve);
	p->failed += err != 0;
	hm_pool_show(p);
	pthread_mutex_unlock(&p->lock);
	return err;
}

/* Whether a capture has used @b: its graph can be launched again. */
static bool is_captured(struct pool *p, const struct pool_stream *s, const struct block *b)
{
	uint32_t id = b->flags & BLOCK_USED ? b->left : 0;

	for (; id; id = use_at(p, id)->next)
		if (stream_at(p, use_at(p, id)->stream)->graph)
			return true;
	return s->graph || hm_block_owner(p, b)->graph;
}

static struct block *find_sparse(struct pool *p, const char *what, const void *ptr, int *err)
{
	struct block *b = hm_block_find_live(p, (uintptr_t)ptr);

	if (b && block_is_sparse(b))
		return b;
	*err = hm_error(-EINVAL, "%s: %p is not the beginning of a live sparse block", what, ptr);
	return NULL;
}

/* The live sparse block of @arg, with the end of its range in *@to; NULL and *@err. */
static struct block *find(struct pool *p, struct pool_stream *s, const struct hm_ctl_shrink *arg,
			  uint64_t *to, int *err)
{
	const uint64_t unit = p->opt.unit ? p->opt.unit : HM_POOL_UNIT;
	const char *what = arg->what == HM_PART_COMMIT ? "commit" : "decommit";
	struct block *b;
	uint64_t asked;

	if (p->asleep) {
		*err = hm_pool_asleep();
		return NULL;
	}
	b = find_sparse(p, what, arg->ptr, err);
	if (!b)
		return NULL;
	asked = block_bytes(b) - b->slack;
	*to = arg->offset + arg->length;
	*err = 0;
	if (arg->offset % unit || (*to % unit && *to != asked))
		*err = hm_error(-EINVAL, "%s: offset and length are multiples of unit=, %llu bytes",
				what, (unsigned long long)unit);
	else if (*to > block_bytes(b))
		*err = hm_error(-EINVAL, "%s: %p has %llu bytes", what, arg->ptr,
				(unsigned long long)asked);
	else if (is_captured(p, s, b))
		*err = hm_error(-EBUSY, "%s: a stream of the block is being captured", what);
	*to = (*to + unit - 1) / unit * unit;
	return *err ? NULL : b;
}

/* Counts what is requested of @s: @bytes more, or less. */
static void count(struct pool *p, struct pool_stream *s, uint64_t bytes, bool more)
{
	stream_lock(s);
	if (more)
		stream_add_requested(s, bytes);
	else
		stream_sub_requested(s, bytes);
	stream_unlock(s);
	hm_pool_publish(p, s);
}

static int commit_attempt(struct pool *p, struct pool_stream *s, void *data)
{
	struct hm_ctl_shrink *arg = data;
	uint64_t to;
	struct block *b;
	int err;

	b = find(p, s, arg, &to, &err);
	if (!b)
		return err;
	/* First, since it can fail. A use that is recorded in vain does no harm. */
	err = hm_pool_use(p, b, s);
	if (err)
		return err;
	err = p->source->commit(p, s, b, arg->offset, to, HM_COMMIT_HERE);
	if (err == -EAGAIN) {
		hm_pool_make_ready(p);
		/* The lock was released. */
		b = find(p, s, arg, &to, &err);
		if (!b)
			return err;
		err = -ENOMEM;
		if (!p->opt.reuse_order)
			err = p->source->commit(p, s, b, arg->offset, to, HM_COMMIT_FREE);
		if (err == -ENOMEM) {
			if (s->s.index)
				hm_pool_claim(p, s);
			b = find(p, s, arg, &to, &err);
			if (b)
				err = p->source->commit(p, s, b, arg->offset, to, HM_COMMIT_ANY);
		}
	}
	if (!err) {
		arg->counted = to - arg->offset;
		count(p, s, arg->counted, true);
	}
	return err;
}

/* Tells check mode that bytes of @b are freed on @stream. */
static void tell_decommit(struct pool *p, const struct block *b, const struct hm_ctl_shrink *arg)
{
	struct hm_context saved;
	bool entered;

	entered = p->res.device >= 0 && !hm_context_enter(p->res.hm, p->res.device, &saved);
	hm_check_free(p->res.hm, (char *)(uintptr_t)b->addr + arg->offset, arg->length,
		      arg->stream);
	if (entered)
		hm_context_leave(p->res.hm, &saved);
}

static int decommit(struct pool *p, struct pool_stream *s, struct hm_ctl_shrink *arg)
{
	uint64_t to, pos = 0;
	struct block *b;
	int err;

	b = find(p, s, arg, &to, &err);
	if (!b)
		return err;
	stream_lock(s);
	if (s->s.index)
		pos = hm_stream_next_pos(&s->s);
	stream_unlock(s);
	err = p->source->decommit(p, s, b, arg->offset, to, pos);
	if (err)
		return err;
	if (hm_unlikely(p->res.hm->check))
		tell_decommit(p, b, arg);
	arg->counted = to - arg->offset;
	count(p, s, arg->counted, false);
	hm_pool_record(p, s, 1, arg->counted);
	return 0;
}

/* Lists the committed ranges of a sparse block, also of one that is asleep. */
static int list_committed(struct pool *p, struct hm_ctl_shrink *arg)
{
	uint64_t from = 0, bytes;
	struct block *b;
	size_t nr = 0;
	int err = 0;

	pthread_mutex_lock(&p->lock);
	while ((b = find_sparse(p, "committed", arg->ptr, &err)) &&
	       (bytes = p->source->part(p, b, &from, block_bytes(b)))) {
		if (nr < arg->nr)
			arg->extents[nr] = (struct hetmem_extent){ from, bytes };
		nr++;
		from += bytes;
		if (nr % LISTED == 0)
			hm_pool_pause(p);
	}
	pthread_mutex_unlock(&p->lock);
	if (!err && nr > arg->nr)
		err = hm_error(-ENOSPC, "committed: there are %zu ranges", nr);
	arg->nr = nr;
	return err;
}

int hm_pool_commit(struct pool *p, struct hm_ctl_shrink *arg)
{
	const bool more = arg->what == HM_PART_COMMIT;
	struct pool_stream *s;
	int err;

	if (!p->source->commit)
		return -EOPNOTSUPP;
	if (arg->what == HM_PART_COMMITTED)
		return list_committed(p, arg);
	err = hm_pool_lock_stream(p, arg->stream, &s);
	if (err)
		return err;
	err = more ? attempt(p, s, commit_attempt, arg, "commit of", arg->length) :
		decommit(p, s, arg);
	p->failed += err == -ENOMEM;
	hm_pool_show(p);
	pthread_mutex_unlock(&p->lock);
	if (hm_unlikely(p->res.hm->check) && !err && more)
		hm_pool_tell_alloc(p, (char *)arg->ptr + arg->offset, arg->length, arg->stream);
	return err;
}
