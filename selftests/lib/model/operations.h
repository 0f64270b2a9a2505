/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/*
 * The operations of a program, against the library and the model. Each has one function. It
 * does nothing if the state of the world does not allow the operation. It ends the process
 * by broken() when the library does what the model excludes.
 */
#ifndef HETMEM_SELFTESTS_MODEL_OPERATIONS_H
#define HETMEM_SELFTESTS_MODEL_OPERATIONS_H

#include "model/world.h"

static size_t bytes_of(size_t size)
{
	return size ? size : 1;
}

/* A request of @size bytes that must succeed: a quarter of the memory is enough for all. */
static bool must_fit(size_t size)
{
	const size_t most = limit && limit < MODEL_MEMORY ? limit : MODEL_MEMORY;

	return program.threads == 1 && !held_back && !asleep && !row.largest &&
	       !has("wait=") && nr_requested + nr_kept_back + nr_live * 4096 + size <= most / 4;
}

/* A provider without a pool serves some of the blocks. */
static bool has_plain(void)
{
	return has("binning(") || has("fallback(");
}

static void enter(unsigned int slot, const struct block *new)
{
	struct block *b = &slots[slot];
	const size_t align = new->align > HETMEM_ALIGNMENT ? new->align : HETMEM_ALIGNMENT;

	*b = *new;
	must(b->p && (uintptr_t)b->p % align == 0, "alignment", "%p, not %zu", b->p, align);
	must(!has("align=4K") || (uintptr_t)b->p % 4096 == 0, "alignment", "%p of align=4K",
	     b->p);
	place_add(slot);
	__atomic_add_fetch(&nr_live, 1, __ATOMIC_RELAXED);
	__atomic_add_fetch(&nr_requested, bytes_of(b->size), __ATOMIC_RELAXED);
	__atomic_add_fetch(&nr_kept_back, b->reserve, __ATOMIC_RELAXED);
	__atomic_add_fetch(&nr_allocs, 1, __ATOMIC_RELAXED);
}

/* The block of @slot is gone. */
static void leave(unsigned int slot)
{
	struct block *b = &slots[slot];

	__atomic_store_n(&last_freed, b->p, __ATOMIC_RELAXED);
	__atomic_sub_fetch(&nr_live, 1, __ATOMIC_RELAXED);
	__atomic_sub_fetch(&nr_requested, bytes_of(b->size), __ATOMIC_RELAXED);
	__atomic_sub_fetch(&nr_kept_back, b->reserve, __ATOMIC_RELAXED);
	__atomic_add_fetch(&nr_frees, 1, __ATOMIC_RELAXED);
	b->p = NULL;
}

static void op_alloc(const struct op *op)
{
	struct hetmem_alloc_params params = { .size = sizeof(params) };
	struct block new = { .size = op->size, .home = on_cpu() ? MODEL_HOST : op->stream };
	void *const nothing = &params;
	void *p = nothing;
	int err;

	if (slots[op->slot].p)
		return;
	params.bytes = op->size;
	params.stream = handle_of(op->stream);
	if (op->x / 16 % 4 == 3)
		params.align = new.align = (size_t)1 << op->x / 64 % 17;
	if (op->x % 16 >= 8 && op->x % 16 < 12)
		params.flags = HETMEM_ALLOC_MOVABLE;
	else if (op->x % 16 == 12)
		params.flags = HETMEM_ALLOC_KEEP;
	else if (op->x % 16 == 13)
		params.reserve = op->size + (op->x >> 4) * 4096;
	else if (op->x % 16 == 14)
		params.placement = (op->x >> 4) % 6;
	else if (op->x % 16 == 15 && retained[1 + op->other % MODEL_PRIVATE] &&
		 !is_capturing(op->stream))
		params.private_pool = new.id = 1 + op->other % MODEL_PRIVATE;
	/* Of an alignment that every handle has. */
	if (params.private_pool && op->x / 4096 % 2 && params.align <= 512)
		params.flags |= HETMEM_ALLOC_WHOLE;
	if (params.reserve && (is_capturing(op->stream) || row.largest || op->size == 0))
		params.reserve = 0;
	if (params.reserve && params.align > 65536)
		params.align = new.align = 0;
	new.reserve = params.reserve;
	new.movable = params.flags & HETMEM_ALLOC_MOVABLE;
	new.keep = params.flags & HETMEM_ALLOC_KEEP;
	if (is_capturing(op->stream))
		new.capture = op->stream + 1;
	if (params.flags || params.reserve || params.placement || params.private_pool)
		err = LIB(hetmem_alloc_with(res, &params, &p));
	else
		err = LIB(hetmem_alloc(res, params.bytes, params.align, params.stream, &p));
	if (err) {
		must(p == nothing, "all or nothing", "alloc: %d, and the pointer is set", err);
		must(strlen(hetmem_last_error()) > 5, "text", "alloc: %d", err);
		if (params.reserve || params.private_pool)
			must(injected || err == -ENOMEM || err == -EOPNOTSUPP ||
			     (err == -EBUSY && (asleep || any_capturing())), "errno",
			     "alloc_with: %d", err);
		else
			must(injected || err == -ENOMEM || (err == -EBUSY && asleep), "errno",
			     "alloc: %d", err);
		must(injected || err != -ENOMEM || !must_fit(op->size + params.reserve), "fits",
		     "%zu bytes", op->size);
		return;
	}
	new.p = p;
	enter(op->slot, &new);
}

static bool may_use(const struct block *b)
{
	return b->p && !is_asleep(b) && b->size &&
	       (!is_capturing(b->home) || b->capture == b->home + 1);
}

/* Bytes from the beginning on that surely have memory: whole words, if it gave back some. */
static size_t usable(const struct block *b)
{
	return b->hole ? b->hole & ~(size_t)3 : b->size;
}

/* A region of a provider, which a captured stream uses, cannot be freed. */
static bool is_kept(int err)
{
	return err == -EBUSY && any_capturing() && has_plain();
}

static void op_free(const struct op *op)
{
	struct block *b = &slots[op->slot], copy;
	const unsigned int way = op->x % 8;
	hetmem_stream stream = handle_of(b->home);
	size_t size = b->size;
	int err;

	if (!b->p)
		return;
	if (is_capturing(b->home)) {
		if (b->capture != b->home + 1)
			return;
	} else if (way == 4) {
		size = 0;
	} else if (way == 5 && !b->orphan) {
		stream = HETMEM_STREAM_UNKNOWN;
	} else if (way == 6 && !is_capturing(op->stream)) {
		order_after(MODEL_HOST, b);
		stream = HETMEM_STREAM_HOST;
	} else if (way == 7 && !is_capturing(op->other)) {
		order_after(op->other, b);
		stream = handle_of(op->other);
	}
	place_drop(op->slot);
	copy = *b;
	err = LIB(hetmem_free(res, b->p, size, stream));
	must(!err || injected || is_kept(err), "free", "%d", err);
	if (err && !is_kept(err)) {
		/* Nothing has changed: the second try succeeds. */
		err = hetmem_free(res, copy.p, size, stream);
		must(!err || is_kept(err), "free", "again: %d", err);
	}
	if (err)
		place_add(op->slot);
	else
		leave(op->slot);
}

