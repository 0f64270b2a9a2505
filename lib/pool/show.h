/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* Figures that the slow path writes for other processes: show.c. */
#ifndef HETMEM_POOL_SHOW_H
#define HETMEM_POOL_SHOW_H

#include "pool/counters.h"
#include "pool/pool_impl.h"

/*
 * Writes what @s changed since it was shown. @remote_bytes and @remote_frees are the remote
 * frees that @s has not taken yet, as far as the caller looked. Under both locks.
 *
 * Counters never go back. A caller that looked at no remote frees leaves the frees that an
 * earlier caller counted.
 */
static inline void pool_show_stream(struct pool *p, struct pool_stream *s, uint64_t remote_bytes,
				    uint64_t remote_frees)
{
	struct hm_published_pool *to = p->published;
	const int64_t requested = s->requested - remote_bytes;
	uint64_t allocs, frees = s->frees + remote_frees;

	if (!to)
		return;
	allocs = stream_allocs(s);
	if (frees < s->shown_frees)
		frees = s->shown_frees;
	hm_publish_set(&to->requested, to->requested + requested - s->shown_requested);
	hm_publish_set(&to->allocs, to->allocs + allocs - s->shown_allocs);
	hm_publish_set(&to->frees, to->frees + frees - s->shown_frees);
	s->shown_requested = requested;
	s->shown_allocs = allocs;
	s->shown_frees = frees;
}

/* Publishes which device it is. */
void hm_pool_show_device(struct pool *p);

/* HM_CTL_PRESSURE */
int hm_pool_show_pressure(struct pool *p);

#endif /* HETMEM_POOL_SHOW_H */
