// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * What other processes read of a pool: core/publish.h. Everything is written under
 * pool->lock. The slow path writes what it changes. A stream that only hits its cache writes
 * after each HM_PUBLISH_BATCH allocations; if the lock is taken then, it tries again soon.
 */
#include "pool/show.h"
#include "pool/source.h"

/* Cached allocations until a stream that did not get the lock tries again. */
#define AGAIN	64

void hm_stream_end_batch(struct pool *p, struct pool_stream *s)
{
	const bool shows = p->published && !pthread_mutex_trylock(&p->lock);
	const int32_t next = p->published && !shows ? AGAIN : HM_PUBLISH_BATCH;

	s->batches += next;
	s->batch += next;
	if (!shows)
		return;
	pool_publish_stream(p, s);
	pthread_mutex_unlock(&p->lock);
}

void hm_pool_show(struct pool *p)
{
	struct hm_published_pool *to = p->published;
	struct hetmem_resource_stats st = { 0 };

	if (!to)
		return;
	hm_publish_set(&to->max, p->opt.max);
	hm_publish_set(&to->requested_peak, p->requested_peak);
	hm_publish_set(&to->reserved, p->reserved);
	hm_publish_set(&to->reserved_peak, p->reserved_peak);
	hm_publish_set(&to->failed, p->failed);
	hm_publish_set(&to->driver_calls, p->calls + p->order.calls);
	hm_publish_set(&to->host_wait_ns, p->order.wait_ns);
	if (p->source->parked)
		hm_publish_set(&to->parked, p->source->parked(p));
	if (!p->source->moved)
		return;
	p->source->moved(p, &st);
	hm_publish_set(&to->spilled, st.spilled);
	hm_publish_set(&to->spill_host, st.spill_host);
	hm_publish_set(&to->spilled_total, st.spilled_total);
	hm_publish_set(&to->fetched_total, st.fetched_total);
}