static void op_write(const struct op *op)
{
	struct block *b = &slots[op->slot];
	const uint32_t value = new_value();

	if (!may_use(b))
		return;
	settle(b);
	if (on_cpu()) {
		host_pattern(b->p, usable(b), value);
	} else {
		order_after(b->home, b);
		b->mask = 0;
		write_pattern(b->p, usable(b), value, worker_of(b->home));
		if (b->home == MODEL_HOST)
			driver_must(drv->cuStreamSynchronize(aux));
	}
	if (is_capturing(b->home)) {
		b->at_launch = value;
		b->written = 0;
		return;
	}
	b->value = value;
	b->written = usable(b);
}

/* Another stream writes the block, and says so or is waited for. */
static void op_use(const struct op *op)
{
	struct block *b = &slots[op->slot];
	const unsigned int by = op->other;
	const uint32_t value = new_value();
	int err;

	if (!may_use(b) || on_cpu() || by == b->home || by == MODEL_HOST || is_capturing(by) ||
	    is_capturing(b->home))
		return;
	settle(b);
	order_after(by, b);
	write_pattern(b->p, usable(b), value, streams[by]);
	b->value = value;
	b->written = usable(b);
	if (op->x % 2 || b->movable || has("movable=")) {
		order(b->home, by);
		b->mask &= ~(1U << by);
		return;
	}
	err = LIB(hetmem_record_stream(res, b->p, streams[by]));
	if (err) {
		must(injected, "record", "%d", err);
		err = hetmem_record_stream(res, b->p, streams[by]);
		must(!err, "record", "again: %d", err);
	}
	b->recorded = true;
	b->mask |= 1U << by;
}

/* The first @b->written bytes are what was written last. */
static void verify(struct block *b)
{
	const size_t size = b->written;
	unsigned char *copy = b->p;
	size_t at;

	if (!size)
		return;
	if (!on_cpu()) {
		copy = malloc(size);
		must(copy, "host memory", "%zu bytes", size);
		order_after(b->home, b);
		b->mask = 0;
		driver_must(drv->cuMemcpyAsync((uintptr_t)copy, (uintptr_t)b->p, size,
					       worker_of(b->home)));
		driver_must(drv->cuStreamSynchronize(worker_of(b->home)));
	}
	at = wrong_at(copy, size, b->value);
	must(at == size, "contents", "%p of %zu bytes, at %zu: %#x, not %#x", b->p, b->size, at,
	     copy[at], b->value);
	if (copy != b->p)
		free(copy);
}

static void op_verify(const struct op *op)
{
	struct block *b = &slots[op->slot];

	if (!may_use(b) || is_capturing(b->home))
		return;
	settle(b);
	verify(b);
}

static void op_record(const struct op *op)
{
	struct block *b = &slots[op->slot];
	int err;

	if (!b->p || on_cpu() || op->other == MODEL_HOST || is_capturing(op->other) ||
	    is_capturing(b->home))
		return;
	settle(b);
	err = LIB(hetmem_record_stream(res, b->p, streams[op->other]));
	must(!err || injected, "record", "%d", err);
	b->recorded = true;
}

static void op_sync(const struct op *op)
{
	if (!on_cpu() && op->stream != MODEL_HOST && !is_capturing(op->stream))
		driver_must(drv->cuStreamSynchronize(streams[op->stream]));
}

static void op_poll(const struct op *op)
{
	int err;

	(void)op;
	err = LIB(hetmem_poll(res));
	must(!err || injected, "poll", "%d", err);
}

static void op_trim(const struct op *op)
{
	size_t freed = 0;
	int err;

	err = LIB(hetmem_trim(res, op->x % 2 ? 0 : op->size, &freed));
	must(!err || injected || err == -EOPNOTSUPP, "trim", "%d", err);
}

/* A stream is destroyed, most times retired before, and made again. */
static void op_retire(const struct op *op)
{
	const unsigned int s = op->stream;
	unsigned int i, u;
	int err;

	if (on_cpu() || s >= MODEL_STREAMS || captures[s].state != NO_CAPTURE ||
	    any_capturing())
		return;
	for (i = 0; i < MODEL_SLOTS; i++)
		if (slots[i].p && slots[i].home == s && !is_asleep(&slots[i]))
			settle(&slots[i]);
	if (op->x % 8) {
		err = LIB(hetmem_stream_retire(res, streams[s]));
		must(!err || injected, "retire", "%d", err);
		held_back |= err != 0;
	} else {
		held_back = true;
	}
	sync_all();
	for (i = 0; i < MODEL_SLOTS; i++) {
		slots[i].mask = 0;
		if (slots[i].p && slots[i].home == s) {
			slots[i].home = MODEL_HOST;
			slots[i].orphan = true;
		}
		for (u = 0; u < MODEL_UNITS; u++)
			if (sparse[i].by[u] == s)
				sparse[i].by[u] = MODEL_HOST;
	}
	for (i = 1; i <= MODEL_PRIVATE; i++) {
		hetmem_checkpoint_free(checkpoints[i].made);
		checkpoints[i].made = NULL;
	}
	driver_must(drv->cuStreamDestroy(streams[s]));
	driver_must(drv->cuStreamCreate(&streams[s], CU_STREAM_NON_BLOCKING));
}

static size_t committed(const struct sparse *b)
{
	size_t bytes = 0;
	unsigned int u;

	for (u = 0; u < b->units; u++)
		bytes += b->has[u] ? b->unit : 0;
	return bytes;
}

struct walked {
	unsigned int seen[MODEL_SLOTS];
	uintptr_t end;
};

static int walk_block(void *data, const struct hetmem_walk_segment *segment,
		      const struct hetmem_walk_block *block)
{
	const uintptr_t p = (uintptr_t)block->ptr;
	struct walked *w = data;
	unsigned int i;

	must(p >= (uintptr_t)segment->base &&
	     p + block->bytes <= (uintptr_t)segment->base + segment->bytes, "walk",
	     "%p is not in its segment", block->ptr);
	/* With threads the slots change under this. */
	if (program.threads > 1)
		return 0;
	for (i = 0; i < MODEL_SLOTS; i++)
		if (sparse[i].p && p == (uintptr_t)sparse[i].p) {
			must(block->requested == committed(&sparse[i]) &&
			     block->state == HETMEM_BLOCK_LIVE, "walk", "%p: %zu bytes committed, state %d",
			     block->ptr, block->requested, block->state);
			return 0;
		}
	must((block->state == HETMEM_BLOCK_LIVE) == (block->requested != 0), "walk",
	     "%p: %zu bytes requested, state %d", block->ptr, block->requested, block->state);
	if (block->state != HETMEM_BLOCK_LIVE)
		return 0;
	for (i = 0; i < MODEL_SLOTS; i++) {
		const uintptr_t at = (uintptr_t)slots[i].p;

		if (!at || at < p || at >= p + block->bytes)
			continue;
		w->seen[i]++;
		must(has("guard(") || has("fixed(") || has("align(") ||
		     (at == p && block->requested == bytes_of(slots[i].size)), "walk",
		     "slot %u: %p has %zu bytes requested, not %zu", i, block->ptr,
		     block->requested, slots[i].size);
	}
	return 0;
}

