/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Figures that the slow path writes for other processes: show.c. */
#ifndef HETMEM_POOL_SHOW_H
#define HETMEM_POOL_SHOW_H

#include "pool/pool_impl.h"

/* Writes what @s changed since it was shown. Under both locks. */
static inline void pool_show_stream(struct pool *p, struct pool_stream *s)
{
	struct hm_published_pool *to = p->published;
	uint64_t allocs;

	if (!to)
		return;
	allocs = stream_allocs(s);
	hm_publish_set(&to->requested, to->requested + s->requested - s->shown_requested);
	hm_publish_set(&to->allocs, to->allocs + allocs - s->shown_allocs);
	hm_publish_set(&to->frees, to->frees + s->frees - s->shown_frees);
	s->shown_requested = s->requested;
	s->shown_allocs = allocs;
	s->shown_frees = s->frees;
}

#endif /* HETMEM_POOL_SHOW_H */
