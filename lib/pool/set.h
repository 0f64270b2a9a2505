/* SPDX-License-Identifier: LGPL-2.1-or-later OR MIT */
/* set.c: options that change at run time, and requests of other processes. */
#ifndef HETMEM_POOL_SET_H
#define HETMEM_POOL_SET_H

#include "core/asked.h"
#include "pool/pool_impl.h"

/* HM_CTL_SET. Without the lock. */
int hm_pool_set(struct pool *p, struct hm_ctl_set *set);

/* Gives back what is beyond a lower max. Waits for work on it, unless @now. Without the lock. */
void hm_pool_shrink(struct pool *p, bool now);

/* Answers a request, once; @pool is a struct pool. Any thread, without locks. */
void hm_pool_answer(void *pool);

/* The same, in a call of the program. */
static inline void hm_pool_listen(struct pool *p)
{
	const struct hm_asked_pool *asked = __atomic_load_n(&p->asked, __ATOMIC_RELAXED);

	if (asked &&
	    hm_unlikely(__atomic_load_n(&asked->request, __ATOMIC_ACQUIRE) !=
			__atomic_load_n(&p->answered, __ATOMIC_RELAXED)))
		hm_pool_answer(p);
}

/*
 * pool.c. Gives back free memory until *@arg bytes are held, or until @deadline. Returns whether
 * earlier work uses some of the rest. *@arg: out: bytes that were given back. Without the lock.
 */
bool hm_pool_trim_until(struct pool *p, size_t *arg, uint64_t deadline);
int hm_pool_check_options(const struct hm_pool_options *opt, const struct hm_provider *provider);
/* What streams may cache, awake and asleep. */
void hm_pool_set_cache(struct pool *p);

#endif /* HETMEM_POOL_SET_H */