static void op_walk(const struct op *op)
{
	struct walked w = { .end = 0 };
	const struct hetmem_walk walk = {
		.size = sizeof(walk), .block = walk_block, .data = &w,
	};
	unsigned int i;
	int err;

	(void)op;
	err = LIB(hetmem_walk(res, &walk));
	must(!err || injected || err == -EOPNOTSUPP, "walk", "%d", err);
	if (err || program.threads > 1 || has("fallback(") || has("binning("))
		return;
	for (i = 0; i < MODEL_SLOTS; i++)
		must(w.seen[i] == !!slots[i].p, "walk", "slot %u: seen %u times", i, w.seen[i]);
}

static void op_segments(const struct op *op)
{
	struct hetmem_segment segments[128];
	struct block *b = &slots[op->slot];
	const size_t from = op->x % 2 && b->size ? op->x % b->size : 0;
	size_t at = 0;
	ssize_t n, i;

	if (!b->p || !b->size || is_asleep(b))
		return;
	settle(b);
	n = LIB(hetmem_segments(res, b->p + from, b->size - from, segments, 128));
	must(n > 0 || injected || n == -EOPNOTSUPP || (!n && b->hole), "segments", "%zd", n);
	for (i = 0; i < n; i++) {
		must((segments[i].offset == at || (b->hole && segments[i].offset > at)) &&
		     (unsigned char *)segments[i].base == b->p + from + segments[i].offset &&
		     segments[i].length, "segments", "part %zd at %zu", i, segments[i].offset);
		at = segments[i].offset + segments[i].length;
	}
	must(n <= 0 || at == b->size - from || b->hole, "segments", "%zu bytes of %zu", at,
	     b->size - from);
}

static void op_grow(const struct op *op)
{
	struct block *b = &slots[op->slot];
	const size_t size = b->size + 1 + (op->x % 4 ? op->size : op->x * 16);
	int err;

	if (!b->p || is_capturing(b->home) || row.largest || b->orphan)
		return;
	settle(b);
	order_after(b->home, b);
	b->mask = 0;
	err = LIB(hetmem_grow(res, b->p, size, handle_of(b->home)));
	if (err) {
		must(injected || err == -ENOSPC || err == -EBUSY || err == -EOPNOTSUPP ||
		     err == -ENOMEM, "errno", "grow: %d", err);
		return;
	}
	pthread_mutex_lock(&places);
	ranges[op->slot].end = 0;
	pthread_mutex_unlock(&places);
	__atomic_add_fetch(&nr_requested, size - bytes_of(b->size), __ATOMIC_RELAXED);
	b->size = size;
	b->recorded = true;
	place_add(op->slot);
}

/* The end of what slot @i has is somebody else's at any time from now on, or is again its own. */
static void place_end(unsigned int i, size_t size)
{
	pthread_mutex_lock(&places);
	ranges[i].end = ranges[i].start + size;
	pthread_mutex_unlock(&places);
}

static int must_be_shrunk(int err)
{
	must(!err || injected || err == -EBUSY || err == -EOPNOTSUPP || err == -ENOMEM, "errno",
	     "shrink: %d: %s", err, hetmem_last_error());
	return err;
}

static void op_shrink(const struct op *op)
{
	struct block *b = &slots[op->slot];
	const size_t size = b->size ? op->x % b->size : 0;
	int err;

	if (!b->p || !size || is_capturing(b->home) || row.largest || b->orphan)
		return;
	settle(b);
	order_after(b->home, b);
	b->mask = 0;
	if (op->other % 3 == 1) {
		/* A range that ends before the block does. */
		if (must_be_shrunk(LIB(hetmem_shrink(res, b->p, size, (b->size - size) / 2,
						     handle_of(b->home)))))
			return;
		b->hole = b->hole && b->hole < size ? b->hole : size;
		if (b->written > usable(b))
			b->written = usable(b);
		return;
	}
	place_end(op->slot, size);
	err = LIB(hetmem_shrink(res, b->p, size, b->size - size, handle_of(b->home)));
	if (must_be_shrunk(err)) {
		place_end(op->slot, b->size);
		return;
	}
	__atomic_sub_fetch(&nr_requested, b->size - size, __ATOMIC_RELAXED);
	b->size = size;
	if (b->hole >= size)
		b->hole = 0;
	/* Whole words of the pattern. */
	if (b->written > size)
		b->written = size & ~(size_t)3;
}

/* Calls that must fail, and change nothing. */
static void op_bad(const struct op *op)
{
	struct block *b = &slots[op->slot];
	void *const nothing = &b;
	void *p = nothing, *freed;
	unsigned int i;
	int err;

	switch (op->x % 8) {
	case 0:
		err = hetmem_free(res, &b, 0, handle_of(MODEL_HOST));
		must(err == -EINVAL, "bad", "free of a variable: %d", err);
		break;
	case 1:
		if (!b->p || b->size < 1024)
			break;
		err = hetmem_free(res, b->p + 512, 0, handle_of(MODEL_HOST));
		must(err == -EINVAL, "bad", "free inside a block: %d", err);
		break;
	case 2:
		if (!b->p)
			break;
		err = hetmem_free(res, b->p, (size_t)1 << 36, handle_of(MODEL_HOST));
		must(err == -EINVAL, "bad", "free with a wrong size: %d", err);
		break;
	case 3:
		err = hetmem_alloc(res, 100, 768, handle_of(MODEL_HOST), &p);
		must(err == -EINVAL && p == nothing, "bad", "alignment 768: %d", err);
		break;
	case 4:
		err = hetmem_alloc(res, SIZE_MAX - op->size, 0, handle_of(MODEL_HOST), &p);
		must(err && p == nothing, "bad", "all addresses: %d", err);
		break;
	case 5:
		err = hetmem_record_stream(res, &b, handle_of(0));
		must(err == -EINVAL || on_cpu(), "bad", "record of a variable: %d", err);
		break;
	case 6:
		freed = __atomic_load_n(&last_freed, __ATOMIC_RELAXED);
		if (program.threads > 1 || !freed)
			break;
		for (i = 0; i < 2 * MODEL_SLOTS; i++)
			if ((uintptr_t)freed >= ranges[i].start &&
			    (uintptr_t)freed < ranges[i].end)
				return;
		err = hetmem_free(res, freed, 0, handle_of(MODEL_HOST));
		must(err == -EINVAL, "bad", "free of a free block: %d", err);
		break;
	default:
		err = hetmem_private_release(res, 77, handle_of(MODEL_HOST));
		must(err == -ENOENT || err == -EOPNOTSUPP, "bad", "release: %d", err);
	}
}

