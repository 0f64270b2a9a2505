// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/* The members of a pool with tags: what they hold together. See tags.h. */
#include <string.h>

#include "pool/pool_impl.h"
#include "pool/source.h"

void hm_tags_hold(struct hm_tags *t, uint64_t bytes)
{
	uint64_t held, peak;

	if (!t)
		return;
	held = __atomic_add_fetch(&t->held, bytes, __ATOMIC_RELAXED);
	peak = __atomic_load_n(&t->held_peak, __ATOMIC_RELAXED);
	while (held > peak && !__atomic_compare_exchange_n(&t->held_peak, &peak, held, true,
							   __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

void hm_tags_unhold(struct hm_tags *t, uint64_t bytes)
{
	if (t)
		__atomic_sub_fetch(&t->held, bytes, __ATOMIC_RELAXED);
}

uint64_t hm_pool_held(const struct pool *p)
{
	return p->tags ? hm_tags_held(p->tags) : p->reserved;
}

bool hm_tags_relieve(struct pool *p, uint64_t until)
{
	struct hm_tags *t = p->tags;
	unsigned int naps = 0;
	uint64_t before;
	bool wait;

	if (!t || !__atomic_load_n(&t->pool->tagged, __ATOMIC_ACQUIRE))
		return false;
	before = hm_tags_held(t);
	do {
		pthread_mutex_unlock(&p->lock);
		wait = t->ops->spare(t, p, until) && hm_tags_held(t) >= before;
		pthread_mutex_lock(&p->lock);
		wait = wait && !p->asleep && hm_now() < until;
		if (wait)
			hm_order_nap(&p->order, &naps);
	} while (wait);
	p->work = 0;
	return hm_tags_held(t) < before;
}

int hm_pool_tag_stats(struct pool *p, struct hm_ctl_tag_stats *arg)
{
	struct hetmem_resource_stats one = { .size = sizeof(one) };
	int err;

	if (arg->tag && strcmp(arg->tag, p->opt.tag))
		return 0;
	err = hm_pool_ctl(p, HM_CTL_STATS, &one);
	if (!err) {
		hm_stats_add(arg->sum, &one);
		arg->nr++;
	}
	return err;
}

uint64_t hm_tags_parked(const struct pool *p)
{
	return p->tags ? p->tags->ops->parked(p->tags, p) : 0;
}

void hm_tags_adopt(struct pool *p, const struct pool *of)
{
	p->opt.max = of->opt.max;
	p->opt.most = of->opt.most;
	p->opt.wait_ms = of->opt.wait_ms;
	p->opt.decay_ms = of->opt.decay_ms;
	p->opt.cache = of->opt.cache;
	p->opt.give = of->opt.give;
	p->opt.gives_part = of->opt.gives_part;
	__atomic_store_n(&p->cache_max, __atomic_load_n(&of->cache_max, __ATOMIC_RELAXED),
			 __ATOMIC_RELAXED);
}
