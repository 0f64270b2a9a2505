// SPDX-License-Identifier: LGPL-2.1-or-later OR MIT
/*
 * The locks of a sleep, a wake and a move. Each holds pool->sleep_lock, and pool->lock except
 * while it waits or copies. Functions of hetmem_on_remap() run with pool->sleep_lock.
 */
#include "pool/source.h"

int hm_pool_in_observer(const struct pool *p)
{
	return __atomic_load_n(&p->mover, __ATOMIC_RELAXED) == hm_thread() ?
		hm_error(-EDEADLK, "pool: not in a function of hetmem_on_remap()") : 0;
}

int hm_pool_lock_moves_within(struct pool *p, uint64_t ns)
{
	struct timespec end;
	int err = hm_pool_in_observer(p);

	if (err)
		return err;
	if (pthread_mutex_trylock(&p->sleep_lock)) {
		clock_gettime(CLOCK_REALTIME, &end);
		ns += end.tv_nsec;
		end.tv_sec += ns / 1000000000;
		end.tv_nsec = ns % 1000000000;
		if (pthread_mutex_timedlock(&p->sleep_lock, &end))
			return hm_error(-EBUSY, "pool: another thread's move, sleep or wake has not ended after wait=");
	}
	__atomic_store_n(&p->mover, hm_thread(), __ATOMIC_RELAXED);
	pthread_mutex_lock(&p->lock);
	return 0;
}

int hm_pool_lock_moves(struct pool *p)
{
	int err = hm_pool_in_observer(p);

	if (err)
		return err;
	pthread_mutex_lock(&p->sleep_lock);
	__atomic_store_n(&p->mover, hm_thread(), __ATOMIC_RELAXED);
	pthread_mutex_lock(&p->lock);
	return 0;
}

void hm_pool_unlock_moves(struct pool *p)
{
	pthread_mutex_unlock(&p->lock);
	__atomic_store_n(&p->mover, 0, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&p->sleep_lock);
}