static bool all_or_nothing(int err, const struct hetmem_resource_stats *before)
{
	const struct hetmem_resource_stats after = stats();

	return !err || (after.reserved <= before->reserved && after.parked == before->parked &&
			after.spilled == before->spilled);
}

/*
 * Wakes everything. false: tags slept one after the other, others have their room since then, and
 * all sleep on.
 */
static bool wake(void)
{
	unsigned int tries;
	int err;

	err = LIB(hetmem_wake(res, NULL));
	must(!err || injected || (err == -ENOMEM && any_tag_asleep()), "wake", "%d", err);
	for (tries = 0; err && injected && tries < 3; tries++)
		err = hetmem_wake(res, NULL);
	if (err == -ENOMEM && any_tag_asleep())
		return false;
	must(!err, "wake", "again: %d", err);
	asleep = tag_asleep[0] = tag_asleep[1] = false;
	/* What was held at once wakes together, whatever max= was set to meanwhile. */
	if (limit_set && limit && stats().reserved > limit)
		limit = stats().reserved;
	return true;
}

/* The contents of scratch blocks of @tag (NULL: of all): a sleep was tried. */
static void lose_scratch(const unsigned int *tag)
{
	unsigned int i;

	for (i = 0; i < MODEL_SLOTS; i++)
		if (slots[i].scratch && (!tag || slots[i].tag == *tag))
			slots[i].written = 0;
}

static void op_sleep(const struct op *op)
{
	const struct hetmem_resource_stats before = stats();
	const unsigned int flags = op->x % 4 ? HETMEM_SLEEP_KEEP : HETMEM_SLEEP_DISCARD;
	unsigned int i;
	int err;

	if (any_capturing() || !is_vmm())
		return;
	for (i = 0; i < MODEL_SLOTS; i++)
		if (slots[i].p && !is_asleep(&slots[i]))
			settle(&slots[i]);
	err = LIB(hetmem_sleep(res, NULL, flags));
	must(!err || injected || err == -EOPNOTSUPP || err == -EBUSY || err == -ENOMEM, "errno",
	     "sleep: %d", err);
	/* What slept before a tag without contents refused it may keep its host memory. */
	must(injected || all_or_nothing(err, &before) ||
	     (err == -EBUSY && any_tag_asleep() && stats().reserved <= before.reserved),
	     "all or nothing", "sleep: %d", err);
	lose_scratch(NULL);
	/* A failed one may have begun. */
	for (i = 0; i < MODEL_SLOTS && flags == HETMEM_SLEEP_DISCARD && !asleep &&
	     (!err || injected); i++) {
		slots[i].written = 0;
		memset(sparse[i].value, 0, sizeof(sparse[i].value));
	}
	if (err && !asleep && injected)
		asleep = !wake();
	else
		asleep |= !err;
	/* One that is refused waits for nothing. */
	for (i = 0; i < MODEL_SLOTS && !err; i++)
		slots[i].mask = 0;
}

static void op_wake(const struct op *op)
{
	(void)op;
	if (asleep)
		wake();
}

static const char *const tags[MODEL_TAGS] = { "a", "b" };

static void alloc_tagged(const struct op *op, unsigned int tag)
{
	const struct hetmem_alloc_params params = {
		.size = sizeof(params), .bytes = op->size, .stream = handle_of(op->stream),
		.tag = tags[tag], .flags = op->x / 8 % 4 ? 0 : HETMEM_ALLOC_SCRATCH,
	};
	struct block new = {
		.size = op->size, .home = op->stream, .tag = 1 + tag,
		.scratch = params.flags & HETMEM_ALLOC_SCRATCH,
	};
	struct hetmem_resource_stats s = { .size = sizeof(s) };
	const bool there = !hetmem_tag_stats(res, tags[tag], &s);
	void *p = NULL;
	int err;

	if (slots[op->slot].p || is_capturing(op->stream))
		return;
	err = LIB(hetmem_alloc_with(res, &params, &p));
	if (err) {
		must(injected || err == -ENOMEM || err == -EOPNOTSUPP ||
		     (err == -EBUSY && (is_asleep(&new) || any_capturing())), "errno",
		     "alloc_with of a tag: %d", err);
		must(!p, "all or nothing", "alloc_with: %d, and the pointer is set", err);
		/* A guard() that cannot paint its zones gives the block back to the pool. */
		must(there || has("guard(") || hetmem_tag_stats(res, tags[tag], &s) == -ENOENT, "all or nothing",
		     "a block that failed leaves its tag");
		return;
	}
	must(!is_asleep(&new), "sleep", "a tag that sleeps gives out a block");
	/* What is free in one tag is not at once another's. */
	held_back = true;
	new.p = p;
	enter(op->slot, &new);
}

static void sleep_tag(const struct op *op, unsigned int tag)
{
	const struct hetmem_resource_stats before = stats();
	struct hetmem_resource_stats s = { .size = sizeof(s) };
	const bool keep = op->x / 8 % 4;
	const unsigned int of = 1 + tag;
	unsigned int i;
	int err;

	for (i = 0; i < MODEL_SLOTS; i++)
		if (slots[i].p && !is_asleep(&slots[i]))
			settle(&slots[i]);
	err = LIB(hetmem_sleep(res, tags[tag], keep ? HETMEM_SLEEP_KEEP : HETMEM_SLEEP_DISCARD));
	must(!err || injected || err == -EBUSY || err == -ENOMEM || err == -EOPNOTSUPP, "errno",
	     "sleep of a tag: %d", err);
	must(injected || all_or_nothing(err, &before), "all or nothing", "sleep of a tag: %d", err);
	if (!err || injected)
		lose_scratch(&of);
	for (i = 0; i < MODEL_SLOTS && !keep && (!err || injected) && !tag_asleep[tag]; i++)
		if (slots[i].tag == of)
			slots[i].written = 0;
	if (err && injected)
		asleep = !wake();
	/* A tag sleeps without a block, too. What is not there or slept before waits for nothing. */
	if (err || tag_asleep[tag] || hetmem_tag_stats(res, tags[tag], &s))
		return;
	tag_asleep[tag] = true;
	for (i = 0; i < MODEL_SLOTS; i++)
		slots[i].mask = 0;
}

