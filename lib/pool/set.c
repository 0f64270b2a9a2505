// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * Options of a pool that change at run time: by hetmem_resource_set(), and by requests of other
 * processes of the user (core/asked.h), which also ask for free memory.
 *
 * A request is answered at the start of a call that is not served by a stream's cache, or once
 * in HM_PUBLISH_BATCH calls that are, or by the agent's thread. The answer waits for no work:
 * memory that earlier work uses stays. The caller holds no lock of the pool.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "pool/set.h"
#include "pool/show.h"
#include "pool/source.h"

/* Trim keeps what it is told to, so a large region can stay: then all free memory goes. */
void hm_pool_shrink(struct pool *p, bool now)
{
	size_t keep, step;
	uint64_t max;

	for (step = 0; step < 2; step++) {
		pthread_mutex_lock(&p->lock);
		max = p->opt.max && p->reserved > p->opt.max ? p->opt.max : 0;
		pthread_mutex_unlock(&p->lock);
		if (!max)
			return;
		keep = step ? 0 : max;
		hm_pool_trim_until(p, &keep, now ? 0 : hm_now() + hm_pool_most_wait(p));
	}
}

int hm_pool_set(struct pool *p, struct hm_ctl_set *set)
{
	struct hm_pool_options opt;
	int err;

	pthread_mutex_lock(&p->lock);
	opt = p->opt;
	err = set->change(set, "pool", p->provider->total, &opt);
	if (!err)
		err = hm_pool_check_options(&opt, p->provider);
	/* Each tag has addresses of its own, and all of them together max=. */
	if (p->member)
		opt.min = 0;
	if (!err && p->source->addresses && opt.max > p->opt.max && !p->member &&
	    opt.max > p->source->addresses(p))
		err = hm_error(-EINVAL, "pool: max=%llu is more than its %llu bytes of addresses: make it with reserve=",
			       (unsigned long long)opt.max,
			       (unsigned long long)p->source->addresses(p));
	if (!err && !set->try) {
		p->opt.max = opt.max;
		p->opt.most = opt.most;
		p->opt.min = opt.min;
		p->opt.wait_ms = opt.wait_ms;
		p->opt.decay_ms = opt.decay_ms;
		p->opt.cache = opt.cache;
		p->opt.give = opt.give;
		p->opt.gives_part = opt.gives_part;
		p->decay_at = 0;
		hm_pool_set_cache(p);
		hm_pool_show(p);
	}
	pthread_mutex_unlock(&p->lock);
	if (!err && !set->try)
		hm_pool_shrink(p, set->now);
	return err == -ENOENT ? -EOPNOTSUPP : err;
}

/* For hm_pool_set(): @set->text is a number. */
static int change_max(const struct hm_ctl_set *set, const char *kind, uint64_t total, void *out)
{
	struct hm_pool_options *options = out;

	(void)kind;
	(void)total;
	if (!hm_parse_size(set->text, &options->max) || !options->max)
		return hm_error(-EINVAL, "pool: max is at least a byte");
	options->most = options->max;
	return 0;
}

static int set_max(struct pool *p, uint64_t bytes)
{
	char text[24];
	struct hm_ctl_set set = {
		.name = "max", .text = text, .now = true, .change = change_max,
	};

	snprintf(text, sizeof(text), "%llu", (unsigned long long)bytes);
	return p->tags ? p->tags->ops->ctl(p->tags, HM_CTL_SET, &set) : hm_pool_set(p, &set);
}

/* Returns the bytes that were given back: @bytes at most, and no more than give= allows. */
static uint64_t give_up(struct pool *p, uint64_t bytes)
{
	size_t arg;

	pthread_mutex_lock(&p->lock);
	if (p->opt.gives_part && bytes > p->opt.give)
		bytes = p->opt.give;
	arg = bytes < p->reserved ? p->reserved - bytes : 0;
	pthread_mutex_unlock(&p->lock);
	if (!bytes)
		return 0;
	hm_pool_trim_until(p, &arg, 0);
	return arg;
}

static int obey(struct pool *p, const struct hm_asked_pool *copy, uint64_t *done)
{
	switch (copy->op) {
	case HM_ASKED_NOTHING:
		return hm_error(-ECANCELED, "the request was withdrawn");
	case HM_ASKED_RECLAIM:
		*done = give_up(p, copy->bytes);
		return 0;
	case HM_ASKED_MAX:
		return p->member ? hm_error(-EXDEV, "the pool is a part of another pool") :
			set_max(p, copy->bytes);
	default:
		return hm_error(-EOPNOTSUPP, "this version of the library has no request %u", copy->op);
	}
}

/* Others can write while this reads: a torn request is one of theirs, too. */
void hm_pool_answer(void *pool)
{
	struct pool *p = pool;
	struct hm_asked_pool copy, *asked = __atomic_load_n(&p->asked, __ATOMIC_ACQUIRE);
	uint32_t before = __atomic_load_n(&p->answered, __ATOMIC_RELAXED);
	const uint32_t request = asked ? __atomic_load_n(&asked->request, __ATOMIC_ACQUIRE) : before;
	struct hm_thread_page *page = hm_thread_page();
	char text[sizeof(page->error)];
	uint64_t done = 0;
	int err;

	if (request == before || !hm_publish_hears() ||
	    !__atomic_compare_exchange_n(&p->answered, &before, request, false, __ATOMIC_ACQ_REL,
					 __ATOMIC_RELAXED))
		return;
	if (page)
		memcpy(text, page->error, sizeof(text));
	copy = *asked;
	err = copy.number == p->published->number ? obey(p, &copy, &done) :
		hm_error(-ESTALE, "the pool is gone");
	snprintf(asked->text, sizeof(asked->text), "%s", err ? hetmem_last_error() : "");
	asked->err = err;
	asked->done = done;
	__atomic_store_n(&asked->answered, request, __ATOMIC_RELEASE);
	if (page)
		memcpy(page->error, text, sizeof(text));
}
