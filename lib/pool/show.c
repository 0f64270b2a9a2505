// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Figures: what other processes read of a pool (core/publish.h), and its statistics. Figures
 * never steer: no decision reads what this file writes, and asking changes nothing else. So a
 * pool holds the same memory whether it is watched or not.
 *
 * Everything is written under pool->lock. The slow path writes what it changes. A stream that
 * only hits its cache writes after each HM_PUBLISH_BATCH allocations; if the lock is taken
 * then, it tries again soon.
 */
#include <string.h>

#include "driver/hetmem.h"
#include "pool/show.h"
#include "pool/source.h"

/* Cached allocations until a stream that did not get the lock tries again. */
#define AGAIN	64
/* Streams that statistics look at in one hold of the lock. */
#define COUNTED	256

void hm_stream_end_batch(struct pool *p, struct pool_stream *s)
{
	const bool shows = p->published && !pthread_mutex_trylock(&p->lock);
	const int32_t next = p->published && !shows ? AGAIN : HM_PUBLISH_BATCH;

	__atomic_store_n(&s->batches, s->batches + next, __ATOMIC_RELAXED);
	__atomic_store_n(&s->batch, s->batch + next, __ATOMIC_RELAXED);
	if (!shows)
		return;
	pool_show_stream(p, s, 0, 0);
	pthread_mutex_unlock(&p->lock);
}

static uint64_t peak(const struct pool *p)
{
	return p->shown_peak > p->requested_peak ? p->shown_peak : p->requested_peak;
}

/* As hm_pool_sum(), without taking remote frees or beginning anew. Returns the sum. */
static int64_t count_requested(struct pool *p)
{
	int64_t sum = 0, low = 0, most = 0;
	unsigned int i;

	for (i = 0; i < p->order.nr; i++) {
		struct pool_stream *s = stream_at(p, i);
		int64_t now, least;
		uint64_t nr;

		if (stream_is_published(s)) {
			sum += s->published;
			low += s->published;
			continue;
		}
		stream_lock(s);
		now = s->requested - hm_stream_remote_requested(p, s, &nr);
		least = now < s->low ? now : s->low;
		if (s->high - least > most)
			most = s->high - least;
		stream_unlock(s);
		sum += now;
		low += least;
	}
	low = low + most > sum ? low + most : sum;
	if (low > 0 && (uint64_t)low > p->shown_peak)
		p->shown_peak = low;
	return sum;
}

void hm_pool_count(struct pool *p, struct hetmem_resource_stats *st)
{
	unsigned int i;

	st->requested = count_requested(p);
	st->requested_peak = peak(p);
	hm_pool_show(p);
	hm_pool_pause(p);
	for (i = 0; i < p->order.nr; i++) {
		struct pool_stream *s = stream_at(p, i);
		uint64_t bytes, frees;

		stream_lock(s);
		bytes = hm_stream_remote_requested(p, s, &frees);
		st->allocs += stream_allocs(s);
		st->frees += s->frees + frees;
		pool_show_stream(p, s, bytes, frees);
		stream_unlock(s);
		if (i % COUNTED == COUNTED - 1)
			hm_pool_pause(p);
	}
	st->live = st->allocs - st->frees;
}

void hm_pool_show_device(struct pool *p)
{
	const struct hetmem *hm = p->res.hm;
	CUuuid uuid;

	if (p->published && p->res.device >= 0 && hm->driver.cuDeviceGetUuid &&
	    !hm->driver.cuDeviceGetUuid(&uuid, hm->devices[p->res.device].handle))
		memcpy(p->published->uuid, &uuid, sizeof(p->published->uuid));
}

int hm_pool_show_pressure(struct pool *p)
{
	pthread_mutex_lock(&p->lock);
	if (p->published)
		hm_publish_set(&p->published->pressures, p->published->pressures + 1);
	pthread_mutex_unlock(&p->lock);
	return 0;
}

void hm_pool_show(struct pool *p)
{
	struct hm_published_pool *to = p->published;
	struct hetmem_resource_stats st = { 0 };

	if (!to)
		return;
	hm_publish_set(&to->max, p->opt.max);
	hm_publish_set(&to->requested_peak, peak(p));
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