/* Without room the tag sleeps on. */
static void wake_tag(unsigned int tag)
{
	const struct hetmem_resource_stats before = stats();
	const int err = LIB(hetmem_wake(res, tags[tag]));

	must(!err || injected || err == -ENOMEM, "errno", "wake of a tag: %d", err);
	must(injected || all_or_nothing(err, &before), "all or nothing", "wake of a tag: %d", err);
	tag_asleep[tag] &= err != 0;
}

/* Blocks of a tag, which sleep and wake while the rest of the pool does not. */
static void op_tag(const struct op *op)
{
	const unsigned int tag = op->x / 4 % MODEL_TAGS;

	if (!is_vmm() || has("fixed(") || row.largest || asleep)
		return;
	if (op->x % 4 < 2)
		alloc_tagged(op, tag);
	else if (op->x % 4 == 2 && !any_capturing())
		sleep_tag(op, tag);
	else if (tag_asleep[tag])
		wake_tag(tag);
}

static void move(const struct op *op, bool out)
{
	static int (*const moves[])(struct hetmem_resource *res, void *ptr) = {
		hetmem_fetch, hetmem_spill, hetmem_fetch_async, hetmem_spill_async,
	};
	struct block *b = &slots[op->slot];
	const bool async = op->x % 2;
	int err;

	if (!b->p || is_asleep(b) || any_capturing())
		return;
	if (op->x / 2 % 4)
		settle(b);
	if (b->mask) {
		order_after(b->home, b);
		b->mask = 0;
	}
	err = LIB(moves[out + 2 * async](res, b->p));
	must(!err || injected || err == -EBUSY || err == -ENOMEM || err == -EOPNOTSUPP, "errno",
	     "move: %d", err);
	must(!out || err || b->moving || (!b->keep && (b->movable || b->size >= 1 << 20)), "move",
	     "a block of %zu bytes that may not move", b->size);
	must(!out || err || b->moving || b->movable || has("movable="), "move",
	     "a block that is not movable");
	if (async && !err)
		b->moving = true;
	else if (!err)
		b->moving = false;
}

static void op_spill(const struct op *op)
{
	move(op, true);
}

static void op_fetch(const struct op *op)
{
	move(op, false);
}

/* Whole, except for the last one of a size that was rounded up. */
static size_t bytes_of_unit(const struct sparse *b, unsigned int u)
{
	return (u + 1) * b->unit > b->size ? b->size - u * b->unit : b->unit;
}

/* The bytes of units [@from, @to) are what was written last. */
static void verify_units(const struct sparse *b, unsigned int from, unsigned int to)
{
	static __thread unsigned char copy[4 << 20];
	unsigned int u;
	size_t at, size;

	for (u = from; u < to; u++) {
		if (!b->has[u] || !b->value[u])
			continue;
		size = bytes_of_unit(b, u);
		if (!on_cpu()) {
			order(MODEL_HOST, b->by[u]);
			driver_must(drv->cuMemcpyAsync((uintptr_t)copy,
						       (uintptr_t)b->p + u * b->unit, size, aux));
			driver_must(drv->cuStreamSynchronize(aux));
		}
		at = wrong_at(on_cpu() ? b->p + u * b->unit : copy, size, b->value[u]);
		must(at == size, "contents", "unit %u of %p, at %zu", u, b->p, at);
	}
}

/* hetmem_committed() lists what the model has. */
static void check_list(const struct sparse *b)
{
	struct hetmem_extent e[MODEL_UNITS];
	ssize_t n = hetmem_committed(res, b->p, e, MODEL_UNITS), i;
	unsigned int u = 0;
	size_t bytes = 0;

	must(n >= 0, "committed", "%zd", n);
	for (i = 0; i < n; i++) {
		must(e[i].offset % b->unit == 0 && e[i].length && e[i].length % b->unit == 0 &&
		     (!i || e[i].offset > e[i - 1].offset + e[i - 1].length), "committed",
		     "range %zd at %zu", i, e[i].offset);
		for (u = e[i].offset / b->unit; u < (e[i].offset + e[i].length) / b->unit; u++)
			must(u < b->units && b->has[u], "committed", "unit %u is not", u);
		bytes += e[i].length;
	}
	must(bytes == committed(b), "committed", "%zu bytes, not %zu", bytes, committed(b));
}

/* Whether the resource has sparse blocks for sure. */
static bool has_sparse(void)
{
	return !strncmp(row.spec, "pool(vmm", 8) && !has("export=") && !has("comm=");
}

/* Addresses are allocated, or freed with all of their units. */
static void op_sparse(const struct op *op)
{
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .flags = HETMEM_ALLOC_SPARSE, .stream = handle_of(op->stream),
	};
	const size_t unit = has("unit=4M") || has("stripe=") ? 4 << 20 : 2 << 20;
	const unsigned int units = 1 + op->x % MODEL_UNITS;
	struct sparse *b = &sparse[op->slot];
	unsigned int u;
	void *p = NULL;
	int err;

	if (any_capturing())
		return;
	if (b->p) {
		if (!asleep)
			verify_units(b, 0, b->units);
		for (u = 0; u < b->units; u++)
			if (b->has[u])
				order(op->stream, b->by[u]);
		place_drop(MODEL_SLOTS + op->slot);
		err = LIB(hetmem_free(res, b->p, op->x % 2 ? b->size : 0, params.stream));
		must(!err || injected, "free", "of a sparse block: %d", err);
		if (err)
			err = hetmem_free(res, b->p, b->size, params.stream);
		must(!err, "free", "again, of a sparse block: %d", err);
		__atomic_sub_fetch(&nr_live, 1, __ATOMIC_RELAXED);
		__atomic_sub_fetch(&nr_requested, committed(b), __ATOMIC_RELAXED);
		__atomic_add_fetch(&nr_frees, 1, __ATOMIC_RELAXED);
		memset(b, 0, sizeof(*b));
		return;
	}
	/* A size that is no multiple of the unit is rounded up. */
	params.bytes = units * unit - op->x % 3 * 1000;
	err = LIB(hetmem_alloc_with(res, &params, &p));
	if (err) {
		must(injected || err == -ENOMEM || (err == -EBUSY && asleep) ||
		     (err == -EOPNOTSUPP && !has_sparse()), "errno", "sparse: %d", err);
		must(!p, "all or nothing", "sparse: %d", err);
		return;
	}
	*b = (struct sparse){ .p = p, .size = params.bytes, .unit = unit, .units = units };
	place_range(MODEL_SLOTS + op->slot, p, units * unit);
	__atomic_add_fetch(&nr_live, 1, __ATOMIC_RELAXED);
	__atomic_add_fetch(&nr_allocs, 1, __ATOMIC_RELAXED);
	check_list(b);
}

