// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * A data-memory handler for NumPy (NEP 49). NumPy calls these functions with
 * its own interpreter's lock held, or without one.
 *
 * A large array has a block of the resource, a small one memory of the handler
 * that was in place before. The sizes that NumPy passes to free() can be wrong,
 * so the address decides whose it is. The handler keeps the addresses of its
 * blocks itself: the resource gives no answer in a forked child, which must not
 * free the parent's blocks by the other handler. Most addresses need no lookup:
 * blocks are at multiples of HETMEM_ALIGNMENT.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/resource.h"

/* PyDataMem_Handler, version 1 */
struct numpy_handler {
	char name[127];
	uint8_t version;
	void *ctx;
	void *(*malloc)(void *ctx, size_t size);
	void *(*calloc)(void *ctx, size_t nr, size_t size);
	void *(*realloc)(void *ctx, void *ptr, size_t size);
	void (*free)(void *ctx, void *ptr, size_t size);
};

/**
 * struct numpy - a handler; its ctx
 * @other: for arrays of fewer than @least bytes
 * @unknown: stream of a free. Memory that only the CPU uses is freed on the
 *	host's: a forked child can do that, too
 * @blocks: of live arrays, by struct block
 */
struct numpy {
	struct numpy_handler handler;
	const struct numpy_handler *other;
	struct hetmem_resource *res;
	size_t least;
	hetmem_stream unknown;
	struct hm_lock lock;
	void *blocks;
};

struct block {
	struct hm_range range;
};

static void *other_malloc(const struct numpy *n, size_t size)
{
	return n->other->malloc(n->other->ctx, size);
}

static void other_free(const struct numpy *n, void *ptr, size_t size)
{
	n->other->free(n->other->ctx, ptr, size);
}

static int remember(struct numpy *n, void *ptr, size_t size)
{
	struct block *b = malloc(sizeof(*b));
	int err;

	if (!b)
		return -ENOMEM;
	b->range.start = (uintptr_t)ptr;
	b->range.end = (uintptr_t)ptr + size;
	hm_lock(&n->lock);
	err = hm_range_insert(&n->blocks, &b->range);
	hm_unlock(&n->lock);
	if (err)
		free(b);
	return err;
}

/* Returns the bytes of the block at @ptr, 0 if there is none. */
static size_t look(struct numpy *n, void *ptr, bool forget)
{
	struct hm_range *range;
	size_t size = 0;

	if (!ptr || (uintptr_t)ptr & (HETMEM_ALIGNMENT - 1))
		return 0;
	hm_lock(&n->lock);
	range = hm_range_find(&n->blocks, (uintptr_t)ptr, 1);
	if (range && range->start != (uintptr_t)ptr)
		range = NULL;
	if (range) {
		size = range->end - range->start;
		if (forget)
			hm_range_erase(&n->blocks, range);
	}
	hm_unlock(&n->lock);
	if (range && forget)
		free(hm_container(range, struct block, range));
	return size;
}

/* A forked child that has no memory of the device goes on with the other handler. */
static void *numpy_malloc(void *ctx, size_t size)
{
	struct numpy *n = ctx;
	void *ptr;
	int err;

	if (size < n->least)
		return other_malloc(n, size);
	err = hetmem_alloc(n->res, size, 0, HETMEM_STREAM_HOST, &ptr);
	if (err == -EOWNERDEAD)
		return other_malloc(n, size);
	if (err)
		return NULL;
	if (remember(n, ptr, size)) {
		hetmem_free(n->res, ptr, 0, HETMEM_STREAM_HOST);
		return NULL;
	}
	return ptr;
}

static void *numpy_calloc(void *ctx, size_t nr, size_t size)
{
	const struct numpy *n = ctx;
	size_t bytes;
	void *ptr;

	if (__builtin_mul_overflow(nr, size, &bytes))
		return NULL;
	if (bytes < n->least)
		return n->other->calloc(n->other->ctx, nr, size);
	ptr = numpy_malloc(ctx, bytes);
	return ptr ? memset(ptr, 0, bytes) : NULL;
}

static void numpy_free(void *ctx, void *ptr, size_t size)
{
	struct numpy *n = ctx;
	int err;

	if (!look(n, ptr, true)) {
		other_free(n, ptr, size);
		return;
	}
	err = hetmem_free(n->res, ptr, 0, n->unknown);
	/* A child leaves the parent's memory as it is. */
	if (hm_unlikely(err && err != -EOWNERDEAD))
		fprintf(stderr, "hetmem: numpy: free: %s\n", hetmem_last_error());
}

/* Only the other handler knows the size of @ptr: it grows it first. */
static void *grow_other(struct numpy *n, void *ptr, size_t size)
{
	void *same = n->other->realloc(n->other->ctx, ptr, size);
	void *block;

	if (!same || size < n->least)
		return same;
	block = numpy_malloc(n, size);
	if (!block)
		return same;
	memcpy(block, same, size);
	other_free(n, same, size);
	return block;
}

static void *numpy_realloc(void *ctx, void *ptr, size_t size)
{
	struct numpy *n = ctx;
	size_t before;
	void *block;

	if (!ptr)
		return numpy_malloc(n, size);
	before = look(n, ptr, false);
	if (!before)
		return grow_other(n, ptr, size);
	block = numpy_malloc(n, size);
	if (block) {
		memcpy(block, ptr, size < before ? size : before);
		numpy_free(n, ptr, before);
	}
	return block;
}

int hetmem_numpy_handler(struct hetmem_resource *res, size_t least,
			 const void *other, void **handler)
{
	struct hetmem_access access = { .size = sizeof(access) };
	const struct numpy_handler *o = other;
	struct numpy *n;
	int err;

	if (!res || !o || !handler)
		return hm_error(-EINVAL, "numpy_handler: %s is NULL", !res ? "res" :
				!o ? "other" : "handler");
	if (o->version != 1)
		return hm_error(-EINVAL, "numpy_handler: version %u of the other handler is not known",
				o->version);
	err = hetmem_resource_access(res, &access);
	if (err)
		return err;
	if (!access.host)
		return hm_error(-EOPNOTSUPP, "numpy_handler: the CPU cannot use all memory of the resource: take unified or pool(host)");
	n = malloc(sizeof(*n));
	if (!n)
		return hm_error(-ENOMEM, "numpy_handler: no host memory");
	*n = (struct numpy){
		.handler = {
			.name = "hetmem",
			.version = 1,
			.ctx = n,
			.malloc = numpy_malloc,
			.calloc = numpy_calloc,
			.realloc = numpy_realloc,
			.free = numpy_free,
		},
		.other = o,
		.res = res,
		.least = least ? least : 1,
		.unknown = access.some_devices ? HETMEM_STREAM_UNKNOWN :
			HETMEM_STREAM_HOST,
	};
	hm_lock_init(&n->lock, HM_FORK_LOGS);
	*handler = &n->handler;
	return 0;
}
