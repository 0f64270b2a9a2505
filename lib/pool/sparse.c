// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Sparse blocks: addresses are allocated, and units of them committed and decommitted on
 * streams. vmm/sparse.c has the memory. This has the order of streams, the counts and check
 * mode. A commit is the allocation of units, and a decommit the free of them.
 */
#include <stdio.h>

#include "driver/check.h"
#include "pool/counters.h"
#include "pool/graph.h"
#include "pool/hash.h"
#include "pool/show.h"
#include "pool/sparse.h"

/* Ranges that are listed in one hold of the lock, and units that are committed in one. */
#define LISTED		64
#define COMMIT_UNITS	32

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

static bool has_sparse(const struct pool *p)
{
	return p->source->sparse && !p->whole && !p->opt.comm;
}

int hm_pool_access(struct pool *p, struct hm_ctl_access *arg)
{
	int err = hm_provider_access(p->provider, arg);

	if (!err && has_sparse(p))
		arg->access->unit = p->opt.unit;
	return err;
}

int hm_pool_alloc_sparse(struct pool *p, struct hm_ctl_alloc *arg)
{
	struct pool_stream *s;
	int err;

	if (!has_sparse(p))
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
	const uint64_t unit = p->opt.unit;
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

/* Check mode knows the bytes that were asked for: those after them are nobody's. */
static void clip(const struct block *b, struct hm_ctl_shrink *arg)
{
	const uint64_t asked = block_bytes(b) - b->slack;

	if (arg->offset + arg->length > asked)
		arg->length = asked - arg->offset;
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

/*
 * Memory for bytes [@from, @to) of the commit @arg, by *@how or more that becomes *@how. May
 * release the lock.
 */
static int prepare(struct pool *p, struct pool_stream *s, const struct hm_ctl_shrink *arg,
		   uint64_t from, uint64_t to, uint64_t pos, enum hm_commit *how)
{
	struct block *b;
	uint64_t end;
	int err;

	for (;;) {
		b = find(p, s, arg, &end, &err);
		if (!b)
			return err;
		err = p->source->prepare_commit(p, s, b, from, to, *how, pos);
		if (err == -EAGAIN) {
			hm_pool_make_ready(p);
			*how = HM_COMMIT_FREE;
			if (!p->opt.reuse_order)
				continue;
			err = -ENOMEM;
		}
		if (err != -ENOMEM || *how == HM_COMMIT_ANY)
			return err;
		if (s->s.index)
			hm_pool_claim(p, s);
		*how = HM_COMMIT_ANY;
	}
}

/* The end of the piece that begins with byte @from, of a commit up to @end. */
static uint64_t end_of_piece(const struct pool *p, uint64_t from, uint64_t end)
{
	const uint64_t most = COMMIT_UNITS * p->opt.unit;

	return end - from > most ? from + most : end;
}

/* Others may take what is parked in bytes [@from, @end) of the block at @addr. */
static void let_go(struct pool *p, uint64_t addr, uint64_t from, uint64_t end)
{
	uint64_t to;

	for (; from < end; from = to) {
		to = end_of_piece(p, from, end);
		p->source->cancel_commit(p, addr + from, addr + to);
		hm_pool_pause(p);
	}
}

/* Bytes [@from, @end) that were prepared are not committed. The error's text stays. */
static void cancel(struct pool *p, struct pool_stream *s, uint64_t addr, uint64_t from,
		   uint64_t end)
{
	char text[512];

	snprintf(text, sizeof(text), "%s", hetmem_last_error());
	let_go(p, addr, from, end);
	hm_pool_record(p, s, 1, end - from);
	hm_error(0, "%s", text);
}

/* Commits bytes [@from, @end), which were prepared. */
static int commit_prepared(struct pool *p, struct pool_stream *s, struct block *b,
			   struct hm_ctl_shrink *arg, uint64_t from, uint64_t end)
{
	const uint64_t addr = b->addr;
	uint64_t to;
	int err = 0;

	for (;; from = to) {
		to = end_of_piece(p, from, end);
		err = p->source->commit(p, b, from, to);
		if (err)
			break;
		arg->counted += to - from;
		count(p, s, to - from, true);
		if (to == end)
			return 0;
		hm_pool_pause(p);
		b = find_sparse(p, "commit", arg->ptr, &err);
		if (!b) {
			from = to;
			break;
		}
	}
	cancel(p, s, addr, from, end);
	return err;
}

static int commit_attempt(struct pool *p, struct pool_stream *s, void *data)
{
	struct hm_ctl_shrink *arg = data;
	enum hm_commit how = HM_COMMIT_HERE;
	uint64_t from = arg->offset, to, end, addr, pos = 0;
	struct block *b;
	int err;

	arg->counted = 0;
	b = find(p, s, arg, &end, &err);
	if (!b)
		return err;
	clip(b, arg);
	addr = b->addr;
	/* First, since it can fail. A use that is recorded in vain does no harm. */
	err = hm_pool_use(p, b, s);
	if (!err && end_of_piece(p, from, end) < end && s->s.index) {
		stream_lock(s);
		pos = hm_stream_next_pos(&s->s);
		stream_unlock(s);
	}
	for (; !err && from < end; from = to) {
		to = end_of_piece(p, from, end);
		err = prepare(p, s, arg, from, to, pos, &how);
		if (err)
			break;
		if (to < end)
			hm_pool_pause(p);
	}
	if (!err)
		b = find(p, s, arg, &end, &err);
	if (!err)
		return commit_prepared(p, s, b, arg, arg->offset, end);
	if (from > arg->offset)
		cancel(p, s, addr, arg->offset, from);
	return err;
}

/* Tells check mode that bytes of the block at @addr are freed on @stream. */
static void tell_decommit(struct pool *p, uint64_t addr, const struct hm_ctl_shrink *arg)
{
	struct hm_context saved;
	bool entered;

	entered = p->res.device >= 0 && !hm_context_enter(p->res.hm, p->res.device, &saved);
	hm_check_free(p->res.hm, (char *)(uintptr_t)addr + arg->offset, arg->length,
		      arg->stream);
	if (entered)
		hm_context_leave(p->res.hm, &saved);
}

/* Whether bytes [@from, @end) of @b are committed. */
static bool is_committed(struct pool *p, const struct block *b, uint64_t from, uint64_t end)
{
	uint64_t at = from;

	return p->source->part(p, b, &at, end) == end - from && at == from;
}

/*
 * Decommits bytes [@from, @end), which are committed, in pieces that nobody takes yet. The pool
 * can be put to sleep in between, which changes nothing.
 */
static int decommit_pieces(struct pool *p, struct pool_stream *s, struct block *b,
			   struct hm_ctl_shrink *arg, uint64_t end, uint64_t pos)
{
	uint64_t from, to;
	int err;

	for (from = arg->offset; ; from = to) {
		to = end_of_piece(p, from, end);
		err = p->source->decommit(p, s, b, from, to, pos, true);
		if (err)
			break;
		count(p, s, to - from, false);
		if (to == end)
			return 0;
		hm_pool_pause(p);
		b = find_sparse(p, "decommit", arg->ptr, &err);
		if (!b)
			return err;
	}
	/* No descriptors are left: all is as before. */
	for (end = from, from = arg->offset; from < end; from = to) {
		to = end_of_piece(p, from, end);
		if (!p->source->commit(p, b, from, to))
			count(p, s, to - from, true);
	}
	return err;
}

static int decommit(struct pool *p, struct pool_stream *s, struct hm_ctl_shrink *arg)
{
	uint64_t to, addr, pos = 0;
	struct block *b;
	int err;

	b = find(p, s, arg, &to, &err);
	if (!b)
		return err;
	clip(b, arg);
	addr = b->addr;
	stream_lock(s);
	if (s->s.index)
		pos = hm_stream_next_pos(&s->s);
	stream_unlock(s);
	if (end_of_piece(p, arg->offset, to) == to || !is_committed(p, b, arg->offset, to)) {
		err = p->source->decommit(p, s, b, arg->offset, to, pos, false);
		if (!err)
			count(p, s, to - arg->offset, false);
	} else {
		s->pins++;
		err = decommit_pieces(p, s, b, arg, to, pos);
		let_go(p, addr, arg->offset, to);
		s->pins--;
	}
	if (err)
		return err;
	if (hm_unlikely(p->res.hm->check))
		tell_decommit(p, addr, arg);
	arg->counted = to - arg->offset;
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

/* HETMEM_COMMIT_WAIT: the host waits for nothing. */
static int commit_now(struct pool *p, struct pool_stream *s, struct hm_ctl_shrink *arg)
{
	int err;

	s->pins++;
	err = commit_attempt(p, s, arg);
	s->pins--;
	if (err == -ENOMEM && (!p->opt.max || arg->length <= p->opt.max))
		return hm_error(-EAGAIN, "commit: too little memory is free or decommitted: try again after a decommit");
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
	if (!more)
		err = decommit(p, s, arg);
	else if (arg->flags & HETMEM_COMMIT_WAIT)
		err = commit_now(p, s, arg);
	else
		err = attempt(p, s, commit_attempt, arg, "commit of", arg->length);
	p->failed += err == -ENOMEM;
	hm_pool_show(p);
	pthread_mutex_unlock(&p->lock);
	if (hm_unlikely(p->res.hm->check) && !err && more)
		hm_pool_tell_alloc(p, (char *)arg->ptr + arg->offset, arg->length, arg->stream);
	return err;
}