/* Chooses a range of units of @b. */
static void choose_units(const struct op *op, const struct sparse *b, unsigned int *from,
			 unsigned int *to)
{
	*from = op->x % b->units;
	*to = *from + 1 + op->x / 16 % (op->x % 2 ? b->units - *from : 1);
}

static void op_commit(const struct op *op)
{
	struct sparse *b = &sparse[op->slot];
	const unsigned int s = op->stream;
	unsigned int from, to, u, there = 0;
	int err;

	if (!b->p || any_capturing())
		return;
	choose_units(op, b, &from, &to);
	for (u = from; u < to; u++)
		there += b->has[u];
	err = LIB(hetmem_commit(res, b->p, from * b->unit, (to - from) * b->unit, handle_of(s)));
	must(injected || err != -EBUSY || asleep, "errno", "commit: %d", err);
	must(injected || !err || err == -ENOMEM || err == -EBUSY || (err == -EEXIST && there), "errno",
	     "commit: %d", err);
	must(err || !there, "commit", "%u units twice", there);
	must(injected || there || err != -ENOMEM || !must_fit((to - from) * b->unit), "fits",
	     "%u units", to - from);
	for (u = from; u < to && !err; u++) {
		b->has[u] = true;
		b->by[u] = s;
		b->value[u] = new_value();
		if (on_cpu())
			host_pattern(b->p + u * b->unit, bytes_of_unit(b, u), b->value[u]);
		else
			write_pattern(b->p + u * b->unit, bytes_of_unit(b, u), b->value[u],
				      worker_of(s));
	}
	if (!err && s == MODEL_HOST && !on_cpu())
		driver_must(drv->cuStreamSynchronize(aux));
	if (!err)
		__atomic_add_fetch(&nr_requested, (to - from) * b->unit, __ATOMIC_RELAXED);
	check_list(b);
}

static void op_decommit(const struct op *op)
{
	struct sparse *b = &sparse[op->slot];
	unsigned int from, to, u, there = 0;
	int err;

	if (!b->p || any_capturing())
		return;
	choose_units(op, b, &from, &to);
	if (!asleep && op->x / 256 % 2)
		verify_units(b, from, to);
	for (u = from; u < to; u++) {
		there += b->has[u];
		if (b->has[u])
			order(op->stream, b->by[u]);
	}
	err = LIB(hetmem_decommit(res, b->p, from * b->unit, (to - from) * b->unit,
				  handle_of(op->stream)));
	must(!err || injected || (err == -EBUSY && asleep) || (err == -ENOENT && there < to - from),
	     "errno", "decommit: %d", err);
	must(err || there == to - from, "decommit", "%u units of %u", there, to - from);
	for (u = from; u < to && !err; u++)
		b->has[u] = false;
	if (!err)
		__atomic_sub_fetch(&nr_requested, (to - from) * b->unit, __ATOMIC_RELAXED);
	check_list(b);
}

static void op_priority(const struct op *op)
{
	struct block *b = &slots[op->slot];
	int err;

	if (!b->p)
		return;
	err = LIB(hetmem_priority(res, b->p, (int)(op->x % 5) - 2));
	must(!err || injected || err == -EBUSY || err == -EOPNOTSUPP, "errno", "priority: %d",
	     err);
}

static void op_access(const struct op *op)
{
	struct hetmem_access access = { .size = sizeof(access) };
	int err;

	(void)op;
	err = LIB(hetmem_resource_access(res, &access));
	must(!err || injected, "access", "%d", err);
	must(err || !access.host || access.some_host, "access", "host without some");
	must(err || !(access.devices & ~access.some_devices), "access", "devices without some");
}

static void op_retain(const struct op *op)
{
	const unsigned int id = 1 + op->other % MODEL_PRIVATE;
	int err;

	err = LIB(hetmem_private_retain(res, id));
	must(!err || injected || err == -EOPNOTSUPP, "errno", "retain: %d", err);
	retained[id] += !err;
	held_back |= !err;
}

static void release(unsigned int id, unsigned int stream)
{
	unsigned int i;
	int err;

	sync_all();
	err = LIB(hetmem_private_release(res, id, handle_of(stream)));
	must(!err || injected, "errno", "release: %d", err);
	if (err) {
		err = hetmem_private_release(res, id, handle_of(stream));
		must(!err, "release", "again: %d", err);
	}
	if (--retained[id])
		return;
	checkpoints[id].released = true;
	for (i = 0; i < MODEL_SLOTS; i++)
		if (slots[i].id == id) {
			slots[i].id = 0;
			slots[i].mask = 0;
		}
}

static void op_release(const struct op *op)
{
	const unsigned int id = 1 + op->other % MODEL_PRIVATE;

	if (retained[id] && !any_capturing())
		release(id, op->stream);
}

static void op_checkpoint(const struct op *op)
{
	const unsigned int id = 1 + op->other % MODEL_PRIVATE;
	struct checkpoint *c = &checkpoints[id];
	struct hetmem_checkpoint *made = NULL;
	unsigned int i;
	int err;

	if (!retained[id])
		return;
	err = LIB(hetmem_private_checkpoint(res, id, &made));
	must(!err || injected, "checkpoint", "%d", err);
	if (err)
		return;
	hetmem_checkpoint_free(c->made);
	*c = (struct checkpoint){ .made = made };
	for (i = 0; i < MODEL_SLOTS; i++)
		if (slots[i].p && slots[i].id == id)
			c->blocks[c->nr++] = (struct saved){
				slots[i].p, slots[i].size, slots[i].home,
			};
}

struct restored {
	unsigned int freed, allocated, kept;
};

static void count_restored(void *data, const struct hetmem_restored *block)
{
	struct restored *r = data;

	r->freed += block->kind == HETMEM_RESTORED_FREED;
	r->allocated += block->kind == HETMEM_RESTORED_ALLOCATED;
	r->kept += block->kind == HETMEM_RESTORED_KEPT;
}

/* The index in @c of the block of slot @i, or -1. */
static int saved_index(const struct checkpoint *c, unsigned int i)
{
	unsigned int k;

	for (k = 0; k < c->nr; k++)
		if (c->blocks[k].p == slots[i].p && c->blocks[k].size == slots[i].size &&
		    c->blocks[k].home == slots[i].home)
			return k;
	return -1;
}

