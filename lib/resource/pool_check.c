// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The pool tells check mode what it gives out and takes back. A handle that
 * means a stream of the current context means one of the pool's here.
 */
#include "driver/check.h"
#include "resource/pool_impl.h"

void hm_pool_tell_alloc(struct pool *p, const void *ptr, size_t size,
			hetmem_stream stream)
{
	const struct block *b = hm_block_find(p, (uintptr_t)ptr);
	struct hm_context saved;
	bool entered;

	/* A capture's was told of when it became the capture's. */
	if (b && b->flags & BLOCK_GRAPH)
		return;
	entered = p->res.device >= 0 &&
		  !hm_context_enter(p->res.hm, p->res.device, &saved);
	hm_check_alloc(p->res.hm, ptr, size, stream);
	if (entered)
		hm_context_leave(p->res.hm, &saved);
}

/* With the lock. */
static void tell_uses(struct pool *p, const struct block *b, size_t size)
{
	uint32_t id = b->flags & BLOCK_USED ? b->left : 0;

	while (id) {
		struct use *u = (struct use *)p->uses.base + id;
		struct pool_stream *s = stream_at(p, u->stream);

		if (s->s.serial == u->pos && !s->s.retired)
			hm_check_free(p->res.hm, (void *)(uintptr_t)b->addr,
				      size, hm_stream_handle(&s->s));
		id = u->next;
	}
}

void hm_pool_tell_free(struct pool *p, const struct block *b,
		       hetmem_stream stream)
{
	const size_t size = block_bytes(b) - b->slack;
	struct hm_context saved;
	struct pool_stream *s;
	bool entered;

	entered = p->res.device >= 0 &&
		  !hm_context_enter(p->res.hm, p->res.device, &saved);
	pthread_mutex_lock(&p->lock);
	if (stream == HETMEM_STREAM_UNKNOWN) {
		s = stream_at(p, b->stream);
		stream = s->s.serial == b->pos && !s->s.retired ?
			hm_stream_handle(&s->s) : HETMEM_STREAM_HOST;
	}
	hm_check_free(p->res.hm, (void *)(uintptr_t)b->addr, size, stream);
	tell_uses(p, b, size);
	pthread_mutex_unlock(&p->lock);
	if (entered)
		hm_context_leave(p->res.hm, &saved);
}
