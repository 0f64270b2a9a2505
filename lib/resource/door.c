// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The door of a stack: what a program holds in check mode, and where a guard is
 * in the stack. It passes everything on. When the stack is destroyed the door
 * stays until hetmem_close(), so that whoever uses the resource after that is
 * told so; elsewhere a program holds the top of the stack itself, and there is
 * nothing to be told by.
 */
#include <errno.h>
#include <stdlib.h>

#include "resource/adaptor.h"

/**
 * struct hm_door - a stack that is destroyed on its own account
 * @ops: the name is that of the resource behind it
 * @next: of those that lead nowhere, see struct hetmem
 */
struct hm_door {
	struct hetmem_resource resource;
	struct hm_resource_ops ops;
	struct hm_door *next;
};

static int gone(const struct hetmem_resource *self, const char *what)
{
	return hm_error(-EINVAL, "%s: the resource (%s) was destroyed before",
			what, self->ops->name);
}

static int gone_alloc(struct hetmem_resource *self, size_t size, size_t align,
		      hetmem_stream stream, void **ptr)
{
	(void)size;
	(void)align;
	(void)stream;
	(void)ptr;
	return gone(self, "alloc");
}

static int gone_free(struct hetmem_resource *self, void *ptr, size_t size,
		     hetmem_stream stream)
{
	(void)ptr;
	(void)size;
	(void)stream;
	return gone(self, "free");
}

static int gone_ctl(struct hetmem_resource *self, enum hm_ctl op, void *arg)
{
	(void)op;
	(void)arg;
	return gone(self, "resource");
}

static void gone_destroy(struct hetmem_resource *self)
{
	(void)self;
}

static int door_alloc(struct hetmem_resource *self, size_t size, size_t align,
		      hetmem_stream stream, void **ptr)
{
	struct hetmem_resource *up = self->upstream;

	return up->ops->alloc(up, size, align, stream, ptr);
}

static int door_free(struct hetmem_resource *self, void *ptr, size_t size,
		     hetmem_stream stream)
{
	struct hetmem_resource *up = self->upstream;

	return up->ops->free(up, ptr, size, stream);
}

/* Before what is behind it is: nothing is passed on from here. */
static void door_destroy(struct hetmem_resource *self)
{
	struct hm_door *door = (struct hm_door *)self;
	struct hetmem *hm = self->hm;

	door->ops.alloc = gone_alloc;
	door->ops.free = gone_free;
	door->ops.ctl = gone_ctl;
	door->ops.destroy = gone_destroy;
	self->upstream = NULL;
	door->next = __atomic_load_n(&hm->doors, __ATOMIC_RELAXED);
	while (!__atomic_compare_exchange_n(&hm->doors, &door->next, door,
					    true, __ATOMIC_RELEASE,
					    __ATOMIC_RELAXED))
		;
}

int hm_door_create(struct hetmem_resource *upstream,
		   struct hetmem_resource **res)
{
	struct hm_door *door = calloc(1, sizeof(*door));

	if (!door)
		return hm_error(-ENOMEM, "resource: no memory");
	door->ops = (struct hm_resource_ops){
		.name = upstream->ops->name,
		.alloc = door_alloc,
		.free = door_free,
		.ctl = hm_ctl_upstream,
		.destroy = door_destroy,
	};
	hm_adaptor_init(&door->resource, &door->ops, upstream);
	*res = &door->resource;
	return 0;
}

bool hm_door_gone(const struct hetmem_resource *res)
{
	return res->ops->destroy == gone_destroy;
}

void hm_doors_free(struct hetmem *hm)
{
	struct hm_door *door = hm->doors, *next;

	for (; door; door = next) {
		next = door->next;
		free(door);
	}
	hm->doors = NULL;
}