static void op_restore(const struct op *op)
{
	const unsigned int id = 1 + op->other % MODEL_PRIVATE;
	struct checkpoint *c = &checkpoints[id];
	struct restored r = { 0 }, want = { 0 };
	bool there[MODEL_SLOTS] = { false };
	unsigned int i, k, empty = 0;
	int err, at;

	if (!c->made || any_capturing())
		return;
	for (i = 0; i < MODEL_SLOTS; i++) {
		empty += !slots[i].p;
		if (!slots[i].p || slots[i].id != id)
			continue;
		if (slots[i].orphan)
			return;
		at = saved_index(c, i);
		want.kept += at >= 0;
		want.freed += at < 0;
		if (at >= 0)
			there[at] = true;
	}
	for (k = 0; k < c->nr; k++)
		want.allocated += !there[k];
	if (empty < want.allocated)
		return;
	sync_all();
	err = LIB(hetmem_private_restore(res, c->made, count_restored, &r));
	if (err) {
		must(injected || (err == -ENOENT && c->released) ||
		     (err == -EBUSY && (asleep || any_tag_asleep())) ||
		     (err == -ENOMEM && limits_requested), "restore", "%d", err);
		must(!r.freed && !r.allocated && !r.kept, "all or nothing", "restore: %d", err);
		return;
	}
	must(r.freed == want.freed && r.allocated == want.allocated && r.kept == want.kept,
	     "restore", "%u freed, %u allocated, %u kept, not %u, %u, %u", r.freed, r.allocated,
	     r.kept, want.freed, want.allocated, want.kept);
	for (i = 0; i < MODEL_SLOTS; i++)
		if (slots[i].p && slots[i].id == id && saved_index(c, i) < 0) {
			place_drop(i);
			leave(i);
		}
	for (k = 0, i = 0; k < c->nr; k++) {
		if (there[k])
			continue;
		while (slots[i].p)
			i++;
		enter(i, &(struct block){
			.p = c->blocks[k].p, .size = c->blocks[k].size, .id = id,
			.home = c->blocks[k].home,
		});
	}
}

static void op_begin(const struct op *op)
{
	struct capture *c = &captures[op->stream % MODEL_STREAMS];
	const unsigned int s = op->stream % MODEL_STREAMS;
	unsigned int i;
	int err;

	if (on_cpu() || c->state != NO_CAPTURE || asleep || any_tag_asleep() || has("fixed("))
		return;
	/* Later work is not ordered after a stream that is captured. */
	driver_must(drv->cuStreamSynchronize(streams[s]));
	for (i = 0; i < MODEL_SLOTS; i++) {
		slots[i].mask &= ~(1U << s);
		if (slots[i].p)
			settle(&slots[i]);
	}
	err = LIB(hetmem_capture_begin(res, streams[s], next_capture));
	must(!err || injected || err == -EOPNOTSUPP, "errno", "begin: %d", err);
	if (err)
		return;
	driver_must(drv->cuStreamBeginCapture(streams[s], CU_STREAM_CAPTURE_MODE_RELAXED));
	*c = (struct capture){ .state = CAPTURING, .id = next_capture++ };
	held_back = true;
}

static void end_capture(unsigned int s)
{
	struct capture *c = &captures[s];
	CUgraph graph;
	int err;

	driver_must(drv->cuStreamEndCapture(streams[s], &graph));
	err = LIB(hetmem_capture_end(res, streams[s], c->id));
	must(!err || injected, "errno", "end: %d", err);
	if (err) {
		err = hetmem_capture_end(res, streams[s], c->id);
		must(!err, "end", "again: %d", err);
	}
	driver_must(drv->cuGraphInstantiateWithFlags(&c->exec, graph, 0));
	driver_must(drv->cuGraphDestroy(graph));
	c->state = CAPTURED;
}

static void op_end(const struct op *op)
{
	if (is_capturing(op->stream))
		end_capture(op->stream);
}

static void op_launch(const struct op *op)
{
	const unsigned int s = op->stream;
	unsigned int i;

	/* A provider without a pool takes memory back that the graph may still write. */
	if (s >= MODEL_STREAMS || captures[s].state != CAPTURED || asleep || has_plain())
		return;
	for (i = 0; i < MODEL_SLOTS; i++)
		if (slots[i].p && slots[i].capture == s + 1)
			order_after(s, &slots[i]);
	driver_must(drv->cuGraphLaunch(captures[s].exec, streams[s]));
	for (i = 0; i < MODEL_SLOTS; i++) {
		struct block *b = &slots[i];

		if (!b->p || b->capture != s + 1)
			continue;
		/* A graph can write a block by an earlier block at the same place. */
		b->value = b->at_launch;
		b->written = b->at_launch ? b->size : 0;
		b->mask = 0;
	}
}

static void drop(unsigned int s)
{
	struct capture *c = &captures[s];
	unsigned int i;
	int err;

	driver_must(drv->cuStreamSynchronize(streams[s]));
	driver_must(drv->cuGraphExecDestroy(c->exec));
	err = LIB(hetmem_capture_release(res, streams[s], c->id));
	must(!err || injected, "errno", "capture release: %d", err);
	if (err) {
		err = hetmem_capture_release(res, streams[s], c->id);
		must(!err, "capture release", "again: %d", err);
	}
	c->state = NO_CAPTURE;
	for (i = 0; i < MODEL_SLOTS; i++)
		if (slots[i].capture == s + 1)
			slots[i].capture = 0;
}

static void op_drop(const struct op *op)
{
	if (op->stream < MODEL_STREAMS && captures[op->stream].state == CAPTURED)
		drop(op->stream);
}

/* In a forked child: 0, or the line that is wrong. */
static int in_child(void)
{
	unsigned int i;
	void *p = NULL;
	int err = hetmem_alloc(res, 5000, 0, HETMEM_STREAM_HOST, &p);

	if (!(row.flags & FORKS))
		return err == -EOWNERDEAD ? 0 : __LINE__ % 200 + 1;
	if (row.largest && err == -ENOMEM)
		return 0;
	if (err && err != -ENOMEM)
		return __LINE__ % 200 + 1;
	if (!err) {
		memset(p, 1, 5000);
		if (hetmem_free(res, p, 5000, HETMEM_STREAM_HOST))
			return __LINE__ % 200 + 1;
	}
	for (i = 0; i < MODEL_SLOTS; i++)
		if (slots[i].p && wrong_at(slots[i].p, slots[i].written, slots[i].value) !=
				  slots[i].written)
			return __LINE__ % 200 + 1;
	return 0;
}

static void op_fork(const struct op *op)
{
	int status = -1;
	pid_t pid;

	(void)op;
	if (any_capturing())
		return;
	sync_all();
	fflush(stdout);
	pid = fork();
	if (!pid) {
		alarm(60); /* time: a child that hangs ends */
		_exit(in_child());
	}
	must(pid > 0 && waitpid(pid, &status, 0) == pid, "fork", "%d", errno);
	must(!status, "fork", "status %#x of the child", status);
}

static void op_export(const struct op *op)
{
	struct block *b = &slots[op->slot];
	struct hetmem_segment segments[64];
	unsigned char *copy;
	void *p = NULL;
	ssize_t n, i;
	int fds[64], err;

	if (!may_use(b) || !has("export=") || any_capturing())
		return;
	n = LIB(hetmem_export(res, b->p, fds, segments, 64));
	must(n > 0 || injected || (n == -EBUSY && asleep), "export", "%zd", n);
	if (n <= 0)
		return;
	b->exported = true;
	pinned = held_back = true;
	err = LIB(hetmem_import(hm, 0, fds, segments, n, &p));
	must(!err || injected || err == -ENOMEM, "import", "%d", err);
	if (!err && b->written) {
		copy = malloc(b->written);
		order_after(MODEL_HOST, b);
		driver_must(drv->cuMemcpyAsync((uintptr_t)copy, (uintptr_t)p, b->written, aux));
		driver_must(drv->cuStreamSynchronize(aux));
		must(wrong_at(copy, b->written, b->value) == b->written, "contents", "imported");
		free(copy);
	}
	if (!err) {
		err = hetmem_import_close(hm, p);
		must(!err, "import", "close: %d", err);
	}
	for (i = 0; i < n; i++)
		close(fds[i]);
}

static void write_ring(struct ring *r, unsigned int s)
{
	r->value = new_value();
	r->by = s;
	if (on_cpu())
		host_pattern(r->p + r->size / 2, r->size, r->value);
	else
		write_pattern(r->p + r->size / 2, r->size, r->value, worker_of(s));
	if (s == MODEL_HOST && !on_cpu())
		driver_must(drv->cuStreamSynchronize(aux));
}

/* The pattern is there across the end, and both addresses have the same bytes. */
static void verify_ring(const struct ring *r)
{
	unsigned char *copy = r->p;
	size_t at;

	if (!on_cpu()) {
		copy = malloc(2 * r->size);
		must(copy, "host memory", "%zu bytes", 2 * r->size);
		order(MODEL_HOST, r->by);
		driver_must(drv->cuMemcpyAsync((uintptr_t)copy, (uintptr_t)r->p, 2 * r->size, aux));
		driver_must(drv->cuStreamSynchronize(aux));
	}
	at = wrong_at(copy + r->size / 2, r->size, r->value);
	must(at == r->size, "contents", "ring %p of %zu bytes, at %zu", r->p, r->size, at);
	must(!memcmp(copy, copy + r->size, r->size), "ring", "%p: its addresses differ", r->p);
	if (copy != r->p)
		free(copy);
}

/* A ring is allocated, or written again, or freed. */
static void op_ring(const struct op *op)
{
	struct hetmem_alloc_params params = {
		.size = sizeof(params), .flags = HETMEM_ALLOC_RING, .stream = handle_of(op->stream),
		.bytes = (size_t)(1 + op->x % 3) * (has("stripe=") ? 4 << 20 : 2 << 20),
	};
	struct ring *r = &rings[op->slot];
	void *p = NULL;
	int err;

	if (any_capturing())
		return;
	if (!r->p) {
		err = LIB(hetmem_alloc_with(res, &params, &p));
		must(!err || injected || err == -ENOMEM || err == -EOPNOTSUPP ||
		     (err == -EBUSY && asleep) || (err == -EINVAL && has("custom(")), "errno",
		     "ring: %d", err);
		must(!err == !!p, "all or nothing", "ring: %d", err);
		if (err)
			return;
		/* Its memory stays where it is. */
		pinned = held_back = true;
		*r = (struct ring){ .p = p, .size = params.bytes };
		place_range(2 * MODEL_SLOTS + op->slot, p, 2 * r->size);
		__atomic_add_fetch(&nr_requested, r->size, __ATOMIC_RELAXED);
		__atomic_add_fetch(&nr_live, 1, __ATOMIC_RELAXED);
		__atomic_add_fetch(&nr_allocs, 1, __ATOMIC_RELAXED);
		write_ring(r, op->stream);
		return;
	}
	if (!asleep)
		verify_ring(r);
	order(op->stream, r->by);
	if (!asleep && op->x / 4 % 2) {
		write_ring(r, op->stream);
		return;
	}
	place_drop(2 * MODEL_SLOTS + op->slot);
	err = LIB(hetmem_free(res, r->p, op->x % 2 ? r->size : 0, params.stream));
	must(!err || injected, "free", "of a ring: %d", err);
	if (err)
		err = hetmem_free(res, r->p, r->size, params.stream);
	must(!err, "free", "again, of a ring: %d", err);
	__atomic_sub_fetch(&nr_live, 1, __ATOMIC_RELAXED);
	__atomic_sub_fetch(&nr_requested, r->size, __ATOMIC_RELAXED);
	__atomic_add_fetch(&nr_frees, 1, __ATOMIC_RELAXED);
	memset(r, 0, sizeof(*r));
}

static void op_comm(const struct op *op)
{
	struct hetmem_segment segment = { .handle_types = 0 };
	struct block *b = &slots[op->slot];
	ssize_t n;
	int err;

	if (!b->p || any_capturing())
		return;
	settle(b);
	if (b->comm && op->x % 4 == 0) {
		err = LIB(hetmem_unpin_comm(res, b->p));
		must(!err || injected || is_asleep(b), "errno", "unpin: %d", err);
		return;
	}
	order_after(b->home, b);
	b->mask = 0;
	err = LIB(hetmem_pin_comm(res, b->p));
	/* Blocks beside it may be of any stream; and the pool holds its handles twice for a while. */
	must(!err || injected || err == -EOPNOTSUPP || (is_vmm() && (err == -EBUSY || err == -ENOMEM)) ||
	     (err == -EBUSY && is_asleep(b)), "errno", "comm: %d", err);
	if (err)
		return;
	b->comm = pinned = held_back = true;
	n = hetmem_segments(res, b->p, b->size, &segment, 1);
	must(strncmp(row.spec, "pool(vmm", 8) || has("comm=") || has("stripe=") || b->hole || injected || !b->size ||
	     (n == 1 && segment.handle_types == HETMEM_HANDLE_FD), "comm", "%zd parts, types %u", n,
	     segment.handle_types);
}

static void op_set(const struct op *op)
{
	const unsigned int mib = (16 + op->x % 64) * (has("stripe=") ? 4 : 1);
	char text[16];
	int err;

	if (any_capturing())
		return;
	snprintf(text, sizeof(text), "%uM", mib);
	err = LIB(hetmem_resource_set(res, "max", text));
	must(!err || injected || err == -EOPNOTSUPP, "errno", "set: %d", err);
	if (err)
		return;
	held_back = limit_set = true;
	limit = (size_t)mib << 20;
	if (has("fallback(") || has("binning("))
		limit = 0;
	else if (limits_requested ? stats().requested > limit : stats().reserved > limit)
		limit = limits_requested ? stats().requested : stats().reserved;
}

static void op_stats(const struct op *op)
{
	const struct hetmem_resource_stats s = stats();

	(void)op;
	must(s.frees <= s.allocs, "stats", "%" PRIu64 " frees, %" PRIu64 " allocs", s.frees,
	     s.allocs);
}

#endif /* HETMEM_SELFTESTS_MODEL_OPERATIONS_H */
